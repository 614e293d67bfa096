/* emu.h -- stands in for the emulator's header, so that the tests of tests/emu
 * run on a device as they are.
 *
 *     nvcc -O3 -std=c++17 -arch=native -Itests/gpu/on_device -I. -x cu
 *     tests/emu/test_NAME.cu engine/cuda/NAME.cu
 *         -x c engine/cuda/attend_plan.c engine/sample/sampler.c -lcheck ...
 *     CK_FORK=no CUDA_LAUNCH_BLOCKING=1 ./a.out
 *
 * Arrays are pinned host memory that the device reads and writes over the bus: the host may look at
 * them after each launch, which CUDA_LAUNCH_BLOCKING makes wait.  Nothing is watched; that is what
 * compute-sanitizer is for.  A context does not survive fork(): CK_FORK=no.
 */
#ifndef EMU_H
#define EMU_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

enum { EMU_UNWRITTEN = 0xA5 };

static inline void *emu_alloc(size_t bytes)
{
    void *p = NULL;
    cudaError_t rc = cudaMallocHost(&p, bytes ? bytes : 1);
    if (rc != cudaSuccess) {
        fprintf(stderr, "%zu bytes of pinned memory: %s\n", bytes, cudaGetErrorString(rc));
        exit(1);
    }
    memset(p, EMU_UNWRITTEN, bytes);
    return p;
}

static inline void emu_free(void *p)
{
    (void)cudaFreeHost(p);
}

static inline void emu_wrote(const void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
}

/* As far as the filling tells. */
static inline const void *emu_first_unwritten(const void *p, size_t bytes)
{
    const unsigned char *b = (const unsigned char *)p;
    for (size_t i = 0; i < bytes; i++) {
        if (b[i] != EMU_UNWRITTEN) return NULL;
    }
    return p;
}

static inline void emu_mma_truncates(int on) /* a device does as it does */
{
    (void)on;
}

static inline bool emu_begins_early(void)
{
    int major = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    return major >= 9;
}

static inline void emu_seed(uint64_t seed)
{
    (void)seed; /* a device has its own order */
}

#endif
