/* linear.c -- matrices on the device and what is done with rows: products,
 * norms, the input table, logits.
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
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/pool.h"
#include "engine/cuda/cuda.h"

/* ---- weights ------------------------------------------------------------------------------- */

/* `src` NULL: what the memory holds is somebody else's to write. */
static err_code weight_place(backend *be, weight **out, const void *src, size_t bytes, dtype type,
                             int rows, int cols, bool low, err *e)
{
    cuda_state *cu = cuda_of(be);
    cuda_weight *w = calloc(1, sizeof(*w));
    if (!w) return err_set(e, ERR_NOMEM, "no memory for a matrix");
    w->head = (weight){.rows = rows, .cols = cols, .type = type, .bytes = bytes};
    w->p = cuda_take(cu, bytes, low);
    if (!w->p) {
        free(w);
        return err_set(e, ERR_NOMEM,
                       "not enough device memory for a matrix of %zu bytes: %zu of %zu are in use "
                       "(device-memory-fraction)",
                       bytes, cu->mem.used, cu->mem.bytes);
    }
    err_code rc = src ? cuda_upload(be, w->p, src, bytes) : ERR_NONE;
    if (rc) {
        cuda_weight_destroy(be, &w->head);
        return err_set(e, rc, "a matrix of %zu bytes can't be copied to the device", bytes);
    }
    *out = &w->head;
    return ERR_NONE;
}

/* Rows as products read them, in memory that the caller frees. */
static char *pad_rows(const void *src, dtype type, int rows, int cols)
{
    size_t size = dtype_bytes(type), row = (size_t)cols * size;
    size_t wide = (size_t)cuda_k(type, cols) * size;
    char *padded = calloc((size_t)rows, wide);
    for (int i = 0; padded && i < rows; i++)
        memcpy(padded + (size_t)i * wide, (const char *)src + (size_t)i * row, row);
    return padded;
}

static err_code weight_make(backend *be, weight **out, const void *src, dtype type, int rows,
                            int cols, bool low, err *e)
{
    size_t size = dtype_bytes(type), row = (size_t)cols * size;
    size_t wide = (size_t)cuda_k(type, cols) * size;
    if (wide == row || !src)
        return weight_place(be, out, src, (size_t)rows * wide, type, rows, cols, low, e);
    char *padded = pad_rows(src, type, rows, cols);
    if (!padded) return err_set(e, ERR_NOMEM, "no memory for a matrix");
    err_code rc = weight_place(be, out, padded, (size_t)rows * wide, type, rows, cols, low, e);
    free(padded);
    return rc;
}

static bool by_codes(const weight *w)
{
    return ((const cuda_weight *)w)->codes.form != GEMM_PLAIN;
}

static void on_pool(void *threads, void (*fn)(void *arg, int i), void *arg, int n)
{
    pool_each(threads, fn, arg, n);
}

/* Values as products by codes would have them, for scales that codes are not kept with. */
static err_code plain_of_codes(backend *be, weight **out, const weight_source *src, err *e)
{
    size_t cols = (size_t)src->cols;
    uint16_t *values = malloc((size_t)src->rows * cols * sizeof(*values));
    void *room = malloc(weight_row_bytes(src));
    err_code rc = values && room ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for a matrix");
    for (int i = 0; !rc && i < src->rows; i++) {
        weight_row row = weight_row_place(src, room);
        src->read_row(src, i, &row);
        for (int k = 0; k < src->cols; k++)
            values[(size_t)i * cols + (size_t)k] = bf16_from_f32(weight_row_value(src, &row, k));
    }
    log_info("engine", "a quantised matrix of %d x %d becomes plain: its scales fit no kernel",
             src->rows, src->cols);
    if (!rc) rc = weight_make(be, out, values, DT_BF16, src->rows, src->cols, true, e);
    free(room);
    free(values);
    return rc;
}

static err_code codes_create(backend *be, weight **out, const weight_source *src, err *e)
{
    cuda_state *cu = cuda_of(be);
    assert(src->type == DT_BF16 && codes_takes(src));
    size_t bytes = codes_bytes(src);
    gemm_codes codes;
    bool fits = false;
    void *packed = malloc(bytes);
    err_code rc = packed ? codes_pack(src, on_pool, cu->pool, packed, &codes, &fits) : ERR_NOMEM;
    if (rc) {
        rc = err_set(e, rc, "%s",
                     rc == ERR_NOMEM
                         ? "no memory to pack a matrix"
                         : "a quantised matrix has values or scales that are not numbers");
    } else if (!fits) {
        rc = plain_of_codes(be, out, src, e);
    } else {
        rc = weight_place(be, out, packed, bytes, DT_BF16, src->rows, src->cols, true, e);
        if (!rc) ((cuda_weight *)*out)->codes = codes;
    }
    free(packed);
    return rc;
}

err_code cuda_codes_read(backend *be, const cuda_weight *w, int row0, int n, float *out, err *e)
{
    int panels = (n + GEMM_PANEL - 1) / GEMM_PANEL, cols = w->head.cols;
    size_t each = w->codes.panel_bytes;
    char *raw = malloc((size_t)panels * each);
    if (!raw) return err_set(e, ERR_NOMEM, "no memory to read a matrix");
    assert(row0 % GEMM_PANEL == 0);
    err_code rc = cuda_download(be, raw, (char *)w->p + (size_t)(row0 / GEMM_PANEL) * each,
                                (size_t)panels * each);
    for (int i = 0; !rc && i < n; i++)
        codes_row(&w->codes, raw + (size_t)(i / GEMM_PANEL) * each, i % GEMM_PANEL, cols,
                  out + (size_t)i * (size_t)cols);
    free(raw);
    return rc ? err_set(e, rc, "the base's weight cannot be read") : ERR_NONE;
}

err_code cuda_weight_create(backend *be, weight **out, const weight_source *src, err *e)
{
    if (weight_source_quantised(src)) return codes_create(be, out, src, e);
    return weight_make(be, out, src->data, src->type, src->rows, src->cols, true, e);
}

err_code cuda_lora_weight_reserve(backend *be, weight **out, int rows, int cols, err *e)
{
    return weight_make(be, out, NULL, cuda_of(be)->head_type, rows, cols, false, e);
}

err_code cuda_lora_weight_fill(backend *be, weight *w, const void *src, dtype type, err *e)
{
    void *as = NULL, *padded = NULL;
    err_code rc = ERR_NONE;
    if (type != w->type)
        rc = cuda_convert(&as, w->type, src, type, (size_t)w->rows * (size_t)w->cols, e);
    if (rc) return rc;
    const void *values = as ? as : src;
    if (w->bytes != (size_t)w->rows * (size_t)w->cols * dtype_bytes(w->type))
        values = padded = pad_rows(values, w->type, w->rows, w->cols);
    if (!values)
        rc = err_set(e, ERR_NOMEM, "no memory for a matrix");
    else if (cuda_upload(be, ((cuda_weight *)w)->p, values, w->bytes))
        rc =
            err_set(e, ERR_DEVICE, "a matrix of %zu bytes can't be copied to the device", w->bytes);
    free(padded);
    free(as);
    return rc;
}

/* An adapter's own output layer, or rows of it, in the type of the base's. */
err_code cuda_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                                 int cols, err *e)
{
    err_code rc = cuda_lora_weight_reserve(be, out, rows, cols, e);
    if (!rc && (rc = cuda_lora_weight_fill(be, *out, src, type, e))) {
        cuda_weight_destroy(be, *out);
        *out = NULL;
    }
    return rc;
}

void cuda_weight_destroy(backend *be, weight *w)
{
    cuda_give(cuda_of(be), ((cuda_weight *)w)->p);
    free(w);
}

err_code cuda_table_create(backend *be, const void **out, const void *host, dtype type, int n_vocab,
                           int dim, const weight *same, err *e)
{
    cuda_state *cu = cuda_of(be);
    size_t bytes = (size_t)n_vocab * (size_t)dim * dtype_bytes(type);
    cu->n_vocab = n_vocab;
    cu->dim = dim;
    if (same && !by_codes(same) && same->type == type && same->rows == n_vocab &&
        same->cols == dim && cuda_k(type, dim) == dim) {
        *out = ((const cuda_weight *)same)->p;
        cu->shared_table = *out;
        return ERR_NONE;
    }
    void *p = cuda_take(cu, bytes, false);
    if (!p) return err_set(e, ERR_NOMEM, "not enough device memory for %zu bytes", bytes);
    err_code rc = host ? cuda_upload(be, p, host, bytes) : ERR_NONE;
    if (rc) {
        cuda_give(cu, p);
        return err_set(e, rc, "the input table can't be copied to the device");
    }
    *out = p;
    return ERR_NONE;
}

void cuda_table_destroy(backend *be, const void *table)
{
    cuda_state *cu = cuda_of(be);
    if (table != cu->shared_table) cuda_give(cu, (void *)(uintptr_t)table);
}

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
        bool panels = !by_codes(w[i]) || i + 1 == n || w[i]->rows % GEMM_PANEL == 0;
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
    bool codes = by_codes(&w->head);
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
    if (first->cols % 8 != 0 && (first->type == DT_F32 || by_codes(first))) {
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
    size_t whole = (size_t)cu->max_rows * (size_t)cuda_k(first->type, first->cols);
    whole *= dtype_bytes(first->type);
    if (!rc && cu->part.n > 1 && whole > cu->part.whole_bytes) {
        rc = grow(cu, &cu->part.whole, whole, e);
        cu->part.whole_bytes = whole;
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

static bool multiply(backend *be, const weight *w, int rows_of_w, const void *x, float *y,
                     int n_rows, blas_sum more)
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

/* What the LoRA kernels have in common for the rows of a step. */
static sgmv_args lora_args(const cuda_state *cu, const cuda_lists *l, dtype type, const void *x,
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

/* The shrink of all outputs, beside the product that is enqueued next; finish() waits for it. */
static void begin_shrink(backend *be, const sgmv_args *a, bool adapted)
{
    cuda_state *cu = cuda_of(be);
    if (!shrinks(a, adapted)) return;
    if (!CU(be, cudaEventRecord(cu->forked, cu->stream)) ||
        !CU(be, cudaStreamWaitEvent(cu->side, cu->forked, 0)))
        return;
    (void)CU(be, cu_sgmv_shrink(cu->side, a));
    (void)CU(be, cudaEventRecord(cu->joined, cu->side)); /* also of a launch that failed */
}

/* What comes after the product: only the launches that have something to do. */
static void finish(backend *be, sgmv_args *a, bool adapted, bool all_rows)
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
    begin_shrink(be, lora, true);
    (void)multiply(be, w, rows_of_w, lora->x, y, cu->step.shape.n_rows, (blas_sum){0});
    if (!gated)
        finish(be, lora, true, false);
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
           a->type == DT_BF16 && cu->arith == DT_BF16 && outs[0].w->rows == outs[1].w->rows &&
           outs[0].w->rows % 8 == 0;
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
    if (by_codes(w)) return true;
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
    begin_shrink(be, a, rest.adapted);
    (void)multiply(be, outs[0].w, fused, a->x, cu->t, cu->step.shape.n_rows, (blas_sum){0});
    if (gate && cu->step.shape.kind != CUDA_EXACT && (shrunk || rest.all_rows))
        leave_to_gate(cu, a, outs[0].w, 0, shrunk);
    else
        finish(be, a, rest.adapted, rest.all_rows);
}

/* A result is where it was asked for. */
static void forget_alias(cuda_state *cu, const float *y)
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
        forget_alias(cu, o->y);
        float *made = o->accumulate ? cu->t : o->y;
        if (!lora && (o->accumulate || o->bias) && adds(cu, o->w, o->w->rows)) {
            const blas_sum more = {
                .bias = o->bias, .res = o->accumulate ? o->y : NULL, .stride = o->stride};
            if (!multiply(be, o->w, o->w->rows, a->x, o->y, cu->step.shape.n_rows, more)) return;
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
        if (o->accumulate || i + 1 == n_out) begin_shrink(be, a, rest.adapted);
        const blas_sum apart = {.stride = o->accumulate ? 0 : o->stride};
        (void)multiply(be, o->w, o->w->rows, a->x, made, cu->step.shape.n_rows, apart);
        if (!o->accumulate) continue;
        /* `t` holds one product: what is added to the stream is added before the next one. */
        if (cu->x16_of == o->y) cu->x16_of = NULL;
        finish(be, a, rest.adapted, rest.all_rows);
        a->n_out = 0;
    }
    if (a->n_out > 0) finish(be, a, rest.adapted, rest.all_rows);
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
    sgmv_args a = lora_args(cu, &cu->step.rows, w[0]->type, in, w[0]->cols);
    linear_rest rest = rest_of(cu, outs, n_out, layer);
    int fused = n_out > 1 && !rest.residual ? side_by_side(w, n_out) : 0;
    int k = cuda_k(w[0]->type, w[0]->cols);
    bool planned = fused && blas_plan_find(&cu->blas, w[0]->type, fused, k, NULL);
    if (fused && !planned && !by_codes(w[0])) fused = 0; /* routers */
    if (fused)
        linear_fused(be, &a, outs, n_out, layer, fused, rest);
    else
        linear_apart(be, &a, outs, n_out, layer, rest);
}

/* ---- rows ------------------------------------------------------------------------------------ */

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
    sgmv_args g = lora_args(cu, &cu->step.rows, cu->arith, NULL, 1);
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
        forget_alias(cu, x);
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

/* What be_linear() has left, and the gate. */
static void finish_gated(backend *be, const float *gate, bool gelu)
{
    cuda_state *cu = cuda_of(be);
    sgmv_args *a = &cu->late_args;
    if (cu->late_rows > 0) { /* its x lies in x16 */
        const blas_sum more = {.gated = cu->gate16, .gelu = gelu};
        if (cu->late_inside)
            (void)cuda_inside_run(be, cu->late, cu->late_rows, a, cu->gate16, gelu);
        else
            (void)multiply(be, cu->late, cu->late_rows, a->x, cu->t, cu->step.shape.n_rows, more);
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

void cuda_gate(backend *be, activation act, float *gate, const float *up, size_t n)
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
        finish_gated(be, gate, act == ACT_GELU_TANH);
        return;
    }
    cu_silu_args a = {.gate = ag.at,
                      .up = up ? cuda_where(cu, up, cols).at : NULL,
                      .in_stride = ag.stride,
                      .out = half ? NULL : gate,
                      .out16 = half ? cu->x16 : NULL,
                      .n_rows = cu->step.of ? cu->step.shape.n_rows : 1,
                      .cols = cols,
                      .gelu = act == ACT_GELU_TANH};
    cu->x16_of = half ? gate : NULL;
    (void)CU(be, cu_silu_mul(cu->stream, &a));
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
    if (!place && (w == base || (w->rows == base->rows && !by_codes(base))))
        return multiply(be, w, w->rows, x, y, n, (blas_sum){.stride = stride});
    err e;
    err_code rc = blas_unplanned(&cu->blas, w->type, w->rows, cuda_k(w->type, w->cols),
                                 ((const cuda_weight *)w)->p, NULL, x, y, n,
                                 (blas_sum){.stride = stride}, place, cu->stream, &e);
    if (rc) backend_fail(be, rc, "%s", e.msg);
    return rc == ERR_NONE;
}

/* This device's columns of all rows; the first one then has all of them. */
static bool multiply_shared(backend *be, const weight *base, const void *x, int n)
{
    cuda_state *cu = cuda_of(be);
    float *y = cu->logits.device + (size_t)cu->part.i * (size_t)base->rows;
    if (!multiply(be, base, base->rows, x, y, n, (blas_sum){.stride = cu->step.stride}))
        return false;
    return cu->part.i > 0 || cu->part.logits_met(cu->part.self);
}

/* The rows of each output layer are a product of their own. */
static bool multiply_heads(backend *be, const weight *base, const void *x, int n)
{
    const cuda_state *cu = cuda_of(be);
    const lora_head **head = cu->step.head;
    bool shared = cu->part.n > 1;
    if (shared && (!multiply_shared(be, base, x, n) || cu->part.i > 0)) return false;
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
    sgmv_args g = lora_args(cu, &cu->step.logits, head->type, in, dim);
    g.n_out = 1;
    g.out[0] = (sgmv_out){.in = y,
                          .out = y,
                          .in_stride = cu->step.stride,
                          .out_stride = cu->step.stride,
                          .d_out = cu->step.head_cols,
                          .mat = cuda_head_mat(cu)};
    begin_shrink(be, &g, adapted);
    bool made = multiply_heads(be, head, in, n);
    if (adapted) finish(be, &g, true, cu->step.logits.all_rows);
    if (!made) return;
    multiply_tokens(be, head, in, n);
}
