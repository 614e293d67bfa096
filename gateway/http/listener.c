/* listener.c -- civetweb, tamed: certificates, requests, the life of a listener.
 *
 * Descriptors: a plane holds at most its workers and its queue of sockets, for all of which the
 * start has made room (gateway/descriptors.h).  Should there be none all the same, accept() is
 * tried again with one of the plane's spare ones, or after a pause.
 *
 * Certificates: civetweb's own SSL_CTX holds no certificate.  During each handshake on_cert() hands
 * the connection over to the listener's current SSL_CTX, which is complete and never changed again.
 * A reload makes a new one and swaps the pointer; OpenSSL's reference counts keep the old one for
 * the handshakes and connections that have it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

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

enum {
    BUFFER_BYTES =
        HEAD_BYTES_MAX + 16384, /* a head, and a whole TLS record of its body behind it */
    ACCEPT_PAUSE_MS = 100,
    REFUSED_RETRY_MS = 1000,
    WARN_US = 10 * 1000000, /* between two lines in the log about the same trouble */
    PLANES = PLANE_METRICS + 1,
    PORTS_MAX = 1152, /* of the addresses in civetweb's syntax */
};

/* ---------------------------------------------------------------- certificates -- */

/* The certificate of the day.  Resumed sessions need none. */
static int on_cert(SSL *ssl, void *arg)
{
    listener *l = arg;
    lock_take(&l->mu);
    SSL_CTX *ctx = l->current;
    (void)SSL_CTX_up_ref(ctx);
    lock_release(&l->mu);
    bool ok = SSL_set_SSL_CTX(ssl, ctx) == ctx; /* with a reference of its own */
    if (SSL_CTX_get_verify_mode(ctx) != SSL_VERIFY_NONE) {
        SSL_set_verify(ssl, SSL_CTX_get_verify_mode(ctx), NULL);
        /* Nothing to resume: a certificate is looked at in every handshake. */
        (void)SSL_set_options(ssl, SSL_OP_NO_TICKET);
        (void)SSL_set_num_tickets(ssl, 0);
    }
    SSL_CTX_free(ctx);
    return ok ? 1 : 0;
}

static int on_init_ssl(void *ssl_ctx, void *user_data)
{
    const listener *l = user_data;
    tls_context_rules(ssl_ctx, connection_tls_info);
    if (l->plane == PLANE_ADMIN) (void)SSL_CTX_set_session_cache_mode(ssl_ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_cert_cb(ssl_ctx, on_cert, user_data);
    return 1; /* nothing is left for civetweb to load */
}

err_code listener_check_files(const tls_files *files, int64_t *expires_wall_us, err *e)
{
    SSL_CTX *ctx = tls_context_make(files, true, connection_tls_info, e);
    if (ctx) *expires_wall_us = tls_context_expiry(ctx);
    SSL_CTX_free(ctx);
    return ctx ? ERR_NONE : e->code;
}

err_code listener_reload(listener *const *all, int n, const tls_files *files, err *e)
{
    SSL_CTX *fresh[PLANES] = {NULL};
    for (int i = 0; i < n; i++) {
        fresh[i] = tls_context_make(files, all[i]->plane == PLANE_ADMIN, connection_tls_info, e);
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

/* -------------------------------------------------------------------- requests -- */

unsigned long long listener_next_id(const listener *l)
{
    return l->host->next_id(l->host->server);
}

void listener_count_status(const listener *l, int status)
{
    int i = status / 100;
    atomic_fetch_add(&l->host->count.requests[i >= 1 && i <= 5 && status != 499 ? i : 0], 1);
}

static void start_exchange(exchange *x, listener *l, struct mg_connection *conn,
                           const struct mg_request_info *ri)
{
    *x = (exchange){.host = l->host,
                    .server = l->host->server,
                    .conn = conn,
                    .plane = l->plane,
                    .method = ri->request_method ? ri->request_method : "",
                    .query = ri->query_string,
                    .peer = connection_peer(),
                    .memory_failures = memory_failures(),
                    .arrived_us = clock_now_us(),
                    .content_length = -1};
    atomic_fetch_add(&l->host->count.answering, 1);
    arena_init(&x->arena, EXCHANGE_ARENA_BYTES);
    snprintf(x->request_id, sizeof(x->request_id), "req_%016llx", listener_next_id(l));
}

static void end_exchange(exchange *x, const listener *l)
{
    exchange_finish(x);
    connection_linger(x->lingers);
    listener_count_status(l, x->status);
    exchange_log(x);
    guard_forget_keys(mg_get_request_info(x->conn));
    cJSON_Delete(x->tree);
    arena_clear(&x->arena);
    atomic_fetch_sub(&l->host->count.answering, 1);
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

/* A connection over a limit gets this one answer. */
static void refuse_connection(exchange *x)
{
    x->close_after = true;
    exchange_retry_after(x, REFUSED_RETRY_MS);
    if (connection_verdict() == PEER_TOTAL_FULL) {
        exchange_error(x, 503, "overloaded_error", "too_many_connections", NULL,
                       "the server has as many connections as it takes; try again");
    } else {
        exchange_error(x, 429, "rate_limit_error", "too_many_connections", NULL,
                       "your address has as many connections as it may have; close some");
    }
}

/* Where the next request would begin is not known any more: the connection ends. */
static void refuse(exchange *x, int status, const char *why)
{
    x->close_after = x->lingers = true;
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
    const char *wrong = guard_check(ri, &status, &x.content_length, &x.chunked_body);
    x.close_after = !guard_keeps_alive(ri);
    x.http10 = strcmp(ri->http_version, "1.0") == 0;
    if (connection_verdict() != PEER_ADMITTED) {
        refuse_connection(&x);
    } else if (wrong) {
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
static int on_head(struct mg_connection *conn, char *buf, int len, enum mg_head_state state,
                   struct mg_request_info *ri)
{
    listener *l = ri->user_data;
    head_refusal r;
    exchange x;
    if (state == MG_HEAD_IDLE) return connection_gives_way(l, mg_get_context(conn)) ? -1 : 0;
    int n = head_parse(buf, len, ri, &r);
    if (n > 0 || (n == 0 && state == MG_HEAD_GROWS)) return n;
    if (n == 0 && state == MG_HEAD_LATE) {
        r = (head_refusal){408, "the head of the request did not arrive in time"};
    } else if (n == 0) {
        r = (head_refusal){400, "the head of the request ended early"};
    }
    start_exchange(&x, l, conn, ri);
    if (connection_verdict() != PEER_ADMITTED)
        refuse_connection(&x);
    else
        refuse(&x, r.status, r.why);
    end_exchange(&x, l);
    explicit_bzero(buf, (size_t)len); /* a key, maybe */
    return -1;
}

/* "cannot bind to 127.0.0.1:8443s: 98 (Address already in use)" into an address and a reason. */
static void note_refusal(listener *l, const char *msg)
{
    bool bind = strncmp(msg, "cannot bind ", 12) == 0 || strncmp(msg, "cannot listen ", 14) == 0;
    const char *at = bind ? strstr(msg, " to ") : NULL;
    const char *end = at ? strstr(at, ": ") : NULL, *why = end ? strrchr(end, '(') : NULL;
    if (!why) return;
    at += 4;
    snprintf(l->refused, sizeof(l->refused), "%.*s: %.*s%s", (int)(end - at) - (end[-1] == 's'), at,
             (int)strcspn(why + 1, ")"), why + 1,
             strstr(end, strerror(EADDRINUSE)) ? " ('ss -ltnp' shows by whom)" : "");
}

static int on_log(const struct mg_connection *conn, const char *msg)
{
    listener *l = mg_get_user_data(mg_get_context(conn));
    if (l) note_refusal(l, msg);
    log_debug("listener", "%s", msg);
    return 1;
}

/* On the accepting thread, which must not come back at once to a client that it can't take. */
static void on_accept_failed(const struct mg_context *ctx, int error)
{
    listener *l = mg_get_user_data(ctx);
    struct timespec pause = {0, ACCEPT_PAUSE_MS * 1000000L};
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return;
    int64_t now = clock_now_us();
    if (!l->warned_us || now - l->warned_us > WARN_US) {
        l->warned_us = now;
        log_warn("listener", "a connection can't be taken: %s", strerror(error));
    }
    if (!spare_give(&l->spare)) (void)nanosleep(&pause, NULL);
}

/* -------------------------------------------------------------------- lifetime -- */

/* The first of a list with commas or spaces; NULL: none is left. */
static const char *next_address(const char *list, size_t *len)
{
    list += strspn(list, ", ");
    *len = strcspn(list, ", ");
    return *len ? list : NULL;
}

/* Appends them in civetweb's syntax: an "s" behind each port that speaks TLS. */
static void add_ports(const char *addresses, const char *suffix, char *out, size_t cap)
{
    size_t n = strlen(out), len;
    for (const char *p = addresses; (p = next_address(p, &len)) && n + 3 < cap; p += len)
        n += (size_t)snprintf(out + n, cap - n, "%s%.*s%s", n ? "," : "", (int)len, p, suffix);
}

/* Only the inference plane has any. */
static const char *plain_addresses(const listener *l)
{
    return l->plane == PLANE_INFERENCE && l->host->plain_listen ? l->host->plain_listen : "";
}

static int64_t count_addresses(const char *list)
{
    int64_t n = 0;
    size_t len;
    for (const char *p = list; (p = next_address(p, &len)); p += len) n++;
    return n;
}

int64_t listener_sockets(const char *addresses, const char *plain, int64_t n_threads)
{
    int64_t each = n_threads + LISTENER_QUEUE + 1 + SPARE_DESCRIPTORS; /* one waits for the queue */
    return each + count_addresses(addresses) + count_addresses(plain);
}

static void release(listener *l)
{
    spare_close(&l->spare);
    peers_destroy(l->peers);
    SSL_CTX_free(l->current);
    lock_free(&l->mu);
    free(l);
}

/* Its sockets and its workers; NULL: see *e. */
static struct mg_context *start(listener *l, const char *addresses, err *e)
{
    char ports[PORTS_MAX] = "", threads[16], buffer[16], queue[16];
    add_ports(addresses, "s", ports, sizeof(ports));
    add_ports(plain_addresses(l), "", ports, sizeof(ports));
    snprintf(threads, sizeof(threads), "%d", l->n_workers);
    snprintf(buffer, sizeof(buffer), "%d", BUFFER_BYTES);
    snprintf(queue, sizeof(queue), "%d", LISTENER_QUEUE);
    const char *options[] = {"listening_ports",
                             ports,
                             "num_threads",
                             threads,
                             "ssl_protocol_version",
                             "4",
                             "enable_keep_alive",
                             "yes",
                             "keep_alive_timeout_ms",
                             "8000",
                             "request_timeout_ms",
                             "10000",
                             "max_request_size",
                             buffer,
                             "tcp_nodelay",
                             "1",
                             "connection_queue",
                             queue,
                             "listen_backlog",
                             "511",
                             NULL};
    struct mg_callbacks cb = {.begin_request = on_request,
                              .read_head = on_head,
                              .accept_failed = on_accept_failed,
                              .plain_begins = connection_plain,
                              .log_message = on_log,
                              .init_ssl = on_init_ssl,
                              .connection_close = connection_close,
                              .connection_closed = connection_closed};
    char text[256] = "";
    struct mg_error_data ed = {.text = text, .text_buffer_size = sizeof(text)};
    struct mg_init_data init = {.callbacks = &cb, .user_data = l, .configuration_options = options};
    struct mg_context *ctx = mg_start2(&init, &ed);
    if (!ctx && l->refused[0])
        (void)err_set(e, ERR_IO, "can't listen on %s", l->refused);
    else if (!ctx)
        (void)err_set(e, ERR_IO, "can't listen on '%s': %s", ports, text[0] ? text : "unknown");
    return ctx;
}

err_code listener_open(listener **out, http_host *h, plane p, const char *addresses, int n_threads,
                       const tls_files *files, err *e)
{
    *out = NULL;
    listener *l = calloc(1, sizeof(*l));
    if (!l) return err_set(e, ERR_NOMEM, "no memory for a listener");
    l->host = h;
    l->plane = p;
    l->n_workers = n_threads;
    lock_init(&l->mu, LOCK_LISTENER_TLS);
    spare_open(&l->spare);
    l->current = tls_context_make(files, p == PLANE_ADMIN, connection_tls_info, e);
    if (p == PLANE_INFERENCE) { /* the others are for few, who are trusted */
        l->peers = peers_create(h->max_connections, h->max_connections_per_ip);
        if (!l->peers) (void)err_set(e, ERR_NOMEM, "no memory for a listener");
    }
    if (!l->current || (p == PLANE_INFERENCE && !l->peers)) {
        release(l);
        return e->code;
    }
    atomic_store(&h->cert_expires_wall_us, tls_context_expiry(l->current));
    if (!deadline_reaper_retain()) {
        release(l);
        return err_set(e, ERR_NOMEM, "can't start the thread that keeps deadlines");
    }
    l->ctx = start(l, addresses, e);
    if (!l->ctx) {
        deadline_reaper_release();
        release(l);
        return e->code;
    }
    *out = l;
    return ERR_NONE;
}

void listener_close(listener *l)
{
    if (!l) return;
    atomic_store(&l->closing, true);
    mg_stop(l->ctx);
    deadline_reaper_release();
    release(l);
}
