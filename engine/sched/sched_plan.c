/* sched_plan.c -- which rows the next step computes.
 *
 *   1. fair_pick() orders the waiting requests, policy_plan() all of them
 *   2. policy_trim() drops decode rows that can pause; policy_budget_us() bounds the step's time
 *   3. add_entry() for each, in order: adapter, slot and pages (admit()), then as many rows as the
 *      time budget (cost.h), the row limit and the pages allow
 *   4. background requests fill what is left (add_background())
 *   5. rows are sorted by adapter, draft rows added (sched_spec.c), the step's arrays built
 *
 * A request is admitted with pages for its whole history, so a prefill that has begun can finish.
 * If pages run out later, the weakest request is pre-empted (policy_victim()). It loses its pages;
 * later they are recomputed, or copied back from the swap pool if that is faster
 * (swap_is_cheaper()).
 *
 * Pre-emption is impossible while a step is in flight: `must_land` makes the caller collect it
 * first and plan again.
 *
 * Threads: the engine's.
 */
#include <assert.h>
#include <math.h>

#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/sched/sched_inside.h"

enum {
    /* Beside another prompt, no request is admitted for fewer tokens in this step. */
    LEAST_SEAT = 16,
    /* Waiting requests listed beyond the free slots. */
    SPARE_PICKS = 16,
};

/* ----------------------------------------------------------------------- room -- */

/* Its last token is being sampled, or its row waits for a grammar mask. */
static bool has_no_row(const request *rq)
{
    bool late = rq->run.grammar_late && rq->run.state == STATE_RUNNING;
    return is_complete(rq) || (late && !grammar_run_ready(rq->grammar));
}

/* Whether the mask must exist before the row is computed: a recurrent state does not allow
 * computing a row twice. */
static bool must_await_mask(sched *sc, const request *rq)
{
    if (rq->beams) return !sched_beam_ready(sc, rq);
    if (!rq->grammar) return false;
    if (!keeps_state(sc)) return rq->run.grammar_late && !grammar_run_ready(rq->grammar);
    return !grammar_run_mask(rq->grammar, sc->pick.walks[0]);
}

static void describe(sched *sc, int i, int64_t now)
{
    const request *rq = sc->queue.list[i];
    sc->plan.view[i] = (policy_request){
        .running = rq->run.state == STATE_RUNNING,
        .left = has_no_row(rq) ? 0
                : decodes(rq)  ? 1
                               : left_of(rq),
        .max_chunk = scores(rq) ? SCHED_SCORE_ROWS : sc->cfg.max_rows,
        .class_rank = sc->cfg.classes[rq->slo_class].rank,
        .arrived_us = rq->arrived_us,
        .deadline_us = rq->times.first_token_us || rq->run.n_ahead ? 0 : rq->ttft_deadline_us,
        .context = seen_of(sc, rq->run.n_computed),
        .rank = rank_share(sc, rq, left_of(rq)),
        .due_us = due_of(rq, now),
        .tpot_us = rq->tpot_target_us,
        .weight = (double)sc->cfg.classes[rq->slo_class].weight,
        .background = rq->background,
    };
}

static policy_limits limits_of(const sched *sc)
{
    return (policy_limits){.max_rows = sc->cfg.max_rows,
                           .free_seats = sc->cfg.max_seqs - sc->queue.n_seats,
                           .ageing_us = sc->cfg.ageing_us,
                           .prompts = sc->plan.prompts};
}

/* Takes a request out of the step under construction. */
static void unplace(sched *sc, const request *rq)
{
    int kept = 0;
    for (int s = 0; s < sc->step.n_seq; s++) {
        if (sc->now->row[s].owner != rq) {
            sc->now->row[kept++] = sc->now->row[s];
            continue;
        }
        sc->plan.rows_left += sc->now->row[s].chunk;
        sc->plan.n_logit -= logits_of(rq, sc->now->row[s].chunk);
        assert(sc->plan.rows_left <= sc->cfg.max_rows && sc->plan.n_logit >= 0);
    }
    sc->step.n_seq = kept;
}

/* Copying a request's pages out and back takes less time than computing them again. */
static bool swap_is_cheaper(const sched *sc, const request *rq, int n_page)
{
    const cost_work none = {0};
    cost_work again = cost_with_chunk(&none, rq->run.n_computed, 0, rank_of(rq, 0));
    double recompute = cost_predict(&sc->cost, &again) - cost_predict(&sc->cost, &none);
    return sc->cost.n >= COST_LEARNING && swap_round_trip_us(sc->mem.swap, n_page) < recompute;
}

/* Saves its state and its pages, both or neither. */
static bool save(sched *sc, request *rq, int n_page)
{
    err e;
    if (keeps_state(sc) &&
        swap_save_piece(sc->mem.swap, state_at(sc->mem.states, rq->run.state_slot),
                        state_bytes(sc->mem.states), rq->run.state_swap, &e))
        return false;
    if (swap_save(sc->mem.swap, rq->run.page, n_page, rq->run.swap_slot)) return true;
    if (keeps_state(sc)) swap_drop(sc->mem.swap, rq->run.state_swap, sc->mem.state_pages);
    return false;
}

/* Returns how many positions are kept; 0: they will be computed again. */
static int swap_out(sched *sc, request *rq)
{
    int n = pages_for(sc, rq->run.n_computed);
    if (!sc->mem.swap || n == 0 || scores(rq)) return 0; /* scored prompts begin anew */
    if (rq->beams) return 0; /* several tables: their pages are computed again */
    if (sc->cfg.preemption == PREEMPT_RECOMPUTE) return 0;
    if (sc->cfg.preemption == PREEMPT_CHEAPER && !swap_is_cheaper(sc, rq, n + sc->mem.state_pages))
        return 0;
    int64_t began_us = clock_now_us();
    bool saved = save(sc, rq, n);
    sched_cause_lost(sc, MISS_SWAP, began_us, clock_now_us());
    if (!saved) return 0;
    rq->run.n_swapped = n;
    lock_take(&sc->mu);
    sc->shared.stats.n_swapped_out++;
    lock_release(&sc->mu);
    return rq->run.n_computed;
}

static void preempt(sched *sc, int v)
{
    request *rq = sc->queue.list[v];
    assert(rq && rq->run.state == STATE_RUNNING && !sched_in_flight(sc));
    unplace(sc, rq);
    int64_t now = clock_now_us();
    sched_cause_gave_way(sc, rq, now);
    int kept = swap_out(sc, rq);
    sched_leave_seat(sc, rq);
    rq->run.n_computed = kept;
    fair_back(sc->queue.fair, rq->run.ticket, now);
    rq->times.n_preempted++;
    sc->plan.view[v].running = false;
    sc->plan.allowed[v] = false; /* not again in this step */
    lock_take(&sc->mu);
    sc->shared.stats.n_preempted++;
    lock_release(&sc->mu);
}

/* Claims pages for a running request by pre-empting the weakest one, which can be the request
 * itself. */
static bool make_room(sched *sc, int need, int i, int64_t now)
{
    policy_limits lim = limits_of(sc);
    while (!kv_claim(sc->mem.pages, need, false)) {
        sc->plan.pages_short = true;
        sc->plan.must_land = sched_in_flight(sc) != NULL;
        if (sc->plan.must_land) return false;
        int v = policy_victim(sc->plan.view, sc->queue.n, sc->plan.allowed, -1, &lim, now);
        assert(v >= 0); /* at least i itself */
        preempt(sc, v);
        if (v == i) return false;
    }
    return true;
}

/* Claims a slot and pages for a waiting request by pre-empting weaker requests, and only if that is
 * enough. */
static bool make_place(sched *sc, int need, int i, int64_t now)
{
    policy_limits lim = limits_of(sc);
    int seats = width_of(sc->queue.list[i]);
    int could = kv_available(sc->mem.pages, true), weaker = 0;
    for (int v = 0; v < sc->queue.n; v++) {
        if (!sc->plan.allowed[v] || !sc->plan.view[v].running) continue;
        if (!policy_is_weaker(&sc->plan.view[v], &sc->plan.view[i], &lim, now)) continue;
        could += sc->queue.list[v]->run.n_page - sc->queue.list[v]->run.n_gone;
        weaker++;
    }
    if (could < need) {
        sc->plan.pages_short = true;
        return false;
    }
    while (sc->queue.n_seats + seats > sc->cfg.max_seqs || !kv_claim(sc->mem.pages, need, true)) {
        int v =
            weaker ? policy_victim(sc->plan.view, sc->queue.n, sc->plan.allowed, i, &lim, now) : -1;
        if (v < 0) {
            sc->plan.pages_short = kv_available(sc->mem.pages, true) < need;
            return false;
        }
        sc->plan.must_land = sched_in_flight(sc) != NULL;
        if (sc->plan.must_land) return false;
        preempt(sc, v);
    }
    return true;
}

bool sched_extend(sched *sc, request *rq, int n)
{
    if (rq->beams) return sched_beam_extend(sc, rq, n);
    int want = pages_for(sc, rq->run.n_computed + n);
    assert(want <= rq->run.page_cap && n >= 0);
    while (rq->run.n_page < want) {
        int p = kv_take(sc->mem.pages);
        if (p < 0) return false;
        rq->run.page[rq->run.n_page++] = p;
    }
    return true;
}

/* Releases the pages that no later row attends to: those between the kept prefix and the sliding
 * window. Not while a step in flight may read them. */
static void let_slide(sched *sc, request *rq)
{
    int from, to;
    if (sc->mem.see.window == 0 || sched_in_flight(sc)) return;
    kv_unseen(sc->mem.pages, &sc->mem.see, rq->run.n_computed, &from, &to);
    for (int i = from + rq->run.n_gone; i < to; i++, rq->run.n_gone++) {
        kv_release(sc->mem.pages, rq->run.page[i]);
        rq->run.page[i] = KV_GONE;
    }
}

/* Rows for which an admitted request gets pages at once. */
static int rows_at_once(const sched *sc, const request *rq)
{
    int left = left_of(rq);
    return sc->mem.see.window > 0 && left > sc->cfg.max_rows ? sc->cfg.max_rows : left;
}

/* ---------------------------------------------------------------------- seats -- */

static bool find_adapter(sched *sc, request *rq)
{
    if (rq->adapter_id == 0 || rq->run.lora) return true;
    err e;
    if (!sc->source) {
        (void)err_set(&e, ERR_NOT_FOUND, "this server has no adapters");
        sched_finish(sc, rq, FINISH_ERROR, &e);
        return false;
    }
    err_code rc = sc->source->acquire(sc->source->self, rq->adapter_id, &rq->run.lora, &e);
    if (rc == ERR_NONE && rq->run.lora->n_vocab == rq->n_vocab) return true;
    if (rc == ERR_NONE) { /* its ids were checked against another vocabulary */
        view_release(sc, rq->run.lora);
        rc = err_set(&e, ERR_CORRUPT,
                     "the adapter's vocabulary differs from the one that was announced");
    }
    rq->run.lora = NULL;
    if (rc == ERR_BUSY) {
        fair_block(sc->queue.fair, rq->run.ticket, clock_now_us());
        lock_take(&sc->mu);
        sc->shared.stats.n_adapter_waits++;
        lock_release(&sc->mu);
    } else {
        sched_finish(sc, rq, FINISH_ERROR, &e);
    }
    return false;
}

/* An adapter with a classification head instead of an output layer generates no text. */
static bool fits_adapter(sched *sc, request *rq)
{
    if (rq->pool || !rq->run.lora || !rq->run.lora->score_head) return true;
    err e;
    (void)err_set(&e, ERR_UNSUPPORTED,
                  "this adapter has a head of classes and no output layer: it answers "
                  "/v1/classify, /v1/score and /v1/rerank");
    sched_finish(sc, rq, FINISH_ERROR, &e);
    return false;
}

/* Of the page in which this history (sc->mem.history, `len` tokens) parts from cached ones, a copy
 * of what they share.  Recurrent states and windows continue at whole pages alone. */
static void reuse_part(sched *sc, request *rq, const kv_domain *d, int len)
{
    kv_part part;
    if (keeps_state(sc) || sc->mem.see.window > 0 || rq->run.n_page == rq->run.page_cap) return;
    if (!kv_part_begin(sc->mem.pages, d, rq->run.page, rq->run.n_page, sc->mem.history, len, &part))
        return;
    be_kv_copy(sc->be, sc->mem.kv, part.from, part.page);
    kv_part_end(sc->mem.pages, &part);
    rq->run.page[rq->run.n_page++] = part.page;
    rq->run.n_computed += part.n_tokens;
}

/* Takes the pages that the prefix cache has of this history. Returns the slot of the state's
 * snapshot; -1: start at position 0, or the model has no states. */
static int reuse_prefix(sched *sc, request *rq)
{
    if (scores(rq)) return -1; /* every row's logits are wanted */
    kv_domain d;
    domain_of(rq, &d);
    int len = history_len(rq), from = rq->pool ? pooling_from(rq->pool, rq->n_prompt) : len;
    if (len > from + 1) len = from + 1; /* that state is wanted: its row is computed */
    if (rq->beams) len = rq->n_prompt;
    for (int i = 0; i < len; i++) sc->mem.history[i] = history_at(rq, i);
    int to;
    rq->run.n_page = kv_match(sc->mem.pages, &d, &sc->mem.see, sc->mem.history, len, rq->run.page,
                              rq->run.page_cap);
    int snapshot = sched_snapshot_find(sc, rq);
    rq->run.n_computed = rq->run.n_page * sc->mem.page_tokens;
    reuse_part(sc, rq, &d, len);
    kv_unseen(sc->mem.pages, &sc->mem.see, rq->run.n_computed, &rq->run.n_gone, &to);
    rq->run.n_gone = to - rq->run.n_gone;
    assert(rq->run.n_page <= rq->run.page_cap &&
           rq->run.n_computed < len); /* a row is left to be computed */
    if (rq->times.admitted_us == 0) {
        uint32_t cached =
            (uint32_t)(rq->run.n_computed < rq->n_prompt ? rq->run.n_computed : rq->n_prompt);
        atomic_store(&rq->meter->cached_tokens, cached);
        lock_take(&sc->mu);
        sc->shared.stats.n_cached_tokens += cached;
        sc->shared.stats.n_looked_up_tokens += (uint64_t)rq->n_prompt;
        lock_release(&sc->mu);
    }
    return snapshot;
}

/* Pages of a stream as they were when it gave way; the prefix cache is not asked for some. */
static void take_as_saved(sched *sc, request *rq)
{
    for (; rq->run.n_page < rq->run.n_swapped; rq->run.n_page++) {
        bool gone = rq->run.swap_slot[rq->run.n_page] < 0;
        rq->run.page[rq->run.n_page] = gone ? KV_GONE : kv_take(sc->mem.pages);
        rq->run.n_gone += gone;
        assert(gone || rq->run.page[rq->run.n_page] >= 0); /* they were claimed */
    }
}

/* False: the device did not take it. */
static bool load_state(sched *sc, request *rq)
{
    err e;
    if (!keeps_state(sc)) return true;
    float *to = state_at(sc->mem.states, rq->run.state_slot);
    if (!swap_load_piece(sc->mem.swap, rq->run.state_swap, state_bytes(sc->mem.states), to, &e))
        return true;
    log_error("engine", "%s", e.msg);
    return false;
}

/* Loads from the swap pool what the prefix cache no longer has; `kept` positions were saved.
 * Returns whether anything was loaded. */
static bool swap_in(sched *sc, request *rq, int kept)
{
    int from = rq->run.n_computed / sc->mem.page_tokens;
    bool good = false;
    if (rq->run.n_computed < kept) {
        assert(rq->run.n_swapped >= from && rq->run.n_swapped <= rq->run.n_page);
        int64_t began_us = clock_now_us();
        swap_load(sc->mem.swap, rq->run.swap_slot + from, rq->run.n_swapped - from,
                  rq->run.page + from);
        good = load_state(sc, rq);
        sched_cause_lost(sc, MISS_SWAP, began_us, clock_now_us());
        if (good) rq->run.n_computed = kept; /* else it is computed again */
        if (good && sc->mem.see.window == 0)
            sched_publish_pages(sc, rq, from * sc->mem.page_tokens, kept);
        lock_take(&sc->mu);
        sc->shared.stats.n_swapped_in++;
        lock_release(&sc->mu);
    }
    sched_swap_forget(sc, rq);
    return good;
}

/* The arena must be able to hold the whole request beside its adapter, or it could never finish. */
static bool could_ever_fit(sched *sc, request *rq)
{
    const lora_source *src = sc->source;
    int adapter = rq->run.lora && src->chunks ? src->chunks(src->self, rq->run.lora) : 0;
    int most = rq->beams ? sched_beam_pages(sc, rq, rq->n_prompt + rq->max_tokens)
                         : pages_held_for(sc, rq->n_prompt + rq->max_tokens);
    if (adapter == 0 || most <= sc->mem.n_pages - adapter) return true;
    err e;
    (void)err_set(
        &e, ERR_LIMIT,
        "%d prompt tokens and %d output tokens do not fit into the device's memory beside the "
        "adapter",
        rq->n_prompt, rq->max_tokens);
    sched_finish(sc, rq, FINISH_ERROR, &e);
    return false;
}

/* Whether running streams keep their token rate if it is admitted; otherwise it waits, and so do
 * those behind it. */
static bool keeps_pace(sched *sc, int i)
{
    policy_limits lim = limits_of(sc);
    sc->plan.view[i].rich = fair_is_rich(sc->queue.fair, sc->queue.list[i]->run.ticket);
    policy_seat seat = policy_seats(sc->plan.view, sc->queue.n, i, &lim, &sc->cost);
    if (seat == SEAT_FITS) return true;
    *(sc->plan.view[i].rich ? &sc->plan.crowded : &sc->plan.pace_short) = true;
    if (seat == SEAT_FULL) sc->plan.rows_short = true;
    return false;
}

/* Admits a request: a slot, and pages for its whole history, so that a prefill that has begun can
 * finish. */
static bool admit(sched *sc, int i, int64_t now)
{
    request *rq = sc->queue.list[i];
    if (sc->plan.pages_short || sc->plan.rows_short || atomic_load(&rq->cancel) ||
        is_too_late(sc, rq, now))
        return false;
    if (!find_adapter(sc, rq) || !fits_adapter(sc, rq) || !could_ever_fit(sc, rq)) return false;
    int most = rq->n_prompt + rq->max_tokens, len = history_len(rq);
    int end = len < most ? len + 1 : most;
    int need = rq->beams ? sched_beam_pages(sc, rq, end) : pages_held_for(sc, end);
    if (!keeps_pace(sc, i) || !make_place(sc, need, i, now)) {
        view_release(sc, rq->run.lora);
        rq->run.lora = NULL;
        return false;
    }
    assert(rq->run.state == STATE_WAITING);
    assert(sc->queue.n_seats + width_of(rq) <= sc->cfg.max_seqs);
    rq->run.state = STATE_RUNNING;
    sc->plan.view[i].running = true;
    sc->queue.n_running++;
    sc->queue.n_seats += width_of(rq);
    rq->run.n_table = 1;
    if (keeps_state(sc)) rq->run.state_slot = state_take(sc->mem.states);
    fair_seat(sc->queue.fair, rq->run.ticket, now);
    ahead_seat(&sc->queue.ahead, now);
    telemetry_adapter_add(sc->tele, rq->adapter_id, +1, -1);
    if (rq->run.lora && sc->source->used) sc->source->used(sc->source->self, rq->run.lora);
    int kept = rq->run.n_computed, snapshot = -1; /* kept: swapped out */
    rq->run.n_computed = 0;
    if (rq->run.n_swapped && sc->mem.see.window > 0)
        take_as_saved(sc, rq);
    else
        snapshot = reuse_prefix(sc, rq);
    bool got = sched_extend(sc, rq, rows_at_once(sc, rq));
    assert(got);
    (void)got;
    (void)kv_claim(sc->mem.pages, 0, false); /* one more was asked for than the prompt takes */
    sched_cause_seat(sc, rq, rq->run.n_swapped ? kept : rq->run.n_computed, now);
    bool loaded = rq->run.n_swapped && swap_in(sc, rq, kept);
    if (snapshot >= 0 && !loaded) sched_snapshot_restore(sc, rq, snapshot);
    if (rq->times.admitted_us == 0) {
        rq->times.admitted_us = now;
        telemetry_seat(sc->tele, rq);
        if (rq->waiting) atomic_fetch_sub(rq->waiting, 1);
    }
    return true;
}

/* How many of n rows fit into the step's time budget. Decode rows always fit, except in the
 * background; so does the least chunk of the first prompt. A request is not admitted for less,
 * because it would hold a slot without using it. */
static int rows_in_budget(const sched *sc, const request *rq, int n)
{
    if (isinf(sc->plan.budget_us)) return n;
    double rank = rank_share(sc, rq, n);
    if (n == left_of(rq) && decodes(rq)) {
        if (!rq->background || sc->step.n_seq == 0) return n;
        cost_work w = sc->plan.load;
        count_work(sc, &w, rq, n, rank);
        return cost_predict(&sc->cost, &w) <= sc->plan.budget_us ? n : 0;
    }
    int fit = cost_chunk(&sc->cost, &sc->plan.load, sc->plan.budget_us, n,
                         seen_of(sc, rq->run.n_computed), rank);
    int seat = n < LEAST_SEAT ? n : LEAST_SEAT,
        least = n < sc->plan.least_chunk ? n : sc->plan.least_chunk;
    if (sc->plan.load.prefill <= 0) return fit > least ? fit : least;
    return rq->run.state == STATE_RUNNING || fit >= seat ? fit : 0;
}

/* Adds one request to the step, or leaves it out if time, pages or logits are short. */
static void add_entry(sched *sc, const policy_entry *pe, int64_t now)
{
    int i = pe->request;
    request *rq = sc->queue.list[i];
    if (!rq || !sc->plan.allowed[i]) return;
    if (must_await_mask(sc, rq)) return;
    int most = rq->run.replays ? left_of(rq) : pe->n_rows;
    if (rows_in_budget(sc, rq, most) == 0) {
        if (rq->run.state != STATE_RUNNING) sc->plan.rows_short = true;
        return;
    }
    if (rq->run.state != STATE_RUNNING && !admit(sc, i, now)) return;
    let_slide(sc, rq);
    int left = left_of(rq), n = most < left ? most : left, n_seq = sequences_of(rq);
    if (n > sc->plan.rows_left / n_seq) n = sc->plan.rows_left / n_seq;
    if (rq->beams && n_seq == 1 && n > rq->n_prompt - rq->run.n_computed &&
        rq->run.n_computed < rq->n_prompt)
        n = rq->n_prompt - rq->run.n_computed; /* behind the prompt each beam has rows */
    n = rows_in_budget(sc, rq, n);
    if (n == 0) return;
    n = sched_snapshot_cut(sc, rq, n);
    int logits = n_seq * logits_of(rq, n);
    if (sc->plan.n_logit + logits > sc->cfg.max_logits) return;
    int need = rq->beams ? sched_beam_need(sc, rq, n)
                         : pages_for(sc, rq->run.n_computed + n) - rq->run.n_page;
    if (need > 0 && !make_room(sc, need, i, now)) return;
    bool got = sched_extend(sc, rq, n);
    assert(got);
    (void)got;
    sc->plan.n_logit += logits;
    sc->plan.rows_left -= n * n_seq;
    assert(n > 0 && sc->plan.rows_left >= 0);
    assert(sc->step.n_seq + n_seq <= sc->cfg.max_seqs); /* no more than have seats */
    for (int b = 0; b < n_seq; b++) {
        count_work(sc, &sc->plan.load, rq, n, rank_share(sc, rq, n));
        sc->now->row[sc->step.n_seq++] = (flight_row){.owner = rq, .beam = b, .chunk = n};
    }
}

/* ------------------------------------------------------------------- the step -- */

static void swap_entries(sched *sc, int a, int b)
{
    flight_row r = sc->now->row[a];
    sc->now->row[a] = sc->now->row[b];
    sc->now->row[b] = r;
}

/* Sort order: by the adapter of the last row. A request that is cut (base rows first) precedes
 * those that use the adapter throughout, so that the adapter's rows are adjacent. */
static bool stands_behind(const sched *sc, int a, int b)
{
    const request *one = sc->now->row[a].owner, *two = sc->now->row[b].owner;
    uint64_t first = lora_of(one, sc->now->row[a].chunk) ? one->adapter_id : 0;
    uint64_t second = lora_of(two, sc->now->row[b].chunk) ? two->adapter_id : 0;
    if (first != second) return first > second;
    return first > 0 && one->run.n_computed >= one->adapter_from &&
           two->run.n_computed < two->adapter_from;
}

/* Rows of one adapter stand together; insertion sort keeps the order otherwise. */
static void sort_by_adapter(sched *sc)
{
    for (int i = 1; i < sc->step.n_seq; i++) {
        for (int j = i; j > 0 && stands_behind(sc, j - 1, j); j--) swap_entries(sc, j - 1, j);
    }
}

static void add_segment(sched *sc, int row0, int n, const lora_view *lora)
{
    step *st = &sc->step;
    if (st->n_seg > 0 && sc->rows.seg[st->n_seg - 1].lora == lora)
        sc->rows.seg[st->n_seg - 1].n_rows += n;
    else
        sc->rows.seg[st->n_seg++] = (step_seg){row0, n, lora};
}

/* Adds the segments of its next n rows, split where its adapter begins (adapter_from). */
static void add_segments(sched *sc, const request *rq, int row0, int n)
{
    int bare = rq->adapter_from - rq->run.n_computed;
    if (!rq->run.lora || bare < 0) bare = 0;
    if (bare > n) bare = n;
    if (bare > 0) add_segment(sc, row0, bare, NULL);
    if (bare < n) add_segment(sc, row0 + bare, n - bare, rq->run.lora);
}

/* Rows of the step out of the chunks that were planned: for each its token, position and
 * segment, and which of them want logits. A token that the step in flight has not drawn yet is
 * taken on the device (`from`: the row of that step's draw) without waiting for it. */
static void build_rows(sched *sc)
{
    step *st = &sc->step;
    st->n_rows = st->n_seg = st->n_logit = 0;
    st->from = NULL;
    for (int s = 0; s < st->n_seq; s++) {
        request *rq = sc->now->row[s].owner;
        int n = sc->now->row[s].chunk, row0 = st->n_rows, beam = sc->now->row[s].beam;
        bool ends = n == left_of(rq);
        n += sc->now->row[s].n_guess;
        sc->rows.seq[s] = (step_seq){
            row0, n, rq->run.n_computed, table_of(rq, beam), rq->run.n_page, rq->run.state_slot};
        sc->now->row[s].logit0 = -1;
        for (int i = 0; i < n; i++) {
            bool guessed = i >= sc->now->row[s].chunk;
            bool known = guessed || is_known(rq, rq->run.n_computed + i);
            sc->rows.token[row0 + i] = known ? history_of(rq, beam, rq->run.n_computed + i) : 0;
            sc->rows.from[row0 + i] = known ? -1 : rq->run.draw_at;
            if (!known) st->from = sc->rows.from;
            sc->rows.pos[row0 + i] = rq->run.n_computed + i;
            if (logits_of(rq, sc->now->row[s].chunk) &&
                (scores(rq) || (ends && i >= sc->now->row[s].chunk - 1))) {
                if (sc->now->row[s].logit0 < 0) sc->now->row[s].logit0 = st->n_logit;
                sc->rows.logit_row[st->n_logit++] = row0 + i;
            }
        }
        st->n_rows += n;
        add_segments(sc, rq, row0, n);
    }
    assert(st->n_rows <= sc->cfg.max_rows && st->n_logit <= sc->cfg.max_logits);
}

/* Those who could be seated stand behind those who run. */
static void list_waiting(sched *sc, int64_t now)
{
    int tickets[FAIR_PICKS], want = sc->cfg.max_seqs - sc->queue.n_seats +
                                    (sc->queue.depth > SPARE_PICKS ? sc->queue.depth : SPARE_PICKS);
    int n = fair_pick(sc->queue.fair, now, want < FAIR_PICKS ? want : FAIR_PICKS, tickets);
    for (int i = 0; i < n; i++) {
        request *rq = fair_who(sc->queue.fair, tickets[i]);
        sched_see_end(sc, rq, now);
        assert(sc->queue.n < sc->cfg.max_seqs + FAIR_PICKS);
        if (fair_is_waiting(sc->queue.fair, tickets[i]))
            sc->queue.list[sc->queue.n++] = rq; /* else it is gone */
    }
}

/* How deep the next look at those that wait goes. */
static void see_depth(sched *sc)
{
    double load_us = 0;
    int room = 0;
    if (sc->source && sc->source->outlook) sc->source->outlook(sc->source->self, &load_us, &room);
    sc->queue.depth = ahead_depth(&sc->queue.ahead, load_us, room, FAIR_PICKS);
}

/* Prefetches the adapters of waiting requests in their expected order of start. */
static void prefetch_waiting(sched *sc, int64_t now)
{
    const lora_source *src = sc->source;
    int seen = 0;
    if (!src || !src->want || fair_waiting(sc->queue.fair) == 0) return;
    see_depth(sc);
    for (int i = 0; i < sc->queue.n && seen < sc->queue.depth; i++) {
        const request *rq = sc->queue.list[i];
        if (!rq || rq->run.state != STATE_WAITING) continue;
        if (rq->adapter_id && !rq->run.lora)
            src->want(src->self, rq->adapter_id, now + ahead_start_us(&sc->queue.ahead, seen));
        seen++;
    }
}

/* How long the step may take, for the rows that it has. */
static double slack_us(const sched *sc, int64_t now)
{
    double slack = INFINITY;
    for (int i = 0; i < sc->step.n_seq; i++)
        slack = fmin(slack, slack_of(sc->now->row[i].owner, now));
    return slack;
}

/* Tells the loaders how long the step will take, and the slack, so that their copies stay within
 * it. */
static void tell_loaders(sched *sc, int64_t now)
{
    if (!sc->source || !sc->source->step) return;
    double step_us = cost_predict(&sc->cost, &sc->plan.load);
    sc->source->step(sc->source->self, step_us, slack_us(sc, now) - step_us);
}

static void add_entries(sched *sc, int from, int to, int64_t now)
{
    for (int i = from; i < to && sc->plan.rows_left > 0 && !sc->plan.must_land; i++)
        add_entry(sc, &sc->plan.entries[i], now);
}

/* Whether a foreground request in the step still waits for its first token. */
static bool some_is_awaited(const sched *sc)
{
    for (int i = 0; i < sc->step.n_seq; i++) {
        const request *rq = sc->now->row[i].owner;
        if (!rq->background && !rq->times.first_token_us) return true;
    }
    return false;
}

static int64_t tightest_ttft_us(const sched *sc)
{
    int64_t us = INT64_MAX;
    for (int i = 0; i < sc->cfg.n_class; i++) {
        int64_t one = sc->cfg.classes[i].ttft_us;
        if (one > 0 && one < us) us = one;
    }
    return us;
}

static void add_background(sched *sc, int from, int to, int64_t now)
{
    double others_us = sc->step.n_seq > 0 ? cost_predict(&sc->cost, &sc->plan.load) : 0;
    if (sc->cost.n >= COST_LEARNING)
        sc->plan.budget_us =
            policy_background_us(others_us, slack_us(sc, now), tightest_ttft_us(sc));
    sc->plan.least_chunk = 1;
    add_entries(sc, from, to, now);
}

void sched_plan_step(sched *sc, int64_t now)
{
    list_waiting(sc, now);
    for (int i = 0; i < sc->queue.n; i++) {
        describe(sc, i, now);
        sc->plan.allowed[i] = true;
    }
    policy_limits lim = limits_of(sc);
    int all = policy_plan(sc->plan.view, sc->queue.n, &lim, now, sc->plan.entries, sc->plan.order);
    int n = policy_hold_back(sc->plan.view, sc->plan.entries, all, sc->plan.held), listed = n;
    double step_us;
    n = policy_trim(sc->plan.view, sc->plan.entries, n, &lim, &sc->cost, now, sc->plan.order,
                    &step_us);
    sc->plan.n_out = listed - n;
    sc->plan.n_logit = sc->step.n_seq = 0;
    sc->plan.load = (cost_work){0};
    sc->plan.budget_us = policy_budget_us(sc->plan.view, sc->plan.entries, n, &sc->cost, now,
                                          step_us, &sc->plan.least_chunk);
    sc->plan.rows_left = sc->cfg.max_rows;
    sc->plan.pages_short = sc->plan.rows_short = sc->plan.must_land = false;
    sc->plan.pace_short = sc->plan.crowded = false;
    add_entries(sc, 0, n, now);
    if (listed < all && !some_is_awaited(sc)) add_background(sc, listed, all, now);
    prefetch_waiting(sc, now);
    sched_sweep(sc);
    sort_by_adapter(sc);
    sched_guess(sc, now);
    tell_loaders(sc, now);
    build_rows(sc);
}
