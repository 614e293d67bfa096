/* logits.c -- be_logits(): the last norm, the output layer, and what adapters put over it.
 *
 * An adapter may bring an output layer of its own, LoRA on the base's, and rows for tokens that it
 * adds.  The wanted rows that share all of that are one run, and a product each.
 */
#include <assert.h>
#include <string.h>

#include "engine/cpu/linear.h"

enum { TOKEN_FLOATS = 1 << 20 }; /* of logits that tokens with rows of their own give at once */

typedef struct {
    const weight *w;       /* of these rows */
    const lora_rows *rows; /* over that; NULL: none */
    bool lora;             /* some of them have LoRA on it */
    int row0, n_rows, n_seg;
} head_run;

/* The segment that holds row `row` of the step; *i only grows. */
static const step_seg *seg_at(const step *s, int *i, int row)
{
    while (*i < s->n_seg && row >= s->seg[*i].row0 + s->seg[*i].n_rows) ++*i;
    return *i < s->n_seg ? &s->seg[*i] : NULL;
}

/* The wanted rows from `from` on that share an output matrix and what is put over it; their
 * segments, counted in rows of the run, go to `seg`. */
static head_run next_run(const step *s, const weight *base, int from, step_seg *seg)
{
    head_run r = {.w = base, .row0 = from};
    int at = 0;
    for (int i = from; i < s->n_logit; i++, r.n_rows++) {
        const step_seg *sg = seg_at(s, &at, s->logit_row[i]);
        assert(i == 0 || s->logit_row[i] >= s->logit_row[i - 1]); /* seg_at() goes forward */
        const lora_view *view = sg ? sg->lora : NULL;
        const lora_head *head = view ? view->head : NULL;
        const weight *w = head && head->w ? head->w : base;
        const lora_rows *rows = head && head->rows.n > 0 ? &head->rows : NULL;
        if (i > from && (w != r.w || rows != r.rows)) break;
        r.w = w;
        r.rows = rows;
        r.lora |= head && lora_mat_used(&head->mat);
        if (r.n_seg == 0 || seg[r.n_seg - 1].lora != view)
            seg[r.n_seg++] = (step_seg){r.n_rows, 0, view};
        seg[r.n_seg - 1].n_rows++;
    }
    assert(r.n_rows > 0 && r.n_seg <= r.n_rows);
    return r;
}

/* Logits of tokens with rows of their own, into their places; so many rows at
 * once as there is room for. */
static void token_rows(backend *be, float *logits, int stride, const float *x,
                       const lora_rows *rows, int dim, int n_rows)
{
    assert(rows->n > 0 && n_rows > 0);
    int some = TOKEN_FLOATS / rows->n;
    if (some < 1) some = 1;
    if (some > n_rows) some = n_rows;
    float *y = cpu_scratch(be, SCRATCH_TOKENS, (size_t)some * (size_t)rows->n * sizeof(*y));
    if (!y) return;
    linear_out out = {.y = y, .w = rows->w, .lora_proj = -1};
    for (int from = 0, n; from < n_rows; from += n) {
        n = n_rows - from < some ? n_rows - from : some;
        cpu_linear_rows(be, x + (size_t)from * dim, &out, 1, n, NULL, -1);
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < rows->n; k++)
                logits[(size_t)(from + i) * stride + rows->id[k]] = y[(size_t)i * rows->n + k];
        }
    }
}

void cpu_logits_most(const step_bounds *most, size_t bytes[CPU_SCRATCHES])
{
    size_t rows = (size_t)most->logits, stride = (size_t)most->stride;
    bytes[SCRATCH_NORMED] = rows * (size_t)most->dim * sizeof(float);
    bytes[SCRATCH_SEGS] = rows * sizeof(step_seg);
    bytes[SCRATCH_TOKENS] = (stride > TOKEN_FLOATS ? stride : TOKEN_FLOATS) * sizeof(float);
}

void cpu_logits(backend *be, float *logits, const float *x, const float *norm_weight, float eps,
                int dim, const weight *head, const step *s)
{
    size_t n = (size_t)s->n_logit;
    float *rows = cpu_scratch(be, SCRATCH_NORMED, n * (size_t)dim * sizeof(*rows));
    step_seg *seg = cpu_scratch(be, SCRATCH_SEGS, n * sizeof(*seg));
    if (!rows || !seg) return;
    for (int i = 0, at = 0; i < s->n_logit; i++) {
        const step_seg *sg = seg_at(s, &at, s->logit_row[i]);
        float *to = rows + (size_t)i * dim;
        const float *from = x + (size_t)s->logit_row[i] * dim;
        if (norm_weight)
            cpu_rms_norm_row(cpu_of(be)->isa, to, from,
                             lora_last_norm(sg ? sg->lora : NULL, norm_weight), eps, dim);
        else
            memcpy(to, from, (size_t)dim * sizeof(*to));
    }
    head_run r;
    int stride = s->logit_stride ? s->logit_stride : head->rows;
    for (int i = 0; i < s->n_logit; i += r.n_rows) {
        r = next_run(s, head, i, seg);
        linear_out out = {.y = logits + (size_t)i * stride,
                          .w = r.w,
                          .lora_proj = r.lora ? LORA_HEAD : -1,
                          .stride = stride};
        step part = {.n_rows = r.n_rows, .seg = seg, .n_seg = r.n_seg};
        cpu_linear_rows(be, rows + (size_t)i * dim, &out, 1, r.n_rows, r.lora ? &part : NULL,
                        r.lora ? 0 : -1);
        if (r.rows) token_rows(be, out.y, stride, rows + (size_t)i * dim, r.rows, dim, r.n_rows);
    }
}
