/* test_trial.c -- a device that fails, or never ends, while it is asked at the start about kernels
 * that nobody else can vouch for: the failure is told with the kernels' name and heals in no
 * process, nothing is waited for without end, and a start without them does not ask again.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine/cuda/cuda.h"
#include "engine/model/model.h"
#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/run_suite.h"

/* FEW: that go by one chain; no more are tried by wgmma. */
enum { MEMORY = 96 << 20, FEW = 16, MANY = 128, PATIENCE_US = 1000 };

static const struct {
    const char *is, *kernel;
} kinds[] = {
    {KERNELS_WGMMA, "gemm_wide"}, {KERNELS_CHAIN, "gemm_stream"}, {KERNELS_INSIDE, "gemm_lora"}};
enum { WGMMA, KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static backend *open_devices(int n, int rows, const char *without)
{
    backend_config cfg = {.n_threads = 1,
                          .n_device = n,
                          .max_rows = rows,
                          .max_seqs = FEW,
                          .patience_us = PATIENCE_US};
    snprintf(cfg.without, sizeof(cfg.without), "%s", without);
    backend *be;
    err e = {0};
    emu_rt_device(n, MEMORY);
    err_code rc = be_open(&be, n > 1 ? &backend_cuda_tp : &backend_cuda, &cfg, &e);
    ck_assert_msg(rc == ERR_NONE, "%s", e.msg);
    return be;
}

static err_code load(model **m, backend *be, int rows, err *e)
{
    bool shared = be_caps(be)->n_device > 1;
    return model_load(m, shared ? "fixtures/models/llama-tp-bf16" : "fixtures/models/llama-bf16",
                      be, rows, FEW, e);
}

/* As the end of a process does. */
static void forget(int n)
{
    emu_rt_break_at("", -1, cudaSuccess);
    for (int i = n - 1; i >= 0; i--) {
        (void)cudaSetDevice(i); /* lost as it is */
        ck_assert_int_eq(cudaDeviceReset(), cudaSuccess);
    }
}

static void fails(int n_device, int kind, int nth, cudaError_t code)
{
    err e = {0};
    model *m;
    backend *be = open_devices(n_device, MANY, "");
    emu_rt_break_at(kinds[kind].kernel, nth, code);
    ck_assert_int_ne(load(&m, be, MANY, &e), ERR_NONE);
    ck_assert_int_eq(be_remedy_of(be), BE_HEALS_NEVER);
    ck_assert_pstr_eq(be_suspect(be), kinds[kind].is);
    if (code == cudaErrorNotReady) { /* nor opened again: what it has is not given back */
        ck_assert_int_ne(be_reopen(be, &e), ERR_NONE);
        ck_assert_int_eq(be_remedy_of(be), BE_HEALS_NEVER);
    }
    be_close(be);
    forget(n_device);
}

/* Its first launch, and one in the middle of what is asked. */
START_TEST(the_kernels_are_named)
{
    uint64_t asked = emu_rt_launched(kinds[_i / 2].kernel);
    fails(1, _i / 2, _i % 2 * 3, cudaErrorIllegalAddress);
    ck_assert_uint_gt(emu_rt_launched(kinds[_i / 2].kernel), asked);
}
END_TEST

START_TEST(what_hangs_is_not_waited_for)
{
    fails(1, _i / 2, _i % 2 * 3, cudaErrorNotReady);
}
END_TEST

START_TEST(of_several_devices_as_well)
{
    fails(2, WGMMA, 0, _i == 0 ? cudaErrorLaunchFailure : cudaErrorNotReady);
}
END_TEST

START_TEST(without_them_nothing_is_asked)
{
    err e = {0};
    model *m;
    uint64_t asked = emu_rt_launched(kinds[_i].kernel);
    int rows = _i == WGMMA ? MANY : FEW;
    backend *be = open_devices(1, rows, kinds[_i].is);
    emu_rt_break_at(kinds[_i].kernel, 0, cudaErrorIllegalAddress);
    ck_assert_msg(load(&m, be, rows, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_uint_eq(emu_rt_launched(kinds[_i].kernel), asked);
    ck_assert_ptr_null(be_suspect(be));
    model_destroy(m);
    be_close(be);
    forget(1);
}
END_TEST

/* Loads a model on one device; returns be_order(). */
static uint64_t order_of(const char *without, bool no_cublas)
{
    err e = {0};
    model *m;
    backend *be = open_devices(1, MANY, without);
    emu_rt_no_cublas(no_cublas);
    ck_assert_msg(load(&m, be, MANY, &e) == ERR_NONE, "%s", e.msg);
    uint64_t order = be_order(be);
    model_destroy(m);
    be_close(be);
    forget(1);
    emu_rt_no_cublas(false);
    return order;
}

/* A fleet moves streams between servers with one fingerprint, so between equal orders alone. */
START_TEST(the_order_of_sums_is_told)
{
    (void)unsetenv("EMU_CUBLAS"); /* a cuBLAS whose order no kernel of ours has */
    uint64_t order = order_of("", false);
    ck_assert_uint_ne(order, 0);
    ck_assert_uint_eq(order_of("", true), 0); /* the one order of our kernels */
    ck_assert_uint_eq(order_of("", false), order);
    ck_assert_uint_eq(order_of("inside, wgmma", false), order);
}
END_TEST

/* What is no trial's fault names nobody. */
START_TEST(others_are_not_blamed)
{
    err e = {0};
    model *m;
    backend *be = open_devices(1, MANY, "");
    emu_rt_break_at("gemm_small", 0, cudaErrorIllegalAddress);
    ck_assert_int_ne(load(&m, be, MANY, &e), ERR_NONE);
    ck_assert_int_eq(be_remedy_of(be), BE_HEALS_NEVER);
    ck_assert_ptr_null(be_suspect(be));
    be_close(be);
    forget(1);
}
END_TEST

int main(void)
{
    (void)setenv("EMU_CAPABILITY", "90", 1);
    (void)setenv("EMU_CUBLAS", "chain", 1);
    Suite *s = suite_create("trial");
    TCase *tc = tcase_create("trial");
    tcase_set_timeout(tc, 240);
    suite_add_tcase(s, tc);
    tcase_add_loop_test(tc, the_kernels_are_named, 0, 2 * KINDS);
    tcase_add_loop_test(tc, what_hangs_is_not_waited_for, 0, 2 * KINDS);
    tcase_add_loop_test(tc, of_several_devices_as_well, 0, 2);
    tcase_add_loop_test(tc, without_them_nothing_is_asked, 0, KINDS);
    tcase_add_test(tc, others_are_not_blamed);
    tcase_add_test(tc, the_order_of_sums_is_told);
    return run_suite(s);
}
