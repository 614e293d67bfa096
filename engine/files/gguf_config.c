/* gguf_config.c -- a GGUF's keys as config.json and generation_config.json, so that the loader
 * reads one format only.
 *
 * gguf_make_config() writes the Hugging Face fields of the family: `put_*` functions each translate
 * a group of keys.  Three sources are combined:
 *
 *   keys        "<architecture>.block_count" and others, from the file
 *   gguf_arch   what llama.cpp has as code instead: norms, gating, scales (gguf_arch.h)
 *   tensors     what only they show: biases, a tied output, the vocabulary, each layer's kind
 *
 * check_keys() refuses any key of the architecture that nothing here reads, because most of them
 * change the arithmetic.  So a newer file fails with the key's name and is never computed wrongly.
 *
 * An array with a value per layer must have equal values, unless the family has a field for it.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/files/documents_inside.h"
#include "engine/files/gguf_arch.h"
#include "engine/sample/sampling_list.h"

enum { LAYERS_MAX = 1024, CHUNK = 8192, FACTORS_MAX = 1024 };

static const float NEVER = 1e9F; /* a divisor this large or larger: no rotation */

/* What expert_gating_func says. */
enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2 };

typedef struct making {
    const gguf *g;
    const gguf_arch *of;
    const char *arch;
    cJSON *out;
    err *e;
} making;

static const gguf_value *key_of(const making *m, const char *name)
{
    char key[96];
    snprintf(key, sizeof(key), "%s.%s", m->arch, name);
    return gguf_find(m->g, key);
}

static err_code refuse(const making *m, const char *name, const char *why)
{
    return err_set(m->e, ERR_UNSUPPORTED, "GGUF: %s.%s %s", m->arch, name, why);
}

static err_code no_memory(err *e)
{
    return err_set(e, ERR_NOMEM, "no memory to read a GGUF");
}

static err_code put_number(const making *m, const char *field, double v)
{
    return cJSON_AddNumberToObject(m->out, field, v) ? ERR_NONE : no_memory(m->e);
}

static err_code put_flag(const making *m, const char *field, bool v)
{
    return cJSON_AddBoolToObject(m->out, field, v) ? ERR_NONE : no_memory(m->e);
}

/* A whole number; an array must have the same one for each layer.  *v is unchanged if the key is
 * missing. */
static err_code whole(const making *m, const char *name, uint64_t *v)
{
    const gguf_value *key = key_of(m, name);
    int64_t item = 0, first = 0;
    if (!key) return ERR_NONE;
    if (key->kind != GGUF_ARRAY)
        return gguf_whole(key, v) ? ERR_NONE : refuse(m, name, "is no whole number");
    if (!gguf_item_whole(key, 0, &first) || first < 0) return refuse(m, name, "is no whole number");
    for (uint64_t i = 1; i < key->count; i++)
        if (!gguf_item_whole(key, i, &item) || item != first)
            return refuse(m, name, "differs between layers, which is not supported");
    *v = (uint64_t)first;
    return ERR_NONE;
}

/* The largest item, where the key is an array; else as whole(). */
static err_code whole_most(const making *m, const char *name, uint64_t *v)
{
    const gguf_value *key = key_of(m, name);
    int64_t item = 0, most = 0;
    if (!key || key->kind != GGUF_ARRAY) return whole(m, name, v);
    for (uint64_t i = 0; i < key->count; i++) {
        if (!gguf_item_whole(key, i, &item) || item < 0) return refuse(m, name, "holds others");
        if (item > most) most = item;
    }
    *v = (uint64_t)most;
    return ERR_NONE;
}

/* The first item, where the key is an array. */
static err_code first_of(const making *m, const char *name, uint64_t *v)
{
    const gguf_value *key = key_of(m, name);
    int64_t item = 0;
    if (!key || key->kind != GGUF_ARRAY) return whole(m, name, v);
    if (!gguf_item_whole(key, 0, &item) || item < 0) return refuse(m, name, "holds others");
    *v = (uint64_t)item;
    return ERR_NONE;
}

/* Layers of the model; those behind them that guess more tokens are left out. */
static err_code layers_of(const making *m, uint64_t *n)
{
    uint64_t spare = 0;
    err_code rc = whole(m, "block_count", n);
    if (!rc) rc = whole(m, "nextn_predict_layers", &spare);
    if (!rc && spare >= *n) rc = refuse(m, "nextn_predict_layers", "leaves no layer");
    *n -= rc ? 0 : spare;
    return rc;
}

/* Whether any layer has a tensor. */
static bool in_any_layer(const making *m, const char *tensor)
{
    uint64_t layers = 0;
    (void)gguf_whole(key_of(m, "block_count"), &layers);
    for (uint64_t i = 0; i < layers && i < LAYERS_MAX; i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%d.%s", (int)i, tensor);
        if (gguf_find_tensor(m->g, name)) return true;
    }
    return false;
}

static err_code put_whole(const making *m, const char *name, const char *field)
{
    uint64_t v = 0;
    err_code rc = whole(m, name, &v);
    if (!rc && !key_of(m, name)) return refuse(m, name, "is missing");
    return rc ? rc : put_number(m, field, (double)v);
}

static err_code real(const making *m, const char *name, double *v)
{
    const gguf_value *key = key_of(m, name);
    return !key || gguf_real(key, v) ? ERR_NONE : refuse(m, name, "is no number");
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* If no key has it: a bias of the selection occurs with a sigmoid only. */
static uint64_t default_gating(const making *m)
{
    bool sigmoid = m->of->sigmoid || in_any_layer(m, "exp_probs_b.bias");
    return sigmoid ? GATING_SIGMOID : GATING_SOFTMAX;
}

/* The family.  llama.cpp has one name for several: a llama with a window is a Mistral, and a router
 * with sigmoid scores belongs to DeepSeek-V3. */
static const char *family_of(const making *m)
{
    uint64_t window = 0, experts = 0, gating = GATING_SOFTMAX;
    bool llama = strcmp(m->arch, "llama") == 0 || strcmp(m->arch, "mistral3") == 0;
    bool shared = key_of(m, "expert_shared_feed_forward_length") != NULL, turns = false;
    (void)gguf_flag(key_of(m, "rope.scaling.finetuned"), &turns);
    if (strcmp(m->arch, "granitehybrid") == 0) return turns ? "bamba" : m->of->family;
    if (m->of->family) return m->of->family;
    if (m->of->latent && !key_of(m, "expert_count")) return "youtu";
    if (m->of->latent) {
        gating = default_gating(m);
        if (gating == GATING_SIGMOID && !key_of(m, "expert_gating_func")) return "glm4_moe_lite";
        (void)gguf_whole(key_of(m, "expert_gating_func"), &gating);
        return gating == GATING_SIGMOID ? "deepseek_v3" : "deepseek_v2";
    }
    if (llama && gguf_whole(key_of(m, "expert_count"), &experts) && experts > 0) return "mixtral";
    if (strcmp(m->arch, "granitemoe") == 0) return shared ? "granitemoeshared" : m->arch;
    if (key_of(m, "attention.temperature_scale")) return "ministral3";
    (void)gguf_whole(key_of(m, "attention.sliding_window"), &window);
    if (llama) return window > 0 ? "mistral" : "llama";
    return window > 0 && strcmp(m->arch, "olmo2") == 0 ? "olmo3" : m->arch;
}

/* The length by which scores are scaled: llama.cpp selects it by the number of layers. */
static err_code put_query_scalar(const making *m, uint64_t wide, uint64_t key)
{
    uint64_t layers = 0;
    err_code rc = layers_of(m, &layers);
    bool is_wide = layers == (uint64_t)m->of->wide_layers;
    return rc ? rc : put_number(m, "query_pre_attn_scalar", (double)(is_wide ? wide : key));
}

/* Attention over latents.  Newer files have one head of keys, as wide as the latent and what turns,
 * and tell the lengths of a real head besides. */
static err_code put_latent(const making *m)
{
    uint64_t heads = 0, kv = 0, rank = 0, q_rank = 0, rope = 0, key = 0, value = 0;
    err_code rc = whole(m, "attention.head_count", &heads);
    kv = heads;
    if (!rc) rc = whole_most(m, "attention.head_count_kv", &kv);
    if (!rc) rc = whole(m, "attention.kv_lora_rank", &rank);
    if (!rc) rc = whole(m, "attention.q_lora_rank", &q_rank);
    if (!rc) rc = whole(m, "rope.dimension_count", &rope);
    if (!rc) rc = whole(m, "attention.key_length", &key);
    if (!rc) rc = whole(m, "attention.value_length", &value);
    if (rc) return rc;
    if (key_of(m, "attention.key_length_mla")) {
        if (kv != 1) return refuse(m, "attention.head_count_kv", "other than 1 is not supported");
        if (key != rank + rope)
            return refuse(m, "attention.key_length", "is not the latent's and what turns");
        /* Kimi Linear's file has that of another head there, which nothing reads. */
        if (value != rank && !m->of->heads_differ)
            return refuse(m, "attention.value_length", "is not the latent's");
        rc = whole(m, "attention.key_length_mla", &key);
        if (!rc) rc = whole(m, "attention.value_length_mla", &value);
    } else if (kv != heads) {
        return refuse(m, "attention.head_count_kv", "other than head_count is not supported");
    }
    if (!rc && (rope == 0 || key <= rope))
        rc = refuse(m, "rope.dimension_count", "must be part of a head's length");
    if (!rc) rc = put_number(m, "num_attention_heads", (double)heads);
    if (!rc) rc = put_number(m, "num_key_value_heads", (double)heads);
    if (!rc) rc = put_number(m, "kv_lora_rank", (double)rank);
    if (!rc) rc = put_number(m, "qk_rope_head_dim", (double)rope);
    if (!rc) rc = put_number(m, "qk_nope_head_dim", (double)(key - rope));
    if (!rc) rc = put_number(m, "v_head_dim", (double)value);
    if (rc || key_of(m, "attention.q_lora_rank"))
        return rc ? rc : put_number(m, "q_lora_rank", (double)q_rank);
    return cJSON_AddNullToObject(m->out, "q_lora_rank") ? ERR_NONE : no_memory(m->e);
}

/* Whether a layer has a window, by the flag of attention.sliding_window_pattern. */
static bool slides(const making *m, uint64_t layer)
{
    const gguf_value *key = key_of(m, "attention.sliding_window_pattern");
    return key && key->kind == GGUF_ARRAY && key->item == GGUF_BOOL && layer < key->count &&
           key->at[layer] != 0;
}

/* Heads of keys of the layers with a window, or of those without; all of a kind must agree. */
static err_code kind_heads(const making *m, bool window, uint64_t *heads)
{
    const gguf_value *kv = key_of(m, "attention.head_count_kv");
    uint64_t layers = 0;
    err_code rc = layers_of(m, &layers);
    if (rc || !kv || kv->kind != GGUF_ARRAY)
        return rc ? rc : whole(m, "attention.head_count_kv", heads);
    bool any = false;
    for (uint64_t i = 0; i < layers; i++) {
        int64_t n = 0;
        if (slides(m, i) != window) continue;
        if (!gguf_item_whole(kv, i, &n) || n < 1 || (any && (uint64_t)n != *heads))
            return refuse(m, "attention.head_count_kv", "differs between layers of a kind");
        *heads = (uint64_t)n;
        any = true;
    }
    return ERR_NONE;
}

/* How much of a head turns where layers see everything: frequencies beyond have a divisor that
 * leaves nothing. */
static double turning_part(const making *m)
{
    const gguf_tensor *t = gguf_find_tensor(m->g, "rope_freqs.weight");
    uint64_t n = 0;
    if (!t || t->type != GGML_F32 || t->n_dims != 1 || t->ne[0] == 0) return 1;
    for (float v; n < t->ne[0]; n++) {
        memcpy(&v, t->data + n * sizeof(v), sizeof(v));
        if (!(v < NEVER)) break;
    }
    return (double)n / (double)t->ne[0];
}

static err_code put_kind_rope(const making *m, cJSON *all, const char *kind, const char *type,
                              double theta, double part)
{
    cJSON *r = cJSON_AddObjectToObject(all, kind);
    bool ok = r && cJSON_AddStringToObject(r, "rope_type", type) &&
              cJSON_AddNumberToObject(r, "rope_theta", theta) &&
              (part == 1 || cJSON_AddNumberToObject(r, "partial_rotary_factor", part));
    return ok ? ERR_NONE : no_memory(m->e);
}

/* The rotations of a Gemma 4. */
static err_code put_kind_ropes(const making *m)
{
    double theta = 1000000, swa = m->of->swa_theta;
    cJSON *all = cJSON_AddObjectToObject(m->out, "rope_parameters");
    err_code rc = all ? real(m, "rope.freq_base", &theta) : no_memory(m->e);
    if (!rc) rc = real(m, "rope.freq_base_swa", &swa);
    if (!rc && key_of(m, "rope.scaling.type"))
        rc = refuse(m, "rope.scaling.type", "is not supported");
    if (!rc) rc = put_kind_rope(m, all, "full_attention", "proportional", theta, turning_part(m));
    return rc ? rc : put_kind_rope(m, all, "sliding_attention", "default", swa, 1);
}

/* Heads of a Gemma 4: those of layers with a window, and of layers that see everything. */
static err_code put_kinds(const making *m)
{
    static const char *const table = "per_layer_token_embd.weight";
    const gguf_tensor *own = gguf_find_tensor(m->g, table);
    const gguf_value *wide = key_of(m, "feed_forward_length");
    uint64_t heads = 0, key = 0, swa = 0, value = 0, kv = 0, full = 0, layers = 0, n = 0, n_swa = 0;
    int64_t first = 0, last = 0;
    bool no_values = false;
    err_code rc = whole(m, "attention.head_count", &heads);
    if (!rc) rc = whole(m, "attention.key_length", &key);
    value = swa = n = key;
    if (!rc) rc = whole(m, "attention.value_length", &value);
    if (!rc && value != key)
        rc = refuse(m, "attention.value_length", "other than key_length is not supported");
    if (!rc) rc = whole(m, "attention.key_length_swa", &swa);
    value = n_swa = swa;
    if (!rc) rc = whole(m, "attention.value_length_swa", &value);
    if (!rc && value != swa)
        rc = refuse(m, "attention.value_length_swa", "other than key_length_swa is not supported");
    if (!rc) rc = whole(m, "rope.dimension_count", &n);
    if (!rc) rc = whole(m, "rope.dimension_count_swa", &n_swa);
    if (!rc && (n != key || n_swa != swa))
        rc = refuse(m, "rope.dimension_count", "other than a head's length is not supported");
    kv = full = heads;
    if (!rc) rc = kind_heads(m, true, &kv);
    if (!rc) rc = kind_heads(m, false, &full);
    if (!rc) rc = layers_of(m, &layers);
    for (uint64_t i = 0; i < layers && i < LAYERS_MAX && !rc; i++) {
        char keys[64], values[64];
        snprintf(keys, sizeof(keys), "blk.%d.attn_k.weight", (int)i);
        snprintf(values, sizeof(values), "blk.%d.attn_v.weight", (int)i);
        if (slides(m, i)) continue;
        no_values |= gguf_find_tensor(m->g, keys) && !gguf_find_tensor(m->g, values);
    }
    if (!rc) rc = put_number(m, "num_attention_heads", (double)heads);
    if (!rc) rc = put_number(m, "head_dim", (double)swa);
    if (!rc) rc = put_number(m, "global_head_dim", (double)key);
    if (!rc) rc = put_number(m, "num_key_value_heads", (double)kv);
    if (!rc) rc = put_number(m, "num_global_key_value_heads", (double)full);
    if (!rc) rc = put_flag(m, "attention_k_eq_v", no_values);
    if (!rc && own) rc = put_number(m, "vocab_size_per_layer_input", (double)own->ne[1]);
    if (rc || !wide || wide->kind != GGUF_ARRAY) return rc;
    if (gguf_item_whole(wide, 0, &first) && gguf_item_whole(wide, wide->count - 1, &last) &&
        last != first)
        rc = put_flag(m, "use_double_wide_mlp", true);
    return rc;
}

/* A head's length from the matrix of queries, if no key has it. */
static err_code told_by_keys(const making *m, uint64_t *key)
{
    const gguf_tensor *t = gguf_find_tensor(m->g, "blk.0.attn_q.weight");
    uint64_t heads = 0;
    err_code rc = whole(m, "attention.head_count", &heads);
    if (!rc && t && t->n_dims == 2 && m->of->partial && heads > 0 && t->ne[1] % heads == 0)
        *key = t->ne[1] / heads;
    return rc;
}

/* The shape of heads: Hugging Face's head_dim is key_length, or what the model's width gives. */
static err_code put_heads(const making *m)
{
    uint64_t dim = 0, heads = 0, kv = 0, key = 0, value = 0, rope = 0;
    if (m->of->latent) return put_latent(m);
    if (m->of->no_heads) return ERR_NONE;
    if (m->of->kinds) return put_kinds(m);
    err_code rc = whole(m, "embedding_length", &dim);
    if (!rc) rc = whole(m, "attention.head_count", &heads);
    if (rc) return rc;
    if (heads == 0 || heads > dim)
        return refuse(m, "attention.head_count", "is missing, or no number of heads");
    kv = heads;
    key = dim / heads;
    if (!key_of(m, "attention.key_length")) rc = told_by_keys(m, &key);
    if (rc) return rc;
    rc = m->of->heads_differ ? whole_most(m, "attention.head_count_kv", &kv)
                             : whole(m, "attention.head_count_kv", &kv);
    if (!rc) rc = whole(m, "attention.key_length", &key);
    value = rope = key;
    if (!rc) rc = whole(m, "attention.value_length", &value);
    if (!rc) rc = whole(m, "rope.dimension_count", &rope);
    if (rc) return rc;
    if (value != key)
        return refuse(m, "attention.value_length", "other than key_length is not supported");
    if (rope != key && !(m->of->partial && rope < key))
        return refuse(m, "rope.dimension_count", "other than a head's length is not supported");
    rc = m->of->partial ? put_number(m, "partial_rotary_factor", (double)rope / (double)key)
                        : ERR_NONE;
    if (!rc && m->of->wide_layers > 0) rc = put_query_scalar(m, dim / heads, key);
    if (!rc) rc = put_number(m, "num_attention_heads", (double)heads);
    if (!rc) rc = put_number(m, "num_key_value_heads", (double)kv);
    return rc ? rc : put_number(m, "head_dim", (double)key);
}

static err_code put_number_in(const making *m, cJSON *r, const char *key, const char *field,
                              double divisor)
{
    double v = 0;
    err_code rc = real(m, key, &v);
    if (rc || !key_of(m, key)) return rc;
    return cJSON_AddNumberToObject(r, field, v / divisor) ? ERR_NONE : no_memory(m->e);
}

/* The other fields of YaRN.  The file has a tenth of mscale_all_dim for DeepSeek, and the whole of
 * it for other families.  It has no mscale, which equals mscale_all_dim in all these models. */
static err_code put_yarn(const making *m, cJSON *r)
{
    static const char *const mscales[] = {"mscale", "mscale_all_dim"};
    uint64_t original = 0;
    err_code rc = whole(m, "rope.scaling.original_context_length", &original);
    if (!rc && original > 0 &&
        !cJSON_AddNumberToObject(r, "original_max_position_embeddings", (double)original))
        rc = no_memory(m->e);
    if (!rc) rc = put_number_in(m, r, "rope.scaling.yarn_attn_factor", "attention_factor", 1);
    if (!rc) rc = put_number_in(m, r, "rope.scaling.yarn_beta_fast", "beta_fast", 1);
    if (!rc) rc = put_number_in(m, r, "rope.scaling.yarn_beta_slow", "beta_slow", 1);
    for (int i = 0; i < 2 && !rc; i++)
        rc = put_number_in(m, r, "rope.scaling.yarn_log_multiplier", mscales[i],
                           m->of->latent ? 0.1 : 1);
    if (!rc) rc = put_number_in(m, r, "attention.temperature_scale", "llama_4_scaling_beta", 1);
    if (!rc && m->of->whole_ramp && !cJSON_AddFalseToObject(r, "truncate")) rc = no_memory(m->e);
    return rc;
}

/* factor 0: there is none. */
static err_code put_scaling(const making *m, const char *type, size_t len, double factor)
{
    char name[32];
    snprintf(name, sizeof(name), "%.*s", len < 31 ? (int)len : 31, type);
    cJSON *r = cJSON_AddObjectToObject(m->out, "rope_scaling");
    bool ok = r && cJSON_AddStringToObject(r, "rope_type", name) &&
              (factor == 0 || cJSON_AddNumberToObject(r, "factor", factor));
    if (!ok) return no_memory(m->e);
    return strcmp(name, "yarn") == 0 ? put_yarn(m, r) : ERR_NONE;
}

/* A tensor of F32 as a list of the rotation's. */
static err_code put_factors(const making *m, cJSON *r, const char *tensor, const char *field)
{
    const gguf_tensor *t = gguf_find_tensor(m->g, tensor);
    cJSON *list = cJSON_AddArrayToObject(r, field);
    if (!list) return no_memory(m->e);
    if (!t || t->type != GGML_F32 || t->n_dims != 1 || t->ne[0] > FACTORS_MAX)
        return err_set(m->e, ERR_INPUT, "GGUF: tensor '%s' must be a list of at most %d F32 values",
                       tensor, FACTORS_MAX);
    for (uint64_t i = 0; i < t->ne[0]; i++) {
        float v;
        memcpy(&v, t->data + i * sizeof(v), sizeof(v));
        if (!cJSON_AddItemToArray(list, cJSON_CreateNumber((double)v))) return no_memory(m->e);
    }
    return ERR_NONE;
}

/* Longrope, whose factors are tensors. */
static err_code put_longrope(const making *m, double attention)
{
    cJSON *r = cJSON_AddObjectToObject(m->out, "rope_scaling");
    bool ok = r && cJSON_AddStringToObject(r, "rope_type", "longrope") &&
              cJSON_AddNumberToObject(r, "attention_factor", attention);
    err_code rc = ok ? ERR_NONE : no_memory(m->e);
    if (!rc) rc = put_factors(m, r, "rope_factors_long.weight", "long_factor");
    return rc ? rc : put_factors(m, r, "rope_factors_short.weight", "short_factor");
}

static err_code put_rope(const making *m)
{
    double theta = 10000, factor = 0, old = 0, attention = 1;
    const char *type = "none";
    size_t len = 4;
    if (m->of->kinds) return put_kind_ropes(m);
    err_code rc = real(m, "rope.freq_base", &theta);
    if (!rc) rc = real(m, "rope.scaling.factor", &factor);
    if (!rc) rc = real(m, "rope.scale_linear", &old);
    if (!rc) rc = real(m, "rope.scaling.attn_factor", &attention);
    if (!rc) rc = put_number(m, "rope_theta", theta);
    if (rc) return rc;
    const gguf_value *key = key_of(m, "rope.scaling.type");
    if (key && !gguf_text(key, &type, &len)) return refuse(m, "rope.scaling.type", "is no text");
    if (m->of->original && gguf_find_tensor(m->g, "rope_factors_long.weight"))
        return put_longrope(m, attention);
    if (attention != 1) return refuse(m, "rope.scaling.attn_factor", "is not supported");
    if (!key && factor == 0) factor = old;
    bool none = key ? len == 4 && memcmp(type, "none", 4) == 0 : factor == 0 || factor == 1;
    if (none) return put_scaling(m, "default", 7, 0);
    return put_scaling(m, key ? type : "linear", key ? len : 6, factor);
}

static err_code put_window(const making *m)
{
    uint64_t window = 0;
    err_code rc = whole(m, "attention.sliding_window", &window);
    if (rc) return rc;
    if (window > 0 && !m->of->window)
        return refuse(m, "attention.sliding_window", "is not supported for this architecture");
    if (m->of->chunked && key_of(m, "attention.sliding_window") && window != CHUNK)
        return refuse(m, "attention.sliding_window", "other than 8192 is not supported");
    if (window == 0 && m->of->null_window)
        return cJSON_AddNullToObject(m->out, "sliding_window") ? ERR_NONE : no_memory(m->e);
    return window > 0 && !m->of->chunked ? put_number(m, "sliding_window", (double)window)
                                         : ERR_NONE;
}

/* Which layers have a window: a flag for each, or a period, of which one layer has none. */
static err_code put_pattern(const making *m)
{
    static const char name[] = "attention.sliding_window_pattern";
    const gguf_value *key = key_of(m, name);
    uint64_t layers = 0, every = 0;
    err_code rc = layers_of(m, &layers);
    if (rc || !key) return rc;
    bool flags = key->kind == GGUF_ARRAY && key->item == GGUF_BOOL && key->count == layers;
    if (layers > LAYERS_MAX || (!flags && !(gguf_whole(key, &every) && every > 0)))
        return refuse(m, name, "is neither a number nor a flag for each layer");
    cJSON *list = cJSON_AddArrayToObject(m->out, "layer_types");
    for (uint64_t i = 0; i < layers && list; i++) {
        bool slides = flags ? key->at[i] != 0 : (i + 1) % every != 0;
        cJSON *word = cJSON_CreateString(slides ? "sliding_attention" : "full_attention");
        if (!cJSON_AddItemToArray(list, word)) list = NULL;
    }
    return list ? ERR_NONE : no_memory(m->e);
}

/* Rows of the table of layers' own inputs, the rank of their other residual, and which share of a
 * normal distribution is below what a sparse gate leaves out: the file has it in standard
 * deviations, of other layers endless ones. */
static err_code put_streams(const making *m)
{
    static const char name[] = "activation_sparsity_scale";
    const gguf_tensor *own = gguf_find_tensor(m->g, "per_layer_token_embd.weight");
    const gguf_tensor *left = gguf_find_tensor(m->g, "blk.0.laurel_l.weight");
    const gguf_value *key = key_of(m, name);
    uint64_t layers = 0;
    err_code rc = layers_of(m, &layers);
    if (!rc && own) rc = put_number(m, "vocab_size_per_layer_input", (double)own->ne[1]);
    if (!rc && left) rc = put_number(m, "laurel_rank", (double)left->ne[1]);
    if (rc || !key) return rc;
    if (key->kind != GGUF_ARRAY || key->item != GGUF_F32 || key->count != layers)
        return refuse(m, name, "is no number for each layer");
    cJSON *list = cJSON_AddArrayToObject(m->out, "activation_sparsity_pattern");
    for (uint64_t i = 0; i < layers && list; i++) {
        float v;
        memcpy(&v, key->at + i * sizeof(v), sizeof(v));
        double share = v > -8 ? erfc(-(double)v / sqrt(2)) / 2 : 0;
        if (!cJSON_AddItemToArray(list, cJSON_CreateNumber(share))) list = NULL;
    }
    return list ? ERR_NONE : no_memory(m->e);
}

/* Whether a row's list of names has the architecture. */
static bool is_among(const making *m, const char *archs)
{
    size_t n = strlen(m->arch);
    for (const char *at = archs; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strcspn(at, " ") == n && memcmp(at, m->arch, n) == 0) return true;
    return false;
}

/* Fields that only this architecture has. */
static err_code put_own(const making *m)
{
    err_code rc = ERR_NONE;
    double v = m->of->swa_theta;
    for (size_t i = 0; i < gguf_n_number && !rc; i++) {
        const gguf_number *n = &gguf_numbers[i];
        const gguf_value *key = is_among(m, n->archs) ? key_of(m, n->key) : NULL;
        double own = 0;
        uint64_t number = 0;
        if (!n->field || !key) continue;
        bool is = gguf_whole(key, &number);
        rc = is ? ERR_NONE : real(m, n->key, &own);
        if (!rc) rc = put_number(m, n->field, is ? (double)number : own);
    }
    for (size_t i = 0; i < gguf_n_bias && !rc; i++)
        if (is_among(m, gguf_biases[i].archs))
            rc = put_flag(m, gguf_biases[i].field, in_any_layer(m, gguf_biases[i].tensor));
    bool parallel = true;
    if (!rc && m->of->streams) rc = put_streams(m);
    if (!rc && gguf_flag(key_of(m, "use_parallel_residual"), &parallel))
        rc = put_flag(m, "use_parallel_residual", parallel);
    /* Layers of an OLMo 3 that slide turn as all do, but for what scales. */
    if (!rc && strcmp(m->arch, "olmo2") == 0) {
        v = 10000;
        rc = real(m, "rope.freq_base", &v);
    }
    if (!rc) rc = real(m, "rope.freq_base_swa", &v);
    if (!rc && v > 0 && !m->of->kinds) rc = put_number(m, "rope_local_base_freq", v);
    if (!rc && m->of->original && key_of(m, "rope.scaling.original_context_length"))
        rc = put_whole(m, "rope.scaling.original_context_length",
                       "original_max_position_embeddings");
    return rc;
}

/* Layers that have one MLP among those with experts: a list of them, and a word for each. */
static err_code put_dense_layers(const making *m)
{
    uint64_t n = 0;
    err_code rc = layers_of(m, &n);
    cJSON *list = cJSON_AddArrayToObject(m->out, "mlp_only_layers");
    cJSON *words = cJSON_AddArrayToObject(m->out, "mlp_layer_types");
    for (uint64_t i = 0; i < n && i < LAYERS_MAX && list && words && !rc; i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%d.ffn_gate_inp.weight", (int)i);
        bool experts = gguf_find_tensor(m->g, name) != NULL;
        if (!cJSON_AddItemToArray(words, cJSON_CreateString(experts ? "sparse" : "dense")))
            words = NULL;
        if (!experts && !cJSON_AddItemToArray(list, cJSON_CreateNumber((double)i))) list = NULL;
    }
    return rc || (list && words) ? rc : no_memory(m->e);
}

/* The width of layers that are an MLP only: the key has that of the experts beside them. */
static uint64_t mlp_width(const making *m, uint64_t width)
{
    uint64_t layers = 0;
    (void)layers_of(m, &layers);
    for (uint64_t i = 0; i < layers && i < LAYERS_MAX; i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%d.ffn_up.weight", (int)i);
        const gguf_tensor *t = gguf_find_tensor(m->g, name);
        if (t && t->n_dims == 2) return t->ne[1];
    }
    return width;
}

/* The layers with attention, as Bamba has them listed. */
static err_code put_attention_layers(const making *m)
{
    cJSON *list = cJSON_AddArrayToObject(m->out, "attn_layer_indices"), *item;
    const cJSON *words = json_get(m->out, "layer_types");
    int i = 0;
    cJSON_ArrayForEach(item, words)
    {
        bool full = strcmp(item->valuestring, m->of->full) == 0;
        if (full && list && !cJSON_AddItemToArray(list, cJSON_CreateNumber(i))) list = NULL;
        i++;
    }
    return list ? ERR_NONE : no_memory(m->e);
}

/* The mixer of each layer, or that it is an MLP alone, by its tensors. */
static err_code put_mixers(const making *m)
{
    static const char *const words[] = {"ssm_in", "shortconv.in_proj", "ssm_a", "attn_q"};
    uint64_t layers = 0;
    err_code rc = layers_of(m, &layers);
    if (rc || !m->of->full) return rc;
    cJSON *list = cJSON_AddArrayToObject(m->out, m->of->mlp ? "layers_block_type" : "layer_types");
    for (uint64_t i = 0; i < layers && i < LAYERS_MAX && list; i++) {
        char name[64];
        int k = 0;
        for (; k < 4; k++) {
            snprintf(name, sizeof(name), "blk.%d.%s%s", (int)i, words[k], k == 2 ? "" : ".weight");
            if (gguf_find_tensor(m->g, name)) break;
        }
        snprintf(name, sizeof(name), "blk.%d.ffn_gate_inp.weight", (int)i);
        const char *mlp = gguf_find_tensor(m->g, name) ? "moe" : "mlp";
        if (k == 4 && !m->of->mlp)
            return err_set(m->e, ERR_INPUT, "GGUF: layer %d has no mixer that is known", (int)i);
        cJSON *word = cJSON_CreateString(k < 3 ? m->of->other : k == 3 ? m->of->full : mlp);
        if (!cJSON_AddItemToArray(list, word)) list = NULL;
    }
    return list ? put_attention_layers(m) : no_memory(m->e);
}

/* Sizes of a head of a scan or a delta rule, under each family's names for them. */
static err_code put_state(const making *m)
{
    static const char *const fields[] = {"mamba_d_head", "mamba_head_dim", "linear_value_head_dim"};
    static const char *const wider[] = {"mamba_expand", "expand"};
    uint64_t inner = 0, heads = 0, dim = 0;
    err_code rc = whole(m, "ssm.inner_size", &inner);
    if (!rc) rc = whole(m, "ssm.time_step_rank", &heads);
    if (!rc) rc = whole(m, "embedding_length", &dim);
    if (rc || inner == 0) return rc;
    if (heads == 0 || inner % heads != 0)
        return refuse(m, "ssm.inner_size", "is no multiple of ssm.time_step_rank");
    uint64_t each = inner / heads, wide = dim > 0 && inner % dim == 0 ? inner / dim : 0;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++)
        rc = put_number(m, fields[i], (double)each);
    if (!rc && m->of->no_heads) rc = put_number(m, "head_dim", (double)each);
    for (int i = 0; i < 2 && !rc && wide; i++) rc = put_number(m, wider[i], (double)wide);
    return rc;
}

/* How a router with groups chooses and weighs, as DeepSeek's does.  Without keys of groups there
 * are none; its family would assume some. */
static err_code put_route(const making *m)
{
    static const char *const group_fields[] = {"n_group", "topk_group"};
    static const char *const group_keys[] = {"expert_group_count", "expert_group_used_count"};
    uint64_t gating = default_gating(m), groups[2] = {1, 1};
    double scale = 1;
    bool normed = m->of->normed;
    const gguf_value *norm = key_of(m, "expert_weights_norm");
    err_code rc = whole(m, "expert_gating_func", &gating);
    if (!rc) rc = real(m, "expert_weights_scale", &scale);
    if (rc) return rc;
    bool sigmoid = gating == GATING_SIGMOID;
    if (!sigmoid && gating != GATING_SOFTMAX)
        return refuse(m, "expert_gating_func", "other than softmax or sigmoid is not supported");
    if (norm && !gguf_flag(norm, &normed)) return refuse(m, "expert_weights_norm", "is no flag");
    if (normed && !sigmoid)
        return refuse(m, "expert_weights_norm", "beside a softmax is not supported");
    for (int i = 0; i < 2 && !rc; i++) {
        rc = whole(m, group_keys[i], &groups[i]);
        if (!rc) rc = put_number(m, group_fields[i], groups[i] ? (double)groups[i] : 1);
    }
    if (!rc && !sigmoid &&
        !cJSON_AddStringToObject(m->out, "topk_method",
                                 groups[0] > 1 ? "group_limited_greedy" : "greedy"))
        rc = no_memory(m->e);
    if (!rc) rc = put_flag(m, "norm_topk_prob", normed);
    return rc ? rc : put_number(m, "routed_scaling_factor", scale == 0 ? 1 : scale);
}

/* A mixture's keys.  Whether weights are normed llama.cpp mostly knows by the architecture, and
 * whether a Llama 4 norms queries and keys by the number of experts. */
static err_code put_experts(const making *m)
{
    const struct {
        const char *key, *field;
    } fields[] = {{"expert_count", "num_local_experts"},
                  {"expert_count", "num_experts"},
                  {"expert_count", "n_routed_experts"},
                  {"expert_used_count", "num_experts_per_tok"},
                  {"expert_feed_forward_length",
                   m->of->expert_ffn ? m->of->expert_ffn : "moe_intermediate_size"},
                  {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
                  {"expert_shared_count", "n_shared_experts"},
                  {"leading_dense_block_count", "first_k_dense_replace"},
                  {"interleave_moe_layer_step", "interleave_moe_layer_step"}};
    uint64_t experts = 0;
    err_code rc = whole(m, "expert_count", &experts);
    if (!rc && experts == 0 && m->of->mixed) rc = refuse(m, "expert_count", "is missing");
    if (!rc && experts == 0 && key_of(m, "expert_count"))
        rc = put_number(m, "num_local_experts", 0);
    if (rc || experts == 0) return rc;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++)
        if (key_of(m, fields[i].key)) rc = put_whole(m, fields[i].key, fields[i].field);
    if (!rc && !key_of(m, "leading_dense_block_count"))
        rc = put_number(m, "first_k_dense_replace", 0);
    if (!rc && m->of->chunked) rc = put_flag(m, "use_qk_norm", experts != 128);
    if (!rc && m->of->routed) rc = put_route(m);
    if (!rc && !m->of->routed) rc = put_flag(m, "norm_topk_prob", m->of->normed);
    return rc ? rc : put_dense_layers(m);
}

/* What only the tensors show. */
static err_code put_from_tensors(const making *m)
{
    const gguf_tensor *table = gguf_find_tensor(m->g, "token_embd.weight");
    uint64_t rows = table && table->n_dims == 2 ? table->ne[1] : 0, said = rows;
    if (rows == 0 || rows > INT32_MAX)
        return err_set(m->e, ERR_INPUT, "GGUF: tensor 'token_embd.weight' is missing");
    err_code rc = whole(m, "vocab_size", &said);
    if (!rc && said != rows)
        rc = err_set(m->e, ERR_INPUT,
                     "GGUF: %s.vocab_size is %llu, but token_embd.weight has %llu rows", m->arch,
                     (unsigned long long)said, (unsigned long long)rows);
    if (!rc) rc = put_number(m, "vocab_size", (double)rows);
    bool bias = in_any_layer(m, m->of->latent ? "attn_kv_a_mqa.bias" : "attn_q.bias");
    if (!rc) rc = put_flag(m, "tie_word_embeddings", !gguf_find_tensor(m->g, "output.weight"));
    if (!rc) rc = put_flag(m, "attention_bias", bias);
    if (!rc) rc = put_flag(m, "qkv_bias", bias);
    if (!rc && !json_get(m->out, "mlp_bias") && !json_get(m->out, "use_bias"))
        rc = put_flag(m, "mlp_bias", in_any_layer(m, "ffn_gate.bias"));
    return rc;
}

/* Epsilon of the family's kind of norm; of the other kind if the file has only that one. */
static const char *eps_key(const making *m)
{
    static const char *const names[] = {"attention.layer_norm_epsilon",
                                        "attention.layer_norm_rms_epsilon"};
    bool rms = !m->of->layer_norm;
    return names[key_of(m, names[rms]) || !key_of(m, names[!rms]) ? rms : !rms];
}

/* Whether a key is an epsilon of norms, and no other than that which is read. */
static bool is_same_eps(const making *m, const char *name, const gguf_value *v)
{
    double own = 0, read = 0;
    if (strcmp(name, eps_key(m)) == 0) return true;
    if (strcmp(name, "attention.layer_norm_epsilon") != 0 &&
        strcmp(name, "attention.layer_norm_rms_epsilon") != 0)
        return false;
    return gguf_real(v, &own) && gguf_real(key_of(m, eps_key(m)), &read) && own == read;
}

/* Each key of the architecture must be read somewhere, or have a value without effect. */
static err_code check_keys(const making *m)
{
    static const char *const known[] = {"block_count",
                                        "embedding_length",
                                        "feed_forward_length",
                                        "context_length",
                                        "vocab_size",
                                        "attention.head_count",
                                        "attention.key_length",
                                        "attention.head_count_kv",
                                        "rope.freq_base",
                                        "rope.dimension_count",
                                        "attention.value_length",
                                        "rope.scaling.type",
                                        "rope.scaling.factor",
                                        "rope.scaling.attn_factor",
                                        "rope.scale_linear",
                                        "rope.scaling.finetuned",
                                        "rope.scaling.original_context_length",
                                        "rope.scaling.yarn_attn_factor",
                                        "rope.scaling.yarn_beta_fast",
                                        "rope.scaling.yarn_beta_slow",
                                        "tensor_data_layout",
                                        "expert_count",
                                        "expert_used_count",
                                        "expert_feed_forward_length",
                                        "expert_shared_feed_forward_length",
                                        "attention.sliding_window",
                                        "nextn_predict_layers"};
    static const char *const zero[] = {"rope.dimension_count_swa", "leading_dense_block_count"};
    char prefix[40];
    size_t n = (size_t)snprintf(prefix, sizeof(prefix), "%s.", m->arch);
    for (int i = 0; i < gguf_keys(m->g); i++) {
        const gguf_value *v = gguf_key_at(m->g, i);
        char name[96];
        uint64_t value = 1;
        bool causal, is = false;
        if (v->key_bytes <= n || memcmp(v->key, prefix, n) != 0) continue;
        snprintf(name, sizeof(name), "%.*s", v->key_bytes - n < 95 ? (int)(v->key_bytes - n) : 95,
                 v->key + n);
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
            is |= strcmp(name, known[k]) == 0;
        for (size_t k = 0; k < sizeof(zero) / sizeof(zero[0]); k++)
            is |= strcmp(name, zero[k]) == 0 && gguf_whole(v, &value) && value == 0;
        for (size_t k = 0; k < gguf_n_number; k++)
            is |= is_among(m, gguf_numbers[k].archs) && strcmp(name, gguf_numbers[k].key) == 0;
        is |= is_same_eps(m, name, v);
        is |= strcmp(name, "rope.freq_base_swa") == 0 && m->of->swa_theta > 0;
        is |= strcmp(name, "attention.causal") == 0 && gguf_flag(v, &causal) && causal;
        if (!is) return refuse(m, name, "is not supported");
    }
    return ERR_NONE;
}

static err_code put_ids(const making *m)
{
    static const char *const ends[] = {"eos", "eot", "eom"};
    uint64_t id = 0, seen[3], n = 0;
    err_code rc = ERR_NONE;
    if (gguf_whole(gguf_find(m->g, "tokenizer.ggml.bos_token_id"), &id))
        rc = put_number(m, "bos_token_id", (double)id);
    cJSON *list = cJSON_AddArrayToObject(m->out, "eos_token_id");
    for (int i = 0; i < 3 && list && !rc; i++) {
        char key[64];
        snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", ends[i]);
        if (!gguf_whole(gguf_find(m->g, key), &id)) continue;
        bool twice = false;
        for (uint64_t k = 0; k < n; k++) twice |= seen[k] == id;
        if (twice) continue;
        seen[n++] = id;
        if (!cJSON_AddItemToArray(list, cJSON_CreateNumber((double)id))) list = NULL;
    }
    return rc || list ? rc : no_memory(m->e);
}

/* general.type and general.architecture: a model, of those that this engine computes. */
static err_code read_arch(making *m, char *out, size_t size)
{
    const char *s;
    size_t len;
    uint64_t number = 0;
    if (gguf_text(gguf_find(m->g, "general.type"), &s, &len) &&
        (len != 5 || memcmp(s, "model", 5) != 0))
        return err_set(m->e, ERR_UNSUPPORTED, "GGUF: general.type must be model, not '%.*s'",
                       len < 32 ? (int)len : 32, s);
    if (gguf_whole(gguf_find(m->g, "split.no"), &number) && number != 0)
        return err_set(m->e, ERR_INPUT, "GGUF: this is not the first of several files; name that");
    if (!gguf_text(gguf_find(m->g, "general.architecture"), &s, &len))
        return err_set(m->e, ERR_INPUT, "GGUF: general.architecture is missing");
    snprintf(out, size, "%.*s", len < size ? (int)len : (int)size - 1, s);
    m->arch = out;
    for (size_t i = 0; i < gguf_n_arch; i++)
        if (strcmp(out, gguf_archs[i].name) == 0) m->of = &gguf_archs[i];
    if (m->of && m->of->refused)
        return err_set(m->e, ERR_UNSUPPORTED,
                       "GGUF: general.architecture '%s' is not supported: %s", out, m->of->refused);
    if (m->of) return ERR_NONE;
    return err_set(m->e, ERR_UNSUPPORTED,
                   "GGUF: general.architecture '%s' is not supported; docs/reference/models.md "
                   "lists those that are",
                   out);
}

/* A text model whose type occurs only inside that of a wrapper. */
static err_code wrap(const making *m)
{
    cJSON *inner = cJSON_CreateObject();
    while (inner && m->out->child) {
        cJSON *item = cJSON_DetachItemViaPointer(m->out, m->out->child);
        if (cJSON_AddItemToObject(inner, item->string, item)) continue;
        cJSON_Delete(item);
        cJSON_Delete(inner);
        inner = NULL;
    }
    bool ok = inner && cJSON_AddItemToObject(m->out, "text_config", inner) &&
              cJSON_AddStringToObject(m->out, "model_type", m->of->wrapper);
    return ok ? ERR_NONE : no_memory(m->e);
}

err_code gguf_make_config(const gguf *g, cJSON *out, err *e)
{
    /* The families' names for the epsilon of norms. */
    static const char *const names[] = {"layer_norm_eps", "rms_norm_eps", "norm_epsilon",
                                        "norm_eps", "layer_norm_epsilon"};
    char arch[32];
    making m = {.g = g, .out = out, .e = e};
    double eps = -1;
    err_code rc = read_arch(&m, arch, sizeof(arch));
    if (!rc) rc = check_keys(&m);
    if (rc) return rc;
    if (!cJSON_AddStringToObject(out, "model_type", family_of(&m))) return no_memory(e);
    uint64_t layers = 0, spare = 0;
    rc = layers_of(&m, &layers);
    if (!rc && layers == 0) rc = refuse(&m, "block_count", "is missing");
    if (!rc) rc = put_number(&m, "num_hidden_layers", (double)layers);
    if (!rc) rc = whole(&m, "nextn_predict_layers", &spare);
    if (!rc && spare > 0) rc = put_number(&m, "num_nextn_predict_layers", (double)spare);
    if (!rc) rc = put_whole(&m, "embedding_length", "hidden_size");
    uint64_t ffn = 0;
    if (!rc)
        rc = m.of->kinds ? first_of(&m, "feed_forward_length", &ffn)
                         : whole_most(&m, "feed_forward_length", &ffn);
    if (!rc && m.of->mlp) ffn = mlp_width(&m, ffn);
    if (!rc && ffn > 0)
        rc = put_number(&m, m.of->ffn ? m.of->ffn : "intermediate_size", (double)ffn);
    if (!rc) rc = put_flag(&m, "block_auto_adjust_ff_dim", false);
    if (!rc) rc = put_whole(&m, "context_length", "max_position_embeddings");
    if (!rc) rc = put_heads(&m);
    if (!rc) rc = put_rope(&m);
    if (!rc) rc = put_window(&m);
    if (!rc) rc = put_pattern(&m);
    if (!rc) rc = put_own(&m);
    if (!rc) rc = real(&m, eps_key(&m), &eps);
    if (!rc && eps < 0 && !m.of->no_eps) rc = refuse(&m, eps_key(&m), "is missing");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !rc && eps >= 0; i++)
        rc = put_number(&m, names[i], eps);
    if (!rc) rc = put_mixers(&m);
    if (!rc) rc = put_state(&m);
    if (!rc) rc = put_experts(&m);
    if (!rc) rc = put_from_tensors(&m);
    if (!rc) rc = put_ids(&m);
    return rc || !m.of->wrapper ? rc : wrap(&m);
}

/* ---- generation_config.json ------------------------------------------------------------------ */

err_code gguf_make_generation(const gguf *g, cJSON *out, err *e)
{
    static const struct {
        const char *key, *field;
    } fields[] = {
#define ROW(kind, name, low, high, neutral, most, gguf) {gguf, #name},
        SAMPLING_MODEL_LIST(ROW)
#undef ROW
    };
    making m = {.g = g, .out = out, .e = e};
    err_code rc = ERR_NONE;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++) {
        double v;
        if (gguf_real(gguf_find(g, fields[i].key), &v)) rc = put_number(&m, fields[i].field, v);
    }
    return rc;
}
