/* cut.c -- top-k, top-p and min-p over a whole vocabulary without sorting it.
 *
 * Order statistics by radix selection. Tokens are ranked by logit, ties by id. find() returns the
 * token at which a running sum over this ranking, of counts (top-k) or of weights (top-p), passes a
 * target:
 *
 *   1. a histogram of 2^11 buckets that divide the range of logits evenly: sum of weights and count
 *      per bucket; the target falls into one bucket
 *   2. the tokens of that bucket are listed (logits_within())
 *   3. narrow() splits the list by 11 more bits of the float's ordinal number, until it holds equal
 *      logits only
 *
 * All three rules become a total weight: mass_left() is the weight of what they leave, because each
 * keeps a prefix of the ranking. The draw then is one more find() with a random target below that
 * weight.
 *
 * Weights are integers (cut_units()), so sums are exact and independent of order: the same inputs
 * draw the same token on every CPU.
 *
 * Cost: two or three passes over the row, and a list as long as the fullest bucket. Threads: a cut
 * belongs to its sampler.
 */
#include "engine/sample/cut.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sample/logits.h"

enum {
    DIGIT = 11,
    BUCKETS = 1 << DIGIT,
    BESIDE = 8, /* extra buckets for tokens of weight 0: no branch, and no chain of dependent
                 * additions */
};

typedef struct {
    uint64_t mass[BUCKETS + BESIDE];
    uint32_t heads[BUCKETS + BESIDE];
} histogram;

struct cut {
    int n, n_max;
    const float *logits;
    float max, temperature;
    uint32_t top;        /* the best's place among all floats */
    float least;         /* the last that weighs something */
    float scale;         /* of a distance in logits: in buckets of `all` */
    float *weight;       /* [n_max] */
    int32_t *list;       /* [n_max]: ids of a bucket, ascending */
    uint64_t mass;       /* of all */
    uint32_t heads;      /* that weigh something; 0: not counted */
    histogram all, some; /* of the row; of a bucket */
};

cut *cut_create(int n_max)
{
    cut *c = calloc(1, sizeof(*c));
    if (!c) return NULL;
    c->n_max = n_max;
    c->weight = malloc((size_t)n_max * sizeof(*c->weight));
    c->list = malloc((size_t)n_max * sizeof(*c->list));
    if (c->weight && c->list) return c;
    cut_destroy(c);
    return NULL;
}

void cut_destroy(cut *c)
{
    if (!c) return;
    free(c->weight);
    free(c->list);
    free(c);
}

/* ------------------------------------------------------------------------ units -- */

uint64_t cut_units(float weight)
{
    return (uint64_t)(int64_t)(weight * (float)(INT64_C(1) << LOGITS_WEIGHT_BITS));
}

uint64_t cut_share(float top_p, uint64_t mass)
{
    uint64_t need = (uint64_t)ceil((double)top_p * (double)mass);
    return need < 1 ? 1 : need < mass ? need : mass;
}

uint64_t cut_aim(double u, uint64_t mass)
{
    uint64_t unit = (uint64_t)(u * (double)mass);
    return unit < mass ? unit : mass - 1; /* rounding */
}

float cut_floor(float max, float temperature, float min_p)
{
    if (min_p <= 0) return -INFINITY;
    return (float)((double)max + (double)temperature * log((double)min_p));
}

/* Ordinal number of a float: ascending, equal floats have equal numbers. */
static inline uint32_t place_of(float logit)
{
    float f = logit + 0.0F; /* -0 becomes 0 */
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u >> 31 ? ~u : u | 0x80000000U;
}

static float float_at(uint32_t place)
{
    uint32_t u = place >> 31 ? place & 0x7FFFFFFFU : ~place;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static int bits_of(uint32_t v)
{
    return v ? 32 - __builtin_clz(v) : 0;
}

/* ---------------------------------------------------------------------- the row -- */

/* Number of representable floats between the logit and the highest one. */
static inline uint32_t below_best(const cut *c, int32_t token)
{
    return c->top - place_of(c->logits[token]);
}

void cut_begin(cut *c, const float *logits, int n, float max, float temperature)
{
    assert(n > 0 && n <= c->n_max && isfinite(max) && temperature > 0);
    c->n = n;
    c->logits = logits;
    c->max = max;
    c->temperature = temperature;
    c->least = logits_weigh(c->weight, logits, n, max, temperature);
    c->top = place_of(max);
    c->scale = (float)(BUCKETS - 1) / (max - c->least);
    if (!isfinite(c->scale)) c->scale = 0; /* they are equal, or nearly: one bucket */
    c->mass = 0;
    c->heads = 0;
}

uint64_t cut_weight(const cut *c, int32_t token)
{
    assert(token >= 0 && token < c->n);
    return cut_units(c->weight[token]);
}

/* How far to the right bits go, so that values below 2^bits fall into BUCKETS. */
static int shift_of(int bits)
{
    return bits > DIGIT ? bits - DIGIT : 0;
}

/* Bucket of a logit: rises as the logit falls, so a bucket is a contiguous part of the ranking.
 * Buckets divide the range of logits evenly, so neither a flat row nor one around 0 fills only a
 * few. */
static inline uint32_t bucket_of(const cut *c, float logit)
{
    float x = (c->max - logit) * c->scale;
    return x > 0 ? (uint32_t)x : 0; /* no number: they are too far apart for a scale */
}

/* The last ordinal number of a bucket, counted down from the highest logit (binary search). */
static uint32_t end_of(const cut *c, uint32_t bucket)
{
    uint32_t in = 0, beyond = c->top - place_of(c->least) + 1;
    while (beyond - in > 1) {
        uint32_t half = in + (beyond - in) / 2;
        if (bucket_of(c, float_at(c->top - half)) <= bucket)
            in = half;
        else
            beyond = half;
    }
    return in;
}

/* Fills the histogram; `heads`: also with counts. */
static inline __attribute__((always_inline)) void fill(cut *c, bool heads)
{
    histogram *h = &c->all;
    for (int i = 0; i < c->n; i++) {
        float v = c->logits[i];
        uint32_t b = v >= c->least ? bucket_of(c, v) : BUCKETS + (uint32_t)i % BESIDE;
        if (heads) h->heads[b]++;
        h->mass[b] += cut_weight(c, i);
    }
}

/* Only top-k needs the counts. */
static void count_row(cut *c, bool heads)
{
    histogram *h = &c->all;
    memset(h, 0, sizeof(*h));
    c->mass = 0;
    c->heads = 0;
    if (heads)
        fill(c, true);
    else
        fill(c, false);
    for (int b = 0; b < BUCKETS; b++) {
        c->mass += h->mass[b];
        c->heads += h->heads[b];
    }
}

/* ------------------------------------------------------------------------- find -- */

/* What a running sum adds up. */
typedef enum { HEADS, MASS } measure;

typedef struct {
    uint64_t heads, mass;
} sums;

static uint64_t measured(sums s, measure by)
{
    return by == HEADS ? s.heads : s.mass;
}

/* The bucket in which the sum passes `target`; *at grows by those before it. */
static uint32_t walk(const histogram *h, measure by, uint64_t target, sums *at)
{
    for (uint32_t b = 0;; b++) {
        assert(b < BUCKETS);
        sums next = {at->heads + h->heads[b], at->mass + h->mass[b]};
        if (measured(next, by) > target) return b;
        *at = next;
    }
}

/* Keeps, of the n listed tokens, whose ordinals are `from` to from + 2^bits - 1 below the best,
 * those of the bucket in which the sum passes `target`; *from becomes that bucket's first. Returns
 * how many. */
static int narrow(cut *c, int n, uint32_t *from, int bits, measure by, uint64_t target, sums *at)
{
    histogram *h = &c->some;
    int shift = shift_of(bits), kept = 0;
    memset(h, 0, sizeof(*h));
    for (int i = 0; i < n; i++) {
        uint32_t b = (below_best(c, c->list[i]) - *from) >> shift;
        h->heads[b]++;
        h->mass[b] += cut_weight(c, c->list[i]);
    }
    uint32_t bucket = walk(h, by, target, at);
    for (int i = 0; i < n; i++) {
        int32_t token = c->list[i];
        c->list[kept] = token;
        kept += (below_best(c, token) - *from) >> shift == bucket;
    }
    *from += bucket << shift;
    return kept;
}

/* The token at which the running sum over the ranking passes `target` (less than the total); *mass:
 * the weight up to and including it. */
static int32_t find(cut *c, measure by, uint64_t target, uint64_t *mass)
{
    sums at = {0, 0};
    uint32_t bucket = walk(&c->all, by, target, &at);
    uint32_t from = bucket > 0 ? end_of(c, bucket - 1) + 1 : 0, last = end_of(c, bucket);
    int n =
        logits_within(c->logits, c->n, float_at(c->top - last), float_at(c->top - from), c->list);
    for (int bits = bits_of(last - from); bits > 0 && n > 1; bits = shift_of(bits))
        n = narrow(c, n, &from, bits, by, target, &at);
    for (int i = 0;; i++) { /* equals */
        assert(i < n);
        at.heads++;
        at.mass += cut_weight(c, c->list[i]);
        *mass = at.mass;
        if (measured(at, by) > target) return c->list[i];
    }
}

static uint64_t mass_from(const cut *c, float least)
{
    uint64_t mass = 0;
    for (int i = 0; i < c->n; i++) mass += c->logits[i] >= least ? cut_weight(c, i) : 0;
    return mass;
}

/* Total weight of the tokens that the three rules leave. */
static uint64_t mass_left(cut *c, int top_k, float top_p, float min_p)
{
    if (c->mass == 0 || (top_k > 0 && c->heads == 0)) count_row(c, top_k > 0); /* not yet */
    uint64_t mass = c->mass;
    if (top_k > 0 && (uint32_t)top_k < c->heads) (void)find(c, HEADS, (uint64_t)top_k - 1, &mass);
    if (top_p < 1) (void)find(c, MASS, cut_share(top_p, mass) - 1, &mass);
    if (min_p > 0) {
        uint64_t likely = mass_from(c, cut_floor(c->max, c->temperature, min_p));
        mass = likely < mass ? likely : mass;
    }
    return mass;
}

int32_t cut_draw(cut *c, int top_k, float top_p, float min_p, double u)
{
    uint64_t mass = mass_left(c, top_k, top_p, min_p);
    return find(c, MASS, cut_aim(u, mass), &mass);
}

int32_t cut_last(cut *c, int top_k, float top_p, float min_p)
{
    uint64_t mass = mass_left(c, top_k, top_p, min_p);
    return find(c, MASS, mass - 1, &mass);
}

int32_t cut_draw_any(const cut *c, double u)
{
    uint64_t mass = 0, at = 0;
    for (int i = 0; i < c->n; i++) mass += cut_weight(c, i);
    uint64_t target = cut_aim(u, mass);
    for (int i = 0;; i++) {
        assert(i < c->n);
        at += cut_weight(c, i);
        if (at > target) return i;
    }
}
