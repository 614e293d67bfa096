/* test_limits.c -- reserve and settle: nothing slips through together, nothing is lost. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <check.h>
#include <sqlite3.h>

#include "gateway/limits.h"
#include "storage/ledger.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static limits *all;
static key_info key;
static tenant who;
static limits_adapter *adapter; /* NULL: the base */

static void setup(void)
{
    all = limits_create(NULL);
    key = (key_info){.id = 7};
    who = (tenant){.id = 3};
    adapter = NULL;
}

static void teardown(void)
{
    limits_destroy(all);
}

static const int64_t DAY_US = 86400000000, NOV_30 = 1764460800000000; /* 2025-11-30T00:00:00Z */
static int64_t wall_us;                                               /* 0: the true one */

int64_t __real_clock_wall_us(void);
int64_t __wrap_clock_wall_us(void);

int64_t __wrap_clock_wall_us(void)
{
    return wall_us ? wall_us : __real_clock_wall_us();
}

static bool take(int64_t tokens, limits_ticket *t, limits_refusal *w)
{
    return limits_reserve(all, &key, &who, adapter, tokens, 0, t, w);
}

START_TEST(no_limit_refuses_nothing)
{
    limits_ticket t;
    limits_refusal w;
    for (int i = 0; i < 1000; i++) ck_assert(take(1000000, &t, &w));
}
END_TEST

START_TEST(requests_per_minute)
{
    limits_ticket t;
    limits_refusal w;
    who.limits.requests_per_minute = 5;
    for (int i = 0; i < 5; i++) ck_assert(take(1, &t, &w));
    ck_assert(!take(1, &t, &w));
    ck_assert_str_eq(w.code, "rate_limit_exceeded");
    ck_assert(w.retry_ms > 0 && w.retry_ms <= 12001);
    ck_assert_ptr_nonnull(strstr(w.msg, "tenant"));
}
END_TEST

START_TEST(tokens_come_back_when_unused)
{
    limits_ticket t, other;
    limits_refusal w;
    key.tokens_per_minute = 100;
    ck_assert(take(100, &t, &w));
    ck_assert(!take(50, &other, &w));
    ck_assert_ptr_nonnull(strstr(w.msg, "key"));
    limits_settle(all, &t, 30, 0);
    limits_settle(all, &t, 0, 0); /* twice gives nothing twice */
    ck_assert(take(70, &other, &w));
    ck_assert(!take(70, &t, &w));
    ck_assert(!take(101, &t, &w)); /* can never fit */
    ck_assert_int_eq(w.retry_ms, -1);
}
END_TEST

START_TEST(concurrent_requests)
{
    limits_ticket t[3];
    limits_refusal w;
    who.limits.max_concurrent = 2;
    ck_assert(take(1, &t[0], &w) && take(1, &t[1], &w));
    ck_assert(!take(1, &t[2], &w));
    limits_settle(all, &t[0], 1, 0);
    ck_assert(take(1, &t[2], &w));
}
END_TEST

START_TEST(queued_requests)
{
    limits_ticket t[4];
    limits_refusal w;
    limits_view v;
    who.limits.max_queued = 2;
    who.limits.requests_per_minute = 4;
    ck_assert(take(1, &t[0], &w) && take(1, &t[1], &w));
    ck_assert(!take(1, &t[2], &w));
    ck_assert_str_eq(w.code, "rate_limit_exceeded");
    ck_assert_str_eq(w.msg, "The tenant's limit of 2 queued requests is reached.");
    ck_assert_int_gt(w.retry_ms, 0);
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.queued, 2);
    ck_assert_int_eq(v.queued_limit, 2);
    ck_assert_int_eq(v.running, 2); /* a refused request took nothing */
    ck_assert_int_eq(v.requests_left, 2);

    atomic_fetch_sub(t[0].waiting, 1); /* the engine runs the first */
    ck_assert(take(1, &t[2], &w));
    ck_assert(!take(1, &t[3], &w));
    limits_has_run(&t[0]);
    limits_settle(all, &t[0], 1, 0); /* what has run is not lowered twice */
    ck_assert(!take(1, &t[3], &w));
    limits_settle(all, &t[1], 0, 0); /* ended without ever running */
    limits_settle(all, &t[1], 0, 0);
    ck_assert(take(1, &t[3], &w));
    who.limits.max_queued = 0;
    limits_settle(all, &t[2], 0, 0);
    limits_settle(all, &t[3], 0, 0);
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.queued, 0);
    ck_assert_int_eq(v.queued_limit, -1);
}
END_TEST

/* Another tenant's queue is its own. */
START_TEST(queues_are_per_tenant)
{
    limits_ticket t;
    limits_refusal w;
    who.limits.max_queued = 1;
    ck_assert(take(1, &t, &w) && !take(1, &t, &w));
    who.id = 4;
    ck_assert(take(1, &t, &w));
}
END_TEST

START_TEST(who_asks_takes_nothing)
{
    limits_ticket t;
    limits_refusal w;
    limits_view v;
    who.limits =
        (tenant_limits){.requests_per_minute = 2, .tokens_per_minute = 50, .max_concurrent = 1};
    for (int i = 0; i < 10; i++) ck_assert(limits_ask(all, &key, &who, adapter, &w));
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.requests_left, 2);
    ck_assert_int_eq(v.running + v.queued, 0);
    ck_assert(take(50, &t, &w));
    ck_assert(!limits_ask(all, &key, &who, adapter, &w));
    ck_assert_ptr_nonnull(strstr(w.msg, "concurrent"));
    limits_settle(all, &t, 50, 0);
    ck_assert(limits_ask(all, &key, &who, adapter, &w)); /* its tokens are not known yet */
    ck_assert(!take(1, &t, &w));
    who.limits.tokens_per_day = 50; /* spent: no request has less than one */
    ck_assert(!limits_ask(all, &key, &who, adapter, &w));
    ck_assert_str_eq(w.code, "insufficient_quota");
    ck_assert_int_eq(w.retry_ms, -1);
}
END_TEST

START_TEST(requests_alone)
{
    limits *l = limits_create_of_requests();
    limits_ticket t[3];
    limits_refusal w;
    limits_view v;
    who.limits = (tenant_limits){.requests_per_minute = 3,
                                 .tokens_per_minute = 1,
                                 .max_concurrent = 2,
                                 .tokens_per_day = 1,
                                 .max_queued = 1};
    key.tokens_per_minute = 1;
    ck_assert(limits_reserve(l, &key, &who, NULL, 0, 0, &t[0], &w));
    ck_assert(limits_reserve(l, &key, &who, NULL, 0, 0, &t[1], &w)); /* none of them is queued */
    ck_assert(!limits_reserve(l, &key, &who, NULL, 0, 0, &t[2], &w));
    ck_assert_ptr_nonnull(strstr(w.msg, "concurrent"));
    limits_look(l, &key, &who, NULL, &v);
    ck_assert_int_eq(v.running, 2);
    ck_assert_int_eq(v.queued, 0);
    ck_assert_int_eq(v.requests_limit, 3);
    ck_assert_int_eq(v.requests_left, 1);
    ck_assert_int_eq(v.tokens_limit, -1);
    ck_assert_int_eq(v.day_limit, -1);
    limits_settle(l, &t[0], 0, 0);
    ck_assert(limits_reserve(l, &key, &who, NULL, 0, 0, &t[0], &w));
    limits_settle(l, &t[0], 0, 0);
    ck_assert(!limits_reserve(l, &key, &who, NULL, 0, 0, &t[0], &w));
    ck_assert_ptr_nonnull(strstr(w.msg, "per minute"));
    limits_destroy(l);
}
END_TEST

/* A budget in micros: reserved in full, settled with what was used, over at midnight UTC. */
START_TEST(budgets_of_costs)
{
    limits_ticket t[2];
    limits_refusal w;
    limits_view v;
    wall_us = NOV_30 + 3600000000;
    who.limits.cost_per_day = 2500000;
    ck_assert(limits_reserve(all, &key, &who, NULL, 10, 2500000, &t[0], &w));
    ck_assert(!limits_reserve(all, &key, &who, NULL, 10, 1, &t[1], &w)); /* held by the first */
    ck_assert(w.status == 429 && w.retry_ms == -1);
    ck_assert_str_eq(w.code, "insufficient_quota");
    ck_assert_str_eq(w.scope, "tenant");
    ck_assert_str_eq(w.limit, "cost_per_day");
    ck_assert_str_eq(w.msg,
                     "The tenant's limit of 2.500000 of cost per day is reached (cost_per_day); it "
                     "resets at 2025-12-01 00:00 UTC.");
    ck_assert(limits_reserve(all, &key, &who, NULL, 10, 0, &t[1], &w)); /* free of charge */
    limits_settle(all, &t[1], 10, 0);
    limits_settle(all, &t[0], 10, 400000);
    limits_settle(all, &t[0], 10, 400000); /* once */
    limits_look(all, &key, &who, NULL, &v);
    ck_assert(v.cost_day_used == 400000 && v.cost_day_limit == 2500000);
    ck_assert(v.cost_month_used == 400000 && v.cost_month_limit == -1);
    ck_assert(v.day_used == 20 && v.day_limit == -1); /* tokens are counted apart */
    ck_assert(!limits_reserve(all, &key, &who, NULL, 10, 2100001, &t[0], &w));
    ck_assert(limits_reserve(all, &key, &who, NULL, 10, 2100000, &t[0], &w));
    wall_us += DAY_US;
    limits_settle(all, &t[0], 10, 100000); /* belongs to the day before */
    who.limits.cost_per_month = 2000000;
    ck_assert(!limits_reserve(all, &key, &who, NULL, 10, 2000001, &t[0], &w));
    ck_assert_str_eq(w.limit, "cost_per_month");
    ck_assert_ptr_nonnull(strstr(w.msg, "resets at 2026-01-01 00:00 UTC"));
    ck_assert(limits_reserve(all, &key, &who, NULL, 10, 2000000, &t[0], &w));
    limits_settle(all, &t[0], 10, 0);
    wall_us = 0;
}
END_TEST

START_TEST(budgets_are_not_worth_retrying)
{
    limits_ticket t;
    limits_refusal w;
    who.limits.tokens_per_day = 10;
    ck_assert(take(8, &t, &w));
    limits_settle(all, &t, 8, 0);
    ck_assert(!take(3, &t, &w));
    ck_assert_str_eq(w.code, "insufficient_quota");
    ck_assert_int_eq(w.retry_ms, -1);
    limits_view v;
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.day_used, 8);
    ck_assert_int_eq(v.day_limit, 10);
    ck_assert_int_eq(v.tokens_limit, -1);
}
END_TEST

/* An adapter's limits hold for all tenants together, beside their own. */
START_TEST(adapters_have_limits_of_their_own)
{
    limits_adapter popular = {.id = 3, .limits = {.max_concurrent = 2}}, other = {.id = 5};
    limits_ticket t[4];
    limits_refusal w;
    limits_view v;
    adapter = &popular; /* with the tenant's id: accounts of two kinds are two */
    ck_assert(take(10, &t[0], &w));
    who.id = 4;
    ck_assert(take(10, &t[1], &w));
    ck_assert(!take(10, &t[2], &w));
    ck_assert_str_eq(w.msg, "The adapter's limit of 2 concurrent requests is reached.");
    limits_look_adapter(all, &popular, &v);
    ck_assert_int_eq(v.running, 2);
    ck_assert_int_eq(v.concurrent_limit, 2);
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.running, 1); /* this tenant's */
    ck_assert_int_eq(v.concurrent_limit, 2);
    adapter = &other;
    ck_assert(take(10, &t[2], &w));
    ck_assert_uint_eq(t[2].adapter_id, 0);
    adapter = NULL;
    ck_assert(take(10, &t[3], &w));
    limits_settle(all, &t[0], 0, 0);
    limits_settle(all, &t[0], 0, 0);
    limits_settle(all, &t[2], 0, 0);
    limits_settle(all, &t[3], 0, 0);
    adapter = &popular;
    ck_assert(take(10, &t[2], &w) && !take(10, &t[3], &w));
    limits_settle(all, &t[1], 0, 0);
    limits_settle(all, &t[2], 0, 0);

    popular.limits = (adapter_limits){.tokens_per_minute = 100, .requests_per_minute = 3};
    ck_assert(take(80, &t[0], &w) && !take(80, &t[1], &w));
    ck_assert_ptr_nonnull(strstr(w.msg, "adapter's limit of 100 tokens per minute"));
    limits_settle(all, &t[0], 10, 0);
    ck_assert(take(90, &t[1], &w));
    limits_settle(all, &t[1], 0, 0);
    ck_assert(take(1, &t[1], &w) && !take(1, &t[2], &w));
    ck_assert_ptr_nonnull(strstr(w.msg, "adapter's limit of 3 requests per minute"));
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.requests_limit, 3);
    ck_assert_int_eq(v.requests_left, 0);
    ck_assert_int_eq(v.tokens_limit, 100);
    who.limits.requests_per_minute = 1000; /* the fuller one is not shown */
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.requests_limit, 3);
    popular.limits =
        (adapter_limits){0}; /* lifted while one is held: it is given back all the same */
    limits_settle(all, &t[1], 0, 0);
    popular.limits.max_concurrent = 1;
    ck_assert(take(1, &t[0], &w));
}
END_TEST

static atomic_llong admitted;

static void *hammer(void *arg)
{
    (void)arg;
    for (int i = 0; i < 2000; i++) {
        limits_ticket t;
        limits_refusal w;
        if (!limits_reserve(all, &key, &who, adapter, 10, 0, &t, &w)) continue;
        atomic_fetch_add(&admitted, 10);
        limits_settle(all, &t, 10, 0);
    }
    return NULL;
}

START_TEST(threads_can_not_slip_through_an_adapter)
{
    pthread_t th[8];
    limits_adapter a = {.id = 9, .limits = {.requests_per_minute = 100}};
    limits_view v;
    adapter = &a;
    atomic_store(&admitted, 0);
    for (int i = 0; i < 8; i++) ck_assert_int_eq(pthread_create(&th[i], NULL, hammer, NULL), 0);
    for (int i = 0; i < 8; i++) ck_assert_int_eq(pthread_join(th[i], NULL), 0);
    limits_look_adapter(all, &a, &v);
    ck_assert_int_ge(atomic_load(&admitted) / 10, 100);
    ck_assert_int_le(atomic_load(&admitted) / 10, 200); /* what a minute more would give */
    ck_assert_int_eq(v.running, 0);
}
END_TEST

START_TEST(threads_can_not_slip_through_together)
{
    pthread_t th[8];
    who.limits.tokens_per_day = 1000;
    atomic_store(&admitted, 0);
    for (int i = 0; i < 8; i++) ck_assert_int_eq(pthread_create(&th[i], NULL, hammer, NULL), 0);
    for (int i = 0; i < 8; i++) ck_assert_int_eq(pthread_join(th[i], NULL), 0);
    ck_assert_int_eq(atomic_load(&admitted), 1000);
    limits_view v;
    limits_look(all, &key, &who, adapter, &v);
    ck_assert_int_eq(v.running, 0);
    ck_assert_int_eq(v.day_used, 1000);
}
END_TEST

/* ---- days ---------------------------------------------------------------------------------- */

static limits_view look(void)
{
    limits_view v;
    limits_look(all, &key, &who, NULL, &v);
    return v;
}

/* What was reserved before midnight is settled there: the new day neither has it nor gets it
 * back. */
START_TEST(a_request_across_midnight)
{
    limits_ticket before, after;
    limits_refusal w;
    who.limits.tokens_per_day = 100;
    wall_us = NOV_30 - 1000000; /* the 29th */
    ck_assert(take(90, &before, &w));
    ck_assert(!take(20, &after, &w));
    wall_us = NOV_30 + 1000000;
    ck_assert(take(30, &after, &w));
    ck_assert_int_eq(look().day_used, 30);
    ck_assert_int_eq(look().month_used, 120);
    limits_settle(all, &before, 10, 0);
    ck_assert_int_eq(look().day_used, 30);
    ck_assert_int_eq(look().month_used, 40); /* of one month */
    limits_settle(all, &after, 25, 0);
    ck_assert_int_eq(look().day_used, 25);
    ck_assert_int_eq(look().month_used, 35);
    ck_assert(!take(76, &after, &w));
    ck_assert(take(75, &before, &w)); /* into December */
    wall_us = NOV_30 + DAY_US + 1000000;
    ck_assert_int_eq(look().day_used, 0);
    ck_assert_int_eq(look().month_used, 0);
    limits_settle(all, &before, 5, 0);
    ck_assert_int_eq(look().day_used, 0);
    ck_assert_int_eq(look().month_used, 0);
    wall_us = 0;
}
END_TEST

/* A clock that is set back while a request runs finds what it left, not only what is in the ledger.
 */
START_TEST(a_request_and_a_clock_that_is_set)
{
    limits_ticket first, other, none;
    limits_refusal w;
    who.limits.tokens_per_day = 100;
    wall_us = NOV_30 - 1000000; /* the 29th */
    ck_assert(take(90, &first, &w));
    ck_assert_int_eq(first.wall_us, wall_us);
    wall_us += DAY_US;
    ck_assert(take(30, &other, &w));
    wall_us -= DAY_US;
    ck_assert_int_eq(look().day_used, 90);
    ck_assert(!take(20, &none, &w));
    limits_settle(all, &other, 25, 0); /* of the 30th */
    limits_settle(all, &first, 40, 0);
    ck_assert_int_eq(look().day_used, 40);
    ck_assert_int_eq(look().month_used, 65);
    wall_us += DAY_US;
    ck_assert_int_eq(look().day_used, 25);
    wall_us = 0;
}
END_TEST

/* A start with rows that the database has not taken yet, beside those it has. */
START_TEST(the_ledger_and_the_spool_count)
{
    char dir[64];
    store *st;
    err e;
    tmpdir_make(dir);
    wall_us = NOV_30 + 3600000000;
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    usage_row rows[] = {{.request_id = 1, .tenant_id = 3, .prompt_tokens = 1, .output_tokens = 10},
                        {.request_id = 2, .tenant_id = 3, .output_tokens = 1000}};
    rows[0].started_wall_us = wall_us;
    rows[0].cost = 70;
    rows[1].started_wall_us = wall_us - DAY_US;
    rows[1].cost = 8;
    ck_assert_int_eq(ledger_settle(st, rows, 2, &e), ERR_NONE);
    limits_destroy(all);
    all = limits_create(st);
    limits_add_used(all, 3, wall_us, 100, 500);
    limits_add_used(all, 3, wall_us - DAY_US, 10000, 0);
    limits_add_used(all, 3, wall_us - 40 * DAY_US, 100000, 0);
    ck_assert_int_eq(look().day_used, 111);
    ck_assert_int_eq(look().month_used, 11111);
    ck_assert(look().cost_day_used == 570 && look().cost_month_used == 578);
    /* The operator's picture has them before they come again; who used nothing
     * this month is not looked at. */
    rows[0] = (usage_row){.request_id = 4, .tenant_id = 9, .output_tokens = 5};
    rows[1] = (usage_row){.request_id = 5, .tenant_id = 12, .output_tokens = 6};
    rows[0].started_wall_us = wall_us;
    rows[1].started_wall_us = wall_us - 40 * DAY_US;
    ck_assert_int_eq(ledger_settle(st, rows, 2, &e), ERR_NONE);
    ck_assert_int_eq(limits_load(all, &e), ERR_NONE);
    limits_usage seen[3];
    limits_usage_get(all, (const tenant[]){{.id = 3}, {.id = 9}, {.id = 12}}, 3, seen);
    ck_assert(seen[0].day_used == 111 && seen[1].day_used == 5 && seen[1].month_used == 5);
    ck_assert(seen[0].cost_day_used == 570 && seen[0].cost_month_used == 578);
    ck_assert(seen[2].day_used == 0 && seen[2].month_used == 0);
    /* The spool's rows reach the ledger: that changes nothing here, today or tomorrow. */
    rows[0] = (usage_row){
        .request_id = 3, .tenant_id = 3, .started_wall_us = wall_us, .output_tokens = 100};
    ck_assert_int_eq(ledger_settle(st, rows, 1, &e), ERR_NONE);
    ck_assert_int_eq(look().day_used, 111);
    wall_us += DAY_US / 2;
    ck_assert_int_eq(look().day_used, 111);
    /* A clock that goes back finds the ledger's sums. */
    wall_us -= DAY_US;
    ck_assert_int_eq(look().day_used, 1000);
    /* One that was ahead before a start has left rows there: the day has them when it comes. */
    limits_destroy(all);
    all = limits_create(st);
    ck_assert_int_eq(look().day_used, 1000);
    wall_us += DAY_US;
    ck_assert_int_eq(look().day_used, 111);
    ck_assert_int_eq(look().month_used, 1111);
    limits_destroy(all);
    all = limits_create(NULL);
    store_close(st);
    tmpdir_remove(dir);
    wall_us = 0;
}
END_TEST

static void run_sql(const char *dir, const char *text)
{
    char path[128];
    sqlite3 *db;
    snprintf(path, sizeof(path), "%s/lorad.db", dir);
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* A ledger that cannot be read: who has a budget waits, the others go on. */
START_TEST(a_budget_that_cannot_be_read_is_not_free)
{
    static char hide[] = "ALTER TABLE usage_days RENAME TO hidden";
    static char show[] = "ALTER TABLE hidden RENAME TO usage_days";
    char dir[64];
    store *st;
    err e;
    limits_ticket t;
    limits_refusal w;
    tmpdir_make(dir);
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    run_sql(dir, hide);
    limits_destroy(all);
    all = limits_create(st);
    ck_assert(take(5, &t, &w));
    who.limits.tokens_per_month = 100;
    ck_assert(!take(5, &t, &w));
    ck_assert_int_eq(w.status, 503);
    ck_assert_str_eq(w.code, "storage_unavailable");
    ck_assert_int_gt(w.retry_ms, 0);
    run_sql(dir, show);
    ck_assert(take(5, &t, &w));
    limits_destroy(all);
    all = limits_create(NULL);
    store_close(st);
    tmpdir_remove(dir);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("limits");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, no_limit_refuses_nothing);
    tcase_add_test(tc, requests_per_minute);
    tcase_add_test(tc, tokens_come_back_when_unused);
    tcase_add_test(tc, concurrent_requests);
    tcase_add_test(tc, queued_requests);
    tcase_add_test(tc, queues_are_per_tenant);
    tcase_add_test(tc, who_asks_takes_nothing);
    tcase_add_test(tc, requests_alone);
    tcase_add_test(tc, budgets_of_costs);
    tcase_add_test(tc, budgets_are_not_worth_retrying);
    tcase_add_test(tc, adapters_have_limits_of_their_own);
    tcase_add_test(tc, threads_can_not_slip_through_an_adapter);
    tcase_add_test(tc, threads_can_not_slip_through_together);
    tcase_add_test(tc, a_request_across_midnight);
    tcase_add_test(tc, a_request_and_a_clock_that_is_set);
    tcase_add_test(tc, the_ledger_and_the_spool_count);
    tcase_add_test(tc, a_budget_that_cannot_be_read_is_not_free);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
