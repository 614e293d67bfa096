/* rows.h -- row kernels, one table per instruction set.  Private to engine/cpu/. */
#ifndef ENGINE_CPU_ROWS_H
#define ENGINE_CPU_ROWS_H

#include <stddef.h>

typedef struct row_kernels {
    void (*rms_norm)(float *out, const float *x, const float *weight, float eps, int dim);
    void (*silu_mul)(float *gate, const float *up, size_t n);
} row_kernels;

extern const row_kernels rows_portable, rows_avx2, rows_avx512;

#endif
