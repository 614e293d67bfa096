/* test_facts.c -- what a node tells of itself is read as it was; a line of a stranger is refused.
 * And the texts of prompts that were computed for others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "gateway/move/facts.h"
#include "gateway/move/texts.h"
#include "tests/run_suite.h"

static place_node example(void)
{
    place_node k = {.role = ROLE_DECODE,
                    .streams = {.decode = 16, .attended = 8000, .ranks = 32},
                    .prompt_us = 1e6 / 3,
                    .prompts = 0.25,
                    .n_prompts = 3,
                    .free_seats = -2,
                    .free_tokens = 90000,
                    .setup_us = 1500,
                    .byte_us = 0.0004};
    cost_init(&k.cost);
    k.cost.n = 123456789012;
    k.cost.pace = -0.25;
    for (int i = 0; i < COST_TERMS; i++) k.cost.theta[i] = 1e5 / (i + 3);
    return k;
}

START_TEST(what_is_told_is_read)
{
    char line[NODE_FACTS_MAX + 1], again[NODE_FACTS_MAX + 1];
    const place_node was = example();
    place_node is;
    facts_write(&was, line);
    ck_assert(facts_read(line, &is));
    facts_write(&is, again);
    ck_assert_str_eq(line, again);
    ck_assert(is.role == was.role && is.cost.n == was.cost.n && is.n_prompts == 3);
    ck_assert(is.free_seats == -2 && is.streams.decode == 16);
    const cost_work w = {.prefill = 100, .decode = 8, .attended = 5000, .ranks = 16};
    double told = cost_predict(&is.cost, &w), meant = cost_predict(&was.cost, &w);
    ck_assert_double_eq_tol(told, meant, meant * 1e-5);
}
END_TEST

START_TEST(the_longest_line_fits)
{
    char line[NODE_FACTS_MAX + 1];
    place_node k = example(), is;
    k.role = ROLE_PREFILL;
    k.cost.n = UINT64_MAX;
    k.cost.pace = -1.23456789e-300;
    k.prompt_us = k.setup_us = k.byte_us = k.free_tokens = 1.23456789e-300;
    k.streams =
        (cost_work){.decode = 1.23456e-300, .attended = 1.23456e-300, .ranks = 1.23456e-300};
    for (int i = 0; i < COST_TERMS; i++) k.cost.theta[i] = 1.23456789e-300;
    k.n_prompts = k.free_seats = -999999999;
    facts_write(&k, line);
    ck_assert_uint_lt(strlen(line), NODE_FACTS_MAX);
    ck_assert(facts_read(line, &is));
}
END_TEST

START_TEST(other_lines_are_refused)
{
    static const char *const numbers = " 0 1 0 0 0 0 0 0 0 0 0 0 1 2 3 4 5 6";
    static const char *const bad[] = {
        "0 1 0 0 0 0 0 0 0 0 0 0 1 2 3 4 5",     "0 1 0 0 0 0 0 0 0 0 0 0 1 2 3 4 5 6 7",
        "0 1 0 0 0 -1 0 0 0 0 0 0 1 2 3 4 5 6",  "0 1 0 0 0 0 2 0 0 0 0 0 1 2 3 4 5 6",
        "99 1 0 0 0 0 0 0 0 0 0 0 1 2 3 4 5 6",  "0 1 0 0 0 nan 0 0 0 0 0 0 1 2 3 4 5 6",
        "0 1 0 0 0 inf 0 0 0 0 0 0 1 2 3 4 5 6", "0 1 0 0 0 0 0 1e12 0 0 0 0 1 2 3 4 5 6",
        "0 1 0 0 0 0 0 0 0 0 0 0 1 2 3 4 5 6x",  "0 1 0 0 0 0 0 0 0 0 0 0 1 2 3 4 5 1e99"};
    char line[256];
    place_node k;
    snprintf(line, sizeof(line), "1 both 9%s", numbers);
    ck_assert(facts_read(line, &k) && k.role == ROLE_BOTH);
    snprintf(line, sizeof(line), "2 both 9%s", numbers);
    ck_assert(!facts_read(line, &k));
    snprintf(line, sizeof(line), "1 king 9%s", numbers);
    ck_assert(!facts_read(line, &k));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        snprintf(line, sizeof(line), "1 both 9 %s", bad[i]);
        ck_assert_msg(!facts_read(line, &k), "%s", line);
    }
    ck_assert(!facts_read("", &k) && !facts_read("1 both", &k) && !facts_read("1 both 9", &k));
}
END_TEST

START_TEST(texts_are_found_by_their_pass_for_a_while)
{
    static texts t;
    int32_t token[3] = {1, 2, 3};
    for (uint64_t i = 0; i < TEXTS_MAX + 2; i++) {
        sched_text from = {.token = token, .n_token = 3, .domain.isolation = i}, copy;
        ck_assert(texts_copy(&from, &copy) && copy.token != token);
        void *was = texts_add(&t, 100 + i, &copy, 1000);
        ck_assert((was != NULL) == (i >= TEXTS_MAX));
        free(was);
    }
    ck_assert_ptr_null(texts_find(&t, 100, 1000)); /* the oldest two have given way */
    ck_assert_ptr_null(texts_find(&t, 101, 1000));
    const sched_text *found = texts_find(&t, 102, 1000);
    ck_assert(found && found->domain.isolation == 2 && found->token[2] == 3);
    ck_assert_ptr_nonnull(texts_find(&t, 102, 999 + TEXT_KEPT_US));
    ck_assert_ptr_null(texts_find(&t, 102, 1000 + TEXT_KEPT_US));
    texts_clear(&t);
    ck_assert_ptr_null(texts_find(&t, 102, 1000));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("facts");
    TCase *t = tcase_create("facts");
    tcase_add_test(t, what_is_told_is_read);
    tcase_add_test(t, the_longest_line_fits);
    tcase_add_test(t, other_lines_are_refused);
    tcase_add_test(t, texts_are_found_by_their_pass_for_a_while);
    suite_add_tcase(s, t);
    return run_suite(s);
}
