/* cause.h -- where the time of a request goes, and which of it broke its promise.
 *
 * Each request has a clock.  It is set at the few points where the request's state changes (it
 * comes, gets its seat, has its first token, gives way, ends) and attributes all time since the
 * last of them.  What a step brings is added by the step, to sums of the engine and to the work of
 * each of its requests: a clock takes the sums' growth, so a step costs each request one addition.
 *
 *     waiting    queue; with an adapter, while seats were free: adapter_load, and of that storage
 *                in the proportion in which loads waited for the disk
 *     gave way   preemption, until what it had is computed again
 *     running    its own rows (what a step of them alone takes); decode_steps: the rest of the
 *                steps' time, also of steps that it sat out
 *     any        what all lost in it: machine (steps longer than the cost model's terms say, and
 *                pauses between steps), swap, restart; who waits for an adapter loses nothing by
 *                them, and so they come behind
 *
 * The rule: what a request needs itself comes out of the target first.  All else is delay, and the
 * cause is the delay that holds the most; what it needs itself competes with what goes beyond the
 * target, and is called prompt before the first token, machine after it.  Of a request that missed
 * both targets the one counts that it missed by more time.
 *
 * Pure: no clock, no lock, no memory.  Threads: the caller's, one at a time for one clock.
 */
#ifndef ENGINE_WATCH_CAUSE_H
#define ENGINE_WATCH_CAUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/miss.h"

enum { CAUSE_CLASSES = 8 };

/* Of the engine, since its start; they only grow. */
typedef struct cause_sums {
    /* MACHINE, SWAP, RESTART: lost by everybody.  ADAPTER_LOAD: seats were free and the process
     * ran, so only an adapter can have been waited for.  DECODE_STEPS: in steps, without what was
     * MACHINE. */
    int64_t us[MISS_CAUSES];
    int64_t rows_us[CAUSE_CLASSES]; /* of the last, by the class of the rows */
} cause_sums;

typedef enum { CAUSE_WAITS, CAUSE_RUNS, CAUSE_GAVE_WAY } cause_state;

typedef struct cause_clock {
    /* Of the present phase: until the first token, then after it.  [MISS_NONE]: for itself. */
    int64_t us[MISS_CAUSES];
    int64_t at_us;  /* what was before is in `us` */
    int64_t own_us; /* since then, of steps: its own rows */
    cause_state state;
    bool adapter;             /* it needs one */
    int64_t disk_us, load_us; /* the loaders' sums when it came */
    int64_t adapter_us;       /* waited for its adapter, also for the disk, in phases before */
    int64_t rows_us;          /* own_us of the whole phase */
    cause_sums seen;          /* us: as of at_us; rows_us: as of the phase's begin */
    int crowd;                /* class with the most rows beside it in the phase; -1: none */
    miss_cause first;         /* why the first token was late */
    int first_crowd;
    int64_t first_load_us; /* of the wait for it: for the adapter */
} cause_clock;

/* It is with the scheduler and waits.  `limits_us` of the time since its arrival went into looking
 * its limits up, in `stalled_us` its worker did not run though it could have; the rest is its
 * own. */
void cause_begin(cause_clock *c, const cause_sums *s, int64_t arrived_us, int64_t now_us,
                 int64_t limits_us, int64_t stalled_us);

/* The engine has seen it: from here on an adapter may be what it waits for. */
void cause_enter(cause_clock *c, const cause_sums *s, int64_t now_us, bool adapter);

/* A step brought it so many microseconds of its own rows. */
static inline void cause_own(cause_clock *c, int64_t us)
{
    c->own_us += us;
}

/* What it has waited for its adapter so far. */
static inline int64_t cause_adapter_us(const cause_clock *c)
{
    return c->adapter_us + c->us[MISS_ADAPTER_LOAD] + c->us[MISS_STORAGE];
}

/* All until now is attributed; from here on it is in that state. */
void cause_go(cause_clock *c, const cause_sums *s, int64_t now_us, cause_state to);

/* Loads that ended so far took load_us in all, disk_us of it waiting for the disk: what this one
 * waited for its adapter is told apart by how both grew since it came. */
void cause_split_loads(cause_clock *c, int64_t disk_us, int64_t load_us);

/* The first token is there, `late_us` after it was due (0: in time, or no target). */
void cause_first(cause_clock *c, const cause_sums *s, int64_t now_us, int class, int64_t late_us,
                 int64_t target_us);

/* The end: the last phase is whole. */
void cause_end(cause_clock *c, const cause_sums *s, int64_t now_us, int class);

/* By the rule above, over the times of one phase; `own` is what its own time is called. */
miss_cause cause_pick(const int64_t us[MISS_CAUSES], int64_t target_us, miss_cause own);

typedef struct cause_life {
    bool failed; /* no whole answer: it missed, whatever its times */
    err_code code;
    bool unloaded;                            /* it needs an adapter that could not be loaded */
    bool began;                               /* its first token was made */
    int64_t ttft_late_us, tpot_late_us;       /* beyond the targets; 0 or less: met */
    int64_t ttft_target_us, decode_target_us; /* decode: for all tokens after the first */
} cause_life;

typedef struct cause_verdict {
    miss_cause why; /* MISS_NONE: kept */
    int beside;     /* with DECODE_STEPS: the class that had the most rows beside it; else -1 */
} cause_verdict;

/* After cause_end(). */
cause_verdict cause_judge(const cause_clock *c, const cause_life *life);

#endif
