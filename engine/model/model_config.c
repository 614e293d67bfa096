/* model_config.c -- config.json and generation_config.json, as transformers writes them.
 *
 * Reads the fields that change the arithmetic, under their old and their new names, with the
 * defaults of each family's configuration class.  A value that this engine would compute wrongly
 * is refused with the field's name: a model that answers slightly wrong is the worst outcome.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/model/model.h"
#include "engine/model/model_inside.h"
#include "engine/sample/bars.h"

/* What a family's configuration class assumes when a field is absent. */
typedef struct family {
    const char *type, *architecture;
    int n_kv_head; /* 0: as many as heads */
    int head_dim;  /* 0: hidden_size / num_attention_heads */
    int max_pos, window;
    bool qkv_bias;     /* always there */
    bool may_bias;     /* attention_bias decides over q, k, v and o */
    bool may_mlp_bias; /* mlp_bias decides over gate, up and down */
    bool qk_norm;
    bool window_switch; /* use_sliding_window (default: off) decides over sliding_window */
} family;

static const family families[] = {
    {.type = "llama",
     .architecture = "LlamaForCausalLM",
     .max_pos = 2048,
     .may_bias = true,
     .may_mlp_bias = true},
    {.type = "mistral",
     .architecture = "MistralForCausalLM",
     .n_kv_head = 8,
     .max_pos = 131072,
     .window = 4096},
    {.type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .n_kv_head = 32,
     .max_pos = 32768,
     .window = 4096,
     .qkv_bias = true,
     .window_switch = true},
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .n_kv_head = 32,
     .head_dim = 128,
     .max_pos = 32768,
     .window = 4096,
     .may_bias = true,
     .qk_norm = true,
     .window_switch = true},
};

enum {
    LAYERS_MAX = 1024,
    DIM_MAX = 1 << 17,
    HEADS_MAX = 4096,
    HEAD_DIM_MAX = 1024,
    FFN_MAX = 1 << 20,
    VOCAB_MAX = 1 << 22,
    POS_MAX = 1 << 22,
};

/* ----------------------------------------------------------------------------- file -- */

static err_code read_all(int fd, const char *name, size_t bytes, char **text, err *e)
{
    char *buf = malloc(bytes + 1);
    if (!buf) return err_set(e, ERR_NOMEM, "%s: no memory for %zu bytes", name, bytes);
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = read(fd, buf + got, bytes - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int why = errno;
            free(buf);
            return err_set(e, ERR_IO, "%s: can't read: %s", name,
                           n < 0 ? strerror(why) : "it became shorter");
        }
        got += (size_t)n;
    }
    buf[bytes] = '\0';
    *text = buf;
    return ERR_NONE;
}

err_code model_file_path(char *out, size_t size, const char *dir, const char *name, err *e)
{
    int n = snprintf(out, size, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= size) {
        return err_set(e, ERR_INPUT, "%.64s: the path is too long", name);
    }
    return ERR_NONE;
}

err_code model_json_read(const char *dir, const char *name, cJSON **out, err *e)
{
    *out = NULL;
    char path[MODEL_PATH_MAX];
    err_code rc = model_file_path(path, sizeof(path), dir, name, e);
    if (rc) return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT) return err_set(e, ERR_NOT_FOUND, "the model has no %s", name);
        return err_set(e, ERR_IO, "%s: can't open: %s", name, strerror(errno));
    }

    struct stat st;
    char *text = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_IO, "%s is not a regular file", name);
    } else if ((uint64_t)st.st_size > json_limits_trusted.max_bytes) {
        rc = err_set(e, ERR_LIMIT, "%s: %lld bytes exceed %zu", name, (long long)st.st_size,
                     json_limits_trusted.max_bytes);
    } else {
        rc = read_all(fd, name, (size_t)st.st_size, &text, e);
    }
    (void)close(fd);
    if (rc) return rc;

    rc = json_parse(text, (size_t)st.st_size, &json_limits_trusted, out, e);
    free(text);
    if (rc) {
        if (e) (void)err_context(e, "%s", name);
        return rc;
    }
    if (!cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        return err_set(e, ERR_INPUT, "%s: must be an object", name);
    }
    return ERR_NONE;
}

/* --------------------------------------------------------------------------- fields -- */

static bool is_set(const cJSON *obj, const char *name)
{
    const cJSON *v = json_get(obj, name);
    return v && !cJSON_IsNull(v);
}

/* "field": value, for messages. */
static err_code refuse(err *e, const cJSON *obj, const char *name)
{
    char *text = cJSON_PrintUnformatted(json_get(obj, name));
    err_code rc =
        err_set(e, ERR_UNSUPPORTED, "\"%s\": %.96s is not supported", name, text ? text : "?");
    cJSON_free(text);
    return rc;
}

/* A dimension; required when *out is 0 on entry. */
static err_code dimension(const cJSON *obj, const char *name, int max, int *out, err *e)
{
    int64_t v = *out;
    err_code rc = json_int(obj, name, 1, max, &v, NULL, e);
    if (rc) return rc;
    if (v == 0) return err_set(e, ERR_INPUT, "\"%s\" is missing", name);
    *out = (int)v;
    return ERR_NONE;
}

static err_code real(const cJSON *obj, const char *name, double lo, double hi, float *out, err *e)
{
    double v = (double)*out;
    err_code rc = json_num(obj, name, lo, hi, &v, NULL, e);
    *out = (float)v;
    return rc;
}

static err_code required_real(const cJSON *obj, const char *name, double lo, double hi, float *out,
                              err *e)
{
    if (!is_set(obj, name)) return err_set(e, ERR_INPUT, "\"%s\" is missing", name);
    return real(obj, name, lo, hi, out, e);
}

static err_code flag(const cJSON *obj, const char *name, bool *out, err *e)
{
    return json_bool(obj, name, out, NULL, e);
}

/* ---------------------------------------------------------------------------- parts -- */

static err_code find_family(const cJSON *j, const family **out, err *e)
{
    const char *type = NULL;
    err_code rc = json_str(j, "model_type", &type, NULL, e);
    if (rc) return rc;
    if (!type) return err_set(e, ERR_INPUT, "\"model_type\" is missing");

    const family *f = NULL;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strcmp(type, families[i].type) == 0) f = &families[i];
    }
    if (!f) {
        return err_set(e, ERR_UNSUPPORTED,
                       "\"model_type\": \"%.64s\" is not supported (llama, mistral, qwen2, qwen3 "
                       "are)",
                       type);
    }
    const cJSON *archs = json_get(j, "architectures");
    if (archs && !cJSON_IsNull(archs)) {
        const cJSON *first = cJSON_IsArray(archs) ? archs->child : NULL;
        if (!first || first->next || !cJSON_IsString(first) ||
            strcmp(first->valuestring, f->architecture) != 0) {
            return refuse(e, j, "architectures");
        }
    }
    *out = f;
    return ERR_NONE;
}

static err_code read_shape(const cJSON *j, const family *f, model_config *c, err *e)
{
    c->max_pos = f->max_pos;
    err_code rc = dimension(j, "num_hidden_layers", LAYERS_MAX, &c->n_layer, e);
    if (!rc) rc = dimension(j, "hidden_size", DIM_MAX, &c->dim, e);
    if (!rc) rc = dimension(j, "num_attention_heads", HEADS_MAX, &c->n_head, e);
    if (!rc) rc = dimension(j, "intermediate_size", FFN_MAX, &c->ffn_dim, e);
    if (!rc) rc = dimension(j, "vocab_size", VOCAB_MAX, &c->n_vocab, e);
    if (!rc) rc = dimension(j, "max_position_embeddings", POS_MAX, &c->max_pos, e);
    if (rc) return rc;

    c->n_kv_head = f->n_kv_head ? f->n_kv_head : c->n_head;
    if (json_get(j, "num_key_value_heads") && !is_set(j, "num_key_value_heads")) {
        c->n_kv_head = c->n_head; /* null: no grouping */
    }
    rc = dimension(j, "num_key_value_heads", HEADS_MAX, &c->n_kv_head, e);
    if (rc) return rc;
    if (c->n_head % c->n_kv_head != 0) {
        return err_set(e, ERR_INPUT,
                       "\"num_attention_heads\": %d is no multiple of \"num_key_value_heads\": %d",
                       c->n_head, c->n_kv_head);
    }

    c->head_dim = f->head_dim;
    if (!c->head_dim && !is_set(j, "head_dim")) {
        if (c->dim % c->n_head != 0) {
            return err_set(e, ERR_INPUT,
                           "\"hidden_size\": %d is no multiple of \"num_attention_heads\": %d",
                           c->dim, c->n_head);
        }
        c->head_dim = c->dim / c->n_head;
    }
    rc = dimension(j, "head_dim", HEAD_DIM_MAX, &c->head_dim, e);
    if (rc) return rc;
    if (c->head_dim > HEAD_DIM_MAX || c->head_dim % 2 != 0) {
        return err_set(e, ERR_UNSUPPORTED, "\"head_dim\": %d is not supported (even, at most %d)",
                       c->head_dim, HEAD_DIM_MAX);
    }
    if ((int64_t)c->n_head * c->head_dim > FFN_MAX) {
        return err_set(e, ERR_INPUT, "%d heads of %d values exceed %d", c->n_head, c->head_dim,
                       FFN_MAX);
    }
    return ERR_NONE;
}

/* layer_types, where given, must say the same of all layers.  Returns "full_attention",
 * "sliding_attention" or NULL (not given) in *type. */
static err_code read_layer_types(const cJSON *j, int n_layer, const char **type, err *e)
{
    *type = NULL;
    if (!is_set(j, "layer_types")) return ERR_NONE;
    const cJSON *list = json_get(j, "layer_types");
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n_layer) {
        return err_set(e, ERR_INPUT, "\"layer_types\" must name each of the %d layers", n_layer);
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item) || (strcmp(item->valuestring, "full_attention") != 0 &&
                                      strcmp(item->valuestring, "sliding_attention") != 0)) {
            return refuse(e, j, "layer_types");
        }
        if (*type && strcmp(*type, item->valuestring) != 0) {
            return err_set(e, ERR_UNSUPPORTED,
                           "\"layer_types\": full and sliding attention in one model are not "
                           "supported");
        }
        *type = item->valuestring;
    }
    return ERR_NONE;
}

static err_code read_window(const cJSON *j, const family *f, model_config *c, err *e)
{
    bool on = !f->window_switch;
    const char *types;
    int64_t window = f->window, full_layers = 28;
    err_code rc = ERR_NONE;
    if (json_get(j, "sliding_window") && !is_set(j, "sliding_window")) window = 0;
    if (strcmp(f->type, "llama") != 0) {
        rc = json_int(j, "sliding_window", 1, POS_MAX, &window, NULL, e);
    }
    if (!rc && f->window_switch) rc = flag(j, "use_sliding_window", &on, e);
    if (!rc) rc = json_int(j, "max_window_layers", 0, INT32_MAX, &full_layers, NULL, e);
    if (!rc) rc = read_layer_types(j, c->n_layer, &types, e);
    if (rc) return rc;

    if (on && f->window_switch && !types) {
        /* the first max_window_layers layers see everything, the others the window */
        if (full_layers > 0 && full_layers < c->n_layer) return refuse(e, j, "max_window_layers");
        on = full_layers == 0;
    }
    if (types) on = strcmp(types, "sliding_attention") == 0;
    if (types && on && window == 0) {
        return err_set(e, ERR_INPUT,
                       "\"layer_types\" ask for a \"sliding_window\" that is not "
                       "given");
    }
    c->window = on ? (int)window : 0;
    return ERR_NONE;
}

/* rope_scaling of old, rope_parameters of new files. */
static err_code read_rope_scaling(const cJSON *r, model_config *c, err *e)
{
    const char *type = NULL;
    err_code rc = json_str(r, is_set(r, "rope_type") ? "rope_type" : "type", &type, NULL, e);
    if (!rc) rc = real(r, "rope_theta", 1.0, 1e12, &c->rope_theta, e);
    if (rc) return rc;
    if (!type || strcmp(type, "default") == 0) {
        if (is_set(r, "factor")) return refuse(e, r, "factor");
        const cJSON *item;
        cJSON_ArrayForEach(item, r)
        {
            if (cJSON_IsObject(item)) return refuse(e, r, item->string); /* one per layer type */
        }
        return ERR_NONE;
    }
    if (strcmp(type, "linear") == 0) {
        c->rope_kind = ROPE_LINEAR;
        return required_real(r, "factor", 1.0, 1e6, &c->rope_factor, e);
    }
    if (strcmp(type, "llama3") != 0) {
        return err_set(e, ERR_UNSUPPORTED,
                       "rope type \"%.64s\" is not supported (default, linear, llama3 are)", type);
    }
    c->rope_kind = ROPE_LLAMA3;
    rc = required_real(r, "factor", 1.0, 1e6, &c->rope_factor, e);
    if (!rc) rc = required_real(r, "low_freq_factor", 1e-6, 1e6, &c->rope_low_freq, e);
    if (!rc) rc = required_real(r, "high_freq_factor", 1e-6, 1e6, &c->rope_high_freq, e);
    if (!rc) {
        rc = dimension(r, "original_max_position_embeddings", POS_MAX, &c->rope_original_pos, e);
    }
    if (rc) return rc;
    if (c->rope_high_freq <= c->rope_low_freq) {
        return err_set(e, ERR_INPUT, "\"high_freq_factor\" must be above \"low_freq_factor\"");
    }
    return ERR_NONE;
}

static err_code read_rope(const cJSON *j, model_config *c, err *e)
{
    c->rope_theta = 10000.0F;
    c->rope_kind = ROPE_PLAIN;
    float partial = 1.0F;
    err_code rc = real(j, "rope_theta", 1.0, 1e12, &c->rope_theta, e);
    if (!rc) rc = real(j, "partial_rotary_factor", 0.0, 1.0, &partial, e);
    if (rc) return rc;
    if (partial != 1.0F) return refuse(e, j, "partial_rotary_factor");

    static const char *const where[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2; i++) {
        if (!is_set(j, where[i])) continue;
        const cJSON *r = json_get(j, where[i]);
        if (!cJSON_IsObject(r)) return err_set(e, ERR_INPUT, "\"%s\" must be an object", where[i]);
        rc = real(r, "partial_rotary_factor", 0.0, 1.0, &partial, e);
        if (!rc && partial != 1.0F) rc = refuse(e, r, "partial_rotary_factor");
        if (!rc) rc = read_rope_scaling(r, c, e);
        if (rc) {
            if (e) (void)err_context(e, "\"%s\"", where[i]);
            return rc;
        }
    }
    return ERR_NONE;
}

static err_code read_flags(const cJSON *j, const family *f, model_config *c, err *e)
{
    bool bias = false, mlp_bias = false, causal = true;
    const char *act = "silu";
    err_code rc = flag(j, "attention_bias", &bias, e);
    if (!rc) rc = flag(j, "mlp_bias", &mlp_bias, e);
    if (!rc) rc = flag(j, "tie_word_embeddings", &c->tied, e);
    if (!rc) rc = flag(j, "is_causal", &causal, e);
    if (!rc) rc = json_str(j, "hidden_act", &act, NULL, e);
    if (!rc) rc = real(j, "rms_norm_eps", 0.0, 1.0, &c->norm_eps, e);
    if (rc) return rc;
    if (strcmp(act, "silu") != 0) return refuse(e, j, "hidden_act");
    if (!causal) return refuse(e, j, "is_causal"); /* an embedder that looks both ways */
    if (mlp_bias && !f->may_mlp_bias) return refuse(e, j, "mlp_bias");
    if (bias && !f->may_bias && !f->qkv_bias) return refuse(e, j, "attention_bias");
    c->qkv_bias = f->qkv_bias || (f->may_bias && bias);
    c->o_bias = f->may_bias && bias;
    c->mlp_bias = mlp_bias;
    c->qk_norm = f->qk_norm;

    /* Present and not null: the weights or the arithmetic are not the plain ones. */
    static const char *const unsupported[] = {"quantization_config",     "compression_config",
                                              "attention_chunk_size",    "attn_logit_softcapping",
                                              "final_logit_softcapping", "num_experts",
                                              "num_local_experts",       "attention_sinks"};
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
        if (is_set(j, unsupported[i])) return refuse(e, j, unsupported[i]);
    }
    return ERR_NONE;
}

static err_code read_dtype(const cJSON *j, model_config *c, err *e)
{
    const char *name = NULL;
    err_code rc = json_str(j, is_set(j, "dtype") ? "dtype" : "torch_dtype", &name, NULL, e);
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

static err_code read_config(const cJSON *j, model_config *c, err *e)
{
    const family *f = NULL;
    err_code rc = find_family(j, &f, e);
    if (rc) return rc;
    snprintf(c->family, sizeof(c->family), "%s", f->type);
    rc = read_shape(j, f, c, e);
    if (!rc) rc = read_window(j, f, c, e);
    if (!rc) rc = read_rope(j, c, e);
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
    if (!rc) rc = real(j, "temperature", 0.0, 100.0, &c->gen_temperature, e);
    if (cJSON_IsFalse(json_get(j, "do_sample"))) c->gen_temperature = 0; /* the likeliest token */
    if (!rc) rc = real(j, "top_p", 0.0, 1.0, &c->gen_top_p, e);
    if (!rc) rc = real(j, "min_p", 0.0, 1.0, &c->gen_min_p, e);
    if (!rc) rc = real(j, "repetition_penalty", 0.0, 10.0, &c->gen_repetition_penalty, e);
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
    model_config c = {.norm_eps = 1e-6F,
                      .bos_id = -1,
                      .gen_temperature = -1.0F,
                      .gen_top_p = -1.0F,
                      .gen_top_k = -1};
    cJSON *j;
    err_code rc = model_json_read(dir, "config.json", &j, e);
    if (rc) return rc;
    rc = read_config(j, &c, e);
    cJSON_Delete(j);
    if (rc) {
        if (e) (void)err_context(e, "config.json");
        return rc;
    }

    err why;
    rc = model_json_read(dir, "generation_config.json", &j, &why);
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

void model_proj_shape(const model_config *c, proj p, int *d_out, int *d_in)
{
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    switch (p) {
    case PROJ_Q: *d_out = q, *d_in = c->dim; return;
    case PROJ_K:
    case PROJ_V: *d_out = kv, *d_in = c->dim; return;
    case PROJ_O: *d_out = c->dim, *d_in = q; return;
    case PROJ_GATE:
    case PROJ_UP: *d_out = c->ffn_dim, *d_in = c->dim; return;
    case PROJ_DOWN: *d_out = c->dim, *d_in = c->ffn_dim; return;
    case PROJ_COUNT: break;
    }
    abort(); /* not a projection: a bug of the caller */
}

bool model_proj_has_bias(const model_config *c, proj p)
{
    if (p == PROJ_O) return c->o_bias;
    return p < PROJ_O ? c->qkv_bias : c->mlp_bias;
}
