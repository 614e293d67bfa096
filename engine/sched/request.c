/* request.c -- the hand-over of tokens: one writer, one reader, no waiting on the writer's side.
 *
 *     engine   token[n] = t;  n_pushed = n + 1 (release);  events++ and a signal
 *     owner    n_pushed (acquire) > n_popped: token[n_popped++];  else waits for events
 *
 * There is memory for all tokens that a request may produce before it is submitted, so the
 * engine never allocates or waits here. A signal may be shared: several requests of one caller
 * wake it, and it waits for a number of events that it has not seen, so none is lost.
 *
 * The end is one atomic, `finish`, set under the signal's mutex: the owner who sees it frees the
 * request, and request_signal_clear() takes that mutex first, so the engine has left it.
 */
#include "engine/sched/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"

void request_signal_init(request_signal *sg)
{
    lock_init(&sg->mu, LOCK_REQUEST_SIGNAL);
    cond_init(&sg->ready);
    sg->events = 0;
}

void request_signal_clear(request_signal *sg)
{
    /* The engine's last touch of a request is unlocking this mutex: wait for it. */
    lock_take(&sg->mu);
    lock_release(&sg->mu);
    cond_free(&sg->ready);
    lock_free(&sg->mu);
}

bool request_signal_wait(request_signal *sg, uint64_t *seen, int timeout_ms)
{
    int64_t end_us = clock_now_us() + (int64_t)timeout_ms * 1000;
    lock_take(&sg->mu);
    while (sg->events == *seen && cond_wait_until(&sg->ready, &sg->mu, end_us)) continue;
    bool news = sg->events != *seen;
    *seen = sg->events;
    lock_release(&sg->mu);
    return news;
}

void request_signal_wake(request_signal *sg)
{
    lock_take(&sg->mu);
    sg->events++;
    cond_signal(&sg->ready);
    lock_release(&sg->mu);
}

void request_init(request *rq)
{
    memset(rq, 0, sizeof(*rq));
    rq->rules = (sampling){SAMPLING_LIST(SAMPLING_NEUTRAL).n_top = -1};
    rq->weight = 1;
}

err_code request_prepare(request *rq, err *e)
{
    if (rq->max_tokens < 0 || rq->n_prompt < 0) {
        return err_set(e, ERR_INPUT, "a request can't have %d prompt and %d output tokens",
                       rq->n_prompt, rq->max_tokens);
    }
    size_t n = (size_t)rq->max_tokens + 1;
    if (rq->rules.n_top >= 0) rq->out.ring = calloc(n, sizeof(*rq->out.ring));
    rq->out.token = calloc(n, sizeof(*rq->out.token));
    if (rq->score_prompt) rq->out.score = calloc((size_t)rq->n_prompt, sizeof(*rq->out.score));
    size_t masks = rq->beams ? (size_t)beam_width(rq->beams->search) : 1;
    if (rq->bars)
        rq->run.mask = calloc(masks * (size_t)bars_words(rq->bars), sizeof(*rq->run.mask));
    if (!rq->out.token || (rq->rules.n_top >= 0 && !rq->out.ring) ||
        (rq->score_prompt && !rq->out.score) || (rq->bars && !rq->run.mask)) {
        request_clear(rq);
        return err_set(e, ERR_NOMEM, "no memory for %d output tokens", rq->max_tokens);
    }
    return ERR_NONE;
}

void request_clear(request *rq)
{
    free(rq->out.ring);
    free(rq->out.token);
    free(rq->out.score);
    free(rq->run.mask);
    rq->run.mask = NULL;
    rq->out.ring = NULL;
    rq->out.token = NULL;
    rq->out.score = NULL;
}

void request_push(request *rq, const sampled *t)
{
    int n = atomic_load_explicit(&rq->out.n_pushed, memory_order_relaxed);
    assert(n < rq->max_tokens && t->token >= 0); /* there is memory for all that it may produce */
    if (rq->out.ring) rq->out.ring[n] = *t;
    rq->out.token[n] = t->token;
    atomic_store_explicit(&rq->out.n_pushed, n + 1, memory_order_release);
    request_signal_wake(rq->signal);
}

void request_finish(request *rq, finish_reason why, const err *cause)
{
    assert(why != FINISH_NONE && atomic_load(&rq->finish) == FINISH_NONE);
    request_signal *sg = rq->signal;
    if (cause) rq->why = *cause;
    /* Both inside the lock: the owner, who sees `finish` and then takes the lock in
     * request_signal_clear(), can't free anything that is still in use here. */
    lock_take(&sg->mu);
    atomic_store_explicit(&rq->finish, (int)why, memory_order_release);
    sg->events++;
    cond_signal(&sg->ready);
    lock_release(&sg->mu);
}

bool request_next(request *rq, sampled *out, bool *done)
{
    /* The end is read first: tokens pushed before it are then visible. */
    int finish = atomic_load_explicit(&rq->finish, memory_order_acquire);
    if (rq->out.n_popped < atomic_load_explicit(&rq->out.n_pushed, memory_order_acquire)) {
        int n = rq->out.n_popped++;
        *out = rq->out.ring ? rq->out.ring[n] : (sampled){.token = rq->out.token[n], .n_top = -1};
        *done = false;
        return true;
    }
    *done = finish != FINISH_NONE;
    return false;
}

void request_cancel(request *rq)
{
    atomic_store(&rq->cancel, true);
}

void request_stop(request *rq)
{
    atomic_store(&rq->stopped, true);
    atomic_store(&rq->cancel, true);
}

void request_leave(request *rq)
{
    atomic_store(&rq->leave, true);
}

void request_go_on(request *rq)
{
    assert(atomic_load(&rq->finish) == FINISH_LEFT);
    assert(rq->out.n_popped == atomic_load(&rq->out.n_pushed) && !rq->grammar && !rq->pool);
    rq->n_given = rq->out.n_popped;
    rq->again = true;
    rq->run.n_page = rq->run.n_gone = rq->run.n_swapped = rq->run.n_computed = rq->run.n_ahead = 0;
    atomic_store(&rq->leave, false);
    atomic_store_explicit(&rq->finish, (int)FINISH_NONE, memory_order_release);
}

void request_give(request *rq, int32_t token)
{
    assert(rq->n_given < rq->max_tokens && token >= 0);
    rq->out.token[rq->n_given++] = token;
    rq->out.n_foreign++;
    rq->out.n_popped = rq->n_given;
    atomic_store(&rq->out.n_pushed, rq->n_given);
}
