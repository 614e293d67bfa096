/* kept.h -- listening sockets that outlive the process: it replaces itself (execve()), and the next
 * one goes on with them.  Meanwhile whoever connects waits in their queues; nobody is refused.
 *
 * Their numbers travel in the environment (LORAD_KEPT, "PID:FD,FD,..."; the process id stays the
 * same).  The next process asks kept_take() for each address before it opens a socket of its own.
 *
 * Threads: main, which opens the listeners, too.
 */
#ifndef GATEWAY_NET_KEPT_H
#define GATEWAY_NET_KEPT_H

#include <sys/socket.h>

#include "engine/base/err.h"

/* Before listeners close: a second descriptor of each listening socket of this process.
 * ERR_LIMIT: there are more than the list holds, or no descriptors; nothing is kept then. */
err_code kept_hold(err *e);

/* This program anew, with the arguments that this process got, and of all descriptors but the
 * first three those that kept_hold() has made, or, before this process listens, those that it was
 * left.  Returns only where that fails: ERR_IO. */
err_code kept_replace(err *e);

/* The kept socket that is bound to this address, which the caller then owns (close-on-exec); -1:
 * the process before has left no such socket. */
int kept_take(const struct sockaddr *to, socklen_t n);

/* All addresses are bound: what nobody has asked for is closed. */
void kept_settle(void);

#endif
