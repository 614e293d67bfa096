/* listener_inside.h -- a listener, for itself and its workers' connections.
 *
 * Private to listener.c and connection.c.  Threads: as said at each field.
 */
#ifndef GATEWAY_HTTP_LISTENER_INSIDE_H
#define GATEWAY_HTTP_LISTENER_INSIDE_H

#include <stdatomic.h>
#include <stdbool.h>

#include <civetweb.h>
#include <openssl/ssl.h>

#include "engine/base/lock.h"
#include "gateway/http/listener.h"
#include "gateway/net/peers.h"
#include "gateway/net/spare.h"

struct listener {
    struct mg_context *ctx;
    http_host *host;
    plane plane;
    peers *peers;     /* NULL: connections are not limited */
    lock mu;          /* guards `current` */
    SSL_CTX *current; /* with the certificate for new connections */
    spare_descriptors spare;
    int64_t warned_us; /* the accepting thread's alone */
    char refused[128]; /* while it starts: the address that can't be had, and why */
    int n_workers;
    atomic_int n_busy; /* workers with a connection */
    atomic_bool closing;
};

/* For the next request of this listener. */
unsigned long long listener_next_id(const listener *l);
void listener_count_status(const listener *l, int status);

#endif
