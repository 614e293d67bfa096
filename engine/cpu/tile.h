/* tile.h -- the inner loop of matrix products, LoRA's expand and attention: TILE_ROWS rows times
 * two vectors of columns, all sums in registers while k advances.
 *
 *   for k:  w0, w1 = load(w[k]);  for each row r:  sum[r][0] += x[r][k] * w0;  sum[r][1] += x[r][k]
 *   * w1
 *
 * TILE_ROWS x 2 vectors of sums, two of columns, a zero to unpack bf16 with, and one value of x
 * must fit the registers of the instruction set; tests/engine/cpu/hot_loops.py reads the compiler's
 * output and fails if they spill.
 *
 * A sum has one accumulator and k ascends, whatever stands beside it. So storing and loading it
 * between pieces of k changes no bit, and neither does the number of rows.
 *
 * `tile_fetch` prefetches lines for the next pass, evenly spread over this one. Private to
 * engine/cpu/.
 */
#ifndef ENGINE_CPU_TILE_H
#define ENGINE_CPU_TILE_H

#include <stdbool.h>

#include "engine/cpu/cpu.h"
#include "engine/cpu/vec.h"

/* Columns stored together: of a panel, of a page of keys. */
enum { TILE_COLS = CPU_LORA_COLS, TILE_WIDE = TILE_COLS / VEC };

/* Up to TILE_WHOLE rows, one pass takes all TILE_COLS columns; beyond, two vectors of them. */
#if VEC == 16
enum { TILE_ROWS = 8, TILE_WHOLE = 8 };
#elif VEC == 8
enum { TILE_ROWS = 6, TILE_WHOLE = 2 };
#elif VEC_MANY
enum { TILE_ROWS = 8, TILE_WHOLE = 2 };
#else
enum { TILE_ROWS = 4, TILE_WHOLE = 1 };
#endif

/* What a column's elements are.  Only bf16 is mixed (vec.h). */
typedef enum { TILE_F32, TILE_BF16, TILE_F16 } tile_type;

static inline __attribute__((always_inline)) int tile_bytes(const tile_type type)
{
    return type == TILE_F32 ? 4 : 2;
}

/* Cache lines to prefetch: `lines` with every TILE_K of k of a pass, `left` in all passes. */
typedef struct {
    const char *at;
    int lines, left;
} tile_fetch;

enum { TILE_K = 8 };

/* out[r][c] (+)= sum over k < n_k of x[r][k] * w[k][c].  out's rows lie out_row floats apart, w's
 * rows w_bytes bytes, x's x_row floats; x_row 0: x is [k][rows]. */
typedef struct {
    float *out;
    size_t out_row;
    const char *w;
    size_t w_bytes;
    const float *x;
    size_t x_row;
    int n_k;
    bool more; /* out holds what was summed before; else it is overwritten */
} tile_work;

/* One vector of columns, in order. */
static inline __attribute__((always_inline)) vf tile_column(const char *w, const tile_type type)
{
    const void *at = w;
    return type == TILE_BF16 ? vf_from_bf16(at) : type == TILE_F16 ? vf_from_f16(at) : vf_load(at);
}

/* Two of them, mixed where they are bf16. */
static inline __attribute__((always_inline)) vf2 tile_columns(const char *w, const tile_type type)
{
    if (type == TILE_BF16) return vf2_mixed_from_bf16((const void *)w);
    return (vf2){tile_column(w, type), tile_column(w + VEC * tile_bytes(type), type)};
}

/* One k: sums += x * columns. */
static inline __attribute__((always_inline)) void tile_add(vf (*sum)[TILE_WIDE], const char *w,
                                                           const tile_type type, const float *x,
                                                           size_t x_row, const int rows,
                                                           const int lanes)
{
    if (lanes == 1) {
        vf c = tile_column(w, type);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) sum[r][0] += vf_set(x[(size_t)r * x_row]) * c;
        return;
    }
#pragma GCC unroll 8
    for (int l = 0; l < lanes; l += 2) {
        vf2 c = tile_columns(w + l * VEC * tile_bytes(type), type);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf v = vf_set(x[(size_t)r * x_row]);
            sum[r][l] += v * c.a;
            sum[r][l + 1] += v * c.b;
        }
    }
}

static inline __attribute__((always_inline)) void tile_load(vf *sum, const float *out,
                                                            const tile_type type, const int lanes)
{
    if (lanes == 1) {
        sum[0] = vf_load(out);
        return;
    }
#pragma GCC unroll 8
    for (int l = 0; l < lanes; l += 2) {
        vf2 s = vf2_load(out + l * VEC);
        if (type == TILE_BF16) s = vf2_mixed(s);
        sum[l] = s.a;
        sum[l + 1] = s.b;
    }
}

static inline __attribute__((always_inline)) void tile_store(float *out, const vf *sum,
                                                             const tile_type type, const int lanes)
{
    if (lanes == 1) {
        vf_store(out, sum[0]);
        return;
    }
#pragma GCC unroll 8
    for (int l = 0; l < lanes; l += 2) {
        vf2 s = {sum[l], sum[l + 1]};
        vf2_store(out + l * VEC, type == TILE_BF16 ? vf2_sorted(s) : s);
    }
}

/* One pass: `lanes` vectors of columns from column c on. */
static inline __attribute__((always_inline)) void tile_pass(const tile_work *t, int c,
                                                            const tile_type type, tile_fetch *f,
                                                            const int rows, const int lanes)
{
    vf sum[TILE_ROWS][TILE_WIDE];
    const size_t x_row = t->x_row ? t->x_row : 1, x_k = t->x_row ? 1 : rows;
    float *out = t->out + c;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int l = 0; l < lanes; l++) sum[r][l] = vf_set(0);
        if (t->more) tile_load(sum[r], out + (size_t)r * t->out_row, type, lanes);
    }
    const char *w = t->w + (size_t)c * (size_t)tile_bytes(type), *soon = f->at;
    const float *x = t->x;
    const int n_k = t->n_k, lines = f->left > 0 ? f->lines : 0;
    for (int k = 0; k < n_k;) {
        int end = k + TILE_K < n_k ? k + TILE_K : n_k;
        for (int i = 0; i < lines; i++, soon += 64) __builtin_prefetch(soon);
            /* Unrolled, the loads of several k would come first, and there is
             * no register left for them. */
#pragma GCC unroll 1
        for (; k < end; k++, w += t->w_bytes, x += x_k)
            tile_add(sum, w, type, x, x_row, rows, lanes);
    }
    f->at = soon;
    f->left -= lines;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) tile_store(out + (size_t)r * t->out_row, sum[r], type, lanes);
}

static inline __attribute__((always_inline)) void
tile_passes(const tile_work *t, const tile_type type, tile_fetch *f, const int rows, const int cols)
{
    const int most = cols / VEC, lanes = rows <= TILE_WHOLE || most < 2 ? most : 2;
    for (int c = 0; c < cols; c += lanes * VEC) tile_pass(t, c, type, f, rows, lanes);
}

/* How many passes TILE_COLS columns of n rows take. */
static inline int tile_count(int n)
{
    int last = n % TILE_ROWS, narrow = TILE_COLS / (2 * VEC);
    int whole = n / TILE_ROWS * (TILE_ROWS <= TILE_WHOLE ? 1 : narrow);
    return whole + (last == 0 ? 0 : last <= TILE_WHOLE ? 1 : narrow);
}

/* n <= TILE_ROWS rows, `cols` columns: TILE_COLS or half of them. */
static inline __attribute__((always_inline)) void
tile_rows(const tile_work *t, const tile_type type, tile_fetch *f, int n, const int cols)
{
    switch (n) {
    case 1: tile_passes(t, type, f, 1, cols); break;
    case 2: tile_passes(t, type, f, 2, cols); break;
    case 3: tile_passes(t, type, f, 3, cols); break;
#if VEC > 4 || VEC_MANY
    case 4: tile_passes(t, type, f, 4, cols); break;
    case 5: tile_passes(t, type, f, 5, cols); break;
#endif
#if VEC_MANY
    case 6: tile_passes(t, type, f, 6, cols); break;
    case 7: tile_passes(t, type, f, 7, cols); break;
#endif
    default: tile_passes(t, type, f, TILE_ROWS, cols); break;
    }
}

#endif
