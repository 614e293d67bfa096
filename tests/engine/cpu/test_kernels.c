/* test_kernels.c -- every CPU kernel against plain double-precision loops, at every instruction set
 * that this machine has, and bit for bit against itself in other company (batch invariance).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/halves.h"
#include "engine/cpu/cpu.h"
#include "tests/run_suite.h"

static uint64_t rng = 1;

static uint32_t draw(void)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng >> 33);
}

static float uniform(void)
{
    return (float)draw() / (float)(1U << 30) - 1.0F;
}

static float *random_f32(size_t n, float scale)
{
    float *v = malloc((n + 1) * sizeof(*v));
    for (size_t i = 0; i < n; i++) v[i] = uniform() * scale;
    return v;
}

/* The values as they are after rounding to `type`, and the bytes. */
static void *as_type(float *v, size_t n, dtype type)
{
    if (type == DT_F32) {
        float *c = malloc((n + 1) * sizeof(*c));
        memcpy(c, v, n * sizeof(*c));
        return c;
    }
    uint16_t *h = malloc((n + 1) * sizeof(*h));
    for (size_t i = 0; i < n; i++) {
        if (type == DT_BF16) {
            h[i] = bf16_from_f32(v[i]);
            v[i] = bf16_to_f32(h[i]);
        } else {
            h[i] = (uint16_t)(0x3000U | (draw() & 0x83FFU)); /* a normal F16 of either sign */
            v[i] = f16_to_f32(h[i]);
        }
    }
    return h;
}

static backend *open_cpu(int isa, int threads)
{
    err e;
    backend *be;
    backend_config cfg = {.n_threads = threads, .isa = cpu_isa_name((cpu_isa)isa)};
    ck_assert_msg(be_open(&be, &backend_cpu, &cfg, &e) == ERR_NONE, "%s", e.msg);
    return be;
}

/* ------------------------------------------------------------------- linear -- */

enum { MAX_SEG = 8 };

typedef struct {
    int n_rows, d_in, d_out, n_seg;
    dtype type;
    float *x, *w, *bias, *a[MAX_SEG], *b[MAX_SEG];
    void *w_raw;
    int rank[MAX_SEG]; /* 0: no adapter */
    int row0[MAX_SEG + 1];
} problem;

static void make_problem(problem *p, dtype type, int n_rows, int d_in, int d_out, bool lora)
{
    static const int ranks[] = {1, 3, 0, 8, 16, 33, 64, 256};
    *p = (problem){.n_rows = n_rows, .d_in = d_in, .d_out = d_out, .type = type};
    p->x = random_f32((size_t)n_rows * d_in, 1);
    p->w = random_f32((size_t)d_out * d_in, 0.1F);
    p->w_raw = as_type(p->w, (size_t)d_out * d_in, type);
    p->bias = random_f32((size_t)d_out, 1);
    p->n_seg = lora ? (n_rows < MAX_SEG ? n_rows : MAX_SEG) : 1;
    dtype lt = type == DT_BF16 ? DT_BF16 : DT_F32;
    for (int s = 0; s < p->n_seg; s++) {
        p->row0[s] = n_rows * s / p->n_seg;
        p->rank[s] = lora ? ranks[s] : 0;
        if (!p->rank[s]) continue;
        p->a[s] = random_f32((size_t)p->rank[s] * d_in, 0.2F);
        p->b[s] = random_f32((size_t)p->rank[s] * d_out, 0.2F);
        free(as_type(p->a[s], (size_t)p->rank[s] * d_in, lt));
        free(as_type(p->b[s], (size_t)p->rank[s] * d_out, lt));
    }
    p->row0[p->n_seg] = n_rows;
}

static void drop_problem(problem *p)
{
    free(p->x);
    free(p->w);
    free(p->w_raw);
    free(p->bias);
    for (int s = 0; s < MAX_SEG; s++) {
        free(p->a[s]);
        free(p->b[s]);
    }
}

static double oracle(const problem *p, int row, int col)
{
    const float *x = p->x + (size_t)row * p->d_in, *w = p->w + (size_t)col * p->d_in;
    double y = (double)p->bias[col];
    for (int k = 0; k < p->d_in; k++) y += (double)x[k] * (double)w[k];
    int s = 0;
    while (row >= p->row0[s + 1]) s++;
    for (int r = 0; r < p->rank[s]; r++) {
        double v = 0;
        for (int k = 0; k < p->d_in; k++) {
            v += (double)p->a[s][(size_t)r * p->d_in + k] * (double)x[k];
        }
        y += 0.5 * v * (double)p->b[s][(size_t)col * p->rank[s] + r];
    }
    return y;
}

/* Rows [from, to) of the problem as one step. */
static float *run_rows(backend *be, const problem *p, const weight *w, const lora_view *views,
                       int from, int to)
{
    float *y = calloc((size_t)(to - from) * p->d_out + 1, sizeof(*y));
    step_seg seg[MAX_SEG];
    int n_seg = 0;
    for (int s = 0; s < p->n_seg; s++) {
        int lo = p->row0[s] > from ? p->row0[s] : from;
        int hi = p->row0[s + 1] < to ? p->row0[s + 1] : to;
        if (lo >= hi) continue;
        seg[n_seg++] = (step_seg){lo - from, hi - lo, p->rank[s] ? &views[s] : NULL};
    }
    step st = {.n_rows = to - from, .n_seg = n_seg, .seg = seg};
    linear_out out = {.y = y, .w = w, .bias = p->bias, .lora_proj = PROJ_Q};
    be_linear(be, p->x + (size_t)from * p->d_in, &out, 1, &st, 0);
    ck_assert_int_eq(be_sync(be, NULL), ERR_NONE);
    return y;
}

static void check_linear(backend *be, dtype type, int n_rows, int d_in, int d_out, bool lora)
{
    problem p;
    make_problem(&p, type, n_rows, d_in, d_out, lora);
    weight *w;
    ck_assert_int_eq(be_weight_create(be, &w, p.w_raw, type, d_out, d_in, NULL), ERR_NONE);
    lora_mat mats[MAX_SEG][PROJ_COUNT] = {0};
    lora_view views[MAX_SEG];
    for (int s = 0; s < p.n_seg; s++) {
        int r = p.rank[s];
        views[s] = (lora_view){.n_layer = 1, .rank_max = r, .mat = mats[s]};
        if (!r) continue;
        void *a = be_alloc(be, be_lora_a_bytes(be, type, r, d_in));
        void *b = be_alloc(be, be_lora_b_bytes(be, type, r, d_out));
        ck_assert_int_eq(be_lora_pack(be, type, a, b, p.a[s], p.b[s], DT_F32, r, d_in, d_out, NULL),
                         ERR_NONE);
        mats[s][PROJ_Q] = (lora_mat){.a = a, .b = b, .rank = r, .scale = 0.5F};
    }
    float *all = run_rows(be, &p, w, views, 0, n_rows);
    double tol = (type == DT_BF16 ? 2e-2 : 2e-4) * (1 + sqrt((double)d_in) * 0.1);
    for (int row = 0; row < n_rows; row++) {
        for (int col = 0; col < d_out; col += 1 + (int)(draw() % 7)) {
            double want = oracle(&p, row, col);
            double got = (double)all[(size_t)row * d_out + col];
            ck_assert_msg(fabs(want - got) <= tol * (1 + fabs(want)),
                          "type %d, %d x %d -> %d, row %d col %d: %g instead of %g", (int)type,
                          n_rows, d_in, d_out, row, col, got, want);
        }
    }
    for (int i = 0; i < 6; i++) { /* the same bits in smaller company */
        int from = (int)(draw() % (unsigned)n_rows);
        int to = i == 0 ? from + 1 : from + 1 + (int)(draw() % (unsigned)(n_rows - from));
        float *part = run_rows(be, &p, w, views, from, to);
        ck_assert_msg(memcmp(part, all + (size_t)from * d_out,
                             (size_t)(to - from) * d_out * sizeof(float)) == 0,
                      "type %d: rows %d to %d of %d differ from the whole batch (%d -> %d)",
                      (int)type, from, to, n_rows, d_in, d_out);
        free(part);
    }
    for (int s = 0; s < p.n_seg; s++) {
        be_free(be, (void *)mats[s][PROJ_Q].a);
        be_free(be, (void *)mats[s][PROJ_Q].b);
    }
    free(all);
    be_weight_destroy(be, w);
    drop_problem(&p);
}

START_TEST(linear_meets_the_oracle_and_itself)
{
    if (_i > (int)cpu_isa_detect()) return;
    static const int shape[][3] = {{1, 64, 64},   {5, 33, 7},   {16, 96, 151},
                                   {17, 32, 33},  {70, 80, 40}, {33, 576, 64},
                                   {140, 48, 96}, {9, 7, 300},  {205, 300, 70}};
    rng = 7;
    backend *be = open_cpu(_i, 2);
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        for (int type = DT_F32; type <= DT_BF16; type++) {
            check_linear(be, (dtype)type, shape[i][0], shape[i][1], shape[i][2], false);
            check_linear(be, (dtype)type, shape[i][0], shape[i][1], shape[i][2], true);
        }
    }
    be_close(be);
}
END_TEST

START_TEST(threads_change_no_bit)
{
    if (_i > (int)cpu_isa_detect()) return;
    for (int type = DT_F32; type <= DT_BF16; type += 2) {
        float *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            rng = 99;
            problem p;
            make_problem(&p, (dtype)type, 40, 320, 330, false);
            backend *be = open_cpu(_i, threads);
            weight *w;
            ck_assert_int_eq(be_weight_create(be, &w, p.w_raw, (dtype)type, 330, 320, NULL),
                             ERR_NONE);
            float *y = run_rows(be, &p, w, NULL, 0, 40);
            if (!first) first = y;
            ck_assert_mem_eq(first, y, 40 * 330 * sizeof(float));
            if (y != first) free(y);
            be_weight_destroy(be, w);
            be_close(be);
            drop_problem(&p);
        }
        free(first);
    }
}
END_TEST

/* ---------------------------------------------------------------- attention -- */

enum { SEQS = 5, MAX_POS = 1200 };

typedef struct {
    int n_head, n_kv, d, window;
    dtype type;
    int len[SEQS];
    float *q[SEQS], *k[SEQS], *v[SEQS]; /* [len][heads][d] */
} history;

static double attend_oracle(const history *h, const float *q, int seq, int pos, int head, int i)
{
    int kv = head / (h->n_head / h->n_kv), from = 0;
    if (h->window && pos >= h->window) from = pos - h->window + 1;
    double max = -INFINITY, sum = 0, out = 0, s[MAX_POS];
    for (int t = from; t <= pos; t++) {
        s[t] = 0;
        for (int j = 0; j < h->d; j++) {
            s[t] += (double)q[j] * (double)h->k[seq][((size_t)t * h->n_kv + kv) * h->d + j];
        }
        s[t] /= sqrt((double)h->d);
        if (s[t] > max) max = s[t];
    }
    for (int t = from; t <= pos; t++) {
        double p = exp(s[t] - max);
        sum += p;
        out += p * (double)h->v[seq][((size_t)t * h->n_kv + kv) * h->d + i];
    }
    return out / sum;
}

/* Feeds all sequences in chunks of at most `chunk` rows; out[seq] [len][n_head][d]. */
static void feed(backend *be, const history *h, int chunk, unsigned shuffle, float **out)
{
    attn_shape sh = {.n_layer = 2,
                     .n_head = h->n_head,
                     .n_kv_head = h->n_kv,
                     .head_dim = h->d,
                     .kv_type = h->type,
                     .window = h->window,
                     .scale = 1 / sqrtf((float)h->d)};
    int per = MAX_POS / CPU_PAGE_TOKENS + 1, n_pages = SEQS * per;
    kv_pool *kv;
    ck_assert_int_eq(be_kv_create(be, &kv, &sh, n_pages, NULL), ERR_NONE);
    /* rope of angle zero: cos 1, sin 0 */
    float *cos = malloc(MAX_POS * (size_t)h->d * sizeof(float));
    float *sin = calloc(MAX_POS * (size_t)h->d, sizeof(float));
    for (int i = 0; i < MAX_POS * h->d; i++) cos[i] = 1;
    rope_table rope = {cos, sin, MAX_POS, h->d / 2 * 2};
    int32_t *page = malloc((size_t)n_pages * sizeof(*page));
    for (int i = 0; i < n_pages; i++) page[i] = (int32_t)((i * 7 + (int)shuffle) % n_pages);
    int done[SEQS] = {0};
    for (;;) {
        step_seq seq[SEQS];
        int n_seq = 0, n_rows = 0;
        int32_t pos[SEQS * MAX_POS];
        for (int s = 0; s < SEQS; s++) {
            int n = h->len[s] - done[s] < chunk ? h->len[s] - done[s] : chunk;
            if (n <= 0) continue;
            seq[n_seq++] = (step_seq){n_rows, n, done[s], page + s * per, per};
            for (int i = 0; i < n; i++) pos[n_rows++] = done[s] + i;
        }
        if (n_seq == 0) break;
        size_t qn = (size_t)h->n_head * h->d, kn = (size_t)h->n_kv * h->d;
        float *q = malloc((size_t)n_rows * qn * sizeof(float)),
              *o = malloc((size_t)n_rows * qn * 4);
        float *k = malloc((size_t)n_rows * kn * sizeof(float)),
              *v = malloc((size_t)n_rows * kn * 4);
        int at = 0;
        for (int s = 0; s < SEQS; s++) {
            int n = h->len[s] - done[s] < chunk ? h->len[s] - done[s] : chunk;
            if (n <= 0) continue;
            memcpy(q + at * qn, h->q[s] + done[s] * qn, n * qn * 4);
            memcpy(k + at * kn, h->k[s] + done[s] * kn, n * kn * 4);
            memcpy(v + at * kn, h->v[s] + done[s] * kn, n * kn * 4);
            at += n;
        }
        step st = {.n_rows = n_rows, .pos = pos, .n_seq = n_seq, .seq = seq};
        for (int layer = 0; layer < 2; layer++) {
            be_rope_append(be, kv, q, k, v, NULL, NULL, 1e-6F, &rope, &st, layer);
        }
        be_attend(be, kv, o, q, &st, 1);
        ck_assert_int_eq(be_sync(be, NULL), ERR_NONE);
        at = 0;
        for (int s = 0; s < SEQS; s++) {
            int n = h->len[s] - done[s] < chunk ? h->len[s] - done[s] : chunk;
            if (n <= 0) continue;
            memcpy(out[s] + done[s] * qn, o + at * qn, n * qn * 4);
            at += n;
            done[s] += n;
        }
        free(q);
        free(k);
        free(v);
        free(o);
    }
    free(page);
    free(cos);
    free(sin);
    be_kv_destroy(be, kv);
}

static void make_history(history *h, const int lens[SEQS], float *out[3][SEQS])
{
    for (int s = 0; s < SEQS; s++) {
        size_t n = (size_t)lens[s], kv = n * h->n_kv * h->d;
        h->len[s] = lens[s];
        h->q[s] = random_f32(n * h->n_head * h->d, 2);
        h->k[s] = random_f32(kv, 2);
        h->v[s] = random_f32(kv, 1);
        free(as_type(h->k[s], kv, h->type));
        free(as_type(h->v[s], kv, h->type));
        for (int i = 0; i < 3; i++) out[i][s] = malloc(n * h->n_head * h->d * 4 + 1);
    }
}

/* The three have the same bits, which meet the oracle; frees all of it. */
static void check_history(history *h, float *out[3][SEQS])
{
    int n_head = h->n_head, d = h->d;
    for (int s = 0; s < SEQS; s++) {
        size_t bytes = (size_t)h->len[s] * n_head * d * 4;
        ck_assert_msg(memcmp(out[0][s], out[1][s], bytes) == 0, "chunks change bits");
        ck_assert_msg(memcmp(out[0][s], out[2][s], bytes) == 0, "decoding changes bits");
        for (int n = 0; n < 40 && h->len[s] > 0; n++) {
            int pos = (int)(draw() % (unsigned)h->len[s]), head = (int)(draw() % (unsigned)n_head);
            int i = (int)(draw() % (unsigned)d);
            size_t at = ((size_t)pos * n_head + head) * d;
            double want = attend_oracle(h, h->q[s] + at, s, pos, head, i);
            double got = (double)out[0][s][at + i];
            ck_assert_msg(fabs(want - got) < 2e-5, "seq %d pos %d head %d: %g instead of %g", s,
                          pos, head, got, want);
        }
        free(h->q[s]);
        free(h->k[s]);
        free(h->v[s]);
        for (int i = 0; i < 3; i++) free(out[i][s]);
    }
}

static void check_attend(backend *be, int n_head, int n_kv, int d, int window, dtype type)
{
    static const int lens[SEQS] = {1, 31, 70, 130, 299};
    history h = {.n_head = n_head, .n_kv = n_kv, .d = d, .window = window, .type = type};
    float *out[3][SEQS];
    make_history(&h, lens, out);
    feed(be, &h, 300, 0, out[0]);
    feed(be, &h, 1 + (int)(draw() % 90), 3, out[1]);
    feed(be, &h, 1, 11, out[2]);
    check_history(&h, out);
}

START_TEST(attention_meets_the_oracle_and_itself)
{
    if (_i > (int)cpu_isa_detect()) return;
    rng = 5;
    backend *be = open_cpu(_i, 2);
    check_attend(be, 4, 4, 16, 0, DT_F32);
    check_attend(be, 6, 3, 32, 0, DT_BF16);
    check_attend(be, 9, 3, 64, 40, DT_BF16);
    check_attend(be, 8, 1, 24, 33, DT_F32);
    check_attend(be, 4, 1, 8, 0, DT_BF16);
    be_close(be);
}
END_TEST

/* A few long contexts: more threads than items, so that each item's keys are shared out. */
START_TEST(long_contexts_are_split_and_keep_their_bits)
{
    if (_i > (int)cpu_isa_detect()) return;
    static const int lens[SEQS] = {1150, 0, 700, 0, 0}, chunk[] = {MAX_POS, 1, 7};
    static const int shape[][3] = {{4, 24, 0}, {8, 64, 600}};
    rng = 13;
    for (int i = 0; i < 2; i++) {
        history h = {.n_head = shape[i][0], .n_kv = 1, .d = shape[i][1], .window = shape[i][2]};
        h.type = i == 0 ? DT_F32 : DT_BF16;
        float *out[3][SEQS];
        make_history(&h, lens, out);
        for (int n = 0; n < 3; n++) {
            int threads = n == 0 ? 1 : 4;
            backend *be = open_cpu(_i, threads);
            feed(be, &h, chunk[n], 5, out[n]);
            cpu_state *cpu = cpu_of(be);
            size_t most = cpu_attend_scratch(cpu, MAX_POS, h.d) + 4096;
            ck_assert_int_eq(cpu->scratch[SCRATCH_ATTEND].bytes > 0,
                             threads > 1); /* it was split */
            ck_assert_uint_le(cpu->scratch[SCRATCH_ATTEND].bytes, most);
            be_close(be);
        }
        check_history(&h, out);
    }
}
END_TEST

/* --------------------------------------------------------------------- rows -- */

START_TEST(rows_meet_the_oracle)
{
    if (_i > (int)cpu_isa_detect()) return;
    rng = 3;
    backend *be = open_cpu(_i, 2);
    for (int dim = 1; dim < 70; dim += 3) {
        float *x = random_f32((size_t)dim * 3, 4), *g = random_f32((size_t)dim, 1);
        float *y = malloc((size_t)dim * 3 * sizeof(*y)), *u = random_f32((size_t)dim * 3, 1);
        be_rms_norm(be, y, x, g, 1e-5F, 0, 3, dim);
        for (int r = 0; r < 3; r++) {
            double ss = 0;
            for (int i = 0; i < dim; i++) ss += pow((double)x[r * dim + i], 2);
            for (int i = 0; i < dim; i++) {
                double want = (double)x[r * dim + i] / sqrt(ss / dim + 1e-5) * (double)g[i];
                ck_assert_double_eq_tol((double)y[r * dim + i], want, 1e-5);
            }
        }
        memcpy(y, x, (size_t)dim * 3 * sizeof(*y));
        y[0] = -200;
        be_silu_mul(be, y, u, (size_t)dim * 3);
        for (int i = 1; i < 3 * dim; i++) {
            double v = (double)x[i], want = v / (1 + exp(-v)) * (double)u[i];
            ck_assert_double_eq_tol((double)y[i], want, 1e-5);
        }
        ck_assert(fabsf(y[0]) < 1e-30F);
        free(x);
        free(g);
        free(y);
        free(u);
    }
    be_close(be);
}
END_TEST

START_TEST(embedding_rows_are_copied_exactly)
{
    rng = 1;
    backend *be = open_cpu(ISA_PORTABLE, 1);
    for (int type = DT_F32; type <= DT_BF16; type++) {
        float *v = random_f32(10 * 6, 1), out[18];
        void *raw = as_type(v, 60, (dtype)type);
        int32_t token[3] = {9, 0, 4};
        step st = {.n_rows = 3, .token = token};
        be_embed(be, out, raw, (dtype)type, 6, &st);
        for (int i = 0; i < 3; i++) ck_assert_mem_eq(out + 6 * i, v + 6 * token[i], 24);
        free(v);
        free(raw);
    }
    be_close(be);
}
END_TEST

START_TEST(half_floats_convert_exactly)
{
    for (uint32_t h = 0; h < 65536; h++) {
        int exp = (int)(h >> 10 & 31), man = (int)(h & 1023);
        double want = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
        if (h & 0x8000) want = -want;
        float got = f16_to_f32((uint16_t)h);
        if (exp == 31)
            ck_assert(man ? isnan(got) : isinf(got));
        else
            ck_assert((double)got == want);
        float b = bf16_to_f32((uint16_t)h);
        if (!isnan(b)) ck_assert_uint_eq(bf16_from_f32(b), h);
    }
    ck_assert_uint_eq(bf16_from_f32(1.00390625F), 0x3F80); /* a tie goes to even */
    ck_assert_uint_eq(bf16_from_f32(1.01171875F), 0x3F82);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, linear_meets_the_oracle_and_itself, ISA_PORTABLE, ISA_AMX + 1);
    tcase_add_loop_test(tc, threads_change_no_bit, ISA_PORTABLE, ISA_AMX + 1);
    tcase_add_loop_test(tc, attention_meets_the_oracle_and_itself, ISA_PORTABLE, ISA_AMX + 1);
    tcase_add_loop_test(tc, long_contexts_are_split_and_keep_their_bits, ISA_PORTABLE, ISA_AMX + 1);
    tcase_add_loop_test(tc, rows_meet_the_oracle, ISA_PORTABLE, ISA_AMX + 1);
    tcase_add_test(tc, embedding_rows_are_copied_exactly);
    tcase_add_test(tc, half_floats_convert_exactly);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
