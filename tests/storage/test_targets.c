/* test_targets.c -- a tenant's own targets: looked up, put, taken away, and no more than fit. */
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "storage/targets.h"
#include "tests/run_suite.h"

static bool put(tenant *t, const char *class, int64_t ttft_ms, int64_t tpot_ms)
{
    target one = {.ttft_us = ttft_ms * 1000, .tpot_us = tpot_ms * 1000};
    snprintf(one.class, sizeof(one.class), "%s", class);
    return targets_put(t, &one);
}

START_TEST(what_is_not_the_tenants_own_is_the_classs)
{
    tenant t = {.targets = ""};
    target own = targets_of(&t, "gold", 500000, 50000);
    ck_assert(own.ttft_us == 500000 && own.tpot_us == 50000);
    ck_assert_str_eq(own.class, "gold");
    ck_assert(put(&t, "gold", 300, 0));
    ck_assert(put(&t, "golden", 0, 86400000));
    own = targets_of(&t, "gold", 500000, 50000);
    ck_assert(own.ttft_us == 300000 && own.tpot_us == 50000);
    own = targets_of(&t, "golden", 2000000, 100000);
    ck_assert(own.ttft_us == 2000000 && own.tpot_us == INT64_C(86400000000));
}
END_TEST

START_TEST(an_entry_is_replaced_and_taken_away)
{
    tenant t = {.targets = ""};
    ck_assert(put(&t, "gold", 300, 40) && put(&t, "golden", 1, 2) && put(&t, "gold", 700, 90));
    ck_assert_str_eq(t.targets, "golden:1:2,gold:700:90");
    ck_assert(put(&t, "golden", 0, 0));
    ck_assert_str_eq(t.targets, "gold:700:90");
    ck_assert(put(&t, "silver", 0, 0));
    ck_assert(put(&t, "gold", 0, 0));
    ck_assert_str_eq(t.targets, "");
}
END_TEST

START_TEST(too_many_are_refused_and_change_nothing)
{
    tenant t = {.targets = ""}, was;
    char name[CLASS_NAME_MAX + 1];
    int n = 0;
    do {
        was = t;
        snprintf(name, sizeof(name), "class-of-sixteen%d", n);
    } while (put(&t, name, 86400000, 86400000) && ++n < 1000);
    ck_assert_int_ge(n, 8);
    ck_assert_int_lt(n, 1000);
    ck_assert_str_eq(t.targets, was.targets);
    ck_assert(put(&t, "class-of-sixteen0", 0, 0) && put(&t, name, 86400000, 86400000));
}
END_TEST

/* What stands in a database that something else wrote ends the list, and does no harm. */
START_TEST(nonsense_ends_the_list)
{
    static const char *const text[] = {"gold",
                                       "gold:",
                                       "gold:3",
                                       "Gold:3:4",
                                       ":3:4",
                                       "gold;3:4",
                                       "a-name-that-is-longer-than-any-class-may-have:1:2"};
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++) {
        tenant t = {.targets = ""};
        snprintf(t.targets, sizeof(t.targets), "%s", text[i]);
        target own = targets_of(&t, "gold", 500000, 50000);
        ck_assert_msg(own.ttft_us == 500000 && own.tpot_us == 50000, "%s", text[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("targets");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, what_is_not_the_tenants_own_is_the_classs);
    tcase_add_test(tc, an_entry_is_replaced_and_taken_away);
    tcase_add_test(tc, too_many_are_refused_and_change_nothing);
    tcase_add_test(tc, nonsense_ends_the_list);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
