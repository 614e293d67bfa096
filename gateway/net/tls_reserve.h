/* tls_reserve.h -- memory that OpenSSL has left when there is none.
 *
 * Each record of TLS, read or written, takes a buffer and a few bytes from the heap for a moment.
 * Without them the connection breaks without a reason.  So OpenSSL allocates here: from the
 * heap, and from a reserve of ours when that gives nothing.  Request heads are allocated in the
 * same way (visitor.c, by OPENSSL_malloc()).  New handshakes need more and may fail.
 *
 * Threads: any thread.
 */
#ifndef GATEWAY_NET_TLS_RESERVE_H
#define GATEWAY_NET_TLS_RESERVE_H

#include <stdbool.h>

/* Before anything else of OpenSSL is called; false: it was too late, and OpenSSL goes on
 * without. */
bool tls_reserve_install(void);

#endif
