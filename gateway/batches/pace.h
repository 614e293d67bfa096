/* pace.h -- how many lines of batches may run: what more urgent requests leave.
 *
 * Looked at some fifty times a second, from the scheduler's own figures.  One more line a look
 * while nobody waits and steps are short; half as many as soon as a more urgent request waits, a
 * class's first token would come late, or steps take most of the time that a class promises.
 *
 * Pure but for the looking.  Threads: the caller's.
 */
#ifndef GATEWAY_BATCHES_PACE_H
#define GATEWAY_BATCHES_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sched/sched.h"

typedef struct pace_view {
    int most;                 /* lines at once, whatever is idle */
    int max_seqs;             /* seats */
    int n_running, n_waiting; /* in the engine, lines among them */
    int n_lines;              /* of batches, that run or wait */
    int n_urgent;             /* requests of more urgent classes */
    bool crowded;             /* hardly any page is free */
    bool late;                /* a more urgent request's first token would be */
    int64_t step_us;          /* the last step */
    int64_t tpot_us;          /* the tightest target of those urgent ones; 0: there is none */
} pace_view;

/* What may run now, after `allowed` at the look before. */
int pace_next(int allowed, const pace_view *v);

#endif
