/* test_cost.c -- the model of a step's time: it learns, follows, forgives, and bounds chunks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <check.h>

#include "engine/sched/cost.h"
#include "tests/run_suite.h"

static uint64_t state = 7;

static double uniform(void)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(state >> 11) / (double)(1ULL << 53);
}

/* A machine: what a step with this work takes. */
static double took(const cost_work *w, double speed)
{
    return speed * (900 + 40 * w->prefill + 260 * w->decode + 0.02 * w->attended + 3 * w->ranks);
}

static cost_work some_work(void)
{
    cost_work w = {.decode = floor(uniform() * 32)};
    w.attended = w.decode * floor(uniform() * 500);
    w.ranks = w.decode * floor(uniform() * 2) * 16;
    return cost_with_chunk(&w, (int)(uniform() * uniform() * 400), (int)(uniform() * 1000), 16);
}

/* Worst |predicted - took| / took over fresh steps. */
static double worst_error(const cost_model *c, double speed)
{
    double worst = 0;
    for (int i = 0; i < 200; i++) {
        cost_work w = some_work();
        w.decode++;
        worst = fmax(worst, fabs(cost_predict(c, &w) - took(&w, speed)) / took(&w, speed));
    }
    return worst;
}

static void serve(cost_model *c, int steps, double speed, double noise)
{
    for (int i = 0; i < steps; i++) {
        cost_work w = some_work();
        w.decode++;
        cost_observe(c, &w, took(&w, speed) * (1 + noise * (2 * uniform() - 1)));
    }
}

START_TEST(learns_an_exact_machine_in_a_few_steps)
{
    cost_model c;
    cost_init(&c);
    cost_work w = some_work();
    ck_assert_double_eq(cost_predict(&c, &w), 0);
    serve(&c, 40, 1, 0);
    ck_assert_double_lt(worst_error(&c, 1), 0.02);
}
END_TEST

START_TEST(noise_leaves_it_near_and_says_so)
{
    cost_model c;
    cost_init(&c);
    serve(&c, 1000, 1, 0.2);
    ck_assert_double_lt(worst_error(&c, 1), 0.15);
    ck_assert_double_gt(c.error, 0.05); /* the mean of uniform noise of 20 % is 10 % */
    ck_assert_double_lt(c.error, 0.15);
}
END_TEST

START_TEST(follows_a_machine_that_becomes_slower)
{
    cost_model c;
    cost_init(&c);
    serve(&c, 300, 1, 0.05);
    serve(&c, 400, 3, 0.05);
    ck_assert_double_lt(worst_error(&c, 3), 0.2);
    ck_assert_double_lt(c.error, 0.1);
}
END_TEST

/* The coefficients are lies at first: ten times too cheap, or too dear. */
START_TEST(a_lying_model_is_corrected)
{
    for (int lie = 0; lie < 2; lie++) {
        cost_model c;
        cost_init(&c);
        serve(&c, 300, lie ? 10 : 0.1, 0.05);
        ck_assert_double_gt(worst_error(&c, 1), 0.8);
        serve(&c, 600, 1, 0.05);
        ck_assert_double_lt(worst_error(&c, 1), 0.25);
    }
}
END_TEST

START_TEST(one_interrupted_step_moves_it_little)
{
    cost_model c;
    cost_init(&c);
    serve(&c, 300, 1, 0.05);
    double before = worst_error(&c, 1);
    cost_work w = some_work();
    w.decode++;
    cost_observe(&c, &w, 200 * took(&w, 1));
    ck_assert_double_lt(worst_error(&c, 1), before + 0.1);
}
END_TEST

/* Only decode steps for long, then a prompt: what was not seen is not thought negative or wild. */
START_TEST(more_work_never_looks_cheaper)
{
    cost_model c;
    cost_init(&c);
    for (int i = 0; i < 5000; i++) {
        cost_work w = {.decode = 1 + floor(uniform() * 8), .attended = floor(uniform() * 4000)};
        cost_observe(&c, &w, took(&w, 1) * (1 + 0.3 * (2 * uniform() - 1)));
    }
    for (int i = 0; i < 500; i++) {
        cost_work w = some_work(), more = cost_with_chunk(&w, 1 + i % 64, i, 16);
        ck_assert_double_ge(cost_predict(&c, &more), cost_predict(&c, &w));
        ck_assert(isfinite(cost_predict(&c, &more)));
    }
    serve(&c, 200, 1, 0.05);
    ck_assert_double_lt(worst_error(&c, 1), 0.3);
}
END_TEST

/* Steps with adapters happened to be the faster ones: that is no reason to
 * think that adapters save time. */
START_TEST(no_kind_of_work_saves_time)
{
    cost_model c;
    cost_init(&c);
    for (int i = 0; i < 1000; i++) {
        cost_work w = {.decode = 1 + i % 16, .ranks = i % 2 * 512};
        cost_observe(&c, &w, took(&w, 1) - 3 * w.ranks - (w.ranks > 0 ? 600 : 0));
    }
    for (int i = 0; i < COST_TERMS; i++) ck_assert_double_ge(c.theta[i], 0);
    cost_work bare = {.decode = 8}, adapted = {.decode = 8, .ranks = 512};
    ck_assert_double_ge(cost_predict(&c, &adapted), cost_predict(&c, &bare));
}
END_TEST

/* What a server really sees: thousands of steps of one kind, a few of another, odd ones between. */
START_TEST(one_sided_work_never_breaks_it)
{
    cost_model c;
    cost_init(&c);
    cost_work one = {.decode = 1}, small = {.prefill = 3, .attended = 6};
    for (int i = 0; i < 200000; i++) {
        cost_work w = i % 500 < 2 ? small : one;
        w.attended += i % 500;
        double us = took(&w, 1) * (1 + 0.3 * (2 * uniform() - 1)) * (i % 997 == 0 ? 50 : 1);
        cost_observe(&c, &w, us);
        if (i > 100 && i % 100 == 0) {
            cost_work big = cost_with_chunk(&one, 64, 0, 0);
            ck_assert_double_gt(cost_predict(&c, &one), 0.5 * took(&one, 1));
            ck_assert_double_lt(cost_predict(&c, &one), 2 * took(&one, 1));
            ck_assert_double_lt(cost_predict(&c, &big), 100 * took(&big, 1));
        }
    }
}
END_TEST

START_TEST(what_is_no_time_is_ignored)
{
    cost_model c;
    cost_init(&c);
    serve(&c, 50, 1, 0);
    cost_model before = c;
    cost_work w = some_work();
    cost_observe(&c, &w, 0);
    cost_observe(&c, &w, -5);
    cost_observe(&c, &w, (double)NAN);
    cost_observe(&c, &w, (double)INFINITY);
    ck_assert_mem_eq(&before, &c, sizeof(c));
}
END_TEST

/* After minutes of streams alone a prompt costs what it cost. */
START_TEST(what_is_not_seen_is_not_forgotten)
{
    cost_model c;
    cost_init(&c);
    serve(&c, 300, 1, 0.05);
    for (int i = 0; i < 100000; i++) {
        cost_work w = {.decode = 1 + floor(uniform() * 8)};
        w.attended = w.decode * floor(uniform() * 500);
        cost_observe(&c, &w, took(&w, 1) * (1 + 0.1 * (2 * uniform() - 1)));
    }
    cost_work w = {.decode = 8, .attended = 2000}, more = cost_with_chunk(&w, 256, 0, 16);
    ck_assert_double_gt(cost_predict(&c, &more), 0.7 * took(&more, 1));
    ck_assert_double_lt(cost_predict(&c, &more), 1.4 * took(&more, 1));
}
END_TEST

/* Steps that read the experts that any of their rows takes: 8 of 64, 500 us each. */
START_TEST(experts_are_read_once_for_all_rows)
{
    cost_model with, without;
    double error[2] = {0};
    cost_init(&with);
    cost_init(&without);
    cost_experts(&with, 64, 8);
    for (int i = 0; i < 2000; i++) {
        cost_work w = {.decode = 1 + i * 7 % 48, .attended = 1000};
        double us = 3000 + 100 * w.decode + 64 * 500 * (1 - pow(1 - 8.0 / 64, w.decode));
        for (int k = 0; k < 2; k++) {
            cost_model *c = k ? &without : &with;
            if (i > 500) error[k] += fabs(cost_predict(c, &w) - us) / us / 1499;
            cost_observe(c, &w, us);
        }
    }
    ck_assert_double_lt(error[0], 0.02);
    ck_assert_double_gt(error[1], 0.05);
}
END_TEST

/* A machine whose speed comes and goes by a third within tens of steps, as one that others
 * share. */
START_TEST(follows_the_pace_of_a_shared_machine)
{
    cost_model c;
    cost_init(&c);
    double worst = 0;
    for (int i = 0; i < 3000; i++) {
        cost_work w = some_work();
        w.decode++;
        double speed = i / 60 % 2 ? 1.35 : 1, us = took(&w, speed);
        if (i > 500 && i % 60 > 30) worst = fmax(worst, fabs(cost_predict(&c, &w) - us) / us);
        cost_observe(&c, &w, us);
    }
    ck_assert_double_lt(worst, 0.12);
}
END_TEST

/* Steps of the demo model behind a server, eight streams, then prompts of 1,000 tokens beside them,
 * on a busy machine: prompt tokens, decode rows, positions, ranks, microseconds. */
START_TEST(a_recorded_trace_is_predicted)
{
    cost_model c;
    cost_init(&c);
    FILE *f = fopen("fixtures/cost_trace.txt", "r");
    ck_assert_ptr_nonnull(f);
    char line[128];
    double error = 0, bias = 0;
    int n = 0, counted = 0;
    while (fgets(line, sizeof line, f)) {
        char *at = line;
        double v[5];
        for (int i = 0; i < 5; i++) v[i] = strtod(at, &at);
        cost_work w = {.prefill = v[0], .decode = v[1], .attended = v[2], .ranks = v[3]};
        if (n++ >= 100) {
            double us = cost_predict(&c, &w);
            ck_assert_double_gt(us, 0);
            error += fmin(1, fabs(us - v[4]) / v[4]);
            bias += log(us / v[4]);
            counted++;
        }
        cost_observe(&c, &w, v[4]);
    }
    (void)fclose(f);
    ck_assert_int_gt(counted, 2000);
    ck_assert_msg(error / counted < 0.12, "mean error %.4f", error / counted);
    ck_assert_msg(fabs(bias / counted) < 0.05, "mean log of predicted over taken %.4f",
                  bias / counted);
}
END_TEST

START_TEST(a_chunk_is_the_most_that_fits)
{
    cost_model c;
    cost_init(&c);
    serve(&c, 300, 1, 0);
    cost_work w = {.decode = 8, .attended = 2000};
    double base = cost_predict(&c, &w);
    ck_assert_int_eq(cost_chunk(&c, &w, base - 1, 400, 0, 16), 0);
    ck_assert_int_eq(cost_chunk(&c, &w, (double)INFINITY, 400, 0, 16), 400);
    for (int i = 1; i < 60; i++) {
        double budget = base + 300.0 * i;
        int n = cost_chunk(&c, &w, budget, 400, 100, 16), step = n >= 32 ? 32 : 1;
        cost_work fits = cost_with_chunk(&w, n, 100, 16),
                  over = cost_with_chunk(&w, n + step, 100, 16);
        if (n > 0) ck_assert_double_le(cost_predict(&c, &fits), budget);
        if (n < 400) ck_assert_double_gt(cost_predict(&c, &over), budget);
        if (n > 32 && n < 400) ck_assert_int_eq(n % 32, 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cost");
    TCase *tc = tcase_create("cost");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, learns_an_exact_machine_in_a_few_steps);
    tcase_add_test(tc, noise_leaves_it_near_and_says_so);
    tcase_add_test(tc, follows_a_machine_that_becomes_slower);
    tcase_add_test(tc, a_lying_model_is_corrected);
    tcase_add_test(tc, one_interrupted_step_moves_it_little);
    tcase_add_test(tc, more_work_never_looks_cheaper);
    tcase_add_test(tc, no_kind_of_work_saves_time);
    tcase_add_test(tc, one_sided_work_never_breaks_it);
    tcase_add_test(tc, what_is_no_time_is_ignored);
    tcase_add_test(tc, what_is_not_seen_is_not_forgotten);
    tcase_add_test(tc, experts_are_read_once_for_all_rows);
    tcase_add_test(tc, follows_the_pace_of_a_shared_machine);
    tcase_add_test(tc, a_recorded_trace_is_predicted);
    tcase_add_test(tc, a_chunk_is_the_most_that_fits);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
