/* gemm_lora.cu -- products of few rows with LoRA inside: one launch for what gemm_stream.cu's
 * product, the shrink and the expand of sgmv.cu do in three, with the same bits.
 *
 *   warps that multiply   W x, one chain over k ------------------------> + B v, bias, res
 *   warps that copy       stages of W and x ........ then stages of B       ^
 *   warps that shrink     pieces of v = A x (any adapter's) -> all done -> v in shared memory
 *
 * A block streams the weights of its columns as gemm_stream.cu does.  Four more warps shrink
 * meanwhile.  They take pieces (16 ranks of an adapter over a plane of k) by a counter in device
 * memory, so running blocks do all of them, and none waits for a block that has not begun.  When
 * all pieces of all blocks are done, they copy v to shared memory.
 *
 * The adapters' B follows the weights through the ring: eight pieces of 16 ranks are a stage.  A
 * warp adds B v of each adapter to that adapter's rows, in registers, and writes what expand would
 * have written.
 *
 * Summation order: of the product one chain over all of k; of the shrink eight chains of a plane,
 * by one warp; of expand one chain over the rank, by v's high and low halves.  All as in their own
 * kernels.
 *
 * B is stored in fragments of 16 columns at a distance of 4 (sgmv_plan.h).  So a unit of a block
 * has such columns here; of gate and up, 8 each.
 *
 * Compared with those kernels, bit for bit, by tests/emu/test_gemm_lora.cu.
 */
#include "engine/cuda/gemm_lora_inside.h"

/* A block with `units` of columns.  Its first warps multiply, the next ones copy weights and B,
 * then x, the last ones shrink. */
template <int NT, int STAGES_, bool BF16, bool GATED>
static __global__ void __launch_bounds__(LORA_THREADS, 1)
    gemm_lora_kernel(gemm_args a, sgmv_args p, uint32_t *drawn, lora_cut l)
{
    CU_SHARED(char, ring);
    cu_grid_go();
    const int units = l.c.units, halves = l.c.halves, n_mul = units * halves;
    const int rows = 8 * NT * halves, w_bytes = units * UNIT * ROW_BYTES;
    const int bytes = w_bytes + rows * ROW_BYTES, streaming = n_mul + W_WARPS + l.c.x_warps;
    const int n_k = (a.k + STREAM_K - 1) / STREAM_K, n = p.counts->n_all, n_unit = a.n / UNIT;
    int warp = (int)threadIdx.x / CU_WARP, lane = (int)threadIdx.x % CU_WARP;
    int unit0 = (int)blockIdx.x * units;
    if (warp >= streaming)
        return shrink_beside<BF16, GATED>(&a, &p, drawn, &l, ring, n, unit0, streaming * CU_WARP);
    if (warp >= n_mul + W_WARPS) {
        int th = (int)threadIdx.x - (n_mul + W_WARPS) * CU_WARP;
        const lora_tables t = tables_of(ring, &l);
        return copy_stages<STAGES_>(
            ring + w_bytes, bytes, n_k, 0, streaming * CU_WARP, &t, n, [&](char *to, int s) {
                if (s < n_k)
                    fetch_x(to, &a, rows, s * STREAM_K, th, l.c.x_warps * CU_WARP / PIECES);
            });
    }
    if (warp >= n_mul) {
        int th = (int)threadIdx.x - n_mul * CU_WARP, chunk = 0;
        const lora_tables t = tables_of(ring, &l);
        return copy_stages<STAGES_>(
            ring, bytes, n_k, n_k, streaming * CU_WARP, &t, n, [&](char *to, int s) {
                if (s < n_k)
                    fetch_units<GATED>(to, &a, unit0, units, n_unit, s * STREAM_K, th);
                else
                    fetch_b<GATED>(to, &t, &a, &p, unit0, units, n_unit, (s - n_k) * SLOTS, n,
                                   &chunk, th);
            });
    }
    meet_for_tables();
    cu_grid_wait();
    float acc[NT][4];
    CU_UNROLL
    for (int i = 0; i < NT * 4; i++) acc[i / 4][i % 4] = 0;
    int unit = warp / halves, row0 = warp % halves * 8 * NT, at = 0;
    const char *w = ring + unit * UNIT * ROW_BYTES, *x = ring + w_bytes + row0 * ROW_BYTES;
    for (int s = 0; s < n_k; s++) {
        meet_streaming(streaming * CU_WARP);
        add_stream<NT, BF16>(acc, w + at, x + at, lane);
        at = at + bytes == STAGES_ * bytes ? 0 : at + bytes;
    }
    meet_for_v();
    end_unit<NT, STAGES_, BF16, GATED>(acc, &a, &p, &l, ring, ring, at, bytes, n, lane,
                                       [&] { meet_streaming(streaming * CU_WARP); });
}

/* ---- launches -------------------------------------------------------------------------------- */

extern "C" bool gemm_lora_takes(const gemm_args *a, const sgmv_args *p)
{
    if (a->type == DT_F32 || a->codes.form || a->place || a->rows > GEMM_SMALL_ROWS || a->k % 8 ||
        p->type != a->type || p->d_in != a->k || p->chunk_rows > 8 || p->n_out < 1 ||
        p->max_all > a->rows)
        return false;
    if (a->gated && (a->type != DT_BF16 || p->n_out != 2 || p->out[0].d_out != p->out[1].d_out ||
                     p->out[0].res || p->out[1].res))
        return false;
    int cols = 0;
    for (int o = 0; o < p->n_out; o++) {
        if (p->out[o].d_out % SGMV_COLS) return false;
        cols += p->out[o].d_out;
    }
    lora_cut l = lora_cut_of(a, p);
    return cols == a->n && l.c.stages > 0 && l.c.rows / l.c.halves <= ROWS_MAX;
}

/* A launch, or without `drawn` its set-up. */
struct lora_launch {
    cudaStream_t stream;
    const gemm_args *a;
    const sgmv_args *p;
    uint32_t *drawn;
    const lora_cut *l;

    template <int NT, int STAGES_, bool BF16, bool GATED>
    cudaError_t run() const
    {
        if (!drawn)
            return CU_ALLOW_SHARED((gemm_lora_kernel<NT, STAGES_, BF16, GATED>), STREAM_SHARED);
        CU_LAUNCH_EARLY((gemm_lora_kernel<NT, STAGES_, BF16, GATED>), dim3((unsigned)l->c.blocks),
                        dim3(lora_threads(l)), (size_t)l->bytes, stream, a->early, *a, *p, drawn,
                        *l);
        return cudaGetLastError();
    }
};

/* Of each number of rows, type and number of stages. */
extern "C" cudaError_t cu_gemm_lora_setup(void)
{
    static uint16_t somewhere;
    gemm_args a = {};
    const lora_launch each = {nullptr, &a, nullptr, nullptr, nullptr};
    cudaError_t rc = cudaSuccess;
    for (int i = 0; rc == cudaSuccess && i < 2 * 2 * 3; i++) {
        a.type = i % 3 == 0 ? DT_F16 : DT_BF16;
        a.gated = i % 3 == 2 ? &somewhere : nullptr;
        rc = lora_of(i / 6 ? 4 : 2, i / 3 % 2 ? RING : SHORT_RING, &a, each);
    }
    if (rc != cudaSuccess) (void)cudaGetLastError(); /* it is not the next launch's */
    return rc;
}

extern "C" cudaError_t cu_gemm_lora(cudaStream_t stream, const gemm_args *a, const sgmv_args *p,
                                    uint32_t *drawn)
{
    if (a->rows <= 0) return cudaSuccess;
    if (!drawn || !gemm_lora_takes(a, p)) return cudaErrorInvalidValue;
    lora_cut l = lora_cut_of(a, p);
    const lora_launch launch = {stream, a, p, drawn, &l};
    return lora_of(l.c.rows / 8 / l.c.halves, l.c.stages, a, launch);
}
