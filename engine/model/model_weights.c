/* model_weights.c -- from tensors of files to packed weights.
 *
 * First a list of every tensor that the configuration asks for, then all of them are found and
 * their shapes checked, then nothing may be left over in the files; only then is memory taken
 * and a byte of data touched.  While a matrix is packed the kernel reads the next ones; then its
 * pages are given back.  The embedding table is the exception: it stays mapped, and only the rows
 * in use are in memory; a backend that reads no rows by their codes has them as plain values.
 *
 * Quantised matrices are packed by their codes.  Those that no kernel of the backend takes so
 * become plain values, exact (or as the format's own library rounds them), one matrix at a time;
 * the log says how much that takes.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/fingerprint.h"
#include "engine/base/log.h"
#include "engine/base/round.h"
#include "engine/files/documents.h"
#include "engine/model/model_inside.h"
#include "engine/model/quantise.h"
#include "engine/model/safetensors.h"
#include "engine/weight_source.h"

enum { AHEAD_BYTES = 128 << 20 }; /* that the kernel reads while others are packed */
enum { ROWS_EACH = 16 };          /* that a thread makes plain at a time */
/* Of so many tensors at most, and of each a piece in the middle. */
enum { SAMPLES = 512, SAMPLE_BYTES = 64 };

weights_form model_weights_form(const char *word)
{
    static const char *const words[] = {"auto", "plain", "bf16", "q8", "q4", "fp8"};
    int i = WEIGHTS_FP8;
    while (i > WEIGHTS_AUTO && strcmp(word, words[i]) != 0) i--;
    return (weights_form)i;
}

/* One tensor that must be there, and where it goes. */
typedef struct wanted {
    char module[80];
    const char *suffix;
    int rows, cols;  /* cols 0: a vector of `rows` values */
    weight **matrix; /* packed here, or: */
    float **device;  /* vector as f32 in backend memory; all NULL: the embedding table */
    float plus;      /* added to a vector's values */
    int row0, whole; /* a matrix that is these rows of a fused one of `whole` rows; 0: is its own */
    stored_slice at; /* of one of three dimensions; n_slice 0: of two */
    int n_vector;    /* vectors of `rows`, one for each expert; 0: one */
    bool expert;     /* a matrix of one */
    bool exact;      /* F32 in memory, whatever the others are: routers */
    stored s;
    weight_source source; /* a matrix as it will be packed */
    weight_source plain;  /* what that is quantised from */
} wanted;

typedef struct loader {
    model *m; /* its cfg, layer and backend; of a survey only cfg and layer */
    model_files *files;
    wanted *want; /* [n_want] */
    size_t n_want, cap_want;
    const st_tensor *score;    /* the head of classes; NULL: there is none */
    const weight_rules *rules; /* what the backend takes by its codes, */
    bool none_by_codes;        /* but nothing of this model */
    packed_plan packed;        /* the matrices, in the order of the list */
    int made_plain;            /* quantised matrices that became plain values, */
    size_t plain_bytes;        /* and take so much */
} loader;

/* -------------------------------------------------------------------- what must be there -- */

static const char *const proj_names[PROJ_COUNT] = {
    [PROJ_Q_A] = "self_attn.q_a_proj", [PROJ_Q] = "self_attn.q_proj", [PROJ_K] = "self_attn.k_proj",
    [PROJ_V] = "self_attn.v_proj",     [PROJ_O] = "self_attn.o_proj", [PROJ_GATE] = "mlp.gate_proj",
    [PROJ_UP] = "mlp.up_proj",         [PROJ_DOWN] = "mlp.down_proj",
};

/* Of attention over latents; NULL: as above. */
static const char *latent_name(const model_config *c, proj p)
{
    if (!c->latent.rank) return NULL;
    return p == PROJ_Q && c->q_rank ? "self_attn.q_b_proj"
           : p == PROJ_K            ? "self_attn.kv_a_proj_with_mqa"
           : p == PROJ_V            ? "self_attn.kv_b_proj"
                                    : NULL;
}

/* layer < 0: `name` is the whole name. */
static wanted *want(loader *l, int layer, const char *name, const char *suffix, int rows, int cols)
{
    assert(l->n_want < l->cap_want);
    wanted *w = &l->want[l->n_want++];
    int n = layer < 0 ? snprintf(w->module, sizeof(w->module), "%s", name)
                      : snprintf(w->module, sizeof(w->module), "model.layers.%d.%s", layer, name);
    assert(n > 0 && (size_t)n < sizeof(w->module));
    w->suffix = suffix;
    w->rows = rows;
    w->cols = cols;
    return w;
}

/* Where a projection's rows stand in a module that some families fuse; NULL: it is its own. */
static const char *fused_module(const model_config *c, const model_family *f, proj p, int *row0,
                                int *whole)
{
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    if (f->qkv_fused && p <= PROJ_V) {
        *row0 = p == PROJ_Q ? 0 : p == PROJ_K ? q : q + kv;
        *whole = q + 2 * kv;
        return "self_attn.qkv_proj";
    }
    if (f->gate_up_fused && (p == PROJ_GATE || p == PROJ_UP)) {
        *row0 = p == PROJ_GATE ? 0 : c->ffn_dim;
        *whole = 2 * c->ffn_dim;
        return "mlp.gate_up_proj";
    }
    return NULL;
}

static void want_matrix(loader *l, const model_family *f, int i, proj p)
{
    int d_out, d_in, row0 = 0, whole = 0;
    const char *fused = fused_module(&l->m->cfg, f, p, &row0, &whole);
    if (!model_has_proj(&l->m->cfg, i, p)) return;
    model_layer_shape(&l->m->cfg, i, p, &d_out, &d_in);
    const char *name = p == PROJ_UP && f->up       ? f->up
                       : p == PROJ_DOWN && f->down ? f->down
                                                   : proj_names[p];
    if (latent_name(&l->m->cfg, p)) name = latent_name(&l->m->cfg, p);
    char shared[64];
    if (p >= PROJ_GATE && l->m->cfg.layer[i] & LAYER_EXPERTS) {
        snprintf(shared, sizeof(shared), "%s%s", f->experts->shared, strchr(name, '.'));
        name = shared;
    } else if (p >= PROJ_GATE && f->mlp_names == MLP_FEED_FORWARD) {
        snprintf(shared, sizeof(shared), "feed_forward%s", strchr(name, '.'));
        name = shared;
    }
    wanted *w = want(l, i, fused ? fused : name, "weight", d_out, d_in);
    w->matrix = &l->m->layer[i].w[p];
    w->row0 = row0;
    w->whole = whole;
    if (model_proj_has_bias(&l->m->cfg, p))
        want(l, i, name, "bias", d_out, 0)->device = &l->m->layer[i].bias[p];
}

/* 0: there is none. */
static int norm_values(const model_config *c, layer_norm which)
{
    if (c->latent.rank && which == NORM_Q) return c->q_rank;
    if (c->latent.rank && which == NORM_K) return c->latent.rank;
    if (which == NORM_Q) return c->qk_norm_whole ? c->n_head * c->head_dim : c->head_dim;
    if (which == NORM_K) return c->qk_norm_whole ? c->n_kv_head * c->head_dim : c->head_dim;
    return c->dim;
}

static void want_norm(loader *l, const model_family *f, int layer, const char *name, int n,
                      float **to, float **bias)
{
    wanted *w = want(l, layer, name, "weight", n, 0);
    w->device = to;
    /* llama.cpp's converter adds it. */
    w->plus = f->one_plus && !model_files_stacks(l->files) ? 1.0F : 0.0F;
    if (f->norm_bias) want(l, layer, name, "bias", n, 0)->device = bias;
}

/* Whether a file has all experts of a layer in two tensors. */
static bool experts_stacked(const loader *l, const family_experts *x, int i)
{
    char name[96];
    if (!x->each || model_files_stacks(l->files)) return true;
    snprintf(name, sizeof(name), "model.layers.%d.%s", i, x->all_down ? x->all_down : "");
    return x->all_down && model_files_look(l->files, name) != NULL;
}

/* Where a projection's rows stand in a matrix that may hold both gate and up. */
static stored_slice part_of_both(const family_experts *x, bool both, proj p, int d_out)
{
    int row0 = both && p == PROJ_UP ? x->alternate ? 1 : d_out : 0;
    return (stored_slice){.whole = both ? 2 * d_out : d_out,
                          .row0 = row0,
                          .step = both && x->alternate ? 2 : 1,
                          .across = x->across};
}

/* Expert n's part of a tensor that all experts share. */
static wanted *want_slice(loader *l, const family_experts *x, int i, proj p, int n)
{
    const experts_config *c = &l->m->cfg.experts;
    int d_out, d_in;
    bool both = p != PROJ_DOWN && !model_files_stacks(l->files);
    model_expert_shape(&l->m->cfg, p, &d_out, &d_in);
    static const char *const stacks[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                         "ffn_down_exps.weight"};
    const char *name = model_files_stacks(l->files) ? stacks[p - PROJ_GATE]
                       : both                       ? x->all_gate_up
                                                    : x->all_down;
    wanted *w = want(l, i, name, "", d_out, d_in);
    w->at = part_of_both(x, both, p, d_out);
    w->at.slice = n;
    w->at.n_slice = c->route.n;
    return w;
}

/* Those of all experts, in one tensor for gate and up and one for down; in a GGUF each has one. */
static void want_expert_bias(loader *l, const family_experts *x, int i, proj p)
{
    static const char *const stacks[] = {"ffn_gate_exps.bias", "ffn_up_exps.bias",
                                         "ffn_down_exps.bias"};
    char name[64];
    int d_out, d_in;
    bool apart = model_files_stacks(l->files);
    model_expert_shape(&l->m->cfg, p, &d_out, &d_in);
    snprintf(name, sizeof(name), "%s_bias", p == PROJ_DOWN ? x->all_down : x->all_gate_up);
    wanted *w = want(l, i, apart ? stacks[p - PROJ_GATE] : name, "", d_out, 0);
    w->at = part_of_both(x, p != PROJ_DOWN && !apart, p, d_out);
    w->n_vector = l->m->cfg.experts.route.n;
    w->device = &l->m->layer[i].expert_bias[p - PROJ_GATE];
}

static wanted *want_expert(loader *l, const family_experts *x, int i, proj p, int n)
{
    char name[64];
    int d_out, d_in;
    const char *own = p == PROJ_GATE ? x->gate : p == PROJ_UP ? x->up : x->down;
    model_expert_shape(&l->m->cfg, p, &d_out, &d_in);
    snprintf(name, sizeof(name), "%s.%d.%s", x->each, n, own);
    return want(l, i, name, "weight", d_out, d_in);
}

static void want_exact(loader *l, int i, const char *name, int rows, weight **to)
{
    wanted *w = want(l, i, name, "weight", rows, l->m->cfg.dim);
    w->matrix = to;
    w->exact = true;
}

static err_code want_experts(loader *l, const family_experts *x, int i, err *e)
{
    int n = l->m->cfg.experts.route.n;
    model_layer *layer = &l->m->layer[i];
    bool stacked = experts_stacked(l, x, i);
    layer->expert = calloc(3 * (size_t)n, sizeof(weight *));
    if (!layer->expert) return err_set(e, ERR_NOMEM, "no memory to load the model");
    want_exact(l, i, x->router, n, &layer->router);
    if (x->shared_gate) want_exact(l, i, x->shared_gate, 1, &layer->shared_gate);
    if (x->choice_bias) want(l, i, x->router, x->choice_bias, n, 0)->device = &layer->choice_bias;
    if (x->biased) want(l, i, x->router, "bias", n, 0)->device = &layer->router_bias;
    for (int p = PROJ_GATE; x->biased && p <= PROJ_DOWN; p++) want_expert_bias(l, x, i, (proj)p);
    for (int k = 0; k < n; k++)
        for (int p = PROJ_GATE; p <= PROJ_DOWN; p++) {
            wanted *w =
                stacked ? want_slice(l, x, i, (proj)p, k) : want_expert(l, x, i, (proj)p, k);
            w->matrix = &layer->expert[(p - PROJ_GATE) * n + k];
            w->expert = true;
        }
    return ERR_NONE;
}

static void want_layer(loader *l, const model_family *f, int i)
{
    for (int p = 0; p < PROJ_COUNT; p++) want_matrix(l, f, i, (proj)p);
    if (f->sinks)
        want(l, i, "self_attn", "sinks", l->m->cfg.n_head, 0)->device = &l->m->layer[i].sinks;
    for (int n = 0; n < LAYER_NORMS; n++)
        if (f->norm[n] && norm_values(&l->m->cfg, (layer_norm)n) > 0)
            want_norm(l, f, i, f->norm[n], norm_values(&l->m->cfg, (layer_norm)n),
                      &l->m->layer[i].norm[n], &l->m->layer[i].norm_bias[n]);
}

enum { HEAD_WANTED, TABLE_WANTED }; /* the first two of the list */

static err_code want_all(loader *l, err *e)
{
    const model_config *c = &l->m->cfg;
    const model_family *f = family_find(c->family);
    assert(f);
    size_t each = 2 * PROJ_COUNT + 2 * LAYER_NORMS + 8 + 3 * (size_t)c->experts.route.n;
    l->cap_want = (size_t)c->n_layer * each + 4;
    l->want = calloc(l->cap_want, sizeof(*l->want));
    l->m->layer = calloc((size_t)c->n_layer, sizeof(*l->m->layer));
    if (!l->want || !l->m->layer) return err_set(e, ERR_NOMEM, "no memory to load the model");

    /* The head stands before the table: packing it from the shared tensor lets the pages go.
     * HEAD_WANTED and TABLE_WANTED are these. */
    want(l, -1, c->tied ? "model.embed_tokens" : "lm_head", "weight", c->n_vocab, c->dim)->matrix =
        &l->m->head;
    (void)want(l, -1, "model.embed_tokens", "weight", c->n_vocab, c->dim);
    want_norm(l, f, -1, "model.norm", c->dim, &l->m->out_norm, &l->m->out_norm_bias);
    err_code rc = ERR_NONE;
    for (int i = 0; i < c->n_layer && !rc; i++) {
        want_layer(l, f, i);
        if (c->layer[i] & LAYER_EXPERTS) rc = want_experts(l, f->experts, i, e);
    }
    return rc;
}

/* ----------------------------------------------------------------------- find and check -- */

static bool is_linear(const loader *l, const wanted *w)
{
    return w->matrix && w->matrix != &l->m->head && !w->exact;
}

/* Whether the kernels take a matrix by its codes. */
static bool is_native(const loader *l, const wanted *w)
{
    bool asked = l->m->weights != WEIGHTS_PLAIN && l->m->weights != WEIGHTS_BF16;
    return asked && l->rules->takes && !l->none_by_codes && w->matrix && !w->exact &&
           w->s.src.read_row && l->rules->takes(&w->s.src, w->expert);
}

/* One linear operation takes weights of one type, and so do adapters.  Plain files with several are
 * refused; where some are quantised, or in a GGUF, all are F32 then.  What is taken by its codes
 * goes with any type: it asks for BF16 adapters where nobody asks for others.  Where codes go
 * beside BF16 alone, quantised matrices that are not taken so become BF16, too. */
static err_code check_types(loader *l, bool may_mix, err *e)
{
    const wanted *first = NULL, *other = NULL;
    bool some_by_codes = false;
    l->m->cfg.in_integers = false;
    if (l->m->weights == WEIGHTS_BF16) may_mix = true;
    for (size_t i = 0; i < l->n_want; i++) {
        bool by_codes = is_linear(l, &l->want[i]) && is_native(l, &l->want[i]);
        some_by_codes |= by_codes;
        l->m->cfg.in_integers |= by_codes && !l->rules->bf16 && !l->want[i].s.src.floats;
    }
    for (size_t i = 0; i < l->n_want; i++) {
        const wanted *w = &l->want[i];
        if (!is_linear(l, w) || (is_native(l, w) && !w->s.src.floats)) continue;
        if (some_by_codes && l->rules->bf16 && stored_coded(&w->s)) continue;
        if (!first) first = w;
        may_mix |= stored_coded(&w->s);
        if (w->s.plain != first->s.plain && !other) other = w;
    }
    if (other && !may_mix)
        return err_set(e, ERR_UNSUPPORTED, "tensors '%s' (%s) and '%s' (%s) differ in dtype",
                       first->s.name, first->s.format, other->s.name, other->s.format);
    l->m->cfg.type = other ? DT_F32 : first ? first->s.plain : DT_BF16;
    if (l->m->weights == WEIGHTS_BF16) l->m->cfg.type = DT_BF16;
    if (l->m->cfg.type == DT_BF16 || !l->rules->bf16 || l->none_by_codes) return ERR_NONE;
    l->none_by_codes = true;
    return check_types(l, may_mix, e);
}

/* What most of the matrices' bytes are. */
static void name_format(loader *l)
{
    enum { FORMATS_MAX = 16 };
    const char *format[FORMATS_MAX];
    size_t sum[FORMATS_MAX] = {0}, best = 0;
    int n = 0;
    for (size_t i = 0; i < l->n_want; i++) {
        const stored *s = &l->want[i].s;
        int at = 0;
        if (!is_linear(l, &l->want[i])) continue;
        while (at < n && strcmp(format[at], s->format) != 0) at++;
        if (at == FORMATS_MAX) continue;
        if (at == n) format[n++] = s->format;
        sum[at] += stored_bytes(s);
        if (sum[at] <= best) continue;
        best = sum[at];
        snprintf(l->m->cfg.format, sizeof(l->m->cfg.format), "%s", s->format);
    }
}

/* What stands over the last norm: without an output layer the table is in its place. */
static err_code find_heads(loader *l, err *e)
{
    model_config *c = &l->m->cfg;
    c->headless |= model_files_bare(l->files);
    c->tied |= c->headless;
    if (!c->scored) return ERR_NONE;
    err_code rc = model_files_take(l->files, "score.weight", &l->score, e);
    const st_tensor *t = l->score;
    dtype type;
    if (rc) return rc;
    if (t->ndim != 2 || t->shape[1] != (uint64_t)c->dim || !st_usable(t->dtype, &type))
        return err_set(e, ERR_INPUT,
                       "tensor 'score.weight' is not [labels, %d] of F32, F16 or BF16", c->dim);
    if (t->shape[0] <= POOLING_LABELS_MAX) return ERR_NONE;
    return err_set(e, ERR_LIMIT, "tensor 'score.weight' is for %llu labels; at most %d are served",
                   (unsigned long long)t->shape[0], POOLING_LABELS_MAX);
}

static err_code find_wanted(const loader *l, wanted *w, err *e)
{
    if (w->n_vector)
        return model_files_find_columns(l->files, w->module, w->n_vector, w->at.whole, w->at.row0,
                                        w->at.step, w->rows, &w->s, e);
    if (w->at.n_slice)
        return model_files_find_slice(l->files, w->module, &w->at, w->rows, w->cols, &w->s, e);
    return w->whole ? model_files_find_rows(l->files, w->module, w->whole, w->row0, w->rows,
                                            w->cols, &w->s, e)
                    : model_files_find(l->files, w->module, w->suffix, w->rows, w->cols, &w->s, e);
}

/* Opens the files and finds all that is wanted. */
static err_code plan(loader *l, const char *path, err *e)
{
    err_code rc = model_files_open(&l->files, path, &l->m->cfg, e);
    if (!rc) rc = find_heads(l, e);
    if (!rc) rc = want_all(l, e);
    for (size_t i = 0; i < l->n_want && !rc; i++) rc = find_wanted(l, &l->want[i], e);
    float *freqs = rc ? NULL : malloc((size_t)l->m->cfg.head_dim / 2 * sizeof(*freqs));
    bool found = false;
    if (!rc && !freqs) rc = err_set(e, ERR_NOMEM, "no memory to load the model");
    if (!rc) rc = model_files_rope(l->files, freqs, &found, e);
    l->m->rope_divisors = found && !rc ? freqs : NULL;
    if (!l->m->rope_divisors) free(freqs);
    if (!rc) rc = model_files_check_rest(l->files, &l->want[TABLE_WANTED].s, e);
    if (!rc) rc = check_types(l, document_is_gguf(path), e);
    if (!rc) name_format(l);
    return rc;
}

static void plan_clear(loader *l)
{
    for (size_t i = 0; i < l->n_want; i++) stored_clear(&l->want[i].s);
    free(l->want);
    free((void *)(uintptr_t)l->packed.bytes);
    model_files_close(l->files);
}

/* What a matrix becomes in memory. */
static dtype type_of(const loader *l, const wanted *w)
{
    dtype all = l->m->cfg.type;
    if (w->exact) return DT_F32;
    if (is_native(l, w)) return all == DT_BF16 ? DT_BF16 : DT_F32;
    if (w->matrix && l->m->weights == WEIGHTS_BF16) return DT_BF16;
    return is_linear(l, w) ? all : w->s.plain;
}

/* ------------------------------------------------------------------------------- load -- */

static void *host_alloc(size_t bytes)
{
    return aligned_alloc(64, round_up_size(bytes, 64));
}

static err_code load_scores(loader *l, err *e)
{
    const st_tensor *t = l->score;
    if (!t) return ERR_NONE;
    float *w = host_alloc((size_t)t->count * sizeof(*w));
    if (!w) return err_set(e, ERR_NOMEM, "tensor 'score.weight': no memory");
    st_read_f32(t, 0, (size_t)t->count, w);
    l->m->score_head = (pooling_head){(int)t->shape[0], (int)t->shape[1], w, NULL};
    return ERR_NONE;
}

typedef struct unpacking {
    const stored *s;
    dtype type;
    uint8_t *out;
    atomic_bool failed;
} unpacking;

static void unpack_rows(void *arg, int i)
{
    unpacking *u = arg;
    int from = i * ROWS_EACH, rows = u->s->src.rows - from;
    size_t row = (size_t)u->s->src.cols * dtype_bytes(u->type);
    if (rows > ROWS_EACH) rows = ROWS_EACH;
    if (!stored_values(u->s, from, from + rows, u->type, u->out + (size_t)from * row))
        atomic_store(&u->failed, true);
}

/* The matrix as plain values of `type` at an address that it allows; *copy is the caller's to
 * free. */
static const void *plain_values(backend *be, const stored *s, dtype type, void **copy)
{
    *copy = NULL;
    if (stored_in_place(s) && type == s->plain) return s->values;
    size_t bytes = (size_t)s->src.rows * (size_t)s->src.cols * dtype_bytes(type);
    unpacking u = {.s = s, .type = type, .out = host_alloc(bytes)};
    if (!u.out) return NULL;
    be_parallel(be, unpack_rows, &u, (s->src.rows + ROWS_EACH - 1) / ROWS_EACH);
    if (atomic_load(&u.failed)) {
        free(u.out);
        return NULL;
    }
    return *copy = u.out;
}

/* Of a plain matrix; an adapter's copy of a quantised one is not recognised. */
static uint64_t print_of(const stored *s)
{
    fingerprint f;
    if (!s->values || s->turned) return 0;
    fingerprint_begin(&f);
    fingerprint_add(&f, s->values, s->part[0].bytes);
    return fingerprint_end(&f);
}

static void print_table(void *arg, int i)
{
    const loader *l = arg;
    *(i == HEAD_WANTED ? &l->m->cfg.head_print : &l->m->cfg.embed_print) = print_of(&l->want[i].s);
}

/* Long pieces, of which a thread reads one alone: side by side. */
static void print_tables(loader *l)
{
    model_config *c = &l->m->cfg;
    be_parallel(l->m->be, print_table, l, c->tied ? 1 : 2);
    if (c->tied) c->embed_print = c->head_print;
}

/* Models of one shape differ by their weights alone, a merged adapter's by few of them. */
static uint64_t print_samples(const loader *l)
{
    size_t each = l->n_want / SAMPLES + 1;
    fingerprint f;
    fingerprint_begin(&f);
    for (size_t i = 0; i < l->n_want; i += each) {
        const stored *s = &l->want[i].s;
        for (int k = 0; k < STORED_PARTS; k++) {
            uint8_t some[SAMPLE_BYTES] = {0};
            uint64_t n = s->part[k].bytes < sizeof(some) ? s->part[k].bytes : sizeof(some);
            if (!s->part[k].data) continue;
            memcpy(some, s->part[k].data + (s->part[k].bytes - n) / 2, n);
            fingerprint_add(&f, some, sizeof(some));
        }
    }
    return fingerprint_end(&f);
}

/* By codes, of the files or of what model.weights asks for; else of plain values. */
static err_code make_weight(loader *l, const wanted *w, err *e)
{
    backend *be = l->m->be;
    if (weight_source_quantised(&w->source)) return be_weight_create(be, w->matrix, &w->source, e);
    void *copy;
    const void *data = plain_values(be, &w->s, w->source.type, &copy);
    if (!data) return err_set(e, ERR_NOMEM, "no memory");
    weight_source src = weight_source_plain(data, w->source.type, w->rows, w->cols);
    err_code rc = be_weight_create(be, w->matrix, &src, e);
    free(copy);
    if (rc || !stored_coded(&w->s)) return rc;
    l->made_plain++;
    l->plain_bytes += be_weight_bytes(*w->matrix);
    return ERR_NONE;
}

/* The i-th of the matrices. */
static err_code load_matrix(loader *l, const wanted *w, size_t i, err *e)
{
    model *m = l->m;
    err_code rc = m->packed
                      ? be_weight_adopt(m->be, w->matrix, &w->source, packed_at(m->packed, i), e)
                      : make_weight(l, w, e);
    if (!m->packed) stored_forget(&w->s);
    if (rc) {
        if (e) (void)err_context(e, "tensor '%s'", w->s.name);
        return rc;
    }
    if (w->matrix == &m->head) m->cfg.head_type = type_of(l, w);
    m->weight_bytes += be_weight_bytes(*w->matrix);
    return ERR_NONE;
}

static err_code load_vector(model *m, const wanted *w, err *e)
{
    size_t n = (size_t)w->s.src.rows * (size_t)w->s.src.cols, bytes = n * sizeof(float);
    float *v = host_alloc(2 * bytes);
    if (!v || !stored_values(&w->s, 0, w->s.src.rows, DT_F32, v + n)) {
        free(v);
        return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->s.name);
    }
    for (size_t i = 0; i < n; i++) v[i] = w->plus + v[n + (size_t)stored_row(&w->s, (int)i)];
    *w->device = be_alloc(m->be, bytes);
    err_code rc = *w->device ? be_upload(m->be, *w->device, v, bytes) : ERR_NOMEM;
    free(v);
    return rc ? err_set(e, rc, "tensor '%s': no device memory", w->s.name) : ERR_NONE;
}

/* Whether a step reads the table's rows out of the file, each by its codes. */
static bool by_rows(const loader *l, const wanted *w)
{
    return w == &l->want[TABLE_WANTED] && l->rules->host_rows && !stored_in_place(&w->s);
}

/* The model's from now on, with the files that it reads. */
static bool take_embedding(loader *l, wanted *w)
{
    model *m = l->m;
    m->embed_stored = malloc(sizeof(*m->embed_stored));
    m->embed_room = malloc(stored_room(&w->s) + 1);
    if (!m->embed_stored || !m->embed_room) return false;
    stored_move(m->embed_stored, &w->s);
    m->embed_files = l->files;
    l->files = NULL;
    return true;
}

/* The table stays where it is; or it is plain values of our own. */
static err_code load_embedding(loader *l, wanted *w, err *e)
{
    model *m = l->m;
    const void *plain = NULL;
    m->embed_type = m->cfg.embed_type = w->s.plain;
    if (!by_rows(l, w)) plain = plain_values(m->be, &w->s, w->s.plain, &m->embed_copy);
    if (!take_embedding(l, w) || (!plain && !by_rows(l, w)))
        return err_set(e, ERR_NOMEM, "tensor '%s': no memory", w->s.name);
    if (plain) {
        err_code rc = be_table_create(m->be, &m->table, plain, m->embed_type, w->rows, w->cols,
                                      m->cfg.tied ? m->head : NULL, e);
        if (rc) return e ? err_context(e, "tensor '%s'", w->s.name) : rc;
    }
    stored_forget(&w->s); /* rows come back as they are used */
    return ERR_NONE;
}

/* Whether a plain matrix, as it will be packed, is quantised: *out.  The output layer never has
 * less than 8 bits: its error goes into the answer undamped. */
static bool quantise(const loader *l, const wanted *w, const weight_source *plain,
                     weight_source *out)
{
    weights_form f = l->m->weights;
    bool in_place = w->matrix && stored_in_place(&w->s) && w->s.plain == type_of(l, w);
    bool asked = f >= WEIGHTS_Q8 && l->rules->takes && !l->none_by_codes;
    if (!asked || !in_place || w->exact) return false;
    bool head = w->matrix == &l->m->head;
    quantise_form to = f == WEIGHTS_FP8          ? QUANTISE_FP8
                       : f == WEIGHTS_Q8 || head ? QUANTISE_Q8
                                                 : QUANTISE_Q4;
    return weight_source_quantise(out, plain, to) && l->rules->takes(out, w->expert);
}

/* ----------------------------------------------------------------------------- survey -- */

/* What the weights take in the files, and in memory (tied: once). */
static void measure(const loader *l, model_survey *out)
{
    *out = (model_survey){.dequantised = 0};
    snprintf(out->format, sizeof(out->format), "%s", l->m->cfg.format);
    for (size_t i = 0; i < l->n_want; i++) {
        const wanted *w = &l->want[i];
        bool table = i == TABLE_WANTED, shared = table && l->m->cfg.tied;
        size_t values = (size_t)w->s.src.rows * (size_t)w->s.src.cols;
        size_t bytes = values * (w->device ? sizeof(float) : dtype_bytes(type_of(l, w)));
        weight_source q, plain = weight_source_plain(NULL, type_of(l, w), w->rows, w->cols);
        if (is_native(l, w)) bytes = weight_source_bytes(&w->s.src);
        if (quantise(l, w, &plain, &q)) bytes = weight_source_bytes(&q);
        if (!shared) out->file_bytes += stored_bytes(&w->s);
        out->by_codes += is_native(l, w);
        bool mapped = table && (stored_in_place(&w->s) || by_rows(l, w));
        out->dequantised += stored_coded(&w->s) && !is_native(l, w) && !mapped;
        if (mapped) continue;
        out->memory_bytes += bytes;
        if (!shared) out->device_bytes += bytes;
    }
}

static err_code check_room(const loader *l, const model_survey *s, err *e)
{
    size_t room = be_room(l->m->be), need = s->device_bytes;
    const wanted *table = &l->want[TABLE_WANTED];
    int n = be_caps(l->m->be)->n_device;
    if (room == 0) return ERR_NONE;
    if (n > 1) need /= (size_t)n; /* but for the table, which is not the head's matrix then */
    bool own_table = !l->m->cfg.tied || n > 1;
    if (stored_in_place(&table->s) && own_table) need += stored_bytes(&table->s);
    if (need <= room) return ERR_NONE;
    double gib = (double)(1 << 30);
    return err_set(e, ERR_NOMEM,
                   "the weights take %.2f GiB, and the device has %.2f GiB for them (before "
                   "scratch, KV pages and adapters)",
                   (double)need / gib, (double)room / gib);
}

err_code model_survey_read(const char *path, const model_config *c, weights_form weights,
                           const weight_rules *rules, model_survey *out, err *e)
{
    model m = {.cfg = *c, .weights = weights};
    loader l = {.m = &m, .rules = rules};
    err_code rc = plan(&l, path, e);
    if (!rc) measure(&l, out);
    plan_clear(&l);
    for (int i = 0; m.layer && i < c->n_layer; i++) free((void *)m.layer[i].expert);
    free(m.layer);
    free(m.rope_divisors);
    return rc;
}

static void tell(const loader *l, const model_survey *s)
{
    double gib = (double)(1 << 30);
    if (l->made_plain == 0) return;
    log_info("model",
             "%s, %.2f GiB in the file: %d matrices became plain values of %.2f GiB, for which the "
             "backend has kernels",
             s->format, (double)s->file_bytes / gib, l->made_plain, (double)l->plain_bytes / gib);
}

/* How a matrix will be packed; of values that are not in the files as they are, only the shape is
 * known yet. */
static void find_source(const loader *l, wanted *w)
{
    dtype type = type_of(l, w);
    if (is_native(l, w)) {
        w->source = w->s.src;
        w->source.type = type;
        return;
    }
    w->plain =
        weight_source_plain(stored_in_place(&w->s) ? w->s.values : NULL, type, w->rows, w->cols);
    if (!quantise(l, w, &w->plain, &w->source)) w->source = w->plain;
}

/* How each matrix will be packed, and whether an earlier start has kept that. */
static err_code find_packed(loader *l, err *e)
{
    const weight_source **src = calloc(l->n_want, sizeof(*src));
    if (!src) return err_set(e, ERR_NOMEM, "no memory to load the model");
    size_t n = 0;
    packed_key key;
    packed_key_begin(&key);
    packed_key_add(&key, model_files_stamp(l->files));
    for (size_t i = 0; i < l->n_want; i++) {
        if (!l->want[i].matrix) continue;
        find_source(l, &l->want[i]);
        src[n++] = &l->want[i].source;
    }
    if (model_packed_plan(l->m, &key, src, n, &l->packed))
        (void)model_packed_open(l->m, &l->packed);
    free(src);
    return ERR_NONE;
}

/* Where they were not, the next start shall find them. */
static void keep_packed(loader *l)
{
    if (l->m->packed || !l->packed.bytes) return;
    weight **w = calloc(l->packed.n, sizeof(*w));
    size_t n = 0;
    for (size_t i = 0; w && i < l->n_want; i++) {
        if (l->want[i].matrix) w[n++] = *l->want[i].matrix;
    }
    if (w) model_packed_keep(l->m, &l->packed, w);
    free(w);
}

/* Asks the kernel for what the next ones of the list are read from; *asked of them were so far, and
 * *ahead bytes of them have not been read yet. */
static void read_ahead(const loader *l, size_t i, size_t *asked, size_t *ahead)
{
    for (; *asked < l->n_want && (*asked <= i || *ahead < AHEAD_BYTES); ++*asked) {
        const wanted *w = &l->want[*asked];
        if (w->matrix && l->m->packed) continue;
        stored_ahead(&w->s);
        *ahead += stored_bytes(&w->s);
    }
}

static err_code load_all(loader *l, const char *path, err *e)
{
    model_survey survey;
    err_code rc = plan(l, path, e);
    if (rc) return rc;
    measure(l, &survey);
    rc = check_room(l, &survey, e);
    if (!rc) rc = find_packed(l, e);
    if (!rc) l->m->cfg.weights_print = print_samples(l);
    if (!rc && !l->m->packed) print_tables(l);
    size_t asked = 0, ahead = 0, matrices = 0;
    for (size_t i = 0; i < l->n_want && !rc; i++) {
        wanted *w = &l->want[i];
        read_ahead(l, i, &asked, &ahead);
        rc = w->matrix   ? load_matrix(l, w, matrices++, e)
             : w->device ? load_vector(l->m, w, e)
                         : load_embedding(l, w, e);
        if (!w->matrix || !l->m->packed) ahead -= stored_bytes(&w->s);
    }
    if (!rc) rc = load_scores(l, e);
    if (!rc) keep_packed(l);
    if (!rc) tell(l, &survey);
    return rc;
}

err_code model_weights_load(model *m, const char *path, err *e)
{
    loader l = {.m = m, .rules = &be_caps(m->be)->rules};
    err_code rc = load_all(&l, path, e);
    plan_clear(&l);
    return rc;
}

static void experts_clear(model *m, model_layer *l)
{
    float *vectors[] = {l->router_bias, l->choice_bias, l->expert_bias[0], l->expert_bias[1],
                        l->expert_bias[2]};
    for (size_t k = 0; k < sizeof(vectors) / sizeof(vectors[0]); k++)
        if (vectors[k]) be_free(m->be, vectors[k]);
    if (l->experts_there) be_free(m->be, l->experts_there);
    for (int k = 0; l->expert && k < 3 * m->cfg.experts.route.n; k++)
        if (l->expert[k]) be_weight_destroy(m->be, l->expert[k]);
    if (l->router) be_weight_destroy(m->be, l->router);
    if (l->shared_gate) be_weight_destroy(m->be, l->shared_gate);
    free((void *)l->expert);
}

void model_weights_clear(model *m)
{
    model_packed_end(m);
    for (int i = 0; m->layer && i < m->cfg.n_layer; i++) {
        model_layer *l = &m->layer[i];
        for (int p = 0; p < PROJ_COUNT; p++) {
            if (l->w[p]) be_weight_destroy(m->be, l->w[p]);
            if (l->bias[p]) be_free(m->be, l->bias[p]);
        }
        for (int k = 0; k < LAYER_NORMS; k++) {
            if (l->norm[k]) be_free(m->be, l->norm[k]);
            if (l->norm_bias[k]) be_free(m->be, l->norm_bias[k]);
        }
        if (l->sinks) be_free(m->be, l->sinks);
        experts_clear(m, l);
    }
    free(m->layer);
    m->layer = NULL;
    if (m->head) be_weight_destroy(m->be, m->head);
    m->head = NULL;
    if (m->out_norm) be_free(m->be, m->out_norm);
    if (m->out_norm_bias) be_free(m->be, m->out_norm_bias);
    m->out_norm = m->out_norm_bias = NULL;
    be_table_destroy(m->be, m->table);
    m->table = NULL;
    if (m->embed_stored) stored_clear(m->embed_stored);
    free(m->embed_stored);
    m->embed_stored = NULL;
    free(m->embed_room);
    free(m->embed_copy);
    m->embed_room = m->embed_copy = NULL;
    model_files_close(m->embed_files);
    m->embed_files = NULL;
    free((void *)(uintptr_t)m->score_head.w);
    m->score_head.w = NULL;
    model_packed_close(m);
    free(m->rope_divisors);
    m->rope_divisors = NULL;
}
