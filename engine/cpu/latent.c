/* latent.c -- be_latent_*(): attention over latents in its absorbed form.
 *
 * A head's product is one group of a grouped product (linear.c), of rows that were gathered by
 * head.  LoRA on the whole matrix, y = gain * ((W + scale * B A) x), is added behind it for rows
 * that have it, each head by its own rows of B:
 *
 *     queries  x = gain * q;  out = W_k^T x + scale * A^T (B_k^T x)
 *     answers  out = gain * (W_v x + scale * B_v (A x)) + bias
 *
 * DoRA's gain of keys multiplies the query before all products.  A bias of keys adds the same to
 * every score of a query, which the softmax does not see.  A row's bits depend on itself alone.
 */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/base/round.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/rows.h"

enum {
    SMALL_VALUES = 1 << 15, /* below: the fan-out costs more than it gives */
    PIECE = 1 << 13,        /* values that a thread takes at a time */
    SOME_HEADS = 4,         /* likewise, of those with LoRA */
};

typedef struct latent_job {
    const row_kernels *rows;
    const linear_kernels *kern;
    const latent_shape *sh;
    const step *s;
    dtype type; /* that LoRA was packed for */
    int layer, n_rows;
    float *out;
    const float *x, *gain;
    float eps;
    float *by_head; /* [n_head][n_rows][nope or rank] */
    atomic_size_t next;
} latent_job;

static void run(backend *be, latent_job *j, size_t values, void (*fn)(void *arg, int thread))
{
    atomic_init(&j->next, 0);
    cpu_run(be, values, SMALL_VALUES, fn, j);
}

/* ----------------------------------------------------------------------------- norm -- */

static void norm_thread(void *arg, int thread)
{
    (void)thread;
    latent_job *j = arg;
    size_t from, to, rank = (size_t)j->sh->rank, wide = rank + (size_t)j->sh->rope;
    size_t apart = j->out == j->x ? wide : rank;
    while (pool_next_piece(&j->next, (size_t)j->n_rows, PIECE / rank + 1, &from, &to))
        for (size_t i = from; i < to; i++)
            j->rows->rms_norm(j->out + i * apart, j->x + i * wide, j->gain, j->eps, (int)rank);
}

void cpu_latent_norm(backend *be, float *out, const float *x, const float *gain, float eps,
                     const latent_shape *shape, int n_rows)
{
    latent_job j = {.rows = cpu_kernels_of(cpu_of(be)->isa)->rows,
                    .out = out,
                    .x = x,
                    .gain = gain,
                    .eps = eps,
                    .sh = shape,
                    .n_rows = n_rows};
    run(be, &j, (size_t)n_rows * (size_t)shape->rank, norm_thread);
}

/* ----------------------------------------------------------------------------- LoRA -- */

/* Of a segment; NULL: none. */
static const lora_mat *mat_of(const latent_job *j, const step_seg *sg)
{
    if (!sg->lora) return NULL;
    const lora_mat *m = &sg->lora->mat[(size_t)j->layer * PROJ_COUNT + PROJ_V];
    return lora_mat_used(m) ? m : NULL;
}

/* Of a row; *sg is the segment of an earlier one, and becomes the row's own. */
static const lora_mat *mat_of_row(const latent_job *j, const step_seg **sg, int row)
{
    const step_seg *end = j->s->seg + j->s->n_seg;
    while (*sg < end && row >= (*sg)->row0 + (*sg)->n_rows) ++*sg;
    return *sg < end ? mat_of(j, *sg) : NULL;
}

static size_t rows_with_lora(const latent_job *j)
{
    size_t n = 0;
    for (int i = 0; i < j->s->n_seg; i++)
        if (mat_of(j, &j->s->seg[i])) n += (size_t)j->s->seg[i].n_rows;
    return n;
}

/* A head's first column of B: of its keys, behind which are its values. */
static int column_of(const latent_shape *sh, int head)
{
    return head * (sh->nope + sh->v);
}

/* u [rank] = B^T x, of the columns [col, col + n) of B: a panel is as a shrink takes A. */
static void shrink_back(const latent_job *j, const lora_mat *m, float *u, int col, const float *x,
                        int n)
{
    float part[LORA_RANK_MAX];
    memset(u, 0, (size_t)m->rank * sizeof(*u));
    for (int p = col / PANEL; p * PANEL < col + n; p++) {
        float of_panel[PANEL] = {0};
        int from = p * PANEL > col ? p * PANEL : col;
        int end = (p + 1) * PANEL < col + n ? (p + 1) * PANEL : col + n;
        memcpy(of_panel + from - p * PANEL, x + from - col, (size_t)(end - from) * sizeof(*x));
        j->kern->shrink(part, m->rank, 1, lora_b_panel(m, p, j->type), j->type == DT_BF16, of_panel,
                        m->rank, PANEL);
        for (int r = 0; r < m->rank; r++) u[r] += part[r];
    }
}

/* out [d] += scale * A^T u. */
static void expand_back(const latent_job *j, const lora_mat *m, float *out, const float *u, int d)
{
    float plain[LATENT_RANK_MAX];
    for (int r = 0; r < m->rank; r++) {
        const void *a = lora_a_row(m, r, d, j->type);
        const uint16_t *half = a;
        for (int i = 0; j->type == DT_BF16 && i < d; i++) plain[i] = bf16_to_f32(half[i]);
        j->rows->add(out, j->type == DT_BF16 ? plain : a, m->scale * u[r], (size_t)d);
    }
}

/* Head h of `row`, whose query stands among the gathered ones. */
static void adapt_query(const latent_job *j, const lora_mat *m, int row, int h)
{
    const latent_shape *sh = j->sh;
    float u[LORA_RANK_MAX];
    size_t at = (size_t)row * (size_t)sh->n_head + (size_t)h;
    const float *x = j->by_head + ((size_t)h * (size_t)j->n_rows + (size_t)row) * (size_t)sh->nope;
    if (m->rank == 0) return;
    shrink_back(j, m, u, column_of(sh, h), x, sh->nope);
    expand_back(j, m, j->out + at * (size_t)(sh->rank + sh->rope), u, sh->rank);
}

/* v [rank] = A x. */
static void shrink(const latent_job *j, const lora_mat *m, float *v, const float *x)
{
    const int d = j->sh->rank;
    const lora_split *sp = m->split;
    for (int r = 0, n; r < m->rank; r += n) {
        n = !sp ? m->rank : r == 0 ? sp->a_first : sp->a_each;
        if (n > m->rank - r) n = m->rank - r;
        j->kern->shrink(v + r, m->rank, 1, lora_a_row(m, r, d, j->type), j->type == DT_BF16, x, n,
                        d);
    }
}

static void adapt_answer(const latent_job *j, const lora_mat *m, int row, int h)
{
    const latent_shape *sh = j->sh;
    float v[LORA_RANK_MAX];
    size_t at = (size_t)row * (size_t)sh->n_head + (size_t)h;
    float *out = j->out + at * (size_t)sh->v;
    const int col = column_of(sh, h) + sh->nope, end = col + sh->v;
    if (m->rank > 0) shrink(j, m, v, j->x + at * (size_t)sh->rank);
    for (int p = col / PANEL; p * PANEL < end && m->rank > 0; p++) {
        float sums[PANEL] = {0};
        j->kern->expand(sums, 1, lora_b_panel(m, p, j->type), j->type == DT_BF16, v, m->rank,
                        m->scale, m->rank);
        for (int c = p * PANEL > col ? p * PANEL : col; c < (p + 1) * PANEL && c < end; c++)
            out[c - col] += sums[c - p * PANEL];
    }
    for (int i = 0; i < sh->v; i++) {
        if (m->gain) out[i] *= m->gain[col + i];
        if (m->bias) out[i] += m->bias[col + i];
    }
}

/* Items are heads of rows. */
static void adapt_thread(latent_job *j,
                         void (*adapt)(const latent_job *j, const lora_mat *m, int row, int h))
{
    size_t from, to, heads = (size_t)j->sh->n_head;
    const step_seg *sg = j->s->seg;
    while (pool_next_piece(&j->next, (size_t)j->n_rows * heads, SOME_HEADS, &from, &to))
        for (size_t i = from; i < to; i++) {
            int row = (int)(i / heads);
            const lora_mat *m = mat_of_row(j, &sg, row);
            if (m) adapt(j, m, row, (int)(i % heads));
        }
}

static void adapt_query_thread(void *arg, int thread)
{
    (void)thread;
    adapt_thread(arg, adapt_query);
}

static void adapt_answer_thread(void *arg, int thread)
{
    (void)thread;
    adapt_thread(arg, adapt_answer);
}

/* -------------------------------------------------------------------------- products -- */

/* Bytes of the rows of all heads, with the groups behind them. */
static size_t heads_bytes(const latent_shape *sh, size_t n_rows)
{
    size_t wide = (size_t)(sh->rank > sh->nope ? sh->rank : sh->nope), heads = (size_t)sh->n_head;
    return round_up_size(n_rows * heads * wide * sizeof(float), 64) +
           heads * (sizeof(linear_group) + sizeof(linear_out));
}

void cpu_latent_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES])
{
    const latent_shape *sh = &most->latent;
    if (sh->rank == 0) return;
    size_t grouped[CPU_SCRATCHES] = {0};
    step_bounds wide = *most;
    wide.rows = (most->rows + 15) * sh->n_head; /* each head's rows fill whole tiles */
    wide.cols = sh->rank > sh->nope ? sh->rank : sh->nope;
    cpu_linear_groups_most(&wide, grouped);
    grouped[SCRATCH_JOBS] = cpu_linear_groups_bytes(sh->n_head);
    for (int i = 0; i < CPU_SCRATCHES; i++)
        if (grouped[i] > bytes[i]) bytes[i] = grouped[i];
    bytes[SCRATCH_HEADS] = heads_bytes(sh, (size_t)most->rows);
}

/* Each head's rows of j->by_head [n_head][n_rows][cols of w], times its matrix, to j->out [n_rows]
 * [n_head][y_head]. */
static void multiply(backend *be, const latent_job *j, weight *const *w, int y_head)
{
    size_t heads = (size_t)j->sh->n_head, rows = (size_t)j->n_rows, cols = (size_t)w[0]->cols;
    size_t wide = (size_t)(j->sh->rank > j->sh->nope ? j->sh->rank : j->sh->nope);
    char *behind = (char *)j->by_head + round_up_size(rows * heads * wide * sizeof(float), 64);
    linear_group *group = (void *)behind;
    linear_out *out = (void *)(group + heads);
    for (size_t h = 0; h < heads; h++) {
        out[h] = (linear_out){.y = j->out + h * (size_t)y_head,
                              .w = w[h],
                              .lora_proj = -1,
                              .stride = (int)heads * y_head};
        group[h] = (linear_group){.x = j->by_head + h * rows * cols,
                                  .outs = &out[h],
                                  .n_out = 1,
                                  .n_rows = j->n_rows,
                                  .expert = -1};
    }
    cpu_linear_groups(be, group, (int)heads, -1);
}

static latent_job job_of(backend *be, float *out, const float *x, const latent_heads *w,
                         const latent_shape *shape, const step *s, int layer)
{
    const cpu_kernels *set = cpu_kernels_of(cpu_of(be)->isa);
    assert(shape->rank <= LATENT_RANK_MAX); /* cpu_kv_attach() */
    return (latent_job){.rows = set->rows,
                        .kern = set->linear,
                        .sh = shape,
                        .s = s,
                        .type = w->lora_type,
                        .layer = layer,
                        .n_rows = s->n_rows,
                        .out = out,
                        .x = x,
                        .by_head =
                            cpu_scratch(be, SCRATCH_HEADS, heads_bytes(shape, (size_t)s->n_rows))};
}

/* Queries by head, times the gain of their adapters' keys; the keys that all heads share meet
 * theirs as they are. */
static void gather_queries(void *arg, int thread)
{
    (void)thread;
    latent_job *j = arg;
    const latent_shape *sh = j->sh;
    size_t from, to, heads = (size_t)sh->n_head, nope = (size_t)sh->nope, rope = (size_t)sh->rope;
    size_t rows = (size_t)j->n_rows, rank = (size_t)sh->rank;
    const step_seg *sg = j->s->seg;
    while (pool_next_piece(&j->next, rows * heads, PIECE / (nope + rope) + 1, &from, &to))
        for (size_t i = from; i < to; i++) {
            size_t row = i / heads, h = i % heads;
            const float *q = j->x + i * (nope + rope);
            const lora_mat *m = mat_of_row(j, &sg, (int)row);
            float *x = j->by_head + (h * rows + row) * nope;
            memcpy(x, q, nope * sizeof(*x));
            const float *gain = m && m->gain ? m->gain + column_of(sh, (int)h) : NULL;
            for (size_t k = 0; gain && k < nope; k++) x[k] *= gain[k];
            memcpy(j->out + i * (rank + rope) + rank, q + nope, rope * sizeof(*x));
        }
}

void cpu_latent_query(backend *be, float *out, const float *q, const latent_heads *w,
                      const latent_shape *shape, const step *s, int layer)
{
    latent_job j = job_of(be, out, q, w, shape, s, layer);
    size_t heads = (size_t)shape->n_head, values = (size_t)(shape->nope + shape->rope);
    size_t adapted = rows_with_lora(&j);
    if (!j.by_head) return;
    run(be, &j, (size_t)s->n_rows * heads * values, gather_queries);
    multiply(be, &j, w->key, shape->rank + shape->rope);
    if (adapted) run(be, &j, adapted * heads * (size_t)shape->rank, adapt_query_thread);
}

static void gather_latents(void *arg, int thread)
{
    (void)thread;
    latent_job *j = arg;
    size_t from, to, heads = (size_t)j->sh->n_head, rank = (size_t)j->sh->rank;
    size_t rows = (size_t)j->n_rows;
    while (pool_next_piece(&j->next, rows * heads, PIECE / rank + 1, &from, &to))
        for (size_t i = from; i < to; i++)
            memcpy(j->by_head + (i % heads * rows + i / heads) * rank, j->x + i * rank,
                   rank * sizeof(float));
}

void cpu_latent_answer(backend *be, float *out, const float *latents, const latent_heads *w,
                       const latent_shape *shape, const step *s, int layer)
{
    latent_job j = job_of(be, out, latents, w, shape, s, layer);
    size_t heads = (size_t)shape->n_head, adapted = rows_with_lora(&j);
    if (!j.by_head) return;
    run(be, &j, (size_t)s->n_rows * heads * (size_t)shape->rank, gather_latents);
    multiply(be, &j, w->value, shape->v);
    if (adapted) run(be, &j, adapted * heads * (size_t)shape->rank, adapt_answer_thread);
}
