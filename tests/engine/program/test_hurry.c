/* test_hurry.c -- who goes before those that compute, for how long, and how often. */
#include <sys/resource.h>

#include <check.h>

#include "engine/program/hurry.h"
#include "tests/run_suite.h"

/* A time of its own for each case: with CK_FORK=no they share a process. */
#define AT(nth, us) ((nth)*INT64_C(100000000) + (us))

static int own_nice(void)
{
    return getpriority(PRIO_PROCESS, 0);
}

START_TEST(one_at_a_time)
{
    hurry a, b;
    int before = own_nice();
    ck_assert(hurry_begin(&a, AT(1, 0), 0));
    ck_assert_int_le(own_nice(), before); /* lower where the system grants it */
    ck_assert(!hurry_begin(&b, AT(1, 2000), 0));
    hurry_end(&b, AT(1, 3000), 500);
    ck_assert(!hurry_begin(&b, AT(1, 3000), 0));
    hurry_end(&a, AT(1, 4000), 0);
    ck_assert_int_eq(own_nice(), before);
    ck_assert(hurry_begin(&b, AT(1, 4000), 0));
    hurry_end(&b, AT(1, 4000), 0);
}
END_TEST

START_TEST(a_rest_comes_after_it)
{
    hurry a;
    ck_assert(hurry_begin(&a, AT(2, 0), 70000));
    ck_assert(hurry_look(&a, AT(2, 30000), 100000));
    hurry_end(&a, AT(2, 50000), 100000); /* 30 ms of its time */
    ck_assert(!hurry_begin(&a, AT(2, 50000 + 4 * 30000 - 1), 0));
    ck_assert(hurry_begin(&a, AT(2, 50000 + 4 * 30000), 0));
    hurry_end(&a, AT(2, 50000 + 4 * 30000), 0);
}
END_TEST

START_TEST(it_ends_by_itself)
{
    hurry a;
    int before = own_nice();
    ck_assert(hurry_begin(&a, AT(3, 0), 0));
    ck_assert(hurry_look(&a, AT(3, HURRY_MOST_US), HURRY_MOST_US));
    ck_assert(!hurry_look(&a, AT(3, HURRY_MOST_US), HURRY_MOST_US + 1));
    ck_assert_int_eq(own_nice(), before);
    ck_assert(!hurry_look(&a, AT(3, HURRY_MOST_US), HURRY_MOST_US + 1));
    ck_assert(hurry_begin(&a, AT(4, 0), 0));
    ck_assert(hurry_look(&a, AT(4, HURRY_HOLD_US), 0));
    ck_assert(!hurry_look(&a, AT(4, HURRY_HOLD_US + 1), 0));
}
END_TEST

/* One that waits for its client holds up nobody for longer than a second. */
START_TEST(the_place_is_taken_over)
{
    hurry a, b;
    ck_assert(hurry_begin(&a, AT(5, 0), 0));
    ck_assert(!hurry_begin(&b, AT(5, HURRY_HOLD_US - 1), 0));
    ck_assert(hurry_begin(&b, AT(5, HURRY_HOLD_US), 0));
    hurry_end(&a, AT(5, HURRY_HOLD_US), 0);
    ck_assert(!hurry_begin(&a, AT(5, HURRY_HOLD_US + 1), 0)); /* it is b's still */
    hurry_end(&b, AT(5, HURRY_HOLD_US + 1), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hurry");
    TCase *t = tcase_create("hurry");
    tcase_add_test(t, one_at_a_time);
    tcase_add_test(t, a_rest_comes_after_it);
    tcase_add_test(t, it_ends_by_itself);
    tcase_add_test(t, the_place_is_taken_over);
    suite_add_tcase(s, t);
    return run_suite(s);
}
