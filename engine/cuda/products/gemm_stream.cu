/* gemm_stream.cu -- products of few rows whose weights stream through shared memory (gemm.h).
 *
 * Summation order: one chain over all of k, 16 at a time in ascending order.  cuBLAS's products
 * that do not split k have the same order: on an H200 their bits are equal, and blas.c compares
 * them before it uses both.  So prompts can be cuBLAS's and decode steps ours.
 *
 * A chain cannot be divided, so the device is filled by columns: each block has as many units of 16
 * columns as make one wave (two for 4,096 columns on 132 multiprocessors, fourteen for 28,672).
 *
 *   warps    0 .. n_mul-1     multiply: one or two per unit, 8 NT rows each
 *            + W_WARPS        copy weights:  memory -> ring -> the multiplying warps
 *            + x_warps        copy rows of x
 *
 * The ring has STAGES_ stages of STREAM_K k, so copies keep the memory busy while other warps
 * multiply.  Weights depend on no earlier launch: where this one begins early, their first stages
 * are fetched before it waits.
 *
 * Its reference is in tests/emu/test_gemm.cu.
 */
#include "engine/cuda/products/stream.h"

/* A block with `units` of columns.  Its first warps multiply, 8 NT rows each, the next ones copy
 * weights, the last ones x.  Registers leave space for a block of LoRA's shrink on the same
 * multiprocessor, except with 64 rows. */
template <int NT, int STAGES_, bool BF16>
static __global__ void
__launch_bounds__(NT == 8 ? STREAM_THREADS : CU_UP_TO_SM90(1024, STREAM_THREADS), 1)
    gemm_stream_kernel(gemm_args a, int units, int halves, int x_warps)
{
    CU_SHARED(char, ring);
    cu_grid_go();
    int warp = (int)threadIdx.x / CU_WARP, lane = (int)threadIdx.x % CU_WARP;
    int n_mul = units * halves, unit0 = (int)blockIdx.x * units, rows = 8 * NT * halves;
    int w_bytes = units * UNIT * ROW_BYTES, bytes = w_bytes + rows * ROW_BYTES;
    if (warp >= n_mul + W_WARPS) {
        int t = (int)threadIdx.x - (n_mul + W_WARPS) * CU_WARP;
        copy_stream<STAGES_>(ring + w_bytes, bytes, a.k, false, [&](char *to, int k0) {
            fetch_x(to, &a, rows, k0, t, x_warps * CU_WARP / PIECES);
        });
        return;
    }
    if (warp >= n_mul) {
        const w_copies c = find_w(&a, unit0, units, (int)threadIdx.x - n_mul * CU_WARP);
        copy_stream<STAGES_>(ring, bytes, a.k, true,
                             [&](char *to, int k0) { fetch_w(to, &c, k0); });
        return;
    }
    cu_grid_wait(); /* as everybody */
    float acc[NT][4];
    CU_UNROLL
    for (int i = 0; i < NT * 4; i++) acc[i / 4][i % 4] = 0;
    const char *w = ring + warp / halves * UNIT * ROW_BYTES;
    const char *x = ring + w_bytes + warp % halves * 8 * NT * ROW_BYTES;
    int at = 0;
    for (int k0 = 0; k0 < a.k; k0 += STREAM_K) {
        meet(); /* the stage is there */
        add_stream<NT, BF16>(acc, w + at, x + at, lane);
        at = at + bytes == STAGES_ * bytes ? 0 : at + bytes;
    }
    int unit = unit0 + warp / halves, row0 = warp % halves * 8 * NT, g = lane / 4, q = lane % 4;
    if (a.gated)
        put_gates<NT>(&a, acc, row0, unit * 8 + g, q);
    else
        put_sums<NT>(&a, acc, row0, unit * UNIT + g, 8, q);
}

/* ---- launches -------------------------------------------------------------------------------- */

template <int NT, int STAGES_>
static cudaError_t setup_stages(void)
{
    cudaError_t rc = CU_ALLOW_SHARED((gemm_stream_kernel<NT, STAGES_, true>), STREAM_SHARED);
    return rc != cudaSuccess
               ? rc
               : CU_ALLOW_SHARED((gemm_stream_kernel<NT, STAGES_, false>), STREAM_SHARED);
}

template <int NT>
static cudaError_t setup_rows(void)
{
    cudaError_t rc = setup_stages<NT, SHORT_RING>();
    return rc != cudaSuccess ? rc : setup_stages<NT, RING>();
}

extern "C" cudaError_t cu_gemm_stream_setup(void)
{
    cudaError_t rc = setup_rows<2>();
    if (rc == cudaSuccess) rc = setup_rows<4>();
    if (rc == cudaSuccess) rc = setup_rows<8>();
    if (rc != cudaSuccess) (void)cudaGetLastError(); /* it is not the next launch's */
    return rc;
}

extern "C" bool gemm_stream_takes(const gemm_args *a)
{
    return a->type != DT_F32 && !a->codes.form && a->rows <= GEMM_SMALL_ROWS && a->k % 8 == 0 &&
           (!a->gated || a->n % 16 == 0) && stream_cut_of(a, 1, 0).stages > 0;
}

template <int NT, int STAGES_, bool BF16>
static void launch(cudaStream_t stream, const gemm_args *a, const stream_cut *c)
{
    dim3 block((unsigned)((c->units * c->halves + W_WARPS + c->x_warps) * CU_WARP));
    size_t shared = (size_t)STAGES_ * (size_t)c->stage;
    CU_LAUNCH_EARLY((gemm_stream_kernel<NT, STAGES_, BF16>), dim3((unsigned)c->blocks), block,
                    shared, stream, a->early, *a, c->units, c->halves, c->x_warps);
}

template <int NT, bool BF16>
static void launch_stages(cudaStream_t stream, const gemm_args *a, const stream_cut *c)
{
    if (c->stages == RING)
        launch<NT, RING, BF16>(stream, a, c);
    else
        launch<NT, SHORT_RING, BF16>(stream, a, c);
}

template <int NT>
static void launch_rows(cudaStream_t stream, const gemm_args *a, const stream_cut *c)
{
    if (a->type == DT_BF16)
        launch_stages<NT, true>(stream, a, c);
    else
        launch_stages<NT, false>(stream, a, c);
}

extern "C" void cu_gemm_stream(cudaStream_t stream, const gemm_args *a)
{
    stream_cut c = stream_cut_of(a, 1, 0);
    int tiles = c.rows / 8 / c.halves;
    if (tiles == 2)
        launch_rows<2>(stream, a, &c);
    else if (tiles == 4)
        launch_rows<4>(stream, a, &c);
    else
        launch_rows<8>(stream, a, &c);
}
