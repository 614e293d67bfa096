/* layers.c -- which linear layers a layer of the model has, of which shape, and what its files call
 * them.
 *
 * A layer is a mixer (engine/mixer.h) and a feed-forward block, dense or of experts; model_config
 * says for each layer which, model_family what the parts are called.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/family.h"
#include "engine/model/model_inside.h"
#include "engine/model/proj_names.h"

/* ------------------------------------------------------------------------- shapes -- */

/* Of attention over latents. */
static void latent_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    const latent_shape *l = &c->latent;
    *d_out = *d_in = c->dim;
    if (p == PROJ_Q_A) *d_out = c->q_rank;
    if (p == PROJ_Q) *d_out = l->n_head * c->head_dim, *d_in = c->q_rank ? c->q_rank : c->dim;
    if (p == PROJ_K) *d_out = l->rank + l->rope;
    if (p == PROJ_V) *d_out = l->n_head * (l->nope + l->v), *d_in = l->rank;
    if (p == PROJ_O) *d_in = l->n_head * l->v;
}

static bool has_scan(const model_config *c)
{
    const model_family *f = family_find(c->family);
    return f && f->mixer && f->mixer->scan;
}

/* Of a mixer with a state; zeros: the model has none. */
static void mixer_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    const mixer_shape *s = &c->state;
    const delta_rules *r = &c->delta;
    bool conv = s->heads == 0, fused = r->form == DELTA_FUSED, scan = has_scan(c);
    bool channels = c->dt_rank > 0, delta = !conv && !scan && !channels, alone = delta && !fused;
    int answer = conv ? s->channels : s->heads * s->cols;
    *d_out = *d_in = 0;
    if (s->taps == 0) return;
    if (p == PROJ_OUT) *d_out = c->dim;
    if (p == PROJ_IN) *d_out = conv ? 3 * s->channels : s->channels + (fused ? answer : 0);
    if (p == PROJ_IN && scan) *d_out = scan_in(s);
    if (p == PROJ_IN && channels) *d_out = 2 * s->channels;
    if (p == PROJ_A && channels) *d_out = s->channels;
    if (p == PROJ_B && channels) *d_out = c->dt_rank + 2 * s->rows;
    if (p == PROJ_Z && alone) *d_out = answer;
    if (p == PROJ_B && delta) *d_out = fused ? 2 * s->heads : s->heads;
    if (p == PROJ_A && alone) *d_out = s->heads * (r->each ? s->rows : 1);
    if (p == PROJ_Z_LOW || p == PROJ_A_LOW) *d_out = r->low;
    if (*d_out == 0) return;
    bool low = (p == PROJ_Z || p == PROJ_A) && r->low > 0;
    *d_in = p == PROJ_OUT ? answer : low ? r->low : c->dim;
    if (channels && p == PROJ_B) *d_in = s->channels;
    if (channels && p == PROJ_A) *d_in = c->dt_rank;
}

/* Of queries, keys and values where each has its own projection, and of the answer. */
static void apart_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    const mixer_shape *s = &c->state;
    int values = s->heads * s->cols;
    *d_out = p == PROJ_O ? c->dim : p == PROJ_V ? values : s->groups * s->rows;
    *d_in = p == PROJ_O ? values : c->dim;
}

static bool is_apart(const model_config *c, int layer)
{
    return c->mixer[layer] == MIXER_DELTA && c->delta.form == DELTA_APART;
}

static bool mixer_has_proj(const model_config *c, int layer, proj p)
{
    if (p == PROJ_IN || p == PROJ_OUT) return mixer_keeps(c->mixer[layer]) && !is_apart(c, layer);
    if (c->mixer[layer] == MIXER_CHANNELS) return p == PROJ_B || p == PROJ_A;
    if (c->mixer[layer] != MIXER_DELTA) return false;
    if (p == PROJ_Z_LOW || p == PROJ_A_LOW) return c->delta.low > 0;
    return p == PROJ_B || c->delta.form != DELTA_FUSED;
}

/* Of a layer's own input, a gate of it, and of what is added. */
static void ple_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    bool out = p == PROJ_PLE_OUT;
    *d_out = out && c->ple_dim ? c->dim : c->ple_dim;
    *d_in = out || !c->ple_dim ? c->ple_dim : c->dim;
}

attn_heads model_layer_heads(const model_config *c, int layer)
{
    attn_heads h = {c->n_kv_head, c->head_dim};
    if (c->full_head_dim && !(c->layer[layer] & LAYER_WINDOW))
        h = (attn_heads){c->full_kv_head, c->full_head_dim};
    return h;
}

/* The most heads, and the widest. */
static attn_heads most_heads(const model_config *c)
{
    return (attn_heads){c->n_kv_head > c->full_kv_head ? c->n_kv_head : c->full_kv_head,
                        c->head_dim > c->full_head_dim ? c->head_dim : c->full_head_dim};
}

/* Of streams, and of the other residual; zeros: the model has none. */
static void stream_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    const int n = c->streams.n, dim = n ? c->dim : 0, low = c->streams.laurel;
    *d_out = p == PROJ_LAUREL_LEFT     ? low
             : p == PROJ_ALTUP_PREDICT ? n * n
             : p >= PROJ_ALTUP_ROUTER  ? n
                                       : dim;
    *d_in = p == PROJ_LAUREL_RIGHT ? low : p > PROJ_ALTUP_ROUTER ? n : dim;
}

/* Shape of a projection in a layer with these heads and this MLP; 0 by 0: the family has none. */
static void proj_shape(const model_config *c, int ffn_dim, attn_heads heads, proj p, int *d_out,
                       int *d_in)
{
    if (c->latent.rank && p <= PROJ_O) {
        latent_proj_shape(c, p, d_out, d_in);
        return;
    }
    int q = c->n_head * heads.head_dim, kv = heads.n_kv_head * heads.head_dim;
    switch (p) {
    case PROJ_Q_A: *d_out = *d_in = 0; return;
    case PROJ_Q: *d_out = c->q_gated ? 2 * q : q, *d_in = c->dim; return;
    case PROJ_K:
    case PROJ_V: *d_out = kv, *d_in = c->dim; return;
    case PROJ_O: *d_out = c->dim, *d_in = q; return;
    case PROJ_IN:
    case PROJ_OUT:
    case PROJ_Z:
    case PROJ_B:
    case PROJ_A:
    case PROJ_Z_LOW:
    case PROJ_A_LOW: mixer_proj_shape(c, p, d_out, d_in); return;
    case PROJ_GATE:
    case PROJ_UP: *d_out = ffn_dim, *d_in = c->dim; return;
    case PROJ_DOWN: *d_out = c->dim, *d_in = ffn_dim; return;
    case PROJ_PLE_MODEL:
    case PROJ_PLE_GATE:
    case PROJ_PLE_OUT: ple_proj_shape(c, p, d_out, d_in); return;
    case PROJ_LAUREL_LEFT:
    case PROJ_LAUREL_RIGHT:
    case PROJ_ALTUP_IN:
    case PROJ_ALTUP_OUT:
    case PROJ_ALTUP_ROUTER:
    case PROJ_ALTUP_PREDICT:
    case PROJ_ALTUP_CORRECT: stream_proj_shape(c, p, d_out, d_in); return;
    case PROJ_ROUTER: *d_out = c->experts.route.n, *d_in = c->experts.route.n ? c->dim : 0; return;
    case PROJ_SHARED_SCORE:
        *d_out = c->experts.shared_gated, *d_in = c->experts.shared_gated ? c->dim : 0;
        return;
    case PROJ_COUNT: break;
    }
    abort(); /* not a projection: a bug of the caller */
}

void model_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    bool wide = false;
    for (int i = 0; i < c->n_layer; i++) wide |= c->layer[i] & LAYER_WIDE;
    proj_shape(c, wide ? 2 * c->ffn_dim : c->ffn_dim, most_heads(c), p, d_out, d_in);
}

void model_layer_shape(const model_config *c, int layer, proj p, int *d_out, int *d_in)
{
    bool mixed = c->layer[layer] & LAYER_EXPERTS;
    if (p <= PROJ_O && is_apart(c, layer)) {
        apart_proj_shape(c, p, d_out, d_in);
        return;
    }
    int ffn = mixed ? c->experts.shared_dim : c->ffn_dim;
    proj_shape(c, c->layer[layer] & LAYER_WIDE ? 2 * ffn : ffn, model_layer_heads(c, layer), p,
               d_out, d_in);
}

void model_expert_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    proj_shape(c, c->experts.ffn_dim, most_heads(c), p, d_out, d_in);
}

bool model_has_proj(const model_config *c, int layer, proj p)
{
    if (p <= PROJ_O && !mixer_attends(c->mixer[layer])) return p > PROJ_Q_A && is_apart(c, layer);
    if (p >= PROJ_IN && p < PROJ_GATE) return mixer_has_proj(c, layer, p);
    if (p >= PROJ_PLE_MODEL && p <= PROJ_PLE_OUT) return c->ple_dim > 0;
    if (p == PROJ_ALTUP_IN || p == PROJ_ALTUP_OUT) return layer < c->streams.n - 1;
    if (p > PROJ_PLE_OUT && p != PROJ_ROUTER && p != PROJ_SHARED_SCORE) return c->streams.n > 0;
    if (p == PROJ_K && c->layer[layer] & LAYER_SHARES_KV) return false;
    if (p == PROJ_V && !(c->layer[layer] & LAYER_WINDOW) && c->full_k_is_v) return false;
    if (p == PROJ_V && c->layer[layer] & LAYER_SHARES_KV) return false;
    if (p >= PROJ_GATE && c->layer[layer] & LAYER_NO_MLP) return false;
    if (p == PROJ_GATE && c->ungated) return false;
    if (p == PROJ_Q_A) return c->q_rank > 0;
    if (p == PROJ_ROUTER) return c->layer[layer] & LAYER_EXPERTS;
    if (p == PROJ_SHARED_SCORE) return c->layer[layer] & LAYER_EXPERTS && c->experts.shared_gated;
    return p < PROJ_GATE || !(c->layer[layer] & LAYER_EXPERTS) || c->experts.shared_dim > 0;
}

int model_qkv_groups(const model_config *c)
{
    const family_files *own = family_find(c->family)->files;
    return own && own->by_group ? c->n_kv_head : 1;
}

bool model_proj_has_bias(const model_config *c, proj p)
{
    if (p == PROJ_GATE && c->ungated) return false;
    if (p == PROJ_O) return c->o_bias;
    if (p == PROJ_Q_A) return c->q_rank > 0 && c->qkv_bias;
    if (p == PROJ_A && c->dt_rank > 0) return true;
    if (p >= PROJ_IN && p < PROJ_GATE)
        return p == PROJ_IN ? c->in_bias : p == PROJ_OUT && c->out_bias;
    if (p > PROJ_DOWN) return false; /* none that an adapter may bring */
    if (c->latent.rank && (p == PROJ_Q || p == PROJ_V)) return false;
    return p < PROJ_O ? c->qkv_bias : c->mlp_bias;
}

dtype model_proj_type(const model_config *c, proj p)
{
    return p >= PROJ_ROUTER ? DT_F32 : c->type;
}

bool model_multiplied(const model_config *c)
{
    const layer_multipliers *b = &c->by;
    return b->attn_in != 1 || b->attn_out != 1 || b->scan_in != 1 || b->scan_out != 1 ||
           b->gate != 1 || b->down != 1;
}

int model_attention_layers(const model_config *c)
{
    int n = 0;
    for (int i = 0; i < c->n_layer; i++)
        n += mixer_attends(c->mixer[i]) && !(c->layer[i] & LAYER_SHARES_KV);
    return n;
}

void model_config_place(model_config *c, const weight_rules *rules)
{
    c->absorbs = c->latent.rank > 0 && rules->absorbs;
}

err_code model_config_pages(const model_config *c, int page_tokens, err *e)
{
    if (!c->absorbs || page_tokens >= LATENT_PAGE_MIN) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "engine.page_tokens must be at least %d for a model with latent attention "
                   "(kv_lora_rank), not %d",
                   LATENT_PAGE_MIN, page_tokens);
}

size_t model_kv_bytes(const model_config *c, dtype type)
{
    const size_t scale = type == DT_I8 ? sizeof(uint16_t) : 0;
    size_t each = c->absorbs ? (size_t)(c->latent.rank + c->latent.rope) * dtype_bytes(type) : 0;
    if (c->absorbs) return (size_t)model_attention_layers(c) * (each + 2 * scale);
    for (int i = 0; i < c->n_layer; i++) {
        attn_heads own = model_layer_heads(c, i);
        int v = c->latent.rank ? c->latent.v : own.head_dim;
        if (!mixer_attends(c->mixer[i]) || c->layer[i] & LAYER_SHARES_KV) continue;
        each +=
            (size_t)own.n_kv_head * ((size_t)(own.head_dim + v) * dtype_bytes(type) + 2 * scale);
    }
    return each;
}

size_t model_state_floats(const model_config *c)
{
    size_t with = 0;
    for (int i = 0; i < c->n_layer; i++) with += mixer_keeps(c->mixer[i]);
    return with * mixer_state_floats(&c->state);
}

/* -------------------------------------------------------------------------- names -- */

static const char *const proj_names[PROJ_COUNT] = {
    PROJ_USUAL_NAMES,
    [PROJ_Z] = "mixer.in_proj_z",
    [PROJ_B] = "mixer.in_proj_b",
    [PROJ_A] = "mixer.in_proj_a",
    [PROJ_Z_LOW] = "mixer.g_a_proj",
    [PROJ_A_LOW] = "mixer.f_a_proj",
};

/* Of attention over latents; NULL: as above. */
static const char *latent_name(const model_config *c, proj p)
{
    if (!c->latent.rank) return NULL;
    return p == PROJ_Q && c->q_rank ? "self_attn.q_b_proj"
           : p == PROJ_K            ? "self_attn.kv_a_proj_with_mqa"
           : p == PROJ_V            ? "self_attn.kv_b_proj"
                                    : NULL;
}

const char *model_fused_name(const model_config *c, int layer, proj p)
{
    const model_family *f = family_find(c->family);
    bool mlp = p == PROJ_GATE || p == PROJ_UP, mixed = c->layer[layer] & LAYER_EXPERTS;
    if (f->files && f->files->qkv && p > PROJ_Q_A && p <= PROJ_V) return f->files->qkv;
    if (f->shared_fused && mlp) return f->shared_fused;
    return f->gate_up_fused && mlp && !mixed ? "mlp.gate_up_proj" : NULL;
}

void model_proj_name(const model_config *c, int layer, proj p, char *out, size_t size)
{
    const model_family *f = family_find(c->family);
    const family_mixer *own = f && !mixer_attends(c->mixer[layer]) ? f->mixer : NULL;
    const char *name = own && own->names[p] ? own->names[p] : f ? f->names[p] : NULL;
    if (!name && f && (p == PROJ_UP || p == PROJ_DOWN)) name = p == PROJ_UP ? f->up : f->down;
    if (!name) name = latent_name(c, p) ? latent_name(c, p) : proj_names[p];
    const family_experts *x = f ? f->experts : NULL;
    bool mlp = p >= PROJ_GATE && p <= PROJ_DOWN;
    if (p == PROJ_ROUTER && x) name = x->router;
    if (p == PROJ_SHARED_SCORE && x && x->shared_gate) name = x->shared_gate;
    if (mlp && x && c->layer[layer] & LAYER_EXPERTS)
        snprintf(out, size, "%s%s", x->shared ? x->shared : "mlp", strchr(name, '.'));
    else if (mlp && c->mlp_names == MLP_FEED_FORWARD)
        snprintf(out, size, "feed_forward%s", strchr(name, '.'));
    else
        snprintf(out, size, "%s", name);
}
