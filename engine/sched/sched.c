/* sched.c -- the engine thread: its loop, its lifetime, and the calls for other threads.
 *
 *   loop:  inbox --> cancelled and expired requests --> plan (sched_plan.c)
 *          --> forward pass and sampling (sched_sample.c) --> settle (sched_settle.c) --> publish
 *
 * A request's history is its prompt followed by its output; `n_computed` positions of it have KV.
 * Each step computes the next rows of some requests (continuous batching with chunked prefill:
 * Orca, Sarathi-Serve). Draws are numbered, so after a pre-emption the same tokens follow.
 *
 * sched_submit() checks everything that later becomes an index, predicts the first token from the
 * last published `outlook` (promise.c) and refuses a request early if its class asks for that; then
 * it appends to the inbox. publish_counts() writes the next outlook and the statistics after each
 * step.
 *
 * With `overlap`, step n + 1 is enqueued before the results of step n are read (sched_flight.c):
 * sched_land() takes them.
 *
 * Threads: `mu` guards `shared`; everything else belongs to the engine thread. All that the loop
 * needs is allocated in sched_create(); the loop allocates nothing.
 */
#include "engine/sched/sched.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/sched/sched_inside.h"

enum {
    IDLE_WAIT_MS = 100,
    DEFAULT_AGEING_US = 10 * 1000000,
    DEFAULT_RESTART_WAIT_US = 500000,
    DEFAULT_FAULTS_MAX = 5,
    DEFAULT_SNAPSHOT_PAGES = 2,
    SNAPSHOTS_MAX = 4096,     /* their table is searched from end to end */
    COPY_BYTES_PER_US = 4000, /* until copies of states have been measured */
    SKETCHES = 4096, /* of answers' lengths: tenants and adapters, by octave of max_tokens */
};

/* -------------------------------------------------------------- what comes in -- */

/* Prefetches the adapter of a waiting request, in the order of first-token deadlines; one far back
 * in the queue is left to prefetch_waiting(). */
static void expect_adapter(sched *sc, const request *rq)
{
    const lora_source *src = sc->source;
    if (sc->queue.depth > 0 && fair_waiting(sc->queue.fair) > sc->queue.depth) return;
    if (src->want) src->want(src->self, rq->adapter_id, rq->ttft_deadline_us);
}

static void describe_classes(const sched_config *c, fair_class out[SLO_CLASS_MAX])
{
    for (int i = 0; i < c->n_class; i++) {
        const slo_class *k = &c->classes[i];
        out[i] = (fair_class){k->rank, (double)k->weight, k->ttft_us};
    }
}

/* mu is held. Only the engine thread writes cfg.classes, so it reads them without the lock. */
static void take_classes(sched *sc)
{
    fair_class classes[SLO_CLASS_MAX];
    lock_assert_held(&sc->mu);
    sc->shared.adjusted = false;
    memcpy(sc->cfg.classes, sc->shared.wanted, sizeof(sc->shared.wanted));
    describe_classes(&sc->cfg, classes);
    fair_set_classes(sc->queue.fair, classes);
}

void sched_take_inbox(sched *sc)
{
    lock_take(&sc->mu);
    if (sc->shared.adjusted) take_classes(sc);
    request *rq = sc->shared.inbox_head;
    sc->shared.inbox_head = sc->shared.inbox_tail = NULL;
    lock_release(&sc->mu);
    while (rq) {
        request *next = rq->run.next;
        rq->run.next = NULL;
        rq->run.state = STATE_WAITING;
        fair_job job = {.who = rq,
                        .tenant = rq->tenant_id,
                        .adapter = rq->adapter_id,
                        .weight = (double)rq->weight,
                        .slo = rq->slo_class,
                        .arrived_us = rq->arrived_us,
                        .deadline_us = rq->ttft_deadline_us,
                        .prompt = rq->n_prompt,
                        .output = rq->run.length.mean};
        int64_t now = clock_now_us();
        rq->run.ticket = fair_enter(sc->queue.fair, &job, now);
        cause_enter(&rq->times.clock, &sc->lost.sums, now, rq->adapter_id != 0);
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
    } else if (rq->patience_us && !rq->times.first_token_us && now > rq->patience_us) {
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

/* Checks all running requests, and some of the waiting ones in each step. */
void sched_see_ends(sched *sc, int64_t now)
{
    int tickets[SCAN];
    for (int i = 0; i < sc->queue.n; i++) sched_see_end(sc, sc->queue.list[i], now);
    sched_sweep(sc);
    int n = fair_scan(sc->queue.fair, &sc->queue.scan, SCAN, tickets);
    for (int i = 0; i < n; i++) sched_see_end(sc, fair_who(sc->queue.fair, tickets[i]), now);
}

/* -------------------------------------------------------------------- thread -- */

/* mu is held. Adds a queued request to the outlook, so that the next prediction includes it before
 * the engine has seen it. */
static void expect_one(sched *sc, const request *rq)
{
    lock_assert_held(&sc->mu);
    promise_ask ask = {rq->tenant_id, rq->slo_class, rq->n_prompt, rq->run.length.mean, 0};
    promise_add(&sc->shared.outlook, &ask);
}

/* Microseconds of the prompt work that a request has before its first token. */
static double prompt_us(const sched *sc, const request *rq)
{
    const cost_work none = {0};
    cost_work w = cost_with_chunk(&none, left_of(rq), seen_of(sc, rq->run.n_computed),
                                  rank_of(rq, left_of(rq)));
    return cost_predict(&sc->cost, &w) - cost_predict(&sc->cost, &none);
}

static board_row row_of(const sched *sc, const request *rq, int64_t now, const int64_t loads_us[2])
{
    return (board_row){.id = rq->id,
                       .tenant_id = rq->tenant_id,
                       .adapter_id = rq->adapter_id,
                       .slo_class = rq->slo_class,
                       .running = rq->run.state == STATE_RUNNING,
                       .n_prompt = rq->n_prompt,
                       .n_computed = rq->run.n_computed,
                       .n_output = n_drawn(rq) - rq->run.n_ahead,
                       .max_tokens = rq->max_tokens,
                       .n_preempted = rq->times.n_preempted,
                       .rank = rank_of(rq, left_of(rq)),
                       .arrived_us = rq->arrived_us,
                       .admitted_us = rq->times.admitted_us,
                       .first_token_us = rq->times.first_token_us,
                       .last_token_us = rq->times.last_token_us,
                       .ttft_deadline_us = rq->ttft_deadline_us,
                       .tpot_target_us = rq->tpot_target_us,
                       .overdue = sched_cause_overdue(sc, rq, now, loads_us)};
}

/* Writes the snapshot of the queue that another thread has requested. */
static void show(sched *sc)
{
    board_row *row;
    board_share *share;
    int n_row = 0, n_share = 0;
    int64_t now = clock_now_us(), loads_us[2];
    sched_cause_loads(sc, loads_us); /* takes a lock, so before the board's */
    if (!board_open(sc->board, &row, &share)) return;
    for (int i = 0; i < sc->queue.n; i++)
        row[n_row++] = row_of(sc, sc->queue.list[i], now, loads_us);
    for (int cursor = 0, tickets[SCAN]; cursor < sc->cap;) {
        int left = sc->cap - cursor;
        int n = fair_scan(sc->queue.fair, &cursor, left < SCAN ? left : SCAN, tickets);
        for (int i = 0; i < n; i++)
            row[n_row++] = row_of(sc, fair_who(sc->queue.fair, tickets[i]), now, loads_us);
    }
    for (; n_share < FAIR_TENANTS; n_share++) {
        board_share *s = &share[n_share];
        if (!fair_tenant(sc->queue.fair, n_share, &s->tenant_id, &s->served, &s->active)) break;
    }
    board_close(sc->board, n_row, n_share, now);
}

/* What other threads may know, once for each iteration: the outlook that admission asks (prices
 * of tokens, work before a new request, free seats), the board if somebody looks, and counters.
 * All under one lock, after everything that needs none. */
static void publish_counts(sched *sc)
{
    kv_counts kc;
    snapshot_counts kept;
    kv_count(sc->mem.pages, &kc);
    kv_snapshot_count(sc->mem.pages, &kept);
    bool full = (sc->plan.pages_short || sc->plan.pace_short) && sc->queue.n_running > 0;
    int rows = sc->queue.n_seats > sc->plan.n_out ? sc->queue.n_seats - sc->plan.n_out : 1;
    const cost_work decode = {.decode = rows};
    double step_us = cost_predict(&sc->cost, &decode), begun_us[PROMISE_CLASSES] = {0};
    double row_us = sc->cost.n < COST_LEARNING ? 0 : sc->cost.theta[1] / 64;
    int seats = full ? sc->queue.n_seats : sc->cfg.max_seqs,
        company = sc->plan.n_out > 0 ? rows : seats;
    const cost_work most = {.decode = company};
    fair_set_prices(sc->queue.fair, row_us, cost_predict(&sc->cost, &most) / company, step_us);
    for (int i = 0; i < sc->queue.n; i++) {
        const request *rq = sc->queue.list[i];
        if (!rq->times.first_token_us) begun_us[rq->slo_class] += prompt_us(sc, rq);
    }
    if (board_wanted(sc->board)) show(sc);
    sched_place_show(sc);
    int64_t now = clock_now_us();
    lock_take(&sc->mu);
    fair_publish(sc->queue.fair, &sc->shared.outlook, now);
    memcpy(sc->shared.outlook.begun_us, begun_us, sizeof(begun_us));
    sc->shared.outlook.crowded = sc->plan.crowded || sc->plan.rows_short;
    sc->shared.outlook.free_seats = seats - sc->queue.n_seats;
    sc->shared.sums_shown = sc->lost.sums;
    for (const request *rq = sc->shared.inbox_head; rq; rq = rq->run.next) expect_one(sc, rq);
    sc->shared.stats.settle_us += sc->settle_us;
    sc->settle_us = 0;
    sc->shared.stats.guess.draft_used_bytes = sched_draft_used_bytes(sc);
    sc->shared.stats.n_running = sc->queue.n_running;
    sc->shared.stats.n_waiting = sc->shared.n_inside - sc->queue.n_running;
    sc->shared.stats.n_pages = kc.n_pages;
    sc->shared.stats.n_pages_used = kc.n_held;
    sc->shared.stats.n_pages_cached = kc.n_cached;
    swap_count(sc->mem.swap, &sc->shared.stats.swap);
    sc->shared.stats.snapshots = kept;
    state_count(sc->mem.states, &sc->shared.stats.state);
    sc->shared.stats.n_prompt_tokens = sc->n_prompt_tokens;
    sc->shared.stats.n_output_tokens = sc->n_output_tokens;
    lock_release(&sc->mu);
    devmem_page_cost(sc->mem.arena, row_us * sc->mem.page_tokens);
}

/* Waits for work; false: stop. *job: a request of another thread, if any. */
static bool wait_for_work(sched *sc, bool idle, struct page_job **job)
{
    lock_take(&sc->mu);
    while (!sc->shared.inbox_head && !sc->shared.jobs && !sc->shared.stop && idle) {
        if (sc->shared.n_inside == 0) sc->lost.looked_us = 0; /* no request is delayed */
        /* With requests that could not run (an adapter, pages or a mask on
         * its way) look again soon. */
        int64_t pause_us = sc->shared.n_inside > 0 ? 1000 : IDLE_WAIT_MS * 1000;
        cond_wait_until(&sc->shared.work, &sc->mu, clock_now_us() + pause_us);
        atomic_store(&sc->heartbeat_us, clock_now_us());
        if (sc->shared.n_inside > 0 || sc->shared.adjusted || board_wanted(sc->board)) break;
    }
    bool go = !sc->shared.stop;
    *job = go ? sched_take_job(sc) : NULL;
    lock_release(&sc->mu);
    return go;
}

/* The engine was idle: accounts for the time until it woke. */
static void see_waking(sched *sc, int64_t now)
{
    lock_take(&sc->mu);
    int64_t came_us = sc->shared.inbox_head ? sc->shared.inbox_head->times.clock.at_us : now;
    lock_release(&sc->mu);
    sched_cause_woke(sc, came_us, now);
}

/* An iteration: wait, take what came in, restart a lost device, do a job on pages, land the step
 * in flight where the next one depends on it, plan, run. A plan that finds such a dependence
 * itself (must_land) is made anew after landing. At the end what runs is cancelled. */
static void *engine_thread(void *arg)
{
    sched *sc = arg;
    (void)pthread_setname_np(pthread_self(), "engine");
    bool idle = true;
    for (struct page_job *job; wait_for_work(sc, idle, &job);) {
        int64_t now = clock_now_us();
        atomic_store(&sc->heartbeat_us, now);
        bool woke = sc->lost.looked_us == 0;
        sched_cause_begin(sc, now, idle);
        if (woke) see_waking(sc, now);
        sched_take_inbox(sc);
        sched_see_ends(sc, now);
        if (!sc->faults.dead && be_lost(sc->be)) { /* a loader thread saw it */
            err e;
            (void)be_sync(sc->be, &e);
            sched_restart(sc, &e);
        }
        if (job) sched_do_job(sc, job);
        if (sched_should_land(sc)) sched_land(sc);
        sched_plan_step(sc, now);
        if (sc->plan.must_land) {
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
#define ARRAYS(A)             \
    A(queue.list, places)     \
    A(plan.view, places)      \
    A(plan.entries, places)   \
    A(plan.held, places)      \
    A(plan.order, places)     \
    A(plan.allowed, places)   \
    A(rows.token, rows)       \
    A(rows.pos, rows)         \
    A(rows.from, rows)        \
    A(rows.seq, seqs)         \
    A(rows.seg, 2 * (seqs))   \
    A(rows.mask, seqs)        \
    A(rows.logit_row, logits) \
    A(rows.draw, logits)      \
    A(mem.history, positions)

static void free_all(sched *sc)
{
    for (int i = 0; i < SAMPLERS_MAX; i++) {
        sampler_destroy(sc->pick.samplers[i]);
        grammar_walk_destroy(sc->pick.walks[i]);
    }
#define FREE(member, count) free((void *)sc->member);
    ARRAYS(FREE)
#undef FREE
    sched_flights_destroy(sc);
    sched_spec_destroy(sc);
    sched_draft_destroy(sc);
    sched_pool_destroy(sc);
    kv_destroy(sc->mem.pages);
    devmem_destroy(sc->mem.own_arena);
    board_destroy(sc->board);
    telemetry_destroy(sc->tele);
    swap_destroy(sc->mem.swap);
    state_destroy(sc->mem.states);
    fair_destroy(sc->queue.fair);
    lengths_destroy(sc->shared.lengths);
    if (sc->mem.kv) be_kv_destroy(sc->be, sc->mem.kv);
    cond_free(&sc->shared.job_done);
    cond_free(&sc->shared.work);
    lock_free(&sc->mu);
    free(sc);
}

static bool allocate_arrays(sched *sc)
{
    size_t seqs = (size_t)sc->cfg.max_seqs, places = seqs + FAIR_PICKS;
    size_t rows = (size_t)sc->cfg.max_rows, logits = (size_t)sc->cfg.max_logits;
    size_t page = (size_t)sc->mem.page_tokens, context = (size_t)sc->mem.max_context;
    size_t positions = context > page ? context : page;
    bool ok = true;
#define ALLOCATE(member, count) ok &= (sc->member = calloc(count, sizeof(*sc->member))) != NULL;
    ARRAYS(ALLOCATE)
#undef ALLOCATE
    sc->step.logit_stride = model_logit_stride(sc->m);
    sc->step.token = sc->rows.token;
    sc->step.pos = sc->rows.pos;
    sc->step.logit_row = sc->rows.logit_row;
    sc->step.seq = sc->rows.seq;
    sc->step.seg = sc->rows.seg;
    return ok;
}

static bool create_samplers(sched *sc)
{
    int want = sc->cfg.max_seqs < SAMPLERS_MAX ? sc->cfg.max_seqs : SAMPLERS_MAX;
    for (; sc->pick.n_samplers < want; sc->pick.n_samplers++) {
        sc->pick.samplers[sc->pick.n_samplers] = sampler_create(model_logit_stride(sc->m));
        sc->pick.walks[sc->pick.n_samplers] = grammar_walk_create();
        if (!sc->pick.samplers[sc->pick.n_samplers] || !sc->pick.walks[sc->pick.n_samplers])
            return false;
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
    sc->mem.pages = kv_create(sc->mem.arena, sc->mem.page_tokens, c->prefix_cache);
    sc->board = board_create(sc->cap, FAIR_TENANTS);
    sc->tele = telemetry_create(c->n_class, c->max_tenants, sc->cap);
    sc->queue.fair = create_fair(sc);
    sc->shared.lengths = lengths_create(c->n_class, SKETCHES);
    bool ok = sc->mem.pages && kv_keep_snapshots(sc->mem.pages, sc->mem.n_snapshots);
    ok = ok && sc->board && sc->tele && sc->queue.fair && sc->shared.lengths;
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
    void *mem = devmem_memory(sc->mem.arena);
    err_code rc = mem ? be_kv_attach(sc->be, &sc->mem.kv, &shape, sc->mem.n_pages, mem,
                                     devmem_chunk_bytes(sc->mem.arena), e)
                      : be_kv_create(sc->be, &sc->mem.kv, &shape, sc->mem.n_pages, e);
    if (!rc && sc->cfg.preemption != PREEMPT_RECOMPUTE)
        rc = swap_create(&sc->mem.swap, sc->be, sc->mem.kv, be_kv_saved_bytes(sc->be, &shape),
                         sc->cfg.swap_bytes, e);
    if (!rc)
        rc = state_create(&sc->mem.states, sc->be, model_state_floats(model_get_config(sc->m)),
                          sc->cfg.max_seqs, sc->cfg.speculate > 0 ? sc->cfg.max_seqs : 0,
                          sc->mem.n_snapshots, e);
    if (sc->mem.states && sc->mem.swap)
        sc->mem.state_pages = swap_slots_of(sc->mem.swap, state_bytes(sc->mem.states));
    sc->step.state = sc->mem.states ? state_memory(sc->mem.states) : NULL;
    sc->step.state_stride = sc->mem.states ? state_stride(sc->mem.states) : 0;
    return rc;
}

/* Slots for snapshots of a model whose layers keep a state, and what it goes without where the
 * backend copies none. */
static void limit_to_state(sched *sc)
{
    size_t floats = model_state_floats(model_get_config(sc->m));
    if (floats == 0) return;
    size_t each = state_slot_bytes(floats), n = sc->cfg.snapshot_bytes / each;
    if (n > SNAPSHOTS_MAX) n = SNAPSHOTS_MAX;
    sc->cfg.prefix_cache = sc->cfg.prefix_cache && n > 0 && be_can_copy(sc->be);
    sc->mem.n_snapshots = sc->cfg.prefix_cache ? (int)n : 0;
    sc->mem.snapshot_pages =
        sc->cfg.snapshot_pages > 0 ? sc->cfg.snapshot_pages : DEFAULT_SNAPSHOT_PAGES;
    if (!be_can_copy(sc->be)) sc->cfg.speculate = 0;
    sc->mem.copy_us = (double)each / COPY_BYTES_PER_US;
    log_info("engine",
             "each sequence keeps a state of %zu bytes beside its KV pages; the prefix cache has "
             "room for %d snapshots",
             each, sc->mem.n_snapshots);
}

/* Derives everything from the configuration, the model and the number of pages. */
static void take_config(sched *sc, const sched_config *cfg)
{
    int max_pos = model_get_config(sc->m)->max_pos;
    int limit = max_pos < cfg->max_context ? max_pos : cfg->max_context;
    sc->cfg = *cfg;
    if (sc->cfg.ageing_us <= 0) sc->cfg.ageing_us = DEFAULT_AGEING_US;
    if (sc->cfg.max_faults <= 0) sc->cfg.max_faults = DEFAULT_FAULTS_MAX;
    limit_to_state(sc);
    if (sc->cfg.restart_wait_us <= 0) sc->cfg.restart_wait_us = DEFAULT_RESTART_WAIT_US;
    sc->faults.n_faults = cfg->n_faults;
    sc->shared.n_restarts = cfg->n_restarts;
    sc->mem.page_tokens = be_caps(sc->be)->page_tokens;
    sc->cap = sc->shared.most_inside = cfg->max_queued + cfg->max_seqs;
    const model_config *mc = model_get_config(sc->m);
    int64_t most = (int64_t)sc->mem.n_pages * sc->mem.page_tokens;
    sc->mem.most_pages = INT_MAX;
    if (mc->kept > 0) {
        sc->mem.see = (kv_sight){mc->kept, mc->window};
        sc->mem.most_pages =
            pages_for(sc, mc->kept) + pages_for(sc, mc->window + cfg->max_rows) + 2;
    }
    sc->mem.max_context = most < limit && sc->mem.n_pages < sc->mem.most_pages ? (int)most : limit;
    const experts_config *x = &model_get_config(sc->m)->experts;
    cost_init(&sc->cost);
    cost_experts(&sc->cost, x->route.n, x->route.top_k);
    for (int i = 0; i < SLO_CLASS_MAX; i++)
        sc->shared.surprise[i][0] = sc->shared.surprise[i][1] = 1;
    sc->shared.stats.healthy = true;
    sc->shared.stats.prefix_cache = sc->cfg.prefix_cache;
    sc->shared.stats.n_pages = sc->mem.n_pages;
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
    sc->mem.n_pages = (int)n_pages;
    take_config(sc, cfg);
    lock_init(&sc->mu, LOCK_SCHED);
    cond_init(&sc->shared.work);
    cond_init(&sc->shared.job_done);
    atomic_store(&sc->heartbeat_us, clock_now_us());
    sc->mem.arena = cfg->arena;
    if (!sc->mem.arena)
        rc = devmem_create(&sc->mem.own_arena, NULL, sc->mem.n_pages, page_bytes, 0, e);
    if (!sc->mem.arena) sc->mem.arena = sc->mem.own_arena;
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
    memcpy(sc->shared.wanted, classes, (size_t)sc->cfg.n_class * sizeof(*classes));
    sc->shared.adjusted = true;
    int most = max_queued + sc->cfg.max_seqs;
    sc->shared.most_inside = most < sc->cap ? most : sc->cap;
    cond_signal(&sc->shared.work);
    lock_release(&sc->mu);
}

void sched_destroy(sched *sc)
{
    if (!sc) return;
    lock_take(&sc->mu);
    sc->shared.stop = sc->shared.draining = true;
    cond_signal(&sc->shared.work);
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

/* One check for each kind of sampling_list.h.  A value that is not a number is in no range. */
static bool in_real(double value, double low, double most)
{
    return value >= low && value <= most;
}

static bool in_above(double value, double low, double most)
{
    return value > low && value <= most;
}
#define in_whole in_real
#define in_flag  in_real

static bool in_range(const sampling *r)
{
#define AND_IN_RANGE(kind, name, low, high, neutral, most, gguf) \
    &&in_##kind((double)r->name, low, most)
    return r->n_top <= SAMPLE_TOP_MAX SAMPLING_LIST(AND_IN_RANGE);
#undef AND_IN_RANGE
}

/* The last check before ids become indexes; nothing from outside is trusted. */
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
    *waits = promise_waits(&sc->shared.outlook, ask);
    return sc->shared.surprise[ask->slo][*waits] * promise_ttft_us(&sc->shared.outlook, ask);
}

/* The longest predicted wait with which the request is still accepted. */
static double most_us(const sched *sc, const request *rq, const promise_ask *ask)
{
    lock_assert_held(&sc->mu);
    int64_t target_us = ttft_target_us(sc, rq);
    return sc->cfg.classes[rq->slo_class].reject_on_overload
               ? promise_most_us(&sc->shared.outlook, ask, target_us)
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
    ask.n_output = lengths_look(sc->shared.lengths, &length).mean;
    bool waits;
    double us = predict_ttft(sc, &ask, &waits) - most_us(sc, rq, &ask);
    lock_release(&sc->mu);
    return us < 0 ? 0 : us < 1e15 ? (int64_t)us : INT64_MAX;
}

/* Early abort (S-LoRA): refuse while that is cheap. Running requests keep their pace, so waiting
 * for a slot is the price of both targets. mu is held. */
static err_code check_promise(const sched *sc, const request *rq, const promise_ask *ask, err *e)
{
    const slo_class *c = &sc->cfg.classes[rq->slo_class];
    double most = most_us(sc, rq, ask);
    char pace[64] = "";
    if (!c->reject_on_overload || rq->run.expected_us <= most) return ERR_NONE;
    if (rq->tpot_target_us)
        snprintf(pace, sizeof(pace), " and %lld ms for each further one",
                 (long long)(rq->tpot_target_us / 1000));
    return err_set(e, ERR_BUSY,
                   "the class '%s' is overloaded: the first token would take about %.0f ms. To "
                   "keep its targets (%lld ms for the first token%s), a request like this one is "
                   "accepted if that is at most %.0f ms",
                   c->name, rq->run.expected_us / 1000, (long long)(ttft_target_us(sc, rq) / 1000),
                   pace, most / 1000);
}

err_code sched_submit(sched *sc, request *rq, err *e)
{
    if (rq->n_prompt < 1) return err_set(e, ERR_INPUT, "the prompt has no tokens");
    if (rq->slo_class < 0 || rq->slo_class >= sc->cfg.n_class) {
        return err_set(e, ERR_INPUT, "unknown class %d", rq->slo_class);
    }
    if (rq->max_tokens < 0 || (rq->max_tokens == 0 && !rq->score_prompt && !rq->pool) ||
        rq->n_prompt > sc->mem.max_context || rq->max_tokens > sc->mem.max_context - rq->n_prompt) {
        return err_set(e, ERR_INPUT,
                       "%d prompt tokens and %d output tokens exceed the context of %d",
                       rq->n_prompt, rq->max_tokens, sc->mem.max_context);
    }
    err_code rc = check_request(sc, rq, e);
    if (!rc && rq->beams) rc = sched_beam_check(sc, rq, e);
    if (rc) return rc;
    if (!rq->run.page) {
        rq->run.page_cap = pages_for(sc, rq->n_prompt + rq->max_tokens + 1);
        size_t tables = rq->beams ? 2 * (size_t)width_of(rq) + 1 : 2; /* table_of() */
        size_t entries = tables * (size_t)rq->run.page_cap + (size_t)sc->mem.state_pages;
        rq->run.page = calloc(entries, sizeof(*rq->run.page));
        if (!rq->run.page) return err_set(e, ERR_NOMEM, "no memory for a block table");
        rq->run.swap_slot = rq->run.page + rq->run.page_cap;
        rq->run.state_swap = rq->run.swap_slot + rq->run.page_cap;
    }
    telemetry_enter(sc->tele, rq);
    promise_ask ask = ask_of(sc, rq);
    lengths_ask length = length_ask(rq);
    miss_cause refused = MISS_RESTART;
    int64_t now = clock_now_us(), disk_us = 0, load_us = 0;
    if (rq->adapter_id && sc->source && sc->source->spent)
        sc->source->spent(sc->source->self, &disk_us, &load_us);
    lock_take(&sc->mu);
    rq->run.length = lengths_look(sc->shared.lengths, &length);
    if (sc->shared.broken)
        rc = err_set(e, ERR_DEVICE, "the device has failed");
    else if (sc->shared.legacy.n_faults > 0)
        rc = err_set(e, ERR_RESTARTING, "the engine is being restarted");
    else if (sc->shared.draining && !rq->again)
        rc = err_set(e, ERR_STOPPING, "the server is shutting down");
    else if (sc->shared.n_inside >= sc->shared.most_inside) {
        rc = err_set(e, ERR_BUSY, "the queue is full (%d requests)", sc->shared.n_inside);
        refused = MISS_QUEUE;
    } else {
        ask.n_output = rq->run.length.mean;
        rq->run.expected_us = predict_ttft(sc, &ask, &rq->run.expected_wait);
        if (!rq->again) rc = check_promise(sc, rq, &ask, e);
        refused = 2 * ask.load_us > rq->run.expected_us ? MISS_ADAPTER_LOAD : MISS_QUEUE;
    }
    if (!rc) {
        cause_begin(&rq->times.clock, &sc->shared.sums_shown, rq->arrived_us, now, rq->limits_us,
                    rq->stalled_us);
        rq->times.clock.disk_us = disk_us;
        rq->times.clock.load_us = load_us;
        expect_one(sc, rq);
        sc->shared.n_inside++;
        rq->run.next = NULL;
        if (sc->shared.inbox_tail)
            sc->shared.inbox_tail->run.next = rq;
        else
            sc->shared.inbox_head = rq;
        sc->shared.inbox_tail = rq;
        cond_signal(&sc->shared.work);
    }
    lock_release(&sc->mu);
    if (rc) {
        rq->missed = (cause_verdict){refused, -1};
        telemetry_refuse(sc->tele, rq->slo_class, rq->tenant_id,
                         rc == ERR_BUSY || rc == ERR_STOPPING ? OUTCOME_REFUSED : OUTCOME_FAILED,
                         refused);
        free(rq->run.page);
        rq->run.page = NULL;
    }
    return rc;
}

bool sched_drain(sched *sc, int64_t timeout_us)
{
    int64_t end = clock_now_us() + timeout_us;
    for (;;) {
        lock_take(&sc->mu);
        sc->shared.draining = true;
        bool empty = sc->shared.n_inside == 0;
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
    *out = sc->shared.stats;
    out->healthy = !sc->shared.broken;
    out->restarting = sc->shared.restarting;
    out->n_restarts = sc->shared.n_restarts;
    lock_release(&sc->mu);
}

void sched_lengths_get(sched *sc, int class, lengths_record *out)
{
    lock_take(&sc->mu);
    lengths_record_get(sc->shared.lengths, class, out);
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
    return sc->mem.page_tokens;
}

int sched_max_context(const sched *sc)
{
    return sc->mem.max_context;
}

int64_t sched_heartbeat_us(const sched *sc)
{
    return atomic_load(&((sched *)sc)->heartbeat_us);
}
