/* fleet.h -- this node's part in a fleet: its mirror of the shared tables follows the journal.
 *
 * Each node's SQLite is a replica of one state machine, whose inputs are the journal's changes in
 * their order.  A write locks the journal, applies what it has not seen, runs, appends what it
 * changed and commits there first, here second.  A crash in between is mended by reading the
 * journal on: this node's own change stands in it.
 *
 *   writer     fleet_begin() .. fleet_end(): within its transaction of SQLite
 *   follower   a thread of its own with a session of its own: reads, has the writer apply, then
 *              shows what changed in the copies in memory; heartbeats; snapshots
 *
 * While the journal does not answer, fleet_begin() refuses at once and reads go on from the mirror.
 *
 * Private to storage/.  Threads: as said at each.
 */
#ifndef STORAGE_FLEET_FLEET_H
#define STORAGE_FLEET_FLEET_H

#include "storage/fleet/journal.h"
#include "storage/store_sql.h"

typedef struct fleet fleet;

/* ---- life: the thread that opens and closes the store ---- */

/* Takes the node's number, joins with the newest snapshot where the directory is fresh, and catches
 * up.  `db` is the writer's connection.
 *   ERR_EXISTS    another live server has this number
 *   ERR_CONFLICT  the directory has rows of its own, or belongs to another fleet
 *   ERR_IO        no answer, and this directory has never been in the fleet
 * A directory that is in it opens without an answer, too; it is away then. */
err_code fleet_open(fleet **out, store *st, sqlite3 *db, const journal_source *from, int node,
                    err *e);
/* Starts the follower, once the store's writer runs and its caches stand. */
err_code fleet_follow(fleet *f, err *e);
/* Ends it, before the writer ends.  NULL is fine. */
void fleet_stop(fleet *f);

/* Frees it, after fleet_stop() and the end of the writer. NULL is allowed. */
void fleet_close(fleet *f);

/* Makes a fleet of this directory's rows, which becomes its first node.  ERR_EXISTS: there is one
 * at that place; ERR_CONFLICT: the directory is in a fleet already. */
err_code fleet_found(store *st, sqlite3 *db, const journal_source *to, int node, err *e);

/* ---- the writer's, in this order ---- */

/* Inside a transaction: applies all that the journal has, and records from here on.  The journal is
 * locked until fleet_end().  ERR_IO: away, or this node may not write. */
err_code fleet_begin(fleet *f, sqlite3 *db, err *e);
/* Appends what was recorded and commits it in the journal.  Once it has succeeded the change has
 * happened, whatever becomes of the mirror. */
err_code fleet_commit(fleet *f, sqlite3 *db, err *e);
/* The transaction is over: ok, or undone. */
void fleet_end(fleet *f, bool ok);
/* Was fleet_commit() successful with something to say, in the last turn? */
bool fleet_published(const fleet *f);

/* ---- any thread ---- */

/* A session for each kind of work beside the log, so that none waits for another's. */
typedef enum { DESK_LEASES, DESK_BOOKS, DESKS } fleet_desk;

/* This node's number, 0 to 255; constant. */
int fleet_node(const fleet *f);
/* Under which this node holds its number; 0: it has not got it yet. */
int64_t fleet_epoch(const fleet *f);
/* The data directory's own number, in hexadecimal digits. */
void fleet_instance(const fleet *f, char out[2 * CLUSTER_BYTES + 1]);
/* Of questions for leases: larger each time. */
int64_t fleet_next_turn(fleet *f);
/* As far as is known, without asking.  ERR_IO: the database is away, or this node may not write. */
err_code fleet_answers(fleet *f, err *e);
/* journal.query(), one at a time at each desk.  ERR_IO at once while the database is away. */
err_code fleet_query(fleet *f, fleet_desk desk, const char *text, const char *const *values,
                     int n_values, journal_row each, void *self, err *e);

/* store_catch_up() */
void fleet_catch_up(fleet *f, int64_t patience_us);

/* A consistent copy for readiness and metrics. */
void fleet_stats(fleet *f, store_fleet_stats *out);
/* fn is called for each adapter that another node changed, on the follower's thread; NULL: nobody.
 * When it returns, the one before is not called any more. */
void fleet_on_adapter(fleet *f, err_code (*fn)(void *self, uint64_t adapter_id, err *e),
                      void *self);

#endif
