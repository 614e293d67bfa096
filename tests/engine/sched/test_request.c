/* test_request.c -- handing tokens from the engine's thread to the owner's: nothing lost, nothing
 * touched after the end.  Under ThreadSanitizer and AddressSanitizer this is where it would
 * show. */
#include <stdlib.h>

#include <check.h>

#include "engine/base/clock.h"
#include "engine/sched/request.h"
#include "tests/run_suite.h"

enum { TOKENS = 500, CHOICES = 4 };

typedef struct {
    request **rq;
    int n, tokens;
} feed;

/* The engine's side: all choices in turn, and never a look back after the finish. */
static void *engine(void *arg)
{
    feed f = *(feed *)arg;
    for (int i = 0; i < f.tokens; i++) {
        for (int k = 0; k < f.n; k++) {
            sampled t = {.token = i * CHOICES + k, .logprob = (float)-i};
            request_push(f.rq[k], &t);
        }
    }
    for (int k = 0; k < f.n; k++) request_finish(f.rq[k], FINISH_LENGTH, NULL);
    return NULL;
}

static request *make(request_signal *sg, int max_tokens, int n_top)
{
    request *rq = malloc(sizeof(*rq));
    request_init(rq);
    rq->signal = sg;
    rq->max_tokens = max_tokens;
    rq->rules.n_top = n_top;
    ck_assert_int_eq(request_prepare(rq, NULL), ERR_NONE);
    return rq;
}

START_TEST(every_token_arrives_in_order_through_one_signal)
{
    for (int round = 0; round < 20; round++) {
        request_signal sg;
        request *rq[CHOICES];
        pthread_t thread;
        uint64_t seen = 0;
        int n_done = 0, got[CHOICES] = {0};
        request_signal_init(&sg);
        for (int k = 0; k < CHOICES; k++) rq[k] = make(&sg, TOKENS, k % 2 - 1);
        feed f = {rq, CHOICES, TOKENS};
        request *held[CHOICES];
        for (int k = 0; k < CHOICES; k++) held[k] = rq[k];
        ck_assert_int_eq(pthread_create(&thread, NULL, engine, &f), 0);
        while (n_done < CHOICES) {
            for (int k = 0; k < CHOICES; k++) {
                sampled t;
                bool done = false;
                while (held[k] && request_next(held[k], &t, &done)) {
                    ck_assert_int_eq(t.token, got[k] * CHOICES + k);
                    /* Where log-probabilities are not wanted they are not kept. */
                    ck_assert(k % 2 ? t.logprob == (float)-got[k] && t.n_top == 0
                                    : t.logprob == 0 && t.n_top == -1);
                    got[k]++;
                }
                if (!held[k] || !done) continue;
                ck_assert_int_eq(got[k], TOKENS);
                ck_assert_int_eq(atomic_load(&held[k]->finish), FINISH_LENGTH);
                held[k] = NULL;
                n_done++;
            }
            if (n_done < CHOICES) (void)request_signal_wait(&sg, &seen, 1000);
        }
        (void)pthread_join(thread, NULL);
        for (int k = 0; k < CHOICES; k++) {
            request_clear(rq[k]);
            free(rq[k]);
        }
        request_signal_clear(&sg);
    }
}
END_TEST

/* The owner frees request and signal in the moment it sees the end, while the engine may still
 * be on its way out of request_finish(). */
START_TEST(the_owner_may_free_everything_as_soon_as_it_sees_the_end)
{
    for (int round = 0; round < 400; round++) {
        request_signal *sg = malloc(sizeof(*sg));
        request_signal_init(sg);
        request *rq = make(sg, 3, -1);
        feed f = {&rq, 1, 3};
        pthread_t thread;
        bool done = false;
        uint64_t seen = 0;
        sampled t;
        request *mine = rq;
        ck_assert_int_eq(pthread_create(&thread, NULL, engine, &f), 0);
        while (!done) {
            while (request_next(mine, &t, &done)) continue;
            if (!done && round % 2) (void)request_signal_wait(sg, &seen, 1000);
        }
        request_clear(mine);
        free(mine);
        request_signal_clear(sg);
        free(sg);
        (void)pthread_join(thread, NULL);
    }
}
END_TEST

START_TEST(the_cause_of_a_failure_is_handed_over)
{
    request_signal sg;
    request_signal_init(&sg);
    request *rq = make(&sg, 1, -1);
    err e;
    sampled t;
    bool done;
    ck_assert(!request_next(rq, &t, &done));
    ck_assert(!done);
    (void)err_set(&e, ERR_DEVICE, "it broke");
    request_finish(rq, FINISH_ERROR, &e);
    ck_assert(!request_next(rq, &t, &done));
    ck_assert(done);
    ck_assert_int_eq(rq->why.code, ERR_DEVICE);
    ck_assert_str_eq(rq->why.msg, "it broke");
    request_clear(rq);
    request_clear(rq); /* always safe */
    free(rq);
    request_signal_clear(&sg);
}
END_TEST

START_TEST(waiting_ends_by_an_event_or_by_time)
{
    request_signal sg;
    uint64_t seen = 0;
    request_signal_init(&sg);
    int64_t start = clock_now_us();
    ck_assert(!request_signal_wait(&sg, &seen, 20));
    ck_assert_int_ge(clock_now_us() - start, 20000);
    request *rq = make(&sg, 2, -1);
    sampled t = {.token = 5};
    request_push(rq, &t);
    ck_assert(request_signal_wait(&sg, &seen, 0)); /* what happened before counts */
    ck_assert(!request_signal_wait(&sg, &seen, 0));
    request_cancel(rq);
    ck_assert(atomic_load(&rq->cancel));
    request_clear(rq);
    free(rq);
    request_signal_clear(&sg);
}
END_TEST

START_TEST(absurd_sizes_are_refused)
{
    request rq;
    err e;
    request_init(&rq);
    rq.max_tokens = -5;
    ck_assert_int_eq(request_prepare(&rq, &e), ERR_INPUT);
    rq.max_tokens = 4;
    rq.score_prompt = true;
    rq.n_prompt = -1;
    ck_assert_int_eq(request_prepare(&rq, &e), ERR_INPUT);
    request_clear(&rq);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("request");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, every_token_arrives_in_order_through_one_signal);
    tcase_add_test(tc, the_owner_may_free_everything_as_soon_as_it_sees_the_end);
    tcase_add_test(tc, the_cause_of_a_failure_is_handed_over);
    tcase_add_test(tc, waiting_ends_by_an_event_or_by_time);
    tcase_add_test(tc, absurd_sizes_are_refused);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
