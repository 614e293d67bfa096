/* journal.h -- the fleet's journal: one log of changes in one order, which all nodes read.
 *
 * Two of them: PostgreSQL (journal_pg.c), and one in memory for tests.  A journal is one session
 * with it.  ERR_IO from any call: the session is lost, with all that it had begun; the next open()
 * makes another.
 *
 * Ownership: who made a journal closes it.  Threads: one at a time for each journal.
 */
#ifndef STORAGE_FLEET_JOURNAL_H
#define STORAGE_FLEET_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { CLUSTER_BYTES = 16, NODE_NAME_MAX = 64 };

typedef struct journal journal;

typedef struct journal_state {
    uint8_t cluster[CLUSTER_BYTES]; /* which fleet this is */
    int schema;                     /* of the tables that the changes are about */
    int64_t last_seq;               /* the newest change; 0: none yet */
    int64_t first_seq;              /* the oldest that is kept; last_seq + 1: none is */
    int64_t snapshot_seq;           /* the newest snapshot holds all changes up to it */
    int64_t epoch;                  /* under which this node's number is held; 0: by nobody */
} journal_state;

typedef struct journal_claim {
    uint8_t instance[CLUSTER_BYTES]; /* the data directory's own number */
    char name[NODE_NAME_MAX + 1];    /* for people: the host's */
    int schema;                      /* of its tables; the fleet's becomes this, if it was less */
    int64_t dead_after_us; /* a node without a heartbeat for so long has lost its number */
} journal_claim;

/* Called for each change in order; what it returns ends the reading. */
typedef err_code (*journal_each)(void *self, int64_t seq, const void *bytes, int n, err *e);
/* Called for each row of an answer, its n columns as text ("" for NULL); the same. */
typedef err_code (*journal_row)(void *self, const char *const *column, int n, err *e);

struct journal {
    int node; /* this server's number */

    /* A session; keeps the one that there is. */
    err_code (*open)(journal *j, err *e);
    /* The newest state.  With `lock`, a transaction begins, and no other node changes anything
     * until commit() or undo().  ERR_NOT_FOUND: no fleet was made here. */
    err_code (*look)(journal *j, bool lock, journal_state *out, err *e);
    /* Changes above `after`, at most so many. */
    err_code (*read)(journal *j, int64_t after, int limit, journal_each each, void *self, err *e);

    /* These in a transaction. */
    err_code (*append)(journal *j, int64_t seq, const void *bytes, int n, err *e);
    /* Takes this node's number: ERR_EXISTS while another instance holds it and is alive. */
    err_code (*claim)(journal *j, const journal_claim *me, int64_t *epoch, err *e);
    /* Keeps a snapshot, and removes older ones with those changes that all live nodes have. */
    err_code (*put_snapshot)(journal *j, int64_t seq, const void *bytes, int n,
                             int64_t dead_after_us, err *e);
    /* ERR_IO: it may have been done, or not. */
    err_code (*commit)(journal *j, err *e);
    /* NULL-safe in every state: gives up what was begun. */
    void (*undo)(journal *j);

    /* Makes an empty fleet: ERR_EXISTS where there is one. */
    err_code (*create)(journal *j, const uint8_t cluster[CLUSTER_BYTES], int schema, err *e);
    /* The newest snapshot; *bytes is malloced.  ERR_NOT_FOUND: none. */
    err_code (*get_snapshot)(journal *j, int64_t *seq, void **bytes, int *n, err *e);
    /* This node is alive and has applied so much.  With dead: it has stopped.  *drain: it is asked
     * to stop. */
    err_code (*beat)(journal *j, int64_t epoch, int64_t applied, bool dead, bool *drain, err *e);
    /* One statement about what stands beside the log: leases, usage, nodes.  It is a transaction of
     * its own, or none of it happens; ERR_IO: it may have been done, or not.  Parameters are text;
     * `each` may be NULL. */
    err_code (*query)(journal *j, const char *text, const char *const *values, int n_values,
                      journal_row each, void *self, err *e);
    /* Until there may be news, `wake_fd` is readable, or it is time. */
    void (*wait)(journal *j, int wake_fd, int64_t timeout_us);
    void (*close)(journal *j);
};

/* Sessions of a fleet's journal, as many as are asked for. */
typedef struct journal_source {
    err_code (*make)(void *self, int node, journal **out, err *e);
    void *self;
} journal_source;

/* PostgreSQL 13 or newer.  `url`: postgres://user@host/database?sslmode=...; `password` may be
 * NULL.  Both are copied.  ERR_UNSUPPORTED: this machine has no libpq.so.5. */
err_code journal_postgres(const char *url, const char *password, int node, journal **out, err *e);

#endif
