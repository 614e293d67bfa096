/* gemm.cu -- kernels of gemm.h.
 *
 * Names: g = lane / 4 and q = lane % 4 as in intrin.h.  A lane loads 8 consecutive k of row g; as
 * registers {x, y, z, w} they are k-pairs q and q + 4 of two mma: x and y of the first, z and w of
 * the second.  Weights and rows are permuted alike, so sums are over the same 32 k.
 *
 * Held to its oracle by tests/emu/test_gemm.cu.
 */
#include "engine/cuda/products/gemm.h"

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"

enum {
    SMALL_WARPS = 4,
    SMALL_COLS = SMALL_WARPS * 16, /* of a block */
    STEP = 32,                     /* k of two mma */
    AT_ONCE = 4,                   /* steps whose weights are on their way together */
    LARGE_THREADS = 256,
    TILE = 128,  /* rows and columns of a block of the large kernel */
    TILE_K = 64, /* k of a stage */
    STAGES = 3,  /* of the large kernel */
    STAGE_HALF = TILE * TILE_K,
    F32_WARPS = 8,
    GROUP = 8, /* tiles of columns that are walked together: their weights stay in the cache */
};

template <bool BF16>
CU_INLINE void mma32(float *d, uint4 lo, uint4 hi, uint4 x)
{
    uint32_t a0[4] = {lo.x, hi.x, lo.y, hi.y}, b0[2] = {x.x, x.y};
    uint32_t a1[4] = {lo.z, hi.z, lo.w, hi.w}, b1[2] = {x.z, x.w};
    if (BF16) {
        cu_mma_bf16_k16(d, a0, b0);
        cu_mma_bf16_k16(d, a1, b1);
    } else {
        cu_mma_f16_k16(d, a0, b0);
        cu_mma_f16_k16(d, a1, b1);
    }
}

CU_INLINE uint4 zero16()
{
    return make_uint4(0, 0, 0, 0);
}

CU_INLINE int chunks_of(int k)
{
    return (k + GEMM_CHUNK - 1) / GEMM_CHUNK;
}

/* ---- few rows ----------------------------------------------------------------------------------
 * A warp: 16 columns of y (rows of w), 8 NT rows. */

/* The weights of AT_ONCE steps from k0 on; zeros from `end` on, and where there is no column. */
CU_INLINE void load_weights(uint4 *lo, uint4 *hi, const uint16_t *row_lo, const uint16_t *row_hi,
                            int k0, int end, int q)
{
    CU_UNROLL
    for (int i = 0; i < AT_ONCE; i++) {
        int k = k0 + STEP * i + 8 * q;
        lo[i] = row_lo && k < end ? cu_ldg16_once(row_lo + k) : zero16();
        hi[i] = row_hi && k < end ? cu_ldg16_once(row_hi + k) : zero16();
    }
}

/* acc = the sums of one chunk. */
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
                uint4 xv = in ? cu_ldg16(x + (size_t)row * (size_t)a->k + k) : zero16();
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

/* Where column `col` of the sums goes. */
CU_INLINE int place_of(const gemm_args *a, int col)
{
    return a->place && col < a->n ? a->place[col] : col;
}

CU_INLINE void put_value(const gemm_args *a, int row, int col, int place, float sum)
{
    size_t at = (size_t)row * (size_t)a->stride + (size_t)place;
    if (a->bias) sum = cu_add(sum, a->bias[col]);
    if (a->res) sum = cu_add(sum, a->res[at]);
    a->y[at] = sum;
}

/* sum[nt][i] is of row row0 + 8 nt + 2q + i % 2 and column col + 8 (i / 2).  To `plane` as it is,
 * or, where that is NULL, to y. */
template <int NT>
CU_INLINE void put_sums(const gemm_args *a, float *plane, float (*sum)[4], int row0, int col, int q)
{
    const int place[2] = {place_of(a, col), place_of(a, col + 8)};
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            int row = row0 + nt * 8 + 2 * q + i % 2, c = col + i / 2 * 8;
            if (row >= a->rows || c >= a->n) continue;
            if (plane)
                plane[(size_t)row * (size_t)a->n + (size_t)c] = sum[nt][i];
            else
                put_value(a, row, c, place[i / 2], sum[nt][i]);
        }
    }
}

/* Grid (column groups, chunks or 1). */
template <int NT, bool BF16>
static __global__ void __launch_bounds__(SMALL_WARPS *CU_WARP, 1)
    gemm_small_kernel(gemm_args a, float *partial, uint32_t *ticket)
{
    CU_STATIC_SHARED(uint32_t, turn, 1);
    int t = (int)threadIdx.x, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int col = (int)blockIdx.x * SMALL_COLS + t / CU_WARP * 16 + g, n_chunk = chunks_of(a.k);
    const uint16_t *w = (const uint16_t *)a.w;
    const uint16_t *lo = col < a.n ? w + (size_t)col * (size_t)a.k : nullptr;
    const uint16_t *hi = col + 8 < a.n ? w + (size_t)(col + 8) * (size_t)a.k : nullptr;
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
        put_sums<NT>(&a, nullptr, total, 0, col, q);
        return;
    }
    size_t plane = (size_t)a.rows * (size_t)a.n;
    sum_chunk<NT, BF16>(acc, &a, lo, hi, (int)blockIdx.y, g, q);
    put_sums<NT>(&a, partial + (size_t)blockIdx.y * plane, acc, 0, col, q);
    cu_threadfence(); /* these sums, before the count */
    __syncthreads();  /* of all warps */
    if (t == 0) turn[0] = cu_atomic_add_u32(&ticket[blockIdx.x], 1);
    __syncthreads(); /* the block's turn is known */
    if (turn[0] + 1 < (uint32_t)n_chunk) return;
    cu_threadfence(); /* the count, before the others' sums */
    int first = (int)blockIdx.x * SMALL_COLS;
    for (int i = t; i < a.rows * SMALL_COLS; i += SMALL_WARPS * CU_WARP) {
        int row = i / SMALL_COLS, c = first + i % SMALL_COLS;
        if (c >= a.n) continue;
        const float *from = partial + (size_t)row * (size_t)a.n + (size_t)c;
        float sum = 0;
        for (int k = 0; k < n_chunk; k++) sum = cu_add(sum, cu_ld_fresh(from + (size_t)k * plane));
        put_value(&a, row, c, place_of(&a, c), sum);
    }
    if (t == 0) ticket[blockIdx.x] = 0; /* for the next product */
}

/* ---- many rows ---------------------------------------------------------------------------------
 * A block: 128 columns by 128 rows, 8 warps of 64 columns by 32 rows.  A stage is w [128][64 k],
 * then x [128][64 k]; pieces of 16 bytes change halves in odd rows, so that the 8 lanes of a phase
 * of a shared load meet all banks. */

CU_INLINE int swizzled(int row, int piece)
{
    return row * TILE_K + (piece ^ (row & 1) << 2) * 8;
}

/* What one thread copies of each stage: the 16 bytes with number t % 8 of rows t / 8 + 32 i, of w
 * and of x. */
typedef struct {
    const uint16_t *w, *x; /* of i = 0 */
    uint32_t valid;        /* bit i: w has the row; bit 4 + i: x has it */
} tile_copies;

enum { COPIES = TILE * 8 / LARGE_THREADS, COPY_ROWS = LARGE_THREADS / 8 };

CU_INLINE tile_copies find_copies(const gemm_args *a, int col0, int row0, int t)
{
    tile_copies cp = {(const uint16_t *)a->w + (size_t)(col0 + t / 8) * (size_t)a->k + t % 8 * 8,
                      (const uint16_t *)a->x + (size_t)(row0 + t / 8) * (size_t)a->k + t % 8 * 8,
                      0};
    CU_UNROLL
    for (int i = 0; i < COPIES; i++) {
        cp.valid |= (uint32_t)(col0 + t / 8 + i * COPY_ROWS < a->n) << i;
        cp.valid |= (uint32_t)(row0 + t / 8 + i * COPY_ROWS < a->rows) << (4 + i);
    }
    return cp;
}

/* The 64 k from k0 on, zeros from the end on. */
CU_INLINE void fetch_stage(uint16_t *to, const gemm_args *a, const tile_copies *cp, int k0, int t)
{
    bool in = k0 + t % 8 * 8 < a->k;
    size_t apart = (size_t)COPY_ROWS * (size_t)a->k;
    const uint16_t *w = cp->w + k0, *x = cp->x + k0;
    CU_UNROLL
    for (int i = 0; i < COPIES; i++, w += apart, x += apart) {
        int at = swizzled(t / 8 + i * COPY_ROWS, t % 8);
        bool has_w = in && cp->valid >> i & 1, has_x = in && cp->valid >> (4 + i) & 1;
        cu_cp_async16_or_zero(to + at, has_w ? w : (const uint16_t *)a->w, has_w);
        cu_cp_async16_or_zero(to + STAGE_HALF + at, has_x ? x : (const uint16_t *)a->x, has_x);
    }
}

/* Columns 64 (warp % 2) .. of rows 32 (warp / 2) ..: 4 by 4 pieces. */
template <bool BF16>
CU_INLINE void add_stage(float (*acc)[4][4], const uint16_t *stage, int warp, int g, int q,
                         int left)
{
    const uint16_t *w = stage, *x = stage + STAGE_HALF;
    CU_UNROLL_BY(1) /* more takes registers that the sums need */
    for (int i = 0; i < TILE_K / STEP; i++) {
        if (i * STEP >= left) break;
        uint4 xv[4];
        CU_UNROLL
        for (int nt = 0; nt < 4; nt++)
            xv[nt] = cu_ld16(x + swizzled(warp / 2 * 32 + nt * 8 + g, 4 * i + q));
        CU_UNROLL
        for (int mt = 0; mt < 4; mt++) {
            int r = warp % 2 * 64 + mt * 16 + g;
            uint4 lo = cu_ld16(w + swizzled(r, 4 * i + q));
            uint4 hi = cu_ld16(w + swizzled(r + 8, 4 * i + q));
            CU_UNROLL
            for (int nt = 0; nt < 4; nt++) mma32<BF16>(acc[mt][nt], lo, hi, xv[nt]);
        }
    }
}

/* Where a block's tile lies: groups of GROUP tiles of columns, rows inside, columns innermost. */
CU_INLINE void place_tile(const gemm_args *a, int block, int *col0, int *row0)
{
    int n_col = (a->n + TILE - 1) / TILE, n_row = (a->rows + TILE - 1) / TILE;
    int group = block / (GROUP * n_row), rest = block % (GROUP * n_row);
    int wide = n_col - group * GROUP < GROUP ? n_col - group * GROUP : GROUP;
    *col0 = (group * GROUP + rest % wide) * TILE;
    *row0 = rest / wide * TILE;
}

template <bool BF16>
static __global__ void __launch_bounds__(LARGE_THREADS, 1) gemm_large_kernel(gemm_args a)
{
    CU_SHARED(uint16_t, stage);
    int t = (int)threadIdx.x, warp = t / CU_WARP, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int col0, row0, n_stage = (a.k + TILE_K - 1) / TILE_K;
    place_tile(&a, (int)blockIdx.x, &col0, &row0);
    const tile_copies copies = find_copies(&a, col0, row0, t);
    float acc[4][4][4], total[4][4][4] = {{{0}}};
    CU_UNROLL
    for (int i = 0; i < 64; i++) acc[i / 16][i / 4 % 4][i % 4] = 0;
    CU_UNROLL
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_stage) fetch_stage(stage + s * 2 * STAGE_HALF, &a, &copies, s * TILE_K, t);
        cu_cp_async_commit();
    }
    for (int s = 0; s < n_stage; s++) {
        CU_CP_ASYNC_WAIT(STAGES - 2); /* this thread's part of stage s has come */
        __syncthreads();              /* all parts have, and stage s - 1 was read by all */
        int f = s + STAGES - 1;
        if (f < n_stage)
            fetch_stage(stage + f % STAGES * 2 * STAGE_HALF, &a, &copies, f * TILE_K, t);
        cu_cp_async_commit();
        add_stage<BF16>(acc, stage + s % STAGES * 2 * STAGE_HALF, warp, g, q, a.k - s * TILE_K);
        int end = (s + 1) * TILE_K;
        if (end % GEMM_CHUNK != 0 && s + 1 < n_stage) continue;
        CU_UNROLL
        for (int i = 0; i < 64; i++) {
            float *to = &total[i / 16][i / 4 % 4][i % 4], *from = &acc[i / 16][i / 4 % 4][i % 4];
            *to = cu_add(*to, *from);
            *from = 0;
        }
    }
    CU_UNROLL
    for (int mt = 0; mt < 4; mt++) {
        int col = col0 + warp % 2 * 64 + mt * 16 + g;
        put_sums<4>(&a, nullptr, total[mt], row0 + warp / 2 * 32, col, q);
    }
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

static int column_groups(int n)
{
    return (n + SMALL_COLS - 1) / SMALL_COLS;
}

/* Whether blocks of whole columns fill the device; they need no tickets then. */
static bool fills(int n, int n_sm)
{
    return column_groups(n) >= 2 * n_sm;
}

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
    const int bytes = STAGES * 2 * STAGE_HALF * (int)sizeof(uint16_t);
    cudaError_t rc = CU_ALLOW_SHARED(gemm_large_kernel<true>, bytes);
    return rc != cudaSuccess ? rc : CU_ALLOW_SHARED(gemm_large_kernel<false>, bytes);
}

template <int NT, bool BF16>
static void launch_small(cudaStream_t stream, const gemm_args *a)
{
    bool split = a->scratch && gemm_scratch_bytes(a->n, a->k, a->n_sm) > 0;
    dim3 grid((unsigned)column_groups(a->n),
              split ? (unsigned)((a->k + GEMM_CHUNK - 1) / GEMM_CHUNK) : 1);
    float *partial = split ? (float *)((char *)a->scratch + gemm_ticket_bytes(a->n_sm)) : nullptr;
    CU_LAUNCH((gemm_small_kernel<NT, BF16>), grid, dim3(SMALL_WARPS * CU_WARP), 0, stream, *a,
              partial, (uint32_t *)a->scratch);
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
    } else {
        unsigned tiles =
            (unsigned)((a->n + TILE - 1) / TILE) * (unsigned)((a->rows + TILE - 1) / TILE);
        CU_LAUNCH(gemm_large_kernel<BF16>, dim3(tiles), dim3(LARGE_THREADS),
                  STAGES * 2 * STAGE_HALF * sizeof(uint16_t), stream, *a);
    }
}

extern "C" cudaError_t cu_gemm(cudaStream_t stream, const gemm_args *args)
{
    if (args->rows <= 0 || args->n <= 0) return cudaSuccess;
    bool whole = args->type == DT_F32 || args->k % 8 == 0;
    if (args->k <= 0 || !whole || (!args->place && args->stride < args->n))
        return cudaErrorInvalidValue;
    if (args->type == DT_F32)
        CU_LAUNCH(gemm_f32_kernel,
                  dim3((unsigned)((args->n + F32_WARPS - 1) / F32_WARPS), (unsigned)args->rows),
                  dim3(F32_WARPS * CU_WARP), 0, stream, *args);
    else if (args->type == DT_BF16)
        launch_type<true>(stream, args);
    else
        launch_type<false>(stream, args);
    return cudaGetLastError();
}
