/* test_tensor_parallel.c -- a model over several emulated devices: the golden logits, and the same
 * bits for every number of devices.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/backend_ops.h"
#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/engine/changed_model.h"
#include "tests/engine/golden_rig.h"
#include "tests/engine/plain_backend.h"
#include "tests/run_suite.h"

enum { CASE_STEP = 5, DEVICE_BYTES = 96 << 20 };
static const char model_dir[] = "fixtures/models/llama-tp-bf16";

static const backend_ops *ops_for(int n)
{
    return n > 1 ? &backend_cuda_tp : &backend_cuda;
}

/* One device alone has our law of products, too: cuBLAS names none.  Several do not ask it. */
static err_code open_devices(backend **out, int n, err *e)
{
    backend_config cfg = {
        .n_threads = 2, .n_device = n, .max_rows = MAX_ROWS, .max_seqs = CASES_MAX};
    emu_rt_device(n, DEVICE_BYTES);
    emu_rt_no_cublas(n == 1);
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

static const weights_form forms[] = {WEIGHTS_AUTO, WEIGHTS_Q8, WEIGHTS_Q4, WEIGHTS_FP8};

START_TEST(the_golden_logits_and_the_same_bits_over_1_2_and_4_devices)
{
    static const int counts[] = {1, 2, 4};
    golden *g = golden_read(model_dir);
    static const char *const eager[] = {"0", "7", "1"}; /* streams late, by a seed, at once */
    said all[3];
    char what[96];
    (void)setenv("EMU_EAGER", eager[_i], 0);
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

/* ---- adapters of every kind ----------------------------------------------------------------- */

static uint32_t seed;

static float draw(void)
{
    seed = seed * 1664525U + 1013904223U;
    return (float)(seed >> 8) / (float)(1U << 23) - 1;
}

static float *noise(size_t n, float mean, float scale)
{
    float *v = malloc(n * sizeof(*v));
    for (size_t i = 0; i < n; i++) v[i] = mean + scale * draw();
    return v;
}

/* In the backend's memory. */
static float *there(backend *be, size_t n, float mean, float scale)
{
    float *v = noise(n, mean, scale), *p = be_alloc(be, n * sizeof(*v));
    ck_assert_int_eq(be_upload(be, p, v, n * sizeof(*v)), ERR_NONE);
    free(v);
    return p;
}

/* B in pieces of 64 columns, which lie anywhere; A in two. */
typedef struct {
    lora_split split;
    const void *a[8], *b[8];
} pieces;

static lora_mat cut_mat(backend *be, pieces *p, int rank, int d_in, int d_out)
{
    float *a = noise((size_t)rank * (size_t)d_in, 0, 0.1F);
    float *b = noise((size_t)rank * (size_t)d_out, 0, 0.1F);
    int first = rank / 2, n = (d_out - 64) / 64;
    size_t row = (size_t)d_in, col = (size_t)rank;
    void *a0 = be_alloc(be, be_lora_a_bytes(be, DT_BF16, first, d_in));
    void *a1 = be_alloc(be, be_lora_a_bytes(be, DT_BF16, rank - first, d_in));
    ck_assert_int_eq(be_lora_pack(be, DT_BF16, a0, NULL, a, NULL, DT_F32, first, d_in, d_out, NULL),
                     0);
    ck_assert_int_eq(be_lora_pack(be, DT_BF16, a1, NULL, a + (size_t)first * row, NULL, DT_F32,
                                  rank - first, d_in, d_out, NULL),
                     0);
    for (int i = 0; i <= n; i++) {
        void *to = be_alloc(be, be_lora_b_bytes(be, DT_BF16, rank, 64));
        ck_assert_int_eq(be_lora_pack(be, DT_BF16, NULL, to, NULL, b + (size_t)(64 * i) * col,
                                      DT_F32, rank, d_in, 64, NULL),
                         0);
        if (i > 0) p->b[i - 1] = to;
        if (i == 0) p->b[7] = to;
    }
    p->a[0] = a1;
    p->split = (lora_split){.a_first = first,
                            .a_each = rank - first,
                            .b_first = 64,
                            .b_each = 64,
                            .a = p->a,
                            .b = p->b};
    free(a);
    free(b);
    return (lora_mat){.a = a0, .b = p->b[7], .rank = rank, .scale = 0.5F, .split = &p->split};
}

static lora_mat whole_mat(backend *be, int rank, int d_in, int d_out, bool embed)
{
    float *a = noise((size_t)rank * (size_t)d_in, 0, 0.2F);
    float *b = noise((size_t)rank * (size_t)d_out, 0, 0.2F);
    void *pa = be_alloc(be, be_lora_a_bytes(be, DT_BF16, rank, d_in));
    void *pb = be_alloc(be, be_lora_b_bytes(be, DT_BF16, rank, d_out));
    err_code rc =
        embed ? be_lora_pack_embed(be, DT_BF16, pa, pb, a, b, DT_F32, rank, d_in, d_out, NULL)
              : be_lora_pack(be, DT_BF16, pa, pb, a, b, DT_F32, rank, d_in, d_out, NULL);
    ck_assert_int_eq(rc, ERR_NONE);
    free(a);
    free(b);
    return (lora_mat){.a = pa, .b = pb, .rank = rank, .scale = 1};
}

/* DoRA's gain of what r16 does to a projection of layer 1. */
static const float *gain_of(rig *r, proj p, int d_in, int d_out)
{
    enum { RANK = 4 };
    float *a = noise(RANK * (size_t)d_in, 0, 0.1F), *b = noise(RANK * (size_t)d_out, 0, 0.1F);
    float *m = noise((size_t)d_out, 1, 0.2F), *gain = malloc((size_t)d_out * sizeof(*gain));
    lora_pair pair = {.a = a, .b = b, .type = DT_F32, .rank = RANK, .scale = 1};
    err e = {0};
    ck_assert_msg(be_lora_gain(r->be, model_proj_weight(r->m, 1, p), &pair, m, gain, &e) == 0, "%s",
                  e.msg);
    float *to = be_alloc(r->be, (size_t)d_out * sizeof(*gain));
    ck_assert_int_eq(be_upload(r->be, to, gain, (size_t)d_out * sizeof(*gain)), ERR_NONE);
    free(a);
    free(b);
    free(m);
    free(gain);
    return to;
}

static const int32_t own_id[] = {5, 17};

/* The first adapter gets all that one can have; the third, whose steps are graphs, what those
 * bear. */
typedef struct {
    pieces cut[2];
    lora_head head, light;
    lora_embed embed;
    const float *norm[5];
} extras;

static void add_extras(rig *r, extras *x)
{
    enum { DIM = 256 };
    backend *be = r->be;
    lora_mat *first = r->adapter[0].mat, *third = r->adapter[2].mat;
    seed = 11;
    *x = (extras){0};
    first[PROJ_COUNT + PROJ_GATE] = cut_mat(be, &x->cut[0], 12, DIM, DIM);
    third[PROJ_COUNT + PROJ_K] = cut_mat(be, &x->cut[1], 24, DIM, DIM);
    first[PROJ_COUNT + PROJ_O].gain = gain_of(r, PROJ_O, DIM, DIM);
    third[PROJ_COUNT + PROJ_UP].gain = gain_of(r, PROJ_UP, DIM, DIM);
    first[PROJ_Q].bias = there(be, DIM, 0, 0.2F);
    third[PROJ_DOWN].bias = there(be, DIM, 0, 0.2F);
    r->adapter[0].view.rank_max = 16;
    r->adapter[2].view.rank_max = 24;
    int32_t *ids = be_alloc(be, sizeof(own_id));
    ck_assert_int_eq(be_upload(be, ids, own_id, sizeof(own_id)), ERR_NONE);
    const lora_rows rows = {.n = 2, .id = own_id, .id_there = ids};
    float *own = noise((size_t)r->n_vocab * DIM, 0, 0.06F);
    weight *w, *few;
    err e = {0};
    ck_assert_msg(be_lora_weight_create(be, &w, own, DT_F32, r->n_vocab, DIM, &e) == 0, "%s",
                  e.msg);
    ck_assert_msg(be_lora_weight_create(be, &few, own + 7, DT_F32, 2, DIM, &e) == 0, "%s", e.msg);
    x->head = (lora_head){.w = w, .mat = whole_mat(be, 3, DIM, r->n_vocab, false), .rows = rows};
    x->head.rows.w = few;
    x->light = (lora_head){.mat = whole_mat(be, 5, DIM, r->n_vocab, false)};
    x->embed = (lora_embed){
        .pack_type = DT_BF16, .mat = whole_mat(be, 4, r->n_vocab, DIM, true), .rows = rows};
    x->embed.rows.table = there(be, 2 * DIM, 0, 1);
    x->embed.rows.type = DT_F32;
    x->norm[1] = there(be, DIM, 1, 0.2F);
    x->norm[4] = there(be, DIM, 1, 0.2F);
    r->adapter[0].view.head = &x->head;
    r->adapter[0].view.embed = &x->embed;
    r->adapter[0].view.norm = x->norm;
    r->adapter[2].view.head = &x->light;
    r->adapter[2].view.embed = &x->embed;
    free(own);
}

/* Case 0 is nobody's, 4 and 11 the third adapter's, 2 and 10 the first's. */
static const int cast[] = {0, 4, 11, 2, 10};
enum { CAST = sizeof(cast) / sizeof(cast[0]), CAST_OF_GRAPHS = 3 };

/* The first `n` of them, in the order of adapters. */
static void run_cast(rig *r, const golden *g, int n, int chunk, float *out[CAST])
{
    run u[CAST];
    bool left = true;
    for (int i = 0; i < n; i++) {
        out[i] = calloc(TOKENS_MAX * g->n_vocab, sizeof(float));
        run_start(&u[i], r, &g->c[cast[i]], i, n, out[i]);
    }
    while (left) {
        left = false;
        for (int i = 0; i < n; i++) {
            u[i].n_now = run_left(&u[i]) < chunk ? run_left(&u[i]) : chunk;
            left |= run_left(&u[i]) > u[i].n_now;
        }
        step_runs(r, u, n, false);
    }
}

START_TEST(adapters_of_every_kind_give_the_same_bits)
{
    static const int counts[] = {1, 2, 4}, chunks[] = {20, 1};
    /* Streams as late as they may, then by a seed: one device is far ahead of another then. */
    if (_i >= 2) (void)setenv("EMU_EAGER", "7", 0);
    golden *g = golden_read(model_dir);
    float *out[3][CAST];
    char what[96];
    int chunk = chunks[_i % 2], n = chunk == 1 ? CAST_OF_GRAPHS : CAST;
    for (int k = 0; k < 3; k++) {
        rig r;
        extras x;
        emu_rt_counts before, after;
        open_rig(&r, counts[k], WEIGHTS_AUTO);
        add_extras(&r, &x);
        emu_rt_count(&before);
        run_cast(&r, g, n, chunk, out[k]);
        emu_rt_count(&after);
        if (chunk == 1) ck_assert_uint_gt(after.graph_launches, before.graph_launches);
        be_weight_destroy(r.be, (weight *)(uintptr_t)x.head.w);
        be_weight_destroy(r.be, (weight *)(uintptr_t)x.head.rows.w);
        be_kv_destroy(r.be, r.kv); /* what is in pieces goes with the device */
        model_destroy(r.m);
        for (int i = 0; i < N_ADAPTER; i++) free(r.adapter[i].mat);
        be_close(r.be);
        for (int i = 0; k > 0 && i < n; i++) {
            (void)snprintf(what, sizeof(what), "case %d over %d devices", cast[i], counts[k]);
            int rows = g->c[cast[i]].n_prompt + g->c[cast[i]].n_new - 1;
            assert_same_bits(out[0][i], out[k][i], rows, (int)g->n_vocab, what);
        }
    }
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++) free(out[k][i]);
    free(g);
}
END_TEST

/* ---- pages ----------------------------------------------------------------------------------- */

/* What one device saved, four go on from, and what they save is the same. */
START_TEST(a_saved_page_is_as_one_device_would_have_it)
{
    golden *g = golden_read(model_dir);
    const golden_case *c = &g->c[5];
    int rows = c->n_prompt + c->n_new - 1;
    size_t n = TOKENS_MAX * (size_t)g->n_vocab;
    float *whole = calloc(n, sizeof(*whole)), *rest = calloc(n, sizeof(*rest));
    unsigned char *page[2] = {NULL, NULL};
    dtype type = _i ? DT_I8 : DT_BF16;
    for (int k = 0; k < 2; k++) {
        rig r;
        run u;
        open_rig(&r, k ? 4 : 1, WEIGHTS_AUTO);
        rig_keep(&r, type);
        attn_shape shape = model_attn_shape(r.m);
        size_t bytes = be_kv_saved_bytes(r.be, &shape);
        ck_assert_uint_eq(be_kv_page_bytes(r.be, &shape), k ? bytes / 4 : bytes);
        page[k] = malloc(bytes);
        run_start(&u, &r, c, 0, 1, k ? rest : whole);
        ck_assert_int_ge(rows, r.page_tokens + 2);
        if (k) {
            be_kv_load(r.be, r.kv, u.page[0], page[0]);
            be_kv_copied(r.be);
            u.pos = r.page_tokens;
        }
        while (run_left(&u) > 0) {
            u.n_now = run_left(&u) < MAX_ROWS ? run_left(&u) : MAX_ROWS;
            step_runs(&r, &u, 1, false);
        }
        if (k) { /* its own, of the same prompt */
            run_start(&u, &r, c, 0, 2, rest);
            u.n_now = r.page_tokens;
            u.logits = calloc(n, sizeof(*rest));
            step_runs(&r, &u, 1, false);
            free(u.logits);
        }
        be_kv_save(r.be, r.kv, u.page[0], page[k]);
        be_kv_copied(r.be);
        if (k) ck_assert_mem_eq(page[0], page[1], bytes);
        size_t from = (size_t)r.page_tokens * (size_t)r.n_vocab;
        if (k)
            assert_same_bits(whole + from, rest + from, rows - r.page_tokens, r.n_vocab,
                             "after a page of one device");
        rig_close(&r);
    }
    free(page[0]);
    free(page[1]);
    free(whole);
    free(rest);
    free(g);
}
END_TEST

/* ---- activations ------------------------------------------------------------------------- */

/* Gates that no product and no expand computes: the oracle's answers, the same bits over two
 * devices and row by row. */
START_TEST(other_gates)
{
    static const char *const acts[] = {"relu2", "gelu", "relu"};
    enum { N_RUN = 4, ROWS = 14 };
    char dir[64], act[64], what[96];
    golden *g = golden_read(model_dir);
    size_t n = (size_t)g->n_vocab, all = (size_t)TOKENS_MAX * n * sizeof(float);
    golden_case c = g->c[0];
    c.adapter = 0;
    c.n_prompt = ROWS;
    c.n_new = 1;
    (void)snprintf(act, sizeof(act), "\"hidden_act\": \"%s\"", acts[_i]);
    changed_model(dir, model_dir, "\"hidden_act\": \"silu\"", act);
    float *want = calloc(1, all), *got[N_RUN];
    for (int k = -1; k < N_RUN; k++) { /* the oracle; one device and two, whole and row by row */
        backend *be;
        rig r;
        err e = {0};
        err_code rc = k < 0 ? be_open(&be, &backend_plain, &(backend_config){0}, &e)
                            : open_devices(&be, 1 + k / 2, &e);
        ck_assert_msg(rc == ERR_NONE, "%s", e.msg);
        rig_open_as(&r, dir, be, 0, WEIGHTS_AUTO);
        rig_adapter(&r, model_dir, 0);
        if (k >= 0) got[k] = calloc(1, all);
        run_alone(&r, &c, k == 1 || k == 3 ? 1 : MAX_ROWS, false, k < 0 ? want : got[k]);
        rig_close(&r);
    }
    for (int row = 0; row < ROWS; row++) {
        size_t at = (size_t)row * n;
        double d = log_prob_difference(want + at, got[0] + at, (int)n);
        ck_assert_msg(d <= 3e-2, "%s, row %d: off by %.2e", acts[_i], row, d);
    }
    for (int k = 0; k < N_RUN; k++) {
        (void)snprintf(what, sizeof(what), "%s, run %d", acts[_i], k);
        assert_same_bits(got[0], got[k], ROWS, (int)n, what);
    }
    for (int k = 0; k < N_RUN; k++) free(got[k]);
    free(want);
    free(g);
    tmpdir_remove(dir);
}
END_TEST

/* ---- what is refused --------------------------------------------------------------------- */

static void refused(err_code rc, const err *e, const char *why)
{
    ck_assert_msg(rc != ERR_NONE, "taken, though: %s", why);
    ck_assert_msg(strstr(e->msg, why) != NULL, "%s: %s", why, e->msg);
}

START_TEST(what_does_not_fit_is_refused_by_name)
{
    static const struct {
        const char *dir, *why;
        int n;
    } models[] = {
        {"fixtures/models/llama-tp-bf16", "300 rows: 7 devices cannot share them", 7},
        {"fixtures/models/llama-bf16", "needs whole blocks of 64", 2},
        {"fixtures/families/models/mixtral", "mixtures of experts", 2},
        {"fixtures/families/models/olmo2", "norms of all heads together", 2},
    };
    backend *be;
    model *m;
    kv_pool *kv;
    err e = {0};
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        ck_assert_msg(open_devices(&be, models[i].n, &e) == ERR_NONE, "%s", e.msg);
        err_code rc = model_load(&m, models[i].dir, be, MAX_ROWS, MAX_ROWS, &e);
        refused(rc, &e, models[i].why);
        be_close(be);
    }
    ck_assert_msg(open_devices(&be, 4, &e) == ERR_NONE, "%s", e.msg);
    const attn_shape odd = {
        .n_layer = 1, .n_head = 6, .n_kv_head = 6, .head_dim = 64, .kv_type = DT_BF16, .scale = 1};
    refused(be_kv_create(be, &kv, &odd, 4, &e), &e, "6 heads of keys and values: 4 devices");
    be_close(be);

    backend_config cfg = {.n_device = 9};
    refused(be_open(&be, &backend_cuda_tp, &cfg, &e), &e, "2 to 8 devices");
    cfg.n_device = 3;
    emu_rt_device(2, DEVICE_BYTES);
    refused(be_open(&be, &backend_cuda_tp, &cfg, &e), &e, "no CUDA device 2");
    emu_rt_peers(false);
    refused(open_devices(&be, 2, &e), &e, "cannot reach the memory of device");
    emu_rt_peers(true);
    emu_rt_counts now;
    emu_rt_count(&now);
    ck_assert_uint_eq(now.device_bytes + now.pinned_bytes, 0);
    for (int i = 0; i < 2; i++) { /* again, with the peers of before */
        ck_assert_msg(open_devices(&be, 2, &e) == ERR_NONE, "%s", e.msg);
        ck_assert_ptr_nonnull(strstr(be_caps(be)->detail, "2 x emulated"));
        be_close(be);
    }
}
END_TEST

/* $CK_RUN_CASE takes one of them. */
static TCase *one(Suite *s, const char *name)
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 600);
    suite_add_tcase(s, tc);
    return tc;
}

int main(void)
{
    Suite *s = suite_create("tensor_parallel");
    tcase_add_loop_test(one(s, "golden"),
                        the_golden_logits_and_the_same_bits_over_1_2_and_4_devices, 0, 3);
    tcase_add_loop_test(one(s, "adapters"), adapters_of_every_kind_give_the_same_bits, 0, 4);
    tcase_add_loop_test(one(s, "pages"), a_saved_page_is_as_one_device_would_have_it, 0, 2);
    tcase_add_loop_test(one(s, "gates"), other_gates, 0, 3);
    tcase_add_test(one(s, "refused"), what_does_not_fit_is_refused_by_name);
    return run_suite(s);
}
