/* background.c -- responses with `background: true`: a list of jobs, and threads that run them as
 * requests of the server itself (gateway/http/inner.h).
 *
 *   queued --thread free--> in_progress --+--> completed, incomplete (by responses_create())
 *                               ^         +--> failed
 *                               |         +--> cancelled
 *                               +-- pause after 429 or 503, up to TRIES_MAX
 *
 * The stored row is what clients poll.  A job lives in memory only; if the process ends, the row
 * stays "in_progress", and background_lost() marks it as failed when somebody asks for it.  Each
 * attempt checks the key and the tenant again, because a job may wait for long.
 *
 * A streamed job collects its events in `events`.  Followers wait in background_news() for bytes
 * beyond those they have; keep_events() stores them before the job is removed, so a follower finds
 * them either here or in the database.
 *
 * A cancellation may come before the engine has the request.  So background_cancel() repeats it
 * every LOOK_US until the job has ended.
 */
#include "gateway/doors/background.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/inner.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

enum {
    TRIES_MAX = 100, /* of a response that meets limits of rates */
    RETRY_MIN_MS = 100,
    RETRY_MAX_MS = 10000,
    LOOK_US = 20000, /* between looks for the request that is to be stopped */
    NEWS_US = 500000,
};

typedef struct job {
    struct job *next;
    uint64_t request_id, tenant_id, key_id;
    char id[RESPONSES_ID_MAX + 1];
    cJSON *body;
    bool streamed;
    background *of;
    bool running, cancelled; /* this and `events` guarded by background.mu */
    jsonw events;            /* of a stream, whole ones */
} job;

struct background {
    server *srv;
    int n_threads;
    pthread_t *thread; /* [n_threads] */

    lock mu;    /* guards all below */
    cond work;  /* new jobs, or the end */
    cond ended; /* a job has ended, is to be cancelled, or has new events */
    job *jobs;  /* a list, oldest first */
    int n_jobs;
    bool stop;
};

/* ---------------------------------------------------------------------------- rows -- */

/* The row's object with another status, and an error where there is one. */
static err_code mark(server *s, response_row *row, const char *status, const char *code,
                     const char *msg, err *e)
{
    cJSON *tree = NULL;
    err_code rc = json_parse(row->body, strlen(row->body), &json_limits_trusted, &tree, e);
    if (rc) return rc;
    door_set(tree, "status", cJSON_CreateString(status));
    if (code) {
        cJSON *error = cJSON_CreateObject();
        door_add_text(error, "code", code);
        door_add_text(error, "message", msg);
        door_set(tree, "error", error);
    }
    char *body = json_print(tree);
    cJSON_Delete(tree);
    if (!body) return err_set(e, ERR_NOMEM, "out of memory");
    free(row->body);
    row->body = body;
    row->running = strcmp(status, "in_progress") == 0;
    return responses_put(store_of(s), tenants_seal_key(tenants_of(s)), row, NULL, e);
}

static void mark_job(background *b, const job *j, const char *status, const char *code,
                     const char *msg)
{
    response_row row;
    err e;
    err_code rc = responses_get(store_of(b->srv), tenants_seal_key(tenants_of(b->srv)),
                                j->tenant_id, j->id, &row, &e);
    if (rc == ERR_NOT_FOUND) return; /* deleted meanwhile */
    if (!rc) {
        rc = mark(b->srv, &row, status, code, msg, &e);
        response_row_clear(&row);
    }
    if (rc) log_error("gateway", "response %s is not marked as %s: %s", j->id, status, e.msg);
}

err_code background_lost(server *s, response_row *row, err *e)
{
    return mark(s, row, "failed", "server_error", "the server ended before the response did", e);
}

/* ---------------------------------------------------------------------------- making -- */

/* Marks it as failed with the answer's error; the code is one of the few that a response may have.
 */
static void mark_failed(background *b, const job *j, const inner_request *r)
{
    cJSON *tree = NULL;
    err e;
    const char *msg = NULL;
    const char *code = r->status == 429                      ? "rate_limit_exceeded"
                       : r->status >= 400 && r->status < 499 ? "invalid_prompt"
                                                             : "server_error";
    if (r->answer && !json_parse(r->answer, r->answer_len, &json_limits_request, &tree, &e))
        msg = cJSON_GetStringValue(json_get(json_get(tree, "error"), "message"));
    mark_job(b, j, "failed", code, msg ? msg : "there is no answer");
    cJSON_Delete(tree);
}

static bool hear(void *listener, const char *s, size_t len)
{
    job *j = listener;
    lock_take(&j->of->mu);
    jsonw_raw(&j->events, s, len);
    bool ok = !j->events.failed;
    cond_broadcast(&j->of->ended);
    lock_release(&j->of->mu);
    return ok;
}

/* False: try again after *wait_ms. */
static bool try_once(background *b, job *j, int64_t *wait_ms)
{
    caller who = {0};
    err e;
    err_code rc = auth_again(store_of(b->srv), j->tenant_id, j->key_id, &who, &e);
    if (rc) {
        mark_job(b, j, "failed", "server_error", e.msg);
        return true;
    }
    char reason[128];
    inner_request r = {.method = "POST",
                       .path = "/v1/responses",
                       .body = j->body,
                       .id = j->request_id,
                       .most_choices = 1,
                       .who = &who,
                       .tenant = who.tenant.name,
                       .conf = live_pin(process_of(b->srv)->live),
                       .hear = j->streamed ? hear : NULL,
                       .listener = j};
    const char *tier = cJSON_GetStringValue(json_get(j->body, "service_tier"));
    r.slo_class = tenant_class(&r.conf->classes, &who.tenant, tier, reason, sizeof(reason));
    if (r.slo_class < 0)
        mark_job(b, j, "failed", "invalid_prompt", reason);
    else
        inner_run(&process_of(b->srv)->http, &r, responses_create);
    live_release(process_of(b->srv)->live, r.conf);
    lock_take(&b->mu);
    bool cancelled = j->cancelled, stop = b->stop;
    lock_release(&b->mu);
    bool limited = (r.status == 429 || r.status == 503) && r.retry_ms >= 0;
    *wait_ms = r.retry_ms < RETRY_MIN_MS ? RETRY_MIN_MS : r.retry_ms;
    bool over = r.slo_class < 0 || r.status == 200 || stop || cancelled || !limited;
    if (r.slo_class >= 0 && r.status != 200 && over && !stop && !cancelled) mark_failed(b, j, &r);
    inner_end(&r);
    return over;
}

/* Waits; a cancellation and the end interrupt it.  False: it was one of these. */
static bool pause_for(background *b, job *j, int64_t ms)
{
    int64_t until_us = clock_now_us() + (ms > RETRY_MAX_MS ? RETRY_MAX_MS : ms) * 1000;
    lock_take(&b->mu);
    while (!b->stop && !j->cancelled && clock_now_us() < until_us)
        (void)cond_wait_until(&b->ended, &b->mu, until_us);
    bool on = !b->stop && !j->cancelled;
    lock_release(&b->mu);
    return on;
}

static void make(background *b, job *j)
{
    int64_t wait_ms = 0;
    int tries = 0;
    bool over = false;
    mark_job(b, j, "in_progress", NULL, NULL);
    while (!over) {
        over = try_once(b, j, &wait_ms);
        if (over || !pause_for(b, j, wait_ms)) break;
        if (++tries < TRIES_MAX) continue;
        mark_job(b, j, "failed", "rate_limit_exceeded",
                 "it waited too long for its tenant's or key's limits");
        break;
    }
}

/* If the row still says that it runs, it does not any more.  A response that was complete before
 * its cancellation stays. */
static void mark_ended(background *b, const job *j, bool cancelled)
{
    response_row row;
    err e;
    if (responses_get(store_of(b->srv), tenants_seal_key(tenants_of(b->srv)), j->tenant_id, j->id,
                      &row, &e))
        return;
    bool running = row.running;
    response_row_clear(&row);
    if (running && cancelled) mark_job(b, j, "cancelled", NULL, NULL);
    if (running && !cancelled)
        mark_job(b, j, "failed", "server_error", "the answer was cut: its last event says why");
}

/* Stores the events before the job, from which followers read, is removed. */
static void keep_events(background *b, const job *j)
{
    err e;
    if (!j->streamed || j->events.failed || !j->events.text) return;
    if (responses_put_events(store_of(b->srv), tenants_seal_key(tenants_of(b->srv)), j->tenant_id,
                             j->id, j->events.text, &e))
        log_error("gateway", "response %s: its events are not stored: %s", j->id, e.msg);
}

static void drop_locked(background *b, job *j)
{
    lock_assert_held(&b->mu);
    job **at = &b->jobs;
    while (*at != j) at = &(*at)->next;
    *at = j->next;
    assert(b->n_jobs > 0);
    b->n_jobs--;
    cJSON_Delete(j->body);
    jsonw_clear(&j->events);
    free(j);
    cond_broadcast(&b->ended);
}

static void *work_main(void *arg)
{
    background *b = arg;
    lock_take(&b->mu);
    while (!b->stop) {
        job *j = b->jobs;
        while (j && j->running) j = j->next;
        if (!j) {
            cond_wait(&b->work, &b->mu);
            continue;
        }
        j->running = true;
        bool cancelled = j->cancelled;
        lock_release(&b->mu);
        if (!cancelled) make(b, j);
        lock_take(&b->mu);
        cancelled = j->cancelled;
        bool stop = b->stop;
        lock_release(&b->mu);
        if (cancelled || (j->streamed && !stop)) mark_ended(b, j, cancelled);
        keep_events(b, j);
        lock_take(&b->mu);
        drop_locked(b, j);
    }
    lock_release(&b->mu);
    return NULL;
}

/* ----------------------------------------------------------------------------- calls -- */

static job *find_locked(background *b, uint64_t tenant_id, const char *id)
{
    lock_assert_held(&b->mu);
    job *j = b->jobs;
    while (j && (j->tenant_id != tenant_id || strcmp(j->id, id) != 0)) j = j->next;
    return j;
}

bool background_holds(background *b, uint64_t tenant_id, const char *id)
{
    lock_take(&b->mu);
    bool held = find_locked(b, tenant_id, id) != NULL;
    lock_release(&b->mu);
    return held;
}

bool background_news(background *b, uint64_t tenant_id, const char *id, size_t at, jsonw *out)
{
    int64_t until_us = clock_now_us() + NEWS_US;
    lock_take(&b->mu);
    job *j = find_locked(b, tenant_id, id);
    while (j && !b->stop && j->events.len <= at && clock_now_us() < until_us) {
        (void)cond_wait_until(&b->ended, &b->mu, until_us);
        j = find_locked(b, tenant_id, id);
    }
    bool held = j && !b->stop;
    if (held && j->events.len > at) jsonw_raw(out, j->events.text + at, j->events.len - at);
    lock_release(&b->mu);
    return held;
}

bool background_cancel(background *b, uint64_t tenant_id, const char *id)
{
    char request_id[40];
    lock_take(&b->mu);
    job *j = find_locked(b, tenant_id, id);
    bool held = j != NULL;
    if (j) {
        j->cancelled = true;
        snprintf(request_id, sizeof(request_id), "req_%016llx", (unsigned long long)j->request_id);
        cond_broadcast(&b->ended);
        cond_signal(&b->work);
    }
    /* The engine may not have it yet: stop is repeated until the job ends. */
    while (find_locked(b, tenant_id, id) && !b->stop) {
        lock_release(&b->mu);
        (void)inflight_stop(tenants_of(b->srv)->inflight, request_id, NULL);
        lock_take(&b->mu);
        if (find_locked(b, tenant_id, id))
            (void)cond_wait_until(&b->ended, &b->mu, clock_now_us() + LOOK_US);
    }
    lock_release(&b->mu);
    return held;
}

err_code background_add(background *b, const responses_run *r, uint64_t id, const cJSON *body,
                        const jsonw *events, err *e)
{
    job *j = calloc(1, sizeof(*j));
    if (j) j->body = cJSON_Duplicate(body, true);
    if (!j || !j->body) {
        free(j);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    j->request_id = id;
    j->tenant_id = r->row.tenant_id;
    j->key_id = r->x->caller->key.id;
    j->of = b;
    j->streamed = events != NULL;
    jsonw_init(&j->events);
    if (events) jsonw_raw(&j->events, events->text, events->len);
    snprintf(j->id, sizeof(j->id), "%s", r->row.id);
    int own = 0;
    lock_take(&b->mu);
    job **at = &b->jobs;
    for (; *at; at = &(*at)->next) own += (*at)->tenant_id == j->tenant_id;
    bool full = b->n_jobs >= BACKGROUND_MAX || own >= BACKGROUND_TENANT_MAX;
    if (!full) {
        assert(b->n_jobs < BACKGROUND_MAX);
        *at = j;
        b->n_jobs++;
        cond_signal(&b->work);
    }
    lock_release(&b->mu);
    if (!full) return ERR_NONE;
    cJSON_Delete(j->body);
    jsonw_clear(&j->events);
    free(j);
    return err_set(e, ERR_BUSY,
                   "there are too many responses in the background: %d of this tenant, "
                   "%d of all may wait",
                   BACKGROUND_TENANT_MAX, BACKGROUND_MAX);
}

err_code background_start(background **out, server *s, int n, err *e)
{
    background *b = calloc(1, sizeof(*b));
    *out = NULL;
    if (!b) return err_set(e, ERR_NOMEM, "out of memory");
    b->srv = s;
    b->thread = calloc((size_t)n + 1, sizeof(*b->thread));
    lock_init(&b->mu, LOCK_BACKGROUND);
    cond_init(&b->work);
    cond_init(&b->ended);
    while (b->thread && b->n_threads < n &&
           pthread_create(&b->thread[b->n_threads], NULL, work_main, b) == 0)
        b->n_threads++;
    if (b->n_threads == n) {
        *out = b;
        return ERR_NONE;
    }
    background_stop(b);
    return err_set(e, ERR_NOMEM, "cannot start the threads of responses in the background");
}

void background_stop(background *b)
{
    if (!b) return;
    lock_take(&b->mu);
    b->stop = true;
    cond_broadcast(&b->work);
    cond_broadcast(&b->ended);
    lock_release(&b->mu);
    for (int i = 0; i < b->n_threads; i++) (void)pthread_join(b->thread[i], NULL);
    lock_take(&b->mu);
    while (b->jobs) drop_locked(b, b->jobs);
    lock_release(&b->mu);
    cond_free(&b->work);
    cond_free(&b->ended);
    lock_free(&b->mu);
    free(b->thread);
    free(b);
}
