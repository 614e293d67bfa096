/* sgmv_plan.c -- cuts a step into chunks and packs adapters for the kernels of sgmv.cu; no CUDA
 * here, so that the plan is tested without a device.
 *
 * A step's segments (rows of one adapter) are cut into chunks of at most chunk_rows rows; a
 * block of the kernels works on one chunk. Chunks are sorted into three kinds, so that each
 * kernel has a contiguous part of the list:
 *
 *     [0, n_small)        few rows: shrink and expand by the small kernels
 *     [n_small, n_lora)   many rows: shrink by tiles of SGMV_TILE_ROWS rows (a list of their own)
 *     [n_lora, n_all)     no matrices, only biases or gains
 *
 * Each chunk has a place in the scratch v, which holds x A^T between the two kernels: v0 is its
 * offset in floats, SGMV_OUT_MAX * v_rank floats per row. The small and the tiled chunks of one
 * segment share that place.
 *
 * Packing: A is [rank][d_in] with rows padded to 8 values. B is cut into blocks of SGMV_COLS
 * columns, each block stored in the order in which mma fragments are loaded (b_place()). The pad
 * is zero, so kernels need no bounds in k.
 */
#include "engine/cuda/sgmv_plan.h"

#include <assert.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/base/round.h"

/* ---- plan ------------------------------------------------------------------------------- */

/* One kind of segments: 0 small, 1 in tiles, 2 bare. */
static int kind_of(const sgmv_seg *sg, int tile_from)
{
    if (!sg->mats || sg->rank_max <= 0) return 2;
    return tile_from > 0 && sg->n_rows >= tile_from;
}

/* A segment with biases or gains alone has rank_max 0 but keeps its table. */
static int64_t cut(sgmv_chunk *out, int *n, int max, const sgmv_seg *sg, int each, int64_t v0)
{
    assert(each > 0 && sg->row0 >= 0 && sg->n_rows >= 0 && sg->rank_max <= LORA_RANK_MAX);
    int32_t v_rank = round_up(sg->rank_max, 8);
    for (int done = 0; done < sg->n_rows; done += each) {
        int left = sg->n_rows - done;
        if (*n == max) return -1;
        out[(*n)++] = (sgmv_chunk){.mats = sg->mats,
                                   .row0 = sg->row0 + done,
                                   .n_rows = left < each ? left : each,
                                   .v0 = (uint32_t)(v0 + (int64_t)done * SGMV_OUT_MAX * v_rank),
                                   .v_rank = v_rank};
    }
    return v0 + (int64_t)sg->n_rows * SGMV_OUT_MAX * v_rank;
}

int64_t sgmv_plan(sgmv_chunk *chunk, int max_chunk, sgmv_chunk *tile, int max_tile,
                  sgmv_counts *counts, const sgmv_seg *seg, int n_seg, int chunk_rows,
                  int tile_from)
{
    int n = 0, n_tile = 0, ends[3];
    int64_t v0 = 0;
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < n_seg; i++) {
            if (kind_of(&seg[i], tile_from) != kind) continue;
            if (kind == 1 && cut(tile, &n_tile, max_tile, &seg[i], SGMV_TILE_ROWS, v0) < 0)
                return -1;
            v0 = cut(chunk, &n, max_chunk, &seg[i], chunk_rows, v0);
            if (v0 < 0 || v0 > UINT32_MAX) return -1;
        }
        ends[kind] = n;
    }
    assert(n <= max_chunk && n_tile <= max_tile && ends[0] <= ends[1] && ends[1] <= ends[2]);
    *counts =
        (sgmv_counts){.n_small = ends[0], .n_lora = ends[1], .n_all = ends[2], .n_tile = n_tile};
    return v0;
}

int sgmv_plane_k(int d_in, dtype type)
{
    if (type == DT_F32) return round_up(d_in, 8);
    int least = SGMV_SLICE * SGMV_CHAINS;
    int n = (d_in + least - 1) / least;
    return (n + SGMV_PLANES_MAX - 1) / SGMV_PLANES_MAX * least;
}

int sgmv_planes(int d_in, dtype type)
{
    int k = sgmv_plane_k(d_in, type);
    return (d_in + k - 1) / k;
}

/* ---- packing ------------------------------------------------------------------------------ */

size_t sgmv_a_bytes(dtype pack, int rank, int d_in)
{
    return (size_t)rank * (size_t)round_up(d_in, 8) * dtype_bytes(pack);
}

size_t sgmv_b_bytes(dtype pack, int rank, int d_out)
{
    return (size_t)round_up(rank, 8) * (size_t)round_up(d_out, SGMV_COLS) * dtype_bytes(pack);
}

/* dst[to] = src[from], from `type` to `pack`. */
static void put(void *dst, size_t to, dtype pack, const void *src, size_t from, dtype type)
{
    uint16_t h;
    float f;
    if (type == DT_F32) {
        memcpy(&f, (const char *)src + 4 * from, 4);
    } else {
        memcpy(&h, (const char *)src + 2 * from, 2);
        if (type == pack) {
            ((uint16_t *)dst)[to] = h;
            return;
        }
        f = type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
    if (pack == DT_F32)
        ((float *)dst)[to] = f;
    else
        ((uint16_t *)dst)[to] = pack == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
}

/* Where B[col][r] of a block lies: see the top of sgmv_plan.h. */
static size_t b_place(dtype pack, int rank, int col, int r)
{
    if (pack == DT_F32) return (size_t)r * SGMV_COLS + (size_t)col;
    int m = col / 4, frag = col % 4, k = r % 16;
    int lane = m % 8 * 4 + k % 8 / 2, high = m / 8;
    int base = r / 16 * 16;
    size_t at = (size_t)base * SGMV_COLS;
    if (round_up(rank, 8) - base >= 16)
        return at + (size_t)(frag * 32 + lane) * 8 + (size_t)(k / 8 * 4 + high * 2 + k % 2);
    return at + (size_t)(frag * 32 + lane) * 4 + (size_t)(high * 2 + k % 2);
}

static void pack_b(dtype pack, void *dst, const void *src, dtype type, int rank, int d_out)
{
    memset(dst, 0, sgmv_b_bytes(pack, rank, d_out));
    size_t block = (size_t)round_up(rank, 8) * SGMV_COLS;
    for (int col = 0; col < d_out; col++) {
        for (int r = 0; r < rank; r++) {
            size_t to = (size_t)(col / SGMV_COLS) * block + b_place(pack, rank, col % SGMV_COLS, r);
            put(dst, to, pack, src, (size_t)col * (size_t)rank + (size_t)r, type);
        }
    }
}

void sgmv_pack(dtype pack, void *a_dst, void *b_dst, const void *a_src, const void *b_src,
               dtype type, int rank, int d_in, int d_out)
{
    size_t width = (size_t)round_up(d_in, 8);
    if (a_dst) memset(a_dst, 0, sgmv_a_bytes(pack, rank, d_in));
    for (int r = 0; a_dst && r < rank; r++) {
        size_t from = (size_t)r * (size_t)d_in, to = (size_t)r * width;
        if (type == pack) {
            memcpy((char *)a_dst + to * dtype_bytes(pack),
                   (const char *)a_src + from * dtype_bytes(pack),
                   (size_t)d_in * dtype_bytes(pack));
            continue;
        }
        for (int k = 0; k < d_in; k++)
            put(a_dst, to + (size_t)k, pack, a_src, from + (size_t)k, type);
    }
    if (b_dst) pack_b(pack, b_dst, b_src, type, rank, d_out);
}

void sgmv_pack_embed(dtype pack, void *a_dst, void *b_dst, const void *a_src, const void *b_src,
                     dtype type, int rank, int n_vocab, int dim)
{
    if (a_dst) memset(a_dst, 0, sgmv_a_bytes(pack, rank, n_vocab));
    for (int t = 0; a_dst && t < n_vocab; t++) {
        for (int r = 0; r < rank; r++) {
            put(a_dst, (size_t)t * (size_t)rank + (size_t)r, pack, a_src,
                (size_t)r * (size_t)n_vocab + (size_t)t, type);
        }
    }
    if (b_dst) pack_b(pack, b_dst, b_src, type, rank, dim);
}

int sgmv_mat_of(sgmv_mat *out, const lora_mat *m, int d_out, const void **more,
                const void *const *more_device)
{
    *out = (sgmv_mat){.a = m->a,
                      .b = m->b,
                      .gain = m->gain,
                      .bias = m->bias,
                      .rank = m->rank,
                      .scale = m->scale,
                      .a_first = m->rank,
                      .a_each = 1,
                      .b_first = INT32_MAX,
                      .b_each = SGMV_COLS,
                      .d_out = d_out};
    assert(m->rank >= 0 && m->rank <= LORA_RANK_MAX && d_out > 0);
    const lora_split *sp = m->split;
    int n = 0;
    if (!sp) return 0;
    if (sp->a && sp->a_first < m->rank) {
        assert(sp->a_each > 0 && sp->a_first > 0);
        int n_a = (m->rank - sp->a_first + sp->a_each - 1) / sp->a_each;
        out->a_first = sp->a_first;
        out->a_each = sp->a_each;
        out->a_more = more_device;
        memcpy(more, sp->a, (size_t)n_a * sizeof(*more));
        n = n_a;
    }
    if (sp->b && sp->b_first < d_out) {
        int n_b = (d_out - sp->b_first + sp->b_each - 1) / sp->b_each;
        assert(sp->b_first % SGMV_COLS == 0 && sp->b_each % SGMV_COLS == 0 && sp->b_each > 0);
        out->b_first = sp->b_first;
        out->b_each = sp->b_each;
        out->b_more = more_device + n;
        memcpy(more + n, sp->b, (size_t)n_b * sizeof(*more));
        n += n_b;
    }
    return n;
}
