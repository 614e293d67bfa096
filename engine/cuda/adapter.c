/* adapter.c -- packs adapters, and keeps what kernels read of those that ran lately.
 *
 * The table of an adapter (struct sgmv_mat for each layer and projection, then its output
 * layer and its input table) is copied once after each loading; a view without a load_id
 * is copied for every step.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/base/round.h"
#include "engine/cuda/cuda.h"

enum { TABLE_BYTES_MOST = 8 << 20 };

/* ---- packing: any thread ------------------------------------------------------------------- */

size_t cuda_lora_a_bytes(const backend *be, dtype base, int rank, int d_in)
{
    (void)be;
    return sgmv_a_bytes(base, rank, d_in);
}

size_t cuda_lora_b_bytes(const backend *be, dtype base, int rank, int d_out)
{
    (void)be;
    return sgmv_b_bytes(base, rank, d_out);
}

/* One matrix to be packed: A or B. */
typedef struct packing {
    dtype base, type;
    const void *a, *b;
    int rank, d_in, d_out;
    bool embed;
} packing;

static void pack_into(const packing *p, void *to)
{
    if (p->embed)
        sgmv_pack_embed(p->base, p->a ? to : NULL, p->a ? NULL : to, p->a, p->b, p->type, p->rank,
                        p->d_in, p->d_out);
    else
        sgmv_pack(p->base, p->a ? to : NULL, p->a ? NULL : to, p->a, p->b, p->type, p->rank,
                  p->d_in, p->d_out);
}

/* Straight into pinned memory where it fits. */
static err_code pack_send(backend *be, const packing *p, void *dst, size_t bytes, err *e)
{
    cuda_state *cu = cuda_of(be);
    if (bytes <= CUDA_STAGE_BYTES) {
        cuda_stage *st;
        err_code rc = cuda_stage_begin(cu, &st, e);
        if (rc) return rc;
        pack_into(p, st->pinned);
        return cuda_stage_send(cu, st, dst, bytes, e);
    }
    void *host = malloc(bytes);
    if (!host) return err_set(e, ERR_NOMEM, "no memory to pack an adapter");
    pack_into(p, host);
    err_code rc = cuda_upload(be, dst, host, bytes);
    free(host);
    return rc ? err_set(e, rc, "the adapter can't be copied to the device") : ERR_NONE;
}

/* Each of A and B that has a place on the device. */
static err_code pack_pair(backend *be, packing *p, void *a_dst, void *b_dst, const void *a_src,
                          const void *b_src, err *e)
{
    err_code rc = ERR_NONE;
    if (a_dst) {
        p->a = a_src;
        rc = pack_send(be, p, a_dst, sgmv_a_bytes(p->base, p->rank, p->d_in), e);
    }
    if (!rc && b_dst) {
        p->a = NULL;
        p->b = b_src;
        rc = pack_send(be, p, b_dst, sgmv_b_bytes(p->base, p->rank, p->d_out), e);
    }
    return rc;
}

err_code cuda_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                        const void *b_src, dtype type, int rank, int d_in, int d_out, err *e)
{
    packing p = {.base = base, .type = type, .rank = rank, .d_in = d_in, .d_out = d_out};
    return pack_pair(be, &p, a_dst, b_dst, a_src, b_src, e);
}

err_code cuda_lora_pack_embed(backend *be, dtype base, void *a_dst, void *b_dst, const void *a_src,
                              const void *b_src, dtype type, int rank, int n_vocab, int dim, err *e)
{
    packing p = {
        .base = base, .type = type, .rank = rank, .d_in = n_vocab, .d_out = dim, .embed = 1};
    if (base != cuda_of(be)->arith) {
        return err_set(e, ERR_UNSUPPORTED,
                       "LoRA on an embed_tokens of another type than the layers' (CUDA backend)");
    }
    return pack_pair(be, &p, a_dst, b_dst, a_src, b_src, e);
}

/* ---- DoRA ------------------------------------------------------------------------------------ */

static float value_at(const void *p, dtype type, size_t at)
{
    uint16_t h;
    float f;
    if (type == DT_F32) {
        memcpy(&f, (const char *)p + 4 * at, 4);
        return f;
    }
    memcpy(&h, (const char *)p + 2 * at, 2);
    return type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* As packing beside a base of that type would. */
static float rounded(float f, dtype base)
{
    if (base == DT_BF16) return bf16_to_f32(bf16_from_f32(f));
    return base == DT_F16 ? f16_to_f32(f16_from_f32(f)) : f;
}

err_code cuda_convert(void **out, dtype to, const void *src, dtype from, size_t n, err *e)
{
    size_t size = dtype_bytes(to);
    char *p = malloc(n * size);
    if (!p) return err_set(e, ERR_NOMEM, "no memory for a matrix in another type");
    for (size_t i = 0; i < n; i++) {
        float was = value_at(src, from, i), f = rounded(was, to);
        uint16_t h = to == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
        memcpy(p + i * size, to == DT_F32 ? (const void *)&f : (const void *)&h, size);
        if (!isfinite(was) || isfinite(f)) continue;
        free(p);
        return err_set(e, ERR_INPUT, "a value of %g is too large for the base's type", (double)was);
    }
    *out = p;
    return ERR_NONE;
}

static err_code gain_of(const float *row, const float *a, const lora_pair *pair, size_t i, int cols,
                        dtype base, float *sum, float magnitude, float *gain, err *e)
{
    memcpy(sum, row, (size_t)cols * sizeof(float));
    for (int r = 0; r < pair->rank; r++) {
        float b = pair->scale *
                  rounded(value_at(pair->b, pair->type, i * (size_t)pair->rank + (size_t)r), base);
        const float *ar = a + (size_t)r * (size_t)cols;
        for (int k = 0; k < cols; k++) sum[k] += b * ar[k];
    }
    double square = 0;
    for (int k = 0; k < cols; k++) square += (double)sum[k] * (double)sum[k];
    *gain = (float)((double)magnitude / sqrt(square));
    if (square > 0 && isfinite(*gain)) return ERR_NONE;
    return err_set(e, ERR_INPUT, "DoRA: the norm of row %zu is zero or not finite", i);
}

err_code cuda_lora_gain(backend *be, const weight *w, const lora_pair *pair, const float *magnitude,
                        float *gain, err *e)
{
    enum { ROWS = 64 };
    size_t cols = (size_t)w->cols, size = dtype_bytes(w->type);
    size_t wide = (size_t)cuda_k(w->type, w->cols);
    float *a = malloc((size_t)pair->rank * cols * sizeof(float));
    float *row = malloc(2 * cols * sizeof(float));
    char *raw = malloc(ROWS * wide * size);
    const cuda_weight *base = (const cuda_weight *)w;
    bool by_codes = base->codes.form != GEMM_PLAIN;
    float *values = by_codes ? malloc(ROWS * cols * sizeof(*values)) : NULL;
    bool room = a && row && raw && (values || !by_codes);
    err_code rc = room ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for DoRA");
    for (size_t i = 0; !rc && i < (size_t)pair->rank * cols; i++) {
        a[i] = rounded(value_at(pair->a, pair->type, i), w->type);
    }
    for (int i = 0; !rc && i < w->rows; i++) {
        if (i % ROWS == 0) {
            int n = w->rows - i < ROWS ? w->rows - i : ROWS;
            const char *from = (const char *)base->p + (size_t)i * wide * size;
            rc = by_codes ? cuda_codes_read(be, base, i, n, values, e)
                          : cuda_download(be, raw, from, (size_t)n * wide * size);
            if (rc && !by_codes) rc = err_set(e, rc, "the base's weight cannot be read");
        }
        for (size_t k = 0; !rc && k < cols; k++) {
            size_t at = (size_t)(i % ROWS);
            row[k] = by_codes ? values[at * cols + k] : value_at(raw, w->type, at * wide + k);
        }
        if (!rc) {
            rc = gain_of(row, a, pair, (size_t)i, w->cols, w->type, row + cols, magnitude[i],
                         &gain[i], e);
        }
    }
    free(a);
    free(row);
    free(raw);
    free(values);
    return rc;
}

/* ---- tables: engine thread ------------------------------------------------------------------- */

int cuda_pieces_most(int cols, size_t stride)
{
    return (int)(2 * ((size_t)LORA_RANK_MAX * (size_t)cols * sizeof(float) / stride + 2));
}

err_code cuda_tables_open(cuda_state *cu, int n_layer, size_t stride, err *e)
{
    int n_mat = n_layer * PROJ_COUNT + 2;
    cu->n_layer = n_layer;
    cu->n_table = 2 * cu->max_seqs;
    cu->table_more =
        n_mat * cuda_pieces_most(cu->t_cols > cu->x_cols ? cu->t_cols : cu->x_cols, stride);
    cu->table_bytes = (size_t)n_mat * sizeof(sgmv_mat);
    cu->table_bytes += (size_t)cu->table_more * sizeof(void *);
    cu->table_bytes = (cu->table_bytes + 255) / 256 * 256;
    if (cu->table_bytes > TABLE_BYTES_MOST)
        return err_set(e, ERR_LIMIT,
                       "adapters would need too many pieces of memory: KV pages are too small");
    cu->table = calloc((size_t)cu->n_table, sizeof(*cu->table));
    size_t all = (size_t)cu->n_table * cu->table_bytes;
    cu->table_memory = cuda_take(cu, all, false);
    err_code rc =
        CU_TRY(cu, cudaHostAlloc((void **)&cu->table_pinned, all, cudaHostAllocDefault), e);
    if (rc) {
        cu->table_pinned = NULL;
        cuda_tables_close(cu);
        return rc;
    }
    if (!cu->table || !cu->table_memory) {
        cuda_tables_close(cu);
        return err_set(e, ERR_NOMEM, "not enough device memory for the tables of %d adapters",
                       cu->n_table);
    }
    return ERR_NONE;
}

void cuda_tables_close(cuda_state *cu)
{
    cuda_give(cu, cu->table_memory);
    wait_free_host(cu->wait, cu->table_pinned);
    free(cu->table);
    cu->table_memory = cu->table_pinned = NULL;
    cu->table = NULL;
    cu->n_table = 0;
}

/* The one that was used longest ago: there are twice as many as a step has adapters, so it is none
 * of the step before, and its pinned copy has left. */
static cuda_table *oldest(cuda_state *cu)
{
    cuda_table *t = &cu->table[0];
    for (int i = 1; i < cu->n_table; i++) {
        if (cu->table[i].used < t->used) t = &cu->table[i];
    }
    return t;
}

bool cuda_write_mat(cuda_writer *w, int at, const lora_mat *m, int d_out)
{
    const lora_split *sp = m->split;
    int n = 0;
    if (sp && sp->a && sp->a_first < m->rank)
        n += (m->rank - sp->a_first + sp->a_each - 1) / sp->a_each;
    if (sp && sp->b && sp->b_first < d_out)
        n += (d_out - sp->b_first + sp->b_each - 1) / sp->b_each;
    if (w->n + n > w->most) return false;
    assert(m->rank >= 0 && at >= 0);
    w->n += sgmv_mat_of(&w->mats[at], m, d_out, w->more + w->n, w->more_device + w->n);
    if (m->rank == 0 && (m->bias || m->gain)) w->biased = true;
    return true;
}

static bool write_table(const cuda_state *cu, cuda_writer *w, const lora_view *view)
{
    static const lora_mat none;
    const attn_shape *s = &cu->kv->head.shape;
    const latent_shape *lat = &cu->latent;
    const int q = s->n_head * s->head_dim, kv = s->n_kv_head * s->head_dim;
    const int n = cu->part.n, dim = cu->dim / n;
    const int k_out = lat->rank ? lat->rank + lat->rope : kv;
    const int v_out = lat->rank ? lat->n_head * (lat->nope + lat->v) : kv;
    for (int l = 0; l < cu->n_layer; l++) {
        const int d_out[PROJ_COUNT] = {
            [PROJ_Q_A] = cu->q_rank,
            [PROJ_Q] = q,
            [PROJ_K] = k_out,
            [PROJ_V] = v_out,
            [PROJ_O] = dim,
            [PROJ_GATE] = cu->mlp.cols[l],
            [PROJ_UP] = cu->mlp.cols[l],
            [PROJ_DOWN] = dim,
            [PROJ_ROUTER] = cu->experts.n,
            [PROJ_SHARED_SCORE] = cu->experts.n > 0,
        };
        for (int p = 0; p < PROJ_COUNT; p++) {
            int at = l * PROJ_COUNT + p, from = w->n;
            w->mats[at] = (sgmv_mat){.rank = 0};
            if (d_out[p] == 0) continue; /* this model has none */
            if (!cuda_write_mat(w, at, &view->mat[at], d_out[p] * n)) return false;
            cuda_mat_here(cu, w, at, from, d_out[p]);
        }
    }
    bool layers = w->biased;
    int n_vocab = cuda_vocab_of(cu, view), from = w->n;
    if (!cuda_write_mat(w, cuda_head_mat(cu), view->head ? &view->head->mat : &none, n_vocab))
        return false;
    cuda_mat_here(cu, w, cuda_head_mat(cu), from, 0);
    from = w->n;
    if (!cuda_write_mat(w, cuda_embed_mat(cu), view->embed ? &view->embed->mat : &none, cu->dim))
        return false;
    cuda_mat_here(cu, w, cuda_embed_mat(cu), from, 0);
    w->mats[cuda_embed_mat(cu)].n_in = n_vocab;
    w->biased = layers;
    return true;
}

const cuda_table *cuda_table_of(backend *be, const lora_view *view)
{
    cuda_state *cu = cuda_of(be);
    for (int i = 0; view->load_id != 0 && i < cu->n_table; i++) {
        if (cu->table[i].load_id != view->load_id) continue;
        cu->table[i].used = cu->step.serial;
        return &cu->table[i];
    }
    cuda_table *t = oldest(cu);
    int n_mat = cu->n_layer * PROJ_COUNT + 2;
    size_t at = (size_t)(t - cu->table) * cu->table_bytes;
    char *device = cu->table_memory + at, *pinned = cu->table_pinned + at;
    size_t mats = (size_t)n_mat * sizeof(sgmv_mat);
    assert(mats + (size_t)cu->table_more * sizeof(void *) <= cu->table_bytes);
    cuda_writer w = {.mats = (sgmv_mat *)pinned,
                     .more = (const void **)(pinned + mats),
                     .more_device = (const void *const *)(device + mats),
                     .most = cu->table_more};
    memset(t, 0, sizeof(*t));
    if (view->n_layer != cu->n_layer || !write_table(cu, &w, view)) {
        backend_fail(be, ERR_LIMIT, "an adapter's memory has more pieces than a step can list");
        return NULL;
    }
    if (!CU(be, cudaMemcpyAsync(device, pinned, mats + (size_t)w.n * sizeof(void *),
                                cudaMemcpyHostToDevice, cu->stream)))
        return NULL;
    *t = (cuda_table){.load_id = view->load_id,
                      .used = cu->step.serial,
                      .device = (sgmv_mat *)device,
                      .biased = w.biased,
                      .embeds = view->embed && lora_mat_used(&view->embed->mat),
                      .own_rows = view->embed && (view->embed->table || view->embed->rows.n > 0),
                      .heads = view->head && lora_mat_used(&view->head->mat)};
    return t;
}
