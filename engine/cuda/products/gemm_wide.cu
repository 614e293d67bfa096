/* gemm_wide.cu -- products of many rows on sm_90, by wgmma (gemm.h).
 *
 * Summation order: that of gemm.h.  One mma.sync of the other kernels adds 16 products of a step of
 * 32 k: the first halves of four pieces of 16 bytes, then the second ones (steps.h).  So copies
 * into shared memory have 8 bytes each and put these side by side; wgmma then adds the same 16
 * products to the same sum.
 *
 * That both instructions round alike was observed (arXiv 2511.10909: on Hopper a sum of 17 terms,
 * aligned and truncated 25 bits behind the point) but is promised by no manual.  blas.c compares
 * the bits on the device before it takes this kernel for a shape.
 *
 * A block computes WIDE_ROWS x WIDE_COLS with two warpgroups, each half of the rows.  Stages of
 * TILE_K k are in a ring of WIDE_STAGES: one is read, the one before may still be in use, the
 * others arrive.
 *
 * Compared with the other kernels by tests/emu/test_gemm.cu.
 */
#include "engine/cuda/products/gemm_inside.h"
#include "engine/cuda/products/wgmma.h"

enum {
    WIDE_THREADS = 256,
    WIDE_ROWS = 2 * WGMMA_M, /* of x, a warpgroup has half of them */
    WIDE_COLS = WGMMA_N,
    WIDE_STAGES = 5,
    CHUNK_STAGES = GEMM_CHUNK / TILE_K,
    AHEAD = WIDE_STAGES - 2, /* one is read, and the one before it may still be */
    X_BYTES = WIDE_ROWS * WGMMA_ROW,
    WIDE_BYTES = X_BYTES + WIDE_COLS * WGMMA_ROW, /* of a stage */
    WIDE_SHARED = WIDE_STAGES * WIDE_BYTES + WGMMA_ALIGN,
    SERIES = WIDE_THREADS / 16,   /* rows that are copied together */
    X_COUNT = WIDE_ROWS / SERIES, /* of them in a stage */
    W_COUNT = WIDE_COLS / SERIES,
};

static __host__ __device__ inline int wide_tiles(const gemm_args *a)
{
    return (a->n + WIDE_COLS - 1) / WIDE_COLS * ((a->rows + WIDE_ROWS - 1) / WIDE_ROWS);
}

#if defined(LORAD_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* What a thread copies of an operand: 8 bytes, number t % 16 of a stage's 128, of every SERIES-th
 * row from t / 16 on.  The last row stands for those behind it, whose sums go nowhere. */
typedef struct {
    const uint16_t *from; /* of the first */
    uint32_t more;        /* bit i: row i + 1 differs from row i (0: it repeats the last row) */
} row_series;

/* From row `row` of n on. */
template <int COUNT>
CU_INLINE row_series find_series(const void *rows, int k, int row, int rows_apart, int n, int t)
{
    row_series s = {
        (const uint16_t *)rows + (size_t)(row < n ? row : n - 1) * (size_t)k + t % 16 * 4, 0};
    CU_UNROLL
    for (int i = 0; i + 1 < COUNT; i++) s.more |= (uint32_t)(row + (i + 1) * rows_apart < n) << i;
    return s;
}

template <int COUNT>
CU_INLINE void fetch_series(unsigned char *to, const row_series *s, size_t apart, int k0)
{
    const uint16_t *from = s->from + k0;
    CU_UNROLL
    for (int i = 0; i < COUNT; i++) {
        cu_cp_async8(to + i * SERIES * WGMMA_ROW, from);
        if (s->more >> i & 1) from += apart;
    }
}

/* Where the 8 bytes with number `i` of a row's 128 go: of each four pieces the first halves, then
 * the second ones. */
CU_INLINE int place_of_half(int row, int i)
{
    int at = (i & 8) | (i & 1) << 2 | (i >> 1 & 3);
    return WGMMA_PIECE(row, at / 2) + at % 2 * 8;
}

/* As place_tile(), of this kernel's tiles. */
CU_INLINE void place_wide(const gemm_args *a, int tile, int *col0, int *row0)
{
    int n_col = (a->n + WIDE_COLS - 1) / WIDE_COLS, n_row = (a->rows + WIDE_ROWS - 1) / WIDE_ROWS;
    int group = tile / (GROUP * n_row), rest = tile % (GROUP * n_row);
    int wide = n_col - group * GROUP < GROUP ? n_col - group * GROUP : GROUP;
    *col0 = (group * GROUP + rest % wide) * WIDE_COLS;
    *row0 = rest / wide * WIDE_ROWS;
}

/* What is fetched next: stages of a block's tiles, one after another. */
typedef struct {
    int tile, stage;
    row_series x, w;
} wide_fetch;

CU_INLINE void begin_tile(wide_fetch *f, const gemm_args *a, int tile, int t)
{
    int col0, row0;
    place_wide(a, tile, &col0, &row0);
    f->tile = tile;
    f->stage = 0;
    f->x = find_series<X_COUNT>(a->x, a->k, row0 + t / 16, SERIES, a->rows, t);
    int up = t / 16 / 8 * (a->n / 2), row = t / 16;
    if (a->gated) row = up + col0 / 2 + row % 8;
    f->w = find_series<W_COUNT>(a->w, a->k, a->gated ? row : col0 + row, a->gated ? 8 : SERIES,
                                a->gated ? up + a->n / 2 : a->n, t);
}

/* `to`: this thread's place in the stage. */
CU_INLINE void fetch_stage(wide_fetch *f, unsigned char *to, const gemm_args *a, int n_tile, int t)
{
    if (f->tile < n_tile) {
        size_t apart = (size_t)SERIES * (size_t)a->k;
        fetch_series<X_COUNT>(to, &f->x, apart, f->stage * TILE_K);
        fetch_series<W_COUNT>(to + X_BYTES, &f->w, a->gated ? apart / 2 : apart, f->stage * TILE_K);
        if (++f->stage == a->k / TILE_K) {
            f->tile += (int)gridDim.x;
            if (f->tile < n_tile) begin_tile(f, a, f->tile, t);
        }
    }
    cu_cp_async_commit();
}

/* Two sums of columns col and col + 1. */
CU_INLINE void put_pair(const gemm_args *a, int row, int col, const float *sum)
{
    size_t at = (size_t)row * (size_t)a->stride + (size_t)col;
    float v[2] = {sum[0], sum[1]}, res[2];
    if (a->bias) {
        v[0] = cu_add(v[0], a->bias[col]);
        v[1] = cu_add(v[1], a->bias[col + 1]);
    }
    if (a->res) {
        cu_load_f32x2(res, a->res + at);
        v[0] = cu_add(v[0], res[0]);
        v[1] = cu_add(v[1], res[1]);
    }
    cu_store_f32x2(a->y + at, v);
}

/* The gate of two columns.  It is made for those that are not there, too: without a branch. */
CU_INLINE void put_gate(const gemm_args *a, int row, int col, const float *gate, const float *up)
{
    uint32_t pair =
        cu_bf16x2_of(cu_gate_mul(gate[0], up[0], a->gelu), cu_gate_mul(gate[1], up[1], a->gelu));
    uint32_t *to = (uint32_t *)(a->gated + (size_t)row * (size_t)a->gated_stride + (size_t)col);
    if (row < a->rows && col < a->n / 2) *to = pair;
}

/* A lane's sums.  Of gate and up each eight columns stand side by side. */
CU_INLINE void put_tile(const gemm_args *a, const float *total, int row0, int col0, int q)
{
    CU_UNROLL
    for (int i = 0; !a->gated && i < WGMMA_REGS; i += 2) {
        int row = row0 + i / 2 % 2 * 8, col = col0 + i / 4 * 8 + 2 * q;
        if (row < a->rows && col < a->n) put_pair(a, row, col, total + i);
    }
    CU_UNROLL
    for (int i = 0; a->gated && i < WGMMA_REGS / 2; i += 2) {
        int row = row0 + i / 2 % 2 * 8, col = col0 / 2 + i / 4 * 8 + 2 * q;
        int at = i / 4 * 8 + i % 4; /* of the gate: up's is 4 further */
        put_gate(a, row, col, total + at, total + at + 4);
    }
}

#endif

template <bool BF16>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) gemm_wide_kernel(gemm_args a)
{
#if defined(LORAD_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
    CU_SHARED(unsigned char, raw);
    uint32_t at = cu_wgmma_address(raw), base = (at + WGMMA_ALIGN - 1) & ~(WGMMA_ALIGN - 1U);
    int t = (int)threadIdx.x, warp = t / CU_WARP, lane = t % CU_WARP, g = lane / 4, q = lane % 4;
    int n_tile = wide_tiles(&a), n_stage = a.k / TILE_K;
    unsigned char *mine = raw + (base - at) + place_of_half(t / 16, t % 16);
    const uint64_t rows = cu_wgmma_operand(base + (uint32_t)(warp / 4 * WGMMA_M * WGMMA_ROW));
    const uint64_t cols = cu_wgmma_operand(base + X_BYTES);
    float acc[WGMMA_REGS], total[WGMMA_REGS];
    wide_fetch f;
    begin_tile(&f, &a, (int)blockIdx.x, t);
    CU_UNROLL
    for (int i = 0; i < WGMMA_REGS; i++) acc[i] = 0;
    for (int s = 0; s < AHEAD; s++) fetch_stage(&f, mine + s * WIDE_BYTES, &a, n_tile, t);
    for (int tile = (int)blockIdx.x, now = 0, next = AHEAD; tile < n_tile; tile += (int)gridDim.x) {
        CU_UNROLL
        for (int i = 0; i < WGMMA_REGS; i++) total[i] = 0;
        for (int first = 0; first < n_stage; first += CHUNK_STAGES) {
            int end = first + CHUNK_STAGES < n_stage ? first + CHUNK_STAGES : n_stage;
            CU_UNROLL_BY(1)
            for (int s = first; s < end; s++) {
                CU_CP_ASYNC_WAIT(AHEAD - 1); /* this thread's part of the stage has come */
                cu_fence_async();
                __syncthreads(); /* all parts have, and the stage before the last was read */
                uint64_t skip = (uint64_t)(now * WIDE_BYTES >> 4);
                cu_wgmma_fence();
                CU_UNROLL
                for (int i = 0; i < TILE_K / WGMMA_K; i++)
                    cu_wgmma<BF16>(acc, rows + skip + (uint64_t)(i * WGMMA_NEXT),
                                   cols + skip + (uint64_t)(i * WGMMA_NEXT), s > first || i > 0);
                cu_wgmma_commit();
                fetch_stage(&f, mine + next * WIDE_BYTES, &a, n_tile, t);
                now = now + 1 < WIDE_STAGES ? now + 1 : 0;
                next = next + 1 < WIDE_STAGES ? next + 1 : 0;
                CU_WGMMA_WAIT(1); /* the stage before this one has been read */
            }
            CU_WGMMA_WAIT(0);
            cu_wgmma_hold(acc);
            CU_UNROLL
            for (int i = 0; i < WGMMA_REGS; i++) total[i] = cu_add(total[i], acc[i]);
        }
        int col0, row0;
        place_wide(&a, tile, &col0, &row0);
        put_tile(&a, total, row0 + warp * 16 + g, col0, q);
    }
#endif
}

/* ---- launches -------------------------------------------------------------------------------- */

extern "C" cudaError_t cu_gemm_wide_setup(void)
{
#if defined(LORAD_EMU) || defined(LORAD_SM90A)
    cudaError_t rc = CU_ALLOW_SHARED(gemm_wide_kernel<true>, WIDE_SHARED);
    if (rc == cudaSuccess) rc = CU_ALLOW_SHARED(gemm_wide_kernel<false>, WIDE_SHARED);
    if (rc != cudaSuccess) (void)cudaGetLastError(); /* it is not the next launch's */
    return rc;
#else
    return cudaErrorInvalidDevice; /* compiled without sm_90 */
#endif
}

static bool in_pairs(const gemm_args *a)
{
    enum { PAIR = 2 * sizeof(float) };
    if (a->gated) return a->n % 4 == 0 && a->gated_stride % 2 == 0;
    return a->n % 2 == 0 && a->stride % 2 == 0 && (uintptr_t)a->y % PAIR == 0 &&
           (uintptr_t)a->res % PAIR == 0;
}

extern "C" bool gemm_wide_takes(const gemm_args *a)
{
    return a->rows > GEMM_SMALL_ROWS && a->type != DT_F32 && !a->codes.form && !a->place &&
           a->k % TILE_K == 0 && in_pairs(a);
}

extern "C" void cu_gemm_wide(cudaStream_t stream, const gemm_args *a)
{
    int n_tile = wide_tiles(a);
    dim3 grid((unsigned)(n_tile < a->n_sm ? n_tile : a->n_sm));
    if (a->type == DT_BF16)
        CU_LAUNCH(gemm_wide_kernel<true>, grid, dim3(WIDE_THREADS), WIDE_SHARED, stream, *a);
    else
        CU_LAUNCH(gemm_wide_kernel<false>, grid, dim3(WIDE_THREADS), WIDE_SHARED, stream, *a);
}
