/* rows.h -- row kernels, one table per instruction set.  Private to engine/cpu/. */
#ifndef ENGINE_CPU_ROWS_H
#define ENGINE_CPU_ROWS_H

#include <stddef.h>

#include "engine/backend.h"

typedef struct row_kernels {
    void (*rms_norm)(float *out, const float *x, const float *gain, float eps, int dim);
    void (*layer_norm)(float *out, const float *x, const float *gain, const float *bias, float eps,
                       int dim);
    void (*gate)(activation act, float *gate, const float *up, size_t n); /* as be_gate() */
    void (*add)(float *x, const float *y, float scale, size_t n);
    void (*open)(float *x, const float *gate, size_t n);      /* x *= sigmoid(gate) */
    void (*bend)(float *x, float scale, float cap, size_t n); /* as be_logits_bend() */
    /* coef: alpha_p, alpha_n, beta, eps as be_xielu() has them, the alphas ready */
    void (*xielu)(float *x, const float coef[4], size_t n);
} row_kernels;

extern const row_kernels rows_portable, rows_avx2, rows_avx512;

#endif
