/* rows.c -- operations on rows outside the products: embeddings, norms, activations, sums.
 *
 * A row that only a product reads is written rounded (cuda_state.x16), as that product needs it.
 */
#include <assert.h>

#include "engine/cuda/cuda.h"

void cuda_embed(backend *be, float *out, const void *table, dtype type, int dim, const step *s)
{
    cuda_state *cu = cuda_of(be);
    if (!cuda_step_enter(be, s)) return;
    cu_embed_args a = {.out = out,
                       .table = table,
                       .type = (int)type,
                       .dim = dim,
                       .n_rows = cu->step.shape.n_rows,
                       .n_vocab = cu->n_vocab,
                       .token = cu->step.token,
                       .alt = cu->step.alt};
    cu->x16_of = NULL;
    if (!CU(be, cu_embed(cu->stream, &a)) || !cu->step.embeds) return;
    sgmv_args g = cuda_lora_args(cu, &cu->step.rows, cu->arith, NULL, 1);
    g.n_out = 1;
    g.all_rows = true; /* a gain without a rank too */
    g.out[0] = (sgmv_out){.in = out,
                          .out = out,
                          .in_stride = dim,
                          .out_stride = dim,
                          .d_out = dim,
                          .mat = cuda_embed_mat(cu)};
    if (g.max_lora > 0 && !CU(be, cu_sgmv_gather(cu->stream, &g, cu->step.token))) return;
    (void)CU(be, cu_sgmv_expand(cu->stream, &g));
}

void cuda_positions(backend *be, float *out, const float *table, int n, int dim, const step *s)
{
    cuda_state *cu = cuda_of(be);
    if (!cuda_step_enter(be, s)) return;
    cu_embed_args a = {.out = out,
                       .table = table,
                       .type = DT_F32,
                       .dim = dim,
                       .n_rows = cu->step.shape.n_rows,
                       .n_vocab = n,
                       .token = cu->step.pos};
    if (cu->x16_of == out) cu->x16_of = NULL;
    (void)CU(be, cu_embed(cu->stream, &a));
}

/* What reads `out` is a product: in BF16 models only the rounded values are written.  In place, it
 * is what is added to the stream. */
void cuda_rms_norm(backend *be, float *out, const float *x, const float *gain, float eps, int row0,
                   int n_rows, int dim)
{
    cuda_state *cu = cuda_of(be);
    bool half = cu->arith == DT_BF16 && dim % 8 == 0;
    size_t before = (size_t)row0 * (size_t)dim;
    const cuda_alias at = cuda_where(cu, x, dim);
    if (at.at != x) { /* a part of a fused product */
        assert(out == x && row0 == 0);
        cuda_forget(cu, x);
        cuda_norm_part(be, out, &at, gain, eps, n_rows, dim);
        return;
    }
    bool only_half = half && out != x && cu->experts.n == 0; /* routers read f32 */
    cu_rms_norm_args a = {.out = only_half ? NULL : out + before,
                          .out16 = half ? (uint16_t *)cu->x16 + before : NULL,
                          .x = (float *)(uintptr_t)x + before,
                          .weight = gain,
                          .eps = eps,
                          .n_rows = cuda_step_rows(cu, n_rows),
                          .dim = dim,
                          .early = cu->step.of && cuda_early(cu)};
    cu->x16_of = half ? out : NULL;
    (void)CU(be, cu_rms_norm(cu->stream, &a));
}

void cuda_norm_part(backend *be, float *out, const cuda_alias *x, const float *gain, float eps,
                    int n_rows, int dim)
{
    cuda_state *cu = cuda_of(be);
    bool half = cu->arith == DT_BF16 && dim % 8 == 0;
    const cu_wide_norm_args a = {.out = out,
                                 .out16 = half ? cu->x16 : NULL,
                                 .x = x->at,
                                 .weight = gain,
                                 .eps = eps,
                                 .n_rows = cuda_step_rows(cu, n_rows),
                                 .dim = dim,
                                 .stride = x->stride};
    cu->x16_of = half ? out : NULL;
    (void)CU(be, cu_wide_norm(cu->stream, &a));
}

/* Its rows are read by products and, before the output layer, as they are. */
void cuda_layer_norm(backend *be, float *out, const float *x, const float *gain, const float *bias,
                     float eps, int row0, int n_rows, int dim)
{
    cuda_state *cu = cuda_of(be);
    bool half = cu->arith == DT_BF16 && dim % 8 == 0;
    size_t before = (size_t)row0 * (size_t)dim;
    cu_layer_norm_args a = {.out = out + before,
                            .out16 = half ? (uint16_t *)cu->x16 + before : NULL,
                            .x = x + before,
                            .weight = gain,
                            .bias = bias,
                            .eps = eps,
                            .n_rows = cuda_step_rows(cu, n_rows),
                            .dim = dim};
    cu->x16_of = half ? out : NULL;
    (void)CU(be, cu_layer_norm(cu->stream, &a));
}

/* xielu: of ACT_XIELU, else NULL. */
static void activate(backend *be, activation act, float *gate, const float *up, size_t n,
                     const xielu_weights *xielu)
{
    cuda_state *cu = cuda_of(be);
    int cols = (int)(n / (size_t)(cu->step.of ? cu->step.of->n_rows : 1));
    bool half = cu->arith == DT_BF16 && cols % 8 == 0;
    assert(act != ACT_SWIGLU_CLAMPED); /* of experts alone */
    cuda_alias ag = cuda_where(cu, gate, cols);
    cu->gate16_of = NULL;
    if (cu->late) {
        assert(up && cu->late_args.out[0].in == ag.at &&
               cu->late_args.out[1].in == cuda_where(cu, up, cols).at);
        cuda_finish_gated(be, gate, act == ACT_GELU_TANH);
        return;
    }
    cu_act_args a = {.act = act};
    a.rows = (cu_silu_args){.gate = ag.at,
                            .up = up ? cuda_where(cu, up, cols).at : NULL,
                            .in_stride = ag.stride,
                            .out = half ? NULL : gate,
                            .out16 = half ? cu->x16 : NULL,
                            .n_rows = cu->step.of ? cu->step.shape.n_rows : 1,
                            .cols = cols,
                            .gelu = act == ACT_GELU_TANH};
    if (xielu) a.xielu = *xielu;
    cu->x16_of = half ? gate : NULL;
    (void)CU(be, act > ACT_SWIGLU_CLAMPED ? cu_act_mul(cu->stream, &a)
                                          : cu_silu_mul(cu->stream, &a.rows));
}

void cuda_gate(backend *be, activation act, float *gate, const float *up, size_t n)
{
    activate(be, act, gate, up, n, NULL);
}

void cuda_xielu(backend *be, float *x, const xielu_weights *w, size_t n)
{
    activate(be, ACT_XIELU, x, NULL, n, w);
}

/* n values of the step's rows; those of a padded step too, for a record's next replay. */
static void blend(backend *be, cu_blend_args a, size_t n)
{
    cuda_state *cu = cuda_of(be);
    size_t rows = cu->step.of ? (size_t)cu->step.of->n_rows : 1;
    a.n = cu->step.of ? n / rows * (size_t)cu->step.shape.n_rows : n;
    if (cu->x16_of == a.x) cu->x16_of = NULL;
    (void)CU(be, cu_blend(cu->stream, &a));
}

void cuda_add(backend *be, float *x, const float *y, float scale, size_t n)
{
    blend(be, (cu_blend_args){.x = x, .y = y, .a = 1, .b = scale}, n);
}

void cuda_scale(backend *be, float *x, float scale, size_t n)
{
    blend(be, (cu_blend_args){.x = x, .a = scale}, n);
}
