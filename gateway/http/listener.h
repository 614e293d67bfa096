/* listener.h -- the listeners: for each plane a lobby and a civetweb context, so that none starves
 * another.
 *
 * The lobby (lobby.h) has the connections without a request, civetweb the workers that answer.  To
 * civetweb are added deadlines for bodies that drip and readers that stop (deadline.h), a limit on
 * connections in all and from each client (peers.h), and a guard against requests that two parsers
 * would read differently (guard.h).
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
    LISTENER_QUEUE = 64,              /* requests of a plane that wait for a worker */
    LISTENER_SMALL_CONNECTIONS = 128, /* of the admin and of the metrics plane */
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

/* Tells the clients of HTTP/2 that their connections take no more requests. */
void listener_drain(listener *l);

/* Loads all files and compares certificate and key, for `lorad check`. */
err_code listener_check_files(const tls_files *files, int64_t *expires_wall_us, err *e);

/* The most descriptors that a listener with so many connections has open at once; n_threads: of the
 * workers to whom streams of HTTP/2 may go; 0: there are none. */
int64_t listener_sockets(const char *addresses, const char *plain, int64_t n_connections,
                         int64_t n_threads);

#endif
