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

static void silu_mul(float *gate, const float *up, size_t n)
{
    size_t i = 0;
    for (; i + VEC <= n; i += VEC) vf_store(gate + i, silu(vf_load(gate + i)) * vf_load(up + i));
    if (i < n) {
        int left = (int)(n - i);
        vf_store_n(gate + i, silu(vf_load_n(gate + i, left)) * vf_load_n(up + i, left), left);
    }
}

const row_kernels KERNELS = {rms_norm, silu_mul};
