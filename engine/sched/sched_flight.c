/* sched_flight.c -- steps in flight: enqueued, and not settled.
 *
 * While step n runs, n+1 is planned as if n were over, and enqueued behind it ("async
 * scheduling" of vLLM, SGLang's overlap scheduler): positions, pages, adapters and draw numbers
 * are known beforehand, and the device takes n+1's input tokens from what n has sampled
 * (step.from).  Then the host waits for n and settles it.  A request that ends by n (a stop
 * token, a cancellation) has a row in n+1 all the same: its pages and its adapter are held until
 * n+1 is over, and that row's token is nobody's: it is neither handed out nor metered, and its
 * KV is in no page that was published.
 *
 * At most one step is in flight while another is planned.  Rules by which it is settled first:
 *   - a row whose next token hangs on the text so far, which only the host has (sched_may_fly());
 *   - somebody waits for a seat that is free, and the step in flight makes pages of prompts that
 *     the prefix cache may offer him (sched_should_land());
 *   - it holds rows of guessed tokens, or they would pay in the next one (sched_spec.c);
 *   - somebody would have to give way for pages (sched_plan.c sets must_land,
 *     and the plan is made anew);
 *   - nothing can be planned beside it.
 */
#include <assert.h>
#include <stdlib.h>

#include "engine/sched/sched_inside.h"

static bool create(flight *f, const sched_config *c)
{
    size_t logits = (size_t)c->max_logits;
    f->row = calloc((size_t)c->max_seqs, sizeof(*f->row));
    f->picked = calloc(logits, sizeof(*f->picked));
    f->end = calloc(logits, sizeof(*f->end));
    return f->row && f->picked && f->end;
}

static void destroy(flight *f)
{
    assert(!f->up);
    free(f->row);
    free(f->picked);
    free(f->end);
}

bool sched_flights_create(sched *sc)
{
    bool ok = create(&sc->fly.each[0], &sc->cfg) && create(&sc->fly.each[1], &sc->cfg);
    sc->fly.overlaps = be_can_run_ahead(sc->be) && !sc->cfg.no_overlap;
    sc->now = &sc->fly.each[0];
    return ok;
}

void sched_flights_destroy(sched *sc)
{
    for (int i = 0; i < 2; i++) destroy(&sc->fly.each[i]);
}

flight *sched_in_flight(sched *sc)
{
    return sc->fly.each[0].up ? &sc->fly.each[0] : sc->fly.each[1].up ? &sc->fly.each[1] : NULL;
}

/* Its next row, or what is done with this one's result, takes more than the token itself. */
static bool needs_the_host(const request *rq, bool draws)
{
    const sampling *r = &rq->rules;
    bool penalties =
        r->repetition_penalty != 1 || r->presence_penalty != 0 || r->frequency_penalty != 0;
    bool reads = rq->bars && bars_read_text(rq->bars);
    bool beams = rq->beams && (draws || rq->run.n_computed > rq->n_prompt);
    return rq->score_prompt || rq->pool || beams || (draws && (rq->grammar || penalties || reads));
}

bool sched_may_fly(const sched *sc, const flight *f)
{
    bool may = sc->fly.overlaps;
    for (int s = 0; may && s < f->n_seq; s++) {
        may = !f->row[s].owner || !needs_the_host(f->row[s].owner, f->row[s].ends);
        may = may && f->row[s].n_guess == 0;
    }
    return may;
}

bool sched_should_land(sched *sc)
{
    const flight *f = sched_in_flight(sc);
    bool offers = f && sc->cfg.prefix_cache && f->n_rows > f->n_decode &&
                  sc->queue.n_seats < sc->cfg.max_seqs && fair_waiting(sc->queue.fair) > 0;
    return offers || sched_spec_should_land(sc);
}

static void count_rows(sched *sc, flight *f)
{
    const step *st = &sc->step;
    f->n_rows = st->n_rows;
    f->n_adapters = f->n_decode = 0;
    f->n_out = sc->plan.n_out;
    const lora_view *latest = NULL; /* segments of one adapter stand together, but for bare rows */
    for (int i = 0; i < st->n_seg; i++) {
        if (!st->seg[i].lora || st->seg[i].lora == latest) continue;
        latest = st->seg[i].lora;
        f->n_adapters++;
    }
    f->work = (cost_work){0};
}

void sched_take_off(sched *sc)
{
    flight *f = sc->now;
    assert(!f->up && f->n_seq > 0 && f->n_seq <= sc->cfg.max_seqs);
    f->ahead = sched_in_flight(sc) != NULL;
    count_rows(sc, f);
    for (int s = 0; s < f->n_seq; s++) {
        request *rq = f->row[s].owner;
        /* What was placed may have been taken out again by a pre-emption:
         * the work is counted anew. */
        f->row[s].own_us = sched_cause_own_us(sc, rq, f->row[s].chunk);
        bool read = s > 0 && f->row[s - 1].owner->adapter_id == rq->adapter_id;
        count_work(sc, &f->work, rq, f->row[s].chunk, read ? 0 : rank_of(rq, f->row[s].chunk));
        f->work =
            sched_guess_work(&f->work, f->row[s].n_guess, seen_of(sc, rq->run.n_computed) + 1);
        if (rq->run.n_computed >= rq->n_prompt && (f->row[s].chunk == 1 || rq->run.replays))
            f->n_decode += f->row[s].chunk;
        f->n_decode += f->row[s].n_guess;
        assert(f->row[s].chunk > 0 && f->row[s].chunk <= left_of(rq));
        if (s + 1 < f->n_seq && f->row[s + 1].owner == rq) continue; /* one more of its beams */
        rq->run.n_computed += f->row[s].chunk;
        rq->run.n_ahead += f->row[s].ends;
    }
    f->expected_us = sc->cost.n < COST_LEARNING ? 0 : cost_at_rest(&sc->cost, &f->work);
    f->up = true;
    sc->now = f == &sc->fly.each[0] ? &sc->fly.each[1] : &sc->fly.each[0];
}

void sched_hold(sched *sc, request *rq)
{
    flight *f = sched_in_flight(sc);
    for (int s = 0; f && s < f->n_seq; s++) {
        if (f->row[s].owner != rq) continue;
        assert(!f->row[s].held.page && !f->row[s].held.lora);
        f->row[s].owner = NULL;
        f->row[s].held = (held){rq->run.page, rq->run.n_page, rq->run.lora};
        rq->run.page = NULL;
        rq->run.n_page = rq->run.n_gone = 0;
        rq->run.lora = NULL;
        return;
    }
}

void sched_let_go(sched *sc, flight *f, int s)
{
    held *h = &f->row[s].held;
    assert(s >= 0 && s < f->n_seq && !f->row[s].owner);
    for (int i = h->n_page - 1; i >= 0; i--)
        if (h->page[i] != KV_GONE) kv_release(sc->mem.pages, h->page[i]);
    view_release(sc, h->lora);
    free(h->page);
    *h = (held){0};
}

void sched_drop_flights(sched *sc)
{
    for (flight *f; (f = sched_in_flight(sc));) {
        f->up = false;
        for (int s = 0; s < f->n_seq; s++) {
            if (!f->row[s].owner) sched_let_go(sc, f, s);
        }
    }
}
