/* stream.h -- what gemm_stream.cu and gemm_lora.cu have in common: how a product of few rows is
 * cut, the ring of stages that weights and rows of x stream through, and the chain.  For these .cu
 * files only.
 */
#ifndef ENGINE_CUDA_PRODUCTS_STREAM_H
#define ENGINE_CUDA_PRODUCTS_STREAM_H

#include "engine/cuda/products/gemm_inside.h"

enum {
    STREAM_K = 128,                      /* k of a stage */
    ROW_BYTES = STREAM_K * 2,            /* of a row of a stage */
    PIECES = ROW_BYTES / 16,             /* that a row is copied by */
    W_WARPS = 4,                         /* copy weights; others rows of x */
    SERIES = W_WARPS * CU_WARP / PIECES, /* rows of w that are copied together */
    UNIT = 16,                           /* columns of a warp */
    UNITS_MAX = 14,                      /* of a block */
    RING = 6,
    SHORT_RING = 3,                         /* stages of a ring; where they do not fit */
    HALVED = 6,                             /* up to so many units have two warps each */
    STREAM_WARPS = UNITS_MAX + W_WARPS + 2, /* as many as 2 HALVED and eight that copy */
    STREAM_THREADS = STREAM_WARPS * CU_WARP,
    STREAM_SHARED = 227 << 10, /* what a block of sm_90 can have */
};

/* How a product is cut, the same for all of its blocks. */
typedef struct {
    int units, halves; /* of a block; warps of a unit, each with `rows` / `halves` rows */
    int rows, x_warps; /* of x in a stage, 16, 32 or 64; that copy them */
    int stage, stages; /* bytes of one; how many a block holds */
    int blocks;
} stream_cut;

static inline int stream_units(const gemm_args *a)
{
    return (a->n + UNIT - 1) / UNIT;
}

/* Rows of x in a stage. */
static inline int stream_rows(const gemm_args *a)
{
    return a->rows <= 16 ? 16 : a->rows <= 32 ? 32 : GEMM_SMALL_ROWS;
}

/* Blocks of whole groups of so many units, with so much shared memory for other things.  Stages 0:
 * there is no room. */
static inline stream_cut stream_cut_of(const gemm_args *a, int group, int other_bytes)
{
    int n_sm = a->n_sm > 0 ? a->n_sm : 1, units = stream_units(a);
    int waves = (units + UNITS_MAX * n_sm - 1) / (UNITS_MAX * n_sm);
    stream_cut c;
    c.units = (units + waves * n_sm - 1) / (waves * n_sm);
    c.units = (c.units + group - 1) / group * group;
    c.rows = stream_rows(a);
    c.halves = c.rows > 16 && c.units <= HALVED ? 2 : 1;
    c.x_warps = c.units <= HALVED ? 4 : 2; /* a stage takes as long as its weights */
    c.blocks = (units + c.units - 1) / c.units;
    c.stage = (c.units * UNIT + c.rows) * ROW_BYTES;
    int room = STREAM_SHARED - other_bytes;
    c.stages = RING * c.stage <= room ? RING : SHORT_RING * c.stage <= room ? SHORT_RING : 0;
    return c;
}

/* Where a piece of a row lies: the eight rows of a ldmatrix meet all banks. */
CU_INLINE int piece_at(int row, int piece)
{
    return row * ROW_BYTES + (piece ^ (row & 7)) * 16;
}

/* What a thread copies of w: piece t % PIECES of every SERIES-th of the block's rows.  Those behind
 * the last column are it once more, and their sums go nowhere. */
typedef struct {
    const uint16_t *w;
    int col, apart, n; /* of its first row; from gate to up, or 0; columns that there are */
    int n_row, piece, to;
    size_t k;
} w_copies;

CU_INLINE w_copies find_w(const gemm_args *a, int unit0, int units, int t)
{
    int row = t / PIECES, piece = t % PIECES;
    w_copies c = {(const uint16_t *)a->w + piece * 8,
                  a->gated ? unit0 * 8 + row : unit0 * UNIT + row,
                  a->gated ? a->n / 2 : 0,
                  a->gated ? a->n / 2 : a->n,
                  units * UNIT,
                  piece,
                  piece_at(row, piece),
                  (size_t)a->k};
    return c;
}

/* The stage from k0 on; zeros behind the end of k. */
CU_INLINE void fetch_w(char *stage, const w_copies *c, int k0)
{
    bool in = k0 + c->piece * 8 < (int)c->k;
    const int unit = c->apart ? 8 : UNIT; /* from a unit's columns to the next one's */
    const size_t up = (size_t)c->apart * c->k;
    char *to = stage + c->to;
    int col = c->col;
    for (int r = 0; r < c->n_row; r += 2 * SERIES, col += unit, to += 2 * SERIES * ROW_BYTES) {
        int lo = col < c->n ? col : c->n - 1, hi = lo;
        const uint16_t *from = c->w + (size_t)lo * c->k + k0;
        cu_cp_async16_or_zero(to, in ? from : c->w, in);
        if (!c->apart) hi = col + 8 < c->n ? col + 8 : c->n - 1;
        from = c->apart ? from + up : c->w + (size_t)hi * c->k + k0;
        cu_cp_async16_or_zero(to + SERIES * ROW_BYTES, in ? from : c->w, in);
    }
}

/* Rows of x likewise; the last one stands for those behind it. */
CU_INLINE void fetch_x(char *stage, const gemm_args *a, int rows, int k0, int t, int series)
{
    int row = t / PIECES, piece = t % PIECES;
    bool in = k0 + piece * 8 < a->k;
    const uint16_t *x = (const uint16_t *)a->x + piece * 8;
    CU_UNROLL_BY(4)
    for (int r = row; r < rows; r += series) {
        const uint16_t *from = x + (size_t)(r < a->rows ? r : a->rows - 1) * (size_t)a->k + k0;
        cu_cp_async16_or_zero(stage + piece_at(r, piece), in ? from : x, in);
    }
}

/* Fragments of 16 k: of 16 columns, and of 8 NT rows. */
template <int NT>
struct stream_step {
    uint32_t w[4], x[NT / 2][4];

    CU_INLINE_METHOD void load(const char *w_at, const char *x_at, int i, int lane)
    {
        cu_ldmatrix_x4(w, w_at + ((2 * i + lane / 16) ^ (lane & 7)) * 16);
        CU_UNROLL
        for (int p = 0; p < NT / 2; p++)
            cu_ldmatrix_x4(x[p],
                           x_at + p * 16 * ROW_BYTES + ((2 * i + lane / 8 % 2) ^ (lane & 7)) * 16);
    }
};

/* acc += a stage's products of 16 columns, whose rows begin at w, and 8 NT rows, which do at x. 
 * The next step's fragments are on their way while one is multiplied: a chain has nothing else to
 * do. */
template <int NT, bool BF16>
CU_INLINE void add_stream(float (*acc)[4], const char *w, const char *x, int lane)
{
    const char *w_at = w + lane % 16 * ROW_BYTES;
    const char *x_at = x + (lane % 8 + lane / 16 * 8) * ROW_BYTES;
    stream_step<NT> both[2];
    both[0].load(w_at, x_at, 0, lane);
    CU_UNROLL
    for (int i = 0; i < STREAM_K / 16; i++) {
        if (i + 1 < STREAM_K / 16) both[(i + 1) % 2].load(w_at, x_at, i + 1, lane);
        CU_UNROLL
        for (int nt = 0; nt < NT; nt++) {
            if (BF16)
                cu_mma_bf16_k16(acc[nt], both[i % 2].w, both[i % 2].x[nt / 2] + nt % 2 * 2);
            else
                cu_mma_f16_k16(acc[nt], both[i % 2].w, both[i % 2].x[nt / 2] + nt % 2 * 2);
        }
    }
}

/* Of the whole block, those that copy and those that multiply: once for each stage. */
CU_INLINE void meet()
{
    __syncthreads();
}

/* What a warp that copies does: fetch(stage, k0) sends for its part of a stage.  `early`: the first
 * ones before the launches before have ended. */
template <int STAGES_, class F>
CU_INLINE void copy_stream(char *ring, int bytes, int k, bool early, F fetch)
{
    if (!early) cu_grid_wait();
    for (int s = 0; s < STAGES_ - 1; s++) {
        if (s * STREAM_K < k) fetch(ring + s * bytes, s * STREAM_K);
        cu_cp_async_commit();
    }
    if (early) cu_grid_wait();
    int to = (STAGES_ - 1) * bytes;
    for (int k0 = 0; k0 < k; k0 += STREAM_K) {
        CU_CP_ASYNC_WAIT(STAGES_ - 2); /* this thread's part of the stage has come */
        meet();                        /* all parts have, and the stage before was read by all */
        int ahead = k0 + (STAGES_ - 1) * STREAM_K;
        if (ahead < k) fetch(ring + to, ahead);
        cu_cp_async_commit();
        to = to + bytes == STAGES_ * bytes ? 0 : to + bytes;
    }
}

#endif
