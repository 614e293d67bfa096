/* history.c -- the table of spans: written in one job, pruned in the same.
 *
 * Rows of two widths, fine ones kept for an hour and coarse ones for 30 days. A row of the same
 * span, kind and name replaces the former one, so a span that is written twice counts once.
 * Writing is posted, not waited for: a picture with a gap is better than a server that waits for
 * its disk.
 */
#include "storage/watch/history.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "storage/store_sql.h"

typedef struct batch {
    int64_t now_s;
    size_t n;
    history_row row[];
} batch;

static void bind_row(sql *q, const history_row *r)
{
    const int64_t figures[] = {r->ended,       r->failed,      r->refused,       r->limited,
                               r->met,         r->missed,      r->prompt_tokens, r->output_tokens,
                               r->ttft_p50_us, r->ttft_p99_us, r->tpot_p50_us,   r->tpot_p99_us};
    sql_int(q, r->width_s);
    sql_int(q, r->kind);
    sql_int(q, r->start_s);
    sql_text(q, r->name);
    sql_int(q, r->part);
    for (size_t i = 0; i < sizeof(figures) / sizeof(*figures); i++) sql_int(q, figures[i]);
    sql_text(q, r->causes);
}

static err_code forget(sqlite3 *db, int width_s, int64_t before_s, err *e)
{
    sql q;
    sql_begin(&q, db, "DELETE FROM history WHERE width_s = ? AND start_s < ?");
    sql_int(&q, width_s);
    sql_int(&q, before_s);
    return sql_done(&q, "forget old history", e);
}

static err_code write_batch(sqlite3 *db, void *arg, err *e)
{
    const batch *b = arg;
    err_code rc = ERR_NONE;
    for (size_t i = 0; !rc && i < b->n; i++) {
        sql q;
        sql_begin(&q, db,
                  "INSERT OR REPLACE INTO history VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
        bind_row(&q, &b->row[i]);
        rc = sql_done(&q, "write the history", e);
    }
    if (!rc) rc = forget(db, HISTORY_FINE_S, b->now_s - HISTORY_FINE_KEPT_S, e);
    if (!rc) rc = forget(db, HISTORY_COARSE_S, b->now_s - HISTORY_COARSE_KEPT_S, e);
    return rc;
}

void history_put(store *st, const history_row *rows, size_t n, int64_t now_s)
{
    assert(n <= HISTORY_NAMES);
    size_t bytes = sizeof(batch) + n * sizeof(*rows);
    batch *b = malloc(bytes);
    if (!b) return; /* a gap in a picture */
    b->now_s = now_s;
    b->n = n;
    memcpy(b->row, rows, n * sizeof(*rows));
    store_post(st, write_batch, b, bytes);
    free(b);
}

static void read_row(sql *q, history_row *r)
{
    int64_t *figures[] = {&r->ended,       &r->failed,      &r->refused,       &r->limited,
                          &r->met,         &r->missed,      &r->prompt_tokens, &r->output_tokens,
                          &r->ttft_p50_us, &r->ttft_p99_us, &r->tpot_p50_us,   &r->tpot_p99_us};
    enum { FIRST = 5, N = sizeof(figures) / sizeof(*figures) };
    memset(r, 0, sizeof(*r));
    r->width_s = (int)sql_col_int(q, 0);
    r->kind = (history_kind)sql_col_int(q, 1);
    r->start_s = sql_col_int(q, 2);
    sql_col_text(q, 3, r->name, sizeof(r->name));
    r->part = sql_col_int(q, 4);
    for (int i = 0; i < N; i++) *figures[i] = sql_col_int(q, FIRST + i);
    sql_col_text(q, FIRST + N, r->causes, sizeof(r->causes));
}

err_code history_get(store *st, const history_query *q, history_row **out, size_t *n, err *e)
{
    size_t cap = 0;
    bool starved = false;
    *out = NULL;
    *n = 0;
    sqlite3 *db = store_read_begin(st);
    sql s;
    sql_begin(&s, db,
              "SELECT * FROM history WHERE width_s = ?1 AND kind = ?2 AND start_s >= ?3 AND "
              "start_s < ?4 AND (?5 = '' OR name = ?5) ORDER BY start_s, name, part LIMIT ?6");
    sql_int(&s, q->width_s);
    sql_int(&s, q->kind);
    sql_int(&s, q->start_s);
    sql_int(&s, q->end_s);
    sql_text(&s, q->name ? q->name : "");
    sql_int(&s, (int64_t)q->limit);
    while (!starved && sql_row(&s)) {
        if (*n == cap) {
            cap = cap ? 2 * cap : 64;
            history_row *more = realloc(*out, cap * sizeof(*more));
            starved = !more;
            if (more) *out = more;
        }
        if (!starved) read_row(&s, &(*out)[(*n)++]);
    }
    err_code rc = sql_end(&s, "read the history", e);
    store_read_end(st, db);
    if (starved) rc = err_set(e, ERR_NOMEM, "no memory for the history");
    if (!rc) return ERR_NONE;
    free(*out);
    *out = NULL;
    *n = 0;
    return rc;
}
