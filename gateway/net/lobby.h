/* lobby.h -- every connection of a listener that has no complete request head.
 *
 * One thread with epoll accepts, counts and refuses, performs TLS handshakes, reads request heads,
 * and holds idle connections.  A worker receives a connection with lobby_take() when its request is
 * ready, and returns it with lobby_return().  So a connection without a request holds no thread,
 * and an idle one no buffer.
 *
 * A connection that speaks HTTP/2 stays here for good (streams.h): each of its streams is a visitor
 * of its own, which a worker receives and returns like a connection.
 *
 * Each phase of a connection has one time limit for all, so a list per phase is in the order of the
 * deadlines, and its first entry expires first.
 *
 * Ownership: whoever created it destroys it.  A visitor belongs to the lobby's thread, between
 *            lobby_take() and lobby_return() to the worker.
 * Threads: lobby_turn() on the lobby's thread alone (tests: on the test's, without lobby_start());
 *          take and return on any; the rest on the main thread.
 */
#ifndef GATEWAY_NET_LOBBY_H
#define GATEWAY_NET_LOBBY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <openssl/ssl.h>

#include "engine/base/err.h"
#include "gateway/net/peers.h"

enum {
    LOBBY_HEAD_BYTES =
        49152, /* buffered of a request: a head of 32 KiB, and a TLS record of its body */
    LOBBY_OWN_DESCRIPTORS = 2,     /* its epoll and its eventfd */
    LOBBY_REFUSED_MAX = 64,        /* refused connections that may wait for an answer */
    LOBBY_REFUSAL_BYTES = 12288,   /* of an answer that the lobby writes itself */
    LOBBY_SHAKE_US = 10 * 1000000, /* from accept to the end of the handshake */
    LOBBY_HEAD_US = 10 * 1000000,  /* for a request head */
    LOBBY_KEPT_US = 60 * 1000000,  /* between two requests */
    LOBBY_REFUSED_US = 1000000, /* for a refused client to begin TLS, and then to send a request */
    LOBBY_QUEUE_US = 2 * 1000000, /* for a request to wait for a worker while all are busy */
    LOBBY_LINGER_US = 1000000,    /* for a client to read the last answer and close, or send more */
    LOBBY_DRAIN_US = 30 * 1000000, /* for a client that sends on to end its body */
    LOBBY_UNSENT_BYTES =
        256 << 10, /* of an answer, which the client does not read, in the kernel */
};

/* Why the lobby itself answers. */
typedef enum {
    LOBBY_TOTAL_FULL,
    LOBBY_CLIENT_FULL,
    LOBBY_NO_WORKER,
    LOBBY_HEAD_LATE,
    LOBBY_HEAD_CUT,
    LOBBY_NEEDS_TLS,
} lobby_refusal;

typedef struct lobby lobby;
typedef struct visitor visitor; /* one connection (visitor.h) */

typedef struct lobby_options {
    peers *peers; /* borrowed; NULL: max_open is the only limit */
    /* Borrowed; counted where there are peers: open connections, and those over the two limits. */
    _Atomic uint64_t *n_connections, *n_refused_total, *n_refused_per_client;
    /* Borrowed; whether clients are offered HTTP/2; NULL: never.  Counted: connections that speak
     * it, and those that were closed because of a flood of frames. */
    const atomic_bool *http2;
    _Atomic uint64_t *n_http2, *n_http2_floods;
    int max_open; /* without peers: beyond it the oldest idle connection gives way */
    int n_workers, n_queue;
    int64_t (*now_us)(void); /* NULL: clock_now_us() */
    void *arg;
    /* A reference to the TLS context for a new handshake. */
    SSL_CTX *(*context)(void *arg);
    /* Whether these bytes are a whole request head, or cannot become one. */
    bool (*decided)(const char *bytes, int n);
    /* Whether an address may use the sockets without TLS. */
    bool (*takes_plain)(void *arg, const struct sockaddr_storage *from);
    /* Writes the answer to `out` (LOBBY_REFUSAL_BYTES); returns its length. */
    size_t (*refuse)(void *arg, const struct sockaddr_storage *from, lobby_refusal why, char *out);
} lobby_options;

err_code lobby_create(lobby **out, const lobby_options *o, err *e);
/* Ends the thread, and every connection.  No worker may have one. */
void lobby_destroy(lobby *l);

/* Takes ownership of a listening socket, of which there are 2 * LISTEN_MAX at most.  Before
 * lobby_start(). */
err_code lobby_listen(lobby *l, int fd, bool tls, err *e);
err_code lobby_start(lobby *l, err *e);

/* Waits at most wait_ms (-1: as long as it takes) for events, and handles them.  Returns the number
 * of requests that wait for a worker. */
int lobby_turn(lobby *l, int wait_ms);

/* The next connection with a request; NULL: lobby_close() was called. */
visitor *lobby_take(lobby *l);
/* The connection waits for its next request, of which v->buf may have the beginning; `end`: it is
 * closed after the client has read the answer. */
void lobby_return(lobby *l, visitor *v, bool end);
/* Clients of HTTP/2 are told to send no more requests on their connections; what runs goes on. */
void lobby_drain(lobby *l);
/* From now on no connection is accepted: clients wait in the backlog, where the next process finds
 * them (kept.h).  No request is given to a worker; workers in lobby_take() return. */
void lobby_close(lobby *l);

#endif
