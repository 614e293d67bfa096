/* sgmv.h -- y += scale * B (A x) for rows of many adapters in one batch:
 * shrink (A), then expand (B).
 *
 * Segmented gather matrix-vector products after Punica (Chen et al. 2023), its BGMV the case of one
 * row per segment.  One launch each for all projections that share x.  Lists, ranks and addresses
 * are read from device memory (sgmv_plan.h), so a captured graph serves other adapters and
 * segments; only sizes of grids are fixed.
 *
 * Both kernels give the weights to the tensor cores as the operand of 16 rows and x's rows as that
 * of 8, and take weights from memory straight into fragments by 16-byte loads (the sum over k is
 * permuted alike on both sides).  A row alone costs no more bytes than its adapter, and the same
 * instruction sums long segments.
 *
 * Batch invariance.  A row's shrink is: chains of mma over slices of 128 k, slices 8 j + c of a
 * plane in chain c, j ascending; the plane's 8 chains added in order; the planes added in order
 * by expand, in its prologue.  The width of a plane depends on d_in alone (sgmv_plane_k()).
 * Short segments spread chains over warps and planes over blocks; tiles walk them in one warp:
 * the same operations in the same order.  Expand is one chain of mma over the rank.  It is
 * taken that an mma's result for one column of its operand does not depend on its other
 * columns, nor on which column it is.
 *
 * Precision: x and weights in BF16 or F16, sums f32; the shrunk values go into expand as two halves
 * (v = high + low), which keeps 16 bits of them.  F32 adapters take plain kernels.
 *
 * Launchers enqueue on `stream`, never wait nor allocate, and return cudaGetLastError().
 * Held to an f64 oracle by tests/emu/test_sgmv.cu.
 */
#ifndef ENGINE_CUDA_SGMV_H
#define ENGINE_CUDA_SGMV_H

#include <cuda_runtime.h>

#include "engine/cuda/products/gemm.h"
#include "engine/cuda/sgmv_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One projection.  Rows of `in`, `out` and `res` begin at multiples of their stride.
 * For rows with an adapter:
 *     out = gain * (in + scale * B v) + (the adapter's bias, else `bias`) + res
 * and for others out = in + bias + res.  What is NULL is left out; in may be out, and res
 * may be out.  With in == out, no bias and no res, rows with nothing to add are not
 * touched.  Wide accesses need strides that are multiples of 4 and 16-byte aligned
 * pointers; anything else works slowly. */
typedef struct sgmv_out {
    const float *in;
    float *out;
    const float *res, *bias;
    int32_t in_stride, out_stride, res_stride; /* floats */
    int32_t d_out;
    int32_t mat; /* index in the tables of sgmv_mat */
} sgmv_out;

typedef struct sgmv_args {
    dtype type; /* of x and packed matrices */
    /* [n_rows][x_stride]; 16-byte aligned, x_stride a multiple of 8, zeros behind d_in. */
    const void *x;
    int32_t x_stride, d_in;
    float *v;                  /* sgmv_planes() planes */
    size_t v_plane;            /* floats from one to the next, at least what sgmv_plan() returned */
    const sgmv_counts *counts; /* device, as all below */
    const sgmv_chunk *chunk, *tile;
    /* Sizes of grids: at least what the counts say.  0: nothing of that kind, and no launch. */
    int32_t max_small, max_tile, max_lora, max_all;
    int32_t chunk_rows; /* the plan's */
    int32_t rank_max;   /* of all matrices */
    int32_t n_sm;       /* multiprocessors that the expand is to fill once; 0: a block a group */
    /* Expand takes rows of the bare base too (bias or res is given); needs max_all. */
    bool all_rows;
    bool early; /* expand: the launch may begin early (launch.h); lists are not a kernel's */
    int32_t n_out;
    sgmv_out out[SGMV_OUT_MAX];
} sgmv_args;

/* Once after the device is chosen: allows the kernels their shared memory. */
cudaError_t cu_sgmv_setup(void);
/* x's shrunk values into v.  At most two launches. */
cudaError_t cu_sgmv_shrink(cudaStream_t stream, const sgmv_args *args);
/* From v.  One launch. */
cudaError_t cu_sgmv_expand(cudaStream_t stream, const sgmv_args *args);

/* The same for chunks of 8 rows and two outputs of as many columns, all rows of the list, and then
 * out16[row][col] = silu(out[0]) * out[1], or gelu's by tanh, rounded to bf16; the outputs
 * themselves are not written.  out16 [n_rows][d_out], 8-byte aligned; BF16, d_out and the strides
 * of `in` multiples of 4, `in` 16-byte aligned. */
cudaError_t cu_sgmv_expand_gated(cudaStream_t stream, const sgmv_args *args, uint16_t *out16,
                                 bool gelu);

/* LoRA of the input table: v = A[token] instead of A x, one plane; out[0].mat says which.
 * Then call cu_sgmv_expand() with d_in = 1.  token [n_rows], device; outside of [0, n_in) of the
 * matrix: zeros.  x is not used. */
cudaError_t cu_sgmv_gather(cudaStream_t stream, const sgmv_args *args, const int32_t *token);

/* out [n_rows][out_stride] of `type` (BF16, F16) = x f32 [n_rows][x_stride], rounded; zeros behind
 * cols.  out_stride a multiple of 8, out 16-byte aligned. */
cudaError_t cu_round_rows(cudaStream_t stream, void *out, int out_stride, dtype type,
                          const float *x, int x_stride, int n_rows, int cols);

/* ---- inside a product (gemm_lora.cu) -------------------------------------------------------
 * A product of few rows and all that LoRA adds to it, in one launch: what cu_gemm() by
 * gemm_stream.cu, cu_sgmv_shrink() and cu_sgmv_expand(), or cu_sgmv_expand_gated(), give, bit for
 * bit. */

enum { GEMM_LORA_COUNTERS = 33 }; /* words of `drawn`: who waits looks at another line */

/* Once after the device is chosen, where cu_gemm_stream_setup() has succeeded. */
cudaError_t cu_gemm_lora_setup(void);

/* Whether such a product can be made so: plain weights of two bytes, up to GEMM_SMALL_ROWS rows in
 * chunks of at most 8, outputs of whole blocks of 64 columns that are the product's columns in
 * their order, and room for v of the largest rank.  To gate, two outputs as wide as each other. */
bool gemm_lora_takes(const gemm_args *args, const sgmv_args *lora);

/* out[o].out = gain * (x w^T + scale * B A x) + bias + res of each output, or what `args->gated`
 * says of two.  Of `args`, y, bias, res and stride are not used; of `lora`, `in`, max_small,
 * max_tile and max_lora are not.  All rows are written.  drawn [GEMM_LORA_COUNTERS], device: zeros,
 * and so again when the launch has ended; no two launches at once have the same.  One launch. */
cudaError_t cu_gemm_lora(cudaStream_t stream, const gemm_args *args, const sgmv_args *lora,
                         uint32_t *drawn);

#ifdef __cplusplus
}
#endif

#endif
