/* gguf_config.c -- a GGUF's keys as config.json and generation_config.json.
 *
 * Keys of the architecture that are not in the list below are refused: most of them change the
 * arithmetic.  What only tensors tell (biases, a tied output, the vocabulary) is looked up there.
 */
#include <stdio.h>
#include <string.h>

#include "engine/files/documents_inside.h"

enum { LAYERS_MAX = 1024, CHUNK = 8192, FACTORS_MAX = 1024 };

/* What llama.cpp calls an architecture, and what its file leaves to be known. */
typedef struct gguf_arch {
    const char *name, *family; /* family NULL: the same name */
    bool layer_norm;           /* the key of epsilon is that of a norm with a mean */
    bool window;               /* attention.sliding_window is the family's */
    bool partial;              /* a part of each head turns: rope.dimension_count */
    bool original;             /* rope.scaling.original_context_length is the family's */
    /* Layers of the one model whose scores are scaled by its width over its heads, not by a head's
     * length; 0: the family scales no scores of its own. */
    int wide_layers;
    double swa_theta; /* rope.freq_base_swa where it is not told; 0: there is none */
    bool mixed;       /* every file of it has experts */
    bool latent;      /* attention over latents, and a family that the router's scores tell */
    bool whole_ramp;  /* YaRN's borders are not rounded, whatever llama.cpp does */
    bool chunked;     /* attention.sliding_window is not told, or CHUNK */
    /* Fields of feed_forward_length and of expert_feed_forward_length; NULL: the usual ones. */
    const char *ffn, *expert_ffn;
} gguf_arch;

static const gguf_arch archs[] = {
    {.name = "llama", .window = true}, /* a Mistral is one with a window, a Mixtral with experts */
    {.name = "mistral3", .window = true},
    {.name = "qwen2"},
    {.name = "qwen3"},
    {.name = "qwen2moe", .family = "qwen2_moe"},
    {.name = "qwen3moe", .family = "qwen3_moe"},
    {.name = "olmoe"},
    {.name = "gemma2", .window = true, .wide_layers = 46},
    {.name = "gemma3",
     .family = "gemma3_text",
     .window = true,
     .wide_layers = 62,
     .swa_theta = 10000},
    {.name = "phi3", .window = true, .partial = true, .original = true},
    {.name = "glm4", .partial = true},
    {.name = "olmo2", .window = true}, /* with one it is an OLMo 3 */
    {.name = "cohere2", .layer_norm = true, .window = true},
    {.name = "starcoder2", .layer_norm = true},
    {.name = "granite"},
    {.name = "granitemoe", .mixed = true},
    {.name = "smollm3"},
    {.name = "gpt-oss", .family = "gpt_oss", .window = true, .mixed = true, .whole_ramp = true},
    {.name = "deepseek2", .mixed = true, .latent = true},
    {.name = "llama4",
     .family = "llama4_text",
     .window = true,
     .mixed = true,
     .chunked = true,
     .ffn = "intermediate_size_mlp",
     .expert_ffn = "intermediate_size"},
};

/* Numbers that one architecture has. */
static const struct {
    const char *arch, *key, *field;
} reals[] = {
    {"gemma2", "attn_logit_softcapping", "attn_logit_softcapping"},
    {"gemma2", "final_logit_softcapping", "final_logit_softcapping"},
    {"gemma3", "final_logit_softcapping", "final_logit_softcapping"},
    {"cohere2", "logit_scale", "logit_scale"},
    {"granite", "attention.scale", "attention_multiplier"},
    {"granite", "embedding_scale", "embedding_multiplier"},
    {"granite", "residual_scale", "residual_multiplier"},
    {"granite", "logit_scale", "logits_scaling"},
    {"granitemoe", "attention.scale", "attention_multiplier"},
    {"granitemoe", "embedding_scale", "embedding_multiplier"},
    {"granitemoe", "residual_scale", "residual_multiplier"},
    {"granitemoe", "logit_scale", "logits_scaling"},
};

/* Keys that one architecture has besides. */
static const struct {
    const char *arch, *key;
} own_keys[] = {
    {"deepseek2", "attention.q_lora_rank"},
    {"deepseek2", "attention.kv_lora_rank"},
    {"deepseek2", "attention.key_length_mla"},
    {"deepseek2", "attention.value_length_mla"},
    {"deepseek2", "leading_dense_block_count"},
    {"deepseek2", "expert_shared_count"},
    {"deepseek2", "expert_weights_scale"},
    {"deepseek2", "expert_weights_norm"},
    {"deepseek2", "expert_gating_func"},
    {"deepseek2", "expert_group_count"},
    {"deepseek2", "expert_group_used_count"},
    {"deepseek2", "rope.scaling.yarn_log_multiplier"},
    {"llama4", "interleave_moe_layer_step"},
    {"olmo2", "attention.sliding_window_pattern"},
    {"olmo2", "rope.freq_base_swa"},
    {"gpt-oss", "attention.sliding_window_pattern"},
    {"gemma3", "attention.sliding_window_pattern"},
    {"cohere2", "attention.sliding_window_pattern"},
};

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

/* A whole number; an array must have the same one for each layer.  *v stays where the key is not
 * there. */
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

/* Which family's arithmetic it is; a window belongs to a Mistral, which is a llama here, and a
 * sigmoid of the router's scores to a DeepSeek-V3. */
static const char *family_of(const making *m)
{
    uint64_t window = 0, experts = 0, gating = GATING_SOFTMAX;
    bool llama = strcmp(m->arch, "llama") == 0 || strcmp(m->arch, "mistral3") == 0;
    if (m->of->family) return m->of->family;
    if (m->of->latent) {
        (void)gguf_whole(key_of(m, "expert_gating_func"), &gating);
        return gating == GATING_SIGMOID ? "deepseek_v3" : "deepseek_v2";
    }
    if (llama && gguf_whole(key_of(m, "expert_count"), &experts) && experts > 0) return "mixtral";
    (void)gguf_whole(key_of(m, "attention.sliding_window"), &window);
    if (llama) return window > 0 ? "mistral" : "llama";
    return window > 0 && strcmp(m->arch, "olmo2") == 0 ? "olmo3" : m->arch;
}

/* Which length it is by that scores are scaled, llama.cpp knows by the number of layers. */
static err_code put_query_scalar(const making *m, uint64_t wide, uint64_t key)
{
    uint64_t layers = 0;
    err_code rc = whole(m, "block_count", &layers);
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
    if (!rc) rc = whole(m, "attention.head_count_kv", &kv);
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
        if (value != rank) return refuse(m, "attention.value_length", "is not the latent's");
        rc = whole(m, "attention.key_length_mla", &key);
        if (!rc) rc = whole(m, "attention.value_length_mla", &value);
    } else if (kv != heads) {
        return refuse(m, "attention.head_count_kv", "other than head_count is not supported");
    }
    if (!rc && (rope == 0 || key <= rope))
        rc = refuse(m, "rope.dimension_count", "is no part of a head's length");
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

/* The shape of heads: Hugging Face's head_dim is key_length, or what the model's width gives. */
static err_code put_heads(const making *m)
{
    uint64_t dim = 0, heads = 0, kv = 0, key = 0, value = 0, rope = 0;
    if (m->of->latent) return put_latent(m);
    err_code rc = whole(m, "embedding_length", &dim);
    if (!rc) rc = whole(m, "attention.head_count", &heads);
    if (rc) return rc;
    if (heads == 0 || heads > dim)
        return refuse(m, "attention.head_count", "is missing, or no number of heads");
    kv = heads;
    key = dim / heads;
    rc = whole(m, "attention.head_count_kv", &kv);
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

/* What YaRN has besides its factor.  DeepSeek's multiplier is a tenth of mscale_all_dim there;
 * mscale is the same in each of these models, and is not told. */
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
        rc = put_number_in(m, r, "rope.scaling.yarn_log_multiplier", mscales[i], 0.1);
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
        return err_set(m->e, ERR_INPUT, "GGUF: tensor '%s' is no list of at most %d F32", tensor,
                       FACTORS_MAX);
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
    return window > 0 && !m->of->chunked ? put_number(m, "sliding_window", (double)window)
                                         : ERR_NONE;
}

/* Which layers have a window: a flag for each, or each so-manieth has none. */
static err_code put_pattern(const making *m)
{
    static const char name[] = "attention.sliding_window_pattern";
    const gguf_value *key = key_of(m, name);
    uint64_t layers = 0, every = 0;
    err_code rc = whole(m, "block_count", &layers);
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

/* What this architecture has alone. */
static err_code put_own(const making *m)
{
    err_code rc = ERR_NONE;
    double v = m->of->swa_theta;
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]) && !rc; i++) {
        double own = 0;
        if (strcmp(reals[i].arch, m->arch) != 0 || !key_of(m, reals[i].key)) continue;
        rc = real(m, reals[i].key, &own);
        if (!rc) rc = put_number(m, reals[i].field, own);
    }
    /* Layers of an OLMo 3 that slide turn as all do, but for what scales. */
    if (!rc && strcmp(m->arch, "olmo2") == 0) {
        v = 10000;
        rc = real(m, "rope.freq_base", &v);
    }
    if (!rc) rc = real(m, "rope.freq_base_swa", &v);
    if (!rc && v > 0) rc = put_number(m, "rope_local_base_freq", v);
    if (!rc && m->of->original && key_of(m, "rope.scaling.original_context_length"))
        rc = put_whole(m, "rope.scaling.original_context_length",
                       "original_max_position_embeddings");
    return rc;
}

/* Layers that have one MLP among those with experts. */
static err_code put_dense_layers(const making *m)
{
    uint64_t n = 0;
    err_code rc = whole(m, "block_count", &n);
    cJSON *list = cJSON_AddArrayToObject(m->out, "mlp_only_layers");
    for (uint64_t i = 0; i < n && i < LAYERS_MAX && list && !rc; i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%d.ffn_gate_inp.weight", (int)i);
        if (gguf_find_tensor(m->g, name)) continue;
        if (!cJSON_AddItemToArray(list, cJSON_CreateNumber((double)i))) list = NULL;
    }
    return rc || list ? rc : no_memory(m->e);
}

/* How DeepSeek's router chooses and weighs.  Groups that a file does not tell of, there are none;
 * its family would assume some. */
static err_code put_route(const making *m)
{
    static const char *const group_fields[] = {"n_group", "topk_group"};
    static const char *const group_keys[] = {"expert_group_count", "expert_group_used_count"};
    uint64_t gating = GATING_SOFTMAX, groups[2] = {1, 1};
    double scale = 1;
    bool normed = false;
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
    if (rc || experts == 0) return rc;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++)
        if (key_of(m, fields[i].key)) rc = put_whole(m, fields[i].key, fields[i].field);
    if (!rc && m->of->chunked) rc = put_flag(m, "use_qk_norm", experts != 128);
    if (!rc && m->of->latent) rc = put_route(m);
    if (!rc && !m->of->latent) rc = put_flag(m, "norm_topk_prob", strcmp(m->arch, "qwen3moe") == 0);
    return rc ? rc : put_dense_layers(m);
}

/* What the tensors tell. */
static err_code put_from_tensors(const making *m)
{
    const gguf_tensor *table = gguf_find_tensor(m->g, "token_embd.weight");
    uint64_t rows = table && table->n_dims == 2 ? table->ne[1] : 0, said = rows;
    if (rows == 0 || rows > INT32_MAX)
        return err_set(m->e, ERR_INPUT, "GGUF: tensor 'token_embd.weight' is missing");
    err_code rc = whole(m, "vocab_size", &said);
    if (!rc && said != rows)
        rc =
            err_set(m->e, ERR_INPUT, "GGUF: %s.vocab_size is %llu, token_embd.weight has %llu rows",
                    m->arch, (unsigned long long)said, (unsigned long long)rows);
    if (!rc) rc = put_number(m, "vocab_size", (double)rows);
    const char *biased = m->of->latent ? "blk.0.attn_kv_a_mqa.bias" : "blk.0.attn_q.bias";
    bool bias = gguf_find_tensor(m->g, biased) != NULL;
    if (!rc) rc = put_flag(m, "tie_word_embeddings", !gguf_find_tensor(m->g, "output.weight"));
    if (!rc) rc = put_flag(m, "attention_bias", bias);
    if (!rc) rc = put_flag(m, "qkv_bias", bias);
    if (!rc) rc = put_flag(m, "mlp_bias", gguf_find_tensor(m->g, "blk.0.ffn_gate.bias") != NULL);
    if (!rc) rc = put_flag(m, "use_bias", bias);
    return rc;
}

static const char *eps_key(const making *m)
{
    return m->of->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
}

/* Every key of the architecture is one that is read, or asks for nothing. */
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
                                        "attention.sliding_window"};
    static const char *const zero[] = {"rope.dimension_count_swa", "nextn_predict_layers",
                                       "leading_dense_block_count"};
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
        for (size_t k = 0; k < sizeof(reals) / sizeof(reals[0]); k++)
            is |= strcmp(m->arch, reals[k].arch) == 0 && strcmp(name, reals[k].key) == 0;
        for (size_t k = 0; k < sizeof(own_keys) / sizeof(own_keys[0]); k++)
            is |= strcmp(m->arch, own_keys[k].arch) == 0 && strcmp(name, own_keys[k].key) == 0;
        is |= strcmp(name, eps_key(m)) == 0;
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
        return err_set(m->e, ERR_UNSUPPORTED, "GGUF: general.type is '%.*s', not model",
                       len < 32 ? (int)len : 32, s);
    if (gguf_whole(gguf_find(m->g, "split.no"), &number) && number != 0)
        return err_set(m->e, ERR_INPUT, "GGUF: this is not the first of several files; name that");
    if (!gguf_text(gguf_find(m->g, "general.architecture"), &s, &len))
        return err_set(m->e, ERR_INPUT, "GGUF: general.architecture is missing");
    snprintf(out, size, "%.*s", len < size ? (int)len : (int)size - 1, s);
    m->arch = out;
    char names[200] = "";
    size_t at = 0;
    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        if (strcmp(out, archs[i].name) == 0) m->of = &archs[i];
        at +=
            (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", archs[i].name);
    }
    if (m->of) return ERR_NONE;
    return err_set(m->e, ERR_UNSUPPORTED,
                   "GGUF: general.architecture '%s' is not supported (%s are)", out, names);
}

err_code gguf_make_config(const gguf *g, cJSON *out, err *e)
{
    char arch[32];
    making m = {.g = g, .out = out, .e = e};
    double eps = -1;
    err_code rc = read_arch(&m, arch, sizeof(arch));
    if (!rc) rc = check_keys(&m);
    if (rc) return rc;
    if (!cJSON_AddStringToObject(out, "model_type", family_of(&m))) return no_memory(e);
    rc = put_whole(&m, "block_count", "num_hidden_layers");
    if (!rc) rc = put_whole(&m, "embedding_length", "hidden_size");
    if (!rc) rc = put_whole(&m, "feed_forward_length", m.of->ffn ? m.of->ffn : "intermediate_size");
    if (!rc) rc = put_whole(&m, "context_length", "max_position_embeddings");
    if (!rc) rc = put_heads(&m);
    if (!rc) rc = put_rope(&m);
    if (!rc) rc = put_window(&m);
    if (!rc) rc = put_pattern(&m);
    if (!rc) rc = put_own(&m);
    if (!rc) rc = real(&m, eps_key(&m), &eps);
    if (!rc && eps < 0) rc = refuse(&m, eps_key(&m), "is missing");
    /* By the name that the family has for it. */
    if (!rc) rc = put_number(&m, m.of->layer_norm ? "layer_norm_eps" : "rms_norm_eps", eps);
    if (!rc && m.of->layer_norm) rc = put_number(&m, "norm_epsilon", eps);
    if (!rc) rc = put_experts(&m);
    if (!rc) rc = put_from_tensors(&m);
    return rc ? rc : put_ids(&m);
}

/* ---- generation_config.json ------------------------------------------------------------------ */

err_code gguf_make_generation(const gguf *g, cJSON *out, err *e)
{
    static const struct {
        const char *key, *field;
    } fields[] = {{"general.sampling.temp", "temperature"},
                  {"general.sampling.top_p", "top_p"},
                  {"general.sampling.top_k", "top_k"},
                  {"general.sampling.min_p", "min_p"},
                  {"general.sampling.penalty_repeat", "repetition_penalty"}};
    making m = {.g = g, .out = out, .e = e};
    err_code rc = ERR_NONE;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++) {
        double v;
        if (gguf_real(gguf_find(g, fields[i].key), &v)) rc = put_number(&m, fields[i].field, v);
    }
    return rc;
}
