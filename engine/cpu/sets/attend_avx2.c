/* attend_avx2.c -- attend_kernels.h, compiled for this instruction set. */
#define KERNELS attend_avx2
#include "engine/cpu/attend_kernels.h"
