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
    sc->pick.hidden =
        calloc((size_t)ROWS_EACH * (size_t)model_get_config(sc->m)->dim, sizeof(float));
    return sc->pick.hidden ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for hidden states");
}

void sched_pool_destroy(sched *sc)
{
    free(sc->pick.hidden);
}

/* n rows of the step from row0 on, one after another. */
static err_code take_rows(sched *sc, int s, int row0, int n, err *e)
{
    request *rq = sc->now->row[s].owner;
    for (int done = 0, some; done < n; done += some) {
        some = n - done < ROWS_EACH ? n - done : ROWS_EACH;
        err_code rc = model_take_states(sc->m, row0 + done, some, rq->run.lora, sc->pick.hidden, e);
        if (rc) return rc;
        if (!pooling_take(rq->pool, sc->pick.hidden, some)) {
            sc->now->row[s].broken = true;
            return ERR_NONE;
        }
    }
    return ERR_NONE;
}

static err_code pool_step(sched *sc, err *e)
{
    err_code rc = ERR_NONE;
    for (int s = 0; s < sc->step.n_seq && !rc; s++) {
        const request *rq = sc->now->row[s].owner;
        if (!rq->pool) continue;
        const step_seq *q = &sc->rows.seq[s];
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
    if (rq->run.lora && rq->run.lora->score_head) return rq->run.lora->score_head;
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
    return form_of(rq, 0) || rq->bars;
}

/* Prompt tokens whose predecessor's row is in this chunk: the next one's index, or 0. */
static int scored_by(const sched *sc, int s, int i)
{
    const request *rq = sc->now->row[s].owner;
    int next = rq->run.n_computed + i + 1;
    return scores(rq) && next < rq->n_prompt ? next : 0;
}

/* Row of the logits that the next token is drawn from. */
static int last_logit(const sched *sc, int s)
{
    return sc->now->row[s].logit0 + (scores(sc->now->row[s].owner) ? sc->now->row[s].chunk - 1 : 0);
}

/* What its form allows, into mask; false: there is nothing to pick from now. */
static bool find_form(sched *sc, int s, int k, grammar_walk *w)
{
    grammar_run *form = form_of(sc->now->row[s].owner, sc->now->row[s].beam);
    sc->rows.mask[s] = grammar_run_mask(form, w);
    sc->now->row[s].late = k == 0 && !sc->rows.mask[s];
    return sc->rows.mask[s] && !grammar_run_failed(form);
}

/* Bits of the tokens that may come k tokens from now, all of which are known, in mask; NULL where
 * all may.  False: there is nothing to pick from now; behind the first token the next step finds
 * out why. */
static bool find_mask(sched *sc, int s, int k, grammar_walk *w)
{
    request *rq = sc->now->row[s].owner;
    int beam = sc->now->row[s].beam;
    sc->rows.mask[s] = NULL;
    if (form_of(rq, beam) && !find_form(sc, s, k, w)) return false;
    if (!rq->bars) return true;
    bars_text t = {rq->prompt, output_of(rq, beam), rq->n_prompt, n_drawn(rq) + k};
    uint32_t *room = rq->run.mask + (size_t)beam * (size_t)bars_words(rq->bars);
    sc->rows.mask[s] =
        bars_mask(rq->bars, sc->rows.mask[s], model_get_config(sc->m)->n_vocab, &t, room);
    if (rq->beams) return sc->rows.mask[s] != NULL; /* others may go on */
    rq->run.stuck = k == 0 && !sc->rows.mask[s];
    return sc->rows.mask[s] != NULL;
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
    request *rq = sc->now->row[s].owner;
    int stride = model_logit_stride(sc->m);
    sampler_set_vocab(sp, drawn_from(sc, rq, false));
    for (int i = 0, next; i < sc->now->row[s].chunk && (next = scored_by(sc, s, i)) > 0; i++) {
        const float *row = sc->pick.logits + (size_t)(sc->now->row[s].logit0 + i) * (size_t)stride;
        sampler_score(sp, row, rq->prompt[next], rq->score_top, &rq->out.score[next]);
        if (rq->out.score[next].token < 0) sc->now->row[s].broken = true;
    }
}

/* The k-th token of the step, those before it being what was guessed.  False: the row behind it
 * does not count. */
static bool pick_row(sched *sc, int s, int k, sampler *sp, grammar_walk *w)
{
    request *rq = sc->now->row[s].owner;
    flight *f = sc->now;
    size_t row = (size_t)(f->row[s].pick0 + k), stride = (size_t)model_logit_stride(sc->m);
    sampled *to = &f->picked[row];
    int beam = f->row[s].beam, n_ids = drawn_from(sc, rq, form_of(rq, beam) != NULL);
    if (!find_mask(sc, s, k, w)) return false;
    sampler_set_vocab(sp, n_ids);
    sampler_pick(sp, (float *)sc->pick.logits + row * stride, &rq->rules, sc->rows.mask[s],
                 rq->prompt, rq->n_prompt, output_of(rq, beam), n_drawn(rq) + k, to);
    assert(to->token < n_ids);
    if (to->token < 0) {
        f->row[s].broken = true;
        return false;
    }
    if (rq->grammar) grammar_run_accept(rq->grammar, w, to->token);
    if (rq->grammar && grammar_run_failed(rq->grammar)) return false;
    f->row[s].n_got++;
    return sched_goes_on(f, s, k, to->token) && !(rq->grammar && grammar_run_over(rq->grammar));
}

/* Entries i, i + n_samplers, ...: each sampler serves one thread at a time. */
static void sample_some(void *arg, int i)
{
    sched *sc = arg;
    for (int s = i; s < sc->step.n_seq; s += sc->pick.n_samplers) {
        score_rows(sc, s, sc->pick.samplers[i]);
        if (!wants_token(sc->now->row[s].owner, sc->now->row[s].chunk) || sc->now->row[s].broken)
            continue;
        for (int k = 0; pick_row(sc, s, k, sc->pick.samplers[i], sc->pick.walks[i]);) k++;
    }
}

static err_code on_host(sched *sc, err *e)
{
    err_code rc = model_forward(sc->m, sc->mem.kv, &sc->step, &sc->pick.logits, e);
    if (!rc) rc = pool_step(sc, e);
    sc->now->computed_us = clock_now_us();
    if (!rc && sc->step.n_logit > 0) be_parallel(sc->be, sample_some, sc, sc->pick.n_samplers);
    return rc;
}

/* --------------------------------------------------------------- on the device -- */

/* Where nothing can be picked (a form whose mask is late, or that is at its end), mask stays
 * NULL. */
static void mask_some(void *arg, int i)
{
    sched *sc = arg;
    for (int s = i; s < sc->step.n_seq; s += sc->pick.n_samplers) {
        request *rq = sc->now->row[s].owner;
        if (!has_mask(rq) || !wants_token(rq, sc->now->row[s].chunk)) continue;
        if (!find_mask(sc, s, 0, sc->pick.walks[i])) sc->rows.mask[s] = NULL;
    }
}

/* A step with grammars is settled before another is planned: mask is its own. */
static void accept_some(void *arg, int i)
{
    sched *sc = arg;
    const flight *f = sched_in_flight(sc);
    for (int s = i; s < f->n_seq; s += sc->pick.n_samplers) {
        if (!f->row[s].owner || !f->row[s].owner->grammar || f->row[s].n_got == 0) continue;
        grammar_run *form = f->row[s].owner->grammar;
        grammar_run_accept(form, sc->pick.walks[i], f->picked[f->row[s].pick0].token);
        if (grammar_run_failed(form)) f->row[s].n_got = 0;
    }
}

/* A score of the token `score`, or, where that is -1, the k-th token of the step. */
static void add_row(sched *sc, int *n, int s, int logit, int32_t score, int k, sampled *to)
{
    const request *rq = sc->now->row[s].owner;
    int beam = sc->now->row[s].beam;
    assert(*n < sc->cfg.max_logits && logit >= 0 && logit < sc->step.n_logit);
    sc->now->end[*n] = (draw_end){to, s, score < 0};
    sc->rows.draw[(*n)++] =
        (sample_row){.logit = logit,
                     .score = score,
                     .rules = &rq->rules,
                     .n_top = rq->score_top,
                     .prompt = rq->prompt,
                     .n_prompt = rq->n_prompt,
                     .output = output_of(rq, beam),
                     .n_output = n_drawn(rq) + k,
                     .allowed = score < 0 ? sc->rows.mask[s] : NULL,
                     .n_vocab = drawn_from(sc, rq, score < 0 && form_of(rq, beam))};
}

static int list_rows(sched *sc)
{
    int n = 0;
    for (int s = 0; s < sc->step.n_seq; s++) {
        request *rq = sc->now->row[s].owner;
        for (int i = 0, next; i < sc->now->row[s].chunk && (next = scored_by(sc, s, i)) > 0; i++) {
            add_row(sc, &n, s, sc->now->row[s].logit0 + i, rq->prompt[next], 0,
                    &rq->out.score[next]);
        }
        if (!wants_token(rq, sc->now->row[s].chunk) || (has_mask(rq) && !sc->rows.mask[s]))
            continue;
        rq->run.draw_at = n;
        for (int k = 0; k <= sc->now->row[s].n_guess; k++) {
            int row = sc->now->row[s].pick0 + k;
            add_row(sc, &n, s, row, -1, k, &sc->now->picked[row]);
        }
    }
    return n;
}

static err_code on_device(sched *sc, err *e)
{
    flight *f = sc->now;
    err_code rc = model_enqueue(sc->m, sc->mem.kv, &sc->step, e);
    if (rc) return rc;
    bool masks = false;
    for (int s = 0; s < f->n_seq; s++) {
        sc->rows.mask[s] = NULL;
        masks |= has_mask(f->row[s].owner);
    }
    if (masks) be_parallel(sc->be, mask_some, sc, sc->pick.n_samplers);
    f->n_draw = list_rows(sc);
    f->got = f->n_draw > 0 ? model_sample(sc->m, sc->rows.draw, f->n_draw) : NULL;
    rc = pool_step(sc, e);
    if (sc->fly.overlaps) f->mark = be_mark(sc->be);
    return rc;
}

err_code sched_launch(sched *sc, err *e)
{
    flight *f = sc->now;
    assert(!f->up && sc->step.n_seq > 0 && sc->step.n_seq <= sc->cfg.max_seqs);
    f->n_seq = sc->step.n_seq;
    f->n_draw = 0;
    for (int s = 0; s < f->n_seq; s++) {
        flight_row *r = &f->row[s];
        r->pick0 = last_logit(sc, s);
        r->pos0 = r->owner->run.n_computed;
        r->ends = r->chunk == left_of(r->owner);
    }
    return be_can_sample(sc->be) ? on_device(sc, e) : on_host(sc, e);
}

err_code sched_collect(sched *sc, flight *f, err *e)
{
    if (!be_can_sample(sc->be)) return ERR_NONE;
    err_code rc = sc->fly.overlaps ? be_await(sc->be, f->mark, e) : be_sync(sc->be, e);
    f->computed_us = clock_now_us();
    if (rc) return rc;
    bool forms = false;
    for (int s = 0; s < f->n_seq; s++) forms |= f->row[s].owner && f->row[s].owner->grammar;
    for (int i = 0; i < f->n_draw; i++) {
        int s = f->end[i].seq;
        if (!f->row[s].owner) continue; /* what the request lent is gone */
        *f->end[i].to = f->got[i];
        if (!f->end[i].pick && f->got[i].token < 0) f->row[s].broken = true;
    }
    for (int i = 0; i < f->n_draw; i++) {
        int s = f->end[i].seq;
        if (f->row[s].owner && f->end[i].to == &f->picked[f->row[s].pick0]) sched_verify(f, s);
    }
    if (forms) be_parallel(sc->be, accept_some, sc, sc->pick.n_samplers);
    return ERR_NONE;
}
