/* sgmv.cu -- the LoRA kernels of sgmv.h for BF16 and F16 (sgmv_f32.cu has F32).
 *
 * Names: g = lane / 4 and q = lane % 4 as in intrin.h.  A lane of the shrink loads 8 consecutive k
 * of row g; as registers {x, y, z, w} they are k-pairs q and q + 4 of two mma: x and y of the
 * first, z and w of the second.
 */
#include "engine/cuda/sgmv.h"

#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/sgmv_inside.h"

enum {
    THREADS = 256,
    WARPS = THREADS / CU_WARP,
    PASS = 64, /* ranks of one block of the shrink */
    TILE_THREADS = 128,
    TILE_K = 64, /* k of one stage */
    STAGES = 3,
    ROW_BLOCKS = WARPS,        /* blocks of columns of one block of the expand */
    ROOM = SGMV_COLS * 16 * 2, /* for 16 ranks of a block of columns of B */
};

/* ---- shrink: chains over warps, planes over blocks
 * ----------------------------------------- v[plane][row][out][r] = A[r] . x[row] over the
 * plane's k, for one chunk, one projection and up to 64 ranks.  Grid (chunk, projection *
 * planes * passes), 8 warps: warp c has chain c.  NT: row blocks of 8. */
template <int NT, bool BF16>
static __global__ void __launch_bounds__(THREADS, 2)
    shrink_kernel(sgmv_args p, int n_plane, int plane_k, int n_pass)
{
    CU_STATIC_SHARED(float, red, WARPS *NT * 8 * 16);
    if ((int)blockIdx.x >= p.counts->n_small) return;
    int work = (int)blockIdx.y;
    int pass = work % n_pass, plane = work / n_pass % n_plane, o = work / n_pass / n_plane;
    const sgmv_chunk c = p.chunk[blockIdx.x];
    const sgmv_mat m = c.mats[p.out[o].mat];
    if (pass * PASS >= m.rank) return;

    int t = (int)threadIdx.x, warp = t / CU_WARP, g = t % CU_WARP / 4, q = t % 4;
    int d8 = (p.d_in + 7) / 8 * 8, end = (plane + 1) * plane_k < d8 ? (plane + 1) * plane_k : d8;
    const uint16_t *x = (const uint16_t *)p.x + (size_t)c.row0 * (size_t)p.x_stride;
    int last = (pass + 1) * PASS < m.rank ? (pass + 1) * PASS : m.rank;

    for (int r0 = pass * PASS; r0 < last; r0 += 16) {
        float acc[NT][4] = {{0}};
        const uint16_t *lo = r0 + g < m.rank ? sgmv_a_row16(&m, r0 + g, d8) : nullptr;
        const uint16_t *hi = r0 + g + 8 < m.rank ? sgmv_a_row16(&m, r0 + g + 8, d8) : nullptr;
        for (int k0 = plane * plane_k + warp * SGMV_SLICE; k0 < end; k0 += SGMV_CHAINS * SGMV_SLICE)
            sgmv_add_slice<NT, BF16, false>(acc, lo, hi, x, (size_t)p.x_stride, c.n_rows, k0, end,
                                            g, q);
        __syncthreads(); /* the last ranks' sums have been taken out of red */
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float *to = red + ((warp * NT + nt) * 8 + 2 * q) * 16 + g;
            to[0] = acc[nt][0];
            to[16] = acc[nt][1];
            to[8] = acc[nt][2];
            to[24] = acc[nt][3];
        }
        __syncthreads(); /* all chains are there */
        for (int i = t; i < NT * 8 * 16; i += THREADS) {
            int row = i / 16, r = r0 + i % 16;
            float sum = red[i];
            for (int w = 1; w < WARPS; w++) sum += red[w * NT * 8 * 16 + i];
            if (row < c.n_rows && r < (m.rank + 7) / 8 * 8)
                p.v[(size_t)plane * p.v_plane + sgmv_v_at(&c, row, o) + (size_t)r] = sum;
        }
    }
}

/* ---- shrink: tiles ----------------------------------------------------------------------------
 * The same values for 64 rows: x comes through shared memory once for up to four 16-rank pieces
 * of all projections.  Grid (tile, planes * passes), 4 warps of 16 rows each, which walk the 8
 * chains one after another.
 *
 * A stage is x [64][64 k], then A [64][64 k]; its pieces of 16 bytes change halves in odd rows, so
 * that the 8 lanes of a phase of a shared load meet all banks. */
typedef struct tile_piece {
    const sgmv_mat *m; /* NULL: none */
    int o, r0;
} tile_piece;

CU_INLINE tile_piece piece_of(const sgmv_args *p, const sgmv_chunk *c, int n)
{
    tile_piece none = {nullptr, 0, 0};
    for (int o = 0; o < p->n_out; o++) {
        const sgmv_mat *m = c->mats + p->out[o].mat;
        int pieces = (m->rank + 15) / 16;
        if (n < pieces) {
            tile_piece found = {m, o, n * 16};
            return found;
        }
        n -= pieces;
    }
    return none;
}

CU_INLINE int swizzled(int row, int piece)
{
    return row * TILE_K + (piece ^ (row & 1) << 2) * 8;
}

enum {
    STAGE_HALF = SGMV_TILE_ROWS * TILE_K,
    STAGE_SIZE = 2 * STAGE_HALF
}; /* values of x; of a stage */

/* What one thread copies of each stage: the 16 bytes with number t % 8 of rows t
 * / 8 + 16 i, of x and of A. */
typedef struct tile_copies {
    const uint16_t *x[4], *a[4];
    uint32_t valid; /* bit i: x[i] is a row; bit 4 + i: a[i] is one; else zeros */
} tile_copies;

CU_INLINE void find_copies(tile_copies *cp, const sgmv_args *p, const sgmv_chunk *c,
                           const tile_piece *piece, int t, int d8)
{
    cp->valid = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = t / 8 + 16 * i, r = piece[i].r0 + t / 8;
        bool has_x = row < c->n_rows, has_a = piece[i].m && r < piece[i].m->rank;
        cp->x[i] =
            (const uint16_t *)p->x + (size_t)(c->row0 + (has_x ? row : 0)) * (size_t)p->x_stride;
        cp->a[i] = has_a ? sgmv_a_row16(piece[i].m, r, d8) : cp->x[i];
        cp->valid |= (uint32_t)has_x << i | (uint32_t)has_a << (4 + i);
    }
}

/* The 64 k from k0 on, zeros from `end` on. */
CU_INLINE void fetch_stage(uint16_t *to, const tile_copies *cp, int t, int k0, int end)
{
    int k = k0 + t % 8 * 8;
    bool in = k < end;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = swizzled(t / 8 + 16 * i, t % 8);
        cu_cp_async16_or_zero(to + at, cp->x[i] + (in ? k : 0), in && cp->valid >> i & 1);
        cu_cp_async16_or_zero(to + STAGE_HALF + at, cp->a[i] + (in ? k : 0),
                              in && cp->valid >> (4 + i) & 1);
    }
}

/* The slices of a plane in the order in which they are summed: 0, 8, 16 ... are
 * chain 0, then comes chain 1. */
typedef struct slice_walk {
    int chain, slice;
} slice_walk;

/* To the next slice; true: that was the last of its chain. */
CU_INLINE bool walk_on(slice_walk *w, int n_slice)
{
    w->slice += SGMV_CHAINS;
    if (w->slice < n_slice) return false;
    w->slice = ++w->chain;
    return true;
}

/* This warp's 16 rows of x (two halves) by the 64 ranks (four pieces), as fragments of mma. */
typedef float tile_sums[2][4][4];

template <bool BF16>
CU_INLINE void add_stage(tile_sums acc, const uint16_t *stage, int warp, int g, int q)
{
    const uint16_t *a = stage + STAGE_HALF;
#pragma unroll
    for (int i = 0; i < TILE_K / 32; i++) {
        uint4 xv[2];
#pragma unroll
        for (int nt = 0; nt < 2; nt++)
            xv[nt] = cu_ld16(stage + swizzled(warp * 16 + nt * 8 + g, 4 * i + q));
#pragma unroll
        for (int mt = 0; mt < 4; mt++) {
            uint4 lo = cu_ld16(a + swizzled(mt * 16 + g, 4 * i + q));
            uint4 hi = cu_ld16(a + swizzled(mt * 16 + 8 + g, 4 * i + q));
#pragma unroll
            for (int nt = 0; nt < 2; nt++) mma32<BF16>(acc[nt][mt], lo, hi, xv[nt]);
        }
    }
}

/* A chain has ended: its sums go over to the plane's. */
CU_INLINE void add_chain(tile_sums sum, tile_sums acc, bool first)
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        float *from = &acc[i / 16][i / 4 % 4][i % 4], *to = &sum[i / 16][i / 4 % 4][i % 4];
        *to = first ? *from : *to + *from;
        *from = 0;
    }
}

CU_INLINE void put_tile(const sgmv_args *p, const sgmv_chunk *c, const tile_piece *piece, int plane,
                        tile_sums sum, int n_chain, int warp, int g, int q)
{
#pragma unroll
    for (int mt = 0; mt < 4; mt++) {
        if (!piece[mt].m) continue;
        int rank8 = (piece[mt].m->rank + 7) / 8 * 8;
#pragma unroll
        for (int nt = 0; nt < 2; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = warp * 16 + nt * 8 + 2 * q + i % 2, r = piece[mt].r0 + g + i / 2 * 8;
                float s = sum[nt][mt][i];
                for (int rest = n_chain; rest < SGMV_CHAINS; rest++) s += 0.0F; /* without k */
                if (row < c->n_rows && r < rank8)
                    p->v[(size_t)plane * p->v_plane + sgmv_v_at(c, row, piece[mt].o) + (size_t)r] =
                        s;
            }
        }
    }
}

/* Stage s is half s % 2 of the s / 2-th slice of the walk.  Stage s + 2 is
 * fetched while s is summed. */
template <bool BF16>
static __global__ void __launch_bounds__(TILE_THREADS)
    shrink_tile_kernel(sgmv_args p, int n_plane, int plane_k)
{
    CU_STATIC_SHARED(uint16_t, stage, STAGES * STAGE_SIZE);
    if ((int)blockIdx.x >= p.counts->n_tile) return;
    int plane = (int)blockIdx.y % n_plane, first = (int)blockIdx.y / n_plane * 4;
    const sgmv_chunk c = p.tile[blockIdx.x];
    tile_piece piece[4];
#pragma unroll
    for (int i = 0; i < 4; i++) piece[i] = piece_of(&p, &c, first + i);
    if (!piece[0].m) return;

    int t = (int)threadIdx.x, warp = t / CU_WARP, g = t % CU_WARP / 4, q = t % 4;
    int d8 = (p.d_in + 7) / 8 * 8, begin = plane * plane_k;
    int end = begin + plane_k < d8 ? begin + plane_k : d8;
    int n_slice = (end - begin + SGMV_SLICE - 1) / SGMV_SLICE, n_stage = 2 * n_slice;
    tile_copies copies;
    find_copies(&copies, &p, &c, piece, t, d8);

    tile_sums acc = {{{0}}}, sum = {{{0}}};
    slice_walk fetched = {0, 0}, summed = {0, 0};
    for (int s = -(STAGES - 1); s < n_stage; s++) {
        int f = s + STAGES - 1;
        if (s >= 0) {
            CU_CP_ASYNC_WAIT(STAGES - 2);
            /* all of stage s is there, and stage s - 1 has been read by everybody */
            __syncthreads();
        }
        if (f < n_stage) {
            int k0 = begin + fetched.slice * SGMV_SLICE + f % 2 * TILE_K;
            fetch_stage(stage + f % STAGES * STAGE_SIZE, &copies, t, k0, end);
            if (f % 2 == 1) (void)walk_on(&fetched, n_slice);
        }
        cu_cp_async_commit(); /* empty ones too: the wait counts them */
        if (s < 0) continue;
        add_stage<BF16>(acc, stage + s % STAGES * STAGE_SIZE, warp, g, q);
        if (s % 2 == 1 && walk_on(&summed, n_slice)) add_chain(sum, acc, summed.chain == 1);
    }
    CU_CP_ASYNC_WAIT(0);
    put_tile(&p, &c, piece, plane, sum, summed.chain, warp, g, q);
}

/* ---- expand -----------------------------------------------------------------------------------
 * out = gain (in + scale B v) + bias + res for one chunk and 8 blocks of 64 columns, a warp each.
 * An item: a chunk and 8 blocks of columns of a projection.  B goes from memory into fragments; v,
 * its planes added, lies in shared memory as high and low halves [row][rank].  Where that gives
 * more blocks than the device holds, a block takes several groups of columns in turn, and the next
 * one's B is on its way while one is summed: what leads to it is read once. */
CU_INLINE void b_fragments(uint4 *b, const uint16_t *block, int k, int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        b[i] = cu_ldg16_once(block + (size_t)k * SGMV_COLS + (i * 32 + lane) * 8);
}

/* v of the chunk's rows, its planes added, as pairs: high halves [NT *
 * 8][row_words], then low ones. */
template <int NT, bool BF16>
CU_INLINE void load_shrunk(uint32_t *vs, const sgmv_args *p, const sgmv_chunk *c, int o,
                           int n_plane, int rank8, int row_words, int t)
{
    int pairs = rank8 / 2;
    for (int i = t; i < NT * 8 * pairs; i += THREADS) {
        int row = i / pairs, r = i % pairs * 2;
        const float *v = row < c->n_rows ? p->v + sgmv_v_at(c, row, o) + r : nullptr;
        uint32_t *high = vs + row * row_words + r / 2;
        sgmv_halves<BF16>(high, high + NT * 8 * row_words, v, p->v_plane, n_plane);
    }
}

/* acc += B's 16 ranks from k on, by v's high and low halves. */
template <int NT, bool BF16>
CU_INLINE void add_16_ranks(float (*acc)[4][4], const uint4 *b, const uint32_t *vs, int row_words,
                            int k, int g, int q)
{
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        const uint32_t *high = vs + (nt * 8 + g) * row_words + k / 2 + q;
        const uint32_t *low = high + NT * 8 * row_words;
        uint32_t vh[2] = {high[0], high[4]}, vl[2] = {low[0], low[4]};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a[4] = {b[i].x, b[i].y, b[i].z, b[i].w};
            sgmv_mma16<BF16>(acc[nt][i], a, vh);
            sgmv_mma16<BF16>(acc[nt][i], a, vl);
        }
    }
}

/* The same for the last 8, where the rank is no multiple of 16. */
template <int NT, bool BF16>
CU_INLINE void add_8_ranks(float (*acc)[4][4], const uint16_t *block, const uint32_t *vs,
                           int row_words, int k, int lane)
{
    int g = lane / 4, q = lane % 4;
    uint2 b[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        b[i] = cu_ldg8_once(block + (size_t)k * SGMV_COLS + (i * 32 + lane) * 4);
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        const uint32_t *high = vs + (nt * 8 + g) * row_words + k / 2 + q;
        uint32_t vh = high[0], vl = high[NT * 8 * row_words];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a[2] = {b[i].x, b[i].y};
            sgmv_mma8<BF16>(acc[nt][i], a, vh);
            sgmv_mma8<BF16>(acc[nt][i], a, vl);
        }
    }
}

/* A block's items, which are groups of columns of chunks, groups innermost: as many as others have,
 * however many there are. */
typedef struct {
    int first, end;
} items;

CU_INLINE items items_of(int n)
{
    int each = (n + (int)gridDim.x - 1) / (int)gridDim.x, first = (int)blockIdx.x * each;
    items mine = {first, first + each < n ? first + each : n};
    return mine;
}

/* What a warp does of a group of columns: 64 of them from col0 on. */
typedef struct {
    sgmv_out out;
    sgmv_mat m;
    int o, col0, rank8;
    bool needed, has;      /* for the whole block; for this warp */
    const uint16_t *block; /* of B; NULL: none */
} expand_part;

CU_INLINE expand_part part_of(const sgmv_args *p, const sgmv_chunk *c, int group, int warp)
{
    expand_part e;
    e.o = 0;
    for (; group >= sgmv_groups(p->out[e.o].d_out, ROW_BLOCKS); e.o++)
        group -= sgmv_groups(p->out[e.o].d_out, ROW_BLOCKS);
    e.out = p->out[e.o];
    e.needed = sgmv_needed(&e.m, c, &e.out);
    e.col0 = (group * ROW_BLOCKS + warp) * SGMV_COLS;
    e.rank8 = (e.m.rank + 7) / 8 * 8;
    e.has = e.needed && e.col0 < e.out.d_out;
    e.block = e.has && e.m.rank ? (const uint16_t *)sgmv_b_block(&e.m, e.col0, 2) : nullptr;
    return e;
}

/* B's first 16 ranks on their way into a room: each lane copies what it reads. */
CU_INLINE void fetch_ranks(char *room, const uint16_t *block, int rank8, int lane)
{
    if (!block || rank8 < 16) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
        cu_cp_async16(room + (i * 32 + lane) * 16, block + (i * 32 + lane) * 8);
}

CU_INLINE void ranks_of(uint4 *b, const char *room, int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = cu_ld16(room + (i * 32 + lane) * 16);
}

template <int NT, bool BF16>
static __global__ void __launch_bounds__(THREADS, 2)
    expand_kernel(sgmv_args p, int n_plane, int rank16, int n_group)
{
    CU_SHARED(uint32_t, vs);
    cu_grid_go();
    const items mine = items_of((p.all_rows ? p.counts->n_all : p.counts->n_lora) * n_group);
    if (mine.first >= mine.end) return cu_grid_wait();
    int t = (int)threadIdx.x, warp = t / CU_WARP, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int row_words = rank16 / 2 + 4, room = 0, loaded = -1, item = mine.first;
    char *rooms = (char *)(vs + 2 * NT * 8 * row_words) + warp * 2 * ROOM;
    sgmv_chunk c = p.chunk[item / n_group];
    expand_part e = part_of(&p, &c, item % n_group, warp);
    uint4 b[4];
    if (NT == 1) {
        fetch_ranks(rooms, e.block, e.rank8, lane);
        cu_cp_async_commit();
    } else if (e.block && e.rank8 >= 16) {
        b_fragments(b, e.block, 0, lane);
    }
    cu_grid_wait(); /* for v, and what is added to */
#pragma unroll 1
    do {
        if (NT == 1) {                 /* else registers hold no more, and there is one */
            if (item + 1 < mine.end) { /* the next one's, while this one is summed */
                c = p.chunk[(item + 1) / n_group];
                e = part_of(&p, &c, (item + 1) % n_group, warp);
                fetch_ranks(rooms + (room ^ 1) * ROOM, e.block, e.rank8, lane);
            }
            cu_cp_async_commit();
            c = p.chunk[item / n_group];
            e = part_of(&p, &c, item % n_group, warp);
        }
        if (!e.needed) continue;
        int wanted = item / n_group * SGMV_OUT_MAX + e.o;
        if (wanted != loaded) {
            if (loaded >= 0) __syncthreads(); /* the v before has been read */
            load_shrunk<NT, BF16>(vs, &p, &c, e.o, n_plane, e.rank8, row_words, t);
            loaded = wanted;
            __syncthreads(); /* v is there */
        }
        if (!e.has) continue;
        if (NT == 1) {
            CU_CP_ASYNC_WAIT(1);
            if (e.block && e.rank8 >= 16) ranks_of(b, rooms + room * ROOM, lane);
        }
        float acc[NT][4][4];
#pragma unroll
        for (int i = 0; i < NT * 16; i++) acc[i / 16][i / 4 % 4][i % 4] = 0;
        int k = 0;
        for (; k + 16 <= e.rank8; k += 16) {
            uint4 now[4];
#pragma unroll
            for (int i = 0; i < 4; i++) now[i] = b[i];
            if (k + 32 <= e.rank8) b_fragments(b, e.block, k + 16, lane);
            add_16_ranks<NT, BF16>(acc, now, vs, row_words, k, g, q);
        }
        if (k < e.rank8) add_8_ranks<NT, BF16>(acc, e.block, vs, row_words, k, lane);
        /* Kept, it would take registers that the sums need. */
        if (NT > 1) e = part_of(&p, &c, cu_anew(item) % n_group, warp);
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
#pragma unroll
            for (int i = 0; i < 4; i++) { /* row 2q + i % 2, columns 4g.. and 32 + 4g.. */
                int row = nt * 8 + 2 * q + i % 2;
                if (row >= c.n_rows) continue;
                sgmv_put(&e.out, &e.m, c.row0 + row, e.col0 + i / 2 * 32 + 4 * g, acc[nt][0][i],
                         acc[nt][1][i], acc[nt][2][i], acc[nt][3][i]);
            }
        }
    } while (room ^= 1, NT == 1 && ++item < mine.end);
    CU_CP_ASYNC_WAIT(0);
}

/* ---- expand, gated ----------------------------------------------------------------------------
 * A warp makes the same 64 columns of gate and of up for up to 8 rows, and from both what the next
 * product reads.  Items: a chunk and 8 blocks of columns.  v of both lies in shared memory, one
 * after the other.  Sums pass through shared memory, so that all lanes have a part of the gate,
 * however few rows there are. */
enum {
    GATED_ROWS = 4, /* that pass through shared memory at a time */
    GATED_SUMS = WARPS * 2 * GATED_ROWS * SGMV_COLS * (int)sizeof(float),
};

/* acc = B v for 64 columns; b: B's first 16 ranks, where it has so many. */
CU_INLINE void expand_block(float (*acc)[4][4], uint4 *b, const uint16_t *block, int rank8,
                            const uint32_t *v, int row_words, int lane)
{
    int g = lane / 4, q = lane % 4, k = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) acc[0][i / 4][i % 4] = 0;
#pragma unroll 1
    for (; k + 16 <= rank8; k += 16) {
        if (k > 0) b_fragments(b, block, k, lane);
        add_16_ranks<1, true>(acc, b, v, row_words, k, g, q);
    }
    if (k < rank8) add_8_ranks<1, true>(acc, block, v, row_words, k, lane);
}

/* Two columns of a row's gate and of its up, before what is added. */
typedef struct {
    float gate[2], up[2];
} gated_in;

CU_INLINE gated_in load_gated(const sgmv_out *out, int row, int col)
{
    gated_in in;
    cu_load_f32x2(in.gate, out[0].in + (size_t)row * (size_t)out[0].in_stride + col);
    cu_load_f32x2(in.up, out[1].in + (size_t)row * (size_t)out[1].in_stride + col);
    return in;
}

CU_INLINE void put_gated(uint16_t *out16, const sgmv_out *out, const sgmv_mat *m, int row, int col,
                         const gated_in *in, const float *gate, const float *up, bool gelu)
{
    float g[2], u[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        g[i] = sgmv_value(&out[0], &m[0], col + i, in->gate[i], 0, gate[i]);
        u[i] = sgmv_value(&out[1], &m[1], col + i, in->up[i], 0, up[i]);
    }
    *(uint32_t *)(out16 + (size_t)row * (size_t)out[0].d_out + col) =
        cu_bf16x2_of(cu_gate_mul(g[0], u[0], gelu), cu_gate_mul(g[1], u[1], gelu));
}

static __global__ void __launch_bounds__(THREADS, 2)
    expand_gated_kernel(sgmv_args p, uint16_t *out16, bool gelu, int n_plane, int rank16)
{
    CU_SHARED(uint32_t, vs);
    cu_grid_go();
    const int d_out = p.out[0].d_out, n_group = sgmv_groups(d_out, ROW_BLOCKS);
    const items mine = items_of(p.counts->n_all * n_group);
    if (mine.first >= mine.end) return cu_grid_wait();
    int t = (int)threadIdx.x, warp = t / CU_WARP, lane = t % CU_WARP, q = lane % 4;
    int row_words = rank16 / 2 + 4, rank8[2], loaded = -1, room = 0;
    /* In shared memory: v of both, each warp's sums, each warp's two rooms of B for both. */
    float *sums = (float *)(vs + 2 * 16 * row_words) + warp * 2 * GATED_ROWS * SGMV_COLS;
    char *rooms = (char *)(vs + 2 * 16 * row_words) + GATED_SUMS + warp * 4 * ROOM;
    sgmv_chunk c;
    sgmv_mat m[2];
    sgmv_out out[2] = {p.out[0], p.out[1]};
    /* The chunk and its matrices; the warp's first column. */
    auto find = [&](int item) {
        c = p.chunk[item / n_group];
#pragma unroll
        for (int o = 0; o < 2; o++) {
            (void)sgmv_needed(&m[o], &c, &out[o]); /* all rows are */
            rank8[o] = (m[o].rank + 7) / 8 * 8;
        }
        return (item % n_group * ROW_BLOCKS + warp) * SGMV_COLS;
    };
    auto block_of = [&](int o, int col0) -> const uint16_t * {
        bool has = col0 < d_out && m[o].rank;
        return has ? (const uint16_t *)sgmv_b_block(&m[o], col0, 2) : nullptr;
    };
    auto fetch = [&](int item, int to) {
        if (item < mine.end) {
            int col0 = find(item);
            for (int o = 0; o < 2; o++)
                fetch_ranks(rooms + (2 * to + o) * ROOM, block_of(o, col0), rank8[o], lane);
        }
        cu_cp_async_commit();
    };
    fetch(mine.first, 0);
    cu_grid_wait(); /* for v, gate and up */
#pragma unroll 1
    for (int item = mine.first; item < mine.end; item++, room ^= 1) {
        fetch(item + 1, room ^ 1); /* while this one is summed */
        int col0 = find(item);
        if (item / n_group != loaded) {
            if (loaded >= 0) __syncthreads(); /* the v before has been read */
#pragma unroll
            for (int o = 0; o < 2; o++)
                load_shrunk<1, true>(vs + o * 16 * row_words, &p, &c, o, n_plane, rank8[o],
                                     row_words, t);
            loaded = item / n_group;
            __syncthreads(); /* v is there */
        }
        if (col0 >= d_out) continue;
        int col = col0 + 2 * lane;
        bool has = col < d_out;
        gated_in in = {};
        if (has) in = load_gated(out, c.row0, col);
        CU_CP_ASYNC_WAIT(1);
        float acc[2][1][4][4];
#pragma unroll
        for (int o = 0; o < 2; o++) {
            uint4 b[4];
            if (rank8[o] >= 16) ranks_of(b, rooms + (2 * room + o) * ROOM, lane);
            expand_block(acc[o], b, block_of(o, col0), rank8[o], vs + o * 16 * row_words, row_words,
                         lane);
        }
        for (int r0 = 0; r0 < c.n_rows; r0 += GATED_ROWS) {
            cu_syncwarp(); /* the sums before have been read */
#pragma unroll
            for (int i = 0; i < 4; i++) { /* row 2q + i % 2, columns 4g.. and 32 + 4g.. */
                int row = 2 * q + i % 2 - r0, at = i / 2 * 32 + lane / 4 * 4;
                if (row < 0 || row >= GATED_ROWS || r0 + row >= c.n_rows) continue;
#pragma unroll
                for (int o = 0; o < 2; o++)
                    cu_st_f32x4(sums + (o * GATED_ROWS + row) * SGMV_COLS + at,
                                make_float4(acc[o][0][0][i], acc[o][0][1][i], acc[o][0][2][i],
                                            acc[o][0][3][i]));
            }
            cu_syncwarp(); /* all sums are there */
            for (int row = 0; has && row < GATED_ROWS && r0 + row < c.n_rows; row++) {
                const float *gate = sums + row * SGMV_COLS + 2 * lane;
                if (r0 + row > 0) in = load_gated(out, c.row0 + r0 + row, col);
                put_gated(out16, out, m, c.row0 + r0 + row, col, &in, gate,
                          gate + GATED_ROWS * SGMV_COLS, gelu);
            }
        }
    }
    CU_CP_ASYNC_WAIT(0);
}

static size_t gated_shared(int rank16)
{
    return (size_t)(2 * 2 * 8) * (size_t)(rank16 / 2 + 4) * sizeof(uint32_t) + (size_t)GATED_SUMS +
           (size_t)(WARPS * 4 * ROOM);
}

/* As many blocks as the device holds, or as there are items. */
static dim3 blocks_for(const sgmv_args *p, int n_items)
{
    int most = p->n_sm > 0 ? 2 * p->n_sm : n_items;
    return dim3((unsigned)(n_items < most ? n_items : most));
}

cudaError_t cu_sgmv_expand_gated(cudaStream_t stream, const sgmv_args *p, uint16_t *out16,
                                 bool gelu)
{
    const sgmv_out *o = p->out;
    if (p->type != DT_BF16 || p->chunk_rows > 8 || p->n_out != 2 || o[0].d_out != o[1].d_out ||
        o[0].d_out % 4 || o[0].in_stride % 4 || o[1].in_stride % 4 || o[0].res || o[1].res)
        return cudaErrorInvalidValue;
    if (p->max_all <= 0 || o[0].d_out <= 0) return cudaSuccess;
    int rank16 = (p->rank_max + 15) / 16 * 16;
    dim3 grid = blocks_for(p, p->max_all * sgmv_groups(o[0].d_out, ROW_BLOCKS));
    size_t shared = gated_shared(rank16);
    CU_LAUNCH_EARLY(expand_gated_kernel, grid, dim3(THREADS), shared, stream, p->early, *p, out16,
                    gelu, sgmv_planes(p->d_in, p->type), rank16);
    return cudaGetLastError();
}

/* ---- gather ------------------------------------------------------------------------------------
 * v[0][row][0][r] = A[token[row]][r].  Grid (chunk), threads over (row, r). */
static __global__ void gather_kernel(sgmv_args p, const int32_t *token)
{
    if ((int)blockIdx.x >= p.counts->n_lora) return;
    const sgmv_chunk c = p.chunk[blockIdx.x];
    const sgmv_mat m = c.mats[p.out[0].mat];
    int rank8 = (m.rank + 7) / 8 * 8;
    for (int i = (int)threadIdx.x; i < c.n_rows * rank8; i += THREADS) {
        int row = i / rank8, r = i % rank8, id = token[c.row0 + row];
        float v = 0;
        if (r < m.rank && id >= 0 && id < m.n_in) {
            size_t at = (size_t)id * (size_t)m.rank + (size_t)r;
            v = p.type == DT_F32    ? ((const float *)m.a)[at]
                : p.type == DT_BF16 ? cu_f32_of_bf16(((const uint16_t *)m.a)[at])
                                    : cu_f32_of_f16(((const uint16_t *)m.a)[at]);
        }
        p.v[sgmv_v_at(&c, row, 0) + (size_t)r] = v;
    }
}

cudaError_t cu_sgmv_gather(cudaStream_t stream, const sgmv_args *p, const int32_t *token)
{
    if (p->max_lora > 0)
        CU_LAUNCH(gather_kernel, dim3((unsigned)p->max_lora), dim3(THREADS), 0, stream, *p, token);
    return cudaGetLastError();
}

/* ---- round
 * --------------------------------------------------------------------------------------- out = x
 * in two bytes, 8 values a thread. */
static __global__ void round_kernel(uint16_t *out, int out_stride, bool bf16, const float *x,
                                    int x_stride, int n_rows, int cols)
{
    int width = (cols + 7) / 8;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    int row = (int)(i / (size_t)width), k = (int)(i % (size_t)width) * 8;
    if (row >= n_rows) return;
    const float *from = x + (size_t)row * (size_t)x_stride + k;
    float v[8];
    if (k + 8 <= cols && x_stride % 4 == 0) {
        float4 a = cu_ld_f32x4(from), b = cu_ld_f32x4(from + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = k + j < cols ? from[j] : 0.0F;
    }
    uint4 r = bf16 ? make_uint4(cu_bf16x2_of(v[0], v[1]), cu_bf16x2_of(v[2], v[3]),
                                cu_bf16x2_of(v[4], v[5]), cu_bf16x2_of(v[6], v[7]))
                   : make_uint4(cu_f16x2_of(v[0], v[1]), cu_f16x2_of(v[2], v[3]),
                                cu_f16x2_of(v[4], v[5]), cu_f16x2_of(v[6], v[7]));
    cu_st16(out + (size_t)row * (size_t)out_stride + k, r);
}

cudaError_t cu_round_rows(cudaStream_t stream, void *out, int out_stride, dtype type,
                          const float *x, int x_stride, int n_rows, int cols)
{
    size_t n = (size_t)n_rows * (size_t)((cols + 7) / 8);
    if (n > 0)
        CU_LAUNCH(round_kernel, dim3((unsigned)((n + THREADS - 1) / THREADS)), dim3(THREADS), 0,
                  stream, (uint16_t *)out, out_stride, type == DT_BF16, x, x_stride, n_rows, cols);
    return cudaGetLastError();
}

/* ---- launches -------------------------------------------------------------------------------- */

template <int NT, bool BF16>
static void launch_shrink(cudaStream_t stream, const sgmv_args *p, int n_plane, int plane_k)
{
    int n_pass = (p->rank_max + PASS - 1) / PASS;
    dim3 grid((unsigned)p->max_small, (unsigned)(p->n_out * n_plane * n_pass));
    CU_LAUNCH((shrink_kernel<NT, BF16>), grid, dim3(THREADS), 0, stream, *p, n_plane, plane_k,
              n_pass);
}

template <bool BF16>
static void launch_shrinks(cudaStream_t stream, const sgmv_args *p)
{
    int n_plane = sgmv_planes(p->d_in, p->type), plane_k = sgmv_plane_k(p->d_in, p->type);
    if (p->max_small > 0 && p->chunk_rows <= 8)
        launch_shrink<1, BF16>(stream, p, n_plane, plane_k);
    else if (p->max_small > 0)
        launch_shrink<4, BF16>(stream, p, n_plane, plane_k);
    if (p->max_tile > 0) {
        int pieces = p->n_out * ((p->rank_max + 15) / 16);
        dim3 grid((unsigned)p->max_tile, (unsigned)(n_plane * ((pieces + 3) / 4)));
        CU_LAUNCH((shrink_tile_kernel<BF16>), grid, dim3(TILE_THREADS), 0, stream, *p, n_plane,
                  plane_k);
    }
}

cudaError_t cu_sgmv_shrink(cudaStream_t stream, const sgmv_args *p)
{
    if (p->n_out <= 0 || p->rank_max <= 0) return cudaSuccess;
    if (p->type == DT_F32) return sgmv_f32_shrink(stream, p);
    if (p->type == DT_BF16)
        launch_shrinks<true>(stream, p);
    else
        launch_shrinks<false>(stream, p);
    return cudaGetLastError();
}

template <int NT>
static size_t expand_shared(int rank16)
{
    return (size_t)(2 * NT * 8) * (size_t)(rank16 / 2 + 4) * sizeof(uint32_t) +
           (NT == 1 ? (size_t)(WARPS * 2 * ROOM) : 0);
}

template <int NT>
static cudaError_t setup_expand(void)
{
    cudaError_t rc = CU_ALLOW_SHARED((expand_kernel<NT, true>), expand_shared<NT>(LORA_RANK_MAX));
    return rc != cudaSuccess
               ? rc
               : CU_ALLOW_SHARED((expand_kernel<NT, false>), expand_shared<NT>(LORA_RANK_MAX));
}

cudaError_t cu_sgmv_setup(void)
{
    cudaError_t rc = setup_expand<1>();
    if (rc == cudaSuccess) rc = setup_expand<4>();
    return rc != cudaSuccess ? rc
                             : CU_ALLOW_SHARED(expand_gated_kernel, gated_shared(LORA_RANK_MAX));
}

template <int NT, bool BF16>
static void launch_expand(cudaStream_t stream, const sgmv_args *p, int chunks, int groups)
{
    int rank16 = (p->rank_max + 15) / 16 * 16;
    dim3 grid = NT == 1 ? blocks_for(p, chunks * groups) : dim3((unsigned)(chunks * groups));
    CU_LAUNCH_EARLY((expand_kernel<NT, BF16>), grid, dim3(THREADS), expand_shared<NT>(rank16),
                    stream, p->early, *p, sgmv_planes(p->d_in, p->type), rank16, groups);
}

template <bool BF16>
static void launch_expands(cudaStream_t stream, const sgmv_args *p, int chunks, int groups)
{
    if (p->chunk_rows <= 8)
        launch_expand<1, BF16>(stream, p, chunks, groups);
    else
        launch_expand<4, BF16>(stream, p, chunks, groups);
}

cudaError_t cu_sgmv_expand(cudaStream_t stream, const sgmv_args *p)
{
    int chunks = p->all_rows ? p->max_all : p->max_lora, groups = 0;
    for (int o = 0; o < p->n_out; o++) groups += sgmv_groups(p->out[o].d_out, ROW_BLOCKS);
    if (chunks <= 0 || groups == 0) return cudaSuccess;
    if (p->type == DT_F32) return sgmv_f32_expand(stream, p);
    if (p->type == DT_BF16)
        launch_expands<true>(stream, p, chunks, groups);
    else
        launch_expands<false>(stream, p, chunks, groups);
    return cudaGetLastError();
}
