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
#include "gateway/net/lobby.h"
#include "gateway/net/peers.h"

struct listener {
    struct mg_context *ctx;
    lobby *lobby;
    http_host *host;
    plane plane;
    peers *peers;     /* NULL: connections are not limited */
    lock mu;          /* guards `current` */
    SSL_CTX *current; /* with the certificate for new connections */
    atomic_bool closing;
};

#endif
