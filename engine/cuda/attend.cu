/* attend.cu -- kernels of attend.h: FlashAttention-2's order, with Flash-Decoding's splits at fixed
 * positions, and online softmax (Milakov and Gimelshein).
 *
 *   keys of a row   0        512       1024      1536
 *                   +---------+---------+---------+--
 *                   | split 0 | split 1 | split 2 |      each summed alone, in tiles of 64
 *                   +---------+---------+---------+--
 *   decode          warp 0    warp 1    warp 2           the last to end merges 0, 1, 2
 *   long chunk      one block, 0 then 1 then 2           merges on the way
 *
 * One kernel source serves small items (one warp, one split) and large ones (eight warps, all
 * splits).  A warp has 16 packed rows.  page_scores(), tile_soften() and page_values() are all the
 * arithmetic.  Products are bf16 or f16 (the pages' type) on tensor cores with f32 sums; scores and
 * weights stay f32 until the second product.  What a compiler could contract differently in two
 * copies of the code has explicit roundings, so both kernels give the same bits.
 *
 * K and V are copied with cp.async.  A large item has space for two tiles of each: while tile t is
 * computed, t + 1 arrives.  A small item's warp has a ring of slots for one page of a head, K or V:
 * while one is computed, the others arrive.  This takes so little shared memory that a
 * multiprocessor of an H200 holds eight such warps, which hide each other's waits.
 *
 * Rows in shared memory have a stride of an odd number of 16-byte units, so ldmatrix uses all
 * banks.  Positions that no row of the item may see are filled with zeros, whatever a reused page
 * holds there.
 *
 * Codes (int8 pages) are integers that bf16 represents exactly.  They are multiplied as such; a
 * key's scale multiplies its scores, its value's scale the weights.  A single warp converts them in
 * registers.  Eight warps would each repeat that: there each thread converts the codes that it
 * copied, for all.
 *
 * f32 pages, values of another size than keys, and head sizes other than 64, 80, 96 and 128, take
 * plain_kernel(): a warp per packed row, no tensor cores.
 *
 * Its reference is in tests/emu/test_attend.cu.
 */
#include "engine/cuda/attend.h"

#include "engine/cuda/products/floats.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/rows/turn.h"

enum {
    WARP = 32,
    LARGE_WARPS = CU_LARGE_ROWS / 16,
    PLAIN_WARPS = 4,
    TILE = CU_TILE_TOKENS,
    SPLIT_TILES = CU_SPLIT_TOKENS / CU_TILE_TOKENS,
    PAGE = CU_PAGE_TOKENS,
    LANE_DIMS = CU_HEAD_DIM_MAX / WARP,
    MERGE_LANES = 8, /* of a row that is merged */
    MERGE_ROWS = WARP / MERGE_LANES,
    PAGES = TILE / PAGE,    /* of a tile */
    PAGE_BLOCKS = PAGE / 8, /* columns of a page's scores by 8 */
    N_KEY_BLOCKS = PAGES * PAGE_BLOCKS,
    ROOMS = 3,         /* of a small item, for one page each */
    AHEAD = ROOMS - 1, /* pages on their way while one is multiplied */
    STEPS = 2 * PAGES, /* of a tile: its pages of K, then those of V */
};

#define LOG2_E 1.44269504088896340736F

/* One piece of work, as both kernels see it. */
typedef struct {
    cu_attend_seq seq;
    cu_attend_item item;
    int kv_head, group, n_packed;
    int lo, len;      /* no row sees a position below lo; the sequence has `len` */
    int tile0, tile1; /* [tile0, tile1) are looked at */
} work;

/* The first position that a row at `pos` sees. */
__device__ static int window_start(const cu_attend_args *a, int pos)
{
    if (a->window == 0 || pos < a->window) return 0;
    return a->chunked ? pos - pos % a->window : pos - a->window + 1;
}

__device__ static work take_work(const cu_attend_args *a, const cu_attend_item *items, int i,
                                 int rows)
{
    work w;
    w.item = items[i / a->kv.n_kv_head];
    w.kv_head = i % a->kv.n_kv_head;
    w.seq = a->seq[w.item.seq];
    w.group = a->n_head / a->kv.n_kv_head;
    w.n_packed = w.seq.n_rows * w.group;
    int last = w.item.first + rows < w.n_packed ? w.item.first + rows - 1 : w.n_packed - 1;
    w.lo = window_start(a, w.seq.pos0 + w.item.first / w.group);
    w.len = w.seq.pos0 + w.seq.n_rows;
    int hi = w.seq.pos0 + last / w.group;
    w.tile0 = w.item.split0 * SPLIT_TILES > w.lo / TILE ? w.item.split0 * SPLIT_TILES : w.lo / TILE;
    w.tile1 =
        w.item.split1 * SPLIT_TILES < hi / TILE + 1 ? w.item.split1 * SPLIT_TILES : hi / TILE + 1;
    return w;
}

/* K of the work's head in page 0, whose K and V have so many bytes in all; V follows K. */
__device__ static const char *head_base(const cu_kv *kv, int kv_head, size_t both)
{
    return kv->mem + ((size_t)kv->layer * kv->n_kv_head + kv_head) * both;
}

/* Weights with which sums up to max `m0` and sums of max `m1` are added; returns the new max. */
__device__ static float merge_weights(float m0, float m1, float c, float *f0, float *f1)
{
    float m = m0 > m1 ? m0 : m1;
    if (m == -INFINITY) { /* nothing in either */
        *f0 = *f1 = 0;
        return m;
    }
    *f0 = cu_exp2(cu_mul(cu_add(m0, -m), c));
    *f1 = cu_exp2(cu_mul(cu_add(m1, -m), c));
    return m;
}

/* One over the sum of a head's weights, its sink's with them: `most` is the highest product, and c
 * is scale * log2(e). */
__device__ static float inverse(const cu_attend_args *a, int head, float most, float sum, float c)
{
    if (a->sinks) sum = cu_add(sum, cu_exp2(cu_fma(a->sinks[head], LOG2_E, -cu_mul(most, c))));
    return sum > 0 || sum != sum ? cu_div(1.0F, sum) : 0;
}

/* Row r of an item whose partials begin with `partial`. */
__device__ static size_t partial_at(const cu_attend_args *a, int partial, int kv_head, int r)
{
    int unit = cu_attend_unit(a->n_head / a->kv.n_kv_head);
    return ((size_t)(partial + r / unit) * a->kv.n_kv_head + kv_head) * unit + r % unit;
}

__device__ static float *partial_row(const cu_attend_args *a, int partial, int kv_head, int r)
{
    return a->partial_out + partial_at(a, partial, kv_head, r) * cu_kv_v_dim(&a->kv);
}

__device__ static float *partial_state(const cu_attend_args *a, int partial, int kv_head, int r)
{
    return a->partial_state + partial_at(a, partial, kv_head, r) * 2;
}

/* --------------------------------------------------------------------------------- the merge -- */

__device__ static void write_lane(const cu_attend_args *a, int row, int head, int i, float x)
{
    int d = cu_kv_v_dim(&a->kv);
    size_t at = (size_t)head * d + i;
    if (a->out16) {
        a->out16[(size_t)row * a->n_head * d + at] = cu_bf16_of(x);
    } else {
        a->out[(size_t)row * a->out_stride + at] = x;
    }
}

/* So many splits of a row, in ascending order: maxima m, sums l, from `sums` on `apart` floats from
 * one to the next.  All that is read is on its way at once, for a warp that merges is alone. */
template <int PAIRS>
__device__ static __forceinline__ void merge_four(float (*all)[2], float *all_m, float *all_l,
                                                  const float *m, const float *l, const float *sums,
                                                  size_t apart, float c)
{
    float o[4][PAIRS][2];
    CU_UNROLL
    for (int i = 0; i < 4; i++) {
        CU_UNROLL
        for (int j = 0; j < PAIRS; j++) {
            o[i][j][0] = o[i][j][1] = 0;
            if (m[i] != -INFINITY) /* else nobody wrote sums */
                cu_load_fresh_f32x2(o[i][j], sums + (size_t)i * apart + 2 * j * MERGE_LANES);
        }
    }
    CU_UNROLL
    for (int i = 0; i < 4; i++) {
        float f0, f1;
        if (m[i] == -INFINITY) continue;
        *all_m = merge_weights(*all_m, m[i], c, &f0, &f1);
        *all_l = cu_fma(l[i], f1, cu_mul(*all_l, f0));
        CU_UNROLL
        for (int j = 0; j < PAIRS; j++) {
            all[j][0] = cu_fma(o[i][j][0], f1, cu_mul(all[j][0], f0));
            all[j][1] = cu_fma(o[i][j][1], f1, cu_mul(all[j][1], f0));
        }
    }
}

/* The sums of an item's splits become the results of its rows [r0, r0 + MERGE_ROWS), in ascending
 * order, as end_split() does it; by a warp, eight lanes to a row.  HD: a value's size, or 0 where
 * it is known only here. */
template <int HD>
__device__ static __forceinline__ void merge_rows(const cu_attend_args *a, const work *w,
                                                  int partial0, int units, int r0)
{
    const int PAIRS = (HD ? HD : (int)CU_HEAD_DIM_MAX) / (2 * MERGE_LANES);
    int lane = cu_anew((int)threadIdx.x) % WARP, d = HD ? HD : cu_kv_v_dim(&a->kv);
    int r = r0 + lane / MERGE_LANES, nth = lane % MERGE_LANES, n = w->item.n_split;
    bool live = w->item.first + r < w->n_packed;
    float c = cu_mul(a->scale, LOG2_E), all[PAIRS][2], all_m = -INFINITY, all_l = 0;
    CU_UNROLL
    for (int j = 0; j < PAIRS; j++) all[j][0] = all[j][1] = 0;
    const float *sums = partial_row(a, partial0, w->kv_head, r) + 2 * nth;
    size_t apart = (size_t)units * (size_t)a->kv.n_kv_head *
                   (size_t)cu_attend_unit(a->n_head / a->kv.n_kv_head) * (size_t)d;
    for (int s0 = 0; s0 < n; s0 += MERGE_LANES) {
        float state[2] = {-INFINITY, 0}; /* of the row in split s0 + nth */
        if (live && s0 + nth < n) {
            const float *from = partial_state(a, partial0 + (s0 + nth) * units, w->kv_head, r);
            state[0] = cu_ld_fresh(from);
            state[1] = cu_ld_fresh(from + 1);
        }
        if constexpr (HD > 0) {
            CU_UNROLL_BY(1)
            for (int s = 0; s < MERGE_LANES && s0 + s < n; s += 4) {
                float m[4], l[4]; /* behind the last split -INFINITY */
                CU_UNROLL
                for (int i = 0; i < 4; i++) {
                    m[i] = cu_shfl_f32(state[0], lane - nth + s + i);
                    l[i] = cu_shfl_f32(state[1], lane - nth + s + i);
                }
                merge_four<PAIRS>(all, &all_m, &all_l, m, l, sums + (size_t)(s0 + s) * apart, apart,
                                  c);
            }
        } else {
            CU_UNROLL_BY(2) /* whose sums are on their way together */
            for (int s = 0; s < MERGE_LANES && s0 + s < n; s++) {
                float m = cu_shfl_f32(state[0], lane - nth + s), f0, f1;
                float l = cu_shfl_f32(state[1], lane - nth + s);
                if (m == -INFINITY) continue; /* this split was not computed */
                const float *from =
                    partial_row(a, partial0 + (s0 + s) * units, w->kv_head, r) + 2 * nth;
                all_m = merge_weights(all_m, m, c, &f0, &f1);
                all_l = cu_fma(l, f1, cu_mul(all_l, f0));
                CU_UNROLL
                for (int j = 0; j < PAIRS; j++) {
                    float o[2];
                    if (2 * (nth + j * MERGE_LANES) >= d) continue;
                    cu_load_fresh_f32x2(o, from + 2 * j * MERGE_LANES);
                    all[j][0] = cu_fma(o[0], f1, cu_mul(all[j][0], f0));
                    all[j][1] = cu_fma(o[1], f1, cu_mul(all[j][1], f0));
                }
            }
        }
    }
    if (!live) return;
    int p = w->item.first + r, row = w->seq.row0 + p / w->group;
    int head = w->kv_head * w->group + p % w->group, col = head * d + 2 * nth;
    float inv = inverse(a, head, all_m, all_l, c);
    float *out = a->out + (size_t)row * a->out_stride + col;
    uint16_t *out16 = a->out16 ? a->out16 + (size_t)row * a->n_head * d + col : nullptr;
    CU_UNROLL
    for (int j = 0; j < PAIRS; j++) {
        if (2 * (nth + j * MERGE_LANES) >= d) continue;
        float x[2] = {cu_mul(all[j][0], inv), cu_mul(all[j][1], inv)};
        if (out16)
            *(uint32_t *)(out16 + 2 * j * MERGE_LANES) = cu_bf16x2_of(x[0], x[1]);
        else
            cu_store_f32x2(out + 2 * j * MERGE_LANES, x);
    }
}

/* The block's sums are there for all; whether it is the last of its item's splits.  One thread. */
__device__ static bool arrive(const cu_attend_args *a, const work *w, int partial0)
{
    uint32_t *ticket = &a->ticket[partial0 * a->kv.n_kv_head + w->kv_head];
    bool last = cu_atomic_add_u32(ticket, 1) + 1 == (uint32_t)w->item.n_split;
    cu_threadfence();      /* the count, before the others' sums */
    if (last) *ticket = 0; /* for the next layer */
    return last;
}

/* ------------------------------------------------------------------ tensor cores: one tile -- */

template <bool BF16>
__device__ static __forceinline__ void mma(float *d, const uint32_t *a, const uint32_t *b)
{
    if (BF16)
        cu_mma_bf16_k16(d, a, b);
    else
        cu_mma_f16_k16(d, a, b);
}

template <bool BF16>
__device__ static __forceinline__ uint32_t pair_of(float lo, float hi)
{
    return BF16 ? cu_bf16x2_of(lo, hi) : cu_f16x2_of(lo, hi);
}

/* A head's K and V in a page. */
template <int HD, int TYPE>
struct page_form {
    static constexpr bool CODES = TYPE == DT_I8;
    static constexpr int ROW = CODES ? HD : HD * 2; /* bytes of a position */
    static constexpr int PART = PAGE * ROW, HEAD = 2 * PART + (CODES ? PAGE * 4 : 0);
    /* Of rows in shared memory. */
    static constexpr int APART = ROW / 16 % 2 ? ROW : ROW + 16;
};

/* Where a small item's pages lie in shared memory: a ring of rooms, then scales of two tiles. */
template <int HD, int TYPE>
struct small_rooms : page_form<HD, TYPE> {
    using F = page_form<HD, TYPE>;
    static constexpr int ROOM = PAGE * F::APART;
    static constexpr int SCALES_AT = ROOMS * ROOM;
    static constexpr int ALL = SCALES_AT + (F::CODES ? 2 * TILE * 4 : 0);
    /* Q as it is turned takes the last rooms, whose pages are sent when it has been read. */
    static constexpr int TURNED = CU_SMALL_ROWS * HD * (int)sizeof(float);
    static constexpr int FIRST =
        ROOMS - (TURNED + ROOM - 1) / ROOM; /* pages that are sent before */
    static_assert(FIRST >= 1, "q is turned beside the first page");

    CU_INLINE_METHOD static uint32_t *scales(char *smem, int tile)
    {
        return (uint32_t *)(smem + SCALES_AT) + tile % 2 * TILE;
    }
};

/* Where a large item's tiles lie in shared memory. */
template <int HD, int TYPE>
struct large_rooms : page_form<HD, TYPE> {
    using F = page_form<HD, TYPE>;
    static constexpr int THREADS = LARGE_WARPS * WARP, ROW = F::ROW;
    static constexpr bool STAGED = F::CODES;   /* codes become a tile of values */
    static constexpr int VALUES = HD * 2 + 16; /* of a row of it */
    /* Of a row as it is copied. */
    static constexpr int APART = STAGED ? ROW : F::APART;
    static constexpr int BYTES = TILE * (STAGED ? VALUES : APART); /* of a tile */
    static constexpr int SCALES_AT = STAGED ? 2 * (BYTES + TILE * ROW) : 4 * BYTES;
    static constexpr int ALL = SCALES_AT + (F::CODES ? 2 * TILE * 4 : 0);

    /* K (0) or V (1) of a tile as it is multiplied; one of two, or the only one. */
    CU_INLINE_METHOD static char *tile(char *smem, int which, int buf)
    {
        return smem + (STAGED ? which : 2 * which + buf) * BYTES;
    }

    /* Where copies of it come. */
    CU_INLINE_METHOD static char *copied(char *smem, int which, int buf)
    {
        return STAGED ? smem + 2 * BYTES + which * TILE * ROW : tile(smem, which, buf);
    }

    CU_INLINE_METHOD static uint32_t *scales(char *smem, int buf)
    {
        return (uint32_t *)(smem + SCALES_AT) + buf * TILE;
    }
};

/* Numbers of a tile's pages; 0: the sequence has none there. */
__device__ static __forceinline__ void pages_of(int *id, const cu_attend_args *a, const work *w,
                                                int tile)
{
    const int32_t *page = a->page + w->seq.page0 + tile * PAGES;
    CU_UNROLL
    for (int i = 0; i < PAGES; i++) id[i] = tile * TILE + i * PAGE < w->len ? page[i] : 0;
}

/* TILE rows whose positions are all there, in two pages: what a thread copies stands at constant
 * distances, in memory and in the tile. */
template <int ROW, int APART, int THREADS>
__device__ static __forceinline__ void load_whole(char *smem, const char *src0, const char *src1)
{
    const int CHUNKS = ROW / 16, STEP = THREADS / CHUNKS; /* rows */
    int r = (int)threadIdx.x / CHUNKS, at = (int)threadIdx.x % CHUNKS * 16;
    char *to = smem + r * APART + at;
    src0 += r * ROW + at;
    src1 += r * ROW + at;
    CU_UNROLL
    for (int j = 0; j < TILE; j += STEP)
        cu_cp_async16(to + j * APART, (j < PAGE ? src0 : src1) + j % PAGE * ROW);
}

/* Copies TILE rows of K or V, of two pages, to shared memory, zeros for positions outside
 * [lo, len). */
template <int ROW, int APART, int THREADS>
__device__ static __forceinline__ void load_tile(char *smem, const char *src0, const char *src1,
                                                 int pos, int lo, int len)
{
    const int CHUNKS = ROW / 16;
    const bool EVEN = THREADS % CHUNKS == 0 && THREADS / CHUNKS <= PAGE;
    if (EVEN && pos >= lo && pos + TILE <= len) {
        load_whole<ROW, APART, THREADS>(smem, src0, src1);
        return;
    }
    CU_UNROLL_BY(4) /* more costs registers that the sums need */
    for (int i = (int)threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, chunk = i % CHUNKS;
        bool live = pos + r >= lo && pos + r < len;
        const char *src = (r < PAGE ? src0 : src1) + (r % PAGE) * ROW + chunk * 16;
        cu_cp_async16_or_zero(smem + r * APART + chunk * 16, src, live);
    }
}

/* The same of one page by a warp: the page lies there in one piece. */
template <int ROW, int APART>
__device__ static __forceinline__ void load_page(char *room, const char *src, int pos, int lo,
                                                 int len)
{
    const int CHUNKS = ROW / 16, N = PAGE * CHUNKS / WARP;   /* of a lane */
    const int STEP = WARP % CHUNKS == 0 ? WARP / CHUNKS : 0; /* rows; 0: it is no whole number */
    int lane = (int)threadIdx.x % WARP;
    src += lane * 16;
    if (STEP && pos >= lo && pos + PAGE <= len) { /* at constant distances */
        char *to = room + lane / CHUNKS * APART + lane % CHUNKS * 16;
        CU_UNROLL
        for (int j = 0; j < N; j++) cu_cp_async16(to + j * STEP * APART, src + j * WARP * 16);
        return;
    }
    CU_UNROLL_BY(4)
    for (int j = 0; j < N; j++) {
        int i = lane + j * WARP, r = STEP ? lane / CHUNKS + j * STEP : i / CHUNKS;
        bool live = pos + r >= lo && pos + r < len;
        cu_cp_async16_or_zero(room + r * APART + i % CHUNKS * 16, src + j * WARP * 16, live);
    }
}

/* The scales of a tile's positions, K's in the lower and V's in the upper half of a word. */
template <int THREADS>
__device__ static __forceinline__ void load_scales(uint32_t *to, const char *src0, const char *src1,
                                                   int pos, int lo, int len)
{
    CU_UNROLL
    for (int i = (int)threadIdx.x; i < TILE; i += THREADS) {
        bool live = pos + i >= lo && pos + i < len;
        cu_cp_async4_or_zero(to + i, (i < PAGE ? src0 : src1) + i % PAGE * 4, live);
    }
}

/* K (0) or V (1) of a tile of a large item, and with K the scales of both. */
template <class R>
__device__ static __forceinline__ void load_part(char *smem, int which, const cu_attend_args *a,
                                                 const work *w, int tile)
{
    /* Of codes it is found again each time: registers hold no more. */
    int buf = (tile - w->tile0) % 2, kv_head = R::CODES ? cu_anew(w->kv_head) : w->kv_head;
    const char *head = head_base(&a->kv, kv_head, R::HEAD);
    int id[PAGES];
    pages_of(id, a, w, tile);
    const char *page0 = head + (size_t)id[0] * a->kv.stride;
    const char *page1 = head + (size_t)id[1] * a->kv.stride;
    load_tile<R::ROW, R::APART, R::THREADS>(R::copied(smem, which, buf), page0 + which * R::PART,
                                            page1 + which * R::PART, tile * TILE, w->lo, w->len);
    if (R::CODES && which == 0)
        load_scales<R::THREADS>(R::scales(smem, buf), page0 + 2 * R::PART, page1 + 2 * R::PART,
                                tile * TILE, w->lo, w->len);
}

/* Page `nth` of a tile, in the order of a small item's steps, comes to `room`; with the first one
 * the scales of all.  head: K of page 0; id: the tile's pages. */
template <class R>
__device__ static __forceinline__ void send_page(char *smem, char *room, int nth, const cu_kv *kv,
                                                 const char *head, const work *w, int tile,
                                                 const int *id)
{
    int pos = tile * TILE;
    /* Of codes it is found again each time: registers hold no more. */
    if (R::CODES) head = head_base(kv, cu_anew(w->kv_head), R::HEAD);
    const char *src = head + (size_t)id[nth % PAGES] * kv->stride + nth / PAGES * R::PART;
    load_page<R::ROW, R::APART>(room, src, pos + nth % PAGES * PAGE, w->lo, w->len);
    if (R::CODES && nth == 0)
        load_scales<WARP>(R::scales(smem, tile), head + (size_t)id[0] * kv->stride + 2 * R::PART,
                          head + (size_t)id[1] * kv->stride + 2 * R::PART, pos, w->lo, w->len);
}

/* A tile of values from the codes that each thread has copied itself. */
template <class R>
__device__ static __forceinline__ void put_values(char *smem, int which)
{
    const int CHUNKS = R::ROW / 16;
    const char *codes = R::copied(smem, which, 0);
    char *to = R::tile(smem, which, 0);
    CU_UNROLL
    for (int i = (int)threadIdx.x; i < TILE * CHUNKS; i += R::THREADS) {
        uint4 c = cu_ld16(codes + i * 16);
        char *at = to + i / CHUNKS * R::VALUES + i % CHUNKS * 32;
        cu_st16(at, make_uint4(cu_bf16x2_of_i8(c.x), cu_bf16x2_of_i8(c.y), cu_bf16x2_of_i8(c.z),
                               cu_bf16x2_of_i8(c.w)));
        cu_st16(at + 16, make_uint4(cu_bf16x2_of_i8(c.x >> 8), cu_bf16x2_of_i8(c.y >> 8),
                                    cu_bf16x2_of_i8(c.z >> 8), cu_bf16x2_of_i8(c.w >> 8)));
    }
}

/* Of a page: scores[8 keys][..] = Q K^T: fragments of m16n8k16, d ascending.  The blocks' sums wait
 * for themselves, not for one another. */
template <int HD, bool BF16>
__device__ static __forceinline__ void page_scores(float (*s)[4], const uint32_t (*q)[4],
                                                   const char *k)
{
    const int APART = HD * 2 + 16;
    int lane = (int)threadIdx.x % WARP;
    const char *at = k + (lane / 16 * 8 + lane % 8) * APART + lane / 8 % 2 * 16;
    CU_UNROLL
    for (int j = 0; j < PAGE_BLOCKS; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
    CU_UNROLL
    for (int kk = 0; kk < HD / 16; kk++) {
        CU_UNROLL
        for (int j = 0; j < PAGE_BLOCKS; j += 2) {
            uint32_t b[4];
            cu_ldmatrix_x4(b, at + j * 8 * APART + kk * 32);
            mma<BF16>(s[j], q[kk], b);
            mma<BF16>(s[j + 1], q[kk], b + 2);
        }
    }
}

/* o += P V of a page, keys ascending. */
template <int HD, bool BF16>
__device__ static __forceinline__ void page_values(float (*o)[4], const float (*p)[4],
                                                   const char *v)
{
    const int APART = HD * 2 + 16;
    int lane = (int)threadIdx.x % WARP;
    const char *at = v + (lane / 8 % 2 * 8 + lane % 8) * APART + lane / 16 * 16;
    CU_UNROLL
    for (int kk = 0; kk < PAGE / 16; kk++) {
        const float *x = p[2 * kk], *y = p[2 * kk + 1];
        uint32_t a[4] = {pair_of<BF16>(x[0], x[1]), pair_of<BF16>(x[2], x[3]),
                         pair_of<BF16>(y[0], y[1]), pair_of<BF16>(y[2], y[3])};
        CU_UNROLL
        for (int n = 0; n < HD / 16; n++) {
            uint32_t b[4];
            cu_ldmatrix_x4_trans(b, at + kk * 16 * APART + n * 32);
            mma<BF16>(o[2 * n], a, b);
            mma<BF16>(o[2 * n + 1], a, b + 2);
        }
    }
}

/* The same of codes.  ldmatrix gives a lane four bytes of a key: two pairs of values, of k or of
 * columns of V, eight apart. */
template <int HD, int APART>
__device__ static __forceinline__ void code_scores(float (*s)[4], const uint32_t (*q)[4],
                                                   const char *k)
{
    const char *at = k + (int)threadIdx.x % WARP * APART;
    CU_UNROLL
    for (int j = 0; j < PAGE_BLOCKS; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
    CU_UNROLL
    for (int kk = 0; kk < HD / 16; kk++) {
        uint32_t c[PAGE_BLOCKS];
        cu_ldmatrix_x4(c, at + kk * 16);
        CU_UNROLL
        for (int i = 0; i < PAGE_BLOCKS; i++) {
            uint32_t b[2] = {cu_bf16x2_of_i8(c[i]), cu_bf16x2_of_i8(c[i] >> 8)};
            cu_mma_bf16_k16(s[i], q[kk], b);
        }
    }
}

template <int HD, int APART>
__device__ static __forceinline__ void code_values(float (*o)[4], const float (*p)[4],
                                                   const char *v)
{
    const char *at = v + (int)threadIdx.x % WARP * APART;
    uint32_t a[2][4];
    CU_UNROLL
    for (int h = 0; h < 2; h++) {
        const float *x = p[2 * h], *y = p[2 * h + 1];
        a[h][0] = cu_bf16x2_of(x[0], x[1]);
        a[h][1] = cu_bf16x2_of(x[2], x[3]);
        a[h][2] = cu_bf16x2_of(y[0], y[1]);
        a[h][3] = cu_bf16x2_of(y[2], y[3]);
    }
    CU_UNROLL
    for (int n = 0; n < HD / 16; n++) {
        uint32_t c[PAGE_BLOCKS];
        cu_ldmatrix_x4_trans(c, at + n * 16);
        CU_UNROLL
        for (int h = 0; h < 2; h++) {
            uint32_t x = c[2 * h], y = c[2 * h + 1];
            uint32_t lo[2] = {cu_bf16x2_of_i8(x), cu_bf16x2_of_i8(y)};
            uint32_t hi[2] = {cu_bf16x2_of_i8(x >> 8), cu_bf16x2_of_i8(y >> 8)};
            cu_mma_bf16_k16(o[2 * n], a[h], lo);
            cu_mma_bf16_k16(o[2 * n + 1], a[h], hi);
        }
    }
}

/* Scores times the scales of their keys; weights (V) times those of their values. */
template <bool V>
__device__ static __forceinline__ void tile_scale(float (*s)[4], const uint32_t *scales)
{
    const uint32_t *at = scales + (int)threadIdx.x % 4 * 2;
    CU_UNROLL
    for (int j = 0; j < N_KEY_BLOCKS; j++) {
        uint2 two = cu_ld8(at + 8 * j);
        const float by[2] = {V ? cu_bf16_hi(two.x) : cu_bf16_lo(two.x),
                             V ? cu_bf16_hi(two.y) : cu_bf16_lo(two.y)};
        CU_UNROLL
        for (int i = 0; i < 4; i++) s[j][i] = cu_mul(s[j][i], by[i % 2]);
    }
}

__device__ static __forceinline__ float capped(float p, float cap)
{
    float e = expf(cu_mul(-2.0F, cu_div(fabsf(p), cap)));
    return copysignf(cu_mul(cap, cu_div(cu_add(1.0F, -e), cu_add(1.0F, e))), p);
}

__device__ static void tile_cap(float (*s)[4], float cap)
{
    for (int j = 0; j < N_KEY_BLOCKS; j++) {
        for (int i = 0; i < 4; i++) s[j][i] = capped(s[j][i], cap);
    }
}

/* Masks scores of keys from `pos` on outside [lo, hi] of the lane's two rows. */
__device__ static __forceinline__ void tile_mask(float (*s)[4], int pos, const int *lo,
                                                 const int *hi)
{
    int first = pos + (int)threadIdx.x % 4 * 2;
    CU_UNROLL
    for (int j = 0; j < N_KEY_BLOCKS; j++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            int key = first + j * 8 + i % 2, r = i / 2;
            if (key < lo[r] || key > hi[r]) s[j][i] = -INFINITY;
        }
    }
}

/* Scores become weights; the sums so far are scaled to the new maxima.  m, l: of the lane's two
 * rows; l is this lane's part of it.  c: scale * log2(e). */
template <int HD>
__device__ static __forceinline__ void tile_soften(float (*s)[4], float (*o)[4], float *m, float *l,
                                                   float c)
{
    float f[2], mc[2];
    CU_UNROLL
    for (int r = 0; r < 2; r++) {
        float top = m[r];
        CU_UNROLL
        for (int j = 0; j < N_KEY_BLOCKS; j++)
            top = cu_max(top, cu_max(s[j][2 * r], s[j][2 * r + 1]));
        top = cu_max(top, cu_shfl_xor_f32(top, 1));
        top = cu_max(top, cu_shfl_xor_f32(top, 2));
        float base = top == -INFINITY ? 0 : top; /* all masked so far: weights are 0, not NaN */
        mc[r] = cu_mul(base, c);
        f[r] = cu_exp2(cu_mul(cu_add(m[r], -base), c));
        m[r] = top;
        l[r] = cu_mul(l[r], f[r]);
    }
    /* Scaling by 1 changes no bit, so it may be left out. */
    if (!cu_all(f[0] == 1 && f[1] == 1)) {
        CU_UNROLL
        for (int n = 0; n < HD / 8; n++) {
            for (int i = 0; i < 4; i++) o[n][i] = cu_mul(o[n][i], f[i / 2]);
        }
    }
    CU_UNROLL
    for (int j = 0; j < N_KEY_BLOCKS; j++) {
        CU_UNROLL
        for (int i = 0; i < 4; i++) {
            s[j][i] = cu_exp2(cu_fma(s[j][i], c, -mc[i / 2]));
            l[i / 2] = cu_add(l[i / 2], s[j][i]);
        }
    }
}

/* ------------------------------------------------------------------ tensor cores: an item -- */

/* The lane's two packed rows. */
typedef struct {
    int row[2], head[2]; /* of the step; query head */
    int lo[2], hi[2];    /* positions that it sees; hi -1: there is no such row */
    int local[2];        /* among the item's */
} lane_rows;

__device__ static lane_rows rows_of(const cu_attend_args *a, const work *w)
{
    lane_rows lr;
    int local = (int)threadIdx.x / WARP * 16 + (int)threadIdx.x % WARP / 4;
    for (int r = 0; r < 2; r++) {
        lr.local[r] = local + 8 * r;
        int p = w->item.first + lr.local[r], in_seq = p / w->group;
        lr.row[r] = w->seq.row0 + in_seq;
        lr.head[r] = w->kv_head * w->group + p % w->group;
        int pos = w->seq.pos0 + in_seq;
        bool live = p < w->n_packed;
        lr.lo[r] = live ? window_start(a, pos) : 0;
        lr.hi[r] = live ? pos : -1;
    }
    return lr;
}

/* K and V of the item's only row go into their page, where the item has its split; `k`: room for a
 * head. */
template <int HD, int TYPE>
__device__ static void append_own(const cu_attend_args *a, const work *w, float *k)
{
    const cu_rope_args *t = &a->turn;
    int pos = w->seq.pos0, lane = (int)threadIdx.x % WARP;
    if (pos / TILE != w->tile1 - 1) return;
    size_t at = (size_t)pos * (size_t)(t->rope_dim / 2);
    size_t row = (size_t)w->seq.row0, own = (size_t)w->kv_head * HD;
    turn_head(t, k, t->k + row * t->k_stride + own, t->k_norm, t->cos + at, t->sin + at, lane);
    cu_kv kv = a->kv; /* what is known here */
    kv.head_dim = kv.v_dim = HD;
    kv.type = TYPE;
    char *head = const_cast<char *>(head_base(&kv, w->kv_head, page_form<HD, TYPE>::HEAD)) +
                 (size_t)a->page[w->seq.page0 + pos / PAGE] * kv.stride;
    cu_syncwarp(); /* lanes store what others turned */
    put_position(&kv, head, 0, pos % PAGE, k, lane);
    put_position(&kv, head, 1, pos % PAGE, t->v + row * t->v_stride + own, lane);
    cu_threadfence(); /* before the copies of the tile */
    cu_syncwarp();    /* of all lanes */
}

/* Q of the item's only row, turned, [group][HD] in shared memory. */
template <int HD>
__device__ static void turn_q(const cu_attend_args *a, const work *w, float *to)
{
    const cu_rope_args *t = &a->turn;
    size_t at = (size_t)w->seq.pos0 * (size_t)(t->rope_dim / 2);
    const float *q = a->q + (size_t)w->seq.row0 * a->q_stride + (size_t)w->kv_head * w->group * HD;
    for (int h = 0; h < w->group; h++)
        turn_head(t, to + h * HD, q + h * HD, t->q_norm, t->cos + at, t->sin + at,
                  (int)threadIdx.x % WARP);
    cu_syncwarp(); /* it is there for all lanes */
}

/* Q of the warp's 16 rows as A fragments, rounded to the type of the pages; `turned`: it lies
 * there. */
template <int HD, bool BF16>
__device__ static __forceinline__ void read_q(uint32_t (*q)[4], const cu_attend_args *a,
                                              const lane_rows *lr, const float *turned)
{
    int col = (int)threadIdx.x % 4 * 2;
    CU_UNROLL
    for (int r = 0; r < 2; r++) {
        const float *src =
            turned ? turned + lr->local[r] * HD + col
                   : a->q + (size_t)lr->row[r] * a->q_stride + (size_t)lr->head[r] * HD + col;
        CU_UNROLL
        for (int kk = 0; kk < HD / 16; kk++) {
            float x[2] = {0, 0}, y[2] = {0, 0};
            if (lr->hi[r] >= 0) {
                cu_load_f32x2(x, src + kk * 16);
                cu_load_f32x2(y, src + kk * 16 + 8);
            }
            q[kk][r] = pair_of<BF16>(x[0], x[1]);
            q[kk][2 + r] = pair_of<BF16>(y[0], y[1]);
        }
    }
}

/* Q of a small item; `turned`: room to turn it, where it has to be. */
template <int HD, bool BF16>
__device__ static __forceinline__ void load_q(uint32_t (*q)[4], const cu_attend_args *a,
                                              const work *w, const lane_rows *lr, float *turned)
{
    if (turned) turn_q<HD>(a, w, turned);
    read_q<HD, BF16>(q, a, lr, turned);
    if (turned) cu_syncwarp(); /* it has been read: pages may come there */
}

/* A split of row r, for whoever merges them. */
template <int HD>
__device__ static __forceinline__ void put_partial(const cu_attend_args *a, const work *w,
                                                   const lane_rows *lr, int r, float (*o)[4],
                                                   const float *m, const float *l, int col)
{
    float *dst = partial_row(a, w->item.partial, w->kv_head, lr->local[r]) + col;
    CU_UNROLL
    for (int n = 0; n < HD / 8; n++) cu_store_f32x2(dst + n * 8, &o[n][2 * r]);
    if (col == 0) {
        float state[2] = {m[r], l[r]};
        cu_store_f32x2(partial_state(a, w->item.partial, w->kv_head, lr->local[r]), state);
    }
}

/* A split that no row sees: its maximum says that there is nothing else to read. */
__device__ static void put_nothing(const cu_attend_args *a, const work *w, const lane_rows *lr)
{
    const float none[2] = {-INFINITY, 0};
    if (w->item.partial < 0 || (int)threadIdx.x % 4 != 0) return;
    for (int r = 0; r < 2; r++) {
        if (lr->hi[r] >= 0)
            cu_store_f32x2(partial_state(a, w->item.partial, w->kv_head, lr->local[r]), none);
    }
}

/* o of row r joins the splits before it, which lie in `out`. */
template <int HD>
__device__ static __forceinline__ void join_splits(float (*o)[4], const float *out, int r,
                                                   const float *m, const float *l, float *all_m,
                                                   float *all_l, bool first, float c)
{
    if (first) {
        all_m[r] = m[r];
        all_l[r] = l[r];
        CU_UNROLL
        for (int n = 0; n < HD / 8; n++) { /* -0 becomes 0, as it does when a merge begins */
            for (int i = 2 * r; i < 2 * r + 2; i++) o[n][i] = cu_add(o[n][i], 0.0F);
        }
        return;
    }
    float f0, f1;
    all_m[r] = merge_weights(all_m[r], m[r], c, &f0, &f1);
    all_l[r] = cu_fma(l[r], f1, cu_mul(all_l[r], f0));
    CU_UNROLL
    for (int n = 0; n < HD / 8; n++) {
        float old[2];
        cu_load_f32x2(old, out + n * 8);
        o[n][2 * r] = cu_fma(o[n][2 * r], f1, cu_mul(old[0], f0));
        o[n][2 * r + 1] = cu_fma(o[n][2 * r + 1], f1, cu_mul(old[1], f0));
    }
}

/* A split ends: its sums o (max m, sum l) go to the partials, or join those of the
 * splits before, which wait in `out` unscaled (max all_m, sum all_l).  The last split of
 * an item writes the result. */
template <int HD>
__device__ static __forceinline__ void
end_split(const cu_attend_args *a, const work *w, const lane_rows *lr, float (*o)[4],
          const float *m, float *l, float *all_m, float *all_l, bool first, bool last, float c)
{
    int col = (int)threadIdx.x % 4 * 2;
    CU_UNROLL
    for (int r = 0; r < 2; r++) {
        l[r] = cu_add(l[r], cu_shfl_xor_f32(l[r], 1));
        l[r] = cu_add(l[r], cu_shfl_xor_f32(l[r], 2));
    }
    CU_UNROLL
    for (int r = 0; r < 2; r++) {
        if (lr->hi[r] < 0) continue;
        if (w->item.partial >= 0) {
            put_partial<HD>(a, w, lr, r, o, m, l, col);
            continue;
        }
        float *out = a->out + (size_t)lr->row[r] * a->out_stride + lr->head[r] * HD + col;
        join_splits<HD>(o, out, r, m, l, all_m, all_l, first, c);
        if (last) {
            float inv = inverse(a, lr->head[r], all_m[r], all_l[r], c);
            CU_UNROLL
            for (int n = 0; n < HD / 8; n++) {
                for (int i = 2 * r; i < 2 * r + 2; i++) o[n][i] = cu_mul(o[n][i], inv);
            }
        }
        if (last && a->out16) {
            uint16_t *out16 = a->out16 + ((size_t)lr->row[r] * a->n_head + lr->head[r]) * HD + col;
            CU_UNROLL
            for (int n = 0; n < HD / 8; n++) {
                *(uint32_t *)(out16 + n * 8) = cu_bf16x2_of(o[n][2 * r], o[n][2 * r + 1]);
            }
        } else {
            CU_UNROLL
            for (int n = 0; n < HD / 8; n++) cu_store_f32x2(out + n * 8, &o[n][2 * r]);
        }
    }
}

template <int HD>
__device__ static __forceinline__ void begin_split(float (*o)[4], float *m, float *l)
{
    CU_UNROLL
    for (int n = 0; n < HD / 8; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
}

/* One behind the last of the work's tiles in the split of tile t. */
__device__ static __forceinline__ int split_end(const work *w, int t)
{
    int end = (t / SPLIT_TILES + 1) * SPLIT_TILES;
    return end < w->tile1 ? end : w->tile1;
}

/* Of the tile whose first key stands at `pos`, for both rows of the lane. */
__device__ static __forceinline__ bool sees_none(const lane_rows *lr, int pos)
{
    return (lr->hi[0] < pos || lr->lo[0] >= pos + TILE) &&
           (lr->hi[1] < pos || lr->lo[1] >= pos + TILE);
}

__device__ static __forceinline__ bool sees_whole(const lane_rows *lr, int pos)
{
    return lr->lo[0] <= pos && lr->hi[0] >= pos + TILE - 1 && lr->lo[1] <= pos &&
           lr->hi[1] >= pos + TILE - 1;
}

/* A split of a small item has been put: where it is the last of them, by time, all are merged.  The
 * item is read again: kept, it would take registers that the sums need. */
template <int HD>
__device__ static __forceinline__ void merge_item(const cu_attend_args *a,
                                                  const cu_attend_item *items, int i)
{
    if (items[i / a->kv.n_kv_head].partial < 0) return;
    const work w = take_work(a, items, cu_anew(i), CU_SMALL_ROWS);
    int units = cu_attend_units(w.n_packed - w.item.first, w.group);
    int partial0 = w.item.partial - w.item.nth * units;
    cu_threadfence(); /* each lane's sums, before the count */
    cu_syncwarp();    /* of all lanes */
    uint32_t last = threadIdx.x == 0 && arrive(a, &w, partial0);
    if (!cu_shfl_u32(last, 0)) return;
    cu_threadfence(); /* likewise, in each lane */
    CU_UNROLL_BY(1)
    for (int r = 0; r < CU_SMALL_ROWS && w.item.first + r < w.n_packed; r += MERGE_ROWS)
        merge_rows<HD>(a, &w, partial0, units, r);
}

/* Scores of the tile whose first key stands at `pos` become weights; scales: of codes. */
template <int HD, bool CODES>
__device__ static __forceinline__ void weigh_tile(const cu_attend_args *a, const lane_rows *lr,
                                                  int pos, float (*s)[4], float (*o)[4], float *m,
                                                  float *l, float c, const uint32_t *scales)
{
    if (CODES) tile_scale<false>(s, scales);
    if (a->cap > 0) tile_cap(s, a->cap);
    if (!cu_all(sees_whole(lr, pos))) tile_mask(s, pos, lr->lo, lr->hi);
    tile_soften<HD>(s, o, m, l, c);
    if (CODES) tile_scale<true>(s, scales);
}

/* Up to 16 packed rows of one kv head, by a warp.  A step multiplies one page, while those behind
 * it come to the other rooms. */
template <int HD, int TYPE>
__device__ static __forceinline__ void run_small(const cu_attend_args &a,
                                                 const cu_attend_item *items, int i, char *smem)
{
    using R = small_rooms<HD, TYPE>;
    constexpr bool BF16 = TYPE != DT_F16;
    const float c = cu_mul(a.scale, LOG2_E);
    work w = take_work(&a, items, i, CU_SMALL_ROWS);
    lane_rows lr = rows_of(&a, &w);

    if (w.tile0 >= w.tile1) { /* the plan's window is a wider one */
        put_nothing(&a, &w, &lr);
        return;
    }
    cu_syncwarp(); /* nobody reads the pages of the item before any more */
    float *turned = a.turn.k ? (float *)(smem + R::FIRST * R::ROOM) : nullptr;
    if (turned) append_own<HD, TYPE>(&a, &w, turned);
    const char *head = head_base(&a.kv, w.kv_head, R::HEAD);
    int id[PAGES];
    pages_of(id, &a, &w, w.tile0);
    uint32_t q[HD / 16][4];
    static_assert(AHEAD < STEPS, "numbers of pages are those of one tile");
    CU_UNROLL
    for (int n = 0; n < AHEAD; n++) {
        if (n == R::FIRST) load_q<HD, BF16>(q, &a, &w, &lr, turned);
        send_page<R>(smem, smem + n * R::ROOM, n, &a.kv, head, &w, w.tile0, id);
        cu_cp_async_commit();
    }
    if (R::FIRST >= AHEAD) load_q<HD, BF16>(q, &a, &w, &lr, turned);

    float o[HD / 8][4], m[2], l[2], all_m[2] = {0, 0}, all_l[2] = {0, 0};
    bool first = true;
    int at = AHEAD * R::ROOM; /* the room of the step before */
    for (int t = w.tile0; t < w.tile1;) {
        const int end = split_end(&w, t);
        begin_split<HD>(o, m, l);
        for (; t < end; t++) {
            bool busy = !cu_all(sees_none(&lr, t * TILE));
            float s[N_KEY_BLOCKS][4];
            CU_UNROLL
            for (int n = 0; n < STEPS; n++) {
                const int next = (n + AHEAD) % STEPS, later = (n + AHEAD) / STEPS;
                cu_syncwarp(); /* all have left the room of the step before */
                if (t + later < w.tile1)
                    send_page<R>(smem, smem + at, next, &a.kv, head, &w, t + later, id);
                cu_cp_async_commit();
                if (next == STEPS - 1 && t + later + 1 < w.tile1)
                    pages_of(id, &a, &w, t + later + 1);
                CU_CP_ASYNC_WAIT((int)AHEAD);
                cu_syncwarp(); /* this step's page is there, for all lanes */
                at = at == AHEAD * R::ROOM ? 0 : at + R::ROOM;
                if (!busy) continue;
                if (n == PAGES)
                    weigh_tile<HD, R::CODES>(&a, &lr, t * TILE, s, o, m, l, c, R::scales(smem, t));
                const char *page = smem + at;
                float(*of)[4] = s + n % PAGES * PAGE_BLOCKS;
                if constexpr (R::CODES) {
                    if (n < PAGES)
                        code_scores<HD, R::APART>(of, q, page);
                    else
                        code_values<HD, R::APART>(o, of, page);
                } else {
                    if (n < PAGES)
                        page_scores<HD, BF16>(of, q, page);
                    else
                        page_values<HD, BF16>(o, of, page);
                }
            }
        }
        if (R::CODES) { /* kept, they would take registers that the sums need */
            w.item.first = cu_anew(w.item.first);
            lr = rows_of(&a, &w);
        }
        end_split<HD>(&a, &w, &lr, o, m, l, all_m, all_l, first, t == w.tile1, c);
        first = false;
    }
}

/* Up to CU_LARGE_ROWS packed rows of one kv head, 16 of a warp. */
template <int HD, int TYPE>
__device__ static __forceinline__ void run_large(const cu_attend_args &a,
                                                 const cu_attend_item *items, int i, char *smem)
{
    using R = large_rooms<HD, TYPE>;
    constexpr bool BF16 = TYPE != DT_F16;
    const float c = cu_mul(a.scale, LOG2_E);
    work w = take_work(&a, items, i, CU_LARGE_ROWS);
    lane_rows lr = rows_of(&a, &w);

    if (w.tile0 >= w.tile1) { /* the plan's window is a wider one */
        put_nothing(&a, &w, &lr);
        return;
    }
    __syncthreads(); /* nobody reads the tiles of the item before any more */
    load_part<R>(smem, 0, &a, &w, w.tile0);
    cu_cp_async_commit();
    load_part<R>(smem, 1, &a, &w, w.tile0);
    cu_cp_async_commit();

    uint32_t q[HD / 16][4];
    read_q<HD, BF16>(q, &a, &lr, nullptr);
    float o[HD / 8][4], m[2], l[2], all_m[2] = {0, 0}, all_l[2] = {0, 0};
    bool first = true;
    for (int t = w.tile0; t < w.tile1;) {
        const int end = split_end(&w, t);
        begin_split<HD>(o, m, l);
        for (; t < end; t++) {
            int buf = (t - w.tile0) % 2;
            /* This tile's K comes, for all threads; V and the next K may be on their way.  All have
         * left the V tile that is filled next, and the K tile before the barrier before. */
            if (R::STAGED) {
                CU_CP_ASYNC_WAIT(1);
                put_values<R>(smem, 0);
                __syncthreads();
            }
            if (t + 1 < w.tile1) load_part<R>(smem, 0, &a, &w, t + 1);
            cu_cp_async_commit();
            if (!R::STAGED) {
                CU_CP_ASYNC_WAIT(2);
                __syncthreads();
            }
            int pos = t * TILE;
            bool busy = !cu_all(sees_none(&lr, pos));
            float s[N_KEY_BLOCKS][4];
            if (busy) {
                CU_UNROLL
                for (int n = 0; n < PAGES; n++)
                    page_scores<HD, BF16>(s + n * PAGE_BLOCKS, q,
                                          R::tile(smem, 0, buf) + n * PAGE * R::VALUES);
                weigh_tile<HD, R::CODES>(&a, &lr, pos, s, o, m, l, c, R::scales(smem, buf));
            }
            /* Likewise V, and the K tile that is filled next. */
            if (R::STAGED) {
                CU_CP_ASYNC_WAIT(1);
                put_values<R>(smem, 1);
                __syncthreads();
            }
            if (t + 1 < w.tile1) load_part<R>(smem, 1, &a, &w, t + 1);
            cu_cp_async_commit();
            if (!R::STAGED) {
                CU_CP_ASYNC_WAIT(2);
                __syncthreads();
            }
            if (busy) {
                CU_UNROLL
                for (int n = 0; n < PAGES; n++)
                    page_values<HD, BF16>(o, s + n * PAGE_BLOCKS,
                                          R::tile(smem, 1, buf) + n * PAGE * R::VALUES);
            }
        }
        end_split<HD>(&a, &w, &lr, o, m, l, all_m, all_l, first, t == w.tile1, c);
        first = false;
    }
}

/* The item's first tile, K and V of two pages, on its way to the second-level cache, where it is of
 * older steps. */
template <class F>
__device__ static __forceinline__ void fetch_ahead(const cu_attend_args *a,
                                                   const cu_attend_item *items, int i)
{
    const work w = take_work(a, items, i, CU_SMALL_ROWS);
    int lane = (int)threadIdx.x;
    if (w.tile0 >= w.tile1 || (w.tile0 + 1) * TILE > w.seq.pos0 || lane >= PAGES) return;
    size_t page = (size_t)a->page[w.seq.page0 + w.tile0 * PAGES + lane];
    cu_fetch_ahead(head_base(&a->kv, w.kv_head, F::HEAD) + page * a->kv.stride, F::HEAD);
}

/* In both kernels the blocks of the grid take items in turn. */
template <int HD, int TYPE>
__global__ __launch_bounds__(WARP, 8) void small_kernel(cu_attend_args a)
{
    CU_SHARED(char, pages);
    cu_grid_go();
    int n = a.counts->n_small;
    if ((int)blockIdx.x < n * a.kv.n_kv_head)
        fetch_ahead<page_form<HD, TYPE>>(&a, a.small, (int)blockIdx.x);
    cu_grid_wait(); /* for q, k and v */
    for (int i = (int)blockIdx.x; i < n * a.kv.n_kv_head; i += (int)gridDim.x) {
        run_small<HD, TYPE>(a, a.small, i, pages);
        merge_item<HD>(&a, a.small, i);
    }
}

template <int HD, int TYPE>
__global__ __launch_bounds__(LARGE_WARPS *WARP, 1) void large_kernel(cu_attend_args a)
{
    CU_SHARED(char, tiles);
    for (int i = (int)blockIdx.x; i < a.counts->n_large * a.kv.n_kv_head; i += (int)gridDim.x)
        run_large<HD, TYPE>(a, a.large, i, tiles);
}

/* --------------------------------------------------------------------- any size, any type -- */

/* Value i of d. */
__device__ static float kv_value(const char *p, int type, int i, int d)
{
    if (type == DT_F32) return ((const float *)p)[i];
    if (type == DT_I8) return (float)((const signed char *)p)[cu_kv_code_at(i, d)];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == DT_BF16 ? cu_f32_of_bf16(h) : cu_f32_of_f16(h);
}

/* One page of keys for one packed row: a lane has a key for the scores, then dims lane,
 * lane + 32 .. for the values. */
__device__ static void plain_page(const cu_kv *kv, const char *k, const char *v, const float *q,
                                  bool live, float *o, float *m, float *l, float c, float cap)
{
    int lane = (int)threadIdx.x % WARP, d = kv->head_dim, v_dim = cu_kv_v_dim(kv);
    int elem = kv->type == DT_F32 ? 4 : kv->type == DT_I8 ? 1 : 2;
    uint32_t scales = 0x3F803F80U; /* by ones */
    float s = -INFINITY;
    if (live && kv->type == DT_I8)
        scales = ((const uint32_t *)(v + cu_kv_part_bytes(v_dim, DT_I8)))[lane];
    if (live) {
        float acc[4] = {0, 0, 0, 0};
        const char *row = k + (size_t)lane * d * elem;
        int i = 0;
        for (; i + 4 <= d; i += 4) {
            for (int j = 0; j < 4; j++)
                acc[j] = cu_fma(q[i + j], kv_value(row, kv->type, i + j, d), acc[j]);
        }
        for (; i < d; i++) acc[0] = cu_fma(q[i], kv_value(row, kv->type, i, d), acc[0]);
        s = cu_mul(cu_add(cu_add(acc[0], acc[1]), cu_add(acc[2], acc[3])), cu_bf16_lo(scales));
        if (cap > 0) s = capped(s, cap);
    }
    float top = cu_max(*m, s);
    for (int x = WARP / 2; x > 0; x /= 2) top = cu_max(top, cu_shfl_xor_f32(top, x));
    float base = top == -INFINITY ? 0 : top;
    float f = cu_exp2(cu_mul(cu_add(*m, -base), c));
    float p = live ? cu_exp2(cu_mul(cu_add(s, -base), c)) : 0;
    *m = top;
    *l = cu_add(cu_mul(*l, f), p);
    p = cu_mul(p, cu_bf16_hi(scales));
    CU_UNROLL
    for (int j = 0; j < LANE_DIMS; j++) o[j] = cu_mul(o[j], f);
    unsigned lives = cu_ballot(live);
    for (int t = 0; t < PAGE; t++) {
        float pt = cu_shfl_f32(p, t);
        if (!(lives >> t & 1)) continue; /* whatever lies there is not multiplied */
        const char *row = v + (size_t)t * v_dim * elem;
        CU_UNROLL
        for (int j = 0; j < LANE_DIMS; j++) {
            if (lane + j * WARP < v_dim)
                o[j] = cu_fma(pt, kv_value(row, kv->type, lane + j * WARP, v_dim), o[j]);
        }
    }
}

/* One packed row of an item by one warp, its q in shared memory. */
__device__ static void plain_row(const cu_attend_args *a, const work *w, int local, float *q)
{
    int lane = (int)threadIdx.x % WARP, d = a->kv.head_dim, p = w->item.first + local;
    int in_seq = p / w->group, row = w->seq.row0 + in_seq,
        head = w->kv_head * w->group + p % w->group;
    int hi = w->seq.pos0 + in_seq, lo = window_start(a, hi);
    const int SPLIT_PAGES = (int)CU_SPLIT_TOKENS / (int)CU_PAGE_TOKENS;
    int v_dim = cu_kv_v_dim(&a->kv);
    size_t part = cu_kv_part_bytes(d, a->kv.type);
    const char *base = head_base(&a->kv, w->kv_head, cu_kv_head_bytes(d, v_dim, a->kv.type));
    float c = cu_mul(a->scale, LOG2_E);

    cu_syncwarp(); /* the row before is done with q */
    for (int i = lane; i < d; i += WARP)
        q[i] = a->q[(size_t)row * a->q_stride + (size_t)head * d + i];
    cu_syncwarp(); /* q is there for all lanes */

    float all[LANE_DIMS], all_m = -INFINITY, all_l = 0;
    for (int j = 0; j < LANE_DIMS; j++) all[j] = 0;
    for (int split = w->item.split0; split < w->item.split1; split++) {
        float o[LANE_DIMS], m = -INFINITY, l = 0;
        for (int j = 0; j < LANE_DIMS; j++) o[j] = 0;
        for (int b = split * SPLIT_PAGES; b < (split + 1) * SPLIT_PAGES; b++) {
            if (b * PAGE > hi || (b + 1) * PAGE <= lo) continue;
            const char *k = base + (size_t)a->page[w->seq.page0 + b] * a->kv.stride;
            int pos = b * PAGE + lane;
            plain_page(&a->kv, k, k + part, q, pos >= lo && pos <= hi, o, &m, &l, c, a->cap);
        }
        for (int x = WARP / 2; x > 0; x /= 2) l = cu_add(l, cu_shfl_xor_f32(l, x));
        if (w->item.partial >= 0) {
            float *dst = partial_row(a, w->item.partial, w->kv_head, local);
            for (int j = 0; j < LANE_DIMS; j++) {
                if (lane + j * WARP < v_dim) dst[lane + j * WARP] = o[j];
            }
            float *state = partial_state(a, w->item.partial, w->kv_head, local);
            if (lane == 0) state[0] = m;
            if (lane == 1) state[1] = l;
            return; /* an item with a partial has one split */
        }
        float f0, f1;
        all_m = merge_weights(all_m, m, c, &f0, &f1);
        all_l = cu_fma(l, f1, cu_mul(all_l, f0));
        for (int j = 0; j < LANE_DIMS; j++) all[j] = cu_fma(o[j], f1, cu_mul(all[j], f0));
    }
    float inv = inverse(a, head, all_m, all_l, c);
    for (int j = 0; j < LANE_DIMS; j++) {
        int i = lane + j * WARP;
        if (i < v_dim) write_lane(a, row, head, i, cu_mul(all[j], inv));
    }
}

/* A warp per packed row; `rows` of an item. */
__global__ __launch_bounds__(PLAIN_WARPS *WARP, 2) void plain_kernel(cu_attend_args a, int rows)
{
    CU_STATIC_SHARED(float, q, (int)PLAIN_WARPS *(int)CU_HEAD_DIM_MAX);
    const cu_attend_item *items = rows == CU_SMALL_ROWS ? a.small : a.large;
    int n = rows == CU_SMALL_ROWS ? a.counts->n_small : a.counts->n_large;
    CU_STATIC_SHARED(uint32_t, last, 1);
    int warp = (int)threadIdx.x / WARP;
    for (int i = (int)blockIdx.x; i < n * a.kv.n_kv_head; i += (int)gridDim.x) {
        work w = take_work(&a, items, i, rows);
        for (int r = warp; r < rows && w.item.first + r < w.n_packed; r += PLAIN_WARPS) {
            plain_row(&a, &w, r, q + warp * CU_HEAD_DIM_MAX);
        }
        if (w.item.partial < 0) continue; /* the whole block */
        int units = cu_attend_units(w.n_packed - w.item.first, w.group);
        int partial0 = w.item.partial - w.item.nth * units;
        cu_threadfence(); /* each thread's sums, before the count */
        __syncthreads();  /* of all warps; and all have read the `last` before */
        if (threadIdx.x == 0) last[0] = arrive(&a, &w, partial0);
        __syncthreads(); /* it is known */
        if (!last[0]) continue;
        cu_threadfence();                                          /* likewise, in each thread */
        merge_rows<0>(&a, &w, partial0, units, warp * MERGE_ROWS); /* all of CU_SMALL_ROWS */
    }
}

/* --------------------------------------------------------------------------------- host -- */

static bool has_tensor_path(const cu_attend_args *a)
{
    int d = a->kv.head_dim;
    if (cu_kv_v_dim(&a->kv) != d) return false;
    return a->kv.type != DT_F32 && (d == 64 || d == 80 || d == 96 || d == 128);
}

/* Shared memory of a block of a small item. */
template <int HD>
static int small_bytes(int type)
{
    return type == DT_I8 ? small_rooms<HD, DT_I8>::ALL : small_rooms<HD, DT_BF16>::ALL;
}

extern "C" bool cu_attend_turns(const cu_kv *kv, int n_head)
{
    cu_attend_args a = {};
    a.kv = *kv;
    return has_tensor_path(&a) && n_head / kv->n_kv_head <= CU_SMALL_ROWS;
}

extern "C" size_t cu_attend_partial_bytes(int n_head, int n_kv_head, int v_dim)
{
    size_t heads = (size_t)n_kv_head, rows = heads * (size_t)cu_attend_unit(n_head / n_kv_head);
    return rows * ((size_t)v_dim + 2) * sizeof(float) + heads * sizeof(uint32_t);
}

template <int HD, int TYPE>
static cudaError_t setup_type(void)
{
    constexpr int small = small_rooms<HD, TYPE>::ALL, large = large_rooms<HD, TYPE>::ALL;
    cudaError_t rc = CU_ALLOW_SHARED((small_kernel<HD, TYPE>), small);
    return rc != cudaSuccess ? rc : CU_ALLOW_SHARED((large_kernel<HD, TYPE>), large);
}

template <int HD>
static cudaError_t setup_size(void)
{
    cudaError_t rc = setup_type<HD, DT_BF16>();
    if (rc == cudaSuccess) rc = setup_type<HD, DT_F16>();
    return rc != cudaSuccess ? rc : setup_type<HD, DT_I8>();
}

extern "C" cudaError_t cu_attend_setup(void)
{
    cudaError_t rc = setup_size<64>();
    if (rc == cudaSuccess) rc = setup_size<80>();
    if (rc == cudaSuccess) rc = setup_size<96>();
    if (rc == cudaSuccess) rc = setup_size<128>();
    return rc;
}

extern "C" void cu_attend_grid(cu_attend_args *args, int n_sm, size_t shared_per_sm)
{
    /* Each block needs its shared memory and the 1 KiB that CUDA reserves; its registers allow at
     * most eight blocks on a multiprocessor. */
    int d = args->kv.head_dim, type = args->kv.type;
    int bytes = d == 64   ? small_bytes<64>(type)
                : d == 80 ? small_bytes<80>(type)
                : d == 96 ? small_bytes<96>(type)
                          : small_bytes<128>(type);
    int fit = (int)(shared_per_sm / ((size_t)bytes + 1024));
    bool tensor = has_tensor_path(args);
    args->grid_small = n_sm * (!tensor ? 8 : fit > 8 ? 8 : fit < 1 ? 1 : fit);
    args->grid_large = n_sm * (tensor ? 1 : 8);
}

template <int HD, int TYPE>
static void launch_type(cudaStream_t stream, const cu_attend_args *a)
{
    constexpr int small = small_rooms<HD, TYPE>::ALL, large = large_rooms<HD, TYPE>::ALL;
    if (a->grid_small > 0) {
        CU_LAUNCH_EARLY((small_kernel<HD, TYPE>), dim3((unsigned)a->grid_small), dim3(WARP), small,
                        stream, a->early, *a);
    }
    if (a->grid_large > 0) {
        CU_LAUNCH((large_kernel<HD, TYPE>), dim3((unsigned)a->grid_large), dim3(LARGE_WARPS * WARP),
                  large, stream, *a);
    }
}

template <int HD>
static void launch_size(cudaStream_t stream, const cu_attend_args *a)
{
    if (a->kv.type == DT_BF16)
        launch_type<HD, DT_BF16>(stream, a);
    else if (a->kv.type == DT_F16)
        launch_type<HD, DT_F16>(stream, a);
    else
        launch_type<HD, DT_I8>(stream, a);
}

static void launch_plain(cudaStream_t stream, const cu_attend_args *a)
{
    const int rows[2] = {CU_SMALL_ROWS, CU_LARGE_ROWS}, grid[2] = {a->grid_small, a->grid_large};
    for (int i = 0; i < 2; i++) {
        if (grid[i] <= 0) continue;
        CU_LAUNCH(plain_kernel, dim3((unsigned)grid[i]), dim3(PLAIN_WARPS * WARP), 0, stream, *a,
                  rows[i]);
    }
}

extern "C" cudaError_t cu_attend(cudaStream_t stream, const cu_attend_args *args)
{
    const cu_kv *kv = &args->kv;
    int v_dim = cu_kv_v_dim(kv);
    if (v_dim < 1 || v_dim > CU_HEAD_DIM_MAX || v_dim % 2 || kv->head_dim < 1 ||
        kv->head_dim > CU_HEAD_DIM_MAX || kv->head_dim % 2 || args->n_head % kv->n_kv_head ||
        args->q_stride % 2 || args->out_stride % 2 ||
        (args->turn.k && (!cu_attend_turns(kv, args->n_head) || args->grid_large > 0))) {
        return cudaErrorInvalidValue;
    }
    if (!has_tensor_path(args)) {
        launch_plain(stream, args);
    } else if (kv->head_dim == 64) {
        launch_size<64>(stream, args);
    } else if (kv->head_dim == 80) {
        launch_size<80>(stream, args);
    } else if (kv->head_dim == 96) {
        launch_size<96>(stream, args);
    } else {
        launch_size<128>(stream, args);
    }
    return cudaGetLastError();
}
