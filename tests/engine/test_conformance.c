/* test_conformance.c -- the engine against transformers + peft, on every instruction set.
 *
 * tests/tools/make_goldens.py made the models, adapters and golden.bin in fixtures/models (its
 * head describes the format).  For each model and each instruction set of this machine:
 *
 *   - the whole path (prompt and greedy continuation) in one piece: log-probabilities within
 *     2e-3 (F32, F16) or 3e-2 (BF16) of the reference, the same greedy tokens;
 *   - in chunks of several sizes, token by token, with logits of the last row only, and in a
 *     mixed batch of 16 sequences with 8 adapters: bit for bit what one piece gave.
 *
 * On the emulated device (CONFORM_EMULATED) `--plant NAME` puts a fault between model and backend: the program must then
 * fail, and ctest holds it to that (emu.planted_NAME).
 *
 * The loader of adapters here is a short one for files we made ourselves; adapters/ has the real
 * one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/model.h"
#include "engine/safetensors.h"
#include "tests/engine/golden.h"
#include "tests/engine/plain_backend.h"
#ifdef CONFORM_EMULATED
#    include "engine/backend_ops.h"
#    include "tests/emu/cuda_rt/emu_rt.h"
#elif defined(CONFORM_CUDA)
#    include "tests/gpu/device_here.h"
#endif

enum {
    MAX_ROWS = 128,
    N_ADAPTER = 8,
    N_PAGES = 16 * 12,
};

#ifdef CONFORM_EMULATED
/* A device that takes a second for what a real one does in a microsecond: one model of each type and family,
 * every fifth case. */
static const char *const model_names[] = {"llama-bf16", "qwen2-f16", "mistral-f32", "qwen3-bf16"};
enum { CASE_STEP = 5, CHUNKINGS = 1, MIXTURES = 1 };
#else
enum { CASE_STEP = 1, CHUNKINGS = 2, MIXTURES = 2 };
static const char *const model_names[] = {
    "llama-f32", "llama-f16", "llama-bf16", "mistral-f32", "mistral-f16", "mistral-bf16",
    "qwen2-f32", "qwen2-f16", "qwen2-bf16", "qwen3-f32",   "qwen3-f16",   "qwen3-bf16",
};
#endif

static uint32_t case_step = CASE_STEP;

static const char *const adapter_names[N_ADAPTER] = {"r1",   "r4",     "r16",     "r64",
                                                     "r256", "rslora", "pattern", "mlp"};

/* "plain" is the oracle of plain_backend.h; the others are levels of the CPU backend. */
#ifdef CONFORM_CUDA
static const char *const isa_names[] = {"cuda"};
enum { ISA_LEAST = 1 };
#else
static const char *const isa_names[] = {"plain", "portable", "avx2", "avx512", "avx512bf16", "amx"};
enum { ISA_LEAST = 2 }; /* plain and portable run everywhere */
#endif

/* -------------------------------------------------------------------------- adapters -- */

typedef struct adapter {
    lora_view view;
    lora_mat *mat;
} adapter;

static const char *const modules[PROJ_COUNT] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
};

/* PEFT: a key of a pattern matches the end of a module's name, at a dot. */
static double from_pattern(const cJSON *config, const char *field, const char *module,
                           double fallback)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json_get(config, field))
    {
        size_t n = strlen(module), k = strlen(item->string);
        if (k <= n && strcmp(module + n - k, item->string) == 0 &&
            (k == n || module[n - k - 1] == '.')) {
            return item->valuedouble;
        }
    }
    return fallback;
}

static cJSON *read_json(const char *path)
{
    char text[16384];
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(text, 1, sizeof(text), f);
    (void)fclose(f);
    err e;
    cJSON *j;
    ck_assert_msg(json_parse(text, n, &json_limits_trusted, &j, &e) == ERR_NONE, "%s", e.msg);
    return j;
}

static void load_pair(backend *be, const model_config *c, const cJSON *config, const safetensors *f,
                      const char *module, proj p, lora_mat *out)
{
    char name[160];
    (void)snprintf(name, sizeof(name), "base_model.model.%s.lora_A.weight", module);
    const st_tensor *a = safetensors_find(f, name);
    (void)snprintf(name, sizeof(name), "base_model.model.%s.lora_B.weight", module);
    const st_tensor *b = safetensors_find(f, name);
    ck_assert_int_eq(a == NULL, b == NULL);
    if (!a) return;

    int d_out, d_in;
    model_proj_shape(c, p, &d_out, &d_in);
    int rank = (int)a->shape[0];
    ck_assert(a->aligned && b->aligned && (int)a->shape[1] == d_in);
    ck_assert((int)b->shape[0] == d_out && (int)b->shape[1] == rank);
    double r = from_pattern(config, "rank_pattern", module, json_get(config, "r")->valuedouble);
    ck_assert_int_eq(rank, (int)r);
    double alpha =
        from_pattern(config, "alpha_pattern", module, json_get(config, "lora_alpha")->valuedouble);
    bool rs = cJSON_IsTrue(json_get(config, "use_rslora"));

    dtype type;
    err e;
    ck_assert(st_usable(a->dtype, &type) && a->dtype == b->dtype);
    void *pa = be_alloc(be, be_lora_a_bytes(be, c->type, rank, d_in));
    void *pb = be_alloc(be, be_lora_b_bytes(be, c->type, rank, d_out));
    ck_assert(pa && pb);
    ck_assert_int_eq(
        be_lora_pack(be, c->type, pa, pb, a->data, b->data, type, rank, d_in, d_out, &e), 0);
    *out = (lora_mat){.a = pa, .b = pb, .rank = rank, .scale = (float)(alpha / (rs ? sqrt(r) : r))};
}

static void adapter_load(adapter *ad, backend *be, const model_config *c, const char *dir, int id)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
    cJSON *config = read_json(path);
    (void)snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
    safetensors *f;
    err e;
    ck_assert_msg(safetensors_open(&f, path, &st_limits_upload, &e) == 0, "%s: %s", path, e.msg);

    ad->mat = calloc((size_t)c->n_layer * PROJ_COUNT, sizeof(*ad->mat));
    ad->view = (lora_view){.adapter_id = (uint64_t)id + 1, .n_layer = c->n_layer, .mat = ad->mat};
    int found = 0;
    for (int l = 0; l < c->n_layer; l++) {
        for (int p = 0; p < PROJ_COUNT; p++) {
            char module[96];
            (void)snprintf(module, sizeof(module), "model.layers.%d.%s", l, modules[p]);
            lora_mat *m = &ad->mat[l * PROJ_COUNT + p];
            load_pair(be, c, config, f, module, (proj)p, m);
            if (m->rank > ad->view.rank_max) ad->view.rank_max = m->rank;
            found += 2 * (m->a != NULL);
        }
    }
    ck_assert_int_eq(found, safetensors_count(f)); /* nothing left over */
    safetensors_close(f);
    cJSON_Delete(config);
}

static void adapter_clear(adapter *ad, backend *be)
{
    for (int i = 0; i < ad->view.n_layer * PROJ_COUNT; i++) {
        if (!ad->mat[i].a) continue;
        be_free(be, (void *)(uintptr_t)ad->mat[i].a);
        be_free(be, (void *)(uintptr_t)ad->mat[i].b);
    }
    free(ad->mat);
}

/* ------------------------------------------------------------------------------- run -- */

typedef struct rig {
    backend *be;
    model *m;
    kv_pool *kv;
    adapter adapter[N_ADAPTER];
    int page_tokens, n_vocab;
} rig;

#ifdef CONFORM_EMULATED
static backend_ops planted; /* backend_cuda, or with a fault */

/* Adapters of layer 1 are those of layer 0. */
static void wrong_layer(backend *be, const float *x, const linear_out *outs, int n_out,
                        const step *s, int layer)
{
    backend_cuda.linear(be, x, outs, n_out, s, layer > 0 ? 0 : layer);
}

/* Positions are turned by the wrong table. */
static void wrong_rope(backend *be, kv_pool *kv, float *q, float *k, const float *v,
                       const float *q_norm, const float *k_norm, float norm_eps,
                       const rope_table *rope, const step *s, int layer)
{
    rope_table swapped = *rope;
    swapped.cos = rope->sin;
    backend_cuda.rope_append(be, kv, q, k, v, q_norm, k_norm, norm_eps, &swapped, s, layer);
}

/* Bits that hang on the number of rows, far below what the goldens allow. */
static void company(backend *be, const kv_pool *kv, float *out, const float *q, const step *s,
                    int layer)
{
    kv_pool *pool = (kv_pool *)(uintptr_t)kv;
    float scale = pool->shape.scale;
    if (s->n_rows > 4) pool->shape.scale *= 1.0001F;
    backend_cuda.attend(be, kv, out, q, s, layer);
    pool->shape.scale = scale;
}

static bool plant(const char *name)
{
    planted = backend_cuda;
    if (!name) return true;
    if (strcmp(name, "layer") == 0) planted.linear = wrong_layer;
    if (strcmp(name, "rope") == 0) planted.rope_append = wrong_rope;
    if (strcmp(name, "company") == 0) planted.attend = company;
    return memcmp(&planted, &backend_cuda, sizeof(planted)) != 0;
}
#endif

static err_code open_isa(backend **be, const char *isa, err *e)
{
    backend_config cfg = {.n_threads = 2, .isa = isa, .max_rows = MAX_ROWS, .max_seqs = CASES_MAX};
    const backend_ops *ops = strcmp(isa, "plain") == 0 ? &backend_plain : &backend_cpu;
#ifdef CONFORM_CUDA
    ops = &backend_cuda;
#endif
#ifdef CONFORM_EMULATED
    ops = &planted;
    emu_rt_device(1, (size_t)96 << 20);
#endif
    return be_open(be, ops, &cfg, e);
}

static void rig_open(rig *r, const char *dir, const char *isa)
{
    err e = {0};
    memset(r, 0, sizeof(*r));
    err_code rc = open_isa(&r->be, isa, &e);
    ck_assert_msg(rc == ERR_NONE, "%s: %s", isa, e.msg);
    r->page_tokens = be_caps(r->be)->page_tokens;
    rc = model_load(&r->m, dir, r->be, MAX_ROWS, MAX_ROWS, &e);
    ck_assert_msg(rc == ERR_NONE, "%s: %s", dir, e.msg);
    r->n_vocab = model_get_config(r->m)->n_vocab;
    attn_shape shape = model_attn_shape(r->m);
    ck_assert_int_eq(be_kv_create(r->be, &r->kv, &shape, N_PAGES, &e), ERR_NONE);
    for (int i = 0; i < N_ADAPTER; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "fixtures/models/adapters-%c/%s",
                       strstr(dir, "qwen3") ? 'b' : 'a', adapter_names[i]);
        adapter_load(&r->adapter[i], r->be, model_get_config(r->m), path, i);
    }
}

static void rig_close(rig *r)
{
    for (int i = 0; i < N_ADAPTER; i++) adapter_clear(&r->adapter[i], r->be);
    be_kv_destroy(r->be, r->kv);
    model_destroy(r->m);
    be_close(r->be);
}

/* A sequence on its way through a case. */
typedef struct run {
    const golden_case *c;
    int pos, n_now;
    int32_t page[TOKENS_MAX];
    int n_page;
    float *logits; /* [TOKENS_MAX][n_vocab] */
} run;

/* Pages of different sequences lie mixed, and never in order. */
static void run_start(run *u, const rig *r, const golden_case *c, int slot, int n_slots,
                      float *logits)
{
    *u = (run){.c = c, .logits = logits};
    u->n_page = (TOKENS_MAX + r->page_tokens - 1) / r->page_tokens;
    ck_assert_int_le(u->n_page * n_slots, N_PAGES);
    for (int i = 0; i < u->n_page; i++) u->page[i] = (u->n_page - 1 - i) * n_slots + slot;
}

static int run_left(const run *u)
{
    return u->c->n_prompt + u->c->n_new - 1 - u->pos;
}

/* One step over all runs with n_now > 0, which stand sorted by adapter.  Logits of every row, or
 * of each sequence's last row only. */
static void step_runs(rig *r, run *runs, int n_runs, bool last_only)
{
    int32_t token[MAX_ROWS], pos[MAX_ROWS], want[MAX_ROWS];
    float *dst[MAX_ROWS];
    step_seq seq[CASES_MAX];
    step_seg seg[CASES_MAX];
    step s = {.token = token, .pos = pos, .seq = seq, .seg = seg, .logit_row = want};
    int seg_adapter = -2;

    for (int i = 0; i < n_runs; i++) {
        run *u = &runs[i];
        if (u->n_now == 0) continue;
        ck_assert_int_le(s.n_rows + u->n_now, MAX_ROWS);
        seq[s.n_seq++] = (step_seq){s.n_rows, u->n_now, u->pos, u->page, u->n_page};
        if (u->c->adapter != seg_adapter) {
            seg_adapter = u->c->adapter;
            seg[s.n_seg++] =
                (step_seg){s.n_rows, 0, seg_adapter < 0 ? NULL : &r->adapter[seg_adapter].view};
        }
        seg[s.n_seg - 1].n_rows += u->n_now;
        for (int k = 0; k < u->n_now; k++, s.n_rows++) {
            token[s.n_rows] = u->c->token[u->pos + k];
            pos[s.n_rows] = u->pos + k;
            if (last_only && k + 1 < u->n_now) continue;
            dst[s.n_logit] = u->logits + (size_t)(u->pos + k) * (size_t)r->n_vocab;
            want[s.n_logit++] = s.n_rows;
        }
        u->pos += u->n_now;
    }

    const float *logits;
    err e = {0};
    err_code rc = model_forward(r->m, r->kv, &s, &logits, &e);
    ck_assert_msg(rc == ERR_NONE, "forward: %s", e.msg);
    for (int i = 0; i < s.n_logit; i++) {
        memcpy(dst[i], logits + (size_t)i * (size_t)r->n_vocab, 4 * (size_t)r->n_vocab);
    }
}

/* A case alone, in chunks of at most `chunk` rows. */
static void run_alone(rig *r, const golden_case *c, int chunk, bool last_only, float *logits)
{
    run u;
    run_start(&u, r, c, 0, 1, logits);
    while (run_left(&u) > 0) {
        u.n_now = run_left(&u) < chunk ? run_left(&u) : chunk;
        step_runs(r, &u, 1, last_only);
    }
}

/* All cases at once; each step takes another number of rows from each. */
static void run_mixed(rig *r, const golden *g, unsigned seed, float *const logits[])
{
    run runs[CASES_MAX];
    int n = 0, left = 1;
    for (int id = -1; id < N_ADAPTER; id++) {
        for (uint32_t i = 0; i < g->n_case; i += case_step) {
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
            int now = (int)(seed >> 24) % 8; /* 0: sits this step out */
            if (now > run_left(&runs[i])) now = run_left(&runs[i]);
            if (run_left(&runs[i]) > 0) left = 1;
            runs[i].n_now = now;
            rows += now;
        }
        if (rows) step_runs(r, runs, n, false);
    }
}

/* ---------------------------------------------------------------------------- verdict -- */

static bool isa_runs(const char *isa)
{
    backend *be;
    err e;
    if (open_isa(&be, isa, &e) == ERR_NONE) {
        be_close(be);
        return true;
    }
    ck_assert_msg(e.code == ERR_UNSUPPORTED, "%s: %s", isa, e.msg);
    return false;
}

static void conform(const char *name, const char *isa)
{
    char dir[128], what[160];
    (void)snprintf(dir, sizeof(dir), "fixtures/models/%s", name);
    golden *g = golden_read(dir);
    ck_assert_uint_eq(g->n_case, CASES_MAX);
    rig r;
    rig_open(&r, dir, isa);
    ck_assert_int_eq(r.n_vocab, (int)g->n_vocab);
    double bound = strstr(name, "bf16") ? 3e-2 : 2e-3, worst = 0;
    /* There activations, A and B are rounded to F16.  The f64 oracle of plain_backend.h with these roundings, and no others,
     * is off by 3.26e-3 at most over the four F16 models, and by as much as the device on each of them. */
    if (strcmp(isa, "cuda") == 0 && strstr(name, "-f16")) bound = 3.5e-3;
    bool oracle = strcmp(isa, "plain") == 0; /* slow, and row by row by construction */

    size_t bytes = (size_t)TOKENS_MAX * g->n_vocab * sizeof(float);
    float *whole[CASES_MAX], *mixed[CASES_MAX], *other = malloc(bytes);
    for (uint32_t i = 0; i < g->n_case; i += case_step) {
        const golden_case *c = &g->c[i];
        int rows = c->n_prompt + c->n_new - 1;
        whole[i] = malloc(bytes);
        mixed[i] = malloc(bytes);
        run_alone(&r, c, MAX_ROWS, false, whole[i]);
        (void)snprintf(what, sizeof(what), "%s on %s, case %u (%s)", name, isa, i,
                       c->adapter < 0 ? "base" : adapter_names[c->adapter]);
        double d = compare(g, c, whole[i], what);
        ck_assert_msg(d <= bound, "%s: off by %.2e, allowed %.0e", what, d, bound);
        worst = fmax(worst, d);

        /* two sizes for each case, all sizes over the cases */
        static const int chunks[] = {1, 3, 7, 16, 33};
        for (uint32_t k = oracle ? 1 : 0; k < CHUNKINGS; k++) {
            int chunk = chunks[(i + 2 * k) % 5];
            run_alone(&r, c, chunk, false, other);
            (void)snprintf(what, sizeof(what), "%s on %s, case %u in chunks of %d", name, isa, i,
                           chunk);
            assert_same_bits(whole[i], other, rows, r.n_vocab, what);
        }
        memset(other, 0, bytes);
        run_alone(&r, c, MAX_ROWS, true, other);
        size_t last = (size_t)(rows - 1) * (size_t)r.n_vocab;
        assert_same_bits(whole[i] + last, other + last, 1, r.n_vocab, "last row alone");
    }
    for (unsigned seed = 1; seed <= (oracle ? 1 : MIXTURES); seed++) {
        run_mixed(&r, g, seed, mixed);
        for (uint32_t i = 0; i < g->n_case; i += case_step) {
            (void)snprintf(what, sizeof(what), "%s on %s, case %u in mixed batch %u", name, isa, i,
                           seed);
            assert_same_bits(whole[i], mixed[i], g->c[i].n_prompt + g->c[i].n_new - 1, r.n_vocab,
                             what);
        }
    }
    printf("conformance %-13s %-11s max log-prob difference %.2e (allowed %.0e)\n", name, isa,
           worst, bound);
    (void)fflush(stdout);
    for (uint32_t i = 0; i < g->n_case; i += case_step) {
        free(whole[i]);
        free(mixed[i]);
    }
    free(other);
    free(g);
    rig_close(&r);
}

START_TEST(matches_transformers_and_peft)
{
    int ran = 0;
    for (size_t i = 0; i < sizeof(isa_names) / sizeof(isa_names[0]); i++) {
        if (!isa_runs(isa_names[i])) continue;
        conform(model_names[_i], isa_names[i]);
        ran++;
    }
    ck_assert_int_ge(ran, ISA_LEAST);
}
END_TEST

/* --open: whether there is a device; --small NAME: a few cases of that model. */
static int options(int argc, char **argv, int *from, int *to)
{
    int n = (int)(sizeof(model_names) / sizeof(model_names[0]));
    *from = 0;
    *to = n;
#if defined(CONFORM_CUDA) && !defined(CONFORM_EMULATED)
    int none = device_here();
    if (none || (argc == 2 && strcmp(argv[1], "--open") == 0)) return none ? none : -1;
#endif
#ifdef CONFORM_EMULATED
    bool faulty = argc == 3 && strcmp(argv[1], "--plant") == 0;
    if (!plant(faulty ? argv[2] : NULL)) return 2;
    if (faulty) *to = 1;
    if (faulty) return 0;
#endif
    if (argc == 1) return 0;
    if (argc != 3 || strcmp(argv[1], "--small") != 0) return 2;
    case_step = 5;
    while (*from < n && strcmp(model_names[*from], argv[2]) != 0) ++*from;
    *to = *from + 1;
    return *from < n ? 0 : 2;
}

int main(int argc, char **argv)
{
    int from, to, stop = options(argc, argv, &from, &to);
    if (stop) return stop < 0 ? 0 : stop;
    Suite *s = suite_create("conformance");
    TCase *tc = tcase_create("golden");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, matches_transformers_and_peft, from, to);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
#if defined(CONFORM_CUDA) && !defined(CONFORM_EMULATED)
    srunner_set_fork_status(r, CK_NOFORK);
#endif
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
