/* test_overlap.c -- steps enqueued while another runs, on the emulated run-time: the
 * same answers, bit for bit.
 *
 * The cast of served.h, first with each step waited for, then with the next one enqueued before.
 * With nobody whose rules hang on the text, most steps are; with all of the cast, those that may.
 */
#include "engine/backend_ops.h"
#include "tests/emu/cuda_rt/served.h"
#include "tests/run_suite.h"

static int32_t stop_at[CLIENTS]; /* 0: nowhere */

static client *make_one(int i, int n_vocab, bool all)
{
    client *c = client_make(i, n_vocab);
    sampling *r = &c->rq.rules;
    if (!all) {
        r->repetition_penalty = 1;
        r->presence_penalty = r->frequency_penalty = 0;
        c->rq.score_prompt = false;
        r->min_tokens = 0;
        r->n_stop_id = stop_at[i] > 0;
        r->stop_id = &stop_at[i];
    }
    return c;
}

static sched_stats serve(client *c[CLIENTS], bool all, bool overlap)
{
    served v;
    err e;
    sched_stats t;
    sched_config sc = served_config();
    sc.no_overlap = !overlap;
    served_start_as(&v, &backend_cuda, sc);
    for (int i = 0; i < CLIENTS; i++) {
        c[i] = make_one(i, model_get_config(v.m)->n_vocab, all);
        ck_assert_msg(sched_submit(v.sc, &c[i]->rq, &e) == ERR_NONE, "%s", e.msg);
    }
    for (int i = 0; i < CLIENTS; i++) {
        ck_assert_int_ne(client_collect(c[i]), FINISH_ERROR);
        ck_assert_int_eq((int)atomic_load(&c[i]->meter.output_tokens), c[i]->n_got);
    }
    do { /* what was held for a row that is discarded goes with its step */
        sched_stats_get(v.sc, &t);
    } while (t.n_running || t.n_waiting || t.n_pages_used);
    served_stop(&v);
    return t;
}

START_TEST(the_answers_are_the_same_with_steps_in_flight)
{
    client *want[CLIENTS], *got[CLIENTS];
    bool all = _i > 0;
    if (!all) { /* some end by a token that comes in the midst of their answers */
        (void)serve(want, all, false);
        for (int i = 0; i < CLIENTS; i++) {
            if (i % 3) stop_at[i] = want[i]->got[2].token;
            client_drop(want[i]);
        }
    }
    sched_stats off = serve(want, all, false), on = serve(got, all, true);
    int stopped = 0;
    for (int i = 0; i < CLIENTS; i++) {
        ck_assert_int_eq(got[i]->n_got, want[i]->n_got);
        ck_assert_int_eq(atomic_load(&got[i]->rq.finish), atomic_load(&want[i]->rq.finish));
        stopped +=
            atomic_load(&got[i]->rq.finish) == FINISH_STOP && got[i]->n_got < got[i]->rq.max_tokens;
        for (int k = 0; k < got[i]->n_got; k++) {
            const sampled *a = &got[i]->got[k], *b = &want[i]->got[k];
            size_t n = a->n_top > 0 ? (size_t)a->n_top : 0;
            ck_assert_int_eq(a->token, b->token);
            ck_assert_int_eq(a->n_top, b->n_top);
            if (a->n_top >= 0) ck_assert_mem_eq(&a->logprob, &b->logprob, sizeof(a->logprob));
            ck_assert_mem_eq(a->top_id, b->top_id, n * sizeof(a->top_id[0]));
            ck_assert_mem_eq(a->top_logprob, b->top_logprob, n * sizeof(a->top_logprob[0]));
        }
        client_drop(want[i]);
        client_drop(got[i]);
    }
    ck_assert_uint_eq(off.n_steps_ahead, 0);
    ck_assert_uint_eq(off.n_discarded, 0);
    ck_assert_uint_eq(on.n_output_tokens, off.n_output_tokens);
    ck_assert_uint_eq(on.n_prompt_tokens, off.n_prompt_tokens);
    if (!all) {
        ck_assert_int_gt(stopped, 0);
        ck_assert_uint_ge(2 * on.n_steps_ahead, on.n_steps);
        /* No more; fewer where the next step was not enqueued yet, or the stream sat it out. */
        ck_assert_uint_gt(on.n_discarded, 0);
        ck_assert_uint_le(on.n_discarded, (uint64_t)stopped);
    }
    printf("steps %llu, enqueued while another was in flight %llu, rows discarded %llu\n",
           (unsigned long long)on.n_steps, (unsigned long long)on.n_steps_ahead,
           (unsigned long long)on.n_discarded);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("overlap");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, the_answers_are_the_same_with_steps_in_flight, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
