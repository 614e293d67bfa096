/* admin_tenants.c -- handlers of /admin/v1/tenants and of tenants' limits.
 *
 * A PATCH reads the tenant's row, overlays the members of the body (take_tenant()) and writes it
 * back with its generation; a change in between fails with a conflict and nothing is lost.
 * Members that are left out, and null where the schema allows it, keep their value.
 * limit_fields[] is the only list of limits: reading, writing and checking loop over it.
 *
 * A suspended or deleted tenant is locked out before the row is durable: caches refuse its keys
 * at once, and lock_out() ends its running requests and uploads. The answer is 202 with
 * "durable": false while the database does not have the change yet; the storage writer repeats
 * it.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "gateway/adapter_parts.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/rest/admin_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/rest/source_files.h"
#include "gateway/tenant_parts.h"
#include "gateway/watch/stats.h"
#include "storage/seal/source_secrets.h"
#include "storage/targets.h"

enum { PAGE_MAX = 1000 };

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
    {"cost_per_day", offsetof(tenant_limits, cost_per_day)},
    {"cost_per_month", offsetof(tenant_limits, cost_per_month)},
    {"max_adapters", offsetof(tenant_limits, max_adapters)},
    {"max_adapter_bytes", offsetof(tenant_limits, max_adapter_bytes)},
};

enum { N_LIMITS = (int)(sizeof(limit_fields) / sizeof(limit_fields[0])) };

static int64_t *limit_at(tenant_limits *l, int i)
{
    return (int64_t *)(void *)((char *)l + limit_fields[i].offset);
}

static void write_limit_fields(jsonw *w, const tenant_limits *l)
{
    tenant_limits lim = *l;
    jsonw_open(w, "limits", '{');
    for (int i = 0; i < N_LIMITS; i++) {
        jsonw_int(w, limit_fields[i].name, *limit_at(&lim, i));
    }
    jsonw_close(w, '}');
}

static void write_target_ms(jsonw *w, const char *name, int64_t us)
{
    if (us)
        jsonw_int(w, name, us / 1000);
    else
        jsonw_null(w, name);
}

static void write_targets(jsonw *w, const tenant *t)
{
    const char *list = t->targets;
    target each;
    jsonw_open(w, "targets", '{');
    while (targets_next(&list, &each)) {
        jsonw_open(w, each.class, '{');
        write_target_ms(w, "ttft_ms", each.ttft_us);
        write_target_ms(w, "tpot_ms", each.tpot_us);
        jsonw_close(w, '}');
    }
    jsonw_close(w, '}');
}

static void write_tenant(jsonw *w, const tenant *t, bool durable)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "tenant");
    api_write_id(w, "id", t->id);
    jsonw_str(w, "name", t->name);
    jsonw_str(w, "state", t->disabled ? "disabled" : "active");
    jsonw_num(w, "weight", t->weight);
    jsonw_str(w, "default_class", t->default_class[0] ? t->default_class : NULL);
    admin_write_list(w, "classes", t->classes);
    write_targets(w, t);
    jsonw_str(w, "adapter_source", t->source[0] ? t->source : NULL);
    admin_write_list(w, "models", t->models);
    admin_write_list(w, "networks", t->networks);
    write_limit_fields(w, &t->limits);
    jsonw_int(w, "generation", (int64_t)t->generation);
    api_write_time(w, "created", t->created_wall_us);
    admin_write_durable(w, durable);
    jsonw_close(w, '}');
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

static bool take_limit_fields(exchange *x, const cJSON *v, tenant_limits *out)
{
    const char *known[N_LIMITS + 1] = {NULL};
    err e;
    for (int i = 0; i < N_LIMITS; i++) known[i] = limit_fields[i].name;
    if (!api_only_fields(x, v, known)) return false;
    for (int i = 0; i < N_LIMITS; i++) {
        if (json_int(v, known[i], 0, INT64_C(1) << 50, limit_at(out, i), NULL, &e)) {
            return admin_refuse(x, &e, known[i]);
        }
    }
    return true;
}

static bool take_limits(exchange *x, const cJSON *body, tenant_limits *out)
{
    const cJSON *v = json_get(body, "limits");
    return !v || cJSON_IsNull(v) || take_limit_fields(x, v, out);
}

/* The tenant's own targets in a class, one or both; what is not said, or null, is the class's. */
static bool take_target(exchange *x, const cJSON *v, tenant *t)
{
    static const char *const known[] = {"ttft_ms", "tpot_ms", NULL};
    target one = {.ttft_us = 0};
    err e;
    bool none = cJSON_IsNull(v);
    if (!none && class_of_name(&x->conf->classes, v->string) < 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "targets",
                       "there is no class '%.40s'", v->string);
        return false;
    }
    if (!none && !cJSON_IsObject(v)) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "targets",
                       "the targets in '%.40s' must be an object with ttft_ms and tpot_ms",
                       v->string);
        return false;
    }
    if (!none && !api_only_fields(x, v, known)) return false;
    if (!none && (json_int(v, "ttft_ms", 1, TARGET_MS_MAX, &one.ttft_us, NULL, &e) ||
                  json_int(v, "tpot_ms", 1, TARGET_MS_MAX, &one.tpot_us, NULL, &e)))
        return admin_refuse(x, &e, "targets");
    snprintf(one.class, sizeof(one.class), "%s", v->string);
    one.ttft_us *= 1000;
    one.tpot_us *= 1000;
    if (targets_put(t, &one)) return true;
    exchange_error(x, 400, "invalid_request_error", "invalid_value", "targets",
                   "too many targets; remove those of classes that no longer exist");
    return false;
}

/* Of the classes that the body names; the others stay. */
static bool take_targets(exchange *x, const cJSON *body, tenant *t)
{
    const cJSON *v = json_get(body, "targets"), *each;
    if (!v || cJSON_IsNull(v)) return true;
    if (!cJSON_IsObject(v)) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "targets",
                       "'targets' must be an object with a member for each class");
        return false;
    }
    cJSON_ArrayForEach(each, v)
    {
        if (!take_target(x, each, t)) return false;
    }
    return true;
}

/* "" and null: none. */
static bool take_source(exchange *x, const cJSON *body, tenant *t)
{
    const source_rules rules = source_rules_of(&x->conf->sources);
    const cJSON *v = json_get(body, "adapter_source");
    err e;
    if (!v) return true;
    const char *s = cJSON_IsNull(v) ? "" : cJSON_GetStringValue(v);
    if (!s || strlen(s) >= sizeof(t->source))
        err_set(&e, ERR_INPUT, "must be a text shorter than %zu bytes, or null", sizeof(t->source));
    else if (!*s || !source_check_template(s, &rules, &e)) {
        snprintf(t->source, sizeof(t->source), "%s", s);
        return true;
    }
    exchange_error(x, 400, "invalid_request_error", "invalid_value", "adapter_source",
                   "'adapter_source': %s", e.msg);
    return false;
}

/* Settings that the body names; the others stay. */
static bool take_tenant(exchange *x, const cJSON *body, tenant *t)
{
    static const char *const known[] = {
        "name",     "weight",   "default_class", "classes",        "models", "limits",
        "disabled", "networks", "targets",       "adapter_source", NULL};
    err e;
    const char *s = NULL;
    bool found = false;
    if (!api_only_fields(x, body, known)) return false;
    if (json_str(body, "name", &s, &found, &e)) return admin_refuse(x, &e, "name");
    if (found) {
        if (!name_valid(s)) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "name",
                           "a tenant's name must match [a-z0-9][a-z0-9._-]{0,63}");
            return false;
        }
        snprintf(t->name, sizeof(t->name), "%s", s);
    }
    if (json_num(body, "weight", 0.001, 1000, &t->weight, NULL, &e))
        return admin_refuse(x, &e, "weight");
    if (json_bool(body, "disabled", &t->disabled, NULL, &e)) return admin_refuse(x, &e, "disabled");
    if (json_str(body, "default_class", &s, &found, &e))
        return admin_refuse(x, &e, "default_class");
    if (found) {
        char why[256];
        tenant probe = {0};
        if (tenant_class(&x->conf->classes, &probe, s, why, sizeof(why)) < 0 ||
            strlen(s) > CLASS_NAME_MAX) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "default_class",
                           "there is no class '%.40s'", s);
            return false;
        }
        snprintf(t->default_class, sizeof(t->default_class), "%s", s);
    }
    return take_list(x, body, "classes", t->classes, sizeof(t->classes)) &&
           take_list(x, body, "models", t->models, sizeof(t->models)) &&
           admin_take_networks(x, body, t->networks) && take_targets(x, body, t) &&
           take_source(x, body, t) && take_limits(x, body, &t->limits);
}

static void reply_tenant(exchange *x, int status, const tenant *t)
{
    jsonw w;
    jsonw_init(&w);
    write_tenant(&w, t, status != 202);
    exchange_reply_json(x, status, &w);
    jsonw_clear(&w);
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
    if (tenants_create(store_of(x->app), &want, &made, &e)) {
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
    if (tenants_list(store_of(x->app), after, PAGE_MAX, &list, &n, &e)) {
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
    if (admin_find_tenant(x, x->param[0], &t)) reply_tenant(x, 200, &t);
}

/* Ends what a tenant that was locked out still runs, and gives back the room of its uploads. */
static void lock_out(exchange *x, const tenant *t, bool for_good)
{
    server *s = x->app;
    int n = inflight_stop_all(tenants_of(s)->inflight, t->id, 0);
    if (for_good) n += staging_drop_all(adapters_of(s)->staging, t->id);
    log_info("gateway", "tenant %s is locked out; %d requests and uploads of it end", t->name, n);
}

void admin_tenant_patch(exchange *x)
{
    const cJSON *body;
    tenant t, now;
    bool durable = true;
    err e;
    if (!admin_find_tenant(x, x->param[0], &t)) return;
    bool was = t.disabled;
    if (!exchange_read_json(x, &body) || !take_tenant(x, body, &t)) return;
    err_code rc = tenants_update(store_of(x->app), &t, &now, &durable, &e);
    tenant look;
    if (!was && !tenants_get(store_of(x->app), t.id, &look, NULL) && look.disabled)
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
    if (!admin_find_tenant(x, x->param[0], &t)) return;
    if (tenants_disable(store_of(x->app), t.id, &durable, &e) ||
        tenants_get(store_of(x->app), t.id, &t, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    lock_out(x, &t, true);
    if (source_secrets_drop(store_of(x->app), t.id, NULL, &e))
        log_warn("gateway", "credentials that tenant %s kept are still here: %s", t.name, e.msg);
    api_audit_lockout(x, t.id, "tenant.disable", t.name, durable);
    reply_tenant(x, durable ? 200 : 202, &t);
}

/* --------------------------------------------------------------------- limits -- */

/* Adapters and open uploads, as the limit in force counts them. */
static void write_disk_used(exchange *x, jsonw *w, const tenant *t)
{
    registry_totals have;
    registry_totals_get(registry_of(x->app), t->id, &have);
    uint64_t bytes = t->limits.max_adapter_bytes ? have.file_bytes : have.disk_bytes;
    jsonw_int(w, "max_adapters", (int64_t)have.n_adapters);
    jsonw_int(w, "max_adapter_bytes",
              (int64_t)(bytes + storeroom_held(adapters_of(x->app)->room, t->id)));
}

/* Requests that each limit refused in the last hour, on this server. */
static void write_refused(exchange *x, jsonw *w, const tenant *t)
{
    refusal_count all[REFUSALS_KINDS];
    int n = stats_refusals(process_of(x->app)->stats, t->id, all);
    jsonw_open(w, "refused", '[');
    for (int i = 0; i < n; i++) {
        jsonw_open(w, NULL, '{');
        jsonw_str(w, "scope", all[i].scope);
        jsonw_str(w, "limit", all[i].limit);
        jsonw_int(w, "last_hour", all[i].count);
        jsonw_close(w, '}');
    }
    jsonw_close(w, ']');
}

static void write_limits(exchange *x, jsonw *w, const tenant *t)
{
    key_info none = {0};
    limits_view v;
    limits_look(tenants_of(x->app)->limits, &none, t, NULL, &v);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "limits");
    jsonw_str(w, "tenant", t->name);
    write_limit_fields(w, &t->limits);
    jsonw_open(w, "used", '{');
    if (v.requests_limit >= 0)
        jsonw_int(w, "requests_per_minute", v.requests_limit - v.requests_left);
    if (v.tokens_limit >= 0) jsonw_int(w, "tokens_per_minute", v.tokens_limit - v.tokens_left);
    jsonw_int(w, "max_concurrent", v.running);
    jsonw_int(w, "max_queued", v.queued);
    jsonw_int(w, "tokens_per_day", v.day_used);
    jsonw_int(w, "tokens_per_month", v.month_used);
    jsonw_int(w, "cost_per_day", v.cost_day_used);
    jsonw_int(w, "cost_per_month", v.cost_month_used);
    write_disk_used(x, w, t);
    jsonw_close(w, '}');
    write_refused(x, w, t);
    /* What holds of adapters' bytes on this server's disk where the
     * tenant has no limit of its own. */
    if (t->limits.max_adapter_bytes)
        jsonw_null(w, "tenant_bytes");
    else
        jsonw_int(w, "tenant_bytes", adapters_tenant_bytes(x));
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
    if (admin_find_tenant(x, x->param[0], &t)) reply_limits(x, &t);
}

void admin_limits_patch(exchange *x)
{
    const cJSON *body;
    tenant t, now;
    err e;
    if (!admin_find_tenant(x, x->param[0], &t)) return;
    if (!exchange_read_json(x, &body) || !take_limit_fields(x, body, &t.limits)) return;
    if (tenants_update(store_of(x->app), &t, &now, NULL, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    api_audit(x, now.id, "limits.update", now.name, NULL);
    reply_limits(x, &now);
}
