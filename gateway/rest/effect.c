/* effect.c -- measures what a new version changes: a queue, and a thread that measures one
 * version at a time.
 *
 * A fixed prompt of PROMPT tokens is scored twice (as `echo` with logprobs does), once by the
 * base and once by the version. The result is the largest absolute difference of log
 * probabilities over the prompt's own tokens and the likeliest ones of each position. Exactly 0
 * means that the adapter changes nothing, usually because its B matrices are still zero.
 *
 * The probe is an ordinary request of the lowest class with `background` set, an unbilled meter
 * and an isolation of its own, so it delays nobody and shares no prefix cache.
 *
 * It measures only versions that are in memory, so that no adapter is loaded for it; a version
 * that does not come there within a minute leaves the queue unmeasured. When the queue is full
 * the oldest entry goes.
 */
#include "gateway/rest/effect.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/adapter_parts.h"
#include "gateway/engine_parts.h"
#include "gateway/openai/vocabulary.h"
#include "gateway/tenant_parts.h"

enum { QUEUE_MAX = 64, PROMPT = 16, TOPS = SAMPLE_TOP_MAX, LOOK_US = 100000, WAIT_MS = 100 };
static const int64_t PATIENCE_US = 60000000;

typedef struct waiting {
    uint64_t version_id;
    int64_t since_us;
} waiting;

struct effect_probe {
    server *srv;
    pthread_t thread;
    request_signal signal;
    int32_t prompt[PROMPT];
    sampled base[PROMPT]; /* what the base makes of it */
    bool has_base;
    lock mu; /* guards all below */
    cond work;
    waiting queue[QUEUE_MAX]; /* oldest first */
    int n;
    bool stop;
};

static bool stopping(effect_probe *p)
{
    lock_take(&p->mu);
    bool stop = p->stop;
    lock_release(&p->mu);
    return stop;
}

/* The scores of the prompt under a version (0: the base), of `n_vocab` tokens (0: the base's). */
static err_code score(effect_probe *p, uint64_t version_id, int n_vocab, sampled out[PROMPT],
                      err *e)
{
    server *s = p->srv;
    static _Atomic uint64_t nobody = 0;
    meter unbilled = {0};
    request rq;
    sampled ignored;
    uint64_t seen = 0;
    bool done = false;
    request_init(&rq);
    rq.id = store_next_id(store_of(s));
    rq.isolation = UINT64_MAX - atomic_fetch_add(&nobody, 1); /* shares no cache with anybody */
    rq.adapter_id = version_id;
    rq.n_vocab = n_vocab;
    rq.prompt = p->prompt;
    rq.n_prompt = PROMPT;
    rq.score_prompt = true;
    rq.score_top = TOPS;
    rq.background = true;
    rq.weight = 1;
    rq.slo_class = engine_of(s)->n_class - 1;
    rq.arrived_us = clock_now_us();
    rq.expires_us = rq.arrived_us + PATIENCE_US;
    rq.meter = &unbilled;
    rq.signal = &p->signal;
    err_code rc = request_prepare(&rq, e);
    if (!rc) rc = sched_submit(sched_of(s), &rq, e);
    while (!rc && !done) {
        (void)request_next(&rq, &ignored, &done);
        if (!done && stopping(p)) request_cancel(&rq);
        if (!done) (void)request_signal_wait(&p->signal, &seen, WAIT_MS);
    }
    finish_reason why = (finish_reason)atomic_load(&rq.finish);
    if (!rc && why == FINISH_ERROR) {
        *e = rq.why;
        rc = rq.why.code;
    } else if (!rc && why == FINISH_CANCELLED) {
        rc = err_set(e, ERR_CANCELLED, "the server stops");
    }
    for (int i = 0; i < PROMPT && !rc; i++) out[i] = rq.out.score[i];
    request_clear(&rq);
    return rc;
}

/* The largest difference of what both scored: the prompt's own tokens, and those among the
 * likeliest of both. */
static double difference(const sampled *a, const sampled *b)
{
    double most = 0;
    for (int i = 1; i < PROMPT; i++) {
        most = fmax(most, fabs((double)a[i].logprob - (double)b[i].logprob));
        for (int k = 0; k < a[i].n_top; k++)
            for (int m = 0; m < b[i].n_top; m++)
                if (a[i].top_id[k] == b[i].top_id[m])
                    most =
                        fmax(most, fabs((double)a[i].top_logprob[k] - (double)b[i].top_logprob[m]));
    }
    return most;
}

static err_code measure(effect_probe *p, const adapter_version *v, double *change, err *e)
{
    const vocabulary *vocab;
    sampled got[PROMPT];
    err_code rc = p->has_base ? ERR_NONE : score(p, 0, 0, p->base, e);
    if (rc) return rc;
    p->has_base = true;
    rc = vocabulary_acquire(engine_of(p->srv)->vocabularies, v, &vocab, e);
    if (rc) return rc;
    rc = score(p, v->id, vocab->n_own, got, e);
    vocabulary_release(engine_of(p->srv)->vocabularies, vocab);
    if (!rc) *change = difference(p->base, got);
    return rc;
}

static void probe_one(effect_probe *p, uint64_t version_id)
{
    const adapter_version *v;
    double change = 0;
    err e;
    if (registry_acquire_id(registry_of(p->srv), version_id, &v, &e)) return; /* gone */
    err_code rc = measure(p, v, &change, &e);
    if (!rc) rc = adapter_rows_set_change(store_of(p->srv), version_id, change, &e);
    if (rc && rc != ERR_CANCELLED)
        log_warn("adapters", "what %s@%d changes was not measured: %s", v->name, v->version, e.msg);
    else if (!rc && change == 0)
        log_warn("adapters", "%s@%d changes nothing: the logits of a fixed prompt are the base's",
                 v->name, v->version);
    registry_release(registry_of(p->srv), v);
}

/* The first in the queue that is in memory; 0: none is.  Those that waited too long leave it. */
static uint64_t take_resident(effect_probe *p)
{
    uint64_t id = 0;
    int64_t now_us = clock_now_us();
    lock_take(&p->mu);
    for (int i = 0; i < p->n && !id;) {
        uint64_t this = p->queue[i].version_id;
        bool late = now_us - p->queue[i].since_us > PATIENCE_US;
        lock_release(&p->mu);
        bool there = residency_get(residency_of(p->srv), this, NULL) == RESIDENCY_RESIDENT;
        lock_take(&p->mu);
        bool same = i < p->n && p->queue[i].version_id == this;
        if (!same || (!there && !late)) {
            i++;
            continue;
        }
        if (there) id = this;
        for (int k = i + 1; k < p->n; k++) p->queue[k - 1] = p->queue[k];
        p->n--;
    }
    lock_release(&p->mu);
    return id;
}

static void *probe_main(void *arg)
{
    effect_probe *p = arg;
    (void)pthread_setname_np(pthread_self(), "effect");
    for (;;) {
        lock_take(&p->mu);
        while (p->n == 0 && !p->stop) cond_wait(&p->work, &p->mu);
        bool stop = p->stop;
        lock_release(&p->mu);
        if (stop) return NULL;
        uint64_t id = take_resident(p);
        if (id) {
            probe_one(p, id);
            continue;
        }
        lock_take(&p->mu);
        if (!p->stop) (void)cond_wait_until(&p->work, &p->mu, clock_now_us() + LOOK_US);
        lock_release(&p->mu);
    }
}

void effect_add(effect_probe *p, uint64_t version_id)
{
    if (!p) return;
    lock_take(&p->mu);
    if (p->n == QUEUE_MAX) {
        p->n--;
        for (int k = 0; k < p->n; k++) p->queue[k] = p->queue[k + 1];
    }
    p->queue[p->n++] = (waiting){version_id, clock_now_us()};
    cond_signal(&p->work);
    lock_release(&p->mu);
}

err_code effect_start(effect_probe **out, server *s, err *e)
{
    effect_probe *p = calloc(1, sizeof(*p));
    *out = NULL;
    if (!p) return err_set(e, ERR_NOMEM, "out of memory");
    p->srv = s;
    int n_vocab = model_get_config(engine_of(s)->model)->n_vocab;
    for (int i = 0; i < PROMPT; i++)
        p->prompt[i] = (int32_t)((7 + (int64_t)i * 7919) % n_vocab); /* here and there */
    request_signal_init(&p->signal);
    lock_init(&p->mu, LOCK_EFFECT);
    cond_init(&p->work);
    if (pthread_create(&p->thread, NULL, probe_main, p) == 0) {
        *out = p;
        return ERR_NONE;
    }
    request_signal_clear(&p->signal);
    cond_free(&p->work);
    lock_free(&p->mu);
    free(p);
    return err_set(e, ERR_NOMEM, "cannot start the thread that measures effects");
}

void effect_stop(effect_probe *p)
{
    if (!p) return;
    lock_take(&p->mu);
    p->stop = true;
    cond_broadcast(&p->work);
    lock_release(&p->mu);
    request_signal_wake(&p->signal);
    (void)pthread_join(p->thread, NULL);
    request_signal_clear(&p->signal);
    cond_free(&p->work);
    lock_free(&p->mu);
    free(p);
}
