/* changes.c -- changesets of the tables that a fleet shares: recorded, sealed, applied (SQLite's
 * session extension).
 *
 *   record   a session on the shared tables while the writer's jobs run -> changeset
 *   seal     "LRC1", SHA-256, changeset: damage in the journal is detected before it is applied
 *   apply    sqlite3changeset_apply(); a conflict means that the mirror differs, and is an error
 *   all      a snapshot: the difference between empty tables and the database's (changes_of_all())
 *
 * Before applying, the changeset is walked once to list whose cached rows it changes
 * (touched_list): tenant, key or adapter. A change does not always contain the owner's column; then
 * a query finds it.
 *
 * The one accepted conflict is a child row that ON DELETE CASCADE removed already.
 *
 * Tables are listed parents first: created in this order, emptied in reverse. A changeset that
 * names another table is rejected. Threads: the connection's.
 */
#define SQLITE_ENABLE_SESSION
#define SQLITE_ENABLE_PREUPDATE_HOOK
#include "storage/fleet/changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/digest.h"

/* Parents before children: rows are made in this order, and removed in the reverse one. */
static const char *const shared[] = {"tenants",        "api_keys",         "key_secrets",
                                     "adapters",       "adapter_versions", "adapter_aliases",
                                     "adapter_shares", "stacks",           "source_secrets",
                                     "audit",          "high_water"};
enum { N_SHARED = sizeof(shared) / sizeof(*shared), MAGIC = 4, SEAL = MAGIC + DIGEST_BYTES };
static const char magic[] = "LRC1";

struct recording {
    sqlite3_session *session;
};

static bool is_shared(const char *table)
{
    for (int i = 0; i < N_SHARED; i++)
        if (strcmp(shared[i], table) == 0) return true;
    return false;
}

/* ---- the seal --------------------------------------------------------------------------- */

/* Frees `bytes`, which are SQLite's. */
static err_code seal(void *bytes, int n, changes *out, err *e)
{
    *out = (changes){0};
    char *p = n > 0 ? malloc((size_t)n + SEAL) : NULL;
    if (p) {
        memcpy(p, magic, MAGIC);
        digest_bytes(bytes, (size_t)n, (uint8_t *)p + MAGIC);
        memcpy(p + SEAL, bytes, (size_t)n);
        *out = (changes){p, n + SEAL};
    }
    sqlite3_free(bytes);
    return p || n == 0 ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
}

static bool sealed(const void *bytes, int n)
{
    uint8_t digest[DIGEST_BYTES];
    if (n <= SEAL || memcmp(bytes, magic, MAGIC) != 0) return false;
    digest_bytes((const char *)bytes + SEAL, (size_t)n - SEAL, digest);
    return digest_same(digest, (const uint8_t *)bytes + MAGIC, DIGEST_BYTES);
}

/* ---- rows that are touched ------------------------------------------------------------ */

void touched_clear(touched_list *t)
{
    free(t->item);
    *t = (touched_list){0};
}

static bool touched_room(touched_list *t, size_t more)
{
    if (t->n + more <= t->cap) return true;
    size_t cap = t->cap ? t->cap : 16;
    while (cap < t->n + more) cap *= 2;
    touched *item = realloc(t->item, cap * sizeof(*item));
    if (!item) return false;
    t->item = item;
    t->cap = cap;
    return true;
}

static bool touch(touched_list *t, touched_kind kind, uint64_t id)
{
    const touched *last = t->n > 0 ? &t->item[t->n - 1] : NULL;
    if (last && last->kind == kind && last->id == id) return true;
    if (!touched_room(t, 1)) return false;
    t->item[t->n++] = (touched){kind, id};
    return true;
}

err_code touched_move(touched_list *to, touched_list *from, err *e)
{
    if (from->n == 0) return ERR_NONE;
    if (!touched_room(to, from->n)) return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(to->item + to->n, from->item, from->n * sizeof(*to->item));
    to->n += from->n;
    from->n = 0;
    return ERR_NONE;
}

/* Which column of a table identifies the cached object that a row belongs to, and the query that
 * finds it when the change does not contain that column. */
static const struct {
    const char *table;
    touched_kind kind;
    int column;
    const char *query;
} owners[] = {
    {"tenants", TOUCHED_TENANT, 0, NULL},
    {"api_keys", TOUCHED_KEY, 0, NULL},
    {"key_secrets", TOUCHED_KEY, 1, "SELECT key_id FROM key_secrets WHERE id=?"},
    {"adapters", TOUCHED_ADAPTER, 0, NULL},
    {"adapter_versions", TOUCHED_ADAPTER, 1, "SELECT adapter_id FROM adapter_versions WHERE id=?"},
    {"adapter_aliases", TOUCHED_ADAPTER, 0, NULL},
    {"adapter_shares", TOUCHED_ADAPTER, 0, NULL},
};

/* The value of a column before or after the change; NULL: the change does not tell. */
static sqlite3_value *value_of(sqlite3_changeset_iter *it, int op, int column)
{
    sqlite3_value *v = NULL;
    if (op != SQLITE_INSERT) (void)sqlite3changeset_old(it, column, &v);
    if (!v) (void)sqlite3changeset_new(it, column, &v);
    return v;
}

static err_code touch_owner(sqlite3 *db, sqlite3_changeset_iter *it, touched_list *t, err *e)
{
    const char *table;
    int n_columns, op, indirect;
    sqlite3changeset_op(it, &table, &n_columns, &op, &indirect);
    if (!is_shared(table))
        return err_set(e, ERR_CONFLICT, "the fleet's journal changes a table that is not shared");
    for (size_t i = 0; i < sizeof(owners) / sizeof(*owners); i++) {
        if (strcmp(owners[i].table, table) != 0) continue;
        if (owners[i].column >= n_columns) return err_set(e, ERR_CORRUPT, "a change has no owner");
        sqlite3_value *v = value_of(it, op, owners[i].column);
        uint64_t id = v != NULL ? (uint64_t)sqlite3_value_int64(v) : 0;
        if (!v && owners[i].query && (v = value_of(it, op, 0)) != NULL) {
            sql q;
            sql_begin(&q, db, owners[i].query);
            sql_int(&q, sqlite3_value_int64(v));
            if (sql_row(&q)) id = (uint64_t)sql_col_int(&q, 0);
            err_code rc = sql_end(&q, "find whose row is changed", e);
            if (rc) return rc;
        }
        if (id != 0 && !touch(t, owners[i].kind, id)) return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ERR_NONE;
}

static err_code not_readable(err *e, int rc)
{
    if (rc == SQLITE_NOMEM) return err_set(e, ERR_NOMEM, "out of memory");
    return err_set(e, ERR_CORRUPT, "a change of the fleet's journal is damaged");
}

static err_code touch_all(sqlite3 *db, const void *bytes, int n, touched_list *t, err *e)
{
    sqlite3_changeset_iter *it = NULL;
    err_code code = ERR_NONE;
    int rc = sqlite3changeset_start(&it, n, (void *)(uintptr_t)bytes);
    if (rc != SQLITE_OK) return not_readable(e, rc);
    while (code == ERR_NONE && sqlite3changeset_next(it) == SQLITE_ROW)
        code = touch_owner(db, it, t, e);
    rc = sqlite3changeset_finalize(it);
    return code == ERR_NONE && rc != SQLITE_OK ? not_readable(e, rc) : code;
}

/* ---- apply ----------------------------------------------------------------------------- */

static int take_shared(void *ctx, const char *table)
{
    (void)ctx;
    return is_shared(table);
}

/* A child row deleted with its parent is gone already; anything else means that the mirror differs.
 */
static int refuse_conflict(void *ctx, int why, sqlite3_changeset_iter *it)
{
    const char *table = "";
    int n_columns, op = 0, indirect = 0;
    if (why == SQLITE_CHANGESET_FOREIGN_KEY) return SQLITE_CHANGESET_ABORT;
    sqlite3changeset_op(it, &table, &n_columns, &op, &indirect);
    if (why == SQLITE_CHANGESET_NOTFOUND && op == SQLITE_DELETE && indirect)
        return SQLITE_CHANGESET_OMIT;
    snprintf(ctx, 32, "%s", table);
    return SQLITE_CHANGESET_ABORT;
}

err_code changes_apply(sqlite3 *db, const void *bytes, int n, touched_list *t, err *e)
{
    char table[32] = "keys between tables";
    if (n == 0) return ERR_NONE;
    if (!sealed(bytes, n)) return not_readable(e, SQLITE_CORRUPT);
    bytes = (const char *)bytes + SEAL;
    n -= SEAL;
    err_code code = touch_all(db, bytes, n, t, e);
    if (code != ERR_NONE) return code;
    int rc = sqlite3changeset_apply(db, n, (void *)(uintptr_t)bytes, take_shared, refuse_conflict,
                                    table);
    if (rc == SQLITE_ABORT || rc == SQLITE_CONSTRAINT)
        return err_set(e, ERR_CONFLICT,
                       "this node's mirror is not what the fleet's journal changes (%s)", table);
    if (rc == SQLITE_CORRUPT || rc == SQLITE_MISUSE) return not_readable(e, rc);
    return rc == SQLITE_OK ? ERR_NONE : sql_error(db, rc, "apply the fleet's changes", e);
}

/* ---- record ---------------------------------------------------------------------------- */

void changes_clear(changes *c)
{
    free(c->bytes);
    *c = (changes){0};
}

err_code recording_start(recording **out, sqlite3 *db, err *e)
{
    recording *r = *out = calloc(1, sizeof(*r));
    if (!r) return err_set(e, ERR_NOMEM, "out of memory");
    int rc = sqlite3session_create(db, "main", &r->session);
    for (int i = 0; rc == SQLITE_OK && i < N_SHARED; i++)
        rc = sqlite3session_attach(r->session, shared[i]);
    return rc == SQLITE_OK ? ERR_NONE : sql_error(db, rc, "record the changes", e);
}

err_code recording_take(recording *r, changes *out, err *e)
{
    void *bytes = NULL;
    int n = 0, rc = sqlite3session_changeset(r->session, &n, &bytes);
    return rc == SQLITE_OK ? seal(bytes, n, out, e) : sql_error(NULL, rc, "record the changes", e);
}

void recording_end(recording *r)
{
    if (!r) return;
    if (r->session) sqlite3session_delete(r->session);
    free(r);
}

/* ---- all of it ------------------------------------------------------------------------- */

/* Creates an empty table with the definition in src. */
static err_code make_empty(sqlite3 *db, const char *table, err *e)
{
    char text[4096] = "";
    sql q;
    sql_begin(&q, db, "SELECT sql FROM src.sqlite_schema WHERE type='table' AND name=?");
    sql_text(&q, table);
    if (sql_row(&q)) sql_col_text(&q, 0, text, sizeof text);
    err_code code = sql_end(&q, "read the schema", e);
    if (code != ERR_NONE) return code;
    int rc = sqlite3_exec(db, text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? ERR_NONE : sql_error(db, rc, "make a snapshot", e);
}

static err_code diff_all(sqlite3 *db, changes *out, err *e)
{
    sqlite3_session *session = NULL;
    void *bytes = NULL;
    int n = 0;
    err_code code = ERR_NONE;
    for (int i = 0; code == ERR_NONE && i < N_SHARED; i++) code = make_empty(db, shared[i], e);
    if (code != ERR_NONE) return code;
    int rc = sqlite3session_create(db, "src", &session);
    for (int i = 0; rc == SQLITE_OK && i < N_SHARED; i++) {
        rc = sqlite3session_attach(session, shared[i]);
        if (rc == SQLITE_OK) rc = sqlite3session_diff(session, "main", shared[i], NULL);
    }
    if (rc == SQLITE_OK) rc = sqlite3session_changeset(session, &n, &bytes);
    if (session) sqlite3session_delete(session);
    return rc == SQLITE_OK ? seal(bytes, n, out, e) : sql_error(db, rc, "make a snapshot", e);
}

/* Attaches read-only, which requires a URI; its special characters are escaped. */
static err_code attach(sqlite3 *db, const char *path, err *e)
{
    char uri[3 * 4096 + 16] = "file:";
    size_t n = strlen(uri);
    for (const char *p = path; *p != 0 && n + 16 < sizeof uri; p++)
        n += (size_t)snprintf(uri + n, 4, strchr("%?#", *p) != NULL ? "%%%02x" : "%c",
                              (unsigned char)*p);
    snprintf(uri + n, sizeof uri - n, "?mode=ro");
    sql q;
    sql_begin(&q, db, "ATTACH ? AS src");
    sql_text(&q, uri);
    return sql_done(&q, "open the database", e);
}

err_code changes_of_all(const char *path, changes *out, int64_t *seq, err *e)
{
    *out = (changes){0};
    *seq = 0;
    sqlite3 *db = NULL;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX;
    int rc = sqlite3_open_v2(":memory:", &db, flags, NULL);
    err_code code = rc == SQLITE_OK ? attach(db, path, e) : sql_error(db, rc, "make a snapshot", e);
    if (code == ERR_NONE && sqlite3_exec(db, "BEGIN", NULL, NULL, NULL) != SQLITE_OK)
        code = err_set(e, ERR_IO, "cannot make a snapshot");
    if (code == ERR_NONE) {
        sql q;
        sql_begin(&q, db, "SELECT seq FROM src.fleet");
        if (sql_row(&q)) *seq = sql_col_int(&q, 0);
        code = sql_end(&q, "read the mirror's position", e);
    }
    if (code == ERR_NONE) code = diff_all(db, out, e);
    sqlite3_close(db);
    return code;
}

static err_code touch_table(sqlite3 *db, const char *query, touched_kind kind, touched_list *t,
                            err *e)
{
    bool room = true;
    sql q;
    sql_begin(&q, db, query);
    while (room && sql_row(&q)) room = touch(t, kind, (uint64_t)sql_col_int(&q, 0));
    err_code code = sql_end(&q, "read the rows", e);
    return code == ERR_NONE && !room ? err_set(e, ERR_NOMEM, "out of memory") : code;
}

err_code changes_empty(sqlite3 *db, touched_list *t, err *e)
{
    err_code code = touch_table(db, "SELECT id FROM tenants", TOUCHED_TENANT, t, e);
    if (code == ERR_NONE) code = touch_table(db, "SELECT id FROM api_keys", TOUCHED_KEY, t, e);
    if (code == ERR_NONE) code = touch_table(db, "SELECT id FROM adapters", TOUCHED_ADAPTER, t, e);
    for (int i = N_SHARED - 1; code == ERR_NONE && i >= 0; i--) {
        char text[64];
        sql q;
        snprintf(text, sizeof text, "DELETE FROM %s", shared[i]);
        sql_begin(&q, db, text);
        code = sql_done(&q, "empty the tables", e);
    }
    return code;
}

err_code changes_any(sqlite3 *db, bool *out, err *e)
{
    sql q;
    sql_begin(&q, db,
              "SELECT EXISTS(SELECT 1 FROM tenants) OR EXISTS(SELECT 1 FROM api_keys)"
              " OR EXISTS(SELECT 1 FROM adapters)");
    *out = sql_row(&q) && sql_col_int(&q, 0) != 0;
    return sql_end(&q, "look for rows", e);
}
