/* store.h -- the durable memory of one lorad: a data directory with one SQLite database.
 *
 * All writes go through one writer thread, which owns the only connection that writes and
 * checkpoints.  It gathers what callers posted meanwhile into one transaction (group commit) and
 * wakes each caller once that transaction is on the disk (WAL, synchronous=FULL).  Readers
 * share a read-only connection.
 *
 * This header shows no SQLite types: what replicas share moves to another database one day.
 * The tables' own calls are in tenants.h, keys.h, adapter_rows.h, ledger.h, audit.h.
 *
 * Ownership: the caller owns the store; close it after everything that uses it.
 * Threads:   any thread, except store_open() and store_close().
 */
#ifndef STORAGE_STORE_H
#define STORAGE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

typedef struct store store;

struct journal_source; /* storage/fleet/journal.h */

typedef struct store_options {
    bool create;      /* make the directory and the database where they are missing */
    bool quick_check; /* walk the whole database before use (slow on large ones) */
    int node;         /* 0..255: part of every id, so that ids of replicas differ */
    const struct journal_source *fleet; /* NULL: this server is by itself; read in store_open() */
    bool without_fleet; /* open a node's directory without its fleet: to leave it, to look */
} store_options;

typedef struct store_fleet_stats {
    bool member;     /* false: the server is by itself, all below is 0 */
    bool fenced;     /* another server has taken this one's number: it does not write any more */
    bool drain;      /* another server has asked this one to finish what runs and stop */
    int64_t away_us; /* for how long the fleet's database has not answered; 0: it does */
    int64_t applied, behind; /* changes in the mirror; how many more the journal has */
} store_fleet_stats;

typedef struct store_stats {
    uint64_t n_jobs, n_commits, n_failed; /* writer: jobs done, transactions, jobs refused */
    uint64_t n_lost;                      /* transactions that the disk or a lock refused */
    int n_queued;                         /* waiting now */
    int64_t last_commit_us, max_commit_us;
    int64_t lag_us;    /* how long the oldest write that is not durable yet has waited; 0: none */
    int n_lockouts;    /* revocations and the like that are in force but not durable yet */
    bool reserve_held; /* storage/reserve.h; false: the disk was full and has no room yet */
    int lock_holder;   /* process that held the write lock at the last lost transaction; 0: none */
    store_fleet_stats fleet;
} store_stats;

enum { STORE_SCHEMA_VERSION = 21 };

/* Opens <dir>/lorad.db and takes the directory for this process.
 *   ERR_NOT_FOUND  no database there and !create
 *   ERR_BUSY       another process holds the directory
 *   ERR_CONFLICT   the schema is newer than this program, or the file is not ours
 *   ERR_CORRUPT    the database is damaged
 * `options` may be NULL: all zero. */
err_code store_open(store **out, const char *dir, const store_options *options, err *e);

/* Makes a fleet of the rows in this directory, which becomes its first node (its number: node).
 *   ERR_EXISTS    a fleet is there already
 *   ERR_CONFLICT  the directory is in one
 *   ERR_IO        no answer
 * The store must have been opened without one. */
err_code store_found_fleet(store *st, const struct journal_source *to, int node, err *e);
/* The directory leaves its fleet, and keeps the rows: it is a server by itself again.  *was: it was
 * in one. */
err_code store_leave_fleet(store *st, bool *was, err *e);

/* In a fleet, `fn` is called for each adapter that another node has changed, on a thread of the
 * store's, with nothing held; NULL: nobody.  When it returns, the one before is not called any
 * more.  Does nothing for a server by itself. */
void store_on_adapter(store *st, err_code (*fn)(void *self, uint64_t adapter_id, err *e),
                      void *self);

/* Is this a node of a fleet? */
bool store_in_fleet(const store *st);

/* In a fleet: what other nodes had changed before this call is shown here when it returns, unless
 * the fleet's database is away or `patience_us` are over. */
void store_catch_up(store *st, int64_t patience_us);

/* Waits for the writes still queued, then closes.  NULL is fine. */
void store_close(store *st);

/* The data directory as given to store_open(). */
const char *store_dir(const store *st);

/* A new id: time-ordered, unique on this node over all time, 63 bits, never 0. */
uint64_t store_next_id(store *st);

/* So many ids at once, for who must know them before they are used: the first; the others are
 * store_nth_id(st, first, 1) and on.  They are unique over all time if the last one is in the
 * database before one is used. */
uint64_t store_take_ids(store *st, uint64_t n);

/* The n-th id after `first`, n below what store_take_ids() was asked for. */
uint64_t store_nth_id(const store *st, uint64_t first, uint64_t n);
/* The inverse: `id` is the how manieth from `first`; UINT64_MAX: it is below it. */
uint64_t store_id_place(uint64_t first, uint64_t id);

/* Ids to come are above `id`, which was given out and is not in the database. */
void store_raise_ids(store *st, uint64_t id);

/* True unless the disk refused a commit since the last one that succeeded; readiness asks this. */
bool store_healthy(store *st);

/* A consistent copy of the writer's counts; any thread. */
void store_stats_get(store *st, store_stats *out);

/* Nothing of the rows that were deleted before is in any file when it returns true; false: not
 * within `patience_us`, but soon. */
bool store_scrub(store *st, int64_t patience_us);

#endif
