/* linear_avx512.c -- linear_kernels.h, compiled for this instruction set. */
#define KERNELS       linear_avx512
#define QUANT_KERNELS quant_avx512
#include "engine/cpu/linear_kernels.h"
