/* rows_kernels.h -- the kernels of rows.h; included once by each
 * rows_<isa>.c with KERNELS defined. */
#include <math.h>

#include "engine/cpu/rows.h"
#include "engine/cpu/vec.h"

static void rms_norm(float *out, const float *x, const float *gain, float eps, int dim)
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
        vf_store(out + i, vf_load(x + i) * vf_set(inv) * vf_load(gain + i));
    }
    if (i < dim) {
        vf v = vf_load_n(x + i, dim - i) * vf_set(inv) * vf_load_n(gain + i, dim - i);
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
static void layer_norm(float *out, const float *x, const float *gain, const float *bias, float eps,
                       int dim)
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
    for (i = 0; i < dim; i++) out[i] = (x[i] - mean) * inv * gain[i] + (bias ? bias[i] : 0.0F);
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

static inline __attribute__((always_inline)) vf relu2(vf x)
{
    vf y = vf_greater(x, vf_set(0));
    return y * y;
}

/* x times the share of a normal distribution below x.  erfc(z) for z >= 0 is a polynomial of
 * 1 / (1 + 0.3275911 z) times exp(-z z), within 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26). */
static inline __attribute__((always_inline)) vf gelu_exact(vf x)
{
    vf z = vf_greater(x, -x) * vf_set(0.70710678F);
    vf t = vf_set(1) / (vf_set(1) + vf_set(0.3275911F) * z);
    vf p = vf_set(1.061405429F) * t + vf_set(-1.453152027F);
    p = p * t + vf_set(1.421413741F);
    p = p * t + vf_set(-0.284496736F);
    p = p * t + vf_set(0.254829592F);
    vf below = vf_set(0.5F) * p * t * vf_exp(-z * z);
    return x * vf_select((vi)(x > vf_set(0)), vf_set(1) - below, below);
}

static inline __attribute__((always_inline)) vf relu(vf x)
{
    return vf_greater(x, vf_set(0));
}

typedef enum {
    SILU_MUL,
    GELU_MUL,
    CLAMPED_MUL,
    RELU2_MUL,
    GELU_EXACT_MUL,
    RELU_MUL,
    SIGMOID_MUL,
    SILU,
    GELU,
    RELU2,
    GELU_EXACT,
    RELU,
    SCALE,
    BEND
} map_kind;

/* Of one vector x, and y beside it; `kind` is known where this is inlined. */
static inline __attribute__((always_inline)) vf mapped(const map_kind kind, vf x, vf y, float scale,
                                                       float cap)
{
    switch (kind) {
    case SILU_MUL: return silu(x) * y;
    case GELU_MUL: return gelu(x) * y;
    case CLAMPED_MUL: return clamped(x, y);
    case RELU2_MUL: return relu2(x) * y;
    case GELU_EXACT_MUL: return gelu_exact(x) * y;
    case RELU_MUL: return relu(x) * y;
    case SIGMOID_MUL: return x / (vf_set(1.0F) + vf_exp(-y));
    case SILU: return silu(x);
    case GELU: return gelu(x);
    case RELU2: return relu2(x);
    case GELU_EXACT: return gelu_exact(x);
    case RELU: return relu(x);
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

/* `one` of x, or `two` of x and up beside it: each known where this is inlined. */
static inline __attribute__((always_inline)) void map_gate(const map_kind one, const map_kind two,
                                                           float *x, const float *up, size_t n)
{
    if (up)
        map(two, x, up, n, 1, 0);
    else
        map(one, x, NULL, n, 1, 0);
}

static void gate(activation act, float *x, const float *up, size_t n)
{
    switch (act) {
    case ACT_SILU: map_gate(SILU, SILU_MUL, x, up, n); return;
    case ACT_GELU_TANH: map_gate(GELU, GELU_MUL, x, up, n); return;
    case ACT_SWIGLU_CLAMPED: map(CLAMPED_MUL, x, up, n, 1, 0); return;
    case ACT_RELU2: map_gate(RELU2, RELU2_MUL, x, up, n); return;
    case ACT_GELU: map_gate(GELU_EXACT, GELU_EXACT_MUL, x, up, n); return;
    case ACT_RELU: map_gate(RELU, RELU_MUL, x, up, n); return;
    case ACT_XIELU: return; /* xielu() */
    }
}

static inline __attribute__((always_inline)) vf xielu_of(vf x, const float coef[4])
{
    vf zero = vf_set(0), up = vf_set(coef[0]) * x * x;
    vf down = (vf_exp(vf_lesser(x, vf_set(coef[3]))) - vf_set(1) - x) * vf_set(coef[1]);
    return vf_select((vi)(x > zero), up, down) + vf_set(coef[2]) * x;
}

static void xielu(float *x, const float coef[4], size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC) vf_store(x + i, xielu_of(vf_load(x + i), coef));
    if (i == n) return;
    int left = (int)(n - i);
    vf_store_n(x + i, xielu_of(vf_load_n(x + i, left), coef), left);
}

static void add(float *x, const float *y, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] += scale * y[i];
}

static void open(float *x, const float *gates, size_t n)
{
    map(SIGMOID_MUL, x, gates, n, 1, 0);
}

static void bend(float *x, float scale, float cap, size_t n)
{
    if (cap > 0)
        map(BEND, x, NULL, n, scale, cap);
    else
        map(SCALE, x, NULL, n, scale, 0);
}

const row_kernels KERNELS = {rms_norm, layer_norm, gate, add, open, bend, xielu};
