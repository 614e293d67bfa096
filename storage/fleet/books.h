/* books.h -- the fleet's usage: the rows of all nodes, in PostgreSQL.
 *
 * A row is durable in its node's SQLite first, where it is marked as not shipped in the same
 * transaction.  A thread ships batches and takes the marks away once PostgreSQL has them; who is
 * killed in between ships them again, and a request id is there once.  A later attempt at the same
 * request replaces the row, as in the node's own ledger.  With the rows go sums by tenant and day
 * that leases look at (lease.h).
 *
 * Private to storage/.  Threads: any, but for start and stop.
 */
#ifndef STORAGE_FLEET_BOOKS_H
#define STORAGE_FLEET_BOOKS_H

#include "storage/fleet/fleet.h"

typedef struct books books;

err_code books_start(books **out, store *st, fleet *f, err *e);
/* Ships what is left, if the database answers; before the store's writer ends.  NULL is fine. */
void books_stop(books *b);

/* Ships all that was settled here before, then asks; parameters and rows as in journal.query(). */
err_code books_query(store *st, const char *text, const char *const *values, int n_values,
                     journal_row each, void *self, err *e);
/* Like ledger_prune(), of all nodes' rows; what is not done now is done the next time. */
void books_prune(store *st, int64_t before_wall_us, int64_t max);
/* Gives this directory's sums of old usage to a fleet that begins, within the journal's
 * transaction. */
err_code books_found(sqlite3 *db, journal *j, err *e);
/* Marks all rows of this directory, within a transaction; or takes all marks away. */
err_code books_mark_all(sqlite3 *db, bool marked, err *e);

#endif
