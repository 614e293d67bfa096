/* adapters_admin.c -- every tenant's adapters, for operators. */
#include <stdlib.h>
#include <string.h>

#include "adapters/residency/inplace.h"
#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/server.h"
#include "storage/audit.h"

enum { ERRORS_SHOWN = 100 };

static void write_row(exchange *x, jsonw *w, const adapter_entry *a)
{
    tenant t = {0};
    (void)tenants_get(x->server->store, a->tenant_id, &t, NULL);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "tenant", t.name);
    jsonw_str(w, "name", a->name);
    jsonw_str(w, "state", adapter_state_name(a->state));
    jsonw_int(w, "default_version", a->default_version);
    jsonw_int(w, "versions", a->n_versions);
    jsonw_int(w, "bytes", (int64_t)a->file_bytes);
    jsonw_str(w, "residency",
              a->default_id
                  ? residency_state_name(residency_get(x->server->residency, a->default_id, NULL))
                  : NULL);
    jsonw_bool(w, "pinned", a->pinned);
    jsonw_close(w, '}');
}

/* False: answered. */
static bool find_tenant(exchange *x, const char *name, tenant *t)
{
    if (name && tenants_find(x->server->store, name, t, NULL) == ERR_NONE) return true;
    exchange_error(x, name ? 404 : 400, "invalid_request_error",
                   name ? "not_found" : "invalid_value", "tenant",
                   name ? "there is no tenant '%.64s'" : "'tenant' is missing%s", name ? name : "");
    return false;
}

void admin_adapters(exchange *x)
{
    const char *residency_name, *of = exchange_query(x, "tenant");
    registry_query q = {0};
    tenant t = {0};
    if (!adapter_take_query(x, &q, &residency_name) || (of && !find_tenant(x, of, &t))) return;
    if (!exchange_query(x, "limit")) q.limit = 1000;
    q.tenant_id = t.id;
    adapter_reply_page(x, &q, residency_name, write_row);
}

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
        audit_post(r->x->server->store, r->x->caller->key.id, r->tenant_id, "adapter.publish",
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
    server *s = x->server;
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
    if (!path) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "path",
                       "'path' is missing");
        return;
    }
    if (!find_tenant(x, name, &t)) return;
    publish_options o = {.tenant_id = t.id,
                         .activate = activate,
                         .max_adapters = t.limits.max_adapters,
                         .quota = server_quota(x->server, &t)};
    registration r = {.x = x, .tenant_id = t.id};
    jsonw_init(&r.errors);
    jsonw_open(&r.errors, NULL, '{');
    jsonw_str(&r.errors, "object", "adapter.registration");
    jsonw_open(&r.errors, "errors", '[');
    if (inplace_register(&s->upload, s->cfg->adapters_roots, path, &o, folder_seen, &r, &totals,
                         &e)) {
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
