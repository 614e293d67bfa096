/* plain_backend.h -- every operation of backend.h as the plainest loops: the oracle.
 *
 * Everything is f32, nothing is packed, nothing is fast.  It tells a wrong kernel from a wrong
 * model: where this one meets the goldens and another backend does not, the kernel is at fault.
 * Included by tests; one thread.
 */
#ifndef TESTS_ENGINE_PLAIN_BACKEND_H
#define TESTS_ENGINE_PLAIN_BACKEND_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend_ops.h"
#include "engine/model/safetensors.h"

enum { PLAIN_PAGE_TOKENS = 8 };

typedef struct plain_weight {
    weight head;
    float *v; /* [rows][cols] */
} plain_weight;

typedef struct plain_kv {
    kv_pool head;
    float *k, *v; /* [n_layer][n_pages][page_tokens][n_kv_head * head_dim, or the values'] */
} plain_kv;

static err_code plain_open(backend *be, const backend_config *cfg, err *e)
{
    (void)cfg;
    (void)e;
    be->caps = (backend_caps){.name = "plain",
                              .detail = "oracle",
                              .page_tokens = PLAIN_PAGE_TOKENS,
                              .kv_types = 1U << DT_F32 | 1U << DT_BF16,
                              .extras = (1U << EXTRAS) - 1};
    return ERR_NONE;
}

static void plain_close(backend *be)
{
    (void)be;
}

static void *plain_alloc(backend *be, size_t bytes)
{
    (void)be;
    size_t whole = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, whole ? whole : 64);
    if (p) memset(p, 0, whole ? whole : 64);
    return p;
}

static void plain_free(backend *be, void *p)
{
    (void)be;
    free(p);
}

static err_code plain_copy(backend *be, void *dst, const void *src, size_t bytes)
{
    (void)be;
    memcpy(dst, src, bytes);
    return ERR_NONE;
}

static void plain_copy_within(backend *be, void *dst, const void *src, size_t bytes)
{
    (void)plain_copy(be, dst, src, bytes);
}

static void plain_sync(backend *be)
{
    (void)be;
}

static void plain_to_f32(float *out, const void *src, dtype type, uint64_t first, size_t n)
{
    static const st_dtype st[] = {[DT_F32] = ST_F32, [DT_F16] = ST_F16, [DT_BF16] = ST_BF16};
    st_tensor t = {.dtype = st[type], .count = UINT64_MAX, .data = src};
    st_read_f32(&t, first, n, out);
}

static err_code plain_lora_weight_create(backend *be, weight **out, const void *src, dtype type,
                                         int rows, int cols, err *e)
{
    (void)be;
    size_t n = (size_t)rows * (size_t)cols;
    plain_weight *w = calloc(1, sizeof(*w));
    float *v = malloc(n * sizeof(float));
    if (!w || !v) {
        free(w);
        free(v);
        return err_set(e, ERR_NOMEM, "no memory for a matrix");
    }
    w->head = (weight){rows, cols, type, n * sizeof(float)};
    w->v = v;
    plain_to_f32(v, src, type, 0, n);
    *out = &w->head;
    return ERR_NONE;
}

/* Values as floats; x is not rounded here. */
static void plain_dequantise(float *out, const weight_source *s)
{
    void *mem = malloc(weight_row_bytes(s));
    if (!mem) abort();
    weight_row r = weight_row_place(s, mem);
    for (int row = 0; row < s->rows; row++) {
        s->read_row(s, row, &r);
        for (int k = 0; k < s->cols; k++)
            out[(size_t)row * (size_t)s->cols + (size_t)(s->order ? s->order[k] : k)] =
                weight_row_value(s, &r, k);
    }
    free(mem);
}

static err_code plain_weight_create(backend *be, weight **out, const weight_source *src, err *e)
{
    if (weight_source_quantised(src)) {
        float *v = malloc((size_t)src->rows * (size_t)src->cols * sizeof(float));
        if (!v) return err_set(e, ERR_NOMEM, "no memory for a matrix");
        plain_dequantise(v, src);
        err_code rc = plain_lora_weight_create(be, out, v, DT_F32, src->rows, src->cols, e);
        free(v);
        if (!rc) (*out)->type = src->type;
        return rc;
    }
    return plain_lora_weight_create(be, out, src->data, src->type, src->rows, src->cols, e);
}

static void plain_weight_destroy(backend *be, weight *w)
{
    (void)be;
    free(((plain_weight *)w)->v);
    free(w);
}

static size_t plain_lora_bytes(const backend *be, dtype base, int rank, int d)
{
    (void)be;
    (void)base;
    return (size_t)rank * (size_t)d * sizeof(float);
}

static err_code plain_lora_pack(backend *be, dtype base, void *a_dst, void *b_dst,
                                const void *a_src, const void *b_src, dtype type, int rank,
                                int d_in, int d_out, err *e)
{
    (void)be;
    (void)base;
    (void)e;
    if (a_dst) plain_to_f32(a_dst, a_src, type, 0, (size_t)rank * (size_t)d_in);
    if (b_dst) plain_to_f32(b_dst, b_src, type, 0, (size_t)rank * (size_t)d_out);
    return ERR_NONE;
}

static err_code plain_lora_gain(backend *be, const weight *w, const lora_pair *pair,
                                const float *magnitude, float *gain, err *e)
{
    (void)be;
    (void)e;
    const float *v = ((const plain_weight *)w)->v;
    size_t n_a = (size_t)pair->rank * (size_t)w->cols, n_b = (size_t)pair->rank * (size_t)w->rows;
    float *a = malloc(n_a * sizeof(float)), *b = malloc(n_b * sizeof(float));
    plain_to_f32(a, pair->a, pair->type, 0, n_a);
    plain_to_f32(b, pair->b, pair->type, 0, n_b);
    for (int i = 0; i < w->rows; i++) {
        double sum = 0;
        for (int k = 0; k < w->cols; k++) {
            double value = (double)v[(size_t)i * (size_t)w->cols + (size_t)k];
            for (int r = 0; r < pair->rank; r++)
                value += (double)pair->scale * (double)b[i * pair->rank + r] *
                         (double)a[r * w->cols + k];
            sum += value * value;
        }
        gain[i] = (float)((double)magnitude[i] / sqrt(sum));
    }
    free(a);
    free(b);
    return ERR_NONE;
}

/* As many for each layer: where they differ, of the most. */
static size_t plain_page_floats(const attn_shape *s, int d)
{
    return (size_t)PLAIN_PAGE_TOKENS * (size_t)s->n_kv_head * (size_t)d;
}

/* Keys and values of a page. */
static size_t plain_page_both(const attn_shape *s)
{
    return plain_page_floats(s, s->head_dim) + plain_page_floats(s, attn_v_dim(s));
}

static size_t plain_kv_page_bytes(const backend *be, const attn_shape *shape)
{
    (void)be;
    return plain_page_both(shape) * (size_t)shape->n_layer * sizeof(float);
}

static err_code plain_kv_create(backend *be, kv_pool **out, const attn_shape *shape, int n_pages,
                                err *e)
{
    (void)be;
    (void)e;
    plain_kv *kv = calloc(1, sizeof(*kv));
    kv->head = (kv_pool){*shape, n_pages, PLAIN_PAGE_TOKENS};
    size_t pages = (size_t)shape->n_layer * (size_t)n_pages;
    size_t n_k = pages * plain_page_floats(shape, shape->head_dim);
    size_t n_v = pages * plain_page_floats(shape, attn_v_dim(shape));
    kv->k = malloc(n_k * sizeof(float));
    kv->v = malloc(n_v * sizeof(float));
    for (size_t i = 0; i < n_k; i++) kv->k[i] = NAN; /* what nobody wrote is not read */
    for (size_t i = 0; i < n_v; i++) kv->v[i] = NAN;
    *out = &kv->head;
    return ERR_NONE;
}

static void plain_kv_destroy(backend *be, kv_pool *pool)
{
    (void)be;
    plain_kv *kv = (plain_kv *)pool;
    free(kv->k);
    free(kv->v);
    free(kv);
}

/* Layer by layer: K, then V. */
static void plain_kv_save(backend *be, const kv_pool *pool, int page, void *host)
{
    (void)be;
    const plain_kv *kv = (const plain_kv *)pool;
    size_t n = plain_page_floats(&pool->shape, pool->shape.head_dim);
    size_t n_v = plain_page_floats(&pool->shape, attn_v_dim(&pool->shape));
    float *to = host;
    for (int l = 0; l < pool->shape.n_layer; l++, to += n + n_v) {
        size_t at = (size_t)l * (size_t)pool->n_pages + (size_t)page;
        memcpy(to, kv->k + at * n, n * 4);
        memcpy(to + n, kv->v + at * n_v, n_v * 4);
    }
}

static void plain_kv_copy(backend *be, kv_pool *pool, int from, int to)
{
    (void)be;
    plain_kv *kv = (plain_kv *)pool;
    size_t n = plain_page_floats(&pool->shape, pool->shape.head_dim);
    size_t n_v = plain_page_floats(&pool->shape, attn_v_dim(&pool->shape));
    for (int l = 0; l < pool->shape.n_layer; l++) {
        size_t base = (size_t)l * (size_t)pool->n_pages;
        memcpy(kv->k + (base + (size_t)to) * n, kv->k + (base + (size_t)from) * n, n * 4);
        memcpy(kv->v + (base + (size_t)to) * n_v, kv->v + (base + (size_t)from) * n_v, n_v * 4);
    }
}

static void plain_kv_load(backend *be, kv_pool *pool, int page, const void *host)
{
    (void)be;
    plain_kv *kv = (plain_kv *)pool;
    size_t n = plain_page_floats(&pool->shape, pool->shape.head_dim);
    size_t n_v = plain_page_floats(&pool->shape, attn_v_dim(&pool->shape));
    const float *from = host;
    for (int l = 0; l < pool->shape.n_layer; l++, from += n + n_v) {
        size_t at = (size_t)l * (size_t)pool->n_pages + (size_t)page;
        memcpy(kv->k + at * n, from, n * 4);
        memcpy(kv->v + at * n_v, from + n, n_v * 4);
    }
}

/* Offset of one position's heads of d values, in pages that have room for `most` a head. */
static size_t plain_kv_at(const kv_pool *pool, const step_seq *q, int layer, int pos, int d,
                          int most)
{
    size_t page = (size_t)layer * (size_t)pool->n_pages + (size_t)q->page[pos / PLAIN_PAGE_TOKENS];
    attn_shape own = attn_of_layer(&pool->shape, layer);
    return page * plain_page_floats(&pool->shape, most) +
           (size_t)(pos % PLAIN_PAGE_TOKENS) * (size_t)own.n_kv_head * (size_t)d;
}

static size_t plain_k_at(const kv_pool *pool, const step_seq *q, int layer, int pos)
{
    attn_shape own = attn_of_layer(&pool->shape, layer);
    return plain_kv_at(pool, q, layer, pos, own.head_dim, pool->shape.head_dim);
}

static size_t plain_v_at(const kv_pool *pool, const step_seq *q, int layer, int pos)
{
    attn_shape own = attn_of_layer(&pool->shape, layer);
    return plain_kv_at(pool, q, layer, pos, attn_v_dim(&own), attn_v_dim(&pool->shape));
}

static const lora_view *plain_view_of(const step *s, int row)
{
    for (int i = 0; i < s->n_seg; i++) {
        if (row >= s->seg[i].row0 && row < s->seg[i].row0 + s->seg[i].n_rows) return s->seg[i].lora;
    }
    return NULL;
}

static void plain_embed(backend *be, float *out, const void *table, dtype type, int dim,
                        const step *s)
{
    (void)be;
    for (int i = 0; i < s->n_rows; i++) {
        const lora_view *view = plain_view_of(s, i);
        const lora_embed *em = view ? view->embed : NULL;
        bool own = em && em->table;
        int at = em ? lora_row_of(&em->rows, s->token[i]) : -1;
        bool row = at >= 0;
        float *o = out + (size_t)i * (size_t)dim;
        plain_to_f32(o,
                     row   ? em->rows.table
                     : own ? em->table
                           : table,
                     row   ? (dtype)em->rows.type
                     : own ? (dtype)em->table_type
                           : type,
                     (uint64_t)(row ? at : s->token[i]) * (uint64_t)dim, (size_t)dim);
        for (int k = 0; em && em->mat.rank > 0 && k < dim; k++) {
            int rank = em->mat.rank;
            double sum = (double)o[k];
            for (int r = 0; r < rank; r++)
                sum += (double)em->mat.scale * (double)((const float *)em->mat.b)[k * rank + r] *
                       (double)((const float *)em->mat.a)[s->token[i] * rank + r];
            o[k] = (float)(em->mat.gain ? sum * (double)em->mat.gain[k] : sum);
        }
    }
}

static void plain_norm_row(float *out, const float *x, const float *w, float eps, int dim)
{
    double sum = 0;
    for (int i = 0; i < dim; i++) sum += (double)x[i] * (double)x[i];
    float r = (float)(1.0 / sqrt(sum / dim + (double)eps));
    for (int i = 0; i < dim; i++) out[i] = x[i] * r * w[i];
}

static void plain_rms_norm(backend *be, float *out, const float *x, const float *w, float eps,
                           int row0, int n_rows, int dim)
{
    (void)be;
    for (int i = row0; i < row0 + n_rows; i++) {
        plain_norm_row(out + (size_t)i * (size_t)dim, x + (size_t)i * (size_t)dim, w, eps, dim);
    }
}

/* No sanitizer looks at each of them, which takes ten times as long: plain_dot() has both ends. */
__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) static double
plain_sum(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static float plain_dot(const float *a, const float *b, int n)
{
    if (n <= 0) return 0;
    volatile float ends = a[0] + b[0] + a[n - 1] + b[n - 1];
    (void)ends;
    return (float)plain_sum(a, b, n);
}

static const lora_mat *plain_lora_of(const step *s, int row, int layer, int p)
{
    for (int i = 0; i < s->n_seg; i++) {
        const step_seg *g = &s->seg[i];
        if (row < g->row0 || row >= g->row0 + g->n_rows) continue;
        if (!g->lora || layer < 0 || p < 0) return NULL;
        if (p == LORA_HEAD)
            return g->lora->head && lora_mat_used(&g->lora->head->mat) ? &g->lora->head->mat : NULL;
        const lora_mat *m = &g->lora->mat[layer * PROJ_COUNT + p];
        return lora_mat_used(m) ? m : NULL;
    }
    return NULL;
}

/* Row r of A, column i of B, wherever the piece lies that has them. */
static const float *plain_piece(const void *whole, const void *const *more, int first, int each,
                                int i, int width)
{
    const float *p = i < first ? whole : more[(i - first) / each];
    return p + (size_t)(i < first ? i : (i - first) % each) * (size_t)width;
}

static const float *plain_a(const lora_mat *m, int r, int d_in)
{
    const lora_split *sp = m->split;
    return sp ? plain_piece(m->a, sp->a, sp->a_first, sp->a_each, r, d_in)
              : (const float *)m->a + (size_t)r * (size_t)d_in;
}

static const float *plain_b(const lora_mat *m, int i)
{
    const lora_split *sp = m->split;
    return sp ? plain_piece(m->b, sp->b, sp->b_first, sp->b_each, i, m->rank)
              : (const float *)m->b + (size_t)i * (size_t)m->rank;
}

static void plain_linear_row(const linear_out *o, float *y, const float *x, const lora_mat *lm)
{
    const plain_weight *w = (const plain_weight *)o->w;
    float v[LORA_RANK_MAX];
    int d_in = w->head.cols, d_out = w->head.rows;
    for (int r = 0; lm && r < lm->rank; r++) {
        v[r] = plain_dot(plain_a(lm, r, d_in), x, d_in);
    }
    for (int i = 0; i < d_out; i++) {
        float sum = plain_dot(w->v + (size_t)i * (size_t)d_in, x, d_in);
        if (lm) {
            sum += lm->scale * plain_dot(plain_b(lm, i), v, lm->rank);
        }
        if (lm && lm->gain) sum *= lm->gain[i];
        const float *bias = lm && lm->bias ? lm->bias : o->bias;
        if (bias) sum += bias[i];
        y[i] = o->accumulate ? y[i] + sum : sum;
    }
}

static void plain_linear(backend *be, const float *x, const linear_out *outs, int n_out,
                         const step *s, int layer)
{
    (void)be;
    for (int k = 0; k < n_out; k++) {
        for (int i = 0; i < s->n_rows; i++) {
            const lora_mat *lm = plain_lora_of(s, i, layer, outs[k].lora_proj);
            plain_linear_row(&outs[k], outs[k].y + (size_t)i * (size_t)outs[k].w->rows,
                             x + (size_t)i * (size_t)outs[k].w->cols, lm);
        }
    }
}

/* One head in place: norm, then rotation of (x[i], x[i + half]); or the other way round. */
static void plain_rope_head(float *x, const float *norm, float eps, const rope_table *t, int pos,
                            int head_dim)
{
    if (norm && !t->norm_last) plain_norm_row(x, x, norm, eps, head_dim);
    int half = t->rope_dim / 2;
    const float *c = t->cos + (size_t)pos * (size_t)half, *s = t->sin + (size_t)pos * (size_t)half;
    for (int i = 0; i < half; i++) {
        int at = t->first + (t->pairs ? 2 * i : i), other = t->pairs ? at + 1 : at + half;
        float a = x[at], b = x[other];
        x[at] = a * c[i] - b * s[i];
        x[other] = b * c[i] + a * s[i];
    }
    if (norm && t->norm_last) plain_norm_row(x, x, norm, eps, head_dim);
}

static void plain_rope_append(backend *be, kv_pool *pool, float *q, float *k, const float *v,
                              const float *q_norm, const float *k_norm, float eps,
                              const rope_table *rope, const step *s, int layer)
{
    (void)be;
    plain_kv *kv = (plain_kv *)pool;
    const attn_shape own = attn_of_layer(&pool->shape, layer), *a = &own;
    size_t q_dim = (size_t)a->n_head * (size_t)a->head_dim;
    size_t kv_dim = (size_t)a->n_kv_head * (size_t)a->head_dim;
    size_t v_dim = (size_t)a->n_kv_head * (size_t)attn_v_dim(a);
    for (int n = 0; n < s->n_seq; n++) {
        const step_seq *sq = &s->seq[n];
        for (int i = 0; i < sq->n_rows; i++) {
            size_t row = (size_t)(sq->row0 + i);
            int pos = sq->pos0 + i;
            float *near = q + (size_t)s->n_rows * q_dim + row * q_dim;
            for (int h = 0; h < a->n_head && a->kept > 0; h++) {
                int at = h * a->head_dim, most = a->kept + a->window - 1;
                memcpy(near + at, q + row * q_dim + (size_t)at, (size_t)a->head_dim * sizeof(*q));
                plain_rope_head(near + at, q_norm, eps, rope, pos < most ? pos : most, a->head_dim);
            }
            for (int h = 0; h < a->n_head; h++) {
                plain_rope_head(q + row * q_dim + (size_t)h * (size_t)a->head_dim, q_norm, eps,
                                rope, pos, a->head_dim);
            }
            double grown = log1p(floor((pos + rope->q_from) / (double)rope->q_floor));
            for (size_t at = 0; at < q_dim && rope->q_scale > 0; at++)
                q[row * q_dim + at] *= (float)(1 + (double)rope->q_scale * grown);
            if (!k) continue;
            for (int h = 0; h < a->n_kv_head; h++) {
                plain_rope_head(k + row * kv_dim + (size_t)h * (size_t)a->head_dim, k_norm, eps,
                                rope, pos, a->head_dim);
            }
            memcpy(kv->k + plain_k_at(pool, sq, layer, pos), k + row * kv_dim,
                   kv_dim * sizeof(float));
            memcpy(kv->v + plain_v_at(pool, sq, layer, pos), v + row * v_dim,
                   v_dim * sizeof(float));
        }
    }
}

static void plain_attend_head(const plain_kv *kv, float *out, const float *q, const float *near,
                              const float *sinks, const step_seq *sq, int layer, int pos, int h)
{
    const attn_shape own = attn_of_layer(&kv->head.shape, layer), *a = &own;
    int kv_head = h / (a->n_head / a->n_kv_head), v_dim = attn_v_dim(a);
    int window = attn_window(a, layer);
    int from = window && pos >= window ? pos - window + 1 : 0;
    if (window && a->chunked) from = pos / window * window;
    int kept = a->kept < from ? a->kept : from; /* beside the window */
    double *score = malloc((size_t)(pos + 1) * sizeof(*score)), max = -INFINITY, sum = 0;
    for (int p = 0; p <= pos; p++) {
        if (p >= kept && p < from) continue;
        const float *k = kv->k + plain_k_at(&kv->head, sq, layer, p);
        k += kv_head * a->head_dim;
        const float *by = p < kept && pos >= a->kept + window ? near : q;
        double v = (double)plain_dot(by, k, a->head_dim) * (double)a->scale, cap = (double)a->cap;
        score[p] = cap > 0 ? cap * tanh(v / cap) : v;
        max = fmax(max, score[p]);
    }
    for (int i = 0; i < v_dim; i++) out[i] = 0;
    for (int p = 0; p <= pos; p++) sum += p < kept || p >= from ? exp(score[p] - max) : 0;
    if (sinks) sum += exp((double)sinks[h] - max);
    for (int p = 0; p <= pos; p++) {
        if (p >= kept && p < from) continue;
        const float *v = kv->v + plain_v_at(&kv->head, sq, layer, p) + kv_head * v_dim;
        float w = (float)(exp(score[p] - max) / sum);
        for (int i = 0; i < v_dim; i++) out[i] += w * v[i];
    }
    free(score);
}

static void plain_attend(backend *be, const kv_pool *pool, float *out, const float *q,
                         const float *sinks, const step *s, int layer)
{
    (void)be;
    const attn_shape own = attn_of_layer(&pool->shape, layer), *a = &own;
    for (int n = 0; n < s->n_seq; n++) {
        const step_seq *sq = &s->seq[n];
        for (int i = 0; i < sq->n_rows * a->n_head; i++) {
            size_t at = (size_t)sq->row0 * (size_t)a->n_head + (size_t)i;
            plain_attend_head((const plain_kv *)pool, out + at * (size_t)attn_v_dim(a),
                              q + at * (size_t)a->head_dim,
                              q + ((size_t)(a->kept > 0 ? s->n_rows * a->n_head : 0) + at) *
                                      (size_t)a->head_dim,
                              sinks, sq, layer, sq->pos0 + i / a->n_head, i % a->n_head);
        }
    }
}

static void plain_latent_norm(backend *be, float *out, const float *x, const float *w, float eps,
                              const latent_shape *sh, int n_rows)
{
    (void)be;
    for (int i = 0; i < n_rows; i++)
        plain_norm_row(out + i * sh->rank, x + i * (sh->rank + sh->rope), w, eps, sh->rank);
}

static void plain_latent_spread(backend *be, float *k, float *v, const float *kv, const float *x,
                                const latent_shape *sh, int n_rows)
{
    (void)be;
    for (int i = 0; i < n_rows * sh->n_head; i++) {
        const float *shared = x + i / sh->n_head * (sh->rank + sh->rope) + sh->rank;
        for (int c = 0; c < sh->nope; c++) *k++ = *kv++;
        for (int c = 0; c < sh->rope; c++) *k++ = shared[c];
        for (int c = 0; c < sh->v; c++) *v++ = *kv++;
    }
}

/* One value of b * v at a row of the sequence; before pos0 it stands in the state. */
static float plain_conv_in(const mixer_shape *sh, const float *x, const float *state, int row,
                           int ch)
{
    const float *at = x + (size_t)(row < 0 ? 0 : row) * 3 * (size_t)sh->channels + ch;
    if (row >= 0) return at[0] * at[2 * sh->channels];
    return state ? state[(sh->taps - 1 + row) * sh->channels + ch] : 0;
}

static double plain_silu(double x)
{
    return x / (1 + exp(-x));
}

/* One row of one head of the delta rule.  q, k and v are convolved; S [rows][cols]; keep: how much
 * of each of its rows stays. */
static void plain_delta_head(float *out, float *S, const float *q, const float *k, const float *v,
                             const float *z, const double *keep, double rate,
                             const delta_weights *w, const mixer_shape *sh)
{
    double qq = 1e-6, kk = 1e-6, sum = 0;
    for (int i = 0; i < sh->rows; i++) {
        qq += (double)q[i] * (double)q[i];
        kk += (double)k[i] * (double)k[i];
    }
    for (int c = 0; c < sh->cols; c++) {
        double there = 0, answer = 0;
        for (int i = 0; i < sh->rows; i++) {
            float *s = &S[i * sh->cols + c];
            *s = (float)(keep[i] * (double)*s);
            there += (double)*s * (double)k[i] / sqrt(kk);
        }
        for (int i = 0; i < sh->rows; i++) {
            float *s = &S[i * sh->cols + c];
            *s += (float)((double)k[i] / sqrt(kk) * ((double)v[c] - there) * rate);
            answer += (double)*s * (double)q[i] / sqrt(qq * sh->rows);
        }
        out[c] = (float)answer;
        sum += answer * answer;
    }
    double by = 1 / sqrt(sum / sh->cols + (double)w->rules.eps);
    for (int c = 0; c < sh->cols; c++) {
        double gate = (double)z[c], open = 1 / (1 + exp(-gate));
        out[c] = (float)((double)out[c] * by * (double)w->norm[c] *
                         (w->rules.sigmoid ? open : gate * open));
    }
}

/* A row of queries, keys and values of all heads, as the convolution takes them. */
static void plain_delta_row(const delta_rows *x, const delta_rules *r, const mixer_shape *sh,
                            size_t row, float *qkv)
{
    size_t keys = (size_t)(sh->groups * sh->rows), values = (size_t)(sh->heads * sh->cols);
    size_t key = (size_t)sh->rows, each = values / (size_t)sh->groups;
    if (r->form == DELTA_JOINT)
        memcpy(qkv, x->q + row * (2 * keys + values), (2 * keys + values) * sizeof(*qkv));
    if (r->form == DELTA_APART) {
        memcpy(qkv, x->q + row * keys, keys * sizeof(*qkv));
        memcpy(qkv + keys, x->k + row * keys, keys * sizeof(*qkv));
        memcpy(qkv + 2 * keys, x->v + row * values, values * sizeof(*qkv));
    }
    for (size_t g = 0; r->form == DELTA_FUSED && g < (size_t)sh->groups; g++) {
        const float *from = x->q + (row * (size_t)sh->groups + g) * 2 * (key + each);
        memcpy(qkv + g * key, from, key * sizeof(*qkv));
        memcpy(qkv + keys + g * key, from + key, key * sizeof(*qkv));
        memcpy(qkv + 2 * keys + g * each, from + 2 * key, each * sizeof(*qkv));
    }
}

/* Where a head has its gates, its b and its a. */
static void plain_delta_gates(const delta_rows *x, const delta_rules *r, const mixer_shape *sh,
                              size_t row, int head, const float **z, const float **b,
                              const float **a)
{
    int per = sh->heads / sh->groups, group = head / per, in = head % per;
    size_t at = row * (size_t)sh->heads + (size_t)head;
    if (r->form != DELTA_FUSED) {
        *z = x->z + at * (size_t)sh->cols;
        *b = x->b + at;
        *a = x->a + at * (size_t)(r->each ? sh->rows : 1);
        return;
    }
    size_t which = row * (size_t)sh->groups + (size_t)group;
    *z = x->q + which * (size_t)(2 * sh->rows + 2 * per * sh->cols) + 2 * sh->rows +
         per * sh->cols + in * sh->cols;
    *b = x->b + which * (size_t)(2 * per) + in;
    *a = *b + per;
}

/* The tap of a channel; `i`: 0 is the oldest row's. */
static double plain_delta_tap(const delta_weights *w, const mixer_shape *sh, int i, int ch)
{
    int keys = sh->groups * sh->rows, part = ch < keys ? 0 : ch < 2 * keys ? 1 : 2;
    int own = part < 2 ? keys : sh->heads * sh->cols;
    if (!w->taps[1]) return (double)w->taps[0][i * sh->channels + ch];
    return (double)w->taps[part][i * own + ch - part * keys];
}

static void plain_delta(backend *be, float *out, const delta_rows *x, const delta_weights *w,
                        const mixer_shape *sh, const step *s, size_t at)
{
    (void)be;
    const delta_rules *rules = &w->rules;
    int n = sh->channels, before = sh->taps - 1, per = sh->heads / sh->groups;
    float *in = malloc((size_t)n * sizeof(*in)), *mixed = malloc((size_t)n * sizeof(*in));
    double keep[MIXER_SIDE_MAX];
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *sq = &s->seq[i];
        float *last = s->state + (size_t)sq->slot * s->state_stride + at;
        if (sq->pos0 == 0) memset(last, 0, mixer_state_floats(sh) * sizeof(*last));
        for (int t = 0; t < sq->n_rows; t++) {
            size_t row = (size_t)(sq->row0 + t);
            const float *z, *b, *a;
            plain_delta_row(x, rules, sh, row, in);
            for (int ch = 0; ch < n; ch++) {
                double sum = plain_delta_tap(w, sh, before, ch) * (double)in[ch];
                for (int k = 0; k < before; k++)
                    sum += plain_delta_tap(w, sh, k, ch) * (double)last[k * n + ch];
                mixed[ch] = (float)plain_silu(sum);
            }
            memmove(last, last + n, (size_t)((before - 1) * n) * sizeof(*last));
            memcpy(last + (before - 1) * n, in, (size_t)n * sizeof(*last));
            for (int h = 0; h < sh->heads; h++) {
                const float *q = mixed + h / per * sh->rows, *k = q + sh->groups * sh->rows;
                plain_delta_gates(x, rules, sh, row, h, &z, &b, &a);
                for (int r = 0; r < sh->rows; r++) {
                    int own = rules->each ? r : 0, bias = rules->each ? h * sh->rows + r : h;
                    double over = (double)a[own] + (double)w->bias[bias];
                    keep[r] = exp(-exp((double)w->decay[h]) * log1p(exp(over)));
                }
                plain_delta_head(out + (row * (size_t)sh->heads + (size_t)h) * (size_t)sh->cols,
                                 last + before * n + h * sh->rows * sh->cols, q, k,
                                 mixed + 2 * sh->groups * sh->rows + h * sh->cols, z, keep,
                                 (double)rules->most / (1 + exp(-(double)*b)), w, sh);
            }
        }
    }
    free(in);
    free(mixed);
}

static void plain_q_take(backend *be, float *q, const float *x, size_t n, int dim)
{
    (void)be;
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < dim; c++) *q++ = x[i * 2 * (size_t)dim + (size_t)c];
}

static void plain_q_gate(backend *be, float *out, const float *x, size_t n, int dim)
{
    (void)be;
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < dim; c++)
            *out++ *= (float)(1 / (1 + exp(-(double)x[(2 * i + 1) * (size_t)dim + (size_t)c])));
}

static void plain_conv(backend *be, float *out, const float *x, const conv_weights *w,
                       const mixer_shape *sh, const step *s, size_t at)
{
    (void)be;
    int n = sh->channels, before = sh->taps - 1;
    float *last = malloc((size_t)before * (size_t)n * sizeof(*last));
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *q = &s->seq[i];
        float *slot = s->state + (size_t)q->slot * s->state_stride + at;
        const float *state = q->pos0 > 0 ? slot : NULL;
        const float *in = x + (size_t)q->row0 * 3 * (size_t)n;
        for (int row = 0; row < q->n_rows; row++)
            for (int ch = 0; ch < n; ch++) {
                double sum = w->bias ? (double)w->bias[ch] : 0;
                for (int k = 0; k <= before; k++)
                    sum += (double)w->taps[k * n + ch] *
                           (double)plain_conv_in(sh, in, state, row - before + k, ch);
                out[(size_t)(q->row0 + row) * (size_t)n + (size_t)ch] =
                    in[(size_t)row * 3 * (size_t)n + (size_t)(n + ch)] * (float)sum;
            }
        for (int k = 0; k < before; k++)
            for (int ch = 0; ch < n; ch++)
                last[k * n + ch] = plain_conv_in(sh, in, state, q->n_rows - before + k, ch);
        memcpy(slot, last, (size_t)before * (size_t)n * sizeof(*last));
    }
    free(last);
}

/* What channel ch of a scan's convolution makes of a row, before silu; rows before pos0 stand in
 * the state, raw as they came. */
static double plain_scan_conv(const mixer_shape *sh, const scan_weights *w, const float *x,
                              const float *state, int row, int ch)
{
    int inner = sh->heads * sh->cols, group = sh->groups * sh->rows;
    double by = (double)w->rules.by[ch < inner ? 1 : ch < inner + group ? 2 : 3];
    double sum = w->conv.bias ? (double)w->conv.bias[ch] : 0;
    for (int k = 0; k < sh->taps; k++) {
        int at = row - sh->taps + 1 + k;
        double v = at >= 0 ? (double)x[(size_t)at * (size_t)scan_in(sh) + (size_t)(inner + ch)]
                   : state ? (double)state[(sh->taps - 1 + at) * sh->channels + ch]
                           : 0;
        sum += by * (double)w->conv.taps[k * sh->channels + ch] * v;
    }
    return sum;
}

/* One row of a head whose x, B and C came through the convolution. */
static void plain_scan_head(const mixer_shape *sh, const scan_weights *w, float *out,
                            const double *conv, double raw, float *state, int head)
{
    const scan_rules *r = &w->rules;
    int inner = sh->heads * sh->cols, group = head / (sh->heads / sh->groups);
    const double *x = conv + head * sh->cols, *b = conv + inner + group * sh->rows;
    const double *c = b + sh->groups * sh->rows;
    double dt = log1p(exp(raw * (double)r->by[4] + (double)w->dt_bias[head]));
    dt = fmin(fmax(dt, (double)r->dt_least), (double)r->dt_most);
    double keep = exp(-dt * exp((double)w->decay[head]));
    for (int p = 0; p < sh->cols; p++) {
        double sum = x[p] * (double)w->skip[head];
        for (int n = 0; n < sh->rows; n++) {
            float *at = &state[n * sh->cols + p];
            *at = (float)((double)*at * keep + dt * x[p] * b[n]);
            sum += (double)*at * c[n];
        }
        out[head * sh->cols + p] = (float)sum;
    }
}

/* The gate, and the norm of each group. */
static void plain_scan_gate(const mixer_shape *sh, const scan_weights *w, float *y, const float *z)
{
    const scan_rules *r = &w->rules;
    int n = sh->heads * sh->cols / sh->groups;
    for (int g = 0; g < sh->groups; g++) {
        double sum = 0;
        for (int i = g * n; i < (g + 1) * n; i++) {
            double by = plain_silu((double)z[i] * (double)r->by[0]);
            double v = (double)y[i] * (r->normed && r->norm_first ? 1 : by);
            sum += v * v;
        }
        double inv = r->normed ? 1 / sqrt(sum / n + (double)r->eps) : 1;
        for (int i = g * n; i < (g + 1) * n; i++)
            y[i] = (float)((double)y[i] * plain_silu((double)z[i] * (double)r->by[0]) * inv *
                           (r->normed ? (double)w->norm[i] : 1));
    }
}

static void plain_scan(backend *be, float *out, float *x, const scan_weights *w,
                       const mixer_shape *sh, const step *s, size_t at)
{
    (void)be;
    int in = scan_in(sh), inner = scan_out(sh), n = sh->channels, before = sh->taps - 1;
    double *conv = malloc((size_t)n * sizeof(*conv));
    float *last = malloc((size_t)before * (size_t)n * sizeof(*last));
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *q = &s->seq[i];
        float *slot = s->state + (size_t)q->slot * s->state_stride + at,
              *matrix = slot + before * n;
        const float *from = x + (size_t)q->row0 * (size_t)in;
        size_t each = (size_t)sh->rows * (size_t)sh->cols;
        if (q->pos0 == 0) memset(slot, 0, mixer_state_floats(sh) * sizeof(*slot));
        for (int row = 0; row < q->n_rows; row++) {
            const float *z = from + (size_t)row * (size_t)in;
            float *y = out + (size_t)(q->row0 + row) * (size_t)inner;
            for (int ch = 0; ch < n; ch++)
                conv[ch] = plain_silu(plain_scan_conv(sh, w, from, slot, row, ch));
            for (int h = 0; h < sh->heads; h++)
                plain_scan_head(sh, w, y, conv, (double)z[inner + n + h], matrix + (size_t)h * each,
                                h);
            plain_scan_gate(sh, w, y, z);
        }
        for (int k = 0; k < before; k++)
            for (int ch = 0; ch < n; ch++) {
                int row = q->n_rows - before + k;
                last[k * n + ch] = row < 0 ? slot[(before + row) * n + ch]
                                           : from[(size_t)row * (size_t)in + (size_t)(inner + ch)];
            }
        memcpy(slot, last, (size_t)before * (size_t)n * sizeof(*last));
    }
    free(conv);
    free(last);
}

static void plain_silu_conv(backend *be, float *x, const conv_weights *w, const mixer_shape *sh,
                            const step *s, size_t at)
{
    (void)be;
    int n = sh->channels, before = sh->taps - 1;
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *q = &s->seq[i];
        float *last = s->state + (size_t)q->slot * s->state_stride + at;
        if (q->pos0 == 0) memset(last, 0, mixer_window_floats(sh) * sizeof(*last));
        for (int row = q->row0; row < q->row0 + q->n_rows; row++)
            for (int ch = 0; ch < n; ch++) {
                float in = x[row * n + ch];
                double sum = w->bias ? (double)w->bias[ch] : 0;
                for (int k = 0; k < before; k++)
                    sum += (double)w->taps[k * n + ch] * (double)last[k * n + ch];
                sum += (double)w->taps[before * n + ch] * (double)in;
                for (int k = 0; k + 1 < before; k++) last[k * n + ch] = last[(k + 1) * n + ch];
                last[(before - 1) * n + ch] = in;
                x[row * n + ch] = (float)plain_silu(sum);
            }
    }
}

static double plain_bc(const float *x, const float *gain, double eps, int rows, int at)
{
    double sum = 0;
    for (int i = 0; i < rows; i++) sum += (double)x[i] * (double)x[i] / rows;
    return (double)x[at] / sqrt(sum + eps) * (double)gain[at];
}

static void plain_scan_channels(backend *be, float *out, const channel_rows *x,
                                const channel_weights *w, const mixer_shape *sh, const step *s,
                                size_t at)
{
    (void)be;
    int n = sh->channels, rows = sh->rows, wide = x->first + 2 * rows;
    for (int i = 0; i < s->n_seq; i++) {
        const step_seq *q = &s->seq[i];
        float *state = s->state + (size_t)q->slot * s->state_stride + at + mixer_window_floats(sh);
        if (q->pos0 == 0) memset(state, 0, (size_t)n * (size_t)rows * sizeof(*state));
        for (int row = q->row0; row < q->row0 + q->n_rows; row++)
            for (int ch = 0; ch < n; ch++) {
                const float *bc = x->bc + row * wide + x->first;
                double dt = log1p(exp((double)x->dt[row * n + ch])), sum = 0;
                double in = (double)x->x[row * n + ch];
                for (int k = 0; k < rows; k++) {
                    float *v = &state[ch * rows + k];
                    double rate = exp((double)w->decay[ch * rows + k]);
                    *v = (float)(exp(-dt * rate) * (double)*v +
                                 dt * in * plain_bc(bc, w->b_norm, (double)w->eps, rows, k));
                    sum += (double)*v * plain_bc(bc + rows, w->c_norm, (double)w->eps, rows, k);
                }
                out[row * n + ch] = (float)((sum + (double)w->skip[ch] * in) *
                                            plain_silu((double)x->in[(2 * row + 1) * n + ch]));
            }
    }
}

static double plain_act(activation act, double x)
{
    if (act == ACT_SILU) return x / (1 + exp(-x));
    if (act == ACT_SWIGLU_CLAMPED) return fmin(x, 7) / (1 + exp(-1.702 * fmin(x, 7)));
    if (act == ACT_RELU2) return x > 0 ? x * x : 0;
    if (act == ACT_RELU) return x > 0 ? x : 0;
    if (act == ACT_GELU) return x / 2 * erfc(-x / sqrt(2));
    return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static void plain_streams_predict(backend *be, const stream_set *set, const float *coefs,
                                  float *first)
{
    (void)be;
    size_t n = (size_t)set->n, values = (size_t)set->n_rows * (size_t)set->dim;
    for (size_t at = 0; at < values; at++) {
        const float *c = coefs + at / (size_t)set->dim * n * n;
        double sum[STREAMS_MAX];
        for (size_t i = 0; i < n; i++) {
            sum[i] = (double)set->x[i * set->apart + at];
            for (size_t k = 0; k < n; k++)
                sum[i] += (double)c[i * n + k] * (double)set->x[k * set->apart + at];
        }
        for (size_t i = 0; i < n; i++) set->x[i * set->apart + at] = (float)sum[i];
        first[at] = set->x[at];
    }
}

static void plain_streams_correct(backend *be, const stream_set *set, const float *coefs,
                                  const float *x, const float *scale, float *first)
{
    (void)be;
    size_t n = (size_t)set->n, dim = (size_t)set->dim, values = (size_t)set->n_rows * dim;
    for (size_t at = 0; at < values; at++) {
        double by = (double)x[at] - (double)set->x[at];
        for (size_t i = 0; i < n; i++)
            set->x[i * set->apart + at] += (float)(by * (1 + (double)coefs[at / dim * n + i]));
        first[at] = set->x[at] * (scale ? scale[at % dim] : 1);
    }
}

static void plain_match_rms(backend *be, float *y, const float *x, float least, int n_rows, int dim)
{
    (void)be;
    for (int r = 0; r < n_rows; r++) {
        double own = 0, other = 0;
        for (int i = 0; i < dim; i++) own += pow((double)y[r * dim + i], 2) / dim;
        for (int i = 0; i < dim; i++) other += pow((double)x[r * dim + i], 2) / dim;
        for (int i = 0; i < dim; i++)
            y[r * dim + i] *= (float)(sqrt(other) / sqrt(fmax(own, (double)least)));
    }
}

static void plain_gate_sparse(backend *be, float *gate, float by, int n_rows, int dim)
{
    (void)be;
    for (int r = 0; r < n_rows; r++) {
        double mean = 0, square = 0;
        for (int i = 0; i < dim; i++) mean += (double)gate[r * dim + i] / dim;
        for (int i = 0; i < dim; i++) square += pow((double)gate[r * dim + i] - mean, 2) / dim;
        for (int i = 0; i < dim; i++)
            gate[r * dim + i] =
                (float)fmax(0, (double)gate[r * dim + i] - mean - (double)by * sqrt(square));
    }
}

static void plain_gate(backend *be, activation act, float *gate, const float *up, size_t n)
{
    (void)be;
    for (size_t i = 0; i < n; i++) {
        double by = up ? (double)up[i] : 1;
        if (act == ACT_SWIGLU_CLAMPED) by = fmax(-7, fmin(by, 7)) + 1;
        gate[i] = (float)(plain_act(act, (double)gate[i]) * by);
    }
}

/* The sum of the highest of n. */
static double plain_group(const double *key, int n, int best)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        int higher = 0;
        for (int o = 0; o < n; o++) higher += key[o] > key[i];
        sum += higher < best ? key[i] : 0;
    }
    return sum;
}

/* Of two experts, each among those near to it that are not taken. */
static void plain_route_near(const expert_route *r, const float *scores, double *by)
{
    int taken = -1;
    for (int e = 0; e < r->n; e++) by[e] = 0;
    for (int i = 0; i < 2; i++) {
        int best = taken == 0 ? 1 : 0;
        double sum = 0;
        for (int e = 0; e < r->n; e++)
            if (e != taken && scores[e] > scores[best]) best = e;
        for (int e = 0; e < r->n; e++) {
            double away = (double)scores[best] - (double)scores[e];
            bool near =
                away / fmax(fabs((double)scores[e]), (double)scores[best]) <= 2 * (double)r->jitter;
            if (e != taken && near) sum += exp(-away);
        }
        by[best] = 1 / sum;
        taken = best;
    }
}

/* The weight of each expert for one row; 0: it does not take it. */
static void plain_route(const expert_set *set, const float *scores, double *by)
{
    const expert_route *r = &set->route;
    if (r->jitter > 0) {
        plain_route_near(r, scores, by);
        return;
    }
    double p[EXPERTS_MAX], key[EXPERTS_MAX], max = -INFINITY, all = 0, sum = 0;
    int each = r->n_group ? r->n / r->n_group : r->n;
    bool shut[EXPERTS_MAX] = {false};
    for (int e = 0; e < r->n; e++) max = fmax(max, (double)scores[e]);
    for (int e = 0; e < r->n; e++) all += p[e] = exp((double)scores[e] - max);
    for (int e = 0; e < r->n; e++) {
        if (r->sigmoid) p[e] = 1 / (1 + exp(-(double)scores[e]));
        if (!r->sigmoid && !r->softmax_last) p[e] /= all;
        key[e] = (r->softmax_last ? (double)scores[e] : p[e]) +
                 (set->choice_bias ? (double)set->choice_bias[e] : 0);
        by[e] = 0;
    }
    /* A group is shut where top_group others are higher. */
    for (int g = 0; g < r->n_group; g++) {
        int higher = 0;
        for (int o = 0; o < r->n_group; o++)
            higher += plain_group(key + o * each, each, r->group_best) >
                      plain_group(key + g * each, each, r->group_best);
        for (int i = 0; i < each; i++) shut[g * each + i] = higher >= r->top_group;
    }
    for (int i = 0; i < r->top_k; i++) {
        int best = -1;
        for (int e = 0; e < r->n; e++)
            if (!shut[e] && (best < 0 || key[e] > key[best])) best = e;
        shut[best] = true;
        sum += by[best] = p[best];
    }
    bool normed = r->normed || (r->softmax_last && !r->sigmoid);
    for (int e = 0; e < r->n; e++) by[e] *= (double)r->scale / (normed ? sum : 1);
    for (int e = 0; e < r->n && set->scales; e++) by[e] *= (double)set->scales[e];
}

static const lora_mat *plain_expert_lora(const lora_view *view, int layer, int e, int p)
{
    if (!view || !view->expert) return NULL;
    const lora_mat *m = &view->expert[(layer * view->n_expert + e) * 3 + p - PROJ_GATE];
    return lora_mat_used(m) ? m : NULL;
}

static void plain_experts(backend *be, float *out, const float *x, const expert_set *set,
                          const float *scores, const float *shared, const step *s, int layer)
{
    (void)be;
    int dim = set->down[0]->rows, ffn = set->up[0]->rows;
    double by[EXPERTS_MAX];
    const float *bias[] = {set->gate_bias, set->up_bias, set->down_bias};
    float *gate = malloc((size_t)(2 * ffn + 2 * dim) * sizeof(float)), *up = gate + ffn;
    float *y = up + ffn, *in = y + dim;
    for (int i = 0; i < s->n_rows; i++, x += dim, out += dim, scores += set->route.n) {
        const lora_view *view = plain_view_of(s, i);
        plain_route(set, scores, by);
        double part = shared ? 1 / (1 + exp(-(double)shared[i])) : 0;
        for (int k = 0; k < dim && (shared || !set->onto); k++)
            out[k] = shared ? (float)(part * (double)out[k]) : 0;
        for (int e = 0; e < set->route.n; e++) {
            double after = set->route.scale_in ? 1 : by[e];
            if (by[e] == 0) continue;
            linear_out g = {.w = set->gate ? set->gate[e] : NULL,
                            .bias = bias[0] ? bias[0] + e * ffn : NULL};
            linear_out u = {.w = set->up[e], .bias = bias[1] ? bias[1] + e * ffn : NULL};
            linear_out d = {.w = set->down[e], .bias = bias[2] ? bias[2] + e * dim : NULL};
            for (int k = 0; k < dim; k++) in[k] = set->route.scale_in ? (float)by[e] * x[k] : x[k];
            const lora_mat *up_lora = plain_expert_lora(view, layer, e, PROJ_UP);
            plain_linear_row(&u, set->gate ? up : gate, in, up_lora);
            if (set->gate)
                plain_linear_row(&g, gate, in, plain_expert_lora(view, layer, e, PROJ_GATE));
            plain_gate(be, set->act, gate, set->gate ? up : NULL, (size_t)ffn);
            plain_linear_row(&d, y, gate, plain_expert_lora(view, layer, e, PROJ_DOWN));
            for (int k = 0; k < dim; k++) out[k] += (float)after * y[k];
        }
    }
    free(gate);
}

static void plain_layer_norm(backend *be, float *out, const float *x, const float *w,
                             const float *bias, float eps, int row0, int n_rows, int dim)
{
    (void)be;
    for (int row = row0; row < row0 + n_rows; row++) {
        const float *v = x + (size_t)row * (size_t)dim;
        double mean = 0, sum = 0;
        for (int i = 0; i < dim; i++) mean += (double)v[i] / dim;
        for (int i = 0; i < dim; i++) sum += ((double)v[i] - mean) * ((double)v[i] - mean);
        for (int i = 0; i < dim; i++)
            out[(size_t)row * (size_t)dim + (size_t)i] =
                (float)(((double)v[i] - mean) / sqrt(sum / dim + (double)eps) * (double)w[i] +
                        (bias ? (double)bias[i] : 0));
    }
}

static void plain_add(backend *be, float *x, const float *y, float scale, size_t n)
{
    (void)be;
    for (size_t i = 0; i < n; i++) x[i] += scale * y[i];
}

static void plain_scale(backend *be, float *x, float scale, size_t n)
{
    (void)be;
    for (size_t i = 0; i < n; i++) x[i] *= scale;
}

static void plain_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale,
                              float cap)
{
    (void)be;
    for (size_t i = 0; i < (size_t)n_rows * (size_t)stride; i++) {
        double v = (double)logits[i] * (double)scale;
        logits[i] = (float)(cap > 0 ? (double)cap * tanh(v / (double)cap) : v);
    }
}

static void plain_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias,
                              int n)
{
    (void)be;
    for (int row = 0; row < n_rows; row++)
        for (int i = 0; i < n; i++) logits[(size_t)row * (size_t)stride + (size_t)i] += bias[i];
}

static void plain_xielu(backend *be, float *x, const xielu_weights *w, size_t n)
{
    (void)be;
    double beta = (double)*w->beta, eps = (double)*w->eps;
    double alpha_p = log1p(exp((double)*w->alpha_p));
    double alpha_n = log1p(exp((double)*w->alpha_n)) + beta;
    for (size_t i = 0; i < n; i++) {
        double v = (double)x[i];
        x[i] = (float)(beta * v + (v > 0 ? alpha_p * v * v : alpha_n * (expm1(fmin(v, eps)) - v)));
    }
}

static void plain_logits(backend *be, float *logits, const float *x, const float *norm, float eps,
                         int dim, const weight *head, const step *s)
{
    (void)be;
    float *h = malloc((size_t)dim * sizeof(float));
    for (int i = 0; i < s->n_logit; i++) {
        int row = s->logit_row[i];
        const lora_view *view = plain_view_of(s, row);
        linear_out out = {.w = view && view->head && view->head->w ? view->head->w : head};
        const float *from = x + (size_t)row * (size_t)dim;
        if (norm)
            plain_norm_row(h, from, lora_last_norm(view, norm), eps, dim);
        else
            memcpy(h, from, (size_t)dim * sizeof(float));
        size_t stride = (size_t)(s->logit_stride ? s->logit_stride : head->rows);
        plain_linear_row(&out, logits + (size_t)i * stride, h, plain_lora_of(s, row, 0, LORA_HEAD));
        const lora_rows *rows = view && view->head ? &view->head->rows : NULL;
        if (!rows || rows->n == 0) continue;
        float *y = malloc((size_t)rows->n * sizeof(float));
        linear_out own = {.w = rows->w};
        plain_linear_row(&own, y, h, NULL);
        for (int k = 0; k < rows->n; k++) logits[(size_t)i * stride + (size_t)rows->id[k]] = y[k];
        free(y);
    }
    free(h);
}

static void plain_parallel(backend *be, void (*fn)(void *arg, int i), void *arg, int n)
{
    (void)be;
    for (int i = 0; i < n; i++) fn(arg, i);
}

static const backend_ops backend_plain = {
    .name = "plain",
    .open = plain_open,
    .close = plain_close,
    .alloc = plain_alloc,
    .free = plain_free,
    .upload = plain_copy,
    .download = plain_copy,
    .copy = plain_copy_within,
    .sync = plain_sync,
    .weight_create = plain_weight_create,
    .weight_destroy = plain_weight_destroy,
    .lora_a_bytes = plain_lora_bytes,
    .lora_b_bytes = plain_lora_bytes,
    .lora_pack = plain_lora_pack,
    .lora_weight_create = plain_lora_weight_create,
    .lora_gain = plain_lora_gain,
    .kv_page_bytes = plain_kv_page_bytes,
    .kv_create = plain_kv_create,
    .kv_destroy = plain_kv_destroy,
    .kv_save = plain_kv_save,
    .kv_load = plain_kv_load,
    .kv_copy = plain_kv_copy,
    .embed = plain_embed,
    .rms_norm = plain_rms_norm,
    .linear = plain_linear,
    .latent_norm = plain_latent_norm,
    .latent_spread = plain_latent_spread,
    .rope_append = plain_rope_append,
    .attend = plain_attend,
    .conv = plain_conv,
    .delta = plain_delta,
    .q_take = plain_q_take,
    .q_gate = plain_q_gate,
    .scan = plain_scan,
    .gate = plain_gate,
    .silu_conv = plain_silu_conv,
    .scan_channels = plain_scan_channels,
    .xielu = plain_xielu,
    .streams_predict = plain_streams_predict,
    .streams_correct = plain_streams_correct,
    .match_rms = plain_match_rms,
    .gate_sparse = plain_gate_sparse,
    .logits_bias = plain_logits_bias,
    .experts = plain_experts,
    .layer_norm = plain_layer_norm,
    .add = plain_add,
    .scale = plain_scale,
    .logits = plain_logits,
    .logits_bend = plain_logits_bend,
    .parallel = plain_parallel,
};

#endif
