/* gemm_lora_inside.h -- the parts of gemm_lora.cu's kernel: tables, the shrink, B, what is written.
 * For that file only. */
#ifndef ENGINE_CUDA_GEMM_LORA_INSIDE_H
#define ENGINE_CUDA_GEMM_LORA_INSIDE_H

#include "engine/cuda/products/stream.h"
#include "engine/cuda/sgmv.h"
#include "engine/cuda/sgmv_inside.h"

enum {
    LORA_WARPS = 4,        /* of a block, that shrink */
    ROWS_MAX = 32,         /* of a warp: more take registers that all warps have to go without */
    SLOTS = STREAM_K / 16, /* pieces of B in a stage */
    FRAGMENT = 512,        /* bytes of one, of 16 ranks and columns */
    BLOCKS = 6,            /* of 64 columns that a block meets, at most */
    LORA_THREADS = (STREAM_WARPS + LORA_WARPS) * CU_WARP,
    STREAMING = 1, /* the barrier of the warps that stream */
};

/* A chunk of the step, in shared memory. */
typedef struct {
    int row0, n_rows;
    int first, n; /* of its pieces of 16 ranks, in the order of chunks */
} lora_chunk;

/* Words of `drawn`, behind that of pieces which are drawn: blocks that have ended, pieces that are
 * there. */
enum { ENDED = 1, DONE = 32 };

/* What one adapter does to one output. */
typedef struct {
    const float *gain, *bias;
    float scale;
    int rank8;
} lora_mat_here;

/* How the kernel lies in shared memory, the same for all blocks: the ring, then the rest. */
typedef struct {
    stream_cut c;
    int rows;      /* of x, and of v; chunks are no more */
    int row_words; /* of a row of v, in pairs */
    int n_plane, plane_k;
    int ring, bytes; /* of shared memory: of the ring, in all */
} lora_cut;

typedef struct {
    lora_chunk *chunk;  /* [rows + 1]: the last one's `first` is the number of pieces */
    lora_mat_here *mat; /* [rows][SGMV_OUT_MAX] */
    const uint16_t **b; /* [rows][BLOCKS]: 64 columns of B */
    int *chunk_of;      /* [rows]: -1: of the bare base */
    int *pairs;         /* of a row of v that are used */
    uint32_t *v;        /* [out][high, low][rows][row_words] */
} lora_tables;

static inline int lora_table_bytes(const lora_cut *l, int n_out)
{
    return (l->rows + 1) * (int)sizeof(lora_chunk) +
           l->rows * SGMV_OUT_MAX * (int)sizeof(lora_mat_here) +
           l->rows * BLOCKS * (int)sizeof(void *) + (l->rows + 4) * (int)sizeof(int) +
           n_out * 2 * l->rows * l->row_words * (int)sizeof(uint32_t);
}

static inline lora_cut lora_cut_of(const gemm_args *a, const sgmv_args *p)
{
    lora_cut l;
    l.rows = stream_rows(a);
    l.row_words = (p->rank_max + 15) / 16 * 8 + 4;
    l.n_plane = sgmv_planes(p->d_in, p->type);
    l.plane_k = sgmv_plane_k(p->d_in, p->type);
    int tables = lora_table_bytes(&l, p->n_out);
    int group = a->gated ? 2 : 1; /* pairs of a gate's units share fragments */
    l.c = stream_cut_of(a, group, tables);
    l.ring = l.c.stages * l.c.stage;
    l.bytes = l.ring + tables;
    return l;
}

/* Anew, for each who asks: kept from before, so many addresses would take registers that the sums
 * need. */
CU_INLINE lora_tables tables_of(char *ring, const lora_cut *l)
{
    char *p = ring + cu_anew(l->ring);
    lora_tables t;
    t.chunk = (lora_chunk *)p;
    t.mat = (lora_mat_here *)(t.chunk + l->rows + 1);
    t.b = (const uint16_t **)(t.mat + l->rows * SGMV_OUT_MAX);
    t.chunk_of = (int *)(t.b + l->rows * BLOCKS);
    t.pairs = t.chunk_of + l->rows;
    t.v = (uint32_t *)(t.pairs + 4);
    return t;
}

/* ---- units -------------------------------------------------------------------------------------
 */

/* Where unit u of the product lies: fragment `frag` of the block-th 64 columns, of a gate and of up
 * their half `half`.  Row r of its 16 is column `col` + 4 (r % 8), from r = 8 on `apart` more. */
typedef struct {
    int block, frag, half;
    int col, apart;
} unit_place;

template <bool GATED>
CU_INLINE unit_place unit_at(const gemm_args *a, int u)
{
    unit_place at;
    at.half = GATED ? u % 2 : 0;
    int pair = GATED ? u / 2 : u;
    at.block = pair / 4;
    at.frag = pair % 4;
    at.col = at.block * SGMV_COLS + at.half * 32 + at.frag;
    at.apart = GATED ? a->n / 2 : 32;
    return at;
}

/* The output of a block of 64 columns, and its first block. */
CU_INLINE int out_of(const sgmv_args *p, int block, int *first)
{
    int o = 0;
    for (*first = 0; o + 1 < p->n_out && block >= *first + p->out[o].d_out / SGMV_COLS; o++)
        *first += p->out[o].d_out / SGMV_COLS;
    return o;
}

/* The outputs of rows 0 to 7 and 8 to 15 of a unit, and its first column in them. */
typedef struct {
    int o[2], col;
} unit_outs;

template <bool GATED>
CU_INLINE unit_outs outs_of(const sgmv_args *p, const unit_place *at)
{
    unit_outs u;
    int first = 0;
    u.o[0] = GATED ? 0 : out_of(p, at->block, &first);
    u.o[1] = GATED ? 1 : u.o[0];
    u.col = at->col - first * SGMV_COLS;
    return u;
}

/* The first block that the units from unit0 on meet. */
template <bool GATED>
CU_INLINE int first_block(int unit0)
{
    return GATED ? unit0 / 8 : unit0 / 4;
}

/* ---- tables ------------------------------------------------------------------------------------
 * Made of the step's lists and the adapters' tables, which no kernel writes: before the launch
 * waits for those before it. */

/* A warp: chunks, their pieces, whose rows they are. */
CU_INLINE void lay_chunks(const lora_tables *t, const sgmv_args *p, int rows, int n, int lane)
{
    for (int r = lane; r < rows; r += CU_WARP) t->chunk_of[r] = -1;
    cu_syncwarp();
    int before = 0, widest = 0;
    for (int i0 = 0; i0 < n; i0 += CU_WARP) {
        int i = i0 + lane;
        lora_chunk c = {0, 0, 0, 0};
        if (i < n) {
            const sgmv_chunk from = p->chunk[i];
            c.row0 = from.row0;
            c.n_rows = from.n_rows;
            c.n = !from.mats ? 0 : from.v_rank > 16 ? (from.v_rank + 15) / 16 : 1;
        }
        int sum = c.n, wide = c.n;
        for (int lanes = 1; lanes < CU_WARP; lanes *= 2) {
            int up = (int)cu_shfl_up_u32((uint32_t)sum, lanes);
            int other = (int)cu_shfl_xor_u32((uint32_t)wide, lanes);
            if (lane >= lanes) sum += up;
            if (other > wide) wide = other;
        }
        c.first = before + sum - c.n;
        if (i < n) {
            t->chunk[i] = c;
            for (int r = 0; c.n > 0 && r < c.n_rows; r++) t->chunk_of[c.row0 + r] = i;
        }
        before += (int)cu_shfl_u32((uint32_t)sum, CU_WARP - 1);
        if (wide > widest) widest = wide;
    }
    if (lane == 0) {
        t->chunk[n].first = before;
        *t->pairs = widest * 8;
    }
}

/* All threads of the warps that shrink, t of them: what each adapter has for this block. */
template <bool GATED>
CU_INLINE void lay_mats(const lora_tables *to, const sgmv_args *p, int n, int unit0, int units,
                        int n_unit, int t)
{
    for (int i = t; i < n * p->n_out; i += LORA_WARPS * CU_WARP) {
        int c = i / p->n_out, o = i % p->n_out;
        const sgmv_mat *mats = p->chunk[c].mats;
        if (!mats) continue;
        const sgmv_mat m = mats[p->out[o].mat];
        lora_mat_here here = {m.gain, m.bias, m.scale, (m.rank + 7) / 8 * 8};
        to->mat[c * SGMV_OUT_MAX + o] = here;
    }
    int last = unit0 + units < n_unit ? unit0 + units - 1 : n_unit - 1;
    int block0 = first_block<GATED>(unit0), n_block = first_block<GATED>(last) - block0 + 1;
    int each = GATED ? 2 * n_block : n_block;
    for (int i = t; i < n * each; i += LORA_WARPS * CU_WARP) {
        int c = i / each, at = i % each, first = 0;
        int block = block0 + (GATED ? at / 2 : at), o = GATED ? at % 2 : out_of(p, block, &first);
        const sgmv_mat *mats = p->chunk[c].mats;
        if (!mats) continue;
        const sgmv_mat m = mats[p->out[o].mat];
        if (m.rank > 0)
            to->b[c * BLOCKS + at] =
                (const uint16_t *)sgmv_b_block(&m, (block - first) * SGMV_COLS, 2);
    }
}

/* ---- shrink ------------------------------------------------------------------------------------
 */

/* A warp: 16 ranks of one chunk and output over a plane, chain after chain. */
template <bool BF16>
CU_INLINE void shrink_piece(const sgmv_args *p, int chunk, int rank0, int o, int plane, int plane_k,
                            int lane)
{
    const sgmv_chunk *c = p->chunk + chunk;
    int g = lane / 4, q = lane % 4, n_rows = c->n_rows;
    const uint16_t *lo, *hi;
    int rank;
    {
        const sgmv_mat m = c->mats[p->out[o].mat];
        int d8 = (p->d_in + 7) / 8 * 8;
        rank = m.rank - rank0;
        if (rank <= 0) return;
        lo = g < rank ? sgmv_a_row16(&m, rank0 + g, d8) : nullptr;
        hi = g + 8 < rank ? sgmv_a_row16(&m, rank0 + g + 8, d8) : nullptr;
    }
    /* The lane's own row, so that none is looked for by its number. */
    const uint16_t *x = (const uint16_t *)p->x + (size_t)(c->row0 + g) * (size_t)p->x_stride;
    if (g >= n_rows) n_rows = 0;
    float sum[4];
    CU_UNROLL_BY(1)
    for (int chain = 0; chain < SGMV_CHAINS; chain++) {
        float acc[1][4] = {{0, 0, 0, 0}};
        int k0 = plane * plane_k + chain * SGMV_SLICE, d8 = (p->d_in + 7) / 8 * 8;
        int end = (plane + 1) * plane_k < d8 ? (plane + 1) * plane_k : d8;
        CU_UNROLL_BY(1)
        for (; k0 < end; k0 += SGMV_CHAINS * SGMV_SLICE)
            sgmv_add_slice<1, BF16, true>(acc, lo, hi, x, 0, n_rows, k0, end, g, q);
        CU_UNROLL
        for (int i = 0; i < 4; i++) sum[i] = chain == 0 ? acc[0][i] : cu_add(sum[i], acc[0][i]);
    }
    const sgmv_chunk at = p->chunk[cu_anew(chunk)];
    float *v = p->v + (size_t)plane * p->v_plane + rank0;
    CU_UNROLL
    for (int i = 0; i < 4; i++) {
        int row = 2 * q + i % 2, r = g + i / 2 * 8;
        if (row < at.n_rows && r < (rank + 7) / 8 * 8)
            v[sgmv_v_at(&at, row, o) + (size_t)r] = sum[i];
    }
}

/* The chunk of a piece: the last one that does not begin behind it. */
CU_INLINE int chunk_of_piece(const lora_chunk *chunk, int n, int piece, int lane)
{
    int found = -1;
    for (int i0 = 0; i0 < n; i0 += CU_WARP) {
        uint32_t not_behind = cu_ballot(i0 + lane < n && chunk[i0 + lane].first <= piece);
        if (not_behind) found = i0 + CU_WARP - 1 - cu_leading_zeros(not_behind);
    }
    return found;
}

/* A warp draws pieces until there are none, then waits for those of others. */
template <bool BF16>
CU_INLINE void shrink_all(const lora_chunk *chunk, const sgmv_args *p, uint32_t *drawn,
                          const lora_cut *l, int n, int lane)
{
    const int n_item = chunk[n].first * p->n_out * l->n_plane;
    uint32_t *done = drawn + DONE;
    for (;;) {
        int item = lane == 0 ? (int)cu_atomic_add_u32(drawn, 1) : 0;
        item = (int)cu_shfl_u32((uint32_t)item, 0);
        if (item >= n_item) break;
        int plane = item % l->n_plane, o = item / l->n_plane % p->n_out;
        int piece = item / l->n_plane / p->n_out;
        int i = chunk_of_piece(chunk, p->counts->n_all, piece, lane);
        shrink_piece<BF16>(p, i, (piece - chunk[i].first) * 16, o, plane, l->plane_k, lane);
        /* All lanes' parts of v are seen before the count: the barrier orders them before lane 0's
         * fence, and fences are cumulative (PTX, "memory consistency model"). */
        cu_syncwarp();
        if (lane == 0) {
            cu_threadfence();
            (void)cu_atomic_add_u32(done, 1);
        }
    }
    /* It ends: pieces are drawn by warps that run, and no warp waits before its pieces are done.
     * The counters are zeros at each launch: a launch runs whole and clears them, or the context is
     * lost with it, and cuda_open() clears them for the next one.  So the wait has no bound: one
     * made nvcc spill registers, and engine.cuda_patience ends a step that hangs. */
    if (lane == 0) {
        while ((int)cu_load_acquire(done) < n_item) cu_pause();
        cu_threadfence();
    }
    cu_syncwarp();
}

/* The warps that shrink: v of the outputs from o0 to o1, its planes added, into shared memory;
 * zeros where a row has none. */
template <bool BF16>
CU_INLINE void lay_v(const lora_tables *to, const sgmv_args *p, const lora_cut *l, int o0, int o1,
                     int t)
{
    int pairs = *to->pairs, rows = l->rows, each = rows * pairs;
    for (int i = t; i < (o1 - o0 + 1) * each; i += LORA_WARPS * CU_WARP) {
        int o = o0 + i / each, row = i % each / pairs, pair = i % pairs, chunk = to->chunk_of[row];
        const float *v = nullptr;
        if (chunk >= 0 && 2 * pair < to->mat[chunk * SGMV_OUT_MAX + o].rank8) {
            const sgmv_chunk c = p->chunk[chunk];
            v = p->v + sgmv_v_at(&c, row - c.row0, o) + 2 * pair;
        }
        uint32_t *high = to->v + (size_t)(o * 2 * rows + row) * (size_t)l->row_words + pair;
        sgmv_halves<BF16>(high, high + rows * l->row_words, v, p->v_plane, l->n_plane);
    }
}

/* ---- copies ------------------------------------------------------------------------------------
 */

/* A thread of those that copy weights: row t / PIECES of every eight of a unit's, as find_w(). */
template <bool GATED>
CU_INLINE void fetch_units(char *stage, const gemm_args *a, int unit0, int units, int n_unit,
                           int k0, int t)
{
    int row = t / PIECES, piece = t % PIECES;
    bool in = k0 + piece * 8 < a->k;
    const uint16_t *w = (const uint16_t *)a->w + (in ? k0 + piece * 8 : 0);
    char *to = stage + piece_at(row, piece);
    CU_UNROLL_BY(2)
    for (int u = 0; u < units; u++, to += UNIT * ROW_BYTES) {
        unit_place at = unit_at<GATED>(a, unit0 + u < n_unit ? unit0 + u : n_unit - 1);
        const uint16_t *from = w + (size_t)(at.col + 4 * row) * (size_t)a->k;
        cu_cp_async16_or_zero(to, in ? from : w, in);
        from += (size_t)at.apart * (size_t)a->k;
        cu_cp_async16_or_zero(to + SERIES * ROW_BYTES, in ? from : w, in);
    }
}

/* The same thread: its 32 bytes of each fragment of B of the stage's pieces from `piece0` on. */
template <bool GATED>
CU_INLINE void fetch_b(char *stage, const lora_tables *tb, const gemm_args *a, const sgmv_args *p,
                       int unit0, int units, int n_unit, int piece0, int n, int *chunk, int t)
{
    int slot = t / (CU_WARP / 2), l = t % (CU_WARP / 2), piece = piece0 + slot;
    if (piece >= tb->chunk[n].first) return;
    while (piece >= tb->chunk[*chunk].first + tb->chunk[*chunk].n) (*chunk)++;
    int rank0 = (piece - tb->chunk[*chunk].first) * 16, block0 = first_block<GATED>(unit0);
    char *to = stage + slot * units * FRAGMENT;
    for (int u = 0; u < units && unit0 + u < n_unit; u++, to += FRAGMENT) {
        const unit_place at = unit_at<GATED>(a, unit0 + u);
        const unit_outs outs = outs_of<GATED>(p, &at);
        int part = GATED ? (unit0 + u) % 2 : 0; /* a pair of units: the gate's, then up's */
        int o = part ? outs.o[1] : outs.o[0];
        int left = tb->mat[*chunk * SGMV_OUT_MAX + o].rank8 - rank0;
        if (left <= 0) continue;
        int b = GATED ? 2 * (at.block - block0) + part : at.block - block0;
        const uint16_t *from = tb->b[*chunk * BLOCKS + b] + (size_t)rank0 * SGMV_COLS;
        CU_UNROLL
        for (int half = 0; half < 2; half++) {
            int lane = l + half * (CU_WARP / 2);
            if (left >= 16)
                cu_cp_async16(to + lane * 16, from + (at.frag * CU_WARP + lane) * 8);
            else
                cu_cp_async8(to + lane * 8, from + (at.frag * CU_WARP + lane) * 4);
        }
    }
}

/* The warps that stream, once for each stage. */
CU_INLINE void meet_streaming(int threads)
{
    cu_barrier_of(STREAMING, threads);
}

/* ---- sums --------------------------------------------------------------------------------------
 */

/* A lane's words of a fragment; of a gate's or of up's those of the unit's half, for rows 0 to 7.
 */
template <bool GATED>
CU_INLINE void fragment_of(uint32_t *b, const char *at, int half, bool whole, int lane)
{
    if (!GATED) {
        if (whole) {
            uint4 f = cu_ld16(at + lane * 16);
            b[0] = f.x, b[1] = f.y, b[2] = f.z, b[3] = f.w;
        } else {
            uint2 f = cu_ld8(at + lane * 8);
            b[0] = f.x, b[1] = f.y;
        }
        return;
    }
    const uint32_t *gate = (const uint32_t *)(at + lane * (whole ? 16 : 8)) + half;
    b[0] = gate[0];
    if (whole) b[2] = gate[2];
}

/* d += B's piece by v of eight rows, its high halves and its low ones. */
template <bool BF16>
CU_INLINE void add_piece(float *d, const uint32_t *b, const uint32_t *high, const uint32_t *low,
                         bool whole)
{
    if (whole) {
        uint32_t vh[2] = {high[0], high[4]}, vl[2] = {low[0], low[4]};
        sgmv_mma16<BF16>(d, b, vh);
        sgmv_mma16<BF16>(d, b, vl);
    } else {
        sgmv_mma8<BF16>(d, b, high[0]);
        sgmv_mma8<BF16>(d, b, low[0]);
    }
}

/* What a warp adds to its sums. */
template <int NT, bool BF16, bool GATED>
struct lora_adder {
    float lora[GATED ? 2 : 1][4]; /* of the chunk: rows of it, the unit's columns */
    int chunk, row0, n_rows, first, n;

    CU_INLINE_METHOD void begin(const lora_tables *t, int c)
    {
        chunk = c;
        row0 = t->chunk[c].row0;
        n_rows = t->chunk[c].n_rows;
        first = t->chunk[c].first;
        n = t->chunk[c].n;
        CU_UNROLL
        for (int i = 0; i < (GATED ? 8 : 4); i++) lora[i / 4][i % 4] = 0;
    }

    /* acc of the chunk's rows, of which the warp has those from warp_row on: gain (acc + scale B
     * v). */
    CU_INLINE_METHOD void end(float (*acc)[4], const lora_tables *t, const unit_outs *u,
                              int warp_row, int lane)
    {
        const lora_mat_here *m = t->mat + chunk * SGMV_OUT_MAX;
        int q = lane % 4;
        float *lo = lora[0], *hi = lora[GATED ? 1 : 0] + 2, v[4];
        if (n_rows == 1) { /* one row: all lanes of its columns have it from the first */
            v[0] = v[1] = cu_shfl_f32(lo[0], lane & ~3);
            v[2] = v[3] = cu_shfl_f32(hi[0], lane & ~3);
        }
        CU_UNROLL
        for (int nt = 0; nt < NT; nt++) {
            int tile = warp_row + nt * 8 - row0; /* its first row, of the chunk's */
            if (tile + 8 <= 0 || tile >= n_rows) continue;
            CU_UNROLL
            for (int i = 0; i < 2; i++) {
                int row = tile + 2 * q + i, from = (lane & ~3) + (row >> 1 & 3);
                if (n_rows > 1) {
                    float even = cu_shfl_f32(lo[0], from), odd = cu_shfl_f32(lo[1], from);
                    v[i] = row & 1 ? odd : even;
                    even = cu_shfl_f32(hi[0], from), odd = cu_shfl_f32(hi[1], from);
                    v[2 + i] = row & 1 ? odd : even;
                }
                if (row < 0 || row >= n_rows) continue;
                CU_UNROLL
                for (int half = 0; half < 2; half++) {
                    const lora_mat_here *h = m + u->o[half];
                    float *y = &acc[nt][2 * half + i];
                    int col = u->col + lane / 4 * 4 + (GATED ? 0 : 32 * half);
                    if (h->rank8 > 0) *y = cu_fma(h->scale, v[2 * half + i], *y);
                    if (h->gain) *y = cu_mul(*y, h->gain[col]);
                }
            }
        }
    }

    /* Piece `slot` of a stage at `stage`, of unit `unit` of the block's. */
    CU_INLINE_METHOD void add(const char *stage, const lora_tables *t, const lora_cut *l,
                              const unit_place *at, const unit_outs *u, int slot, int unit,
                              int rank0, int lane)
    {
        int g = lane / 4, q = lane % 4, rows = l->rows, row = row0 + g;
        if (row >= rows) row = rows - 1; /* of nobody's: what it gives is not used */
        CU_UNROLL
        for (int part = 0; part < (GATED ? 2 : 1); part++) {
            int o = u->o[part], left = t->mat[chunk * SGMV_OUT_MAX + o].rank8 - rank0;
            if (left <= 0) continue;
            bool whole = left >= 16;
            uint32_t b[4] = {0, 0, 0, 0};
            int from = GATED ? (unit & ~1) + part : unit;
            fragment_of<GATED>(b, stage + (slot * l->c.units + from) * FRAGMENT, at->half, whole,
                               lane);
            if (GATED && part == 1) { /* rows 8 to 15 */
                b[1] = b[0], b[3] = b[2];
                b[0] = b[2] = 0;
            }
            const uint32_t *high = t->v + (size_t)(o * 2 * rows + row) * (size_t)l->row_words;
            high += rank0 / 2 + q;
            const uint32_t *low = high + (size_t)rows * (size_t)l->row_words;
            add_piece<BF16>(lora[part], b, high, low, whole);
        }
    }
};

/* The row's adapter's, or else the base's. */
CU_INLINE const float *bias_of(const sgmv_args *p, const lora_tables *t, int row, int o)
{
    int chunk = t->chunk_of[row];
    const float *own = chunk >= 0 ? t->mat[chunk * SGMV_OUT_MAX + o].bias : nullptr;
    return own ? own : p->out[o].bias;
}

/* With bias and residual, to where each output goes. */
template <int NT>
CU_INLINE void put_out(const sgmv_args *p, const gemm_args *a, const lora_tables *t,
                       float (*sum)[4], int row0, const unit_outs *u, int g, int q)
{
    const sgmv_out *out = &p->out[u->o[0]];
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            int row = row0 + nt * 8 + 2 * q + i % 2, col = u->col + 4 * g + i / 2 * 32;
            if (row >= a->rows) continue;
            const float *bias = bias_of(p, t, row, u->o[0]);
            float y = sum[nt][i];
            if (bias) y = cu_add(y, bias[col]);
            if (out->res) y = cu_add(y, out->res[(size_t)row * (size_t)out->res_stride + col]);
            out->out[(size_t)row * (size_t)out->out_stride + col] = y;
        }
    }
}

template <int NT>
CU_INLINE void put_gate(const sgmv_args *p, const gemm_args *a, const lora_tables *t,
                        float (*sum)[4], int row0, const unit_outs *u, int g, int q)
{
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 2; i++) {
            int row = row0 + nt * 8 + 2 * q + i, col = u->col + 4 * g;
            if (row >= a->rows) continue;
            float y[2] = {sum[nt][i], sum[nt][2 + i]};
            CU_UNROLL
            for (int o = 0; o < 2; o++) {
                const float *bias = bias_of(p, t, row, o);
                if (bias) y[o] = cu_add(y[o], bias[col]);
            }
            put_gated(a, row, col, y[0], y[1]);
        }
    }
}

/* ---- warps -------------------------------------------------------------------------------------
 */

/* The whole block, twice: when the tables are there, and when v is. */
CU_INLINE void meet_for_tables()
{
    __syncthreads();
}

CU_INLINE void meet_for_v()
{
    __syncthreads();
}

/* Stages of B that follow those of weights. */
CU_INLINE int stages_of_b(const lora_tables *t, int n)
{
    return (t->chunk[n].first + SLOTS - 1) / SLOTS;
}

/* A warp that copies: fetch(stage, s) sends for its part of stage s; the first n_early before the
 * launches before have ended. */
template <int STAGES_, class F>
CU_INLINE void copy_stages(char *ring, int bytes, int n_k, int n_early, int threads,
                           const lora_tables *t, int n, F fetch)
{
    int s = 0;
    for (; s < STAGES_ - 1 && s < n_early; s++) {
        fetch(ring + s * bytes, s);
        cu_cp_async_commit();
    }
    meet_for_tables();
    cu_grid_wait();
    const int n_b = stages_of_b(t, n);
    for (; s < STAGES_ - 1; s++) {
        if (s < n_k + n_b) fetch(ring + s * bytes, s);
        cu_cp_async_commit();
    }
    int to = (STAGES_ - 1) * bytes;
    for (s = 0; s < n_k + n_b; s++) {
        if (s == n_k) meet_for_v();
        CU_CP_ASYNC_WAIT(STAGES_ - 2);
        meet_streaming(threads); /* as meet() in copy_stream() */
        int ahead = s + STAGES_ - 1;
        if (ahead < n_k + n_b) fetch(ring + to, ahead);
        cu_cp_async_commit();
        to = to + bytes == STAGES_ * bytes ? 0 : to + bytes;
    }
    if (n_b == 0) meet_for_v();
    CU_CP_ASYNC_WAIT(0);
}

/* The warps that shrink. */
template <bool BF16, bool GATED>
CU_INLINE void shrink_beside(const gemm_args *a, const sgmv_args *p, uint32_t *drawn,
                             const lora_cut *l, char *ring, int n, int unit0, int th0)
{
    int th = (int)threadIdx.x - th0, lane = th % CU_WARP, n_unit = a->n / UNIT;
    lora_tables t = tables_of(ring, l);
    if (th < CU_WARP) lay_chunks(&t, p, l->rows, n, lane);
    lay_mats<GATED>(&t, p, n, unit0, l->c.units, n_unit, th);
    meet_for_tables();
    cu_grid_wait(); /* for x, and for v that is read */
    shrink_all<BF16>(t.chunk, p, drawn, l, n, lane);
    t = tables_of(ring, l);
    unit0 = cu_anew((int)blockIdx.x) * l->c.units;
    th = cu_anew((int)threadIdx.x) - th0;
    int last = unit0 + l->c.units < n_unit ? unit0 + l->c.units - 1 : n_unit - 1;
    int unused = 0, o0 = GATED ? 0 : out_of(p, unit0 / 4, &unused);
    int o1 = GATED ? 1 : out_of(p, last / 4, &unused);
    lay_v<BF16>(&t, p, l, o0, o1, th);
    meet_for_v(); /* nobody of the block looks at the counters any more */
    if (th > 0 || cu_atomic_add_u32(drawn + ENDED, 1) + 1 < gridDim.x) return;
    drawn[0] = drawn[ENDED] = drawn[DONE] = 0; /* for the next launch */
}

/* A warp that multiplies, when v is there and its sums are `acc`: adds what the stages of B from
 * offset `at` of `ring` on give, and writes what it has.  meet(): meet_streaming(). */
template <int NT, int STAGES_, bool BF16, bool GATED, class F>
CU_INLINE void end_unit(float (*acc)[4], const gemm_args *a, const sgmv_args *p, const lora_cut *l,
                        char *shared, const char *ring, int at, int bytes, int n, int lane, F meet)
{
    const lora_tables t = tables_of(shared, l);
    const int n_b = stages_of_b(&t, n), n_piece = t.chunk[n].first;
    const int warp = (int)threadIdx.x / CU_WARP;
    const int unit = warp / l->c.halves, row0 = warp % l->c.halves * 8 * NT, n_unit = a->n / UNIT;
    const int unit0 = (int)blockIdx.x * l->c.units;
    const bool has = unit0 + unit < n_unit;
    const unit_place place = unit_at<GATED>(a, has ? unit0 + unit : n_unit - 1);
    const unit_outs outs = outs_of<GATED>(p, &place);
    lora_adder<NT, BF16, GATED> adder;
    adder.first = adder.n = 0;
    int chunk = 0;
    for (int s = 0; s < n_b; s++) {
        meet();
        for (int slot = 0; has && slot < SLOTS && s * SLOTS + slot < n_piece; slot++) {
            int piece = s * SLOTS + slot;
            if (piece >= adder.first + adder.n) {
                while (piece >= t.chunk[chunk].first + t.chunk[chunk].n) chunk++;
                adder.begin(&t, chunk);
            }
            if (adder.row0 >= row0 + 8 * NT || adder.row0 + adder.n_rows <= row0) continue;
            int rank0 = (piece - adder.first) * 16;
            adder.add(ring + at, &t, l, &place, &outs, slot, unit, rank0, lane);
            if (piece + 1 == adder.first + adder.n) adder.end(acc, &t, &outs, row0, lane);
        }
        at = at + bytes == STAGES_ * bytes ? 0 : at + bytes;
    }
    if (!has) return;
    if (GATED)
        put_gate<NT>(p, a, &t, acc, row0, &outs, lane / 4, lane % 4);
    else
        put_out<NT>(p, a, &t, acc, row0, &outs, lane / 4, lane % 4);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* go.run<NT, STAGES_, BF16, GATED>() of the types that `a` has. */
template <int NT, int STAGES_, class G>
static cudaError_t lora_of_type(const gemm_args *a, const G &go)
{
    if (a->gated) return go.template run<NT, STAGES_, true, true>();
    return a->type == DT_BF16 ? go.template run<NT, STAGES_, true, false>()
                              : go.template run<NT, STAGES_, false, false>();
}

/* And of so many tiles of eight rows a warp, and stages. */
template <class G>
static cudaError_t lora_of(int tiles, int stages, const gemm_args *a, const G &go)
{
    if (stages == RING)
        return tiles == 2 ? lora_of_type<2, RING>(a, go) : lora_of_type<4, RING>(a, go);
    return tiles == 2 ? lora_of_type<2, SHORT_RING>(a, go) : lora_of_type<4, SHORT_RING>(a, go);
}

/* Threads of a block. */
static inline unsigned lora_threads(const lora_cut *l)
{
    return (unsigned)((l->c.units * l->c.halves + W_WARPS + l->c.x_warps + LORA_WARPS) * CU_WARP);
}

#endif
