/* pool.h -- n threads that compute together; the caller is one of them.
 *
 * A run gives the same function to the caller and to each worker that is awake in time, and
 * returns when all that began have ended.  The function must therefore hand out its work piece
 * by piece (pool_next_piece()), so that the caller alone would do it all: a worker whose core
 * is busy elsewhere holds nobody up.  Workers spin for some microseconds between two runs,
 * then sleep and cost nothing.
 *
 * Ownership: pool_create(), pool_destroy().  Threads: one caller at a time.
 */
#ifndef ENGINE_BASE_POOL_H
#define ENGINE_BASE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

typedef struct thread_pool thread_pool;

/* n_threads with the caller; 0: as many as the machine has cores.  ERR_NOMEM, ERR_LIMIT. */
err_code pool_create(thread_pool **out, int n_threads, err *e);
/* NULL is fine. */
void pool_destroy(thread_pool *p);
int pool_threads(const thread_pool *p);

/* fn(arg, thread), thread 0 is the caller. */
void pool_run(thread_pool *p, void (*fn)(void *arg, int thread), void *arg);
/* fn(arg, i) for i in [0, n), on whichever thread is free; returns when all have ended. */
void pool_each(thread_pool *p, void (*fn)(void *arg, int i), void *arg, int n);

/* The next `piece` of n things that nobody has taken: [*from, *to).  False: none is left. */
static inline bool pool_next_piece(atomic_size_t *next, size_t n, size_t piece, size_t *from,
                                   size_t *to)
{
    *from = atomic_fetch_add(next, piece);
    *to = *from + piece < n ? *from + piece : n;
    return *from < n;
}

#endif
