/* visitor.h -- one connection of a lobby, and its steps; nothing here blocks.
 *
 * Ownership and threads: lobby.h.
 */
#ifndef GATEWAY_NET_VISITOR_H
#define GATEWAY_NET_VISITOR_H

#include "gateway/net/lobby.h"

typedef enum {
    PHASE_SHAKING,   /* accepted; the handshake is not complete */
    PHASE_HEAD,      /* a request head is awaited, or incomplete */
    PHASE_KEPT,      /* idle between two requests */
    PHASE_REFUSED,   /* over a limit */
    PHASE_LINGERING, /* answered for the last time */
    PHASE_UNREAD,    /* a stream: its worker has returned it, and the client not read all of it */
    PHASES,          /* the phases above have a list and a time limit */
    PHASE_WORKING,   /* in the queue, with a worker, or a connection of which a stream is */
    PHASE_GONE,      /* closed; freed at the end of the turn */
} phase;

struct visitor {
    visitor *next, *prev; /* in the list of its phase, the queue, or those handed back */
    phase phase;
    int64_t due_us;     /* when its phase, or its wait for a worker, ends */
    int64_t drained_us; /* while it lingers: when it is closed though the client sends on */
    int fd;
    SSL *ssl;                /* NULL: no TLS, or its first record is not complete */
    char *buf;               /* [len] of the request; NULL: none */
    int len, cap;            /* cap: bytes allocated */
    bool tls, shaken;        /* on a TLS socket; the handshake is complete, or there is none */
    bool kept;               /* has had a request */
    bool counted;            /* by peers_enter() */
    bool refused;            /* counts to LOBBY_REFUSED_MAX */
    bool renewed;            /* refused: TLS has begun, which has extended its time once */
    bool ends;               /* handed back to be closed */
    bool is_stream;          /* one of a connection (streams.c); fd is a socket to the lobby */
    bool cut;                /* a stream handed back whose answer is not whole */
    struct carrier *carrier; /* of a connection that has streams; NULL: it has none */
    lobby_refusal why;       /* refused: the limit */
    peer_id id;
    struct sockaddr_storage peer;
};

/* What a connection needs next. */
typedef enum {
    VISITOR_READS,      /* a readable socket */
    VISITOR_WRITES,     /* a writable socket */
    VISITOR_READY,      /* a worker: its head is complete, or cannot become one */
    VISITOR_STREAMS,    /* it speaks HTTP/2 */
    VISITOR_PLAIN_HTTP, /* a refusal: it sends HTTP without TLS to a TLS socket */
    VISITOR_CUT,        /* a refusal: the client has ended within a head */
    VISITOR_ENDED,      /* to be closed */
} visitor_need;

/* Continues the handshake and the head as far as the socket allows.  `hung_up`: the client will
 * send nothing more; `scratch` has LOBBY_HEAD_BYTES. */
visitor_need visitor_advance(visitor *v, const lobby_options *o, bool hung_up, char *scratch);

/* Does not block: the number of bytes; 0: none yet, and *events has what to poll for; -1: none will
 * come. */
int visitor_read(visitor *v, char *to, int cap, short *events);
/* Replaces what is buffered by these bytes.  False: no memory. */
bool visitor_keep(visitor *v, const char *bytes, int n);
/* The same for a write, on TLS; 0: the socket takes nothing now. */
int visitor_send(visitor *v, const void *bytes, size_t n);
/* Writes what the socket takes at once. */
void visitor_write(visitor *v, const char *bytes, size_t n);
/* Ends TLS and the sending side. */
void visitor_finish(visitor *v);
/* Discards what has come.  False: the client has closed. */
bool visitor_drain(visitor *v, char *scratch);
/* Frees all but the struct. */
void visitor_clear(visitor *v);

#endif
