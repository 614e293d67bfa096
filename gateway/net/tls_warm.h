/* tls_warm.h -- two handshakes with ourselves before anybody else's.
 *
 * OpenSSL sets up much of itself in the first handshake, once: what fails there for want of memory
 * fails for ever (RUN_ONCE keeps the outcome).  A server whose memory ran out just then would
 * refuse every handshake after, with all the memory in the world.  So the first ones are made at
 * the start, which may fail.
 *
 * Threads: the main thread, before the listeners are opened.
 */
#ifndef GATEWAY_NET_TLS_WARM_H
#define GATEWAY_NET_TLS_WARM_H

#include "engine/base/err.h"
#include "gateway/net/tls.h"

/* With the server's own certificate, TLS 1.3 and 1.2, in memory.  ERR_INPUT where the files do not
 * do for a handshake, or there is no memory for one. */
err_code tls_warm_up(const tls_files *files, err *e);

#endif
