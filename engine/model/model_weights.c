/* model_weights.c -- from safetensors files to packed weights.
 *
 * First a list of every tensor that the configuration asks for, then all of them are found and
 * their shapes checked, then nothing may be left over in the files; only then is memory taken
 * and a byte of data touched.  While a matrix is packed the kernel reads the next ones; then its
 * pages are given back.  The embedding table is the exception: it stays mapped, and only the
 * rows in use are in memory.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/fingerprint.h"
#include "engine/base/round.h"
#include "engine/model/model_inside.h"

enum { FILES_MAX = 1024, FILE_NAME_MAX = 255 };
enum { AHEAD_BYTES = 128 << 20 }; /* that the kernel reads while others are packed */

typedef struct shard {
    char name[FILE_NAME_MAX + 1];
    safetensors *f;
    bool *used; /* [count of f] */
} shard;

/* One tensor that must be there, and where it goes. */
typedef struct wanted {
    char name[96];
    int rows, cols;  /* cols 0: a vector of `rows` values */
    weight **matrix; /* packed here, or: */
    float **device;  /* vector as f32 in backend memory; all NULL: the embedding table */
    const shard *from;
    const st_tensor *t;
} wanted;

typedef struct loader {
    model *m;
    shard *shard; /* [n_shard] */
    int n_shard;
    wanted *want; /* [n_want] */
    size_t n_want, cap_want;
} loader;

/* ---------------------------------------------------------------------------- files -- */

/* A shard's name comes from the index file: no path may hide in it. */
static bool file_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= FILE_NAME_MAX && name[0] != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static err_code open_shard(loader *l, const char *dir, const char *name, err *e)
{
    if (l->n_shard == FILES_MAX) {
        return err_set(e, ERR_LIMIT, "the model has more than %d files", FILES_MAX);
    }
    char path[MODEL_PATH_MAX];
    err_code rc = model_file_path(path, sizeof(path), dir, name, e);
    if (rc) return rc;
    shard *s = &l->shard[l->n_shard];
    memset(s, 0, sizeof(*s));
    snprintf(s->name, sizeof(s->name), "%s", name);
    rc = safetensors_open(&s->f, path, &st_limits_model, e);
    if (rc) {
        if (e) (void)err_context(e, "%.64s", name);
        return rc;
    }
    l->n_shard++; /* from here on close_shards() cleans up */
    s->used = calloc((size_t)safetensors_count(s->f) + 1, sizeof(*s->used));
    return s->used ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory to load the model");
}

static shard *shard_named(loader *l, const char *name)
{
    for (int i = 0; i < l->n_shard; i++) {
        if (strcmp(l->shard[i].name, name) == 0) return &l->shard[i];
    }
    return NULL;
}

/* Opens each file that the index names, and checks that each tensor lies where the index says. */
static err_code open_indexed(loader *l, const char *dir, const cJSON *index, err *e)
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
        shard *s = shard_named(l, item->valuestring);
        if (!s) {
            err_code rc = open_shard(l, dir, item->valuestring, e);
            if (rc) return rc;
            s = &l->shard[l->n_shard - 1];
        }
        if (!safetensors_find(s->f, item->string)) {
            return err_set(e, ERR_INPUT, "tensor '%.80s' is not in %.64s, as the index says",
                           item->string, s->name);
        }
    }
    return ERR_NONE;
}

static err_code open_files(loader *l, const char *dir, err *e)
{
    char path[MODEL_PATH_MAX];
    err_code rc = model_file_path(path, sizeof(path), dir, "model.safetensors", e);
    if (rc) return rc;
    if (access(path, F_OK) == 0) return open_shard(l, dir, "model.safetensors", e);

    cJSON *index;
    err why;
    rc = model_json_read(dir, "model.safetensors.index.json", &index, &why);
    if (rc == ERR_NOT_FOUND) {
        return err_set(e, ERR_NOT_FOUND,
                       "the model has neither model.safetensors nor "
                       "model.safetensors.index.json (only safetensors can be read)");
    }
    if (rc) {
        if (e) *e = why;
        return rc;
    }
    rc = open_indexed(l, dir, index, e);
    cJSON_Delete(index);
    return rc;
}

static void close_shards(loader *l)
{
    for (int i = 0; i < l->n_shard; i++) {
        safetensors_close(l->shard[i].f);
        free(l->shard[i].used);
    }
    free(l->shard);
    free(l->want);
}

/* -------------------------------------------------------------------- what must be there -- */

static const char *const proj_names[PROJ_COUNT] = {
    [PROJ_Q] = "self_attn.q_proj", [PROJ_K] = "self_attn.k_proj", [PROJ_V] = "self_attn.v_proj",
    [PROJ_O] = "self_attn.o_proj", [PROJ_GATE] = "mlp.gate_proj", [PROJ_UP] = "mlp.up_proj",
    [PROJ_DOWN] = "mlp.down_proj",
};

/* layer < 0: `name` is the whole name. */
static wanted *want(loader *l, int layer, const char *name, const char *suffix, int rows, int cols)
{
    assert(l->n_want < l->cap_want);
    wanted *w = &l->want[l->n_want++];
    memset(w, 0, sizeof(*w));
    int n = layer < 0
                ? snprintf(w->name, sizeof(w->name), "%s%s", name, suffix)
                : snprintf(w->name, sizeof(w->name), "model.layers.%d.%s%s", layer, name, suffix);
    assert(n > 0 && (size_t)n < sizeof(w->name));
    w->rows = rows;
    w->cols = cols;
    return w;
}

static void want_layer(loader *l, int i)
{
    const model_config *c = &l->m->cfg;
    model_layer *layer = &l->m->layer[i];
    for (int p = 0; p < PROJ_COUNT; p++) {
        int d_out, d_in;
        model_proj_shape(c, (proj)p, &d_out, &d_in);
        want(l, i, proj_names[p], ".weight", d_out, d_in)->matrix = &layer->w[p];
        if (model_proj_has_bias(c, (proj)p)) {
            want(l, i, proj_names[p], ".bias", d_out, 0)->device = &layer->bias[p];
        }
    }
    want(l, i, "input_layernorm", ".weight", c->dim, 0)->device = &layer->attn_norm;
    want(l, i, "post_attention_layernorm", ".weight", c->dim, 0)->device = &layer->mlp_norm;
    if (c->qk_norm) {
        want(l, i, "self_attn.q_norm", ".weight", c->head_dim, 0)->device = &layer->q_norm;
        want(l, i, "self_attn.k_norm", ".weight", c->head_dim, 0)->device = &layer->k_norm;
    }
}

static err_code want_all(loader *l, err *e)
{
    const model_config *c = &l->m->cfg;
    l->cap_want = (size_t)c->n_layer * (2 * PROJ_COUNT + 4) + 3;
    l->want = calloc(l->cap_want, sizeof(*l->want));
    l->m->layer = calloc((size_t)c->n_layer, sizeof(*l->m->layer));
    if (!l->want || !l->m->layer) return err_set(e, ERR_NOMEM, "no memory to load the model");

    /* The head stands before the table: packing it from the shared tensor lets the pages go.
     * HEAD_WANTED and TABLE_WANTED are these. */
    want(l, -1, c->tied ? "model.embed_tokens" : "lm_head", ".weight", c->n_vocab, c->dim)->matrix =
        &l->m->head;
    (void)want(l, -1, "model.embed_tokens", ".weight", c->n_vocab, c->dim);
    want(l, -1, "model.norm", ".weight", c->dim, 0)->device = &l->m->out_norm;
    for (int i = 0; i < c->n_layer; i++) want_layer(l, i);
    return ERR_NONE;
}

/* ----------------------------------------------------------------------- find and check -- */

static err_code find_tensor(loader *l, wanted *w, err *e)
{
    for (int i = 0; i < l->n_shard; i++) {
        const st_tensor *t = safetensors_find(l->shard[i].f, w->name);
        if (!t) continue;
        if (w->t) return err_set(e, ERR_INPUT, "tensor '%s' is in two files", w->name);
        w->t = t;
        w->from = &l->shard[i];
        l->shard[i].used[t - safetensors_at(l->shard[i].f, 0)] = true;
    }
    return w->t ? ERR_NONE : err_set(e, ERR_INPUT, "tensor '%s' is missing", w->name);
}

static err_code check_tensor(const wanted *w, err *e)
{
    dtype type;
    if (!st_usable(w->t->dtype, &type)) {
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor '%s' has dtype %s: only F32, F16 and BF16 are supported", w->name,
                       st_dtype_name(w->t->dtype));
    }
    const uint64_t *s = w->t->shape;
    bool fits = w->cols ? w->t->ndim == 2 && s[0] == (uint64_t)w->rows && s[1] == (uint64_t)w->cols
                        : w->t->ndim == 1 && s[0] == (uint64_t)w->rows;
    if (fits) return ERR_NONE;

    char have[64] = "", must[32];
    size_t at = 0;
    for (int i = 0; i < w->t->ndim && at < sizeof(have) - 24; i++) {
        int n = snprintf(have + at, sizeof(have) - at, "%s%llu", i ? ", " : "",
                         (unsigned long long)s[i]);
        at += (size_t)n;
    }
    snprintf(must, sizeof(must), w->cols ? "%d, %d" : "%d", w->rows, w->cols);
    return err_set(e, ERR_INPUT, "tensor '%s' has shape [%s], config.json asks for [%s]", w->name,
                   have, must);
}

/* The output layer that a tied model's file has besides is the embedding once more. */
static bool repeats_embedding(const loader *l, const st_tensor *head)
{
    const st_tensor *embed = NULL;
    for (size_t i = 0; i < l->n_want && !embed; i++) {
        if (strcmp(l->want[i].name, "model.embed_tokens.weight") == 0) embed = l->want[i].t;
    }
    return embed && embed->dtype == head->dtype && embed->bytes == head->bytes &&
           memcmp(embed->data, head->data, head->bytes) == 0;
}

/* Tensors that files carry and no forward pass needs. */
static bool ignored(const loader *l, const st_tensor *t)
{
    static const char buffer[] = ".rotary_emb.inv_freq";
    size_t n = strlen(t->name), k = sizeof(buffer) - 1;
    if (n > k && strcmp(t->name + n - k, buffer) == 0) return true;
    return l->m->cfg.tied && strcmp(t->name, "lm_head.weight") == 0 && repeats_embedding(l, t);
}

static err_code check_leftover(loader *l, err *e)
{
    for (int i = 0; i < l->n_shard; i++) {
        for (int k = 0; k < safetensors_count(l->shard[i].f); k++) {
            const st_tensor *t = safetensors_at(l->shard[i].f, k);
            if (l->shard[i].used[k] || ignored(l, t)) continue;
            if (l->m->cfg.tied && strcmp(t->name, "lm_head.weight") == 0)
                return err_set(e, ERR_UNSUPPORTED,
                               "lm_head.weight differs from the embedding, although "
                               "\"tie_word_embeddings\" says that the two are one");
            return err_set(e, ERR_UNSUPPORTED,
                           "tensor '%.96s' belongs to no part of a %s model: using the others "
                           "without it would give wrong answers",
                           t->name, l->m->cfg.family);
        }
    }
    return ERR_NONE;
}

/* One linear operation takes weights of one type, and so do adapters. */
static err_code check_types(loader *l, err *e)
{
    const wanted *first = NULL;
    for (size_t i = 0; i < l->n_want; i++) {
        const wanted *w = &l->want[i];
        if (!w->matrix || w->matrix == &l->m->head) continue;
        if (!first) first = w;
        if (w->t->dtype != first->t->dtype) {
            return err_set(e, ERR_UNSUPPORTED, "tensors '%s' (%s) and '%s' (%s) differ in dtype",
                           first->name, st_dtype_name(first->t->dtype), w->name,
                           st_dtype_name(w->t->dtype));
        }
    }
    bool usable = st_usable(first->t->dtype, &l->m->cfg.type);
    assert(usable);
    return ERR_NONE;
}

/* ------------------------------------------------------------------------------- load -- */

static void *host_alloc(size_t bytes)
{
    return aligned_alloc(64, round_up_size(bytes, 64));
}

/* The tensor's bytes at an address that its type allows; *copy is the caller's to free. */
static const void *aligned_data(const st_tensor *t, void **copy)
{
    *copy = NULL;
    if (t->aligned) return t->data;
    *copy = host_alloc(t->bytes);
    if (*copy) memcpy(*copy, t->data, t->bytes);
    return *copy;
}

static uint64_t print_of(const st_tensor *t)
{
    fingerprint f;
    fingerprint_begin(&f);
    fingerprint_add(&f, t->data, t->bytes);
    return fingerprint_end(&f);
}

enum { HEAD_WANTED, TABLE_WANTED }; /* the first two of the list */

static void print_table(void *arg, int i)
{
    const loader *l = arg;
    *(i == HEAD_WANTED ? &l->m->cfg.head_print : &l->m->cfg.embed_print) = print_of(l->want[i].t);
}

/* Long pieces, of which a thread reads one alone: side by side. */
static void print_tables(loader *l)
{
    model_config *c = &l->m->cfg;
    be_parallel(l->m->be, print_table, l, c->tied ? 1 : 2);
    if (c->tied) c->embed_print = c->head_print;
}

static err_code load_matrix(model *m, const wanted *w, err *e)
{
    dtype type;
    bool usable = st_usable(w->t->dtype, &type);
    assert(usable);
    void *copy;
    const void *src = aligned_data(w->t, &copy);
    if (!src) return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->name);
    err_code rc = be_weight_create(m->be, w->matrix, src, type, w->rows, w->cols, e);
    free(copy);
    if (w->matrix == &m->head) m->cfg.head_type = type;
    safetensors_forget(w->from->f, w->t);
    if (rc) {
        if (e) (void)err_context(e, "tensor '%s'", w->name);
        return rc;
    }
    m->weight_bytes += be_weight_bytes(*w->matrix);
    return ERR_NONE;
}

static err_code load_vector(model *m, const wanted *w, err *e)
{
    size_t bytes = (size_t)w->rows * sizeof(float);
    float *v = host_alloc(bytes);
    if (!v) return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->name);
    st_read_f32(w->t, 0, (size_t)w->rows, v);
    *w->device = be_alloc(m->be, bytes);
    err_code rc = *w->device ? be_upload(m->be, *w->device, v, bytes) : ERR_NOMEM;
    free(v);
    return rc ? err_set(e, rc, "tensor '%s': no device memory", w->name) : ERR_NONE;
}

/* The table stays where it is; its file is taken from the loader. */
static err_code load_embedding(loader *l, const wanted *w, err *e)
{
    model *m = l->m;
    bool usable = st_usable(w->t->dtype, &m->embed_type);
    assert(usable);
    m->embed = aligned_data(w->t, &m->embed_copy);
    if (!m->embed) return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->name);
    m->cfg.embed_type = m->embed_type;
    err_code rc = be_table_create(m->be, &m->table, m->embed, m->embed_type, w->rows, w->cols,
                                  m->cfg.tied ? m->head : NULL, e);
    if (rc) return e ? err_context(e, "tensor '%s'", w->name) : rc;
    safetensors_forget(w->from->f, w->t); /* rows come back as they are used */
    if (m->embed_copy) return ERR_NONE;
    shard *s = &l->shard[w->from - l->shard];
    m->embed_file = s->f;
    return ERR_NONE;
}

/* Refuses at once what cannot fit, with the sum. */
static err_code check_room(const loader *l, err *e)
{
    size_t room = be_room(l->m->be), need = 0;
    if (room == 0) return ERR_NONE;
    for (size_t i = 0; i < l->n_want; i++) {
        const wanted *w = &l->want[i];
        bool shared = !w->matrix && !w->device && l->m->cfg.tied; /* the head's */
        if (!shared) need += w->t->bytes;
    }
    if (need <= room) return ERR_NONE;
    double gib = (double)(1 << 30);
    return err_set(e, ERR_NOMEM,
                   "the weights take %.2f GiB, and the device has %.2f GiB for them (before "
                   "scratch, KV pages and adapters)",
                   (double)need / gib, (double)room / gib);
}

static err_code load_all(loader *l, const char *dir, err *e)
{
    l->shard = calloc(FILES_MAX, sizeof(*l->shard));
    if (!l->shard) return err_set(e, ERR_NOMEM, "no memory to load the model");
    err_code rc = open_files(l, dir, e);
    if (!rc) rc = want_all(l, e);
    for (size_t i = 0; i < l->n_want && !rc; i++) {
        rc = find_tensor(l, &l->want[i], e);
        if (!rc) rc = check_tensor(&l->want[i], e);
    }
    if (!rc) rc = check_leftover(l, e);
    if (!rc) rc = check_types(l, e);
    if (!rc) rc = check_room(l, e);
    if (!rc) print_tables(l);
    size_t asked = 0, ahead = 0;
    for (size_t i = 0; i < l->n_want && !rc; i++) {
        const wanted *w = &l->want[i];
        for (; asked < l->n_want && (asked <= i || ahead < AHEAD_BYTES); asked++) {
            safetensors_ahead(l->want[asked].from->f, l->want[asked].t);
            ahead += l->want[asked].t->bytes;
        }
        rc = w->matrix   ? load_matrix(l->m, w, e)
             : w->device ? load_vector(l->m, w, e)
                         : load_embedding(l, w, e);
        ahead -= w->t->bytes;
    }
    return rc;
}

err_code model_weights_load(model *m, const char *dir, err *e)
{
    loader l = {.m = m};
    err_code rc = load_all(&l, dir, e);
    for (int i = 0; i < l.n_shard; i++) {
        if (l.shard[i].f == m->embed_file) l.shard[i].f = NULL; /* taken by the model */
    }
    close_shards(&l);
    return rc;
}

void model_weights_clear(model *m)
{
    for (int i = 0; m->layer && i < m->cfg.n_layer; i++) {
        model_layer *l = &m->layer[i];
        for (int p = 0; p < PROJ_COUNT; p++) {
            if (l->w[p]) be_weight_destroy(m->be, l->w[p]);
            if (l->bias[p]) be_free(m->be, l->bias[p]);
        }
        float *norms[] = {l->attn_norm, l->mlp_norm, l->q_norm, l->k_norm};
        for (int k = 0; k < 4; k++) {
            if (norms[k]) be_free(m->be, norms[k]);
        }
    }
    free(m->layer);
    m->layer = NULL;
    if (m->head) be_weight_destroy(m->be, m->head);
    m->head = NULL;
    if (m->out_norm) be_free(m->be, m->out_norm);
    m->out_norm = NULL;
    be_table_destroy(m->be, m->table);
    m->table = NULL;
    free(m->embed_copy);
    m->embed_copy = NULL;
    safetensors_close(m->embed_file);
    m->embed_file = NULL;
}
