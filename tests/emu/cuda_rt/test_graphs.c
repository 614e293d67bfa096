/* test_graphs.c -- decode steps as graphs, on the emulated device, which records launches with the
 * arguments that they had and nothing else.
 *
 * Golden cases walk token by token in batches whose members, lengths and adapters change from
 * step to step: every row has the bits that the case has alone, launched plainly; these are
 * the golden ones.  Counters show how often something was recorded, and that a step waits
 * once and allocates nothing.
 */
#include "engine/cuda/cuda.h"
#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/engine/changed_model.h"
#include "tests/engine/golden_rig.h"
#include "tests/run_suite.h"

enum { MEMORY = 96 << 20, LONG_PAGES = 26, LONG_SEQS = 5 };

static backend *open_backend(bool graphs, double fraction)
{
    backend_config cfg = {.n_threads = 1,
                          .max_rows = MAX_ROWS,
                          .max_seqs = CASES_MAX,
                          .fraction = fraction,
                          .no_graphs = !graphs};
    backend *be;
    err e = {0};
    emu_rt_device(1, MEMORY);
    ck_assert_msg(be_open(&be, &backend_cuda, &cfg, &e) == ERR_NONE, "%s", e.msg);
    return be;
}

/* Views that are not loaded again, as residency.c has them. */
static void load(rig *r, const char *dir, int i)
{
    rig_adapter(r, dir, i);
    r->adapter[i].view.load_id = (uint64_t)i + 1;
}

/* What there was when the last model had been loaded: products are tried in records, too. */
static emu_rt_counts loaded;

static emu_rt_counts counts(void)
{
    emu_rt_counts n;
    emu_rt_count(&n);
    n.captures -= loaded.captures;
    n.graph_launches -= loaded.graph_launches;
    return n;
}

static void open_rig(rig *r, const char *dir, backend *be, int n_adapter)
{
    rig_open(r, dir, be, n_adapter);
    emu_rt_count(&loaded);
}

/* ---- golden cases in changing company --------------------------------------------------- */

typedef struct bed {
    char dir[64];
    golden *g;
    rig r;
    int n;                /* runs, sorted by adapter */
    run u[N_ADAPTER + 1]; /* of adapter i - 1 */
    float *alone[N_ADAPTER + 1];
    int steps, waits; /* steps; the host's waits in them */
} bed;

/* With the cases of `who`, bit i for adapter i - 1 (0: the base). */
static void bed_open(bed *b, const char *name, double fraction, unsigned who)
{
    memset(b, 0, sizeof(*b));
    snprintf(b->dir, sizeof(b->dir), "fixtures/models/%s", name);
    b->g = golden_read(b->dir);
    b->n = N_ADAPTER + 1;
    size_t bytes = (size_t)TOKENS_MAX * b->g->n_vocab * sizeof(float);
    double bound = strstr(name, "bf16") ? 3e-2 : 3.5e-3;

    rig plain;
    open_rig(&plain, b->dir, open_backend(false, 0), N_ADAPTER);
    for (int i = 0; i < b->n; i++) {
        const golden_case *c = b->g->c;
        while (c->adapter != i - 1) c++;
        b->u[i].c = c;
        if (!(who >> i & 1)) continue;
        b->alone[i] = malloc(bytes);
        run_alone(&plain, c, MAX_ROWS, false, b->alone[i]);
        double d = compare(b->g, c, b->alone[i], name);
        ck_assert_msg(d <= bound, "%s, case of adapter %d: off by %.2e", name, i - 1, d);
    }
    rig_close(&plain);
    ck_assert_uint_eq(counts().graph_launches, 0);

    open_rig(&b->r, b->dir, open_backend(true, fraction), 0);
    for (int i = 0; i < b->n; i++)
        run_start(&b->u[i], &b->r, b->u[i].c, i, CASES_MAX, malloc(bytes));
}

static void bed_close(bed *b)
{
    for (int i = 0; i < b->n; i++) {
        free(b->alone[i]);
        free(b->u[i].logits);
    }
    free(b->g);
    rig_close(&b->r);
    ck_assert_uint_eq(counts().graph_bytes, 0);
}

/* One row of each run in `who`, bit i for adapter i - 1. */
static void together(bed *b, unsigned who)
{
    size_t n_vocab = (size_t)b->r.n_vocab;
    for (int i = 0; i < b->n; i++) {
        if (run_left(&b->u[i]) == 0) b->u[i].pos = 0; /* once more, over the same pages */
        b->u[i].n_now = (int)(who >> i & 1);
    }
    emu_rt_counts before = counts();
    step_runs(&b->r, b->u, b->n, false);
    emu_rt_counts after = counts();
    b->steps++;
    b->waits += (int)(after.syncs - before.syncs);
    ck_assert_uint_eq(after.mallocs, before.mallocs);
    for (int i = 0; i < b->n; i++) {
        if (!b->u[i].n_now) continue;
        size_t at = (size_t)(b->u[i].pos - 1) * n_vocab;
        ck_assert_msg(memcmp(b->u[i].logits + at, b->alone[i] + at, 4 * n_vocab) == 0,
                      "step %d (%x): adapter %d, position %d differs", b->steps, who, i - 1,
                      b->u[i].pos - 1);
    }
}

static unsigned mix(unsigned *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 16;
}

/* `n` of the runs in `from`, always with `with`. */
static unsigned choose(unsigned from, unsigned with, int n, unsigned *seed)
{
    unsigned who = with;
    while (__builtin_popcount(who) < n) who |= 1U << mix(seed) % (N_ADAPTER + 1) & from;
    return who;
}

static const char *const models[] = {"llama-bf16", "qwen2-f16", "mistral-f32", "llama-tp-bf16"};

/* Whether products of this device have LoRA inside (main()). */
static bool inside;

START_TEST(replays_have_golden_bits_whoever_comes)
{
    enum { BASE = 1, R1 = 1 << 1, R4 = 1 << 2, R16 = 1 << 3, R256 = 1 << 5 };
    bed b;
    unsigned seed = (unsigned)_i + 1, early = BASE | R1 | R4 | R16 | R256;
    int rounds = _i == 0 ? 8 : 3;
    bed_open(&b, models[_i], 0, ~0U);
    uint64_t before = emu_rt_launched("gemm_lora"), gated = emu_rt_launched("expand_gated");
    for (int i = 0; i < N_ADAPTER; i++) {
        if (early >> (i + 1) & 1) load(&b.r, b.dir, i);
    }
    /* Sizes 1 to 5 with the largest rank: shapes of 1, 2, 4 and 8 rows. */
    for (int round = 0; round < 3; round++) {
        for (int n = 1; n <= 5; n++) together(&b, choose(early, R256, n, &seed));
    }
    emu_rt_counts warm = counts();
    ck_assert_uint_eq(warm.captures, 4);
    ck_assert_uint_eq(warm.graph_launches, (uint64_t)b.steps - 4); /* the first of each shape */

    /* Adapters that nobody had seen when the shapes were recorded. */
    for (int i = 0; i < N_ADAPTER; i++) {
        if (!(early >> (i + 1) & 1)) load(&b.r, b.dir, i);
    }
    b.steps = b.waits = 0;
    for (int round = 0; round < rounds; round++) {
        for (int n = 1; n <= 8; n++) together(&b, choose(~0U, R256, n, &seed));
    }
    emu_rt_counts late = counts();
    ck_assert_uint_eq(late.captures, warm.captures);
    ck_assert_uint_eq(late.graph_launches - warm.graph_launches, (uint64_t)b.steps);
    ck_assert_uint_eq(late.launches, warm.launches);
    ck_assert_uint_eq(late.products, warm.products);
    ck_assert_int_eq(b.waits, b.steps); /* one for each step, at its end */

    /* Other kinds: no adapter, small ranks. */
    for (int round = 0; round < 3; round++) {
        together(&b, BASE);
        together(&b, R1 | R4);
    }
    ck_assert_uint_eq(counts().captures, late.captures + 2);
    printf("graphs on %-11s %d steps of 1 to 8 rows, %d records, each step waits once\n",
           models[_i], b.steps, (int)counts().captures);
    bool whole = _i == 3; /* its gates fill blocks of columns as well */
    ck_assert_int_eq(emu_rt_launched("gemm_lora") > before, inside);
    if (inside && whole) ck_assert_uint_eq(emu_rt_launched("expand_gated"), gated);
    bed_close(&b);
}
END_TEST

/* A prompt between decode steps goes its own way and disturbs nothing. */
START_TEST(prompts_are_launched_plainly)
{
    bed b;
    bed_open(&b, "llama-bf16", 0, 1 | 1U << 4);
    load(&b.r, b.dir, 3);
    for (int i = 0; i < 3; i++) together(&b, 1);
    uint64_t replays = counts().graph_launches;
    b.u[4].n_now = 7;
    b.u[0].n_now = 1;
    step_runs(&b.r, b.u, b.n, false);
    ck_assert_uint_eq(counts().graph_launches, replays);
    for (int i = 0; i < 3; i++) together(&b, 1 | 1U << 4);
    ck_assert_uint_eq(counts().graph_launches, replays + 2);
    bed_close(&b);
}
END_TEST

/* ---- the host ahead of the device ------------------------------------------------------------ */

/* Steps of golden tokens enqueued one behind the other: each waits until the lists of
 * the last but one have left their pinned block, nobody waits for results, and what
 * came of all of them is right. */
START_TEST(steps_are_prepared_while_others_run)
{
    enum { STEPS = 7 };
    bed b;
    bed_open(&b, "llama-bf16", 0, 3);
    load(&b.r, b.dir, 0);
    for (int i = 0; i < 3; i++) together(&b, 3);
    for (int i = 0; i < 2; i++) run_start(&b.u[i], &b.r, b.u[i].c, i, CASES_MAX, b.u[i].logits);
    uint64_t copies = 0;
    for (int n = 0; n < STEPS; n++) {
        int32_t token[2], pos[2] = {n, n}, want[2] = {0, 1};
        step_seq seq[2];
        const step_seg seg[2] = {{0, 1, NULL}, {1, 1, &b.r.adapter[0].view}};
        for (int i = 0; i < 2; i++) {
            token[i] = b.u[i].c->token[n];
            seq[i] = (step_seq){i, 1, n, b.u[i].page, b.u[i].n_page, 0};
        }
        const step s = {2, token, pos, 2, seq, 2, seg, 2, want, NULL, 0, NULL, 0};
        err e;
        emu_rt_counts before = counts();
        ck_assert_int_eq(model_enqueue(b.r.m, b.r.kv, &s, &e), ERR_NONE);
        emu_rt_counts after = counts();
        ck_assert_uint_eq(after.graph_launches, before.graph_launches + 1);
        ck_assert_uint_eq(after.syncs - before.syncs, n >= 2);
        copies += after.copies - before.copies;
        /* Overwritten by the caller at once: what the device reads is a copy. */
        memset(token, 0x7f, sizeof(token));
        memset(seq, 0x7f, sizeof(seq));
    }
    ck_assert_uint_eq(copies, STEPS); /* a step's lists travel in one */
    /* This one attends to all that the others have written. */
    for (int i = 0; i < 2; i++) {
        ck_assert_int_gt(run_left(&b.u[i]), STEPS);
        b.u[i].pos = STEPS;
    }
    together(&b, 3);
    bed_close(&b);
}
END_TEST

/* ---- long sequences: several splits, merges ------------------------------------------------ */

/* Pages as if long prompts had been computed: the same numbers in both rigs. */
static void invent_pages(rig *r)
{
    attn_shape shape = model_attn_shape(r->m);
    size_t bytes = be_kv_page_bytes(r->be, &shape);
    uint16_t *page = malloc(bytes);
    unsigned seed = 7;
    for (int p = 0; p < LONG_PAGES * LONG_SEQS; p++) {
        for (size_t i = 0; i < bytes / 2; i++) /* +-[0.25, 2) */
            page[i] = (uint16_t)((mix(&seed) & 0x8000U) | (0x3E80U + mix(&seed) % 0x180U));
        be_kv_load(r->be, r->kv, p, page);
        be_kv_copied(r->be);
    }
    free(page);
}

/* A step of rows at `len` of sequences in `who`; the adapter of sequence i is i - 1. */
static void long_step(rig *r, unsigned who, const int *len, float *logits)
{
    int32_t token[LONG_SEQS], pos[LONG_SEQS], want[LONG_SEQS], page[LONG_SEQS][LONG_PAGES];
    step_seq seq[LONG_SEQS];
    step_seg seg[LONG_SEQS];
    step s = {.token = token, .pos = pos, .seq = seq, .seg = seg, .logit_row = want};
    for (int i = 0; i < LONG_SEQS; i++) {
        if (!(who >> i & 1)) continue;
        for (int k = 0; k < LONG_PAGES; k++) page[i][k] = (LONG_PAGES - 1 - k) * LONG_SEQS + i;
        int at = s.n_rows++;
        token[at] = (int32_t)((unsigned)(31 * len[i] + i) % (unsigned)r->n_vocab);
        pos[at] = len[i];
        want[s.n_logit++] = at;
        seq[s.n_seq++] = (step_seq){at, 1, len[i], page[i], LONG_PAGES, 0};
        seg[s.n_seg++] = (step_seg){at, 1, i == 0 ? NULL : &r->adapter[i - 1].view};
    }
    const float *out;
    err e = {0};
    ck_assert_msg(model_forward(r->m, r->kv, &s, &out, &e) == ERR_NONE, "%s", e.msg);
    memcpy(logits, out, (size_t)s.n_logit * (size_t)r->n_vocab * sizeof(float));
}

START_TEST(lengths_change_between_replays)
{
    char dir[64];
    rig r[2];
    float *logits[2];
    int len[LONG_SEQS] = {506, 3, 740, 508, 100};
    unsigned seed = 3;
    changed_model(dir, "fixtures/models/llama-bf16", "\"max_position_embeddings\": 512",
                  "\"max_position_embeddings\": 812");
    for (int k = 0; k < 2; k++) {
        open_rig(&r[k], dir, open_backend(k == 1, 0.45), 0);
        for (int i = 0; i < 4; i++) load(&r[k], dir, i);
        invent_pages(&r[k]);
        logits[k] = malloc(LONG_SEQS * (size_t)r[k].n_vocab * sizeof(float));
    }
    tmpdir_remove(dir);
    for (int n = 0; n < 10; n++) {
        /* Recorded where every row has one split: nothing to merge. */
        unsigned who = n < 4 ? 0x1b : choose((1U << LONG_SEQS) - 1, 1U << 1, 3 + n % 2, &seed);
        for (int k = 0; k < 2; k++) long_step(&r[k], who, len, logits[k]);
        size_t bytes = (size_t)__builtin_popcount(who) * (size_t)r[0].n_vocab * sizeof(float);
        ck_assert_msg(memcmp(logits[0], logits[1], bytes) == 0, "step %d (%x) differs", n, who);
        for (int i = 0; i < LONG_SEQS; i++) len[i] += (int)(who >> i & 1);
    }
    ck_assert_uint_eq(counts().captures, 1); /* shapes of 4 rows alone */
    ck_assert_uint_eq(counts().graph_launches, 9);
    for (int k = 0; k < 2; k++) {
        rig_close(&r[k]);
        free(logits[k]);
    }
}
END_TEST

/* ---- where it cannot be ---------------------------------------------------------------------- */

static const struct {
    const char *what;
    cudaError_t code;
} faults[] = {
    {"cudaStreamBeginCapture", cudaErrorStreamCaptureUnsupported},
    {"cublasLtMatmul", cudaErrorStreamCaptureUnsupported},
    {"rms_norm_kernel", cudaErrorStreamCaptureInvalidated},
    {"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated},
    {"cudaGraphInstantiate", cudaErrorMemoryAllocation},
    {"cudaGraphLaunch", cudaErrorMemoryAllocation},
};

/* Plain launches take over within the same step, and stay. */
START_TEST(what_cannot_be_recorded_is_launched)
{
    bed b;
    bed_open(&b, "llama-bf16", 0, 3);
    load(&b.r, b.dir, 0);
    together(&b, 3);
    emu_rt_fail_at(faults[_i].what, 0, faults[_i].code);
    for (int i = 0; i < 4; i++) together(&b, 3);
    ck_assert_uint_eq(counts().graph_launches, 0);
    bed_close(&b);
}
END_TEST

START_TEST(a_full_device_has_no_graphs)
{
    bed b;
    bed_open(&b, "llama-bf16", 0.998, 1);
    for (int i = 0; i < 4; i++) together(&b, 1);
    ck_assert_uint_eq(counts().captures, 1);
    ck_assert_uint_eq(counts().graph_launches, 0);
    bed_close(&b);
}
END_TEST

/* A device that is lost in a replay fails the step. */
START_TEST(a_lost_device_is_reported)
{
    bed b;
    bed_open(&b, "llama-bf16", 0, 3);
    for (int i = 0; i < 3; i++) together(&b, 1);
    ck_assert_uint_gt(counts().graph_launches, 0);
    emu_rt_fail_at("cudaGraphLaunch", 0, cudaErrorIllegalAddress);
    int32_t token = 1, pos = 0, row = 0;
    step_seq seq = {0, 1, 0, b.u[0].page, b.u[0].n_page, 0};
    step_seg seg = {0, 1, NULL};
    step s = {1, &token, &pos, 1, &seq, 1, &seg, 1, &row, NULL, 0, NULL, 0};
    const float *logits;
    err e;
    ck_assert_int_eq(model_forward(b.r.m, b.r.kv, &s, &logits, &e), ERR_DEVICE);
    bed_close(&b);
}
END_TEST

/* ---- the emulated run-time itself ------------------------------------------------------------ */

/* What a launch was given when it was recorded is what it has when it is
 * replayed; memory is as it is then. */
START_TEST(a_record_keeps_its_arguments)
{
    enum { N = 4, COLS = 8 };
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t exec;
    float *x, host[N * COLS];
    uint16_t *out, got[N * COLS];
    void *p;
    int n_rows = 2;
    ck_assert_int_eq(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), 0);
    ck_assert_int_eq(cudaMalloc(&p, sizeof(host)), 0);
    x = p;
    ck_assert_int_eq(cudaMalloc(&p, sizeof(got)), 0);
    out = p;
    ck_assert_int_eq(cudaMemsetAsync(out, 0, sizeof(got), s), 0);
    ck_assert_int_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), 0);
    ck_assert_int_eq(cu_round_rows(s, out, COLS, DT_BF16, x, COLS, n_rows, COLS), 0);
    ck_assert_int_eq(cudaStreamEndCapture(s, &g), 0);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, g, 0), 0);
    for (int round = 1; round <= 3; round++) {
        n_rows = N; /* too late */
        for (int i = 0; i < N * COLS; i++) host[i] = (float)round;
        ck_assert_int_eq(cudaMemcpyAsync(x, host, sizeof(host), cudaMemcpyHostToDevice, s), 0);
        ck_assert_int_eq(cudaGraphLaunch(exec, s), 0);
        ck_assert_int_eq(cudaMemcpyAsync(got, out, sizeof(got), cudaMemcpyDeviceToHost, s), 0);
        ck_assert_int_eq(cudaStreamSynchronize(s), 0);
        float f = (float)round;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        ck_assert_uint_eq(got[0], bits >> 16);
        ck_assert_uint_eq(got[2 * COLS - 1], bits >> 16);
        ck_assert_uint_eq(got[2 * COLS], 0);
    }
    ck_assert_int_eq(cudaGraphDestroy(g), 0);
    ck_assert_int_eq(cudaGraphExecDestroy(exec), 0);
    ck_assert_int_eq(cudaStreamDestroy(s), 0);
    ck_assert_int_eq(cudaFree(x), 0);
    ck_assert_int_eq(cudaFree(out), 0);
}
END_TEST

START_TEST(unsafe_calls_spoil_a_capture)
{
    cudaStream_t s, other;
    cudaGraph_t g;
    void *p;
    ck_assert_int_eq(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), 0);
    ck_assert_int_eq(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), 0);
        cudaError_t ce = i == 0   ? cudaMalloc(&p, 16)
                         : i == 1 ? cudaStreamSynchronize(other)
                                  : cudaHostAlloc(&p, 16, cudaHostAllocDefault);
        ck_assert_int_eq(ce, cudaErrorStreamCaptureUnsupported);
        ck_assert_int_eq(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
        ck_assert_ptr_null(g);
    }
    ck_assert_int_eq(cudaStreamDestroy(other), 0);
    ck_assert_int_eq(cudaStreamDestroy(s), 0);
}
END_TEST

/* With EMU_CUBLAS=chain, products are by one chain and have LoRA inside: those tests alone in
 * which that can be seen. */
int main(void)
{
    const char *cublas = getenv("EMU_CUBLAS");
    inside = cublas && strcmp(cublas, "chain") == 0;
    Suite *s = suite_create("graphs");
    TCase *tc = tcase_create("graphs");
    tcase_set_timeout(tc, 240);
    suite_add_tcase(s, tc);
    if (inside) {
        tcase_add_loop_test(tc, replays_have_golden_bits_whoever_comes, 0, 2);
        tcase_add_loop_test(tc, replays_have_golden_bits_whoever_comes, 3, 4);
        return run_suite(s);
    }
    tcase_add_loop_test(tc, replays_have_golden_bits_whoever_comes, 0, 3);
    tcase_add_test(tc, prompts_are_launched_plainly);
    tcase_add_test(tc, steps_are_prepared_while_others_run);
    tcase_add_test(tc, lengths_change_between_replays);
    tcase_add_loop_test(tc, what_cannot_be_recorded_is_launched, 0,
                        (int)(sizeof(faults) / sizeof(faults[0])));
    tcase_add_test(tc, a_full_device_has_no_graphs);
    tcase_add_test(tc, a_lost_device_is_reported);
    tcase_add_test(tc, a_record_keeps_its_arguments);
    tcase_add_test(tc, unsafe_calls_spoil_a_capture);
    return run_suite(s);
}
