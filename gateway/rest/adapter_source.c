/* adapter_source.c -- from a source's address in a body to a version that is published.
 *
 *     body         fields, address, credentials: the body's, else what the tenant keeps for it
 *     a place      FETCHES_MAX at once, FETCHES_OF_TENANT for one tenant: else 503 or 429
 *     fetch        into an upload as if it were sent; the key is looked at again meanwhile
 *     publish      or nothing of it stays
 *
 * An answer says whose fault it was: the address (400), the content (as for uploads), the source
 * (422; 502 where another try may help). A secret that the tenant keeps here is wiped when the
 * order is done.
 *
 * A slot of `fetching` is the tenant's id + 1, taken by compare-and-swap, so that no lock is
 * held while minutes pass. Threads: the exchange's worker, for as long as the fetch takes.
 */
#include "gateway/rest/adapter_source.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/source_files.h"
#include "gateway/rest/source_secret.h"
#include "storage/digest.h"

typedef struct {
    source_plan plan;
    fetch_secret secret;
    cJSON *kept; /* the secret's words, where the body has none */
} order;

typedef struct {
    exchange *x;
    bool key_gone; /* the caller's key has been revoked meanwhile */
} watched;

static err_code still_allowed(void *arg, err *e)
{
    watched *w = arg;
    err_code rc = auth_still(w->x, false, e);
    w->key_gone |= rc != 0;
    return rc;
}

static bool refuse_field(exchange *x, const char *param, const err *e)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "'%s': %s", param,
                   e->msg);
    return false;
}

/* Those of the body, or what the tenant keeps.  False: answered. */
static bool take_credentials(exchange *x, const cJSON *body, order *o)
{
    const cJSON *c = json_get(body, "credentials");
    const source *where = &o->plan.where;
    err e;
    if (source_secret_read(c, &o->secret, &e) || source_secret_fits(where, &o->secret, &e))
        return refuse_field(x, "credentials", &e);
    bool given = c && !cJSON_IsNull(c);
    if (!given && source_secret_kept(tenants_of(x->app), x->caller->tenant.id, where, &o->secret,
                                     &o->kept, &e)) {
        exchange_reply_err(x, &e, "credentials");
        return false;
    }
    o->secret.s3.region = o->plan.rules.s3_region;
    return true;
}

/* False: answered. */
static bool take_body(exchange *x, const cJSON *body, publish_options *o, order *p)
{
    static const char *const known[] = {"source",      "sha256",   "credentials",
                                        "description", "activate", NULL};
    const char *text = NULL;
    uint8_t sha[DIGEST_BYTES];
    err e;
    if (!api_only_fields(x, body, known)) return false;
    if (json_str(body, "source", &text, NULL, &e) ||
        json_str(body, "sha256", &p->plan.sha256, NULL, &e) ||
        json_str(body, "description", &o->description, NULL, &e) ||
        json_bool(body, "activate", &o->activate, NULL, &e)) {
        exchange_reply_err(x, &e, NULL);
        return false;
    }
    if (p->plan.sha256 && !digest_from_hex(p->plan.sha256, sha)) {
        err_set(&e, ERR_INPUT, "must be 64 lower-case hexadecimal digits");
        return refuse_field(x, "sha256", &e);
    }
    if (!adapter_activate(x, &o->activate)) return false;
    if (source_parse(&p->plan.where, text ? text : "", &p->plan.rules, &e))
        return refuse_field(x, "source", &e);
    return take_credentials(x, body, p);
}

/* Whose fault is it, and does it help to come again? */
static void refuse_fetch(exchange *x, fetch_end end, const watched *w, const err *e)
{
    if (end == FETCH_SINK) {
        adapter_refuse(x, e, w->key_gone ? NULL : "source");
    } else if (end == FETCH_REFUSED) {
        refuse_field(x, "source", e);
    } else {
        bool away = end == FETCH_AWAY;
        exchange_error(x, away ? 502 : 422, away ? "server_error" : "invalid_request_error",
                       "source_failed", "source", "'source': %s", e->msg);
    }
}

static void run(exchange *x, const source_plan *p, const publish_options *o)
{
    const upload_env env = adapters_upload(x);
    watched w = {.x = x};
    const source_watch watch = {still_allowed, &w};
    upload *u;
    adapter_version v;
    bool existed = false;
    uint64_t before = adapter_default_id(x, x->param[0]);
    err e;
    if (upload_begin(&u, &env, o, &e)) {
        if (e.code == ERR_INPUT)
            refuse_field(x, "name", &e);
        else
            adapter_refuse(x, &e, "name");
        return;
    }
    fetch_end end = source_fetch(p, u, &watch, &e);
    if (!end && auth_still(x, true, &e)) end = FETCH_SINK;
    if (end) {
        upload_abort(u);
        refuse_fetch(x, end, &w, &e);
    } else if (upload_finish(u, &v, &existed, &e)) {
        adapter_refuse(x, &e, "source");
    } else {
        adapter_reply_published(x, &v, existed, before);
    }
}

_Static_assert(sizeof(((adapter_parts *)0)->fetching) / sizeof(uint64_t) == FETCHES_MAX,
               "its slots");

static int fetches_of(adapter_parts *parts, uint64_t word)
{
    int n = 0;
    for (int i = 0; i < FETCHES_MAX; i++) n += atomic_load(&parts->fetching[i]) == word;
    return n;
}

/* Looks again once it has a slot: another request of the tenant may have taken one meanwhile. */
fetch_grant adapter_fetch_begin(adapter_parts *parts, uint64_t tenant_id)
{
    uint64_t word = tenant_id + 1;
    if (fetches_of(parts, word) >= FETCHES_OF_TENANT) return FETCH_SHARE_USED;
    for (int i = 0; i < FETCHES_MAX; i++) {
        uint64_t empty = 0;
        if (!atomic_compare_exchange_strong(&parts->fetching[i], &empty, word)) continue;
        if (fetches_of(parts, word) <= FETCHES_OF_TENANT) return FETCH_GRANTED;
        atomic_store(&parts->fetching[i], 0);
        return FETCH_SHARE_USED;
    }
    return FETCH_ALL_BUSY;
}

void adapter_fetch_end(adapter_parts *parts, uint64_t tenant_id)
{
    for (int i = 0; i < FETCHES_MAX; i++) {
        uint64_t word = tenant_id + 1;
        if (atomic_compare_exchange_strong(&parts->fetching[i], &word, 0)) return;
    }
}

static void refuse_busy(exchange *x, fetch_grant why)
{
    exchange_add_header(x, "retry-after", "5");
    if (why == FETCH_SHARE_USED)
        exchange_error(x, 429, "rate_limit_error", "rate_limit_exceeded", NULL,
                       "%d adapters of this tenant are being fetched already, which is its share",
                       FETCHES_OF_TENANT);
    else
        exchange_error(x, 503, "server_error", "busy", NULL,
                       "%d adapters are being fetched already", FETCHES_MAX);
}

void adapter_from_source(exchange *x, const cJSON *body, const publish_options *asked)
{
    publish_options o = *asked;
    order p = {.plan = {.rules = source_rules_of(&x->conf->sources), .secret = &p.secret}};
    o.content_bytes = -1;
    bool ok = take_body(x, body, &o, &p);
    uint64_t tenant_id = x->caller->tenant.id;
    fetch_grant got = ok ? adapter_fetch_begin(adapters_of(x->app), tenant_id) : FETCH_ALL_BUSY;
    if (ok && got != FETCH_GRANTED) {
        refuse_busy(x, got);
    } else if (ok) {
        run(x, &p.plan, &o);
        adapter_fetch_end(adapters_of(x->app), tenant_id);
    }
    source_secret_forget(p.kept);
}
