/* listener.h -- the TLS listeners: one civetweb context for each plane, so
 * that none starves another.
 *
 * Also what civetweb does not give: the socket of a connection (to see a client leave),
 * deadlines for bodies that drip and readers that stop (deadline.h), a limit on connections
 * in all and from each client (peers.h), and a guard against requests that two parsers would
 * read differently (guard.h).
 * Threads: the main one.  What runs on workers is connection.h, exchange.h and the host's answer.
 */
#ifndef GATEWAY_HTTP_LISTENER_H
#define GATEWAY_HTTP_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "gateway/http/exchange.h"
#include "gateway/http/host.h"
#include "gateway/net/tls.h"

enum {
    LISTENER_ADMIN_THREADS = 16,
    LISTENER_METRICS_THREADS = 4,
    LISTENER_QUEUE = 64, /* accepted connections of a plane that wait for a worker */
};

typedef struct listener listener;

/* Starts listening on the comma-separated addresses.  `h` is borrowed. */
err_code listener_open(listener **out, http_host *h, plane p, const char *addresses, int n_threads,
                       const tls_files *files, err *e);
/* Cuts what is still open. */
void listener_close(listener *l);

/* New connections of all n listeners get the new certificate, running ones keep theirs.  Cert and
 * key must belong together; on failure every listener stays as it was. */
err_code listener_reload(listener *const *all, int n, const tls_files *files, err *e);

/* Connections from now on; those that are open stay.  For the inference listener. */
void listener_limit(listener *l, int64_t max_connections, int64_t max_connections_per_ip);

/* Loads all files and compares certificate and key, for `lorad check`. */
err_code listener_check_files(const tls_files *files, int64_t *expires_wall_us, err *e);

/* How many sockets a listener with these addresses, those without TLS, and workers may hold at
 * once. */
int64_t listener_sockets(const char *addresses, const char *plain, int64_t n_threads);

#endif
