/* test_prom.c -- the text format: escapes, numbers, cumulative buckets. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <check.h>

#include "gateway/watch/prom.h"
#include "tests/run_suite.h"

START_TEST(one_family_after_another)
{
    prom p;
    prom_init(&p);
    prom_gauge(&p, "a", "first\nline \\ \"quoted\"", 1.5);
    prom_counter(&p, "b_total", "big", UINT64_MAX);
    prom_family(&p, "c", "gauge", "labels");
    prom_sample(&p, -2, "x", "1", "y", "2", NULL);
    ck_assert_str_eq(p.text, "# HELP a first\\nline \\\\ \"quoted\"\n# TYPE a gauge\na 1.5\n"
                             "# HELP b_total big\n# TYPE b_total counter\n"
                             "b_total 18446744073709551615\n"
                             "# HELP c labels\n# TYPE c gauge\nc{x=\"1\",y=\"2\"} -2\n");
    ck_assert_uint_eq(p.len, strlen(p.text));
    prom_clear(&p);
}
END_TEST

START_TEST(hostile_label_values_stay_values)
{
    static const char *const cases[][2] = {
        {"\"} 1\nfake_total 7", "\\\"} 1\\nfake_total 7"},
        {"back\\slash\\n", "back\\\\slash\\\\n"},
        {"tab\tbell\a\x7f", "tab?bell??"},
        {"\xff\xc3(caf\xc3\xa9", "?\?(caf\xc3\xa9"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char want[128];
        prom p;
        prom_init(&p);
        p.name = "m";
        prom_sample(&p, 1, "l", cases[i][0], NULL);
        snprintf(want, sizeof(want), "m{l=\"%s\"} 1\n", cases[i][1]);
        ck_assert_str_eq(p.text, want);
        prom_clear(&p);
    }
}
END_TEST

START_TEST(numbers_that_are_none_have_their_names)
{
    prom p;
    prom_init(&p);
    p.name = "m";
    prom_sample(&p, (double)NAN, NULL);
    prom_sample(&p, (double)INFINITY, NULL);
    prom_sample(&p, -(double)INFINITY, NULL);
    ck_assert_str_eq(p.text, "m NaN\nm +Inf\nm -Inf\n");
    prom_clear(&p);
}
END_TEST

START_TEST(buckets_are_cumulative_and_end_in_inf)
{
    static const histogram_scale scale = {3, 1e-3, {5, 50, 500}};
    histogram h = {0};
    histogram_counts c = {0};
    prom p;
    prom_init(&p);
    histogram_init(&h, &scale);
    for (int i = 0; i < 4; i++) histogram_add(&h, i == 3 ? 1000 : 5 + i);
    histogram_read(&h, &c);
    p.name = "h_seconds";
    prom_histogram(&p, &c, &scale, "class", "x", NULL);
    ck_assert_str_eq(p.text, "h_seconds_bucket{class=\"x\",le=\"0.005\"} 1\n"
                             "h_seconds_bucket{class=\"x\",le=\"0.05\"} 3\n"
                             "h_seconds_bucket{class=\"x\",le=\"0.5\"} 3\n"
                             "h_seconds_bucket{class=\"x\",le=\"+Inf\"} 4\n"
                             "h_seconds_sum{class=\"x\"} 1.018\n"
                             "h_seconds_count{class=\"x\"} 4\n");
    prom_clear(&p);
}
END_TEST

START_TEST(it_grows)
{
    prom p;
    prom_init(&p);
    for (int i = 0; i < 20000; i++) prom_counter(&p, "many_total", "help", (uint64_t)i);
    ck_assert(!p.failed);
    ck_assert_uint_eq(p.len, strlen(p.text));
    ck_assert_uint_gt(p.len, 1000000);
    prom_clear(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prom");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, one_family_after_another);
    tcase_add_test(tc, hostile_label_values_stay_values);
    tcase_add_test(tc, numbers_that_are_none_have_their_names);
    tcase_add_test(tc, buckets_are_cumulative_and_end_in_inf);
    tcase_add_test(tc, it_grows);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
