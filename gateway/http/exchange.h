/* exchange.h -- one HTTP request and its answer, on one civetweb worker.
 *
 * Hides civetweb from the handlers: they read a body, look at the key and the path, and
 * answer once.  Every answer carries x-request-id; errors have OpenAI's shape.  An
 * answer leaves in one write.
 *
 * Ownership: lives on the worker's stack for one request; the arena and the JSON tree are freed at
 *            its end.  Threads: its worker.
 */
#ifndef GATEWAY_HTTP_EXCHANGE_H
#define GATEWAY_HTTP_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/arena.h"
#include "engine/base/err.h"
#include "gateway/http/chunks.h"
#include "gateway/http/jsonw.h"
#include "gateway/http/networks.h"
#include "gateway/http/trace.h"

struct mg_connection;
struct http_host;
struct inner_request;
struct caller;
struct config;

enum {
    EXCHANGE_ARENA_BYTES = 32 << 20,
    EXCHANGE_PARAM_MAX = 4,
    EXCHANGE_HEADERS_MAX = 4096,
    EXCHANGE_NOTES_MAX = 16,
};

typedef enum { PLANE_INFERENCE, PLANE_ADMIN, PLANE_METRICS } plane;

/* How far the request's body has been read. */
typedef struct exchange_body {
    bool chunked;
    chunks chunks;  /* of a chunked body */
    uint64_t bytes; /* taken so far, without framing */
    char *wide;     /* [WIDE_BYTES] of a long body's pieces; NULL: civetweb's buffer */
    bool ahead;     /* connection_ahead() */
    bool read;      /* all of it has been taken */
} exchange_body;

typedef struct exchange {
    struct http_host *host;
    void *app;                   /* the host's: by it handlers find what they need */
    const struct config *conf;   /* the options in force while it is answered */
    struct caller *caller;       /* who asks (gateway/auth.h); NULL: nobody has looked */
    struct mg_connection *conn;  /* NULL: it comes from within, and is: */
    struct inner_request *inner; /* inner.h */
    plane plane;
    const char *method;
    char path[1024];                 /* as sent, without the query */
    const char *query;               /* raw, NULL: none */
    char *param[EXCHANGE_PARAM_MAX]; /* decoded path segments that matched {} in the route */
    int n_param;
    char request_id[40];  /* ours: "req_" and 16 hex digits, which are our span id too */
    network_address peer; /* of the connection: a client, or a proxy */
    arena arena;
    uint64_t memory_failures; /* of this thread when it began */
    int64_t arrived_us;
    int64_t content_length; /* -1: none or chunked */
    bool close_after;       /* the connection ends with this answer */
    bool errors_typed;      /* errors have Anthropic's shape */

    /* ---- private to gateway/http/ below this line ---- */
    cJSON *tree;
    char headers[EXCHANGE_HEADERS_MAX]; /* extra header lines for the answer */
    size_t headers_len;
    char ignored[512];
    exchange_body body;
    bool answered, streaming;
    bool http10;  /* the client speaks HTTP/1.0 */
    bool watches; /* it only looks, again and again: its log line is for debugging */
    int status;   /* of the answer */
    uint64_t sent_bytes;
    trace_context trace;
    struct exchange_field {
        const char *name;
        char value[80];
        bool number;
    } note[EXCHANGE_NOTES_MAX]; /* of exchange_note() */
    int n_notes;
} exchange;

/* ---- the request -------------------------------------------------------------- */

/* Case-insensitive; NULL: absent. */
const char *exchange_header(const exchange *x, const char *name);

/* A decoded query value in the arena, or NULL. */
const char *exchange_query(exchange *x, const char *name);

/* The whole body, at most `max` bytes, within the configured time; NUL-ended, in the arena.  False:
 * it has been answered (413, 408, 400, 411). */
bool exchange_read_body(exchange *x, size_t max, const char **text, size_t *len);

/* The body as JSON (Content-Type application/json, charset utf-8 if any): read, strictly parsed,
 * freed with the exchange.  False: answered. */
bool exchange_read_json(exchange *x, const cJSON **tree);

/* Streams the body to fn piece by piece; fn returns false to stop.  ERR_NONE, or ERR_TIMEOUT,
 * ERR_LIMIT (more than max), ERR_INPUT (broken framing), ERR_CANCELLED (fn stopped, client
 * gone). */
err_code exchange_stream_body(exchange *x, uint64_t max,
                              bool (*fn)(void *arg, const void *data, size_t len), void *arg,
                              err *e);

/* Has the client closed the connection?  Looks at the socket, does not block. */
bool exchange_client_gone(exchange *x);

/* ---- the answer: one of these, once --------------------------------------------- */

/* An extra header line for the answer to come; value is printf-formatted, control bytes dropped. */
void exchange_add_header(exchange *x, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void exchange_ignored_param(exchange *x, const char *name); /* x-ignored-params */

/* How much had been added of headers, ignored parameters and notes; and back to that, before an
 * answer begins. */
typedef struct exchange_mark {
    size_t headers, ignored;
    int notes;
} exchange_mark;

/* Between the two nothing may have been sent: exchange_rewind() forgets headers, ignored
 * parameters and notes that were added since the mark. */
exchange_mark exchange_get_mark(const exchange *x);
void exchange_rewind(exchange *x, const exchange_mark *to);

void exchange_retry_after(exchange *x, int64_t ms); /* retry-after and retry-after-ms */

/* No type, no length: an answer without a body. */
void exchange_reply(exchange *x, int status, const char *type, const char *body, size_t len);
/* w's text; exchange_starved() if the writer has failed. */
void exchange_reply_json(exchange *x, int status, const jsonw *w);
/* Neither this nor anything below allocates.  Where an allocation has failed since the
 * exchange began, any error is 503 out_of_memory: what looked missing or wrong may
 * only have been out of reach. */
void exchange_error(exchange *x, int status, const char *type, const char *code, const char *param,
                    const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Anthropic's word for an error of that status; static. */
const char *exchange_error_kind(int status);
/* 503 out_of_memory, and when to try again. */
void exchange_starved(exchange *x);
/* By http_status_of(e->code). */
void exchange_reply_err(exchange *x, const err *e, const char *param);
/* Why exchange_stream_body() ended: 408 for a body that was too slow.  The connection ends. */
void exchange_refuse_body(exchange *x, const err *e);

/* Chunked; each write is one chunk, one TLS record (small ones where there is no memory for it).
 * False: the client is gone. */
bool exchange_stream_begin(exchange *x, const char *type);

/* One chunk, sent before the call returns, or false: the client is gone or too slow, and the
 * rest need not be made. len 0 is allowed and sends nothing. */
bool exchange_stream_write(exchange *x, const char *data, size_t len);

/* The last chunk. Without it the client sees that the answer was cut. */
void exchange_stream_end(exchange *x);

/* Called once by the listener when the handler is done: an answer if there is none, and whether the
 * connection stays. */
void exchange_finish(exchange *x);

/* One more field of the log's line, or a new value for one; `name` is static.  Never what a client
 * has written into a body, nor a key. */
void exchange_note(exchange *x, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same for a number, finite, which JSON has without quotes. */
void exchange_note_number(exchange *x, const char *name, double v, int digits);

/* The log's line for it. */
void exchange_log(const exchange *x);

/* No answer: the client is gone, the connection is closed. */
void exchange_drop(exchange *x);

#endif
