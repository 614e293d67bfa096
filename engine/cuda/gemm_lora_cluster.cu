/* gemm_lora_cluster.cu -- products with LoRA inside as gemm_lora.cu makes them, where the blocks of
 * a cluster share x (products/x_ring.h); sm_90 alone.
 *
 * The same sums in the same order, so the same bits.  The warps that copy x have nothing to do
 * behind the end of k: B comes by the weights' ring.
 *
 * Held to gemm_lora.cu's oracle by tests/emu/test_gemm_lora.cu.
 */
#include "engine/cuda/gemm_lora_inside.h"

/* A block: as gemm_lora_kernel's; or without columns, where the grid was filled up to whole
 * clusters: it then copies its share of x, and shrinks. */
template <int NT, int STAGES_, bool BF16, bool GATED>
static __global__ void __launch_bounds__(LORA_THREADS, 1)
    gemm_lora_cluster_kernel(gemm_args a, sgmv_args p, uint32_t *drawn, lora_cut l)
{
#if defined(LORAD_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    CU_SHARED(char, shared);
    cu_grid_go();
    const int units = l.c.units, halves = l.c.halves, n_mul = units * halves;
    const int rows = 8 * NT * halves, w_bytes = units * UNIT * ROW_BYTES;
    const int streaming = n_mul + W_WARPS + l.c.x_warps;
    const int n_k = (a.k + STREAM_K - 1) / STREAM_K, n = p.counts->n_all, n_unit = a.n / UNIT;
    int warp = (int)threadIdx.x / CU_WARP, lane = (int)threadIdx.x % CU_WARP;
    int unit0 = (int)blockIdx.x * units;
    bool some = unit0 < n_unit; /* of the columns */
    char *ring = shared + BARRIERS;
    const x_ring r = x_ring_at(shared, STAGES_ * w_bytes, rows, l.x_stages, l.c.x_warps);
    open_ring(&r, a.cluster);
    if (warp >= streaming) {
        cu_cluster_wait();
        shrink_beside<BF16, GATED>(&a, &p, drawn, &l, shared, n, unit0, streaming * CU_WARP);
        cu_syncwarp();
        leave_together();
        return;
    }
    if (warp >= n_mul + W_WARPS) {
        const lora_tables t = tables_of(shared, &l);
        cu_cluster_wait();
        meet_for_tables();
        cu_grid_wait();
        copy_x(&r, &a, (int)threadIdx.x - (n_mul + W_WARPS) * CU_WARP,
               [&] { meet_streaming(streaming * CU_WARP); });
        meet_for_v();
        for (int s = stages_of_b(&t, n); s > 0; s--) meet_streaming(streaming * CU_WARP);
        cu_syncwarp();
        leave_together();
        return;
    }
    if (warp >= n_mul) {
        int th = (int)threadIdx.x - n_mul * CU_WARP, chunk = 0;
        const lora_tables t = tables_of(shared, &l);
        copy_stages<STAGES_>(
            ring, w_bytes, n_k, n_k, streaming * CU_WARP, &t, n, [&](char *to, int s) {
                if (s >= n_k)
                    return fetch_b<GATED>(to, &t, &a, &p, unit0, units, n_unit, (s - n_k) * SLOTS,
                                          n, &chunk, th);
                if (some) fetch_units<GATED>(to, &a, unit0, units, n_unit, s * STREAM_K, th);
                if ((s + 1) * STREAM_K > a.k)
                    clear_end(r.room + s % r.stages * r.bytes, &a, s * STREAM_K, th);
            });
        cu_syncwarp();
        cu_cluster_wait();
        leave_together();
        return;
    }
    clear_rows(&r, a.rows, (int)threadIdx.x, n_mul * CU_WARP);
    cu_syncwarp();
    cu_cluster_wait();
    meet_for_tables();
    cu_grid_wait();
    float acc[NT][4];
    const auto meet_stage = [&] { meet_streaming(streaming * CU_WARP); };
    int at =
        add_stages<NT, STAGES_, BF16>(acc, &r, ring, w_bytes, halves, a.k, some, lane, meet_stage);
    meet_for_v();
    end_unit<NT, STAGES_, BF16, GATED>(acc, &a, &p, &l, shared, ring, at, w_bytes, n, lane,
                                       meet_stage);
    cu_syncwarp();
    cu_cluster_wait();
#else
    __trap(); /* not compiled for this device: there are no clusters then */
#endif
}

/* ---- launches -------------------------------------------------------------------------------- */

#if defined(LORAD_EMU) || defined(LORAD_SM90A)

struct cluster_launch : lora_launch {
    template <int NT, int STAGES_, bool BF16, bool GATED>
    cudaError_t run() const
    {
        if (!drawn) /* cu_gemm_lora_setup() */
            return CU_ALLOW_SHARED((gemm_lora_cluster_kernel<NT, STAGES_, BF16, GATED>),
                                   STREAM_SHARED);
        CU_LAUNCH_CLUSTER((gemm_lora_cluster_kernel<NT, STAGES_, BF16, GATED>),
                          dim3((unsigned)l->c.blocks), dim3(lora_threads(l)), (size_t)l->bytes,
                          stream, a->early, (unsigned)a->cluster, *a, *p, drawn, *l);
        return cudaGetLastError();
    }
};

cudaError_t gemm_lora_in_clusters(const lora_launch *launch)
{
    const cluster_launch go = {*launch};
    return lora_of(launch->tiles, launch->l->c.stages, launch->a, go);
}

#else

cudaError_t gemm_lora_in_clusters(const lora_launch *launch)
{
    (void)launch;
    return cudaErrorNotSupported; /* compiled without sm_90 */
}

#endif
