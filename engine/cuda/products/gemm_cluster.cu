/* gemm_cluster.cu -- products of few rows as gemm_stream.cu makes them, where the blocks of a
 * cluster share x (x_ring.h); sm_90 alone.
 *
 * Law: that of gemm_stream.cu, the same mma in the same order, so the same bits.  There each block
 * reads all of x through the second-level cache, with 32 rows as many bytes as a block of two units
 * has weights.
 *
 * Held to its oracle and to gemm_stream.cu by tests/emu/test_gemm.cu.
 */
#include "engine/cuda/products/x_ring.h"

/* More shared memory is for rings of x that would not fit: LoRA runs beside. */
enum { CLUSTER_ROOM = 192 << 10 };

static inline cluster_cut cut_of(const gemm_args *a)
{
    return cluster_cut_of(a, 1, 0, CLUSTER_ROOM);
}

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
    char *ring = shared + BARRIERS;
    const x_ring r = x_ring_at(shared, STAGES_ * w_bytes, rows, x_stages, x_warps);
    open_ring(&r, a.cluster);
    if (warp >= n_mul + W_WARPS) {
        cu_cluster_wait();
        cu_grid_wait();
        copy_x(&r, &a, (int)threadIdx.x - (n_mul + W_WARPS) * CU_WARP, [] { meet(); });
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
    (void)add_stages<NT, STAGES_, BF16>(acc, &r, ring, w_bytes, halves, a.k, some, lane,
                                        [] { meet(); });
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
    return cluster_fits(a) && gemm_stream_takes(a) && cut_of(a).all.stages > 0;
}

template <int NT, int STAGES_, bool BF16>
static void launch(cudaStream_t stream, const gemm_args *a, const cluster_cut *c)
{
    dim3 block((unsigned)((c->all.units * c->all.halves + W_WARPS + c->all.x_warps) * CU_WARP));
    CU_LAUNCH_CLUSTER((gemm_cluster_kernel<NT, STAGES_, BF16>), dim3((unsigned)c->all.blocks),
                      block, (size_t)c->rings, stream, a->early, (unsigned)a->cluster, *a,
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
    cluster_cut c = cut_of(a);
    int tiles = c.all.rows / 8 / c.all.halves;
    if (tiles == 2)
        launch_rows<2>(stream, a, &c);
    else if (tiles == 4)
        launch_rows<4>(stream, a, &c);
    else
        launch_rows<8>(stream, a, &c);
}
