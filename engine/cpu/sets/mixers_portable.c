/* mixers_portable.c -- mixers_kernels.h, compiled for this instruction set. */
#define KERNELS mixers_portable
#include "engine/cpu/mixers_kernels.h"
