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

START_TEST(the_background_stands_back_for_first_tokens)
{
    policy_request rq[] = {decoding(2, 0), decoding(0, 1), prefilling(0, 2), prefilling(2, 3)};
    policy_entry held[MAX];
    rq[0].background = rq[3].background = true;
    rq[0].due_us = rq[1].due_us = 5;
    expect(rq, 4, &lim, 10, (int[]){0, 1, 2, 3}, 4);
    ck_assert_int_eq(policy_hold_back(rq, out, 4, held), 2);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(out[i].request, ((int[]){1, 2, 0, 3})[i]);
    rq[2] = rq[1];
    rq[1].background = true;
    rq[1].due_us = 4; /* what is due first has its turn, then prompts */
    expect(rq, 4, &lim, 10, (int[]){0, 1, 2, 3}, 4);
    ck_assert_int_eq(policy_hold_back(rq, out, 4, held), 1);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(out[i].request, ((int[]){2, 1, 0, 3})[i]);
}
END_TEST

START_TEST(the_background_makes_no_step_long)
{
    ck_assert_double_eq_tol(policy_background_us(0, INFINITY, SECOND), 0.008 * SECOND, 1e-6);
    ck_assert_double_eq_tol(policy_background_us(0.05 * SECOND, INFINITY, SECOND), 0.05 * SECOND,
                            1e-6);
    ck_assert_double_eq_tol(policy_background_us(10, 0.005 * SECOND, SECOND), 0.005 * SECOND, 1e-6);
    ck_assert_double_eq_tol(policy_background_us(10, -5, SECOND), 10, 1e-6);
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
    return policy_budget_us(rq, out, policy_plan(rq, n, &lim, now, out, order), c, now, 0, &least);
}

START_TEST(nothing_bounds_a_step_without_streams_or_knowledge)
{
    cost_model c = known_costs(), fresh;
    cost_init(&fresh);
    policy_request rq[] = {decoding(0, 2), waiting(0, 1)};
    rq[0].due_us = SECOND;
    rq[0].tpot_us = 1000;
    ck_assert(isinf(budget(rq + 1, 1, &c, 10)));
    ck_assert(isinf(budget(rq, 2, &fresh, 10)));
    ck_assert(isfinite(budget(rq, 2, &c, 10)));
}
END_TEST

/* 8 streams: their step takes 2 ms, so prompts may make it 2.6 ms. */
START_TEST(streams_keep_their_pace_while_no_first_token_needs_more)
{
    cost_model c = known_costs();
    policy_request rq[10];
    for (int i = 0; i < 8; i++) {
        rq[i] = decoding(1, i);
        rq[i].due_us = SECOND + i * 1000;
        rq[i].tpot_us = 1000;
    }
    rq[8] = waiting(1, 0);
    rq[8].left = 640; /* 10 ms of work: 43 ms at three thirteenths of the time */
    rq[8].deadline_us = 500000;
    ck_assert_double_eq_tol(budget(rq, 9, &c, 200000), 2600, 1e-6);
    ck_assert_int_eq(least, 1);
    /* Four tenths of the target being kept in reserve, it has 30 ms for 10: half as much again as
     * the half of a step that this asks. */
    ck_assert_double_eq_tol(budget(rq, 9, &c, 270000), 2000 * (1 + 1.5 * 0.5), 1e-6);
    ck_assert_int_eq(least, 1);
    /* Not even alone: most of the tightest stream's slack. */
    ck_assert_double_eq_tol(budget(rq, 9, &c, 295000), 0.9 * (SECOND - 295000), 1e-6);
    ck_assert_int_eq(least, 1);
    /* Missed already: no reason to hurt the streams ... */
    ck_assert_double_eq_tol(budget(rq, 9, &c, 600000), 2600, 1e-6);
    ck_assert_int_eq(least, 1);
    /* ... who keep what the tightest of them is promised. */
    for (int i = 0; i < 8; i++) rq[i].tpot_us = 5000 + 1000 * i;
    ck_assert_double_eq_tol(budget(rq, 9, &c, 600000), 0.9 * 5000, 1e-6);
    ck_assert_double_eq_tol(budget(rq, 9, &c, 200000), 2600, 1e-6);
    for (int i = 0; i < 8; i++) rq[i].tpot_us = 1000;
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
    rq[0].tpot_us = 1000;
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
        rq[i].tpot_us = 1000;
    }
    rq[8] = waiting(1, 20);
    ck_assert_double_eq_tol(budget(rq, 9, &c, SECOND - 2200), 2200, 1e-6);
    ck_assert_int_eq(least, 1); /* a chunk would cost them their pace */
    ck_assert_double_eq_tol(budget(rq, 9, &c, SECOND - 1500), 2600, 1e-6);
    ck_assert_int_gt(least, 1);
    ck_assert_double_eq_tol(budget(rq, 9, &c, SECOND + 1500), 2600, 1e-6);
}
END_TEST

/* ---- streams that sit out steps */

enum { MANY = 256 };

/* 1 ms a step, 1 ms for each stream. */
static cost_model dear_rows(void)
{
    cost_model c = known_costs();
    c.theta[2] = 8000;
    return c;
}

static policy_request stream(int rank, int64_t tpot_us, int64_t due_us)
{
    static const double weights[] = {4, 2, 1};
    policy_request r = decoding(rank, 0);
    r.tpot_us = tpot_us;
    r.due_us = due_us;
    r.weight = weights[rank];
    return r;
}

static policy_entry many[MANY];
static int scratch[MANY];
static double step_us;

/* Streams of the plan that take part; says of each in `takes`. */
static int trim(const policy_request *rq, int n, const cost_model *c, int64_t now, bool *takes)
{
    policy_limits wide = lim;
    wide.max_rows = 512;
    int listed = policy_plan(rq, n, &wide, now, many, scratch), rows = 0;
    int left = policy_trim(rq, many, listed, &wide, c, now, scratch, &step_us);
    for (int i = 0; i < n; i++) takes[i] = false;
    for (int i = 0; i < left; i++) {
        takes[many[i].request] = true;
        rows += rq[many[i].request].left == 1;
    }
    return rows;
}

START_TEST(who_is_due_takes_part_and_others_while_the_tightest_keeps_its_pace)
{
    cost_model c = dear_rows();
    policy_request rq[21];
    bool takes[21];
    for (int i = 0; i < 4; i++) rq[i] = stream(0, 10000, 1010000); /* 10 ms to go */
    for (int i = 4; i < 20; i++) rq[i] = stream(2, SECOND, 2 * SECOND - i * 1000);
    ck_assert_int_eq(trim(rq, 20, &c, SECOND, takes), 8);                      /* in 9 of 10 ms */
    for (int i = 0; i < 20; i++) ck_assert_int_eq(takes[i], i < 4 || i >= 16); /* by what is due */
    for (int i = 0; i < 4; i++) rq[i].due_us = 1030000; /* they are ahead: a longer step will do */
    ck_assert_int_eq(trim(rq, 20, &c, SECOND, takes), 20);
    rq[4].due_us = SECOND + 1; /* by class, and by what is due */
    for (int i = 0; i < 4; i++) rq[i].due_us = 1010000;
    ck_assert_int_eq(trim(rq, 20, &c, SECOND, takes), 8);
    ck_assert(takes[0] && takes[4] && takes[19] && takes[17] && !takes[16]);
    rq[20] = waiting(1, 0); /* a prompt has its share of the step */
    ck_assert_int_eq(trim(rq, 21, &c, SECOND, takes), 5);
    ck_assert(takes[20]);
}
END_TEST

START_TEST(a_token_is_due_by_the_streams_own_pace)
{
    /* The first at 1 s, 50 ms each: ten made, whenever the latest came; but it is never far off. */
    ck_assert_int_eq(policy_due_us(SECOND, 1100000, 10, 50000), 1500000);
    ck_assert_int_eq(policy_due_us(SECOND, 2 * SECOND, 10, 50000), 1500000);
    ck_assert_int_gt(policy_due_us(SECOND, SECOND, 10, 50000), 1300000);
    ck_assert_int_lt(policy_due_us(SECOND, SECOND, 1000, 50000), 3 * SECOND);
}
END_TEST

START_TEST(who_cannot_sit_out_a_step_goes_before_who_can)
{
    cost_model c = dear_rows();
    policy_request rq[12];
    bool takes[12];
    rq[0] = stream(0, 10000, 1010000);
    for (int i = 1; i < 12; i++) rq[i] = stream(2, SECOND, i < 6 ? 1010000 + i : 2 * SECOND);
    ck_assert_int_eq(trim(rq, 12, &c, SECOND, takes), 8); /* one of them for its class's share */
    for (int i = 0; i < 6; i++) ck_assert(takes[i]);
}
END_TEST

START_TEST(where_rows_are_cheap_all_take_part)
{
    cost_model c = known_costs();
    c.theta[0] = 5000; /* a GPU's: 5 ms, and 8 us for each stream */
    c.theta[2] = 64;
    uint64_t x = 1;
    for (int k = 0; k < 200; k++) {
        policy_request rq[MANY];
        bool takes[MANY];
        for (int i = 0; i < MANY; i++) {
            static const int64_t tpot[] = {50000, 100000, SECOND};
            x = x * 6364136223846793005ULL + 1442695040888963407ULL;
            int rank = (int)(x >> 33) % 3;
            rq[i] = stream(rank, tpot[rank], SECOND + (int64_t)(x >> 40) % 2000000 - 100000);
        }
        ck_assert_int_eq(trim(rq, MANY, &c, SECOND, takes), MANY);
        for (int i = 0; i < MANY; i++) ck_assert_int_eq(many[i].request, i);
    }
}
END_TEST

/* A target that its streams miss even alone helps nobody: it holds up nobody either. */
START_TEST(what_cannot_be_kept_bounds_nothing)
{
    cost_model c = dear_rows();
    policy_request rq[20];
    bool takes[20];
    for (int i = 0; i < 20; i++) rq[i] = stream(i < 12 ? 0 : 2, i < 12 ? 10000 : SECOND, SECOND);
    ck_assert_int_eq(trim(rq, 20, &c, SECOND, takes), 20);
    cost_model fresh;
    cost_init(&fresh);
    rq[0] = stream(0, 10000, 1010000);
    ck_assert_int_eq(trim(rq + 11, 9, &fresh, SECOND, takes), 9); /* nothing is known yet */
}
END_TEST

/* Steps of virtual time: what each stream had of each second. */
typedef struct {
    policy_request rq[MANY];
    int64_t first_us[MANY], last_us[MANY], worst_us[MANY],
        gap_us[MANY]; /* behind; between tokens */
    int made[MANY], n, in_second[3], least[3];
} streams;

static void live(streams *s, const cost_model *c, int seconds)
{
    bool takes[MANY];
    int64_t now = SECOND, next = 3 * SECOND;
    for (int i = 0; i < s->n; i++) {
        s->first_us[i] = s->last_us[i] = now;
        s->made[i] = 1;
    }
    for (int k = 0; k < 3; k++) s->least[k] = INT32_MAX;
    while (now < (seconds + 1) * (int64_t)SECOND) {
        for (int i = 0; i < s->n; i++) {
            policy_request *r = &s->rq[i];
            r->due_us = policy_due_us(s->first_us[i], s->last_us[i], s->made[i], r->tpot_us);
        }
        cost_work w = {.decode = trim(s->rq, s->n, c, now, takes)};
        ck_assert(w.decode > 0);
        now += (int64_t)cost_predict(c, &w);
        for (int i = 0; i < s->n; i++) {
            if (!takes[i]) continue;
            int64_t late = now - s->first_us[i] - s->made[i] * s->rq[i].tpot_us;
            if (late > s->worst_us[i]) s->worst_us[i] = late;
            if (now - s->last_us[i] > s->gap_us[i]) s->gap_us[i] = now - s->last_us[i];
            s->last_us[i] = now;
            s->made[i]++;
            s->in_second[s->rq[i].class_rank]++;
        }
        if (now < next) continue;
        for (int k = 0; k < 3; k++) {
            if (next > 3 * SECOND && s->in_second[k] < s->least[k]) s->least[k] = s->in_second[k];
            s->in_second[k] = 0;
        }
        next += SECOND;
    }
}

START_TEST(a_lower_class_takes_part_in_every_so_many_th_step)
{
    cost_model c = dear_rows();
    static streams s;
    s = (streams){.n = 60};
    for (int i = 0; i < 60; i++) {
        static const int64_t tpot[] = {25000, 50000, SECOND};
        int rank = i < 5 ? 0 : i < 20 ? 1 : 2;
        s.rq[i] = stream(rank, tpot[rank], 0);
    }
    live(&s, &c, 20);
    int most = 0, fewest = INT32_MAX;
    for (int i = 0; i < 60; i++) {
        ck_assert_msg(s.worst_us[i] <= 0, "stream %d was %d us behind", i, (int)s.worst_us[i]);
        if (i < 20) continue;
        if (s.made[i] > most) most = s.made[i];
        if (s.made[i] < fewest) fewest = s.made[i];
        ck_assert_int_lt((int)s.gap_us[i], SECOND);
    }
    ck_assert_int_le(most - fewest, 2); /* of a class, all alike */
    ck_assert_int_gt(s.made[0], 20 * 40 - 2);
    ck_assert_int_lt(most, s.made[0] / 4);
}
END_TEST

/* More of a class than the device can serve: the others have their share of every second. */
START_TEST(each_class_has_its_share_of_every_second)
{
    cost_model c = dear_rows();
    static streams s;
    for (int flood = 0; flood < 2; flood++) {
        s = (streams){.n = 120};
        for (int i = 0; i < 120; i++) {
            static const int64_t tpot[] = {20000, 40000, 2 * SECOND};
            int rank = i < 6 ? 0 : i < 60 ? flood ? 1 : 2 : flood ? 2 : 1;
            s.rq[i] = stream(rank, tpot[rank], 0);
            s.rq[i].arrived_us = SECOND;
        }
        live(&s, &c, 8);
        int rows = s.least[0] + s.least[1] + s.least[2];
        for (int k = 0; k < 3; k++) ck_assert_int_gt(s.least[k], 0);
        ck_assert_int_ge(s.least[2], rows / 7 - 80); /* a row in each step may be cut off */
        for (int i = 0; i < 6; i++) ck_assert_int_le((int)s.worst_us[i], 0);
    }
}
END_TEST

/* Streams of one class that get a seat, one after the other, beside `n` others. */
static int seated(policy_request *rq, int n, int rank, int64_t tpot_us, bool rich, policy_seat *why)
{
    cost_model c = dear_rows();
    int first = n;
    for (; n < MANY; n++) {
        rq[n] = stream(rank, tpot_us, SECOND);
        rq[n].running = false;
        rq[n].rich = rich;
        *why = policy_seats(rq, n + 1, n, &lim, &c);
        if (*why != SEAT_FITS) break;
        rq[n].running = true;
    }
    return n - first;
}

START_TEST(the_prompts_share_of_the_time_is_followed)
{
    cost_model c = known_costs();
    cost_work none = {.decode = 8}, half = {.decode = 8, .prefill = 128};
    double share = 0;
    for (int i = 0; i < 20; i++) share = policy_see_step(share, &half, &c, SECOND);
    ck_assert_double_eq_tol(share, 0.5, 0.02); /* 2 of 4 ms */
    double before = share;
    share = policy_see_step(share, &none, &c, SECOND / 100);
    ck_assert(share < before && share > 0.9 * before);
    for (int i = 0; i < 20; i++) share = policy_see_step(share, &none, &c, SECOND);
    ck_assert_double_lt(share, 0.02);
}
END_TEST

START_TEST(a_seat_is_given_if_all_keep_their_pace)
{
    static policy_request rq[MANY];
    cost_model dear = dear_rows();
    policy_seat why;
    /* Of 20 ms three thirteenths are the prompts', one is the step's own; of the rest the rich
     * leave some: of few rows more than of many. */
    ck_assert_int_eq(seated(rq, 0, 0, 20000, false, &why), 14);
    ck_assert_int_eq(why, SEAT_FULL);
    ck_assert_int_eq(seated(rq, 0, 0, 20000, true, &why), 8);
    ck_assert_int_eq(why, SEAT_FULL);
    ck_assert_int_eq(seated(rq, 0, 0, 160000, false, &why), 122);
    ck_assert_int_eq(seated(rq, 0, 0, 160000, true, &why), 100);
    /* Beside four, those of 40 ms have a row in every second step, but none in fewer than that. */
    ck_assert_int_eq(seated(rq, 0, 0, 20000, false, &why), 14);
    ck_assert_int_eq(seated(rq, 4, 1, 40000, false, &why), 15);
    ck_assert_int_eq(why, SEAT_THINS);
    policy_limits busy = lim;
    busy.prompts = 0.9; /* prompts have had nearly all of the time: there is no room at all */
    ck_assert_int_eq(policy_seats(rq, 20, 19, &busy, &dear), SEAT_FULL);
    rq[19].class_rank = 0; /* who is more urgent still fits in */
    ck_assert_int_eq(policy_seats(rq, 20, 19, &lim, &dear), SEAT_FITS);
    rq[19].tpot_us = 0; /* without a target it takes what is left */
    ck_assert_int_eq(policy_seats(rq, 20, 19, &lim, &dear), SEAT_FITS);
    rq[0] = stream(0, 500, SECOND); /* what cannot be kept bounds nothing, nor one alone */
    rq[0].running = false;
    ck_assert_int_eq(policy_seats(rq, 1, 0, &lim, &dear), SEAT_FITS);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("policy");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, decode_rows_stand_before_any_prefill);
    tcase_add_test(tc, the_background_stands_back_for_first_tokens);
    tcase_add_test(tc, the_background_makes_no_step_long);
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
    tcase_add_test(tc, who_is_due_takes_part_and_others_while_the_tightest_keeps_its_pace);
    tcase_add_test(tc, a_token_is_due_by_the_streams_own_pace);
    tcase_add_test(tc, who_cannot_sit_out_a_step_goes_before_who_can);
    tcase_add_test(tc, where_rows_are_cheap_all_take_part);
    tcase_add_test(tc, what_cannot_be_kept_bounds_nothing);
    tcase_add_test(tc, a_lower_class_takes_part_in_every_so_many_th_step);
    tcase_add_test(tc, each_class_has_its_share_of_every_second);
    tcase_add_test(tc, the_prompts_share_of_the_time_is_followed);
    tcase_add_test(tc, a_seat_is_given_if_all_keep_their_pace);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
