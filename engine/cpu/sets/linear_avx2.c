/* linear_avx2.c -- linear_kernels.h, compiled for this instruction set. */
#define KERNELS       linear_avx2
#define QUANT_KERNELS quant_avx2
#include "engine/cpu/linear_kernels.h"
