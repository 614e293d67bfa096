/* sched_pages.c -- pages of the prefix cache that come from another engine, or go there, and
 * snapshots of recurrent states beside them.
 *
 * Nothing is pinned for it: a request that left (request_leave()) has its whole pages in the cache
 * until room is needed, and what came lies there until a request finds it.  So a page that is lost
 * on the way costs its computation, and nothing else.  Of a model with states, pages count up to
 * the last one with a snapshot.
 *
 * A job is a stranger's struct on his stack.  The engine does one between two steps, when no step
 * is in flight, unless it only looks; how long it takes is bounded by the caller's number of pages,
 * or by the size of one state.  It never waits.
 */
#include <assert.h>
#include <stdlib.h>

#include "engine/base/lock.h"
#include "engine/sched/sched_inside.h"

typedef struct page_job page_job;

struct page_job {
    page_job *next;
    const sched_text *text;
    int first, n;
    bool state;              /* instead of pages, the state at the end of `first` pages; n is 0 */
    const unsigned char *in; /* [n] pages to be loaded, or */
    unsigned char *out;      /* [n] pages to be saved; both NULL: a look */
    int rank;
    int32_t *page; /* [first + n] */
    int n_done;
    double us;
    bool begun, over; /* guarded by sched.mu */
    err why;          /* of what failed; its code is ERR_NONE else */
};

/* Nothing is copied: a step may be in flight, and the device is not waited for. */
static bool is_look(const page_job *j)
{
    return !j->in && !j->out;
}

int sched_text_pages(const sched *sc, const sched_text *t)
{
    return t->n_token > 0 ? (t->n_token - 1) / sc->mem.page_tokens : 0;
}

size_t sched_page_bytes(const sched *sc)
{
    attn_shape shape = model_attn_shape(sc->m);
    return be_kv_saved_bytes(sc->be, &shape);
}

size_t sched_state_bytes(const sched *sc)
{
    return model_state_floats(model_get_config(sc->m)) * sizeof(float);
}

int sched_pages_least(const sched *sc)
{
    return sched_state_bytes(sc) > 0 ? sc->mem.snapshot_pages : 1;
}

/* --------------------------------------------------------------- engine thread -- */

/* What computing the pages behind `have` would take. */
static double compute_us(const sched *sc, const page_job *j, int have)
{
    const cost_work none = {0};
    if (sc->cost.n < COST_LEARNING) return 0;
    int from = have * sc->mem.page_tokens, n = j->n * sc->mem.page_tokens - from;
    cost_work w = cost_with_chunk(&none, n, from, j->rank);
    return cost_predict(&sc->cost, &w) - cost_predict(&sc->cost, &none);
}

static void save(sched *sc, page_job *j, int have)
{
    size_t bytes = sched_page_bytes(sc);
    for (int i = j->first; i < have; i++)
        be_kv_save(sc->be, sc->mem.kv, j->page[i], j->out + (size_t)(i - j->first) * bytes);
    be_kv_copied(sc->be);
    j->n_done = have > j->first ? have - j->first : 0;
}

/* Returns how many stand in j->page then, held by us. */
static int load(sched *sc, page_job *j, int have)
{
    size_t bytes = sched_page_bytes(sc);
    int want = j->first + j->n - have, room = kv_available(sc->mem.pages, true);
    if (have < j->first || want <= 0) return have;
    if (want > room) want = room;
    if (!kv_claim(sc->mem.pages, want, true)) return have;
    for (int end = have + want; have < end; have++) {
        int page = kv_take(sc->mem.pages);
        assert(page >= 0); /* it was claimed */
        j->page[have] = page;
        be_kv_load(sc->be, sc->mem.kv, page, j->in + (size_t)(have - j->first) * bytes);
    }
    (void)kv_claim(sc->mem.pages, 0, false);
    be_kv_copied(sc->be);
    return have;
}

static void publish(sched *sc, page_job *j, int from, int to)
{
    const sched_text *t = j->text;
    for (int i = from; i < to; i++)
        kv_publish(sc->mem.pages, &t->domain, j->page, i,
                   t->token + (size_t)i * sc->mem.page_tokens);
    j->n_done = to > j->first ? to - j->first : 0;
}

static void look(const sched *sc, page_job *j, int have)
{
    int slot;
    j->n_done = keeps_state(sc) ? kv_snapshot_find(sc->mem.pages, j->page, have, &slot) : have;
    j->us = compute_us(sc, j, j->n_done);
}

/* A slot is written, and read, when nothing that was enqueued before uses it any more. */
static err_code copy_slot(sched *sc, const page_job *j, int slot, err *e)
{
    float *there = state_at(sc->mem.states, state_kept(sc->mem.states, slot));
    size_t bytes = state_bytes(sc->mem.states);
    err_code rc = be_sync(sc->be, e);
    if (rc) return rc;
    rc = j->in ? be_upload(sc->be, there, j->in, bytes) : be_download(sc->be, j->out, there, bytes);
    return rc ? err_set(e, rc, "a snapshot of a state cannot be copied") : ERR_NONE;
}

/* False: the device has failed. */
static bool copy_state(sched *sc, page_job *j, int have)
{
    int slot;
    if (have < j->first) return true;
    bool there = kv_snapshot_find(sc->mem.pages, j->page, have, &slot) == have;
    if (!there && j->out) return true;
    j->n_done = 1;
    if (there && j->in) return true; /* the same bits */
    if (j->in) slot = kv_snapshot_put(sc->mem.pages, j->page[have - 1], -1);
    assert(slot >= 0); /* the page is published */
    return copy_slot(sc, j, slot, &j->why) == ERR_NONE;
}

/* False: the device has failed. */
static bool copy(sched *sc, page_job *j)
{
    const sched_text *t = j->text;
    int have = kv_match(sc->mem.pages, &t->domain, &sc->mem.see, t->token, t->n_token, j->page,
                        j->first + j->n);
    int all = have;
    bool good = true;
    if (is_look(j)) {
        look(sc, j, have);
    } else if (j->state) {
        good = copy_state(sc, j, have);
    } else {
        if (j->out) save(sc, j, have);
        if (j->in) all = load(sc, j, have);
        good = be_sync(sc->be, &j->why) == ERR_NONE;
        if (good && j->in) publish(sc, j, have, all);
    }
    if (good) j->why.code = ERR_NONE;
    for (int i = all - 1; i >= 0; i--)
        kv_release(sc->mem.pages, j->page[i]); /* the tail goes first */
    return good;
}

static void end_job(sched *sc, page_job *j)
{
    lock_take(&sc->mu);
    j->over = true;
    cond_broadcast(&sc->shared.job_done);
    lock_release(&sc->mu);
}

page_job *sched_take_job(sched *sc)
{
    lock_assert_held(&sc->mu);
    page_job *j = sc->shared.jobs;
    if (j) {
        sc->shared.jobs = j->next;
        j->begun = true;
    }
    return j;
}

void sched_do_job(sched *sc, page_job *j)
{
    if (!is_look(j)) sched_land(sc);
    int64_t began_us = clock_now_us();
    if (sc->faults.dead)
        (void)err_set(&j->why, ERR_DEVICE, "the device has failed");
    else if (!copy(sc, j))
        sched_restart(sc, &j->why);
    sched_cause_lost(sc, MISS_SWAP, began_us, clock_now_us());
    end_job(sc, j);
}

void sched_end_jobs(sched *sc)
{
    lock_take(&sc->mu);
    for (page_job *j = sc->shared.jobs; j; j = j->next) {
        (void)err_set(&j->why, ERR_STOPPING, "the server is shutting down");
        j->over = true;
    }
    sc->shared.jobs = NULL;
    cond_broadcast(&sc->shared.job_done);
    lock_release(&sc->mu);
}

/* --------------------------------------------------------------------- callers -- */

/* mu is held. */
static void take_out(sched *sc, const page_job *j)
{
    lock_assert_held(&sc->mu);
    page_job **link = &sc->shared.jobs;
    while (*link != j) link = &(*link)->next;
    *link = j->next;
}

static err_code await(sched *sc, page_job *j, int64_t until_us)
{
    lock_take(&sc->mu);
    page_job **link = &sc->shared.jobs;
    if (sc->shared.stop) {
        (void)err_set(&j->why, ERR_STOPPING, "the server is shutting down");
        j->over = true;
    } else {
        while (*link) link = &(*link)->next;
        *link = j;
        cond_signal(&sc->shared.work);
    }
    while (!j->over) {
        if (j->begun) {
            cond_wait(&sc->shared.job_done, &sc->mu);
        } else if (!cond_wait_until(&sc->shared.job_done, &sc->mu, until_us) && !j->begun &&
                   !j->over) {
            take_out(sc, j);
            (void)err_set(&j->why, ERR_TIMEOUT, "the engine had no time for it");
            j->over = true;
        }
    }
    lock_release(&sc->mu);
    return j->why.code;
}

err_code sched_pages_check(const sched *sc, err *e)
{
    if (!sc->cfg.prefix_cache) return err_set(e, ERR_UNSUPPORTED, "there is no prefix cache");
    if (sc->mem.see.window > 0)
        return err_set(e, ERR_UNSUPPORTED, "pages of a model of streams are not all there");
    return ERR_NONE;
}

static err_code do_job(sched *sc, page_job *j, int64_t until_us, err *e)
{
    assert(j->first >= 0 && j->n >= 0 && j->first + j->n <= sched_text_pages(sc, j->text));
    err_code rc = sched_pages_check(sc, e);
    if (rc) return rc;
    j->page = calloc((size_t)(j->first + j->n) + 1, sizeof(*j->page));
    if (!j->page) return err_set(e, ERR_NOMEM, "out of memory");
    rc = await(sc, j, until_us);
    free(j->page);
    if (rc) *e = j->why;
    return rc;
}

err_code sched_pages_look(sched *sc, const sched_text *t, int rank, int64_t until_us, int *n_have,
                          double *us, err *e)
{
    page_job j = {.text = t, .n = sched_text_pages(sc, t), .rank = rank};
    err_code rc = do_job(sc, &j, until_us, e);
    *n_have = j.n_done;
    *us = j.us;
    return rc;
}

err_code sched_pages_save(sched *sc, const sched_text *t, int first, int n, void *out,
                          int64_t until_us, int *n_done, err *e)
{
    page_job j = {.text = t, .first = first, .n = n, .out = out};
    err_code rc = do_job(sc, &j, until_us, e);
    *n_done = rc ? 0 : j.n_done;
    return rc;
}

err_code sched_pages_load(sched *sc, const sched_text *t, int first, int n, const void *in,
                          int64_t until_us, int *n_done, err *e)
{
    page_job j = {.text = t, .first = first, .n = n, .in = in};
    err_code rc = do_job(sc, &j, until_us, e);
    *n_done = rc ? 0 : j.n_done;
    return rc;
}

err_code sched_state_save(sched *sc, const sched_text *t, int n_pages, void *out, int64_t until_us,
                          bool *done, err *e)
{
    assert(n_pages > 0);
    page_job j = {.text = t, .first = n_pages, .state = true, .out = out};
    err_code rc = do_job(sc, &j, until_us, e);
    *done = !rc && j.n_done > 0;
    return rc;
}

err_code sched_state_load(sched *sc, const sched_text *t, int n_pages, const void *in,
                          int64_t until_us, bool *done, err *e)
{
    assert(n_pages > 0);
    page_job j = {.text = t, .first = n_pages, .state = true, .in = in};
    err_code rc = do_job(sc, &j, until_us, e);
    *done = !rc && j.n_done > 0;
    return rc;
}
