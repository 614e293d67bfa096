/* test_price.c -- costs: exact, rounded once, and never beyond int64_t. */
#include <stdlib.h>

#include <check.h>

#include "storage/price.h"
#include "tests/run_suite.h"

START_TEST(costs_are_per_million_tokens)
{
    const token_price p = {.prompt = 3000000, .cached = 300000, .output = 9000000};
    ck_assert_int_eq(price_cost(&p, 1000000, 0, 0), 3000000);
    ck_assert_int_eq(price_cost(&p, 1000000, 1000000, 0), 300000);
    ck_assert_int_eq(price_cost(&p, 0, 0, 1000000), 9000000);
    ck_assert_int_eq(price_cost(&p, 100, 40, 7), 60 * 3 + 12 + 7 * 9);
    ck_assert_int_eq(price_cost(&p, 0, 0, 0), 0);
    ck_assert_int_eq(price_cost(&p, -5, -5, -5), 0);
    ck_assert_int_eq(price_cost(&p, 10, 20, 0), 3); /* no more is cached than there is */
}
END_TEST

START_TEST(the_whole_is_rounded_once)
{
    const token_price half = {.prompt = 200000, .cached = 200000, .output = 300000};
    ck_assert_int_eq(price_cost(&half, 1, 0, 0), 0); /* 0.2 */
    ck_assert_int_eq(price_cost(&half, 1, 0, 1), 1); /* 0.2 + 0.3: half up */
    ck_assert_int_eq(price_cost(&half, 2, 1, 0), 0); /* 0.4: not two times 0.2, each rounded */
    ck_assert_int_eq(price_cost(&half, 7, 3, 0), 1); /* 1.4 */
}
END_TEST

START_TEST(the_largest_does_not_overflow)
{
    const token_price p = {PRICE_MAX, PRICE_MAX, PRICE_MAX};
    int64_t most = price_cost(&p, INT64_MAX, INT64_MAX / 2, INT64_MAX);
    ck_assert_int_eq(most, 2 * PRICE_TOKENS_MAX * 1000000);
    ck_assert_int_eq(price_cost(&p, UINT32_MAX, 0, UINT32_MAX), 2 * (int64_t)UINT32_MAX * 1000000);
    const token_price beyond = {INT64_MAX, -1, INT64_MAX};
    ck_assert_int_eq(price_cost(&beyond, 10, 5, 0), 5 * 1000000);
}
END_TEST

START_TEST(surcharges_add_up_to_the_limit)
{
    token_price p = {.prompt = 1, .cached = 2, .output = PRICE_MAX - 1};
    price_add(&p, &(token_price){.prompt = 10, .cached = 0, .output = 5});
    ck_assert_int_eq(p.prompt, 11);
    ck_assert_int_eq(p.cached, 2);
    ck_assert_int_eq(p.output, PRICE_MAX);
    price_add(&p, &(token_price){INT64_MAX, INT64_MAX, INT64_MAX});
    ck_assert(p.prompt == PRICE_MAX && p.cached == PRICE_MAX && p.output == PRICE_MAX);
}
END_TEST

/* What is reserved covers what is charged, whichever part of the prompt the cache has. */
START_TEST(the_most_covers_every_outcome)
{
    srandom(1);
    for (int i = 0; i < 20000; i++) {
        token_price p = {random() % 5000000, random() % 5000000, random() % 5000000};
        int64_t prompt = random() % 5000, cached = random() % (prompt + 1), room = random() % 5000;
        int64_t made = random() % (room + 1);
        ck_assert_int_ge(price_cost_most(&p, prompt, room), price_cost(&p, prompt, cached, made));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("price");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, costs_are_per_million_tokens);
    tcase_add_test(tc, the_whole_is_rounded_once);
    tcase_add_test(tc, the_largest_does_not_overflow);
    tcase_add_test(tc, surcharges_add_up_to_the_limit);
    tcase_add_test(tc, the_most_covers_every_outcome);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
