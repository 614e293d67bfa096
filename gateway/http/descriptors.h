/* descriptors.h -- room for every socket and file that the configuration may open at once.
 *
 * Each plane holds at most so many sockets as it has workers, and a queue: so where the start has
 * found room for all of them, no plane can take what another needs.  The spare ones are for what the start
 * can't know: a limit that is lowered later, a system that has no more.
 *
 * Ownership: spare_descriptors are the caller's.  Threads: claim at the start; spare ones on any.
 */
#ifndef GATEWAY_HTTP_DESCRIPTORS_H
#define GATEWAY_HTTP_DESCRIPTORS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "gateway/config.h"

/* How many the configuration comes to. */
int64_t descriptors_needed(const config *c);

/* Raises RLIMIT_NOFILE as far as the system lets us.  ERR_INPUT, in a sentence with all numbers, where that
 * is less than is needed. */
err_code descriptors_claim(const config *c, err *e);

/* How many are open now, and how many may be.  False: there is none left to look with. */
bool descriptors_look(int64_t *n_open, int64_t *max);

enum { SPARE_DESCRIPTORS = 4 };

typedef struct spare_descriptors { /* private */
    pthread_mutex_t mu;            /* leaf lock */
    int fd[SPARE_DESCRIPTORS];
    int n;
} spare_descriptors;

void spare_open(spare_descriptors *s);
void spare_close(spare_descriptors *s);

/* Gives one to whoever opens the next; false: none is left. */
bool spare_give(spare_descriptors *s);

/* Takes back what can be had. */
void spare_refill(spare_descriptors *s);

#endif
