/* attend_avx512bf16.c -- attend_kernels.h, compiled for this instruction set. */
#define KERNELS attend_avx512bf16
#include "engine/cpu/attend_kernels.h"
