/* model.c -- a model's lifetime, and the forward pass: the file to read beside a paper.
 *
 *   x = embed(tokens)                                     x: the residual stream, [rows][dim], f32
 *   for each layer:
 *      x += mix(norm(x))           attention; or convolution, delta rule, scan: engine/mixer.h
 *      x += feed_forward(norm(x))  MLP, or experts (mixture()), or both side by side
 *   logits = head(norm(x)), only for the rows that need them
 *
 *   attention: q, k, v = projections (+ LoRA) -> be_rope_append(): norms, RoPE, into the KV pages
 *   -> be_attend() -> output projection, added to x
 *
 * All rows of a step (prompt chunks and decode rows of many sequences) go through each operation
 * together. The differences between families (norms' places, multipliers, gates, latents, windows)
 * are fields of model_config; no family is named here. Norms and biases of adapters replace the
 * base's for their rows (norm_rows()).
 *
 * Operations are calls of the backend (engine/backend.h), which only enqueue; errors are sticky and
 * checked once, by be_sync().
 *
 * Memory is reserved in model_load(): a step allocates nothing. check_backend() refuses a model
 * that needs an operation the backend lacks. Threads: the engine's.
 */
#include "engine/model/model.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/round.h"
#include "engine/model/model_inside.h"

enum { STRIDE_STEP = 64 };               /* floats */
static const float LEAST_SQUARE = 1e-5F; /* of streams' values in the mean, before they are sized */

/* ----------------------------------------------------------------------------- life -- */

static float *rows_alloc(model *m, int cols)
{
    return be_alloc(m->be, (size_t)m->max_rows * (size_t)cols * sizeof(float));
}

/* Values of a row that a mixer with a state answers. */
static int mixer_answer(const model_config *c)
{
    int d_out, d_in;
    model_proj_shape(c, PROJ_OUT, &d_out, &d_in);
    return d_in;
}

/* The widest MLP that all rows take. */
static int ffn_most(const model_config *c)
{
    int d_out, d_in;
    model_proj_shape(c, PROJ_UP, &d_out, &d_in);
    return d_out > c->experts.shared_dim ? d_out : c->experts.shared_dim;
}

/* The most values of a row's queries, and of its keys. */
static void heads_most(const model_config *c, int *q, int *kv)
{
    int full = c->n_head * c->full_head_dim, full_kv = c->full_kv_head * c->full_head_dim;
    *q = c->n_head * c->head_dim;
    *kv = c->n_kv_head * c->head_dim;
    if (*q < full) *q = full;
    if (*kv < full_kv) *kv = full_kv;
}

/* Tells the backend the largest step that will come, so that no step allocates. */
static err_code reserve(const model *m, err *e)
{
    const model_config *c = &m->cfg;
    int q, kv;
    heads_most(c, &q, &kv);
    int head_dim = c->head_dim > c->full_head_dim ? c->head_dim : c->full_head_dim;
    int ffn = ffn_most(c), cols = c->dim > ffn ? c->dim : ffn;
    int lat = c->latent.rank > c->q_rank ? c->latent.rank : c->q_rank, o = c->n_head * c->latent.v;
    int v = c->absorbs ? c->latent.rank : c->latent.v;
    q = q > o ? q : o;
    int answer = mixer_answer(c);
    q = q > answer ? q : answer;
    q = q > lat ? q : lat;
    int mlp[MODEL_LAYERS_MAX], d_in;
    for (int i = 0; i < c->n_layer; i++) model_layer_shape(c, i, PROJ_UP, &mlp[i], &d_in);
    step_bounds most = {.rows = m->max_rows,
                        .logits = m->max_logits,
                        .stride = model_logit_stride(m),
                        .cols = cols > q ? cols : q,
                        .dim = c->dim,
                        .context = c->max_pos,
                        .head_dim = head_dim > v ? head_dim : v,
                        .experts = c->experts.route.n,
                        .top_k = c->experts.route.top_k,
                        .expert_dim = c->experts.ffn_dim,
                        .mlp = mlp,
                        .n_layer = c->n_layer,
                        .act = c->act,
                        .latent = c->latent,
                        .q_rank = c->q_rank};
    return be_reserve(m->be, &most, e);
}

static err_code ones_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    int heads = c->head_dim > c->full_head_dim ? c->head_dim : c->full_head_dim;
    size_t n = (size_t)(c->norm_bare && c->dim > heads ? c->dim : heads);
    float *one = malloc(n * sizeof(*one));
    m->scratch.ones = be_alloc(m->be, n * sizeof(*one));
    for (size_t i = 0; one && i < n; i++) one[i] = 1;
    err_code rc = one && m->scratch.ones ? be_upload(m->be, m->scratch.ones, one, n * sizeof(*one))
                                         : ERR_NOMEM;
    free(one);
    return rc ? err_set(e, rc, "no memory for norms without weights") : ERR_NONE;
}

/* Scratch of mixers with a state. */
static bool mix_create(model *m)
{
    static const proj in[] = {PROJ_IN, PROJ_Z, PROJ_B, PROJ_A, PROJ_Z_LOW, PROJ_A_LOW};
    float **out[] = {&m->scratch.mix_in, &m->scratch.mix_z,      &m->scratch.mix_b,
                     &m->scratch.mix_a,  &m->scratch.mix_low[0], &m->scratch.mix_low[1]};
    bool ok = true;
    for (size_t i = 0; i < sizeof(in) / sizeof(in[0]); i++) {
        int d_out, d_in;
        model_proj_shape(&m->cfg, in[i], &d_out, &d_in);
        if (d_out > 0) ok &= (*out[i] = rows_alloc(m, d_out)) != NULL;
    }
    if (m->cfg.dt_rank > 0) {
        m->scratch.mix_z = rows_alloc(m, m->cfg.state.channels);
        m->scratch.mix_low[0] = rows_alloc(m, m->cfg.dt_rank);
        ok &= m->scratch.mix_z && m->scratch.mix_low[0];
    }
    if (mixer_answer(&m->cfg) > 0)
        ok &= (m->scratch.mix = rows_alloc(m, mixer_answer(&m->cfg))) != NULL;
    return ok;
}

/* Scratch of layers' own inputs. */
static bool ple_create(model *m)
{
    const model_config *c = &m->cfg;
    if (!c->ple_dim) return true;
    m->ple.embeds = rows_alloc(m, c->dim);
    m->ple.rows = rows_alloc(m, c->n_layer * c->ple_dim);
    m->ple.row = be_alloc(m->be, (size_t)(c->n_layer * c->ple_dim) * sizeof(float));
    m->ple.input = rows_alloc(m, c->ple_dim);
    m->ple.gate = rows_alloc(m, c->ple_dim);
    return m->ple.embeds && m->ple.rows && m->ple.row && m->ple.input && m->ple.gate;
}

/* Scratch of streams. */
static bool streams_create(model *m)
{
    const model_config *c = &m->cfg;
    streams_parts *s = &m->streams;
    int n = c->streams.n;
    if (!n) return true;
    s->x = rows_alloc(m, n * c->dim);
    s->scores = rows_alloc(m, n);
    s->coefs = rows_alloc(m, n * n);
    s->low = rows_alloc(m, c->streams.laurel);
    s->laurel = rows_alloc(m, c->dim);
    s->first = rows_alloc(m, c->dim);
    return s->x && s->scores && s->coefs && s->low && s->laurel && s->first;
}

/* Scratch of attention over latents. */
static bool latent_create(model *m)
{
    const model_config *c = &m->cfg;
    const latent_shape *lat = &c->latent;
    if (lat->rank == 0) return true;
    m->scratch.latent_in = rows_alloc(m, lat->rank + lat->rope);
    if (c->q_rank) m->scratch.q_a = rows_alloc(m, c->q_rank);
    if (c->absorbs) {
        m->scratch.q_wide = rows_alloc(m, lat->n_head * (lat->rank + lat->rope));
        m->scratch.latents = rows_alloc(m, lat->n_head * lat->rank);
    } else {
        m->scratch.latent = rows_alloc(m, lat->rank);
        m->scratch.keys = rows_alloc(m, lat->n_head * (lat->nope + lat->v));
    }
    return m->scratch.latent_in && (m->scratch.q_a || !c->q_rank) &&
           (c->absorbs ? m->scratch.q_wide && m->scratch.latents
                       : m->scratch.latent && m->scratch.keys);
}

/* Memory for the rows of the largest step: the stream, what a block reads, and what lies between
 * its products. Only what this model needs. */
static err_code scratch_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    const latent_shape *lat = &c->latent;
    int q, kv;
    heads_most(c, &q, &kv);
    if (c->absorbs) kv = 1;
    m->scratch.x = rows_alloc(m, c->dim);
    m->scratch.h = rows_alloc(m, c->dim);
    m->scratch.q = rows_alloc(m, c->kept > 0 ? 2 * q : q);
    m->scratch.k = rows_alloc(m, kv);
    m->scratch.v = rows_alloc(m, lat->rank && !c->absorbs ? lat->n_head * lat->v : kv);
    m->scratch.attn = rows_alloc(m, lat->rank ? lat->n_head * lat->v : q);
    m->scratch.gate = rows_alloc(m, ffn_most(c));
    m->scratch.up = rows_alloc(m, ffn_most(c));
    bool ok = latent_create(m), mixed = c->experts.route.n > 0;
    if (c->q_gated) ok = ok && (m->scratch.q_gate = rows_alloc(m, 2 * q)) != NULL;
    ok = ok && mix_create(m) && ple_create(m) && streams_create(m);
    if (c->experts.beside || c->parallel_apart)
        ok = ok && (m->scratch.beside = rows_alloc(m, c->dim)) != NULL;
    if (mixed) {
        m->scratch.scores = rows_alloc(m, c->experts.route.n);
        m->scratch.shared = rows_alloc(m, 1);
        m->scratch.mixed = rows_alloc(m, c->dim);
    }
    m->scratch.logits_bytes = (size_t)m->max_logits * (size_t)model_logit_stride(m) * sizeof(float);
    m->scratch.logits = be_host_alloc(m->be, m->scratch.logits_bytes);
    ok = ok && m->scratch.x && m->scratch.h && m->scratch.q && m->scratch.k && m->scratch.v &&
         m->scratch.attn && m->scratch.gate && m->scratch.up && m->scratch.logits;
    if (!ok || (mixed && (!m->scratch.scores || !m->scratch.shared || !m->scratch.mixed))) {
        return err_set(e, ERR_NOMEM, "no memory for steps of %d rows and %d logits", m->max_rows,
                       m->max_logits);
    }
    err_code rc = c->qk_unit || c->norm_bare || c->v_unit ? ones_create(m, e) : ERR_NONE;
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
    if (m->cfg.ple_dim) max = 0; /* no adapter has rows of that table */
    m->cfg.vocab_least = least < m->cfg.n_vocab ? least : 0;
    if (max == m->cfg.added_max) return ERR_NONE;
    be_host_free(m->be, m->scratch.logits, m->scratch.logits_bytes);
    m->cfg.added_max = max;
    m->scratch.logits_bytes = (size_t)m->max_logits * (size_t)model_logit_stride(m) * sizeof(float);
    m->scratch.logits = be_host_alloc(m->be, m->scratch.logits_bytes);
    if (!m->scratch.logits)
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
    return rc || m->cfg.absorbs ? rc : be_prepare(m->be, (const weight *const *)&w[PROJ_V], 1, e);
}

static void use_experts(void *self, int layer, const int *expert, int n)
{
    resident_experts(self, layer, expert, n);
}

static expert_set experts_of(const model *m, int i)
{
    const model_layer *l = &m->layer[i];
    const experts_config *x = &m->cfg.experts;
    return (expert_set){.route = x->route,
                        .choice_bias = l->choice_bias,
                        .scales = l->expert_scales,
                        .onto = x->shared_dim > 0 && !x->shared_gated && !x->beside,
                        .act = x->act,
                        .gate = m->cfg.ungated ? NULL : l->expert,
                        .up = l->expert + x->route.n,
                        .down = l->expert + 2 * x->route.n,
                        .there = l->experts_there,
                        .use = m->resident ? use_experts : NULL,
                        .use_self = m->resident,
                        .gate_bias = l->expert_bias[0],
                        .up_bias = l->expert_bias[1],
                        .down_bias = l->expert_bias[2]};
}

/* Of a layer with a state: what reads a row at once. */
static err_code state_prepare(model *m, int i, err *e)
{
    weight *const *w = m->layer[i].w;
    bool apart = w[PROJ_Q] != NULL, low = w[PROJ_Z_LOW] != NULL;
    const weight *gates[] = {w[low ? PROJ_Z_LOW : PROJ_Z], w[low ? PROJ_A_LOW : PROJ_A]};
    err_code rc =
        be_prepare(m->be, (const weight *const *)&w[apart ? PROJ_Q : PROJ_IN], apart ? 3 : 1, e);
    if (!rc && w[PROJ_B]) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_B], 1, e);
    if (!rc && gates[0]) rc = be_prepare(m->be, gates, 2, e);
    if (!rc && !gates[0] && gates[1]) rc = be_prepare(m->be, &gates[1], 1, e);
    if (!rc && low) rc = be_prepare(m->be, (const weight *const *)&w[PROJ_Z], 1, e);
    return rc || !low ? rc : be_prepare(m->be, (const weight *const *)&w[PROJ_A], 1, e);
}

static err_code mixer_prepare(model *m, int i, err *e)
{
    weight *const *w = m->layer[i].w;
    err_code rc = ERR_NONE;
    if (mixer_keeps(m->cfg.mixer[i])) {
        rc = state_prepare(m, i, e);
        if (!rc)
            rc =
                be_prepare(m->be, (const weight *const *)&w[w[PROJ_OUT] ? PROJ_OUT : PROJ_O], 1, e);
    }
    if (rc || !mixer_attends(m->cfg.mixer[i])) return rc;
    int n = !w[PROJ_K] ? 1 : !w[PROJ_V] ? 2 : 3;
    rc = m->cfg.latent.rank ? latent_prepare(m, i, e)
                            : be_prepare(m->be, (const weight *const *)&w[PROJ_Q], n, e);
    return rc ? rc : be_prepare(m->be, (const weight *const *)&w[PROJ_O], 1, e);
}

static err_code ple_prepare(model *m, int i, err *e)
{
    static const proj all[] = {PROJ_PLE_MODEL, PROJ_PLE_GATE, PROJ_PLE_OUT};
    weight *const *w = m->layer[i].w;
    err_code rc = ERR_NONE;
    for (int k = 0; k < 3 && !rc && w[PROJ_PLE_OUT]; k++)
        rc = be_prepare(m->be, (const weight *const *)&w[all[k]], 1, e);
    return rc;
}

/* Of what streams need, each matrix by itself. */
static err_code streams_prepare(model *m, int i, err *e)
{
    static const proj all[] = {PROJ_LAUREL_LEFT,  PROJ_LAUREL_RIGHT, PROJ_ALTUP_IN,
                               PROJ_ALTUP_OUT,    PROJ_ALTUP_ROUTER, PROJ_ALTUP_PREDICT,
                               PROJ_ALTUP_CORRECT};
    weight *const *w = m->layer[i].w;
    err_code rc = ERR_NONE;
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]) && !rc; k++)
        if (w[all[k]]) rc = be_prepare(m->be, (const weight *const *)&w[all[k]], 1, e);
    return rc;
}

/* Tells the backend which matrices share an input. */
static err_code products_prepare(model *m, err *e)
{
    err_code rc = be_prepare(m->be, (const weight *const *)&m->head, 1, e);
    for (int i = 0; !rc && i < m->cfg.n_layer; i++) {
        weight *const *w = m->layer[i].w;
        rc = mixer_prepare(m, i, e);
        if (!rc) rc = ple_prepare(m, i, e);
        if (!rc) rc = streams_prepare(m, i, e);
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

/* Where each layer keeps what it knows of earlier rows: among the layers in the KV pages, and in a
 * state. */
static err_code places_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    int pages = 0;
    size_t state = 0, each = mixer_state_floats(&c->state);
    m->place = calloc((size_t)c->n_layer, sizeof(*m->place));
    if (!m->place) return err_set(e, ERR_NOMEM, "no memory to load the model");
    for (int i = 0; i < c->n_layer; i++) {
        m->place[i] = (layer_place){.page = pages, .state = state};
        if (c->layer[i] & LAYER_SHARES_KV) {
            int of = i - 1; /* gemma_config_read() knows that there is one */
            while (c->layer[of] & LAYER_SHARES_KV || (c->layer[of] ^ c->layer[i]) & LAYER_WINDOW)
                of--;
            m->place[i].page = m->place[of].page;
            continue;
        }
        pages += mixer_attends(c->mixer[i]);
        state += mixer_keeps(c->mixer[i]) ? each : 0;
    }
    return ERR_NONE;
}

/* Windows of the layers with keys and values where they differ, and heads likewise. */
static err_code windows_create(model *m, err *e)
{
    const model_config *c = &m->cfg;
    int with = 0, n = model_attention_layers(c);
    for (int i = 0; i < c->n_layer; i++)
        with += (c->layer[i] & (LAYER_WINDOW | LAYER_SHARES_KV)) == LAYER_WINDOW;
    bool windows = with > 0 && with < n;
    if (windows) m->window = calloc((size_t)n, sizeof(*m->window));
    if (c->full_head_dim) m->heads = calloc((size_t)n, sizeof(*m->heads));
    if ((windows && !m->window) || (c->full_head_dim && !m->heads))
        return err_set(e, ERR_NOMEM, "no memory to load the model");
    for (int i = 0; i < c->n_layer; i++) {
        int page = m->place[i].page;
        if (windows && c->layer[i] & LAYER_WINDOW) m->window[page] = c->window;
        if (m->heads && mixer_attends(c->mixer[i])) m->heads[page] = model_layer_heads(c, i);
    }
    return ERR_NONE;
}

/* The same of its mixers. */
static unsigned mixers_of(const model_config *c)
{
    static const unsigned extras[] = {
        [MIXER_CONV] = EXTRA_CONV, [MIXER_DELTA] = EXTRA_DELTA,
        [MIXER_SCAN] = EXTRA_SCAN, [MIXER_CHANNELS] = EXTRA_SCAN | EXTRA_LATENT | EXTRA_Q_GATE,
        [MIXER_BOTH] = EXTRA_SCAN, [MIXER_NONE] = 0};
    unsigned all = 0;
    for (int i = 0; i < c->n_layer; i++) all |= extras[c->mixer[i]];
    return all;
}

/* What this model asks of a backend beyond a Llama's operations. */
static unsigned extras_of(const model *m)
{
    const model_config *c = &m->cfg;
    const model_family *f = family_find(c->family);
    bool sums = f->norm[NORM_ATTN_OUT] || c->residual_scale != 1 || c->embed_scale != 1 ||
                c->norm_first || model_multiplied(c) || c->v_unit || c->layer_scaled ||
                c->n_position;
    bool logits = c->logit_scale != 1 || c->logit_cap > 0;
    return (sums ? EXTRA_SUMS : 0U) | (c->layer_norm ? EXTRA_LAYER_NORM : 0U) |
           (c->act == ACT_SILU || c->act == ACT_XIELU ? 0U
            : c->act > ACT_SWIGLU_CLAMPED             ? EXTRA_ACTS
                                                      : EXTRA_GELU) |
           (c->act == ACT_XIELU ? EXTRA_XIELU : 0U) | (c->head_bias ? EXTRA_LOGIT_BIAS : 0U) |
           (c->experts.route.jitter > 0 ? EXTRA_SPARSE_MIX : 0U) |
           (c->score_cap > 0 ? EXTRA_SCORE_CAP : 0U) | (c->qk_norm_last ? EXTRA_NORM_LAST : 0U) |
           (m->window ? EXTRA_WINDOWS : 0U) | (c->rope_pairs ? EXTRA_ROPE_PAIRS : 0U) |
           (logits ? EXTRA_LOGITS : 0U) | (c->qk_norm_whole ? EXTRA_WIDE_NORM : 0U) |
           (c->sinks ? EXTRA_SINKS : 0U) | (c->latent.rank ? EXTRA_LATENT : 0U) |
           (c->chunked && c->window ? EXTRA_CHUNKS : 0U) | (c->q_scale > 0 ? EXTRA_TEMPER : 0U) |
           (c->ungated ? EXTRA_NO_GATE : 0U) | (c->kept > 0 ? EXTRA_KEPT : 0U) |
           (c->q_gated ? EXTRA_Q_GATE : 0U) | mixers_of(c) |
           (c->full_head_dim ? EXTRA_LAYER_HEADS : 0U) | (c->ple_dim ? EXTRA_PER_LAYER : 0U) |
           (c->streams.n ? EXTRA_STREAMS | EXTRA_LOGITS : 0U) |
           (c->parallel_apart ? EXTRA_APART : 0U) | (c->experts.beside ? EXTRA_SCALED_MIX : 0U) |
           (c->n_position ? EXTRA_POSITIONS : 0U) |
           (c->experts.route.n ? EXTRA_EXPERTS | EXTRA_SUMS : 0U) |
           (c->experts.route.n && c->ungated ? EXTRA_BARE_EXPERTS : 0U);
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

static void bound_context(model *m)
{
    const int own = m->cfg.max_pos;
    if (m->max_context <= 0 || own <= m->max_context) return;
    m->cfg.max_pos = m->max_context;
    log_info("model", "max_model_len is %d by engine.max_context; the model in '%s' has %d",
             m->max_context, m->dir, own);
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
    m->resident_bytes = options->resident_bytes;
    m->weights = options->weights;
    m->activations = options->activations;
    m->max_context = options->max_context;
    m->stream_sinks = options->sinks;
    m->stream_window = options->window;

    bool ok = m->dir && !m->packed_dir == !options->packed_dir;
    err_code rc = ok ? model_config_read(dir, &m->cfg, e)
                     : err_set(e, ERR_NOMEM, "no memory to load the model");
    if (!rc) bound_context(m);
    if (!rc && (m->stream_sinks > 0 || m->stream_window > 0))
        rc = model_config_stream(&m->cfg, m->stream_sinks, m->stream_window, m->max_context, e);
    model_config_place(&m->cfg, &be_caps(be)->rules);
    if (!rc) rc = model_config_pages(&m->cfg, be_caps(be)->page_tokens, e);
    if (!rc) rc = places_create(m, e);
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
    float **scratch[] = {&m->scratch.x,      &m->scratch.h,          &m->scratch.q,
                         &m->scratch.k,      &m->scratch.v,          &m->scratch.attn,
                         &m->scratch.gate,   &m->scratch.up,         &m->scratch.ones,
                         &m->scratch.q_a,    &m->scratch.q_gate,     &m->scratch.latent_in,
                         &m->scratch.latent, &m->scratch.keys,       &m->scratch.scores,
                         &m->scratch.shared, &m->scratch.mixed,      &m->scratch.mix_in,
                         &m->scratch.mix,    &m->scratch.mix_z,      &m->scratch.mix_b,
                         &m->scratch.mix_a,  &m->scratch.mix_low[0], &m->scratch.mix_low[1],
                         &m->ple.embeds,     &m->ple.rows,           &m->ple.row,
                         &m->ple.input,      &m->ple.gate,           &m->scratch.beside,
                         &m->streams.x,      &m->streams.scores,     &m->streams.coefs,
                         &m->streams.low,    &m->streams.laurel,     &m->streams.first,
                         &m->scratch.q_wide, &m->scratch.latents};
    for (size_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); i++) {
        if (*scratch[i]) be_free(m->be, *scratch[i]);
        *scratch[i] = NULL;
    }
    be_host_free(m->be, m->scratch.logits, m->scratch.logits_bytes);
    m->scratch.logits = NULL;
    rope_clear(&m->rope, m->be);
    rope_clear(&m->local_rope, m->be);
}

static bool same_scan(const scan_rules *a, const scan_rules *b)
{
    bool same = a->dt_least == b->dt_least && a->dt_most == b->dt_most && a->normed == b->normed &&
                a->norm_first == b->norm_first && a->eps == b->eps;
    for (size_t i = 0; i < sizeof(a->by) / sizeof(*a->by); i++) same &= a->by[i] == b->by[i];
    return same;
}

static bool same_multipliers(const layer_multipliers *a, const layer_multipliers *b)
{
    return a->attn_in == b->attn_in && a->attn_out == b->attn_out && a->scan_in == b->scan_in &&
           a->scan_out == b->scan_out && a->gate == b->gate && a->down == b->down;
}

static bool same_delta(const delta_rules *a, const delta_rules *b)
{
    return a->form == b->form && a->each == b->each && a->sigmoid == b->sigmoid &&
           a->low == b->low && a->most == b->most && a->eps == b->eps;
}

static bool same_experts(const experts_config *a, const experts_config *b)
{
    const expert_route *r = &a->route, *o = &b->route;
    return r->n == o->n && r->top_k == o->top_k && r->softmax_last == o->softmax_last &&
           r->sigmoid == o->sigmoid && r->normed == o->normed && r->n_group == o->n_group &&
           r->top_group == o->top_group && r->group_best == o->group_best && r->scale == o->scale &&
           r->scale_in == o->scale_in && r->jitter == o->jitter && a->ffn_dim == b->ffn_dim &&
           a->shared_dim == b->shared_dim && a->choice == b->choice && a->biased == b->biased &&
           a->act == b->act && a->beside == b->beside;
}

static bool same_streams(const streams_config *a, const streams_config *b)
{
    return a->n == b->n && a->laurel == b->laurel && a->sparse_by == b->sparse_by &&
           a->scaled == b->scaled;
}

/* What the rest of the process has learnt from it and keeps: all but the defaults for sampling. */
static bool same_model(const model_config *a, const model_config *b)
{
    return strcmp(a->family, b->family) == 0 && a->n_layer == b->n_layer && a->dim == b->dim &&
           a->n_head == b->n_head && a->n_kv_head == b->n_kv_head && a->head_dim == b->head_dim &&
           a->ffn_dim == b->ffn_dim && a->n_vocab == b->n_vocab && a->max_pos == b->max_pos &&
           a->window == b->window && a->norm_eps == b->norm_eps && a->qkv_bias == b->qkv_bias &&
           a->o_bias == b->o_bias && a->head_bias == b->head_bias && a->mlp_bias == b->mlp_bias &&
           a->tied == b->tied && a->norm_first == b->norm_first && a->sinks == b->sinks &&
           a->qk_unit == b->qk_unit && a->chunked == b->chunked && a->kept == b->kept &&
           a->q_scale == b->q_scale && a->q_floor == b->q_floor &&
           a->q_scale_all == b->q_scale_all && a->qk_norm_last == b->qk_norm_last &&
           a->n_position == b->n_position && a->parallel == b->parallel &&
           a->parallel_apart == b->parallel_apart && a->full_head_dim == b->full_head_dim &&
           a->full_kv_head == b->full_kv_head && a->full_k_is_v == b->full_k_is_v &&
           a->v_unit == b->v_unit && a->layer_scaled == b->layer_scaled &&
           a->ple_dim == b->ple_dim && same_streams(&a->streams, &b->streams) &&
           a->ple_vocab == b->ple_vocab && a->q_rank == b->q_rank &&
           memcmp(&a->latent, &b->latent, sizeof(a->latent)) == 0 &&
           same_experts(&a->experts, &b->experts) && a->act == b->act &&
           a->score_scale == b->score_scale && a->score_cap == b->score_cap &&
           a->embed_scale == b->embed_scale && a->residual_scale == b->residual_scale &&
           a->logit_scale == b->logit_scale && a->logit_cap == b->logit_cap &&
           memcmp(a->layer, b->layer, sizeof(a->layer)) == 0 &&
           memcmp(a->mixer, b->mixer, sizeof(a->mixer)) == 0 &&
           memcmp(&a->state, &b->state, sizeof(a->state)) == 0 && a->conv_bias == b->conv_bias &&
           a->in_bias == b->in_bias && a->out_bias == b->out_bias && a->dt_rank == b->dt_rank &&
           same_scan(&a->scan, &b->scan) && same_multipliers(&a->by, &b->by) &&
           same_delta(&a->delta, &b->delta) && a->q_gated == b->q_gated &&
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
                                   .resident_bytes = m->resident_bytes,
                                   .weights = m->weights,
                                   .activations = m->activations,
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
    free(fresh->place);
    free(fresh->window);
    free(fresh->heads);
    free(fresh->packed_dir);
    free(fresh->dir);
    free(fresh);
    return ERR_NONE;
}

void model_resident(const model *m, resident_counts *out)
{
    *out = (resident_counts){.budget_bytes = 0};
    if (m->resident) resident_count(m->resident, out);
}

void model_destroy(model *m)
{
    if (!m) return;
    model_unload(m);
    free(m->place);
    free(m->window);
    free(m->heads);
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
    int n = model_attention_layers(c);
    int heads = c->n_kv_head > c->full_kv_head ? c->n_kv_head : c->full_kv_head;
    attn_shape shape = {
        .n_layer = n > 0 ? n : 1, /* pages count positions where nobody writes them, too */
        .n_head = c->n_head,
        .n_kv_head = heads,
        .head_dim = c->head_dim > c->full_head_dim ? c->head_dim : c->full_head_dim,
        .kv_type = m->kv_type,
        .window = m->window ? 0 : c->window, /* some see everything */
        .layer_window = m->window,
        .layer_heads = m->heads,
        .scale = c->score_scale,
        .cap = c->score_cap,
        .v_dim = c->latent.rank ? c->latent.v : 0,
        .chunked = c->chunked,
        .kept = c->kept,
    };
    if (!c->absorbs) return shape;
    shape.n_kv_head = 1;
    shape.head_dim = c->latent.rank + c->latent.rope;
    shape.v_dim = c->latent.rank;
    shape.v_in_k = true;
    return shape;
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

/* Into h of m->scratch: rows of adapters with a norm of their own by that one, others together. */
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
            be_rms_norm(m->be, m->scratch.h, m->scratch.x, base, c->norm_eps, done, row0 - done,
                        c->dim);
        if (end) break;
        be_rms_norm(m->be, m->scratch.h, m->scratch.x, own, c->norm_eps, row0, s->seg[i].n_rows,
                    c->dim);
        done = row0 + s->seg[i].n_rows;
    }
}

/* What attention or an MLP reads: the stream normed, or as it is. */
static const float *block_input(model *m, const float *norm, const float *bias, int at,
                                const step *s)
{
    const model_config *c = &m->cfg;
    if (!norm) return m->scratch.x;
    if (c->layer_norm)
        be_layer_norm(m->be, m->scratch.h, m->scratch.x, norm, bias, c->norm_eps, 0, s->n_rows,
                      c->dim);
    else
        norm_rows(m, norm, at, s);
    return m->scratch.h;
}

/* The last product of attention or an MLP, into the stream: normed and multiplied before, by `by`
 * and the model's multiplier. */
static void block_output(model *m, proj p, const float *in, const float *norm, float by,
                         const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    bool plain = !norm && by * c->residual_scale == 1;
    linear_out out = plain ? project_into(l, p, m->scratch.x) : project(l, p, m->scratch.h);
    be_linear(m->be, in, &out, 1, s, i);
    if (plain) return;
    if (norm)
        be_rms_norm(m->be, m->scratch.h, m->scratch.h, norm, c->norm_eps, 0, s->n_rows, c->dim);
    be_add(m->be, m->scratch.x, m->scratch.h, by * c->residual_scale,
           (size_t)s->n_rows * (size_t)c->dim);
}

/* Layer i's rotary embedding; rope_dim is 0 for a layer without positions. */
static rope_table rope_of(const model *m, int i)
{
    int kind = m->cfg.layer[i];
    rope_table t = m->rope.table;
    if (kind & LAYER_WINDOW && m->local_rope.cos) t = m->local_rope.table;
    if (kind & LAYER_NO_ROPE) t.rope_dim = 0;
    if (kind & LAYER_NO_ROPE || m->cfg.q_scale_all) {
        t.q_scale = m->cfg.q_scale;
        t.q_floor = m->cfg.q_floor;
        t.q_from = m->cfg.q_scale_all ? 0 : 1;
    }
    t.norm_last = m->cfg.qk_norm_last;
    if (m->cfg.latent.rank) t.first = m->cfg.absorbs ? m->cfg.latent.rank : m->cfg.latent.nope;
    return t;
}

/* Queries, into q, and latents with the key that all heads share, into latent_in. */
static void latent_rows(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    bool two = c->q_rank > 0;
    linear_out first[] = {project(l, PROJ_K, m->scratch.latent_in),
                          two ? project(l, PROJ_Q_A, m->scratch.q_a)
                              : project(l, PROJ_Q, m->scratch.q)};
    linear_out q = project(l, PROJ_Q, m->scratch.q);
    be_linear(m->be, in, first, 2, s, i);
    if (!two) return;
    be_rms_norm(m->be, m->scratch.q_a, m->scratch.q_a, l->norm[NORM_Q],
                family_find(c->family)->latent_eps, 0, s->n_rows, c->q_rank);
    be_linear(m->be, m->scratch.q_a, &q, 1, s, i);
}

/* Attention over latents; in pages are they, or what is made of them: keys and values of all
 * heads. */
static void latent_attention(model *m, kv_pool *kv, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    const latent_shape *lat = &c->latent;
    float eps = family_find(c->family)->latent_eps, *latent_in = m->scratch.latent_in;
    int at = m->place[i].page;
    rope_table rope = rope_of(m, i);
    latent_rows(m, in, s, i);
    if (c->absorbs) {
        const latent_heads by_head = {l->absorbed, l->absorbed + lat->n_head,
                                      be_weight_type(l->w[PROJ_V])};
        be_latent_norm(m->be, latent_in, latent_in, l->norm[NORM_K], eps, lat, s->n_rows);
        be_latent_query(m->be, m->scratch.q_wide, m->scratch.q, &by_head, lat, s, i);
        be_rope_append(m->be, kv, m->scratch.q_wide, latent_in, NULL, NULL, NULL, c->norm_eps,
                       &rope, s, at);
        be_attend(m->be, kv, m->scratch.latents, m->scratch.q_wide, NULL, s, at);
        be_latent_answer(m->be, m->scratch.attn, m->scratch.latents, &by_head, lat, s, i);
        return;
    }
    linear_out spread = project(l, PROJ_V, m->scratch.keys);
    be_latent_norm(m->be, m->scratch.latent, latent_in, l->norm[NORM_K], eps, lat, s->n_rows);
    be_linear(m->be, m->scratch.latent, &spread, 1, s, i);
    be_latent_spread(m->be, m->scratch.k, m->scratch.v, m->scratch.keys, latent_in, lat, s->n_rows);
    be_rope_append(m->be, kv, m->scratch.q, m->scratch.k, m->scratch.v, NULL, NULL, c->norm_eps,
                   &rope, s, at);
    be_attend(m->be, kv, m->scratch.attn, m->scratch.q, NULL, s, at);
}

/* Into m->scratch.attn: products, norms of q and k (of each head in be_rope_append(), or of all
 * heads here), rotation, pages, attention. A layer that shares keys makes queries alone; one
 * without a matrix of values uses its keys as values. */
static void attention(model *m, kv_pool *kv, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    const float *q_norm = l->norm[NORM_Q], *k_norm = l->norm[NORM_K];
    attn_heads own = model_layer_heads(c, i);
    int q = c->n_head * own.head_dim, kv_cols = own.n_kv_head * own.head_dim;
    bool keys = !(c->layer[i] & LAYER_SHARES_KV), same = keys && !l->w[PROJ_V];
    rope_table rope = rope_of(m, i);
    size_t heads = (size_t)s->n_rows * (size_t)c->n_head;
    linear_out qkv[] = {project(l, PROJ_Q, c->q_gated ? m->scratch.q_gate : m->scratch.q),
                        project(l, PROJ_K, m->scratch.k), project(l, PROJ_V, m->scratch.v)};
    be_linear(m->be, in, qkv, !keys ? 1 : same ? 2 : 3, s, i);
    if (c->v_unit && keys)
        be_rms_norm(m->be, m->scratch.v, same ? m->scratch.k : m->scratch.v, m->scratch.ones,
                    c->norm_eps, 0, s->n_rows * own.n_kv_head, own.head_dim);
    if (c->q_gated) be_q_take(m->be, m->scratch.q, m->scratch.q_gate, heads, c->head_dim);
    if (c->qk_norm_whole) {
        be_rms_norm(m->be, m->scratch.q, m->scratch.q, q_norm, c->norm_eps, 0, s->n_rows, q);
        be_rms_norm(m->be, m->scratch.k, m->scratch.k, k_norm, c->norm_eps, 0, s->n_rows, kv_cols);
        q_norm = k_norm = NULL;
    }
    if (c->qk_unit && !(c->layer[i] & LAYER_NO_ROPE)) q_norm = k_norm = m->scratch.ones;
    int at = m->place[i].page;
    be_rope_append(m->be, kv, m->scratch.q, keys ? m->scratch.k : NULL, keys ? m->scratch.v : NULL,
                   q_norm, k_norm, c->norm_eps, &rope, s, at);
    be_attend(m->be, kv, m->scratch.attn, m->scratch.q, l->sinks, s, at);
    if (c->q_gated) be_q_gate(m->be, m->scratch.attn, m->scratch.q_gate, heads, c->head_dim);
}

/* Into mix: each channel of three projections, of which two are gates, along its sequence. */
static void short_conv(model *m, const float *in, const step *s, int i)
{
    const model_layer *l = &m->layer[i];
    const conv_weights w = {l->taps[0], l->taps_bias};
    linear_out out = project(l, PROJ_IN, m->scratch.mix_in);
    be_linear(m->be, in, &out, 1, s, i);
    be_conv(m->be, m->scratch.mix, m->scratch.mix_in, &w, &m->cfg.state, s, m->place[i].state);
}

/* What a row of the delta rule forgets, and gates of what it answers; each by way of a few values
 * where delta_rules.low says so. */
static void delta_gates(model *m, const float *in, const step *s, int i)
{
    const model_layer *l = &m->layer[i];
    linear_out z = project(l, PROJ_Z, m->scratch.mix_z), a = project(l, PROJ_A, m->scratch.mix_a);
    linear_out both[] = {z, a};
    linear_out low[] = {project(l, PROJ_Z_LOW, m->scratch.mix_low[0]),
                        project(l, PROJ_A_LOW, m->scratch.mix_low[1])};
    bool two = m->cfg.delta.low > 0;
    be_linear(m->be, in, two ? low : both, 2, s, i);
    if (!two) return;
    be_linear(m->be, m->scratch.mix_low[0], &z, 1, s, i);
    be_linear(m->be, m->scratch.mix_low[1], &a, 1, s, i);
}

/* Into mix: what a matrix for each head answers, of which each row makes the next row's. */
static void delta(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    const mixer_shape *sh = &c->state;
    const delta_weights w = {.taps = {l->taps[0], l->taps[1], l->taps[2]},
                             .decay = l->decay,
                             .bias = l->dt_bias,
                             .norm = l->mix_norm,
                             .rules = c->delta};
    bool fused = c->delta.form == DELTA_FUSED, apart = c->delta.form == DELTA_APART;
    size_t keys = (size_t)s->n_rows * (size_t)(sh->groups * sh->rows);
    float *k = m->scratch.mix_in + keys, *v = k + keys;
    const delta_rows rows = {m->scratch.mix_in, k, v, m->scratch.mix_z, m->scratch.mix_b,
                             m->scratch.mix_a};
    linear_out qkv[] = {project(l, PROJ_Q, m->scratch.mix_in), project(l, PROJ_K, k),
                        project(l, PROJ_V, v)};
    linear_out all = project(l, PROJ_IN, m->scratch.mix_in);
    be_linear(m->be, in, apart ? qkv : &all, apart ? 3 : 1, s, i);
    linear_out b = project(l, PROJ_B, m->scratch.mix_b);
    be_linear(m->be, in, &b, 1, s, i);
    if (!fused) delta_gates(m, in, s, i);
    be_delta(m->be, m->scratch.mix, &rows, &w, sh, s, m->place[i].state);
}

/* Into m->scratch.mix: the state of each head along its sequence. */
static void selective_scan(model *m, const float *in, const step *s, int i)
{
    const model_layer *l = &m->layer[i];
    const scan_weights w = {.conv = {l->taps[0], l->taps_bias},
                            .decay = l->decay,
                            .dt_bias = l->dt_bias,
                            .skip = l->skip,
                            .norm = l->mix_norm,
                            .rules = m->cfg.scan};
    linear_out out = project(l, PROJ_IN, m->scratch.mix_in);
    be_linear(m->be, in, &out, 1, s, i);
    be_scan(m->be, m->scratch.mix, m->scratch.mix_in, &w, &m->cfg.state, s, m->place[i].state);
}

/* Into m->scratch.mix: the state of each channel along its sequence.  What a row writes and reads,
 * and its steps, are made of what comes out of the convolution. */
static void channel_scan(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    const mixer_shape *sh = &c->state;
    const latent_shape steps = {.rank = c->dt_rank, .rope = 2 * sh->rows};
    const conv_weights conv = {l->taps[0], l->taps_bias};
    const channel_weights w = {.decay = l->decay,
                               .skip = l->skip,
                               .b_norm = l->bc_norm[0],
                               .c_norm = l->bc_norm[1],
                               .eps = c->norm_eps};
    const channel_rows rows = {.x = m->scratch.mix_z,
                               .dt = m->scratch.mix_a,
                               .in = m->scratch.mix_in,
                               .bc = m->scratch.mix_b,
                               .first = c->dt_rank};
    linear_out both = project(l, PROJ_IN, m->scratch.mix_in),
               bc = project(l, PROJ_B, m->scratch.mix_b), dt = project(l, PROJ_A, m->scratch.mix_a);
    size_t at = m->place[i].state;
    be_linear(m->be, in, &both, 1, s, i);
    be_q_take(m->be, m->scratch.mix_z, m->scratch.mix_in, (size_t)s->n_rows, sh->channels);
    be_silu_conv(m->be, m->scratch.mix_z, &conv, sh, s, at);
    be_linear(m->be, m->scratch.mix_z, &bc, 1, s, i);
    be_latent_norm(m->be, m->scratch.mix_low[0], m->scratch.mix_b, l->mix_norm, c->norm_eps, &steps,
                   s->n_rows);
    be_linear(m->be, m->scratch.mix_low[0], &dt, 1, s, i);
    be_scan_channels(m->be, m->scratch.mix, &rows, &w, sh, s, at);
}

/* Attention beside a scan: each has multipliers of its own, of what it reads and what it adds. */
static void mix_both(model *m, kv_pool *kv, const step *s, int i)
{
    const layer_multipliers *by = &m->cfg.by;
    size_t n = (size_t)s->n_rows * (size_t)m->cfg.dim;
    const float *norm = m->layer[i].norm[NORM_ATTN_OUT];
    if (by->scan_in != 1) be_scale(m->be, m->scratch.h, by->scan_in, n);
    selective_scan(m, m->scratch.h, s, i);
    if (by->attn_in != by->scan_in) be_scale(m->be, m->scratch.h, by->attn_in / by->scan_in, n);
    attention(m, kv, m->scratch.h, s, i);
    block_output(m, PROJ_OUT, m->scratch.mix, norm, by->scan_out, s, i);
    block_output(m, PROJ_O, m->scratch.attn, norm, by->attn_out, s, i);
}

/* What a row reads of those before it, added to the stream. */
static void mix(model *m, kv_pool *kv, const float *in, const step *s, int i)
{
    const float *norm = m->layer[i].norm[NORM_ATTN_OUT];
    switch ((mixer)m->cfg.mixer[i]) {
    case MIXER_ATTENTION:
        (m->cfg.latent.rank ? latent_attention : attention)(m, kv, in, s, i);
        block_output(m, PROJ_O, m->scratch.attn, norm, 1, s, i);
        return;
    case MIXER_CONV:
        short_conv(m, in, s, i);
        block_output(m, PROJ_OUT, m->scratch.mix, norm, 1, s, i);
        return;
    case MIXER_DELTA:
        delta(m, in, s, i);
        block_output(m, m->cfg.delta.form == DELTA_APART ? PROJ_O : PROJ_OUT, m->scratch.mix, norm,
                     1, s, i);
        return;
    case MIXER_SCAN:
        selective_scan(m, in, s, i);
        block_output(m, PROJ_OUT, m->scratch.mix, norm, 1, s, i);
        return;
    case MIXER_CHANNELS:
        channel_scan(m, in, s, i);
        block_output(m, PROJ_OUT, m->scratch.mix, norm, 1, s, i);
        return;
    case MIXER_BOTH: mix_both(m, kv, s, i); return;
    case MIXER_NONE: return;
    }
}

/* Into m->scratch.gate. */
static void mlp(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    int d_out, d_in;
    model_layer_shape(c, i, PROJ_UP, &d_out, &d_in);
    size_t n = (size_t)s->n_rows * (size_t)d_out;
    linear_out gate_up[] = {project(l, PROJ_GATE, m->scratch.gate),
                            project(l, PROJ_UP, m->scratch.up)};
    linear_out alone = project(l, PROJ_UP, m->scratch.gate);
    be_linear(m->be, in, c->ungated ? &alone : gate_up, c->ungated ? 1 : 2, s, i);
    if (c->by.gate != 1) be_scale(m->be, m->scratch.gate, c->by.gate, n);
    if (c->layer[i] & LAYER_SPARSE)
        be_gate_sparse(m->be, m->scratch.gate, c->streams.sparse_by, s->n_rows, d_out);
    if (c->act == ACT_XIELU) {
        const xielu_weights w = {l->xielu[0], l->xielu[1], l->xielu[2], l->xielu[3]};
        be_xielu(m->be, m->scratch.gate, &w, n);
        return;
    }
    be_gate(m->be, c->act, m->scratch.gate, c->ungated ? NULL : m->scratch.up, n);
}

/* In place of an MLP: experts by the router's scores, and the one that all rows share. */
static void mixture(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    bool shared = c->experts.shared_dim > 0, gated = c->experts.shared_gated;
    expert_set set = experts_of(m, i);
    linear_out scores[] = {project(l, PROJ_ROUTER, m->scratch.scores),
                           project(l, PROJ_SHARED_SCORE, m->scratch.shared)};
    be_linear(m->be, in, scores, gated ? 2 : 1, s, i);
    if (shared) {
        linear_out out = project(l, PROJ_DOWN, m->scratch.mixed);
        mlp(m, in, s, i);
        be_linear(m->be, m->scratch.gate, &out, 1, s, i);
    }
    be_experts(m->be, m->scratch.mixed, in, &set, m->scratch.scores,
               gated ? m->scratch.shared : NULL, s, i);
    if (l->norm[NORM_MLP_OUT])
        be_rms_norm(m->be, m->scratch.mixed, m->scratch.mixed, l->norm[NORM_MLP_OUT], c->norm_eps,
                    0, s->n_rows, c->dim);
    be_add(m->be, m->scratch.x, m->scratch.mixed, c->residual_scale,
           (size_t)s->n_rows * (size_t)c->dim);
}

/* An MLP and, beside it, experts, each between norms of its own; the router has another one. */
static void mixture_beside(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    float *const *norm = l->beside;
    size_t n = (size_t)s->n_rows * (size_t)c->dim;
    expert_set set = experts_of(m, i);
    linear_out down = project(l, PROJ_DOWN, m->scratch.mixed),
               scores = project(l, PROJ_ROUTER, m->scratch.scores);
    mlp(m, in, s, i);
    be_linear(m->be, m->scratch.gate, &down, 1, s, i);
    be_rms_norm(m->be, m->scratch.mixed, m->scratch.mixed, norm[1], c->norm_eps, 0, s->n_rows,
                c->dim);
    be_rms_norm(m->be, m->scratch.h, m->scratch.x, norm[0], c->norm_eps, 0, s->n_rows, c->dim);
    be_linear(m->be, m->scratch.h, &scores, 1, s, i);
    be_rms_norm(m->be, m->scratch.h, m->scratch.x, norm[2], c->norm_eps, 0, s->n_rows, c->dim);
    be_experts(m->be, m->scratch.beside, m->scratch.h, &set, m->scratch.scores, NULL, s, i);
    be_rms_norm(m->be, m->scratch.beside, m->scratch.beside, norm[3], c->norm_eps, 0, s->n_rows,
                c->dim);
    be_add(m->be, m->scratch.mixed, m->scratch.beside, 1, n);
    be_rms_norm(m->be, m->scratch.mixed, m->scratch.mixed, l->norm[NORM_MLP_OUT], c->norm_eps, 0,
                s->n_rows, c->dim);
    be_add(m->be, m->scratch.x, m->scratch.mixed, 1, n);
}

/* A layer's own input, made of a row's embedding and of its token's row in a table, goes through a
 * gate that `opener` opens; into h. */
static void per_layer_input(model *m, const float *opener, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    size_t n = (size_t)s->n_rows * (size_t)c->ple_dim;
    const float *rows = m->ple.rows + (size_t)i * (size_t)m->max_rows * (size_t)c->ple_dim;
    linear_out own = project(l, PROJ_PLE_MODEL, m->ple.input),
               gate = project(l, PROJ_PLE_GATE, m->ple.gate),
               out = project(l, PROJ_PLE_OUT, m->scratch.h);
    be_linear(m->be, m->ple.embeds, &own, 1, s, i);
    be_scale(m->be, m->ple.input, (float)(1.0 / sqrt((double)c->dim)), n);
    be_rms_norm(m->be, m->ple.input, m->ple.input, m->ple.norm, c->norm_eps, 0, s->n_rows,
                c->ple_dim);
    be_add(m->be, m->ple.input, rows, (float)sqrt((double)c->ple_dim), n);
    be_scale(m->be, m->ple.input, (float)sqrt(0.5), n);
    be_linear(m->be, opener, &gate, 1, s, i);
    be_gate(m->be, c->act, m->ple.gate, m->ple.input, n);
    be_linear(m->be, m->ple.gate, &out, 1, s, i);
    be_rms_norm(m->be, m->scratch.h, m->scratch.h, l->ple_norm, c->norm_eps, 0, s->n_rows, c->dim);
}

/* Each row's position has an embedding, too. */
static void forward_positions(model *m, float *x, const step *s)
{
    const model_config *c = &m->cfg;
    int before = family_find(c->family)->files->before;
    const float *table = m->positions + (size_t)before * (size_t)c->dim;
    be_positions(m->be, m->scratch.h, table, c->n_position - before, c->dim, s);
    be_add(m->be, x, m->scratch.h, 1, (size_t)s->n_rows * (size_t)c->dim);
}

/* Without a table in memory each token's row comes out of the file; tokens that an adapter adds
 * have theirs in it. */
static void forward_embed(model *m, float *x, const step *s)
{
    const model_config *c = &m->cfg;
    for (int i = 0; !m->table && i < s->n_rows; i++) {
        if (s->token[i] < c->n_vocab)
            stored_row_values(m->embed_stored, s->token[i], m->embed_room,
                              x + (size_t)i * (size_t)c->dim);
    }
    be_embed(m->be, x, m->table, m->embed_type, c->dim, s);
    if (m->positions) forward_positions(m, x, s);
    if (c->embed_scale != 1) be_scale(m->be, x, c->embed_scale, (size_t)s->n_rows * (size_t)c->dim);
}

/* ---- streams that layers update together (Gemma 3n): the first one goes through a layer as usual,
 * the others learn from what that changed. */

static stream_set streams_of(const model *m, const step *s)
{
    const model_config *c = &m->cfg;
    return (stream_set){.x = m->streams.x,
                        .apart = (size_t)m->max_rows * (size_t)c->dim,
                        .n = c->streams.n,
                        .n_rows = s->n_rows,
                        .dim = c->dim};
}

/* A layer's coefficients of streams by what it reads: within -1 and 1, then `p` of them. */
static void stream_coefs(model *m, const float *in, proj p, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    linear_out scores = project(l, PROJ_ALTUP_ROUTER, m->streams.scores),
               coefs = project(l, p, m->streams.coefs);
    be_rms_norm(m->be, m->scratch.h, in, l->router_norm, c->norm_eps, 0, s->n_rows, c->dim);
    be_linear(m->be, m->scratch.h, &scores, 1, s, i);
    be_logits_bend(m->be, m->streams.scores, s->n_rows, c->streams.n, 1, 1);
    be_linear(m->be, m->streams.scores, &coefs, 1, s, i);
}

static void streams_predict(model *m, const step *s, int i)
{
    const stream_set set = streams_of(m, s);
    stream_coefs(m, set.x, PROJ_ALTUP_PREDICT, s, i);
    be_streams_predict(m->be, &set, m->streams.coefs, m->scratch.x);
}

/* The other residual of what attention reads. */
static void laurel(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    float *out = m->streams.laurel;
    linear_out left = project(l, PROJ_LAUREL_LEFT, m->streams.low),
               right = project(l, PROJ_LAUREL_RIGHT, out);
    be_linear(m->be, in, &left, 1, s, i);
    be_linear(m->be, m->streams.low, &right, 1, s, i);
    be_rms_norm(m->be, out, out, l->laurel_norm, c->norm_eps, 0, s->n_rows, c->dim);
    be_add(m->be, out, in, 1, (size_t)s->n_rows * (size_t)c->dim);
}

static void laurel_add(model *m, const step *s)
{
    size_t n = (size_t)s->n_rows * (size_t)m->cfg.dim;
    be_add(m->be, m->scratch.x, m->streams.laurel, 1, n);
    be_scale(m->be, m->scratch.x, (float)sqrt(0.5), n);
}

/* The layer's own input goes to all streams but the first. */
static void streams_correct(model *m, const step *s, int i)
{
    const stream_set set = streams_of(m, s);
    size_t n = (size_t)s->n_rows * (size_t)m->cfg.dim;
    stream_coefs(m, m->scratch.x, PROJ_ALTUP_CORRECT, s, i);
    be_streams_correct(m->be, &set, m->streams.coefs, m->scratch.x,
                       m->cfg.streams.scaled ? m->layer[i].stream_scale : NULL, m->streams.first);
    per_layer_input(m, m->streams.first, s, i);
    for (int k = 1; k < set.n; k++)
        be_add(m->be, set.x + (size_t)k * set.apart, m->scratch.h, 1, n);
}

/* Of the embeddings, which all have the size of the first. */
static void streams_begin(model *m, const step *s)
{
    const stream_set set = streams_of(m, s);
    forward_embed(m, set.x, s);
    for (int k = 1; k < set.n; k++) {
        float *x = set.x + (size_t)k * set.apart;
        linear_out own = project(&m->layer[k - 1], PROJ_ALTUP_IN, x);
        be_linear(m->be, set.x, &own, 1, s, k - 1);
        be_match_rms(m->be, x, set.x, LEAST_SQUARE, s->n_rows, set.dim);
    }
}

/* Their mean, each by a matrix of its own and of the size of the first, is the stream then. */
static void streams_end(model *m, const step *s)
{
    const stream_set set = streams_of(m, s);
    size_t n = (size_t)s->n_rows * (size_t)set.dim;
    for (int k = 1; k < set.n; k++) {
        float *to = k == 1 ? m->scratch.x : m->scratch.h;
        linear_out own = project(&m->layer[k - 1], PROJ_ALTUP_OUT, to);
        be_linear(m->be, set.x + (size_t)k * set.apart, &own, 1, s, k - 1);
        be_match_rms(m->be, to, set.x, LEAST_SQUARE, s->n_rows, set.dim);
        if (k > 1) be_add(m->be, m->scratch.x, m->scratch.h, 1, n);
    }
    be_add(m->be, m->scratch.x, set.x, 1, n);
    be_scale(m->be, m->scratch.x, 1 / (float)set.n, n);
}

static void feed_forward(model *m, const float *in, const step *s, int i)
{
    const model_config *c = &m->cfg;
    bool mixed = c->layer[i] & LAYER_EXPERTS;
    if (mixed && c->experts.beside) {
        mixture_beside(m, in, s, i);
    } else if (mixed) {
        mixture(m, in, s, i);
    } else {
        mlp(m, in, s, i);
        block_output(m, PROJ_DOWN, m->scratch.gate, m->layer[i].norm[NORM_MLP_OUT], c->by.down, s,
                     i);
    }
}

/* One layer: x += mixer(norm(x)), then x += mlp(norm(x)). Of a parallel layer both read the
 * same, and x is added to twice; with streams (Gemma 3n) x is a prediction that is corrected
 * behind. */
static void forward_layer(model *m, kv_pool *kv, const step *s, int i)
{
    const model_config *c = &m->cfg;
    const model_layer *l = &m->layer[i];
    const float *apart = m->scratch.beside; /* what an MLP with a norm of its own reads */
    if (c->parallel_apart)
        be_layer_norm(m->be, m->scratch.beside, m->scratch.x, l->norm[NORM_MLP_IN],
                      l->norm_bias[NORM_MLP_IN], c->norm_eps, 0, s->n_rows, c->dim);
    if (c->streams.n) streams_predict(m, s, i);
    const float *in = block_input(m, c->norm_bare ? m->scratch.ones : l->norm[NORM_ATTN_IN],
                                  l->norm_bias[NORM_ATTN_IN], i * LORA_NORMS + LORA_NORM_ATTN, s);
    if (c->streams.n) laurel(m, in, s, i);
    mix(m, kv, in, s, i);
    if (c->streams.n) laurel_add(m, s);
    if (c->layer[i] & LAYER_NO_MLP) return;
    if (!c->parallel && c->mixer[i] != MIXER_NONE)
        in = block_input(m, c->norm_bare ? m->scratch.ones : l->norm[NORM_MLP_IN],
                         l->norm_bias[NORM_MLP_IN], i * LORA_NORMS + LORA_NORM_MLP, s);
    feed_forward(m, c->parallel_apart ? apart : in, s, i);
    if (c->streams.n) {
        streams_correct(m, s, i);
    } else if (c->ple_dim) {
        per_layer_input(m, m->scratch.x, s, i);
        be_add(m->be, m->scratch.x, m->scratch.h, 1, (size_t)s->n_rows * (size_t)c->dim);
    }
    if (c->layer_scaled)
        be_scale(m->be, m->scratch.x, l->scale, (size_t)s->n_rows * (size_t)c->dim);
}

static void forward_logits(model *m, const step *s)
{
    const model_config *c = &m->cfg;
    const float *norm = c->norm_bare ? m->scratch.ones : m->out_norm, *x = m->scratch.x;
    if (c->layer_norm) {
        x = block_input(m, norm, m->out_norm_bias, 0, s);
        norm = NULL;
    }
    if (m->resident) resident_use(m->resident, c->n_layer);
    be_logits(m->be, m->scratch.logits, x, norm, c->norm_eps, c->dim, m->head, s);
    int stride = s->logit_stride ? s->logit_stride : c->n_vocab;
    if (m->head_bias)
        be_logits_bias(m->be, m->scratch.logits, s->n_logit, stride, m->head_bias, c->n_vocab);
    if (c->logit_scale != 1 || c->logit_cap > 0)
        be_logits_bend(m->be, m->scratch.logits, s->n_logit, stride, c->logit_scale, c->logit_cap);
}

/* What the tokens' rows have for each layer, by layer. */
static void forward_ple(model *m, const step *s)
{
    const model_config *c = &m->cfg;
    size_t n = (size_t)c->ple_dim, apart = (size_t)m->max_rows * n;
    forward_embed(m, m->ple.embeds, s);
    for (int i = 0; i < s->n_rows; i++) {
        /* Those behind the table stand for images and sounds, and count as token 0. */
        int token = s->token[i] < c->ple_vocab ? s->token[i] : 0;
        stored_row_values(m->ple.table, token, m->ple.room, m->ple.row);
        for (size_t k = 0; k < (size_t)c->n_layer; k++)
            memcpy(m->ple.rows + k * apart + (size_t)i * n, m->ple.row + k * n, n * sizeof(float));
    }
}

/* Embeddings, layers, logits of the rows that want some; everything is enqueued on the backend. */
static void forward(model *m, kv_pool *kv, const step *s)
{
    const model_config *c = &m->cfg;
    if (c->streams.n)
        streams_begin(m, s);
    else
        forward_embed(m, m->scratch.x, s);
    if (c->ple_dim) forward_ple(m, s);
    if (c->norm_first)
        be_rms_norm(m->be, m->scratch.x, m->scratch.x, m->scratch.ones, c->norm_eps, 0, s->n_rows,
                    c->dim);
    for (int i = 0; i < c->n_layer; i++) {
        if (m->resident) resident_use(m->resident, i);
        forward_layer(m, kv, s, i);
    }
    if (c->streams.n) streams_end(m, s);
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
    be_logits_fetch(m->be, m->scratch.logits, s->n_logit,
                    s->logit_stride ? s->logit_stride : m->cfg.n_vocab);
    *logits_out = m->scratch.logits;
    return be_sync(m->be, e); /* errors are sticky: this is the only check */
}

/* In place: the stream is read by nobody any more.  Waits before it, too: for the backend the step
 * is over then, and rows are rows. */
err_code model_take_states(model *m, int row0, int n, const lora_view *view, float *out, err *e)
{
    const model_config *c = &m->cfg;
    const float *norm = lora_last_norm(view, c->norm_bare ? m->scratch.ones : m->out_norm);
    float *x = m->scratch.x + (size_t)row0 * (size_t)c->dim;
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
    return be_sample(m->be, m->scratch.logits, m->cfg.n_vocab, rows, n);
}
