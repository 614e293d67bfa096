/* linear_neon.c -- quant_kernels.h, compiled for this instruction set: the other kernels are those
 * of the portable set, which has NEON without dot products on aarch64. */
#define QUANT_KERNELS quant_neon
#include "engine/cpu/quant_kernels.h"
