/* rows_avx512.c -- compiles rows_kernels.h for AVX-512. */
#define KERNELS rows_avx512
#include "engine/cpu/rows_kernels.h"
