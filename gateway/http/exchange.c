/* exchange.c -- one request and its answer: reads the body, writes the answer's head and body.
 *
 * Body: exchange_stream_body() passes pieces to a callback.  next_piece() takes them from
 * civetweb's buffer, without chunked framing (chunks.h).  A long body of known length is read in
 * pieces of 256 KiB into a buffer of its own.  TLS may then read ahead, but not near the body's
 * end, because those bytes would belong to the next request.  The deadline grows with the length by
 * 64 KiB/s, so a slow client is cut and a large upload is not.
 *
 * Answer: exchange_reply() writes head and body with one call.  A stream writes a head, then
 * pieces, in chunks for HTTP/1.1; HTTP/1.0 ends it by closing, HTTP/2 frames it elsewhere
 * (gateway/net/h2.c).  An unread body or a shutdown closes the connection after the answer.
 *
 * Memory: if an allocation failed, a success would be incomplete, so it becomes 503
 * `out_of_memory`.  Errors are built on the stack and need no memory.
 *
 * x->inner: a request of the server itself (a cascade, a batch line).  It has no connection: its
 * answer goes to the caller's buffer or callback.
 */
#include "gateway/http/exchange.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <civetweb.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "gateway/http/connection.h"
#include "gateway/http/host.h"
#include "gateway/http/http_status.h"
#include "gateway/http/inner.h"

enum {
    SLOWEST_BYTES = 65536, /* a second, of a body after its first body_timeout, or of an answer */
    ANSWER_US = 30 * 1000000, /* for the client to take an answer */
    SMALL_BYTES = 6144,       /* an answer up to this needs no memory, an error never has more */
    MESSAGE_BYTES = 512,
    STARVED_RETRY_MS = 1000,
    WIDE_BYTES = 256 << 10, /* of a piece of a long body */
    WIDE_LEAST = 2 * WIDE_BYTES,
    AWAY_RETRY_MS = 2000, /* a disk, the fleet's database, another node's files */
};

/* ------------------------------------------------------------------- request -- */

const char *exchange_header(const exchange *x, const char *name)
{
    return x->conn ? mg_get_header(x->conn, name) : NULL;
}

const char *exchange_query(exchange *x, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = x->query; p && *p;) {
        size_t len = strcspn(p, "&");
        if (len > n && strncmp(p, name, n) == 0 && p[n] == '=') {
            char *out = arena_alloc(&x->arena, len + 1);
            if (!out) return NULL;
            int got = mg_url_decode(p + n + 1, (int)(len - n - 1), out, (int)len + 1, 1);
            return got < 0 || strlen(out) != (size_t)got ? NULL : out; /* no NUL inside */
        }
        p += len;
        if (*p == '&') p++;
    }
    return NULL;
}

static bool has_body(const exchange *x)
{
    return x->body.chunked || x->content_length > 0;
}

static bool is_utf8_json(const char *type)
{
    if (!type || strncasecmp(type, "application/json", 16) != 0) return false;
    const char *p = type + 16;
    while (*p == ' ') p++;
    if (!*p) return true;
    if (*p != ';') return false;
    const char *charset = strcasestr(p, "charset=");
    if (!charset) return true;
    charset += 8;
    if (*charset == '"') charset++;
    return strncasecmp(charset, "utf-8", 5) == 0;
}

static void invite(exchange *x)
{
    const char *expect = exchange_header(x, "Expect");
    if (!x->http10 && expect && strcasecmp(expect, "100-continue") == 0) {
        (void)connection_write(x->conn, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
}

/* Reads framing up to data: the bytes used, of n; below 0: *rc has the reason. */
static int skip_framing(exchange *x, const char *bytes, int n, uint64_t max, bool *whole,
                        err_code *rc, err *e)
{
    assert(x->body.bytes <= max);
    size_t used;
    chunks_state state = chunks_read(&x->body.chunks, bytes, (size_t)n, &used);
    mg_take(x->conn, (int)used);
    *whole = state == CHUNKS_END;
    if (state == CHUNKS_BROKEN) {
        *rc = err_set(e, ERR_INPUT, "the body's framing in chunks is broken");
        return -1;
    }
    if (x->body.chunks.left > max - x->body.bytes) { /* before it comes */
        *rc = err_set(e, ERR_LIMIT, "the body has more than %llu bytes", (unsigned long long)max);
        return -1;
    }
    return (int)used;
}

/* From now on the body is read in large pieces, which save system calls.  Its length is known, and
 * civetweb's buffer is empty. */
static void widen(exchange *x, uint64_t left)
{
    if (left < WIDE_LEAST || connection_socket() < 0) return;
    x->body.wide = malloc(WIDE_BYTES);
    x->body.ahead = x->body.wide != NULL;
    if (x->body.ahead) connection_ahead(true);
}

static void narrow(exchange *x)
{
    if (x->body.ahead) connection_ahead(false);
    x->body.ahead = false;
    free(x->body.wide);
    x->body.wide = NULL;
}

/* A piece of a long body.  TLS must read ahead only bytes of this body: the next request's parser
 * would not find others. */
static int wide_piece(exchange *x, uint64_t left, const char **piece)
{
    if (x->body.ahead && left < WIDE_BYTES + CONNECTION_AHEAD) {
        connection_ahead(false);
        x->body.ahead = false;
    }
    *piece = x->body.wide;
    return connection_read(x->conn, x->body.wide, left < WIDE_BYTES ? (int)left : WIDE_BYTES);
}

/* The next bytes of the body: how many; 0: it is whole; below 0: none, for
 * which *rc has the reason. */
static int next_piece(exchange *x, uint64_t max, int64_t end_us, const char **piece, err_code *rc,
                      err *e)
{
    assert(x->body.chunked ||
           (x->content_length >= 0 && x->body.bytes <= (uint64_t)x->content_length));
    uint64_t left = x->body.chunked ? 0 : (uint64_t)x->content_length - x->body.bytes;
    for (int framing = 0; x->body.chunked || left > 0;) {
        int n = x->body.wide ? wide_piece(x, left, piece) : mg_fill(x->conn, piece);
        if (n <= 0) {
            bool late = n == 0 || clock_now_us() >= end_us;
            *rc = late ? err_set(e, ERR_TIMEOUT, "the body did not arrive in time")
                       : err_set(e, ERR_INPUT, "the body ended early");
            return -1;
        }
        if (x->body.chunked) {
            bool whole;
            framing = skip_framing(x, *piece, n, max, &whole, rc, e);
            if (framing < 0 || whole) return whole ? 0 : -1;
            left = x->body.chunks.left;
        }
        *piece += framing;
        n -= framing;
        if ((uint64_t)n > left) n = (int)left;
        if (n == 0) continue; /* all was framing */
        if (!x->body.wide) mg_take(x->conn, n);
        if (x->body.chunked) chunks_took(&x->body.chunks, (size_t)n);
        x->body.bytes += (uint64_t)n;
        if (!x->body.wide && !x->body.chunked) widen(x, left - (uint64_t)n);
        return n;
    }
    return 0;
}

/* The deadline of the body.  It grows with the length, or with the bytes so far where the length is
 * unknown, by 64 KiB/s. */
static int64_t body_end_us(const exchange *x, int64_t begun_us)
{
    int64_t bytes = x->body.chunked ? (int64_t)x->body.bytes : x->content_length;
    return begun_us + x->host->body_timeout_us + bytes * 1000000 / SLOWEST_BYTES;
}

err_code exchange_stream_body(exchange *x, uint64_t max,
                              bool (*fn)(void *arg, const void *data, size_t len), void *arg,
                              err *e)
{
    if (!has_body(x)) return ERR_NONE;
    if (x->content_length > 0 && (uint64_t)x->content_length > max) {
        return err_set(e, ERR_LIMIT, "the body has %lld bytes, the limit is %llu",
                       (long long)x->content_length, (unsigned long long)max);
    }
    int64_t begun_us = clock_now_us();
    err_code rc = ERR_NONE;
    invite(x);
    for (int n = 1; !rc && n > 0;) {
        const char *piece;
        int64_t end_us = body_end_us(x, begun_us);
        connection_deadline(end_us, false);
        n = next_piece(x, max, end_us, &piece, &rc, e);
        if (n <= 0) break;
        if (!fn(arg, piece, (size_t)n)) rc = err_set(e, ERR_CANCELLED, "the body was refused");
    }
    narrow(x);
    connection_deadline(0, false);
    x->body.read = rc == ERR_NONE;
    return rc;
}

typedef struct {
    exchange *x;
    char *text;
    size_t len, cap, max;
} body_buffer;

static bool append_body(void *arg, const void *data, size_t len)
{
    body_buffer *b = arg;
    if (b->cap - b->len <= len) {
        size_t cap = b->cap ? 2 * b->cap : 4096;
        while (cap - b->len <= len) cap *= 2;
        char *p = arena_alloc(&b->x->arena, cap);
        if (!p) return false;
        if (b->len) memcpy(p, b->text, b->len);
        b->text = p;
        b->cap = cap;
    }
    memcpy(b->text + b->len, data, len);
    b->len += len;
    b->text[b->len] = 0;
    return true;
}

bool exchange_read_body(exchange *x, size_t max, const char **text, size_t *len)
{
    err e;
    body_buffer b = {.x = x, .max = max};
    if (x->content_length > 0 && (uint64_t)x->content_length <= max) {
        b.cap = (size_t)x->content_length + 1;
        b.text = arena_alloc(&x->arena, b.cap);
        if (!b.text) b.cap = 0;
    }
    err_code rc = exchange_stream_body(x, max, append_body, &b, &e);
    *text = b.text ? b.text : "";
    *len = b.len;
    if (!rc) return true;
    x->close_after = true;
    switch (rc) {
    case ERR_LIMIT:
        exchange_error(x, 413, "invalid_request_error", "request_too_large", NULL, "%s", e.msg);
        break;
    case ERR_TIMEOUT:
        exchange_error(x, 408, "timeout_error", "request_timeout", NULL, "%s", e.msg);
        break;
    case ERR_INPUT:
        exchange_error(x, 400, "invalid_request_error", "bad_request", NULL, "%s", e.msg);
        break;
    default: exchange_reply_err(x, &e, NULL);
    }
    return false;
}

bool exchange_read_json(exchange *x, const cJSON **tree)
{
    const char *t;
    size_t n;
    err e;
    *tree = x->inner ? x->inner->body : x->tree;
    if (x->inner || x->tree) return true;
    if (!is_utf8_json(exchange_header(x, "Content-Type"))) {
        exchange_error(x, 415, "invalid_request_error", "unsupported_media_type", NULL,
                       "Content-Type must be application/json, in UTF-8");
        return false;
    }
    if (!exchange_read_body(x, (size_t)x->host->max_body_bytes, &t, &n)) return false;
    err_code rc = json_parse(t, n, &json_limits_request, &x->tree, &e);
    if (rc == ERR_NOMEM) {
        exchange_starved(x);
        return false;
    }
    if (rc) {
        exchange_error(x, 400, "invalid_request_error", "invalid_json", NULL, "%s", e.msg);
        return false;
    }
    *tree = x->tree;
    return true;
}

bool exchange_client_gone(exchange *x)
{
    (void)x;
    int fd = connection_socket();
    if (fd < 0) return false;
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    if (poll(&p, 1, 0) <= 0) return false;
    return (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

/* -------------------------------------------------------------------- headers -- */

void exchange_add_header(exchange *x, const char *name, const char *fmt, ...)
{
    assert(!strpbrk(name, ":\r\n") && x->headers_len < sizeof(x->headers));
    char value[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof(value), fmt, ap);
    va_end(ap);
    for (char *p = value; *p; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f) *p = '?';
    }
    size_t room = sizeof(x->headers) - x->headers_len;
    int n = snprintf(x->headers + x->headers_len, room, "%s: %s\r\n", name, value);
    if (n > 0 && (size_t)n < room)
        x->headers_len += (size_t)n;
    else
        x->headers[x->headers_len] = 0; /* no room: left out whole */
}

exchange_mark exchange_get_mark(const exchange *x)
{
    return (exchange_mark){x->headers_len, strlen(x->ignored), x->n_notes};
}

void exchange_rewind(exchange *x, const exchange_mark *to)
{
    assert(!x->answered && to->headers <= x->headers_len && to->notes <= x->n_notes);
    x->headers_len = to->headers;
    x->headers[to->headers] = 0;
    x->ignored[to->ignored] = 0;
    x->n_notes = to->notes;
}

void exchange_ignored_param(exchange *x, const char *name)
{
    size_t n = strlen(x->ignored);
    snprintf(x->ignored + n, sizeof(x->ignored) - n, "%s%.60s", n ? "," : "", name);
}

void exchange_retry_after(exchange *x, int64_t ms)
{
    if (ms < 1) ms = 1;
    if (x->inner) x->inner->retry_ms = ms;
    exchange_add_header(x, "retry-after", "%lld", (long long)((ms + 999) / 1000));
    exchange_add_header(x, "retry-after-ms", "%lld", (long long)ms);
}

/* Status line and all headers; returns the length.  HTTP/2 leaves out what is about the connection
 * (gateway/net/h2.c). */
static int write_head(exchange *x, char *out, size_t cap, int status, const char *type,
                      const char *framing)
{
    if (x->ignored[0]) {
        exchange_add_header(x, "x-ignored-params", "%s", x->ignored);
        x->ignored[0] = 0;
    }
    if (!x->body.read && has_body(x)) x->close_after = true;
    if (atomic_load(&x->host->draining)) x->close_after = true;
    x->status = status;
    x->answered = true;
    char date[HTTP_DATE_BYTES], kind[128] = "";
    http_date(date);
    if (type) snprintf(kind, sizeof(kind), "Content-Type: %s\r\n", type);
    return snprintf(out, cap,
                    "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%s"
                    "x-request-id: %s\r\nCache-Control: no-store\r\n"
                    "X-Content-Type-Options: nosniff\r\n%s%s\r\n",
                    status, http_reason(status), date, kind, framing, x->request_id, x->headers,
                    x->close_after ? "Connection: close\r\n" : "Connection: keep-alive\r\n");
}

/* -------------------------------------------------------------------- answers -- */

static void reply_within(exchange *x, int status, const char *body, size_t len)
{
    x->answered = true;
    x->status = status;
    x->sent_bytes = len;
    bool partial = x->arena.starved && status < 400; /* what there is may be incomplete */
    if (partial || !inner_take(x->inner, status, body, len)) exchange_drop(x);
}

void exchange_reply(exchange *x, int status, const char *type, const char *body, size_t len)
{
    assert(status >= 200 && status < 600 && (body || len == 0));
    if (x->answered) return;
    if (x->inner) {
        reply_within(x, status, body, len);
        return;
    }
    char framing[64];
    bool head_only = strcmp(x->method, "HEAD") == 0;
    snprintf(framing, sizeof(framing), "Content-Length: %zu\r\n", len);
    char small[EXCHANGE_HEADERS_MAX + 1024 + SMALL_BYTES];
    size_t cap = EXCHANGE_HEADERS_MAX + 1024 + len;
    char *all = cap <= sizeof(small) ? small : malloc(cap);
    if (x->arena.starved && status < 400) {
        if (all != small) free(all);
        exchange_starved(x);
        return;
    }
    bool apart = !all && !head_only; /* no memory to send both in one piece */
    if (!all) all = small;
    int n = write_head(x, all, sizeof(small), status, type, framing);
    if (!head_only && !apart && len) {
        memcpy(all + n, body, len);
        n += (int)len;
    }
    connection_deadline(clock_now_us() + ANSWER_US + (int64_t)len * 1000000 / SLOWEST_BYTES, true);
    bool ok = connection_write(x->conn, all, (size_t)n) == n;
    if (ok && apart) ok = connection_write(x->conn, body, len) == (int)len;
    if (!ok) exchange_drop(x);
    connection_deadline(0, false);
    x->sent_bytes = (uint64_t)n + (apart ? len : 0);
    if (x->plane == PLANE_ADMIN) explicit_bzero(all, (size_t)n); /* possibly a new key */
    if (all != small) free(all);
}

void exchange_reply_json(exchange *x, int status, const jsonw *w)
{
    if (w->failed || !w->text) {
        exchange_starved(x);
        return;
    }
    exchange_reply(x, status, "application/json", w->text, w->len);
}

const char *exchange_error_kind(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
    }
}

static void write_typed(const exchange *x, jsonw *w, int status, const char *msg)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "type", "error");
    jsonw_open(w, "error", '{');
    jsonw_str(w, "type", exchange_error_kind(status));
    jsonw_str(w, "message", msg);
    jsonw_close(w, '}');
    jsonw_str(w, "request_id", x->request_id);
    jsonw_close(w, '}');
}

/* Uses only the stack: an error must be reported when there is no memory. */
static void reply_error(exchange *x, int status, const char *type, const char *code,
                        const char *param, const char *msg)
{
    assert(status >= 400 && status < 600);
    char text[SMALL_BYTES];
    const char *dropped = http_dropped_reason(status, code);
    if (dropped) exchange_add_header(x, "x-llm-d-request-dropped-reason", "%s", dropped);
    jsonw w;
    jsonw_init_fixed(&w, text, sizeof(text));
    if (x->errors_typed) {
        write_typed(x, &w, status, msg);
        assert(!w.failed);
        exchange_reply(x, status, "application/json", w.text, w.len);
        return;
    }
    jsonw_open(&w, NULL, '{');
    jsonw_open(&w, "error", '{');
    jsonw_str(&w, "message", msg);
    jsonw_str(&w, "type", type);
    jsonw_str(&w, "param", param);
    jsonw_str(&w, "code", code);
    jsonw_close(&w, '}');
    jsonw_close(&w, '}');
    assert(!w.failed); /* MESSAGE_BYTES escaped, and constant names */
    exchange_reply(x, status, "application/json", w.text, w.len);
}

void exchange_starved(exchange *x)
{
    exchange_retry_after(x, STARVED_RETRY_MS);
    reply_error(x, 503, "overloaded_error", "out_of_memory", NULL, "out of memory, try again");
}

void exchange_error(exchange *x, int status, const char *type, const char *code, const char *param,
                    const char *fmt, ...)
{
    if (memory_failures() != x->memory_failures && status != 503) {
        exchange_starved(x);
        return;
    }
    char msg[MESSAGE_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    /* A sentence cut in the middle of a character would be invalid JSON. */
    for (size_t i = 0, used, n = strlen(msg); i < n; i += used) {
        if (utf8_decode(msg + i, n - i, &used) == 0xFFFD) memset(msg + i, '?', used);
    }
    if (status == 401) exchange_add_header(x, "WWW-Authenticate", "Bearer");
    if (status == 409) exchange_add_header(x, "x-should-retry", "false");
    reply_error(x, status, type, code, param, msg);
}

void exchange_reply_err(exchange *x, const err *e, const char *param)
{
    if (e->code == ERR_NOMEM) {
        exchange_starved(x);
        return;
    }
    const http_status *h = http_status_of(e->code);
    if (e->code == ERR_IO || e->code == ERR_ELSEWHERE) exchange_retry_after(x, AWAY_RETRY_MS);
    exchange_error(x, h->status, h->type, h->code, param, "%s", e->msg);
}

void exchange_refuse_body(exchange *x, const err *e)
{
    x->close_after = true;
    if (e->code == ERR_TIMEOUT)
        exchange_error(x, 408, "timeout_error", "request_timeout", NULL, "%s", e->msg);
    else
        exchange_reply_err(x, e, NULL);
}

/* Whether the pieces of a stream are sent as they are. */
static bool is_bare(const exchange *x)
{
    return x->http10 || (x->conn && connection_is_stream());
}

bool exchange_stream_begin(exchange *x, const char *type)
{
    assert(!x->answered || x->status == 499); /* an answer is begun once */
    char head[EXCHANGE_HEADERS_MAX + 1024];
    if (x->inner) {
        x->answered = x->streaming = x->inner->hear != NULL;
        x->status = 200;
        if (!x->streaming) exchange_drop(x); /* the caller can't read a stream */
        return x->streaming;
    }
    exchange_add_header(x, "X-Accel-Buffering", "no");
    if (x->http10) x->close_after = true; /* which ends the answer: HTTP/1.0 knows no chunks */
    int n = write_head(x, head, sizeof(head), 200, type,
                       is_bare(x) ? "" : "Transfer-Encoding: chunked\r\n");
    x->streaming = true;
    connection_deadline(clock_now_us() + ANSWER_US, true);
    bool ok = connection_write(x->conn, head, (size_t)n) == n;
    connection_deadline(0, false);
    x->sent_bytes = (uint64_t)n;
    if (!ok) exchange_drop(x);
    return ok;
}

bool exchange_stream_write(exchange *x, const char *data, size_t len)
{
    if (!x->streaming || len == 0) return x->streaming;
    assert(x->answered && data);
    if (x->inner) {
        x->sent_bytes += len;
        if (!x->inner->hear(x->inner->listener, data, len)) exchange_drop(x);
        return x->streaming;
    }
    char stack[4096], *buf = len + 32 <= sizeof(stack) ? stack : malloc(len + 32);
    if (!buf) {
        size_t some = sizeof(stack) - 32;
        return exchange_stream_write(x, data, some) &&
               exchange_stream_write(x, data + some, len - some);
    }
    bool bare = is_bare(x);
    int n = bare ? 0 : snprintf(buf, 32, "%zx\r\n", len);
    memcpy(buf + n, data, len);
    if (!bare) memcpy(buf + n + len, "\r\n", 2);
    size_t total = (size_t)n + len + (bare ? 0 : 2);
    connection_deadline(clock_now_us() + ANSWER_US, true);
    bool ok = connection_write(x->conn, buf, total) == (int)total;
    connection_deadline(0, false);
    if (buf != stack) free(buf);
    x->sent_bytes += total;
    if (!ok) exchange_drop(x);
    return ok;
}

void exchange_stream_end(exchange *x)
{
    if (!x->streaming) return;
    x->streaming = false;
    if (x->inner) x->inner->status = 200;
    if (!x->inner && !is_bare(x) && connection_write(x->conn, "0\r\n\r\n", 5) != 5)
        exchange_drop(x);
}

void exchange_drop(exchange *x)
{
    x->streaming = false;
    x->close_after = x->answered = true;
    x->status = 499;
    if (!x->conn) return;
    connection_cut();
    mg_disable_connection_keep_alive(x->conn);
}

void exchange_finish(exchange *x)
{
    if (!x->answered) {
        exchange_error(x, 500, "server_error", "internal_error", NULL, "no answer was made");
    }
    if (x->streaming) exchange_drop(x); /* cut: the client sees a broken stream, not a whole one */
    if (x->close_after && x->conn) mg_disable_connection_keep_alive(x->conn);
}
