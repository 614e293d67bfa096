/* mixers_avx512.c -- mixers_kernels.h, compiled for this instruction set. */
#define KERNELS mixers_avx512
#include "engine/cpu/mixers_kernels.h"
