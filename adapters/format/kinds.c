/* kinds.c -- converts LoHa, LoKr, VeRA and IA3 adapters to LoRA pairs (and gains), exactly, when
 * they are uploaded.
 *
 *   LoHa  (w1a w1b) o (w2a w2b)      A rows: products of rows of w1b and w2b; rank r^2
 *   LoKr  W1 (x) W2, each whole or a product      (L1 (x) L2)(R1 (x) R2)
 *   VeRA  diag(b) B diag(d) A with shared random A, B      scaled corner of the shared matrices
 *   IA3   a gain per output, or per input of an MLP's last matrix, moved to the outputs before it
 *
 * The configuration is rewritten as that of a LoRA with the same target_modules and rank patterns
 * (as_lora()), so peft.c decides what they mean. Tensors are grouped by module (find_unit()), their
 * shapes checked (shape_unit()), then each module is joined in f32 and written with a scale of 1.
 *
 * A converted rank must not exceed the server's limit. Sources: Hyeon-Woo et al. 2022 (LoHa),
 * Edalati et al. 2022 (LoKr), Kopiczko et al. 2024 (VeRA), Liu et al. 2022 (IA3); PEFT for names
 * and scales. Threads: the worker that publishes the upload.
 */
#include "adapters/format/kinds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/folder.h"
#include "adapters/format/naming.h"
#include "adapters/format/peft.h"
#include "adapters/format/validate.h"
#include "engine/base/json.h"
#include "engine/model/safetensors.h"

typedef enum { LOHA, LOKR, VERA, IA3, KIND_COUNT } kind;
enum { PARTS_MAX = 6, PATH_BYTES = 200, HEADER_EACH = 1024 /* bytes of one module's lines */ };

static const struct {
    const char *type, *shown, *ending[PARTS_MAX];
} kind_of[KIND_COUNT] = {
    [LOHA] = {"LOHA", "LoHa", {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}},
    [LOKR] = {"LOKR",
              "LoKr",
              {"lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b", "lokr_w1", "lokr_w2"}},
    [VERA] = {"VERA", "VeRA", {"vera_lambda_b", "vera_lambda_d"}},
    [IA3] = {"IA3", "IA3", {"ia3_l"}},
};
static const char *const shared_names[2] = {"base_model.vera_A", "base_model.vera_B"};

/* One module of the file. */
typedef struct unit {
    char path[PATH_BYTES]; /* as the file has it, without the endings */
    tensor_name at;
    const st_tensor *part[PARTS_MAX]; /* by kind_of[].ending; NULL: not there */
    size_t slot;                      /* the first of its projections */
    uint64_t d_out, d_in;             /* of all of them */
    uint64_t rank;
    float scale;
    /* LoKr: W1 is [side[0]][side[1]], W2 [side[2]][side[3]]; inner[]: what they are products by */
    uint64_t side[4], inner[2];
} unit;

struct kinds {
    kind kind;
    int weights_fd, rank_max;
    const model_config *base;
    cJSON *root;
    naming names;
    safetensors *st;
    const st_tensor *shared[2]; /* VeRA's A and B */
    peft_config pc;
    unit *unit;
    int n_unit;
    uint64_t bytes;
};

/* ---- the config ----------------------------------------------------------------------------- */

static err_code read_config(int fd, cJSON **root, err *e)
{
    static const json_limits limits = {
        .max_bytes = FOLDER_CONFIG_MAX, .max_depth = 16, .max_values = 65536};
    struct stat sb;
    *root = NULL;
    if (fstat(fd, &sb) != 0 || sb.st_size > FOLDER_CONFIG_MAX)
        return err_set(e, ERR_LIMIT, "adapter_config.json has more than %d bytes",
                       FOLDER_CONFIG_MAX);
    char *text = malloc((size_t)sb.st_size + 1);
    if (!text) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = folder_read_at(fd, text, (size_t)sb.st_size, 0)
                      ? json_parse(text, (size_t)sb.st_size, &limits, root, e)
                      : err_set(e, ERR_IO, "adapter_config.json cannot be read");
    free(text);
    return rc == ERR_NONE ? rc : err_context(e, "adapter_config.json");
}

/* Finds the kind by peft_type; KIND_COUNT: none of these. */
static kind find_kind(const cJSON *root)
{
    const char *type =
        cJSON_IsObject(root) ? cJSON_GetStringValue(json_get(root, "peft_type")) : NULL;
    int k = 0;
    while (k < KIND_COUNT && (!type || strcmp(type, kind_of[k].type) != 0)) k++;
    return (kind)k;
}

static bool on_list(const char *const *list, const char *word)
{
    while (*list && strcmp(*list, word) != 0) list++;
    return *list != NULL;
}

static bool is_unset(const cJSON *v)
{
    bool empty = (cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child;
    return empty || cJSON_IsNull(v) || cJSON_IsFalse(v);
}

/* The config of a LoRA that means the same modules and numbers; NULL: no memory, or *e. */
static char *as_lora(const kinds *k, err *e)
{
    static const char *const same[] = {"task_type",
                                       "base_model_name_or_path",
                                       "auto_mapping",
                                       "peft_version",
                                       "revision",
                                       "inference_mode",
                                       "r",
                                       "rank_pattern",
                                       "alpha_pattern",
                                       "target_modules",
                                       "exclude_modules",
                                       "layers_to_transform",
                                       "layers_pattern",
                                       "fan_in_fan_out",
                                       NULL};
    /* Of training, or told by the tensors themselves. */
    static const char *const inert[] = {
        "rank_dropout",   "module_dropout",      "use_effective_conv2d", "init_weights",
        "vera_dropout",   "rank_dropout_scale",  "projection_prng_key",  "save_projection",
        "d_initial",      "decompose_both",      "decompose_factor",     "peft_type",
        "runtime_config", "feedforward_modules", "init_ia3_weights",     NULL};
    const cJSON *v, *bias = json_get(k->root, "bias");
    cJSON *out = cJSON_CreateObject();
    bool ok = out && cJSON_AddStringToObject(out, "peft_type", "LORA");
    err_code rc = ERR_NONE;
    cJSON_ArrayForEach(v, k->root)
    {
        bool alpha = strcmp(v->string, "alpha") == 0 && k->kind != VERA && k->kind != IA3;
        bool none = v == bias && cJSON_IsString(v) && strcmp(v->valuestring, "none") == 0;
        if (rc || none || is_unset(v) || on_list(inert, v->string)) continue;
        if (!alpha && !on_list(same, v->string))
            rc = err_set(e, ERR_UNSUPPORTED,
                         "adapter_config.json sets '%.64s', which is not supported for %s",
                         v->string, kind_of[k->kind].shown);
        else
            ok = ok && cJSON_AddItemToObject(out, alpha ? "lora_alpha" : v->string,
                                             cJSON_Duplicate(v, true));
    }
    char *text = ok && !rc ? json_print(out) : NULL;
    cJSON_Delete(out);
    if (!text && !rc) (void)err_set(e, ERR_NOMEM, "out of memory");
    return text;
}

/* ---- the tensors ---------------------------------------------------------------------------- */

/* The place of an ending of this kind; -1: it has none, *dot stays. */
static int part_of(const kinds *k, const char *name, const char **dot)
{
    const char *last = strrchr(name, '.');
    for (int p = 0; last && p < PARTS_MAX && kind_of[k->kind].ending[p]; p++) {
        if (strcmp(last + 1, kind_of[k->kind].ending[p]) != 0) continue;
        *dot = last;
        return p;
    }
    return -1;
}

static unit *find_unit(kinds *k, const char *path, size_t len)
{
    for (int i = k->n_unit - 1; i >= 0; i--) /* tensors of a module lie together */
        if (strlen(k->unit[i].path) == len && memcmp(k->unit[i].path, path, len) == 0)
            return &k->unit[i];
    unit *u = &k->unit[k->n_unit++];
    memcpy(u->path, path, len);
    return u;
}

static err_code take_tensor(kinds *k, const st_tensor *t, err *e)
{
    char as_lora_A[PATH_BYTES + 16];
    const char *dot;
    dtype type;
    if (!st_usable(t->dtype, &type))
        return err_set(e, ERR_UNSUPPORTED, "tensor '%.140s' is %s; allowed are F32, F16 and BF16",
                       t->name, st_dtype_name(t->dtype));
    for (int i = 0; k->kind == VERA && i < 2; i++) {
        if (strcmp(t->name, shared_names[i]) != 0) continue;
        k->shared[i] = t;
        return ERR_NONE;
    }
    int p = part_of(k, t->name, &dot);
    size_t len = p >= 0 ? (size_t)(dot - t->name) : 0;
    if (p < 0 || len >= PATH_BYTES)
        return err_set(e, ERR_UNSUPPORTED, "tensor '%.140s' is none that a %s of linear layers has",
                       t->name, kind_of[k->kind].shown);
    snprintf(as_lora_A, sizeof as_lora_A, "%.*s.lora_A.weight", (int)len, t->name);
    err_code rc = naming_learn(&k->names, as_lora_A, e);
    if (rc) return rc;
    unit *u = find_unit(k, t->name, len);
    (void)tensor_name_parse(as_lora_A, &u->at);
    u->part[p] = t;
    if (u->at.layer >= 0 && u->at.module < MODULE_EXPERT_GATE) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED, "tensor '%.140s': %s is supported on layers' projections",
                   t->name, kind_of[k->kind].shown);
}

static err_code take_all(kinds *k, err *e)
{
    int n = safetensors_count(k->st);
    k->unit = calloc((size_t)n + 1, sizeof(*k->unit));
    if (!k->unit) return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < n; i++) {
        err_code rc = take_tensor(k, safetensors_at(k->st, i), e);
        if (rc) return rc;
    }
    if (k->kind != VERA || (k->shared[0] && k->shared[1])) return ERR_NONE;
    return err_set(
        e, ERR_UNSUPPORTED,
        "the file has no vera_A and vera_B: save the VeRA with save_projection=True, for "
        "its matrices cannot be made again from their key alone");
}

/* ---- shapes --------------------------------------------------------------------------------- */

static err_code no_shape(const unit *u, int p, err *e)
{
    return err_set(e, ERR_INPUT, "%.140s: its tensor %.140s has a shape that does not fit", u->path,
                   u->part[p] ? u->part[p]->name : "is missing, or one");
}

/* Whether part p exists with this shape; cols 0: a vector. */
static bool shaped(const unit *u, int p, uint64_t rows, uint64_t cols)
{
    const st_tensor *t = u->part[p];
    if (!t || t->ndim != (cols ? 2 : 1)) return false;
    return t->shape[0] == rows && (cols == 0 || t->shape[1] == cols);
}

static err_code shape_loha(unit *u, uint64_t r, err *e)
{
    for (int p = 0; p < 4; p++)
        if (!shaped(u, p, p % 2 ? r : u->d_out, p % 2 ? u->d_in : r)) return no_shape(u, p, e);
    u->rank = r * r;
    return ERR_NONE;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Each factor whole, or as a product by the rank r. */
static err_code shape_lokr(unit *u, uint64_t r, err *e)
{
    for (int f = 0; f < 2; f++) {
        const st_tensor *whole = u->part[4 + f], *a = u->part[2 * f], *b = u->part[2 * f + 1];
        bool both = a && b && !whole, fits = whole ? !a && !b && whole->ndim == 2 : both;
        if (both) fits = a->ndim == 2 && b->ndim == 2 && a->shape[1] == r && b->shape[0] == r;
        if (!fits) return no_shape(u, whole ? 4 + f : 2 * f, e);
        u->side[2 * f] = whole ? whole->shape[0] : a->shape[0];
        u->side[2 * f + 1] = whole ? whole->shape[1] : b->shape[1];
        u->inner[f] = whole ? least(u->side[2 * f], u->side[2 * f + 1]) : r;
        if (u->side[2 * f] > u->d_out || u->side[2 * f + 1] > u->d_in)
            return no_shape(u, whole ? 4 + f : 2 * f, e);
    }
    if (u->side[0] * u->side[2] != u->d_out || u->side[1] * u->side[3] != u->d_in)
        return no_shape(u, u->part[5] ? 5 : 2, e);
    u->rank = u->inner[0] * u->inner[1];
    return ERR_NONE;
}

static err_code shape_vera(const kinds *k, unit *u, uint64_t r, err *e)
{
    const st_tensor *a = k->shared[0], *b = k->shared[1];
    if (!shaped(u, 0, u->d_out, 0)) return no_shape(u, 0, e);
    if (!shaped(u, 1, r, 0)) return no_shape(u, 1, e);
    if (a->ndim != 2 || b->ndim != 2 || a->shape[0] != r || b->shape[1] != r ||
        a->shape[1] < u->d_in || b->shape[0] < u->d_out)
        return err_set(e, ERR_INPUT, "vera_A or vera_B is too small for %.140s", u->path);
    u->rank = r;
    u->scale = 1;
    return ERR_NONE;
}

/* A gain of outputs, or of the inputs of an MLP's last matrix. */
static err_code shape_ia3(const kinds *k, unit *u, err *e)
{
    u->rank = 1;
    if (shaped(u, 0, u->d_out, 1)) return ERR_NONE;
    if (!shaped(u, 0, 1, u->d_in)) return no_shape(u, 0, e);
    if (u->at.module == PROJ_DOWN && !k->base->ungated) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "%.140s: IA3's vector for inputs is supported on the down_proj of a gated MLP "
                   "alone",
                   u->path);
}

static err_code shape_unit(kinds *k, unit *u, err *e)
{
    int count, d_out, d_in = 0;
    if (u->at.layer >= k->base->n_layer || k->base->layer[u->at.layer] & LAYER_EXPERTS)
        return err_set(e, ERR_UNSUPPORTED, "%.140s: %s is supported on layers without experts",
                       u->path, kind_of[k->kind].shown);
    u->slot = (size_t)u->at.layer * PROJ_COUNT + (size_t)module_projs(u->at.module, &count);
    for (int i = 0; i < count; i++) {
        peft_slot_shape(k->base, u->slot + (size_t)i, &d_out, &d_in);
        u->d_out += (uint64_t)d_out;
    }
    u->d_in = (uint64_t)d_in;
    const peft_layer *pl = &k->pc.layer[u->slot];
    if (!pl->wrapped)
        return err_set(e, ERR_INPUT, "%.140s is not covered by target_modules", u->path);
    u->scale = pl->scale;
    uint64_t r = (uint64_t)pl->rank;
    err_code rc = k->kind == LOHA   ? shape_loha(u, r, e)
                  : k->kind == LOKR ? shape_lokr(u, r, e)
                  : k->kind == VERA ? shape_vera(k, u, r, e)
                                    : shape_ia3(k, u, e);
    if (rc || u->rank <= (uint64_t)k->rank_max) return rc;
    return err_set(e, ERR_LIMIT,
                   "%.140s: as a plain product this %s has the rank %llu; allowed are %d", u->path,
                   kind_of[k->kind].shown, (unsigned long long)u->rank, k->rank_max);
}

/* Every module that the config covers has its tensors; of IA3 in what is left to be written. */
static err_code check_covered(const kinds *k, err *e)
{
    char name[128];
    for (size_t slot = 0; slot < peft_slots(&k->pc); slot++) {
        bool there = !k->pc.layer[slot].wrapped;
        for (int i = 0, count; i < k->n_unit && !there; i++) {
            (void)module_projs(k->unit[i].at.module, &count);
            there = slot >= k->unit[i].slot && slot < k->unit[i].slot + (size_t)count;
        }
        if (there) continue;
        peft_slot_name(name, sizeof name, k->base, &k->pc, slot);
        return err_set(e, ERR_INPUT, "target_modules covers %s, but it has no tensors in the file",
                       name);
    }
    return ERR_NONE;
}

err_code kinds_open(kinds **out, int config_fd, int weights_fd, const model_config *base,
                    int rank_max, uint64_t max_bytes, err *e)
{
    cJSON *root = NULL;
    struct stat sb = {0};
    *out = NULL;
    err_code rc = read_config(config_fd, &root, e);
    kind is = rc ? KIND_COUNT : find_kind(root);
    kinds *k = is < KIND_COUNT ? calloc(1, sizeof(*k)) : NULL;
    if (!k) {
        cJSON_Delete(root);
        return rc || is == KIND_COUNT ? rc : err_set(e, ERR_NOMEM, "out of memory");
    }
    *k = (kinds){.kind = is, .weights_fd = weights_fd, .base = base, .root = root};
    k->names.root = -1;
    k->rank_max = rank_max > 0 && rank_max < LORA_RANK_MAX ? rank_max : LORA_RANK_MAX;
    char *text = as_lora(k, e);
    if (!text) rc = e->code;
    if (!rc && fstat(weights_fd, &sb) != 0) rc = folder_disk_error(e, "read");
    if (!rc) rc = adapter_read_header(weights_fd, (uint64_t)sb.st_size, &k->st, e);
    if (!rc) rc = take_all(k, e);
    if (!rc) rc = peft_parse(text, strlen(text), base, LORA_RANK_MAX, &k->names, &k->pc, e);
    for (int i = 0; i < k->n_unit && !rc; i++) {
        rc = shape_unit(k, &k->unit[i], e);
        k->bytes +=
            HEADER_EACH + k->unit[i].rank * (k->unit[i].d_out + k->unit[i].d_in) * sizeof(float);
        k->bytes += k->kind == IA3 ? k->unit[i].d_out * sizeof(float) : 0;
    }
    if (!rc) rc = check_covered(k, e);
    if (!rc && k->bytes > max_bytes)
        rc = err_set(
            e, ERR_LIMIT, "as plain products this %s has %llu bytes; at most %llu are accepted",
            kind_of[is].shown, (unsigned long long)k->bytes, (unsigned long long)max_bytes);
    free(text);
    if (!rc)
        *out = k;
    else
        kinds_close(k);
    return rc;
}

uint64_t kinds_bytes(const kinds *k)
{
    return k->bytes;
}

void kinds_close(kinds *k)
{
    if (!k) return;
    if (k->pc.layer) peft_clear(&k->pc);
    safetensors_close(k->st);
    cJSON_Delete(k->root);
    free(k->unit);
    free(k);
}

/* ---- values --------------------------------------------------------------------------------- */

/* rows x cols values of the upper left corner of a matrix; NULL and *e: not to be had. */
static float *values(const kinds *k, const st_tensor *t, uint64_t rows, uint64_t cols, err *e)
{
    uint64_t wide = t->ndim == 2 ? t->shape[1] : 1, size = t->bytes / t->count;
    float *out = malloc((size_t)(rows * cols) * sizeof(*out) + 1);
    uint8_t *raw = malloc((size_t)(cols * size) + 1);
    bool ok = out && raw;
    if (!ok) (void)err_set(e, ERR_NOMEM, "out of memory");
    for (uint64_t r = 0; r < rows && ok; r++) {
        ok = folder_read_at(k->weights_fd, raw, (size_t)(cols * size), t->offset + r * wide * size);
        if (!ok) (void)err_set(e, ERR_IO, "tensor '%.140s' cannot be read", t->name);
        st_tensor row = {.dtype = t->dtype, .count = cols, .bytes = cols * size, .data = raw};
        if (ok) st_read_f32(&row, 0, (size_t)cols, out + r * cols);
    }
    free(raw);
    if (ok) return out;
    free(out);
    return NULL;
}

/* The two factors of a factor: L [side][inner] and R [inner][side]; a whole one is itself and the
 * identity, on its longer side. */
static err_code split(const kinds *k, const unit *u, int f, float *both[2], err *e)
{
    const st_tensor *whole = u->part[4 + f];
    uint64_t rows = u->side[2 * f], cols = u->side[2 * f + 1], n = u->inner[f];
    for (int i = 0; i < 2; i++) {
        bool identity = whole && (i == 0) == (rows <= cols);
        if (!identity) {
            both[i] = values(k, whole ? whole : u->part[2 * f + i], i ? n : rows, i ? cols : n, e);
        } else if ((both[i] = calloc((size_t)(n * n), sizeof(float))) != NULL) {
            for (uint64_t d = 0; d < n; d++) both[i][d * n + d] = 1;
        } else {
            (void)err_set(e, ERR_NOMEM, "out of memory");
        }
        if (!both[i]) return e->code;
    }
    return ERR_NONE;
}

/* A and B of a LoHa: row (i, j) of A is row i of w1_b times row j of w2_b, likewise B's columns. */
static void join_loha(const unit *u, float *const in[4], uint64_t r, float *a, float *b)
{
    for (uint64_t ij = 0; ij < u->rank; ij++)
        for (uint64_t c = 0; c < u->d_in; c++)
            a[ij * u->d_in + c] = in[1][ij / r * u->d_in + c] * in[3][ij % r * u->d_in + c];
    for (uint64_t o = 0; o < u->d_out; o++)
        for (uint64_t ij = 0; ij < u->rank; ij++)
            b[o * u->rank + ij] = u->scale * in[0][o * r + ij / r] * in[2][o * r + ij % r];
}

/* Of a LoKr: (L1 (x) L2) (R1 (x) R2). */
static void join_lokr(const unit *u, float *const in[4], float *a, float *b)
{
    uint64_t n1 = u->inner[0], n2 = u->inner[1], w1 = u->side[1], w2 = u->side[3], h2 = u->side[2];
    for (uint64_t ij = 0; ij < u->rank; ij++)
        for (uint64_t c = 0; c < u->d_in; c++)
            a[ij * u->d_in + c] = in[1][ij / n2 * w1 + c / w2] * in[3][ij % n2 * w2 + c % w2];
    for (uint64_t o = 0; o < u->d_out; o++)
        for (uint64_t ij = 0; ij < u->rank; ij++)
            b[o * u->rank + ij] =
                u->scale * in[0][o / h2 * n1 + ij / n2] * in[2][o % h2 * n2 + ij % n2];
}

static void join_vera(const unit *u, float *const in[4], float *a, float *b)
{
    for (uint64_t i = 0; i < u->rank; i++)
        for (uint64_t c = 0; c < u->d_in; c++)
            a[i * u->d_in + c] = in[1][i] * in[2][i * u->d_in + c];
    for (uint64_t o = 0; o < u->d_out; o++)
        for (uint64_t i = 0; i < u->rank; i++)
            b[o * u->rank + i] = in[0][o] * in[3][o * u->rank + i];
}

/* IA3's gain of a slot's outputs: its own, times that of the inputs of what follows it. */
static err_code join_gain(const kinds *k, const unit *u, float *gain, err *e)
{
    for (uint64_t i = 0; i < u->d_out; i++) gain[i] = 1;
    for (int n = 0; n < k->n_unit; n++) {
        const unit *of = &k->unit[n];
        bool before = of->part[0]->shape[0] == 1 && of->d_out != 1;
        size_t slot = before ? of->slot + PROJ_UP - PROJ_DOWN : of->slot;
        if (slot != u->slot) continue;
        float *v = values(k, of->part[0], 1, u->d_out, e);
        if (!v) return e->code;
        for (uint64_t i = 0; i < u->d_out; i++) gain[i] *= v[i];
        free(v);
    }
    return ERR_NONE;
}

/* A [rank][d_in] and B [d_out][rank] of a module; for IA3 nothing, and its gain. */
static err_code join(const kinds *k, const unit *u, float *a, float *b, float *gain, err *e)
{
    float *in[4] = {NULL};
    err_code rc = ERR_NONE;
    uint64_t r = k->kind == LOHA ? u->part[1]->shape[0] : u->rank;
    if (k->kind == IA3) return join_gain(k, u, gain, e);
    if (k->kind == LOKR) {
        rc = split(k, u, 0, in, e);
        if (!rc) rc = split(k, u, 1, in + 2, e);
    }
    for (int p = 0; k->kind != LOKR && p < 4 && !rc; p++) {
        bool vera = k->kind == VERA;
        const st_tensor *t = vera && p >= 2 ? k->shared[p - 2] : u->part[p];
        uint64_t rows = vera ? (p == 0 || p == 3 ? u->d_out : r) : p % 2 ? r : u->d_out;
        uint64_t cols = vera ? (p == 2 ? u->d_in : p == 3 ? r : 1) : p % 2 ? u->d_in : r;
        in[p] = values(k, t, rows, cols, e);
        if (!in[p]) rc = e->code;
    }
    if (!rc && k->kind == LOHA) join_loha(u, in, r, a, b);
    if (!rc && k->kind == LOKR) join_lokr(u, in, a, b);
    if (!rc && k->kind == VERA) join_vera(u, in, a, b);
    for (int p = 0; p < 4; p++) free(in[p]);
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* What is written: the modules of the file; of IA3 the projections that get a gain. */
static int list_units(const kinds *k, unit *list)
{
    int n = 0;
    if (k->kind != IA3) memcpy(list, k->unit, (size_t)k->n_unit * sizeof(*list));
    if (k->kind != IA3) return k->n_unit;
    for (int i = 0; i < k->n_unit; i++) {
        const unit *u = &k->unit[i];
        bool before = u->part[0]->shape[0] == 1 && u->d_out != 1, known = false;
        unit one = *u;
        if (before) {
            one.slot = u->slot + PROJ_UP - PROJ_DOWN;
            one.d_out = u->d_in;
            one.d_in = u->d_out;
        }
        for (int m = 0; m < n; m++) known |= list[m].slot == one.slot;
        if (known) continue;
        if (before) module_path(one.path, sizeof one.path, &k->names, u->at.layer, PROJ_UP);
        list[n++] = one;
    }
    return n;
}

static void header_line(FILE *f, const unit *u, const char *ending, uint64_t rows, uint64_t cols,
                        uint64_t *at)
{
    uint64_t bytes = rows * (cols ? cols : 1) * sizeof(float);
    fprintf(f, "%s\"%s.%s\":{\"dtype\":\"F32\",\"shape\":[%llu", *at ? "," : "", u->path, ending,
            (unsigned long long)rows);
    if (cols) fprintf(f, ",%llu", (unsigned long long)cols);
    fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at,
            (unsigned long long)(*at + bytes));
    *at += bytes;
}

static err_code write_header(const kinds *k, const unit *list, int n, int fd, err *e)
{
    char *text = NULL;
    size_t len = 0;
    uint64_t at = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f) return err_set(e, ERR_NOMEM, "out of memory");
    fputc('{', f);
    for (int i = 0; i < n; i++) {
        header_line(f, &list[i], "lora_A.weight", list[i].rank, list[i].d_in, &at);
        header_line(f, &list[i], "lora_B.weight", list[i].d_out, list[i].rank, &at);
        if (k->kind == IA3)
            header_line(f, &list[i], "lora_magnitude_vector", list[i].d_out, 0, &at);
    }
    fputc('}', f);
    for (long end = ftell(f); end % 8 != 0; end++) fputc(' ', f);
    err_code rc = fclose(f) == 0 ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    uint8_t le[8];
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)((uint64_t)len >> 8 * i);
    if (!rc) rc = folder_put(fd, le, sizeof le, e);
    if (!rc) rc = folder_put(fd, text, len, e);
    free(text);
    return rc;
}

/* The module's name as target_modules has it. */
static const char *bare(const unit *u)
{
    static const char wrapper[] = "base_model.model.";
    return strncmp(u->path, wrapper, sizeof wrapper - 1) == 0 ? u->path + sizeof wrapper - 1
                                                              : u->path;
}

static err_code write_config(const kinds *k, const unit *list, int n, int fd, err *e)
{
    static const char *const names[] = {"target_modules", "rank_pattern", "alpha_pattern"};
    const char *task = cJSON_GetStringValue(json_get(k->root, "task_type"));
    cJSON *out = cJSON_CreateObject();
    cJSON *part[3] = {cJSON_AddArrayToObject(out, names[0]), cJSON_AddObjectToObject(out, names[1]),
                      cJSON_AddObjectToObject(out, names[2])};
    bool ok = part[0] && part[1] && part[2];
    ok = ok && cJSON_AddStringToObject(out, "peft_type", "LORA") &&
         cJSON_AddStringToObject(out, "base_model_name_or_path", k->pc.base_name) &&
         cJSON_AddNumberToObject(out, "r", 1) && cJSON_AddNumberToObject(out, "lora_alpha", 1);
    if (task) ok = ok && cJSON_AddStringToObject(out, "task_type", task);
    if (k->kind == IA3)
        ok = ok && cJSON_AddTrueToObject(out, "use_dora") && cJSON_AddTrueToObject(out, PEFT_GAINS);
    for (int i = 0; i < n && ok; i++) {
        double rank = (double)list[i].rank;
        ok = cJSON_AddItemToArray(part[0], cJSON_CreateString(bare(&list[i])));
        for (int p = 1; p < 3 && rank > 1; p++)
            ok = ok && cJSON_AddNumberToObject(part[p], bare(&list[i]), rank);
    }
    char *text = ok ? json_print(out) : NULL;
    cJSON_Delete(out);
    if (!text) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = folder_put(fd, text, strlen(text), e);
    free(text);
    return rc;
}

static err_code write_unit(const kinds *k, const unit *u, int fd, err *e)
{
    uint64_t n[3] = {u->rank * u->d_in, u->d_out * u->rank, k->kind == IA3 ? u->d_out : 0};
    float *v[3] = {NULL};
    bool ok = true;
    for (int i = 0; i < 3; i++) ok &= (v[i] = calloc((size_t)n[i] + 1, sizeof(float))) != NULL;
    err_code rc = ok ? join(k, u, v[0], v[1], v[2], e) : err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < 3; i++) {
        if (!rc) rc = folder_put(fd, v[i], (size_t)n[i] * sizeof(float), e);
        free(v[i]);
    }
    return rc;
}

err_code kinds_write(const kinds *k, int config_fd, int weights_fd, err *e)
{
    unit *list = calloc((size_t)k->n_unit + 1, sizeof(*list));
    if (!list) return err_set(e, ERR_NOMEM, "out of memory");
    int n = list_units(k, list);
    err_code rc = write_config(k, list, n, config_fd, e);
    if (!rc) rc = write_header(k, list, n, weights_fd, e);
    for (int i = 0; i < n && !rc; i++) rc = write_unit(k, &list[i], weights_fd, e);
    free(list);
    return rc;
}
