/* settler.c -- the thread that moves ended slots of the meter file into the database, and the queue
 * in front of it.
 *
 * The queue is a linked list by slot number, next[slot], so it needs no memory beyond its creation.
 * Workers append (settler_end()) and get a turn number; the thread takes up to ROWS_AT_ONCE rows,
 * settles them in one transaction, then frees their slots.
 *
 *   worker: end the slot, append, wait up to 100 ms for its turn, send the last byte of the answer
 *   thread: look (rows stay queued) -> ledger_settle() -> drop and release; on failure: pause and
 *   retry
 *
 * A row leaves the queue only when it is in the database, so a crash at any point settles it again
 * at the next start; ledger rows are unique by request id. While the database fails or is slow
 * (`behind_since_us`), workers do not wait at all.
 *
 * Pauses double from 100 ms to 1 s. Threads: `mu` guards the queue; rows[] and taken[] belong to
 * the thread.
 */
#include "storage/settler.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"

enum { ROWS_AT_ONCE = 512, AWAIT_MS = 100, PAUSE_MIN_MS = 100, PAUSE_MAX_MS = 1000 };

struct settler {
    store *st;
    meter_file *mf;
    pthread_t thread;
    usage_row rows[ROWS_AT_ONCE]; /* the thread's, as is the next */
    int taken[ROWS_AT_ONCE];      /* the slots that these rows are of */

    lock mu; /* guards all below */
    cond work, settled;
    int *next; /* [n_slots] lists by slot number; -1: the end */
    int head, tail;
    uint64_t n_ended, n_settled; /* turns issued, turns in the database */
    uint64_t n_failures;
    int64_t behind_since_us; /* 0: not behind */
    int64_t oldest_wall_us;  /* when the head ended */
    bool told;               /* the failure was logged */
    err why;                 /* of the last failure */
    bool stop;
};

/* ---- the queue --------------------------------------------------------------------- */

static int64_t ended_at(settler *s, int i)
{
    usage_row row;
    meter_slot_row(meter_file_slot(s->mf, i), &row);
    return row.ended_wall_us;
}

static void put_locked(settler *s, int i)
{
    lock_assert_held(&s->mu);
    assert(i >= 0 && i < meter_file_n_slots(s->mf));
    assert(s->head < 0 || s->tail >= 0);
    s->next[i] = -1;
    if (s->head < 0) {
        s->head = i;
        s->oldest_wall_us = ended_at(s, i);
    } else {
        s->next[s->tail] = i;
    }
    s->tail = i;
    s->n_ended++;
}

/* Copies the rows of the first slots, which stay in the queue. */
static int look_locked(settler *s)
{
    lock_assert_held(&s->mu);
    int n = 0;
    for (int i = s->head; i >= 0 && n < ROWS_AT_ONCE; i = s->next[i]) {
        meter_slot_row(meter_file_slot(s->mf, i), &s->rows[n]);
        s->taken[n++] = i;
    }
    assert(n > 0);
    return n;
}

static void drop_locked(settler *s, int n)
{
    lock_assert_held(&s->mu);
    assert(n > 0 && n <= ROWS_AT_ONCE && s->head == s->taken[0]);
    s->head = s->next[s->taken[n - 1]];
    s->n_settled += (uint64_t)n;
    assert(s->n_settled <= s->n_ended);
    s->oldest_wall_us = s->head < 0 ? 0 : ended_at(s, s->head);
}

/* ---- the thread --------------------------------------------------------------------- */

static void pause_locked(settler *s, int64_t ms)
{
    lock_assert_held(&s->mu);
    int64_t end_us = clock_now_us() + ms * 1000;
    while (!s->stop && cond_wait_until(&s->work, &s->mu, end_us)) continue;
}

static void failed_locked(settler *s, const err *why)
{
    lock_assert_held(&s->mu);
    s->n_failures++;
    s->why = *why;
    if (!s->told) log_error("storage", "usage waits in the spool: %s", why->msg);
    s->told = true;
    if (s->behind_since_us == 0) s->behind_since_us = clock_now_us();
}

static void caught_up_locked(settler *s)
{
    lock_assert_held(&s->mu);
    if (s->behind_since_us == 0 || s->head >= 0) return;
    if (s->told)
        log_info("storage", "all usage is in the database again, %lld ms after it fell behind",
                 (long long)((clock_now_us() - s->behind_since_us) / 1000));
    s->behind_since_us = 0;
    s->told = false;
}

/* Releases the lock around the calls: the meter file has its own lock. */
static void release(settler *s, int n)
{
    lock_release(&s->mu);
    for (int i = 0; i < n; i++) meter_file_release(s->mf, meter_file_slot(s->mf, s->taken[i]));
    lock_take(&s->mu);
}

/* Rows leave the queue only once they are in the database, in their order. After a failure the
 * same rows are tried again, with pauses that double from PAUSE_MIN_MS to PAUSE_MAX_MS; at the
 * end there is one last try. */
static void *settle_main(void *arg)
{
    settler *s = arg;
    int64_t pause_ms = PAUSE_MIN_MS;
    lock_take(&s->mu);
    for (;;) {
        while (s->head < 0 && !s->stop) cond_wait(&s->work, &s->mu);
        if (s->head < 0) break;
        bool last = s->stop;
        int n = look_locked(s);
        lock_release(&s->mu);
        err why;
        err_code rc = ledger_settle(s->st, s->rows, (size_t)n, &why);
        lock_take(&s->mu);
        if (!rc) {
            drop_locked(s, n);
            caught_up_locked(s);
            pause_ms = PAUSE_MIN_MS;
        } else {
            failed_locked(s, &why);
        }
        cond_broadcast(&s->settled);
        if (!rc) {
            release(s, n);
            continue;
        }
        if (last) break;
        pause_locked(s, pause_ms);
        pause_ms = 2 * pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
    }
    lock_release(&s->mu);
    return NULL;
}

/* ---- life ---------------------------------------------------------------------------- */

static void init_conditions(settler *s)
{
    cond_init(&s->work);
    cond_init(&s->settled);
    lock_init(&s->mu, LOCK_SETTLER);
}

static void settler_free(settler *s)
{
    cond_free(&s->work);
    cond_free(&s->settled);
    lock_free(&s->mu);
    free(s->next);
    free(s);
}

err_code settler_start(settler **out, store *st, meter_file *mf, err *e)
{
    *out = NULL;
    settler *s = calloc(1, sizeof(*s));
    if (!s) return err_set(e, ERR_NOMEM, "out of memory");
    init_conditions(s);
    s->st = st;
    s->mf = mf;
    s->head = s->tail = -1;
    s->next = malloc((size_t)meter_file_n_slots(mf) * sizeof(*s->next));
    meter_file_stats left;
    meter_file_stats_get(mf, &left);
    meter_slot *slot;
    for (int i = 0;
         s->next != NULL && left.n_ended > 0 && (slot = meter_file_next_ended(mf, &i));) {
        lock_take(&s->mu); /* single-threaded here; for lock_assert_held() */
        put_locked(s, meter_file_index(mf, slot));
        lock_release(&s->mu);
    }
    if (s->head >= 0)
        s->behind_since_us = clock_now_us(); /* an ended slot at start: the last
                                                            * run was behind */
    if (!s->next || pthread_create(&s->thread, NULL, settle_main, s) != 0) {
        settler_free(s);
        return err_set(e, ERR_NOMEM, "cannot start the thread that settles usage");
    }
    *out = s;
    return ERR_NONE;
}

void settler_stop(settler *s)
{
    if (!s) return;
    lock_take(&s->mu);
    s->stop = true;
    cond_broadcast(&s->work);
    lock_release(&s->mu);
    pthread_join(s->thread, NULL);
    assert(s->n_settled <= s->n_ended);
    uint64_t left = s->n_ended - s->n_settled;
    if (left > 0)
        log_warn("storage", "%llu rows of usage stay in the spool for the next start",
                 (unsigned long long)left);
    settler_free(s);
}

/* ---- for workers --------------------------------------------------------------------- */

uint64_t settler_end(settler *s, meter_slot *slot, const usage_row *row)
{
    meter_file_end(s->mf, slot, row);
    lock_take(&s->mu);
    put_locked(s, meter_file_index(s->mf, slot));
    uint64_t turn = s->n_ended;
    cond_signal(&s->work);
    lock_release(&s->mu);
    return turn;
}

bool settler_await(settler *s, uint64_t turn)
{
    int64_t end_us = clock_now_us() + AWAIT_MS * 1000;
    lock_take(&s->mu);
    assert(turn <= s->n_ended);
    while (s->n_settled < turn && s->behind_since_us == 0) {
        if (cond_wait_until(&s->settled, &s->mu, end_us)) continue;
        if (s->n_settled < turn && s->behind_since_us == 0) s->behind_since_us = clock_now_us();
    }
    bool durable = s->n_settled >= turn;
    lock_release(&s->mu);
    return durable;
}

const char *spool_state_name(spool_state state)
{
    static const char *const names[] = {"ok", "behind", "full"};
    static_assert(sizeof(names) / sizeof(*names) == SPOOL_FULL + 1, "one for each state");
    assert((unsigned)state <= SPOOL_FULL);
    return names[state];
}

void settler_stats_get(settler *s, settler_stats *out)
{
    meter_file_stats file;
    meter_file_stats_get(s->mf, &file);
    lock_take(&s->mu);
    int64_t oldest_us = s->head < 0 ? 0 : clock_wall_us() - s->oldest_wall_us;
    *out = (settler_stats){.state = file.full                 ? SPOOL_FULL
                                    : s->behind_since_us != 0 ? SPOOL_BEHIND
                                                              : SPOOL_OK,
                           .n_spool = file.n_spool,
                           .n_waiting = file.n_ended,
                           .oldest_us = oldest_us > 0 ? oldest_us : 0,
                           .n_failures = s->n_failures};
    if (s->behind_since_us != 0 && s->why.code != ERR_NONE)
        snprintf(out->reason, sizeof(out->reason), "%s", s->why.msg);
    lock_release(&s->mu);
}
