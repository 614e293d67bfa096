/* test_sched_draft.c -- guesses of a draft model, over the fake model (sched_rig.h): they change no
 * answer, what did not come of them is forgotten, and they are made where they pay.
 *
 * Time passes as the test wants (--wrap in CMakeLists.txt): only where the models nap, so what is
 * measured is the same on any machine.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

int64_t __wrap_clock_now_us(void);

static atomic_llong passed, began; /* began with the real clock: who waits for a signal waits */

int64_t __wrap_clock_now_us(void)
{
    return atomic_load(&began) + atomic_load(&passed);
}

#define RIG_CLOCK(us) atomic_fetch_add(&passed, (us))

#include "tests/engine/sched/sched_rig.h"
#include "tests/run_suite.h"

enum { N = 28 };

static void at_random(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    atomic_store(&began, t.tv_sec * 1000000LL + t.tv_nsec / 1000);
    text_repeats = device_samples = device_is_lazy = false;
}

/* Bare and with adapters, greedy and not, with penalties, bars, scores and stop tokens. */
static client *some(int i)
{
    static const int32_t stop_at = STOP;
    client *c = make(i, 1 + (int)(mix(7, (uint64_t)i) % (PROMPT - 1)),
                     1 + (int)(mix(8, (uint64_t)i) % MAX_NEW));
    sampling *r = &c->rq.rules;
    c->rq.adapter_id = i % 3 ? 0 : (uint64_t)(i % (ADAPTERS + 1));
    c->rq.slo_class = i % 3;
    r->temperature = i % 4 ? 0 : 0.1F;
    r->repetition_penalty = i % 5 == 3 ? 1.1F : 1;
    r->frequency_penalty = i % 7 == 3 ? 0.5F : 0;
    r->seed = (uint64_t)i;
    r->n_top = i % 5 == 1 ? 4 : -1;
    r->stop_id = &stop_at;
    r->n_stop_id = i % 2;
    c->rq.score_prompt = i % 11 == 5;
    if (i % 6 == 2) bar(c, i % 4 == 0);
    return c;
}

static const setting settings[] = {
    {.max_rows = 64, .max_seqs = 40, .n_pages = 400, .speculate = 8, .draft = DRAFT_SAME},
    {.max_rows = 64, .max_seqs = 40, .n_pages = 400, .speculate = 16, .draft = DRAFT_OTHER},
    {.max_rows = 7, .max_seqs = 2, .n_pages = 40, .speculate = 16, .draft = DRAFT_SAME},
    {.max_rows = 17,
     .max_seqs = 9,
     .n_pages = 22,
     .cache = true,
     .swap = 9,
     .preemption = PREEMPT_SWAP,
     .speculate = 3,
     .draft = DRAFT_SAME},
    {.max_rows = 33,
     .max_seqs = 12,
     .n_pages = 40,
     .cache = true,
     .speculate = 8,
     .by_price = true,
     .draft = DRAFT_SAME},
};
enum { SETTINGS = sizeof(settings) / sizeof(settings[0]) };

START_TEST(proposals_change_no_answer)
{
    client *c[N];
    rig *r = start(&settings[_i]);
    r->m.step_us = 10000;
    r->draft.step_us = 500;
    for (int i = 0; i < N; i++) submit(r, c[i] = some(i));
    for (int i = 3; i < N; i += 9) request_cancel(&c[i]->rq);
    for (int i = 0; i < N; i++) {
        int why = collect(c[i]);
        check_tokens(c[i]);
        bool stopped =
            c[i]->rq.rules.n_stop_id && c[i]->n_got && c[i]->got[c[i]->n_got - 1] == STOP;
        if (why != FINISH_CANCELLED && !stopped) ck_assert_int_eq(c[i]->n_got, c[i]->rq.max_tokens);
        drop(c[i]);
    }
    sched_stats t = stop(r); /* when no page of the draft's is used any more */
    printf("%d of %d proposals were right; %d pre-empted\n", (int)t.guess.right_by[GUESS_DRAFT],
           (int)t.guess.made_by[GUESS_DRAFT], (int)t.n_preempted);
    ck_assert_uint_gt(t.guess.made_by[GUESS_DRAFT], 20);
    if (settings[_i].draft == DRAFT_SAME) ck_assert_uint_gt(t.guess.right_by[GUESS_DRAFT], 5);
    ck_assert_uint_gt(t.guess.made_by[GUESS_DRAFT], t.guess.right_by[GUESS_DRAFT]);
    ck_assert_uint_eq(t.guess.made, t.guess.made_by[GUESS_LOOKUP] + t.guess.made_by[GUESS_DRAFT]);
    ck_assert_uint_eq(t.guess.right,
                      t.guess.right_by[GUESS_LOOKUP] + t.guess.right_by[GUESS_DRAFT]);
    if (settings[_i].n_pages < 30) ck_assert_uint_gt(t.n_preempted, 0);
}
END_TEST

/* A prompt longer than one pass, then seven tokens and the one behind them in each step. */
START_TEST(the_same_model_is_always_right)
{
    rig *r = start(&(setting){
        .max_rows = 16, .max_seqs = 2, .n_pages = 60, .speculate = 7, .draft = DRAFT_SAME});
    client *c = make(1, 50, 24);
    submit(r, c);
    finish_well(c);
    drop(c);
    sched_stats t = stop(r);
    ck_assert_uint_eq(t.guess.right_by[GUESS_DRAFT], t.guess.made_by[GUESS_DRAFT]);
    /* 4 for the prompt, 3 while the draft model reads it; short texts also seem to repeat
     * themselves */
    ck_assert_uint_le(t.n_steps, 14);
    ck_assert_uint_eq(t.n_output_tokens, 24);
}
END_TEST

/* What the draws take from the likeliest token shows in some rows; those behind it are right again,
 * which they are not where the draft model still has what it had proposed. */
START_TEST(what_did_not_come_is_forgotten)
{
    rig *r = start(&(setting){
        .max_rows = 64, .max_seqs = 2, .n_pages = 60, .speculate = 3, .draft = DRAFT_SAME});
    uint64_t wrong = 0;
    for (int i = 0; i < 20; i++) {
        client *c = make(i, 20, MAX_NEW);
        c->rq.rules.temperature = 0.05F;
        c->rq.rules.seed = (uint64_t)i;
        submit(r, c);
        finish_well(c);
        drop(c);
    }
    sched_stats t = stop(r);
    wrong = t.guess.made_by[GUESS_DRAFT] - t.guess.right_by[GUESS_DRAFT];
    printf("%d of %d proposals were wrong\n", (int)wrong, (int)t.guess.made_by[GUESS_DRAFT]);
    ck_assert_uint_gt(wrong, 20);
    ck_assert_uint_gt(t.guess.right_by[GUESS_DRAFT], 8 * wrong / 10);
}
END_TEST

/* Whose text it cannot read gets no guesses: draft.c aborts where it is fed such a token. */
START_TEST(a_smaller_vocabulary_proposes_where_it_can_read)
{
    rig *r = start(&(setting){.max_rows = 64,
                              .max_seqs = 2,
                              .n_pages = 60,
                              .speculate = 3,
                              .draft = DRAFT_SAME,
                              .draft_vocab = VOCAB / 2});
    for (int i = 0; i < 20; i++) {
        client *c = make(i, 20, MAX_NEW);
        for (int k = 0; k < 20 && i % 4; k++) c->prompt[k] %= VOCAB / 2;
        submit(r, c);
        finish_well(c);
        drop(c);
    }
    sched_stats t = stop(r);
    ck_assert_uint_gt(t.guess.right_by[GUESS_DRAFT], 0);
    ck_assert_uint_lt(t.guess.made_by[GUESS_DRAFT], 20 * MAX_NEW / 2);
}
END_TEST

/* _i 1: it is the draft model's pass that fails, and the steps go on. */
START_TEST(a_device_that_fails_takes_the_draft_model_along)
{
    rig *r = start(&(setting){
        .max_rows = 64, .max_seqs = 4, .n_pages = 100, .speculate = 3, .draft = DRAFT_SAME});
    client *hit = make(1, 30, MAX_NEW), *next = make(2, 30, MAX_NEW);
    gate(r, true, 2);
    submit(r, hit);
    await_step(r, 3);
    (_i ? &r->draft : &r->m)->fail = 1;
    gate(r, false, 0);
    if (_i) {
        finish_well(hit);
    } else {
        ck_assert_int_eq(collect(hit), FINISH_ERROR);
        ck_assert_int_eq(hit->rq.why.code, ERR_RESTARTING);
    }
    submit(r, next);
    finish_well(next);
    drop(hit);
    drop(next);
    sched_stats t = stop(r);
    ck_assert_uint_eq(t.n_restarts, !_i);
    ck_assert_uint_gt(t.guess.right_by[GUESS_DRAFT], 10);
}
END_TEST

START_TEST(a_backend_that_samples_is_refused)
{
    device_samples = true;
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 2, .n_pages = 60, .speculate = 3});
    sched_config c = {.max_rows = 64,
                      .max_seqs = 2,
                      .max_queued = 1,
                      .max_context = 64,
                      .max_logits = 2 + SCHED_SCORE_ROWS,
                      .kv_bytes = 1 << 20,
                      .speculate = 3,
                      .draft = &r->draft,
                      .n_class = 1};
    sched *sc;
    err e;
    ck_assert_int_eq(sched_create(&sc, &c, &r->m, r->be, NULL, &e), ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(e.msg, "model.draft"));
    (void)stop(r);
}
END_TEST

/* ----------------------------------------------------------------------- the price -- */

typedef struct {
    double us; /* that all of it took */
    uint64_t guessed, right;
    double draft_us;
} bill;

/* So many answers, `streams` at once, on a device whose step takes 10 ms, and draft_us for the
 * draft model's. */
static bill serve(int draft, int streams, int draft_us, int answers)
{
    rig *r = start(&(setting){.max_rows = 64,
                              .max_seqs = streams,
                              .n_pages = 300,
                              .speculate = 8,
                              .by_price = true,
                              .draft = draft});
    r->m.step_us = 10000;
    r->m.row_us = 100;
    r->draft.step_us = draft_us;
    r->draft.row_us = 10;
    int64_t from = atomic_load(&passed);
    client *c[8];
    for (int i = 0; i < answers; i += streams) {
        gate(r, true, 0);
        for (int k = 0; k < streams; k++) { /* the first is in a step, then all others come */
            int next = r->m.begun + 1;      /* nobody runs: it stays as it is */
            submit(r, c[k] = make(i + k, 20, MAX_NEW));
            if (k == 0) await_step(r, next);
        }
        gate(r, false, 0);
        for (int k = 0; k < streams; k++) {
            finish_well(c[k]);
            drop(c[k]);
        }
    }
    int64_t took = atomic_load(&passed) - from;
    sched_stats t = stop(r);
    return (bill){(double)took, t.guess.made_by[GUESS_DRAFT], t.guess.right_by[GUESS_DRAFT],
                  (double)t.guess.draft_us};
}

/* How much faster answers are than `without`. */
static double gain(const bill *without, int draft, int streams, int draft_us, int answers)
{
    bill with = serve(draft, streams, draft_us, answers);
    printf("%d streams, a pass of %d us: %.3f times as fast; %d of %d right, %.1f %% of the time\n",
           streams, draft_us, without->us / with.us, (int)with.right, (int)with.guessed,
           100 * with.draft_us / with.us);
    ck_assert_uint_gt(with.guessed, 4); /* it was tried */
    return without->us / with.us;
}

START_TEST(what_pays_is_used)
{
    bill alone = serve(DRAFT_NONE, 1, 0, 16), crowd = serve(DRAFT_NONE, 8, 0, 40);
    ck_assert_double_ge(gain(&alone, DRAFT_SAME, 1, 500, 16), 2);
    ck_assert_double_ge(gain(&alone, DRAFT_SAME, 1, 3000, 16), 1.2);
    ck_assert_double_ge(gain(&crowd, DRAFT_SAME, 8, 500, 40), 1.5); /* two rows for each, no more */
}
END_TEST

/* _i 0: always wrong; 1: so, and for eight streams; 2: right, and too dear. */
START_TEST(what_does_not_pay_turns_itself_off)
{
    int streams = _i == 1 ? 8 : 1, answers = _i == 1 ? 128 : 40;
    bill without = serve(DRAFT_NONE, streams, 0, answers);
    double ratio =
        gain(&without, _i == 2 ? DRAFT_SAME : DRAFT_OTHER, streams, _i == 2 ? 20000 : 500, answers);
    ck_assert_double_ge(ratio, 0.98);
}
END_TEST

/* n answers, one after the other. */
static void answer(rig *r, int from, int n)
{
    for (int i = from; i < from + n; i++) {
        client *c = make(i, 20, MAX_NEW);
        submit(r, c);
        finish_well(c);
        drop(c);
    }
}

static const setting priced = {.max_rows = 64,
                               .max_seqs = 2,
                               .n_pages = 90,
                               .speculate = 8,
                               .by_price = true,
                               .draft = DRAFT_SAME};

START_TEST(what_was_bad_is_tried_again)
{
    rig *r = start(&priced);
    sched_stats bad, again;
    r->m.step_us = 10000;
    r->draft.step_us = 200;
    r->draft.salt = 1;
    answer(r, 0, 10);
    sched_stats_get(r->sc, &bad);
    answer(r, 10, 10);
    sched_stats_get(r->sc, &again); /* seldom: it is known to be bad */
    ck_assert_uint_lt(again.guess.made_by[GUESS_DRAFT] - bad.guess.made_by[GUESS_DRAFT], 120);
    r->draft.salt = 0;
    answer(r, 20, 20);
    sched_stats t = stop(r);
    ck_assert_uint_gt(t.guess.right_by[GUESS_DRAFT] - again.guess.right_by[GUESS_DRAFT], 100);
}
END_TEST

/* One for whom it is right, beside one for whom it is wrong, and whose tokens are due soon. */
START_TEST(nobody_waits_longer_than_his_target_for_guesses_of_others)
{
    rig *r = start(&priced);
    r->m.step_us = 10000;
    r->m.row_us = 100;
    r->draft.step_us = 3000;
    answer(r, 0, 8); /* what passes cost, and that they are right */
    client *right = make(50, 20, MAX_NEW), *wrong = make(51, 20, MAX_NEW);
    wrong->rq.adapter_id = 1;
    wrong->rq.tpot_target_us = 13000;
    gate(r, true, 0);
    int next = r->m.begun + 1;
    submit(r, wrong);
    await_step(r, next);
    submit(r, right);
    gate(r, false, 0);
    finish_well(wrong);
    finish_well(right);
    ck_assert_int_eq(wrong->rq.missed.why, MISS_NONE);
    drop(wrong);
    drop(right);
    (void)stop(r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sched_draft");
    TCase *tc = tcase_create("draft");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, at_random, NULL);
    tcase_add_loop_test(tc, proposals_change_no_answer, 0, SETTINGS);
    tcase_add_test(tc, the_same_model_is_always_right);
    tcase_add_test(tc, what_did_not_come_is_forgotten);
    tcase_add_test(tc, a_smaller_vocabulary_proposes_where_it_can_read);
    tcase_add_loop_test(tc, a_device_that_fails_takes_the_draft_model_along, 0, 2);
    tcase_add_test(tc, a_backend_that_samples_is_refused);
    tcase_add_test(tc, what_pays_is_used);
    tcase_add_loop_test(tc, what_does_not_pay_turns_itself_off, 0, 3);
    tcase_add_test(tc, what_was_bad_is_tried_again);
    tcase_add_test(tc, nobody_waits_longer_than_his_target_for_guesses_of_others);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
