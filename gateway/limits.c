/* limits.c -- token buckets and counters under one mutex.
 *
 * A bucket holds at most one minute's worth and refills continuously, so there is no edge
 * of a window to burst across.  Tokens are reserved in full (prompt and the most the
 * request may produce); what was not used comes back at the end.  A bucket may not go below
 * zero except by settlement.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "gateway/limits_inside.h"
#include "storage/ledger.h"

enum { DAY_S = 86400, SEAT_RETRY_MS = 1000, HELD_RETRY_MS = 500 };

static const char *const scopes[] = {"tenant", "key", "adapter"};

limits *limits_create(store *st)
{
    limits *l = calloc(1, sizeof(*l));
    if (!l) return NULL;
    l->st = st;
    lock_init(&l->mu, LOCK_LIMITS);
    return l;
}

limits *limits_create_of_requests(void)
{
    limits *l = limits_create(NULL);
    if (l) l->requests_only = true;
    return l;
}

void limits_destroy(limits *l)
{
    if (!l) return;
    lease_end(l);
    for (int i = 0; i < BUCKETS; i++) {
        for (account *a = l->table[i]; a;) {
            account *next = a->next;
            free(a);
            a = next;
        }
    }
    lock_free(&l->mu);
    free(l);
}

int64_t limits_month_of(int64_t day)
{
    time_t at = (time_t)(day * DAY_S);
    struct tm tm;
    (void)gmtime_r(&at, &tm);
    return (int64_t)tm.tm_year * 12 + tm.tm_mon;
}

static bool same_month(int64_t day, int64_t other)
{
    return limits_month_of(day) == limits_month_of(other);
}

/* Each day has what belongs to it: what still runs of the day before is settled there, also where
 * the clock goes back to it.  Of other days the ledger has the sums, for a process or a clock
 * before may have been there.  False: it cannot be read now. */
static bool roll(limits *l, account *a, int64_t wall_us)
{
    spending next = {.day = wall_us / 1000000 / DAY_S};
    if (a->kind != OF_TENANT || a->now.day == next.day) return true;
    if (a->before.day == next.day)
        next = a->before;
    else if (l->st && ledger_spent(l->st, a->id, wall_us, &next.day_used, &next.month_used, NULL))
        return false;
    bool went = a->now.day != 0, stays = went && same_month(a->now.day, next.day);
    if (stays) next.month_used = a->now.month_used;
    lease_roll(a, !stays);
    if (went) a->before = a->now;
    a->now = next;
    return true;
}

static void add_to(int64_t *used, int64_t tokens)
{
    *used += tokens;
    if (*used < 0) *used = 0; /* of a day that the ledger was read for while it ran */
}

/* Adds to the budgets of that day, and of its month, if they are known. */
static void add_used(account *a, int64_t day, int64_t tokens)
{
    if (day == a->now.day)
        add_to(&a->now.day_used, tokens);
    else if (day == a->before.day)
        add_to(&a->before.day_used, tokens);
    if (same_month(day, a->now.day))
        add_to(&a->now.month_used, tokens);
    else if (same_month(day, a->before.day))
        add_to(&a->before.month_used, tokens);
}

static account **bucket_of(limits *l, uint64_t id)
{
    return &l->table[hash_id(id) & (BUCKETS - 1)];
}

static account *find_account(limits *l, uint64_t id, account_kind kind)
{
    account *a = *bucket_of(l, id);
    while (a && (a->id != id || a->kind != kind)) a = a->next;
    return a;
}

static account *account_of(limits *l, uint64_t id, account_kind kind)
{
    account **head = bucket_of(l, id), *a = find_account(l, id, kind);
    if (a) return a;
    a = calloc(1, sizeof(*a));
    if (!a) return NULL;
    a->id = id;
    a->kind = kind;
    a->requests.level = a->tokens.level = INFINITY; /* full: cut to the limit at first use */
    a->next = *head;
    *head = a;
    return a;
}

static void refill(bucket *b, int64_t per_minute, int64_t now)
{
    if (per_minute <= 0) return;
    double full = (double)per_minute;
    b->level += full * (double)(now - b->seen_us) / 60e6;
    if (!(b->level < full)) b->level = full;
    b->seen_us = now;
}

static bool refuse(limits_refusal *w, const char *type, const char *code, int64_t retry_ms,
                   const char *scope, const char *what, int64_t limit)
{
    w->status = 429;
    w->type = type;
    w->code = code;
    w->retry_ms = retry_ms;
    snprintf(w->msg, sizeof(w->msg), "The %s's limit of %lld %s is reached.", scope,
             (long long)limit, what);
    return false;
}

static int64_t wait_ms(double lacking, int64_t per_minute)
{
    assert(per_minute > 0);
    double ms = lacking * 60e3 / (double)per_minute + 1;
    return ms > 60000 ? 60000 : (int64_t)ms;
}

/* tokens -1: not known yet. */
static bool check_rates(account *a, int64_t rpm, int64_t tpm, int64_t concurrent, int64_t tokens,
                        int64_t now, limits_refusal *w)
{
    const char *scope = scopes[a->kind];
    a->limit[LEASE_REQUESTS] = rpm;
    a->limit[LEASE_TOKENS] = tpm;
    a->limit[LEASE_SEATS] = concurrent;
    refill(&a->requests, rpm, now);
    refill(&a->tokens, tpm, now);
    if (concurrent > 0 && a->running >= concurrent) {
        return refuse(w, "rate_limit_error", "rate_limit_exceeded", SEAT_RETRY_MS, scope,
                      "concurrent requests", concurrent);
    }
    if (rpm > 0 && a->requests.level < 1) {
        return refuse(w, "rate_limit_error", "rate_limit_exceeded",
                      wait_ms(1 - a->requests.level, rpm), scope, "requests per minute", rpm);
    }
    if (tpm <= 0 || tokens < 0) return true;
    if (tokens > tpm) {
        (void)refuse(w, "rate_limit_error", "rate_limit_exceeded", -1, scope,
                     "tokens per minute is smaller than this one request: it", tpm);
        snprintf(w->msg, sizeof(w->msg),
                 "This request may use %lld tokens, more than the %s's limit of %lld tokens "
                 "per minute; lower max_tokens.",
                 (long long)tokens, scope, (long long)tpm);
        return false;
    }
    if (a->tokens.level < (double)tokens) {
        return refuse(w, "rate_limit_error", "rate_limit_exceeded",
                      wait_ms((double)tokens - a->tokens.level, tpm), scope, "tokens per minute",
                      tpm);
    }
    return true;
}

static bool check_queue(account *a, const tenant_limits *t, limits_refusal *w)
{
    if (t->max_queued <= 0 || atomic_load(&a->queued) < t->max_queued) return true;
    return refuse(w, "rate_limit_error", "rate_limit_exceeded", 1000, "tenant", "queued requests",
                  t->max_queued);
}

static bool check_budget(account *a, const tenant_limits *t, int64_t tokens, limits_refusal *w)
{
    a->limit[LEASE_DAY] = t->tokens_per_day;
    a->limit[LEASE_MONTH] = t->tokens_per_month;
    if (t->tokens_per_day > 0 && a->now.day_used + tokens > t->tokens_per_day) {
        return refuse(w, "insufficient_quota", "insufficient_quota", -1, "tenant", "tokens per day",
                      t->tokens_per_day);
    }
    if (t->tokens_per_month > 0 && a->now.month_used + tokens > t->tokens_per_month) {
        return refuse(w, "insufficient_quota", "insufficient_quota", -1, "tenant",
                      "tokens per month", t->tokens_per_month);
    }
    return true;
}

bool limits_refuse(limits_refusal *w, const account *a, lease_thing what, int64_t lacking)
{
    static const char *const name[LEASE_THINGS] = {"requests per minute", "tokens per minute",
                                                   "concurrent requests", "tokens per day",
                                                   "tokens per month"};
    bool budget = what >= LEASE_DAY, spent = budget && lacking > a->may_come[what];
    int64_t retry_ms = spent                 ? -1
                       : budget              ? HELD_RETRY_MS
                       : what == LEASE_SEATS ? SEAT_RETRY_MS
                                             : wait_ms((double)lacking, a->limit[what]);
    return refuse(w, spent ? "insufficient_quota" : "rate_limit_error",
                  spent ? "insufficient_quota" : "rate_limit_exceeded", retry_ms, scopes[a->kind],
                  name[what], a->limit[what]);
}

static void take(limits *l, account *a, int64_t tokens)
{
    assert(tokens >= 0 && a->running >= 0);
    a->requests.level -= 1;
    a->tokens.level -= (double)tokens;
    a->drawn[LEASE_REQUESTS]++;
    a->drawn[LEASE_TOKENS] += tokens;
    a->running++;
    lease_draw(l, a, tokens);
    if (a->kind == OF_TENANT) add_used(a, a->now.day, tokens);
}

static void give(account *a, int64_t unused, int64_t day)
{
    a->tokens.level += (double)unused;
    a->drawn[LEASE_TOKENS] -= unused;
    a->granted[LEASE_TOKENS] -= unused; /* to the fleet's bucket first, which may be full */
    a->returned += unused;
    assert(a->running > 0); /* take() came before */
    a->running--;
    if (a->kind == OF_TENANT) add_used(a, day, -unused);
}

static bool any(const adapter_limits *a)
{
    return a->requests_per_minute > 0 || a->tokens_per_minute > 0 || a->max_concurrent > 0;
}

static bool find_accounts(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                          accounts *out, limits_refusal *why)
{
    bool counted = a && any(&a->limits);
    out->tenant = account_of(l, t->id, OF_TENANT);
    out->key = account_of(l, key->id, OF_KEY);
    out->adapter = counted ? account_of(l, a->id, OF_ADAPTER) : NULL;
    if (out->tenant && out->key && (out->adapter || !counted)) return true;
    *why = (limits_refusal){
        .status = 503, .type = "overloaded_error", .code = "out_of_memory", .retry_ms = 1000};
    snprintf(why->msg, sizeof(why->msg), "out of memory, try again");
    return false;
}

/* A budget that cannot be read is not a budget that is free. */
static bool unknown(limits_refusal *w)
{
    *w = (limits_refusal){
        .status = 503, .type = "server_error", .code = "storage_unavailable", .retry_ms = 1000};
    snprintf(w->msg, sizeof(w->msg), "what the tenant has used cannot be read, try again");
    return false;
}

static bool check(limits *l, const accounts *of, const key_info *key, const tenant *t,
                  const limits_adapter *a, int64_t tokens, int64_t wall_us, limits_refusal *why)
{
    int64_t now = clock_now_us();
    const tenant_limits *tl = &t->limits;
    bool known = roll(l, of->tenant, wall_us);
    bool ok = check_rates(of->tenant, tl->requests_per_minute, tl->tokens_per_minute,
                          tl->max_concurrent, tokens, now, why) &&
              check_rates(of->key, key->requests_per_minute, key->tokens_per_minute,
                          key->max_concurrent, tokens, now, why) &&
              (!of->adapter ||
               check_rates(of->adapter, a->limits.requests_per_minute, a->limits.tokens_per_minute,
                           a->limits.max_concurrent, tokens, now, why));
    if (!ok || l->requests_only) return ok;
    int64_t least = tokens < 0 ? 1 : tokens; /* no request has less than one */
    if (!known && (tl->tokens_per_day > 0 || tl->tokens_per_month > 0)) return unknown(why);
    return check_budget(of->tenant, tl, least, why) && check_queue(of->tenant, tl, why);
}

bool limits_ask(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                limits_refusal *why)
{
    accounts of;
    lock_take(&l->mu);
    bool ok =
        find_accounts(l, key, t, a, &of, why) && check(l, &of, key, t, a, -1, clock_wall_us(), why);
    lock_release(&l->mu);
    return ok;
}

bool limits_reserve(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                    int64_t tokens, limits_ticket *ticket, limits_refusal *why)
{
    accounts of;
    *ticket = (limits_ticket){.tenant_id = t->id, .key_id = key->id, .tokens = tokens};
    lock_take(&l->mu);
    bool ok;
    lease_state lease = LEASE_COVERS;
    int round = 0;
    int64_t wall_us;
    do {
        wall_us = clock_wall_us();
        ok =
            find_accounts(l, key, t, a, &of, why) && check(l, &of, key, t, a, tokens, wall_us, why);
        if (ok) lease = lease_look(l, &of, tokens, &round, why);
    } while (ok && lease == LEASE_ASKED);
    ok = ok && lease == LEASE_COVERS;
    if (ok) {
        ticket->day = of.tenant->now.day;
        ticket->wall_us = wall_us;
        take(l, of.tenant, tokens);
        take(l, of.key, tokens);
        if (of.adapter) take(l, of.adapter, tokens);
        if (of.adapter) ticket->adapter_id = a->id;
        ticket->held = true;
    }
    if (ok && !l->requests_only) {
        atomic_fetch_add(&of.tenant->queued, 1);
        ticket->waiting = &of.tenant->queued; /* accounts live as long as the limits */
    }
    lock_release(&l->mu);
    return ok;
}

void limits_add_used(limits *l, uint64_t tenant_id, int64_t started_wall_us, int64_t tokens)
{
    lock_take(&l->mu);
    account *a = account_of(l, tenant_id, OF_TENANT);
    if (a && roll(l, a, clock_wall_us())) add_used(a, started_wall_us / 1000000 / DAY_S, tokens);
    lock_release(&l->mu);
}

err_code limits_load(limits *l, err *e)
{
    int64_t now = clock_wall_us();
    uint64_t spender = 0;
    err_code rc;
    while (!(rc = ledger_next_spender(l->st, now, &spender, e)) && spender)
        limits_add_used(l, spender, now, 0);
    return rc;
}

void limits_has_run(limits_ticket *ticket)
{
    ticket->waiting = NULL;
}

void limits_settle(limits *l, limits_ticket *ticket, int64_t used_tokens)
{
    if (!ticket->held) return;
    assert(used_tokens >= 0);
    ticket->held = false;
    int64_t waited = ticket->waiting ? atomic_fetch_sub(ticket->waiting, 1) : 1;
    assert(waited > 0);
    ticket->waiting = NULL;
    lock_take(&l->mu);
    const uint64_t id[] = {ticket->tenant_id, ticket->key_id, ticket->adapter_id};
    for (account_kind k = OF_TENANT; k <= OF_ADAPTER; k++) {
        account *a = find_account(l, id[k], k);
        if (!a) continue;
        give(a, ticket->tokens - used_tokens, ticket->day);
        lease_return(l, a);
    }
    lock_release(&l->mu);
}

/* How much of a minute's limit is taken. */
static int64_t taken(bucket *b, int64_t limit, int64_t now)
{
    if (limit <= 0) return 0;
    refill(b, limit, now);
    return limit - (int64_t)(b->level > 0 ? b->level : 0);
}

void limits_usage_get(limits *l, const tenant *t, size_t n, limits_usage *out)
{
    int64_t day = clock_wall_us() / 1000000 / DAY_S, now = clock_now_us();
    for (size_t i = 0; i < n; i++) {
        const tenant_limits *tl = &t[i].limits;
        out[i] = (limits_usage){0};
        lock_take(&l->mu);
        account *a = find_account(l, t[i].id, OF_TENANT);
        if (a) {
            out[i] =
                (limits_usage){.running = a->running,
                               .queued = atomic_load(&a->queued),
                               .day_used = a->now.day == day ? a->now.day_used : 0,
                               .month_used = a->now.month_used,
                               .minute_requests = taken(&a->requests, tl->requests_per_minute, now),
                               .minute_tokens = taken(&a->tokens, tl->tokens_per_minute, now)};
        }
        lock_release(&l->mu);
    }
}

/* The bucket that empties first of those with a limit: *lim is -1 before the first. */
static void look_bucket(const limits *l, account *a, lease_thing what, int64_t limit, int64_t now,
                        int64_t *lim, int64_t *left, int64_t *reset)
{
    bucket *b = what == LEASE_TOKENS ? &a->tokens : &a->requests;
    if (limit <= 0) return;
    refill(b, limit, now);
    int64_t level = lease_left(l, a, what, b->level > 0 ? (int64_t)b->level : 0);
    if (*lim >= 0 && level >= *left) return;
    *lim = limit;
    *left = level;
    double lacking = (double)limit - (b->level < (double)level ? b->level : (double)level);
    *reset = (int64_t)(lacking * 60e3 / (double)limit);
}

static void look_rates(const limits *l, account *a, int64_t rpm, int64_t tpm, int64_t concurrent,
                       int64_t now, limits_view *out)
{
    look_bucket(l, a, LEASE_REQUESTS, rpm, now, &out->requests_limit, &out->requests_left,
                &out->requests_reset_ms);
    look_bucket(l, a, LEASE_TOKENS, tpm, now, &out->tokens_limit, &out->tokens_left,
                &out->tokens_reset_ms);
    if (concurrent > 0 && (out->concurrent_limit < 0 || concurrent < out->concurrent_limit))
        out->concurrent_limit = concurrent;
}

static const limits_view no_limits = {.requests_limit = -1,
                                      .requests_left = -1,
                                      .tokens_limit = -1,
                                      .tokens_left = -1,
                                      .concurrent_limit = -1,
                                      .queued_limit = -1,
                                      .day_limit = -1,
                                      .month_limit = -1};

static void look_adapter(limits *l, const limits_adapter *a, int64_t now, limits_view *out)
{
    account *aa = a && any(&a->limits) ? account_of(l, a->id, OF_ADAPTER) : NULL;
    if (!aa) return;
    look_rates(l, aa, a->limits.requests_per_minute, a->limits.tokens_per_minute,
               a->limits.max_concurrent, now, out);
    out->running = aa->running;
}

/* By all nodes, where there is a limit: what others hold counts as used. */
static int64_t used_of(const limits *l, const account *a, lease_thing what, int64_t limit,
                       int64_t own)
{
    return limit > own ? limit - lease_left(l, a, what, limit - own) : own;
}

void limits_look_adapter(limits *l, const limits_adapter *a, limits_view *out)
{
    *out = no_limits;
    lock_take(&l->mu);
    look_adapter(l, a, clock_now_us(), out);
    lock_release(&l->mu);
}

void limits_look(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                 limits_view *out)
{
    int64_t now = clock_now_us();
    *out = no_limits;
    lock_take(&l->mu);
    account *ta = account_of(l, t->id, OF_TENANT), *ka = account_of(l, key->id, OF_KEY);
    if (ta && ka) {
        const tenant_limits *tl = &t->limits;
        (void)roll(l, ta, clock_wall_us());
        look_rates(l, ta, tl->requests_per_minute, tl->tokens_per_minute, tl->max_concurrent, now,
                   out);
        look_rates(l, ka, key->requests_per_minute, key->tokens_per_minute, key->max_concurrent,
                   now, out);
        look_adapter(l, a, now, out);
        out->running = ta->running;
        out->queued_limit = tl->max_queued > 0 ? tl->max_queued : -1;
        out->queued = atomic_load(&ta->queued);
        out->day_limit = tl->tokens_per_day > 0 ? tl->tokens_per_day : -1;
        out->month_limit = tl->tokens_per_month > 0 ? tl->tokens_per_month : -1;
        out->day_used = used_of(l, ta, LEASE_DAY, tl->tokens_per_day, ta->now.day_used);
        out->month_used = used_of(l, ta, LEASE_MONTH, tl->tokens_per_month, ta->now.month_used);
    }
    if (l->requests_only)
        out->tokens_limit = out->queued_limit = out->day_limit = out->month_limit = -1;
    lock_release(&l->mu);
}
