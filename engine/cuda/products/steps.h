/* steps.h -- a step of 32 k by tensor cores, for all products of ours (gemm.cu, gemm_codes.cu,
 * grouped.cu).  For these .cu files only.
 *
 * Names: g = lane / 4 and q = lane % 4 as in intrin.h.  A lane holds 8 consecutive k of row g; as
 * registers {x, y, z, w} they are k-pairs q and q + 4 of two mma: x and y of the first, z and w of
 * the second.  Weights and rows are permuted alike, so sums are over the same 32 k.
 */
#ifndef ENGINE_CUDA_PRODUCTS_STEPS_H
#define ENGINE_CUDA_PRODUCTS_STEPS_H

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"

enum {
    SMALL_WARPS = 4,
    STEP = 32,   /* k of two mma */
    AT_ONCE = 4, /* steps whose weights are on their way together */
};

template <bool BF16>
CU_INLINE void mma32(float *d, uint4 lo, uint4 hi, uint4 x)
{
    uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, b0[2] = {x.x, x.y};
    uint32_t a1[4] = {lo.z, hi.z, lo.w, hi.w}, b1[2] = {x.z, x.w};
    if (BF16) {
        cu_mma_bf16_k16(d, a0, b0);
        cu_mma_bf16_k16(d, a1, b1);
    } else {
        cu_mma_f16_k16(d, a0, b0);
        cu_mma_f16_k16(d, a1, b1);
    }
}

CU_INLINE uint4 zero16()
{
    return make_uint4(0, 0, 0, 0);
}

/* The weights of AT_ONCE steps from k0 on; zeros from `end` on, and where there is no column. */
CU_INLINE void load_weights(uint4 *lo, uint4 *hi, const uint16_t *row_lo, const uint16_t *row_hi,
                            int k0, int end, int q)
{
    CU_UNROLL
    for (int i = 0; i < AT_ONCE; i++) {
        int k = k0 + STEP * i + 8 * q;
        lo[i] = row_lo && k < end ? cu_ldg16_once(row_lo + k) : zero16();
        hi[i] = row_hi && k < end ? cu_ldg16_once(row_hi + k) : zero16();
    }
}

#endif
