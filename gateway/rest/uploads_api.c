/* uploads_api.c -- how adapters come in: a tar in one piece, or files that may be interrupted.
 *
 * One piece: POST /v1/adapters/{name}/versions with the folder as application/x-tar.
 *
 * Resumable, for big files and bad lines.  {v} below is the upload's id, "u" and 16 digits:
 *
 *   POST   /v1/adapters/{name}/versions          application/json: {"files":[{"path","bytes",
 *              "sha256"}...], "description"?, "activate"? (default true)} ->
 *              201 and an upload object;
 *              200 with the open upload when the same manifest comes again (nothing to remember for
 *              a client that was killed).  In it, each file's "offset" is where to go on, and its
 *              "state" one of missing, partial, complete, skipped (the
 *              tenant has published the same
 *              bytes before: nothing to send), ignored (a README: nothing to send).
 *   GET    /v1/adapters/{name}/versions/{v}       the upload object
 *   HEAD   .../versions/{v}/files/{path}          Upload-Offset, Upload-Length (GET: also as JSON)
 *   PATCH  .../versions/{v}/files/{path}          Upload-Offset: n and bytes to
 *                                                 append -> 200, the file's
 *              object and Upload-Offset; 409 upload_offset_mismatch with the right Upload-Offset
 *   PUT    .../versions/{v}/files/{path}          the whole file, whatever was there -> 200
 *              (both: 422 checksum_mismatch at the last byte, the file begins
 *              anew at 0; 409 upload_busy
 *              for the second of two writers; 507 when the disk is full, nothing confirmed is lost)
 *   POST   .../versions/{v}/commit                ?activate= overrides;
 *          If-Match: "ETag of the adapter" or
 *              If-None-Match: * (the name must be new) -> 201 and the version, 200 when the newest
 *              version is the same; 409 upload_incomplete; 412; 422 adapter_invalid ends the upload
 *   DELETE /v1/adapters/{name}/versions/{v}       gives it up
 *
 * What a broken connection has delivered stays: ask HEAD, go on with PATCH.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/adapter_source.h"

/* The tenant, its limits and the conditions of a publish; false: answered. */
static bool options_of(exchange *x, publish_options *o)
{
    int64_t expected;
    bool activate = true;
    if (!adapter_expected(x, &expected) || !adapter_activate(x, &activate)) return false;
    *o = adapter_options(x, x->param[0]);
    o->description = exchange_query(x, "description");
    o->activate = activate;
    o->if_generation = expected >= 0;
    o->generation = expected >= 0 ? (uint64_t)expected : 0;
    return true;
}

/* ------------------------------------------------------------------------- one tar -- */

typedef struct {
    exchange *x;
    upload *u;
    err *e;
    err_code rc;
} tar_target;

static bool take_tar(void *arg, const void *data, size_t len)
{
    tar_target *t = arg;
    t->rc = auth_still(t->x, false, t->e);
    if (!t->rc) t->rc = upload_write(t->u, data, len, t->e);
    return t->rc == ERR_NONE;
}

/* A tar in the body, unpacked as it comes. The key is looked at again at the end, since an
 * upload takes minutes; what is refused leaves nothing. */
static void upload_tar(exchange *x)
{
    const upload_env env = adapters_upload(x);
    err e, body_error;
    publish_options o;
    if (!options_of(x, &o)) return;
    tar_target t = {.x = x, .e = &e};
    if (upload_begin(&t.u, &env, &o, &e)) {
        if (e.code == ERR_INPUT) {
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "name", "%s", e.msg);
        } else {
            adapter_refuse(x, &e, "name");
        }
        return;
    }
    err_code rc = exchange_stream_body(x, env.max_bytes, take_tar, &t, &body_error);
    if (!rc) rc = t.rc = auth_still(x, true, &e);
    if (rc) {
        upload_abort(t.u);
        x->close_after = true;
        if (t.rc)
            adapter_refuse(x, &e, NULL);
        else
            exchange_refuse_body(x, &body_error);
        return;
    }
    adapter_version v;
    bool existed = false;
    uint64_t before = adapter_default_id(x, x->param[0]);
    if (upload_finish(t.u, &v, &existed, &e)) {
        adapter_refuse(x, &e, NULL);
        return;
    }
    adapter_reply_published(x, &v, existed, before);
}

/* ------------------------------------------------------------------------ manifest -- */

typedef struct {
    staging_manifest m;
    bool named[PART_ALL];
    int n_ignored;
    const char *ignored[FOLDER_FILES_MAX]; /* borrowed from the body */
    double ignored_bytes[FOLDER_FILES_MAX];
} manifest;

static bool bad_field(exchange *x, int i, const char *field, const char *what)
{
    char param[64];
    snprintf(param, sizeof(param), "files[%d].%s", i, field);
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "'%s' %s", param, what);
    return false;
}

/* False: answered. */
static bool take_manifest_file(exchange *x, manifest *mf, const cJSON *item, int i)
{
    static const char *const known[] = {"path", "bytes", "sha256", NULL};
    const char *path = NULL, *hex = NULL;
    int64_t bytes = -1;
    err e;
    uint8_t sha[DIGEST_BYTES];
    if (!cJSON_IsObject(item)) return bad_field(x, i, "path", "is missing");
    if (!api_only_fields(x, item, known)) return false;
    if (json_str(item, "path", &path, NULL, &e) || !path || !*path || strlen(path) > 255)
        return bad_field(x, i, "path", "must be a file's name");
    if (strchr(path, '/') || strchr(path, '\\') || path[0] == '.')
        return bad_field(x, i, "path", "must be a file's name without folders");
    if (json_int(item, "bytes", 0, INT64_C(1) << 50, &bytes, NULL, &e) || bytes < 0)
        return bad_field(x, i, "bytes", "must be the file's size");
    if (json_str(item, "sha256", &hex, NULL, &e) || !hex || !digest_from_hex(hex, sha))
        return bad_field(x, i, "sha256", "must be 64 lower-case hexadecimal digits");
    folder_part p = folder_part_of(path);
    if (p == PART_ALL || (p >= PART_COUNT && bytes == 0)) {
        if (folder_may_skip(path, &e)) {
            adapter_refuse(x, &e, "files");
            return false;
        }
        assert(mf->n_ignored < FOLDER_FILES_MAX);
        mf->ignored[mf->n_ignored] = path;
        mf->ignored_bytes[mf->n_ignored++] = (double)bytes;
        return true;
    }
    assert((unsigned)p < PART_ALL);
    if (mf->named[p]) return bad_field(x, i, "path", "is there twice");
    mf->named[p] = true;
    mf->m.bytes[p] = (uint64_t)bytes;
    memcpy(mf->m.sha[p], sha, DIGEST_BYTES);
    return true;
}

/* The files of an upload that comes in parts, with their sizes and digests. False: answered. */
static bool read_manifest(exchange *x, const cJSON *body, manifest *mf)
{
    static const char *const known[] = {"files", "description", "activate", NULL};
    const cJSON *item;
    bool activate = true;
    err e;
    if (!api_only_fields(x, body, known)) return false;
    const cJSON *files = json_get(body, "files");
    int n = cJSON_IsArray(files) ? cJSON_GetArraySize(files) : 0, i = 0;
    if (n < 1 || n > FOLDER_FILES_MAX) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "files",
                       "'files' must list 1 to %d files with path, bytes and sha256",
                       FOLDER_FILES_MAX);
        return false;
    }
    cJSON_ArrayForEach(item, files)
    {
        if (!take_manifest_file(x, mf, item, i++)) return false;
    }
    if (json_str(body, "description", &mf->m.description, NULL, &e) ||
        json_bool(body, "activate", &activate, NULL, &e)) {
        exchange_reply_err(x, &e, NULL);
        return false;
    }
    if (!adapter_activate(x, &activate)) return false;
    mf->m.activate = activate;
    for (int p = 0; p < PART_COUNT; p++) {
        if (mf->named[p]) continue;
        exchange_error(x, 422, "invalid_request_error", "adapter_invalid", "files",
                       "the manifest names no %s", folder_part_names[p]);
        return false;
    }
    return true;
}

/* -------------------------------------------------------------------------- shapes -- */

static void write_file(jsonw *w, folder_part p, const staged_file *f)
{
    assert((unsigned)p < PART_ALL && f->offset <= f->bytes);
    char hex[DIGEST_HEX];
    digest_hex(f->sha, hex);
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "path", folder_part_names[p]);
    jsonw_int(w, "bytes", (int64_t)f->bytes);
    jsonw_str(w, "sha256", hex);
    jsonw_int(w, "offset", (int64_t)f->offset);
    jsonw_str(w, "state",
              f->skipped              ? "skipped"
              : f->offset == f->bytes ? "complete"
              : f->offset > 0         ? "partial"
                                      : "missing");
    jsonw_bool(w, "busy", f->busy);
    jsonw_close(w, '}');
}

static void reply_upload(exchange *x, int status, const staged_upload *u, const manifest *mf)
{
    jsonw w;
    uint64_t total = 0, have = 0;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "adapter.upload");
    jsonw_str(&w, "id", u->id);
    jsonw_str(&w, "name", u->name);
    jsonw_str(&w, "state", "uploading");
    jsonw_str(&w, "description", u->has_description ? u->description : NULL);
    jsonw_bool(&w, "activate", u->activate);
    jsonw_open(&w, "files", '[');
    for (int p = 0; p < PART_ALL; p++) {
        if (u->file[p].bytes == 0) continue;
        write_file(&w, (folder_part)p, &u->file[p]);
        total += u->file[p].bytes;
        have += u->file[p].offset;
    }
    for (int i = 0; mf && i < mf->n_ignored; i++) {
        jsonw_open(&w, NULL, '{');
        jsonw_str(&w, "path", mf->ignored[i]);
        jsonw_int(&w, "bytes", (int64_t)mf->ignored_bytes[i]);
        jsonw_int(&w, "offset", (int64_t)mf->ignored_bytes[i]);
        jsonw_str(&w, "state", "ignored");
        jsonw_close(&w, '}');
    }
    jsonw_close(&w, ']');
    jsonw_int(&w, "bytes", (int64_t)total);
    jsonw_int(&w, "received", (int64_t)have);
    jsonw_int(&w, "expires_in", u->expires_in_us / 1000000);
    jsonw_close(&w, '}');
    exchange_add_header(x, "Location", "/v1/adapters/%s/versions/%s", u->name, u->id);
    exchange_reply_json(x, status, &w);
    jsonw_clear(&w);
}

static void add_offset(exchange *x, uint64_t offset)
{
    exchange_add_header(x, "Upload-Offset", "%llu", (unsigned long long)offset);
}

/* ------------------------------------------------------------------------ handlers -- */

static void begin_resumable(exchange *x, const cJSON *body)
{
    manifest mf = {.m = {.tenant_id = x->caller->tenant.id,
                         .name = x->param[0],
                         .quota = adapters_quota(x, &x->caller->tenant)}};
    staged_upload u;
    bool resumed;
    err e;
    if (!read_manifest(x, body, &mf)) return;
    if (staging_create(adapters_of(x->app)->staging, &mf.m, &u, &resumed, &e)) {
        if (e.code == ERR_INPUT)
            exchange_error(x, 400, "invalid_request_error", "invalid_value", "name", "%s", e.msg);
        else
            adapter_refuse(x, &e, NULL);
        return;
    }
    reply_upload(x, resumed ? 200 : 201, &u, &mf);
}

void uploads_begin(exchange *x)
{
    if (!adapter_need_tenant(x)) return;
    const char *type = exchange_header(x, "Content-Type");
    bool tar = type && strcasecmp(type, "application/x-tar") == 0;
    bool json = type && strncasecmp(type, "application/json", 16) == 0;
    if (!tar && !json) {
        exchange_error(x, 415, "invalid_request_error", "unsupported_media_type", NULL,
                       "send the adapter's folder as application/x-tar, or a list of its files as "
                       "application/json");
        return;
    }
    if (adapter_refuse_draining(x)) return;
    const cJSON *body;
    publish_options o;
    if (tar) {
        upload_tar(x);
    } else if (exchange_read_json(x, &body)) {
        if (!json_get(body, "source"))
            begin_resumable(x, body);
        else if (options_of(x, &o))
            adapter_from_source(x, body, &o);
    }
}

void uploads_get(exchange *x)
{
    staged_upload u;
    err e;
    if (!adapter_need_tenant(x)) return;
    if (staging_get(adapters_of(x->app)->staging, x->caller->tenant.id, x->param[0], x->param[1],
                    &u, &e)) {
        exchange_reply_err(x, &e, "version");
        return;
    }
    reply_upload(x, 200, &u, NULL);
}

static void refuse_busy(exchange *x, const err *e)
{
    exchange_add_header(x, "retry-after", "1");
    exchange_error(x, 409, "conflict_error", "upload_busy", NULL, "%s", e->msg);
}

void uploads_drop(exchange *x)
{
    err e;
    if (!adapter_need_tenant(x)) return;
    if (staging_drop(adapters_of(x->app)->staging, x->caller->tenant.id, x->param[0], x->param[1],
                     &e)) {
        if (e.code == ERR_BUSY)
            refuse_busy(x, &e);
        else
            exchange_reply_err(x, &e, "version");
        return;
    }
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "adapter.upload");
    jsonw_str(&w, "id", x->param[1]);
    jsonw_bool(&w, "deleted", true);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

/* The upload and the part that the path names; false: answered. */
static bool find_file(exchange *x, staged_upload *u, folder_part *p)
{
    err e;
    if (!adapter_need_tenant(x)) return false;
    if (staging_get(adapters_of(x->app)->staging, x->caller->tenant.id, x->param[0], x->param[1], u,
                    &e)) {
        exchange_reply_err(x, &e, "version");
        return false;
    }
    *p = folder_part_of(x->param[2]);
    if (*p != PART_ALL && u->file[*p].bytes > 0) return true;
    exchange_error(x, 404, "invalid_request_error", "not_found", "path",
                   "the upload has no file '%.80s'", x->param[2]);
    return false;
}

static bool incomplete(const staged_upload *u)
{
    bool some = false;
    for (int p = 0; p < PART_ALL; p++) some |= u->file[p].offset < u->file[p].bytes;
    return some;
}

static void reply_file(exchange *x, folder_part p, const staged_file *f)
{
    jsonw w;
    jsonw_init(&w);
    write_file(&w, p, f);
    add_offset(x, f->offset);
    exchange_add_header(x, "Upload-Length", "%llu", (unsigned long long)f->bytes);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

void uploads_file(exchange *x)
{
    staged_upload u;
    folder_part p;
    if (find_file(x, &u, &p)) reply_file(x, p, &u.file[p]);
}

typedef struct {
    exchange *x;
    staged_writer *w;
    err *e;
    err_code rc;
} file_target;

static bool take_file(void *arg, const void *data, size_t len)
{
    file_target *t = arg;
    t->rc = auth_still(t->x, false, t->e);
    if (!t->rc) t->rc = staging_write(t->w, data, len, t->e);
    return t->rc == ERR_NONE;
}

static void refuse_write(exchange *x, const err *e, uint64_t at)
{
    add_offset(x, at);
    if (e->code == ERR_BUSY)
        refuse_busy(x, e);
    else if (e->code == ERR_CONFLICT)
        exchange_error(x, 409, "conflict_error", "upload_offset_mismatch", "Upload-Offset", "%s",
                       e->msg);
    else if (e->code == ERR_CORRUPT)
        exchange_error(x, 422, "invalid_request_error", "checksum_mismatch", "path", "%s", e->msg);
    else
        exchange_reply_err(x, e, NULL);
}

/* offset -1: the whole file. */
static void write_file_body(exchange *x, int64_t offset)
{
    server *s = x->app;
    staged_upload u;
    folder_part p;
    uint64_t at = 0;
    err e, body_error;
    if (!find_file(x, &u, &p) || adapter_refuse_draining(x)) return;
    uint64_t room = u.file[p].bytes - (offset > 0 ? u.file[p].offset : 0);
    if (offset < 0 && x->content_length >= 0 && (uint64_t)x->content_length != u.file[p].bytes) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "Content-Length",
                       "%s has %llu bytes by the manifest; %lld are sent", folder_part_names[p],
                       (unsigned long long)u.file[p].bytes, (long long)x->content_length);
        return;
    }
    file_target t = {.x = x, .e = &e};
    if (staging_write_begin(adapters_of(s)->staging, x->caller->tenant.id, x->param[0], x->param[1],
                            p, offset, &t.w, &at, &e)) {
        refuse_write(x, &e, at);
        return;
    }
    err_code rc = exchange_stream_body(x, room, take_file, &t, &body_error);
    err end;
    err_code ended = staging_write_end(t.w, &at, &end);
    if (t.rc) {
        x->close_after = true;
        refuse_write(x, &e, at);
    } else if (rc) {
        add_offset(x, at);
        exchange_refuse_body(x, &body_error);
    } else if (ended) {
        refuse_write(x, &end, at);
    } else if (!staging_get(adapters_of(s)->staging, x->caller->tenant.id, x->param[0], x->param[1],
                            &u, &e)) {
        u.file[p].busy = false;
        reply_file(x, p, &u.file[p]);
    } else {
        exchange_reply_err(x, &e, "version");
    }
}

void uploads_put(exchange *x)
{
    write_file_body(x, -1);
}

void uploads_patch(exchange *x)
{
    const char *text = exchange_header(x, "Upload-Offset");
    size_t n = text ? strlen(text) : 0;
    if (n < 1 || n > 18 || strspn(text, "0123456789") != n) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "Upload-Offset",
                       "PATCH needs the header Upload-Offset: the byte at which the body begins");
        return;
    }
    write_file_body(x, strtoll(text, NULL, 10));
}

void uploads_commit(exchange *x)
{
    server *s = x->app;
    publish_options o;
    adapter_version v;
    folder_part bad;
    bool existed = false;
    err e;
    if (!adapter_need_tenant(x) || adapter_refuse_draining(x) || !options_of(x, &o)) return;
    uint64_t before = adapter_default_id(x, x->param[0]);
    err_code rc =
        staging_commit(adapters_of(s)->staging, x->param[1], &o,
                       exchange_query(x, "activate") ? &o.activate : NULL, &v, &existed, &bad, &e);
    staged_upload u;
    if (!rc) {
        adapter_reply_published(x, &v, existed, before);
    } else if (rc == ERR_BUSY) {
        refuse_busy(x, &e);
    } else if (bad != PART_ALL) {
        exchange_error(x, 422, "invalid_request_error", "checksum_mismatch", "path", "%s", e.msg);
    } else if (rc == ERR_CONFLICT &&
               !staging_get(adapters_of(s)->staging, x->caller->tenant.id, x->param[0], x->param[1],
                            &u, NULL) &&
               incomplete(&u)) {
        exchange_error(x, 409, "conflict_error", "upload_incomplete", NULL, "%s", e.msg);
    } else {
        adapter_refuse(x, &e, rc == ERR_STALE ? "If-Match" : NULL);
    }
}
