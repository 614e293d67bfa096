/* kv.c -- KV pages of the CUDA backend: their memory, their copies, rope_append and attend.
 *
 * A page holds CU_PAGE_TOKENS positions of all layers; rows/kv.h gives its layout. Pages lie
 * `stride` bytes apart, either in memory that devmem.h owns (cuda_kv_attach()) or in a block of
 * our own (cuda_kv_create(), tests). Only one pool exists at a time, since attention's scratch
 * and the tables of adapters have its shape.
 *
 * All copies run on the main stream. So they are ordered with the steps around them without
 * events, and cuda_kv_copied() is one wait for many pages. They first wait for the upload
 * stream, because a page may be zeroed there right after it was reserved.
 *
 * Rotation and the write of K and V are fused into attention in decode steps: cuda_rope_append()
 * then only leaves its arguments in cu->turn, and the cuda_attend() that follows passes them to
 * the kernel. This relies on the model calling the two one after another, and on nobody else
 * reading k and v.
 *
 * Attention with BF16 products also writes its answer rounded to BF16 into cu->x16, so that the
 * output projection needs no conversion kernel.
 */
#include <assert.h>
#include <stdlib.h>

#include "engine/cuda/cuda.h"

size_t cuda_kv_page_bytes(const backend *be, const attn_shape *shape)
{
    (void)be;
    return cu_kv_bytes(shape->n_layer, shape->n_kv_head, shape->head_dim, attn_v_dim(shape),
                       (int)shape->kv_type);
}

/* Attention's scratch hangs on the shape of the heads: taken with the first pool.  Rows that
 * decode have a partial for each split of theirs, with prefixes that up to two share. */
static err_code open_partials(cuda_state *cu, const attn_shape *shape, int n_pages, err *e)
{
    if (cu->partial) return ERR_NONE;
    size_t each = cu_attend_partial_bytes(shape->n_head, shape->n_kv_head, attn_v_dim(shape));
    size_t splits = (size_t)n_pages * CU_PAGE_TOKENS * 2 / CU_SPLIT_TOKENS + (size_t)cu->max_seqs;
    size_t most = (size_t)cuda_partials_most(cu);
    cu->max_partial = (int)(splits < most ? splits : most);
    size_t bytes = (size_t)cu->max_partial * each;
    cu->partial = cuda_take(cu, bytes, false);
    return cu->partial ? cuda_clear(cu, cu->partial, bytes, e) /* tickets */
                       : err_set(e, ERR_NOMEM, "not enough device memory for attention's sums");
}

err_code cuda_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                        size_t stride, err *e)
{
    cuda_state *cu = cuda_of(be);
    if (cu->kv) return err_set(e, ERR_UNSUPPORTED, "the CUDA backend has one pool of KV pages");
    int v_dim = attn_v_dim(shape), most = shape->head_dim > v_dim ? shape->head_dim : v_dim;
    if (most > CU_HEAD_DIM_MAX || shape->head_dim % 2 != 0 || v_dim % 2 != 0) {
        return err_set(
            e, ERR_UNSUPPORTED,
            "heads of %d and values of %d: the CUDA backend supports even sizes up to %d",
            shape->head_dim, v_dim, CU_HEAD_DIM_MAX);
    }
    cuda_kv *kv = calloc(1, sizeof(*kv));
    if (!kv) return err_set(e, ERR_NOMEM, "no memory for a pool of pages");
    *kv = (cuda_kv){.head = {.shape = *shape, .n_pages = n_pages, .page_tokens = CU_PAGE_TOKENS},
                    .mem = mem,
                    .stride = stride};
    assert(stride >= cuda_kv_page_bytes(be, shape));
    err_code rc = open_partials(cu, shape, n_pages, e);
    if (!rc) rc = cuda_tables_open(cu, shape->n_layer, stride, e);
    if (!rc) rc = cuda_expert_tables_open(cu, shape->n_layer, stride, e);
    if (rc) {
        cuda_tables_close(cu);
        free(kv);
        return rc;
    }
    cu->kv = kv;
    *out = &kv->head;
    return ERR_NONE;
}

err_code cuda_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e)
{
    size_t page = (cuda_kv_page_bytes(be, shape) + 255) / 256 * 256;
    void *mem = cuda_alloc(be, (size_t)n_pages * page);
    if (!mem) return err_set(e, ERR_NOMEM, "not enough device memory for %d KV pages", n_pages);
    err_code rc = cuda_kv_attach(be, out, shape, n_pages, mem, page, e);
    if (rc)
        cuda_free(be, mem);
    else
        cuda_of(be)->kv->own = true;
    return rc;
}

void cuda_kv_destroy(backend *be, kv_pool *pool)
{
    cuda_state *cu = cuda_of(be);
    cuda_kv *kv = (cuda_kv *)pool;
    cuda_graphs_drop(cu);
    if (kv->own) cuda_free(be, kv->mem);
    cuda_tables_close(cu);
    cuda_expert_tables_close(cu);
    cuda_give(cu, cu->partial);
    cu->partial = NULL;
    cu->kv = NULL;
    free(kv);
}

static char *page_at(const cuda_kv *kv, int page)
{
    assert(page >= 0 && page < kv->head.n_pages);
    return kv->mem + (size_t)page * kv->stride;
}

void cuda_kv_save(backend *be, const kv_pool *pool, int page, void *host)
{
    cudaStream_t stream = cuda_of(be)->stream;
    cuda_await_uploads(be); /* it may have been cleared just now */
    (void)CU(be,
             cudaMemcpyAsync(host, page_at((const cuda_kv *)pool, page),
                             cuda_kv_page_bytes(be, &pool->shape), cudaMemcpyDeviceToHost, stream));
}

void cuda_kv_load(backend *be, kv_pool *pool, int page, const void *host)
{
    cudaStream_t stream = cuda_of(be)->stream;
    cuda_await_uploads(be);
    (void)CU(be,
             cudaMemcpyAsync(page_at((const cuda_kv *)pool, page), host,
                             cuda_kv_page_bytes(be, &pool->shape), cudaMemcpyHostToDevice, stream));
}

void cuda_kv_copy(backend *be, kv_pool *pool, int from, int to)
{
    const cuda_kv *kv = (const cuda_kv *)pool;
    cudaStream_t stream = cuda_of(be)->stream;
    cuda_await_uploads(be);
    (void)CU(be, cudaMemcpyAsync(page_at(kv, to), page_at(kv, from),
                                 cuda_kv_page_bytes(be, &pool->shape), cudaMemcpyDeviceToDevice,
                                 stream));
}

void cuda_kv_copied(backend *be)
{
    cuda_state *cu = cuda_of(be);
    (void)CU(be, wait_stream(cu->wait, cu->stream));
}

/* The system's page tables take its time once, and pageable copies would take it in each pause. */
bool cuda_pin(backend *be, void *p, size_t bytes)
{
    (void)be;
    if (cudaHostRegister(p, bytes, cudaHostRegisterDefault) == cudaSuccess) return true;
    (void)cudaGetLastError(); /* no room to lock: copies go through the driver's own buffers */
    return false;
}

void cuda_unpin(backend *be, void *p)
{
    if (!atomic_load(&cuda_of(be)->wait->hung)) (void)cudaHostUnregister(p);
}

/* ---- operations ------------------------------------------------------------------------ */

static cu_kv layer_of(const kv_pool *pool, int layer)
{
    const cuda_kv *kv = (const cuda_kv *)pool;
    assert(layer >= 0 && layer < pool->shape.n_layer);
    return (cu_kv){.mem = kv->mem,
                   .stride = kv->stride,
                   .layer = layer,
                   .n_kv_head = pool->shape.n_kv_head,
                   .head_dim = pool->shape.head_dim,
                   .type = (int)pool->shape.kv_type,
                   .v_dim = pool->shape.v_dim};
}

void cuda_rope_append(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                      const float *q_norm, const float *k_norm, float norm_eps,
                      const rope_table *rope, const step *s, int layer)
{
    cuda_state *cu = cuda_of(be);
    const attn_shape *shape = &kv->shape;
    if (!cuda_step_enter(be, s)) return;
    cuda_alias aq = cuda_where(cu, q, shape->n_head * shape->head_dim);
    cuda_alias ak = cuda_where(cu, k, shape->n_kv_head * shape->head_dim);
    cuda_alias av = cuda_where(cu, v, shape->n_kv_head * attn_v_dim(shape));
    cu_rope_args a = {.q = aq.at,
                      .k = ak.at,
                      .v = av.at,
                      .q_stride = aq.stride,
                      .k_stride = ak.stride,
                      .v_stride = av.stride,
                      .q_norm = q_norm,
                      .k_norm = k_norm,
                      .norm_eps = norm_eps,
                      .cos = rope->cos,
                      .sin = rope->sin,
                      .rope_dim = rope->rope_dim,
                      .first = rope->first,
                      .pairs = rope->pairs,
                      .q_scale = rope->q_scale,
                      .q_floor = rope->q_floor,
                      .q_from = rope->q_from,
                      .n_head = shape->n_head,
                      .n_rows = cu->step.shape.n_rows,
                      .pos = cu->step.pos,
                      .slot = cu->step.slot,
                      .kv = layer_of(kv, layer)};
    if (rope->norm_last) {
        (void)CU(be, cu_turn_first(cu->stream, &a));
        a.q_norm = a.k_norm = NULL;
        a.rope_dim = a.first = 0;
    }
    /* Attention is the next operation, and the only one that reads them. */
    bool rows_alone = cu->step.shape.kind != CUDA_EXACT; /* of sequences: a decode step */
    cu->turn = (cu_rope_args){0};
    if (rows_alone && a.q_scale == 0 && cu_attend_turns(&a.kv, a.n_head))
        cu->turn = a;
    else
        (void)CU(be, cu_rope_append(cu->stream, &a));
}

void cuda_attend(backend *be, const kv_pool *kv, float *out, const float *q, const float *sinks,
                 const step *s, int layer)
{
    cuda_state *cu = cuda_of(be);
    const attn_shape *shape = &kv->shape;
    int v_dim = attn_v_dim(shape), cols = shape->n_head * v_dim;
    bool half = cu->arith == DT_BF16 && cols % 8 == 0;
    if (!cuda_step_enter(be, s)) return;
    cuda_alias aq = cuda_where(cu, q, shape->n_head * shape->head_dim);
    size_t rows = (size_t)cu->max_partial * (size_t)shape->n_kv_head *
                  (size_t)cu_attend_unit(shape->n_head / shape->n_kv_head);
    float *state = cu->partial + rows * (size_t)v_dim;
    cu_attend_args a = {.out = out,
                        .out16 = half ? cu->x16 : NULL,
                        .q = aq.at,
                        .q_stride = aq.stride,
                        .out_stride = cols,
                        .n_head = shape->n_head,
                        .window = attn_window(shape, layer),
                        .chunked = shape->chunked,
                        .sinks = sinks,
                        .scale = shape->scale,
                        .cap = shape->cap / shape->scale,
                        .kv = layer_of(kv, layer),
                        .counts = cu->step.counts,
                        .seq = cu->step.seq,
                        .small = cu->step.small,
                        .large = cu->step.large,
                        .page = cu->step.page,
                        .turn = cu->turn,
                        .early = cuda_early(cu),
                        .partial_out = cu->partial,
                        .partial_state = state,
                        .ticket = (uint32_t *)(state + rows * 2)};
    cu_attend_grid(&a, cu->n_sm, cu->shared_per_sm);
    const cu_attend_counts *n = &cu->step.plan.counts;
    bool exact = cu->step.shape.kind == CUDA_EXACT;
    if (exact && n->n_small == 0) a.grid_small = 0;
    if (!exact || n->n_large == 0) a.grid_large = 0; /* rows of decode steps are small items */
    cu->turn.k = NULL;
    cu->x16_of = half ? out : NULL;
    (void)CU(be, cu_attend(cu->stream, &a));
}

/* ---- attention over latents ------------------------------------------------------------------ */

/* What reads `out` is a product alone. */
void cuda_latent_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                      const latent_shape *shape, int n_rows)
{
    cuda_state *cu = cuda_of(be);
    const cuda_alias at = cuda_where(cu, x, shape->rank + shape->rope);
    cuda_norm_part(be, out, &at, gain, eps, n_rows, shape->rank);
}

void cuda_latent_spread(backend *be, float *k, float *v, const float *kv, const float *x,
                        const latent_shape *shape, int n_rows)
{
    cuda_state *cu = cuda_of(be);
    cuda_alias own = cuda_where(cu, kv, shape->n_head * (shape->nope + shape->v));
    cuda_alias all = cuda_where(cu, x, shape->rank + shape->rope);
    cu_spread_args a = {.k = k,
                        .v = v,
                        .kv = own.at,
                        .shared = all.at + shape->rank,
                        .kv_stride = own.stride,
                        .shared_stride = all.stride,
                        .n_rows = cuda_step_rows(cu, n_rows),
                        .n_head = shape->n_head,
                        .nope = shape->nope,
                        .rope = shape->rope,
                        .v_dim = shape->v};
    (void)CU(be, cu_latent_spread(cu->stream, &a));
}
