/* blas.c -- plans: candidates of the heuristic, tried on the device for equal bits. */
#include "engine/cuda/blas.h"

#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 8 };

static int lt_type(dtype t)
{
    return t == DT_BF16 ? LT_R_16BF : t == DT_F16 ? LT_R_16F : LT_R_32F;
}

static int bucket_rows(int bucket)
{
    return BLAS_ROWS_LEAST << bucket;
}

static int bucket_of(const blas_plan *p, int rows)
{
    int i = 0;
    while (i + 1 < p->n_buckets && bucket_rows(i) < rows) i++;
    return i;
}

/* Rows of the largest bucket that is tried. */
static int trial_rows(const blas *b)
{
    int i = 0;
    while (i + 1 < BLAS_BUCKETS && bucket_rows(i) < b->max_rows) i++;
    return bucket_rows(i);
}

size_t blas_trial_bytes(const blas *b, dtype type, int n, int k)
{
    size_t rows = (size_t)trial_rows(b);
    size_t x = (rows * (size_t)k * dtype_bytes(type) + 255) / 256 * 256;
    return x + rows * (size_t)n * sizeof(float);
}

static err_code lt_fail(lt_status s, const char *what, err *e)
{
    return err_set(e, ERR_DEVICE, "%s: cuBLAS status %d", what, s);
}

err_code blas_open(blas *b, void *workspace, size_t workspace_bytes, int max_rows, err *e)
{
    memset(b, 0, sizeof(*b));
    err_code rc = blas_load(&b->api, e);
    if (rc) return rc;
    lt_status s = b->api.create(&b->handle);
    if (s != LT_SUCCESS) return lt_fail(s, "cublasLtCreate", e);
    uint32_t no_split = 0;
    uint64_t room = workspace_bytes;
    s = b->api.pref_create(&b->pref);
    if (!s) s = b->api.pref_set(b->pref, LT_PREF_MAX_WORKSPACE, &room, sizeof(room));
    if (!s) s = b->api.pref_set(b->pref, LT_PREF_REDUCTION_MASK, &no_split, sizeof(no_split));
    if (s != LT_SUCCESS) return lt_fail(s, "cublasLtMatmulPreferenceSetAttribute", e);
    b->workspace = workspace;
    b->workspace_bytes = workspace_bytes;
    b->max_rows = max_rows;
    return ERR_NONE;
}

static void plan_clear(blas *b, blas_plan *p)
{
    if (p->desc) (void)b->api.desc_destroy(p->desc);
    void *layouts[] = {p->lw, p->lx, p->ly};
    for (int i = 0; i < 3; i++) {
        if (layouts[i]) (void)b->api.layout_destroy(layouts[i]);
    }
    memset(p, 0, sizeof(*p));
}

void blas_close(blas *b)
{
    for (int i = 0; i < b->n_plan; i++) plan_clear(b, &b->plan[i]);
    if (b->pref) (void)b->api.pref_destroy(b->pref);
    if (b->handle) (void)b->api.destroy(b->handle);
    memset(b, 0, sizeof(*b));
}

const blas_plan *blas_plan_find(const blas *b, dtype type, int n, int k)
{
    for (int i = 0; i < b->n_plan; i++) {
        const blas_plan *p = &b->plan[i];
        if (p->type == type && p->n == n && p->k == k) return p;
    }
    return NULL;
}

static lt_status set_rows(blas *b, const blas_plan *p, int rows)
{
    uint64_t cols = (uint64_t)rows;
    lt_status s = b->api.layout_set(p->lx, LT_LAYOUT_COLS, &cols, sizeof(cols));
    return s ? s : b->api.layout_set(p->ly, LT_LAYOUT_COLS, &cols, sizeof(cols));
}

/* Column-major, y^T [n][rows] = (w^T)^T x^T: a row of ours is a column of cuBLAS's. */
static lt_status multiply(blas *b, const blas_plan *p, const lt_algo *algo, const void *w,
                          const void *x, float *y, int rows, float beta, cudaStream_t stream)
{
    const float one = 1;
    lt_status s = set_rows(b, p, rows);
    if (s) return s;
    return b->api.matmul(b->handle, p->desc, &one, w, p->lw, x, p->lx, &beta, y, p->ly, y, p->ly,
                         algo, b->workspace, b->workspace_bytes, stream);
}

/* ---- trials ------------------------------------------------------------------------------ */

typedef struct trial {
    blas *b;
    blas_plan *p;
    const void *w;
    char *x;
    float *y;
    float *law, *got; /* host, [2 * BLAS_ROWS_LEAST][n] */
    cudaStream_t stream;
} trial;

/* Values of either sign over four binades, other ones in each column, the
 * same 16 rows again and again. */
static void fill_x(char *x, dtype type, int rows, int k)
{
    for (int r = 0; r < rows; r++) {
        uint32_t seed = 12345U + (uint32_t)(r % BLAS_ROWS_LEAST);
        for (int i = 0; i < k; i++) {
            seed = seed * 1664525U + 1013904223U;
            uint32_t sign = seed & 0x80000000U, exp = 125U + ((seed >> 8) & 3U);
            uint32_t bits = sign | (exp << 23) | ((seed >> 9) & 0x7fffffU);
            size_t at = (size_t)r * (size_t)k + (size_t)i;
            uint16_t half =
                type == DT_BF16
                    ? (uint16_t)(bits >> 16)
                    : (uint16_t)((sign >> 16) | ((exp - 112U) << 10) | ((bits >> 13) & 0x3ffU));
            if (type == DT_F32)
                memcpy(x + 4 * at, &bits, 4);
            else
                memcpy(x + 2 * at, &half, 2);
        }
    }
}

/* The first and the last rows' results of one algorithm. */
static err_code results(trial *t, const lt_algo *algo, int rows, float *out, lt_status *s)
{
    size_t some = (size_t)BLAS_ROWS_LEAST * (size_t)t->p->n, bytes = some * sizeof(float);
    *s = multiply(t->b, t->p, algo, t->w, t->x, t->y, rows, 0, t->stream);
    if (*s) return ERR_NONE; /* this one cannot run: no candidate */
    const float *last = t->y + (size_t)(rows - BLAS_ROWS_LEAST) * (size_t)t->p->n;
    cudaError_t ce = cudaMemcpyAsync(out, t->y, bytes, cudaMemcpyDeviceToHost, t->stream);
    if (!ce) ce = cudaMemcpyAsync(out + some, last, bytes, cudaMemcpyDeviceToHost, t->stream);
    if (!ce) ce = cudaStreamSynchronize(t->stream);
    return ce ? ERR_DEVICE : ERR_NONE;
}

static err_code choose(trial *t, int bucket, err *e)
{
    blas *b = t->b;
    blas_plan *p = t->p;
    lt_heuristic found[CANDIDATES];
    int n = 0, rows = bucket_rows(bucket);
    lt_status s = set_rows(b, p, rows);
    if (!s) {
        s = b->api.heuristic(b->handle, p->desc, p->lw, p->lx, p->ly, p->ly, b->pref, CANDIDATES,
                             found, &n);
    }
    if (s && bucket == 0) return lt_fail(s, "cublasLtMatmulAlgoGetHeuristic", e);
    if (s) n = 0;
    for (int i = 0; i < n; i++) {
        int32_t split = 0;
        size_t written;
        const lt_algo *algo = &found[i].algo;
        if (found[i].state || found[i].workspace > b->workspace_bytes) continue;
        if (b->api.config_get(algo, LT_CONFIG_SPLITK_NUM, &split, sizeof(split), &written) == 0 &&
            split > 1)
            continue;
        lt_status ran;
        err_code rc = results(t, algo, rows, bucket == 0 ? t->law : t->got, &ran);
        if (rc) return err_set(e, rc, "the device failed while products were tried");
        size_t some = (size_t)BLAS_ROWS_LEAST * (size_t)p->n * sizeof(float);
        if (ran) continue;
        if (bucket > 0 && (memcmp(t->law, t->got, some) != 0 ||
                           memcmp(t->law, t->got + some / sizeof(float), some) != 0))
            continue;
        p->algo[bucket] = *algo;
        p->n_buckets = bucket + 1;
        return ERR_NONE;
    }
    if (bucket == 0) {
        return err_set(e, ERR_UNSUPPORTED, "cuBLAS has no product for a matrix of %d x %d", p->n,
                       p->k);
    }
    p->algo[bucket] = p->algo[0];
    p->n_buckets = bucket + 1;
    p->n_law++;
    return ERR_NONE;
}

static err_code plan_make(blas *b, blas_plan *p, const void *w, void *trial_memory,
                          cudaStream_t stream, err *e)
{
    int type = lt_type(p->type), rows = trial_rows(b);
    uint64_t n = (uint64_t)p->n, k = (uint64_t)p->k;
    int32_t transposed = LT_OP_T;
    lt_status s = b->api.desc_create(
        &p->desc, p->type == DT_F32 ? LT_COMPUTE_32F_PEDANTIC : LT_COMPUTE_32F, LT_R_32F);
    if (!s) s = b->api.desc_set(p->desc, LT_DESC_TRANSA, &transposed, sizeof(transposed));
    if (!s) s = b->api.layout_create(&p->lw, type, k, n, (int64_t)k);
    if (!s) s = b->api.layout_create(&p->lx, type, k, (uint64_t)rows, (int64_t)k);
    if (!s) s = b->api.layout_create(&p->ly, LT_R_32F, n, (uint64_t)rows, (int64_t)n);
    if (s) return lt_fail(s, "cublasLtMatrixLayoutCreate", e);

    size_t x_bytes = (size_t)rows * (size_t)p->k * dtype_bytes(p->type);
    size_t some = 2 * (size_t)BLAS_ROWS_LEAST * (size_t)p->n;
    char *x = malloc(x_bytes);
    float *host = malloc(2 * some * sizeof(float));
    err_code rc = x && host ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory to try products");
    if (!rc) {
        fill_x(x, p->type, rows, p->k);
        trial t = {.b = b,
                   .p = p,
                   .w = w,
                   .x = trial_memory,
                   .y = (float *)((char *)trial_memory + (x_bytes + 255) / 256 * 256),
                   .law = host,
                   .got = host + some,
                   .stream = stream};
        cudaError_t ce = cudaMemcpyAsync(t.x, x, x_bytes, cudaMemcpyHostToDevice, stream);
        if (ce) rc = err_set(e, ERR_DEVICE, "cudaMemcpyAsync: %s", cudaGetErrorString(ce));
        for (int i = 0; !rc && i < BLAS_BUCKETS && bucket_rows(i) <= rows; i++) {
            rc = choose(&t, i, e);
        }
    }
    free(x);
    free(host);
    return rc;
}

err_code blas_plan_get(blas *b, const blas_plan **out, dtype type, int n, int k, const void *w,
                       void *trial_memory, cudaStream_t stream, err *e)
{
    *out = blas_plan_find(b, type, n, k);
    if (*out) return ERR_NONE;
    if (b->n_plan == BLAS_SHAPES)
        return err_set(e, ERR_LIMIT, "more than %d shapes of matrices", BLAS_SHAPES);
    blas_plan *p = &b->plan[b->n_plan];
    *p = (blas_plan){.type = type, .n = n, .k = k};
    err_code rc = plan_make(b, p, w, trial_memory, stream, e);
    if (rc) {
        plan_clear(b, p);
        return rc;
    }
    b->n_plan++;
    *out = p;
    return ERR_NONE;
}

err_code blas_product(blas *b, const blas_plan *p, const void *w, const void *x, float *y, int rows,
                      int accumulate, cudaStream_t stream, err *e)
{
    lt_status s = multiply(b, p, &p->algo[bucket_of(p, rows)], w, x, y, rows,
                           accumulate ? 1.0F : 0.0F, stream);
    return s ? lt_fail(s, "cublasLtMatmul", e) : ERR_NONE;
}
