/* fake_journal.h -- a journal in shared memory, which outlives a process that is killed.
 *
 * It keeps what it is told, in order, as PostgreSQL would, and fails as a test wants.  One process
 * at a time has the lock.
 */
#ifndef TESTS_STORAGE_FLEET_FAKE_JOURNAL_H
#define TESTS_STORAGE_FLEET_FAKE_JOURNAL_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "storage/fleet/journal.h"

enum { FAKE_CHANGES = 512, FAKE_CHANGE_BYTES = 1 << 14, FAKE_SNAPSHOT_BYTES = 1 << 18 };

typedef enum {
    FAKE_FINE,
    FAKE_AWAY,         /* every call fails */
    FAKE_KILL_AFTER,   /* SIGKILL once a commit is done, before the caller knows */
    FAKE_KILL_BEFORE,  /* SIGKILL when asked to commit */
    FAKE_DOUBT_DONE,   /* the commit is done, the answer is lost */
    FAKE_DOUBT_UNDONE, /* neither */
} fake_fault;

typedef struct fake_log {
    pthread_mutex_t mu;       /* robust and shared: its holder may be killed */
    _Atomic fake_fault fault; /* the test's, at any time */
    _Atomic int held;         /* 1 + the node whose follower waits once it has looked */
    _Atomic bool holds;       /* it does */
    bool made;
    journal_state state;
    int64_t cut; /* changes up to this one are gone */
    int64_t epoch[256];
    uint8_t instance[256][CLUSTER_BYTES];
    bool alive[256];
    int length[FAKE_CHANGES];
    uint8_t bytes[FAKE_CHANGES][FAKE_CHANGE_BYTES];
    int64_t snapshot_seq;
    int snapshot_length;
    uint8_t snapshot[FAKE_SNAPSHOT_BYTES];
} fake_log;

typedef struct fake {
    journal base;
    fake_log *log;
    bool locked;
    int n_new; /* appended, not committed */
    const void *snapshot;
} fake;

static void take(fake_log *log)
{
    if (pthread_mutex_lock(&log->mu) == EOWNERDEAD) pthread_mutex_consistent(&log->mu);
}

/* For one call, unless a turn has it already; true: let_go() gives it back. */
static bool hold(fake *f)
{
    if (f->locked) return false;
    take(f->log);
    return true;
}

static void let_go(fake *f, bool held)
{
    if (held) pthread_mutex_unlock(&f->log->mu);
}

static err_code away(err *e)
{
    return err_set(e, ERR_IO, "the fleet's database does not answer: try again");
}

static err_code fake_open(journal *j, err *e)
{
    return ((fake *)j)->log->fault == FAKE_AWAY ? away(e) : ERR_NONE;
}

static void fake_undo(journal *j)
{
    fake *f = (fake *)j;
    if (f->locked) pthread_mutex_unlock(&f->log->mu);
    f->locked = false;
    f->n_new = 0;
}

static err_code fake_look(journal *j, bool lock, journal_state *out, err *e)
{
    fake *f = (fake *)j;
    if (f->log->fault == FAKE_AWAY) return away(e);
    take(f->log);
    if (!f->log->made) {
        pthread_mutex_unlock(&f->log->mu);
        return err_set(e, ERR_NOT_FOUND, "no fleet");
    }
    *out = f->log->state;
    out->first_seq = f->log->cut + 1;
    out->snapshot_seq = f->log->snapshot_seq;
    out->epoch = f->log->epoch[j->node];
    f->locked = lock;
    if (lock) return ERR_NONE;
    pthread_mutex_unlock(&f->log->mu);
    while (f->log->held == 1 + j->node) {
        f->log->holds = true;
        usleep(1000);
    }
    return ERR_NONE;
}

/* A copy of the change after `at`; its length, 0: there is none. */
static int copy_next(fake *f, int64_t *at, uint8_t *out)
{
    fake_log *log = f->log;
    bool held = hold(f);
    int n = 0;
    if (*at < log->cut) *at = log->cut;
    if (*at < log->state.last_seq) {
        *at += 1;
        n = log->length[*at % FAKE_CHANGES];
        memcpy(out, log->bytes[*at % FAKE_CHANGES], (size_t)n);
    }
    let_go(f, held);
    return n;
}

static err_code fake_read(journal *j, int64_t after, int limit, journal_each each, void *self,
                          err *e)
{
    fake *f = (fake *)j;
    err_code rc = f->log->fault == FAKE_AWAY ? away(e) : ERR_NONE;
    uint8_t bytes[FAKE_CHANGE_BYTES];
    for (int n; !rc && limit-- > 0 && (n = copy_next(f, &after, bytes)) > 0;)
        rc = each(self, after, bytes, n, e);
    return rc;
}

static err_code fake_append(journal *j, int64_t seq, const void *bytes, int n, err *e)
{
    fake *f = (fake *)j;
    if (f->log->fault == FAKE_AWAY || n > FAKE_CHANGE_BYTES) return away(e);
    bool held = hold(f);
    memcpy(f->log->bytes[seq % FAKE_CHANGES], bytes, (size_t)n);
    f->log->length[seq % FAKE_CHANGES] = n;
    let_go(f, held);
    f->n_new++;
    return ERR_NONE;
}

static err_code fake_commit(journal *j, err *e)
{
    fake *f = (fake *)j;
    fake_fault fault = f->n_new > 0 ? f->log->fault : FAKE_FINE;
    if (fault == FAKE_KILL_BEFORE) raise(SIGKILL);
    bool held = hold(f);
    if (fault != FAKE_DOUBT_UNDONE) f->log->state.last_seq += f->n_new;
    f->log->made = true;
    let_go(f, held);
    if (fault == FAKE_KILL_AFTER) raise(SIGKILL);
    fake_undo(j);
    bool doubt = fault == FAKE_DOUBT_DONE || fault == FAKE_DOUBT_UNDONE;
    return doubt ? away(e) : ERR_NONE;
}

static err_code fake_claim(journal *j, const journal_claim *me, int64_t *epoch, err *e)
{
    fake_log *log = ((fake *)j)->log;
    int n = j->node;
    bool held = hold((fake *)j);
    bool twin = log->alive[n] && memcmp(log->instance[n], me->instance, CLUSTER_BYTES) != 0;
    if (!twin) {
        memcpy(log->instance[n], me->instance, CLUSTER_BYTES);
        log->alive[n] = true;
        *epoch = ++log->epoch[n];
    }
    let_go((fake *)j, held);
    if (!twin) return ERR_NONE;
    return err_set(e, ERR_EXISTS, "server.node = %d is held by another server of the fleet", n);
}

static err_code fake_put_snapshot(journal *j, int64_t seq, const void *bytes, int n,
                                  int64_t dead_after_us, err *e)
{
    (void)dead_after_us;
    fake_log *log = ((fake *)j)->log;
    if (n > FAKE_SNAPSHOT_BYTES) return err_set(e, ERR_LIMIT, "too large for the fake");
    bool held = hold((fake *)j);
    memcpy(log->snapshot, bytes, (size_t)n);
    log->snapshot_length = n;
    log->snapshot_seq = seq;
    let_go((fake *)j, held);
    return ERR_NONE;
}

static err_code fake_create(journal *j, const uint8_t cluster[CLUSTER_BYTES], int schema, err *e)
{
    fake *f = (fake *)j;
    take(f->log);
    f->locked = true;
    if (f->log->made) {
        fake_undo(j);
        return err_set(e, ERR_EXISTS, "the database holds a fleet already");
    }
    memcpy(f->log->state.cluster, cluster, CLUSTER_BYTES);
    f->log->state.schema = schema;
    return ERR_NONE;
}

static err_code fake_get_snapshot(journal *j, int64_t *seq, void **bytes, int *n, err *e)
{
    fake_log *log = ((fake *)j)->log;
    if (log->fault == FAKE_AWAY) return away(e);
    bool held = hold((fake *)j);
    *seq = log->snapshot_seq;
    *n = log->snapshot_length;
    *bytes = malloc((size_t)*n + 1);
    memcpy(*bytes, log->snapshot, (size_t)*n);
    let_go((fake *)j, held);
    return ERR_NONE;
}

static err_code fake_beat(journal *j, int64_t epoch, int64_t applied, bool dead, bool *drain,
                          err *e)
{
    (void)applied;
    *drain = false;
    fake_log *log = ((fake *)j)->log;
    if (log->fault == FAKE_AWAY) return away(e);
    bool held = hold((fake *)j);
    if (log->epoch[j->node] == epoch) log->alive[j->node] = !dead;
    let_go((fake *)j, held);
    return ERR_NONE;
}

/* What stands beside the log is PostgreSQL's. */
static err_code fake_query(journal *j, const char *text, const char *const *values, int n_values,
                           journal_row each, void *self, err *e)
{
    (void)text, (void)values, (void)n_values, (void)each, (void)self;
    return ((fake *)j)->log->fault == FAKE_AWAY ? away(e) : ERR_NONE;
}

static void fake_wait(journal *j, int wake_fd, int64_t timeout_us)
{
    (void)j, (void)timeout_us;
    struct pollfd p = {.fd = wake_fd, .events = POLLIN};
    (void)poll(&p, 1, 2); /* no notices: a short look is the news */
}

static void fake_close(journal *j)
{
    fake_undo(j);
    free(j);
}

static err_code fake_make(void *self, int node, journal **out, err *e)
{
    (void)e;
    fake *f = calloc(1, sizeof(*f));
    *f = (fake){.base = {.node = node,
                         .open = fake_open,
                         .look = fake_look,
                         .read = fake_read,
                         .append = fake_append,
                         .claim = fake_claim,
                         .put_snapshot = fake_put_snapshot,
                         .commit = fake_commit,
                         .undo = fake_undo,
                         .create = fake_create,
                         .get_snapshot = fake_get_snapshot,
                         .beat = fake_beat,
                         .query = fake_query,
                         .wait = fake_wait,
                         .close = fake_close},
                .log = self};
    *out = &f->base;
    return ERR_NONE;
}

static inline fake_log *fake_log_make(void)
{
    fake_log *log =
        mmap(NULL, sizeof(*log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (log == MAP_FAILED) abort();
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&log->mu, &a);
    return log;
}

static inline void fake_log_free(fake_log *log)
{
    munmap(log, sizeof(*log));
}

static inline journal_source fake_source(fake_log *log)
{
    return (journal_source){fake_make, log};
}

static inline void fake_set(fake_log *log, fake_fault fault)
{
    log->fault = fault;
}

static inline int64_t fake_last(fake_log *log)
{
    take(log);
    int64_t seq = log->state.last_seq;
    pthread_mutex_unlock(&log->mu);
    return seq;
}

static inline void fake_steal(fake_log *log, int node)
{
    take(log);
    log->epoch[node]++;
    pthread_mutex_unlock(&log->mu);
}

static inline void fake_cut(fake_log *log, int64_t seq)
{
    take(log);
    log->cut = seq;
    pthread_mutex_unlock(&log->mu);
}

#endif
