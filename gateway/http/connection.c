/* connection.c -- one worker's connection, from its first byte to its close.
 *
 * What each worker knows of its connection (socket, deadline, whether it is counted) is
 * thread-local: it begins with the TLS handshake, whose info callback runs on the worker itself
 * before the first byte is read, or without TLS with connection_plain(), and ends with
 * connection_close().
 */
#include "gateway/http/connection.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include <openssl/err.h>

#include "engine/base/clock.h"
#include "gateway/http/http_status.h"
#include "gateway/http/listener_inside.h"
#include "gateway/net/deadline.h"

enum {
    GRACE_BYTES = 8 << 20, /* that are read from who has been refused, so that the answer arrives */
    GRACE_US = 500 * 1000,
    HANDSHAKE_US = 10 * 1000000, /* from the first byte of TLS to its last */
    HANDSHAKE_LOOK_S = 2,        /* between looks whether the server stops */
    SMALL_LOOK_US = 100 * 1000,  /* the same on a plane of few workers, and whether others wait */
    SILENCE_US = 10 * 1000000,   /* between two pieces of a long body */
    STOP_LOOK_MS = 1000,         /* between looks whether the listener closes */
    REFUSED_US = 2 * 1000000,    /* a connection over the limit may take this long to hear so */
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

int connection_socket(void)
{
    return my.fd - 1;
}

void connection_deadline(int64_t at_us, bool both)
{
    deadline_set(&my.deadline, connection_socket(), at_us, both);
}

network_address connection_peer(void)
{
    return my.peer;
}

peer_verdict connection_verdict(void)
{
    return my.verdict;
}

void connection_linger(bool on)
{
    my.lingers = on;
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
    connection_deadline(clock_now_us() + REFUSED_US, true);
}

/* Says that no more will come, and reads for a moment what the client still sends: a
 * socket that is closed over unread bytes resets the connection, and an answer on its
 * way is lost (RFC 9112, 9.6). */
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

void connection_close(const struct mg_connection *conn)
{
    listener *l = mg_get_user_data(mg_get_context(conn));
    connection_deadline(0, false);
    if (my.lingers && my.ssl) (void)SSL_shutdown(my.ssl);
    if (my.lingers && my.fd) linger(connection_socket());
    if (my.counted) {
        peers_leave(l->peers, my.id);
        atomic_fetch_sub(&l->host->count.connections, 1);
    }
    my.counted = my.shaking = my.lingers = false;
    my.verdict = PEER_ADMITTED;
    my.fd = 0;
    my.ssl = NULL;
}

void connection_closed(const struct mg_connection *conn)
{
    listener *l = mg_get_user_data(mg_get_context(conn));
    spare_refill(&l->spare); /* out of what the connection gives back */
    if (my.busy) atomic_fetch_sub(&l->n_busy, 1);
    my.busy = false;
}

/* ------------------------------------------------------------------ long bodies -- */

void connection_ahead(bool on)
{
    if (!my.ssl) return;
    /* A buffer of another size is made when the one there is has been given back. */
    (void)SSL_set_mode(my.ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_set_default_read_buffer_len(my.ssl, on ? CONNECTION_AHEAD : 0);
    SSL_set_read_ahead(my.ssl, on);
}

/* What is there: how many bytes; 0: nothing yet, *wait says for what; -1: nothing will come. */
static int read_some(char *to, int cap, short *wait)
{
    *wait = POLLIN;
    if (!my.ssl) {
        ssize_t n = recv(connection_socket(), to, (size_t)cap, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
        return n > 0 ? (int)n : -1;
    }
    ERR_clear_error();
    int n = SSL_read(my.ssl, to, cap), why = n > 0 ? SSL_ERROR_NONE : SSL_get_error(my.ssl, n);
    if (why == SSL_ERROR_WANT_WRITE) *wait = POLLOUT;
    if (n > 0) return n;
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

int connection_read(const struct mg_connection *conn, char *to, int cap)
{
    const listener *l = mg_get_user_data(mg_get_context(conn));
    int64_t end_us = clock_now_us() + SILENCE_US;
    for (int n = 0;;) {
        struct pollfd p = {.fd = connection_socket()};
        int got = read_some(to + n, cap - n, &p.events);
        if (got > 0) n += got;
        if (n == cap || (n > 0 && got <= 0)) return n;
        if (got < 0 || atomic_load(&l->closing)) return -1;
        if (got > 0) continue;
        if (clock_now_us() >= end_us) return 0;
        (void)poll(&p, 1, STOP_LOOK_MS);
    }
}

/* ------------------------------------------------------------------- handshake -- */

/* civetweb asks an unfinished handshake twenty times a second whether it has gone on: a
 * thousand slow clients would be twenty thousand wake-ups a second.  While it lasts,
 * its socket blocks instead. */
static void set_blocking(const listener *l, int fd, bool on)
{
    struct timeval look = {.tv_sec = HANDSHAKE_LOOK_S};
    if (!l->peers) look = (struct timeval){.tv_usec = SMALL_LOOK_US};
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return;
    if (on) (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &look, sizeof(look));
    (void)fcntl(fd, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

/* The inference plane bounds what each client may hold.  On the small ones a few silent
 * connections would hold all workers, so the silent give way where others wait now and
 * did so at the look before. */
bool connection_gives_way(listener *l, struct mg_context *ctx)
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
        if (connection_gives_way(l, ctx)) return -1;
        n = recv(fd, &first, 1, MSG_PEEK);
    } while (n < 0 && (errno == EAGAIN || errno == EINTR));
    return n == 1 ? first : -1;
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
                 date, sizeof(body) - 1, listener_next_id(l), body);
    (void)send(fd, all, (size_t)n, MSG_NOSIGNAL);
    linger(fd);
    (void)shutdown(fd, SHUT_RDWR);
    listener_count_status(l, 400);
}

int connection_plain(const struct mg_connection *conn, int fd)
{
    listener *l = mg_get_user_data(mg_get_context(conn));
    begin_connection(l, fd);
    if (l->host->takes_plain(l->host->server, &my.peer)) return 1;
    answer_plain_http(l, fd);
    return 0;
}

static void begin_handshake(listener *l, struct mg_context *ctx, int fd)
{
    begin_connection(l, fd);
    if (my.verdict == PEER_ADMITTED) connection_deadline(clock_now_us() + HANDSHAKE_US, true);
    my.shaking = fd >= 0;
    if (!my.shaking) return;
    set_blocking(l, fd, true);
    int first = first_byte(l, ctx, fd);
    if (first < 0)
        (void)shutdown(fd, SHUT_RDWR); /* the handshake finds the end */
    else if (isalpha(first)) /* a method, from somebody who forgot the s: TLS begins with 22 */
        answer_plain_http(l, fd);
}

void connection_tls_info(const SSL *ssl, int where, int ret)
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
        if (my.verdict == PEER_ADMITTED) connection_deadline(0, false);
    } else if ((where & SSL_CB_EXIT) && ret <= 0 && my.shaking && connection_gives_way(l, ctx)) {
        (void)shutdown(fd, SHUT_RDWR); /* it has looked for long enough */
    }
}
