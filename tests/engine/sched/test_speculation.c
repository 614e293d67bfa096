/* test_speculation.c -- guessed tokens change no answer: the scheduler over a fake model
 * (sched_rig.h) whose texts repeat themselves, so that some guesses are right and some are wrong.
 *
 * What each request must give is computed from its history alone, log-probabilities included.
 */
#include <stdio.h>

#include "engine/sched/sched_inside.h"
#include "tests/engine/sched/sched_rig.h"
#include "tests/run_suite.h"

enum { N = 30, FORMS = 8 };

static void repeating(void)
{
    text_repeats = true;
    device_samples = device_is_lazy = false;
}

static void on_device(void)
{
    text_repeats = device_samples = true;
    device_is_lazy = false;
}

static void run_ahead(void)
{
    text_repeats = device_samples = device_is_lazy = true;
}

/* A prompt like the answers: mostly what the model would say itself. */
static void speak(client *c)
{
    for (int k = 1; k < c->rq.n_prompt; k++) {
        float logits[VOCAB];
        if (k % 11 == 0) continue;
        logits_of_hash(mix((uint64_t)c->prompt[k - 1] + 1, c->rq.adapter_id), logits);
        c->prompt[k] = 0;
        for (int v = 1; v < VOCAB; v++) {
            if (logits[v] > logits[c->prompt[k]]) c->prompt[k] = v;
        }
    }
}

static void vary(client *c, int i)
{
    static const int32_t stop_at = STOP;
    sampling *r = &c->rq.rules;
    r->temperature = i % 4 > 1 ? 0 : i % 4 ? 0.2F : 0.1F; /* logits lie close together */
    r->top_p = i % 8 == 4 ? 0.9F : 1;
    r->frequency_penalty = i % 7 == 3 ? 0.5F : 0;
    r->repetition_penalty = i % 7 == 5 ? 1.2F : 1;
    r->n_top = i % 5 == 1 ? 4 : -1;
    r->min_tokens = i % 10 == 2 ? 6 : 0;
    r->stop_id = &stop_at;
    r->n_stop_id = i % 2;
    if (i % 3 == 1) speak(c);
}

/* As far as it had to go: max_tokens, or the first stop token. */
static void check_end(const client *c, int why)
{
    bool stops = false;
    for (int k = 0; k < c->n_got; k++) {
        ck_assert(!stops); /* nothing comes behind it */
        stops = c->rq.rules.n_stop_id && c->got[k] == STOP;
    }
    ck_assert_int_eq(why, stops ? FINISH_STOP : FINISH_LENGTH);
    if (!stops) ck_assert_int_eq(c->n_got, c->rq.max_tokens);
    ck_assert_int_eq((int)atomic_load(&c->meter.prompt_tokens), c->rq.n_prompt);
}

/* What was answered goes on: the pages of the answer are found in the cache, and are right. */
static client *go_on(const client *c)
{
    int n = c->rq.n_prompt + c->n_got;
    if (n > PROMPT || c->rq.score_prompt) return NULL;
    client *more = make(0, n, MAX_NEW);
    memcpy(more->prompt, c->prompt, sizeof(more->prompt));
    memcpy(more->prompt + c->rq.n_prompt, c->got, (size_t)c->n_got * sizeof(*c->got));
    more->rq.tenant_id = c->rq.tenant_id;
    more->rq.isolation = c->rq.isolation;
    more->rq.adapter_id = c->rq.adapter_id;
    return more;
}

static const setting settings[] = {
    {.max_rows = 64, .max_seqs = 40, .n_pages = 400, .speculate = 8},
    {.max_rows = 64, .max_seqs = 40, .n_pages = 400, .cache = true, .busy = 40, .speculate = 16},
    {.max_rows = 33, .max_seqs = 32, .n_pages = 40, .cache = true, .busy = 5, .speculate = 3},
    {.max_rows = 17, .max_seqs = 9, .n_pages = 22, .cache = true, .speculate = 8},
    {.max_rows = 7, .max_seqs = 1, .n_pages = 30, .speculate = 16},
    {.max_rows = 33,
     .max_seqs = 12,
     .n_pages = 40,
     .swap = 800,
     .preemption = PREEMPT_SWAP,
     .speculate = 8},
    {.max_rows = 17,
     .max_seqs = 9,
     .n_pages = 22,
     .cache = true,
     .swap = 9,
     .preemption = PREEMPT_SWAP,
     .speculate = 2},
};
enum { SETTINGS = sizeof(settings) / sizeof(settings[0]) };

START_TEST(guesses_change_no_answer)
{
    client *c[N], *more[N];
    rig *r = start(&settings[_i]);
    send_crowd(r, c, N, PROMPT - 24, vary);
    for (int i = 0; i < N; i++) {
        int why = collect(c[i]);
        check_tokens(c[i]);
        if (why != FINISH_CANCELLED) check_end(c[i], why);
        more[i] = go_on(c[i]);
        if (more[i]) submit(r, more[i]);
    }
    for (int i = 0; i < N; i++) {
        if (more[i]) {
            finish_well(more[i]);
            drop(more[i]);
        }
        drop(c[i]);
    }
    sched_stats t = stop(r);
    printf("%d of %d guesses were right; %d pre-empted, %d swapped, %d tokens in %d steps\n",
           (int)t.guess.right, (int)t.guess.made, (int)t.n_preempted, (int)t.n_swapped_in,
           (int)t.n_output_tokens, (int)t.n_steps);
    ck_assert_uint_gt(t.guess.right, 20);
    ck_assert_uint_gt(t.guess.made, t.guess.right + 20);
    if (settings[_i].n_pages < 30 && settings[_i].max_seqs > 1) ck_assert_uint_gt(t.n_preempted, 0);
    ck_assert_int_eq(t.swap.n_used, 0);
}
END_TEST

/* One stream that repeats itself: its tokens come several at a time, and no more than it may. */
START_TEST(a_text_that_repeats_takes_few_steps)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .speculate = 8});
    client *c = make(1, 40, MAX_NEW);
    for (int k = 0; k < 40; k++) c->prompt[k] = k % 5;
    int32_t one = 3;
    c->rq.rules.bias = &(logit_bias){one, 100}; /* one token for ever */
    c->rq.rules.n_bias = 1;
    submit(r, c);
    ck_assert_int_eq(collect(c), FINISH_LENGTH);
    ck_assert_int_eq(c->n_got, MAX_NEW);
    for (int k = 0; k < MAX_NEW; k++) ck_assert_int_eq(c->got[k], one);
    drop(c);
    sched_stats t = stop(r);
    ck_assert_uint_le(t.n_steps, 1 + 2 + MAX_NEW / 9 + 2);
    ck_assert_uint_eq(t.n_steps + t.guess.right, MAX_NEW); /* none for what may not come */
    ck_assert_uint_eq(t.n_output_tokens, MAX_NEW);
}
END_TEST

/* Forms whose masks come late, behind right and wrong guesses alike. */
START_TEST(a_mask_that_comes_late_is_waited_for)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 16, .n_pages = 200, .speculate = 8});
    struct grammar_run form[FORMS];
    client *c[FORMS];
    for (int i = 0; i < FORMS; i++) {
        form[i] = (struct grammar_run){.ready = true, .at_hand = i % 3};
        memset(form[i].mask, 0xFF, sizeof(form[i].mask));
        c[i] = make(i, 30, MAX_NEW);
        for (int k = 0; k < 30; k++) c[i]->prompt[k] = (k + i) % 6;
        c[i]->rq.grammar = &form[i];
        submit(r, c[i]);
    }
    for (int left = FORMS; left > 0;) {
        left = 0;
        for (int i = 0; i < FORMS; i++) {
            if (atomic_exchange(&form[i].asked, 0)) atomic_store(&form[i].ready, true);
            left += atomic_load(&c[i]->rq.finish) == FINISH_NONE;
        }
        sched_yield();
    }
    for (int i = 0; i < FORMS; i++) {
        finish_well(c[i]);
        ck_assert_int_eq(form[i].taken, MAX_NEW); /* and nothing that did not come */
        drop(c[i]);
    }
    sched_stats t = stop(r);
    if (!device_samples) ck_assert_uint_gt(t.guess.right, 0);
    if (!device_samples) ck_assert_uint_gt(t.guess.made, t.guess.right);
}
END_TEST

/* A device that runs ahead does so where nothing is to be guessed. */
START_TEST(steps_fly_where_nothing_is_like_the_text)
{
    text_repeats = false;
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .speculate = 8});
    client *c = make(1, 9, 12);
    for (int k = 0; k < 9; k++) c->prompt[k] = 50 + k; /* no pair comes again soon */
    submit(r, c);
    finish_well(c);
    drop(c);
    ck_assert_int_ge(r->m.n_ahead, 6);
    (void)stop(r);
}
END_TEST

START_TEST(numbers_that_are_none_fail_their_request_behind_the_good_tokens)
{
    rig *r = start(&(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .speculate = 8});
    client *c = make(1, 40, MAX_NEW), *other = make(2, 10, MAX_NEW);
    for (int k = 0; k < 40; k++) c->prompt[k] = k % 4 == 3 ? 20 + k : 5; /* 5 5 5 x 5 5 5 y */
    c->rq.rules.bias = (logit_bias[]){{5, 10}, {POISON, 105}};
    c->rq.rules.n_bias = 2;
    c->rq.rules.frequency_penalty = 1; /* after some fives, the poison */
    submit(r, c);
    submit(r, other);
    ck_assert_int_eq(collect(c), FINISH_ERROR);
    ck_assert_int_eq(c->rq.why.code, ERR_INTERNAL);
    ck_assert_int_gt(c->n_got, 0);
    ck_assert_int_eq(c->got[c->n_got - 1], POISON);
    check_tokens(c);
    finish_well(other);
    drop(c);
    drop(other);
    (void)stop(r);
}
END_TEST

/* A client goes, or the device fails, while a step with guesses is at the gate. */
START_TEST(an_end_beside_guesses_leaks_nothing)
{
    rig *r = start(
        &(setting){.max_rows = 64, .max_seqs = 4, .n_pages = 100, .cache = true, .speculate = 2});
    client *gone = make(1, 40, MAX_NEW), *other = make(2, 40, MAX_NEW);
    for (int k = 0; k < 40; k++) gone->prompt[k] = other->prompt[k] = k % 5;
    gone->rq.adapter_id = 2;
    gone->rq.rules.bias = other->rq.rules.bias = &(logit_bias){4, 100};
    gone->rq.rules.n_bias = other->rq.rules.n_bias = 1;
    gate(r, true, 0);
    submit(r, gone);
    submit(r, other);
    gate(r, true, 4);
    await_step(r, 5);
    request_cancel(&gone->rq);
    if (_i == 1) r->m.fail = 1;
    gate(r, false, 0);
    int why = collect(gone), other_why = collect(other);
    ck_assert_int_eq(why, _i ? FINISH_ERROR : FINISH_CANCELLED);
    ck_assert_int_eq(other_why, _i ? FINISH_ERROR : FINISH_LENGTH);
    for (int k = 0; k < gone->n_got; k++) ck_assert_int_eq(gone->got[k], 4);
    for (int k = 0; k < other->n_got; k++) ck_assert_int_eq(other->got[k], 4);
    sched_stats t = stop(r); /* when no page is used any more; adapters were given back */
    ck_assert_uint_gt(t.guess.made, 0);
    drop(gone);
    drop(other);
}
END_TEST

/* ----------------------------------------------------------------------- the price -- */

/* A machine whose step takes 10 ms and row_us for each row. */
static cost_model machine(double row_us)
{
    cost_model c;
    cost_init(&c);
    for (int i = 0; i < 400; i++) {
        cost_work w = {.decode = 1 + i % 24};
        w.attended = w.decode * 100;
        cost_observe(&c, &w, 10000 + row_us * w.decode);
    }
    return c;
}

static int worth_with(const cost_model *c, double rows, double chance, double bound_us,
                      double state_us)
{
    spec_guess g = {.n = SPEC_MAX};
    for (int i = 0; i < SPEC_MAX; i++) g.chance[i] = chance;
    cost_work load = {.decode = rows, .attended = rows * 100};
    double tokens = rows;
    int n = sched_guess_worth(c, &load, &tokens, &g, SPEC_MAX, 100, bound_us, state_us);
    ck_assert_double_eq(load.decode, rows + n);
    ck_assert((tokens > rows) == (n > 0));
    return n;
}

static int worth(const cost_model *c, double rows, double chance, double bound_us)
{
    return worth_with(c, rows, chance, bound_us, -1);
}

START_TEST(rows_are_spent_where_they_pay)
{
    cost_model cheap = machine(100), dear = machine(9000);
    ck_assert_int_eq(worth(&cheap, 1, 0.95, INFINITY), SPEC_MAX);
    ck_assert_int_le(worth(&cheap, 1, 0.5, INFINITY), 3); /* an eighth is little */
    ck_assert_int_ge(worth(&cheap, 1, 0.5, INFINITY), 1);
    ck_assert_int_eq(worth(&cheap, 1, 0.05, INFINITY), 0);
    ck_assert_int_eq(worth(&dear, 8, 0.95, INFINITY), 0);
    ck_assert_int_eq(worth(&dear, 64, 1, INFINITY), 0); /* even what is sure gains nothing */
    ck_assert_int_gt(worth(&dear, 1, 0.95, INFINITY), 0);
    ck_assert_int_eq(worth(&cheap, 1, 0.95, 10000), 0); /* somebody's token is due before */
    int some = worth(&cheap, 1, 0.95, 10700);
    ck_assert_int_ge(some, 3);
    ck_assert_int_le(some, 7);
    /* A state is copied first, and rows are computed again behind a wrong guess. */
    ck_assert_int_eq(worth_with(&cheap, 1, 0.95, INFINITY, 100), SPEC_MAX);
    ck_assert_int_eq(worth_with(&cheap, 1, 0.95, INFINITY, 20000), 0);
    cost_model middling = machine(2000);
    ck_assert_int_lt(worth_with(&middling, 1, 0.6, INFINITY, 0),
                     worth(&middling, 1, 0.6, INFINITY));
    cost_model unknown;
    cost_init(&unknown);
    ck_assert_int_eq(worth(&unknown, 1, 1, INFINITY), 0);
}
END_TEST

int main(void)
{
    static void (*const way[])(void) = {repeating, on_device, run_ahead};
    static const char *const name[] = {"host", "device", "ahead"};
    Suite *s = suite_create("speculation");
    for (int i = 0; i < 3; i++) {
        TCase *tc = tcase_create(name[i]);
        tcase_set_timeout(tc, 120);
        tcase_add_checked_fixture(tc, way[i], NULL);
        /* a device that runs ahead meets all that one does which does not */
        tcase_add_loop_test(tc, guesses_change_no_answer, i == 1 ? SETTINGS - 2 : 0, SETTINGS);
        if (i == 0) tcase_add_test(tc, rows_are_spent_where_they_pay);
        tcase_add_test(tc, a_text_that_repeats_takes_few_steps);
        tcase_add_test(tc, a_mask_that_comes_late_is_waited_for);
        tcase_add_test(tc, numbers_that_are_none_fail_their_request_behind_the_good_tokens);
        tcase_add_loop_test(tc, an_end_beside_guesses_leaks_nothing, 0, 2);
        if (i == 2) tcase_add_test(tc, steps_fly_where_nothing_is_like_the_text);
        suite_add_tcase(s, tc);
    }
    return run_suite(s);
}
