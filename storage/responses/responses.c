/* responses.c -- rows of the table `responses`, sealed where the operator has a key.
 *
 * A stored document: one byte 0 and the text, or one byte 1, a nonce of 12 bytes, the ciphertext,
 * a tag of 16.  What the seal is bound to: tenant, id, column. */
#include "storage/responses/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/evp.h>

#include "engine/base/clock.h"
#include "engine/base/hex.h"
#include "storage/store_sql.h"

enum { PLAIN = 0, SEALED = 1, NONCE = 12, TAG = 16, OVERHEAD = 1 + NONCE + TAG };
static const int64_t scrub_us = 5000000;

typedef struct document {
    uint8_t *s;
    size_t len;
} document;

/* ---------------------------------------------------------------------- the seal -- */

err_code responses_read_key(const char *path, uint8_t key[RESPONSES_KEY_BYTES], err *e)
{
    char text[2 * RESPONSES_KEY_BYTES + 16];
    FILE *f = fopen(path, "rbe");
    if (!f) return err_set(e, ERR_NOT_FOUND, "the key file cannot be read");
    size_t n = fread(text, 1, sizeof(text), f);
    (void)fclose(f);
    if (n == RESPONSES_KEY_BYTES) {
        memcpy(key, text, n);
        return ERR_NONE;
    }
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) && text[n - 1]) n--;
    bool ok = n == 2 * (size_t)RESPONSES_KEY_BYTES;
    for (int i = 0; ok && i < RESPONSES_KEY_BYTES; i++) {
        int byte = hex_value(text + 2 * i, text + n, 2);
        ok = byte >= 0;
        key[i] = (uint8_t)byte;
    }
    explicit_bzero(text, sizeof(text));
    return ok ? ERR_NONE
              : err_set(e, ERR_INPUT, "the key file must hold 32 bytes or 64 hexadecimal digits");
}

/* What a document belongs to. */
static int label_of(const response_row *r, const char *column, char *out, size_t cap)
{
    return snprintf(out, cap, "%llu/%s/%s", (unsigned long long)r->tenant_id, r->id, column);
}

static bool run_cipher(EVP_CIPHER_CTX *c, const char *label, int n_label, const uint8_t *in,
                       size_t len, uint8_t *out)
{
    int n = 0, more = 0;
    return len < INT32_MAX && EVP_CipherUpdate(c, NULL, &n, (const uint8_t *)label, n_label) == 1 &&
           EVP_CipherUpdate(c, out, &n, in, (int)len) == 1 && (size_t)n == len &&
           EVP_CipherFinal_ex(c, out + n, &more) == 1;
}

static err_code seal(responses_key key, const response_row *r, const char *column, const char *text,
                     document *out, err *e)
{
    size_t len = strlen(text);
    char label[RESPONSES_ID_MAX + 64];
    out->s = malloc(len + OVERHEAD);
    if (!out->s) return err_set(e, ERR_NOMEM, "out of memory");
    out->len = len + 1;
    out->s[0] = PLAIN;
    if (!key) {
        memcpy(out->s + 1, text, len);
        return ERR_NONE;
    }
    out->len = len + OVERHEAD;
    out->s[0] = SEALED;
    int n_label = label_of(r, column, label, sizeof(label));
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    bool ok = c && getrandom(out->s + 1, NONCE, 0) == NONCE &&
              EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, out->s + 1, 1) == 1 &&
              run_cipher(c, label, n_label, (const uint8_t *)text, len, out->s + 1 + NONCE) &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG, out->s + 1 + NONCE + len) == 1;
    EVP_CIPHER_CTX_free(c);
    return ok ? ERR_NONE : err_set(e, ERR_IO, "a document cannot be encrypted");
}

static err_code unseal(responses_key key, const response_row *r, const char *column,
                       const document *in, char **out, err *e)
{
    bool sealed = in->len > 0 && in->s[0] == SEALED;
    if (in->len == 0 || in->s[0] > SEALED || (sealed && in->len < OVERHEAD))
        return err_set(e, ERR_CORRUPT, "a stored document is damaged");
    if (sealed && !key) return err_set(e, ERR_DENIED, "this was stored with a key, which is gone");
    size_t len = sealed ? in->len - OVERHEAD : in->len - 1;
    char label[RESPONSES_ID_MAX + 64], *text = malloc(len + 1);
    if (!text) return err_set(e, ERR_NOMEM, "out of memory");
    text[len] = 0;
    *out = text;
    if (!sealed) {
        memcpy(text, in->s + 1, len);
        return ERR_NONE;
    }
    int n_label = label_of(r, column, label, sizeof(label));
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    const uint8_t *body = in->s + 1 + NONCE;
    bool ok =
        c && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, in->s + 1, 0) == 1 &&
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG, (void *)(uintptr_t)(body + len)) == 1 &&
        run_cipher(c, label, n_label, body, len, (uint8_t *)text);
    EVP_CIPHER_CTX_free(c);
    if (ok) return ERR_NONE;
    free(text);
    *out = NULL;
    return err_set(e, ERR_DENIED, "this was stored with another key");
}

/* ----------------------------------------------------------------------- writing -- */

typedef struct put_job {
    const response_row *r;
    document body, input;
    int64_t most;
} put_job;

static err_code check_room(sqlite3 *db, const put_job *p, err *e)
{
    sql q;
    int64_t have = 0, more = (int64_t)(p->body.len + p->input.len);
    sql_begin(&q, db, "SELECT coalesce(sum(bytes),0) FROM responses WHERE tenant_id=?1 AND id<>?2");
    sql_int(&q, (int64_t)p->r->tenant_id);
    sql_text(&q, p->r->id);
    if (sql_row(&q)) have = sql_col_int(&q, 0);
    err_code rc = sql_end(&q, "count what is stored", e);
    if (rc || p->most == 0 || have + more <= p->most) return rc;
    return err_set(e, ERR_LIMIT,
                   "stored responses would take %lld bytes, the limit is %lld: delete some, or "
                   "send \"store\": false",
                   (long long)(have + more), (long long)p->most);
}

static err_code put_row(sqlite3 *db, void *arg, err *e)
{
    const put_job *p = arg;
    const response_row *r = p->r;
    err_code rc = check_room(db, p, e);
    if (rc) return rc;
    sql q;
    sql_begin(&q, db,
              "INSERT INTO responses(tenant_id, id, previous, conversation, running, created_us,"
              " expires_us, bytes, body, input) VALUES(?,?,?,?,?,?,?,?,?,?)"
              " ON CONFLICT(tenant_id, id) DO UPDATE SET running = excluded.running,"
              " bytes = excluded.bytes, body = excluded.body, input = excluded.input");
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

err_code responses_put(store *st, responses_key key, const response_row *r, int64_t most, err *e)
{
    put_job p = {.r = r, .most = most};
    err_code rc = seal(key, r, "body", r->body, &p.body, e);
    if (!rc) rc = seal(key, r, "input", r->input, &p.input, e);
    if (!rc) rc = store_write_own(st, put_row, &p, e);
    free(p.body.s);
    free(p.input.s);
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

static err_code read_document(sql *q, int column, const char *name, responses_key key,
                              const response_row *r, char **out, err *e)
{
    const document d = {(uint8_t *)(uintptr_t)sqlite3_column_blob(q->s, column),
                        (size_t)sqlite3_column_bytes(q->s, column)};
    return unseal(key, r, name, &d, out, e);
}

static err_code read_row(sql *q, responses_key key, response_row *r, err *e)
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

err_code responses_get(store *st, responses_key key, uint64_t tenant_id, const char *id,
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

/* The rows of a query that is bound. */
static err_code collect(sql *q, responses_key key, size_t most, response_row **out, size_t *n,
                        err *e)
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

err_code responses_list(store *st, responses_key key, uint64_t tenant_id, const char *conversation,
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
