/* gemm_inside.h -- what the products of gemm.cu and gemm_codes.cu have in common, so that both sum
 * by the law of gemm.h: fragments, who sums which chunks, where results go, the loop over tiles.
 * For these .cu files only.
 * Names: steps.h.
 */
#ifndef ENGINE_CUDA_PRODUCTS_GEMM_INSIDE_H
#define ENGINE_CUDA_PRODUCTS_GEMM_INSIDE_H

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/gemm.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/products/steps.h"

enum {
    SMALL_COLS = SMALL_WARPS * 16, /* of a block */
    LARGE_THREADS = 256,
    TILE = 128,  /* rows and columns of a block of the large kernel */
    TILE_K = 64, /* k of a stage */
    STAGES = 3,  /* of the large kernel */
    STAGE_HALF = TILE * TILE_K,
    GROUP = 8, /* tiles of columns that are walked together: their weights stay in the cache */
};

CU_INLINE int chunks_of(int k)
{
    return (k + GEMM_CHUNK - 1) / GEMM_CHUNK;
}

/* Where column `col` of the sums goes. */
CU_INLINE int place_of(const gemm_args *a, int col)
{
    return a->place && col < a->n ? a->place[col] : col;
}

CU_INLINE void put_value(const gemm_args *a, int row, int col, int place, float sum)
{
    size_t at = (size_t)row * (size_t)a->stride + (size_t)place;
    if (a->bias) sum = cu_add(sum, a->bias[col]);
    if (a->res) sum = cu_add(sum, a->res[at]);
    a->y[at] = sum;
}

/* From one of a lane's two columns to the other: gate and up are made by the same lane. */
CU_INLINE int columns_apart(const gemm_args *a)
{
    return a->gated ? a->n / 2 : 8;
}

CU_INLINE void put_gated(const gemm_args *a, int row, int col, float gate, float up)
{
    a->gated[(size_t)row * (size_t)(a->n / 2) + (size_t)col] =
        cu_bf16_of(cu_gate_mul(gate, up, a->gelu));
}

/* The gate of all of the lane's sums. */
template <int NT>
CU_INLINE void put_gates(const gemm_args *a, float (*sum)[4], int row0, int col, int q)
{
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 2; i++) {
            int row = row0 + nt * 8 + 2 * q + i;
            if (row < a->rows && col < a->n / 2) put_gated(a, row, col, sum[nt][i], sum[nt][2 + i]);
        }
    }
}

/* sum[nt][i] is of row row0 + 8 nt + 2q + i % 2 and column col + apart (i / 2). */
template <int NT>
CU_INLINE void put_sums(const gemm_args *a, float (*sum)[4], int row0, int col, int apart, int q)
{
    const int place[2] = {place_of(a, col), place_of(a, col + apart)};
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            int row = row0 + nt * 8 + 2 * q + i % 2, c = col + i / 2 * apart;
            if (row < a->rows && c < a->n) put_value(a, row, c, place[i / 2], sum[nt][i]);
        }
    }
}

/* ---- few rows ----------------------------------------------------------------------------------
 * A warp: 16 columns of y (rows of w), 8 NT rows.  A block is SMALL_COLS columns; or 16, of which
 * its warps sum 2^split chunks side by side. */

/* What a warp of a block sums. */
typedef struct {
    int split, first; /* column of the block */
    int cols, chunk;  /* of the warp: which 16 columns, which chunk of a turn */
} few_warp;

CU_INLINE few_warp few_of(int split)
{
    int warp = (int)threadIdx.x / CU_WARP;
    few_warp w = {split, (int)blockIdx.x * (split ? 16 : SMALL_COLS), split ? 0 : warp,
                  split ? warp : 0};
    return w;
}

/* The first column of a lane of the 16 with this number. */
CU_INLINE int few_column(const gemm_args *a, const few_warp *w, int cols, int g)
{
    return a->gated ? w->first / 2 + cols * 8 + g : w->first + cols * 16 + g;
}

template <int NT>
CU_INLINE void put_few(const gemm_args *a, float (*sum)[4], int row0, int col, int q)
{
    if (a->gated)
        put_gates<NT>(a, sum, row0, col, q);
    else
        put_sums<NT>(a, sum, row0, col, columns_apart(a), q);
}

/* A block's product: sum(acc, chunk) gives the sums of a chunk of the warp's columns.  `kept`: of
 * the block, a turn's chunks, which are added in order by whoever has their rows and columns. */
template <int NT, class F>
CU_INLINE void multiply_few(const gemm_args *a, const few_warp *w, float *kept, F sum)
{
    const int UNITS = (NT + 1) / 2; /* tiles of eight rows that one warp has, at most */
    int t = (int)threadIdx.x, lane = t % CU_WARP, n_chunk = chunks_of(a->k);
    float acc[NT][4], total[NT][4];
    CU_UNROLL
    for (int i = 0; i < NT * 4; i++) total[i / 4][i % 4] = 0;
    if (w->split == 0) {
        for (int c = 0; c < n_chunk; c++) {
            sum(acc, c);
            CU_UNROLL
            for (int i = 0; i < NT * 4; i++) {
                float *to = &total[i / 4][i % 4], one = acc[i / 4][i % 4];
                *to = cu_add(*to, one);
            }
        }
        put_few<NT>(a, total, 0, few_column(a, w, w->cols, lane / 4), lane % 4);
        return;
    }
    int at_once = 1 << w->split;
    for (int c = 0; c < n_chunk; c += at_once) {
        if (c > 0) __syncthreads(); /* the turn before has been added */
        if (c + w->chunk < n_chunk) {
            sum(acc, c + w->chunk);
            CU_UNROLL
            for (int nt = 0; nt < NT; nt++)
                cu_store_f32x4(kept + ((w->chunk * NT + nt) * CU_WARP + lane) * 4, acc[nt]);
        } else {
            cu_grid_wait();
        }
        __syncthreads(); /* of all warps */
        for (int chunk = 0; chunk < at_once && c + chunk < n_chunk; chunk++) {
            CU_UNROLL
            for (int u = 0; u < UNITS; u++) {
                int i = w->chunk + (u << w->split); /* which rows */
                float more[4];
                if (i >= NT) continue;
                cu_load_f32x4(more, kept + ((chunk * NT + i) * CU_WARP + lane) * 4);
                for (int j = 0; j < 4; j++) total[u][j] = cu_add(total[u][j], more[j]);
            }
        }
    }
    CU_UNROLL
    for (int u = 0; u < UNITS; u++) {
        int i = w->chunk + (u << w->split);
        if (i < NT) put_few<1>(a, total + u, i * 8, few_column(a, w, 0, lane / 4), lane % 4);
    }
}

/* ---- many rows ---------------------------------------------------------------------------------
 * A block: 128 columns by 128 rows, 8 warps of 64 columns by 32 rows.  A stage is w [128][64 k],
 * then x [128][64 k]; pieces of 16 bytes change halves in odd rows, so that the 8 lanes of a phase
 * of a shared load meet all banks. */

CU_INLINE int swizzled(int row, int piece)
{
    return row * TILE_K + (piece ^ (row & 1) << 2) * 8;
}

/* Columns 64 (warp % 2) .. of rows 32 (warp / 2) ..: 4 by 4 pieces. */
template <bool BF16>
CU_INLINE void add_stage(float (*acc)[4][4], const uint16_t *stage, int warp, int g, int q,
                         int left)
{
    const uint16_t *w = stage, *x = stage + STAGE_HALF;
    CU_UNROLL_BY(1) /* more takes registers that the sums need */
    for (int i = 0; i < TILE_K / STEP; i++) {
        if (i * STEP >= left) break;
        uint4 xv[4];
        CU_UNROLL
        for (int nt = 0; nt < 4; nt++)
            xv[nt] = cu_ld16(x + swizzled(warp / 2 * 32 + nt * 8 + g, 4 * i + q));
        CU_UNROLL
        for (int mt = 0; mt < 4; mt++) {
            int r = warp % 2 * 64 + mt * 16 + g;
            uint4 lo = cu_ld16(w + swizzled(r, 4 * i + q));
            uint4 hi = cu_ld16(w + swizzled(r + 8, 4 * i + q));
            CU_UNROLL
            for (int nt = 0; nt < 4; nt++) mma32<BF16>(acc[mt][nt], lo, hi, xv[nt]);
        }
    }
}

/* Where a block's tile lies: groups of GROUP tiles of columns, rows inside, columns innermost. */
CU_INLINE void place_tile(const gemm_args *a, int block, int *col0, int *row0)
{
    int n_col = (a->n + TILE - 1) / TILE, n_row = (a->rows + TILE - 1) / TILE;
    int group = block / (GROUP * n_row), rest = block % (GROUP * n_row);
    int wide = n_col - group * GROUP < GROUP ? n_col - group * GROUP : GROUP;
    *col0 = (group * GROUP + rest % wide) * TILE;
    *row0 = rest / wide * TILE;
}

/* What one thread copies of the rows of x of each stage: the 16 bytes with number t % 8 of rows
 * t / 8 + 32 i. */
typedef struct {
    const uint16_t *x; /* of i = 0 */
    uint32_t valid;    /* bit i: there is such a row */
} row_copies;

enum { COPIES = TILE * 8 / LARGE_THREADS, COPY_ROWS = LARGE_THREADS / 8 };

/* Bit i: row first + 32 i is one of n. */
CU_INLINE uint32_t rows_there(int first, int n)
{
    uint32_t there = 0;
    CU_UNROLL
    for (int i = 0; i < COPIES; i++) there |= (uint32_t)(first + i * COPY_ROWS < n) << i;
    return there;
}

CU_INLINE row_copies find_rows(const gemm_args *a, int row0, int t)
{
    row_copies cp = {(const uint16_t *)a->x + (size_t)(row0 + t / 8) * (size_t)a->k + t % 8 * 8,
                     rows_there(row0 + t / 8, a->rows)};
    return cp;
}

/* The 64 k from k0 on, zeros from the end on. */
CU_INLINE void fetch_rows(uint16_t *to, const gemm_args *a, const row_copies *cp, int k0, int t)
{
    bool in = k0 + t % 8 * 8 < a->k;
    size_t apart = (size_t)COPY_ROWS * (size_t)a->k;
    const uint16_t *x = cp->x + k0;
    CU_UNROLL
    for (int i = 0; i < COPIES; i++, x += apart) {
        bool has = in && cp->valid >> i & 1;
        cu_cp_async16_or_zero(to + swizzled(t / 8 + i * COPY_ROWS, t % 8),
                              has ? x : (const uint16_t *)a->x, has);
    }
}

/* A block's tile of the product.  W (find, fetch, put) brings the weights of a stage: fetch()
 * begins to, put() stores what fetch() did not copy by itself. */
template <bool BF16, class W>
CU_INLINE void multiply_tiles(const gemm_args *a)
{
    CU_SHARED(uint16_t, stage);
    int t = (int)threadIdx.x, warp = t / CU_WARP, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int col0, row0, n_stage = (a->k + TILE_K - 1) / TILE_K;
    place_tile(a, (int)blockIdx.x, &col0, &row0);
    const row_copies rows = find_rows(a, row0, t);
    W w;
    w.find(a, col0, t);
    float acc[4][4][4], total[4][4][4] = {{{0}}};
    CU_UNROLL
    for (int i = 0; i < 64; i++) acc[i / 16][i / 4 % 4][i % 4] = 0;
    CU_UNROLL
    for (int s = 0; s < STAGES - 1; s++) {
        uint16_t *to = stage + s * 2 * STAGE_HALF;
        if (s < n_stage) {
            w.fetch(to, a, s * TILE_K, t);
            fetch_rows(to + STAGE_HALF, a, &rows, s * TILE_K, t);
            w.put(to, a, s * TILE_K, t);
        }
        cu_cp_async_commit();
    }
    for (int s = 0; s < n_stage; s++) {
        CU_CP_ASYNC_WAIT(STAGES - 2); /* this thread's part of stage s has come */
        __syncthreads();              /* all parts have, and stage s - 1 was read by all */
        int f = s + STAGES - 1;
        uint16_t *to = stage + f % STAGES * 2 * STAGE_HALF;
        if (f < n_stage) {
            w.fetch(to, a, f * TILE_K, t);
            fetch_rows(to + STAGE_HALF, a, &rows, f * TILE_K, t);
        }
        cu_cp_async_commit();
        add_stage<BF16>(acc, stage + s % STAGES * 2 * STAGE_HALF, warp, g, q, a->k - s * TILE_K);
        if (f < n_stage) w.put(to, a, f * TILE_K, t);
        int end = (s + 1) * TILE_K;
        if (end % GEMM_CHUNK != 0 && s + 1 < n_stage) continue;
        CU_UNROLL
        for (int i = 0; i < 64; i++) {
            float *sum = &total[i / 16][i / 4 % 4][i % 4], *from = &acc[i / 16][i / 4 % 4][i % 4];
            *sum = cu_add(*sum, *from);
            *from = 0;
        }
    }
    CU_UNROLL
    for (int mt = 0; mt < 4; mt++) {
        int col = col0 + warp % 2 * 64 + mt * 16 + g;
        put_sums<4>(a, total[mt], row0 + warp / 2 * 32, col, 8, q);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* How few rows are summed: by 2^split chunks side by side, where blocks of whole columns would not
 * fill the device. */
static inline int few_split(const gemm_args *a)
{
    int chunks = (a->k + GEMM_CHUNK - 1) / GEMM_CHUNK;
    bool fills = (a->n + SMALL_COLS - 1) / SMALL_COLS >= 2 * a->n_sm;
    return fills || chunks == 1 ? 0 : chunks == 2 ? 1 : 2;
}

static inline unsigned few_blocks(const gemm_args *a, int split)
{
    int cols = split ? 16 : SMALL_COLS;
    return (unsigned)((a->n + cols - 1) / cols);
}

static inline unsigned few_threads(int split)
{
    return CU_WARP * (split ? 1U << split : (unsigned)SMALL_WARPS);
}

enum { LARGE_SHARED = STAGES * 2 * STAGE_HALF * (int)sizeof(uint16_t) };

static inline unsigned tiles_of(const gemm_args *a)
{
    return (unsigned)((a->n + TILE - 1) / TILE) * (unsigned)((a->rows + TILE - 1) / TILE);
}

#endif
