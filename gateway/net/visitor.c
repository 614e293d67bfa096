/* visitor.c -- one connection without a complete request head: TLS handshake and head bytes, step
 * by step, never blocking.
 *
 *   first_record() -> begin_tls() -> shake() -> read_head() -> VISITOR_READY
 *
 * visitor_advance() continues where the socket stopped it and returns what to wait for.
 * first_record() peeks at the ClientHello: the SSL object is created only when that record is
 * complete in the socket's buffer, so a client that never completes it costs no memory here.
 * SO_RCVLOWAT makes epoll report the socket only then.
 *
 * A head is offered to the parser only when a line has ended or LOOK_BYTES more have come
 * (may_decide()), so a head sent byte by byte is not parsed at each byte.
 *
 * Buffers hold API keys: they are wiped before they are freed, and allocated with OpenSSL's
 * allocator, which has a reserve for memory shortage (tls_reserve.h), so that the client still gets
 * an answer.
 *
 * Threads: the lobby's, or the worker's that has the connection.
 */
#include "gateway/net/visitor.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>

#include "gateway/net/tls.h"

enum {
    RECORD_HEAD = 5,                  /* bytes of a TLS record's header */
    RECORD_MAX = RECORD_HEAD + 16384, /* of a record in clear text */
    RECORD_HANDSHAKE = 22,            /* the type of a ClientHello's record */
    BUFFER_STEP = 1024,               /* by which a head's buffer grows */
    LOOK_BYTES = 256,                 /* between looks at a line that does not end */
    DRAIN_READS = 16,                 /* in one turn */
};

/* -------------------------------------------------------------------- reads and writes -- */

int visitor_read(visitor *v, char *to, int cap, short *events)
{
    *events = POLLIN;
    if (!v->ssl) {
        ssize_t n = recv(v->fd, to, (size_t)cap, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
        return n > 0 ? (int)n : -1;
    }
    ERR_clear_error();
    int n = SSL_read(v->ssl, to, cap), why = n > 0 ? SSL_ERROR_NONE : SSL_get_error(v->ssl, n);
    if (why == SSL_ERROR_WANT_WRITE) *events = POLLOUT;
    if (n > 0) return n;
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

int visitor_send(visitor *v, const void *bytes, size_t n)
{
    assert(v->ssl && n > 0);
    ERR_clear_error();
    int done = SSL_write(v->ssl, bytes, (int)n);
    if (done > 0) return done;
    int why = SSL_get_error(v->ssl, done);
    ERR_clear_error();
    return why == SSL_ERROR_WANT_WRITE || why == SSL_ERROR_WANT_READ ? 0 : -1;
}

void visitor_write(visitor *v, const char *bytes, size_t n)
{
    ERR_clear_error();
    if (v->ssl && v->shaken)
        (void)SSL_write(v->ssl, bytes, (int)n);
    else if (!v->ssl)
        (void)send(v->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---------------------------------------------------------------------------- buffer -- */

/* These buffers contain keys. Their allocator has a reserve for memory shortage (tls_reserve.h), so
 * the client can be told. */
static void free_buffer(visitor *v)
{
    if (v->buf) explicit_bzero(v->buf, (size_t)v->cap);
    OPENSSL_free(v->buf);
    v->buf = NULL;
    v->len = v->cap = 0;
}

static bool append(visitor *v, const char *bytes, int n)
{
    assert(n > 0 && v->len >= 0 && v->len <= v->cap);
    if (v->cap - v->len < n) {
        int cap = (v->len + n + BUFFER_STEP - 1) / BUFFER_STEP * BUFFER_STEP, len = v->len;
        char *more = OPENSSL_malloc((size_t)cap);
        if (!more) return false;
        if (len) memcpy(more, v->buf, (size_t)len);
        free_buffer(v);
        v->buf = more;
        v->len = len;
        v->cap = cap;
    }
    memcpy(v->buf + v->len, bytes, (size_t)n);
    v->len += n;
    return true;
}

bool visitor_keep(visitor *v, const char *bytes, int n)
{
    free_buffer(v);
    return n == 0 || append(v, bytes, n);
}

/* ----------------------------------------------------------------------------- phases -- */

/* Checks the first TLS record: VISITOR_READY when it is complete, or is no valid one, which OpenSSL
 * then refuses with an alert. */
static visitor_need first_record(visitor *v, bool hung_up)
{
    unsigned char h[RECORD_HEAD];
    int there = 0, wanted = RECORD_HEAD;
    ssize_t n = recv(v->fd, h, sizeof(h), MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return VISITOR_READS;
    if (n <= 0) return VISITOR_ENDED;
    if (isalpha(h[0])) return VISITOR_PLAIN_HTTP;
    if (n == RECORD_HEAD) wanted += h[3] << 8 | h[4];
    if (h[0] != RECORD_HANDSHAKE || wanted > RECORD_MAX) return VISITOR_READY;
    if (ioctl(v->fd, FIONREAD, &there) != 0) return VISITOR_ENDED;
    bool whole = n == RECORD_HEAD && there >= wanted;
    if (!whole && hung_up) return VISITOR_ENDED;
    if (whole) wanted = 1;
    (void)setsockopt(v->fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
    return whole ? VISITOR_READY : VISITOR_READS;
}

static bool begin_tls(visitor *v, const lobby_options *o)
{
    SSL_CTX *ctx = o->context(o->arg);
    v->ssl = SSL_new(ctx);
    SSL_CTX_free(ctx);
    if (!v->ssl || SSL_set_fd(v->ssl, v->fd) != 1) return false;
    SSL_set_accept_state(v->ssl);
    /* A refusal is written in HTTP/1.1. */
    if (o->http2 && atomic_load(o->http2) && !v->refused) tls_offer_h2(v->ssl);
    return true;
}

static visitor_need shake(visitor *v)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(v->ssl);
    int why = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(v->ssl, rc);
    ERR_clear_error();
    if (rc == 1) return VISITOR_READY;
    if (why == SSL_ERROR_WANT_WRITE) return VISITOR_WRITES;
    return why == SSL_ERROR_WANT_READ ? VISITOR_READS : VISITOR_ENDED;
}

/* Whether these n bytes after `old` can complete the head: a line has ended, or LOOK_BYTES more
 * have come. */
static bool may_decide(const char *bytes, int n, int old)
{
    return old == 0 || (old + n) / LOOK_BYTES != old / LOOK_BYTES || memchr(bytes, '\n', (size_t)n);
}

static visitor_need read_head(visitor *v, const lobby_options *o, char *scratch)
{
    for (;;) {
        short events;
        int old = v->len, n = visitor_read(v, scratch, LOBBY_HEAD_BYTES - old, &events);
        assert(old >= 0 && old < LOBBY_HEAD_BYTES); /* a full one is decided */
        if (n < 0) return old ? VISITOR_CUT : VISITOR_ENDED;
        if (n == 0) return events == POLLOUT ? VISITOR_WRITES : VISITOR_READS;
        bool kept = append(v, scratch, n), look = may_decide(scratch, n, old);
        explicit_bzero(scratch, (size_t)n);
        if (!kept) return VISITOR_ENDED;
        if (look && o->decided(v->buf, v->len)) return VISITOR_READY;
    }
}

visitor_need visitor_advance(visitor *v, const lobby_options *o, bool hung_up, char *scratch)
{
    if (v->tls && !v->ssl) {
        visitor_need need = first_record(v, hung_up);
        if (need != VISITOR_READY) return need;
        if (!begin_tls(v, o)) return VISITOR_ENDED;
    }
    if (!v->shaken) {
        visitor_need need = shake(v);
        if (need != VISITOR_READY) return need;
        v->shaken = true;
        if (v->ssl && tls_chose_h2(v->ssl)) return VISITOR_STREAMS;
    }
    return read_head(v, o, scratch);
}

/* -------------------------------------------------------------------------------- end -- */

void visitor_finish(visitor *v)
{
    free_buffer(v);
    ERR_clear_error();
    if (v->ssl && v->shaken) (void)SSL_shutdown(v->ssl);
    SSL_free(v->ssl);
    v->ssl = NULL;
    ERR_clear_error();
    (void)shutdown(v->fd, SHUT_WR);
}

bool visitor_drain(visitor *v, char *scratch)
{
    for (int i = 0; i < DRAIN_READS; i++) {
        /* MSG_TRUNC: the kernel copies nothing. */
        ssize_t n = recv(v->fd, scratch, LOBBY_HEAD_BYTES, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
        if (n <= 0) return false;
    }
    return true;
}

void visitor_clear(visitor *v)
{
    free_buffer(v);
    SSL_free(v->ssl);
    v->ssl = NULL;
    if (v->fd >= 0) (void)close(v->fd);
    v->fd = -1;
}
