/* noise.h -- random matrices made where they lie: what bench_device.c loads in
 * place of a model's weights. */
#ifndef TESTS_GPU_NOISE_H
#define TESTS_GPU_NOISE_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n BF16 values (a multiple of 4, p on 8 bytes) of both signs, between 2^-9 and 2^-5 in
 * size, so that sums over a few thousand stay near one.  The same seed gives the same
 * values.  Enqueues one launch. */
cudaError_t cu_noise(cudaStream_t stream, void *p, size_t n, uint64_t seed);

#ifdef __cplusplus
}
#endif

#endif
