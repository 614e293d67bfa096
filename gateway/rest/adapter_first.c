/* adapter_first.c -- adapters that are fetched at their first use: a list of fetches that run or
 * failed lately.
 *
 * A tenant with a source template may name an adapter that the server does not have. The first
 * request fetches and publishes it; others for the same name wait on the condition `ended`,
 * until their own deadline (then 503 with Retry-After).
 *
 * Failures are remembered, so that a wrong name does not cause a download with each request:
 *
 *     the source has no such adapter, or it is invalid    retry_after of lorad.conf
 *     the source does not answer, disk full, memory       AWAY_US at most
 *
 * Limits: NAMES_MAX entries in all, OF_TENANT_MAX for each tenant, FETCHES_OF_TENANT downloads
 * at once. Clients only learn "no such model"; the reason is in the server's log, because the
 * source belongs to the tenant's owner and not to every holder of a key.
 */
#include "gateway/rest/adapter_first.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/process_parts.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/adapter_source.h"
#include "gateway/rest/api_audit.h"
#include "gateway/rest/source_files.h"
#include "gateway/rest/source_secret.h"

enum {
    NAMES_MAX = 4096, /* in the list */
    OF_TENANT_MAX = 64,
    AWAY_US = 5000000, /* another server that does not answer is asked again after that */
    RETRY_MS = 1000,
};

typedef struct first {
    struct first *next;
    uint64_t tenant_id;
    char name[ADAPTER_NAME_MAX + 1];
    bool running;
    err_code rc;      /* of one that failed */
    int64_t until_us; /* so long it stays failed */
} first;

struct firsts {
    lock mu; /* guards all below */
    cond ended;
    first *list;
    int n;
};

err_code firsts_create(firsts **out, err *e)
{
    firsts *f = calloc(1, sizeof(*f));
    if (!f) return err_set(e, ERR_NOMEM, "out of memory");
    lock_init(&f->mu, LOCK_FIRSTS);
    cond_init(&f->ended);
    *out = f;
    return ERR_NONE;
}

void firsts_destroy(firsts *f)
{
    if (!f) return;
    while (f->list) {
        first *one = f->list;
        f->list = one->next;
        free(one);
    }
    cond_free(&f->ended);
    lock_free(&f->mu);
    free(f);
}

/* ---------------------------------------------------------------------------- the list -- */

static void drop(firsts *f, first **at)
{
    lock_assert_held(&f->mu);
    first *one = *at;
    *at = one->next;
    assert(f->n > 0 && !one->running);
    f->n--;
    free(one);
}

/* What the list says of a name and its tenant; failures that are over go.  `mu` is held. */
static first *look(firsts *f, uint64_t tenant_id, const char *name, int *n_tenant, int *n_running)
{
    lock_assert_held(&f->mu);
    first *hit = NULL;
    int64_t now_us = clock_now_us();
    *n_tenant = *n_running = 0;
    for (first **at = &f->list; *at;) {
        first *one = *at;
        if (!one->running && one->until_us <= now_us) {
            drop(f, at);
            continue;
        }
        at = &one->next;
        if (one->tenant_id != tenant_id) continue;
        (*n_tenant)++;
        *n_running += one->running;
        if (strcmp(one->name, name) == 0) hit = one;
    }
    return hit;
}

static first *add(firsts *f, uint64_t tenant_id, const char *name)
{
    lock_assert_held(&f->mu);
    first *one = f->n < NAMES_MAX ? calloc(1, sizeof(*one)) : NULL;
    if (!one) return NULL;
    *one = (first){.next = f->list, .tenant_id = tenant_id, .running = true};
    snprintf(one->name, sizeof(one->name), "%s", name);
    f->list = one;
    f->n++;
    return one;
}

static err_code no_such(const char *name, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no adapter '%.64s'", name);
}

static err_code come_again(int64_t ms, int64_t *retry_ms, err *e)
{
    *retry_ms = ms;
    return err_set(e, ERR_ELSEWHERE, "the adapter is fetched from its source; try again");
}

/* Waits for who fetches it, or for room to do so.  *mine: it is the caller's to fetch. */
static err_code join(firsts *f, server *s, uint64_t tenant_id, const char *name, int64_t until_us,
                     first **mine, int64_t *retry_ms, err *e)
{
    bool waited = false;
    for (;;) {
        int n_tenant, n_running;
        first *one = look(f, tenant_id, name, &n_tenant, &n_running);
        if (!one && waited) return ERR_NONE; /* it has come, or there is another look */
        if (one && !one->running)
            return one->rc == ERR_NOT_FOUND
                       ? no_such(name, e)
                       : come_again((one->until_us - clock_now_us()) / 1000 + 1, retry_ms, e);
        if (!one && n_tenant >= OF_TENANT_MAX) return no_such(name, e);
        if (!one && n_running < FETCHES_OF_TENANT) {
            if (adapter_fetch_begin(adapters_of(s), tenant_id) != FETCH_GRANTED)
                return come_again(RETRY_MS, retry_ms, e);
            *mine = add(f, tenant_id, name);
            if (*mine) return ERR_NONE;
            adapter_fetch_end(adapters_of(s), tenant_id);
            return come_again(RETRY_MS, retry_ms, e);
        }
        waited = one != NULL;
        if (!cond_wait_until(&f->ended, &f->mu, until_us)) return come_again(RETRY_MS, retry_ms, e);
    }
}

/* --------------------------------------------------------------------------- the fetch -- */

static err_code still_allowed(void *arg, err *e)
{
    return auth_still(arg, false, e);
}

/* What the template says, fetched and published. */
static err_code publish(exchange *x, const source_plan *p, const char *name, err *e)
{
    const upload_env env = adapters_upload(x);
    const source_watch watch = {still_allowed, x};
    publish_options o = adapter_options(x, name);
    adapter_version v;
    upload *u;
    bool existed = false;
    o.content_bytes = -1;
    o.if_generation = true; /* who uploads it meanwhile is right */
    if (upload_begin(&u, &env, &o, e)) return e->code;
    fetch_end end = source_fetch(p, u, &watch, e);
    if (end) {
        upload_abort(u);
        return end == FETCH_AWAY ? ERR_ELSEWHERE : e->code;
    }
    err_code rc = upload_finish(u, &v, &existed, e);
    if (rc) return rc == ERR_STALE ? ERR_NONE : rc;
    adapter_published(x, &v, existed, 0);
    adapter_note(x, &v, existed);
    return ERR_NONE;
}

static err_code fetch(exchange *x, const char *name, err *e)
{
    const tenant *t = &x->caller->tenant;
    char text[SOURCE_URL_MAX];
    fetch_secret secret;
    cJSON *kept = NULL;
    source_plan p = {.rules = source_rules_of(&x->conf->sources), .secret = &secret};
    if (!source_of_template(t->source, name, text))
        return err_set(e, ERR_INPUT, "the address is too long");
    err_code rc = source_parse(&p.where, text, &p.rules, e);
    if (!rc) rc = source_secret_kept(tenants_of(x->app), t->id, &p.where, &secret, &kept, e);
    secret.s3.region = p.rules.s3_region;
    if (!rc) rc = publish(x, &p, name, e);
    source_secret_forget(kept);
    return rc;
}

/* Why it did not come is the operator's and the tenant's to know: the client hears that there is no
 * such model. */
static void tell(exchange *x, const char *name, const err *e)
{
    log_warn("gateway", "tenant %s: adapter '%s' is not fetched by the tenant's template: %s",
             x->caller->tenant.name, name, e->msg);
}

static void end(firsts *f, first *mine, err_code rc, int64_t pause_us)
{
    lock_take(&f->mu);
    mine->running = false;
    mine->rc = rc == ERR_ELSEWHERE ? rc : ERR_NOT_FOUND;
    mine->until_us = rc ? clock_now_us() + pause_us : 0;
    cond_broadcast(&f->ended);
    lock_release(&f->mu);
}

err_code first_fetch(exchange *x, const char *name, int64_t until_us, int64_t *retry_ms, err *e)
{
    firsts *f = adapters_of(x->app)->firsts;
    const tenant *t = &x->caller->tenant;
    first *mine = NULL;
    if (!f || !*t->source || !name_valid(name)) return no_such(name, e);
    lock_take(&f->mu);
    err_code rc = join(f, x->app, t->id, name, until_us, &mine, retry_ms, e);
    lock_release(&f->mu);
    if (rc || !mine) return rc;
    rc = fetch(x, name, e);
    adapter_fetch_end(adapters_of(x->app), t->id);
    if (rc == ERR_IO || rc == ERR_NOMEM || rc == ERR_BUSY || rc == ERR_NO_ROOM) rc = ERR_ELSEWHERE;
    int64_t pause_us = x->conf->sources.retry_after_us;
    if (rc == ERR_ELSEWHERE && pause_us > AWAY_US) pause_us = AWAY_US;
    if (rc) tell(x, name, e);
    end(f, mine, rc, pause_us);
    if (!rc) return ERR_NONE;
    return rc == ERR_ELSEWHERE ? come_again(pause_us / 1000, retry_ms, e) : no_such(name, e);
}
