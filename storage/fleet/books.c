/* books.c -- copies usage rows of this node to the fleet's database, and queries the usage of all
 * nodes there.
 *
 *   usage (SQLite) --usage_unshipped names the rows--> JSON array --one statement--> lorad_usage
 *                                                                    + lorad_budgets.shipped
 *
 * SQLite renders up to 500 rows as JSON, PostgreSQL expands it (jsonb_populate_recordset), so no
 * column is listed a third time. The statement is idempotent: it adds to the budgets only rows that
 * it inserted, and replaces rows of an earlier attempt. After it, the rows are unmarked here; a
 * crash in between ships them again, without effect.
 *
 * lorad_budgets rows are locked in the same order as leases take them (storage/fleet/lease.c), so
 * the two cannot deadlock.
 *
 * A query first ships everything of this node, so an answer contains its own requests. Other nodes'
 * newest rows may be missing for LOOK_US, or for as long as they cannot reach the database.
 *
 * Threads: one thread of its own; `mu` guards `stop`.
 */
#include "storage/fleet/books.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"

enum { LOOK_US = 200000, AWAY_US = 1000000 };

struct books {
    store *st;
    fleet *f;
    pthread_t thread;
    lock mu;
    cond wake;
    bool stop;
};

#define BATCH "500"
static const char READ_BATCH[] =
    "SELECT json_group_array(json_object('request_id', request_id, 'tenant_id', tenant_id,"
    " 'key_id', key_id, 'adapter_id', adapter_id, 'model', model, 'slo_class', slo_class,"
    " 'endpoint', endpoint, 'prompt_tokens', prompt_tokens, 'cached_tokens', cached_tokens,"
    " 'output_tokens', output_tokens, 'status', status, 'finish', finish, 'ttft_ms', ttft_ms,"
    " 'duration_ms', duration_ms, 'started_us', started_us, 'ended_us', ended_us,"
    " 'recovered', recovered, 'queue_ms', queue_ms, 'adapter_digest', lower(hex(adapter_digest)),"
    " 'missed', missed, 'cost', cost)), count(*) FROM usage"
    " WHERE request_id IN (SELECT request_id FROM usage_unshipped ORDER BY 1 LIMIT " BATCH ")";
static const char READ_HOURS[] =
    "SELECT json_group_array(json_object('hour', hour, 'tenant_id', tenant_id, 'key_id', key_id,"
    " 'adapter_id', adapter_id, 'model', model, 'slo_class', slo_class, 'n_requests', n_requests,"
    " 'prompt_tokens', prompt_tokens, 'cached_tokens', cached_tokens,"
    " 'output_tokens', output_tokens, 'cost', cost)), count(*) FROM usage_hours";

/* Idempotent: sums cover only rows that this statement inserted or replaced. Rows of lorad_budgets
 * are locked in the order of leases: tokens by tenant, of each the days, then months; then the same
 * for costs, whose ids are negative. */
static const char SHIP[] =
    "WITH fresh AS (SELECT * FROM jsonb_populate_recordset(NULL::lorad_usage, $1::jsonb)"
    "  ORDER BY request_id),"
    " old AS (SELECT u.tenant_id, u.started_us, -u.prompt_tokens - u.output_tokens AS tokens,"
    "  -coalesce(u.cost, 0) AS cost"
    "  FROM lorad_usage AS u JOIN fresh USING(request_id) WHERE u.started_us < fresh.started_us),"
    " put AS (INSERT INTO lorad_usage AS u SELECT * FROM fresh ON CONFLICT(request_id) DO UPDATE"
    "  SET prompt_tokens = excluded.prompt_tokens, cached_tokens = excluded.cached_tokens,"
    "  output_tokens = excluded.output_tokens, status = excluded.status, finish = excluded.finish,"
    "  ttft_ms = excluded.ttft_ms, duration_ms = excluded.duration_ms,"
    "  started_us = excluded.started_us, ended_us = excluded.ended_us,"
    "  recovered = excluded.recovered, queue_ms = excluded.queue_ms, missed = excluded.missed,"
    "  cost = excluded.cost"
    "  WHERE u.tenant_id = excluded.tenant_id AND u.started_us < excluded.started_us"
    "  RETURNING u.tenant_id, u.started_us, u.prompt_tokens + u.output_tokens AS tokens,"
    "   coalesce(u.cost, 0) AS cost),"
    " both_ AS (SELECT * FROM put UNION ALL SELECT * FROM old),"
    " at_ AS (SELECT tenant_id, tokens, cost, started_us / 86400000000 AS day,"
    "  -(12 * (extract(year FROM at) - 1900) + extract(month FROM at) - 1)::bigint AS month FROM"
    "  (SELECT *, to_timestamp(started_us / 1000000) AT TIME ZONE 'UTC' AS at FROM both_) AS x),"
    " sums AS (SELECT tenant_id AS id, day AS period, tokens AS n FROM at_"
    "  UNION ALL SELECT tenant_id, month, tokens FROM at_"
    "  UNION ALL SELECT -tenant_id, day, cost FROM at_ WHERE cost <> 0"
    "  UNION ALL SELECT -tenant_id, month, cost FROM at_ WHERE cost <> 0)"
    " INSERT INTO lorad_budgets AS b(id, period, instance, shipped)"
    "  SELECT id, period, decode($2, 'hex'), sum(n)::bigint FROM sums GROUP BY id, period"
    "  ORDER BY id < 0, id, period DESC"
    "  ON CONFLICT(id, period, instance) DO UPDATE SET shipped = b.shipped + excluded.shipped";

/* Runs a SELECT of a JSON array and its length; *out is malloced. */
static err_code read_json(sqlite3 *db, const char *text, char **out, int64_t *n, err *e)
{
    sql q;
    *n = 0;
    *out = NULL;
    sql_begin(&q, db, text);
    if (sql_row(&q)) {
        const unsigned char *json = sqlite3_column_text(q.s, 0);
        if (json) *out = strdup((const char *)json);
        *n = sql_col_int(&q, 1);
    }
    err_code rc = sql_end(&q, "read usage to ship", e);
    return !rc && !*out ? err_set(e, ERR_NOMEM, "out of memory") : rc;
}

/* Runs on the writer's thread. A row replaced meanwhile has another start time and stays marked. */
static err_code unmark(sqlite3 *db, void *arg, err *e)
{
    sql q;
    sql_begin(&q, db,
              "DELETE FROM usage_unshipped WHERE (request_id, started_us) IN (SELECT"
              " value ->> 'request_id', value ->> 'started_us' FROM json_each(?1))");
    sql_text(&q, arg);
    return sql_done(&q, "mark usage as shipped", e);
}

/* Ships one batch; *n: its rows. */
static err_code ship(store *st, fleet *f, int64_t *n, err *e)
{
    char *json, instance[2 * CLUSTER_BYTES + 1];
    *n = 0;
    err_code rc = fleet_answers(f, e); /* before anything is read */
    if (rc) return rc;
    sqlite3 *db = store_read_begin(st);
    rc = read_json(db, READ_BATCH, &json, n, e);
    store_read_end(st, db);
    fleet_instance(f, instance);
    if (!rc && *n > 0) {
        rc = fleet_query(f, DESK_BOOKS, SHIP, (const char *const[]){json, instance}, 2, NULL, NULL,
                         e);
        if (!rc) rc = store_write_own(st, unmark, json, e);
    }
    free(json);
    return rc;
}

err_code books_query(store *st, const char *text, const char *const *values, int n_values,
                     journal_row each, void *self, err *e)
{
    fleet *f = store_fleet(st);
    err_code rc;
    int64_t n;
    do rc = ship(st, f, &n, e);
    while (!rc && n > 0);
    return rc ? rc : fleet_query(f, DESK_BOOKS, text, values, n_values, each, self, e);
}

void books_prune(store *st, int64_t before_wall_us, int64_t max)
{
    char before[24], most[24];
    snprintf(before, sizeof before, "%lld", (long long)before_wall_us);
    snprintf(most, sizeof most, "%lld", (long long)max);
    (void)fleet_query(
        store_fleet(st), DESK_BOOKS,
        "WITH old AS (DELETE FROM lorad_usage WHERE request_id IN (SELECT request_id"
        "  FROM lorad_usage WHERE started_us < $1::bigint ORDER BY started_us, request_id"
        "  LIMIT $2::bigint FOR UPDATE SKIP LOCKED) RETURNING *)"
        " INSERT INTO lorad_usage_hours AS h SELECT started_us / 3600000000, tenant_id, key_id,"
        "  adapter_id, model, slo_class, count(*), sum(prompt_tokens), sum(cached_tokens),"
        "  sum(output_tokens), coalesce(sum(cost), 0) FROM old GROUP BY 1, 2, 3, 4, 5, 6"
        "  ON CONFLICT(hour, tenant_id, key_id, adapter_id, model, slo_class) DO UPDATE"
        "  SET n_requests = h.n_requests + excluded.n_requests,"
        "  prompt_tokens = h.prompt_tokens + excluded.prompt_tokens,"
        "  cached_tokens = h.cached_tokens + excluded.cached_tokens,"
        "  output_tokens = h.output_tokens + excluded.output_tokens,"
        "  cost = coalesce(h.cost, 0) + excluded.cost",
        (const char *const[]){before, most}, 2, NULL, NULL, NULL);
}

err_code books_mark_all(sqlite3 *db, bool marked, err *e)
{
    int rc = sqlite3_exec(db,
                          marked ? "INSERT OR REPLACE INTO usage_unshipped"
                                   " SELECT request_id, started_us FROM usage"
                                 : "DELETE FROM usage_unshipped",
                          NULL, NULL, NULL);
    return rc == SQLITE_OK ? ERR_NONE : sql_error(db, rc, "mark usage", e);
}

err_code books_found(sqlite3 *db, journal *j, err *e)
{
    char *json;
    int64_t n;
    err_code rc = read_json(db, READ_HOURS, &json, &n, e);
    if (!rc && n > 0)
        rc = j->query(j,
                      "INSERT INTO lorad_usage_hours SELECT * FROM"
                      " jsonb_populate_recordset(NULL::lorad_usage_hours, $1::jsonb)",
                      (const char *const[]){json}, 1, NULL, NULL, e);
    free(json);
    return rc ? rc : books_mark_all(db, true, e);
}

/* ---- the thread -------------------------------------------------------------------------- */

static void *books_main(void *arg)
{
    books *b = arg;
    char told[sizeof(((err *)0)->msg)] = "";
    lock_take(&b->mu);
    for (bool last = false; !last;) {
        err why;
        int64_t n = 0;
        last = b->stop;
        lock_release(&b->mu);
        err_code rc = ship(b->st, b->f, &n, &why);
        if (rc && rc != ERR_IO && strcmp(told, why.msg) != 0) log_error("fleet", "%s", why.msg);
        snprintf(told, sizeof told, "%s", rc ? why.msg : "");
        lock_take(&b->mu);
        last = last && (rc || n == 0);
        int64_t end_us = clock_now_us() + (rc ? AWAY_US : LOOK_US);
        while (!b->stop && (rc || n == 0) && cond_wait_until(&b->wake, &b->mu, end_us)) {
        }
    }
    lock_release(&b->mu);
    return NULL;
}

static void books_free(books *b)
{
    cond_free(&b->wake);
    lock_free(&b->mu);
    free(b);
}

err_code books_start(books **out, store *st, fleet *f, err *e)
{
    books *b = *out = calloc(1, sizeof(*b));
    if (!b) return err_set(e, ERR_NOMEM, "out of memory");
    b->st = st;
    b->f = f;
    lock_init(&b->mu, LOCK_FLEET_BOOKS);
    cond_init(&b->wake);
    if (pthread_create(&b->thread, NULL, books_main, b) == 0) return ERR_NONE;
    books_free(b);
    *out = NULL;
    return err_set(e, ERR_NOMEM, "cannot start the thread that ships usage");
}

void books_stop(books *b)
{
    if (!b) return;
    lock_take(&b->mu);
    b->stop = true;
    cond_signal(&b->wake);
    lock_release(&b->mu);
    pthread_join(b->thread, NULL);
    books_free(b);
}
