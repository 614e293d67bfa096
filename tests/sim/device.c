/* device.c -- how long a step takes, and which adapters are there. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "tests/sim/sim.h"

enum { NONE = -1, INSIST_AFTER_US = 1000000, FRESH_US = 2000000 };

int sim_rank(uint32_t adapter)
{
    return adapter == 0 ? 0 : adapter % 4 == 3 ? 64 : 16;
}

double sim_step_us(const sim_device *d, const cost_work *w, uint64_t *state)
{
    double us = d->base_us + d->prefill_us * w->prefill + d->decode_us * w->decode +
                d->context_us * w->attended + d->rank_us * w->ranks;
    if (d->hiccup > 0 && sim_uniform(state) < d->hiccup) us += d->hiccup_us * sim_uniform(state);
    return us * (1 + d->noise * (2 * sim_uniform(state) - 1));
}

/* As adapters/residency/residency.c: demands in the order of asking, one copy at a time;
 * whoever is idle and was used longest ago goes; the oldest demand that waits
 * too long closes one that is in use. */
typedef struct {
    int refs, prev, next; /* next: queue of demands, or list of the resident by last use */
    bool resident, asked, closing, fresh; /* fresh: loaded, and nobody took it yet */
    int64_t asked_us, loaded_us;
} adapter;

struct sim_slots {
    const sim_device *d;
    adapter *of;           /* [adapters + 1] */
    int free, first, last; /* free slots; queue of demands */
    int oldest, newest;    /* resident */
    int copying;
    int64_t copied_us, idle_us;
    uint64_t loads;
    int listed;
};

sim_slots *sim_slots_create(const sim_device *d, int adapters)
{
    sim_slots *s = calloc(1, sizeof(*s));
    if (!s) return NULL;
    *s = (sim_slots){.d = d,
                     .of = calloc((size_t)adapters + 1, sizeof(adapter)),
                     .free = d->slots,
                     .first = NONE,
                     .last = NONE,
                     .oldest = NONE,
                     .newest = NONE,
                     .copying = NONE};
    if (!s->of) {
        free(s);
        return NULL;
    }
    return s;
}

void sim_slots_destroy(sim_slots *s)
{
    if (s) free(s->of);
    free(s);
}

static void list_remove(sim_slots *s, int i)
{
    adapter *x = &s->of[i];
    *(x->prev == NONE ? &s->oldest : &s->of[x->prev].next) = x->next;
    *(x->next == NONE ? &s->newest : &s->of[x->next].prev) = x->prev;
}

static void list_add(sim_slots *s, int i)
{
    s->of[i].prev = s->newest;
    s->of[i].next = NONE;
    *(s->newest == NONE ? &s->oldest : &s->of[s->newest].next) = i;
    s->newest = i;
}

static void evict(sim_slots *s, int i)
{
    list_remove(s, i);
    s->of[i].resident = s->of[i].closing = false;
    s->free++;
    s->listed--;
}

static bool make_room(sim_slots *s, int64_t now_us)
{
    for (int i = s->oldest; i != NONE && s->free == 0; i = s->of[i].next) {
        if (s->of[i].refs > 0) continue;
        if (s->of[i].fresh && now_us - s->of[i].loaded_us < FRESH_US) continue;
        evict(s, i);
        break;
    }
    return s->free > 0;
}

static void close_one(sim_slots *s)
{
    for (int i = s->oldest; i != NONE; i = s->of[i].next) {
        if (s->of[i].closing) return;
    }
    for (int i = s->oldest; i != NONE; i = s->of[i].next) {
        if (s->of[i].refs == 0) continue;
        s->of[i].closing = true;
        return;
    }
}

static int64_t copy_us(const sim_slots *s, int i)
{
    return (int64_t)(s->d->load_us * sim_rank((uint32_t)i) / 16);
}

void sim_slots_run(sim_slots *s, int64_t now_us)
{
    for (;;) {
        if (s->copying != NONE) {
            if (s->copied_us > now_us) return;
            s->of[s->copying].resident = true;
            s->of[s->copying].asked = false;
            s->of[s->copying].fresh = true;
            s->of[s->copying].loaded_us = s->copied_us;
            list_add(s, s->copying);
            s->idle_us = s->copied_us;
            s->copying = NONE;
        }
        int i = s->first;
        if (i == NONE) return;
        if (!make_room(s, now_us)) {
            if (now_us - s->of[i].asked_us > INSIST_AFTER_US) close_one(s);
            return;
        }
        s->first = s->of[i].next;
        if (s->first == NONE) s->last = NONE;
        s->free--;
        s->copying = i;
        s->loads++;
        int64_t start = s->of[i].asked_us > s->idle_us ? s->of[i].asked_us : s->idle_us;
        s->copied_us = start + copy_us(s, i);
    }
}

int64_t sim_slots_eta(const sim_slots *s, uint32_t id, int64_t now_us)
{
    if (id == 0 || (s->of[id].resident && !s->of[id].closing)) return 0;
    int64_t us = s->copying != NONE && s->copied_us > now_us ? s->copied_us - now_us : 0;
    if (s->copying == (int)id) return us;
    for (int i = s->first; i != NONE && i != (int)id; i = s->of[i].next) us += copy_us(s, i);
    return us + copy_us(s, (int)id);
}

int64_t sim_slots_next(const sim_slots *s)
{
    return s->copying != NONE ? s->copied_us : INT64_MAX;
}

uint64_t sim_slots_loads(const sim_slots *s)
{
    return s->loads;
}

int sim_slots_listed(const sim_slots *s)
{
    return s->listed;
}

sim_slot_state sim_slots_state(const sim_slots *s, uint32_t id)
{
    return s->of[id].resident ? SLOT_RESIDENT : s->of[id].asked ? SLOT_ASKED : SLOT_AWAY;
}

bool sim_slots_acquire(sim_slots *s, uint32_t id, int64_t now_us)
{
    if (id == 0) return true;
    adapter *x = &s->of[id];
    if (x->resident && !x->closing) {
        x->refs++;
        x->fresh = false;
        list_remove(s, (int)id);
        list_add(s, (int)id);
        return true;
    }
    if (!x->asked && !x->resident) {
        x->asked = true;
        s->listed++;
        x->asked_us = now_us;
        x->next = NONE;
        *(s->last == NONE ? &s->first : &s->of[s->last].next) = (int)id;
        s->last = (int)id;
        if (s->copying == NONE) s->idle_us = now_us;
        sim_slots_run(s, now_us);
    }
    return false;
}

void sim_slots_release(sim_slots *s, uint32_t id, int64_t now_us)
{
    if (id == 0) return;
    assert(s->of[id].resident && s->of[id].refs > 0);
    if (--s->of[id].refs > 0) return;
    if (s->of[id].closing) evict(s, (int)id);
    if (s->copying == NONE) s->idle_us = now_us;
}
