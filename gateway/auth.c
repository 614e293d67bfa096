/* auth.c -- finds the key of a request; every bad key gets the same answer.
 *
 *     Authorization: Bearer KEY | Basic, whose password (or name) is KEY
 *     api-key, x-api-key: KEY             Azure's and Anthropic's clients
 *     -> keys_check()  401: no key, unknown, revoked; 403: its tenant is suspended
 *     -> networks      403: the tenant's list and the key's must hold the client's address
 *     -> scopes        403: one of the route's is enough
 *
 * Two keys that differ are refused before either is looked at: a proxy that adds its own must
 * not turn a request into another tenant's. A wrong key, network or scope counts in
 * auth_failures.
 *
 * A key that was good when a request came can be revoked before it ends: auth_still() and
 * auth_again() look once more, where minutes pass in between (uploads, fetches, batches).
 */
#include "gateway/auth.h"

#include <string.h>

#include <civetweb.h>
#include <openssl/evp.h>

#include "engine/base/clock.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

enum { BASIC_MAX = 256 /* bytes of base64 */ };

/* Of Basic credentials, which clients make of https://:KEY@host: the password, or the name where
 * there is none.  NULL: it is no base64, or there is no memory. */
static const char *basic_key(exchange *x, const char *text)
{
    size_t n = strlen(text);
    char *plain = n > 0 && n <= BASIC_MAX && n % 4 == 0 ? arena_alloc(&x->arena, n + 1) : NULL;
    if (!plain) return NULL;
    int got = EVP_DecodeBlock((unsigned char *)plain, (const unsigned char *)text, (int)n);
    char *colon = got > 0 ? memchr(plain, ':', (size_t)got) : NULL;
    if (!colon) return NULL;
    plain[got] = 0; /* what pads is NUL already */
    *colon = 0;
    return colon[1] ? colon + 1 : plain;
}

/* The key's text in a header, or NULL; two different ways at once are *ambiguous. */
static const char *find_key(exchange *x, bool *ambiguous)
{
    static const char *const aliases[] = {"api-key", "x-api-key"};
    const char *key = NULL, *bearer = exchange_header(x, "Authorization");
    *ambiguous = false;
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) {
        key = bearer + 7;
        while (*key == ' ') key++;
    } else if (bearer && strncasecmp(bearer, "Basic ", 6) == 0) {
        key = basic_key(x, bearer + 6);
    }
    for (int i = 0; i < 2; i++) {
        const char *v = exchange_header(x, aliases[i]);
        if (!v) continue;
        if (key && strcmp(key, v) != 0) *ambiguous = true;
        key = v;
    }
    return key;
}

static bool deny(exchange *x, const char *code, const char *msg)
{
    atomic_fetch_add(&process_of(x->app)->count.auth_failures, 1);
    exchange_error(x, 401, "invalid_request_error", code, NULL, "%s", msg);
    return false;
}

/* Both lists must hold the client: the tenant's and the key's own. */
static bool check_network(exchange *x)
{
    if (!x->caller->tenant.networks[0] && !x->caller->key.networks[0]) return true;
    network_address from =
        networks_client(x->conf->server.trusted_proxies, x->peer, mg_get_request_info(x->conn));
    if ((!x->caller->tenant.networks[0] || networks_hold(x->caller->tenant.networks, &from)) &&
        (!x->caller->key.networks[0] || networks_hold(x->caller->key.networks, &from)))
        return true;
    char who[NETWORK_TEXT_MAX];
    networks_print(&from, who);
    atomic_fetch_add(&process_of(x->app)->count.auth_failures, 1);
    exchange_error(x, 403, "permission_error", "network_not_allowed", NULL,
                   "this API key may not be used from your address (%s)", who);
    return false;
}

/* False, with the scopes of which any one would do. */
static bool lacks(exchange *x, unsigned scope)
{
    char list[96] = "";
    size_t n = 0;
    for (unsigned s = 1; s <= SCOPE_ADMIN_READ; s <<= 1) {
        if (!(scope & s)) continue;
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", n ? " or " : "",
                              scope_name((key_scope)s));
    }
    exchange_error(x, 403, "permission_error", "insufficient_scope", NULL,
                   "this API key may not do this; it lacks the scope %s", list);
    return false;
}

bool auth_check(exchange *x, unsigned scope)
{
    bool ambiguous;
    const char *key = find_key(x, &ambiguous);
    if (ambiguous) {
        exchange_error(x, 400, "invalid_request_error", "ambiguous_credentials", NULL,
                       "two different API keys were sent");
        return false;
    }
    err e;
    key_info info = {0};
    tenant who = {0};
    err_code rc = ERR_DENIED;
    if (key) rc = keys_check(store_of(x->app), key, strlen(key), &info, &who, &e);
    switch (rc) {
    case ERR_NONE: break;
    case ERR_DENIED:
        return deny(x, "invalid_api_key",
                    "Incorrect API key provided, or none: send it as "
                    "'Authorization: Bearer lk_...'.");
    case ERR_EXPIRED: return deny(x, "expired_api_key", e.msg);
    default: /* a suspended tenant, or storage that fails */
        exchange_reply_err(x, &e, NULL);
        return false;
    }
    x->caller->key = info;
    x->caller->tenant = who;
    if (who.name[0]) exchange_note(x, "tenant", "%s", who.name);
    exchange_note(x, "key", "%s", info.public_id);
    if (!check_network(x)) return false;
    if (info.scopes & scope) return true;
    atomic_fetch_add(&process_of(x->app)->count.auth_failures, 1);
    return lacks(x, scope);
}

err_code auth_still(const exchange *x, bool whole, err *e)
{
    tenant t;
    key_info k;
    if (tenants_get(store_of(x->app), x->caller->tenant.id, &t, NULL) || t.disabled)
        return err_set(e, ERR_SUSPENDED, "the tenant of this API key is disabled");
    if (whole && (keys_get(store_of(x->app), x->caller->key.id, &k, NULL) || k.revoked_wall_us))
        return err_set(e, ERR_DENIED, "the API key was revoked meanwhile");
    return ERR_NONE;
}

err_code auth_again(store *st, uint64_t tenant_id, uint64_t key_id, caller *out, err *e)
{
    err_code rc = tenants_get(st, tenant_id, &out->tenant, e);
    if (!rc) rc = keys_get(st, key_id, &out->key, e);
    if (rc && rc != ERR_NOT_FOUND) return rc;
    const key_info *k = &out->key;
    bool over = !rc && k->expires_wall_us && k->expires_wall_us <= clock_wall_us();
    if (rc || over || k->revoked_wall_us || !(k->scopes & SCOPE_INFERENCE))
        return err_set(e, ERR_DENIED, "the API key is no longer valid");
    if (!out->tenant.disabled) return ERR_NONE;
    return err_set(e, ERR_SUSPENDED, "the tenant of this API key is disabled");
}

bool auth_may_use_model(const exchange *x, const char *name)
{
    /* "name@7" and "name:alias" stand for "name" */
    char bare[256];
    size_t n = strcspn(name, "@:");
    if (n >= sizeof(bare)) return false;
    memcpy(bare, name, n);
    bare[n] = 0;
    return list_allows(x->caller->tenant.models, bare);
}
