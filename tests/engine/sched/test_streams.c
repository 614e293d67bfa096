/* test_streams.c -- attention sinks: texts of any length within a few pages.
 *
 * Log-probabilities are held to what tests/tools/make_stream_goldens.py computes as the paper says,
 * on texts beyond the model's positions.  Streams give the same bits alone, in a crowd that presses
 * them out of their pages, from the swap, with the prefix cache and with guesses.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/sched/sched.h"
#include "tests/run_suite.h"

enum { MAX_ROWS = 64, MAX_SEQS = 8, CONTEXT = 4096, TEXT = 600, SECOND = 1000000 };

typedef struct {
    int sinks, window, n_pages, rows, threads, swap, speculate;
    bool cache;
    const char *isa;
} setting;

typedef struct {
    backend *be;
    model *m;
    sched *sc;
} rig;

static err_code load(rig *r, const char *dir, const setting *st, err *e)
{
    backend_config bc = {.n_threads = st->threads ? st->threads : 1,
                         .isa = st->isa ? st->isa : "auto",
                         .max_rows = MAX_ROWS,
                         .max_seqs = MAX_SEQS,
                         .max_context = CONTEXT,
                         .fraction = 0.5};
    model_options mo = {.sinks = st->sinks, .window = st->window, .max_context = CONTEXT};
    char path[128];
    snprintf(path, sizeof(path), "fixtures/%s", dir);
    ck_assert_msg(be_open(&r->be, &backend_cpu, &bc, e) == ERR_NONE, "%s", e->msg);
    return model_load_with(&r->m, path, r->be, MAX_ROWS, MAX_SEQS + SCHED_SCORE_ROWS, &mo, e);
}

static void start(rig *r, const char *dir, const setting *st)
{
    err e;
    ck_assert_msg(load(r, dir, st, &e) == ERR_NONE, "%s", e.msg);
    attn_shape sh = model_attn_shape(r->m);
    size_t page = be_kv_page_bytes(r->be, &sh);
    sched_config sc = {.max_rows = st->rows ? st->rows : MAX_ROWS,
                       .max_seqs = MAX_SEQS,
                       .max_queued = 100,
                       .max_context = CONTEXT,
                       .max_logits = MAX_SEQS + SCHED_SCORE_ROWS,
                       .kv_bytes = (size_t)st->n_pages * page,
                       .prefix_cache = st->cache,
                       .speculate = st->speculate,
                       .speculate_always = true,
                       .swap_bytes = (size_t)st->swap * page,
                       .preemption = st->swap ? PREEMPT_SWAP : PREEMPT_RECOMPUTE,
                       .n_class = 1,
                       .classes = {{.name = "one"}}};
    ck_assert_msg(sched_create(&r->sc, &sc, r->m, r->be, NULL, &e) == ERR_NONE, "%s", e.msg);
}

static void stop(rig *r, sched_stats *stats)
{
    ck_assert(sched_drain(r->sc, 60 * (int64_t)SECOND));
    do {
        usleep(1000);
        sched_stats_get(r->sc, stats);
    } while (stats->n_running + stats->n_waiting > 0);
    ck_assert_int_eq(stats->n_pages_used, 0);
    sched_destroy(r->sc);
    model_destroy(r->m);
    be_close(r->be);
}

typedef struct {
    request rq;
    meter meter;
    request_signal sg;
    int32_t text[CONTEXT];
    int n_got, most_pages;
    bool done;
} client;

static client *ask(rig *r, const int32_t *text, int n, int n_new, bool score)
{
    client *c = calloc(1, sizeof(*c));
    err e;
    request_init(&c->rq);
    request_signal_init(&c->sg);
    memcpy(c->text, text, (size_t)n * sizeof(*text));
    c->rq.prompt = c->text;
    c->rq.n_prompt = n;
    c->rq.max_tokens = n_new;
    c->rq.score_prompt = score;
    c->rq.score_top = score ? 1 : 0;
    c->rq.isolation = 1;
    c->rq.meter = &c->meter;
    c->rq.signal = &c->sg;
    c->rq.rules.temperature = 0.8F;
    c->rq.rules.top_p = 0.9F;
    c->rq.rules.n_top = 1;
    c->rq.rules.seed = (uint64_t)text[0] * 31;
    ck_assert_int_eq(request_prepare(&c->rq, &e), ERR_NONE);
    ck_assert_msg(sched_submit(r->sc, &c->rq, &e) == ERR_NONE, "%s", e.msg);
    return c;
}

/* Until its end; what is held meanwhile is looked at with each token. */
static void collect(rig *r, client *c)
{
    uint64_t seen = 0;
    sched_stats stats;
    for (sampled t; !c->done;) {
        while (request_next(&c->rq, &t, &c->done)) {
            c->n_got++;
            sched_stats_get(r->sc, &stats);
            if (stats.n_pages_used > c->most_pages) c->most_pages = stats.n_pages_used;
        }
        if (!c->done) (void)request_signal_wait(&c->sg, &seen, 50);
    }
    ck_assert_int_eq(atomic_load(&c->rq.finish), FINISH_LENGTH);
    ck_assert_int_eq(c->n_got, c->rq.max_tokens);
}

static void drop(client *c)
{
    request_clear(&c->rq);
    request_signal_clear(&c->sg);
    free(c);
}

static void make_text(int32_t *text, int n, int which)
{
    uint64_t rng = (uint64_t)which + 7;
    for (int i = 0; i < n; i++) {
        rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
        /* of two streams the second goes on as the first began; some repeat themselves */
        text[i] = which % 4 == 3 ? 3 + i % 5 : 3 + (int32_t)((rng >> 33) % 150);
        if (which % 4 == 1 && i < 150) text[i] = 3 + (i * i) % 97;
    }
}

/* ---------------------------------------------------------------------- goldens -- */

static const struct {
    const char *name, *model, *isa;
} goldens[] = {
    {"llama", "models/llama-f32", "auto"},
    {"llama", "models/llama-f32", "portable"},
    {"qwen3", "models/qwen3-f32", "auto"},
    {"one", "models/llama-f32", "auto"},
};

START_TEST(answers_are_those_of_the_paper)
{
    char path[128];
    int32_t head[3], text[TEXT];
    float want[TEXT][2], worst = 0;
    snprintf(path, sizeof(path), "fixtures/streams/%s.bin", goldens[_i].name);
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fread(head, sizeof(head), 1, f), 1);
    int n = head[0];
    ck_assert(n <= TEXT && fread(text, sizeof(*text), (size_t)n, f) == (size_t)n);
    ck_assert_uint_eq(fread(want, sizeof(*want), (size_t)n - 1, f), (size_t)n - 1);
    (void)fclose(f);
    for (int turn = 0; turn < 2; turn++) { /* by few rows, and by many on several threads */
        rig r;
        sched_stats stats;
        setting st = {.sinks = head[1],
                      .window = head[2],
                      .n_pages = 12,
                      .rows = turn ? MAX_ROWS : 7 + MAX_SEQS,
                      .threads = turn ? 3 : 1,
                      .isa = goldens[_i].isa};
        start(&r, goldens[_i].model, &st);
        client *c = ask(&r, text, n, 1, true);
        collect(&r, c);
        for (int i = 1; i < n; i++) {
            const sampled *s = &c->rq.out.score[i];
            worst = fmaxf(worst, fabsf(s->logprob - want[i - 1][0]));
            worst = fmaxf(worst, fabsf(s->top_logprob[0] - want[i - 1][1]));
        }
        drop(c);
        stop(&r, &stats);
    }
    printf("%s: %.1e off at most\n", goldens[_i].name, (double)worst);
    ck_assert_msg(worst < 1e-4F, "%s: off by %g", goldens[_i].name, (double)worst);
}
END_TEST

/* --------------------------------------------------------------------- in pages -- */

static const char *const models[] = {"models/llama-bf16", "models/qwen3-f32",
                                     "families/models/smollm3"};

/* What was written one by one is what the same text gives read at once, beyond all that the model
 * was made for. */
START_TEST(a_stream_of_any_length_takes_a_few_pages)
{
    rig r;
    sched_stats stats;
    int32_t text[CONTEXT];
    setting st = {.sinks = 4, .window = 40, .n_pages = 9, .cache = true, .speculate = 4};
    start(&r, models[0], &st);
    int max = sched_max_context(r.sc), n = 10;
    ck_assert_int_eq(max, CONTEXT);
    make_text(text, n, 2);
    client *c = ask(&r, text, n, max - n, false);
    collect(&r, c);
    ck_assert_int_le(c->most_pages, 5); /* sinks, window, what is written, the one before */
    for (int i = 0; i < c->n_got; i++) text[n + i] = c->rq.out.ring[i].token;
    client *again = ask(&r, text, max - 1, 1, true);
    collect(&r, again);
    for (int i = n; i < max - 1; i++) {
        const sampled *s = &again->rq.out.score[i], *t = &c->rq.out.ring[i - n];
        ck_assert_msg(s->top_id[0] == t->top_id[0] && s->top_logprob[0] == t->top_logprob[0],
                      "differs at %d", i);
    }
    drop(again);
    drop(c);
    stop(&r, &stats);
}
END_TEST

enum { CROWD = 12, NEW = 70 };

static bool same_bits(const client *a, const client *b)
{
    bool same = a->n_got == b->n_got;
    for (int i = 0; same && i < a->n_got; i++) {
        const sampled *x = &a->rq.out.ring[i], *y = &b->rq.out.ring[i];
        same = x->token == y->token && x->logprob == y->logprob &&
               x->top_logprob[0] == y->top_logprob[0];
    }
    return same;
}

static void run_crowd(rig *r, client **c, bool together)
{
    int32_t text[TEXT];
    for (int i = 0; i < CROWD; i++) {
        int n = i % 3 == 0 ? 20 + i : 170 + 31 * i;
        make_text(text, n, i);
        c[i] = ask(r, text, n, NEW, false);
        if (!together) collect(r, c[i]);
    }
    for (int i = 0; i < CROWD && together; i++) collect(r, c[i]);
}

START_TEST(streams_are_the_same_in_any_company)
{
    static const setting settings[] = {
        {.n_pages = 200, .threads = 2, .cache = true, .speculate = 8},
        {.n_pages = 13, .threads = 2},
        {.n_pages = 17, .threads = 1, .rows = 40, .cache = true},
        {.n_pages = 15, .threads = 2, .swap = 100, .speculate = 8},
        {.n_pages = 14, .threads = 2, .swap = 9, .cache = true, .speculate = 3},
    };
    client *ref[CROWD], *c[CROWD];
    uint64_t preempted = 0, swapped = 0, cached = 0, right = 0;
    sched_stats stats;
    rig r;
    setting st = {.sinks = 36, .window = 50, .n_pages = 100};
    start(&r, models[_i], &st);
    run_crowd(&r, ref, false);
    stop(&r, &stats);
    for (int turn = 0; turn < 10 && !(preempted && swapped && cached && right); turn++) {
        for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++) {
            st = settings[s];
            st.sinks = 36;
            st.window = 50;
            start(&r, models[_i], &st);
            for (int k = 0; k < (st.cache ? 2 : 1); k++) { /* the second finds the first's pages */
                run_crowd(&r, c, true);
                for (int i = 0; i < CROWD; i++) {
                    ck_assert_msg(same_bits(c[i], ref[i]), "stream %d differs in setting %d", i,
                                  (int)s);
                    drop(c[i]);
                }
            }
            stop(&r, &stats);
            preempted += stats.n_preempted;
            swapped += stats.n_swapped_in;
            cached += stats.n_cached_tokens;
            right += stats.guess.right;
        }
    }
    printf("%s: %d gave way, %d came back from the swap, %d tokens cached, %d guesses right\n",
           models[_i], (int)preempted, (int)swapped, (int)cached, (int)right);
    ck_assert(preempted && swapped && cached && right);
    for (int i = 0; i < CROWD; i++) drop(ref[i]);
}
END_TEST

/* ---------------------------------------------------------------------- refusals -- */

static const struct {
    const char *model, *says;
    int sinks, window;
    err_code code;
} refusals[] = {
    {"families/models/deepseek-v2", "attention over latents", 4, 20, ERR_UNSUPPORTED},
    {"families/models/gemma3", "windows of its own", 4, 20, ERR_UNSUPPORTED},
    {"families/models/llama4", "chunks of its own", 4, 20, ERR_UNSUPPORTED},
    {"families/models/gpt-oss", "windows of its own", 4, 20, ERR_UNSUPPORTED},
    {"families/models/lfm2", "keep a state", 4, 20, ERR_UNSUPPORTED},
    {"families/models/phi3", "longrope", 4, 20, ERR_UNSUPPORTED},
    {"models/llama-f32", "512 positions", 4, 509, ERR_INPUT},
    {"models/llama-f32", "both", 4, 0, ERR_INPUT},
    {"models/llama-f32", "both", 0, 4, ERR_INPUT},
};

START_TEST(what_cannot_stream_is_refused_by_name)
{
    rig r;
    err e;
    setting st = {.sinks = refusals[_i].sinks, .window = refusals[_i].window};
    err_code rc = load(&r, refusals[_i].model, &st, &e);
    ck_assert_msg(rc == refusals[_i].code && strstr(e.msg, refusals[_i].says), "%d %s", rc, e.msg);
    be_close(r.be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("streams");
    TCase *tc = tcase_create("sinks");
    tcase_add_loop_test(tc, answers_are_those_of_the_paper, 0,
                        sizeof(goldens) / sizeof(goldens[0]));
    tcase_add_test(tc, a_stream_of_any_length_takes_a_few_pages);
    tcase_add_loop_test(tc, streams_are_the_same_in_any_company, 0,
                        sizeof(models) / sizeof(models[0]));
    tcase_add_loop_test(tc, what_cannot_stream_is_refused_by_name, 0,
                        sizeof(refusals) / sizeof(refusals[0]));
    suite_add_tcase(s, tc);
    return run_suite(s);
}
