/* deadline.h -- sockets that are shut down when their time is up, and
 * owners woken when a peer goes.
 *
 * A worker blocked in a read or write returns at once when the reaper shuts its socket down.  Every
 * deadline is a node that its owner holds; the reaper walks the list of those that are set, so
 * their number has no bound of its own.
 *
 * Ownership: the caller's struct, zeroed before first use; it must be taken off (at_us 0) before
 *            the socket is closed or the struct goes away.
 * Threads: set on any thread, each node by one; the reaper is one thread for the whole process.
 */
#ifndef GATEWAY_NET_DEADLINE_H
#define GATEWAY_NET_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct deadline { /* private */
    struct deadline *next, **link;
    int fd;
    int64_t at_us;
    bool both;
} deadline;

/* The reaper runs while it is held at least once.  Start-up and end alone.  False: it
 * can't run, and is not held. */
bool deadline_reaper_retain(void);
void deadline_reaper_release(void);

/* At `at_us` (monotonic) fd is shut down for reading (and writing if `both`).  Replaces what d was
 * set to; 0 takes it off, and then the reaper touches neither d nor fd any more. */
void deadline_set(deadline *d, int fd, int64_t at_us, bool both);

/* Calls wake(arg) on the reaper's thread, once, when fd's peer has gone or half gone (no more bytes
 * will come); wake is called under a lock and must not block.  One watch for each fd.  False: no
 * memory, or the kernel won't; then the owner has to look for itself. */
bool deadline_watch(int fd, void (*wake)(void *arg), void *arg);
/* Afterwards wake is neither running nor called any more.  Before fd is closed. */
void deadline_unwatch(int fd);

#endif
