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

enum { CODE_MAX = 127 };

CU_INLINE uint32_t code_of(float x, float scale)
{
    if (!(scale > 0)) return 0;
    const float top = (float)CODE_MAX;
    float c = rintf(cu_div(x, scale));
    return (uint8_t)(int8_t)(c > top ? top : c < -top ? -top : c);
}

/* d values of one position as codes, by a warp, by the scale of kv.h: not a number where one of
 * them is none, so that it shows in the logits as it does with other types. */
__device__ static void put_codes(uint16_t *to, uint16_t *scale, const float *x, int d, int lane)
{
    float most = 0;
    bool odd = false;
    for (int i = lane; i < d; i += CU_WARP) {
        odd |= !(fabsf(x[i]) < INFINITY);
        most = cu_max(most, fabsf(x[i]));
    }
    for (int by = CU_WARP / 2; by > 0; by /= 2) most = cu_max(most, cu_shfl_xor_f32(most, by));
    uint16_t h = cu_bf16_of(cu_div(most, (float)CODE_MAX));
    if (cu_mul(cu_f32_of_bf16(h), (float)CODE_MAX) < most) h++;
    if (cu_any(odd)) h = 0x7FC0;
    for (int at = lane; at < d / 2; at += CU_WARP) {
        bool whole = at < d / 16 * 8; /* else one of the last few, which lie as they are */
        int i = whole ? at / 8 * 16 + at % 8 : 2 * at, other = whole ? i + 8 : i + 1;
        float by = cu_f32_of_bf16(h);
        to[at] = (uint16_t)(code_of(x[i], by) | code_of(x[other], by) << 8);
    }
    if (lane == 0) *scale = h;
}

/* Those of `slot` of K (0) or V (1), into the head that begins at `head`. */
__device__ static void put_position(const cu_kv *kv, char *head, int which, int slot,
                                    const float *x, int lane)
{
    int v_dim = cu_kv_v_dim(kv), d = which ? v_dim : kv->head_dim;
    size_t k_part = cu_kv_part_bytes(kv->head_dim, kv->type), at = (size_t)slot * (size_t)d;
    char *to = which ? head + k_part : head;
    if (kv->type == DT_I8) {
        uint16_t *scales = (uint16_t *)(head + k_part + cu_kv_part_bytes(v_dim, kv->type));
        put_codes((uint16_t *)(to + at), scales + 2 * slot + which, x, d, lane);
        return;
    }
    for (int i = lane; i < d; i += CU_WARP) {
        if (kv->type == DT_F32)
            ((float *)to)[at + (size_t)i] = x[i];
        else
            ((uint16_t *)to)[at + (size_t)i] =
                kv->type == DT_BF16 ? cu_bf16_of(x[i]) : cu_f16_of(x[i]);
    }
}

#endif
