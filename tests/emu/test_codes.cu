/* test_codes.cu -- products with weights by their codes (engine/cuda/products/gemm_codes.cu):
 * packed and read back, each value is what weight_source.h defines, rounded to BF16; and products
 * of any number of rows have the bits of those with the same values as a plain BF16 matrix. */
#include "engine/cuda/products/codes.h"
#include "engine/cuda/products/gemm.h"
#include "tests/emu/device_data.h"
#include "tests/run_suite.h"

enum { N_SM = 4, ROWS_MAX = 200 };

typedef struct {
    gemm_form form;
    int n, k, group;
    bool zero, split;
} shape;

/* Of one chunk and of several, the last block whole or not, scales for a row, for a block and for
 * less; columns that fill no panel. */
static const shape shapes[] = {
    {GEMM_E4M3, 64, 144, 144, false, false},    {GEMM_E4M3, 88, 2304, 128, false, true},
    {GEMM_E4M3_F32, 40, 144, 16, false, false}, {GEMM_E4M3_F32, 72, 2184, 2184, false, true},
    {GEMM_I8, 100, 4224, 4224, false, true},    {GEMM_I8, 24, 256, 32, false, false},
    {GEMM_I8_F32, 130, 2080, 32, false, true},  {GEMM_I4, 64, 2176, 128, true, true},
    {GEMM_I4, 50, 144, 16, true, false},        {GEMM_I4, 600, 64, 32, false, false},
    {GEMM_I4_F16, 96, 1024, 128, true, false},  {GEMM_I4_F16, 80, 2336, 32, false, true},
    {GEMM_I4_F16, 33, 2056, 2056, true, true},  {GEMM_E4M3, 160, 2304, 128, false, true},
    {GEMM_I8, 32, 416, 32, false, false},       {GEMM_E4M3, 48, 8448, 8448, false, true},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* ---- a source -------------------------------------------------------------------------------- */

static float e4m3_of(int code)
{
    int exp = code >> 3 & 15, man = code & 7;
    float v = exp ? ldexpf((float)(8 + man), exp - 10) : ldexpf((float)man, -9);
    return code & 128 ? -v : v;
}

static float e4m3[256];

/* Its row's number is its seed. */
static void read_row(const weight_source *s, int row, const weight_row *to)
{
    const shape *sh = (const shape *)s->impl;
    uint64_t state = rng_state;
    rng_state = 77 + (uint64_t)row * 3;
    for (int k = 0; k < s->cols; k++) {
        int c = (int)(draw() & 255);
        if (s->floats && (c & 127) == 127) c--;
        if (s->bits == 4) c &= 15;
        to->codes[k] = (int8_t)c;
    }
    for (int g = 0; g < s->cols / s->group; g++) {
        float v = draw_float(0.02F) + 0.03F;
        bool half = sh->form == GEMM_I4_F16, wide = !half && s->scale_type == DT_F32;
        to->scales[g] = wide   ? v
                        : half ? f16_to_f32(f16_from_f32(v))
                               : bf16_to_f32(bf16_from_f32(v));
        if (s->form == SCALES_ZERO) to->parts[g] = (int16_t)(below(17) - 8);
    }
    rng_state = state;
}

static weight_source source_of(const shape *sh)
{
    weight_source s = {};
    s.rows = sh->n;
    s.cols = sh->k;
    s.type = DT_BF16;
    s.group = s.span = sh->group;
    s.bits = sh->form >= GEMM_I4 ? 4 : 8;
    s.least = INT8_MIN;
    for (int i = 0; i < 16; i++) s.table[i] = (int8_t)(i - 8);
    s.rounded = DT_BF16;
    s.form = sh->zero ? SCALES_ZERO : SCALES_OWN;
    bool wide = sh->form == GEMM_E4M3_F32 || sh->form == GEMM_I8_F32;
    s.scale_type = wide ? DT_F32 : sh->form == GEMM_I4_F16 ? DT_F16 : DT_BF16;
    if (sh->form <= GEMM_E4M3_F32) s.floats = e4m3;
    s.read_row = read_row;
    s.impl = sh;
    return s;
}

typedef struct {
    const shape *sh;
    gemm_codes codes;
    char *packed;        /* device */
    uint16_t *plain, *x; /* device; x [ROWS_MAX][k] */
} bed;

/* Every value as it is defined, and the same packed and read back. */
static void bed_open(bed *b, const shape *sh)
{
    for (int i = 0; i < 256; i++) e4m3[i] = e4m3_of(i);
    weight_source src = source_of(sh);
    size_t k = (size_t)sh->k, bytes = codes_bytes(&src);
    bool fits = false;
    b->sh = sh;
    ck_assert(codes_takes(&src));
    b->packed = (char *)emu_alloc(bytes);
    ck_assert_int_eq(codes_pack(&src, NULL, NULL, b->packed, &b->codes, &fits), ERR_NONE);
    ck_assert(fits);
    ck_assert_int_eq(b->codes.form, sh->form);
    emu_wrote(b->packed, bytes);
    b->plain = (uint16_t *)emu_alloc(2 * (size_t)sh->n * k);
    void *mem = malloc(weight_row_bytes(&src));
    float *got = (float *)malloc(k * sizeof(float));
    weight_row r = weight_row_place(&src, mem);
    for (int row = 0; row < sh->n; row++) {
        const char *panel = b->packed + (size_t)(row / GEMM_PANEL) * b->codes.panel_bytes;
        codes_row(&b->codes, panel, row % GEMM_PANEL, sh->k, got);
        read_row(&src, row, &r);
        for (int i = 0; i < sh->k; i++) {
            uint16_t want = bf16_from_f32(weight_row_value(&src, &r, i));
            ck_assert_msg(got[i] == bf16_to_f32(want), "form %d [%d][%d]: %g, not %g", sh->form,
                          row, i, got[i], bf16_to_f32(want));
            b->plain[(size_t)row * k + i] = want;
        }
    }
    emu_wrote(b->plain, 2 * (size_t)sh->n * k);
    free(got);
    free(mem);
    b->x = (uint16_t *)emu_alloc(2 * ROWS_MAX * k);
    for (size_t i = 0; i < ROWS_MAX * k; i++) b->x[i] = bf16_from_f32(draw_float(1));
    emu_wrote(b->x, 2 * ROWS_MAX * k);
}

static void bed_close(bed *b)
{
    emu_free(b->packed);
    emu_free(b->plain);
    emu_free(b->x);
}

/* Rows [from, from + n) of x; with what is added, too. */
static float *run(const bed *b, bool codes, int from, int n, bool split, const float *bias,
                  const float *res)
{
    const shape *sh = b->sh;
    size_t values = (size_t)n * sh->n;
    gemm_args a = {};
    a.type = DT_BF16;
    a.w = codes ? (const void *)b->packed : b->plain;
    if (codes) a.codes = b->codes;
    a.x = b->x + (size_t)from * sh->k;
    a.y = device_empty(values);
    a.bias = bias;
    a.res = res ? res + (size_t)from * sh->n : NULL;
    a.n = a.stride = sh->n;
    a.k = sh->k;
    a.rows = n;
    a.n_sm = split ? N_SM : 0;
    a.early = emu_begins_early();
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    const void *bad = emu_first_unwritten(a.y, values * sizeof(float));
    ck_assert_msg(!bad, "%d x %d, %d rows: a result is missing", sh->n, sh->k, n);
    float *host = (float *)malloc(values * sizeof(float));
    memcpy(host, a.y, values * sizeof(float));
    emu_free(a.y);
    return host;
}

/* In every kernel; sums that are exact and as tensor cores make them, blocks in any order. */
START_TEST(a_product_has_the_bits_of_its_plain_values)
{
    static const int counts[] = {1, 8, 9, 16, 29, 32, 33, 64, 65, 130};
    bed b;
    rng_state = 31 + (uint64_t)_i;
    emu_mma_truncates(_i % 2);
    emu_seed((uint64_t)_i / 2);
    bed_open(&b, &shapes[_i]);
    size_t n = (size_t)b.sh->n;
    float *all = run(&b, false, 0, ROWS_MAX, true, NULL, NULL);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        int from = below(ROWS_MAX - counts[i]);
        for (int split = 0; split <= (b.sh->split && counts[i] <= GEMM_SMALL_ROWS); split++) {
            float *some = run(&b, true, from, counts[i], split != 0, NULL, NULL);
            ck_assert_msg(memcmp(some, all + from * n, counts[i] * n * sizeof(float)) == 0,
                          "form %d, %d x %d: rows %d to %d have other bits, split %d", b.sh->form,
                          b.sh->n, b.sh->k, from, from + counts[i], split);
            free(some);
        }
    }
    free(all);
    bed_close(&b);
    emu_mma_truncates(0);
    emu_seed(0);
}
END_TEST

/* Gate and up by their codes, gated in the product: the bits of it with plain values. */
START_TEST(halves_are_gated)
{
    static const int counts[] = {1, 8, 11, 29, 64};
    bed b;
    bed_open(&b, &shapes[_i]);
    gemm_args a = {};
    a.type = DT_BF16;
    a.x = b.x;
    a.n = b.sh->n;
    a.k = b.sh->k;
    a.early = emu_begins_early();
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        size_t bytes = (size_t)counts[i] * (a.n / 2) * sizeof(uint16_t);
        uint16_t *of[2]; /* plain; codes */
        a.rows = counts[i];
        a.gelu = i % 2 != 0;
        a.n_sm = i < 3 ? N_SM : 0;
        for (int codes = 0; codes < 2; codes++) {
            a.w = codes ? (const void *)b.packed : b.plain;
            if (codes) a.codes = b.codes;
            if (!codes) a.codes.form = GEMM_PLAIN;
            a.gated = of[codes] = (uint16_t *)emu_alloc(bytes);
            bool whole = !codes || a.n / 2 % GEMM_PANEL == 0;
            ck_assert_int_eq(cu_gemm(NULL, &a), whole ? cudaSuccess : cudaErrorInvalidValue);
        }
        if (a.n / 2 % GEMM_PANEL == 0) {
            ck_assert(!emu_first_unwritten(of[1], bytes));
            ck_assert_mem_eq(of[1], of[0], bytes);
        }
        emu_free(of[0]);
        emu_free(of[1]);
    }
    bed_close(&b);
}
END_TEST

/* A product of many rows by wgmma, with room for `slice` columns at most. */
static void run_slices(const gemm_args *a, int slice)
{
    size_t bytes = (size_t)slice * (size_t)a->k * sizeof(uint16_t);
    void *room = emu_alloc(bytes);
    ck_assert_int_eq(cu_gemm_slices(NULL, a, room, bytes), cudaSuccess);
    emu_free(room);
}

/* Of each form, with scales for a row, for a block and for less: one slice and several, of which
 * the last one is no whole one; half a block of k at the end. */
static const shape sliced[] = {
    {GEMM_E4M3, 624, 192, 192, false, false},  {GEMM_E4M3_F32, 434, 192, 32, false, false},
    {GEMM_I8, 640, 128, 128, false, false},    {GEMM_I8_F32, 210, 192, 192, false, false},
    {GEMM_I4, 640, 128, 128, true, false},     {GEMM_I4_F16, 450, 320, 64, true, false},
    {GEMM_E4M3, 32, 2112, 2112, false, false}, {GEMM_E4M3_F32, 224, 128, 128, false, false},
    {GEMM_I4_F16, 896, 64, 32, false, false},
};
enum { N_SLICED = sizeof(sliced) / sizeof(sliced[0]), SLICED_ROWS = 131 };

/* Sums exact, or as sm_90 makes them by either instruction. */
START_TEST(slices_by_wgmma_have_the_bits_of_few_rows)
{
    if (cu_gemm_wide_setup() != cudaSuccess) return; /* not sm_90 */
    const shape *sh = &sliced[_i % N_SLICED];
    bed b;
    rng_state = 83 + (uint64_t)_i;
    emu_seed((uint64_t)_i);
    emu_mma_truncates(_i / N_SLICED * 2);
    bed_open(&b, sh);
    size_t n = (size_t)sh->n, stride = n + 6, values = SLICED_ROWS * stride;
    float *bias = device_random(n, 1), *res = device_random(values, 1);
    gemm_args a = {};
    a.type = DT_BF16;
    a.w = b.packed;
    a.codes = b.codes;
    a.x = b.x;
    a.n = sh->n;
    a.k = sh->k;
    a.stride = (int)stride;
    a.n_sm = N_SM;
    for (int slice = 1; slice <= 4; slice += 3) { /* once SLICE_COLS, once more than there may be */
        float *got = device_empty(values), *want = device_empty(values);
        a.bias = slice > 1 ? bias : NULL;
        a.res = slice > 1 ? res : NULL;
        a.y = got;
        a.rows = SLICED_ROWS;
        run_slices(&a, slice * 208);
        a.y = want;
        for (int row = 0; row < SLICED_ROWS; row += a.rows) {
            a.rows = SLICED_ROWS - row < 29 ? SLICED_ROWS - row : 29;
            a.x = b.x + (size_t)row * (size_t)sh->k;
            a.y = want + (size_t)row * stride;
            if (a.res) a.res = res + (size_t)row * stride;
            ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
        }
        a.x = b.x;
        for (size_t row = 0; row < SLICED_ROWS; row++) {
            ck_assert(!emu_first_unwritten(got + row * stride, n * sizeof(float)));
            ck_assert_msg(!memcmp(got + row * stride, want + row * stride, n * sizeof(float)),
                          "form %d, %d x %d, slice %d: row %zu differs", sh->form, sh->n, sh->k,
                          slice, row);
        }
        emu_free(got);
        emu_free(want);
    }
    emu_free(bias);
    emu_free(res);
    bed_close(&b);
    emu_mma_truncates(0);
    emu_seed(0);
}
END_TEST

/* Gate and up in slices: the same as few rows of them. */
START_TEST(slices_are_gated)
{
    const shape *sh = &sliced[_i];
    if (cu_gemm_wide_setup() != cudaSuccess) return; /* not sm_90 */
    bed b;
    bed_open(&b, sh);
    size_t half = (size_t)sh->n / 2, n = SLICED_ROWS * half;
    uint16_t *got = (uint16_t *)emu_alloc(n * 2), *want = (uint16_t *)emu_alloc(n * 2);
    gemm_args a = {};
    a.type = DT_BF16;
    a.w = b.packed;
    a.codes = b.codes;
    a.x = b.x;
    a.n = a.stride = sh->n;
    a.k = sh->k;
    a.n_sm = N_SM;
    a.gelu = _i % 2;
    a.gated_stride = (int)half;
    a.gated = got;
    a.rows = SLICED_ROWS;
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaErrorInvalidValue); /* not by mma.sync */
    run_slices(&a, 2 * 208);
    ck_assert(!emu_first_unwritten(got, n * 2));
    for (int row = 0; row < SLICED_ROWS; row += a.rows) {
        a.rows = SLICED_ROWS - row < 29 ? SLICED_ROWS - row : 29;
        a.x = b.x + (size_t)row * (size_t)sh->k;
        a.gated = want + (size_t)row * half;
        ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    }
    ck_assert_mem_eq(got, want, n * 2);
    emu_free(got);
    emu_free(want);
    bed_close(&b);
}
END_TEST

/* Others go another way. */
START_TEST(slices_take_what_they_can)
{
    static float some[4];
    gemm_args a = {}, c;
    a.type = DT_BF16;
    a.codes.form = GEMM_I8;
    a.n = a.stride = 64;
    a.k = 64;
    a.rows = 65;
    a.y = some;
    size_t one = (size_t)208 * 64 * 2;
    ck_assert(gemm_slices_take(&a, one));
    ck_assert(!gemm_slices_take(&a, one - 1));
    ck_assert_int_eq(cu_gemm_slices(NULL, &a, some, one - 1), cudaErrorInvalidValue);
    c = a, c.codes.form = GEMM_PLAIN;
    ck_assert(!gemm_slices_take(&c, one));
    c = a, c.rows = 64;
    ck_assert(!gemm_slices_take(&c, one));
    c = a, c.k = 72;
    ck_assert(!gemm_slices_take(&c, 2 * one));
    c = a, c.n = 63;
    ck_assert(!gemm_slices_take(&c, one));
    c = a, c.gated = (uint16_t *)some;
    ck_assert(gemm_slices_take(&c, 2 * one));
    ck_assert(!gemm_slices_take(&c, 2 * one - 1));
    c.n = 48; /* halves that are no whole panels */
    ck_assert(!gemm_slices_take(&c, 2 * one));
}
END_TEST

START_TEST(bias_and_residual_are_added)
{
    static const int counts[] = {3, 50, 70};
    for (size_t form = 0; form < N_SHAPES; form += 4) {
        bed b;
        bed_open(&b, &shapes[form]);
        float *bias = device_random((size_t)b.sh->n, 1);
        float *res = device_random((size_t)ROWS_MAX * b.sh->n, 1);
        for (int i = 0; i < 3; i++) {
            float *want = run(&b, false, 5, counts[i], true, bias, res);
            float *got = run(&b, true, 5, counts[i], true, bias, res);
            ck_assert_mem_eq(got, want, (size_t)counts[i] * b.sh->n * sizeof(float));
            free(want);
            free(got);
        }
        emu_free(bias);
        emu_free(res);
        bed_close(&b);
    }
}
END_TEST

static float bad_scale;

static void read_bad(const weight_source *s, int row, const weight_row *to)
{
    read_row(s, row, to);
    if (row == s->rows - 1) to->scales[0] = bad_scale;
}

static void read_bad_code(const weight_source *s, int row, const weight_row *to)
{
    read_row(s, row, to);
    if (row == s->rows - 1) to->codes[s->cols - 1] = (int8_t)255;
}

/* Which sources are taken, and what is found only when they are read. */
START_TEST(what_does_not_fit_is_told)
{
    weight_source src = source_of(&shapes[0]);
    gemm_codes c;
    bool fits;
    void *out = malloc(codes_bytes(&src));
    for (int i = 0; i < 256; i++) e4m3[i] = e4m3_of(i);
    src.read_row = read_bad;
    bad_scale = NAN;
    ck_assert_int_eq(codes_pack(&src, NULL, NULL, out, &c, &fits), ERR_INPUT);
    bad_scale = 1e6F; /* times 2^120 it is none */
    ck_assert_int_eq(codes_pack(&src, NULL, NULL, out, &c, &fits), ERR_NONE);
    ck_assert(!fits);
    bad_scale = 1.0F / 3; /* then all are kept as f32 */
    ck_assert_int_eq(codes_pack(&src, NULL, NULL, out, &c, &fits), ERR_NONE);
    ck_assert(fits && c.form == GEMM_E4M3_F32);
    src.read_row = read_bad_code;
    ck_assert_int_eq(codes_pack(&src, NULL, NULL, out, &c, &fits), ERR_INPUT);
    free(out);
    src = source_of(&shapes[8]);
    out = malloc(codes_bytes(&src));
    src.read_row = read_bad;
    bad_scale = 1.0F / 3; /* 4 bits: no half has it */
    ck_assert_int_eq(codes_pack(&src, NULL, NULL, out, &c, &fits), ERR_NONE);
    ck_assert(!fits);
    free(out);
    const int order[16] = {0};
    src.order = order;
    ck_assert(!codes_takes(&src));
    src.order = NULL;
    src.has_min = true;
    ck_assert(!codes_takes(&src));
    src.has_min = false;
    src.table[3] = 99;
    ck_assert(!codes_takes(&src));
    src = source_of(&shapes[8]);
    src.group = src.span = 48;
    ck_assert(!codes_takes(&src));
    src = source_of(&shapes[4]);
    src.form = SCALES_ZERO;
    ck_assert(!codes_takes(&src));
}
END_TEST

int main(void)
{
    if (cu_gemm_setup() != cudaSuccess) return 1;
    Suite *s = suite_create("codes");
    TCase *t = tcase_create("codes");
    tcase_set_timeout(t, 250);
    tcase_add_test(t, what_does_not_fit_is_told);
    tcase_add_loop_test(t, a_product_has_the_bits_of_its_plain_values, 0, N_SHAPES);
    for (int i = 0; i < N_SHAPES; i++)
        if (shapes[i].n % 2 == 0) tcase_add_loop_test(t, halves_are_gated, i, i + 1);
    tcase_add_test(t, bias_and_residual_are_added);
    tcase_add_loop_test(t, slices_by_wgmma_have_the_bits_of_few_rows, 0, 2 * N_SLICED);
    for (int i = 0; i < N_SLICED; i++)
        if (sliced[i].n / 2 % GEMM_PANEL == 0) tcase_add_loop_test(t, slices_are_gated, i, i + 1);
    tcase_add_test(t, slices_take_what_they_can);
    suite_add_tcase(s, t);
    return run_suite(s);
}
