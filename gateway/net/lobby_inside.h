/* lobby_inside.h -- a lobby, for its event loop and for the streams of its connections.
 *
 * Private to lobby.c and streams.c.  Threads: the lobby's alone, but for what `mu` guards.
 */
#ifndef GATEWAY_NET_LOBBY_INSIDE_H
#define GATEWAY_NET_LOBBY_INSIDE_H

#include <pthread.h>

#include "engine/base/lock.h"
#include "gateway/net/listen.h"
#include "gateway/net/lobby.h"
#include "gateway/net/spare.h"
#include "gateway/net/visitor.h"

enum { LOBBY_DOORS_MAX = 2 * LISTEN_MAX }; /* a list of addresses with TLS, and one without */

typedef struct {
    int fd;
    bool tls;
} door;

typedef struct {
    visitor *first, *last;
} queue;

struct lobby {
    lobby_options o;
    int epoll, wake; /* wake: an eventfd */
    door door[LOBBY_DOORS_MAX];
    int n_doors, n_open, n_refused;
    queue phase[PHASES];
    visitor *gone;     /* freed at the end of the turn */
    int64_t resume_us; /* when to accept again; 0: now */
    int64_t warned_us; /* about descriptors */
    int64_t closed_us; /* when closed connections were logged last */
    int n_closed;      /* since then */
    spare_descriptors spare;
    char scratch[LOBBY_HEAD_BYTES];
    struct carrier *carriers; /* connections with streams */
    int n_streams;            /* of all of them, and those that a worker still has */
    bool told;                /* clients have heard of the drain */
    pthread_t thread;
    bool started;
    atomic_bool stop, draining;

    lock mu; /* guards what follows */
    cond ready_cond;
    queue ready, returned;
    int n_ready, n_serving;
    bool closed;
};

int64_t lobby_now(const lobby *l);
/* Into a phase, whose time begins now; out of the list of the one before. */
void lobby_enter(lobby *l, visitor *v, phase p);
/* Asks for one event of the connection's socket.  False: it has ended. */
bool lobby_arm(lobby *l, visitor *v, uint32_t events);
void lobby_end(lobby *l, visitor *v);
/* The struct is freed when no event of this turn can name it any more. */
void lobby_bury(lobby *l, visitor *v);
/* The last answer is written: the client gets a moment to read it and to close. */
void lobby_linger(lobby *l, visitor *v);
/* False: all workers are busy, and enough requests wait; or the lobby is closed. */
bool lobby_queue(lobby *l, visitor *v, bool *closed);
/* Takes it back out of the queue; false: a worker has it, or has returned it. */
bool lobby_withdraw(lobby *l, const visitor *v);

#endif
