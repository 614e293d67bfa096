/* rows.cu -- kernels of rows.h.
 *
 * One block (norm) or one warp (rope) per row with a fixed tree of sums, so the bits of a row
 * depend on that row alone.  Memory moves 16 bytes at a time where the row's length allows it.
 *
 * Held to its oracle by tests/emu/test_rows.cu.
 */
#include "engine/cuda/rows/rows.h"

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/rows/act.h"
#include "engine/cuda/rows/turn.h"

enum {
    WARP = 32,
    ROW_THREADS = 256,
    ROPE_WARPS = 4,
    BLOCKS_MAX = 65535,
    NORM_THREADS = 1024,
    FOURS = 2
};

static int blocks_for(size_t n, int each)
{
    size_t b = (n + (size_t)each - 1) / (size_t)each;
    return b > BLOCKS_MAX ? BLOCKS_MAX : (int)b;
}

/* Threads for a row: one for every eight values.  It depends on the row's length,
 * never on how many there are. */
static int threads_for(int dim)
{
    int t = (dim + 7) / 8;
    t = (t + WARP - 1) / WARP * WARP;
    return t > NORM_THREADS ? NORM_THREADS : t;
}

/* ------------------------------------------------------------------------------- embedding -- */

__device__ static float table_value(const void *table, int type, size_t i)
{
    if (type == DT_F32) return ((const float *)table)[i];
    uint16_t h = ((const uint16_t *)table)[i];
    return type == DT_BF16 ? cu_f32_of_bf16(h) : cu_f32_of_f16(h);
}

/* The place of a token among those with rows of their own; -1: it is none of them. */
__device__ static int own_row(const cu_embed_alt *alt, int token)
{
    int lo = 0, hi = alt->n_rows;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (alt->id[mid] < token)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < alt->n_rows && alt->id[lo] == token ? lo : -1;
}

/* out[row] = table[token[row]]; thread: every 256th group of 8 values; grid: rows. */
__global__ void embed_kernel(cu_embed_args a)
{
    int row = (int)blockIdx.x, token = a.token[row], n_vocab = a.n_vocab, type = a.type;
    const void *table = a.table;
    if (a.alt) {
        const cu_embed_alt alt = a.alt[row];
        int own = own_row(&alt, token);
        if (own >= 0) {
            table = alt.rows;
            type = alt.rows_type;
            n_vocab = alt.n_rows;
            token = own;
        } else if (alt.table) {
            table = alt.table;
            type = alt.type;
            n_vocab = alt.n_vocab;
        }
    }
    float *out = a.out + (size_t)row * a.dim;
    bool known = token >= 0 && token < n_vocab;
    size_t at = known ? (size_t)token * a.dim : 0;
    size_t elem = type == DT_F32 ? 4 : 2;
    bool wide = a.dim % 8 == 0 && (uintptr_t)table % 16 == 0;
    if (!known) {
        for (int i = (int)threadIdx.x; i < a.dim; i += (int)blockDim.x) out[i] = 0;
    } else if (!wide) {
        for (int i = (int)threadIdx.x; i < a.dim; i += (int)blockDim.x) {
            out[i] = table_value(table, type, at + (size_t)i);
        }
    } else {
        const char *src = (const char *)table + at * elem;
        for (int i = (int)threadIdx.x * 8; i < a.dim; i += (int)blockDim.x * 8) {
            float v[8];
            if (type == DT_F32) {
                cu_load_f32x4(v, (const float *)src + i);
                cu_load_f32x4(v + 4, (const float *)src + i + 4);
            } else {
                uint4 x = cu_ld16(src + (size_t)i * 2);
                uint32_t w[4] = {x.x, x.y, x.z, x.w};
                for (int k = 0; k < 4; k++) {
                    uint16_t lo = (uint16_t)(w[k] & 0xFFFFU), hi = (uint16_t)(w[k] >> 16);
                    v[2 * k] = type == DT_BF16 ? cu_f32_of_bf16(lo) : cu_f32_of_f16(lo);
                    v[2 * k + 1] = type == DT_BF16 ? cu_f32_of_bf16(hi) : cu_f32_of_f16(hi);
                }
            }
            cu_store_f32x4(out + i, v);
            cu_store_f32x4(out + i + 4, v + 4);
        }
    }
}

extern "C" cudaError_t cu_embed(cudaStream_t stream, const cu_embed_args *args)
{
    if (args->n_rows <= 0 || args->dim <= 0) return cudaSuccess;
    CU_LAUNCH(embed_kernel, dim3((unsigned)args->n_rows), dim3(ROW_THREADS), 0, stream, *args);
    return cudaGetLastError();
}

/* One thread a row. */
__global__ void take_tokens_kernel(cu_take_args a)
{
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row < a.n_rows && a.from[row] >= 0)
        a.token[row] = a.made[(size_t)a.from[row] * (size_t)a.stride];
}

extern "C" cudaError_t cu_take_tokens(cudaStream_t stream, const cu_take_args *args)
{
    if (args->n_rows <= 0) return cudaSuccess;
    CU_LAUNCH(take_tokens_kernel, dim3((unsigned)blocks_for((size_t)args->n_rows, ROW_THREADS)),
              dim3(ROW_THREADS), 0, stream, *args);
    return cudaGetLastError();
}

/* -------------------------------------------------------------------------------- rms norm -- */

/* Sum over the block, the same bits in every thread: a butterfly inside the warps, then one of
 * their sums. */
__device__ static float block_sum(float v, float *smem)
{
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, n = (int)blockDim.x / WARP;
    for (int d = WARP / 2; d > 0; d /= 2) v = cu_add(v, cu_shfl_xor_f32(v, d));
    if (lane == 0) smem[warp] = v;
    __syncthreads(); /* all warps' sums are in smem */
    float sum = lane < n ? smem[lane] : 0;
    for (int d = WARP / 2; d > 0; d /= 2) sum = cu_add(sum, cu_shfl_xor_f32(sum, d));
    return sum;
}

/* Four values of a row from i on, zeros from its end on; `vec`: all are there, on 16 bytes. */
__device__ static __forceinline__ void load_4(float *v, const float *row, int i, int dim, bool vec)
{
    if (vec) {
        cu_load_f32x4(v, row + i);
    } else {
        for (int k = 0; k < 4; k++) v[k] = i + k < dim ? row[i + k] : 0;
    }
}

__device__ static __forceinline__ void store_4(float *row, const float *v, int i, int dim, bool vec)
{
    if (vec) {
        cu_store_f32x4(row + i, v);
    } else {
        for (int k = 0; k < 4 && i + k < dim; k++) row[i + k] = v[k];
    }
}

/* The same, rounded. */
__device__ static __forceinline__ void store_4_bf16(uint16_t *row, const float *v, int i, int dim,
                                                    bool vec)
{
    if (vec) {
        cu_st8(row + i, make_uint2(cu_bf16x2_of(v[0], v[1]), cu_bf16x2_of(v[2], v[3])));
    } else {
        for (int k = 0; k < 4 && i + k < dim; k++) row[i + k] = cu_bf16_of(v[k]);
    }
}

/* One row of four values at a time; grid: rows.  WHOLE: rows begin on 16 bytes and a thread has up
 * to FOURS fours, which it keeps; else it reads again what it read (or wrote) itself: no barrier
 * needed. */
template <bool WHOLE>
__global__ __launch_bounds__(NORM_THREADS) void rms_norm_kernel(cu_rms_norm_args a)
{
    CU_STATIC_SHARED(float, sums, WARP);
    cu_grid_go();
    int row = (int)blockIdx.x, from = a.index ? a.index[row] : row;
    float *x = a.x + (size_t)from * a.dim;
    const float *add = a.add ? a.add + (size_t)from * a.dim : NULL;
    const int mine = (int)threadIdx.x * 4, each = (int)blockDim.x * 4;
    const int n = WHOLE ? FOURS : (a.dim - mine + each - 1) / each; /* that a thread has */
    float acc = 0, kept[FOURS][4], gains[FOURS][4];
    bool vec = WHOLE || a.dim % 4 == 0;
    CU_UNROLL
    for (int f = 0; WHOLE && f < FOURS; f++)
        if (mine + f * each < a.dim) load_4(gains[f], a.weight, mine + f * each, a.dim, vec);
    cu_grid_wait();       /* for x */
    if (from < 0) return; /* the whole block */
    CU_UNROLL
    for (int f = 0; f < n; f++) {
        float *v = kept[WHOLE ? f : 0];
        int i = mine + f * each;
        if (WHOLE && i >= a.dim) break;
        load_4(v, x, i, a.dim, vec);
        if (add) {
            for (int k = 0; k < 4; k++) v[k] = i + k < a.dim ? cu_add(v[k], add[i + k]) : 0;
            store_4(x, v, i, a.dim, vec);
        }
        for (int k = 0; k < 4; k++) acc = cu_fma(v[k], v[k], acc);
    }
    float inv = cu_div(1.0F, cu_sqrt(cu_add(cu_div(block_sum(acc, sums), (float)a.dim), a.eps)));
    float *out = a.out ? a.out + (size_t)row * a.dim : NULL;
    uint16_t *out16 = a.out16 ? a.out16 + (size_t)row * a.dim : NULL;
    CU_UNROLL
    for (int f = 0; f < n; f++) {
        float *v = kept[WHOLE ? f : 0], *w = gains[WHOLE ? f : 0];
        int i = mine + f * each;
        if (WHOLE && i >= a.dim) break;
        if (!WHOLE) {
            load_4(v, x, i, a.dim, vec);
            load_4(w, a.weight, i, a.dim, vec);
        }
        for (int k = 0; k < 4; k++) v[k] = cu_mul(cu_mul(v[k], inv), w[k]);
        if (out) store_4(out, v, i, a.dim, vec);
        if (out16) store_4_bf16(out16, v, i, a.dim, vec);
    }
}

extern "C" cudaError_t cu_rms_norm(cudaStream_t stream, const cu_rms_norm_args *args)
{
    if (args->n_rows <= 0 || args->dim <= 0) return cudaSuccess;
    if (args->add && args->index) return cudaErrorInvalidValue;
    dim3 grid((unsigned)args->n_rows), block((unsigned)threads_for(args->dim));
    if (args->dim % 4 == 0 && args->dim <= 4 * FOURS * NORM_THREADS)
        CU_LAUNCH_EARLY(rms_norm_kernel<true>, grid, block, 0, stream, args->early, *args);
    else
        CU_LAUNCH_EARLY(rms_norm_kernel<false>, grid, block, 0, stream, args->early, *args);
    return cudaGetLastError();
}

/* ------------------------------------------------------------------------- rope and append -- */

/* Attention's temperature at a position, as rope_table has it. */
__device__ static void grow_query(const cu_rope_args *a, float *q, int pos, int lane)
{
    float runs = floorf(cu_div((float)(pos + a->q_from), a->q_floor));
    float by = cu_fma(a->q_scale, log1pf(runs), 1.0F);
    cu_syncwarp(); /* lanes multiply what others turned */
    for (int i = lane; i < a->kv.head_dim; i += WARP) q[i] = cu_mul(q[i], by);
}

/* A warp per (row, head of q, k or v); grid.x: rows, grid.y: heads by four. */
__global__ void rope_kernel(cu_rope_args a)
{
    CU_STATIC_SHARED(float, own, (int)ROPE_WARPS *(int)CU_HEAD_DIM_MAX);
    int row = (int)blockIdx.x, lane = (int)threadIdx.x % WARP, d = a.kv.head_dim;
    int h = (int)blockIdx.y * ROPE_WARPS + (int)threadIdx.x / WARP, n_kv = a.kv.n_kv_head;
    int v_dim = cu_kv_v_dim(&a.kv);
    if (h >= a.n_head + 2 * n_kv) return; /* a whole warp; no block barrier below */
    size_t at = (size_t)a.pos[row] * (size_t)(a.rope_dim / 2);
    const float *cs = a.cos + at, *sn = a.sin + at;
    if (h < a.n_head) {
        float *q = a.q + (size_t)row * a.q_stride + (size_t)h * d;
        turn_head(&a, q, q, a.q_norm, cs, sn, lane);
        if (a.q_scale > 0) grow_query(&a, q, a.pos[row], lane);
        return;
    }
    int slot = a.slot[row];
    if (slot < 0) return;
    h -= a.n_head;
    bool is_v = h >= n_kv;
    if (is_v) h -= n_kv;
    const float *src = a.v + (size_t)row * a.v_stride + (size_t)h * v_dim;
    if (!is_v) {
        float *k = own + (int)threadIdx.x / WARP * CU_HEAD_DIM_MAX;
        turn_head(&a, k, a.k + (size_t)row * a.k_stride + (size_t)h * d, a.k_norm, cs, sn, lane);
        cu_syncwarp(); /* lanes store what others turned */
        src = k;
    }
    char *head = a.kv.mem + (size_t)(slot / CU_PAGE_TOKENS) * a.kv.stride +
                 ((size_t)a.kv.layer * n_kv + h) * cu_kv_head_bytes(d, v_dim, a.kv.type);
    put_position(&a.kv, head, is_v, slot % CU_PAGE_TOKENS, src, lane);
}

extern "C" cudaError_t cu_rope_append(cudaStream_t stream, const cu_rope_args *args)
{
    if (args->n_rows <= 0) return cudaSuccess;
    if (args->first + args->rope_dim > args->kv.head_dim || args->rope_dim % 2 ||
        args->kv.head_dim > CU_HEAD_DIM_MAX)
        return cudaErrorInvalidValue;
    int heads = args->n_head + 2 * args->kv.n_kv_head;
    dim3 grid((unsigned)args->n_rows, (unsigned)((heads + ROPE_WARPS - 1) / ROPE_WARPS));
    CU_LAUNCH(rope_kernel, grid, dim3(ROPE_WARPS * WARP), 0, stream, *args);
    return cudaGetLastError();
}

/* A warp per (row, head of q or k); grid.x: rows, grid.y: heads by four. */
__global__ void turn_kernel(cu_rope_args a)
{
    int row = (int)blockIdx.x, lane = (int)threadIdx.x % WARP, d = a.kv.head_dim;
    int h = (int)blockIdx.y * ROPE_WARPS + (int)threadIdx.x / WARP, kh = h - a.n_head;
    if (kh >= a.kv.n_kv_head) return; /* a whole warp; no block barrier below */
    size_t at = (size_t)a.pos[row] * (size_t)(a.rope_dim / 2);
    const float *norm = kh < 0 ? a.q_norm : a.k_norm;
    float *x = kh < 0 ? a.q + (size_t)row * a.q_stride + (size_t)h * d
                      : (float *)a.k + (size_t)row * a.k_stride + (size_t)kh * d;
    turn_head(&a, x, x, NULL, a.cos + at, a.sin + at, lane);
    if (!norm) return;
    cu_syncwarp(); /* lanes read what others turned */
    float acc = 0;
    for (int i = lane; i < d; i += WARP) acc = cu_fma(x[i], x[i], acc);
    float inv = cu_div(1.0F, cu_sqrt(cu_add(cu_div(halves_sum(acc), (float)d), a.norm_eps)));
    for (int i = lane; i < d; i += WARP) x[i] = cu_mul(cu_mul(x[i], inv), norm[i]);
}

extern "C" cudaError_t cu_turn_first(cudaStream_t stream, const cu_rope_args *args)
{
    if (args->n_rows <= 0) return cudaSuccess;
    if (args->first + args->rope_dim > args->kv.head_dim || args->rope_dim % 2)
        return cudaErrorInvalidValue;
    int heads = args->n_head + args->kv.n_kv_head;
    dim3 grid((unsigned)args->n_rows, (unsigned)((heads + ROPE_WARPS - 1) / ROPE_WARPS));
    CU_LAUNCH(turn_kernel, grid, dim3(ROPE_WARPS * WARP), 0, stream, *args);
    return cudaGetLastError();
}

/* A warp per (row, head); grid.x: rows, grid.y: heads by four. */
__global__ void spread_kernel(cu_spread_args a)
{
    int row = (int)blockIdx.x, lane = (int)threadIdx.x % WARP;
    int h = (int)blockIdx.y * ROPE_WARPS + (int)threadIdx.x / WARP;
    if (h >= a.n_head) return;
    size_t at = (size_t)row * a.n_head + h;
    const float *own = a.kv + (size_t)row * a.kv_stride + (size_t)h * (a.nope + a.v_dim);
    const float *shared = a.shared + (size_t)row * a.shared_stride;
    float *k = a.k + at * (a.nope + a.rope), *v = a.v + at * a.v_dim;
    for (int i = lane; i < a.nope; i += WARP) k[i] = own[i];
    for (int i = lane; i < a.rope; i += WARP) k[a.nope + i] = shared[i];
    for (int i = lane; i < a.v_dim; i += WARP) v[i] = own[a.nope + i];
}

extern "C" cudaError_t cu_latent_spread(cudaStream_t stream, const cu_spread_args *args)
{
    if (args->n_rows <= 0) return cudaSuccess;
    dim3 grid((unsigned)args->n_rows, (unsigned)((args->n_head + ROPE_WARPS - 1) / ROPE_WARPS));
    CU_LAUNCH(spread_kernel, grid, dim3(ROPE_WARPS * WARP), 0, stream, *args);
    return cudaGetLastError();
}

/* -------------------------------------------------------------------- silu and conversions -- */

/* A thread: every so many values. */
__global__ void blend_kernel(cu_blend_args a)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n;
         i += (size_t)gridDim.x * blockDim.x) {
        float v = cu_mul(a.a, a.x[i]);
        if (a.y) v = cu_fma(a.b, a.y[i], v);
        if (a.cap > 0) {
            float e = expf(cu_mul(-2.0F, cu_div(fabsf(v), a.cap)));
            v = copysignf(cu_mul(a.cap, cu_div(cu_add(1.0F, -e), cu_add(1.0F, e))), v);
        }
        a.x[i] = v;
    }
}

extern "C" cudaError_t cu_blend(cudaStream_t stream, const cu_blend_args *args)
{
    if (args->n == 0) return cudaSuccess;
    CU_LAUNCH(blend_kernel, dim3((unsigned)blocks_for(args->n, ROW_THREADS)), dim3(ROW_THREADS), 0,
              stream, *args);
    return cudaGetLastError();
}

/* Thread: four values of a row at a time; grid: pieces of a row, rows. */
__global__ void silu_kernel(cu_silu_args a)
{
    bool vec = a.cols % 4 == 0 && a.in_stride % 4 == 0;
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x) * 4,
        left = a.cols - i < 4 ? a.cols - i : 4;
    if (left <= 0) return;
    for (int row = (int)blockIdx.y; row < a.n_rows; row += (int)gridDim.y) {
        const float *gate = a.gate + (size_t)row * (size_t)a.in_stride + i;
        const float *up = a.up ? a.up + (size_t)row * (size_t)a.in_stride + i : nullptr;
        size_t at = (size_t)row * (size_t)a.cols + (size_t)i;
        float g[4], u[4] = {1, 1, 1, 1};
        if (vec) {
            cu_load_f32x4(g, gate);
            if (up) cu_load_f32x4(u, up);
        } else {
            for (int k = 0; k < 4; k++) g[k] = k < left ? gate[k] : 0;
            for (int k = 0; up && k < 4; k++) u[k] = k < left ? up[k] : 0;
        }
        for (int k = 0; k < 4; k++) g[k] = cu_gate_mul(g[k], u[k], a.gelu);
        if (vec) {
            if (a.out) cu_store_f32x4(a.out + at, g);
            if (a.out16) {
                uint32_t h[2] = {cu_bf16x2_of(g[0], g[1]), cu_bf16x2_of(g[2], g[3])};
                cu_st8(a.out16 + at, make_uint2(h[0], h[1]));
            }
        } else {
            for (int k = 0; k < left; k++) {
                if (a.out) a.out[at + (size_t)k] = g[k];
                if (a.out16) a.out16[at + (size_t)k] = cu_bf16_of(g[k]);
            }
        }
    }
}

extern "C" cudaError_t cu_silu_mul(cudaStream_t stream, const cu_silu_args *args)
{
    if (args->n_rows <= 0 || args->cols <= 0) return cudaSuccess;
    if (args->out == args->gate && args->in_stride != args->cols) return cudaErrorInvalidValue;
    dim3 grid((unsigned)blocks_for((size_t)args->cols, 4 * ROW_THREADS),
              (unsigned)(args->n_rows < BLOCKS_MAX ? args->n_rows : BLOCKS_MAX));
    CU_LAUNCH(silu_kernel, grid, dim3(ROW_THREADS), 0, stream, *args);
    return cudaGetLastError();
}

/* A thread: every so many values of all rows. */
__global__ void act_mul_kernel(cu_act_args a)
{
    const cu_silu_args *r = &a.rows;
    size_t n = (size_t)r->n_rows * (size_t)r->cols;
    act_xielu c = {};
    if (a.act == ACT_XIELU) c = act_xielu_of(&a.xielu);
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        size_t from = i / (size_t)r->cols * (size_t)r->in_stride + i % (size_t)r->cols;
        float v = r->gate[from];
        v = a.act == ACT_XIELU ? act_by_xielu(&c, v) : act_of_one(a.act, v);
        if (r->up) v = cu_mul(v, r->up[from]);
        if (r->out) r->out[i] = v;
        if (r->out16) r->out16[i] = cu_bf16_of(v);
    }
}

extern "C" cudaError_t cu_act_mul(cudaStream_t stream, const cu_act_args *args)
{
    const cu_silu_args *r = &args->rows;
    if (r->n_rows <= 0 || r->cols <= 0) return cudaSuccess;
    if (r->out == r->gate && r->in_stride != r->cols) return cudaErrorInvalidValue;
    if (args->act <= ACT_SWIGLU_CLAMPED) return cudaErrorInvalidValue; /* cu_silu_mul() */
    size_t n = (size_t)r->n_rows * (size_t)r->cols;
    CU_LAUNCH(act_mul_kernel, dim3((unsigned)blocks_for(n, ROW_THREADS)), dim3(ROW_THREADS), 0,
              stream, *args);
    return cudaGetLastError();
}

/* Grid: pieces of a row, rows. */
__global__ void bias_kernel(cu_bias_args a)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= a.n) return;
    for (int row = (int)blockIdx.y; row < a.n_rows; row += (int)gridDim.y) {
        float *x = a.x + (size_t)row * (size_t)a.stride + i;
        *x = cu_add(*x, a.bias[i]);
    }
}

extern "C" cudaError_t cu_add_bias(cudaStream_t stream, const cu_bias_args *args)
{
    if (args->n_rows <= 0 || args->n <= 0) return cudaSuccess;
    dim3 grid((unsigned)((args->n + ROW_THREADS - 1) / ROW_THREADS),
              (unsigned)(args->n_rows < BLOCKS_MAX ? args->n_rows : BLOCKS_MAX));
    CU_LAUNCH(bias_kernel, grid, dim3(ROW_THREADS), 0, stream, *args);
    return cudaGetLastError();
}
