/* test_ended.c -- the last requests that ended, the slowest, and where their time went. */
#include <stdio.h>
#include <stdlib.h>

#include <check.h>

#include "gateway/watch/ended.h"
#include "tests/run_suite.h"

enum { SECOND = 1000000 };

static ended *e;
static ended_row *rows;
static size_t n;

static void setup(void)
{
    e = ended_create();
    ck_assert_ptr_nonnull(e);
}

static void teardown(void)
{
    ended_destroy(e);
    free(rows);
    rows = NULL;
}

static void note(uint64_t id, int64_t took_ms, int64_t ended_us)
{
    char name[24];
    request rq;
    usage_row row = {.request_id = id, .duration_ms = took_ms, .ended_wall_us = ended_us};
    request_init(&rq);
    rq.missed.beside = -1;
    snprintf(name, sizeof(name), "req_%llu", (unsigned long long)id);
    ended_note(e, &row, &rq, name);
}

static void list(int64_t slow_ms)
{
    free(rows);
    ck_assert(ended_list(e, slow_ms, &rows, &n));
}

START_TEST(the_latest_come_first)
{
    list(0);
    ck_assert_uint_eq(n, 0);
    for (int i = 1; i <= ENDED_LAST + 5; i++) note((uint64_t)i, 10, i * SECOND);
    list(0);
    ck_assert_uint_ge(n, ENDED_LAST);
    ck_assert_uint_eq(rows[0].usage.request_id, ENDED_LAST + 5);
    ck_assert_str_eq(rows[0].request_id, "req_1005");
    for (size_t i = 1; i < n; i++) /* each once */
        ck_assert_uint_lt(rows[i].usage.request_id, rows[i - 1].usage.request_id);
}
END_TEST

START_TEST(the_slowest_outlive_the_ring_for_an_hour)
{
    note(1, 9000, SECOND);
    note(2, 7000, SECOND);
    for (int i = 0; i < 3 * ENDED_LAST; i++) note((uint64_t)i + 10, 20, 2 * SECOND);
    list(1000);
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(rows[0].usage.request_id, 1);
    ck_assert_uint_eq(rows[1].usage.request_id, 2);
    for (int i = 0; i < 3 * ENDED_LAST; i++) /* an hour later those go, for quicker ones */
        note((uint64_t)i + 10000, 30, 3700LL * SECOND);
    list(1000);
    ck_assert_uint_eq(n, 0);
}
END_TEST

START_TEST(a_quick_one_displaces_no_slow_one)
{
    for (int i = 0; i < ENDED_SLOWEST; i++) note((uint64_t)i + 1, 5000 + i, SECOND);
    for (int i = 0; i < ENDED_LAST; i++) note(1000 + (uint64_t)i, 100, SECOND);
    note(9, 100, SECOND);
    list(5000);
    ck_assert_uint_eq(n, ENDED_SLOWEST);
    note(5000, 6000, SECOND); /* it takes the quickest's place, and is in the ring */
    for (int i = 0; i < ENDED_LAST; i++) note(1000 + (uint64_t)i, 100, SECOND);
    list(5000);
    ck_assert_uint_eq(n, ENDED_SLOWEST);
    ck_assert_uint_eq(rows[0].usage.request_id, 5000);
    ck_assert_uint_eq(rows[n - 1].usage.request_id, 2);
}
END_TEST

START_TEST(phases_add_up)
{
    request rq;
    usage_row row = {.request_id = 1, .duration_ms = 1000, .ended_wall_us = SECOND};
    request_init(&rq);
    rq.arrived_us = 50000; /* worked on for 50 ms before; began at 0 */
    rq.times.admitted_us = 350000;
    rq.times.first_token_us = 500000;
    rq.times.last_token_us = 900000;
    rq.times.clock.adapter_us = 100000;           /* before the first token */
    rq.times.clock.us[MISS_ADAPTER_LOAD] = 20000; /* after it gave way */
    ended_note(e, &row, &rq, "req_1");
    list(0);
    ended_phases p = rows[0].phase;
    ck_assert_int_eq(p.adapter_us, 120000);
    ck_assert_int_eq(p.queue_us, 180000);
    ck_assert_int_eq(p.prompt_us, 150000);
    ck_assert_int_eq(p.decode_us, 400000);
    ck_assert_int_eq(p.rest_us, 150000);
}
END_TEST

START_TEST(one_that_never_ran_has_waited)
{
    request rq;
    usage_row row = {.request_id = 1, .duration_ms = 40, .ended_wall_us = SECOND};
    request_init(&rq);
    rq.arrived_us = 1;
    ended_note(e, &row, &rq, "req_1");
    list(0);
    ck_assert_int_eq(rows[0].phase.queue_us, 40000);
    ck_assert_int_eq(rows[0].phase.rest_us, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ended");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_latest_come_first);
    tcase_add_test(tc, the_slowest_outlive_the_ring_for_an_hour);
    tcase_add_test(tc, a_quick_one_displaces_no_slow_one);
    tcase_add_test(tc, phases_add_up);
    tcase_add_test(tc, one_that_never_ran_has_waited);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
