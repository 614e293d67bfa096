/* gemm.cu -- kernels of gemm.h: y = x W^T with F32, F16 or BF16 weights.
 *
 * Decode steps have few rows and are bound by the bandwidth of the weights: gemm_small_kernel
 * reads each weight once, straight into registers (cu_ldg16_once(), two blocks of BLOCK_K
 * ahead), and multiplies it with all rows. A warp has 16 columns and one or more chunks of k;
 * the warps' sums are added in a fixed order. Prompts have many rows and are bound by
 * arithmetic: gemm_large_kernel copies tiles of both matrices into shared memory in stages
 * (gemm_inside.h).
 *
 * Both add in the same order: 32 values of k per mma, chunks of GEMM_CHUNK from zero, chunks in
 * order. So the result of a row does not depend on the number of rows.
 *
 * Launches may begin before the one before has ended (cu_grid_go(), cu_grid_wait()): weights are
 * constants, so their loads start at once; only x is waited for.
 *
 * Held to its oracle by tests/emu/test_gemm.cu.
 */
#include "engine/cuda/products/gemm.h"

#include "engine/cuda/products/gemm_inside.h"

enum { F32_WARPS = 8 };

/* ---- few rows -------------------------------------------------------------------------------- */

enum { BLOCK_K = AT_ONCE * STEP };

/* A lane's weights of BLOCK_K k: of its first and its second row. */
struct plain_block {
    uint4 lo[AT_ONCE], hi[AT_ONCE];

    CU_INLINE_METHOD void load(const uint16_t *row_lo, const uint16_t *row_hi)
    {
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            lo[i] = cu_ldg16_once(row_lo + STEP * i);
            hi[i] = cu_ldg16_once(row_hi + STEP * i);
        }
    }

    /* acc += the sums over the first `left` of its k.  The lane's rows have them `at` behind x. */
    template <int NT, bool BF16, bool WHOLE>
    CU_INLINE_METHOD void add(float (*acc)[4], const uint16_t *const *x, int at, int left,
                              int q) const
    {
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            if (!WHOLE && STEP * i >= left) break; /* the whole warp: no mma of zeros alone */
            CU_UNROLL
            for (int nt = 0; nt < NT; nt++) {
                bool in = WHOLE || STEP * i + 8 * q < left;
                mma32<BF16>(acc[nt], lo[i], hi[i], in ? cu_ld16(x[nt] + at + STEP * i) : zero16());
            }
        }
    }
};

/* acc = the sums of one chunk, whose weights of the lane's two rows begin at lo and hi.  The first
 * are on their way before the launches before have ended, which made x. */
template <int NT, bool BF16>
CU_INLINE void sum_chunk(float (*acc)[4], const gemm_args *a, const uint16_t *lo,
                         const uint16_t *hi, int chunk, int g, int q)
{
    int begin = chunk * GEMM_CHUNK;
    int left = a->k - begin < GEMM_CHUNK ? a->k - begin : (int)GEMM_CHUNK;
    const uint16_t *x[NT];
    plain_block b, next;
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        int row = nt * 8 + g < a->rows ? nt * 8 + g : a->rows - 1;
        x[nt] = (const uint16_t *)a->x + (size_t)row * (size_t)a->k + begin + 8 * q;
        acc[nt][0] = acc[nt][1] = acc[nt][2] = acc[nt][3] = 0;
    }
    if (left >= BLOCK_K) b.load(lo, hi);
    cu_grid_wait();
    CU_UNROLL_BY(1)
    while (left >= BLOCK_K) {
        if (left >= 2 * BLOCK_K) next.load(lo + BLOCK_K, hi + BLOCK_K);
        b.template add<NT, BF16, true>(acc, x, 0, BLOCK_K, q);
        if (left < 2 * BLOCK_K) break;
        if (left >= 3 * BLOCK_K) b.load(lo + 2 * BLOCK_K, hi + 2 * BLOCK_K);
        next.template add<NT, BF16, true>(acc, x, BLOCK_K, BLOCK_K, q);
        left -= 2 * BLOCK_K;
        lo += 2 * BLOCK_K;
        hi += 2 * BLOCK_K;
        CU_UNROLL
        for (int nt = 0; nt < NT; nt++) x[nt] += 2 * BLOCK_K;
    }
    int done = left / BLOCK_K * BLOCK_K;
    left -= done;
    if (left == 0) return;
    CU_UNROLL
    for (int i = 0; i < AT_ONCE; i++) {
        bool in = STEP * i + 8 * q < left;
        b.lo[i] = in ? cu_ldg16_once(lo + done + STEP * i) : zero16();
        b.hi[i] = in ? cu_ldg16_once(hi + done + STEP * i) : zero16();
    }
    b.template add<NT, BF16, false>(acc, x, done, left, q);
}

/* Grid: groups of columns. */
template <int NT, bool BF16>
static __global__ void __launch_bounds__(SMALL_WARPS *CU_WARP, 1)
    gemm_small_kernel(gemm_args a, int split)
{
    CU_STATIC_SHARED(float, kept, SMALL_WARPS *NT *CU_WARP * 4);
    cu_grid_go();
    int lane = (int)threadIdx.x % CU_WARP, g = lane / 4, q = lane % 4;
    const few_warp warp = few_of(split);
    /* The last column stands for those behind it, whose sums go nowhere. */
    int col = few_column(&a, &warp, warp.cols, g), up = col + columns_apart(&a), last = a.n - 1;
    size_t lo = (size_t)(col < last ? col : last), hi = (size_t)(up < last ? up : last);
    const uint16_t *w = (const uint16_t *)a.w + 8 * q;
    multiply_few<NT>(&a, &warp, kept, [&](float(*acc)[4], int chunk) {
        const uint16_t *from = w + (size_t)chunk * GEMM_CHUNK;
        sum_chunk<NT, BF16>(acc, &a, from + lo * (size_t)a.k, from + hi * (size_t)a.k, chunk, g, q);
    });
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

extern "C" cudaError_t cu_gemm_setup(void)
{
    cudaError_t rc = CU_ALLOW_SHARED(gemm_large_kernel<true>, LARGE_SHARED);
    if (rc == cudaSuccess) rc = CU_ALLOW_SHARED(gemm_large_kernel<false>, LARGE_SHARED);
    return rc != cudaSuccess ? rc : cu_gemm_codes_setup();
}

template <int NT, bool BF16>
static void launch_small(cudaStream_t stream, const gemm_args *a)
{
    int split = few_split(a);
    CU_LAUNCH_EARLY((gemm_small_kernel<NT, BF16>), dim3(few_blocks(a, split)),
                    dim3(few_threads(split)), 0, stream, a->early, *a, split);
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
    if (args->stream && !gemm_stream_takes(args)) return cudaErrorInvalidValue;
    if (args->stream)
        cu_gemm_stream(stream, args);
    else if (args->type == DT_F32)
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
