/* store.c -- the SQLite database: one writer thread with group commit, and N_READERS read
 * connections.
 *
 *   store_write()    job on the caller's stack, waits until it is durable
 *   store_post()     copied job, nobody waits; a failure is logged
 *
 * The writer takes all queued jobs of one kind (up to BATCH_MAX) into one transaction: whatever was
 * posted while the last one was being synced makes up the next. Each job runs in a savepoint, so a
 * failing job is undone alone. If the commit fails, all jobs of the batch fail, because none is on
 * the disk.
 *
 * There are two kinds: jobs of this node, and jobs on the tables that a fleet shares. The latter
 * also lock and append to the fleet's journal (fleet/fleet.h), between BEGIN and COMMIT here.
 * Pending lock-outs (revoked keys, lockouts.h) are applied first in their batch.
 *
 * A full disk: a reserve file is given up (reserve.h) and the batch tried once more.
 *
 * SQLite before 3.51.3 can corrupt a WAL database when two connections write or checkpoint at the
 * same instant, so one connection does both and all others are read-only.
 *
 * Ids: 42 bits of milliseconds, 8 of the node, 14 of a sequence (store_take_ids()).
 */
#include "storage/store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/base/private_file.h"
#include "storage/fleet/books.h"
#include "storage/fleet/fleet.h"
#include "storage/lockouts.h"
#include "storage/reserve.h"
#include "storage/store_sql.h"
#include "storage/wal_check.h"
#include "storage/wal_lock.h"

enum { N_READERS = 4, BATCH_MAX = 1024, BUSY_MS = 5000, PATIENCE_US = BUSY_MS * 1000 };
/* Interval of attempts to write lock-outs; longest wait of a caller for the first attempt. */
enum { AGAIN_US = 250000, LOCKOUT_WAIT_US = 2000000 };

typedef struct job {
    struct job *next;
    store_job fn;
    void *arg;
    err_code code;
    err why;
    int64_t posted_us, patience_us; /* how long it waits for another program's lock */
    bool done, owned;               /* owned: nobody waits, the writer frees */
    bool shared;                    /* of the tables that a fleet shares, and this is a node */
    cond wake;
} job;

struct store {
    char *dir;
    int lock_fd, node;
    sqlite3 *db;            /* writer thread only, once it runs */
    int shm_fd;             /* for wal_lock_holder(); writer thread only */
    sqlite3_stmt *rollback; /* made ready: it is needed when memory is short */
    pthread_t writer;
    bool writer_runs;
    reserve *reserve; /* the writer's */
    lockouts *lockouts;
    fleet *fleet; /* NULL: the server is by itself */
    bool is_node; /* the directory is one of a fleet's */

    lock mu; /* guards all below up to the blank line */
    cond work;
    job *head, **tail;
    int n_queued;
    int64_t writing_us; /* when the oldest job of the running batch was posted; 0: none runs */
    bool stop, healthy;
    bool urgent; /* a lock-out was noted since the last attempt, or a scrub asked for */
    uint64_t n_scrub, n_scrubbed; /* asked for; done, or part of one that was */
    cond scrubbed;
    store_stats stats;

    lock read_mu;
    cond read_free;
    sqlite3 *reader[N_READERS];
    bool reader_used[N_READERS];

    lock id_mu;
    uint64_t last_tick; /* (milliseconds << 14) + sequence of the newest id */

    struct tenant_cache *tenants;
    struct key_cache *keys;
};

/* ---- statements ----------------------------------------------------------------- */

err_code sql_error(sqlite3 *db, int rc, const char *what, err *e)
{
    int ext = db != NULL ? sqlite3_extended_errcode(db) : rc;
    switch (rc & 0xff) {
    case SQLITE_CONSTRAINT:
        if (ext == SQLITE_CONSTRAINT_FOREIGNKEY)
            return err_set(e, ERR_NOT_FOUND, "cannot %s: what it belongs to does not exist", what);
        return err_set(e, ERR_EXISTS, "cannot %s: it exists already", what);
    case SQLITE_FULL: return err_set(e, ERR_NO_ROOM, "cannot %s: the disk is full", what);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return err_set(e, ERR_IO, "cannot %s: the database is locked by another program", what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return err_set(e, ERR_CORRUPT, "cannot %s: the database is damaged", what);
    case SQLITE_NOMEM: return err_set(e, ERR_NOMEM, "cannot %s: out of memory", what);
    case SQLITE_READONLY: return err_set(e, ERR_IO, "cannot %s: the database is read-only", what);
    default:
        return err_set(e, ERR_IO, "cannot %s: database error %d (%s)", what, ext,
                       sqlite3_errstr(rc));
    }
}

void sql_begin(sql *q, sqlite3 *db, const char *text)
{
    memset(q, 0, sizeof(*q));
    q->db = db;
    q->rc = sqlite3_prepare_v2(db, text, -1, &q->s, NULL);
}

void sql_int(sql *q, int64_t v)
{
    if (q->rc == SQLITE_OK) q->rc = sqlite3_bind_int64(q->s, ++q->n_bound, v);
}

void sql_real(sql *q, double v)
{
    if (q->rc == SQLITE_OK) q->rc = sqlite3_bind_double(q->s, ++q->n_bound, v);
}

void sql_text(sql *q, const char *v)
{
    if (q->rc == SQLITE_OK) q->rc = sqlite3_bind_text(q->s, ++q->n_bound, v, -1, SQLITE_STATIC);
}

void sql_blob(sql *q, const void *v, size_t len)
{
    if (q->rc == SQLITE_OK) q->rc = sqlite3_bind_blob64(q->s, ++q->n_bound, v, len, SQLITE_STATIC);
}

void sql_null(sql *q)
{
    if (q->rc == SQLITE_OK) q->rc = sqlite3_bind_null(q->s, ++q->n_bound);
}

bool sql_row(sql *q)
{
    if (q->rc != SQLITE_OK && q->rc != SQLITE_ROW) return false;
    q->rc = sqlite3_step(q->s);
    return q->rc == SQLITE_ROW;
}

int64_t sql_col_int(sql *q, int i)
{
    assert(i >= 0 && i < sqlite3_data_count(q->s)); /* a row is there */
    return sqlite3_column_int64(q->s, i);
}

double sql_col_real(sql *q, int i)
{
    assert(i >= 0 && i < sqlite3_data_count(q->s));
    return sqlite3_column_double(q->s, i);
}

void sql_col_text(sql *q, int i, char *out, size_t cap)
{
    assert(i >= 0 && i < sqlite3_data_count(q->s) && cap > 0);
    const char *text = (const char *)sqlite3_column_text(q->s, i);
    if (!text && sqlite3_errcode(q->db) == SQLITE_NOMEM) q->rc = SQLITE_NOMEM;
    snprintf(out, cap, "%s", text != NULL ? text : "");
}

bool sql_col_blob(sql *q, int i, void *out, size_t len)
{
    assert(i >= 0 && i < sqlite3_data_count(q->s));
    const void *p = sqlite3_column_blob(q->s, i);
    if (!p && sqlite3_errcode(q->db) == SQLITE_NOMEM) q->rc = SQLITE_NOMEM;
    if (!p || (size_t)sqlite3_column_bytes(q->s, i) != len) return false;
    memcpy(out, p, len);
    return true;
}

err_code sql_end(sql *q, const char *what, err *e)
{
    err_code code = ERR_NONE;
    if (q->rc != SQLITE_OK && q->rc != SQLITE_ROW && q->rc != SQLITE_DONE)
        code = sql_error(q->db, q->rc, what, e);
    sqlite3_finalize(q->s);
    q->s = NULL;
    return code;
}

err_code sql_repeat(sql *q, const char *what, err *e)
{
    (void)sql_row(q);
    if (q->rc != SQLITE_DONE && q->rc != SQLITE_ROW) return sql_error(q->db, q->rc, what, e);
    sqlite3_reset(q->s);
    q->n_bound = 0;
    q->rc = SQLITE_OK;
    return ERR_NONE;
}

err_code sql_done(sql *q, const char *what, err *e)
{
    (void)sql_row(q);
    return sql_end(q, what, e);
}

/* ---- writer -------------------------------------------------------------------- */

static void roll_back(store *st)
{
    if (sqlite3_get_autocommit(st->db)) return;
    (void)sqlite3_step(st->rollback);
    (void)sqlite3_reset(st->rollback);
}

/* Runs one job in a savepoint and undoes it if it fails; if that is impossible, the whole batch is
 * undone. */
static void run_job(store *st, job *j)
{
    static const char start[] = "SAVEPOINT job", keep[] = "RELEASE job";
    static const char undo[] = "ROLLBACK TO job; RELEASE job";
    int rc = sqlite3_exec(st->db, start, NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        j->code = sql_error(st->db, rc, "write", &j->why);
        return;
    }
    j->code = j->fn(st->db, j->arg, &j->why);
    if (sqlite3_get_autocommit(st->db)) {
        /* SQLite rolled the whole transaction back (disk full, I/O error). */
        if (j->code == ERR_NONE) j->code = err_set(&j->why, ERR_IO, "the transaction was undone");
        return;
    }
    if (j->code == ERR_NONE)
        (void)sqlite3_exec(st->db, keep, NULL, NULL, NULL); /* else the commit releases it */
    else if (sqlite3_exec(st->db, undo, NULL, NULL, NULL) != SQLITE_OK)
        roll_back(st);
}

/* How long a batch may wait for SQLite's lock: until the deadline of its most patient job. */
static int patience_ms(const job *list)
{
    if (!list) return AGAIN_US / 1000; /* lock-outs alone: their next attempt comes anyway */
    const job *most = list;
    for (const job *j = list; j != NULL; j = j->next)
        if (j->patience_us > most->patience_us) most = j;
    int64_t left_us = most->posted_us + most->patience_us - clock_now_us();
    return left_us > 1000 ? (int)(left_us / 1000) : 1;
}

/* One transaction: jobs of one kind, and the lock-outs if they belong to that kind. */
typedef struct batch {
    job *list;
    bool shared;   /* with the fleet */
    bool lock_out; /* the lock-outs up to mark, too */
    uint64_t mark;
    bool away; /* out: it was the fleet that refused it, not this disk */
} batch;

/* Lock-outs go first: they are in force already, and later jobs may depend on them
 * (tenants_update()). */
static err_code begin_batch(store *st, batch *b, err *why)
{
    err_code code = ERR_NONE;
    roll_back(st); /* what could not be before */
    int rc = sqlite3_exec(st->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK) return sql_error(st->db, rc, "write", why);
    if (b->shared) code = fleet_begin(st->fleet, st->db, why);
    b->away = code != ERR_NONE;
    if (code != ERR_NONE || !b->lock_out || lockouts_pending(st->lockouts) == 0) return code;
    return lockouts_apply(st->lockouts, b->mark, st->db, why);
}

static err_code run_jobs(store *st, job *list, err *why)
{
    for (job *j = list; j != NULL; j = j->next) {
        j->code = ERR_NONE;
        run_job(st, j);
        if (sqlite3_get_autocommit(st->db) || j->code == ERR_NO_ROOM) {
            *why = j->why;
            return j->code;
        }
    }
    return ERR_NONE;
}

static err_code end_batch(store *st, batch *b, err_code code, err *why)
{
    assert(!b->shared || st->fleet);
    if (code == ERR_NONE && b->shared) {
        code = fleet_commit(st->fleet, st->db, why);
        b->away = code != ERR_NONE;
    }
    if (code == ERR_NONE) {
        int rc = sqlite3_exec(st->db, "COMMIT", NULL, NULL, NULL);
        if (rc != SQLITE_OK) code = sql_error(st->db, rc, "make the write durable", why);
    }
    if (code != ERR_NONE) roll_back(st);
    if (b->shared) fleet_end(st->fleet, code == ERR_NONE);
    return code;
}

/* One attempt; ERR_NONE, or why nothing of it is on the disk. */
static err_code try_batch(store *st, batch *b, err *why)
{
    sqlite3_busy_timeout(st->db, patience_ms(b->list));
    err_code code = begin_batch(st, b, why);
    if (code == ERR_NONE) code = run_jobs(st, b->list, why);
    return end_batch(st, b, code, why);
}

/* Whether it failed for lack of space, and giving up the reserve made some. SQLite reports a full
 * disk as an I/O error in some calls; reserve_give_up() checks the disk. */
static bool full_but_for_reserve(store *st, err_code code)
{
    return (code == ERR_NO_ROOM || code == ERR_IO) && reserve_give_up(st->reserve);
}

/* Retries, with the space of the reserve. If the fleet's journal has the change already, only the
 * mirror is behind: an empty turn brings it up to date. */
static err_code try_again(store *st, batch *b, err_code code, err *why)
{
    bool published = b->shared && fleet_published(st->fleet);
    bool room = full_but_for_reserve(st, code);
    batch behind = {.shared = true};
    if (published) return try_batch(st, &behind, why);
    return room ? try_batch(st, b, why) : code;
}

typedef enum { BATCH_DONE, BATCH_LOST, BATCH_AWAY } batch_end;

static void note_holder(store *st)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/lorad.db", st->dir);
    int holder = wal_lock_holder(path, &st->shm_fd);
    lock_take(&st->mu);
    st->stats.lock_holder = holder;
    lock_release(&st->mu);
}

static batch_end commit_batch(store *st, job *list)
{
    err why;
    batch b = {.list = list, .mark = lockouts_mark(st->lockouts)};
    b.shared = st->fleet != NULL && (!list || list->shared);
    b.lock_out = b.shared || !st->is_node;
    err_code code = try_batch(st, &b, &why);
    if (code != ERR_NONE && !b.away) code = try_again(st, &b, code, &why);
    if (b.lock_out) lockouts_settle(st->lockouts, b.mark, code == ERR_NONE);
    if (code == ERR_NONE) return BATCH_DONE;
    note_holder(st);
    if (!b.away && store_healthy(st))
        log_error("storage", "transaction lost: %s", why.msg); /* the first */
    for (job *j = list; j != NULL; j = j->next)
        if (j->code == ERR_NONE) {
            j->code = why.code;
            j->why = why;
        }
    return b.away ? BATCH_AWAY : BATCH_LOST;
}

/* Marks the batch as done and wakes the waiting callers; `mu` is held. Their jobs are on their
 * stacks and invalid once `done` is seen. */
static void finish_batch_locked(store *st, job *list, batch_end end, int64_t took_us)
{
    lock_assert_held(&st->mu);
    if (end == BATCH_DONE && !st->healthy) log_info("storage", "the database is writable again");
    if (end != BATCH_AWAY) st->healthy = end == BATCH_DONE;
    st->writing_us = 0;
    if (end == BATCH_DONE)
        st->stats.n_commits++;
    else if (end == BATCH_LOST)
        st->stats.n_lost++;
    st->stats.last_commit_us = took_us;
    if (took_us > st->stats.max_commit_us) st->stats.max_commit_us = took_us;
    while (list) {
        job *j = list;
        list = j->next;
        st->stats.n_jobs++;
        if (j->code != ERR_NONE) st->stats.n_failed++;
        if (j->owned) {
            if (j->code != ERR_NONE) log_warn("storage", "posted write failed: %s", j->why.msg);
            free(j);
        } else {
            assert(!j->done);
            j->done = true;
            cond_signal(&j->wake);
        }
    }
}

/* Waits for jobs, for a lock-out, or for the time of the next attempt; false: it is time to
 * stop. */
static bool await_work_locked(store *st)
{
    lock_assert_held(&st->mu);
    if (!st->head && !st->stop && !st->urgent) {
        if (lockouts_pending(st->lockouts) > 0 || !reserve_held(st->reserve) ||
            st->n_scrubbed < st->n_scrub) {
            cond_wait_until(&st->work, &st->mu, clock_now_us() + AGAIN_US);
        } else {
            cond_wait(&st->work, &st->mu);
        }
    }
    return st->head != NULL || !st->stop;
}

/* Takes the jobs of the next transaction: those of the first one's kind, in order. NULL: none. */
static job *take_batch_locked(store *st)
{
    lock_assert_held(&st->mu);
    job *list = NULL, **end = &list, **from = &st->head;
    if (!st->head) return NULL;
    bool shared = st->head->shared;
    for (int n = 0; *from != NULL && n < BATCH_MAX;) {
        job *j = *from;
        if (j->shared != shared) {
            from = &j->next;
            continue;
        }
        *from = j->next;
        j->next = NULL;
        *end = j;
        end = &j->next;
        st->n_queued--;
        n++;
    }
    for (st->tail = &st->head; *st->tail != NULL;) st->tail = &(*st->tail)->next;
    assert((st->n_queued == 0) == (st->head == NULL));
    assert(list->shared == shared); /* one kind of jobs in one transaction */
    assert(st->n_queued >= 0);
    st->writing_us = list->posted_us;
    return list;
}

/* Checkpoints and truncates the write-ahead log, which still holds deleted rows; the database
 * itself overwrites them. Retried while a reader is active. */
static void scrub_locked(store *st)
{
    assert(st->n_scrubbed <= st->n_scrub);
    lock_assert_held(&st->mu);
    uint64_t mark = st->n_scrub;
    if (st->n_scrubbed == mark) return;
    lock_release(&st->mu);
    sqlite3_busy_timeout(st->db, AGAIN_US / 1000);
    int rc = sqlite3_wal_checkpoint_v2(st->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    lock_take(&st->mu);
    if (rc != SQLITE_OK) return;
    st->n_scrubbed = mark;
    cond_broadcast(&st->scrubbed);
}

bool store_scrub(store *st, int64_t patience_us)
{
    int64_t end_us = clock_now_us() + patience_us;
    lock_take(&st->mu);
    uint64_t mine = ++st->n_scrub;
    st->urgent = true;
    cond_signal(&st->work);
    while (st->n_scrubbed < mine && clock_now_us() < end_us)
        cond_wait_until(&st->scrubbed, &st->mu, end_us);
    bool done = st->n_scrubbed >= mine;
    lock_release(&st->mu);
    return done;
}

static void *writer_main(void *arg)
{
    store *st = arg;
    lock_take(&st->mu);
    st->urgent |= lockouts_pending(st->lockouts) > 0; /* of an earlier run */
    while (await_work_locked(st)) {
        job *list = take_batch_locked(st);
        /* In a fleet, lock-outs do not go with this node's own jobs: they come right after. */
        st->urgent &= st->fleet && list && !list->shared;
        lock_release(&st->mu);
        int64_t t0 = clock_now_us();
        bool some = list != NULL || lockouts_pending(st->lockouts) > 0;
        batch_end end = some ? commit_batch(st, list) : BATCH_DONE;
        int64_t took_us = clock_now_us() - t0;
        reserve_renew(st->reserve, t0);
        lock_take(&st->mu);
        if (some) finish_batch_locked(st, list, end, took_us);
        scrub_locked(st);
    }
    lock_release(&st->mu);
    if (lockouts_pending(st->lockouts) > 0) (void)commit_batch(st, NULL);
    return NULL;
}

static void enqueue_locked(store *st, job *j)
{
    lock_assert_held(&st->mu);
    assert(!j->next && !j->done);
    j->posted_us = clock_now_us();
    *st->tail = j;
    st->tail = &j->next;
    st->n_queued++;
    cond_signal(&st->work);
}

static err_code write_job(store *st, job *j, err *e)
{
    assert(!st->writer_runs ||
           !pthread_equal(pthread_self(), st->writer)); /* it would wait for ever */
    cond_init(&j->wake);
    lock_take(&st->mu);
    enqueue_locked(st, j);
    while (!j->done) cond_wait(&j->wake, &st->mu);
    lock_release(&st->mu);
    cond_free(&j->wake);
    if (j->code != ERR_NONE && e) *e = j->why;
    return j->code;
}

err_code store_write(store *st, store_job fn, void *arg, err *e)
{
    job j = {.fn = fn, .arg = arg, .patience_us = PATIENCE_US, .shared = st->fleet != NULL};
    return write_job(st, &j, e);
}

err_code store_write_own(store *st, store_job fn, void *arg, err *e)
{
    return store_write_within(st, fn, arg, PATIENCE_US, e);
}

err_code store_write_within(store *st, store_job fn, void *arg, int64_t patience_us, err *e)
{
    job j = {.fn = fn, .arg = arg, .patience_us = patience_us};
    return write_job(st, &j, e);
}

static void post(store *st, store_job fn, const void *arg, size_t bytes, bool shared)
{
    job *j = calloc(1, sizeof(*j) + bytes);
    if (!j) { /* no memory: wait with a job on the stack instead */
        err why;
        void *same = (void *)(uintptr_t)arg;
        job here = {.fn = fn, .arg = same, .patience_us = PATIENCE_US, .shared = shared};
        if (write_job(st, &here, &why) != ERR_NONE)
            log_warn("storage", "posted write failed: %s", why.msg);
        return;
    }
    j->shared = shared;
    j->fn = fn;
    j->arg = j + 1;
    j->patience_us = PATIENCE_US;
    j->owned = true;
    memcpy(j->arg, arg, bytes);
    lock_take(&st->mu);
    enqueue_locked(st, j);
    lock_release(&st->mu);
}

void store_post(store *st, store_job fn, const void *arg, size_t bytes)
{
    post(st, fn, arg, bytes, st->fleet != NULL);
}

void store_post_own(store *st, store_job fn, const void *arg, size_t bytes)
{
    post(st, fn, arg, bytes, false);
}

/* Applies a lock-out to the caches in memory. */
static void lock_out_again(void *self, const lockout *what)
{
    store *st = self;
    if (what->kind == LOCKOUT_KEY)
        (void)key_cache_revoke(st, what->id, what->wall_us);
    else
        tenant_cache_disable(st, what->id, what->wall_us);
    if (what->kind == LOCKOUT_TENANT) key_cache_revoke_tenant(st, what->id, what->wall_us);
}

void store_lock_out_again(store *st)
{
    if (lockouts_pending(st->lockouts) > 0) lockouts_each(st->lockouts, lock_out_again, st);
}

static void is_tenants(void *self, const lockout *what)
{
    uint64_t *id = self; /* becomes 0 where it is found */
    if (what->kind != LOCKOUT_KEY && what->id == *id) *id = 0;
}

bool store_locked_out(store *st, uint64_t tenant_id)
{
    if (lockouts_pending(st->lockouts) > 0) lockouts_each(st->lockouts, is_tenants, &tenant_id);
    return tenant_id == 0;
}

bool store_lockout(store *st, const lockout *what)
{
    uint64_t ticket = lockouts_note(st->lockouts, what);
    if (ticket == 0) return false;
    if (st->fleet) lock_out_again(st, what); /* a refresh may have come between memory and note */
    lock_take(&st->mu);
    st->urgent = true;
    cond_signal(&st->work);
    lock_release(&st->mu);
    return lockouts_wait(st->lockouts, ticket, LOCKOUT_WAIT_US);
}

/* ---- readers ------------------------------------------------------------------- */

sqlite3 *store_read_begin(store *st)
{
    lock_take(&st->read_mu);
    for (;;) {
        for (int i = 0; i < N_READERS; i++)
            if (!st->reader_used[i]) {
                st->reader_used[i] = true;
                lock_release(&st->read_mu);
                return st->reader[i];
            }
        cond_wait(&st->read_free, &st->read_mu);
    }
}

void store_read_end(store *st, sqlite3 *db)
{
    lock_take(&st->read_mu);
    int given = -1;
    for (int i = 0; i < N_READERS; i++)
        if (st->reader[i] == db) given = i;
    assert(given >= 0 && st->reader_used[given]); /* once */
    st->reader_used[given] = false;
    cond_signal(&st->read_free);
    lock_release(&st->read_mu);
}

/* ---- ids ---------------------------------------------------------------------- */

enum { SEQ_BITS = 14, NODE_BITS = 8 };
static const int64_t EPOCH_MS = 1704067200000; /* 2024-01-01 */

static uint64_t tick_of(uint64_t id)
{
    return (id >> (SEQ_BITS + NODE_BITS)) << SEQ_BITS | (id & ((1u << SEQ_BITS) - 1));
}

static uint64_t id_of_tick(const store *st, uint64_t tick)
{
    return (tick >> SEQ_BITS) << (SEQ_BITS + NODE_BITS) | (uint64_t)st->node << SEQ_BITS |
           (tick & ((1u << SEQ_BITS) - 1));
}

uint64_t store_take_ids(store *st, uint64_t n)
{
    assert(n > 0);
    int64_t ms = clock_wall_us() / 1000 - EPOCH_MS;
    uint64_t tick = ms > 0 ? (uint64_t)ms << SEQ_BITS : 0;
    lock_take(&st->id_mu);
    if (tick <= st->last_tick)
        tick = st->last_tick + 1; /* same millisecond, or the clock went back */
    st->last_tick = tick + n - 1;
    lock_release(&st->id_mu);
    return id_of_tick(st, tick);
}

uint64_t store_next_id(store *st)
{
    return store_take_ids(st, 1);
}

uint64_t store_nth_id(const store *st, uint64_t first, uint64_t n)
{
    return id_of_tick(st, tick_of(first) + n);
}

uint64_t store_id_place(uint64_t first, uint64_t id)
{
    return id < first ? UINT64_MAX : tick_of(id) - tick_of(first);
}

void store_raise_ids(store *st, uint64_t id)
{
    lock_take(&st->id_mu);
    if (tick_of(id) > st->last_tick) st->last_tick = tick_of(id);
    lock_release(&st->id_mu);
}

/* New ids must be above the highest stored one, whatever the clock says. */
static err_code seed_ids(store *st, err *e)
{
    sql q;
    sql_begin(&q, st->db,
              "SELECT max(coalesce((SELECT max(id) FROM tenants), 0),"
              " coalesce((SELECT max(id) FROM api_keys), 0),"
              " coalesce((SELECT max(id) FROM adapters), 0),"
              " coalesce((SELECT max(id) FROM adapter_versions), 0),"
              " coalesce((SELECT max(request_id) FROM usage), 0),"
              " coalesce((SELECT max(id) FROM audit), 0),"
              " coalesce((SELECT max(last_id) FROM batches), 0),"
              " (SELECT id FROM high_water))");
    /* Another node's id of that millisecond may stand above our own with more in it. */
    if (sql_row(&q) && sql_col_int(&q, 0) > 0)
        st->last_tick = tick_of((uint64_t)sql_col_int(&q, 0)) | ((1u << SEQ_BITS) - 1);
    return sql_end(&q, "read the newest id", e);
}

/* ---- life -------------------------------------------------------------------------- */

static err_code take_dir(store *st, const char *dir, bool create, err *e)
{
    if (create && mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_set(e, ERR_IO, "cannot make the data directory: %s", strerror(errno));
    char path[4096];
    if ((size_t)snprintf(path, sizeof path, "%s/lorad.lock", dir) >= sizeof path)
        return err_set(e, ERR_INPUT, "the data directory's path is too long");
    st->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (st->lock_fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO,
                       "cannot open the data directory: %s", strerror(errno));
    if (flock(st->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return err_set(e, ERR_BUSY, "another lorad uses this data directory");
    st->dir = strdup(dir);
    return st->dir != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
}

static err_code exec_all(sqlite3 *db, const char *text, const char *what, err *e)
{
    int rc = sqlite3_exec(db, text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? ERR_NONE : sql_error(db, rc, what, e);
}

static err_code check_whole(sqlite3 *db, err *e)
{
    char answer[64] = "";
    sql q;
    sql_begin(&q, db, "PRAGMA quick_check(1)");
    if (sql_row(&q)) sql_col_text(&q, 0, answer, sizeof answer);
    err_code code = sql_end(&q, "check the database", e);
    if (code == ERR_NONE && strcmp(answer, "ok") != 0)
        code = err_set(e, ERR_CORRUPT, "lorad.db is damaged: restore a backup");
    return code;
}

/* Hashes of keys and everybody's usage are in them.  SQLite gives its other
 * files the database's mode. */
static err_code secure_files(const char *path, bool create, err *e)
{
    static const char *const suffix[] = {"", "-wal", "-shm"};
    err_code code = ERR_NONE;
    for (int i = 0; i < 3 && code == ERR_NONE; i++) {
        char each[4096];
        snprintf(each, sizeof each, "%s%s", path, suffix[i]);
        code = private_file_secure(each, create && i == 0, e);
    }
    return code;
}

/* Reports a torn WAL before the database is opened, because SQLite then discards the rest silently.
 */
static void tell_torn_wal(const char *path)
{
    char wal[4096 + 8];
    wal_report r;
    snprintf(wal, sizeof wal, "%s-wal", path);
    if (!wal_check(wal, &r)) return;
    if (r.header)
        log_warn(
            "storage",
            "the header of %s is damaged: SQLite discards the log; changes made shortly before "
            "the last stop may be lost",
            wal);
    else
        log_warn("storage",
                 "%s is damaged behind frame %lld: SQLite discards %lld frames; changes made "
                 "shortly before the last stop may be lost",
                 wal, (long long)r.valid, (long long)r.discarded);
}

static err_code open_writer(store *st, const char *path, const store_options *o, err *e)
{
    err_code secured = secure_files(path, o->create, e);
    if (secured != ERR_NONE) return secured;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (o->create ? SQLITE_OPEN_CREATE : 0);
    int rc = sqlite3_open_v2(path, &st->db, flags, NULL);
    if (rc == SQLITE_CANTOPEN && !o->create)
        return err_set(e, ERR_NOT_FOUND, "no lorad.db in the data directory: run `lorad init`");
    if (rc != SQLITE_OK) return sql_error(st->db, rc, "open the database", e);
    sqlite3_busy_timeout(st->db, BUSY_MS);
    sqlite3_db_config(st->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    err_code code = exec_all(st->db,
                             "PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON;"
                             "PRAGMA mmap_size=0; PRAGMA journal_mode=WAL;"
                             "PRAGMA secure_delete=ON;"
                             "PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON",
                             "open the database", e);
    if (code == ERR_NONE && o->quick_check) code = check_whole(st->db, e);
    if (code == ERR_NONE) code = schema_migrate(st->db, STORE_SCHEMA_VERSION, e);
    if (code == ERR_NONE) code = seed_ids(st, e);
    if (code != ERR_NONE) return code;
    rc = sqlite3_prepare_v2(st->db, "ROLLBACK", -1, &st->rollback, NULL);
    return rc == SQLITE_OK ? ERR_NONE : sql_error(st->db, rc, "open the database", e);
}

static err_code open_readers(store *st, const char *path, err *e)
{
    for (int i = 0; i < N_READERS; i++) {
        int rc =
            sqlite3_open_v2(path, &st->reader[i], SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
        if (rc != SQLITE_OK) return sql_error(st->reader[i], rc, "open the database", e);
        sqlite3_busy_timeout(st->reader[i], BUSY_MS);
        sqlite3_db_config(st->reader[i], SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        err_code code = exec_all(st->reader[i],
                                 "PRAGMA trusted_schema=OFF; PRAGMA mmap_size=0;"
                                 "PRAGMA wal_autocheckpoint=0; PRAGMA query_only=ON",
                                 "open the database", e);
        if (code != ERR_NONE) return code;
    }
    return ERR_NONE;
}

/* Refuses to open a fleet's directory without the fleet: its writes would reach no other node. */
static err_code open_fleet(store *st, const store_options *o, err *e)
{
    bool joined = false;
    sql q;
    st->is_node = o->fleet != NULL;
    if (o->fleet) return fleet_open(&st->fleet, st, st->db, o->fleet, o->node, e);
    sql_begin(&q, st->db, "SELECT 1 FROM fleet");
    st->is_node = joined = sql_row(&q);
    err_code code = sql_end(&q, "look for a fleet", e);
    if (code != ERR_NONE || !joined || o->without_fleet) return code;
    return err_set(e, ERR_CONFLICT,
                   "this directory is a fleet's node: set storage.database, or `lorad migrate "
                   "--to sqlite`");
}

err_code store_open(store **out, const char *dir, const store_options *options, err *e)
{
    *out = NULL;
    store_options o = {0};
    if (options) o = *options;
    store *st = calloc(1, sizeof(*st));
    if (!st) return err_set(e, ERR_NOMEM, "out of memory");
    err own;
    if (!e) e = &own;
    st->lock_fd = -1;
    st->shm_fd = -1;
    st->node = o.node & 0xff;
    st->tail = &st->head;
    st->healthy = true;
    lock_init(&st->mu, LOCK_STORE_QUEUE);
    lock_init(&st->read_mu, LOCK_STORE_READERS);
    lock_init(&st->id_mu, LOCK_STORE_IDS);
    cond_init(&st->work);
    cond_init(&st->scrubbed);
    cond_init(&st->read_free);

    char path[4096];
    err_code code = take_dir(st, dir, o.create, e);
    if (code == ERR_NONE) code = reserve_open(&st->reserve, dir, e);
    if (code == ERR_NONE) {
        snprintf(path, sizeof path, "%s/lorad.db", dir);
        tell_torn_wal(path);
        code = open_writer(st, path, &o, e);
        if (full_but_for_reserve(st, code)) {
            sqlite3_close(st->db);
            st->db = NULL;
            code = open_writer(st, path, &o, e);
        }
    }
    if (code == ERR_NONE) code = open_readers(st, path, e);
    if (code == ERR_NONE) code = open_fleet(st, &o, e);
    if (code == ERR_NONE) code = tenant_cache_open(&st->tenants, st->db, e);
    if (code == ERR_NONE) code = key_cache_open(&st->keys, st->db, e);
    if (code == ERR_NONE) code = lockouts_open(&st->lockouts, dir, e);
    if (code == ERR_NONE) {
        /* What an earlier run had no time to write, in force before anybody is served. */
        store_lock_out_again(st);
        if (pthread_create(&st->writer, NULL, writer_main, st) == 0)
            st->writer_runs = true;
        else
            code = err_set(e, ERR_NOMEM, "cannot start the storage writer thread");
    }
    if (code == ERR_NONE && st->fleet) code = fleet_follow(st->fleet, e);
    if (code != ERR_NONE) {
        store_close(st);
        return code;
    }
    *out = st;
    return ERR_NONE;
}

void store_close(store *st)
{
    if (!st) return;
    fleet_stop(st->fleet);
    if (st->writer_runs) {
        lock_take(&st->mu);
        st->stop = true;
        cond_signal(&st->work);
        lock_release(&st->mu);
        pthread_join(st->writer, NULL);
        assert(!st->head && st->n_queued == 0);
    }
    fleet_close(st->fleet);
    /* The writer is closed last, so that it alone checkpoints. */
    for (int i = 0; i < N_READERS; i++) sqlite3_close(st->reader[i]);
    sqlite3_finalize(st->rollback);
    sqlite3_close(st->db);
    if (st->shm_fd >= 0) close(st->shm_fd);
    lockouts_close(st->lockouts);
    reserve_close(st->reserve);
    key_cache_close(st->keys);
    tenant_cache_close(st->tenants);
    if (st->lock_fd >= 0) close(st->lock_fd);
    cond_free(&st->work);
    cond_free(&st->scrubbed);
    cond_free(&st->read_free);
    lock_free(&st->mu);
    lock_free(&st->read_mu);
    lock_free(&st->id_mu);
    free(st->dir);
    free(st);
}

const char *store_dir(const store *st)
{
    return st->dir;
}

bool store_healthy(store *st)
{
    lock_take(&st->mu);
    bool ok = st->healthy;
    lock_release(&st->mu);
    return ok;
}

void store_stats_get(store *st, store_stats *out)
{
    lock_take(&st->mu);
    *out = st->stats;
    out->n_queued = st->n_queued;
    int64_t oldest = st->writing_us ? st->writing_us : st->head ? st->head->posted_us : 0;
    out->lag_us = oldest ? clock_now_us() - oldest : 0;
    lock_release(&st->mu);
    out->n_lockouts = lockouts_pending(st->lockouts);
    out->reserve_held = reserve_held(st->reserve);
    if (st->fleet) fleet_stats(st->fleet, &out->fleet);
}

/* ---- fleet ----------------------------------------------------------------------------- */

bool store_is_node(const store *st)
{
    return st->is_node;
}

fleet *store_fleet(store *st)
{
    return st->fleet;
}

bool store_in_fleet(const store *st)
{
    return st->fleet != NULL;
}

void store_on_adapter(store *st, err_code (*fn)(void *self, uint64_t adapter_id, err *e),
                      void *self)
{
    if (st->fleet) fleet_on_adapter(st->fleet, fn, self);
}

void store_catch_up(store *st, int64_t patience_us)
{
    if (st->fleet) fleet_catch_up(st->fleet, patience_us);
}

/* On the connection that writes, while nothing else does: migrating is a program of its own. */
err_code store_found_fleet(store *st, const journal_source *to, int node, err *e)
{
    return fleet_found(st, st->db, to, node, e);
}

static err_code leave(sqlite3 *db, void *arg, err *e)
{
    sql q;
    sql_begin(&q, db, "DELETE FROM fleet");
    err_code code = sql_done(&q, "leave the fleet", e);
    *(bool *)arg = sqlite3_changes(db) > 0;
    return code == ERR_NONE ? books_mark_all(db, false, e) : code;
}

err_code store_leave_fleet(store *st, bool *was, err *e)
{
    return store_write(st, leave, was, e);
}

struct tenant_cache *store_tenants(store *st)
{
    return st->tenants;
}

struct key_cache *store_keys(store *st)
{
    return st->keys;
}
