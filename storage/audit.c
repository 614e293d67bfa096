/* audit.c -- writes and lists the rows of the audit table.
 *
 * audit_append() waits until its row is durable, for changes that must not happen unrecorded;
 * audit_post() leaves the row to the writer. Rows are listed newest first, by ids, which are
 * times: `before_id` is the last one of the page before.
 *
 * audit_prune() keeps the newest `most` rows of each tenant that its own keys have made. Rows of
 * operators stay: a tenant must not be able to push out what was done to it.
 *
 * Threads: any.
 */
#include "storage/audit.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "storage/store_sql.h"

static err_code insert_row(sqlite3 *db, void *arg, err *e)
{
    const audit_row *r = arg;
    sql q;
    sql_begin(&q, db, "INSERT INTO audit VALUES(?,?,?,?,?,?,?)");
    sql_int(&q, (int64_t)r->id);
    sql_int(&q, r->wall_us);
    sql_int(&q, (int64_t)r->actor_key_id);
    sql_int(&q, (int64_t)r->tenant_id);
    sql_text(&q, r->action);
    sql_text(&q, r->object);
    sql_text(&q, r->detail);
    return sql_done(&q, "write the audit row", e);
}

static audit_row make_row(store *st, uint64_t actor_key_id, uint64_t tenant_id, const char *action,
                          const char *object, const char *detail)
{
    audit_row r = {.id = store_next_id(st),
                   .wall_us = clock_wall_us(),
                   .actor_key_id = actor_key_id,
                   .tenant_id = tenant_id};
    snprintf(r.action, sizeof r.action, "%s", action);
    snprintf(r.object, sizeof r.object, "%s", object != NULL ? object : "");
    snprintf(r.detail, sizeof r.detail, "%s", detail != NULL ? detail : "");
    return r;
}

err_code audit_append(store *st, uint64_t actor_key_id, uint64_t tenant_id, const char *action,
                      const char *object, const char *detail, err *e)
{
    audit_row r = make_row(st, actor_key_id, tenant_id, action, object, detail);
    return store_write(st, insert_row, &r, e);
}

void audit_post(store *st, uint64_t actor_key_id, uint64_t tenant_id, const char *action,
                const char *object, const char *detail)
{
    audit_row r = make_row(st, actor_key_id, tenant_id, action, object, detail);
    store_post(st, insert_row, &r, sizeof r);
}

static err_code list_rows(store *st, uint64_t tenant_id, const char *prefix, const char *object,
                          uint64_t before_id, size_t limit, audit_row **out, size_t *n, err *e)
{
    assert(!object == !prefix);
    enum { LIMIT_MAX = 10000 };
    *out = NULL;
    *n = 0;
    if (limit == 0 || limit > LIMIT_MAX) limit = LIMIT_MAX;
    size_t cap = 0;
    audit_row *list = NULL;
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db,
              object != NULL
                  ? "SELECT id, wall_us, actor_key_id, tenant_id, action, object, detail FROM audit"
                    " WHERE tenant_id = ?1 AND object = ?4 AND substr(action, 1, length(?5)) = ?5"
                    " AND (?2 = 0 OR id < ?2) ORDER BY id DESC LIMIT ?3"
                  : "SELECT id, wall_us, actor_key_id, tenant_id, action, object, detail FROM audit"
                    " WHERE (?1 = 0 OR tenant_id = ?1) AND (?2 = 0 OR id < ?2)"
                    " ORDER BY id DESC LIMIT ?3");
    sql_int(&q, (int64_t)tenant_id);
    sql_int(&q, (int64_t)before_id);
    sql_int(&q, (int64_t)limit);
    if (object) {
        sql_text(&q, object);
        sql_text(&q, prefix);
    }
    bool short_of_memory = false;
    while (sql_row(&q)) {
        if (*n == cap) {
            cap = cap ? cap * 2 : 32;
            audit_row *more = realloc(list, cap * sizeof(*list));
            if (!more) {
                short_of_memory = true;
                break;
            }
            list = more;
        }
        audit_row *r = &list[(*n)++];
        r->id = (uint64_t)sql_col_int(&q, 0);
        r->wall_us = sql_col_int(&q, 1);
        r->actor_key_id = (uint64_t)sql_col_int(&q, 2);
        r->tenant_id = (uint64_t)sql_col_int(&q, 3);
        sql_col_text(&q, 4, r->action, sizeof r->action);
        sql_col_text(&q, 5, r->object, sizeof r->object);
        sql_col_text(&q, 6, r->detail, sizeof r->detail);
    }
    err_code rc = sql_end(&q, "read the audit rows", e);
    store_read_end(st, db);
    if (short_of_memory) rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc) {
        free(list);
        *n = 0;
        return rc;
    }
    *out = list;
    return ERR_NONE;
}

err_code audit_list(store *st, uint64_t tenant_id, uint64_t before_id, size_t limit,
                    audit_row **out, size_t *n, err *e)
{
    return list_rows(st, tenant_id, NULL, NULL, before_id, limit, out, n, e);
}

err_code audit_list_object(store *st, uint64_t tenant_id, const char *prefix, const char *object,
                           uint64_t before_id, size_t limit, audit_row **out, size_t *n, err *e)
{
    return list_rows(st, tenant_id, prefix, object, before_id, limit, out, n, e);
}

/* ---- retention ------------------------------------------------------------------------------ */

typedef struct prune_job {
    uint64_t tenant_id;
    int64_t most, limit, n;
} prune_job;

static err_code prune_tenant(sqlite3 *db, void *arg, err *e)
{
    prune_job *j = arg;
    sql q;
    sql_begin(&q, db,
              "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE tenant_id = ?1"
              " AND actor_key_id IN (SELECT id FROM api_keys WHERE tenant_id = ?1)"
              " ORDER BY id DESC LIMIT ?3 OFFSET ?2)");
    sql_int(&q, (int64_t)j->tenant_id);
    sql_int(&q, j->most);
    sql_int(&q, j->limit);
    err_code rc = sql_done(&q, "delete old audit rows", e);
    j->n = sqlite3_changes64(db);
    return rc;
}

/* The first tenant above `after` that has more rows than `most`, whoever wrote them; 0: none. */
static err_code next_full(store *st, int64_t most, uint64_t after, uint64_t *out, err *e)
{
    sql q;
    sqlite3 *db = store_read_begin(st);
    *out = 0;
    sql_begin(&q, db,
              "SELECT tenant_id FROM audit WHERE tenant_id > ?1 GROUP BY tenant_id"
              " HAVING count(*) > ?2 ORDER BY tenant_id LIMIT 1");
    sql_int(&q, (int64_t)after);
    sql_int(&q, most);
    if (sql_row(&q)) *out = (uint64_t)sql_col_int(&q, 0);
    err_code rc = sql_end(&q, "count the audit rows", e);
    store_read_end(st, db);
    return rc;
}

err_code audit_prune(store *st, int64_t most, int64_t limit, int64_t *n, err *e)
{
    prune_job j = {.most = most};
    *n = 0;
    for (;;) {
        err_code rc = next_full(st, most, j.tenant_id, &j.tenant_id, e);
        if (rc || j.tenant_id == 0 || *n >= limit) return rc;
        j.limit = limit - *n;
        rc = store_write(st, prune_tenant, &j, e);
        if (rc) return rc;
        *n += j.n;
    }
}
