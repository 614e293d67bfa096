/* x_ring.h -- how the blocks of a cluster share rows of x: a ring of stages beside that of weights
 * (stream.h).  For gemm_cluster.cu and gemm_lora_cluster.cu only; sm_90 alone.
 *
 * Each row of a stage is read once for a cluster: its blocks take turns, and one copy writes to all
 * of them (cluster.h).  Copies cannot permute pieces, so rows of x lie X_ROW bytes apart, and eight
 * of them meet all banks.
 *
 * A stage of x is there when the block's mbarrier `full` has all of its bytes.  A room is free when
 * all blocks have read it: each says so at the mbarrier `empty` of all others, for all send.  Only
 * a part of the ring is on its way, the rest is for blocks that are behind: else all would wait for
 * the last one at each stage.  A block waits for its copies and its weights together, as in
 * gemm_stream.cu.
 *
 * Where k ends inside of a stage less is sent, and the rest is zeros; so are rows behind the last.
 */
#ifndef ENGINE_CUDA_PRODUCTS_X_RING_H
#define ENGINE_CUDA_PRODUCTS_X_RING_H

#include "engine/cuda/products/cluster.h"
#include "engine/cuda/products/stream.h"

enum {
    X_ROW = ROW_BYTES + 16,      /* from a row of x to the next */
    X_STAGES = 12,               /* of x's ring, at most; at least as many as weights have */
    BARRIERS = 2 * X_STAGES * 8, /* bytes: full, then empty */
};

/* How a product is cut: x's stages besides, and the bytes of mbarriers and both rings. */
typedef struct {
    stream_cut all;
    int x_stages, rings;
} cluster_cut;

/* As stream_cut_of().  x has as many stages as `most` bytes of a block's shared memory hold. */
static inline cluster_cut cluster_cut_of(const gemm_args *a, int group, int other_bytes, int most)
{
    cluster_cut c;
    other_bytes += BARRIERS;
    c.all = stream_cut_of(a, group, other_bytes + GEMM_RING * stream_rows(a) * (X_ROW - ROW_BYTES));
    int w = c.all.units * UNIT * ROW_BYTES, x = c.all.rows * X_ROW;
    c.all.blocks = (c.all.blocks + a->cluster - 1) / a->cluster * a->cluster;
    int room = most - other_bytes - c.all.stages * w, fit = room > 0 ? room / x : 0;
    c.x_stages = fit > X_STAGES ? X_STAGES : fit < c.all.stages ? c.all.stages : fit;
    c.rings = BARRIERS + c.all.stages * w + c.x_stages * x;
    return c;
}

/* Whether there are such clusters.  Weights' stages are no more than GEMM_RING then. */
static inline bool cluster_fits(const gemm_args *a)
{
    return (a->cluster == 2 || a->cluster == 4) && a->n_sm >= a->cluster && a->stream == GEMM_RING;
}

#if defined(LORAD_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* x's ring as a block knows it. */
typedef struct {
    uint64_t *full, *empty;
    char *room;                     /* [stages][rows][X_ROW] */
    int stages, bytes, rows, warps; /* warps: that copy */
} x_ring;

/* Where a walk over the ring's stages is. */
typedef struct {
    int room;
    uint32_t parity; /* of the phase that fills it */
} x_place;

CU_INLINE void go_on(x_place *p, int stages)
{
    bool last = p->room + 1 == stages;
    p->room = last ? 0 : p->room + 1;
    p->parity ^= last;
}

/* The ring of a block behind `w_bytes` of weights' stages, at its beginning. */
CU_INLINE x_ring x_ring_at(char *shared, int w_bytes, int rows, int stages, int warps)
{
    uint64_t *barriers = (uint64_t *)shared;
    x_ring r = {barriers, barriers + X_STAGES, shared + BARRIERS + w_bytes,
                stages,   rows * X_ROW,        rows,
                warps};
    return r;
}

/* All threads.  Behind cu_cluster_wait() the mbarriers are ready for all blocks. */
CU_INLINE void open_ring(const x_ring *r, int cluster)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < r->stages; i++) {
            cu_barrier_init(r->full + i, 1);
            cu_barrier_init(r->empty + i, (uint32_t)cluster);
        }
        cu_fence_barriers();
    }
    cu_syncwarp();
    cu_cluster_arrive();
}

/* What thread t of those that copy x does for the stage from k0 on: of the block's share of rows
 * one at most, to all blocks.  A warp's copies are issued one after another: warps share them. */
CU_INLINE void send_x(const x_ring *r, const gemm_args *a, int room, int k0, int t)
{
    int row = (int)cu_cluster_rank() + a->cluster * (t / CU_WARP + t % CU_WARP * r->warps);
    int bytes = k0 + STREAM_K <= a->k ? (int)ROW_BYTES : (a->k - k0) * 2;
    if (t == 0) cu_barrier_expect(r->full + room, (uint32_t)(a->rows * bytes));
    if (row >= a->rows) return;
    cu_send(r->room + room * r->bytes + row * X_ROW,
            (const uint16_t *)a->x + (size_t)row * (size_t)a->k + k0, (uint32_t)bytes,
            r->full + room, (uint16_t)((1U << a->cluster) - 1));
}

/* All of its work.  meet() as stream.h's, once for each stage. */
template <class F>
CU_INLINE void copy_x(const x_ring *r, const gemm_args *a, int t, F meet)
{
    const int slack = r->stages / 3, ahead = r->stages - 1 - slack;
    x_place now = {0, 0}, next = {0, 0}, read = {0, 0};
    int k_next = 0;
    for (int i = 0; i < ahead && k_next < a->k; i++, k_next += STREAM_K) {
        send_x(r, a, next.room, k_next, t);
        go_on(&next, r->stages);
    }
    for (int k0 = 0; k0 < a->k; k0 += STREAM_K) {
        cu_barrier_wait(r->full + now.room, now.parity);
        meet(); /* the stage is here, weights and x, and the stage before was read by all */
        go_on(&now, r->stages);
        if (k0 > 0) {
            bool again = k0 + (r->stages - 1) * STREAM_K < a->k; /* somebody will wait for it */
            if (again && t < a->cluster) cu_barrier_arrive(r->empty + read.room, (uint32_t)t);
            go_on(&read, r->stages);
        }
        if (k_next >= a->k) continue;
        if (k_next >= r->stages * STREAM_K) cu_barrier_wait(r->empty + next.room, next.parity ^ 1);
        send_x(r, a, next.room, k_next, t);
        go_on(&next, r->stages);
        k_next += STREAM_K;
    }
}

/* Zeros in all of the ring's rows that nobody sends. */
CU_INLINE void clear_rows(const x_ring *r, int rows, int t, int threads)
{
    int each = (r->rows - rows) * (X_ROW / 16);
    for (int i = t; i < each * r->stages; i += threads)
        cu_st16(r->room + i / each * r->bytes + rows * X_ROW + i % each * 16,
                make_uint4(0, 0, 0, 0));
}

/* Zeros behind the end of k in a room, as the weights of that stage have. */
CU_INLINE void clear_end(char *room, const gemm_args *a, int k0, int t)
{
    int piece = t % PIECES;
    if (k0 + piece * 8 < a->k) return;
    for (int row = t / PIECES; row < a->rows; row += SERIES)
        cu_cp_async16_or_zero(room + row * X_ROW + piece * 16, a->w, false);
}

/* A warp that multiplies, `halves` of them a unit: acc = its sums over all of k, zeros where the
 * block has no columns (`some`).  Returns where the stage behind the last one is in the weights'
 * ring.  x is read then, which the cluster is told: cu_cluster_wait() is the caller's.  meet() as
 * stream.h's. */
template <int NT, int STAGES_, bool BF16, class F>
CU_INLINE int add_stages(float (*acc)[4], const x_ring *r, const char *ring, int w_bytes,
                         int halves, int k, bool some, int lane, F meet)
{
    const int warp = (int)threadIdx.x / CU_WARP;
    const char *w = ring + warp / halves * UNIT * ROW_BYTES;
    const char *x = r->room + warp % halves * 8 * NT * X_ROW;
    int at = 0, x_at = 0;
    CU_UNROLL
    for (int i = 0; i < NT * 4; i++) acc[i / 4][i % 4] = 0;
    for (int k0 = 0; k0 < k; k0 += STREAM_K) {
        meet(); /* the stage is there */
        if (some) add_stream<NT, BF16, X_ROW>(acc, w + at, x + x_at, lane);
        at = at + w_bytes == STAGES_ * w_bytes ? 0 : at + w_bytes;
        x_at = x_at + r->bytes == r->stages * r->bytes ? 0 : x_at + r->bytes;
    }
    cu_cluster_arrive();
    return at;
}

/* No block ends while another one may reach it. */
CU_INLINE void leave_together()
{
    cu_cluster_arrive();
    cu_cluster_wait();
}

#endif

#endif
