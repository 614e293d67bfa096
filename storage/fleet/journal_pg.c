/* journal_pg.c -- the fleet's journal in PostgreSQL: four tables, and one row that serialises all
 * changes.
 *
 *   lorad_meta       one row: fleet id, schema, last_seq     locked by every change until its
 *                    commit
 *   lorad_changes    seq -> changeset (SQLite session format, changes.c)
 *   lorad_snapshots  the whole shared state at a seq, in pieces of 4 MiB
 *   lorad_nodes      node number -> instance, epoch, heartbeat, applied seq
 *
 * Because a writer holds the row of lorad_meta until it commits, numbers are assigned in commit
 * order without gaps: a reader that sees number n has seen all below it. Sequences and timestamps
 * would order starts, not commits.
 *
 * Each call has a time limit (PATIENCE_US). After a timeout the session is closed, because a late
 * answer would belong to another query. PostgreSQL ends what a stopped node left open
 * (idle_in_transaction_session_timeout), so nobody holds the row for long.
 *
 * migrations.c makes the tables beside these. Threads: one session per journal, one thread at a
 * time.
 */
#include <assert.h>
#include <endian.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "storage/fleet/journal.h"
#include "storage/fleet/libpq.h"
#include "storage/fleet/migrations.h"

enum { PATIENCE_US = 3000000, LEAST_VERSION = 130000, PIECE_BYTES = 4 << 20 };
enum { PARAMS_MAX = 8, QUERY_COLUMNS = 16 };

typedef struct pg_journal {
    journal base;
    const libpq *pq;
    char *url, *password;
    PGconn *conn; /* NULL: none */
    bool open_transaction, listening;
    bool told; /* the loss was logged */
} pg_journal;

static const char setup[] =
    "CREATE TABLE lorad_meta(one int PRIMARY KEY CHECK(one = 1), cluster bytea NOT NULL,"
    " schema int NOT NULL, last_seq bigint NOT NULL)|"
    "CREATE TABLE lorad_changes(seq bigint PRIMARY KEY, node int NOT NULL,"
    " at timestamptz NOT NULL DEFAULT now(), changeset bytea NOT NULL)|"
    "CREATE TABLE lorad_snapshots(seq bigint NOT NULL, part int NOT NULL, image bytea NOT NULL,"
    " PRIMARY KEY(seq, part))|"
    "CREATE TABLE lorad_nodes(node int PRIMARY KEY, instance bytea NOT NULL, name text NOT NULL,"
    " epoch bigint NOT NULL, heartbeat timestamptz NOT NULL, applied bigint NOT NULL)";

/* ---- one question and its answer ------------------------------------------------------ */

typedef struct params { /* int64 as text, the rest as bytes */
    const char *value[PARAMS_MAX];
    int length[PARAMS_MAX], format[PARAMS_MAX];
    char text[PARAMS_MAX][24];
    int n;
} params;

static void with_int(params *p, int64_t v)
{
    snprintf(p->text[p->n], sizeof p->text[0], "%lld", (long long)v);
    p->value[p->n] = p->text[p->n];
    p->n++;
}

static void with_bytes(params *p, const void *bytes, int n)
{
    p->value[p->n] = bytes;
    p->length[p->n] = n;
    p->format[p->n++] = 1;
}

static void disconnect(pg_journal *g)
{
    if (g->conn) g->pq->PQfinish(g->conn);
    g->conn = NULL;
    g->open_transaction = g->listening = false;
}

/* Closes a lost session. Details go to the log only, once, because they name hosts. */
static err_code lost(pg_journal *g, const char *what, err *e)
{
    const char *why = g->conn != NULL ? g->pq->PQerrorMessage(g->conn) : "";
    if (!g->told)
        log_warn("fleet", "the fleet's database: %s: %.*s", what, (int)strcspn(why, "\n"), why);
    g->told = true;
    disconnect(g);
    return err_set(e, ERR_IO, "the fleet's database does not answer: try again");
}

static bool await(int fd, short events, int64_t end_us)
{
    struct pollfd p = {.fd = fd, .events = events};
    int64_t left_us = end_us - clock_now_us();
    return left_us > 0 && poll(&p, 1, (int)(left_us / 1000) + 1) > 0;
}

static bool send_all(pg_journal *g, int64_t end_us)
{
    for (int rc; (rc = g->pq->PQflush(g->conn)) != 0;) {
        if (rc < 0 || !await(g->pq->PQsocket(g->conn), POLLIN | POLLOUT, end_us)) return false;
        if (!g->pq->PQconsumeInput(g->conn)) return false;
    }
    return true;
}

/* The last result of the running query; NULL: the session is of no use any more. */
static PGresult *receive(pg_journal *g, int64_t end_us)
{
    PGresult *last = NULL;
    for (;;) {
        while (g->pq->PQisBusy(g->conn))
            if (!await(g->pq->PQsocket(g->conn), POLLIN, end_us) ||
                !g->pq->PQconsumeInput(g->conn)) {
                if (last) g->pq->PQclear(last);
                return NULL;
            }
        PGresult *r = g->pq->PQgetResult(g->conn);
        if (!r) return last;
        if (last) g->pq->PQclear(last);
        last = r;
    }
}

static err_code refused(pg_journal *g, PGresult *r, err *e)
{
    char state[8] = "", text[160];
    const char *s = g->pq->PQresultErrorField(r, PG_SQLSTATE);
    if (s) snprintf(state, sizeof state, "%s", s);
    const char *why = g->pq->PQresultErrorMessage(r);
    snprintf(text, sizeof text, "%.*s", (int)strcspn(why, "\n"), why);
    g->pq->PQclear(r);
    if (strcmp(state, "42P01") == 0) /* undefined_table */
        return err_set(e, ERR_NOT_FOUND,
                       "the database of storage.database holds no fleet: `lorad migrate --to`");
    if (strcmp(state, "42P07") == 0) /* duplicate_table */
        return err_set(e, ERR_EXISTS, "the database holds a fleet already");
    return lost(g, text, e); /* timeouts, a server that shuts down: reconnect */
}

/* *out (may be NULL) is the caller's to clear; its columns are binary, or text. */
static err_code ask_as(pg_journal *g, const char *query, const params *p, bool binary,
                       PGresult **out, err *e)
{
    static const params none;
    if (!p) p = &none;
    if (!g->conn) return lost(g, "no session", e);
    int64_t end_us = clock_now_us() + PATIENCE_US;
    if (!g->pq->PQsendQueryParams(g->conn, query, p->n, NULL, p->value, p->length, p->format,
                                  binary) ||
        !send_all(g, end_us))
        return lost(g, "cannot send", e);
    PGresult *r = receive(g, end_us);
    if (!r) return lost(g, "no answer", e);
    int status = g->pq->PQresultStatus(r);
    if (status != PG_COMMAND_OK && status != PG_TUPLES_OK) return refused(g, r, e);
    if (out)
        *out = r;
    else
        g->pq->PQclear(r);
    return ERR_NONE;
}

static err_code ask(pg_journal *g, const char *query, const params *p, PGresult **out, err *e)
{
    return ask_as(g, query, p, true, out, e);
}

/* A bigint of the answer; 0 for NULL. */
static int64_t int_at(const pg_journal *g, const PGresult *r, int row, int column)
{
    uint64_t v;
    if (g->pq->PQgetlength(r, row, column) != (int)sizeof(v)) return 0;
    memcpy(&v, g->pq->PQgetvalue(r, row, column), sizeof(v));
    return (int64_t)be64toh(v);
}

/* ---- session --------------------------------------------------------------------------- */

static bool connect_to(pg_journal *g, int64_t end_us)
{
    const char *const key[] = {"dbname",
                               "application_name",
                               "client_encoding",
                               "keepalives_idle",
                               g->password ? "password" : NULL,
                               NULL};
    const char *const value[] = {g->url, "lorad", "UTF8", "10", g->password, NULL};
    g->conn = g->pq->PQconnectStartParams(key, value, 1);
    if (!g->conn || g->pq->PQstatus(g->conn) == 1) return false;
    for (int way = PG_POLL_WRITING; way != PG_POLL_OK;) {
        short events = way == PG_POLL_READING ? POLLIN : POLLOUT;
        if (!await(g->pq->PQsocket(g->conn), events, end_us)) return false;
        way = g->pq->PQconnectPoll(g->conn);
        if (way == PG_POLL_FAILED) return false;
    }
    return true;
}

static err_code pg_open(journal *j, err *e)
{
    pg_journal *g = (pg_journal *)j;
    if (g->conn && g->pq->PQstatus(g->conn) == PG_CONNECTION_OK) return ERR_NONE;
    disconnect(g);
    if (!connect_to(g, clock_now_us() + PATIENCE_US)) return lost(g, "cannot connect", e);
    if (g->pq->PQserverVersion(g->conn) < LEAST_VERSION) {
        disconnect(g);
        return err_set(e, ERR_UNSUPPORTED, "storage.database: PostgreSQL 13 or newer is needed");
    }
    (void)g->pq->PQsetnonblocking(g->conn, 1);
    err_code rc = ask(g,
                      "SELECT set_config('lock_timeout', '2s', false),"
                      " set_config('idle_in_transaction_session_timeout', '5s', false),"
                      " set_config('synchronous_commit', 'on', false)",
                      NULL, NULL, e);
    if (!rc && g->told) log_info("fleet", "the fleet's database answers again");
    if (!rc) g->told = false;
    return rc;
}

static void pg_undo(journal *j)
{
    pg_journal *g = (pg_journal *)j;
    if (g->open_transaction) (void)ask(g, "ROLLBACK", NULL, NULL, NULL);
    g->open_transaction = false;
}

static void pg_close(journal *j)
{
    pg_journal *g = (pg_journal *)j;
    disconnect(g);
    if (g->password) explicit_bzero(g->password, strlen(g->password));
    free(g->password);
    free(g->url);
    free(g);
}

static void pg_wait(journal *j, int wake_fd, int64_t timeout_us)
{
    pg_journal *g = (pg_journal *)j;
    if (g->conn && !g->listening)
        g->listening = ask(g, "LISTEN lorad_changes", NULL, NULL, NULL) == ERR_NONE;
    struct pollfd p[2] = {{.fd = wake_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    if (g->conn) p[1].fd = g->pq->PQsocket(g->conn);
    (void)poll(p, 2, (int)(timeout_us / 1000));
    if (!g->conn || !(p[1].revents)) return;
    if (!g->pq->PQconsumeInput(g->conn)) disconnect(g);
    for (void *n; g->conn && (n = g->pq->PQnotifies(g->conn)) != NULL;) g->pq->PQfreemem(n);
}

/* ---- the log --------------------------------------------------------------------------- */

static err_code begin(pg_journal *g, err *e)
{
    err_code rc = ask(g, "BEGIN ISOLATION LEVEL READ COMMITTED", NULL, NULL, e);
    g->open_transaction = rc == ERR_NONE;
    return rc;
}

/* Where the journal stands, in one statement, so all numbers are of one moment. With `lock` a
 * transaction stays open in which no other node can append. */
static err_code pg_look(journal *j, bool lock, journal_state *out, err *e)
{
    pg_journal *g = (pg_journal *)j;
    PGresult *r = NULL;
    err_code rc = lock ? begin(g, e) : ERR_NONE;
    /* Lock in a statement of its own: a sub-query of the same statement may see older rows. */
    if (!rc && lock) rc = ask(g, "SELECT one FROM lorad_meta FOR UPDATE", NULL, NULL, e);
    params p = {0};
    with_int(&p, j->node);
    if (!rc)
        rc = ask(g,
                 "SELECT cluster, schema::bigint, last_seq,"
                 " coalesce((SELECT min(seq) FROM lorad_changes), last_seq + 1),"
                 " coalesce((SELECT max(seq) FROM lorad_snapshots), 0),"
                 " (SELECT epoch FROM lorad_nodes WHERE node = $1::int) FROM lorad_meta",
                 &p, &r, e);
    if (!rc && (g->pq->PQntuples(r) != 1 || g->pq->PQgetlength(r, 0, 0) != CLUSTER_BYTES))
        rc = err_set(e, ERR_CORRUPT, "the fleet's database has no valid row in lorad_meta");
    if (!rc) {
        memcpy(out->cluster, g->pq->PQgetvalue(r, 0, 0), CLUSTER_BYTES);
        out->schema = (int)int_at(g, r, 0, 1);
        out->last_seq = int_at(g, r, 0, 2);
        out->first_seq = int_at(g, r, 0, 3);
        out->snapshot_seq = int_at(g, r, 0, 4);
        out->epoch = int_at(g, r, 0, 5);
    }
    if (r) g->pq->PQclear(r);
    if (rc) pg_undo(j);
    return rc;
}

static err_code pg_read(journal *j, int64_t after, int limit, journal_each each, void *self, err *e)
{
    pg_journal *g = (pg_journal *)j;
    PGresult *r = NULL;
    params p = {0};
    with_int(&p, after);
    with_int(&p, limit);
    err_code rc = ask(g,
                      "SELECT seq, changeset FROM lorad_changes WHERE seq > $1::bigint"
                      " ORDER BY seq LIMIT $2::bigint",
                      &p, &r, e);
    for (int i = 0; !rc && i < g->pq->PQntuples(r); i++)
        rc = each(self, int_at(g, r, i, 0), g->pq->PQgetvalue(r, i, 1), g->pq->PQgetlength(r, i, 1),
                  e);
    if (r) g->pq->PQclear(r);
    return rc;
}

static err_code pg_append(journal *j, int64_t seq, const void *bytes, int n, err *e)
{
    params p = {0};
    with_int(&p, seq);
    with_int(&p, j->node);
    with_bytes(&p, bytes, n);
    return ask((pg_journal *)j,
               "WITH c AS (INSERT INTO lorad_changes(seq, node, changeset)"
               " VALUES($1::bigint, $2::int, $3::bytea) RETURNING seq),"
               " m AS (UPDATE lorad_meta SET last_seq = $1::bigint)"
               " SELECT pg_notify('lorad_changes', seq::text) FROM c",
               &p, NULL, e);
}

static err_code pg_commit(journal *j, err *e)
{
    pg_journal *g = (pg_journal *)j;
    g->open_transaction = false;
    if (ask(g, "COMMIT", NULL, NULL, NULL) == ERR_NONE) return ERR_NONE;
    return err_set(e, ERR_IO,
                   "the fleet's database went away at the last step: read what is there "
                   "before you ask again");
}

/* ---- nodes ----------------------------------------------------------------------------- */

/* Under the lock of lorad_meta: the first node brings the tables up to date. */
static err_code migrate(pg_journal *g, err *e)
{
    PGresult *r = NULL;
    err_code rc = ask(g, MIGRATIONS_DONE, NULL, &r, e);
    int done = !rc && g->pq->PQntuples(r) == 1 ? (int)int_at(g, r, 0, 0) : 0;
    if (r) g->pq->PQclear(r);
    for (int i = done; !rc && i < MIGRATIONS; i++)
        for (const char *const *s = migration_steps(i); !rc && *s; s++)
            rc = ask(g, *s, NULL, NULL, e);
    params p = {0};
    with_int(&p, MIGRATIONS);
    if (!rc && done < MIGRATIONS)
        rc = ask(g, "UPDATE lorad_meta SET migration = $1::int", &p, NULL, e);
    return rc;
}

/* The node's row becomes ours if it is new, was ours, or its heartbeat is older than
 * dead_after_us; one statement, so of two servers with one number one gets it. The epoch rises,
 * which fences whoever had it. Then the tables are migrated, leases of instances that are gone are
 * deleted, and the fleet's schema rises to ours. */
static err_code pg_claim(journal *j, const journal_claim *me, int64_t *epoch, err *e)
{
    pg_journal *g = (pg_journal *)j;
    PGresult *r = NULL;
    params p = {0};
    with_int(&p, j->node);
    with_bytes(&p, me->instance, CLUSTER_BYTES);
    with_bytes(&p, me->name, (int)strlen(me->name));
    with_int(&p, me->dead_after_us);
    err_code rc =
        ask(g,
            "INSERT INTO lorad_nodes AS n(node, instance, name, epoch, heartbeat, applied)"
            " VALUES($1::int, $2::bytea,"
            " convert_from($3::bytea, 'UTF8'), 1, clock_timestamp(), 0)"
            " ON CONFLICT(node) DO UPDATE SET instance = excluded.instance,"
            " name = excluded.name, epoch = n.epoch + 1, heartbeat = clock_timestamp()"
            " WHERE n.instance = excluded.instance OR n.heartbeat < clock_timestamp() -"
            " $4::bigint * interval '1 microsecond' RETURNING epoch",
            &p, &r, e);
    if (!rc && g->pq->PQntuples(r) == 1)
        *epoch = int_at(g, r, 0, 0);
    else if (!rc)
        rc = err_set(e, ERR_EXISTS, "server.node = %d is held by another server of the fleet",
                     j->node);
    if (r) g->pq->PQclear(r);
    if (!rc) rc = migrate(g, e);
    params mine = {0}; /* this directory's meters have what it drew; the leases of an earlier
                        * owner have expired */
    with_bytes(&mine, me->instance, CLUSTER_BYTES);
    with_int(&mine, j->node);
    if (!rc)
        rc = ask(g,
                 "WITH gone AS (DELETE FROM lorad_leases WHERE instance = $1::bytea"
                 " OR instance NOT IN (SELECT instance FROM lorad_nodes))"
                 " UPDATE lorad_nodes SET lease_turn = 0, drain = false, door = NULL"
                 " WHERE node = $2::int",
                 &mine, NULL, e);
    params raise = {0};
    with_int(&raise, me->schema);
    if (!rc)
        rc = ask(g, "UPDATE lorad_meta SET schema = $1::int WHERE schema < $1::int", &raise, NULL,
                 e);
    return rc;
}

static err_code pg_beat(journal *j, int64_t epoch, int64_t applied, bool dead, bool *drain, err *e)
{
    pg_journal *g = (pg_journal *)j;
    PGresult *r = NULL;
    params p = {0};
    with_int(&p, j->node);
    with_int(&p, epoch);
    with_int(&p, applied);
    err_code rc =
        ask(g,
            dead ? "UPDATE lorad_nodes SET heartbeat = '-infinity', applied = $3::bigint"
                   " WHERE node = $1::int AND epoch = $2::bigint RETURNING 0::bigint"
                 : "UPDATE lorad_nodes SET heartbeat = clock_timestamp(), applied = $3::bigint"
                   " WHERE node = $1::int AND epoch = $2::bigint RETURNING drain::int::bigint",
            &p, &r, e);
    *drain = !rc && g->pq->PQntuples(r) == 1 && int_at(g, r, 0, 0) != 0;
    if (r) g->pq->PQclear(r);
    return rc;
}

/* ---- what stands beside the log --------------------------------------------------------- */

static err_code pg_query(journal *j, const char *text, const char *const *values, int n_values,
                         journal_row each, void *self, err *e)
{
    pg_journal *g = (pg_journal *)j;
    PGresult *r = NULL;
    const char *column[QUERY_COLUMNS];
    params p = {.n = n_values};
    assert(n_values <= PARAMS_MAX);
    for (int i = 0; i < n_values; i++) p.value[i] = values[i];
    err_code rc = ask_as(g, text, &p, false, &r, e);
    int n = !rc ? g->pq->PQnfields(r) : 0;
    assert(n <= QUERY_COLUMNS);
    for (int i = 0; !rc && each && i < g->pq->PQntuples(r); i++) {
        for (int k = 0; k < n; k++) column[k] = g->pq->PQgetvalue(r, i, k);
        rc = each(self, column, n, e);
    }
    if (r) g->pq->PQclear(r);
    return rc;
}

/* ---- a fleet's begin, snapshots --------------------------------------------------------- */

static err_code pg_create(journal *j, const uint8_t cluster[CLUSTER_BYTES], int schema, err *e)
{
    pg_journal *g = (pg_journal *)j;
    char each[512];
    err_code rc = begin(g, e);
    for (const char *s = setup; !rc && *s != 0;) {
        size_t n = strcspn(s, "|");
        snprintf(each, sizeof each, "%.*s", (int)n, s);
        rc = ask(g, each, NULL, NULL, e);
        s += n + (s[n] == '|');
    }
    params p = {0};
    with_bytes(&p, cluster, CLUSTER_BYTES);
    with_int(&p, schema);
    if (!rc) rc = ask(g, "INSERT INTO lorad_meta VALUES(1, $1::bytea, $2::int, 0)", &p, NULL, e);
    if (!rc) rc = migrate(g, e);
    if (rc) pg_undo(j);
    return rc;
}

static err_code pg_put_snapshot(journal *j, int64_t seq, const void *bytes, int n,
                                int64_t dead_after_us, err *e)
{
    pg_journal *g = (pg_journal *)j;
    err_code rc = ERR_NONE;
    for (int at = 0, part = 0; !rc && (at < n || part == 0); at += PIECE_BYTES, part++) {
        int piece = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        params p = {0};
        with_int(&p, seq);
        with_int(&p, part);
        with_bytes(&p, n > 0 ? (const char *)bytes + at : "", piece);
        rc = ask(g, "INSERT INTO lorad_snapshots VALUES($1::bigint, $2::int, $3::bytea)", &p, NULL,
                 e);
    }
    params p = {0};
    with_int(&p, seq);
    if (!rc) rc = ask(g, "DELETE FROM lorad_snapshots WHERE seq < $1::bigint", &p, NULL, e);
    with_int(&p, dead_after_us);
    if (!rc)
        rc = ask(g,
                 "DELETE FROM lorad_changes WHERE seq <= least($1::bigint, (SELECT min(applied)"
                 " FROM lorad_nodes WHERE heartbeat > clock_timestamp() -"
                 " $2::bigint * interval '1 microsecond'))",
                 &p, NULL, e);
    return rc;
}

/* The newest snapshot, put together from its parts; *bytes is malloced. */
static err_code pg_get_snapshot(journal *j, int64_t *seq, void **bytes, int *n, err *e)
{
    pg_journal *g = (pg_journal *)j;
    PGresult *r = NULL;
    *bytes = NULL;
    *n = 0;
    err_code rc = ask(g,
                      "SELECT seq, image FROM lorad_snapshots WHERE seq ="
                      " (SELECT max(seq) FROM lorad_snapshots) ORDER BY part",
                      NULL, &r, e);
    if (rc) return rc;
    int rows = g->pq->PQntuples(r);
    size_t total = 0, at = 0;
    for (int i = 0; i < rows; i++) total += (size_t)g->pq->PQgetlength(r, i, 1);
    if (rows == 0)
        rc = err_set(e, ERR_NOT_FOUND, "the fleet's database has no snapshot");
    else if (total > INT32_MAX || !(*bytes = malloc(total + 1)))
        rc = err_set(e, ERR_NOMEM, "no memory for the fleet's snapshot");
    for (int i = 0; !rc && i < rows; i++) {
        size_t len = (size_t)g->pq->PQgetlength(r, i, 1);
        memcpy((char *)*bytes + at, g->pq->PQgetvalue(r, i, 1), len);
        at += len;
    }
    if (!rc) {
        *seq = int_at(g, r, 0, 0);
        *n = (int)total;
    }
    g->pq->PQclear(r);
    return rc;
}

err_code journal_postgres(const char *url, const char *password, int node, journal **out, err *e)
{
    *out = NULL;
    const libpq *pq;
    err_code rc = libpq_load(&pq, e);
    if (rc) return rc;
    pg_journal *g = calloc(1, sizeof(*g));
    if (g) {
        g->url = strdup(url);
        g->password = password != NULL ? strdup(password) : NULL;
    }
    if (!g || !g->url || (password && !g->password)) {
        if (g) free(g->url);
        free(g);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    g->pq = pq;
    g->base = (journal){.node = node,
                        .open = pg_open,
                        .look = pg_look,
                        .read = pg_read,
                        .append = pg_append,
                        .claim = pg_claim,
                        .put_snapshot = pg_put_snapshot,
                        .commit = pg_commit,
                        .undo = pg_undo,
                        .create = pg_create,
                        .get_snapshot = pg_get_snapshot,
                        .beat = pg_beat,
                        .query = pg_query,
                        .wait = pg_wait,
                        .close = pg_close};
    *out = &g->base;
    return ERR_NONE;
}
