/* sched_settle.c -- running a step, and applying its results to the requests.
 *
 *   launch (sched_sample.c) --> land: collect tokens, learn the cost, count
 *      for each row: publish full pages to the prefix cache, meter and charge tokens,
 *                    push tokens to the request's ring, finish the request if it ended
 *
 * A step is landed at once, or after the next one has been enqueued (sched_may_fly()).
 * cost_observe() then gets the measured time, from the previous landing if the two overlapped.
 *
 * Charges: prompt tokens count once (the meter's high-water mark), so recomputation after a
 * pre-emption is free for the tenant. Accepted draft tokens are charged like sampled ones.
 *
 * A row whose grammar mask was late (`late`) has no token: its position is taken back and computed
 * again. NaN or infinite logits end the request, and its pages leave the prefix cache
 * (sched_fail_numbers()).
 *
 * A request leaves through sched_finish() exactly once; its memory then belongs to the waiting
 * worker again. Threads: the engine's.
 */
#include <assert.h>
#include <stdlib.h>

#include "engine/base/lock.h"
#include "engine/sched/sched_inside.h"

/* ----------------------------------------------------------------- life cycle -- */

static void drop_pages(sched *sc, request *rq)
{
    /* Release from the tail, so that later pages are evicted before earlier ones. */
    for (int b = rq->run.n_table - 1; b >= 0; b--) {
        const int32_t *page = table_of(rq, b);
        for (int i = rq->run.n_page - 1; i >= 0; i--)
            if (page[i] != KV_GONE) kv_release(sc->mem.pages, page[i]);
    }
    rq->run.n_page = rq->run.n_gone = 0;
    rq->run.n_computed = 0;
    rq->run.replays = false;
    rq->run.branch = rq->run.snapped = rq->run.snapshot_at = rq->run.answer_pages = 0;
}

void sched_leave_seat(sched *sc, request *rq)
{
    if (rq->run.state != STATE_RUNNING) return;
    drop_pages(sc, rq);
    sched_state_unguard(sc, rq, false);
    if (keeps_state(sc)) state_release(sc->mem.states, rq->run.state_slot);
    sched_spec_leave(sc, rq);
    view_release(sc, rq->run.lora);
    rq->run.lora = NULL;
    rq->run.state = STATE_WAITING;
    assert(sc->queue.n_running > 0);
    sc->queue.n_running--;
    sc->queue.n_seats -= width_of(rq);
    telemetry_adapter_add(sc->tele, rq->adapter_id, -1, +1);
}

request_outcome sched_outcome_of(finish_reason why)
{
    return why == FINISH_STOP        ? OUTCOME_STOP
           : why == FINISH_LENGTH    ? OUTCOME_LENGTH
           : why == FINISH_CANCELLED ? OUTCOME_CANCELLED
           : why == FINISH_LEFT      ? OUTCOME_MOVED
                                     : OUTCOME_FAILED;
}

void sched_swap_forget(sched *sc, request *rq)
{
    assert(rq->run.n_swapped == 0 || sc->mem.swap);
    if (rq->run.n_swapped) swap_drop(sc->mem.swap, rq->run.swap_slot, rq->run.n_swapped);
    if (rq->run.n_swapped && sc->mem.state_pages)
        swap_drop(sc->mem.swap, rq->run.state_swap, sc->mem.state_pages);
    rq->run.n_swapped = 0;
}

void sched_finish(sched *sc, request *rq, finish_reason why, const err *cause)
{
    assert(rq->run.state != STATE_DONE);
    int64_t now = clock_now_us();
    sched_hold(sc, rq);
    sched_leave_seat(sc, rq);
    sched_swap_forget(sc, rq);
    rq->run.state = STATE_DONE;
    fair_leave(sc->queue.fair, rq->run.ticket, now);
    sched_cause_end(sc, rq, now);
    for (int i = 0; i < sc->queue.n; i++) {
        if (sc->queue.list[i] == rq) sc->queue.list[i] = NULL;
    }
    free(rq->run.page);
    rq->run.page = NULL;
    telemetry_adapter_add(sc->tele, rq->adapter_id, 0, -1);
    telemetry_end(sc->tele, rq, sched_outcome_of(why), cause ? cause->code : ERR_NONE, now);
    view_release(sc, rq->run.lora); /* of one that was refused while it waited */
    rq->run.lora = NULL;
    lengths_ask length = length_ask(rq);
    int made = n_drawn(rq) - rq->run.n_ahead;
    lock_take(&sc->mu);
    /* From a request that moved, the node that ends it learns. */
    if (made > 0 && why != FINISH_ERROR && why != FINISH_LEFT)
        lengths_learn(sc->shared.lengths, &length, &rq->run.length, made, why != FINISH_STOP);
    assert(sc->shared.n_inside > 0);
    sc->shared.n_inside--;
    if (why == FINISH_CANCELLED)
        sc->shared.stats.n_cancelled++;
    else if (why == FINISH_ERROR)
        sc->shared.stats.n_failed++;
    else if (why != FINISH_LEFT)
        sc->shared.stats.n_finished++;
    lock_release(&sc->mu);
    request_finish(rq, why, cause);
}

void sched_sweep(sched *sc)
{
    int n = 0;
    for (int i = 0; i < sc->queue.n; i++) {
        if (sc->queue.list[i] && sc->queue.list[i]->run.state == STATE_RUNNING)
            sc->queue.list[n++] = sc->queue.list[i];
    }
    sc->queue.n = n;
}

void sched_finish_all(sched *sc, finish_reason why, const err *cause)
{
    int tickets[SCAN];
    for (int i = 0; i < sc->queue.n; i++) {
        if (sc->queue.list[i]) sched_finish(sc, sc->queue.list[i], why, cause);
    }
    sched_sweep(sc);
    while (fair_waiting(sc->queue.fair) > 0) {
        int n = fair_scan(sc->queue.fair, &sc->queue.scan, SCAN, tickets);
        for (int i = 0; i < n; i++)
            sched_finish(sc, fair_who(sc->queue.fair, tickets[i]), why, cause);
    }
}

void sched_publish_pages(sched *sc, request *rq, int before, int end)
{
    kv_domain d;
    assert(before >= 0 && end <= history_len(rq) && end <= rq->run.n_page * sc->mem.page_tokens);
    domain_of(rq, &d);
    for (int p = before / sc->mem.page_tokens; (p + 1) * sc->mem.page_tokens <= end; p++) {
        for (int i = 0; i < sc->mem.page_tokens; i++) {
            sc->mem.history[i] = history_at(rq, p * sc->mem.page_tokens + i);
        }
        if (rq->run.n_table == 1 && !sched_in_flight(sc))
            kv_share(sc->mem.pages, &d, rq->run.page, p, sc->mem.history);
        else
            kv_publish(sc->mem.pages, &d, rq->run.page, p, sc->mem.history);
    }
}

/* -------------------------------------------------------------------- results -- */

/* Its pages may contain NaN: remove them from the prefix cache. */
void sched_fail_numbers(sched *sc, request *rq)
{
    err e;
    for (int b = 0; b < rq->run.n_table; b++) {
        const int32_t *page = table_of(rq, b);
        for (int i = 0; i < rq->run.n_page; i++)
            if (page[i] != KV_GONE) kv_forget(sc->mem.pages, page[i]);
    }
    (void)err_set(&e, ERR_INTERNAL, "numeric error: the model's output is not a number");
    sched_finish(sc, rq, FINISH_ERROR, &e);
}

/* Corrects the prediction of first tokens by the outcome. */
static void see_surprise(sched *sc, const request *rq, int64_t now)
{
    if (rq->run.expected_us <= 0) return;
    lock_take(&sc->mu);
    promise_learn(&sc->shared.surprise[rq->slo_class][rq->run.expected_wait], rq->run.expected_us,
                  (double)(now - rq->arrived_us));
    lock_release(&sc->mu);
}

/* Records the first token, or the result of a pooled prompt. */
static void see_first(sched *sc, request *rq, int64_t now)
{
    if (rq->times.first_token_us) return;
    rq->times.first_token_us = now;
    sched_cause_first(sc, rq, now);
    see_surprise(sc, rq, now);
    atomic_store(&rq->meter->first_token_ms, (uint32_t)((now - rq->arrived_us) / 1000));
}

void sched_meter_output(sched *sc, request *rq, int n, int64_t now)
{
    int64_t before = rq->times.last_token_us;
    see_first(sc, rq, now);
    rq->times.last_token_us = now;
    telemetry_token(sc->tele, rq, before);
    atomic_fetch_add(&rq->meter->output_tokens, (uint32_t)n);
    sc->n_output_tokens += (uint64_t)n;
    fair_charge(sc->queue.fair, rq->run.ticket, 0, n);
}

/* `last`: the newest token that its grammar has accepted. False: the request is finished and gone.
 */
static bool hand_out(sched *sc, request *rq, const sampled *t, bool last, int64_t now)
{
    sched_meter_output(sc, rq, 1, now);
    int n = atomic_load_explicit(&rq->out.n_pushed, memory_order_relaxed) + 1;
    int32_t token = t->token;
    request_push(rq, t);
    bool over = is_stop(rq, token) || (last && rq->grammar && grammar_run_over(rq->grammar));
    bool full = n >= rq->max_tokens;
    if (over || full) sched_finish(sc, rq, over ? FINISH_STOP : FINISH_LENGTH, NULL);
    return !over && !full;
}

/* Hands out the step's tokens one after the other, the accepted draft tokens included.  False: the
 * request has ended. */
static bool hand_out_all(sched *sc, const flight *f, int s, int64_t now)
{
    request *rq = f->row[s].owner;
    int n = f->row[s].n_got;
    for (int i = 0; i < n; i++) {
        if (i > 0 && !f->row[s].undone) { /* the row of a guess that was right */
            rq->run.n_computed++;
            sched_publish_pages(sc, rq, rq->run.n_computed - 1, rq->run.n_computed);
        }
        if (!hand_out(sc, rq, &f->picked[f->row[s].pick0 + i], i == n - 1, now)) return false;
    }
    return true;
}

/* The grammar run exceeded its limits, or memory ran out. */
void sched_fail_form(sched *sc, request *rq, const grammar_run *form)
{
    err e;
    if (grammar_run_starved(form))
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

/* max_tokens is 0: the request ends with its prompt. */
static void end_prompt(sched *sc, request *rq, int64_t now)
{
    err e;
    if (!rq->pool) {
        sched_finish(sc, rq, FINISH_LENGTH, NULL);
        return;
    }
    bool made = sched_pool_end(sc, rq, &e);
    if (made) see_first(sc, rq, now);
    rq->times.last_token_us = rq->times.first_token_us;
    sched_finish(sc, rq, made ? FINISH_STOP : FINISH_ERROR, made ? NULL : &e);
}

/* Whether draft tokens of a sequence with a copied state were wrong: it then returns to its
 * position before the step. */
static bool undo(sched *sc, flight *f, int s)
{
    request *rq = f->row[s].owner;
    f->row[s].undone = rq->run.guarded && f->row[s].n_got < 1 + f->row[s].n_guess;
    sched_state_unguard(sc, rq, f->row[s].undone);
    if (f->row[s].undone) rq->run.n_computed -= f->row[s].chunk;
    rq->run.replays = f->row[s].undone || (rq->run.replays && !f->row[s].ends);
    return f->row[s].undone;
}

/* What one sequence's rows of a step have made, in this order: undo what was computed on a wrong
 * guess; count the prompt that is done, once for each token however often it is computed;
 * publish its pages to the prefix cache; then, if its last row was computed, hand out the tokens
 * and see whether numbers, grammar or memory ended it. An owner of NULL: it ended while the step
 * ran. */
static void settle_entry(sched *sc, flight *f, int s, int64_t now)
{
    request *rq = f->row[s].owner;
    if (!rq) {
        sched_let_go(sc, f, s);
        return;
    }
    int before = f->row[s].pos0, end = before + f->row[s].chunk;
    bool ends = f->row[s].ends;
    rq->run.n_ahead -= ends;
    assert(rq->run.n_ahead >= 0 && end <= rq->run.n_computed);
    if (undo(sc, f, s)) end = before;
    rq->run.grammar_late = f->row[s].late;
    assert(!f->row[s].late || !keeps_state(sc)); /* must_await_mask() */
    if (f->row[s].late) { /* its last row is computed again once the mask is there */
        rq->run.n_computed--;
        end--;
        ends = false;
    }
    if (f->row[s].broken && f->row[s].n_got == 0) {
        sched_fail_numbers(sc, rq);
        return;
    }
    sched_publish_pages(sc, rq, before, rq->beams && end > rq->n_prompt ? rq->n_prompt : end);
    if (f->row[s].n_guess == 0) sched_snapshot_take(sc, rq);
    sched_cause_computed(sc, rq, end, now);
    int done = end < rq->n_prompt ? end : rq->n_prompt;
    int metered = (int)atomic_load(&rq->meter->prompt_tokens);
    if (done > metered) { /* what is recomputed after a pre-emption costs the tenant nothing */
        atomic_store(&rq->meter->prompt_tokens, (uint32_t)done);
        sc->n_prompt_tokens += (uint64_t)(done - metered);
        fair_charge(sc->queue.fair, rq->run.ticket, done - (metered > before ? metered : before),
                    0);
    }
    if (!ends) return;
    if (rq->max_tokens == 0) {
        end_prompt(sc, rq, now);
        return;
    }
    if (rq->beams) {
        sched_beam_settle(sc, f, s, now);
        return;
    }
    if (!hand_out_all(sc, f, s, now)) return;
    if (f->row[s].n_guess > 0) sched_snapshot_take(sc, rq);
    if (f->row[s].broken)
        sched_fail_numbers(sc, rq);
    else if (rq->grammar && grammar_run_failed(rq->grammar))
        sched_fail_form(sc, rq, rq->grammar);
    else if (rq->run.stuck)
        fail_stuck(sc, rq);
}

/* ------------------------------------------------------------------- the step -- */

static void count_guesses(sched_stats *t, const flight *f, int s)
{
    uint64_t right = f->row[s].n_got > 1 ? (uint64_t)f->row[s].n_got - 1 : 0;
    t->guess.made += (uint64_t)f->row[s].n_guess;
    t->guess.right += right;
    t->guess.made_by[f->row[s].source] += (uint64_t)f->row[s].n_guess;
    t->guess.right_by[f->row[s].source] += right;
}

/* Adds a step to the statistics and, where it had no prompt, learns what a row costs beyond the
 * price of an empty step. */
static void count_step(sched *sc, const flight *f, int64_t began_us, int64_t now)
{
    int discarded = 0;
    for (int s = 0; s < f->n_seq; s++) discarded += !f->row[s].owner;
    telemetry_step(sc->tele, f->n_rows);
    lock_take(&sc->mu);
    sched_stats *t = &sc->shared.stats;
    t->n_steps++;
    t->n_steps_ahead += f->ahead;
    t->n_discarded += (uint64_t)discarded;
    for (int s = 0; s < f->n_seq; s++) count_guesses(t, f, s);
    t->n_rows += (uint64_t)f->n_rows;
    t->n_out += (uint64_t)f->n_out;
    t->n_decode_tokens += (uint64_t)f->n_decode;
    t->n_prefill_tokens += (uint64_t)(f->n_rows - f->n_decode);
    t->last =
        (step_counts){f->n_rows, f->n_rows - f->n_decode, f->n_seq, f->n_adapters, now - began_us};
    t->busy_us += now - began_us;
    t->plan_us += f->planned_us - f->seen_us - sc->spec.draft_us;
    t->guess.draft_us += sc->spec.draft_us;
    sc->spec.draft_us = 0;
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

/* Collects the results of a step; false: the device had failed. */
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
    /* A step enqueued behind another one began when that one ended. */
    int64_t began_us = sc->fly.landed_us > f->planned_us ? sc->fly.landed_us : f->planned_us;
    sc->fly.landed_us = now;
    cost_observe(&sc->cost, &f->work, (double)(now - began_us));
    sc->plan.prompts =
        policy_see_step(sc->plan.prompts, &f->work, &sc->cost, (double)(now - began_us));
    count_step(sc, f, began_us, now);
    sched_cause_step(sc, f, now - began_us);
    sc->lost.looked_us = now;
    for (int s = 0; s < f->n_seq; s++)
        if (f->row[s].beam == 0) settle_entry(sc, f, s, now);
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
    sched_state_guard(sc);
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
