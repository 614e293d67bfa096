/* test_cut.c -- cuts and draws against sorting everything, token by token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/sample/cut.h"
#include "engine/sample/logits.h"
#include "tests/run_suite.h"

enum { N_MAX = 5003 };

static uint64_t rng = 1;

static uint32_t draw(void)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng >> 33);
}

/* In (-1, 1). */
static float noise(void)
{
    return ((float)(draw() % 65536) + 0.5F) / 32768.0F - 1;
}

/* Kinds of rows: what a histogram over floats could get wrong. */
enum { KINDS = 13 };

static void fill(float *l, int n, int kind)
{
    float step = 7.25F;
    for (int i = 0; i < n; i++) {
        step = nextafterf(step, INFINITY);
        switch (kind) {
        case 0: l[i] = noise() * 8; break;
        case 1: l[i] = 3 + noise() * 0.001F; break;        /* flat */
        case 2: l[i] = noise() + (i == n / 3) * 30; break; /* peaked */
        case 3: l[i] = (float)(draw() % 5); break;         /* ties */
        case 4: l[i] = draw() % 50 && i != n / 2 ? -INFINITY : noise(); break;
        case 5: l[i] = draw() % 2 ? 0.0F : -0.0F; break;
        case 6: l[i] = 0.75F; break;
        case 7: l[i] = noise() * 1e30F; break;
        case 8: l[i] = (float)i * 0.01F; break;
        case 9: l[i] = (float)-i * 0.002F; break;
        case 10: l[i] = step; break; /* each float one further */
        case 11: l[i] = noise() * 1e-40F; break;
        default: l[i] = (i % 7 ? 1e-6F : -9) * noise(); break;
        }
    }
}

/* ------------------------------------------------------------------ the oracle -- */

typedef struct {
    float logit;
    int32_t id;
} entry;

static int by_rank(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->logit > y->logit || x->logit < y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

typedef struct {
    int top_k;
    float top_p, min_p, temperature;
} rules;

/* All tokens in order, the first *kept of them left; the running sums of
 * weights up to and with each. */
static void sort_all(const cut *c, const float *l, int n, const rules *r, float max, entry *out,
                     uint64_t *sum, int *kept)
{
    for (int i = 0; i < n; i++) out[i] = (entry){l[i], i};
    qsort(out, (size_t)n, sizeof(*out), by_rank);
    int limit = r->top_k > 0 && r->top_k < n ? r->top_k : n;
    for (int i = 0; i < n; i++) sum[i] = (i ? sum[i - 1] : 0) + cut_weight(c, out[i].id);
    uint64_t all = sum[limit - 1], need = r->top_p < 1 ? cut_share(r->top_p, all) : all;
    float least = cut_floor(max, r->temperature, r->min_p);
    *kept = 1;
    while (*kept < limit && sum[*kept - 1] < need && out[*kept].logit >= least) ++*kept;
}

static rules random_rules(int n)
{
    static const float ps[] = {1, 0.9999F, 0.95F, 0.5F, 0.1F, 1e-6F};
    static const float mins[] = {0, 0, 0, 0.05F, 1e-9F, 0.9F, 1};
    static const float temperatures[] = {1, 0.8F, 2, 0.3F, 1e-6F};
    const int ks[] = {0, 0, 1, 7, 300, n / 2 + 1, n - 1, n, n + 9};
    return (rules){ks[draw() % 9], ps[draw() % 6], mins[draw() % 7], temperatures[draw() % 5]};
}

START_TEST(cuts_and_draws_are_those_of_a_full_sort)
{
    static const int sizes[] = {1, 2, 5, 64, 257, N_MAX};
    static float l[N_MAX];
    static entry all[N_MAX];
    static uint64_t sum[N_MAX];
    cut *c = cut_create(N_MAX);
    for (int round = 0; round < 120; round++) {
        int n = sizes[round % 6], kept;
        fill(l, n, _i);
        rules r = random_rules(n);
        float max = logits_highest(l, n);
        cut_begin(c, l, n, max, r.temperature);
        sort_all(c, l, n, &r, max, all, sum, &kept);
        uint64_t mass = sum[kept - 1];
        for (int i = 0; i < 40; i++) {
            int rank = i == 0 ? 0 : i == 1 ? kept - 1 : (int)(draw() % (uint32_t)kept);
            double u = ((double)sum[rank] + (double)(draw() % 3) - 1.5) / (double)mass;
            u = u <= 0 ? 0x1p-54 : u >= 1 ? 1 - 0x1p-53 : u;
            uint64_t aim = cut_aim(u, mass);
            int want = 0;
            while (sum[want] <= aim) want++;
            int32_t got = cut_draw(c, r.top_k, r.top_p, r.min_p, u);
            ck_assert_msg(got == all[want].id,
                          "kind %d, n %d, top_k %d, top_p %g, min_p %g, temperature %g, u %.17g: "
                          "token %d instead of %d, rank %d of %d",
                          _i, n, r.top_k, (double)r.top_p, (double)r.min_p, (double)r.temperature,
                          u, got, all[want].id, want, kept);
        }
    }
    cut_destroy(c);
}
END_TEST

START_TEST(without_cuts_the_order_is_that_of_ids)
{
    static float l[N_MAX];
    cut *c = cut_create(N_MAX);
    fill(l, N_MAX, _i);
    cut_begin(c, l, N_MAX, logits_highest(l, N_MAX), 0.9F);
    uint64_t mass = 0;
    for (int i = 0; i < N_MAX; i++) mass += cut_weight(c, i);
    for (int k = 0; k < 200; k++) {
        double u = ((double)draw() + 0.5) / 0x1p31;
        uint64_t at = 0, aim = cut_aim(u, mass);
        int want = 0;
        while ((at += cut_weight(c, want)) <= aim) want++;
        ck_assert_int_eq(cut_draw_any(c, u), want);
    }
    cut_destroy(c);
}
END_TEST

START_TEST(weights_are_exponentials)
{
    static float l[N_MAX], w[N_MAX];
    static const float temperatures[] = {0.3F, 1, 1.7F};
    for (int t = 0; t < 3; t++) {
        fill(l, N_MAX, _i);
        float max = logits_highest(l, N_MAX), floor = INFINITY, plain = -INFINITY;
        float least = logits_weigh(w, l, N_MAX, max, temperatures[t]);
        for (int i = 0; i < N_MAX; i++) {
            double x = ((double)l[i] - (double)max) / (double)temperatures[t], want = exp(x);
            plain = l[i] > plain ? l[i] : plain;
            if (w[i] > 0) floor = l[i] < floor ? l[i] : floor;
            if (want < 0x1p-40)
                ck_assert(w[i] <= 0x1.001p-40F);
            else
                ck_assert_msg(fabs((double)w[i] - want) <= want * (3e-7 - x * 1.2e-7),
                              "exp(%.9g) is %.9g, not %.9g", x, want, (double)w[i]);
            if (l[i] >= max) ck_assert(w[i] == 1);
        }
        ck_assert(max == plain && least == floor);
    }
}
END_TEST

START_TEST(a_row_with_one_wrong_value_is_found)
{
    float l[23];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int n = 1; n <= 23; n++) {
        fill(l, n, 0);
        ck_assert(logits_finite(l, n));
        for (int i = 0; i < n; i++) {
            float was = l[i];
            l[i] = bad[(n + i) % 3];
            ck_assert(!logits_finite(l, n));
            l[i] = 100;
            ck_assert(logits_highest(l, n) == 100);
            l[i] = was;
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cut");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, cuts_and_draws_are_those_of_a_full_sort, 0, KINDS);
    tcase_add_loop_test(tc, without_cuts_the_order_is_that_of_ids, 0, KINDS);
    tcase_add_loop_test(tc, weights_are_exponentials, 0, KINDS);
    tcase_add_test(tc, a_row_with_one_wrong_value_is_found);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
