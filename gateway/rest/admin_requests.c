/* admin_requests.c -- requests that run and wait now, and those that have ended.
 *
 * Running requests are a join of two lists: the gateway's (inflight.h: tenant, key, model,
 * times) and the engine's picture of its slots (board.h: computed tokens, preemptions,
 * deadline), by the request's id. The engine publishes a picture between two steps when one is
 * asked for; after PICTURE_WAIT_US the answer goes without it, for example while a step takes
 * long. A request without a row in it waits.
 *
 * Both lists are copies and are taken one after the other, so a request may be missing in one of
 * them.
 *
 * Ended requests come from a ring in memory (watch/ended.h), the slowest of the last hour
 * included.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/inflight.h"
#include "gateway/process_parts.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"
#include "gateway/watch/ended.h"
#include "gateway/watch/stats.h"

enum { PICTURE_WAIT_US = 200000, LIMIT_MAX = 10000, SLOW_MS_MAX = 86400000 };

static int by_id(const void *a, const void *b)
{
    const board_row *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

static const char *state_of(const board_row *r)
{
    if (!r || !r->running) return "waiting";
    return r->n_computed < r->n_prompt ? "prefill" : "decode";
}

/* Milliseconds until the class wants the next token; negative: it is late. */
static int64_t slack_ms(const board_row *r, int64_t now_us)
{
    return (board_due_us(r) - now_us) / 1000;
}

typedef struct {
    uint64_t id;
    char name[sizeof(((tenant *)0)->name)];
} known_name;

/* Few tenants have requests at once: the last one asked for is remembered. */
static const char *tenant_name(exchange *x, uint64_t id, known_name *last)
{
    tenant t;
    if (last->id == id) return last->name;
    *last = (known_name){.id = id};
    if (id && tenants_get(store_of(x->app), id, &t, NULL) == ERR_NONE)
        memcpy(last->name, t.name, sizeof(last->name));
    return last->name;
}

static void write_request(exchange *x, jsonw *w, const inflight_info *f, const board_row *r,
                          known_name *last, int64_t now_us)
{
    const char *class_name = engine_of(x->app)->class_name[f->slo_class];
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "request");
    api_write_id(w, "id", f->id);
    jsonw_str(w, "request_id", f->request_id);
    jsonw_str(w, "tenant", tenant_name(x, f->tenant_id, last));
    api_write_id(w, "key_id", f->key_id);
    jsonw_str(w, "model", f->model);
    jsonw_str(w, "class", class_name);
    jsonw_str(w, "state", state_of(r));
    jsonw_bool(w, "stream", f->stream);
    jsonw_int(w, "age_ms", (now_us - f->arrived_us) / 1000);
    if (r)
        jsonw_int(w, "slack_ms", slack_ms(r, now_us));
    else
        jsonw_null(w, "slack_ms");
    jsonw_int(w, "prompt_tokens", f->n_prompt);
    jsonw_int(w, "computed_tokens", r ? r->n_computed : 0);
    jsonw_int(w, "output_tokens", r ? r->n_output : 0);
    jsonw_int(w, "max_tokens", f->max_tokens);
    jsonw_int(w, "preempted", r ? r->n_preempted : 0);
    jsonw_int(w, "unread_ms", f->writing_us ? (now_us - f->writing_us) / 1000 : 0);
    jsonw_close(w, '}');
}

static void reply_requests(exchange *x, const inflight_info *list, size_t n,
                           const board_picture *pic, size_t limit, const char *state)
{
    const char *who = exchange_query(x, "tenant");
    known_name last = {.id = UINT64_MAX};
    int64_t now_us = clock_now_us();
    size_t shown = 0;
    bool more = false;
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) {
        board_row key = {.id = list[i].id};
        const board_row *r =
            pic->n_row ? bsearch(&key, pic->row, (size_t)pic->n_row, sizeof(key), by_id) : NULL;
        if (state && strcmp(state, state_of(r)) != 0) continue;
        if (who && strcmp(who, tenant_name(x, list[i].tenant_id, &last)) != 0) continue;
        more = shown == limit;
        if (more) break;
        write_request(x, &w, &list[i], r, &last, now_us);
        shown++;
    }
    api_list_end(x, &w, more);
}

/* ------------------------------------------------------------------------- ended -- */

static void write_ms(jsonw *w, const char *name, int64_t us)
{
    jsonw_num(w, name, (double)us / 1000);
}

static void write_ms_or_null(jsonw *w, const char *name, int64_t ms)
{
    if (ms < 0)
        jsonw_null(w, name);
    else
        jsonw_int(w, name, ms);
}

static void write_ended(exchange *x, jsonw *w, const ended_row *r, const char *owner)
{
    const usage_row *u = &r->usage;
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "request");
    api_write_id(w, "id", u->request_id);
    jsonw_str(w, "request_id", r->request_id);
    jsonw_str(w, "tenant", owner);
    api_write_id(w, "key_id", u->key_id);
    jsonw_str(w, "model", u->model);
    jsonw_str(w, "class", engine_of(x->app)->class_name[r->slo_class]);
    jsonw_str(w, "state", "ended");
    jsonw_int(w, "status", u->status);
    jsonw_str(w, "finish", u->finish);
    jsonw_str(w, "missed", u->missed ? miss_cause_name(u->missed) : NULL);
    jsonw_str(w, "beside", r->beside >= 0 ? engine_of(x->app)->class_name[r->beside] : NULL);
    api_write_time(w, "started", u->started_wall_us);
    api_write_time(w, "ended", u->ended_wall_us);
    jsonw_int(w, "duration_ms", u->duration_ms);
    write_ms_or_null(w, "ttft_ms", u->ttft_ms);
    write_ms(w, "queue_ms", r->phase.queue_us);
    write_ms(w, "adapter_ms", r->phase.adapter_us);
    write_ms(w, "prompt_ms", r->phase.prompt_us);
    write_ms(w, "decode_ms", r->phase.decode_us);
    write_ms(w, "rest_ms", r->phase.rest_us);
    write_ms(w, "send_ms", r->phase.send_us);
    jsonw_int(w, "prompt_tokens", u->prompt_tokens);
    jsonw_int(w, "cached_tokens", u->cached_tokens);
    jsonw_int(w, "output_tokens", u->output_tokens);
    jsonw_close(w, '}');
}

static void list_ended(exchange *x, size_t limit, int64_t slow_ms)
{
    const char *who = exchange_query(x, "tenant");
    known_name last = {.id = UINT64_MAX};
    ended_row *list;
    size_t n, shown = 0;
    bool more = false;
    jsonw w;
    if (!ended_list(stats_ended(process_of(x->app)->stats), slow_ms, &list, &n)) {
        exchange_starved(x);
        return;
    }
    api_list_begin(&w);
    for (size_t i = 0; i < n && !more; i++) {
        const char *owner = tenant_name(x, list[i].usage.tenant_id, &last);
        if (who && strcmp(who, owner) != 0) continue;
        more = shown == limit;
        if (!more) write_ended(x, &w, &list[i], owner);
        shown++;
    }
    api_list_end(x, &w, more);
    free(list);
}

void admin_requests_list(exchange *x)
{
    static const char *const states[] = {"waiting", "prefill", "decode", "ended", NULL};
    enum { STATE_ENDED = 3 };
    uint64_t limit = 1000, slow_ms = 0;
    size_t n = 0;
    int state = -1;
    inflight_info *list = NULL;
    board_picture pic = {0};
    if (!api_query_number(x, "limit", 1, LIMIT_MAX, &limit) ||
        !api_query_number(x, "slow", 1, SLOW_MS_MAX, &slow_ms) ||
        !api_query_word(x, "state", states, &state)) {
        return;
    }
    if (state == STATE_ENDED) {
        list_ended(x, (size_t)limit, (int64_t)slow_ms);
        return;
    }
    if (slow_ms > 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "slow",
                       "'slow' goes with state=ended alone");
        return;
    }
    if (!inflight_list(tenants_of(x->app)->inflight, &list, &n)) {
        exchange_starved(x);
        return;
    }
    if (n && board_read(sched_board(sched_of(x->app)), PICTURE_WAIT_US, &pic) && pic.n_row)
        qsort(pic.row, (size_t)pic.n_row, sizeof(*pic.row), by_id);
    reply_requests(x, list, n, &pic, (size_t)limit, state < 0 ? NULL : states[state]);
    board_picture_clear(&pic);
    free(list);
}

void admin_request_cancel(exchange *x)
{
    inflight_info f;
    if (!inflight_stop(tenants_of(x->app)->inflight, x->param[0], &f)) {
        exchange_error(x, 404, "invalid_request_error", "request_not_found", "id",
                       "no request '%.60s' is running or waiting", x->param[0]);
        return;
    }
    api_audit(x, f.tenant_id, "request.cancel", f.request_id, NULL);
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "request");
    api_write_id(&w, "id", f.id);
    jsonw_str(&w, "request_id", f.request_id);
    jsonw_bool(&w, "cancelled", true);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 202, &w);
    jsonw_clear(&w);
}
