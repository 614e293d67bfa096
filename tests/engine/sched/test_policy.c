/* test_policy.c -- the scheduler's judgement, scenario by scenario; no clock, no thread. */
#include <math.h>

#include <check.h>

#include "engine/sched/policy.h"
#include "tests/run_suite.h"

enum { MAX = 16, SECOND = 1000000 };

static policy_entry out[MAX];
static int order[MAX];
static const policy_limits lim = {.max_rows = 64, .free_seats = 4, .ageing_us = 10 * SECOND};

static policy_request waiting(int rank, int64_t arrived)
{
    return (policy_request){.left = 20, .max_chunk = 64, .class_rank = rank, .arrived_us = arrived};
}

static policy_request prefilling(int rank, int64_t arrived)
{
    policy_request r = waiting(rank, arrived);
    r.running = true;
    return r;
}

static policy_request decoding(int rank, int64_t arrived)
{
    policy_request r = prefilling(rank, arrived);
    r.left = 1;
    return r;
}

static void expect(const policy_request *rq, int n, const policy_limits *l, int64_t now,
                   const int *want, int n_want)
{
    ck_assert_int_eq(policy_plan(rq, n, l, now, out, order), n_want);
    for (int i = 0; i < n_want; i++) ck_assert_int_eq(out[i].request, want[i]);
}

START_TEST(decode_rows_stand_before_any_prefill)
{
    policy_request rq[] = {prefilling(0, 0), decoding(2, 2), decoding(0, 9), waiting(0, 1)};
    expect(rq, 4, &lim, 10, (int[]){1, 2, 0, 3}, 4);
    ck_assert_int_eq(out[0].n_rows, 1);
    ck_assert_int_eq(out[2].n_rows, 20);
    policy_limits tight = lim;
    tight.max_rows = 1; /* then the most urgent stream */
    expect(rq, 4, &tight, 10, (int[]){2, 1}, 2);
}
END_TEST

START_TEST(chunks_are_bounded)
{
    policy_request rq[] = {waiting(0, 1)};
    rq[0].left = 500;
    expect(rq, 1, &lim, 10, (int[]){0}, 1);
    ck_assert_int_eq(out[0].n_rows, 64);
}
END_TEST

START_TEST(what_is_begun_goes_on_unless_a_more_urgent_class_waits)
{
    policy_request rq[] = {prefilling(2, 1), prefilling(1, 5), prefilling(1, 3),
                           waiting(1, 6),    waiting(0, 7),    waiting(2, 4)};
    expect(rq, 6, &lim, 10, (int[]){2, 1, 3, 4, 0, 5}, 6); /* the waiting as they were given */
    policy_request urgent[] = {prefilling(1, 1), waiting(0, 7)};
    expect(urgent, 2, &lim, 10, (int[]){1, 0}, 2);
    expect(urgent, 2, &lim, 10 * SECOND + 1, (int[]){0, 1}, 2); /* raised by waiting */
}
END_TEST

START_TEST(without_a_seat_only_the_stronger_are_offered)
{
    policy_request rq[] = {decoding(1, 0), waiting(1, 1), waiting(0, 2)};
    policy_limits full = lim;
    full.free_seats = 0;
    expect(rq, 3, &full, 10, (int[]){0, 2}, 2);
    rq[2].class_rank = 2;
    expect(rq, 3, &full, 10, (int[]){0}, 1);
}
END_TEST

START_TEST(nobody_is_displaced_before_the_deadline_is_near_or_after_it)
{
    policy_request rq[] = {decoding(1, 0), waiting(0, SECOND)};
    rq[1].deadline_us = 2 * SECOND;
    policy_limits full = lim;
    full.free_seats = 0;
    expect(rq, 2, &full, SECOND + 600000, (int[]){0}, 1);
    ck_assert(!policy_is_weaker(&rq[0], &rq[1], &full, SECOND + 600000));
    expect(rq, 2, &full, SECOND + 700000, (int[]){0, 1}, 2);
    ck_assert(policy_is_weaker(&rq[0], &rq[1], &full, SECOND + 700000));
    expect(rq, 2, &full, 2 * SECOND + 1, (int[]){0}, 1); /* what is missed is no hurry */
    expect(rq, 2, &lim, SECOND, (int[]){0, 1}, 2);       /* a free seat is for anybody */
}
END_TEST

START_TEST(the_victim_is_of_the_lowest_class_and_arrived_last)
{
    policy_request rq[] = {decoding(0, 9), decoding(2, 1), decoding(2, 5), waiting(3, 9),
                           decoding(1, 8)}; /* victims are found wherever they stand */
    bool ok[] = {true, true, true, true, true};
    ck_assert_int_eq(policy_victim(rq, 5, ok, -1, &lim, 10), 2);
    ok[2] = false;
    ck_assert_int_eq(policy_victim(rq, 5, ok, -1, &lim, 10), 1);
    ck_assert_int_eq(policy_victim(rq, 5, ok, 4, &lim, 10), 1); /* only weaker than request 4 */
    ok[1] = false;
    ck_assert_int_eq(policy_victim(rq, 5, ok, 4, &lim, 10), -1);
    ck_assert_int_eq(policy_victim(rq, 5, ok, -1, &lim, 10), 4);
    ok[4] = ok[0] = false;
    ck_assert_int_eq(policy_victim(rq, 5, ok, -1, &lim, 10), -1);
}
END_TEST

START_TEST(no_two_ever_preempt_each_other_in_turn)
{
    uint64_t x = 1;
    for (int i = 0; i < 2000; i++) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        policy_request a = decoding((int)(x >> 33) % 4, (int64_t)(x >> 40) % (60 * SECOND));
        policy_request b = decoding((int)(x >> 35) % 4, (int64_t)(x >> 20) % (60 * SECOND));
        bool ab = false, ba = false;
        for (int64_t now = 60 * SECOND; now < 120 * SECOND; now += SECOND / 2) {
            ab |= policy_is_weaker(&a, &b, &lim, now);
            ba |= policy_is_weaker(&b, &a, &lim, now);
        }
        ck_assert(!(ab && ba));
    }
}
END_TEST

/* 1 ms a step, 1 ms for 8 decode rows, 1 ms for 64 prompt tokens. */
static cost_model known_costs(void)
{
    cost_model c;
    cost_init(&c);
    c.theta[0] = c.theta[1] = c.theta[2] = 1000;
    c.n = COST_LEARNING;
    return c;
}

static int least;

static double budget(const policy_request *rq, int n, const cost_model *c, int64_t now)
{
    return policy_budget_us(rq, out, policy_plan(rq, n, &lim, now, out, order), c, now, &least);
}

START_TEST(nothing_bounds_a_step_without_streams_or_knowledge)
{
    cost_model c = known_costs(), fresh;
    cost_init(&fresh);
    policy_request rq[] = {decoding(0, 2), waiting(0, 1)};
    rq[0].due_us = SECOND;
    ck_assert(isinf(budget(rq + 1, 1, &c, 10)));
    ck_assert(isinf(budget(rq, 2, &fresh, 10)));
    ck_assert(isfinite(budget(rq, 2, &c, 10)));
}
END_TEST

/* 8 streams: their step takes 2 ms, so prompts may make it 2.4 ms. */
START_TEST(streams_keep_their_pace_while_no_first_token_needs_more)
{
    cost_model c = known_costs();
    policy_request rq[10];
    for (int i = 0; i < 8; i++) {
        rq[i] = decoding(1, i);
        rq[i].due_us = SECOND + i * 1000;
    }
    rq[8] = waiting(1, 0);
    rq[8].left = 640; /* 10 ms of work: 60 ms at a sixth of the time */
    rq[8].deadline_us = 500000;
    ck_assert_double_eq_tol(budget(rq, 9, &c, 200000), 2400, 1e-6);
    ck_assert_int_eq(least, 1);
    /* Four tenths of the target being kept in reserve, it has 30 ms for 10: half as much again as
     * the half of a step that this asks. */
    ck_assert_double_eq_tol(budget(rq, 9, &c, 270000), 2000 * (1 + 1.5 * 0.5), 1e-6);
    ck_assert_int_eq(least, 1);
    /* Not even alone: most of the tightest stream's slack. */
    ck_assert_double_eq_tol(budget(rq, 9, &c, 295000), 0.6 * (SECOND - 295000), 1e-6);
    ck_assert_int_gt(least, 1);
    /* Missed already: no reason to hurt the streams. */
    ck_assert_double_eq_tol(budget(rq, 9, &c, 600000), 2400, 1e-6);
    ck_assert_int_gt(least, 1);
    /* Those before it in the queue count as well. */
    rq[9] = rq[8];
    ck_assert_double_eq_tol(budget(rq, 10, &c, 260000), 2000 * (1 + 1.5 * 1), 1e-6);
}
END_TEST

/* As time goes by with nothing done, the share grows without a leap to the whole slack. */
START_TEST(the_share_of_prompts_grows_with_what_they_need)
{
    cost_model c = known_costs();
    policy_request rq[] = {decoding(1, 0), waiting(1, 0)};
    rq[0].due_us = SECOND;
    rq[1].left = 640;
    rq[1].deadline_us = 500000;
    double last = budget(rq, 2, &c, 0);
    for (int64_t now = 1000; now <= 285000; now += 1000) {
        double us = budget(rq, 2, &c, now);
        ck_assert_double_ge(us, last);
        ck_assert_double_le(us, 1.5 * last);
        last = us;
    }
}
END_TEST

START_TEST(a_target_bounds_the_pace_unless_streams_alone_miss_it)
{
    cost_model c = known_costs();
    policy_request rq[9];
    for (int i = 0; i < 8; i++) {
        rq[i] = decoding(1, i);
        rq[i].due_us = SECOND;
    }
    rq[8] = waiting(1, 20);
    ck_assert_double_eq_tol(budget(rq, 9, &c, SECOND - 2200), 2200, 1e-6);
    ck_assert_double_eq_tol(budget(rq, 9, &c, SECOND - 1500), 2400, 1e-6);
    ck_assert_double_eq_tol(budget(rq, 9, &c, SECOND + 1500), 2400, 1e-6);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("policy");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, decode_rows_stand_before_any_prefill);
    tcase_add_test(tc, chunks_are_bounded);
    tcase_add_test(tc, what_is_begun_goes_on_unless_a_more_urgent_class_waits);
    tcase_add_test(tc, without_a_seat_only_the_stronger_are_offered);
    tcase_add_test(tc, nobody_is_displaced_before_the_deadline_is_near_or_after_it);
    tcase_add_test(tc, the_victim_is_of_the_lowest_class_and_arrived_last);
    tcase_add_test(tc, no_two_ever_preempt_each_other_in_turn);
    tcase_add_test(tc, nothing_bounds_a_step_without_streams_or_knowledge);
    tcase_add_test(tc, streams_keep_their_pace_while_no_first_token_needs_more);
    tcase_add_test(tc, the_share_of_prompts_grows_with_what_they_need);
    tcase_add_test(tc, a_target_bounds_the_pace_unless_streams_alone_miss_it);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
