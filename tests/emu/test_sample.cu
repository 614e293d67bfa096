/* test_sample.cu -- engine/cuda/sample.cu against engine/sample/sampler.c itself: the same rows,
 * rules and seeds must give the same tokens.  Where two candidates are so near that the rounding of
 * exp() decides, either may come: such rows are counted, and must be rare. */
#include "engine/cuda/sample.h"
#include "tests/emu/device_data.h"
#include "tests/run_suite.h"

enum { BATCH = 16, LISTS = 64 };

/* A row's rules with lists in host and device memory. */
typedef struct {
    sampling rules;
    int32_t *prompt, *output;
    int n_prompt, n_output;
    uint32_t *allowed; /* NULL: all */
    logit_bias *bias;
    int32_t *stop;
    float *logits;
    int score;
} row_case;

static void fill_logits(float *l, int n, int kind)
{
    for (int i = 0; i < n; i++) {
        switch (kind) {
        case 0: l[i] = draw_float(8); break;
        case 1: l[i] = draw_float(1) + draw_float(1) + draw_float(1); break;
        case 2: l[i] = (float)(below(5)) - 2; break; /* many ties */
        case 3: l[i] = 0; break;                     /* nothing but ties */
        case 4: l[i] = i % 7 ? -0.0F : 0.0F; break;
        case 5: l[i] = draw_float(0.5F); break;
        default: l[i] = draw_float(30); break;
        }
    }
    if (kind == 5) l[below(n)] = 3e5F; /* one so far away that all others share a bin */
    if (kind == 6) l[below(n)] = -3e30F;
}

static row_case make_case(int n, int i)
{
    row_case c = {};
    c.logits = (float *)malloc((size_t)n * sizeof(float));
    fill_logits(c.logits, n, i % 11 < 7 ? i % 11 : 0);
    sampling *r = &c.rules;
    static const float temperatures[] = {0, 1, 0.7F, 1.5F, 0.05F, 4},
                       tops[] = {1, 0.9F, 0.5F, 0.99F, 1, 0.999F}, least[] = {0, 0, 0.05F, 0.3F};
    static const int ks[] = {0, 1, 5, 50, 0, 300, 3000};
    r->temperature = temperatures[draw() % 6];
    r->top_p = tops[draw() % 6];
    r->min_p = least[draw() % 4];
    r->top_k = ks[draw() % 7];
    r->repetition_penalty = below(3) ? 1 : 1.3F;
    r->presence_penalty = below(3) ? 0 : 0.6F;
    r->frequency_penalty = below(3) ? 0 : 0.25F;
    r->seed = (uint64_t)draw() << 31 ^ draw();
    r->n_top = below(3) - 1;
    if (r->n_top == 1) r->n_top = 1 + below(20);
    r->logprobs = i % 2 ? LOGPROBS_PROCESSED : LOGPROBS_ADJUSTED;
    c.n_prompt = below(LISTS);
    c.n_output = below(LISTS);
    c.prompt = (int32_t *)malloc(LISTS * 4);
    c.output = (int32_t *)malloc(LISTS * 4);
    for (int k = 0; k < LISTS; k++) c.prompt[k] = below(n);
    for (int k = 0; k < LISTS; k++)
        c.output[k] = below(k % 2 && n > 9 ? 9 : n); /* some of them often */
    r->n_bias = below(2) ? below(9) : 0;
    c.bias = (logit_bias *)malloc(LISTS * sizeof(logit_bias));
    for (int k = 0; k < r->n_bias; k++)
        c.bias[k] = {k % 4 == 3 ? c.bias[0].token : below(n), draw_float(100)};
    r->bias = c.bias;
    r->n_stop_id = below(3);
    c.stop = (int32_t *)malloc(8);
    for (int k = 0; k < 2; k++) c.stop[k] = below(n);
    r->stop_id = c.stop;
    r->min_tokens = below(LISTS);
    if (below(3) == 0) {
        size_t words = (size_t)(n + 31) / 32;
        c.allowed = (uint32_t *)calloc(words, 4);
        int kind = below(3), many = kind == 0 ? 3 : kind == 1 ? n / 10 + 1 : 0;
        for (int k = 0; k < many; k++) {
            int t = below(n);
            c.allowed[t / 32] |= 1U << t % 32;
        }
        for (int k = 0; k < 2 && kind == 2; k++) c.allowed[c.stop[k] / 32] |= 1U << c.stop[k] % 32;
    }
    c.score = i % 13 == 7 ? below(n) : -1;
    return c;
}

static void drop_case(row_case *c)
{
    free(c->logits);
    free(c->prompt);
    free(c->output);
    free(c->bias);
    free(c->stop);
    free(c->allowed);
}

static cu_sample_row device_row(const row_case *c, int n, int at, void **keep)
{
    const sampling *r = &c->rules;
    cu_sample_row d = {};
    d.logit_row = at;
#define COPY(kind, name, low, high, neutral, most, gguf) d.name = r->name;
    SAMPLING_LIST(COPY)
#undef COPY
    d.seed = r->seed;
    d.n_bias = r->n_bias;
    d.n_stop_id = r->n_stop_id;
    keep[0] = to_device(c->bias, (size_t)r->n_bias * sizeof(logit_bias));
    keep[1] = to_device(c->stop, (size_t)r->n_stop_id * 4);
    keep[2] = to_device(c->prompt, (size_t)c->n_prompt * 4);
    keep[3] = to_device(c->output, (size_t)c->n_output * 4);
    keep[4] = c->allowed ? to_device(c->allowed, (size_t)(n + 31) / 32 * 4) : NULL;
    d.bias = (logit_bias *)keep[0];
    d.stop_id = (int32_t *)keep[1];
    d.prompt = (int32_t *)keep[2];
    d.output = (int32_t *)keep[3];
    d.allowed = (uint32_t *)keep[4];
    d.n_vocab = n;
    d.n_prompt = c->n_prompt;
    d.n_output = c->n_output;
    d.n_top = r->n_top;
    d.processed = r->logprobs == LOGPROBS_PROCESSED;
    d.score = c->score;
    return d;
}

/* The device's answers for n_case rows, whose logits stand in another order than the rows. */
static sampled *run_device(const row_case *c, int n_case, int n)
{
    int stride = n + 3;
    float *logits = device_empty((size_t)n_case * stride);
    cu_sample_row *rows = (cu_sample_row *)emu_alloc(((size_t)n_case + 1) * sizeof(*rows));
    void *keep[BATCH][5];
    for (int i = 0; i < n_case; i++) {
        int at = n_case - 1 - i;
        memcpy(logits + (size_t)at * stride, c[i].logits, (size_t)n * 4);
        emu_wrote(logits + (size_t)at * stride, (size_t)n * 4);
        rows[i] = device_row(&c[i], n, at, keep[i]);
    }
    rows[n_case] = {};
    rows[n_case].logit_row = -1; /* left out */
    emu_wrote(rows, ((size_t)n_case + 1) * sizeof(*rows));
    sampled *out = (sampled *)emu_alloc(((size_t)n_case + 1) * sizeof(*out));
    cu_sample_args a = {logits, rows, out, n_case + 1, stride};
    ck_assert_int_eq(cu_sample(NULL, &a), cudaSuccess);
    sampled *copy = (sampled *)malloc((size_t)(n_case + 1) * sizeof(*copy));
    memcpy(copy, out, (size_t)n_case * sizeof(*out));
    ck_assert_ptr_nonnull(emu_first_unwritten(&out[n_case], 4));
    for (int i = 0; i < n_case; i++) {
        for (void *p : keep[i]) {
            if (p) emu_free(p);
        }
    }
    emu_free(logits);
    emu_free(rows);
    emu_free(out);
    return copy;
}

static sampled run_host(sampler *sp, const row_case *c, int n)
{
    float *l = (float *)malloc((size_t)n * sizeof(float));
    memcpy(l, c->logits, (size_t)n * sizeof(float));
    sampled out;
    if (c->score >= 0) {
        sampler_score(sp, l, c->score, c->rules.n_top, &out);
    } else {
        sampler_pick(sp, l, &c->rules, c->allowed, c->prompt, c->n_prompt, c->output, c->n_output,
                     &out);
    }
    free(l);
    return out;
}

/* Returns whether the token is another one. */
static bool compare(const sampled *got, const sampled *want, const row_case *c, int n, int i)
{
    if (got->token != want->token) {
        bool sharp = want->token < 0 || c->rules.temperature <= 0 || c->score >= 0;
        ck_assert_msg(!sharp, "vocabulary %d, row %d: token %d instead of %d", n, i, got->token,
                      want->token);
        return true;
    }
    ck_assert_int_eq(got->n_top, want->n_top);
    ck_assert_int_eq(got->rank, want->rank);
    ck_assert_msg(fabsf(got->logprob - want->logprob) <= 1e-5F * (1 + fabsf(want->logprob)),
                  "vocabulary %d, row %d: log-probability %g instead of %g", n, i, got->logprob,
                  want->logprob);
    for (int k = 0; k < want->n_top; k++) {
        ck_assert_msg(got->top_id[k] == want->top_id[k],
                      "vocabulary %d, row %d: alternative %d is %d, not %d", n, i, k,
                      got->top_id[k], want->top_id[k]);
        ck_assert(fabsf(got->top_logprob[k] - want->top_logprob[k]) <=
                  1e-5F * (1 + fabsf(want->top_logprob[k])));
    }
    return false;
}

static const int vocabularies[] = {500, 33, 1, 2500, 8000, 9001};

START_TEST(rows_are_sampled_as_the_host_does)
{
    int n = vocabularies[_i], batches = n > 1000 ? 6 : 24, other = 0;
    rng_state = 100 + (uint64_t)_i;
    sampler *sp = sampler_create(n);
    for (int b = 0; b < batches; b++) {
        emu_seed((uint64_t)(b % 3));
        row_case c[BATCH];
        for (int i = 0; i < BATCH; i++) c[i] = make_case(n, b * BATCH + i);
        sampled *got = run_device(c, BATCH, n);
        for (int i = 0; i < BATCH; i++) {
            sampled want = run_host(sp, &c[i], n);
            other += compare(&got[i], &want, &c[i], n, b * BATCH + i);
        }
        /* A row alone: the same bits. */
        sampled *one = run_device(c + b % BATCH, 1, n);
        ck_assert_int_eq(one->token, got[b % BATCH].token);
        ck_assert_mem_eq(&one->logprob, &got[b % BATCH].logprob, sizeof(float));
        free(one);
        free(got);
        for (int i = 0; i < BATCH; i++) drop_case(&c[i]);
    }
    ck_assert_msg(other <= 1, "%d of %d rows have another token than the host's", other,
                  batches * BATCH);
    sampler_destroy(sp);
}
END_TEST

/* Long tails: thousands of candidates are kept, in several bands. */
START_TEST(long_tails_go_through_all_bands)
{
    const int n = 8000;
    rng_state = 9;
    sampler *sp = sampler_create(n);
    int other = 0;
    for (int b = 0; b < 2; b++) {
        row_case c[BATCH];
        for (int i = 0; i < BATCH; i++) {
            c[i] = make_case(n, 11 * b);
            fill_logits(c[i].logits, n, i % 6);
            free(c[i].allowed);
            c[i].allowed = NULL;
            c[i].score = -1;
            c[i].rules.temperature = 3;
            c[i].rules.min_p = 0;
            c[i].rules.top_p = i % 2 ? 0.9999F : 0.98F;
            c[i].rules.top_k = i % 3 ? 0 : 7000;
            c[i].rules.n_top = 20;
            c[i].rules.n_bias = 0;
        }
        sampled *got = run_device(c, BATCH, n);
        for (int i = 0; i < BATCH; i++) {
            sampled want = run_host(sp, &c[i], n);
            other += compare(&got[i], &want, &c[i], n, i);
            drop_case(&c[i]);
        }
        free(got);
    }
    ck_assert_int_le(other, 1);
    sampler_destroy(sp);
}
END_TEST

START_TEST(broken_rows_say_so_alone)
{
    const int n = 500;
    row_case c[4];
    rng_state = 3;
    for (int i = 0; i < 4; i++) {
        c[i] = make_case(n, 1);
        c[i].score = i == 2 ? 7 : -1;
    }
    c[1].logits[499] = NAN;
    c[2].logits[0] = INFINITY;
    c[3].logits[250] = -INFINITY;
    sampled *got = run_device(c, 4, n);
    ck_assert_int_ge(got[0].token, 0);
    for (int i = 1; i < 4; i++) ck_assert_int_eq(got[i].token, -1);
    free(got);
    for (row_case &x : c) drop_case(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sample");
    TCase *t = tcase_create("sample");
    tcase_set_timeout(t, 250);
    tcase_add_loop_test(t, rows_are_sampled_as_the_host_does, 0, 6);
    tcase_add_test(t, long_tails_go_through_all_bands);
    tcase_add_test(t, broken_rows_say_so_alone);
    suite_add_tcase(s, t);
    return run_suite(s);
}
