/* sgmv_f32.cu -- the LoRA kernels of sgmv.h for F32 adapters: plain
 * multiply-adds, one order for every row.
 *
 * For bases that are F32 (or F16 held to f32 sums): correct and even, not fast.
 */
#include "engine/cuda/products/launch.h"
#include "engine/cuda/sgmv_inside.h"

enum { THREADS = 256, WARPS = THREADS / CU_WARP };

/* v[row][out][r] = A[r] . x[row]: a warp each, lane l sums k = l, l + 32 ..., then the lanes by
 * halves.  Grid (chunk, projection * ceil(rank_max / 8)). */
static __global__ void __launch_bounds__(THREADS) shrink_f32_kernel(sgmv_args p, int n_group)
{
    if ((int)blockIdx.x >= p.counts->n_lora) return;
    int o = (int)blockIdx.y / n_group, warp = (int)threadIdx.x / CU_WARP;
    int lane = (int)threadIdx.x % CU_WARP, r = (int)blockIdx.y % n_group * WARPS + warp;
    const sgmv_chunk c = p.chunk[blockIdx.x];
    const sgmv_mat m = c.mats[p.out[o].mat];
    if (r >= (m.rank + 7) / 8 * 8) return;
    size_t d8 = (size_t)((p.d_in + 7) / 8 * 8);
    const float *a = r < m.rank ? (const float *)(const void *)sgmv_a_row(&m, r, d8 * 4) : nullptr;
    for (int row = 0; row < c.n_rows; row++) {
        const float *x = (const float *)p.x + (size_t)(c.row0 + row) * (size_t)p.x_stride;
        float sum = 0;
        for (int k = lane; a && k < p.d_in; k += CU_WARP) sum = fmaf(a[k], x[k], sum);
        sum = cu_warp_sum(sum);
        if (lane == 0) p.v[sgmv_v_at(&c, row, o) + (size_t)r] = sum;
    }
}

/* out = gain (in + scale B v) + bias + res: 4 columns of a row a thread, r ascending.
 * Grid (chunk, blocks of 64 columns), 16 threads a row. */
static __global__ void __launch_bounds__(THREADS) expand_f32_kernel(sgmv_args p)
{
    int n = p.all_rows ? p.counts->n_all : p.counts->n_lora;
    if ((int)blockIdx.x >= n) return;
    int o = 0, group = (int)blockIdx.y;
    for (; group >= sgmv_groups(p.out[o].d_out, 1); o++) group -= sgmv_groups(p.out[o].d_out, 1);
    const sgmv_chunk c = p.chunk[blockIdx.x];
    sgmv_out out = p.out[o];
    sgmv_mat m;
    if (!sgmv_needed(&m, &c, &out)) return;
    int in = (int)threadIdx.x % 16 * 4, col0 = group * SGMV_COLS;
    if (col0 + in >= out.d_out) return;
    const float *b = m.rank ? (const float *)(const void *)sgmv_b_block(&m, col0, 4) + in : nullptr;
    for (int row = (int)threadIdx.x / 16; row < c.n_rows; row += THREADS / 16) {
        float sum[4] = {0, 0, 0, 0};
        for (int r = 0; r < m.rank; r++) {
            float v = p.v[sgmv_v_at(&c, row, o) + (size_t)r];
            float4 bv = cu_ld_f32x4(b + (size_t)r * SGMV_COLS);
            sum[0] = fmaf(bv.x, v, sum[0]);
            sum[1] = fmaf(bv.y, v, sum[1]);
            sum[2] = fmaf(bv.z, v, sum[2]);
            sum[3] = fmaf(bv.w, v, sum[3]);
        }
        sgmv_put(&out, &m, c.row0 + row, col0 + in, sum[0], sum[1], sum[2], sum[3]);
    }
}

cudaError_t sgmv_f32_shrink(cudaStream_t stream, const sgmv_args *p)
{
    int n_group = (p->rank_max + WARPS - 1) / WARPS;
    if (p->max_lora > 0)
        CU_LAUNCH(shrink_f32_kernel, dim3((unsigned)p->max_lora, (unsigned)(p->n_out * n_group)),
                  dim3(THREADS), 0, stream, *p, n_group);
    return cudaGetLastError();
}

cudaError_t sgmv_f32_expand(cudaStream_t stream, const sgmv_args *p)
{
    int groups = 0;
    for (int o = 0; o < p->n_out; o++) groups += sgmv_groups(p->out[o].d_out, 1);
    dim3 grid((unsigned)(p->all_rows ? p->max_all : p->max_lora), (unsigned)groups);
    CU_LAUNCH(expand_f32_kernel, grid, dim3(THREADS), 0, stream, *p);
    return cudaGetLastError();
}
