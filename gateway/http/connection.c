/* connection.c -- the connection that a worker has from the lobby, in thread-local memory.
 *
 * CivetWeb's worker serves one request of it: connection_begin() hands over the socket with the
 * head that the lobby has read, connection_end() gives it back with the bytes that came behind
 * the request, or closed. Both happen on the worker's thread, which has one connection at a
 * time.
 *
 * For a long body connection_ahead() makes TLS read more at once, and connection_read() takes
 * pieces straight from the socket: a buffer that is full, or what has come by the time that
 * nothing more is there. Where no byte comes within SILENCE_US it returns 0.
 *
 * connection_capture() lets an answer be written into memory instead: the listener makes what
 * the lobby's thread sends to a client that gets no worker.
 */
#include "gateway/http/connection.h"

#include <assert.h>
#include <poll.h>
#include <string.h>

#include <civetweb.h>

#include "engine/base/clock.h"
#include "gateway/http/listener_inside.h"
#include "gateway/net/deadline.h"
#include "gateway/net/visitor.h"

enum {
    SILENCE_US = 10 * 1000000, /* between two pieces of a long body */
    STOP_LOOK_MS = 1000,       /* between looks whether the listener closes */
};

static _Thread_local struct {
    visitor *v; /* NULL: none */
    deadline deadline;
    char *capture; /* of connection_capture(); NULL: none */
    size_t captured, capture_cap;
} my;

int connection_socket(void)
{
    return my.v ? my.v->fd : -1;
}

void connection_deadline(int64_t at_us, bool both)
{
    if (my.v) deadline_set(&my.deadline, my.v->fd, at_us, both);
}

network_address connection_peer(void)
{
    return my.v ? networks_of_socket(&my.v->peer) : (network_address){.bits = 0};
}

bool connection_is_stream(void)
{
    return my.v && my.v->is_stream;
}

void connection_cut(void)
{
    if (my.v) my.v->cut = true;
}

/* ------------------------------------------------------------------ begin and end -- */

bool connection_begin(struct lobby *l, char *buf, struct mg_ready *r)
{
    visitor *v = lobby_take(l);
    assert(!my.v); /* a worker has one at a time */
    my.v = v;
    if (!v) return false;
    assert(v->len >= 0 && v->len <= LOBBY_HEAD_BYTES);
    *r = (struct mg_ready){.sock = v->fd, .ssl = v->ssl, .len = v->len};
    memcpy(buf, v->buf, (size_t)v->len);
    (void)visitor_keep(v, NULL, 0);
    return true;
}

void connection_end(struct lobby *l, const char *rest, int n, bool end)
{
    visitor *v = my.v;
    assert(v && n >= 0);
    connection_deadline(0, false);
    my.v = NULL;
    lobby_return(l, v, !visitor_keep(v, rest, end ? 0 : n) || end);
}

/* ------------------------------------------------------------------------- writes -- */

void connection_capture(char *out, size_t cap)
{
    assert(out && cap > 0 && !my.capture);
    my.capture = out;
    my.capture_cap = cap;
    my.captured = 0;
}

size_t connection_captured(void)
{
    my.capture = NULL;
    return my.captured;
}

int connection_write(struct mg_connection *conn, const void *bytes, size_t n)
{
    if (conn) return mg_write(conn, bytes, n);
    assert(my.captured <= my.capture_cap);
    if (!my.capture || n > my.capture_cap - my.captured) return -1;
    memcpy(my.capture + my.captured, bytes, n);
    my.captured += n;
    return (int)n;
}

/* ------------------------------------------------------------------ long bodies -- */

void connection_ahead(bool on)
{
    SSL *ssl = my.v ? my.v->ssl : NULL;
    if (!ssl) return;
    /* A buffer of another size is made when the present one has been released. */
    SSL_set_default_read_buffer_len(ssl, on ? CONNECTION_AHEAD : 0);
    SSL_set_read_ahead(ssl, on);
}

int connection_read(const struct mg_connection *conn, char *to, int cap)
{
    assert(my.v && cap > 0);
    const listener *l = mg_get_user_data(mg_get_context(conn));
    int64_t end_us = clock_now_us() + SILENCE_US;
    for (int n = 0;;) {
        struct pollfd p = {.fd = connection_socket()};
        int got = visitor_read(my.v, to + n, cap - n, &p.events);
        if (got > 0) n += got;
        if (n == cap || (n > 0 && got <= 0)) return n;
        if (got < 0 || atomic_load(&l->closing)) return -1;
        if (got > 0) continue;
        if (clock_now_us() >= end_us) return 0;
        (void)poll(&p, 1, STOP_LOOK_MS);
    }
}
