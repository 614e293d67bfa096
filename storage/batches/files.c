/* files.c -- the rows of tenants' files; the bytes are in blobs (gateway/batches/blob.h).
 *
 * The quota is counted in the same transaction that inserts the row, so concurrent uploads
 * cannot exceed it together; files_check() is the early test, without a promise. Expired rows
 * are invisible from their time on and are deleted by files_expire(), in portions of `limit`
 * rows, which returns them so that the caller removes their blobs.
 *
 * A file that an unfinished batch reads can be neither deleted nor expired (READ_BY_A_BATCH),
 * because the batch reads its lines until the end. Names of files may be private: after a
 * deletion store_scrub() overwrites the freed pages of the database.
 *
 * Lists are ordered by `row`, the order of creation; a cursor is a file's id.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/batches/batches_inside.h"

#define FILE_SQL "SELECT tenant_id, id, name, purpose, bytes, created_us, expires_us FROM files "

static const int64_t scrub_us = 5000000;

static void read_row(sql *q, file_row *f)
{
    *f = (file_row){.tenant_id = (uint64_t)sql_col_int(q, 0),
                    .bytes = sql_col_int(q, 4),
                    .created_us = sql_col_int(q, 5),
                    .expires_us = sql_col_int(q, 6)};
    sql_col_text(q, 1, f->id, sizeof(f->id));
    sql_col_text(q, 2, f->name, sizeof(f->name));
    sql_col_text(q, 3, f->purpose, sizeof(f->purpose));
}

/* ------------------------------------------------------------------------ quota -- */

typedef struct put_job {
    const file_row *f;
    const batch_quota *quota;
} put_job;

static err_code check_quota(sqlite3 *db, const put_job *p, err *e)
{
    int64_t n = 0, bytes = 0;
    sql q;
    sql_begin(&q, db, "SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE tenant_id = ?1");
    sql_int(&q, (int64_t)p->f->tenant_id);
    if (sql_row(&q)) {
        n = sql_col_int(&q, 0);
        bytes = sql_col_int(&q, 1);
    }
    err_code rc = sql_end(&q, "count the files", e);
    if (rc) return rc;
    if (p->quota->files && n >= p->quota->files)
        return err_set(e, ERR_LIMIT, "the tenant has %lld files, the limit is %lld: delete some",
                       (long long)n, (long long)p->quota->files);
    if (p->quota->bytes && bytes + p->f->bytes > p->quota->bytes)
        return err_set(e, ERR_LIMIT,
                       "the tenant's files would take %lld bytes, the limit is %lld: delete some",
                       (long long)(bytes + p->f->bytes), (long long)p->quota->bytes);
    return ERR_NONE;
}

err_code files_check(store *st, uint64_t tenant_id, int64_t bytes, const batch_quota *quota, err *e)
{
    file_row f = {.tenant_id = tenant_id, .bytes = bytes};
    const put_job p = {&f, quota};
    sqlite3 *db = store_read_begin(st);
    err_code rc = check_quota(db, &p, e);
    store_read_end(st, db);
    return rc;
}

/* ---------------------------------------------------------------------- changes -- */

err_code files_insert(sqlite3 *db, const file_row *f, err *e)
{
    sql q;
    sql_begin(&q, db,
              "INSERT INTO files(tenant_id, id, name, purpose, bytes, created_us, expires_us)"
              " VALUES(?,?,?,?,?,?,?) ON CONFLICT(id) DO NOTHING");
    sql_int(&q, (int64_t)f->tenant_id);
    sql_text(&q, f->id);
    sql_text(&q, f->name);
    sql_text(&q, f->purpose);
    sql_int(&q, f->bytes);
    sql_int(&q, f->created_us);
    sql_int(&q, f->expires_us);
    return sql_done(&q, "store the file", e);
}

static err_code put_row(sqlite3 *db, void *arg, err *e)
{
    const put_job *p = arg;
    err_code rc = check_quota(db, p, e);
    return rc ? rc : files_insert(db, p->f, e);
}

err_code files_put(store *st, const file_row *f, const batch_quota *quota, err *e)
{
    put_job p = {f, quota};
    return store_write_own(st, put_row, &p, e);
}

#define READ_BY_A_BATCH                                                        \
    " (SELECT input_file FROM batches WHERE status < 4 AND tenant_id = files." \
    "tenant_id)"

_Static_assert(BATCH_FAILED == 4, "READ_BY_A_BATCH, UNFINISHED");

typedef struct delete_job {
    uint64_t tenant_id;
    const char *id;
    int64_t n;
} delete_job;

static err_code delete_row(sqlite3 *db, void *arg, err *e)
{
    delete_job *j = arg;
    sql q;
    sql_begin(&q, db,
              "DELETE FROM files WHERE tenant_id = ?1 AND id = ?2 AND id NOT IN" READ_BY_A_BATCH);
    sql_int(&q, (int64_t)j->tenant_id);
    sql_text(&q, j->id);
    err_code rc = sql_done(&q, "delete the file", e);
    j->n = sqlite3_changes64(db);
    return rc;
}

err_code files_delete(store *st, uint64_t tenant_id, const char *id, err *e)
{
    delete_job j = {tenant_id, id, 0};
    file_row f;
    err_code rc = files_get(st, tenant_id, id, &f, e);
    if (!rc) rc = store_write_own(st, delete_row, &j, e);
    if (rc) return rc;
    if (j.n == 0)
        return err_set(e, ERR_CONFLICT, "a batch reads this file: cancel it, or wait for its end");
    (void)store_scrub(st, scrub_us); /* else soon */
    return ERR_NONE;
}

typedef struct expire_job {
    int64_t wall_us;
    size_t limit, n;
    file_row *list; /* [limit] */
} expire_job;

static err_code expire_rows(sqlite3 *db, void *arg, err *e)
{
    expire_job *j = arg;
    sql q;
    j->n = 0; /* a job may be done again */
    sql_begin(&q, db,
              "DELETE FROM files WHERE row IN (SELECT row FROM files WHERE expires_us BETWEEN 1"
              " AND ?1 AND id NOT IN" READ_BY_A_BATCH " LIMIT ?2) RETURNING"
              " tenant_id, id, name, purpose, bytes, created_us, expires_us");
    sql_int(&q, j->wall_us);
    sql_int(&q, (int64_t)j->limit);
    while (sql_row(&q)) read_row(&q, &j->list[j->n++]);
    return sql_end(&q, "delete files whose time is over", e);
}

err_code files_expire(store *st, int64_t wall_us, size_t limit, file_row **out, size_t *n, err *e)
{
    expire_job j = {.wall_us = wall_us, .limit = limit};
    *out = NULL;
    *n = 0;
    j.list = calloc(limit, sizeof(*j.list));
    if (!j.list) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = store_write_own(st, expire_rows, &j, e);
    if (rc) {
        free(j.list);
        return rc;
    }
    if (j.n) (void)store_scrub(st, scrub_us);
    *out = j.list;
    *n = j.n;
    return ERR_NONE;
}

/* ---------------------------------------------------------------------- reading -- */

err_code files_get(store *st, uint64_t tenant_id, const char *id, file_row *out, err *e)
{
    bool found = false;
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db,
              FILE_SQL "WHERE tenant_id = ?1 AND id = ?2"
                       " AND (expires_us = 0 OR expires_us > ?3)");
    sql_int(&q, (int64_t)tenant_id);
    sql_text(&q, id);
    sql_int(&q, clock_wall_us());
    if (sql_row(&q)) {
        read_row(&q, out);
        found = true;
    }
    err_code rc = sql_end(&q, "read the file", e);
    store_read_end(st, db);
    if (rc || found) return rc;
    return err_set(e, ERR_NOT_FOUND, "there is no such file");
}

static err_code list_rows(sqlite3 *db, const batch_page *p, int64_t from, file_row *list, size_t *n,
                          err *e)
{
    sql q;
    sql_begin(&q, db,
              p->oldest_first
                  ? FILE_SQL "WHERE tenant_id = ?1 AND row > ?2 AND (?3 = '' OR purpose = ?3)"
                             " AND (expires_us = 0 OR expires_us > ?4) ORDER BY row LIMIT ?5"
                  : FILE_SQL "WHERE tenant_id = ?1 AND row < ?2 AND (?3 = '' OR purpose = ?3)"
                             " AND (expires_us = 0 OR expires_us > ?4) ORDER BY row DESC LIMIT ?5");
    sql_int(&q, (int64_t)p->tenant_id);
    sql_int(&q, from);
    sql_text(&q, p->purpose ? p->purpose : "");
    sql_int(&q, clock_wall_us());
    sql_int(&q, (int64_t)p->limit + 1);
    while (sql_row(&q)) read_row(&q, &list[(*n)++]);
    return sql_end(&q, "read the files", e);
}

err_code files_list(store *st, const batch_page *p, file_row **out, size_t *n, bool *more, err *e)
{
    int64_t from;
    *n = 0;
    *out = calloc(p->limit + 1, sizeof(**out));
    if (!*out) return err_set(e, ERR_NOMEM, "out of memory");
    sqlite3 *db = store_read_begin(st);
    err_code rc =
        batch_page_start(db, "SELECT row FROM files WHERE tenant_id = ?1 AND id = ?2", p, &from, e);
    if (!rc) rc = list_rows(db, p, from, *out, n, e);
    store_read_end(st, db);
    *more = *n > p->limit;
    if (*more) *n = p->limit;
    if (!rc) return rc;
    free(*out);
    *out = NULL;
    *n = 0;
    return rc;
}
