/* grouped.cu -- kernels of grouped.h: products of rows with the matrices of their experts.
 *
 * Rows are sorted by expert before these kernels run. An item is a run of at most `tile` rows of
 * one expert; a block computes some columns for one item, so its weights are read once for all
 * rows of that item. The number of items is known to the device alone (*n_item): the grid has
 * the largest possible number, and blocks beyond it return at once.
 *
 *     tile          kernel                  block                      when
 *     GROUPED_FEW   grouped_small<1>        64 columns x 8 rows        decode: few rows per expert
 *     GROUPED_SOME  grouped_small<4>        64 columns x 32 rows
 *     GROUPED_MANY  grouped_large           128 columns x 128 rows     prompts; 3 stages
 *     any           grouped_plain           one warp per value         F32; k % 8 != 0
 *
 * The order of summation is the same in the small and the large kernel: each mma adds 32 values
 * of k, chunks of GEMM_CHUNK are summed from zero, and chunks are added in order. So a row has
 * the same bits in whichever batch it stands. It is also the order of gemm.cu.
 *
 * Names, and how a lane's 16 bytes are fragments, are those of gemm.cu: g = lane / 4, q = lane %
 * 4, and a lane loads 8 consecutive k of row g.
 */
#include "engine/cuda/products/grouped.h"

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/gemm.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/products/steps.h"

enum {
    LARGE_THREADS = 256,
    TILE = GROUPED_MANY,
    TILE_K = 64, /* k of a stage */
    STAGES = 3,
    STAGE_HALF = TILE * TILE_K,
    PLAIN_WARPS = 8,
};

/* The sums of a chunk join those before. */
template <int N>
CU_INLINE void add_chunk(float (*total)[4], float (*acc)[4])
{
    CU_UNROLL
    for (int i = 0; i < N * 4; i++) {
        float *to = &total[i / 4][i % 4], *from = &acc[i / 4][i % 4];
        *to = cu_add(*to, *from);
        *from = 0;
    }
}

/* sum[nt][i] is of row row0 + 8 nt + 2q + i % 2 of the item and column col + 8 (i / 2) of the
 * matrix, whose columns begin at y0. */
template <int NT>
CU_INLINE void put_sums(const grouped_args *p, const grouped_item *it, float (*sum)[4], int row0,
                        int y0, int col, int q)
{
    CU_UNROLL
    for (int nt = 0; nt < NT; nt++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            int row = row0 + nt * 8 + 2 * q + i % 2, c = col + i / 2 * 8;
            if (row < it->n_rows && c < p->n)
                p->y[(size_t)(it->row0 + row) * (size_t)p->y_stride + (size_t)(y0 + c)] =
                    sum[nt][i];
        }
    }
}

/* ---- few rows: a warp has 16 columns and 8 NT rows; grid (columns / 64, items) --------------- */

template <int NT, bool BF16>
static __global__ void __launch_bounds__(SMALL_WARPS *CU_WARP) grouped_small_kernel(grouped_args p)
{
    if ((int)blockIdx.y >= *p.n_item) return;
    int t = (int)threadIdx.x, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int each = (p.n + 15) / 16, piece = (int)blockIdx.x * SMALL_WARPS + t / CU_WARP;
    int mat = piece / each, col = piece % each * 16 + g;
    if (mat >= p.n_mat) return; /* the whole warp */
    const grouped_item it = p.item[blockIdx.y];
    const uint16_t *w = (const uint16_t *)(mat ? p.w[1] : p.w[0])[it.group];
    const uint16_t *row_lo = col < p.n ? w + (size_t)col * (size_t)p.k : nullptr;
    const uint16_t *row_hi = col + 8 < p.n ? w + (size_t)(col + 8) * (size_t)p.k : nullptr;
    const uint16_t *x = (const uint16_t *)p.x + (size_t)it.row0 * (size_t)p.x_stride;
    float acc[NT][4] = {{0}}, total[NT][4] = {{0}};
    uint4 lo[AT_ONCE], hi[AT_ONCE], next_lo[AT_ONCE], next_hi[AT_ONCE];
    load_weights(lo, hi, row_lo, row_hi, 0, p.k, q);
    for (int k0 = 0; k0 < p.k; k0 += AT_ONCE * STEP) {
        load_weights(next_lo, next_hi, row_lo, row_hi, k0 + AT_ONCE * STEP, p.k, q);
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            int k = k0 + STEP * i + 8 * q;
            if (k0 + STEP * i >= p.k) break; /* the whole warp: no mma of zeros alone */
            CU_UNROLL
            for (int nt = 0; nt < NT; nt++) {
                int row = nt * 8 + g;
                bool in = row < it.n_rows && k < p.k;
                uint4 xv = in ? cu_ldg16(x + (size_t)row * (size_t)p.x_stride + k) : zero16();
                mma32<BF16>(acc[nt], lo[i], hi[i], xv);
            }
        }
        if ((k0 + AT_ONCE * STEP) % GEMM_CHUNK == 0) add_chunk<NT>(total, acc);
        CU_UNROLL
        for (int i = 0; i < AT_ONCE; i++) {
            lo[i] = next_lo[i];
            hi[i] = next_hi[i];
        }
    }
    if ((p.k + AT_ONCE * STEP - 1) / (AT_ONCE * STEP) * (AT_ONCE * STEP) % GEMM_CHUNK != 0)
        add_chunk<NT>(total, acc); /* the last one is no whole one */
    put_sums<NT>(&p, &it, total, 0, mat * p.n, col, q);
}

/* ---- many rows: a block has 128 columns and 128 rows, as gemm_large_kernel ------------------- */

CU_INLINE int swizzled(int row, int piece)
{
    return row * TILE_K + (piece ^ (row & 1) << 2) * 8;
}

enum { COPIES = TILE * 8 / LARGE_THREADS, COPY_ROWS = LARGE_THREADS / 8 };

/* What one thread copies of each stage: the 16 bytes with number t % 8 of rows t / 8 + 32 i, of w
 * and of x; bit i of `valid`: w has the row; bit 4 + i: x has it. */
typedef struct {
    const uint16_t *w, *x;
    uint32_t valid;
} tile_copies;

CU_INLINE void fetch_stage(uint16_t *to, const grouped_args *p, const tile_copies *cp, int k0,
                           int t)
{
    bool in = k0 + t % 8 * 8 < p->k;
    CU_UNROLL
    for (int i = 0; i < COPIES; i++) {
        int at = swizzled(t / 8 + i * COPY_ROWS, t % 8);
        bool has_w = in && cp->valid >> i & 1, has_x = in && cp->valid >> (4 + i) & 1;
        size_t row = (size_t)(i * COPY_ROWS);
        cu_cp_async16_or_zero(to + at, has_w ? cp->w + row * (size_t)p->k + k0 : cp->w, has_w);
        cu_cp_async16_or_zero(to + STAGE_HALF + at,
                              has_x ? cp->x + row * (size_t)p->x_stride + k0 : cp->x, has_x);
    }
}

/* Columns 64 (warp % 2) .. of rows 32 (warp / 2) ..: 4 by 4 pieces. */
template <bool BF16>
CU_INLINE void add_stage(float (*acc)[4], const uint16_t *stage, int warp, int g, int q, int left)
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
            for (int nt = 0; nt < 4; nt++) mma32<BF16>(acc[4 * mt + nt], lo, hi, xv[nt]);
        }
    }
}

/* Grid (columns / 128 of all matrices, items). */
template <bool BF16>
static __global__ void __launch_bounds__(LARGE_THREADS, 1) grouped_large_kernel(grouped_args p)
{
    CU_SHARED(uint16_t, stage);
    if ((int)blockIdx.y >= *p.n_item) return;
    int t = (int)threadIdx.x, warp = t / CU_WARP, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int each = (p.n + TILE - 1) / TILE, mat = (int)blockIdx.x / each;
    int col0 = (int)blockIdx.x % each * TILE, n_stage = (p.k + TILE_K - 1) / TILE_K;
    const grouped_item it = p.item[blockIdx.y];
    const uint16_t *w = (const uint16_t *)(mat ? p.w[1] : p.w[0])[it.group];
    tile_copies copies = {w, (const uint16_t *)p.x + (size_t)it.row0 * (size_t)p.x_stride, 0};
    CU_UNROLL
    for (int i = 0; i < COPIES; i++) {
        copies.valid |= (uint32_t)(col0 + t / 8 + i * COPY_ROWS < p.n) << i;
        copies.valid |= (uint32_t)(t / 8 + i * COPY_ROWS < it.n_rows) << (4 + i);
    }
    if (copies.valid & 15) copies.w += (size_t)(col0 + t / 8) * (size_t)p.k + t % 8 * 8;
    if (copies.valid >> 4) copies.x += (size_t)(t / 8) * (size_t)p.x_stride + t % 8 * 8;
    float acc[16][4] = {{0}}, total[16][4] = {{0}};
    CU_UNROLL
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_stage) fetch_stage(stage + s * 2 * STAGE_HALF, &p, &copies, s * TILE_K, t);
        cu_cp_async_commit();
    }
    for (int s = 0; s < n_stage; s++) {
        CU_CP_ASYNC_WAIT(STAGES - 2); /* this thread's part of stage s has come */
        __syncthreads();              /* all parts have, and stage s - 1 was read by all */
        int f = s + STAGES - 1;
        if (f < n_stage)
            fetch_stage(stage + f % STAGES * 2 * STAGE_HALF, &p, &copies, f * TILE_K, t);
        cu_cp_async_commit();
        add_stage<BF16>(acc, stage + s % STAGES * 2 * STAGE_HALF, warp, g, q, p.k - s * TILE_K);
        if ((s + 1) * TILE_K % GEMM_CHUNK == 0 || s + 1 == n_stage) add_chunk<16>(total, acc);
    }
    CU_UNROLL
    for (int mt = 0; mt < 4; mt++)
        put_sums<4>(&p, &it, total + 4 * mt, warp / 2 * 32, mat * p.n,
                    col0 + warp % 2 * 64 + mt * 16 + g, q);
}

/* ---- any type, any width: a warp sums one value; grid (columns / 8 of all matrices, rows) ---- */

CU_INLINE float value_of(const void *p, dtype type, size_t i)
{
    if (type == DT_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == DT_BF16 ? cu_f32_of_bf16(h) : cu_f32_of_f16(h);
}

static __global__ void __launch_bounds__(PLAIN_WARPS *CU_WARP) grouped_plain_kernel(grouped_args p)
{
    int lane = (int)threadIdx.x % CU_WARP, row = (int)blockIdx.y;
    int at = (int)blockIdx.x * PLAIN_WARPS + (int)threadIdx.x / CU_WARP;
    int mat = at / p.n, col = at % p.n;
    if (row >= *p.n_rows || mat >= p.n_mat) return; /* the whole warp */
    const void *w = (mat ? p.w[1] : p.w[0])[p.group_of[row]];
    float sum = 0;
    for (int k = lane; k < p.k; k += CU_WARP) {
        float wv = value_of(w, p.type, (size_t)col * (size_t)p.k + (size_t)k);
        float xv = value_of(p.x, p.type, (size_t)row * (size_t)p.x_stride + (size_t)k);
        sum = cu_fma(wv, xv, sum);
    }
    for (int d = CU_WARP / 2; d > 0; d /= 2) sum = cu_add(sum, cu_shfl_xor_f32(sum, d));
    if (lane == 0) p.y[(size_t)row * (size_t)p.y_stride + (size_t)at] = sum;
}

/* ---- launches -------------------------------------------------------------------------------- */

extern "C" int grouped_items(int rows, int n_group, int tile)
{
    return (rows < n_group ? rows : n_group) + rows / tile;
}

template <int NT, bool BF16>
static void launch_small(cudaStream_t stream, const grouped_args *p, unsigned items)
{
    unsigned pieces = (unsigned)(p->n_mat * ((p->n + 15) / 16));
    CU_LAUNCH((grouped_small_kernel<NT, BF16>),
              dim3((pieces + SMALL_WARPS - 1) / SMALL_WARPS, items), dim3(SMALL_WARPS * CU_WARP), 0,
              stream, *p);
}

template <bool BF16>
static void launch_type(cudaStream_t stream, const grouped_args *p)
{
    unsigned items = (unsigned)grouped_items(p->rows, p->n_group, p->tile);
    if (p->tile == GROUPED_FEW)
        launch_small<1, BF16>(stream, p, items);
    else if (p->tile == GROUPED_SOME)
        launch_small<4, BF16>(stream, p, items);
    else
        CU_LAUNCH(grouped_large_kernel<BF16>,
                  dim3((unsigned)(p->n_mat * ((p->n + TILE - 1) / TILE)), items),
                  dim3(LARGE_THREADS), STAGES * 2 * STAGE_HALF * sizeof(uint16_t), stream, *p);
}

extern "C" cudaError_t cu_grouped(cudaStream_t stream, const grouped_args *p)
{
    if (p->rows <= 0 || p->n <= 0) return cudaSuccess;
    if (p->k <= 0 || p->x_stride < p->k || p->y_stride < p->n_mat * p->n)
        return cudaErrorInvalidValue;
    if (p->type == DT_F32 || p->k % 8 != 0) {
        unsigned values = (unsigned)(p->n_mat * p->n);
        CU_LAUNCH(grouped_plain_kernel,
                  dim3((values + PLAIN_WARPS - 1) / PLAIN_WARPS, (unsigned)p->rows),
                  dim3(PLAIN_WARPS * CU_WARP), 0, stream, *p);
    } else if (p->type == DT_BF16) {
        launch_type<true>(stream, p);
    } else {
        launch_type<false>(stream, p);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t cu_grouped_setup(void)
{
    size_t bytes = STAGES * 2 * STAGE_HALF * sizeof(uint16_t);
    cudaError_t rc = CU_ALLOW_SHARED(grouped_large_kernel<true>, bytes);
    return rc != cudaSuccess ? rc : CU_ALLOW_SHARED(grouped_large_kernel<false>, bytes);
}
