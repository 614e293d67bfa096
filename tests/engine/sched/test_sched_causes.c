/* test_sched_causes.c -- what the engine tells the requests' clocks: each cause, brought about over
 * the fake model (sched_rig.h), is the one that the request ends with.
 *
 * Time passes as the test wants (--wrap in CMakeLists.txt): a microsecond with each look at the
 * clock, and what the model naps.  Waits that end by the real clock end at once, and are repeated.
 */
#include <stdatomic.h>
#include <stdint.h>

int64_t __wrap_clock_now_us(void);

static atomic_llong passed = 1000000;

int64_t __wrap_clock_now_us(void)
{
    return atomic_fetch_add(&passed, 1);
}

#define RIG_CLOCK(us) atomic_fetch_add(&passed, (us))

#include "tests/engine/sched/sched_rig.h"
#include "tests/run_suite.h"

/* Its first token, or its pace, is late whatever happens. */
static client *doomed(int id, int n_prompt, int max_tokens, bool first)
{
    client *c = make(id, n_prompt, max_tokens);
    if (first) c->rq.ttft_deadline_us = c->rq.arrived_us + 1;
    if (!first) c->rq.tpot_target_us = 1;
    return c;
}

static void expect(const client *c, miss_cause why)
{
    ck_assert_msg(c->rq.missed.why == why, "it was '%s', not '%s'",
                  miss_cause_name((int)c->rq.missed.why), miss_cause_name((int)why));
}

START_TEST(a_seat_that_others_have_is_the_queue)
{
    setting st = {.max_rows = 64, .max_seqs = 1, .n_pages = 100};
    rig *r = start(&st);
    r->m.row_us = 2000;
    gate(r, true, 0);
    client *a = make(1, 8, 24);
    submit(r, a);
    await_step(r, 1);
    client *b = doomed(2, 2, 2, true);
    submit(r, b);
    gate(r, false, 0);
    finish_well(a);
    finish_well(b);
    expect(a, MISS_NONE);
    expect(b, MISS_QUEUE);
    drop(a);
    drop(b);
    (void)stop(r);
}
END_TEST

static atomic_int asked;

/* After the first look, loads took long, and nine tenths of it the disk. */
static void spent(void *self, int64_t *disk_us, int64_t *load_us)
{
    (void)self;
    bool later = atomic_fetch_add(&asked, 1) > 0;
    *disk_us = later ? 900 * 1000000LL : 0;
    *load_us = later ? 1000 * 1000000LL : 0;
}

/* _i 1: loaders say that it was the disk. */
START_TEST(free_seats_without_the_adapter_are_its_load)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100, .busy = 50};
    rig *r = start(&st);
    atomic_store(&asked, 0);
    r->busy_us = 4000;
    if (_i == 1) r->source.spent = spent;
    client *c = doomed(1, 2, 2, true);
    c->rq.adapter_id = 1;
    submit(r, c);
    finish_well(c);
    expect(c, _i ? MISS_STORAGE : MISS_ADAPTER_LOAD);
    drop(c);
    (void)stop(r);
}
END_TEST

/* A step that the model knows to be short takes 150 ms. */
START_TEST(a_step_longer_than_is_known_is_the_machine)
{
    setting st = {.max_rows = 64, .max_seqs = 4, .n_pages = 100};
    rig *r = start(&st);
    gate(r, true, 15);
    client *c = doomed(1, 8, 24, false);
    submit(r, c);
    await_step(r, 16);
    nap(150000);
    gate(r, false, 0);
    finish_well(c);
    expect(c, MISS_MACHINE);
    ck_assert_int_ge(c->rq.times.clock.us[MISS_MACHINE], 100000);
    drop(c);
    (void)stop(r);
}
END_TEST

START_TEST(a_seat_taken_away_is_preemption)
{
    setting st = {.max_rows = 64, .max_seqs = 1, .n_pages = 100};
    rig *r = start(&st);
    r->m.row_us = 2000;
    client *low = doomed(1, 20, 10, false), *high = make(50, 40, 20);
    low->rq.slo_class = 2;
    gate(r, true, 5);
    submit(r, low);
    await_step(r, 6);
    submit(r, high);
    gate(r, false, 0);
    finish_well(high);
    finish_well(low);
    ck_assert_int_eq(low->rq.times.n_preempted, 1);
    expect(low, MISS_PREEMPTION);
    drop(low);
    drop(high);
    (void)stop(r);
}
END_TEST

START_TEST(copies_of_pages_are_swap)
{
    copy_us = 20000;
    setting st = {
        .max_rows = 64, .max_seqs = 8, .n_pages = 14, .swap = 100, .preemption = PREEMPT_SWAP};
    rig *r = start(&st);
    client *low = doomed(1, 20, 24, false), *high = make(50, 40, 4);
    low->rq.slo_class = 2;
    gate(r, true, 16);
    submit(r, low);
    await_step(r, 17);
    submit(r, high);
    gate(r, false, 0);
    finish_well(high);
    finish_well(low);
    expect(low, MISS_SWAP);
    drop(low);
    drop(high);
    ck_assert_uint_eq(stop(r).n_swapped_in, 1);
    copy_us = 0;
}
END_TEST

START_TEST(who_runs_while_the_device_fails_is_told_restart)
{
    setting st = {.max_rows = 64, .max_seqs = 1, .n_pages = 100};
    rig *r = start(&st);
    gate(r, true, 0);
    client *a = make(1, 8, 6), *b = doomed(2, 8, 2, true);
    submit(r, a);
    await_step(r, 1);
    submit(r, b);
    r->m.fail = 1;
    r->m.refuse = 3; /* pauses of 1, 2 and 4 ms and more of the test's */
    gate(r, false, 0);
    ck_assert_int_eq(collect(a), FINISH_ERROR);
    finish_well(b);
    expect(a, MISS_RESTART);
    ck_assert_int_ne(b->rq.missed.why, MISS_NONE);
    drop(a);
    drop(b);
    (void)stop(r);
}
END_TEST

/* A stream that was alone for a while, then has seven of another class beside it. */
START_TEST(rows_beside_a_stream_are_told_with_their_class)
{
    setting st = {.max_rows = 64, .max_seqs = 8, .n_pages = 200};
    rig *r = start(&st);
    r->m.row_us = 1000;
    client *c = doomed(1, 4, 24, false), *other[7];
    gate(r, true, 10);
    submit(r, c);
    await_step(r, 11);
    for (int i = 0; i < 7; i++) {
        other[i] = make(10 + i, 4, 20);
        other[i]->rq.slo_class = 2;
        submit(r, other[i]);
    }
    gate(r, false, 0);
    finish_well(c);
    expect(c, MISS_DECODE_STEPS);
    ck_assert_int_eq(c->rq.missed.beside, 2);
    for (int i = 0; i < 7; i++) {
        finish_well(other[i]);
        drop(other[i]);
    }
    drop(c);
    (void)stop(r);
}
END_TEST

/* Telemetry has each under its cause; what is refused at the door, too. */
START_TEST(every_miss_is_counted_once)
{
    setting st = {.max_rows = 64, .max_seqs = 1, .n_pages = 100, .max_queued = 3};
    rig *r = start(&st);
    err e;
    client *c[5];
    gate(r, true, 0);
    for (int i = 0; i < 5; i++) {
        c[i] = doomed(i, 4, 3, i % 2);
        if (i == 2) bar(c[i], true); /* which is nobody's fault */
        if (i < 4) submit(r, c[i]);
        if (i == 0) await_step(r, 1);
    }
    ck_assert_int_eq(request_prepare(&c[4]->rq, NULL), ERR_NONE);
    ck_assert_int_eq(sched_submit(r->sc, &c[4]->rq, &e), ERR_BUSY);
    expect(c[4], MISS_QUEUE);
    gate(r, false, 0);
    uint64_t named[MISS_CAUSES] = {[MISS_QUEUE] = 1};
    for (int i = 0; i < 4; i++) {
        finish_well(c[i]);
        named[c[i]->rq.missed.why]++;
    }
    for (int i = 0; i < 5; i++) drop(c[i]);
    telemetry_class t;
    telemetry_class_get(sched_telemetry(r->sc), 0, &t);
    ck_assert_uint_eq(t.missed[TARGET_BOTH], 5);
    ck_assert_uint_eq(named[MISS_NONE], 0);
    ck_assert_mem_eq(t.cause, named, sizeof(named));
    (void)stop(r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sched_causes");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_seat_that_others_have_is_the_queue);
    tcase_add_loop_test(tc, free_seats_without_the_adapter_are_its_load, 0, 2);
    tcase_add_test(tc, a_step_longer_than_is_known_is_the_machine);
    tcase_add_test(tc, a_seat_taken_away_is_preemption);
    tcase_add_test(tc, copies_of_pages_are_swap);
    tcase_add_test(tc, who_runs_while_the_device_fails_is_told_restart);
    tcase_add_test(tc, rows_beside_a_stream_are_told_with_their_class);
    tcase_add_test(tc, every_miss_is_counted_once);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
