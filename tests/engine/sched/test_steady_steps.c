/* test_steady_steps.c -- nothing is allocated in the step loop.
 *
 * A real model, the CPU backend and the scheduler; requests with adapters, tokens that an adapter
 * adds, a grammar, penalties, log-probabilities.  When all of them are decoding, every allocation
 * of every thread is counted over some twenty steps: there is none.  The allocator's functions
 * stand before libc's for all of this program; a sanitizer has its own in that place, so under one
 * the steps run and nothing is counted.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/sched/sched.h"
#include "tests/run_suite.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COUNTS = false };
#else
enum { COUNTS = true };
#endif

static atomic_bool counting;
static atomic_int n_allocated;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static void note(void)
{
    if (atomic_load(&counting)) atomic_fetch_add(&n_allocated, 1);
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    note();
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    note();
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    note();
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    note();
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}
#endif

/* ---------------------------------------------------------------------- adapters -- */

enum {
    ADDED = 3,
    RANK = 8,
    MAX_ROWS = 64,
    MAX_SEQS = 8,
    CONTEXT = 1024,
    NEW = 1000, /* all are cancelled: none ends by itself where this thread waits for a core */
    WARM = 30,
    MEASURED = 20
};

static backend *be;
static model *m;
static const model_config *config;
static lora_mat *mat;
static lora_head head;
static lora_embed embed;
static int32_t added[ADDED];
static lora_view plain, with_tokens; /* adapters 1 and 2 */

static float *ramp(size_t n)
{
    float *v = malloc(n * sizeof(*v));
    for (size_t i = 0; i < n; i++) v[i] = 0.02F * (float)((int)(i * 7 % 13) - 6);
    return v;
}

static void make_mats(void)
{
    mat = calloc((size_t)config->n_layer * PROJ_COUNT, sizeof(*mat));
    for (int i = 0; i < config->n_layer * PROJ_COUNT; i++) {
        int d_out, d_in;
        model_proj_shape(config, (proj)(i % PROJ_COUNT), &d_out, &d_in);
        if (d_in == 0) continue; /* none in this model */
        float *a = ramp((size_t)RANK * d_in), *b = ramp((size_t)RANK * d_out);
        void *pa = be_alloc(be, be_lora_a_bytes(be, config->type, RANK, d_in));
        void *pb = be_alloc(be, be_lora_b_bytes(be, config->type, RANK, d_out));
        ck_assert(!be_lora_pack(be, config->type, pa, pb, a, b, DT_F32, RANK, d_in, d_out, NULL));
        mat[i] = (lora_mat){.a = pa, .b = pb, .rank = RANK, .scale = 1};
        free(a);
        free(b);
    }
}

static void make_adapters(void)
{
    err e;
    make_mats();
    for (int i = 0; i < ADDED; i++) added[i] = config->n_vocab + i;
    float *rows = ramp((size_t)ADDED * config->dim);
    weight *w = NULL;
    ck_assert(!be_lora_weight_create(be, &w, rows, DT_F32, ADDED, config->dim, &e));
    head = (lora_head){.rows = {.n = ADDED, .id = added, .type = DT_F32, .w = w}};
    embed = (lora_embed){.rows = {.n = ADDED, .id = added, .type = DT_F32, .table = rows}};
    plain = (lora_view){.adapter_id = 1, .n_layer = config->n_layer, .rank_max = RANK, .mat = mat};
    with_tokens = plain;
    with_tokens.adapter_id = 2;
    with_tokens.n_vocab = config->n_vocab + ADDED;
    with_tokens.head = &head;
    with_tokens.embed = &embed;
    memset(plain.digest, 1, LORA_DIGEST_BYTES);
    memset(with_tokens.digest, 2, LORA_DIGEST_BYTES);
}

static void drop_adapters(void)
{
    for (int i = 0; i < config->n_layer * PROJ_COUNT; i++) {
        be_free(be, (void *)mat[i].a);
        be_free(be, (void *)mat[i].b);
    }
    be_weight_destroy(be, (weight *)head.rows.w);
    free((void *)embed.rows.table);
    free(mat);
}

static err_code acquire(void *self, uint64_t id, const lora_view **out, err *e)
{
    (void)self;
    (void)e;
    *out = id == 1 ? &plain : &with_tokens;
    return ERR_NONE;
}

/* ---------------------------------------------------------------------- requests -- */

typedef struct {
    request rq;
    meter meter;
    request_signal sg;
    int32_t prompt[8];
    int n_got;
    bool done;
} client;

static void make_client(client *c, int i)
{
    memset(c, 0, sizeof(*c));
    request_init(&c->rq);
    request_signal_init(&c->sg);
    for (int k = 0; k < 8; k++) c->prompt[k] = (i * 31 + k * 7 + 3) % config->n_vocab;
    if (i % 3 == 2) c->prompt[4] = added[0];
    c->rq.prompt = c->prompt;
    c->rq.n_prompt = 8;
    c->rq.max_tokens = NEW;
    c->rq.tenant_id = (uint64_t)i + 1;
    c->rq.isolation = c->rq.tenant_id;
    c->rq.adapter_id = (uint64_t)(i % 3);
    c->rq.n_vocab = i % 3 == 2 ? with_tokens.n_vocab : 0;
    c->rq.meter = &c->meter;
    c->rq.signal = &c->sg;
    c->rq.rules.temperature = i % 2 ? 0.9F : 0;
    c->rq.rules.top_p = i % 2 ? 0.9F : 1;
    c->rq.rules.repetition_penalty = i == 3 ? 1.2F : 1;
    c->rq.rules.n_top = i % 4 ? 5 : -1;
    c->rq.rules.seed = (uint64_t)i;
}

static void take(client *c, int until)
{
    uint64_t seen = 0;
    while (!c->done && c->n_got < until) {
        sampled t;
        while (request_next(&c->rq, &t, &c->done)) c->n_got++;
        if (!c->done && c->n_got < until) (void)request_signal_wait(&c->sg, &seen, 50);
    }
}

static sched *open_engine(const lora_source *source)
{
    err e;
    backend_config bc = {
        .n_threads = 2, .max_rows = MAX_ROWS, .max_seqs = MAX_SEQS, .max_context = CONTEXT};
    ck_assert_msg(!be_open(&be, &backend_cpu, &bc, &e), "%s", e.msg);
    ck_assert_msg(
        !model_load(&m, "../conf/demo/base", be, MAX_ROWS, MAX_SEQS + SCHED_SCORE_ROWS, &e), "%s",
        e.msg);
    ck_assert_msg(!model_allow_added(m, ADDED, 0, &e), "%s", e.msg);
    config = model_get_config(m);
    make_adapters();
    attn_shape sh = model_attn_shape(m);
    sched_config sc = {.max_rows = MAX_ROWS,
                       .max_seqs = MAX_SEQS,
                       .max_queued = 100,
                       .max_context = CONTEXT,
                       .max_logits = MAX_SEQS + SCHED_SCORE_ROWS,
                       .kv_bytes = MAX_SEQS * 72 * be_kv_page_bytes(be, &sh),
                       .prefix_cache = true,
                       .n_class = 1,
                       .classes = {{.name = "only"}}};
    sched *out;
    ck_assert_msg(!sched_create(&out, &sc, m, be, source, &e), "%s", e.msg);
    return out;
}

START_TEST(a_steady_step_allocates_nothing)
{
    err e;
    const lora_source source = {.acquire = acquire};
    sched *sc = open_engine(&source);
    tokenizer *tok;
    grammar_maker *maker;
    grammar *form;
    ck_assert_msg(!tokenizer_load(&tok, "../conf/demo/base", &e), "%s", e.msg);
    ck_assert(!grammar_maker_create(&maker, tok, config->n_vocab, &e));
    grammar_spec spec = {.kind = GRAMMAR_REGEX, .text = "([a-z ]|[0-9]{2,5})*"};
    ck_assert_msg(!grammar_acquire(maker, &spec, &form, &e), "%s", e.msg);

    static client c[MAX_SEQS];
    for (int i = 0; i < MAX_SEQS; i++) {
        make_client(&c[i], i);
        if (i == 6) {
            c[i].rq.grammar = grammar_run_create(form, NULL, 0);
            ck_assert_ptr_nonnull(c[i].rq.grammar);
            grammar_run_prepare(c[i].rq.grammar);
        }
        ck_assert_int_eq(request_prepare(&c[i].rq, &e), ERR_NONE);
        ck_assert_msg(!sched_submit(sc, &c[i].rq, &e), "%s", e.msg);
    }
    for (int i = 0; i < MAX_SEQS; i++) take(&c[i], WARM);
    atomic_store(&counting, true);
    for (int i = 0; i < MAX_SEQS; i++) take(&c[i], WARM + MEASURED);
    atomic_store(&counting, false);
    for (int i = 0; i < MAX_SEQS; i++) { /* it was a steady time: nobody had ended */
        ck_assert(!c[i].done);
        ck_assert_int_ge(c[i].n_got, WARM + MEASURED);
    }
    ck_assert_int_eq(atomic_load(&n_allocated), 0);

    void *volatile p = NULL; /* and what counts does count */
    atomic_store(&counting, true);
    p = malloc(1);
    atomic_store(&counting, false);
    free(p);
    ck_assert_int_eq(atomic_load(&n_allocated), COUNTS ? 1 : 0);

    for (int i = 0; i < MAX_SEQS; i++) {
        request_cancel(&c[i].rq);
        take(&c[i], NEW + 1);
    }
    ck_assert(sched_drain(sc, 60000000));
    sched_destroy(sc);
    for (int i = 0; i < MAX_SEQS; i++) {
        if (c[i].rq.grammar) grammar_run_release(c[i].rq.grammar);
        request_clear(&c[i].rq);
        request_signal_clear(&c[i].sg);
    }
    grammar_release(form);
    grammar_maker_destroy(maker);
    tokenizer_destroy(tok);
    drop_adapters();
    model_destroy(m);
    be_close(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("steady_steps");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_steady_step_allocates_nothing);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
