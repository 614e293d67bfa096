/* rows_avx2.c -- rows_kernels.h, compiled for this instruction set. */
#define KERNELS rows_avx2
#include "engine/cpu/rows_kernels.h"
