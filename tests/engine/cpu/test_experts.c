/* test_experts.c -- be_experts() of the CPU backend against plain loops, at every instruction set
 * that this machine has, in plain and in quantised weights, with LoRA of several adapters; bit for
 * bit against itself in other company; and within the memory that it asked for.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/cpu/cpu.h"
#include "engine/model/quantise.h"
#include "tests/engine/plain_backend.h"
#include "tests/engine/random_floats.h"
#include "tests/engine/stand_ins.h"
#include "tests/run_suite.h"

enum { N = 11, TOP_K = 3, DIM = 96, FFN = 64, ROWS = 130, ADAPTERS = 3, RANK = 5, MATS = N * 3 };

static void fill(float *v, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) v[i] = uniform() * scale;
}

/* One layer's experts on one backend, and adapters for them. */
typedef struct rig {
    backend *be;
    dtype type;
    weight *w[MATS];
    lora_mat mat[ADAPTERS][MATS];
    lora_view view[ADAPTERS];
    expert_set set;
    bool alone; /* no shared MLP with a gate */
} rig;

static float x[ROWS * DIM], scores[ROWS * N], shared[ROWS], start[ROWS * DIM];

static void d_of(int i, int *d_out, int *d_in)
{
    bool down = i >= 2 * N;
    *d_out = down ? DIM : FFN;
    *d_in = down ? FFN : DIM;
}

/* bits 0: plain. */
static void make_weight(rig *r, int i, int bits)
{
    static float values[DIM * FFN];
    static uint16_t half[DIM * FFN];
    int d_out, d_in;
    d_of(i, &d_out, &d_in);
    fill(values, DIM * FFN, 0.2F);
    for (int k = 0; k < DIM * FFN; k++) half[k] = bf16_from_f32(values[k]);
    weight_source plain = weight_source_plain(values, DT_F32, d_out, d_in), s = plain;
    if (r->type == DT_BF16) s = weight_source_plain(half, DT_BF16, d_out, d_in);
    if (bits) ck_assert(weight_source_quantise(&s, &plain, bits == 8 ? QUANTISE_Q8 : QUANTISE_Q4));
    if (bits) s.type = r->type;
    ck_assert_int_eq(be_weight_create(r->be, &r->w[i], &s, NULL), ERR_NONE);
}

/* Adapter a has LoRA on experts whose number is not a + 3 k. */
static void make_lora(rig *r, int a, int i)
{
    float la[RANK * DIM], lb[DIM * RANK];
    int d_out, d_in;
    int expert = i / 3, p = i % 3;
    d_of(p * N, &d_out, &d_in);
    fill(la, RANK * DIM, 0.3F);
    fill(lb, DIM * RANK, 0.3F);
    if (expert % ADAPTERS == a) return;
    lora_mat *m = &r->mat[a][i];
    void *pa = be_alloc(r->be, be_lora_a_bytes(r->be, r->type, RANK, d_in));
    void *pb = be_alloc(r->be, be_lora_b_bytes(r->be, r->type, RANK, d_out));
    ck_assert_int_eq(be_lora_pack(r->be, r->type, pa, pb, la, lb, DT_F32, RANK, d_in, d_out, NULL),
                     ERR_NONE);
    *m = (lora_mat){.a = pa, .b = pb, .rank = RANK, .scale = 0.5F + (float)a};
}

static void rig_open(rig *r, const backend_ops *ops, int isa, dtype type, int bits)
{
    const backend_config plain = {.n_threads = 2};
    *r = (rig){.type = type};
    rng = 3;
    ck_assert_int_eq(isa < 0 ? be_open(&r->be, ops, &plain, NULL)
                             : stand_in_open(&r->be, isa, 2, NULL),
                     ERR_NONE);
    for (int i = 0; i < MATS; i++) make_weight(r, i, bits);
    for (int a = 0; a < ADAPTERS; a++) {
        for (int i = 0; i < MATS; i++) make_lora(r, a, i);
        r->view[a] =
            (lora_view){.n_layer = 1, .rank_max = RANK, .expert = r->mat[a], .n_expert = N};
    }
    fill(x, ROWS * DIM, 1);
    fill(scores, ROWS * N, 3);
    fill(shared, ROWS, 2);
    fill(start, ROWS * DIM, 1);
    r->set = (expert_set){.route = {.n = N, .top_k = TOP_K, .normed = true, .scale = 1},
                          .gate = r->w,
                          .up = r->w + N,
                          .down = r->w + 2 * N};
}

static void rig_close(rig *r)
{
    for (int i = 0; i < MATS; i++) be_weight_destroy(r->be, r->w[i]);
    for (int i = 0; i < ADAPTERS * MATS; i++) {
        be_free(r->be, (void *)r->mat[i / MATS][i % MATS].a);
        be_free(r->be, (void *)r->mat[i / MATS][i % MATS].b);
    }
    be_close(r->be);
}

/* Rows [from, to), a third of all of them without an adapter; base: all of them. */
static void run(rig *r, int from, int to, bool base, float *out)
{
    step_seg seg[ADAPTERS + 1];
    int n = 0;
    for (int a = 0; a <= ADAPTERS; a++) {
        int lo = ROWS * a / (ADAPTERS + 1), hi = ROWS * (a + 1) / (ADAPTERS + 1);
        lo = lo > from ? lo : from;
        hi = hi < to ? hi : to;
        const lora_view *view = a == 1 || base ? NULL : &r->view[a > 1 ? a - 1 : 0];
        if (lo < hi) seg[n++] = (step_seg){lo - from, hi - lo, view};
    }
    step s = {.n_rows = to - from, .n_seg = n, .seg = seg};
    memcpy(out, start + (size_t)from * DIM, (size_t)(to - from) * DIM * sizeof(float));
    be_experts(r->be, out, x + (size_t)from * DIM, &r->set,
               scores + (size_t)from * (size_t)r->set.route.n, r->alone ? NULL : shared + from, &s,
               0);
    ck_assert_int_eq(be_sync(r->be, NULL), ERR_NONE);
}

static void check_company(rig *r, const float *all, bool base)
{
    static float part[ROWS * DIM];
    static const int cuts[][2] = {{0, 1}, {7, 8}, {30, 35}, {0, 64}, {60, 130}, {129, 130}};
    for (size_t i = 0; i < sizeof cuts / sizeof(*cuts); i++) {
        run(r, cuts[i][0], cuts[i][1], base, part);
        ck_assert_msg(memcmp(part, all + (size_t)cuts[i][0] * DIM,
                             (size_t)(cuts[i][1] - cuts[i][0]) * DIM * sizeof(float)) == 0,
                      "rows %d to %d differ from the whole batch", cuts[i][0], cuts[i][1]);
    }
}

static const struct {
    dtype type;
    int bits;
    double bound;
} forms[] = {{DT_F32, 0, 1e-5}, {DT_BF16, 0, 2e-2}, {DT_BF16, 8, 5e-2}, {DT_F32, 4, 2e-1}};
enum { FORMS = sizeof forms / sizeof(*forms) };

START_TEST(meets_the_oracle_and_itself)
{
    static float got[ROWS * DIM], want[ROWS * DIM], bare[ROWS * DIM];
    int isa = _i / FORMS, f = _i % FORMS;
    if (!stand_in_runs(isa)) return;
    rig plain, r;
    rig_open(&plain, &backend_plain, -1, DT_F32, 0);
    run(&plain, 0, ROWS, false, want);
    rig_close(&plain);
    rig_open(&r, &backend_cpu, isa, forms[f].type, forms[f].bits);
    run(&r, 0, ROWS, false, got);
    double worst = 0, most = 0;
    for (int i = 0; i < ROWS * DIM; i++) {
        worst = fmax(worst, fabs((double)(got[i] - want[i])));
        most = fmax(most, fabs((double)want[i]));
    }
    ck_assert_msg(worst <= forms[f].bound * most, "isa %d, form %d: off by %g of %g", isa, f, worst,
                  most);
    check_company(&r, got, false);
    run(&r, 0, ROWS, true, bare);
    ck_assert_float_ne(bare[0], got[0]);
    ck_assert_mem_eq(bare + ROWS / 4 * DIM + DIM, got + ROWS / 4 * DIM + DIM, 20 * DIM * 4);
    check_company(&r, bare, true);
    rig_close(&r);
}
END_TEST

/* Ways to choose, to weigh and to bend, each of which changes the answer. */
static const struct {
    expert_route route;
    bool choice, biased, onto;
    activation act;
    bool bare; /* without gates */
} ways[] = {
    {{.n = N, .top_k = 2, .scale = 1}, false, false, false, ACT_SILU, false},
    {{.n = N, .top_k = 2, .softmax_last = true, .scale = 1},
     false,
     true,
     false,
     ACT_SWIGLU_CLAMPED,
     false},
    {{.n = 10, .top_k = 3, .n_group = 5, .top_group = 2, .group_best = 1, .scale = 1.5F},
     false,
     false,
     true,
     ACT_SILU,
     false},
    {{.n = 10,
      .top_k = 3,
      .sigmoid = true,
      .normed = true,
      .n_group = 5,
      .top_group = 2,
      .group_best = 2,
      .scale = 2.5F},
     true,
     false,
     true,
     ACT_SILU,
     false},
    {{.n = N, .top_k = 2, .sigmoid = true, .softmax_last = true, .scale = 1, .scale_in = true},
     false,
     false,
     true,
     ACT_GELU_TANH,
     false},
    {{.n = N, .top_k = 3, .sigmoid = true, .normed = true, .scale = 2},
     false,
     false,
     true,
     ACT_RELU2,
     true},
};
enum { WAYS = sizeof ways / sizeof(*ways) };

static void run_way(const backend_ops *ops, int isa, int way, float *out)
{
    static float bias[2 * N * FFN + N * DIM], choice[N];
    rig r;
    rig_open(&r, ops, isa, DT_F32, 0);
    fill(bias, sizeof bias / sizeof(*bias), 3);
    fill(choice, N, 0.5F);
    r.alone = true;
    r.set.route = ways[way].route;
    r.set.act = ways[way].act;
    r.set.onto = ways[way].onto;
    if (ways[way].bare) r.set.gate = NULL;
    if (ways[way].choice) r.set.choice_bias = choice;
    if (ways[way].biased) {
        r.set.gate_bias = bias;
        r.set.up_bias = bias + N * FFN;
        r.set.down_bias = bias + 2 * N * FFN;
    }
    run(&r, 0, ROWS, false, out);
    if (ops == &backend_cpu) check_company(&r, out, false);
    rig_close(&r);
}

START_TEST(every_way_meets_the_oracle)
{
    static float got[ROWS * DIM], want[ROWS * DIM], other[ROWS * DIM];
    run_way(&backend_plain, -1, _i, want);
    run_way(&backend_plain, -1, (_i + 1) % WAYS, other);
    for (int isa = 0; isa < ISA_COUNT; isa++) {
        if (!stand_in_runs(isa)) continue;
        double worst = 0, most = 0, apart = 0;
        run_way(&backend_cpu, isa, _i, got);
        for (int i = 0; i < ROWS * DIM; i++) {
            worst = fmax(worst, fabs((double)(got[i] - want[i])));
            apart = fmax(apart, fabs((double)(other[i] - want[i])));
            most = fmax(most, fabs((double)want[i]));
        }
        ck_assert_msg(worst <= 1e-5 * most, "isa %d: off by %g of %g", isa, worst, most);
        ck_assert_double_gt(apart, 0.01 * most);
    }
}
END_TEST

/* Of equal scores the first; NaN harms its own row alone. */
START_TEST(ties_and_what_is_no_number)
{
    static float got[ROWS * DIM], want[ROWS * DIM];
    rig r;
    rig_open(&r, &backend_cpu, ISA_PORTABLE, DT_F32, 0);
    r.set.route.softmax_last = true;
    run(&r, 0, ROWS, false, got);
    for (int e = 0; e < N; e++) scores[3 * N + e] = e < 4 ? 1 : -5;
    run(&r, 0, ROWS, false, got);
    for (int e = 0; e < N; e++) scores[3 * N + e] = e < 3 ? 1 : -5;
    run(&r, 0, ROWS, false, want);
    ck_assert_mem_eq(got, want, sizeof got);
    for (int e = 0; e < N; e++) scores[3 * N + e] = NAN;
    run(&r, 0, ROWS, false, got);
    ck_assert(isnan(got[3 * DIM]));
    ck_assert_mem_eq(got + 4 * DIM, want + 4 * DIM, (ROWS - 4) * DIM * sizeof(float));
    rig_close(&r);
}
END_TEST

/* What be_reserve() took is enough for any routing, of few rows and of many: steps allocate
 * nothing. */
static void check_reserved(rig *r, int rows)
{
    static float out[ROWS * DIM];
    step_bounds most = {.rows = rows,
                        .cols = 1,
                        .dim = DIM,
                        .context = 1,
                        .head_dim = 1,
                        .experts = N,
                        .top_k = TOP_K,
                        .expert_dim = FFN};
    ck_assert_int_eq(be_reserve(r->be, &most, NULL), ERR_NONE);
    const cpu_state *cpu = r->be->impl;
    size_t bytes[CPU_SCRATCHES];
    for (int i = 0; i < CPU_SCRATCHES; i++) bytes[i] = cpu->scratch[i].bytes;
    run(r, 0, rows, false, out);
    for (int i = 0; i < ROWS * N; i++) scores[i] = (float)-(i % N); /* all take the same */
    run(r, 0, rows, false, out);
    for (int i = 0; i < CPU_SCRATCHES; i++)
        ck_assert_msg(cpu->scratch[i].bytes == bytes[i], "%d rows, use %d: %zu, reserved %zu", rows,
                      i, cpu->scratch[i].bytes, bytes[i]);
}

START_TEST(steps_stay_within_what_was_reserved)
{
    int isa = _i / FORMS, f = _i % FORMS;
    if (!stand_in_runs(isa)) return;
    for (int rows = 4; rows <= ROWS; rows += ROWS - 4) {
        rig r;
        rig_open(&r, &backend_cpu, isa, forms[f].type, forms[f].bits);
        check_reserved(&r, rows);
        rig_close(&r);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("experts");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, meets_the_oracle_and_itself, 0, ISA_COUNT * FORMS);
    tcase_add_loop_test(tc, every_way_meets_the_oracle, 0, WAYS);
    tcase_add_test(tc, ties_and_what_is_no_number);
    tcase_add_loop_test(tc, steps_stay_within_what_was_reserved, 0, ISA_COUNT * FORMS);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
