/* served.h -- the engine thread over the CUDA backend on the emulated device: a model, a page pool,
 * clients with rules of every kind.
 */
#ifndef TESTS_EMU_CUDA_RT_SERVED_H
#define TESTS_EMU_CUDA_RT_SERVED_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/clock.h"
#include "engine/sched/sched.h"
#include "tests/emu/cuda_rt/emu_rt.h"

enum { ROWS = 64, SEQS = 6, MAX_NEW = 6, PROMPT_MAX = 40, CLIENTS = 10 };

typedef struct {
    backend *be;
    model *m;
    sched *sc;
} served;

static int served_devices = 1; /* that share the model */

static inline const backend_ops *served_ops(void)
{
    return served_devices > 1 ? &backend_cuda_tp : &backend_cuda;
}

typedef struct {
    request rq;
    meter meter;
    request_signal sg;
    int32_t prompt[PROMPT_MAX];
    logit_bias bias[4];
    int32_t stop[2];
    sampled got[MAX_NEW];
    int n_got;
} client;

static inline backend_config served_backend(void)
{
    /* The second device: threads begin with the first as theirs. */
    return (backend_config){.n_threads = 1,
                            .device = 1,
                            .n_device = served_devices,
                            .max_rows = ROWS,
                            .max_seqs = SEQS,
                            .max_context = 128,
                            .patience_us = 1000};
}

static inline sched_config served_config(void)
{
    return (sched_config){.max_rows = ROWS,
                          .max_seqs = SEQS,
                          .max_queued = 100,
                          .max_context = 128,
                          .max_logits = SEQS + SCHED_SCORE_ROWS,
                          .kv_bytes = (size_t)2 << 20,
                          .ageing_us = 3600LL * 1000000,
                          .prefix_cache = true,
                          .preemption = PREEMPT_SWAP,
                          .swap_bytes = 256 << 10,
                          .restart_wait_us = 100,
                          .max_faults = 1000000,
                          .n_class = 1,
                          .classes = {{.name = "all", .weight = 1}}};
}

static inline void served_start_as(served *v, const backend_ops *ops, sched_config sc)
{
    err e;
    backend_config bc = served_backend();
    emu_rt_device(1 + served_devices, (size_t)96 << 20);
    const char *dir =
        served_devices > 1 ? "fixtures/models/llama-tp-bf16" : "fixtures/models/llama-bf16";
    ck_assert_msg(be_open(&v->be, ops, &bc, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_msg(model_load(&v->m, dir, v->be, ROWS, sc.max_logits, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_msg(sched_create(&v->sc, &sc, v->m, v->be, NULL, &e) == ERR_NONE, "%s", e.msg);
}

static inline void served_start(served *v, const backend_ops *ops)
{
    served_start_as(v, ops, served_config());
}

static inline void served_stop(served *v)
{
    sched_destroy(v->sc);
    model_destroy(v->m);
    be_close(v->be);
}

static inline uint64_t served_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xD6E8FEB86659FD93ULL;
    return h ^ (h >> 32);
}

/* Client `i` of a fixed cast: greedy, temperature, top-k, top-p, min-p, penalties, biases, banned
 * stops, scored prompts, log-probabilities; several at once. */
static inline client *client_make(int i, int n_vocab)
{
    client *c = calloc(1, sizeof(*c));
    request_init(&c->rq);
    request_signal_init(&c->sg);
    request *rq = &c->rq;
    sampling *r = &rq->rules;
    for (int k = 0; k < PROMPT_MAX; k++) {
        c->prompt[k] = (int32_t)(served_mix((uint64_t)i + 7, (uint64_t)k) % (uint64_t)n_vocab);
    }
    rq->prompt = c->prompt;
    rq->n_prompt = 3 + i * 7 % (PROMPT_MAX - 3);
    rq->max_tokens = MAX_NEW - i % 2;
    rq->id = (uint64_t)i + 1;
    rq->tenant_id = rq->isolation = 1;
    rq->weight = 1;
    rq->arrived_us = clock_now_us();
    rq->meter = &c->meter;
    rq->signal = &c->sg;
    r->temperature = i % 4 == 0 ? 0 : 0.4F + 0.3F * (float)(i % 5);
    r->seed = served_mix(99, (uint64_t)i);
    r->n_top = i % 3 == 0 ? -1 : i % 3 == 1 ? 0 : SAMPLE_TOP_MAX;
    if (i % 5 == 1) r->top_k = 7;
    if (i % 5 == 2) r->top_p = 0.8F;
    if (i % 5 == 3) r->min_p = 0.05F;
    if (i % 3 == 2) {
        r->repetition_penalty = 1.3F;
        r->presence_penalty = 0.5F;
        r->frequency_penalty = 0.25F;
    }
    for (int k = 0; k < 4; k++) {
        c->bias[k] = (logit_bias){(int32_t)(served_mix(5, (uint64_t)(i * 4 + k)) % 300), 2.5F};
    }
    if (i % 4 == 1) {
        r->bias = c->bias;
        r->n_bias = 4;
    }
    c->stop[0] = 2;
    c->stop[1] = 5;
    if (i % 2) {
        r->stop_id = c->stop;
        r->n_stop_id = 2;
        r->min_tokens = 2;
    }
    rq->score_prompt = i % 6 == 4;
    rq->score_top = rq->score_prompt ? 3 : 0;
    ck_assert_int_eq(request_prepare(rq, NULL), ERR_NONE);
    return c;
}

/* The outcome, after the terminal event. */
static inline finish_reason client_collect(client *c)
{
    uint64_t seen = 0;
    bool done = false;
    while (!done) {
        while (request_next(&c->rq, &c->got[c->n_got], &done))
            ck_assert_int_lt(c->n_got++, MAX_NEW);
        if (!done) (void)request_signal_wait(&c->sg, &seen, 1000);
    }
    return (finish_reason)atomic_load(&c->rq.finish);
}

static inline void client_drop(client *c)
{
    request_clear(&c->rq);
    request_signal_clear(&c->sg);
    free(c);
}

/* Neither may hold what the other does not, to the rounding of exp(). */
static inline void same_sampled(const sampled *a, const sampled *b, const char *what)
{
    ck_assert_msg(a->token == b->token, "%s: token %d, not %d", what, (int)a->token, (int)b->token);
    ck_assert_msg(fabsf(a->logprob - b->logprob) < 1e-5F, "%s: logprob %g, not %g", what,
                  (double)a->logprob, (double)b->logprob);
    ck_assert_msg(a->n_top == b->n_top, "%s: %d alternatives, not %d", what, a->n_top, b->n_top);
    for (int i = 0; i < a->n_top; i++) {
        ck_assert_msg(a->top_id[i] == b->top_id[i], "%s: alternative %d is %d, not %d", what, i,
                      (int)a->top_id[i], (int)b->top_id[i]);
        ck_assert_msg(fabsf(a->top_logprob[i] - b->top_logprob[i]) < 1e-5F,
                      "%s: alternative %d has another log-probability", what, i);
    }
}

#endif
