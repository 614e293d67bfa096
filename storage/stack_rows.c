/* stack_rows.c -- versions of named stacks: numbered, counted and written in one transaction.
 *
 * A new version has the highest number of its name plus one; the count of all the tenant's
 * versions is read by the same statement, so two writers can neither make one number twice nor
 * pass the limit together. Deleting removes a name with all its versions: a later stack of that
 * name begins with 1 again.
 */
#include "storage/stack_rows.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "storage/store_sql.h"

#define ROW_SQL "SELECT name, version, parts, created_us FROM stacks WHERE tenant_id=?1 "

static void read_row(sql *q, uint64_t tenant_id, stack_row *out)
{
    *out = (stack_row){.tenant_id = tenant_id,
                       .version = (int)sql_col_int(q, 1),
                       .created_wall_us = sql_col_int(q, 3)};
    sql_col_text(q, 0, out->name, sizeof(out->name));
    sql_col_text(q, 2, out->parts, sizeof(out->parts));
}

static err_code add_row(sqlite3 *db, void *arg, err *e)
{
    stack_row *row = arg;
    int64_t n = 0;
    sql q;
    sql_begin(&q, db,
              "SELECT count(*), coalesce(max(version) FILTER (WHERE name=?2), 0) FROM stacks"
              " WHERE tenant_id=?1");
    sql_int(&q, (int64_t)row->tenant_id);
    sql_text(&q, row->name);
    if (sql_row(&q)) {
        n = sql_col_int(&q, 0);
        row->version = (int)sql_col_int(&q, 1) + 1;
    }
    err_code rc = sql_end(&q, "count the stacks", e);
    if (rc) return rc;
    if (n >= STACK_ROWS_MAX)
        return err_set(e, ERR_LIMIT, "the tenant has %d versions of stacks: delete some",
                       STACK_ROWS_MAX);
    sql_begin(&q, db, "INSERT INTO stacks VALUES(?,?,?,?,?)");
    sql_int(&q, (int64_t)row->tenant_id);
    sql_text(&q, row->name);
    sql_int(&q, row->version);
    sql_text(&q, row->parts);
    sql_int(&q, row->created_wall_us);
    return sql_done(&q, "write the stack", e);
}

err_code stack_rows_add(store *st, stack_row *row, err *e)
{
    row->created_wall_us = clock_wall_us();
    return store_write(st, add_row, row, e);
}

static err_code none_such(const char *name, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "there is no stack named '%.64s'", name);
}

err_code stack_rows_get(store *st, uint64_t tenant_id, const char *name, int version,
                        stack_row *out, err *e)
{
    sql q;
    sqlite3 *db = store_read_begin(st);
    sql_begin(&q, db, ROW_SQL "AND name=?2 AND ?3 IN (0, version) ORDER BY version DESC LIMIT 1");
    sql_int(&q, (int64_t)tenant_id);
    sql_text(&q, name);
    sql_int(&q, version);
    bool found = sql_row(&q);
    if (found) read_row(&q, tenant_id, out);
    err_code rc = sql_end(&q, "read the stack", e);
    store_read_end(st, db);
    return rc || found ? rc : none_such(name, e);
}

err_code stack_rows_list(store *st, uint64_t tenant_id, const char *name, stack_row **out,
                         size_t *n, err *e)
{
    sql q;
    *n = 0;
    *out = calloc(STACK_ROWS_MAX, sizeof(**out));
    if (!*out) return err_set(e, ERR_NOMEM, "out of memory");
    sqlite3 *db = store_read_begin(st);
    sql_begin(&q, db,
              name ? ROW_SQL "AND name=?2 ORDER BY version DESC"
                   : ROW_SQL "AND version=(SELECT max(version) FROM stacks AS s WHERE"
                             " s.tenant_id=?1 AND s.name=stacks.name) ORDER BY name");
    sql_int(&q, (int64_t)tenant_id);
    if (name) sql_text(&q, name);
    while (*n < STACK_ROWS_MAX && sql_row(&q)) read_row(&q, tenant_id, &(*out)[(*n)++]);
    err_code rc = sql_end(&q, "list the stacks", e);
    store_read_end(st, db);
    if (!rc && name && *n == 0) rc = none_such(name, e);
    if (!rc) return rc;
    free(*out);
    *out = NULL;
    return rc;
}

static err_code drop_rows(sqlite3 *db, void *arg, err *e)
{
    const stack_row *row = arg;
    sql q;
    sql_begin(&q, db, "DELETE FROM stacks WHERE tenant_id=? AND name=?");
    sql_int(&q, (int64_t)row->tenant_id);
    sql_text(&q, row->name);
    err_code rc = sql_done(&q, "delete the stack", e);
    return rc || sqlite3_changes(db) > 0 ? rc : none_such(row->name, e);
}

err_code stack_rows_drop(store *st, uint64_t tenant_id, const char *name, err *e)
{
    stack_row row = {.tenant_id = tenant_id};
    if (strlen(name) > TENANT_NAME_MAX) return none_such(name, e);
    memcpy(row.name, name, strlen(name) + 1);
    return store_write(st, drop_rows, &row, e);
}
