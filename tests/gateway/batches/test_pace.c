/* test_pace.c -- how many lines may run: more while nobody minds, fewer when somebody does. */
#include <check.h>

#include "gateway/batches/pace.h"
#include "tests/run_suite.h"

static const pace_view idle = {.most = 16, .max_seqs = 64};

static int settle(const pace_view *v)
{
    int allowed = 0;
    for (int i = 0; i < 100; i++) allowed = pace_next(allowed, v);
    return allowed;
}

START_TEST(it_grows_to_what_is_free)
{
    pace_view v = idle;
    ck_assert_int_eq(pace_next(0, &v), 1);
    ck_assert_int_eq(pace_next(7, &v), 8);
    ck_assert_int_eq(settle(&v), 16);
    v.max_seqs = 8; /* one seat is spare */
    ck_assert_int_eq(settle(&v), 7);
    v.n_running = 5; /* two of them lines */
    v.n_lines = 2;
    ck_assert_int_eq(settle(&v), 4);
    v.n_running = 9;
    ck_assert_int_eq(settle(&v), 0);
    v = (pace_view){.most = 16, .max_seqs = 1}; /* the only seat */
    ck_assert_int_eq(settle(&v), 1);
}
END_TEST

START_TEST(who_waits_stops_it)
{
    pace_view v = idle;
    v.n_waiting = 1;
    ck_assert_int_eq(pace_next(7, &v), 7);
    v.n_urgent = 1;
    ck_assert_int_eq(pace_next(7, &v), 3);
    ck_assert_int_eq(settle(&v), 0);
}
END_TEST

START_TEST(targets_halve_it)
{
    pace_view v = idle;
    v.n_urgent = v.n_running = 1;
    v.tpot_us = 50000;
    v.step_us = 25000;
    ck_assert_int_eq(pace_next(8, &v), 9);
    v.step_us = 25001;
    ck_assert_int_eq(pace_next(8, &v), 4);
    v.step_us = 0;
    v.late = true;
    ck_assert_int_eq(pace_next(8, &v), 4);
    v.n_urgent = 0; /* nobody is there to be late */
    ck_assert_int_eq(pace_next(8, &v), 9);
    v.crowded = true; /* who comes next needs pages */
    ck_assert_int_eq(pace_next(8, &v), 4);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pace");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, it_grows_to_what_is_free);
    tcase_add_test(tc, who_waits_stops_it);
    tcase_add_test(tc, targets_halve_it);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
