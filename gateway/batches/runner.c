/* runner.c -- the list of batches, and the threads that take work from it.
 *
 *   pacer (1 thread)     every 20 ms: sets `allowed` by the engine's load (pace.h), writes counts
 *                        every minute: removes expired files and old batches
 *   workers (in_flight)  take one piece of work at a time, wait for its answer, take the next
 *
 * A piece of work is a step of a batch or a line of it.  pick_locked() goes round the list from
 * `turn`, so batches alternate line by line:
 *
 *   OPEN   read the rows and files; find which lines are answered already
 *   LINE   run a request; while open, and n_lines < allowed
 *   CLOSE  when every line is done, or the batch is cancelled, expired or without its key; only
 *          after its running lines have ended
 *
 * A job that a thread works on outside the lock is `busy` (a step, or its counts are being
 * written); others skip it.  Lines are counted in n_lines instead, so a job is never freed while
 * one runs.  A line that was refused for now goes to `again` with a time.  With as many of those as
 * threads, no new line of that batch begins, because it would be refused, too.
 *
 * If the journal may lack an answer (LINE_UNSURE), the batch is opened again, which reads from the
 * files what is there.
 */
#include "gateway/batches/runner.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/batches/batch_job.h"
#include "gateway/batches/blob.h"
#include "gateway/batches/pace.h"
#include "gateway/config/classes.h"
#include "gateway/engine_parts.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

enum {
    LOOK_US = 20000,      /* between looks at the engine, while there are batches */
    SAVE_US = 1000000,    /* between writes of a batch's counts */
    HOUSE_US = 60000000,  /* between looks for files whose time is over */
    TROUBLE_US = 5000000, /* before a step that has failed is tried again */
    AT_ONCE = 256,        /* files, rows of batches that one look removes */
};

struct batch_runner {
    server *srv;
    int n_threads, slo_class;
    pthread_t *thread; /* [n_threads], the first paces the others */
    int64_t house_us;  /* when files are looked at next; the pacer's */

    lock mu;   /* guards all below */
    cond work; /* there may be some, or it is time to stop: each who finds some wakes the next */
    cond look; /* the pacer's: a batch has come, or the same */
    batch_job *jobs, *turn; /* a list; whose turn is next, NULL: the first's */
    int n_jobs, n_lines, allowed;
    bool stop;
};

typedef struct work {
    enum { NOTHING, OPEN, LINE, CLOSE } kind;
    batch_job *job;
    batch_try line; /* of LINE */
} work;

/* What /metrics shows. */
static void show_locked(const batch_runner *r)
{
    lock_assert_held(&r->mu);
    atomic_store(&process_of(r->srv)->batch_count.n_batches, r->n_jobs);
    atomic_store(&process_of(r->srv)->batch_count.n_lines, r->n_lines);
    atomic_store(&process_of(r->srv)->batch_count.allowed, r->allowed);
}

/* ------------------------------------------------------------------------------- picking -- */

/* Whether the remaining lines are not run: cancelled, its key is gone, or its time is over. */
static bool is_over(const batch_job *j)
{
    return j->cancelling || j->keyless || clock_wall_us() >= j->row.deadline_us;
}

static bool take_line_locked(batch_runner *r, batch_job *j, int64_t now, batch_try *out)
{
    lock_assert_held(&r->mu);
    if (r->n_lines >= r->allowed) return false;
    for (int i = 0; i < j->n_again; i++) {
        if (j->again[i].at_us > now) continue;
        assert(j->again[i].line < j->done.n && !j->done.line[j->again[i].line]);
        *out = j->again[i];
        j->again[i] = j->again[--j->n_again];
        return true;
    }
    if (j->n_again >= r->n_threads) return false; /* it is limited: others would be, too */
    while (j->cursor < j->done.n && j->done.line[j->cursor]) j->cursor++;
    if (j->cursor == j->done.n) return false;
    *out = (batch_try){.line = j->cursor++};
    return true;
}

static int kind_of_work_locked(batch_runner *r, batch_job *j, int64_t now, batch_try *line)
{
    if (j->busy || now < j->resume_us) return NOTHING;
    if (!j->open) return j->n_lines ? NOTHING : OPEN;
    bool all = j->n_again == 0 && j->cursor == j->done.n;
    if (all || is_over(j)) return j->n_lines ? NOTHING : CLOSE;
    return take_line_locked(r, j, now, line) ? LINE : NOTHING;
}

/* The next piece of work, batch by batch. */
static bool pick_locked(batch_runner *r, work *out)
{
    lock_assert_held(&r->mu);
    int64_t now = clock_now_us();
    batch_job *j = r->turn ? r->turn : r->jobs;
    if (r->stop || atomic_load(&process_of(r->srv)->http.draining)) return false;
    for (int i = 0; i < r->n_jobs; i++, j = j->next ? j->next : r->jobs) {
        int kind = kind_of_work_locked(r, j, now, &out->line);
        if (kind == NOTHING) continue;
        out->kind = kind;
        out->job = j;
        r->turn = j->next;
        if (kind == LINE) {
            j->n_lines++;
            r->n_lines++;
            show_locked(r);
        } else {
            j->busy = true;
        }
        return true;
    }
    return false;
}

/* -------------------------------------------------------------------------------- doing -- */

static void remove_locked(batch_runner *r, batch_job *j)
{
    lock_assert_held(&r->mu);
    batch_job **at = &r->jobs;
    while (*at != j) at = &(*at)->next;
    *at = j->next;
    if (r->turn == j) r->turn = j->next;
    assert(r->n_jobs > 0 && j->n_lines == 0);
    r->n_jobs--;
}

/* A step of the whole batch; the lock is not held. */
static void do_step(batch_runner *r, const work *w)
{
    batch_job *j = w->job;
    err e;
    bool ended = false;
    err_code rc =
        w->kind == OPEN ? batch_job_open(j, r->srv, &ended, &e) : batch_job_close(j, r->srv, &e);
    if (rc) log_error("gateway", "batch %s waits: %s", j->row.id, e.msg);
    lock_take(&r->mu);
    j->busy = false;
    if (rc) j->resume_us = clock_now_us() + TROUBLE_US;
    ended |= w->kind == CLOSE && !rc;
    if (ended) remove_locked(r, j);
    show_locked(r);
    lock_release(&r->mu);
    if (!ended) return;
    log_info("gateway", "batch %s is %s: %lld of %lld lines answered, %lld not", j->row.id,
             batch_status_name(j->row.status), (long long)j->row.completed, (long long)j->row.total,
             (long long)j->row.failed);
    batch_job_free(j);
}

/* Records the outcome of a line. */
static void note_fate_locked(batch_runner *r, batch_job *j, const line_job *l, line_fate fate)
{
    assert(l->line >= 0 && l->line < j->done.n && !j->done.line[l->line]);
    if (fate == LINE_ANSWERED || fate == LINE_REFUSED) {
        j->done.line[l->line] = 1;
        j->done.count[fate == LINE_ANSWERED ? BATCH_OUTPUT : BATCH_ERRORS]++;
        batch_counts *c = &process_of(r->srv)->batch_count;
        atomic_fetch_add(fate == LINE_ANSWERED ? &c->completed : &c->failed, 1);
        j->unsaved = true;
        return;
    }
    atomic_fetch_add(&process_of(r->srv)->batch_count.retried, 1);
    j->keyless |= fate == LINE_KEYLESS;
    if (fate == LINE_UNSURE) j->open = false; /* and nothing runs until it was read anew */
    assert(j->n_again < 2 * r->n_threads);    /* batch_job_create() */
    j->again[j->n_again++] = (batch_try){
        .line = l->line, .n_tries = l->n_tries, .at_us = clock_now_us() + l->retry_ms * 1000};
}

static void do_line(batch_runner *r, const work *w)
{
    batch_job *j = w->job;
    line_job l = {.srv = r->srv,
                  .row = &j->row,
                  .lines = &j->lines,
                  .journal = &j->journal,
                  .line = w->line.line,
                  .n_tries = w->line.n_tries,
                  .slo_class = r->slo_class};
    line_fate fate = line_run(&l);
    lock_take(&r->mu);
    note_fate_locked(r, j, &l, fate);
    assert(j->n_lines > 0 && r->n_lines > 0);
    j->n_lines--;
    r->n_lines--;
    show_locked(r);
    lock_release(&r->mu);
}

static void *work_main(void *arg)
{
    batch_runner *r = arg;
    work w = {0};
    lock_take(&r->mu);
    while (!r->stop) {
        if (!pick_locked(r, &w)) {
            cond_wait(&r->work, &r->mu);
            continue;
        }
        cond_signal(&r->work);
        lock_release(&r->mu);
        if (w.kind == LINE)
            do_line(r, &w);
        else
            do_step(r, &w);
        lock_take(&r->mu);
    }
    lock_release(&r->mu);
    return NULL;
}

/* ------------------------------------------------------------------------------- pacing -- */

/* How many more urgent requests this process has, and the tightest of their targets per token. */
static void look_at_others(const batch_runner *r, const config *conf, pace_view *v)
{
    inflight_info *list;
    size_t n;
    if (!inflight_list(tenants_of(r->srv)->inflight, &list, &n)) return;
    for (size_t i = 0; i < n; i++) {
        const config_class *c = &conf->classes.each[list[i].slo_class];
        if (list[i].slo_class >= r->slo_class) continue;
        v->n_urgent++;
        if (v->tpot_us == 0 || c->tpot_us < v->tpot_us) v->tpot_us = c->tpot_us;
    }
    free(list);
}

/* Would a short request of a more urgent class have its first token late? */
static bool is_late(batch_runner *r, const config *conf)
{
    request probe;
    bool late = false;
    request_init(&probe);
    probe.n_prompt = 64;
    probe.max_tokens = 64;
    for (int c = 0; !late && c < r->slo_class; c++) {
        probe.slo_class = c;
        probe.ttft_deadline_us = conf->classes.each[c].ttft_us;
        probe.tpot_target_us = conf->classes.each[c].tpot_us;
        late = sched_retry_us(sched_of(r->srv), &probe) > 0;
    }
    request_clear(&probe);
    return late;
}

static void look(batch_runner *r)
{
    sched_stats st;
    sched_stats_get(sched_of(r->srv), &st);
    pace_view v = {.most = (int)process_of(r->srv)->cfg->batches.in_flight,
                   .max_seqs = (int)process_of(r->srv)->cfg->engine.max_seqs,
                   .n_running = st.n_running,
                   .n_waiting = st.n_waiting,
                   .crowded = st.n_pages_used > st.n_pages - st.n_pages / 8,
                   .step_us = st.last.us};
    const config *conf = live_pin(process_of(r->srv)->live);
    look_at_others(r, conf, &v);
    v.late = v.n_urgent > 0 && is_late(r, conf);
    live_release(process_of(r->srv)->live, conf);
    lock_take(&r->mu);
    v.n_lines = r->n_lines;
    r->allowed = pace_next(r->allowed, &v);
    show_locked(r);
    cond_signal(&r->work);
    lock_release(&r->mu);
}

/* A batch whose counts have not been written for a while, which is kept from ending meanwhile. */
static batch_job *unsaved_locked(batch_runner *r, int64_t now, batch_row *row)
{
    lock_assert_held(&r->mu);
    for (batch_job *j = r->jobs; j; j = j->next) {
        if (j->busy || !j->open || !j->unsaved || now - j->saved_us < SAVE_US) continue;
        j->busy = true;
        j->unsaved = false;
        j->saved_us = now;
        j->row.completed = j->done.count[BATCH_OUTPUT];
        j->row.failed = j->done.count[BATCH_ERRORS];
        *row = j->row;
        return j;
    }
    return NULL;
}

static void save_counts(batch_runner *r)
{
    batch_row row;
    batch_status now = BATCH_IN_PROGRESS;
    err e;
    lock_take(&r->mu);
    batch_job *j = unsaved_locked(r, clock_now_us(), &row);
    lock_release(&r->mu);
    if (!j) return;
    err_code rc = batches_update(store_of(r->srv), &row, &now, &e);
    lock_take(&r->mu);
    j->busy = false;
    j->unsaved |= rc != ERR_NONE;
    j->cancelling |= now == BATCH_CANCELLING;
    lock_release(&r->mu);
}

static void keep_house(batch_runner *r)
{
    file_row *list;
    size_t n;
    err e;
    int64_t now = clock_now_us(), wall = clock_wall_us();
    if (now < r->house_us) return;
    r->house_us = now + HOUSE_US;
    const config *c = live_pin(process_of(r->srv)->live);
    int64_t keep_us = c->files.keep_us;
    live_release(process_of(r->srv)->live, c);
    if (files_expire(store_of(r->srv), wall, AT_ONCE, &list, &n, &e)) {
        log_error("gateway", "files stay beyond their time: %s", e.msg);
        return;
    }
    for (size_t i = 0; i < n; i++)
        (void)blob_remove(process_of(r->srv)->cfg->data.dir, list[i].tenant_id, list[i].id, &e);
    if (n) log_info("gateway", "%zu files were deleted: they had expired", n);
    free(list);
    if (keep_us && batches_prune(store_of(r->srv), wall - keep_us, AT_ONCE, &e))
        log_error("gateway", "old batches stay: %s", e.msg);
}

static void *pace_main(void *arg)
{
    batch_runner *r = arg;
    lock_take(&r->mu);
    while (!r->stop) {
        int64_t pause_us = r->n_jobs ? LOOK_US : HOUSE_US;
        (void)cond_wait_until(&r->look, &r->mu, clock_now_us() + pause_us);
        if (r->stop) break;
        bool some = r->n_jobs > 0;
        lock_release(&r->mu);
        if (some) {
            look(r);
            save_counts(r);
        }
        keep_house(r);
        lock_take(&r->mu);
    }
    lock_release(&r->mu);
    return NULL;
}

/* --------------------------------------------------------------------------------- life -- */

err_code batch_runner_add(batch_runner *r, const batch_row *row, err *e)
{
    batch_job *j = batch_job_create(row, r->n_threads);
    if (!j) return err_set(e, ERR_NOMEM, "out of memory");
    lock_take(&r->mu);
    batch_job **at = &r->jobs;
    while (*at) at = &(*at)->next;
    *at = j;
    r->n_jobs++;
    show_locked(r);
    cond_signal(&r->work);
    cond_signal(&r->look);
    lock_release(&r->mu);
    return ERR_NONE;
}

void batch_runner_cancel(batch_runner *r, const char *id)
{
    lock_take(&r->mu);
    for (batch_job *j = r->jobs; j; j = j->next) j->cancelling |= strcmp(j->row.id, id) == 0;
    cond_signal(&r->work);
    lock_release(&r->mu);
}

static err_code take_up(batch_runner *r, err *e)
{
    batch_row *list;
    size_t n;
    err_code rc = batches_unfinished(store_of(r->srv), &list, &n, e);
    if (rc) return rc;
    (void)blob_sweep(process_of(r->srv)->cfg->data.dir, store_of(r->srv), list, n);
    for (size_t i = 0; !rc && i < n; i++) rc = batch_runner_add(r, &list[i], e);
    if (n) log_info("gateway", "%zu batches go on", n);
    batch_rows_free(list, n);
    return rc;
}

static err_code start_threads(batch_runner *r, err *e)
{
    int want = r->n_threads + 1;
    r->thread = calloc((size_t)want, sizeof(*r->thread));
    int n = 0;
    while (r->thread && n < want &&
           pthread_create(&r->thread[n], NULL, n ? work_main : pace_main, r) == 0)
        n++;
    if (n == want) return ERR_NONE;
    r->n_threads = n - 1;
    return err_set(e, ERR_NOMEM, "cannot start the threads of batches");
}

err_code batch_runner_start(batch_runner **out, server *s, err *e)
{
    batch_runner *r = calloc(1, sizeof(*r));
    if (!r) return err_set(e, ERR_NOMEM, "out of memory");
    const char *class = process_of(s)->cfg->batches.class;
    r->srv = s;
    r->slo_class =
        class[0] ? class_of_name(&process_of(s)->cfg->classes, class) : engine_of(s)->n_class - 1;
    r->n_threads = (int)process_of(s)->cfg->batches.in_flight;
    lock_init(&r->mu, LOCK_BATCHES);
    cond_init(&r->work);
    cond_init(&r->look);
    err_code rc = take_up(r, e);
    if (!rc) rc = start_threads(r, e);
    if (rc) {
        batch_runner_stop(r);
        return rc;
    }
    *out = r;
    return ERR_NONE;
}

void batch_runner_stop(batch_runner *r)
{
    if (!r) return;
    lock_take(&r->mu);
    r->stop = true;
    cond_broadcast(&r->work);
    cond_broadcast(&r->look);
    lock_release(&r->mu);
    for (int i = 0; r->thread && i <= r->n_threads; i++) (void)pthread_join(r->thread[i], NULL);
    for (batch_job *j = r->jobs, *next; j; j = next) {
        next = j->next;
        batch_job_free(j);
    }
    cond_free(&r->work);
    cond_free(&r->look);
    lock_free(&r->mu);
    free(r->thread);
    free(r);
}
