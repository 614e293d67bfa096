/* inside.c -- LoRA inside a product (sgmv.h) in place of a shrink beside it and an
 * expand behind it: where that is faster.
 *
 * Whether it is hangs on the device, so it is tried at load: for each shape of matrix and each size
 * of step it is recorded as in a decode step, beside and inside by each cut, and run.  Equal bits
 * are the condition, so times choose nothing that an answer shows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/cuda/cuda.h"

enum { REPEATS = 4, RUNS = 2, RANK = 16, ROWS_MAX = GEMM_SMALL_ROWS };

static const blas_plan *plan_of(const cuda_state *cu, const weight *w, int rows_of_w)
{
    return blas_plan_find(&cu->blas, w->type, rows_of_w, cuda_k(w->type, w->cols), NULL);
}

static gemm_args product_args(const cuda_state *cu, const weight *w, int rows_of_w, int cut,
                              const void *x, uint16_t *gated, bool gelu)
{
    gemm_args a = {.type = w->type,
                   .w = ((const cuda_weight *)w)->p,
                   .x = x,
                   .n = rows_of_w,
                   .k = cuda_k(w->type, w->cols),
                   .rows = cu->step.shape.n_rows,
                   .gated = gated,
                   .gelu = gelu,
                   .early = cuda_early(cu)};
    blas_cut(&cu->blas, cut, &a);
    return a;
}

/* By which cut LoRA goes inside this step's product; -1: it does not. */
static int cut_of(const cuda_state *cu, const weight *w, int rows_of_w)
{
    const blas_plan *p = plan_of(cu, w, rows_of_w);
    return p ? blas_inside(p, cu->step.shape.n_rows) : -1;
}

bool cuda_inside_takes(const cuda_state *cu, const weight *w, int rows_of_w, const sgmv_args *lora,
                       bool gated)
{
    static uint16_t somewhere;
    if (cu->step.shape.kind == CUDA_EXACT || ((const cuda_weight *)w)->codes.form) return false;
    int cut = cut_of(cu, w, rows_of_w);
    if (cut < 0) return false;
    gemm_args a = product_args(cu, w, rows_of_w, cut, lora->x, gated ? &somewhere : NULL, false);
    return gemm_lora_takes(&a, lora);
}

static cudaError_t launch(const cuda_state *cu, const weight *w, int rows_of_w, int cut,
                          const sgmv_args *lora, uint16_t *gated, bool gelu)
{
    gemm_args a = product_args(cu, w, rows_of_w, cut, lora->x, gated, gelu);
    return cu_gemm_lora(cu->stream, &a, lora, cu->drawn);
}

bool cuda_inside_run(backend *be, const weight *w, int rows_of_w, const sgmv_args *lora,
                     uint16_t *gated, bool gelu)
{
    cuda_state *cu = cuda_of(be);
    return CU(be, launch(cu, w, rows_of_w, cut_of(cu, w, rows_of_w), lora, gated, gelu));
}

/* ---- trials ------------------------------------------------------------------------------ */

/* A step of so many rows, each with an adapter of its own: its matrices are what lies in the
 * weights, and so is x. */
typedef struct trial {
    backend *be;
    const weight *w;
    int n; /* columns */
    sgmv_args lora;
    float *apart, *inside; /* device, [rows][n] */
    char *memory;
} trial;

typedef struct trial_lists {
    sgmv_mat mat[ROWS_MAX];
    sgmv_chunk chunk[ROWS_MAX];
    sgmv_counts counts;
} trial_lists;

static size_t v_floats(int rows)
{
    return (size_t)rows * SGMV_OUT_MAX * RANK;
}

/* On the upload stream, for which steps wait. */
static err_code lay_trial(trial *t, int rows, err *e)
{
    cuda_state *cu = cuda_of(t->be);
    int k = cuda_k(t->w->type, t->w->cols), wide = k > t->n ? k : t->n;
    size_t sums = (size_t)rows * (size_t)t->n * sizeof(float);
    size_t planes = (size_t)sgmv_planes(k, t->w->type) * v_floats(rows) * sizeof(float);
    size_t lists = round_up((int)sizeof(trial_lists), 256);
    trial_lists *host = calloc(1, sizeof(*host));
    t->memory = cuda_take(cu, lists + planes + 2 * sums, false);
    if (!host || !t->memory) {
        free(host);
        return err_set(e, ERR_NOMEM, "no memory to try it");
    }
    const trial_lists *at = (const trial_lists *)t->memory;
    const char *weights = ((const cuda_weight *)t->w)->p;
    size_t spare = (size_t)t->n * (size_t)k - (size_t)RANK * (size_t)wide;
    for (int i = 0; i < rows; i++) {
        const char *ab = weights + spare / (size_t)rows * (size_t)i / 128 * 128 * sizeof(uint16_t);
        host->mat[i] = (sgmv_mat){.a = ab,
                                  .b = ab,
                                  .rank = RANK,
                                  .scale = 0.5F,
                                  .a_first = RANK,
                                  .a_each = 1,
                                  .b_first = INT32_MAX,
                                  .b_each = SGMV_COLS,
                                  .d_out = t->n};
        host->chunk[i] = (sgmv_chunk){.mats = &at->mat[i],
                                      .row0 = i,
                                      .n_rows = 1,
                                      .v0 = (uint32_t)(i * SGMV_OUT_MAX * RANK),
                                      .v_rank = RANK};
    }
    host->counts = (sgmv_counts){.n_small = rows, .n_lora = rows, .n_all = rows};
    t->apart = (float *)(t->memory + lists + planes);
    t->inside = t->apart + (size_t)rows * (size_t)t->n;
    t->lora = (sgmv_args){.type = t->w->type,
                          .x = weights,
                          .x_stride = k,
                          .d_in = k,
                          .v = (float *)(t->memory + lists),
                          .v_plane = v_floats(rows),
                          .counts = &at->counts,
                          .chunk = at->chunk,
                          .tile = at->chunk,
                          .max_small = rows,
                          .max_lora = rows,
                          .max_all = rows,
                          .chunk_rows = 8,
                          .rank_max = RANK,
                          .n_sm = cu->n_sm,
                          .n_out = 1};
    t->lora.out[0] = (sgmv_out){.d_out = t->n, .in_stride = t->n, .out_stride = t->n};
    err_code rc = cuda_upload(t->be, t->memory, host, sizeof(*host));
    free(host);
    cuda_await_uploads(t->be);
    return rc ? err_set(e, rc, "the device takes no lists") : ERR_NONE;
}

/* Inside by this cut; -1: beside. */
static cudaError_t run_way(trial *t, int cut)
{
    sgmv_args a = t->lora;
    a.early = cuda_early(cuda_of(t->be));
    a.out[0].in = a.out[0].out = cut >= 0 ? t->inside : t->apart;
    if (cut >= 0) return launch(cuda_of(t->be), t->w, t->n, cut, &a, NULL, false);
    cuda_beside(t->be, t->w, t->n, &a, t->apart);
    return cudaSuccess; /* else the backend is marked */
}

/* One way, recorded: the least microseconds of a product. */
static err_code time_way(trial *t, int cut, cudaEvent_t begin, cudaEvent_t end, float *us, err *e)
{
    cuda_state *cu = cuda_of(t->be);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    /* Once before: what is loaded at its first use cannot be while it is recorded.  Not early, for
     * lists have just been sent. */
    cuda_kind kind = cu->step.shape.kind;
    const err *failed = &t->be->failed;
    cu->step.shape.kind = CUDA_EXACT;
    err_code rc = CU_TRY(cu, run_way(t, cut), e);
    cu->step.shape.kind = kind;
    if (!rc && failed->code) rc = err_set(e, failed->code, "%s", failed->msg);
    if (!rc) rc = CU_TRY(cu, cudaEventRecord(end, cu->stream), e);
    if (!rc) rc = CU_TRY(cu, wait_event(cu->wait, end), e);
    if (!rc)
        rc = CU_TRY(cu, cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal), e);
    if (rc) return rc;
    for (int i = 0; !rc && i < REPEATS; i++) rc = CU_TRY(cu, run_way(t, cut), e);
    err_code ended = CU_TRY(cu, cudaStreamEndCapture(cu->stream, &graph), rc ? NULL : e);
    if (!rc) rc = ended;
    if (!rc) rc = CU_TRY(cu, cudaGraphInstantiate(&exec, graph, 0), e);
    for (int i = 0; !rc && i <= RUNS; i++) { /* the first one is for the caches */
        float ms = 0;
        rc = CU_TRY(cu, cudaEventRecord(begin, cu->stream), e);
        if (!rc) rc = CU_TRY(cu, cudaGraphLaunch(exec, cu->stream), e);
        if (!rc) rc = CU_TRY(cu, cudaEventRecord(end, cu->stream), e);
        if (!rc) rc = CU_TRY(cu, wait_event(cu->wait, end), e);
        if (!rc) rc = CU_TRY(cu, cudaEventElapsedTime(&ms, begin, end), e);
        ms *= 1000.0F / REPEATS;
        if (i == 1 || (i > 1 && ms < *us)) *us = ms;
    }
    if (graph) (void)cudaGraphDestroy(graph);
    if (exec && !atomic_load(&cu->wait->hung)) (void)cudaGraphExecDestroy(exec);
    return rc;
}

static err_code same_bits(trial *t, size_t n, bool *same, err *e)
{
    float *a = malloc(n * sizeof(*a)), *b = malloc(n * sizeof(*b));
    err_code rc = a && b ? ERR_NONE : ERR_NOMEM;
    if (!rc) rc = cuda_download(t->be, a, t->apart, n * sizeof(*a));
    if (!rc) rc = cuda_download(t->be, b, t->inside, n * sizeof(*b));
    *same = !rc && memcmp(a, b, n * sizeof(*a)) == 0;
    free(a);
    free(b);
    return rc ? err_set(e, rc, "what was tried cannot be read") : ERR_NONE;
}

static bool takes(const trial *t, int cut)
{
    gemm_args a = product_args(cuda_of(t->be), t->w, t->n, cut, t->lora.x, NULL, false);
    return gemm_lora_takes(&a, &t->lora);
}

/* For steps of so many rows, whose shape the backend has been told.  *best: the fastest cut that is
 * no slower than beside; -1: none. */
static err_code try_rows(trial *t, int rows, int *best, err *e)
{
    cuda_state *cu = cuda_of(t->be);
    cudaEvent_t begin = NULL, end = NULL;
    float us[1 + BLAS_CUTS] = {0}, *inside = us + 1;
    char said[BLAS_CUTS][16] = {"-", "-", "-", "-", "-", "-"};
    err_code rc = lay_trial(t, rows, e);
    bool some = !rc && takes(t, 0);
    *best = -1;
    if (some) rc = CU_TRY(cu, cudaEventCreateWithFlags(&begin, cudaEventDefault), e);
    if (some && !rc) rc = CU_TRY(cu, cudaEventCreateWithFlags(&end, cudaEventDefault), e);
    for (int cut = -1; some && !rc && cut < BLAS_CUTS; cut++) {
        bool same = false;
        if (cut > 0 && !takes(t, cut)) continue;
        cu->blas.trying = cut >= BLAS_CUT_CLUSTER ? BE_TRIAL_CLUSTER
                          : cut >= 0              ? BE_TRIAL_INSIDE
                                                  : BE_TRIAL_N;
        /* What a cut leaves out is not what the one before has written. */
        size_t bytes = (size_t)rows * (size_t)t->n * sizeof(float);
        rc = CU_TRY(cu, cudaMemsetAsync(t->inside, 0xff, bytes, cu->stream), e);
        if (!rc) rc = time_way(t, cut, begin, end, &inside[cut], e);
        if (rc && cut >= 0 && cu->lost == 0 && !t->be->failed.code) { /* this cut alone is none */
            log_warn("engine", "LoRA inside products %d x %d, cut %d: %s", t->n,
                     cuda_k(t->w->type, t->w->cols), cut, e->msg);
            rc = ERR_NONE;
            continue;
        }
        if (rc || cut < 0) continue;
        rc = same_bits(t, (size_t)rows * (size_t)t->n, &same, e);
        (void)snprintf(said[cut], sizeof(said[cut]), "%.1f%s", (double)inside[cut],
                       same ? "" : "!");
        if (same && inside[cut] <= us[0] && (*best < 0 || inside[cut] < inside[*best])) *best = cut;
    }
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    cuda_give(cu, t->memory);
    t->memory = NULL;
    if (!rc) cu->blas.trying = BE_TRIAL_N;
    if (some && !rc)
        log_info(
            "engine",
            "LoRA of products %d x %d, to %d rows: inside %s us, with a deep ring %s, on two "
            "thirds of the multiprocessors %s, on half %s, in clusters of 2 %s, of 4 %s; beside "
            "%.1f",
            t->n, cuda_k(t->w->type, t->w->cols), rows, said[0], said[1], said[2], said[3], said[4],
            said[5], (double)us[0]);
    return rc;
}

err_code cuda_inside_try(backend *be, const weight *w, int rows_of_w, err *e)
{
    cuda_state *cu = cuda_of(be);
    const blas_plan *p = plan_of(cu, w, rows_of_w);
    trial t = {.be = be, .w = w, .n = rows_of_w};
    err_code rc = ERR_NONE;
    if (!cu->drawn || !cu->graphs.on || !p || w->cols < RANK || rows_of_w < ROWS_MAX)
        return ERR_NONE;
    const cuda_shape was = cu->step.shape;
    for (int rows = BLAS_ROWS_LEAST; !rc && rows <= ROWS_MAX && rows <= cu->max_rows; rows *= 2) {
        int best = -1;
        if (!blas_streams(p, rows)) continue;
        cu->step.shape = (cuda_shape){CUDA_RANK64, rows, rows};
        rc = try_rows(&t, rows, &best, e);
        if (!rc) blas_set_inside(&cu->blas, p, rows, best);
    }
    cu->step.shape = was;
    if (!rc || cu->lost != 0 || be->failed.code != ERR_NONE) return rc;
    cu->blas.trying = BE_TRIAL_N;
    log_warn("engine", "LoRA stays beside products %d x %d: %s", rows_of_w, w->cols, e->msg);
    return ERR_NONE; /* all else does as well */
}
