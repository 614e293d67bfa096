/* under_way.h -- loads under way: what they have taken so far, and of that waiting for the disk.
 *
 * A request may miss its promise long before the load ends that it waits for; what it missed by is
 * asked for then.  A loader that waits for the disk tells nothing, so it is looked at from outside.
 *
 * Ownership: the loader's own struct, in the list while it loads.  Threads: all but
 * under_way_read() under the lock of whoever owns the list.
 */
#ifndef ADAPTERS_RESIDENCY_UNDER_WAY_H
#define ADAPTERS_RESIDENCY_UNDER_WAY_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct under_way {
    struct under_way *next;
    int thread;                   /* of the kernel's; clock_busy_us_of() */
    int64_t began_us, busy_us;    /* clock_now_us() and what the thread had run, at the begin */
    int64_t looked_us, waited_us; /* when it was looked at last, and the wait for the disk then */
    _Atomic int64_t read_us;      /* all of that wait; negative while it reads */
} under_way;

/* The calling thread begins a load. */
void under_way_begin(under_way **list, under_way *u);
/* All is read, after so long a wait for the disk; without the lock. */
void under_way_read(under_way *u, int64_t waited_us);
/* Nothing happens where it is not in the list. */
void under_way_end(under_way **list, under_way *u);
/* Adds what all of them have taken until now; looks at a thread every 20 ms at most. */
void under_way_add(under_way *list, int64_t now_us, int64_t *disk_us, int64_t *load_us);

#endif
