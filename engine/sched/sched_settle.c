/* sched_settle.c -- the step itself, and what becomes of its requests.
 *
 * After forward pass and sampling (sched_sample.c) each request's own settlement: pages to the
 * prefix cache, tokens metered and charged, handed out, the finished retired.
 */
#include <assert.h>
#include <stdlib.h>

#include "engine/base/lock.h"
#include "engine/sched/sched_inside.h"

/* ----------------------------------------------------------------- life cycle -- */

static void drop_pages(sched *sc, request *rq)
{
    /* The tail goes first, so that it is also evicted first. */
    for (int i = rq->n_page - 1; i >= 0; i--)
        if (rq->page[i] != KV_GONE) kv_release(sc->pages, rq->page[i]);
    rq->n_page = rq->n_gone = 0;
    rq->n_computed = 0;
}

void sched_leave_seat(sched *sc, request *rq)
{
    if (rq->state != STATE_RUNNING) return;
    drop_pages(sc, rq);
    sched_spec_leave(sc, rq);
    view_release(sc, rq->lora);
    rq->lora = NULL;
    rq->state = STATE_WAITING;
    assert(sc->n_running > 0);
    sc->n_running--;
    telemetry_adapter_add(sc->tele, rq->adapter_id, -1, +1);
}

static request_outcome outcome_of(finish_reason why)
{
    return why == FINISH_STOP        ? OUTCOME_STOP
           : why == FINISH_LENGTH    ? OUTCOME_LENGTH
           : why == FINISH_CANCELLED ? OUTCOME_CANCELLED
           : why == FINISH_LEFT      ? OUTCOME_MOVED
                                     : OUTCOME_FAILED;
}

void sched_swap_forget(sched *sc, request *rq)
{
    assert(rq->n_swapped == 0 || sc->swap);
    if (rq->n_swapped) swap_drop(sc->swap, rq->swap_slot, rq->n_swapped);
    rq->n_swapped = 0;
}

void sched_finish(sched *sc, request *rq, finish_reason why, const err *cause)
{
    assert(rq->state != STATE_DONE);
    int64_t now = clock_now_us();
    sched_hold(sc, rq);
    sched_leave_seat(sc, rq);
    sched_swap_forget(sc, rq);
    rq->state = STATE_DONE;
    fair_leave(sc->fair, rq->ticket, now);
    sched_cause_end(sc, rq, now);
    for (int i = 0; i < sc->n; i++) {
        if (sc->list[i] == rq) sc->list[i] = NULL;
    }
    free(rq->page);
    rq->page = NULL;
    telemetry_adapter_add(sc->tele, rq->adapter_id, 0, -1);
    telemetry_end(sc->tele, rq, outcome_of(why), cause ? cause->code : ERR_NONE, now);
    lengths_ask length = length_ask(rq);
    int made = atomic_load_explicit(&rq->n_pushed, memory_order_relaxed);
    lock_take(&sc->mu);
    if (made > 0 && why != FINISH_ERROR)
        lengths_learn(sc->lengths, &length, &rq->length, made, why != FINISH_STOP);
    assert(sc->n_inside > 0);
    sc->n_inside--;
    if (why == FINISH_CANCELLED)
        sc->stats.n_cancelled++;
    else if (why == FINISH_ERROR)
        sc->stats.n_failed++;
    else if (why != FINISH_LEFT)
        sc->stats.n_finished++;
    lock_release(&sc->mu);
    request_finish(rq, why, cause);
}

void sched_sweep(sched *sc)
{
    int n = 0;
    for (int i = 0; i < sc->n; i++) {
        if (sc->list[i] && sc->list[i]->state == STATE_RUNNING) sc->list[n++] = sc->list[i];
    }
    sc->n = n;
}

void sched_finish_all(sched *sc, finish_reason why, const err *cause)
{
    int tickets[SCAN];
    for (int i = 0; i < sc->n; i++) {
        if (sc->list[i]) sched_finish(sc, sc->list[i], why, cause);
    }
    sched_sweep(sc);
    while (fair_waiting(sc->fair) > 0) {
        int n = fair_scan(sc->fair, &sc->scan, SCAN, tickets);
        for (int i = 0; i < n; i++) sched_finish(sc, fair_who(sc->fair, tickets[i]), why, cause);
    }
}

void sched_publish_pages(sched *sc, request *rq, int before, int end)
{
    kv_domain d;
    assert(before >= 0 && end <= history_len(rq) && end <= rq->n_page * sc->page_tokens);
    domain_of(rq, &d);
    for (int p = before / sc->page_tokens; (p + 1) * sc->page_tokens <= end; p++) {
        for (int i = 0; i < sc->page_tokens; i++) {
            sc->history[i] = history_at(rq, p * sc->page_tokens + i);
        }
        kv_publish(sc->pages, &d, rq->page, p, sc->history);
    }
}

/* -------------------------------------------------------------------- results -- */

/* Its pages may hold what is not a number: nobody else may be given them. */
static void fail_numbers(sched *sc, request *rq)
{
    err e;
    for (int i = 0; i < rq->n_page; i++)
        if (rq->page[i] != KV_GONE) kv_forget(sc->pages, rq->page[i]);
    (void)err_set(&e, ERR_INTERNAL, "numeric error: the model's output is not a number");
    sched_finish(sc, rq, FINISH_ERROR, &e);
}

/* The prediction is corrected by what became of it, within reason. */
static void see_surprise(sched *sc, const request *rq, int64_t now)
{
    if (rq->expected_us <= 0) return;
    lock_take(&sc->mu);
    promise_learn(&sc->surprise[rq->slo_class][rq->expected_wait], rq->expected_us,
                  (double)(now - rq->arrived_us));
    lock_release(&sc->mu);
}

/* The first token, or what a pooled prompt became. */
static void see_first(sched *sc, request *rq, int64_t now)
{
    if (rq->first_token_us) return;
    rq->first_token_us = now;
    sched_cause_first(sc, rq, now);
    see_surprise(sc, rq, now);
    atomic_store(&rq->meter->first_token_ms, (uint32_t)((now - rq->arrived_us) / 1000));
}

/* `last`: of those that its form has taken so far.  False: the request is over, and gone. */
static bool hand_out(sched *sc, request *rq, const sampled *t, bool last, int64_t now)
{
    int64_t before = rq->last_token_us;
    see_first(sc, rq, now);
    rq->last_token_us = now;
    telemetry_token(sc->tele, rq, before);
    atomic_fetch_add(&rq->meter->output_tokens, 1);
    sc->n_output_tokens++;
    fair_charge(sc->fair, rq->ticket, 0, 1);
    int n = atomic_load_explicit(&rq->n_pushed, memory_order_relaxed) + 1;
    int32_t token = t->token;
    request_push(rq, t);
    bool over = is_stop(rq, token) || (last && rq->grammar && grammar_run_over(rq->grammar));
    bool full = n >= rq->max_tokens;
    if (over || full) sched_finish(sc, rq, over ? FINISH_STOP : FINISH_LENGTH, NULL);
    return !over && !full;
}

/* All that came of the step, each as if it had come alone.  False: the request is over. */
static bool hand_out_all(sched *sc, const flight *f, int s, int64_t now)
{
    request *rq = f->owner[s];
    int n = f->n_got[s];
    for (int i = 0; i < n; i++) {
        if (i > 0) { /* the row of a guess that was right */
            rq->n_computed++;
            sched_publish_pages(sc, rq, rq->n_computed - 1, rq->n_computed);
        }
        if (!hand_out(sc, rq, &f->picked[f->pick0[s] + i], i == n - 1, now)) return false;
    }
    return true;
}

/* The text so far allows more than can be told apart within bounds. */
static void fail_grammar(sched *sc, request *rq)
{
    err e;
    if (grammar_run_starved(rq->grammar))
        (void)err_set(&e, ERR_NOMEM, "out of memory");
    else
        (void)err_set(&e, ERR_INPUT, "the grammar of this request is too ambiguous to go on with");
    sched_finish(sc, rq, FINISH_ERROR, &e);
}

static void fail_stuck(sched *sc, request *rq)
{
    err e;
    (void)err_set(&e, ERR_INPUT,
                  "no token may come here: the tokens and words that are barred leave nothing%s",
                  rq->grammar ? " of what the form of the answer allows" : "");
    sched_finish(sc, rq, FINISH_ERROR, &e);
}

/* No token was asked for: the prompt is all. */
static void end_prompt(sched *sc, request *rq, int64_t now)
{
    err e;
    if (!rq->pool) {
        sched_finish(sc, rq, FINISH_LENGTH, NULL);
        return;
    }
    bool made = sched_pool_end(sc, rq, &e);
    if (made) see_first(sc, rq, now);
    rq->last_token_us = rq->first_token_us;
    sched_finish(sc, rq, made ? FINISH_STOP : FINISH_ERROR, made ? NULL : &e);
}

static void settle_entry(sched *sc, flight *f, int s, int64_t now)
{
    request *rq = f->owner[s];
    if (!rq) {
        sched_let_go(sc, f, s);
        return;
    }
    int before = f->pos0[s], end = before + f->chunk[s];
    bool ends = f->ends[s];
    rq->n_ahead -= ends;
    assert(rq->n_ahead >= 0 && end <= rq->n_computed);
    rq->grammar_late = f->late[s];
    if (f->late[s]) { /* its last row is computed again once the mask is there */
        rq->n_computed--;
        end--;
        ends = false;
    }
    if (f->broken[s] && f->n_got[s] == 0) {
        fail_numbers(sc, rq);
        return;
    }
    sched_publish_pages(sc, rq, before, end);
    sched_cause_computed(sc, rq, end, now);
    int done = end < rq->n_prompt ? end : rq->n_prompt;
    int metered = (int)atomic_load(&rq->meter->prompt_tokens);
    if (done > metered) { /* what is recomputed after a pre-emption costs the tenant nothing */
        atomic_store(&rq->meter->prompt_tokens, (uint32_t)done);
        sc->n_prompt_tokens += (uint64_t)(done - metered);
        fair_charge(sc->fair, rq->ticket, done - (metered > before ? metered : before), 0);
    }
    if (!ends) return;
    if (rq->max_tokens == 0) {
        end_prompt(sc, rq, now);
        return;
    }
    if (!hand_out_all(sc, f, s, now)) return;
    if (f->broken[s])
        fail_numbers(sc, rq);
    else if (rq->grammar && grammar_run_failed(rq->grammar))
        fail_grammar(sc, rq);
    else if (rq->stuck)
        fail_stuck(sc, rq);
}

/* ------------------------------------------------------------------- the step -- */

static void count_guesses(sched_stats *t, const flight *f, int s)
{
    uint64_t right = f->n_got[s] > 1 ? (uint64_t)f->n_got[s] - 1 : 0;
    t->n_guessed += (uint64_t)f->n_guess[s];
    t->n_guessed_right += right;
    t->guessed_by[f->source[s]] += (uint64_t)f->n_guess[s];
    t->right_by[f->source[s]] += right;
}

static void count_step(sched *sc, const flight *f, int64_t began_us, int64_t now)
{
    int discarded = 0;
    for (int s = 0; s < f->n_seq; s++) discarded += !f->owner[s];
    telemetry_step(sc->tele, f->n_rows);
    lock_take(&sc->mu);
    sched_stats *t = &sc->stats;
    t->n_steps++;
    t->n_steps_ahead += f->ahead;
    t->n_discarded += (uint64_t)discarded;
    for (int s = 0; s < f->n_seq; s++) count_guesses(t, f, s);
    t->n_rows += (uint64_t)f->n_rows;
    t->n_out += (uint64_t)f->n_out;
    t->n_decode_tokens += (uint64_t)f->n_decode;
    t->n_prefill_tokens += (uint64_t)(f->n_rows - f->n_decode);
    t->last_rows = f->n_rows;
    t->last_segments = f->n_seg;
    t->last_adapters = f->n_adapters;
    t->last_prefill = f->n_rows - f->n_decode;
    t->last_seqs = f->n_seq;
    t->last_step_us = now - began_us;
    t->busy_us += now - began_us;
    t->plan_us += f->planned_us - f->seen_us - sc->draft_us;
    t->draft_us += sc->draft_us;
    sc->draft_us = 0;
    t->forward_us += f->computed_us - began_us;
    t->sample_us += now - f->computed_us;
    t->cost_error = sc->cost.error;
    t->cost_step_us = cost_predict(&sc->cost, &(cost_work){0});
    if (f->work.prefill == 0 && f->work.decode > 0) {
        double rows_us = cost_predict(&sc->cost, &f->work) - t->cost_step_us;
        t->cost_row_us = rows_us / f->work.decode;
    }
    lock_release(&sc->mu);
}

/* Takes the results of a step in flight; false: the device had failed. */
static bool land(sched *sc, flight *f)
{
    err e;
    if (sched_collect(sc, f, &e)) {
        sched_restart(sc, &e);
        return false;
    }
    assert(f->up);
    f->up = false;
    sched_step_was_good(sc);
    int64_t now = clock_now_us();
    /* One that was enqueued behind another began when that one was over. */
    int64_t began_us = sc->landed_us > f->planned_us ? sc->landed_us : f->planned_us;
    sc->landed_us = now;
    cost_observe(&sc->cost, &f->work, (double)(now - began_us));
    sc->prompts = policy_see_step(sc->prompts, &f->work, &sc->cost, (double)(now - began_us));
    count_step(sc, f, began_us, now);
    sched_cause_step(sc, f, now - began_us);
    sc->looked_us = now;
    for (int s = 0; s < f->n_seq; s++) settle_entry(sc, f, s, now);
    sched_sweep(sc);
    int64_t settled_us = clock_now_us();
    sched_cause_look(sc, settled_us);
    sc->settle_us += settled_us - now;
    return true;
}

void sched_land(sched *sc)
{
    flight *f = sched_in_flight(sc);
    if (f) (void)land(sc, f);
}

void sched_run_step(sched *sc, int64_t seen_us)
{
    err e;
    flight *f = sc->now, *before = sched_in_flight(sc);
    f->seen_us = seen_us;
    f->planned_us = clock_now_us();
    sched_cause_look(sc, f->planned_us);
    if (sched_launch(sc, &e)) {
        sched_restart(sc, &e);
        return;
    }
    sched_take_off(sc);
    if (before && !land(sc, before)) return;
    if (!sched_may_fly(sc, f)) (void)land(sc, f);
}
