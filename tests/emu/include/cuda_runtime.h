/* cuda_runtime.h -- the words of CUDA C that kernels use, for the host compiler (tests/emu/emu.h).
 *
 * Only what the language itself has: qualifiers, built-in variables, vector types, barriers.
 * Everything else goes through engine/cuda/products/intrin.h and launch.h.  The run-time API's
 * calls stand in emu_runtime.h beside this file.
 */
#ifndef EMU_CUDA_RUNTIME_H
#define EMU_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/emu/emu.h"

#define __global__
#define __device__
#define __host__
#define __constant__    const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx (emu_thread_idx())
#define blockIdx  (emu_block_idx())
#define blockDim  (emu_block_dim())
#define gridDim   (emu_grid_dim())
#define warpSize  32

#define __syncthreads()           emu_syncthreads(__FILE__, __LINE__)
#define __syncthreads_count(pred) emu_syncthreads_count(pred, __FILE__, __LINE__)
#define __syncthreads_or(pred)    (emu_syncthreads_count(pred, __FILE__, __LINE__) != 0)
#define __threadfence()           emu_threadfence()

struct alignas(8) float2 {
    float x, y;
};
struct float3 {
    float x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

#include "tests/emu/include/emu_runtime.h"

#endif
