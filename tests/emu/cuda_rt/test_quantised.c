/* test_quantised.c -- quantised bases on the emulated device: matrices stay codes, and the answers
 * are those of an f32 oracle with their plain values, or, of what is quantised at load, the CPU's
 * by the same codes; the same bits whole, in pieces, beside others.  Likewise keys and values.
 *
 * Folders of tests/fixtures/quant in each form that has kernels, and in some that have none: these
 * become plain.  LoRA over codes: emu.test_conformance and emu.test_golden.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/cuda/cuda.h"
#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/engine/golden_rig.h"
#include "tests/engine/plain_backend.h"
#include "tests/run_suite.h"

static const struct {
    const char *name;
    gemm_form form; /* of the layers' matrices; GEMM_PLAIN: they are */
    weights_form weights;
} bases[] = {
    {"quant/awq", GEMM_I4_F16, WEIGHTS_AUTO},
    {"quant/gptq-sym", GEMM_I4_F16, WEIGHTS_AUTO},
    {"quant/ct-w4", GEMM_I4, WEIGHTS_AUTO},
    {"quant/ct-w4-asym", GEMM_I4, WEIGHTS_AUTO},
    {"quant/ct-w8", GEMM_I8, WEIGHTS_AUTO},
    {"quant/ct-w8a8", GEMM_I8, WEIGHTS_AUTO},
    {"quant/ct-fp8", GEMM_E4M3, WEIGHTS_AUTO},
    {"quant/ct-fp8-block", GEMM_E4M3, WEIGHTS_AUTO},
    {"quant/ct-fp8-tensor", GEMM_E4M3, WEIGHTS_AUTO},
    {"quant/fp8-blocks", GEMM_E4M3_F32, WEIGHTS_AUTO},
    {"quant/gptq", GEMM_PLAIN, WEIGHTS_AUTO},    /* columns in an order of their own */
    {"quant/bnb-nf4", GEMM_PLAIN, WEIGHTS_AUTO}, /* codes of 4 bits that stand for floats */
    {"quant/ct-fp8", GEMM_PLAIN, WEIGHTS_PLAIN},
    {"models/llama-bf16", GEMM_I8_F32, WEIGHTS_Q8},
    {"models/llama-bf16", GEMM_I4_F16, WEIGHTS_Q4},
    {"models/llama-bf16", GEMM_E4M3, WEIGHTS_FP8},
};

enum { PROMPT = 24, N_BASES = sizeof(bases) / sizeof(bases[0]) };

static void open_rig(rig *r, const backend_ops *ops, const char *dir, weights_form weights)
{
    backend_config cfg = {.n_threads = 2, .max_rows = MAX_ROWS, .max_seqs = CASES_MAX};
    backend *be;
    err e = {0};
    emu_rt_device(1, (size_t)96 << 20);
    ck_assert_msg(be_open(&be, ops, &cfg, &e) == ERR_NONE, "%s", e.msg);
    rig_open_as(r, dir, be, 0, weights);
}

/* Two sequences, one row of the first beside three of the second. */
static void run_pair(rig *r, const golden_case *a, const golden_case *b, float *la, float *lb)
{
    run u[2];
    run_start(&u[0], r, a, 0, 2, la);
    run_start(&u[1], r, b, 1, 2, lb);
    while (run_left(&u[0]) > 0 || run_left(&u[1]) > 0) {
        u[0].n_now = run_left(&u[0]) > 0;
        u[1].n_now = run_left(&u[1]) < 3 ? run_left(&u[1]) : 3;
        step_runs(r, u, 2, false);
    }
}

static void tokens(golden_case *c, uint32_t seed, int n_vocab)
{
    *c = (golden_case){.adapter = -1, .n_prompt = PROMPT, .n_new = 1};
    for (int i = 0; i < PROMPT; i++) {
        seed = seed * 1664525U + 1013904223U;
        c->token[i] = (int32_t)(seed >> 8) % n_vocab;
    }
}

static const cuda_weight *matrix(const rig *r, proj p)
{
    return (const cuda_weight *)model_proj_weight(r->m, 0, p);
}

/* How the layers' matrices lie; those of a layer that share x are one product. */
static void check_forms(const rig *r, gemm_form form)
{
    size_t plain = 2;
    for (proj p = PROJ_Q; p < PROJ_DOWN; p++) {
        const cuda_weight *w = matrix(r, p);
        if (p > PROJ_O && p < PROJ_GATE) continue; /* of mixers with a state: there are none */
        ck_assert_int_eq(w->codes.form, form);
        if (form == GEMM_PLAIN) continue;
        ck_assert_int_eq(w->head.type, DT_BF16);
        plain = (size_t)w->head.rows * (size_t)w->head.cols * 2;
        if (p == PROJ_GATE && form < GEMM_I4)
            ck_assert_uint_lt(w->head.bytes, plain * 4 / 3 + 4096);
    }
    const char *q = matrix(r, PROJ_Q)->p, *k = matrix(r, PROJ_K)->p;
    ck_assert_ptr_eq(k, q + matrix(r, PROJ_Q)->head.bytes);
}

/* Row by row: of what is launched, the first step is plain and the second recorded, so each counts
 * twice.  q, k and v are one product, gate and up another, which gates. */
static void check_launches(rig *r, const golden_case *c, gemm_form form, float *logits)
{
    uint64_t codes = emu_rt_launched("gemm_codes"), gates = emu_rt_launched("silu_kernel");
    run_alone(r, c, 1, false, logits);
    if (form == GEMM_PLAIN) return;
    codes = emu_rt_launched("gemm_codes") - codes;
    int each = matrix(r, PROJ_DOWN)->codes.form == GEMM_PLAIN ? 3 : 4;
    int heads = (int)codes - 2 * each * model_get_config(r->m)->n_layer;
    ck_assert_msg(heads == 0 || heads == 2, "%d products beside %d of a layer", heads / 2, each);
    ck_assert_uint_eq(emu_rt_launched("silu_kernel"), gates);
}

START_TEST(answers_are_the_oracles)
{
    char dir[128];
    rig r;
    golden_case a, b;
    snprintf(dir, sizeof(dir), "fixtures/%s", bases[_i].name);
    bool made = bases[_i].weights >= WEIGHTS_Q8;
    open_rig(&r, made ? &backend_cpu : &backend_plain, dir,
             made ? bases[_i].weights : WEIGHTS_PLAIN);
    size_t n = (size_t)r.n_vocab, all = (size_t)TOKENS_MAX * n * sizeof(float);
    float *want = malloc(all), *whole = malloc(all), *other = malloc(all), *beside = malloc(all);
    tokens(&a, 7 + (uint32_t)_i, r.n_vocab);
    tokens(&b, 77, r.n_vocab);
    run_alone(&r, &a, MAX_ROWS, false, want);
    rig_close(&r);

    open_rig(&r, &backend_cuda, dir, bases[_i].weights);
    check_forms(&r, bases[_i].form);
    uint64_t before = emu_rt_launched("gemm_codes");
    run_alone(&r, &a, MAX_ROWS, false, whole);
    ck_assert_int_eq(emu_rt_launched("gemm_codes") > before, bases[_i].form != GEMM_PLAIN);
    double worst = 0;
    for (int row = 0; row < PROMPT; row++)
        worst = fmax(
            worst, log_prob_difference(want + (size_t)row * n, whole + (size_t)row * n, r.n_vocab));
    double bound = made ? 8e-2 : 3e-2; /* the CPU rounds x to int8 */
    printf("%-18s form %d max log-prob difference %.2e (allowed %.0e)\n", bases[_i].name,
           (int)bases[_i].form, worst, bound);
    (void)fflush(stdout);
    ck_assert_msg(worst <= bound, "%s: off by %.2e", dir, worst);

    run_alone(&r, &a, 5, false, other);
    assert_same_bits(whole, other, PROMPT, r.n_vocab, "in pieces");
    check_launches(&r, &a, bases[_i].form, other);
    assert_same_bits(whole, other, PROMPT, r.n_vocab, "row by row");
    run_pair(&r, &a, &b, other, beside);
    assert_same_bits(whole, other, PROMPT, r.n_vocab, "beside another");
    rig_close(&r);
    free(want);
    free(whole);
    free(other);
    free(beside);
}
END_TEST

static double worst_of(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t row = 0; row < PROMPT; row++)
        worst = fmax(worst, log_prob_difference(a + row * n, b + row * n, (int)n));
    return worst;
}

/* Keys and values in int8, as the CPU keeps them: heads for the tensor cores, others, and those of
 * latents, whose values have another size; of these the CPU keeps the latents, so that rows may
 * take other experts there. */
START_TEST(keys_and_values_are_codes)
{
    static const char *const names[] = {"models/llama-h128-bf16", "models/llama-h64-f16",
                                        "models/mistral-f32", "families/models/deepseek-v2"};
    char dir[128];
    rig r;
    golden_case a, b;
    snprintf(dir, sizeof(dir), "fixtures/%s", names[_i]);
    open_rig(&r, &backend_cpu, dir, WEIGHTS_AUTO);
    size_t n = (size_t)r.n_vocab, all = (size_t)TOKENS_MAX * n * sizeof(float);
    float *want = malloc(all), *whole = malloc(all), *other = malloc(all), *beside = malloc(all);
    tokens(&a, 7, r.n_vocab);
    tokens(&b, 77, r.n_vocab);
    rig_keep(&r, DT_I8);
    run_alone(&r, &a, MAX_ROWS, false, want);
    attn_shape shape = model_attn_shape(r.m);
    bool alike = !shape.v_in_k;
    rig_close(&r);

    open_rig(&r, &backend_cuda, dir, WEIGHTS_AUTO);
    shape = model_attn_shape(r.m);
    size_t plain = be_kv_page_bytes(r.be, &shape);
    run_alone(&r, &a, MAX_ROWS, false, other);
    rig_keep(&r, DT_I8);
    shape = model_attn_shape(r.m);
    ck_assert_uint_lt(be_kv_page_bytes(r.be, &shape), plain * 2 / 3);
    run_alone(&r, &a, MAX_ROWS, false, whole);
    double moved = worst_of(other, whole, n), off = worst_of(want, whole, n);
    printf("%-28s int8 KV moves log-probs by %.2e; from the CPU's %.2e (allowed 6e-2)\n", names[_i],
           moved, off);
    (void)fflush(stdout);
    ck_assert_msg(moved > 0 && moved <= 0.12 && (off <= 6e-2 || !alike), "%s: %.2e, %.2e", dir,
                  moved, off);
    run_alone(&r, &a, 5, false, other);
    assert_same_bits(whole, other, PROMPT, r.n_vocab, "in pieces");
    run_alone(&r, &a, 1, false, other);
    assert_same_bits(whole, other, PROMPT, r.n_vocab, "row by row");
    run_pair(&r, &a, &b, other, beside);
    assert_same_bits(whole, other, PROMPT, r.n_vocab, "beside another");
    rig_close(&r);
    free(want);
    free(whole);
    free(other);
    free(beside);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("quantised");
    TCase *tc = tcase_create("bases");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, answers_are_the_oracles, 0, N_BASES);
    tcase_add_loop_test(tc, keys_and_values_are_codes, 0, 4);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
