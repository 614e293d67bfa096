/* attend_portable.c -- attend_kernels.h, compiled for this instruction set. */
#define KERNELS attend_portable
#include "engine/cpu/attend_kernels.h"
