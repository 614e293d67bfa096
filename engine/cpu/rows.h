/* rows.h -- row kernels, one table per instruction set.  Private to engine/cpu/. */
#ifndef ENGINE_CPU_ROWS_H
#define ENGINE_CPU_ROWS_H

#include <stddef.h>

typedef struct row_kernels {
    void (*rms_norm)(float *out, const float *x, const float *weight, float eps, int dim);
    void (*layer_norm)(float *out, const float *x, const float *weight, const float *bias,
                       float eps, int dim);
    void (*silu_mul)(float *gate, const float *up, size_t n);
    void (*gelu_mul)(float *gate, const float *up, size_t n);    /* the one with tanh */
    void (*clamped_mul)(float *gate, const float *up, size_t n); /* ACT_SWIGLU_CLAMPED */
    void (*silu)(float *x, size_t n);
    void (*gelu)(float *x, size_t n);
    void (*add)(float *x, const float *y, float scale, size_t n);
    void (*bend)(float *x, float scale, float cap, size_t n); /* as be_logits_bend() */
} row_kernels;

extern const row_kernels rows_portable, rows_avx2, rows_avx512;

#endif
