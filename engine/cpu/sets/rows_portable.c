/* rows_portable.c -- rows_kernels.h, compiled for this instruction set. */
#define KERNELS rows_portable
#include "engine/cpu/rows_kernels.h"
