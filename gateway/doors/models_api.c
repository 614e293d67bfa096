/* models_api.c -- handlers of /v1/models and of what a key may do.
 *
 * The list has what the key may name in 'model': the base, the tenant's adapters with a default
 * version, and those that other tenants share, as "owner/name". A name that exists and may not
 * be used has the answer of one that does not exist. An adapter whose files are on another node
 * of the fleet is there, too.
 */
#include <stdlib.h>
#include <string.h>

#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

static void write_model(exchange *x, jsonw *w, const char *id, const char *owner,
                        int64_t created_us, bool adapter)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "id", id);
    jsonw_str(w, "object", "model");
    jsonw_int(w, "created", created_us / 1000000);
    jsonw_str(w, "owned_by", owner);
    jsonw_str(w, "parent", adapter ? x->conf->model.name : NULL);
    jsonw_int(w, "max_model_len", sched_max_context(sched_of(x->app)));
    jsonw_close(w, '}');
}

/* What other tenants share with this one: "owner/name". */
static void write_shared(exchange *x, jsonw *w)
{
    enum { PAGE = 64 };
    registry_query q = {.shared_with = x->caller->tenant.id, .limit = PAGE};
    registry_cursor next = {.more = true};
    adapter_entry *page = malloc(PAGE * sizeof(*page));
    while (page && next.more) {
        size_t n;
        registry_page(registry_of(x->app), &q, page, &n, &next);
        for (size_t i = 0; i < n; i++) {
            tenant owner;
            char id[TENANT_NAME_MAX + ADAPTER_NAME_MAX + 2];
            if (page[i].default_version == 0 ||
                tenants_get(store_of(x->app), page[i].tenant_id, &owner, NULL)) {
                continue;
            }
            snprintf(id, sizeof(id), "%s/%s", owner.name, page[i].name);
            if (auth_may_use_model(x, id))
                write_model(x, w, id, owner.name, page[i].created_wall_us, true);
        }
        q.after_tenant_id = next.tenant_id;
        q.after = next.name;
    }
    free(page);
}

void models_list(exchange *x)
{
    server *s = x->app;
    adapter_entry *list = NULL;
    size_t n = 0;
    err e;
    if (x->caller->tenant.id &&
        registry_list(registry_of(s), x->caller->tenant.id, NULL, 0, &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    if (auth_may_use_model(x, process_of(s)->cfg->model.name)) {
        write_model(x, &w, process_of(s)->cfg->model.name, "lorad", process_of(s)->started_wall_us,
                    false);
    }
    for (size_t i = 0; i < n; i++) {
        if (list[i].default_version == 0 || !auth_may_use_model(x, list[i].name)) continue;
        write_model(x, &w, list[i].name, x->caller->tenant.name, list[i].created_wall_us, true);
    }
    if (x->caller->tenant.id) write_shared(x, &w);
    api_list_end(x, &w, false);
    free(list);
}

void models_get(exchange *x)
{
    server *s = x->app;
    const char *id = x->param[0];
    const adapter_version *v = NULL;
    err e;
    bool base = strcmp(id, process_of(s)->cfg->model.name) == 0;
    bool may = auth_may_use_model(x, id), ok = may && base;
    adapter_version shown = {0};
    if (may && !base && x->caller->tenant.id) {
        uint64_t absent_id;
        err_code rc =
            registry_try(registry_of(s), x->caller->tenant.id, id, false, &v, &absent_id, &e);
        if (!rc) shown = *v;
        /* It exists, wherever its files are. */
        ok = !rc || (rc == ERR_ELSEWHERE && registry_absent(registry_of(s), absent_id, &shown));
    }
    if (!ok) {
        exchange_error(x, 404, "invalid_request_error", "model_not_found", "model",
                       "The model '%.100s' does not exist or you do not have access to it.", id);
        return;
    }
    jsonw w;
    jsonw_init(&w);
    tenant owner = x->caller->tenant;
    if (!base && shown.tenant_id != owner.id)
        (void)tenants_get(store_of(s), shown.tenant_id, &owner, NULL);
    write_model(x, &w, id, base ? "lorad" : owner.name,
                base ? process_of(s)->started_wall_us : shown.created_wall_us, !base);
    if (v) registry_release(registry_of(s), v);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

static void write_limit(jsonw *w, const char *name, int64_t limit, int64_t left)
{
    jsonw_open(w, name, '{');
    if (limit < 0)
        jsonw_null(w, "limit");
    else
        jsonw_int(w, "limit", limit);
    if (limit < 0)
        jsonw_null(w, "remaining");
    else
        jsonw_int(w, "remaining", left > 0 ? left : 0);
    jsonw_close(w, '}');
}

void key_whoami(exchange *x)
{
    limits_view v;
    limits_look(tenants_of(x->app)->limits, &x->caller->key, &x->caller->tenant, NULL, &v);
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "key");
    api_write_id(&w, "id", x->caller->key.id);
    jsonw_str(&w, "public_id", x->caller->key.public_id);
    jsonw_str(&w, "name", x->caller->key.name);
    jsonw_str(&w, "tenant", x->caller->tenant.id ? x->caller->tenant.name : NULL);
    jsonw_open(&w, "scopes", '[');
    for (unsigned s = 1; s <= SCOPE_ADMIN_READ; s <<= 1) {
        if (x->caller->key.scopes & s) jsonw_str(&w, NULL, scope_name((key_scope)s));
    }
    jsonw_close(&w, ']');
    api_write_time(&w, "expires_at", x->caller->key.expires_wall_us);
    jsonw_open(&w, "limits", '{');
    write_limit(&w, "requests_per_minute", v.requests_limit, v.requests_left);
    write_limit(&w, "tokens_per_minute", v.tokens_limit, v.tokens_left);
    write_limit(&w, "concurrent_requests", v.concurrent_limit, v.concurrent_limit - v.running);
    write_limit(&w, "tokens_per_day", v.day_limit, v.day_limit - v.day_used);
    write_limit(&w, "tokens_per_month", v.month_limit, v.month_limit - v.month_used);
    write_limit(&w, "cost_per_day", v.cost_day_limit, v.cost_day_limit - v.cost_day_used);
    write_limit(&w, "cost_per_month", v.cost_month_limit, v.cost_month_limit - v.cost_month_used);
    jsonw_close(&w, '}');
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}
