/* inside.c -- LoRA inside a product (sgmv.h) in place of a shrink beside it and an expand behind.
 *
 * choices.h says up to how many rows that is faster.  At load each such product is made both ways
 * on the matrix itself: plain and, of gate and up, gated, by ranks of one piece and of four.  Where
 * a bit differs, LoRA stays beside.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/cuda/cuda.h"

enum { ROWS_MAX = GEMM_SMALL_ROWS };

static const blas_plan *plan_of(const cuda_state *cu, const weight *w, int rows_of_w)
{
    return blas_plan_find(&cu->blas, w->type, rows_of_w, cuda_k(w->type, w->cols), NULL);
}

static gemm_args product_args(const cuda_state *cu, const weight *w, int rows_of_w, const void *x,
                              uint16_t *gated, bool gelu)
{
    return (gemm_args){.type = w->type,
                       .w = ((const cuda_weight *)w)->p,
                       .x = x,
                       .n = rows_of_w,
                       .k = cuda_k(w->type, w->cols),
                       .rows = cu->step.shape.n_rows,
                       .n_sm = cu->n_sm,
                       .gated = gated,
                       .gelu = gelu,
                       .stream = true,
                       .early = cuda_early(cu)};
}

bool cuda_inside_takes(const cuda_state *cu, const weight *w, int rows_of_w, const sgmv_args *lora,
                       bool gated)
{
    static uint16_t somewhere;
    if (cu->step.shape.kind == CUDA_EXACT || ((const cuda_weight *)w)->codes.form) return false;
    const blas_plan *p = plan_of(cu, w, rows_of_w);
    if (!p || !blas_inside(p, cu->step.shape.n_rows)) return false;
    gemm_args a = product_args(cu, w, rows_of_w, lora->x, gated ? &somewhere : NULL, false);
    return gemm_lora_takes(&a, lora);
}

bool cuda_inside_run(backend *be, const weight *w, int rows_of_w, const sgmv_args *lora,
                     uint16_t *gated, bool gelu)
{
    cuda_state *cu = cuda_of(be);
    gemm_args a = product_args(cu, w, rows_of_w, lora->x, gated, gelu);
    return CU(be, cu_gemm_lora(cu->stream, &a, lora, cu->drawn));
}

/* ---- the comparison at load -------------------------------------------------------------- */

/* A step of so many rows, each with an adapter of its own: its matrices are what lies in the
 * weights, and so is x. */
typedef struct trial {
    backend *be;
    const weight *w;
    int n; /* columns */
    int rank;
    bool gated;
    sgmv_args lora;
    float *apart;     /* device, [rows][n]: sums beside */
    char *out, *want; /* device: inside's results, and beside's; each out_bytes */
    size_t out_bytes;
    char *memory;
} trial;

typedef struct trial_lists {
    sgmv_mat mat[ROWS_MAX];
    sgmv_chunk chunk[ROWS_MAX];
    sgmv_counts counts;
} trial_lists;

/* On the upload stream, for which steps wait. */
static err_code lay_trial(trial *t, int rows, err *e)
{
    cuda_state *cu = cuda_of(t->be);
    int k = cuda_k(t->w->type, t->w->cols), wide = k > t->n ? k : t->n;
    int d_out = t->gated ? t->n / 2 : t->n;
    size_t sums = (size_t)rows * (size_t)t->n * sizeof(float);
    size_t plane = (size_t)rows * SGMV_OUT_MAX * (size_t)t->rank;
    size_t planes = (size_t)sgmv_planes(k, t->w->type) * plane * sizeof(float);
    size_t lists = round_up((int)sizeof(trial_lists), 256);
    trial_lists *host = calloc(1, sizeof(*host));
    t->memory = cuda_take(cu, lists + planes + 3 * sums, false);
    if (!host || !t->memory) {
        free(host);
        return err_set(e, ERR_NOMEM, "no memory to try it");
    }
    const trial_lists *at = (const trial_lists *)t->memory;
    const char *weights = ((const cuda_weight *)t->w)->p;
    size_t spare = (size_t)t->n * (size_t)k - (size_t)t->rank * (size_t)wide;
    for (int i = 0; i < rows; i++) {
        const char *ab = weights + spare / (size_t)rows * (size_t)i / 128 * 128 * sizeof(uint16_t);
        host->mat[i] = (sgmv_mat){.a = ab,
                                  .b = ab,
                                  .rank = t->rank,
                                  .scale = 0.5F,
                                  .a_first = t->rank,
                                  .a_each = 1,
                                  .b_first = INT32_MAX,
                                  .b_each = SGMV_COLS,
                                  .d_out = d_out};
        host->chunk[i] = (sgmv_chunk){.mats = &at->mat[i],
                                      .row0 = i,
                                      .n_rows = 1,
                                      .v0 = (uint32_t)(i * SGMV_OUT_MAX * t->rank),
                                      .v_rank = t->rank};
    }
    host->counts = (sgmv_counts){.n_small = rows, .n_lora = rows, .n_all = rows};
    t->apart = (float *)(t->memory + lists + planes);
    t->out = (char *)t->apart + sums;
    t->want = t->gated ? t->out + sums : (char *)t->apart;
    t->out_bytes = t->gated ? sums / 4 : sums; /* BF16 of half the columns */
    t->lora = (sgmv_args){.type = t->w->type,
                          .x = weights,
                          .x_stride = k,
                          .d_in = k,
                          .v = (float *)(t->memory + lists),
                          .v_plane = plane,
                          .counts = &at->counts,
                          .chunk = at->chunk,
                          .tile = at->chunk,
                          .max_small = rows,
                          .max_lora = rows,
                          .max_all = rows,
                          .chunk_rows = 8,
                          .rank_max = t->rank,
                          .n_sm = cu->n_sm,
                          .n_out = t->gated ? 2 : 1};
    err_code rc = cuda_upload(t->be, t->memory, host, sizeof(*host));
    free(host);
    cuda_await_uploads(t->be);
    return rc ? err_set(e, rc, "the lists can't be copied to the device") : ERR_NONE;
}

/* Where the outputs lie in y [rows][n]. */
static void point_at(trial *t, float *y)
{
    int n_out = t->gated ? 2 : 1, each = t->n / n_out;
    for (int o = 0; o < n_out; o++) {
        float *at = y + o * each;
        t->lora.out[o] =
            (sgmv_out){.in = at, .out = at, .d_out = each, .in_stride = t->n, .out_stride = t->n};
    }
}

static err_code same_bits(const trial *t, bool *same, err *e)
{
    char *got = malloc(t->out_bytes), *want = malloc(t->out_bytes);
    err_code rc = got && want ? ERR_NONE : ERR_NOMEM;
    if (!rc) rc = cuda_download(t->be, got, t->out, t->out_bytes);
    if (!rc) rc = cuda_download(t->be, want, t->want, t->out_bytes);
    *same = !rc && memcmp(got, want, t->out_bytes) == 0;
    free(got);
    free(want);
    return rc ? err_set(e, rc, "what was tried cannot be read") : ERR_NONE;
}

/* Both ways, for steps of so many rows, whose shape the backend has been told. */
static err_code try_rows(trial *t, int rows, bool *same, err *e)
{
    cuda_state *cu = cuda_of(t->be);
    const err *failed = &t->be->failed;
    err_code rc = lay_trial(t, rows, e);
    if (!rc) {
        gemm_args a =
            product_args(cu, t->w, t->n, t->lora.x, t->gated ? (uint16_t *)t->out : NULL, false);
        point_at(t, t->apart);
        bool takes = gemm_lora_takes(&a, &t->lora);
        *same = true;
        if (takes)
            cuda_beside(t->be, t->w, t->n, &t->lora, t->apart,
                        t->gated ? (uint16_t *)t->want : NULL);
        cu->blas.trying = KERNELS_INSIDE;
        point_at(t, (float *)t->out);
        /* Outputs that the kernel leaves out are NaNs, and differ. */
        if (takes) rc = CU_TRY(cu, cudaMemsetAsync(t->out, 0xff, t->out_bytes, cu->stream), e);
        if (takes && !rc) rc = CU_TRY(cu, cu_gemm_lora(cu->stream, &a, &t->lora, cu->drawn), e);
        if (takes && !rc) rc = CU_TRY(cu, wait_stream(cu->wait, cu->stream), e);
        if (!rc && failed->code) rc = err_set(e, failed->code, "%s", failed->msg);
        if (takes && !rc) rc = same_bits(t, same, e);
    }
    cuda_give(cu, t->memory);
    t->memory = NULL;
    if (!rc) cu->blas.trying = NULL;
    return rc;
}

err_code cuda_inside_try(backend *be, const weight *w, int rows_of_w, err *e)
{
    static const int ranks[] = {16, 64};
    enum { N_RANK = sizeof(ranks) / sizeof(ranks[0]) };
    cuda_state *cu = cuda_of(be);
    const blas_plan *p = plan_of(cu, w, rows_of_w);
    bool pair = w->type == DT_BF16 && rows_of_w == 2 * w->rows && w->rows % SGMV_COLS == 0;
    err_code rc = ERR_NONE;
    if (!cu->drawn || !cu->graphs.on || !p || w->cols < ranks[N_RANK - 1] || rows_of_w < ROWS_MAX)
        return ERR_NONE;
    const cuda_shape was = cu->step.shape;
    int most = cu->blas.choice->inside_rows;
    for (int rows = BLAS_ROWS_LEAST; !rc && rows <= most && rows <= cu->max_rows; rows *= 2) {
        bool same = blas_streams(p, rows);
        if (!same) continue;
        cu->step.shape = (cuda_shape){CUDA_EXACT, rows, rows}; /* no launch early: lists come */
        for (int i = 0; !rc && same && i < N_RANK * (pair ? 2 : 1); i++) {
            trial t = {.be = be, .w = w, .n = rows_of_w, .rank = ranks[i % N_RANK]};
            t.gated = i >= N_RANK;
            rc = try_rows(&t, rows, &same, e);
        }
        if (!rc && same)
            blas_set_inside(&cu->blas, p, rows);
        else if (!rc)
            log_warn("engine", "LoRA stays beside products %d x %d of %d rows: other bits inside",
                     rows_of_w, w->cols, rows);
    }
    cu->step.shape = was;
    if (!rc || cu->lost != 0 || be->failed.code != ERR_NONE) return rc;
    cu->blas.trying = NULL;
    log_warn("engine", "LoRA stays beside products %d x %d: %s", rows_of_w, w->cols, e->msg);
    return ERR_NONE; /* all else does as well */
}
