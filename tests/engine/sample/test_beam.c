/* test_beam.c -- what a beam search keeps, step by step, on small tables of log-probabilities. */
#include <math.h>

#include <check.h>

#include "engine/sample/beam.h"
#include "tests/run_suite.h"

enum { STOP = 9 };

static const int32_t stop_id[] = {STOP};

static sampled row_of(int n, const int32_t *id, const float *logprob)
{
    sampled t = {.token = id[0], .n_top = n};
    for (int i = 0; i < n; i++) {
        t.top_id[i] = id[i];
        t.top_logprob[i] = logprob[i];
    }
    return t;
}

#define ROW(n, ids, values) row_of(n, (const int32_t[])ids, (const float[])values)
#define L(...)      \
    {               \
        __VA_ARGS__ \
    }

static void step_with(beam_search *b, const sampled *rows, int *parent)
{
    const sampled *row[BEAMS_MAX];
    for (int i = 0; i < beam_live(b); i++) row[i] = &rows[i];
    beam_step(b, row, stop_id, 1, parent);
}

static void check_answer(const beam_search *b, int k, int n, const int32_t *token, double mean)
{
    sampled out[16];
    int trail[16];
    ck_assert_int_eq(beam_answer_length(b, k), n);
    beam_answer(b, k, out, trail);
    double sum = 0;
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(out[i].token, token[i]);
        sum += (double)out[i].logprob;
    }
    ck_assert_double_eq_tol(sum / n, mean, 1e-6);
}

START_TEST(the_best_sums_live_on)
{
    const beam_rules rules = {.width = 2, .max_tokens = 3, .length_penalty = 1, .n_top = -1};
    beam_search *b = beam_create(&rules);
    int parent[BEAMS_MAX];
    const sampled first[] = {ROW(3, L(1, 2, 3), L(-1, -2, -3))};
    step_with(b, first, parent);
    ck_assert(beam_live(b) == 2 && beam_text(b, 0)[0] == 1 && beam_text(b, 1)[0] == 2);
    /* -1 - 4 ties with -2 - 3: the earlier beam is first. */
    const sampled second[] = {ROW(3, L(4, 5, 6), L(-4, -5, -6)),
                              ROW(3, L(7, 8, 6), L(-0.5, -3, -9))};
    step_with(b, second, parent);
    ck_assert(parent[0] == 1 && parent[1] == 0 && beam_length(b) == 2);
    ck_assert(beam_text(b, 0)[0] == 2 && beam_text(b, 0)[1] == 7 && beam_text(b, 1)[1] == 4);
    ck_assert(!beam_over(b) && beam_answers(b) == 0);
    const sampled third[] = {ROW(2, L(1, 2), L(-1, -2)), ROW(2, L(1, 2), L(-0.1, -5))};
    step_with(b, third, parent);
    ck_assert(beam_over(b) && beam_answers(b) == 2);
    check_answer(b, 0, 3, (const int32_t[]){2, 7, 1}, -3.5 / 3);
    check_answer(b, 1, 3, (const int32_t[]){2, 7, 2}, -4.5 / 3);
    ck_assert(beam_answer_cut(b, 0));
    beam_destroy(b);
}
END_TEST

/* Two answers; the live beam at -2.2 of two tokens is better than the worse one by its mean. */
static beam_search *with_two_answers(beam_ending ending, float penalty)
{
    const beam_rules rules = {
        .width = 2, .max_tokens = 8, .length_penalty = penalty, .ending = ending, .n_top = -1};
    beam_search *b = beam_create(&rules);
    int parent[BEAMS_MAX];
    const sampled first[] = {ROW(3, L(STOP, 1, 2), L(-1, -1.5, -2))};
    step_with(b, first, parent);
    ck_assert(beam_answers(b) == 1 && beam_live(b) == 2 && !beam_over(b));
    const sampled second[] = {ROW(3, L(STOP, 3, 4), L(-1, -1.1, -4)),
                              ROW(3, L(5, 6, 7), L(-3, -4, -5))};
    step_with(b, second, parent);
    ck_assert(beam_answers(b) == 2 && !beam_answer_cut(b, 1));
    return b;
}

START_TEST(each_ending_ends_where_it_should)
{
    /* Worst answer -2.5 / 2; the best live beam has -2.6 / 2 now, and -2.6 / 8 at most. */
    static const bool over[] = {
        [BEAM_ENDS_LIKELY] = true, [BEAM_ENDS_FULL] = true, [BEAM_ENDS_NEVER] = false};
    for (int i = 0; i < 3; i++) {
        beam_search *b = with_two_answers((beam_ending)i, 1);
        check_answer(b, 0, 1, (const int32_t[]){STOP}, -1);
        check_answer(b, 1, 2, (const int32_t[]){1, STOP}, -1.25);
        ck_assert_int_eq(beam_over(b), over[i]);
        beam_destroy(b);
    }
    beam_search *b = with_two_answers(BEAM_ENDS_NEVER, 0);
    ck_assert(beam_over(b)); /* without a penalty no sum rises */
    beam_destroy(b);
}
END_TEST

START_TEST(a_stop_below_the_width_is_no_answer)
{
    const beam_rules rules = {.width = 2, .max_tokens = 8, .length_penalty = 1, .n_top = -1};
    beam_search *b = beam_create(&rules);
    int parent[BEAMS_MAX];
    const sampled first[] = {ROW(3, L(1, 2, STOP), L(-1, -1.5, -2))};
    step_with(b, first, parent);
    ck_assert(beam_answers(b) == 0 && beam_live(b) == 2);
    beam_destroy(b);
}
END_TEST

START_TEST(a_complete_form_is_an_answer)
{
    const beam_rules rules = {.width = 3, .max_tokens = 8, .length_penalty = 1, .n_top = 1};
    beam_search *b = beam_create(&rules);
    int parent[BEAMS_MAX];
    sampled out[2];
    const sampled first[] = {ROW(3, L(1, 2, 3), L(-1, -2, -3))};
    step_with(b, first, parent);
    const bool ended[] = {false, true, false};
    parent[2] = 5;
    beam_end(b, ended, parent);
    ck_assert(beam_live(b) == 2 && beam_text(b, 1)[0] == 3 && parent[1] == 5 && !beam_over(b));
    check_answer(b, 0, 1, (const int32_t[]){2}, -2);
    beam_answer(b, 0, out, parent);
    ck_assert(out[0].n_top == 1 && out[0].top_id[0] == 1 && out[0].logprob == -2);
    const sampled none[] = {{.token = -1}, {.token = -1}};
    step_with(b, none, parent);
    ck_assert(beam_live(b) == 0 && beam_over(b) && beam_answers(b) == 1);
    beam_destroy(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("beam");
    TCase *tc = tcase_create("beam");
    tcase_add_test(tc, the_best_sums_live_on);
    tcase_add_test(tc, each_ending_ends_where_it_should);
    tcase_add_test(tc, a_stop_below_the_width_is_no_answer);
    tcase_add_test(tc, a_complete_form_is_an_answer);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
