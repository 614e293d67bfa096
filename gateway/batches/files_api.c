/* files_api.c -- handlers of /v1/files: uploads as multipart/form-data, lists, content,
 * deletion.
 *
 * An upload is streamed: the body goes through the multipart parser into a sealed blob (blob.h)
 * piece by piece, and memory does not depend on the file's size. Order of events:
 *
 *     quota and disk are checked by Content-Length  ->  pieces are written to a temporary blob
 *     -> the key is checked again (it may be revoked during a long upload)
 *     -> fields are checked -> blob_keep() renames -> files_put() writes the row, quota included
 *
 * A crash before the row leaves a blob without one, which the sweep at the next start removes. A
 * row never exists without its blob.
 *
 * Content is sent in pieces of PIECE_BYTES. The first piece is read before the status line, so
 * that damage there is an error with a name; damage later can only cut the connection.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/batches/batch_fields.h"
#include "gateway/batches/blob.h"
#include "gateway/doors/door_json.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/http/multipart.h"
#include "gateway/rest/api_audit.h"
#include "gateway/tenant_parts.h"

enum {
    FRAMING_BYTES = 65536, /* of a body beside its file */
    VALUE_MAX = 63,        /* bytes of a field that is no file */
    PIECE_BYTES = 256 << 10,
    LIST_MAX = 10000,
    EXPIRES_MIN_S = 3600, /* as OpenAI has it */
    EXPIRES_MAX_S = 2592000,
};

/* ------------------------------------------------------------------------- upload -- */

typedef enum { FIELD_NONE, FIELD_FILE, FIELD_PURPOSE, FIELD_ANCHOR, FIELD_SECONDS } field;

typedef struct file_upload {
    exchange *x;
    multipart form;
    blob_writer to;
    file_row row;
    field now;
    size_t n_value;
    char value[VALUE_MAX + 1]; /* of the field that is coming */
    char purpose[VALUE_MAX + 1], anchor[VALUE_MAX + 1], seconds[VALUE_MAX + 1];
    bool has_file;
    bool refused; /* by the client's rights or what it sends, not by the body's framing */
    err why;
} file_upload;

static blob_place place_of(const exchange *x, const file_row *f)
{
    return (blob_place){x->conf->data.dir, tenants_seal_key(tenants_of(x->app)), f->tenant_id,
                        f->id};
}

static err_code begin_file(file_upload *u, const char *name, err *e)
{
    if (u->has_file) return err_set(e, ERR_INPUT, "there are two files in the body");
    const char *bare = strrchr(name, '/');
    snprintf(u->row.name, sizeof(u->row.name), "%s", bare ? bare + 1 : name);
    u->has_file = true;
    u->now = FIELD_FILE;
    const blob_place at = place_of(u->x, &u->row);
    return blob_begin(&u->to, &at, adapters_of(u->x->app)->room, e);
}

static err_code begin_part(void *arg, const char *name, const char *file, err *e)
{
    file_upload *u = arg;
    static const char *const names[] = {"purpose", "expires_after[anchor]",
                                        "expires_after[seconds]"};
    u->n_value = 0;
    if (strcmp(name, "file") == 0 && file) return begin_file(u, file, e);
    if (strcmp(name, "file") == 0)
        return err_set(e, ERR_INPUT, "'file' must be a file, with a filename");
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        u->now = FIELD_PURPOSE + i;
        return ERR_NONE;
    }
    return err_set(e, ERR_INPUT, "unknown field '%.60s'", name);
}

static err_code write_piece(file_upload *u, const void *data, size_t len, err *e)
{
    int64_t most = u->x->conf->files.max_bytes;
    if (u->to.n_bytes + (int64_t)len > most)
        return err_set(e, ERR_LIMIT, "the file has more than %lld bytes", (long long)most);
    return blob_write(&u->to, data, len, e);
}

static err_code take_part(void *arg, const void *data, size_t len, err *e)
{
    file_upload *u = arg;
    if (u->now == FIELD_FILE) return write_piece(u, data, len, e);
    if (u->n_value + len > VALUE_MAX)
        return err_set(e, ERR_INPUT, "a field has more than %d bytes", VALUE_MAX);
    memcpy(u->value + u->n_value, data, len);
    u->n_value += len;
    return ERR_NONE;
}

static err_code end_part(void *arg, err *e)
{
    file_upload *u = arg;
    char *const to[] = {u->purpose, u->anchor, u->seconds};
    u->value[u->n_value] = 0;
    if (strlen(u->value) != u->n_value) return err_set(e, ERR_INPUT, "a field has a NUL byte");
    if (u->now >= FIELD_PURPOSE) memcpy(to[u->now - FIELD_PURPOSE], u->value, u->n_value + 1);
    u->now = FIELD_NONE;
    return ERR_NONE;
}

static bool take_body(void *arg, const void *data, size_t len)
{
    file_upload *u = arg;
    err_code rc = auth_still(u->x, false, &u->why);
    if (!rc) rc = multipart_feed(&u->form, data, len, &u->why);
    u->refused = rc != ERR_NONE;
    return !u->refused;
}

static bool bad(exchange *x, const char *param, const char *msg)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "%s", msg);
    return false;
}

/* The fields that are no file.  False: answered. */
static bool check_fields(file_upload *u)
{
    exchange *x = u->x;
    int64_t keep_us = x->conf->files.keep_us;
    if (!u->purpose[0]) return bad(x, "purpose", "'purpose' is missing: say \"batch\"");
    if (strcmp(u->purpose, "batch") != 0) {
        char name[32];
        snprintf(name, sizeof(name), "%.31s", u->purpose);
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "purpose",
                       "the purpose '%s' is not supported: this server accepts files for \"batch\"",
                       name);
        return false;
    }
    if (!u->has_file) return bad(x, "file", "'file' is missing");
    if (u->to.n_bytes == 0) return bad(x, "file", "the file is empty");
    if (u->anchor[0] && strcmp(u->anchor, "created_at") != 0)
        return bad(x, "expires_after[anchor]", "'expires_after[anchor]' must be \"created_at\"");
    if (u->seconds[0] || u->anchor[0]) {
        uint64_t s = api_parse_id(u->seconds);
        if (s < EXPIRES_MIN_S || s > EXPIRES_MAX_S)
            return bad(x, "expires_after[seconds]",
                       "'expires_after[seconds]' must be a whole number from 3600 to 2592000");
        if (!keep_us || (int64_t)s * 1000000 < keep_us) keep_us = (int64_t)s * 1000000;
    }
    u->row.expires_us = keep_us ? u->row.created_us + keep_us : 0;
    return true;
}

static void reply_file(exchange *x, const file_row *f)
{
    jsonw w;
    jsonw_init(&w);
    batch_write_file(&w, f);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

/* The file is whole: its fields are looked at, it gets its name, its row. */
static void finish_upload(file_upload *u, const batch_quota *quota)
{
    exchange *x = u->x;
    err e;
    if (multipart_finish(&u->form, &e) || auth_still(x, true, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    if (!check_fields(u)) return;
    u->row.bytes = u->to.n_bytes;
    if (blob_keep(&u->to, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    if (files_put(store_of(x->app), &u->row, quota, &e)) {
        err ignored;
        (void)blob_remove(x->conf->data.dir, u->row.tenant_id, u->row.id, &ignored);
        exchange_reply_err(x, &e, "file");
        return;
    }
    api_audit(x, u->row.tenant_id, "file.create", u->row.id, NULL);
    reply_file(x, &u->row);
}

void files_upload(exchange *x)
{
    const config *c = x->conf;
    const batch_quota quota = {.bytes = c->files.tenant_bytes, .files = c->files.tenant_files};
    file_upload u = {.x = x,
                     .row = {.tenant_id = x->caller->tenant.id, .created_us = clock_wall_us()}};
    const multipart_sink sink = {begin_part, take_part, end_part, &u};
    int64_t most = c->files.max_bytes + FRAMING_BYTES, bytes = x->content_length - FRAMING_BYTES;
    err e;
    snprintf(u.row.purpose, sizeof(u.row.purpose), "batch");
    door_make_id("file-", u.row.id);
    if (multipart_begin(&u.form, exchange_header(x, "Content-Type"), &sink, &e)) {
        exchange_error(x, 415, "invalid_request_error", "unsupported_media_type", NULL, "%s",
                       e.msg);
        return;
    }
    err_code rc = files_check(store_of(x->app), u.row.tenant_id, bytes > 0 ? bytes : 0, &quota, &e);
    if (!rc && bytes > 0) rc = storeroom_check(adapters_of(x->app)->room, (uint64_t)bytes, &e);
    if (!rc) rc = exchange_stream_body(x, (uint64_t)most, take_body, &u, &e);
    if (rc)
        exchange_refuse_body(x, u.refused ? &u.why : &e);
    else
        finish_upload(&u, &quota);
    blob_drop(&u.to);
}

/* ------------------------------------------------------------------------ reading -- */

void files_page(exchange *x)
{
    batch_page p;
    file_row *list;
    size_t n;
    bool more;
    err e;
    if (!batch_page_read(x, LIST_MAX, LIST_MAX, &p)) return;
    p.purpose = exchange_query(x, "purpose");
    if (files_list(store_of(x->app), &p, &list, &n, &more, &e)) {
        batch_reply_err(x, "file", p.after ? p.after : "", &e);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) batch_write_file(&w, &list[i]);
    batch_list_end(x, &w, n ? list[0].id : NULL, n ? list[n - 1].id : NULL, more);
    free(list);
}

/* False: answered. */
static bool find_file(exchange *x, file_row *f)
{
    err e;
    if (!files_get(store_of(x->app), x->caller->tenant.id, x->param[0], f, &e)) return true;
    batch_reply_err(x, "file", x->param[0], &e);
    return false;
}

void files_get_one(exchange *x)
{
    file_row f;
    if (find_file(x, &f)) reply_file(x, &f);
}

/* The first piece is read before the answer begins, so that damage there is an error with a name;
 * further behind the stream is cut. */
static void send_content(exchange *x, const sealed_file *f)
{
    char *piece = arena_alloc(&x->arena, PIECE_BYTES);
    err e;
    if (!piece) {
        exchange_starved(x);
        return;
    }
    for (int64_t at = 0; at < f->n_bytes;) {
        size_t n = f->n_bytes - at < PIECE_BYTES ? (size_t)(f->n_bytes - at) : PIECE_BYTES;
        err_code rc = sealed_file_read(f, piece, n, at, &e);
        if (rc) log_error("gateway", "a file is not sent to its end: %s", e.msg);
        if (rc == ERR_CORRUPT) e.code = ERR_IO; /* not the request is */
        if (rc && at == 0) exchange_reply_err(x, &e, NULL);
        if (rc) return;
        if (at == 0 && !exchange_stream_begin(x, "application/octet-stream")) return;
        if (!exchange_stream_write(x, piece, n)) return;
        at += (int64_t)n;
    }
    exchange_stream_end(x);
}

void files_content(exchange *x)
{
    sealed_file file;
    file_row f;
    err e;
    if (!find_file(x, &f)) return;
    if (strcmp(x->method, "HEAD") == 0) {
        exchange_reply(x, 200, "application/octet-stream", NULL, (size_t)f.bytes);
        return;
    }
    const blob_place at = place_of(x, &f);
    err_code rc = blob_open(&file, &at, false, &e);
    if (rc == ERR_NOT_FOUND || (!rc && file.n_bytes != f.bytes))
        rc = err_set(&e, ERR_IO, "the file's bytes are damaged");
    if (rc)
        exchange_reply_err(x, &e, NULL);
    else
        send_content(x, &file);
    sealed_file_close(&file);
}

void files_drop(exchange *x)
{
    err e;
    const char *id = x->param[0];
    uint64_t tenant_id = x->caller->tenant.id;
    err_code rc = files_delete(store_of(x->app), tenant_id, id, &e);
    if (!rc) rc = blob_remove(x->conf->data.dir, tenant_id, id, &e);
    if (rc) {
        batch_reply_err(x, "file", id, &e);
        return;
    }
    api_audit(x, tenant_id, "file.delete", id, NULL);
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "id", id);
    jsonw_str(&w, "object", "file");
    jsonw_bool(&w, "deleted", true);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}
