/* sched_place.c -- how the engine describes itself to those that choose a node for a request
 * (place.h), and requests that another node's engine has.
 */
#include "engine/base/clock.h"
#include "engine/sched/sched_inside.h"

/* ------------------------------------------------------------------ engine thread -- */

void sched_place_show(sched *sc)
{
    place_node k = {.cost = sc->cost, .prompts = sc->plan.prompts};
    int n_begun = 0;
    for (int i = 0; i < sc->queue.n; i++) {
        const request *rq = sc->queue.list[i];
        if (!rq->times.first_token_us) {
            n_begun++;
            continue;
        }
        k.streams.decode += 1;
        k.streams.attended += seen_of(sc, rq->run.n_computed);
        k.streams.ranks += rank_share(sc, rq, 1);
    }
    k.free_seats = sc->cfg.max_seqs - sc->queue.n_seats;
    k.free_tokens = (double)kv_available(sc->mem.pages, true) * sc->mem.page_tokens;
    lock_take(&sc->mu);
    sc->shared.place = k;
    sc->shared.n_begun = n_begun;
    lock_release(&sc->mu);
}

/* --------------------------------------------------------------------- any thread -- */

void sched_place_get(sched *sc, place_node *out)
{
    lock_take(&sc->mu);
    *out = sc->shared.place;
    place_see_queue(out, &sc->shared.outlook, sc->shared.n_begun);
    out->free_seats -= sc->shared.outlook.n_waiting;
    if (sc->shared.draining || sc->shared.broken || sc->shared.n_inside >= sc->shared.most_inside)
        out->free_seats = 0;
    lock_release(&sc->mu);
}

void sched_foresee(sched *sc, request *rq)
{
    lengths_ask length = length_ask(rq);
    telemetry_enter(sc->tele, rq);
    lock_take(&sc->mu);
    rq->run.length = lengths_look(sc->shared.lengths, &length);
    lock_release(&sc->mu);
}

void sched_ended_elsewhere(sched *sc, request *rq, finish_reason why, const err *cause)
{
    lengths_ask length = length_ask(rq);
    int made = atomic_load(&rq->out.n_pushed);
    telemetry_end(sc->tele, rq, sched_outcome_of(why), cause ? cause->code : ERR_NONE,
                  clock_now_us());
    if (made == 0 || why == FINISH_ERROR) return;
    lock_take(&sc->mu);
    lengths_learn(sc->shared.lengths, &length, &rq->run.length, made, why != FINISH_STOP);
    lock_release(&sc->mu);
}
