/* nice_pool.h -- a few threads of low priority for long work that must not slow down the engine.
 *
 * A caller hands over a function and sleeps until it has returned, so the number of threads bounds
 * how many cores such work occupies, whatever the number of callers.  A thread cannot raise its own
 * priority again without privileges; therefore the work changes threads instead of its niceness.
 *
 * The queue is in order of arrival, except that a group (a tenant) that has work on a thread
 * already waits while others have none there.
 *
 * Ownership: nice_pool_create(), nice_pool_destroy() with no caller left.
 * Threads:   nice_pool_run() by any thread that holds no lock.
 */
#ifndef ENGINE_PROGRAM_NICE_POOL_H
#define ENGINE_PROGRAM_NICE_POOL_H

#include <stdint.h>

#include "engine/base/err.h"

typedef struct nice_pool nice_pool;

/* `niceness` is added to the process's own. */
err_code nice_pool_create(nice_pool **out, int n_threads, int niceness, err *e);
/* NULL is fine. */
void nice_pool_destroy(nice_pool *p);

/* Runs fn(arg) and returns when it has ended; the result is the processor time that it took, in
 * microseconds.  p NULL: on the calling thread, and 0. */
int64_t nice_pool_run(nice_pool *p, uint64_t group, void (*fn)(void *arg), void *arg);

/* How many callers' functions have not begun. */
int nice_pool_waiting(nice_pool *p);

#endif
