/* golden.h -- golden.bin, which make_goldens.py and make_peft_goldens.py write,
 * and the comparison with it. */
#ifndef TESTS_ENGINE_GOLDEN_H
#define TESTS_ENGINE_GOLDEN_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

enum { TOKENS_MAX = 96, CASES_MAX = 16, TOP_MAX = 8, SAMPLE_MAX = 16 };

typedef struct golden_pos {
    uint16_t top_id[TOP_MAX];
    float top[TOP_MAX], sample[SAMPLE_MAX];
} golden_pos;

typedef struct golden_case {
    int adapter, n_prompt, n_new;
    int32_t token[TOKENS_MAX];
    golden_pos pos[TOKENS_MAX];
} golden_case;

typedef struct golden {
    uint32_t n_vocab, n_case, n_top, n_sample;
    golden_case c[CASES_MAX];
} golden;

static inline void get(FILE *f, void *dst, size_t bytes)
{
    ck_assert_uint_eq(fread(dst, 1, bytes, f), bytes);
}

/* A token's id: a byte where all fit. */
static inline uint16_t get_id(FILE *f, const golden *g)
{
    uint8_t b[2] = {0};
    get(f, b, g->n_vocab <= 256 ? 1 : 2);
    return (uint16_t)(b[0] | b[1] << 8);
}

/* A multiple of -2^-19. */
static inline float get_logprob(FILE *f)
{
    uint8_t b[3];
    get(f, b, sizeof(b));
    return (float)-(b[0] | b[1] << 8 | b[2] << 16) / (float)(1 << 19);
}

static inline void golden_read_case(FILE *f, const golden *g, golden_case *c)
{
    int32_t adapter;
    uint32_t n_prompt, n_new;
    get(f, &adapter, 4);
    get(f, &n_prompt, 4);
    get(f, &n_new, 4);
    ck_assert(adapter >= -1 && adapter < 64 && n_new > 0);
    ck_assert_uint_le(n_prompt + n_new, TOKENS_MAX);
    c->adapter = adapter;
    c->n_prompt = (int)n_prompt;
    c->n_new = (int)n_new;
    for (int i = 0; i < c->n_prompt + c->n_new; i++) c->token[i] = get_id(f, g);
    for (int i = 0; i < c->n_prompt + c->n_new - 1; i++) {
        for (uint32_t k = 0; k < g->n_top; k++) c->pos[i].top_id[k] = get_id(f, g);
        for (uint32_t k = 0; k < g->n_top; k++) c->pos[i].top[k] = get_logprob(f);
        for (uint32_t k = 0; k < g->n_sample; k++) c->pos[i].sample[k] = get_logprob(f);
    }
}

static inline golden *golden_read(const char *dir)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/golden.bin", dir);
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s is missing: run tests from tests/", path);
    golden *g = calloc(1, sizeof(*g));
    char magic[4];
    get(f, magic, 4);
    ck_assert_int_eq(memcmp(magic, "LGL2", 4), 0);
    get(f, &g->n_vocab, 16);
    ck_assert_uint_le(g->n_case, CASES_MAX);
    ck_assert(g->n_top <= TOP_MAX && g->n_sample <= SAMPLE_MAX);
    for (uint32_t i = 0; i < g->n_case; i++) golden_read_case(f, g, &g->c[i]);
    ck_assert_int_eq(fgetc(f), EOF);
    (void)fclose(f);
    return g;
}

/* --------------------------------------------------------------------------- verdict -- */

static inline double log_sum_exp(const float *v, int n)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) max = fmax(max, (double)v[i]);
    for (int i = 0; i < n; i++) sum += exp((double)v[i] - max);
    return max + log(sum);
}

static inline int argmax(const float *v, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++) {
        if (v[i] > v[best]) best = i;
    }
    return best;
}

/* Largest difference of a log-probability; asserts the greedy tokens, where another is not as
 * likely within `near`. */
static inline double compare_near(const golden *g, const golden_case *c, const float *logits,
                                  double near, const char *what)
{
    double worst = 0;
    int n = (int)g->n_vocab;
    for (int p = 0; p < c->n_prompt + c->n_new - 1; p++) {
        const float *row = logits + (size_t)p * (size_t)n;
        double z = log_sum_exp(row, n);
        ck_assert_msg(isfinite(z), "%s: position %d is not finite", what, p);
        for (uint32_t k = 0; k < g->n_top; k++) {
            double d = (double)row[c->pos[p].top_id[k]] - z - (double)c->pos[p].top[k];
            worst = fmax(worst, fabs(d));
        }
        for (uint32_t k = 0; k < g->n_sample; k++) {
            uint32_t id = (31 * (uint32_t)p + 17 * k) % g->n_vocab;
            worst = fmax(worst, fabs((double)row[id] - z - (double)c->pos[p].sample[k]));
        }
        if (p >= c->n_prompt - 1) {
            double ahead = (double)row[argmax(row, n)] - (double)row[c->token[p + 1]];
            ck_assert_msg(ahead <= near, "%s: greedy token at %d", what, p + 1);
        }
    }
    return worst;
}

static inline double compare(const golden *g, const golden_case *c, const float *logits,
                             const char *what)
{
    return compare_near(g, c, logits, 0, what);
}

/* The largest of two rows of logits' log-probabilities. */
static inline double log_prob_difference(const float *a, const float *b, int n)
{
    double worst = 0, za = log_sum_exp(a, n), zb = log_sum_exp(b, n);
    for (int i = 0; i < n; i++)
        worst = fmax(worst, fabs(((double)a[i] - za) - ((double)b[i] - zb)));
    return worst;
}

static inline void assert_same_bits(const float *a, const float *b, int rows, int n_vocab,
                                    const char *what)
{
    for (int p = 0; p < rows; p++) {
        size_t at = (size_t)p * (size_t)n_vocab;
        ck_assert_msg(memcmp(a + at, b + at, 4 * (size_t)n_vocab) == 0,
                      "%s: position %d of %d differs", what, p, rows);
    }
}

#endif
