/* sgmv_inside.h -- what sgmv.cu and sgmv_f32.cu share: where things lie, and
 * the last step of an output. */
#ifndef ENGINE_CUDA_SGMV_INSIDE_H
#define ENGINE_CUDA_SGMV_INSIDE_H

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/steps.h"
#include "engine/cuda/sgmv.h"

cudaError_t sgmv_f32_shrink(cudaStream_t stream, const sgmv_args *args);
cudaError_t sgmv_f32_expand(cudaStream_t stream, const sgmv_args *args);

/* Blocks of `each` * SGMV_COLS columns. */
static __host__ __device__ __forceinline__ int sgmv_groups(int d_out, int each)
{
    return (d_out + each * SGMV_COLS - 1) / (each * SGMV_COLS);
}

/* Row r of A, `bytes` long. */
CU_INLINE const char *sgmv_a_row(const sgmv_mat *m, int r, size_t bytes)
{
    if (r < m->a_first) return (const char *)m->a + (size_t)r * bytes;
    int rest = r - m->a_first;
    return (const char *)m->a_more[rest / m->a_each] + (size_t)(rest % m->a_each) * bytes;
}

CU_INLINE const uint16_t *sgmv_a_row16(const sgmv_mat *m, int r, int d8)
{
    return (const uint16_t *)sgmv_a_row(m, r, (size_t)d8 * 2);
}

/* The block of B that begins with column col0. */
CU_INLINE const char *sgmv_b_block(const sgmv_mat *m, int col0, int element_bytes)
{
    size_t each = (size_t)((m->rank + 7) / 8 * 8) * (size_t)element_bytes; /* a column's */
    if (col0 < m->b_first) return (const char *)m->b + (size_t)col0 * each;
    int rest = col0 - m->b_first;
    return (const char *)m->b_more[rest / m->b_each] + (size_t)(rest % m->b_each) * each;
}

CU_INLINE size_t sgmv_v_at(const sgmv_chunk *c, int row, int o)
{
    return (size_t)c->v0 + (size_t)(row * SGMV_OUT_MAX + o) * (size_t)c->v_rank;
}

/* The chunk's matrix for this output (all zero: none), and whether there is anything to do.  The
 * output has no more columns than the matrix then. */
CU_INLINE bool sgmv_needed(sgmv_mat *m, const sgmv_chunk *c, sgmv_out *out)
{
    if (c->mats) {
        *m = c->mats[out->mat];
        if (m->d_out > 0 && m->d_out < out->d_out) out->d_out = m->d_out;
    } else {
        sgmv_mat none = {};
        *m = none;
    }
    return m->rank > 0 || m->gain || m->bias || out->bias || out->res || out->in != out->out;
}

/* With explicit roundings: every kernel gives the same bits, whatever its compiler contracts. */
CU_INLINE float sgmv_value(const sgmv_out *out, const sgmv_mat *m, int col, float in, float res,
                           float sum)
{
    float y = m->rank > 0 ? cu_fma(m->scale, sum, in) : in;
    const float *bias = m->bias ? m->bias : out->bias;
    if (m->gain) y = cu_mul(y, m->gain[col]);
    if (bias) y = cu_add(y, bias[col]);
    if (out->res) y = cu_add(y, res);
    return y;
}

/* Columns col .. col + 3 of a row, those that exist. */
CU_INLINE void sgmv_put(const sgmv_out *out, const sgmv_mat *m, int row, int col, float s0,
                        float s1, float s2, float s3)
{
    const float *in = out->in + (size_t)row * (size_t)out->in_stride + col;
    const float *res = out->res ? out->res + (size_t)row * (size_t)out->res_stride + col : in;
    float *y = out->out + (size_t)row * (size_t)out->out_stride + col;
    bool wide = (((uintptr_t)in | (uintptr_t)res | (uintptr_t)y) & 15) == 0;
    if (wide && col + 4 <= out->d_out) {
        float4 i = cu_ld_f32x4(in), r = out->res ? cu_ld_f32x4(res) : i;
        cu_st_f32x4(y, make_float4(sgmv_value(out, m, col, i.x, r.x, s0),
                                   sgmv_value(out, m, col + 1, i.y, r.y, s1),
                                   sgmv_value(out, m, col + 2, i.z, r.z, s2),
                                   sgmv_value(out, m, col + 3, i.w, r.w, s3)));
        return;
    }
    float s[4] = {s0, s1, s2, s3};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (col + j < out->d_out) y[j] = sgmv_value(out, m, col + j, in[j], res[j], s[j]);
    }
}

/* ---- 16 ranks, or 16 columns, at a time --------------------------------------------------------
 */

template <bool BF16>
CU_INLINE void sgmv_mma16(float *d, const uint32_t *a, const uint32_t *b)
{
    if (BF16)
        cu_mma_bf16_k16(d, a, b);
    else
        cu_mma_f16_k16(d, a, b);
}

template <bool BF16>
CU_INLINE void sgmv_mma8(float *d, const uint32_t *a, uint32_t b)
{
    if (BF16)
        cu_mma_bf16_k8(d, a, b);
    else
        cu_mma_f16_k8(d, a, b);
}

/* acc += 16 ranks (rows lo, hi of A; NULL: zeros) by the chunk's rows, over the
 * slice's 128 k from k0 on.  EARLY: in a launch that may have begun before x was written. */
template <int NT, bool BF16, bool EARLY>
CU_INLINE void sgmv_add_slice(float (*acc)[4], const uint16_t *lo, const uint16_t *hi,
                              const uint16_t *x, size_t x_stride, int n_rows, int k0, int end,
                              int g, int q)
{
    enum { LOADS = NT == 4 ? 2 : 4 }; /* loads under way, by registers */
#pragma unroll 1
    for (int part = 0; part < 4; part += LOADS) {
        uint4 al[LOADS], ah[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int k = k0 + 32 * (part + i) + 8 * q;
            al[i] = lo && k < end ? cu_ldg16_once(lo + k) : zero16();
            ah[i] = hi && k < end ? cu_ldg16_once(hi + k) : zero16();
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int k = k0 + 32 * (part + i) + 8 * q;
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                int row = nt * 8 + g;
                bool in = row < n_rows && k < end;
                const uint16_t *from = x + (size_t)row * x_stride + k;
                uint4 xv = !in ? zero16() : EARLY ? cu_ld16(from) : cu_ldg16(from);
                mma32<BF16>(acc[nt], al[i], ah[i], xv);
            }
        }
    }
}

template <bool BF16>
CU_INLINE uint32_t sgmv_pair_of(float a, float b)
{
    return BF16 ? cu_bf16x2_of(a, b) : cu_f16x2_of(a, b);
}

template <bool BF16>
CU_INLINE float sgmv_low_of(uint32_t pair)
{
    return BF16 ? cu_bf16_lo(pair) : cu_f32_of_f16((uint16_t)(pair & 0xFFFFU));
}

template <bool BF16>
CU_INLINE float sgmv_high_of(uint32_t pair)
{
    return BF16 ? cu_bf16_hi(pair) : cu_f32_of_f16((uint16_t)(pair >> 16));
}

/* v of two ranks, its planes added, as a pair of high halves and one of low ones; v NULL: zeros. */
template <bool BF16>
CU_INLINE void sgmv_halves(uint32_t *high, uint32_t *low, const float *v, size_t v_plane,
                           int n_plane)
{
    float v0 = 0, v1 = 0;
    for (int s = 0; v && s < n_plane; s++) {
        uint2 more = cu_ld8_fresh(v + (size_t)s * v_plane);
        float m0 = cu_f32_of_bits(more.x), m1 = cu_f32_of_bits(more.y);
        v0 = s == 0 ? m0 : cu_add(v0, m0);
        v1 = s == 0 ? m1 : cu_add(v1, m1);
    }
    uint32_t pair = sgmv_pair_of<BF16>(v0, v1);
    *high = pair;
    *low = sgmv_pair_of<BF16>(v0 - sgmv_low_of<BF16>(pair), v1 - sgmv_high_of<BF16>(pair));
}

#endif
