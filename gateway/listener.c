/* listener.c -- civetweb, tamed.
 *
 * What each worker knows of its connection (socket, deadline, whether it is counted) is thread-local:
 * it begins with the TLS handshake, whose info callback runs on the worker itself before the first
 * byte is read, and ends with on_close().
 *
 * Certificates: civetweb's own SSL_CTX holds no certificate.  During each handshake on_cert() hands
 * the connection over to the listener's current SSL_CTX, which is complete and never changed again.
 * A reload makes a new one and swaps the pointer; OpenSSL's reference counts keep the old one for the
 * handshakes and connections that have it.
 */
#include "gateway/listener.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include <civetweb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509err.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/auth.h"
#include "gateway/deadline.h"
#include "gateway/guard.h"
#include "gateway/http_status.h"
#include "gateway/peers.h"
#include "gateway/route.h"
#include "gateway/server.h"
#include "storage/private_file.h"

enum {
    HEADER_BYTES = 32768,
    HANDSHAKE_US = 10 * 1000000, /* from the first byte of TLS to its last */
    HANDSHAKE_LOOK_S = 2,        /* between looks whether the server stops */
    REFUSED_US = 2 * 1000000,    /* a connection over the limit may take this long to hear so */
    REFUSED_RETRY_MS = 1000,
    PLANES = PLANE_METRICS + 1,
};

static const char ciphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20"; /* TLS 1.2; 1.3 has only good ones */

struct listener {
    struct mg_context *ctx;
    server *srv;
    plane plane;
    peers *peers;       /* NULL: connections are not limited */
    pthread_mutex_t mu; /* leaf lock; guards `current` */
    SSL_CTX *current;   /* with the certificate for new connections */
};

/* ------------------------------------------------------- this worker's connection -- */

static _Thread_local struct {
    int fd; /* +1; 0: unknown */
    bool counted, shaking;
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
        atomic_fetch_add(&l->srv->count.connections, 1);
        return;
    }
    atomic_fetch_add(my.verdict == PEER_TOTAL_FULL ? &l->srv->count.refused_total
                                                   : &l->srv->count.refused_per_ip,
                     1);
    listener_deadline(clock_now_us() + REFUSED_US, true);
}

static void on_close(const struct mg_connection *conn)
{
    listener *l = mg_get_user_data(mg_get_context(conn));
    listener_deadline(0, false);
    if (my.counted) {
        peers_leave(l->peers, my.id);
        atomic_fetch_sub(&l->srv->count.connections, 1);
    }
    my.counted = my.shaking = false;
    my.verdict = PEER_ADMITTED;
    my.fd = 0;
}

/* ------------------------------------------------------------------------- TLS -- */

/* civetweb asks an unfinished handshake twenty times a second whether it has gone on: a thousand slow
 * clients would be twenty thousand wake-ups a second.  While it lasts, its socket blocks instead. */
static void set_blocking(int fd, bool on)
{
    struct timeval look = {.tv_sec = HANDSHAKE_LOOK_S};
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return;
    if (on) (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look));
    (void)fcntl(fd, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

static void on_tls_info(const SSL *ssl, int where, int ret)
{
    (void)ret;
    int fd = SSL_get_fd(ssl);
    if ((where & SSL_CB_HANDSHAKE_START) && !my.fd) {
        const struct mg_connection *conn = SSL_get_app_data(ssl);
        begin_connection(mg_get_user_data(mg_get_context(conn)), fd);
        if (my.verdict == PEER_ADMITTED) listener_deadline(clock_now_us() + HANDSHAKE_US, true);
        my.shaking = fd >= 0;
        if (my.shaking) set_blocking(fd, true);
    } else if ((where & SSL_CB_HANDSHAKE_DONE) && my.shaking) {
        my.shaking = false;
        set_blocking(fd, false);
        if (my.verdict == PEER_ADMITTED) listener_deadline(0, false);
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

static err_code tls_error(err *e, const char *what)
{
    char why[160];
    ERR_error_string_n(ERR_get_error(), why, sizeof(why));
    ERR_clear_error();
    return err_set(e, ERR_INPUT, "%s: %.150s", what, why);
}

static err_code load_pair(SSL_CTX *ctx, const char *cert_path, const char *key_path, err *e)
{
    err_code rc = private_file_check(key_path, "the private key (server.tls_key)", e);
    if (rc) return rc;
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_path) != 1) {
        return tls_error(e, "the certificate (server.tls_cert) can't be used");
    }
    if (SSL_CTX_use_PrivateKey_file(ctx, key_path, SSL_FILETYPE_PEM) != 1) {
        /* This compares with the certificate, too. */
        bool foreign = ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH ||
                       ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_TYPE_MISMATCH;
        return tls_error(e, foreign ? "the private key (server.tls_key) is not the certificate's"
                                    : "the private key (server.tls_key) can't be used");
    }
    if (SSL_CTX_check_private_key(ctx) != 1) {
        return tls_error(e, "the private key (server.tls_key) is not the certificate's");
    }
    return ERR_NONE;
}

/* Whoever can't show a certificate that one of these has signed gets no further than TLS. */
static err_code ask_clients(SSL_CTX *ctx, const char *ca_path, err *e)
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca_path);
    if (!names || SSL_CTX_load_verify_locations(ctx, ca_path, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return tls_error(e, "the clients' authorities (admin.client_ca) can't be used");
    }
    SSL_CTX_set_client_CA_list(ctx, names); /* owns them */
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return ERR_NONE;
}

static void set_rules(SSL_CTX *ctx)
{
    (void)SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* A read that ends without TLS's farewell must not void the connection: after a deadline has shut
     * it down for reading, the 408 is still to be written.  HTTP's own framing tells what is whole. */
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                       SSL_OP_CIPHER_SERVER_PREFERENCE |
                                       SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT);
    (void)SSL_CTX_set_cipher_list(ctx, ciphers);
    SSL_CTX_set_info_callback(ctx, on_tls_info);
}

/* Until when the certificate of a context is good, in microseconds of the wall clock; 0: unknown. */
static int64_t expiry_of(const SSL_CTX *ctx)
{
    int days, seconds;
    const X509 *cert = SSL_CTX_get0_certificate(ctx);
    if (!cert || !ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(cert))) return 0;
    return clock_wall_us() + (days * INT64_C(86400) + seconds) * 1000000;
}

/* A context with this certificate for one plane, or NULL. */
static SSL_CTX *make_context(const listener_files *f, plane p, err *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) {
        (void)tls_error(e, "TLS");
        return NULL;
    }
    set_rules(ctx);
    if (load_pair(ctx, f->cert, f->key, e) ||
        (p == PLANE_ADMIN && f->client_ca && ask_clients(ctx, f->client_ca, e))) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    return ctx;
}

static int on_init_ssl(void *ssl_ctx, void *user_data)
{
    const listener *l = user_data;
    set_rules(ssl_ctx);
    if (l->plane == PLANE_ADMIN) (void)SSL_CTX_set_session_cache_mode(ssl_ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_cert_cb(ssl_ctx, on_cert, user_data);
    return 1; /* nothing is left for civetweb to load */
}

err_code listener_check_files(const listener_files *files, err *e)
{
    SSL_CTX *ctx = make_context(files, PLANE_ADMIN, e);
    SSL_CTX_free(ctx);
    return ctx ? ERR_NONE : e->code;
}

err_code listener_reload(listener *const *all, int n, const listener_files *files, err *e)
{
    SSL_CTX *fresh[PLANES] = {NULL};
    for (int i = 0; i < n; i++) {
        fresh[i] = make_context(files, all[i]->plane, e);
        if (fresh[i]) continue;
        while (i-- > 0) SSL_CTX_free(fresh[i]);
        return e->code;
    }
    if (n > 0) atomic_store(&all[0]->srv->cert_expires_wall_us, expiry_of(fresh[0]));
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
    *x = (exchange){.server = l->srv,
                    .conn = conn,
                    .plane = l->plane,
                    .method = ri->request_method,
                    .query = ri->query_string,
                    .peer = my.peer,
                    .arrived_us = clock_now_us(),
                    .log_prompt = -1,
                    .log_cached = -1,
                    .log_output = -1,
                    .log_queue_us = -1,
                    .log_ttft_us = -1,
                    .log_tpot_us = -1};
    arena_init(&x->arena, EXCHANGE_ARENA_BYTES);
    (void)snprintf(x->request_id, sizeof(x->request_id), "req_%016llx",
                   (unsigned long long)store_next_id(l->srv->store));
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

static const char *count_of(int64_t n, char text[24])
{
    (void)snprintf(text, 24, "%lld", (long long)n);
    return n < 0 ? NULL : text;
}

static const char *ms_of(int64_t us, char text[24])
{
    (void)snprintf(text, 24, "%.2f", (double)us / 1000);
    return us < 0 ? NULL : text;
}

static void log_exchange(const exchange *x)
{
    char prompt[24], cached[24], output[24], queue[24], ttft[24], tpot[24];
    bool traced = x->trace.trace_id[0] != 0;
    char status[12], ms[24], bytes[24], who[TENANT_NAME_MAX + 1];
    (void)snprintf(status, sizeof(status), "%d", x->status);
    (void)snprintf(ms, sizeof(ms), "%.1f", (double)(clock_now_us() - x->arrived_us) / 1000);
    (void)snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)x->sent_bytes);
    (void)snprintf(who, sizeof(who), "%s", x->tenant.name);
    log_fields(
        x->plane == PLANE_METRICS ? LOG_DEBUG : LOG_INFO, "gateway", "request", "id", x->request_id,
        "method", x->method, "path", x->path, "status", status, "ms", ms, "bytes", bytes, "tenant",
        who[0] ? who : NULL, "key", x->key.id ? x->key.public_id : NULL, "model",
        x->log_model[0] ? x->log_model : NULL, "class", x->log_class, "prompt_tokens",
        count_of(x->log_prompt, prompt), "cached_tokens", count_of(x->log_cached, cached),
        "output_tokens", count_of(x->log_output, output), "queue_ms", ms_of(x->log_queue_us, queue),
        "ttft_ms", ms_of(x->log_ttft_us, ttft), "tpot_ms", ms_of(x->log_tpot_us, tpot), "finish",
        x->log_finish[0] ? x->log_finish : NULL, "trace_id", traced ? x->trace.trace_id : NULL,
        "parent_id", traced ? x->trace.parent_id : NULL, NULL);
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

static int on_request(struct mg_connection *conn)
{
    const struct mg_request_info *ri = mg_get_request_info(conn);
    listener *l = ri->user_data;
    exchange x;
    int status;
    start_exchange(&x, l, conn, ri);
    join_trace(&x, ri);
    const char *wrong = guard_check(ri, &status, &x.content_length, &x.chunked_body);
    if (my.verdict != PEER_ADMITTED) {
        refuse_connection(&x);
    } else if (wrong) {
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
    auth_forget_keys(&x);
    cJSON_Delete(x.tree);
    arena_clear(&x.arena);
    return x.status > 0 ? x.status : 499;
}

/* civetweb's own errors (broken framing before there is a request) in our shape. */
static int on_error(struct mg_connection *conn, int status, const char *msg)
{
    (void)msg; /* may repeat bytes of the request */
    const listener *l = mg_get_user_data(mg_get_context(conn));
    char body[256], head[512];
    if (status < 400 || status > 599) status = 400;
    int n = snprintf(body, sizeof(body),
                     "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
                     "\"code\":\"bad_request\"}}",
                     status < 500 ? "The request is malformed." : "Internal error.",
                     status < 500 ? "invalid_request_error" : "server_error");
    int h = snprintf(head, sizeof(head),
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                     "x-request-id: req_%016llx\r\nConnection: close\r\n\r\n%s",
                     status, http_reason(status), n,
                     (unsigned long long)store_next_id(l->srv->store), body);
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

static void release(listener *l)
{
    peers_destroy(l->peers);
    SSL_CTX_free(l->current);
    pthread_mutex_destroy(&l->mu);
    free(l);
}

err_code listener_open(listener **out, server *s, plane p, const char *addresses, int n_threads,
                       const listener_files *files, err *e)
{
    *out = NULL;
    listener *l = calloc(1, sizeof(*l));
    if (!l) return err_set(e, ERR_NOMEM, "no memory for a listener");
    l->srv = s;
    l->plane = p;
    pthread_mutex_init(&l->mu, NULL);
    l->current = make_context(files, p, e);
    if (p == PLANE_INFERENCE) { /* the others are for few, who are trusted */
        l->peers =
            peers_create(config_max_connections(s->cfg), config_max_connections_per_ip(s->cfg));
        if (!l->peers) (void)err_set(e, ERR_NOMEM, "no memory for a listener");
    }
    if (!l->current || (p == PLANE_INFERENCE && !l->peers)) {
        release(l);
        return e->code;
    }
    atomic_store(&s->cert_expires_wall_us, expiry_of(l->current));
    char ports[CONFIG_TEXT_MAX + 64] = "", threads[16], header[16];
    ports_of(addresses, ports, sizeof(ports));
    (void)snprintf(threads, sizeof(threads), "%d", n_threads);
    (void)snprintf(header, sizeof(header), "%d", HEADER_BYTES);
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
    deadline_reaper_retain();
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
    mg_stop(l->ctx);
    deadline_reaper_release();
    release(l);
}
