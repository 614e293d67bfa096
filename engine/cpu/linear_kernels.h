/* linear_kernels.h -- vector kernels of linear.c; included once by each linear_<isa>.c, which
 * defines KERNELS and QUANT_KERNELS as the names of its tables.
 *
 *   block     panels x rows, for f32, f16 and bf16 weights: the tile of tile.h over pieces of k
 *   shrink    v = A x (LoRA): DOT_A rows of A times DOT_X rows of x at once
 *   expand    sums += scale B v (LoRA), one panel of columns
 *
 * block() has two orders. Few rows: each panel in one pass over all k, with the weights prefetched
 * AHEAD bytes. Many rows: pieces of PIECE_BYTES of each panel, which stay in L1 while all rows
 * pass, and the rows' part of x stays in L2 while the panels pass. Sums are stored between pieces,
 * which changes no bit: a sum has one accumulator, k ascending.
 *
 * Coded weights (codes that stand for floats, quant_coded.h) are expanded to a buffer, one piece at
 * a time, and then multiplied like plain ones.
 *
 * bf16 vectors are "mixed" (vec.h): even and odd columns in two registers, which takes one
 * instruction each to unpack.
 */
#include <stdalign.h>

#include "engine/cpu/linear.h"
#include "engine/cpu/quant_coded.h"
#include "engine/cpu/quant_kernels.h"
#include "engine/cpu/tile.h"

enum {
    AHEAD = 8192, /* bytes of weights on their way from memory, where one pass reads them all */
    PIECE_BYTES = 16384, /* of a panel, which stay in the first-level cache while the rows pass */
};

/* One piece of k of one panel for all rows; x is packed.  `next` is read soon, and as much of it;
 * NULL: nobody knows what. */
static inline __attribute__((always_inline)) void piece(tile_work t, const char *next, int cols,
                                                        int k0, int n_rows, const tile_type type)
{
    const int lines = next ? TILE_K * PANEL * tile_bytes(type) / 64 : 0;
    int passes = tile_count(n_rows);
    tile_fetch f = {.at = next, .lines = (lines + passes - 1) / passes, .left = lines};
    const float *x = t.x;
    for (int i = 0; i < n_rows; i += TILE_ROWS) {
        int n = n_rows - i < TILE_ROWS ? n_rows - i : TILE_ROWS;
        t.x = x + (size_t)i * cols + (size_t)k0 * n;
        tile_rows(&t, type, &f, n, TILE_COLS);
        t.out += (size_t)TILE_ROWS * PANEL;
    }
}

/* For each piece of k the rows' part of x stays in the second-level cache while the panels pass. */
static inline __attribute__((always_inline)) void block(float *out, int rows_pad,
                                                        const cpu_weight *w, int p0, int n_panel,
                                                        const float *x, int row0, int n_rows,
                                                        const tile_type type)
{
    alignas(64) char plain[PIECE_BYTES]; /* of codes */
    const bool coded = type != TILE_F16 && w->coded.bits, whole = n_rows <= TILE_WHOLE && !coded;
    int cols = w->head.cols;
    const int k_bytes = PANEL * tile_bytes(type);
    const char *data = (const char *)w->data + (size_t)p0 * w->panel_bytes;
    int some = whole ? cols : PIECE_BYTES / k_bytes;
#if VEC >= 8
    if (coded && n_rows == 1 && w->coded.rounded == DT_BF16) {
        for (int p = 0; p < n_panel; p++)
            coded_alone(out + (size_t)p * rows_pad * PANEL, w, p0 + p, x + (size_t)row0 * cols);
        return;
    }
#endif
    for (int k0 = 0, n_k; k0 < cols; k0 += n_k) {
        n_k = cols - k0 < some ? cols - k0 : some;
        for (int p = 0; p < n_panel; p++) {
            const char *at = data + (size_t)p * w->panel_bytes + (size_t)k0 * k_bytes;
            const char *next = at + (size_t)n_k * k_bytes;
            if (coded) {
                coded_piece(plain, w, p0 + p, k0, k0 + n_k);
                at = plain;
                next = NULL;
            } else if (whole) {
                next = at + AHEAD;
            } else if (p + 1 < n_panel) {
                next = at + w->panel_bytes;
            } else if (k0 + n_k < cols) {
                next = data + (size_t)(k0 + n_k) * k_bytes;
            }
            tile_work t = {.out = out + (size_t)p * rows_pad * PANEL,
                           .out_row = PANEL,
                           .w = at,
                           .w_bytes = k_bytes,
                           .x = x + (size_t)row0 * cols,
                           .n_k = n_k,
                           .more = k0 > 0};
            piece(t, next, cols, k0, n_rows, type);
        }
    }
}

#define BLOCK(name, type)                                                                \
    static void name(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel, \
                     const void *x, int row0, int n_rows)                                \
    {                                                                                    \
        block(out, rows_pad, w, p0, n_panel, x, row0, n_rows, type);                     \
    }
BLOCK(block_f32, TILE_F32)
BLOCK(block_f16, TILE_F16)
BLOCK(block_bf16, TILE_BF16)
#undef BLOCK

/* ---------------------------------------------------------------------- LoRA -- */

/* Rows of A and of x whose products are summed at once. */
enum { DOT_A = 4, DOT_X = VEC_MANY ? 4 : 2, DOT_K = 2 * VEC };

/* DOT_K of k: sum[i][r] += x_i * a_r. */
static inline __attribute__((always_inline)) void dot_add(vf (*sum)[DOT_A], const char *a,
                                                          size_t a_row, const bool bf16,
                                                          const float *x, size_t x_row,
                                                          const int n_a, const int n_x)
{
    vf2 xv[DOT_X];
#pragma GCC unroll 4
    for (int i = 0; i < n_x; i++) {
        xv[i] = vf2_load(x + (size_t)i * x_row);
        if (bf16) xv[i] = vf2_mixed(xv[i]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_a; r++) {
        const void *at = a + (size_t)r * a_row;
        vf2 av = bf16 ? vf2_mixed_from_bf16(at) : vf2_load(at);
#pragma GCC unroll 4
        for (int i = 0; i < n_x; i++) {
            sum[i][r] += xv[i].a * av.a;
            sum[i][r] += xv[i].b * av.b;
        }
    }
}

/* What is left of k, with zeros beyond. */
static inline __attribute__((always_inline)) void dot_rest(vf (*sum)[DOT_A], const char *a,
                                                           size_t a_row, const bool bf16,
                                                           const float *x, size_t x_row, int left,
                                                           const int n_a, const int n_x)
{
    float x_end[DOT_X][DOT_K] = {0};
    alignas(64) char a_end[DOT_A][DOT_K * 4] = {0};
    for (int i = 0; i < n_x; i++) memcpy(x_end[i], x + (size_t)i * x_row, (size_t)left * 4);
    for (int r = 0; r < n_a; r++) memcpy(a_end[r], a + r * a_row, (size_t)left * (bf16 ? 2 : 4));
    dot_add(sum, a_end[0], sizeof(a_end[0]), bf16, x_end[0], DOT_K, n_a, n_x);
}

/* Dot products of n_a rows of A with n_x rows of x; the rows of A after them are fetched meanwhile,
 * to the second-level cache: more lines can be on their way there than to the first. */
static inline __attribute__((always_inline)) void dots(float *v, int v_stride, const char *a,
                                                       const bool bf16, const float *x, int d,
                                                       const int n_a, const int n_x)
{
    enum { SOME = 64 }; /* of k, with which as much of the next rows is fetched */
    const size_t size = bf16 ? 2 : 4, a_row = (size_t)d * size;
    vf sum[DOT_X][DOT_A];
#pragma GCC unroll 4
    for (int i = 0; i < n_x; i++) {
#pragma GCC unroll 4
        for (int r = 0; r < n_a; r++) sum[i][r] = vf_set(0);
    }
    int k = 0, whole = d / DOT_K * DOT_K;
    while (k < whole) {
        int end = k + SOME < whole ? k + SOME : whole;
        for (int r = 0; r < n_a; r++) {
            const char *next = a + ((size_t)r + n_a) * a_row + (size_t)k * size;
            for (size_t i = 0; i < SOME * size; i += 64) __builtin_prefetch(next + i, 0, 2);
        }
#pragma GCC unroll 1
        for (; k < end; k += DOT_K)
            dot_add(sum, a + (size_t)k * size, a_row, bf16, x + k, (size_t)d, n_a, n_x);
    }
    if (k < d) dot_rest(sum, a + k * size, a_row, bf16, x + k, (size_t)d, d - k, n_a, n_x);
#pragma GCC unroll 4
    for (int i = 0; i < n_x; i++) {
#pragma GCC unroll 4
        for (int r = 0; r < n_a; r++) v[i * v_stride + r] = vf_sum(sum[i][r]);
    }
}

static inline __attribute__((always_inline)) void dots_all(float *v, int v_stride, const char *a,
                                                           const bool bf16, const float *x,
                                                           int rank, int d, const int n_x)
{
    size_t row = (size_t)d * (bf16 ? 2 : 4);
    int r = 0;
    for (; r + DOT_A <= rank; r += DOT_A)
        dots(v + r, v_stride, a + r * row, bf16, x, d, DOT_A, n_x);
    for (; r < rank; r++) dots(v + r, v_stride, a + r * row, bf16, x, d, 1, n_x);
}

static inline __attribute__((always_inline)) void shrink_rows(float *v, int v_stride, int n_rows,
                                                              const char *a, const bool bf16,
                                                              const float *x, int rank, int d)
{
    int i = 0;
    for (; i + DOT_X <= n_rows; i += DOT_X)
        dots_all(v + i * v_stride, v_stride, a, bf16, x + (size_t)i * d, rank, d, DOT_X);
    for (; i < n_rows; i++)
        dots_all(v + i * v_stride, v_stride, a, bf16, x + (size_t)i * d, rank, d, 1);
}

static void shrink(float *v, int v_stride, int n_rows, const void *a, bool bf16, const float *x,
                   int rank, int d_in)
{
    if (bf16)
        shrink_rows(v, v_stride, n_rows, a, true, x, rank, d_in);
    else
        shrink_rows(v, v_stride, n_rows, a, false, x, rank, d_in);
}

static inline __attribute__((always_inline)) void expand_rows(float *out, int n_rows, const void *b,
                                                              const bool bf16, const float *v,
                                                              int v_stride, float scale, int rank)
{
    alignas(64) float sums[TILE_ROWS * PANEL];
    for (int i = 0; i < n_rows; i += TILE_ROWS) {
        int n = n_rows - i < TILE_ROWS ? n_rows - i : TILE_ROWS;
        tile_fetch none = {0};
        tile_work t = {.out = sums,
                       .out_row = PANEL,
                       .w = b,
                       .w_bytes = PANEL * (bf16 ? 2 : 4),
                       .x = v + (size_t)i * v_stride,
                       .x_row = (size_t)v_stride,
                       .n_k = rank};
        tile_rows(&t, bf16, &none, n, TILE_COLS);
        float *o = out + (size_t)i * PANEL;
        for (int j = 0; j < n * PANEL; j++) o[j] += sums[j] * scale;
    }
}

static void expand(float *out, int n_rows, const void *b, bool bf16, const float *v, int v_stride,
                   float scale, int rank)
{
    if (bf16)
        expand_rows(out, n_rows, b, true, v, v_stride, scale, rank);
    else
        expand_rows(out, n_rows, b, false, v, v_stride, scale, rank);
}

const linear_kernels KERNELS = {block_f32, block_f16, block_bf16, shrink, expand, TILE_ROWS};
