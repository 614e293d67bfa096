/* linear.h -- what linear.c, pack.c and the kernels agree on.  Private to engine/cpu/.
 *
 * A weight is packed in panels of PANEL output columns.  Layouts:
 *     f32, f16, bf16  [panel][k][PANEL]               vector kernels
 *     bf16 tiles    [panel][k_pad/32][PANEL/16] tiles of [16 pairs of k][16 columns][2]: AMX, and
 *                   AVX512_BF16, where a row of a tile is a vector
 *     quantised     quant.h
 * Rows of x are packed before they are used: as f32 in groups of the set's tile_rows, each [k][rows
 * of the group], or, beside tiles, rounded to bf16: [row / 16][k / 32] tiles of [16 rows][32].
 *
 * The order of summation over k is the same for every number of rows: one accumulator per output,
 * k ascending (AMX: 32 at a time, by TDPBF16PS; AVX512_BF16: 2 at a time, by VDPBF16PS).
 */
#ifndef ENGINE_CPU_LINEAR_H
#define ENGINE_CPU_LINEAR_H

#include "engine/cpu/cpu.h"
#include "engine/cpu/quant.h"

enum { PANEL = CPU_LORA_COLS, K_BLOCK = 32 };

typedef enum { PACK_F32, PACK_F16, PACK_BF16, PACK_TILE, PACK_QUANT } packing;

typedef struct cpu_weight {
    weight head;
    packing pack;
    int k_pad; /* d_in rounded up to K_BLOCK */
    int n_panel;
    size_t panel_bytes;
    quant_form quant; /* of PACK_QUANT */
    coded_form coded; /* bits: data has codes of what `pack` says */
    void *data;       /* 64-byte aligned */
    bool adopted;     /* data is somebody else's, and not to be written */
    /* [n_panel * PANEL]: the sum of squares of each row; NULL until a DoRA
     * adapter wants it (dora.c) */
    _Atomic(double *) squares;
} cpu_weight;

/* y[row][n0 .. n0+PANEL) = x W^T for one panel; writes PANEL floats per row into out[row][PANEL],
 * bit for bit what the block_fn beside it writes. */
typedef void panel_fn(float *out, const cpu_weight *w, int panel, const void *x, int row0,
                      int n_rows);

/* Of an adapter's A or B as packed. */
static inline size_t lora_bytes(dtype base, int rank, int d)
{
    return (size_t)rank * (size_t)d * (base == DT_BF16 ? 2 : 4);
}

/* Row r of an adapter's A. */
static inline const char *lora_a_row(const lora_mat *m, int r, int d_in, dtype base)
{
    const lora_split *sp = m->split;
    if (!sp || r < sp->a_first) return (const char *)m->a + lora_bytes(base, r, d_in);
    r -= sp->a_first;
    return (const char *)sp->a[r / sp->a_each] + lora_bytes(base, r % sp->a_each, d_in);
}

/* B's part for one panel of columns. */
static inline const char *lora_b_panel(const lora_mat *m, int p, dtype base)
{
    const lora_split *sp = m->split;
    int col = p * PANEL;
    if (!sp || col < sp->b_first) return (const char *)m->b + lora_bytes(base, m->rank, col);
    col -= sp->b_first;
    return (const char *)sp->b[col / sp->b_each] + lora_bytes(base, m->rank, col % sp->b_each);
}

enum { SHRINK_ROWS = 4 };

/* v[i][r] = A[r] . x[i] for n_rows <= SHRINK_ROWS rows (row-major A of `rank` rows, bf16 or f32); v
 * is [n_rows][v_stride], x is [n_rows][d_in].  A row's bits do not depend on n_rows. */
typedef void shrink_fn(float *v, int v_stride, int n_rows, const void *a, bool bf16, const float *x,
                       int rank, int d_in);

/* out[i][j] += scale * sum_r v[i][r] B[r][j], j in [0, PANEL), out [n_rows][PANEL]: the part of B
 * for one panel of columns.  B is stored [panel][rank][PANEL], the last panel padded with zeros, so
 * that an epilogue reads one piece.  A row's bits do not depend on n_rows. */
typedef void expand_fn(float *out, int n_rows, const void *b, bool bf16, const float *v,
                       int v_stride, float scale, int rank);

/* Panels [p0, p0 + n_panel) of rows [row0, row0 + n_rows), row0 a multiple of 16 and of the set's
 * tile_rows, into out[panel][row < rows_pad][PANEL].  In the manner of Goto and van de Geijn
 * ("Anatomy of High-Performance Matrix Multiplication"): for each piece of k, the rows' piece
 * stays in the second-level cache while the panels pass, and a panel's piece stays in the first
 * level while the rows pass. */
typedef void block_fn(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                      const void *x, int row0, int n_rows);

typedef struct linear_kernels {
    block_fn *block_f32, *block_f16, *block_bf16;
    shrink_fn *shrink;
    expand_fn *expand;
    int tile_rows; /* rows of a group of packed x */
} linear_kernels;

extern const linear_kernels linear_portable, linear_avx2, linear_avxvnni, linear_avx512,
    linear_avx512vnni;

typedef struct quant_kernels {
    block_fn *block; /* x: quant_rows */
    block_fn *rest;  /* adds x->rest to what block() has written */
    quant_round_fn *round;
    int fill_from;  /* rows of the last group from which on it has to be filled: quant_filled() */
    int tiles_from; /* rows from which on x lies as tiles */
} quant_kernels;

extern const quant_kernels quant_portable, quant_avx2, quant_avxvnni, quant_avx512,
    quant_avx512vnni, quant_avx512bf16, quant_amx, quant_neon, quant_i8mm;

/* Of plain weights that are no tiles. */
block_fn *linear_block_of(const linear_kernels *kern, packing pack);

/* be_linear() for rows of x alone; `s` (of its rows, segments alone are
 * read): NULL: nobody has LoRA. */
void cpu_linear_rows(backend *be, const float *x, const linear_out *outs, int n_out, int n_rows,
                     const step *s, int layer);

/* One of several products that share two phases: rows of x [n_rows][d_in], and their segments (rows
 * counted from the group's first; NULL: nobody has LoRA). */
typedef struct linear_group {
    const float *x;
    const linear_out *outs;
    int n_out, n_rows;
    const step_seg *seg;
    int n_seg;
    int expert; /* whose LoRA it is */
} linear_group;

/* All of them, n of at least one row; one type of weights. */
void cpu_linear_groups(backend *be, const linear_group *groups, int n, int layer);
/* Of SCRATCH_JOBS; of the others, for so many rows and columns in all (two outs at most). */
size_t cpu_linear_groups_bytes(int n);
void cpu_linear_groups_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES]);

/* Rows of one group, src [n][d], as the vector kernels take them: [d][n]. */
void linear_pack_rows(float *dst, const float *src, int n, int d);

/* Rounds a row of x to bf16 into its place among the tiles, zero-padded to k_pad. */
typedef void round_row_fn(uint16_t *x16, int row, const float *src, int d_in, int k_pad);
/* Fills that place with zeros. */
typedef void zero_row_fn(uint16_t *x16, int row, int k_pad);
/* Configures the calling thread's AMX tiles for rows of x of `row_bytes` (0: releases them); *now
 * is the present configuration, and becomes row_bytes. */
typedef void configure_fn(int *now, int row_bytes);

enum { LINEAR_TILE_PAIRS = 2 * K_BLOCK }; /* row_bytes of bf16 */

/* Products of weights packed as tiles (PACK_TILE). */
typedef struct tile_kernels {
    panel_fn *panel;
    block_fn *block;
    round_row_fn *round_row;
    zero_row_fn *zero_row;
    configure_fn *configure; /* NULL: nothing to configure */
} tile_kernels;

extern const tile_kernels tiles_avx512bf16, tiles_amx, tiles_i8mm;

static inline void linear_configure(const tile_kernels *tiles, int *now, int row_bytes)
{
    if (tiles && tiles->configure) tiles->configure(now, row_bytes);
}

/* linear_avx512bf16.c; also AMX's: x lies the same way for both. */
round_row_fn linear_round_row;
zero_row_fn linear_zero_row;
coded_fn linear_coded_tiles;

#endif
