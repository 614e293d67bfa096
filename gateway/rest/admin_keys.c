/* admin_keys.c -- handlers of /admin/v1/keys: an operator creates, lists, changes, rotates and
 * revokes keys.
 *
 * The secret exists in clear text in one answer only. The buffer for it is reserved before it is
 * written, so that growing it leaves no copy in freed memory, and is wiped after the answer was
 * sent.
 *
 * Rotation adds a secret; the old ones expire after the grace period (24 hours unless given). A
 * grace of 0 is stored as one second, because 0 means "never expires" in the row.
 *
 * Revocation is in force before it is on the disk: running requests of the key end, and the
 * answer is 202 with "durable": false until the storage writer has it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/admin_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"
#include "storage/keys.h"

enum { GRACE_MAX_S = 366 * 86400, KEY_REPLY_BYTES = 8192 };

static void write_key(exchange *x, jsonw *w, const key_info *k, const char *text, bool durable)
{
    tenant t = {0};
    if (k->tenant_id) (void)tenants_get(store_of(x->app), k->tenant_id, &t, NULL);
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
    admin_write_list(w, "networks", k->networks);
    jsonw_int(w, "secrets", k->n_secrets);
    api_write_time(w, "created", k->created_wall_us);
    api_write_time(w, "expires_at", k->expires_wall_us);
    api_write_time(w, "revoked", k->revoked_wall_us);
    api_write_time(w, "last_used", k->last_used_wall_us);
    admin_write_durable(w, durable);
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
        return admin_refuse(x, &e, NULL);
    if (named && strlen(name) > KEY_NAME_MAX) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "name",
                       "'name' is longer than %d bytes", KEY_NAME_MAX);
        return false;
    }
    if (named) snprintf(k->name, sizeof(k->name), "%s", name);
    if (dated) k->expires_wall_us = expires * 1000000;
    return admin_take_networks(x, body, k->networks);
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
        (void)admin_refuse(x, &e, "tenant");
        return;
    }
    tenant t = {0};
    if (!take_key(x, body, &want) || !take_scopes(x, body, &want.scopes) ||
        (who && !admin_find_tenant(x, who, &t)))
        return;
    want.tenant_id = t.id;
    if (keys_create(store_of(x->app), &want, text, &made, &e)) {
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
    if (!api_query_flag(x, "all", &all) || (who && !admin_find_tenant(x, who, &t))) return;
    if (keys_list(store_of(x->app), all && !who ? KEYS_OF_ALL : t.id, &list, &n, &e)) {
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
    if (id && keys_get(store_of(x->app), id, out, &e) == ERR_NONE) return true;
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
    if (keys_update(store_of(x->app), &was, &want, &now, &e)) {
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
    if (keys_rotate(store_of(x->app), k.id, until, text, &e) ||
        keys_get(store_of(x->app), k.id, &k, &e)) {
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
    if (keys_revoke(store_of(x->app), k.id, &durable, &e) ||
        keys_get(store_of(x->app), k.id, &k, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    (void)inflight_stop_all(tenants_of(x->app)->inflight, 0, k.id);
    api_audit_lockout(x, k.tenant_id, "key.revoke", k.public_id, durable);
    reply_key(x, durable ? 200 : 202, &k, NULL);
}
