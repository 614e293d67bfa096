/* limits_lease.c -- accounts that draw from leases of a fleet's limits (storage/fleet/lease.h).
 *
 * A lease is what LEASE_SPAN_US of this node's own use takes.  One thread asks for all accounts
 * that are due: those whose lease runs low, at once those where a request waits, and those that
 * hold more than they use, to give it back.  Who waits while a question is under way goes with the
 * next one, so one statement at a time carries them all.
 */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/limits_inside.h"

enum {
    LEASE_SPAN_US = 300000,
    TICK_US = 100000,
    AWAY_TICK_US = 250000,
    PATIENCE_US = 4000000,
    ROUNDS = 8, /* of a request whose share others of this node took */
    AT_ONCE = 256
};

struct lessor {
    limits_lease_fn fn;
    void *self;
    bool open; /* without the fleet's database each node goes on by itself */
    pthread_t thread;
    cond wake, done;       /* for the thread; for who waits */
    uint64_t begun, ended; /* exchanges */
    bool stop, urgent, away;
    int64_t valid_until_us;
    account *due;
    account *asking[AT_ONCE]; /* the thread's own, with the next two */
    lease_ask ask[AT_ONCE];
    lease_grant grant[AT_ONCE];
};

static int64_t drawn_of(const account *a, lease_thing what)
{
    return what == LEASE_SEATS   ? a->running
           : what == LEASE_DAY   ? a->now.day_used
           : what == LEASE_MONTH ? a->now.month_used
                                 : a->drawn[what];
}

static int64_t takes(lease_thing what, int64_t tokens)
{
    return what == LEASE_REQUESTS || what == LEASE_SEATS ? 1 : tokens;
}

static int64_t spare_of(const lessor *s, const account *a, lease_thing what)
{
    int64_t spare = a->granted[what] - drawn_of(a, what);
    return spare > 0 && clock_now_us() < s->valid_until_us ? spare : 0;
}

static void make_due(lessor *s, account *a)
{
    if (a->due) return;
    a->due = true;
    a->next_due = s->due;
    s->due = a;
    if (a->measured_us == 0) a->measured_us = clock_now_us();
    cond_signal(&s->wake);
}

/* ---- requests ---------------------------------------------------------------------------- */

void lease_draw(limits *l, account *a, int64_t tokens)
{
    bool limited = false;
    for (lease_thing r = 0; l->leases && r < LEASE_THINGS; r++) {
        if (a->limit[r] <= 0) continue;
        a->recent[r] += takes(r, tokens);
        limited = true;
    }
    if (limited) make_due(l->leases, a);
}

void lease_return(limits *l, account *a)
{
    if (l->leases && a->asked) make_due(l->leases, a);
}

void lease_roll(account *a, bool new_month)
{
    a->granted[LEASE_DAY] = 0;
    if (new_month) a->granted[LEASE_MONTH] = 0;
}

int64_t lease_left(const limits *l, const account *a, lease_thing what, int64_t own)
{
    if (!l->leases || a->limit[what] <= 0 || !a->asked) return own;
    int64_t left = spare_of(l->leases, a, what);
    if (a->remains[what] > 0) left += a->remains[what];
    return left < own ? left : own;
}

static lease_state without_database(const lessor *s, limits_refusal *w)
{
    if (s->open) return LEASE_COVERS;
    *w = (limits_refusal){
        .status = 503, .type = "server_error", .code = "storage_unavailable", .retry_ms = 1000};
    snprintf(w->msg, sizeof(w->msg),
             "The fleet's database is away, and this server's share of the limits is used up.");
    return LEASE_REFUSES;
}

static void count_hope(account *a, lease_thing what, int64_t n)
{
    a->hope[what] += n;
    assert(a->hope[what] >= 0); /* who has waited had begun */
}

/* A request begins to wait, or has waited (-1). */
static void hope(const accounts *all, int sign)
{
    for (int i = 0; i < ACCOUNT_KINDS; i++) {
        for (lease_thing r = 0; all->of[i] && r < LEASE_THINGS; r++)
            count_hope(all->of[i], r, sign * takes(r, all->amount[i]));
    }
}

/* Costs have the tenant's id, negative: budgets are kept by id and period alone. */
static uint64_t lease_id(const account *a)
{
    return a->kind == OF_COST ? 0 - a->id : a->id;
}

static void wait_for(account *a, lease_thing what, int64_t n)
{
    assert(n > 0);
    if (a->need[what] == 0 || n < a->least[what]) a->least[what] = n;
    a->need[what] += n;
}

lease_state lease_look(limits *l, const accounts *of, int *round, limits_refusal *why)
{
    lock_assert_held(&l->mu);
    lessor *s = l->leases;
    bool covers = true;
    for (int i = 0; s && i < ACCOUNT_KINDS; i++) {
        account *a = of->of[i];
        for (lease_thing r = 0; a && r < LEASE_THINGS; r++) {
            int64_t lacking = takes(r, of->amount[i]) - spare_of(s, a, r);
            if (a->limit[r] <= 0 || lacking <= 0) continue;
            covers = false;
            bool asked = a->need[r] == 0; /* more are due than go at once: the next time */
            bool over = (asked && lacking > a->remains[r]) || *round >= ROUNDS;
            if (*round > 0 && over && !s->away) {
                (void)limits_refuse(why, a, r, lacking);
                return LEASE_REFUSES;
            }
            if (!s->away) wait_for(a, r, takes(r, of->amount[i]));
            make_due(s, a);
        }
    }
    if (covers) return LEASE_COVERS;
    if (s->away || s->stop) return without_database(s, why);
    uint64_t turn = s->begun + 1;
    int64_t end_us = clock_now_us() + PATIENCE_US;
    s->urgent = true;
    cond_signal(&s->wake);
    hope(of, 1);
    while (s->ended < turn && !s->away && !s->stop)
        if (!cond_wait_until(&s->done, &l->mu, end_us)) s->away = true;
    hope(of, -1);
    ++*round;
    return LEASE_ASKED;
}

/* ---- the thread -------------------------------------------------------------------------- */

static void measure(account *a, int64_t now_us)
{
    int64_t span_us = now_us - a->measured_us;
    if (span_us < TICK_US) return;
    for (int r = 0; r < LEASE_THINGS; r++) {
        int64_t pace = a->recent[r] * LEASE_SPAN_US / span_us;
        a->pace[r] = pace > a->pace[r] / 4 ? pace : a->pace[r] / 4;
        a->recent[r] = 0;
    }
    a->measured_us = now_us;
}

/* Runs low, or holds too much, or has drawn what the database does not know of. */
static bool ripe(const lessor *s, const account *a, bool *idle)
{
    bool yes = false;
    *idle = true;
    for (lease_thing r = 0; r < LEASE_THINGS; r++) {
        if (a->limit[r] <= 0) continue;
        int64_t spare = spare_of(s, a, r);
        bool rests = a->pace[r] == 0 && a->recent[r] == 0;
        bool told = a->asked && a->told[r] == drawn_of(a, r);
        yes |= a->need[r] > 0 || spare < a->pace[r] / 3 || spare > 2 * a->pace[r];
        yes |= !a->asked || (rests && !told);
        *idle &= a->need[r] == 0 && spare == 0 && rests && told;
    }
    return yes;
}

/* The lease goes down to what is asked to be kept before the question leaves.  What is too small
 * for all that wait goes back: nodes that each hold a part of what one request takes would wait
 * for each other.  But what came for those that have not woken since stays. */
static void make_ask(const lessor *s, account *a, lease_ask *q)
{
    *q = (lease_ask){.kind = a->kind,
                     .id = lease_id(a),
                     .day = a->now.day,
                     .month = limits_month_of(a->now.day)};
    for (lease_thing r = 0; r < LEASE_THINGS; r++) {
        if (a->limit[r] <= 0) continue;
        int64_t drawn = drawn_of(a, r), need = a->need[r], pace = a->pace[r];
        int64_t keep = spare_of(s, a, r), most = pace + pace * 2 / 3;
        if (s->stop) need = most = 0;
        if (!s->stop && most < a->hope[r]) most = a->hope[r];
        if (keep > most) keep = most;
        if (need > 0 && keep < a->least[r] && a->hope[r] <= need) keep = 0;
        q->of[r].limit = a->limit[r];
        q->of[r].drawn = drawn;
        q->of[r].keep = keep;
        q->of[r].need = need > keep ? need - keep : 0;
        assert(keep >= 0 && need >= 0 && pace >= 0);
        if (need > 0 && keep == 0) q->of[r].least = a->least[r];
        if (!s->stop && pace > keep - need && keep >= need) q->of[r].extra = pace - (keep - need);
        if (!s->stop && keep < need) q->of[r].extra = pace;
        a->granted[r] = drawn + keep;
        a->told[r] = drawn;
        a->need[r] = 0;
    }
}

static int by_id(const void *x, const void *y)
{
    const account *a = *(account *const *)x, *b = *(account *const *)y;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    return lease_id(a) < lease_id(b) ? -1 : lease_id(a) > lease_id(b);
}

static int collect(lessor *s)
{
    int64_t now_us = clock_now_us();
    int n = 0;
    account *list = s->due;
    s->due = NULL;
    s->urgent = false;
    for (account *next; list; list = next) {
        bool idle = false;
        next = list->next_due;
        measure(list, now_us);
        bool asks = n < AT_ONCE && (ripe(s, list, &idle) || s->stop);
        if (asks) s->asking[n++] = list;
        list->due = asks || !idle;
        if (!list->due) continue;
        list->next_due = s->due;
        s->due = list;
    }
    qsort(s->asking, (size_t)n, sizeof(*s->asking), by_id);
    for (int i = 0; i < n; i++) make_ask(s, s->asking[i], &s->ask[i]);
    return n;
}

static void apply(account *a, const lease_ask *q, const lease_grant *g)
{
    a->asked = true;
    for (lease_thing r = 0; r < LEASE_THINGS; r++) {
        bool old = (r == LEASE_DAY && q->day != a->now.day) ||
                   (r == LEASE_MONTH && q->month != limits_month_of(a->now.day));
        if (q->of[r].limit <= 0 || old) continue;
        a->granted[r] = g->granted[r] - (r == LEASE_TOKENS ? a->returned : 0);
        a->remains[r] = g->remains[r];
        a->may_come[r] = g->may_come[r];
    }
}

static void exchange_once(limits *l)
{
    lessor *s = l->leases;
    err why;
    int n = collect(s);
    if (n == 0 && !s->away) return;
    uint64_t turn = ++s->begun;
    int64_t sent_us = clock_now_us();
    lock_release(&l->mu);
    err_code rc = s->fn(s->self, s->ask, n, s->grant, &why);
    lock_take(&l->mu);
    if (rc && rc != ERR_IO && !s->away) log_error("limits", "%s", why.msg);
    s->away = rc != ERR_NONE;
    if (!rc) s->valid_until_us = sent_us + LEASE_VALID_US;
    for (int i = 0; !rc && i < n; i++) apply(s->asking[i], &s->ask[i], &s->grant[i]);
    assert(s->ended < turn);
    s->ended = turn;
    cond_broadcast(&s->done);
}

static void *lease_main(void *arg)
{
    limits *l = arg;
    lessor *s = l->leases;
    lock_take(&l->mu);
    while (!s->stop) {
        exchange_once(l);
        int64_t end_us = clock_now_us() + (s->away ? AWAY_TICK_US : TICK_US);
        if (!s->due && !s->away && !s->stop) cond_wait(&s->wake, &l->mu);
        while (!s->stop && (s->away || !s->urgent) && cond_wait_until(&s->wake, &l->mu, end_us)) {
        }
    }
    if (!s->away) exchange_once(l);
    lock_release(&l->mu);
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------- */

/* What a process before was granted of a budget and did not use goes back. */
static void ask_for_all(limits *l)
{
    for (int i = 0; i < BUCKETS; i++) {
        for (account *a = l->table[i]; a; a = a->next) {
            tenant t;
            bool cost = a->kind == OF_COST;
            if ((a->kind != OF_TENANT && !cost) || tenants_get(l->st, a->id, &t, NULL)) continue;
            a->limit[LEASE_DAY] = cost ? t.limits.cost_per_day : t.limits.tokens_per_day;
            a->limit[LEASE_MONTH] = cost ? t.limits.cost_per_month : t.limits.tokens_per_month;
            make_due(l->leases, a);
        }
    }
}

err_code limits_lease(limits *l, limits_lease_fn fn, void *self, bool open, err *e)
{
    lessor *s = calloc(1, sizeof(*s));
    if (!s) return err_set(e, ERR_NOMEM, "out of memory");
    s->fn = fn;
    s->self = self;
    s->open = open;
    cond_init(&s->wake);
    cond_init(&s->done);
    l->leases = s;
    if (l->st) ask_for_all(l);
    if (pthread_create(&s->thread, NULL, lease_main, l) == 0) return ERR_NONE;
    cond_free(&s->wake);
    cond_free(&s->done);
    free(s);
    l->leases = NULL;
    return err_set(e, ERR_NOMEM, "cannot start the thread of leases");
}

void lease_end(limits *l)
{
    lessor *s = l->leases;
    if (!s) return;
    lock_take(&l->mu);
    s->stop = true;
    cond_signal(&s->wake);
    cond_broadcast(&s->done);
    lock_release(&l->mu);
    pthread_join(s->thread, NULL);
    cond_free(&s->wake);
    cond_free(&s->done);
    free(s);
    l->leases = NULL;
}
