/* test_promise.c -- when a first token would come: queues, and adapters that have to be loaded. */

#include <check.h>

#include "engine/sched/fair.h"
#include "engine/sched/promise.h"
#include "tests/run_suite.h"

static promise_outlook o;

/* 10 us a prompt token, 1 ms a step, one class; nobody waits. */
static void setup(void)
{
    o = (promise_outlook){
        .n_class = 1, .row_us = 10, .output_us = 100, .step_us = 1000, .free_seats = 4};
}

START_TEST(nothing_is_said_before_anything_is_known)
{
    o.row_us = 0;
    promise_ask ask = {.tenant = 1, .n_prompt = 100, .load_us = 5e6};
    ck_assert_double_eq(promise_ttft_us(&o, &ask), 0);
}
END_TEST

START_TEST(a_cold_adapter_is_waited_for)
{
    promise_ask warm = {.tenant = 1, .n_prompt = 100}, cold = warm;
    cold.load_us = 700000;
    ck_assert_double_eq_tol(promise_ttft_us(&o, &warm), 2000, 1e-6);
    ck_assert_double_eq_tol(promise_ttft_us(&o, &cold), 702000, 1e-6);
    /* It is loaded while others' prompts are computed: the longer of the two counts. */
    o.begun_us[0] = 400000;
    ck_assert_double_eq_tol(promise_ttft_us(&o, &warm), 402000, 1e-6);
    ck_assert_double_eq_tol(promise_ttft_us(&o, &cold), 702000, 1e-6);
    o.begun_us[0] = 900000;
    ck_assert_double_eq_tol(promise_ttft_us(&o, &cold), 902000, 1e-6);
    /* The refusal follows. */
    ck_assert_double_lt(promise_ttft_us(&o, &warm), promise_most_us(&o, &warm, 2000000));
    cold.load_us = 1900000;
    ck_assert_double_gt(promise_ttft_us(&o, &cold), promise_most_us(&o, &cold, 2000000));
}
END_TEST

START_TEST(room_on_the_device_is_waited_for_by_cold_ones_alone)
{
    promise_ask warm = {.tenant = 1, .n_prompt = 100}, cold = warm;
    cold.load_us = 20000;
    o.fetch_us = 3e6;
    ck_assert_double_eq_tol(promise_ttft_us(&o, &warm), 2000, 1e-6);
    ck_assert_double_eq_tol(promise_ttft_us(&o, &cold), 3002000, 1e-6);
}
END_TEST

/* Tenant 1 has 3 ms of work waiting, tenant 2 a flood of a second; every seat is taken. */
static void crowd(void)
{
    o.free_seats = 0;
    o.n_waiting = 51;
    o.quantum_us = 5000;
    o.n_tenant = 2;
    o.id[0] = 1;
    o.id[1] = 2;
    o.tenant[0] = (promise_tenant){.work_us = {3000}, .n = {1}};
    o.tenant[1] = (promise_tenant){.work_us = {1e6F}, .n = {50}};
}

/* Else what those who never wait find would pass for what a queue does. */
START_TEST(who_waits_is_told_apart_from_who_does_not)
{
    crowd();
    promise_ask mine = {.tenant = 1, .n_prompt = 100}, new = {.tenant = 3, .n_prompt = 100};
    ck_assert(promise_waits(&o, &mine) && promise_waits(&o, &new));
    o.free_seats = o.n_waiting + 1;
    ck_assert(!promise_waits(&o, &mine) && !promise_waits(&o, &new));
    o.crowded = true;
    ck_assert(promise_waits(&o, &mine) && !promise_waits(&o, &new));
}
END_TEST

/* Seats are free for those alone who have no more than their share. */
START_TEST(where_streams_keep_their_pace_the_flood_waits_and_others_do_not)
{
    crowd();
    o.free_seats = o.n_waiting + 1;
    o.crowded = true;
    promise_ask flood = {.tenant = 2, .n_prompt = 100}, new = {.tenant = 3, .n_prompt = 100};
    ck_assert_double_eq_tol(promise_ttft_us(&o, &flood), 1e6 + 3000 + 2000, 1);
    ck_assert_double_eq_tol(promise_ttft_us(&o, &new), 2000, 1e-6);
}
END_TEST

START_TEST(a_flood_of_others_counts_as_far_as_it_goes_first)
{
    crowd();
    promise_ask mine = {.tenant = 1, .n_prompt = 100}, new = {.tenant = 3, .n_prompt = 100};
    ck_assert_double_eq_tol(promise_ttft_us(&o, &mine), 3000 + (3000 + 5000) + 2000, 1e-6);
    ck_assert_double_eq_tol(promise_ttft_us(&o, &new), 5000 + 5000 - 2000 + 2000, 1e-6);
    promise_ask flood = {.tenant = 2, .n_prompt = 100}; /* who makes it waits for it */
    ck_assert_double_eq_tol(promise_ttft_us(&o, &flood), 1e6 + 3000 + 2000, 1);
    o.free_seats = o.n_waiting + 1; /* a seat for each: nobody waits */
    ck_assert_double_eq_tol(promise_ttft_us(&o, &flood), 2000, 1e-6);
}
END_TEST

START_TEST(a_flow_waits_by_the_share_that_it_had)
{
    crowd();
    promise_ask ask = {.tenant = 1, .n_prompt = 100};
    o.tenant[0].share[0] = 0.01F;
    ck_assert_double_eq_tol(promise_ttft_us(&o, &ask), 300000 + 2000, 1);
    o.tenant[0].share[0] = 0.00001F; /* no share is taken for less than a five-hundredth */
    ck_assert_double_eq_tol(promise_ttft_us(&o, &ask), 1500000 + 2000, 1);
    o.tenant[0].share[0] = 0.9F; /* the later of the two estimates counts */
    ck_assert_double_eq_tol(promise_ttft_us(&o, &ask), 11000 + 2000, 1e-6);
}
END_TEST

START_TEST(work_of_lower_classes_is_not_waited_for)
{
    crowd();
    o.n_class = 2;
    o.rank[1] = 1;
    o.tenant[0].work_us[1] = 70000;
    o.tenant[1].work_us[1] = 1e6F;
    promise_ask urgent = {.tenant = 1, .n_prompt = 100}, later = {.tenant = 1, .slo = 1};
    ck_assert_double_eq_tol(promise_ttft_us(&o, &urgent), 11000 + 2000, 1e-6);
    ck_assert_double_eq_tol(promise_ttft_us(&o, &later), 73000 + 78000 + 1000, 1e-6);
    o.begun_us[1] = 400; /* nor is what a lower class has begun */
    ck_assert_double_eq_tol(promise_ttft_us(&o, &urgent), 11000 + 2000, 1e-6);
    ck_assert_double_eq_tol(promise_ttft_us(&o, &later), 73000 + 78000 + 1000 + 400, 1e-6);
}
END_TEST

START_TEST(a_part_of_the_target_is_kept)
{
    promise_ask ask = {.tenant = 1, .n_prompt = 100, .n_output = 1000};
    ck_assert_double_eq_tol(promise_most_us(&o, &ask, 2000000), 1600000, 1e-6);
}
END_TEST

/* A request of mean cost takes 20 ms here. */
START_TEST(where_its_flow_has_a_queue_who_asks_for_much_is_refused_sooner)
{
    crowd();
    o.job_us = 20000;
    promise_ask small = {.tenant = 2, .n_prompt = 100, .n_output = 90}, mean = small, large = small;
    mean.n_output = 190;
    large.n_output = 4000;
    ck_assert_double_eq_tol(promise_most_us(&o, &small, 2000000), 1600000, 1e-6);
    ck_assert_double_eq_tol(promise_most_us(&o, &mean, 2000000), 800000, 1e-6);
    ck_assert_double_eq_tol(promise_most_us(&o, &large, 2000000), 400000, 1e-6);
    o.fetch_us = 1; /* room for adapters is short, not time */
    ck_assert_double_eq_tol(promise_most_us(&o, &large, 2000000), 1600000, 1e-6);
    o.fetch_us = 0;
    large.tenant = 1; /* one that waits is no queue */
    ck_assert_double_eq_tol(promise_most_us(&o, &large, 2000000), 1600000, 1e-6);
    large.tenant = 3;
    ck_assert_double_eq_tol(promise_most_us(&o, &large, 2000000), 1600000, 1e-6);
}
END_TEST

/* fair.c tells how long adapters are waited for, as long as they wait for room. */
START_TEST(the_outlook_tells_of_room_that_is_short)
{
    fair_config c = {.n_class = 1, .cap = 16, .ageing_us = 60000000};
    c.classes[0] = (fair_class){.weight = 1, .ttft_us = 1000000};
    fair *f = fair_create(&c);
    ck_assert_ptr_nonnull(f);
    fair_set_prices(f, 10, 100, 1000);
    int64_t now = 1000000;
    int picked[4];
    for (int i = 0; i < 40; i++) { /* each adapter takes 400 ms from the first demand to the seat */
        fair_job job = {.who = &now,
                        .tenant = 1,
                        .adapter = (uint64_t)i + 1,
                        .weight = 1,
                        .arrived_us = now,
                        .deadline_us = now + 1000000,
                        .prompt = 10,
                        .output = 10};
        int t = fair_enter(f, &job, now);
        fair_block(f, t, now);
        now += 200000;
        (void)fair_pick(f, now, 4, picked);
        fair_publish(f, &o, now);
        if (i == 39) {
            ck_assert_double_gt(o.fetch_us, 250000);
            ck_assert_double_lt(o.fetch_us, 400001);
        }
        now += 200000;
        fair_seat(f, t, now);
        fair_leave(f, t, now);
        fair_publish(f, &o, now);
        ck_assert_double_eq(o.fetch_us, 0); /* nobody waits for one */
    }
    fair_destroy(f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("promise");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, who_waits_is_told_apart_from_who_does_not);
    tcase_add_test(tc, nothing_is_said_before_anything_is_known);
    tcase_add_test(tc, a_cold_adapter_is_waited_for);
    tcase_add_test(tc, room_on_the_device_is_waited_for_by_cold_ones_alone);
    tcase_add_test(tc, where_streams_keep_their_pace_the_flood_waits_and_others_do_not);
    tcase_add_test(tc, a_flood_of_others_counts_as_far_as_it_goes_first);
    tcase_add_test(tc, a_flow_waits_by_the_share_that_it_had);
    tcase_add_test(tc, work_of_lower_classes_is_not_waited_for);
    tcase_add_test(tc, a_part_of_the_target_is_kept);
    tcase_add_test(tc, where_its_flow_has_a_queue_who_asks_for_much_is_refused_sooner);
    tcase_add_test(tc, the_outlook_tells_of_room_that_is_short);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
