/* test_gemm.cu -- engine/cuda/products/gemm.cu against f64: shapes with ragged rows, columns and k,
 * split and whole, few rows and many; and each row against itself in products of every size, bit
 * for bit. */
#include "engine/cuda/products/gemm.h"
#include "engine/cuda/products/intrin.h"
#include "engine/cuda/products/launch.h"
#include "engine/cuda/rows/rows.h"
#include "tests/emu/device_data.h"
#include "tests/run_suite.h"

enum { N_SM = 4, ROWS_MAX = 300 };

typedef struct {
    dtype type;
    int n, k;
    bool split;
} shape;

/* Of one chunk and of several, the last one short or of few k; columns that fill no block. */
static const shape shapes[] = {
    {DT_BF16, 64, 64, false},   {DT_BF16, 100, 2056, true},  {DT_F16, 129, 4096, true},
    {DT_F16, 7, 2120, true},    {DT_BF16, 600, 2184, false}, {DT_BF16, 72, 40, false},
    {DT_F16, 300, 2048, false}, {DT_BF16, 40, 10248, true},  {DT_F16, 24, 6152, true},
    {DT_BF16, 592, 712, false}, /* pairs of columns; blocks of a stream with many units */
    {DT_BF16, 16, 200, false},  /* gate and up of eight columns */
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

typedef struct {
    const shape *sh;
    uint16_t *w, *x; /* device, x [ROWS_MAX][k] */
    bool stream;
} bed;

static uint16_t half_of(const shape *sh, float f)
{
    return sh->type == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
}

static float value(const shape *sh, uint16_t h)
{
    return sh->type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static uint16_t *halves(const shape *sh, size_t n)
{
    uint16_t *p = (uint16_t *)emu_alloc(2 * n);
    for (size_t i = 0; i < n; i++) p[i] = half_of(sh, draw_float(1));
    emu_wrote(p, 2 * n);
    return p;
}

static void bed_open(bed *b, const shape *sh)
{
    b->sh = sh;
    b->stream = false;
    b->w = halves(sh, (size_t)sh->n * sh->k);
    b->x = halves(sh, (size_t)ROWS_MAX * sh->k);
}

static void bed_close(bed *b)
{
    emu_free(b->w);
    emu_free(b->x);
}

/* Makes some of x's values again, as a launch before a product makes all. */
static __global__ void again_kernel(uint16_t *x, int k)
{
    x[(int)threadIdx.x * (k / 32)] = x[(int)threadIdx.x * (k / 32)];
}

/* Rows [from, from + n) of x. */
static float *run(const bed *b, int from, int n, bool split)
{
    const shape *sh = b->sh;
    gemm_args a = {};
    a.type = sh->type;
    a.w = b->w;
    a.x = b->x + (size_t)from * sh->k;
    a.y = device_empty((size_t)n * sh->n);
    a.n = sh->n;
    a.k = sh->k;
    a.rows = n;
    a.stride = sh->n;
    a.n_sm = split ? N_SM : 0;
    a.early = emu_begins_early();
    a.stream = b->stream;
    if (sh->type != DT_F32) CU_LAUNCH(again_kernel, 1, 32, 0, NULL, (uint16_t *)a.x, sh->k);
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    const void *bad = emu_first_unwritten(a.y, (size_t)n * sh->n * sizeof(float));
    ck_assert_msg(!bad, "%d x %d, %d rows: a result is missing", sh->n, sh->k, n);
    float *host = (float *)malloc((size_t)n * sh->n * sizeof(float));
    memcpy(host, a.y, (size_t)n * sh->n * sizeof(float));
    emu_free(a.y);
    return host;
}

START_TEST(sums_meet_the_oracle)
{
    bed b;
    rng_state = 3 + (uint64_t)_i;
    emu_seed((uint64_t)_i % 2);
    bed_open(&b, &shapes[_i]);
    const shape *sh = b.sh;
    float *y = run(&b, 0, 70, true);
    for (int row = 0; row < 70; row += 3) {
        for (int c = 0; c < sh->n; c++) {
            double want = 0, size = 0;
            for (int k = 0; k < sh->k; k++) {
                double p = (double)value(sh, b.x[(size_t)row * sh->k + k]) *
                           value(sh, b.w[(size_t)c * sh->k + k]);
                want += p;
                size += fabs(p);
            }
            double got = y[(size_t)row * sh->n + c];
            ck_assert_msg(fabs(got - want) <= 1e-6 * size, "%d x %d [%d][%d]: %g, not %g", sh->n,
                          sh->k, row, c, got, want);
        }
    }
    free(y);
    bed_close(&b);
}
END_TEST

/* Alone, among few in every kernel of few rows, at any place of a tile; split and not; with sums
 * that are exact and as tensor cores make them, blocks in any order. */
START_TEST(a_row_has_one_law)
{
    static const int counts[] = {1, 7, 9, 16, 17, 33, 64, 65, 129, 200};
    bed b;
    rng_state = 31 + (uint64_t)_i;
    emu_mma_truncates(_i % 2);
    emu_seed((uint64_t)_i / 2);
    bed_open(&b, &shapes[_i % N_SHAPES]);
    size_t n = (size_t)b.sh->n;
    float *all = run(&b, 0, ROWS_MAX, true);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        int from = below(ROWS_MAX - counts[i]);
        for (int split = 0; split <= (b.sh->split && counts[i] <= GEMM_SMALL_ROWS); split++) {
            float *some = run(&b, from, counts[i], split != 0);
            ck_assert_msg(memcmp(some, all + from * n, counts[i] * n * sizeof(float)) == 0,
                          "%d x %d: rows %d to %d have other bits among %d, split %d", b.sh->n,
                          b.sh->k, from, from + counts[i], counts[i], split);
            free(some);
        }
    }
    free(all);
    bed_close(&b);
    emu_mma_truncates(0);
    emu_seed(0);
}
END_TEST

/* One chain over all of k, by 16 as they lie: the order that cuBLAS's products have. */
START_TEST(a_stream_is_one_chain)
{
    static const int counts[] = {64, 1, 8, 17, 33};
    bed b;
    rng_state = 37 + (uint64_t)_i;
    emu_seed((uint64_t)_i);
    bed_open(&b, &shapes[_i]);
    b.stream = true;
    const shape *sh = b.sh;
    size_t n = (size_t)sh->n;
    float *all = NULL;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        int from = i == 0 ? 0 : below(64 - counts[i]);
        float *some = run(&b, from, counts[i], i % 2 == 0);
        if (i == 0) {
            all = some;
            continue;
        }
        ck_assert_msg(memcmp(some, all + from * n, counts[i] * n * sizeof(float)) == 0,
                      "%d x %d: rows %d to %d have other bits among %d", sh->n, sh->k, from,
                      from + counts[i], counts[i]);
        free(some);
    }
    for (int row = 0; row < 64; row += 7) {
        for (int c = 0; c < sh->n; c++) {
            float sum = 0;
            double size = 0;
            for (int k = 0; k < sh->k; k += 16) {
                double more = sum;
                for (int j = k; j < k + 16 && j < sh->k; j++) {
                    double p = (double)value(sh, b.x[(size_t)row * sh->k + j]) *
                               value(sh, b.w[(size_t)c * sh->k + j]);
                    more += p;
                    size += fabs(p);
                }
                sum = (float)more;
            }
            float got = all[(size_t)row * n + c];
#ifdef LORAD_EMU
            double cut = 0 * size;
#else /* a device cuts off what a sum of 16 has behind its last bits */
            double cut = 1e-5 * size;
#endif
            ck_assert_msg(fabs((double)got - sum) <= cut, "%d x %d [%d][%d]: %g, not %g", sh->n,
                          sh->k, row, c, got, sum);
        }
    }
    free(all);
    bed_close(&b);
    emu_seed(0);
}
END_TEST

/* y of a product, with `bias` and something added (NULL: nothing), by the kernels that `a` says
 * and by those that `change` makes of it: the same bits, also between rows.  The caller frees. */
template <class F>
static float *same_sums(gemm_args a, const float *bias, F change)
{
    size_t n = (size_t)a.rows * (size_t)a.stride;
    float *res = device_random(n, 1), *want = device_random(n, 1), *y = device_empty(n);
    a.y = want;
    if (bias) {
        a.bias = bias;
        a.res = res;
    }
    memcpy(y, want, n * sizeof(float));
    emu_wrote(y, n * sizeof(float));
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    a.y = y;
    change(&a);
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    for (size_t at = 0; at < n; at++)
        ck_assert_msg(memcmp(&y[at], &want[at], sizeof(float)) == 0,
                      "%d x %d, %d rows: [%zu][%zu] %g, not %g", a.n, a.k, a.rows, at / a.stride,
                      at % a.stride, y[at], want[at]);
    emu_free(res);
    emu_free(want);
    return y;
}

/* Columns in places of their own, rows further apart; what lies between stays. */
static void check_places(const gemm_args *like, const float *want)
{
    enum { STRIDE = 330 };
    gemm_args a = *like;
    int32_t place[STRIDE];
    for (int c = 0; c < a.n; c++) place[c] = c + (c >= a.n / 2 ? 30 : 0);
    size_t n = (size_t)a.rows * STRIDE;
    float *y = device_random(n, 1), *before = (float *)malloc(n * sizeof(float));
    memcpy(before, y, n * sizeof(float));
    a.y = y;
    a.stride = STRIDE;
    a.place = (int32_t *)to_device(place, (size_t)a.n * sizeof(*place));
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    for (int row = 0; row < a.rows; row++) {
        for (int c = 0; c < a.n; c++) before[row * STRIDE + place[c]] = want[row * a.n + c];
    }
    ck_assert_mem_eq(y, before, n * sizeof(float));
    free(before);
    emu_free(y);
    emu_free((void *)a.place);
}

START_TEST(columns_go_to_their_places)
{
    static const int counts[] = {1, 12, 70};
    const shape f32 = {DT_F32, 45, 52, false};
    for (int i = 0; i < 3; i++) {
        bed b;
        bed_open(&b, &shapes[_i]);
        float *want = run(&b, 0, counts[i], true);
        gemm_args a = {b.sh->type, b.w,  b.x, NULL, NULL, NULL,  NULL,  b.sh->n, b.sh->k, counts[i],
                       b.sh->n,    N_SM, 0,   {},   NULL, false, false, false,   false};
        check_places(&a, want);
        free(want);
        bed_close(&b);
        float *w = device_random((size_t)f32.n * f32.k, 1), *y = device_empty(100 * f32.n);
        a = {f32.type, w,    w, y,  NULL, NULL,  NULL,  f32.n, f32.k, 1 + 10 * i,
             f32.n,    N_SM, 0, {}, NULL, false, false, false, false};
        ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
        for (int at = 0; at < a.rows * a.n; at++) {
            double sum = 0;
            for (int k = 0; k < a.k; k++)
                sum += (double)w[at / a.n * a.k + k] * w[at % a.n * a.k + k];
            ck_assert_double_le(fabs(y[at] - sum), 1e-5);
        }
        check_places(&a, y);
        emu_free(w);
        emu_free(y);
    }
}
END_TEST

/* Gate and up in one launch: what the product and then the gate give, in every kernel of few rows,
 * K split and not, and where gate and up end inside a block. */
START_TEST(gates_are_those_of_its_sums)
{
    static const int counts[] = {1, 9, 17, 64};
    bed b;
    rng_state = 47 + (uint64_t)_i;
    emu_seed((uint64_t)_i);
    bed_open(&b, &shapes[_i % N_SHAPES]);
    const shape *sh = b.sh;
    bool stream = _i >= N_SHAPES;
    if (stream && sh->n % 16 != 0) return; /* it does not take them */
    for (int i = 0; i < 4 && sh->type == DT_BF16; i++) {
        size_t n = (size_t)counts[i] * (size_t)(sh->n / 2);
        gemm_args a = {};
        a.type = sh->type;
        a.w = b.w;
        a.x = b.x;
        a.n = sh->n;
        a.k = sh->k;
        a.rows = counts[i];
        a.stride = sh->n;
        a.n_sm = N_SM;
        a.gelu = i == 1;
        a.early = emu_begins_early();
        a.stream = stream;
        a.y = device_empty((size_t)a.rows * (size_t)a.n);
        ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
        cu_silu_args g = {};
        g.gate = a.y;
        g.up = a.y + a.n / 2;
        g.in_stride = a.n;
        g.out16 = (uint16_t *)emu_alloc(n * 2);
        g.n_rows = a.rows;
        g.cols = a.n / 2;
        g.gelu = a.gelu;
        ck_assert_int_eq(cu_silu_mul(NULL, &g), cudaSuccess);
        emu_free(a.y);
        a.y = NULL;
        a.gated = (uint16_t *)emu_alloc(n * 2);
        ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
        for (size_t at = 0; at < n; at++)
            ck_assert_msg(a.gated[at] == g.out16[at], "%d x %d, %d rows [%zu]: %x, not %x", sh->n,
                          sh->k, a.rows, at, a.gated[at], g.out16[at]);
        emu_free(a.gated);
        emu_free(g.out16);
        a.rows = GEMM_SMALL_ROWS + 1;
        ck_assert_int_eq(cu_gemm(NULL, &a), cudaErrorInvalidValue);
    }
    bed_close(&b);
}
END_TEST

/* By wgmma: what the other kernels give, with sums that are exact and as sm_90 makes them, in tiles
 * that are whole and not, of one chunk and of two. */
static const shape wide_shapes[] = {
    {DT_BF16, 200, 2176, true}, {DT_F16, 194, 128, false}, {DT_BF16, 390, 64, false}};
enum { N_WIDE = sizeof(wide_shapes) / sizeof(wide_shapes[0]), WIDE_SEEDS = 2 };

START_TEST(many_rows_by_wgmma_have_the_same_bits)
{
    static const int counts[] = {65, 128, 131, 257};
    if (cu_gemm_wide_setup() != cudaSuccess) return; /* not sm_90 */
    bed b;
    rng_state = 59 + (uint64_t)_i;
    int stride = wide_shapes[_i % N_WIDE].n + 6;
    emu_seed((uint64_t)_i / N_WIDE % WIDE_SEEDS);
    emu_mma_truncates(_i / N_WIDE / WIDE_SEEDS * 2);
    bed_open(&b, &wide_shapes[_i % N_WIDE]);
    const shape *sh = b.sh;
    float *bias = device_random((size_t)sh->n, 1);
    float *one = run(&b, 40, 1, true);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (i > 0 && sh->k > 2048 && i != 2) continue; /* slow */
        gemm_args a = {};
        a.type = sh->type;
        a.w = b.w;
        a.x = b.x;
        a.n = sh->n;
        a.k = sh->k;
        a.rows = counts[i];
        a.stride = stride;
        a.n_sm = N_SM;
        float *y = same_sums(a, i % 2 ? bias : NULL, [](gemm_args *c) {
            c->wide = true;
            ck_assert(gemm_wide_takes(c));
        });
        if (i % 2 == 0)
            ck_assert_mem_eq(y + (size_t)40 * stride, one, (size_t)sh->n * sizeof(float));
        emu_free(y);
    }
    free(one);
    emu_free(bias);
    bed_close(&b);
    emu_mma_truncates(0);
    emu_seed(0);
}
END_TEST

/* Gate and up by wgmma: what the product and then the gate give, where a tile ends among them. */
START_TEST(gates_by_wgmma_are_those_of_its_sums)
{
    enum { ROWS = 131 };
    static const shape sh = {DT_BF16, 2 * 234, 128, false};
    if (cu_gemm_wide_setup() != cudaSuccess) return; /* not sm_90 */
    bed b;
    rng_state = 61 + (uint64_t)_i;
    emu_seed((uint64_t)_i);
    bed_open(&b, &sh);
    size_t n = (size_t)ROWS * (size_t)(sh.n / 2);
    float *sums = run(&b, 0, ROWS, false),
          *device = (float *)to_device(sums, 2 * n * sizeof(float));
    cu_silu_args g = {};
    g.gate = device;
    g.up = device + sh.n / 2;
    g.in_stride = sh.n;
    g.out16 = (uint16_t *)emu_alloc(n * 2);
    g.n_rows = ROWS;
    g.cols = sh.n / 2;
    g.gelu = _i == 1;
    ck_assert_int_eq(cu_silu_mul(NULL, &g), cudaSuccess);
    gemm_args a = {};
    a.type = sh.type;
    a.w = b.w;
    a.x = b.x;
    a.n = sh.n;
    a.k = sh.k;
    a.rows = ROWS;
    a.n_sm = N_SM;
    a.gated_stride = sh.n / 2;
    a.gated = (uint16_t *)emu_alloc(n * 2);
    a.gelu = g.gelu;
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaErrorInvalidValue); /* not by mma.sync */
    a.wide = true;
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    for (size_t at = 0; at < n; at++)
        ck_assert_msg(a.gated[at] == g.out16[at], "[%zu]: %x, not %x", at, a.gated[at],
                      g.out16[at]);
    free(sums);
    emu_free(device);
    emu_free(g.out16);
    emu_free(a.gated);
    bed_close(&b);
    emu_seed(0);
}
END_TEST

START_TEST(a_stream_takes_what_it_can)
{
    gemm_args a = {}, c;
    a.type = DT_BF16;
    a.n = a.stride = 4096;
    a.k = 72;
    a.rows = GEMM_SMALL_ROWS;
    a.n_sm = 132;
    a.stream = true;
    ck_assert(gemm_stream_takes(&a));
    c = a, c.rows++;
    ck_assert(!gemm_stream_takes(&c));
    ck_assert_int_eq(cu_gemm(NULL, &c), cudaErrorInvalidValue);
    c = a, c.type = DT_F32;
    ck_assert(!gemm_stream_takes(&c));
    c = a, c.codes.form = GEMM_I8;
    ck_assert(!gemm_stream_takes(&c));
    c = a, c.k = 68;
    ck_assert(!gemm_stream_takes(&c));
    c = a, c.gated = (uint16_t *)&c;
    ck_assert(gemm_stream_takes(&c));
    c.n = 24;
    ck_assert(!gemm_stream_takes(&c));
}
END_TEST

/* Others go another way. */
START_TEST(wgmma_takes_what_it_can)
{
    static float some[4];
    gemm_args a = {}, c;
    a.type = DT_BF16;
    a.n = a.stride = 8;
    a.k = 64;
    a.rows = 65;
    a.y = some;
    ck_assert(gemm_wide_takes(&a));
    c = a, c.rows = 64;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.type = DT_F32;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.k = 72;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.n = 7;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.stride = 9;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.y = some + 1;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.res = some + 1;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.gated = (uint16_t *)some, c.y = NULL;
    ck_assert(gemm_wide_takes(&c));
    c.n = 6;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.place = (const int32_t *)some;
    ck_assert(!gemm_wide_takes(&c));
    c = a, c.codes.form = GEMM_I8;
    ck_assert(!gemm_wide_takes(&c));
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
    gemm_args a = {};
    a.type = DT_BF16;
    a.n = a.stride = 8;
    a.k = 12;
    a.rows = 1;
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaErrorInvalidValue);
    a.k = 16;
    a.stride = 7;
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaErrorInvalidValue);
    a.rows = 0;
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
}
END_TEST

int main(void)
{
    if (cu_gemm_setup() != cudaSuccess || cu_gemm_stream_setup() != cudaSuccess) return 1;
    Suite *s = suite_create("gemm");
    TCase *t = tcase_create("gemm");
    tcase_set_timeout(t, 250);
    tcase_add_test(t, what_cannot_be_is_refused);
    tcase_add_test(t, a_stream_takes_what_it_can);
    tcase_add_loop_test(t, a_stream_is_one_chain, 0, N_SHAPES);
    tcase_add_loop_test(t, sums_meet_the_oracle, 0, N_SHAPES);
    tcase_add_loop_test(t, a_row_has_one_law, 0, N_SHAPES + 1);
    tcase_add_loop_test(t, gates_are_those_of_its_sums, 0, 2 * N_SHAPES);
    tcase_add_loop_test(t, columns_go_to_their_places, 1, 3); /* of both types */
    suite_add_tcase(s, t);
    t = tcase_create("wgmma");
    tcase_set_timeout(t, 250);
    tcase_add_test(t, wgmma_takes_what_it_can);
    tcase_add_loop_test(t, gates_by_wgmma_are_those_of_its_sums, 0, 2);
    tcase_add_loop_test(t, many_rows_by_wgmma_have_the_same_bits, 0, N_WIDE * WIDE_SEEDS * 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
