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

err_code config_rename(const cJSON *obj, const char *from, cJSON *j, const char *to, err *e)
{
    if (!config_is_set(obj, from)) return ERR_NONE;
    if (config_is_set(j, to) && !cJSON_Compare(json_get(obj, from), json_get(j, to), true))
        return err_set(e, ERR_INPUT, "\"%s\" and \"%s\" differ", from, to);
    cJSON_DeleteItemFromObjectCaseSensitive(j, to);
    cJSON *copy = cJSON_Duplicate(json_get(obj, from), true);
    if (copy && cJSON_AddItemToObject(j, to, copy)) return ERR_NONE;
    cJSON_Delete(copy);
    return err_set(e, ERR_NOMEM, "no memory to read the configuration");
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
    const char *have = architecture_of(j), *other = (*out)->other_architecture;
    if (!w && have && other && strcmp(have, other) == 0) return ERR_NONE;
    if (!w) return check_architecture(j, (*out)->architecture, e);
    rc = check_architecture(j, w->architecture, e);
    if (rc || !config_is_set(j, "text_config")) return rc;
    *text = cJSON_GetObjectItemCaseSensitive(j, "text_config");
    if (!cJSON_IsObject(*text)) return err_set(e, ERR_INPUT, "\"text_config\" must be an object");
    const char *inner = w->text;
    rc = json_str(*text, "model_type", &inner, NULL, e);
    if (rc) return rc;
    bool second = w->other && strcmp(inner, w->other) == 0;
    if (!second && strcmp(inner, w->text) != 0) return unknown_type(inner, e);
    *out = family_find(inner);
    return inherit(j, *text, e);
}

/* One key for all heads (multi_query, on), or Falcon's groups of heads, whose MLP may have a norm
 * of its own. */
static err_code read_multi(const cJSON *j, model_config *c, err *e)
{
    static const char order[] = "parallel_attn", norms[] = "num_ln_in_parallel_attn";
    bool one = true, groups = false;
    int64_t n_norm = 2;
    c->n_kv_head = c->n_head;
    err_code rc = config_flag(j, "multi_query", &one, e);
    if (!rc) rc = config_flag(j, "new_decoder_architecture", &groups, e);
    if (!rc) rc = config_flag(j, order, &c->parallel, e);
    if (!rc) rc = json_int(j, norms, 1, 2, &n_norm, NULL, e);
    if (rc) return rc;
    if (groups && !c->parallel) return config_refuse(e, j, order);
    c->parallel_apart = groups && n_norm == 2;
    if (groups) return config_dimension(j, "num_kv_heads", HEADS_MAX, &c->n_kv_head, e);
    if (one) c->n_kv_head = 1;
    return ERR_NONE;
}

static err_code read_kv_heads(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    c->n_kv_head = f->n_kv_head ? f->n_kv_head : c->n_head;
    c->parallel = f->parallel;
    c->parallel_apart = f->parallel_apart;
    bool multi = f->files && f->files->reads_multi;
    err_code rc = multi ? read_multi(j, c, e) : ERR_NONE;
    int by_flags = c->n_kv_head;
    if (rc) return rc;
    if (json_get(j, "num_key_value_heads") && !config_is_set(j, "num_key_value_heads"))
        c->n_kv_head = c->n_head; /* null: no grouping */
    rc = config_dimension(j, "num_key_value_heads", HEADS_MAX, &c->n_kv_head, e);
    if (!rc && multi && config_is_set(j, "multi_query") && c->n_kv_head != by_flags)
        rc = config_refuse(e, j, "num_key_value_heads");
    if (!rc && c->n_head % c->n_kv_head != 0)
        rc = err_set(e, ERR_INPUT,
                     "\"num_attention_heads\": %d is not a multiple of \"num_key_value_heads\": %d",
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
    if (config_is_set(j, "q_lora_rank") && c->q_rank == 0) c->q_rank = 1; /* the file says it */
    err_code rc = config_dimension(j, "kv_lora_rank", DIM_MAX, &l->rank, e);
    if (!rc && c->q_rank) rc = config_dimension(j, "q_lora_rank", DIM_MAX, &c->q_rank, e);
    if (!rc) rc = config_dimension(j, "qk_nope_head_dim", HEAD_DIM_MAX, &l->nope, e);
    if (!rc) rc = config_dimension(j, "qk_rope_head_dim", HEAD_DIM_MAX, &l->rope, e);
    if (l->v == 0) l->v = c->dim / c->n_head;
    if (!rc) rc = config_dimension(j, "v_head_dim", HEAD_DIM_MAX, &l->v, e);
    if (rc) return rc;
    if (c->n_kv_head != c->n_head) return config_refuse(e, j, "num_key_value_heads");
    if (l->rope % 2 != 0) return config_refuse(e, j, "qk_rope_head_dim");
    l->n_head = c->n_head;
    c->head_dim = l->nope + l->rope;
    int whole = c->head_dim, turned = l->rope; /* which files may say, too */
    rc = config_dimension(j, "qk_head_dim", HEAD_DIM_MAX, &whole, e);
    if (!rc && whole != c->head_dim) rc = config_refuse(e, j, "qk_head_dim");
    if (!rc) rc = config_dimension(j, "head_dim", HEAD_DIM_MAX, &turned, e);
    /* In Kimi Linear, nothing reads it. */
    if (!rc && turned != l->rope && !f->mixer) rc = config_refuse(e, j, "head_dim");
    if (rc) return rc;
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
                           "\"hidden_size\": %d is not a multiple of \"num_attention_heads\": %d",
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

/* A dimension, or a list that says the same one for each layer. */
static err_code read_alike(const cJSON *j, const char *name, int max, int *out, err *e)
{
    const cJSON *list = json_get(j, name), *item;
    if (!cJSON_IsArray(list)) return config_dimension(j, name, max, out, e);
    double first = cJSON_IsNumber(list->child) ? list->child->valuedouble : 0;
    if (!(first >= 1 && first <= max) || floor(first) != first) return config_refuse(e, j, name);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || item->valuedouble != first) return config_refuse(e, j, name);
    }
    *out = (int)first;
    return ERR_NONE;
}

static err_code read_shape(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    c->n_layer = f->n_layer ? f->n_layer : mixer_config_blocks(j, f);
    c->dim = f->dim;
    c->n_head = f->n_head;
    c->ffn_dim = f->ffn_dim;
    c->n_vocab = f->n_vocab;
    c->max_pos = f->max_pos;
    const char *ffn = f->ffn_field ? f->ffn_field : "intermediate_size";
    err_code rc = config_dimension(j, "num_hidden_layers", MODEL_LAYERS_MAX, &c->n_layer, e);
    if (!rc) rc = config_dimension(j, "hidden_size", DIM_MAX, &c->dim, e);
    if (!rc) rc = config_dimension(j, "num_attention_heads", HEADS_MAX, &c->n_head, e);
    if (f->ffn_by) c->ffn_dim = f->ffn_by * c->dim;
    if (!rc) rc = (f->streams ? read_alike : config_dimension)(j, ffn, FFN_MAX, &c->ffn_dim, e);
    if (!rc) rc = config_dimension(j, "vocab_size", VOCAB_MAX, &c->n_vocab, e);
    if (!rc) rc = config_dimension(j, "max_position_embeddings", POS_MAX, &c->max_pos, e);
    if (f->files && f->files->positions) c->n_position = c->max_pos + f->files->before;
    if (!rc) rc = read_kv_heads(j, f, c, e);
    if (!rc) rc = read_latent(j, f, c, e);
    bool attends = !f->mixer || !f->mixer->all || f->mixer->kind == MIXER_BOTH;
    if (!rc && !attends) c->head_dim = f->head_dim; /* whatever else has the field's name */
    return rc || c->latent.rank || !attends ? rc : read_head_dim(j, f, c, e);
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
    /* GPT-Neo's files have it under this name, too, in a shorter form. */
    if (!*given && config_is_set(j, "attention_types"))
        return config_refuse(e, j, "attention_types");
    if (!*given) return ERR_NONE;
    const cJSON *list = json_get(j, "layer_types"), *item;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layer)
        return err_set(e, ERR_INPUT, "\"layer_types\" must name each of the %d layers", c->n_layer);
    int layer = 0;
    cJSON_ArrayForEach(item, list)
    {
        const char *word = cJSON_IsString(item) ? item->valuestring : "";
        bool full = strcmp(word, "full_attention") == 0 || strcmp(word, "global") == 0;
        bool slides = strcmp(word, some) == 0 || strcmp(word, "local") == 0;
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
    bool some = f->reads & READS_WINDOW_SWITCH || f->window_first;
    if (f->window_first) full = f->window_first;
    if (!rc && some) rc = json_int(j, "max_window_layers", 0, INT32_MAX, &full, NULL, e);
    if (!rc && f->window_every_field && !config_is_set(j, "layer_types"))
        rc = json_int(j, f->window_every_field, 1, INT32_MAX, &every, NULL, e);
    if (rc) return rc;
    for (int i = 0; i < c->n_layer; i++) {
        bool slides = on;
        if (some) slides = on && i >= full;
        if (every) slides = (i + !f->window_zero) % every != 0;
        if (f->window_listed) slides = false;
        set_window(c, i, slides);
    }
    return ERR_NONE;
}

/* Of a family whose windows are not served. */
static err_code refuse_window(const cJSON *j, const model_family *f, err *e)
{
    bool on = false, read = f->experts || f->reads & (READS_NO_ROPE | READS_WINDOW_OFF);
    err_code rc = read ? config_flag(j, "use_sliding_window", &on, e) : ERR_NONE;
    return rc || !on ? rc : config_refuse(e, j, "use_sliding_window");
}

static err_code read_window(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    int64_t window = f->window;
    bool given = false, any = false;
    const char *field = f->reads & READS_CHUNKS ? "attention_chunk_size" : "sliding_window";
    if (json_get(j, field) && !config_is_set(j, field)) window = 0;
    err_code rc =
        f->no_window ? refuse_window(j, f, e) : json_int(j, field, 1, POS_MAX, &window, NULL, e);
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

/* position_embedding_type: no layer knows positions unless it is "rope"; *none. */
static err_code read_position_type(const cJSON *j, const model_family *f, bool *none, err *e)
{
    static const char field[] = "position_embedding_type";
    const char *type = NULL;
    *none = f->no_rope;
    if (!(f->reads & READS_POSITION_TYPE)) return ERR_NONE;
    err_code rc = json_str(j, field, &type, NULL, e);
    *none = !type || strcmp(type, "rope") != 0;
    if (!rc && *none && type && strcmp(type, "nope") != 0) rc = config_refuse(e, j, field);
    return rc;
}

/* Which layers know no positions: SmolLM3 lists those that do, Cohere 2 turns windowed ones. */
static err_code read_no_rope(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    int64_t every = 4;
    bool none = json_get(j, "sliding_window") && !config_is_set(j, "sliding_window");
    bool some = f->window_turns && !(none && f->all_turn), all = false;
    for (int i = 0; some && i < c->n_layer; i++)
        if (!(c->layer[i] & LAYER_WINDOW)) c->layer[i] |= LAYER_NO_ROPE;
    err_code rc = read_position_type(j, f, &all, e);
    if (rc) return rc;
    const cJSON *r = json_get(j, "rope_parameters");
    all |= (f->reads & READS_KIMI) != 0;
    all |=
        f->reads & READS_NULL_THETA && cJSON_IsObject(r) && cJSON_IsNull(json_get(r, "rope_theta"));
    for (int i = 0; all && i < c->n_layer; i++) c->layer[i] |= LAYER_NO_ROPE;
    if (!(f->reads & READS_NO_ROPE)) return ERR_NONE;
    rc = json_int(j, "no_rope_layer_interval", 1, INT32_MAX, &every, NULL, e);
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

/* Layers of experts: each so-manieth, counted from an offset. */
static err_code read_expert_period(const cJSON *j, model_config *c, err *e)
{
    int64_t every = 2, offset = 1;
    err_code rc = json_int(j, "expert_layer_period", 1, MODEL_LAYERS_MAX, &every, NULL, e);
    if (!rc) rc = json_int(j, "expert_layer_offset", 0, MODEL_LAYERS_MAX, &offset, NULL, e);
    bool one = c->experts.route.n == 1;
    for (int i = 0; i < c->n_layer; i++)
        if (one || i % every != offset) c->layer[i] &= (uint8_t)~LAYER_EXPERTS;
    if (one) c->experts = (experts_config){.route = {.n = 0}};
    return rc;
}

/* Layers of experts: each so-manieth of those from one to another (-1: the last). */
static err_code read_moe_span(const cJSON *j, model_config *c, err *e)
{
    int64_t first = 1, last = -1, every = 1;
    float least = 0;
    err_code rc = json_int(j, "moe_layer_start_index", 0, INT32_MAX, &first, NULL, e);
    if (!rc) rc = json_int(j, "moe_layer_end_index", -1, INT32_MAX, &last, NULL, e);
    if (!rc) rc = json_int(j, "moe_layer_interval", 1, INT32_MAX, &every, NULL, e);
    if (!rc) rc = config_real(j, "moe_norm_min", 0, 1, &least, e);
    if (!rc && least > 1e-6F) rc = config_refuse(e, j, "moe_norm_min");
    for (int i = 0; i < c->n_layer; i++) {
        bool experts = i >= first && (last == -1 || i <= last) && (i + 1) % every == 0;
        if (!experts) c->layer[i] &= (uint8_t)~LAYER_EXPERTS;
    }
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
static err_code read_expert_count(const cJSON *j, const family_experts *fx, expert_route *x, err *e)
{
    int first = x->n;
    const char *field = fx->n_field ? fx->n_field : "num_experts";
    const char *topk = fx->topk_field ? fx->topk_field : "num_experts_per_tok";
    err_code rc = config_dimension(j, field, EXPERTS_MAX, &x->n, e);
    if (!rc && config_is_set(j, field)) first = x->n;
    if (!rc) rc = config_dimension(j, "num_local_experts", EXPERTS_MAX, &x->n, e);
    if (rc) return rc;
    if (config_is_set(j, field) && x->n != first) return config_refuse(e, j, "num_local_experts");
    rc = read_alike(j, topk, EXPERTS_MAX, &x->top_k, e);
    if (!rc && x->top_k > x->n)
        rc = err_set(e, ERR_INPUT, "\"%s\": %d of %d experts", topk, x->top_k, x->n);
    return rc;
}

/* mlp_layer_types names each layer's MLP. */
static err_code read_mlp_types(const cJSON *j, model_config *c, err *e)
{
    const cJSON *list = json_get(j, "mlp_layer_types"), *item;
    if (!config_is_set(j, "mlp_layer_types")) return ERR_NONE;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layer)
        return err_set(e, ERR_INPUT, "\"mlp_layer_types\" must name each of the %d layers",
                       c->n_layer);
    int i = 0;
    cJSON_ArrayForEach(item, list)
    {
        bool dense = cJSON_IsString(item) && strcmp(item->valuestring, "dense") == 0;
        bool sparse = cJSON_IsString(item) && strcmp(item->valuestring, "sparse") == 0;
        if (!dense && !sparse) return config_refuse(e, j, "mlp_layer_types");
        c->layer[i] =
            (uint8_t)(sparse ? c->layer[i] | LAYER_EXPERTS : c->layer[i] & ~LAYER_EXPERTS);
        i++;
    }
    return ERR_NONE;
}

/* How near scores must be to share a row. */
static err_code read_jitter(const cJSON *j, expert_route *x, err *e)
{
    err_code rc = config_real(j, "router_jitter_noise", 1e-9, 1e3, &x->jitter, e);
    return !rc && x->top_k != 2 ? config_refuse(e, j, "num_experts_per_tok") : rc;
}

/* The MLP that all rows take beside experts, by its width (0 where the family has none by default)
 * or as so many of an expert's. */
static err_code read_shared(const cJSON *j, const family_experts *fx, experts_config *x, err *e)
{
    int n = fx->n_shared;
    int64_t dim = fx->shared_dim;
    const char *count = fx->n_shared_field ? fx->n_shared_field : "n_shared_experts";
    const char *width = fx->shared_field ? fx->shared_field : "shared_expert_intermediate_size";
    err_code rc = ERR_NONE;
    if (fx->shared_dim || fx->shared_field)
        rc = json_int(j, width, fx->shared_dim > 0, FFN_MAX, &dim, NULL, e);
    x->shared_dim = (int)dim;
    if (rc || !n) return rc;
    rc = config_dimension(j, count, EXPERTS_MAX, &n, e);
    if (!rc && x->ffn_dim > FFN_MAX / n)
        rc = err_set(e, ERR_INPUT, "\"%s\": %d of %d values", count, n, x->ffn_dim);
    if (!rc) x->shared_dim = n * x->ffn_dim;
    return rc;
}

/* How many experts of what size, how they are chosen, and which layers have them: first all,
 * then those that a field takes out. */
static err_code read_experts(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    const family_experts *fx = f->experts;
    experts_config *x = &c->experts;
    const cJSON *count = json_get(j, "num_local_experts");
    bool on = !fx || !fx->on_field;
    err_code rc = fx && fx->on_field ? config_flag(j, fx->on_field, &on, e) : ERR_NONE;
    if (rc || !fx || !on) return rc;
    if (fx->may_be_none && cJSON_IsNumber(count) && count->valuedouble == 0) {
        c->ffn_dim = fx->shared_dim;
        return config_dimension(j, fx->shared_field, FFN_MAX, &c->ffn_dim, e);
    }
    *x = (experts_config){.route = fx->route,
                          .ffn_dim = fx->ffn_dim,
                          .shared_dim = fx->shared_dim,
                          .choice = fx->choice_bias != NULL,
                          .shared_gated = fx->shared_gate != NULL,
                          .biased = fx->biased,
                          .beside = fx->beside,
                          .alternate = fx->alternate};
    if (x->route.scale == 0) x->route.scale = 1;
    for (int i = 0; i < c->n_layer; i++) c->layer[i] |= LAYER_EXPERTS;
    rc = read_expert_count(j, fx, &x->route, e);
    if (!fx->ffn_field) x->ffn_dim = c->ffn_dim;
    if (!rc && fx->ffn_field) rc = config_dimension(j, fx->ffn_field, FFN_MAX, &x->ffn_dim, e);
    if (!rc) rc = read_shared(j, fx, x, e);
    if (!rc && fx->choice_field) rc = config_flag(j, fx->choice_field, &x->choice, e);
    if (!rc && fx->scale_field) rc = config_real(j, fx->scale_field, 1e-6, 1e6, &x->route.scale, e);
    if (!rc && fx->reads_groups) rc = read_groups(j, fx, &x->route, e);
    if (!rc && fx->layers == LAYERS_LISTED) rc = read_moe_layers(j, c, e);
    if (!rc && fx->first_dense) rc = read_first_dense(j, fx, c, e);
    if (!rc && fx->layers == LAYERS_SPAN) rc = read_moe_span(j, c, e);
    if (!rc && fx->layers == LAYERS_PERIODIC) rc = read_expert_period(j, c, e);
    if (!rc && fx->reads_norm) rc = config_flag(j, "norm_topk_prob", &x->route.normed, e);
    if (!rc && fx->some_dense) rc = read_dense_layers(j, c, e);
    if (!rc && fx->reads_types) rc = read_mlp_types(j, c, e);
    if (!rc && fx->reads_jitter) rc = read_jitter(j, &x->route, e);
    return rc;
}

/* ------------------------------------------------------------------------ flags -- */

static err_code read_biases(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    bool bias = f->bias_default, mlp_bias = f->mlp_bias_default, o_bias = f->o_bias_default;
    const char *field = f->bias_field ? f->bias_field : "attention_bias";
    bool old = f->reads & READS_OLD_BIASES;
    err_code rc = config_flag(j, field, &bias, e);
    if (!rc) rc = config_flag(j, "mlp_bias", &mlp_bias, e);
    if (!rc && old) rc = config_flag(j, "qkv_bias", &bias, e);
    if (!rc && old) rc = config_flag(j, "bias", &mlp_bias, e);
    if (!rc && old && bias != mlp_bias)
        rc = err_set(e, ERR_UNSUPPORTED, "\"qkv_bias\" and \"bias\" must be the same");
    if (!rc && f->o_bias_field) rc = config_flag(j, f->o_bias_field, &o_bias, e);
    if (rc) return rc;
    if (mlp_bias && !(f->reads & READS_MLP_BIAS)) return config_refuse(e, j, "mlp_bias");
    if (bias && !f->bias_field && !f->qkv_bias) return config_refuse(e, j, field);
    c->qkv_bias = f->qkv_bias || (f->bias_field && bias);
    c->o_bias = f->o_bias_field ? o_bias : f->bias_field && f->o_bias && bias;
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
    else if (strcmp(act, "gelu_pytorch_tanh") == 0 || strcmp(act, "gelu_new") == 0 ||
             strcmp(act, "gelu_fast") == 0 || (f->gelu_by_tanh && strcmp(act, "gelu") == 0))
        c->act = ACT_GELU_TANH;
    else if (strcmp(act, "relu2") == 0)
        c->act = ACT_RELU2;
    else if (strcmp(act, "gelu") == 0 && !f->experts)
        c->act = ACT_GELU;
    else if (strcmp(act, "relu") == 0 && !f->experts)
        c->act = ACT_RELU;
    else if (strcmp(act, "xielu") == 0 && strcmp(f->act, "xielu") == 0)
        c->act = ACT_XIELU;
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
                  {"embedding_multiplier", READS_MULTIPLIERS | READS_FALCON},
                  {"residual_multiplier", READS_MULTIPLIERS},
                  {"attention_multiplier", READS_MULTIPLIERS},
                  {"logits_scaling", READS_MULTIPLIERS},
                  {"logit_scale", READS_LOGIT_SCALE},
                  {"no_rope_layers", READS_NO_ROPE},
                  {"scale_emb", READS_MINICPM},
                  {"scale_depth", READS_MINICPM},
                  {"dim_model_base", READS_MINICPM},
                  {"full_attention_interval", READS_INTERVAL},
                  {"swiglu_limit", READS_SWIGLU_LIMIT},
                  {"moe_latent_size", 0},
                  {"key_multiplier", READS_FALCON},
                  {"ssm_multipliers", READS_FALCON},
                  {"swiglu_alpha", READS_SWIGLU_LIMIT},
                  {"attention_sinks", 0}};
    unsigned reads = f->reads | (f->experts ? READS_EXPERTS : 0U);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (config_is_set(j, fields[i].field) && !(reads & fields[i].reads))
            return config_refuse(e, j, fields[i].field);
    float limit = 7, alpha = 1.702F;
    int embedded = c->dim;
    err_code rc = config_real(j, "swiglu_limit", 0, 1e6, &limit, e);
    if (!rc && limit != 7) rc = config_refuse(e, j, "swiglu_limit");
    if (!rc) rc = config_real(j, "swiglu_alpha", 0, 1e6, &alpha, e);
    if (!rc && alpha != 1.702F) rc = config_refuse(e, j, "swiglu_alpha");
    if (!rc) rc = config_dimension(j, "word_embed_proj_dim", DIM_MAX, &embedded, e);
    if (!rc && embedded != c->dim) rc = config_refuse(e, j, "word_embed_proj_dim");
    if (rc) return rc;
    /* In such a model transformers leaves out the cap that the text part's own class applies. */
    bool capped = f->reads & READS_GEMMA4 || f->streams;
    if (c->wrapped && !capped && config_is_set(j, "final_logit_softcapping"))
        return config_refuse(e, j, "final_logit_softcapping");
    const struct {
        const char *field;
        unsigned reads;
        bool always; /* what the family does, whatever other files may say */
    } flags[] = {{"use_qk_norm", READS_QK_NORM | READS_LLAMA4, f->norm[NORM_Q] && !f->latent.rank},
                 {"use_parallel_residual", READS_PARALLEL, false},
                 {"use_bias", 0, false},
                 {"alibi", 0, false},
                 {"scale_attn_weights", 0, true},
                 {"scale_attn_by_inverse_layer_idx", 0, false},
                 {"add_cross_attention", 0, false},
                 {"do_layer_norm_before", 0, true},
                 {"layer_norm_elementwise_affine", 0, true},
                 {"_remove_final_layer_norm", 0, false},
                 {"use_cla", 0, false},
                 {"lm_head_bias", 0, false},
                 {"qk_layernorm", 0, false}};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && !rc; i++) {
        bool read = f->bias_field && strcmp(f->bias_field, flags[i].field) == 0;
        read |= f->head_bias_field && strcmp(f->head_bias_field, flags[i].field) == 0;
        const family_scan *scan = f->mixer ? f->mixer->scan : NULL;
        read |= scan && strcmp(scan->in_bias, flags[i].field) == 0;
        if (read || reads & flags[i].reads) continue;
        bool always = flags[i].always, on = always;
        rc = config_flag(j, flags[i].field, &on, e);
        if (!rc && on != always) rc = config_refuse(e, j, flags[i].field);
    }
    if (rc) return rc;
    bool causal = true, both_ways = false;
    rc = config_flag(j, "is_causal", &causal, e);
    if (!rc && !(f->reads & READS_GEMMA4))
        rc = config_flag(j, "use_bidirectional_attention", &both_ways, e);
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

/* Multipliers by depth and by width; null leaves one out. */
static err_code read_minicpm(const cJSON *j, model_config *c, err *e)
{
    bool deep = json_get(j, "scale_depth") && !config_is_set(j, "scale_depth");
    bool wide = json_get(j, "dim_model_base") && !config_is_set(j, "dim_model_base");
    float depth = deep ? (float)sqrt((double)c->n_layer) : 1.4F;
    int base = wide ? c->dim : 256;
    c->embed_scale = 12;
    err_code rc = config_real(j, "scale_emb", 1e-6, 1e6, &c->embed_scale, e);
    if (!rc) rc = config_real(j, "scale_depth", 1e-6, 1e6, &depth, e);
    if (!rc) rc = config_dimension(j, "dim_model_base", DIM_MAX, &base, e);
    c->residual_scale = deep ? 1 : (float)((double)depth / sqrt((double)c->n_layer));
    c->logit_scale = (float)base / (float)c->dim;
    return rc;
}

/* All that scales embeddings, scores, layers and logits, and the caps that bend them; 1 and 1 /
 * sqrt(head_dim) where a family has none. */
static err_code read_multipliers(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    float divisor = 1, query = f->query_scalar;
    c->residual_scale = c->logit_scale = c->embed_scale = 1;
    c->by = (layer_multipliers){1, 1, 1, 1, 1, 1};
    c->score_scale = (float)(1.0 / sqrt((double)c->head_dim));
    err_code rc = ERR_NONE;
    if (f->reads & READS_MULTIPLIERS) {
        if (!f->mup) c->score_scale = 1;
        rc = config_real(j, "embedding_multiplier", 1e-6, 1e6, &c->embed_scale, e);
        if (!rc) rc = config_real(j, "residual_multiplier", 1e-6, 1e6, &c->residual_scale, e);
        if (!rc) rc = config_real(j, "attention_multiplier", 1e-6, 1e6, &c->score_scale, e);
        if (!rc) rc = config_real(j, "logits_scaling", 1e-6, 1e6, &divisor, e);
        c->logit_scale = f->mup ? divisor : 1 / divisor;
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
    if (!rc && f->reads & READS_MINICPM) rc = read_minicpm(j, c, e);
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

/* All queries grow with their position, by a field of the rotation (Ministral 3). */
static err_code read_temper(const cJSON *j, model_config *c, err *e)
{
    bool old = !config_is_set(j, "rope_parameters");
    const cJSON *r = json_get(j, old ? "rope_scaling" : "rope_parameters");
    if (!cJSON_IsObject(r) || !config_is_set(r, "llama_4_scaling_beta")) return ERR_NONE;
    int original = 0;
    err_code rc = config_real(r, "llama_4_scaling_beta", 0, 1e3, &c->q_scale, e);
    if (!rc) rc = config_dimension(r, "original_max_position_embeddings", POS_MAX, &original, e);
    c->q_floor = (float)original;
    c->q_scale_all = true;
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

/* What a family says of norms, positions and biases, and the fields of config.json that may say
 * otherwise. At the end everything that was not read and would change the arithmetic is refused. */
static err_code read_flags(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    c->tied = f->tied;
    c->norm_eps = f->eps;
    c->qk_norm = f->norm[NORM_Q] && !f->qk_norm_whole && !f->latent.rank;
    c->qk_norm_whole = f->qk_norm_whole;
    c->qk_norm_last = f->qk_norm_last;
    c->q_gated = f->q_gated;
    c->norm_bare = f->norm_bare;
    c->norm_first = f->norm_first;
    c->qk_unit = f->unit_heads;
    c->layer_norm = f->layer_norm;
    c->sinks = f->sinks;
    c->mlp_names = f->mlp_names;
    c->ungated = f->up != NULL;
    c->rope_pairs = f->rope_pairs;
    /* Only the norms before attention and before the MLP are an adapter's to bring. */
    c->fixed_norms =
        f->one_plus || f->layer_norm || f->parallel || f->norm[NORM_ATTN_OUT] || f->last_norm ||
        !f->norm[NORM_ATTN_IN] || strcmp(f->norm[NORM_ATTN_IN], "input_layernorm") != 0 ||
        !f->norm[NORM_MLP_IN] || strcmp(f->norm[NORM_MLP_IN], "post_attention_layernorm") != 0;
    err_code rc = config_flag(j, "tie_word_embeddings", &c->tied, e);
    if (!rc && f->reads & READS_QK_NORM) {
        c->qk_norm = false;
        rc = config_flag(j, "use_qk_norm", &c->qk_norm, e);
    }
    if (!rc && f->reads & READS_PARALLEL)
        rc = config_flag(j, "use_parallel_residual", &c->parallel, e);
    c->parallel_apart = c->parallel_apart && c->parallel;
    if (!rc && f->reads & READS_INTERLEAVE)
        rc = config_flag(j, "rope_interleave", &c->rope_pairs, e);
    c->head_bias = f->head_bias;
    if (!rc && f->head_bias_field) rc = config_flag(j, f->head_bias_field, &c->head_bias, e);
    bool post = true;
    if (!rc && f->reads & READS_POST_NORM) rc = config_flag(j, "use_post_norm", &post, e);
    c->no_post_norm = !post;
    if (!rc && f->eps_field) rc = config_real(j, f->eps_field, 0.0, 1.0, &c->norm_eps, e);
    if (!rc && f->reads & READS_LLAMA4) rc = read_llama4(j, c, e);
    if (!rc && f->reads & READS_TEMPER) rc = read_temper(j, c, e);
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
            return err_set(e, ERR_LIMIT, "\"eos_token_id\" must have at most %d ids",
                           MODEL_EOS_MAX);
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
    rc = f->reads & READS_KIMI ? kimi_config_rename(j, e) : ERR_NONE;
    for (int i = 0; f->files && f->files->fields && f->files->fields[i][0] && !rc; i++)
        rc = config_rename(j, f->files->fields[i][0], j, f->files->fields[i][1], e);
    if (rc) return rc;
    const char *have = architecture_of(whole);
    c->scored = is_variant(have, f->architecture, "ForSequenceClassification");
    c->headless = c->scored || is_variant(have, f->architecture, "Model");
    rc = read_shape(j, f, c, e);
    if (!rc && !f->mixer) rc = read_window(j, f, c, e);
    if (!rc && f->reads & READS_GEMMA4) rc = gemma_config_read(j, c, e);
    if (!rc && f->streams) rc = gemma3n_config_read(j, c, e);
    if (!rc) rc = read_no_rope(j, f, c, e);
    if (!rc) rc = read_experts(j, f, c, e);
    if (!rc) rc = rope_config_read(j, f, c, e);
    if (!rc) rc = read_flags(j, f, c, e);
    if (!rc && f->mixer) rc = mixer_config_read(j, f, c, e);
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

/* One reader for each kind of sampling_list.h.  0 in place of an `above` means that it is off. */
static err_code read_real(const cJSON *j, const char *name, double most, float *out, err *e)
{
    return config_real(j, name, 0, most, out, e);
}

static err_code read_above(const cJSON *j, const char *name, double most, float *out, err *e)
{
    float given = *out;
    err_code rc = config_real(j, name, 0, most, &given, e);
    if (given > 0) *out = given;
    return rc;
}

static err_code read_whole(const cJSON *j, const char *name, int64_t most, int *out, err *e)
{
    int64_t given = *out;
    err_code rc = json_int(j, name, 0, most, &given, NULL, e);
    *out = (int)given;
    return rc;
}

static err_code read_generation(const cJSON *j, model_config *c, err *e)
{
    sampling_defaults *to = &c->generation;
    int64_t most_tokens = 0;
    err_code rc = read_bos(j, c, e);
    if (!rc) rc = read_eos(j, c, e);
#define READ(kind, name, low, high, neutral, most, gguf) \
    if (!rc) rc = read_##kind(j, #name, most, &to->name, e);
    SAMPLING_MODEL_LIST(READ)
#undef READ
    if (cJSON_IsFalse(json_get(j, "do_sample"))) to->temperature = 0; /* the likeliest token */
    if (!rc) rc = json_int(j, "max_new_tokens", 1, INT32_MAX, &most_tokens, NULL, e);
    c->gen_max_tokens = (int)most_tokens;
    if (!rc) rc = read_barred(j, c, e);
    if (!rc) tell_what_is_not_taken(j);
    return rc;
}

err_code model_config_read(const char *dir, model_config *out, err *e)
{
    model_config c = {.bos_id = -1, .generation = {SAMPLING_MODEL_LIST(SAMPLING_NEUTRAL)}};
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

/* ------------------------------------------------------------------------ streams -- */

/* What would not mean the same with tokens left out of the middle; NULL: nothing. */
static const char *holds_no_stream(const model_config *c)
{
    if (c->latent.rank > 0) return "attention over latents";
    if (c->state.taps > 0) return "layers that keep a state";
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
                       "%d attention sinks and a window of %d tokens are not within the %d "
                       "positions that the model was made for",
                       sinks, window, c->max_pos);
    c->kept = sinks;
    c->window = window;
    for (int i = 0; i < c->n_layer; i++) set_window(c, i, true);
    c->local_rope = c->rope;
    if (max_context > 0) c->max_pos = max_context;
    return ERR_NONE;
}
