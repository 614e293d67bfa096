/* test_telemetry.c -- histograms and what is counted of requests, also by many threads at once. */
#include <pthread.h>
#include <string.h>

#include <check.h>

#include "engine/sched/telemetry.h"
#include "tests/run_suite.h"

enum { CLASSES = 2, TENANTS = 3, ADAPTERS = 40 };

/* ------------------------------------------------------------------- histograms -- */

START_TEST(bounds_rise_and_are_log_spaced)
{
    const histogram_scale *scales[] = {&histogram_times, &histogram_tokens};
    for (int s = 0; s < 2; s++) {
        ck_assert_int_le(scales[s]->n, HISTOGRAM_BOUNDS);
        for (int i = 1; i < scales[s]->n; i++) {
            double ratio = (double)scales[s]->bound[i] / (double)scales[s]->bound[i - 1];
            ck_assert(ratio > 1.5 && ratio <= 2);
        }
    }
    ck_assert_int_eq(histogram_times.bound[0], 100);
    ck_assert_int_eq(histogram_times.bound[histogram_times.n - 1], 1000000000);
}
END_TEST

/* Which bucket has it, and is that the first one that may? */
static int bucket_of(const histogram_scale *scale, int64_t v)
{
    histogram h = {0};
    histogram_counts c = {0};
    histogram_init(&h, scale);
    histogram_add(&h, v);
    histogram_read(&h, &c);
    ck_assert_uint_eq(c.count, 1);
    ck_assert_uint_eq(c.sum, v < 0 ? 0 : (uint64_t)v);
    for (int i = 0; i <= scale->n; i++) {
        if (c.bucket[i]) return i;
    }
    return -1;
}

START_TEST(a_value_is_in_the_first_bucket_that_reaches_it)
{
    const histogram_scale *scales[] = {&histogram_times, &histogram_tokens};
    for (int s = 0; s < 2; s++) {
        const histogram_scale *sc = scales[s];
        for (int i = 0; i < sc->n; i++) {
            ck_assert_int_eq(bucket_of(sc, sc->bound[i]), i);
            ck_assert_int_eq(bucket_of(sc, sc->bound[i] + 1), i + 1);
        }
        ck_assert_int_eq(bucket_of(sc, -7), 0);
        ck_assert_int_eq(bucket_of(sc, 0), 0);
        ck_assert_int_eq(bucket_of(sc, INT64_MAX), sc->n);
    }
}
END_TEST

static void *add_many(void *arg)
{
    for (int i = 0; i < 20000; i++) histogram_add(arg, i);
    return NULL;
}

START_TEST(threads_lose_nothing_and_a_snapshot_is_whole)
{
    static histogram h;
    histogram_counts c = {0};
    pthread_t t[4];
    uint64_t last = 0, n = 0;
    histogram_init(&h, &histogram_times);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&t[i], NULL, add_many, &h), 0);
    for (int k = 0; k < 200; k++) {
        c = (histogram_counts){0};
        histogram_read(&h, &c);
        n = 0;
        for (int i = 0; i <= c.scale->n; i++) n += c.bucket[i];
        ck_assert_uint_eq(n, c.count);
        ck_assert_uint_ge(c.count, last);
        last = c.count;
    }
    for (int i = 0; i < 4; i++) (void)pthread_join(t[i], NULL);
    histogram_read(&h, &c); /* on top of what it holds */
    ck_assert_uint_eq(c.count - last, 80000);
}
END_TEST

/* -------------------------------------------------------------------- requests -- */

static meter counts;

/* Arrived at 1000, seated at 2000, first token at 5000, then one each `pace`. */
static request life(int class, uint64_t tenant, int made, int64_t pace)
{
    request rq;
    request_init(&rq);
    rq.slo_class = class;
    rq.tenant_id = tenant;
    rq.meter = &counts;
    rq.n_prompt = 7;
    rq.max_tokens = 50;
    rq.arrived_us = 1000;
    rq.times.admitted_us = 2000;
    rq.times.first_token_us = made ? 5000 : 0;
    rq.times.last_token_us = made ? 5000 + (made - 1) * pace : 0;
    rq.ttft_deadline_us = 6000;
    rq.tpot_target_us = 300;
    atomic_store(&rq.out.n_pushed, made);
    return rq;
}

static void live(telemetry *t, request *rq, request_outcome how)
{
    telemetry_enter(t, rq);
    telemetry_seat(t, rq);
    int64_t last = rq->times.last_token_us;
    int made = atomic_load(&rq->out.n_pushed);
    for (int i = 0; i < made; i++) {
        int64_t step = made > 1 ? (last - rq->times.first_token_us) / (made - 1) : 0;
        rq->times.last_token_us = rq->times.first_token_us + i * step;
        telemetry_token(t, rq, i ? rq->times.last_token_us - step : 0);
    }
    telemetry_end(t, rq, how, ERR_NONE, 9000);
}

START_TEST(a_life_leaves_its_times_and_lengths)
{
    telemetry *t = telemetry_create(CLASSES, TENANTS, 10);
    telemetry_class c;
    request rq = life(1, 5, 11, 200);
    live(t, &rq, OUTCOME_LENGTH);
    telemetry_class_get(t, 0, &c);
    ck_assert_uint_eq(c.series[SERIES_E2E].count + c.outcome[OUTCOME_LENGTH], 0);
    telemetry_class_get(t, 1, &c);
    static const uint64_t sums[SERIES] = {4000, 2000, 200, 8000, 1000, 3000, 2000, 7000, 7, 11, 50};
    for (int k = 0; k < SERIES; k++) {
        ck_assert_uint_eq(c.series[k].count, k == SERIES_ITL ? 10 : 1);
        ck_assert_msg(c.series[k].sum == sums[k], "series %d: %llu", k,
                      (unsigned long long)c.series[k].sum);
    }
    ck_assert_uint_eq(c.met[TARGET_BOTH], 1);
    telemetry_destroy(t);
}
END_TEST

static uint64_t causes_of(const uint64_t cause[MISS_CAUSES])
{
    uint64_t sum = 0;
    for (int k = 0; k < MISS_CAUSES; k++) sum += cause[k];
    return sum - cause[MISS_NONE];
}

START_TEST(targets_are_judged_by_class_and_tenant)
{
    static const struct {
        int made;
        int64_t pace, late_us;
        request_outcome how;
        int ttft, tpot, both; /* 1 met, -1 missed, 0 not counted */
    } cases[] = {
        {11, 300, 0, OUTCOME_LENGTH, 1, 1, 1},    {11, 301, 0, OUTCOME_STOP, 1, -1, -1},
        {11, 300, 1001, OUTCOME_STOP, -1, 1, -1}, {1, 0, 0, OUTCOME_STOP, 1, 1, 1},
        {0, 0, 0, OUTCOME_FAILED, 0, 0, -1},      {5, 1, 0, OUTCOME_FAILED, 0, 0, -1},
        {5, 1, 0, OUTCOME_CANCELLED, 0, 0, 0},    {0, 0, 0, OUTCOME_CANCELLED, 0, 0, 0},
        {0, 0, 0, OUTCOME_LENGTH, -1, 1, -1}, /* scored: its first result is its end, at 9000 */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        telemetry *t = telemetry_create(CLASSES, TENANTS, 10);
        telemetry_class c;
        telemetry_tenant o[2];
        request rq = life(0, 5, cases[i].made, cases[i].pace);
        rq.ttft_deadline_us -= cases[i].late_us;
        live(t, &rq, cases[i].how);
        telemetry_class_get(t, 0, &c);
        const int want[TARGETS] = {cases[i].ttft, cases[i].tpot, cases[i].both};
        for (int k = 0; k < TARGETS; k++) {
            ck_assert_msg((int)c.met[k] == (want[k] > 0) && (int)c.missed[k] == (want[k] < 0),
                          "case %zu, target %d", i, k);
        }
        ck_assert_uint_eq(c.outcome[cases[i].how], 1);
        ck_assert_int_eq(telemetry_tenants_get(t, o, 2), 2);
        ck_assert_uint_eq(o[0].id, 5);
        ck_assert_uint_eq(o[0].met, c.met[TARGET_BOTH]);
        ck_assert_uint_eq(o[0].missed, c.missed[TARGET_BOTH]);
        ck_assert_uint_eq(causes_of(o[0].cause), o[0].missed);
        ck_assert_uint_eq(causes_of(c.cause), c.missed[TARGET_BOTH]);
        ck_assert_int_eq(rq.missed.why != MISS_NONE, cases[i].both < 0);
        ck_assert_uint_eq(o[0].outcome[cases[i].how], 1);
        ck_assert_uint_eq(o[0].output_tokens, (uint64_t)cases[i].made);
        telemetry_destroy(t);
    }
}
END_TEST

START_TEST(refusals_count_against_the_server_and_limits_do_not)
{
    telemetry *t = telemetry_create(CLASSES, TENANTS, 10);
    telemetry_class c;
    telemetry_refuse(t, 1, 5, OUTCOME_REFUSED, MISS_STORAGE);
    telemetry_refuse(t, 1, 5, OUTCOME_LIMITED, MISS_NONE);
    telemetry_class_get(t, 1, &c);
    ck_assert_uint_eq(c.outcome[OUTCOME_REFUSED], 1);
    ck_assert_uint_eq(c.outcome[OUTCOME_LIMITED], 1);
    ck_assert_uint_eq(c.missed[TARGET_BOTH], 1);
    ck_assert_uint_eq(c.missed[TARGET_TTFT], 0);
    ck_assert_uint_eq(c.cause[MISS_STORAGE], 1);
    ck_assert_uint_eq(causes_of(c.cause), 1);
    telemetry_destroy(t);
}
END_TEST

static telemetry *shared;

static void *enter_many(void *arg)
{
    uint64_t first = (uint64_t)(size_t)arg;
    for (uint64_t i = 0; i < 2000; i++) {
        request rq = life(0, 1 + (first + i) % 100, 1, 0);
        live(shared, &rq, OUTCOME_STOP);
    }
    return NULL;
}

START_TEST(tenants_beyond_the_limit_share_one)
{
    telemetry_tenant o[TENANTS + 1];
    pthread_t t[4];
    shared = telemetry_create(CLASSES, TENANTS, 10);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_create(&t[i], NULL, enter_many, (void *)(29 * i)), 0);
    }
    for (int i = 0; i < 4; i++) (void)pthread_join(t[i], NULL);
    int n = telemetry_tenants_get(shared, o, TENANTS + 1);
    /* Two that claim the last place at once may both lose it, never both get it. */
    ck_assert_int_ge(n, 2);
    ck_assert_int_le(n, TENANTS + 1);
    ck_assert_uint_eq(o[n - 1].id, 0);
    uint64_t all = 0;
    for (int i = 0; i < n; i++) {
        all += o[i].outcome[OUTCOME_STOP];
        ck_assert_uint_eq(o[i].ttft.count, o[i].outcome[OUTCOME_STOP]);
        for (int k = 0; k < i; k++) ck_assert_uint_ne(o[i].id, o[k].id);
        if (o[i].id) ck_assert_uint_le(o[i].outcome[OUTCOME_STOP], 80);
    }
    ck_assert_uint_eq(all, 8000);
    telemetry_destroy(shared);
}
END_TEST

START_TEST(without_tenants_all_share)
{
    telemetry *t = telemetry_create(CLASSES, 0, 10);
    telemetry_tenant o[2];
    request rq = life(0, 5, 1, 0);
    live(t, &rq, OUTCOME_STOP);
    ck_assert_int_eq(telemetry_tenants_get(t, o, 2), 1);
    ck_assert_uint_eq(o[0].id, 0);
    ck_assert_uint_eq(o[0].outcome[OUTCOME_STOP], 1);
    telemetry_destroy(t);
}
END_TEST

/* Against a plain array, over thousands of comings and goings. */
START_TEST(adapters_in_use_are_known)
{
    telemetry *t = telemetry_create(CLASSES, TENANTS, ADAPTERS);
    int running[ADAPTERS + 1] = {0}, waiting[ADAPTERS + 1] = {0};
    uint64_t state = 1;
    telemetry_adapter_add(t, 0, 0, 1); /* the base is not counted */
    for (int i = 0; i < 20000; i++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        int id = 1 + (int)(state >> 33) % ADAPTERS, what = (int)(state >> 60);
        int r = what < 4 && waiting[id] ? 1 : what < 8 && running[id] ? -1 : 0;
        int w = r ? -r : what < 11 ? 1 : waiting[id] ? -1 : 0;
        running[id] += r;
        waiting[id] += w;
        if (r || w) telemetry_adapter_add(t, (uint64_t)id << 32, r, w);
        if (i % 500) continue;
        telemetry_adapter list[ADAPTERS];
        int n = telemetry_adapters_get(t, list, ADAPTERS), want = 0;
        for (int k = 1; k <= ADAPTERS; k++) want += running[k] || waiting[k];
        ck_assert_int_eq(n, want);
        for (int k = 0; k < n; k++) {
            ck_assert_int_eq(list[k].running, running[list[k].id >> 32]);
            ck_assert_int_eq(list[k].waiting, waiting[list[k].id >> 32]);
        }
    }
    telemetry_destroy(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("telemetry");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, bounds_rise_and_are_log_spaced);
    tcase_add_test(tc, a_value_is_in_the_first_bucket_that_reaches_it);
    tcase_add_test(tc, threads_lose_nothing_and_a_snapshot_is_whole);
    tcase_add_test(tc, a_life_leaves_its_times_and_lengths);
    tcase_add_test(tc, targets_are_judged_by_class_and_tenant);
    tcase_add_test(tc, refusals_count_against_the_server_and_limits_do_not);
    tcase_add_test(tc, tenants_beyond_the_limit_share_one);
    tcase_add_test(tc, without_tenants_all_share);
    tcase_add_test(tc, adapters_in_use_are_known);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
