/* listener.c -- civetweb, tamed.
 *
 * Each worker's connection is known to one slot of a small table: the socket comes from OpenSSL's info
 * callback at the end of the handshake, which runs on the worker itself.  A reaper thread shuts
 * sockets down whose deadline has passed; the worker's blocked read or write then returns.
 */
#include "gateway/listener.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <civetweb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/http_status.h"
#include "gateway/route.h"
#include "gateway/server.h"

enum { WATCH_MAX = 8192, REAP_MS = 100, HEADER_BYTES = 32768 };

struct listener {
    struct mg_context *ctx;
    server *srv;
    plane plane;
    SSL_CTX *ssl;                     /* civetweb's own; certificates are swapped in place */
    const char *cert_path, *key_path; /* during listener_open() */
};

/* ------------------------------------------------------------------- deadlines -- */

typedef struct {
    int fd;
    int64_t at_us; /* 0: none */
    bool both, used;
} watch;

static struct {
    pthread_mutex_t mu; /* leaf lock */
    watch slot[WATCH_MAX];
    int n_open; /* listeners */
    bool stop;
    pthread_t thread;
} reaper = {.mu = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int my_slot = -1;
static _Thread_local int my_fd = -1;

static void *reap(void *arg)
{
    (void)arg;
    (void)pthread_setname_np(pthread_self(), "reaper");
    struct timespec pause = {0, REAP_MS * 1000000L};
    for (;;) {
        (void)nanosleep(&pause, NULL);
        int64_t now = clock_now_us();
        pthread_mutex_lock(&reaper.mu);
        bool stop = reaper.stop;
        for (int i = 0; i < WATCH_MAX; i++) {
            watch *w = &reaper.slot[i];
            if (!w->used || !w->at_us || w->at_us > now) continue;
            /* The slot is cleared before its owner can close the socket. */
            (void)shutdown(w->fd, w->both ? SHUT_RDWR : SHUT_RD);
            w->at_us = 0;
        }
        pthread_mutex_unlock(&reaper.mu);
        if (stop) return NULL;
    }
}

int listener_socket(void)
{
    return my_fd;
}

void listener_deadline(int64_t at_us, bool both)
{
    pthread_mutex_lock(&reaper.mu);
    if (my_slot < 0 && at_us) {
        for (int i = 0; i < WATCH_MAX && my_slot < 0; i++) {
            if (!reaper.slot[i].used) my_slot = i;
        }
    }
    if (my_slot >= 0) {
        reaper.slot[my_slot] = (watch){my_fd, my_fd >= 0 ? at_us : 0, both, at_us != 0};
        if (!at_us) my_slot = -1;
    }
    pthread_mutex_unlock(&reaper.mu);
}

static void reaper_retain(void)
{
    pthread_mutex_lock(&reaper.mu);
    bool first = reaper.n_open++ == 0;
    pthread_mutex_unlock(&reaper.mu);
    if (!first) return;
    reaper.stop = false;
    if (pthread_create(&reaper.thread, NULL, reap, NULL) != 0) abort(); /* start-up */
}

static void reaper_release(void)
{
    pthread_mutex_lock(&reaper.mu);
    bool last = --reaper.n_open == 0;
    reaper.stop = last;
    pthread_mutex_unlock(&reaper.mu);
    if (!last) return;
    (void)pthread_join(reaper.thread, NULL);
}

/* ------------------------------------------------------------------------- TLS -- */

static void on_tls_info(const SSL *ssl, int where, int ret)
{
    (void)ret;
    if (where & SSL_CB_HANDSHAKE_DONE) my_fd = SSL_get_fd(ssl);
}

static err_code tls_error(err *e, const char *what)
{
    char why[160];
    ERR_error_string_n(ERR_get_error(), why, sizeof(why));
    ERR_clear_error();
    return err_set(e, ERR_INPUT, "%s: %.150s", what, why);
}

static err_code load_pair(SSL_CTX *ctx, const char *cert_path, const char *key_path, err *e)
{
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_path) != 1) {
        return tls_error(e, "the certificate (server.tls_cert) can't be used");
    }
    if (SSL_CTX_use_PrivateKey_file(ctx, key_path, SSL_FILETYPE_PEM) != 1) {
        return tls_error(e, "the private key (server.tls_key) can't be used");
    }
    if (SSL_CTX_check_private_key(ctx) != 1) {
        return tls_error(e, "certificate and private key don't belong together");
    }
    return ERR_NONE;
}

static int on_init_ssl(void *ssl_ctx, void *user_data)
{
    listener *l = user_data;
    SSL_CTX *ctx = ssl_ctx;
    l->ssl = ctx;
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                       SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_info_callback(ctx, on_tls_info);
    err e;
    if (load_pair(ctx, l->cert_path, l->key_path, &e)) {
        log_error("listener", "%s", e.msg);
        return -1;
    }
    return 1; /* nothing is left for civetweb to load */
}

err_code listener_check_files(const char *cert_path, const char *key_path, err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return tls_error(e, "TLS");
    err_code rc = load_pair(ctx, cert_path, key_path, e);
    SSL_CTX_free(ctx);
    return rc;
}

err_code listener_reload(listener *l, const char *cert_path, const char *key_path, err *e)
{
    err_code rc = listener_check_files(cert_path, key_path, e); /* all or nothing */
    return rc ? rc : load_pair(l->ssl, cert_path, key_path, e);
}

/* ----------------------------------------------------------------------- guard -- */

static int count_header(const struct mg_request_info *ri, const char *name, const char **value)
{
    int n = 0;
    for (int i = 0; i < ri->num_headers; i++) {
        if (strcasecmp(ri->http_headers[i].name, name) != 0) continue;
        *value = ri->http_headers[i].value;
        n++;
    }
    return n;
}

static bool all_digits(const char *s)
{
    size_t n = strlen(s);
    return n >= 1 && n <= 15 && strspn(s, "0123456789") == n;
}

/* NULL: fine.  Else what is wrong, with the status. */
static const char *guard(const struct mg_request_info *ri, int *status, int64_t *length,
                         bool *chunked)
{
    const char *cl = NULL, *te = NULL, *other = NULL;
    *status = 400;
    *length = -1;
    *chunked = false;
    const char *version = ri->http_version ? ri->http_version : "";
    if (strcmp(version, "1.1") != 0 && strcmp(version, "1.0") != 0) {
        *status = 505;
        return "only HTTP/1.1 and HTTP/1.0 are spoken here";
    }
    int n_cl = count_header(ri, "Content-Length", &cl);
    int n_te = count_header(ri, "Transfer-Encoding", &te);
    if (n_cl > 1 || n_te > 1) return "a framing header appears twice";
    if (n_cl && n_te) return "Content-Length and Transfer-Encoding exclude each other";
    if (n_cl && !all_digits(cl)) return "Content-Length is not a number";
    if (n_te && strcasecmp(te, "chunked") != 0) return "Transfer-Encoding must be chunked";
    if (n_te && strcmp(version, "1.0") == 0) return "HTTP/1.0 has no Transfer-Encoding";
    int n_host = count_header(ri, "Host", &other);
    if (n_host > 1) return "two Host headers";
    if (n_host == 0 && strcmp(version, "1.1") == 0) return "the Host header is missing";
    if (count_header(ri, "Authorization", &other) > 1) return "two Authorization headers";
    if (count_header(ri, "Content-Type", &other) > 1) return "two Content-Type headers";
    if (count_header(ri, "Content-Encoding", &other) > 0 && strcasecmp(other, "identity") != 0) {
        *status = 415;
        return "a Content-Encoding is not supported";
    }
    const char *uri = ri->request_uri ? ri->request_uri : "";
    if (uri[0] != '/') return "the request target must be a path";
    for (const char *p = uri; *p; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f) return "a byte of the path";
    }
    if (n_cl) *length = strtoll(cl, NULL, 10);
    *chunked = n_te > 0;
    return NULL;
}

static void start_exchange(exchange *x, listener *l, struct mg_connection *conn,
                           const struct mg_request_info *ri)
{
    *x = (exchange){.server = l->srv,
                    .conn = conn,
                    .plane = l->plane,
                    .method = ri->request_method,
                    .query = ri->query_string,
                    .arrived_us = clock_now_us()};
    arena_init(&x->arena, EXCHANGE_ARENA_BYTES);
    (void)snprintf(x->request_id, sizeof(x->request_id), "req_%016llx",
                   (unsigned long long)store_next_id(l->srv->store));
}

static void log_exchange(const exchange *x)
{
    char status[12], ms[24], bytes[24], who[TENANT_NAME_MAX + 1];
    (void)snprintf(status, sizeof(status), "%d", x->status);
    (void)snprintf(ms, sizeof(ms), "%.1f", (double)(clock_now_us() - x->arrived_us) / 1000);
    (void)snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)x->sent_bytes);
    (void)snprintf(who, sizeof(who), "%s", x->tenant.name);
    log_fields(x->plane == PLANE_METRICS ? LOG_DEBUG : LOG_INFO, "gateway", "request", "id",
               x->request_id, "method", x->method, "path", x->path, "status", status, "ms", ms,
               "bytes", bytes, "tenant", who[0] ? who : NULL, "key",
               x->key.id ? x->key.public_id : NULL, "model", x->log_model, NULL);
}

static int on_request(struct mg_connection *conn)
{
    const struct mg_request_info *ri = mg_get_request_info(conn);
    listener *l = ri->user_data;
    exchange x;
    int status;
    start_exchange(&x, l, conn, ri);
    const char *wrong = guard(ri, &status, &x.content_length, &x.chunked_body);
    if (wrong) {
        x.close_after = true;
        exchange_error(&x, status, "invalid_request_error", "bad_request", NULL, "%s", wrong);
    } else if (strlen(ri->request_uri) >= sizeof(x.path)) {
        x.close_after = true;
        exchange_error(&x, 414, "invalid_request_error", "uri_too_long", NULL,
                       "the path is longer than %d bytes", (int)sizeof(x.path) - 1);
    } else {
        (void)snprintf(x.path, sizeof(x.path), "%s", ri->request_uri);
        route_dispatch(&x);
    }
    exchange_finish(&x);
    server_count_status(l->srv, x.status);
    log_exchange(&x);
    cJSON_Delete(x.tree);
    arena_clear(&x.arena);
    return x.status > 0 ? x.status : 499;
}

/* civetweb's own errors (broken framing before there is a request) in our shape. */
static int on_error(struct mg_connection *conn, int status, const char *msg)
{
    (void)msg; /* may repeat bytes of the request */
    char body[256], head[512];
    if (status < 400 || status > 599) status = 400;
    int n = snprintf(body, sizeof(body),
                     "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
                     "\"code\":\"bad_request\"}}",
                     status < 500 ? "The request is malformed." : "Internal error.",
                     status < 500 ? "invalid_request_error" : "server_error");
    int h = snprintf(head, sizeof(head),
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                     "Connection: close\r\n\r\n%s",
                     status, http_reason(status), n, body);
    mg_disable_connection_keep_alive(conn);
    (void)mg_write(conn, head, (size_t)h);
    return 0;
}

static int on_log(const struct mg_connection *conn, const char *msg)
{
    (void)conn;
    log_debug("listener", "%s", msg);
    return 1;
}

static void on_close(const struct mg_connection *conn)
{
    (void)conn;
    listener_deadline(0, false);
    my_fd = -1;
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

err_code listener_open(listener **out, server *s, plane p, const char *addresses, int n_threads,
                       const char *cert_path, const char *key_path, err *e)
{
    *out = NULL;
    listener *l = calloc(1, sizeof(*l));
    if (!l) return err_set(e, ERR_NOMEM, "no memory for a listener");
    l->srv = s;
    l->plane = p;
    l->cert_path = cert_path;
    l->key_path = key_path;
    char ports[CONFIG_TEXT_MAX + 64] = "", threads[16], header[16];
    ports_of(addresses, ports, sizeof(ports));
    (void)snprintf(threads, sizeof(threads), "%d", n_threads);
    (void)snprintf(header, sizeof(header), "%d", HEADER_BYTES);
    err_code rc = listener_check_files(cert_path, key_path, e);
    const char *options[] = {"listening_ports",
                             ports,
                             "num_threads",
                             threads,
                             "ssl_protocol_version",
                             "4",
                             "ssl_cipher_list",
                             "ECDHE+AESGCM:ECDHE+CHACHA20",
                             "enable_keep_alive",
                             "yes",
                             "keep_alive_timeout_ms",
                             "8000",
                             "request_timeout_ms",
                             "10000",
                             "max_request_size",
                             header,
                             "tcp_nodelay",
                             "1",
                             "decode_url",
                             "no",
                             "decode_query_string",
                             "no",
                             "connection_queue",
                             "64",
                             "listen_backlog",
                             "511",
                             NULL};
    struct mg_callbacks cb = {.begin_request = on_request,
                              .http_error = on_error,
                              .log_message = on_log,
                              .init_ssl = on_init_ssl,
                              .connection_close = on_close};
    char text[256] = "";
    struct mg_error_data ed = {.text = text, .text_buffer_size = sizeof(text)};
    struct mg_init_data init = {.callbacks = &cb, .user_data = l, .configuration_options = options};
    if (!rc) {
        l->ctx = mg_start2(&init, &ed);
        if (!l->ctx) {
            rc = err_set(e, ERR_IO, "can't listen on '%s': %s", addresses,
                         text[0] ? text : "unknown");
        }
    }
    l->cert_path = l->key_path = NULL;
    if (rc) {
        if (l->ctx) mg_stop(l->ctx);
        free(l);
        return rc;
    }
    reaper_retain();
    *out = l;
    return ERR_NONE;
}

void listener_close(listener *l)
{
    if (!l) return;
    mg_stop(l->ctx);
    reaper_release();
    free(l);
}
