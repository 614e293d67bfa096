/* mixer_config.c -- the fields of config.json of models whose layers differ: by their mixers
 * (convolution, delta rule, scan), or as Gemma 4's, by their heads and by the layer whose keys
 * and values they read.
 *
 * There are four ways in which files say which mixer a layer has; the family's row (family.h)
 * selects one:
 *
 *     layers_block_type, layer_types    a list with one word per layer         read_types()
 *     full_attention_interval: n        attention in every n-th layer          read_interval()
 *     hybrid_override_pattern: "M*-E"   one letter per layer (Nemotron-H)      read_blocks()
 *     attn_layer_indices, full_attn_idxs   numbers of the attention layers     read_full()
 *
 * The result is model_config.mixer[layer]. The shape of the state that these mixers keep is the
 * same in all of their layers and is read once into model_config.state; the constants of the
 * recurrence go to model_config.delta or .scan. Defaults are those of transformers'
 * configuration classes, since files leave out fields that have them.
 *
 * Every size is bounded before it is multiplied, because config.json comes from strangers. A
 * field whose value the forward pass does not implement is rejected by its name, never ignored.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/family.h"
#include "engine/model/model_inside.h"

enum { FFN_MAX = 1 << 20, HEADS_MAX = 4096, HEAD_DIM_MAX = 4096, PLE_MAX = 1 << 14 };
enum { PLE_VOCAB_MAX = 1 << 22, FULL_DIM_MAX = 1024, RANK_MAX = 1 << 14 };

/* ------------------------------------------------------------------------- layers -- */

/* The list that names each layer; NULL: there is none. */
static const char *types_field(const cJSON *j)
{
    return config_is_set(j, "layers_block_type") ? "layers_block_type"
           : config_is_set(j, "layer_types")     ? "layer_types"
                                                 : NULL;
}

static bool is_word(const cJSON *item, const char *word, const char *other)
{
    return cJSON_IsString(item) && (strcmp(item->valuestring, word) == 0 ||
                                    (other && strcmp(item->valuestring, other) == 0));
}

/* The mixer of each layer, by name.  Scans have an older name and a newer one, and attention beside
 * them. */
static err_code read_types(const cJSON *j, const family_mixer *fm, model_config *c, err *e)
{
    const char *field = types_field(j);
    const cJSON *list = json_get(j, field), *item;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layer)
        return err_set(e, ERR_INPUT, "\"%s\" must name each of the %d layers", field, c->n_layer);
    int layer = 0;
    cJSON_ArrayForEach(item, list)
    {
        bool full = is_word(item, "full_attention", fm->scan ? "attention" : NULL);
        bool own = is_word(item, fm->type, fm->scan ? "linear_attention" : NULL);
        if (!full && !own) return config_refuse(e, j, field);
        c->mixer[layer++] = (uint8_t)(full ? MIXER_ATTENTION : fm->kind);
    }
    return ERR_NONE;
}

/* layer_types from linear_attn_config, which counts layers from 1. */
static err_code kimi_types(cJSON *j, const cJSON *own, err *e)
{
    static const struct {
        const char *list, *type;
    } kinds[] = {{"full_attn_layers", "full_attention"}, {"kda_layers", "linear_attention"}};
    const char *type[MODEL_LAYERS_MAX] = {NULL};
    int n = 0;
    for (int k = 0; k < 2; k++) {
        const cJSON *list = json_get(own, kinds[k].list), *item;
        if (!cJSON_IsArray(list)) return config_refuse(e, own, kinds[k].list);
        cJSON_ArrayForEach(item, list)
        {
            double at = cJSON_IsNumber(item) ? item->valuedouble : 0;
            bool new = at >= 1 && at <= MODEL_LAYERS_MAX &&at == (int)at && !type[(int)at - 1];
            if (!new) return err_set(e, ERR_INPUT, "\"%s\" must hold layers", kinds[k].list);
            type[(int)at - 1] = kinds[k].type;
            n++;
        }
    }
    for (int i = 0; i < n; i++)
        if (!type[i]) return err_set(e, ERR_INPUT, "\"linear_attn_config\" leaves a layer out");
    cJSON *types = cJSON_CreateStringArray(type, n);
    if (types && cJSON_AddItemToObject(j, "layer_types", types)) return ERR_NONE;
    cJSON_Delete(types);
    return err_set(e, ERR_NOMEM, "no memory to read the configuration");
}

err_code kimi_config_rename(cJSON *j, err *e)
{
    static const char *const names[][2] = {{"model_max_length", "max_position_embeddings"},
                                           {"moe_renormalize", "norm_topk_prob"},
                                           {"num_expert_group", "n_group"},
                                           {"num_experts_per_token", "num_experts_per_tok"},
                                           {"num_shared_experts", "n_shared_experts"},
                                           {"moe_router_activation_func", "scoring_func"}};
    static const char *const inner[][2] = {{"head_dim", "linear_head_dim"},
                                           {"num_heads", "linear_num_heads"},
                                           {"short_conv_kernel_size", "linear_conv_kernel_dim"}};
    const cJSON *own = json_get(j, "linear_attn_config");
    err_code rc = ERR_NONE;
    bool nope = true;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !rc; i++)
        rc = config_rename(j, names[i][0], j, names[i][1], e);
    if (!rc) rc = config_flag(j, "mla_use_nope", &nope, e);
    if (!rc && !nope) rc = config_refuse(e, j, "mla_use_nope");
    if (rc || !config_is_set(j, "linear_attn_config")) return rc;
    if (!cJSON_IsObject(own)) return config_refuse(e, j, "linear_attn_config");
    for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]) && !rc; i++)
        rc = config_rename(own, inner[i][0], j, inner[i][1], e);
    return rc || config_is_set(j, "layer_types") ? rc : kimi_types(j, own, e);
}

/* Attention in each so-manieth layer; of OLMo Hybrid at least in the last. */
static err_code read_interval(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    const family_mixer *fm = f->mixer;
    int64_t every = 4;
    err_code rc = json_int(j, "full_attention_interval", 1, INT32_MAX, &every, NULL, e);
    for (int i = 0; i < c->n_layer && !rc; i++) {
        bool full = f->reads & READS_KIMI ? i > 0 && i % every == 0 : (i + 1) % every == 0;
        c->mixer[i] = (uint8_t)(full ? MIXER_ATTENTION : fm->kind);
    }
    if (f->mixer->negative && model_attention_layers(c) == 0)
        c->mixer[c->n_layer - 1] = MIXER_ATTENTION;
    return rc;
}

/* What the letters of hybrid_override_pattern mean, and the words of the list that came after. */
static const struct {
    char letter;
    const char *word, *older;
    uint8_t mixer, layer; /* bits of model_config.layer that stay or come */
} blocks[] = {{'M', "linear_attention", "mamba", MIXER_SCAN, LAYER_NO_MLP},
              {'*', "full_attention", "attention", MIXER_ATTENTION, LAYER_NO_MLP},
              {'-', "mlp", NULL, MIXER_NONE, 0},
              {'E', "moe", NULL, MIXER_NONE, LAYER_EXPERTS}};

enum { BLOCKS = sizeof(blocks) / sizeof(blocks[0]) };

static const char *pattern_of(const cJSON *j)
{
    const cJSON *v = json_get(j, "hybrid_override_pattern");
    return !types_field(j) && cJSON_IsString(v) ? v->valuestring : NULL;
}

int mixer_config_blocks(const cJSON *j, const model_family *f)
{
    if (!f->mixer || !f->mixer->blocks) return 0;
    const char *field = types_field(j), *pattern = pattern_of(j);
    return pattern ? (int)strnlen(pattern, MODEL_LAYERS_MAX + 1)
           : field ? cJSON_GetArraySize(json_get(j, field))
                   : 0;
}

/* Layers that are one block each: a mixer, an MLP, or experts. */
static err_code read_blocks(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    const char *pattern = pattern_of(j);
    const char *field = pattern ? "hybrid_override_pattern" : types_field(j);
    const cJSON *list = field ? json_get(j, field) : NULL;
    if (!field) return err_set(e, ERR_INPUT, "\"layers_block_type\" is missing");
    int head_dim = c->head_dim; /* an older name of head_dim, which transformers does not read */
    err_code rc = config_dimension(j, "attention_head_dim", HEAD_DIM_MAX, &head_dim, e);
    if (rc || head_dim != c->head_dim) return rc ? rc : config_refuse(e, j, "attention_head_dim");
    if (mixer_config_blocks(j, f) != c->n_layer)
        return err_set(e, ERR_INPUT, "\"%s\" must name each of the %d layers", field, c->n_layer);
    for (int i = 0; i < c->n_layer; i++) {
        int b = 0;
        const cJSON *item = pattern ? NULL : cJSON_GetArrayItem(list, i);
        while (b < BLOCKS && !(pattern ? pattern[i] == blocks[b].letter
                                       : is_word(item, blocks[b].word, blocks[b].older)))
            b++;
        if (b == BLOCKS) return config_refuse(e, j, field);
        c->mixer[i] = blocks[b].mixer;
        c->layer[i] = (uint8_t)((c->layer[i] & ~LAYER_EXPERTS) | blocks[b].layer);
    }
    return ERR_NONE;
}

/* A list of the layers with attention; without it all have it, or of scans none. */
static err_code read_full(const cJSON *j, const family_mixer *fm, model_config *c, err *e)
{
    const char *field = fm->reads_indices ? "attn_layer_indices" : "full_attn_idxs";
    const cJSON *list = json_get(j, field), *item;
    bool given = config_is_set(j, field) && (!fm->scan || fm->reads_indices);
    if (given || fm->scan)
        for (int i = 0; i < c->n_layer; i++) c->mixer[i] = (uint8_t)fm->kind;
    if (!given) return ERR_NONE;
    if (!cJSON_IsArray(list)) return config_refuse(e, j, field);
    cJSON_ArrayForEach(item, list)
    {
        double at = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(at >= 0 && at < c->n_layer) || at != (int)at)
            return err_set(e, ERR_INPUT, "\"%s\" must hold layers below %d", field, c->n_layer);
        c->mixer[(int)at] = MIXER_ATTENTION;
    }
    return ERR_NONE;
}

/* ------------------------------------------------------------------------- mixers -- */

/* The width of LFM2's MLP, which its files give as what it would be without a gate. */
static err_code read_block(const cJSON *j, model_config *c, err *e)
{
    bool adjust = true;
    float by = 1;
    int multiple = 256;
    err_code rc = config_dimension(j, "block_ff_dim", FFN_MAX, &c->ffn_dim, e);
    if (!rc) rc = config_flag(j, "block_auto_adjust_ff_dim", &adjust, e);
    if (!rc) rc = config_real(j, "block_ffn_dim_multiplier", 1e-3, 1e3, &by, e);
    if (!rc) rc = config_dimension(j, "block_multiple_of", FFN_MAX, &multiple, e);
    if (rc || !adjust) return rc;
    bool scaled =
        !json_get(j, "block_ffn_dim_multiplier") || config_is_set(j, "block_ffn_dim_multiplier");
    c->ffn_dim = (int)(2.0 * c->ffn_dim / 3);
    if (!scaled) return ERR_NONE;
    double wide = (double)by * c->ffn_dim;
    if (!(wide >= 1 && wide <= FFN_MAX - multiple))
        return config_refuse(e, j, "block_ffn_dim_multiplier");
    c->ffn_dim = ((int)wide + multiple - 1) / multiple * multiple;
    return ERR_NONE;
}

static err_code read_conv(const cJSON *j, bool unadjusted, model_config *c, err *e)
{
    int taps = 3;
    err_code rc = config_dimension(j, "conv_L_cache", MIXER_TAPS_MAX, &taps, e);
    if (!rc && taps < 2) rc = config_refuse(e, j, "conv_L_cache");
    if (!rc) rc = config_flag(j, "conv_bias", &c->conv_bias, e);
    c->in_bias = c->out_bias = c->conv_bias;
    if (!rc) rc = config_flag(j, "tie_embedding", &c->tied, e);
    if (!rc && !unadjusted) rc = read_block(j, c, e);
    c->state = (mixer_shape){.taps = taps, .channels = c->dim};
    return rc;
}

/* One size of heads, one number of them. */
static err_code read_square(const cJSON *j, mixer_shape *s, err *e)
{
    *s = (mixer_shape){.taps = 4, .heads = 32, .rows = 128};
    err_code rc = config_dimension(j, "linear_num_heads", HEADS_MAX, &s->heads, e);
    if (!rc) rc = config_dimension(j, "linear_head_dim", MIXER_SIDE_MAX, &s->rows, e);
    s->groups = s->heads;
    s->cols = s->rows;
    return rc;
}

/* Keys and values of two numbers and two sizes. */
static err_code read_sides(const cJSON *j, const model_config *c, bool apart, mixer_shape *s,
                           err *e)
{
    *s = (mixer_shape){.taps = 4, .heads = 32, .groups = 16, .rows = 128, .cols = 128};
    if (apart) *s = (mixer_shape){.taps = 4, .heads = c->n_head, .groups = c->n_head};
    err_code rc = config_dimension(j, "linear_num_value_heads", HEADS_MAX, &s->heads, e);
    if (!rc) rc = config_dimension(j, "linear_num_key_heads", HEADS_MAX, &s->groups, e);
    if (!rc && apart) s->rows = (int)(0.75 * c->dim / s->groups);
    if (!rc) rc = config_dimension(j, "linear_key_head_dim", MIXER_SIDE_MAX, &s->rows, e);
    if (!rc && apart) s->cols = 2 * s->rows;
    if (!rc) rc = config_dimension(j, "linear_value_head_dim", MIXER_SIDE_MAX, &s->cols, e);
    if (!rc && s->heads % s->groups != 0)
        rc = err_set(
            e, ERR_INPUT,
            "\"linear_num_value_heads\": %d is not a multiple of \"linear_num_key_heads\": %d",
            s->heads, s->groups);
    return rc;
}

static err_code read_delta(const cJSON *j, const family_mixer *fm, model_config *c, err *e)
{
    mixer_shape *s = &c->state;
    bool gated = true, negative = fm->negative;
    err_code rc =
        fm->square ? read_square(j, s, e) : read_sides(j, c, fm->rules.form == DELTA_APART, s, e);
    if (!rc) rc = config_dimension(j, "linear_conv_kernel_dim", MIXER_TAPS_MAX, &s->taps, e);
    if (!rc && s->taps < 2) rc = config_refuse(e, j, "linear_conv_kernel_dim");
    if (!rc) rc = config_flag(j, "attn_output_gate", &gated, e);
    if (!rc && !gated) rc = config_refuse(e, j, "attn_output_gate");
    if (!rc && c->act != ACT_SILU) rc = config_refuse(e, j, "hidden_act"); /* the convolution's */
    if (!rc && negative) rc = config_flag(j, "linear_allow_neg_eigval", &negative, e);
    if (!rc && (s->rows > MIXER_SIDE_MAX || s->cols > MIXER_SIDE_MAX))
        rc = err_set(e, ERR_UNSUPPORTED, "heads of %d x %d values are not supported (at most %d)",
                     s->rows, s->cols, MIXER_SIDE_MAX);
    s->channels = 2 * s->groups * s->rows + s->heads * s->cols;
    c->delta = fm->rules;
    if (negative) c->delta.most *= 2;
    if (fm->square) c->delta.low = s->rows;
    if (c->delta.eps == 0) c->delta.eps = c->norm_eps;
    return rc;
}

/* What all heads of a scan have together. */
static err_code read_inner(const cJSON *j, const family_scan *fs, const model_config *c, int *inner,
                           err *e)
{
    int by = fs->expand_by;
    *inner = fs->inner_size;
    bool none = fs->inner && json_get(j, fs->inner) && !config_is_set(j, fs->inner);
    err_code rc = fs->expand ? config_dimension(j, fs->expand, 64, &by, e) : ERR_NONE;
    if (rc || !fs->expand) return rc;
    if (!fs->inner || none)
        *inner = by * c->dim;
    else
        rc = config_dimension(j, fs->inner, FFN_MAX, inner, e);
    return rc;
}

/* Heads, and what each of them has. */
static err_code read_heads(const cJSON *j, const family_scan *fs, mixer_shape *sh, int inner,
                           err *e)
{
    bool automatic = is_word(json_get(j, fs->cols), "auto", NULL) || !config_is_set(j, fs->cols);
    err_code rc = config_dimension(j, fs->heads, HEADS_MAX, &sh->heads, e);
    if (!rc && !automatic) rc = config_dimension(j, fs->cols, HEAD_DIM_MAX, &sh->cols, e);
    if (rc) return rc;
    if (automatic && sh->cols == 0 && inner > 0) sh->cols = inner / sh->heads;
    if (sh->cols == 0 || (inner > 0 && sh->heads * sh->cols != inner))
        return err_set(e, ERR_INPUT, "\"%s\": %d heads of %d values are not the %d of a layer",
                       fs->heads, sh->heads, sh->cols, inner);
    return ERR_NONE;
}

static err_code read_scan_shape(const cJSON *j, const family_scan *fs, model_config *c, err *e)
{
    mixer_shape *sh = &c->state;
    int inner;
    *sh = fs->shape;
    err_code rc = read_inner(j, fs, c, &inner, e);
    if (!rc) rc = read_heads(j, fs, sh, inner, e);
    if (!rc) rc = config_dimension(j, fs->rows, HEAD_DIM_MAX, &sh->rows, e);
    if (!rc) rc = config_dimension(j, fs->groups, HEADS_MAX, &sh->groups, e);
    if (!rc) rc = config_dimension(j, fs->taps, MIXER_TAPS_MAX, &sh->taps, e);
    if (rc) return rc;
    if (sh->taps < 2) return config_refuse(e, j, fs->taps);
    if (sh->heads % sh->groups != 0)
        return err_set(e, ERR_INPUT, "\"%s\": %d heads are not a multiple of %d groups", fs->groups,
                       sh->heads, sh->groups);
    int64_t all = (int64_t)sh->heads * sh->cols, shared = (int64_t)sh->groups * sh->rows;
    if (2 * (all + shared) + sh->heads > FFN_MAX)
        return err_set(e, ERR_INPUT, "\"%s\": %d heads of %d values exceed %d", fs->heads,
                       sh->heads, sh->cols, FFN_MAX);
    sh->channels = (int)(all + 2 * shared);
    return ERR_NONE;
}

/* A bound of time_step_limit; infinity has three forms. */
static bool read_bound(const cJSON *v, float *out)
{
    if (cJSON_IsObject(v)) v = json_get(v, "__float__");
    bool endless = is_word(v, "Infinity", "Inf");
    if (cJSON_IsNumber(v)) *out = (float)v->valuedouble;
    if (endless) *out = INFINITY;
    return (cJSON_IsNumber(v) || endless) && *out >= 0;
}

static err_code read_steps(const cJSON *j, const family_scan *fs, scan_rules *r, err *e)
{
    static const char field[] = "time_step_limit";
    const cJSON *v = json_get(j, field);
    r->dt_least = 0;
    r->dt_most = INFINITY;
    if (fs->least) {
        r->dt_least = 1e-3F;
        return config_real(j, fs->least, 0, 1e3, &r->dt_least, e);
    }
    if (!config_is_set(j, field)) return ERR_NONE;
    bool two = cJSON_IsArray(v) && cJSON_GetArraySize(v) == 2;
    bool ok = two && read_bound(v->child, &r->dt_least) && read_bound(v->child->next, &r->dt_most);
    return ok && r->dt_least <= r->dt_most ? ERR_NONE : config_refuse(e, j, field);
}

/* Layers with a selective scan. */
static err_code read_scan(const cJSON *j, const family_scan *fs, model_config *c, err *e)
{
    const char *act = "silu";
    scan_rules *r = &c->scan;
    *r = (scan_rules){.normed = true, .eps = c->norm_eps, .by = {1, 1, 1, 1, 1}};
    c->conv_bias = true;
    err_code rc = read_scan_shape(j, fs, c, e);
    if (!rc) rc = config_flag(j, fs->conv_bias, &c->conv_bias, e);
    if (!rc) rc = config_flag(j, fs->in_bias, &c->in_bias, e);
    c->out_bias = !fs->out_bias && c->in_bias;
    if (!rc && fs->out_bias) rc = config_flag(j, fs->out_bias, &c->out_bias, e);
    if (!rc) rc = json_str(j, fs->act, &act, NULL, e);
    if (!rc && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        rc = config_refuse(e, j, fs->act);
    if (!rc && fs->reads_norm) {
        r->normed = false;
        r->norm_first = true;
        rc = config_flag(j, "mamba_rms_norm", &r->normed, e);
        if (!rc) rc = config_flag(j, "mamba_norm_before_gate", &r->norm_first, e);
    }
    return rc ? rc : read_steps(j, fs, r, e);
}

/* Layers with a scan of channels, and which have attention: each so-manieth, counted from an
 * offset. */
static err_code read_channels(const cJSON *j, model_config *c, err *e)
{
    mixer_shape *s = &c->state;
    int64_t every = 8, offset = 4;
    int expand = 2;
    bool automatic = is_word(json_get(j, "mamba_dt_rank"), "auto", NULL);
    *s = (mixer_shape){.taps = 4, .heads = 1, .rows = 16, .groups = 1};
    c->conv_bias = true;
    c->dt_rank = (c->dim + 15) / 16;
    err_code rc = json_int(j, "attn_layer_period", 1, MODEL_LAYERS_MAX, &every, NULL, e);
    if (!rc) rc = json_int(j, "attn_layer_offset", 0, MODEL_LAYERS_MAX, &offset, NULL, e);
    if (!rc) rc = config_dimension(j, "mamba_d_conv", MIXER_TAPS_MAX, &s->taps, e);
    if (!rc && s->taps < 2) rc = config_refuse(e, j, "mamba_d_conv");
    if (!rc) rc = config_dimension(j, "mamba_d_state", MIXER_SIDE_MAX, &s->rows, e);
    if (!rc) rc = config_dimension(j, "mamba_expand", 64, &expand, e);
    if (!rc && !automatic) rc = config_dimension(j, "mamba_dt_rank", FFN_MAX, &c->dt_rank, e);
    if (!rc) rc = config_flag(j, "mamba_conv_bias", &c->conv_bias, e);
    if (!rc) rc = config_flag(j, "mamba_proj_bias", &c->in_bias, e);
    c->out_bias = c->in_bias;
    if (!rc && c->act != ACT_SILU) rc = config_refuse(e, j, "hidden_act"); /* the convolution's */
    for (int i = 0; i < c->n_layer && !rc; i++)
        c->mixer[i] = (uint8_t)(i % every == offset ? MIXER_ATTENTION : MIXER_CHANNELS);
    s->channels = s->cols = expand * c->dim;
    return rc;
}

/* n numbers of a list into out, where it is there. */
static err_code read_list(const cJSON *j, const char *field, int n, float *out, err *e)
{
    const cJSON *list = json_get(j, field), *item = list ? list->child : NULL;
    if (!config_is_set(j, field)) return ERR_NONE;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n) return config_refuse(e, j, field);
    for (int i = 0; i < n; i++, item = item->next) {
        if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 1e6))
            return config_refuse(e, j, field);
        out[i] = (float)item->valuedouble;
    }
    return ERR_NONE;
}

/* Falcon-H1's multipliers.  That of keys multiplies scores. */
static err_code read_falcon(const cJSON *j, model_config *c, err *e)
{
    layer_multipliers *by = &c->by;
    float key = 1, mlp[2] = {1, 1};
    const struct {
        const char *field;
        float *to;
    } fields[] = {{"embedding_multiplier", &c->embed_scale},
                  {"lm_head_multiplier", &c->logit_scale},
                  {"key_multiplier", &key},
                  {"attention_in_multiplier", &by->attn_in},
                  {"attention_out_multiplier", &by->attn_out},
                  {"ssm_in_multiplier", &by->scan_in},
                  {"ssm_out_multiplier", &by->scan_out}};
    err_code rc = ERR_NONE;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++)
        rc = config_real(j, fields[i].field, 1e-6, 1e6, fields[i].to, e);
    if (!rc) rc = read_list(j, "mlp_multipliers", 2, mlp, e);
    if (!rc) rc = read_list(j, "ssm_multipliers", 5, c->scan.by, e);
    c->score_scale *= key;
    by->gate = mlp[0];
    by->down = mlp[1];
    return rc;
}

static err_code read_all(const family_mixer *fm, model_config *c)
{
    for (int i = 0; i < c->n_layer; i++) {
        c->mixer[i] = (uint8_t)fm->kind;
        if (fm->kind != MIXER_BOTH) c->layer[i] |= LAYER_NO_MLP;
    }
    return ERR_NONE;
}

err_code mixer_config_read(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    const family_mixer *fm = f->mixer;
    if (fm->kind == MIXER_CHANNELS) {
        err_code own = read_channels(j, c, e);
        if (!own && model_state_floats(c) == 0) own = config_refuse(e, j, "attn_layer_period");
        return own;
    }
    err_code rc = fm->blocks                             ? read_blocks(j, f, c, e)
                  : fm->all                              ? read_all(fm, c)
                  : types_field(j) && !fm->reads_indices ? read_types(j, fm, c, e)
                  : fm->kind == MIXER_DELTA              ? read_interval(j, f, c, e)
                                                         : read_full(j, fm, c, e);
    if (!rc)
        rc = fm->kind == MIXER_CONV    ? read_conv(j, fm->unadjusted, c, e)
             : fm->kind == MIXER_DELTA ? read_delta(j, fm, c, e)
                                       : read_scan(j, fm->scan, c, e);
    if (!rc && f->reads & READS_FALCON) rc = read_falcon(j, c, e);
    if (!rc && model_state_floats(c) == 0) c->state = (mixer_shape){.taps = 0};
    return rc;
}

/* ------------------------------------------------------------------------ Gemma 4 -- */

static bool is_full(const model_config *c, int layer)
{
    return !(c->layer[layer] & LAYER_WINDOW);
}

/* per_layer_config, as newer files have it: heads of some layers, by number.  All that see
 * everything must have the same, and no others may have any. */
static err_code read_each(const cJSON *list, model_config *c, err *e)
{
    static const char field[] = "per_layer_config";
    const cJSON *item, *v, *first = list->child;
    int full = 0;
    for (int i = 0; i < c->n_layer; i++) full += is_full(c, i);
    if (!cJSON_IsObject(list) || cJSON_GetArraySize(list) != full)
        return err_set(e, ERR_UNSUPPORTED,
                       "\"%s\" must be an object for the %d layers of full attention", field, full);
    cJSON_ArrayForEach(item, list)
    {
        int at = -1, end = 0;
        bool number = sscanf(item->string, "%6d%n", &at, &end) == 1 && !item->string[end];
        if (!number || at < 0 || at >= c->n_layer || !is_full(c, at) || !cJSON_IsObject(item))
            return err_set(e, ERR_UNSUPPORTED,
                           "\"%s\": \"%.16s\" is not a layer of full attention with an object",
                           field, item->string);
        if (!cJSON_Compare(item, first, true))
            return err_set(e, ERR_UNSUPPORTED, "\"%s\" must be the same for all layers", field);
        cJSON_ArrayForEach(v, item)
        {
            bool known =
                strcmp(v->string, "head_dim") == 0 || strcmp(v->string, "num_key_value_heads") == 0;
            if (!known) return config_refuse(e, item, v->string);
        }
    }
    if (!first) return ERR_NONE;
    err_code rc = config_dimension(first, "head_dim", FULL_DIM_MAX, &c->full_head_dim, e);
    if (!rc) rc = config_dimension(first, "num_key_value_heads", HEADS_MAX, &c->full_kv_head, e);
    return rc ? err_context(e, "\"%s\"", field) : rc;
}

/* Heads of layers that see everything. */
static err_code read_full_heads(const cJSON *j, model_config *c, err *e)
{
    c->full_head_dim = 512;
    c->full_kv_head = c->n_kv_head;
    err_code rc = config_flag(j, "attention_k_eq_v", &c->full_k_is_v, e);
    if (rc) return rc;
    if (config_is_set(j, "per_layer_config")) {
        c->full_head_dim = c->head_dim;
        rc = read_each(json_get(j, "per_layer_config"), c, e);
    } else {
        rc = config_dimension(j, "global_head_dim", FULL_DIM_MAX, &c->full_head_dim, e);
        int heads = c->n_kv_head;
        if (!rc) rc = config_dimension(j, "num_global_key_value_heads", HEADS_MAX, &heads, e);
        if (c->full_k_is_v) c->full_kv_head = heads;
    }
    if (rc) return rc;
    if (c->full_head_dim % 2 != 0)
        return err_set(e, ERR_UNSUPPORTED, "\"global_head_dim\": %d is not supported (even alone)",
                       c->full_head_dim);
    if (c->n_head % c->full_kv_head != 0)
        return err_set(e, ERR_INPUT,
                       "\"num_attention_heads\": %d is not a multiple of the %d of "
                       "\"num_global_key_value_heads\"",
                       c->n_head, c->full_kv_head);
    return ERR_NONE;
}

/* The last layers read keys and values of the last one before them that sees as much. */
static err_code read_shared(const cJSON *j, model_config *c, err *e)
{
    static const char field[] = "num_kv_shared_layers";
    int64_t n = c->streams.n ? 15 : 0, most = c->streams.n ? MODEL_LAYERS_MAX : c->n_layer - 1;
    bool wide = false, own[2] = {false, false};
    err_code rc = json_int(j, field, 0, most, &n, NULL, e);
    if (n >= c->n_layer) n = 0; /* as transformers has it */
    if (!rc) rc = config_flag(j, "use_double_wide_mlp", &wide, e);
    for (int i = 0; i < c->n_layer && !rc; i++) {
        bool shares = i >= c->n_layer - (int)n;
        own[is_full(c, i)] |= !shares;
        if (!shares) continue;
        if (!own[is_full(c, i)])
            return err_set(e, ERR_INPUT,
                           "\"%s\": with %d, layer %d has no earlier layer whose keys it can read",
                           field, (int)n, i);
        c->layer[i] |= LAYER_SHARES_KV | (wide ? LAYER_WIDE : 0);
    }
    return rc;
}

/* Inputs of each layer's own; 0 or null: there are none. */
static err_code read_inputs(const cJSON *j, model_config *c, err *e)
{
    static const char field[] = "hidden_size_per_layer_input";
    int64_t dim = config_is_set(j, field) || !json_get(j, field) ? 256 : 0;
    c->ple_vocab = 262144;
    err_code rc = json_int(j, field, 0, PLE_MAX, &dim, NULL, e);
    if (!rc)
        rc = config_dimension(j, "vocab_size_per_layer_input", PLE_VOCAB_MAX, &c->ple_vocab, e);
    c->ple_dim = (int)dim;
    if (!c->ple_dim) c->ple_vocab = 0;
    if (!rc && c->ple_dim && c->ple_vocab < c->n_vocab && !c->streams.n)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "\"vocab_size_per_layer_input\": %d is less than \"vocab_size\": %d",
                     c->ple_vocab, c->n_vocab);
    return rc;
}

/* Standard deviations above the mean, above which such a share of a normal distribution is not. */
static double quantile(double share)
{
    double low = -8, high = 8;
    for (int i = 0; i < 100; i++) {
        double at = (low + high) / 2;
        *(erfc(-at / sqrt(2)) / 2 < share ? &low : &high) = at;
    }
    return (low + high) / 2;
}

/* Which layers' gates are sparse: those whose share is not 0; all of them have the same. */
static err_code read_sparsity(const cJSON *j, model_config *c, err *e)
{
    static const char field[] = "activation_sparsity_pattern";
    const cJSON *list = json_get(j, field), *item = list ? list->child : NULL;
    bool given = config_is_set(j, field);
    double share = 0;
    if (given && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layer))
        return err_set(e, ERR_INPUT, "\"%s\" must have a number for each of the %d layers", field,
                       c->n_layer);
    for (int i = 0; i < c->n_layer; i++, item = item ? item->next : NULL) {
        double v = c->n_layer > 10 && i < 10 ? 0.95 : 0; /* the class's own */
        if (given) v = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(v >= 0 && v < 1))
            return err_set(e, ERR_INPUT, "\"%s\" must hold numbers from 0, below 1", field);
        if (v > 0 && share > 0 && v != share) return config_refuse(e, j, field);
        if (v == 0) continue;
        share = v;
        c->layer[i] |= LAYER_SPARSE;
    }
    if (share > 0) c->streams.sparse_by = (float)quantile(share);
    return ERR_NONE;
}

err_code gemma3n_config_read(const cJSON *j, model_config *c, err *e)
{
    streams_config *s = &c->streams;
    int64_t active = 0;
    *s = (streams_config){.n = 4, .laurel = 64, .scaled = true};
    c->v_unit = true;
    err_code rc = config_dimension(j, "altup_num_inputs", STREAMS_MAX, &s->n, e);
    if (!rc) rc = json_int(j, "altup_active_idx", 0, STREAMS_MAX, &active, NULL, e);
    if (!rc && active != 0) rc = config_refuse(e, j, "altup_active_idx");
    if (!rc && (s->n < 2 || s->n > c->n_layer)) rc = config_refuse(e, j, "altup_num_inputs");
    if (!rc) rc = config_dimension(j, "laurel_rank", RANK_MAX, &s->laurel, e);
    if (!rc) rc = config_flag(j, "altup_correct_scale", &s->scaled, e);
    if (!rc) rc = read_sparsity(j, c, e);
    if (!rc) rc = read_shared(j, c, e);
    if (!rc) rc = read_inputs(j, c, e);
    if (!rc && !c->ple_dim) rc = config_refuse(e, j, "hidden_size_per_layer_input");
    return rc;
}

err_code gemma_config_read(const cJSON *j, model_config *c, err *e)
{
    const char *both_ways = NULL; /* of images alone, or of all tokens */
    int last = c->n_layer - 1;
    c->v_unit = c->layer_scaled = true;
    c->layer[last] = (uint8_t)(c->layer[last] & ~LAYER_WINDOW);
    bool any = false;
    for (int i = 0; i < c->n_layer; i++) any |= !is_full(c, i);
    if (!any) c->window = 0;
    err_code rc = json_str(j, "use_bidirectional_attention", &both_ways, NULL, e);
    if (!rc && both_ways && strcmp(both_ways, "vision") != 0)
        rc = config_refuse(e, j, "use_bidirectional_attention");
    if (!rc) rc = read_full_heads(j, c, e);
    if (!rc) rc = read_shared(j, c, e);
    return rc ? rc : read_inputs(j, c, e);
}
