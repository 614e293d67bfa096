/* gemm.cu -- kernels of gemm.h.
 *
 * Held to its oracle by tests/emu/test_gemm.cu.
 */
#include "engine/cuda/products/gemm.h"

#include "engine/cuda/products/gemm_inside.h"

enum { F32_WARPS = 8 };

/* ---- few rows ----------------------------------------------------------------------------------
 * A warp: 16 columns of y (rows of w), 8 NT rows. */

/* acc = the sums of one chunk.  Its first weights are on their way before the launches before have
 * ended, which made x. */
template <int NT, bool BF16>
CU_INLINE void sum_chunk(float (*acc)[4], const gemm_args *a, const uint16_t *row_lo,
                         const uint16_t *row_hi, int chunk, int g, int q)
{
    int begin = chunk * GEMM_CHUNK;
    int end = begin + GEMM_CHUNK < a->k ? begin + GEMM_CHUNK : a->k;
    const uint16_t *x = (const uint16_t *)a->x;
    uint4 lo[AT_ONCE], hi[AT_ONCE], next_lo[AT_ONCE], next_hi[AT_ONCE];
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) acc[nt][0] = acc[nt][1] = acc[nt][2] = acc[nt][3] = 0;
    load_weights(lo, hi, row_lo, row_hi, begin, end, q);
    cu_grid_wait();
    for (int k0 = begin; k0 < end; k0 += AT_ONCE * STEP) {
        load_weights(next_lo, next_hi, row_lo, row_hi, k0 + AT_ONCE * STEP, end, q);
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            int k = k0 + STEP * i + 8 * q;
            if (k0 + STEP * i >= end) break; /* the whole warp: no mma of zeros alone */
            CU_UNROLL
            for (int nt = 0; nt < NT; nt++) {
                int row = nt * 8 + g;
                bool in = row < a->rows && k < end;
                uint4 xv = in ? cu_ld16(x + (size_t)row * (size_t)a->k + k) : zero16();
                mma32<BF16>(acc[nt], lo[i], hi[i], xv);
            }
        }
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            lo[i] = next_lo[i];
            hi[i] = next_hi[i];
        }
    }
}

/* Grid (column groups, chunks or 1). */
template <int NT, bool BF16>
static __global__ void __launch_bounds__(SMALL_WARPS *CU_WARP, 1)
    gemm_small_kernel(gemm_args a, float *partial, uint32_t *ticket)
{
    CU_STATIC_SHARED(uint32_t, turn, 1);
    cu_grid_go();
    int t = (int)threadIdx.x, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int apart = columns_apart(&a), first = (int)blockIdx.x * SMALL_COLS, n_chunk = chunks_of(a.k);
    int col = a.gated ? first / 2 + t / CU_WARP * 8 + g : first + t / CU_WARP * 16 + g;
    bool has = !a.gated || col < apart; /* else it is one of up's, and somebody else's */
    const uint16_t *w = (const uint16_t *)a.w;
    const uint16_t *lo = has && col < a.n ? w + (size_t)col * (size_t)a.k : nullptr;
    const uint16_t *hi =
        has && col + apart < a.n ? w + (size_t)(col + apart) * (size_t)a.k : nullptr;
    float acc[NT][4];
    if (!partial) {
        float total[NT][4];
        CU_UNROLL
        for (int i = 0; i < NT * 4; i++) total[i / 4][i % 4] = 0;
        for (int c = 0; c < n_chunk; c++) {
            sum_chunk<NT, BF16>(acc, &a, lo, hi, c, g, q);
            CU_UNROLL
            for (int i = 0; i < NT * 4; i++) {
                float *to = &total[i / 4][i % 4], sum = acc[i / 4][i % 4];
                *to = cu_add(*to, sum);
            }
        }
        if (a.gated)
            put_gates<NT>(&a, total, col, q);
        else
            put_sums<NT>(&a, nullptr, total, 0, col, apart, q);
        return;
    }
    sum_chunk<NT, BF16>(acc, &a, lo, hi, (int)blockIdx.y, g, q);
    add_split<NT>(&a, acc, partial, ticket, turn, col, has, q);
}

/* Weights as they lie in memory: copied into the stages while tensor cores work.  Thread t has
 * piece t % 8 of columns t / 8 + 32 i. */
struct plain_tile {
    const uint16_t *w; /* of i = 0 */
    uint32_t valid;    /* bit i: there is such a column */

    CU_INLINE_METHOD void find(const gemm_args *a, int col0, int t)
    {
        w = (const uint16_t *)a->w + (size_t)(col0 + t / 8) * (size_t)a->k + t % 8 * 8;
        valid = rows_there(col0 + t / 8, a->n);
    }

    CU_INLINE_METHOD void fetch(uint16_t *to, const gemm_args *a, int k0, int t)
    {
        size_t apart = (size_t)COPY_ROWS * (size_t)a->k;
        bool in = k0 + t % 8 * 8 < a->k;
        const uint16_t *from = w + k0;
        CU_UNROLL
        for (int i = 0; i < COPIES; i++, from += apart) {
            bool has = in && valid >> i & 1;
            cu_cp_async16_or_zero(to + swizzled(t / 8 + i * COPY_ROWS, t % 8),
                                  has ? from : (const uint16_t *)a->w, has);
        }
    }

    CU_INLINE_METHOD void put(uint16_t *, const gemm_args *, int, int)
    {
    }
};

template <bool BF16>
static __global__ void __launch_bounds__(LARGE_THREADS, 1) gemm_large_kernel(gemm_args a)
{
    multiply_tiles<BF16, plain_tile>(&a);
}

/* ---- F32 ---------------------------------------------------------------------------------------
 * A warp sums one value: lane l k = l, l + 32 ..., then the lanes by halves.
 * Grid (columns / 8, rows). */
static __global__ void __launch_bounds__(F32_WARPS *CU_WARP) gemm_f32_kernel(gemm_args a)
{
    int lane = (int)threadIdx.x % CU_WARP, row = (int)blockIdx.y;
    int col = (int)blockIdx.x * F32_WARPS + (int)threadIdx.x / CU_WARP;
    if (col >= a.n) return; /* the whole warp */
    const float *w = (const float *)a.w + (size_t)col * (size_t)a.k;
    const float *x = (const float *)a.x + (size_t)row * (size_t)a.k;
    float sum = 0;
    for (int k = lane; k < a.k; k += CU_WARP) sum = cu_fma(w[k], x[k], sum);
    sum = cu_warp_sum(sum);
    if (lane == 0) put_value(&a, row, col, place_of(&a, col), sum);
}

/* ---- launches -------------------------------------------------------------------------------- */

extern "C" size_t gemm_ticket_bytes(int n_sm)
{
    return ((size_t)2 * (size_t)n_sm * sizeof(uint32_t) + 255) / 256 * 256;
}

extern "C" size_t gemm_scratch_bytes(int n, int k, int n_sm)
{
    size_t chunks = (size_t)((k + GEMM_CHUNK - 1) / GEMM_CHUNK);
    if (chunks == 1 || fills(n, n_sm)) return 0;
    return gemm_ticket_bytes(n_sm) + chunks * GEMM_SMALL_ROWS * (size_t)n * sizeof(float);
}

extern "C" cudaError_t cu_gemm_setup(void)
{
    cudaError_t rc = CU_ALLOW_SHARED(gemm_large_kernel<true>, LARGE_SHARED);
    if (rc == cudaSuccess) rc = CU_ALLOW_SHARED(gemm_large_kernel<false>, LARGE_SHARED);
    return rc != cudaSuccess ? rc : cu_gemm_codes_setup();
}

template <int NT, bool BF16>
static void launch_small(cudaStream_t stream, const gemm_args *a)
{
    few_launch l = few_launch_of(a);
    CU_LAUNCH_EARLY((gemm_small_kernel<NT, BF16>), l.grid, dim3(SMALL_WARPS * CU_WARP), 0, stream,
                    a->early, *a, l.partial, (uint32_t *)a->scratch);
}

template <bool BF16>
static void launch_type(cudaStream_t stream, const gemm_args *a)
{
    if (a->rows <= 8) {
        launch_small<1, BF16>(stream, a);
    } else if (a->rows <= 16) {
        launch_small<2, BF16>(stream, a);
    } else if (a->rows <= 32) {
        launch_small<4, BF16>(stream, a);
    } else if (a->rows <= GEMM_SMALL_ROWS) {
        launch_small<8, BF16>(stream, a);
    } else if (a->wide && gemm_wide_takes(a)) {
        cu_gemm_wide(stream, a);
    } else {
        CU_LAUNCH(gemm_large_kernel<BF16>, dim3(tiles_of(a)), dim3(LARGE_THREADS), LARGE_SHARED,
                  stream, *a);
    }
}

extern "C" cudaError_t cu_gemm(cudaStream_t stream, const gemm_args *args)
{
    if (args->rows <= 0 || args->n <= 0) return cudaSuccess;
    bool whole = args->type == DT_F32 || args->k % 8 == 0;
    if (args->k <= 0 || !whole || (!args->place && !args->gated && args->stride < args->n))
        return cudaErrorInvalidValue;
    bool gates = args->rows <= GEMM_SMALL_ROWS || (args->wide && gemm_wide_takes(args));
    if (args->gated && (args->type != DT_BF16 || args->n % 2 || !gates || args->bias || args->res ||
                        args->place || (args->codes.form && args->n / 2 % GEMM_PANEL)))
        return cudaErrorInvalidValue;
    if (args->type == DT_F32)
        CU_LAUNCH(gemm_f32_kernel,
                  dim3((unsigned)((args->n + F32_WARPS - 1) / F32_WARPS), (unsigned)args->rows),
                  dim3(F32_WARPS * CU_WARP), 0, stream, *args);
    else if (args->codes.form)
        cu_gemm_codes(stream, args);
    else if (args->type == DT_BF16)
        launch_type<true>(stream, args);
    else
        launch_type<false>(stream, args);
    return cudaGetLastError();
}
