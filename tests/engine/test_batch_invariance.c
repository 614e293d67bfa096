/* test_batch_invariance.c -- the batch changes nothing.
 *
 * A real model, the real CPU backend and scheduler, eight adapters of different ranks and targets,
 * 32 sampled requests: each gives exactly the tokens it gives alone, whatever the chunk size, the
 * number of threads, the page budget (down to where pre-emption is needed), the prefix cache,
 * guessed tokens, and whoever comes, goes and is cancelled beside it.
 *
 * CONFORM_CUDA: the same on the CUDA backend, CONFORM_EMULATED with fewer
 * requests on an emulated device.  CONFORM_DEVICES: over so many of them, against one alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/sched/sched.h"
#include "tests/run_suite.h"
#ifdef CONFORM_EMULATED
#    include "tests/emu/cuda_rt/emu_rt.h"
#elif defined(CONFORM_CUDA)
#    include "tests/gpu/device_here.h"
#endif

enum { N_ADAPTERS = 8, MAX_ROWS = 96, MAX_SEQS = 48, SECOND = 1000000 };
enum { SNAPSHOT_BYTES = 1 << 20 }; /* dozens, of a model with states */
#ifdef CONFORM_EMULATED
enum { N_REQUESTS = 12, N_EXTRA = 3, MAX_NEW = 16, FEW = true };
#elif defined(__SANITIZE_THREAD__) /* as few as still press one another out of the pages */
enum { N_REQUESTS = 16, N_EXTRA = 6, MAX_NEW = 24, FEW = true };
#else
enum { N_REQUESTS = 32, N_EXTRA = 12, MAX_NEW = 24, FEW = false };
#endif

static uint64_t rng;

static uint32_t draw(void)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng >> 33);
}

/* ------------------------------------------------------------------- adapters -- */

typedef struct {
    lora_view view[N_ADAPTERS];
    lora_mat *mat[N_ADAPTERS], *expert[N_ADAPTERS]; /* expert: NULL where the model has none */
    backend *be;
    int n_layer, n_expert;
    int acquired;
    int cold;           /* answers ERR_BUSY this many times more */
    lora_source source; /* that gives them */
} adapters;

static float *noise(size_t n, float scale)
{
    float *v = malloc(n * sizeof(*v));
    for (size_t i = 0; i < n; i++) v[i] = ((float)draw() / (float)(1U << 30) - 1.0F) * scale;
    return v;
}

static lora_mat make_mat(backend *be, dtype base, int rank, int d_in, int d_out)
{
    float *av = noise((size_t)rank * d_in, 0.3F), *bv = noise((size_t)rank * d_out, 0.3F);
    void *pa = be_alloc(be, be_lora_a_bytes(be, base, rank, d_in));
    void *pb = be_alloc(be, be_lora_b_bytes(be, base, rank, d_out));
    ck_assert_int_eq(be_lora_pack(be, base, pa, pb, av, bv, DT_F32, rank, d_in, d_out, NULL),
                     ERR_NONE);
    free(av);
    free(bv);
    return (lora_mat){.a = pa, .b = pb, .rank = rank, .scale = 1.0F};
}

/* On experts of most adapters, at small ranks: there are many. */
static void make_expert_mats(adapters *ad, const model_config *c, int a)
{
    enum { RANK = 2 };
    if (c->experts.route.n == 0 || a % 4 == 3) return;
    ad->n_expert = c->n_layer * c->experts.route.n * LORA_EXPERT_PROJS;
    ad->expert[a] = calloc((size_t)ad->n_expert, sizeof(lora_mat));
    ad->view[a].expert = ad->expert[a];
    ad->view[a].n_expert = c->experts.route.n;
    if (ad->view[a].rank_max < RANK) ad->view[a].rank_max = RANK;
    for (int i = 0; i < ad->n_expert; i++) {
        int d_out, d_in;
        if ((i + a) % 5 == 0) continue;
        model_expert_shape(c, (proj)(PROJ_GATE + i % LORA_EXPERT_PROJS), &d_out, &d_in);
        ad->expert[a][i] = make_mat(ad->be, c->type, RANK, d_in, d_out);
    }
}

static void make_adapters(adapters *ad, backend *be, const model_config *c)
{
    static const int ranks[N_ADAPTERS] = {1, 3, 8, 16, 33, 64, 4, 256};
    *ad = (adapters){.be = be, .n_layer = c->n_layer};
    rng = 77;
    for (int a = 0; a < N_ADAPTERS; a++) {
        ad->mat[a] = calloc((size_t)c->n_layer * PROJ_COUNT, sizeof(lora_mat));
        ad->view[a] = (lora_view){.adapter_id = (uint64_t)a + 1,
                                  .n_layer = c->n_layer,
                                  .rank_max = ranks[a],
                                  .mat = ad->mat[a]};
        memset(ad->view[a].digest, a + 1, LORA_DIGEST_BYTES);
        for (int i = 0; i < c->n_layer * PROJ_COUNT; i++) {
            if (a % 3 == 1 && i % PROJ_COUNT != PROJ_Q && i % PROJ_COUNT != PROJ_V) continue;
            int d_out, d_in;
            if (!model_has_proj(c, i / PROJ_COUNT, (proj)(i % PROJ_COUNT))) continue;
            model_layer_shape(c, i / PROJ_COUNT, (proj)(i % PROJ_COUNT), &d_out, &d_in);
            dtype type = model_proj_type(c, (proj)(i % PROJ_COUNT));
            ad->mat[a][i] = make_mat(be, type, ranks[a], d_in, d_out);
        }
        make_expert_mats(ad, c, a);
    }
}

static void drop_mats(adapters *ad, lora_mat *m, int n)
{
    for (int i = 0; m && i < n; i++) {
        be_free(ad->be, (void *)m[i].a);
        be_free(ad->be, (void *)m[i].b);
    }
    free(m);
}

static void drop_adapters(adapters *ad)
{
    ck_assert_int_eq(ad->acquired, 0);
    for (int a = 0; a < N_ADAPTERS; a++) {
        drop_mats(ad, ad->mat[a], ad->n_layer * PROJ_COUNT);
        drop_mats(ad, ad->expert[a], ad->n_expert);
    }
}

static err_code acquire(void *self, uint64_t id, const lora_view **out, err *e)
{
    adapters *ad = self;
    if (id > N_ADAPTERS) return err_set(e, ERR_CORRUPT, "adapter %d is broken", (int)id);
    if (ad->cold > 0 && id % 2) {
        ad->cold--;
        return err_set(e, ERR_BUSY, "loading");
    }
    *out = &ad->view[id - 1];
    ad->acquired++;
    return ERR_NONE;
}

static void release(void *self, const lora_view *v)
{
    (void)v;
    ((adapters *)self)->acquired--;
}

/* ------------------------------------------------------------------- requests -- */

typedef struct {
    request rq;
    meter meter;
    request_signal sg;
    int32_t prompt[80];
    int32_t got[MAX_NEW];
    int n_got;
    bool done;
} client;

static void make_client(client *c, int i, int n_vocab)
{
    memset(c, 0, sizeof(*c));
    rng = (uint64_t)i * 1000 + 5;
    request_init(&c->rq);
    request_signal_init(&c->sg);
    static const logit_bias few[] = {{0, 50}, {1, 50}, {2, 50}, {3, 50}, {4, 50}, {5, 50}};
    int n = 1 + (int)(draw() % 78);
    for (int k = 0; k < n; k++) {
        /* some share long beginnings, so that the prefix cache has something to do */
        c->prompt[k] = (int32_t)(k < 40 && i % 4 == 0 ? (k * 7 + 3) % n_vocab
                                                      : (int)(draw() % (unsigned)n_vocab));
        if (i % 4 == 3) c->prompt[k] %= 6; /* of few words, so that some guesses are right */
    }
    if (i % 4 == 3) {
        c->rq.rules.bias = few;
        c->rq.rules.n_bias = 6;
    }
    c->rq.prompt = c->prompt;
    c->rq.n_prompt = n;
    c->rq.max_tokens = 4 + (int)(draw() % (MAX_NEW - 4));
    c->rq.tenant_id = (uint64_t)(i % 3) + 1;
    c->rq.isolation = i % 4 == 0 ? 1 : c->rq.tenant_id;
    c->rq.adapter_id = (uint64_t)(i % 4 == 0 ? i / 4 % 2 : i % (N_ADAPTERS + 1));
    c->rq.slo_class = i % 2;
    c->rq.meter = &c->meter;
    c->rq.signal = &c->sg;
    c->rq.rules.temperature = i % 5 == 0 ? 0 : 0.9F;
    c->rq.rules.top_p = i % 3 == 0 ? 0.9F : 1;
    c->rq.rules.top_k = i % 4 == 1 ? 20 : 0;
    c->rq.rules.repetition_penalty = i % 7 == 2 ? 1.3F : 1;
    c->rq.rules.n_top = i % 3 == 1 ? 3 : -1;
    c->rq.rules.seed = (uint64_t)i * 31;
    if (i % 3 == 1 &&
        c->rq.adapter_id) /* activated within the prompt, some behind what they share */
        c->rq.adapter_from = i % 4 == 0 && n > 34 ? 33 : (int)(draw() % (unsigned)n);
    ck_assert_int_eq(request_prepare(&c->rq, NULL), ERR_NONE);
}

static void drop_client(client *c)
{
    request_clear(&c->rq);
    request_signal_clear(&c->sg);
}

static void collect(client *c)
{
    uint64_t seen = 0;
    while (!c->done) {
        sampled t;
        while (request_next(&c->rq, &t, &c->done)) c->got[c->n_got++] = t.token;
        if (!c->done) (void)request_signal_wait(&c->sg, &seen, 50);
    }
}

/* The same tokens, of the same log-probabilities, with the same alternatives. */
static bool same_bits(const client *a, const client *b)
{
    bool same = a->n_got == b->n_got;
    for (int i = 0; same && i < a->n_got; i++) {
        if (!a->rq.out.ring) { /* without log-probabilities */
            same = a->rq.out.token[i] == b->rq.out.token[i];
            continue;
        }
        const sampled *x = &a->rq.out.ring[i], *y = &b->rq.out.ring[i];
        same = x->token == y->token && x->n_top == y->n_top;
        same = same && memcmp(&x->logprob, &y->logprob, sizeof(x->logprob)) == 0;
        for (int k = 0; same && k < x->n_top; k++) {
            same = x->top_id[k] == y->top_id[k] &&
                   memcmp(&x->top_logprob[k], &y->top_logprob[k], sizeof(x->top_logprob[k])) == 0;
        }
    }
    return same;
}

typedef struct {
    int max_rows, threads, n_pages, cold;
    bool cache;
    const char *isa;
    int swap; /* pages of room for the pre-empted, which are then always swapped */
    bool no_overlap;
    int devices;       /* that share the model; 0: one */
    int speculate;     /* so many guesses, whatever they cost */
    const char *draft; /* the model that guesses, too; "": the same, if it can */
} setting;

/* Where no case has a process of its own, the threads of one that failed live on: nothing that
 * they read lies on a stack. */
typedef struct {
    backend *be;
    model *m, *draft;
    adapters *ad;
    sched *sc;
} rig;

static weights_form weights;
static bool states; /* the model keeps states: it drafts nothing, another one does for it */
static const char *const other_draft = "fixtures/models/qwen3-f32";

static void start(rig *r, const setting *st, const char *dir)
{
    model_options mo = {.weights = weights};
    err e;
    backend_config bc = {.n_threads = st->threads,
                         .isa = st->isa,
                         .max_rows = MAX_ROWS,
                         .max_seqs = MAX_SEQS,
                         .max_context = 128,
                         .fraction = 0.5};
    const backend_ops *ops = &backend_cpu;
#ifdef CONFORM_CUDA
    ops = &backend_cuda;
#endif
#ifdef CONFORM_EMULATED
    emu_rt_device(st->devices > 1 ? st->devices : 1, (size_t)256 << 20);
    bc.n_device = st->devices;
    if (st->devices > 1) ops = &backend_cuda_tp;
#elif defined(CONFORM_CUDA)
    bc.fraction = DEVICE_FRACTION;
#endif
#ifdef CONFORM_DEVICES
    emu_rt_no_cublas(true); /* the law of one device is that of several */
#endif
    ck_assert_msg(be_open(&r->be, ops, &bc, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_msg(model_load_with(&r->m, dir, r->be, MAX_ROWS, MAX_SEQS + SCHED_SCORE_ROWS, &mo,
                                  &e) == ERR_NONE,
                  "%s", e.msg);
    r->draft = NULL;
    states = model_state_floats(model_get_config(r->m)) > 0;
    const char *draft = st->draft && !*st->draft && !states ? dir : st->draft;
    if (draft && !*draft) draft = other_draft;
    ck_assert(!draft || be_can_sample(r->be) ||
              model_load(&r->draft, draft, r->be, MAX_ROWS, MAX_SEQS + SCHED_SCORE_ROWS, &e) == 0);
    r->ad = malloc(sizeof(*r->ad));
    make_adapters(r->ad, r->be, model_get_config(r->m));
    r->ad->cold = st->cold;
    r->ad->source = (lora_source){.self = r->ad, .acquire = acquire, .release = release};
    attn_shape sh = model_attn_shape(r->m);
    sched_config sc = {.max_rows = st->max_rows,
                       .max_seqs = st->max_rows < MAX_SEQS ? st->max_rows : MAX_SEQS,
                       .max_queued = 100,
                       .max_context = 128,
                       .max_logits = MAX_SEQS + SCHED_SCORE_ROWS,
                       .kv_bytes = (size_t)st->n_pages * be_kv_page_bytes(r->be, &sh),
                       .prefix_cache = st->cache,
                       .snapshot_bytes = SNAPSHOT_BYTES,
                       .snapshot_pages = 1,
                       .no_overlap = st->no_overlap,
                       .speculate = st->speculate,
                       .speculate_always = true,
                       .draft = r->draft,
                       .swap_bytes = (size_t)st->swap * be_kv_saved_bytes(r->be, &sh),
                       .preemption = PREEMPT_SWAP,
                       .n_class = 2,
                       .classes = {{.name = "fast", .rank = 0}, {.name = "slow", .rank = 1}}};
    ck_assert_msg(sched_create(&r->sc, &sc, r->m, r->be, &r->ad->source, &e) == ERR_NONE, "%s",
                  e.msg);
}

/* The last counts come a moment after the last answer. */
static void settled(rig *r, sched_stats *stats)
{
    do {
        usleep(1000);
        sched_stats_get(r->sc, stats);
    } while (stats->n_running + stats->n_waiting > 0);
}

static void stop(rig *r, sched_stats *stats)
{
    ck_assert(sched_drain(r->sc, 60 * (int64_t)SECOND));
    settled(r, stats);
    sched_destroy(r->sc);
    drop_adapters(r->ad);
    free(r->ad);
    model_destroy(r->draft);
    model_destroy(r->m);
    be_close(r->be);
}

static void alone(client *out, const char *dir, const char *isa)
{
    rig r;
    sched_stats stats;
    setting st = {
        .max_rows = MAX_ROWS, .threads = 1, .n_pages = 64, .isa = isa, .no_overlap = true};
    start(&r, &st, dir);
    for (int i = 0; i < N_REQUESTS; i++) {
        make_client(&out[i], i, model_get_config(r.m)->n_vocab);
        ck_assert_int_eq(sched_submit(r.sc, &out[i].rq, NULL), ERR_NONE);
        collect(&out[i]);
        ck_assert_int_eq(atomic_load(&out[i].rq.finish), FINISH_LENGTH);
        ck_assert_int_eq(out[i].n_got, out[i].rq.max_tokens);
    }
    stop(&r, &stats);
}

/* One with whole pages, after everybody else and once more: nobody took its
 * pages, so they are found. */
static void again(rig *r, const client *ref)
{
    sched_stats before, after;
    int i = 0, n_vocab = model_get_config(r->m)->n_vocab;
    while (i < N_REQUESTS && ref[i].rq.n_prompt <= 2 * be_caps(r->be)->page_tokens) i++;
    ck_assert_int_lt(i, N_REQUESTS);
    for (int turn = 0; turn < 2; turn++) {
        client c;
        settled(r, &before);
        make_client(&c, i, n_vocab);
        ck_assert_int_eq(sched_submit(r->sc, &c.rq, NULL), ERR_NONE);
        collect(&c);
        ck_assert_int_eq(c.n_got, ref[i].n_got);
        ck_assert_mem_eq(c.got, ref[i].got, (size_t)c.n_got * sizeof(int32_t));
        drop_client(&c);
    }
    settled(r, &after);
    ck_assert_uint_gt(after.n_cached_tokens, before.n_cached_tokens);
}

static void together(const client *ref, const char *dir, const setting *st, sched_stats *stats)
{
    rig r;
    client *c = calloc(N_REQUESTS, sizeof(*c)), *extra = calloc(N_EXTRA, sizeof(*extra));
    start(&r, st, dir);
    int n_vocab = model_get_config(r.m)->n_vocab;
    for (int i = 0; i < N_REQUESTS; i++) {
        make_client(&c[i], i, n_vocab);
        ck_assert_int_eq(sched_submit(r.sc, &c[i].rq, NULL), ERR_NONE);
        if (i < N_EXTRA) { /* company that will be cancelled */
            make_client(&extra[i], 100 + i, n_vocab);
            ck_assert_int_eq(sched_submit(r.sc, &extra[i].rq, NULL), ERR_NONE);
        }
        if (!st->swap && i % 8 == 7) usleep(1500); /* with a swap all come at once: they press */
        if (i >= 8 && i < 8 + N_EXTRA) request_cancel(&extra[i - 8].rq);
    }
    for (int i = 0; i < N_EXTRA; i++) {
        request_cancel(&extra[i].rq);
        collect(&extra[i]);
    }
    for (int i = 0; i < N_REQUESTS; i++) {
        collect(&c[i]);
        ck_assert_msg(same_bits(&c[i], &ref[i]),
                      "request %d differs (rows %d, threads %d, pages %d, cache %d, guesses %d)", i,
                      st->max_rows, st->threads, st->n_pages, st->cache, st->speculate);
        ck_assert_int_eq((int)atomic_load(&c[i].meter.output_tokens), c[i].n_got);
        ck_assert_int_eq((int)atomic_load(&c[i].meter.prompt_tokens), c[i].rq.n_prompt);
    }
    settled(&r, stats);
    uint64_t shared = stats->n_cached_tokens; /* by the crowd */
    if (st->cache) again(&r, ref);
    stop(&r, stats);
    stats->n_cached_tokens = shared;
    ck_assert_int_eq(stats->n_pages_used, 0);
    ck_assert_int_eq(stats->n_running + stats->n_waiting, 0);
    for (int i = 0; i < N_REQUESTS; i++) drop_client(&c[i]);
    for (int i = 0; i < N_EXTRA; i++) drop_client(&extra[i]);
    free(c);
    free(extra);
}

#ifdef CONFORM_DEVICES
static const char *const models[] = {"fixtures/models/llama-tp-bf16",
                                     "fixtures/models/llama-tp-bf16"};
#else
static const char *const models[] = {
    "fixtures/models/llama-bf16",          "fixtures/models/qwen3-f32",
    "fixtures/models/mistral-bf16",        "fixtures/families/models/olmoe",
#    ifndef CONFORM_CUDA
    "fixtures/families/models/gemma4-moe", /* CUDA refuses it by name, */
    "fixtures/families/models/qwen3.5",    /* and models with states */
    "fixtures/families/models/falcon-h1",  "fixtures/families/models/deepseek-v3",
#    endif
};
#endif
enum { N_MODELS = sizeof models / sizeof(*models) };
#ifdef CONFORM_DEVICES
enum { MODELS_FROM = 1, DEVICES = CONFORM_DEVICES };
#elif defined(CONFORM_EMULATED)
enum { MODELS_FROM = 2, DEVICES = 1 }; /* has a sliding window */
#else
enum { MODELS_FROM = 0 };
#endif

static void each_request_alone_and_together(const char *dir, const char *isa)
{
#ifdef CONFORM_EMULATED
    static const setting settings[] = {
        {.max_rows = 50,
         .threads = 1,
         .n_pages = 14,
         .cache = true,
         .cold = 50,
         .devices = DEVICES,
         .speculate = 4},
        {.max_rows = 96, .threads = 2, .n_pages = 6, .swap = 100, .devices = DEVICES},
    };
#else
    static const setting settings[] = {
        {.max_rows = 96, .threads = 2, .n_pages = 400},
        {.max_rows = 50, .threads = 1, .n_pages = 400, .cache = true, .speculate = 8, .draft = ""},
        {.max_rows = 96,
         .threads = 2,
         .n_pages = 9,
         .cold = 300,
         .speculate = 4,
         .draft = "fixtures/models/qwen3-f32"},
        {.max_rows = 64, .threads = 3, .n_pages = 14, .cache = true, .cold = 50},
        {.max_rows = 96, .threads = 2, .n_pages = 6, .swap = 100, .speculate = 8, .draft = ""},
        {.max_rows = 64, .threads = 2, .n_pages = 12, .cache = true, .swap = 6, .speculate = 16},
    };
#endif
    client *ref = calloc(N_REQUESTS, sizeof(*ref));
    alone(ref, dir, isa);
    uint64_t preempted = 0, cached = 0, swapped = 0, guessed = 0, right = 0, drafted = 0;
    bool shown = false;
    /* Whether anyone is pre-empted, or comes back from the swap, is a
     * matter of time: once more then. */
    for (int turn = 0; turn < 20 && !shown; turn++) {
        for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
            sched_stats stats;
            setting st = settings[i];
            st.isa = isa;
            together(ref, dir, &st, &stats);
            preempted += stats.n_preempted;
            cached += stats.n_cached_tokens;
            swapped += stats.n_swapped_in;
            guessed += stats.guess.made;
            right += stats.guess.right;
            drafted += stats.guess.right_by[GUESS_DRAFT];
        }
        /* again() does not leave to chance that the prefix cache is used; few may share nothing. */
        shown = swapped > 0 && preempted > 0 && (FEW || cached > 0) && right > 0 && guessed > right;
#ifndef CONFORM_CUDA
        shown = shown && (drafted > 0 || states);
#endif
    }
    printf("%d of %d guesses were right, %d of the draft model's\n", (int)right, (int)guessed,
           (int)drafted);
    ck_assert_msg(shown,
                  "the test shows too little: %d pre-empted, %d back from the swap, %d tokens "
                  "from the prefix cache, %d of %d guesses right",
                  (int)preempted, (int)swapped, (int)cached, (int)right, (int)guessed);
    for (int i = 0; i < N_REQUESTS; i++) drop_client(&ref[i]);
    free(ref);
}

START_TEST(each_request_gives_what_it_gives_alone)
{
    each_request_alone_and_together(models[_i], "auto");
#if !defined(CONFORM_CUDA) && !defined(CONFORM_EMULATED)
    if (_i == 0) each_request_alone_and_together(models[_i], "portable");
#endif
}
END_TEST

/* Also over a quantised base: 4 bits, the output layer 8, and down_proj, whose columns are no whole
 * groups, as it is. */
START_TEST(each_request_gives_what_it_gives_alone_quantised)
{
    weights = WEIGHTS_Q4;
    each_request_alone_and_together(models[0], "auto");
    weights = WEIGHTS_AUTO;
}
END_TEST

START_TEST(a_broken_adapter_fails_its_request_alone)
{
    rig r;
    sched_stats stats;
    setting st = {.max_rows = MAX_ROWS, .threads = 1, .n_pages = 64, .isa = "auto"};
    start(&r, &st, models[0]);
    client bad, good;
    make_client(&bad, 3, model_get_config(r.m)->n_vocab);
    make_client(&good, 4, model_get_config(r.m)->n_vocab);
    bad.rq.adapter_id = 99;
    ck_assert_int_eq(sched_submit(r.sc, &bad.rq, NULL), ERR_NONE);
    ck_assert_int_eq(sched_submit(r.sc, &good.rq, NULL), ERR_NONE);
    collect(&bad);
    collect(&good);
    ck_assert_int_eq(atomic_load(&bad.rq.finish), FINISH_ERROR);
    ck_assert_int_eq(bad.rq.why.code, ERR_CORRUPT);
    ck_assert_int_eq(atomic_load(&good.rq.finish), FINISH_LENGTH);
    stop(&r, &stats);
    drop_client(&bad);
    drop_client(&good);
}
END_TEST

START_TEST(what_can_never_fit_is_refused_at_once)
{
    rig r;
    sched_stats stats;
    setting st = {.max_rows = MAX_ROWS, .threads = 1, .n_pages = 2, .isa = "auto"};
    start(&r, &st, models[0]);
    ck_assert_int_eq(sched_max_context(r.sc), 64);
    client c;
    make_client(&c, 3, model_get_config(r.m)->n_vocab);
    err e;
    c.rq.n_prompt = 50;
    c.rq.max_tokens = 15;
    ck_assert_int_eq(sched_submit(r.sc, &c.rq, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "64"));
    c.rq.n_prompt = 0;
    ck_assert_int_eq(sched_submit(r.sc, &c.rq, &e), ERR_INPUT);
    c.rq.n_prompt = 50; /* just fits */
    c.rq.max_tokens = 14;
    ck_assert_int_eq(sched_submit(r.sc, &c.rq, &e), ERR_NONE);
    collect(&c);
    ck_assert_int_eq(c.n_got, 14);
    stop(&r, &stats);
    drop_client(&c);
}
END_TEST

START_TEST(prompts_are_scored)
{
    rig r;
    sched_stats stats;
    setting st = {.max_rows = MAX_ROWS, .threads = 2, .n_pages = 64, .isa = "auto", .cache = true};
    start(&r, &st, models[1]);
    client c, again;
    make_client(&c, 6, model_get_config(r.m)->n_vocab);
    c.rq.n_prompt = 64; /* two whole pages */
    c.rq.score_prompt = true;
    c.rq.max_tokens = 0;
    c.rq.score_top = 3;
    request_clear(&c.rq);
    ck_assert_int_eq(request_prepare(&c.rq, NULL), ERR_NONE);
    ck_assert_int_eq(sched_submit(r.sc, &c.rq, NULL), ERR_NONE);
    collect(&c);
    ck_assert_int_eq(atomic_load(&c.rq.finish), FINISH_LENGTH);
    ck_assert_int_eq(c.n_got, 0);
    for (int i = 1; i < 64; i++) {
        const sampled *s = &c.rq.out.score[i];
        ck_assert_int_eq(s->token, c.prompt[i]);
        ck_assert(s->logprob < 0 && s->n_top == 3 && s->top_logprob[0] >= s->logprob);
        ck_assert_int_ge(s->rank, 1);
        ck_assert(s->rank > 3 || s->top_id[s->rank - 1] == s->token);
    }
    /* greedy continuation of the first half agrees with the scores' best guess */
    make_client(&again, 6, model_get_config(r.m)->n_vocab);
    again.rq.n_prompt = 40;
    again.rq.rules = (sampling){.top_p = 1, .repetition_penalty = 1, .n_top = 1};
    request_clear(&again.rq);
    ck_assert_int_eq(request_prepare(&again.rq, NULL), ERR_NONE);
    ck_assert_int_eq(sched_submit(r.sc, &again.rq, NULL), ERR_NONE);
    collect(&again);
    ck_assert_int_eq(again.got[0], c.rq.out.score[40].top_id[0]);
    ck_assert(again.rq.out.ring[0].logprob == c.rq.out.score[40].top_logprob[0]);
    stop(&r, &stats);
    drop_client(&c);
    drop_client(&again);
}
END_TEST

int main(void)
{
#if defined(CONFORM_CUDA) && !defined(CONFORM_EMULATED)
    int none = device_here();
    if (none) return none;
#endif
    Suite *s = suite_create("batch invariance");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 280);
    tcase_add_loop_test(tc, each_request_gives_what_it_gives_alone, MODELS_FROM, N_MODELS);
    tcase_add_test(tc, a_broken_adapter_fails_its_request_alone);
    tcase_add_test(tc, what_can_never_fit_is_refused_at_once);
    tcase_add_test(tc, prompts_are_scored);
    tcase_add_test(tc, each_request_gives_what_it_gives_alone_quantised); /* leaves `weights` */
    suite_add_tcase(s, tc);
    return run_suite(s);
}
