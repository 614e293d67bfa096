/* test_gemm_lora.cu -- a product with LoRA inside against the product, the shrink and the expand
 * one after another: every bit, over ranks, chunks, outputs, rows, and blocks of any number of
 * units. */
#include "tests/emu/lora_world.h"
#include "tests/run_suite.h"

enum { CHUNK_ROWS = 8 };

typedef struct {
    dtype type;
    int k, d_out[SGMV_OUT_MAX], n_sm;
    int ranks[5];
    bool extras, bias, res, gated;
    int rows;
    const char *adapters; /* a letter a row, sorted; "-": the base */
} product_case;

static const product_case cases[] = {
    {DT_BF16, 64, {64}, 4, {8}, false, false, false, false, 1, "a"},
    /* outputs side by side, ranks of each kind, the base between them; k that ends in a stage */
    {DT_BF16,
     1160,
     {128, 64, 64},
     5,
     {8, 16, 24, 1},
     false,
     false,
     false,
     false,
     14,
     "aaaaa--bcccdee"},
    {DT_BF16, 136, {64, 128, 64}, 2, {16, 40}, true, true, false, false, 16, "abcdefghijklmnop"},
    /* chunks of eight rows that begin anywhere; two warps a unit */
    {DT_F16, 256, {192}, 4, {16, 9}, true, true, true, false, 30, "---aaaaaaaaaaabccccccccccdd---"},
    {DT_BF16,
     520,
     {192},
     2,
     {64},
     false,
     false,
     true,
     false,
     33,
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    {DT_BF16,
     200,
     {256},
     3,
     {64, 16},
     true,
     false,
     true,
     false,
     64,
     "aaaaaaaaaabbbbbbbbbccccdefghijklmnopqrstuvwxyz------ABCDEFGHIIII"},
    {DT_F16, 72, {64}, 4, {256}, false, false, true, false, 17, "aaaaaaaaaabbbbb--"},
    /* gates: pairs of units, an odd number of them, many in a block */
    {DT_BF16, 128, {64, 64}, 8, {16}, false, false, false, true, 5, "aabcd"},
    {DT_BF16,
     264,
     {192, 192},
     5,
     {16, 8, 33},
     true,
     true,
     false,
     true,
     29,
     "aaaaaaaaaaaab--ccccccccdefghi"},
    {DT_BF16,
     64,
     {448, 448},
     4,
     {8, 64},
     true,
     false,
     false,
     true,
     32,
     "abcdefghijklmnopqrstuvwxyzABCDEF"},
    /* nobody has an adapter, or one without a rank alone */
    {DT_BF16, 64, {64}, 4, {16}, false, true, true, false, 3, "---"},
};
enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static int adapter_of(char c)
{
    return c == '-' ? -1 : c >= 'a' ? c - 'a' : 26 + c - 'A';
}

/* A case on the device. */
typedef struct {
    const product_case *pc;
    world w;
    gemm_args a;
    sgmv_args p;
    uint32_t *drawn;
    void *held[24];
    int n_held;
} bed;

static void *keep(bed *b, void *p)
{
    ck_assert_int_lt(b->n_held, 24);
    return b->held[b->n_held++] = p;
}

static void *halves_of(bed *b, size_t n, float scale)
{
    uint16_t *v = (uint16_t *)malloc(2 * n);
    for (size_t i = 0; i < n; i++) {
        float f = uniform() * scale;
        v[i] = b->pc->type == DT_BF16 ? bf16_from_f32(f) : f16_from_f32(f);
    }
    void *p = keep(b, to_device(v, 2 * n));
    free(v);
    return p;
}

static float *floats_of(bed *b, size_t n)
{
    float *v = random_floats(n, 2, DT_F32), *p = (float *)keep(b, to_device(v, 4 * n));
    free(v);
    return p;
}

static void lay_lists(bed *b, const int *adapter)
{
    sgmv_seg seg[GEMM_SMALL_ROWS];
    sgmv_chunk chunk[2 * GEMM_SMALL_ROWS], tile[2];
    sgmv_counts counts;
    int rows = b->pc->rows, n_seg = segments(seg, &b->w, adapter, rows);
    int64_t floats =
        sgmv_plan(chunk, 2 * GEMM_SMALL_ROWS, tile, 2, &counts, seg, n_seg, CHUNK_ROWS, 0);
    ck_assert_int_ge(floats, 0);
    b->p.counts = (sgmv_counts *)keep(b, to_device(&counts, sizeof(counts)));
    b->p.chunk = (sgmv_chunk *)keep(b, to_device(chunk, sizeof(chunk[0]) * (size_t)rows));
    b->p.tile = b->p.chunk;
    b->p.max_small = counts.n_small;
    b->p.max_lora = counts.n_lora;
    b->p.max_all = counts.n_all;
    b->p.v_plane = (size_t)floats;
}

static void bed_open(bed *b, const product_case *pc)
{
    memset(b, 0, sizeof(*b));
    b->pc = pc;
    int adapter[GEMM_SMALL_ROWS], n_adapter = 0, n_out = 0, n = 0;
    ck_assert_int_eq((int)strlen(pc->adapters), pc->rows);
    for (int i = 0; i < pc->rows; i++) {
        adapter[i] = adapter_of(pc->adapters[i]);
        if (adapter[i] >= n_adapter) n_adapter = adapter[i] + 1;
    }
    for (; n_out < SGMV_OUT_MAX && pc->d_out[n_out]; n_out++) n += pc->d_out[n_out];
    world_make(&b->w, pc->type, pc->k, pc->d_out, n_out, n_adapter, pc->ranks, pc->extras);
    size_t rows = (size_t)pc->rows, k = (size_t)pc->k;
    b->a.type = b->p.type = pc->type;
    b->a.n = n;
    b->a.k = b->p.d_in = b->p.x_stride = pc->k;
    b->a.rows = pc->rows;
    b->a.stride = n;
    b->a.n_sm = pc->n_sm;
    b->a.stream = true;
    b->a.early = b->p.early = emu_begins_early();
    b->a.w = halves_of(b, (size_t)n * k, 1);
    b->a.x = b->p.x = halves_of(b, rows * k, 1);
    lay_lists(b, adapter);
    b->p.chunk_rows = CHUNK_ROWS;
    b->p.rank_max = b->w.rank_max;
    b->p.n_out = n_out;
    b->p.all_rows = true;
    for (int o = 0, at = 0; o < n_out; at += pc->d_out[o++]) {
        sgmv_out *out = &b->p.out[o];
        out->d_out = pc->d_out[o];
        out->mat = o;
        out->in_stride = out->out_stride = out->res_stride = n;
        if (pc->bias) out->bias = floats_of(b, (size_t)out->d_out);
        if (pc->res) out->res = floats_of(b, rows * (size_t)n);
    }
    uint32_t none[GEMM_LORA_COUNTERS] = {0};
    b->drawn = (uint32_t *)keep(b, to_device(none, sizeof(none)));
}

static void bed_close(bed *b)
{
    for (int i = 0; i < b->n_held; i++) emu_free(b->held[i]);
    world_free(&b->w);
}

/* Where outputs go: y [rows][n], each in its columns; v anew. */
static void *place(bed *b, float *y, const float *in)
{
    void *v = emu_alloc((size_t)sgmv_planes(b->p.d_in, b->p.type) * b->p.v_plane * 4 + 4);
    b->p.v = (float *)v;
    for (int o = 0, at = 0; o < b->p.n_out; at += b->p.out[o++].d_out) {
        b->p.out[o].out = y + at;
        b->p.out[o].in = in + at;
    }
    return v;
}

/* By three launches: out [rows][n] f32, or its gate. */
static void one_by_one(bed *b, float *out, uint16_t *gated)
{
    size_t n = (size_t)b->a.rows * (size_t)b->a.n;
    float *sums = (float *)emu_alloc(4 * n);
    void *v = place(b, out, sums);
    gemm_args a = b->a;
    a.y = sums;
    ck_assert_int_eq(cu_gemm(NULL, &a), cudaSuccess);
    if (b->p.max_lora > 0) ck_assert_int_eq(cu_sgmv_shrink(NULL, &b->p), cudaSuccess);
    if (gated)
        ck_assert_int_eq(cu_sgmv_expand_gated(NULL, &b->p, gated, a.gelu), cudaSuccess);
    else
        ck_assert_int_eq(cu_sgmv_expand(NULL, &b->p), cudaSuccess);
    emu_free(sums);
    emu_free(v);
}

static void at_once(bed *b, float *out, uint16_t *gated)
{
    void *v = place(b, out, out);
    gemm_args a = b->a;
    a.gated = gated;
    ck_assert(gemm_lora_takes(&a, &b->p));
    ck_assert_int_eq(cu_gemm_lora(NULL, &a, &b->p, b->drawn), cudaSuccess);
    for (int i = 0; i < GEMM_LORA_COUNTERS; i++) ck_assert_uint_eq(b->drawn[i], 0);
    emu_free(v);
}

/* By which number of blocks, and in which order of them. */
enum { PLAIN, SEEDED, FEWER, CUTS };

START_TEST(it_is_the_three_launches)
{
    const product_case *pc = &cases[_i / CUTS];
    int cut = _i % CUTS;
    static bed b;
    rng_state = 17 + (uint64_t)_i;
    bed_open(&b, pc);
    emu_seed((uint64_t)cut * 7919);
    b.a.gelu = _i % 2;
    size_t n = (size_t)b.a.rows * (size_t)b.a.n, each = pc->gated ? n / 2 : n;
    float *right = (float *)emu_alloc(4 * n), *got = (float *)emu_alloc(4 * n);
    uint16_t *right16 = (uint16_t *)emu_alloc(2 * n), *got16 = (uint16_t *)emu_alloc(2 * n);
    one_by_one(&b, right, pc->gated ? right16 : NULL);
    gemm_args wide = b.a;
    wide.n_sm /= 2; /* blocks of more columns */
    if (cut == FEWER && gemm_lora_takes(&wide, &b.p)) b.a = wide;
    for (int again = 0; again < 2; again++) {
        at_once(&b, got, pc->gated ? got16 : NULL);
        size_t cols = each / (size_t)b.a.rows;
        for (size_t i = 0; i < each; i++) {
            bool same = pc->gated ? got16[i] == right16[i] : !memcmp(got + i, right + i, 4);
            ck_assert_msg(same, "row %zu (%c), column %zu: %g, not %g", i / cols,
                          pc->adapters[i / cols], i % cols,
                          (double)(pc->gated ? bf16_to_f32(got16[i]) : got[i]),
                          (double)(pc->gated ? bf16_to_f32(right16[i]) : right[i]));
        }
    }
    emu_free(right);
    emu_free(got);
    emu_free(right16);
    emu_free(got16);
    emu_seed(0);
    bed_close(&b);
}
END_TEST

START_TEST(it_takes_what_it_can)
{
    static bed b;
    bed_open(&b, &cases[1]);
    ck_assert(gemm_lora_takes(&b.a, &b.p));
    gemm_args a = b.a;
    sgmv_args p = b.p;
    a = b.a;
    a.rows = GEMM_SMALL_ROWS + 1;
    ck_assert(!gemm_lora_takes(&a, &p));
    a = b.a;
    a.type = DT_F16;
    ck_assert(!gemm_lora_takes(&a, &p));
    a = b.a;
    a.gated = (uint16_t *)b.a.x; /* three outputs */
    ck_assert(!gemm_lora_takes(&a, &p));
    a = b.a;
    p.out[2].d_out -= 32; /* no whole block of columns */
    a.n -= 32;
    ck_assert(!gemm_lora_takes(&a, &p));
    p = b.p;
    a = b.a;
    p.n_out = 2; /* columns of nobody */
    ck_assert(!gemm_lora_takes(&a, &p));
    p = b.p;
    p.chunk_rows = 32;
    ck_assert(!gemm_lora_takes(&a, &p));
    p = b.p;
    a.n = 14 * 16 * a.n_sm; /* blocks so wide that nothing else has room */
    a.rows = GEMM_SMALL_ROWS;
    p.n_out = 1;
    p.out[0].d_out = a.n;
    p.rank_max = 16;
    ck_assert(!gemm_lora_takes(&a, &p) || a.n % SGMV_COLS == 0);
    p.rank_max = LORA_RANK_MAX;
    ck_assert(!gemm_lora_takes(&a, &p));
    ck_assert_int_eq(cu_gemm_lora(NULL, &a, &p, b.drawn), cudaErrorInvalidValue);
    bed_close(&b);
}
END_TEST

int main(void)
{
    if (cu_gemm_setup() != cudaSuccess || cu_gemm_stream_setup() != cudaSuccess ||
        cu_gemm_lora_setup() != cudaSuccess || cu_sgmv_setup() != cudaSuccess)
        return 1;
    Suite *s = suite_create("gemm_lora");
    TCase *t = tcase_create("gemm_lora");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, it_takes_what_it_can);
    tcase_add_loop_test(t, it_is_the_three_launches, 0, CUTS * N_CASES);
    suite_add_tcase(s, t);
    return run_suite(s);
}
