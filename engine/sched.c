/* sched.c -- the engine thread.
 *
 * One iteration: take what the inbox holds, drop what was cancelled, let fair_pick() name who of
 * those that wait is next and policy_plan() choose, seat and page the chosen, build the step, run it, sample, hand tokens out, retire the finished.
 * A request's history is its prompt followed by its output; `n_computed` positions of it have KV.
 * Pre-emption gives all pages back; later the history is recomputed, or its pages return from where
 * they were swapped to.  The draws go on where they were, so the tokens are the same.
 *
 * Everything the loop needs is allocated in sched_create().
 */
#include "engine/sched.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/cost.h"
#include "engine/fair.h"
#include "engine/kv.h"
#include "engine/policy.h"
#include "engine/promise.h"

enum {
    SAMPLERS_MAX = 16,
    IDLE_WAIT_MS = 100,
    DEFAULT_AGEING_US = 10 * 1000000,
    LEAST_CHUNK = 16, /* a prompt goes on by so many tokens even in a step without budget */
    SPARE_PICKS = 16, /* of those that wait, beyond the seats: who could take one, who comes next */
    SCAN = 256,       /* of those that wait, looked at for cancellation in one step */
};

enum { STATE_WAITING, STATE_RUNNING, STATE_DONE };

struct sched {
    sched_config cfg;
    model *m;
    backend *be;
    const lora_source *source;
    devmem *arena, *own_arena; /* own_arena: NULL where it was lent */
    kv_pages *pages;
    kv_pool *kv;
    swap_pool *swap; /* NULL: there is none */
    int page_tokens, n_pages, max_context;

    pthread_t thread;
    pthread_mutex_t mu; /* leaf lock: inbox, stats, flags */
    pthread_cond_t work;
    request *inbox_head, *inbox_tail;
    int n_inside; /* submitted and not finished; guarded by mu */
    bool draining, stop, broken;
    promise_outlook outlook; /* guarded by mu */
    board *board;
    double surprise[SLO_CLASS_MAX]; /* actual over predicted time to first token; guarded by mu */
    sched_stats stats;              /* guarded by mu */
    _Atomic int64_t heartbeat_us;
    telemetry *tele;

    /* engine thread only */
    request **list; /* those who run, then those who may be seated in this step */
    int n, cap, n_running;
    policy_request *view;
    policy_entry *plan;
    int *order;
    bool *allowed;     /* may still be placed or pre-empted in this step */
    bool pages_short;  /* someone waits for pages: nobody behind may take them */
    fair *fair;        /* who waits, and what each tenant was served */
    int scan;          /* where the look for cancelled ones goes on */
    int64_t settle_us; /* of the iteration that has just ended */
    uint64_t n_prompt_tokens, n_output_tokens;

    cost_model cost;
    cost_work load;   /* of the step under construction */
    double budget_us; /* INFINITY: no bound */

    /* the step under construction */
    step step;
    int rows_left, n_logit;
    int32_t *token, *pos, *logit_row;
    step_seq *seq;
    step_seg *seg;
    request **row_owner; /* [n_seq] */
    int *chunk;          /* [n_seq] */
    sampler *samplers[SAMPLERS_MAX];
    grammar_walk *walks[SAMPLERS_MAX];
    int n_samplers;
    sampled *picked;  /* [max_seqs] */
    int *logit0;      /* [n_seq]: first row of logits, or -1 */
    bool *broken_row; /* [n_seq]: logits that are not numbers */
    bool *late;       /* [n_seq]: the mask of its grammar is not ready */
    const float *logits;
};

/* -------------------------------------------------------------------- history -- */

static int history_len(const request *rq)
{
    return rq->n_prompt + atomic_load_explicit(&rq->n_pushed, memory_order_relaxed);
}

static int32_t history_at(const request *rq, int i)
{
    return i < rq->n_prompt ? rq->prompt[i] : rq->output[i - rq->n_prompt];
}

static int left_of(const request *rq)
{
    return history_len(rq) - rq->n_computed;
}

/* Scores are handed over by the first push and must not be written again after it. */
static bool scores(const request *rq)
{
    return rq->score_prompt && atomic_load_explicit(&rq->n_pushed, memory_order_relaxed) == 0;
}

/* Rows of logits that a chunk of n tokens needs. */
static int logits_of(const request *rq, int n)
{
    return scores(rq) ? n : n == left_of(rq) ? 1 : 0;
}

static void domain_of(const request *rq, kv_domain *d)
{
    *d = (kv_domain){.isolation = rq->isolation};
    if (rq->lora) memcpy(d->digest, rq->lora->digest, sizeof(d->digest));
}

/* ------------------------------------------------------------------ life cycle -- */

static void drop_pages(sched *sc, request *rq)
{
    /* The tail goes first, so that it is also evicted first. */
    for (int i = rq->n_page - 1; i >= 0; i--) kv_release(sc->pages, rq->page[i]);
    rq->n_page = 0;
    rq->n_computed = 0;
}

static void leave_seat(sched *sc, request *rq)
{
    if (rq->state != STATE_RUNNING) return;
    drop_pages(sc, rq);
    if (rq->lora) sc->source->release(sc->source->self, rq->lora);
    rq->lora = NULL;
    rq->state = STATE_WAITING;
    sc->n_running--;
    telemetry_adapter_add(sc->tele, rq->adapter_id, -1, +1);
}

static request_outcome outcome_of(finish_reason why)
{
    return why == FINISH_STOP        ? OUTCOME_STOP
           : why == FINISH_LENGTH    ? OUTCOME_LENGTH
           : why == FINISH_CANCELLED ? OUTCOME_CANCELLED
                                     : OUTCOME_FAILED;
}

static void swap_forget(sched *sc, request *rq)
{
    if (rq->n_swapped) swap_drop(sc->swap, rq->swap_slot, rq->n_swapped);
    rq->n_swapped = 0;
}

/* The last touch of the request; the list is tidied by sweep(). */
static void finish(sched *sc, request *rq, finish_reason why, const err *cause)
{
    leave_seat(sc, rq);
    swap_forget(sc, rq);
    rq->state = STATE_DONE;
    fair_leave(sc->fair, rq->ticket, clock_now_us());
    for (int i = 0; i < sc->n; i++) {
        if (sc->list[i] == rq) sc->list[i] = NULL;
    }
    free(rq->page);
    rq->page = NULL;
    telemetry_adapter_add(sc->tele, rq->adapter_id, 0, -1);
    telemetry_end(sc->tele, rq, outcome_of(why), clock_now_us());
    pthread_mutex_lock(&sc->mu);
    sc->n_inside--;
    if (why == FINISH_CANCELLED)
        sc->stats.n_cancelled++;
    else if (why == FINISH_ERROR)
        sc->stats.n_failed++;
    else
        sc->stats.n_finished++;
    pthread_mutex_unlock(&sc->mu);
    request_finish(rq, why, cause);
}

/* Keeps those who run. */
static void sweep(sched *sc)
{
    int n = 0;
    for (int i = 0; i < sc->n; i++) {
        if (sc->list[i] && sc->list[i]->state == STATE_RUNNING) sc->list[n++] = sc->list[i];
    }
    sc->n = n;
}

/* It waits, so its adapter may come already: in the order of the first tokens that are promised. */
static void expect_adapter(sched *sc, const request *rq)
{
    const lora_source *src = sc->source;
    if (src->want)
        src->want(src->self, rq->adapter_id, rq->ttft_deadline_us);
    else
        src->prefetch(src->self, rq->adapter_id);
}

static void take_inbox(sched *sc)
{
    pthread_mutex_lock(&sc->mu);
    request *rq = sc->inbox_head;
    sc->inbox_head = sc->inbox_tail = NULL;
    pthread_mutex_unlock(&sc->mu);
    while (rq) {
        request *next = rq->next;
        rq->next = NULL;
        rq->state = STATE_WAITING;
        fair_job job = {.who = rq,
                        .tenant = rq->tenant_id,
                        .adapter = rq->adapter_id,
                        .weight = (double)rq->weight,
                        .slo = rq->slo_class,
                        .arrived_us = rq->arrived_us,
                        .deadline_us = rq->ttft_deadline_us,
                        .prompt = rq->n_prompt,
                        .output = rq->max_tokens};
        rq->ticket = fair_enter(sc->fair, &job, clock_now_us());
        telemetry_adapter_add(sc->tele, rq->adapter_id, 0, +1);
        if (rq->adapter_id && sc->source) expect_adapter(sc, rq);
        rq = next;
    }
}

/* S-LoRA's early abort: nothing was computed for it, and it would come too late. */
static bool is_too_late(const sched *sc, const request *rq, int64_t now)
{
    return sc->cfg.classes[rq->slo_class].reject_on_overload && rq->admitted_us == 0 &&
           rq->ttft_deadline_us && now > rq->ttft_deadline_us;
}

static void see_end(sched *sc, request *rq, int64_t now)
{
    err e;
    if (atomic_load(&rq->cancel)) {
        finish(sc, rq, atomic_load(&rq->stopped) ? FINISH_STOP : FINISH_CANCELLED, NULL);
    } else if (rq->expires_us && now > rq->expires_us) {
        (void)err_set(&e, ERR_TIMEOUT, "the request took longer than it may");
        finish(sc, rq, FINISH_ERROR, &e);
    } else if (rq->patience_us && !rq->first_token_us && now > rq->patience_us) {
        (void)err_set(&e, ERR_TIMEOUT, "the client's own deadline passed before the first token");
        finish(sc, rq, FINISH_ERROR, &e);
    } else if (is_too_late(sc, rq, now)) {
        const slo_class *c = &sc->cfg.classes[rq->slo_class];
        (void)err_set(&e, ERR_BUSY,
                      "the class '%s' is overloaded: the first token would come later than its "
                      "target of %lld ms",
                      c->name, (long long)(c->ttft_us / 1000));
        finish(sc, rq, FINISH_ERROR, &e);
    }
}

/* All that run, and of those that wait some in each step. */
static void see_ends(sched *sc, int64_t now)
{
    int tickets[SCAN];
    for (int i = 0; i < sc->n; i++) see_end(sc, sc->list[i], now);
    sweep(sc);
    int n = fair_scan(sc->fair, &sc->scan, SCAN, tickets);
    for (int i = 0; i < n; i++) see_end(sc, fair_who(sc->fair, tickets[i]), now);
}

/* ------------------------------------------------------------------- the plan -- */

static int pages_for(const sched *sc, int positions)
{
    return (positions + sc->page_tokens - 1) / sc->page_tokens;
}

static int rank_of(const request *rq)
{
    return rq->lora ? rq->lora->rank_max : 0;
}

static void describe(sched *sc, int i)
{
    const request *rq = sc->list[i];
    sc->view[i] = (policy_request){
        .running = rq->state == STATE_RUNNING,
        .left = left_of(rq),
        .max_chunk = scores(rq) ? SCHED_SCORE_ROWS : sc->cfg.max_rows,
        .class_rank = sc->cfg.classes[rq->slo_class].rank,
        .arrived_us = rq->arrived_us,
        .deadline_us = rq->first_token_us ? 0 : rq->ttft_deadline_us,
        .context = rq->n_computed,
        .rank = rank_of(rq),
        .due_us = rq->last_token_us ? rq->last_token_us + rq->tpot_target_us : 0,
    };
}

static policy_limits limits_of(const sched *sc)
{
    return (policy_limits){.max_rows = sc->cfg.max_rows,
                           .free_seats = sc->cfg.max_seqs - sc->n_running,
                           .ageing_us = sc->cfg.ageing_us};
}

/* Takes a request out of the step under construction. */
static void unplace(sched *sc, const request *rq)
{
    int n_seq = sc->step.n_seq, s = 0;
    while (s < n_seq && sc->row_owner[s] != rq) s++;
    if (s == n_seq) return;
    sc->rows_left += sc->chunk[s];
    sc->n_logit -= logits_of(rq, sc->chunk[s]);
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
    cost_work again = cost_with_chunk(&none, rq->n_computed, 0, rank_of(rq));
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
    if (!swap_save(sc->swap, rq->page, n, rq->swap_slot)) return 0;
    rq->n_swapped = n;
    pthread_mutex_lock(&sc->mu);
    sc->stats.n_swapped_out++;
    pthread_mutex_unlock(&sc->mu);
    return rq->n_computed;
}

static void preempt(sched *sc, int v)
{
    request *rq = sc->list[v];
    unplace(sc, rq);
    int kept = swap_out(sc, rq);
    leave_seat(sc, rq);
    rq->n_computed = kept;
    fair_back(sc->fair, rq->ticket, clock_now_us());
    rq->n_preempted++;
    sc->view[v].running = false;
    sc->allowed[v] = false; /* not again in this step */
    pthread_mutex_lock(&sc->mu);
    sc->stats.n_preempted++;
    pthread_mutex_unlock(&sc->mu);
}

/* Pages for a running request, claimed: the weakest of all gives way, which may be the request itself. */
static bool make_room(sched *sc, int need, int i, int64_t now)
{
    policy_limits lim = limits_of(sc);
    while (!kv_claim(sc->pages, need, false)) {
        sc->pages_short = true;
        int v = policy_victim(sc->view, sc->n, sc->allowed, -1, &lim, now);
        assert(v >= 0); /* at least i itself */
        preempt(sc, v);
        if (v == i) return false;
    }
    return true;
}

/* A seat and pages, claimed, for a waiting request: only weaker ones give way, and only if that is enough. */
static bool make_place(sched *sc, int need, int i, int64_t now)
{
    policy_limits lim = limits_of(sc);
    int could = kv_available(sc->pages, true), weaker = 0;
    for (int v = 0; v < sc->n; v++) {
        if (!sc->allowed[v] || !sc->view[v].running) continue;
        if (!policy_is_weaker(&sc->view[v], &sc->view[i], &lim, now)) continue;
        could += sc->list[v]->n_page;
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
        preempt(sc, v);
    }
    return true;
}

/* Pages for the next n positions of a running request. */
static bool extend(sched *sc, request *rq, int n)
{
    int want = pages_for(sc, rq->n_computed + n);
    while (rq->n_page < want) {
        int p = kv_take(sc->pages);
        if (p < 0) return false;
        rq->page[rq->n_page++] = p;
    }
    return true;
}

static bool find_adapter(sched *sc, request *rq)
{
    if (rq->adapter_id == 0 || rq->lora) return true;
    err e;
    if (!sc->source) {
        (void)err_set(&e, ERR_NOT_FOUND, "this server has no adapters");
        finish(sc, rq, FINISH_ERROR, &e);
        return false;
    }
    err_code rc = sc->source->acquire(sc->source->self, rq->adapter_id, &rq->lora, &e);
    if (rc == ERR_NONE) return true;
    rq->lora = NULL;
    if (rc == ERR_BUSY) {
        fair_block(sc->fair, rq->ticket, clock_now_us());
        pthread_mutex_lock(&sc->mu);
        sc->stats.n_adapter_waits++;
        pthread_mutex_unlock(&sc->mu);
    } else {
        finish(sc, rq, FINISH_ERROR, &e);
    }
    return false;
}

/* Takes over what the prefix cache has of this history. */
static void reuse_prefix(sched *sc, request *rq, int32_t *scratch)
{
    if (scores(rq)) return; /* every row's logits are wanted */
    kv_domain d;
    domain_of(rq, &d);
    int len = history_len(rq);
    for (int i = 0; i < len; i++) scratch[i] = history_at(rq, i);
    rq->n_page = kv_match(sc->pages, &d, scratch, len, rq->page, rq->page_cap);
    rq->n_computed = rq->n_page * sc->page_tokens;
    if (rq->admitted_us == 0) {
        uint32_t cached = (uint32_t)(rq->n_computed < rq->n_prompt ? rq->n_computed : rq->n_prompt);
        atomic_store(&rq->meter->cached_tokens, cached);
        pthread_mutex_lock(&sc->mu);
        sc->stats.n_cached_tokens += cached;
        sc->stats.n_looked_up_tokens += (uint64_t)rq->n_prompt;
        pthread_mutex_unlock(&sc->mu);
    }
}

static void publish_pages(sched *sc, request *rq, int before)
{
    kv_domain d;
    domain_of(rq, &d);
    int32_t *tokens = sc->pos; /* no step is built or running: its arrays are free */
    for (int p = before / sc->page_tokens; (p + 1) * sc->page_tokens <= rq->n_computed; p++) {
        for (int i = 0; i < sc->page_tokens; i++) {
            tokens[i] = history_at(rq, p * sc->page_tokens + i);
        }
        kv_publish(sc->pages, &d, rq->page, p, tokens);
    }
}

/* What the prefix cache does not have any more comes back from the swap; `kept` positions were saved. */
static void swap_in(sched *sc, request *rq, int kept)
{
    int from = rq->n_computed / sc->page_tokens;
    if (rq->n_computed < kept) {
        swap_load(sc->swap, rq->swap_slot + from, rq->n_swapped - from, rq->page + from);
        rq->n_computed = kept;
        publish_pages(sc, rq, from * sc->page_tokens);
        pthread_mutex_lock(&sc->mu);
        sc->stats.n_swapped_in++;
        pthread_mutex_unlock(&sc->mu);
    }
    swap_forget(sc, rq);
}

/* Beside its own adapter the arena must hold the whole of it, or it would never come to its end. */
static bool could_ever_fit(sched *sc, request *rq)
{
    const lora_source *src = sc->source;
    int adapter = rq->lora && src->chunks ? src->chunks(src->self, rq->lora) : 0;
    int most = pages_for(sc, rq->n_prompt + rq->max_tokens);
    if (adapter == 0 || most <= sc->n_pages - adapter) return true;
    err e;
    (void)err_set(
        &e, ERR_LIMIT,
        "%d prompt tokens and %d output tokens do not fit into the device's memory beside the "
        "adapter",
        rq->n_prompt, rq->max_tokens);
    src->release(src->self, rq->lora);
    rq->lora = NULL;
    finish(sc, rq, FINISH_ERROR, &e);
    return false;
}

/* A seat, and pages for the whole history at once, so that a prefill once begun is finished. */
static bool admit(sched *sc, int i, int64_t now)
{
    request *rq = sc->list[i];
    if (sc->pages_short || atomic_load(&rq->cancel) || is_too_late(sc, rq, now)) return false;
    if (!find_adapter(sc, rq) || !could_ever_fit(sc, rq)) return false;
    int most = rq->n_prompt + rq->max_tokens, len = history_len(rq);
    if (!make_place(sc, pages_for(sc, len < most ? len + 1 : most), i, now)) {
        if (rq->lora) sc->source->release(sc->source->self, rq->lora);
        rq->lora = NULL;
        return false;
    }
    rq->state = STATE_RUNNING;
    sc->view[i].running = true;
    sc->n_running++;
    fair_seat(sc->fair, rq->ticket, now);
    telemetry_adapter_add(sc->tele, rq->adapter_id, +1, -1);
    int kept = rq->n_computed; /* swapped out */
    rq->n_computed = 0;
    reuse_prefix(sc, rq, sc->token);
    bool got = extend(sc, rq, left_of(rq));
    assert(got);
    (void)got;
    (void)kv_claim(sc->pages, 0, false); /* one more was asked for than the prompt takes */
    if (rq->n_swapped) swap_in(sc, rq, kept);
    if (rq->admitted_us == 0) {
        rq->admitted_us = now;
        telemetry_seat(sc->tele, rq);
        if (rq->waiting) atomic_fetch_sub(rq->waiting, 1);
    }
    return true;
}

/* How many of n rows fit into the step's time.  Decode rows always do, and so does the least chunk of
 * the first prompt. */
static int rows_in_budget(const sched *sc, const request *rq, int n)
{
    if (isinf(sc->budget_us) || (n == 1 && left_of(rq) == 1)) return n;
    int fit = cost_chunk(&sc->cost, &sc->load, sc->budget_us, n, rq->n_computed, rank_of(rq));
    int least = sc->load.prefill > 0 ? 0 : n < LEAST_CHUNK ? n : LEAST_CHUNK;
    return fit > least ? fit : least;
}

static void count_work(cost_work *w, const request *rq, int n)
{
    if (n == 1) {
        w->decode++;
        w->attended += rq->n_computed + 1;
        w->ranks += rank_of(rq);
    } else {
        *w = cost_with_chunk(w, n, rq->n_computed, rank_of(rq));
    }
}

/* Adds one request to the step, or leaves it out if time, pages or logits are short. */
static void add_entry(sched *sc, const policy_entry *pe, int64_t now)
{
    int i = pe->request;
    request *rq = sc->list[i];
    if (!rq || !sc->allowed[i]) return;
    if (rq->grammar_late && !grammar_run_ready(rq->grammar)) return;
    if (rows_in_budget(sc, rq, pe->n_rows) == 0) return;
    if (rq->state != STATE_RUNNING && !admit(sc, i, now)) return;
    int left = left_of(rq), n = pe->n_rows < left ? pe->n_rows : left;
    if (n > sc->rows_left) n = sc->rows_left;
    n = rows_in_budget(sc, rq, n);
    if (n == 0) return;
    int logits = logits_of(rq, n);
    if (sc->n_logit + logits > sc->cfg.max_logits) return;
    int need = pages_for(sc, rq->n_computed + n) - rq->n_page;
    if (need > 0 && !make_room(sc, need, i, now)) return;
    bool got = extend(sc, rq, n);
    assert(got);
    (void)got;
    sc->n_logit += logits;
    sc->rows_left -= n;
    count_work(&sc->load, rq, n);
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

/* Requests of one adapter stand together; insertion sort keeps the order otherwise. */
static void sort_by_adapter(sched *sc)
{
    for (int i = 1; i < sc->step.n_seq; i++) {
        for (int j = i; j > 0 && sc->row_owner[j - 1]->adapter_id > sc->row_owner[j]->adapter_id;
             j--) {
            swap_entries(sc, j - 1, j);
        }
    }
}

static void build_rows(sched *sc)
{
    step *st = &sc->step;
    st->n_rows = st->n_seg = st->n_logit = 0;
    for (int s = 0; s < st->n_seq; s++) {
        request *rq = sc->row_owner[s];
        int n = sc->chunk[s], row0 = st->n_rows;
        bool ends = n == left_of(rq);
        sc->seq[s] = (step_seq){row0, n, rq->n_computed, rq->page, rq->n_page};
        sc->logit0[s] = -1;
        for (int i = 0; i < n; i++) {
            sc->token[row0 + i] = history_at(rq, rq->n_computed + i);
            sc->pos[row0 + i] = rq->n_computed + i;
            if (scores(rq) || (ends && i == n - 1)) {
                if (sc->logit0[s] < 0) sc->logit0[s] = st->n_logit;
                sc->logit_row[st->n_logit++] = row0 + i;
            }
        }
        st->n_rows += n;
        bool same = s > 0 && sc->row_owner[s - 1]->adapter_id == rq->adapter_id;
        if (same)
            sc->seg[st->n_seg - 1].n_rows += n;
        else
            sc->seg[st->n_seg++] = (step_seg){row0, n, rq->lora};
    }
}

/* Those who could be seated stand behind those who run. */
static void list_waiting(sched *sc, int64_t now)
{
    int tickets[FAIR_PICKS], want = sc->cfg.max_seqs - sc->n_running + SPARE_PICKS;
    int n = fair_pick(sc->fair, now, want < FAIR_PICKS ? want : FAIR_PICKS, tickets);
    for (int i = 0; i < n; i++) sc->list[sc->n++] = fair_who(sc->fair, tickets[i]);
}

/* What comes next should find its adapter there. */
static void prefetch_waiting(sched *sc)
{
    for (int i = 0; i < sc->n && sc->source; i++) {
        const request *rq = sc->list[i];
        if (rq && rq->state == STATE_WAITING && rq->adapter_id && !rq->lora) {
            sc->source->prefetch(sc->source->self, rq->adapter_id);
        }
    }
}

static void plan_step(sched *sc, int64_t now)
{
    list_waiting(sc, now);
    for (int i = 0; i < sc->n; i++) {
        describe(sc, i);
        sc->allowed[i] = true;
    }
    policy_limits lim = limits_of(sc);
    int n = policy_plan(sc->view, sc->n, &lim, now, sc->plan, sc->order);
    sc->n_logit = sc->step.n_seq = 0;
    sc->load = (cost_work){0};
    sc->budget_us = policy_budget_us(sc->view, sc->plan, n, &sc->cost, now);
    sc->rows_left = sc->cfg.max_rows;
    sc->pages_short = false;
    for (int i = 0; i < n && sc->rows_left > 0; i++) {
        add_entry(sc, &sc->plan[i], now);
    }
    prefetch_waiting(sc);
    sweep(sc);
    sort_by_adapter(sc);
    build_rows(sc);
}

/* -------------------------------------------------------------------- results -- */

/* Log-probabilities of prompt tokens whose predecessor's row was in this chunk. */
static void score_rows(sched *sc, int s, sampler *sp)
{
    request *rq = sc->row_owner[s];
    int n_vocab = model_get_config(sc->m)->n_vocab;
    for (int i = 0; i < sc->chunk[s]; i++) {
        int next = rq->n_computed + i + 1;
        if (next >= rq->n_prompt) break;
        const float *row = sc->logits + (size_t)(sc->logit0[s] + i) * (size_t)n_vocab;
        sampler_score(sp, row, rq->prompt[next], rq->rules.n_top, &rq->prompt_score[next]);
        if (rq->prompt_score[next].token < 0) sc->broken_row[s] = true;
    }
}

static bool wants_token(const request *rq, int n)
{
    return n == left_of(rq) && rq->max_tokens > 0;
}

/* Entries i, i + n_samplers, ...: each sampler serves one thread at a time. */
static void sample_some(void *arg, int i)
{
    sched *sc = arg;
    size_t n_vocab = (size_t)model_get_config(sc->m)->n_vocab;
    for (int s = i; s < sc->step.n_seq; s += sc->n_samplers) {
        request *rq = sc->row_owner[s];
        int n = sc->chunk[s];
        if (scores(rq) && rq->n_computed < rq->n_prompt) score_rows(sc, s, sc->samplers[i]);
        if (!wants_token(rq, n)) continue;
        int last = sc->logit0[s] + (scores(rq) ? n - 1 : 0);
        const uint32_t *allowed = NULL;
        if (rq->grammar) {
            allowed = grammar_run_mask(rq->grammar, sc->walks[i]);
            sc->late[s] = !allowed;
            if (!allowed || grammar_run_failed(rq->grammar)) continue;
        }
        sampler_pick_allowed(sc->samplers[i], (float *)sc->logits + (size_t)last * n_vocab,
                             &rq->rules, allowed, rq->prompt, rq->n_prompt, rq->output,
                             atomic_load_explicit(&rq->n_pushed, memory_order_relaxed),
                             &sc->picked[s]);
        int32_t token = sc->picked[s].token;
        if (token < 0)
            sc->broken_row[s] = true;
        else if (rq->grammar)
            grammar_run_accept(rq->grammar, sc->walks[i], token);
    }
}

static bool is_stop(const request *rq, int32_t token)
{
    for (int i = 0; i < rq->rules.n_stop_id; i++) {
        if (rq->rules.stop_id[i] == token) return true;
    }
    return false;
}

/* Its pages may hold what is not a number: nobody else may be given them. */
static void fail_numbers(sched *sc, request *rq)
{
    err e;
    for (int i = 0; i < rq->n_page; i++) kv_forget(sc->pages, rq->page[i]);
    (void)err_set(&e, ERR_INTERNAL, "numeric error: the model's output is not a number");
    finish(sc, rq, FINISH_ERROR, &e);
}

/* The prediction is corrected by what became of it, within reason. */
static void see_surprise(sched *sc, const request *rq, int64_t now)
{
    if (rq->expected_us <= 0) return;
    pthread_mutex_lock(&sc->mu);
    promise_learn(&sc->surprise[rq->slo_class], rq->expected_us, (double)(now - rq->arrived_us));
    pthread_mutex_unlock(&sc->mu);
}

static void hand_out(sched *sc, request *rq, const sampled *t, int64_t now)
{
    int64_t before = rq->last_token_us;
    if (rq->first_token_us == 0) {
        rq->first_token_us = now;
        see_surprise(sc, rq, now);
        atomic_store(&rq->meter->first_token_ms, (uint32_t)((now - rq->arrived_us) / 1000));
    }
    rq->last_token_us = now;
    telemetry_token(sc->tele, rq, before);
    atomic_fetch_add(&rq->meter->output_tokens, 1);
    sc->n_output_tokens++;
    fair_charge(sc->fair, rq->ticket, 0, 1);
    int n = atomic_load_explicit(&rq->n_pushed, memory_order_relaxed) + 1;
    int32_t token = t->token;
    request_push(rq, t);
    if (is_stop(rq, token) || (rq->grammar && grammar_run_over(rq->grammar)))
        finish(sc, rq, FINISH_STOP, NULL);
    else if (n >= rq->max_tokens)
        finish(sc, rq, FINISH_LENGTH, NULL);
}

/* The text so far allows more than can be told apart within bounds. */
static void fail_grammar(sched *sc, request *rq)
{
    err e;
    (void)err_set(&e, ERR_INPUT, "the grammar of this request is too ambiguous to go on with");
    finish(sc, rq, FINISH_ERROR, &e);
}

static void settle_entry(sched *sc, int s, int64_t now)
{
    request *rq = sc->row_owner[s];
    int n = sc->chunk[s], before = rq->n_computed;
    bool ends = n == left_of(rq);
    rq->grammar_late = sc->late[s];
    if (sc->late[s]) { /* its last row is computed again once the mask is there */
        n--;
        ends = false;
    }
    if (sc->broken_row[s]) {
        fail_numbers(sc, rq);
        return;
    }
    rq->n_computed += n;
    publish_pages(sc, rq, before);
    int done = rq->n_computed < rq->n_prompt ? rq->n_computed : rq->n_prompt;
    int metered = (int)atomic_load(&rq->meter->prompt_tokens);
    if (done > metered) { /* what is recomputed after a pre-emption costs the tenant nothing */
        atomic_store(&rq->meter->prompt_tokens, (uint32_t)done);
        sc->n_prompt_tokens += (uint64_t)(done - metered);
        fair_charge(sc->fair, rq->ticket, done - (metered > before ? metered : before), 0);
    }
    if (!ends) return;
    if (rq->max_tokens == 0)
        finish(sc, rq, FINISH_LENGTH, NULL);
    else if (rq->grammar && grammar_run_failed(rq->grammar))
        fail_grammar(sc, rq);
    else
        hand_out(sc, rq, &sc->picked[s], now);
}

/* Where an iteration's time went: `seen` its begin, then the ends of planning, forward pass, sampling. */
typedef struct {
    int64_t seen, planned, computed, sampled;
} step_times;

static void count_step(sched *sc, const step_times *when)
{
    int64_t took_us = when->sampled - when->planned;
    kv_counts kc;
    kv_count(sc->pages, &kc);
    const step *st = &sc->step;
    int adapters = 0, decode = 0;
    for (int i = 0; i < st->n_seg; i++) adapters += st->seg[i].lora != NULL;
    for (int i = 0; i < st->n_seq; i++) {
        decode += st->seq[i].n_rows == 1 && st->seq[i].pos0 >= sc->row_owner[i]->n_prompt;
    }
    telemetry_step(sc->tele, st->n_rows);
    pthread_mutex_lock(&sc->mu);
    sched_stats *t = &sc->stats;
    t->n_steps++;
    t->n_rows += (uint64_t)st->n_rows;
    t->n_decode_tokens += (uint64_t)decode;
    t->n_prefill_tokens += (uint64_t)(st->n_rows - decode);
    t->last_rows = st->n_rows;
    t->last_segments = st->n_seg;
    t->last_adapters = adapters;
    t->last_prefill = st->n_rows - decode;
    t->last_seqs = st->n_seq;
    t->last_step_us = took_us;
    t->busy_us += took_us;
    t->plan_us += when->planned - when->seen;
    t->forward_us += when->computed - when->planned;
    t->sample_us += when->sampled - when->computed;
    t->cost_error = sc->cost.error;
    pthread_mutex_unlock(&sc->mu);
}

static void finish_all(sched *sc, finish_reason why, const err *cause)
{
    int tickets[SCAN];
    for (int i = 0; i < sc->n; i++) {
        if (sc->list[i]) finish(sc, sc->list[i], why, cause);
    }
    sweep(sc);
    while (fair_waiting(sc->fair) > 0) {
        int n = fair_scan(sc->fair, &sc->scan, SCAN, tickets);
        for (int i = 0; i < n; i++) finish(sc, fair_who(sc->fair, tickets[i]), why, cause);
    }
}

static void fail_all(sched *sc, const err *e)
{
    log_error("engine", "the device failed: %s", e->msg);
    pthread_mutex_lock(&sc->mu);
    sc->broken = true;
    pthread_mutex_unlock(&sc->mu);
    take_inbox(sc);
    finish_all(sc, FINISH_ERROR, e);
}

/* What was placed may have been taken out again by a pre-emption: the work is counted anew. */
static void learn(sched *sc, int64_t took_us)
{
    cost_work w = {0};
    for (int s = 0; s < sc->step.n_seq; s++) count_work(&w, sc->row_owner[s], sc->chunk[s]);
    cost_observe(&sc->cost, &w, (double)took_us);
}

static void run_step(sched *sc, int64_t seen_us)
{
    err e;
    step_times when = {.seen = seen_us, .planned = clock_now_us()};
    if (model_forward(sc->m, sc->kv, &sc->step, &sc->logits, &e)) {
        fail_all(sc, &e);
        return;
    }
    when.computed = clock_now_us();
    memset(sc->broken_row, 0, (size_t)sc->step.n_seq * sizeof(*sc->broken_row));
    memset(sc->late, 0, (size_t)sc->step.n_seq * sizeof(*sc->late));
    if (sc->step.n_logit > 0) be_parallel(sc->be, sample_some, sc, sc->n_samplers);
    int64_t now = when.sampled = clock_now_us();
    learn(sc, now - when.planned);
    count_step(sc, &when);
    for (int s = 0; s < sc->step.n_seq; s++) settle_entry(sc, s, now);
    sweep(sc);
    sc->settle_us = clock_now_us() - now;
}

/* -------------------------------------------------------------------- thread -- */

/* mu is held.  Until the engine has looked at it, the next in line must know of it. */
static void expect_one(sched *sc, const request *rq)
{
    promise_ask ask = {rq->tenant_id, rq->slo_class, rq->n_prompt};
    promise_add(&sc->outlook, &ask, rq->max_tokens);
}

/* Microseconds of the prompt work that a request has before its first token. */
static double prompt_us(const sched *sc, const request *rq)
{
    const cost_work none = {0};
    cost_work w = cost_with_chunk(&none, left_of(rq), rq->n_computed, rank_of(rq));
    return cost_predict(&sc->cost, &w) - cost_predict(&sc->cost, &none);
}

static board_row row_of(const request *rq)
{
    return (board_row){.id = rq->id,
                       .tenant_id = rq->tenant_id,
                       .adapter_id = rq->adapter_id,
                       .slo_class = rq->slo_class,
                       .running = rq->state == STATE_RUNNING,
                       .n_prompt = rq->n_prompt,
                       .n_computed = rq->n_computed,
                       .n_output = atomic_load_explicit(&rq->n_pushed, memory_order_relaxed),
                       .max_tokens = rq->max_tokens,
                       .n_preempted = rq->n_preempted,
                       .rank = rank_of(rq),
                       .arrived_us = rq->arrived_us,
                       .admitted_us = rq->admitted_us,
                       .first_token_us = rq->first_token_us,
                       .last_token_us = rq->last_token_us,
                       .ttft_deadline_us = rq->ttft_deadline_us,
                       .tpot_target_us = rq->tpot_target_us};
}

/* Somebody has asked what is in the queue. */
static void show(sched *sc)
{
    board_row *row;
    board_share *share;
    int n_row = 0, n_share = 0;
    if (!board_open(sc->board, &row, &share)) return;
    for (int i = 0; i < sc->n; i++) row[n_row++] = row_of(sc->list[i]);
    for (int cursor = 0, tickets[SCAN]; cursor < sc->cap;) {
        int left = sc->cap - cursor;
        int n = fair_scan(sc->fair, &cursor, left < SCAN ? left : SCAN, tickets);
        for (int i = 0; i < n; i++) row[n_row++] = row_of(fair_who(sc->fair, tickets[i]));
    }
    for (; n_share < FAIR_TENANTS; n_share++) {
        board_share *s = &share[n_share];
        if (!fair_tenant(sc->fair, n_share, &s->tenant_id, &s->served, &s->active)) break;
    }
    board_close(sc->board, n_row, n_share, clock_now_us());
}

static void publish_counts(sched *sc)
{
    kv_counts kc;
    kv_count(sc->pages, &kc);
    const cost_work decode = {.decode = sc->n_running > 0 ? sc->n_running : 1};
    double step_us = cost_predict(&sc->cost, &decode), begun_us = 0;
    double row_us = sc->cost.n < COST_LEARNING ? 0 : sc->cost.theta[1] / 64;
    int seats = sc->pages_short && sc->n_running > 0 ? sc->n_running : sc->cfg.max_seqs;
    fair_set_prices(sc->fair, row_us, step_us / seats, step_us);
    for (int i = 0; i < sc->n; i++) {
        if (!sc->list[i]->first_token_us) begun_us += prompt_us(sc, sc->list[i]);
    }
    if (board_wanted(sc->board)) show(sc);
    int64_t now = clock_now_us();
    pthread_mutex_lock(&sc->mu);
    fair_publish(sc->fair, &sc->outlook, now);
    sc->outlook.running_us = begun_us;
    sc->outlook.free_seats = seats - sc->n_running;
    for (const request *rq = sc->inbox_head; rq; rq = rq->next) expect_one(sc, rq);
    sc->stats.settle_us += sc->settle_us;
    sc->settle_us = 0;
    sc->stats.n_running = sc->n_running;
    sc->stats.n_waiting = sc->n_inside - sc->n_running;
    sc->stats.n_pages = kc.n_pages;
    sc->stats.n_pages_used = kc.n_held;
    sc->stats.n_pages_cached = kc.n_cached;
    swap_count(sc->swap, &sc->stats.swap);
    sc->stats.n_prompt_tokens = sc->n_prompt_tokens;
    sc->stats.n_output_tokens = sc->n_output_tokens;
    pthread_mutex_unlock(&sc->mu);
    devmem_page_cost(sc->arena, row_us * sc->page_tokens);
}

/* Sleeps until there is a reason to look again; false: stop. */
static bool wait_for_work(sched *sc, bool idle)
{
    pthread_mutex_lock(&sc->mu);
    while (!sc->inbox_head && !sc->stop && idle) {
        struct timespec end;
        (void)clock_gettime(CLOCK_MONOTONIC, &end);
        /* With requests that could not run (an adapter, pages or a mask on its way) look again soon. */
        end.tv_nsec += sc->n_inside > 0 ? 1000000L : IDLE_WAIT_MS * 1000000L;
        if (end.tv_nsec >= 1000000000L) {
            end.tv_nsec -= 1000000000L;
            end.tv_sec++;
        }
        (void)pthread_cond_timedwait(&sc->work, &sc->mu, &end);
        atomic_store(&sc->heartbeat_us, clock_now_us());
        if (sc->n_inside > 0 || board_wanted(sc->board)) break;
    }
    bool go = !sc->stop;
    pthread_mutex_unlock(&sc->mu);
    return go;
}

static void *engine_thread(void *arg)
{
    sched *sc = arg;
    (void)pthread_setname_np(pthread_self(), "engine");
    bool idle = true;
    while (wait_for_work(sc, idle)) {
        int64_t now = clock_now_us();
        atomic_store(&sc->heartbeat_us, now);
        take_inbox(sc);
        see_ends(sc, now);
        plan_step(sc, now);
        idle = sc->step.n_seq == 0;
        if (!idle) run_step(sc, now);
        publish_counts(sc);
    }
    take_inbox(sc);
    finish_all(sc, FINISH_CANCELLED, NULL);
    return NULL;
}

/* ------------------------------------------------------------------- lifetime -- */

static void free_all(sched *sc)
{
    for (int i = 0; i < SAMPLERS_MAX; i++) {
        sampler_destroy(sc->samplers[i]);
        grammar_walk_destroy(sc->walks[i]);
    }
    free(sc->list);
    free(sc->view);
    free(sc->plan);
    free(sc->order);
    free(sc->allowed);
    free(sc->token);
    free(sc->pos);
    free(sc->logit_row);
    free(sc->seq);
    free(sc->seg);
    free((void *)sc->row_owner);
    free(sc->chunk);
    free(sc->picked);
    free(sc->logit0);
    free(sc->broken_row);
    free(sc->late);
    kv_destroy(sc->pages);
    devmem_destroy(sc->own_arena);
    board_destroy(sc->board);
    telemetry_destroy(sc->tele);
    swap_destroy(sc->swap);
    fair_destroy(sc->fair);
    if (sc->kv) be_kv_destroy(sc->be, sc->kv);
    pthread_cond_destroy(&sc->work);
    pthread_mutex_destroy(&sc->mu);
    free(sc);
}

static bool allocate(sched *sc)
{
    const sched_config *c = &sc->cfg;
    size_t seqs = (size_t)c->max_seqs, cap = seqs + FAIR_PICKS;
    size_t rows = (size_t)c->max_rows, context = (size_t)sc->max_context;
    size_t tokens = rows > context ? rows : context; /* the arrays serve as scratch too */
    if (tokens < (size_t)sc->page_tokens) tokens = (size_t)sc->page_tokens;
    sc->list = calloc(cap, sizeof(*sc->list));
    sc->view = calloc(cap, sizeof(*sc->view));
    sc->plan = calloc(cap, sizeof(*sc->plan));
    sc->order = calloc(cap, sizeof(*sc->order));
    sc->allowed = calloc(cap, sizeof(*sc->allowed));
    sc->token = calloc(tokens, sizeof(*sc->token));
    sc->pos = calloc(tokens, sizeof(*sc->pos));
    sc->logit_row = calloc((size_t)c->max_logits, sizeof(*sc->logit_row));
    sc->seq = calloc(seqs, sizeof(*sc->seq));
    sc->seg = calloc(seqs, sizeof(*sc->seg));
    sc->row_owner = calloc(seqs, sizeof(*sc->row_owner));
    sc->chunk = calloc(seqs, sizeof(*sc->chunk));
    sc->picked = calloc(seqs, sizeof(*sc->picked));
    sc->logit0 = calloc(seqs, sizeof(*sc->logit0));
    sc->broken_row = calloc(seqs, sizeof(*sc->broken_row));
    sc->late = calloc(seqs, sizeof(*sc->late));
    sc->pages = kv_create(sc->arena, sc->page_tokens, c->prefix_cache);
    sc->board = board_create(sc->cap, FAIR_TENANTS);
    sc->tele = telemetry_create(c->n_class, c->max_tenants, sc->cap);
    fair_config fc = {.n_class = c->n_class, .cap = sc->cap, .ageing_us = c->ageing_us};
    for (int i = 0; i < c->n_class; i++) {
        const slo_class *k = &c->classes[i];
        fc.classes[i] = (fair_class){k->rank, (double)k->weight, k->ttft_us};
    }
    sc->fair = fair_create(&fc);
    sc->step.token = sc->token;
    sc->step.pos = sc->pos;
    sc->step.logit_row = sc->logit_row;
    sc->step.seq = sc->seq;
    sc->step.seg = sc->seg;
    int want = c->max_seqs < SAMPLERS_MAX ? c->max_seqs : SAMPLERS_MAX;
    for (; sc->n_samplers < want; sc->n_samplers++) {
        sc->samplers[sc->n_samplers] = sampler_create(model_get_config(sc->m)->n_vocab);
        sc->walks[sc->n_samplers] = grammar_walk_create();
        if (!sc->samplers[sc->n_samplers] || !sc->walks[sc->n_samplers]) return false;
    }
    return sc->list && sc->view && sc->plan && sc->order && sc->allowed && sc->token && sc->pos &&
           sc->logit_row && sc->seq && sc->seg && sc->row_owner && sc->chunk && sc->picked &&
           sc->logit0 && sc->broken_row && sc->late && sc->pages && sc->fair && sc->board &&
           sc->tele;
}

static err_code check_config(const sched_config *c, err *e)
{
    if (c->max_rows < 1) return err_set(e, ERR_INPUT, "max_rows must be at least 1");
    if (c->max_seqs < 1 || c->max_seqs > c->max_rows) {
        return err_set(e, ERR_INPUT, "max_seqs must be from 1 to max_rows (%d)", c->max_rows);
    }
    if (c->max_logits < c->max_seqs + SCHED_SCORE_ROWS) {
        return err_set(e, ERR_INPUT, "max_logits must be at least %d",
                       c->max_seqs + SCHED_SCORE_ROWS);
    }
    if (c->max_queued < 1) return err_set(e, ERR_INPUT, "max_queued must be at least 1");
    if (c->max_tenants < 0) return err_set(e, ERR_INPUT, "max_tenants must not be negative");
    if (c->max_context < 2) return err_set(e, ERR_INPUT, "max_context must be at least 2");
    if (c->n_class < 1 || c->n_class > SLO_CLASS_MAX) {
        return err_set(e, ERR_INPUT, "there must be 1 to %d classes", SLO_CLASS_MAX);
    }
    return ERR_NONE;
}

/* The pool that pages live in: the arena that was lent, or a pool and an arena of its own. */
static err_code open_pages(sched *sc, const attn_shape *shape, size_t page_bytes, err *e)
{
    sc->arena = sc->cfg.arena;
    if (sc->arena) {
        return be_kv_attach(sc->be, &sc->kv, shape, sc->n_pages, devmem_memory(sc->arena),
                            devmem_chunk_bytes(sc->arena), e);
    }
    err_code rc = devmem_create(&sc->own_arena, NULL, sc->n_pages, page_bytes, 0, e);
    sc->arena = sc->own_arena;
    return rc ? rc : be_kv_create(sc->be, &sc->kv, shape, sc->n_pages, e);
}

err_code sched_create(sched **out, const sched_config *cfg, model *m, backend *be,
                      const lora_source *source, err *e)
{
    *out = NULL;
    err_code rc = check_config(cfg, e);
    if (rc) return rc;
    attn_shape shape = model_attn_shape(m);
    int page_tokens = be_caps(be)->page_tokens;
    size_t page_bytes = be_kv_page_bytes(be, &shape);
    size_t n_pages = cfg->arena ? (size_t)devmem_n_chunks(cfg->arena) : cfg->kv_bytes / page_bytes;
    if (n_pages > INT32_MAX) n_pages = INT32_MAX;
    if (n_pages < 1) {
        return err_set(e, ERR_LIMIT, "a KV budget of %zu bytes holds no page of %zu bytes",
                       cfg->kv_bytes, page_bytes);
    }
    sched *sc = calloc(1, sizeof(*sc));
    if (!sc) return err_set(e, ERR_NOMEM, "no memory for the scheduler");
    sc->cfg = *cfg;
    if (sc->cfg.ageing_us <= 0) sc->cfg.ageing_us = DEFAULT_AGEING_US;
    sc->m = m;
    sc->be = be;
    sc->source = source;
    sc->page_tokens = page_tokens;
    sc->n_pages = (int)n_pages;
    sc->cap = cfg->max_queued + cfg->max_seqs;
    int64_t most = (int64_t)n_pages * page_tokens;
    int limit = model_get_config(m)->max_pos < cfg->max_context ? model_get_config(m)->max_pos
                                                                : cfg->max_context;
    sc->max_context = most < limit ? (int)most : limit;
    cost_init(&sc->cost);
    for (int i = 0; i < SLO_CLASS_MAX; i++) sc->surprise[i] = 1;
    sc->stats.healthy = true;
    sc->stats.n_pages = sc->n_pages;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&sc->mu, NULL);
    pthread_cond_init(&sc->work, &attr);
    (void)pthread_condattr_destroy(&attr);
    atomic_store(&sc->heartbeat_us, clock_now_us());
    rc = open_pages(sc, &shape, page_bytes, e);
    if (!rc && cfg->preemption != PREEMPT_RECOMPUTE) {
        rc = swap_create(&sc->swap, be, sc->kv, page_bytes, cfg->swap_bytes, e);
    }
    if (!rc && !allocate(sc)) rc = err_set(e, ERR_NOMEM, "no memory for the scheduler");
    if (!rc && pthread_create(&sc->thread, NULL, engine_thread, sc) != 0) {
        rc = err_set(e, ERR_LIMIT, "the engine thread could not be started");
    }
    if (rc) {
        free_all(sc);
        return rc;
    }
    *out = sc;
    return ERR_NONE;
}

void sched_destroy(sched *sc)
{
    if (!sc) return;
    pthread_mutex_lock(&sc->mu);
    sc->stop = sc->draining = true;
    pthread_cond_signal(&sc->work);
    pthread_mutex_unlock(&sc->mu);
    (void)pthread_join(sc->thread, NULL);
    free_all(sc);
}

/* ------------------------------------------------------------------------ API -- */

/* The last guard before ids become indexes: nothing from outside is believed. */
static err_code check_request(const sched *sc, const request *rq, err *e)
{
    int n_vocab = model_get_config(sc->m)->n_vocab;
    const sampling *r = &rq->rules;
    for (int i = 0; i < rq->n_prompt; i++) {
        if (rq->prompt[i] < 0 || rq->prompt[i] >= n_vocab) {
            return err_set(e, ERR_INPUT, "token id %d is not in the vocabulary of %d",
                           (int)rq->prompt[i], n_vocab);
        }
    }
    for (int i = 0; i < r->n_bias; i++) {
        if (r->bias[i].token < 0 || r->bias[i].token >= n_vocab || !isfinite(r->bias[i].bias)) {
            return err_set(e, ERR_INPUT, "logit_bias: token id %d is not in the vocabulary of %d",
                           (int)r->bias[i].token, n_vocab);
        }
    }
    if (!(rq->weight > 0) || !isfinite(rq->weight)) {
        return err_set(e, ERR_INPUT, "a weight must be positive");
    }
    if (!(r->temperature >= 0) || !(r->top_p > 0) || !(r->min_p >= 0) || !(r->min_p <= 1) ||
        !(r->repetition_penalty > 0) || !isfinite(r->presence_penalty) ||
        !isfinite(r->frequency_penalty) || r->n_top > SAMPLE_TOP_MAX) {
        return err_set(e, ERR_INPUT, "a sampling parameter is out of range");
    }
    return ERR_NONE;
}

/* mu is held. */
static double predict_ttft(const sched *sc, const promise_ask *ask)
{
    return sc->surprise[ask->slo] * promise_ttft_us(&sc->outlook, ask);
}

int64_t sched_predict_ttft_us(sched *sc, uint64_t tenant, int class, int n_prompt)
{
    if (class < 0 || class >= sc->cfg.n_class) return 0;
    promise_ask ask = {.tenant = tenant, .slo = class, .n_prompt = n_prompt};
    pthread_mutex_lock(&sc->mu);
    double us = predict_ttft(sc, &ask);
    pthread_mutex_unlock(&sc->mu);
    return us < 1e15 ? (int64_t)us : INT64_MAX;
}

/* S-LoRA's early abort: what would come too late is refused while that is cheap.  mu is held. */
static err_code check_promise(const sched *sc, const request *rq, err *e)
{
    const slo_class *c = &sc->cfg.classes[rq->slo_class];
    if (!c->reject_on_overload || !promise_is_hopeless(rq->expected_us, c->ttft_us))
        return ERR_NONE;
    return err_set(
        e, ERR_BUSY,
        "the class '%s' is overloaded: the first token would take about %.0f ms, and its "
        "target is %lld ms",
        c->name, rq->expected_us / 1000, (long long)(c->ttft_us / 1000));
}

err_code sched_submit(sched *sc, request *rq, err *e)
{
    if (rq->n_prompt < 1) return err_set(e, ERR_INPUT, "the prompt has no tokens");
    if (rq->slo_class < 0 || rq->slo_class >= sc->cfg.n_class) {
        return err_set(e, ERR_INPUT, "unknown class %d", rq->slo_class);
    }
    if (rq->max_tokens < 0 || (rq->max_tokens == 0 && !rq->score_prompt) ||
        rq->n_prompt > sc->max_context || rq->max_tokens > sc->max_context - rq->n_prompt) {
        return err_set(e, ERR_INPUT,
                       "%d prompt tokens and %d output tokens exceed the context of %d",
                       rq->n_prompt, rq->max_tokens, sc->max_context);
    }
    err_code rc = check_request(sc, rq, e);
    if (rc) return rc;
    if (!rq->page) {
        rq->page_cap = pages_for(sc, rq->n_prompt + rq->max_tokens + 1);
        rq->page = calloc(2 * (size_t)rq->page_cap, sizeof(*rq->page));
        if (!rq->page) return err_set(e, ERR_NOMEM, "no memory for a block table");
        rq->swap_slot = rq->page + rq->page_cap;
    }
    telemetry_enter(sc->tele, rq);
    pthread_mutex_lock(&sc->mu);
    if (sc->broken)
        rc = err_set(e, ERR_DEVICE, "the device has failed");
    else if (sc->draining)
        rc = err_set(e, ERR_BUSY, "the server is shutting down");
    else if (sc->n_inside >= sc->cap) {
        rc = err_set(e, ERR_BUSY, "the queue is full (%d requests)", sc->n_inside);
    } else {
        promise_ask ask = {rq->tenant_id, rq->slo_class, rq->n_prompt};
        rq->expected_us = predict_ttft(sc, &ask);
        rc = check_promise(sc, rq, e);
    }
    if (!rc) {
        expect_one(sc, rq);
        sc->n_inside++;
        rq->next = NULL;
        if (sc->inbox_tail)
            sc->inbox_tail->next = rq;
        else
            sc->inbox_head = rq;
        sc->inbox_tail = rq;
        pthread_cond_signal(&sc->work);
    }
    pthread_mutex_unlock(&sc->mu);
    if (rc) {
        telemetry_refuse(sc->tele, rq->slo_class, rq->tenant_id,
                         rc == ERR_BUSY ? OUTCOME_REFUSED : OUTCOME_FAILED);
        free(rq->page);
        rq->page = NULL;
    }
    return rc;
}

bool sched_drain(sched *sc, int64_t timeout_us)
{
    int64_t end = clock_now_us() + timeout_us;
    for (;;) {
        pthread_mutex_lock(&sc->mu);
        sc->draining = true;
        bool empty = sc->n_inside == 0;
        pthread_mutex_unlock(&sc->mu);
        if (empty) return true;
        if (clock_now_us() >= end) return false;
        struct timespec ten_ms = {0, 10 * 1000000L};
        (void)nanosleep(&ten_ms, NULL);
    }
}

void sched_stats_get(sched *sc, sched_stats *out)
{
    pthread_mutex_lock(&sc->mu);
    *out = sc->stats;
    out->healthy = !sc->broken;
    pthread_mutex_unlock(&sc->mu);
}

board *sched_board(sched *sc)
{
    return sc->board;
}

telemetry *sched_telemetry(const sched *sc)
{
    return sc->tele;
}

int sched_page_tokens(const sched *sc)
{
    return sc->page_tokens;
}

int sched_max_context(const sched *sc)
{
    return sc->max_context;
}

int64_t sched_heartbeat_us(const sched *sc)
{
    return atomic_load(&((sched *)sc)->heartbeat_us);
}
