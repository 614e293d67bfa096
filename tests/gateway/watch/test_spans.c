/* test_spans.c -- what is put while no collector answers, and who is sampled. */
#include <string.h>

#include <check.h>

#include "gateway/watch/spans.h"
#include "tests/run_suite.h"

static spans *open_spans(double sample)
{
    /* Nobody listens on the discard port of this machine. */
    spans_config c = {.endpoint = "http://127.0.0.1:9/v1/traces", .sample = sample, .version = "1"};
    spans *s;
    err e;
    ck_assert_int_eq(spans_create(&s, &c, &e), ERR_NONE);
    return s;
}

START_TEST(a_full_ring_loses_and_counts)
{
    enum { MORE = 3 * SPANS_MAX, IN_FLIGHT = 128 };
    static span_request r = {.at_us = {1, 2, 3, 4, 5, 6, 7}, .asked = "base"};
    spans *s = open_spans(0);
    spans_stats st;
    for (int i = 0; i < MORE; i++) spans_put(s, &r);
    spans_get(s, &st);
    ck_assert_uint_ge(st.n_dropped, MORE - SPANS_MAX - IN_FLIGHT);
    ck_assert_uint_lt(st.n_dropped, MORE);
    ck_assert_uint_eq(st.n_sent, 0);
    spans_destroy(s);
}
END_TEST

START_TEST(the_callers_flag_decides_then_the_share)
{
    spans *none = open_spans(0), *all = open_spans(1), *half = open_spans(0.5);
    trace_context yes = {.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736", .flags = "01"};
    trace_context no = yes;
    int n = 0;
    strcpy(no.flags, "02");
    ck_assert(spans_begin(none, &yes) && !spans_begin(all, &no));
    for (int i = 0; i < 1000; i++) {
        trace_context t = {0};
        ck_assert(!spans_begin(none, &t) && !t.trace_id[0]);
        ck_assert(spans_begin(all, &t) && strlen(t.trace_id) == 32);
        t = (trace_context){0};
        n += spans_begin(half, &t);
    }
    ck_assert(n > 400 && n < 600); /* six sigma and more */
    ck_assert(!spans_begin(NULL, &yes));
    spans_destroy(none);
    spans_destroy(all);
    spans_destroy(half);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("spans");
    tcase_add_test(tc, a_full_ring_loses_and_counts);
    tcase_add_test(tc, the_callers_flag_decides_then_the_share);
    Suite *s = suite_create("spans");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
