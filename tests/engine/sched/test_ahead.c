/* test_ahead.c -- how deep adapters are fetched: by seats, loads and room. */
#include <check.h>

#include "engine/sched/ahead.h"
#include "tests/run_suite.h"

enum { MOST = 64 };

static ahead seats_every(int64_t us)
{
    ahead a = {0};
    for (int64_t t = 1; t < 200 * us; t += us) ahead_seat(&a, t);
    return a;
}

START_TEST(test_depth)
{
    ahead a = {0};
    ck_assert_int_eq(ahead_depth(&a, 1000, 100, MOST), AHEAD_UNKNOWN);
    ahead_seat(&a, 500);
    ck_assert_int_eq(ahead_depth(&a, 1000, 100, MOST), AHEAD_UNKNOWN); /* one seat tells nothing */
    a = seats_every(10000);
    ck_assert_int_eq(ahead_start_us(&a, 3), 30000);
    ck_assert_int_eq(ahead_depth(&a, 0, 100, MOST), AHEAD_UNKNOWN);
    ck_assert_int_eq(ahead_depth(&a, 100, 100, MOST), AHEAD_LEAST); /* fast loads: just in time */
    ck_assert_int_eq(ahead_depth(&a, 4500, 100, MOST), 10);         /* nearly as slow as seats */
    ck_assert_int_eq(ahead_depth(&a, 5000, 100, MOST), MOST);       /* slower: as deep as it goes */
    ck_assert_int_eq(ahead_depth(&a, 50000, 100, MOST), MOST);
    ck_assert_int_eq(ahead_depth(&a, 50000, 7, MOST), 7); /* more would push itself out */
    ck_assert_int_eq(ahead_depth(&a, 50000, 1, MOST), 1);
    for (double load = 1; load < 20000; load *= 1.1)
        ck_assert_int_ge(ahead_depth(&a, load * 1.1, 100, MOST), ahead_depth(&a, load, 100, MOST));
}
END_TEST

START_TEST(test_seats)
{
    ahead a = seats_every(10000);
    ck_assert_double_eq_tol(a.seat_us, 10000, 1);
    ahead_seat(&a, a.last_seat_us + 3600 * (int64_t)1000000); /* an hour without requests */
    ck_assert_double_le(a.seat_us, 10000 + 1e6 / 16);
    for (int i = 0; i < 200; i++) ahead_seat(&a, a.last_seat_us + 1000);
    ck_assert_double_eq_tol(a.seat_us, 1000, 10);
    for (int i = 0; i < 500; i++) ahead_seat(&a, a.last_seat_us); /* many in one step */
    ck_assert_double_lt(a.seat_us, 1);
    ck_assert_int_eq(ahead_depth(&a, 100, 100, MOST), MOST);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ahead");
    TCase *tc = tcase_create("ahead");
    tcase_add_test(tc, test_depth);
    tcase_add_test(tc, test_seats);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
