/* test_limits_lease.c -- nodes that draw from one pool: never more than the limit in all, and
 * nearly all of it. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/clock.h"
#include "gateway/limits_inside.h"
#include "tests/run_suite.h"

enum { NODES = 3, WORKERS = 4, PER_REQUEST = 10 };

/* As PostgreSQL's function does it for what is a plain sum; one scope. */
static struct {
    pthread_mutex_t mu;
    int64_t granted[NODES][LEASE_THINGS];
    int64_t drawn[NODES][LEASE_THINGS];
    _Atomic bool away;
    bool overdrawn; /* a node asked to keep more than it was granted */
} pool = {.mu = PTHREAD_MUTEX_INITIALIZER};

static atomic_ullong n_exchanges;
static account_kind leased = OF_TENANT; /* of that one scope */
static limits *node[NODES];
static int number[NODES];
static key_info key;
static tenant who;

static void answer(int me, const lease_ask *q, lease_thing r, lease_grant *g)
{
    int64_t low = q->of[r].drawn + q->of[r].keep, held = 0, used = 0;
    for (int i = 0; i < NODES; i++) {
        held += i == me ? 0 : pool.granted[i][r];
        used += i == me ? 0 : pool.drawn[i][r];
    }
    pool.overdrawn |= low > pool.granted[me][r];
    int64_t left = q->of[r].limit - held - low;
    int64_t give = q->of[r].need < left ? q->of[r].need : left > 0 ? left : 0;
    if (left < q->of[r].least) give = 0;
    int64_t extra = (left - give) / 4 < q->of[r].extra ? (left - give) / 4 : q->of[r].extra;
    if (extra > 0) give += extra;
    g->granted[r] = pool.granted[me][r] = low + give;
    pool.drawn[me][r] = q->of[r].drawn;
    g->remains[r] = left - give;
    g->may_come[r] = left - give + held - used;
}

static err_code exchange(void *self, const lease_ask *asks, int n, lease_grant *out, err *e)
{
    int me = *(int *)self;
    if (pool.away) return err_set(e, ERR_IO, "away");
    for (int i = 0; i < n; i++) /* costs have ids of their own, for budgets are kept by id alone */
        ck_assert(asks[i].kind != OF_COST || asks[i].id == (uint64_t)-3);
    pthread_mutex_lock(&pool.mu);
    for (int i = 0; i < n; i++) {
        for (lease_thing r = 0; r < LEASE_THINGS; r++) {
            if (asks[i].of[r].limit > 0 && asks[i].kind == (int)leased)
                answer(me, &asks[i], r, &out[i]);
        }
    }
    n_exchanges++;
    pthread_mutex_unlock(&pool.mu);
    return ERR_NONE;
}

static void begin(int i, bool open)
{
    err e;
    number[i] = i;
    node[i] = limits_create(NULL);
    ck_assert_int_eq(limits_lease(node[i], exchange, &number[i], open, &e), ERR_NONE);
}

static void setup(void)
{
    memset(pool.granted, 0, sizeof(pool.granted));
    memset(pool.drawn, 0, sizeof(pool.drawn));
    pool.away = pool.overdrawn = false;
    key = (key_info){.id = 7};
    who = (tenant){.id = 3};
    leased = OF_TENANT;
    for (int i = 0; i < NODES; i++) begin(i, false);
}

static void teardown(void)
{
    for (int i = 0; i < NODES; i++) limits_destroy(node[i]);
    ck_assert(!pool.overdrawn);
}

static bool take(int i, int64_t tokens, limits_ticket *t, limits_refusal *w)
{
    int64_t cost = leased == OF_COST ? tokens : 0;
    return limits_reserve(node[i], &key, &who, NULL, tokens, cost, t, w);
}

START_TEST(what_is_not_limited_asks_nobody)
{
    limits_ticket t;
    limits_refusal w;
    pool.away = true;
    unsigned long long before = n_exchanges;
    for (int i = 0; i < 1000; i++) {
        ck_assert(take(0, 1000, &t, &w));
        limits_settle(node[0], &t, 1000, 0);
    }
    usleep(150000);
    ck_assert_uint_eq(atomic_load(&n_exchanges), before);
}
END_TEST

static atomic_llong used;

static void *work(void *arg)
{
    int i = *(int *)arg;
    for (;;) {
        limits_ticket t;
        limits_refusal w;
        if (take(i, PER_REQUEST, &t, &w)) {
            atomic_fetch_add(&used, PER_REQUEST / 2); /* half comes back */
            limits_settle(node[i], &t, PER_REQUEST / 2, leased == OF_COST ? PER_REQUEST / 2 : 0);
        } else if (w.retry_ms < 0) {
            ck_assert_str_eq(w.code, "insufficient_quota");
            return NULL;
        } else {
            usleep(20000);
        }
    }
}

static void spend(int nodes, int64_t limit, int64_t least)
{
    pthread_t th[NODES * WORKERS];
    *(leased == OF_COST ? &who.limits.cost_per_day : &who.limits.tokens_per_day) = limit;
    atomic_store(&used, 0);
    for (int i = 0; i < nodes * WORKERS; i++)
        ck_assert_int_eq(pthread_create(&th[i], NULL, work, &number[i % nodes]), 0);
    for (int i = 0; i < nodes * WORKERS; i++) ck_assert_int_eq(pthread_join(th[i], NULL), 0);
    ck_assert_int_le(atomic_load(&used), limit);
    ck_assert_int_ge(atomic_load(&used), least);
}

START_TEST(a_budget_is_spent_to_the_end_by_all)
{
    spend(NODES, 20000, 19600);
}
END_TEST

START_TEST(a_budget_of_costs_is_spent_to_the_end_by_all)
{
    leased = OF_COST;
    spend(NODES, 20000, 19600);
}
END_TEST

START_TEST(a_budget_is_spent_to_the_end_by_one)
{
    spend(1, 20000, 19600);
}
END_TEST

START_TEST(seats_are_the_fleet_s)
{
    limits_ticket t[3];
    limits_refusal w;
    who.limits.max_concurrent = 2;
    ck_assert(take(0, 1, &t[0], &w) && take(1, 1, &t[1], &w));
    ck_assert(!take(2, 1, &t[2], &w));
    ck_assert_str_eq(w.msg, "The tenant's limit of 2 concurrent requests is reached.");
    ck_assert_int_gt(w.retry_ms, 0);
    limits_settle(node[0], &t[0], 1, 0);
    while (!take(2, 1, &t[2], &w)) usleep(10000); /* once node 0 has given it back */
    ck_assert(!take(0, 1, &t[0], &w));
}
END_TEST

static int64_t sum_of(int64_t of[NODES][LEASE_THINGS], lease_thing r)
{
    int64_t n = 0;
    pthread_mutex_lock(&pool.mu);
    for (int i = 0; i < NODES; i++) n += of[i][r];
    pthread_mutex_unlock(&pool.mu);
    return n;
}

START_TEST(what_idles_goes_back)
{
    limits_ticket t;
    limits_refusal w;
    who.limits.tokens_per_day = 100000;
    for (int i = 0; i < 100; i++) {
        ck_assert(take(0, 50, &t, &w));
        limits_settle(node[0], &t, 20, 0);
    }
    while (sum_of(pool.granted, LEASE_DAY) != 2000) usleep(10000);
    limits_view v;
    limits_look(node[0], &key, &who, NULL, &v);
    ck_assert_int_eq(v.day_used, 2000);
    ck_assert(take(1, 50, &t, &w)); /* node 1 sees what the fleet has used */
    limits_settle(node[1], &t, 50, 0);
    limits_look(node[1], &key, &who, NULL, &v);
    ck_assert_int_ge(v.day_used, 2050);
    ck_assert_int_le(v.day_used, 2150);
}
END_TEST

static struct {
    limits *l;
    sem_t asked, go;
    int n;        /* questions */
    int64_t kept; /* by tenant 3, in the second */
} slow;

/* Gives what is needed; the first question is answered when it is told to. */
static err_code slow_exchange(void *self, const lease_ask *asks, int n, lease_grant *out, err *e)
{
    (void)self, (void)e;
    bool first = slow.n++ == 0;
    for (int i = 0; i < n; i++) {
        out[i] = (lease_grant){{0}, {0}, {0}};
        for (lease_thing r = 0; r < LEASE_THINGS; r++)
            out[i].granted[r] = asks[i].of[r].drawn + asks[i].of[r].keep + asks[i].of[r].need;
        if (slow.n == 2 && asks[i].kind == OF_TENANT && asks[i].id == 3)
            slow.kept = asks[i].of[LEASE_DAY].keep;
    }
    if (first) sem_post(&slow.asked);
    while (first && sem_wait(&slow.go) != 0) {
    }
    return ERR_NONE;
}

static void *take_slowly(void *id)
{
    limits_ticket t;
    limits_refusal w;
    tenant whose = {.id = *(const uint64_t *)id, .limits.tokens_per_day = 100};
    ck_assert(limits_reserve(slow.l, &key, &whose, NULL, 10, 0, &t, &w));
    return NULL;
}

static bool waits(uint64_t id)
{
    bool yes = false;
    lock_take(&slow.l->mu);
    for (int i = 0; i < BUCKETS; i++)
        for (const account *a = slow.l->table[i]; a; a = a->next)
            yes |= a->kind == OF_TENANT && a->id == id && a->need[LEASE_DAY] > 0;
    lock_release(&slow.l->mu);
    return yes;
}

/* Another's question follows at once: what the first has brought is not given back with it. */
START_TEST(what_came_stays_for_who_has_not_woken)
{
    err e;
    pthread_t th[2];
    static const uint64_t id[] = {3, 4};
    slow.n = 0;
    slow.kept = -1;
    sem_init(&slow.asked, 0, 0);
    sem_init(&slow.go, 0, 0);
    slow.l = limits_create(NULL);
    ck_assert_int_eq(limits_lease(slow.l, slow_exchange, NULL, false, &e), ERR_NONE);
    ck_assert_int_eq(pthread_create(&th[0], NULL, take_slowly, (void *)(uintptr_t)&id[0]), 0);
    while (sem_wait(&slow.asked) != 0) {
    }
    ck_assert_int_eq(pthread_create(&th[1], NULL, take_slowly, (void *)(uintptr_t)&id[1]), 0);
    while (!waits(4)) usleep(1000);
    sem_post(&slow.go);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(th[i], NULL), 0);
    limits_destroy(slow.l);
    ck_assert_int_eq(slow.kept, 10);
}
END_TEST

START_TEST(others_hold_what_is_left)
{
    limits_ticket t[2], other;
    limits_refusal w;
    who.limits.tokens_per_day = 100;
    ck_assert(take(0, 90, &t[0], &w)); /* may give some back */
    while (!take(1, 50, &other, &w) && w.retry_ms >= 0) usleep(10000);
    ck_assert_str_eq(w.code, "insufficient_quota"); /* once it is known that they are drawn */
    limits_settle(node[0], &t[0], 10, 0);
    while (!take(1, 50, &other, &w)) usleep(10000);
    while (!take(0, 60, &t[1], &w) && w.retry_ms >= 0) usleep(10000);
    ck_assert_int_eq(w.retry_ms, -1);
}
END_TEST

START_TEST(the_database_goes_away)
{
    limits_ticket t;
    limits_refusal w;
    who.limits.tokens_per_minute = 1000000;
    ck_assert(take(0, 10, &t, &w));
    limits_settle(node[0], &t, 10, 0);
    pool.away = true;
    int64_t taken = 0;
    while (take(0, 10, &t, &w)) { /* what is leased */
        limits_settle(node[0], &t, 10, 0);
        taken += 10;
    }
    ck_assert_int_eq(w.status, 503);
    ck_assert_str_eq(w.code, "storage_unavailable");
    ck_assert_int_gt(w.retry_ms, 0);
    ck_assert_int_lt(taken, 1000000);
    pool.away = false;
    while (!take(0, 10, &t, &w)) usleep(10000);
    limits_settle(node[0], &t, 10, 0);
}
END_TEST

START_TEST(each_goes_on_by_itself)
{
    limits_ticket t;
    limits_refusal w;
    limits_destroy(node[0]);
    begin(0, true);
    pool.away = true;
    who.limits.tokens_per_day = 1000;
    for (int i = 0; i < 100; i++) {
        ck_assert(take(0, 10, &t, &w));
        limits_settle(node[0], &t, 10, 0);
    }
    ck_assert(!take(0, 10, &t, &w)); /* its own count holds */
    ck_assert_str_eq(w.code, "insufficient_quota");
    pool.away = false;
    while (sum_of(pool.drawn, LEASE_DAY) < 1000) usleep(10000); /* it says what it has used */
    ck_assert(!take(2, 10, &t, &w));
    ck_assert_int_eq(w.retry_ms, -1);
    pool.overdrawn = false; /* that was asked for */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("limits_lease");
    TCase *c = tcase_create("lease");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, what_is_not_limited_asks_nobody);
    tcase_add_test(c, a_budget_is_spent_to_the_end_by_all);
    tcase_add_test(c, a_budget_of_costs_is_spent_to_the_end_by_all);
    tcase_add_test(c, a_budget_is_spent_to_the_end_by_one);
    tcase_add_test(c, seats_are_the_fleet_s);
    tcase_add_test(c, what_idles_goes_back);
    tcase_add_test(c, what_came_stays_for_who_has_not_woken);
    tcase_add_test(c, others_hold_what_is_left);
    tcase_add_test(c, the_database_goes_away);
    tcase_add_test(c, each_goes_on_by_itself);
    suite_add_tcase(s, c);
    return run_suite(s);
}
