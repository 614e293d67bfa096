/* baseline.c -- what others do, on the same device with the same pages and slots.
 *
 *   fcfs           in order of arrival; a seat is reserved with all its pages (Orca); chunked
 *                  prefill with a fixed budget of tokens (Sarathi-Serve)
 *   vllm-like      the same, pages as they are needed; who is short of one pre-empts the latest
 *   priority+shed  by class, then arrival; what has missed its deadline is dropped from the queue
 *   slora-like     early abort; the newest first while the queue grows; adapters in the batch first
 *   edf            earliest deadline first, nothing dropped
 *   vtc            the tenant served least first (virtual token counters), nothing dropped
 *   sarathi        as vllm-like; the budget is what the tightest target leaves on this device
 *   qoserve-like   Niyama, QoServe: chunks as long as the streams' slack allows, which counts from
 *                  the first token's deadline on; prompts by their deadline and what is left of
 *                  them, who cannot be in time behind all others.  It knows the device exactly.
 * All pass over who lacks an adapter (vLLM's max_loras rule), at most SKIP of them in a step.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "tests/sim/sim.h"

enum { BUDGET = 512, SKIP = 64, LEAST_CHUNK = 64, NONE = -1 };

/* qoserve-like: a token that is left of a prompt counts as much time as so many; not tuned. */
static const double ALPHA = 4;

typedef struct {
    int head, tail, n;
} lane;

typedef struct {
    sim_engine *e;
    sim_policy p;
    lane *lanes;
    int n_lanes, n_waiting, *cursor;
    int *next, *prev;      /* [cap] by place in the pool */
    double *served, floor; /* [lanes] for vtc */
    double growth, batch;  /* slora: EWMA of the queue's growth and of what was seated */
    int last_waiting;
    bool *late; /* [cap] qoserve: relegated */
} baseline;

static sim_seq *seq_at(const baseline *b, int i)
{
    return &b->e->seqs[i];
}

static int lane_of(const baseline *b, const sim_seq *q)
{
    const sim_arrival *a = &b->e->a[q->id];
    if (b->p == SIM_QOSERVE) return a->slo + (b->late[q - b->e->seqs] ? SIM_CLASSES : 0);
    return b->p == SIM_VTC ? a->tenant : b->p == SIM_PRIORITY || b->p == SIM_EDF ? a->slo : 0;
}

static void put(baseline *b, sim_seq *q, bool front)
{
    int l = lane_of(b, q), i = (int)(q - b->e->seqs);
    lane *x = &b->lanes[l];
    if (b->p == SIM_VTC && x->n == 0) {
        double least = -1;
        for (int k = 0; k < b->n_lanes; k++) {
            if (b->lanes[k].n > 0 && (least < 0 || b->served[k] < least)) least = b->served[k];
        }
        if (least < 0) least = b->floor;
        if (b->served[l] < least) b->served[l] = least;
    }
    b->prev[i] = front ? NONE : x->tail;
    b->next[i] = front ? x->head : NONE;
    *(b->prev[i] == NONE ? &x->head : &b->next[b->prev[i]]) = i;
    *(b->next[i] == NONE ? &x->tail : &b->prev[b->next[i]]) = i;
    x->n++;
    b->n_waiting++;
}

static void cut(baseline *b, sim_seq *q)
{
    int l = lane_of(b, q), i = (int)(q - b->e->seqs);
    lane *x = &b->lanes[l];
    *(b->prev[i] == NONE ? &x->head : &b->next[b->prev[i]]) = b->next[i];
    *(b->next[i] == NONE ? &x->tail : &b->prev[b->next[i]]) = b->prev[i];
    if (--x->n == 0) b->floor = b->served[l];
    b->n_waiting--;
}

static void arrive(void *self, int id)
{
    baseline *b = self;
    if (b->e->n_free == 0) {
        b->e->out->of[id].end = SIM_REFUSED;
        b->e->out->of[id].ends++;
        return;
    }
    sim_seq *q = sim_take(b->e, id);
    b->late[q - b->e->seqs] = false;
    put(b, q, false);
}

static bool sheds(const baseline *b)
{
    return b->p == SIM_PRIORITY || b->p == SIM_SLORA;
}

/* Drops what is late from the front of each lane (deadlines ascend in a lane,
 * but for slora). */
static void shed(baseline *b)
{
    for (int l = 0; l < b->n_lanes; l++) {
        int i = b->lanes[l].head;
        for (int seen = 0; i != NONE && seen < SKIP;) {
            sim_seq *q = seq_at(b, i);
            i = b->next[i];
            if (q->ever || b->e->now_us < q->deadline_us) {
                if (b->p != SIM_SLORA) break;
                seen++;
                continue;
            }
            cut(b, q);
            sim_finish(b->e, q, SIM_ABORTED);
        }
    }
}

/* The lane whose cursor is next. */
static int choose(const baseline *b)
{
    int best = NONE;
    for (int l = 0; l < b->n_lanes; l++) {
        if (b->cursor[l] == NONE) continue;
        if (best == NONE)
            best = l;
        else if (b->p == SIM_VTC && b->served[l] < b->served[best])
            best = l;
        else if (b->p == SIM_EDF &&
                 seq_at(b, b->cursor[l])->deadline_us < seq_at(b, b->cursor[best])->deadline_us)
            best = l;
    }
    return best;
}

static bool extend(baseline *b, sim_seq *q, int n)
{
    while (!sim_extend(b->e, q, q->computed + n)) {
        sim_engine *e = b->e;
        sim_seq *victim = q;
        for (int i = 0; i < e->n_running; i++) {
            sim_seq *o = &e->seqs[e->running[i]];
            if (o->arrived_us > victim->arrived_us) victim = o;
        }
        e->rows_left += victim->chunk;
        sim_unseat(e, victim);
        victim->n_preempted++;
        put(b, victim, true);
        if (victim == q) return false;
    }
    return true;
}

static void decode_rows(baseline *b)
{
    sim_engine *e = b->e;
    for (int i = 0; i < e->n_running; i++) {
        sim_seq *q = &e->seqs[e->running[i]];
        if (sim_left(e, q) != 1 || q->chunk) continue;
        int at = e->n_running;
        if (extend(b, q, 1)) sim_place(e, q, 1);
        if (e->n_running < at) i = -1; /* somebody left: look again */
    }
}

static void begun_rows(baseline *b, int *budget)
{
    sim_engine *e = b->e;
    for (int i = 0; i<e->n_running && * budget> 0; i++) {
        sim_seq *q = &e->seqs[e->running[i]];
        int left = sim_left(e, q), n = left < *budget ? left : *budget;
        if (left == 1 || q->chunk) continue;
        if (n > e->rows_left) n = e->rows_left;
        if (n < 1) break;
        int at = e->n_running;
        if (extend(b, q, n)) {
            sim_place(e, q, n);
            *budget -= n;
        }
        if (e->n_running < at) i = -1;
    }
}

static bool seat(baseline *b, sim_seq *q, int *budget, bool *full)
{
    sim_engine *e = b->e;
    const sim_arrival *a = &e->a[q->id];
    int left = sim_left(e, q), n = left < *budget ? left : *budget;
    if (n > e->rows_left) n = e->rows_left;
    if (n < 1 || e->n_running >= e->set->device.max_seqs) {
        *full = true;
        return false;
    }
    if (!sim_slots_acquire(e->slots, a->adapter, e->now_us)) return false;
    int pages = b->p == SIM_VLLM || b->p == SIM_SARATHI || b->p == SIM_QOSERVE
                    ? left
                    : a->prompt + a->max_tokens;
    if (!sim_seat(e, q, pages)) {
        sim_slots_release(e->slots, a->adapter, e->now_us);
        *full = true;
        return false;
    }
    cut(b, q);
    if (b->p == SIM_VTC) b->served[lane_of(b, q)] += a->prompt;
    sim_place(e, q, n);
    *budget -= n;
    return true;
}

static bool in_batch(const baseline *b, uint32_t adapter)
{
    const sim_engine *e = b->e;
    for (int i = 0; i < e->n_running; i++) {
        if (e->a[e->seqs[e->running[i]].id].adapter == adapter) return true;
    }
    return false;
}

/* S-LoRA: those whose adapter is in the batch first, then the rest; newest
 * first in overload. */
static void seat_slora(baseline *b, int *budget)
{
    double grown = b->n_waiting - b->last_waiting;
    int seated = 0;
    bool full = false;
    b->last_waiting = b->n_waiting;
    b->growth += 0.3 * (grown - b->growth);
    bool newest = b->growth >= b->batch && b->n_waiting > 0;
    for (int round = 0; round < 2 && !full; round++) {
        int i = newest ? b->lanes[0].tail : b->lanes[0].head;
        for (int seen = 0; i != NONE && seen < SKIP && !full; seen++) {
            sim_seq *q = seq_at(b, i);
            i = newest ? b->prev[i] : b->next[i];
            if (round == 0 && !in_batch(b, b->e->a[q->id].adapter)) continue;
            seated += seat(b, q, budget, &full);
        }
    }
    b->batch += 0.3 * (seated - b->batch);
}

/* ---- qoserve-like */

static double prompt_us(const baseline *b, const sim_seq *q)
{
    return b->e->set->device.prefill_us * sim_left(b->e, q);
}

static bool is_hopeless(const baseline *b, const sim_seq *q)
{
    return (double)b->e->now_us + prompt_us(b, q) > (double)q->deadline_us;
}

static void relegate(baseline *b)
{
    for (int l = 0; l < SIM_CLASSES; l++) {
        int i = b->lanes[l].head;
        for (int seen = 0; i != NONE && seen < SKIP; seen++) {
            sim_seq *q = seq_at(b, i);
            i = b->next[i];
            if (!is_hopeless(b, q)) continue;
            cut(b, q);
            b->late[q - b->e->seqs] = true;
            put(b, q, false);
        }
    }
}

/* The chunk that keeps all streams in time. */
static int dynamic_chunk(const baseline *b)
{
    const sim_engine *e = b->e;
    const sim_device *d = &e->set->device;
    uint64_t none = 1;
    sim_device exact = *d;
    exact.noise = exact.hiccup = 0;
    double slack = INFINITY;
    for (int i = 0; i < e->n_running; i++) {
        const sim_seq *q = &e->seqs[e->running[i]];
        if (!q->made) continue;
        int64_t due = q->deadline_us + q->made * e->set->classes[e->a[q->id].slo].tpot_us;
        slack = fmin(slack, (double)(due - e->now_us));
    }
    double left = (slack - sim_step_us(&exact, &e->work, &none)) / d->prefill_us;
    return left < LEAST_CHUNK ? LEAST_CHUNK : left > d->max_rows ? d->max_rows : (int)left;
}

static double priority(const baseline *b, const sim_seq *q)
{
    double late = q->running && is_hopeless(b, q) ? 1e12 : 0;
    return late + (double)q->deadline_us + ALPHA * prompt_us(b, q);
}

/* The first of those that wait, but for those that have been tried. */
static sim_seq *first_waiting(baseline *b)
{
    sim_seq *best = NULL;
    for (int l = 0; l < b->n_lanes && (l < SIM_CLASSES || !best); l++) {
        int i = b->cursor[l];
        for (int seen = 0; i != NONE && seen < SKIP; seen++, i = b->next[i]) {
            sim_seq *q = seq_at(b, i);
            if (q->chunk >= 0 && (!best || priority(b, q) < priority(b, best))) best = q;
            if (l >= SIM_CLASSES) break;
        }
    }
    return best;
}

static sim_seq *first_begun(const baseline *b)
{
    const sim_engine *e = b->e;
    sim_seq *best = NULL;
    for (int i = 0; i < e->n_running; i++) {
        sim_seq *q = &e->seqs[e->running[i]];
        if (q->chunk || sim_left(e, q) == 1) continue;
        if (!best || priority(b, q) < priority(b, best)) best = q;
    }
    return best;
}

static void plan_qoserve(baseline *b)
{
    sim_engine *e = b->e;
    bool full = false;
    sim_seq *tried[SKIP];
    int n_tried = 0;
    relegate(b);
    decode_rows(b);
    int budget = dynamic_chunk(b);
    for (int l = 0; l < b->n_lanes; l++) b->cursor[l] = b->lanes[l].head;
    while (budget > 0 && n_tried < SKIP) {
        sim_seq *begun = first_begun(b), *waiting = full ? NULL : first_waiting(b);
        if (!begun && !waiting) break;
        if (begun && (!waiting || priority(b, begun) <= priority(b, waiting))) {
            int left = sim_left(e, begun), n = left < budget ? left : budget;
            if (n > e->rows_left) n = e->rows_left;
            if (n < 1) break;
            if (!extend(b, begun, n)) continue;
            sim_place(e, begun, n);
            budget -= n;
        } else if (!seat(b, waiting, &budget, &full)) {
            waiting->chunk = -1; /* not again in this step */
            tried[n_tried++] = waiting;
        } else {
            for (int l = 0; l < b->n_lanes; l++) b->cursor[l] = b->lanes[l].head;
        }
    }
    for (int i = 0; i < n_tried; i++) tried[i]->chunk = 0;
}

/* Sarathi-Serve's budget, prompt tokens and streams together: what the tightest target leaves. */
static int fixed_budget(const baseline *b)
{
    const sim_device *d = &b->e->set->device;
    if (b->p != SIM_SARATHI) return BUDGET;
    double most = ((double)b->e->set->classes[0].tpot_us - d->base_us) / d->prefill_us;
    most = fmin(fmax(most, LEAST_CHUNK), d->max_rows);
    return (int)fmax(LEAST_CHUNK, most - b->e->n_running);
}

static void plan(void *self)
{
    baseline *b = self;
    int budget = fixed_budget(b);
    bool full = false;
    if (b->p == SIM_QOSERVE) {
        plan_qoserve(b);
        return;
    }
    if (sheds(b)) shed(b);
    decode_rows(b);
    begun_rows(b, &budget);
    if (b->e->n_running >= b->e->set->device.max_seqs || budget < 1) return;
    if (b->p == SIM_SLORA) {
        seat_slora(b, &budget);
        return;
    }
    for (int l = 0; l < b->n_lanes; l++) b->cursor[l] = b->lanes[l].head;
    for (int skipped = 0; skipped < SKIP && !full;) {
        int l = choose(b);
        if (l == NONE) break;
        sim_seq *q = seq_at(b, b->cursor[l]);
        b->cursor[l] = b->next[b->cursor[l]];
        skipped += !seat(b, q, &budget, &full);
    }
}

static void token(void *self, sim_seq *q, int prompt, int output)
{
    baseline *b = self;
    (void)prompt;
    if (b->p == SIM_VTC) b->served[lane_of(b, q)] += FAIR_OUTPUT_PRICE * output;
}

static void gone(void *self, sim_seq *q)
{
    (void)self;
    (void)q;
}

static void stepped(void *self, const cost_work *w, double us)
{
    (void)self;
    (void)w;
    (void)us;
}

static bool empty(const void *self)
{
    return ((const baseline *)self)->n_waiting == 0;
}

static void destroy(void *self)
{
    baseline *b = self;
    free(b->lanes);
    free(b->cursor);
    free(b->next);
    free(b->prev);
    free(b->served);
    free(b->late);
    free(b);
}

bool sim_baseline_open(sim_scheduler *out, sim_engine *e)
{
    baseline *b = calloc(1, sizeof(*b));
    if (!b) return false;
    b->e = e;
    b->p = e->set->policy;
    b->n_lanes = b->p == SIM_VTC ? e->tenants : 2 * SIM_CLASSES;
    b->lanes = calloc((size_t)b->n_lanes, sizeof(*b->lanes));
    b->cursor = calloc((size_t)b->n_lanes, sizeof(int));
    b->served = calloc((size_t)b->n_lanes, sizeof(double));
    b->next = calloc((size_t)e->cap, sizeof(int));
    b->prev = calloc((size_t)e->cap, sizeof(int));
    b->late = calloc((size_t)e->cap, sizeof(bool));
    *out = (sim_scheduler){.self = b,
                           .arrive = arrive,
                           .plan = plan,
                           .token = token,
                           .gone = gone,
                           .stepped = stepped,
                           .empty = empty,
                           .destroy = destroy};
    if (!b->lanes || !b->cursor || !b->served || !b->next || !b->prev || !b->late) return false;
    for (int l = 0; l < b->n_lanes; l++) b->lanes[l] = (lane){NONE, NONE, 0};
    return true;
}
