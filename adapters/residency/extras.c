/* extras.c -- the parts of an adapter that are not LoRA pairs: biases, gains (DoRA, IA3), trained
 * norms, embedding and output tables, rows of added tokens, classification heads.
 *
 * Each is read from the file, converted to f32 on the host if needed, and uploaded into one slab of
 * backend memory.  extent.c computes the slab's size in advance, and take() returns its padded
 * pieces in order, so both files must visit the layout in the same order.
 *
 * Whole tables are uploaded in pieces of TABLE_PIECE with pauses between them, so that a large
 * table does not delay the running batch (pace.h).
 *
 * DoRA's gain needs the base weights: magnitude / norm of (W + scale B A), by column of the output.
 *
 * Threads: a loader thread. Ownership: the slab belongs to adapter_extras until extras_clear().
 */
#include "adapters/residency/extras.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/format/extent.h"
#include "engine/base/halves.h"
#include "engine/weight_source.h"

enum { TABLE_PIECE = 1 << 20 };

typedef struct maker {
    const adapter_layout *al;
    const model_config *shape; /* with the adapter's vocabulary */
    int n_base;                /* tokens of the base */
    const model *base;
    backend *be;
    const uint8_t *file;
    uint8_t *slab;
    uint64_t at;
    float *in, *out; /* host vectors of the longest d_out */
    pace *pace;
    bool hint;
} maker;

/* Whole tables, a piece at a time. */
static err_code upload_table(const maker *mk, void *to, const void *from, uint64_t bytes)
{
    err_code rc = ERR_NONE;
    for (uint64_t at = 0, n; at < bytes && !rc; at += n) {
        n = bytes - at < TABLE_PIECE ? bytes - at : TABLE_PIECE;
        int64_t begun_us = pace_begin(mk->pace, n, mk->hint);
        rc = be_upload(mk->be, (char *)to + at, (const char *)from + at, (size_t)n);
        pace_end(mk->pace, n, begun_us);
    }
    return rc;
}

static void *take(maker *mk, uint64_t bytes)
{
    void *p = mk->slab + mk->at;
    mk->at += extent_padded(bytes);
    return p;
}

static void read_vector(const maker *mk, const adapter_tensor *t, float *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = float_at(mk->file + t->offset, t->type, adapter_tensor_place(t, (uint64_t)i));
}

/* A matrix of the file at an address that its type allows; *spare is the caller's to free. */
static const void *matrix(const maker *mk, const adapter_tensor *t, void **spare)
{
    const uint8_t *p = mk->file + t->offset;
    *spare = NULL;
    if (t->n_col == 0 && (uintptr_t)p % dtype_bytes(t->type) == 0) return p;
    *spare = malloc((size_t)t->bytes);
    if (*spare) adapter_tensor_gather(t, mk->file, *spare);
    return *spare;
}

/* A and B of a slot as they lie in the file; both spares are the caller's to free. */
static err_code read_pair(const maker *mk, size_t slot, lora_pair *out, void *spare[2], err *e)
{
    const adapter_pair *pair = &mk->al->pair[slot];
    const peft_layer *pl = &mk->al->peft.layer[slot];
    *out = (lora_pair){.a = matrix(mk, &pair->a, &spare[0]),
                       .b = matrix(mk, &pair->b, &spare[1]),
                       .type = pair->a.type,
                       .rank = pl->rank,
                       .scale = pl->scale};
    return out->a != NULL && out->b != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
}

static float value_of(const void *data, dtype type, size_t i)
{
    static const st_dtype types[] = {[DT_F32] = ST_F32, [DT_F16] = ST_F16, [DT_BF16] = ST_BF16};
    st_tensor view = {.dtype = types[type], .count = i + 1, .data = data};
    float v;
    st_read_f32(&view, i, 1, &v);
    return v;
}

/* DoRA on the input table, `own` or the base's (NULL): the norm of each of its columns over all
 * tokens, W + scale * (B A)^T. */
static err_code embed_gain(const maker *mk, const lora_pair *lp, const adapter_tensor *own,
                           int n_vocab, int dim, err *e)
{
    double *sum = calloc((size_t)dim, sizeof(*sum));
    float *b = malloc((size_t)dim * (size_t)lp->rank * sizeof(*b)),
          *row = malloc((size_t)dim * sizeof(*row));
    err_code rc = sum && b && row ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    for (int r = 0; rc == ERR_NONE && r < lp->rank; r++)
        for (int k = 0; k < dim; k++)
            b[(size_t)r * (size_t)dim + (size_t)k] =
                lp->scale * value_of(lp->b, lp->type, (size_t)k * (size_t)lp->rank + (size_t)r);
    static const st_dtype types[] = {[DT_F32] = ST_F32, [DT_F16] = ST_F16, [DT_BF16] = ST_BF16};
    st_tensor view = {.count = UINT64_MAX};
    if (own) view.dtype = types[own->type], view.data = mk->file + own->offset;
    for (int t = 0; rc == ERR_NONE && t < n_vocab; t++) {
        if (own) st_read_f32(&view, (uint64_t)t * (uint64_t)dim, (uint64_t)dim, row);
        if (!own && !model_embed_values(mk->base, t, t + 1, DT_F32, row)) {
            rc = err_set(e, ERR_NOMEM, "out of memory");
            break;
        }
        for (int r = 0; r < lp->rank; r++) {
            float a = value_of(lp->a, lp->type, (size_t)r * (size_t)n_vocab + (size_t)t);
            for (int k = 0; k < dim; k++) row[k] += a * b[(size_t)r * (size_t)dim + (size_t)k];
        }
        for (int k = 0; k < dim; k++) sum[k] += (double)row[k] * (double)row[k];
    }
    for (int k = 0; rc == ERR_NONE && k < dim; k++) {
        mk->out[k] = (float)((double)mk->in[k] / sqrt(sum[k]));
        if (!isfinite(mk->out[k]))
            rc = err_set(e, ERR_INPUT,
                         "DoRA: the norm of column %d of the table is zero or not finite", k);
    }
    free(sum);
    free(b);
    free(row);
    return rc;
}

static err_code make_gain(maker *mk, size_t slot, const weight *w, lora_mat *m, int n, err *e)
{
    void *spare[2] = {NULL, NULL};
    lora_pair lp;
    err_code rc = read_pair(mk, slot, &lp, spare, e);
    read_vector(mk, &mk->al->pair[slot].magnitude, mk->in, n);
    if (!rc && mk->al->peft.gains) {
        memcpy(mk->out, mk->in, (size_t)n * sizeof(float));
    } else if (!rc && w) {
        rc = be_lora_gain(mk->be, w, &lp, mk->in, mk->out, e);
    } else if (!rc) {
        const adapter_tensor *own = &mk->al->pair[slot].table;
        rc = embed_gain(mk, &lp, own->present ? own : NULL, mk->shape->n_vocab, n, e);
    }
    free(spare[0]);
    free(spare[1]);
    void *to = take(mk, (uint64_t)n * sizeof(float));
    m->gain = to;
    return rc != ERR_NONE ? rc : be_upload(mk->be, to, mk->out, (size_t)n * sizeof(float));
}

/* The trained bias in place of the base's; scale * lora_B's bias on top; IA3 gains the base's. */
static err_code make_bias(maker *mk, size_t slot, lora_mat *m, int n, err *e)
{
    const adapter_pair *pair = &mk->al->pair[slot];
    const float *own = NULL;
    size_t bytes = (size_t)n * sizeof(float);
    err_code rc = ERR_NONE;
    memset(mk->out, 0, bytes);
    if (pair->bias.present)
        read_vector(mk, &pair->bias, mk->out, n);
    else if (slot < peft_head_slot(mk->shape->n_layer))
        own = model_proj_bias(mk->base, (int)(slot / PROJ_COUNT), (proj)(slot % PROJ_COUNT));
    if (own) rc = be_download(mk->be, mk->out, own, bytes);
    if (rc) return err_set(e, rc, "the base's bias cannot be read");
    if (pair->b_bias.present) {
        read_vector(mk, &pair->b_bias, mk->in, n);
        for (int i = 0; i < n; i++) mk->out[i] += mk->al->peft.layer[slot].scale * mk->in[i];
    }
    if (mk->al->peft.gains) {
        read_vector(mk, &pair->magnitude, mk->in, n);
        for (int i = 0; i < n; i++) mk->out[i] *= mk->in[i];
    }
    void *to = take(mk, bytes);
    m->bias = to;
    return be_upload(mk->be, to, mk->out, bytes);
}

/* `w`: the weight that the slot adapts; NULL: the input table. */
static err_code make_slot(maker *mk, size_t slot, const weight *w, lora_mat *m, err *e)
{
    const adapter_pair *pair = &mk->al->pair[slot];
    int d_out, d_in;
    char name[128];
    err_code rc = ERR_NONE;
    peft_slot_shape(mk->shape, slot, &d_out, &d_in);
    if (pair->magnitude.present) rc = make_gain(mk, slot, w, m, d_out, e);
    if (!rc && extent_biased(mk->al, mk->shape, slot)) rc = make_bias(mk, slot, m, d_out, e);
    if (!rc) return rc;
    peft_slot_name(name, sizeof name, mk->shape, &mk->al->peft, slot);
    return err_context(e, "%s", name);
}

/* A and B of lm_head or embed_tokens, beside `own`, which the backend may have in
 * another type than its file. */
static err_code pack_outside(maker *mk, size_t slot, const weight *own, lora_mat *m, err *e)
{
    const peft_layer *pl = &mk->al->peft.layer[slot];
    if (!pl->wrapped) return ERR_NONE;
    void *spare[2] = {NULL, NULL};
    lora_pair lp;
    int d_out, d_in;
    dtype type = own ? be_weight_type(own) : extent_pack_type(mk->al, mk->shape, slot);
    peft_slot_shape(mk->shape, slot, &d_out, &d_in);
    void *a = take(mk, be_lora_a_bytes(mk->be, type, pl->rank, d_in));
    void *b = take(mk, be_lora_b_bytes(mk->be, type, pl->rank, d_out));
    *m = (lora_mat){.a = a, .b = b, .rank = pl->rank, .scale = pl->scale};
    err_code rc = read_pair(mk, slot, &lp, spare, e);
    if (!rc && slot == peft_embed_slot(mk->shape->n_layer))
        rc = be_lora_pack_embed(mk->be, type, a, b, lp.a, lp.b, lp.type, pl->rank, d_in, d_out, e);
    else if (!rc)
        rc = be_lora_pack(mk->be, type, a, b, lp.a, lp.b, lp.type, pl->rank, d_in, d_out, e);
    free(spare[0]);
    free(spare[1]);
    return rc;
}

static bool touched(const adapter_layout *al, const model_config *base, size_t slot)
{
    return al->peft.layer[slot].wrapped || al->pair[slot].table.present ||
           al->pair[slot].more.present || layout_patched(al, base, slot);
}

static void put_row(char *to, const float *v, int n, dtype type)
{
    if (type == DT_F32) memcpy(to, v, (size_t)n * sizeof(float));
    for (int k = 0; type != DT_F32 && k < n; k++) {
        uint16_t h = type == DT_BF16 ? bf16_from_f32(v[k]) : f16_from_f32(v[k]);
        memcpy(to + 2 * (size_t)k, &h, sizeof h);
    }
}

/* Row i of a tensor of the file, in the table's type as PEFT puts it there. */
static void copy_row(const maker *mk, const adapter_tensor *t, int i, char *to, dtype type)
{
    uint64_t bytes = (uint64_t)mk->shape->dim * dtype_bytes(t->type);
    adapter_tensor one = {
        .offset = t->offset + (uint64_t)i * bytes, .bytes = bytes, .type = t->type};
    read_vector(mk, &one, mk->in, mk->shape->dim);
    put_row(to, mk->in, mk->shape->dim, type);
}

typedef struct own_row {
    int32_t id;
    const adapter_tensor *t;
    int at; /* row of t */
} own_row;

/* By token; of two the trained one first. */
static int by_id(const void *a, const void *b)
{
    const own_row *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Which rows the slot gets of its own: those behind the base's, and the trained
 * ones, also in their place. */
static size_t list_rows(const maker *mk, size_t slot, own_row *list)
{
    const adapter_layout *al = mk->al;
    const adapter_tensor *more = &al->pair[slot].more, *trained = &al->pair[slot].rows;
    if (!trained->present) trained = &al->pair[peft_embed_slot(mk->shape->n_layer)].rows;
    size_t n = 0, kept = 0;
    int n_token = layout_patched(al, mk->shape, slot) ? al->peft.n_token : 0;
    for (int i = 0; i < n_token; i++) list[n++] = (own_row){al->peft.token[i], trained, i};
    qsort(list, n, sizeof(*list), by_id);
    size_t n_trained = n;
    for (int id = mk->n_base; more->present && id < mk->shape->n_vocab; id++) {
        own_row key = {.id = id};
        bool there = false;
        for (size_t lo = 0, hi = n_trained; lo < hi && !there;) {
            size_t mid = (lo + hi) / 2;
            there = list[mid].id == key.id;
            if (list[mid].id < key.id)
                lo = mid + 1;
            else
                hi = mid;
        }
        if (!there) list[n++] = (own_row){id, more, id - mk->n_base};
    }
    qsort(list, n, sizeof(*list), by_id);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || list[kept - 1].id != list[i].id) list[kept++] = list[i];
    return kept;
}

/* *ids: the extras' to free. */
static err_code make_rows(maker *mk, size_t slot, int32_t **ids, weight **own, lora_rows *out,
                          err *e)
{
    size_t most = extent_row_count(mk->al, mk->shape, slot), dim = (size_t)mk->shape->dim;
    dtype type = extent_row_type(mk->shape, slot);
    if (most == 0) return ERR_NONE;
    own_row *list = malloc(most * sizeof(*list));
    char *rows = malloc(most * dim * dtype_bytes(type));
    *ids = malloc(most * sizeof **ids);
    err_code rc = list && rows && *ids ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    size_t n = rc == ERR_NONE ? list_rows(mk, slot, list) : 0;
    for (size_t i = 0; i < n; i++) {
        (*ids)[i] = list[i].id;
        copy_row(mk, list[i].t, list[i].at, rows + i * dim * dtype_bytes(type), type);
    }
    int32_t *there = take(mk, extent_id_bytes(mk->al, mk->shape, slot));
    *out = (lora_rows){.n = (int)n, .id = *ids, .id_there = there, .type = (int)type};
    if (!rc && be_upload(mk->be, there, *ids, n * sizeof **ids))
        rc = err_set(e, ERR_DEVICE, "the tokens of an embedding cannot be copied");
    if (!rc && slot == peft_head_slot(mk->shape->n_layer)) {
        rc = be_lora_weight_create(mk->be, own, rows, type, (int)n, (int)dim, e);
        out->w = *own;
    } else if (!rc) {
        void *to = take(mk, most * dim * dtype_bytes(type));
        rc = upload_table(mk, to, rows, n * dim * dtype_bytes(type));
        if (rc) (void)err_set(e, rc, "rows of an embedding cannot be copied");
        out->table = to;
    }
    free(list);
    free(rows);
    return rc;
}

static err_code make_head(maker *mk, adapter_extras *out, err *e)
{
    size_t slot = peft_head_slot(mk->shape->n_layer);
    const adapter_tensor *t = &mk->al->pair[slot].table;
    const model_config *c = mk->shape;
    if (!touched(mk->al, mk->shape, slot)) return ERR_NONE;
    if (!t->present && mk->al->peft.layer[slot].wrapped && c->head_type != c->type)
        return err_set(e, ERR_UNSUPPORTED, "LoRA on an lm_head of another type than the layers'");
    out->head = calloc(1, sizeof(*out->head));
    if (!out->head) return err_set(e, ERR_NOMEM, "out of memory");
    if (t->present) {
        void *spare = NULL;
        const void *src = matrix(mk, t, &spare);
        err_code rc = !src ? err_set(e, ERR_NOMEM, "out of memory")
                           : be_lora_weight_create(mk->be, &out->own_head, src, t->type, c->n_vocab,
                                                   c->dim, e);
        free(spare);
        if (rc) return rc;
        out->head->w = out->own_head;
    }
    err_code rc = pack_outside(mk, slot, out->own_head, &out->head->mat, e);
    if (!rc) rc = make_rows(mk, slot, &out->head_id, &out->head_rows, &out->head->rows, e);
    const weight *w = out->own_head != NULL ? out->own_head : model_head_weight(mk->base);
    return rc != ERR_NONE ? rc : make_slot(mk, slot, w, &out->head->mat, e);
}

static err_code make_embed(maker *mk, adapter_extras *out, err *e)
{
    size_t slot = peft_embed_slot(mk->shape->n_layer);
    const adapter_tensor *t = &mk->al->pair[slot].table;
    if (!touched(mk->al, mk->shape, slot)) return ERR_NONE;
    out->embed = calloc(1, sizeof(*out->embed));
    if (!out->embed) return err_set(e, ERR_NOMEM, "out of memory");
    out->embed->pack_type = (int)extent_pack_type(mk->al, mk->shape, slot);
    if (t->present) {
        void *to = take(mk, t->bytes);
        err_code rc = upload_table(mk, to, mk->file + t->offset, t->bytes);
        if (rc) return err_set(e, rc, "an embedding cannot be copied");
        out->embed->table = to;
        out->embed->table_type = (int)t->type;
    }
    err_code rc = pack_outside(mk, slot, NULL, &out->embed->mat, e);
    if (!rc) rc = make_rows(mk, slot, &out->embed_id, NULL, &out->embed->rows, e);
    return rc != ERR_NONE ? rc : make_slot(mk, slot, NULL, &out->embed->mat, e);
}

static err_code make_norms(maker *mk, adapter_extras *out, err *e)
{
    int n = mk->shape->n_layer * LORA_NORMS + 1;
    size_t bytes = (size_t)mk->shape->dim * sizeof(float);
    for (int at = 0; at < n; at++) {
        size_t slot = peft_norm_slot(mk->shape->n_layer, at);
        if (!mk->al->peft.layer[slot].saved) continue;
        if (!out->norm) out->norm = calloc((size_t)n, sizeof(*out->norm));
        if (!out->norm) return err_set(e, ERR_NOMEM, "out of memory");
        void *to = take(mk, bytes);
        read_vector(mk, &mk->al->pair[slot].table, mk->out, mk->shape->dim);
        err_code rc = be_upload(mk->be, to, mk->out, bytes);
        if (rc) return err_set(e, rc, "a norm cannot be copied");
        out->norm[at] = to;
    }
    return ERR_NONE;
}

/* The base's matrix that a slot within a layer adapts; NULL: the layer has none. */
static const weight *weight_of(const maker *mk, size_t slot)
{
    size_t first = peft_expert_slots(mk->shape->n_layer);
    if (slot < first)
        return model_proj_weight(mk->base, (int)(slot / PROJ_COUNT), (proj)(slot % PROJ_COUNT));
    size_t at = slot - first, each = (size_t)mk->al->peft.n_expert;
    return model_expert_weight(mk->base, (int)(at / LORA_EXPERT_PROJS / each),
                               (int)(at / LORA_EXPERT_PROJS % each),
                               (proj)(PROJ_GATE + at % LORA_EXPERT_PROJS));
}

/* The head and its values in one piece: the weight, then the bias. */
static err_code make_scores(const maker *mk, adapter_extras *out, err *e)
{
    const adapter_pair *pair = &mk->al->pair[peft_score_slot(mk->shape->n_layer)];
    int n = mk->al->n_label, dim = mk->shape->dim;
    if (n == 0) return ERR_NONE;
    out->score_head =
        malloc(sizeof(*out->score_head) + (size_t)extent_score_bytes(mk->al, mk->shape));
    if (!out->score_head) return err_set(e, ERR_NOMEM, "out of memory");
    float *w = (float *)(out->score_head + 1), *bias = w + (size_t)n * (size_t)dim;
    read_vector(mk, &pair->table, w, n * dim);
    if (pair->bias.present) read_vector(mk, &pair->bias, bias, n);
    *out->score_head = (pooling_head){n, dim, w, pair->bias.present ? bias : NULL};
    return ERR_NONE;
}

err_code extras_make(adapter_extras *out, const adapter_layout *al, const model_config *config,
                     const model *base, backend *be, const uint8_t *file, lora_mat *mat,
                     pace *speed, bool hint, err *e)
{
    memset(out, 0, sizeof(*out));
    if (extent_bytes(al, config, be) == 0) return ERR_NONE;
    if (!base)
        return err_set(e, ERR_UNSUPPORTED,
                       "DoRA, biases and embeddings need the base's weights at hand");
    const model_config own = extent_shape(al, config), *shape = &own;
    maker mk = {.al = al,
                .shape = shape,
                .n_base = config->n_vocab,
                .base = base,
                .be = be,
                .file = file,
                .pace = speed,
                .hint = hint};
    size_t longest = 0;
    for (size_t slot = 0; slot < peft_slots(&al->peft); slot++) {
        if (slot == peft_score_slot(shape->n_layer)) continue;
        uint64_t n = extent_vector_bytes(shape, slot);
        if (n > longest) longest = (size_t)n;
    }
    assert(longest > 0); /* of a projection at least */
    mk.in = malloc(longest);
    mk.out = malloc(longest);
    uint64_t slab = extent_slab_bytes(al, shape, be);
    out->slab = mk.slab = be_alloc(be, slab > 0 ? (size_t)slab : EXTENT_ALIGN);
    err_code rc = mk.in != NULL && mk.out && mk.slab != NULL
                      ? ERR_NONE
                      : err_set(e, ERR_NOMEM, "no memory for an adapter");
    for (size_t slot = 0; slot < peft_slots(&al->peft) && !rc; slot++)
        if (peft_in_layer(shape->n_layer, slot))
            rc =
                make_slot(&mk, slot, weight_of(&mk, slot), &mat[peft_mat(shape->n_layer, slot)], e);
    if (!rc) rc = make_head(&mk, out, e);
    if (!rc) rc = make_embed(&mk, out, e);
    if (!rc) rc = make_norms(&mk, out, e);
    if (!rc) rc = make_scores(&mk, out, e);
    free(mk.in);
    free(mk.out);
    return rc;
}

void extras_clear(adapter_extras *ex, backend *be)
{
    if (ex->slab) be_free(be, ex->slab);
    if (ex->own_head) be_weight_destroy(be, ex->own_head);
    if (ex->head_rows) be_weight_destroy(be, ex->head_rows);
    free(ex->head_id);
    free(ex->embed_id);
    free(ex->head);
    free(ex->embed);
    free(ex->norm);
    free(ex->score_head);
    memset(ex, 0, sizeof(*ex));
}
