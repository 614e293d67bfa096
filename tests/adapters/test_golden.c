/* test_golden.c -- every kind of adapter that PEFT saves, through the whole
 * room, against PEFT's answers.
 *
 * tests/tools/make_peft_goldens.py made fixtures/peft/<base>/<kind>.  Each folder is uploaded,
 * published and loaded by residency as in production; then the engine runs its cases:
 *
 *   - log-probabilities within 1e-4 (3e-2 for a BF16 base) of PEFT's, the same greedy tokens;
 *   - all kinds of a base, and rows of the bare base, in one mixed batch: bit for bit the same;
 *   - with A and B in int8 (adapters.host_int8): within INT8_WORST of PEFT's, INT8_MEAN on average.
 *
 * CONFORM_CUDA: the same on the CUDA backend, CONFORM_EMULATED with fewer cases on an emulated
 * device.  Where a row has taken another expert there than PEFT's model, because activations are
 * rounded, an oracle that takes the same ones says what is right.
 */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "adapters/residency/residency.h"
#include "adapters/store/upload.h"
#include "engine/model/model.h"
#include "tests/engine/golden.h"
#include "tests/engine/plain_backend.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"
#ifdef CONFORM_CUDA
#    include "engine/cuda/cuda.h"
#endif
#ifdef CONFORM_EMULATED
#    include "tests/emu/cuda_rt/emu_rt.h"
#elif defined(CONFORM_CUDA)
#    include "tests/gpu/device_here.h"
#endif

/* CHUNK: so small that most matrices are cut in pieces. */
enum {
    KINDS_MAX = 40,
    ADDED_MAX = 20,     /* tokens; the fixtures add 7 */
    LEAST = 280,        /* tokens that the fixtures' tokenizer would know */
#ifdef CONFORM_EMULATED /* no step has more here, and what is tried of products goes by it */
    MAX_ROWS = 64,
#else
    MAX_ROWS = 128,
#endif
    N_PAGES = 400,
    N_CASE = 3,
    CHUNK = 8192,
    BUDGET = 256 << 20
};

static const double INT8_WORST = 0.06, INT8_MEAN = 4e-3;
static const double Q8_WORST = 0.2, Q8_MEAN = 0.025;
static const char *const bases[] = {"llama-f32", "llama-bf16", "qwen2-f32"};
#if defined(CONFORM_EMULATED) || defined(__SANITIZE_THREAD__) /* threads do the same in all */
enum { CASES_RUN = 1 };
#else
enum { CASES_RUN = N_CASE };
#endif
/* Of fixtures/families.  c: on the CUDA backend, too; g: also as a GGUF; t: under TSan, one of each
 * mixer, of experts and of images. */
/* clang-format off */
static const struct {
    const char *name, *where;
} families[] = {
    {"gemma2", "c"}, {"gemma2-bf16", "c"}, {"gemma3", "c"}, {"gemma3-images", ""}, {"gemma4", "g"},
    {"gemma4-keys", ""}, {"gemma4-moe", "gt"}, {"gemma4-images", ""}, {"phi3", "c"},
    {"phi3-short", ""}, {"granite", "cg"}, {"olmo2", "cg"}, {"olmo3", "cg"}, {"smollm3", "c"},
    {"llama-yarn", "g"}, {"llama-dynamic", ""}, {"qwen2-mixed", ""}, {"qwen3-mixed", "c"},
    {"mistral3-images", "t"}, {"qwen2.5-images", "g"}, {"qwen3-images", "g"}, {"cohere2", "c"},
    {"glm4", "cg"}, {"starcoder2", "c"}, {"mixtral", "g"}, {"qwen2-moe", "cg"}, {"qwen3-moe", "g"},
    {"qwen3-moe-stacked", "c"}, {"olmoe", "cg"}, {"granitemoe", "cg"}, {"gpt-oss", "gt"},
    {"gpt-oss-odd", "c"}, {"deepseek-v2", "cg"}, {"deepseek-v2-lite", "cg"}, {"deepseek-v3", "ct"},
    {"deepseek-v3-halves", "c"}, {"llama4", "t"}, {"llama4-128e", "c"}, {"gemma", "g"},
    {"ministral3", "g"}, {"ministral3-images", ""}, {"arcee", "cg"}, {"seed-oss", "g"},
    {"ernie4.5", "g"}, {"ernie4.5-moe", "g"}, {"exaone4", "g"}, {"exaone4-full", "g"},
    {"hunyuan", "cg"}, {"stablelm", "g"}, {"stablelm-parallel", "g"}, {"cohere", "g"},
    {"olmo", "g"}, {"glm", "g"}, {"glm4-moe", "g"}, {"glm4-moe-one", "g"}, {"dots1", ""},
    {"granite-swa", ""}, {"mellum", ""}, {"helium", ""}, {"nemotron", "cg"}, {"jais2", "cg"},
    {"vaultgemma", ""},
    {"internlm3", "g"}, {"iquestcoder", "g"}, {"hyperclovax", ""}, {"hyperclovax-plain", ""},
    {"cwm", ""}, {"ministral", ""}, {"youtu", "g"}, {"flex-olmo", ""}, {"glm4-moe-lite", "g"},
    {"solar-open", "g"}, {"exaone-moe", "g"}, {"hunyuan-moe", "c"}, {"minimax-m2", "g"},
    {"kolibri1", ""}, {"granitemoe-swa", ""}, {"hy3-moe", ""}, {"minicpm3", ""}, {"nanochat", "c"},
    {"apertus", "cg"}, {"phi", "cg"}, {"phimoe", "c"}, {"phimoe-long", ""}, {"lfm2", "g"},
    {"lfm2-biased", ""}, {"qwen3.5", "g"}, {"qwen3.5-images", ""}, {"qwen3.5-moe", "gt"},
    {"qwen3-next", "g"}, {"granite-hybrid", "gt"}, {"granite-hybrid-dense", ""}, {"bamba", "g"},
    {"mamba2", "g"}, {"nemotron-h", "g"}, {"nemotron-h-dense", ""}, {"falcon-h1", "t"},
    {"falcon-h1-gated", ""}, {"falcon-h1-normed", ""}, {"olmo-hybrid", ""},
    {"olmo-hybrid-nope", ""}, {"lfm2-moe", "t"}, {"granitemoe-shared", "g"}, {"kimi-linear", "t"},
    {"kimi-linear-even", "g"},
    {"gpt-neox", "cg"}, {"gpt-neox-serial", "g"}, {"gpt2", "cg"}, {"gpt-bigcode", "cg"},
    {"gpt-bigcode-heads", ""}, {"gptj", "c"}, {"gpt-neo", "c"}, {"falcon", "g"},
    {"falcon-groups", "cg"}, {"falcon-one-norm", ""}, {"falcon-serial", ""}, {"opt", "c"},
    {"gemma3n", "g"}, {"jamba", ""}, {"jamba-dense", ""},
};
/* clang-format on */
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };
#ifdef CONFORM_CUDA
static const double FAMILY_BOUND = 1e-2; /* F16: activations are rounded there */
static const char *const place = "c";
#elif defined(__SANITIZE_THREAD__)
static const double FAMILY_BOUND = 5e-5;
static const char *const place = "t";
#else
static const double FAMILY_BOUND = 5e-5;
static const char *const place = "";
#endif
static const char *fixtures = "fixtures"; /* or families' */
static bool as_gguf;                      /* the base is gguf/NAME.gguf there */
#ifdef CONFORM_CUDA
static const char *const isas[] = {"cuda"};
enum { ISA_LEAST = 1 };
#elif defined(__SANITIZE_THREAD__)
static const char *const isas[] = {"auto"};
enum { ISA_LEAST = 1 };
#else
static const char *const isas[] = {"plain",      "portable",   "avx2", "avxvnni", "avx512",
                                   "avx512vnni", "avx512bf16", "amx",  "neon",    "i8mm"};
enum { ISA_LEAST = 2 }; /* plain and portable run everywhere */
#endif

/* Where one is enough: what a user of the backend gets. */
static const char *own_isa(void)
{
    return ISA_LEAST > 1 ? "auto" : isas[0];
}

typedef struct kind {
    char name[64];
    golden *g;
    adapter_version v;
    const lora_view *view;
    float *alone[N_CASE];
} kind;

static char dir[64];
static store *st;
static registry *reg;
static backend *be;
static model *m;
static kv_pool *kv;
static float *states; /* [KINDS_MAX + 2] of sequences; NULL: the model keeps none */
static residency *rs;
static uint64_t tenant_id;
static err e;
static kind kinds[KINDS_MAX];
static int n_kind;

#ifdef CONFORM_CUDA
/* ---- who takes which expert
 *
 * Activations are rounded to F16 on the device.  So a router's scores are off by a little, and a
 * row whose scores lie close takes another expert than PEFT's model does, with other logits. 
 * Those scores are kept, and the oracle (plain_backend.h) routes by them in place of its own, once
 * it has seen that both are the same but for rounding. */
enum { SCORES_MAX = 1 << 18 };
static const double SCORE_BOUND = 1e-2; /* FAMILY_BOUND, before the softmax */

static backend_ops keeping, following; /* backend_cuda; backend_plain */
static struct {
    bool on;
    float *v; /* of a run's layers, in their order */
    size_t n;
    double off; /* most that the oracle's own are away */
} scores;

static void keep_scores(backend *on, float *out, const float *x, const expert_set *set,
                        const float *from, const float *shared, const step *s, int layer)
{
    int n = set->route.n;
    size_t row = (size_t)n * sizeof(float);
    if (scores.on) {
        cuda_state *cu = cuda_of(on);
        cuda_alias at = cuda_where(cu, from, n);
        ck_assert_uint_le(scores.n + (size_t)(n * s->n_rows), SCORES_MAX);
        ck_assert_int_eq(cudaMemcpy2DAsync(scores.v + scores.n, row, at.at,
                                           (size_t)at.stride * sizeof(float), row,
                                           (size_t)s->n_rows, cudaMemcpyDeviceToHost, cu->stream),
                         cudaSuccess);
        ck_assert_int_eq(cudaStreamSynchronize(cu->stream), cudaSuccess);
        scores.n += (size_t)(n * s->n_rows);
    }
    backend_cuda.experts(on, out, x, set, from, shared, s, layer);
}

static void follow_scores(backend *on, float *out, const float *x, const expert_set *set,
                          const float *own, const float *shared, const step *s, int layer)
{
    size_t n = (size_t)(set->route.n * s->n_rows);
    const float *kept = scores.v + scores.n;
    for (size_t i = 0; i < n; i++)
        scores.off = fmax(scores.off, fabs((double)kept[i] - (double)own[i]));
    scores.n += n;
    backend_plain.experts(on, out, x, set, kept, shared, s, layer);
}

static const backend_ops *ops_of(const char *isa)
{
    keeping = backend_cuda;
    keeping.experts = keep_scores;
    following = backend_plain;
    following.experts = follow_scores;
    return strcmp(isa, "oracle") == 0 ? &following : &keeping;
}
#else
static const backend_ops *ops_of(const char *isa)
{
    return strcmp(isa, "plain") == 0 ? &backend_plain : &backend_cpu;
}
#endif

static bool open_backend(const char *isa)
{
    backend_config cfg = {.n_threads = 1,
                          .isa = isa,
                          .max_rows = MAX_ROWS,
                          .max_seqs = KINDS_MAX + 2,
                          .max_context = 512};
#ifdef CONFORM_EMULATED
    emu_rt_device(1, (size_t)BUDGET + ((size_t)192 << 20));
#elif defined(CONFORM_CUDA)
    cfg.fraction = DEVICE_FRACTION;
#endif
    if (be_open(&be, ops_of(isa), &cfg, &e) == ERR_NONE) return true;
    ck_assert_msg(e.code == ERR_UNSUPPORTED, "%s: %s", isa, e.msg);
    return false;
}

static void upload_folder(const char *parent, const char *folder, adapter_version *v)
{
    upload_env env = {.reg = reg, .base = model_get_config(m), .be = be};
    upload_options o = {
        .tenant_id = tenant_id, .name = folder, .activate = true, .content_bytes = -1};
    char command[300], piece[8192];
    snprintf(command, sizeof command, "tar --exclude=golden.bin -cf - -C %s %s", parent, folder);
    FILE *f = popen(command, "r");
    ck_assert_ptr_nonnull(f);
    upload *u;
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        ck_assert_msg(upload_write(u, piece, n, &e) == ERR_NONE, "%s: %s", folder, e.msg);
    ck_assert_int_eq(pclose(f), 0);
    err_code code = upload_finish(u, v, NULL, &e);
    ck_assert_msg(code == ERR_NONE, "%s/%s: %s", parent, folder, e.msg);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const kind *)a)->name, ((const kind *)b)->name);
}

static void list_kinds(const char *parent)
{
    DIR *d = opendir(parent);
    ck_assert_msg(d != NULL, "%s is missing: run tests from tests/", parent);
    n_kind = 0;
    memset(kinds, 0, sizeof kinds);
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        if (de->d_name[0] == '.') continue;
#ifdef CONFORM_EMULATED /* two bases have the other kinds, and it is slow */
        if (strstr(parent, "llama-f32") && strncmp(de->d_name, "added", 5) != 0) continue;
#endif
        ck_assert_int_lt(n_kind, KINDS_MAX);
        snprintf(kinds[n_kind++].name, sizeof kinds->name, "%s", de->d_name);
    }
    closedir(d);
    qsort(kinds, (size_t)n_kind, sizeof(*kinds), by_name);
}

/* What nobody wrote is not read. */
static void make_states(void)
{
    size_t floats = (KINDS_MAX + 2) * model_state_floats(model_get_config(m));
    states = floats > 0 ? be_alloc(be, floats * sizeof(*states)) : NULL;
    for (size_t i = 0; i < floats; i++) states[i] = NAN;
}

static void rig_open(const char *base, bool int8, weights_form weights)
{
    model_options mo = {.weights = weights};
    char path[200];
    tmpdir_make(dir);
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(registry_create(&reg, st, NULL, &e), ERR_NONE);
    tenant t;
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "acme"}, &t, &e), ERR_NONE);
    tenant_id = t.id;
    snprintf(path, sizeof path, as_gguf ? "%s/gguf/%s.gguf" : "%s/models/%s", fixtures, base);
    ck_assert_msg(model_load_with(&m, path, be, MAX_ROWS, MAX_ROWS, &mo, &e) == ERR_NONE, "%s",
                  e.msg);
    ck_assert_msg(model_allow_added(m, ADDED_MAX, LEAST, &e) == ERR_NONE, "%s", e.msg);
    attn_shape shape = model_attn_shape(m);
    ck_assert_int_eq(be_kv_create(be, &kv, &shape, N_PAGES, &e), ERR_NONE);
    make_states();
    residency_config cfg = {.budget_bytes = BUDGET, .chunk_bytes = CHUNK, .weights = m};
#ifdef CONFORM_CUDA /* a block of B is 64 columns of all ranks there */
    if (strcmp(base, "llama-f32") == 0) cfg.chunk_bytes *= 2;
#endif
    cfg.host_int8 = int8;
    cfg.host_bytes = int8 ? 256 << 20 : 0;
    ck_assert_int_eq(residency_create(&rs, &cfg, be, model_get_config(m), reg, &e), ERR_NONE);
    lora_source door = residency_source(rs);
    snprintf(path, sizeof path, "%s/peft/%s", fixtures, base);
    list_kinds(path);
    for (int i = 0; i < n_kind; i++) {
        char where[300];
        upload_folder(path, kinds[i].name, &kinds[i].v);
        snprintf(where, sizeof where, "%s/%s", path, kinds[i].name);
        kinds[i].g = golden_read(where);
        ck_assert_uint_eq(kinds[i].g->n_case, N_CASE);
        err_code code;
        while ((code = door.acquire(door.self, kinds[i].v.id, &kinds[i].view, &e)) == ERR_BUSY)
            usleep(500);
        ck_assert_msg(code == ERR_NONE, "%s: %s", kinds[i].name, e.msg);
    }
}

static void rig_close(void)
{
    lora_source door = residency_source(rs);
    for (int i = 0; i < n_kind; i++) {
        door.release(door.self, kinds[i].view);
        free(kinds[i].g);
        for (int k = 0; k < N_CASE; k++) free(kinds[i].alone[k]);
    }
    residency_destroy(rs);
    if (states) be_free(be, states);
    states = NULL;
    be_kv_destroy(be, kv);
    model_destroy(m);
    registry_destroy(reg);
    store_close(st);
    be_close(be);
    tmpdir_remove(dir);
}

/* One sequence's way through a case. */
typedef struct run {
    const golden_case *c;
    const lora_view *view;
    int pos, n_now, slot;
    float *logits;
} run;

static int vocab_of(const lora_view *view)
{
    return view && view->n_vocab ? view->n_vocab : model_get_config(m)->n_vocab;
}

/* One step over runs sorted by adapter; each takes n_now rows. */
static void step_runs(run *runs, int n_runs)
{
    int32_t token[MAX_ROWS], pos[MAX_ROWS], want[MAX_ROWS];
    int32_t page[KINDS_MAX + 2][TOKENS_MAX];
    float *dst[MAX_ROWS];
    step_seq seq[KINDS_MAX + 2];
    step_seg seg[KINDS_MAX + 2];
    step s = {.token = token,
              .pos = pos,
              .seq = seq,
              .seg = seg,
              .logit_row = want,
              .logit_stride = model_logit_stride(m),
              .state = states,
              .state_stride = model_state_floats(model_get_config(m))};
    int width[MAX_ROWS], tokens = be_caps(be)->page_tokens;
    int n_page = (TOKENS_MAX + tokens - 1) / tokens;
    for (int i = 0; i < n_runs; i++) {
        run *u = &runs[i];
        if (u->n_now == 0) continue;
        for (int p = 0; p < n_page; p++) page[i][p] = u->slot * n_page + p;
        ck_assert_int_lt((u->slot + 1) * n_page, N_PAGES);
        ck_assert_int_le(s.n_rows + u->n_now, MAX_ROWS);
        seq[s.n_seq++] = (step_seq){s.n_rows, u->n_now, u->pos, page[i], n_page, u->slot};
        if (s.n_seg == 0 || seg[s.n_seg - 1].lora != u->view)
            seg[s.n_seg++] = (step_seg){s.n_rows, 0, u->view};
        seg[s.n_seg - 1].n_rows += u->n_now;
        for (int k = 0; k < u->n_now; k++, s.n_rows++) {
            token[s.n_rows] = u->c->token[u->pos + k];
            pos[s.n_rows] = u->pos + k;
            width[s.n_logit] = vocab_of(u->view);
            dst[s.n_logit] = u->logits + (size_t)(u->pos + k) * (size_t)width[s.n_logit];
            want[s.n_logit++] = s.n_rows;
        }
        u->pos += u->n_now;
    }
    const float *logits;
    ck_assert_msg(model_forward(m, kv, &s, &logits, &e) == ERR_NONE, "forward: %s", e.msg);
    for (int i = 0; i < s.n_logit; i++)
        memcpy(dst[i], logits + (size_t)i * (size_t)s.logit_stride, 4 * (size_t)width[i]);
}

static int case_rows(const golden_case *c)
{
    return c->n_prompt + c->n_new - 1;
}

static float *logits_alloc(void)
{
    return calloc((size_t)TOKENS_MAX * (size_t)model_logit_stride(m), sizeof(float));
}

#ifdef CONFORM_CUDA
/* Runs that PEFT's answers do not judge, with what the device made of them. */
enum { OTHERS_MAX = 16 };
static struct other {
    int which, k; /* kinds[which]; -1: the bare base */
    double off;
    float *logits, *scores;
} others[OTHERS_MAX];
static int n_other;

static void run_kept(run *u)
{
    scores.v = calloc(SCORES_MAX, sizeof(float));
    scores.n = 0;
    scores.on = true;
    step_runs(u, 1);
    scores.on = false;
}

/* Whether the oracle is to judge it; logits are copied. */
static bool put_off(int which, int k, double off, double bound, const run *u)
{
    bool other = off > bound && model_get_config(m)->experts.route.n > 0;
    if (other) {
        ck_assert_int_lt(n_other, OTHERS_MAX);
        size_t bytes = (size_t)case_rows(u->c) * (size_t)vocab_of(u->view) * sizeof(float);
        struct other *o = &others[n_other++];
        *o = (struct other){which, k, off, malloc(bytes), scores.v};
        memcpy(o->logits, u->logits, bytes);
    } else {
        free(scores.v);
    }
    return other;
}

/* The oracle, which takes the experts that the device's scores name. */
static double check_others(const char *base, double bound)
{
    double worst = 0;
    char where[200], what[200];
    if (n_other == 0) return 0;
    ck_assert(open_backend("oracle"));
    rig_open(base, false, WEIGHTS_AUTO);
    snprintf(where, sizeof where, "%s/models/%s", fixtures, base);
    golden *bare = golden_read(where);
    for (int i = 0; i < n_other; i++) {
        struct other *o = &others[i];
        const kind *of = o->which < 0 ? NULL : &kinds[o->which];
        const golden_case *c = of ? &of->g->c[o->k] : &bare->c[o->k];
        run u = {.c = c, .view = of ? of->view : NULL, .logits = logits_alloc()};
        u.n_now = case_rows(c);
        int n = vocab_of(u.view);
        scores.v = o->scores;
        scores.n = 0;
        scores.off = 0;
        step_runs(&u, 1);
        double d = 0;
        for (int p = 0; p < case_rows(c); p++)
            d = fmax(d, log_prob_difference(u.logits + (size_t)p * (size_t)n,
                                            o->logits + (size_t)p * (size_t)n, n));
        snprintf(what, sizeof what, "%s/%s, case %d", base, of ? of->name : "bare", o->k);
        printf("%-15s off by %.2e: by the oracle with its experts %.2e, scores %.2e\n", what,
               o->off, d, scores.off);
        fflush(stdout);
        ck_assert_msg(scores.off <= SCORE_BOUND, "%s: scores off by %.2e", what, scores.off);
        ck_assert_msg(d <= bound, "%s: off by %.2e by the oracle, too", what, d);
        worst = fmax(worst, d);
        free(u.logits);
        free(o->logits);
        free(o->scores);
    }
    n_other = 0;
    free(bare);
    rig_close();
    return worst;
}
#else
static void run_kept(run *u)
{
    step_runs(u, 1);
}

static bool put_off(int which, int k, double off, double bound, const run *u)
{
    (void)which, (void)k, (void)off, (void)bound, (void)u;
    return false;
}

static double check_others(const char *base, double bound)
{
    (void)base, (void)bound;
    return 0;
}
#endif

/* Greedy tokens hang on experts as well: where it may be put off, they are no matter here. */
static double compare_run(const golden *g, const run *u, double bound, const char *what)
{
    bool mixed = model_get_config(m)->experts.route.n > 0;
    double d = compare_near(g, u->c, u->logits, mixed ? INFINITY : 0, what);
    return d <= bound ? compare(g, u->c, u->logits, what) : d;
}

/* A bound of 1 and more: a caller has measured what they are off by. */
static double check_alone(const char *base, const char *isa, double bound)
{
    double worst = 0;
    char what[200];
    for (int i = 0; i < n_kind; i++)
        for (int k = 0; k < CASES_RUN; k++) {
            const golden_case *c = &kinds[i].g->c[k];
            run u = {.c = c, .view = kinds[i].view, .logits = logits_alloc()};
            u.n_now = case_rows(c);
            ck_assert_int_eq(vocab_of(u.view), (int)kinds[i].g->n_vocab);
            kinds[i].alone[k] = u.logits;
            run_kept(&u);
            snprintf(what, sizeof what, "%s/%s on %s, case %d", base, kinds[i].name, isa, k);
            double d = bound >= 1 ? 0 : compare_run(kinds[i].g, &u, bound, what);
            if (put_off(i, k, d, bound, &u)) continue;
            ck_assert_msg(d <= bound, "%s: off by %.2e, allowed %.0e", what, d, bound);
            worst = fmax(worst, d);
        }
    return worst;
}

/* Rows without an adapter, where the base's own goldens have such cases. */
static double check_bare(const char *base, const char *isa, double bound)
{
    char where[200], what[200];
    double worst = 0;
    snprintf(where, sizeof where, "%s/models/%s", fixtures, base);
    golden *g = golden_read(where);
    float *logits = logits_alloc();
    int n = model_get_config(m)->experts.route.n > 0 ? N_CASE : CASES_RUN;
    for (int k = 0; k < (int)g->n_case && k < n; k++) {
        if (g->c[k].adapter >= 0) continue;
        run u = {.c = &g->c[k], .n_now = case_rows(&g->c[k]), .logits = logits};
        run_kept(&u);
        snprintf(what, sizeof what, "%s, bare, on %s, case %d", base, isa, k);
        double d = compare_run(g, &u, bound, what);
        if (put_off(-1, k, d, bound, &u)) continue;
        ck_assert_msg(d <= bound, "%s: off by %.2e, allowed %.0e", what, d, bound);
        worst = fmax(worst, d);
    }
    free(logits);
    free(g);
    return worst;
}

/* All kinds and the base side by side, at most so many rows of each at a time; one: all steps are
 * decode steps. */
static void check_mixed_by(const char *base, const char *isa, unsigned most)
{
    run runs[KINDS_MAX + 1];
    float *plain = logits_alloc();
    char what[200];
    unsigned seed = 7;
    for (int k = 0; k < CASES_RUN; k++) {
        const golden_case *first = &kinds[0].g->c[k];
        run alone = {.c = first, .logits = logits_alloc(), .n_now = case_rows(first)};
        step_runs(&alone, 1);
        memset(plain, 0, (size_t)TOKENS_MAX * 4);
        runs[0] = (run){.c = first, .logits = plain};
        for (int i = 0; i < n_kind; i++)
            runs[i + 1] = (run){.c = &kinds[i].g->c[k],
                                .view = kinds[i].view,
                                .slot = i + 1,
                                .logits = logits_alloc()};
        for (int left = 1; left > 0;) {
            left = 0;
            for (int i = 0; i <= n_kind; i++) {
                int rest = case_rows(runs[i].c) - runs[i].pos;
                seed = seed * 1664525U + 1013904223U;
                int now = (int)((seed >> 24) % (most + 1));
                runs[i].n_now = now < rest ? now : rest;
                left += rest > 0;
            }
            int rows = 0;
            for (int i = 0; i <= n_kind; i++) rows += runs[i].n_now;
            if (rows > 0) step_runs(runs, n_kind + 1);
        }
        int n_vocab = model_get_config(m)->n_vocab;
        snprintf(what, sizeof what, "%s, bare, on %s, mixed", base, isa);
        assert_same_bits(alone.logits, plain, case_rows(first), n_vocab, what);
        free(alone.logits);
        for (int i = 0; i < n_kind; i++) {
            snprintf(what, sizeof what, "%s/%s on %s, mixed", base, kinds[i].name, isa);
            assert_same_bits(kinds[i].alone[k], runs[i + 1].logits, case_rows(runs[i + 1].c),
                             vocab_of(kinds[i].view), what);
            free(runs[i + 1].logits);
        }
    }
    free(plain);
}

static void check_mixed(const char *base, const char *isa)
{
    check_mixed_by(base, isa, 3);
}

/* False: this machine has no such instructions. */
static bool conform(const char *base, const char *isa, double bound)
{
    if (!open_backend(isa)) return false;
    rig_open(base, false, WEIGHTS_AUTO);
    double worst = check_bare(base, isa, bound);
    worst = fmax(worst, check_alone(base, isa, bound));
    printf("%-15s %2d kinds on %-11s max log-prob difference %.2e (allowed %.0e)\n", base, n_kind,
           isa, worst, bound);
    fflush(stdout);
    check_mixed(base, isa);
    rig_close();
    (void)check_others(base, bound);
    return true;
}

START_TEST(test_as_peft)
{
    const char *base = bases[_i];
    double bound = strstr(base, "bf16") ? 3e-2 : 1e-4;
    int ran = 0;
    for (size_t i = 0; i < sizeof isas / sizeof(*isas); i++) ran += conform(base, isas[i], bound);
    ck_assert_int_ge(ran, ISA_LEAST);
}
END_TEST

/* The oracle shows that the model is right; cpu.test_kernels has kernels of each set. */
START_TEST(test_families)
{
    const char *name = families[_i].name;
    double bound = strstr(name, "bf16") ? 5e-2 : FAMILY_BOUND;
    if (!strstr(families[_i].where, place)) return;
    fixtures = "fixtures/families";
    ck_assert(conform(name, isas[0], bound));
    if (ISA_LEAST > 1) ck_assert(conform(name, own_isa(), bound));
    fixtures = "fixtures"; /* for the next test, where none has a process of its own */
}
END_TEST

/* Over all that PEFT's answers tell: the largest and the mean difference of a log-probability are
 * within bounds, and something was rounded indeed; how many greedy tokens differ. */
static void measure(const char *base, const char *what, double worst_most, double mean_most,
                    int *other, int *n_greedy)
{
    double sum = 0, worst = 0;
    long n = 0;
    for (int i = 0; i < n_kind; i++)
        for (int k = 0; k < CASES_RUN; k++) {
            const golden *g = kinds[i].g;
            const golden_case *c = &g->c[k];
            run u = {.c = c, .view = kinds[i].view, .logits = logits_alloc()};
            u.n_now = case_rows(c);
            step_runs(&u, 1);
            for (int p = 0; p < case_rows(c); p++) {
                const float *row = u.logits + (size_t)p * g->n_vocab;
                double z = log_sum_exp(row, (int)g->n_vocab);
                for (uint32_t t = 0; t < g->n_top; t++, n++) {
                    double d =
                        fabs((double)row[c->pos[p].top_id[t]] - z - (double)c->pos[p].top[t]);
                    worst = fmax(worst, d);
                    sum += d;
                }
                if (p < c->n_prompt - 1) continue;
                *n_greedy += 1;
                *other += argmax(row, (int)g->n_vocab) != c->token[p + 1];
            }
            free(u.logits);
        }
    double mean = sum / (double)n;
    printf("%-11s %s: log-prob difference at most %.2e, %.2e on average; %d of %d greedy tokens "
           "differ\n",
           base, what, worst, mean, *other, *n_greedy);
    fflush(stdout);
    ck_assert_double_le(worst, worst_most);
    ck_assert_double_le(mean, mean_most);
    ck_assert_double_gt(worst, 1e-4);
}

START_TEST(test_int8)
{
    const char *base = bases[_i];
    int other = 0, n_greedy = 0;
    ck_assert(open_backend(ISA_LEAST > 1 ? "portable" : isas[0]));
    rig_open(base, true, WEIGHTS_AUTO);
    measure(base, "int8", INT8_WORST, INT8_MEAN, &other, &n_greedy);
    ck_assert_int_le(other * 50, n_greedy);
    rig_close();
}
END_TEST

/* Every kind of adapter over a base of 8 bits: near PEFT's answers on the base as it was, and the
 * same bits in any company. */
START_TEST(test_quantised_base)
{
    const char *base = bases[_i];
    int other = 0, n_greedy = 0;
    ck_assert(open_backend(own_isa()));
    rig_open(base, false, WEIGHTS_Q8);
    measure(base, "q8 base", Q8_WORST, Q8_MEAN, &other, &n_greedy);
    (void)check_alone(base, "q8", Q8_WORST);
    check_mixed(base, "q8");
    rig_close();
}
END_TEST

#if !defined(CONFORM_CUDA) && !defined(CONFORM_EMULATED)
enum { OTHER_GGUFS = 14 };

/* Models in llama.cpp's files, whose values are those of the folders: of OLMoE by its codes. */
START_TEST(test_ggufs)
{
    const char *name = families[_i].name;
    bool codes = strcmp(name, "olmoe") == 0;
    if (!strchr(families[_i].where, 'g')) return;
    fixtures = "fixtures/families";
    as_gguf = true;
    ck_assert(conform(name, "plain", FAMILY_BOUND));
    ck_assert(conform(name, "auto", codes ? 0.2 : FAMILY_BOUND)); /* codes: x is rounded */
    as_gguf = false;
    fixtures = "fixtures";
}
END_TEST

/* What the model at `path` makes of a case. */
static float *logits_of(const char *path, const golden_case *c)
{
    ck_assert(open_backend("plain"));
    ck_assert_msg(model_load(&m, path, be, MAX_ROWS, MAX_ROWS, &e) == ERR_NONE, "%s", e.msg);
    attn_shape shape = model_attn_shape(m);
    ck_assert_int_eq(be_kv_create(be, &kv, &shape, N_PAGES, &e), ERR_NONE);
    make_states();
    run u = {.c = c, .n_now = case_rows(c), .logits = logits_alloc()};
    step_runs(&u, 1);
    if (states) be_free(be, states);
    states = NULL;
    be_kv_destroy(be, kv);
    return u.logits;
}

static void close_model(void)
{
    model_destroy(m);
    be_close(be);
}

/* Files that say less than the folder's config.json: they are of a model whose config.json stands
 * beside them, with the folder's weights. */
START_TEST(test_ggufs_of_others)
{
    static const char *const names[OTHER_GGUFS] = {
        "gemma2", "gemma3",          "cohere2",          "starcoder2",          "smollm3",
        "phi3",   "mistral3-images", "deepseek-v3",      "deepseek-v3-halves",  "llama4",
        "dots1",  "lfm2-moe",        "nemotron-h-dense", "granite-hybrid-dense"};
    static const char at[] = "fixtures/families";
    char path[300], from[400], to[200], here[200];
    snprintf(path, sizeof path, "%s/models/%s", at, names[_i]);
    golden *g = golden_read(path);
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    tmpdir_make(dir);
    snprintf(from, sizeof from, "%s/%s/gguf/%s.json", here, at, names[_i]);
    snprintf(to, sizeof to, "%s/config.json", dir);
    ck_assert_int_eq(symlink(from, to), 0);
    snprintf(from, sizeof from, "%s/%s/model.safetensors", here, path);
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    ck_assert_int_eq(symlink(from, to), 0);
    float *want = logits_of(dir, &g->c[0]);
    close_model();
    snprintf(path, sizeof path, "%s/gguf/%s.gguf", at, names[_i]);
    float *got = logits_of(path, &g->c[0]);
    double worst = 0;
    size_t n = (size_t)case_rows(&g->c[0]) * (size_t)model_get_config(m)->n_vocab;
    for (size_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    close_model();
    /* Phi-3's attn_qkv is in Q8_0; a DeepSeek's file has the folder's values and order of work. */
    bool same = strncmp(names[_i], "deepseek", 8) == 0;
    double bound = strcmp(names[_i], "phi3") == 0 ? 0.1 : same ? 0 : 1e-5;
    ck_assert_msg(worst <= bound, "%s: off by %.2e", names[_i], worst);
    printf("%-16s in GGUF: logits differ by %.2e at most\n", names[_i], worst);
    free(want);
    free(got);
    free(g);
    tmpdir_remove(dir);
}
END_TEST

/* Experts in MXFP4, in a folder and in a GGUF: by their values, and by their codes, beside which x
 * is rounded. */
START_TEST(test_mxfp4)
{
    int other = 0, n_greedy = 0;
    fixtures = "fixtures/families";
    as_gguf = _i == 1;
    ck_assert(conform("gpt-oss-mxfp4", "plain", FAMILY_BOUND));
    ck_assert(open_backend("auto"));
    rig_open("gpt-oss-mxfp4", false, WEIGHTS_AUTO);
    measure("gpt-oss-mxfp4", "mxfp4", 10, 0.02, &other, &n_greedy);
    (void)check_alone("gpt-oss-mxfp4", "mxfp4", 10);
    check_mixed("gpt-oss-mxfp4", "mxfp4");
    rig_close();
    ck_assert(open_backend("auto"));
    rig_open("gpt-oss-mxfp4", false, WEIGHTS_PLAIN);
    ck_assert_double_le(check_alone("gpt-oss-mxfp4", "plain values", FAMILY_BOUND), FAMILY_BOUND);
    rig_close();
    as_gguf = false;
    fixtures = "fixtures";
}
END_TEST

#endif

/* Experts in other types than their file's, beside rounded activations, and adapters for them in 8
 * bits: a row whose scores lie close then goes to another expert, so the mean alone is bounded; and
 * the same bits in any company. */
static const struct {
    const char *base, *what;
    bool int8;
    weights_form weights;
    double mean;
} rounded[] = {
#ifdef CONFORM_CUDA
    {"mixtral", "f16 activations", false, WEIGHTS_AUTO, 0.002},
    {"gpt-oss", "f16 activations", false, WEIGHTS_AUTO, 0.005},
    {"qwen3-moe", "f16 activations", false, WEIGHTS_AUTO, 0.004},
    {"llama4", "f16 activations", false, WEIGHTS_AUTO, 0.005},
#else
    {"qwen3-moe", "int8", true, WEIGHTS_AUTO, 0.004},
    {"qwen3-moe", "q8 base", false, WEIGHTS_Q8, 0.02},
    {"qwen3-moe", "fp8 base", false, WEIGHTS_FP8, 0.08},
#endif
    {"qwen3-moe", "bf16 base", false, WEIGHTS_BF16, 0.015},
    {"qwen2-moe", "bf16 base", false, WEIGHTS_BF16, 0.015}, /* whose routers, in F32, have LoRA */
};
START_TEST(test_experts_rounded)
{
    const char *base = rounded[_i].base, *what = rounded[_i].what;
    int other = 0, n_greedy = 0;
    fixtures = "fixtures/families";
    ck_assert(open_backend(own_isa()));
    rig_open(base, rounded[_i].int8, rounded[_i].weights);
    measure(base, what, 10, rounded[_i].mean, &other, &n_greedy);
    (void)check_alone(base, what, 10);
    check_mixed_by(base, what, _i % 2 ? 1 : 3);
#ifdef CONFORM_EMULATED
    emu_rt_counts n;
    emu_rt_count(&n);
    ck_assert(_i % 2 == 0 || n.graph_launches > 0);
#endif
    rig_close();
    fixtures = "fixtures";
}
END_TEST

int main(void)
{
#if defined(CONFORM_CUDA) && !defined(CONFORM_EMULATED)
    int none = device_here();
    if (none) return none;
#endif
    Suite *s = suite_create("golden");
    TCase *tc = tcase_create("golden");
    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, test_as_peft, 0, (int)(sizeof bases / sizeof(*bases)));
    tcase_add_loop_test(tc, test_int8, 0, (int)(sizeof bases / sizeof(*bases)));
    /* of the base where no two tokens are nearly as likely: check_alone() holds the greedy ones */
    tcase_add_loop_test(tc, test_quantised_base, 1, 2);
#if !defined(CONFORM_CUDA) && !defined(CONFORM_EMULATED)
    TCase *in_gguf = tcase_create("ggufs");
    tcase_set_timeout(in_gguf, 240);
    tcase_add_loop_test(in_gguf, test_ggufs, 0, FAMILIES);
    tcase_add_loop_test(in_gguf, test_ggufs_of_others, 0, OTHER_GGUFS);
    tcase_add_loop_test(in_gguf, test_mxfp4, 0, 2);
    suite_add_tcase(s, in_gguf);
#endif
    suite_add_tcase(s, tc);
    TCase *of_families = tcase_create("families");
    tcase_set_timeout(of_families, 240);
    tcase_add_loop_test(of_families, test_families, 0, FAMILIES);
    suite_add_tcase(s, of_families);
    TCase *mixtures = tcase_create("mixtures");
    tcase_set_timeout(mixtures, 240);
    tcase_add_loop_test(mixtures, test_experts_rounded, 0,
                        (int)(sizeof rounded / sizeof(*rounded)));
    suite_add_tcase(s, mixtures);
    return run_suite(s);
}
