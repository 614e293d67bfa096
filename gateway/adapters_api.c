/* adapters_api.c -- the registry over HTTPS: upload, look, move aliases, pin, delete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/adapter_fields.h"
#include "gateway/api_fields.h"
#include "gateway/handlers.h"
#include "gateway/server.h"

/* ----------------------------------------------------------------------- looking -- */

void adapters_list(exchange *x)
{
    adapter_entry *list;
    size_t n, limit = 100;
    err e;
    if (!adapter_need_tenant(x)) return;
    const char *after = exchange_query(x, "after"), *asked = exchange_query(x, "limit");
    if (asked) limit = (size_t)api_parse_id(asked);
    if (limit < 1 || limit > 1000) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "limit",
                       "'limit' must be from 1 to 1000");
        return;
    }
    if (registry_list(x->server->registry, x->tenant.id, after, limit + 1, &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n && i < limit; i++) adapter_write_entry(x, &w, &list[i]);
    api_list_end(x, &w, n > limit);
    free(list);
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
    if (registry_versions(x->server->registry, x->tenant.id, x->param[0], &list, &n, &e)) {
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
    if (registry_version(x->server->registry, x->tenant.id, x->param[0], number, &v, &e)) {
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

void adapters_patch(exchange *x)
{
    static const char *const known[] = {"description", NULL};
    const cJSON *body;
    const char *text = NULL;
    err e;
    if (!adapter_need_tenant(x) || !exchange_read_json(x, &body, NULL, NULL) ||
        !api_only_fields(x, body, known)) {
        return;
    }
    if (json_str(body, "description", &text, NULL, &e) ||
        registry_set_meta(x->server->registry, x->tenant.id, x->param[0], text, NULL, &e)) {
        exchange_reply_err(x, &e, "description");
        return;
    }
    api_audit(x, x->tenant.id, "adapter.update", x->param[0], NULL);
    adapter_reply_entry(x, 200);
}

static void delete_some(exchange *x, int version)
{
    err e;
    bool draining = false;
    const char *asked = exchange_query(x, "drain");
    bool wait = asked && strcmp(asked, "true") == 0;
    if (registry_delete(x->server->registry, x->tenant.id, x->param[0], version, wait, &draining,
                        &e)) {
        if (e.code == ERR_CONFLICT) {
            exchange_error(x, 409, "conflict_error", "adapter_in_use", "name", "%s", e.msg);
        } else {
            exchange_reply_err(x, &e, "name");
        }
        return;
    }
    api_audit(x, x->tenant.id, "adapter.delete", x->param[0], NULL);
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

static void reply_alias(exchange *x, err_code rc, const err *e, uint64_t before)
{
    if (rc) {
        exchange_reply_err(x, e, rc == ERR_STALE ? "If-Match" : "alias");
    } else {
        adapter_follow_pin(x, x->param[0], before);
        api_audit(x, x->tenant.id, "adapter.alias", x->param[0], NULL);
        adapter_reply_entry(x, 200);
    }
}

void adapters_alias_put(exchange *x)
{
    static const char *const known[] = {"version", NULL};
    const cJSON *body;
    int64_t number = 0, expected;
    err e;
    if (!adapter_need_tenant(x) || !adapter_expected(x, &expected)) return;
    if (!exchange_read_json(x, &body, NULL, NULL) || !api_only_fields(x, body, known)) return;
    if (json_int(body, "version", 1, INT32_MAX, &number, NULL, &e) || number == 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "version",
                       "'version' must be the number of a version");
        return;
    }
    uint64_t before = adapter_default_id(x, x->param[0]);
    err_code rc = registry_set_alias(x->server->registry, x->tenant.id, x->param[0], x->param[1],
                                     (int)number, expected, NULL, &e);
    reply_alias(x, rc, &e, before);
}

void adapters_alias_delete(exchange *x)
{
    int64_t expected;
    err e;
    if (!adapter_need_tenant(x) || !adapter_expected(x, &expected)) return;
    uint64_t before = adapter_default_id(x, x->param[0]);
    err_code rc = registry_drop_alias(x->server->registry, x->tenant.id, x->param[0], x->param[1],
                                      expected, &e);
    reply_alias(x, rc, &e, before);
}

void adapters_rollback(exchange *x)
{
    err e;
    int number;
    if (!adapter_need_tenant(x)) return;
    uint64_t before = adapter_default_id(x, x->param[0]);
    const char *alias = exchange_query(x, "alias");
    err_code rc = registry_rollback(x->server->registry, x->tenant.id, x->param[0],
                                    alias ? alias : "default", &number, &e);
    reply_alias(x, rc, &e, before);
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
    if (pinned && residency_pin(x->server->residency, id, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    if (!pinned) residency_unpin(x->server->residency, id);
    if (registry_set_meta(x->server->registry, x->tenant.id, x->param[0], NULL, &pinned, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_audit(x, x->tenant.id, pinned ? "adapter.pin" : "adapter.unpin", x->param[0], NULL);
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

void adapters_warm(exchange *x)
{
    if (!adapter_need_tenant(x)) return;
    uint64_t id = adapter_default_id(x, x->param[0]);
    if (id) residency_warm(x->server->residency, id);
    adapter_reply_entry(x, id ? 202 : 200);
}

/* Every tenant's, for operators. */
void admin_adapters(exchange *x)
{
    adapter_entry *list;
    size_t n;
    err e;
    if (registry_list(x->server->registry, 0, NULL, 0, &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) {
        tenant t = {0};
        (void)tenants_get(x->server->store, list[i].tenant_id, &t, NULL);
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "tenant", t.name);
        jsonw_str(&w, "name", list[i].name);
        jsonw_int(&w, "default_version", list[i].default_version);
        jsonw_int(&w, "versions", list[i].n_versions);
        jsonw_int(&w, "bytes", (int64_t)list[i].file_bytes);
        jsonw_bool(&w, "pinned", list[i].pinned);
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, false);
    free(list);
}
