/* pooled.c -- how a model's last hidden states become one vector or class scores: modules.json,
 * 1_Pooling/config.json, sentence_bert_config.json, and the labels of config.json.
 *
 * These are the files that sentence-transformers writes beside a model. modules.json lists
 * steps: Transformer, Pooling, and optionally Normalize. Another module (Dense, for example)
 * would change the vectors, so the model still loads, but `problem` holds the reason for which
 * embeddings are refused.
 *
 * Precedence: model.pooling of lorad.conf, then 1_Pooling/config.json, then the last token.
 * Without modules.json vectors are normalised, as the OpenAI API promises. Scores of classifiers
 * follow the first of sentence_transformers.activation_fn, sbert_ce_default_activation_function
 * and problem_type; without any of them a single class has a sigmoid and several classes a
 * softmax.
 *
 * A GGUF has none of these files; it gets the defaults.
 */
#include "engine/model/pooled.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/files/documents.h"

enum { TOKENS_MAX = 1 << 22, LABEL_BYTES_MAX = 256 };

static const struct {
    const char *word, *field; /* of model.pooling; of 1_Pooling/config.json */
    pooling_kind kind;
} kinds[] = {
    {"last", "pooling_mode_lasttoken", POOL_LAST},
    {"cls", "pooling_mode_cls_token", POOL_FIRST},
    {"mean", "pooling_mode_mean_tokens", POOL_MEAN},
    {"max", "pooling_mode_max_tokens", POOL_MAX},
    {"weightedmean", "pooling_mode_weightedmean_tokens", POOL_MEAN_LATE},
    {"mean_sqrt_len", "pooling_mode_mean_sqrt_len_tokens", POOL_MEAN_ROOT},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* -1: none has this name. */
static int find_kind(const char *word)
{
    if (strcmp(word, "lasttoken") == 0) return POOL_LAST;
    for (int i = 0; i < KINDS; i++)
        if (strcmp(word, kinds[i].word) == 0) return (int)kinds[i].kind;
    return -1;
}

/* ------------------------------------------------------------------------ documents -- */

/* *out NULL: there is no such file. */
static err_code read_file(const char *dir, const char *name, cJSON **out, err *e)
{
    char path[DOCUMENT_PATH_MAX];
    *out = NULL;
    if (document_is_gguf(dir)) return ERR_NONE;
    err_code rc = document_path(path, sizeof(path), dir, name, e);
    if (rc) return rc;
    char *text = document_file_text(path);
    if (!text) return ERR_NONE;
    rc = json_parse(text, strlen(text), &json_limits_trusted, out, e);
    free(text);
    return rc ? err_context(e, "%s", name) : ERR_NONE;
}

/* "sentence_transformers.models.Pooling": the last word. */
static const char *kind_of(const cJSON *module)
{
    const cJSON *type = json_get(module, "type");
    const char *dot = cJSON_IsString(type) ? strrchr(type->valuestring, '.') : NULL;
    return dot ? dot + 1 : cJSON_IsString(type) ? type->valuestring : "";
}

/* --------------------------------------------------------------------------- vectors -- */

/* The one mode that is on.  Several would be put one behind the other. */
static err_code read_mode(pooled_config *pc, const cJSON *j, err *e)
{
    const cJSON *word = json_get(j, "pooling_mode");
    int n = 0, kind = cJSON_IsString(word) ? find_kind(word->valuestring) : -1;
    for (int i = 0; i < KINDS; i++) {
        bool on = false;
        err_code rc = json_bool(j, kinds[i].field, &on, NULL, e);
        if (rc) return rc;
        n += on;
        if (on) kind = (int)kinds[i].kind;
    }
    if (kind < 0 || n > 1)
        snprintf(pc->problem, sizeof(pc->problem),
                 "1_Pooling/config.json asks for %s, of which none is supported",
                 n > 1 ? "several ways of pooling at once" : "no way of pooling that is known");
    else
        pc->kind = (pooling_kind)kind;
    return ERR_NONE;
}

static err_code read_pooling(pooled_config *pc, const char *dir, const cJSON *module, err *e)
{
    const cJSON *path = json_get(module, "path");
    const char *folder = cJSON_IsString(path) ? path->valuestring : "1_Pooling";
    char name[96];
    cJSON *j;
    if (strpbrk(folder, "/\\") || folder[0] == '.' || strlen(folder) > 64)
        return err_set(e, ERR_INPUT, "modules.json: \"path\" must be the plain name of a folder");
    snprintf(name, sizeof(name), "%s/config.json", folder);
    err_code rc = read_file(dir, name, &j, e);
    if (!rc && !j) rc = err_set(e, ERR_INPUT, "modules.json names %s, which is not there", name);
    if (!rc) rc = read_mode(pc, j, e);
    cJSON_Delete(j);
    return rc;
}

static err_code read_module(pooled_config *pc, const char *dir, const cJSON *module, err *e)
{
    const char *kind = kind_of(module);
    if (strcmp(kind, "Transformer") == 0) return ERR_NONE;
    if (strcmp(kind, "Pooling") == 0) return read_pooling(pc, dir, module, e);
    if (strcmp(kind, "Normalize") == 0)
        pc->normalise = true;
    else
        snprintf(pc->problem, sizeof(pc->problem),
                 "modules.json has a module '%.60s', which is not supported", kind);
    return ERR_NONE;
}

static err_code read_sentence(pooled_config *pc, const char *dir, err *e)
{
    cJSON *j;
    int64_t most = 0;
    bool lower = false;
    err_code rc = read_file(dir, "sentence_bert_config.json", &j, e);
    if (rc || !j) return rc;
    rc = json_int(j, "max_seq_length", 1, TOKENS_MAX, &most, NULL, e);
    if (!rc) rc = json_bool(j, "do_lower_case", &lower, NULL, e);
    cJSON_Delete(j);
    if (rc) return err_context(e, "sentence_bert_config.json");
    pc->max_tokens = (int)most;
    if (lower)
        snprintf(pc->problem, sizeof(pc->problem),
                 "sentence_bert_config.json sets do_lower_case, which is not supported");
    return ERR_NONE;
}

/* *found: the folder is sentence-transformers'. */
static err_code read_modules(pooled_config *pc, const char *dir, bool *found, err *e)
{
    cJSON *j;
    const cJSON *module;
    err_code rc = read_file(dir, "modules.json", &j, e);
    *found = j != NULL;
    if (rc || !j) return rc;
    pc->normalise = false;
    if (!cJSON_IsArray(j)) rc = err_set(e, ERR_INPUT, "modules.json: must be an array");
    cJSON_ArrayForEach(module, j)
    {
        if (!rc) rc = read_module(pc, dir, module, e);
    }
    cJSON_Delete(j);
    return rc ? rc : read_sentence(pc, dir, e);
}

/* --------------------------------------------------------------------------- classes -- */

static err_code read_labels(pooled_config *pc, const cJSON *map, err *e)
{
    if (!cJSON_IsObject(map)) return ERR_NONE;
    int n = cJSON_GetArraySize(map);
    if (n > POOLING_LABELS_MAX) return ERR_NONE; /* a head of so many is refused elsewhere */
    pc->label = calloc((size_t)n + 1, sizeof(*pc->label));
    if (!pc->label) return err_set(e, ERR_NOMEM, "no memory to read the configuration");
    pc->n_label = n;
    for (int k = 0; k < n; k++) {
        char key[16];
        snprintf(key, sizeof(key), "%d", k);
        const cJSON *v = json_get(map, key);
        if (!cJSON_IsString(v) || strlen(v->valuestring) > LABEL_BYTES_MAX)
            return err_set(e, ERR_INPUT, "config.json: \"id2label\" has no word for class %d", k);
        pc->label[k] = strdup(v->valuestring);
        if (!pc->label[k]) return err_set(e, ERR_NOMEM, "no memory to read the configuration");
    }
    return ERR_NONE;
}

/* What scores become, by problem_type, or by the activation that a cross-encoder's file names. */
static err_code read_activation(pooled_config *pc, const cJSON *j, err *e)
{
    static const struct {
        const char *word;
        int scores;
    } words[] = {{"regression", POOLED_PLAIN},
                 {"single_label_classification", POOLED_SOFTMAX},
                 {"multi_label_classification", POOLED_SIGMOID},
                 {"torch.nn.modules.linear.Identity", POOLED_PLAIN},
                 {"torch.nn.modules.activation.Sigmoid", POOLED_SIGMOID},
                 {"torch.nn.modules.activation.Softmax", POOLED_SOFTMAX}};
    const cJSON *v = json_get(json_get(j, "sentence_transformers"), "activation_fn");
    if (!cJSON_IsString(v)) v = json_get(j, "sbert_ce_default_activation_function");
    if (!cJSON_IsString(v)) v = json_get(j, "problem_type");
    if (!cJSON_IsString(v)) return ERR_NONE;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(v->valuestring, words[i].word) != 0) continue;
        pc->scores = words[i].scores;
        return ERR_NONE;
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "config.json: the activation \"%.80s\" of scores is not supported",
                   v->valuestring);
}

static err_code read_classes(pooled_config *pc, const char *dir, err *e)
{
    cJSON *j;
    err_code rc = read_file(dir, "config.json", &j, e);
    if (rc || !j) return rc;
    rc = read_labels(pc, json_get(j, "id2label"), e);
    if (!rc) rc = read_activation(pc, j, e);
    cJSON_Delete(j);
    return rc;
}

/* -------------------------------------------------------------------------------- API -- */

err_code pooled_read(pooled_config *out, const char *path, const char *word, err *e)
{
    bool found;
    *out = (pooled_config){.kind = POOL_LAST, .normalise = true};
    err_code rc = read_modules(out, path, &found, e);
    int kind = find_kind(word);
    if (kind >= 0) out->kind = (pooling_kind)kind;
    if (!rc) rc = read_classes(out, path, e);
    if (rc) pooled_clear(out);
    return rc;
}

void pooled_clear(pooled_config *pc)
{
    for (int k = 0; k < pc->n_label; k++) free(pc->label[k]);
    free(pc->label);
    *pc = (pooled_config){.n_label = 0};
}

const char *pooled_label(const pooled_config *pc, int k, int n, char room[24])
{
    if (pc->n_label == n) return pc->label[k];
    snprintf(room, 24, "LABEL_%d", k);
    return room;
}

static void softmax(float *score, int n)
{
    double sum = 0, most = (double)score[0];
    for (int k = 1; k < n; k++) most = fmax(most, (double)score[k]);
    for (int k = 0; k < n; k++) sum += exp((double)score[k] - most);
    for (int k = 0; k < n; k++) score[k] = (float)(exp((double)score[k] - most) / sum);
}

void pooled_scores(const pooled_config *pc, float *score, int n)
{
    bool one = n == 1, plain = pc->scores == POOLED_PLAIN;
    bool sigmoid = pc->scores == POOLED_SIGMOID || (one && pc->scores == POOLED_USUAL);
    if (plain) return;
    if (!sigmoid) softmax(score, n);
    for (int k = 0; sigmoid && k < n; k++) score[k] = (float)(1 / (1 + exp(-(double)score[k])));
}
