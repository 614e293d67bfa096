/* model_config.c -- config.json and generation_config.json, as transformers writes them.
 *
 * Reads the fields that change the arithmetic, under their old and their new names, with the
 * defaults of each family's configuration class.  A value that this engine would compute wrongly
 * is refused with the field's name: a model that answers slightly wrong is the worst outcome.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/files/documents.h"
#include "engine/model/family.h"
#include "engine/model/model_inside.h"
#include "engine/model/quant.h"
#include "engine/sample/bars.h"

enum {
    DIM_MAX = 1 << 17,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 1024,
    FFN_MAX = 1 << 20,
    VOCAB_MAX = 1 << 22,
    POS_MAX = 1 << 22,
};

/* A bit of no family's row: it has experts. */
enum { READS_EXPERTS = 1 << 30 };

/* --------------------------------------------------------------------------- fields -- */

bool config_is_set(const cJSON *obj, const char *name)
{
    const cJSON *v = json_get(obj, name);
    return v && !cJSON_IsNull(v);
}

/* "field": value, for messages. */
err_code config_refuse(err *e, const cJSON *obj, const char *name)
{
    char *text = cJSON_PrintUnformatted(json_get(obj, name));
    err_code rc =
        err_set(e, ERR_UNSUPPORTED, "\"%s\": %.96s is not supported", name, text ? text : "?");
    cJSON_free(text);
    return rc;
}

/* A dimension; required when *out is 0 on entry. */
err_code config_dimension(const cJSON *obj, const char *name, int max, int *out, err *e)
{
    int64_t v = *out;
    err_code rc = json_int(obj, name, 1, max, &v, NULL, e);
    if (rc) return rc;
    if (v == 0) return err_set(e, ERR_INPUT, "\"%s\" is missing", name);
    *out = (int)v;
    return ERR_NONE;
}

err_code config_real(const cJSON *obj, const char *name, double lo, double hi, float *out, err *e)
{
    double v = (double)*out;
    err_code rc = json_num(obj, name, lo, hi, &v, NULL, e);
    *out = (float)v;
    return rc;
}

err_code config_flag(const cJSON *obj, const char *name, bool *out, err *e)
{
    return json_bool(obj, name, out, NULL, e);
}

/* ---------------------------------------------------------------------------- parts -- */

/* The one of architectures; NULL: there is none, or several. */
static const char *architecture_of(const cJSON *j)
{
    const cJSON *archs = json_get(j, "architectures");
    const cJSON *first = cJSON_IsArray(archs) ? archs->child : NULL;
    return first && !first->next && cJSON_IsString(first) ? first->valuestring : NULL;
}

/* "Qwen3ForCausalLM" with another ending: "Model", "ForSequenceClassification". */
static bool is_variant(const char *have, const char *causal, const char *ending)
{
    const char *cut = causal && have ? strstr(causal, "ForCausalLM") : NULL;
    size_t n = cut ? (size_t)(cut - causal) : 0;
    return cut && strncmp(have, causal, n) == 0 && strcmp(have + n, ending) == 0;
}

/* architectures, where given, is the one of the family, or its body alone or under a head of
 * classes. */
static err_code check_architecture(const cJSON *j, const char *want, err *e)
{
    if (!config_is_set(j, "architectures")) return ERR_NONE;
    const char *have = architecture_of(j);
    bool is = have && want &&
              (strcmp(have, want) == 0 || is_variant(have, want, "Model") ||
               is_variant(have, want, "ForSequenceClassification"));
    return is ? ERR_NONE : config_refuse(e, j, "architectures");
}

static err_code unknown_type(const char *type, err *e)
{
    char names[400];
    family_names(names, sizeof(names));
    return err_set(e, ERR_UNSUPPORTED, "\"model_type\": \"%.64s\" is not supported (%s are)", type,
                   names);
}

/* What a wrapper says for its text part, too: into it, where it does not say it itself. */
static err_code inherit(const cJSON *outer, cJSON *text, err *e)
{
    static const char *const fields[] = {"dtype",        "torch_dtype", "bos_token_id",
                                         "eos_token_id", "is_causal",   "quantization_config"};
    cJSON_DeleteItemFromObjectCaseSensitive(text, "architectures");
    if (config_is_set(outer, "tie_word_embeddings"))
        cJSON_DeleteItemFromObjectCaseSensitive(text, "tie_word_embeddings");
    bool ok = true;
    for (size_t i = 0; i <= sizeof(fields) / sizeof(fields[0]); i++) {
        const char *name =
            i < sizeof(fields) / sizeof(fields[0]) ? fields[i] : "tie_word_embeddings";
        if (!config_is_set(outer, name) || config_is_set(text, name)) continue;
        cJSON_DeleteItemFromObjectCaseSensitive(text, name);
        cJSON *copy = cJSON_Duplicate(json_get(outer, name), true);
        ok &= cJSON_AddItemToObject(text, name, copy) != 0;
    }
    return ok ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory to read the configuration");
}

/* The family, and in *text the part of the configuration that is about it: all, or a wrapper's
 * text_config (of old files of Qwen2.5-VL: again all). */
static err_code find_family(cJSON *j, const model_family **out, cJSON **text, bool *wrapped, err *e)
{
    const char *type = NULL;
    *text = j;
    err_code rc = json_str(j, "model_type", &type, NULL, e);
    if (rc) return rc;
    if (!type) return err_set(e, ERR_INPUT, "\"model_type\" is missing");
    const model_wrapper *w = wrapper_find(type);
    *wrapped = w != NULL;
    *out = w ? family_find(w->text) : family_find(type);
    if (!*out || (!w && !(*out)->architecture)) return unknown_type(type, e);
    if (!w) return check_architecture(j, (*out)->architecture, e);
    rc = check_architecture(j, w->architecture, e);
    if (rc || !config_is_set(j, "text_config")) return rc;
    *text = cJSON_GetObjectItemCaseSensitive(j, "text_config");
    if (!cJSON_IsObject(*text)) return err_set(e, ERR_INPUT, "\"text_config\" must be an object");
    const char *inner = w->text;
    rc = json_str(*text, "model_type", &inner, NULL, e);
    if (rc) return rc;
    if (strcmp(inner, w->text) != 0) return unknown_type(inner, e);
    return inherit(j, *text, e);
}

static err_code read_kv_heads(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    c->n_kv_head = f->n_kv_head ? f->n_kv_head : c->n_head;
    if (json_get(j, "num_key_value_heads") && !config_is_set(j, "num_key_value_heads"))
        c->n_kv_head = c->n_head; /* null: no grouping */
    err_code rc = config_dimension(j, "num_key_value_heads", HEADS_MAX, &c->n_kv_head, e);
    if (!rc && c->n_head % c->n_kv_head != 0)
        rc = err_set(e, ERR_INPUT,
                     "\"num_attention_heads\": %d is no multiple of \"num_key_value_heads\": %d",
                     c->n_head, c->n_kv_head);
    return rc;
}

/* Attention over latents: each head has keys and values of its own, made of one latent; no latent
 * of queries where q_lora_rank is null. */
static err_code read_latent(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    latent_shape *l = &c->latent;
    *l = f->latent;
    if (l->rank == 0) return ERR_NONE;
    c->q_rank = f->q_rank;
    if (json_get(j, "q_lora_rank") && !config_is_set(j, "q_lora_rank")) c->q_rank = 0;
    err_code rc = config_dimension(j, "kv_lora_rank", DIM_MAX, &l->rank, e);
    if (!rc && c->q_rank) rc = config_dimension(j, "q_lora_rank", DIM_MAX, &c->q_rank, e);
    if (!rc) rc = config_dimension(j, "qk_nope_head_dim", HEAD_DIM_MAX, &l->nope, e);
    if (!rc) rc = config_dimension(j, "qk_rope_head_dim", HEAD_DIM_MAX, &l->rope, e);
    if (!rc) rc = config_dimension(j, "v_head_dim", HEAD_DIM_MAX, &l->v, e);
    if (rc) return rc;
    if (c->n_kv_head != c->n_head) return config_refuse(e, j, "num_key_value_heads");
    if (l->rope % 2 != 0) return config_refuse(e, j, "qk_rope_head_dim");
    l->n_head = c->n_head;
    c->head_dim = l->nope + l->rope;
    int most = c->head_dim > l->nope + l->v ? c->head_dim : l->nope + l->v;
    if ((int64_t)c->n_head * most > FFN_MAX)
        return err_set(e, ERR_INPUT, "%d heads of %d values exceed %d", c->n_head, most, FFN_MAX);
    return ERR_NONE;
}

static err_code read_head_dim(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    c->head_dim = f->head_dim;
    if (!c->head_dim && !config_is_set(j, "head_dim")) {
        if (c->dim % c->n_head != 0)
            return err_set(e, ERR_INPUT,
                           "\"hidden_size\": %d is no multiple of \"num_attention_heads\": %d",
                           c->dim, c->n_head);
        c->head_dim = c->dim / c->n_head;
    }
    err_code rc = config_dimension(j, "head_dim", HEAD_DIM_MAX, &c->head_dim, e);
    if (rc) return rc;
    if (c->head_dim > HEAD_DIM_MAX || c->head_dim % 2 != 0)
        return err_set(e, ERR_UNSUPPORTED, "\"head_dim\": %d is not supported (even, at most %d)",
                       c->head_dim, HEAD_DIM_MAX);
    if ((int64_t)c->n_head * c->head_dim > FFN_MAX)
        return err_set(e, ERR_INPUT, "%d heads of %d values exceed %d", c->n_head, c->head_dim,
                       FFN_MAX);
    return ERR_NONE;
}

static err_code read_shape(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    c->n_layer = f->n_layer;
    c->dim = f->dim;
    c->n_head = f->n_head;
    c->ffn_dim = f->ffn_dim;
    c->n_vocab = f->n_vocab;
    c->max_pos = f->max_pos;
    err_code rc = config_dimension(j, "num_hidden_layers", MODEL_LAYERS_MAX, &c->n_layer, e);
    if (!rc) rc = config_dimension(j, "hidden_size", DIM_MAX, &c->dim, e);
    if (!rc) rc = config_dimension(j, "num_attention_heads", HEADS_MAX, &c->n_head, e);
    const char *ffn = f->ffn_field ? f->ffn_field : "intermediate_size";
    if (!rc) rc = config_dimension(j, ffn, FFN_MAX, &c->ffn_dim, e);
    if (!rc) rc = config_dimension(j, "vocab_size", VOCAB_MAX, &c->n_vocab, e);
    if (!rc) rc = config_dimension(j, "max_position_embeddings", POS_MAX, &c->max_pos, e);
    if (!rc) rc = read_kv_heads(j, f, c, e);
    if (!rc) rc = read_latent(j, f, c, e);
    return rc || c->latent.rank ? rc : read_head_dim(j, f, c, e);
}

/* ------------------------------------------------------------------------- layers -- */

static void set_window(model_config *c, int layer, bool on)
{
    c->layer[layer] =
        (uint8_t)(on ? c->layer[layer] | LAYER_WINDOW : c->layer[layer] & ~LAYER_WINDOW);
}

/* layer_types names each layer; *given: it is there. */
static err_code read_layer_types(const cJSON *j, const model_family *f, model_config *c,
                                 bool *given, err *e)
{
    const char *some = f->reads & READS_CHUNKS ? "chunked_attention" : "sliding_attention";
    *given = config_is_set(j, "layer_types");
    if (!*given) return ERR_NONE;
    const cJSON *list = json_get(j, "layer_types"), *item;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layer)
        return err_set(e, ERR_INPUT, "\"layer_types\" must name each of the %d layers", c->n_layer);
    int layer = 0;
    cJSON_ArrayForEach(item, list)
    {
        bool full = cJSON_IsString(item) && strcmp(item->valuestring, "full_attention") == 0;
        bool slides = cJSON_IsString(item) && strcmp(item->valuestring, some) == 0;
        if (!full && !slides) return config_refuse(e, j, "layer_types");
        set_window(c, layer++, slides);
    }
    return ERR_NONE;
}

/* Which layers slide where layer_types does not say it: the first max_window_layers see everything
 * (Qwen), each every-th one does (Gemma), or none. */
static err_code default_layers(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    bool on = !(f->reads & READS_WINDOW_SWITCH);
    int64_t full = 28, every = f->window_every;
    err_code rc = ERR_NONE;
    if (!on) rc = config_flag(j, "use_sliding_window", &on, e);
    if (!rc) rc = json_int(j, "max_window_layers", 0, INT32_MAX, &full, NULL, e);
    if (!rc && f->window_every_field)
        rc = json_int(j, f->window_every_field, 1, INT32_MAX, &every, NULL, e);
    if (rc) return rc;
    for (int i = 0; i < c->n_layer; i++) {
        bool slides = on;
        if (f->reads & READS_WINDOW_SWITCH) slides = on && i >= full;
        if (every) slides = (i + 1) % every != 0;
        set_window(c, i, slides);
    }
    return ERR_NONE;
}

static err_code read_window(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    int64_t window = f->window;
    bool given = false, any = false;
    const char *field = f->reads & READS_CHUNKS ? "attention_chunk_size" : "sliding_window";
    if (json_get(j, field) && !config_is_set(j, field)) window = 0;
    err_code rc = f->no_window ? ERR_NONE : json_int(j, field, 1, POS_MAX, &window, NULL, e);
    if (!rc && window > 0) rc = default_layers(j, f, c, e);
    if (!rc) rc = read_layer_types(j, f, c, &given, e);
    if (rc) return rc;
    for (int i = 0; i < c->n_layer; i++) any |= c->layer[i] & LAYER_WINDOW;
    if (any && window == 0)
        return err_set(e, ERR_INPUT, "\"layer_types\" ask for a \"%s\" that is not given", field);
    c->chunked = f->reads & READS_CHUNKS;
    c->window = any ? (int)window : 0;
    return ERR_NONE;
}

/* Which layers know no positions: SmolLM3 lists those that do, Cohere 2 turns windowed ones. */
static err_code read_no_rope(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    int64_t every = 4;
    bool on = false;
    for (int i = 0; f->window_turns && i < c->n_layer; i++)
        if (!(c->layer[i] & LAYER_WINDOW)) c->layer[i] |= LAYER_NO_ROPE;
    if (!(f->reads & READS_NO_ROPE)) return ERR_NONE;
    err_code rc = config_flag(j, "use_sliding_window", &on, e);
    if (!rc && on) rc = config_refuse(e, j, "use_sliding_window");
    if (!rc) rc = json_int(j, "no_rope_layer_interval", 1, INT32_MAX, &every, NULL, e);
    if (rc) return rc;
    const cJSON *list = config_is_set(j, "no_rope_layers") ? json_get(j, "no_rope_layers") : NULL;
    bool chunks = f->reads & READS_CHUNKS; /* where an empty list means none, too */
    if (list && chunks && cJSON_IsArray(list) && !list->child) list = NULL;
    if (list && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layer))
        return err_set(e, ERR_INPUT,
                       "\"no_rope_layers\" must have a number for each of the %d "
                       "layers",
                       c->n_layer);
    const cJSON *item = list ? list->child : NULL;
    for (int i = 0; i < c->n_layer; i++, item = item ? item->next : NULL) {
        bool turns = (i + 1) % every != 0;
        if (item && (!cJSON_IsNumber(item) || (item->valuedouble != 0 && item->valuedouble != 1)))
            return err_set(e, ERR_INPUT, "\"no_rope_layers\" must hold zeros and ones");
        if (item) turns = item->valuedouble != 0;
        if (!turns) c->layer[i] |= LAYER_NO_ROPE;
    }
    bool any = false;
    for (int i = 0; i < c->n_layer; i++) {
        bool full = chunks && c->layer[i] & LAYER_NO_ROPE && !config_is_set(j, "layer_types");
        if (full) set_window(c, i, false);
        any |= c->layer[i] & LAYER_WINDOW;
    }
    if (!any) c->window = 0;
    return ERR_NONE;
}

/* ---------------------------------------------------------------------- experts -- */

/* Layers of one MLP among those of experts: all but each decoder_sparse_step-th, and those that
 * mlp_only_layers lists. */
static err_code read_dense_layers(const cJSON *j, model_config *c, err *e)
{
    int64_t every = 1;
    err_code rc = json_int(j, "decoder_sparse_step", 1, INT32_MAX, &every, NULL, e);
    if (rc) return rc;
    for (int i = 0; i < c->n_layer; i++)
        if ((i + 1) % every != 0) c->layer[i] &= (uint8_t)~LAYER_EXPERTS;
    if (!config_is_set(j, "mlp_only_layers")) return ERR_NONE;
    const cJSON *list = json_get(j, "mlp_only_layers"), *item;
    if (!cJSON_IsArray(list)) return config_refuse(e, j, "mlp_only_layers");
    cJSON_ArrayForEach(item, list)
    {
        double at = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(at >= 0 && at < c->n_layer) || floor(at) != at)
            return err_set(e, ERR_INPUT, "\"mlp_only_layers\" must hold layers below %d",
                           c->n_layer);
        c->layer[(int)at] &= (uint8_t)~LAYER_EXPERTS;
    }
    return ERR_NONE;
}

/* Groups of experts, and the factor of all weights. */
static err_code read_groups(const cJSON *j, const family_experts *fx, expert_route *x, err *e)
{
    const char *method = fx->route.n_group ? fx->topk_method : "greedy", *scoring = fx->scoring;
    err_code rc = json_str(j, "topk_method", &method, NULL, e);
    if (!rc) rc = json_str(j, "scoring_func", &scoring, NULL, e);
    if (!rc) rc = config_real(j, "routed_scaling_factor", 1e-6, 1e6, &x->scale, e);
    if (rc) return rc;
    bool groups = strcmp(method, fx->topk_method) == 0;
    if (!groups && (fx->route.n_group || strcmp(method, "greedy") != 0))
        return config_refuse(e, j, "topk_method");
    if (strcmp(scoring, fx->scoring) != 0) return config_refuse(e, j, "scoring_func");
    bool norm = false; /* transformers does not look at it where the weights are never normed */
    if (!fx->reads_norm) rc = config_flag(j, "norm_topk_prob", &norm, e);
    if (!rc && norm) rc = config_refuse(e, j, "norm_topk_prob");
    if (rc || !groups) return rc;
    rc = config_dimension(j, "n_group", EXPERTS_MAX, &x->n_group, e);
    if (!rc) rc = config_dimension(j, "topk_group", EXPERTS_MAX, &x->top_group, e);
    if (rc) return rc;
    int each = x->n_group > 0 ? x->n / x->n_group : 0;
    if (each == 0 || x->n % x->n_group != 0 || each < x->group_best)
        return err_set(e, ERR_INPUT, "\"n_group\": %d groups of %d experts", x->n_group, x->n);
    if (x->top_group > x->n_group || x->top_k > x->top_group * each)
        return err_set(e, ERR_INPUT, "\"topk_group\": %d of %d groups, for %d experts of a row",
                       x->top_group, x->n_group, x->top_k);
    return ERR_NONE;
}

/* The first layers that have one MLP; and experts in every layer behind them. */
static err_code read_first_dense(const cJSON *j, const family_experts *fx, model_config *c, err *e)
{
    int64_t dense = fx->n_first_dense, every = 1;
    err_code rc = json_int(j, fx->first_dense, 0, INT32_MAX, &dense, NULL, e);
    if (!rc) rc = json_int(j, "moe_layer_freq", 1, INT32_MAX, &every, NULL, e);
    if (!rc && every != 1) rc = config_refuse(e, j, "moe_layer_freq");
    for (int i = 0; i < c->n_layer && i < dense; i++) c->layer[i] &= (uint8_t)~LAYER_EXPERTS;
    return rc;
}

/* Which layers have experts: a list, or each so-manieth. */
static err_code read_moe_layers(const cJSON *j, model_config *c, err *e)
{
    int64_t every = 1;
    err_code rc = json_int(j, "interleave_moe_layer_step", 1, INT32_MAX, &every, NULL, e);
    const cJSON *list = json_get(j, "moe_layers"), *item;
    bool given = list && !cJSON_IsNull(list);
    if (rc) return rc;
    if (given && !cJSON_IsArray(list)) return config_refuse(e, j, "moe_layers");
    for (int i = 0; i < c->n_layer; i++)
        if (given || (i + 1) % every != 0) c->layer[i] &= (uint8_t)~LAYER_EXPERTS;
    cJSON_ArrayForEach(item, list)
    {
        double at = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(at >= 0 && at < c->n_layer) || floor(at) != at)
            return err_set(e, ERR_INPUT, "\"moe_layers\" must hold layers below %d", c->n_layer);
        c->layer[(int)at] |= LAYER_EXPERTS;
    }
    return ERR_NONE;
}

/* How many experts there are has two names; where both are given they agree. */
static err_code read_expert_count(const cJSON *j, const char *field, expert_route *x, err *e)
{
    int first = x->n;
    if (!field) field = "num_experts";
    err_code rc = config_dimension(j, field, EXPERTS_MAX, &x->n, e);
    if (!rc && config_is_set(j, field)) first = x->n;
    if (!rc) rc = config_dimension(j, "num_local_experts", EXPERTS_MAX, &x->n, e);
    if (rc) return rc;
    if (config_is_set(j, field) && x->n != first) return config_refuse(e, j, "num_local_experts");
    rc = config_dimension(j, "num_experts_per_tok", EXPERTS_MAX, &x->top_k, e);
    if (!rc && x->top_k > x->n)
        rc = err_set(e, ERR_INPUT, "\"num_experts_per_tok\": %d of %d experts", x->top_k, x->n);
    return rc;
}

static err_code read_experts(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    const family_experts *fx = f->experts;
    experts_config *x = &c->experts;
    bool slides = false;
    if (!fx) return ERR_NONE;
    *x = (experts_config){.route = fx->route,
                          .ffn_dim = fx->ffn_dim,
                          .shared_dim = fx->shared_dim,
                          .biased = fx->biased,
                          .alternate = fx->alternate};
    if (x->route.scale == 0) x->route.scale = 1;
    for (int i = 0; i < c->n_layer; i++) c->layer[i] |= LAYER_EXPERTS;
    err_code rc = read_expert_count(j, fx->n_field, &x->route, e);
    if (!fx->ffn_field) x->ffn_dim = c->ffn_dim;
    if (!rc && fx->ffn_field) rc = config_dimension(j, fx->ffn_field, FFN_MAX, &x->ffn_dim, e);
    if (!rc && fx->shared_dim)
        rc = config_dimension(j, "shared_expert_intermediate_size", FFN_MAX, &x->shared_dim, e);
    int n_shared = fx->n_shared;
    if (!rc && n_shared) rc = config_dimension(j, "n_shared_experts", EXPERTS_MAX, &n_shared, e);
    if (!rc && n_shared && x->ffn_dim > FFN_MAX / n_shared)
        rc = err_set(e, ERR_INPUT, "\"n_shared_experts\": %d of %d values", n_shared, x->ffn_dim);
    if (!rc && n_shared) x->shared_dim = n_shared * x->ffn_dim;
    if (!rc && fx->reads_groups) rc = read_groups(j, fx, &x->route, e);
    if (!rc && fx->reads_layers) rc = read_moe_layers(j, c, e);
    if (!rc && fx->first_dense) rc = read_first_dense(j, fx, c, e);
    if (!rc && fx->reads_norm) rc = config_flag(j, "norm_topk_prob", &x->route.normed, e);
    if (!rc && fx->some_dense) rc = read_dense_layers(j, c, e);
    if (!rc && f->no_window) rc = config_flag(j, "use_sliding_window", &slides, e);
    if (!rc && slides) rc = config_refuse(e, j, "use_sliding_window");
    return rc;
}

/* ------------------------------------------------------------------------ flags -- */

static err_code read_biases(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    bool bias = f->bias_default, mlp_bias = false;
    const char *field = f->bias_field ? f->bias_field : "attention_bias";
    err_code rc = config_flag(j, field, &bias, e);
    if (!rc) rc = config_flag(j, "mlp_bias", &mlp_bias, e);
    if (rc) return rc;
    if (mlp_bias && !(f->reads & READS_MLP_BIAS)) return config_refuse(e, j, "mlp_bias");
    if (bias && !f->bias_field && !f->qkv_bias) return config_refuse(e, j, field);
    c->qkv_bias = f->qkv_bias || (f->bias_field && bias);
    c->o_bias = f->bias_field && f->o_bias && bias;
    c->mlp_bias = mlp_bias || (f->mlp_bias && bias);
    return ERR_NONE;
}

static err_code read_activation(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    const char *act = f->act;
    err_code rc = json_str(j, f->act_field, &act, NULL, e);
    if (rc) return rc;
    if (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0)
        c->act = ACT_SILU;
    else if (strcmp(act, "gelu_pytorch_tanh") == 0)
        c->act = ACT_GELU_TANH;
    else
        return config_refuse(e, j, f->act_field);
    c->experts.act = f->experts && f->experts->clamped ? ACT_SWIGLU_CLAMPED : c->act;
    return ERR_NONE;
}

/* Present and not null: the weights or the arithmetic are not what the family's row says. */
static err_code check_unsupported(const cJSON *j, const model_family *f, const model_config *c,
                                  err *e)
{
    static const struct {
        const char *field;
        unsigned reads;
    } fields[] = {{"compression_config", 0},
                  {"attention_chunk_size", READS_CHUNKS},
                  {"attn_logit_softcapping", READS_SCORE_CAP},
                  {"final_logit_softcapping", READS_LOGIT_CAP},
                  {"num_experts", READS_EXPERTS},
                  {"num_local_experts", READS_EXPERTS},
                  {"clip_qkv", 0},
                  {"embedding_multiplier", READS_MULTIPLIERS},
                  {"residual_multiplier", READS_MULTIPLIERS},
                  {"attention_multiplier", READS_MULTIPLIERS},
                  {"logits_scaling", READS_MULTIPLIERS},
                  {"logit_scale", READS_LOGIT_SCALE},
                  {"no_rope_layers", READS_NO_ROPE},
                  {"swiglu_limit", READS_SWIGLU_LIMIT},
                  {"attention_sinks", 0}};
    unsigned reads = f->reads | (f->experts ? READS_EXPERTS : 0U);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (config_is_set(j, fields[i].field) && !(reads & fields[i].reads))
            return config_refuse(e, j, fields[i].field);
    float limit = 7;
    err_code rc = config_real(j, "swiglu_limit", 0, 1e6, &limit, e);
    if (!rc && limit != 7) rc = config_refuse(e, j, "swiglu_limit");
    if (rc) return rc;
    /* In such a model transformers leaves out the cap that the text part's own class applies. */
    if (c->wrapped && config_is_set(j, "final_logit_softcapping"))
        return config_refuse(e, j, "final_logit_softcapping");
    bool causal = true, both_ways = false;
    rc = config_flag(j, "is_causal", &causal, e);
    if (!rc) rc = config_flag(j, "use_bidirectional_attention", &both_ways, e);
    if (rc) return rc;
    if (!causal) return config_refuse(e, j, "is_causal"); /* an embedder that looks both ways */
    if (both_ways) return config_refuse(e, j, "use_bidirectional_attention");
    quant q;
    rc = quant_read(j, &q, e);
    bool experts = f->experts && f->experts->alternate; /* whose files alone are known so */
    if (!rc && q.method == QUANT_MXFP4 && !experts)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "\"quantization_config\": \"quant_method\": \"mxfp4\" is supported for "
                     "GPT-OSS alone");
    return rc;
}

/* Null takes a cap away. */
static err_code read_cap(const cJSON *j, const char *name, float usual, float *out, err *e)
{
    *out = json_get(j, name) && !config_is_set(j, name) ? 0 : usual;
    return config_real(j, name, 1e-3, 1e6, out, e);
}

static err_code read_multipliers(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    float divisor = 1, query = f->query_scalar;
    c->residual_scale = c->logit_scale = c->embed_scale = 1;
    c->score_scale = (float)(1.0 / sqrt((double)c->head_dim));
    err_code rc = ERR_NONE;
    if (f->reads & READS_MULTIPLIERS) {
        c->score_scale = 1;
        rc = config_real(j, "embedding_multiplier", 1e-6, 1e6, &c->embed_scale, e);
        if (!rc) rc = config_real(j, "residual_multiplier", 1e-6, 1e6, &c->residual_scale, e);
        if (!rc) rc = config_real(j, "attention_multiplier", 1e-6, 1e6, &c->score_scale, e);
        if (!rc) rc = config_real(j, "logits_scaling", 1e-6, 1e6, &divisor, e);
        c->logit_scale = 1 / divisor;
    }
    if (!rc && f->reads & READS_LOGIT_SCALE) {
        c->logit_scale = f->logit_scale;
        rc = config_real(j, "logit_scale", 1e-6, 1e6, &c->logit_scale, e);
    }
    if (!rc && f->reads & READS_SCORE_CAP)
        rc = read_cap(j, "attn_logit_softcapping", f->score_cap, &c->score_cap, e);
    if (!rc && f->reads & READS_LOGIT_CAP)
        rc = read_cap(j, "final_logit_softcapping", f->logit_cap, &c->logit_cap, e);
    if (!rc && query > 0) {
        rc = config_real(j, "query_pre_attn_scalar", 1e-3, 1e6, &query, e);
        c->score_scale = (float)(1.0 / sqrt((double)query));
    }
    if (c->latent.rank) c->score_scale *= c->rope.mscale_all * c->rope.mscale_all;
    if (f->scaled_embedding) c->embed_scale = (float)sqrt((double)c->dim);
    return rc;
}

/* Queries and keys without weights in their norm, and queries that grow where no position turns
 * them (Nakanishi 2025).  attn_temperature_tuning has been a number, too. */
static err_code read_llama4(const cJSON *j, model_config *c, err *e)
{
    const cJSON *v = json_get(j, "attn_temperature_tuning");
    bool tuned = !v || !cJSON_IsNumber(v) || v->valuedouble != 0;
    c->qk_unit = true;
    c->q_scale = 0.1F;
    c->q_floor = 8192;
    err_code rc = config_flag(j, "use_qk_norm", &c->qk_unit, e);
    if (!rc && !cJSON_IsNumber(v)) rc = config_flag(j, "attn_temperature_tuning", &tuned, e);
    if (!rc) rc = config_real(j, "attn_scale", 0, 1e3, &c->q_scale, e);
    if (!rc) rc = config_real(j, "floor_scale", 1, 1e9, &c->q_floor, e);
    if (!tuned) c->q_scale = 0;
    /* The norm stands behind the rotation there and before it here: the same, but for a factor. */
    if (!rc && c->qk_unit && c->rope.attention_factor != 1)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "\"use_qk_norm\" beside a rotation with a factor is not supported");
    return rc;
}

/* transformers, too, leaves these layers out. */
static err_code read_spare_layers(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    int64_t n = 0;
    err_code rc = f->reads & READS_SPARE_LAYERS
                      ? json_int(j, "num_nextn_predict_layers", 0, MODEL_LAYERS_MAX, &n, NULL, e)
                      : ERR_NONE;
    c->spare_layers = (int)n;
    return rc;
}

static err_code read_flags(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    c->tied = f->tied;
    c->norm_eps = f->eps;
    c->qk_norm = f->norm[NORM_Q] && !f->qk_norm_whole && !f->latent.rank;
    c->qk_norm_whole = f->qk_norm_whole;
    c->layer_norm = f->layer_norm;
    c->parallel = f->parallel;
    c->sinks = f->sinks;
    c->mlp_names = f->mlp_names;
    c->ungated = f->up != NULL;
    c->rope_pairs = f->rope_pairs;
    /* Only the norms before attention and before the MLP are an adapter's to bring. */
    c->fixed_norms = f->one_plus || f->layer_norm || f->parallel || f->norm[NORM_ATTN_OUT];
    err_code rc = config_flag(j, "tie_word_embeddings", &c->tied, e);
    if (!rc && f->reads & READS_INTERLEAVE)
        rc = config_flag(j, "rope_interleave", &c->rope_pairs, e);
    if (!rc) rc = config_real(j, f->eps_field, 0.0, 1.0, &c->norm_eps, e);
    if (!rc && f->reads & READS_LLAMA4) rc = read_llama4(j, c, e);
    if (!rc) rc = read_spare_layers(j, f, c, e);
    if (!rc) rc = read_biases(j, f, c, e);
    if (!rc) rc = read_activation(j, f, c, e);
    if (!rc) rc = read_multipliers(j, f, c, e);
    return rc ? rc : check_unsupported(j, f, c, e);
}

static err_code read_dtype(const cJSON *j, model_config *c, err *e)
{
    const char *name = NULL;
    err_code rc = json_str(j, config_is_set(j, "dtype") ? "dtype" : "torch_dtype", &name, NULL, e);
    if (rc) return rc;
    c->type = DT_F32;
    if (!name || strcmp(name, "float32") == 0 || strcmp(name, "auto") == 0) return ERR_NONE;
    if (strcmp(name, "float16") == 0) {
        c->type = DT_F16;
    } else if (strcmp(name, "bfloat16") == 0) {
        c->type = DT_BF16;
    } else {
        return err_set(e, ERR_UNSUPPORTED, "dtype \"%.64s\" is not supported", name);
    }
    return ERR_NONE;
}

/* eos_token_id: a number, a list of numbers, or null. */
static err_code read_eos(const cJSON *j, model_config *c, err *e)
{
    const cJSON *v = json_get(j, "eos_token_id");
    if (!v || cJSON_IsNull(v)) return ERR_NONE;
    const cJSON *item = cJSON_IsArray(v) ? v->child : v;
    int n = 0;
    while (item) {
        if (n == MODEL_EOS_MAX) {
            return err_set(e, ERR_LIMIT, "\"eos_token_id\": more than %d ids", MODEL_EOS_MAX);
        }
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0) ||
            item->valuedouble >= c->n_vocab || floor(item->valuedouble) != item->valuedouble) {
            return err_set(e, ERR_INPUT, "\"eos_token_id\" must hold token ids below %d",
                           c->n_vocab);
        }
        c->eos_id[n++] = (int32_t)item->valuedouble;
        item = cJSON_IsArray(v) ? item->next : NULL;
    }
    c->n_eos = n;
    return ERR_NONE;
}

static err_code read_bos(const cJSON *j, model_config *c, err *e)
{
    int64_t bos = c->bos_id;
    err_code rc = json_int(j, "bos_token_id", 0, c->n_vocab - 1, &bos, NULL, e);
    c->bos_id = (int)bos;
    return rc;
}

static err_code read_config(cJSON *whole, model_config *c, err *e)
{
    const model_family *f = NULL;
    cJSON *j = NULL;
    err_code rc = find_family(whole, &f, &j, &c->wrapped, e);
    if (rc) return rc;
    snprintf(c->family, sizeof(c->family), "%s", f->type);
    const char *have = architecture_of(whole);
    c->scored = is_variant(have, f->architecture, "ForSequenceClassification");
    c->headless = c->scored || is_variant(have, f->architecture, "Model");
    rc = read_shape(j, f, c, e);
    if (!rc) rc = read_window(j, f, c, e);
    if (!rc) rc = read_no_rope(j, f, c, e);
    if (!rc) rc = read_experts(j, f, c, e);
    if (!rc) rc = rope_config_read(j, f, c, e);
    if (!rc) rc = read_flags(j, f, c, e);
    if (!rc) rc = read_dtype(j, c, e);
    if (!rc) rc = read_bos(j, c, e);
    if (!rc) rc = read_eos(j, c, e);
    return rc;
}

/* Defaults that no server of this API takes over: a request asks for them, or goes without. */
static void tell_what_is_not_taken(const cJSON *j)
{
    static const struct {
        const char *name;
        double none; /* the number that asks for nothing */
    } fields[] = {{"stop_strings", 0},
                  {"begin_suppress_tokens", 0},
                  {"sequence_bias", 0},
                  {"no_repeat_ngram_size", 0},
                  {"min_length", 0},
                  {"min_new_tokens", 0},
                  {"max_length", 20},
                  {"num_beams", 1},
                  {"num_return_sequences", 1},
                  {"typical_p", 1},
                  {"epsilon_cutoff", 0},
                  {"eta_cutoff", 0},
                  {"top_h", 0},
                  {"penalty_alpha", 0},
                  {"guidance_scale", 1},
                  {"forced_bos_token_id", -1},
                  {"forced_eos_token_id", -1},
                  {"exponential_decay_length_penalty", 0},
                  {"watermarking_config", 0}};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const cJSON *v = json_get(j, fields[i].name);
        bool plain = !v || cJSON_IsNull(v) ||
                     (cJSON_IsNumber(v) && v->valuedouble == fields[i].none) ||
                     ((cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child);
        if (!plain)
            log_warn("model", "generation_config.json: \"%s\" has no effect", fields[i].name);
    }
}

static bool is_eos(const model_config *c, int32_t id)
{
    for (int i = 0; i < c->n_eos; i++) {
        if (c->eos_id[i] == id) return true;
    }
    return false;
}

/* A sequence that never comes; `v`: its ids, one or an array of them. */
static err_code add_barred(const char *field, const cJSON *v, model_config *c, err *e)
{
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 1, at = c->n_gen_barred;
    if (n < 1 || n > BARS_SEQUENCE_MAX || n >= MODEL_BARRED_MAX - at) {
        return err_set(e, ERR_LIMIT, "\"%s\": sequences of 1 to %d ids, and no more than %d in all",
                       field, BARS_SEQUENCE_MAX, MODEL_BARRED_MAX);
    }
    const cJSON *item = cJSON_IsArray(v) ? v->child : v;
    for (int i = 1; i <= n; i++, item = item->next) {
        double d = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(d >= 0 && d < c->n_vocab) || floor(d) != d)
            return err_set(e, ERR_INPUT, "\"%s\" must hold token ids below %d", field, c->n_vocab);
        c->gen_barred[at + i] = (int32_t)d;
    }
    /* transformers, too, takes an end of text out of bad_words_ids. */
    if (cJSON_IsArray(v) && n == 1 && is_eos(c, c->gen_barred[at + 1])) return ERR_NONE;
    c->gen_barred[at] = n;
    c->n_gen_barred = at + 1 + n;
    return ERR_NONE;
}

static err_code read_barred(const cJSON *j, model_config *c, err *e)
{
    static const char *const fields[] = {"suppress_tokens", "bad_words_ids"};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = json_get(j, fields[i]), *item;
        if (!v || cJSON_IsNull(v)) continue;
        if (!cJSON_IsArray(v)) return err_set(e, ERR_INPUT, "\"%s\" must be an array", fields[i]);
        cJSON_ArrayForEach(item, v)
        {
            if (cJSON_IsArray(item) != (i == 1))
                return err_set(e, ERR_INPUT, "\"%s\" holds something else", fields[i]);
            err_code rc = add_barred(fields[i], item, c, e);
            if (rc) return rc;
        }
    }
    return ERR_NONE;
}

static err_code read_generation(const cJSON *j, model_config *c, err *e)
{
    err_code rc = read_bos(j, c, e);
    if (!rc) rc = read_eos(j, c, e);
    if (!rc) rc = config_real(j, "temperature", 0.0, 100.0, &c->gen_temperature, e);
    if (cJSON_IsFalse(json_get(j, "do_sample"))) c->gen_temperature = 0; /* the likeliest token */
    if (!rc) rc = config_real(j, "top_p", 0.0, 1.0, &c->gen_top_p, e);
    if (!rc) rc = config_real(j, "min_p", 0.0, 1.0, &c->gen_min_p, e);
    if (!rc) rc = config_real(j, "repetition_penalty", 0.0, 10.0, &c->gen_repetition_penalty, e);
    if (rc) return rc;
    int64_t k = c->gen_top_k, most = 0;
    rc = json_int(j, "top_k", 0, INT32_MAX, &k, NULL, e);
    if (!rc) rc = json_int(j, "max_new_tokens", 1, INT32_MAX, &most, NULL, e);
    c->gen_top_k = (int)k;
    c->gen_max_tokens = (int)most;
    if (!rc) rc = read_barred(j, c, e);
    if (!rc) tell_what_is_not_taken(j);
    return rc;
}

err_code model_config_read(const char *dir, model_config *out, err *e)
{
    model_config c = {.bos_id = -1, .gen_temperature = -1.0F, .gen_top_p = -1.0F, .gen_top_k = -1};
    cJSON *j;
    err_code rc = document_read(dir, "config.json", &j, e);
    if (rc) return rc;
    rc = read_config(j, &c, e);
    cJSON_Delete(j);
    if (rc) {
        if (e) (void)err_context(e, "config.json");
        return rc;
    }

    err why;
    rc = document_read(dir, "generation_config.json", &j, &why);
    if (rc == ERR_NONE) {
        rc = read_generation(j, &c, &why);
        if (rc) (void)err_context(&why, "generation_config.json");
        cJSON_Delete(j);
    }
    if (rc && rc != ERR_NOT_FOUND) {
        if (e) *e = why;
        return rc;
    }
    *out = c;
    return ERR_NONE;
}

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

static void proj_shape(const model_config *c, int ffn_dim, proj p, int *d_out, int *d_in)
{
    if (c->latent.rank && p <= PROJ_O) {
        latent_proj_shape(c, p, d_out, d_in);
        return;
    }
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    switch (p) {
    case PROJ_Q_A: *d_out = *d_in = 0; return;
    case PROJ_Q: *d_out = q, *d_in = c->dim; return;
    case PROJ_K:
    case PROJ_V: *d_out = kv, *d_in = c->dim; return;
    case PROJ_O: *d_out = c->dim, *d_in = q; return;
    case PROJ_GATE:
    case PROJ_UP: *d_out = ffn_dim, *d_in = c->dim; return;
    case PROJ_DOWN: *d_out = c->dim, *d_in = ffn_dim; return;
    case PROJ_COUNT: break;
    }
    abort(); /* not a projection: a bug of the caller */
}

void model_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    proj_shape(c, c->ffn_dim, p, d_out, d_in);
}

void model_layer_shape(const model_config *c, int layer, proj p, int *d_out, int *d_in)
{
    bool mixed = c->layer[layer] & LAYER_EXPERTS;
    proj_shape(c, mixed ? c->experts.shared_dim : c->ffn_dim, p, d_out, d_in);
}

void model_expert_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    proj_shape(c, c->experts.ffn_dim, p, d_out, d_in);
}

bool model_has_proj(const model_config *c, int layer, proj p)
{
    if (p == PROJ_GATE && c->ungated) return false;
    if (p == PROJ_Q_A) return c->q_rank > 0;
    return p < PROJ_GATE || !(c->layer[layer] & LAYER_EXPERTS) || c->experts.shared_dim > 0;
}

bool model_proj_has_bias(const model_config *c, proj p)
{
    if (p == PROJ_GATE && c->ungated) return false;
    if (p == PROJ_O) return c->o_bias;
    if (p == PROJ_Q_A) return c->q_rank > 0 && c->qkv_bias;
    if (c->latent.rank && (p == PROJ_Q || p == PROJ_V)) return false;
    return p < PROJ_O ? c->qkv_bias : c->mlp_bias;
}

/* ------------------------------------------------------------------------ streams -- */

/* What would not mean the same with tokens left out of the middle; NULL: nothing. */
static const char *holds_no_stream(const model_config *c)
{
    if (c->latent.rank > 0) return "attention over latents";
    if (c->window > 0) return c->chunked ? "chunks of its own" : "windows of its own";
    if (c->sinks) return "learnt sinks";
    if (c->q_scale > 0) return "queries that grow with their position";
    return c->rope.kind == ROPE_LONG ? "longrope, whose factors are chosen by the context" : NULL;
}

err_code model_config_stream(model_config *c, int sinks, int window, int max_context, err *e)
{
    const char *why = holds_no_stream(c);
    if (sinks < 1 || window < 1)
        return err_set(e, ERR_INPUT,
                       "attention_sinks and attention_window are both at least 1, or both 0");
    if (why)
        return err_set(e, ERR_UNSUPPORTED,
                       "attention sinks are not supported for a model of the family %s with %s",
                       c->family, why);
    if (sinks > c->max_pos - window)
        return err_set(e, ERR_INPUT,
                       "%d attention sinks and a window of %d tokens are no part of the %d "
                       "positions that the model was made for",
                       sinks, window, c->max_pos);
    c->kept = sinks;
    c->window = window;
    for (int i = 0; i < c->n_layer; i++) set_window(c, i, true);
    c->local_rope = c->rope;
    if (max_context > 0) c->max_pos = max_context;
    return ERR_NONE;
}
