/* linear_kernels.h -- the vector kernels of linear.h; included once by each linear_<isa>.c, which
 * defines KERNELS as the name of its table.
 *
 * A panel is swept once for up to ROWS_AT_ONCE rows, all accumulators in registers.
 */
#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

#ifndef ROWS_AT_ONCE
#    define ROWS_AT_ONCE 8
#endif

#define LANES (PANEL / VEC)

enum { AHEAD = 8192 }; /* bytes of weights on their way from memory */

/* One sweep of a panel for R rows (a constant once inlined). */
static inline __attribute__((always_inline)) void
sweep(float *out, const void *data, bool bf16, const float *const *x, int k_end, const int r_count)
{
    vf acc[ROWS_AT_ONCE][LANES];
    for (int r = 0; r < r_count; r++) {
        for (int j = 0; j < LANES; j++) acc[r][j] = vf_set(0);
    }
    const uint16_t *h = data;
    const float *f = data;
    for (int k = 0; k < k_end; k++) {
        vf w[LANES];
        for (int j = 0; j < LANES; j++) {
            w[j] = bf16 ? vf_from_bf16(h + (size_t)k * PANEL + j * VEC)
                        : vf_load(f + (size_t)k * PANEL + j * VEC);
        }
        __builtin_prefetch((const char *)data + (size_t)k * (bf16 ? 2 : 4) * PANEL + AHEAD);
        for (int r = 0; r < r_count; r++) {
            vf xv = vf_set(x[r][k]);
            for (int j = 0; j < LANES; j++) acc[r][j] += xv * w[j];
        }
    }
    for (int r = 0; r < r_count; r++) {
        for (int j = 0; j < LANES; j++) vf_store(out + r * PANEL + j * VEC, acc[r][j]);
    }
}

static inline __attribute__((always_inline)) void
panel(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows, bool bf16)
{
    const void *data = (const char *)w->data + (size_t)p * w->panel_bytes;
    int k = w->head.cols;
    for (int i = 0; i < n_rows; i += ROWS_AT_ONCE) {
        const float *rows[ROWS_AT_ONCE];
        int n = n_rows - i < ROWS_AT_ONCE ? n_rows - i : ROWS_AT_ONCE;
        for (int r = 0; r < n; r++) rows[r] = (const float *)x + (size_t)(row0 + i + r) * k;
        float *o = out + (size_t)i * PANEL;
        switch (n) {
        case 1: sweep(o, data, bf16, rows, k, 1); break;
        case 2: sweep(o, data, bf16, rows, k, 2); break;
        case 3: sweep(o, data, bf16, rows, k, 3); break;
        case 4: sweep(o, data, bf16, rows, k, 4); break;
        case 5: sweep(o, data, bf16, rows, k, 5); break;
        case 6: sweep(o, data, bf16, rows, k, 6); break;
        case 7: sweep(o, data, bf16, rows, k, 7); break;
        default: sweep(o, data, bf16, rows, k, ROWS_AT_ONCE); break;
        }
    }
}

static void panel_f32(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    panel(out, w, p, x, row0, n_rows, false);
}

static void panel_bf16(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    panel(out, w, p, x, row0, n_rows, true);
}

static inline __attribute__((always_inline)) vf load_a(const void *a, size_t at, bool bf16)
{
    return bf16 ? vf_from_bf16((const uint16_t *)a + at) : vf_load((const float *)a + at);
}

static inline __attribute__((always_inline)) vf load_a_n(const void *a, size_t at, bool bf16, int n)
{
    return bf16 ? vf_load_bf16_n((const uint16_t *)a + at, n) : vf_load_n((const float *)a + at, n);
}

/* Dot products of R rows of A with N rows of x; the R rows after them are fetched meanwhile. */
static inline __attribute__((always_inline)) void dots(float *v, int v_stride, const void *a,
                                                       bool bf16, const float *x, int d,
                                                       const int r_count, const int n_count)
{
    vf acc[SHRINK_ROWS][4];
    for (int i = 0; i < n_count; i++) {
        for (int r = 0; r < r_count; r++) acc[i][r] = vf_set(0);
    }
    int k = 0;
    for (; k + VEC <= d; k += VEC) {
        vf av[4];
        for (int r = 0; r < r_count; r++) {
            size_t at = (size_t)r * d + k;
            __builtin_prefetch((const char *)a + (at + (size_t)r_count * d) * (bf16 ? 2 : 4));
            av[r] = load_a(a, at, bf16);
        }
        for (int i = 0; i < n_count; i++) {
            vf xv = vf_load(x + (size_t)i * d + k);
            for (int r = 0; r < r_count; r++) acc[i][r] += xv * av[r];
        }
    }
    if (k < d) {
        for (int i = 0; i < n_count; i++) {
            vf xv = vf_load_n(x + (size_t)i * d + k, d - k);
            for (int r = 0; r < r_count; r++) {
                acc[i][r] += xv * load_a_n(a, (size_t)r * d + k, bf16, d - k);
            }
        }
    }
    for (int i = 0; i < n_count; i++) {
        for (int r = 0; r < r_count; r++) v[i * v_stride + r] = vf_sum(acc[i][r]);
    }
}

static inline __attribute__((always_inline)) void shrink_all(float *v, int v_stride, const void *a,
                                                             bool bf16, const float *x, int rank,
                                                             int d, const int n_count)
{
    size_t row = (size_t)d * (bf16 ? 2 : 4);
    int r = 0;
    for (; r + 4 <= rank; r += 4) {
        dots(v + r, v_stride, (const char *)a + r * row, bf16, x, d, 4, n_count);
    }
    for (; r < rank; r++) {
        dots(v + r, v_stride, (const char *)a + r * row, bf16, x, d, 1, n_count);
    }
}

static inline __attribute__((always_inline)) void shrink_n(float *v, int v_stride, int n_rows,
                                                           const void *a, bool bf16, const float *x,
                                                           int rank, int d)
{
    switch (n_rows) {
    case 1: shrink_all(v, v_stride, a, bf16, x, rank, d, 1); break;
    case 2: shrink_all(v, v_stride, a, bf16, x, rank, d, 2); break;
    case 3: shrink_all(v, v_stride, a, bf16, x, rank, d, 3); break;
    default: shrink_all(v, v_stride, a, bf16, x, rank, d, SHRINK_ROWS); break;
    }
}

static void shrink(float *v, int v_stride, int n_rows, const void *a, bool bf16, const float *x,
                   int rank, int d_in)
{
    if (bf16)
        shrink_n(v, v_stride, n_rows, a, true, x, rank, d_in);
    else
        shrink_n(v, v_stride, n_rows, a, false, x, rank, d_in);
}

enum { EXPAND_ROWS = 4 };

static inline __attribute__((always_inline)) void expand_all(float *out, const void *b, bool bf16,
                                                             const float *v, int v_stride,
                                                             float scale, int rank,
                                                             const int n_count)
{
    vf acc[EXPAND_ROWS][LANES];
    for (int i = 0; i < n_count; i++) {
        for (int j = 0; j < LANES; j++) acc[i][j] = vf_set(0);
    }
    for (int r = 0; r < rank; r++) {
        vf bv[LANES];
        for (int j = 0; j < LANES; j++) bv[j] = load_a(b, (size_t)r * PANEL + j * VEC, bf16);
        for (int i = 0; i < n_count; i++) {
            vf vr = vf_set(v[i * v_stride + r]);
            for (int j = 0; j < LANES; j++) acc[i][j] += vr * bv[j];
        }
    }
    for (int i = 0; i < n_count; i++) {
        for (int j = 0; j < LANES; j++) {
            float *o = out + i * PANEL + j * VEC;
            vf_store(o, vf_load(o) + acc[i][j] * vf_set(scale));
        }
    }
}

static inline __attribute__((always_inline)) void expand_n(float *out, int n_rows, const void *b,
                                                           bool bf16, const float *v, int v_stride,
                                                           float scale, int rank)
{
    int i = 0;
    for (; i + EXPAND_ROWS <= n_rows; i += EXPAND_ROWS) {
        expand_all(out + i * PANEL, b, bf16, v + (size_t)i * v_stride, v_stride, scale, rank,
                   EXPAND_ROWS);
    }
    for (; i < n_rows; i++) {
        expand_all(out + i * PANEL, b, bf16, v + (size_t)i * v_stride, v_stride, scale, rank, 1);
    }
}

static void expand(float *out, int n_rows, const void *b, bool bf16, const float *v, int v_stride,
                   float scale, int rank)
{
    if (bf16)
        expand_n(out, n_rows, b, true, v, v_stride, scale, rank);
    else
        expand_n(out, n_rows, b, false, v, v_stride, scale, rank);
}

const linear_kernels KERNELS = {panel_f32, panel_bf16, shrink, expand};
