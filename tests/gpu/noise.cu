/* noise.cu -- the kernel of noise.h: splitmix64 (Steele, Lea, Flood 2014) of the
 * place, four values a word. */
#include "tests/gpu/noise.h"

#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"

enum { THREADS = 256, BLOCKS_MAX = 4096 };

typedef struct noise_args {
    uint64_t *to;
    size_t n_words;
    uint64_t seed;
} noise_args;

__global__ void noise_kernel(noise_args a)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n_words; i += step) {
        uint64_t z = a.seed + (i + 1) * 0x9E3779B97F4A7C15ULL;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        a.to[i] = ((z ^ (z >> 31)) & 0x81FF81FF81FF81FFULL) | 0x3B003B003B003B00ULL;
    }
}

extern "C" cudaError_t cu_noise(cudaStream_t stream, void *p, size_t n, uint64_t seed)
{
    noise_args a = {(uint64_t *)p, n / 4, seed};
    size_t blocks = (a.n_words + THREADS - 1) / THREADS;
    if (blocks == 0) return cudaSuccess;
    if (blocks > BLOCKS_MAX) blocks = BLOCKS_MAX;
    CU_LAUNCH(noise_kernel, dim3((unsigned)blocks), dim3(THREADS), 0, stream, a);
    return cudaGetLastError();
}
