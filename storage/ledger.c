/* ledger.c -- usage rows in SQLite: insertion, sums per day for budgets, hourly sums of old rows,
 * queries.
 *
 *   usage        one row per request, unique by request_id
 *   usage_days   (tenant, UTC day): tokens and cost, updated in the same transaction; budgets read
 *                it
 *   usage_hours  old rows, summed by hour, key, adapter, model and class (ledger_prune())
 *
 * Settling is idempotent: an existing row is left alone, and its day sums are not added again. A
 * later attempt at the same request (a batch line that was run again) has a later start time; it
 * replaces the row and its share of the day (take_back()).
 *
 * A query is one statement over the rows and the hourly sums. In a fleet the same text runs in
 * PostgreSQL: query_fleet() rewrites SQLite's parameters ?n to $n with a type.
 *
 * In a fleet each row is also noted in usage_unshipped, until fleet/books.c has copied it. Threads:
 * writes run on the store's writer thread; queries on the caller's, with a read connection.
 */
#include "storage/ledger.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/fleet/books.h"
#include "storage/store_sql.h"

static const int64_t DAY_US = 86400LL * 1000000;
enum { ROWS_DEFAULT = 100000, SETTLE_PATIENCE_US = 100000 };

/* Floored, also before 1970. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* ---- settle ----------------------------------------------------------------------- */

struct settle_job {
    const usage_row *rows;
    size_t n;
    bool shipped; /* a fleet's books need a copy */
};

static const char INSERT_ROW[] = "INSERT INTO usage VALUES(?,?,?,?4,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
                                 " (SELECT digest FROM adapter_versions WHERE id=?4), ?, ?)"
                                 " ON CONFLICT(request_id) DO NOTHING";
static const char ADD_TO_DAY[] =
    "INSERT INTO usage_days VALUES(?,?,1,?,?,?,?) ON CONFLICT(tenant_id, day) DO UPDATE SET"
    " n_requests=n_requests+1, prompt_tokens=prompt_tokens+excluded.prompt_tokens,"
    " cached_tokens=cached_tokens+excluded.cached_tokens,"
    " output_tokens=output_tokens+excluded.output_tokens, cost=cost+excluded.cost";

static err_code insert_row(sql *q, const usage_row *r, bool *fresh, err *e)
{
    sql_int(q, (int64_t)r->request_id);
    sql_int(q, (int64_t)r->tenant_id);
    sql_int(q, (int64_t)r->key_id);
    sql_int(q, (int64_t)r->adapter_id);
    sql_text(q, r->model);
    sql_text(q, r->slo_class);
    sql_text(q, r->endpoint);
    sql_int(q, r->prompt_tokens);
    sql_int(q, r->cached_tokens);
    sql_int(q, r->output_tokens);
    sql_int(q, r->status);
    sql_text(q, r->finish);
    sql_int(q, r->ttft_ms);
    sql_int(q, r->duration_ms);
    sql_int(q, r->started_wall_us);
    sql_int(q, r->ended_wall_us);
    sql_int(q, r->recovered);
    sql_int(q, r->queue_ms);
    sql_text(q, miss_cause_name(r->missed));
    sql_int(q, r->cost);
    err_code rc = sql_repeat(q, "write the usage", e);
    *fresh = rc == ERR_NONE && sqlite3_changes(q->db) == 1;
    return rc;
}

static err_code add_to_day(sql *q, const usage_row *r, err *e)
{
    sql_int(q, (int64_t)r->tenant_id);
    sql_int(q, floor_div(r->started_wall_us, DAY_US));
    sql_int(q, r->prompt_tokens);
    sql_int(q, r->cached_tokens);
    sql_int(q, r->output_tokens);
    sql_int(q, r->cost);
    return sql_repeat(q, "add to the day's usage", e);
}

/* Removes an earlier attempt at the same request from the rows and sums; *was: there was one. The
 * same row once more is no new attempt: its start time is equal. */
static err_code take_back(sqlite3 *db, const usage_row *r, bool *was, err *e)
{
    usage_row old = {.tenant_id = r->tenant_id};
    sql q;
    *was = false;
    sql_begin(&q, db,
              "DELETE FROM usage WHERE request_id = ?1 AND tenant_id = ?2 AND started_us < ?3"
              " RETURNING prompt_tokens, cached_tokens, output_tokens, started_us, cost");
    sql_int(&q, (int64_t)r->request_id);
    sql_int(&q, (int64_t)r->tenant_id);
    sql_int(&q, r->started_wall_us);
    while (sql_row(&q)) {
        *was = true;
        old.prompt_tokens = (uint32_t)sql_col_int(&q, 0);
        old.cached_tokens = (uint32_t)sql_col_int(&q, 1);
        old.output_tokens = (uint32_t)sql_col_int(&q, 2);
        old.started_wall_us = sql_col_int(&q, 3);
        old.cost = sql_col_int(&q, 4);
    }
    err_code rc = sql_end(&q, "replace the usage", e);
    if (rc || !*was) return rc;
    sql_begin(&q, db,
              "UPDATE usage_days SET n_requests=n_requests-1, prompt_tokens=prompt_tokens-?3,"
              " cached_tokens=cached_tokens-?4, output_tokens=output_tokens-?5, cost=cost-?6"
              " WHERE tenant_id = ?1 AND day = ?2");
    rc = add_to_day(&q, &old, e);
    (void)sql_end(&q, "replace the usage", NULL);
    return rc;
}

/* For the fleet (fleet/books.h). */
static err_code mark_row(sqlite3 *db, const usage_row *r, err *e)
{
    sql q;
    sql_begin(&q, db, "INSERT OR REPLACE INTO usage_unshipped VALUES(?, ?)");
    sql_int(&q, (int64_t)r->request_id);
    sql_int(&q, r->started_wall_us);
    return sql_done(&q, "mark the usage", e);
}

static err_code settle_row(sqlite3 *db, sql *insert, sql *day, const usage_row *r, bool shipped,
                           err *e)
{
    bool fresh = false, again = false;
    err_code rc = insert_row(insert, r, &fresh, e);
    if (!rc && !fresh) rc = take_back(db, r, &again, e);
    if (!rc && again) rc = insert_row(insert, r, &fresh, e);
    if (!rc && fresh && shipped) rc = mark_row(db, r, e);
    return !rc && fresh ? add_to_day(day, r, e) : rc;
}

static err_code settle_rows(sqlite3 *db, void *arg, err *e)
{
    const struct settle_job *s = arg;
    sql insert, day;
    sql_begin(&insert, db, INSERT_ROW);
    sql_begin(&day, db, ADD_TO_DAY);
    err_code rc = ERR_NONE;
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = settle_row(db, &insert, &day, &s->rows[i], s->shipped, e);
    (void)sql_end(&insert, "write the usage", NULL);
    (void)sql_end(&day, "write the usage", NULL);
    return rc;
}

err_code ledger_settle(store *st, const usage_row *rows, size_t n, err *e)
{
    struct settle_job s = {rows, n, store_is_node(st)};
    return n == 0 ? ERR_NONE : store_write_within(st, settle_rows, &s, SETTLE_PATIENCE_US, e);
}

/* ---- rows that have grown old ------------------------------------------------------ */

struct prune_job {
    int64_t before_us, max, *n;
};

static err_code prune_rows(sqlite3 *db, void *arg, err *e)
{
    static const char *const text[] = {
        "INSERT INTO usage_hours SELECT started_us / 3600000000, tenant_id, key_id, adapter_id,"
        " model, slo_class, count(*), sum(prompt_tokens), sum(cached_tokens), sum(output_tokens),"
        " sum(cost) FROM (SELECT * FROM usage WHERE started_us < ?1 AND request_id NOT IN"
        " (SELECT request_id FROM usage_unshipped) ORDER BY started_us, request_id LIMIT ?2)"
        " WHERE true GROUP BY 1, 2, 3, 4, 5, 6"
        " ON CONFLICT DO UPDATE SET n_requests=n_requests+excluded.n_requests,"
        " prompt_tokens=prompt_tokens+excluded.prompt_tokens,"
        " cached_tokens=cached_tokens+excluded.cached_tokens,"
        " output_tokens=output_tokens+excluded.output_tokens, cost=cost+excluded.cost",
        "DELETE FROM usage WHERE request_id IN (SELECT request_id FROM usage"
        " WHERE started_us < ?1 AND request_id NOT IN (SELECT request_id FROM usage_unshipped)"
        " ORDER BY started_us, request_id LIMIT ?2)"};
    const struct prune_job *p = arg;
    for (int i = 0; i < 2; i++) {
        sql q;
        sql_begin(&q, db, text[i]);
        sql_int(&q, p->before_us);
        sql_int(&q, p->max);
        err_code rc = sql_done(&q, "sum up old usage", e);
        if (rc) return rc;
    }
    *p->n = sqlite3_changes(db);
    return ERR_NONE;
}

err_code ledger_prune(store *st, int64_t before_wall_us, int64_t max, int64_t *n, err *e)
{
    struct prune_job p = {before_wall_us, max, n};
    *n = 0;
    if (store_in_fleet(st)) books_prune(st, before_wall_us, max);
    return store_write_own(st, prune_rows, &p, e);
}

/* ---- queries ------------------------------------------------------------------------ */

/* `tables`: what the names of tables begin with. */
static void build_query(const usage_query *q, const char *tables, char *text, size_t cap)
{
    const struct {
        unsigned bit;
        const char *column;
    } group[] = {{USAGE_BY_TENANT, "tenant_id"},
                 {USAGE_BY_KEY, "key_id"},
                 {USAGE_BY_ADAPTER, "adapter_id"},
                 {USAGE_BY_MODEL, "model"},
                 {USAGE_BY_CLASS, "slo_class"}};
    char select[128] = "", by[128] = "";
    for (size_t i = 0; i < sizeof group / sizeof(*group); i++) {
        bool on = (q->group_by & group[i].bit) != 0;
        bool is_text = i >= 3;
        size_t at = strlen(select);
        snprintf(select + at, sizeof select - at, ", %s",
                 on ? group[i].column : (is_text ? "''" : "0"));
        at = strlen(by);
        if (on) snprintf(by + at, sizeof by - at, ", %s", group[i].column);
    }
    char only[96];
    snprintf(only, sizeof only, "%s%s%s", q->tenant_id != 0 ? " AND tenant_id = ?4" : "",
             q->key_id != 0 ? " AND key_id = ?5" : "",
             q->model == NULL  ? ""
             : q->model_begins ? " AND substr(model, 1, length(?6)) = ?6"
                               : " AND model = ?6");
    /* ?1 start, ?2 end, ?3 bucket, ?4 tenant, ?5 key, ?6 model, ?7 limit */
    snprintf(
        text, cap,
        "SELECT CASE WHEN ?3 > 0 THEN at / ?3 * ?3 ELSE ?1 END AS bucket%s, CAST(sum(n) AS BIGINT),"
        " CAST(sum(prompt_tokens) AS BIGINT), CAST(sum(cached_tokens) AS BIGINT),"
        " CAST(sum(output_tokens) AS BIGINT), CAST(coalesce(sum(cost), 0) AS BIGINT) FROM ("
        "SELECT started_us AS at, tenant_id, key_id, adapter_id, model, slo_class, 1 AS n,"
        " prompt_tokens, cached_tokens, output_tokens, cost FROM %susage"
        " WHERE started_us >= ?1 AND started_us < ?2%s UNION ALL "
        "SELECT hour * 3600000000, tenant_id, key_id, adapter_id, model, slo_class,"
        " n_requests, prompt_tokens, cached_tokens, output_tokens, cost FROM %susage_hours"
        " WHERE hour >= (?1 + 3599999999) / 3600000000"
        " AND hour < (?2 + 3599999999) / 3600000000%s) AS both_"
        " GROUP BY bucket%s ORDER BY bucket%s LIMIT ?7",
        select, tables, only, tables, only, by, by);
}

typedef struct sums {
    const usage_query *query;
    usage_sum *list;
    size_t n, cap;
} sums;

/* A sum of zeros at the end; NULL: no memory. */
static usage_sum *next_sum(sums *s)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        usage_sum *more = realloc(s->list, cap * sizeof(*more));
        if (!more) return NULL;
        s->list = more;
        s->cap = cap;
    }
    return memset(&s->list[s->n++], 0, sizeof(usage_sum));
}

static void end_bucket(const usage_query *q, usage_sum *s)
{
    s->bucket_end_us = q->bucket_us > 0 ? s->bucket_start_us + q->bucket_us : q->end_wall_us;
}

/* Sums of this database's own rows, added to `into` in the order of buckets. */
static err_code query_here(store *st, sums *into, err *e)
{
    const usage_query *query = into->query;
    char text[1536];
    build_query(query, "", text, sizeof text);
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db, text);
    sql_int(&q, query->start_wall_us);
    sql_int(&q, query->end_wall_us);
    sql_int(&q, query->bucket_us);
    sql_int(&q, (int64_t)query->tenant_id);
    sql_int(&q, (int64_t)query->key_id);
    sql_text(&q, query->model != NULL ? query->model : "");
    sql_int(&q, (int64_t)query->limit);
    bool short_of_memory = false;
    while (!short_of_memory && sql_row(&q)) {
        usage_sum *s = next_sum(into);
        short_of_memory = s == NULL;
        if (!s) continue;
        s->bucket_start_us = sql_col_int(&q, 0);
        end_bucket(query, s);
        s->tenant_id = (uint64_t)sql_col_int(&q, 1);
        s->key_id = (uint64_t)sql_col_int(&q, 2);
        s->adapter_id = (uint64_t)sql_col_int(&q, 3);
        sql_col_text(&q, 4, s->model, sizeof s->model);
        sql_col_text(&q, 5, s->slo_class, sizeof s->slo_class);
        s->n_requests = (uint64_t)sql_col_int(&q, 6);
        s->prompt_tokens = (uint64_t)sql_col_int(&q, 7);
        s->cached_tokens = (uint64_t)sql_col_int(&q, 8);
        s->output_tokens = (uint64_t)sql_col_int(&q, 9);
        s->cost = sql_col_int(&q, 10);
    }
    err_code rc = sql_end(&q, "read the usage", e);
    store_read_end(st, db);
    return short_of_memory ? err_set(e, ERR_NOMEM, "out of memory") : rc;
}

static err_code take_sum(void *self, const char *const *column, int n, err *e)
{
    sums *into = self;
    usage_sum *s = next_sum(into);
    if (!s || n != 11) return err_set(e, ERR_NOMEM, "out of memory");
    s->bucket_start_us = strtoll(column[0], NULL, 10);
    end_bucket(into->query, s);
    uint64_t *const number[] = {&s->tenant_id,    &s->key_id,        &s->adapter_id,
                                &s->n_requests,   &s->prompt_tokens, &s->cached_tokens,
                                &s->output_tokens};
    for (int i = 0; i < 7; i++) *number[i] = strtoull(column[i < 3 ? 1 + i : 3 + i], NULL, 10);
    s->cost = strtoll(column[10], NULL, 10);
    snprintf(s->model, sizeof s->model, "%s", column[4]);
    snprintf(s->slo_class, sizeof s->slo_class, "%s", column[5]);
    return ERR_NONE;
}

/* Runs the statement in PostgreSQL; each parameter needs a type there, whether it is used or not.
 */
static err_code query_fleet(store *st, sums *into, err *e)
{
    const usage_query *query = into->query;
    char text[1536], theirs[2560], number[7][24];
    const char *values[7];
    build_query(query, "lorad_", text, sizeof text);
    size_t n = (size_t)snprintf(theirs, sizeof theirs,
                                "WITH all_ AS (SELECT $4::bigint, $5::bigint, $6::text) ");
    for (const char *p = text; *p && n + 16 < sizeof theirs; p++) {
        if (*p != '?') {
            theirs[n++] = *p;
            continue;
        }
        p++;
        n += (size_t)snprintf(theirs + n, 16, "$%c::%s", *p, *p == '6' ? "text" : "bigint");
    }
    assert(n + 16 < sizeof theirs); /* nothing of it is cut off */
    theirs[n] = 0;
    int64_t end_us = query->end_wall_us < INT64_MAX / 2 ? query->end_wall_us : INT64_MAX / 2;
    const int64_t parameter[7] = {
        query->start_wall_us,   end_us, query->bucket_us,     (int64_t)query->tenant_id,
        (int64_t)query->key_id, 0,      (int64_t)query->limit};
    for (int i = 0; i < 7; i++) {
        snprintf(number[i], sizeof number[i], "%lld", (long long)parameter[i]);
        values[i] = i != 5 ? number[i] : query->model ? query->model : "";
    }
    return books_query(st, theirs, values, 7, take_sum, into, e);
}

err_code ledger_query(store *st, const usage_query *query, usage_sum **out, size_t *n, err *e)
{
    *out = NULL;
    *n = 0;
    if (query->bucket_us < 0 || query->start_wall_us < 0 ||
        query->end_wall_us < query->start_wall_us)
        return err_set(e, ERR_INPUT, "the time range is empty, or ends before it starts");
    usage_query q = *query;
    if (q.limit == 0) q.limit = ROWS_DEFAULT;
    sums s = {.query = &q};
    err_code rc = store_in_fleet(st) ? query_fleet(st, &s, e) : query_here(st, &s, e);
    if (rc) {
        free(s.list);
        return rc;
    }
    *out = s.list;
    *n = s.n;
    return ERR_NONE;
}

/* The UTC day, and the first and last of its month. */
static int64_t days_of(int64_t now_wall_us, int64_t *first, int64_t *last)
{
    time_t now = (time_t)floor_div(now_wall_us, 1000000);
    struct tm tm;
    gmtime_r(&now, &tm);
    int64_t today = floor_div(now_wall_us, DAY_US);
    *first = today - (tm.tm_mday - 1);
    tm.tm_mon++;
    tm.tm_mday = 1;
    *last = floor_div((int64_t)timegm(&tm), 86400) - 1;
    assert(*first <= today && today <= *last);
    return today;
}

err_code ledger_next_spender(store *st, int64_t now_wall_us, uint64_t *tenant_id, err *e)
{
    int64_t first, last;
    (void)days_of(now_wall_us, &first, &last);
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db,
              "SELECT tenant_id FROM usage_days WHERE tenant_id > ?1 AND day BETWEEN ?2 AND ?3"
              " ORDER BY tenant_id LIMIT 1");
    sql_int(&q, (int64_t)*tenant_id);
    sql_int(&q, first);
    sql_int(&q, last);
    *tenant_id = sql_row(&q) ? (uint64_t)sql_col_int(&q, 0) : 0;
    err_code rc = sql_end(&q, "read the usage", e);
    store_read_end(st, db);
    return rc;
}

err_code ledger_spent(store *st, uint64_t tenant_id, int64_t now_wall_us, ledger_sums *day,
                      ledger_sums *month, err *e)
{
    int64_t first, last, today = days_of(now_wall_us, &first, &last);
    *day = *month = (ledger_sums){0};
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db,
              "SELECT coalesce(sum(prompt_tokens + output_tokens), 0),"
              " coalesce(sum(CASE WHEN day = ?2 THEN prompt_tokens + output_tokens END), 0),"
              " coalesce(sum(cost), 0), coalesce(sum(CASE WHEN day = ?2 THEN cost END), 0)"
              " FROM usage_days WHERE tenant_id = ?1 AND day BETWEEN ?3 AND ?4");
    sql_int(&q, (int64_t)tenant_id);
    sql_int(&q, today);
    sql_int(&q, first);
    sql_int(&q, last);
    if (sql_row(&q)) {
        *month = (ledger_sums){.tokens = sql_col_int(&q, 0), .cost = sql_col_int(&q, 2)};
        *day = (ledger_sums){.tokens = sql_col_int(&q, 1), .cost = sql_col_int(&q, 3)};
    }
    err_code rc = sql_end(&q, "read the usage", e);
    store_read_end(st, db);
    return rc;
}
