/* attend.c -- KV pages and attention on the CPU.
 *
 * A page holds positions of all layers in cells of 32 or less. Per layer, KV head and cell: K as
 * [d][32] (a panel, so scores are a product of tile.h), V as [32][d_pad]; int8 adds a scale per
 * position. A cell of latents has one matrix, [32][d], of keys that contain their values
 * (attn_shape.v_in_k).
 *
 * Work items are (sequence, KV head, up to eight (row, head) pairs): the query heads of a group
 * stay together, so a decode row of a grouped-query model reads its keys once. Each item goes over
 * its context in splits of SPLIT_BLOCKS blocks:
 *
 *   split: online softmax -> part (max, sum, o)      merge(part, part) in ascending order
 *   finish: o / sum
 *
 * If there are fewer than two items per thread, every split becomes a piece of its own and a second
 * parallel run merges them (as in FlashDecoding). The split boundaries are fixed positions, so both
 * ways give the same bits. With one KV head a thread takes up to TOGETHER items and goes over their
 * context together, so that a split is read from memory once.
 *
 * cpu_rope_append() applies the query and key norms and RoPE, and writes K and V into the pages.
 * Threads: the engine calls; pool threads take pieces by an atomic counter. Kernels:
 * attend_kernels.h.
 */
#include "engine/cpu/attend.h"

#include <assert.h>
#include <math.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/cpu/rows.h"
#include "engine/kv_int8.h"

enum {
    APPEND_ROWS = 4,      /* that a thread takes at a time */
    SMALL_WORK = 1 << 14, /* multiply-adds below which one thread is faster than waking the pool */
    TOGETHER = 8,         /* items that one thread takes at a time where they share their keys */
};

/* --------------------------------------------------------------------- pages -- */

static int padded(int d)
{
    return (d + D_UNIT - 1) / D_UNIT * D_UNIT;
}

static int cell_of(int page_tokens)
{
    return page_tokens < CPU_KV_BLOCK ? page_tokens : CPU_KV_BLOCK;
}

/* A layer's part of a page, which begins at `at`; its bytes. */
static size_t lay_out(cpu_kv_layer *l, const attn_shape *all, int page_tokens, int layer, size_t at)
{
    attn_shape sh = attn_of_layer(all, layer);
    size_t each = dtype_bytes(sh.kv_type), cell = (size_t)cell_of(page_tokens);
    size_t rows = sh.kv_type == DT_I8 ? (cell + 3) / 4 * 4 : cell; /* of V */
    l->at = at;
    l->head_dim = sh.head_dim;
    l->k_pad = padded(sh.head_dim);
    l->d_pad = padded(attn_v_dim(&sh));
    l->k_bytes = (size_t)l->k_pad * cell * each;
    l->v_bytes = sh.v_in_k ? 0 : (size_t)l->d_pad * rows * each;
    size_t scales = sh.kv_type == DT_I8 ? cell * sizeof(uint16_t) : 0;
    l->v_at = l->k_bytes + scales;
    l->cell_bytes = l->v_at + l->v_bytes + scales;
    l->head_bytes = l->cell_bytes * ((size_t)page_tokens / cell);
    return l->head_bytes * (size_t)sh.n_kv_head;
}

size_t cpu_kv_page_bytes(const backend *be, const attn_shape *shape)
{
    cpu_kv_layer l;
    size_t sum = 0;
    for (int i = 0; i < shape->n_layer; i++)
        sum += lay_out(&l, shape, be->caps.page_tokens, i, sum);
    return sum;
}

err_code cpu_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                       size_t stride, err *e)
{
    int most = shape->head_dim > shape->v_dim ? shape->head_dim : shape->v_dim;
    if (shape->v_in_k && (shape->v_dim > LATENT_RANK_MAX || most - shape->v_dim > LATENT_ROPE_MAX))
        return err_set(e, ERR_UNSUPPORTED,
                       "kv_lora_rank %d is greater than %d, or qk_rope_head_dim %d than %d",
                       shape->v_dim, LATENT_RANK_MAX, most - shape->v_dim, LATENT_ROPE_MAX);
    if (most > HEAD_DIM_MAX && !shape->v_in_k) {
        return err_set(e, ERR_UNSUPPORTED, "head_dim %d is greater than %d", most, HEAD_DIM_MAX);
    }
    cpu_kv *kv = calloc(1, sizeof(*kv) + (size_t)shape->n_layer * sizeof(*kv->layer));
    if (!kv) return err_set(e, ERR_NOMEM, "no memory for the KV pool");
    int tokens = be->caps.page_tokens;
    for (int i = 0; i < shape->n_layer; i++)
        kv->used_bytes += lay_out(&kv->layer[i], shape, tokens, i, kv->used_bytes);
    kv->head = (kv_pool){.shape = *shape, .n_pages = n_pages, .page_tokens = tokens};
    kv->cell = cell_of(tokens);
    kv->cells = tokens / kv->cell;
    assert(stride >= kv->used_bytes && (!shape->v_in_k || kv->cell == CPU_KV_BLOCK));
    kv->page_bytes = stride;
    kv->data = mem;
    kv->borrowed = true;
    *out = &kv->head;
    return ERR_NONE;
}

err_code cpu_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e)
{
    size_t page_bytes = cpu_kv_page_bytes(be, shape), bytes = page_bytes * (size_t)n_pages;
    void *mem = cpu_map(be, bytes);
    if (!mem) {
        return err_set(e, ERR_NOMEM, "no memory for %d KV pages (%zu bytes)", n_pages, bytes);
    }
    err_code rc = cpu_kv_attach(be, out, shape, n_pages, mem, page_bytes, e);
    if (rc)
        cpu_unmap(be, mem, bytes);
    else
        ((cpu_kv *)*out)->borrowed = false;
    return rc;
}

void cpu_kv_destroy(backend *be, kv_pool *pool)
{
    cpu_kv *kv = (cpu_kv *)pool;
    if (!kv->borrowed) cpu_unmap(be, kv->data, kv->page_bytes * (size_t)kv->head.n_pages);
    free(kv);
}

void cpu_kv_save(backend *be, const kv_pool *pool, int page, void *host)
{
    (void)be;
    const cpu_kv *kv = (const cpu_kv *)pool;
    memcpy(host, kv->data + (size_t)page * kv->page_bytes, kv->used_bytes);
}

void cpu_kv_load(backend *be, kv_pool *pool, int page, const void *host)
{
    (void)be;
    cpu_kv *kv = (cpu_kv *)pool;
    memcpy(kv->data + (size_t)page * kv->page_bytes, host, kv->used_bytes);
}

void cpu_kv_copy(backend *be, kv_pool *pool, int from, int to)
{
    (void)be;
    cpu_kv *kv = (cpu_kv *)pool;
    memcpy(kv->data + (size_t)to * kv->page_bytes, kv->data + (size_t)from * kv->page_bytes,
           kv->used_bytes);
}

/* --------------------------------------------------------------- rope, append -- */

typedef struct {
    const attend_kernels *kern;
    const row_kernels *rows;
    cpu_kv *kv;
    attn_shape shape; /* of the layer */
    float *q, *k;
    const float *v, *q_norm, *k_norm;
    float eps;
    const rope_table *rope;
    const step *s;
    int layer;
    atomic_size_t next;
} append_job;

/* Clamps to the largest f16: an infinity would spread to every row that attends to it. */
static uint16_t f16_within(float x)
{
    const float most = 65504;
    return f16_from_f32(x > most ? most : x < -most ? -most : x);
}

/* d values of one position of a cell: a column of K (d_pad 0), a row of V. */
static void store_values(char *to, uint16_t *scales, dtype type, int cell, int slot, int d_pad,
                         const float *x, int d)
{
    int first = d_pad ? slot * d_pad : slot, apart = d_pad ? 1 : cell;
    float *f = (float *)(void *)to + first;
    uint16_t *h = (uint16_t *)(void *)to + first;
    float by = 1;
    switch (type) {
    case DT_F32:
        for (int i = 0; i < d; i++) f[i * apart] = x[i];
        break;
    case DT_BF16:
        for (int i = 0; i < d; i++) h[i * apart] = bf16_from_f32(x[i]);
        break;
    case DT_F16:
        for (int i = 0; i < d; i++) h[i * apart] = f16_within(x[i]);
        break;
    case DT_I8:
        scales[slot] = int8_scale_of(x, d);
        by = bf16_to_f32(scales[slot]);
        for (int i = 0; i < d; i++) {
            size_t at = d_pad ? kv_code((size_t)slot, (size_t)i, (size_t)d_pad)
                              : kv_code((size_t)i, (size_t)slot, (size_t)cell);
            to[at] = int8_code_of(x[i], by);
        }
        break;
    }
}

/* n codes of one scale. */
static void store_codes(int8_t *to, uint16_t *scale, const float *x, int n)
{
    *scale = int8_scale_of(x, n);
    const float by = bf16_to_f32(*scale);
    for (int i = 0; i < n; i++) to[i] = int8_code_of(x[i], by);
}

/* A key in which its value stands. */
static void store_row(const append_job *j, const int32_t *page, int pos, const float *x)
{
    const cpu_kv_layer *l = &j->kv->layer[j->layer];
    const int d = l->head_dim, v = attn_v_dim(&j->shape);
    const size_t each = dtype_bytes(j->shape.kv_type), slot = (size_t)(pos % j->kv->cell);
    char *k = kv_cell(j->kv, page, j->layer, 0, pos), *to = k + slot * (size_t)l->k_pad * each;
    uint16_t *h = (uint16_t *)(void *)to, *scales = kv_scales(k, l->k_bytes) + slot * 2;
    memset(to + (size_t)d * each, 0, (size_t)(l->k_pad - d) * each);
    switch (j->shape.kv_type) {
    case DT_F32: memcpy(to, x, (size_t)d * each); break;
    case DT_BF16:
        for (int i = 0; i < d; i++) h[i] = bf16_from_f32(x[i]);
        break;
    case DT_F16:
        for (int i = 0; i < d; i++) h[i] = f16_within(x[i]);
        break;
    case DT_I8:
        store_codes((int8_t *)to, scales, x, v);
        store_codes((int8_t *)to + v, scales + 1, x + v, d - v);
        break;
    }
}

static void store_kv(const append_job *j, const int32_t *page, int head, int pos, const float *ks,
                     const float *vs)
{
    const cpu_kv_layer *l = &j->kv->layer[j->layer];
    dtype type = j->shape.kv_type;
    int cell = j->kv->cell, slot = pos % cell;
    char *k = kv_cell(j->kv, page, j->layer, head, pos), *v = k + l->v_at;
    store_values(k, kv_scales(k, l->k_bytes), type, cell, slot, 0, ks, l->head_dim);
    store_values(v, kv_scales(v, l->v_bytes), type, cell, slot, l->d_pad, vs,
                 attn_v_dim(&j->shape));
}

static void turn_head(const append_job *j, float *x, const float *norm, int pos, int d)
{
    bool last = j->rope->norm_last && norm;
    j->kern->rope(x, last ? NULL : norm, j->eps, j->rope, pos, d);
    if (last) j->rows->rms_norm(x, x, norm, j->eps, d);
}

static void append_row(const append_job *j, const step_seq *sq, int row)
{
    const attn_shape *sh = &j->shape;
    int pos = j->s->pos[row], d = sh->head_dim, v_dim = attn_v_dim(sh);
    float *q = j->q + (size_t)row * sh->n_head * d;
    float *near = q + (size_t)j->s->n_rows * sh->n_head * d;
    for (int h = 0; h < sh->n_head && sh->kept > 0; h++) {
        memcpy(near + h * d, q + h * d, (size_t)d * sizeof(*q));
        turn_head(j, near + h * d, j->q_norm, attn_near(sh, pos), d);
    }
    for (int h = 0; h < sh->n_head; h++) turn_head(j, q + h * d, j->q_norm, pos, d);
    if (j->rope->q_scale > 0) {
        float runs = floorf((float)(pos + j->rope->q_from) / j->rope->q_floor);
        float by = 1 + j->rope->q_scale * log1pf(runs);
        for (int i = 0; i < sh->n_head * d; i++) q[i] *= by;
    }
    assert(pos >= sq->pos0 && pos / j->kv->head.page_tokens < sq->n_page && pos < j->rope->max_pos);
    for (int h = 0; j->k && h < sh->n_kv_head; h++) {
        float *k = j->k + ((size_t)row * sh->n_kv_head + h) * d;
        turn_head(j, k, j->k_norm, pos, d);
        if (sh->v_in_k)
            store_row(j, sq->page, pos, k);
        else
            store_kv(j, sq->page, h, pos, k, j->v + ((size_t)row * sh->n_kv_head + h) * v_dim);
    }
}

static void append_thread(void *arg, int thread)
{
    (void)thread;
    append_job *j = arg;
    size_t from, to;
    while (pool_next_piece(&j->next, (size_t)j->s->n_rows, APPEND_ROWS, &from, &to)) {
        for (int i = 0; i < j->s->n_seq; i++) {
            const step_seq *sq = &j->s->seq[i];
            int row = sq->row0 > (int)from ? sq->row0 : (int)from;
            int end = sq->row0 + sq->n_rows < (int)to ? sq->row0 + sq->n_rows : (int)to;
            for (; row < end; row++) append_row(j, sq, row);
        }
    }
}

void cpu_rope_append(backend *be, kv_pool *pool, float *q, float *k, const float *v,
                     const float *q_norm, const float *k_norm, float norm_eps,
                     const rope_table *rope, const step *s, int layer)
{
    append_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->attend,
                    .rows = cpu_kernels_of(cpu_of(be)->isa)->rows,
                    .kv = (cpu_kv *)pool,
                    .shape = attn_of_layer(&pool->shape, layer),
                    .q = q,
                    .k = k,
                    .v = v,
                    .q_norm = q_norm,
                    .k_norm = k_norm,
                    .eps = norm_eps,
                    .rope = rope,
                    .s = s,
                    .layer = layer};
    size_t values = (size_t)s->n_rows * j.shape.n_head * j.shape.head_dim;
    cpu_run(be, values, SMALL_WORK, append_thread, &j);
}

/* ------------------------------------------------------------------- attention -- */

typedef struct {
    const attend_kernels *kern;
    const cpu_kv *kv;
    attn_shape shape; /* of the layer */
    int d_pad;
    float *out;
    const float *q, *sinks;
    const step *s;
    int layer;
    char *parts; /* of each piece, where items are split; else NULL */
    size_t part_bytes;
    atomic_int next, next_merge;
    int n_items, n_pieces, each; /* each: items of a piece, where none is split */
} attend_job;

/* One item: its rows and where its keys are. */
typedef struct {
    attend_row rows[ATTEND_ROWS];
    int n, kv_head;
    const int32_t *page;
    int first, last; /* splits */
} attend_item;

static int items_of(const attn_shape *sh, const step_seq *sq)
{
    int pairs = sq->n_rows * (sh->n_head / sh->n_kv_head);
    return sh->n_kv_head * ((pairs + ATTEND_ROWS - 1) / ATTEND_ROWS);
}

static int split_of(int pos)
{
    return pos / (SPLIT_BLOCKS * CPU_KV_BLOCK);
}

/* Number of splits that the rows of a sequence attend to, including the kept prefix. */
static int splits_of(const attend_job *j, const step_seq *sq)
{
    const attn_shape *sh = &j->shape;
    int from = attn_from(sh, j->layer, sq->pos0);
    return split_of(sq->pos0 + sq->n_rows - 1) - split_of(from) + 1 + (sh->kept > 0);
}

static attend_item item_of(const attend_job *j, const step_seq *sq, int item)
{
    const attn_shape *sh = &j->shape;
    int group = sh->n_head / sh->n_kv_head, d = sh->head_dim;
    size_t all = sh->kept > 0 ? (size_t)j->s->n_rows * sh->n_head : 0;
    int pair = item / sh->n_kv_head * ATTEND_ROWS, pairs = sq->n_rows * group;
    attend_item it = {.kv_head = item % sh->n_kv_head, .page = sq->page};
    for (; it.n < ATTEND_ROWS && pair < pairs; it.n++, pair++) {
        int row = sq->row0 + pair / group, head = it.kv_head * group + pair % group;
        size_t at = (size_t)row * sh->n_head + head;
        it.rows[it.n] = (attend_row){.q = j->q + at * d,
                                     .q_kept = j->q + (all + at) * d,
                                     .out = j->out + at * attn_v_dim(sh),
                                     .sink = j->sinks ? j->sinks[head] : -INFINITY,
                                     .pos = j->s->pos[row]};
    }
    assert(it.n > 0);
    it.first = split_of(attn_from(sh, j->layer, it.rows[0].pos));
    it.last = split_of(it.rows[it.n - 1].pos);
    assert(it.first <= it.last &&
           it.last * SPLIT_BLOCKS * CPU_KV_BLOCK < sq->n_page * j->kv->head.page_tokens);
    return it;
}

/* The n-th of its splits. */
static void sum_split(const attend_job *j, attend_part *part, const attend_item *it, int n)
{
    int kept = j->shape.kept > 0, at = n < kept ? SPLIT_KEPT : it->first + n - kept;
    (j->shape.v_in_k ? j->kern->split_latents : j->kern->split)(
        part, j->kv, it->rows, it->n, it->page, j->layer, it->kv_head, at);
}

static void finish(const attend_job *j, const attend_item *it, const attend_part *all)
{
    j->kern->finish(it->rows, all, it->n, attn_v_dim(&j->shape), j->d_pad);
}

/* n items of a sequence from `first` on, split by split: so that keys which they share are read
 * from memory once. */
static void run_items(const attend_job *j, const step_seq *sq, int first, int n)
{
    alignas(64) char all_bytes[TOGETHER][PART_BYTES_MAX], part_bytes[PART_BYTES_MAX];
    attend_item it[TOGETHER];
    attend_part *part = (void *)part_bytes;
    int splits[TOGETHER], most = 0;
    for (int i = 0; i < n; i++) {
        it[i] = item_of(j, sq, first + i);
        splits[i] = it[i].last - it[i].first + 1 + (j->shape.kept > 0);
        most = splits[i] > most ? splits[i] : most;
    }
    for (int at = 0; at < most; at++)
        for (int i = 0; i < n; i++) {
            attend_part *all = (void *)all_bytes[i];
            if (at >= splits[i]) continue;
            sum_split(j, at ? part : all, &it[i], at);
            if (at) j->kern->merge(all, part, it[i].n, j->d_pad);
        }
    for (int i = 0; i < n; i++) finish(j, &it[i], (void *)all_bytes[i]);
}

static attend_part *part_of(const attend_job *j, int piece)
{
    return (void *)(j->parts + (size_t)piece * j->part_bytes);
}

static void attend_thread(void *arg, int thread)
{
    (void)thread;
    attend_job *j = arg;
    const attn_shape *sh = &j->shape;
    int seq = 0, n = 0, items = 0;
    int before = 0, splits = 1; /* pieces of earlier sequences; of an item of this one */
    for (int i; (i = atomic_fetch_add(&j->next, 1)) < j->n_pieces;) {
        for (;; seq++, before += n) {
            splits = j->parts ? splits_of(j, &j->s->seq[seq]) : 1;
            items = items_of(sh, &j->s->seq[seq]);
            n = j->parts ? items * splits : (items + j->each - 1) / j->each;
            if (i - before < n) break;
        }
        const step_seq *sq = &j->s->seq[seq];
        if (j->parts) {
            attend_item it = item_of(j, sq, (i - before) / splits);
            sum_split(j, part_of(j, i), &it, (i - before) % splits);
        } else {
            int first = (i - before) * j->each, left = items - first;
            run_items(j, sq, first, left < j->each ? left : j->each);
        }
    }
}

/* An item with fewer splits than its sequence has empty parts at the end. */
static void merge_thread(void *arg, int thread)
{
    (void)thread;
    attend_job *j = arg;
    const attn_shape *sh = &j->shape;
    int item = 0, piece = 0, mine = atomic_fetch_add(&j->next_merge, 1);
    for (int s = 0; s < j->s->n_seq; s++) {
        int splits = splits_of(j, &j->s->seq[s]), items = items_of(sh, &j->s->seq[s]);
        for (int i = 0; i < items; i++, item++, piece += splits) {
            if (item != mine) continue;
            attend_item it = item_of(j, &j->s->seq[s], i);
            for (int at = 1; at < splits; at++)
                j->kern->merge(part_of(j, piece), part_of(j, piece + at), it.n, j->d_pad);
            finish(j, &it, part_of(j, piece));
            mine = atomic_fetch_add(&j->next_merge, 1);
        }
    }
}

/* With fewer items than this they are split. */
static int few_items(const cpu_state *cpu)
{
    return 2 * pool_threads(cpu->pool);
}

size_t cpu_attend_scratch(const cpu_state *cpu, int context, int head_dim)
{
    if (pool_threads(cpu->pool) == 1) return 0;
    return (size_t)few_items(cpu) * (size_t)(split_of(context) + 2) *
           attend_part_bytes(padded(head_dim));
}

/* False: no memory, and the backend has failed. */
static bool split_items(backend *be, attend_job *j)
{
    const attn_shape *sh = &j->shape;
    int pieces = 0;
    for (int i = 0; i < j->s->n_seq; i++)
        pieces += items_of(sh, &j->s->seq[i]) * splits_of(j, &j->s->seq[i]);
    assert(pieces >= j->n_items);
    if (pieces == j->n_items) return true;
    j->part_bytes = attend_part_bytes(j->d_pad);
    j->n_pieces = pieces;
    j->parts = cpu_scratch(be, SCRATCH_ATTEND, (size_t)pieces * j->part_bytes);
    return j->parts != NULL;
}

/* With one head of keys all items of a sequence read the same; each thread gets some pieces. */
static void cut_items(attend_job *j, int n_threads)
{
    int share = j->shape.n_kv_head == 1 ? j->n_items / (4 * n_threads) : 1;
    j->each = share < 1 ? 1 : share > TOGETHER ? TOGETHER : share;
    for (int i = 0; i < j->s->n_seq; i++)
        j->n_pieces += (items_of(&j->shape, &j->s->seq[i]) + j->each - 1) / j->each;
}

void cpu_attend(backend *be, const kv_pool *pool, float *out, const float *q, const float *sinks,
                const step *s, int layer)
{
    cpu_state *cpu = cpu_of(be);
    assert(pool->page_tokens == be->caps.page_tokens);
    attend_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->attend,
                    .kv = (const cpu_kv *)pool,
                    .shape = attn_of_layer(&pool->shape, layer),
                    .d_pad = ((const cpu_kv *)pool)->layer[layer].d_pad,
                    .out = out,
                    .q = q,
                    .sinks = sinks,
                    .s = s,
                    .layer = layer};
    size_t work = 0;
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *sq = &s->seq[i];
        j.n_items += items_of(&j.shape, sq);
        work += (size_t)sq->n_rows * (size_t)(sq->pos0 + sq->n_rows) * j.shape.n_head *
                j.shape.head_dim;
    }
    cut_items(&j, pool_threads(cpu->pool));
    if (work < SMALL_WORK) {
        attend_thread(&j, 0);
        return;
    }
    if (pool_threads(cpu->pool) > 1 && j.n_items < few_items(cpu) && !split_items(be, &j)) return;
    pool_run(cpu->pool, attend_thread, &j);
    if (j.parts) pool_run(cpu->pool, merge_thread, &j);
}
