/* turn.h -- rotary positions of one head, and its values as pages hold them, for the kernels that
 * do so (rows.cu, attend.cu).  For .cu files only. */
#ifndef ENGINE_CUDA_ROWS_TURN_H
#define ENGINE_CUDA_ROWS_TURN_H

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/rows/rows.h"

CU_INLINE float halves_sum(float v)
{
    for (int d = CU_WARP / 2; d > 0; d /= 2) v = cu_add(v, cu_shfl_xor_f32(v, d));
    return v;
}

/* One head from x to y, which may be x, by a warp: norm, then the rotation of pairs, (i, i + half)
 * or neighbours.  A lane holds both values of its pairs. */
__device__ static void turn_head(const cu_rope_args *a, float *y, const float *x, const float *norm,
                                 const float *cs, const float *sn, int lane)
{
    int d = a->kv.head_dim, half = a->rope_dim / 2;
    float inv = 1;
    if (norm) {
        float acc = 0;
        for (int i = lane; i < d; i += CU_WARP) acc = cu_fma(x[i], x[i], acc);
        inv = cu_div(1.0F, cu_sqrt(cu_add(cu_div(halves_sum(acc), (float)d), a->norm_eps)));
        cu_syncwarp(); /* all lanes have read what is written below */
    }
    for (int i = lane; i < half; i += CU_WARP) {
        int at = a->first + (a->pairs ? 2 * i : i), other = a->pairs ? at + 1 : at + half;
        float lo = x[at], hi = x[other], c = cs[i], s = sn[i];
        if (norm) {
            lo = cu_mul(cu_mul(lo, inv), norm[at]);
            hi = cu_mul(cu_mul(hi, inv), norm[other]);
        }
        y[at] = cu_add(cu_mul(lo, c), -cu_mul(hi, s));
        y[other] = cu_add(cu_mul(hi, c), cu_mul(lo, s));
    }
    for (int i = lane; (norm || y != x) && i < d - 2 * half; i += CU_WARP) {
        int at = i < a->first ? i : i + 2 * half;
        y[at] = norm ? cu_mul(cu_mul(x[at], inv), norm[at]) : x[at];
    }
}

#endif
