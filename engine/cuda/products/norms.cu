/* norms.cu -- kernels of norms.h: a block for each row. */
#include "engine/cuda/products/norms.h"

#include <stdlib.h>

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"

enum { WARP = 32, THREADS = 256, WARPS = THREADS / WARP };

/* Of all threads, added in one order; `sums` may be used again at once. */
__device__ static float block_sum(float v, float *sums)
{
    int t = (int)threadIdx.x;
    for (int d = WARP / 2; d > 0; d /= 2) v = cu_add(v, cu_shfl_xor_f32(v, d));
    __syncthreads(); /* what was there before has been read */
    if (t % WARP == 0) sums[t / WARP] = v;
    __syncthreads(); /* all warps' sums are there */
    float sum = 0;
    for (int i = 0; i < WARPS; i++) sum = cu_add(sum, sums[i]);
    return sum;
}

static __global__ void __launch_bounds__(THREADS) layer_norm_kernel(cu_layer_norm_args a)
{
    CU_STATIC_SHARED(float, sums, WARPS);
    size_t at = (size_t)blockIdx.x * (size_t)a.dim;
    const float *x = a.x + at;
    float n = (float)a.dim, acc = 0;
    for (int i = (int)threadIdx.x; i < a.dim; i += THREADS) acc = cu_add(acc, x[i]);
    float mean = cu_div(block_sum(acc, sums), n);
    acc = 0;
    for (int i = (int)threadIdx.x; i < a.dim; i += THREADS) {
        float d = cu_add(x[i], -mean);
        acc = cu_fma(d, d, acc);
    }
    float inv = cu_div(1.0F, cu_sqrt(cu_add(cu_div(block_sum(acc, sums), n), a.eps)));
    /* Each thread reads again what it read itself: no barrier is needed in place. */
    for (int i = (int)threadIdx.x; i < a.dim; i += THREADS) {
        float v = cu_mul(cu_mul(cu_add(x[i], -mean), inv), a.weight[i]);
        if (a.bias) v = cu_add(v, a.bias[i]);
        a.out[at + (size_t)i] = v;
        if (a.out16) a.out16[at + (size_t)i] = cu_bf16_of(v);
    }
}

extern "C" cudaError_t cu_layer_norm(cudaStream_t stream, const cu_layer_norm_args *args)
{
    if (args->n_rows > 0)
        CU_LAUNCH(layer_norm_kernel, dim3((unsigned)args->n_rows), dim3(THREADS), 0, stream, *args);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS) wide_norm_kernel(cu_wide_norm_args a)
{
    CU_STATIC_SHARED(float, sums, WARPS);
    const float *x = a.x + (size_t)blockIdx.x * (size_t)a.stride;
    size_t at = (size_t)blockIdx.x * (size_t)a.dim;
    float acc = 0;
    for (int i = (int)threadIdx.x; i < a.dim; i += THREADS) acc = cu_fma(x[i], x[i], acc);
    float mean = cu_div(block_sum(acc, sums), (float)a.dim);
    float inv = cu_div(1.0F, cu_sqrt(cu_add(mean, a.eps)));
    for (int i = (int)threadIdx.x; i < a.dim; i += THREADS) {
        float v = cu_mul(cu_mul(x[i], inv), a.weight[i]);
        a.out[at + (size_t)i] = v;
        if (a.out16) a.out16[at + (size_t)i] = cu_bf16_of(v);
    }
}

extern "C" cudaError_t cu_wide_norm(cudaStream_t stream, const cu_wide_norm_args *args)
{
    if (args->n_rows > 0)
        CU_LAUNCH(wide_norm_kernel, dim3((unsigned)args->n_rows), dim3(THREADS), 0, stream, *args);
    return cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS) pick_kernel(cu_pick_args a)
{
    int from = a.index[blockIdx.x];
    if (from < 0) return;
    const float *x = a.x + (size_t)from * (size_t)a.dim;
    size_t at = (size_t)blockIdx.x * (size_t)a.dim;
    for (int i = (int)threadIdx.x; i < a.dim; i += THREADS) {
        if (a.out) a.out[at + (size_t)i] = x[i];
        if (a.out16) a.out16[at + (size_t)i] = cu_bf16_of(x[i]);
    }
}

extern "C" bool cu_code_waits(void)
{
#ifdef LORAD_EMU
    const char *code = getenv("EMU_CODE");
    return !code || atoi(code) >= 90;
#else
    cudaFuncAttributes is;
    if (cudaFuncGetAttributes(&is, (const void *)pick_kernel) == cudaSuccess)
        return is.ptxVersion >= 90;
    (void)cudaGetLastError(); /* it is not the next launch's */
    return false;
#endif
}

extern "C" cudaError_t cu_pick_rows(cudaStream_t stream, const cu_pick_args *args)
{
    if (args->n_rows > 0)
        CU_LAUNCH(pick_kernel, dim3((unsigned)args->n_rows), dim3(THREADS), 0, stream, *args);
    return cudaGetLastError();
}
