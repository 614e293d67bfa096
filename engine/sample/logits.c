/* logits.c -- passes over one row of logits: finite, maximum, weights, search.
 *
 * Written with GCC's vector extension, 16 bytes at a time, which compiles to SSE2 and NEON alike.
 * The order of operations is fixed in the source and the exponential is our own
 * (engine/base/exp.h), so every CPU computes the same weights, bit by bit.
 *
 *   logits_finite()  x * 0 is 0 for finite x, NaN otherwise: one multiplication and a comparison
 *   logits_weigh()   exp((x - max) / T), and 0 below 2^-LOGITS_WEIGHT_BITS; returns the lowest
 *                    logit of weight > 0
 *   logits_within()  ids with lo <= x <= hi; blocks of 16 without one are skipped
 *
 * The tail of a row is loaded with a neutral value behind it (vf_load_n()), so there is no scalar
 * copy of the formulas.
 */
#include "engine/sample/logits.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { FOUR = 4, BLOCK = 4 * FOUR };

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf vf_set(float v)
{
    return (vf){v, v, v, v};
}

static inline vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* Loads the last n < 4 values of a row, and `beyond` behind them. */
static inline vf vf_load_n(const float *p, int n, float beyond)
{
    vf v = vf_set(beyond);
    memcpy(&v, p, (size_t)n * sizeof(*p));
    return v;
}

static inline vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

static inline vf vf_greater(vf a, vf b)
{
    return vf_select(a > b, a, b);
}

bool logits_finite(const float *logits, int n)
{
    vi bad = {0};
    int i = 0;
    for (; i + FOUR <= n; i += FOUR) {
        vf v = vf_load(logits + i);
        bad |= v * 0 != vf_set(0); /* infinite or no number: the product is none */
    }
    vf rest = vf_load_n(logits + i, n - i, 0);
    bad |= rest * 0 != vf_set(0);
    return !(bad[0] | bad[1] | bad[2] | bad[3]);
}

float logits_highest(const float *logits, int n)
{
    vf a = vf_set(-INFINITY), b = a;
    int i = 0;
    for (; i + 2 * FOUR <= n; i += 2 * FOUR) {
        a = vf_greater(vf_load(logits + i), a);
        b = vf_greater(vf_load(logits + i + FOUR), b);
    }
    for (; i < n; i += FOUR) {
        a = vf_greater(n - i < FOUR ? vf_load_n(logits + i, n - i, -INFINITY) : vf_load(logits + i),
                       a);
    }
    a = vf_greater(a, b);
    float max = a[0];
    for (int k = 1; k < FOUR; k++) max = a[k] > max ? a[k] : max;
    return max;
}

#include "engine/base/exp.h"

float logits_weigh(float *weight, const float *logits, int n, float max, float temperature)
{
    const vf best = vf_set(max), t = vf_set(temperature);
    const vf floor_x = vf_set(-0.69314718F * (float)LOGITS_WEIGHT_BITS);
    vf least = best;
    for (int i = 0; i < n; i += FOUR) {
        int some = n - i < FOUR ? n - i : FOUR;
        vf v = some < FOUR ? vf_load_n(logits + i, some, -INFINITY) : vf_load(logits + i);
        vf x = (v - best) / t;
        vi weighs = x >= floor_x;
        vf w = vf_exp_within(vf_select(weighs, x, vf_set(0)));
        w = vf_select(weighs, w, vf_set(0));
        vf here = vf_select(weighs, v, best);
        least = vf_select(here < least, here, least);
        memcpy(weight + i, &w, (size_t)some * sizeof(*weight));
    }
    float low = least[0];
    for (int k = 1; k < FOUR; k++) low = least[k] < low ? least[k] : low;
    return low;
}

static bool any(vi mask)
{
    int64_t half[2];
    memcpy(half, &mask, sizeof(half));
    return (half[0] | half[1]) != 0;
}

int logits_first(const float *logits, int n, float value)
{
    const vf wanted = vf_set(value);
    int i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        vi in = {0};
        for (int k = i; k < i + BLOCK; k += FOUR) in |= vf_load(logits + k) == wanted;
        if (any(in)) break;
    }
    while (i < n && logits[i] != value) i++;
    return i;
}

int logits_within(const float *logits, int n, float lo, float hi, int32_t *ids)
{
    const vf low = vf_set(lo), high = vf_set(hi);
    int found = 0;
    for (int i = 0; i < n; i += BLOCK) {
        int end = n - i < BLOCK ? n : i + BLOCK;
        if (end - i == BLOCK) {
            vi in = {0};
            for (int k = i; k < end; k += FOUR) {
                vf v = vf_load(logits + k);
                in |= (v >= low) & (v <= high);
            }
            if (!any(in)) continue;
        }
        for (int k = i; k < end; k++) {
            ids[found] = k;
            found += logits[k] >= lo && logits[k] <= hi;
        }
    }
    return found;
}
