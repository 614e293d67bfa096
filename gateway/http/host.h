/* host.h -- all that gateway/http/ asks of whoever it serves, so that it knows
 * no server, key or tenant.
 *
 * One for all listeners of a process.  The first part is set before listener_open(); afterwards
 * only what is atomic of it changes.  The second is written by listeners and read by anybody.
 *
 * Ownership: the caller's struct, which outlives its listeners.  Threads: any for what is atomic.
 */
#ifndef GATEWAY_HTTP_HOST_H
#define GATEWAY_HTTP_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gateway/http/networks.h"

struct exchange;

typedef struct http_counts {
    _Atomic uint64_t requests[6]; /* by status class: 1xx..5xx at [1]..[5]; [0]: no answer */
    _Atomic uint64_t answering;   /* requests whose answers are not written yet */
    _Atomic uint64_t connections; /* open on the inference listener */
    _Atomic uint64_t refused_total, refused_per_ip; /* connections over the two limits */
    _Atomic uint64_t http2;                         /* of the open ones, those that speak HTTP/2 */
    _Atomic uint64_t http2_floods; /* of these, closed because of a flood of frames */
} http_counts;

typedef struct http_host {
    void *app; /* what the handlers find as x->app */
    /* Answers, on a worker; what it leaves unanswered is a 500. */
    void (*answer)(struct exchange *x);
    /* For request ids: never the same twice, also after a restart. */
    uint64_t (*next_id)(void *app);
    _Atomic int64_t max_body_bytes;  /* of a JSON body */
    _Atomic int64_t body_timeout_us; /* for a body to come, beside the time that its size takes */
    /* Of the inference listener; 0: no limit.  Later: listener_limit(). */
    int64_t max_connections, max_connections_per_ip;
    /* Its addresses without TLS, in listener_open()'s syntax, and whose connections are taken
     * there; NULL: none. */
    const char *plain_listen;
    bool (*takes_plain)(void *app, const network_address *from);

    atomic_bool http2;                    /* offered to new connections of the inference listener */
    atomic_bool draining;                 /* set by the owner: every answer ends its connection */
    _Atomic int64_t cert_expires_wall_us; /* of the certificate in use; 0: unknown */
    http_counts count;
} http_host;

#endif
