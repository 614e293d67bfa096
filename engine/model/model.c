/* model.c -- life of a model, and the forward pass: the page to read beside the paper.
 *
 * The forward pass computes what model_config says; which family that is, it does not know.  All
 * memory is taken in model_load(): a step allocates nothing.
 */
#include "engine/model/model.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/round.h"
#include "engine/model/model_inside.h"

enum { STRIDE_STEP = 64 }; /* floats */

/* ----------------------------------------------------------------------------- life -- */

static float *rows_alloc(model *m, int cols)
{
    return be_alloc(m->be, (size_t)m->max_rows * (size_t)cols * sizeof(float));
}

/* The widest MLP that all rows take. */
static int ffn_most(const model_config *c)
{
    return c->ffn_dim > c->experts.shared_dim ? c->ffn_dim : c->experts.shared_dim;
}

static err_code reserve(const model *m, err *e)
{
    const model_config *c = &m->cfg;
    int q = c->n_head * c->head_dim, ffn = ffn_most(c), cols = c->dim > ffn ? c->dim : ffn;
    int lat = c->latent.rank > c->q_rank ? c->latent.rank : c->q_rank, o = c->n_head * c->latent.v;
    q = q > o ? q : o;
    q = q > lat ? q : lat;
    int mlp[MODEL_LAYERS_MAX], d_in;
    for (int i = 0; i < c->n_layer; i++) model_layer_shape(c, i, PROJ_UP, &mlp[i], &d_in);
    step_bounds most = {.rows = m->max_rows,
                        .logits = m->max_logits,
                        .stride = model_logit_stride(m),
                        .cols = cols > q ? cols : q,
                        .dim = c->dim,
                        .context = c->max_pos,
                        .head_dim = c->head_dim > c->latent.v ? c->head_dim : c->latent.v,
                        .experts = c->experts.route.n,
                        .top_k = c->experts.route.top_k,
                        .expert_dim = c->experts.ffn_dim,
                        .mlp = mlp,
                        .n_layer = c->n_layer,
                        .latent = c->latent,
                        .q_rank = c->q_rank};
    return be_reserve(m->be, &most, e);
}

static err_code ones_create(model *m, err *e)
{
    size_t n = (size_t)m->cfg.head_dim;
    float *one = malloc(n * sizeof(*one));
    m->ones = be_alloc(m->be, n * sizeof(*one));
    for (size_t i = 0; one && i < n; i++) one[i] = 1;
    err_code rc = one && m->ones ? be_upload(m->be, m->ones, one, n * sizeof(*one)) : ERR_NOMEM;
    free(one);
    return rc ? err_set(e, rc, "no memory for the norms of queries and keys") : ERR_NONE;
}

static err_code scratch_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    const latent_shape *lat = &c->latent;
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    m->x = rows_alloc(m, c->dim);
    m->h = rows_alloc(m, c->dim);
    m->q = rows_alloc(m, c->kept > 0 ? 2 * q : q);
    m->k = rows_alloc(m, kv);
    m->v = rows_alloc(m, lat->rank ? lat->n_head * lat->v : kv);
    m->attn = rows_alloc(m, lat->rank ? lat->n_head * lat->v : q);
    m->gate = rows_alloc(m, ffn_most(c));
    m->up = rows_alloc(m, ffn_most(c));
    bool ok = true, mixed = c->experts.route.n > 0;
    if (lat->rank > 0) {
        m->q_a = c->q_rank ? rows_alloc(m, c->q_rank) : NULL;
        m->latent_in = rows_alloc(m, lat->rank + lat->rope);
        m->latent = rows_alloc(m, lat->rank);
        m->keys = rows_alloc(m, lat->n_head * (lat->nope + lat->v));
        ok = m->latent_in && m->latent && m->keys && (m->q_a || !c->q_rank);
    }
    if (mixed) {
        m->scores = rows_alloc(m, c->experts.route.n);
        m->shared = rows_alloc(m, 1);
        m->mixed = rows_alloc(m, c->dim);
    }
    m->logits_bytes = (size_t)m->max_logits * (size_t)model_logit_stride(m) * sizeof(float);
    m->logits = be_host_alloc(m->be, m->logits_bytes);
    ok &= m->x && m->h && m->q && m->k && m->v && m->attn && m->gate && m->up && m->logits;
    if (!ok || (mixed && (!m->scores || !m->shared || !m->mixed))) {
        return err_set(e, ERR_NOMEM, "no memory for steps of %d rows and %d logits", m->max_rows,
                       m->max_logits);
    }
    err_code rc = c->qk_unit ? ones_create(m, e) : ERR_NONE;
    return rc ? rc : reserve(m, e);
}

int model_logit_stride(const model *m)
{
    /* Rows begin on the same borders as without added tokens: products are chosen for those. */
    return m->cfg.n_vocab + round_up(m->cfg.added_max, STRIDE_STEP);
}

err_code model_allow_added(model *m, int max, int least, err *e)
{
    assert(max >= 0);
    m->cfg.vocab_least = least < m->cfg.n_vocab ? least : 0;
    if (max == m->cfg.added_max) return ERR_NONE;
    be_host_free(m->be, m->logits, m->logits_bytes);
    m->cfg.added_max = max;
    m->logits_bytes = (size_t)m->max_logits * (size_t)model_logit_stride(m) * sizeof(float);
    m->logits = be_host_alloc(m->be, m->logits_bytes);
    if (!m->logits)
        return err_set(e, ERR_NOMEM, "no memory for the logits of %d added tokens", max);
    return reserve(m, e);
}

/* Of a layer with attention over latents. */
static err_code latent_prepare(model *m, int i, err *e)
{
    weight *const *w = m->layer[i].w;
    const weight *first[] = {w[PROJ_K], w[m->cfg.q_rank ? PROJ_Q_A : PROJ_Q]};
    err_code rc = be_prepare(m->be, first, 2, e);
    if (!rc && m->cfg.q_rank) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_Q], 1, e);
    return rc ? rc : be_prepare(m->be, (const weight *const *)&w[PROJ_V], 1, e);
}

static expert_set experts_of(const model *m, int i)
{
    const model_layer *l = &m->layer[i];
    const experts_config *x = &m->cfg.experts;
    return (expert_set){.route = x->route,
                        .choice_bias = l->choice_bias,
                        .onto = x->shared_dim > 0 && !l->shared_gate,
                        .act = x->act,
                        .gate = l->expert,
                        .up = l->expert + x->route.n,
                        .down = l->expert + 2 * x->route.n,
                        .there = l->experts_there,
                        .gate_bias = l->expert_bias[0],
                        .up_bias = l->expert_bias[1],
                        .down_bias = l->expert_bias[2]};
}

/* Tells the backend which matrices share an input. */
static err_code products_prepare(model *m, err *e)
{
    err_code rc = be_prepare(m->be, (const weight *const *)&m->head, 1, e);
    for (int i = 0; !rc && i < m->cfg.n_layer; i++) {
        weight *const *w = m->layer[i].w;
        rc = m->cfg.latent.rank ? latent_prepare(m, i, e)
                                : be_prepare(m->be, (const weight *const *)&w[PROJ_Q], 3, e);
        if (!rc) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_O], 1, e);
        if (!rc && m->cfg.layer[i] & LAYER_EXPERTS) {
            expert_set set = experts_of(m, i);
            rc = be_experts_prepare(m->be, &m->layer[i].experts_there, &set, e);
        }
        if (!w[PROJ_UP]) continue; /* experts alone */
        bool gate = w[PROJ_GATE] != NULL;
        if (!rc) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_UP - gate], 1 + gate, e);
        if (!rc) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_DOWN], 1, e);
    }
    return rc;
}

/* Two tables where layers with a window turn in another way. */
static err_code ropes_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    err_code rc =
        rope_create(&m->rope, m->be, &c->rope, c->max_pos, c->rope_pairs, m->rope_divisors, e);
    m->rope.exact = c->kept > 0;
    bool two = c->window > 0 && !rope_config_same(&c->rope, &c->local_rope);
    if (rc || !two) return rc;
    return rope_create(&m->local_rope, m->be, &c->local_rope, c->max_pos, c->rope_pairs, NULL, e);
}

/* Windows of the layers where they differ. */
static err_code windows_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    int with = 0;
    for (int i = 0; i < c->n_layer; i++) with += c->layer[i] & LAYER_WINDOW ? 1 : 0;
    if (with == 0 || with == c->n_layer) return ERR_NONE;
    m->window = calloc((size_t)c->n_layer, sizeof(*m->window));
    if (!m->window) return err_set(e, ERR_NOMEM, "no memory to load the model");
    for (int i = 0; i < c->n_layer; i++) m->window[i] = c->layer[i] & LAYER_WINDOW ? c->window : 0;
    return ERR_NONE;
}

/* What this model asks of a backend beyond a Llama's operations. */
static unsigned extras_of(const model *m)
{
    const model_config *c = &m->cfg;
    const model_family *f = family_find(c->family);
    bool sums = f->norm[NORM_ATTN_OUT] || c->residual_scale != 1 || c->embed_scale != 1;
    bool logits = c->logit_scale != 1 || c->logit_cap > 0;
    return (sums ? EXTRA_SUMS : 0U) | (c->layer_norm ? EXTRA_LAYER_NORM : 0U) |
           (c->act != ACT_SILU ? EXTRA_GELU : 0U) | (c->score_cap > 0 ? EXTRA_SCORE_CAP : 0U) |
           (m->window ? EXTRA_WINDOWS : 0U) | (c->rope_pairs ? EXTRA_ROPE_PAIRS : 0U) |
           (logits ? EXTRA_LOGITS : 0U) | (c->qk_norm_whole ? EXTRA_WIDE_NORM : 0U) |
           (c->sinks ? EXTRA_SINKS : 0U) | (c->latent.rank ? EXTRA_LATENT : 0U) |
           (c->chunked && c->window ? EXTRA_CHUNKS : 0U) | (c->q_scale > 0 ? EXTRA_TEMPER : 0U) |
           (c->ungated ? EXTRA_NO_GATE : 0U) | (c->kept > 0 ? EXTRA_KEPT : 0U) |
           (c->experts.route.n ? EXTRA_EXPERTS | EXTRA_SUMS : 0U);
}

static err_code check_backend(const model *m, err *e)
{
    const backend_caps *caps = be_caps(m->be);
    unsigned missing = extras_of(m) & ~caps->extras;
    for (int bit = 0; bit < EXTRAS; bit++)
        if (missing >> bit & 1U)
            return err_set(e, ERR_UNSUPPORTED,
                           "a model of the family %s needs %s, which the "
                           "backend '%s' does not compute",
                           m->cfg.family, be_extra_name(bit), caps->name);
    return ERR_NONE;
}

err_code model_load(model **out, const char *dir, backend *be, int max_rows, int max_logits, err *e)
{
    const model_options none = {0};
    return model_load_with(out, dir, be, max_rows, max_logits, &none, e);
}

err_code model_load_with(model **out, const char *dir, backend *be, int max_rows, int max_logits,
                         const model_options *options, err *e)
{
    assert(max_rows > 0 && max_logits > 0);
    *out = NULL;
    model *m = calloc(1, sizeof(*m));
    if (!m) return err_set(e, ERR_NOMEM, "no memory to load the model");
    m->be = be;
    m->max_rows = max_rows;
    m->max_logits = max_logits;
    m->dir = strdup(dir);
    m->packed_dir = options->packed_dir ? strdup(options->packed_dir) : NULL;
    m->packed_floor_bytes = options->packed_floor_bytes;
    m->weights = options->weights;
    m->max_context = options->max_context;
    m->stream_sinks = options->sinks;
    m->stream_window = options->window;

    bool ok = m->dir && !m->packed_dir == !options->packed_dir;
    err_code rc = ok ? model_config_read(dir, &m->cfg, e)
                     : err_set(e, ERR_NOMEM, "no memory to load the model");
    if (m->max_context > 0 && m->max_context < m->cfg.max_pos) m->cfg.max_pos = m->max_context;
    if (!rc && (m->stream_sinks > 0 || m->stream_window > 0))
        rc = model_config_stream(&m->cfg, m->stream_sinks, m->stream_window, m->max_context, e);
    if (!rc) rc = windows_create(m, e);
    if (!rc) rc = check_backend(m, e);
    if (!rc) rc = model_weights_load(m, dir, e);
    m->kv_type = model_kv_type(&m->cfg, "auto");
    if (m->cfg.type == DT_F16 && be_caps(be)->f16_kv) m->kv_type = DT_F16;
    if (!rc) rc = ropes_create(m, e);
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
    float **scratch[] = {&m->x,    &m->h,      &m->q,      &m->k,    &m->v,         &m->attn,
                         &m->gate, &m->up,     &m->ones,   &m->q_a,  &m->latent_in, &m->latent,
                         &m->keys, &m->scores, &m->shared, &m->mixed};
    for (size_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); i++) {
        if (*scratch[i]) be_free(m->be, *scratch[i]);
        *scratch[i] = NULL;
    }
    be_host_free(m->be, m->logits, m->logits_bytes);
    m->logits = NULL;
    rope_clear(&m->rope, m->be);
    rope_clear(&m->local_rope, m->be);
}

static bool same_experts(const experts_config *a, const experts_config *b)
{
    const expert_route *r = &a->route, *o = &b->route;
    return r->n == o->n && r->top_k == o->top_k && r->softmax_last == o->softmax_last &&
           r->sigmoid == o->sigmoid && r->normed == o->normed && r->n_group == o->n_group &&
           r->top_group == o->top_group && r->group_best == o->group_best && r->scale == o->scale &&
           r->scale_in == o->scale_in && a->ffn_dim == b->ffn_dim &&
           a->shared_dim == b->shared_dim && a->biased == b->biased && a->act == b->act;
}

/* What the rest of the process has learnt from it and keeps: all but the defaults for sampling. */
static bool same_model(const model_config *a, const model_config *b)
{
    return strcmp(a->family, b->family) == 0 && a->n_layer == b->n_layer && a->dim == b->dim &&
           a->n_head == b->n_head && a->n_kv_head == b->n_kv_head && a->head_dim == b->head_dim &&
           a->ffn_dim == b->ffn_dim && a->n_vocab == b->n_vocab && a->max_pos == b->max_pos &&
           a->window == b->window && a->norm_eps == b->norm_eps && a->qkv_bias == b->qkv_bias &&
           a->o_bias == b->o_bias && a->mlp_bias == b->mlp_bias && a->tied == b->tied &&
           a->sinks == b->sinks && a->qk_unit == b->qk_unit && a->chunked == b->chunked &&
           a->kept == b->kept && a->q_scale == b->q_scale && a->q_floor == b->q_floor &&
           a->q_rank == b->q_rank && memcmp(&a->latent, &b->latent, sizeof(a->latent)) == 0 &&
           same_experts(&a->experts, &b->experts) && a->act == b->act &&
           a->score_scale == b->score_scale && a->score_cap == b->score_cap &&
           a->embed_scale == b->embed_scale && a->residual_scale == b->residual_scale &&
           a->logit_scale == b->logit_scale && a->logit_cap == b->logit_cap &&
           memcmp(a->layer, b->layer, sizeof(a->layer)) == 0 &&
           rope_config_same(&a->rope, &b->rope) &&
           rope_config_same(&a->local_rope, &b->local_rope) && a->type == b->type &&
           a->embed_type == b->embed_type && a->head_type == b->head_type &&
           a->embed_print == b->embed_print && a->head_print == b->head_print &&
           a->weights_print == b->weights_print;
}

/* The configuration is read by other threads all the time: a second model is loaded,
 * and what it has moves over. */
err_code model_reload(model *m, err *e)
{
    model *fresh;
    const model_options options = {.packed_dir = m->packed_dir,
                                   .packed_floor_bytes = m->packed_floor_bytes,
                                   .weights = m->weights,
                                   .max_context = m->max_context,
                                   .sinks = m->stream_sinks,
                                   .window = m->stream_window};
    err_code rc = model_load_with(&fresh, m->dir, m->be, m->max_rows, m->max_logits, &options, e);
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
    free(fresh->window);
    free(fresh->packed_dir);
    free(fresh->dir);
    free(fresh);
    return ERR_NONE;
}

void model_destroy(model *m)
{
    if (!m) return;
    model_unload(m);
    free(m->window);
    free(m->packed_dir);
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
        .kv_type = m->kv_type,
        .window = m->window ? 0 : c->window, /* some see everything */
        .layer_window = m->window,
        .scale = c->score_scale,
        .cap = c->score_cap,
        .v_dim = c->latent.rank ? c->latent.v : 0,
        .chunked = c->chunked,
        .kept = c->kept,
    };
}

static const char *const kv_names[] = {
    [DT_F32] = "f32", [DT_F16] = "f16", [DT_BF16] = "bf16", [DT_I8] = "int8"};

const char *model_kv_name(const model *m)
{
    return kv_names[m->kv_type];
}

dtype model_kv_type(const model_config *c, const char *word)
{
    for (int type = DT_F32; type <= DT_I8; type++) {
        if (strcmp(kv_names[type], word) == 0) return (dtype)type;
    }
    if (c->in_integers) return DT_F16; /* which rounds keys less than such products round x */
    return c->type == DT_BF16 ? DT_BF16 : DT_F32;
}

err_code model_set_kv_type(model *m, dtype type, err *e)
{
    const backend_caps *caps = be_caps(m->be);
    if (!(caps->kv_types >> type & 1U)) {
        return err_set(e, ERR_UNSUPPORTED, "the backend '%s' does not keep keys and values in it",
                       caps->name);
    }
    m->kv_type = type;
    return ERR_NONE;
}

size_t model_weight_bytes(const model *m)
{
    return m->weight_bytes;
}

const weight *model_proj_weight(const model *m, int layer, proj p)
{
    return m->layer[layer].w[p];
}

const weight *model_expert_weight(const model *m, int layer, int expert, proj p)
{
    weight *const *w = m->layer[layer].expert;
    return w ? w[(p - PROJ_GATE) * m->cfg.experts.route.n + expert] : NULL;
}

const float *model_proj_bias(const model *m, int layer, proj p)
{
    return m->layer[layer].bias[p];
}

const weight *model_head_weight(const model *m)
{
    return m->head;
}

bool model_embed_values(const model *m, int from, int to, dtype type, void *out)
{
    return stored_values(m->embed_stored, from, to, type, out);
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

/* What attention or an MLP reads: the stream normed, or as it is. */
static const float *block_input(model *m, const float *norm, const float *bias, int at,
                                const step *s)
{
    const model_config *c = &m->cfg;
    if (!norm) return m->x;
    if (c->layer_norm)
        be_layer_norm(m->be, m->h, m->x, norm, bias, c->norm_eps, 0, s->n_rows, c->dim);
    else
        norm_rows(m, norm, at, s);
    return m->h;
}

/* The last product of attention or an MLP, into the stream: normed and multiplied before. */
static void block_output(model *m, proj p, const float *in, const float *norm, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    bool plain = !norm && c->residual_scale == 1;
    linear_out out = plain ? project_into(l, p, m->x) : project(l, p, m->h);
    be_linear(m->be, in, &out, 1, s, i);
    if (plain) return;
    if (norm) be_rms_norm(m->be, m->h, m->h, norm, c->norm_eps, 0, s->n_rows, c->dim);
    be_add(m->be, m->x, m->h, c->residual_scale, (size_t)s->n_rows * (size_t)c->dim);
}

/* The rotation of a layer; of no values where it knows no positions. */
static rope_table rope_of(const model *m, int i)
{
    int kind = m->cfg.layer[i];
    rope_table t = m->rope.table;
    if (kind & LAYER_WINDOW && m->local_rope.cos) t = m->local_rope.table;
    if (kind & LAYER_NO_ROPE) {
        t.rope_dim = 0;
        t.q_scale = m->cfg.q_scale;
        t.q_floor = m->cfg.q_floor;
    }
    if (m->cfg.latent.rank) t.first = m->cfg.latent.nope;
    return t;
}

/* Queries, keys and values by way of latents.  Keys and values of all heads are made here and kept:
 * as be_attend() and adapters on PROJ_V take them. */
static void latent_qkv(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    float eps = family_find(c->family)->latent_eps;
    bool two = c->q_rank > 0;
    linear_out first[] = {project(l, PROJ_K, m->latent_in),
                          two ? project(l, PROJ_Q_A, m->q_a) : project(l, PROJ_Q, m->q)};
    linear_out q = project(l, PROJ_Q, m->q), kv = project(l, PROJ_V, m->keys);
    be_linear(m->be, in, first, 2, s, i);
    if (two) {
        be_rms_norm(m->be, m->q_a, m->q_a, l->norm[NORM_Q], eps, 0, s->n_rows, c->q_rank);
        be_linear(m->be, m->q_a, &q, 1, s, i);
    }
    be_latent_norm(m->be, m->latent, m->latent_in, l->norm[NORM_K], eps, &c->latent, s->n_rows);
    be_linear(m->be, m->latent, &kv, 1, s, i);
    be_latent_spread(m->be, m->k, m->v, m->keys, m->latent_in, &c->latent, s->n_rows);
}

static void attention(model *m, kv_pool *kv, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    bool latent = c->latent.rank > 0; /* whose norms are not of heads */
    const float *q_norm = latent ? NULL : l->norm[NORM_Q];
    const float *k_norm = latent ? NULL : l->norm[NORM_K];
    int q = c->n_head * c->head_dim, kv_cols = c->n_kv_head * c->head_dim;
    rope_table rope = rope_of(m, i);
    linear_out qkv[] = {project(l, PROJ_Q, m->q), project(l, PROJ_K, m->k),
                        project(l, PROJ_V, m->v)};
    if (latent)
        latent_qkv(m, in, s, i);
    else
        be_linear(m->be, in, qkv, 3, s, i);
    if (c->qk_norm_whole) {
        be_rms_norm(m->be, m->q, m->q, q_norm, c->norm_eps, 0, s->n_rows, q);
        be_rms_norm(m->be, m->k, m->k, k_norm, c->norm_eps, 0, s->n_rows, kv_cols);
        q_norm = k_norm = NULL;
    }
    if (c->qk_unit && !(c->layer[i] & LAYER_NO_ROPE)) q_norm = k_norm = m->ones;
    be_rope_append(m->be, kv, m->q, m->k, m->v, q_norm, k_norm, c->norm_eps, &rope, s, i);
    be_attend(m->be, kv, m->attn, m->q, l->sinks, s, i);
}

/* Into m->gate. */
static void mlp(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    int d_out, d_in;
    model_layer_shape(c, i, PROJ_UP, &d_out, &d_in);
    size_t n = (size_t)s->n_rows * (size_t)d_out;
    linear_out gate_up[] = {project(l, PROJ_GATE, m->gate), project(l, PROJ_UP, m->up)};
    linear_out alone = project(l, PROJ_UP, m->gate);
    be_linear(m->be, in, c->ungated ? &alone : gate_up, c->ungated ? 1 : 2, s, i);
    be_gate(m->be, c->act, m->gate, c->ungated ? NULL : m->up, n);
}

/* In place of an MLP: experts by the router's scores, and the one that all rows share. */
static void mixture(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    bool shared = c->experts.shared_dim > 0;
    expert_set set = experts_of(m, i);
    linear_out scores[] = {
        {.y = m->scores, .w = l->router, .bias = l->router_bias, .lora_proj = -1},
        {.y = m->shared, .w = l->shared_gate, .lora_proj = -1}};
    be_linear(m->be, in, scores, l->shared_gate ? 2 : 1, s, i);
    if (shared) {
        linear_out out = project(l, PROJ_DOWN, m->mixed);
        mlp(m, in, s, i);
        be_linear(m->be, m->gate, &out, 1, s, i);
    }
    be_experts(m->be, m->mixed, in, &set, m->scores, l->shared_gate ? m->shared : NULL, s, i);
    if (l->norm[NORM_MLP_OUT])
        be_rms_norm(m->be, m->mixed, m->mixed, l->norm[NORM_MLP_OUT], c->norm_eps, 0, s->n_rows,
                    c->dim);
    be_add(m->be, m->x, m->mixed, c->residual_scale, (size_t)s->n_rows * (size_t)c->dim);
}

static void forward_layer(model *m, kv_pool *kv, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    const float *in = block_input(m, l->norm[NORM_ATTN_IN], l->norm_bias[NORM_ATTN_IN],
                                  i * LORA_NORMS + LORA_NORM_ATTN, s);
    attention(m, kv, in, s, i);
    block_output(m, PROJ_O, m->attn, l->norm[NORM_ATTN_OUT], s, i);

    if (!c->parallel)
        in = block_input(m, l->norm[NORM_MLP_IN], l->norm_bias[NORM_MLP_IN],
                         i * LORA_NORMS + LORA_NORM_MLP, s);
    if (c->layer[i] & LAYER_EXPERTS) {
        mixture(m, in, s, i);
        return;
    }
    mlp(m, in, s, i);
    block_output(m, PROJ_DOWN, m->gate, l->norm[NORM_MLP_OUT], s, i);
}

static void forward_logits(model *m, const step *s)
{
    const model_config *c = &m->cfg;
    const float *norm = m->out_norm, *x = m->x;
    if (c->layer_norm) {
        x = block_input(m, norm, m->out_norm_bias, 0, s);
        norm = NULL;
    }
    be_logits(m->be, m->logits, x, norm, c->norm_eps, c->dim, m->head, s);
    if (c->logit_scale != 1 || c->logit_cap > 0)
        be_logits_bend(m->be, m->logits, s->n_logit, s->logit_stride ? s->logit_stride : c->n_vocab,
                       c->logit_scale, c->logit_cap);
}

/* Without a table in memory each token's row comes out of the file; tokens that an adapter adds
 * have theirs in it. */
static void forward_embed(model *m, const step *s)
{
    const model_config *c = &m->cfg;
    for (int i = 0; !m->table && i < s->n_rows; i++) {
        if (s->token[i] < c->n_vocab)
            stored_row_values(m->embed_stored, s->token[i], m->embed_room,
                              m->x + (size_t)i * (size_t)c->dim);
    }
    be_embed(m->be, m->x, m->table, m->embed_type, c->dim, s);
}

static void forward(model *m, kv_pool *kv, const step *s)
{
    const model_config *c = &m->cfg;
    forward_embed(m, s);
    if (c->embed_scale != 1)
        be_scale(m->be, m->x, c->embed_scale, (size_t)s->n_rows * (size_t)c->dim);
    for (int i = 0; i < c->n_layer; i++) forward_layer(m, kv, s, i);
    if (s->n_logit) forward_logits(m, s);
}

err_code model_enqueue(model *m, kv_pool *kv, const step *s, err *e)
{
    const model_config *c = &m->cfg;
    assert(s->n_rows > 0 && s->n_rows <= m->max_rows && s->n_logit <= m->max_logits);
    assert(s->logit_stride == 0 || s->logit_stride == model_logit_stride(m));
    for (int i = 0; i < s->n_seq; i++) {
        int end = s->seq[i].pos0 + s->seq[i].n_rows;
        assert(end <= c->max_pos);
        err_code rc = rope_fill(&m->rope, m->be, end, e);
        if (!rc) rc = rope_fill(&m->local_rope, m->be, end, e);
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
    be_logits_fetch(m->be, m->logits, s->n_logit,
                    s->logit_stride ? s->logit_stride : m->cfg.n_vocab);
    *logits_out = m->logits;
    return be_sync(m->be, e); /* errors are sticky: this is the only check */
}

/* In place: the stream is read by nobody any more.  Waits before it, too: for the backend the step
 * is over then, and rows are rows. */
err_code model_take_states(model *m, int row0, int n, const lora_view *view, float *out, err *e)
{
    const model_config *c = &m->cfg;
    const float *norm = lora_last_norm(view, m->out_norm);
    float *x = m->x + (size_t)row0 * (size_t)c->dim;
    assert(n > 0 && row0 >= 0 && row0 + n <= m->max_rows);
    err_code rc = be_sync(m->be, e);
    if (rc) return rc;
    if (c->layer_norm)
        be_layer_norm(m->be, x, x, norm, m->out_norm_bias, c->norm_eps, 0, n, c->dim);
    else
        be_rms_norm(m->be, x, x, norm, c->norm_eps, 0, n, c->dim);
    rc = be_sync(m->be, e);
    if (rc) return rc;
    rc = be_download(m->be, out, x, (size_t)n * (size_t)c->dim * sizeof(*out));
    return rc ? err_set(e, rc, "hidden states cannot be read") : ERR_NONE;
}

const pooling_head *model_score_head(const model *m)
{
    return m->score_head.w ? &m->score_head : NULL;
}

const sampled *model_sample(model *m, const sample_row *rows, int n)
{
    return be_sample(m->be, m->logits, m->cfg.n_vocab, rows, n);
}
