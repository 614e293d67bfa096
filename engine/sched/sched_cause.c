/* sched_cause.c -- what the scheduler tells the requests' clocks (cause.h).
 *
 * Sums for all of them grow with each step and each pause; a request's own clock is set where its
 * state changes.  Times are those that the loop has read anyway.
 *
 * Threads: the engine's.
 */
#include <assert.h>
#include <math.h>

#include "engine/sched/sched_inside.h"

enum {
    BETWEEN_US = 5000, /* planning, settling: the engine needs no more between two steps */
    /* Where no step can be made, it sleeps for a millisecond and wakes when it may; from here on
     * the whole process stood still, loaders too. */
    STALL_US = 50000,
};

_Static_assert((int)CAUSE_CLASSES >= (int)SLO_CLASS_MAX, "every class has its sum");

void sched_cause_look(sched *sc, int64_t now)
{
    int64_t lost = sc->lost.looked_us ? now - sc->lost.looked_us - BETWEEN_US : 0;
    if (lost > 0) sc->lost.sums.us[MISS_MACHINE] += lost;
    sc->lost.looked_us = now;
}

void sched_cause_begin(sched *sc, int64_t now, bool slept)
{
    if (slept && now - sc->lost.looked_us <= STALL_US) sc->lost.looked_us = now;
    sched_cause_look(sc, now);
    int64_t lost = sc->lost.sums.us[MISS_MACHINE] - sc->lost.door_lost_us;
    int64_t open = now - sc->lost.door_us - (lost > STALL_US ? lost : 0);
    if (sc->lost.door_us && open > 0) sc->lost.sums.us[MISS_ADAPTER_LOAD] += open;
    sc->lost.door_us = 0;
}

void sched_cause_woke(sched *sc, int64_t came_us, int64_t now)
{
    if (now - came_us > BETWEEN_US) sc->lost.sums.us[MISS_MACHINE] += now - came_us;
}

/* Whoever still waits, though there are seats, pages and rows, waits for an adapter. */
void sched_cause_planned(sched *sc, int64_t now)
{
    bool open = sc->queue.n_seats < sc->cfg.max_seqs && !sc->plan.pages_short &&
                !sc->plan.rows_short && sc->plan.rows_left > 0;
    sc->lost.door_us = open ? now : 0;
    sc->lost.door_lost_us = sc->lost.sums.us[MISS_MACHINE];
}

void sched_cause_lost(sched *sc, miss_cause why, int64_t began_us, int64_t now)
{
    sc->lost.sums.us[why] += now - began_us;
    if (sc->lost.looked_us) sc->lost.looked_us += now - began_us; /* it is in no pause */
}

/* ------------------------------------------------------------------------- steps -- */

/* Alone, a prompt goes in as few steps as rows allow, and pays what each step costs so often. */
double sched_cause_own_us(const sched *sc, const request *rq, int n)
{
    const cost_work none = {0};
    cost_work w = none;
    if (sc->cost.n < COST_LEARNING) return n;
    count_work(sc, &w, rq, n, rank_of(rq, n));
    double alone = cost_at_rest(&sc->cost, &w);
    if (w.decode > 0) return alone;
    int most = rq->n_prompt < sc->cfg.max_rows ? rq->n_prompt : sc->cfg.max_rows;
    double steps = fmin(1, (double)n / most);
    return alone - (1 - steps) * cost_at_rest(&sc->cost, &none);
}

void sched_cause_step(sched *sc, const flight *f, int64_t took_us)
{
    double all = 0, took = (double)(took_us > 0 ? took_us : 0), steady = took;
    for (int s = 0; s < f->n_seq; s++) all += f->row[s].own_us;
    if (f->expected_us > 0) steady = fmin(took, f->expected_us);
    sc->lost.sums.us[MISS_MACHINE] += (int64_t)(took - steady);
    sc->lost.sums.us[MISS_DECODE_STEPS] += (int64_t)steady;
    if (all <= 0) return;
    /* Before anything is known of costs, rows share a step as they are. */
    double scale = f->expected_us > 0 ? steady / f->expected_us : steady / all;
    for (int s = 0; s < f->n_seq; s++) {
        request *rq = f->row[s].owner;
        if (!rq) continue;
        cause_own(&rq->times.clock, (int64_t)fmin(steady, scale * f->row[s].own_us));
        sc->lost.sums.rows_us[rq->slo_class] += (int64_t)(steady * f->row[s].own_us / all);
    }
}

/* ---------------------------------------------------------------------- requests -- */

void sched_cause_loads(const sched *sc, int64_t us[2])
{
    us[0] = us[1] = 0;
    if (sc->source && sc->source->spent) sc->source->spent(sc->source->self, &us[0], &us[1]);
}

/* It has waited for its adapter, which is there now, or not any more. */
static void split_loads(const sched *sc, cause_clock *c)
{
    int64_t us[2];
    if (c->us[MISS_ADAPTER_LOAD] == 0) return;
    sched_cause_loads(sc, us);
    cause_split_loads(c, us[0], us[1]);
}

void sched_cause_seat(sched *sc, request *rq, int kept, int64_t now)
{
    bool again = rq->times.clock.state == CAUSE_GAVE_WAY && kept < rq->run.redo;
    cause_go(&rq->times.clock, &sc->lost.sums, now, again ? CAUSE_GAVE_WAY : CAUSE_RUNS);
    split_loads(sc, &rq->times.clock);
}

void sched_cause_computed(sched *sc, request *rq, int end, int64_t now)
{
    if (rq->times.clock.state == CAUSE_GAVE_WAY && end >= rq->run.redo)
        cause_go(&rq->times.clock, &sc->lost.sums, now, CAUSE_RUNS);
}

void sched_cause_gave_way(sched *sc, request *rq, int64_t now)
{
    if (rq->run.n_computed > rq->run.redo) rq->run.redo = rq->run.n_computed;
    cause_go(&rq->times.clock, &sc->lost.sums, now, CAUSE_GAVE_WAY);
}

void sched_cause_first(sched *sc, request *rq, int64_t now)
{
    int64_t late_us = rq->ttft_deadline_us ? now - rq->ttft_deadline_us : 0;
    cause_first(&rq->times.clock, &sc->lost.sums, now, rq->slo_class, late_us,
                rq->ttft_deadline_us - rq->arrived_us);
}

void sched_cause_end(sched *sc, request *rq, int64_t now)
{
    cause_end(&rq->times.clock, &sc->lost.sums, now, rq->slo_class);
    split_loads(sc, &rq->times.clock);
}

miss_cause sched_cause_overdue(const sched *sc, const request *rq, int64_t now,
                               const int64_t loads_us[2])
{
    bool late = rq->ttft_deadline_us && now > rq->ttft_deadline_us;
    if (!late || rq->times.first_token_us || rq->run.state == STATE_RUNNING) return MISS_NONE;
    cause_clock c = rq->times.clock; /* its own goes on */
    cause_go(&c, &sc->lost.sums, now, c.state);
    if (c.us[MISS_ADAPTER_LOAD] > 0) cause_split_loads(&c, loads_us[0], loads_us[1]);
    return cause_pick(c.us, rq->ttft_deadline_us - rq->arrived_us, MISS_PROMPT);
}
