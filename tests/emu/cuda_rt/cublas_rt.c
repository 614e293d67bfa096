/* cublas_rt.c -- cuBLASLt as plain loops with f32 sums, and as treacherous as the real one.
 *
 * Its heuristic prefers, by the number of rows, algorithms that add in other orders: halves of K,
 * four interleaved strands of K (which no attribute tells), plain order in another blocking.  A
 * caller that takes the first one gives other bits in other batches.
 *
 * EMU_CUBLAS=chain: it has one algorithm, a chain over all of K, as an H200's is seen to be: 16
 * products at a time, as mma adds them where its sums are exact.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/cuda/products/blas.h"
#include "tests/emu/cuda_rt/emu_rt.h"

enum { PLAIN = 1, HALVES, STRANDS, BLOCKED, CHAIN };

typedef struct {
    int compute, transa;
} desc;

typedef struct {
    int type;
    uint64_t rows, cols;
    int64_t ld;
} layout;

typedef struct {
    int algo, type, m, n, k, ldd;
    float alpha, beta;
    const void *a, *b;
    const float *c;
    float *d;
} job;

static lt_status create(void **handle)
{
    *handle = calloc(1, 1);
    return *handle ? 0 : 3;
}

static lt_status release(void *p)
{
    free(p);
    return 0;
}

static size_t version(void)
{
    return 130000;
}

static lt_status desc_create(void **d, int compute, int scale)
{
    desc *p = calloc(1, sizeof(*p));
    if (!p || scale != LT_R_32F) return 7;
    p->compute = compute;
    *d = p;
    return 0;
}

static lt_status desc_set(void *d, int attr, const void *v, size_t n)
{
    if (attr != LT_DESC_TRANSA || n != 4) return 7;
    memcpy(&((desc *)d)->transa, v, 4);
    return 0;
}

static lt_status layout_create(void **l, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    layout *p = malloc(sizeof(*p));
    if (!p) return 3;
    *p = (layout){type, rows, cols, ld};
    *l = p;
    return 0;
}

static lt_status layout_set(void *l, int attr, const void *v, size_t n)
{
    layout *to = l;
    if ((attr != LT_LAYOUT_COLS && attr != LT_LAYOUT_LD) || n != 8) return 7;
    memcpy(attr == LT_LAYOUT_COLS ? (void *)&to->cols : (void *)&to->ld, v, 8);
    return 0;
}

static lt_status pref_set(void *p, int attr, const void *v, size_t n)
{
    (void)p;
    (void)v;
    return (attr == LT_PREF_MAX_WORKSPACE && n == 8) || (attr == LT_PREF_REDUCTION_MASK && n == 4)
               ? 0
               : 7;
}

static lt_status heuristic(void *handle, void *d, void *a, void *b, void *c, void *dd, void *pref,
                           int wanted, lt_heuristic *out, int *n)
{
    (void)handle;
    (void)d;
    (void)a;
    (void)c;
    (void)dd;
    (void)pref;
    static const int few[] = {HALVES, PLAIN, STRANDS}, some[] = {STRANDS, BLOCKED, HALVES},
                     many[] = {STRANDS, HALVES};
    uint64_t rows = ((layout *)b)->cols;
    const int *from = rows <= 16 ? few : rows <= 64 ? some : many;
    int have = rows <= 64 ? 3 : 2;
    static const int chain[] = {CHAIN};
    const char *only = getenv("EMU_CUBLAS");
    if (only && strcmp(only, "chain") == 0) {
        from = chain;
        have = 1;
    }
    if (!emu_rt_has_cublas()) have = 0;
    *n = have < wanted ? have : wanted;
    memset(out, 0, (size_t)*n * sizeof(*out));
    for (int i = 0; i < *n; i++) out[i].algo.data[0] = (uint64_t)from[i];
    return 0;
}

static lt_status config_get(const lt_algo *algo, int attr, void *v, size_t n, size_t *written)
{
    int32_t split = algo->data[0] == HALVES ? 2 : 1;
    if (attr != LT_CONFIG_SPLITK_NUM || n != 4) return 7;
    memcpy(v, &split, 4);
    *written = 4;
    return 0;
}

/* Row `at` of [..][k], as f32. */
static void values(float *to, const void *p, int type, int k, int at)
{
    size_t begin = (size_t)at * (size_t)k;
    const float *f = (const float *)p + begin;
    const uint16_t *h = (const uint16_t *)p + begin;
    for (int i = 0; i < k; i++)
        to[i] = type == LT_R_32F ? f[i] : type == LT_R_16F ? f16_to_f32(h[i]) : bf16_to_f32(h[i]);
}

/* c + 16 products, or as many as there are, in the order of tests/emu/emu.cpp's mma. */
static float add_16(float c, const float *a, const float *b, int n)
{
    double total = 0;
    for (int first = 0; first < 4; first++) {
        double sum = 0;
        for (int i = first; i < n; i += 4) sum += (double)a[i] * (double)b[i];
        total += sum;
    }
    return (float)((double)c + total);
}

static float dot(int algo, const float *a, const float *b, int k)
{
    float sum[4] = {0};
    if (algo == CHAIN) {
        for (int i = 0; i < k; i += 16)
            sum[0] = add_16(sum[0], a + i, b + i, k - i < 16 ? k - i : 16);
        return sum[0];
    }
    if (algo == STRANDS) {
        for (int i = 0; i < k; i++) sum[i % 4] += a[i] * b[i];
    } else {
        int half = algo == HALVES ? k / 2 : k;
        for (int i = 0; i < half; i++) sum[0] += a[i] * b[i];
        for (int i = half; i < k; i++) sum[1] += a[i] * b[i];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void run(void *arg)
{
    const job *j = arg;
    size_t size = j->type == LT_R_32F ? 4 : 2, k = (size_t)j->k, n = (size_t)j->n;
    emu_bridge_read("cublasLtMatmul", j->a, (size_t)j->m * k * size);
    emu_bridge_read("cublasLtMatmul", j->b, n * k * size);
    float *a = malloc((n + 1) * k * sizeof(float)), *b = a + k;
    if (!a) abort();
    for (int col = 0; col < j->n; col++) values(b + (size_t)col * k, j->b, j->type, j->k, col);
    for (int row = 0; row < j->m; row++) {
        values(a, j->a, j->type, j->k, row);
        for (int col = 0; col < j->n; col++) {
            size_t at = (size_t)col * (size_t)j->ldd + (size_t)row;
            float v = j->alpha * dot(j->algo, a, b + (size_t)col * k, j->k);
            j->d[at] = j->beta == 0 ? v : v + j->beta * j->c[at];
        }
    }
    free(a);
    for (int col = 0; col < j->n; col++)
        emu_bridge_wrote(j->d + (size_t)col * (size_t)j->ldd, (size_t)j->m * sizeof(float));
}

static lt_status matmul(void *handle, void *d, const void *alpha, const void *a, void *la,
                        const void *b, void *lb, const void *beta, const void *c, void *lc,
                        void *out, void *lo, const lt_algo *algo, void *workspace,
                        size_t workspace_bytes, cudaStream_t stream)
{
    (void)handle;
    (void)lc;
    (void)workspace;
    (void)workspace_bytes;
    const layout *x = la, *y = lb, *z = lo;
    bool shapes = x->rows == y->rows && z->rows == x->cols && z->cols == y->cols &&
                  x->ld == (int64_t)x->rows && y->ld == (int64_t)y->rows &&
                  z->ld >= (int64_t)z->rows && x->type == y->type && z->type == LT_R_32F;
    if (!shapes || ((desc *)d)->transa != LT_OP_T || algo->data[0] == 0) return 7;
    job *j = malloc(sizeof(*j));
    if (!j) return 3;
    *j = (job){.algo = (int)algo->data[0],
               .type = x->type,
               .m = (int)z->rows,
               .n = (int)z->cols,
               .k = (int)x->rows,
               .ldd = (int)z->ld,
               .a = a,
               .b = b,
               .c = c,
               .d = out};
    memcpy(&j->alpha, alpha, sizeof(float));
    memcpy(&j->beta, beta, sizeof(float));
    return emu_rt_submit(stream, "cublasLtMatmul", false, run, free, j) == cudaSuccess ? 0 : 13;
}

err_code blas_load(blas_api *out, err *e)
{
    (void)e;
    *out = (blas_api){.create = create,
                      .destroy = release,
                      .version = version,
                      .desc_create = desc_create,
                      .desc_destroy = release,
                      .desc_set = desc_set,
                      .layout_create = layout_create,
                      .layout_destroy = release,
                      .layout_set = layout_set,
                      .pref_create = create,
                      .pref_destroy = release,
                      .pref_set = pref_set,
                      .heuristic = heuristic,
                      .config_get = config_get,
                      .matmul = matmul};
    return ERR_NONE;
}
