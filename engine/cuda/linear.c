/* linear.c -- be_linear(): groups of matrices, their products, and LoRA beside them.
 *
 * The shrink of LoRA needs x alone, so it runs on a stream of its own beside the product; expand
 * waits for both.  Recorded, these are two branches of the graph.
 *
 * A product is cuBLAS's, in f32, into the result's own rows or into `t`; bias, LoRA, DoRA's gain
 * and the residual stream come after it, in one launch (sgmv.h): out = gain * (product + lora) +
 * bias + residual, in that order for every row, whoever stands beside it.  Matrices that lie side
 * by side (q, k, v; gate, up) are one product into `t`, and what asked for the parts is told where
 * they are (struct cuda_alias): nothing is copied.
 *
 * Operations before a product write its input already rounded (x16); only
 * F16 needs a launch for that.
 */
#include <string.h>

#include "engine/cuda/cuda.h"

/* ---- groups ---------------------------------------------------------------------------------- */

/* Rows of all of them if they lie side by side; 0: they do not. */
static int side_by_side(const weight *const *w, int n)
{
    const char *end = NULL;
    int rows = 0;
    for (int i = 0; i < n; i++) {
        const cuda_weight *one = (const cuda_weight *)w[i];
        const char *p = one->p;
        if ((end && p != end) || w[i]->cols != w[0]->cols || w[i]->type != w[0]->type) return 0;
        if (memcmp(&one->codes, &((const cuda_weight *)w[0])->codes, sizeof(one->codes)) != 0)
            return 0;
        bool panels = !cuda_by_codes(w[i]) || i + 1 == n || w[i]->rows % GEMM_PANEL == 0;
        end = panels ? p + w[i]->bytes : NULL;
        if (!panels) return 0;
        rows += w[i]->rows;
    }
    return rows;
}

/* Zeroed: padded rows, which belong to nobody, are computed on what lies there. */
static err_code grow(cuda_state *cu, void **p, size_t bytes, err *e)
{
    cuda_give(cu, *p);
    *p = cuda_take(cu, bytes, false);
    return *p ? cuda_clear(cu, *p, bytes, e)
              : err_set(e, ERR_NOMEM, "not enough device memory for steps of %d rows",
                        cu->max_rows);
}

/* Scratch for products of these widths. */
static err_code grow_scratch(cuda_state *cu, int rows, int cols, dtype type, err *e)
{
    err_code rc = ERR_NONE;
    size_t n = (size_t)cu->max_rows;
    if (cols > cu->x_cols) {
        rc = grow(cu, &cu->x16, n * (size_t)round_up(cols, 8) * sizeof(uint16_t), e);
        cu->x_cols = cols;
    }
    if (!rc && rows > cu->t_cols) {
        rc = grow(cu, (void **)&cu->t, n * (size_t)rows * sizeof(float), e);
        cu->t_cols = rows;
    }
    size_t v = n * SGMV_OUT_MAX * LORA_RANK_MAX * (size_t)sgmv_planes(cols, type);
    if (!rc && v > cu->v_floats) {
        rc = grow(cu, (void **)&cu->v, v * sizeof(float), e);
        cu->v_floats = v;
    }
    return rc;
}

/* Of the output layer on this device. */
static int head_rows(const cuda_state *cu)
{
    return cu->n_vocab / cu->part.n;
}

static err_code plan_for(backend *be, const cuda_weight *w, int rows, err *e)
{
    cuda_state *cu = cuda_of(be);
    const blas_plan *plan;
    dtype type = w->head.type;
    int cols = cuda_k(type, w->head.cols);
    bool codes = cuda_by_codes(&w->head);
    if (blas_plan_find(&cu->blas, type, rows, cols, &w->codes)) return ERR_NONE;
    if (codes && !cu->blas.wide) return ERR_NONE; /* they have one law, and one kernel for it */
    if (cu->part.n > 1 && (type == DT_F32 || cols % 8 != 0)) return ERR_NONE; /* so have these */
    /* The head is multiplied by as many rows as there are logits. */
    bool head = rows == head_rows(cu) && cu->logits.bytes > 0;
    size_t most =
        head ? cu->logits.bytes / sizeof(float) / (size_t)cu->n_vocab : (size_t)cu->max_rows;
    if (codes && most <= GEMM_SMALL_ROWS) return ERR_NONE;
    size_t bytes = blas_trial_bytes((int)most, type, rows, cols);
    void *trial = cuda_take(cu, bytes, false);
    if (!trial) {
        return err_set(e, ERR_NOMEM, "not enough device memory to try products (%zu bytes)", bytes);
    }
    err_code rc = blas_plan_get(&cu->blas, &plan, type, rows, cols, &w->codes, (int)most, w->p,
                                trial, cu->stream, e);
    cuda_give(cu, trial);
    if (!rc && !head && !codes && cu->part.n == 1) rc = cuda_inside_try(be, &w->head, rows, e);
    return rc;
}

err_code cuda_prepare(backend *be, const weight *const *w, int n, err *e)
{
    cuda_state *cu = cuda_of(be);
    const weight *first = w[0];
    if (!cu->prepared) cu->head_type = first->type; /* the head comes before the layers */
    cu->prepared = true;
    cu->arith = first->type;
    if (first->cols % 8 != 0 && (first->type == DT_F32 || cuda_by_codes(first))) {
        return err_set(
            e, ERR_UNSUPPORTED,
            "layers of %d values in F32 or by codes: the CUDA backend requires multiples of 8",
            first->cols);
    }
    cuda_graphs_drop(cu); /* scratch may move */
    cuda_await_uploads(be);
    int fused = n > 1 ? side_by_side(w, n) : 0, widest = fused;
    err_code rc = ERR_NONE;
    if (fused) rc = plan_for(be, (const cuda_weight *)first, fused, e);
    for (int i = 0; !rc && i < n; i++) {
        if (!fused) rc = plan_for(be, (const cuda_weight *)w[i], w[i]->rows, e);
        if (w[i]->rows > widest && w[i]->rows != head_rows(cu)) widest = w[i]->rows;
    }
    if (!rc && fused && n == 2 && first->type == DT_BF16 && first->rows > cu->gate16_cols) {
        bool many = cu->blas.wide && cu->max_rows > GEMM_SMALL_ROWS;
        size_t most = (size_t)(many ? cu->max_rows : GEMM_SMALL_ROWS);
        size_t bytes = most * (size_t)first->rows * sizeof(uint16_t);
        rc = grow(cu, &cu->gate16, bytes, e);
        cu->gate16_cols = first->rows;
    }
    int t_cols = widest > first->cols ? widest : first->cols;
    return rc ? rc : grow_scratch(cu, t_cols, first->cols, first->type, e);
}

cuda_alias cuda_where(const cuda_state *cu, const float *p, int cols)
{
    for (int i = 0; i < cu->n_alias; i++) {
        if (cu->alias[i].asked == p) return cu->alias[i];
    }
    return (cuda_alias){.asked = p, .at = (float *)(uintptr_t)p, .stride = cols};
}

/* ---- products -------------------------------------------------------------------------------- */

/* x as cuBLAS and the LoRA kernels read it. */
const void *cuda_rounded(backend *be, const float *x, dtype type, int n_rows, int cols)
{
    cuda_state *cu = cuda_of(be);
    if (cu->part.whole_of == x) return cu->part.whole;
    if (type == DT_F32) return x;
    if (type == DT_BF16 && cu->gate16_of == x) return cu->gate16;
    cu->gate16_of = NULL; /* whoever reads another x has left it behind */
    if (type == DT_BF16 && cu->x16_of == x) return cu->x16;
    cu->x16_of = NULL;
    bool ok =
        CU(be, cu_round_rows(cu->stream, cu->x16, cuda_k(type, cols), type, x, cols, n_rows, cols));
    return ok ? cu->x16 : NULL;
}

bool cuda_multiply(backend *be, const weight *w, int rows_of_w, const void *x, float *y, int n_rows,
                   blas_sum more)
{
    cuda_state *cu = cuda_of(be);
    err e;
    int k = cuda_k(w->type, w->cols);
    const cuda_weight *c = (const cuda_weight *)w;
    const blas_plan *p = blas_plan_find(&cu->blas, w->type, rows_of_w, k, &c->codes);
    more.early = cuda_early(cu);
    err_code rc = p ? blas_product(&cu->blas, p, c->p, x, y, n_rows, more, cu->stream, &e)
                    : blas_unplanned(&cu->blas, w->type, rows_of_w, k, c->p, &c->codes, x, y,
                                     n_rows, more, NULL, cu->stream, &e);
    if (rc == ERR_NONE) return true;
    if (cu->graphs.recording) {
        cuda_graph_spoil(cu, "", e.msg);
        return false;
    }
    /* The device's own word, where it is lost; else the step alone has failed. */
    cudaError_t now = cudaStreamQuery(cu->stream);
    if (now == cudaErrorNotReady || CU(be, now)) backend_fail(be, e.code, "%s", e.msg);
    return false;
}

sgmv_args cuda_lora_args(const cuda_state *cu, const cuda_lists *l, dtype type, const void *x,
                         int d_in)
{
    return (sgmv_args){.type = type,
                       .x = x,
                       .x_stride = cuda_k(type, d_in),
                       .d_in = d_in,
                       .v = cu->v,
                       .v_plane = l->v_floats,
                       .counts = l->counts,
                       .chunk = l->chunk,
                       .tile = l->tile,
                       .max_small = l->n_small,
                       .max_tile = l->n_tile,
                       .max_lora = l->n_lora,
                       .max_all = l->n_all,
                       .chunk_rows = l->chunk_rows,
                       .rank_max = l->rank_max,
                       .n_sm = cu->n_sm,
                       .early = cuda_early(cu)};
}

static bool shrinks(const sgmv_args *a, bool adapted)
{
    return adapted && a->max_lora > 0;
}

void cuda_begin_shrink(backend *be, const sgmv_args *a, bool adapted)
{
    cuda_state *cu = cuda_of(be);
    if (!shrinks(a, adapted)) return;
    if (!CU(be, cudaEventRecord(cu->forked, cu->stream)) ||
        !CU(be, cudaStreamWaitEvent(cu->side, cu->forked, 0)))
        return;
    (void)CU(be, cu_sgmv_shrink(cu->side, a));
    (void)CU(be, cudaEventRecord(cu->joined, cu->side)); /* also of a launch that failed */
}

/* Only the launches that have something to do. */
void cuda_finish(backend *be, sgmv_args *a, bool adapted, bool all_rows)
{
    cuda_state *cu = cuda_of(be);
    bool shrunk = shrinks(a, adapted);
    a->all_rows = all_rows;
    if (shrunk && !CU(be, cudaStreamWaitEvent(cu->stream, cu->joined, 0))) return;
    if (!adapted) a->max_small = a->max_tile = 0;
    if (all_rows || shrunk) (void)CU(be, cu_sgmv_expand(cu->stream, a));
}

void cuda_beside(backend *be, const weight *w, int rows_of_w, sgmv_args *lora, float *y,
                 uint16_t *gated)
{
    cuda_state *cu = cuda_of(be);
    cuda_begin_shrink(be, lora, true);
    (void)cuda_multiply(be, w, rows_of_w, lora->x, y, cu->step.shape.n_rows, (blas_sum){0});
    if (!gated)
        cuda_finish(be, lora, true, false);
    else if (CU(be, cudaStreamWaitEvent(cu->stream, cu->joined, 0)))
        (void)CU(be, cu_sgmv_expand_gated(cu->stream, lora, gated, false));
}

static bool is_adapted(const linear_out *o, int layer)
{
    return layer >= 0 && o->lora_proj >= 0;
}

/* What comes after the products of all outputs. */
typedef struct {
    bool adapted, residual, all_rows; /* all_rows: for those without an adapter, too */
} linear_rest;

static linear_rest rest_of(const cuda_state *cu, const linear_out *outs, int n_out, int layer)
{
    linear_rest r = {false, false, false};
    for (int i = 0; i < n_out; i++) {
        r.adapted |= is_adapted(&outs[i], layer);
        r.residual |= outs[i].accumulate;
        r.all_rows |= outs[i].accumulate || outs[i].bias;
    }
    r.all_rows |= r.adapted && cu->step.rows.all_rows;
    return r;
}

/* Where a product goes, and where its result:
 *
 *     outputs                    product    result
 *     side by side, none added   t, at once in `t`, where cuda_where() finds it
 *     added to the stream        t, alone   y, which is also the residual
 *     else                       y          y
 *
 * `fused`: rows of all matrices together, and `at` those before this one; 0: it is alone. */
static sgmv_out place_of(const cuda_state *cu, const linear_out *o, int layer, int fused, int at)
{
    int rows = o->w->rows, stride = o->stride ? o->stride : rows;
    sgmv_out out = {.in = o->y,
                    .out = o->y,
                    .bias = o->bias,
                    .in_stride = stride,
                    .out_stride = stride,
                    .res_stride = stride,
                    .d_out = rows,
                    .mat = is_adapted(o, layer) ? layer * PROJ_COUNT + o->lora_proj : 0};
    if (fused) {
        out.in = out.out = cu->t + at;
        out.in_stride = out.out_stride = fused;
    } else if (o->accumulate) {
        out.in = cu->t;
        out.in_stride = rows;
        out.res = o->y;
    }
    return out;
}

/* Whether what comes after the product, or the product itself, can be one launch with be_gate():
 * gate and up of an MLP, which nothing else reads, of BF16 models. */
static bool gate_and_up(const cuda_state *cu, const sgmv_args *a, const linear_out *outs, int n_out)
{
    return n_out == 2 && outs[0].lora_proj == PROJ_GATE && outs[1].lora_proj == PROJ_UP &&
           !cu->mlp.gate_apart && a->type == DT_BF16 && cu->arith == DT_BF16 &&
           outs[0].w->rows == outs[1].w->rows && outs[0].w->rows % 8 == 0;
}

/* Leaves gate and up to be_gate(); `rows` of both where the product is to be made, too. */
static void leave_to_gate(cuda_state *cu, const sgmv_args *a, const weight *w, int rows,
                          bool shrunk)
{
    cu->late = w;
    cu->late_rows = rows;
    cu->late_args = *a;
    cu->late_shrunk = shrunk;
    cu->late_inside = false;
}

/* Whether the product itself gates: that of many rows by wgmma, that of few in decode steps. */
static bool gates(const cuda_state *cu, const weight *w, int rows_of_w)
{
    int n_rows = cu->step.shape.n_rows;
    if (n_rows <= GEMM_SMALL_ROWS && cu->step.shape.kind == CUDA_EXACT) return false;
    const gemm_codes *codes = &((const cuda_weight *)w)->codes;
    const blas_plan *p = blas_plan_find(&cu->blas, w->type, rows_of_w, w->cols, codes);
    if (p) return blas_gates(&cu->blas, p, n_rows);
    return codes->form && n_rows <= GEMM_SMALL_ROWS && w->rows % GEMM_PANEL == 0;
}

/* Whether the product itself can add bias and residual. */
static bool adds(const cuda_state *cu, const weight *w, int rows_of_w)
{
    if (cuda_by_codes(w)) return true;
    const blas_plan *p =
        blas_plan_find(&cu->blas, w->type, rows_of_w, cuda_k(w->type, w->cols), NULL);
    return p && blas_adds(p, cu->step.shape.n_rows);
}

/* Makes all outputs by one product, for weights that lie in one piece. */
static void linear_fused(backend *be, sgmv_args *a, const linear_out *outs, int n_out, int layer,
                         int fused, linear_rest rest)
{
    cuda_state *cu = cuda_of(be);
    cu->n_alias = 0;
    for (int i = 0, at = 0; i < n_out; at += outs[i++].w->rows) {
        sgmv_out *out = &a->out[a->n_out++];
        *out = place_of(cu, &outs[i], layer, fused, at);
        cu->alias[cu->n_alias++] = (cuda_alias){outs[i].y, out->out, fused};
    }
    bool shrunk = shrinks(a, rest.adapted), gate = gate_and_up(cu, a, outs, n_out);
    if (gate && !shrunk && !rest.all_rows && gates(cu, outs[0].w, fused)) {
        leave_to_gate(cu, a, outs[0].w, fused, false);
        return;
    }
    if (shrunk && cuda_inside_takes(cu, outs[0].w, fused, a, gate)) {
        if (gate) {
            leave_to_gate(cu, a, outs[0].w, fused, false);
            cu->late_inside = true;
        } else {
            (void)cuda_inside_run(be, outs[0].w, fused, a, NULL, false);
        }
        return;
    }
    cuda_begin_shrink(be, a, rest.adapted);
    (void)cuda_multiply(be, outs[0].w, fused, a->x, cu->t, cu->step.shape.n_rows, (blas_sum){0});
    if (gate && cu->step.shape.kind != CUDA_EXACT && (shrunk || rest.all_rows))
        leave_to_gate(cu, a, outs[0].w, 0, shrunk);
    else
        cuda_finish(be, a, rest.adapted, rest.all_rows);
}

void cuda_forget(cuda_state *cu, const float *y)
{
    for (int i = 0; i < cu->n_alias; i++)
        if (cu->alias[i].asked == y) cu->alias[i] = cu->alias[--cu->n_alias];
}

/* A product each. */
static void linear_apart(backend *be, sgmv_args *a, const linear_out *outs, int n_out, int layer,
                         linear_rest rest)
{
    cuda_state *cu = cuda_of(be);
    bool lora = shrinks(a, rest.adapted) || (rest.adapted && cu->step.rows.all_rows);
    for (int i = 0; i < n_out; i++) {
        const linear_out *o = &outs[i];
        sgmv_out out = place_of(cu, o, layer, 0, 0);
        cuda_forget(cu, o->y);
        float *made = o->accumulate ? cu->t : o->y;
        if (!lora && (o->accumulate || o->bias) && adds(cu, o->w, o->w->rows)) {
            const blas_sum more = {
                .bias = o->bias, .res = o->accumulate ? o->y : NULL, .stride = o->stride};
            if (!cuda_multiply(be, o->w, o->w->rows, a->x, o->y, cu->step.shape.n_rows, more))
                return;
            if (cu->x16_of == o->y) cu->x16_of = NULL;
            continue; /* nothing comes after it */
        }
        a->out[a->n_out++] = out;
        bool alone = a->n_out == 1 && (o->accumulate || n_out == 1);
        if (alone && shrinks(a, rest.adapted) &&
            cuda_inside_takes(cu, o->w, o->w->rows, a, false)) {
            if (!cuda_inside_run(be, o->w, o->w->rows, a, NULL, false)) return;
            if (cu->x16_of == o->y) cu->x16_of = NULL;
            a->n_out = 0;
            continue;
        }
        if (o->accumulate || i + 1 == n_out) cuda_begin_shrink(be, a, rest.adapted);
        const blas_sum apart = {.stride = o->accumulate ? 0 : o->stride};
        (void)cuda_multiply(be, o->w, o->w->rows, a->x, made, cu->step.shape.n_rows, apart);
        if (!o->accumulate) continue;
        /* `t` holds one product: what is added to the stream is added before the next one. */
        if (cu->x16_of == o->y) cu->x16_of = NULL;
        cuda_finish(be, a, rest.adapted, rest.all_rows);
        a->n_out = 0;
    }
    if (a->n_out > 0) cuda_finish(be, a, rest.adapted, rest.all_rows);
}

void cuda_linear(backend *be, const float *x, const linear_out *outs, int n_out, const step *s,
                 int layer)
{
    cuda_state *cu = cuda_of(be);
    const weight *w[LINEAR_OUT_MAX] = {NULL};
    cu->late = NULL; /* of a step that failed */
    if (!cuda_step_enter(be, s)) return;
    for (int i = 0; i < n_out; i++) w[i] = outs[i].w;
    const void *in = cuda_rounded(be, x, w[0]->type, cu->step.shape.n_rows, w[0]->cols);
    if (!in) return;
    sgmv_args a = cuda_lora_args(cu, &cu->step.rows, w[0]->type, in, w[0]->cols);
    linear_rest rest = rest_of(cu, outs, n_out, layer);
    int fused = n_out > 1 && !rest.residual ? side_by_side(w, n_out) : 0;
    int k = cuda_k(w[0]->type, w[0]->cols);
    bool planned = fused && blas_plan_find(&cu->blas, w[0]->type, fused, k, NULL);
    if (fused && !planned && !cuda_by_codes(w[0])) fused = 0; /* routers */
    if (fused)
        linear_fused(be, &a, outs, n_out, layer, fused, rest);
    else
        linear_apart(be, &a, outs, n_out, layer, rest);
}

void cuda_finish_gated(backend *be, const float *gate, bool gelu)
{
    cuda_state *cu = cuda_of(be);
    sgmv_args *a = &cu->late_args;
    if (cu->late_rows > 0) { /* its x lies in x16 */
        const blas_sum more = {.gated = cu->gate16, .gelu = gelu};
        if (cu->late_inside)
            (void)cuda_inside_run(be, cu->late, cu->late_rows, a, cu->gate16, gelu);
        else
            (void)cuda_multiply(be, cu->late, cu->late_rows, a->x, cu->t, cu->step.shape.n_rows,
                                more);
        cu->x16_of = NULL;
        cu->gate16_of = gate;
    } else {
        a->all_rows = true;
        if (!cu->late_shrunk || CU(be, cudaStreamWaitEvent(cu->stream, cu->joined, 0)))
            (void)CU(be, cu_sgmv_expand_gated(cu->stream, a, cu->x16, gelu));
        cu->x16_of = gate;
    }
    cu->late = NULL;
}
