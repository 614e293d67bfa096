/* cuda_runtime.h -- for host code in C; kernels find tests/emu/include's. */
#include "tests/emu/cuda_rt/cuda_runtime_api.h"
