/* linear_portable.c -- linear_kernels.h, compiled for this instruction set. */
#define KERNELS       linear_portable
#define QUANT_KERNELS quant_portable
#include "engine/cpu/linear_kernels.h"
