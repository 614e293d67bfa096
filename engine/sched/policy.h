/* policy.h -- the scheduler's judgement: pure functions over a picture of one step.
 *
 * The picture holds who runs, then the first of those that wait in the order of fair.h.
 * policy_plan() says in which order they are offered rows of the next iteration, and how many each
 * may take; policy_victim() says who gives way when pages are short.  Neither touches requests,
 * pages or clocks; sched.c carries the plan out, and tests/sim carries it out on a modelled device.
 *     1. decode rows of running requests: iteration-level scheduling (Orca), stall-free batching
 *        (Sarathi-Serve);
 *     2. prefill chunks fill the rows that are left: what is begun before what waits, unless the
 *        latter is of a more urgent class (raised by waiting); those that wait as they were given.
 * policy_trim() takes streams out of a step again that can wait for a later one, where rows cost so
 * much that not all can run in each; policy_seats() says whether one more would cost them their
 * pace.  policy_budget_us() says how long the step may take: prompts are cut so that the streams
 * beside them keep their pace (Sarathi-Serve), and more so than their targets ask: a step is
 * stretched by a third, or by what the deadlines of the prompts ask, whichever is more.  Where a
 * deadline is missed already there is more work than time: steps last as long as the streams'
 * targets allow, so that more streams share each of them.
 *
 * Threads: any thread.
 */
#ifndef ENGINE_SCHED_POLICY_H
#define ENGINE_SCHED_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sched/cost.h"

typedef struct policy_request {
    bool running;   /* has pages and a seat; else it waits */
    int left;       /* tokens to compute before the next output token; 1 for a decode row */
    int max_chunk;  /* rows it may take at once */
    int class_rank; /* 0 is the most urgent */
    int64_t arrived_us;
    int64_t deadline_us; /* of the first token; 0: none or already made */
    int context;         /* positions that have KV */
    double rank;         /* of its adapter over the streams that use it; 0: none, or not known */
    int64_t due_us;      /* of the next token (policy_due_us); 0: the first is not made */
    int64_t tpot_us;     /* target for each further token; 0: none, it takes part in every step */
    double weight;       /* of its class, in what streams share */
    bool rich;           /* its tenant has more than its share of the seats */
    bool background;     /* it stands back where others wait for a first token */
} policy_request;

typedef struct policy_limits {
    int max_rows;      /* of the step */
    int free_seats;    /* at 0, only those are listed for whom a weaker one could give way */
    int64_t ageing_us; /* waiting this long raises a request by one class */
    double prompts;    /* share of the steps' time that prompts had lately (policy_see_step) */
} policy_limits;

typedef struct policy_entry {
    int request; /* index into the view */
    int n_rows;
} policy_entry;

/* The last part of its time to a first token: a request goes first then, and may take what others
 * have. */
extern const double policy_hurry;

/* Fills `out` (room for n entries) with everyone who may run, decode rows first, then the others,
 * most urgent first; returns the count.  Running requests stand before waiting ones in `rq`.  The
 * caller goes down the list until rows, seats or pages are used up, passing over those whose
 * adapter is not there yet.  `order` is scratch [n]. */
int policy_plan(const policy_request *rq, int n, const policy_limits *lim, int64_t now_us,
                policy_entry *out, int *order);

/* Puts what is in the background behind all others, its decode rows by what is due first; returns
 * how many entries stand before it.  `held` is scratch [n_plan].  Where one of those waits for its
 * first token and has rows, the background has none; else it has what policy_background_us()
 * leaves. */
int policy_hold_back(const policy_request *rq, policy_entry *plan, int n_plan, policy_entry *held);

/* How long a step may be with rows of the background: as long as what the others have in it takes,
 * `others_us`, or else a small part of the tightest target for a first token, `ttft_us`, so that
 * whoever comes meanwhile does not wait for long; and no others' token is late, with `slack_us` to
 * go (INFINITY: none is waited for). */
double policy_background_us(double others_us, double slack_us, int64_t ttft_us);

/* When the next token of a stream is due that has made `made` of them, the first at first_us, the
 * latest at last_us: what it is ahead of its pace counts, for clients read from a buffer, but not
 * so much that two tokens would be many targets apart. */
int64_t policy_due_us(int64_t first_us, int64_t last_us, int made, int64_t tpot_us);

/* Where rows cost so much that not all streams of the plan can run in each step, takes those out
 * of it that can wait for a later one; returns how many entries are left.  *step_us: how long the
 * step may be then; 0: all streams are in it.  Each class has its weighted share of the rows, then
 * come those that cannot wait, by class (raised by waiting), then the others, by what is due
 * first. */
int policy_trim(const policy_request *rq, policy_entry *plan, int n_plan, const policy_limits *lim,
                const cost_model *cost, int64_t now_us, int *order, double *step_us);

typedef enum {
    SEAT_FITS,
    SEAT_THINS, /* the streams of its class would sit out more steps: for now others may pass it */
    SEAT_FULL,  /* a stream would lose its pace: nobody behind it may have a seat */
} policy_seat;

/* What becomes of the pace of those who run if rq[i], which waits, runs as well. */
policy_seat policy_seats(const policy_request *rq, int n, int i, const policy_limits *lim,
                         const cost_model *cost);

/* Brings the prompts' share of the time up to date by a step that took so long. */
double policy_see_step(double prompts, const cost_work *w, const cost_model *cost, double took_us);

/* Microseconds that the step of this plan may take; INFINITY: nobody's next token is waited
 * for, or nothing is known about what steps cost.  `step_us`: of policy_trim().  `least`: tokens by
 * which the first prompt goes on all the same. */
double policy_budget_us(const policy_request *rq, const policy_entry *plan, int n_plan,
                        const cost_model *cost, int64_t now_us, double step_us, int *least);

/* Whether `a` must give way to `b`: its class, raised by waiting, is lower, and `b` has no
 * deadline or one that is near: until then a seat will come free by itself, and nothing is
 * computed twice.  At any two times the answers for (a, b) and (b, a) are not both yes, so no two
 * pre-empt each other in turn. */
bool policy_is_weaker(const policy_request *a, const policy_request *b, const policy_limits *lim,
                      int64_t now_us);

/* Among running requests with allowed[i], the one to pre-empt: lowest class, then latest arrival;
 * -1: none.  `stronger` (-1: nobody): only requests weaker than that one. */
int policy_victim(const policy_request *rq, int n, const bool *allowed, int stronger,
                  const policy_limits *lim, int64_t now_us);

#endif
