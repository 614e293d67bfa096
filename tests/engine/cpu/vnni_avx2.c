/* vnni_avx2.c -- linear_avxvnni.c in AVX-512's encoding, which tests have in its place
 * (stand_ins.h): so processors run it that have AVX-512 alone. */
#define KERNELS       linear_avxvnni
#define QUANT_KERNELS quant_avxvnni
#define QUANT_EVEX
#include "engine/cpu/linear_kernels.h"
