/* backend.c -- the be_*() calls: arguments checked once for all backends, then the table.
 *
 * A wrong argument here is a fault of the caller (the model, the scheduler), so it is an assert;
 * a failure of the device is data (sticky, reported by be_sync).
 */
#include "engine/backend.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/backend_ops.h"
#include "engine/program/mapping.h"

void backend_fail(backend *be, err_code code, const char *fmt, ...)
{
    if (be->failed.code) return; /* the first failure explains the rest */
    char msg[sizeof(be->failed.msg)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    (void)err_set(&be->failed, code, "%s", msg);
}

static bool broken(const backend *be)
{
    return be->failed.code != ERR_NONE;
}

size_t be_memory(const backend_ops *ops, int device)
{
    return ops->memory ? ops->memory(device) : 0;
}

err_code be_open(backend **out, const backend_ops *ops, const backend_config *cfg, err *e)
{
    assert(ops->open && ops->close);
    assert(!ops->map == !ops->unmap && !ops->mark == !ops->await);
    *out = NULL;
    backend *be = calloc(1, sizeof(*be));
    if (!be) return err_set(e, ERR_NOMEM, "no memory for the backend");
    be->ops = ops;
    be->caps.name = ops->name;
    be->config = *cfg;
    err_code rc = ops->open(be, cfg, e);
    if (rc) {
        free(be);
        return rc;
    }
    assert(be->caps.page_tokens > 0 && be->caps.lora_cols >= 0);
    be->open = true;
    if (cfg->page_tokens > 0 && cfg->page_tokens != be->caps.page_tokens) {
        rc = err_set(e, ERR_UNSUPPORTED, "engine.page_tokens must be %d on %s, not %d",
                     be->caps.page_tokens, be->caps.name, cfg->page_tokens);
        be_close(be);
        return rc;
    }
    *out = be;
    return ERR_NONE;
}

void be_close(backend *be)
{
    if (!be) return;
    if (be->open) be->ops->close(be);
    free(be);
}

bool be_lost(const backend *be)
{
    return be->ops->lost && be->ops->lost(be);
}

be_remedy be_remedy_of(backend *be)
{
    be_remedy r = be->spent || mapping_lost()   ? BE_HEALS_NEVER
                  : be->open && be->ops->remedy ? be->ops->remedy(be)
                                                : BE_HEALS_REOPENED;
    if (r == BE_HEALS_ITSELF) be->failed = (err){0};
    return r;
}

const char *be_suspect(const backend *be)
{
    return be->open && be->ops->suspect ? be->ops->suspect(be) : NULL;
}

bool be_has_kernel(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; *(at += strspn(at, ", ")); at += strcspn(at, ", "))
        if (strcspn(at, ", ") == n && memcmp(at, name, n) == 0) return true;
    return false;
}

uint64_t be_order(const backend *be)
{
    return be->open && be->ops->order ? be->ops->order(be) : 0;
}

/* caps stay as they are: other threads read them. */
err_code be_reopen(backend *be, err *e)
{
    backend fresh = {.ops = be->ops, .config = be->config};
    if (be->open) be->ops->close(be);
    be->impl = NULL;
    be->open = false;
    be->failed = (err){0};
    if (be->spent) return err_set(e, ERR_DEVICE, "the device hangs");
    err_code rc = be->ops->open(&fresh, &be->config, e);
    be->impl = fresh.impl;
    be->open = rc == ERR_NONE;
    be->spent = fresh.spent;
    return rc;
}

const backend_caps *be_caps(const backend *be)
{
    return &be->caps;
}

void *be_alloc(backend *be, size_t bytes)
{
    return be->ops->alloc(be, bytes);
}

void be_free(backend *be, void *p)
{
    if (p) be->ops->free(be, p);
}

void *be_map(backend *be, size_t bytes)
{
    return be->ops->map ? be->ops->map(be, bytes) : be->ops->alloc(be, bytes);
}

void be_unmap(backend *be, void *p, size_t bytes)
{
    if (!p) return;
    if (be->ops->map)
        be->ops->unmap(be, p, bytes);
    else
        be->ops->free(be, p);
}

bool be_commits(const backend *be)
{
    return be->ops->map && be->ops->commit;
}

bool be_commit(backend *be, void *p, size_t bytes)
{
    assert(p && bytes > 0);
    return !be_commits(be) || be->ops->commit(be, p, bytes);
}

size_t be_room(backend *be)
{
    return be->ops->room ? be->ops->room(be) : 0;
}

/* Address space, zeroed when touched: most steps want few logits. */
void *be_host_alloc(backend *be, size_t bytes)
{
    if (be->ops->host_alloc) return be->ops->host_alloc(be, bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void be_host_free(backend *be, void *p, size_t bytes)
{
    if (!p) return;
    if (be->ops->host_free)
        be->ops->host_free(be, p, bytes);
    else
        (void)munmap(p, bytes);
}

err_code be_upload(backend *be, void *dst, const void *src, size_t bytes)
{
    assert(bytes == 0 || (dst && src));
    return be->ops->upload(be, dst, src, bytes);
}

err_code be_download(backend *be, void *dst, const void *src, size_t bytes)
{
    assert(bytes == 0 || (dst && src));
    return be->ops->download(be, dst, src, bytes);
}

bool be_can_copy(const backend *be)
{
    return be->ops->copy != NULL;
}

void be_copy(backend *be, void *dst, const void *src, size_t bytes)
{
    assert(be->ops->copy && dst && src && dst != src);
    if (!broken(be)) be->ops->copy(be, dst, src, bytes);
}

static err_code first_failure(backend *be, err *e)
{
    if (!broken(be)) return ERR_NONE;
    err first = be->failed;
    be->failed = (err){0};
    return err_set(e, first.code, "%s", first.msg);
}

/* A step that read zeros instead of a file's pages gives no answer. */
static void check_mappings(backend *be)
{
    if (mapping_lost())
        backend_fail(be, ERR_DEVICE,
                     "a mapped file (the model's, or packed weights) became shorter or can't be "
                     "read; replace files by renaming new ones onto them");
}

err_code be_sync(backend *be, err *e)
{
    if (!broken(be)) be->ops->sync(be);
    check_mappings(be);
    return first_failure(be, e);
}

/* --------------------------------------------------- weights, adapters, pages -- */

static void check_source(const weight_source *s)
{
    assert(s->rows > 0 && s->cols > 0);
    if (!weight_source_quantised(s)) return;
    assert(s->bits == 8 || (s->bits >= 2 && s->bits <= 6));
    assert(s->read_row && s->type != DT_F16 && (s->bits != 8 || s->least == INT8_MIN));
    assert(s->group > 0 && weight_source_even(s) && s->cols % s->group == 0);
    assert(s->span > 0 && s->span % s->group == 0 && s->cols % s->span == 0);
    assert(s->form == SCALES_NESTED || s->span == s->group);
    assert(s->form != SCALES_NESTED || (s->group <= 32 && s->span % 64 == 0 && s->span <= 256 &&
                                        (!s->has_min || s->least == 0)));
}

err_code be_weight_create(backend *be, weight **out, const weight_source *src, err *e)
{
    check_source(src);
    assert(weight_source_quantised(src) || src->data);
    *out = NULL;
    return be->ops->weight_create(be, out, src, e);
}

size_t be_weight_packed_bytes(const backend *be, const weight_source *src, uint32_t *layout)
{
    check_source(src);
    *layout = 0;
    return be->ops->weight_packed_bytes ? be->ops->weight_packed_bytes(be, src, layout) : 0;
}

err_code be_weight_adopt(backend *be, weight **out, const weight_source *src, const void *packed,
                         err *e)
{
    assert(packed && (uintptr_t)packed % 64 == 0);
    check_source(src);
    *out = NULL;
    return be->ops->weight_adopt(be, out, src, packed, e);
}

const void *be_weight_packed(const backend *be, const weight *w)
{
    return be->ops->weight_packed(w);
}

void be_weight_destroy(backend *be, weight *w)
{
    if (w) be->ops->weight_destroy(be, w);
}

size_t be_weight_bytes(const weight *w)
{
    return w->bytes;
}

dtype be_weight_type(const weight *w)
{
    return w->type;
}

err_code be_table_create(backend *be, const void **out, const void *host, dtype type, int n_vocab,
                         int dim, const weight *same, err *e)
{
    assert(host && n_vocab > 0 && dim > 0);
    *out = host;
    return be->ops->table_create ? be->ops->table_create(be, out, host, type, n_vocab, dim, same, e)
                                 : ERR_NONE;
}

void be_table_destroy(backend *be, const void *table)
{
    if (table && be->ops->table_destroy) be->ops->table_destroy(be, table);
}

static bool takes(const backend *be, unsigned extra)
{
    return (be->caps.extras & extra) == extra;
}

err_code be_prepare(backend *be, const weight *const *w, int n, err *e)
{
    assert(n >= 1 && n <= LINEAR_OUT_MAX);
    for (int i = 0; i < n; i++) assert(w[i]->cols == w[0]->cols && w[i]->type == w[0]->type);
    return be->ops->prepare ? be->ops->prepare(be, w, n, e) : ERR_NONE;
}

err_code be_experts_prepare(backend *be, void **there, const expert_set *set, err *e)
{
    assert(set->route.n >= 1 && set->route.n <= EXPERTS_MAX && takes(be, EXTRA_EXPERTS));
    *there = NULL;
    return be->ops->experts_prepare ? be->ops->experts_prepare(be, there, set, e) : ERR_NONE;
}

err_code be_reserve(backend *be, const step_bounds *most, err *e)
{
    assert(most->rows > 0 && most->logits >= 0 && most->context > 0);
    bool ok = !be->ops->reserve || be->ops->reserve(be, most);
    return ok ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for steps of %d rows", most->rows);
}

size_t be_lora_a_bytes(const backend *be, dtype base, int rank, int d_in)
{
    assert(rank >= 1 && rank <= LORA_RANK_MAX && d_in > 0);
    return be->ops->lora_a_bytes(be, base, rank, d_in);
}

size_t be_lora_b_bytes(const backend *be, dtype base, int rank, int d_out)
{
    assert(rank >= 1 && rank <= LORA_RANK_MAX && d_out > 0);
    return be->ops->lora_b_bytes(be, base, rank, d_out);
}

err_code be_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                      const void *b_src, dtype type, int rank, int d_in, int d_out, err *e)
{
    assert(rank >= 1 && rank <= LORA_RANK_MAX && d_in > 0 && d_out > 0);
    assert((!a_dst || a_src) && (!b_dst || b_src));
    return be->ops->lora_pack(be, base, a_dst, b_dst, a_src, b_src, type, rank, d_in, d_out, e);
}

err_code be_lora_pack_embed(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                            const void *b_src, dtype type, int rank, int n_vocab, int dim, err *e)
{
    assert(rank >= 1 && rank <= LORA_RANK_MAX && n_vocab > 0 && dim > 0);
    if (be->ops->lora_pack_embed) {
        return be->ops->lora_pack_embed(be, base, a_dst, b_dst, a_src, b_src, type, rank, n_vocab,
                                        dim, e);
    }
    size_t size = dtype_bytes(type);
    char *by_token = malloc((size_t)rank * (size_t)n_vocab * size);
    if (!by_token) return err_set(e, ERR_NOMEM, "no memory for LoRA on the embedding");
    for (int r = 0; r < rank; r++) {
        const char *from = (const char *)a_src + (size_t)r * (size_t)n_vocab * size;
        for (int t = 0; t < n_vocab; t++) {
            memcpy(by_token + ((size_t)t * (size_t)rank + (size_t)r) * size,
                   from + (size_t)t * size, size);
        }
    }
    /* Packing A keeps its values in order, so the transposed one keeps its own. */
    err_code rc =
        be->ops->lora_pack(be, base, a_dst, b_dst, by_token, b_src, type, rank, n_vocab, dim, e);
    free(by_token);
    return rc;
}

err_code be_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                               int cols, err *e)
{
    assert(src && rows > 0 && cols > 0);
    *out = NULL;
    return be->ops->lora_weight_create(be, out, src, type, rows, cols, e);
}

err_code be_lora_gain(backend *be, const weight *w, const lora_pair *pair, const float *magnitude,
                      float *gain, err *e)
{
    assert(pair->rank >= 1 && pair->rank <= LORA_RANK_MAX && pair->a && pair->b);
    assert(w && magnitude && gain);
    return be->ops->lora_gain(be, w, pair, magnitude, gain, e);
}

const char *be_extra_name(int bit)
{
    static const char *const names[EXTRAS] = {"norms and multipliers on the residual stream",
                                              "layer norms with a mean",
                                              "other activations than silu",
                                              "soft-capped scores",
                                              "windows that differ between layers",
                                              "scaled or soft-capped logits",
                                              "rotations of neighbouring pairs",
                                              "norms of all heads together",
                                              "an MLP without a gate",
                                              "mixtures of experts",
                                              "attention sinks",
                                              "attention over latents",
                                              "attention in chunks",
                                              "queries that grow with their position",
                                              "first tokens that stay beside a window",
                                              "short convolutions",
                                              "activations besides silu and gelu by tanh",
                                              "norms of queries and keys after their rotation",
                                              "gates on what attention answers",
                                              "the gated delta rule",
                                              "selective scans",
                                              "activations with parameters of their own",
                                              "an output layer with a bias",
                                              "shares of two experts by near scores",
                                              "experts without a gate",
                                              "heads of different sizes in different layers",
                                              "inputs of each layer's own",
                                              "scales of experts",
                                              "learned embeddings of positions",
                                              "streams that layers update together",
                                              "attention and an MLP side by side with a norm each"};
    assert(bit >= 0 && bit < EXTRAS);
    return names[bit];
}

static void check_shape(const backend *be, const attn_shape *s)
{
    assert(s->cap >= 0 && (s->cap == 0 || takes(be, EXTRA_SCORE_CAP)));
    assert(!s->layer_window || takes(be, EXTRA_WINDOWS));
    assert(!s->chunked || takes(be, EXTRA_CHUNKS));
    assert(s->kept == 0 || (takes(be, EXTRA_KEPT) && s->kept > 0 && s->window > 0));
    assert(s->kept == 0 || (!s->chunked && !s->layer_window && s->v_dim == 0));
    assert(s->v_dim >= 0 && (s->v_dim == 0 || takes(be, EXTRA_LATENT)));
    assert(!s->v_in_k || (be->caps.rules.absorbs && s->v_dim > 0 && s->v_dim < s->head_dim));
    /* A bias of keys adds one number to all scores of a query: without a cap it has no effect. */
    assert(!s->v_in_k || (s->n_kv_head == 1 && s->cap == 0));
    assert(s->n_layer > 0 && s->window >= 0);
    assert(!s->layer_heads || (takes(be, EXTRA_LAYER_HEADS) && s->v_dim == 0 && s->kept == 0));
    for (int i = 0; i < (s->layer_heads ? s->n_layer : 1); i++) {
        attn_shape own = attn_of_layer(s, i);
        assert(own.n_kv_head > 0 && own.head_dim > 0 && own.n_kv_head <= s->n_kv_head);
        assert(own.n_head % own.n_kv_head == 0 && own.head_dim <= s->head_dim);
    }
    assert(be->caps.kv_types >> s->kv_type & 1U);
}

size_t be_kv_page_bytes(const backend *be, const attn_shape *shape)
{
    check_shape(be, shape);
    return be->ops->kv_page_bytes(be, shape);
}

size_t be_kv_saved_bytes(const backend *be, const attn_shape *shape)
{
    check_shape(be, shape);
    return be->ops->kv_saved_bytes ? be->ops->kv_saved_bytes(be, shape)
                                   : be->ops->kv_page_bytes(be, shape);
}

err_code be_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, err *e)
{
    check_shape(be, shape);
    assert(n_pages > 0);
    *out = NULL;
    return be->ops->kv_create(be, out, shape, n_pages, e);
}

err_code be_kv_attach(backend *be, kv_pool **out, const attn_shape *shape, int n_pages, void *mem,
                      size_t stride, err *e)
{
    check_shape(be, shape);
    assert(n_pages > 0 && mem && stride >= be_kv_page_bytes(be, shape) && stride % 64 == 0);
    *out = NULL;
    return be->ops->kv_attach(be, out, shape, n_pages, mem, stride, e);
}

void be_kv_destroy(backend *be, kv_pool *kv)
{
    if (kv) be->ops->kv_destroy(be, kv);
}

void be_kv_save(backend *be, const kv_pool *kv, int page, void *host)
{
    assert(page >= 0 && page < kv->n_pages && host);
    if (!broken(be)) be->ops->kv_save(be, kv, page, host);
}

void be_kv_load(backend *be, kv_pool *kv, int page, const void *host)
{
    assert(page >= 0 && page < kv->n_pages && host);
    if (!broken(be)) be->ops->kv_load(be, kv, page, host);
}

void be_kv_copied(backend *be)
{
    if (!broken(be) && be->ops->kv_copied) be->ops->kv_copied(be);
}

void be_kv_copy(backend *be, kv_pool *kv, int from, int to)
{
    assert(from >= 0 && from < kv->n_pages && to >= 0 && to < kv->n_pages && from != to);
    if (!broken(be)) be->ops->kv_copy(be, kv, from, to);
}

bool be_pin(backend *be, void *p, size_t bytes)
{
    return be->ops->pin && be->ops->pin(be, p, bytes);
}

void be_unpin(backend *be, void *p)
{
    be->ops->unpin(be, p);
}

/* ------------------------------------------------------------------ operations -- */

/* Sequences and segments cover the rows in order, and rows stand where their sequence says. */
static void check_rows(const step *s)
{
    int row = 0;
    assert(s->n_rows > 0 && s->n_seq > 0 && s->n_seg > 0 && s->n_seg <= s->n_rows);
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *q = &s->seq[i];
        assert(q->row0 == row && q->n_rows > 0 && q->pos0 >= 0);
        assert(s->pos[row] == q->pos0 && s->pos[row + q->n_rows - 1] == q->pos0 + q->n_rows - 1);
        row += q->n_rows;
    }
    assert(row == s->n_rows);
    row = 0;
    for (int i = 0; i < s->n_seg; row += s->seg[i++].n_rows)
        assert(s->seg[i].row0 == row && s->seg[i].n_rows > 0);
    assert(row == s->n_rows);
    assert(s->n_logit >= 0 && s->n_logit <= s->n_rows);
    for (int i = 0; i < s->n_logit; i++) {
        assert(s->logit_row[i] > (i > 0 ? s->logit_row[i - 1] : -1));
        assert(s->logit_row[i] < s->n_rows);
    }
}

/* The pages that the step writes; those before were checked when they were written. */
static void check_step(const kv_pool *kv, const step *s)
{
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *q = &s->seq[i];
        int last = (q->pos0 + q->n_rows - 1) / kv->page_tokens;
        assert(q->n_rows > 0 && q->row0 >= 0 && q->row0 + q->n_rows <= s->n_rows);
        assert(last < q->n_page);
        for (int p = q->pos0 / kv->page_tokens; p <= last; p++)
            assert(q->page[p] >= 0 && q->page[p] < kv->n_pages);
    }
}

bool be_step_begin(backend *be, const step *s)
{
    check_rows(s);
    assert(!s->from || be_can_run_ahead(be));
    return broken(be) || !be->ops->step_begin || be->ops->step_begin(be, s);
}

/* Also where the backend is marked: a recording has to end. */
bool be_step_end(backend *be, const step *s)
{
    return !be->ops->step_end || be->ops->step_end(be, s);
}

void be_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s)
{
    assert(s->n_rows > 0 && dim > 0 && (table || be->caps.rules.host_rows));
    if (!broken(be)) be->ops->embed(be, out, table, type, dim, s);
}

void be_positions(backend *be, float *out, const float *table, int n, int dim, const step *s)
{
    const step_seg base = {0, s->n_rows, NULL};
    step at = *s;
    assert(s->n_rows > 0 && n > 0 && dim > 0 && table && takes(be, EXTRA_POSITIONS));
    if (broken(be)) return;
    if (be->ops->positions) {
        be->ops->positions(be, out, table, n, dim, s);
        return;
    }
    at.token = s->pos;
    at.from = NULL;
    at.seg = &base;
    at.n_seg = 1;
    be->ops->embed(be, out, table, DT_F32, dim, &at);
}

void be_rms_norm(backend *be, float *out, const float *x, const float *gain, float eps, int row0,
                 int n_rows, int dim)
{
    assert(row0 >= 0 && n_rows >= 0 && dim > 0 && gain);
    if (!broken(be)) be->ops->rms_norm(be, out, x, gain, eps, row0, n_rows, dim);
}

void be_layer_norm(backend *be, float *out, const float *x, const float *gain, const float *bias,
                   float eps, int row0, int n_rows, int dim)
{
    assert(row0 >= 0 && n_rows >= 0 && dim > 0 && gain && takes(be, EXTRA_LAYER_NORM));
    if (broken(be)) return;
    be->ops->layer_norm(be, out, x, gain, bias, eps, row0, n_rows, dim);
}

void be_add(backend *be, float *x, const float *y, float scale, size_t n)
{
    assert(x && y && takes(be, EXTRA_SUMS));
    if (!broken(be)) be->ops->add(be, x, y, scale, n);
}

void be_scale(backend *be, float *x, float scale, size_t n)
{
    assert(x && takes(be, EXTRA_SUMS));
    if (!broken(be)) be->ops->scale(be, x, scale, n);
}

void be_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
               int layer)
{
    assert(n_out >= 1 && n_out <= LINEAR_OUT_MAX && layer >= 0);
    for (int i = 0; i < n_out; i++) {
        assert(outs[i].w->cols == outs[0].w->cols && outs[i].w->type == outs[0].w->type);
        assert(outs[i].lora_proj >= -1 && outs[i].lora_proj < PROJ_COUNT);
        assert(outs[i].y && (outs[i].stride == 0 || outs[i].stride >= outs[i].w->rows));
    }
    if (!broken(be)) be->ops->linear(be, x, outs, n_out, s, layer);
}

void be_experts(backend *be, float *out, const float *x, const expert_set *set, const float *scores,
                const float *shared, const step *s, int layer)
{
    assert(out && x && scores && takes(be, EXTRA_EXPERTS));
    const expert_route *r = &set->route;
    assert(r->top_k >= 1 && r->top_k <= r->n && r->n <= EXPERTS_MAX && r->scale > 0);
    assert(r->n_group == 0 || (r->n % r->n_group == 0 && r->top_group <= r->n_group &&
                               r->top_k <= r->top_group * (r->n / r->n_group)));
    assert(set->gate || takes(be, EXTRA_BARE_EXPERTS));
    assert(set->up[0]->cols == set->down[0]->rows && set->up[0]->rows == set->down[0]->cols);
    if (!broken(be)) be->ops->experts(be, out, x, set, scores, shared, s, layer);
}

void be_latent_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                    const latent_shape *shape, int n_rows)
{
    assert(shape->rank > 0 && shape->rope > 0 && n_rows > 0 && takes(be, EXTRA_LATENT));
    if (!broken(be)) be->ops->latent_norm(be, out, x, gain, eps, shape, n_rows);
}

void be_latent_spread(backend *be, float *k, float *v, const float *kv, const float *x,
                      const latent_shape *shape, int n_rows)
{
    assert(shape->nope > 0 && shape->v > 0 && shape->n_head > 0 && takes(be, EXTRA_LATENT));
    assert(!be->caps.rules.absorbs);
    if (!broken(be)) be->ops->latent_spread(be, k, v, kv, x, shape, n_rows);
}

void be_latent_query(backend *be, float *out, const float *q, const latent_heads *w,
                     const latent_shape *shape, const step *s, int layer)
{
    assert(out && q && w->key[0]->rows == shape->rank && w->key[0]->cols == shape->nope);
    assert(be->caps.rules.absorbs && s->n_rows > 0 && layer >= 0);
    if (!broken(be)) be->ops->latent_query(be, out, q, w, shape, s, layer);
}

void be_latent_answer(backend *be, float *out, const float *latents, const latent_heads *w,
                      const latent_shape *shape, const step *s, int layer)
{
    assert(out && latents && w->value[0]->rows == shape->v && w->value[0]->cols == shape->rank);
    assert(be->caps.rules.absorbs && s->n_rows > 0 && layer >= 0);
    if (!broken(be)) be->ops->latent_answer(be, out, latents, w, shape, s, layer);
}

void be_rope_append(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                    const float *q_norm, const float *k_norm, float norm_eps,
                    const rope_table *rope, const step *s, int layer)
{
    assert(layer >= 0 && layer < kv->shape.n_layer);
    attn_shape own = attn_of_layer(&kv->shape, layer);
    assert(rope->rope_dim % 2 == 0 && rope->first + rope->rope_dim <= own.head_dim);
    assert(!v == (!k || own.v_in_k) && (k || takes(be, EXTRA_LAYER_HEADS)));
    assert(rope->first == 0 || takes(be, EXTRA_LATENT));
    assert(rope->q_scale == 0 || (takes(be, EXTRA_TEMPER) && rope->q_floor > 0));
    assert(!rope->pairs || takes(be, EXTRA_ROPE_PAIRS));
    assert(!rope->norm_last || takes(be, EXTRA_NORM_LAST));
    check_step(kv, s);
    for (int i = 0; i < s->n_seq; i++) assert(s->seq[i].pos0 + s->seq[i].n_rows <= rope->max_pos);
    if (broken(be)) return;
    be->ops->rope_append(be, kv, q, k, v, q_norm, k_norm, norm_eps, rope, s, layer);
}

void be_attend(backend *be, const kv_pool *kv, float *out, const float *q, const float *sinks,
               const step *s, int layer)
{
    assert(layer >= 0 && layer < kv->shape.n_layer);
    assert(!sinks || (takes(be, EXTRA_SINKS) && !kv->shape.v_in_k));
    check_step(kv, s);
    if (!broken(be)) be->ops->attend(be, kv, out, q, sinks, s, layer);
}

void be_conv(backend *be, float *out, const float *x, const conv_weights *w,
             const mixer_shape *shape, const step *s, size_t at)
{
    assert(out && x && w->taps && takes(be, EXTRA_CONV));
    assert(shape->taps > 1 && shape->taps <= MIXER_TAPS_MAX && shape->channels > 0);
    assert(s->state && at + mixer_state_floats(shape) <= s->state_stride);
    if (!broken(be)) be->ops->conv(be, out, x, w, shape, s, at);
}

void be_delta(backend *be, float *out, const delta_rows *x, const delta_weights *w,
              const mixer_shape *shape, const step *s, size_t at)
{
    delta_form form = w->rules.form;
    assert(out && x->q && x->b && takes(be, EXTRA_DELTA));
    assert(form == DELTA_FUSED || (x->z && x->a));
    assert(form != DELTA_APART || (x->k && x->v));
    assert(form != DELTA_FUSED || !w->rules.each);
    assert(w->taps[0] && !w->taps[1] == !w->taps[2] && w->decay && w->bias && w->norm);
    assert(shape->taps > 1 && shape->taps <= MIXER_TAPS_MAX);
    assert(shape->groups > 0 && shape->heads % shape->groups == 0);
    assert(shape->rows > 0 && shape->rows <= MIXER_SIDE_MAX);
    assert(shape->cols > 0 && shape->cols <= MIXER_SIDE_MAX);
    assert(shape->channels == 2 * shape->groups * shape->rows + shape->heads * shape->cols);
    assert(s->state && at + mixer_state_floats(shape) <= s->state_stride);
    if (!broken(be)) be->ops->delta(be, out, x, w, shape, s, at);
}

void be_q_take(backend *be, float *q, const float *x, size_t n, int dim)
{
    assert(q && x && dim > 0 && takes(be, EXTRA_Q_GATE));
    if (!broken(be)) be->ops->q_take(be, q, x, n, dim);
}

void be_q_gate(backend *be, float *out, const float *x, size_t n, int dim)
{
    assert(out && x && dim > 0 && takes(be, EXTRA_Q_GATE));
    if (!broken(be)) be->ops->q_gate(be, out, x, n, dim);
}

void be_scan(backend *be, float *out, float *x, const scan_weights *w, const mixer_shape *shape,
             const step *s, size_t at)
{
    assert(out && x && w->conv.taps && w->decay && w->dt_bias && w->skip && takes(be, EXTRA_SCAN));
    assert(shape->taps > 1 && shape->taps <= MIXER_TAPS_MAX && shape->groups > 0);
    assert(shape->heads > 0 && shape->heads % shape->groups == 0 && shape->rows > 0);
    assert(shape->channels == scan_out(shape) + 2 * shape->groups * shape->rows);
    assert(!w->rules.normed || w->norm);
    assert(s->state && at + mixer_state_floats(shape) <= s->state_stride);
    if (!broken(be)) be->ops->scan(be, out, x, w, shape, s, at);
}

void be_silu_conv(backend *be, float *x, const conv_weights *w, const mixer_shape *shape,
                  const step *s, size_t at)
{
    assert(x && w->taps && takes(be, EXTRA_SCAN));
    assert(shape->taps > 1 && shape->taps <= MIXER_TAPS_MAX);
    assert(s->state && at + mixer_state_floats(shape) <= s->state_stride);
    if (!broken(be)) be->ops->silu_conv(be, x, w, shape, s, at);
}

void be_scan_channels(backend *be, float *out, const channel_rows *x, const channel_weights *w,
                      const mixer_shape *shape, const step *s, size_t at)
{
    assert(out && w->decay && w->skip && w->b_norm && w->c_norm && takes(be, EXTRA_SCAN));
    assert(shape->heads == 1 && shape->cols == shape->channels && shape->rows <= MIXER_SIDE_MAX);
    assert(s->state && at + mixer_state_floats(shape) <= s->state_stride);
    if (!broken(be)) be->ops->scan_channels(be, out, x, w, shape, s, at);
}

void be_xielu(backend *be, float *x, const xielu_weights *w, size_t n)
{
    assert(w->alpha_p && w->alpha_n && w->beta && w->eps && takes(be, EXTRA_XIELU));
    if (!broken(be)) be->ops->xielu(be, x, w, n);
}

void be_streams_predict(backend *be, const stream_set *set, const float *coefs, float *first)
{
    assert(set->n > 1 && set->n <= STREAMS_MAX && takes(be, EXTRA_STREAMS));
    if (!broken(be)) be->ops->streams_predict(be, set, coefs, first);
}

void be_streams_correct(backend *be, const stream_set *set, const float *coefs, const float *x,
                        const float *scale, float *first)
{
    assert(set->n > 1 && set->n <= STREAMS_MAX && takes(be, EXTRA_STREAMS));
    if (!broken(be)) be->ops->streams_correct(be, set, coefs, x, scale, first);
}

void be_match_rms(backend *be, float *y, const float *x, float least, int n_rows, int dim)
{
    assert(n_rows > 0 && dim > 0 && least > 0 && takes(be, EXTRA_STREAMS));
    if (!broken(be)) be->ops->match_rms(be, y, x, least, n_rows, dim);
}

void be_gate_sparse(backend *be, float *gate, float by, int n_rows, int dim)
{
    assert(n_rows > 0 && dim > 0 && takes(be, EXTRA_STREAMS));
    if (!broken(be)) be->ops->gate_sparse(be, gate, by, n_rows, dim);
}

void be_gate(backend *be, activation act, float *gate, const float *up, size_t n)
{
    assert(act == ACT_SILU || takes(be, act > ACT_SWIGLU_CLAMPED ? EXTRA_ACTS : EXTRA_GELU));
    assert(up || (takes(be, EXTRA_NO_GATE) && act != ACT_SWIGLU_CLAMPED));
    if (!broken(be)) be->ops->gate(be, act, gate, up, n);
}

void be_logits(backend *be, float *logits, const float *x, const float *norm_weight, float eps,
               int dim, const weight *head, const step *s)
{
    assert(head->cols == dim && (norm_weight || takes(be, EXTRA_LAYER_NORM)));
    assert(s->logit_stride == 0 || s->logit_stride >= head->rows);
    for (int i = 0; i < s->n_seg; i++) {
        int n = s->seg[i].lora ? s->seg[i].lora->n_vocab : 0;
        assert(n == 0 || n <= s->logit_stride || n <= head->rows);
    }
    if (!broken(be) && s->n_logit > 0) {
        be->ops->logits(be, logits, x, norm_weight, eps, dim, head, s);
    }
}

void be_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap)
{
    assert(n_rows >= 0 && stride > 0 && cap >= 0 && takes(be, EXTRA_LOGITS));
    if (!broken(be) && n_rows > 0) be->ops->logits_bend(be, logits, n_rows, stride, scale, cap);
}

void be_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias, int n)
{
    assert(n_rows >= 0 && stride >= n && bias && takes(be, EXTRA_LOGIT_BIAS));
    if (!broken(be) && n_rows > 0) be->ops->logits_bias(be, logits, n_rows, stride, bias, n);
}

void be_logits_fetch(backend *be, float *logits, int n_rows, int n_vocab)
{
    if (!broken(be) && n_rows > 0 && be->ops->logits_fetch) {
        be->ops->logits_fetch(be, logits, (size_t)n_rows * (size_t)n_vocab);
    }
}

bool be_can_sample(const backend *be)
{
    return be->ops->sample != NULL;
}

const sampled *be_sample(backend *be, float *logits, int n_vocab, const sample_row *rows, int n)
{
    for (int i = 0; i < n; i++) {
        const sampling *r = rows[i].rules;
        int own = rows[i].n_vocab ? rows[i].n_vocab : n_vocab;
        assert(rows[i].logit >= 0 && rows[i].score < own);
        assert(r->n_bias >= 0 && r->n_bias <= SAMPLE_BIAS_MAX && r->n_top <= SAMPLE_TOP_MAX);
        assert(r->n_stop_id >= 0 && r->n_stop_id <= SAMPLE_STOP_MAX);
        assert(rows[i].n_prompt >= 0 && rows[i].n_output >= 0);
    }
    return broken(be) ? NULL : be->ops->sample(be, logits, n_vocab, rows, n);
}

bool be_can_run_ahead(const backend *be)
{
    return be->ops->sample && be->ops->mark && be->ops->await;
}

int be_mark(backend *be)
{
    return broken(be) ? 0 : be->ops->mark(be);
}

err_code be_await(backend *be, int mark, err *e)
{
    if (!broken(be)) be->ops->await(be, mark);
    check_mappings(be);
    return first_failure(be, e);
}

void be_parallel(backend *be, void (*fn)(void *arg, int i), void *arg, int n)
{
    assert(fn || n <= 0);
    if (n > 0) be->ops->parallel(be, fn, arg, n);
}
