/* pace.h -- how many bytes loaders may move to the device while a step of the engine runs.
 *
 * The engine says before each step how long it will take and how long it may take longer
 * before a running stream misses its target (the slack).  A share of the slack, and never
 * less than an eighth of the step, may go into copies; by the rate at which they have gone so
 * far that is a budget of bytes.  A piece is begun as long as some of the budget is left, and
 * what it takes too much is missing in the next step.  Hints leave half of each budget to the
 * loads that requests wait for.
 *
 * Nobody is hurried (no stream has a target, nothing runs): no bound.  An engine that says nothing
 * for PACE_PATIENCE_US hangs or has ended; then loaders go on.
 *
 * Threads: any; one lock of its own.
 */
#ifndef ADAPTERS_RESIDENCY_PACE_H
#define ADAPTERS_RESIDENCY_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/lock.h"

enum {
    PACE_PATIENCE_US = 200000,
    PACE_TURN = 60,         /* percent of a step's time */
    PACE_SPARE_STEPS = 256, /* in so many steps one turn more is saved up */
    PACE_SPARE_MAX = 4,
};

typedef struct pace {
    lock mu;
    cond step;
    int share;           /* percent of the slack; 0: no bound ever */
    int64_t patience_us; /* PACE_PATIENCE_US, but for tests */
    bool bounded;
    double rate;               /* bytes per microsecond, smoothed */
    double budget, left;       /* bytes: of this step, of it not yet taken; negative: a debt */
    double step_us;            /* that this step is to take */
    double spare;              /* turns saved up */
    uint64_t n_steps, n_waits; /* steps with a bound; who had to wait */
} pace;

typedef struct pace_turn { /* of a thread that goes before those that compute */
    uint64_t step;
    int64_t busy_us; /* its processor time when that began, or it itself within the step */
} pace_turn;

typedef struct pace_counts {
    double rate;     /* bytes per second */
    uint64_t budget; /* bytes of the present step; 0: no bound */
    uint64_t n_waits;
} pace_counts;

/* share: percent of the slack that copies may use; 0: no bound ever. */
void pace_init(pace *p, int share);

/* Frees what pace_init() made. No thread may be waiting in pace_take(). */
void pace_clear(pace *p);

/* Before a step: how long it will take, and may take beyond that (INFINITY: as long as it
 * likes). */
void pace_step(pace *p, double step_us, double slack_us);

/* May a piece of so many bytes be moved now?  Then it is taken from the budget.
 * (Loaders wait; tests ask.) */
bool pace_try(pace *p, uint64_t bytes, bool hint);
/* Waits until it may. */
void pace_take(pace *p, uint64_t bytes, bool hint);
/* What a piece has taken. */
void pace_moved(pace *p, uint64_t bytes, int64_t took_us);

/* Around each piece that a loader moves, `p` NULL: no bound.  Waits for its turn, and says when it
 * has begun; tells what it took. */
int64_t pace_begin(pace *p, uint64_t bytes, bool hint);

/* begun_us: what pace_begin() returned. */
void pace_end(pace *p, uint64_t bytes, int64_t begun_us);

/* For other work than copies, at any point of it, with the thread's processor time: who has had
 * PACE_TURN percent of this step waits for the next, and no longer than for two.  As long as turns
 * are saved up it takes one of them instead and goes on: so few steps that take longer are none of
 * the hundredth that a p99 looks at. */
void pace_turn_wait(pace *p, pace_turn *t, int64_t busy_us);

/* A consistent copy; any thread. */
void pace_get(pace *p, pace_counts *out);

#endif
