/* gemm_cluster.cu -- products of few rows as gemm_stream.cu makes them, where the blocks of a
 * cluster share x (gemm.h); sm_90 alone.
 *
 * Law: that of gemm_stream.cu, the same mma in the same order, so the same bits.
 *
 * There each block reads all of x through the second-level cache, with 32 rows as many bytes as a
 * block of two units has weights.  Here each row of a stage is read once for a cluster: its blocks
 * take turns, and one copy writes to all of them (cluster.h).  Copies cannot permute pieces, so
 * rows of x lie X_ROW bytes apart, and eight of them meet all banks.
 *
 * x has a ring of its own.  A stage of it is there when the block's mbarrier `full` has all of its
 * bytes.  A room is free when all blocks have read it: each says so at the mbarrier `empty` of all
 * others, for all send.  Only a part of the ring is on its way, the rest is for blocks that are
 * behind: else all would wait for the last one at each stage.  A block waits for its copies and its
 * weights together, as in gemm_stream.cu.
 *
 * Where k ends inside of a stage less is sent, and the rest is zeros; so are rows behind the last.
 *
 * Held to its oracle and to gemm_stream.cu by tests/emu/test_gemm.cu.
 */
#include "engine/cuda/products/cluster.h"
#include "engine/cuda/products/stream.h"

enum {
    X_ROW = ROW_BYTES + 16,      /* from a row of x to the next */
    X_STAGES = 12,               /* of x's ring, at most; at least as many as weights have */
    BARRIERS = 2 * X_STAGES * 8, /* bytes: full, then empty */
    CLUSTER_ROOM = 192 << 10,    /* more is for rings of x that would not fit: LoRA runs beside */
};

/* How a product is cut: x's stages besides. */
typedef struct {
    stream_cut all;
    int x_stages, shared; /* bytes */
} cluster_cut;

static inline cluster_cut cluster_cut_of(const gemm_args *a)
{
    cluster_cut c;
    c.all = stream_cut_of(a, 1, BARRIERS + GEMM_RING * stream_rows(a) * (X_ROW - ROW_BYTES));
    int w = c.all.units * UNIT * ROW_BYTES, x = c.all.rows * X_ROW;
    c.all.blocks = (c.all.blocks + a->cluster - 1) / a->cluster * a->cluster;
    int room = CLUSTER_ROOM - BARRIERS - c.all.stages * w, fit = room > 0 ? room / x : 0;
    c.x_stages = fit > X_STAGES ? X_STAGES : fit < c.all.stages ? c.all.stages : fit;
    c.shared = BARRIERS + c.all.stages * w + c.x_stages * x;
    return c;
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

/* All of its work. */
CU_INLINE void copy_x(const x_ring *r, const gemm_args *a, int t)
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

/* No block ends while another one may reach it. */
CU_INLINE void leave_together()
{
    cu_cluster_arrive();
    cu_cluster_wait();
}

#endif

/* A block: `units` of columns, or none, where the grid was filled up to whole clusters: it then
 * copies its share of x alone.  Its first warps multiply, 8 NT rows each, the next ones copy
 * weights, the last ones x.  Registers as gemm_stream_kernel's. */
template <int NT, int STAGES_, bool BF16>
static __global__ void __launch_bounds__(NT == 8 ? STREAM_THREADS : 1024, 1)
    gemm_cluster_kernel(gemm_args a, int units, int halves, int x_warps, int x_stages)
{
#if defined(LORAD_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    CU_SHARED(char, shared);
    cu_grid_go();
    int warp = (int)threadIdx.x / CU_WARP, lane = (int)threadIdx.x % CU_WARP;
    int n_mul = units * halves, unit0 = (int)blockIdx.x * units, rows = 8 * NT * halves;
    int w_bytes = units * UNIT * ROW_BYTES;
    bool some = unit0 * UNIT < a.n; /* of the columns */
    uint64_t *barriers = (uint64_t *)shared;
    char *ring = shared + BARRIERS;
    const x_ring r = {barriers, barriers + X_STAGES, ring + STAGES_ * w_bytes,
                      x_stages, rows * X_ROW,        rows,
                      x_warps};
    if (threadIdx.x == 0) {
        for (int i = 0; i < x_stages; i++) {
            cu_barrier_init(r.full + i, 1);
            cu_barrier_init(r.empty + i, (uint32_t)a.cluster);
        }
        cu_fence_barriers();
    }
    cu_syncwarp();
    cu_cluster_arrive(); /* mbarriers are ready for all blocks behind the wait */
    if (warp >= n_mul + W_WARPS) {
        cu_cluster_wait();
        cu_grid_wait();
        copy_x(&r, &a, (int)threadIdx.x - (n_mul + W_WARPS) * CU_WARP);
        cu_syncwarp();
        leave_together();
        return;
    }
    if (warp >= n_mul) {
        int t = (int)threadIdx.x - n_mul * CU_WARP, room = 0;
        const w_copies c = find_w(&a, unit0, units, t);
        copy_stream<STAGES_>(ring, w_bytes, a.k, true, [&](char *to, int k0) {
            if (some) fetch_w(to, &c, k0);
            if (k0 + STREAM_K > a.k) clear_end(r.room + room * r.bytes, &a, k0, t);
            room = room + 1 == x_stages ? 0 : room + 1;
        });
        cu_syncwarp();
        cu_cluster_wait();
        leave_together();
        return;
    }
    clear_rows(&r, a.rows, (int)threadIdx.x, n_mul * CU_WARP);
    cu_syncwarp();
    cu_cluster_wait();
    cu_grid_wait(); /* as everybody */
    float acc[NT][4];
    CU_UNROLL
    for (int i = 0; i < NT * 4; i++) acc[i / 4][i % 4] = 0;
    const char *w = ring + warp / halves * UNIT * ROW_BYTES;
    const char *x = r.room + warp % halves * 8 * NT * X_ROW;
    int at = 0, x_at = 0;
    for (int k0 = 0; k0 < a.k; k0 += STREAM_K) {
        meet(); /* the stage is there */
        if (some) add_stream<NT, BF16, X_ROW>(acc, w + at, x + x_at, lane);
        at = at + w_bytes == STAGES_ * w_bytes ? 0 : at + w_bytes;
        x_at = x_at + r.bytes == x_stages * r.bytes ? 0 : x_at + r.bytes;
    }
    cu_cluster_arrive();
    int unit = unit0 + warp / halves, row0 = warp % halves * 8 * NT, g = lane / 4, q = lane % 4;
    if (a.gated)
        put_gates<NT>(&a, acc, row0, unit * 8 + g, q);
    else
        put_sums<NT>(&a, acc, row0, unit * UNIT + g, 8, q);
    cu_syncwarp();
    cu_cluster_wait();
#else
    __trap(); /* not compiled for this device: cu_gemm_cluster_setup() says so */
#endif
}

/* ---- launches -------------------------------------------------------------------------------- */

#if defined(LORAD_EMU) || defined(LORAD_SM90A)

template <int NT, int STAGES_>
static cudaError_t setup_stages(void)
{
    cudaError_t rc = CU_ALLOW_SHARED((gemm_cluster_kernel<NT, STAGES_, true>), STREAM_SHARED);
    return rc != cudaSuccess
               ? rc
               : CU_ALLOW_SHARED((gemm_cluster_kernel<NT, STAGES_, false>), STREAM_SHARED);
}

template <int NT>
static cudaError_t setup_rows(void)
{
    cudaError_t rc = setup_stages<NT, 3>();
    return rc != cudaSuccess ? rc : setup_stages<NT, GEMM_RING>();
}

extern "C" int cu_gemm_cluster_setup(int cluster)
{
    int n = 0;
    cudaError_t rc = setup_rows<2>();
    if (rc == cudaSuccess) rc = setup_rows<4>();
    if (rc == cudaSuccess) rc = setup_rows<8>();
    if (rc == cudaSuccess)
        rc = CU_MOST_CLUSTERS((gemm_cluster_kernel<8, GEMM_RING, true>), dim3(STREAM_THREADS),
                              STREAM_SHARED, (unsigned)cluster, &n);
    if (rc == cudaSuccess) return n * cluster;
    (void)cudaGetLastError(); /* it is not the next launch's */
    return 0;
}

#else

extern "C" int cu_gemm_cluster_setup(int cluster)
{
    (void)cluster;
    return 0; /* compiled without sm_90 */
}

#endif

extern "C" bool gemm_cluster_takes(const gemm_args *a)
{
    return (a->cluster == 2 || a->cluster == 4) && a->n_sm >= a->cluster && gemm_stream_takes(a) &&
           cluster_cut_of(a).all.stages > 0;
}

template <int NT, int STAGES_, bool BF16>
static void launch(cudaStream_t stream, const gemm_args *a, const cluster_cut *c)
{
    dim3 block((unsigned)((c->all.units * c->all.halves + W_WARPS + c->all.x_warps) * CU_WARP));
    CU_LAUNCH_CLUSTER((gemm_cluster_kernel<NT, STAGES_, BF16>), dim3((unsigned)c->all.blocks),
                      block, (size_t)c->shared, stream, a->early, (unsigned)a->cluster, *a,
                      c->all.units, c->all.halves, c->all.x_warps, c->x_stages);
}

template <int NT, bool BF16>
static void launch_stages(cudaStream_t stream, const gemm_args *a, const cluster_cut *c)
{
    if (c->all.stages == GEMM_RING)
        launch<NT, GEMM_RING, BF16>(stream, a, c);
    else
        launch<NT, 3, BF16>(stream, a, c);
}

template <int NT>
static void launch_rows(cudaStream_t stream, const gemm_args *a, const cluster_cut *c)
{
    if (a->type == DT_BF16)
        launch_stages<NT, true>(stream, a, c);
    else
        launch_stages<NT, false>(stream, a, c);
}

extern "C" void cu_gemm_cluster(cudaStream_t stream, const gemm_args *a)
{
    cluster_cut c = cluster_cut_of(a);
    int tiles = c.all.rows / 8 / c.all.halves;
    if (tiles == 2)
        launch_rows<2>(stream, a, &c);
    else if (tiles == 4)
        launch_rows<4>(stream, a, &c);
    else
        launch_rows<8>(stream, a, &c);
}
