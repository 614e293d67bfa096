/* model.c -- life of a model, rope tables, and the forward pass: the page to read beside the
 * paper.
 *
 * All memory is taken in model_load(): a step allocates nothing.  The rope tables are reserved
 * for max_position_embeddings (which may be millions) but filled only as far as a step has
 * reached, so that a long limit costs neither start-up time nor memory.
 */
#include "engine/model/model.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model_inside.h"

enum { ROPE_CHUNK = 1024 }; /* positions filled at a time */

/* ----------------------------------------------------------------------------- rope -- */

/* Frequencies in f32, in the order of operations of the reference: a position near the context's
 * end multiplies each rounding by 1e5. */
static void rope_frequencies(const model_config *c, float *inv_freq)
{
    const float two_pi = 6.2831853071795864769F;
    for (int i = 0; i < c->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)c->head_dim;
        float f = 1.0F / (float)pow((double)c->rope_theta, (double)exponent);
        if (c->rope_kind == ROPE_LINEAR) f /= c->rope_factor;
        if (c->rope_kind == ROPE_LLAMA3) {
            /* long waves are stretched, short ones kept, those between blended */
            float original = (float)c->rope_original_pos;
            float wavelen = two_pi / f;
            if (wavelen > original / c->rope_low_freq) {
                f /= c->rope_factor;
            } else if (wavelen >= original / c->rope_high_freq) {
                float smooth = (original / wavelen - c->rope_low_freq) /
                               (c->rope_high_freq - c->rope_low_freq);
                f = (1.0F - smooth) * f / c->rope_factor + smooth * f;
            }
        }
        inv_freq[i] = f;
    }
}

static err_code rope_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    int half = c->head_dim / 2;
    m->rope_bytes = (size_t)c->max_pos * (size_t)half * sizeof(float);
    m->inv_freq = malloc((size_t)half * sizeof(float));
    m->rope_chunk = malloc(ROPE_CHUNK * (size_t)half * sizeof(float));
    m->rope_cos = be_map(m->be, m->rope_bytes);
    m->rope_sin = be_map(m->be, m->rope_bytes);
    if (!m->inv_freq || !m->rope_chunk || !m->rope_cos || !m->rope_sin) {
        return err_set(e, ERR_NOMEM, "no memory for the rope tables of %d positions", c->max_pos);
    }
    rope_frequencies(c, m->inv_freq);
    m->rope = (rope_table){m->rope_cos, m->rope_sin, c->max_pos, c->head_dim};
    return ERR_NONE;
}

/* One function's values for positions [from, to), uploaded. */
static err_code rope_upload(model *m, float *table, double (*fn)(double), int from, int to, err *e)
{
    size_t half = (size_t)m->cfg.head_dim / 2;
    float *v = m->rope_chunk;
    for (int pos = from; pos < to; pos++) {
        for (size_t i = 0; i < half; i++) {
            float angle = (float)pos * m->inv_freq[i]; /* rounded to f32 as the reference does */
            *v++ = (float)fn((double)angle);
        }
    }
    err_code rc = be_upload(m->be, table + (size_t)from * half, m->rope_chunk,
                            (size_t)(to - from) * half * sizeof(float));
    return rc ? err_set(e, rc, "the device takes no rope tables") : ERR_NONE;
}

/* Makes positions [0, n) ready, a chunk at a time. */
static err_code rope_fill(model *m, int n, err *e)
{
    err_code rc = ERR_NONE;
    while (!rc && m->rope_ready < n) {
        int from = m->rope_ready, to = from + ROPE_CHUNK;
        if (to > m->cfg.max_pos) to = m->cfg.max_pos;
        rc = rope_upload(m, m->rope_cos, cos, from, to, e);
        if (!rc) rc = rope_upload(m, m->rope_sin, sin, from, to, e);
        if (!rc) m->rope_ready = to;
    }
    return rc;
}

/* ----------------------------------------------------------------------------- life -- */

static float *rows_alloc(model *m, int cols)
{
    return be_alloc(m->be, (size_t)m->max_rows * (size_t)cols * sizeof(float));
}

static err_code reserve(const model *m, int added, err *e)
{
    const model_config *c = &m->cfg;
    int q = c->n_head * c->head_dim, cols = c->dim > c->ffn_dim ? c->dim : c->ffn_dim;
    step_bounds most = {.rows = m->max_rows,
                        .logits = m->max_logits,
                        .stride = c->n_vocab + added,
                        .cols = cols > q ? cols : q,
                        .dim = c->dim,
                        .context = c->max_pos,
                        .head_dim = c->head_dim};
    return be_reserve(m->be, &most, e);
}

static err_code scratch_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    m->x = rows_alloc(m, c->dim);
    m->h = rows_alloc(m, c->dim);
    m->q = rows_alloc(m, q);
    m->k = rows_alloc(m, kv);
    m->v = rows_alloc(m, kv);
    m->attn = rows_alloc(m, q);
    m->gate = rows_alloc(m, c->ffn_dim);
    m->up = rows_alloc(m, c->ffn_dim);
    m->logits_bytes = (size_t)m->max_logits * (size_t)model_logit_stride(m) * sizeof(float);
    m->logits = be_host_alloc(m->be, m->logits_bytes);
    if (!m->x || !m->h || !m->q || !m->k || !m->v || !m->attn || !m->gate || !m->up || !m->logits) {
        return err_set(e, ERR_NOMEM, "no memory for steps of %d rows and %d logits", m->max_rows,
                       m->max_logits);
    }
    return reserve(m, c->added_max, e);
}

int model_logit_stride(const model *m)
{
    return m->cfg.n_vocab + m->cfg.added_max;
}

err_code model_allow_added(model *m, int max, int least, err *e)
{
    assert(max >= 0);
    if (!be_caps(m->be)->token_rows) {
        max = 0;
        least = 0;
    }
    m->cfg.vocab_least = least < m->cfg.n_vocab ? least : 0;
    size_t bytes = (size_t)m->max_logits * ((size_t)m->cfg.n_vocab + (size_t)max) * sizeof(float);
    if (max == m->cfg.added_max) return ERR_NONE;
    float *logits = be_host_alloc(m->be, bytes);
    if (!logits) return err_set(e, ERR_NOMEM, "no memory for the logits of %d added tokens", max);
    if (reserve(m, max, e)) {
        be_host_free(m->be, logits, bytes);
        return e->code;
    }
    be_host_free(m->be, m->logits, m->logits_bytes);
    m->logits = logits;
    m->logits_bytes = bytes;
    m->cfg.added_max = max;
    return ERR_NONE;
}

/* Tells the backend which matrices share an input. */
static err_code products_prepare(model *m, err *e)
{
    err_code rc = be_prepare(m->be, (const weight *const *)&m->head, 1, e);
    for (int i = 0; !rc && i < m->cfg.n_layer; i++) {
        weight *const *w = m->layer[i].w;
        rc = be_prepare(m->be, (const weight *const *)&w[PROJ_Q], 3, e);
        if (!rc) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_O], 1, e);
        if (!rc) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_GATE], 2, e);
        if (!rc) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_DOWN], 1, e);
    }
    return rc;
}

err_code model_load(model **out, const char *dir, backend *be, int max_rows, int max_logits, err *e)
{
    assert(max_rows > 0 && max_logits > 0);
    *out = NULL;
    model *m = calloc(1, sizeof(*m));
    if (!m) return err_set(e, ERR_NOMEM, "no memory to load the model");
    m->be = be;
    m->max_rows = max_rows;
    m->max_logits = max_logits;
    m->dir = strdup(dir);

    err_code rc = m->dir ? model_config_read(dir, &m->cfg, e)
                         : err_set(e, ERR_NOMEM, "no memory to load the model");
    if (!rc) rc = model_weights_load(m, dir, e);
    if (!rc) rc = rope_create(m, e);
    if (!rc) rc = scratch_create(m, e);
    if (!rc) rc = products_prepare(m, e);
    if (rc) {
        model_destroy(m);
        return rc;
    }
    *out = m;
    return ERR_NONE;
}

void model_unload(model *m)
{
    model_weights_clear(m);
    float **scratch[] = {&m->x, &m->h, &m->q, &m->k, &m->v, &m->attn, &m->gate, &m->up};
    for (size_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); i++) {
        if (*scratch[i]) be_free(m->be, *scratch[i]);
        *scratch[i] = NULL;
    }
    be_host_free(m->be, m->logits, m->logits_bytes);
    be_unmap(m->be, m->rope_cos, m->rope_bytes);
    be_unmap(m->be, m->rope_sin, m->rope_bytes);
    free(m->rope_chunk);
    free(m->inv_freq);
    m->logits = m->rope_cos = m->rope_sin = m->rope_chunk = m->inv_freq = NULL;
    m->rope_ready = 0;
}

/* What the rest of the process has learnt from it and keeps: all but the defaults for sampling. */
static bool same_model(const model_config *a, const model_config *b)
{
    return a->n_layer == b->n_layer && a->dim == b->dim && a->n_head == b->n_head &&
           a->n_kv_head == b->n_kv_head && a->head_dim == b->head_dim && a->ffn_dim == b->ffn_dim &&
           a->n_vocab == b->n_vocab && a->max_pos == b->max_pos && a->window == b->window &&
           a->norm_eps == b->norm_eps && a->qkv_bias == b->qkv_bias && a->o_bias == b->o_bias &&
           a->mlp_bias == b->mlp_bias && a->qk_norm == b->qk_norm && a->tied == b->tied &&
           a->rope_theta == b->rope_theta && a->rope_kind == b->rope_kind &&
           a->rope_factor == b->rope_factor && a->rope_low_freq == b->rope_low_freq &&
           a->rope_high_freq == b->rope_high_freq && a->rope_original_pos == b->rope_original_pos &&
           a->type == b->type && a->embed_type == b->embed_type && a->head_type == b->head_type &&
           a->embed_print == b->embed_print && a->head_print == b->head_print;
}

/* The configuration is read by other threads all the time: a second model is loaded,
 * and what it has moves over. */
err_code model_reload(model *m, err *e)
{
    model *fresh;
    err_code rc = model_load(&fresh, m->dir, m->be, m->max_rows, m->max_logits, e);
    if (rc) return rc;
    rc = model_allow_added(fresh, m->cfg.added_max, m->cfg.vocab_least, e);
    if (rc) {
        model_destroy(fresh);
        return rc;
    }
    if (!same_model(&m->cfg, &fresh->cfg)) {
        model_destroy(fresh);
        return err_set(e, ERR_CONFLICT, "the model's files have changed");
    }
    size_t from = offsetof(model, layer);
    memcpy((char *)m + from, (const char *)fresh + from, sizeof(*m) - from);
    free(fresh->dir);
    free(fresh);
    return ERR_NONE;
}

void model_destroy(model *m)
{
    if (!m) return;
    model_unload(m);
    free(m->dir);
    free(m);
}

const model_config *model_get_config(const model *m)
{
    return &m->cfg;
}

attn_shape model_attn_shape(const model *m)
{
    const model_config *c = &m->cfg;
    return (attn_shape){
        .n_layer = c->n_layer,
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .head_dim = c->head_dim,
        .kv_type = c->type == DT_BF16 ? DT_BF16 : DT_F32,
        .window = c->window,
        .scale = (float)(1.0 / sqrt((double)c->head_dim)),
    };
}

size_t model_weight_bytes(const model *m)
{
    return m->weight_bytes;
}

const weight *model_proj_weight(const model *m, int layer, proj p)
{
    return m->layer[layer].w[p];
}

const float *model_proj_bias(const model *m, int layer, proj p)
{
    return m->layer[layer].bias[p];
}

const weight *model_head_weight(const model *m)
{
    return m->head;
}

const void *model_embed_table(const model *m)
{
    return m->embed;
}

/* -------------------------------------------------------------------------- forward -- */

static linear_out project(const model_layer *l, proj p, float *y)
{
    return (linear_out){.y = y, .w = l->w[p], .bias = l->bias[p], .lora_proj = (int)p};
}

/* The same, added to the residual stream. */
static linear_out project_into(const model_layer *l, proj p, float *x)
{
    linear_out out = project(l, p, x);
    out.accumulate = true;
    return out;
}

/* Into m->h: rows of adapters with a norm of their own by that one, all others together. */
static void norm_rows(model *m, const float *base, int at, const step *s)
{
    const model_config *c = &m->cfg;
    int done = 0;
    for (int i = 0; i <= s->n_seg; i++) {
        bool end = i == s->n_seg;
        const float *own = end ? NULL : lora_norm(s->seg[i].lora, at, NULL);
        if (!end && !own) continue;
        int row0 = end ? s->n_rows : s->seg[i].row0;
        if (row0 > done)
            be_rms_norm(m->be, m->h, m->x, base, c->norm_eps, done, row0 - done, c->dim);
        if (end) break;
        be_rms_norm(m->be, m->h, m->x, own, c->norm_eps, row0, s->seg[i].n_rows, c->dim);
        done = row0 + s->seg[i].n_rows;
    }
}

static void forward_layer(model *m, kv_pool *kv, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    backend *be = m->be;
    int n = s->n_rows;

    norm_rows(m, l->attn_norm, i * LORA_NORMS + LORA_NORM_ATTN, s);
    linear_out qkv[] = {project(l, PROJ_Q, m->q), project(l, PROJ_K, m->k),
                        project(l, PROJ_V, m->v)};
    be_linear(be, m->h, qkv, 3, s, i);
    be_rope_append(be, kv, m->q, m->k, m->v, l->q_norm, l->k_norm, c->norm_eps, &m->rope, s, i);
    be_attend(be, kv, m->attn, m->q, s, i);
    linear_out o = project_into(l, PROJ_O, m->x);
    be_linear(be, m->attn, &o, 1, s, i);

    norm_rows(m, l->mlp_norm, i * LORA_NORMS + LORA_NORM_MLP, s);
    linear_out gate_up[] = {project(l, PROJ_GATE, m->gate), project(l, PROJ_UP, m->up)};
    be_linear(be, m->h, gate_up, 2, s, i);
    be_silu_mul(be, m->gate, m->up, (size_t)n * (size_t)c->ffn_dim);
    linear_out down = project_into(l, PROJ_DOWN, m->x);
    be_linear(be, m->gate, &down, 1, s, i);
}

static void forward(model *m, kv_pool *kv, const step *s)
{
    const model_config *c = &m->cfg;
    be_embed(m->be, m->x, m->table, m->embed_type, c->dim, s);
    for (int i = 0; i < c->n_layer; i++) forward_layer(m, kv, s, i);
    if (s->n_logit) {
        be_logits(m->be, m->logits, m->x, m->out_norm, c->norm_eps, c->dim, m->head, s);
    }
}

err_code model_enqueue(model *m, kv_pool *kv, const step *s, err *e)
{
    const model_config *c = &m->cfg;
    assert(s->n_rows > 0 && s->n_rows <= m->max_rows && s->n_logit <= m->max_logits);
    assert(s->logit_stride == 0 || s->logit_stride == model_logit_stride(m));
    for (int i = 0; i < s->n_seq; i++) {
        int end = s->seq[i].pos0 + s->seq[i].n_rows;
        assert(end <= c->max_pos);
        err_code rc = end > m->rope_ready ? rope_fill(m, end, e) : ERR_NONE;
        if (rc) return rc;
    }

    do {
        if (be_step_begin(m->be, s)) forward(m, kv, s);
    } while (!be_step_end(m->be, s));
    return ERR_NONE;
}

err_code model_forward(model *m, kv_pool *kv, const step *s, const float **logits_out, err *e)
{
    err_code rc = model_enqueue(m, kv, s, e);
    if (rc) return rc;
    be_logits_fetch(m->be, m->logits, s->n_logit, m->cfg.n_vocab);
    *logits_out = m->logits;
    return be_sync(m->be, e); /* errors are sticky: this is the only check */
}

const sampled *model_sample(model *m, const sample_row *rows, int n)
{
    return be_sample(m->be, m->logits, m->cfg.n_vocab, rows, n);
}
