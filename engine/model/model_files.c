/* model_files.c -- opens the files and finds tensors in them; a GGUF's names and order of rows. */
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

/* A shard's name comes from the index file: no path may hide in it. */
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
    f->root = "model.";
    for (int i = 0; f->cfg.wrapped && i < 3; i++) {
        snprintf(name, sizeof(name), "%sembed_tokens.weight", roots[i]);
        if (!model_files_look(f, name)) continue;
        f->root = roots[i];
        break;
    }
    bool bare = !f->is_gguf && !f->cfg.wrapped;
    if (bare && model_files_look(f, "embed_tokens.weight")) f->root = "";
    bool inside = f->cfg.wrapped && model_files_look(f, "language_model.lm_head.weight");
    f->head = inside ? "language_model.lm_head" : "lm_head";
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
    bool fits = s->slices ? ndim == 3 && shape[0] == (uint64_t)s->slices &&
                                shape[1] == (uint64_t)w->rows && shape[2] == (uint64_t)w->cols
                : s->vector
                    ? ndim == 1 && shape[0] == (uint64_t)w->cols
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

/* What a norm is called there, by its place; NULL: `module` is none of the layer's. */
static const char *gguf_norm(const char *family, const char *module)
{
    static const char *const names[LAYER_NORMS] = {
        [NORM_ATTN_IN] = "attn_norm", [NORM_ATTN_OUT] = "post_attention_norm",
        [NORM_MLP_IN] = "ffn_norm",   [NORM_MLP_OUT] = "post_ffw_norm",
        [NORM_Q] = "attn_q_norm",     [NORM_K] = "attn_k_norm"};
    const model_family *of = family_find(family);
    bool behind = of && of->sinks; /* GPT-OSS' norm before its MLP is called one behind attention */
    for (int i = 0; of && i < LAYER_NORMS; i++) {
        if (!of->norm[i] || strcmp(of->norm[i], module) != 0) continue;
        if (of->latent.rank && i >= NORM_Q) return i == NORM_Q ? "attn_q_a_norm" : "attn_kv_a_norm";
        return names[behind && i == NORM_MLP_IN ? NORM_ATTN_OUT : i];
    }
    return NULL;
}

/* "model.layers.3.self_attn.q_proj", "weight" to "blk.3.attn_q.weight". */
static void gguf_name(const char *family, const char *module, const char *suffix, char *out,
                      size_t size)
{
    static const struct {
        const char *theirs, *ours;
    } names[] = {{"self_attn.q_proj", "attn_q"},
                 {"self_attn.k_proj", "attn_k"},
                 {"self_attn.v_proj", "attn_v"},
                 {"self_attn.o_proj", "attn_output"},
                 {"self_attn.qkv_proj", "attn_qkv"},
                 {"self_attn.q_a_proj", "attn_q_a"},
                 {"self_attn.q_b_proj", "attn_q_b"},
                 {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                 {"self_attn.kv_b_proj", "attn_kv_b"},
                 {"self_attn.sinks", "attn_sinks.weight"},
                 {"mlp.gate_proj", "ffn_gate"},
                 {"mlp.up_proj", "ffn_up"},
                 {"mlp.gate_up_proj", "ffn_up"},
                 {"mlp.c_fc", "ffn_up"},
                 {"mlp.c_proj", "ffn_down"},
                 {"mlp.down_proj", "ffn_down"},
                 {"mlp.gate", "ffn_gate_inp"},
                 {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
                 {"mlp.router", "ffn_gate_inp"},
                 {"block_sparse_moe.gate", "ffn_gate_inp"},
                 {"block_sparse_moe.router.layer", "ffn_gate_inp"},
                 {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                 {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                 {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                 {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
                 {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                 {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                 {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
                 {"feed_forward.gate_proj", "ffn_gate"},
                 {"feed_forward.up_proj", "ffn_up"},
                 {"feed_forward.down_proj", "ffn_down"},
                 {"feed_forward.router", "ffn_gate_inp"},
                 {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
                 {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
                 {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
                 {"model.embed_tokens", "token_embd"},
                 {"model.norm", "output_norm"},
                 {"lm_head", "output"}};
    int layer = -1, skip = 0;
    char whole[96], block[24] = "";
    if (sscanf(module, "model.layers.%d.%n", &layer, &skip) == 1) module += skip;
    if (layer >= 0) snprintf(block, sizeof(block), "blk.%d.", layer);
    const char *norm = layer >= 0 ? gguf_norm(family, module) : NULL, *dot = ".";
    if (norm) module = norm;
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
    static const char *const llamas[] = {"llama",   "mistral",    "mixtral",
                                         "granite", "granitemoe", "smollm3"};
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
    err_code rc = check_shape(shape, one_row ? 2 : t->n_dims, s, e);
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
    return err_set(e, ERR_UNSUPPORTED, "tensor '%s' has type %s, which is not read here", s->name,
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

static bool has_gguf(const model_files *f, const char *name)
{
    for (int i = 0; i < f->n_shard; i++)
        if (gguf_find_tensor(f->shard[i].g, name)) return true;
    return false;
}

static err_code find_gguf(model_files *f, const char *module, const char *suffix, stored *s, err *e)
{
    const char *dot = strrchr(module, '.');
    gguf_name(f->cfg.family, module, suffix, s->name, sizeof(s->name));
    bool both = f->cfg.latent.rank && dot && strcmp(dot, ".kv_b_proj") == 0;
    if (both && !has_gguf(f, s->name)) return find_halves(f, module, s, e);
    err_code rc = find_named(f, 0, s, e);
    if (!rc) s->turned = turned(f, module);
    return rc;
}

/* ---- both ------------------------------------------------------------------------------------ */

err_code model_files_find(model_files *f, const char *module, const char *suffix, int rows,
                          int cols, stored *out, err *e)
{
    *out =
        (stored){.vector = cols == 0, .src = {.rows = cols ? rows : 1, .cols = cols ? cols : rows}};
    if (f->is_gguf) return find_gguf(f, module, suffix, out, e);
    char path[STORED_NAME_MAX + 1];
    if (strncmp(module, "model.", 6) == 0) {
        snprintf(path, sizeof(path), "%s%s", f->root, module + 6);
        module = path;
    } else if (strcmp(module, "lm_head") == 0) {
        module = f->head;
    }
    snprintf(out->name, sizeof(out->name), "%.110s.%s", module, suffix);
    bool found = false;
    if (cols && f->quant.method != QUANT_NONE) {
        err_code rc = quant_find(f, &f->quant, module, out, &found, e);
        if (rc || found) return rc;
    }
    return find_plain(f, out, e);
}

err_code model_files_find_rows(model_files *f, const char *module, int whole, int row0, int rows,
                               int cols, stored *out, err *e)
{
    err_code rc = model_files_find(f, module, "weight", whole, cols, out, e);
    if (rc) return rc;
    if (f->is_gguf && !out->turned) { /* rows of codes lie one behind the other, too */
        uint64_t each = out->part[0].bytes / (uint64_t)whole;
        out->part[0].data += each * (uint64_t)row0;
        out->part[0].bytes = each * (uint64_t)rows;
        if (out->values) out->values = out->part[0].data;
        out->src.rows = rows;
        return ERR_NONE;
    }
    if (!out->values || out->turned)
        return err_set(e, ERR_UNSUPPORTED, "tensor '%s' is fused and quantised, which is not read",
                       out->name);
    size_t row = (size_t)cols * dtype_bytes(out->plain);
    const uint8_t *from = (const uint8_t *)out->values + (size_t)row0 * row;
    out->values = from;
    out->part[0] = (stored_part){from, (uint64_t)rows * row};
    out->src.rows = rows;
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
    if (!f->is_gguf)
        snprintf(s->name, sizeof(s->name), "%s%.110s", f->root, name + strlen("model."));
    else if (sscanf(name, "model.layers.%d.%n", &layer, &skip) == 1)
        snprintf(s->name, sizeof(s->name), "blk.%d.%.64s", layer, name + skip);
}

err_code model_files_find_slice(model_files *f, const char *name, const stored_slice *at, int rows,
                                int cols, stored *out, err *e)
{
    *out = (stored){.slices = at->n_slice, .src = {.rows = at->whole, .cols = cols}};
    name_stack(f, name, out);
    if (f->is_gguf) return find_named(f, at->slice, out, e);
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
        return err_set(e, ERR_UNSUPPORTED, "tensor '%s' has type %s, which is not read here",
                       out->name, out->format);
    out->values = (const uint8_t *)out->values + (size_t)first * dtype_bytes(out->plain);
    out->src.cols = cols;
    out->row_apart = (size_t)whole;
    out->col_apart = (size_t)apart;
    return ERR_NONE;
}

bool model_files_bare(const model_files *f)
{
    return !f->is_gguf && f->root[0] == 0;
}

err_code model_files_rope(model_files *f, float *out, bool *found, err *e)
{
    bool twice;
    const gguf_tensor *t = f->is_gguf ? take_gguf(f, "rope_freqs.weight", &twice) : NULL;
    if (f->is_gguf && f->cfg.rope.kind == ROPE_LONG) { /* read as a part of config.json */
        (void)take_gguf(f, "rope_factors_long.weight", &twice);
        (void)take_gguf(f, "rope_factors_short.weight", &twice);
    }
    *found = t != NULL;
    if (!t) return ERR_NONE;
    if (t->type != GGML_F32 || t->n_dims != 1 || t->ne[0] != (uint64_t)f->cfg.head_dim / 2)
        return err_set(e, ERR_INPUT, "tensor 'rope_freqs.weight' is no F32 of %d values",
                       f->cfg.head_dim / 2);
    memcpy(out, t->data, (size_t)t->bytes);
    for (int i = 0; i < f->cfg.head_dim / 2; i++)
        if (!(out[i] > 0.0F && out[i] < 1e9F))
            return err_set(e, ERR_INPUT, "tensor 'rope_freqs.weight': value %d is no divisor", i);
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

/* Tensors that files carry and no forward pass needs: among them scales of activations and of keys
 * and values, which are not quantised here.  The output layer that a tied model's file has besides
 * is the embedding once more. */
static err_code check_tensor(const model_files *f, const st_tensor *t, const stored *table, err *e)
{
    static const char *const seen[] = {
        "vision_tower.",       "multi_modal_projector.", "visual.",
        "model.vision_tower.", "model.visual.",          "model.multi_modal_projector.",
        "model.vision_model.", "vision_model."};
    static const char *const more[] = {".input_scale", ".weight_shape", ".input_zero_point",
                                       ".k_scale",     ".v_scale",      ".q_scale"};
    int layer;
    if (ends_in(t->name, ".rotary_emb.inv_freq")) return ERR_NONE;
    if (sscanf(t->name, "model.layers.%6d.", &layer) == 1 && layer >= f->cfg.n_layer &&
        layer - f->cfg.n_layer < f->cfg.spare_layers)
        return ERR_NONE;
    for (size_t i = 0; f->cfg.wrapped && i < sizeof(seen) / sizeof(seen[0]); i++)
        if (strncmp(t->name, seen[i], strlen(seen[i])) == 0) return ERR_NONE;
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++)
        if (f->quant.method != QUANT_NONE && ends_in(t->name, more[i])) return ERR_NONE;
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

err_code model_files_check_rest(const model_files *f, const stored *table, err *e)
{
    err_code rc = ERR_NONE;
    for (int i = 0; i < f->n_shard; i++) {
        const shard *s = &f->shard[i];
        int n = f->is_gguf ? gguf_tensors(s->g) : safetensors_count(s->f);
        for (int k = 0; k < n && !rc; k++) {
            if (s->used[k]) continue;
            rc = f->is_gguf ? left_over(f, gguf_tensor_at(s->g, k)->name, e)
                            : check_tensor(f, safetensors_at(s->f, k), table, e);
        }
    }
    return rc;
}
