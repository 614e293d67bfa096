/* gemm_inside.h -- what the products of gemm.cu and gemm_codes.cu have in common, so that both sum
 * by the law of gemm.h: fragments, sums of split K, where results go, the loop over tiles.  For
 * these .cu files only.
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
CU_INLINE void put_gates(const gemm_args *a, float (*sum)[4], int col, int q)
{
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 2; i++) {
            int row = nt * 8 + 2 * q + i;
            if (row < a->rows && col < a->n / 2) put_gated(a, row, col, sum[nt][i], sum[nt][2 + i]);
        }
    }
}

/* sum[nt][i] is of row row0 + 8 nt + 2q + i % 2 and column col + apart (i / 2).  To `plane` as it
 * is, or, where that is NULL, to y. */
template <int NT>
CU_INLINE void put_sums(const gemm_args *a, float *plane, float (*sum)[4], int row0, int col,
                        int apart, int q)
{
    const int place[2] = {place_of(a, col), place_of(a, col + apart)};
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            int row = row0 + nt * 8 + 2 * q + i % 2, c = col + i / 2 * apart;
            if (row >= a->rows || c >= a->n) continue;
            if (plane)
                plane[(size_t)row * (size_t)a->n + (size_t)c] = sum[nt][i];
            else
                put_value(a, row, c, place[i / 2], sum[nt][i]);
        }
    }
}

/* The sums of one chunk, blockIdx.y, of a block's columns: the last block of a column group adds
 * all chunks in order.  `turn` is the block's; `has`: the lane's columns are its own. */
template <int NT>
CU_INLINE void add_split(const gemm_args *a, float (*acc)[4], float *partial, uint32_t *ticket,
                         uint32_t *turn, int col, bool has, int q)
{
    int t = (int)threadIdx.x, n_chunk = chunks_of(a->k), apart = columns_apart(a);
    size_t plane = (size_t)a->rows * (size_t)a->n;
    if (has) put_sums<NT>(a, partial + (size_t)blockIdx.y * plane, acc, 0, col, apart, q);
    cu_threadfence(); /* these sums, before the count */
    __syncthreads();  /* of all warps */
    if (t == 0) turn[0] = cu_atomic_add_u32(&ticket[blockIdx.x], 1);
    __syncthreads(); /* the block's turn is known */
    if (turn[0] + 1 < (uint32_t)n_chunk) return;
    cu_threadfence(); /* the count, before the others' sums */
    int cols = a->gated ? SMALL_COLS / 2 : (int)SMALL_COLS, end = a->gated ? apart : a->n;
    int first = (int)blockIdx.x * cols;
    for (int i = t; i < a->rows * cols; i += SMALL_WARPS * CU_WARP) {
        int row = i / cols, c = first + i % cols;
        if (c >= end) continue;
        const float *from = partial + (size_t)row * (size_t)a->n + (size_t)c;
        float sum = 0, up = 0;
        for (int k = 0; k < n_chunk; k++) {
            sum = cu_add(sum, cu_ld_fresh(from + (size_t)k * plane));
            if (a->gated) up = cu_add(up, cu_ld_fresh(from + (size_t)k * plane + apart));
        }
        if (a->gated)
            put_gated(a, row, c, sum, up);
        else
            put_value(a, row, c, place_of(a, c), sum);
    }
    if (t == 0) ticket[blockIdx.x] = 0; /* for the next product */
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
        put_sums<4>(a, nullptr, total[mt], row0 + warp / 2 * 32, col, 8, q);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

static inline int column_groups(int n)
{
    return (n + SMALL_COLS - 1) / SMALL_COLS;
}

/* Whether blocks of whole columns fill the device; they need no tickets then. */
static inline bool fills(int n, int n_sm)
{
    return column_groups(n) >= 2 * n_sm;
}

/* Of few rows: K is split where there is scratch and a need. */
typedef struct {
    dim3 grid;
    float *partial;
} few_launch;

static inline few_launch few_launch_of(const gemm_args *a)
{
    bool split = a->scratch && gemm_scratch_bytes(a->n, a->k, a->n_sm) > 0;
    few_launch l = {dim3((unsigned)column_groups(a->n),
                         split ? (unsigned)((a->k + GEMM_CHUNK - 1) / GEMM_CHUNK) : 1),
                    split ? (float *)((char *)a->scratch + gemm_ticket_bytes(a->n_sm)) : nullptr};
    return l;
}

enum { LARGE_SHARED = STAGES * 2 * STAGE_HALF * (int)sizeof(uint16_t) };

static inline unsigned tiles_of(const gemm_args *a)
{
    return (unsigned)((a->n + TILE - 1) / TILE) * (unsigned)((a->rows + TILE - 1) / TILE);
}

#endif
