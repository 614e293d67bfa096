/* batches.c -- the rows of batches: one for each, written when its state changes.
 *
 *   validating 0 -> in_progress 1 -> finalizing 2 -> completed 5
 *        |              |                               failed 4, expired 6, cancelled 7
 *        +-- cancelling 3 (from 0 and 1) --------------^
 *
 * The order of the numbers matters: < 2 can be cancelled, < 4 has not ended.  The runner writes its
 * own copy of a row, so it could overwrite a cancellation that came meanwhile; update_row() keeps
 * `cancelling` until an end and returns the status to the runner.
 *
 * The end of a batch and the rows of its result files are one transaction (batches_end()), so a
 * file never exists without its batch's end or the reverse.
 *
 * batches_put() checks in its transaction that the input file exists and the tenant's limit, and
 * removes the oldest ended ones beyond the quota.
 */
#include "storage/batches/batches.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "storage/batches/batches_inside.h"

static const int64_t scrub_us = 5000000;

#define BATCH_SQL                                                                              \
    "SELECT tenant_id, id, key_id, endpoint, input_file, output_file, error_file, keep_us,"    \
    " status, first_id, last_id, total, completed, failed, created_us, deadline_us, begun_us," \
    " finalizing_us, cancelling_us, ended_us, metadata, errors FROM batches "

const char *batch_status_name(batch_status s)
{
    static const char *const names[] = {"validating", "in_progress", "finalizing", "cancelling",
                                        "failed",     "completed",   "expired",    "cancelled"};
    return names[s];
}

bool batch_has_ended(batch_status s)
{
    return s >= BATCH_FAILED;
}

err_code batch_page_start(sqlite3 *db, const char *find, const batch_page *p, int64_t *from, err *e)
{
    sql q;
    bool found = !p->after;
    *from = p->oldest_first ? 0 : INT64_MAX;
    if (found) return ERR_NONE;
    sql_begin(&q, db, find);
    sql_int(&q, (int64_t)p->tenant_id);
    sql_text(&q, p->after);
    if (sql_row(&q)) {
        *from = sql_col_int(&q, 0);
        found = true;
    }
    err_code rc = sql_end(&q, "read the list", e);
    if (rc || found) return rc;
    return err_set(e, ERR_NOT_FOUND, "'after' is not the id of an entry of this list");
}

/* ---------------------------------------------------------------------- changes -- */

typedef struct put_job {
    const batch_row *b;
    const batch_quota *quota;
} put_job;

/* Checks the input file in the transaction, so that it can't be deleted meanwhile. */
static err_code check_input(sqlite3 *db, const batch_row *b, err *e)
{
    sql q;
    sql_begin(&q, db, "SELECT 1 FROM files WHERE tenant_id = ?1 AND id = ?2");
    sql_int(&q, (int64_t)b->tenant_id);
    sql_text(&q, b->input);
    bool found = sql_row(&q);
    err_code rc = sql_end(&q, "look for the input file", e);
    if (rc || found) return rc;
    return err_set(e, ERR_NOT_FOUND, "there is no such file");
}

static err_code check_number(sqlite3 *db, const put_job *p, err *e)
{
    int64_t n = 0;
    sql q;
    sql_begin(&q, db, "SELECT count(*) FROM batches WHERE tenant_id = ?1 AND status < 4");
    sql_int(&q, (int64_t)p->b->tenant_id);
    if (sql_row(&q)) n = sql_col_int(&q, 0);
    err_code rc = sql_end(&q, "count the batches", e);
    if (rc || p->quota->unfinished == 0 || n < p->quota->unfinished) return rc;
    return err_set(e, ERR_LIMIT,
                   "the tenant has %lld batches that have not ended, the limit is %lld",
                   (long long)n, (long long)p->quota->unfinished);
}

static err_code drop_ended(sqlite3 *db, const put_job *p, err *e)
{
    sql q;
    if (p->quota->ended == 0) return ERR_NONE;
    sql_begin(&q, db,
              "DELETE FROM batches WHERE row IN (SELECT row FROM batches"
              " WHERE tenant_id = ?1 AND status >= 4 ORDER BY row DESC LIMIT -1 OFFSET ?2)");
    sql_int(&q, (int64_t)p->b->tenant_id);
    sql_int(&q, p->quota->ended);
    return sql_done(&q, "delete old batches", e);
}

static err_code put_row(sqlite3 *db, void *arg, err *e)
{
    const put_job *p = arg;
    const batch_row *b = p->b;
    err_code rc = check_input(db, b, e);
    if (!rc) rc = check_number(db, p, e);
    if (rc) return rc;
    sql q;
    sql_begin(&q, db,
              "INSERT INTO batches(tenant_id, id, key_id, endpoint, input_file, output_file,"
              " error_file, keep_us, metadata, errors, status, first_id, last_id, total, completed,"
              " failed, created_us, deadline_us, begun_us, finalizing_us, cancelling_us, ended_us)"
              " VALUES(?,?,?,?,?,?,?,?,?,'',?,0,0,0,0,0,?,?,0,0,0,0)");
    sql_int(&q, (int64_t)b->tenant_id);
    sql_text(&q, b->id);
    sql_int(&q, (int64_t)b->key_id);
    sql_text(&q, b->endpoint);
    sql_text(&q, b->input);
    sql_text(&q, b->output);
    sql_text(&q, b->error);
    sql_int(&q, b->keep_us);
    sql_text(&q, b->metadata ? b->metadata : "");
    sql_int(&q, b->status);
    sql_int(&q, b->created_us);
    sql_int(&q, b->deadline_us);
    rc = sql_done(&q, "store the batch", e);
    return rc ? rc : drop_ended(db, p, e);
}

err_code batches_put(store *st, const batch_row *b, const batch_quota *quota, err *e)
{
    put_job p = {b, quota};
    return store_write_own(st, put_row, &p, e);
}

static err_code cancel_row(sqlite3 *db, void *arg, err *e)
{
    const batch_row *b = arg;
    sql q;
    sql_begin(&q, db,
              "UPDATE batches SET status = 3, cancelling_us = ?3"
              " WHERE tenant_id = ?1 AND id = ?2 AND status < 2");
    sql_int(&q, (int64_t)b->tenant_id);
    sql_text(&q, b->id);
    sql_int(&q, b->cancelling_us);
    return sql_done(&q, "cancel the batch", e);
}

_Static_assert(BATCH_CANCELLING == 3 && BATCH_FINALIZING == 2, "cancel_row()");

err_code batches_cancel(store *st, uint64_t tenant_id, const char *id, int64_t wall_us,
                        batch_row *out, err *e)
{
    batch_row job;
    err_code rc = batches_get(st, tenant_id, id, &job, e);
    if (rc) return rc;
    batch_row_clear(&job);
    job.cancelling_us = wall_us;
    rc = store_write_own(st, cancel_row, &job, e);
    if (!rc) rc = batches_get(st, tenant_id, id, out, e);
    if (rc || out->status == BATCH_CANCELLING) return rc;
    rc = err_set(e, ERR_CONFLICT, "a batch that is %s cannot be cancelled",
                 batch_status_name(out->status));
    batch_row_clear(out);
    return rc;
}

typedef struct update_job {
    const batch_row *b;
    const file_row *files;
    size_t n;
    batch_status now;
} update_job;

static err_code update_row(sqlite3 *db, void *arg, err *e)
{
    update_job *j = arg;
    const batch_row *b = j->b;
    sql q;
    j->now = b->status;
    sql_begin(&q, db,
              "UPDATE batches SET status = CASE WHEN status = 3 AND ?2 < 4 THEN 3 ELSE ?2 END,"
              " errors = ?3, first_id = ?4, last_id = ?5, total = ?6, completed = ?7, failed = ?8,"
              " begun_us = ?9, finalizing_us = ?10, ended_us = ?11 WHERE id = ?1 RETURNING status");
    sql_text(&q, b->id);
    sql_int(&q, b->status);
    sql_text(&q, b->errors ? b->errors : "");
    sql_int(&q, (int64_t)b->first_id);
    sql_int(&q, (int64_t)b->last_id);
    sql_int(&q, b->total);
    sql_int(&q, b->completed);
    sql_int(&q, b->failed);
    sql_int(&q, b->begun_us);
    sql_int(&q, b->finalizing_us);
    sql_int(&q, b->ended_us);
    while (sql_row(&q)) j->now = (batch_status)sql_col_int(&q, 0);
    err_code rc = sql_end(&q, "write the batch's state", e);
    for (size_t i = 0; !rc && i < j->n; i++) rc = files_insert(db, &j->files[i], e);
    return rc;
}

err_code batches_update(store *st, const batch_row *b, batch_status *status, err *e)
{
    assert(!batch_has_ended(b->status)); /* that is batches_end()'s, with the files */
    update_job j = {.b = b};
    err_code rc = store_write_own(st, update_row, &j, e);
    if (!rc) *status = j.now;
    return rc;
}

err_code batches_end(store *st, const batch_row *b, const file_row *files, size_t n, err *e)
{
    assert(batch_has_ended(b->status) && b->ended_us > 0);
    update_job j = {b, files, n, b->status};
    return store_write_own(st, update_row, &j, e);
}

static err_code prune_rows(sqlite3 *db, void *arg, err *e)
{
    int64_t *job = arg;
    sql q;
    sql_begin(&q, db,
              "DELETE FROM batches WHERE row IN (SELECT row FROM batches"
              " WHERE ended_us BETWEEN 1 AND ?1 LIMIT ?2)");
    sql_int(&q, job[0]);
    sql_int(&q, job[1]);
    err_code rc = sql_done(&q, "delete old batches", e);
    job[2] = sqlite3_changes64(db);
    return rc;
}

err_code batches_prune(store *st, int64_t before_us, int64_t limit, err *e)
{
    int64_t job[] = {before_us, limit, 0};
    err_code rc = store_write_own(st, prune_rows, job, e);
    if (!rc && job[2]) (void)store_scrub(st, scrub_us); /* their metadata, too */
    return rc;
}

/* ---------------------------------------------------------------------- reading -- */

void batch_row_clear(batch_row *b)
{
    free(b->metadata);
    free(b->errors);
    b->metadata = b->errors = NULL;
}

void batch_rows_free(batch_row *list, size_t n)
{
    for (size_t i = 0; i < n; i++) batch_row_clear(&list[i]);
    free(list);
}

/* A column's text, malloced; NULL: empty.  False: no memory. */
static bool take_text(sql *q, int column, char **out)
{
    const char *s = (const char *)sqlite3_column_text(q->s, column);
    *out = s && s[0] ? strdup(s) : NULL;
    return *out || !s || !s[0];
}

static bool read_row(sql *q, batch_row *b)
{
    *b = (batch_row){.tenant_id = (uint64_t)sql_col_int(q, 0),
                     .key_id = (uint64_t)sql_col_int(q, 2),
                     .keep_us = sql_col_int(q, 7),
                     .status = (batch_status)sql_col_int(q, 8),
                     .first_id = (uint64_t)sql_col_int(q, 9),
                     .last_id = (uint64_t)sql_col_int(q, 10),
                     .total = sql_col_int(q, 11),
                     .completed = sql_col_int(q, 12),
                     .failed = sql_col_int(q, 13),
                     .created_us = sql_col_int(q, 14),
                     .deadline_us = sql_col_int(q, 15),
                     .begun_us = sql_col_int(q, 16),
                     .finalizing_us = sql_col_int(q, 17),
                     .cancelling_us = sql_col_int(q, 18),
                     .ended_us = sql_col_int(q, 19)};
    sql_col_text(q, 1, b->id, sizeof(b->id));
    sql_col_text(q, 3, b->endpoint, sizeof(b->endpoint));
    sql_col_text(q, 4, b->input, sizeof(b->input));
    sql_col_text(q, 5, b->output, sizeof(b->output));
    sql_col_text(q, 6, b->error, sizeof(b->error));
    return take_text(q, 20, &b->metadata) && take_text(q, 21, &b->errors);
}

/* The rows of a query whose parameters are bound. */
static err_code collect(sql *q, batch_row **out, size_t *n, err *e)
{
    size_t cap = 0;
    bool starved = false;
    *out = NULL;
    *n = 0;
    while (!starved && sql_row(q)) {
        if (*n == cap) {
            cap = cap ? 2 * cap : 16;
            batch_row *list = realloc(*out, cap * sizeof(*list));
            starved = !list;
            if (starved) break;
            *out = list;
        }
        starved = !read_row(q, &(*out)[(*n)++]);
    }
    err_code rc = sql_end(q, "read the batches", e);
    if (starved) rc = err_set(e, ERR_NOMEM, "out of memory");
    if (!rc) return rc;
    batch_rows_free(*out, *n);
    *out = NULL;
    *n = 0;
    return rc;
}

err_code batches_get(store *st, uint64_t tenant_id, const char *id, batch_row *out, err *e)
{
    batch_row *list;
    size_t n;
    sql q;
    sqlite3 *db = store_read_begin(st);
    sql_begin(&q, db, BATCH_SQL "WHERE tenant_id = ?1 AND id = ?2");
    sql_int(&q, (int64_t)tenant_id);
    sql_text(&q, id);
    err_code rc = collect(&q, &list, &n, e);
    store_read_end(st, db);
    if (!rc && n == 0) rc = err_set(e, ERR_NOT_FOUND, "there is no such batch");
    if (!rc) *out = list[0];
    free(list);
    return rc;
}

err_code batches_list(store *st, const batch_page *p, batch_row **out, size_t *n, bool *more,
                      err *e)
{
    int64_t from;
    sql q;
    *out = NULL;
    *n = 0;
    sqlite3 *db = store_read_begin(st);
    err_code rc = batch_page_start(
        db, "SELECT row FROM batches WHERE (?1 = 0 OR tenant_id = ?1) AND id = ?2", p, &from, e);
    if (!rc) {
        sql_begin(&q, db,
                  p->oldest_first ? BATCH_SQL
                      "WHERE (?1 = 0 OR tenant_id = ?1) AND row > ?2 ORDER BY row LIMIT ?3"
                                  : BATCH_SQL
                      "WHERE (?1 = 0 OR tenant_id = ?1) AND row < ?2 ORDER BY row DESC LIMIT ?3");
        sql_int(&q, (int64_t)p->tenant_id);
        sql_int(&q, from);
        sql_int(&q, (int64_t)p->limit + 1);
        rc = collect(&q, out, n, e);
    }
    store_read_end(st, db);
    *more = *n > p->limit;
    if (*more) batch_row_clear(&(*out)[--*n]);
    return rc;
}

err_code batches_unfinished(store *st, batch_row **out, size_t *n, err *e)
{
    sql q;
    sqlite3 *db = store_read_begin(st);
    sql_begin(&q, db, BATCH_SQL "WHERE status < 4 ORDER BY row");
    err_code rc = collect(&q, out, n, e);
    store_read_end(st, db);
    return rc;
}
