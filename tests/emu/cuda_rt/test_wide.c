/* test_wide.c -- whether products of many rows go by wgmma is decided on the device: where it has
 * the bits of the kernels for few rows, and only there; a model's prompts, which gate in their
 * product then, also of quantised ones.
 */
#include <stdio.h>

#include "engine/cuda/cuda.h"
#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/engine/golden_rig.h"
#include "tests/run_suite.h"

enum { N = 72, K = 128, ROWS = 256, PROMPT = 90, MEMORY = 96 << 20 };

static const blas_choice *choice; /* NULL: as choices.h says */

static backend *open_backend(int major)
{
    backend_config cfg = {.n_threads = 1, .max_rows = ROWS, .max_seqs = 4};
    backend *be;
    err e = {0};
    emu_rt_device(1, MEMORY);
    emu_rt_capability(10 * major);
    ck_assert_msg(be_open(&be, &backend_cuda, &cfg, &e) == ERR_NONE, "%s", e.msg);
    if (choice) cuda_of(be)->blas.choice = choice;
    return be;
}

START_TEST(only_a_device_of_sm_90_has_it)
{
    for (int major = 8; major <= 10; major++) {
        backend *be = open_backend(major);
        ck_assert_int_eq(cuda_of(be)->blas.wide, major == 9);
        ck_assert_int_eq(cuda_of(be)->blas.choice->chain_rows > 0, major >= 9);
        be_close(be);
    }
}
END_TEST

/* A newer device that made its code from PTX of sm_80 would begin early and not wait. */
START_TEST(launches_begin_early_where_the_code_waits)
{
    static const char *const code[] = {"80", "90"};
    for (int i = 0; i < 4; i++) {
        (void)setenv("EMU_CODE", code[i % 2], 1);
        backend *be = open_backend(8 + i / 2);
        ck_assert_int_eq(cuda_of(be)->early, i == 3);
        be_close(be);
    }
    (void)unsetenv("EMU_CODE");
}
END_TEST

/* Sums rounded as on sm_90: both kinds of tensor-core instruction give the same.  Those of mma.sync
 * as on sm_80, those of wgmma as on sm_90: they do not. */
START_TEST(it_is_taken_where_bits_are_equal)
{
    bool equal = _i == 0;
    err e = {0};
    emu_bridge_rounding(equal ? 2 : 1);
    emu_rt_no_cublas(true);
    backend *be = open_backend(9);
    cuda_state *cu = cuda_of(be);
    static uint16_t w[N * K], x[ROWS * K];
    static float whole[ROWS * N], few[ROWS * N];
    for (int i = 0; i < N * K; i++) w[i] = (uint16_t)((0x3C00 + i * 37 % 1021) | i % 2 << 15);
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (uint16_t)((0x3D00 + i * 101 % 769) | i % 3 / 2 << 15);
    void *dw = cuda_take(cu, sizeof(w), false), *dx = cuda_take(cu, sizeof(x), false);
    float *y = cuda_take(cu, sizeof(whole), false);
    void *trial = cuda_take(cu, blas_trial_bytes(ROWS, DT_BF16, N, K), false);
    ck_assert(dw && dx && y && trial);
    ck_assert_int_eq(cuda_upload(be, dw, w, sizeof(w)), ERR_NONE);
    ck_assert_int_eq(cuda_upload(be, dx, x, sizeof(x)), ERR_NONE);
    cuda_await_uploads(be);
    const blas_plan *plan;
    err_code rc =
        blas_plan_get(&cu->blas, &plan, DT_BF16, N, K, NULL, ROWS, dw, trial, cu->stream, &e);
    ck_assert_msg(rc == ERR_NONE, "%s", e.msg);

    uint64_t before = emu_rt_launched("gemm_wide");
    rc = blas_product(&cu->blas, plan, dw, dx, y, ROWS, (blas_sum){0}, cu->stream, &e);
    ck_assert_int_eq(rc, ERR_NONE);
    ck_assert_int_eq(emu_rt_launched("gemm_wide") > before, equal);
    ck_assert_int_eq(cudaStreamSynchronize(cu->stream), cudaSuccess);
    ck_assert_int_eq(cuda_download(be, whole, y, sizeof(whole)), ERR_NONE);
    for (int row = 0; row < ROWS; row += 60) {
        int n = ROWS - row < 60 ? ROWS - row : 60;
        size_t bytes = (size_t)n * N * sizeof(float);
        rc = blas_product(&cu->blas, plan, dw, (uint16_t *)dx + (size_t)row * K, y, n,
                          (blas_sum){0}, cu->stream, &e);
        ck_assert_int_eq(rc, ERR_NONE);
        ck_assert_int_eq(cudaStreamSynchronize(cu->stream), cudaSuccess);
        ck_assert_int_eq(cuda_download(be, few, y, bytes), ERR_NONE);
        ck_assert_msg(memcmp(few, whole + (size_t)row * N, bytes) == 0,
                      "rows from %d on differ among few", row);
    }
    be_close(be);
    emu_bridge_rounding(0);
}
END_TEST

/* Which of cuBLAS's orders of summation, or ours, is the same at every start. */
START_TEST(every_start_has_one_order)
{
    enum { FEW = 3, STARTS = 2 };
    static uint16_t w[N * K], x[ROWS * K];
    static float first[ROWS * N], y[ROWS * N];
    emu_rt_no_cublas(false);
    for (int i = 0; i < N * K; i++) w[i] = (uint16_t)((0x3C00 + i * 37 % 1021) | i % 2 << 15);
    for (int i = 0; i < ROWS * K; i++)
        x[i] = (uint16_t)((0x3D00 + i * 101 % 769) | i % 3 / 2 << 15);
    for (int start = 0; start < STARTS; start++) {
        backend *be = open_backend(9);
        cuda_state *cu = cuda_of(be);
        err e = {0};
        const blas_plan *plan;
        void *dw = cuda_take(cu, sizeof(w), false), *dx = cuda_take(cu, sizeof(x), false);
        float *dy = cuda_take(cu, sizeof(y), false);
        void *trial = cuda_take(cu, blas_trial_bytes(ROWS, DT_BF16, N, K), false);
        ck_assert(dw && dx && dy && trial);
        ck_assert_int_eq(cuda_upload(be, dw, w, sizeof(w)), ERR_NONE);
        ck_assert_int_eq(cuda_upload(be, dx, x, sizeof(x)), ERR_NONE);
        cuda_await_uploads(be);
        err_code rc =
            blas_plan_get(&cu->blas, &plan, DT_BF16, N, K, NULL, ROWS, dw, trial, cu->stream, &e);
        ck_assert_msg(rc == ERR_NONE, "%s", e.msg);
        for (int rows = ROWS; rows > 0; rows -= rows > FEW ? ROWS - FEW : rows) {
            size_t bytes = (size_t)rows * N * sizeof(float);
            rc = blas_product(&cu->blas, plan, dw, dx, dy, rows, (blas_sum){0}, cu->stream, &e);
            ck_assert_int_eq(rc, ERR_NONE);
            ck_assert_int_eq(cudaStreamSynchronize(cu->stream), cudaSuccess);
            ck_assert_int_eq(cuda_download(be, y, dy, bytes), ERR_NONE);
            if (start == 0 && rows == ROWS) memcpy(first, y, bytes);
            ck_assert_msg(memcmp(first, y, bytes) == 0, "start %d gives others", start);
        }
        be_close(be);
    }
}
END_TEST

/* A prompt to a model, and its logits: of all at once, and in pieces. */
typedef struct {
    rig r;
    golden_case c;
    float *whole, *pieces;
} prompt;

static void prompt_open(prompt *p, const char *dir, int rounding)
{
    p->c = (golden_case){.adapter = -1, .n_prompt = PROMPT, .n_new = 1};
    for (int i = 0; i < PROMPT; i++) p->c.token[i] = (i * 97 + 11) % 300;
    emu_bridge_rounding(rounding);
    rig_open(&p->r, dir, open_backend(9), 0);
    size_t bytes = (size_t)TOKENS_MAX * (size_t)p->r.n_vocab * sizeof(float);
    p->whole = malloc(bytes);
    p->pieces = malloc(bytes);
}

/* Both have the same bits. */
static void prompt_close(prompt *p)
{
    assert_same_bits(p->whole, p->pieces, PROMPT, p->r.n_vocab, "in pieces");
    free(p->whole);
    free(p->pieces);
    rig_close(&p->r);
    emu_bridge_rounding(0);
}

START_TEST(a_prompt_has_the_bits_of_its_pieces)
{
    prompt p;
    emu_rt_no_cublas(true);
    prompt_open(&p, "fixtures/models/llama-bf16", 2);
    uint64_t wide = emu_rt_launched("gemm_wide"), silu = emu_rt_launched("silu_kernel");
    run_alone(&p.r, &p.c, MAX_ROWS, false, p.whole);
    ck_assert_uint_gt(emu_rt_launched("gemm_wide"), wide);
    ck_assert_uint_eq(emu_rt_launched("silu_kernel"), silu);
    wide = emu_rt_launched("gemm_wide");
    run_alone(&p.r, &p.c, 40, false, p.pieces);
    ck_assert_uint_eq(emu_rt_launched("gemm_wide"), wide);
    ck_assert_uint_gt(emu_rt_launched("silu_kernel"), silu);
    prompt_close(&p);
}
END_TEST

/* Codes: slices of them become plain, where wgmma has the bits of few rows, and from as many rows
 * on as the device's choices say: these are fewer than the bound of an H200. */
START_TEST(prompts_by_codes_have_the_bits_of_their_pieces)
{
    static const char *const names[] = {"ct-fp8", "fp8-blocks", "ct-w8", "awq"};
    bool equal = _i % 2 == 0;
    char dir[64];
    static const blas_choice few = {90, 64, 64, 80};
    prompt p;
    snprintf(dir, sizeof(dir), "fixtures/quant/%s", names[_i / 2 % 4]);
    choice = _i < 8 ? &few : NULL;
    prompt_open(&p, dir, equal ? 2 : 1);
    equal &= _i < 8;
    uint64_t plain = emu_rt_launched("gemm_codes_plain"), wide = emu_rt_launched("gemm_wide");
    uint64_t silu = emu_rt_launched("silu_kernel");
    run_alone(&p.r, &p.c, MAX_ROWS, false, p.whole);
    ck_assert_int_eq(emu_rt_launched("gemm_codes_plain") > plain, equal);
    ck_assert_int_eq(emu_rt_launched("gemm_wide") > wide, equal);
    ck_assert_int_eq(emu_rt_launched("silu_kernel") == silu, equal);
    plain = emu_rt_launched("gemm_codes_plain");
    run_alone(&p.r, &p.c, 40, false, p.pieces);
    ck_assert_uint_eq(emu_rt_launched("gemm_codes_plain"), plain);
    prompt_close(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wide");
    TCase *t = tcase_create("wide");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, only_a_device_of_sm_90_has_it);
    tcase_add_test(t, launches_begin_early_where_the_code_waits);
    tcase_add_loop_test(t, it_is_taken_where_bits_are_equal, 0, 2);
    tcase_add_test(t, every_start_has_one_order);
    tcase_add_test(t, a_prompt_has_the_bits_of_its_pieces);
    tcase_add_loop_test(t, prompts_by_codes_have_the_bits_of_their_pieces, 0, 9);
    suite_add_tcase(s, t);
    return run_suite(s);
}
