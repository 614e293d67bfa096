/* linear_avxvnni.c -- linear_kernels.h, compiled for this instruction set. */
#define KERNELS       linear_avxvnni
#define QUANT_KERNELS quant_avxvnni
#include "engine/cpu/linear_kernels.h"
