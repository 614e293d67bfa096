/* changes.h -- what a transaction changed in the tables that a fleet shares, as bytes; and back.
 *
 * The bytes are a changeset of SQLite's session extension: rows by primary key with the old and the
 * new values.  Applied to a database that is where the first one was, it makes the same rows; to
 * any other one it is refused as a whole.  A snapshot has the same form: the changes from empty
 * tables to those of a database.
 *
 * SQLite reads a damaged changeset without end.  So it travels sealed, and no byte of it is looked
 * at before the seal is right:  "LRC1", SHA-256 of the changeset, changeset.
 *
 * Shared: tenants, keys and their secrets, adapters with versions, aliases and shares, stacks,
 * sealed secrets for sources, the audit, the highest id.  Usage and the time of a key's last use
 * are each node's own.
 *
 * Private to storage/.  Threads: the one that has the connection.
 */
#ifndef STORAGE_FLEET_CHANGES_H
#define STORAGE_FLEET_CHANGES_H

#include <stddef.h>
#include <stdint.h>

#include "storage/store_sql.h"

typedef enum { TOUCHED_TENANT = 1, TOUCHED_KEY, TOUCHED_ADAPTER } touched_kind;

typedef struct touched { /* a row whose copies in memory are out of date */
    touched_kind kind;
    uint64_t id;
} touched;

/* In the order of the changes, each row once in a run.  All zero: empty. */
typedef struct touched_list {
    touched *item;
    size_t n, cap;
} touched_list;

void touched_clear(touched_list *t);
/* Moves all of `from` behind `to`; ERR_NOMEM: nothing is moved. */
err_code touched_move(touched_list *to, touched_list *from, err *e);

typedef struct changes { /* bytes are malloced; none: nothing changed */
    void *bytes;
    int n;
} changes;

void changes_clear(changes *c);

typedef struct recording recording;

/* From here on, inside a transaction, what this connection changes is recorded. */
err_code recording_start(recording **out, sqlite3 *db, err *e);
/* What it was; what was rolled back meanwhile is not in it. */
err_code recording_take(recording *r, changes *out, err *e);
void recording_end(recording *r); /* NULL is fine */

/* Applies all of it, or nothing: ERR_CONFLICT where the rows are not those that it was made from,
 * ERR_CORRUPT where it is no changeset.  Adds the rows that it touches. */
err_code changes_apply(sqlite3 *db, const void *bytes, int n, touched_list *t, err *e);

/* The shared tables as changes from empty ones.  `path` is the database; *seq the position of its
 * mirror (the table fleet; 0: none) at that moment. */
err_code changes_of_all(const char *path, changes *out, int64_t *seq, err *e);
/* Empties the shared tables, inside a transaction.  Adds the rows that there were. */
err_code changes_empty(sqlite3 *db, touched_list *t, err *e);
/* Has somebody made tenants, keys or adapters here? */
err_code changes_any(sqlite3 *db, bool *out, err *e);

#endif
