/* test_pooling.c -- vectors by each kind, cut in any way, beside plain sums; heads and lengths. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/sample/pooling.h"
#include "tests/run_suite.h"

enum { N = 50, DIM = 7 };

static float state[N][DIM];

static void make_states(void)
{
    unsigned x = 12345;
    for (int i = 0; i < N * DIM; i++) {
        x = x * 1664525 + 1013904223;
        state[i / DIM][i % DIM] = (float)((double)(x >> 8) / (1 << 20) - 8);
    }
}

static double plain(pooling_kind kind, int k)
{
    double sum = 0, late = 0, most = -INFINITY;
    for (int i = 0; i < N; i++) {
        sum += (double)state[i][k];
        late += (double)state[i][k] * (i + 1);
        most = fmax(most, (double)state[i][k]);
    }
    switch (kind) {
    case POOL_LAST: return (double)state[N - 1][k];
    case POOL_FIRST: return (double)state[0][k];
    case POOL_MEAN: return sum / N;
    case POOL_MEAN_ROOT: return sum / sqrt(N);
    case POOL_MEAN_LATE: return late / (N * (N + 1) / 2.0);
    case POOL_MAX: break;
    }
    return most;
}

START_TEST(each_kind_is_what_it_says_however_it_is_cut)
{
    float first[DIM];
    for (int each = 1; each <= N; each += 7) {
        pooling p;
        ck_assert(pooling_init(&p, (pooling_kind)_i, DIM, false));
        for (int at; (at = pooling_from(&p, N)) < N;) {
            int n = !p.sum ? 1 : N - at < each ? N - at : each;
            ck_assert(pooling_take(&p, state[at], n));
        }
        pooling_end(&p);
        if (each == 1) memcpy(first, p.vector, sizeof(first));
        ck_assert(memcmp(first, p.vector, sizeof(first)) == 0);
        for (int k = 0; k < DIM; k++) {
            double want = plain((pooling_kind)_i, k);
            ck_assert_double_le(fabs((double)p.vector[k] - want), 1e-6 * (1 + fabs(want)));
        }
        pooling_clear(&p);
    }
}
END_TEST

START_TEST(what_is_not_a_number_is_seen)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        float v[2][DIM];
        pooling p;
        memcpy(v, state, sizeof(v));
        v[1][DIM - 1] = bad[i];
        ck_assert(pooling_init(&p, (pooling_kind)_i, DIM, false));
        ck_assert(!pooling_take(&p, p.sum ? v[0] : v[1], p.sum ? 2 : 1));
        pooling_clear(&p);
    }
}
END_TEST

START_TEST(heads_are_linear)
{
    float w[3 * DIM], bias[3] = {1, 2, 3};
    pooling p;
    for (int i = 0; i < 3 * DIM; i++) w[i] = (float)(i % 5 - 2);
    pooling_head head = {3, DIM, w, bias}, wide = {3, DIM + 1, w, NULL},
                 many = {POOLING_LABELS_MAX + 1, DIM, w, NULL};
    ck_assert(pooling_init(&p, POOL_LAST, DIM, true));
    ck_assert(pooling_take(&p, state[4], 1));
    pooling_end(&p);
    ck_assert(!pooling_classify(&p, &wide) && !pooling_classify(&p, &many));
    ck_assert(pooling_classify(&p, &head));
    ck_assert_int_eq(p.n_label, 3);
    for (int k = 0; k < 3; k++) {
        double want = (double)bias[k];
        for (int i = 0; i < DIM; i++) want += (double)w[k * DIM + i] * (double)state[4][i];
        ck_assert_double_le(fabs((double)p.label[k] - want), 1e-5);
    }
    pooling_clear(&p);
    ck_assert(pooling_init(&p, POOL_LAST, DIM, false));
    ck_assert(!pooling_classify(&p, &head)); /* nobody has asked */
    pooling_clear(&p);
}
END_TEST

START_TEST(lengths_and_angles)
{
    float v[] = {3, 4, 0}, nothing[] = {0, 0, 0}, right[] = {-8, 6, 0};
    ck_assert_double_le(fabs(pooling_cosine(v, v, 3) - 1), 1e-12);
    ck_assert_double_le(fabs(pooling_cosine(v, right, 3)), 1e-12);
    ck_assert_double_eq(pooling_cosine(v, nothing, 3), 0);
    pooling_normalise(v, 3);
    ck_assert_float_eq(v[0], 0.6F);
    ck_assert_float_eq(v[1], 0.8F);
    pooling_normalise(nothing, 3);
    ck_assert_float_eq(nothing[0], 0);
}
END_TEST

int main(void)
{
    make_states();
    Suite *s = suite_create("pooling");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, each_kind_is_what_it_says_however_it_is_cut, 0, POOL_MAX + 1);
    tcase_add_loop_test(tc, what_is_not_a_number_is_seen, 0, POOL_MAX + 1);
    tcase_add_test(tc, heads_are_linear);
    tcase_add_test(tc, lengths_and_angles);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
