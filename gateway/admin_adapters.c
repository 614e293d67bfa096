/* admin_adapters.c -- an operator acts on a tenant's adapter: as the tenant's own key would, and more. */
#include <string.h>

#include "gateway/api_fields.h"
#include "gateway/handlers.h"
#include "gateway/server.h"

static bool find_tenant(exchange *x, const char *which)
{
    uint64_t id = api_parse_id(which);
    if (tenants_find(x->server->store, which, &x->tenant, NULL) == ERR_NONE) return true;
    if (id && tenants_get(x->server->store, id, &x->tenant, NULL) == ERR_NONE) return true;
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
    err_code rc = registry_get(x->server->registry, x->tenant.id, x->param[0], &a, &e);
    if (!rc && a.default_version) {
        rc = registry_version(x->server->registry, x->tenant.id, x->param[0], a.default_version, &v,
                              &e);
        if (!rc) rc = residency_evict(x->server->residency, v.v.id, &e);
    }
    if (rc) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    api_audit(x, x->tenant.id, "adapter.evict", x->param[0], NULL);
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
