/* attend.c -- KV pages and attention on the CPU.
 *
 * Work items are (sequence, kv head, up to eight (row, head) pairs): the heads of a group stand
 * together, so a decode row of a grouped-query model reads its keys once.  Where there are fewer of
 * them than would keep the threads busy, and contexts are long, each split of an item's keys is a
 * piece of its own, and a second run merges them.  Pieces are handed out by an atomic counter;
 * which thread takes one does not change its bits.
 */
#include "engine/cpu/attend.h"

#include <assert.h>
#include <math.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/kv_int8.h"

enum {
    APPEND_ROWS = 4,      /* that a thread takes at a time */
    SMALL_WORK = 1 << 14, /* multiply-adds below which the fan-out costs more than it gives */
};

static const attend_kernels *kernels_of(const backend *be)
{
    cpu_isa isa = ((const cpu_state *)be->impl)->isa;
    if (isa >= ISA_AVX512) return &attend_avx512;
    return isa >= ISA_AVX2 ? &attend_avx2 : &attend_portable;
}

/* --------------------------------------------------------------------- pages -- */

static int padded(int d)
{
    return (d + D_UNIT - 1) / D_UNIT * D_UNIT;
}

static void lay_out(cpu_kv *kv, const attn_shape *shape)
{
    int k_pad = padded(shape->head_dim);
    size_t each = dtype_bytes(shape->kv_type);
    kv->d_pad = padded(attn_v_dim(shape));
    kv->k_bytes = (size_t)k_pad * CPU_PAGE_TOKENS * each;
    kv->v_bytes = (size_t)kv->d_pad * CPU_PAGE_TOKENS * each;
    size_t scales = shape->kv_type == DT_I8 ? CPU_PAGE_TOKENS * sizeof(uint16_t) : 0;
    kv->v_at = kv->k_bytes + scales;
    kv->head_bytes = kv->v_at + kv->v_bytes + scales;
    kv->layer_bytes = kv->head_bytes * (size_t)shape->n_kv_head;
    kv->page_bytes = kv->layer_bytes * (size_t)shape->n_layer;
}

size_t cpu_kv_page_bytes(const backend *be, const attn_shape *shape)
{
    (void)be;
    cpu_kv kv;
    lay_out(&kv, shape);
    return kv.page_bytes;
}

err_code cpu_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                       size_t stride, err *e)
{
    (void)be;
    int most = shape->head_dim > shape->v_dim ? shape->head_dim : shape->v_dim;
    if (most > HEAD_DIM_MAX) {
        return err_set(e, ERR_UNSUPPORTED, "head_dim %d is greater than %d", most, HEAD_DIM_MAX);
    }
    cpu_kv *kv = calloc(1, sizeof(*kv));
    if (!kv) return err_set(e, ERR_NOMEM, "no memory for the KV pool");
    lay_out(kv, shape);
    kv->head = (kv_pool){.shape = *shape, .n_pages = n_pages, .page_tokens = CPU_PAGE_TOKENS};
    assert(stride >= kv->page_bytes && kv->d_pad <= HEAD_DIM_MAX);
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

/* Pages may stand further apart than they are long. */
static size_t used_bytes(const cpu_kv *kv)
{
    return kv->layer_bytes * (size_t)kv->head.shape.n_layer;
}

void cpu_kv_save(backend *be, const kv_pool *pool, int page, void *host)
{
    (void)be;
    const cpu_kv *kv = (const cpu_kv *)pool;
    memcpy(host, kv->data + (size_t)page * kv->page_bytes, used_bytes(kv));
}

void cpu_kv_load(backend *be, kv_pool *pool, int page, const void *host)
{
    (void)be;
    cpu_kv *kv = (cpu_kv *)pool;
    memcpy(kv->data + (size_t)page * kv->page_bytes, host, used_bytes(kv));
}

/* --------------------------------------------------------------- rope, append -- */

typedef struct {
    const attend_kernels *kern;
    cpu_kv *kv;
    float *q, *k;
    const float *v, *q_norm, *k_norm;
    float eps;
    const rope_table *rope;
    const step *s;
    int layer;
    atomic_size_t next;
} append_job;

/* Not infinite, whatever the model computes: attention would spread it to every row that looks. */
static uint16_t f16_within(float x)
{
    const float most = 65504;
    return f16_from_f32(x > most ? most : x < -most ? -most : x);
}

/* d values of one position: a column of K (d_pad 0), a row of V. */
static void store_values(char *to, uint16_t *scales, dtype type, int slot, int d_pad,
                         const float *x, int d)
{
    int first = d_pad ? slot * d_pad : slot, apart = d_pad ? 1 : CPU_PAGE_TOKENS;
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
                              : kv_code((size_t)i, (size_t)slot, CPU_PAGE_TOKENS);
            to[at] = int8_code_of(x[i], by);
        }
        break;
    }
}

static void store_kv(const cpu_kv *kv, char *k, char *v, int slot, const float *ks, const float *vs)
{
    const attn_shape *sh = &kv->head.shape;
    dtype type = sh->kv_type;
    store_values(k, kv_scales(k, kv->k_bytes), type, slot, 0, ks, sh->head_dim);
    store_values(v, kv_scales(v, kv->v_bytes), type, slot, kv->d_pad, vs, attn_v_dim(sh));
}

static void append_row(const append_job *j, const step_seq *sq, int row)
{
    const attn_shape *sh = &j->kv->head.shape;
    int pos = j->s->pos[row], d = sh->head_dim, v_dim = attn_v_dim(sh);
    float *q = j->q + (size_t)row * sh->n_head * d;
    float *k = j->k + (size_t)row * sh->n_kv_head * d;
    const float *v = j->v + (size_t)row * sh->n_kv_head * v_dim;
    float *near = q + (size_t)j->s->n_rows * sh->n_head * d;
    for (int h = 0; h < sh->n_head && sh->kept > 0; h++) {
        memcpy(near + h * d, q + h * d, (size_t)d * sizeof(*q));
        j->kern->rope(near + h * d, j->q_norm, j->eps, j->rope, attn_near(sh, pos), d);
    }
    for (int h = 0; h < sh->n_head; h++) {
        j->kern->rope(q + h * d, j->q_norm, j->eps, j->rope, pos, d);
    }
    if (j->rope->q_scale > 0) {
        float by = 1 + j->rope->q_scale * log1pf(floorf((float)(pos + 1) / j->rope->q_floor));
        for (int i = 0; i < sh->n_head * d; i++) q[i] *= by;
    }
    assert(pos >= sq->pos0 && pos / CPU_PAGE_TOKENS < sq->n_page && pos < j->rope->max_pos);
    int page = sq->page[pos / CPU_PAGE_TOKENS], slot = pos % CPU_PAGE_TOKENS;
    for (int h = 0; h < sh->n_kv_head; h++) {
        j->kern->rope(k + h * d, j->k_norm, j->eps, j->rope, pos, d);
        store_kv(j->kv, kv_k(j->kv, page, j->layer, h), kv_v(j->kv, page, j->layer, h), slot,
                 k + h * d, v + h * v_dim);
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
    append_job j = {.kern = kernels_of(be),
                    .kv = (cpu_kv *)pool,
                    .q = q,
                    .k = k,
                    .v = v,
                    .q_norm = q_norm,
                    .k_norm = k_norm,
                    .eps = norm_eps,
                    .rope = rope,
                    .s = s,
                    .layer = layer};
    size_t values = (size_t)s->n_rows * pool->shape.n_head * pool->shape.head_dim;
    if (values < SMALL_WORK)
        append_thread(&j, 0);
    else
        pool_run(cpu_of(be)->pool, append_thread, &j);
}

/* ------------------------------------------------------------------- attention -- */

typedef struct {
    const attend_kernels *kern;
    const cpu_kv *kv;
    float *out;
    const float *q, *sinks;
    const step *s;
    int layer;
    char *parts; /* of each piece, where items are split; else NULL */
    size_t part_bytes;
    atomic_int next, next_merge;
    int n_items, n_pieces;
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
    return pos / (SPLIT_PAGES * CPU_PAGE_TOKENS);
}

/* Splits that rows of a sequence see, with what is kept. */
static int splits_of(const attend_job *j, const step_seq *sq)
{
    const attn_shape *sh = &j->kv->head.shape;
    int from = attn_from(sh, j->layer, sq->pos0);
    return split_of(sq->pos0 + sq->n_rows - 1) - split_of(from) + 1 + (sh->kept > 0);
}

static attend_item item_of(const attend_job *j, const step_seq *sq, int item)
{
    const attn_shape *sh = &j->kv->head.shape;
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
    assert(it.first <= it.last && it.last * SPLIT_PAGES < sq->n_page);
    return it;
}

/* The n-th of its splits. */
static void sum_split(const attend_job *j, attend_part *part, const attend_item *it, int n)
{
    int kept = j->kv->head.shape.kept > 0, at = n < kept ? SPLIT_KEPT : it->first + n - kept;
    j->kern->split(part, j->kv, it->rows, it->n, it->page, j->layer, it->kv_head, at);
}

static void finish(const attend_job *j, const attend_item *it, const attend_part *all)
{
    j->kern->finish(it->rows, all, it->n, attn_v_dim(&j->kv->head.shape), j->kv->d_pad);
}

static void run_item(const attend_job *j, const attend_item *it)
{
    alignas(64) char all_bytes[PART_BYTES_MAX], part_bytes[PART_BYTES_MAX];
    attend_part *all = (void *)all_bytes, *part = (void *)part_bytes;
    int n = it->last - it->first + 1 + (j->kv->head.shape.kept > 0);
    sum_split(j, all, it, 0);
    for (int i = 1; i < n; i++) {
        sum_split(j, part, it, i);
        j->kern->merge(all, part, it->n, j->kv->d_pad);
    }
    finish(j, it, all);
}

static attend_part *part_of(const attend_job *j, int piece)
{
    return (void *)(j->parts + (size_t)piece * j->part_bytes);
}

static void attend_thread(void *arg, int thread)
{
    (void)thread;
    attend_job *j = arg;
    const attn_shape *sh = &j->kv->head.shape;
    int seq = 0, before = 0, n = 0, splits = 1; /* pieces before this sequence, and of it */
    for (int i; (i = atomic_fetch_add(&j->next, 1)) < j->n_pieces;) {
        for (;; seq++, before += n) {
            splits = j->parts ? splits_of(j, &j->s->seq[seq]) : 1;
            n = items_of(sh, &j->s->seq[seq]) * splits;
            if (i - before < n) break;
        }
        attend_item it = item_of(j, &j->s->seq[seq], (i - before) / splits);
        if (j->parts)
            sum_split(j, part_of(j, i), &it, (i - before) % splits);
        else
            run_item(j, &it);
    }
}

/* An item of fewer splits than its sequence has sums of nothing at its end:
 * the rows see none of them. */
static void merge_thread(void *arg, int thread)
{
    (void)thread;
    attend_job *j = arg;
    const attn_shape *sh = &j->kv->head.shape;
    int item = 0, piece = 0, mine = atomic_fetch_add(&j->next_merge, 1);
    for (int s = 0; s < j->s->n_seq; s++) {
        int splits = splits_of(j, &j->s->seq[s]), items = items_of(sh, &j->s->seq[s]);
        for (int i = 0; i < items; i++, item++, piece += splits) {
            if (item != mine) continue;
            attend_item it = item_of(j, &j->s->seq[s], i);
            for (int at = 1; at < splits; at++)
                j->kern->merge(part_of(j, piece), part_of(j, piece + at), it.n, j->kv->d_pad);
            finish(j, &it, part_of(j, piece));
            mine = atomic_fetch_add(&j->next_merge, 1);
        }
    }
}

/* Fewer items than this, and they are split. */
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
    const attn_shape *sh = &j->kv->head.shape;
    int pieces = 0;
    for (int i = 0; i < j->s->n_seq; i++)
        pieces += items_of(sh, &j->s->seq[i]) * splits_of(j, &j->s->seq[i]);
    assert(pieces >= j->n_items);
    if (pieces == j->n_items) return true;
    j->part_bytes = attend_part_bytes(j->kv->d_pad);
    j->parts = cpu_scratch(be, SCRATCH_ATTEND, (size_t)pieces * j->part_bytes);
    j->n_pieces = pieces;
    return j->parts != NULL;
}

void cpu_attend(backend *be, const kv_pool *pool, float *out, const float *q, const float *sinks,
                const step *s, int layer)
{
    cpu_state *cpu = cpu_of(be);
    assert(pool->page_tokens == CPU_PAGE_TOKENS && pool->shape.head_dim <= HEAD_DIM_MAX);
    attend_job j = {.kern = kernels_of(be),
                    .kv = (const cpu_kv *)pool,
                    .out = out,
                    .q = q,
                    .sinks = sinks,
                    .s = s,
                    .layer = layer};
    size_t work = 0;
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *sq = &s->seq[i];
        j.n_items += items_of(&pool->shape, sq);
        work += (size_t)sq->n_rows * (size_t)(sq->pos0 + sq->n_rows) * pool->shape.n_head *
                pool->shape.head_dim;
    }
    j.n_pieces = j.n_items;
    if (work < SMALL_WORK) {
        attend_thread(&j, 0);
        return;
    }
    if (pool_threads(cpu->pool) > 1 && j.n_items < few_items(cpu) && !split_items(be, &j)) return;
    pool_run(cpu->pool, attend_thread, &j);
    if (j.parts) pool_run(cpu->pool, merge_thread, &j);
}
