/* spare.h -- a few descriptors kept for the moment when there are none.
 *
 * The start makes room for all that the configuration may open (gateway/descriptors.h).  These are
 * for what it can't know: a limit that is lowered later, a system that has no more.
 *
 * Ownership: the caller's struct.  Threads: one.
 */
#ifndef GATEWAY_NET_SPARE_H
#define GATEWAY_NET_SPARE_H

#include <stdbool.h>

enum { SPARE_DESCRIPTORS = 4 };

typedef struct spare_descriptors { /* private */
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
