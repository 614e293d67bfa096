/* sched_plan.c -- who runs in the next step.
 *
 * fair_pick() names who of those that wait is next, policy_plan() the order of all; here the chosen
 * get their adapter, a seat and pages, weaker ones give way to them, and the rows of the step are
 * built.  Pre-emption gives all pages back; later the history is recomputed, or its pages return
 * from where they were swapped to.
 */
#include <assert.h>
#include <math.h>

#include "engine/base/lock.h"
#include "engine/sched/sched_inside.h"

enum {
    /* Beside another prompt, nobody is given a seat for fewer tokens in this step. */
    LEAST_SEAT = 16,
    /* Of those that wait, beyond the seats: who could take one, who comes next. */
    SPARE_PICKS = 16,
};

/* ----------------------------------------------------------------------- room -- */

/* Its last token is being drawn, or its row has to wait for the mask of its form. */
static bool has_no_row(const request *rq)
{
    bool late = rq->grammar_late && rq->state == STATE_RUNNING;
    return is_complete(rq) || (late && !grammar_run_ready(rq->grammar));
}

static void describe(sched *sc, int i, int64_t now)
{
    const request *rq = sc->list[i];
    sc->view[i] = (policy_request){
        .running = rq->state == STATE_RUNNING,
        .left = has_no_row(rq) ? 0 : left_of(rq),
        .max_chunk = scores(rq) ? SCHED_SCORE_ROWS : sc->cfg.max_rows,
        .class_rank = sc->cfg.classes[rq->slo_class].rank,
        .arrived_us = rq->arrived_us,
        .deadline_us = rq->first_token_us || rq->n_ahead ? 0 : rq->ttft_deadline_us,
        .context = seen_of(sc, rq->n_computed),
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
                           .free_seats = sc->cfg.max_seqs - sc->n_running,
                           .ageing_us = sc->cfg.ageing_us,
                           .prompts = sc->prompts};
}

/* Takes a request out of the step under construction. */
static void unplace(sched *sc, const request *rq)
{
    int n_seq = sc->step.n_seq, s = 0;
    while (s < n_seq && sc->row_owner[s] != rq) s++;
    if (s == n_seq) return;
    sc->rows_left += sc->chunk[s];
    sc->n_logit -= logits_of(rq, sc->chunk[s]);
    assert(sc->rows_left <= sc->cfg.max_rows && sc->n_logit >= 0);
    for (; s + 1 < n_seq; s++) {
        sc->row_owner[s] = sc->row_owner[s + 1];
        sc->chunk[s] = sc->chunk[s + 1];
    }
    sc->step.n_seq--;
}

/* Copying a request's pages out and back takes less time than computing them again. */
static bool swap_is_cheaper(const sched *sc, const request *rq, int n_page)
{
    const cost_work none = {0};
    cost_work again = cost_with_chunk(&none, rq->n_computed, 0, rank_of(rq, 0));
    double recompute = cost_predict(&sc->cost, &again) - cost_predict(&sc->cost, &none);
    return sc->cost.n >= COST_LEARNING && swap_round_trip_us(sc->swap, n_page) < recompute;
}

/* Returns how many positions are kept; 0: they will be computed again. */
static int swap_out(sched *sc, request *rq)
{
    int n = pages_for(sc, rq->n_computed);
    if (!sc->swap || n == 0 || scores(rq)) return 0; /* scored prompts begin anew */
    if (sc->cfg.preemption == PREEMPT_RECOMPUTE) return 0;
    if (sc->cfg.preemption == PREEMPT_CHEAPER && !swap_is_cheaper(sc, rq, n)) return 0;
    int64_t began_us = clock_now_us();
    bool saved = swap_save(sc->swap, rq->page, n, rq->swap_slot);
    sched_cause_lost(sc, MISS_SWAP, began_us, clock_now_us());
    if (!saved) return 0;
    rq->n_swapped = n;
    lock_take(&sc->mu);
    sc->stats.n_swapped_out++;
    lock_release(&sc->mu);
    return rq->n_computed;
}

static void preempt(sched *sc, int v)
{
    request *rq = sc->list[v];
    assert(rq && rq->state == STATE_RUNNING && !sched_in_flight(sc));
    unplace(sc, rq);
    int64_t now = clock_now_us();
    sched_cause_gave_way(sc, rq, now);
    int kept = swap_out(sc, rq);
    sched_leave_seat(sc, rq);
    rq->n_computed = kept;
    fair_back(sc->fair, rq->ticket, now);
    rq->n_preempted++;
    sc->view[v].running = false;
    sc->allowed[v] = false; /* not again in this step */
    lock_take(&sc->mu);
    sc->stats.n_preempted++;
    lock_release(&sc->mu);
}

/* Pages for a running request, claimed: the weakest of all gives way, which
 * may be the request itself. */
static bool make_room(sched *sc, int need, int i, int64_t now)
{
    policy_limits lim = limits_of(sc);
    while (!kv_claim(sc->pages, need, false)) {
        sc->pages_short = true;
        sc->must_land = sched_in_flight(sc) != NULL;
        if (sc->must_land) return false;
        int v = policy_victim(sc->view, sc->n, sc->allowed, -1, &lim, now);
        assert(v >= 0); /* at least i itself */
        preempt(sc, v);
        if (v == i) return false;
    }
    return true;
}

/* A seat and pages, claimed, for a waiting request: only weaker ones give way,
 * and only if that is enough. */
static bool make_place(sched *sc, int need, int i, int64_t now)
{
    policy_limits lim = limits_of(sc);
    int could = kv_available(sc->pages, true), weaker = 0;
    for (int v = 0; v < sc->n; v++) {
        if (!sc->allowed[v] || !sc->view[v].running) continue;
        if (!policy_is_weaker(&sc->view[v], &sc->view[i], &lim, now)) continue;
        could += sc->list[v]->n_page - sc->list[v]->n_gone;
        weaker++;
    }
    if (could < need) {
        sc->pages_short = true;
        return false;
    }
    while (sc->n_running >= sc->cfg.max_seqs || !kv_claim(sc->pages, need, true)) {
        int v = weaker ? policy_victim(sc->view, sc->n, sc->allowed, i, &lim, now) : -1;
        if (v < 0) {
            sc->pages_short = kv_available(sc->pages, true) < need;
            return false;
        }
        sc->must_land = sched_in_flight(sc) != NULL;
        if (sc->must_land) return false;
        preempt(sc, v);
    }
    return true;
}

bool sched_extend(sched *sc, request *rq, int n)
{
    int want = pages_for(sc, rq->n_computed + n);
    assert(want <= rq->page_cap && n >= 0);
    while (rq->n_page < want) {
        int p = kv_take(sc->pages);
        if (p < 0) return false;
        rq->page[rq->n_page++] = p;
    }
    return true;
}

/* Gives back what none of its rows to come sees: a stream's pages between what is kept and its
 * window.  Rows in flight may still read them. */
static void let_slide(sched *sc, request *rq)
{
    int from, to;
    if (sc->see.window == 0 || sched_in_flight(sc)) return;
    kv_unseen(sc->pages, &sc->see, rq->n_computed, &from, &to);
    for (int i = from + rq->n_gone; i < to; i++, rq->n_gone++) {
        kv_release(sc->pages, rq->page[i]);
        rq->page[i] = KV_GONE;
    }
}

/* Rows for which a request that is seated gets pages at once. */
static int rows_at_once(const sched *sc, const request *rq)
{
    int left = left_of(rq);
    return sc->see.window > 0 && left > sc->cfg.max_rows ? sc->cfg.max_rows : left;
}

/* ---------------------------------------------------------------------- seats -- */

static bool find_adapter(sched *sc, request *rq)
{
    if (rq->adapter_id == 0 || rq->lora) return true;
    err e;
    if (!sc->source) {
        (void)err_set(&e, ERR_NOT_FOUND, "this server has no adapters");
        sched_finish(sc, rq, FINISH_ERROR, &e);
        return false;
    }
    err_code rc = sc->source->acquire(sc->source->self, rq->adapter_id, &rq->lora, &e);
    if (rc == ERR_NONE && rq->lora->n_vocab == rq->n_vocab) return true;
    if (rc == ERR_NONE) { /* its ids were checked against another vocabulary */
        view_release(sc, rq->lora);
        rc =
            err_set(&e, ERR_CORRUPT, "the adapter has another vocabulary than it was told to have");
    }
    rq->lora = NULL;
    if (rc == ERR_BUSY) {
        fair_block(sc->fair, rq->ticket, clock_now_us());
        lock_take(&sc->mu);
        sc->stats.n_adapter_waits++;
        lock_release(&sc->mu);
    } else {
        sched_finish(sc, rq, FINISH_ERROR, &e);
    }
    return false;
}

/* Who has a head of classes in place of an output layer makes no text. */
static bool fits_adapter(sched *sc, request *rq)
{
    if (rq->pool || !rq->lora || !rq->lora->score_head) return true;
    err e;
    (void)err_set(&e, ERR_UNSUPPORTED,
                  "this adapter has a head of classes and no output layer: it answers "
                  "/v1/classify, /v1/score and /v1/rerank");
    view_release(sc, rq->lora);
    rq->lora = NULL;
    sched_finish(sc, rq, FINISH_ERROR, &e);
    return false;
}

/* Takes over what the prefix cache has of this history. */
static void reuse_prefix(sched *sc, request *rq)
{
    if (scores(rq)) return; /* every row's logits are wanted */
    kv_domain d;
    domain_of(rq, &d);
    int len = history_len(rq), from = rq->pool ? pooling_from(rq->pool, rq->n_prompt) : len;
    if (len > from + 1) len = from + 1; /* that state is wanted: its row is computed */
    for (int i = 0; i < len; i++) sc->history[i] = history_at(rq, i);
    int to;
    rq->n_page = kv_match(sc->pages, &d, &sc->see, sc->history, len, rq->page, rq->page_cap);
    rq->n_computed = rq->n_page * sc->page_tokens;
    kv_unseen(sc->pages, &sc->see, rq->n_computed, &rq->n_gone, &to);
    rq->n_gone = to - rq->n_gone;
    assert(rq->n_page <= rq->page_cap && rq->n_computed < len); /* a row is left to be computed */
    if (rq->admitted_us == 0) {
        uint32_t cached = (uint32_t)(rq->n_computed < rq->n_prompt ? rq->n_computed : rq->n_prompt);
        atomic_store(&rq->meter->cached_tokens, cached);
        lock_take(&sc->mu);
        sc->stats.n_cached_tokens += cached;
        sc->stats.n_looked_up_tokens += (uint64_t)rq->n_prompt;
        lock_release(&sc->mu);
    }
}

/* Pages of a stream as they were when it gave way; the prefix cache is not asked for some. */
static void take_as_saved(sched *sc, request *rq)
{
    for (; rq->n_page < rq->n_swapped; rq->n_page++) {
        bool gone = rq->swap_slot[rq->n_page] < 0;
        rq->page[rq->n_page] = gone ? KV_GONE : kv_take(sc->pages);
        rq->n_gone += gone;
        assert(gone || rq->page[rq->n_page] >= 0); /* they were claimed */
    }
}

/* What the prefix cache does not have any more comes back from the swap;
 * `kept` positions were saved. */
static void swap_in(sched *sc, request *rq, int kept)
{
    int from = rq->n_computed / sc->page_tokens;
    if (rq->n_computed < kept) {
        assert(rq->n_swapped >= from && rq->n_swapped <= rq->n_page);
        int64_t began_us = clock_now_us();
        swap_load(sc->swap, rq->swap_slot + from, rq->n_swapped - from, rq->page + from);
        sched_cause_lost(sc, MISS_SWAP, began_us, clock_now_us());
        rq->n_computed = kept;
        if (sc->see.window == 0) sched_publish_pages(sc, rq, from * sc->page_tokens, kept);
        lock_take(&sc->mu);
        sc->stats.n_swapped_in++;
        lock_release(&sc->mu);
    }
    sched_swap_forget(sc, rq);
}

/* Beside its own adapter the arena must hold the whole of it, or it would never come to its end. */
static bool could_ever_fit(sched *sc, request *rq)
{
    const lora_source *src = sc->source;
    int adapter = rq->lora && src->chunks ? src->chunks(src->self, rq->lora) : 0;
    int most = pages_held_for(sc, rq->n_prompt + rq->max_tokens);
    if (adapter == 0 || most <= sc->n_pages - adapter) return true;
    err e;
    (void)err_set(
        &e, ERR_LIMIT,
        "%d prompt tokens and %d output tokens do not fit into the device's memory beside the "
        "adapter",
        rq->n_prompt, rq->max_tokens);
    view_release(sc, rq->lora);
    rq->lora = NULL;
    sched_finish(sc, rq, FINISH_ERROR, &e);
    return false;
}

/* Else it waits; where a stream would lose its pace, nobody behind it has the seat. */
static bool keeps_pace(sched *sc, int i)
{
    policy_limits lim = limits_of(sc);
    sc->view[i].rich = fair_is_rich(sc->fair, sc->list[i]->ticket);
    policy_seat seat = policy_seats(sc->view, sc->n, i, &lim, &sc->cost);
    if (seat == SEAT_FITS) return true;
    *(sc->view[i].rich ? &sc->crowded : &sc->pace_short) = true;
    if (seat == SEAT_FULL) sc->rows_short = true;
    return false;
}

/* A seat, and pages for the whole history at once, so that a prefill once begun is finished. */
static bool admit(sched *sc, int i, int64_t now)
{
    request *rq = sc->list[i];
    if (sc->pages_short || sc->rows_short || atomic_load(&rq->cancel) || is_too_late(sc, rq, now))
        return false;
    if (!find_adapter(sc, rq) || !fits_adapter(sc, rq) || !could_ever_fit(sc, rq)) return false;
    int most = rq->n_prompt + rq->max_tokens, len = history_len(rq);
    int need = pages_held_for(sc, len < most ? len + 1 : most);
    if (!keeps_pace(sc, i) || !make_place(sc, need, i, now)) {
        view_release(sc, rq->lora);
        rq->lora = NULL;
        return false;
    }
    assert(rq->state == STATE_WAITING && sc->n_running < sc->cfg.max_seqs);
    rq->state = STATE_RUNNING;
    sc->view[i].running = true;
    sc->n_running++;
    fair_seat(sc->fair, rq->ticket, now);
    ahead_seat(&sc->ahead, now);
    telemetry_adapter_add(sc->tele, rq->adapter_id, +1, -1);
    if (rq->lora && sc->source->used) sc->source->used(sc->source->self, rq->lora);
    int kept = rq->n_computed; /* swapped out */
    rq->n_computed = 0;
    if (rq->n_swapped && sc->see.window > 0)
        take_as_saved(sc, rq);
    else
        reuse_prefix(sc, rq);
    bool got = sched_extend(sc, rq, rows_at_once(sc, rq));
    assert(got);
    (void)got;
    (void)kv_claim(sc->pages, 0, false); /* one more was asked for than the prompt takes */
    sched_cause_seat(sc, rq, rq->n_swapped ? kept : rq->n_computed, now);
    if (rq->n_swapped) swap_in(sc, rq, kept);
    if (rq->admitted_us == 0) {
        rq->admitted_us = now;
        telemetry_seat(sc->tele, rq);
        if (rq->waiting) atomic_fetch_sub(rq->waiting, 1);
    }
    return true;
}

/* How many of n rows fit into the step's time.  Decode rows always do, but in the background, and
 * so does the least chunk of the first prompt.  Nobody is given a seat for less: it would be held,
 * and hardly used. */
static int rows_in_budget(const sched *sc, const request *rq, int n)
{
    if (isinf(sc->budget_us)) return n;
    double rank = rank_share(sc, rq, n);
    if (n == 1 && left_of(rq) == 1) {
        if (!rq->background || sc->step.n_seq == 0) return n;
        cost_work w = sc->load;
        count_work(sc, &w, rq, n, rank);
        return cost_predict(&sc->cost, &w) <= sc->budget_us ? n : 0;
    }
    int fit = cost_chunk(&sc->cost, &sc->load, sc->budget_us, n, seen_of(sc, rq->n_computed), rank);
    int seat = n < LEAST_SEAT ? n : LEAST_SEAT, least = n < sc->least_chunk ? n : sc->least_chunk;
    if (sc->load.prefill <= 0) return fit > least ? fit : least;
    return rq->state == STATE_RUNNING || fit >= seat ? fit : 0;
}

/* Adds one request to the step, or leaves it out if time, pages or logits are short. */
static void add_entry(sched *sc, const policy_entry *pe, int64_t now)
{
    int i = pe->request;
    request *rq = sc->list[i];
    if (!rq || !sc->allowed[i]) return;
    if (rq->grammar_late && !grammar_run_ready(rq->grammar)) return;
    if (rows_in_budget(sc, rq, pe->n_rows) == 0) {
        if (rq->state != STATE_RUNNING) sc->rows_short = true;
        return;
    }
    if (rq->state != STATE_RUNNING && !admit(sc, i, now)) return;
    let_slide(sc, rq);
    int left = left_of(rq), n = pe->n_rows < left ? pe->n_rows : left;
    if (n > sc->rows_left) n = sc->rows_left;
    n = rows_in_budget(sc, rq, n);
    if (n == 0) return;
    int logits = logits_of(rq, n);
    if (sc->n_logit + logits > sc->cfg.max_logits) return;
    int need = pages_for(sc, rq->n_computed + n) - rq->n_page;
    if (need > 0 && !make_room(sc, need, i, now)) return;
    bool got = sched_extend(sc, rq, n);
    assert(got);
    (void)got;
    sc->n_logit += logits;
    sc->rows_left -= n;
    assert(n > 0 && sc->rows_left >= 0);
    count_work(sc, &sc->load, rq, n, rank_share(sc, rq, n));
    assert(sc->step.n_seq < sc->cfg.max_seqs); /* no more than have seats */
    sc->row_owner[sc->step.n_seq] = rq;
    sc->chunk[sc->step.n_seq++] = n;
}

/* ------------------------------------------------------------------- the step -- */

static void swap_entries(sched *sc, int a, int b)
{
    request *rq = sc->row_owner[a];
    int n = sc->chunk[a];
    sc->row_owner[a] = sc->row_owner[b];
    sc->chunk[a] = sc->chunk[b];
    sc->row_owner[b] = rq;
    sc->chunk[b] = n;
}

/* By the adapter of its last row; one that is cut stands before those that are its adapter's as a
 * whole, so that their rows meet. */
static bool stands_behind(const sched *sc, int a, int b)
{
    const request *one = sc->row_owner[a], *two = sc->row_owner[b];
    uint64_t first = lora_of(one, sc->chunk[a]) ? one->adapter_id : 0;
    uint64_t second = lora_of(two, sc->chunk[b]) ? two->adapter_id : 0;
    if (first != second) return first > second;
    return first > 0 && one->n_computed >= one->adapter_from && two->n_computed < two->adapter_from;
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
    if (st->n_seg > 0 && sc->seg[st->n_seg - 1].lora == lora)
        sc->seg[st->n_seg - 1].n_rows += n;
    else
        sc->seg[st->n_seg++] = (step_seg){row0, n, lora};
}

/* Its next n rows from row0 on, cut where its adapter begins. */
static void add_segments(sched *sc, const request *rq, int row0, int n)
{
    int bare = rq->adapter_from - rq->n_computed;
    if (!rq->lora || bare < 0) bare = 0;
    if (bare > n) bare = n;
    if (bare > 0) add_segment(sc, row0, bare, NULL);
    if (bare < n) add_segment(sc, row0 + bare, n - bare, rq->lora);
}

static void build_rows(sched *sc)
{
    step *st = &sc->step;
    st->n_rows = st->n_seg = st->n_logit = 0;
    st->from = NULL;
    for (int s = 0; s < st->n_seq; s++) {
        request *rq = sc->row_owner[s];
        int n = sc->chunk[s], row0 = st->n_rows;
        bool ends = n == left_of(rq);
        n += sc->now->n_guess[s];
        sc->seq[s] = (step_seq){row0, n, rq->n_computed, rq->page, rq->n_page};
        sc->now->logit0[s] = -1;
        for (int i = 0; i < n; i++) {
            bool guessed = i >= sc->chunk[s];
            bool known = guessed || is_known(rq, rq->n_computed + i);
            sc->token[row0 + i] = known ? history_at(rq, rq->n_computed + i) : 0;
            sc->from[row0 + i] = known ? -1 : rq->draw_at;
            if (!known) st->from = sc->from;
            sc->pos[row0 + i] = rq->n_computed + i;
            if (logits_of(rq, sc->chunk[s]) && (scores(rq) || (ends && i >= sc->chunk[s] - 1))) {
                if (sc->now->logit0[s] < 0) sc->now->logit0[s] = st->n_logit;
                sc->logit_row[st->n_logit++] = row0 + i;
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
    int tickets[FAIR_PICKS], want = sc->cfg.max_seqs - sc->n_running +
                                    (sc->depth > SPARE_PICKS ? sc->depth : SPARE_PICKS);
    int n = fair_pick(sc->fair, now, want < FAIR_PICKS ? want : FAIR_PICKS, tickets);
    for (int i = 0; i < n; i++) {
        request *rq = fair_who(sc->fair, tickets[i]);
        sched_see_end(sc, rq, now);
        assert(sc->n < sc->cfg.max_seqs + FAIR_PICKS);
        if (fair_is_waiting(sc->fair, tickets[i])) sc->list[sc->n++] = rq; /* else it is gone */
    }
}

/* How deep the next look at those that wait goes. */
static void see_depth(sched *sc)
{
    double load_us = 0;
    int room = 0;
    if (sc->source && sc->source->outlook) sc->source->outlook(sc->source->self, &load_us, &room);
    sc->depth = ahead_depth(&sc->ahead, load_us, room, FAIR_PICKS);
}

/* What comes next should find its adapter there: in the order in which they will start. */
static void prefetch_waiting(sched *sc, int64_t now)
{
    const lora_source *src = sc->source;
    int seen = 0;
    if (!src || !src->want || fair_waiting(sc->fair) == 0) return;
    see_depth(sc);
    for (int i = 0; i < sc->n && seen < sc->depth; i++) {
        const request *rq = sc->list[i];
        if (!rq || rq->state != STATE_WAITING) continue;
        if (rq->adapter_id && !rq->lora)
            src->want(src->self, rq->adapter_id, now + ahead_start_us(&sc->ahead, seen));
        seen++;
    }
}

/* How long the step may take, for the rows that it has. */
static double slack_us(const sched *sc, int64_t now)
{
    double slack = INFINITY;
    for (int i = 0; i < sc->step.n_seq; i++) slack = fmin(slack, slack_of(sc->row_owner[i], now));
    return slack;
}

/* How long the step will take, and how much longer it may: loaders keep their copies within
 * that. */
static void tell_loaders(sched *sc, int64_t now)
{
    if (!sc->source || !sc->source->step) return;
    double step_us = cost_predict(&sc->cost, &sc->load);
    sc->source->step(sc->source->self, step_us, slack_us(sc, now) - step_us);
}

static void add_entries(sched *sc, int from, int to, int64_t now)
{
    for (int i = from; i < to && sc->rows_left > 0 && !sc->must_land; i++)
        add_entry(sc, &sc->plan[i], now);
}

/* Has somebody rows in the step whose first token is waited for? */
static bool some_is_awaited(const sched *sc)
{
    for (int i = 0; i < sc->step.n_seq; i++) {
        const request *rq = sc->row_owner[i];
        if (!rq->background && !rq->first_token_us) return true;
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
    double others_us = sc->step.n_seq > 0 ? cost_predict(&sc->cost, &sc->load) : 0;
    if (sc->cost.n >= COST_LEARNING)
        sc->budget_us = policy_background_us(others_us, slack_us(sc, now), tightest_ttft_us(sc));
    sc->least_chunk = 1;
    add_entries(sc, from, to, now);
}

void sched_plan_step(sched *sc, int64_t now)
{
    list_waiting(sc, now);
    for (int i = 0; i < sc->n; i++) {
        describe(sc, i, now);
        sc->allowed[i] = true;
    }
    policy_limits lim = limits_of(sc);
    int all = policy_plan(sc->view, sc->n, &lim, now, sc->plan, sc->order);
    int n = policy_hold_back(sc->view, sc->plan, all, sc->held), listed = n;
    double step_us;
    n = policy_trim(sc->view, sc->plan, n, &lim, &sc->cost, now, sc->order, &step_us);
    sc->n_out = listed - n;
    sc->n_logit = sc->step.n_seq = 0;
    sc->load = (cost_work){0};
    sc->budget_us =
        policy_budget_us(sc->view, sc->plan, n, &sc->cost, now, step_us, &sc->least_chunk);
    sc->rows_left = sc->cfg.max_rows;
    sc->pages_short = sc->rows_short = sc->must_land = false;
    sc->pace_short = sc->crowded = false;
    add_entries(sc, 0, n, now);
    if (listed < all && !some_is_awaited(sc)) add_background(sc, listed, all, now);
    prefetch_waiting(sc, now);
    sched_sweep(sc);
    sort_by_adapter(sc);
    sched_guess(sc, now);
    tell_loaders(sc, now);
    build_rows(sc);
}
