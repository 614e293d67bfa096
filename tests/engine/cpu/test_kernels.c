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
#include "tests/engine/random_floats.h"
#include "tests/engine/stand_ins.h"
#include "tests/run_suite.h"

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
    ck_assert_msg(stand_in_open(&be, isa, threads, &e) == ERR_NONE, "%s", e.msg);
    return be;
}

/* ------------------------------------------------------------------- linear -- */

enum { MAX_SEG = 8 };

/* A quantised matrix (engine/weight_source.h); span 0: the group. */
typedef struct {
    int bits, group, span;
    scale_form form;
    bool has_min, ordered, ascending; /* 4 bits: values one apart */
    dtype scale_type, type;
    bool floats; /* is what codes stand for, */
    dtype rounded;
    x_rounding rounding;
} form;

static const form forms[] = {
    {8, 32, 0, SCALES_OWN, false, false, false, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {4, 32, 0, SCALES_OWN, false, false, true, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {8, 16, 0, SCALES_OWN, true, false, false, DT_F32, DT_F32, false, DT_F32, X_INT8},
    {4, 64, 0, SCALES_OWN, true, true, false, DT_BF16, DT_F32, false, DT_F32, X_INT8},
    {4, 16, 0, SCALES_OWN, true, false, false, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {8, 64, 0, SCALES_OWN, false, true, false, DT_BF16, DT_F32, false, DT_F32, X_INT8},
    {5, 32, 0, SCALES_OWN, true, false, false, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {4, 64, 0, SCALES_ZERO, false, true, true, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {8, 64, 0, SCALES_ZERO, false, false, false, DT_F32, DT_F32, false, DT_F32, X_INT8},
    {2, 16, 64, SCALES_NESTED, true, false, false, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {3, 16, 64, SCALES_NESTED, false, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
    {4, 32, 64, SCALES_NESTED, true, false, true, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {4, 32, 64, SCALES_NESTED, false, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
    {5, 32, 64, SCALES_NESTED, true, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
    {6, 16, 64, SCALES_NESTED, false, false, false, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {6, 32, 64, SCALES_NESTED, false, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
    {8, 64, 0, SCALES_OWN, false, false, false, DT_F32, DT_BF16, true, DT_BF16, X_INT8},
    {8, 32, 0, SCALES_OWN, false, false, false, DT_F32, DT_F32, true, DT_F16, X_INT8},
    {4, 64, 0, SCALES_OWN, false, false, false, DT_F32, DT_BF16, true, DT_BF16, X_INT8},
    {4, 32, 0, SCALES_OWN, false, false, false, DT_F32, DT_F32, true, DT_F16, X_INT8},
    {4, 64, 0, SCALES_OWN, false, false, false, DT_F32, DT_F32, true, DT_BF16, X_INT8},
    {4, 64, 0, SCALES_OWN, false, false, false, DT_F32, DT_F32, true, DT_F32, X_INT8},
    {4, 32, 0, SCALES_OWN, true, false, true, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {4, 32, 0, SCALES_OWN, false, false, false, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {5, 32, 0, SCALES_OWN, false, false, false, DT_F16, DT_BF16, false, DT_F32, X_INT8},
    {4, 32, 0, SCALES_OWN, true, false, true, DT_F16, DT_F32, false, DT_F32, X_OUTLIERS},
    {8, 64, 0, SCALES_ZERO, false, false, false, DT_F16, DT_F32, false, DT_F32, X_OUTLIERS},
    {4, 32, 0, SCALES_OWN, true, false, true, DT_F16, DT_F32, false, DT_F32, X_INT16},
    {8, 32, 0, SCALES_OWN, false, true, false, DT_F16, DT_F32, false, DT_F32, X_INT16},
    {6, 16, 64, SCALES_NESTED, false, false, false, DT_F16, DT_F32, false, DT_F32, X_INT16},
};

/* Its rows, one after the other. */
typedef struct {
    int8_t *codes, table[16];
    float *scales, *mins, floats[256];
    int16_t *parts, *min_parts;
    int *order;
} quantised;

typedef struct {
    int n_rows, d_in, d_out, n_seg;
    dtype type;
    const form *form; /* NULL: plain */
    float *x, *xq, *w, *bias, *a[MAX_SEG], *b[MAX_SEG];
    void *w_raw;
    quantised q;
    int rank[MAX_SEG]; /* 0: no adapter */
    int row0[MAX_SEG + 1];
} problem;

static void make_problem(problem *p, dtype type, int n_rows, int d_in, int d_out, bool lora)
{
    static const int ranks[] = {1, 3, 0, 8, 16, 33, 64, 256};
    *p = (problem){.n_rows = n_rows, .d_in = d_in, .d_out = d_out, .type = type};
    p->x = random_floats((size_t)n_rows * d_in, 1);
    p->xq = p->x;
    p->w = random_floats((size_t)d_out * d_in, 0.1F);
    p->w_raw = as_type(p->w, (size_t)d_out * d_in, type);
    p->bias = random_floats((size_t)d_out, 1);
    p->n_seg = lora ? (n_rows < MAX_SEG ? n_rows : MAX_SEG) : 1;
    dtype lt = type == DT_BF16 ? DT_BF16 : DT_F32;
    for (int s = 0; s < p->n_seg; s++) {
        p->row0[s] = n_rows * s / p->n_seg;
        p->rank[s] = lora ? ranks[s] : 0;
        if (!p->rank[s]) continue;
        p->a[s] = random_floats((size_t)p->rank[s] * d_in, 0.2F);
        p->b[s] = random_floats((size_t)p->rank[s] * d_out, 0.2F);
        free(as_type(p->a[s], (size_t)p->rank[s] * d_in, lt));
        free(as_type(p->b[s], (size_t)p->rank[s] * d_out, lt));
    }
    p->row0[p->n_seg] = n_rows;
}

static void read_row(const weight_source *s, int row, const weight_row *to)
{
    const quantised *q = s->impl;
    size_t cols = (size_t)s->cols, runs = cols / (size_t)s->span, at = (size_t)row;
    size_t groups = cols / (size_t)s->group;
    memcpy(to->codes, q->codes + at * cols, cols);
    memcpy(to->scales, q->scales + at * runs, runs * sizeof(float));
    if (s->has_min) memcpy(to->mins, q->mins + at * runs, runs * sizeof(float));
    if (s->form == SCALES_OWN) return;
    memcpy(to->parts, q->parts + at * groups, groups * sizeof(int16_t));
    memcpy(to->min_parts, q->min_parts + at * groups, groups * sizeof(int16_t));
}

static float *scales_of(dtype type, size_t n)
{
    float *v = random_floats(n, 0.01F);
    free(as_type(v, n, type));
    if (type == DT_F16) /* as_type() draws its own */
        for (size_t i = 0; i < n; i++) v[i] *= 0.03125F;
    return v;
}

/* The largest of columns [k0, k1), as far as there are such. */
static float most_of(const problem *p, const float *x, int k0, int k1)
{
    float most = 0;
    for (int k = k0; k < k1 && k < p->d_in; k++)
        most = fmaxf(most, fabsf(x[p->q.order ? p->q.order[k] : k]));
    return most;
}

/* x as a group of it is rounded, of as many columns as a block of W: to whole numbers up to 127 for
 * its largest value; 16 bits: and what that leaves to steps 254 times smaller.  Outliers have them,
 * groups whose largest value is twice the mean of those of 32. */
static void round_x(const problem *p, int row)
{
    const float *x = p->x + (size_t)row * p->d_in;
    float *to = p->xq + (size_t)row * p->d_in, limit = 0;
    const x_rounding by = p->form->rounding;
    int group = p->form->group % 32 == 0 ? 32 : 16;
    for (int k = 0; k + 32 <= p->d_in; k += 32) limit += most_of(p, x, k, k + 32);
    limit = p->d_in < 32 ? INFINITY : 2 * (limit / (float)(p->d_in / 32));
    for (int k0 = 0; k0 < p->d_in; k0 += group) {
        float most = most_of(p, x, k0, k0 + group);
        for (int k = k0; k < k0 + group && k < p->d_in; k++) {
            int at = p->q.order ? p->q.order[k] : k;
            float unit = most / 127, code = most > 0 ? rintf(x[at] * (127 / most)) : 0;
            to[at] = code * unit;
            if (most > 0 && (by == X_INT16 || (by == X_OUTLIERS && most > limit)))
                to[at] += rintf((x[at] - code * unit) * (254 / unit)) * (unit / 254);
        }
    }
}

/* Every fifth group of 16 becomes larger, in some rows. */
static void make_outliers(problem *p)
{
    for (int i = 0; i < p->n_rows; i += 3)
        for (int k = 0; k < p->d_in; k++) p->x[i * p->d_in + k] *= k / 16 % 5 == 1 ? 9 : 1;
}

/* Nested scales with mins have codes from 0 on. */
static bool from_zero(const form *f)
{
    return f->form == SCALES_NESTED && f->has_min;
}

static weight_source source_of(const problem *p)
{
    const form *f = p->form;
    if (!f) return weight_source_plain(p->w_raw, p->type, p->d_out, p->d_in);
    weight_source s = {.rows = p->d_out,
                       .cols = p->d_in,
                       .type = p->type,
                       .group = f->group,
                       .span = f->span ? f->span : f->group,
                       .bits = f->bits,
                       .least = (int8_t)(from_zero(f)   ? 0
                                         : f->bits == 8 ? -128
                                         : f->bits == 5 ? -16
                                                        : -3),
                       .form = f->form,
                       .has_min = f->has_min,
                       .scale_type = f->scale_type,
                       .rounding = f->rounding,
                       .order = p->q.order,
                       .read_row = read_row,
                       .impl = &p->q};
    memcpy(s.table, p->q.table, sizeof(s.table));
    if (f->floats) s.floats = p->q.floats;
    s.rounded = f->rounded;
    return s;
}

static int16_t *draw_parts(size_t n)
{
    int16_t *v = malloc(n * sizeof(*v));
    for (size_t i = 0; i < n; i++) v[i] = (int16_t)((int)(draw() % 25) - 12);
    return v;
}

/* What codes stand for: of 8 bits four of exponent, three of fraction. */
static void draw_floats(float *to, int bits)
{
    for (int i = 0; i < 1 << bits; i++) {
        int exp = i >> 3 & 15, man = i & 7;
        float v = exp ? ldexpf((float)(8 + man), exp - 10) : ldexpf((float)man, -9);
        to[i] = bits == 4 ? uniform() : i & 128 ? -v : v;
    }
}

/* W and x become those of a quantised matrix. */
static void quantise_problem(problem *p, const form *f)
{
    p->form = f;
    quantised *q = &p->q;
    for (int i = 0; i < 16; i++)
        q->table[i] = (int8_t)(f->ascending ? i - (from_zero(f) ? 0 : 7) : (int)draw());
    if (f->floats) draw_floats(q->floats, f->bits);
    weight_source s = source_of(p);
    size_t cols = (size_t)p->d_in, n = (size_t)p->d_out * cols;
    size_t runs = (size_t)p->d_out * cols / (size_t)s.span;
    q->codes = malloc(n);
    q->scales = scales_of(f->scale_type, runs);
    q->mins = scales_of(f->scale_type, runs);
    q->parts = draw_parts(n / (size_t)f->group);
    q->min_parts = draw_parts(n / (size_t)f->group);
    for (size_t i = 0; i < n; i++) {
        int code = (int)(draw() & ((1U << f->bits) - 1));
        if (f->floats && (code & 127) == 127) code = 0; /* E4M3 has no number there */
        q->codes[i] = (int8_t)(f->bits == 4 || f->floats ? code : code + s.least);
    }
    if (f->ordered) {
        q->order = malloc(cols * sizeof(int));
        for (int k = 0; k < p->d_in; k++) q->order[k] = (k * 7 + 3) % p->d_in;
    }
    void *mem = malloc(weight_row_bytes(&s));
    weight_row r = weight_row_place(&s, mem);
    for (int row = 0; row < p->d_out; row++) {
        read_row(&s, row, &r);
        for (int k = 0; k < p->d_in; k++)
            p->w[(size_t)row * cols + (size_t)(q->order ? q->order[k] : k)] =
                weight_row_value(&s, &r, k);
    }
    free(mem);
    if (f->floats) return;
    if (f->rounding == X_OUTLIERS) make_outliers(p);
    p->xq = malloc((size_t)p->n_rows * cols * sizeof(float));
    for (int i = 0; i < p->n_rows; i++) round_x(p, i);
}

static void drop_problem(problem *p)
{
    if (p->xq != p->x) free(p->xq);
    free(p->q.codes);
    free(p->q.scales);
    free(p->q.mins);
    free(p->q.parts);
    free(p->q.min_parts);
    free(p->q.order);
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
    const float *xq = p->xq + (size_t)row * p->d_in;
    double y = (double)p->bias[col];
    for (int k = 0; k < p->d_in; k++) y += (double)xq[k] * (double)w[k];
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

static void check_linear(backend *be, const form *f, dtype type, int n_rows, int d_in, int d_out,
                         bool lora)
{
    problem p;
    make_problem(&p, type, n_rows, d_in, d_out, lora);
    if (f) quantise_problem(&p, f);
    weight *w;
    weight_source source = source_of(&p);
    ck_assert_int_eq(be_weight_create(be, &w, &source, NULL), ERR_NONE);
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
    weight *kept; /* of the same bytes */
    ck_assert_int_eq(be_weight_adopt(be, &kept, &source, be_weight_packed(be, w), NULL), ERR_NONE);
    float *by_kept = run_rows(be, &p, kept, views, 0, n_rows);
    ck_assert_mem_eq(by_kept, all, (size_t)n_rows * d_out * sizeof(float));
    free(by_kept);
    be_weight_destroy(be, kept);
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
    p.x[d_in / 2] = NAN; /* of the first row: it shows there, and nowhere else */
    float *odd = run_rows(be, &p, w, views, 0, n_rows);
    for (int col = 0; col < d_out; col++) ck_assert(isnan(odd[col]));
    ck_assert_mem_eq(odd + d_out, all + d_out, (size_t)(n_rows - 1) * d_out * sizeof(float));
    free(odd);
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
    if (!stand_in_runs(_i)) return;
    static const int shape[][3] = {{1, 64, 64},   {5, 33, 7},   {16, 96, 151},
                                   {17, 32, 33},  {70, 80, 40}, {33, 576, 64},
                                   {140, 48, 96}, {9, 7, 300},  {205, 300, 70}};
    rng = 7;
    backend *be = open_cpu(_i, 2);
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        for (int type = DT_F32; type <= DT_BF16; type++) {
            check_linear(be, NULL, (dtype)type, shape[i][0], shape[i][1], shape[i][2], false);
            check_linear(be, NULL, (dtype)type, shape[i][0], shape[i][1], shape[i][2], true);
        }
    }
    be_close(be);
}
END_TEST

/* Halves that are packed as they are lie where the same values lie that come as floats. */
START_TEST(halves_of_adapters_are_packed_as_floats_are)
{
    static const int ranks[] = {1, 7, 8, 9, 64, 150}, outs[] = {1, 5, 16, 40, 96, 131};
    enum { D_IN = 24 };
    rng = 7;
    backend *be = open_cpu(ISA_PORTABLE, 1);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++) {
        for (size_t k = 0; k < sizeof(outs) / sizeof(*outs); k++) {
            int r = ranks[i], out = outs[k];
            size_t n[2] = {(size_t)r * D_IN, (size_t)r * out};
            size_t bytes[2] = {be_lora_a_bytes(be, DT_BF16, r, D_IN),
                               be_lora_b_bytes(be, DT_BF16, r, out)};
            void *of_floats[2], *of_halves[2];
            float *f[2];
            uint16_t *h[2];
            for (int m = 0; m < 2; m++) {
                f[m] = malloc(n[m] * sizeof(**f));
                h[m] = malloc(n[m] * sizeof(**h)); /* its end is where a sanitizer sees it */
                for (size_t v = 0; v < n[m]; v++) {
                    h[m][v] = bf16_from_f32((float)(draw() % 1000) / 7);
                    f[m][v] = bf16_to_f32(h[m][v]);
                }
                of_floats[m] = be_alloc(be, bytes[m]);
                of_halves[m] = be_alloc(be, bytes[m]);
                memset(of_floats[m], 1, bytes[m]);
                memset(of_halves[m], 2, bytes[m]);
            }
            ck_assert(!be_lora_pack(be, DT_BF16, of_floats[0], of_floats[1], f[0], f[1], DT_F32, r,
                                    D_IN, out, NULL));
            ck_assert(!be_lora_pack(be, DT_BF16, of_halves[0], of_halves[1], h[0], h[1], DT_BF16, r,
                                    D_IN, out, NULL));
            for (int m = 0; m < 2; m++) {
                ck_assert_msg(memcmp(of_floats[m], of_halves[m], bytes[m]) == 0,
                              "%s of rank %d, %d columns", m ? "B" : "A", r, out);
                be_free(be, of_floats[m]);
                be_free(be, of_halves[m]);
                free(f[m]);
                free(h[m]);
            }
        }
    }
    be_close(be);
}
END_TEST

START_TEST(quantised_linear_meets_the_oracle_and_itself)
{
    if (!stand_in_runs(_i)) return;
    static const int shape[][3] = {
        {1, 64, 64}, {5, 128, 7}, {17, 192, 33}, {140, 64, 96}, {8, 576, 70}};
    rng = 11;
    backend *be = open_cpu(_i, 2);
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
            const int *s = shape[i];
            check_linear(be, &forms[f], forms[f].type, s[0], s[1], s[2], (f + i) % 2);
        }
    }
    check_linear(be, &forms[4], DT_BF16, 6, 48, 40, true); /* half a group of x at the end */
    for (int n = 2; n < 24; n += 3) { /* each number of rows beside whole tiles */
        check_linear(be, &forms[1], DT_BF16, n, 64, 40, false);
        check_linear(be, &forms[15], DT_F32, n + 1, 128, 40, false);
    }
    static const form k_types[] = {
        {2, 16, 256, SCALES_NESTED, true, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
        {3, 16, 256, SCALES_NESTED, false, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
        {4, 32, 256, SCALES_NESTED, true, false, true, DT_F16, DT_F32, false, DT_F32, X_INT8},
        {4, 32, 256, SCALES_NESTED, false, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
        {5, 32, 256, SCALES_NESTED, true, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8},
        {6, 16, 256, SCALES_NESTED, false, false, false, DT_F16, DT_F32, false, DT_F32, X_INT8}};
    for (int n = 1; n < 20; n += 3) {
        for (size_t f = 0; f < sizeof(k_types) / sizeof(k_types[0]); f++)
            check_linear(be, &k_types[f], DT_F32, n, 512, 40, false);
    }
    be_close(be);
}
END_TEST

/* Outs of one x that read it each in its own form have the bits that each has alone. */
START_TEST(outs_round_x_each_its_own_way)
{
    if (!stand_in_runs(_i)) return;
    enum { N_ROWS = 9, D_IN = 128, D_OUT = 40, OUTS = 3, PLAIN = -1 };
    /* 16 bits between two of 8; blocks of 16, plain, blocks of 32; 16 bits of blocks of 16. */
    static const int of[][OUTS] = {{1, 27, 0}, {9, PLAIN, 1}, {0, 29, 14}, {24, 25, 0}};
    backend *be = open_cpu(_i, 2);
    for (size_t n = 0; n < sizeof(of) / sizeof(of[0]); n++) {
        problem p[OUTS];
        weight *w[OUTS];
        linear_out out[OUTS];
        float *y[OUTS];
        step st = {.n_rows = N_ROWS};
        for (int o = 0; o < OUTS; o++) {
            rng = 23; /* the same x */
            make_problem(&p[o], DT_BF16, N_ROWS, D_IN, D_OUT, false);
            if (of[n][o] != PLAIN) quantise_problem(&p[o], &forms[of[n][o]]);
            if (n == 3 && p[o].form->rounding != X_OUTLIERS) make_outliers(&p[o]);
            weight_source source = source_of(&p[o]);
            ck_assert_int_eq(be_weight_create(be, &w[o], &source, NULL), ERR_NONE);
            y[o] = malloc(sizeof(float) * N_ROWS * D_OUT);
            out[o] = (linear_out){.y = y[o], .w = w[o], .bias = p[o].bias, .lora_proj = -1};
        }
        be_linear(be, p[0].x, out, OUTS, &st, 0);
        ck_assert_int_eq(be_sync(be, NULL), ERR_NONE);
        for (int o = 0; o < OUTS; o++) {
            float *alone = run_rows(be, &p[o], w[o], NULL, 0, N_ROWS);
            ck_assert_mem_eq(alone, y[o], sizeof(float) * N_ROWS * D_OUT);
            free(alone);
            free(y[o]);
            be_weight_destroy(be, w[o]);
            drop_problem(&p[o]);
        }
    }
    be_close(be);
}
END_TEST

/* DoRA's gains over a quantised matrix are those over its values. */
START_TEST(gains_are_of_the_dequantised_matrix)
{
    if (!stand_in_runs(_i)) return;
    enum { D_IN = 192, D_OUT = 40, ADAPTER = 3 };
    rng = 17;
    backend *be = open_cpu(_i, 2);
    for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
        problem p;
        make_problem(&p, forms[f].type, 8, D_IN, D_OUT, true);
        quantise_problem(&p, &forms[f]);
        weight *w, *plain;
        weight_source source = source_of(&p),
                      values = weight_source_plain(p.w, DT_F32, D_OUT, D_IN);
        ck_assert_int_eq(be_weight_create(be, &w, &source, NULL), ERR_NONE);
        ck_assert_int_eq(be_weight_create(be, &plain, &values, NULL), ERR_NONE);
        lora_pair pair = {p.a[ADAPTER], p.b[ADAPTER], DT_F32, p.rank[ADAPTER], 0.5F};
        float one[D_OUT], got[D_OUT], want[D_OUT];
        for (int i = 0; i < D_OUT; i++) one[i] = 1;
        ck_assert_int_eq(be_lora_gain(be, w, &pair, one, got, NULL), ERR_NONE);
        ck_assert_int_eq(be_lora_gain(be, plain, &pair, one, want, NULL), ERR_NONE);
        for (int i = 0; i < D_OUT; i++) ck_assert_float_eq_tol(got[i], want[i], 1e-4F * want[i]);
        be_weight_destroy(be, w);
        be_weight_destroy(be, plain);
        drop_problem(&p);
    }
    be_close(be);
}
END_TEST

/* All rows of a problem have the same bits on 1 to `most` threads. */
static void check_threads(int isa, const problem *p, const weight_source *source, int most)
{
    const size_t bytes = sizeof(float) * (size_t)p->n_rows * (size_t)p->d_out;
    float *first = NULL;
    for (int threads = 1; threads <= most; threads++) {
        backend *be = open_cpu(isa, threads);
        weight *w;
        ck_assert_int_eq(be_weight_create(be, &w, source, NULL), ERR_NONE);
        float *y = run_rows(be, p, w, NULL, 0, p->n_rows);
        if (!first) first = y;
        ck_assert_mem_eq(first, y, bytes);
        if (y != first) free(y);
        be_weight_destroy(be, w);
        be_close(be);
    }
    free(first);
}

START_TEST(threads_change_no_bit)
{
    if (!stand_in_runs(_i)) return;
    for (int type = DT_F32; type <= DT_BF16; type += 2) {
        rng = 99;
        problem p;
        make_problem(&p, (dtype)type, 40, 320, 330, false);
        weight_source source = source_of(&p);
        check_threads(_i, &p, &source, 3);
        drop_problem(&p);
    }
}
END_TEST

/* More threads than groups of rows share out x by columns, to be rounded. */
START_TEST(threads_change_no_bit_of_quantised_rows)
{
    if (!stand_in_runs(_i)) return;
    static const int of[] = {1, 3, 25, 28}; /* groups of 32, an order, outliers, 16 bits */
    for (int i = 0; i < 8; i++) {
        rng = 31;
        problem p;
        make_problem(&p, DT_F32, i % 2 ? 13 : 7, 2240, 40, false);
        quantise_problem(&p, &forms[of[i / 2]]);
        weight_source source = source_of(&p);
        check_threads(_i, &p, &source, 4);
        drop_problem(&p);
    }
}
END_TEST

/* ---------------------------------------------------------------- attention -- */

enum { SEQS = 5, MAX_POS = 1200 };

typedef struct {
    int n_head, n_kv, d, window;
    dtype type;
    double cap; /* of scores; 0: none */
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
        if (h->cap > 0) s[t] = h->cap * tanh(s[t] / h->cap);
        if (s[t] > max) max = s[t];
    }
    for (int t = from; t <= pos; t++) {
        double p = exp(s[t] - max);
        sum += p;
        out += p * (double)h->v[seq][((size_t)t * h->n_kv + kv) * h->d + i];
    }
    return out / sum;
}

/* Pages as who had them before may have left them: bytes of which no type makes a number. */
static void soil(backend *be, kv_pool *kv, int n_pages)
{
    size_t bytes = be_kv_page_bytes(be, &kv->shape);
    void *before = malloc(bytes);
    memset(before, 0xFF, bytes);
    for (int i = 0; i < n_pages; i++) be_kv_load(be, kv, i, before);
    free(before);
}

/* Feeds all sequences in chunks of at most `chunk` rows; out[seq] [len][n_head][d]. */
static void feed(backend *be, const history *h, int chunk, unsigned shuffle, float **out)
{
    attn_shape sh = {.n_layer = 2,
                     .n_head = h->n_head,
                     .n_kv_head = h->n_kv,
                     .head_dim = h->d,
                     .kv_type = h->type,
                     .scale = 1 / sqrtf((float)h->d),
                     .cap = (float)h->cap};
    /* That of the other layer is another one. */
    const int windows[] = {h->window ? 0 : 5, h->window};
    sh.layer_window = windows;
    /* So are its heads, where they can be. */
    int other = h->d > 16 ? h->d / 4 * 2 : h->d;
    const attn_heads heads[] = {{1, other}, {h->n_kv, h->d}};
    if (shuffle) sh.layer_heads = heads;
    int per = MAX_POS / be_caps(be)->page_tokens + 1, n_pages = SEQS * per;
    kv_pool *kv;
    ck_assert_int_eq(be_kv_create(be, &kv, &sh, n_pages, NULL), ERR_NONE);
    if (shuffle) soil(be, kv, n_pages);
    /* rope of angle zero: cos 1, sin 0 */
    float *cos = malloc(MAX_POS * (size_t)h->d * sizeof(float));
    float *sin = calloc(MAX_POS * (size_t)h->d, sizeof(float));
    for (int i = 0; i < MAX_POS * h->d; i++) cos[i] = 1;
    rope_table rope = {.cos = cos, .sin = sin, .max_pos = MAX_POS, .rope_dim = h->d / 2 * 2};
    int32_t *page = malloc((size_t)n_pages * sizeof(*page));
    int apart = n_pages % 7 ? 7 : 11; /* so that each page stands there once */
    for (int i = 0; i < n_pages; i++) page[i] = (int32_t)((i * apart + (int)shuffle) % n_pages);
    int done[SEQS] = {0};
    for (;;) {
        step_seq seq[SEQS];
        int n_seq = 0, n_rows = 0;
        int32_t pos[SEQS * MAX_POS];
        for (int s = 0; s < SEQS; s++) {
            int n = h->len[s] - done[s] < chunk ? h->len[s] - done[s] : chunk;
            if (n <= 0) continue;
            seq[n_seq++] = (step_seq){n_rows, n, done[s], page + s * per, per, 0};
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
            rope.rope_dim = (layer || !shuffle ? h->d : other) / 2 * 2;
            be_rope_append(be, kv, q, k, v, NULL, NULL, 1e-6F, &rope, &st, layer);
        }
        be_rope_append(be, kv, q, NULL, NULL, NULL, NULL, 1e-6F, &rope, &st, 1);
        be_attend(be, kv, o, q, NULL, &st, 1);
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

/* The values as attention sees them: heads of d values.  Those of int8 are multiples of a bf16, the
 * greatest 127 times as much, so that the kernel finds the same scale. */
static void as_kept(float *v, size_t heads, int d, dtype type)
{
    if (type != DT_I8) {
        free(as_type(v, heads * (size_t)d, type));
        return;
    }
    for (size_t i = 0; i < heads; i++, v += d) {
        int top = 0;
        for (int k = 0; k < d; k++) top = fabsf(v[k]) > fabsf(v[top]) ? k : top;
        float scale = bf16_to_f32(bf16_from_f32(fabsf(v[top]) / 127));
        v[top] = copysignf(127 * scale, v[top]);
        for (int k = 0; k < d; k++) v[k] = fminf(127, fmaxf(-127, rintf(v[k] / scale))) * scale;
    }
}

static void make_history(history *h, const int lens[SEQS], float *out[3][SEQS])
{
    for (int s = 0; s < SEQS; s++) {
        size_t n = (size_t)lens[s], kv = n * h->n_kv * h->d;
        h->len[s] = lens[s];
        h->q[s] = random_floats(n * h->n_head * h->d, 2);
        h->k[s] = random_floats(kv, 2);
        h->v[s] = random_floats(kv, 1);
        as_kept(h->k[s], n * h->n_kv, h->d, h->type);
        as_kept(h->v[s], n * h->n_kv, h->d, h->type);
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

static void check_attend(backend *be, int n_head, int n_kv, int d, int window, dtype type,
                         double cap)
{
    static const int lens[SEQS] = {1, 31, 70, 130, 299};
    history h = {
        .n_head = n_head, .n_kv = n_kv, .d = d, .window = window, .type = type, .cap = cap};
    float *out[3][SEQS];
    make_history(&h, lens, out);
    feed(be, &h, 300, 0, out[0]);
    feed(be, &h, 1 + (int)(draw() % 90), 3, out[1]);
    feed(be, &h, 1, 11, out[2]);
    check_history(&h, out);
}

START_TEST(attention_meets_the_oracle_and_itself)
{
    if (!stand_in_runs(_i)) return;
    rng = 5;
    backend *be = open_cpu(_i, 2);
    check_attend(be, 4, 4, 16, 0, DT_F32, 0);
    check_attend(be, 6, 3, 32, 0, DT_BF16, 0);
    check_attend(be, 9, 3, 64, 40, DT_BF16, 0);
    check_attend(be, 8, 1, 24, 33, DT_F32, 1.5);
    check_attend(be, 4, 1, 8, 0, DT_BF16, 0);
    check_attend(be, 6, 2, 40, 0, DT_F16, 0.7);
    check_attend(be, 8, 2, 24, 33, DT_I8, 2);
    check_attend(be, 3, 3, 64, 0, DT_I8, 0);
    check_attend(be, 5, 1, 256, 20, DT_F32, 0);
    check_attend(be, 2, 1, 512, 20, DT_BF16, 0);
    be_close(be);
}
END_TEST

/* Smaller pages are gathered, larger ones have several cells: the bits are those of 32 tokens. */
START_TEST(pages_of_any_size_give_the_same_bits)
{
    if (!stand_in_runs(_i)) return;
    static const int lens[SEQS] = {1, 31, 70, 130, 299}, sizes[] = {1, 2, 4, 8, 16, 64};
    static const struct {
        int n_head, n_kv, d, window;
        dtype type;
        double cap;
    } shapes[] = {{4, 2, 24, 0, DT_F32, 0},
                  {6, 2, 40, 33, DT_BF16, 0.7},
                  {3, 3, 64, 0, DT_F16, 0},
                  {8, 2, 24, 33, DT_I8, 2}};
    rng = 21;
    backend *be = open_cpu(_i, 2);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        history h = {.n_head = shapes[i].n_head,
                     .n_kv = shapes[i].n_kv,
                     .d = shapes[i].d,
                     .window = shapes[i].window,
                     .type = shapes[i].type,
                     .cap = shapes[i].cap};
        float *out[3][SEQS];
        make_history(&h, lens, out);
        feed(be, &h, 300, 3, out[0]);
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            be->caps.page_tokens = sizes[k];
            feed(be, &h, 1 + (int)(draw() % 90), 3, out[1 + k % 2]);
            be->caps.page_tokens = CPU_KV_BLOCK;
            for (int s = 0; s < SEQS; s++)
                ck_assert_msg(memcmp(out[0][s], out[1 + k % 2][s],
                                     (size_t)h.len[s] * (size_t)(h.n_head * h.d) * 4) == 0,
                              "pages of %d tokens change bits, type %d", sizes[k], (int)h.type);
        }
        check_history(&h, out);
    }
    be_close(be);
}
END_TEST

START_TEST(sizes_of_pages_are_checked)
{
    backend *be;
    err e;
    for (int n = -1; n < 130; n++) {
        backend_config cfg = {.n_threads = 1, .isa = "auto", .page_tokens = n};
        bool good = n == 0 || (n > 0 && n <= 64 && (n & (n - 1)) == 0);
        ck_assert_int_eq(be_open(&be, &backend_cpu, &cfg, &e), good ? ERR_NONE : ERR_INPUT);
        if (!good) ck_assert_ptr_nonnull(strstr(e.msg, "engine.page_tokens"));
        if (good) ck_assert_int_eq(be_caps(be)->page_tokens, n ? n : 32);
        if (good) be_close(be);
    }
}
END_TEST

/* Rotated keys show in the scores: one head looks at two positions, whose values are 0 and 1. */
static double weight_of_second(backend *be, const rope_table *rope, float q[], float k[2][16])
{
    attn_shape sh = {.n_layer = 1, .n_head = 1, .n_kv_head = 1, .head_dim = 16, .scale = 1};
    kv_pool *kv;
    float qs[2][16] = {{0}}, ks[2][16], v[2][16] = {{0}}, out[2][16];
    int32_t pos[2] = {0, 1}, page[1] = {0};
    step_seq seq = {0, 2, 0, page, 1, 0};
    step st = {.n_rows = 2, .pos = pos, .n_seq = 1, .seq = &seq};
    ck_assert_int_eq(be_kv_create(be, &kv, &sh, 1, NULL), ERR_NONE);
    memcpy(qs[1], q, sizeof(qs[1]));
    memcpy(ks, k, sizeof(ks));
    v[1][0] = 1;
    be_rope_append(be, kv, qs[0], ks[0], v[0], NULL, NULL, 1e-6F, rope, &st, 0);
    be_attend(be, kv, out[0], qs[0], NULL, &st, 0);
    ck_assert_int_eq(be_sync(be, NULL), ERR_NONE);
    be_kv_destroy(be, kv);
    return (double)out[1][0];
}

/* Pairs are neighbours or halves, of the first values alone, or of none. */
START_TEST(rotations_turn_what_they_should)
{
    if (!stand_in_runs(_i)) return;
    backend *be = open_cpu(_i, 1);
    float cos[16], sin[16], q[16], k[2][16];
    rng = 9;
    for (int i = 0; i < 16; i++) {
        q[i] = uniform();
        k[0][i] = uniform();
        k[1][i] = uniform();
        cos[i] = i < 8 ? 1 : cosf((float)i);
        sin[i] = i < 8 ? 0 : sinf((float)i);
    }
    for (int dim = 0; dim <= 16; dim += 4) {
        for (int pairs = 0; pairs < 2; pairs++) {
            int half = dim / 2;
            rope_table t = {.cos = cos + 8 - half,
                            .sin = sin + 8 - half,
                            .max_pos = 2,
                            .rope_dim = dim,
                            .pairs = pairs};
            double score[2] = {0, 0}, turned[2][16];
            for (int i = 0; i < 16; i++)
                turned[0][i] = (double)q[i], turned[1][i] = (double)k[1][i];
            for (int i = 0; i < half; i++) {
                int a = pairs ? 2 * i : i, b = pairs ? 2 * i + 1 : i + half;
                for (int n = 0; n < 2; n++) {
                    const float *x = n ? k[1] : q;
                    double c = (double)cos[8 + i], s = (double)sin[8 + i];
                    turned[n][a] = (double)x[a] * c - (double)x[b] * s;
                    turned[n][b] = (double)x[b] * c + (double)x[a] * s;
                }
            }
            for (int i = 0; i < 16; i++) {
                score[0] += turned[0][i] * (double)k[0][i]; /* position 0: not turned */
                score[1] += turned[0][i] * turned[1][i];
            }
            double want = 1 / (1 + exp(score[0] - score[1]));
            ck_assert_double_eq_tol(weight_of_second(be, &t, q, k), want, 1e-5);
        }
    }
    be_close(be);
}
END_TEST

/* Whatever keys and values are kept as, a query that is no number gives none. */
START_TEST(a_query_that_is_no_number_shows)
{
    if (!stand_in_runs(_i)) return;
    backend *be = open_cpu(_i, 1);
    float one[16], q[2][16], k[2][16] = {{0}}, v[2][16] = {{0}}, out[2][16];
    rope_table rope = {.cos = one, .sin = one, .max_pos = 2};
    int32_t pos[2] = {0, 1}, page[1] = {0};
    step_seq seq = {0, 2, 0, page, 1, 0};
    step st = {.n_rows = 2, .pos = pos, .n_seq = 1, .seq = &seq};
    for (dtype type = DT_F32; type <= DT_I8; type++) {
        attn_shape sh = {.n_layer = 1, .n_head = 1, .n_kv_head = 1, .head_dim = 16, .scale = 1};
        kv_pool *kv;
        sh.kv_type = type;
        for (int i = 0; i < 16; i++) q[0][i] = q[1][i] = k[0][i] = k[1][i] = v[0][i] = v[1][i] = 1;
        q[1][5] = NAN;
        ck_assert_int_eq(be_kv_create(be, &kv, &sh, 1, NULL), ERR_NONE);
        be_rope_append(be, kv, q[0], k[0], v[0], NULL, NULL, 1e-6F, &rope, &st, 0);
        be_attend(be, kv, out[0], q[0], NULL, &st, 0);
        for (int i = 0; i < 16; i++) ck_assert(!isnan(out[0][i]) && isnan(out[1][i]));
        be_kv_destroy(be, kv);
    }
    be_close(be);
}
END_TEST

/* A few long contexts: more threads than items, so that each item's keys are shared out. */
START_TEST(long_contexts_are_split_and_keep_their_bits)
{
    if (!stand_in_runs(_i)) return;
    static const int lens[SEQS] = {1150, 0, 700, 0, 0}, chunk[] = {MAX_POS, 1, 7};
    static const int shape[][3] = {{4, 24, 0}, {8, 64, 600}, {6, 32, 0}};
    rng = 13;
    static const dtype types[] = {DT_F32, DT_BF16, DT_I8};
    for (int i = 0; i < 3; i++) {
        history h = {.n_head = shape[i][0], .n_kv = 1, .d = shape[i][1], .window = shape[i][2]};
        h.type = types[i];
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
    if (!stand_in_runs(_i)) return;
    rng = 3;
    backend *be = open_cpu(_i, 2);
    for (int dim = 1; dim < 70; dim += 3) {
        /* Small values are those that the epsilon changes. */
        float *x = random_floats((size_t)dim * 3, dim % 2 ? 4 : 0.004F),
              *g = random_floats((size_t)dim, 1);
        float *y = malloc((size_t)dim * 3 * sizeof(*y)), *u = random_floats((size_t)dim * 3, 1);
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
        be_gate(be, ACT_SILU, y, u, (size_t)dim * 3);
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

static double gelu_oracle(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* The operations that only some families ask for. */
START_TEST(more_rows_meet_the_oracle)
{
    if (!stand_in_runs(_i)) return;
    rng = 4;
    backend *be = open_cpu(_i, 2);
    for (int dim = 1; dim < 70; dim += 3) {
        size_t n = (size_t)dim * 3;
        float *x = random_floats(n, 5), *g = random_floats((size_t)dim, 1),
              *y = malloc(n * sizeof(*y)), *u = random_floats(n, 1);
        for (size_t i = 0; i < n; i++) x[i] += 30; /* a mean that is far from 0 */
        be_layer_norm(be, y, x, g, dim % 2 ? u : NULL, 1e-3F, 0, 3, dim);
        for (int r = 0; r < 3; r++) {
            double mean = 0, ss = 0;
            const float *row = x + r * dim;
            for (int i = 0; i < dim; i++) mean += (double)row[i] / dim;
            for (int i = 0; i < dim; i++) ss += pow((double)row[i] - mean, 2);
            for (int i = 0; i < dim; i++) {
                double want = ((double)row[i] - mean) / sqrt(ss / dim + 1e-3) * (double)g[i] +
                              (dim % 2 ? (double)u[i] : 0);
                ck_assert_double_eq_tol((double)y[r * dim + i], want, 1e-4);
            }
        }
        for (size_t i = 0; i < n; i++) x[i] = (x[i] - 30) * (i % 7 == 0 ? 40 : 1);
        for (int k = 0; k < 10; k++) {
            static const activation acts[] = {ACT_GELU_TANH, ACT_SILU, ACT_RELU2, ACT_GELU,
                                              ACT_RELU};
            memcpy(y, x, n * sizeof(*y));
            be_gate(be, acts[k / 2], y, k % 2 ? u : NULL, n);
            for (size_t i = 0; i < n; i++) {
                double v = (double)x[i], above = v > 0 ? v : 0;
                double act = k < 2   ? gelu_oracle(v)
                             : k < 4 ? v / (1 + exp(-v))
                             : k < 6 ? above * above
                             : k < 8 ? v / 2 * erfc(-v / sqrt(2))
                                     : above;
                ck_assert_double_eq_tol((double)y[i], act * (k % 2 ? (double)u[i] : 1),
                                        1e-5 * (1 + fabs(k < 4 ? v : act)));
            }
        }
        for (int cap = 0; cap < 3; cap++) {
            memcpy(y, x, n * sizeof(*y));
            be_logits_bend(be, y, 3, dim, 0.5F, (float)cap);
            for (size_t i = 0; i < n; i++) {
                double v = (double)x[i] / 2, want = cap ? cap * tanh(v / cap) : v;
                ck_assert_double_eq_tol((double)y[i], want, 1e-6 * (1 + fabs(want)));
            }
        }
        const float alpha_p = -0.4F, alpha_n = 1.3F, beta = 0.6F, eps = -1e-2F;
        memcpy(y, x, n * sizeof(*y));
        be_xielu(be, y, &(xielu_weights){&alpha_p, &alpha_n, &beta, &eps}, n);
        for (size_t i = 0; i < n; i++) {
            double v = (double)x[i], p = log1p(exp(-0.4)), q = 0.6 + log1p(exp(1.3));
            double want = v > 0 ? p * v * v : q * (expm1(fmin(v, -1e-2)) - v);
            ck_assert_double_eq_tol((double)y[i], want + 0.6 * v, 1e-5 * (1 + fabs(want)));
        }
        memcpy(y, x, n * sizeof(*y));
        be_logits_bias(be, y, 3, dim, u, dim - 1);
        for (size_t i = 0; i < n; i++) {
            size_t at = i % (size_t)dim;
            ck_assert_float_eq(y[i], x[i] + (at < (size_t)dim - 1 ? u[at] : 0));
        }
        memcpy(y, x, n * sizeof(*y));
        be_scale(be, y, 3, n);
        be_add(be, y, u, -0.5F, n);
        for (size_t i = 0; i < n; i++)
            ck_assert_double_eq_tol((double)y[i], 3 * (double)x[i] - (double)u[i] / 2, 1e-4);
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
        float *v = random_floats(10 * 6, 1), out[18];
        void *raw = as_type(v, 60, (dtype)type);
        int32_t token[3] = {9, 0, 4};
        step st = {.n_rows = 3, .token = token};
        be_embed(be, out, raw, (dtype)type, 6, &st);
        for (int i = 0; i < 3; i++) ck_assert_mem_eq(out + 6 * i, v + 6 * token[i], 24);
        memcpy(out, v, sizeof(out));
        be_embed(be, out, NULL, (dtype)type, 6, &st); /* they stand there already */
        ck_assert_mem_eq(out, v, sizeof(out));
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
    /* CK_RUN_CASE selects one: tests/aarch64/run.sh. */
    static const char *const names[] = {"plain", "quantised", "attention", "rows"};
    Suite *s = suite_create("kernels");
    TCase *tc[4];
    for (int i = 0; i < 4; i++) {
        tc[i] = tcase_create(names[i]);
        tcase_set_timeout(tc[i], 240);
        suite_add_tcase(s, tc[i]);
    }
    tcase_add_loop_test(tc[0], linear_meets_the_oracle_and_itself, ISA_PORTABLE, ISA_COUNT);
    tcase_add_test(tc[0], halves_of_adapters_are_packed_as_floats_are);
    tcase_add_loop_test(tc[0], threads_change_no_bit, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[1], quantised_linear_meets_the_oracle_and_itself, ISA_PORTABLE,
                        ISA_COUNT);
    tcase_add_loop_test(tc[1], outs_round_x_each_its_own_way, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[1], gains_are_of_the_dequantised_matrix, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[1], threads_change_no_bit_of_quantised_rows, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[2], attention_meets_the_oracle_and_itself, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[2], pages_of_any_size_give_the_same_bits, ISA_PORTABLE, ISA_COUNT);
    tcase_add_test(tc[2], sizes_of_pages_are_checked);
    tcase_add_loop_test(tc[2], long_contexts_are_split_and_keep_their_bits, ISA_PORTABLE,
                        ISA_COUNT);
    tcase_add_loop_test(tc[2], rotations_turn_what_they_should, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[2], a_query_that_is_no_number_shows, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[3], more_rows_meet_the_oracle, ISA_PORTABLE, ISA_COUNT);
    tcase_add_loop_test(tc[3], rows_meet_the_oracle, ISA_PORTABLE, ISA_COUNT);
    tcase_add_test(tc[3], embedding_rows_are_copied_exactly);
    tcase_add_test(tc[3], half_floats_convert_exactly);
    return run_suite(s);
}
