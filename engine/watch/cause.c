/* cause.c -- differences of sums, and the largest of ten numbers.
 *
 * The engine adds up what held the whole server (cause_sums: us of stalls, swaps, steps, loads).
 * A request remembers the sums at its last change of state; see() takes the time since then and
 * gives it away by rank, as far as it lasts:
 *
 *     waits      its adapter's load, the machine, swaps, a restart; the rest: the queue
 *     gave way   the machine, swaps, a restart; the rest: preemption
 *     runs       the machine, swaps, a restart, its own steps; steps of others; the rest: none
 *
 * So a microsecond has one cause, at constant cost for each change. cause_first() closes the
 * phase up to the first token and begins that of the others; cause_judge() chooses between them
 * as cause.h says.
 */
#include "engine/watch/cause.h"

#include <string.h>

static int64_t at_most(int64_t a, int64_t b)
{
    int64_t least = a < b ? a : b;
    return least > 0 ? least : 0;
}

/* So much of what is left goes there. */
static void give(cause_clock *c, miss_cause to, int64_t us, int64_t *left)
{
    us = at_most(us, *left);
    c->us[to] += us;
    *left -= us;
}

static void begin_phase(cause_clock *c, const cause_sums *s)
{
    memset(c->us, 0, sizeof(c->us));
    memcpy(c->seen.rows_us, s->rows_us, sizeof(c->seen.rows_us));
    c->rows_us = 0;
    c->crowd = -1;
}

static int64_t growth(const cause_clock *c, const cause_sums *s, miss_cause of)
{
    return s->us[of] - c->seen.us[of];
}

/* Attributes all until now. */
static void see(cause_clock *c, const cause_sums *s, int64_t now_us)
{
    static const miss_cause shared[] = {MISS_MACHINE, MISS_SWAP, MISS_RESTART};
    int64_t left = now_us > c->at_us ? now_us - c->at_us : 0;
    if (c->state == CAUSE_WAITS && c->adapter)
        give(c, MISS_ADAPTER_LOAD, growth(c, s, MISS_ADAPTER_LOAD), &left);
    for (size_t i = 0; i < sizeof(shared) / sizeof(*shared); i++)
        give(c, shared[i], growth(c, s, shared[i]), &left);
    switch (c->state) {
    case CAUSE_WAITS: give(c, MISS_QUEUE, left, &left); break;
    case CAUSE_GAVE_WAY: give(c, MISS_PREEMPTION, left, &left); break;
    case CAUSE_RUNS:
        give(c, MISS_NONE, c->own_us, &left);
        give(c, MISS_DECODE_STEPS, growth(c, s, MISS_DECODE_STEPS) - c->own_us, &left);
        give(c, MISS_NONE, left, &left); /* between steps; its form was waited for */
        break;
    }
    memcpy(c->seen.us, s->us, sizeof(c->seen.us));
    c->rows_us += c->own_us;
    c->own_us = 0;
    c->at_us = now_us;
}

void cause_begin(cause_clock *c, const cause_sums *s, int64_t arrived_us, int64_t now_us,
                 int64_t limits_us, int64_t stalled_us)
{
    int64_t left = now_us > arrived_us ? now_us - arrived_us : 0;
    *c = (cause_clock){.at_us = now_us, .first_crowd = -1};
    memcpy(c->seen.us, s->us, sizeof(c->seen.us));
    begin_phase(c, s);
    give(c, MISS_LIMITS, limits_us, &left);
    give(c, MISS_MACHINE, stalled_us, &left);
    give(c, MISS_NONE, left, &left);
}

void cause_enter(cause_clock *c, const cause_sums *s, int64_t now_us, bool adapter)
{
    see(c, s, now_us);
    c->adapter = adapter;
}

void cause_go(cause_clock *c, const cause_sums *s, int64_t now_us, cause_state to)
{
    see(c, s, now_us);
    c->state = to;
}

void cause_split_loads(cause_clock *c, int64_t disk_us, int64_t load_us)
{
    int64_t disk = disk_us - c->disk_us, load = load_us - c->load_us;
    int64_t waited = c->us[MISS_ADAPTER_LOAD];
    c->disk_us = disk_us;
    c->load_us = load_us;
    if (load <= 0 || disk <= 0) return;
    int64_t part = at_most((int64_t)((double)waited * (double)disk / (double)load), disk);
    part = at_most(part, waited);
    c->us[MISS_ADAPTER_LOAD] -= part;
    c->us[MISS_STORAGE] += part;
}

static int crowd_of(const cause_clock *c, const cause_sums *s, int class)
{
    int64_t most = 0;
    int crowd = -1;
    for (int k = 0; k < CAUSE_CLASSES; k++) {
        int64_t us = s->rows_us[k] - c->seen.rows_us[k] - (k == class ? c->rows_us : 0);
        if (us <= most) continue;
        most = us;
        crowd = k;
    }
    return crowd;
}

void cause_end(cause_clock *c, const cause_sums *s, int64_t now_us, int class)
{
    see(c, s, now_us);
    c->crowd = crowd_of(c, s, class);
}

void cause_first(cause_clock *c, const cause_sums *s, int64_t now_us, int class, int64_t late_us,
                 int64_t target_us)
{
    cause_end(c, s, now_us, class);
    c->first_load_us = c->us[MISS_ADAPTER_LOAD] + c->us[MISS_STORAGE];
    if (late_us > 0) {
        c->first = cause_pick(c->us, target_us, MISS_PROMPT);
        c->first_crowd = c->crowd;
    }
    c->adapter_us = cause_adapter_us(c);
    begin_phase(c, s);
}

miss_cause cause_pick(const int64_t us[MISS_CAUSES], int64_t target_us, miss_cause own)
{
    int64_t beyond = us[MISS_NONE] > target_us ? us[MISS_NONE] - target_us : 0, most = 0;
    miss_cause why = own;
    for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
        int64_t held = us[k] + (k == (int)own ? beyond : 0);
        if (held <= most) continue;
        most = held;
        why = (miss_cause)k;
    }
    return why;
}

/* MISS_NONE: a matter of time. */
static miss_cause cause_of_error(const cause_life *life)
{
    switch (life->code) {
    case ERR_TIMEOUT:
    case ERR_BUSY: return MISS_NONE;
    case ERR_RESTARTING:
    case ERR_DEVICE: return MISS_RESTART;
    case ERR_INTERNAL:
    case ERR_NOMEM: return MISS_MACHINE;
    case ERR_IO:
    case ERR_DAMAGED: return MISS_STORAGE;
    case ERR_INPUT: return MISS_PROMPT;
    default: return life->unloaded ? MISS_ADAPTER_LOAD : MISS_PROMPT;
    }
}

static cause_verdict verdict(miss_cause why, int crowd)
{
    return (cause_verdict){why, why == MISS_DECODE_STEPS ? crowd : -1};
}

cause_verdict cause_judge(const cause_clock *c, const cause_life *life)
{
    bool ttft = life->ttft_late_us > 0, tpot = life->tpot_late_us > 0;
    if (!life->failed && !ttft && !tpot) return verdict(MISS_NONE, -1);
    miss_cause broken = life->failed ? cause_of_error(life) : MISS_NONE;
    if (broken) return verdict(broken, -1);
    if (c->first && life->ttft_late_us >= life->tpot_late_us)
        return verdict(c->first, c->first_crowd);
    miss_cause why = life->began ? cause_pick(c->us, life->decode_target_us, MISS_MACHINE)
                                 : cause_pick(c->us, life->ttft_target_us, MISS_PROMPT);
    return verdict(why, c->crowd);
}
