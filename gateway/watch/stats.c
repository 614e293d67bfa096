/* stats.c -- the state behind GET /admin/v1/stats (loratop, loractl): takes pictures, keeps
 * samples, writes answers.
 *
 *   refresh()      engine board, residency, tenants, disk, spool --> rows of the journal
 *                  (stats_tables.c)
 *   samples        totals once a second, class counters every five: rates and percentiles are
 *                  differences of two samples
 *   stats_write()  the rows that changed since the client's cursor, as JSON by the field lists of
 *                  gateway/admin_proto.h
 *
 * A picture is taken only when somebody asks, or every UNWATCHED_US by the tick, so events are
 * recorded without viewers. The engine's queue is copied by the engine itself between two steps
 * (board.h); a picture waits for that at most `board_us`.
 *
 * The cursor is "epoch-number": the journal's number of the last change the client has seen. After
 * a restart the epoch differs and the client gets everything again.
 *
 * Threads: any worker and the tick; `mu` of stats guards everything and is the outermost lock.
 */
#include "gateway/watch/stats.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "gateway/adapter_parts.h"
#include "gateway/engine_parts.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"
#include "gateway/watch/stats_inside.h"
#include "storage/disk.h"
#include "storage/settler.h"

enum {
    BOARD_WAIT_US = 20000,
    OVERDUE_US = 2000000,
    UNWATCHED_US = 2000000, /* the tick takes a picture where nobody has asked for so long */
    SPOOL_LATE_US = 5000000,
    RATE_SAMPLES = 10,
    CLASS_WINDOW = 12
};

/* --------------------------------------------------------------------- lifetime -- */

stats *stats_create(struct server *s)
{
    stats *st = calloc(1, sizeof(*st));
    if (!st) return NULL;
    st->srv = s;
    st->epoch = (uint64_t)clock_wall_us();
    st->told.was_healthy = true;
    st->told.had_reserve = true;
    st->wall_minus_mono = clock_wall_us() - clock_now_us();
    lock_init(&st->mu, LOCK_STATS);
    lock_init(&st->events_mu, LOCK_STATS_EVENTS);
    st->book = book_create();
    st->ended = ended_create();
    st->refusals = refusals_create();
    st->history = stats_history_create(clock_wall_us() / 1000000);
    st->journal = journal_create(proto_table_bytes, TABLES);
    if (!st->book || !st->ended || !st->refusals || !st->history || !st->journal) {
        stats_destroy(st);
        return NULL;
    }
    stats_seed_events(st);
    return st;
}

/* ------------------------------------------------------------------------ history -- */

static void tell_breach(void *arg, int class, const breach *b)
{
    stats *st = arg;
    char text[PROTO_TEXT_CAP];
    const config *conf = live_pin(process_of(st->srv)->live);
    breach_text(b, conf->classes.each[class].ttft_us, conf->classes.each[class].tpot_us, text,
                sizeof(text));
    live_release(process_of(st->srv)->live, conf);
    stats_event(st, b->until_s ? "info" : "warning", b->until_s ? "slo.kept" : "slo.broken", 0,
                engine_of(st->srv)->class_name[class], text, 0);
}

/* Requests the engine's snapshot and reads it at a later tick, so no one waits for a long step. */
static void see_overdue(stats *st, int64_t now_us)
{
    board_picture *p = &st->inside;
    if (now_us - st->asked_us < OVERDUE_US && p->taken_us >= st->asked_us) return;
    if (p->taken_us >= st->asked_us) st->asked_us = now_us;
    bool any = board_read(sched_board(sched_of(st->srv)), 0, p);
    if (any && p->taken_us >= st->asked_us) stats_history_overdue(st->history, p->row, p->n_row);
}

static void tick_history(stats *st, int64_t now_s)
{
    const char *names[SLO_CLASS_MAX];
    for (int i = 0; i < engine_of(st->srv)->n_class; i++)
        names[i] = engine_of(st->srv)->class_name[i];
    stats_history_tick(st->history, store_of(st->srv), names, engine_of(st->srv)->n_class, now_s,
                       tell_breach, st);
}

/* Requests have ended, and the storage thread still runs: what is under way is written. */
static void end_history(stats *st)
{
    if (!st->history) return;
    tick_history(st, clock_wall_us() / 1000000 + HISTORY_COARSE_S);
    stats_history_destroy(st->history);
}

void stats_destroy(stats *st)
{
    if (!st) return;
    end_history(st);
    lock_take(&st->mu);
    if (st->journal) stats_take_events(st); /* webhooks are still there */
    lock_release(&st->mu);
    board_picture_clear(&st->picture);
    board_picture_clear(&st->inside);
    journal_destroy(st->journal);
    book_destroy(st->book);
    ended_destroy(st->ended);
    refusals_destroy(st->refusals);
    free(st->tenants.row);
    free(st->tenants.usage);
    stats_adapters_free(&st->adapters);
    free(st->tiers.row);
    lock_free(&st->events_mu);
    lock_free(&st->mu);
    free(st);
}

/* ------------------------------------------------------------------------ telling -- */

struct ended *stats_ended(stats *st)
{
    return st->ended;
}

book *stats_book(stats *st)
{
    return st->book;
}

void stats_note(stats *st, const usage_row *row, uint64_t owner_id, const request *rq,
                const char *request_id)
{
    if (!st) return;
    book_note(st->book, row, rq->slo_class, cause_adapter_us(&rq->times.clock), owner_id);
    ended_note(st->ended, row, rq, request_id);
    stats_history_note(st->history, rq->id, row, rq->slo_class);
    if (row->status < 500) return;
    char detail[96];
    snprintf(detail, sizeof(detail), "status %d, %s", row->status, row->finish);
    stats_event(st, "error", "request.failed", row->tenant_id, row->model, detail, 0);
}

void stats_refused(stats *st, uint64_t tenant_id, int class, miss_cause why)
{
    if (!st) return;
    book_refused(st->book, tenant_id, class, why);
    stats_history_refused(st->history, tenant_id, class, why);
}

/* At most one event per limit and hour: a tenant at its limit may be refused a thousand times. */
void stats_limited(stats *st, uint64_t tenant_id, const char *scope, const char *limit)
{
    char text[96];
    if (!st || !refusals_note(st->refusals, tenant_id, scope, limit, clock_wall_us() / 1000000))
        return;
    snprintf(text, sizeof(text), "the %s's limit %s refuses requests", scope, limit);
    stats_event(st, "warning", "limit.reached", tenant_id, "", text, 0);
}

int stats_refusals(stats *st, uint64_t tenant_id, refusal_count *out)
{
    return refusals_of(st->refusals, tenant_id, clock_wall_us() / 1000000, out);
}

/* ----------------------------------------------------------------------- sampling -- */

static void take_totals(struct server *s, proto_totals *t, const sched_stats *e,
                        const residency_stats *r)
{
    const server_counters *c = &process_of(s)->count;
    const http_counts *h = &process_of(s)->http.count;
    *t = (proto_totals){
        .prompt_tokens = (int64_t)atomic_load(&c->prompt_tokens),
        .cached_tokens = (int64_t)atomic_load(&c->cached_tokens),
        .output_tokens = (int64_t)atomic_load(&c->output_tokens),
        .computed_tokens = (int64_t)e->n_prompt_tokens,
        .made_tokens = (int64_t)e->n_output_tokens,
        .http_2xx = (int64_t)atomic_load(&h->requests[2]),
        .http_4xx = (int64_t)atomic_load(&h->requests[4]),
        .http_5xx = (int64_t)atomic_load(&h->requests[5]),
        .rate_limited = (int64_t)atomic_load(&c->rate_limited),
        .auth_failures = (int64_t)atomic_load(&c->auth_failures),
        .uploads = (int64_t)atomic_load(&c->uploads),
        .finished = (int64_t)e->n_finished,
        .cancelled = (int64_t)e->n_cancelled,
        .failed = (int64_t)e->n_failed,
        .engine_restarts = (int64_t)e->n_restarts,
        .preempted = (int64_t)e->n_preempted,
        .steps = (int64_t)e->n_steps,
        .rows = (int64_t)e->n_rows,
        .busy_us = e->busy_us,
        .plan_us = e->plan_us,
        .forward_us = e->forward_us,
        .sample_us = e->sample_us,
        .settle_us = e->settle_us,
        .adapter_hits = (int64_t)r->n_hits,
        .adapter_misses = (int64_t)r->n_misses,
        .adapter_loads = (int64_t)r->n_loads,
        .adapter_evictions = (int64_t)r->n_evictions,
        .adapter_failures = (int64_t)r->n_failures,
        .adapter_loaded_bytes = (int64_t)r->loaded_bytes,
        .adapter_load_us = r->load_us_sum,
        .adapter_waits = (int64_t)e->n_adapter_waits,
    };
}

static void keep_class(void *arg, uint64_t id, const book_counts *c)
{
    stats *st = arg;
    if (id < (uint64_t)engine_of(st->srv)->n_class) st->class_counts[id] = *c;
}

/* Raises the event once for each certificate, when its last days have begun. */
static void see_certificate(stats *st, int64_t now_s)
{
    int64_t until_s = atomic_load(&process_of(st->srv)->http.cert_expires_wall_us) / 1000000;
    if (!until_s || until_s - now_s > STATS_CERTIFICATE_S || until_s == st->told.certificate_s)
        return;
    char text[64];
    st->told.certificate_s = until_s;
    snprintf(text, sizeof(text), "%lld days are left: renew it",
             (long long)((until_s - now_s) / 86400));
    stats_event(st, "warning", "certificate.ends", 0, "",
                until_s > now_s ? text : "it has expired: clients refuse it", 0);
}

/* ------------------------------------------------------------------------ classes -- */

static void write_percentiles(proto_class *c, const book_counts *now, const book_counts *then)
{
    uint32_t ttft[BOOK_BUCKETS], tpot[BOOK_BUCKETS];
    for (int i = 0; i < BOOK_BUCKETS; i++) {
        ttft[i] = now->ttft[i] - then->ttft[i];
        tpot[i] = now->tpot[i] - then->tpot[i];
    }
    c->ttft_p50_ms = book_percentile_ms(ttft, 0.50);
    c->ttft_p90_ms = book_percentile_ms(ttft, 0.90);
    c->ttft_p99_ms = book_percentile_ms(ttft, 0.99);
    c->tpot_p50_ms = book_percentile_ms(tpot, 0.50);
    c->tpot_p90_ms = book_percentile_ms(tpot, 0.90);
    c->tpot_p99_ms = book_percentile_ms(tpot, 0.99);
}

/* While it breaks its promises. */
static void put_verdict(stats *st, int class, proto_class *c)
{
    const config_class *k = &st->conf->classes.each[class];
    breach b = stats_history_breach(st->history, class);
    if (!b.since_s || b.until_s) return;
    int most = MISS_NONE;
    for (int i = 0; i < MISS_CAUSES; i++) {
        if (b.cause[i] > b.cause[most]) most = i;
    }
    c->broken_since_s = b.since_s;
    snprintf(c->verdict_cause, sizeof(c->verdict_cause), "%s", miss_cause_name(most));
    breach_text(&b, k->ttft_us, k->tpot_us, c->verdict, sizeof(c->verdict));
}

/* Counts since the start, and shares over the last CLASS_WINDOW samples: the ring has the counts
 * as they were then. Requests that run or wait come from the scheduler's picture. */
static void take_classes(stats *st)
{
    lock_assert_held(&st->mu);
    book_drain(st->book, BOOK_CLASS, keep_class, st);
    uint64_t back = st->n_class_sample < CLASS_WINDOW ? st->n_class_sample : CLASS_WINDOW;
    const class_sample *old =
        back ? &st->class_ring[(st->n_class_sample - back) % CLASS_SAMPLES] : NULL;
    int64_t start_us = st->taken_us - st->server.uptime_s * 1000000;
    double seconds = (double)(st->taken_us - (old ? old->at_us : start_us)) / 1e6;
    int by_default = class_of_name(&st->conf->classes, st->conf->classes.default_name);
    for (int i = 0; i < engine_of(st->srv)->n_class; i++) {
        const config_class *k = &st->conf->classes.each[i];
        const book_counts *now = &st->class_counts[i];
        static const book_counts none;
        const book_counts *then = old ? &old->counts[i] : &none;
        uint64_t met = now->met - then->met, missed = now->missed - then->missed;
        proto_class *c = &st->classes[i];
        memset(c, 0, sizeof(*c));
        snprintf(c->name, sizeof(c->name), "%s", k->name);
        snprintf(c->on_overload, sizeof(c->on_overload), "%.*s", PROTO_WORD_CAP - 1, k->overload);
        c->ttft_target_ms = (double)k->ttft_us / 1e3;
        c->tpot_target_ms = (double)k->tpot_us / 1e3;
        c->weight = (double)k->weight_milli / 1000;
        c->is_default = i == by_default;
        c->ended = (int64_t)now->ended;
        c->refused = (int64_t)now->refused;
        c->limited = (int64_t)now->limited;
        c->failed = (int64_t)now->failed;
        c->met = (int64_t)now->met;
        c->missed = (int64_t)now->missed;
        PUT_CAUSES(c, now->cause);
        c->attained = met + missed ? (double)met / (double)(met + missed) : -1;
        c->goodput = seconds > 0 ? (double)met / seconds : 0;
        write_percentiles(c, now, then);
        put_verdict(st, i, c);
    }
    for (int i = 0; i < st->picture.n_row; i++) {
        const board_row *r = &st->picture.row[i];
        if (r->slo_class < 0 || r->slo_class >= engine_of(st->srv)->n_class) continue;
        if (r->running)
            st->classes[r->slo_class].running++;
        else
            st->classes[r->slo_class].waiting++;
    }
}

/* --------------------------------------------------------------------- the server -- */

static int64_t rss_bytes(void)
{
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    const char *second = strchr(text, ' ');
    return second ? strtoll(second, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
}

/* The process that holds the database; its name where this process can see it. */
static void put_holder(int pid, char out[PROTO_NAME_CAP])
{
    char path[64], name[32] = "";
    out[0] = 0;
    if (pid <= 0) return;
    snprintf(path, sizeof(path), "/proc/%d/comm", pid);
    FILE *f = fopen(path, "re");
    if (f && !fgets(name, sizeof(name), f)) name[0] = 0;
    if (f) (void)fclose(f);
    name[strcspn(name, "\n")] = 0;
    snprintf(out, PROTO_NAME_CAP, name[0] ? "%d (%s)" : "%d", pid, name);
}

/* A short wait is no incident: a commit of 100 ms puts the spool behind. */
static void tell_spool(stats *st, const settler_stats *spool)
{
    char text[PROTO_TEXT_CAP];
    bool late = spool->state == SPOOL_BEHIND && spool->oldest_us >= SPOOL_LATE_US;
    spool_state now = spool->state == SPOOL_BEHIND && !late ? st->told.spool : spool->state;
    if (now == st->told.spool || (now == SPOOL_BEHIND && st->told.spool == SPOOL_FULL)) return;
    st->told.spool = now;
    snprintf(text, sizeof(text), "%d of %d usage rows are queued on disk; nothing is lost%s%.90s",
             spool->n_waiting, spool->n_spool, spool->reason[0] ? ": " : "", spool->reason);
    if (now == SPOOL_FULL)
        stats_event(st, "error", "storage.full", 0, "",
                    "the spool of usage rows is full: new requests are refused", 0);
    else if (now == SPOOL_BEHIND)
        stats_event(st, "error", "storage.behind", 0, "", text, 0);
    else
        stats_event(st, "info", "storage.ok", 0, "", "usage is written to the database again", 0);
}

/* True: it is full. */
static bool take_spool(stats *st)
{
    proto_server *o = &st->server;
    settler_stats spool;
    settler_stats_get(engine_of(st->srv)->settler, &spool);
    snprintf(o->storage, sizeof(o->storage), "%s", spool_state_name(spool.state));
    o->spool_rows = spool.n_spool;
    o->spool_used = spool.n_waiting;
    o->spool_oldest_us = spool.oldest_us;
    store_stats db;
    store_stats_get(store_of(st->srv), &db);
    snprintf(o->storage_reason, sizeof(o->storage_reason), "%s", spool.reason);
    if (spool.reason[0]) put_holder(db.lock_holder, o->storage_holder);
    tell_spool(st, &spool);
    return spool.state == SPOOL_FULL;
}

/* Uploads are refused below the floor. */
static void tell_disk_low(stats *st, const proto_server *o)
{
    char text[PROTO_TEXT_CAP];
    bool low = o->disk_low;
    if (low == st->told.disk_low) return;
    st->told.disk_low = low;
    snprintf(text, sizeof(text), "uploads are %s: %.1f GiB free, data.min_free keeps %.1f GiB",
             low ? "refused" : "accepted again", (double)o->disk_free_bytes / 1073741824,
             (double)o->disk_floor_bytes / 1073741824);
    stats_event(st, low ? "warning" : "info", low ? "disk.low" : "disk.enough", 0, "", text, 0);
}

static void take_disk(stats *st)
{
    proto_server *o = &st->server;
    disk_room disk = {.free_bytes = (uint64_t)o->disk_free_bytes};
    store_stats db;
    o->disk_floor_bytes = (int64_t)process_of(st->srv)->disk_floor_bytes;
    o->disk_low =
        disk_is_low(process_of(st->srv)->cfg->data.dir, (uint64_t)o->disk_floor_bytes, &disk);
    o->disk_free_bytes = (int64_t)disk.free_bytes;
    store_stats_get(store_of(st->srv), &db);
    tell_disk_low(st, o);
    o->disk_reserve = db.reserve_held;
    o->lockouts_pending = db.n_lockouts;
    o->fleet = db.fleet.member;
    snprintf(o->fleet_role, sizeof(o->fleet_role), "%s",
             process_of(st->srv)->cfg->server.fleet_role);
    o->fleet_fenced = db.fleet.fenced;
    o->fleet_away_us = db.fleet.away_us;
    o->fleet_behind = db.fleet.behind;
    if (o->disk_reserve == st->told.had_reserve) return;
    st->told.had_reserve = o->disk_reserve;
    if (o->disk_reserve)
        stats_event(st, "info", "disk.room", 0, "", "the database's reserve is restored", 0);
    else
        stats_event(st, "error", "disk.full", 0, "",
                    "the disk is full: the database's reserve is given up", 0);
}

static void take_server(stats *st, const sched_stats *e)
{
    lock_assert_held(&st->mu);
    struct server *s = st->srv;
    proto_server *o = &st->server;
    struct rusage ru;
    memset(o, 0, sizeof(*o));
    snprintf(o->version, sizeof(o->version), "%s", LORAD_VERSION);
    snprintf(o->backend, sizeof(o->backend), "%s, weights %s, KV %s",
             be_caps(engine_of(s)->be)->detail, model_get_config(engine_of(s)->model)->format,
             model_kv_name(engine_of(s)->model));
    snprintf(o->gpu_unused, sizeof(o->gpu_unused), "%s", engine_of(s)->gpu_unused);
    snprintf(o->model, sizeof(o->model), "%s", process_of(s)->cfg->model.name);
    if (gethostname(o->host, sizeof(o->host) - 1)) o->host[0] = 0;
    o->started_s = process_of(s)->started_wall_us / 1000000;
    o->now_us = clock_wall_us();
    o->at_us = st->taken_us;
    o->picture_us = st->picture.taken_us;
    o->uptime_s = (o->now_us - process_of(s)->started_wall_us) / 1000000;
    o->healthy = e->healthy;
    o->draining = atomic_load(&process_of(s)->http.draining);
    o->restarting = e->restarting;
    bool full = take_spool(st);
    o->ready =
        atomic_load(&process_of(s)->ready) && !o->draining && e->healthy && !e->restarting && !full;
    o->max_seqs = process_of(s)->cfg->engine.max_seqs;
    o->max_queued = st->conf->engine.max_queued;
    o->max_context = sched_max_context(sched_of(s));
    o->connections = (int64_t)atomic_load(&process_of(s)->http.count.connections);
    o->certificate_until_s = atomic_load(&process_of(s)->http.cert_expires_wall_us) / 1000000;
    o->rss_bytes = rss_bytes();
    take_disk(st);
    if (getrusage(RUSAGE_SELF, &ru) == 0) {
        o->cpu_us = (ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * INT64_C(1000000) +
                    ru.ru_utime.tv_usec + ru.ru_stime.tv_usec;
    }
}

static void take_engine(stats *st, const sched_stats *e, const residency_stats *r)
{
    lock_assert_held(&st->mu);
    resident_counts weights;
    model_resident(engine_of(st->srv)->model, &weights);
    st->engine = (proto_engine){
        .weights_bytes = (int64_t)weights.resident_bytes,
        .weights_budget = (int64_t)weights.budget_bytes,
        .weights_read = (int64_t)weights.read_bytes,
        .weights_wait_us = (int64_t)weights.waited_us,
        .running = e->n_running,
        .waiting = e->n_waiting,
        .pages = e->n_pages,
        .pages_used = e->n_pages_used,
        .pages_cached = e->n_pages_cached,
        .kv_bytes = process_of(st->srv)->cfg->engine.kv_memory,
        .draft_bytes = (int64_t)e->guess.draft_bytes,
        .draft_used_bytes = (int64_t)e->guess.draft_used_bytes,
        .state_bytes = (int64_t)e->state.n_slots * (int64_t)e->state.bytes_each,
        .state_used_bytes = (int64_t)e->state.n_used * (int64_t)e->state.bytes_each,
        .state_copy_bytes = (int64_t)e->state.n_spare * (int64_t)e->state.bytes_each,
        .snapshots = e->snapshots.n_used,
        .snapshot_bytes = (int64_t)e->snapshots.n_slots * (int64_t)e->state.bytes_each,
        .snapshot_used_bytes = (int64_t)e->snapshots.n_used * (int64_t)e->state.bytes_each,
        .prefix_cache = e->prefix_cache,
        .last_rows = e->last.rows,
        .last_prefill = e->last.prefill,
        .last_seqs = e->last.seqs,
        .last_adapters = e->last.adapters,
        .last_step_us = e->last.us,
        .silent_us = st->taken_us - sched_heartbeat_us(sched_of(st->srv)),
        .cost_error = e->cost_error,
        .cost_step_us = e->cost_step_us,
        .cost_row_us = e->cost_row_us,
        .adapters_registered = (int64_t)stats_registered(st)->n_adapters,
        .adapters_resident = r->n_resident,
        .adapters_loading = r->n_loading,
        .adapters_queued = r->n_waiting,
        .adapters_pinned = r->n_pinned,
        .adapters_in_use = r->n_acquired,
        .adapter_bytes = (int64_t)r->used_bytes,
        .adapter_budget_bytes = (int64_t)r->budget_bytes,
        .load_us_max = r->load_us_max,
    };
    if (st->engine.silent_us < 0) st->engine.silent_us = 0;
    if (e->n_restarts != st->told.restarts_seen) {
        st->told.restarts_seen = e->n_restarts;
        stats_event(st, "error", "engine.restart", 0, "",
                    "the device failed; what ran on it was refused, and it is opened again", 0);
    }
    if (e->healthy != st->told.was_healthy) {
        st->told.was_healthy = e->healthy;
        stats_event(st, "error", "engine.failed", 0, "", "the device failed and does not come back",
                    0);
    }
}

/* board_us: how long to wait for the engine to show its queue. */
static void refresh(stats *st, int64_t period_us, int64_t board_us)
{
    lock_assert_held(&st->mu);
    int64_t now = clock_now_us();
    if (st->taken_us && now - st->taken_us < period_us) return;
    sched_stats e;
    residency_stats r;
    st->conf = live_pin(process_of(st->srv)->live);
    (void)board_read(sched_board(sched_of(st->srv)), board_us, &st->picture);
    st->taken_us = clock_now_us();
    sched_stats_get(sched_of(st->srv), &e);
    residency_stats_get(residency_of(st->srv), &r);
    take_totals(st->srv, &st->totals, &e, &r);
    take_server(st, &e);
    take_engine(st, &e, &r);
    take_classes(st);
    stats_take_tenants(st);
    stats_take_adapters(st);
    stats_put_tenants(st);
    stats_take_requests(st);
    stats_take_events(st);
    live_release(process_of(st->srv)->live, st->conf);
    st->conf = NULL;
}

void stats_tick(stats *st)
{
    if (!st) return;
    int64_t now_s = clock_wall_us() / 1000000;
    see_certificate(st, now_s);
    int64_t now = clock_now_us();
    see_overdue(st, now);
    tick_history(st, now_s);
    lock_take(&st->mu);
    const totals_sample *last = &st->sample[(st->n_sample - 1) % SAMPLES];
    if (st->n_sample == 0 || now - last->at_us >= 950000) {
        sched_stats e;
        residency_stats r;
        sched_stats_get(sched_of(st->srv), &e);
        residency_stats_get(residency_of(st->srv), &r);
        totals_sample *t = &st->sample[st->n_sample++ % SAMPLES];
        t->at_us = now;
        take_totals(st->srv, &t->totals, &e, &r);
    }
    const class_sample *before = &st->class_ring[(st->n_class_sample - 1) % CLASS_SAMPLES];
    if (st->n_class_sample == 0 || now - before->at_us >= CLASS_SAMPLE_S * 1000000 - 50000) {
        book_drain(st->book, BOOK_CLASS, keep_class, st);
        class_sample *k = &st->class_ring[st->n_class_sample++ % CLASS_SAMPLES];
        k->at_us = now;
        memcpy(k->counts, st->class_counts, sizeof(k->counts));
    }
    /* Events are recorded whether or not anybody is watching. */
    refresh(st, UNWATCHED_US, 0);
    lock_release(&st->mu);
}

/* ----------------------------------------------------------------------- writing -- */

static void write_object(jsonw *w, const char *name, const proto_field *f, const void *base)
{
    jsonw_open(w, name, '{');
    for (; f->name; f++) {
        const char *at = (const char *)base + f->offset;
        switch (f->kind) {
        case PROTO_TEXT: jsonw_str(w, f->name, at); break;
        case PROTO_INT: jsonw_int(w, f->name, *(const int64_t *)(const void *)at); break;
        case PROTO_NUM: jsonw_num(w, f->name, *(const double *)(const void *)at); break;
        case PROTO_BOOL: jsonw_bool(w, f->name, *(const bool *)(const void *)at); break;
        }
    }
    jsonw_close(w, '}');
}

static void write_rates(const stats *st, jsonw *w)
{
    proto_rates r = {0};
    uint64_t back = st->n_sample < RATE_SAMPLES ? st->n_sample : RATE_SAMPLES;
    const totals_sample *old = back ? &st->sample[(st->n_sample - back) % SAMPLES] : NULL;
    double s = old ? (double)(st->taken_us - old->at_us) / 1e6 : 0;
    if (s > 0.05) {
        const proto_totals *a = &old->totals, *b = &st->totals;
        r = (proto_rates){
            .prompt_tokens = (double)(b->computed_tokens - a->computed_tokens) / s,
            .output_tokens = (double)(b->made_tokens - a->made_tokens) / s,
            .requests = (double)(b->http_2xx + b->http_4xx + b->http_5xx - a->http_2xx -
                                 a->http_4xx - a->http_5xx) /
                        s,
            .rate_limited = (double)(b->rate_limited - a->rate_limited) / s,
            .errors = (double)(b->http_5xx - a->http_5xx) / s,
            .steps = (double)(b->steps - a->steps) / s,
            .loads = (double)(b->adapter_loads - a->adapter_loads) / s,
            .evictions = (double)(b->adapter_evictions - a->adapter_evictions) / s,
            .busy = (double)(b->busy_us - a->busy_us) / 1e6 / s,
        };
    }
    write_object(w, "rates", proto_rates_fields, &r);
}

static void write_hist(jsonw *w, const char *name, const uint32_t *n)
{
    jsonw_open(w, name, '[');
    for (int i = 0; i < BOOK_BUCKETS; i++) jsonw_int(w, NULL, n[i]);
    jsonw_close(w, ']');
}

static void write_classes(const stats *st, jsonw *w)
{
    jsonw_open(w, "classes", '[');
    for (int i = 0; i < engine_of(st->srv)->n_class; i++) {
        write_object(w, NULL, proto_class_fields, &st->classes[i]);
        if (!w->failed) w->len--; /* the brace: the histograms belong inside */
        write_hist(w, PROTO_CLASS_TTFT_HIST, st->class_counts[i].ttft);
        write_hist(w, PROTO_CLASS_TPOT_HIST, st->class_counts[i].tpot);
        jsonw_close(w, '}');
    }
    jsonw_close(w, ']');
    jsonw_open(w, PROTO_HIST_BOUNDS, '[');
    for (int i = 0; i < BOOK_BOUNDS; i++) jsonw_int(w, NULL, book_bounds_us[i]);
    jsonw_close(w, ']');
}

/* The journal mixes the tables; an answer has them one after another. */
typedef struct {
    unsigned tables;
    jsonw rows[TABLES], gone[TABLES];
} sorted;

static void sort_row(void *arg, int table, uint64_t id, const void *row)
{
    sorted *o = arg;
    if (!(o->tables & 1U << table)) return;
    if (row) {
        write_object(&o->rows[table], NULL, proto_table_fields[table], row);
    } else {
        char text[24];
        snprintf(text, sizeof(text), "%llu", (unsigned long long)id);
        jsonw_str(&o->gone[table], NULL, text);
    }
}

static void write_rows(jsonw *w, sorted *o)
{
    bool failed = false;
    for (int t = 0; t < TABLES; t++) {
        if (!(o->tables & 1U << t)) continue;
        jsonw_open(w, proto_table_names[t], '[');
        if (o->rows[t].len) jsonw_raw(w, o->rows[t].text, o->rows[t].len);
        jsonw_close(w, ']');
        failed |= o->rows[t].failed;
    }
    jsonw_open(w, "gone", '{');
    for (int t = 0; t < TABLES; t++) {
        if (o->gone[t].len == 0) continue;
        jsonw_open(w, proto_table_names[t], '[');
        jsonw_raw(w, o->gone[t].text, o->gone[t].len);
        jsonw_close(w, ']');
        failed |= o->gone[t].failed;
    }
    jsonw_close(w, '}');
    for (int t = 0; t < TABLES; t++) {
        jsonw_clear(&o->rows[t]);
        jsonw_clear(&o->gone[t]);
    }
    w->failed |= failed;
}

/* "epoch-number"; 0: from the beginning. */
static uint64_t since_of(const stats *st, const char *cursor)
{
    char *end;
    if (!cursor) return 0;
    if (strtoull(cursor, &end, 16) != st->epoch || *end != '-') return 0;
    return strtoull(end + 1, NULL, 10);
}

void stats_write(stats *st, const stats_query *q, jsonw *w, char *cursor, bool *more)
{
    sorted o = {.tables = q->tables};
    bool reset = false;
    lock_take(&st->mu);
    refresh(st, STATS_PERIOD_US, BOARD_WAIT_US);
    uint64_t since = since_of(st, q->cursor);
    uint64_t now = journal_read(st->journal, since, q->limit, more, &reset, sort_row, &o);
    snprintf(cursor, 64, "%llx-%llu", (unsigned long long)st->epoch, (unsigned long long)now);
    snprintf(st->server.access, sizeof(st->server.access), "%s", q->access);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "stats");
    jsonw_str(w, "cursor", cursor);
    jsonw_bool(w, "reset", reset || since == 0);
    jsonw_bool(w, "more", *more);
    write_object(w, "server", proto_server_fields, &st->server);
    write_object(w, "totals", proto_totals_fields, &st->totals);
    write_rates(st, w);
    write_object(w, "engine", proto_engine_fields, &st->engine);
    write_classes(st, w);
    lock_release(&st->mu);
    write_rows(w, &o);
    jsonw_close(w, '}');
}
