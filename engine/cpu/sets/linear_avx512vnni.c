/* linear_avx512vnni.c -- linear_kernels.h, compiled for this instruction set. */
#define KERNELS       linear_avx512vnni
#define QUANT_KERNELS quant_avx512vnni
#include "engine/cpu/linear_kernels.h"
