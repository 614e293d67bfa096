/* admin_api.c -- tenants, keys and the server itself, for operators' keys on the admin listener. */
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/server.h"
#include "storage/audit.h"
#include "storage/backup.h"

enum { PAGE_MAX = 1000, GRACE_MAX_S = 366 * 86400, KEY_REPLY_BYTES = 8192 };

/* -------------------------------------------------------------------- tenants -- */

static const struct {
    const char *name;
    size_t offset;
} limit_fields[] = {
    {"requests_per_minute", offsetof(tenant_limits, requests_per_minute)},
    {"tokens_per_minute", offsetof(tenant_limits, tokens_per_minute)},
    {"max_concurrent", offsetof(tenant_limits, max_concurrent)},
    {"max_queued", offsetof(tenant_limits, max_queued)},
    {"tokens_per_day", offsetof(tenant_limits, tokens_per_day)},
    {"tokens_per_month", offsetof(tenant_limits, tokens_per_month)},
    {"max_adapters", offsetof(tenant_limits, max_adapters)},
    {"max_adapter_bytes", offsetof(tenant_limits, max_adapter_bytes)},
};

enum { N_LIMITS = (int)(sizeof(limit_fields) / sizeof(limit_fields[0])) };

static int64_t *limit_at(tenant_limits *l, int i)
{
    return (int64_t *)(void *)((char *)l + limit_fields[i].offset);
}

static void write_list(jsonw *w, const char *name, const char *list)
{
    jsonw_open(w, name, '[');
    while (*list) {
        size_t n = strcspn(list, ",");
        jsonw_strn(w, NULL, list, n);
        list += n + (list[n] == ',');
    }
    jsonw_close(w, ']');
}

/* An answer tells what is in force; this member that the disk does not have it yet, and only then. */
static void write_durable(jsonw *w, bool durable)
{
    if (!durable) jsonw_bool(w, "durable", false);
}

static void write_tenant(jsonw *w, const tenant *t, bool durable)
{
    tenant_limits lim = t->limits;
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "tenant");
    api_write_id(w, "id", t->id);
    jsonw_str(w, "name", t->name);
    jsonw_str(w, "state", t->disabled ? "disabled" : "active");
    jsonw_num(w, "weight", t->weight);
    jsonw_str(w, "default_class", t->default_class[0] ? t->default_class : NULL);
    write_list(w, "classes", t->classes);
    write_list(w, "models", t->models);
    write_list(w, "networks", t->networks);
    jsonw_open(w, "limits", '{');
    for (int i = 0; i < N_LIMITS; i++) {
        jsonw_int(w, limit_fields[i].name, *limit_at(&lim, i));
    }
    jsonw_close(w, '}');
    jsonw_int(w, "generation", (int64_t)t->generation);
    api_write_time(w, "created", t->created_wall_us);
    write_durable(w, durable);
    jsonw_close(w, '}');
}

static bool bad(exchange *x, const err *e, const char *param)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "%s", e->msg);
    return false;
}

/* ["a","b"] as "a,b". */
static bool take_list(exchange *x, const cJSON *body, const char *name, char *out, size_t cap)
{
    const cJSON *v = json_get(body, name), *each;
    if (!v || cJSON_IsNull(v)) return true;
    size_t n = 0;
    out[0] = 0;
    bool ok = cJSON_IsArray(v);
    cJSON_ArrayForEach(each, v)
    {
        ok = ok && cJSON_IsString(each) && each->valuestring[0] &&
             !strchr(each->valuestring, ',') && strlen(each->valuestring) + n + 2 < cap;
        if (!ok) break;
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? "," : "", each->valuestring);
    }
    if (ok) return true;
    exchange_error(x, 400, "invalid_request_error", "invalid_value", name,
                   "'%s' must be an array of names, together shorter than %zu bytes", name, cap);
    return false;
}

/* ["192.0.2.0/24"]; an empty array lifts the bounds. */
static bool take_networks(exchange *x, const cJSON *body, char out[NETWORKS_MAX])
{
    const cJSON *v = json_get(body, "networks"), *each;
    char list[NETWORKS_MAX] = "", one[NETWORK_TEXT_MAX];
    size_t n = 0;
    err e;
    if (!v || cJSON_IsNull(v)) return true;
    bool ok = cJSON_IsArray(v);
    cJSON_ArrayForEach(each, v)
    {
        ok = ok && cJSON_IsString(each) && n + NETWORK_TEXT_MAX + 1 < sizeof(list);
        if (!ok) break;
        if (networks_canonical(each->valuestring, one, &e)) return bad(x, &e, "networks");
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", n ? "," : "", one);
    }
    if (ok) {
        memcpy(out, list, sizeof(list));
        return true;
    }
    exchange_error(x, 400, "invalid_request_error", "invalid_value", "networks",
                   "'networks' must be an array of CIDR blocks, together shorter than %d bytes",
                   NETWORKS_MAX - NETWORK_TEXT_MAX);
    return false;
}

static bool take_limit_fields(exchange *x, const cJSON *v, tenant_limits *out)
{
    const char *known[N_LIMITS + 1] = {NULL};
    err e;
    for (int i = 0; i < N_LIMITS; i++) known[i] = limit_fields[i].name;
    if (!api_only_fields(x, v, known)) return false;
    for (int i = 0; i < N_LIMITS; i++) {
        if (json_int(v, known[i], 0, INT64_C(1) << 50, limit_at(out, i), NULL, &e)) {
            return bad(x, &e, known[i]);
        }
    }
    return true;
}

static bool take_limits(exchange *x, const cJSON *body, tenant_limits *out)
{
    const cJSON *v = json_get(body, "limits");
    return !v || cJSON_IsNull(v) || take_limit_fields(x, v, out);
}

/* Settings that the body names; the others stay. */
static bool take_tenant(exchange *x, const cJSON *body, tenant *t)
{
    static const char *const known[] = {"name",   "weight",   "default_class", "classes", "models",
                                        "limits", "disabled", "networks",      NULL};
    err e;
    const char *s = NULL;
    bool found = false;
    if (!api_only_fields(x, body, known)) return false;
    if (json_str(body, "name", &s, &found, &e)) return bad(x, &e, "name");
    if (found) {
        if (!name_valid(s)) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "name",
                           "a tenant's name must match [a-z0-9][a-z0-9._-]{0,63}");
            return false;
        }
        snprintf(t->name, sizeof(t->name), "%s", s);
    }
    if (json_num(body, "weight", 0.001, 1000, &t->weight, NULL, &e)) return bad(x, &e, "weight");
    if (json_bool(body, "disabled", &t->disabled, NULL, &e)) return bad(x, &e, "disabled");
    if (json_str(body, "default_class", &s, &found, &e)) return bad(x, &e, "default_class");
    if (found) {
        char why[128];
        tenant probe = {0};
        if (server_class_of(x->server, &probe, s, why, sizeof(why)) < 0 ||
            strlen(s) > CLASS_NAME_MAX) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "default_class",
                           "there is no class '%.40s'", s);
            return false;
        }
        snprintf(t->default_class, sizeof(t->default_class), "%s", s);
    }
    return take_list(x, body, "classes", t->classes, sizeof(t->classes)) &&
           take_list(x, body, "models", t->models, sizeof(t->models)) &&
           take_networks(x, body, t->networks) && take_limits(x, body, &t->limits);
}

static void reply_tenant(exchange *x, int status, const tenant *t)
{
    jsonw w;
    jsonw_init(&w);
    write_tenant(&w, t, status != 202);
    exchange_reply_json(x, status, &w);
    jsonw_clear(&w);
}

/* By name or id. */
static bool find_tenant(exchange *x, const char *which, tenant *out)
{
    err e;
    err_code rc = tenants_find(x->server->store, which, out, &e);
    uint64_t id = api_parse_id(which);
    if (rc && id) rc = tenants_get(x->server->store, id, out, &e);
    if (!rc) return true;
    exchange_error(x, 404, "invalid_request_error", "tenant_not_found", "tenant",
                   "there is no tenant '%.80s'", which);
    return false;
}

void admin_tenant_create(exchange *x)
{
    const cJSON *body;
    tenant want = {.weight = 1}, made;
    err e;
    if (!exchange_read_json(x, &body) || !take_tenant(x, body, &want)) return;
    if (!want.name[0]) {
        exchange_error(x, 400, "invalid_request_error", "missing_required_parameter", "name",
                       "'name' is required");
        return;
    }
    if (tenants_create(x->server->store, &want, &made, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    api_audit(x, made.id, "tenant.create", made.name, NULL);
    reply_tenant(x, 201, &made);
}

/* A page of all tenants, each as `write` shows it. */
static void list_tenants(exchange *x, void (*write)(exchange *x, jsonw *w, const tenant *t))
{
    tenant *list;
    size_t n;
    err e;
    uint64_t after = 0;
    if (!api_query_number(x, "after", 0, UINT64_MAX, &after)) return;
    if (tenants_list(x->server->store, after, PAGE_MAX, &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) write(x, &w, &list[i]);
    api_list_end(x, &w, n == PAGE_MAX);
    free(list);
}

static void write_one(exchange *x, jsonw *w, const tenant *t)
{
    (void)x;
    write_tenant(w, t, true);
}

void admin_tenants_list(exchange *x)
{
    list_tenants(x, write_one);
}

void admin_tenant_get(exchange *x)
{
    tenant t;
    if (find_tenant(x, x->param[0], &t)) reply_tenant(x, 200, &t);
}

/* Ends what a tenant that was locked out still runs, and gives back the room of its uploads. */
static void lock_out(exchange *x, const tenant *t, bool for_good)
{
    server *s = x->server;
    int n = inflight_stop_all(s->inflight, t->id, 0);
    if (for_good) n += staging_drop_all(s->staging, t->id);
    log_info("gateway", "tenant %s is locked out; %d requests and uploads of it end", t->name, n);
}

void admin_tenant_patch(exchange *x)
{
    const cJSON *body;
    tenant t, now;
    bool durable = true;
    err e;
    if (!find_tenant(x, x->param[0], &t)) return;
    bool was = t.disabled;
    if (!exchange_read_json(x, &body) || !take_tenant(x, body, &t)) return;
    err_code rc = tenants_update(x->server->store, &t, &now, &durable, &e);
    tenant look;
    if (!was && !tenants_get(x->server->store, t.id, &look, NULL) && look.disabled)
        lock_out(x, &look, false); /* also where the rest of the change was refused */
    if (rc) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_audit_lockout(x, now.id, "tenant.update", now.name, durable);
    reply_tenant(x, durable ? 200 : 202, &now);
}

void admin_tenant_delete(exchange *x)
{
    tenant t;
    bool durable;
    err e;
    if (!find_tenant(x, x->param[0], &t)) return;
    if (tenants_disable(x->server->store, t.id, &durable, &e) ||
        tenants_get(x->server->store, t.id, &t, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    lock_out(x, &t, true);
    api_audit_lockout(x, t.id, "tenant.disable", t.name, durable);
    reply_tenant(x, durable ? 200 : 202, &t);
}

/* --------------------------------------------------------------------- limits -- */

/* Adapters and open uploads, as the limit in force counts them. */
static void write_disk_used(exchange *x, jsonw *w, const tenant *t)
{
    registry_totals have;
    registry_totals_get(x->server->registry, t->id, &have);
    uint64_t bytes = t->limits.max_adapter_bytes ? have.file_bytes : have.disk_bytes;
    jsonw_int(w, "max_adapters", (int64_t)have.n_adapters);
    jsonw_int(w, "max_adapter_bytes", (int64_t)(bytes + storeroom_held(x->server->room, t->id)));
}

static void write_limits(exchange *x, jsonw *w, const tenant *t)
{
    tenant_limits lim = t->limits;
    key_info none = {0};
    limits_view v;
    limits_look(x->server->limits, &none, t, NULL, &v);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "limits");
    jsonw_str(w, "tenant", t->name);
    jsonw_open(w, "limits", '{');
    for (int i = 0; i < N_LIMITS; i++) {
        jsonw_int(w, limit_fields[i].name, *limit_at(&lim, i));
    }
    jsonw_close(w, '}');
    jsonw_open(w, "used", '{');
    if (v.requests_limit >= 0)
        jsonw_int(w, "requests_per_minute", v.requests_limit - v.requests_left);
    if (v.tokens_limit >= 0) jsonw_int(w, "tokens_per_minute", v.tokens_limit - v.tokens_left);
    jsonw_int(w, "max_concurrent", v.running);
    jsonw_int(w, "max_queued", v.queued);
    jsonw_int(w, "tokens_per_day", v.day_used);
    jsonw_int(w, "tokens_per_month", v.month_used);
    write_disk_used(x, w, t);
    jsonw_close(w, '}');
    /* What holds of adapters' bytes on this server's disk where the tenant has no limit of its own. */
    if (lim.max_adapter_bytes)
        jsonw_null(w, "tenant_bytes");
    else
        jsonw_int(w, "tenant_bytes", x->server->tenant_bytes);
    jsonw_close(w, '}');
}

void admin_limits_list(exchange *x)
{
    list_tenants(x, write_limits);
}

static void reply_limits(exchange *x, const tenant *t)
{
    jsonw w;
    jsonw_init(&w);
    write_limits(x, &w, t);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

void admin_limits_get(exchange *x)
{
    tenant t;
    if (find_tenant(x, x->param[0], &t)) reply_limits(x, &t);
}

void admin_limits_patch(exchange *x)
{
    const cJSON *body;
    tenant t, now;
    err e;
    if (!find_tenant(x, x->param[0], &t)) return;
    if (!exchange_read_json(x, &body) || !take_limit_fields(x, body, &t.limits)) return;
    if (tenants_update(x->server->store, &t, &now, NULL, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_audit(x, now.id, "limits.update", now.name, NULL);
    reply_limits(x, &now);
}

/* ----------------------------------------------------------------------- keys -- */

static void write_key(exchange *x, jsonw *w, const key_info *k, const char *text, bool durable)
{
    tenant t = {0};
    if (k->tenant_id) (void)tenants_get(x->server->store, k->tenant_id, &t, NULL);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "key");
    api_write_id(w, "id", k->id);
    if (text) jsonw_str(w, "key", text);
    jsonw_str(w, "public_id", k->public_id);
    jsonw_str(w, "name", k->name);
    jsonw_str(w, "tenant", k->tenant_id ? t.name : NULL);
    jsonw_open(w, "scopes", '[');
    for (unsigned s = 1; s <= SCOPE_ADMIN_READ; s <<= 1) {
        if (k->scopes & s) jsonw_str(w, NULL, scope_name((key_scope)s));
    }
    jsonw_close(w, ']');
    jsonw_int(w, "requests_per_minute", k->requests_per_minute);
    jsonw_int(w, "tokens_per_minute", k->tokens_per_minute);
    jsonw_int(w, "max_concurrent", k->max_concurrent);
    write_list(w, "networks", k->networks);
    jsonw_int(w, "secrets", k->n_secrets);
    api_write_time(w, "created", k->created_wall_us);
    api_write_time(w, "expires_at", k->expires_wall_us);
    api_write_time(w, "revoked", k->revoked_wall_us);
    api_write_time(w, "last_used", k->last_used_wall_us);
    write_durable(w, durable);
    jsonw_close(w, '}');
}

static void reply_key(exchange *x, int status, const key_info *k, const char *text)
{
    jsonw w;
    jsonw_init(&w);
    if (text) jsonw_reserve(&w, KEY_REPLY_BYTES);
    write_key(x, &w, k, text, status != 202);
    exchange_reply_json(x, status, &w);
    if (text && w.text) explicit_bzero(w.text, w.cap);
    jsonw_clear(&w);
}

static bool take_scopes(exchange *x, const cJSON *body, unsigned *out)
{
    const cJSON *v = json_get(body, "scopes"), *each;
    bool ok = cJSON_IsArray(v) && v->child;
    cJSON_ArrayForEach(each, v)
    {
        unsigned s = cJSON_IsString(each) ? scope_from_name(each->valuestring) : 0;
        ok = ok && s;
        *out |= s;
    }
    if (ok) return true;
    exchange_error(x, 400, "invalid_request_error", "invalid_value", "scopes",
                   "'scopes' must be an array of inference, adapters.read, adapters.write, "
                   "admin, admin.read");
    return false;
}

/* Settings that the body names; the others stay. */
static bool take_key(exchange *x, const cJSON *body, key_info *k)
{
    const char *name = NULL;
    int64_t expires = 0;
    bool named = false, dated = false;
    err e;
    if (json_str(body, "name", &name, &named, &e) ||
        json_int(body, "expires_at", 0, INT64_C(1) << 40, &expires, &dated, &e) ||
        json_int(body, "requests_per_minute", 0, INT64_C(1) << 40, &k->requests_per_minute, NULL,
                 &e) ||
        json_int(body, "tokens_per_minute", 0, INT64_C(1) << 40, &k->tokens_per_minute, NULL, &e) ||
        json_int(body, "max_concurrent", 0, INT64_C(1) << 40, &k->max_concurrent, NULL, &e))
        return bad(x, &e, NULL);
    if (named && strlen(name) > KEY_NAME_MAX) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "name",
                       "'name' is longer than %d bytes", KEY_NAME_MAX);
        return false;
    }
    if (named) snprintf(k->name, sizeof(k->name), "%s", name);
    if (dated) k->expires_wall_us = expires * 1000000;
    return take_networks(x, body, k->networks);
}

void admin_key_create(exchange *x)
{
    static const char *const known[] = {"tenant",
                                        "name",
                                        "scopes",
                                        "expires_at",
                                        "requests_per_minute",
                                        "tokens_per_minute",
                                        "max_concurrent",
                                        "networks",
                                        NULL};
    const cJSON *body;
    key_info want = {0}, made;
    char text[KEY_TEXT_LEN + 1];
    const char *who = NULL;
    err e;
    if (!exchange_read_json(x, &body) || !api_only_fields(x, body, known)) return;
    if (json_str(body, "tenant", &who, NULL, &e)) {
        (void)bad(x, &e, "tenant");
        return;
    }
    tenant t = {0};
    if (!take_key(x, body, &want) || !take_scopes(x, body, &want.scopes) ||
        (who && !find_tenant(x, who, &t)))
        return;
    want.tenant_id = t.id;
    if (keys_create(x->server->store, &want, text, &made, &e)) {
        exchange_reply_err(x, &e, "scopes");
        return;
    }
    api_audit(x, made.tenant_id, "key.create", made.public_id, NULL);
    reply_key(x, 201, &made, text);
    explicit_bzero(text, sizeof(text));
}

void admin_keys_list(exchange *x)
{
    key_info *list;
    size_t n;
    err e;
    tenant t = {0};
    const char *who = exchange_query(x, "tenant");
    bool all = false;
    if (!api_query_flag(x, "all", &all) || (who && !find_tenant(x, who, &t))) return;
    if (keys_list(x->server->store, all && !who ? KEYS_OF_ALL : t.id, &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) write_key(x, &w, &list[i], NULL, true);
    api_list_end(x, &w, false);
    free(list);
}

static bool find_key(exchange *x, key_info *out)
{
    err e;
    uint64_t id = api_parse_id(x->param[0]);
    if (id && keys_get(x->server->store, id, out, &e) == ERR_NONE) return true;
    exchange_error(x, 404, "invalid_request_error", "key_not_found", "key", "there is no such key");
    return false;
}

void admin_key_get(exchange *x)
{
    key_info k;
    if (find_key(x, &k)) reply_key(x, 200, &k, NULL);
}

void admin_key_patch(exchange *x)
{
    static const char *const known[] = {
        "name",     "expires_at", "requests_per_minute", "tokens_per_minute", "max_concurrent",
        "networks", NULL};
    const cJSON *body;
    key_info was, want, now;
    err e;
    if (!find_key(x, &was) || !exchange_read_json(x, &body) || !api_only_fields(x, body, known))
        return;
    want = was;
    if (!take_key(x, body, &want)) return;
    if (keys_update(x->server->store, &was, &want, &now, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_audit(x, now.tenant_id, "key.update", now.public_id, NULL);
    reply_key(x, 200, &now, NULL);
}

void admin_key_rotate(exchange *x)
{
    key_info k;
    char text[KEY_TEXT_LEN + 1];
    uint64_t grace_s = 86400;
    err e;
    if (!find_key(x, &k) || !api_query_number(x, "grace_seconds", 0, GRACE_MAX_S, &grace_s)) return;
    if (grace_s == 0) grace_s = 1; /* 0 would mean for ever */
    int64_t until = clock_wall_us() + (int64_t)grace_s * 1000000;
    if (keys_rotate(x->server->store, k.id, until, text, &e) ||
        keys_get(x->server->store, k.id, &k, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_audit(x, k.tenant_id, "key.rotate", k.public_id, NULL);
    reply_key(x, 201, &k, text);
    explicit_bzero(text, sizeof(text));
}

void admin_key_revoke(exchange *x)
{
    key_info k;
    err e;
    bool durable;
    if (!find_key(x, &k)) return;
    if (keys_revoke(x->server->store, k.id, &durable, &e) ||
        keys_get(x->server->store, k.id, &k, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    (void)inflight_stop_all(x->server->inflight, 0, k.id);
    api_audit_lockout(x, k.tenant_id, "key.revoke", k.public_id, durable);
    reply_key(x, durable ? 200 : 202, &k, NULL);
}

/* --------------------------------------------------------------------- server -- */

void admin_classes(exchange *x)
{
    jsonw w;
    api_list_begin(&w);
    for (int i = 0; i < SERVER_CLASSES; i++) {
        const slo_class *c = &x->server->classes[i];
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "name", c->name);
        jsonw_int(&w, "ttft_ms", c->ttft_us / 1000);
        jsonw_int(&w, "tpot_ms", c->tpot_us / 1000);
        jsonw_num(&w, "weight", (double)c->weight);
        jsonw_bool(&w, "default", i == x->server->default_class);
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, false);
}

void admin_audit(exchange *x)
{
    audit_row *rows;
    size_t n;
    err e;
    uint64_t before = 0;
    if (!api_query_number(x, "before", 0, UINT64_MAX, &before)) return;
    if (audit_list(x->server->store, 0, before, 100, &rows, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) {
        jsonw_open(&w, NULL, '{');
        api_write_id(&w, "id", rows[i].id);
        api_write_time(&w, "time", rows[i].wall_us);
        api_write_id(&w, "actor_key", rows[i].actor_key_id);
        api_write_id(&w, "tenant", rows[i].tenant_id);
        jsonw_str(&w, "action", rows[i].action);
        jsonw_str(&w, "object", rows[i].object);
        jsonw_str(&w, "detail", rows[i].detail[0] ? rows[i].detail : NULL);
        jsonw_close(&w, '}');
    }
    api_list_end(x, &w, n == 100);
    free(rows);
}

static void reply_done(exchange *x, int status, const char *what)
{
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "status", what);
    jsonw_close(&w, '}');
    exchange_reply_json(x, status, &w);
    jsonw_clear(&w);
}

void admin_backup(exchange *x)
{
    static const char *const known[] = {"path", NULL};
    const cJSON *body;
    const char *path = NULL;
    err e;
    if (!exchange_read_json(x, &body) || !api_only_fields(x, body, known)) return;
    if (json_str(body, "path", &path, NULL, &e) || !path || path[0] != '/') {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "path",
                       "'path' must be an absolute path on the server");
        return;
    }
    char folder[PATH_MAX];
    size_t n = (size_t)(strrchr(path, '/') - path);
    if (n >= sizeof(folder)) n = sizeof(folder) - 1;
    memcpy(folder, path, n);
    folder[n] = 0;
    if (access(n ? folder : "/", W_OK | X_OK) != 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "path",
                       "the server cannot write into the folder of 'path'");
        return;
    }
    if (backup_write(x->server->store, path, &e)) {
        exchange_reply_err(x, &e, "path");
        return;
    }
    api_audit(x, 0, "server.backup", path, NULL);
    reply_done(x, 200, "written");
}

void admin_drain(exchange *x)
{
    api_audit(x, 0, "server.drain", "", NULL);
    reply_done(x, 202, "draining");
    atomic_store(&x->server->drain_wanted, true);
}

void admin_reload(exchange *x)
{
    api_audit(x, 0, "server.reload", "", NULL);
    atomic_store(&x->server->reload_wanted, true);
    reply_done(x, 202, "reloading");
}
