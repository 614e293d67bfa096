/* test_pace.c -- how much moves in a step: counted, not timed. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include <check.h>

#include "adapters/residency/pace.h"
#include "tests/run_suite.h"

enum { MB = 1000 * 1000 };

static pace p;

/* 1,000 bytes in a microsecond. */
static void open_pace(int share)
{
    pace_init(&p, share);
    for (int i = 0; i < 200; i++) pace_moved(&p, MB, 1000);
}

static int pieces(uint64_t bytes, bool hint)
{
    int n = 0;
    while (n < 1000 && pace_try(&p, bytes, hint)) n++;
    return n;
}

START_TEST(test_budget)
{
    open_pace(50);
    ck_assert_int_eq(pieces(MB, false), 1000); /* no step yet */
    pace_step(&p, 10000, 20000);               /* 10 ms: 10 MB */
    ck_assert_int_eq(pieces(MB, false), 10);
    ck_assert_int_eq(pieces(1, false), 0);
    pace_step(&p, 10000, 20000);
    ck_assert_int_eq(pieces(MB, false), 10); /* each step anew */
    pace_step(&p, 10000, 20000);
    pace_step(&p, 10000, 20000);
    ck_assert_int_eq(pieces(MB, false), 10); /* and nothing is saved up */
    pace_step(&p, 8000, -5000);              /* late already: an eighth of the step */
    ck_assert_int_eq(pieces(MB / 10, false), 10);
    pace_step(&p, 0, -5000); /* something always moves */
    ck_assert_int_eq(pieces(MB, false), 1);
    pace_step(&p, 0, INFINITY);
    ck_assert_int_eq(pieces(MB, false), 1000);
    pace_clear(&p);
}
END_TEST

START_TEST(test_debt)
{
    open_pace(50);
    pace_step(&p, 10000, 20000);
    ck_assert(pace_try(&p, 25 * MB, false)); /* a piece is not cut */
    pace_step(&p, 10000, 20000);
    ck_assert(!pace_try(&p, 1, false)); /* -5 */
    pace_step(&p, 10000, 20000);
    ck_assert_int_eq(pieces(MB, false), 5);
    pace_step(&p, 10000, 20000);
    ck_assert(pace_try(&p, 1000 * MB, false));
    pace_step(&p, 10000, INFINITY); /* nobody was hurt */
    pace_step(&p, 10000, 20000);
    ck_assert_int_eq(pieces(MB, false), 10);
    pace_clear(&p);
}
END_TEST

START_TEST(test_hints_leave_half)
{
    open_pace(50);
    pace_step(&p, 10000, 20000);
    ck_assert_int_eq(pieces(MB, true), 5);
    ck_assert_int_eq(pieces(MB, false), 5);
    pace_clear(&p);
}
END_TEST

START_TEST(test_follows_the_rate)
{
    open_pace(50);
    for (int i = 0; i < 200; i++) pace_moved(&p, MB, 4000);
    pace_step(&p, 10000, 20000);
    int n = pieces(MB / 4, false); /* the rate is a hair above */
    ck_assert(n == 10 || n == 11);
    for (int i = 0; i < 200; i++) pace_moved(&p, MB, 500);
    pace_step(&p, 10000, 20000);
    n = pieces(2 * MB, false);
    ck_assert(n == 10 || n == 11);
    pace_counts c;
    pace_get(&p, &c);
    ck_assert_double_eq_tol(c.rate, 2e9, 1e7);
    ck_assert_uint_ge(c.budget, 19 * MB);
    pace_clear(&p);
}
END_TEST

START_TEST(test_no_bound)
{
    open_pace(0);
    pace_step(&p, 10000, -1);
    ck_assert_int_eq(pieces(MB, true), 1000);
    pace_clear(&p);
}
END_TEST

static atomic_bool has_three;

static void *take_three(void *arg)
{
    for (int i = 0; i < 3; i++) pace_take(&p, 30 * MB, false);
    atomic_store(&has_three, true);
    return arg;
}

static pthread_t begin_three(int64_t patience_us)
{
    pthread_t t;
    open_pace(50);
    p.patience_us = patience_us;
    pace_step(&p, 10000, 20000);
    ck_assert_int_eq(pthread_create(&t, NULL, take_three, NULL), 0);
    return t;
}

/* Nothing but a step wakes it: it would wait for an hour. */
START_TEST(test_steps_wake)
{
    pace_counts c = {0};
    pthread_t t = begin_three(3600LL * 1000000);
    while (c.n_waits == 0) pace_get(&p, &c);
    ck_assert(!atomic_load(&has_three));
    while (!atomic_load(&has_three)) pace_step(&p, 10000, 20000);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    pace_clear(&p);
}
END_TEST

/* An engine that says nothing any more holds nobody up: the second and the third
 * piece go when patience ends. */
START_TEST(test_patience_ends)
{
    pace_counts c;
    pthread_t t = begin_three(1000);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    pace_get(&p, &c);
    ck_assert_uint_eq(c.n_waits, 2);
    pace_clear(&p);
}
END_TEST

enum { STEP_US = 1800 * 1000000, PART_US = STEP_US / 100 * PACE_TURN };

static void *look_three_times(void *arg)
{
    pace_turn t = {0};
    int64_t busy_us = 2LL * PART_US; /* of before the step */
    pace_turn_wait(&p, &t, busy_us);
    pace_turn_wait(&p, &t, busy_us + *(int64_t *)arg);
    pace_turn_wait(&p, &t, busy_us + *(int64_t *)arg);
    return arg;
}

static pthread_t begin_turn(int64_t *had_us)
{
    pthread_t t;
    open_pace(50);
    p.patience_us = 3600LL * 1000000;
    p.spare = 0;
    pace_step(&p, STEP_US, 20000);
    ck_assert_int_eq(pthread_create(&t, NULL, look_three_times, had_us), 0);
    return t;
}

/* Who has had less than its part of the step does not wait; nothing else would wake it here. */
START_TEST(test_a_turn_is_a_part_of_the_step)
{
    int64_t had_us = PART_US - 1;
    pace_counts c;
    ck_assert_int_eq(pthread_join(begin_turn(&had_us), NULL), 0);
    pace_get(&p, &c);
    ck_assert_uint_eq(c.n_waits, 0);
    pace_clear(&p);
}
END_TEST

/* Who has had it waits, once: the next step has a part of its own. */
START_TEST(test_a_turn_waits_for_the_next_step)
{
    int64_t had_us = PART_US;
    pace_counts c = {0};
    pthread_t t = begin_turn(&had_us);
    while (c.n_waits == 0) pace_get(&p, &c);
    pace_step(&p, STEP_US, 20000);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    pace_get(&p, &c);
    ck_assert_uint_eq(c.n_waits, 1);
    pace_clear(&p);
}
END_TEST

/* An engine that says nothing holds nobody up for longer than two steps, and one that has no
 * bound holds up nobody. */
START_TEST(test_a_turn_ends)
{
    int64_t had_us = PART_US;
    pace_counts c = {0};
    pthread_t t = begin_turn(&had_us);
    while (c.n_waits == 0) pace_get(&p, &c);
    pace_step(&p, 0, INFINITY);
    ck_assert_int_eq(pthread_join(t, NULL), 0);
    pace_turn own = {0};
    p.spare = 0;
    pace_step(&p, 1000, 20000);
    pace_turn_wait(&p, &own, 5);
    pace_turn_wait(&p, &own, 5 + 1000); /* no step comes */
    pace_clear(&p);
}
END_TEST

/* Turns beyond the first that a thread has in one step; the last one is waited for. */
static int turns_saved_up(void)
{
    pace_turn t = {0};
    pace_counts before, c;
    int n = 0;
    pace_get(&p, &before);
    pace_turn_wait(&p, &t, 1);
    for (int64_t busy_us = 1;; n++) {
        pace_turn_wait(&p, &t, busy_us += 1000);
        pace_get(&p, &c);
        if (c.n_waits > before.n_waits) return n;
    }
}

/* Turns are saved up, one in many steps and a few at the most, and taken one by one. */
START_TEST(test_turns_are_saved_up)
{
    open_pace(50);
    pace_step(&p, 1000, 20000);
    ck_assert_int_eq(turns_saved_up(), PACE_SPARE_MAX);
    for (int i = 0; i < 3 * PACE_SPARE_STEPS; i++) pace_step(&p, 1000, 20000);
    ck_assert_int_eq(turns_saved_up(), 3);
    for (int i = 0; i < 100 * PACE_SPARE_STEPS; i++) pace_step(&p, 1000, 20000);
    ck_assert_int_eq(turns_saved_up(), PACE_SPARE_MAX);
    pace_step(&p, 1000, INFINITY);
    pace_step(&p, 1000, 20000);
    ck_assert_int_eq(turns_saved_up(), 0);
    pace_clear(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pace");
    TCase *tc = tcase_create("pace");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_budget);
    tcase_add_test(tc, test_debt);
    tcase_add_test(tc, test_hints_leave_half);
    tcase_add_test(tc, test_follows_the_rate);
    tcase_add_test(tc, test_no_bound);
    tcase_add_test(tc, test_steps_wake);
    tcase_add_test(tc, test_patience_ends);
    tcase_add_test(tc, test_a_turn_is_a_part_of_the_step);
    tcase_add_test(tc, test_a_turn_waits_for_the_next_step);
    tcase_add_test(tc, test_a_turn_ends);
    tcase_add_test(tc, test_turns_are_saved_up);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
