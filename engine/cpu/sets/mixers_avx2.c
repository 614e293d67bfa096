/* mixers_avx2.c -- mixers_kernels.h, compiled for this instruction set. */
#define KERNELS mixers_avx2
#include "engine/cpu/mixers_kernels.h"
