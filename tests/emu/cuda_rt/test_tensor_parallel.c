/* test_tensor_parallel.c -- a model over several emulated devices: the golden logits, and the same
 * bits for every number of devices.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/backend_ops.h"
#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/engine/golden_rig.h"
#include "tests/run_suite.h"

enum { CASE_STEP = 5, DEVICE_BYTES = 96 << 20 };
static const char model_dir[] = "fixtures/models/llama-tp-bf16";

static const backend_ops *ops_for(int n)
{
    return n > 1 ? &backend_cuda_tp : &backend_cuda;
}

/* One device alone has our law of products, too: cuBLAS names none. */
static err_code open_devices(backend **out, int n, err *e)
{
    backend_config cfg = {
        .n_threads = 2, .n_device = n, .max_rows = MAX_ROWS, .max_seqs = CASES_MAX};
    emu_rt_device(n, DEVICE_BYTES);
    emu_rt_no_cublas(true);
    return be_open(out, ops_for(n), &cfg, e);
}

static void open_rig(rig *r, int n, weights_form weights)
{
    backend *be;
    err e = {0};
    ck_assert_msg(open_devices(&be, n, &e) == ERR_NONE, "%s", e.msg);
    rig_open_as(r, model_dir, be, N_ADAPTER, weights);
}

/* ---- goldens ----------------------------------------------------------------------------- */

/* What a number of devices says of each case, whole, in decode steps, and beside others. */
typedef struct {
    float *whole[CASES_MAX], *mixed[CASES_MAX], *apart;
} said;

static void run_mixed(rig *r, const golden *g, float *const logits[])
{
    run runs[CASES_MAX];
    int n = 0, left = 1;
    unsigned seed = 7;
    for (int id = -1; id < N_ADAPTER; id++) {
        for (uint32_t i = 0; i < g->n_case; i += CASE_STEP) {
            if (g->c[i].adapter != id) continue;
            run_start(&runs[n], r, &g->c[i], n, CASES_MAX, logits[i]);
            n++;
        }
    }
    while (left) {
        int rows = 0;
        left = 0;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525U + 1013904223U;
            int now = (int)(seed >> 24) % 8;
            if (now > run_left(&runs[i])) now = run_left(&runs[i]);
            if (run_left(&runs[i]) > 0) left = 1;
            runs[i].n_now = now;
            rows += now;
        }
        if (rows) step_runs(r, runs, n, false);
    }
}

static void run_all(said *out, const golden *g, int n, weights_form weights)
{
    rig r;
    size_t bytes = (size_t)TOKENS_MAX * g->n_vocab * sizeof(float);
    emu_rt_counts before, after;
    open_rig(&r, n, weights);
    emu_rt_count(&before);
    for (uint32_t i = 0; i < g->n_case; i += CASE_STEP) {
        out->whole[i] = calloc(1, bytes);
        out->mixed[i] = calloc(1, bytes);
        run_alone(&r, &g->c[i], MAX_ROWS, false, out->whole[i]);
    }
    run_mixed(&r, g, out->mixed);
    out->apart = calloc(1, bytes);
    run_alone(&r, &g->c[2 * CASE_STEP], 1, false, out->apart); /* decode steps alone */
    emu_rt_count(&after);
    ck_assert_uint_gt(after.graph_launches, before.graph_launches + 4);
    ck_assert_uint_eq(emu_rt_launched("cublas"), 0);
    rig_close(&r);
}

static void drop(said *s, const golden *g)
{
    for (uint32_t i = 0; i < g->n_case; i += CASE_STEP) {
        free(s->whole[i]);
        free(s->mixed[i]);
    }
    free(s->apart);
}

static const weights_form forms[] = {WEIGHTS_AUTO, WEIGHTS_Q8, WEIGHTS_Q4};

START_TEST(the_golden_logits_and_the_same_bits_over_1_2_and_4_devices)
{
    static const int counts[] = {1, 2, 4};
    golden *g = golden_read(model_dir);
    said all[3];
    char what[96];
    memset(all, 0, sizeof(all));
    for (int k = 0; k < 3; k++) run_all(&all[k], g, counts[k], forms[_i]);
    for (uint32_t i = 0; i < g->n_case; i += CASE_STEP) {
        const golden_case *c = &g->c[i];
        int rows = c->n_prompt + c->n_new - 1;
        for (int k = 0; k < 3; k++) {
            (void)snprintf(what, sizeof(what), "case %u over %d devices", i, counts[k]);
            double d = _i == 0 ? compare_near(g, c, all[k].whole[i], 0, what) : 0;
            ck_assert_msg(d <= 3e-2, "%s: off by %.2e", what, d);
            assert_same_bits(all[0].whole[i], all[k].whole[i], rows, (int)g->n_vocab, what);
            assert_same_bits(all[0].whole[i], all[k].mixed[i], rows, (int)g->n_vocab, what);
            if (i == 2 * CASE_STEP)
                assert_same_bits(all[0].whole[i], all[k].apart, rows, (int)g->n_vocab, what);
        }
    }
    for (int k = 0; k < 3; k++) drop(&all[k], g);
    free(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tensor_parallel");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 600);
    tcase_add_loop_test(tc, the_golden_logits_and_the_same_bits_over_1_2_and_4_devices, 0, 3);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
