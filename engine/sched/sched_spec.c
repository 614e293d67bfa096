/* sched_spec.c -- rows for tokens that are guessed (speculation), and which of them count.
 *
 * A decode row may be followed by rows for the tokens that spec.c guesses: same sequence, same
 * segment, the positions behind it.  Each is sampled as if it stood alone: with the text up to
 * its own guess, its own draw number, its own mask.  It counts if the rows before it gave what was
 * guessed.  As a row has the same bits in any company (backend.h), so has the answer.
 *
 * A model with recurrent states gets the state from before the step back (sched_state.c).
 *
 * Nothing else changes: what did not count leaves its K and V in positions behind the text, which
 * nobody reads before they are written again, and in no page that was published; a step with
 * guesses is settled before the next is planned; nobody is pre-empted for a guess.  While steps
 * fly (sched_flight.c) the last token is not known, so nothing can be guessed: where guesses would
 * pay, the step in flight is settled first.
 *
 * Threads: the engine's.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/sched/sched_inside.h"

/* Both of the next two tokens, before a step in flight is waited for. */
static const double worth_landing = 0.5;

/* ----------------------------------------------------------------------- the texts -- */

bool sched_spec_create(sched *sc)
{
    spec_rates_init(&sc->spec.rates);
    if (sc->cfg.speculate == 0) return true;
    sc->spec.texts = calloc((size_t)sc->cfg.max_seqs, sizeof(spec_text *));
    for (; sc->spec.texts && sc->spec.n_texts < sc->cfg.max_seqs; sc->spec.n_texts++) {
        if (!(sc->spec.texts[sc->spec.n_texts] = spec_text_create(sc->mem.max_context)))
            return false;
    }
    return sc->spec.texts != NULL;
}

void sched_spec_destroy(sched *sc)
{
    for (int i = 0; i < sc->spec.n_texts; i++) spec_text_destroy(sc->spec.texts[i]);
    free((void *)sc->spec.texts);
}

void sched_spec_leave(sched *sc, request *rq)
{
    sched_draft_leave(sc, rq);
    if (!rq->run.text) return;
    assert(sc->spec.n_texts < sc->cfg.max_seqs);
    sc->spec.texts[sc->spec.n_texts++] = rq->run.text;
    rq->run.text = NULL;
}

/* Its text, up to the last token that is known. */
static spec_text *text_of(sched *sc, request *rq)
{
    int known = history_len(rq) - rq->run.n_ahead;
    bool begins = !rq->run.text;
    if (begins) {
        assert(sc->spec.n_texts > 0); /* one for each seat */
        rq->run.text = sc->spec.texts[--sc->spec.n_texts];
        spec_text_begin(rq->run.text, known > SPEC_WINDOW ? known - SPEC_WINDOW : 0,
                        &sc->spec.rates);
    }
    for (int i; (i = spec_text_n(rq->run.text)) < known;) {
        spec_text_add(rq->run.text, history_at(rq, i), begins ? NULL : &sc->spec.rates);
    }
    return rq->run.text;
}

/* ----------------------------------------------------------------------- the price -- */

cost_work sched_guess_work(const cost_work *w, int n, int context)
{
    cost_work sum = *w;
    sum.decode += n;
    sum.attended += (double)n * context + (double)n * (n + 1) / 2;
    return sum;
}

int sched_guess_worth(const cost_model *c, cost_work *load, double *tokens, const spec_guess *g,
                      int most, int context, double bound_us, double copy_us)
{
    double sure = 1, us = cost_predict(c, load);
    const double before_us = us;
    int n = 0;
    if (c->n < COST_LEARNING) return 0;
    for (; n < most && n < g->n; n++) {
        cost_work more = sched_guess_work(load, 1, context + n);
        double more_us = cost_predict(c, &more);
        sure *= g->chance[n];
        if (copy_us >= 0) more_us += copy_us + (1 - sure) * (more_us - before_us);
        if (sure < SCHED_LEAST_CHANCE || more_us > bound_us) break;
        if (sure * us < SCHED_MARGIN * *tokens * (more_us - us)) break;
        *load = more;
        *tokens += sure;
        us = more_us;
    }
    return n;
}

/* ---------------------------------------------------------------------- the guesses -- */

/* Where the backend samples, the mask of each row would have to be made before the tokens in front
 * of it are known. */
static bool may_guess(const sched *sc, const request *rq)
{
    return !rq->beams && !(be_can_sample(sc->be) && (rq->grammar || rq->bars));
}

/* The request's next token is its first row's, and it is known what stands before. */
static bool is_open(const request *rq, int chunk)
{
    return chunk == 1 && left_of(rq) == 1 && rq->run.n_ahead == 0 && n_drawn(rq) > 0;
}

/* By what the text was like before, and by the form of the answer where it leaves one text. */
static void look(sched *sc, request *rq, int most, spec_guess *g)
{
    spec_text *t = text_of(sc, rq);
    spec_text_guess(t, most, g);
    if (!rq->grammar || most < 1) return;
    grammar_guess form = {.token = g->token,
                          .chance = g->chance,
                          .n = g->n,
                          .most = most < SPEC_MAX ? most : SPEC_MAX,
                          .sure = spec_text_form_chance(t)};
    grammar_run_expect(rq->grammar, sc->pick.walks[0], rq->out.token[n_drawn(rq) - 1], &form);
    g->n = form.n;
    for (int i = 0; i < g->n; i++) {
        if (g->token[i] >= vocab_of(sc, rq)) g->n = i;
    }
    if (g->n > 0 && g->token[0] == form.only) g->source = GUESS_FORM;
    spec_text_form(t, form.only);
}

/* How many of n guesses have pages: those that are free, and no others. */
static int with_pages(sched *sc, request *rq, int n)
{
    int room = rq->run.n_page * sc->mem.page_tokens - (rq->run.n_computed + 1);
    if (n <= room) return n;
    int need = pages_for(sc, rq->run.n_computed + 1 + n) - rq->run.n_page;
    if (sc->plan.pages_short || !kv_claim(sc->mem.pages, need, false)) return room;
    bool got = sched_extend(sc, rq, 1 + n);
    assert(got);
    (void)got;
    return n;
}

static int least_of(int a, int b)
{
    return a < b ? a : b;
}

void sched_guess_place(sched *sc, int s, const spec_guess *g, int n)
{
    request *rq = sc->now->row[s].owner;
    n = with_pages(sc, rq, n);
    for (int i = 0; i < n; i++) rq->out.token[n_drawn(rq) + i] = g->token[i];
    sc->plan.rows_left -= n;
    sc->plan.n_logit += n;
    sc->now->row[s].n_guess = n;
    sc->now->row[s].source = g->source;
}

/* Rows behind the one of sequence s; where nothing that is free pays, the draft model may know. */
static void guess(sched *sc, int s, double *tokens, double bound_us)
{
    request *rq = sc->now->row[s].owner;
    spec_guess g;
    if (!is_open(rq, sc->now->row[s].chunk) || !may_guess(sc, rq)) return;
    int most = least_of(sc->cfg.speculate, rq->max_tokens - n_drawn(rq) - 1);
    most = least_of(most, least_of(sc->plan.rows_left, sc->cfg.max_logits - sc->plan.n_logit));
    if (rq->run.snapshot_at > 0) /* its state is wanted at that position */
        most = least_of(most, rq->run.snapshot_at - (rq->run.n_computed + 1));
    look(sc, rq, most > 0 ? most : 0, &g);
    int n = sc->cfg.speculate_always
                ? g.n
                : sched_guess_worth(&sc->cost, &sc->plan.load, tokens, &g, g.n,
                                    rq->run.n_computed + 1, bound_us, sched_undo_us(sc));
    if (n > 0)
        sched_guess_place(sc, s, &g, n);
    else
        sched_draft_wish(sc, s, most);
}

/* Until the first of the tokens that would be in time without guesses is due. */
static double bound_us(const sched *sc, int64_t now)
{
    double step_us = cost_predict(&sc->cost, &sc->plan.load), bound = INFINITY;
    for (int s = 0; s < sc->step.n_seq; s++) {
        double slack = slack_of(sc->now->row[s].owner, now);
        if (slack > step_us) bound = fmin(bound, slack);
    }
    return bound;
}

void sched_guess(sched *sc, int64_t now)
{
    flight *f = sc->now;
    double tokens = 0;
    if (sc->cfg.speculate == 0) return;
    for (int s = 0; s < sc->step.n_seq; s++) {
        f->row[s].n_guess = 0;
        tokens += f->row[s].chunk == left_of(f->row[s].owner);
    }
    double bound = bound_us(sc, now);
    sched_draft_begin(sc);
    for (int s = 0; s < sc->step.n_seq && !sc->plan.must_land; s++) guess(sc, s, &tokens, bound);
    if (!sc->plan.must_land) sched_draft(sc, tokens, bound);
}

bool sched_spec_should_land(sched *sc)
{
    const flight *f = sched_in_flight(sc);
    if (!f || sc->cfg.speculate < 2) return false;
    for (int s = 0; s < f->n_seq; s++) {
        request *rq = f->row[s].owner;
        spec_guess g;
        cost_work load = f->work;
        double tokens = f->n_seq;
        if (!rq || !f->row[s].ends || !may_guess(sc, rq) || n_drawn(rq) + 2 > rq->max_tokens)
            continue;
        spec_text_guess(text_of(sc, rq), 2, &g); /* of these the first is being drawn */
        if (g.n < 2) continue;
        if (sc->cfg.speculate_always) return true;
        if (g.chance[0] * g.chance[1] >= worth_landing &&
            sched_guess_worth(&sc->cost, &load, &tokens, &g, 2, rq->run.n_computed, INFINITY,
                              sched_undo_us(sc)) == 2)
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------- which of them count -- */

bool sched_goes_on(const flight *f, int s, int k, int32_t token)
{
    const request *rq = f->row[s].owner;
    int n_pushed = atomic_load_explicit(&rq->out.n_pushed, memory_order_relaxed);
    return k < f->row[s].n_guess && token == rq->out.token[n_pushed + k] && !is_stop(rq, token);
}

/* Where the backend has sampled all rows: those behind the first wrong guess are dropped. */
void sched_verify(flight *f, int s)
{
    const sampled *t = f->picked + f->row[s].pick0;
    for (int k = 0; k <= f->row[s].n_guess && !f->row[s].broken; k++) {
        if (t[k].token < 0) {
            f->row[s].broken = true;
            return;
        }
        f->row[s].n_got++;
        if (!sched_goes_on(f, s, k, t[k].token)) return;
    }
}
