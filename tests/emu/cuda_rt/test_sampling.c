/* test_sampling.c -- be_sample() of the CUDA backend on the emulated device,
 * against engine/sample/sampler.c.
 *
 * The same logits, downloaded and sampled on the host; the same requests served by the engine with
 * host and device sampling; and what a step copies back.
 */
#include "engine/backend_ops.h"
#include "tests/emu/cuda_rt/served.h"
#include "tests/run_suite.h"

enum { N = 24, WORDS = 10, LONG = 120 };

static uint64_t state;

static uint64_t draw(void)
{
    state = served_mix(state + 0x9E3779B97F4A7C15ULL, 77);
    return state;
}

static int below(int n)
{
    return (int)(draw() % (uint64_t)n);
}

static float real(float most)
{
    return most * (float)(draw() % 10000) / 10000.0F;
}

typedef struct {
    sampling rules;
    sample_row row;
    logit_bias bias[SAMPLE_BIAS_MAX];
    int32_t stop[3], prompt[LONG], output[LONG];
    uint32_t allowed[WORDS];
} one;

/* `heavy`: with all lists as long as they may be, so that rows don't fit into one block. */
static void make_one(one *o, int i, int logit, int n_vocab, bool heavy)
{
    sampling *r = &o->rules;
    *r = (sampling){.temperature = below(4) ? 0.2F + real(1.5F) : 0,
                    .top_p = below(2) ? 1 : 0.3F + real(0.7F),
                    .min_p = below(3) ? 0 : real(0.3F),
                    .top_k = below(2) ? 0 : 1 + below(40),
                    .repetition_penalty = below(2) && !heavy ? 1 : 0.7F + real(1),
                    .presence_penalty = below(2) ? 0 : real(2),
                    .frequency_penalty = below(2) ? 0 : real(2),
                    .seed = draw(),
                    .bias = o->bias,
                    .n_bias = heavy ? SAMPLE_BIAS_MAX : below(2) * below(20),
                    .stop_id = o->stop,
                    .n_stop_id = below(4),
                    .min_tokens = below(2 * LONG),
                    .n_top = below(SAMPLE_TOP_MAX + 2) - 1};
    for (int k = 0; k < r->n_bias; k++) o->bias[k] = (logit_bias){below(n_vocab), real(2) - 1};
    for (int k = 0; k < 3; k++) o->stop[k] = below(n_vocab);
    for (int k = 0; k < LONG; k++) {
        o->prompt[k] = below(n_vocab);
        o->output[k] = below(k % 2 ? 9 : n_vocab);
    }
    for (int k = 0; k < WORDS; k++) o->allowed[k] = (uint32_t)draw() & (uint32_t)draw();
    o->allowed[0] |= 1U << 9;
    if (i % 10 == 7) { /* stops alone, and what this row's vocabulary does not have */
        r->n_stop_id = 3;
        r->min_tokens = 2 * LONG;
        memset(o->allowed, 0, sizeof(o->allowed) - sizeof(*o->allowed));
        o->allowed[WORDS - 1] = ~0U << n_vocab % 32;
        for (int k = 0; k < 3; k++) o->allowed[o->stop[k] / 32] |= 1U << o->stop[k] % 32;
    }
    int n_output = below(LONG);
    o->row = (sample_row){.logit = logit,
                          .n_vocab = n_vocab,
                          .score = i % 7 == 3 ? below(n_vocab) : -1,
                          .rules = r,
                          .n_top = below(SAMPLE_TOP_MAX + 1),
                          .prompt = o->prompt,
                          .n_prompt = LONG - n_output,
                          .output = o->output,
                          .n_output = n_output,
                          .allowed = i % 5 == 2 ? o->allowed : NULL};
    if (o->row.score >= 0) o->row.allowed = NULL;
}

static void on_host(const one *o, float *logits, sampler *sp, sampled *out)
{
    const sample_row *r = &o->row;
    sampler_set_vocab(sp, r->n_vocab);
    if (r->score >= 0)
        sampler_score(sp, logits, r->score, r->n_top, out);
    else
        sampler_pick(sp, logits, r->rules, r->allowed, r->prompt, r->n_prompt, r->output,
                     r->n_output, out);
}

/* The base's vocabulary, that of an adapter with fewer tokens, and one with more. */
static int vocab_of(int i, int n_base)
{
    static const int more[] = {0, -10, 18};
    return n_base + more[i % 3];
}

/* The same logits, both ways.  One in four is of rows that need several rounds. */
START_TEST(the_device_picks_what_the_host_picks)
{
    served v;
    err e;
    backend_config bc = served_backend();
    state = (uint64_t)_i + 1;
    emu_rt_device(2, (size_t)96 << 20); /* served_backend() takes the second */
    ck_assert_msg(be_open(&v.be, &backend_cuda, &bc, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(model_load(&v.m, "fixtures/models/llama-bf16", v.be, ROWS, ROWS, &e), 0);
    ck_assert_int_eq(model_allow_added(v.m, 70, 0, &e), 0);
    int n_vocab = model_get_config(v.m)->n_vocab, stride = model_logit_stride(v.m);
    ck_assert_int_eq((n_vocab + 31) / 32, WORDS);
    ck_assert_int_ge(stride, n_vocab + 70);
    attn_shape shape = model_attn_shape(v.m);
    kv_pool *kv;
    ck_assert_int_eq(be_kv_create(v.be, &kv, &shape, 8, &e), 0);

    int32_t token[N], pos[N], want[N], page[8] = {3, 1, 0, 2, 7, 6, 5, 4};
    for (int i = 0; i < N; i++) {
        token[i] = below(n_vocab);
        pos[i] = want[i] = i;
    }
    step_seq seq = {.n_rows = N, .page = page, .n_page = 8};
    step_seg seg = {.n_rows = N};
    step s = {.n_rows = N,
              .token = token,
              .pos = pos,
              .n_seq = 1,
              .seq = &seq,
              .n_seg = 1,
              .seg = &seg,
              .n_logit = N,
              .logit_row = want,
              .logit_stride = stride};
    const float *logits;
    ck_assert_msg(model_forward(v.m, kv, &s, &logits, &e) == ERR_NONE, "%s", e.msg);
    float *copy = malloc((size_t)N * (size_t)stride * sizeof(*copy));
    memcpy(copy, logits, (size_t)N * (size_t)stride * sizeof(*copy));

    one *all = calloc(N, sizeof(*all));
    sample_row rows[N];
    for (int i = 0; i < N; i++) {
        make_one(&all[i], i, N - 1 - i, vocab_of(i, n_vocab), _i % 4 == 3);
        rows[i] = all[i].row;
    }
    emu_rt_counts before, after;
    ck_assert_msg(model_enqueue(v.m, kv, &s, &e) == ERR_NONE, "%s", e.msg);
    emu_rt_count(&before);
    const sampled *got = model_sample(v.m, rows, N);
    for (int i = 0; i < N; i++) memset(&all[i].rules, 0, sizeof(all[i].rules)); /* was copied */
    emu_rt_count(&after);
    ck_assert_uint_le(after.syncs - before.syncs, after.launches - before.launches); /* of blocks */
    ck_assert_msg(be_sync(v.be, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_uint_eq(after.copies_to_host, before.copies_to_host + 1);
    ck_assert_uint_eq(after.bytes_to_host - before.bytes_to_host, N * sizeof(sampled));
    if (_i % 4 == 3)
        ck_assert_uint_gt(after.launches, before.launches + 1);
    else
        ck_assert_uint_eq(after.launches, before.launches + 1);

    state = (uint64_t)_i + 1;
    for (int i = 0; i < N; i++) (void)below(n_vocab);
    sampler *sp = sampler_create(stride);
    for (int i = 0; i < N; i++) {
        sampled right;
        char what[32];
        make_one(&all[i], i, N - 1 - i, vocab_of(i, n_vocab), _i % 4 == 3);
        on_host(&all[i], copy + (size_t)(N - 1 - i) * (size_t)stride, sp, &right);
        snprintf(what, sizeof(what), "row %d", i);
        same_sampled(&got[i], &right, what);
    }
    sampler_destroy(sp);
    free(all);
    free(copy);
    be_kv_destroy(v.be, kv);
    model_destroy(v.m);
    be_close(v.be);
}
END_TEST

/* Serves the whole cast; `at_once`: in one batch. */
static void serve(const backend_ops *ops, bool at_once, client **c, sched_stats *t,
                  emu_rt_counts *n)
{
    served v;
    err e;
    served_start(&v, ops);
    int n_vocab = model_get_config(v.m)->n_vocab;
    emu_rt_counts before;
    emu_rt_count(&before);
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = client_make(i, n_vocab);
        ck_assert_msg(sched_submit(v.sc, &c[i]->rq, &e) == ERR_NONE, "%s", e.msg);
        if (!at_once) (void)client_collect(c[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        finish_reason why = at_once ? client_collect(c[i]) : atomic_load(&c[i]->rq.finish);
        ck_assert_msg(why == FINISH_STOP || why == FINISH_LENGTH, "%s", c[i]->rq.why.msg);
    }
    emu_rt_count(n);
    n->copies_to_host -= before.copies_to_host;
    n->bytes_to_host -= before.bytes_to_host;
    do { /* the counts follow the last event */
        sched_stats_get(v.sc, t);
    } while (t->n_running || t->n_waiting);
    served_stop(&v);
}

static void same_answers(client **a, client **b)
{
    for (int i = 0; i < CLIENTS; i++) {
        char what[48];
        ck_assert_int_eq(a[i]->n_got, b[i]->n_got);
        for (int k = 0; k < a[i]->n_got; k++) {
            snprintf(what, sizeof(what), "client %d, token %d", i, k);
            same_sampled(&a[i]->got[k], &b[i]->got[k], what);
        }
        for (int k = 1; a[i]->rq.score_prompt && k < a[i]->rq.n_prompt; k++) {
            snprintf(what, sizeof(what), "client %d, prompt token %d", i, k);
            same_sampled(&a[i]->rq.out.score[k], &b[i]->rq.out.score[k], what);
        }
    }
}

START_TEST(served_answers_are_the_same_and_only_they_come_back)
{
    client *host[CLIENTS], *batch[CLIENTS], *alone[CLIENTS];
    sched_stats t;
    emu_rt_counts n;
    backend_ops by_host = backend_cuda;
    by_host.sample = NULL;
    serve(&by_host, true, host, &t, &n);
    ck_assert_uint_ge(n.bytes_to_host, t.n_steps * 300 * sizeof(float)); /* logits, all of them */
    serve(&backend_cuda, true, batch, &t, &n);
    same_answers(host, batch);
    /* One copy for each step, at most, of at most a struct for each row of logits. */
    ck_assert_uint_le(n.copies_to_host, t.n_steps);
    ck_assert_uint_gt(n.copies_to_host, 0);
    uint64_t rows = 0;
    for (int i = 0; i < CLIENTS; i++) {
        rows += (uint64_t)batch[i]->n_got;
        if (batch[i]->rq.score_prompt) rows += (uint64_t)batch[i]->rq.n_prompt - 1;
    }
    ck_assert_uint_eq(n.bytes_to_host, rows * sizeof(sampled));
    serve(&backend_cuda, false, alone, &t, &n);
    same_answers(batch, alone);
    for (int i = 0; i < CLIENTS; i++) {
        client_drop(host[i]);
        client_drop(batch[i]);
        client_drop(alone[i]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sampling");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, the_device_picks_what_the_host_picks, 0, 8);
    tcase_add_test(tc, served_answers_are_the_same_and_only_they_come_back);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
