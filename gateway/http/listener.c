/* listener.c -- certificates, requests, the life of a listener.
 *
 * Descriptors: a plane holds at most its connections, for all of which the start has made room
 * (gateway/descriptors.h).
 *
 * Certificates: each handshake begins with the listener's current SSL_CTX, which is complete and
 * never changed again.  A reload makes a new one and swaps the pointer; OpenSSL's reference counts
 * keep the old one for the handshakes and connections that have it.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "gateway/http/connection.h"
#include "gateway/http/guard.h"
#include "gateway/http/head.h"
#include "gateway/http/http_status.h"
#include "gateway/http/listener_inside.h"
#include "gateway/net/deadline.h"
#include "gateway/net/h2.h"
#include "gateway/net/listen.h"
#include "gateway/net/spare.h"

enum {
    REFUSED_RETRY_MS = 1000,
    PLANES = PLANE_METRICS + 1,
};

_Static_assert((int)H2_HEAD_BYTES > (int)HEAD_BYTES_MAX,
               "a head that is too long must be seen to be");
_Static_assert(LOBBY_HEAD_BYTES >= HEAD_BYTES_MAX + 16384, "no space for a head and a record");

/* ---------------------------------------------------------------- certificates -- */

/* The certificate of the day. */
static SSL_CTX *context(void *arg)
{
    listener *l = arg;
    lock_take(&l->mu);
    SSL_CTX *ctx = l->current;
    (void)SSL_CTX_up_ref(ctx);
    lock_release(&l->mu);
    return ctx;
}

err_code listener_check_files(const tls_files *files, int64_t *expires_wall_us, err *e)
{
    SSL_CTX *ctx = tls_context_make(files, true, e);
    if (ctx) *expires_wall_us = tls_context_expiry(ctx);
    SSL_CTX_free(ctx);
    return ctx ? ERR_NONE : e->code;
}

err_code listener_reload(listener *const *all, int n, const tls_files *files, err *e)
{
    assert(n >= 0 && n <= PLANES);
    SSL_CTX *fresh[PLANES] = {NULL};
    for (int i = 0; i < n; i++) {
        fresh[i] = tls_context_make(files, all[i]->plane == PLANE_ADMIN, e);
        if (fresh[i]) continue;
        while (i-- > 0) SSL_CTX_free(fresh[i]);
        return e->code;
    }
    if (n > 0) atomic_store(&all[0]->host->cert_expires_wall_us, tls_context_expiry(fresh[0]));
    for (int i = 0; i < n; i++) {
        lock_take(&all[i]->mu);
        SSL_CTX *old = all[i]->current;
        all[i]->current = fresh[i];
        lock_release(&all[i]->mu);
        SSL_CTX_free(old); /* gone with the last connection that has it */
    }
    return ERR_NONE;
}

void listener_limit(listener *l, int64_t max_connections, int64_t max_connections_per_ip)
{
    peers_limit(l->peers, max_connections, max_connections_per_ip);
}

void listener_drain(listener *l)
{
    lobby_drain(l->lobby);
}

/* -------------------------------------------------------------------- requests -- */

static unsigned long long next_id(const listener *l)
{
    return l->host->next_id(l->host->app);
}

static void count_status(const listener *l, int status)
{
    int i = status / 100;
    atomic_fetch_add(&l->host->count.requests[i >= 1 && i <= 5 && status != 499 ? i : 0], 1);
}

/* conn, ri NULL: the lobby answers before there is a request. */
static void start_exchange(exchange *x, listener *l, struct mg_connection *conn,
                           const struct mg_request_info *ri)
{
    *x = (exchange){.host = l->host,
                    .app = l->host->app,
                    .conn = conn,
                    .plane = l->plane,
                    .method = ri && ri->request_method ? ri->request_method : "",
                    .query = ri ? ri->query_string : NULL,
                    .peer = connection_peer(),
                    .memory_failures = memory_failures(),
                    .arrived_us = clock_now_us(),
                    .content_length = -1};
    atomic_fetch_add(&l->host->count.answering, 1);
    arena_init(&x->arena, EXCHANGE_ARENA_BYTES);
    snprintf(x->request_id, sizeof(x->request_id), "req_%016llx", next_id(l));
}

static void end_exchange(exchange *x, const listener *l)
{
    exchange_finish(x);
    count_status(l, x->status);
    exchange_log(x);
    if (x->conn) guard_forget_keys(mg_get_request_info(x->conn));
    cJSON_Delete(x->tree);
    arena_clear(&x->arena);
    uint64_t was = atomic_fetch_sub(&l->host->count.answering, 1);
    assert(was > 0);
}

/* Takes the trace of a traceparent header; where there are two, neither counts. */
static void join_trace(exchange *x, const struct mg_request_info *ri)
{
    const char *header = NULL;
    int n = 0;
    for (int i = 0; i < ri->num_headers; i++) {
        if (strcasecmp(ri->http_headers[i].name, "traceparent") != 0) continue;
        header = ri->http_headers[i].value;
        n++;
    }
    if (n != 1 || !trace_parse(header, &x->trace)) return;
    exchange_add_header(x, "traceparent", "00-%s-%s-%s", x->trace.trace_id, x->request_id + 4,
                        x->trace.flags);
}

/* Where the next request would begin is not known any more: the connection ends. */
static void refuse(exchange *x, int status, const char *why)
{
    x->close_after = true;
    exchange_error(x, status, "invalid_request_error", http_code(status), NULL, "%s", why);
}

static int on_request(struct mg_connection *conn)
{
    const struct mg_request_info *ri = mg_get_request_info(conn);
    listener *l = ri->user_data;
    exchange x;
    int status;
    start_exchange(&x, l, conn, ri);
    join_trace(&x, ri);
    const char *wrong = guard_check(ri, &status, &x.content_length, &x.body.chunked);
    x.close_after = !guard_keeps_alive(ri);
    x.http10 = strcmp(ri->http_version, "1.0") == 0;
    if (wrong) {
        refuse(&x, status, wrong);
    } else if (strlen(ri->request_uri) >= sizeof(x.path)) {
        refuse(&x, 414, "the path is too long");
    } else {
        snprintf(x.path, sizeof(x.path), "%s", ri->request_uri);
        x.host->answer(&x);
    }
    end_exchange(&x, l);
    return 1;
}

/* The head of the next request, or the answer to what can't be one. */
static int on_head(struct mg_connection *conn, char *buf, int len, struct mg_request_info *ri)
{
    listener *l = ri->user_data;
    head_refusal r;
    exchange x;
    int n = head_parse(buf, len, ri, &r);
    if (n > 0) return n;
    assert(n < 0); /* the lobby waits for a verdict */
    start_exchange(&x, l, conn, ri);
    refuse(&x, r.status, r.why);
    end_exchange(&x, l);
    explicit_bzero(buf, (size_t)len); /* a key, maybe */
    return -1;
}

static int on_ready(struct mg_connection *conn, char *buf, struct mg_ready *r)
{
    const listener *l = mg_get_user_data(mg_get_context(conn));
    return connection_begin(l->lobby, buf, r);
}

static void on_done(struct mg_connection *conn, const char *rest, int n, int must_close)
{
    const listener *l = mg_get_user_data(mg_get_context(conn));
    connection_end(l->lobby, rest, n, must_close);
}

/* Workers may wait in on_ready(). */
static void on_exit_context(const struct mg_context *ctx)
{
    const listener *l = mg_get_user_data(ctx);
    lobby_close(l->lobby);
}

static int on_log(const struct mg_connection *conn, const char *msg)
{
    (void)conn;
    log_debug("listener", "%s", msg);
    return 1;
}

/* --------------------------------------------------------- the lobby's own answers -- */

static void answer_busy(exchange *x, const char *code, const char *msg)
{
    exchange_retry_after(x, REFUSED_RETRY_MS);
    exchange_error(x, 503, "overloaded_error", code, NULL, "%s", msg);
}

static void answer_refusal(exchange *x, lobby_refusal why)
{
    switch (why) {
    case LOBBY_TOTAL_FULL:
        answer_busy(x, "too_many_connections",
                    "the server has as many connections as it accepts; try again");
        break;
    case LOBBY_CLIENT_FULL:
        exchange_retry_after(x, REFUSED_RETRY_MS);
        exchange_error(x, 429, "rate_limit_error", "too_many_connections", NULL,
                       "your address has as many connections as it may have; close some");
        break;
    case LOBBY_NO_WORKER:
        answer_busy(x, "too_many_streams",
                    "the server answers as many requests as it can at once; try again");
        break;
    case LOBBY_HEAD_LATE: refuse(x, 408, "the head of the request did not arrive in time"); break;
    case LOBBY_HEAD_CUT: refuse(x, 400, "the head of the request ended early"); break;
    case LOBBY_NEEDS_TLS:
        exchange_error(x, 400, "invalid_request_error", "https_required", NULL,
                       "this port speaks HTTPS, and the request came as plain HTTP");
    }
}

/* On the lobby's thread. */
static size_t refuse_visitor(void *arg, const struct sockaddr_storage *from, lobby_refusal why,
                             char *out)
{
    listener *l = arg;
    exchange x;
    connection_capture(out, LOBBY_REFUSAL_BYTES);
    start_exchange(&x, l, NULL, NULL);
    x.peer = networks_of_socket(from);
    x.close_after = true;
    answer_refusal(&x, why);
    end_exchange(&x, l);
    return connection_captured();
}

static bool takes_plain(void *arg, const struct sockaddr_storage *from)
{
    const listener *l = arg;
    network_address peer = networks_of_socket(from);
    return l->host->takes_plain(l->host->app, &peer);
}

/* -------------------------------------------------------------------- lifetime -- */

int64_t listener_sockets(const char *addresses, const char *plain, int64_t n_connections,
                         int64_t n_threads)
{
    /* One that is accepted and counted next. */
    int64_t each = n_connections + LOBBY_REFUSED_MAX + 1 + SPARE_DESCRIPTORS;
    /* A pair for each stream that is with a worker or in the queue, half of one for as many others
     * whose answers are read (gateway/net/streams.c). */
    if (n_threads) each += 3 * (n_threads + LISTENER_QUEUE);
    return each + LOBBY_OWN_DESCRIPTORS + listen_count(addresses) + listen_count(plain);
}

static void release(listener *l)
{
    lobby_destroy(l->lobby);
    peers_destroy(l->peers);
    SSL_CTX_free(l->current);
    lock_free(&l->mu);
    free(l);
}

/* The workers; NULL: see *e. */
static struct mg_context *start_workers(listener *l, int n_threads, err *e)
{
    char threads[16], buffer[16], text[256] = "";
    snprintf(threads, sizeof(threads), "%d", n_threads);
    snprintf(buffer, sizeof(buffer), "%d", LOBBY_HEAD_BYTES);
    const char *options[] = {
        "listening_ports",  "",     "num_threads", threads, "request_timeout_ms", "10000",
        "max_request_size", buffer, NULL};
    struct mg_callbacks cb = {.begin_request = on_request,
                              .next_ready = on_ready,
                              .read_head = on_head,
                              .request_done = on_done,
                              .exit_context = on_exit_context,
                              .log_message = on_log};
    struct mg_error_data ed = {.text = text, .text_buffer_size = sizeof(text)};
    struct mg_init_data init = {.callbacks = &cb, .user_data = l, .configuration_options = options};
    struct mg_context *ctx = mg_start2(&init, &ed);
    if (!ctx) (void)err_set(e, ERR_NOMEM, "can't start %d workers: %s", n_threads, text);
    return ctx;
}

/* The sockets of the addresses, in the lobby. */
static err_code open_sockets(listener *l, const char *addresses, bool tls, err *e)
{
    int fd[LISTEN_MAX], n = 0, i = 0;
    err_code rc = listen_open(addresses, fd, &n, e);
    for (; i < n && !rc; i++) rc = lobby_listen(l->lobby, fd[i], tls, e);
    for (; i < n; i++) (void)close(fd[i]);
    return rc;
}

/* Only the inference plane has sockets without TLS. */
static err_code open_lobby(listener *l, const char *addresses, int n_threads, err *e)
{
    http_host *h = l->host;
    const char *plain = l->plane == PLANE_INFERENCE ? h->plain_listen : NULL;
    lobby_options o = {.peers = l->peers,
                       .n_connections = &h->count.connections,
                       .n_refused_total = &h->count.refused_total,
                       .n_refused_per_client = &h->count.refused_per_ip,
                       .http2 = l->plane == PLANE_INFERENCE ? &h->http2 : NULL,
                       .n_http2 = &h->count.http2,
                       .n_http2_floods = &h->count.http2_floods,
                       .max_open = LISTENER_SMALL_CONNECTIONS,
                       .n_workers = n_threads,
                       .n_queue = LISTENER_QUEUE,
                       .arg = l,
                       .context = context,
                       .decided = head_decided,
                       .takes_plain = takes_plain,
                       .refuse = refuse_visitor};
    if (lobby_create(&l->lobby, &o, e) || open_sockets(l, addresses, true, e)) return e->code;
    return plain ? open_sockets(l, plain, false, e) : ERR_NONE;
}

/* All that needs no thread; what is there on failure is released. */
static err_code prepare(listener *l, const char *addresses, int n_threads, const tls_files *files,
                        err *e)
{
    http_host *h = l->host;
    l->current = tls_context_make(files, l->plane == PLANE_ADMIN, e);
    if (!l->current) return e->code;
    if (l->plane == PLANE_INFERENCE) { /* the others are for few, who are trusted */
        l->peers = peers_create(h->max_connections, h->max_connections_per_ip);
        if (!l->peers) return err_set(e, ERR_NOMEM, "no memory for a listener");
    }
    return open_lobby(l, addresses, n_threads, e);
}

err_code listener_open(listener **out, http_host *h, plane p, const char *addresses, int n_threads,
                       const tls_files *files, err *e)
{
    *out = NULL;
    listener *l = calloc(1, sizeof(*l));
    if (!l) return err_set(e, ERR_NOMEM, "no memory for a listener");
    l->host = h;
    l->plane = p;
    lock_init(&l->mu, LOCK_LISTENER_TLS);
    if (prepare(l, addresses, n_threads, files, e)) {
        release(l);
        return e->code;
    }
    atomic_store(&h->cert_expires_wall_us, tls_context_expiry(l->current));
    if (!deadline_reaper_retain()) {
        release(l);
        return err_set(e, ERR_NOMEM, "can't start the thread that keeps deadlines");
    }
    l->ctx = start_workers(l, n_threads, e);
    if (!l->ctx || lobby_start(l->lobby, e)) {
        err_code rc = e->code;
        listener_close(l);
        return rc;
    }
    *out = l;
    return ERR_NONE;
}

void listener_close(listener *l)
{
    if (!l) return;
    atomic_store(&l->closing, true);
    lobby_close(l->lobby);
    mg_stop(l->ctx); /* NULL: none have started */
    deadline_reaper_release();
    release(l);
}
