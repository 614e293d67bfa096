/* tls_reserve.h -- memory that OpenSSL has left when there is none.
 *
 * Each record of TLS 1.3, read or written, takes a few bytes from the heap for a moment (OpenSSL
 * 3.0: WPACKET).  Without them the connection breaks, and nobody is told why.  So OpenSSL allocates
 * here: from the heap, and small pieces from a reserve of ours when that gives nothing.  New
 * handshakes need more and fail.
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
