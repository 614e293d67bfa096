/* test_sampler.c -- the sampler against straightforward double arithmetic with full sorts, and its
 * distribution by a chi-square over fixed seeds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/sample/sampler.h"
#include "tests/run_suite.h"

enum { BIG = 50257 };

static uint64_t rng = 1;

static uint32_t draw(void)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng >> 33);
}

static sampling neutral(void)
{
    return (sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_top = -1};
}

static float *random_logits(int n, float spread)
{
    float *l = malloc((size_t)n * sizeof(*l));
    for (int i = 0; i < n; i++) l[i] = ((float)(draw() % 65536) / 32768.0F - 1) * spread;
    return l;
}

/* ------------------------------------------------------------------ the oracle -- */

typedef struct {
    double p;
    int32_t id;
} entry;

static int by_p(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->p < y->p || x->p > y->p) return x->p > y->p ? -1 : 1;
    return x->id - y->id;
}

static void oracle_adjust(float *l, const sampling *r, const int32_t *prompt, int n_prompt,
                          const int32_t *output, int n_output, int n)
{
    for (int i = 0; i < r->n_bias; i++) l[r->bias[i].token] += r->bias[i].bias;
    for (int v = 0; v < n; v++) {
        int count = 0, seen = 0;
        for (int i = 0; i < n_output; i++) count += output[i] == v;
        for (int i = 0; i < n_prompt; i++) seen |= prompt[i] == v;
        if (count || seen) {
            l[v] = l[v] > 0 ? l[v] / r->repetition_penalty : l[v] * r->repetition_penalty;
        }
        if (count) l[v] -= r->presence_penalty + r->frequency_penalty * (float)count;
    }
    for (int i = 0; n_output < r->min_tokens && i < r->n_stop_id; i++) {
        l[r->stop_id[i]] = -INFINITY;
    }
}

/* The tokens that may be drawn, with their probabilities, most likely first. */
static int oracle(const float *l, int n, const sampling *r, entry *out)
{
    double max = -INFINITY, total = 0, sum = 0, mass = 0;
    for (int i = 0; i < n; i++) max = (double)l[i] > max ? (double)l[i] : max;
    for (int i = 0; i < n; i++) {
        out[i] = (entry){exp(((double)l[i] - max) / (double)r->temperature), i};
    }
    qsort(out, (size_t)n, sizeof(*out), by_p);
    int limit = r->top_k > 0 && r->top_k < n ? r->top_k : n, kept = 0;
    for (int i = 0; i < limit; i++) total += out[i].p;
    for (; kept < limit; kept++) {
        if (kept && (sum >= (double)r->top_p * total || out[kept].p < (double)r->min_p)) break;
        sum += out[kept].p;
    }
    for (int i = 0; i < kept; i++) mass += out[i].p;
    for (int i = 0; i < kept; i++) out[i].p /= mass;
    while (kept > 1 && out[kept - 1].p <= 0) kept--;
    return kept;
}

/* ------------------------------------------------------------------------ tests -- */

static const sampling rules[] = {
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_top = -1},
    {.temperature = 0.3F, .top_p = 1, .repetition_penalty = 1, .n_top = -1},
    {.temperature = 1, .top_p = 1, .top_k = 5, .repetition_penalty = 1, .n_top = -1},
    {.temperature = 1, .top_p = 0.6F, .repetition_penalty = 1, .n_top = -1},
    {.temperature = 1.5F, .top_p = 0.8F, .top_k = 10, .repetition_penalty = 1, .n_top = -1},
    {.temperature = 1, .top_p = 1, .min_p = 0.2F, .repetition_penalty = 1, .n_top = -1},
    {.temperature = 0.8F, .top_p = 0.9F, .min_p = 0.05F, .top_k = 12, .repetition_penalty = 1},
};

START_TEST(draws_follow_the_distribution_that_the_rules_leave)
{
    enum { N = 24, DRAWS = 20000 };
    sampler *sp = sampler_create(N);
    float *l = random_logits(N, 2), copy[N];
    entry want[N];
    int count[N] = {0};
    sampling r = rules[_i];
    int kept = oracle(l, N, &r, want);
    for (int i = 0; i < DRAWS; i++) {
        sampled t;
        r.seed = (uint64_t)i / 100;
        memcpy(copy, l, sizeof(copy));
        int32_t out[100] = {0};
        sampler_pick(sp, copy, &r, NULL, NULL, 0, out, i % 100, &t);
        ck_assert(t.token >= 0 && t.token < N);
        count[t.token]++;
    }
    double chi = 0;
    int seen = 0;
    for (int i = 0; i < kept; i++) {
        double e = want[i].p * DRAWS, d = count[want[i].id] - e;
        chi += d * d / (e > 1 ? e : 1);
        seen += count[want[i].id];
    }
    ck_assert_int_eq(seen, DRAWS); /* never a token that was cut off */
    ck_assert_msg(chi < kept + 6 * sqrt(2.0 * kept) + 6, "chi-square %.1f of %d", chi, kept);
    free(l);
    sampler_destroy(sp);
}
END_TEST

/* With top_p just below 1 and a flat vocabulary the kept list must grow to nearly everything. */
START_TEST(cuts_are_exact_in_large_flat_vocabularies)
{
    sampler *sp = sampler_create(BIG);
    entry *want = malloc(BIG * sizeof(*want));
    char *may = calloc(BIG, 1);
    static const float spread[] = {0.01F, 1, 30};
    float *l = random_logits(BIG, spread[_i]), *copy = malloc(BIG * sizeof(*copy));
    sampling r = neutral();
    r.top_p = _i == 2 ? 0.999F : 0.5F;
    int kept = oracle(l, BIG, &r, want);
    for (int i = 0; i < kept; i++) may[want[i].id] = 1;
    int32_t last = -1;
    int different = 0;
    for (int i = 0; i < 12; i++) {
        sampled t;
        r.seed = (uint64_t)i;
        memcpy(copy, l, BIG * sizeof(*copy));
        sampler_pick(sp, copy, &r, NULL, NULL, 0, NULL, 0, &t);
        ck_assert(t.token >= 0 && may[t.token]);
        different += t.token != last;
        last = t.token;
    }
    ck_assert_int_gt(different, 1);
    free(l);
    free(copy);
    free(want);
    free(may);
    sampler_destroy(sp);
}
END_TEST

START_TEST(greedy_takes_the_lowest_of_equals)
{
    sampler *sp = sampler_create(8);
    float l[8] = {1, 3, 2, 3, 3, 0, -5, 1};
    sampled t;
    sampling r = neutral();
    r.temperature = 0;
    sampler_pick(sp, l, &r, NULL, NULL, 0, NULL, 0, &t);
    ck_assert_int_eq(t.token, 1);
    r.temperature = 1; /* top_k 1 is greedy too, with the same tie */
    r.top_k = 1;
    sampler_pick(sp, l, &r, NULL, NULL, 0, NULL, 0, &t);
    ck_assert_int_eq(t.token, 1);
    sampler_destroy(sp);
}
END_TEST

START_TEST(greedy_finds_the_best_in_every_place)
{
    enum { N = 70 };
    sampling r = neutral();
    r.temperature = 0;
    for (int n = 1; n <= N; n++) {
        sampler *sp = sampler_create(n);
        for (int best = 0; best < n; best++) {
            float l[N];
            sampled t;
            for (int i = 0; i < n; i++) l[i] = i < best ? -0.5F : i % 3 ? -0.25F : -0.125F;
            l[best] = -0.125F;
            sampler_pick(sp, l, &r, NULL, NULL, 0, NULL, 0, &t);
            ck_assert_int_eq(t.token, best);
        }
        sampler_destroy(sp);
    }
}
END_TEST

START_TEST(penalties_bias_and_bans_match_the_plain_rules)
{
    enum { N = 40 };
    sampler *sp = sampler_create(N);
    for (int round = 0; round < 300; round++) {
        float *l = random_logits(N, 4), *copy = malloc(N * sizeof(*copy));
        int32_t prompt[20], output[30];
        int n_prompt = (int)(draw() % 20), n_output = (int)(draw() % 30);
        for (int i = 0; i < 20; i++) prompt[i] = (int32_t)(draw() % N);
        for (int i = 0; i < 30; i++) output[i] = (int32_t)(draw() % 12);
        logit_bias bias[2] = {{(int32_t)(draw() % N), 3}, {(int32_t)(draw() % N), -100}};
        int32_t stop[2] = {(int32_t)(draw() % N), (int32_t)(draw() % N)};
        sampling r = neutral();
        r.temperature = 0;
        r.repetition_penalty = round % 3 ? 1 + (float)(draw() % 10) / 10 : 1;
        r.presence_penalty = round % 2 ? (float)(draw() % 40) / 10 - 2 : 0;
        r.frequency_penalty = round % 5 ? (float)(draw() % 40) / 10 - 2 : 0;
        r.bias = bias;
        r.n_bias = (int)(draw() % 3);
        r.stop_id = stop;
        r.n_stop_id = 2;
        r.min_tokens = (int)(draw() % 30);
        r.n_top = 5;
        memcpy(copy, l, N * sizeof(*copy));
        oracle_adjust(copy, &r, prompt, n_prompt, output, n_output, N);
        entry want[N];
        double lse = 0;
        for (int i = 0; i < N; i++) lse += exp((double)copy[i]);
        lse = log(lse);
        sampling one = neutral();
        (void)oracle(copy, N, &one, want);
        sampled t;
        sampler_pick(sp, l, &r, NULL, prompt, n_prompt, output, n_output, &t);
        ck_assert_int_eq(t.token, want[0].id);
        ck_assert(fabs((double)t.logprob - ((double)copy[t.token] - lse)) < 1e-5);
        ck_assert_int_eq(t.n_top, 5);
        for (int i = 0; i < 5; i++) {
            ck_assert_int_eq(t.top_id[i], want[i].id);
            ck_assert(fabs((double)t.top_logprob[i] - ((double)copy[want[i].id] - lse)) < 1e-5);
        }
        free(l);
        free(copy);
    }
    sampler_destroy(sp);
}
END_TEST

/* The model's own, with what bars and penalises, what was drawn from: each by its formula. */
START_TEST(log_probabilities_are_of_the_distribution_that_is_asked_for)
{
    enum { N = 60, ASKED = 20 };
    sampler *sp = sampler_create(N);
    int32_t seen[2] = {3, 9};
    logit_bias bias = {4, 2.5F};
    for (size_t k = 0; k < sizeof(rules) / sizeof(*rules); k++) {
        for (int mode = LOGPROBS_ADJUSTED; mode <= LOGPROBS_RAW; mode++) {
            float *l = random_logits(N, 3), *own = malloc(N * sizeof(*own)),
                  *after = malloc(N * sizeof(*after));
            memcpy(own, l, N * sizeof(*own));
            memcpy(after, l, N * sizeof(*after));
            sampling r = rules[k];
            r.seed = k;
            r.bias = &bias;
            r.n_bias = 1;
            r.presence_penalty = 1.5F;
            r.n_top = ASKED;
            r.logprobs = (logprobs_mode)mode;
            oracle_adjust(after, &r, NULL, 0, seen, 2, N);
            sampling one = neutral();
            entry want[N];
            int kept = mode == LOGPROBS_PROCESSED ? oracle(after, N, &r, want)
                                                  : oracle(mode ? own : after, N, &one, want);
            sampled t;
            sampler_pick(sp, l, &r, NULL, NULL, 0, seen, 2, &t);
            int at = 0;
            while (at < kept && want[at].id != t.token) at++;
            ck_assert_msg(at < kept, "rules %zu, mode %d: %d was not to be drawn", k, mode,
                          t.token);
            ck_assert(fabs((double)t.logprob - log(want[at].p)) < 1e-4);
            ck_assert_int_eq(t.n_top, kept < ASKED ? kept : ASKED);
            for (int i = 0; i < t.n_top; i++) {
                ck_assert_int_eq(t.top_id[i], want[i].id);
                ck_assert(fabs((double)t.top_logprob[i] - log(want[i].p)) < 1e-4);
            }
            free(l);
            free(own);
            free(after);
        }
    }
    sampling r = neutral(); /* greedy: the temperature is none */
    r.temperature = 0;
    r.n_top = 0;
    for (int mode = LOGPROBS_ADJUSTED; mode <= LOGPROBS_RAW; mode++) {
        float l[4] = {1, 3, 2, 0};
        sampled t;
        r.logprobs = (logprobs_mode)mode;
        sampler *few = sampler_create(4);
        sampler_pick(few, l, &r, NULL, NULL, 0, NULL, 0, &t);
        ck_assert(t.token == 1 &&
                  fabs((double)t.logprob + log(1 + exp(-1) + exp(-2) + exp(-3))) < 1e-5);
        sampler_destroy(few);
    }
    sampler_destroy(sp);
}
END_TEST

START_TEST(a_draw_depends_on_seed_and_number_alone)
{
    enum { N = 1000 };
    sampler *a = sampler_create(N), *b = sampler_create(N);
    float *l = random_logits(N, 1), copy[N];
    int32_t out[64];
    int same_neighbours = 0;
    for (int i = 0; i < 64; i++) {
        sampled t, u, next;
        sampling r = neutral();
        r.seed = 42;
        out[i] = i;
        memcpy(copy, l, sizeof(copy));
        sampler_pick(a, copy, &r, NULL, NULL, 0, out, i, &t);
        sampling other = rules[4]; /* b has served somebody else in between */
        other.frequency_penalty = 1;
        memcpy(copy, l, sizeof(copy));
        sampler_pick(b, copy, &other, NULL, out, i, out, i, &u);
        memcpy(copy, l, sizeof(copy));
        sampler_pick(b, copy, &r, NULL, NULL, 0, out, i, &u);
        ck_assert(memcmp(&t, &u, sizeof(t)) == 0);
        r.seed = 43;
        memcpy(copy, l, sizeof(copy));
        sampler_pick(b, copy, &r, NULL, NULL, 0, out, i, &next);
        same_neighbours += next.token == t.token;
    }
    ck_assert_int_lt(same_neighbours, 6);
    free(l);
    sampler_destroy(a);
    sampler_destroy(b);
}
END_TEST

START_TEST(what_is_not_a_number_is_said)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    sampler *sp = sampler_create(64);
    sampling r = neutral();
    for (int i = 0; i < 3; i++) {
        for (int greedy = 0; greedy < 2; greedy++) {
            float *l = random_logits(64, 2);
            sampled t;
            r.temperature = greedy ? 0 : 1;
            l[37] = bad[i];
            sampler_score(sp, l, 3, 1, &t);
            ck_assert_int_eq(t.token, -1);
            sampler_pick(sp, l, &r, NULL, NULL, 0, NULL, 0, &t);
            ck_assert_int_eq(t.token, -1);
            free(l);
        }
    }
    /* everything banned: no token is right */
    float two[64];
    int32_t all[64];
    sampled t;
    for (int i = 0; i < 64; i++) {
        all[i] = i;
        two[i] = 1;
    }
    r.stop_id = all;
    r.n_stop_id = 64;
    r.min_tokens = 1;
    sampler_pick(sp, two, &r, NULL, NULL, 0, NULL, 0, &t);
    ck_assert_int_eq(t.token, -1);
    sampler_destroy(sp);
}
END_TEST

START_TEST(extreme_logits_and_temperatures_stay_right)
{
    sampler *sp = sampler_create(3);
    for (int i = 0; i < 20; i++) {
        float l[3] = {1e30F, -1e30F, 3e30F};
        sampled t;
        sampling r = neutral();
        r.seed = (uint64_t)i;
        r.temperature = i % 2 ? 1e-6F : 2;
        r.top_p = i % 3 ? 1 : 0.9F;
        r.n_top = 2;
        sampler_pick(sp, l, &r, NULL, NULL, 0, NULL, 0, &t);
        ck_assert_int_eq(t.token, 2);
        ck_assert(fabsf(t.logprob) < 1e-6F);
    }
    sampler_destroy(sp);
}
END_TEST

/* Under a mask: nothing else is drawn, and all is as if the others did not exist. */
START_TEST(only_what_is_allowed_is_drawn)
{
    enum { N = 1000 };
    sampler *sp = sampler_create(N);
    uint32_t allowed[(N + 31) / 32];
    for (int round = 0; round < 200; round++) {
        sampling r = neutral();
        r.temperature = round % 5 == 0 ? 0 : 1.5F;
        r.top_k = round % 3 == 0 ? 7 : 0;
        r.top_p = round % 4 == 0 ? 0.8F : 1;
        r.min_p = round % 7 == 0 ? 0.1F : 0;
        r.n_top = 5;
        r.seed = (uint64_t)round;
        int n_allowed = 1 + round % 9;
        int32_t ids[9];
        memset(allowed, 0, sizeof(allowed));
        for (int i = 0; i < n_allowed; i++) {
            ids[i] = (int32_t)(draw() % N);
            allowed[ids[i] / 32] |= 1U << (ids[i] % 32);
        }
        float *l = random_logits(N, 8), total = 0;
        float *copy = malloc(N * sizeof(*copy));
        memcpy(copy, l, N * sizeof(*copy));
        sampled out;
        sampler_pick(sp, l, &r, allowed, NULL, 0, NULL, 0, &out);
        ck_assert(out.token >= 0 && (allowed[out.token / 32] >> (out.token % 32) & 1));
        ck_assert_int_le(out.n_top, n_allowed);
        double sum = 0;
        for (int v = 0; v < N; v++) {
            if (allowed[v / 32] >> (v % 32) & 1) sum += exp((double)copy[v]);
        }
        ck_assert_double_eq_tol((double)out.logprob, (double)copy[out.token] - log(sum), 1e-4);
        for (int i = 0; i < out.n_top; i++) {
            int32_t v = out.top_id[i];
            ck_assert(allowed[v / 32] >> (v % 32) & 1);
            total += expf(out.top_logprob[i]);
        }
        if (n_allowed <= 5) ck_assert_float_eq_tol(total, 1, 1e-3F);
        free(copy);
        free(l);
    }
    sampler_destroy(sp);
}
END_TEST

START_TEST(min_tokens_gives_way_where_only_the_end_is_allowed)
{
    enum { N = 40 };
    sampler *sp = sampler_create(N);
    sampling r = neutral();
    int32_t stop[] = {33, 3};
    r.stop_id = stop;
    r.n_stop_id = 2;
    r.min_tokens = 10;
    uint32_t allowed[2] = {1U << 3, 1U << 1};
    sampled out;
    float l[N] = {0};
    sampler_pick(sp, l, &r, allowed, NULL, 0, NULL, 0, &out);
    ck_assert(out.token == 33 || out.token == 3);
    allowed[0] |= 1U << 7; /* now there is a way to go on */
    memset(l, 0, sizeof(l));
    sampler_pick(sp, l, &r, allowed, NULL, 0, NULL, 0, &out);
    ck_assert_int_eq(out.token, 7);
    sampler_destroy(sp);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sampler");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, draws_follow_the_distribution_that_the_rules_leave, 0, 7);
    tcase_add_loop_test(tc, cuts_are_exact_in_large_flat_vocabularies, 0, 3);
    tcase_add_test(tc, greedy_takes_the_lowest_of_equals);
    tcase_add_test(tc, greedy_finds_the_best_in_every_place);
    tcase_add_test(tc, penalties_bias_and_bans_match_the_plain_rules);
    tcase_add_test(tc, log_probabilities_are_of_the_distribution_that_is_asked_for);
    tcase_add_test(tc, a_draw_depends_on_seed_and_number_alone);
    tcase_add_test(tc, what_is_not_a_number_is_said);
    tcase_add_test(tc, only_what_is_allowed_is_drawn);
    tcase_add_test(tc, min_tokens_gives_way_where_only_the_end_is_allowed);
    tcase_add_test(tc, extreme_logits_and_temperatures_stay_right);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
