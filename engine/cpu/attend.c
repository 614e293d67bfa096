/* attend.c -- KV pages and attention on the CPU.
 *
 * Work items are (sequence, kv head, up to eight (row, head) pairs): the heads of a group stand
 * together, so a decode row of a grouped-query model reads its keys once.  Items are handed out by
 * an atomic counter; which thread takes one does not change its bits.
 */
#include "engine/cpu/attend.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/halves.h"

enum {
    APPEND_ROWS = 4,      /* that a thread takes at a time */
    SMALL_WORK = 1 << 14, /* multiply-adds below which the fan-out costs more than it gives */
};

static const attend_kernels *kernels_of(const backend *be)
{
    cpu_isa isa = ((const cpu_state *)be->impl)->isa;
    if (isa >= ISA_AVX512) return &attend_avx512;
    return isa == ISA_AVX2 ? &attend_avx2 : &attend_portable;
}

/* --------------------------------------------------------------------- pages -- */

static void lay_out(cpu_kv *kv, const attn_shape *shape)
{
    kv->d_pad = (shape->head_dim + VEC - 1) / VEC * VEC;
    kv->elem_bytes = dtype_bytes(shape->kv_type);
    kv->head_bytes = 2 * (size_t)kv->d_pad * CPU_PAGE_TOKENS * kv->elem_bytes;
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
    if (shape->head_dim > HEAD_DIM_MAX) {
        return err_set(e, ERR_UNSUPPORTED, "head_dim %d is greater than %d", shape->head_dim,
                       HEAD_DIM_MAX);
    }
    cpu_kv *kv = calloc(1, sizeof(*kv));
    if (!kv) return err_set(e, ERR_NOMEM, "no memory for the KV pool");
    lay_out(kv, shape);
    kv->head = (kv_pool){.shape = *shape, .n_pages = n_pages, .page_tokens = CPU_PAGE_TOKENS};
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

void cpu_kv_copy_page(backend *be, kv_pool *pool, int dst_page, int src_page)
{
    (void)be;
    cpu_kv *kv = (cpu_kv *)pool;
    memcpy(kv->data + (size_t)dst_page * kv->page_bytes,
           kv->data + (size_t)src_page * kv->page_bytes, used_bytes(kv));
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

static void store_kv(const cpu_kv *kv, char *k, char *v, int slot, const float *ks, const float *vs)
{
    int d = kv->head.shape.head_dim;
    if (kv->head.shape.kv_type == DT_F32) {
        float *kf = (float *)(void *)k, *vp = (float *)(void *)v;
        for (int i = 0; i < d; i++) kf[i * CPU_PAGE_TOKENS + slot] = ks[i];
        memcpy(vp + (size_t)slot * kv->d_pad, vs, (size_t)d * sizeof(float));
        return;
    }
    uint16_t *kh = (uint16_t *)(void *)k, *vh16 = (uint16_t *)(void *)v;
    for (int i = 0; i < d; i++) kh[i * CPU_PAGE_TOKENS + slot] = bf16_from_f32(ks[i]);
    for (int i = 0; i < d; i++) vh16[(size_t)slot * kv->d_pad + i] = bf16_from_f32(vs[i]);
}

static void append_row(const append_job *j, const step_seq *sq, int row)
{
    const attn_shape *sh = &j->kv->head.shape;
    int pos = j->s->pos[row], d = sh->head_dim, half = j->rope->rope_dim / 2;
    const float *cos = j->rope->cos + (size_t)pos * half, *sin = j->rope->sin + (size_t)pos * half;
    float *q = j->q + (size_t)row * sh->n_head * d;
    float *k = j->k + (size_t)row * sh->n_kv_head * d;
    const float *v = j->v + (size_t)row * sh->n_kv_head * d;
    for (int h = 0; h < sh->n_head; h++) {
        j->kern->rope(q + h * d, j->q_norm, j->eps, cos, sin, d, j->rope->rope_dim);
    }
    int page = sq->page[pos / CPU_PAGE_TOKENS], slot = pos % CPU_PAGE_TOKENS;
    for (int h = 0; h < sh->n_kv_head; h++) {
        j->kern->rope(k + h * d, j->k_norm, j->eps, cos, sin, d, j->rope->rope_dim);
        store_kv(j->kv, kv_k(j->kv, page, j->layer, h), kv_v(j->kv, page, j->layer, h), slot,
                 k + h * d, v + h * d);
    }
}

static void append_thread(void *arg, int thread)
{
    (void)thread;
    append_job *j = arg;
    size_t from, to;
    while (cpu_next_piece(&j->next, (size_t)j->s->n_rows, APPEND_ROWS, &from, &to)) {
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
        cpu_pool_run(cpu_of(be)->pool, append_thread, &j);
}

/* ------------------------------------------------------------------- attention -- */

typedef struct {
    const attend_kernels *kern;
    const cpu_kv *kv;
    float *out;
    const float *q;
    const step *s;
    int layer;
    atomic_int next;
    int n_items;
} attend_job;

static int items_of(const attn_shape *sh, const step_seq *sq)
{
    int pairs = sq->n_rows * (sh->n_head / sh->n_kv_head);
    return sh->n_kv_head * ((pairs + ATTEND_ROWS - 1) / ATTEND_ROWS);
}

static void run_item(const attend_job *j, const step_seq *sq, int item)
{
    const attn_shape *sh = &j->kv->head.shape;
    int group = sh->n_head / sh->n_kv_head, d = sh->head_dim;
    int kv_head = item % sh->n_kv_head, pair = item / sh->n_kv_head * ATTEND_ROWS;
    int pairs = sq->n_rows * group;
    attend_row rows[ATTEND_ROWS];
    int n = 0;
    for (; n < ATTEND_ROWS && pair < pairs; n++, pair++) {
        int row = sq->row0 + pair / group, head = kv_head * group + pair % group;
        size_t at = ((size_t)row * sh->n_head + head) * d;
        rows[n] = (attend_row){.q = j->q + at, .out = j->out + at, .pos = j->s->pos[row]};
    }
    j->kern->attend(j->kv, rows, n, sq->page, j->layer, kv_head);
}

static void attend_thread(void *arg, int thread)
{
    (void)thread;
    attend_job *j = arg;
    int seq = 0, first = 0; /* items before this sequence */
    for (int i; (i = atomic_fetch_add(&j->next, 1)) < j->n_items;) {
        while (i - first >= items_of(&j->kv->head.shape, &j->s->seq[seq])) {
            first += items_of(&j->kv->head.shape, &j->s->seq[seq]);
            seq++;
        }
        run_item(j, &j->s->seq[seq], i - first);
    }
}

void cpu_attend(backend *be, const kv_pool *pool, float *out, const float *q, const step *s,
                int layer)
{
    attend_job j = {.kern = kernels_of(be),
                    .kv = (const cpu_kv *)pool,
                    .out = out,
                    .q = q,
                    .s = s,
                    .layer = layer};
    size_t work = 0;
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *sq = &s->seq[i];
        j.n_items += items_of(&pool->shape, sq);
        work += (size_t)sq->n_rows * (size_t)(sq->pos0 + sq->n_rows) * pool->shape.n_head *
                pool->shape.head_dim;
    }
    if (work < SMALL_WORK)
        attend_thread(&j, 0);
    else
        cpu_pool_run(cpu_of(be)->pool, attend_thread, &j);
}
