/* test_cause.c -- one life for each cause, told to a clock as the scheduler tells it. */
#include <string.h>

#include <check.h>

#include "engine/watch/cause.h"
#include "tests/run_suite.h"

enum { MS = 1000, N = MISS_CAUSES };

/* ------------------------------------------------------------------------ the rule -- */

START_TEST(the_delay_that_holds_the_most_is_the_cause)
{
    for (int k = MISS_NONE + 1; k < N; k++) {
        int64_t us[N];
        for (int i = 0; i < N; i++) us[i] = 100 * MS;
        us[k]++;
        ck_assert_int_eq(cause_pick(us, 100 * MS, MISS_PROMPT), k);
    }
}
END_TEST

START_TEST(what_it_needs_itself_comes_out_of_the_target_first)
{
    static const struct {
        int64_t own, target, queue;
        miss_cause is, named;
    } cases[] = {
        {400, 500, 150, MISS_PROMPT, MISS_QUEUE},  /* most of its time, and none of it too much */
        {900, 500, 150, MISS_PROMPT, MISS_PROMPT}, /* 400 beyond the target */
        {900, 500, 150, MISS_MACHINE, MISS_MACHINE},
        {620, 500, 150, MISS_PROMPT, MISS_QUEUE}, /* 120 beyond */
        {501, 500, 0, MISS_PROMPT, MISS_PROMPT},
        {0, 500, 0, MISS_MACHINE, MISS_MACHINE}, /* nobody knows: never none */
        {100, 0, 1, MISS_PROMPT, MISS_PROMPT},   /* a class without a target that failed */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int64_t us[N] = {[MISS_NONE] = cases[i].own, [MISS_QUEUE] = cases[i].queue};
        ck_assert_msg(cause_pick(us, cases[i].target, cases[i].is) == cases[i].named, "case %zu",
                      i);
    }
    /* What it has too much adds to what is so called already. */
    int64_t us[N] = {[MISS_NONE] = 600, [MISS_MACHINE] = 60, [MISS_QUEUE] = 150};
    ck_assert_int_eq(cause_pick(us, 500, MISS_MACHINE), MISS_MACHINE);
}
END_TEST

/* ---------------------------------------------------------------------------- lives -- */

static cause_sums sums;
static cause_clock clock_of;
static int64_t now;

/* Arrived at 0; with the scheduler at 2 ms, 1 of them for its limits; seen by the engine at 3. */
static void arrive(bool adapter)
{
    memset(&sums, 0, sizeof(sums));
    for (int k = 0; k < N; k++) sums.us[k] = 77777; /* before its time */
    now = 3 * MS;
    cause_begin(&clock_of, &sums, 0, 2 * MS, 1 * MS, 0);
    cause_enter(&clock_of, &sums, now, adapter);
}

static void pass(int64_t ms, miss_cause grows)
{
    now += ms * MS;
    if (grows) sums.us[grows] += ms * MS;
}

/* A step of a row of ours and rows of others, by class. */
static void step(int64_t own_ms, int64_t others_ms, int class)
{
    pass(own_ms + others_ms, MISS_DECODE_STEPS);
    cause_own(&clock_of, own_ms * MS);
    sums.rows_us[1] += own_ms * MS;
    sums.rows_us[class] += others_ms * MS;
}

static void go(cause_state to)
{
    cause_go(&clock_of, &sums, now, to);
}

/* Of class 1. */
static void first(int64_t target_ms)
{
    cause_first(&clock_of, &sums, now, 1, now - target_ms * MS, target_ms * MS);
}

static void expect(const cause_life *life, miss_cause why, int beside)
{
    cause_end(&clock_of, &sums, now, 1);
    cause_verdict v = cause_judge(&clock_of, life);
    ck_assert_str_eq(miss_cause_name(v.why), miss_cause_name(why));
    ck_assert_int_eq(v.beside, beside);
}

static const cause_life late = {.began = true, .ttft_late_us = 1};
static const cause_life slow = {.began = true, .tpot_late_us = 1, .decode_target_us = 40 * MS};

START_TEST(the_wait_for_a_seat_is_the_queue)
{
    arrive(true);
    pass(500, MISS_NONE);
    go(CAUSE_RUNS);
    step(20, 5, 2);
    first(100);
    ck_assert_int_eq(clock_of.us[MISS_QUEUE], 0); /* another phase */
    expect(&late, MISS_QUEUE, -1);
}
END_TEST

START_TEST(limits_are_what_was_lost_in_them)
{
    memset(&sums, 0, sizeof(sums));
    cause_begin(&clock_of, &sums, 0, 700 * MS, 690 * MS, 0);
    now = 710 * MS;
    go(CAUSE_RUNS);
    first(100);
    expect(&late, MISS_LIMITS, -1);
}
END_TEST

START_TEST(a_worker_that_does_not_run_is_the_machine)
{
    memset(&sums, 0, sizeof(sums));
    cause_begin(&clock_of, &sums, 0, 700 * MS, 10 * MS, 600 * MS);
    now = 710 * MS;
    go(CAUSE_RUNS);
    ck_assert_int_eq(clock_of.us[MISS_NONE], 90 * MS);
    first(100);
    expect(&late, MISS_MACHINE, -1);
}
END_TEST

/* Free seats mean that it waited for its adapter; the base has none. */
START_TEST(an_adapter_is_waited_for_while_seats_are_free)
{
    for (int adapter = 0; adapter < 2; adapter++) {
        arrive(adapter);
        pass(100, MISS_NONE);
        pass(300, MISS_ADAPTER_LOAD);
        go(CAUSE_RUNS);
        ck_assert_int_eq(clock_of.us[MISS_ADAPTER_LOAD], adapter * 300 * MS);
        first(50);
        expect(&late, adapter ? MISS_ADAPTER_LOAD : MISS_QUEUE, -1);
    }
    /* What was free before the engine has seen it is none of its. */
    memset(&sums, 0, sizeof(sums));
    cause_begin(&clock_of, &sums, 0, 0, 0, 0);
    now = 300 * MS;
    sums.us[MISS_ADAPTER_LOAD] = 300 * MS;
    cause_enter(&clock_of, &sums, now, true);
    ck_assert_int_eq(clock_of.us[MISS_QUEUE], 300 * MS);
}
END_TEST

START_TEST(loads_that_wait_for_the_disk_are_storage)
{
    static const struct {
        int64_t disk_ms, load_ms;
        miss_cause named;
    } cases[] = {
        {0, 0, MISS_ADAPTER_LOAD},    /* nothing was loaded: no room */
        {40, 100, MISS_ADAPTER_LOAD}, /* two fifths of 300 */
        {270, 300, MISS_STORAGE},
        {900, 1000, MISS_STORAGE},   /* its own, and others' before it */
        {45, 50, MISS_ADAPTER_LOAD}, /* the rest was a wait for room */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        arrive(true);
        clock_of.disk_us = 5 * MS;
        clock_of.load_us = 9 * MS;
        pass(300, MISS_ADAPTER_LOAD);
        go(CAUSE_RUNS);
        cause_split_loads(&clock_of, (5 + cases[i].disk_ms) * MS, (9 + cases[i].load_ms) * MS);
        ck_assert_int_eq(clock_of.us[MISS_STORAGE] + clock_of.us[MISS_ADAPTER_LOAD], 300 * MS);
        first(50);
        expect(&late, cases[i].named, -1);
    }
}
END_TEST

START_TEST(a_prompt_that_takes_too_long_is_its_own)
{
    arrive(false);
    pass(20, MISS_NONE);
    go(CAUSE_RUNS);
    for (int i = 0; i < 10; i++) step(30, 2, 0);
    first(200);
    expect(&late, MISS_PROMPT, -1);
}
END_TEST

/* A step that it sat out is others'. */
START_TEST(rows_beside_it_are_told_with_their_class)
{
    arrive(false);
    go(CAUSE_RUNS);
    first(100);
    for (int i = 0; i < 4; i++) {
        step(8, 3, 0);
        step(0, 11, 2);
    }
    expect(&slow, MISS_DECODE_STEPS, 2);
    arrive(false);
    go(CAUSE_RUNS);
    for (int i = 0; i < 4; i++) step(8, 22, 0);
    first(100);
    expect(&late, MISS_DECODE_STEPS, 0);
}
END_TEST

/* Its own rows are no crowd, though its class has the most. */
START_TEST(its_own_rows_are_not_beside_it)
{
    arrive(false);
    go(CAUSE_RUNS);
    first(100);
    for (int i = 0; i < 4; i++) step(9, 8, 2);
    cause_life life = slow;
    life.decode_target_us = 36 * MS;
    expect(&life, MISS_DECODE_STEPS, 2);
    arrive(false);
    go(CAUSE_RUNS);
    first(100);
    step(60, 0, 1);
    expect(&life, MISS_MACHINE, -1); /* too slow even alone */
}
END_TEST

START_TEST(who_gave_way_waits_and_is_computed_again)
{
    arrive(false);
    go(CAUSE_RUNS);
    step(10, 0, 0);
    first(100);
    step(10, 5, 0);
    go(CAUSE_GAVE_WAY);
    pass(50, MISS_NONE);
    go(CAUSE_GAVE_WAY); /* its seat again, and its history */
    step(30, 0, 0);
    go(CAUSE_RUNS);
    step(10, 5, 0);
    ck_assert_int_eq(clock_of.us[MISS_PREEMPTION], 80 * MS);
    expect(&slow, MISS_PREEMPTION, -1);
}
END_TEST

START_TEST(what_all_lose_is_told_from_what_it_waits_for)
{
    static const miss_cause shared[] = {MISS_MACHINE, MISS_SWAP, MISS_RESTART};
    for (size_t i = 0; i < 3; i++) {
        for (int state = CAUSE_WAITS; state <= CAUSE_GAVE_WAY; state++) {
            arrive(true);
            go((cause_state)state);
            first(0);
            pass(200, shared[i]);
            step(10, 10, 2);
            expect(&slow, shared[i], -1);
            ck_assert_int_eq(clock_of.us[shared[i]], 200 * MS);
        }
    }
    /* Never more than there was: it came in the midst of it. */
    arrive(false);
    pass(10, MISS_NONE);
    sums.us[MISS_MACHINE] += 900 * MS;
    go(CAUSE_RUNS);
    ck_assert_int_eq(clock_of.us[MISS_MACHINE], 10 * MS);
}
END_TEST

/* All its time is somewhere, whatever was told. */
START_TEST(no_time_is_lost_or_made)
{
    uint64_t x = 1;
    for (int life = 0; life < 300; life++) {
        arrive(life % 2);
        int64_t begun = 0;
        for (int i = 0; i < 20; i++) {
            x = x * 6364136223846793005ULL + 1442695040888963407ULL;
            int what = (int)(x >> 60), ms = (int)(x >> 33) % 50;
            if (what < 8)
                step(ms / 2, ms, what % 3);
            else if (what < 14)
                pass(ms, what - 8 + MISS_SWAP < N ? (miss_cause)(what - 8 + MISS_SWAP) : MISS_NONE);
            else
                go((cause_state)(ms % 3));
            if (i == 10) {
                cause_end(&clock_of, &sums, now, 1);
                int64_t sum = 0;
                for (int k = 0; k < N; k++) sum += clock_of.us[k];
                ck_assert_int_eq(sum, now);
                first(1);
                begun = now;
            }
        }
        cause_end(&clock_of, &sums, now, 1);
        int64_t sum = 0;
        for (int k = 0; k < N; k++) {
            ck_assert_int_ge(clock_of.us[k], 0);
            sum += clock_of.us[k];
        }
        ck_assert_int_eq(sum, now - begun);
    }
}
END_TEST

/* --------------------------------------------------------------------------- verdicts -- */

START_TEST(of_two_targets_the_one_counts_that_was_missed_by_more)
{
    for (int more = 0; more < 2; more++) {
        arrive(false);
        pass(500, MISS_NONE);
        go(CAUSE_RUNS);
        first(100);
        pass(200, MISS_MACHINE);
        cause_life life = {.began = true, .ttft_late_us = 400, .tpot_late_us = 399 + 2 * more};
        expect(&life, more ? MISS_MACHINE : MISS_QUEUE, -1);
    }
    arrive(false);
    cause_life kept = {.began = true, .ttft_late_us = 0, .tpot_late_us = -5};
    expect(&kept, MISS_NONE, -1);
}
END_TEST

/* A prompt that is only scored has no first token: its end is judged. */
START_TEST(without_a_first_token_the_whole_life_is_judged)
{
    arrive(false);
    pass(500, MISS_NONE);
    cause_life life = {.ttft_late_us = 1, .ttft_target_us = 100 * MS};
    expect(&life, MISS_QUEUE, -1);
}
END_TEST

START_TEST(who_fails_is_told_by_what_failed)
{
    static const struct {
        err_code code;
        bool unloaded;
        miss_cause named;
    } cases[] = {
        {ERR_RESTARTING, false, MISS_RESTART},
        {ERR_DEVICE, true, MISS_RESTART},
        {ERR_INTERNAL, false, MISS_MACHINE},
        {ERR_NOMEM, true, MISS_MACHINE},
        {ERR_IO, true, MISS_STORAGE},
        {ERR_DAMAGED, true, MISS_STORAGE},
        {ERR_NOT_FOUND, true, MISS_ADAPTER_LOAD},
        {ERR_CORRUPT, true, MISS_ADAPTER_LOAD},
        {ERR_INPUT, true, MISS_PROMPT},
        {ERR_LIMIT, false, MISS_PROMPT},
        {ERR_TIMEOUT, true, MISS_QUEUE},
        {ERR_BUSY, false, MISS_QUEUE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        arrive(false);
        pass(10, MISS_NONE);
        cause_life life = {.failed = true,
                           .code = cases[i].code,
                           .unloaded = cases[i].unloaded,
                           .ttft_late_us = -100,
                           .ttft_target_us = 900 * MS};
        expect(&life, cases[i].named, -1);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cause");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, the_delay_that_holds_the_most_is_the_cause);
    tcase_add_test(tc, what_it_needs_itself_comes_out_of_the_target_first);
    tcase_add_test(tc, the_wait_for_a_seat_is_the_queue);
    tcase_add_test(tc, limits_are_what_was_lost_in_them);
    tcase_add_test(tc, a_worker_that_does_not_run_is_the_machine);
    tcase_add_test(tc, an_adapter_is_waited_for_while_seats_are_free);
    tcase_add_test(tc, loads_that_wait_for_the_disk_are_storage);
    tcase_add_test(tc, a_prompt_that_takes_too_long_is_its_own);
    tcase_add_test(tc, rows_beside_it_are_told_with_their_class);
    tcase_add_test(tc, its_own_rows_are_not_beside_it);
    tcase_add_test(tc, who_gave_way_waits_and_is_computed_again);
    tcase_add_test(tc, what_all_lose_is_told_from_what_it_waits_for);
    tcase_add_test(tc, no_time_is_lost_or_made);
    tcase_add_test(tc, of_two_targets_the_one_counts_that_was_missed_by_more);
    tcase_add_test(tc, without_a_first_token_the_whole_life_is_judged);
    tcase_add_test(tc, who_fails_is_told_by_what_failed);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
