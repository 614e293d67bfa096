/* adapters_api.c -- the registry over HTTPS: upload, look, move aliases, pin, delete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/api_fields.h"
#include "gateway/handlers.h"
#include "gateway/server.h"

/* Adapter calls need a tenant: an operator's key has none. */
static bool need_tenant(exchange *x)
{
    if (x->tenant.id) return true;
    exchange_error(x, 403, "permission_error", "tenant_required", NULL,
                   "this key belongs to no tenant; adapters belong to tenants");
    return false;
}

/* ---------------------------------------------------------------------- writing -- */

static void write_version(exchange *x, jsonw *w, const version_entry *v)
{
    char hex[DIGEST_HEX], model_id[ADAPTER_NAME_MAX + 16];
    bool pinned = false;
    residency_state rs = residency_get(x->server->residency, v->v.id, &pinned);
    digest_hex(v->v.digest, hex);
    (void)snprintf(model_id, sizeof(model_id), "%s@%d", v->v.name, v->v.version);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "adapter.version");
    jsonw_str(w, "name", v->v.name);
    jsonw_int(w, "version", v->v.version);
    jsonw_str(w, "model", model_id);
    jsonw_str(w, "state", adapter_state_name(v->state));
    jsonw_str(w, "error", v->error[0] ? v->error : NULL);
    jsonw_str(w, "digest", hex);
    jsonw_int(w, "bytes", (int64_t)v->v.file_bytes);
    jsonw_int(w, "memory_bytes", (int64_t)v->v.packed_bytes);
    jsonw_int(w, "rank", v->v.rank_max);
    jsonw_str(w, "residency", residency_state_name(rs));
    jsonw_bool(w, "pinned", pinned);
    jsonw_int(w, "in_use", v->pins);
    api_write_time(w, "created", v->v.created_wall_us);
    jsonw_close(w, '}');
}

static void write_entry(exchange *x, jsonw *w, const adapter_entry *a)
{
    version_entry v;
    const char *residency_name = NULL;
    if (a->default_version && registry_version(x->server->registry, a->tenant_id, a->name,
                                               a->default_version, &v, NULL) == ERR_NONE) {
        residency_name = residency_state_name(residency_get(x->server->residency, v.v.id, NULL));
    }
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "adapter");
    jsonw_str(w, "name", a->name);
    jsonw_str(w, "description", a->description);
    if (a->default_version)
        jsonw_int(w, "default_version", a->default_version);
    else
        jsonw_null(w, "default_version");
    jsonw_int(w, "versions", a->n_versions);
    jsonw_int(w, "bytes", (int64_t)a->file_bytes);
    jsonw_str(w, "residency", residency_name);
    jsonw_bool(w, "pinned", a->pinned);
    jsonw_int(w, "generation", (int64_t)a->generation);
    jsonw_open(w, "aliases", '{');
    for (int i = 0; i < a->n_alias; i++) jsonw_int(w, a->alias[i].alias, a->alias[i].version);
    jsonw_close(w, '}');
    api_write_time(w, "created", a->created_wall_us);
    jsonw_close(w, '}');
}

static void reply_entry(exchange *x, int status)
{
    adapter_entry a;
    err e;
    if (registry_get(x->server->registry, x->tenant.id, x->param[0], &a, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    jsonw w;
    jsonw_init(&w);
    write_entry(x, &w, &a);
    exchange_add_header(x, "ETag", "\"%llu\"", (unsigned long long)a.generation);
    exchange_reply_json(x, status, &w);
    jsonw_clear(&w);
}

/* ----------------------------------------------------------------------- looking -- */

void adapters_list(exchange *x)
{
    adapter_entry *list;
    size_t n, limit = 100;
    err e;
    if (!need_tenant(x)) return;
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
    for (size_t i = 0; i < n && i < limit; i++) write_entry(x, &w, &list[i]);
    api_list_end(x, &w, n > limit);
    free(list);
}

void adapters_get(exchange *x)
{
    if (need_tenant(x)) reply_entry(x, 200);
}

void adapters_versions(exchange *x)
{
    version_entry *list;
    size_t n;
    err e;
    if (!need_tenant(x)) return;
    if (registry_versions(x->server->registry, x->tenant.id, x->param[0], &list, &n, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) write_version(x, &w, &list[i]);
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
    int number = need_tenant(x) ? version_of(x, 1) : 0;
    if (!number) return;
    if (registry_version(x->server->registry, x->tenant.id, x->param[0], number, &v, &e)) {
        exchange_reply_err(x, &e, "version");
        return;
    }
    jsonw w;
    jsonw_init(&w);
    write_version(x, &w, &v);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

/* ---------------------------------------------------------------------- uploading -- */

typedef struct {
    upload *u;
    err *e;
    err_code rc;
} upload_sink;

static bool take_piece(void *arg, const void *data, size_t len)
{
    upload_sink *s = arg;
    s->rc = upload_write(s->u, data, len, s->e);
    return s->rc == ERR_NONE;
}

/* What is wrong with an adapter's content is 422; limits, conflicts and the disk speak for themselves. */
static void refuse_upload(exchange *x, const err *e, const char *param)
{
    atomic_fetch_add(&x->server->count.uploads_refused, 1);
    if (e->code == ERR_INPUT || e->code == ERR_CORRUPT || e->code == ERR_UNSUPPORTED) {
        exchange_error(x, 422, "invalid_request_error", "adapter_invalid", param, "%s", e->msg);
    } else {
        exchange_reply_err(x, e, param);
    }
}

static void reply_upload(exchange *x, const adapter_version *v, bool existed)
{
    version_entry entry;
    err e;
    if (registry_version(x->server->registry, x->tenant.id, v->name, v->version, &entry, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    jsonw_init(&w);
    write_version(x, &w, &entry);
    exchange_reply_json(x, existed ? 200 : 201, &w);
    jsonw_clear(&w);
}

/* After `default` may have moved: a pinned name keeps its new version resident. */
static void follow_pin(exchange *x, const char *name, uint64_t old_version)
{
    adapter_entry a;
    version_entry v;
    if (registry_get(x->server->registry, x->tenant.id, name, &a, NULL) || !a.pinned) return;
    if (old_version) residency_unpin(x->server->residency, old_version);
    if (a.default_version && registry_version(x->server->registry, x->tenant.id, name,
                                              a.default_version, &v, NULL) == ERR_NONE) {
        (void)residency_pin(x->server->residency, v.v.id, NULL);
    }
}

static uint64_t default_version_id(exchange *x, const char *name)
{
    adapter_entry a;
    version_entry v;
    if (registry_get(x->server->registry, x->tenant.id, name, &a, NULL) || !a.default_version)
        return 0;
    if (registry_version(x->server->registry, x->tenant.id, name, a.default_version, &v, NULL))
        return 0;
    return v.v.id;
}

void adapters_upload(exchange *x)
{
    server *s = x->server;
    err e;
    if (!need_tenant(x)) return;
    const char *type = exchange_header(x, "Content-Type"), *active = exchange_query(x, "activate");
    if (!type || strcasecmp(type, "application/x-tar") != 0) {
        exchange_error(x, 415, "invalid_request_error", "unsupported_media_type", NULL,
                       "send the adapter's folder as application/x-tar");
        return;
    }
    if (atomic_load(&s->draining)) {
        exchange_error(x, 503, "server_error", "shutting_down", NULL,
                       "the server is shutting down");
        return;
    }
    upload_options o = {.tenant_id = x->tenant.id,
                        .name = x->param[0],
                        .description = exchange_query(x, "description"),
                        .activate = !active || strcmp(active, "false") != 0,
                        .max_adapters = x->tenant.limits.max_adapters,
                        .max_bytes = x->tenant.limits.max_adapter_bytes,
                        .content_bytes = x->content_length};
    upload_sink sink = {.e = &e};
    if (upload_begin(&sink.u, &s->upload, &o, &e)) {
        if (e.code == ERR_INPUT) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "name", "%s", e.msg);
        } else {
            refuse_upload(x, &e, "name");
        }
        return;
    }
    err body_error;
    err_code rc = exchange_stream_body(x, (uint64_t)s->cfg->adapters_max_upload, take_piece, &sink,
                                       &body_error);
    if (rc) {
        upload_abort(sink.u);
        x->close_after = true;
        if (sink.rc)
            refuse_upload(x, &e, NULL);
        else if (rc == ERR_TIMEOUT) {
            exchange_error(x, 408, "timeout_error", "request_timeout", NULL, "%s", body_error.msg);
        } else {
            exchange_reply_err(x, &body_error, NULL);
        }
        return;
    }
    adapter_version v;
    bool existed = false;
    uint64_t before = default_version_id(x, x->param[0]);
    if (upload_finish(sink.u, &v, &existed, &e)) {
        refuse_upload(x, &e, NULL);
        return;
    }
    atomic_fetch_add(&s->count.uploads, 1);
    if (!existed) {
        char detail[64];
        (void)snprintf(detail, sizeof(detail), "{\"version\":%d}", v.version);
        api_audit(x, x->tenant.id, "adapter.publish", v.name, detail);
        follow_pin(x, v.name, before);
        residency_warm(s->residency, v.id);
    }
    reply_upload(x, &v, existed);
}

/* ------------------------------------------------------------------------ changing -- */

void adapters_patch(exchange *x)
{
    static const char *const known[] = {"description", NULL};
    const cJSON *body;
    const char *text = NULL;
    err e;
    if (!need_tenant(x) || !exchange_read_json(x, &body, NULL, NULL) ||
        !api_only_fields(x, body, known)) {
        return;
    }
    if (json_str(body, "description", &text, NULL, &e) ||
        registry_set_meta(x->server->registry, x->tenant.id, x->param[0], text, NULL, &e)) {
        exchange_reply_err(x, &e, "description");
        return;
    }
    api_audit(x, x->tenant.id, "adapter.update", x->param[0], NULL);
    reply_entry(x, 200);
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
    if (need_tenant(x)) delete_some(x, 0);
}

void adapters_version_delete(exchange *x)
{
    int number = need_tenant(x) ? version_of(x, 1) : 0;
    if (number) delete_some(x, number);
}

/* If-Match: "7" or *; absent: -1.  False: answered. */
static bool expected_generation(exchange *x, int64_t *out)
{
    const char *m = exchange_header(x, "If-Match");
    *out = -1;
    if (!m || strcmp(m, "*") == 0) return true;
    char digits[24] = "";
    size_t n = strlen(m);
    if (n >= 3 && n < sizeof(digits) && m[0] == '"' && m[n - 1] == '"') {
        memcpy(digits, m + 1, n - 2);
    }
    uint64_t v = api_parse_id(digits);
    if (v || strcmp(digits, "0") == 0) {
        *out = (int64_t)v;
        return true;
    }
    exchange_error(x, 400, "invalid_request_error", "invalid_value", "If-Match",
                   "If-Match must be * or the ETag of the adapter");
    return false;
}

static void reply_alias(exchange *x, err_code rc, const err *e, int64_t expected, uint64_t before)
{
    if (rc == ERR_CONFLICT && expected >= 0) {
        exchange_error(x, 412, "invalid_request_error", "precondition_failed", "If-Match", "%s",
                       e->msg);
    } else if (rc) {
        exchange_reply_err(x, e, "alias");
    } else {
        follow_pin(x, x->param[0], before);
        api_audit(x, x->tenant.id, "adapter.alias", x->param[0], NULL);
        reply_entry(x, 200);
    }
}

void adapters_alias_put(exchange *x)
{
    static const char *const known[] = {"version", NULL};
    const cJSON *body;
    int64_t number = 0, expected;
    err e;
    if (!need_tenant(x) || !expected_generation(x, &expected)) return;
    if (!exchange_read_json(x, &body, NULL, NULL) || !api_only_fields(x, body, known)) return;
    if (json_int(body, "version", 1, INT32_MAX, &number, NULL, &e) || number == 0) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "version",
                       "'version' must be the number of a version");
        return;
    }
    uint64_t before = default_version_id(x, x->param[0]);
    err_code rc = registry_set_alias(x->server->registry, x->tenant.id, x->param[0], x->param[1],
                                     (int)number, expected, NULL, &e);
    reply_alias(x, rc, &e, expected, before);
}

void adapters_alias_delete(exchange *x)
{
    int64_t expected;
    err e;
    if (!need_tenant(x) || !expected_generation(x, &expected)) return;
    uint64_t before = default_version_id(x, x->param[0]);
    err_code rc = registry_drop_alias(x->server->registry, x->tenant.id, x->param[0], x->param[1],
                                      expected, &e);
    reply_alias(x, rc, &e, expected, before);
}

void adapters_rollback(exchange *x)
{
    err e;
    int number;
    if (!need_tenant(x)) return;
    uint64_t before = default_version_id(x, x->param[0]);
    const char *alias = exchange_query(x, "alias");
    err_code rc = registry_rollback(x->server->registry, x->tenant.id, x->param[0],
                                    alias ? alias : "default", &number, &e);
    reply_alias(x, rc, &e, -1, before);
}

/* -------------------------------------------------------------------------- tiers -- */

static void set_pin(exchange *x, bool pinned)
{
    err e;
    if (!need_tenant(x)) return;
    uint64_t id = default_version_id(x, x->param[0]);
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
    reply_entry(x, 200);
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
    if (!need_tenant(x)) return;
    uint64_t id = default_version_id(x, x->param[0]);
    if (id) residency_warm(x->server->residency, id);
    reply_entry(x, id ? 202 : 200);
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
