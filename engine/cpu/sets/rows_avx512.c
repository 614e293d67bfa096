/* rows_avx512.c -- rows_kernels.h, compiled for this instruction set. */
#define KERNELS rows_avx512
#include "engine/cpu/rows_kernels.h"
