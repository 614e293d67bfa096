/* launch.h -- how kernels are launched and how they name shared memory, on a device and under the
 * emulator (tests/emu/emu.h, LORAD_EMU).  For .cu files only.
 *
 *     CU_LAUNCH(kernel, grid, block, shared_bytes, stream, args...)
 *     CU_LAUNCH_EARLY(kernel, grid, block, shared_bytes, stream, early, args...)
 *                                       early: its blocks may begin as soon as all of the launch
 *                                       before have (programmatic dependent launch, sm_90 on).
 *                                       Every thread of such a kernel calls cu_grid_wait(), and
 *                                       until then reads only what no launch of the step writes
 *     CU_ALLOW_SHARED(kernel, bytes)    once before launches with more than 48 KiB of it
 *     CU_SHARED(float, name);           the launch's dynamic shared memory:
 *                                       float *name, 16-byte aligned
 *     CU_STATIC_SHARED(float, name, n); a float[n] of the block, as float *name (16-byte aligned)
 *
 * Kernels do not use __shared__ themselves.
 */
#ifndef ENGINE_CUDA_PRODUCTS_LAUNCH_H
#define ENGINE_CUDA_PRODUCTS_LAUNCH_H

#include <cuda_runtime.h>

#ifdef LORAD_EMU

#    define CU_LAUNCH(kernel, grid, block, shared, stream, ...) \
        emu_launch(#kernel, kernel, grid, block, shared, stream, false, 1, __VA_ARGS__)
#    define CU_LAUNCH_EARLY(kernel, grid, block, shared, stream, early, ...) \
        emu_launch(#kernel, kernel, grid, block, shared, stream, early, 1, __VA_ARGS__)
#    define CU_ALLOW_SHARED(kernel, bytes) \
        (emu_allow_shared((const void *)(kernel), bytes), cudaSuccess)
#    define CU_SHARED(type, name) type *name = (type *)emu_dynamic_shared()
#    define CU_STATIC_SHARED(type, name, n) \
        static const char name##_key = 0;   \
        type *name = (type *)emu_static_shared(&name##_key, sizeof(type) * (n))

#else

#    define CU_LAUNCH(kernel, grid, block, shared, stream, ...) \
        kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#    define CU_LAUNCH_EARLY(kernel, grid, block, shared, stream, early, ...) \
        cu_launch_early(kernel, grid, block, shared, stream, early, __VA_ARGS__)

/* What it answers is cudaGetLastError()'s as well. */
template <class... P, class... A>
static void cu_launch_early(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                            cudaStream_t stream, bool early, A... args)
{
    cudaLaunchAttribute how = {};
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = &how;
    if (early) {
        how.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        how.val.programmaticStreamSerializationAllowed = 1;
        c.numAttrs = 1;
    }
    (void)cudaLaunchKernelEx(&c, kernel, static_cast<P>(args)...);
}

/* All that the first-level cache can give: how many blocks fit hangs on it. */
#    define CU_ALLOW_SHARED(kernel, bytes)                                                     \
        (cudaFuncSetAttribute((const void *)(kernel),                                          \
                              cudaFuncAttributePreferredSharedMemoryCarveout,                  \
                              cudaSharedmemCarveoutMaxShared) == cudaSuccess                   \
             ? cudaFuncSetAttribute((const void *)(kernel),                                    \
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)) \
             : cudaGetLastError())
#    define CU_SHARED(type, name)                                          \
        extern __shared__ __align__(16) unsigned char cu_dynamic_shared[]; \
        type *name = (type *)cu_dynamic_shared
#    define CU_STATIC_SHARED(type, name, n)            \
        __shared__ __align__(16) type name##_array[n]; \
        type *name = name##_array

#endif

#endif
