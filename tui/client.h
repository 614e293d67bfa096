/* client.h -- HTTPS to one listener of a lorad, for loractl and loratop.
 *
 * Wraps libcurl: TLS 1.2 or newer, the certificate always verified, no redirects, HTTP/1.1, one
 * kept-alive connection.  An answer with an error status is an answer (look at reply.status);
 * err_codes are for what never became one.  The key is held in memory only and never printed: error
 * texts of this file hold neither headers nor bodies that were sent.
 *
 *     client_options o = {.url = ctx.admin_url, .ca_file = ctx.ca, .key = ctx.admin_key};
 *     client_open(&c, &o, &e);
 *     client_request rq = {.method = "GET", .path = "/admin/v1/stats"};
 *     if (client_call(c, &rq, &reply, &e) == ERR_NONE && client_reply_ok(&reply)) ...
 *     client_reply_clear(&reply);
 *     client_close(c);
 *
 * Ownership: client_open() to client_close(); a reply's body is the caller's until
 *            client_reply_clear().
 * Signals: the program ignores SIGPIPE; this file installs no handlers.
 * Threads: a client belongs to one thread at a time; client_cancel() may be called from any thread
 *          while a call runs.  Different clients are independent.
 */
#ifndef TUI_CLIENT_H
#define TUI_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"

enum {
    CLIENT_BODY_MAX_BYTES = 64 << 20, /* of an answer, unless the request says less */
    CLIENT_CONNECT_MS = 10000,
    CLIENT_CALL_MS = 60000,
    CLIENT_HEADERS_MAX = 8,
};

typedef struct client client;

typedef struct client_options {
    const char *url;       /* "https://host[:port][/prefix]"; copied, as all the others */
    const char *ca_file;   /* PEM; NULL or "": the system's authorities */
    const char *key;       /* API key; NULL or "": none is sent */
    const char *cert_file; /* client certificate (PEM) and its private key; NULL: none */
    const char *cert_key_file;
    const char *agent;  /* User-Agent; NULL: "lorad-client/VERSION" */
    int64_t connect_ms; /* 0: CLIENT_CONNECT_MS */
} client_options;

typedef struct client_request {
    const char *method; /* GET, HEAD, POST, PUT, PATCH, DELETE */
    const char *path;   /* after the URL's prefix, encoded: "/v1/models?limit=5" */
    const char *headers[CLIENT_HEADERS_MAX]; /* further "Name: value" lines */

    /* A body: either bytes ... */
    const char *type; /* Content-Type; NULL with a body: application/json */
    const void *body; /* lent */
    size_t body_len;
    /* ... or a source of exactly source_bytes: returns how many it wrote (0: it cannot go
     * on, the call fails with ERR_IO).  rewind: starts over, needed where a kept-alive
     * connection turned out closed. */
    size_t (*source)(void *arg, char *to, size_t cap);
    bool (*rewind)(void *arg);
    int64_t source_bytes;
    void *source_arg;

    /* Where a 2xx answer goes; NULL: into reply.body.  False: stop, the call ends with
     * ERR_CANCELLED.  on_event takes the data of each server-sent event (where the
     * answer is text/event-stream). */
    bool (*on_data)(void *arg, const char *bytes, size_t len);
    bool (*on_event)(void *arg, const char *data, size_t len);
    void *on_arg;

    /* Several times a second at most, with the bytes sent and received; may be NULL. */
    void (*on_progress)(void *arg, int64_t sent, int64_t received);
    void *progress_arg;

    int64_t timeout_ms; /* whole call; 0: CLIENT_CALL_MS; negative: none */
    int64_t idle_ms; /* longest silence of the peer in either direction; 0: only timeout_ms rules */
    size_t max_bytes; /* of reply.body; 0: CLIENT_BODY_MAX_BYTES */
} client_request;

typedef struct client_reply {
    int status; /* 0: none came */
    char *body; /* NUL-ended; NULL where a sink took it */
    size_t len;
    char type[96];       /* Content-Type */
    char request_id[64]; /* x-request-id */
    char etag[96];
    char location[256];
    int64_t retry_after_ms; /* -1: not said */
    int64_t upload_offset;  /* Upload-Offset (resumable uploads); -1: not said */
} client_reply;

/* ERR_INPUT: the URL is not https, or a value holds control bytes.  ERR_NOMEM, ERR_INTERNAL. */
err_code client_open(client **out, const client_options *o, err *e);
void client_close(client *c);

/* One exchange.  *reply is always set and wants client_reply_clear().  ERR_NONE: there is
 * a status.  ERR_IO: no connection, or it broke; ERR_DENIED: the certificate is not
 * trusted or not for this host; ERR_TIMEOUT; ERR_CANCELLED (client_cancel() or a sink);
 * ERR_LIMIT: the answer is too large. */
err_code client_call(client *c, const client_request *rq, client_reply *reply, err *e);
void client_reply_clear(client_reply *r);

/* Ends the running call within 100 ms, or the next one at once.  From any thread, or from a signal
 * handler. */
void client_cancel(client *c);

/* Was the last failure one of getting there (name, connection, TLS), before the request was
 * sent? */
bool client_unreachable(const client *c);

bool client_reply_ok(const client_reply *r); /* 2xx */

/* The body as JSON, strictly parsed; the caller's (cJSON_Delete).  ERR_CORRUPT where it is none. */
err_code client_reply_json(const client_reply *r, cJSON **out, err *e);

/* What an error answer says, for people: the message of OpenAI's error shape, or the status. */
void client_reply_error(const client_reply *r, char *out, size_t cap);

/* Percent-encodes one path segment or query value into out (NUL-ended); false: it does not fit. */
bool client_escape(const char *s, char *out, size_t cap);

#endif
