/* adapters_api.c -- a tenant's adapters over HTTPS: list, show, change, delete, aliases, pins,
 * warming, history, use.
 *
 * Every handler has the same shape: check the caller and the query, call the registry, write an
 * audit row, answer with the adapter's entry as it is now. A handler that returns early has
 * answered already. Uploads are in uploads_api.c; the operator's view of the same objects in
 * admin_adapters.c.
 *
 * Conditional changes: If-Match carries the entry's generation. The registry compares it under
 * its own lock and fails with ERR_STALE, which becomes 412; there is no check here that could
 * race.
 *
 * A pin belongs to the default version. When an alias moves, adapter_follow_pin() moves the pin
 * with it; both happen after the registry's change, so a failure between them leaves a version
 * in memory, not one missing.
 *
 * Lists filter by residency, which the registry does not know. So adapter_reply_page() reads
 * pages of at most PAGE_PIECE entries and drops what does not match, and looks at
 * REGISTRY_SCAN_MAX entries at most before it answers with a cursor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"
#include "storage/audit.h"
#include "storage/ledger.h"

enum { SHARES_MAX = 1000, WARM_WAIT_MAX_S = 300, PAGE_PIECE = 32 };

/* ----------------------------------------------------------------------- looking -- */

/* "name", or for shared ones "owner/name". */
static bool take_cursor(exchange *x, registry_query *q, const char *after)
{
    const char *slash = after ? strchr(after, '/') : NULL;
    q->after = after;
    if (!slash) return true;
    tenant t;
    char owner[TENANT_NAME_MAX + 1] = "";
    if ((size_t)(slash - after) < sizeof(owner)) memcpy(owner, after, (size_t)(slash - after));
    if (tenants_find(store_of(x->app), owner, &t, NULL)) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "after",
                       "'after' is not a cursor of this list");
        return false;
    }
    q->after_tenant_id = t.id;
    q->after = slash + 1;
    return true;
}

bool adapter_take_query(exchange *x, registry_query *q, const char **residency_name)
{
    static const adapter_state states[] = {ADAPTER_READY, ADAPTER_FAILED, ADAPTER_DRAINING};
    const char *const names[] = {adapter_state_name(states[0]), adapter_state_name(states[1]),
                                 adapter_state_name(states[2]), NULL};
    const char *const tiers[] = {
        residency_state_name(RESIDENCY_DISK),     residency_state_name(RESIDENCY_LOADING),
        residency_state_name(RESIDENCY_RESIDENT), residency_state_name(RESIDENCY_FAILED),
        residency_state_name(RESIDENCY_HOST),     NULL};
    uint64_t limit = 100;
    int state = -1, tier;
    if (!api_query_number(x, "limit", 1, 1000, &limit) ||
        !api_query_word(x, "state", names, &state) ||
        !api_query_word(x, "residency", tiers, &tier)) {
        return false;
    }
    q->limit = (size_t)limit;
    if (state >= 0) q->state = states[state];
    q->prefix = exchange_query(x, "prefix");
    *residency_name = exchange_query(x, "residency");
    return take_cursor(x, q, exchange_query(x, "after"));
}

void adapter_reply_page(exchange *x, const registry_query *asked, const char *residency_name,
                        void (*write)(exchange *x, jsonw *w, const adapter_entry *a))
{
    registry_query q = *asked;
    registry_cursor next = {.more = true};
    adapter_entry *page = malloc(PAGE_PIECE * sizeof(*page));
    size_t want = q.limit, seen = 0;
    jsonw w;
    api_list_begin(&w);
    if (!page) w.failed = true;
    /* Residency is not the registry's to filter by: pages of its, until ours is full. */
    while (page && want > 0 && next.more && seen < REGISTRY_SCAN_MAX) {
        size_t n;
        q.limit = want < PAGE_PIECE ? want : PAGE_PIECE;
        registry_page(registry_of(x->app), &q, page, &n, &next);
        for (size_t i = 0; i < n; i++) {
            residency_state rs = residency_get(residency_of(x->app), page[i].default_id, NULL);
            if (residency_name && strcmp(residency_name, residency_state_name(rs)) != 0) continue;
            write(x, &w, &page[i]);
            want--;
        }
        seen += n ? n : REGISTRY_SCAN_MAX;
        q.after_tenant_id = next.tenant_id;
        q.after = next.name;
    }
    jsonw_close(&w, ']');
    jsonw_bool(&w, "has_more", next.more);
    tenant t = {0};
    if (next.more && !q.tenant_id) (void)tenants_get(store_of(x->app), next.tenant_id, &t, NULL);
    char cursor[TENANT_NAME_MAX + ADAPTER_NAME_MAX + 2];
    snprintf(cursor, sizeof(cursor), "%s%s%s", t.name, t.name[0] ? "/" : "", next.name);
    jsonw_str(&w, "next", next.more ? cursor : NULL);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
    free(page);
}

void adapters_list(exchange *x)
{
    const char *residency_name;
    bool shared = false;
    registry_query q = {0};
    if (!adapter_need_tenant(x) || !adapter_take_query(x, &q, &residency_name) ||
        !api_query_flag(x, "shared", &shared))
        return;
    if (shared)
        q.shared_with = x->caller->tenant.id;
    else
        q.tenant_id = x->caller->tenant.id;
    adapter_reply_page(x, &q, residency_name, adapter_write_entry);
}

void adapters_get(exchange *x)
{
    if (adapter_need_tenant(x)) adapter_reply_entry(x, 200);
}

void adapters_versions(exchange *x)
{
    version_entry *list;
    size_t n;
    err e;
    if (!adapter_need_tenant(x)) return;
    if (registry_versions(registry_of(x->app), x->caller->tenant.id, x->param[0], &list, &n, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) adapter_write_version(x, &w, &list[i]);
    api_list_end(x, &w, false);
    free(list);
}

/* The number in the path; 0: answered. */
static int version_of(exchange *x, int i)
{
    uint64_t v = api_parse_id(x->param[i]);
    if (v >= 1 && v <= INT32_MAX) return (int)v;
    exchange_error(x, 404, "invalid_request_error", "not_found", "version",
                   "a version is a number from 1");
    return 0;
}

void adapters_version(exchange *x)
{
    version_entry v;
    err e;
    if (staging_is_id(x->param[1])) {
        uploads_get(x);
        return;
    }
    int number = adapter_need_tenant(x) ? version_of(x, 1) : 0;
    if (!number) return;
    if (registry_version(registry_of(x->app), x->caller->tenant.id, x->param[0], number, &v, &e)) {
        exchange_reply_err(x, &e, "version");
        return;
    }
    jsonw w;
    jsonw_init(&w);
    adapter_write_version(x, &w, &v);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

/* ------------------------------------------------------------------------ changing -- */

/* "none", "all", or a list of tenants' names; false: answered.  *list is malloced. */
static bool take_sharing(exchange *x, const cJSON *v, registry_meta *m, uint64_t **list)
{
    const cJSON *item;
    int n = cJSON_GetArraySize(v);
    bool word = cJSON_IsString(v);
    m->share = true;
    m->shared_all = word && strcmp(v->valuestring, "all") == 0;
    if (m->shared_all || (word && strcmp(v->valuestring, "none") == 0)) return true;
    *list = cJSON_IsArray(v) && n <= SHARES_MAX ? calloc((size_t)n + 1, sizeof(**list)) : NULL;
    m->shared = *list;
    const cJSON *items = *list ? v : NULL;
    cJSON_ArrayForEach(item, items)
    {
        tenant t;
        if (!cJSON_IsString(item) ||
            tenants_find(store_of(x->app), item->valuestring, &t, NULL) != ERR_NONE) {
            exchange_error(x, 404, "invalid_request_error", "not_found", "sharing",
                           "there is no tenant '%.64s'",
                           cJSON_IsString(item) ? item->valuestring : "");
            return false;
        }
        (*list)[m->n_shared++] = t.id;
    }
    if (*list) return true;
    exchange_error(x, 400, "invalid_request_error", "invalid_value", "sharing",
                   "'sharing' must be \"none\", \"all\" or a list of up to %d tenants' names",
                   SHARES_MAX);
    return false;
}

void adapters_patch(exchange *x)
{
    static const char *const known[] = {"description", "sharing", NULL};
    const cJSON *body;
    uint64_t *list = NULL;
    registry_meta m = {0};
    err e;
    if (!adapter_need_tenant(x) || !adapter_expected(x, &m.expected_generation) ||
        !exchange_read_json(x, &body) || !api_only_fields(x, body, known)) {
        return;
    }
    const cJSON *sharing = json_get(body, "sharing");
    if (json_str(body, "description", &m.description, NULL, &e)) {
        exchange_reply_err(x, &e, "description");
    } else if (!sharing || take_sharing(x, sharing, &m, &list)) {
        if (registry_update(registry_of(x->app), x->caller->tenant.id, x->param[0], &m, &e)) {
            exchange_reply_err(x, &e, e.code == ERR_STALE ? "If-Match" : NULL);
        } else {
            char detail[96];
            snprintf(detail, sizeof(detail),
                     "{\"description\":%s,\"shared_all\":%s,\"shared_with\":%d}",
                     m.description ? "true" : "false", m.shared_all ? "true" : "false", m.n_shared);
            api_audit(x, x->caller->tenant.id, m.share ? "adapter.share" : "adapter.update",
                      x->param[0], m.share ? detail : NULL);
            adapter_reply_entry(x, 200);
        }
    }
    free(list);
}

static void delete_some(exchange *x, int version)
{
    err e;
    bool draining = false, wait = false;
    if (!api_query_flag(x, "drain", &wait)) return;
    if (registry_delete(registry_of(x->app), x->caller->tenant.id, x->param[0], version, wait,
                        &draining, &e)) {
        if (e.code == ERR_CONFLICT) {
            exchange_error(x, 409, "conflict_error", "adapter_in_use", "name", "%s", e.msg);
        } else {
            exchange_reply_err(x, &e, "name");
        }
        return;
    }
    char detail[64];
    snprintf(detail, sizeof(detail), "{\"version\":%d,\"draining\":%s}", version,
             draining ? "true" : "false");
    api_audit(x, x->caller->tenant.id, "adapter.delete", x->param[0], detail);
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", version ? "adapter.version" : "adapter");
    jsonw_str(&w, "name", x->param[0]);
    if (version) jsonw_int(&w, "version", version);
    jsonw_bool(&w, "deleted", !draining);
    jsonw_str(&w, "state", draining ? "draining" : "deleted");
    jsonw_close(&w, '}');
    exchange_reply_json(x, draining ? 202 : 200, &w);
    jsonw_clear(&w);
}

void adapters_delete(exchange *x)
{
    if (adapter_need_tenant(x)) delete_some(x, 0);
}

void adapters_version_delete(exchange *x)
{
    if (staging_is_id(x->param[1])) {
        uploads_drop(x);
        return;
    }
    int number = adapter_need_tenant(x) ? version_of(x, 1) : 0;
    if (number) delete_some(x, number);
}

/* version 0: the alias was removed. */
static void reply_alias(exchange *x, err_code rc, const err *e, const char *action,
                        const char *alias, int version, uint64_t before)
{
    if (rc) {
        exchange_reply_err(x, e, rc == ERR_STALE ? "If-Match" : "alias");
        return;
    }
    char detail[160];
    snprintf(detail, sizeof(detail), "{\"alias\":\"%.64s\",\"version\":%d}", alias, version);
    adapter_follow_pin(x, x->param[0], before);
    api_audit(x, x->caller->tenant.id, action, x->param[0], detail);
    adapter_reply_entry(x, 200);
}

static void set_alias(exchange *x, const char *alias, int number, const char *action)
{
    err e;
    int64_t expected;
    if (!adapter_expected(x, &expected)) return;
    uint64_t before = adapter_default_id(x, x->param[0]);
    err_code rc = registry_set_alias(registry_of(x->app), x->caller->tenant.id, x->param[0], alias,
                                     number, expected, NULL, &e);
    reply_alias(x, rc, &e, action, alias, number, before);
}

void adapters_alias_put(exchange *x)
{
    static const char *const known[] = {"version", NULL};
    const cJSON *body;
    int64_t number = 0;
    err e;
    if (!adapter_need_tenant(x) || !exchange_read_json(x, &body) ||
        !api_only_fields(x, body, known)) {
        return;
    }
    if (json_int(body, "version", 1, INT32_MAX, &number, NULL, &e) || number == 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "version",
                       "'version' must be the number of a version");
        return;
    }
    set_alias(x, x->param[1], (int)number, "adapter.alias");
}

void adapters_activate(exchange *x)
{
    int number = adapter_need_tenant(x) ? version_of(x, 1) : 0;
    if (number) set_alias(x, "default", number, "adapter.activate");
}

void adapters_alias_delete(exchange *x)
{
    int64_t expected;
    err e;
    if (!adapter_need_tenant(x) || !adapter_expected(x, &expected)) return;
    uint64_t before = adapter_default_id(x, x->param[0]);
    err_code rc = registry_drop_alias(registry_of(x->app), x->caller->tenant.id, x->param[0],
                                      x->param[1], expected, &e);
    reply_alias(x, rc, &e, "adapter.alias", x->param[1], 0, before);
}

void adapters_rollback(exchange *x)
{
    err e;
    int number = 0;
    int64_t expected;
    if (!adapter_need_tenant(x) || !adapter_expected(x, &expected)) return;
    uint64_t before = adapter_default_id(x, x->param[0]);
    const char *alias = exchange_query(x, "alias");
    if (!alias) alias = "default";
    err_code rc = registry_rollback(registry_of(x->app), x->caller->tenant.id, x->param[0], alias,
                                    expected, &number, &e);
    reply_alias(x, rc, &e, "adapter.rollback", alias, number, before);
}

/* -------------------------------------------------------------------------- tiers -- */

static void set_pin(exchange *x, bool pinned)
{
    err e;
    if (!adapter_need_tenant(x)) return;
    uint64_t id = adapter_default_id(x, x->param[0]);
    if (!id) {
        exchange_error(x, 404, "invalid_request_error", "not_found", "name",
                       "there is no adapter '%.64s' with a default version", x->param[0]);
        return;
    }
    if (pinned && residency_pin(residency_of(x->app), id, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    if (!pinned) residency_unpin(residency_of(x->app), id);
    if (registry_set_meta(registry_of(x->app), x->caller->tenant.id, x->param[0], NULL, &pinned,
                          &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_audit(x, x->caller->tenant.id, pinned ? "adapter.pin" : "adapter.unpin", x->param[0], NULL);
    adapter_reply_entry(x, 200);
}

void adapters_pin(exchange *x)
{
    set_pin(x, true);
}

void adapters_unpin(exchange *x)
{
    set_pin(x, false);
}

/* ?version= (else the default); ?wait=SECONDS: answers when it is in memory,
 * 202 when it is not by then. */
void adapters_warm(exchange *x)
{
    server *s = x->app;
    if (!adapter_need_tenant(x)) return;
    uint64_t seconds = 0, number = 0;
    if (!api_query_number(x, "wait", 1, WARM_WAIT_MAX_S, &seconds) ||
        !api_query_number(x, "version", 1, INT32_MAX, &number)) {
        return;
    }
    version_entry v;
    err e;
    uint64_t id = number ? 0 : adapter_default_id(x, x->param[0]);
    if (number && registry_version(registry_of(s), x->caller->tenant.id, x->param[0], (int)number,
                                   &v, &e) == ERR_NONE) {
        id = v.v.id;
    }
    if (!id) {
        exchange_error(x, 404, "invalid_request_error", "not_found", number ? "version" : "name",
                       "there is no such version of an adapter '%.64s'", x->param[0]);
        return;
    }
    int64_t retry_ms, end = clock_now_us() + (int64_t)seconds * 1000000;
    if (adapters_of(s)->depot && depot_bring(adapters_of(s)->depot, id, end, &retry_ms, &e)) {
        adapter_reply_entry(x, 202);
        return;
    }
    residency_warm(residency_of(s), id);
    residency_state now = residency_get(residency_of(s), id, NULL);
    const struct timespec pause = {0, 5000000};
    while ((now == RESIDENCY_LOADING || now == RESIDENCY_DISK) && clock_now_us() < end &&
           !atomic_load(&process_of(s)->http.draining) && !exchange_client_gone(x)) {
        (void)nanosleep(&pause, NULL);
        /* It may have been evicted between two looks: ask again. */
        if (now == RESIDENCY_DISK) residency_warm(residency_of(s), id);
        now = residency_get(residency_of(s), id, NULL);
    }
    if (now == RESIDENCY_FAILED) {
        exchange_error(x, 503, "server_error", "adapter_load_failed", NULL,
                       "the adapter's files cannot be loaded: publish it again");
        return;
    }
    adapter_reply_entry(x, now == RESIDENCY_LOADING || now == RESIDENCY_DISK ? 202 : 200);
}

/* ------------------------------------------------------------------------- history -- */

/* Newest first; ?before=ID&limit=.  Also of a name that is gone. */
void adapters_events(exchange *x)
{
    audit_row *rows;
    size_t n;
    uint64_t limit = 100, before = 0;
    err e;
    if (!adapter_need_tenant(x) || !api_query_number(x, "limit", 1, 1000, &limit) ||
        !api_query_number(x, "before", 0, UINT64_MAX, &before)) {
        return;
    }
    if (audit_list_object(store_of(x->app), x->caller->tenant.id, "adapter.", x->param[0], before,
                          (size_t)limit + 1, &rows, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    adapter_entry a;
    if (n == 0 && registry_get(registry_of(x->app), x->caller->tenant.id, x->param[0], &a, &e)) {
        free(rows);
        exchange_reply_err(x, &e, "name");
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n && i < limit; i++) {
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "object", "adapter.event");
        api_write_id(&w, "id", rows[i].id);
        api_write_time(&w, "time", rows[i].wall_us);
        api_write_id(&w, "actor_key", rows[i].actor_key_id);
        jsonw_str(&w, "action", rows[i].action);
        jsonw_str(&w, "name", rows[i].object);
        jsonw_str(&w, "detail", rows[i].detail[0] ? rows[i].detail : NULL);
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, n > limit);
    free(rows);
}

/* Of a version, in a list of sums by adapter. */
static usage_sum use_of(const usage_sum *sums, size_t n, uint64_t version_id)
{
    for (size_t k = 0; k < n; k++) {
        if (sums[k].adapter_id == version_id) return sums[k];
    }
    return (usage_sum){0};
}

static void write_use(jsonw *w, const usage_sum *own, const usage_sum *others)
{
    jsonw_int(w, "num_model_requests", (int64_t)(own->n_requests + others->n_requests));
    jsonw_int(w, "input_tokens", (int64_t)(own->prompt_tokens + others->prompt_tokens));
    jsonw_int(w, "input_cached_tokens", (int64_t)(own->cached_tokens + others->cached_tokens));
    jsonw_int(w, "output_tokens", (int64_t)(own->output_tokens + others->output_tokens));
}

/* What the tenants that a name is shared with used of it.  Their models begin with its owner's
 * name, and no other's do. */
static err_code query_others(exchange *x, const usage_query *own, usage_sum **out, size_t *n,
                             err *e)
{
    char begin[MODEL_LABEL_MAX + 1];
    usage_query q = *own;
    snprintf(begin, sizeof(begin), "%s/%s@", x->caller->tenant.name, x->param[0]);
    q.tenant_id = 0;
    q.model = begin;
    q.model_begins = true;
    return ledger_query(store_of(x->app), &q, out, n, e);
}

/* What was used of each version, ?start=&end= in seconds since 1970. */
void adapters_usage(exchange *x)
{
    usage_sum *sums, *others = NULL;
    version_entry *versions;
    size_t n, n_others = 0, n_versions;
    err e;
    usage_query q = {
        .tenant_id = x->caller->tenant.id, .end_wall_us = INT64_MAX, .group_by = USAGE_BY_ADAPTER};
    if (!adapter_need_tenant(x) || !api_query_time(x, "start", &q.start_wall_us) ||
        !api_query_time(x, "end", &q.end_wall_us)) {
        return;
    }
    if (registry_versions(registry_of(x->app), x->caller->tenant.id, x->param[0], &versions,
                          &n_versions, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    if (ledger_query(store_of(x->app), &q, &sums, &n, &e) ||
        query_others(x, &q, &others, &n_others, &e)) {
        free(sums);
        free(versions);
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n_versions; i++) {
        usage_sum own = use_of(sums, n, versions[i].v.id);
        usage_sum theirs = use_of(others, n_others, versions[i].v.id);
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "object", "adapter.usage");
        jsonw_int(&w, "version", versions[i].v.version);
        write_use(&w, &own, &theirs);
        jsonw_open(&w, "by_others", '{');
        write_use(&w, &(usage_sum){0}, &theirs);
        jsonw_close(&w, '}');
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, false);
    free(versions);
    free(others);
    free(sums);
}
