/* sched_sample.c -- the forward pass of a step, and its logits to tokens.
 *
 * Where the host reads logits as they are (CPU), its compute threads sample, each with a sampler of
 * its own. Where the backend samples (be_can_sample()), the pass is enqueued, the masks of grammars
 * are fetched while it runs, then sampling is enqueued behind it, and the host waits once, for the
 * tokens: at once, or when it has enqueued the next step (sched_flight.c).  Both by the same rules,
 * so that nobody else has to know.
 *
 * Prompts that have no answer in tokens are pooled: behind the forward pass the states that such a
 * request still needs are normed and come to the host, a few rows at a time, before the next step
 * may be enqueued.  The last of them makes its vector.
 */
#include <assert.h>
#include <stdlib.h>

#include "engine/sched/sched_inside.h"

/* ----------------------------------------------------------------------- pooling -- */

enum { ROWS_EACH = 32 };

err_code sched_pool_create(sched *sc, err *e)
{
    sc->states = calloc((size_t)ROWS_EACH * (size_t)model_get_config(sc->m)->dim, sizeof(float));
    return sc->states ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for hidden states");
}

void sched_pool_destroy(sched *sc)
{
    free(sc->states);
}

/* n rows of the step from row0 on, one after another. */
static err_code take_rows(sched *sc, int s, int row0, int n, err *e)
{
    request *rq = sc->row_owner[s];
    for (int done = 0, some; done < n; done += some) {
        some = n - done < ROWS_EACH ? n - done : ROWS_EACH;
        err_code rc = model_take_states(sc->m, row0 + done, some, rq->lora, sc->states, e);
        if (rc) return rc;
        if (!pooling_take(rq->pool, sc->states, some)) {
            sc->now->broken[s] = true;
            return ERR_NONE;
        }
    }
    return ERR_NONE;
}

static err_code pool_step(sched *sc, err *e)
{
    err_code rc = ERR_NONE;
    for (int s = 0; s < sc->step.n_seq && !rc; s++) {
        const request *rq = sc->row_owner[s];
        if (!rq->pool) continue;
        const step_seq *q = &sc->seq[s];
        int end = q->pos0 + q->n_rows, from = pooling_from(rq->pool, rq->n_prompt);
        int n = rq->pool->sum ? end - from : 1; /* of which all are read, or one */
        assert(end <= rq->n_prompt);
        if (from < end && from >= q->pos0) rc = take_rows(sc, s, q->row0 + from - q->pos0, n, e);
    }
    return rc;
}

/* Whose head a request's classes are of: its adapter's, else the base's. */
static const pooling_head *head_of(const sched *sc, const request *rq)
{
    if (rq->lora && rq->lora->score_head) return rq->lora->score_head;
    return model_score_head(sc->m);
}

bool sched_pool_end(const sched *sc, request *rq, err *e)
{
    pooling_end(rq->pool);
    if (!rq->pool->classify) return true;
    const pooling_head *head = head_of(sc, rq);
    if (head && pooling_classify(rq->pool, head)) return true;
    (void)err_set(e, ERR_UNSUPPORTED,
                  "this model has no head for classes: neither the base's files nor the adapter's "
                  "modules_to_save hold one ('score' or 'classifier')");
    return false;
}

/* ---------------------------------------------------------------------- sampling -- */

static bool wants_token(const request *rq, int n)
{
    return n == left_of(rq) && rq->max_tokens > 0;
}

static bool has_mask(const request *rq)
{
    return rq->grammar || rq->bars;
}

/* Prompt tokens whose predecessor's row is in this chunk: the next one's index, or 0. */
static int scored_by(const sched *sc, int s, int i)
{
    const request *rq = sc->row_owner[s];
    int next = rq->n_computed + i + 1;
    return scores(rq) && next < rq->n_prompt ? next : 0;
}

/* Row of the logits that the next token is drawn from. */
static int last_logit(const sched *sc, int s)
{
    return sc->now->logit0[s] + (scores(sc->row_owner[s]) ? sc->chunk[s] - 1 : 0);
}

/* What its form allows, into mask; false: there is nothing to pick from now. */
static bool find_form(sched *sc, int s, int k, grammar_walk *w)
{
    request *rq = sc->row_owner[s];
    sc->mask[s] = grammar_run_mask(rq->grammar, w);
    sc->now->late[s] = k == 0 && !sc->mask[s];
    return sc->mask[s] && !grammar_run_failed(rq->grammar);
}

/* Bits of the tokens that may come k tokens from now, all of which are known, in mask; NULL where
 * all may.  False: there is nothing to pick from now; behind the first token the next step finds
 * out why. */
static bool find_mask(sched *sc, int s, int k, grammar_walk *w)
{
    request *rq = sc->row_owner[s];
    sc->mask[s] = NULL;
    if (rq->grammar && !find_form(sc, s, k, w)) return false;
    if (!rq->bars) return true;
    bars_text t = {rq->prompt, rq->output, rq->n_prompt, n_drawn(rq) + k};
    sc->mask[s] = bars_mask(rq->bars, sc->mask[s], model_get_config(sc->m)->n_vocab, &t, rq->mask);
    rq->stuck = k == 0 && !sc->mask[s];
    return sc->mask[s] != NULL;
}

/* ----------------------------------------------------------------- on the host -- */

/* Tokens that a row of logits has for this request.  Masks of forms are for the base's, so what was
 * added can be no part of a form. */
static int drawn_from(const sched *sc, const request *rq, bool masked)
{
    int base = model_get_config(sc->m)->n_vocab, own = vocab_of(sc, rq);
    return masked && own > base ? base : own;
}

static void score_rows(sched *sc, int s, sampler *sp)
{
    request *rq = sc->row_owner[s];
    int stride = model_logit_stride(sc->m);
    sampler_set_vocab(sp, drawn_from(sc, rq, false));
    for (int i = 0, next; i < sc->chunk[s] && (next = scored_by(sc, s, i)) > 0; i++) {
        const float *row = sc->logits + (size_t)(sc->now->logit0[s] + i) * (size_t)stride;
        sampler_score(sp, row, rq->prompt[next], rq->score_top, &rq->prompt_score[next]);
        if (rq->prompt_score[next].token < 0) sc->now->broken[s] = true;
    }
}

/* The k-th token of the step, those before it being what was guessed.  False: the row behind it
 * does not count. */
static bool pick_row(sched *sc, int s, int k, sampler *sp, grammar_walk *w)
{
    request *rq = sc->row_owner[s];
    flight *f = sc->now;
    size_t row = (size_t)(f->pick0[s] + k), stride = (size_t)model_logit_stride(sc->m);
    sampled *to = &f->picked[row];
    if (!find_mask(sc, s, k, w)) return false;
    sampler_set_vocab(sp, drawn_from(sc, rq, rq->grammar != NULL));
    sampler_pick(sp, (float *)sc->logits + row * stride, &rq->rules, sc->mask[s], rq->prompt,
                 rq->n_prompt, rq->output, n_drawn(rq) + k, to);
    assert(to->token < drawn_from(sc, rq, rq->grammar != NULL));
    if (to->token < 0) {
        f->broken[s] = true;
        return false;
    }
    if (rq->grammar) grammar_run_accept(rq->grammar, w, to->token);
    if (rq->grammar && grammar_run_failed(rq->grammar)) return false;
    f->n_got[s]++;
    return sched_goes_on(f, s, k, to->token) && !(rq->grammar && grammar_run_over(rq->grammar));
}

/* Entries i, i + n_samplers, ...: each sampler serves one thread at a time. */
static void sample_some(void *arg, int i)
{
    sched *sc = arg;
    for (int s = i; s < sc->step.n_seq; s += sc->n_samplers) {
        score_rows(sc, s, sc->samplers[i]);
        if (!wants_token(sc->row_owner[s], sc->chunk[s]) || sc->now->broken[s]) continue;
        for (int k = 0; pick_row(sc, s, k, sc->samplers[i], sc->walks[i]);) k++;
    }
}

static err_code on_host(sched *sc, err *e)
{
    err_code rc = model_forward(sc->m, sc->kv, &sc->step, &sc->logits, e);
    if (!rc) rc = pool_step(sc, e);
    sc->now->computed_us = clock_now_us();
    if (!rc && sc->step.n_logit > 0) be_parallel(sc->be, sample_some, sc, sc->n_samplers);
    return rc;
}

/* --------------------------------------------------------------- on the device -- */

/* Where nothing can be picked (a form whose mask is late, or that is at its end), mask stays
 * NULL. */
static void mask_some(void *arg, int i)
{
    sched *sc = arg;
    for (int s = i; s < sc->step.n_seq; s += sc->n_samplers) {
        request *rq = sc->row_owner[s];
        if (!has_mask(rq) || !wants_token(rq, sc->chunk[s])) continue;
        if (!find_mask(sc, s, 0, sc->walks[i])) sc->mask[s] = NULL;
    }
}

/* A step with grammars is settled before another is planned: mask is its own. */
static void accept_some(void *arg, int i)
{
    sched *sc = arg;
    const flight *f = sched_in_flight(sc);
    for (int s = i; s < f->n_seq; s += sc->n_samplers) {
        if (!f->owner[s] || !f->owner[s]->grammar || f->n_got[s] == 0) continue;
        grammar_run *form = f->owner[s]->grammar;
        grammar_run_accept(form, sc->walks[i], f->picked[f->pick0[s]].token);
        if (grammar_run_failed(form)) f->n_got[s] = 0;
    }
}

/* A score of the token `score`, or, where that is -1, the k-th token of the step. */
static void add_row(sched *sc, int *n, int s, int logit, int32_t score, int k, sampled *to)
{
    const request *rq = sc->row_owner[s];
    assert(*n < sc->cfg.max_logits && logit >= 0 && logit < sc->step.n_logit);
    sc->now->end[*n] = (draw_end){to, s, score < 0};
    sc->draw[(*n)++] = (sample_row){.logit = logit,
                                    .score = score,
                                    .rules = &rq->rules,
                                    .n_top = rq->score_top,
                                    .prompt = rq->prompt,
                                    .n_prompt = rq->n_prompt,
                                    .output = rq->output,
                                    .n_output = n_drawn(rq) + k,
                                    .allowed = score < 0 ? sc->mask[s] : NULL,
                                    .n_vocab = drawn_from(sc, rq, score < 0 && rq->grammar)};
}

static int list_rows(sched *sc)
{
    int n = 0;
    for (int s = 0; s < sc->step.n_seq; s++) {
        request *rq = sc->row_owner[s];
        for (int i = 0, next; i < sc->chunk[s] && (next = scored_by(sc, s, i)) > 0; i++) {
            add_row(sc, &n, s, sc->now->logit0[s] + i, rq->prompt[next], 0,
                    &rq->prompt_score[next]);
        }
        if (!wants_token(rq, sc->chunk[s]) || (has_mask(rq) && !sc->mask[s])) continue;
        rq->draw_at = n;
        for (int k = 0; k <= sc->now->n_guess[s]; k++) {
            int row = sc->now->pick0[s] + k;
            add_row(sc, &n, s, row, -1, k, &sc->now->picked[row]);
        }
    }
    return n;
}

static err_code on_device(sched *sc, err *e)
{
    flight *f = sc->now;
    err_code rc = model_enqueue(sc->m, sc->kv, &sc->step, e);
    if (rc) return rc;
    bool masks = false;
    for (int s = 0; s < f->n_seq; s++) {
        sc->mask[s] = NULL;
        masks |= has_mask(f->owner[s]);
    }
    if (masks) be_parallel(sc->be, mask_some, sc, sc->n_samplers);
    f->n_draw = list_rows(sc);
    f->got = f->n_draw > 0 ? model_sample(sc->m, sc->draw, f->n_draw) : NULL;
    rc = pool_step(sc, e);
    if (sc->overlaps) f->mark = be_mark(sc->be);
    return rc;
}

err_code sched_launch(sched *sc, err *e)
{
    flight *f = sc->now;
    assert(!f->up && sc->step.n_seq > 0 && sc->step.n_seq <= sc->cfg.max_seqs);
    f->n_seq = sc->step.n_seq;
    f->n_draw = 0;
    memset(f->broken, 0, (size_t)f->n_seq * sizeof(*f->broken));
    memset(f->late, 0, (size_t)f->n_seq * sizeof(*f->late));
    memset(f->n_got, 0, (size_t)f->n_seq * sizeof(*f->n_got));
    for (int s = 0; s < f->n_seq; s++) {
        f->pick0[s] = last_logit(sc, s);
        f->pos0[s] = f->owner[s]->n_computed;
        f->ends[s] = f->chunk[s] == left_of(f->owner[s]);
    }
    return be_can_sample(sc->be) ? on_device(sc, e) : on_host(sc, e);
}

err_code sched_collect(sched *sc, flight *f, err *e)
{
    if (!be_can_sample(sc->be)) return ERR_NONE;
    err_code rc = sc->overlaps ? be_await(sc->be, f->mark, e) : be_sync(sc->be, e);
    f->computed_us = clock_now_us();
    if (rc) return rc;
    bool forms = false;
    for (int s = 0; s < f->n_seq; s++) forms |= f->owner[s] && f->owner[s]->grammar;
    for (int i = 0; i < f->n_draw; i++) {
        int s = f->end[i].seq;
        if (!f->owner[s]) continue; /* what the request lent is gone */
        *f->end[i].to = f->got[i];
        if (!f->end[i].pick && f->got[i].token < 0) f->broken[s] = true;
    }
    for (int i = 0; i < f->n_draw; i++) {
        int s = f->end[i].seq;
        if (f->owner[s] && f->end[i].to == &f->picked[f->pick0[s]]) sched_verify(f, s);
    }
    if (forms) be_parallel(sc->be, accept_some, sc, sc->n_samplers);
    return ERR_NONE;
}
