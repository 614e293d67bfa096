/* gguf_config.c -- a GGUF's keys as config.json and generation_config.json.
 *
 * Keys of the architecture that are not in the list below are refused: most of them change the
 * arithmetic.  What only tensors tell (biases, a tied output, the vocabulary) is looked up there.
 */
#include <stdio.h>
#include <string.h>

#include "engine/files/documents_inside.h"

enum { LAYERS_MAX = 1024 };

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
} gguf_arch;

static const gguf_arch archs[] = {
    {.name = "llama", .window = true}, /* a Mistral is one with a window, a Mixtral with experts */
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
    {.name = "olmo2"},
    {.name = "cohere2", .layer_norm = true, .window = true},
    {.name = "starcoder2", .layer_norm = true},
    {.name = "granite"},
    {.name = "smollm3"},
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
};

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

/* Which family's arithmetic it is; a window belongs to a Mistral, which is a llama here. */
static const char *family_of(const making *m)
{
    uint64_t window = 0, experts = 0;
    bool llama = strcmp(m->arch, "llama") == 0;
    if (m->of->family) return m->of->family;
    if (llama && gguf_whole(key_of(m, "expert_count"), &experts) && experts > 0) return "mixtral";
    if (llama && gguf_whole(key_of(m, "attention.sliding_window"), &window) && window > 0)
        return "mistral";
    return m->arch;
}

/* Which length it is by that scores are scaled, llama.cpp knows by the number of layers. */
static err_code put_query_scalar(const making *m, uint64_t wide, uint64_t key)
{
    uint64_t layers = 0;
    err_code rc = whole(m, "block_count", &layers);
    bool is_wide = layers == (uint64_t)m->of->wide_layers;
    return rc ? rc : put_number(m, "query_pre_attn_scalar", (double)(is_wide ? wide : key));
}

/* The shape of heads: Hugging Face's head_dim is key_length, or what the model's width gives. */
static err_code put_heads(const making *m)
{
    uint64_t dim = 0, heads = 0, kv = 0, key = 0, value = 0, rope = 0;
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

static err_code put_scaling(const making *m, const char *type, size_t len, double factor)
{
    char name[32];
    snprintf(name, sizeof(name), "%.*s", len < 31 ? (int)len : 31, type);
    cJSON *r = cJSON_AddObjectToObject(m->out, "rope_scaling");
    bool ok = r && cJSON_AddStringToObject(r, "rope_type", name) &&
              cJSON_AddNumberToObject(r, "factor", factor);
    return ok ? ERR_NONE : no_memory(m->e);
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
    if (attention != 1) return refuse(m, "rope.scaling.attn_factor", "is not supported");
    if (!key && factor == 0) factor = old;
    bool plain = len == 4 && memcmp(type, "none", 4) == 0;
    if (key && plain) return ERR_NONE;
    if (!key && (factor == 0 || factor == 1)) return ERR_NONE;
    return put_scaling(m, key ? type : "linear", key ? len : 6, factor);
}

static err_code put_window(const making *m)
{
    uint64_t window = 0;
    err_code rc = whole(m, "attention.sliding_window", &window);
    if (rc) return rc;
    if (window > 0 && !m->of->window)
        return refuse(m, "attention.sliding_window", "is not supported for this architecture");
    return window > 0 ? put_number(m, "sliding_window", (double)window) : ERR_NONE;
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

/* A mixture's keys.  Whether weights are normed llama.cpp knows by the architecture. */
static err_code put_experts(const making *m)
{
    static const struct {
        const char *key, *field;
    } fields[] = {{"expert_count", "num_experts"},
                  {"expert_used_count", "num_experts_per_tok"},
                  {"expert_feed_forward_length", "moe_intermediate_size"},
                  {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"}};
    uint64_t experts = 0;
    err_code rc = whole(m, "expert_count", &experts);
    if (rc || experts == 0) return rc;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !rc; i++)
        if (key_of(m, fields[i].key)) rc = put_whole(m, fields[i].key, fields[i].field);
    if (!rc) rc = put_flag(m, "norm_topk_prob", strcmp(m->arch, "qwen3moe") == 0);
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
    if (!rc) rc = put_flag(m, "tie_word_embeddings", !gguf_find_tensor(m->g, "output.weight"));
    if (!rc)
        rc = put_flag(m, "attention_bias", gguf_find_tensor(m->g, "blk.0.attn_q.bias") != NULL);
    if (!rc) rc = put_flag(m, "qkv_bias", gguf_find_tensor(m->g, "blk.0.attn_q.bias") != NULL);
    if (!rc) rc = put_flag(m, "mlp_bias", gguf_find_tensor(m->g, "blk.0.ffn_gate.bias") != NULL);
    if (!rc) rc = put_flag(m, "use_bias", gguf_find_tensor(m->g, "blk.0.attn_q.bias") != NULL);
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
    if (!rc) rc = put_whole(&m, "feed_forward_length", "intermediate_size");
    if (!rc) rc = put_whole(&m, "context_length", "max_position_embeddings");
    if (!rc) rc = put_heads(&m);
    if (!rc) rc = put_rope(&m);
    if (!rc) rc = put_window(&m);
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
