/* rows.c -- operations that treat each row (or value) alone, shared out over the pool. */
#include "engine/cpu/rows.h"

#include <assert.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/linear.h"

enum {
    SMALL_VALUES = 1 << 15, /* below: the fan-out costs more than it gives */
    PIECE = 1 << 13,        /* values that a thread takes at a time */
    EMBED_ROWS = 16,        /* tokens, likewise */
};

const row_kernels *rows_kernels_of(cpu_isa isa)
{
    if (isa >= ISA_AVX512) return &rows_avx512;
    return isa >= ISA_AVX2 ? &rows_avx2 : &rows_portable;
}

typedef struct {
    const row_kernels *kern;
    float *out;
    const float *x, *weight, *bias;
    float eps, scale, cap;
    activation act;
    int n_rows, dim;
    size_t n;
    atomic_size_t next;
} rows_job;

static void run(backend *be, size_t values, void (*fn)(void *arg, int thread), void *arg)
{
    if (values < SMALL_VALUES)
        fn(arg, 0);
    else
        pool_run(cpu_of(be)->pool, fn, arg);
}

typedef struct {
    const linear_kernels *kern;
    float *out;
    const void *table;
    dtype type;
    int dim;
    const step *s;
    atomic_size_t next;
} embed_job;

static void copy_row(float *out, const void *table, dtype type, int32_t token, int dim)
{
    assert(token >= 0);
    const char *row = (const char *)table + (size_t)token * dim * dtype_bytes(type);
    if (type == DT_F32) {
        memcpy(out, row, (size_t)dim * sizeof(float));
        return;
    }
    for (int j = 0; j < dim; j++) out[j] = float_at(row, type, (size_t)j);
}

/* out = gain * (out + scale * B A_token): A's column of the token is what a shrink would give. */
static void adapt_row(const embed_job *job, float *out, const lora_embed *em, int32_t token)
{
    const lora_mat *m = &em->mat;
    bool bf16 = em->pack_type == DT_BF16;
    float v[LORA_RANK_MAX], sums[PANEL];
    assert(m->rank > 0 && m->rank <= LORA_RANK_MAX && token >= 0);
    for (int r = 0; r < m->rank; r++) {
        size_t i = (size_t)token * m->rank + r;
        v[r] = bf16 ? bf16_to_f32(((const uint16_t *)m->a)[i]) : ((const float *)m->a)[i];
    }
    for (int n0 = 0; n0 < job->dim; n0 += PANEL) {
        int cols = job->dim - n0 < PANEL ? job->dim - n0 : PANEL;
        const char *b = (const char *)m->b + (size_t)n0 * m->rank * (bf16 ? 2 : 4);
        memset(sums, 0, sizeof(sums));
        memcpy(sums, out + n0, (size_t)cols * sizeof(float));
        job->kern->expand(sums, 1, b, bf16, v, m->rank, m->scale, m->rank);
        for (int j = 0; j < cols; j++) out[n0 + j] = m->gain ? sums[j] * m->gain[n0 + j] : sums[j];
    }
}

static void embed_thread(void *arg, int thread)
{
    (void)thread;
    embed_job *job = arg;
    const step *s = job->s;
    size_t from, to;
    while (pool_next_piece(&job->next, (size_t)s->n_rows, EMBED_ROWS, &from, &to)) {
        int sg = 0;
        for (size_t i = from; i < to; i++) {
            while (sg < s->n_seg && (int)i >= s->seg[sg].row0 + s->seg[sg].n_rows) sg++;
            const lora_view *view = sg < s->n_seg ? s->seg[sg].lora : NULL;
            const lora_embed *em = view ? view->embed : NULL;
            float *out = job->out + i * (size_t)job->dim;
            int own = em ? lora_row_of(&em->rows, s->token[i]) : -1;
            if (own >= 0)
                copy_row(out, em->rows.table, (dtype)em->rows.type, own, job->dim);
            else if (em && em->table)
                copy_row(out, em->table, (dtype)em->table_type, s->token[i], job->dim);
            else if (job->table)
                copy_row(out, job->table, job->type, s->token[i], job->dim);
            if (em && em->mat.rank > 0) adapt_row(job, out, em, s->token[i]);
        }
    }
}

/* The bare copy of a few rows is not worth a fan-out. */
void cpu_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s)
{
    embed_job job = {.kern = linear_kernels_of(be),
                     .out = out,
                     .table = table,
                     .type = type,
                     .dim = dim,
                     .s = s};
    size_t work = 0;
    for (int i = 0; i < s->n_seg; i++) {
        const lora_embed *em = s->seg[i].lora ? s->seg[i].lora->embed : NULL;
        if (em) work += (size_t)s->seg[i].n_rows * (size_t)em->mat.rank * (size_t)dim;
    }
    run(be, work, embed_thread, &job);
}

void cpu_rms_norm_row(cpu_isa isa, float *out, const float *x, const float *gain, float eps,
                      int dim)
{
    rows_kernels_of(isa)->rms_norm(out, x, gain, eps, dim);
}

static void rms_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to, piece = PIECE / (size_t)j->dim + 1;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, piece, &from, &to)) {
        for (size_t i = from; i < to; i++) {
            j->kern->rms_norm(j->out + i * (size_t)j->dim, j->x + i * (size_t)j->dim, j->weight,
                              j->eps, j->dim);
        }
    }
}

void cpu_rms_norm(backend *be, float *out, const float *x, const float *gain, float eps, int row0,
                  int n_rows, int dim)
{
    size_t before = (size_t)row0 * (size_t)dim;
    rows_job j = {.kern = rows_kernels_of(cpu_of(be)->isa),
                  .out = out + before,
                  .x = x + before,
                  .weight = gain,
                  .eps = eps,
                  .n_rows = n_rows,
                  .dim = dim};
    run(be, (size_t)n_rows * dim, rms_thread, &j);
}

static void layer_norm_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to, piece = PIECE / (size_t)j->dim + 1;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, piece, &from, &to)) {
        for (size_t i = from; i < to; i++) {
            j->kern->layer_norm(j->out + i * (size_t)j->dim, j->x + i * (size_t)j->dim, j->weight,
                                j->bias, j->eps, j->dim);
        }
    }
}

void cpu_layer_norm(backend *be, float *out, const float *x, const float *gain, const float *bias,
                    float eps, int row0, int n_rows, int dim)
{
    size_t before = (size_t)row0 * (size_t)dim;
    rows_job j = {.kern = rows_kernels_of(cpu_of(be)->isa),
                  .out = out + before,
                  .x = x + before,
                  .weight = gain,
                  .bias = bias,
                  .eps = eps,
                  .n_rows = n_rows,
                  .dim = dim};
    run(be, (size_t)n_rows * dim, layer_norm_thread, &j);
}

typedef struct {
    const row_kernels *kern;
    float *out, *v;
    const float *x, *kv, *weight;
    float eps;
    const latent_shape *sh;
    int n_rows;
    atomic_size_t next;
} latent_job;

static void latent_norm_thread(void *arg, int thread)
{
    (void)thread;
    latent_job *j = arg;
    size_t from, to, rank = (size_t)j->sh->rank, wide = rank + (size_t)j->sh->rope;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, PIECE / rank + 1, &from, &to))
        for (size_t i = from; i < to; i++)
            j->kern->rms_norm(j->out + i * rank, j->x + i * wide, j->weight, j->eps, (int)rank);
}

void cpu_latent_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                     const latent_shape *shape, int n_rows)
{
    latent_job j = {.kern = rows_kernels_of(cpu_of(be)->isa),
                    .out = out,
                    .x = x,
                    .weight = gain,
                    .eps = eps,
                    .sh = shape,
                    .n_rows = n_rows};
    run(be, (size_t)n_rows * (size_t)shape->rank, latent_norm_thread, &j);
}

/* Items are heads of rows. */
static void spread_thread(void *arg, int thread)
{
    (void)thread;
    latent_job *j = arg;
    const latent_shape *sh = j->sh;
    size_t nope = (size_t)sh->nope, rope = (size_t)sh->rope, v = (size_t)sh->v, from, to;
    size_t heads = (size_t)sh->n_head, wide = (size_t)sh->rank + rope;
    while (pool_next_piece(&j->next, (size_t)j->n_rows * heads, PIECE / (nope + v) + 1, &from, &to))
        for (size_t i = from; i < to; i++) {
            const float *kv = j->kv + i * (nope + v), *shared = j->x + i / heads * wide + sh->rank;
            float *k = j->out + i * (nope + rope);
            memcpy(k, kv, nope * sizeof(*k));
            memcpy(k + nope, shared, rope * sizeof(*k));
            memcpy(j->v + i * v, kv + nope, v * sizeof(*k));
        }
}

void cpu_latent_spread(backend *be, float *k, float *v, const float *kv, const float *x,
                       const latent_shape *shape, int n_rows)
{
    latent_job j = {.out = k, .v = v, .kv = kv, .x = x, .sh = shape, .n_rows = n_rows};
    run(be, (size_t)n_rows * (size_t)(shape->n_head * (shape->nope + shape->v)), spread_thread, &j);
}

static void gate_some(const rows_job *j, float *gate, const float *up, size_t n)
{
    bool silu = j->act == ACT_SILU;
    if (j->act == ACT_SWIGLU_CLAMPED)
        j->kern->clamped_mul(gate, up, n);
    else if (up)
        (silu ? j->kern->silu_mul : j->kern->gelu_mul)(gate, up, n);
    else
        (silu ? j->kern->silu : j->kern->gelu)(gate, n);
}

static void gate_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to;
    while (pool_next_piece(&j->next, j->n, PIECE, &from, &to))
        gate_some(j, j->out + from, j->x ? j->x + from : NULL, to - from);
}

void cpu_gate(backend *be, activation act, float *gate, const float *up, size_t n)
{
    rows_job j = {
        .kern = rows_kernels_of(cpu_of(be)->isa), .act = act, .out = gate, .x = up, .n = n};
    run(be, n, gate_thread, &j);
}

static void add_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to;
    while (pool_next_piece(&j->next, j->n, PIECE, &from, &to))
        j->kern->add(j->out + from, j->x + from, j->scale, to - from);
}

void cpu_add(backend *be, float *x, const float *y, float scale, size_t n)
{
    rows_job j = {
        .kern = rows_kernels_of(cpu_of(be)->isa), .out = x, .x = y, .scale = scale, .n = n};
    run(be, n, add_thread, &j);
}

static void bend_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to;
    while (pool_next_piece(&j->next, j->n, PIECE, &from, &to))
        j->kern->bend(j->out + from, j->scale, j->cap, to - from);
}

void cpu_scale(backend *be, float *x, float scale, size_t n)
{
    rows_job j = {.kern = rows_kernels_of(cpu_of(be)->isa), .out = x, .scale = scale, .n = n};
    run(be, n, bend_thread, &j);
}

/* Also what stands between the rows, which nobody reads. */
void cpu_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap)
{
    rows_job j = {.kern = rows_kernels_of(cpu_of(be)->isa),
                  .out = logits,
                  .scale = scale,
                  .cap = cap,
                  .n = (size_t)n_rows * (size_t)stride};
    run(be, j.n, bend_thread, &j);
}
