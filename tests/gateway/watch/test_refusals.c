/* test_refusals.c -- refusals by limit: sums over minutes, the hour's end, and a full ring. */
#include <check.h>

#include "gateway/watch/refusals.h"
#include "tests/run_suite.h"

enum { HOUR_S = 3600, START_S = 1800000000 };

static const char key[] = "key", tenant[] = "tenant", requests[] = "requests_per_minute",
                  day[] = "tokens_per_day";
static refusals *r;
static refusal_count out[REFUSALS_KINDS];

static void setup(void)
{
    r = refusals_create();
    ck_assert_ptr_nonnull(r);
}

static void teardown(void)
{
    refusals_destroy(r);
}

START_TEST(test_sums)
{
    for (int s = 0; s < 600; s++)
        ck_assert_int_eq(refusals_note(r, 7, key, requests, START_S + s), s == 0);
    ck_assert(refusals_note(r, 7, tenant, day, START_S + 30));
    ck_assert(refusals_note(r, 7, tenant, requests, START_S + 31));
    ck_assert(!refusals_note(r, 7, tenant, day, START_S + 600));
    ck_assert(refusals_note(r, 8, key, requests, START_S + 601));
    ck_assert_int_eq(refusals_of(r, 7, START_S + 601, out), 3);
    ck_assert_ptr_eq(out[0].limit, requests);
    ck_assert_ptr_eq(out[0].scope, key);
    ck_assert_int_eq(out[0].count, 600);
    ck_assert_ptr_eq(out[1].limit, day);
    ck_assert_int_eq(out[1].count, 2);
    ck_assert_int_eq(out[2].count, 1);
    ck_assert_int_eq(refusals_of(r, 9, START_S + 601, out), 0);
}
END_TEST

START_TEST(test_an_hour)
{
    (void)refusals_note(r, 7, key, requests, START_S);
    (void)refusals_note(r, 7, key, requests, START_S + HOUR_S - 60);
    ck_assert_int_eq(refusals_of(r, 7, START_S + HOUR_S - 1, out), 1);
    ck_assert_int_eq(out[0].count, 2);
    ck_assert_int_eq(refusals_of(r, 7, START_S + HOUR_S, out), 1);
    ck_assert_int_eq(out[0].count, 1);
    ck_assert_int_eq(refusals_of(r, 7, START_S + 2 * HOUR_S, out), 0);
    ck_assert_msg(refusals_note(r, 7, key, requests, START_S + 2 * HOUR_S), "the first again");
}
END_TEST

START_TEST(test_full)
{
    for (uint64_t id = 1; id <= REFUSALS_MAX + 1; id++)
        (void)refusals_note(r, id, key, requests, START_S);
    ck_assert_int_eq(refusals_of(r, 1, START_S, out), 0);
    ck_assert_int_eq(refusals_of(r, 2, START_S, out), 1);
    ck_assert_int_eq(refusals_of(r, REFUSALS_MAX + 1, START_S, out), 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("refusals");
    TCase *tc = tcase_create("refusals");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, test_sums);
    tcase_add_test(tc, test_an_hour);
    tcase_add_test(tc, test_full);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
