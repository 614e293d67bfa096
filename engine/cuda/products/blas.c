/* blas.c -- plans: candidates of the heuristic, tried on the device for equal bits and for time. */
#include "engine/cuda/products/blas.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/cuda/products/gemm.h"

enum {
    CANDIDATES = 8, /* of each bucket */
};

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
    b->trying = BE_TRIAL_N;
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

/* Whose kernels make a product: ours by chunks, and where rows are many by wgmma; ours by one
 * chain, of few rows alone, by each cut; cuBLAS's. */
typedef enum { BY_CHUNKS, BY_WGMMA, BY_CHAIN, BY_CUBLAS = BY_CHAIN + BLAS_CUTS, WAYS } way;

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

static bool in_clusters(way w)
{
    return w >= BY_CHAIN + BLAS_CUT_CLUSTER && w < BY_CUBLAS;
}

static bool by_chain(way w)
{
    return w >= BY_CHAIN && w < BY_CUBLAS;
}

void blas_cut(const blas *b, int cut, gemm_args *a)
{
    static const struct {
        int part, of, ring;
    } cuts[BLAS_CUT_CLUSTER] = {
        {1, 1, GEMM_RING}, {1, 1, GEMM_DEEP}, {2, 3, GEMM_DEEP}, {1, 2, GEMM_DEEP}};
    if (cut >= BLAS_CUT_CLUSTER) {
        a->n_sm = b->cluster_sm[cut - BLAS_CUT_CLUSTER];
        a->stream = GEMM_RING;
        a->cluster = 2 << (cut - BLAS_CUT_CLUSTER);
        return;
    }
    int n_sm = b->n_sm * cuts[cut].part / cuts[cut].of;
    a->n_sm = n_sm > 0 ? n_sm : 1;
    a->stream = cuts[cut].ring;
    if (a->n_sm < b->n_sm && !gemm_stream_takes(a)) a->stream = GEMM_RING; /* as deep as fits */
}

/* Few rows go another way by the one, many by the other. */
static be_trial trial_of(way w, int rows)
{
    if (rows > GEMM_SMALL_ROWS) return w == BY_WGMMA ? BE_TRIAL_WGMMA : BE_TRIAL_N;
    if (in_clusters(w)) return BE_TRIAL_CLUSTER;
    return by_chain(w) ? BE_TRIAL_CHAIN : BE_TRIAL_N;
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
                   .wide = w == BY_WGMMA};
    if (by_chain(w)) blas_cut(b, (int)(w - BY_CHAIN), &a);
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

/* What is compared of a result: its first and last rows, of each the first and last columns. */
enum { LOOK_ROWS = BLAS_ROWS_LEAST, LOOK_COLS = 2048, PROBES = 4, RUNS = 2 };

/* One algorithm, and what it does with each bucket's rows. */
typedef struct candidate {
    lt_algo algo;
    uint64_t bits[BLAS_BUCKETS]; /* of the 16 rows that come again and again; 0: it is no choice */
    float us[BLAS_BUCKETS];      /* the least time of one run */
} candidate;

typedef struct trial {
    blas *b;
    blas_plan *p;
    const void *w;
    char *x;
    float *y;
    int cols;           /* compared of each row */
    float *right, *got; /* host, [LOOK_ROWS][cols], [2 * LOOK_ROWS][cols] */
    cudaEvent_t begin, end;
    cudaStream_t stream;
    candidate *c;
    int n;
} trial;

/* Behind all that was enqueued. */
static cudaError_t wait_end(const trial *t)
{
    cudaError_t ce = cudaEventRecord(t->end, t->stream);
    return ce ? ce : wait_event(t->b->wait, t->end);
}

/* Values of either sign over fourteen binades, other ones in each column, the same 16 rows again
 * and again.  Over four, 64 of F16 gave an H200 the same bits in any order, and other ones when a
 * model ran. */
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

/* Whether `rows` rows come out as the 16 of t->right do, wherever they stand; `first`: those are
 * learnt from this result.  ERR_DEVICE: nothing more can be tried. */
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
        h = (h ^ u) * 1099511628211ULL;
        h ^= h >> 29;
    }
    return h ? h : 1;
}

/* One candidate with the rows of one bucket: all of them, and other numbers that go there. */
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
    for (int i = 0; i < RUNS; i++) {
        float ms = 0;
        cudaError_t ce = cudaEventRecord(t->begin, t->stream);
        bool ran =
            multiply(t->b, t->p, &c->algo, t->w, t->x, t->y, most, (blas_sum){0}, t->stream) == 0;
        if (!ce) ce = wait_end(t);
        if (!ce) ce = cudaEventElapsedTime(&ms, t->begin, t->end);
        if (ce) return err_set(e, ERR_DEVICE, "cudaEventElapsedTime: %s", cudaGetErrorString(ce));
        if (!ran) return ERR_NONE;
        if (i == 0 || ms * 1000 < c->us[bucket]) c->us[bucket] = ms * 1000;
    }
    c->bits[bucket] = bits_of(t->right, (size_t)LOOK_ROWS * (size_t)t->cols);
    return ERR_NONE;
}

/* What the heuristic names for a bucket's rows and does not cut K in pieces by itself. */
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
        bool known = false;
        if (found[i].state || found[i].workspace > b->workspace_bytes) continue;
        if (b->api.config_get(algo, LT_CONFIG_SPLITK_NUM, &split, sizeof(split), &written) == 0 &&
            split > 1)
            continue;
        for (int k = 0; k < t->n && !known; k++) {
            known = memcmp(&t->c[k].algo, algo, sizeof(*algo)) == 0;
        }
        if (!known) t->c[t->n++] = (candidate){.algo = *algo};
    }
}

/* The fastest of those that give `bits` (0: any) for a bucket; NULL: none does. */
static const candidate *fastest(const trial *t, int bucket, uint64_t bits)
{
    const candidate *best = NULL;
    for (int i = 0; i < t->n; i++) {
        const candidate *c = &t->c[i];
        if (!c->bits[bucket] || (bits && c->bits[bucket] != bits)) continue;
        if (!best || c->us[bucket] < best->us[bucket]) best = c;
    }
    return best;
}

/* How many times as long as the fastest of each bucket the fastest with these bits takes, on
 * average; negative: some bucket has none. */
static double slowdown(const trial *t, int n_buckets, uint64_t bits)
{
    double sum = 0;
    for (int i = 0; i < n_buckets; i++) {
        const candidate *ours = fastest(t, i, bits), *any = fastest(t, i, 0);
        if (!ours) return -1;
        sum += any->us[i] > 0 ? (double)ours->us[i] / (double)any->us[i] : 1;
    }
    return sum / n_buckets;
}

/* A bucket's times of all ways, the fastest of each: "-" where there is none, "!" behind those
 * whose bits are not the law's. */
static void log_bucket(const trial *t, int bucket, uint64_t law)
{
    char said[WAYS][24];
    float least[WAYS] = {0};
    for (int w = 0; w < WAYS; w++) (void)snprintf(said[w], sizeof(said[w]), "-");
    for (int i = 0; i < t->n; i++) {
        const candidate *c = &t->c[i];
        way w = way_of(&c->algo);
        if (!c->bits[bucket] || (least[w] > 0 && c->us[bucket] >= least[w])) continue;
        least[w] = c->us[bucket];
        (void)snprintf(said[w], sizeof(said[w]), "%.1f%s", (double)c->us[bucket],
                       c->bits[bucket] == law ? "" : "!");
    }
    const candidate *c = fastest(t, bucket, law);
    log_debug("engine",
              "products %d x %d, to %d rows: %.1f us; wgmma %s, one chain %s, with a deep ring %s, "
              "on two thirds of the multiprocessors %s, on half %s, in clusters of 2 %s, of 4 %s, "
              "ours %s, cuBLAS's %s",
              t->p->n, t->p->k, bucket_rows(bucket), (double)c->us[bucket], said[BY_WGMMA],
              said[BY_CHAIN], said[BY_CHAIN + 1], said[BY_CHAIN + 2], said[BY_CHAIN + 3],
              said[BY_CHAIN + 4], said[BY_CHAIN + 5], said[BY_CHUNKS], said[BY_CUBLAS]);
}

/* The law: bits that some algorithm gives in every bucket; of several, those that the heuristic
 * named first.  Not by time: the next start would measure otherwise, and give other answers. */
static err_code choose(trial *t, int n_buckets, err *e)
{
    blas_plan *p = t->p;
    uint64_t law = 0;
    for (int i = 0; i < t->n && !law; i++) {
        uint64_t bits = t->c[i].bits[0];
        p->slowdown = bits ? slowdown(t, n_buckets, bits) : -1;
        if (p->slowdown > 0) law = bits;
    }
    if (!law) {
        return err_set(e, ERR_UNSUPPORTED,
                       "cuBLAS has no product for a matrix of %d x %d that gives the same bits for "
                       "every number of rows",
                       p->n, p->k);
    }
    int n_own = 0;
    p->n_buckets = n_buckets;
    for (int i = 0; i < n_buckets; i++) {
        const candidate *c = fastest(t, i, law);
        p->algo[i] = c->algo;
        p->us[i] = c->us[i];
        log_bucket(t, i, law);
        n_own += is_own(&c->algo);
    }
    log_info("engine",
             "products %d x %d: of %d sizes ours in %d; equal bits take %.2f times the fastest",
             p->n, p->k, n_buckets, n_own, p->slowdown);
    return ERR_NONE;
}

static err_code try_all(trial *t, int n_buckets, err *e)
{
    err_code rc = ERR_NONE;
    bool codes = t->p->codes.form != GEMM_PLAIN;
    for (int i = 0; !t->b->ours && !codes && i < n_buckets; i++) gather(t, i);
    bool halves = t->p->type != DT_F32 && t->p->k % 8 == 0;
    /* Both, for nobody promises that wgmma has the bits of mma.sync: where it has not, the law of
     * few rows leaves it out. */
    if (halves && t->b->wide) t->c[t->n++] = (candidate){.algo = own_by(BY_WGMMA)};
    if (halves) t->c[t->n++] = (candidate){.algo = own_by(BY_CHUNKS)};
    /* Last: no law of few rows alone, whatever the most is. */
    for (way w = BY_CHAIN; halves && t->b->streams && !codes && w < BY_CUBLAS; w++) {
        candidate c = {.algo = own_by(w)};
        if (own_args(t->b, t->p, &c.algo, 1).n_sm > 0) t->c[t->n++] = c; /* else no clusters */
    }
    for (int c = 0; !rc && c < t->n; c++) {
        for (int i = 0; !rc && i < n_buckets; i++) {
            t->b->trying = trial_of(way_of(&t->c[c].algo), bucket_rows(i));
            rc = try_one(t, &t->c[c], i, e);
        }
    }
    if (!rc) t->b->trying = BE_TRIAL_N;
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
        if (!ce) ce = cudaEventCreateWithFlags(&t.begin, cudaEventDefault);
        if (!ce) ce = cudaEventCreateWithFlags(&t.end, cudaEventDefault);
        if (ce) rc = err_set(e, ERR_DEVICE, "products: %s", cudaGetErrorString(ce));
        if (!rc) rc = try_all(&t, n_buckets, e);
    }
    if (t.begin) (void)cudaEventDestroy(t.begin);
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
    memset(p->inside, -1, sizeof(p->inside));
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

bool blas_adds(const blas_plan *p, int rows)
{
    return is_own(&p->algo[bucket_of(p, rows)]);
}

bool blas_streams(const blas_plan *p, int rows)
{
    return by_chain(way_of(&p->algo[bucket_of(p, rows)]));
}

int blas_inside(const blas_plan *p, int rows)
{
    return p->inside[bucket_of(p, rows)];
}

void blas_set_inside(blas *b, const blas_plan *p, int rows, int cut)
{
    b->plan[p - b->plan].inside[bucket_of(p, rows)] = (int8_t)cut;
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
