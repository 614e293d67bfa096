/* source_secrets.c -- a tenant's credentials for hosts of sources, sealed in the database.
 *
 * The label of a blob has its tenant and host: one that is copied into another row does not
 * open. A blob that this server's key does not open (a restored database, another key) is
 * ERR_CONFLICT, for the tenant to give the credentials again. The list shows hosts and kinds
 * only. The count of a tenant's rows is checked in the transaction that writes, so two writers
 * cannot pass the limit together.
 */
#include "storage/seal/source_secrets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "storage/store_sql.h"

typedef struct {
    source_secret_row *row;
    uint8_t sealed[SOURCE_SECRET_TEXT_MAX + SEAL_BYTES];
    size_t n;
} written;

static void label_of(uint64_t tenant_id, const char *host, char out[SOURCE_SECRET_HOST_MAX + 64])
{
    snprintf(out, SOURCE_SECRET_HOST_MAX + 64, "source_secret/%llu/%s",
             (unsigned long long)tenant_id, host);
}

static err_code put_row(sqlite3 *db, void *arg, err *e)
{
    const written *w = arg;
    int64_t others = 0;
    sql q;
    sql_begin(&q, db, "SELECT count(*) FROM source_secrets WHERE tenant_id=? AND host<>?");
    sql_int(&q, (int64_t)w->row->tenant_id);
    sql_text(&q, w->row->host);
    if (sql_row(&q)) others = sql_col_int(&q, 0);
    err_code rc = sql_end(&q, "count the credentials", e);
    if (rc) return rc;
    if (others >= SOURCE_SECRETS_MAX)
        return err_set(e, ERR_LIMIT, "the tenant keeps credentials for %d hosts: delete some",
                       SOURCE_SECRETS_MAX);
    sql_begin(&q, db, "INSERT OR REPLACE INTO source_secrets VALUES(?,?,?,?,?)");
    sql_int(&q, (int64_t)w->row->tenant_id);
    sql_text(&q, w->row->host);
    sql_text(&q, w->row->kind);
    sql_blob(&q, w->sealed, w->n);
    sql_int(&q, w->row->created_wall_us);
    return sql_done(&q, "write the credentials", e);
}

err_code source_secrets_put(store *st, seal_key key, source_secret_row *row, const char *text,
                            err *e)
{
    written w = {.row = row, .n = strlen(text) + SEAL_BYTES};
    char label[SOURCE_SECRET_HOST_MAX + 64];
    if (strlen(text) >= SOURCE_SECRET_TEXT_MAX)
        return err_set(e, ERR_INPUT, "the credentials are longer than %d bytes",
                       SOURCE_SECRET_TEXT_MAX - 1);
    row->created_wall_us = clock_wall_us();
    label_of(row->tenant_id, row->host, label);
    if (!seal_close(key, label, text, strlen(text), w.sealed))
        return err_set(e, ERR_NOMEM, "the credentials cannot be encrypted now");
    return store_write(st, put_row, &w, e);
}

static err_code none_such(const char *host, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "no credentials are kept for '%.100s'", host);
}

/* The blob of the row that the statement is at. */
static err_code open_row(const sql *q, seal_key key, uint64_t tenant_id, const char *host,
                         char text[SOURCE_SECRET_TEXT_MAX], err *e)
{
    char label[SOURCE_SECRET_HOST_MAX + 64];
    const uint8_t *sealed = sqlite3_column_blob(q->s, 0);
    int n = sqlite3_column_bytes(q->s, 0) - SEAL_BYTES;
    label_of(tenant_id, host, label);
    if (!key || !sealed || n < 0 || n >= SOURCE_SECRET_TEXT_MAX ||
        !seal_open(key, label, sealed, (size_t)n, text))
        return err_set(e, ERR_CONFLICT,
                       "the credentials kept for '%.100s' do not open with this server's key: give "
                       "them again",
                       host);
    text[n] = 0;
    return ERR_NONE;
}

err_code source_secrets_get(store *st, seal_key key, uint64_t tenant_id, const char *host,
                            char text[SOURCE_SECRET_TEXT_MAX], err *e)
{
    err_code rc = none_such(host, e);
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db, "SELECT sealed FROM source_secrets WHERE tenant_id=? AND host=?");
    sql_int(&q, (int64_t)tenant_id);
    sql_text(&q, host);
    if (sql_row(&q)) rc = open_row(&q, key, tenant_id, host, text, e);
    err why;
    err_code end = sql_end(&q, "read the credentials", &why);
    store_read_end(st, db);
    if (end) *e = why;
    return end ? end : rc;
}

err_code source_secrets_list(store *st, uint64_t tenant_id, source_secret_row **out, size_t *n,
                             err *e)
{
    sql q;
    *n = 0;
    *out = calloc(SOURCE_SECRETS_MAX, sizeof(**out));
    if (!*out) return err_set(e, ERR_NOMEM, "out of memory");
    sqlite3 *db = store_read_begin(st);
    sql_begin(&q, db,
              "SELECT host, kind, created_us FROM source_secrets WHERE tenant_id=? ORDER BY host");
    sql_int(&q, (int64_t)tenant_id);
    while (*n < SOURCE_SECRETS_MAX && sql_row(&q)) {
        source_secret_row *row = &(*out)[(*n)++];
        row->tenant_id = tenant_id;
        sql_col_text(&q, 0, row->host, sizeof(row->host));
        sql_col_text(&q, 1, row->kind, sizeof(row->kind));
        row->created_wall_us = sql_col_int(&q, 2);
    }
    err_code rc = sql_end(&q, "list the credentials", e);
    store_read_end(st, db);
    if (!rc) return rc;
    free(*out);
    *out = NULL;
    return rc;
}

typedef struct {
    uint64_t tenant_id;
    const char *host;
} dropped;

static err_code drop_rows(sqlite3 *db, void *arg, err *e)
{
    const dropped *d = arg;
    sql q;
    sql_begin(&q, db, "DELETE FROM source_secrets WHERE tenant_id=?1 AND (?2 IS NULL OR host=?2)");
    sql_int(&q, (int64_t)d->tenant_id);
    if (d->host)
        sql_text(&q, d->host);
    else
        sql_null(&q);
    err_code rc = sql_done(&q, "delete the credentials", e);
    return rc || !d->host || sqlite3_changes(db) > 0 ? rc : none_such(d->host, e);
}

err_code source_secrets_drop(store *st, uint64_t tenant_id, const char *host, err *e)
{
    dropped d = {tenant_id, host};
    return store_write(st, drop_rows, &d, e);
}
