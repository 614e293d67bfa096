/* test_fair.c -- who waits and who is next, rule by rule; no clock, no thread. */

#include <string.h>

#include <check.h>

#include "engine/sched/fair.h"
#include "tests/run_suite.h"

enum { SECOND = 1000000, CAP = 256 };

static fair *f;
static int picks[FAIR_PICKS];

static void set_up(void)
{
    fair_config c = {.n_class = 3, .cap = CAP, .ageing_us = 10 * SECOND};
    c.classes[0] = (fair_class){0, 4, SECOND / 2};
    c.classes[1] = (fair_class){1, 2, 2 * SECOND};
    c.classes[2] = (fair_class){2, 1, 60 * SECOND};
    f = fair_create(&c);
    ck_assert_ptr_nonnull(f);
}

static void tear_down(void)
{
    ck_assert(fair_check(f));
    fair_destroy(f);
}

static int enter(uint64_t tenant, int slo, int64_t arrived)
{
    fair_job j = {.tenant = tenant, .weight = 1, .slo = slo, .arrived_us = arrived};
    j.prompt = 100;
    j.output = 100;
    return fair_enter(f, &j, arrived);
}

static int enter_with(uint64_t tenant, uint64_t adapter, int64_t arrived)
{
    fair_job j = {.tenant = tenant, .adapter = adapter, .weight = 1, .arrived_us = arrived};
    j.prompt = 100;
    j.output = 100;
    return fair_enter(f, &j, arrived);
}

static int first(int64_t now)
{
    return fair_pick(f, now, 1, picks) ? picks[0] : -1;
}

/* Seated, served as expected, gone. */
static void serve(int ticket, int64_t now)
{
    fair_seat(f, ticket, now);
    fair_charge(f, ticket, 100, 100);
    fair_leave(f, ticket, now);
}

START_TEST(class_then_least_served_then_arrival)
{
    int batch = enter(1, 2, 1), late = enter(2, 0, 5), early = enter(3, 0, 4);
    ck_assert_int_eq(fair_pick(f, 10, 9, picks), 3);
    ck_assert_int_eq(picks[0], early);
    ck_assert_int_eq(picks[1], late);
    ck_assert_int_eq(picks[2], batch);
    serve(early, 10);
    int again = enter(3, 0, 6); /* served once already */
    ck_assert_int_eq(first(10), late);
    (void)again;
}
END_TEST

START_TEST(one_pick_shares_between_tenants_as_many_would)
{
    for (int i = 0; i < 20; i++) (void)enter(1, 1, i);
    int other[3];
    for (int i = 0; i < 3; i++) other[i] = enter(2, 1, 100 + i);
    ck_assert_int_eq(fair_pick(f, 200, 6, picks), 6);
    int n = 0;
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 3; k++) n += picks[i] == other[k];
    }
    ck_assert_int_eq(n, 3);
}
END_TEST

START_TEST(a_tenant_far_beyond_its_share_waits_behind_any_class_of_the_others)
{
    /* Somebody waits all the time with the counter of the beginning. */
    int anchor = enter(2, 2, 0);
    int i = 0;
    for (; i < 100; i++) {
        int t = enter(1, 0, 1);
        if (first(10) == anchor) break;
        serve(t, 10);
    }
    ck_assert_int_gt(i, 4);  /* class goes first within a quantum */
    ck_assert_int_lt(i, 30); /* and no further: classes alone would let 62 go first */
}
END_TEST

START_TEST(nobody_comes_back_with_old_credit)
{
    int x = enter(1, 0, 0);
    serve(x, 1);
    for (int i = 0; i < 50; i++) serve(enter(2, 0, 2), 3);
    int back = enter(1, 0, 10), usual = enter(2, 0, 11);
    int n1 = 0;
    for (int i = 0; i < 10; i++) { /* level: they take turns */
        int t = first(12);
        n1 += t == back;
        serve(t, 12);
        if (t == back)
            back = enter(1, 0, 20 + i);
        else
            usual = enter(2, 0, 20 + i);
    }
    ck_assert_int_eq(n1, 5);
    (void)usual;
}
END_TEST

/* The same of classes: who was not asked for long does not go before all until it is level. */
START_TEST(no_class_comes_back_with_old_credit)
{
    for (int i = 0; i < 3000; i++) serve(enter(1, 0, 0), 1);
    int batch = enter(1, 2, 10), inter = enter(1, 0, 11);
    ck_assert_int_eq(fair_pick(f, 12, 9, picks), 2);
    ck_assert_int_eq(picks[0], inter);
    ck_assert_int_eq(picks[1], batch);
}
END_TEST

/* Two tenants, weights 1 and 3, with one request of each class always waiting: who is served. */
static void serve_all(int got[2], int class_got[3])
{
    static int ticket[6];
    static uint64_t who[6];
    memset(got, 0, 2 * sizeof(*got));
    memset(class_got, 0, 3 * sizeof(*class_got));
    for (int i = -6; i < 4000; i++) {
        int t = i < 0 ? -1 : first(0), k = i < 0 ? i + 6 : 0;
        while (i >= 0 && ticket[k] != t) k++;
        who[k] = 1 + (uint64_t)k % 2;
        if (i >= 0) {
            got[who[k] - 1]++;
            class_got[k / 2]++;
            serve(t, 0);
        }
        fair_job j = {.tenant = who[k], .weight = k % 2 ? 3 : 1, .slo = k / 2};
        j.prompt = j.output = 100;
        ticket[k] = fair_enter(f, &j, 0);
    }
    for (int k = 0; k < 6; k++) fair_leave(f, ticket[k], 0);
}

START_TEST(weights_of_tenants_and_classes_divide_what_is_served)
{
    int got[2], class_got[3];
    serve_all(got, class_got);
    ck_assert_double_eq_tol((double)got[1] / got[0], 3, 0.1);
    ck_assert_double_eq_tol(class_got[0] / 4000.0, 4 / 7.0, 0.03);
    ck_assert_double_eq_tol(class_got[2] / 4000.0, 1 / 7.0, 0.03);
}
END_TEST

/* Whoever has a seat then is settled at the new price, and nothing is lost of the sums. */
START_TEST(other_weights_count_from_then_on)
{
    const fair_class turned[3] = {{0, 1, SECOND / 2}, {1, 2, 2 * SECOND}, {2, 4, 60 * SECOND}};
    int got[2], class_got[3], seated = enter(1, 0, 0), waits = enter(2, 2, 0);
    fair_seat(f, seated, 0);
    fair_charge(f, seated, 50, 10);
    fair_set_classes(f, turned);
    ck_assert(fair_check(f));
    fair_charge(f, seated, 50, 10);
    fair_leave(f, seated, 0);
    serve(waits, 0);
    ck_assert(fair_check(f));
    serve_all(got, class_got);
    ck_assert_double_eq_tol(class_got[0] / 4000.0, 1 / 7.0, 0.03);
    ck_assert_double_eq_tol(class_got[2] / 4000.0, 4 / 7.0, 0.03);
}
END_TEST

START_TEST(a_near_deadline_goes_first_and_a_missed_one_does_not)
{
    fair_set_prices(f, 100, 50, 1000);
    fair_job j = {.tenant = 1, .weight = 1, .slo = 1, .deadline_us = 2 * SECOND, .prompt = 10};
    int std = fair_enter(f, &j, 0), inter = enter(2, 0, SECOND);
    ck_assert_int_eq(first(SECOND), inter);
    ck_assert_int_eq(first(SECOND + 400000), std);
    ck_assert_int_eq(first(2 * SECOND + 1), inter);
}
END_TEST

START_TEST(a_prompt_that_cannot_meet_its_target_joins_one_class_lower)
{
    fair_set_prices(f, 100, 50, 1000);
    fair_job j = {.tenant = 1, .weight = 1, .slo = 0, .prompt = 6000}; /* 600 ms */
    int huge = fair_enter(f, &j, 0), std = enter(2, 1, 5);
    ck_assert_int_eq(fair_pick(f, 10, 9, picks), 2);
    ck_assert_int_eq(picks[0], huge); /* as old as its class now: level with it, arrived before */
    int inter = enter(3, 0, 9);
    ck_assert_int_eq(first(10), inter);
    (void)std;
}
END_TEST

/* Of two in one class the one whose tenant has a tighter target of its own is in a hurry sooner,
 * and the one with a looser target may have a longer prompt. */
START_TEST(a_tenants_own_target_is_what_its_requests_are_held_to)
{
    fair_set_prices(f, 100, 50, 1000);
    fair_job tight = {.tenant = 1, .weight = 1, .slo = 1, .prompt = 10, .arrived_us = 1000};
    tight.deadline_us = tight.arrived_us + SECOND / 10;
    int loose = enter(2, 1, 0), own = fair_enter(f, &tight, 1000);
    ck_assert_int_eq(first(50000), loose);
    ck_assert_int_eq(first(90000), own); /* the class's last third would begin at 1.3 s */
    serve(own, 90000);
    serve(loose, 90000);
    fair_job huge = {.tenant = 3, .weight = 1, .slo = 0, .prompt = 6000, .arrived_us = 0};
    huge.deadline_us = 10 * SECOND; /* 600 ms of prompt are no trouble for it */
    int patient = fair_enter(f, &huge, 100000), other = enter(4, 0, 100001);
    ck_assert_int_eq(fair_pick(f, 100002, 9, picks), 2);
    ck_assert_int_eq(picks[0], patient);
    (void)other;
}
END_TEST

/* Neither what was pre-empted nor what it pushes back begins to age anew. */
START_TEST(pre_emption_does_not_begin_the_ageing_anew)
{
    int batch = enter(1, 2, 0), behind = enter(1, 2, 1);
    fair_seat(f, batch, 4 * SECOND); /* has waited 4 s */
    fair_back(f, batch, 6 * SECOND); /* `behind` was the head for 2 s */
    int inter = enter(2, 0, 7 * SECOND);
    ck_assert_int_eq(first(12 * SECOND - 1), inter);
    ck_assert_int_eq(first(12 * SECOND + 1), batch); /* 6 s more */
    fair_seat(f, batch, 12 * SECOND);                /* and `behind` waits since 4 s */
    ck_assert_int_eq(first(14 * SECOND - 1), inter);
    ck_assert_int_eq(first(14 * SECOND + 1), behind);
    /* Who returns in front of one that is over the bound goes at once, to let it through. */
    fair_back(f, batch, 15 * SECOND);
    ck_assert_int_eq(fair_pick(f, 15 * SECOND, 9, picks), 3);
    ck_assert_int_eq(picks[0], batch);
    ck_assert_int_eq(picks[1], behind);
    ck_assert_int_eq(picks[2], inter);
}
END_TEST

/* Streams that come from other nodes arrived before they entered, so that what was pre-empted may
 * return behind some that never were the head. */
START_TEST(a_head_is_as_old_as_the_oldest_behind_it)
{
    fair_job early = {.tenant = 1, .weight = 1, .slo = 2, .prompt = 100, .output = 100};
    int batch = enter(1, 2, 2);
    fair_seat(f, batch, 9 * SECOND); /* has waited 9 s */
    early.arrived_us = 1;
    int middle = fair_enter(f, &early, 9 * SECOND);
    fair_back(f, batch, 9 * SECOND);
    early.arrived_us = 0;
    int front = fair_enter(f, &early, 9 * SECOND);
    int inter = enter(2, 0, 9 * SECOND);
    ck_assert_int_eq(first(10 * SECOND), inter);
    ck_assert_int_eq(first(10 * SECOND + 3), front);
    fair_leave(f, front, 10 * SECOND + 3);
    ck_assert_int_eq(first(10 * SECOND + 3), middle);
    fair_leave(f, middle, 10 * SECOND + 3);
    ck_assert_int_eq(first(10 * SECOND + 3), batch);
}
END_TEST

START_TEST(a_head_that_waits_too_long_goes_before_all)
{
    int batch = enter(1, 2, 0);
    ck_assert_int_eq(first(SECOND), batch);
    int inter = enter(2, 0, 9 * SECOND);
    ck_assert_int_eq(first(10 * SECOND), inter);
    ck_assert_int_eq(first(10 * SECOND + 1), batch);
    /* but one of a flow at a time: the next has not been the head for long */
    int second = enter(1, 2, 0);
    serve(batch, 11 * SECOND);
    ck_assert_int_eq(first(11 * SECOND), inter);
    (void)second;
}
END_TEST

START_TEST(others_pass_a_head_without_adapter_and_it_is_asked_for_again)
{
    int cold = enter_with(1, 7, 0), other = enter_with(1, 8, 1);
    (void)enter_with(1, 0, 2);
    ck_assert_int_eq(fair_pick(f, 5, 3, picks), 3);
    ck_assert_int_eq(picks[0], cold);
    fair_seat(f, other, 5);
    ck_assert(fair_in_use(f, 8));
    ck_assert(!fair_in_use(f, 7));
    fair_block(f, cold, 5);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(fair_pick(f, 6 + i, 3, picks), 2);
    fair_back(f, other, 9);
    ck_assert_int_eq(fair_pick(f, 9, 9, picks), 3);
    ck_assert(!fair_in_use(f, 8));
}
END_TEST

/* The order of loads is ours, not the loader's. */
START_TEST(few_adapters_are_asked_for_at_once)
{
    int t[8];
    for (int i = 0; i < 8; i++) t[i] = enter_with(1 + (uint64_t)i, 70 + (uint64_t)i, i);
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(fair_pick(f, 10 + round, 9, picks), 3);
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(picks[i], t[i]);
            fair_block(f, picks[i], 10);
        }
    }
    serve(t[1], 20); /* one came: another is asked for */
    ck_assert_int_eq(fair_pick(f, 20, 9, picks), 3);
    ck_assert_int_eq(picks[2], t[3]);
}
END_TEST

START_TEST(an_adapter_long_in_use_takes_nobody_new_while_another_starves)
{
    int hot = enter_with(1, 7, 0);
    fair_seat(f, hot, 0);
    int cold = enter_with(2, 8, SECOND), more = enter_with(1, 7, SECOND);
    ck_assert_int_eq(fair_pick(f, SECOND, 9, picks), 2);
    fair_block(f, cold, SECOND);
    ck_assert_int_eq(fair_pick(f, SECOND + 1000, 9, picks), 2);
    ck_assert_int_eq(fair_pick(f, 4 * SECOND, 9, picks), 1);
    ck_assert_int_eq(picks[0], cold);
    fair_leave(f, hot, 4 * SECOND); /* not taken up again at once either */
    ck_assert_int_eq(fair_pick(f, 4 * SECOND, 9, picks), 1);
    fair_seat(f, cold, 4 * SECOND);
    ck_assert_int_eq(fair_pick(f, 5 * SECOND, 9, picks), 1);
    ck_assert_int_eq(picks[0], more);
}
END_TEST

START_TEST(counters_end_as_what_was_used)
{
    int a = enter(1, 0, 0), b = enter(1, 1, 0);
    int64_t start = fair_served(f, a);
    fair_seat(f, a, 1);
    ck_assert_int_eq(fair_served(f, a) - start, 65536 * 300LL); /* expected */
    fair_charge(f, a, 50, 0);
    ck_assert_int_eq(fair_served(f, a) - start, 65536 * 300LL); /* until it leaves its seat */
    fair_back(f, a, 2); /* what it did not use is given back */
    ck_assert_int_eq(fair_served(f, a) - start, 65536 * 50LL);
    fair_seat(f, a, 3);
    fair_charge(f, a, 50, 7);
    fair_leave(f, a, 4);
    ck_assert_int_eq(fair_served(f, b) - start, 65536 * 114LL);
    ck_assert(fair_check(f));
}
END_TEST

START_TEST(scanning_shows_each_that_waits_once)
{
    for (int i = 0; i < 40; i++) (void)enter((uint64_t)i % 7, i % 3, i);
    for (int i = 0; i < 10; i++) fair_seat(f, first(50), 50);
    int cursor = 0, seen[CAP] = {0}, n = 0;
    for (int round = 0; round < CAP / 8; round++) {
        int tickets[8], m = fair_scan(f, &cursor, 8, tickets);
        for (int i = 0; i < m; i++) {
            ck_assert(fair_is_waiting(f, tickets[i]));
            n += seen[tickets[i]]++ == 0;
        }
    }
    ck_assert_int_eq(n, 30);
    ck_assert_int_eq(fair_waiting(f), 30);
}
END_TEST

/* An adapter that was asked for long ago: there is no room for it. */
static int make_scarce(int64_t now)
{
    int t = enter_with(90, 90, now);
    fair_block(f, t, now);
    return t;
}

static int enter_cold(uint64_t tenant, int slo, int output, int64_t arrived, int64_t deadline)
{
    fair_job j = {.tenant = tenant, .adapter = tenant, .weight = 1, .slo = slo};
    j.prompt = 100;
    j.output = output;
    j.arrived_us = arrived;
    j.deadline_us = deadline;
    return fair_enter(f, &j, arrived);
}

START_TEST(where_adapters_lack_room_short_answers_go_first)
{
    int huge = enter_cold(1, 0, 1000, 0, 0), brief = enter_cold(2, 0, 50, 1, 0);
    ck_assert_int_eq(first(2), huge);
    (void)make_scarce(2);
    int64_t now = 500000;
    ck_assert_int_ge(fair_pick(f, now, 9, picks), 2);
    int at[2] = {9, 9};
    for (int i = 0; i < 3; i++) {
        if (picks[i] == brief) at[0] = i;
        if (picks[i] == huge) at[1] = i;
    }
    ck_assert_int_lt(at[0], at[1]);
}
END_TEST

START_TEST(who_has_time_waits_for_company)
{
    int stuck = make_scarce(0), patient = enter_cold(1, 2, 50, 0, 0);
    ck_assert_int_eq(fair_pick(f, SECOND / 5, 9, picks), 1);
    ck_assert_int_eq(picks[0], stuck);
    ck_assert_int_eq(fair_pick(f, 53 * SECOND, 9, picks), 1);
    ck_assert_int_eq(fair_pick(f, 55 * SECOND, 9, picks), 2); /* nine tenths of 60 s */
    ck_assert(picks[0] == patient || picks[1] == patient);
}
END_TEST

static int enter_weighing(uint64_t tenant, double weight)
{
    fair_job j = {.tenant = tenant, .weight = weight, .prompt = 100, .output = 100};
    return fair_enter(f, &j, 0);
}

START_TEST(who_runs_with_an_adapter_shares_it)
{
    fair_job j = {.tenant = 1, .weight = 1, .adapter = 7, .prompt = 100, .output = 100};
    int one = fair_enter(f, &j, 0), two = fair_enter(f, &j, 0), alone = enter_weighing(1, 1);
    ck_assert_int_eq(fair_sharers(f, one), 1);
    fair_seat(f, one, 1);
    ck_assert_int_eq(fair_sharers(f, one), 1);
    ck_assert_int_eq(fair_sharers(f, two), 2); /* if it ran */
    fair_seat(f, two, 1);
    fair_seat(f, alone, 1);
    ck_assert_int_eq(fair_sharers(f, one), 2);
    ck_assert_int_eq(fair_sharers(f, alone), 1);
    fair_leave(f, two, 2);
    ck_assert_int_eq(fair_sharers(f, one), 1);
}
END_TEST

/* It waits behind another flow's, and nothing of it was served: chance, for all one knows. */
START_TEST(what_was_hardly_seen_is_taken_to_have_an_equal_share)
{
    static promise_outlook o;
    fair_set_prices(f, 10, 100, 1000);
    (void)enter_weighing(1, 1);
    (void)enter_weighing(2, 1);
    fair_publish(f, &o, 1);
    double at_once = (double)o.tenant[0].share[0];
    ck_assert_double_eq_tol(at_once, 1.0 / 3, 1e-3); /* of two, and what comes */
    fair_publish(f, &o, (int64_t)(2 * o.job_us));
    ck_assert_double_lt(o.tenant[0].share[0], at_once);
    ck_assert_double_gt(o.tenant[0].share[0], at_once / 2);
    fair_publish(f, &o, (int64_t)(200 * o.job_us));
    ck_assert_double_lt(o.tenant[0].share[0], at_once / 4);
}
END_TEST

/* Three seats to one; two tenants of weight 1, and one of 4 that has two. */
START_TEST(who_has_more_than_its_share_of_the_seats_is_known)
{
    int many[3], own[2];
    for (int i = 0; i < 3; i++) fair_seat(f, many[i] = enter_weighing(1, 1), 1);
    int few = enter_weighing(2, 1);
    ck_assert(fair_is_rich(f, many[0]));
    ck_assert(!fair_is_rich(f, few)); /* waiting is no seat */
    for (int i = 0; i < 2; i++) fair_seat(f, own[i] = enter_weighing(3, 4), 1);
    ck_assert(!fair_is_rich(f, own[0]));
    for (int i = 0; i < 3; i++) fair_leave(f, many[i], 2);
    ck_assert(fair_is_rich(f, own[0])); /* all there are, and another waits */
    fair_leave(f, few, 2);
    ck_assert(!fair_is_rich(f, own[0])); /* nobody else is inside */
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fair");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, class_then_least_served_then_arrival);
    tcase_add_test(tc, one_pick_shares_between_tenants_as_many_would);
    tcase_add_test(tc, a_tenant_far_beyond_its_share_waits_behind_any_class_of_the_others);
    tcase_add_test(tc, nobody_comes_back_with_old_credit);
    tcase_add_test(tc, no_class_comes_back_with_old_credit);
    tcase_add_test(tc, few_adapters_are_asked_for_at_once);
    tcase_add_test(tc, who_has_time_waits_for_company);
    tcase_add_test(tc, weights_of_tenants_and_classes_divide_what_is_served);
    tcase_add_test(tc, other_weights_count_from_then_on);
    tcase_add_test(tc, a_near_deadline_goes_first_and_a_missed_one_does_not);
    tcase_add_test(tc, a_prompt_that_cannot_meet_its_target_joins_one_class_lower);
    tcase_add_test(tc, a_tenants_own_target_is_what_its_requests_are_held_to);
    tcase_add_test(tc, a_head_that_waits_too_long_goes_before_all);
    tcase_add_test(tc, where_adapters_lack_room_short_answers_go_first);
    tcase_add_test(tc, pre_emption_does_not_begin_the_ageing_anew);
    tcase_add_test(tc, a_head_is_as_old_as_the_oldest_behind_it);
    tcase_add_test(tc, others_pass_a_head_without_adapter_and_it_is_asked_for_again);
    tcase_add_test(tc, an_adapter_long_in_use_takes_nobody_new_while_another_starves);
    tcase_add_test(tc, who_has_more_than_its_share_of_the_seats_is_known);
    tcase_add_test(tc, who_runs_with_an_adapter_shares_it);
    tcase_add_test(tc, what_was_hardly_seen_is_taken_to_have_an_equal_share);
    tcase_add_test(tc, counters_end_as_what_was_used);
    tcase_add_test(tc, scanning_shows_each_that_waits_once);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
