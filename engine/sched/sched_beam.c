/* sched_beam.c -- a beam search in the batch: one request with a sequence for each live beam.
 *
 * Until the prompt is computed it is one sequence with one block table.  Then each beam has a row
 * in every step and a table of its own, all of the same length.  After a step, beam_step() says
 * which beam each one continues: tables are copied, their pages shared.  A page that several tables
 * have and that the next rows write to is copied first (copy on write), so beams differ in the
 * pages behind the place where their texts part.  Seats for all beams are taken at once, and a beam
 * search runs or gives way as a whole.  When it comes back, each beam's tokens are computed again
 * behind the prompt.
 *
 * Only pages of the prompt are published.  A step with rows of several beams is settled before the
 * next one is planned.
 */
#include <assert.h>
#include <string.h>

#include "engine/sched/sched_inside.h"

err_code sched_beam_check(const sched *sc, const request *rq, err *e)
{
    int width = width_of(rq), n_stop = rq->rules.n_stop_id;
    assert(!rq->grammar && !rq->pool && !rq->score_prompt);
    if (keeps_state(sc) || sc->mem.see.window > 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "beam search is not supported for this model, whose layers keep a state or "
                       "forget what they have read");
    if (width > sc->cfg.max_seqs)
        return err_set(e, ERR_INPUT, "%d beams are more than the %d sequences that run at once",
                       width, sc->cfg.max_seqs);
    if (rq->max_tokens < 1 || rq->rules.temperature > 0 ||
        rq->rules.n_top < beam_tops(width, n_stop))
        return err_set(e, ERR_INPUT, "%d beams with %d stop tokens are too many", width, n_stop);
    if (sched_beam_pages(sc, rq, rq->n_prompt + rq->max_tokens) > sc->mem.n_pages)
        return err_set(e, ERR_INPUT,
                       "%d beams of %d prompt and %d output tokens exceed the KV pages", width,
                       rq->n_prompt, rq->max_tokens);
    return ERR_NONE;
}

int sched_beam_pages(const sched *sc, const request *rq, int positions)
{
    int all = pages_for(sc, positions), shared = rq->n_prompt / sc->mem.page_tokens;
    return positions <= rq->n_prompt ? all : shared + width_of(rq) * (all - shared);
}

/* ------------------------------------------------------------------------- tables -- */

/* Behind the prompt each live beam has a table. */
static void spread(sched *sc, request *rq)
{
    for (; rq->run.n_table < beam_live(rq->beams->search); rq->run.n_table++) {
        int32_t *to = table_of(rq, rq->run.n_table);
        for (int i = 0; i < rq->run.n_page; i++) {
            to[i] = rq->run.page[i];
            kv_retain(sc->mem.pages, to[i]);
        }
    }
}

/* An earlier table has this page, too. */
static bool is_shared(const request *rq, int table, int i)
{
    for (int b = 0; b < table; b++) {
        if (table_of(rq, b)[i] == table_of(rq, table)[i]) return true;
    }
    return false;
}

int sched_beam_need(sched *sc, request *rq, int n)
{
    int more = pages_for(sc, rq->run.n_computed + n) - rq->run.n_page, need = 0;
    if (rq->run.n_computed < rq->n_prompt) return more;
    spread(sc, rq);
    for (int i = rq->run.n_computed / sc->mem.page_tokens; i < rq->run.n_page; i++)
        for (int b = 1; b < rq->run.n_table; b++) need += is_shared(rq, b, i);
    return more > 0 ? need + more * rq->run.n_table : need;
}

/* Its own page in place of the shared one. */
static bool part(sched *sc, request *rq, int table, int i)
{
    int32_t *at = &table_of(rq, table)[i];
    int page = kv_take(sc->mem.pages);
    if (page < 0) return false;
    if (i * sc->mem.page_tokens < rq->run.n_computed) be_kv_copy(sc->be, sc->mem.kv, *at, page);
    kv_release(sc->mem.pages, *at);
    *at = page;
    return true;
}

bool sched_beam_extend(sched *sc, request *rq, int n)
{
    int want = pages_for(sc, rq->run.n_computed + n);
    assert(want <= rq->run.page_cap && n >= 0);
    bool parts = rq->run.n_computed >= rq->n_prompt;
    for (int i = rq->run.n_computed / sc->mem.page_tokens; parts && i < rq->run.n_page; i++) {
        for (int b = 1; b < rq->run.n_table; b++)
            if (is_shared(rq, b, i) && !part(sc, rq, b, i)) return false;
    }
    for (; rq->run.n_page < want; rq->run.n_page++) {
        for (int b = 0; b < rq->run.n_table; b++) {
            int page = kv_take(sc->mem.pages);
            if (page < 0) return false;
            table_of(rq, b)[rq->run.n_page] = page;
        }
    }
    return true;
}

/* Each live beam has the pages of the one that it continues. */
static void follow_pages(sched *sc, request *rq, const int *parent)
{
    int live = beam_live(rq->beams->search), had = rq->run.n_table, n = rq->run.n_page;
    int32_t *made = table_of(rq, width_of(rq)); /* scratch */
    size_t cap = (size_t)rq->run.page_cap;
    for (int b = 0; b < live; b++)
        memcpy(made + (size_t)b * cap, table_of(rq, parent[b]), (size_t)n * sizeof(*made));
    for (int b = 0; b < live; b++) {
        for (int i = 0; i < n; i++) {
            int32_t page = made[(size_t)b * cap + (size_t)i];
            if (b >= had || table_of(rq, b)[i] != page) kv_retain(sc->mem.pages, page);
        }
    }
    for (int b = 0; b < had; b++) {
        for (int i = 0; i < n; i++) {
            int32_t page = table_of(rq, b)[i];
            if (b >= live || made[(size_t)b * cap + (size_t)i] != page)
                kv_release(sc->mem.pages, page);
        }
    }
    for (int b = 0; b < live; b++)
        memcpy(table_of(rq, b), made + (size_t)b * cap, (size_t)n * sizeof(*made));
    rq->run.n_table = live;
}

/* -------------------------------------------------------------------------- forms -- */

bool sched_beam_ready(sched *sc, const request *rq)
{
    grammar_run *const *form = rq->beams->form;
    for (int i = 0; form[0] && i < width_of(rq); i++) {
        bool live = i < beam_live(rq->beams->search);
        if (!grammar_run_still(form[i])) return false;
        if (live && !grammar_run_mask(form[i], sc->pick.walks[0])) return false;
    }
    return true;
}

/* The first beam that continues another takes its form over, and others get copies of it. */
static void hand_forms(request *rq, const int *parent)
{
    grammar_run **form = rq->beams->form, *made[BEAMS_MAX] = {NULL}, *had[BEAMS_MAX];
    int live = beam_live(rq->beams->search), width = width_of(rq), spare = 0;
    bool taken[BEAMS_MAX] = {false};
    memcpy(had, form, sizeof(had));
    for (int i = 0; i < live; i++) {
        if (!taken[parent[i]]) made[i] = had[parent[i]];
        taken[parent[i]] = true;
    }
    for (int i = 0; i < width; i++) {
        if (made[i]) continue;
        while (taken[spare]) spare++;
        taken[spare] = true;
        made[i] = had[spare];
        if (i < live) grammar_run_copy(made[i], had[parent[i]]);
    }
    memcpy(form, made, sizeof(made));
}

/* Beams whose forms are complete are answers.  A form that failed, or NULL. */
static const grammar_run *follow_forms(sched *sc, request *rq, int *parent)
{
    beam_search *b = rq->beams->search;
    grammar_run **form = rq->beams->form, *over[BEAMS_MAX];
    bool ended[BEAMS_MAX] = {false};
    int live = beam_live(b), kept = 0, n_over = 0;
    if (!form[0] || live == 0) return NULL;
    hand_forms(rq, parent);
    for (int i = 0; i < live; i++) {
        grammar_run_accept(form[i], sc->pick.walks[0], beam_text(b, i)[beam_length(b) - 1]);
        if (grammar_run_failed(form[i])) return form[i];
        ended[i] = grammar_run_over(form[i]);
    }
    beam_end(b, ended, parent);
    for (int i = 0; i < live; i++) {
        if (ended[i])
            over[n_over++] = form[i];
        else
            form[kept++] = form[i];
    }
    memcpy(form + kept, over, (size_t)n_over * sizeof(*over));
    return NULL;
}

/* ------------------------------------------------------------------------ results -- */

static void end_search(sched *sc, request *rq)
{
    const beam_search *b = rq->beams->search;
    err e;
    if (beam_answers(b) > 0) {
        sched_finish(sc, rq, beam_answer_cut(b, 0) ? FINISH_LENGTH : FINISH_STOP, NULL);
        return;
    }
    (void)err_set(&e, ERR_INPUT,
                  "no token may come here: the form of the answer and the tokens and words that "
                  "are barred leave nothing");
    sched_finish(sc, rq, FINISH_ERROR, &e);
}

void sched_beam_settle(sched *sc, flight *f, int s, int64_t now)
{
    request *rq = f->row[s].owner;
    beam_search *b = rq->beams->search;
    static const sampled nothing = {.token = -1};
    const sampled *row[BEAMS_MAX];
    int parent[BEAMS_MAX], n = 0;
    for (; s < f->n_seq && f->row[s].owner == rq; s++) {
        const grammar_run *form = form_of(rq, n);
        assert(f->row[s].beam == n && n < beam_live(b));
        if (f->row[s].broken) {
            sched_fail_numbers(sc, rq);
            return;
        }
        if (form && grammar_run_failed(form)) {
            sched_fail_form(sc, rq, form);
            return;
        }
        row[n++] = f->row[s].n_got > 0 ? &f->picked[f->row[s].pick0] : &nothing;
    }
    assert(n == beam_live(b));
    sched_meter_output(sc, rq, n, now);
    beam_step(b, row, rq->rules.stop_id, rq->rules.n_stop_id, parent);
    const grammar_run *failed = follow_forms(sc, rq, parent);
    if (failed)
        sched_fail_form(sc, rq, failed);
    else if (beam_over(b))
        end_search(sc, rq);
    else
        follow_pages(sc, rq, parent);
}
