/* rows_kernels.h -- the kernels of rows.h; included once by each
 * rows_<isa>.c with KERNELS defined. */
#include <math.h>

#include "engine/cpu/rows.h"
#include "engine/cpu/vec.h"

static void rms_norm(float *out, const float *x, const float *weight, float eps, int dim)
{
    vf acc = vf_set(0);
    int i = 0;
    for (; i + VEC <= dim; i += VEC) {
        vf v = vf_load(x + i);
        acc += v * v;
    }
    if (i < dim) {
        vf v = vf_load_n(x + i, dim - i);
        acc += v * v;
    }
    float inv = 1.0F / sqrtf(vf_sum(acc) / (float)dim + eps);
    for (i = 0; i + VEC <= dim; i += VEC) {
        vf_store(out + i, vf_load(x + i) * vf_set(inv) * vf_load(weight + i));
    }
    if (i < dim) {
        vf v = vf_load_n(x + i, dim - i) * vf_set(inv) * vf_load_n(weight + i, dim - i);
        vf_store_n(out + i, v, dim - i);
    }
}

/* x / (1 + exp(-x)); for x below -87 the exponential is capped at e^88,
 * the result a tiny negative. */
static inline __attribute__((always_inline)) vf silu(vf x)
{
    return x / (vf_set(1.0F) + vf_exp(-x));
}

/* The mean first, then the squares of what is left: as exact as f32 gets. */
static void layer_norm(float *out, const float *x, const float *weight, const float *bias,
                       float eps, int dim)
{
    vf acc = vf_set(0);
    int i = 0;
    for (; i + VEC <= dim; i += VEC) acc += vf_load(x + i);
    if (i < dim) acc += vf_load_n(x + i, dim - i);
    float mean = vf_sum(acc) / (float)dim, sum = 0;
    acc = vf_set(0);
    for (i = 0; i + VEC <= dim; i += VEC) {
        vf v = vf_load(x + i) - vf_set(mean);
        acc += v * v;
    }
    for (; i < dim; i++) sum += (x[i] - mean) * (x[i] - mean);
    float inv = 1.0F / sqrtf((vf_sum(acc) + sum) / (float)dim + eps);
    for (i = 0; i < dim; i++) out[i] = (x[i] - mean) * inv * weight[i] + (bias ? bias[i] : 0.0F);
}

/* x / 2 * (1 + tanh(t)), t = sqrt(2 / pi) * (x + 0.044715 x^3), is x times the sigmoid of 2 t. */
static inline __attribute__((always_inline)) vf gelu(vf x)
{
    vf t = vf_set(1.5957691216F) * (x + vf_set(0.044715F) * x * x * x);
    return x / (vf_set(1.0F) + vf_exp(-t));
}

static inline __attribute__((always_inline)) vf clamped(vf x, vf y)
{
    vf most = vf_set(7.0F), least = vf_set(-7.0F);
    x = vf_lesser(most, x);
    y = vf_lesser(most, vf_greater(least, y));
    return x / (vf_set(1.0F) + vf_exp(x * vf_set(-1.702F))) * (y + vf_set(1.0F));
}

typedef enum { SILU_MUL, GELU_MUL, CLAMPED_MUL, SILU, GELU, SCALE, BEND } map_kind;

/* Of one vector x, and y beside it; `kind` is known where this is inlined. */
static inline __attribute__((always_inline)) vf mapped(const map_kind kind, vf x, vf y, float scale,
                                                       float cap)
{
    switch (kind) {
    case SILU_MUL: return silu(x) * y;
    case GELU_MUL: return gelu(x) * y;
    case CLAMPED_MUL: return clamped(x, y);
    case SILU: return silu(x);
    case GELU: return gelu(x);
    case SCALE: return x * vf_set(scale);
    case BEND: return vf_cap(x * vf_set(scale), cap);
    }
    return x;
}

static inline __attribute__((always_inline)) void map(const map_kind kind, float *x, const float *y,
                                                      size_t n, float scale, float cap)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC)
        vf_store(x + i, mapped(kind, vf_load(x + i), y ? vf_load(y + i) : vf_set(0), scale, cap));
    if (i < n) {
        int left = (int)(n - i);
        vf v = y ? vf_load_n(y + i, left) : vf_set(0);
        vf_store_n(x + i, mapped(kind, vf_load_n(x + i, left), v, scale, cap), left);
    }
}

static void silu_mul(float *gate, const float *up, size_t n)
{
    map(SILU_MUL, gate, up, n, 1, 0);
}

static void gelu_mul(float *gate, const float *up, size_t n)
{
    map(GELU_MUL, gate, up, n, 1, 0);
}

static void clamped_mul(float *gate, const float *up, size_t n)
{
    map(CLAMPED_MUL, gate, up, n, 1, 0);
}

static void silu_alone(float *x, size_t n)
{
    map(SILU, x, NULL, n, 1, 0);
}

static void gelu_alone(float *x, size_t n)
{
    map(GELU, x, NULL, n, 1, 0);
}

static void add(float *x, const float *y, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] += scale * y[i];
}

static void bend(float *x, float scale, float cap, size_t n)
{
    if (cap > 0)
        map(BEND, x, NULL, n, scale, cap);
    else
        map(SCALE, x, NULL, n, scale, 0);
}

const row_kernels KERNELS = {rms_norm,   layer_norm, silu_mul, gelu_mul, clamped_mul,
                             silu_alone, gelu_alone, add,      bend};
