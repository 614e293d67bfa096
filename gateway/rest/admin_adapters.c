/* admin_adapters.c -- every tenant's adapters, for operators: lists, actions, limits, and
 * registration of trees.
 *
 * Actions reuse the tenant's own handlers: act_for() puts the tenant into x->caller, then the
 * handler runs as if a key of that tenant had called it. The audit log still names the
 * operator's key. Only eviction exists for operators alone.
 *
 * Limits of an adapter have an ETag of their own, which is their six values;
 * registry_set_limits() compares them once more under its lock, so two operators cannot
 * overwrite each other.
 *
 * Registration (POST /admin/v1/adapters/register) publishes a tree of folders in place. Its
 * audit rows are posted with the next commit, because a commit for each of thousands of adapters
 * would double the time.
 */
#include <stdlib.h>
#include <string.h>

#include "adapters/residency/inplace.h"
#include "engine/base/json.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/admin_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"
#include "storage/audit.h"

enum { ERRORS_SHOWN = 100 };

/* -------------------------------------------------------------------- listing -- */

static void write_row(exchange *x, jsonw *w, const adapter_entry *a)
{
    tenant t = {0};
    (void)tenants_get(store_of(x->app), a->tenant_id, &t, NULL);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "tenant", t.name);
    jsonw_str(w, "name", a->name);
    jsonw_str(w, "state", adapter_state_name(a->state));
    jsonw_int(w, "default_version", a->default_version);
    jsonw_int(w, "versions", a->n_versions);
    jsonw_int(w, "bytes", (int64_t)a->file_bytes);
    jsonw_str(w, "residency",
              a->default_id
                  ? residency_state_name(residency_get(residency_of(x->app), a->default_id, NULL))
                  : NULL);
    jsonw_bool(w, "pinned", a->pinned);
    jsonw_close(w, '}');
}

void admin_adapters(exchange *x)
{
    const char *residency_name, *of = exchange_query(x, "tenant");
    registry_query q = {0};
    tenant t = {0};
    if (!adapter_take_query(x, &q, &residency_name) || (of && !admin_find_tenant(x, of, &t)))
        return;
    if (!exchange_query(x, "limit")) q.limit = 1000;
    q.tenant_id = t.id;
    adapter_reply_page(x, &q, residency_name, write_row);
}

/* --------------------------------------------------------------------- acting -- */

/* From here on the request is that tenant's. */
static bool act_for(exchange *x, const char *which)
{
    tenant *t = &x->caller->tenant;
    if (!admin_find_tenant(x, which, t)) return false;
    exchange_note(x, "tenant", "%s", t->name);
    return true;
}

/* Out of memory now, or when the last sequence has let go of it; the next request loads it
 * again. */
static void evict(exchange *x)
{
    adapter_entry a;
    version_entry v;
    err e;
    err_code rc = registry_get(registry_of(x->app), x->caller->tenant.id, x->param[0], &a, &e);
    if (!rc && a.default_version) {
        rc = registry_version(registry_of(x->app), x->caller->tenant.id, x->param[0],
                              a.default_version, &v, &e);
        if (!rc) rc = residency_evict(residency_of(x->app), v.v.id, &e);
    }
    if (rc) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    api_audit(x, x->caller->tenant.id, "adapter.evict", x->param[0], NULL);
    adapters_get(x);
}

void admin_adapter_act(exchange *x)
{
    static const struct {
        const char *verb;
        void (*fn)(exchange *x);
    } verbs[] = {{"pin", adapters_pin},
                 {"unpin", adapters_unpin},
                 {"warm", adapters_warm},
                 {"rollback", adapters_rollback},
                 {"evict", evict}};
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(x->param[2], verbs[i].verb) != 0) continue;
        if (!act_for(x, x->param[0])) return;
        x->param[0] = x->param[1];
        x->n_param = 1;
        verbs[i].fn(x);
        return;
    }
    exchange_error(
        x, 404, "invalid_request_error", "unknown_url", NULL,
        "an adapter can be pinned, unpinned, warmed, evicted and rolled back, not '%.40s'",
        x->param[2]);
}

/* --------------------------------------------------------------------- limits -- */

static bool find_adapter(exchange *x, adapter_entry *out)
{
    err e;
    if (!act_for(x, x->param[0])) return false;
    if (registry_get(registry_of(x->app), x->caller->tenant.id, x->param[1], out, &e) == ERR_NONE)
        return true;
    exchange_reply_err(x, &e, "adapter");
    return false;
}

enum { LIMITS_TAG_MAX = 144 };

/* The ETag of limits: what they are. */
static void tag_of(const adapter_limits *l, char out[LIMITS_TAG_MAX])
{
    snprintf(out, LIMITS_TAG_MAX, "\"%lld-%lld-%lld-%lld-%lld-%lld\"",
             (long long)l->requests_per_minute, (long long)l->tokens_per_minute,
             (long long)l->max_concurrent, (long long)l->surcharge.prompt,
             (long long)l->surcharge.cached, (long long)l->surcharge.output);
}

/* If-Match; false: answered. */
static bool is_expected(exchange *x, const adapter_limits *l)
{
    const char *asked = exchange_header(x, "If-Match");
    char tag[LIMITS_TAG_MAX];
    err e;
    tag_of(l, tag);
    if (!asked || strcmp(asked, "*") == 0 || strcmp(asked, tag) == 0) return true;
    err_set(&e, ERR_STALE, "the limits were changed meanwhile: read them again");
    exchange_reply_err(x, &e, "If-Match");
    return false;
}

static void reply_limits(exchange *x, const adapter_entry *a)
{
    char tag[LIMITS_TAG_MAX];
    tag_of(&a->limits, tag);
    exchange_add_header(x, "ETag", "%s", tag);
    limits_view v;
    limits_adapter of = {.id = a->id, .limits = a->limits};
    limits_look_adapter(tenants_of(x->app)->limits, &of, &v);
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "limits");
    jsonw_str(&w, "tenant", x->caller->tenant.name);
    jsonw_str(&w, "adapter", a->name);
    adapter_write_limits(&w, &a->limits);
    jsonw_open(&w, "used", '{');
    if (v.requests_limit >= 0)
        jsonw_int(&w, "requests_per_minute", v.requests_limit - v.requests_left);
    if (v.tokens_limit >= 0) jsonw_int(&w, "tokens_per_minute", v.tokens_limit - v.tokens_left);
    jsonw_int(&w, "max_concurrent", v.running);
    jsonw_close(&w, '}');
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

void admin_adapter_limits_get(exchange *x)
{
    adapter_entry a;
    if (find_adapter(x, &a)) reply_limits(x, &a);
}

void admin_adapter_limits_patch(exchange *x)
{
    static const char *const known[] = {"requests_per_minute",
                                        "tokens_per_minute",
                                        "max_concurrent",
                                        "surcharge_prompt",
                                        "surcharge_cached",
                                        "surcharge_output",
                                        NULL};
    enum { FIRST_SURCHARGE = 3 };
    const cJSON *body;
    adapter_entry a;
    err e;
    if (!find_adapter(x, &a) || !exchange_read_json(x, &body) || !api_only_fields(x, body, known) ||
        !is_expected(x, &a.limits))
        return;
    const adapter_limits was = a.limits;
    int64_t *const at[] = {&a.limits.requests_per_minute, &a.limits.tokens_per_minute,
                           &a.limits.max_concurrent,      &a.limits.surcharge.prompt,
                           &a.limits.surcharge.cached,    &a.limits.surcharge.output};
    for (int i = 0; known[i]; i++) {
        int64_t most = i < FIRST_SURCHARGE ? INT64_C(1) << 50 : PRICE_MAX;
        if (json_int(body, known[i], 0, most, at[i], NULL, &e)) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", known[i], "%s", e.msg);
            return;
        }
    }
    if (registry_set_limits(registry_of(x->app), x->caller->tenant.id, a.name, &was, &a.limits,
                            &e)) {
        exchange_reply_err(x, &e, "adapter");
        return;
    }
    api_audit(x, x->caller->tenant.id, "adapter.limits", a.name, NULL);
    reply_limits(x, &a);
}

/* --------------------------------------------------------------- registration -- */

typedef struct {
    exchange *x;
    uint64_t tenant_id;
    jsonw errors;
    int n_errors;
} registration;

static void folder_seen(void *self, const char *path, const adapter_version *v, bool existed,
                        const err *why)
{
    registration *r = self;
    if (v && !existed) {
        char detail[64];
        snprintf(detail, sizeof(detail), "{\"version\":%d,\"in_place\":true}", v->version);
        /* With the next version's commit, so that thousands take one each and not two. */
        audit_post(store_of(r->x->app), r->x->caller->key.id, r->tenant_id, "adapter.publish",
                   v->name, detail);
    }
    if (!why || r->n_errors++ >= ERRORS_SHOWN) return;
    jsonw_open(&r->errors, NULL, '{');
    jsonw_str(&r->errors, "path", path);
    jsonw_str(&r->errors, "message", why->msg);
    jsonw_close(&r->errors, '}');
}

void admin_adapters_register(exchange *x)
{
    static const char *const known[] = {"path", "tenant", "activate", NULL};
    const cJSON *body;
    const char *path = NULL, *name = NULL;
    bool activate = true;
    tenant t;
    inplace_totals totals;
    err e;
    if (!exchange_read_json(x, &body) || !api_only_fields(x, body, known)) return;
    if (json_str(body, "path", &path, NULL, &e) || json_str(body, "tenant", &name, NULL, &e) ||
        json_bool(body, "activate", &activate, NULL, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    if (!path || !name) {
        const char *missing = path ? "tenant" : "path";
        exchange_error(x, 400, "invalid_request_error", "invalid_value", missing, "'%s' is missing",
                       missing);
        return;
    }
    if (!admin_find_tenant(x, name, &t)) return;
    publish_options o = {.tenant_id = t.id,
                         .activate = activate,
                         .max_adapters = t.limits.max_adapters,
                         .quota = adapters_quota(x, &t)};
    const upload_env env = adapters_upload(x);
    registration r = {.x = x, .tenant_id = t.id};
    jsonw_init(&r.errors);
    jsonw_open(&r.errors, NULL, '{');
    jsonw_str(&r.errors, "object", "adapter.registration");
    jsonw_open(&r.errors, "errors", '[');
    if (inplace_register(&env, x->conf->adapters.roots, path, &o, folder_seen, &r, &totals, &e)) {
        jsonw_clear(&r.errors);
        exchange_reply_err(x, &e, "path");
        return;
    }
    jsonw *w = &r.errors;
    jsonw_close(w, ']');
    jsonw_int(w, "registered", (int64_t)totals.n_registered);
    jsonw_int(w, "unchanged", (int64_t)totals.n_unchanged);
    jsonw_int(w, "refused", (int64_t)totals.n_refused);
    jsonw_close(w, '}');
    exchange_reply_json(x, 200, w);
    jsonw_clear(w);
}
