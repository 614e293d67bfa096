/* listener.c -- civetweb, tamed.
 *
 * What each worker knows of its connection (socket, deadline, whether it is counted) is thread-local:
 * it begins with the TLS handshake, whose info callback runs on the worker itself before the first
 * byte is read, and ends with on_close().
 *
 * Descriptors: a plane holds at most its workers and its queue of sockets, for all of which the start
 * has made room (descriptors.h).  Should there be none all the same, accept() is tried again with one of
 * the plane's spare ones, or after a pause.
 *
 * Certificates: civetweb's own SSL_CTX holds no certificate.  During each handshake on_cert() hands
 * the connection over to the listener's current SSL_CTX, which is complete and never changed again.
 * A reload makes a new one and swaps the pointer; OpenSSL's reference counts keep the old one for the
 * handshakes and connections that have it.
 */
#include "gateway/http/listener.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include <civetweb.h>
#include <openssl/ssl.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "gateway/http/deadline.h"
#include "gateway/http/guard.h"
#include "gateway/http/head.h"
#include "gateway/http/http_status.h"
#include "gateway/http/peers.h"
#include "gateway/http/spare.h"

enum {
    BUFFER_BYTES =
        HEAD_BYTES_MAX + 16384, /* a head, and a whole TLS record of its body behind it */
    GRACE_BYTES = 8 << 20, /* that are read from who has been refused, so that the answer arrives */
    GRACE_US = 500 * 1000,
    ACCEPT_PAUSE_MS = 100,
    HANDSHAKE_US = 10 * 1000000, /* from the first byte of TLS to its last */
    HANDSHAKE_LOOK_S = 2,        /* between looks whether the server stops */
    SMALL_LOOK_US = 100 * 1000,  /* the same on a plane of few workers, and whether others wait */
    REFUSED_US = 2 * 1000000,    /* a connection over the limit may take this long to hear so */
    REFUSED_RETRY_MS = 1000,
    WARN_US = 10 * 1000000, /* between two lines in the log about the same trouble */
    PLANES = PLANE_METRICS + 1,
    PORTS_MAX = 576, /* of the addresses in civetweb's syntax */
};

struct listener {
    struct mg_context *ctx;
    http_host *host;
    plane plane;
    peers *peers;       /* NULL: connections are not limited */
    pthread_mutex_t mu; /* leaf lock; guards `current` */
    SSL_CTX *current;   /* with the certificate for new connections */
    spare_descriptors spare;
    int64_t warned_us; /* the accepting thread's alone */
    int n_workers;
    atomic_int n_busy; /* workers with a connection */
    atomic_bool closing;
};

/* ------------------------------------------------------- this worker's connection -- */

static _Thread_local struct {
    int fd; /* +1; 0: unknown */
    SSL *ssl;
    bool busy, counted, shaking, lingers;
    bool others_waited; /* when it was looked last */
    peer_id id;
    network_address peer;
    peer_verdict verdict;
    deadline deadline;
} my;

int listener_socket(void)
{
    return my.fd - 1;
}

void listener_deadline(int64_t at_us, bool both)
{
    deadline_set(&my.deadline, listener_socket(), at_us, both);
}

/* One that is over a limit gets its answer by on_request(), or is cut. */
static void begin_connection(listener *l, int fd)
{
    atomic_fetch_add(&l->n_busy, 1);
    my.busy = true;
    my.others_waited = false;
    my.fd = fd + 1;
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof(from);
    (void)getpeername(fd, (struct sockaddr *)&from, &len); /* unknown: counted as one client */
    my.peer = networks_of_socket(&from);
    if (!l->peers || fd < 0) return;
    my.id = peers_identify(&from);
    my.verdict = peers_enter(l->peers, my.id);
    my.counted = my.verdict == PEER_ADMITTED;
    if (my.counted) {
        atomic_fetch_add(&l->host->count.connections, 1);
        return;
    }
    http_counts *c = &l->host->count;
    atomic_fetch_add(my.verdict == PEER_TOTAL_FULL ? &c->refused_total : &c->refused_per_ip, 1);
    listener_deadline(clock_now_us() + REFUSED_US, true);
}

/* Says that no more will come, and reads for a moment what the client still sends: a socket that is closed
 * over unread bytes resets the connection, and an answer on its way is lost (RFC 9112, 9.6). */
static void linger(int fd)
{
    char waste[4096];
    int64_t end = clock_now_us() + GRACE_US, left;
    ssize_t n = 1;
    (void)shutdown(fd, SHUT_WR);
    for (int64_t total = 0; n > 0 && total < GRACE_BYTES; total += n) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if ((left = end - clock_now_us()) <= 0 || poll(&p, 1, (int)(left / 1000) + 1) <= 0) break;
        n = recv(fd, waste, sizeof(waste), MSG_DONTWAIT);
    }
}

static void on_close(const struct mg_connection *conn)
{
    listener *l = mg_get_user_data(mg_get_context(conn));
    listener_deadline(0, false);
    if (my.lingers && my.ssl) {
        (void)SSL_shutdown(my.ssl);
        linger(listener_socket());
    }
    if (my.counted) {
        peers_leave(l->peers, my.id);
        atomic_fetch_sub(&l->host->count.connections, 1);
    }
    my.counted = my.shaking = my.lingers = false;
    my.verdict = PEER_ADMITTED;
    my.fd = 0;
    my.ssl = NULL;
}

static void on_closed(const struct mg_connection *conn)
{
    listener *l = mg_get_user_data(mg_get_context(conn));
    spare_refill(&l->spare); /* out of what the connection gives back */
    if (my.busy) atomic_fetch_sub(&l->n_busy, 1);
    my.busy = false;
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

/* ------------------------------------------------------------------------- TLS -- */

/* civetweb asks an unfinished handshake twenty times a second whether it has gone on: a thousand slow
 * clients would be twenty thousand wake-ups a second.  While it lasts, its socket blocks instead. */
static void set_blocking(const listener *l, int fd, bool on)
{
    struct timeval look = {.tv_sec = HANDSHAKE_LOOK_S};
    if (!l->peers) look = (struct timeval){.tv_usec = SMALL_LOOK_US};
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return;
    if (on) (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look));
    (void)fcntl(fd, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

/* The inference plane bounds what each client may hold.  On the small ones a few silent connections would
 * hold all workers, so the silent give way where others wait now and did so at the look before. */
static bool must_give_way(listener *l, struct mg_context *ctx)
{
    bool wait = !l->peers && atomic_load(&l->n_busy) >= l->n_workers && mg_waiting(ctx) > 0;
    bool long_enough = wait && my.others_waited;
    my.others_waited = wait;
    return long_enough || atomic_load(&l->closing);
}

/* Of what the client says; below 0: it says nothing, and must not go on with that. */
static int first_byte(listener *l, struct mg_context *ctx, int fd)
{
    unsigned char first;
    ssize_t n;
    do {
        if (must_give_way(l, ctx)) return -1;
        n = recv(fd, &first, 1, MSG_PEEK);
    } while (n < 0 && (errno == EAGAIN || errno == EINTR));
    return n == 1 ? first : -1;
}

static unsigned long long next_id(const listener *l)
{
    return l->host->next_id(l->host->server);
}

static void count_status(http_host *h, int status)
{
    int i = status / 100;
    atomic_fetch_add(&h->count.requests[i >= 1 && i <= 5 && status != 499 ? i : 0], 1);
}

static void answer_plain_http(const listener *l, int fd)
{
    static const char body[] =
        "{\"error\":{\"message\":\"this port speaks HTTPS, and the request came "
        "as plain HTTP\",\"type\":\"invalid_request_error\",\"param\":null,"
        "\"code\":\"https_required\"}}";
    char all[768], date[HTTP_DATE_BYTES];
    http_date(date);
    int n =
        snprintf(all, sizeof(all),
                 "HTTP/1.1 400 Bad Request\r\nDate: %s\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\nx-request-id: req_%016llx\r\nConnection: close\r\n\r\n%s",
                 date, sizeof(body) - 1, next_id(l), body);
    (void)send(fd, all, (size_t)n, MSG_NOSIGNAL);
    linger(fd);
    (void)shutdown(fd, SHUT_RDWR);
    count_status(l->host, 400);
}

static void begin_handshake(listener *l, struct mg_context *ctx, int fd)
{
    begin_connection(l, fd);
    if (my.verdict == PEER_ADMITTED) listener_deadline(clock_now_us() + HANDSHAKE_US, true);
    my.shaking = fd >= 0;
    if (!my.shaking) return;
    set_blocking(l, fd, true);
    int first = first_byte(l, ctx, fd);
    if (first < 0)
        (void)shutdown(fd, SHUT_RDWR); /* the handshake finds the end */
    else if (isalpha(first)) /* a method, from somebody who forgot the s: TLS begins with 22 */
        answer_plain_http(l, fd);
}

static void on_tls_info(const SSL *ssl, int where, int ret)
{
    struct mg_context *ctx = mg_get_context(SSL_get_app_data(ssl));
    listener *l = mg_get_user_data(ctx);
    int fd = SSL_get_fd(ssl);
    if ((where & SSL_CB_HANDSHAKE_START) && !my.fd) {
        my.ssl = (SSL *)ssl; /* the worker's own; OpenSSL only promises not to change it itself */
        begin_handshake(l, ctx, fd);
    } else if ((where & SSL_CB_HANDSHAKE_DONE) && my.shaking) {
        my.shaking = false;
        set_blocking(l, fd, false);
        if (my.verdict == PEER_ADMITTED) listener_deadline(0, false);
    } else if ((where & SSL_CB_EXIT) && ret <= 0 && my.shaking && must_give_way(l, ctx)) {
        (void)shutdown(fd, SHUT_RDWR); /* it has looked for long enough */
    }
}

/* The certificate of the day.  Resumed sessions need none. */
static int on_cert(SSL *ssl, void *arg)
{
    listener *l = arg;
    pthread_mutex_lock(&l->mu);
    SSL_CTX *ctx = l->current;
    (void)SSL_CTX_up_ref(ctx);
    pthread_mutex_unlock(&l->mu);
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
    tls_context_rules(ssl_ctx, on_tls_info);
    if (l->plane == PLANE_ADMIN) (void)SSL_CTX_set_session_cache_mode(ssl_ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_cert_cb(ssl_ctx, on_cert, user_data);
    return 1; /* nothing is left for civetweb to load */
}

err_code listener_check_files(const tls_files *files, int64_t *expires_wall_us, err *e)
{
    SSL_CTX *ctx = tls_context_make(files, true, on_tls_info, e);
    if (ctx) *expires_wall_us = tls_context_expiry(ctx);
    SSL_CTX_free(ctx);
    return ctx ? ERR_NONE : e->code;
}

err_code listener_reload(listener *const *all, int n, const tls_files *files, err *e)
{
    SSL_CTX *fresh[PLANES] = {NULL};
    for (int i = 0; i < n; i++) {
        fresh[i] = tls_context_make(files, all[i]->plane == PLANE_ADMIN, on_tls_info, e);
        if (fresh[i]) continue;
        while (i-- > 0) SSL_CTX_free(fresh[i]);
        return e->code;
    }
    if (n > 0) atomic_store(&all[0]->host->cert_expires_wall_us, tls_context_expiry(fresh[0]));
    for (int i = 0; i < n; i++) {
        pthread_mutex_lock(&all[i]->mu);
        SSL_CTX *old = all[i]->current;
        all[i]->current = fresh[i];
        pthread_mutex_unlock(&all[i]->mu);
        SSL_CTX_free(old); /* gone with the last connection that has it */
    }
    return ERR_NONE;
}

/* -------------------------------------------------------------------- requests -- */

static void start_exchange(exchange *x, listener *l, struct mg_connection *conn,
                           const struct mg_request_info *ri)
{
    *x = (exchange){.host = l->host,
                    .server = l->host->server,
                    .conn = conn,
                    .plane = l->plane,
                    .method = ri->request_method ? ri->request_method : "",
                    .query = ri->query_string,
                    .peer = my.peer,
                    .memory_failures = memory_failures(),
                    .arrived_us = clock_now_us(),
                    .content_length = -1};
    arena_init(&x->arena, EXCHANGE_ARENA_BYTES);
    snprintf(x->request_id, sizeof(x->request_id), "req_%016llx", next_id(l));
}

static void end_exchange(exchange *x)
{
    exchange_finish(x);
    my.lingers = x->lingers;
    count_status(x->host, x->status);
    exchange_log(x);
    guard_forget_keys(mg_get_request_info(x->conn));
    cJSON_Delete(x->tree);
    arena_clear(&x->arena);
}

/* Two of them are none. */
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
    if (my.verdict == PEER_TOTAL_FULL) {
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
    exchange x;
    int status;
    start_exchange(&x, ri->user_data, conn, ri);
    join_trace(&x, ri);
    const char *wrong = guard_check(ri, &status, &x.content_length, &x.chunked_body);
    x.close_after = !guard_keeps_alive(ri);
    x.http10 = strcmp(ri->http_version, "1.0") == 0;
    if (my.verdict != PEER_ADMITTED) {
        refuse_connection(&x);
    } else if (wrong) {
        refuse(&x, status, wrong);
    } else if (strlen(ri->request_uri) >= sizeof(x.path)) {
        refuse(&x, 414, "the path is too long");
    } else {
        snprintf(x.path, sizeof(x.path), "%s", ri->request_uri);
        x.host->answer(&x);
    }
    end_exchange(&x);
    return 1;
}

/* The head of the next request, or the answer to what can't be one. */
static int on_head(struct mg_connection *conn, char *buf, int len, enum mg_head_state state,
                   struct mg_request_info *ri)
{
    head_refusal r;
    exchange x;
    if (state == MG_HEAD_IDLE) return must_give_way(ri->user_data, mg_get_context(conn)) ? -1 : 0;
    int n = head_parse(buf, len, ri, &r);
    if (n > 0 || (n == 0 && state == MG_HEAD_GROWS)) return n;
    if (n == 0 && state == MG_HEAD_LATE) {
        r = (head_refusal){408, "the head of the request did not arrive in time"};
    } else if (n == 0) {
        r = (head_refusal){400, "the head of the request ended early"};
    }
    start_exchange(&x, ri->user_data, conn, ri);
    if (my.verdict != PEER_ADMITTED)
        refuse_connection(&x);
    else
        refuse(&x, r.status, r.why);
    end_exchange(&x);
    explicit_bzero(buf, (size_t)len); /* a key, maybe */
    return -1;
}

static int on_log(const struct mg_connection *conn, const char *msg)
{
    (void)conn;
    log_debug("listener", "%s", msg);
    return 1;
}

/* -------------------------------------------------------------------- lifetime -- */

/* civetweb's syntax: an "s" behind each port. */
static void ports_of(const char *addresses, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = addresses; *p && n + 3 < cap;) {
        size_t len = strcspn(p, ", ");
        if (len) {
            n += (size_t)snprintf(out + n, cap - n, "%s%.*ss", n ? "," : "", (int)len, p);
        }
        p += len;
        p += strspn(p, ", ");
    }
}

int64_t listener_sockets(const char *addresses, int64_t n_threads)
{
    int64_t n = n_threads + LISTENER_QUEUE + 1 + SPARE_DESCRIPTORS; /* one waits for the queue */
    for (const char *p = addresses; *p;) {
        size_t len = strcspn(p, ", ");
        if (len) n++;
        p += len;
        p += strspn(p, ", ");
    }
    return n;
}

static void release(listener *l)
{
    spare_close(&l->spare);
    peers_destroy(l->peers);
    SSL_CTX_free(l->current);
    pthread_mutex_destroy(&l->mu);
    free(l);
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
    pthread_mutex_init(&l->mu, NULL);
    spare_open(&l->spare);
    l->current = tls_context_make(files, p == PLANE_ADMIN, on_tls_info, e);
    if (p == PLANE_INFERENCE) { /* the others are for few, who are trusted */
        l->peers = peers_create(h->max_connections, h->max_connections_per_ip);
        if (!l->peers) (void)err_set(e, ERR_NOMEM, "no memory for a listener");
    }
    if (!l->current || (p == PLANE_INFERENCE && !l->peers)) {
        release(l);
        return e->code;
    }
    atomic_store(&h->cert_expires_wall_us, tls_context_expiry(l->current));
    char ports[PORTS_MAX] = "", threads[16], buffer[16], queue[16];
    ports_of(addresses, ports, sizeof(ports));
    snprintf(threads, sizeof(threads), "%d", n_threads);
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
                              .log_message = on_log,
                              .init_ssl = on_init_ssl,
                              .connection_close = on_close,
                              .connection_closed = on_closed};
    char text[256] = "";
    struct mg_error_data ed = {.text = text, .text_buffer_size = sizeof(text)};
    struct mg_init_data init = {.callbacks = &cb, .user_data = l, .configuration_options = options};
    if (!deadline_reaper_retain()) {
        release(l);
        return err_set(e, ERR_NOMEM, "can't start the thread that keeps deadlines");
    }
    l->ctx = mg_start2(&init, &ed);
    if (!l->ctx) {
        deadline_reaper_release();
        release(l);
        return err_set(e, ERR_IO, "can't listen on '%s': %s", addresses,
                       text[0] ? text : "unknown");
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
