/* quant.h -- quantised weights as the kernels read them, and the rows of x beside them.
 *
 * A panel is a series of runs of `span` columns of W that share scales.  A run:
 *     head   scales [PANEL], mins [PANEL] if there are any, in the type that holds them exactly;
 *            SCALES_ZERO: zeros int16 [PANEL]; SCALES_NESTED: parts int8 [span / group][PANEL], and
 *            as many of the mins.  Filled up to a multiple of 64 bytes
 *     blocks of QUANT_K of k (QUANT_HALF where groups are no multiple): codes, without their sign
 *            (value - least).  In place [k / 4][PANEL][4] of them, four of k of a column side by
 *            side, their bits lie in planes:
 *                four   (4 to 6 bits) the first half of the codes in the low, the second in the
 *                       high halves of as many bytes
 *                two    (2, 3, 6 bits) of 256 codes those 64 apart in one byte
 *                one    (3, 5 bits) a bit for each code, ascending
 *            8 bits: the codes themselves
 * Behind the panels: the order of x's columns, int32 [cols], where the file has one.
 *
 * Codes that stand for floats (coded_form) are no integers: the kernels of plain weights multiply
 * them, and make a piece of a panel plain first, in the first-level cache.  A panel is a series of
 * runs of `group` columns of W: scales f32 [PANEL], then blocks of QUANT_K of k, CODED_LINES lines
 * of CODED_LINE codes each, in the order of the values in the plain packing; 4 bits: the first half
 * of a line in the low, the second in the high halves of its bytes.
 *
 * x is rounded to int8 in groups of a row, as wide as a block of W: scale = largest / 127.  So the
 * product of a block is exact in integers, in any order; what follows has one order: blocks
 * ascending, one accumulator for each output.  Where a weight has x in 16 bits, a second row holds
 * what the first one's rounding left, with scale / 254; the two rows' sums are added at the end.  A
 * row's bits depend on its values alone.
 *
 * Private to engine/cpu/.
 */
#ifndef ENGINE_CPU_QUANT_H
#define ENGINE_CPU_QUANT_H

#include "engine/cpu/cpu.h"
#include "engine/weight_source.h"

enum { QUANT_K = 32, QUANT_HALF = 16, QUANT_QUAD = 4 };

typedef struct quant_form {
    int bits, k;       /* of a code; of a block */
    int planes;        /* of x: quant_rows */
    bool outliers;     /* of x have 16 bits: quant_rows.rest */
    int group, span;   /* columns */
    int least;         /* the value of code 0 */
    bool mapped;       /* codes of 4 bits are places in a table of values */
    uint8_t table[16]; /* less `least` */
    scale_form form;
    dtype scale_type;
    bool has_min;
    size_t parts_at, codes_at, block_bytes, run_bytes;
    size_t min_parts; /* from parts of scales to those of mins */
    const int *order; /* in the packed data, or NULL */
} quant_form;

enum { CODED_LINES = 32, CODED_LINE = 32 };

typedef struct coded_form {
    int bits, group; /* 4, or 8: E4M3; 0: there are none */
    float table[16]; /* of 4 bits */
    dtype rounded;   /* scale * value is rounded to this */
    bool tiles;      /* the order of the lines */
    size_t block_bytes, run_bytes;
} coded_form;

/* Rows of x, rounded.  QUANT_SOME rows (of the last group as many as are left) stand side by side,
 * so that a kernel that takes them together reads one stream. */
enum { QUANT_SOME = 8, QUANT_TILE = 16 };

typedef struct quant_rows {
    int8_t *code;  /* [group of rows][k_pad / QUANT_QUAD][its rows][QUANT_QUAD], or as tiles:
                    * [row / QUANT_TILE][k_pad / QUANT_K][QUANT_TILE][QUANT_K] */
    float *scale;  /* [group][k_pad / QUANT_HALF][its rows] */
    int32_t *sums; /* [group][k_pad / QUANT_HALF][its rows]: of codes */
    int rows, k_pad;
    int span;   /* columns that share a scale: QUANT_K or QUANT_HALF */
    int planes; /* rows that a row of x becomes: 1, or 2 (16 bits) */
    bool tiled; /* `rows` is a multiple of QUANT_TILE */
    /* What rounding left of outliers, groups of x above QUANT_OUTLIER times the row's mean: as many
     * rows, never as tiles; the scale of other groups is 0.  Or NULL. */
    const struct quant_rows *rest;
} quant_rows;

/* Where row `row` stands at k = 0, and the rows of its group. */
typedef struct quant_side {
    size_t code, scale, sums;
    int some;
} quant_side;

static inline quant_side quant_side_of(const quant_rows *q, int row)
{
    int first = row / QUANT_SOME * QUANT_SOME, in = row - first, left = q->rows - first;
    size_t at = (size_t)first * (size_t)q->k_pad;
    return (quant_side){.code = at + (size_t)in * QUANT_QUAD,
                        .scale = at / QUANT_HALF + (size_t)in,
                        .sums = at / QUANT_HALF + (size_t)in,
                        .some = left < QUANT_SOME ? left : QUANT_SOME};
}

/* Of the r-th row after that, within its group. */
static inline quant_side quant_side_next(quant_side s, int r)
{
    return (quant_side){s.code + (size_t)r * QUANT_QUAD, s.scale + (size_t)r, s.sums + (size_t)r,
                        s.some};
}

/* Where the codes of a row stand at k = 0, where they lie as tiles: those of k = QUANT_K stand
 * QUANT_TILE * QUANT_K further. */
static inline size_t quant_tile_of(const quant_rows *q, int row)
{
    size_t in = (size_t)row % QUANT_TILE;
    return ((size_t)row - in) * (size_t)q->k_pad + in * QUANT_K;
}

/* So many rows where a last group of `from` and more is filled up with rows of zeros. */
static inline int quant_filled(int rows, int from)
{
    int left = rows % QUANT_SOME;
    return left >= from ? rows + QUANT_SOME - left : rows;
}

/* Columns [k0, k1), from multiples of QUANT_K to multiples of it or d, of rows x [n][d] into places
 * planes * [row, row + n); zeros after d. */
typedef void quant_round_fn(const quant_rows *to, int row, int n, const float *x, int d, int k0,
                            int k1);

/* A row of zeros. */
void quant_row_zero(const quant_rows *to, int row);

/* Of `rows` rows of `cols` columns, one behind the other, but for `span`, `planes` and `tiled`;
 * `mem` NULL: the bytes alone. */
size_t quant_rows_place(quant_rows *q, void *mem, int rows, int cols);

/* The form of such a source, and the bytes of one panel and of what stands behind them. */
quant_form quant_form_of(const weight_source *src, size_t *panel_bytes, size_t *tail_bytes);

coded_form coded_form_of(const weight_source *src, bool tiles, size_t *panel_bytes);

/* Panel p of a quantised weight as floats [cols][PANEL], in the order of x's columns. */
struct cpu_weight;
void quant_panel_f32(float *out, const struct cpu_weight *w, int p);

/* k from k0 to k1, multiples of QUANT_K, of panel p of a coded weight, as w->pack has plain ones.
 * The last k may be less; a whole block is written then. */
typedef void coded_fn(void *out, const struct cpu_weight *w, int p, int k0, int k1);

/* Packs the panels of a source into w->data, on the pool's threads (NULL: alone). */
err_code quant_pack(struct cpu_weight *w, const weight_source *src, thread_pool *pool, err *e);
/* The order behind the panels stays within the columns.  False: it does not. */
bool quant_order_ok(const int *order, int cols);

/* ---- the bits of a code ---------------------------------------------------------------- */

/* Code i of the n of a block at `at`. */
static inline int quant_code(const uint8_t *at, size_t i, size_t n, int bits)
{
    size_t two = i / 256 * 64 + i % 64, shift = 2 * (i / 64 % 4);
    if (bits == 8) return at[i];
    int v = 0;
    if (bits >= 4) v = i < n / 2 ? at[i] & 15 : at[i - n / 2] >> 4;
    if (bits == 6) v |= (at[n / 2 + two] >> shift & 3) << 4;
    if (bits < 4) v = at[two] >> shift & 3;
    if (bits == 5 || bits == 3)
        v |= (at[n * (size_t)(bits - 1) / 8 + i / 8] >> i % 8 & 1) << (bits - 1);
    return v;
}

#endif
