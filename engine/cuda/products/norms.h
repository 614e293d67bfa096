/* norms.h -- the CUDA kernels of families whose norms are not a Llama's: layer norms with a mean,
 * RMS norms of a part of a fused product, and rows picked without a norm.
 *
 * As those of rows.h: a block for each row, which sums it in an order that hangs on its length
 * alone.  Launchers enqueue on `stream` and never wait.  Held to f64 by tests/emu/test_norms.cu.
 */
#ifndef ENGINE_CUDA_PRODUCTS_NORMS_H
#define ENGINE_CUDA_PRODUCTS_NORMS_H

#include <stdbool.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "engine/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the device runs code that waits for launches before (cu_grid_wait()): made for compute
 * capability 9.0 or later.  A newer device that makes its own from PTX of 8.0 does not. */
bool cu_code_waits(void);

/* out[i] = (x[i] - mean) / std * weight + bias, dense rows.  out may be x. */
typedef struct cu_layer_norm_args {
    float *out;
    uint16_t *out16; /* the same rounded to bf16; NULL: not wanted */
    const float *x;
    const float *weight, *bias; /* [dim]; bias NULL: none */
    float eps;
    int n_rows, dim;
} cu_layer_norm_args;
cudaError_t cu_layer_norm(cudaStream_t stream, const cu_layer_norm_args *args);

/* out[i] = x[i] / rms(x[i]) * weight, dense rows; those of x begin `stride` floats apart. */
typedef struct cu_wide_norm_args {
    float *out;
    uint16_t *out16; /* the same rounded to bf16; NULL: not wanted */
    const float *x;
    const float *weight; /* [dim] */
    float eps;
    int n_rows, dim, stride;
} cu_wide_norm_args;
cudaError_t cu_wide_norm(cudaStream_t stream, const cu_wide_norm_args *args);

/* out[i] = x[index[i]], dense rows; a negative index leaves its row as it is. */
typedef struct cu_pick_args {
    float *out;      /* [n_rows][dim]; NULL: not wanted */
    uint16_t *out16; /* the same rounded to bf16; NULL: not wanted */
    const float *x;
    const int32_t *index; /* [n_rows], device */
    int n_rows, dim;
} cu_pick_args;
cudaError_t cu_pick_rows(cudaStream_t stream, const cu_pick_args *args);

#ifdef __cplusplus
}
#endif

#endif
