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

/* The arrays of a step, and how many of each there are. */
#define ARRAYS(A)     \
    A(owner, seqs)    \
    A(chunk, seqs)    \
    A(pos0, seqs)     \
    A(own_us, seqs)   \
    A(logit0, seqs)   \
    A(ends, seqs)     \
    A(broken, seqs)   \
    A(late, seqs)     \
    A(n_guess, seqs)  \
    A(source, seqs)   \
    A(pick0, seqs)    \
    A(n_got, seqs)    \
    A(picked, logits) \
    A(held, seqs)     \
    A(end, logits)

static bool create(flight *f, const sched_config *c)
{
    size_t seqs = (size_t)c->max_seqs, logits = (size_t)c->max_logits;
    bool ok = true;
#define ALLOCATE(member, count) ok &= (f->member = calloc(count, sizeof(*f->member))) != NULL;
    ARRAYS(ALLOCATE)
#undef ALLOCATE
    return ok;
}

static void destroy(flight *f)
{
    assert(!f->up);
#define FREE(member, count) free((void *)f->member);
    ARRAYS(FREE)
#undef FREE
}

/* The next step is built here. */
static void build_in(sched *sc, flight *f)
{
    sc->now = f;
    sc->row_owner = f->owner;
    sc->chunk = f->chunk;
}

bool sched_flights_create(sched *sc)
{
    bool ok = create(&sc->flights[0], &sc->cfg) && create(&sc->flights[1], &sc->cfg);
    sc->overlaps = be_can_run_ahead(sc->be) && !sc->cfg.no_overlap;
    build_in(sc, &sc->flights[0]);
    return ok;
}

void sched_flights_destroy(sched *sc)
{
    for (int i = 0; i < 2; i++) destroy(&sc->flights[i]);
}

flight *sched_in_flight(sched *sc)
{
    return sc->flights[0].up ? &sc->flights[0] : sc->flights[1].up ? &sc->flights[1] : NULL;
}

/* Its next row, or what is done with this one's result, takes more than the token itself. */
static bool needs_the_host(const request *rq, bool draws)
{
    const sampling *r = &rq->rules;
    bool penalties =
        r->repetition_penalty != 1 || r->presence_penalty != 0 || r->frequency_penalty != 0;
    bool reads = rq->bars && bars_read_text(rq->bars);
    return rq->score_prompt || rq->pool || (draws && (rq->grammar || penalties || reads));
}

bool sched_may_fly(const sched *sc, const flight *f)
{
    bool may = sc->overlaps;
    for (int s = 0; may && s < f->n_seq; s++) {
        may = !f->owner[s] || !needs_the_host(f->owner[s], f->ends[s]);
        may = may && f->n_guess[s] == 0;
    }
    return may;
}

bool sched_should_land(sched *sc)
{
    const flight *f = sched_in_flight(sc);
    bool offers = f && sc->cfg.prefix_cache && f->n_rows > f->n_decode &&
                  sc->n_running < sc->cfg.max_seqs && fair_waiting(sc->fair) > 0;
    return offers || sched_spec_should_land(sc);
}

static void count_rows(sched *sc, flight *f)
{
    const step *st = &sc->step;
    f->n_rows = st->n_rows;
    f->n_seg = st->n_seg;
    f->n_adapters = f->n_decode = 0;
    f->n_out = sc->n_out;
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
        request *rq = f->owner[s];
        /* What was placed may have been taken out again by a pre-emption:
         * the work is counted anew. */
        f->own_us[s] = sched_cause_own_us(sc, rq, f->chunk[s]);
        bool read = s > 0 && f->owner[s - 1]->adapter_id == rq->adapter_id;
        count_work(sc, &f->work, rq, f->chunk[s], read ? 0 : rank_of(rq, f->chunk[s]));
        f->work = sched_guess_work(&f->work, f->n_guess[s], seen_of(sc, rq->n_computed) + 1);
        f->n_decode += f->chunk[s] == 1 && rq->n_computed >= rq->n_prompt;
        f->n_decode += f->n_guess[s];
        assert(f->chunk[s] > 0 && f->chunk[s] <= left_of(rq));
        rq->n_computed += f->chunk[s];
        rq->n_ahead += f->ends[s];
    }
    f->expected_us = sc->cost.n < COST_LEARNING ? 0 : cost_at_rest(&sc->cost, &f->work);
    f->up = true;
    build_in(sc, f == &sc->flights[0] ? &sc->flights[1] : &sc->flights[0]);
}

void sched_hold(sched *sc, request *rq)
{
    flight *f = sched_in_flight(sc);
    for (int s = 0; f && s < f->n_seq; s++) {
        if (f->owner[s] != rq) continue;
        assert(!f->held[s].page && !f->held[s].lora);
        f->owner[s] = NULL;
        f->held[s] = (held){rq->page, rq->n_page, rq->lora};
        rq->page = NULL;
        rq->n_page = rq->n_gone = 0;
        rq->lora = NULL;
        return;
    }
}

void sched_let_go(sched *sc, flight *f, int s)
{
    held *h = &f->held[s];
    assert(s >= 0 && s < f->n_seq && !f->owner[s]);
    for (int i = h->n_page - 1; i >= 0; i--)
        if (h->page[i] != KV_GONE) kv_release(sc->pages, h->page[i]);
    view_release(sc, h->lora);
    free(h->page);
    *h = (held){0};
}

void sched_drop_flights(sched *sc)
{
    for (flight *f; (f = sched_in_flight(sc));) {
        f->up = false;
        for (int s = 0; s < f->n_seq; s++) {
            if (!f->owner[s]) sched_let_go(sc, f, s);
        }
    }
}
