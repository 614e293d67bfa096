/* test_beams.c -- beam searches under the scheduler, against the same search over requests of one
 * token, and in random schedules beside streams that sample.
 *
 * The oracle shares no page and no batch: for each beam and each token it asks for one token of the
 * whole text so far.  A search must find the same answers to the bit, in any schedule.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/sched/sched.h"
#include "tests/run_suite.h"

enum { SECOND = 1000000, CONTEXT = 128, MAX_ROWS = 64, MAX_SEQS = 10, STOP = 7 };
enum { SEARCHES = 6, STREAMS = 6, SCHEDULES = 30 };

static uint64_t rng;

static int draw(int n)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((rng >> 33) % (uint64_t)n);
}

typedef struct {
    int seats, rows, n_pages, threads;
} setting;

typedef struct {
    backend *be;
    model *m;
    sched *sc;
} rig;

static const char *const models[] = {"qwen3-moe", "gemma2", "smollm3"};
static const int32_t stop_ids[] = {STOP, 11};

static void start(rig *r, const char *name, const setting *st)
{
    err e;
    char path[128];
    backend_config bc = {.n_threads = st->threads, .isa = "auto"};
    snprintf(path, sizeof(path), "fixtures/families/models/%s", name);
    ck_assert_msg(be_open(&r->be, &backend_cpu, &bc, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_msg(model_load(&r->m, path, r->be, MAX_ROWS, MAX_SEQS + SCHED_SCORE_ROWS, &e) == 0,
                  "%s", e.msg);
    attn_shape sh = model_attn_shape(r->m);
    size_t page = be_kv_page_bytes(r->be, &sh);
    sched_config sc = {.max_rows = st->rows,
                       .max_seqs = st->seats,
                       .max_queued = 100,
                       .max_context = CONTEXT,
                       .max_logits = MAX_SEQS + SCHED_SCORE_ROWS,
                       .kv_bytes = (size_t)st->n_pages * page,
                       .prefix_cache = true,
                       .speculate = 4,
                       .speculate_always = true,
                       .swap_bytes = 4 * page,
                       .preemption = PREEMPT_SWAP,
                       .n_class = 1,
                       .classes = {{.name = "one"}}};
    ck_assert_msg(sched_create(&r->sc, &sc, r->m, r->be, NULL, &e) == ERR_NONE, "%s", e.msg);
}

static void stop(rig *r, sched_stats *stats)
{
    ck_assert(sched_drain(r->sc, 60 * (int64_t)SECOND));
    do {
        usleep(500);
        sched_stats_get(r->sc, stats);
    } while (stats->n_running + stats->n_waiting > 0);
    ck_assert_int_eq(stats->n_pages_used, 0);
    sched_destroy(r->sc);
    model_destroy(r->m);
    be_close(r->be);
}

typedef struct {
    request rq;
    request_beams beams;
    meter meter;
    request_signal sg;
    int32_t text[CONTEXT];
    bool done, cancelled;
} client;

static client *prepare(int which, int max_tokens)
{
    client *c = calloc(1, sizeof(*c));
    request_init(&c->rq);
    request_signal_init(&c->sg);
    int n = 5 + which * 13 % 70;
    for (int i = 0; i < n; i++) c->text[i] = 3 + (which % 3 * 17 + i * (1 + which / 3)) % 140;
    c->rq.prompt = c->text;
    c->rq.n_prompt = n;
    c->rq.max_tokens = max_tokens;
    c->rq.isolation = 1;
    c->rq.meter = &c->meter;
    c->rq.signal = &c->sg;
    c->rq.rules.stop_id = stop_ids;
    c->rq.rules.n_stop_id = 2;
    return c;
}

static void submit(rig *r, client *c)
{
    err e;
    ck_assert_int_eq(request_prepare(&c->rq, &e), ERR_NONE);
    ck_assert_msg(sched_submit(r->sc, &c->rq, &e) == ERR_NONE, "%s", e.msg);
}

static void collect(client *c)
{
    uint64_t seen = 0;
    for (sampled t; !c->done;) {
        while (request_next(&c->rq, &t, &c->done)) continue;
        if (!c->done) (void)request_signal_wait(&c->sg, &seen, 50);
    }
    int finish = atomic_load(&c->rq.finish);
    ck_assert_msg(finish == FINISH_LENGTH || finish == FINISH_STOP || c->cancelled, "finish %d: %s",
                  finish, c->rq.why.msg);
}

static void drop(client *c)
{
    beam_destroy(c->beams.search);
    request_clear(&c->rq);
    request_signal_clear(&c->sg);
    free(c);
}

static beam_rules rules_of(int which)
{
    static const float penalty[] = {1, 0, 2};
    return (beam_rules){.width = 1 + which % 5,
                        .max_tokens = 20 + which,
                        .length_penalty = penalty[which % 3],
                        .ending = (beam_ending)(which % 3),
                        .n_top = 2};
}

static client *search(rig *r, int which)
{
    beam_rules rules = rules_of(which);
    client *c = prepare(which, rules.max_tokens);
    c->rq.rules.temperature = 0;
    c->rq.rules.n_top = beam_tops(rules.width, 2);
    c->rq.rules.repetition_penalty = which == 2 ? 1.3F : 1;
    c->beams.search = beam_create(&rules);
    c->rq.beams = &c->beams;
    submit(r, c);
    return c;
}

static client *stream(rig *r, int which)
{
    client *c = prepare(which + 3, 24);
    c->rq.rules.temperature = 0.8F;
    c->rq.rules.seed = (uint64_t)which;
    submit(r, c);
    return c;
}

/* The same search, one request for each row. */
static beam_search *oracle(rig *r, int which)
{
    beam_rules rules = rules_of(which);
    beam_search *b = beam_create(&rules);
    for (bool over = false; !over; over = beam_over(b)) {
        sampled tops[BEAMS_MAX];
        const sampled *row[BEAMS_MAX];
        int parent[BEAMS_MAX], n = beam_length(b);
        for (int i = 0; i < beam_live(b); i++) {
            client *c = prepare(which, 1);
            int prompt = c->rq.n_prompt;
            memcpy(c->text + prompt, beam_text(b, i), (size_t)n * sizeof(*c->text));
            c->rq.n_prompt += n;
            c->rq.rules.temperature = 0;
            c->rq.rules.n_top = beam_tops(rules.width, 2);
            c->rq.rules.repetition_penalty = which == 2 ? 1.3F : 1;
            submit(r, c);
            collect(c);
            tops[i] = c->rq.out.ring[0];
            row[i] = &tops[i];
            drop(c);
        }
        beam_step(b, row, stop_ids, 2, parent);
    }
    return b;
}

static bool same_bits(const beam_search *a, const beam_search *b)
{
    bool same = beam_answers(a) == beam_answers(b);
    for (int k = 0; same && k < beam_answers(a); k++) {
        sampled x[CONTEXT], y[CONTEXT];
        int trail[CONTEXT], n = beam_answer_length(a, k);
        same = n == beam_answer_length(b, k) && beam_answer_cut(a, k) == beam_answer_cut(b, k);
        if (!same) return false;
        beam_answer(a, k, x, trail);
        beam_answer(b, k, y, trail);
        for (int i = 0; same && i < n; i++)
            same = x[i].token == y[i].token && x[i].logprob == y[i].logprob &&
                   x[i].n_top == y[i].n_top && x[i].top_logprob[1] == y[i].top_logprob[1];
    }
    return same;
}

static void draw_setting(setting *st)
{
    st->seats = 5 + draw(MAX_SEQS - 4);
    st->rows = st->seats + draw(MAX_ROWS - st->seats + 1);
    st->n_pages = 11 + draw(8); /* five beams of the longest take 11 */
    st->threads = 1 + draw(2);
}

START_TEST(answers_are_the_oracles_in_any_schedule)
{
    const char *name = models[_i];
    beam_search *ref[SEARCHES];
    client *c[SEARCHES], *beside[STREAMS];
    sched_stats stats;
    uint64_t preempted = 0;
    int stopped = 0;
    rig r;
    setting st = {.seats = MAX_SEQS, .rows = MAX_ROWS, .n_pages = 64, .threads = 1};
    start(&r, name, &st);
    for (int i = 0; i < SEARCHES; i++) ref[i] = oracle(&r, i);
    stop(&r, &stats);
    rng = 1;
    for (int turn = 0; turn < SCHEDULES; turn++) {
        draw_setting(&st);
        start(&r, name, &st);
        for (int i = 0; i < SEARCHES; i++) {
            c[i] = search(&r, i);
            beside[i] = stream(&r, i);
            c[i]->cancelled = draw(5) == 0;
            if (draw(3) == 0) usleep((unsigned)draw(3000));
            if (c[i]->cancelled) request_cancel(&c[i]->rq);
        }
        for (int i = 0; i < SEARCHES; i++) {
            collect(c[i]);
            collect(beside[i]);
            bool cut = atomic_load(&c[i]->rq.finish) == FINISH_CANCELLED;
            ck_assert_msg(cut || same_bits(c[i]->beams.search, ref[i]),
                          "%s: search %d differs in schedule %d", name, i, turn);
            stopped += atomic_load(&c[i]->rq.finish) == FINISH_STOP;
            drop(c[i]);
            drop(beside[i]);
        }
        stop(&r, &stats);
        preempted += stats.n_preempted;
    }
    printf("%s: %d gave way, %d ended by a stop token\n", name, (int)preempted, stopped);
    ck_assert(preempted > 0);
    for (int i = 0; i < SEARCHES; i++) beam_destroy(ref[i]);
}
END_TEST

START_TEST(what_cannot_run_is_refused)
{
    setting st = {.seats = 3, .rows = MAX_ROWS, .n_pages = 8, .threads = 1};
    sched_stats stats;
    rig r;
    err e;
    start(&r, models[0], &st);
    for (int which = 3; which < 5; which++) { /* four and five beams */
        beam_rules rules = rules_of(which);
        client *c = prepare(which, rules.max_tokens);
        c->rq.rules.temperature = 0;
        c->rq.rules.n_top = beam_tops(rules.width, 2);
        c->beams.search = beam_create(&rules);
        c->rq.beams = &c->beams;
        ck_assert_int_eq(request_prepare(&c->rq, &e), ERR_NONE);
        ck_assert_int_eq(sched_submit(r.sc, &c->rq, &e), ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(e.msg, "beams are more than the 3 sequences"));
        drop(c);
    }
    stop(&r, &stats);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("beams");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, answers_are_the_oracles_in_any_schedule, 0,
                        (int)(sizeof(models) / sizeof(models[0])));
    tcase_add_test(tc, what_cannot_run_is_refused);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
