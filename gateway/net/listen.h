/* listen.h -- opens the listening sockets of a list of addresses.
 *
 * Accepted forms: port (every IPv4 address), +port (IPv4 and IPv6), host:port, [IPv6 address]:port.
 * A socket that the process before has kept for the same address is used again (kept.h).
 *
 * Ownership: the caller closes the sockets.  Threads: the main thread.
 */
#ifndef GATEWAY_NET_LISTEN_H
#define GATEWAY_NET_LISTEN_H

#include "engine/base/err.h"

enum { LISTEN_MAX = 32, LISTEN_BACKLOG = 511 };

/* Opens a non-blocking socket for each of the addresses, which commas or spaces separate, and
 * appends them to fd[LISTEN_MAX] behind the *n that are there.  On failure the sockets that were
 * appended stay in the list, and the message has the address and the reason. */
err_code listen_open(const char *addresses, int *fd, int *n, err *e);

/* The number of addresses in such a list; NULL: 0. */
int listen_count(const char *addresses);

#endif
