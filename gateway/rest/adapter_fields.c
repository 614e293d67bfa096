/* adapter_fields.c -- adapters and versions as JSON, the conditions of If-Match, and what
 * follows a publication.
 *
 * Upload, source fetch and first use all publish; what happens afterwards is here once: the
 * version is loaded (adapter_published()), a pin of the name follows its default version
 * (adapter_follow_pin()), an audit row is written, old versions beyond adapters.keep_versions
 * are pruned.
 *
 * An ETag is the entry's generation. adapter_expected() reads If-Match and If-None-Match into
 * one number: -1 any, 0 the name must not exist, else the generation that it must have.
 *
 * Another tenant's entry, which a shared adapter shows, has the owner's name in its id and does
 * not say with whom else it is shared.
 */
#include "gateway/rest/adapter_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/rest/api_audit.h"
#include "gateway/rest/effect.h"
#include "gateway/tenant_parts.h"

/* Adapter calls need a tenant: an operator's key has none. */
bool adapter_need_tenant(exchange *x)
{
    if (x->caller->tenant.id) return true;
    exchange_error(x, 403, "permission_error", "tenant_required", NULL,
                   "this key belongs to no tenant; adapters belong to tenants");
    return false;
}

bool adapter_refuse_draining(exchange *x)
{
    if (!atomic_load(&process_of(x->app)->http.draining)) return false;
    exchange_error(x, 503, "server_error", "shutting_down", NULL, "the server is shutting down");
    return true;
}

publish_options adapter_options(const exchange *x, const char *name)
{
    const tenant *t = &x->caller->tenant;
    return (publish_options){.tenant_id = t->id,
                             .name = name,
                             .activate = true,
                             .max_adapters = t->limits.max_adapters,
                             .quota = adapters_quota(x, t),
                             .content_bytes = x->content_length};
}

/* What its upload found, and what was measured since (rest/effect.h). */
static void write_effect(jsonw *w, const char *info)
{
    cJSON *tree = NULL;
    if (info[0] && json_parse(info, strlen(info), &json_limits_trusted, &tree, NULL) == ERR_NOMEM)
        w->failed = true; /* it would say that nothing is known */
    const char *effect = tree ? cJSON_GetStringValue(json_get(tree, "effect")) : NULL;
    const cJSON *change = tree ? json_get(tree, "logit_change") : NULL;
    const char *warning = NULL;
    if (effect && strcmp(effect, "none") == 0)
        warning = "it changes nothing: all its products of A and B are zero, as before a training";
    else if (cJSON_IsNumber(change) && change->valuedouble == 0)
        warning = "it changes nothing: the logits of a fixed prompt are the base's";
    jsonw_str(w, "effect", effect);
    jsonw_num(w, "logit_change", cJSON_IsNumber(change) ? change->valuedouble : NAN);
    jsonw_str(w, "warning", warning);
    cJSON_Delete(tree);
}

/* Where its bytes can be read from. */
static const char *files_of(const server *s, const version_entry *v)
{
    if (v->absent) return adapters_of(s)->depot ? "store" : "elsewhere";
    return v->in_place ? "in_place" : "here";
}

void adapter_write_version(exchange *x, jsonw *w, const version_entry *v)
{
    char hex[DIGEST_HEX], model_id[ADAPTER_NAME_MAX + 16];
    residency_row r;
    residency_row_get(residency_of(x->app), v->v.id, &r);
    digest_hex(v->v.digest, hex);
    snprintf(model_id, sizeof(model_id), "%s@%d", v->v.name, v->v.version);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "adapter.version");
    jsonw_str(w, "name", v->v.name);
    jsonw_int(w, "version", v->v.version);
    jsonw_str(w, "model", model_id);
    jsonw_str(w, "state", adapter_state_name(v->state));
    jsonw_str(w, "error", v->error[0] ? v->error : NULL);
    jsonw_str(w, "digest", hex);
    jsonw_int(w, "bytes", (int64_t)v->v.file_bytes);
    jsonw_str(w, "files", files_of(x->app, v));
    jsonw_int(w, "memory_bytes", (int64_t)v->v.packed_bytes);
    jsonw_int(w, "rank", v->v.rank_max);
    write_effect(w, v->info);
    jsonw_str(w, "residency", residency_state_name(r.state));
    jsonw_int(w, "host_bytes", (int64_t)r.host_bytes);
    jsonw_int(w, "hits", (int64_t)r.n_hits);
    jsonw_int(w, "loads", (int64_t)r.n_loads);
    jsonw_int(w, "load_us", r.load_us);
    if (r.last_use_us)
        jsonw_int(w, "idle_seconds", (clock_now_us() - r.last_use_us) / 1000000);
    else
        jsonw_null(w, "idle_seconds");
    jsonw_bool(w, "pinned", r.pinned);
    jsonw_int(w, "in_use", v->pins);
    api_write_time(w, "created", v->v.created_wall_us);
    jsonw_close(w, '}');
}

/* "none", "all" or the tenants' names; whom others share with is theirs alone to know. */
static void write_sharing(exchange *x, jsonw *w, const adapter_entry *a)
{
    uint64_t *list = NULL;
    size_t n = 0;
    err ignored;
    if (a->shared_all || a->n_shared == 0) {
        jsonw_str(w, "sharing", a->shared_all ? "all" : "none");
        return;
    }
    jsonw_open(w, "sharing", '[');
    (void)registry_shares(registry_of(x->app), a->tenant_id, a->name, &list, &n, &ignored);
    for (size_t i = 0; i < n; i++) {
        tenant t;
        if (tenants_get(store_of(x->app), list[i], &t, NULL) == ERR_NONE)
            jsonw_str(w, NULL, t.name);
    }
    jsonw_close(w, ']');
    free(list);
}

void adapter_write_limits(jsonw *w, const adapter_limits *l)
{
    jsonw_open(w, "limits", '{');
    jsonw_int(w, "requests_per_minute", l->requests_per_minute);
    jsonw_int(w, "tokens_per_minute", l->tokens_per_minute);
    jsonw_int(w, "max_concurrent", l->max_concurrent);
    jsonw_int(w, "surcharge_prompt", l->surcharge.prompt);
    jsonw_int(w, "surcharge_cached", l->surcharge.cached);
    jsonw_int(w, "surcharge_output", l->surcharge.output);
    jsonw_close(w, '}');
}

void adapter_write_entry(exchange *x, jsonw *w, const adapter_entry *a)
{
    const char *residency_name = NULL;
    char id[TENANT_NAME_MAX + ADAPTER_NAME_MAX + 2];
    bool own = a->tenant_id == x->caller->tenant.id;
    tenant owner = {0};
    if (!own) (void)tenants_get(store_of(x->app), a->tenant_id, &owner, NULL);
    snprintf(id, sizeof(id), "%s%s%s", owner.name, own ? "" : "/", a->name);
    if (a->default_id)
        residency_name =
            residency_state_name(residency_get(residency_of(x->app), a->default_id, NULL));
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "adapter");
    jsonw_str(w, "name", a->name);
    jsonw_str(w, "model", id);
    jsonw_str(w, "owner", own ? x->caller->tenant.name : owner.name);
    jsonw_str(w, "description", a->description);
    jsonw_str(w, "state", adapter_state_name(a->state));
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
    adapter_write_limits(w, &a->limits);
    if (own) write_sharing(x, w, a);
    api_write_time(w, "created", a->created_wall_us);
    jsonw_close(w, '}');
}

void adapter_reply_entry(exchange *x, int status)
{
    adapter_entry a;
    err e;
    if (registry_get(registry_of(x->app), x->caller->tenant.id, x->param[0], &a, &e)) {
        exchange_reply_err(x, &e, "name");
        return;
    }
    jsonw w;
    jsonw_init(&w);
    adapter_write_entry(x, &w, &a);
    exchange_add_header(x, "ETag", "\"%llu\"", (unsigned long long)a.generation);
    exchange_reply_json(x, status, &w);
    jsonw_clear(&w);
}

/* What is wrong with an adapter's content is 422; limits, conflicts and the
 * disk speak for themselves. */
void adapter_refuse(exchange *x, const err *e, const char *param)
{
    atomic_fetch_add(&process_of(x->app)->count.uploads_refused, 1);
    if (e->code == ERR_INPUT || e->code == ERR_CORRUPT || e->code == ERR_UNSUPPORTED) {
        exchange_error(x, 422, "invalid_request_error", "adapter_invalid", param, "%s", e->msg);
    } else {
        exchange_reply_err(x, e, param);
    }
}

/* After `default` may have moved: a pinned name keeps its new version resident. */
void adapter_follow_pin(exchange *x, const char *name, uint64_t old_version)
{
    adapter_entry a;
    if (registry_get(registry_of(x->app), x->caller->tenant.id, name, &a, NULL) || !a.pinned)
        return;
    if (old_version) residency_unpin(residency_of(x->app), old_version);
    if (a.default_id) (void)residency_pin(residency_of(x->app), a.default_id, NULL);
}

uint64_t adapter_default_id(exchange *x, const char *name)
{
    adapter_entry a;
    if (registry_get(registry_of(x->app), x->caller->tenant.id, name, &a, NULL)) return 0;
    return a.default_id;
}

void adapter_note(exchange *x, const adapter_version *v, bool existed)
{
    char detail[64];
    if (existed) return;
    snprintf(detail, sizeof(detail), "{\"version\":%d}", v->version);
    api_audit(x, x->caller->tenant.id, "adapter.publish", v->name, detail);
    effect_add(adapters_of(x->app)->effects, v->id);
}

void adapter_published(exchange *x, const adapter_version *v, bool existed, uint64_t before)
{
    atomic_fetch_add(&process_of(x->app)->count.uploads, 1);
    if (existed)
        residency_renew(residency_of(x->app), v->id);
    else
        residency_warm(residency_of(x->app), v->id);
    if (adapter_default_id(x, v->name) != before) adapter_follow_pin(x, v->name, before);
}

void adapter_prune(exchange *x, const char *name)
{
    (void)registry_prune(registry_of(x->app), x->caller->tenant.id, name,
                         (int)x->conf->adapters.keep_versions);
}

void adapter_reply_published(exchange *x, const adapter_version *v, bool existed, uint64_t before)
{
    version_entry entry;
    adapter_entry a;
    err e;
    adapter_published(x, v, existed, before);
    adapter_note(x, v, existed);
    if (registry_version(registry_of(x->app), x->caller->tenant.id, v->name, v->version, &entry,
                         &e) ||
        registry_get(registry_of(x->app), x->caller->tenant.id, v->name, &a, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    jsonw_init(&w);
    adapter_write_version(x, &w, &entry);
    exchange_add_header(x, "ETag", "\"%llu\"", (unsigned long long)a.generation);
    exchange_reply_json(x, existed ? 200 : 201, &w);
    jsonw_clear(&w);
    adapter_prune(x, v->name);
}

bool adapter_activate(exchange *x, bool *activate)
{
    return api_query_flag(x, "activate", activate);
}

bool adapter_expected(exchange *x, int64_t *out)
{
    const char *m = exchange_header(x, "If-Match");
    *out = -1;
    const char *none = exchange_header(x, "If-None-Match");
    if (none && strcmp(none, "*") == 0) *out = 0;
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
