/* model_weights.c -- loads a model's tensors from its files into packed weights.
 *
 *   1. want_all()    the list of all tensors that the configuration needs, with their shapes
 *   2. plan()        find each in the files (model_files.c), check shapes and types; an unused
 *      tensor is an error
 *   3. find_packed() an earlier start may have kept the packed form in a file (packed.c): map it
 *   4. load_matrix() pack each matrix for the backend, reading the next ones ahead (AHEAD_BYTES)
 *
 * No weight is read and no memory taken before the whole list is checked.
 *
 * Quantised matrices are packed by their codes if the backend has kernels for them; others become
 * plain values, exactly or as the format's own library rounds them, one matrix at a time.
 * `model.weights` can also quantise plain matrices here (quantise()); the output layer never gets
 * less than 8 bits.
 *
 * The embedding table stays mapped, and only the rows in use are in memory. After packing, the
 * source's pages are released.
 *
 * Fingerprints of tables and samples identify the weights (print_samples(), print_all()). Threads:
 * the start-up thread; the backend's threads pack and hash.
 */
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/fingerprint.h"
#include "engine/base/log.h"
#include "engine/base/round.h"
#include "engine/files/documents.h"
#include "engine/model/model_inside.h"
#include "engine/model/quantise.h"
#include "engine/model/safetensors.h"
#include "engine/program/mapping.h"
#include "engine/weight_source.h"

enum { AHEAD_BYTES = 128 << 20 }; /* that the kernel reads while others are packed */
enum { WANTED_MAX = 1 << 19 };    /* tensors of a model; DeepSeek-V3 has 46,000 */
enum { ROWS_EACH = 16 };          /* that a thread makes plain at a time */
enum { PAGE_BYTES = 4096 };       /* each matrix begins at a multiple in the packed file */
/* Of so many tensors at most, and of each a piece in the middle. */
enum { SAMPLES = 512, SAMPLE_BYTES = 64 };

weights_form model_weights_form(const char *word)
{
    static const char *const words[] = {"auto", "plain", "bf16", "q8", "q4", "fp8"};
    int i = WEIGHTS_FP8;
    while (i > WEIGHTS_AUTO && strcmp(word, words[i]) != 0) i--;
    return (weights_form)i;
}

activations_form model_activations_form(const char *word)
{
    return strcmp(word, "int8") == 0    ? ACTIVATIONS_INT8
           : strcmp(word, "int16") == 0 ? ACTIVATIONS_INT16
                                        : ACTIVATIONS_MIXED;
}

/* One tensor that must be there, and where it goes. */
typedef struct wanted {
    char module[80];
    const char *suffix;
    int rows, cols;    /* cols 0: a vector of `rows` values */
    weight **matrix;   /* packed here, or: */
    weight ***by_head; /* the matrix of latents' keys and values, once more: model_layer.absorbed */
    float **device;    /* vector as f32 in backend memory; or: */
    float *host;       /* one number; all NULL: a table, of which rows are read */
    float plus;        /* added to a vector's values */
    float times;       /* which are multiplied by it before; 0: they are not */
    stored_rows cut;   /* what of a module's rows it is */
    stored_slice at;   /* of one of three dimensions; n_slice 0: of two */
    int taps;          /* of a convolution over `rows` channels; 0: it is none */
    int n_vector;      /* vectors of `rows`, one for each expert; 0: one */
    bool expert;       /* a matrix of one, */
    int number;        /* of this one */
    int layer;         /* -1: of none */
    bool exact;        /* F32 in memory, whatever the others are: routers */
    bool sensitive;    /* outliers of its input have 16 bits by ACTIVATIONS_MIXED */
    stored s;
    weight_source source; /* a matrix as it will be packed */
    weight_source plain;  /* what that is quantised from */
} wanted;

typedef struct loader {
    model *m; /* its cfg, layer and backend; of a survey only cfg and layer */
    model_files *files;
    wanted *want; /* [n_want] */
    size_t n_want, cap_want;
    const st_tensor *score;    /* the head of classes; NULL: there is none */
    const weight_rules *rules; /* what the backend takes by its codes, */
    bool none_by_codes;        /* but nothing of this model */
    packed_plan packed;        /* the matrices, in the order of the list */
    int made_plain;            /* quantised matrices that became plain values, */
    size_t plain_bytes;        /* and take so much */
} loader;

/* -------------------------------------------------------------------- what must be there -- */

/* layer < 0: `name` is the whole name. */
static wanted *want(loader *l, int layer, const char *name, const char *suffix, int rows, int cols)
{
    assert(l->n_want < l->cap_want);
    wanted *w = &l->want[l->n_want++];
    int n = layer < 0 ? snprintf(w->module, sizeof(w->module), "%s", name)
                      : snprintf(w->module, sizeof(w->module), "model.layers.%d.%s", layer, name);
    assert(n > 0 && (size_t)n < sizeof(w->module));
    w->suffix = suffix;
    w->layer = layer;
    w->rows = rows;
    w->cols = cols;
    return w;
}

/* Where a projection's rows stand in a module that some families fuse; NULL: it is its own. */
static const char *fused_module(const loader *l, int layer, proj p, int d_out, stored_rows *at)
{
    const model_config *c = &l->m->cfg;
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    const char *name = model_fused_name(c, layer, p);
    if (name && p <= PROJ_V) {
        int groups = model_files_stacks(l->files) ? 1 : model_qkv_groups(c); /* a GGUF has one */
        at->whole = q + 2 * kv;
        at->first = (p == PROJ_Q ? 0 : p == PROJ_K ? q : q + kv) / groups;
        at->each = d_out / groups;
        if (groups > 1) at->apart = at->whole / groups;
    } else if (name) {
        at->first = p == PROJ_GATE ? 0 : d_out;
        at->whole = 2 * d_out;
    }
    return name;
}

/* Where the rounding of x costs most, with the output layer, whose error goes into the answer
 * undamped: two thirds of all loss of two real models, in a third of the work (docs/design).  The
 * same for all instruction sets. */
static const bool sensitive[PROJ_COUNT] = {[PROJ_V] = true, [PROJ_DOWN] = true};

/* Adds a layer's projection to the list of tensors: by its own name, or as rows of a fused one
 * (`cut`), with its bias. A GGUF has parts apart that Hugging Face's files fuse. */
static void want_matrix(loader *l, int i, proj p)
{
    /* What a GGUF has apart, by names that its own follow from. */
    static const char *const apart[] = {"gate_proj", "up_proj", "down_proj"};
    const model_family *f = family_find(l->m->cfg.family);
    stored_rows at = {0};
    int d_out, d_in;
    if (!model_has_proj(&l->m->cfg, i, p)) return;
    model_layer_shape(&l->m->cfg, i, p, &d_out, &d_in);
    const char *fused = fused_module(l, i, p, d_out, &at);
    char name[64];
    model_proj_name(&l->m->cfg, i, p, name, sizeof(name));
    if (f->shared_fused && p >= PROJ_GATE && p <= PROJ_DOWN && model_files_stacks(l->files)) {
        snprintf(name, sizeof(name), "%s.%s",
                 l->m->cfg.experts.route.n ? f->experts->shared : "mlp", apart[p - PROJ_GATE]);
        fused = NULL;
        at.whole = 0;
    }
    at.across = f->files && f->files->across && !model_files_stacks(l->files);
    if (at.across && !fused) at.whole = d_out;
    wanted *w = want(l, i, fused ? fused : name, "weight", d_out, d_in);
    w->matrix = &l->m->layer[i].w[p];
    w->sensitive = sensitive[p];
    if (p == PROJ_V && l->m->cfg.absorbs && mixer_attends(l->m->cfg.mixer[i]))
        w->by_head = &l->m->layer[i].absorbed;
    w->cut = at;
    if (!model_proj_has_bias(&l->m->cfg, p)) return;
    w = want(l, i, fused ? fused : name, "bias", d_out, 0);
    w->device = &l->m->layer[i].bias[p];
    if (fused) w->cut = at;
}

/* 0: there is none. */
static int norm_values(const model_config *c, int layer, layer_norm which)
{
    attn_heads heads = model_layer_heads(c, layer);
    if (c->latent.rank && which == NORM_Q) return c->q_rank;
    if (c->latent.rank && which == NORM_K) return c->latent.rank;
    if (which >= NORM_Q && !c->qk_norm && !c->qk_norm_whole) return 0;
    if (which < NORM_Q && c->norm_bare) return 0;
    if (which == NORM_MLP_IN && c->parallel && !c->parallel_apart) return 0;
    if ((which == NORM_ATTN_OUT || which == NORM_MLP_OUT) && c->no_post_norm) return 0;
    if (which == NORM_K && c->layer[layer] & LAYER_SHARES_KV) return 0;
    if (which == NORM_Q) return c->qk_norm_whole ? c->n_head * heads.head_dim : heads.head_dim;
    if (which == NORM_K)
        return c->qk_norm_whole ? heads.n_kv_head * heads.head_dim : heads.head_dim;
    return c->dim;
}

/* Whether the files have it. */
static bool has(const loader *l, int layer, const char *name)
{
    char module[96];
    snprintf(module, sizeof(module), "model.layers.%d.%s", layer, name);
    return model_files_has(l->files, module, "weight");
}

static void want_norm(loader *l, const model_family *f, int layer, const char *name, int n,
                      float **to, float **bias)
{
    for (int i = 0; i < 2; i++) {
        bool other = f->others[i][0] && strcmp(name, f->others[i][0]) == 0;
        if (other && layer >= 0 && !has(l, layer, name)) name = f->others[i][1];
    }
    wanted *w = want(l, layer, name, "weight", n, 0);
    w->device = to;
    /* llama.cpp's converter adds it. */
    w->plus = f->one_plus && !model_files_stacks(l->files) ? 1.0F : 0.0F;
    if (f->norm_bias) want(l, layer, name, "bias", n, 0)->device = bias;
}

/* Whether a file has all experts of a layer in two tensors. */
static bool experts_stacked(const loader *l, const family_experts *x, int i)
{
    char name[96];
    if (!x->each || model_files_stacks(l->files)) return true;
    snprintf(name, sizeof(name), "model.layers.%d.%s", i, x->all_down ? x->all_down : "");
    return x->all_down && model_files_look(l->files, name) != NULL;
}

/* Where a projection's rows stand in a matrix that may hold both gate and up. */
static stored_slice part_of_both(const family_experts *x, bool both, proj p, int d_out)
{
    int row0 = both && p == PROJ_UP ? x->alternate ? 1 : d_out : 0;
    return (stored_slice){.whole = both ? 2 * d_out : d_out,
                          .row0 = row0,
                          .step = both && x->alternate ? 2 : 1,
                          .across = x->across};
}

/* Expert n's part of a tensor that all experts share. */
static wanted *want_slice(loader *l, const family_experts *x, int i, proj p, int n)
{
    const experts_config *c = &l->m->cfg.experts;
    int d_out, d_in;
    bool one = has(l, i, "ffn_gate_up_exps"); /* in a GGUF, too */
    bool both = p != PROJ_DOWN && (one || !model_files_stacks(l->files));
    model_expert_shape(&l->m->cfg, p, &d_out, &d_in);
    static const char *const stacks[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                         "ffn_down_exps.weight"};
    const char *name = both && one                    ? "ffn_gate_up_exps.weight"
                       : model_files_stacks(l->files) ? stacks[p - PROJ_GATE]
                       : both                         ? x->all_gate_up
                                                      : x->all_down;
    wanted *w = want(l, i, name, "", d_out, d_in);
    w->at = part_of_both(x, both, p, d_out);
    w->at.slice = n;
    w->at.n_slice = c->route.n;
    return w;
}

/* Those of all experts, in one tensor for gate and up and one for down; in a GGUF each has one. */
static void want_expert_bias(loader *l, const family_experts *x, int i, proj p)
{
    static const char *const stacks[] = {"ffn_gate_exps.bias", "ffn_up_exps.bias",
                                         "ffn_down_exps.bias"};
    char name[64];
    int d_out, d_in;
    bool apart = model_files_stacks(l->files);
    model_expert_shape(&l->m->cfg, p, &d_out, &d_in);
    snprintf(name, sizeof(name), "%s_bias", p == PROJ_DOWN ? x->all_down : x->all_gate_up);
    wanted *w = want(l, i, apart ? stacks[p - PROJ_GATE] : name, "", d_out, 0);
    w->at = part_of_both(x, p != PROJ_DOWN && !apart, p, d_out);
    w->n_vector = l->m->cfg.experts.route.n;
    w->device = &l->m->layer[i].expert_bias[p - PROJ_GATE];
}

static wanted *want_expert(loader *l, const family_experts *x, int i, proj p, int n)
{
    char name[64];
    int d_out, d_in;
    const char *own = p == PROJ_GATE ? x->gate : p == PROJ_UP ? x->up : x->down;
    model_expert_shape(&l->m->cfg, p, &d_out, &d_in);
    snprintf(name, sizeof(name), "%s.%d.%s", x->each, n, own);
    return want(l, i, name, "weight", d_out, d_in);
}

static void want_exact(loader *l, int i, const char *name, int rows, int cols, weight **to)
{
    wanted *w = want(l, i, name, "weight", rows, cols);
    w->matrix = to;
    w->exact = true;
}

/* Norms around experts that stand beside an MLP, and the router's weights of them. */
static void want_beside(loader *l, int i)
{
    static const char *const norms[] = {"post_feedforward_layernorm_1",
                                        "pre_feedforward_layernorm_2",
                                        "post_feedforward_layernorm_2"};
    const model_config *c = &l->m->cfg;
    model_layer *layer = &l->m->layer[i];
    wanted *w = want(l, i, "router", "scale", c->dim, 0);
    w->device = &layer->beside[0];
    w->times = (float)(1.0 / sqrt((double)c->dim));
    want(l, i, "router", "per_expert_scale", c->experts.route.n, 0)->device = &layer->expert_scales;
    for (int k = 0; k < 3; k++)
        want(l, i, norms[k], "weight", c->dim, 0)->device = &layer->beside[1 + k];
}

static err_code want_experts(loader *l, const family_experts *x, int i, err *e)
{
    int n = l->m->cfg.experts.route.n, dim = l->m->cfg.dim;
    model_layer *layer = &l->m->layer[i];
    if (l->m->cfg.experts.beside) want_beside(l, i);
    bool stacked = experts_stacked(l, x, i);
    layer->expert = calloc(3 * (size_t)n, sizeof(weight *));
    if (!layer->expert) return err_set(e, ERR_NOMEM, "no memory to load the model");
    want_exact(l, i, x->router, n, dim, &layer->w[PROJ_ROUTER]);
    if (x->shared_gate) want_exact(l, i, x->shared_gate, 1, dim, &layer->w[PROJ_SHARED_SCORE]);
    const char *choice = x->choice_module ? x->choice_module : x->router;
    if (x->choice_bias && l->m->cfg.experts.choice)
        want(l, i, choice, x->choice_bias, n, 0)->device = &layer->choice_bias;
    if (x->biased) want(l, i, x->router, "bias", n, 0)->device = &layer->bias[PROJ_ROUTER];
    for (int p = PROJ_GATE; x->biased && p <= PROJ_DOWN; p++) want_expert_bias(l, x, i, (proj)p);
    for (int k = 0; k < n; k++)
        for (int p = l->m->cfg.ungated ? PROJ_UP : PROJ_GATE; p <= PROJ_DOWN; p++) {
            wanted *w =
                stacked ? want_slice(l, x, i, (proj)p, k) : want_expert(l, x, i, (proj)p, k);
            w->matrix = &layer->expert[(p - PROJ_GATE) * n + k];
            w->expert = true;
            w->number = k;
        }
    return ERR_NONE;
}

/* Of a mixer's convolution: one for all channels, or, of a layer of the delta rule, one each for
 * queries, keys and values. */
static void want_taps(loader *l, const family_mixer *fm, int i)
{
    const mixer_shape *sh = &l->m->cfg.state;
    const int part[] = {sh->groups * sh->rows, sh->groups * sh->rows, sh->heads * sh->cols};
    char name[64];
    snprintf(name, sizeof(name), "%s.%s", fm->module, fm->conv);
    bool apart = fm->rules.form == DELTA_APART && !has(l, i, name);
    for (int n = 0; n < (apart ? 3 : 1); n++) {
        if (apart) snprintf(name, sizeof(name), "%s.%c_%s", fm->module, "qkv"[n], fm -> conv);
        wanted *w = want(l, i, name, "weight", apart ? part[n] : sh->channels, 0);
        w->taps = sh->taps;
        w->device = &l->m->layer[i].taps[n];
    }
    if (l->m->cfg.conv_bias)
        want(l, i, name, "bias", sh->channels, 0)->device = &l->m->layer[i].taps_bias;
}

/* The same of a scan of channels: a decay for each value of the state, and three norms. */
static void want_channels(loader *l, const family_mixer *fm, int i)
{
    static const char *const norms[] = {"dt_layernorm", "b_layernorm", "c_layernorm"};
    const model_config *c = &l->m->cfg;
    model_layer *layer = &l->m->layer[i];
    float **to[] = {&layer->mix_norm, &layer->bc_norm[0], &layer->bc_norm[1]};
    const int n[] = {c->dt_rank, c->state.rows, c->state.rows};
    char name[64];
    want(l, i, fm->module, "A_log", c->state.channels, c->state.rows)->device = &layer->decay;
    want(l, i, fm->module, "D", c->state.channels, 0)->device = &layer->skip;
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof(name), "%s.%s", fm->module, norms[k]);
        want(l, i, name, "weight", n[k], 0)->device = to[k];
    }
}

/* What a mixer with a state has besides its projections. */
static void want_mixer(loader *l, const family_mixer *fm, int i)
{
    const model_config *c = &l->m->cfg;
    const mixer_shape *sh = &c->state;
    model_layer *layer = &l->m->layer[i];
    char name[64];
    want_taps(l, fm, i);
    if (fm->kind == MIXER_CONV) return;
    if (fm->kind == MIXER_CHANNELS) {
        want_channels(l, fm, i);
        return;
    }
    int each = c->delta.each ? sh->rows : 1;
    want(l, i, fm->module, "A_log", sh->heads, 0)->device = &layer->decay;
    want(l, i, fm->module, "dt_bias", sh->heads * each, 0)->device = &layer->dt_bias;
    if (fm->scan) want(l, i, fm->module, "D", sh->heads, 0)->device = &layer->skip;
    if (fm->scan && !c->scan.normed) return;
    snprintf(name, sizeof(name), "%s.%s", fm->module, fm->norm ? fm->norm : "norm");
    want(l, i, name, "weight", fm->scan ? scan_out(sh) : sh->cols, 0)->device = &layer->mix_norm;
}

/* Of a layer's own input: its rows of a matrix of all layers, a gate, what is added, its norm. */
static void want_ple(loader *l, int i)
{
    const model_config *c = &l->m->cfg;
    wanted *w = want(l, -1, "model.per_layer_model_projection", "weight", c->ple_dim, c->dim);
    w->layer = i;
    w->matrix = &l->m->layer[i].w[PROJ_PLE_MODEL];
    w->cut = (stored_rows){.whole = c->n_layer * c->ple_dim, .first = i * c->ple_dim};
    want_matrix(l, i, PROJ_PLE_GATE);
    want_matrix(l, i, PROJ_PLE_OUT);
    want(l, i, "post_per_layer_input_norm", "weight", c->dim, 0)->device = &l->m->layer[i].ple_norm;
}

/* Matrices of all streams but the first: of the embeddings, and of what comes out. */
static void want_stream(loader *l, int i, proj p)
{
    const model_config *c = &l->m->cfg;
    char name[64], module[80];
    model_proj_name(c, i, p, name, sizeof(name));
    bool one = model_files_stacks(l->files); /* tensor of all, which a GGUF has */
    snprintf(module, sizeof(module), one ? "model.%s" : "model.%s.%d", name, i);
    wanted *w = want(l, -1, module, one ? "" : "weight", c->dim, c->dim);
    w->layer = i;
    w->matrix = &l->m->layer[i].w[p];
    if (one)
        w->at = (stored_slice){.slice = i, .n_slice = c->streams.n - 1, .whole = c->dim, .step = 1};
}

/* How a layer updates streams, and its other residual. */
static void want_streams(loader *l, int i)
{
    const model_config *c = &l->m->cfg;
    model_layer *layer = &l->m->layer[i];
    int n = c->streams.n;
    for (int p = PROJ_ALTUP_IN; p <= PROJ_ALTUP_OUT; p++)
        if (model_has_proj(c, i, (proj)p)) want_stream(l, i, (proj)p);
    want_matrix(l, i, PROJ_LAUREL_LEFT);
    want_matrix(l, i, PROJ_LAUREL_RIGHT);
    want_exact(l, i, "altup.modality_router", n, c->dim, &layer->w[PROJ_ALTUP_ROUTER]);
    want_exact(l, i, "altup.prediction_coefs", n * n, n, &layer->w[PROJ_ALTUP_PREDICT]);
    want_exact(l, i, "altup.correction_coefs", n, n, &layer->w[PROJ_ALTUP_CORRECT]);
    wanted *norm = want(l, i, "altup.router_norm", "weight", c->dim, 0);
    norm->device = &layer->router_norm;
    norm->times = 1 / (float)c->dim;
    want(l, i, "laurel.post_laurel_norm", "weight", c->dim, 0)->device = &layer->laurel_norm;
    want(l, i, "altup", "correct_output_scale", c->dim, 0)->device = &layer->stream_scale;
}

static void want_layer(loader *l, const model_family *f, int i)
{
    if (l->m->cfg.ple_dim) want_ple(l, i);
    if (l->m->cfg.streams.n) want_streams(l, i);
    char whole[32];
    snprintf(whole, sizeof(whole), "model.layers.%d", i);
    if (l->m->cfg.layer_scaled)
        want(l, -1, whole, "layer_scalar", 1, 0)->host = &l->m->layer[i].scale;
    for (int p = 0; p <= PROJ_DOWN; p++) want_matrix(l, i, (proj)p);
    static const char *const xielu[] = {"alpha_p", "alpha_n", "beta", "eps"};
    for (int k = 0; l->m->cfg.act == ACT_XIELU && k < 4; k++)
        want(l, i, "mlp.act_fn", xielu[k], 1, 0)->device = &l->m->layer[i].xielu[k];
    if (f->sinks)
        want(l, i, "self_attn", "sinks", l->m->cfg.n_head, 0)->device = &l->m->layer[i].sinks;
    bool attends = mixer_attends(l->m->cfg.mixer[i]);
    if (mixer_keeps(l->m->cfg.mixer[i])) want_mixer(l, f->mixer, i);
    const char *const *norm = !attends && f->mixer->norms[NORM_MLP_IN] ? f->mixer->norms : f->norm;
    for (int n = 0; n < (attends ? LAYER_NORMS : NORM_Q); n++)
        if (norm[n] && norm_values(&l->m->cfg, i, (layer_norm)n) > 0)
            want_norm(l, f, i, norm[n], norm_values(&l->m->cfg, i, (layer_norm)n),
                      &l->m->layer[i].norm[n], &l->m->layer[i].norm_bias[n]);
}

enum { HEAD_WANTED, TABLE_WANTED }; /* the first two of the list */
static const char ple_table[] = "model.embed_tokens_per_layer";

/* The table of layers' own inputs, which stays in its file. */
static bool is_ple(const wanted *w)
{
    return strcmp(w->module, ple_table) == 0;
}

/* The list of all tensors that the model needs, in the order in which they are loaded. Nothing
 * is read here; a tensor that is missing is found before the first one is packed. */
static err_code want_all(loader *l, err *e)
{
    const model_config *c = &l->m->cfg;
    const model_family *f = family_find(c->family);
    assert(f);
    size_t each = 2 * PROJ_COUNT + 2 * LAYER_NORMS + 20 + 3 * (size_t)c->experts.route.n;
    l->cap_want = (size_t)c->n_layer * each + 8;
    if (l->cap_want > WANTED_MAX)
        return err_set(e, ERR_LIMIT, "%d layers of %d experts have more than %d tensors",
                       c->n_layer, c->experts.route.n, WANTED_MAX);
    l->want = calloc(l->cap_want, sizeof(*l->want));
    l->m->layer = calloc((size_t)c->n_layer, sizeof(*l->m->layer));
    if (!l->want || !l->m->layer) return err_set(e, ERR_NOMEM, "no memory to load the model");

    /* The head stands before the table: packing it from the shared tensor lets the pages go.
     * HEAD_WANTED and TABLE_WANTED are these. */
    const char *table = f->embed ? f->embed : "model.embed_tokens";
    want(l, -1, c->tied ? table : "lm_head", "weight", c->n_vocab, c->dim)->matrix = &l->m->head;
    l->want[HEAD_WANTED].sensitive = true;
    (void)want(l, -1, table, "weight", c->n_vocab, c->dim);
    if (!c->norm_bare)
        want_norm(l, f, -1, f->last_norm ? f->last_norm : "model.norm", c->dim, &l->m->out_norm,
                  &l->m->out_norm_bias);
    if (c->ple_dim) {
        (void)want(l, -1, ple_table, "weight", c->ple_vocab, c->n_layer * c->ple_dim);
        want(l, -1, "model.per_layer_projection_norm", "weight", c->ple_dim, 0)->device =
            &l->m->ple.norm;
    }
    if (c->n_position > 0)
        want(l, -1, f->files->positions, "weight", c->n_position, c->dim)->device =
            &l->m->positions;
    if (c->head_bias && !c->headless)
        want(l, -1, "lm_head", "bias", c->n_vocab, 0)->device = &l->m->head_bias;
    err_code rc = ERR_NONE;
    for (int i = 0; i < c->n_layer && !rc; i++) {
        want_layer(l, f, i);
        if (c->layer[i] & LAYER_EXPERTS) rc = want_experts(l, f->experts, i, e);
    }
    return rc;
}

/* ----------------------------------------------------------------------- find and check -- */

static bool is_linear(const loader *l, const wanted *w)
{
    return w->matrix && w->matrix != &l->m->head && !w->exact;
}

/* Whether the kernels take a matrix by its codes. */
static bool is_native(const loader *l, const wanted *w)
{
    bool asked = l->m->weights != WEIGHTS_PLAIN && l->m->weights != WEIGHTS_BF16;
    return asked && l->rules->takes && !l->none_by_codes && w->matrix && !w->exact &&
           w->s.src.read_row && weight_source_even(&w->s.src) &&
           l->rules->takes(&w->s.src, w->expert);
}

/* One linear operation takes weights of one type, and so do adapters.  Plain files with several are
 * refused; where some are quantised, or in a GGUF, all are F32 then.  What is taken by its codes
 * goes with any type: it asks for BF16 adapters where nobody asks for others.  Where codes go
 * beside BF16 alone, quantised matrices that are not taken so become BF16, too. */
static err_code check_types(loader *l, bool may_mix, err *e)
{
    const wanted *first = NULL, *other = NULL;
    bool some_by_codes = false;
    l->m->cfg.in_integers = false;
    if (l->m->weights == WEIGHTS_BF16) may_mix = true;
    for (size_t i = 0; i < l->n_want; i++) {
        bool by_codes = is_linear(l, &l->want[i]) && is_native(l, &l->want[i]);
        some_by_codes |= by_codes;
        l->m->cfg.in_integers |= by_codes && !l->rules->bf16 && !l->want[i].s.src.floats;
    }
    for (size_t i = 0; i < l->n_want; i++) {
        const wanted *w = &l->want[i];
        if (!is_linear(l, w) || (is_native(l, w) && !w->s.src.floats)) continue;
        if (some_by_codes && l->rules->bf16 && stored_coded(&w->s)) continue;
        if (!first) first = w;
        may_mix |= stored_coded(&w->s);
        if (w->s.plain != first->s.plain && !other) other = w;
    }
    if (other && !may_mix)
        return err_set(e, ERR_UNSUPPORTED, "tensors '%s' (%s) and '%s' (%s) differ in dtype",
                       first->s.name, first->s.format, other->s.name, other->s.format);
    l->m->cfg.type = other ? DT_F32 : first ? first->s.plain : DT_BF16;
    if (l->m->weights == WEIGHTS_BF16) l->m->cfg.type = DT_BF16;
    if (l->m->cfg.type == DT_BF16 || !l->rules->bf16 || l->none_by_codes) return ERR_NONE;
    l->none_by_codes = true;
    return check_types(l, may_mix, e);
}

/* What most of the matrices' bytes are. */
static void name_format(loader *l)
{
    enum { FORMATS_MAX = 16 };
    const char *format[FORMATS_MAX];
    size_t sum[FORMATS_MAX] = {0}, best = 0;
    int n = 0;
    for (size_t i = 0; i < l->n_want; i++) {
        const stored *s = &l->want[i].s;
        int at = 0;
        if (!is_linear(l, &l->want[i])) continue;
        while (at < n && strcmp(format[at], s->format) != 0) at++;
        if (at == FORMATS_MAX) continue;
        if (at == n) format[n++] = s->format;
        sum[at] += stored_bytes(s);
        if (sum[at] <= best) continue;
        best = sum[at];
        snprintf(l->m->cfg.format, sizeof(l->m->cfg.format), "%s", s->format);
    }
}

/* What stands over the last norm: without an output layer the table is in its place. */
static err_code find_heads(loader *l, err *e)
{
    model_config *c = &l->m->cfg;
    c->headless |= model_files_bare(l->files);
    c->tied |= c->headless;
    if (!c->scored) return ERR_NONE;
    err_code rc = model_files_take(l->files, "score.weight", &l->score, e);
    const st_tensor *t = l->score;
    dtype type;
    if (rc) return rc;
    if (t->ndim != 2 || t->shape[1] != (uint64_t)c->dim || !st_usable(t->dtype, &type))
        return err_set(e, ERR_INPUT,
                       "tensor 'score.weight' is not [labels, %d] of F32, F16 or BF16", c->dim);
    if (t->shape[0] <= POOLING_LABELS_MAX) return ERR_NONE;
    return err_set(e, ERR_LIMIT, "tensor 'score.weight' is for %llu labels; at most %d are served",
                   (unsigned long long)t->shape[0], POOLING_LABELS_MAX);
}

static err_code find_wanted(const loader *l, wanted *w, err *e)
{
    if (w->taps) return model_files_find_taps(l->files, w->module, w->rows, w->taps, &w->s, e);
    if (w->n_vector)
        return model_files_find_columns(l->files, w->module, w->n_vector, w->at.whole, w->at.row0,
                                        w->at.step, w->rows, &w->s, e);
    if (w->at.n_slice)
        return model_files_find_slice(l->files, w->module, &w->at, w->rows, w->cols, &w->s, e);
    return w->cut.whole
               ? model_files_find_rows(l->files, w->module, w->suffix, &w->cut, w->rows, w->cols,
                                       &w->s, e)
               : model_files_find(l->files, w->module, w->suffix, w->rows, w->cols, &w->s, e);
}

/* Opens the files and finds all that is wanted. */
static err_code plan(loader *l, const char *path, err *e)
{
    err_code rc = model_files_open(&l->files, path, &l->m->cfg, e);
    if (!rc) rc = find_heads(l, e);
    if (!rc) rc = want_all(l, e);
    for (size_t i = 0; i < l->n_want && !rc; i++) rc = find_wanted(l, &l->want[i], e);
    float *freqs = rc ? NULL : malloc((size_t)l->m->cfg.head_dim / 2 * sizeof(*freqs));
    bool found = false;
    if (!rc && !freqs) rc = err_set(e, ERR_NOMEM, "no memory to load the model");
    if (!rc) rc = model_files_rope(l->files, freqs, &found, e);
    l->m->rope_divisors = found && !rc ? freqs : NULL;
    if (!l->m->rope_divisors) free(freqs);
    if (!rc) rc = model_files_check_rest(l->files, &l->want[TABLE_WANTED].s, e);
    if (!rc) rc = check_types(l, document_is_gguf(path), e);
    if (!rc) name_format(l);
    return rc;
}

static void plan_clear(loader *l)
{
    for (size_t i = 0; i < l->n_want; i++) stored_clear(&l->want[i].s);
    free(l->want);
    free((void *)(uintptr_t)l->packed.bytes);
    model_files_close(l->files);
}

/* What a matrix becomes in memory. */
static dtype type_of(const loader *l, const wanted *w)
{
    dtype all = l->m->cfg.type;
    if (w->exact) return DT_F32;
    if (is_native(l, w)) return all == DT_BF16 ? DT_BF16 : DT_F32;
    if (w->matrix && l->m->weights == WEIGHTS_BF16) return DT_BF16;
    return is_linear(l, w) ? all : w->s.plain;
}

/* ------------------------------------------------------------------------------- load -- */

static void *host_alloc(size_t bytes)
{
    return aligned_alloc(64, round_up_size(bytes, 64));
}

static err_code load_scores(loader *l, err *e)
{
    const st_tensor *t = l->score;
    if (!t) return ERR_NONE;
    float *w = host_alloc((size_t)t->count * sizeof(*w));
    if (!w) return err_set(e, ERR_NOMEM, "tensor 'score.weight': no memory");
    st_read_f32(t, 0, (size_t)t->count, w);
    l->m->score_head = (pooling_head){(int)t->shape[0], (int)t->shape[1], w, NULL};
    return ERR_NONE;
}

typedef struct unpacking {
    const stored *s;
    dtype type;
    uint8_t *out;
    atomic_bool failed;
} unpacking;

static void unpack_rows(void *arg, int i)
{
    unpacking *u = arg;
    int from = i * ROWS_EACH, rows = u->s->src.rows - from;
    size_t row = (size_t)u->s->src.cols * dtype_bytes(u->type);
    if (rows > ROWS_EACH) rows = ROWS_EACH;
    if (!stored_values(u->s, from, from + rows, u->type, u->out + (size_t)from * row))
        atomic_store(&u->failed, true);
}

/* The matrix as plain values of `type` at an address that it allows; *copy is the caller's to
 * free. */
static const void *plain_values(backend *be, const stored *s, dtype type, void **copy)
{
    *copy = NULL;
    if (stored_in_place(s) && type == s->plain) return s->values;
    size_t bytes = (size_t)s->src.rows * (size_t)s->src.cols * dtype_bytes(type);
    unpacking u = {.s = s, .type = type, .out = host_alloc(bytes)};
    if (!u.out) return NULL;
    be_parallel(be, unpack_rows, &u, (s->src.rows + ROWS_EACH - 1) / ROWS_EACH);
    if (atomic_load(&u.failed)) {
        free(u.out);
        return NULL;
    }
    return *copy = u.out;
}

/* Of a plain matrix; an adapter's copy of a quantised one is not recognised. */
static uint64_t print_of(const stored *s)
{
    fingerprint f;
    if (!s->values || s->turned) return 0;
    fingerprint_begin(&f);
    fingerprint_add(&f, s->values, s->part[0].bytes);
    return fingerprint_end(&f);
}

static void print_table(void *arg, int i)
{
    const loader *l = arg;
    *(i == HEAD_WANTED ? &l->m->cfg.head_print : &l->m->cfg.embed_print) = print_of(&l->want[i].s);
}

/* Long pieces, of which a thread reads one alone: side by side. */
static void print_tables(loader *l)
{
    model_config *c = &l->m->cfg;
    be_parallel(l->m->be, print_table, l, c->tied ? 1 : 2);
    if (c->tied) c->embed_print = c->head_print;
}

/* Models of one shape differ by their weights alone, a merged adapter's by few of them. */
static uint64_t print_samples(const loader *l)
{
    size_t each = l->n_want / SAMPLES + 1;
    fingerprint f;
    fingerprint_begin(&f);
    for (size_t i = 0; i < l->n_want; i += each) {
        const stored *s = &l->want[i].s;
        for (int k = 0; k < STORED_PARTS; k++) {
            uint8_t some[SAMPLE_BYTES] = {0};
            uint64_t n = s->part[k].bytes < sizeof(some) ? s->part[k].bytes : sizeof(some);
            if (!s->part[k].data) continue;
            memcpy(some, s->part[k].data + (s->part[k].bytes - n) / 2, n);
            fingerprint_add(&f, some, sizeof(some));
        }
    }
    return fingerprint_end(&f);
}

/* Every byte of every tensor. */
static uint64_t print_all(const loader *l)
{
    packed_key all;
    packed_key_begin(&all);
    for (size_t i = 0; i < l->n_want; i++) {
        const stored *s = &l->want[i].s;
        for (int k = 0; k < STORED_PARTS; k++) {
            fingerprint f;
            if (!s->part[k].data) continue;
            fingerprint_begin(&f);
            fingerprint_add(&f, s->part[k].data, s->part[k].bytes);
            packed_key_add(&all, fingerprint_end(&f));
        }
        stored_forget(s);
    }
    return packed_key_end(&all);
}

/* By codes, of the files or of what model.weights asks for; else of plain values. */
static err_code make_weight(loader *l, const wanted *w, err *e)
{
    backend *be = l->m->be;
    if (weight_source_quantised(&w->source)) return be_weight_create(be, w->matrix, &w->source, e);
    void *copy;
    const void *data = plain_values(be, &w->s, w->source.type, &copy);
    if (!data) return err_set(e, ERR_NOMEM, "no memory");
    weight_source src = weight_source_plain(data, w->source.type, w->rows, w->cols);
    err_code rc = be_weight_create(be, w->matrix, &src, e);
    free(copy);
    if (rc || !stored_coded(&w->s)) return rc;
    l->made_plain++;
    l->plain_bytes += be_weight_bytes(*w->matrix);
    return ERR_NONE;
}

/* What a head's part of a matrix becomes.  Of codes F16: that rounds less than the codes did. */
static dtype heads_type(const loader *l, const wanted *w)
{
    if (l->m->weights == WEIGHTS_BF16) return DT_BF16;
    bool codes = stored_coded(&w->s) || is_native(l, w) || l->m->weights >= WEIGHTS_Q8;
    return codes ? DT_F16 : type_of(l, w);
}

typedef struct heads_job {
    const stored *s;
    const latent_shape *sh;
    dtype type;
    char *out; /* of each head [rank][nope], turned, and [v][rank] */
    atomic_bool failed;
} heads_job;

static void unpack_head(void *arg, int h)
{
    heads_job *j = arg;
    const latent_shape *sh = j->sh;
    const size_t each = dtype_bytes(j->type), nope = (size_t)sh->nope, rank = (size_t)sh->rank;
    const int first = h * (sh->nope + sh->v), behind = first + sh->nope;
    char *out = j->out + (size_t)first * rank * each, *keys = malloc(nope * rank * each);
    bool ok = keys && stored_values(j->s, first, behind, j->type, keys) &&
              stored_values(j->s, behind, behind + sh->v, j->type, out + nope * rank * each);
    for (size_t i = 0; ok && i < nope * rank; i++)
        memcpy(out + (i % rank * nope + i / rank) * each, keys + i * each, each);
    if (!ok) atomic_store(&j->failed, true);
    free(keys);
}

/* The parts of all heads as latent_heads has them. */
static err_code make_heads(loader *l, const wanted *w, err *e)
{
    model *m = l->m;
    const latent_shape *sh = &m->cfg.latent;
    heads_job j = {.s = &w->s, .sh = sh, .type = heads_type(l, w)};
    const size_t each = dtype_bytes(j.type), rank = (size_t)sh->rank, heads = (size_t)sh->n_head;
    weight **to = *w->by_head = calloc(2 * heads, sizeof(*to));
    j.out = host_alloc((size_t)w->rows * rank * each);
    err_code rc = to && j.out ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory");
    if (!rc) be_parallel(m->be, unpack_head, &j, sh->n_head);
    if (!rc && atomic_load(&j.failed)) rc = err_set(e, ERR_NOMEM, "no memory");
    const char *at = j.out;
    for (size_t i = 0; i < 2 * heads && !rc; i++) {
        const bool value = i % 2;
        const int rows = value ? sh->v : sh->rank, cols = value ? sh->rank : sh->nope;
        weight **one = &to[i / 2 + (value ? heads : 0)];
        weight_source src = weight_source_plain(at, j.type, rows, cols);
        rc = be_weight_create(m->be, one, &src, e);
        at += (size_t)rows * (size_t)cols * each;
        if (!rc) m->weight_bytes += be_weight_bytes(*one);
    }
    free(j.out);
    return rc;
}

static err_code adopt(loader *l, const wanted *w, size_t i, err *e)
{
    return be_weight_adopt(l->m->be, w->matrix, &w->source, packed_at(l->m->packed, i), e);
}

/* The i-th of the matrices. */
static err_code load_matrix(loader *l, const wanted *w, size_t i, err *e)
{
    model *m = l->m;
    err_code rc = m->packed ? adopt(l, w, i, e) : make_weight(l, w, e);
    if (!rc && w->by_head) rc = make_heads(l, w, e);
    if (!m->packed || w->by_head) stored_forget(&w->s);
    if (rc) {
        if (e) (void)err_context(e, "tensor '%s'", w->s.name);
        return rc;
    }
    if (w->matrix == &m->head) m->cfg.head_type = type_of(l, w);
    m->weight_bytes += be_weight_bytes(*w->matrix);
    return ERR_NONE;
}

static err_code load_vector(model *m, const wanted *w, err *e)
{
    size_t n = (size_t)w->s.src.rows * (size_t)w->s.src.cols, bytes = n * sizeof(float);
    float *v = host_alloc(2 * bytes);
    if (!v || !stored_values(&w->s, 0, w->s.src.rows, DT_F32, v + n)) {
        free(v);
        return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->s.name);
    }
    float times = w->times != 0 ? w->times : 1;
    for (size_t i = 0; i < n; i++)
        v[i] = w->plus + times * v[n + (size_t)stored_row(&w->s, (int)i)];
    if (w->host) {
        *w->host = v[0];
        free(v);
        return ERR_NONE;
    }
    *w->device = be_alloc(m->be, bytes);
    err_code rc = *w->device ? be_upload(m->be, *w->device, v, bytes) : ERR_NOMEM;
    free(v);
    return rc ? err_set(e, rc, "tensor '%s': no device memory", w->s.name) : ERR_NONE;
}

/* Whether a step reads the table's rows out of the file, each by its codes. */
static bool by_rows(const loader *l, const wanted *w)
{
    return w == &l->want[TABLE_WANTED] && l->rules->host_rows && !stored_in_place(&w->s);
}

/* The model's from now on, with the files that it reads. */
static bool take_embedding(loader *l, wanted *w)
{
    model *m = l->m;
    m->embed_stored = malloc(sizeof(*m->embed_stored));
    m->embed_room = malloc(stored_room(&w->s) + 1);
    if (!m->embed_stored || !m->embed_room) return false;
    stored_move(m->embed_stored, &w->s);
    m->embed_files = l->files;
    l->files = NULL;
    return true;
}

/* It borrows from the files that the embedding has taken. */
static err_code load_ple(loader *l, wanted *w, err *e)
{
    model *m = l->m;
    m->ple.table = malloc(sizeof(*m->ple.table));
    m->ple.room = malloc(stored_room(&w->s) + 1);
    if (!m->ple.table || !m->ple.room)
        return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->s.name);
    stored_move(m->ple.table, &w->s);
    return ERR_NONE;
}

/* The table stays where it is; or it is plain values of our own. */
static err_code load_embedding(loader *l, wanted *w, err *e)
{
    model *m = l->m;
    const void *plain = NULL;
    m->embed_type = m->cfg.embed_type = w->s.plain;
    if (!by_rows(l, w)) plain = plain_values(m->be, &w->s, w->s.plain, &m->embed_copy);
    if (!take_embedding(l, w) || (!plain && !by_rows(l, w)))
        return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->s.name);
    if (plain) {
        err_code rc = be_table_create(m->be, &m->table, plain, m->embed_type, w->rows, w->cols,
                                      m->cfg.tied ? m->head : NULL, e);
        if (rc) return e ? err_context(e, "tensor '%s'", w->s.name) : rc;
    }
    stored_forget(&w->s); /* rows come back as they are used */
    return ERR_NONE;
}

/* Whether a plain matrix, as it will be packed, is quantised: *out.  The output layer never has
 * less than 8 bits: its error goes into the answer undamped. */
static bool quantise(const loader *l, const wanted *w, const weight_source *plain,
                     weight_source *out)
{
    weights_form f = l->m->weights;
    bool in_place = w->matrix && stored_in_place(&w->s) && w->s.plain == type_of(l, w);
    bool asked = f >= WEIGHTS_Q8 && l->rules->takes && !l->none_by_codes;
    if (!asked || !in_place || w->exact) return false;
    bool head = w->matrix == &l->m->head;
    quantise_form to = f == WEIGHTS_FP8          ? QUANTISE_FP8
                       : f == WEIGHTS_Q8 || head ? QUANTISE_Q8
                                                 : QUANTISE_Q4;
    return weight_source_quantise(out, plain, to) && l->rules->takes(out, w->expert);
}

/* ---------------------------------------------------------------------------- blocks -- */

/* The block of engine/model/resident.h that a matrix is a part of. */
static size_t block_of(const loader *l, const wanted *w)
{
    const model_config *c = &l->m->cfg;
    size_t n_block = (size_t)c->n_layer + 1, n = (size_t)c->experts.route.n;
    if (w->layer < 0) return n_block - 1;
    return w->expert ? n_block + (size_t)w->layer * n + (size_t)w->number : (size_t)w->layer;
}

static size_t n_blocks(const loader *l)
{
    const model_config *c = &l->m->cfg;
    return (size_t)c->n_layer + 1 + (size_t)c->n_layer * (size_t)c->experts.route.n;
}

/* A block's matrices lie one after the other in the file, as in the list. */
static err_code begin_resident(loader *l, err *e)
{
    model *m = l->m;
    resident_run *run = calloc(n_blocks(l), sizeof(*run));
    if (!run) return err_set(e, ERR_NOMEM, "no memory to load the model");
    resident_file f = {.n_block = m->cfg.n_layer + 1,
                       .n_expert = m->cfg.experts.route.n,
                       .top_k = m->cfg.experts.route.top_k,
                       .block = run};
    f.map = packed_map(m->packed, &f.bytes, &f.fd);
    if (f.n_expert > 0) f.expert = run + f.n_block;
    size_t matrix = 0, sum = 0;
    for (size_t i = 0; i < l->n_want; i++) {
        const wanted *w = &l->want[i];
        if (!w->matrix) continue;
        resident_run *r = &run[block_of(l, w)];
        size_t at = (size_t)((const char *)packed_at(m->packed, matrix) - f.map);
        size_t bytes = round_up_size(l->packed.bytes[matrix++], PAGE_BYTES);
        if (r->bytes == 0) r->at = at;
        assert(at == r->at + r->bytes);
        r->bytes += bytes;
        sum += bytes;
    }
    if (m->cfg.headless) run[m->cfg.n_layer].bytes = 0; /* nothing reads it */
    err_code rc = resident_create(&m->resident, &f, m->resident_bytes, e);
    free(run);
    if (rc) return rc;
    log_info(
        "model",
        "weights: %zu MiB are streamed from data.dir/packed within model.resident_bytes of "
        "%zu MiB (KV pages, adapters, the input table and the heads of latents are not counted)",
        sum >> 20, m->resident_bytes >> 20);
    return ERR_NONE;
}

/* Streams read matrices of other layers' blocks (Gemma 3n). */
static err_code check_resident(const loader *l, size_t budget, err *e)
{
    if (budget == 0 || l->m->cfg.streams.n == 0) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "model.resident_bytes must be 0 for a model with altup_num_inputs");
}

/* What a step of one row reads from the disk within a budget. */
static err_code measure_resident(const loader *l, const size_t *block, size_t budget,
                                 model_survey *out, err *e)
{
    const model_config *c = &l->m->cfg;
    resident_sizes s = {.n_block = c->n_layer + 1,
                        .block = block,
                        .n_expert = c->experts.route.n,
                        .top_k = c->experts.route.top_k};
    for (size_t i = (size_t)s.n_block; i < n_blocks(l); i++) {
        s.experts += block[i];
        if (block[i] > s.expert) s.expert = block[i];
        s.expert_layers += (i - (size_t)s.n_block) % (size_t)s.n_expert == 0 && block[i] > 0;
    }
    resident_plan plan;
    err_code rc = resident_divide(&s, budget, &plan, NULL, e);
    out->token_bytes = rc ? 0 : plan.token_bytes;
    return rc;
}

/* ----------------------------------------------------------------------------- survey -- */

/* What the weights take in the files, and in memory (tied: once); by blocks (NULL: nobody asks). */
static void measure(const loader *l, model_survey *out, size_t *block)
{
    *out = (model_survey){.dequantised = 0};
    snprintf(out->format, sizeof(out->format), "%s", l->m->cfg.format);
    for (size_t i = 0; i < l->n_want; i++) {
        const wanted *w = &l->want[i];
        bool table = i == TABLE_WANTED, shared = table && l->m->cfg.tied;
        size_t values = (size_t)w->s.src.rows * (size_t)w->s.src.cols;
        bool vector = w->device || w->host;
        size_t bytes = values * (vector ? sizeof(float) : dtype_bytes(type_of(l, w)));
        weight_source q, plain = weight_source_plain(NULL, type_of(l, w), w->rows, w->cols);
        if (is_native(l, w)) bytes = weight_source_bytes(&w->s.src);
        if (quantise(l, w, &plain, &q)) bytes = weight_source_bytes(&q);
        if (!shared) out->file_bytes += stored_bytes(&w->s);
        out->by_codes += is_native(l, w);
        bool mapped = is_ple(w) || (table && (stored_in_place(&w->s) || by_rows(l, w)));
        out->dequantised += stored_coded(&w->s) && !is_native(l, w) && !mapped;
        if (mapped) continue;
        if (block && w->matrix) block[block_of(l, w)] += bytes;
        if (w->by_head) { /* made when the model is loaded: of no block */
            const size_t heads = values * dtype_bytes(heads_type(l, w));
            out->heads_bytes += heads;
            bytes += heads;
        }
        out->memory_bytes += bytes;
        if (!shared) out->device_bytes += bytes;
    }
}

static err_code check_room(const loader *l, const model_survey *s, err *e)
{
    size_t room = be_room(l->m->be), need = s->device_bytes;
    const wanted *table = &l->want[TABLE_WANTED];
    int n = be_caps(l->m->be)->n_device;
    if (room == 0) return ERR_NONE;
    if (n > 1) need /= (size_t)n; /* but for the table, which is not the head's matrix then */
    bool own_table = !l->m->cfg.tied || n > 1;
    if (stored_in_place(&table->s) && own_table) need += stored_bytes(&table->s);
    if (need <= room) return ERR_NONE;
    double gib = (double)(1 << 30);
    return err_set(e, ERR_NOMEM,
                   "the weights take %.2f GiB, and the device has %.2f GiB for them (before "
                   "scratch, KV pages and adapters)",
                   (double)need / gib, (double)room / gib);
}

err_code model_survey_read(const char *path, const model_config *c, weights_form weights,
                           const weight_rules *rules, bool deep, size_t resident_bytes,
                           model_survey *out, err *e)
{
    model m = {.cfg = *c, .weights = weights};
    loader l = {.m = &m, .rules = rules};
    err_code rc = plan(&l, path, e);
    size_t *block = rc ? NULL : calloc(n_blocks(&l), sizeof(*block));
    if (!rc && !block) rc = err_set(e, ERR_NOMEM, "no memory to load the model");
    if (!rc) rc = check_resident(&l, resident_bytes, e);
    if (!rc) measure(&l, out, block);
    if (!rc && resident_bytes > 0) rc = measure_resident(&l, block, resident_bytes, out, e);
    free(block);
    if (!rc) out->sampled = print_samples(&l);
    if (!rc && deep) out->full = print_all(&l);
    plan_clear(&l);
    for (int i = 0; m.layer && i < c->n_layer; i++) free((void *)m.layer[i].expert);
    free(m.layer);
    free(m.rope_divisors);
    return rc;
}

static void tell(const loader *l, const model_survey *s)
{
    double gib = (double)(1 << 30);
    if (l->made_plain == 0) return;
    log_info("model",
             "%s, %.2f GiB in the file: %d matrices became plain values of %.2f GiB, for which the "
             "backend has kernels",
             s->format, (double)s->file_bytes / gib, l->made_plain, (double)l->plain_bytes / gib);
}

/* How a matrix will be packed; of values that are not in the files as they are, only the shape is
 * known yet. */
static void find_source(const loader *l, wanted *w)
{
    const activations_form a = l->m->activations;
    const x_rounding rounding = a == ACTIVATIONS_INT16                   ? X_INT16
                                : a == ACTIVATIONS_MIXED && w->sensitive ? X_OUTLIERS
                                                                         : X_INT8;
    dtype type = type_of(l, w);
    if (is_native(l, w)) {
        w->source = w->s.src;
        w->source.type = type;
        w->source.rounding = rounding;
        return;
    }
    w->plain =
        weight_source_plain(stored_in_place(&w->s) ? w->s.values : NULL, type, w->rows, w->cols);
    if (quantise(l, w, &w->plain, &w->source))
        w->source.rounding = rounding;
    else
        w->source = w->plain;
}

/* How each matrix will be packed, and whether an earlier start has kept that. */
static err_code find_packed(loader *l, err *e)
{
    const weight_source **src = calloc(l->n_want, sizeof(*src));
    if (!src) return err_set(e, ERR_NOMEM, "no memory to load the model");
    size_t n = 0;
    packed_key key;
    packed_key_begin(&key);
    packed_key_add(&key, model_files_stamp(l->files));
    for (size_t i = 0; i < l->n_want; i++) {
        if (!l->want[i].matrix) continue;
        find_source(l, &l->want[i]);
        src[n++] = &l->want[i].source;
    }
    if (model_packed_plan(l->m, &key, src, n, &l->packed))
        (void)model_packed_open(l->m, &l->packed);
    free(src);
    return ERR_NONE;
}

/* Where they were not, the next start shall find them. */
static void keep_packed(loader *l)
{
    if (l->m->packed || !l->packed.bytes) return;
    weight **w = calloc(l->packed.n, sizeof(*w));
    size_t n = 0;
    for (size_t i = 0; w && i < l->n_want; i++) {
        if (l->want[i].matrix) w[n++] = *l->want[i].matrix;
    }
    if (w) model_packed_keep(l->m, &l->packed, w);
    free(w);
}

/* Asks the kernel for what the next ones of the list are read from; *asked of them were so far, and
 * *ahead bytes of them have not been read yet. */
static void read_ahead(const loader *l, size_t i, size_t *asked, size_t *ahead)
{
    for (; *asked < l->n_want && (*asked <= i || *ahead < AHEAD_BYTES); ++*asked) {
        const wanted *w = &l->want[*asked];
        if ((w->matrix && l->m->packed) || is_ple(w)) continue;
        stored_ahead(&w->s);
        *ahead += stored_bytes(&w->s);
    }
}

/* Without a kept file, a model that is larger than memory is packed into one, a matrix at a
 * time. */
static err_code pack_to_disk(loader *l, err *e)
{
    model *m = l->m;
    if (m->resident_bytes == 0 || m->packed) return ERR_NONE;
    if (!l->packed.bytes)
        return err_set(e, ERR_UNSUPPORTED,
                       "model.resident_bytes requires the CPU backend and debug.packed_cache");
    packed_keeper *k;
    size_t n = 0, asked = 0, ahead = 0;
    err_code rc = packed_write_begin(&k, m->packed_dir, m->packed_floor_bytes, &l->packed, e);
    if (rc) return rc;
    print_tables(l);
    for (size_t i = 0; i < l->n_want && !rc; i++) {
        wanted *w = &l->want[i];
        if (!w->matrix) continue;
        read_ahead(l, i, &asked, &ahead);
        rc = make_weight(l, w, e);
        if (!rc) rc = packed_write(k, n++, be_weight_packed(m->be, *w->matrix), e);
        if (*w->matrix) be_weight_destroy(m->be, *w->matrix);
        *w->matrix = NULL;
        stored_forget(&w->s);
        if (rc && e) (void)err_context(e, "tensor '%s'", w->s.name);
    }
    const uint64_t notes[PACKED_NOTES] = {m->cfg.head_print, m->cfg.embed_print};
    err_code end = packed_write_end(k, rc ? NULL : notes, rc ? NULL : e);
    if (rc || end) return rc ? rc : end;
    if (model_packed_open(m, &l->packed)) return ERR_NONE;
    return err_set(e, ERR_IO, "the packed weights in data.dir cannot be mapped");
}

/* Plan, room on this machine, packed weights of an earlier start, then tensor after tensor, with
 * files read ahead of their use. At the end it begins to keep the packed form for the next
 * start. */
static err_code load_all(loader *l, const char *path, err *e)
{
    model_survey survey;
    err_code rc = plan(l, path, e);
    if (rc) return rc;
    measure(l, &survey, NULL);
    rc = check_room(l, &survey, e);
    if (!rc) rc = check_resident(l, l->m->resident_bytes, e);
    if (!rc) rc = find_packed(l, e);
    if (!rc) {
        l->m->cfg.weights_print = print_samples(l);
        log_info("model", "weights: sampled digest %016llx",
                 (unsigned long long)l->m->cfg.weights_print);
    }
    if (!rc) rc = pack_to_disk(l, e);
    if (!rc && !l->m->packed) print_tables(l);
    size_t asked = 0, ahead = 0, matrices = 0;
    for (size_t i = 0; i < l->n_want && !rc; i++) {
        wanted *w = &l->want[i];
        read_ahead(l, i, &asked, &ahead);
        rc = w->matrix              ? load_matrix(l, w, matrices++, e)
             : w->device || w->host ? load_vector(l->m, w, e)
             : is_ple(w)            ? load_ple(l, w, e)
                                    : load_embedding(l, w, e);
        if ((!w->matrix || !l->m->packed) && !is_ple(w)) ahead -= stored_bytes(&w->s);
    }
    if (!rc) rc = load_scores(l, e);
    if (!rc && mapping_lost())
        rc = err_set(e, ERR_IO, "a file of the model got shorter while it was read");
    if (!rc && l->m->resident_bytes > 0) rc = begin_resident(l, e);
    if (!rc) keep_packed(l);
    if (!rc) tell(l, &survey);
    return rc;
}

err_code model_weights_load(model *m, const char *path, err *e)
{
    loader l = {.m = m, .rules = &be_caps(m->be)->rules};
    err_code rc = load_all(&l, path, e);
    plan_clear(&l);
    return rc;
}

static void experts_clear(model *m, model_layer *l)
{
    float *vectors[] = {l->choice_bias,    l->expert_bias[0], l->expert_bias[1],
                        l->expert_bias[2], l->expert_scales,  l->beside[0],
                        l->beside[1],      l->beside[2],      l->beside[3]};
    for (size_t k = 0; k < sizeof(vectors) / sizeof(vectors[0]); k++)
        if (vectors[k]) be_free(m->be, vectors[k]);
    if (l->experts_there) be_free(m->be, l->experts_there);
    for (int k = 0; l->expert && k < 3 * m->cfg.experts.route.n; k++)
        if (l->expert[k]) be_weight_destroy(m->be, l->expert[k]);
    free((void *)l->expert);
}

void model_weights_clear(model *m)
{
    model_packed_end(m);
    for (int i = 0; m->layer && i < m->cfg.n_layer; i++) {
        model_layer *l = &m->layer[i];
        for (int p = 0; p < PROJ_COUNT; p++) {
            if (l->w[p]) be_weight_destroy(m->be, l->w[p]);
            if (l->bias[p]) be_free(m->be, l->bias[p]);
        }
        for (int k = 0; k < LAYER_NORMS; k++) {
            if (l->norm[k]) be_free(m->be, l->norm[k]);
            if (l->norm_bias[k]) be_free(m->be, l->norm_bias[k]);
        }
        float *vectors[] = {l->xielu[0],     l->xielu[1],   l->xielu[2],    l->xielu[3],
                            l->sinks,        l->taps[0],    l->taps[1],     l->taps[2],
                            l->taps_bias,    l->decay,      l->dt_bias,     l->skip,
                            l->mix_norm,     l->ple_norm,   l->router_norm, l->laurel_norm,
                            l->stream_scale, l->bc_norm[0], l->bc_norm[1]};
        for (size_t k = 0; k < sizeof(vectors) / sizeof(vectors[0]); k++)
            if (vectors[k]) be_free(m->be, vectors[k]);
        experts_clear(m, l);
        for (int k = 0; l->absorbed && k < 2 * m->cfg.latent.n_head; k++)
            if (l->absorbed[k]) be_weight_destroy(m->be, l->absorbed[k]);
        free((void *)l->absorbed);
    }
    free(m->layer);
    m->layer = NULL;
    if (m->head) be_weight_destroy(m->be, m->head);
    m->head = NULL;
    if (m->out_norm) be_free(m->be, m->out_norm);
    if (m->out_norm_bias) be_free(m->be, m->out_norm_bias);
    if (m->head_bias) be_free(m->be, m->head_bias);
    if (m->positions) be_free(m->be, m->positions);
    m->out_norm = m->out_norm_bias = m->head_bias = m->positions = NULL;
    if (m->ple.norm) be_free(m->be, m->ple.norm);
    m->ple.norm = NULL;
    if (m->ple.table) stored_clear(m->ple.table);
    free(m->ple.table);
    free(m->ple.room);
    m->ple.table = NULL;
    m->ple.room = NULL;
    be_table_destroy(m->be, m->table);
    m->table = NULL;
    if (m->embed_stored) stored_clear(m->embed_stored);
    free(m->embed_stored);
    m->embed_stored = NULL;
    free(m->embed_room);
    free(m->embed_copy);
    m->embed_room = m->embed_copy = NULL;
    model_files_close(m->embed_files);
    m->embed_files = NULL;
    free((void *)(uintptr_t)m->score_head.w);
    m->score_head.w = NULL;
    resident_destroy(m->resident);
    m->resident = NULL;
    model_packed_close(m);
    free(m->rope_divisors);
    m->rope_divisors = NULL;
}
