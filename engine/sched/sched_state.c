/* sched_state.c -- copies of recurrent states: for the prefix cache, and before draft tokens.
 *
 * A model with states continues a cached prefix only from a position whose state was copied when a
 * sequence was there.  The copy is made between two steps, so a chunk ends at the position: results
 * do not change, as no row depends on how a prompt is cut.  The rule (Pan et al. 2025, "Marconi",
 * and SGLang's radix cache of states are near it) takes snapshots only where a prefix is likely to
 * come again:
 *     branch   where the pages of an earlier prompt continue this one, and no snapshot is: the
 *              prefix has come twice
 *     prompt   at the end of the prompt's last whole page: the same prompt again, or its next turn
 *     answer   at every snapshot_pages pages of the answer, each in place of the one before: the
 *              next turn continues a conversation
 * and none that saves fewer tokens than snapshot_pages pages have.  So a prompt of any length costs
 * at most three snapshots, and bytes per saved token fall with its length.
 *
 * Before a step with draft tokens a sequence's state is copied into a spare slot.  If all of them
 * are right, the spare is given up.  Else it becomes the sequence's slot, and the next step
 * computes the accepted rows again, with the token behind them.  Their keys and values are written
 * twice with the same bits, so their pages are published only then.  That step has no draft tokens,
 * or the rows to compute again would grow without end.
 *
 * Threads: the engine's.
 */
#include <assert.h>

#include "engine/sched/sched_inside.h"

/* Tokens that a snapshot must save at least. */
static int least_saved(const sched *sc)
{
    return sc->mem.snapshot_pages * sc->mem.page_tokens;
}

/* The last page end of the prompt that leaves a row to compute. */
static int prompt_end(const sched *sc, const request *rq)
{
    return (rq->n_prompt - 1) / sc->mem.page_tokens * sc->mem.page_tokens;
}

/* Of the answer: the last place of the grid that its text has reached, else the next one. */
static int answer_place(const sched *sc, const request *rq)
{
    int every = least_saved(sc), last = (history_len(rq) - 1) / every * every;
    if (last <= rq->run.n_computed) last += every;
    while (last - rq->run.snapped < every) last += every;
    return last;
}

/* The next position whose state the prefix cache should have; 0: none. */
static int next_place(const sched *sc, const request *rq)
{
    int at = rq->run.n_computed, least = rq->run.snapped + least_saved(sc);
    if (!keeps_state(sc) || !sc->cfg.prefix_cache || scores(rq)) return 0;
    if (rq->run.branch > at && rq->run.branch >= least) return rq->run.branch;
    if (rq->pool) return 0; /* another text follows */
    int end = prompt_end(sc, rq);
    return end > at && end >= least ? end : answer_place(sc, rq);
}

int sched_snapshot_cut(sched *sc, request *rq, int n)
{
    rq->run.snapshot_at = next_place(sc, rq);
    int most = rq->run.snapshot_at - rq->run.n_computed;
    return rq->run.snapshot_at > 0 && n > most ? most : n;
}

void sched_snapshot_take(sched *sc, request *rq)
{
    int at = rq->run.n_computed, page = at / sc->mem.page_tokens - 1;
    if (at == 0 || at != rq->run.snapshot_at) return;
    bool of_answer = at > rq->n_prompt;
    int instead =
        of_answer && rq->run.answer_pages > 0 ? rq->run.page[rq->run.answer_pages - 1] : -1;
    int slot = kv_snapshot_put(sc->mem.pages, rq->run.page[page], instead);
    if (slot >= 0) state_copy(sc->mem.states, state_kept(sc->mem.states, slot), rq->run.state_slot);
    if (of_answer)
        rq->run.answer_pages = page + 1;
    else
        rq->run.snapped = at;
}

int sched_snapshot_find(sched *sc, request *rq)
{
    int slot, found = rq->run.n_page;
    if (!keeps_state(sc)) return -1;
    rq->run.n_page = kv_snapshot_get(sc->mem.pages, rq->run.page, found, &slot);
    rq->run.snapped = rq->run.n_page * sc->mem.page_tokens;
    rq->run.branch = found * sc->mem.page_tokens;
    for (int i = found - 1; i >= rq->run.n_page; i--) kv_release(sc->mem.pages, rq->run.page[i]);
    return slot;
}

void sched_snapshot_restore(sched *sc, request *rq, int slot)
{
    assert(slot >= 0 && rq->run.n_computed > 0);
    state_copy(sc->mem.states, rq->run.state_slot, state_kept(sc->mem.states, slot));
}

/* ------------------------------------------------------------------ draft tokens -- */

/* Of the newest copy in the mean. */
static const double newest = 0.1;

void sched_state_guard(sched *sc)
{
    for (int s = 0; keeps_state(sc) && s < sc->step.n_seq; s++) {
        request *rq = sc->now->row[s].owner;
        if (sc->now->row[s].n_guess == 0) continue;
        assert(!rq->run.guarded && !sched_in_flight(sc));
        int64_t began_us = clock_now_us();
        rq->run.state_spare = state_take_spare(sc->mem.states);
        rq->run.guarded = true;
        state_copy(sc->mem.states, rq->run.state_spare, rq->run.state_slot);
        sc->mem.copy_us += newest * ((double)(clock_now_us() - began_us) - sc->mem.copy_us);
    }
}

void sched_state_unguard(sched *sc, request *rq, bool undone)
{
    if (!rq->run.guarded) return;
    int old = undone ? rq->run.state_slot : rq->run.state_spare;
    if (undone) rq->run.state_slot = rq->run.state_spare;
    state_release_spare(sc->mem.states, old);
    rq->run.guarded = false;
}

double sched_undo_us(const sched *sc)
{
    return keeps_state(sc) ? sc->mem.copy_us : -1;
}
