/* test_trace.c -- traceparent: the standard's own examples, and what it calls invalid. */

#include <check.h>

#include "gateway/http/trace.h"
#include "tests/run_suite.h"

#define ID   "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN "00f067aa0ba902b7"

START_TEST(valid_ones_are_taken_apart)
{
    static const char *const cases[] = {"00-" ID "-" SPAN "-01", "00-" ID "-" SPAN "-00",
                                        "cc-" ID "-" SPAN "-01", "cc-" ID "-" SPAN "-01-what-ever",
                                        "00-" ID "-" SPAN "-ff"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        trace_context t;
        ck_assert_msg(trace_parse(cases[i], &t), "%s", cases[i]);
        ck_assert_str_eq(t.trace_id, ID);
        ck_assert_str_eq(t.parent_id, SPAN);
        ck_assert_int_eq(t.flags[0], cases[i][53]);
        ck_assert_int_eq(t.flags[1], cases[i][54]);
        ck_assert_int_eq(t.flags[2], 0);
    }
}
END_TEST

START_TEST(invalid_ones_are_none)
{
    static const char *const cases[] = {
        "",
        "00",
        "ff-" ID "-" SPAN "-01",
        "00-" ID "-" SPAN "-01-more",
        "00-" ID "-" SPAN "-1",
        "00-" ID "-" SPAN "-01 ",
        "cc-" ID "-" SPAN "-01.x",
        "0-" ID "-" SPAN "-011",
        "00-00000000000000000000000000000000-" SPAN "-01",
        "00-" ID "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01",
        "00-" ID "_" SPAN "-01",
        "00_" ID "-" SPAN "-01",
        "0x-" ID "-" SPAN "-01",
        "00-" ID "-" SPAN "-0g",
        "00-4bf92f3577b34da6a3ce929d0e0e473\xc3-" SPAN "-01",
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        trace_context t;
        ck_assert_msg(!trace_parse(cases[i], &t), "%s", cases[i]);
        ck_assert_int_eq(t.trace_id[0] | t.parent_id[0] | t.flags[0], 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("trace");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, valid_ones_are_taken_apart);
    tcase_add_test(tc, invalid_ones_are_none);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
