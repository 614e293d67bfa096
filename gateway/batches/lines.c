/* lines.c -- the input of a batch: where its lines begin, what a line asks for, and what is
 * wrong with it.
 *
 * Opening the file reads it once in pieces and records position and length of each line that is
 * not blank: 16 bytes of memory for each line, not the text. A line is read and parsed again
 * when it runs.
 *
 * batch_lines_check() parses every line before the batch begins, as OpenAI does: at most
 * ERRORS_MAX errors are listed with their line numbers. Duplicate custom_ids are found by a set
 * of 64-bit prefixes of SHA-256 digests (open addressing, at most half full), so the ids
 * themselves need no memory; a false match has a probability of n^2 / 2^65.
 *
 * Errors of the disk (ERR_IO, ERR_CORRUPT) are returned, errors of the user's lines are
 * collected.
 */
#include "gateway/batches/lines.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/http/jsonw.h"
#include "storage/digest.h"

enum {
    PIECE_BYTES = 1 << 18,
    BESIDE_BYTES = 4096, /* of a line beside its body */
    ERRORS_MAX = 100,
};

/* --------------------------------------------------------------------------- places -- */

typedef struct reader {
    batch_lines *l;
    int max_lines, cap;
    int64_t begin; /* of the line that is being read */
    bool blank;    /* so far */
} reader;

static err_code end_line(reader *r, int64_t end, err *e)
{
    batch_lines *l = r->l;
    int64_t len = end - r->begin;
    assert(len >= 0 && l->n <= r->max_lines);
    if (r->blank) return ERR_NONE;
    if (len > INT32_MAX) return err_set(e, ERR_LIMIT, "a line is longer than 2 GiB");
    if (l->n == r->max_lines)
        return err_set(e, ERR_LIMIT, "the file has more than %d lines", r->max_lines);
    if (l->n == r->cap) {
        int cap = r->cap ? 2 * r->cap : 1024;
        void *more = realloc(l->place, (size_t)cap * sizeof(*l->place));
        if (!more) return err_set(e, ERR_NOMEM, "out of memory");
        l->place = more;
        r->cap = cap;
    }
    l->place[l->n++] = (struct batch_line_place){r->begin, (int32_t)len};
    return ERR_NONE;
}

static err_code take_piece(reader *r, const char *s, int64_t at, ssize_t len, err *e)
{
    err_code rc = ERR_NONE;
    for (ssize_t i = 0; !rc && i < len; i++) {
        if (s[i] == '\n') {
            rc = end_line(r, at + i, e);
            r->begin = at + i + 1;
            r->blank = true;
        } else if (!strchr(" \t\r", s[i]) || !s[i]) {
            r->blank = false;
        }
    }
    return rc;
}

static err_code find_places(reader *r, err *e)
{
    char *piece = malloc(PIECE_BYTES);
    err_code rc = piece ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    int64_t at = 0, all = r->l->file.n_bytes;
    while (!rc && at < all) {
        size_t n = all - at < PIECE_BYTES ? (size_t)(all - at) : PIECE_BYTES;
        rc = sealed_file_read(&r->l->file, piece, n, at, e);
        if (!rc) rc = take_piece(r, piece, at, (ssize_t)n, e);
        at += (int64_t)n;
    }
    if (!rc) rc = end_line(r, at, e); /* one without an end */
    free(piece);
    return rc;
}

err_code batch_lines_open(batch_lines *l, sealed_file *f, int max_lines, err *e)
{
    *l = (batch_lines){.file = *f};
    *f = (sealed_file){0};
    reader r = {.l = l, .max_lines = max_lines, .blank = true};
    err_code rc = l->file.torn ? err_set(e, ERR_CORRUPT, "the file is damaged: its end is torn")
                               : find_places(&r, e);
    if (rc) batch_lines_close(l);
    return rc;
}

void batch_lines_close(batch_lines *l)
{
    sealed_file_close(&l->file);
    free(l->place);
    *l = (batch_lines){0};
}

/* ----------------------------------------------------------------------------- a line -- */

static err_code read_text(const batch_lines *l, int i, char **out, err *e)
{
    assert(i >= 0 && i < l->n);
    size_t len = (size_t)l->place[i].len;
    *out = malloc(len + 1);
    if (!*out) return err_set(e, ERR_NOMEM, "out of memory");
    (*out)[len] = 0;
    err_code rc = sealed_file_read(&l->file, *out, len, l->place[i].at, e);
    if (!rc) return rc;
    free(*out);
    *out = NULL;
    return rc;
}

/* The line as a tree.  ERR_INPUT, ERR_LIMIT: it is none. */
static err_code parse(const batch_lines *l, int i, int64_t max_body, cJSON **tree, err *e)
{
    char *text;
    json_limits lim = json_limits_request;
    lim.max_bytes = (size_t)max_body + BESIDE_BYTES;
    lim.max_depth++;
    *tree = NULL;
    if ((size_t)l->place[i].len > lim.max_bytes)
        return err_set(e, ERR_LIMIT, "the line is longer than %zu bytes", lim.max_bytes);
    err_code rc = read_text(l, i, &text, e);
    if (!rc) rc = json_parse(text, (size_t)l->place[i].len, &lim, tree, e);
    free(text);
    return rc;
}

err_code batch_line_read(const batch_lines *l, int i, int64_t max_body, batch_line *out, err *e)
{
    err_code rc = parse(l, i, max_body, &out->tree, e);
    if (rc) return rc;
    const cJSON *id = json_get(out->tree, "custom_id");
    out->custom_id = cJSON_IsString(id) ? id->valuestring : "";
    out->body = json_get(out->tree, "body");
    return ERR_NONE;
}

void batch_line_clear(batch_line *line)
{
    cJSON_Delete(line->tree);
    *line = (batch_line){0};
}

/* ---------------------------------------------------------------------------- the check -- */

typedef struct checker {
    const char *endpoint;
    uint64_t *seen; /* digests of ids, by open addressing; 0: free */
    size_t n_seen;  /* a power of two, more than twice the lines */
    jsonw w;
    int n_errors;
} checker;

static void begin_errors(jsonw *w)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "list");
    jsonw_open(w, "data", '[');
}

static void add_error(jsonw *w, const char *code, const char *param, int line, const char *msg)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "code", code);
    jsonw_str(w, "message", msg);
    jsonw_str(w, "param", param);
    if (line)
        jsonw_int(w, "line", line);
    else
        jsonw_null(w, "line");
    jsonw_close(w, '}');
}

char *batch_lines_error(const char *code, const char *msg)
{
    jsonw w;
    jsonw_init(&w);
    begin_errors(&w);
    add_error(&w, code, NULL, 0, msg);
    jsonw_close(&w, ']');
    jsonw_close(&w, '}');
    if (!w.failed) return w.text;
    jsonw_clear(&w);
    return NULL;
}

static void refuse(checker *c, int line, const char *code, const char *param, const char *msg)
{
    if (c->n_errors++ < ERRORS_MAX) add_error(&c->w, code, param, line + 1, msg);
}

/* Seen before? */
static bool is_known(checker *c, const char *id)
{
    assert(c->n_seen > 0 && (c->n_seen & (c->n_seen - 1)) == 0);
    unsigned char digest[DIGEST_BYTES];
    uint64_t key;
    digest_bytes(id, strlen(id), digest);
    memcpy(&key, digest, sizeof(key));
    key |= !key;
    size_t i = key & (c->n_seen - 1);
    while (c->seen[i] && c->seen[i] != key) i = (i + 1) & (c->n_seen - 1);
    bool known = c->seen[i] == key;
    c->seen[i] = key;
    return known;
}

static void check_body(checker *c, int i, const cJSON *body)
{
    const cJSON *model = cJSON_IsObject(body) ? json_get(body, "model") : NULL;
    const cJSON *stream = cJSON_IsObject(body) ? json_get(body, "stream") : NULL;
    if (!cJSON_IsObject(body)) {
        refuse(c, i, "invalid_request", "body", "'body' must be an object");
        return;
    }
    if (!cJSON_IsString(model) || !model->valuestring[0])
        refuse(c, i, "missing_required_parameter", "body.model", "'body.model' must name a model");
    if (stream && !cJSON_IsNull(stream) && !cJSON_IsFalse(stream))
        refuse(c, i, "invalid_request", "body.stream",
               "'body.stream' must be false: a batch's answers are not streamed");
}

static void check_line(checker *c, int i, const cJSON *line)
{
    if (!cJSON_IsObject(line)) {
        refuse(c, i, "invalid_json_line", NULL, "the line must be a JSON object");
        return;
    }
    const cJSON *id = json_get(line, "custom_id"), *method = json_get(line, "method");
    const cJSON *url = json_get(line, "url");
    size_t len = cJSON_IsString(id) ? strlen(id->valuestring) : 0;
    if (len < 1 || len > BATCH_CUSTOM_ID_MAX)
        refuse(c, i, "missing_required_parameter", "custom_id",
               "'custom_id' must be a string of 1 to 256 bytes");
    else if (is_known(c, id->valuestring))
        refuse(c, i, "duplicate_custom_id", "custom_id",
               "The custom_id of this line is that of an earlier one.");
    if (!cJSON_IsString(method) || strcmp(method->valuestring, "POST") != 0)
        refuse(c, i, "invalid_method", "method", "'method' must be \"POST\"");
    if (!cJSON_IsString(url) || strcmp(url->valuestring, c->endpoint) != 0)
        refuse(c, i, "invalid_url", "url",
               "The URL of this line does not match the batch's endpoint.");
    check_body(c, i, json_get(line, "body"));
}

static err_code check_all(checker *c, const batch_lines *l, int64_t max_body, err *e)
{
    for (int i = 0; i < l->n; i++) {
        cJSON *tree;
        err why;
        err_code rc = parse(l, i, max_body, &tree, &why);
        if (rc == ERR_IO || rc == ERR_CORRUPT || rc == ERR_NOMEM) {
            *e = why;
            return rc;
        }
        if (rc)
            refuse(c, i, "invalid_json_line", NULL, why.msg);
        else
            check_line(c, i, tree);
        cJSON_Delete(tree);
    }
    return ERR_NONE;
}

err_code batch_lines_check(const batch_lines *l, const char *endpoint, int64_t max_body,
                           char **errors, err *e)
{
    checker c = {.endpoint = endpoint, .n_seen = 16};
    *errors = NULL;
    if (l->n == 0) {
        *errors = batch_lines_error("empty_file", "The input file has no lines.");
        return *errors ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    }
    while (c.n_seen <= 2 * (size_t)l->n) c.n_seen *= 2;
    c.seen = calloc(c.n_seen, sizeof(*c.seen));
    if (!c.seen) return err_set(e, ERR_NOMEM, "out of memory");
    jsonw_init(&c.w);
    begin_errors(&c.w);
    err_code rc = check_all(&c, l, max_body, e);
    jsonw_close(&c.w, ']');
    jsonw_close(&c.w, '}');
    if (!rc && c.w.failed) rc = err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && c.n_errors) {
        *errors = c.w.text;
        c.w.text = NULL;
    }
    jsonw_clear(&c.w);
    free(c.seen);
    return rc;
}
