/* gemm.h -- the base's matrix products by kernels of our own: y = x w^T, one order of summation for
 * any number of rows.
 *
 * Law: k is cut into chunks of GEMM_CHUNK at absolute places.  A chunk is one chain of mma over its
 * k, 32 at a time in ascending order; chunks are added to
 * 0 in ascending order.  So a row has the same
 * bits alone, beside others and in a prompt, whichever kernel makes it:
 *
 *     up to GEMM_SMALL_ROWS rows  the weights are read once, straight into fragments, as the
 *                                 operand of 16 rows.  Where a matrix has too few columns to fill
 *                                 the device, a block has 16 of them, of which two or four warps
 *                                 have chunks side by side and add them through shared memory.
 *     more                        tiles of 128 x 128 through shared memory; or, on sm_90, of 128 x
 *                                 208 by wgmma (gemm_wide.cu); codes then become plain before,
 *                                 slice by slice of their columns.
 *
 * It is taken, as for LoRA (sgmv.h), that an mma's result for one column of its operand does not
 * depend on its other columns.  Held to an f64 oracle by tests/emu/test_gemm.cu.
 */
#ifndef ENGINE_CUDA_PRODUCTS_GEMM_H
#define ENGINE_CUDA_PRODUCTS_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "engine/backend.h"
#include "engine/cuda/products/form.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GEMM_CHUNK = 2048, GEMM_SMALL_ROWS = 64 };

typedef struct gemm_args {
    dtype type;    /* of w and x; F32, which few ask for, by a kernel without tensor cores */
    const void *w; /* [n][k], 16-byte aligned; or codes */
    const void *x; /* [rows][k], 16-byte aligned */
    float *y;      /* [rows][n], rows begin `stride` floats apart */
    /* y = (sum + bias) + res, as expand would add them (sgmv.h); NULL: not.  res may be y. */
    const float *bias, *res; /* [n], [rows][n] with y's stride */
    const int32_t *place;    /* [n], device: column i is y's place[i]; NULL: its i */
    int n, k, rows, stride;  /* k a multiple of 8, but for F32 */
    int n_sm;                /* multiprocessors of the device; 0: few rows are not to fill it */
    int gated_stride;        /* values from a row of `gated` to the next, by gemm_wide.cu */
    gemm_codes codes;        /* form GEMM_PLAIN: w has values */
    /* Of up to GEMM_SMALL_ROWS rows, and of those that go by gemm_wide.cu: w is gate [n / 2][k],
     * then up, and what is written is bf16 [rows][n / 2], silu(gate) * up of the same sums, or
     * gelu's by tanh.  NULL: y is.  Not together with bias, res or place; of codes only where n / 2
     * is a multiple of GEMM_PANEL. */
    uint16_t *gated;
    bool gelu;
    bool wide;   /* by gemm_wide.cu where it takes them; cu_gemm_wide_setup() has succeeded */
    bool stream; /* by gemm_stream.cu, another order; cu_gemm_stream_setup() has succeeded */
    bool early;  /* up to GEMM_SMALL_ROWS rows: the launch may begin early (launch.h) */
} gemm_args;

/* Once after the device is chosen: allows the kernels their shared memory. */
cudaError_t cu_gemm_setup(void);
/* One launch. */
cudaError_t cu_gemm(cudaStream_t stream, const gemm_args *args);

/* Once, on a device of sm_90: an error where these kernels were not compiled for it. */
cudaError_t cu_gemm_wide_setup(void);
/* Whether gemm_wide.cu takes a product: whole stages of k, pairs of columns, each in its own place;
 * others go another way to the same bits. */
bool gemm_wide_takes(const gemm_args *args);
/* For cu_gemm(). */
void cu_gemm_wide(cudaStream_t stream, const gemm_args *args);

/* Products by one chain over all of k (gemm_stream.cu), for devices that give a block as much
 * shared memory; whether it takes one; and the launch, for cu_gemm(). */
cudaError_t cu_gemm_stream_setup(void);

/* Whether it can make this product: few rows, BF16 or F16, and k and n that fit its stages. */
bool gemm_stream_takes(const gemm_args *args);

/* The launch, for cu_gemm(). */
void cu_gemm_stream(cudaStream_t stream, const gemm_args *args);

/* A product of codes by gemm_wide.cu: slices of w become plain in device memory of so many bytes,
 * one after another, two launches each.  Whether it can: what that kernel takes, and room. */
bool gemm_slices_take(const gemm_args *args, size_t bytes);

/* The product itself; `slice`: device memory of `bytes`. */
cudaError_t cu_gemm_slices(cudaStream_t stream, const gemm_args *args, void *slice, size_t bytes);

/* Of gemm_codes.cu, for the first two of all. */
cudaError_t cu_gemm_codes_setup(void);

/* The launch, for cu_gemm(), of products with codes. */
void cu_gemm_codes(cudaStream_t stream, const gemm_args *args);

#ifdef __cplusplus
}
#endif

#endif
