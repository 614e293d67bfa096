/* experts.cu -- kernels of experts.h: a counting sort of (row, expert) pairs on the device.
 *
 *   route    a warp per row: softmax or sigmoid, groups, top_k; a block counts its rows by expert
 *   list     one block, a thread per expert: prefix sums of the counts -> each expert's first slot,
 *            its items for the products
 *   gather   a block per pair: copies x's row to its slot
 *   ...      products (products/grouped.h), LoRA by chunk_kernel()'s lists, activation
 *   combine  adds a row's slots, in the order of experts' numbers, times their weights
 *
 * Counts per block of rows and prefix sums give each slot its place without atomic operations, so
 * the order of slots is the same in each run.
 *
 * Ties of scores go to the expert with the lower number.  Explicit roundings (cu_add, cu_div) keep
 * the compiler from contracting two operations into one.
 */
#include "engine/cuda/experts.h"

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/rows/act.h"

enum {
    WARP = 32,
    ROUTE_WARPS = CU_EXPERTS_ROUTE_ROWS,
    ROW_THREADS = 128,
    VALUE_THREADS = 256,
};

/* ---- routes -------------------------------------------------------------------------------
 * A warp for each row: its lane l has the values of experts l, l + 32 ... */

typedef struct {
    float value;
    int at; /* -1: none */
} best_of;

/* The higher one; of equal ones that with the lower number. */
__device__ static best_of better(best_of a, best_of b)
{
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    if (a.value > b.value || b.value > a.value) return a.value > b.value ? a : b;
    return a.at < b.at ? a : b;
}

/* The highest of p that the lane has not taken (bit i: the lane's i-th). */
__device__ static best_of find_best(const float *p, const float *bias, int n, uint32_t taken,
                                    int lane)
{
    best_of best = {0, -1};
    for (int e = lane, i = 0; e < n; e += WARP, i++) {
        if (taken >> i & 1) continue;
        float key = bias ? cu_add(p[e], bias[e]) : p[e];
        if (best.at < 0 || key > best.value) best = {key, e};
    }
    for (int d = WARP / 2; d > 0; d /= 2) {
        best_of other = {cu_shfl_xor_f32(best.value, d),
                         (int)cu_shfl_xor_u32((uint32_t)best.at, d)};
        best = better(best, other);
    }
    best.at = (int)cu_shfl_u32((uint32_t)best.at, 0); /* lanes may differ where none is a number */
    return best;
}

/* Replaces the warp's n values by their softmax, or each by its sigmoid. */
__device__ static void to_weights(float *p, int n, bool sigmoid, int lane)
{
    float most = -INFINITY, sum = 0;
    for (int e = lane; e < n && !sigmoid; e += WARP) most = cu_max(most, p[e]);
    for (int d = WARP / 2; d > 0; d /= 2) most = cu_max(most, cu_shfl_xor_f32(most, d));
    for (int e = lane; e < n; e += WARP) {
        float v = sigmoid ? cu_div(1.0F, cu_add(1.0F, expf(-p[e]))) : expf(cu_add(p[e], -most));
        p[e] = v;
        sum = cu_add(sum, v);
    }
    for (int d = WARP / 2; d > 0; d /= 2) sum = cu_add(sum, cu_shfl_xor_f32(sum, d));
    for (int e = lane; e < n && !sigmoid; e += WARP) p[e] = cu_div(p[e], sum);
    cu_syncwarp(); /* all values are there for all lanes */
}

/* The score of a group: the sum of its highest keys, the highest first. */
__device__ static float height_of(const float *p, const float *bias, int n, int k)
{
    float sum = 0, last = INFINITY;
    int at = -1; /* the one taken last; those left are lower, or equal and behind it */
    for (int i = 0; i < k; i++) {
        float most = -INFINITY;
        int found = -1;
        for (int e = 0; e < n; e++) {
            float key = bias ? cu_add(p[e], bias[e]) : p[e];
            bool left = key < last || (key == last && e > at);
            if (left && (found < 0 || key > most)) most = key, found = e;
        }
        if (found < 0) break;
        sum = cu_add(sum, most);
        last = most;
        at = found;
    }
    return sum;
}

/* Bits of the lane's experts that are outside the highest groups.  `high`: space for two words for
 * each group. */
__device__ static uint32_t closed(const cu_experts *x, const float *p, float *high, int lane)
{
    int each = x->n / x->route.n_group;
    int32_t *open = (int32_t *)(void *)(high + x->route.n_group);
    uint32_t taken = 0, none = 0;
    for (int g = lane; g < x->route.n_group; g += WARP) {
        const float *bias = x->choice_bias ? x->choice_bias + g * each : nullptr;
        high[g] = height_of(p + g * each, bias, each, x->route.group_best);
        open[g] = 0;
    }
    cu_syncwarp(); /* the heights are there for all lanes */
    for (int i = 0; i < x->route.top_group; i++) {
        best_of best = find_best(high, nullptr, x->route.n_group, taken, lane);
        if (best.at % WARP == lane) {
            taken |= 1U << best.at / WARP;
            open[best.at] = 1;
        }
    }
    cu_syncwarp(); /* and so are the choices */
    for (int e = lane, i = 0; e < x->n; e += WARP, i++)
        if (!open[e / each]) none |= 1U << i;
    return none;
}

/* Of two experts: each has its share among those whose scores are near to its own, the second one
 * without the first (expert_route.jitter). */
__device__ static void choose_near(const cu_experts *x, const float *p, int32_t *expert,
                                   float *share, int lane)
{
    uint32_t taken = 0;
    int without = -1;
    for (int i = 0; i < 2; i++) {
        int at = find_best(p, nullptr, x->n, taken, lane).at;
        float best = p[at], sum = 0;
        for (int e = lane; e < x->n; e += WARP) {
            float size = cu_max(fabsf(p[e]), best), below = cu_add(best, -p[e]);
            bool far = cu_div(below, size) > cu_mul(2.0F, x->route.jitter);
            if (e != without && !far) sum = cu_add(sum, expf(-below));
        }
        for (int d = WARP / 2; d > 0; d /= 2) sum = cu_add(sum, cu_shfl_xor_f32(sum, d));
        if (at % WARP == lane) taken |= 1U << at / WARP;
        without = at;
        if (lane > 0) continue;
        expert[i] = at;
        share[i] = cu_div(1.0F, sum);
    }
    cu_syncwarp(); /* the shares are there for all lanes */
}

/* A row's experts into `expert`, their shares of it into `share`, as they are chosen. */
__device__ static void choose(const cu_experts *x, float *p, float *high, int32_t *expert,
                              float *share, int lane)
{
    if (x->route.jitter > 0) {
        choose_near(x, p, expert, share, lane);
        return;
    }
    if (!x->route.softmax_last) to_weights(p, x->n, x->route.sigmoid, lane);
    uint32_t taken = x->route.n_group > 0 ? closed(x, p, high, lane) : 0;
    for (int i = 0; i < x->top_k; i++) {
        best_of best = find_best(p, x->choice_bias, x->n, taken, lane);
        if (best.at % WARP == lane) taken |= 1U << best.at / WARP;
        if (lane == 0) {
            expert[i] = best.at;
            share[i] = p[best.at];
        }
    }
    cu_syncwarp(); /* the chosen ones are there for all lanes */
    if (x->route.softmax_last) to_weights(share, x->top_k, x->route.sigmoid, lane);
    float sum = 0;
    for (int i = 0; i < x->top_k; i++) sum = cu_add(sum, share[i]);
    sum = cu_add(sum, 1e-20F); /* no score was above nothing */
    cu_syncwarp();             /* all lanes have read what is written now */
    for (int i = lane; i < x->top_k; i += WARP)
        share[i] = cu_mul(x->route.normed ? cu_div(share[i], sum) : share[i], x->route.scale);
    cu_syncwarp(); /* the shares are there for all lanes */
}

/* Grid: blocks of 8 rows. */
static __global__ void __launch_bounds__(ROUTE_WARPS *WARP) route_kernel(cu_experts x)
{
    CU_SHARED(float, p);
    int k = x.top_k, warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int row = (int)blockIdx.x * ROUTE_WARPS + warp;
    float *shares = p + ROUTE_WARPS * x.n, *own = p + warp * x.n, *w = shares + warp * k;
    int32_t *chosen = (int32_t *)(void *)(shares + ROUTE_WARPS * k), *at = chosen + warp * k;
    float *high = (float *)(void *)(chosen + ROUTE_WARPS * k) + warp * 2 * x.route.n_group;
    bool live = row < x.n_rows && x.live[row] >= 0;
    for (int i = lane; i < k; i += WARP) at[i] = x.n;
    if (live) {
        for (int e = lane; e < x.n; e += WARP)
            own[e] = x.scores[(size_t)row * (size_t)x.score_stride + e];
        cu_syncwarp(); /* the row is there for all lanes */
        choose(&x, own, high, at, w, lane);
    }
    __syncthreads(); /* the choices of all rows are there */
    for (int i = lane; row < x.n_rows && i < k; i += WARP) {
        int place = 0, before = 0;
        for (int j = 0; j < k; j++) place += at[j] < at[i] || (at[j] == at[i] && j < i);
        for (int j = 0; j < warp * k; j++) before += chosen[j] == at[i];
        size_t to = (size_t)row * (size_t)k + (size_t)place;
        x.expert[to] = at[i];
        x.rank[to] = before;
        x.weight[to] = live ? w[i] : 0;
    }
    for (int e = (int)threadIdx.x; e < x.n; e += ROUTE_WARPS * WARP) {
        int32_t count = 0;
        for (int j = 0; j < ROUTE_WARPS * k; j++) count += chosen[j] == e;
        x.before[(size_t)blockIdx.x * (size_t)x.n + e] = count;
    }
}

/* ---- lists -------------------------------------------------------------------------------- */

/* The sum of v over the threads before; *all: over the block.  sums: [33]. */
__device__ static int sum_before(int v, int32_t *sums, int *all)
{
    int t = (int)threadIdx.x, lane = t % WARP, warp = t / WARP, n = (int)blockDim.x / WARP, sum = v;
    for (int d = 1; d < WARP; d *= 2) {
        int other = (int)cu_shfl_up_u32((uint32_t)sum, d);
        if (lane >= d) sum += other;
    }
    __syncthreads(); /* what was there before has been read */
    if (lane == WARP - 1) sums[warp] = sum;
    __syncthreads(); /* all warps' sums are there */
    int before = 0, total = 0;
    for (int i = 0; i < n; i++) {
        if (i < warp) before += sums[i];
        total += sums[i];
    }
    *all = total;
    return before + sum - v;
}

/* One block, a thread for each expert. */
static __global__ void __launch_bounds__(EXPERTS_MAX) list_kernel(cu_experts x, int n_block)
{
    CU_STATIC_SHARED(int32_t, sums, WARP);
    int e = (int)threadIdx.x, mine = 0, all;
    for (int b = 0; e < x.n && b < n_block; b++) {
        int32_t *at = &x.before[(size_t)b * (size_t)x.n + e], count = *at;
        *at = mine;
        mine += count;
    }
    int first = sum_before(mine, sums, &all);
    if (e < x.n) x.first[e] = first;
    if (e == 0) x.first[x.n] = all;
    int item = sum_before((mine + x.tile - 1) / x.tile, sums, &all);
    for (int done = 0; done < mine; done += x.tile, item++)
        x.item[item] = {e, first + done, mine - done < x.tile ? mine - done : x.tile};
    if (e == 0) {
        *x.n_item = all;
        sgmv_counts none = {0, 0, 0, 0};
        if (x.counts) *x.counts = none;
    }
}

__device__ static void put_rounded(void *to, dtype type, size_t at, float v)
{
    if (type == DT_F32)
        ((float *)to)[at] = v;
    else
        ((uint16_t *)to)[at] = type == DT_BF16 ? cu_bf16_of(v) : cu_f16_of(v);
}

/* Grid (row, its experts). */
static __global__ void __launch_bounds__(ROW_THREADS) gather_kernel(cu_experts x)
{
    int row = (int)blockIdx.x, wide = (x.dim + 7) / 8 * 8;
    size_t c = (size_t)row * (size_t)x.top_k + blockIdx.y;
    int e = x.expert[c];
    if (e == x.n) return;
    int slot = x.first[e] + x.before[(size_t)(row / ROUTE_WARPS) * (size_t)x.n + e] + x.rank[c];
    if (threadIdx.x == 0) {
        x.slot[c] = slot;
        x.row_of[slot] = row;
        x.expert_of[slot] = e;
    }
    const float *from = x.x + (size_t)row * (size_t)x.dim;
    float by = x.route.scale_in ? x.weight[c] : 1;
    for (int i = (int)threadIdx.x; i < wide; i += ROW_THREADS) {
        float v = i < x.dim ? cu_mul(from[i], by) : 0;
        put_rounded(x.rows, x.type, (size_t)slot * (size_t)wide + (size_t)i, v);
    }
}

extern "C" cudaError_t cu_experts_sort(cudaStream_t stream, const cu_experts *x)
{
    if (x->n_rows <= 0) return cudaSuccess;
    if (x->n < 1 || x->n > EXPERTS_MAX || x->top_k < 1 || x->top_k > CU_EXPERTS_TOP ||
        x->top_k > x->n)
        return cudaErrorInvalidValue;
    unsigned blocks = (unsigned)(x->n_rows + ROUTE_WARPS - 1) / ROUTE_WARPS;
    size_t words = (size_t)(x->n + 2 * x->top_k + 2 * x->route.n_group);
    size_t shared = sizeof(float) * ROUTE_WARPS * words;
    CU_LAUNCH(route_kernel, dim3(blocks), dim3(ROUTE_WARPS * WARP), shared, stream, *x);
    CU_LAUNCH(list_kernel, dim3(1), dim3((unsigned)(x->n + WARP - 1) / WARP * WARP), 0, stream, *x,
              (int)blocks);
    CU_LAUNCH(gather_kernel, dim3((unsigned)x->n_rows, (unsigned)x->top_k), dim3(ROW_THREADS), 0,
              stream, *x);
    return cudaGetLastError();
}

/* ---- adapters ----------------------------------------------------------------------------- */

__device__ static const sgmv_mat *mats_of(const cu_experts *x, int slot)
{
    const sgmv_mat *m = x->adapter[x->row_of[slot]].mats;
    size_t at = (size_t)x->layer * (size_t)x->n + (size_t)x->expert_of[slot];
    return m ? m + at * LORA_EXPERT_PROJS : NULL;
}

/* A thread for each slot: the first of a run makes its chunk.  Runs end at multiples of chunk_rows
 * from the expert's first slot on, so nobody has to know where they began. */
static __global__ void __launch_bounds__(VALUE_THREADS) chunk_kernel(cu_experts x)
{
    int s = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (s >= x.first[x.n]) return;
    int e = x.expert_of[s], in = s - x.first[e];
    const sgmv_mat *m = mats_of(&x, s);
    if (!m || (in % x.chunk_rows != 0 && mats_of(&x, s - 1) == m)) return;
    int end = x.first[e] + (in / x.chunk_rows + 1) * x.chunk_rows, n = 1;
    if (end > x.first[e + 1]) end = x.first[e + 1];
    while (s + n < end && mats_of(&x, s + n) == m) n++;
    int at = cu_atomic_add_i32(&x.counts->n_all, 1);
    (void)cu_atomic_add_i32(&x.counts->n_small, 1);
    (void)cu_atomic_add_i32(&x.counts->n_lora, 1);
    int rank = ((int)x.adapter[x.row_of[s]].rank + 7) / 8 * 8;
    x.chunk[at] = {m, s, n, (uint32_t)s * (uint32_t)(SGMV_OUT_MAX * x.v_rank), rank};
}

extern "C" cudaError_t cu_experts_chunks(cudaStream_t stream, const cu_experts *x)
{
    unsigned slots = (unsigned)(x->n_rows * x->top_k);
    if (slots > 0)
        CU_LAUNCH(chunk_kernel, dim3((slots + VALUE_THREADS - 1) / VALUE_THREADS),
                  dim3(VALUE_THREADS), 0, stream, *x);
    return cudaGetLastError();
}

/* ---- between and after the products --------------------------------------------------------- */

/* A bias of the base's, where no adapter has put its own there. */
__device__ static float base_bias(const cu_experts *x, const float *bias, int width, int slot,
                                  int part, int i)
{
    if (!bias) return 0;
    const sgmv_mat *m = x->adapter ? mats_of(x, slot) : NULL;
    if (m && m[part].bias) return 0;
    return bias[(size_t)x->expert_of[slot] * (size_t)width + (size_t)i];
}

__device__ static float act_of(activation act, float g, float u)
{
    if (act == ACT_SWIGLU_CLAMPED) {
        if (g > 7) g = 7;
        u = u > 7 ? 7 : u < -7 ? -7 : u;
        float sigmoid = cu_div(1.0F, cu_add(1.0F, expf(cu_mul(-1.702F, g))));
        return cu_mul(cu_mul(cu_add(u, 1.0F), g), sigmoid);
    }
    if (act > ACT_SWIGLU_CLAMPED) return cu_mul(act_of_one(act, g), u);
    float cube = cu_mul(cu_mul(cu_mul(0.044715F, g), g), g);
    float t = act == ACT_GELU_TANH ? cu_mul(1.5957691216F, cu_add(g, cube)) : g;
    return cu_mul(cu_div(g, cu_add(1.0F, expf(-t))), u);
}

/* A thread for each value. */
static __global__ void __launch_bounds__(VALUE_THREADS)
    act_kernel(cu_experts x, activation act, const float *gate_bias, const float *up_bias)
{
    size_t at = (size_t)blockIdx.x * VALUE_THREADS + threadIdx.x;
    size_t wide = (size_t)(x.ffn + 7) / 8 * 8;
    int s = (int)(at / wide), i = (int)(at % wide);
    if (s >= x.first[x.n]) return;
    float v = 0;
    if (i < x.ffn) {
        const float *from = x.hidden + (size_t)s * 2 * (size_t)x.ffn + i;
        float g = cu_add(from[0], base_bias(&x, gate_bias, x.ffn, s, 0, i));
        v = act_of(act, g, cu_add(from[x.ffn], base_bias(&x, up_bias, x.ffn, s, 1, i)));
    }
    put_rounded(x.acted, x.type, at, v);
}

extern "C" cudaError_t cu_experts_act(cudaStream_t stream, const cu_experts *x, activation act,
                                      const float *gate_bias, const float *up_bias)
{
    size_t n = (size_t)x->n_rows * (size_t)x->top_k * (size_t)((x->ffn + 7) / 8 * 8);
    if (n > 0)
        CU_LAUNCH(act_kernel, dim3((unsigned)((n + VALUE_THREADS - 1) / VALUE_THREADS)),
                  dim3(VALUE_THREADS), 0, stream, *x, act, gate_bias, up_bias);
    return cudaGetLastError();
}

/* Grid (rows, pieces of a row). */
static __global__ void __launch_bounds__(ROW_THREADS)
    combine_kernel(cu_experts x, float *to, const float *down_bias, const float *shared, bool onto)
{
    int row = (int)blockIdx.x, i = (int)blockIdx.y * ROW_THREADS + (int)threadIdx.x;
    if (i >= x.dim || x.live[row] < 0) return;
    float *out = to + (size_t)row * (size_t)x.dim + i, sum = 0;
    if (shared)
        sum = cu_mul(
            *out, cu_div(1.0F, cu_add(1.0F, expf(-shared[(size_t)row * (size_t)x.shared_stride]))));
    else if (onto)
        sum = *out;
    for (int k = 0; k < x.top_k; k++) {
        size_t c = (size_t)row * (size_t)x.top_k + (size_t)k;
        int slot = x.slot[c];
        float v = cu_add(x.out[(size_t)slot * (size_t)x.dim + i],
                         base_bias(&x, down_bias, x.dim, slot, 2, i));
        sum = cu_fma(x.route.scale_in ? 1 : x.weight[c], v, sum);
    }
    *out = sum;
}

extern "C" cudaError_t cu_experts_combine(cudaStream_t stream, const cu_experts *x, float *to,
                                          const float *down_bias, const float *shared, bool onto)
{
    if (x->n_rows > 0)
        CU_LAUNCH(combine_kernel,
                  dim3((unsigned)x->n_rows, (unsigned)((x->dim + ROW_THREADS - 1) / ROW_THREADS)),
                  dim3(ROW_THREADS), 0, stream, *x, to, down_bias, shared, onto);
    return cudaGetLastError();
}
