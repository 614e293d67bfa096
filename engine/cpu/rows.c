/* rows.c -- operations that treat each row or value alone: embeddings, norms, activations, residual
 * sums, logits.
 *
 * Each operation is a job that the pool's threads share: they take pieces of PIECE values (rows,
 * heads) by an atomic counter.  Below SMALL_VALUES the calling thread does all, because waking the
 * pool takes longer.  The arithmetic is in the kernels of the instruction set (cpu_kernels_of()).
 *
 * A value or row is computed whole by one thread with the same kernel, whatever the piece.  So the
 * bits depend neither on the number of threads nor on other rows of the step.
 *
 * cpu_embed() also applies adapters: a row of its own for an added token, a replaced table, and
 * LoRA on the embedding, whose shrink is a lookup of A's column.
 */
#include "engine/cpu/rows.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/linear.h"

enum {
    SMALL_VALUES = 1 << 15, /* below: the fan-out costs more than it gives */
    PIECE = 1 << 13,        /* values that a thread takes at a time */
    EMBED_ROWS = 16,        /* tokens, likewise */
};

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

/* out = gain * (out + scale * B A_token): for one token the shrink is A's column. */
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

/* Only adapters' work counts: copies alone are not worth waking the pool. */
void cpu_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s)
{
    embed_job job = {.kern = cpu_kernels_of(cpu_of(be)->isa)->linear,
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
    cpu_run(be, work, SMALL_VALUES, embed_thread, &job);
}

void cpu_rms_norm_row(cpu_isa isa, float *out, const float *x, const float *gain, float eps,
                      int dim)
{
    assert(dim > 0);
    cpu_kernels_of(isa)->rows->rms_norm(out, x, gain, eps, dim);
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
    assert(row0 >= 0 && n_rows >= 0 && dim > 0);
    size_t before = (size_t)row0 * (size_t)dim;
    rows_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->rows,
                  .out = out + before,
                  .x = x + before,
                  .weight = gain,
                  .eps = eps,
                  .n_rows = n_rows,
                  .dim = dim};
    cpu_run(be, (size_t)n_rows * dim, SMALL_VALUES, rms_thread, &j);
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
    assert(row0 >= 0 && n_rows >= 0 && dim > 0);
    size_t before = (size_t)row0 * (size_t)dim;
    rows_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->rows,
                  .out = out + before,
                  .x = x + before,
                  .weight = gain,
                  .bias = bias,
                  .eps = eps,
                  .n_rows = n_rows,
                  .dim = dim};
    cpu_run(be, (size_t)n_rows * dim, SMALL_VALUES, layer_norm_thread, &j);
}

static void gate_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to;
    while (pool_next_piece(&j->next, j->n, PIECE, &from, &to))
        j->kern->gate(j->act, j->out + from, j->x ? j->x + from : NULL, to - from);
}

void cpu_gate(backend *be, activation act, float *gate, const float *up, size_t n)
{
    rows_job j = {
        .kern = cpu_kernels_of(cpu_of(be)->isa)->rows, .act = act, .out = gate, .x = up, .n = n};
    cpu_run(be, n, SMALL_VALUES, gate_thread, &j);
}

static void xielu_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to;
    while (pool_next_piece(&j->next, j->n, PIECE, &from, &to))
        j->kern->xielu(j->out + from, j->weight, to - from);
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

void cpu_xielu(backend *be, float *x, const xielu_weights *w, size_t n)
{
    const float coef[] = {softplus(*w->alpha_p), *w->beta + softplus(*w->alpha_n), *w->beta,
                          *w->eps};
    rows_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->rows, .out = x, .weight = coef, .n = n};
    cpu_run(be, n, SMALL_VALUES, xielu_thread, &j);
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
        .kern = cpu_kernels_of(cpu_of(be)->isa)->rows, .out = x, .x = y, .scale = scale, .n = n};
    cpu_run(be, n, SMALL_VALUES, add_thread, &j);
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
    rows_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->rows, .out = x, .scale = scale, .n = n};
    cpu_run(be, n, SMALL_VALUES, bend_thread, &j);
}

/* Items are heads of rows. */
static void q_take_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to, dim = (size_t)j->dim;
    while (pool_next_piece(&j->next, j->n, PIECE / dim + 1, &from, &to))
        for (size_t i = from; i < to; i++)
            memcpy(j->out + i * dim, j->x + i * 2 * dim, dim * sizeof(float));
}

void cpu_q_take(backend *be, float *q, const float *x, size_t n, int dim)
{
    assert(dim > 0 && q != x);
    rows_job j = {.out = q, .x = x, .n = n, .dim = dim};
    cpu_run(be, n * (size_t)dim, SMALL_VALUES, q_take_thread, &j);
}

static void q_gate_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to, dim = (size_t)j->dim;
    while (pool_next_piece(&j->next, j->n, PIECE / dim + 1, &from, &to))
        for (size_t i = from; i < to; i++)
            j->kern->open(j->out + i * dim, j->x + (2 * i + 1) * dim, dim);
}

void cpu_q_gate(backend *be, float *out, const float *x, size_t n, int dim)
{
    assert(dim > 0);
    rows_job j = {
        .kern = cpu_kernels_of(cpu_of(be)->isa)->rows, .out = out, .x = x, .n = n, .dim = dim};
    cpu_run(be, n * (size_t)dim, SMALL_VALUES, q_gate_thread, &j);
}

/* Also changes the values between the rows, which nothing reads. */
void cpu_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap)
{
    rows_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->rows,
                  .out = logits,
                  .scale = scale,
                  .cap = cap,
                  .n = (size_t)n_rows * (size_t)stride};
    cpu_run(be, j.n, SMALL_VALUES, bend_thread, &j);
}

static void bias_thread(void *arg, int thread)
{
    (void)thread;
    rows_job *j = arg;
    size_t from, to;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, 1, &from, &to))
        for (; from < to; from++) j->kern->add(j->out + from * j->n, j->bias, 1, (size_t)j->dim);
}

void cpu_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias, int n)
{
    assert(n <= stride); /* rows lie apart */
    rows_job j = {.kern = cpu_kernels_of(cpu_of(be)->isa)->rows,
                  .out = logits,
                  .bias = bias,
                  .n_rows = n_rows,
                  .dim = n,
                  .n = (size_t)stride};
    cpu_run(be, (size_t)n_rows * (size_t)n, SMALL_VALUES, bias_thread, &j);
}
