/* exchange.cu -- the kernel of exchange.h. */
#include "engine/cuda/rows/exchange.h"

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"

enum { THREADS = 256 };

/* A thread takes one piece of 16 or 2 bytes; grid: pieces of a row, rows. */
template <bool WIDE>
__global__ void __launch_bounds__(THREADS) push_kernel(cu_push_args a)
{
    size_t each = WIDE ? 16 : 2;
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * each;
    if (at >= a.width) return;
    const char *from = (const char *)a.from + blockIdx.y * a.from_stride + at;
    size_t to = blockIdx.y * a.to_stride + at;
    if (WIDE) {
        uint4 v = cu_ld16(from);
        CU_UNROLL /* by constants: they lie among the arguments */
            for (int i = 0; i < CU_DEVICES_MAX; i++)
        {
            if (i < a.n_to) cu_st16((char *)a.to[i] + to, v);
        }
    } else {
        uint16_t v = *(const uint16_t *)from;
        CU_UNROLL
        for (int i = 0; i < CU_DEVICES_MAX; i++) {
            if (i < a.n_to) *(uint16_t *)((char *)a.to[i] + to) = v;
        }
    }
}

extern "C" cudaError_t cu_push_rows(cudaStream_t stream, const cu_push_args *a)
{
    if (a->n_rows <= 0 || a->width == 0 || a->n_to <= 0) return cudaSuccess;
    uintptr_t all = (uintptr_t)a->from | a->width | a->from_stride | a->to_stride;
    for (int i = 0; i < a->n_to; i++) all |= (uintptr_t)a->to[i];
    size_t pieces = a->width / (all % 16 == 0 ? 16 : 2);
    dim3 grid((unsigned)((pieces + THREADS - 1) / THREADS), (unsigned)a->n_rows);
    if (all % 16 == 0)
        CU_LAUNCH(push_kernel<true>, grid, dim3(THREADS), 0, stream, *a);
    else
        CU_LAUNCH(push_kernel<false>, grid, dim3(THREADS), 0, stream, *a);
    return cudaGetLastError();
}
