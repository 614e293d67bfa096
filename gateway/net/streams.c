/* streams.c -- HTTP/2 streams as virtual connections: a socket pair per stream between the lobby
 * and a worker.
 *
 *   client == TLS == carrier (h2.c) -- stream.fd [socketpair] visitor.fd -- worker speaking
 *   HTTP/1.1
 *
 * on_begin() turns a request into an HTTP/1.1 head and queues the stream like a connection. The
 * lobby copies body bytes into the pair and the answer out of it: first the head, which becomes
 * HEADERS (read_head()), then DATA on demand (on_read()). Flow control follows from the buffers:
 * the client's window grows when the worker has taken bytes (h2_consumed()); an answer that is not
 * read fills the pair and blocks the worker.
 *
 * A stream ends when both sides are done: `over` (the client's side) and `returned` (the worker's).
 * The lobby's end is closed with the former, which the worker sees as a disconnected client.
 *
 * Streams beyond the first count as connections of their client (admit()), so HTTP/2 cannot evade
 * the limits.
 *
 * Threads: the lobby's. A worker only touches visitor.fd.
 */
#include "gateway/net/streams.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "gateway/net/h2.h"
#include "gateway/net/lobby_inside.h"

enum {
    TURN_READS = 8,           /* of a connection in one turn, a TLS record each */
    TURN_WRITES = 16,         /* of OUT_BYTES */
    OUT_BYTES = 16384,        /* a TLS record */
    ANSWER_HEAD_BYTES = 8192, /* of an answer; exchange.c has less */
    CHUNK_LINE = 20,
    LATE_BODY_BYTES = 64 << 10, /* of a body after its answer, before it is stopped */
};

_Static_assert((int)H2_HEAD_BYTES <= (int)LOBBY_HEAD_BYTES, "a worker has no space for a head");

typedef struct stream {
    visitor v;          /* first member: workers and phase lists hold a pointer to it */
    struct carrier *of; /* NULL: its connection is gone */
    struct stream *next, *prev;
    int32_t id;
    int fd;        /* the lobby's end; -1: closed */
    bool over;     /* for the client */
    bool returned; /* by its worker, or never given to one */
    bool answered; /* the head of the answer has been passed on */
    bool waiting;  /* for bytes from the worker */
    bool counted;  /* by peers_enter() */
    bool chunked;  /* the worker expects the body in chunks */
    bool deaf;     /* the worker takes nothing more of the body */
    bool sent;     /* the answer, whole; the client may still send its body */
    size_t late;   /* bytes of the body that came after that */
    char *in;      /* [in_n] of the body from in_at on, which the pair has not taken */
    size_t in_at, in_n;
    size_t owed; /* bytes of the body that the client may not replace yet */
} stream;

struct carrier {
    struct carrier *next, *prev;
    lobby *l;
    visitor *v;
    h2 *h;
    stream *first;
    int n_live, n_all; /* of its streams: not over; with those that a worker still has */
    bool asked;        /* it has had a request */
    bool leaving;      /* nothing is read from it any more */
    bool more;         /* bytes are left for the next turn */
    bool told;         /* GOAWAY was sent */
    uint8_t *out;      /* [OUT_BYTES], of which [out_at, out_n) waits for the socket; NULL: none */
    size_t out_at, out_n;
};
typedef struct carrier carrier;

static stream *stream_of(visitor *v)
{
    return (stream *)(void *)v;
}

/* ---------------------------------------------------------------------------- the pair -- */

static bool again(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static bool open_pair(const lobby *l, stream *s)
{
    int fd[2];
    struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = s};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) != 0) return false;
    s->fd = fd[0];
    s->v.fd = fd[1];
    s->waiting = true;
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, s->fd, &e) == 0;
}

/* Arms the pair only while something is awaited: a pair whose other end is closed is always
 * reported. */
static void watch(const stream *s)
{
    struct epoll_event e = {.events = EPOLLONESHOT, .data.ptr = (void *)(uintptr_t)s};
    if (s->waiting) e.events |= EPOLLIN;
    if (s->in_n) e.events |= EPOLLOUT;
    if (s->fd >= 0 && e.events != EPOLLONESHOT)
        (void)epoll_ctl(s->of->l->epoll, EPOLL_CTL_MOD, s->fd, &e);
}

static void close_pair(stream *s)
{
    if (s->fd >= 0) (void)close(s->fd);
    s->fd = -1;
    free(s->in);
    s->in = NULL;
    s->in_n = s->in_at = 0;
    s->waiting = false;
}

static void close_workers_end(stream *s)
{
    assert(!s->returned); /* a worker returns it once */
    s->returned = true;
    (void)visitor_keep(&s->v, NULL, 0);
    if (s->v.fd >= 0) (void)close(s->v.fd);
    s->v.fd = -1;
}

/* ----------------------------------------------------------------------------- its life -- */

static void release(lobby *l, stream *s)
{
    carrier *c = s->of;
    if (c) {
        if (s->prev)
            s->prev->next = s->next;
        else
            c->first = s->next;
        if (s->next) s->next->prev = s->prev;
        assert(c->n_all > 0);
        c->n_all--;
    }
    close_pair(s);
    if (s->counted) peers_leave(l->o.peers, s->v.id);
    assert(l->n_streams > 0);
    l->n_streams--;
    lobby_bury(l, &s->v);
}

/* Ends the client's side. False: a worker still has the stream. */
static bool part(lobby *l, stream *s)
{
    s->over = true;
    close_pair(s);
    if (!s->returned && !lobby_withdraw(l, &s->v)) return false;
    release(l, s);
    return true;
}

static void on_over(void *arg)
{
    stream *s = arg;
    assert(s->of && s->of->n_live > 0);
    s->of->n_live--;
    if (s->owed) h2_consumed(s->of->h, s->id, s->owed);
    (void)part(s->of->l, s);
}

/* Every stream beyond a connection's first counts as a connection. */
static bool admit(carrier *c, stream *s, lobby_refusal *why)
{
    lobby *l = c->l;
    if (!l->o.peers || c->n_all == 1) return true;
    peer_verdict verdict = peers_enter(l->o.peers, s->v.id);
    s->counted = verdict == PEER_ADMITTED;
    if (s->counted) return true;
    bool total = verdict == PEER_TOTAL_FULL;
    *why = total ? LOBBY_TOTAL_FULL : LOBBY_CLIENT_FULL;
    atomic_fetch_add(total ? l->o.n_refused_total : l->o.n_refused_per_client, 1);
    return false;
}

/* Resets a stream; the frame is written in the next turn. */
static void reset(stream *s)
{
    const carrier *c = s->of;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLONESHOT, .data.ptr = c->v};
    h2_reset(c->h, s->id, false);
    close_pair(s);
    (void)epoll_ctl(c->l->epoll, EPOLL_CTL_MOD, c->v->fd, &e);
}

static void link_stream(carrier *c, stream *s)
{
    assert(!s->of);
    s->of = c;
    s->next = c->first;
    if (s->next) s->next->prev = s;
    c->first = s;
    c->n_all++;
    c->n_live++;
    c->asked = true;
}

/* A request on an HTTP/2 connection: it becomes a visitor of its own with a pair of sockets,
 * queued for a worker as a connection of HTTP/1 is; refused on the stream where there is no
 * place. NULL: no memory, and the stream is reset. */
static void *on_begin(void *arg, int32_t id, const char *head, size_t n, bool chunked)
{
    carrier *c = arg;
    lobby *l = c->l;
    bool closed;
    lobby_refusal why = LOBBY_NO_WORKER;
    /* At most half of all streams are with a worker or queued: reset the oldest of the others. */
    visitor *oldest = l->phase[PHASE_UNREAD].first;
    if (oldest && l->n_streams >= 2 * (l->o.n_workers + l->o.n_queue)) streams_due(l, oldest);
    stream *s = calloc(1, sizeof(*s));
    if (!s) return NULL;
    l->n_streams++;
    s->fd = -1;
    s->id = id;
    s->chunked = chunked;
    s->v = (visitor){.phase = PHASE_WORKING,
                     .fd = -1,
                     .shaken = true,
                     .is_stream = true,
                     .id = c->v->id,
                     .peer = c->v->peer};
    if (!open_pair(l, s) || !visitor_keep(&s->v, head, (int)n)) {
        release(l, s);
        return NULL;
    }
    link_stream(c, s);
    bool in = admit(c, s, &why);
    if (in && lobby_queue(l, &s->v, &closed)) return s;
    if (in && closed) {
        assert(c->n_live > 0);
        c->n_live--;
        release(l, s);
        return NULL;
    }
    streams_refuse(l, &s->v, why);
    return s;
}

/* -------------------------------------------------------------------------- its request -- */

static void flush(stream *s)
{
    assert(s->fd >= 0 || s->deaf || !s->in_n);
    while (s->in_n && !s->deaf) {
        ssize_t n = send(s->fd, s->in + s->in_at, s->in_n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && again()) {
            watch(s);
            return;
        }
        s->deaf = n < 0;
        if (n < 0) break;
        s->in_at += (size_t)n;
        s->in_n -= (size_t)n;
    }
    free(s->in);
    s->in = NULL;
    s->in_n = s->in_at = 0;
    if (s->owed) h2_consumed(s->of->h, s->id, s->owed);
    s->owed = 0;
}

static void append(stream *s, const void *bytes, size_t n)
{
    assert(s->deaf || s->fd >= 0);
    char *more = s->deaf ? NULL : malloc(s->in_n + n);
    if (!more) {
        if (!s->deaf) reset(s); /* no memory; without a reset the body would look complete */
        s->deaf = true;
        return;
    }
    if (s->in_n) memcpy(more, s->in + s->in_at, s->in_n);
    memcpy(more + s->in_n, bytes, n);
    free(s->in);
    s->in = more;
    s->in_at = 0;
    s->in_n += n;
}

static void on_body(void *arg, const uint8_t *bytes, size_t n)
{
    stream *s = arg;
    char line[CHUNK_LINE];
    s->owed += n;
    s->deaf |= s->fd < 0;
    if (s->chunked) append(s, line, (size_t)snprintf(line, sizeof(line), "%zx\r\n", n));
    append(s, bytes, n);
    if (s->chunked) append(s, "\r\n", 2);
    flush(s);
    /* Accept a short rest: clients lose an answer whose stream is reset before they have begun to
     * send the body (curl 7.88). A client that sends nothing more is reset after 60 s. */
    s->late += s->sent ? n : 0;
    if (s->late > LATE_BODY_BYTES) h2_stop_body(s->of->h, s->id);
}

static void on_body_end(void *arg)
{
    stream *s = arg;
    s->deaf |= s->fd < 0;
    if (s->chunked) append(s, "0\r\n\r\n", 5);
    flush(s);
}

/* --------------------------------------------------------------------------- its answer -- */

static ssize_t on_read(void *arg, uint8_t *to, size_t cap)
{
    stream *s = arg;
    ssize_t n = s->fd < 0 ? -1 : recv(s->fd, to, cap, MSG_DONTWAIT);
    if (n > 0) return n;
    if (s->fd < 0) return H2_CUT;
    s->waiting = n < 0 && again();
    /* The worker's end is closed: it returns the stream soon, or has done so. */
    if (!s->waiting && s->returned) {
        s->sent = !s->v.cut;
        return s->v.cut ? H2_CUT : H2_ALL_READ;
    }
    watch(s);
    return H2_NOTHING_YET;
}

/* Passes on the head of the answer, if it is there, and interim ones before it. */
static void read_head(stream *s)
{
    char *buf = s->of->l->scratch;
    for (bool interim = true; interim;) {
        ssize_t n = recv(s->fd, buf, ANSWER_HEAD_BYTES, MSG_PEEK | MSG_DONTWAIT);
        s->waiting = n > 0 || (n < 0 && again());
        const char *end = n > 0 ? memmem(buf, (size_t)n, "\r\n\r\n", 4) : NULL;
        if (!end && !s->returned && n < ANSWER_HEAD_BYTES) return;
        size_t len = end ? (size_t)(end - buf) + 4 : 0;
        interim = end && memcmp(buf, "HTTP/1.1 1", 10) == 0;
        if (!end || recv(s->fd, buf, len, MSG_DONTWAIT) != (ssize_t)len ||
            !h2_answer(s->of->h, s->id, buf, len)) {
            reset(s);
            return;
        }
    }
    s->answered = true;
    s->waiting = false;
}

static void advance(stream *s)
{
    if (s->fd < 0) return;
    if (s->answered)
        h2_resume(s->of->h, s->id);
    else
        read_head(s);
}

/* ----------------------------------------------------------------------- the connection -- */

/* Writes what there is, as far as the socket takes it.  False: the client is gone. */
static bool write_out(carrier *c)
{
    c->more = false;
    assert(c->out_at <= c->out_n && c->out_n <= OUT_BYTES);
    if (!c->out) c->out = OPENSSL_malloc(OUT_BYTES);
    if (!c->out) return false;
    for (int i = 0;; i++) {
        if (c->out_at == c->out_n) {
            c->out_at = 0;
            c->out_n = h2_send(c->h, c->out, OUT_BYTES);
            if (!c->out_n) break;
        }
        c->more = i == TURN_WRITES;
        if (c->more) return true;
        int n = visitor_send(c->v, c->out + c->out_at, c->out_n - c->out_at);
        if (n < 0) return false;
        c->more = n == 0;
        if (c->more) return true;
        c->out_at += (size_t)n;
    }
    OPENSSL_clear_free(c->out, OUT_BYTES);
    c->out = NULL;
    return true;
}

static void tell(carrier *c)
{
    if (!c->told) h2_go_away(c->h);
    c->told = true;
}

/* Writes pending frames and sets the phase; the connection may be gone afterwards. */
static void settle(carrier *c)
{
    lobby *l = c->l;
    visitor *v = c->v;
    if (!write_out(c)) {
        lobby_end(l, v);
        return;
    }
    if (c->leaving || (!c->more && h2_done(c->h))) {
        lobby_linger(l, v);
        return;
    }
    phase p = c->n_live ? PHASE_WORKING : c->asked ? PHASE_KEPT : PHASE_HEAD;
    if (v->phase != p) lobby_enter(l, v, p);
    (void)lobby_arm(l, v, EPOLLIN | (c->more ? EPOLLOUT : 0));
}

/* Reads the bytes that have arrived.  False: the client has closed the connection. */
static bool read_in(carrier *c)
{
    lobby *l = c->l;
    for (int i = 0; i < TURN_READS && !c->leaving; i++) {
        short events;
        int n = visitor_read(c->v, l->scratch, LOBBY_HEAD_BYTES, &events);
        if (n < 0) return false;
        if (n == 0) return true;
        c->leaving = !h2_receive(c->h, (const uint8_t *)l->scratch, (size_t)n, lobby_now(l));
        explicit_bzero(l->scratch, (size_t)n);
        if (h2_flooded(c->h)) atomic_fetch_add(l->o.n_http2_floods, 1);
    }
    return true;
}

static void on_stream(stream *s, uint32_t events)
{
    carrier *c = s->of;
    bool gone = events & (EPOLLHUP | EPOLLERR);
    if (s->over || !c) return; /* in this turn */
    if (s->in_n && (gone || (events & EPOLLOUT))) flush(s);
    if (s->waiting && (gone || (events & EPOLLIN))) {
        s->waiting = false;
        advance(s);
    }
    watch(s);
    settle(c);
}

void streams_event(lobby *l, visitor *v, uint32_t events)
{
    carrier *c = v->carrier;
    if (v->is_stream)
        on_stream(stream_of(v), events);
    else if (!read_in(c))
        lobby_end(l, v);
    else
        settle(c);
}

void streams_returned(lobby *l, visitor *v)
{
    stream *s = stream_of(v);
    carrier *c = s->of;
    close_workers_end(s);
    if (s->over || !c) {
        release(l, s);
        return;
    }
    lobby_enter(l, v, PHASE_UNREAD);
    advance(s);
    if (l->told) tell(c);
    settle(c);
}

void streams_refuse(lobby *l, visitor *v, lobby_refusal why)
{
    stream *s = stream_of(v);
    char text[LOBBY_REFUSAL_BYTES];
    size_t n = l->o.refuse(l->o.arg, &v->peer, why, text);
    v->cut = send(v->fd, text, n, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)n;
    close_workers_end(s); /* its end of file wakes this thread, which then sends the refusal */
    lobby_enter(l, v, PHASE_UNREAD);
}

void streams_due(lobby *l, visitor *v)
{
    if (v->is_stream) {
        lobby_enter(l, v, PHASE_WORKING);
        reset(stream_of(v));
        return;
    }
    tell(v->carrier);
    (void)write_out(v->carrier);
    lobby_linger(l, v);
}

void streams_open(lobby *l, visitor *v)
{
    carrier *c = calloc(1, sizeof(*c));
    h2_owner owner = {c, on_begin, on_body, on_body_end, on_read, on_over};
    h2 *h = c ? h2_create(&owner, lobby_now(l)) : NULL;
    if (!h) {
        free(c);
        lobby_end(l, v);
        return;
    }
    *c = (carrier){.next = l->carriers, .l = l, .v = v, .h = h};
    if (c->next) c->next->prev = c;
    l->carriers = c;
    v->carrier = c;
    (void)SSL_set_mode(v->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    atomic_fetch_add(l->o.n_http2, 1);
    streams_event(l, v, EPOLLIN); /* TLS may have read more than the handshake */
}

void streams_end(lobby *l, visitor *v)
{
    carrier *c = v->carrier;
    v->carrier = NULL;
    for (stream *s = c->first, *next; s; s = next) {
        next = s->next;
        s->of = NULL;
        if (!s->over && part(l, s)) continue;
        if (s->counted || !v->counted) continue;
        s->counted = true; /* the worker's request still counts against the client */
        v->counted = false;
        atomic_fetch_sub(l->o.n_connections, 1);
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        l->carriers = c->next;
    if (c->next) c->next->prev = c->prev;
    h2_destroy(c->h);
    if (c->out) OPENSSL_clear_free(c->out, OUT_BYTES);
    free(c);
    atomic_fetch_sub(l->o.n_http2, 1);
}

void streams_drain(lobby *l)
{
    l->told = true;
    for (carrier *c = l->carriers, *next; c; c = next) {
        next = c->next;
        tell(c);
        settle(c);
    }
}

void streams_end_all(lobby *l)
{
    while (l->carriers) lobby_end(l, l->carriers->v);
}
