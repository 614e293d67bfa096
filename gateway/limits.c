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

static const char *const scopes[ACCOUNT_KINDS] = {"tenant", "key", "adapter", "tenant"};

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

static bool has_budgets(const account *a)
{
    return a->kind == OF_TENANT || a->kind == OF_COST;
}

/* Each day has what belongs to it: what still runs of the day before is settled there, also where
 * the clock goes back to it.  Of other days the ledger has the sums, for a process or a clock
 * before may have been there.  False: it cannot be read now. */
static bool roll(limits *l, account *a, int64_t wall_us)
{
    spending next = {.day = wall_us / 1000000 / DAY_S};
    ledger_sums day = {0}, month = {0};
    if (!has_budgets(a) || a->now.day == next.day) return true;
    if (a->before.day == next.day)
        next = a->before;
    else if (l->st && ledger_spent(l->st, a->id, wall_us, &day, &month, NULL))
        return false;
    else
        next = (spending){next.day, a->kind == OF_COST ? day.cost : day.tokens,
                          a->kind == OF_COST ? month.cost : month.tokens};
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
    lock_assert_held(&l->mu);
    assert((unsigned)kind < ACCOUNT_KINDS);
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
    a->near_day = a->near_month = -1;
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

/* QUEUED: a limit that no lease covers; the others: budgets of an account OF_COST. */
enum { QUEUED = LEASE_THINGS, COST_DAY, COST_MONTH };

/* The field of the API, and its unit in an error's sentence. */
static const struct {
    const char *field, *unit;
} things[] = {
    [LEASE_REQUESTS] = {"requests_per_minute", "requests per minute"},
    [LEASE_TOKENS] = {"tokens_per_minute", "tokens per minute"},
    [LEASE_SEATS] = {"max_concurrent", "concurrent requests"},
    [LEASE_DAY] = {"tokens_per_day", "tokens per day"},
    [LEASE_MONTH] = {"tokens_per_month", "tokens per month"},
    [QUEUED] = {"max_queued", "queued requests"},
    [COST_DAY] = {"cost_per_day", "of cost per day"},
    [COST_MONTH] = {"cost_per_month", "of cost per month"},
};

/* When the budget of that UTC day, or of its month, begins anew. */
static void reset_text(int64_t day, bool month, char *out, size_t cap)
{
    time_t at = (time_t)((day + 1) * DAY_S);
    struct tm tm;
    (void)gmtime_r(&at, &tm);
    if (month && tm.tm_mday != 1) {
        tm.tm_mon++;
        tm.tm_mday = 1;
        at = timegm(&tm);
        (void)gmtime_r(&at, &tm);
    }
    strftime(out, cap, "%Y-%m-%d 00:00 UTC", &tm);
}

/* `limit`: of tokens, or micros. */
static void budget_text(limits_refusal *w, const account *a, int what, int64_t limit)
{
    char amount[48], reset[32];
    bool cost = what >= COST_DAY;
    if (cost)
        snprintf(amount, sizeof(amount), "%lld.%06lld", (long long)(limit / 1000000),
                 (long long)(limit % 1000000));
    else
        snprintf(amount, sizeof(amount), "%lld", (long long)limit);
    reset_text(a->now.day, what == LEASE_MONTH || what == COST_MONTH, reset, sizeof(reset));
    snprintf(w->msg, sizeof(w->msg), "The %s's limit of %s %s is reached (%s); it resets at %s.",
             w->scope, amount, things[what].unit, w->limit, reset);
}

/* spent: a budget; waiting does not help. */
static bool refuse(limits_refusal *w, bool spent, int64_t retry_ms, account_kind kind, int what,
                   int64_t limit)
{
    assert((unsigned)what < sizeof(things) / sizeof(things[0]) && things[what].field);
    w->status = 429;
    w->type = spent ? "insufficient_quota" : "rate_limit_error";
    w->code = spent ? "insufficient_quota" : "rate_limit_exceeded";
    w->retry_ms = retry_ms;
    w->scope = scopes[kind];
    w->limit = things[what].field;
    snprintf(w->msg, sizeof(w->msg), "The %s's limit of %lld %s is reached.", w->scope,
             (long long)limit, things[what].unit);
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
    a->limit[LEASE_REQUESTS] = rpm;
    a->limit[LEASE_TOKENS] = tpm;
    a->limit[LEASE_SEATS] = concurrent;
    refill(&a->requests, rpm, now);
    refill(&a->tokens, tpm, now);
    if (concurrent > 0 && a->running >= concurrent) {
        return refuse(w, false, SEAT_RETRY_MS, a->kind, LEASE_SEATS, concurrent);
    }
    if (rpm > 0 && a->requests.level < 1) {
        return refuse(w, false, wait_ms(1 - a->requests.level, rpm), a->kind, LEASE_REQUESTS, rpm);
    }
    if (tpm <= 0 || tokens < 0) return true;
    if (tokens > tpm) {
        (void)refuse(w, false, -1, a->kind, LEASE_TOKENS, tpm);
        snprintf(w->msg, sizeof(w->msg),
                 "This request may use %lld tokens, more than the %s's limit of %lld tokens "
                 "per minute; lower max_tokens.",
                 (long long)tokens, w->scope, (long long)tpm);
        return false;
    }
    if (a->tokens.level < (double)tokens) {
        return refuse(w, false, wait_ms((double)tokens - a->tokens.level, tpm), a->kind,
                      LEASE_TOKENS, tpm);
    }
    return true;
}

static bool check_queue(account *a, const tenant_limits *t, limits_refusal *w)
{
    if (t->max_queued <= 0 || atomic_load(&a->queued) < t->max_queued) return true;
    return refuse(w, false, SEAT_RETRY_MS, OF_TENANT, QUEUED, t->max_queued);
}

/* What a lease's number means in this account. */
static int budget_of(const account *a, lease_thing what)
{
    assert(a->kind != OF_COST || what == LEASE_DAY || what == LEASE_MONTH);
    if (a->kind != OF_COST) return (int)what;
    return what == LEASE_DAY ? COST_DAY : COST_MONTH;
}

/* retry_ms: as in limits_refusal. */
static bool refuse_budget(limits_refusal *w, const account *a, lease_thing what, bool spent,
                          int64_t retry_ms)
{
    assert(what == LEASE_DAY || what == LEASE_MONTH);
    int thing = budget_of(a, what);
    (void)refuse(w, spent, retry_ms, a->kind, thing, a->limit[what]);
    budget_text(w, a, thing, a->limit[what]);
    return false;
}

/* `amount`: tokens, or micros. */
static bool check_budget(account *a, int64_t per_day, int64_t per_month, int64_t amount,
                         limits_refusal *w)
{
    a->limit[LEASE_DAY] = per_day;
    a->limit[LEASE_MONTH] = per_month;
    if (amount > 0 && per_day > 0 && a->now.day_used + amount > per_day)
        return refuse_budget(w, a, LEASE_DAY, true, -1);
    if (amount > 0 && per_month > 0 && a->now.month_used + amount > per_month)
        return refuse_budget(w, a, LEASE_MONTH, true, -1);
    return true;
}

bool limits_refuse(limits_refusal *w, const account *a, lease_thing what, int64_t lacking)
{
    bool budget = what >= LEASE_DAY, spent = budget && lacking > a->may_come[what];
    int64_t retry_ms = spent                 ? -1
                       : budget              ? HELD_RETRY_MS
                       : what == LEASE_SEATS ? SEAT_RETRY_MS
                                             : wait_ms((double)lacking, a->limit[what]);
    if (budget) return refuse_budget(w, a, what, spent, retry_ms);
    return refuse(w, spent, retry_ms, a->kind, (int)what, a->limit[what]);
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
    if (has_budgets(a)) add_used(a, a->now.day, tokens);
}

static void give(account *a, int64_t unused, int64_t day)
{
    a->tokens.level += (double)unused;
    a->drawn[LEASE_TOKENS] -= unused;
    a->granted[LEASE_TOKENS] -= unused; /* to the fleet's bucket first, which may be full */
    a->returned += unused;
    assert(a->running > 0); /* take() came before */
    a->running--;
    if (has_budgets(a)) add_used(a, day, -unused);
}

static bool any(const adapter_limits *a)
{
    return a->requests_per_minute > 0 || a->tokens_per_minute > 0 || a->max_concurrent > 0;
}

static bool find_accounts(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                          accounts *out, limits_refusal *why)
{
    const bool counted[ACCOUNT_KINDS] = {true, true, a && any(&a->limits), !l->requests_only};
    const uint64_t id[ACCOUNT_KINDS] = {t->id, key->id, a ? a->id : 0, t->id};
    bool all = true;
    for (account_kind k = OF_TENANT; k < ACCOUNT_KINDS; k++) {
        out->of[k] = counted[k] ? account_of(l, id[k], k) : NULL;
        all &= out->of[k] || !counted[k];
    }
    if (all) return true;
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

static bool check_budgets(limits *l, const accounts *of, const tenant_limits *tl, int64_t wall_us,
                          limits_refusal *why)
{
    account *tokens = of->of[OF_TENANT], *cost = of->of[OF_COST];
    /* Both, whatever the first says: each has its day. */
    bool known = roll(l, tokens, wall_us), cost_known = roll(l, cost, wall_us);
    int64_t least = of->amount[OF_TENANT] < 0 ? 1 : of->amount[OF_TENANT]; /* no request has less */
    if (!known && (tl->tokens_per_day > 0 || tl->tokens_per_month > 0)) return unknown(why);
    if (!cost_known && (tl->cost_per_day > 0 || tl->cost_per_month > 0)) return unknown(why);
    return check_budget(tokens, tl->tokens_per_day, tl->tokens_per_month, least, why) &&
           check_budget(cost, tl->cost_per_day, tl->cost_per_month, of->amount[OF_COST], why);
}

static bool check(limits *l, const accounts *of, const key_info *key, const tenant *t,
                  const limits_adapter *a, int64_t wall_us, limits_refusal *why)
{
    int64_t now = clock_now_us(), tokens = of->amount[OF_TENANT];
    const tenant_limits *tl = &t->limits;
    account *adapter = of->of[OF_ADAPTER];
    bool ok = check_rates(of->of[OF_TENANT], tl->requests_per_minute, tl->tokens_per_minute,
                          tl->max_concurrent, tokens, now, why) &&
              check_rates(of->of[OF_KEY], key->requests_per_minute, key->tokens_per_minute,
                          key->max_concurrent, tokens, now, why) &&
              (!adapter ||
               check_rates(adapter, a->limits.requests_per_minute, a->limits.tokens_per_minute,
                           a->limits.max_concurrent, tokens, now, why));
    if (!ok || l->requests_only) return ok;
    return check_budgets(l, of, tl, wall_us, why) && check_queue(of->of[OF_TENANT], tl, why);
}

static accounts taking(int64_t tokens, int64_t cost)
{
    return (accounts){.amount = {tokens, tokens, tokens, cost}};
}

bool limits_ask(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                limits_refusal *why)
{
    accounts of = taking(-1, 0);
    lock_take(&l->mu);
    bool ok =
        find_accounts(l, key, t, a, &of, why) && check(l, &of, key, t, a, clock_wall_us(), why);
    lock_release(&l->mu);
    return ok;
}

bool limits_reserve(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                    int64_t tokens, int64_t cost, limits_ticket *ticket, limits_refusal *why)
{
    assert(tokens >= 0 && cost >= 0);
    accounts of = taking(tokens, cost);
    *ticket =
        (limits_ticket){.tenant_id = t->id, .key_id = key->id, .tokens = tokens, .cost = cost};
    lock_take(&l->mu);
    bool ok;
    lease_state lease = LEASE_COVERS;
    int round = 0;
    int64_t wall_us;
    do {
        wall_us = clock_wall_us();
        ok = find_accounts(l, key, t, a, &of, why) && check(l, &of, key, t, a, wall_us, why);
        if (ok) lease = lease_look(l, &of, &round, why);
    } while (ok && lease == LEASE_ASKED);
    ok = ok && lease == LEASE_COVERS;
    if (ok) {
        ticket->day = of.of[OF_TENANT]->now.day;
        ticket->wall_us = wall_us;
        for (account_kind k = OF_TENANT; k < ACCOUNT_KINDS; k++)
            if (of.of[k]) take(l, of.of[k], of.amount[k]);
        if (of.of[OF_ADAPTER]) ticket->adapter_id = a->id;
        ticket->held = true;
    }
    if (ok && !l->requests_only) {
        atomic_fetch_add(&of.of[OF_TENANT]->queued, 1);
        ticket->waiting = &of.of[OF_TENANT]->queued; /* accounts live as long as the limits */
    }
    lock_release(&l->mu);
    return ok;
}

static void add_to_account(limits *l, account *a, int64_t started_wall_us, int64_t amount)
{
    if (a && roll(l, a, clock_wall_us())) add_used(a, started_wall_us / 1000000 / DAY_S, amount);
}

void limits_add_used(limits *l, uint64_t tenant_id, int64_t started_wall_us, int64_t tokens,
                     int64_t cost)
{
    lock_take(&l->mu);
    add_to_account(l, account_of(l, tenant_id, OF_TENANT), started_wall_us, tokens);
    add_to_account(l, account_of(l, tenant_id, OF_COST), started_wall_us, cost);
    lock_release(&l->mu);
}

err_code limits_load(limits *l, err *e)
{
    int64_t now = clock_wall_us();
    uint64_t spender = 0;
    err_code rc;
    while (!(rc = ledger_next_spender(l->st, now, &spender, e)) && spender)
        limits_add_used(l, spender, now, 0, 0);
    return rc;
}

void limits_has_run(limits_ticket *ticket)
{
    ticket->waiting = NULL;
}

void limits_settle(limits *l, limits_ticket *ticket, int64_t used_tokens, int64_t used_cost)
{
    if (!ticket->held) return;
    assert(used_tokens >= 0 && used_cost >= 0);
    ticket->held = false;
    int64_t waited = ticket->waiting ? atomic_fetch_sub(ticket->waiting, 1) : 1;
    assert(waited > 0);
    ticket->waiting = NULL;
    lock_take(&l->mu);
    const uint64_t id[ACCOUNT_KINDS] = {ticket->tenant_id, ticket->key_id, ticket->adapter_id,
                                        ticket->tenant_id};
    for (account_kind k = OF_TENANT; k < ACCOUNT_KINDS; k++) {
        account *a = find_account(l, id[k], k);
        if (!a) continue;
        give(a, k == OF_COST ? ticket->cost - used_cost : ticket->tokens - used_tokens,
             ticket->day);
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

/* By all nodes, where there is a limit: what others hold counts as used. */
static int64_t used_of(const limits *l, const account *a, lease_thing what, int64_t limit,
                       int64_t own)
{
    return limit > own ? limit - lease_left(l, a, what, limit - own) : own;
}

/* Has the budget come near its end, and was that not told of this period? */
static bool comes_near(int64_t used, int64_t limit, int64_t period, int64_t *told)
{
    bool near = limit > 0 && used >= limit - limit / 100 * (100 - LIMITS_NEAR_PERCENT);
    if (!near && *told == period) *told = -1;
    if (!near || *told == period) return false;
    *told = period;
    return true;
}

/* LIMITS_NEAR_DAY, LIMITS_NEAR_MONTH of one account. */
static unsigned look_near(const limits *l, account *a, int64_t today, int64_t per_day,
                          int64_t per_month)
{
    unsigned near = 0;
    if (a->now.day != today) return 0;
    int64_t month = limits_month_of(today);
    if (comes_near(used_of(l, a, LEASE_DAY, per_day, a->now.day_used), per_day, today,
                   &a->near_day))
        near |= LIMITS_NEAR_DAY;
    if (comes_near(used_of(l, a, LEASE_MONTH, per_month, a->now.month_used), per_month, month,
                   &a->near_month))
        near |= LIMITS_NEAR_MONTH;
    return near;
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
            out[i].near = look_near(l, a, day, tl->tokens_per_day, tl->tokens_per_month);
        }
        a = find_account(l, t[i].id, OF_COST);
        if (a) {
            out[i].cost_day_used = a->now.day == day ? a->now.day_used : 0;
            out[i].cost_month_used = a->now.month_used;
            out[i].near |=
                look_near(l, a, day, tl->cost_per_day, tl->cost_per_month) * LIMITS_NEAR_COST_DAY;
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
                                      .month_limit = -1,
                                      .cost_day_limit = -1,
                                      .cost_month_limit = -1};

static void look_adapter(limits *l, const limits_adapter *a, int64_t now, limits_view *out)
{
    account *aa = a && any(&a->limits) ? account_of(l, a->id, OF_ADAPTER) : NULL;
    if (!aa) return;
    look_rates(l, aa, a->limits.requests_per_minute, a->limits.tokens_per_minute,
               a->limits.max_concurrent, now, out);
    out->running = aa->running;
}

void limits_look_adapter(limits *l, const limits_adapter *a, limits_view *out)
{
    *out = no_limits;
    lock_take(&l->mu);
    look_adapter(l, a, clock_now_us(), out);
    lock_release(&l->mu);
}

/* `ca`: the account of the tenant's costs. */
static void look_costs(limits *l, account *ca, const tenant_limits *tl, limits_view *out)
{
    (void)roll(l, ca, clock_wall_us());
    out->cost_day_limit = tl->cost_per_day > 0 ? tl->cost_per_day : -1;
    out->cost_month_limit = tl->cost_per_month > 0 ? tl->cost_per_month : -1;
    out->cost_day_used = used_of(l, ca, LEASE_DAY, tl->cost_per_day, ca->now.day_used);
    out->cost_month_used = used_of(l, ca, LEASE_MONTH, tl->cost_per_month, ca->now.month_used);
}

void limits_look(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                 limits_view *out)
{
    int64_t now = clock_now_us();
    *out = no_limits;
    lock_take(&l->mu);
    account *ta = account_of(l, t->id, OF_TENANT), *ka = account_of(l, key->id, OF_KEY);
    account *ca = l->requests_only ? NULL : account_of(l, t->id, OF_COST);
    if (ca) look_costs(l, ca, &t->limits, out);
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
