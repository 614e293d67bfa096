/* ahead.h -- how deep into the queue adapters are fetched.
 *
 * The i-th of those that wait starts after i seats; its adapter is there after i + 1 loads, if
 * all of those before it are fetched now.  Who would find its adapter with time to spare is
 * not fetched yet: its chunks would push out what others use before.  Nor is more fetched than
 * fits beside what is in use.
 *
 * Pure state, no clock.  Threads: the engine's.
 */
#ifndef ENGINE_SCHED_AHEAD_H
#define ENGINE_SCHED_AHEAD_H

#include <stdint.h>

enum { AHEAD_LEAST = 4, AHEAD_UNKNOWN = 16 };

typedef struct ahead {
    double seat_us;       /* from one seat to the next, smoothed; 0: not known */
    int64_t last_seat_us; /* 0: there was none */
} ahead;

/* A request has its seat. */
void ahead_seat(ahead *a, int64_t now_us);
/* How long after now the i-th of those that wait may start; 0: not known. */
int64_t ahead_start_us(const ahead *a, int i);
/* How many of those that wait, from the first on, should have their adapters fetched.
 * load_us: from one adapter fetched to the next (0: not known); room: adapters that fit (0:
 * not known); at most `most`. */
int ahead_depth(const ahead *a, double load_us, int room, int most);

#endif
