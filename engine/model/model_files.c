/* model_files.c -- opens a model's files (a folder of safetensors shards, or GGUF) and finds
 * tensors in them by one set of names.
 *
 * Callers ask with the names of transformers ("model.layers.3.self_attn.q_proj.weight"). For a
 * folder the index file says which shard has the tensor; shard names from it may contain no path.
 * For a GGUF, gguf_name() translates ("blk.3.attn_q.weight"), and reads in ggml's order: dimensions
 * reversed, and rows of q and k of the llama family un-permuted (turned()).
 *
 * Each tensor is marked as used when it is taken; model_weights.c reports those that never were.
 *
 * find_root() recognises wrapped models (vision models, several generations of prefixes), whose
 * text part is used alone.
 *
 * Stamps (inode, size, times) of all opened files are taken before opening, so that a file
 * replaced meanwhile never matches a packed cache. Threads: the start-up thread.
 */
#include "engine/model/model_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/files/documents.h"
#include "engine/files/gguf.h"
#include "engine/model/family.h"
#include "engine/model/packed.h"
#include "engine/model/safetensors.h"

enum { FILES_MAX = 1024, FILE_NAME_MAX = 255 };

typedef struct shard {
    char name[FILE_NAME_MAX + 1];
    safetensors *f; /* or: */
    gguf *g;
    bool *used; /* [tensors of it] */
} shard;

struct model_files {
    model_config cfg;
    bool is_gguf;
    quant quant;             /* of a folder */
    const char *root, *head; /* of a wrapped model: what stands for "model." and "lm_head" */
    shard *shard;
    int n_shard;
    packed_key stamps; /* of all files that were opened */
};

/* ---- open ------------------------------------------------------------------------------------ */

/* A shard's name comes from the index file: it must not contain a path. */
static bool file_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= FILE_NAME_MAX && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

/* Before it is opened: of a file that is replaced meanwhile no start to come has this stamp. */
static void add_stamp(model_files *f, const char *path)
{
    struct stat st;
    packed_key_add(&f->stamps, stat(path, &st) == 0 ? packed_stamp(&st) : 0);
}

uint64_t model_files_stamp(const model_files *f)
{
    return packed_key_end(&f->stamps);
}

static err_code open_shard(model_files *f, const char *path, const char *name, err *e)
{
    add_stamp(f, path);
    if (f->n_shard == FILES_MAX)
        return err_set(e, ERR_LIMIT, "the model has more than %d files", FILES_MAX);
    shard *s = &f->shard[f->n_shard];
    memset(s, 0, sizeof(*s));
    snprintf(s->name, sizeof(s->name), "%s", name);
    err_code rc = f->is_gguf ? gguf_open(&s->g, path, &gguf_limits_model, e)
                             : safetensors_open(&s->f, path, &st_limits_model, e);
    if (rc) {
        if (e) (void)err_context(e, "%.64s", name);
        return rc;
    }
    f->n_shard++; /* from here on model_files_close() cleans up */
    int n = f->is_gguf ? gguf_tensors(s->g) : safetensors_count(s->f);
    s->used = calloc((size_t)n + 1, sizeof(*s->used));
    return s->used ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory to load the model");
}

static err_code open_in(model_files *f, const char *dir, const char *name, err *e)
{
    char path[DOCUMENT_PATH_MAX];
    err_code rc = document_path(path, sizeof(path), dir, name, e);
    return rc ? rc : open_shard(f, path, name, e);
}

static shard *shard_named(model_files *f, const char *name)
{
    for (int i = 0; i < f->n_shard; i++) {
        if (strcmp(f->shard[i].name, name) == 0) return &f->shard[i];
    }
    return NULL;
}

/* Opens each file that the index names, and checks that each tensor lies where the index says. */
static err_code open_indexed(model_files *f, const char *dir, const cJSON *index, err *e)
{
    const cJSON *map = json_get(index, "weight_map");
    if (!cJSON_IsObject(map)) {
        return err_set(e, ERR_INPUT, "model.safetensors.index.json: \"weight_map\" is missing");
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, map)
    {
        if (!cJSON_IsString(item) || !file_name_ok(item->valuestring)) {
            return err_set(e, ERR_INPUT,
                           "model.safetensors.index.json: '%.80s' is not in a plain file name",
                           item->string);
        }
        shard *s = shard_named(f, item->valuestring);
        if (!s) {
            err_code rc = open_in(f, dir, item->valuestring, e);
            if (rc) return rc;
            s = &f->shard[f->n_shard - 1];
        }
        if (!safetensors_find(s->f, item->string)) {
            return err_set(e, ERR_INPUT, "tensor '%.80s' is not in %.64s, as the index says",
                           item->string, s->name);
        }
    }
    return ERR_NONE;
}

static err_code open_folder(model_files *f, const char *dir, err *e)
{
    char path[DOCUMENT_PATH_MAX];
    err_code rc = document_path(path, sizeof(path), dir, "model.safetensors", e);
    if (rc) return rc;
    if (access(path, F_OK) == 0) return open_in(f, dir, "model.safetensors", e);

    cJSON *index;
    err why;
    rc = document_read(dir, "model.safetensors.index.json", &index, &why);
    if (rc == ERR_NOT_FOUND) {
        return err_set(e, ERR_NOT_FOUND,
                       "the model has neither model.safetensors nor model.safetensors.index.json "
                       "(safetensors are read, and a GGUF that model.path names itself)");
    }
    if (rc) {
        if (e) *e = why;
        return rc;
    }
    rc = open_indexed(f, dir, index, e);
    cJSON_Delete(index);
    return rc;
}

static err_code open_quant(model_files *f, const char *dir, err *e)
{
    cJSON *j;
    err_code rc = document_read(dir, "config.json", &j, e);
    if (!rc) rc = quant_read(j, &f->quant, e);
    cJSON_Delete(j);
    return rc;
}

/* A wrapper's names for its text part have changed over time. */
static void find_root(model_files *f)
{
    static const char *const roots[] = {"model.language_model.", "language_model.model.", "model."};
    char name[80];
    const family_files *own = family_find(f->cfg.family)->files;
    f->root = own && own->root ? own->root : "model.";
    f->head = own && own->head ? own->head : "lm_head";
    if (f->is_gguf) return;
    for (int i = 0; f->cfg.wrapped && i < 3; i++) {
        snprintf(name, sizeof(name), "%sembed_tokens.weight", roots[i]);
        if (!model_files_look(f, name)) continue;
        f->root = roots[i];
        break;
    }
    bool bare = !f->cfg.wrapped;
    const char *embed = family_find(f->cfg.family)->embed;
    snprintf(name, sizeof(name), "%s.weight", embed ? embed + strlen("model.") : "embed_tokens");
    if (bare && model_files_look(f, name)) f->root = "";
    if (embed && model_files_look(f, "backbone.embeddings.weight")) f->root = "backbone.";
    bool inside = f->cfg.wrapped && model_files_look(f, "language_model.lm_head.weight");
    if (inside) f->head = "language_model.lm_head";
}

/* "NAME-00001-of-00003.gguf" and those after it. */
static err_code open_ggufs(model_files *f, const char *path, err *e)
{
    uint64_t count = 1;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    err_code rc = open_shard(f, path, name, e);
    if (rc) return rc;
    const gguf_value *v = gguf_find(f->shard[0].g, "split.count");
    if (!v || (gguf_whole(v, &count) && count <= 1)) return ERR_NONE;
    char end[32], next[DOCUMENT_PATH_MAX];
    snprintf(end, sizeof(end), "-00001-of-%05u.gguf", (unsigned)count % 100000);
    size_t n = strlen(path), k = strlen(end);
    if (count > FILES_MAX || n < k || n >= sizeof(next) || strcmp(path + n - k, end) != 0)
        return err_set(e, ERR_INPUT, "GGUF: split.count is %llu: the file's name must end in %s",
                       (unsigned long long)count, end);
    for (unsigned i = 2; i <= count && !rc; i++) {
        uint64_t no = 0;
        snprintf(next, sizeof(next), "%.*s-%05u-of-%05u.gguf", (int)(n - k), path, i,
                 (unsigned)count);
        rc = open_shard(f, next, next + (name - path), e);
        bool is = !rc && gguf_whole(gguf_find(f->shard[i - 1].g, "split.no"), &no) && no + 1 == i;
        if (!rc && !is)
            rc = err_set(e, ERR_INPUT, "%.64s: split.no does not say that it is number %u",
                         next + (name - path), i);
    }
    return rc;
}

err_code model_files_open(model_files **out, const char *path, const model_config *c, err *e)
{
    *out = NULL;
    model_files *f = calloc(1, sizeof(*f));
    if (f) f->shard = calloc(FILES_MAX, sizeof(*f->shard));
    if (!f || !f->shard) {
        free(f);
        return err_set(e, ERR_NOMEM, "no memory to load the model");
    }
    f->cfg = *c;
    f->is_gguf = document_is_gguf(path);
    packed_key_begin(&f->stamps);
    char config[DOCUMENT_PATH_MAX]; /* says how codes are meant */
    if (!f->is_gguf && !document_path(config, sizeof(config), path, "config.json", NULL))
        add_stamp(f, config);
    err_code rc = f->is_gguf ? open_ggufs(f, path, e) : open_quant(f, path, e);
    if (!rc && !f->is_gguf) rc = open_folder(f, path, e);
    if (!rc) find_root(f);
    if (rc)
        model_files_close(f);
    else
        *out = f;
    return rc;
}

void model_files_close(model_files *f)
{
    if (!f) return;
    for (int i = 0; i < f->n_shard; i++) {
        safetensors_close(f->shard[i].f);
        gguf_close(f->shard[i].g);
        free(f->shard[i].used);
    }
    free(f->shard);
    free(f);
}

/* ---- what was found, what was wanted --------------------------------------------------------- */

/* The shape, innermost last, is rows x cols, or rows alone. */
static err_code check_shape(const uint64_t *shape, int ndim, const stored *s, err *e)
{
    const weight_source *w = &s->src;
    while (s->vector && ndim > 2 && shape[ndim - 1] == 1) ndim--; /* a decay [1, 1, heads, 1] */
    while (s->vector && ndim > 1 && shape[0] == 1) shape++, ndim--;
    bool fits = s->slices ? ndim == 3 && shape[0] == (uint64_t)s->slices &&
                                shape[1] == (uint64_t)w->rows && shape[2] == (uint64_t)w->cols
                : s->vector
                    ? (ndim == 0 ? 1 : shape[ndim - 1]) == (uint64_t)w->cols && ndim <= 1
                    : ndim == 2 && shape[0] == (uint64_t)w->rows && shape[1] == (uint64_t)w->cols;
    if (fits) return ERR_NONE;
    char have[64] = "", must[48];
    size_t at = 0;
    for (int i = 0; i < ndim && at < sizeof(have) - 24; i++)
        at += (size_t)snprintf(have + at, sizeof(have) - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)shape[i]);
    if (s->slices)
        snprintf(must, sizeof(must), "%d, %d, %d", s->slices, w->rows, w->cols);
    else if (s->vector)
        snprintf(must, sizeof(must), "%d", w->cols);
    else
        snprintf(must, sizeof(must), "%d, %d", w->rows, w->cols);
    return err_set(e, ERR_INPUT, "tensor '%s' has shape [%s], config.json asks for [%s]", s->name,
                   have, must);
}

/* ---- safetensors ----------------------------------------------------------------------------- */

/* MODULE.SUFFIX as a folder has it: the names of other families than a Llama's have another root,
 * and another word for layers. */
static void folder_name(const model_files *f, const char *module, const char *suffix, char *out)
{
    const family_files *own = family_find(f->cfg.family)->files;
    const char *layers = own && own->layers ? own->layers : "layers";
    const char *dot = suffix[0] ? "." : "", *rest = module + strlen("model.");
    size_t n = STORED_NAME_MAX + 1;
    if (strcmp(module, "lm_head") == 0)
        snprintf(out, n, "%s%s%s", f->head, dot, suffix);
    else if (strncmp(module, "model.layers.", 13) == 0)
        snprintf(out, n, "%s%s.%.90s%s%s", f->root, layers, rest + strlen("layers."), dot, suffix);
    else
        snprintf(out, n, "%s%.90s%s%s", f->root, rest, dot, suffix);
}

const st_tensor *model_files_look(const model_files *f, const char *name)
{
    for (int i = 0; i < f->n_shard; i++) {
        const st_tensor *t = safetensors_find(f->shard[i].f, name);
        if (t) return t;
    }
    return NULL;
}

err_code model_files_take(model_files *f, const char *name, const st_tensor **out, err *e)
{
    *out = NULL;
    for (int i = 0; i < f->n_shard; i++) {
        const st_tensor *t = safetensors_find(f->shard[i].f, name);
        if (!t) continue;
        if (*out) return err_set(e, ERR_INPUT, "tensor '%s' is in two files", name);
        *out = t;
        f->shard[i].used[t - safetensors_at(f->shard[i].f, 0)] = true;
    }
    return *out ? ERR_NONE : err_set(e, ERR_INPUT, "tensor '%s' is missing", name);
}

static err_code find_plain(model_files *f, stored *s, err *e)
{
    const st_tensor *t;
    err_code rc = model_files_take(f, s->name, &t, e);
    if (rc) return rc;
    if (!st_usable(t->dtype, &s->plain)) {
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%s' has dtype %s: only F32, F16 and BF16 are supported", s->name,
                       st_dtype_name(t->dtype));
    }
    s->values = t->data;
    s->part[0] = (stored_part){t->data, t->bytes};
    snprintf(s->format, sizeof(s->format), "%s", st_dtype_name(t->dtype));
    return check_shape(t->shape, t->ndim, s, e);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static bool has_gguf(const model_files *f, const char *name)
{
    for (int i = 0; i < f->n_shard; i++)
        if (gguf_find_tensor(f->shard[i].g, name)) return true;
    return false;
}

/* What a norm is called there, by its place; NULL: `module` is none of the layer's.  The norm
 * before an MLP is named after attention in some files. */
static const char *gguf_norm(const model_files *f, int layer, const char *module)
{
    static const char *const names[LAYER_NORMS] = {
        [NORM_ATTN_IN] = "attn_norm", [NORM_ATTN_OUT] = "post_attention_norm",
        [NORM_MLP_IN] = "ffn_norm",   [NORM_MLP_OUT] = "post_ffw_norm",
        [NORM_Q] = "attn_q_norm",     [NORM_K] = "attn_k_norm"};
    const model_family *of = family_find(f->cfg.family);
    char before[64];
    snprintf(before, sizeof(before), "blk.%d.ffn_norm.weight", layer);
    bool behind = !has_gguf(f, before);
    if (of && of->files && of->files->reads_multi &&
        f->cfg.parallel_apart) /* attention's is second */
        return strcmp(module, of->norm[NORM_ATTN_IN]) == 0  ? "attn_norm_2"
               : strcmp(module, of->norm[NORM_MLP_IN]) == 0 ? "attn_norm"
                                                            : NULL;
    for (int i = 0; of && i < LAYER_NORMS; i++) {
        if (!of->norm[i] || strcmp(of->norm[i], module) != 0) continue;
        if (of->latent.rank && i >= NORM_Q) return i == NORM_Q ? "attn_q_a_norm" : "attn_kv_a_norm";
        return names[behind && i == NORM_MLP_IN ? NORM_ATTN_OUT : i];
    }
    return NULL;
}

typedef struct file_word {
    const char *theirs, *ours;
} file_word;

/* Names of a mixer's tensors in safetensors files and in a GGUF. */
static const file_word mixer_words[] = {
    {"in_proj", "ssm_in"},        {"out_proj", "ssm_out"},      {"conv1d", "ssm_conv1d"},
    {"norm", "ssm_norm"},         {"A_log", "ssm_a"},           {"D", "ssm_d"},
    {"dt_bias", "ssm_dt.bias"},   {"in_proj_qkv", "attn_qkv"},  {"in_proj_z", "attn_gate"},
    {"in_proj_b", "ssm_beta"},    {"in_proj_a", "ssm_alpha"},   {"in_proj_ba", "ssm_ba"},
    {"conv", "shortconv.conv"},   {"q_conv1d", "ssm_conv1d_q"}, {"k_conv1d", "ssm_conv1d_k"},
    {"v_conv1d", "ssm_conv1d_v"}, {"o_norm", "ssm_norm"},       {"b_proj", "ssm_beta"},
    {"g_a_proj", "ssm_g_a"},      {"g_b_proj", "ssm_g_b"},      {"f_a_proj", "ssm_f_a"},
    {"f_b_proj", "ssm_f_b"}};
static const file_word mlp_words[] = {{"gate_proj", "ffn_gate"},
                                      {"up_proj", "ffn_up"},
                                      {"down_proj", "ffn_down"},
                                      {"w1", "ffn_gate"},
                                      {"w3", "ffn_up"},
                                      {"w2", "ffn_down"},
                                      {"fc1", "ffn_up"},
                                      {"fc2", "ffn_down"},
                                      {"dense_h_to_4h", "ffn_up"},
                                      {"dense_4h_to_h", "ffn_down"}};

static const char *word_of(const file_word *words, size_t n, const char *theirs)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(words[i].theirs, theirs) == 0) return words[i].ours;
    return NULL;
}

#define WORD_OF(words, theirs) word_of(words, sizeof(words) / sizeof((words)[0]), theirs)

/* The rest of `name` inside the module `in`; NULL: it is no part of that. */
static const char *inside(const char *name, const char *in)
{
    size_t n = in ? strlen(in) : 0;
    return n && strncmp(name, in, n) == 0 && name[n] == '.' ? name + n + 1 : NULL;
}

/* Names that follow from what the family calls its parts; "": none does. */
static void gguf_part(const model_files *f, const char *module, const char *suffix, char *out,
                      size_t size)
{
    const model_family *of = family_find(f->cfg.family);
    const family_experts *x = f->cfg.experts.route.n > 0 ? of->experts : NULL;
    const family_mixer *fm = of->mixer;
    const char *own = fm ? inside(module, fm->module) : NULL, *word = NULL, *last;
    const char *shared = x && !x->beside ? inside(module, x->shared) : NULL;
    bool conv = fm && fm->kind == MIXER_CONV;
    out[0] = 0;
    if (fm && strcmp(module, fm->module) == 0) word = WORD_OF(mixer_words, suffix);
    if (word) {
        snprintf(out, size, "%s", word);
    } else if (x && x->choice_bias && strcmp(suffix, x->choice_bias) == 0) {
        snprintf(out, size, "exp_probs_b.bias");
    } else if (x && strcmp(module, x->router) == 0) {
        snprintf(out, size, "ffn_gate_inp.%s", suffix);
    } else if (shared && (word = WORD_OF(mlp_words, shared)) != NULL) {
        snprintf(out, size, "%s_shexp.%s", word, suffix);
    } else if (own && conv && strcmp(own, "conv") != 0) {
        snprintf(out, size, "shortconv.%s.%s", own, suffix);
    } else if (own && (word = WORD_OF(mixer_words, own)) != NULL) {
        snprintf(out, size, "%s.%s", word, suffix);
    } else if ((last = strrchr(module, '.')) != NULL && !inside(module, "self_attn")) {
        word = WORD_OF(mlp_words, last + 1);
        if (word) snprintf(out, size, "%s.%s", word, suffix);
    }
}

/* "model.layers.3.self_attn.q_proj", "weight" to "blk.3.attn_q.weight". */
static void gguf_name(const model_files *f, const char *module, const char *suffix, char *out,
                      size_t size)
{
    static const file_word names[] = {{"self_attn.q_proj", "attn_q"},
                                      {"self_attn.k_proj", "attn_k"},
                                      {"self_attn.v_proj", "attn_v"},
                                      {"self_attn.o_proj", "attn_output"},
                                      {"self_attn.dense", "attn_output"},
                                      {"attention.dense", "attn_output"},
                                      {"self_attention.dense", "attn_output"},
                                      {"attn.c_proj", "attn_output"},
                                      {"attention.query_key_value", "attn_qkv"},
                                      {"self_attention.query_key_value", "attn_qkv"},
                                      {"attn.c_attn", "attn_qkv"},
                                      {"self_attn.out_proj", "attn_output"},
                                      {"mixer.q_proj", "attn_q"},
                                      {"mixer.k_proj", "attn_k"},
                                      {"mixer.v_proj", "attn_v"},
                                      {"mixer.o_proj", "attn_output"},
                                      {"self_attn.qkv_proj", "attn_qkv"},
                                      {"self_attn.q_a_proj", "attn_q_a"},
                                      {"self_attn.q_b_proj", "attn_q_b"},
                                      {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                                      {"self_attn.kv_b_proj", "attn_kv_b"},
                                      {"self_attn.sinks", "attn_sinks.weight"},
                                      {"mlp.gate_up_proj", "ffn_up"},
                                      {"mlp.c_fc", "ffn_up"},
                                      {"mlp.c_proj", "ffn_down"},
                                      {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                                      {"model.per_layer_model_projection", "per_layer_model_proj"},
                                      {"model.embed_tokens_per_layer", "per_layer_token_embd"},
                                      {"model.per_layer_projection_norm", "per_layer_proj_norm"},
                                      {"per_layer_input_gate", "inp_gate"},
                                      {"per_layer_projection", "proj"},
                                      {"post_per_layer_input_norm", "post_norm"},
                                      {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                                      {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                                      {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                                      {"altup.modality_router", "altup_router"},
                                      {"altup.prediction_coefs", "altup_predict_coef"},
                                      {"altup.correction_coefs", "altup_correct_coef"},
                                      {"altup.router_norm", "altup_router_norm"},
                                      {"altup.correct_output_scale", "altup_correct_scale.weight"},
                                      {"laurel.linear_left", "laurel_l"},
                                      {"laurel.linear_right", "laurel_r"},
                                      {"laurel.post_laurel_norm", "laurel_post_norm"},
                                      {"router.scale", "ffn_gate_inp.scale"},
                                      {"router.per_expert_scale", "ffn_down_exps.scale"},
                                      {"model.embed_tokens", "token_embd"},
                                      {"model.norm", "output_norm"},
                                      {"model.wpe", "position_embd"},
                                      {"lm_head", "output"}};
    const model_family *of = family_find(f->cfg.family);
    int layer = -1, skip = 0;
    char whole[96], part[64], block[24] = "";
    if (of->embed && strcmp(module, of->embed) == 0) module = "model.embed_tokens";
    if (of->last_norm && strcmp(module, of->last_norm) == 0) module = "model.norm";
    if (strcmp(module, "model.norm") == 0 && !has_gguf(f, "output_norm.weight"))
        module = "token_embd_norm"; /* LFM2's, of older files */
    if (sscanf(module, "model.layers.%d.%n", &layer, &skip) == 1) module += skip;
    if (strcmp(suffix, "layer_scalar") == 0 && sscanf(module, "model.layers.%d", &layer) == 1) {
        snprintf(out, size, "blk.%d.layer_output_scale.weight", layer);
        return;
    }
    if (layer >= 0) snprintf(block, sizeof(block), "blk.%d.", layer);
    const char *norm = layer >= 0 ? gguf_norm(f, layer, module) : NULL, *dot = ".";
    if (norm) module = norm;
    part[0] = 0;
    if (layer >= 0 && !norm) gguf_part(f, module, suffix, part, sizeof(part));
    if (part[0]) {
        snprintf(out, size, "%s%s", block, part);
        return;
    }
    snprintf(whole, sizeof(whole), "%s.%s", module, suffix);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i].theirs, module) == 0) module = names[i].ours;
        if (strcmp(names[i].theirs, whole) == 0) module = names[i].ours, dot = suffix = "";
    }
    snprintf(out, size, "%s%s%s%s", block, module, dot, suffix);
}

static const gguf_tensor *take_gguf(model_files *f, const char *name, bool *twice)
{
    const gguf_tensor *found = NULL;
    *twice = false;
    for (int i = 0; i < f->n_shard; i++) {
        const gguf_tensor *t = gguf_find_tensor(f->shard[i].g, name);
        if (!t) continue;
        *twice |= found != NULL;
        found = t;
        f->shard[i].used[t - gguf_tensor_at(f->shard[i].g, 0)] = true;
    }
    return found;
}

/* llama.cpp's converter makes pairs of the halves of each head of q and k of what it calls a
 * llama. */
static int turned(const model_files *f, const char *module)
{
    static const char *const llamas[] = {"llama",      "mistral",          "mixtral", "granite",
                                         "granitemoe", "granitemoeshared", "smollm3", "arcee",
                                         "ministral3", "granitemoehybrid", "bamba",   "nemotron_h",
                                         "olmo"};
    const char *dot = strrchr(module, '.');
    bool llama = false;
    for (size_t i = 0; i < sizeof(llamas) / sizeof(llamas[0]); i++)
        llama |= strcmp(f->cfg.family, llamas[i]) == 0;
    bool is = dot && (strcmp(dot, ".q_proj") == 0 || strcmp(dot, ".k_proj") == 0);
    return llama && is ? f->cfg.head_dim : 0;
}

enum { ALL_SLICES = -1 };

/* The tensor s->name, or a matrix of those that it has, or all of them one above the other. */
static err_code find_named(model_files *f, int slice, stored *s, err *e)
{
    bool twice;
    const gguf_tensor *t = take_gguf(f, s->name, &twice);
    if (!t || twice)
        return err_set(e, ERR_INPUT, "tensor '%s' is %s", s->name, t ? "in two files" : "missing");
    uint64_t shape[GGUF_DIMS_MAX], bytes = t->bytes, first = 0;
    for (int i = 0; i < t->n_dims; i++) shape[i] = t->ne[t->n_dims - 1 - i];
    bool one_row = t->n_dims == 1 && !s->vector && s->src.rows == 1; /* a shared expert's gate */
    if (one_row) shape[1] = shape[0], shape[0] = 1;
    int n_dims = one_row ? 2 : t->n_dims;
    for (; s->vector && n_dims > 1; n_dims--) shape[0] *= shape[n_dims - 1]; /* a scan's norm */
    int kept = 0; /* a convolution may be [1, channels, 1, taps] */
    for (int i = 0; !s->slices && n_dims > 2 && i < n_dims; i++)
        if (shape[i] != 1) shape[kept++] = shape[i];
    err_code rc = check_shape(shape, kept ? kept : n_dims, s, e);
    if (rc) return rc;
    if (s->slices && slice == ALL_SLICES) {
        s->src.rows *= s->slices;
    } else if (s->slices) {
        bytes /= (uint64_t)s->slices;
        first = bytes * (uint64_t)slice;
    }
    snprintf(s->format, sizeof(s->format), "%s", gguf_type_name(t->type));
    bool read = stored_take_ggml(s, t->type, t->data + first, bytes);
    if (read && (s->values || !s->vector)) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED, "tensor '%s' has type %s, which is not supported", s->name,
                   gguf_type_name(t->type));
}

/* Keys and values of all heads, made of the latent, where a file has them apart: of each head the
 * keys' matrix has a column for each output, and the values' a row. */
static err_code find_halves(model_files *f, const char *module, stored *s, err *e)
{
    const latent_shape *l = &f->cfg.latent;
    int layer = 0;
    s->half = calloc(2, sizeof(*s->half));
    if (!s->half) return err_set(e, ERR_NOMEM, "no memory to load the model");
    stored *keys = &s->half[0], *values = &s->half[1];
    *keys = (stored){.slices = l->n_head, .src = {.rows = l->rank, .cols = l->nope}};
    *values = (stored){.slices = l->n_head, .src = {.rows = l->v, .cols = l->rank}};
    (void)sscanf(module, "model.layers.%d.", &layer);
    snprintf(keys->name, sizeof(keys->name), "blk.%d.attn_k_b.weight", layer);
    snprintf(values->name, sizeof(values->name), "blk.%d.attn_v_b.weight", layer);
    err_code rc = find_named(f, ALL_SLICES, keys, e);
    if (!rc) rc = find_named(f, ALL_SLICES, values, e);
    if (rc) {
        stored_clear(s);
        return rc;
    }
    s->part[0] = keys->part[0];
    s->part[1] = values->part[0];
    s->plain = keys->plain == values->plain ? keys->plain : DT_F32;
    snprintf(s->name, sizeof(s->name), "%s", keys->name);
    snprintf(s->format, sizeof(s->format), "%s", keys->format);
    return ERR_NONE;
}

/* What makes all of the delta rule by groups, of two matrices: queries, keys and values one behind
 * the other, and gates. */
static err_code find_joined(model_files *f, const char *module, stored *s, err *e)
{
    const mixer_shape *sh = &f->cfg.state;
    int layer = 0, values = sh->heads * sh->cols, keys = sh->groups * sh->rows;
    s->half = calloc(2, sizeof(*s->half));
    if (!s->half) return err_set(e, ERR_NOMEM, "no memory to load the model");
    s->joined =
        (stored_joined){.groups = sh->groups, .keys = sh->rows, .values = values / sh->groups};
    (void)sscanf(module, "model.layers.%d.", &layer);
    for (int i = 0; i < 2; i++) {
        stored *half = &s->half[i];
        half->src.rows = i == 0 ? 2 * keys + values : values;
        half->src.cols = s->src.cols;
        snprintf(half->name, sizeof(half->name), "blk.%d.attn_%s.weight", layer,
                 i ? "gate" : "qkv");
        err_code rc = find_named(f, 0, half, e);
        if (rc) {
            stored_clear(s);
            return rc;
        }
        s->part[i] = half->part[0];
    }
    s->plain = s->half[0].plain == s->half[1].plain ? s->half[0].plain : DT_F32;
    snprintf(s->name, sizeof(s->name), "%s", s->half[0].name);
    snprintf(s->format, sizeof(s->format), "%s", s->half[0].format);
    return ERR_NONE;
}

/* Of the delta rule where heads of values share their keys: what has a part for each head of
 * values. */
static err_code tile(const model_files *f, const char *module, const char *suffix, stored *s,
                     err *e)
{
    const mixer_shape *sh = &f->cfg.state;
    const family_mixer *fm = family_find(f->cfg.family)->mixer;
    const char *own = strrchr(module, '.');
    bool delta = fm && fm->kind == MIXER_DELTA && fm->rules.form == DELTA_JOINT;
    if (!delta || !own || sh->heads == sh->groups || !strstr(module, fm->module)) return ERR_NONE;
    stored_tiles t = {.groups = sh->groups, .each = sh->heads / sh->groups, .size = 1};
    bool out = strcmp(own, ".out_proj") == 0, all = strcmp(own, ".in_proj_qkv") == 0;
    bool one = strcmp(own, ".in_proj_b") == 0 || strcmp(own, ".in_proj_a") == 0 ||
               strcmp(suffix, "A_log") == 0 || strcmp(suffix, "dt_bias") == 0;
    if (all) t.first = 2 * sh->groups * sh->rows;
    if (out || all || strcmp(own, ".in_proj_z") == 0)
        t.size = sh->cols;
    else if (!one)
        return ERR_NONE;
    *(out ? &s->tiled_cols : &s->tiled_rows) = t;
    if (!out || s->values) return ERR_NONE;
    s->order = malloc((size_t)s->src.cols * sizeof(*s->order));
    if (!s->order) return err_set(e, ERR_NOMEM, "no memory to load the model");
    for (int i = 0; i < s->src.cols; i++) s->order[stored_tile(&t, i)] = i;
    s->src.order = s->order;
    return ERR_NONE;
}

/* Numbers of an activation, of which a key has one for each layer. */
static err_code find_xielu(model_files *f, const char *module, const char *suffix, stored *s,
                           err *e)
{
    int layer = 0;
    (void)sscanf(module, "model.layers.%d.", &layer);
    snprintf(s->name, sizeof(s->name), "xielu.%.32s", suffix);
    const gguf_value *v = gguf_find(f->shard[0].g, s->name);
    bool ok = v && v->kind == GGUF_ARRAY && v->item == GGUF_F32 && layer < (int64_t)v->count;
    if (!ok) return err_set(e, ERR_INPUT, "GGUF: %s has no number for layer %d", s->name, layer);
    s->values = v->at + sizeof(float) * (size_t)layer;
    s->plain = DT_F32;
    snprintf(s->format, sizeof(s->format), "F32");
    return ERR_NONE;
}

static err_code find_gguf(model_files *f, const char *module, const char *suffix, stored *s, err *e)
{
    const char *act = strstr(module, ".mlp.act_fn");
    if (act && act[sizeof(".mlp.act_fn") - 1] == 0) return find_xielu(f, module, suffix, s, e);
    const char *dot = strrchr(module, '.');
    gguf_name(f, module, suffix, s->name, sizeof(s->name));
    if (dot && strcmp(dot, ".in_proj_qkvz") == 0) return find_joined(f, module, s, e);
    bool both = f->cfg.latent.rank && dot && strcmp(dot, ".kv_b_proj") == 0;
    if (both && !has_gguf(f, s->name)) return find_halves(f, module, s, e);
    err_code rc = find_named(f, 0, s, e);
    if (!rc) s->turned = turned(f, module);
    s->decay = strcmp(suffix, "A_log") == 0;
    return rc ? rc : tile(f, module, suffix, s, e);
}

/* ---- both ------------------------------------------------------------------------------------ */

err_code model_files_find(model_files *f, const char *module, const char *suffix, int rows,
                          int cols, stored *out, err *e)
{
    *out =
        (stored){.vector = cols == 0, .src = {.rows = cols ? rows : 1, .cols = cols ? cols : rows}};
    if (f->is_gguf) return find_gguf(f, module, suffix, out, e);
    folder_name(f, module, suffix, out->name);
    bool found = false;
    if (cols && f->quant.method != QUANT_NONE) {
        char path[STORED_NAME_MAX + 1];
        folder_name(f, module, "", path);
        err_code rc = quant_find(f, &f->quant, path, out, &found, e);
        if (rc || found) return rc;
    }
    return find_plain(f, out, e);
}

bool model_files_has(const model_files *f, const char *module, const char *suffix)
{
    char name[STORED_NAME_MAX + 1];
    if (f->is_gguf) {
        gguf_name(f, module, suffix, name, sizeof(name));
        return has_gguf(f, name);
    }
    folder_name(f, module, suffix, name);
    return model_files_look(f, name) != NULL;
}

/* Rows that do not stand together, or columns in place of rows: read one by one.  The first part
 * counts for the bytes of all. */
static void cut_apart(stored *s, const stored_rows *at, int rows, int cols)
{
    bool vector = cols == 0;
    if (at->first > 0) s->part[0].bytes = 0;
    s->src.rows = vector ? 1 : rows;
    s->src.cols = vector ? rows : cols;
    if (at->apart) {
        s->cut = *at;
    } else {
        s->values = (const uint8_t *)s->values + (size_t)at->first * dtype_bytes(s->plain);
    }
    if (!at->across || vector) return;
    s->row_apart = 1;
    s->col_apart = (size_t)at->whole;
}

err_code model_files_find_rows(model_files *f, const char *module, const char *suffix,
                               const stored_rows *at, int rows, int cols, stored *out, err *e)
{
    bool vector = cols == 0, across = at->across && !vector;
    err_code rc = model_files_find(f, module, suffix, across ? cols : at->whole,
                                   across ? at->whole : cols, out, e);
    if (rc) return rc;
    if (out->turned || (!f->is_gguf && !out->values))
        return err_set(e, ERR_UNSUPPORTED, "tensor '%s' is fused and quantised, which is not read",
                       out->name);
    if (across || at->apart) {
        cut_apart(out, at, rows, cols);
        return ERR_NONE;
    }
    uint64_t each = out->part[0].bytes / (uint64_t)at->whole; /* rows of codes, too */
    out->part[0].data += each * (uint64_t)at->first;
    out->part[0].bytes = each * (uint64_t)rows;
    if (out->values) out->values = out->part[0].data;
    *(vector ? &out->src.cols : &out->src.rows) = rows;
    return ERR_NONE;
}

bool model_files_stacks(const model_files *f)
{
    return f->is_gguf;
}

/* "model.layers.3.ffn_up_exps.weight" to "blk.3.ffn_up_exps.weight". */
static void name_stack(const model_files *f, const char *name, stored *s)
{
    int layer = -1, skip = 0;
    static const char *const streams[][2] = {
        {"model.altup_projections", "altup_proj.weight"},
        {"model.altup_unembed_projections", "altup_unembd_proj.weight"}};
    for (int i = 0; i < 2 && f->is_gguf; i++)
        if (strcmp(name, streams[i][0]) == 0)
            snprintf(s->name, sizeof(s->name), "%s", streams[i][1]);
    if (!f->is_gguf)
        folder_name(f, name, "", s->name);
    else if (sscanf(name, "model.layers.%d.%n", &layer, &skip) == 1)
        snprintf(s->name, sizeof(s->name), "blk.%d.%.64s", layer, name + skip);
}

/* Some rows of a slice, by codes or values: rows lie one behind the other. */
static err_code cut_rows(stored *s, int row0, int rows)
{
    uint64_t each = s->part[0].bytes / (uint64_t)s->src.rows;
    s->part[0].data += each * (uint64_t)row0;
    s->part[0].bytes = each * (uint64_t)rows;
    if (s->values) s->values = s->part[0].data;
    s->src.rows = rows;
    return ERR_NONE;
}

err_code model_files_find_slice(model_files *f, const char *name, const stored_slice *at, int rows,
                                int cols, stored *out, err *e)
{
    *out = (stored){.slices = at->n_slice, .src = {.rows = at->whole, .cols = cols}};
    name_stack(f, name, out);
    if (f->is_gguf) {
        err_code found = find_named(f, at->slice, out, e);
        return found || at->whole == rows ? found : cut_rows(out, at->row0, rows);
    }
    bool found = false;
    err_code rc = ERR_NONE;
    if (f->quant.method == QUANT_MXFP4) rc = quant_find_slice(f, at, rows, out, &found, e);
    if (rc || found) return rc;
    if (at->across) out->src.rows = cols, out->src.cols = at->whole; /* as the file has them */
    rc = find_plain(f, out, e);
    if (rc) return rc;
    size_t size = dtype_bytes(out->plain), each = (size_t)at->whole * (size_t)cols;
    size_t row = at->across ? 1 : (size_t)cols;
    const uint8_t *from = (const uint8_t *)out->values;
    from += ((size_t)at->slice * each + (size_t)at->row0 * row) * size;
    out->values = from;
    out->part[0] = (stored_part){from, (uint64_t)rows * (uint64_t)cols * size};
    out->src.rows = rows;
    out->src.cols = cols;
    if (!at->across && at->step == 1) return ERR_NONE;
    out->row_apart = row * (size_t)at->step;
    out->col_apart = at->across ? (size_t)at->whole : 1;
    return ERR_NONE;
}

err_code model_files_find_columns(model_files *f, const char *name, int rows, int whole, int first,
                                  int apart, int cols, stored *out, err *e)
{
    *out = (stored){.src = {.rows = rows, .cols = whole}};
    name_stack(f, name, out);
    err_code rc = f->is_gguf ? find_named(f, 0, out, e) : find_plain(f, out, e);
    if (rc) return rc;
    if (!out->values)
        return err_set(e, ERR_UNSUPPORTED, "tensor '%s' has type %s, which is not supported",
                       out->name, out->format);
    out->values = (const uint8_t *)out->values + (size_t)first * dtype_bytes(out->plain);
    out->src.cols = cols;
    out->row_apart = (size_t)whole;
    out->col_apart = (size_t)apart;
    return ERR_NONE;
}

/* As tile(), of a convolution's channels. */
static void tile_taps(const model_files *f, stored *s)
{
    const mixer_shape *sh = &f->cfg.state;
    const family_mixer *fm = family_find(f->cfg.family)->mixer;
    bool delta = fm->kind == MIXER_DELTA && fm->rules.form == DELTA_JOINT;
    if (!delta || sh->heads == sh->groups) return;
    s->tiled_cols = (stored_tiles){.groups = sh->groups,
                                   .each = sh->heads / sh->groups,
                                   .size = sh->cols,
                                   .first = 2 * sh->groups * sh->rows};
}

err_code model_files_find_taps(model_files *f, const char *module, int channels, int taps,
                               stored *out, err *e)
{
    *out = (stored){.slices = f->is_gguf ? 0 : channels,
                    .src = {.rows = f->is_gguf ? channels : 1, .cols = taps}};
    if (f->is_gguf)
        gguf_name(f, module, "weight", out->name, sizeof(out->name));
    else
        folder_name(f, module, "weight", out->name);
    err_code rc = f->is_gguf ? find_named(f, 0, out, e) : find_plain(f, out, e);
    if (rc) return rc;
    if (!out->values)
        return err_set(e, ERR_UNSUPPORTED, "tensor '%s' has type %s, which is not supported",
                       out->name, out->format);
    out->slices = channels;
    if (f->is_gguf) tile_taps(f, out);
    out->src.rows = taps;
    out->src.cols = channels;
    out->row_apart = 1;
    out->col_apart = (size_t)taps;
    return ERR_NONE;
}

bool model_files_bare(const model_files *f)
{
    return !f->is_gguf && f->root[0] == 0 && !family_find(f->cfg.family)->files;
}

err_code model_files_rope(model_files *f, float *out, bool *found, err *e)
{
    bool twice;
    const gguf_tensor *t = f->is_gguf ? take_gguf(f, "rope_freqs.weight", &twice) : NULL;
    if (f->is_gguf && f->cfg.rope.kind == ROPE_LONG) { /* read as a part of config.json */
        (void)take_gguf(f, "rope_factors_long.weight", &twice);
        (void)take_gguf(f, "rope_factors_short.weight", &twice);
    }
    *found = t != NULL && !f->cfg.full_head_dim; /* of layers' own heads: a part of config.json */
    if (!*found) return ERR_NONE;
    if (t->type != GGML_F32 || t->n_dims != 1 || t->ne[0] != (uint64_t)f->cfg.head_dim / 2)
        return err_set(e, ERR_INPUT, "tensor 'rope_freqs.weight' must be F32 with %d values",
                       f->cfg.head_dim / 2);
    memcpy(out, t->data, (size_t)t->bytes);
    for (int i = 0; i < f->cfg.head_dim / 2; i++)
        if (!(out[i] > 0.0F && out[i] < 1e9F))
            return err_set(e, ERR_INPUT, "tensor 'rope_freqs.weight': value %d is not a divisor",
                           i);
    return ERR_NONE;
}

static err_code left_over(const model_files *f, const char *name, err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "tensor '%.96s' belongs to no part of a %s model: using the others without it "
                   "would give wrong answers",
                   name, f->cfg.family);
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0;
}

/* Of a layer that reads another one's keys and values. */
static bool is_unread_key(const model_files *f, const char *name)
{
    static const char *const parts[] = {"k_proj.weight", "v_proj.weight", "k_norm.weight",
                                        "v_norm.weight"};
    int layer = -1, end = 0;
    size_t root = strlen(f->root);
    bool in = strncmp(name, f->root, root) == 0 &&
              sscanf(name + root, "layers.%6d.self_attn.%n", &layer, &end) == 1 && end > 0;
    if (!in || layer < 0 || layer >= f->cfg.n_layer) return false;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(name + root + end, parts[i]) == 0) return f->cfg.layer[layer] & LAYER_SHARES_KV;
    return false;
}

/* Tensors that files carry and no forward pass needs: among them scales of activations and of keys
 * and values, which are not quantised here.  The output layer that a tied model's file has besides
 * is the embedding once more. */
static err_code check_tensor(const model_files *f, const st_tensor *t, const stored *table, err *e)
{
    static const char *const seen[] = {
        "vision_tower.",       "multi_modal_projector.", "visual.",
        "model.vision_tower.", "model.visual.",          "model.multi_modal_projector.",
        "model.vision_model.", "vision_model.",          "model.embed_vision.",
        "model.audio_tower.",  "model.embed_audio."};
    static const char *const more[] = {".input_scale", ".weight_shape", ".input_zero_point",
                                       ".k_scale",     ".v_scale",      ".q_scale"};
    int layer;
    const char *spare = family_find(f->cfg.family)->spare;
    if (ends_in(t->name, ".rotary_emb.inv_freq")) return ERR_NONE;
    const family_files *own = family_find(f->cfg.family)->files;
    for (int i = 0; own && i < 3 && own->spare[i]; i++)
        if (ends_in(t->name, own->spare[i])) return ERR_NONE;
    if (spare && strncmp(t->name, spare, strlen(spare)) == 0) return ERR_NONE;
    if (sscanf(t->name, "model.layers.%6d.", &layer) == 1 && layer >= f->cfg.n_layer &&
        layer - f->cfg.n_layer < f->cfg.spare_layers)
        return ERR_NONE;
    for (size_t i = 0; f->cfg.wrapped && i < sizeof(seen) / sizeof(seen[0]); i++)
        if (strncmp(t->name, seen[i], strlen(seen[i])) == 0) return ERR_NONE;
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
        if (f->quant.method != QUANT_NONE && ends_in(t->name, more[i])) return ERR_NONE;
    if (is_unread_key(f, t->name)) return ERR_NONE;
    size_t head = strlen(f->head);
    bool is_head = strncmp(t->name, f->head, head) == 0 && strcmp(t->name + head, ".weight") == 0;
    if (!f->cfg.tied || !is_head) return left_over(f, t->name, e);
    dtype type;
    if (st_usable(t->dtype, &type) && table->values && type == table->plain &&
        t->bytes == table->part[0].bytes && memcmp(table->values, t->data, t->bytes) == 0)
        return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "lm_head.weight differs from the embedding, although "
                   "\"tie_word_embeddings\" says that the two are one");
}

/* is_unread_key() of a GGUF. */
static bool is_unread_gguf(const model_files *f, const char *name)
{
    static const char *const parts[] = {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"};
    int layer = -1, end = 0;
    if (sscanf(name, "blk.%6d.%n", &layer, &end) != 1 || layer < 0 || layer >= f->cfg.n_layer)
        return false;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(name + end, parts[i]) == 0) return f->cfg.layer[layer] & LAYER_SHARES_KV;
    return false;
}

/* Of a layer behind the model's, which guesses more tokens. */
static bool is_spare(const model_files *f, const char *name)
{
    int layer = -1;
    return sscanf(name, "blk.%6d.", &layer) == 1 && layer >= f->cfg.n_layer &&
           (layer < f->cfg.n_layer + f->cfg.spare_layers || family_find(f->cfg.family)->spare);
}

err_code model_files_check_rest(const model_files *f, const stored *table, err *e)
{
    err_code rc = ERR_NONE;
    for (int i = 0; i < f->n_shard; i++) {
        const shard *s = &f->shard[i];
        int n = f->is_gguf ? gguf_tensors(s->g) : safetensors_count(s->f);
        for (int k = 0; k < n && !rc; k++) {
            if (s->used[k] || (f->is_gguf && is_unread_gguf(f, gguf_tensor_at(s->g, k)->name)))
                continue;
            if (s->used[k] || (f->is_gguf && is_spare(f, gguf_tensor_at(s->g, k)->name))) continue;
            rc = f->is_gguf ? left_over(f, gguf_tensor_at(s->g, k)->name, e)
                            : check_tensor(f, safetensors_at(s->f, k), table, e);
        }
    }
    return rc;
}
