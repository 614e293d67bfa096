/* sched.c -- the engine thread, and its doors for others.
 *
 * One iteration: take what the inbox holds, drop what was cancelled, plan the step (sched_plan.c),
 * run it (sched_sample.c) and settle what came of it (sched_settle.c), publish counts.  A request's
 * history is its prompt followed by its output; `n_computed` positions of it have KV.  The draws go
 * on where they were after a pre-emption, so the tokens are the same.
 *
 * Everything the loop needs is allocated in sched_create().
 */
#include "engine/sched/sched.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/lock.h"
#include "engine/sched/sched_inside.h"

enum {
    IDLE_WAIT_MS = 100,
    DEFAULT_AGEING_US = 10 * 1000000,
    DEFAULT_RESTART_WAIT_US = 500000,
    DEFAULT_FAULTS_MAX = 5,
    SKETCHES = 4096, /* of answers' lengths: tenants and adapters, by octave of max_tokens */
};

/* -------------------------------------------------------------- what comes in -- */

/* It waits, so its adapter may come already, in the order of the first tokens that are promised;
 * far back in the queue it waits until it is nearer (prefetch_waiting()). */
static void expect_adapter(sched *sc, const request *rq)
{
    const lora_source *src = sc->source;
    if (sc->depth > 0 && fair_waiting(sc->fair) > sc->depth) return;
    if (src->want) src->want(src->self, rq->adapter_id, rq->ttft_deadline_us);
}

static void describe_classes(const sched_config *c, fair_class out[SLO_CLASS_MAX])
{
    for (int i = 0; i < c->n_class; i++) {
        const slo_class *k = &c->classes[i];
        out[i] = (fair_class){k->rank, (double)k->weight, k->ttft_us};
    }
}

/* mu is held.  Only we write them, so we read them without. */
static void take_classes(sched *sc)
{
    fair_class classes[SLO_CLASS_MAX];
    lock_assert_held(&sc->mu);
    sc->adjusted = false;
    memcpy(sc->cfg.classes, sc->wanted, sizeof(sc->wanted));
    describe_classes(&sc->cfg, classes);
    fair_set_classes(sc->fair, classes);
}

void sched_take_inbox(sched *sc)
{
    lock_take(&sc->mu);
    if (sc->adjusted) take_classes(sc);
    request *rq = sc->inbox_head;
    sc->inbox_head = sc->inbox_tail = NULL;
    lock_release(&sc->mu);
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
                        .output = rq->length.mean};
        int64_t now = clock_now_us();
        rq->ticket = fair_enter(sc->fair, &job, now);
        cause_enter(&rq->clock, &sc->sums, now, rq->adapter_id != 0);
        telemetry_adapter_add(sc->tele, rq->adapter_id, 0, +1);
        if (rq->adapter_id && sc->source) expect_adapter(sc, rq);
        rq = next;
    }
}

void sched_see_end(sched *sc, request *rq, int64_t now)
{
    err e;
    if (atomic_load(&rq->cancel)) {
        sched_finish(sc, rq, atomic_load(&rq->stopped) ? FINISH_STOP : FINISH_CANCELLED, NULL);
    } else if (atomic_load(&rq->leave)) {
        sched_finish(sc, rq, FINISH_LEFT, NULL);
    } else if (rq->expires_us && now > rq->expires_us) {
        (void)err_set(&e, ERR_TIMEOUT, "the request took longer than it may");
        sched_finish(sc, rq, FINISH_ERROR, &e);
    } else if (rq->patience_us && !rq->first_token_us && now > rq->patience_us) {
        (void)err_set(&e, ERR_TIMEOUT, "the client's own deadline passed before the first token");
        sched_finish(sc, rq, FINISH_ERROR, &e);
    } else if (is_too_late(sc, rq, now)) {
        const slo_class *c = &sc->cfg.classes[rq->slo_class];
        (void)err_set(&e, ERR_BUSY,
                      "the class '%s' is overloaded: the first token would come later than its "
                      "target of %lld ms",
                      c->name, (long long)(ttft_target_us(sc, rq) / 1000));
        sched_finish(sc, rq, FINISH_ERROR, &e);
    }
}

/* All that run, and of those that wait some in each step. */
void sched_see_ends(sched *sc, int64_t now)
{
    int tickets[SCAN];
    for (int i = 0; i < sc->n; i++) sched_see_end(sc, sc->list[i], now);
    sched_sweep(sc);
    int n = fair_scan(sc->fair, &sc->scan, SCAN, tickets);
    for (int i = 0; i < n; i++) sched_see_end(sc, fair_who(sc->fair, tickets[i]), now);
}

/* -------------------------------------------------------------------- thread -- */

/* mu is held.  Until the engine has looked at it, the next in line must know of it. */
static void expect_one(sched *sc, const request *rq)
{
    lock_assert_held(&sc->mu);
    promise_ask ask = {rq->tenant_id, rq->slo_class, rq->n_prompt, rq->length.mean, 0};
    promise_add(&sc->outlook, &ask);
}

/* Microseconds of the prompt work that a request has before its first token. */
static double prompt_us(const sched *sc, const request *rq)
{
    const cost_work none = {0};
    cost_work w =
        cost_with_chunk(&none, left_of(rq), seen_of(sc, rq->n_computed), rank_of(rq, left_of(rq)));
    return cost_predict(&sc->cost, &w) - cost_predict(&sc->cost, &none);
}

static board_row row_of(const sched *sc, const request *rq, int64_t now, const int64_t loads_us[2])
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
                       .rank = rank_of(rq, left_of(rq)),
                       .arrived_us = rq->arrived_us,
                       .admitted_us = rq->admitted_us,
                       .first_token_us = rq->first_token_us,
                       .last_token_us = rq->last_token_us,
                       .ttft_deadline_us = rq->ttft_deadline_us,
                       .tpot_target_us = rq->tpot_target_us,
                       .overdue = sched_cause_overdue(sc, rq, now, loads_us)};
}

/* Somebody has asked what is in the queue. */
static void show(sched *sc)
{
    board_row *row;
    board_share *share;
    int n_row = 0, n_share = 0;
    int64_t now = clock_now_us(), loads_us[2];
    sched_cause_loads(sc, loads_us); /* takes a lock, so before the board's */
    if (!board_open(sc->board, &row, &share)) return;
    for (int i = 0; i < sc->n; i++) row[n_row++] = row_of(sc, sc->list[i], now, loads_us);
    for (int cursor = 0, tickets[SCAN]; cursor < sc->cap;) {
        int left = sc->cap - cursor;
        int n = fair_scan(sc->fair, &cursor, left < SCAN ? left : SCAN, tickets);
        for (int i = 0; i < n; i++)
            row[n_row++] = row_of(sc, fair_who(sc->fair, tickets[i]), now, loads_us);
    }
    for (; n_share < FAIR_TENANTS; n_share++) {
        board_share *s = &share[n_share];
        if (!fair_tenant(sc->fair, n_share, &s->tenant_id, &s->served, &s->active)) break;
    }
    board_close(sc->board, n_row, n_share, now);
}

static void publish_counts(sched *sc)
{
    kv_counts kc;
    kv_count(sc->pages, &kc);
    bool full = (sc->pages_short || sc->pace_short) && sc->n_running > 0;
    int rows = sc->n_running > sc->n_out ? sc->n_running - sc->n_out : 1;
    const cost_work decode = {.decode = rows};
    double step_us = cost_predict(&sc->cost, &decode), begun_us[PROMISE_CLASSES] = {0};
    double row_us = sc->cost.n < COST_LEARNING ? 0 : sc->cost.theta[1] / 64;
    int seats = full ? sc->n_running : sc->cfg.max_seqs, company = sc->n_out > 0 ? rows : seats;
    const cost_work most = {.decode = company};
    fair_set_prices(sc->fair, row_us, cost_predict(&sc->cost, &most) / company, step_us);
    for (int i = 0; i < sc->n; i++) {
        const request *rq = sc->list[i];
        if (!rq->first_token_us) begun_us[rq->slo_class] += prompt_us(sc, rq);
    }
    if (board_wanted(sc->board)) show(sc);
    int64_t now = clock_now_us();
    lock_take(&sc->mu);
    fair_publish(sc->fair, &sc->outlook, now);
    memcpy(sc->outlook.begun_us, begun_us, sizeof(begun_us));
    sc->outlook.crowded = sc->crowded || sc->rows_short;
    sc->outlook.free_seats = seats - sc->n_running;
    sc->sums_shown = sc->sums;
    for (const request *rq = sc->inbox_head; rq; rq = rq->next) expect_one(sc, rq);
    sc->stats.settle_us += sc->settle_us;
    sc->settle_us = 0;
    sc->stats.draft_used_bytes = sched_draft_used_bytes(sc);
    sc->stats.n_running = sc->n_running;
    sc->stats.n_waiting = sc->n_inside - sc->n_running;
    sc->stats.n_pages = kc.n_pages;
    sc->stats.n_pages_used = kc.n_held;
    sc->stats.n_pages_cached = kc.n_cached;
    swap_count(sc->swap, &sc->stats.swap);
    sc->stats.n_prompt_tokens = sc->n_prompt_tokens;
    sc->stats.n_output_tokens = sc->n_output_tokens;
    lock_release(&sc->mu);
    devmem_page_cost(sc->arena, row_us * sc->page_tokens);
}

/* Sleeps until there is a reason to look again; false: stop.  *job: what others have asked for. */
static bool wait_for_work(sched *sc, bool idle, struct page_job **job)
{
    lock_take(&sc->mu);
    while (!sc->inbox_head && !sc->jobs && !sc->stop && idle) {
        if (sc->n_inside == 0) sc->looked_us = 0; /* nobody loses anything */
        /* With requests that could not run (an adapter, pages or a mask on
         * its way) look again soon. */
        int64_t pause_us = sc->n_inside > 0 ? 1000 : IDLE_WAIT_MS * 1000;
        cond_wait_until(&sc->work, &sc->mu, clock_now_us() + pause_us);
        atomic_store(&sc->heartbeat_us, clock_now_us());
        if (sc->n_inside > 0 || sc->adjusted || board_wanted(sc->board)) break;
    }
    bool go = !sc->stop;
    *job = go ? sched_take_job(sc) : NULL;
    lock_release(&sc->mu);
    return go;
}

/* Nobody was inside: how long the first of those that came has waited for us to wake. */
static void see_waking(sched *sc, int64_t now)
{
    lock_take(&sc->mu);
    int64_t came_us = sc->inbox_head ? sc->inbox_head->clock.at_us : now;
    lock_release(&sc->mu);
    sched_cause_woke(sc, came_us, now);
}

static void *engine_thread(void *arg)
{
    sched *sc = arg;
    (void)pthread_setname_np(pthread_self(), "engine");
    bool idle = true;
    for (struct page_job *job; wait_for_work(sc, idle, &job);) {
        int64_t now = clock_now_us();
        atomic_store(&sc->heartbeat_us, now);
        bool woke = sc->looked_us == 0;
        sched_cause_begin(sc, now, idle);
        if (woke) see_waking(sc, now);
        sched_take_inbox(sc);
        sched_see_ends(sc, now);
        if (!sc->dead && be_lost(sc->be)) { /* a loader met it */
            err e;
            (void)be_sync(sc->be, &e);
            sched_restart(sc, &e);
        }
        if (job) sched_do_job(sc, job);
        if (sched_should_land(sc)) sched_land(sc);
        sched_plan_step(sc, now);
        if (sc->must_land) {
            sched_land(sc);
            sched_plan_step(sc, now);
        }
        sched_cause_planned(sc, now);
        idle = sc->step.n_seq == 0 && !sched_in_flight(sc);
        if (sc->step.n_seq > 0)
            sched_run_step(sc, now);
        else
            sched_land(sc);
        publish_counts(sc);
    }
    sched_land(sc);
    sched_take_inbox(sc);
    sched_finish_all(sc, FINISH_CANCELLED, NULL);
    sched_end_jobs(sc);
    return NULL;
}

/* ------------------------------------------------------------------- lifetime -- */

/* The engine thread's arrays, and how many of each there are. */
#define ARRAYS(A)        \
    A(list, places)      \
    A(view, places)      \
    A(plan, places)      \
    A(held, places)      \
    A(order, places)     \
    A(allowed, places)   \
    A(token, rows)       \
    A(pos, rows)         \
    A(from, rows)        \
    A(seq, seqs)         \
    A(seg, 2 * (seqs))   \
    A(mask, seqs)        \
    A(logit_row, logits) \
    A(draw, logits)      \
    A(history, positions)

static void free_all(sched *sc)
{
    for (int i = 0; i < SAMPLERS_MAX; i++) {
        sampler_destroy(sc->samplers[i]);
        grammar_walk_destroy(sc->walks[i]);
    }
#define FREE(member, count) free((void *)sc->member);
    ARRAYS(FREE)
#undef FREE
    sched_flights_destroy(sc);
    sched_spec_destroy(sc);
    sched_draft_destroy(sc);
    sched_pool_destroy(sc);
    kv_destroy(sc->pages);
    devmem_destroy(sc->own_arena);
    board_destroy(sc->board);
    telemetry_destroy(sc->tele);
    swap_destroy(sc->swap);
    fair_destroy(sc->fair);
    lengths_destroy(sc->lengths);
    if (sc->kv) be_kv_destroy(sc->be, sc->kv);
    cond_free(&sc->job_done);
    cond_free(&sc->work);
    lock_free(&sc->mu);
    free(sc);
}

static bool allocate_arrays(sched *sc)
{
    size_t seqs = (size_t)sc->cfg.max_seqs, places = seqs + FAIR_PICKS;
    size_t rows = (size_t)sc->cfg.max_rows, logits = (size_t)sc->cfg.max_logits;
    size_t page = (size_t)sc->page_tokens, context = (size_t)sc->max_context;
    size_t positions = context > page ? context : page;
    bool ok = true;
#define ALLOCATE(member, count) ok &= (sc->member = calloc(count, sizeof(*sc->member))) != NULL;
    ARRAYS(ALLOCATE)
#undef ALLOCATE
    sc->step.logit_stride = model_logit_stride(sc->m);
    sc->step.token = sc->token;
    sc->step.pos = sc->pos;
    sc->step.logit_row = sc->logit_row;
    sc->step.seq = sc->seq;
    sc->step.seg = sc->seg;
    return ok;
}

static bool create_samplers(sched *sc)
{
    int want = sc->cfg.max_seqs < SAMPLERS_MAX ? sc->cfg.max_seqs : SAMPLERS_MAX;
    for (; sc->n_samplers < want; sc->n_samplers++) {
        sc->samplers[sc->n_samplers] = sampler_create(model_logit_stride(sc->m));
        sc->walks[sc->n_samplers] = grammar_walk_create();
        if (!sc->samplers[sc->n_samplers] || !sc->walks[sc->n_samplers]) return false;
    }
    return true;
}

static fair *create_fair(const sched *sc)
{
    const sched_config *c = &sc->cfg;
    fair_config fc = {.n_class = c->n_class, .cap = sc->cap, .ageing_us = c->ageing_us};
    describe_classes(c, fc.classes);
    return fair_create(&fc);
}

static err_code create_parts(sched *sc, err *e)
{
    const sched_config *c = &sc->cfg;
    sc->pages = kv_create(sc->arena, sc->page_tokens, c->prefix_cache);
    sc->board = board_create(sc->cap, FAIR_TENANTS);
    sc->tele = telemetry_create(c->n_class, c->max_tenants, sc->cap);
    sc->fair = create_fair(sc);
    sc->lengths = lengths_create(c->n_class, SKETCHES);
    bool ok = sc->pages && sc->board && sc->tele && sc->fair && sc->lengths;
    ok = ok && allocate_arrays(sc) && sched_flights_create(sc) && create_samplers(sc) &&
         sched_spec_create(sc);
    if (!ok) return err_set(e, ERR_NOMEM, "no memory for the scheduler");
    err_code rc = sched_pool_create(sc, e);
    return rc ? rc : sched_draft_create(sc, e);
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
    if (c->speculate < 0 || c->speculate > SPEC_MAX) {
        return err_set(e, ERR_INPUT, "speculate must be from 0 to %d", SPEC_MAX);
    }
    if (c->max_tenants < 0) return err_set(e, ERR_INPUT, "max_tenants must not be negative");
    if (c->max_context < 2) return err_set(e, ERR_INPUT, "max_context must be at least 2");
    if (c->n_class < 1 || c->n_class > SLO_CLASS_MAX) {
        return err_set(e, ERR_INPUT, "there must be 1 to %d classes", SLO_CLASS_MAX);
    }
    return ERR_NONE;
}

err_code sched_open_pool(sched *sc, err *e)
{
    attn_shape shape = model_attn_shape(sc->m);
    void *mem = devmem_memory(sc->arena);
    err_code rc = mem ? be_kv_attach(sc->be, &sc->kv, &shape, sc->n_pages, mem,
                                     devmem_chunk_bytes(sc->arena), e)
                      : be_kv_create(sc->be, &sc->kv, &shape, sc->n_pages, e);
    if (!rc && sc->cfg.preemption != PREEMPT_RECOMPUTE)
        rc = swap_create(&sc->swap, sc->be, sc->kv, be_kv_saved_bytes(sc->be, &shape),
                         sc->cfg.swap_bytes, e);
    return rc;
}

/* All that follows from it, the model and the number of pages. */
static void take_config(sched *sc, const sched_config *cfg)
{
    int max_pos = model_get_config(sc->m)->max_pos;
    int limit = max_pos < cfg->max_context ? max_pos : cfg->max_context;
    sc->cfg = *cfg;
    if (sc->cfg.ageing_us <= 0) sc->cfg.ageing_us = DEFAULT_AGEING_US;
    if (sc->cfg.max_faults <= 0) sc->cfg.max_faults = DEFAULT_FAULTS_MAX;
    if (sc->cfg.restart_wait_us <= 0) sc->cfg.restart_wait_us = DEFAULT_RESTART_WAIT_US;
    sc->n_faults = cfg->n_faults;
    sc->n_restarts = cfg->n_restarts;
    sc->page_tokens = be_caps(sc->be)->page_tokens;
    sc->cap = sc->most_inside = cfg->max_queued + cfg->max_seqs;
    const model_config *mc = model_get_config(sc->m);
    int64_t most = (int64_t)sc->n_pages * sc->page_tokens;
    sc->most_pages = INT_MAX;
    if (mc->kept > 0) {
        sc->see = (kv_sight){mc->kept, mc->window};
        sc->most_pages = pages_for(sc, mc->kept) + pages_for(sc, mc->window + cfg->max_rows) + 2;
    }
    sc->max_context = most < limit && sc->n_pages < sc->most_pages ? (int)most : limit;
    const experts_config *x = &model_get_config(sc->m)->experts;
    cost_init(&sc->cost);
    cost_experts(&sc->cost, x->route.n, x->route.top_k);
    for (int i = 0; i < SLO_CLASS_MAX; i++) sc->surprise[i][0] = sc->surprise[i][1] = 1;
    sc->stats.healthy = true;
    sc->stats.n_pages = sc->n_pages;
}

err_code sched_create(sched **out, const sched_config *cfg, model *m, backend *be,
                      const lora_source *source, err *e)
{
    *out = NULL;
    err_code rc = check_config(cfg, e);
    if (rc) return rc;
    attn_shape shape = model_attn_shape(m);
    size_t page_bytes = be_kv_page_bytes(be, &shape);
    size_t n_pages = cfg->arena ? (size_t)devmem_n_chunks(cfg->arena) : cfg->kv_bytes / page_bytes;
    if (n_pages > INT32_MAX) n_pages = INT32_MAX;
    if (n_pages < 1) {
        return err_set(e, ERR_LIMIT, "a KV budget of %zu bytes holds no page of %zu bytes",
                       cfg->kv_bytes, page_bytes);
    }
    sched *sc = calloc(1, sizeof(*sc));
    if (!sc) return err_set(e, ERR_NOMEM, "no memory for the scheduler");
    sc->m = m;
    sc->be = be;
    sc->source = source;
    sc->n_pages = (int)n_pages;
    take_config(sc, cfg);
    lock_init(&sc->mu, LOCK_SCHED);
    cond_init(&sc->work);
    cond_init(&sc->job_done);
    atomic_store(&sc->heartbeat_us, clock_now_us());
    sc->arena = cfg->arena;
    if (!sc->arena) rc = devmem_create(&sc->own_arena, NULL, sc->n_pages, page_bytes, 0, e);
    if (!sc->arena) sc->arena = sc->own_arena;
    if (!rc) rc = sched_open_pool(sc, e);
    if (!rc) rc = create_parts(sc, e);
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

void sched_adjust(sched *sc, const slo_class *classes, int max_queued)
{
    lock_take(&sc->mu);
    memcpy(sc->wanted, classes, (size_t)sc->cfg.n_class * sizeof(*classes));
    sc->adjusted = true;
    int most = max_queued + sc->cfg.max_seqs;
    sc->most_inside = most < sc->cap ? most : sc->cap;
    cond_signal(&sc->work);
    lock_release(&sc->mu);
}

void sched_destroy(sched *sc)
{
    if (!sc) return;
    lock_take(&sc->mu);
    sc->stop = sc->draining = true;
    cond_signal(&sc->work);
    lock_release(&sc->mu);
    (void)pthread_join(sc->thread, NULL);
    free_all(sc);
}

/* ------------------------------------------------------------------------ API -- */

static err_code check_tokens(const request *rq, int n_vocab, err *e)
{
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
    if (rq->bars && bars_words(rq->bars) != (n_vocab + 31) / 32)
        return err_set(e, ERR_INPUT, "the barred tokens are of another vocabulary");
    return ERR_NONE;
}

/* What is not a number is in no range. */
static bool in_range(const sampling *r)
{
    return r->temperature >= 0 && r->top_p > 0 && r->min_p >= 0 && r->min_p <= 1 &&
           r->repetition_penalty > 0 && isfinite(r->presence_penalty) &&
           isfinite(r->frequency_penalty) && r->n_top <= SAMPLE_TOP_MAX;
}

/* The last guard before ids become indexes: nothing from outside is believed. */
static err_code check_request(const sched *sc, const request *rq, err *e)
{
    int n_vocab = vocab_of(sc, rq);
    const sampling *r = &rq->rules;
    if (rq->n_vocab < 0 || n_vocab > model_logit_stride(sc->m)) {
        return err_set(e, ERR_INPUT, "a vocabulary of %d is too large", rq->n_vocab);
    }
    if (r->n_bias > SAMPLE_BIAS_MAX || r->n_stop_id > SAMPLE_STOP_MAX) {
        return err_set(e, ERR_INPUT, "at most %d biases and %d stop ids can be given",
                       SAMPLE_BIAS_MAX, SAMPLE_STOP_MAX);
    }
    err_code rc = check_tokens(rq, n_vocab, e);
    if (rc) return rc;
    if (rq->score_prompt && (rq->score_top < 0 || rq->score_top > SAMPLE_TOP_MAX))
        return err_set(e, ERR_INPUT, "at most %d alternatives can be scored", SAMPLE_TOP_MAX);
    if (rq->adapter_from < 0 || (rq->adapter_from > 0 && rq->adapter_from >= rq->n_prompt))
        return err_set(e, ERR_INPUT, "an adapter must begin within its prompt");
    if (!(rq->weight > 0) || !isfinite(rq->weight)) {
        return err_set(e, ERR_INPUT, "a weight must be positive");
    }
    return in_range(r) ? ERR_NONE : err_set(e, ERR_INPUT, "a sampling parameter is out of range");
}

/* mu is held. */
static double predict_ttft(const sched *sc, const promise_ask *ask, bool *waits)
{
    lock_assert_held(&sc->mu);
    *waits = promise_waits(&sc->outlook, ask);
    return sc->surprise[ask->slo][*waits] * promise_ttft_us(&sc->outlook, ask);
}

/* What may be foreseen of its wait before it is refused. */
static double most_us(const sched *sc, const request *rq, const promise_ask *ask)
{
    lock_assert_held(&sc->mu);
    int64_t target_us = ttft_target_us(sc, rq);
    return sc->cfg.classes[rq->slo_class].reject_on_overload
               ? promise_most_us(&sc->outlook, ask, target_us)
               : (double)target_us;
}

/* mu is not held: the source has a lock of its own. */
static promise_ask ask_of(const sched *sc, const request *rq)
{
    promise_ask ask = {.tenant = rq->tenant_id, .slo = rq->slo_class, .n_prompt = rq->n_prompt};
    if (rq->adapter_id && sc->source && sc->source->eta) {
        int64_t due_us = clock_now_us() + ttft_target_us(sc, rq);
        ask.load_us = (double)sc->source->eta(sc->source->self, rq->adapter_id, due_us);
    }
    return ask;
}

int64_t sched_retry_us(sched *sc, const request *rq)
{
    if (rq->slo_class < 0 || rq->slo_class >= sc->cfg.n_class) return 0;
    promise_ask ask = ask_of(sc, rq);
    lengths_ask length = length_ask(rq);
    lock_take(&sc->mu);
    ask.n_output = lengths_look(sc->lengths, &length).mean;
    bool waits;
    double us = predict_ttft(sc, &ask, &waits) - most_us(sc, rq, &ask);
    lock_release(&sc->mu);
    return us < 0 ? 0 : us < 1e15 ? (int64_t)us : INT64_MAX;
}

/* S-LoRA's early abort: what would come too late is refused while that is cheap.  Who has a seat
 * keeps its pace, so the wait for one is what a promise of both targets costs.  mu is held. */
static err_code check_promise(const sched *sc, const request *rq, const promise_ask *ask, err *e)
{
    const slo_class *c = &sc->cfg.classes[rq->slo_class];
    double most = most_us(sc, rq, ask);
    char pace[64] = "";
    if (!c->reject_on_overload || rq->expected_us <= most) return ERR_NONE;
    if (rq->tpot_target_us)
        snprintf(pace, sizeof(pace), " and %lld ms for each further one",
                 (long long)(rq->tpot_target_us / 1000));
    return err_set(e, ERR_BUSY,
                   "the class '%s' is overloaded: the first token would take about %.0f ms. To "
                   "keep its targets (%lld ms for the first token%s), a request like this one is "
                   "taken if that is no more than %.0f ms",
                   c->name, rq->expected_us / 1000, (long long)(ttft_target_us(sc, rq) / 1000),
                   pace, most / 1000);
}

err_code sched_submit(sched *sc, request *rq, err *e)
{
    if (rq->n_prompt < 1) return err_set(e, ERR_INPUT, "the prompt has no tokens");
    if (rq->slo_class < 0 || rq->slo_class >= sc->cfg.n_class) {
        return err_set(e, ERR_INPUT, "unknown class %d", rq->slo_class);
    }
    if (rq->max_tokens < 0 || (rq->max_tokens == 0 && !rq->score_prompt && !rq->pool) ||
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
    promise_ask ask = ask_of(sc, rq);
    lengths_ask length = length_ask(rq);
    miss_cause refused = MISS_RESTART;
    int64_t now = clock_now_us(), disk_us = 0, load_us = 0;
    if (rq->adapter_id && sc->source && sc->source->spent)
        sc->source->spent(sc->source->self, &disk_us, &load_us);
    lock_take(&sc->mu);
    rq->length = lengths_look(sc->lengths, &length);
    if (sc->broken)
        rc = err_set(e, ERR_DEVICE, "the device has failed");
    else if (sc->legacy.n_faults > 0)
        rc = err_set(e, ERR_RESTARTING, "the engine is being restarted");
    else if (sc->draining && !rq->again)
        rc = err_set(e, ERR_STOPPING, "the server is shutting down");
    else if (sc->n_inside >= sc->most_inside) {
        rc = err_set(e, ERR_BUSY, "the queue is full (%d requests)", sc->n_inside);
        refused = MISS_QUEUE;
    } else {
        ask.n_output = rq->length.mean;
        rq->expected_us = predict_ttft(sc, &ask, &rq->expected_wait);
        if (!rq->again) rc = check_promise(sc, rq, &ask, e);
        refused = 2 * ask.load_us > rq->expected_us ? MISS_ADAPTER_LOAD : MISS_QUEUE;
    }
    if (!rc) {
        cause_begin(&rq->clock, &sc->sums_shown, rq->arrived_us, now, rq->limits_us,
                    rq->stalled_us);
        rq->clock.disk_us = disk_us;
        rq->clock.load_us = load_us;
        expect_one(sc, rq);
        sc->n_inside++;
        rq->next = NULL;
        if (sc->inbox_tail)
            sc->inbox_tail->next = rq;
        else
            sc->inbox_head = rq;
        sc->inbox_tail = rq;
        cond_signal(&sc->work);
    }
    lock_release(&sc->mu);
    if (rc) {
        rq->missed = (cause_verdict){refused, -1};
        telemetry_refuse(sc->tele, rq->slo_class, rq->tenant_id,
                         rc == ERR_BUSY || rc == ERR_STOPPING ? OUTCOME_REFUSED : OUTCOME_FAILED,
                         refused);
        free(rq->page);
        rq->page = NULL;
    }
    return rc;
}

bool sched_drain(sched *sc, int64_t timeout_us)
{
    int64_t end = clock_now_us() + timeout_us;
    for (;;) {
        lock_take(&sc->mu);
        sc->draining = true;
        bool empty = sc->n_inside == 0;
        lock_release(&sc->mu);
        if (empty) return true;
        if (clock_now_us() >= end) return false;
        struct timespec ten_ms = {0, 10 * 1000000L};
        (void)nanosleep(&ten_ms, NULL);
    }
}

void sched_stats_get(sched *sc, sched_stats *out)
{
    lock_take(&sc->mu);
    *out = sc->stats;
    out->healthy = !sc->broken;
    out->restarting = sc->restarting;
    out->n_restarts = sc->n_restarts;
    lock_release(&sc->mu);
}

void sched_lengths_get(sched *sc, int class, lengths_record *out)
{
    lock_take(&sc->mu);
    lengths_record_get(sc->lengths, class, out);
    lock_release(&sc->mu);
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
