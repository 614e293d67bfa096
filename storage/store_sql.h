/* store_sql.h -- what the files of this room share: SQL jobs, read connections, statements.
 *
 * Private to storage/ (and its tests): the only header here that shows SQLite's types.
 */
#ifndef STORAGE_STORE_SQL_H
#define STORAGE_STORE_SQL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sqlite3.h>

#include "storage/store.h"

/* ---- jobs ------------------------------------------------------------------- */

/* Runs on the writer thread inside a transaction; a failure undoes what this job did, not its
 * neighbours' work. */
typedef err_code (*store_job)(sqlite3 *db, void *arg, err *e);

/* Runs `fn` and waits until its transaction is durable, for a few seconds where another program has
 * the database locked (ERR_IO then).  In a fleet it is durable for all nodes, and refused (ERR_IO)
 * while their database is away: for the tables that they share (fleet/changes.h). */
err_code store_write(store *st, store_job fn, void *arg, err *e);
/* The same for this node's own tables (usage, stored responses): no fleet is asked. */
err_code store_write_own(store *st, store_job fn, void *arg, err *e);
/* The same with so much patience; jobs before it may add theirs. */
err_code store_write_within(store *st, store_job fn, void *arg, int64_t patience_us, err *e);

/* Queues `fn` with a copy of `arg` and returns at once (without memory for the copy, when it is
 * done); a failure is logged. */
void store_post(store *st, store_job fn, const void *arg, size_t bytes);
/* The same for this node's own tables. */
void store_post_own(store *st, store_job fn, const void *arg, size_t bytes);

/* A read-only connection for this thread alone until store_read_end(); waits for a free one. */
sqlite3 *store_read_begin(store *st);

/* Gives the connection back, with no statement open (sql_end() was called for each). On the
 * thread of store_read_begin(). */
void store_read_end(store *st, sqlite3 *db);

/* ---- statements --------------------------------------------------------------- */

/* Prepare, bind in order, step, end.  The first failure sticks and sql_end() reports it. */
typedef struct sql {
    sqlite3 *db;
    sqlite3_stmt *s;
    int n_bound, rc;
} sql;

/* Prepares the statement `text`, which may have parameters ?1, ?2 ... Always pair it with one of
 * the functions that end it, also after a failure. `q` belongs to one thread. */
void sql_begin(sql *q, sqlite3 *db, const char *text);

/* Binds the next parameter, in the order of the calls: whole numbers, doubles, text, bytes,
 * NULL. After a failure they do nothing. */
void sql_int(sql *q, int64_t v);

/* See sql_int(). */
void sql_real(sql *q, double v);
void sql_text(sql *q, const char *v); /* not copied: must live until sql_end() */
void sql_blob(sql *q, const void *v, size_t len);

/* See sql_int(). */
void sql_null(sql *q);
bool sql_row(sql *q); /* true: a row is there */
int64_t sql_col_int(sql *q, int i);

/* Columns are counted from 0 and may be read only while sql_row() has just been true. NULL is 0
 * here, and "" as text. */
double sql_col_real(sql *q, int i);

/* Copies the text, cut to cap - 1 bytes and NUL-ended. */
void sql_col_text(sql *q, int i, char *out, size_t cap);
bool sql_col_blob(sql *q, int i, void *out, size_t len); /* false: another length */
/* Frees the statement.  `what` is what the user wanted ("create the tenant"). */
err_code sql_end(sql *q, const char *what, err *e);
/* For statements without rows: step once, and be as after sql_begin(). */
err_code sql_repeat(sql *q, const char *what, err *e);
/* For statements without rows: step once, end. */
err_code sql_done(sql *q, const char *what, err *e);

/* SQLite's result code as ours, with a sentence. */
err_code sql_error(sqlite3 *db, int rc, const char *what, err *e);

/* ---- schema -------------------------------------------------------------------- */

/* The SQL of each step: [v - 1] makes schema v out of schema v - 1. */
extern const char *const schema_steps[STORE_SCHEMA_VERSION];

/* Brings the database from its user_version up to `upto`, one transaction for each step. */
err_code schema_migrate(sqlite3 *db, int upto, err *e);

/* ---- caches -------------------------------------------------------------------- */

struct tenant_cache;
struct key_cache;

struct fleet *store_fleet(store *st); /* NULL: the server is by itself */
/* Is this directory a fleet's node, whether it was opened with its fleet or not? */
bool store_is_node(const store *st);

/* The copies of all tenants and keys in memory, which every request reads; owned by the store. */
struct tenant_cache *store_tenants(store *st);
struct key_cache *store_keys(store *st);

/* Notes a lock-out that is in force in memory and has the writer make it durable, now and until it
 * succeeds (lockouts.h).  Waits a moment for it; false: it is not durable yet. */
struct lockout;
bool store_lockout(store *st, const struct lockout *what);

/* Reads all rows at the start; ERR_IO or ERR_NOMEM. `db` is only used during the call. */
err_code tenant_cache_open(struct tenant_cache **out, sqlite3 *db, err *e);

/* Frees the copies; nobody may be in a call. NULL is allowed. */
void tenant_cache_close(struct tenant_cache *tc);

/* The same for keys. Secrets stay as the database has them: digests. */
err_code key_cache_open(struct key_cache **out, sqlite3 *db, err *e);

/* Frees them. NULL is allowed. */
void key_cache_close(struct key_cache *kc);
/* In memory alone: what lockouts.h tells of, without its other two steps. */
void tenant_cache_disable(store *st, uint64_t tenant_id, int64_t now_wall_us);

/* All keys of the tenant that are not revoked yet. */
void key_cache_revoke_tenant(store *st, uint64_t tenant_id, int64_t now_wall_us);
/* Reads one row anew: another node has changed it.  Lock-outs that wait stay in force. */
err_code tenant_cache_refresh(store *st, uint64_t tenant_id, err *e);

/* The same for one key. */
err_code key_cache_refresh(store *st, uint64_t key_id, err *e);
/* Puts what is locked out and not durable yet in force in the copies in memory. */
void store_lock_out_again(store *st);
/* Does a lock-out of this tenant wait for the disk? */
bool store_locked_out(store *st, uint64_t tenant_id);
/* False: there is no such key. */
bool key_cache_revoke(store *st, uint64_t key_id, int64_t now_wall_us);

#endif
