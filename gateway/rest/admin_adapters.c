/* admin_adapters.c -- an operator acts on a tenant's adapter: as the tenant's own key would, and more. */
#include <string.h>

#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/server.h"

static bool find_tenant(exchange *x, const char *which)
{
    uint64_t id = api_parse_id(which);
    if (tenants_find(x->server->store, which, &x->caller->tenant, NULL) == ERR_NONE) return true;
    if (id && tenants_get(x->server->store, id, &x->caller->tenant, NULL) == ERR_NONE) return true;
    exchange_error(x, 404, "invalid_request_error", "tenant_not_found", "tenant",
                   "there is no tenant '%.80s'", which);
    return false;
}

/* Out of memory now, or when the last sequence has let go of it; the next request loads it again. */
static void evict(exchange *x)
{
    adapter_entry a;
    version_entry v;
    err e;
    err_code rc = registry_get(x->server->registry, x->caller->tenant.id, x->param[0], &a, &e);
    if (!rc && a.default_version) {
        rc = registry_version(x->server->registry, x->caller->tenant.id, x->param[0],
                              a.default_version, &v, &e);
        if (!rc) rc = residency_evict(x->server->residency, v.v.id, &e);
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
        if (!find_tenant(x, x->param[0])) return;
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
    if (!find_tenant(x, x->param[0])) return false;
    if (registry_get(x->server->registry, x->caller->tenant.id, x->param[1], out, &e) == ERR_NONE)
        return true;
    exchange_reply_err(x, &e, "adapter");
    return false;
}

static void reply_limits(exchange *x, const adapter_entry *a)
{
    limits_view v;
    limits_adapter of = {.id = a->id, .limits = a->limits};
    limits_look_adapter(x->server->limits, &of, &v);
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
    static const char *const known[] = {"requests_per_minute", "tokens_per_minute",
                                        "max_concurrent", NULL};
    const cJSON *body;
    adapter_entry a;
    err e;
    if (!find_adapter(x, &a) || !exchange_read_json(x, &body) || !api_only_fields(x, body, known))
        return;
    const adapter_limits was = a.limits;
    int64_t *const at[] = {&a.limits.requests_per_minute, &a.limits.tokens_per_minute,
                           &a.limits.max_concurrent};
    for (int i = 0; known[i]; i++) {
        if (json_int(body, known[i], 0, INT64_C(1) << 50, at[i], NULL, &e)) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", known[i], "%s", e.msg);
            return;
        }
    }
    if (registry_set_limits(x->server->registry, x->caller->tenant.id, a.name, &was, &a.limits,
                            &e)) {
        exchange_reply_err(x, &e, "adapter");
        return;
    }
    api_audit(x, x->caller->tenant.id, "adapter.limits", a.name, NULL);
    reply_limits(x, &a);
}
