/* responses.c -- rows of the table `responses`, sealed where the operator has a key.
 *
 * A stored document begins with a byte for its kind: SUMMED, followed by a checksum and the text;
 * SEALED, followed by the sealed text (storage/seal/); or PLAIN, followed by the text (written by
 * versions before 0.3).  Checksum and seal are bound to tenant, id and column. */
#include "storage/seal/responses.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/fingerprint.h"
#include "storage/store_sql.h"

/* No flipped bit makes one kind of another. */
enum { PLAIN = 0, SEALED = 1, SUMMED = 0xfe, SUM_BYTES = 8 };
static const int64_t scrub_us = 5000000;

typedef struct document {
    uint8_t *s;
    size_t len;
} document;

/* ---------------------------------------------------------------------- the seal -- */

/* What a document belongs to. */
static void label_of(const response_row *r, const char *column, char out[RESPONSES_ID_MAX + 64])
{
    snprintf(out, RESPONSES_ID_MAX + 64, "%llu/%s/%s", (unsigned long long)r->tenant_id, r->id,
             column);
}

static uint64_t check_of(const char *label, const char *text, size_t len)
{
    fingerprint name, f;
    fingerprint_begin(&name);
    fingerprint_add(&name, label, strlen(label));
    fingerprint_begin(&f);
    fingerprint_add(&f, text, len);
    return fingerprint_end(&f) ^ fingerprint_end(&name);
}

static void put_summed(const char *label, const char *text, size_t len, uint8_t *out)
{
    uint64_t check = check_of(label, text, len);
    out[0] = SUMMED;
    memcpy(out + 1, &check, SUM_BYTES);
    memcpy(out + 1 + SUM_BYTES, text, len);
}

static err_code seal(seal_key key, const response_row *r, const char *column, const char *text,
                     document *out, err *e)
{
    assert(!out->s);
    size_t len = strlen(text);
    char label[RESPONSES_ID_MAX + 64];
    out->s = malloc(len + 1 + SUM_BYTES + SEAL_BYTES);
    if (!out->s) return err_set(e, ERR_NOMEM, "out of memory");
    out->len = len + 1 + (key ? SEAL_BYTES : SUM_BYTES);
    out->s[0] = SEALED;
    label_of(r, column, label);
    if (!key) put_summed(label, text, len, out->s);
    if (!key || seal_close(key, label, text, len, out->s + 1)) return ERR_NONE;
    return err_set(e, ERR_IO, "a document cannot be encrypted");
}

static err_code open_sealed(seal_key key, const char *label, const uint8_t *s, char *text,
                            size_t len, err *e)
{
    if (!key) return err_set(e, ERR_DENIED, "this was stored with a key, which is gone");
    if (seal_open(key, label, s, len, text)) return ERR_NONE;
    return err_set(e, ERR_DENIED, "this was stored with another key, or is damaged");
}

static err_code open_plain(bool summed, const char *label, const uint8_t *s, char *text, size_t len,
                           err *e)
{
    uint64_t check = 0;
    if (summed) memcpy(&check, s, SUM_BYTES);
    memcpy(text, s + (summed ? SUM_BYTES : 0), len);
    if (summed && check_of(label, text, len) != check)
        return err_set(e, ERR_CORRUPT, "a stored document does not match its checksum");
    return ERR_NONE;
}

static err_code unseal(seal_key key, const response_row *r, const char *column, const document *in,
                       char **out, err *e)
{
    int kind = in->len > 0 ? in->s[0] : -1;
    size_t head = 1 + (kind == SEALED ? SEAL_BYTES : kind == SUMMED ? SUM_BYTES : 0);
    if ((kind != PLAIN && kind != SEALED && kind != SUMMED) || in->len < head)
        return err_set(e, ERR_CORRUPT, "a stored document is damaged");
    size_t len = in->len - head;
    char label[RESPONSES_ID_MAX + 64], *text = malloc(len + 1);
    if (!text) return err_set(e, ERR_NOMEM, "out of memory");
    text[len] = 0;
    label_of(r, column, label);
    err_code rc = kind == SEALED ? open_sealed(key, label, in->s + 1, text, len, e)
                                 : open_plain(kind == SUMMED, label, in->s + 1, text, len, e);
    if (rc) {
        free(text);
        text = NULL;
    }
    *out = text;
    return rc;
}

/* ----------------------------------------------------------------------- writing -- */

typedef struct put_job {
    const response_row *r;
    document body, input;
    const response_quota *quota;
} put_job;

/* Two rows are read, however many the tenant has: triggers count them (storage/schema.c, 20). */
static err_code check_room(sqlite3 *db, const put_job *p, err *e)
{
    sql q;
    int64_t bytes = (int64_t)(p->body.len + p->input.len), rows = 1;
    if (!p->quota) return ERR_NONE;
    sql_begin(&q, db,
              "SELECT h.bytes - coalesce(r.bytes, 0), h.n - (r.row IS NOT NULL)"
              " FROM responses_held h LEFT JOIN responses r"
              " ON r.tenant_id = h.tenant_id AND r.id = ?2 WHERE h.tenant_id = ?1");
    sql_int(&q, (int64_t)p->r->tenant_id);
    sql_text(&q, p->r->id);
    if (sql_row(&q)) {
        bytes += sql_col_int(&q, 0);
        rows += sql_col_int(&q, 1);
    }
    err_code rc = sql_end(&q, "count what is stored", e);
    if (rc) return rc;
    if (p->quota->bytes && bytes > p->quota->bytes)
        return err_set(e, ERR_LIMIT,
                       "stored responses would take %lld bytes, the limit is %lld: delete some, or "
                       "send \"store\": false",
                       (long long)bytes, (long long)p->quota->bytes);
    if (p->quota->rows && rows > p->quota->rows)
        return err_set(e, ERR_LIMIT,
                       "there would be %lld stored responses and conversations, the limit is %lld: "
                       "delete some, or send \"store\": false",
                       (long long)rows, (long long)p->quota->rows);
    return ERR_NONE;
}

static err_code put_row(sqlite3 *db, void *arg, err *e)
{
    const put_job *p = arg;
    const response_row *r = p->r;
    err_code rc = check_room(db, p, e);
    if (rc) return rc;
    sql q;
    sql_begin(
        &q, db,
        "INSERT INTO responses(tenant_id, id, previous, conversation, running, created_us,"
        " expires_us, bytes, body, input) VALUES(?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(tenant_id, id) DO UPDATE SET running = excluded.running,"
        " bytes = excluded.bytes + length(events), body = excluded.body, input = excluded.input");
    sql_int(&q, (int64_t)r->tenant_id);
    sql_text(&q, r->id);
    sql_text(&q, r->previous);
    sql_text(&q, r->conversation);
    sql_int(&q, r->running);
    sql_int(&q, r->created_us);
    sql_int(&q, r->expires_us);
    sql_int(&q, (int64_t)(p->body.len + p->input.len));
    sql_blob(&q, p->body.s, p->body.len);
    sql_blob(&q, p->input.s, p->input.len);
    return sql_done(&q, "store the response", e);
}

err_code responses_put(store *st, seal_key key, const response_row *r, const response_quota *q,
                       err *e)
{
    put_job p = {.r = r, .quota = q};
    err_code rc = seal(key, r, "body", r->body, &p.body, e);
    if (!rc) rc = seal(key, r, "input", r->input, &p.input, e);
    if (!rc) rc = store_write_own(st, put_row, &p, e);
    free(p.body.s);
    free(p.input.s);
    return rc;
}

typedef struct events_job {
    response_row of;
    document events;
} events_job;

static err_code put_events(sqlite3 *db, void *arg, err *e)
{
    const events_job *j = arg;
    sql q;
    sql_begin(&q, db,
              "UPDATE responses SET bytes = bytes + ?3 - length(events), events = ?4"
              " WHERE tenant_id = ?1 AND id = ?2");
    sql_int(&q, (int64_t)j->of.tenant_id);
    sql_text(&q, j->of.id);
    sql_int(&q, (int64_t)j->events.len);
    sql_blob(&q, j->events.s, j->events.len);
    return sql_done(&q, "store the response's events", e);
}

err_code responses_put_events(store *st, seal_key key, uint64_t tenant_id, const char *id,
                              const char *events, err *e)
{
    events_job j = {.of = {.tenant_id = tenant_id}};
    snprintf(j.of.id, sizeof(j.of.id), "%s", id);
    err_code rc = seal(key, &j.of, "events", events, &j.events, e);
    if (!rc) rc = store_write_own(st, put_events, &j, e);
    free(j.events.s);
    return rc;
}

typedef struct delete_job {
    uint64_t tenant_id;
    const char *id;
    int64_t wall_us, limit, n;
} delete_job;

static err_code delete_row(sqlite3 *db, void *arg, err *e)
{
    delete_job *j = arg;
    sql q;
    sql_begin(&q, db,
              "DELETE FROM responses WHERE tenant_id = ?1 AND (id = ?2 OR conversation = ?2)");
    sql_int(&q, (int64_t)j->tenant_id);
    sql_text(&q, j->id);
    err_code rc = sql_done(&q, "delete the response", e);
    j->n = sqlite3_changes64(db);
    return rc;
}

err_code responses_delete(store *st, uint64_t tenant_id, const char *id, err *e)
{
    delete_job j = {.tenant_id = tenant_id, .id = id};
    err_code rc = store_write_own(st, delete_row, &j, e);
    if (rc) return rc;
    if (j.n == 0) return err_set(e, ERR_NOT_FOUND, "there is no such response");
    (void)store_scrub(st, scrub_us); /* else soon */
    return ERR_NONE;
}

static err_code expire_rows(sqlite3 *db, void *arg, err *e)
{
    delete_job *j = arg;
    sql q;
    sql_begin(&q, db,
              "DELETE FROM responses WHERE row IN (SELECT row FROM responses"
              " WHERE expires_us BETWEEN 1 AND ?1 LIMIT ?2)");
    sql_int(&q, j->wall_us);
    sql_int(&q, j->limit);
    err_code rc = sql_done(&q, "delete what has expired", e);
    j->n = sqlite3_changes64(db);
    return rc;
}

err_code responses_expire(store *st, int64_t wall_us, int64_t limit, int64_t *n, err *e)
{
    delete_job j = {.wall_us = wall_us, .limit = limit};
    err_code rc = store_write_own(st, expire_rows, &j, e);
    *n = j.n;
    if (!rc && j.n) (void)store_scrub(st, scrub_us);
    return rc;
}

/* ----------------------------------------------------------------------- reading -- */

#define ROW_SQL                                                                                  \
    "SELECT tenant_id, id, previous, conversation, running, created_us, expires_us, body, input" \
    " FROM responses WHERE "

void response_row_clear(response_row *r)
{
    free(r->body);
    free(r->input);
    r->body = r->input = NULL;
}

static err_code read_document(sql *q, int column, const char *name, seal_key key,
                              const response_row *r, char **out, err *e)
{
    const document d = {(uint8_t *)(uintptr_t)sqlite3_column_blob(q->s, column),
                        (size_t)sqlite3_column_bytes(q->s, column)};
    return unseal(key, r, name, &d, out, e);
}

static err_code read_row(sql *q, seal_key key, response_row *r, err *e)
{
    *r = (response_row){.tenant_id = (uint64_t)sql_col_int(q, 0),
                        .running = sql_col_int(q, 4),
                        .created_us = sql_col_int(q, 5),
                        .expires_us = sql_col_int(q, 6)};
    sql_col_text(q, 1, r->id, sizeof(r->id));
    sql_col_text(q, 2, r->previous, sizeof(r->previous));
    sql_col_text(q, 3, r->conversation, sizeof(r->conversation));
    err_code rc = read_document(q, 7, "body", key, r, &r->body, e);
    if (!rc) rc = read_document(q, 8, "input", key, r, &r->input, e);
    if (rc) response_row_clear(r);
    return rc;
}

err_code responses_get(store *st, seal_key key, uint64_t tenant_id, const char *id,
                       response_row *out, err *e)
{
    err_code rc = err_set(e, ERR_NOT_FOUND, "there is no such response");
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db, ROW_SQL "tenant_id=?1 AND id=?2 AND (expires_us=0 OR expires_us>?3)");
    sql_int(&q, (int64_t)tenant_id);
    sql_text(&q, id);
    sql_int(&q, clock_wall_us());
    if (sql_row(&q)) rc = read_row(&q, key, out, e);
    err why;
    err_code end = sql_end(&q, "read the response", &why);
    store_read_end(st, db);
    if (!end) return rc;
    if (!rc) response_row_clear(out);
    *e = why;
    return end;
}

err_code responses_get_events(store *st, seal_key key, uint64_t tenant_id, const char *id,
                              char **events, err *e)
{
    response_row of = {.tenant_id = tenant_id};
    err_code rc = err_set(e, ERR_NOT_FOUND, "there is no such response");
    sqlite3 *db = store_read_begin(st);
    sql q;
    *events = NULL;
    snprintf(of.id, sizeof(of.id), "%s", id);
    sql_begin(&q, db, "SELECT events FROM responses WHERE tenant_id = ?1 AND id = ?2");
    sql_int(&q, (int64_t)tenant_id);
    sql_text(&q, id);
    if (sql_row(&q)) {
        rc = ERR_NONE;
        if (sqlite3_column_bytes(q.s, 0) > 0)
            rc = read_document(&q, 0, "events", key, &of, events, e);
    }
    err why;
    err_code end = sql_end(&q, "read the response's events", &why);
    store_read_end(st, db);
    if (!end) return rc;
    free(*events);
    *events = NULL;
    *e = why;
    return end;
}

/* The rows of a query that is bound. */
static err_code collect(sql *q, seal_key key, size_t most, response_row **out, size_t *n, err *e)
{
    err_code rc = ERR_NONE;
    size_t cap = 0;
    while (!rc && sql_row(q)) {
        if (*n == most) {
            rc = err_set(e, ERR_LIMIT, "there are more than %zu responses", most);
            break;
        }
        if (*n == cap) {
            cap = cap ? 2 * cap : 16;
            response_row *list = realloc(*out, cap * sizeof(*list));
            if (!list) {
                rc = err_set(e, ERR_NOMEM, "out of memory");
                break;
            }
            *out = list;
        }
        rc = read_row(q, key, &(*out)[*n], e);
        if (!rc) (*n)++;
    }
    err why;
    err_code end = sql_end(q, "read the responses", &why);
    if (!rc && end) *e = why;
    if (!rc) rc = end;
    if (!rc) return rc;
    for (size_t i = 0; i < *n; i++) response_row_clear(&(*out)[i]);
    free(*out);
    *out = NULL;
    *n = 0;
    return rc;
}

err_code responses_list(store *st, seal_key key, uint64_t tenant_id, const char *conversation,
                        size_t most, response_row **out, size_t *n, err *e)
{
    *out = NULL;
    *n = 0;
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db,
              ROW_SQL "tenant_id=?1 AND conversation=?2 AND id<>?2"
                      " AND (expires_us=0 OR expires_us>?3) ORDER BY row");
    sql_int(&q, (int64_t)tenant_id);
    sql_text(&q, conversation);
    sql_int(&q, clock_wall_us());
    err_code rc = collect(&q, key, most, out, n, e);
    store_read_end(st, db);
    return rc;
}
