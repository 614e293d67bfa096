/* floats.h -- f32 arithmetic with stated roundings, and arrays of floats moved in one access.
 *
 * Where two kernels must give the same bits, the compiler may not contract a product and a sum in
 * one and not in the other: these do what they say.  For .cu files only.
 */
#ifndef ENGINE_CUDA_PRODUCTS_FLOATS_H
#define ENGINE_CUDA_PRODUCTS_FLOATS_H

#include "engine/cuda/products/intrin.h"

/* Before a loop whose body indexes registers by the counter (all turns), or that gains
 * from a few turns at once. */
#ifdef LORAD_EMU
#    define CU_UNROLL
#    define CU_UNROLL_BY(n)
#else
#    define CU_UNROLL       _Pragma("unroll")
#    define CU_UNROLL_BY(n) CU_PRAGMA(unroll n)
#    define CU_PRAGMA(x)    _Pragma(#    x)
#endif

#ifdef LORAD_EMU
/* The host compiler is told -ffp-contract=off. */
#    define cu_add(a, b)    ((a) + (b))
#    define cu_mul(a, b)    ((a) * (b))
#    define cu_fma(a, b, c) fmaf(a, b, c)
#    define cu_div(a, b)    ((a) / (b))
#    define cu_sqrt(a)      sqrtf(a)
#else
#    define cu_add(a, b)    __fadd_rn(a, b)
#    define cu_mul(a, b)    __fmul_rn(a, b)
#    define cu_fma(a, b, c) __fmaf_rn(a, b, c)
#    define cu_div(a, b)    __fdiv_rn(a, b)
#    define cu_sqrt(a)      __fsqrt_rn(a)
#endif

/* Of two numbers the greater; a NaN loses. */
CU_INLINE float cu_max(float a, float b)
{
    return fmaxf(a, b);
}

/* silu(g) * u, or gelu's by tanh, which is g times the sigmoid of t. */
CU_INLINE float cu_gate_mul(float g, float u, bool gelu)
{
    float cube = cu_mul(cu_mul(cu_mul(0.044715F, g), g), g);
    float t = gelu ? cu_mul(1.5957691216F, cu_add(g, cube)) : g;
    return cu_mul(cu_div(g, cu_add(1.0F, expf(-t))), u);
}

CU_INLINE void cu_load_f32x4(float *to, const float *from)
{
    float4 v = cu_ld_f32x4(from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

CU_INLINE void cu_store_f32x4(float *to, const float *from)
{
    cu_st_f32x4(to, make_float4(from[0], from[1], from[2], from[3]));
}

CU_INLINE void cu_load_f32x2(float *to, const float *from)
{
    uint2 v = cu_ld8(from);
    to[0] = cu_f32_of_bits(v.x);
    to[1] = cu_f32_of_bits(v.y);
}

/* What another block wrote, behind a fence. */
CU_INLINE void cu_load_fresh_f32x2(float *to, const float *from)
{
    uint2 v = cu_ld8_fresh(from);
    to[0] = cu_f32_of_bits(v.x);
    to[1] = cu_f32_of_bits(v.y);
}

CU_INLINE void cu_store_f32x2(float *to, const float *from)
{
    cu_st8(to, make_uint2(cu_bits_of_f32(from[0]), cu_bits_of_f32(from[1])));
}

#endif
