/* logits.c -- be_logits(): the last norm, the output layer with adapters' own ones, and what is
 * done with logits before they are sampled. */
#include "engine/cuda/cuda.h"

void cuda_logits_bend(backend *be, float *logits, int n_rows, int stride, float scale, float cap)
{
    cuda_state *cu = cuda_of(be);
    (void)logits;
    (void)n_rows;
    cu_blend_args a = {.x = cu->logits.device,
                       .a = scale,
                       .cap = cap,
                       .n = (size_t)cu->step.shape.n_logit * (size_t)stride};
    (void)CU(be, cu_blend(cu->stream, &a));
}

void cuda_logits_bias(backend *be, float *logits, int n_rows, int stride, const float *bias, int n)
{
    cuda_state *cu = cuda_of(be);
    (void)logits;
    (void)n_rows;
    cu_bias_args a = {.x = cu->logits.device,
                      .bias = bias,
                      .n_rows = cu->step.shape.n_logit,
                      .stride = stride,
                      .n = n};
    (void)CU(be, cu_add_bias(cu->stream, &a));
}

/* Rows of logits with one output layer: by the plan of the base's where it has that shape. */
static bool multiply_head(backend *be, const weight *base, const weight *w, const int32_t *place,
                          const void *x, int from, int n)
{
    cuda_state *cu = cuda_of(be);
    int stride = cu->step.stride;
    float *y = cu->logits.device + (size_t)from * (size_t)stride;
    x = (const char *)x +
        (size_t)from * (size_t)cuda_k(base->type, base->cols) * dtype_bytes(base->type);
    if (w->type != base->type) {
        backend_fail(be, ERR_UNSUPPORTED, "an adapter's lm_head is of another type");
        return false;
    }
    if (!place && (w == base || (w->rows == base->rows && !cuda_by_codes(base))))
        return cuda_multiply(be, w, w->rows, x, y, n, (blas_sum){.stride = stride});
    err e;
    err_code rc = blas_unplanned(&cu->blas, w->type, w->rows, cuda_k(w->type, w->cols),
                                 ((const cuda_weight *)w)->p, NULL, x, y, n,
                                 (blas_sum){.stride = stride}, place, cu->stream, &e);
    if (rc) backend_fail(be, rc, "%s", e.msg);
    return rc == ERR_NONE;
}

/* The rows of each output layer are a product of their own. */
static bool multiply_heads(backend *be, const weight *base, const void *x, int n)
{
    const cuda_state *cu = cuda_of(be);
    const lora_head **head = cu->step.head;
    bool shared = cu->part.n > 1;
    if (shared && (!cuda_multiply_shared(be, base, x, n) || cu->part.i > 0)) return false;
    for (int i = 0, to; i < n; i = to) {
        const weight *w = head[i] ? head[i]->w : NULL;
        for (to = i + 1; to < n && (head[to] ? head[to]->w : NULL) == w;) to++;
        if (!w && shared) continue;
        w = w ? cuda_weight_here(cu, w) : base;
        if (!multiply_head(be, base, w, NULL, x, i, to - i)) return false;
    }
    return true;
}

/* Over that, in their places, tokens with rows of their own. */
static void multiply_tokens(backend *be, const weight *base, const void *x, int n)
{
    const lora_head **head = cuda_of(be)->step.head;
    bool ok = true;
    for (int i = 0, to; ok && i < n; i = to) {
        for (to = i + 1; to < n && head[to] == head[i];) to++;
        const lora_rows *own = head[i] && head[i]->rows.n > 0 ? &head[i]->rows : NULL;
        const weight *w = own ? cuda_weight_here(cuda_of(be), own->w) : NULL;
        if (own) ok = multiply_head(be, base, w, own->id_there, x, i, to - i);
    }
}

/* The wanted rows, which have had their norm. */
static bool pick_rows(backend *be, const float *x, int dim, bool half)
{
    cuda_state *cu = cuda_of(be);
    cu_pick_args a = {.out = half ? NULL : cu->t,
                      .out16 = half ? cu->x16 : NULL,
                      .x = x,
                      .index = cu->step.logit_row,
                      .n_rows = cu->step.shape.n_logit,
                      .dim = dim};
    return CU(be, cu_pick_rows(cu->stream, &a));
}

/* The wanted rows, one launch for each run of rows with the same norm. */
static bool last_norm(backend *be, const float *x, const float *base, float eps, int dim, bool half,
                      const step *s)
{
    cuda_state *cu = cuda_of(be);
    for (int i = 0, g = 0; i < s->n_logit;) {
        const float *w = NULL;
        int from = i;
        for (; i < s->n_logit; i++) {
            while (g < s->n_seg && s->logit_row[i] >= s->seg[g].row0 + s->seg[g].n_rows) g++;
            const float *one = lora_last_norm(g < s->n_seg ? s->seg[g].lora : NULL, NULL);
            one = one ? cuda_here(cu, one) : base;
            if (i > from && one != w) break;
            w = one;
        }
        size_t before = (size_t)from * (size_t)dim;
        cu_rms_norm_args a = {.out = half ? NULL : cu->t + before,
                              .out16 = half ? (uint16_t *)cu->x16 + before : NULL,
                              .x = (float *)(uintptr_t)x,
                              .weight = w,
                              .index = cu->step.logit_row + from,
                              .eps = eps,
                              .n_rows = (i < s->n_logit ? i : cu->step.shape.n_logit) - from,
                              .dim = dim,
                              .early = cuda_early(cu)};
        if (!CU(be, cu_rms_norm(cu->stream, &a))) return false;
    }
    return true;
}

void cuda_logits_run(backend *be, float *logits, const float *x, const float *norm_weight,
                     float eps, int dim, const weight *head, const step *s)
{
    cuda_state *cu = cuda_of(be);
    if (!cuda_step_enter(be, s)) return;
    int n = cu->step.shape.n_logit;
    size_t bytes = (size_t)n * (size_t)cu->step.stride * sizeof(float);
    if (logits != cu->logits.host || bytes > cu->logits.bytes) {
        backend_fail(be, ERR_LIMIT, "the logits are not in memory of be_host_alloc()");
        return;
    }
    bool half = head->type == DT_BF16 && dim % 8 == 0;
    cu->x16_of = NULL;
    bool ok = norm_weight ? last_norm(be, x, norm_weight, eps, dim, half, s)
                          : pick_rows(be, x, dim, half);
    if (!ok) return;
    const void *in = half ? cu->x16 : cuda_rounded(be, cu->t, head->type, n, dim);
    float *y = cu->logits.device;
    if (!in) return;
    bool adapted = cu->step.heads && cu->part.i == 0; /* the first device has all columns */
    sgmv_args g = cuda_lora_args(cu, &cu->step.logits, head->type, in, dim);
    g.n_out = 1;
    g.out[0] = (sgmv_out){.in = y,
                          .out = y,
                          .in_stride = cu->step.stride,
                          .out_stride = cu->step.stride,
                          .d_out = cu->step.head_cols,
                          .mat = cuda_head_mat(cu)};
    cuda_begin_shrink(be, &g, adapted);
    bool made = multiply_heads(be, head, in, n);
    if (adapted) cuda_finish(be, &g, true, cu->step.logits.all_rows);
    if (!made) return;
    multiply_tokens(be, head, in, n);
}
