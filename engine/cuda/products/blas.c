/* blas.c -- chooses a kernel for each matrix shape and number of rows such that all give equal bits
 * (blas.h has the reason).
 *
 * A plan belongs to a shape.  Numbers of rows are in buckets, each up to twice as large as the one
 * before.  When the first matrix of a shape is loaded, each candidate computes each bucket's
 * product:
 *
 *                up to 16 rows   up to 32   up to 64 ...
 *   cuBLAS #1        b7              b7        b7
 *   cuBLAS #2        b7              -         c4         b7, c4: hashes of results
 *   our chain        b7              b7        b7         -: bits depend on the number of rows
 *   our chunks       a1              a1        a1
 *
 * The rows of x repeat every 16 rows, so a result is consistent if each row equals the row 16
 * before it; first and last rows are compared, for four numbers of rows per bucket.  The order of
 * the shape is the first hash that occurs in every column.
 *
 * Among candidates with this hash place_of() decides by choices.h and the heuristic's order, never
 * by time: so equal servers choose alike.  blas_order() hashes the orders of all shapes for
 * `system_fingerprint`.
 */
#include "engine/cuda/products/blas.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/cuda/products/choices.h"
#include "engine/cuda/products/gemm.h"

enum {
    CANDIDATES = 8, /* of each bucket */
};

#define HASH_PRIME UINT64_C(1099511628211)

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
static int trial_rows(int max_rows)
{
    int i = 0;
    while (i + 1 < BLAS_BUCKETS && bucket_rows(i) < max_rows) i++;
    return bucket_rows(i);
}

size_t blas_trial_bytes(int max_rows, dtype type, int n, int k)
{
    size_t rows = (size_t)trial_rows(max_rows);
    size_t x = (rows * (size_t)k * dtype_bytes(type) + 255) / 256 * 256;
    return x + rows * (size_t)n * sizeof(float);
}

static err_code lt_fail(lt_status s, const char *what, err *e)
{
    return err_set(e, ERR_DEVICE, "%s: cuBLAS status %d", what, s);
}

err_code blas_open(blas *b, void *workspace, size_t workspace_bytes, int n_sm, device_wait *wait,
                   err *e)
{
    memset(b, 0, sizeof(*b));
    b->trying = NULL;
    b->wait = wait;
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
    b->n_sm = n_sm;
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

static bool lies_like(const gemm_codes *have, const gemm_codes *codes)
{
    static const gemm_codes none;
    const gemm_codes *c = codes ? codes : &none;
    return have->form == c->form && (c->form == GEMM_PLAIN || have->shift == c->shift);
}

const blas_plan *blas_plan_find(const blas *b, dtype type, int n, int k, const gemm_codes *codes)
{
    for (int i = 0; i < b->n_plan; i++) {
        const blas_plan *p = &b->plan[i];
        if (p->type == type && p->n == n && p->k == k && lies_like(&p->codes, codes)) return p;
    }
    return NULL;
}

static lt_status set_rows(blas *b, const blas_plan *p, int rows, int stride)
{
    uint64_t cols = (uint64_t)rows;
    int64_t apart = stride;
    lt_status s = b->api.layout_set(p->lx, LT_LAYOUT_COLS, &cols, sizeof(cols));
    if (!s) s = b->api.layout_set(p->ly, LT_LAYOUT_COLS, &cols, sizeof(cols));
    return s ? s : b->api.layout_set(p->ly, LT_LAYOUT_LD, &apart, sizeof(apart));
}

const blas_choice *blas_choice_of(int capability)
{
    const blas_choice *best = &blas_choices[0];
    for (size_t i = 1; i < sizeof(blas_choices) / sizeof(blas_choices[0]); i++) {
        if (blas_choices[i].capability <= capability) best = &blas_choices[i];
    }
    return best;
}

/* Whose kernels make a product: ours by chunks, and where rows are many by wgmma; ours by one
 * chain, of few rows alone; cuBLAS's. */
typedef enum { BY_CHUNKS, BY_WGMMA, BY_CHAIN, BY_CUBLAS, WAYS } way;
static const char *const way_name[WAYS] = {"chunks", "wgmma", "chain", "cuBLAS"};

/* Stands where an algorithm of cuBLAS's does. */
static lt_algo own_by(way w)
{
    return (lt_algo){{UINT64_MAX, UINT64_MAX, (uint64_t)w}};
}

static way way_of(const lt_algo *algo)
{
    way w = BY_CHUNKS;
    for (; w < BY_CUBLAS; w++) {
        lt_algo own = own_by(w);
        if (memcmp(algo, &own, sizeof(own)) == 0) break;
    }
    return w;
}

static bool is_own(const lt_algo *algo)
{
    return way_of(algo) != BY_CUBLAS;
}

/* Few rows go another way by the one, many by the other. */
static const char *trial_of(way w, int rows)
{
    if (rows > GEMM_SMALL_ROWS) return w == BY_WGMMA ? KERNELS_WGMMA : NULL;
    return w == BY_CHAIN ? KERNELS_CHAIN : NULL;
}

static gemm_args own_args(const blas *b, const blas_plan *p, const lt_algo *algo, int rows)
{
    way w = way_of(algo);
    gemm_args a = {.type = p->type,
                   .codes = p->codes,
                   .n = p->n,
                   .k = p->k,
                   .rows = rows,
                   .n_sm = b->n_sm,
                   .gated_stride = p->n / 2,
                   .wide = w == BY_WGMMA,
                   .stream = w == BY_CHAIN};
    return a;
}

/* Slices become plain in cuBLAS's workspace: all products run on one stream. */
static bool slices(const blas *b, const gemm_args *a)
{
    return a->wide && gemm_slices_take(a, b->workspace_bytes);
}

/* Column-major, y^T [n][rows] = (w^T)^T x^T: a row of ours is a column of cuBLAS's. */
static lt_status multiply(blas *b, const blas_plan *p, const lt_algo *algo, const void *w,
                          const void *x, float *y, int rows, blas_sum more, cudaStream_t stream)
{
    const float one = 1, zero = 0;
    int stride = more.stride ? more.stride : p->n;
    if (is_own(algo)) {
        gemm_args a = own_args(b, p, algo, rows);
        a.w = w;
        a.x = x;
        a.y = y;
        a.bias = more.bias;
        a.res = more.res;
        a.stride = stride;
        a.gated = more.gated;
        a.gelu = more.gelu;
        a.early = more.early;
        cudaError_t ce = slices(b, &a)
                             ? cu_gemm_slices(stream, &a, b->workspace, b->workspace_bytes)
                             : cu_gemm(stream, &a);
        return ce == cudaSuccess ? LT_SUCCESS : LT_FAILED;
    }
    lt_status s = set_rows(b, p, rows, stride);
    if (s) return s;
    return b->api.matmul(b->handle, p->desc, &one, w, p->lw, x, p->lx, &zero, y, p->ly, y, p->ly,
                         algo, b->workspace, b->workspace_bytes, stream);
}

/* ---- trials ------------------------------------------------------------------------------ */

/* What is compared of a result: its first and last rows, and of each the first and last columns. */
enum { LOOK_ROWS = BLAS_ROWS_LEAST, LOOK_COLS = 2048, PROBES = 4 };

/* One algorithm, and its results for each bucket's rows. */
typedef struct candidate {
    lt_algo algo;
    uint64_t bits[BLAS_BUCKETS]; /* of the 16 rows that come again and again; 0: it is no choice */
    int8_t named[BLAS_BUCKETS];  /* its place in the heuristic's list; CANDIDATES: not in it */
} candidate;

typedef struct trial {
    blas *b;
    blas_plan *p;
    const void *w;
    char *x;
    float *y;
    int cols;           /* compared of each row */
    float *right, *got; /* host, [LOOK_ROWS][cols], [2 * LOOK_ROWS][cols] */
    cudaEvent_t end;
    cudaStream_t stream;
    candidate *c;
    int n;
} trial;

/* Waits for all that was enqueued. */
static cudaError_t wait_end(const trial *t)
{
    cudaError_t ce = cudaEventRecord(t->end, t->stream);
    return ce ? ce : wait_event(t->b->wait, t->end);
}

/* Values of either sign over fourteen binades, different in each column; the same 16 rows repeat.
 * With values over four binades, 64 results in F16 had the same bits in any order on an H200, and
 * other ones when a model ran. */
static void fill_x(char *x, dtype type, int rows, int k)
{
    for (int r = 0; r < rows; r++) {
        uint32_t seed = 12345U + (uint32_t)(r % LOOK_ROWS);
        for (int i = 0; i < k; i++) {
            seed = seed * 1664525U + 1013904223U;
            uint32_t sign = seed & 0x80000000U, exp = 114U + (seed >> 8) % 14U;
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

/* Rows [row0, row0 + n) of the result, as far as they are compared. */
static cudaError_t fetch(const trial *t, float *out, int row0, int n)
{
    size_t row = (size_t)t->p->n * sizeof(float), all = (size_t)t->cols * sizeof(float);
    size_t half = t->p->n > t->cols ? all / 2 : all;
    const char *from = (const char *)(t->y + (size_t)row0 * (size_t)t->p->n);
    cudaError_t ce =
        cudaMemcpy2DAsync(out, all, from, row, half, (size_t)n, cudaMemcpyDeviceToHost, t->stream);
    if (ce || half == all) return ce;
    return cudaMemcpy2DAsync((char *)out + half, all, from + row - half, row, half, (size_t)n,
                             cudaMemcpyDeviceToHost, t->stream);
}

/* Whether each of `rows` rows equals its row of t->right, wherever it is; `first`: t->right is
 * taken from this result.  ERR_DEVICE: nothing more can be tried. */
static err_code looks_right(trial *t, const lt_algo *algo, int rows, bool first, bool *right)
{
    int n = rows < LOOK_ROWS ? rows : LOOK_ROWS, last = rows - n;
    size_t cols = (size_t)t->cols, row = cols * sizeof(float);
    *right = false;
    if (multiply(t->b, t->p, algo, t->w, t->x, t->y, rows, (blas_sum){0}, t->stream))
        return ERR_NONE;
    cudaError_t ce = wait_end(t); /* copies to pageable memory wait as well, without an end */
    if (!ce) ce = fetch(t, t->got, 0, n);
    if (!ce) ce = fetch(t, t->got + (size_t)n * cols, last, n);
    if (!ce) ce = wait_end(t);
    if (ce) return ERR_DEVICE;
    if (first) memcpy(t->right, t->got, (size_t)n * row);
    for (int i = 0; i < 2 * n; i++) {
        int like = i < n ? i : (last + i - n) % LOOK_ROWS;
        if (memcmp(t->got + (size_t)i * cols, t->right + (size_t)like * cols, row) != 0)
            return ERR_NONE;
    }
    *right = true;
    return ERR_NONE;
}

static uint64_t bits_of(const float *v, size_t n)
{
    uint64_t h = 14695981039346656037ULL;
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], 4);
        h = (h ^ u) * HASH_PRIME;
        h ^= h >> 29;
    }
    return h ? h : 1;
}

/* One candidate with the largest number of rows of a bucket, and with three others. */
static err_code try_one(trial *t, candidate *c, int bucket, err *e)
{
    int most = bucket_rows(bucket), least = bucket > 0 ? bucket_rows(bucket - 1) + 1 : 1;
    const int probe[PROBES] = {most, least, (least + most) / 2 | 1, most - 1};
    bool right = true;
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && right && i < PROBES; i++) {
        rc = looks_right(t, &c->algo, probe[i], i == 0, &right);
    }
    if (rc) return err_set(e, rc, "the device failed while products were tried");
    if (!right) return ERR_NONE;
    c->bits[bucket] = bits_of(t->right, (size_t)LOOK_ROWS * (size_t)t->cols);
    return ERR_NONE;
}

/* Adds the heuristic's candidates for a bucket's rows, except those that split K. */
static void gather(trial *t, int bucket)
{
    blas *b = t->b;
    blas_plan *p = t->p;
    lt_heuristic found[CANDIDATES];
    int n = 0;
    lt_status s = set_rows(b, p, bucket_rows(bucket), p->n);
    if (!s) {
        s = b->api.heuristic(b->handle, p->desc, p->lw, p->lx, p->ly, p->ly, b->pref, CANDIDATES,
                             found, &n);
    }
    for (int i = 0; !s && i < n; i++) { /* else our own has to do */
        int32_t split = 0;
        size_t written;
        const lt_algo *algo = &found[i].algo;
        int k = 0;
        if (found[i].state || found[i].workspace > b->workspace_bytes) continue;
        if (b->api.config_get(algo, LT_CONFIG_SPLITK_NUM, &split, sizeof(split), &written) == 0 &&
            split > 1)
            continue;
        while (k < t->n && memcmp(&t->c[k].algo, algo, sizeof(*algo)) != 0) k++;
        if (k == t->n) {
            t->c[t->n++] = (candidate){.algo = *algo};
            memset(t->c[k].named, CANDIDATES, sizeof(t->c[k].named));
        }
        t->c[k].named[bucket] = (int8_t)i;
    }
}

/* The rank of a candidate among those of a bucket with equal bits; the lowest is taken. */
static int place_of(const trial *t, const candidate *c, int bucket)
{
    enum { FIRST, NAMED, LATER = NAMED + CANDIDATES + 1, OURS, LAST };
    const blas_choice *by = t->b->choice;
    int rows = bucket_rows(bucket);
    bool slow = t->p->codes.form && rows > GEMM_SMALL_ROWS && rows < by->slice_rows;
    switch (way_of(&c->algo)) {
    case BY_CHAIN: return rows <= by->chain_rows ? FIRST : LATER;
    case BY_WGMMA: return slow ? LAST : LATER;
    case BY_CHUNKS: return OURS;
    default: return NAMED + c->named[bucket];
    }
}

/* The candidate that makes a bucket's products with these bits; NULL: none does. */
static const candidate *chosen(const trial *t, int bucket, uint64_t bits)
{
    const candidate *best = NULL;
    for (int i = 0; i < t->n; i++) {
        const candidate *c = &t->c[i];
        if (c->bits[bucket] != bits) continue;
        if (!best || place_of(t, c, bucket) < place_of(t, best, bucket)) best = c;
    }
    return best;
}

/* Whether every bucket has a candidate with these bits. */
static bool everywhere(const trial *t, int n_buckets, uint64_t bits)
{
    int i = 0;
    while (i < n_buckets && chosen(t, i, bits)) i++;
    return i == n_buckets;
}

static void log_bucket(const trial *t, int bucket, uint64_t law)
{
    char same[64] = "", other[64] = "";
    for (way w = 0; w < WAYS; w++) {
        bool has[2] = {false, false};
        for (int i = 0; i < t->n; i++) {
            const candidate *c = &t->c[i];
            if (way_of(&c->algo) == w && c->bits[bucket]) has[c->bits[bucket] != law] = true;
        }
        for (int i = 0; i < 2; i++) {
            char *to = i ? other : same;
            size_t at = strlen(to);
            if (has[i]) (void)snprintf(to + at, sizeof(same) - at, " %s", way_name[w]);
        }
    }
    log_debug("engine", "products %d x %d, to %d rows: by %s; equal bits:%s; others:%s", t->p->n,
              t->p->k, bucket_rows(bucket), way_name[way_of(&chosen(t, bucket, law)->algo)], same,
              other[0] ? other : " none");
}

/* The summation order: bits that some candidate gives in every bucket; of several, those of the
 * candidate that the heuristic named first. */
static err_code choose(trial *t, int n_buckets, err *e)
{
    blas_plan *p = t->p;
    uint64_t law = 0;
    for (int i = 0; i < t->n && !law; i++) {
        uint64_t bits = t->c[i].bits[0];
        if (bits && everywhere(t, n_buckets, bits)) law = bits;
    }
    if (!law) {
        return err_set(e, ERR_UNSUPPORTED,
                       "cuBLAS has no product for a matrix of %d x %d that gives the same bits for "
                       "every number of rows",
                       p->n, p->k);
    }
    int n_own = 0;
    bool own_order = false;
    for (int i = 0; i < t->n; i++)
        own_order |= way_of(&t->c[i].algo) == BY_CHUNKS && t->c[i].bits[0] == law;
    p->order = own_order ? 0 : law;
    p->n_buckets = n_buckets;
    for (int i = 0; i < n_buckets; i++) {
        p->algo[i] = chosen(t, i, law)->algo;
        log_bucket(t, i, law);
        n_own += is_own(&p->algo[i]);
    }
    log_info("engine", "products %d x %d: of %d sizes ours in %d", p->n, p->k, n_buckets, n_own);
    return ERR_NONE;
}

static err_code try_all(trial *t, int n_buckets, err *e)
{
    err_code rc = ERR_NONE;
    bool codes = t->p->codes.form != GEMM_PLAIN;
    for (int i = 0; !t->b->ours && !codes && i < n_buckets; i++) gather(t, i);
    bool halves = t->p->type != DT_F32 && t->p->k % 8 == 0;
    /* Both: no manual promises that wgmma has the bits of mma.sync.  If they differ, only one of
     * them can match the order of few rows. */
    if (halves && t->b->wide) t->c[t->n++] = (candidate){.algo = own_by(BY_WGMMA)};
    if (halves) t->c[t->n++] = (candidate){.algo = own_by(BY_CHUNKS)};
    /* Last: it takes few rows only, and so must not decide the order. */
    if (halves && t->b->streams && !codes) t->c[t->n++] = (candidate){.algo = own_by(BY_CHAIN)};
    for (int c = 0; !rc && c < t->n; c++) {
        for (int i = 0; !rc && i < n_buckets; i++) {
            t->b->trying = trial_of(way_of(&t->c[c].algo), bucket_rows(i));
            rc = try_one(t, &t->c[c], i, e);
        }
    }
    if (!rc) t->b->trying = NULL;
    return rc ? rc : choose(t, n_buckets, e);
}

static err_code describe(blas *b, blas_plan *p, int rows, err *e)
{
    int type = lt_type(p->type);
    uint64_t n = (uint64_t)p->n, k = (uint64_t)p->k;
    int32_t transposed = LT_OP_T;
    lt_status s = b->api.desc_create(
        &p->desc, p->type == DT_F32 ? LT_COMPUTE_32F_PEDANTIC : LT_COMPUTE_32F, LT_R_32F);
    if (!s) s = b->api.desc_set(p->desc, LT_DESC_TRANSA, &transposed, sizeof(transposed));
    if (!s) s = b->api.layout_create(&p->lw, type, k, n, (int64_t)k);
    if (!s) s = b->api.layout_create(&p->lx, type, k, (uint64_t)rows, (int64_t)k);
    if (!s) s = b->api.layout_create(&p->ly, LT_R_32F, n, (uint64_t)rows, (int64_t)n);
    return s ? lt_fail(s, "cublasLtMatrixLayoutCreate", e) : ERR_NONE;
}

static err_code plan_make(blas *b, blas_plan *p, int max_rows, const void *w, void *trial_memory,
                          cudaStream_t stream, err *e)
{
    int rows = trial_rows(max_rows), n_buckets = 1;
    while (n_buckets < BLAS_BUCKETS && bucket_rows(n_buckets) <= rows) n_buckets++;
    size_t x_bytes = (size_t)rows * (size_t)p->k * dtype_bytes(p->type);
    trial t = {.b = b,
               .p = p,
               .w = w,
               .x = trial_memory,
               .y = (float *)((char *)trial_memory + (x_bytes + 255) / 256 * 256),
               .cols = p->n < 2 * LOOK_COLS ? p->n : 2 * LOOK_COLS,
               .stream = stream};
    err_code rc = p->codes.form ? ERR_NONE : describe(b, p, rows, e);
    if (rc) return rc;
    char *x = malloc(x_bytes);
    float *sums = malloc(3 * (size_t)LOOK_ROWS * (size_t)t.cols * sizeof(float));
    candidate *all = calloc(BLAS_BUCKETS * CANDIDATES + BY_CUBLAS, sizeof(*all));
    if (!x || !sums || !all) {
        rc = err_set(e, ERR_NOMEM, "no memory to try products");
    } else {
        t.c = all;
        t.right = sums;
        t.got = t.right + (size_t)LOOK_ROWS * (size_t)t.cols;
        fill_x(x, p->type, rows, p->k);
        cudaError_t ce = cudaMemcpyAsync(t.x, x, x_bytes, cudaMemcpyHostToDevice, stream);
        if (!ce) ce = cudaEventCreateWithFlags(&t.end, cudaEventDisableTiming);
        if (ce) rc = err_set(e, ERR_DEVICE, "products: %s", cudaGetErrorString(ce));
        if (!rc) rc = try_all(&t, n_buckets, e);
    }
    if (t.end) (void)cudaEventDestroy(t.end);
    free(x);
    free(sums);
    free(all);
    return rc;
}

err_code blas_plan_get(blas *b, const blas_plan **out, dtype type, int n, int k,
                       const gemm_codes *codes, int max_rows, const void *w, void *trial_memory,
                       cudaStream_t stream, err *e)
{
    *out = blas_plan_find(b, type, n, k, codes);
    if (*out) return ERR_NONE;
    if (b->n_plan == BLAS_SHAPES)
        return err_set(e, ERR_LIMIT, "more than %d shapes of matrices", BLAS_SHAPES);
    blas_plan *p = &b->plan[b->n_plan];
    *p = (blas_plan){.type = type, .n = n, .k = k};
    if (codes) p->codes = *codes;
    err_code rc = plan_make(b, p, max_rows, w, trial_memory, stream, e);
    if (rc) {
        plan_clear(b, p);
        return rc;
    }
    b->n_plan++;
    *out = p;
    return ERR_NONE;
}

uint64_t blas_order(const blas *b)
{
    uint64_t h = 0;
    for (int i = 0; i < b->n_plan; i++) {
        const blas_plan *p = &b->plan[i];
        if (p->order) h = (h ^ p->order ^ (uint64_t)p->n << 32 ^ (uint64_t)p->k) * HASH_PRIME;
    }
    return h;
}

bool blas_adds(const blas_plan *p, int rows)
{
    return is_own(&p->algo[bucket_of(p, rows)]);
}

bool blas_streams(const blas_plan *p, int rows)
{
    return way_of(&p->algo[bucket_of(p, rows)]) == BY_CHAIN;
}

bool blas_inside(const blas_plan *p, int rows)
{
    return p->inside[bucket_of(p, rows)];
}

void blas_set_inside(blas *b, const blas_plan *p, int rows)
{
    b->plan[p - b->plan].inside[bucket_of(p, rows)] = true;
}

bool blas_gates(const blas *b, const blas_plan *p, int rows)
{
    static uint16_t somewhere;
    gemm_args a = own_args(b, p, &p->algo[bucket_of(p, rows)], rows);
    a.gated = &somewhere;
    if (p->codes.form && p->n / 2 % GEMM_PANEL != 0) return false;
    if (rows <= GEMM_SMALL_ROWS) return blas_adds(p, rows);
    return p->codes.form ? slices(b, &a) : a.wide && gemm_wide_takes(&a);
}

err_code blas_product(blas *b, const blas_plan *p, const void *w, const void *x, float *y, int rows,
                      blas_sum more, cudaStream_t stream, err *e)
{
    const lt_algo *algo = &p->algo[bucket_of(p, rows)];
    assert((!more.bias && !more.res && !more.gated) || is_own(algo));
    lt_status s = multiply(b, p, algo, w, x, y, rows, more, stream);
    return s ? lt_fail(s, is_own(algo) ? "cu_gemm" : "cublasLtMatmul", e) : ERR_NONE;
}

err_code blas_unplanned(const blas *b, dtype type, int n, int k, const void *w,
                        const gemm_codes *codes, const void *x, float *y, int rows, blas_sum more,
                        const int32_t *place, cudaStream_t stream, err *e)
{
    gemm_args a = {.type = type,
                   .w = w,
                   .x = x,
                   .y = y,
                   .bias = more.bias,
                   .res = more.res,
                   .place = place,
                   .n = n,
                   .k = k,
                   .rows = rows,
                   .stride = more.stride ? more.stride : n,
                   .n_sm = b->n_sm,
                   .gated = more.gated,
                   .gelu = more.gelu,
                   .early = more.early};
    if (codes) a.codes = *codes;
    cudaError_t ce = cu_gemm(stream, &a);
    return ce ? err_set(e, ERR_DEVICE, "cu_gemm: %s", cudaGetErrorString(ce)) : ERR_NONE;
}
