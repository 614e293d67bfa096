/* cost.h -- how long a step will take: a linear model, fitted while it serves.
 *
 * Time is predicted from what a step holds: a constant, prompt tokens, decode rows, positions
 * attended to, ranks of the adapters it reads, and, of a mixture of experts, the share of them that
 * so many rows take together.  Least squares with forgetting (Ljung,
 * "System Identification", 11.2) follows the machine; coefficients are kept from becoming
 * negative, so more work never looks cheaper, and one step that the system interrupted moves the
 * model only a little.  Errors count in proportion to the step, and what the latest fifteen
 * steps took longer or shorter in common is a factor of its own, for a machine whose speed comes
 * and goes.  A model that is wrong makes chunks too large or too small for some steps, and is
 * corrected by what they took: where they all err to one side, by the factor that they agree on,
 * at once (the machine, or the prior, is another than was thought; what the parts cost in
 * proportion is kept); else by forgetting fast.
 *
 * Pure state, no clock.  Threads: the caller's; one at a time for one model.
 */
#ifndef ENGINE_SCHED_COST_H
#define ENGINE_SCHED_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { COST_TERMS = 6, COST_LEARNING = 8 /* steps before anyone should believe it */ };

typedef struct cost_work {
    double prefill;  /* prompt tokens */
    double decode;   /* rows that make one token each */
    double attended; /* sum over rows of the positions that each looks at */
    double ranks;    /* sum over segments of the adapter's largest rank */
} cost_work;

typedef struct cost_model {
    double theta[COST_TERMS];                          /* microseconds for each scaled term */
    double ff[COST_TERMS][COST_TERMS], fy[COST_TERMS]; /* weighted sums over the steps seen */
    double spread;                                     /* mean absolute residual, microseconds */
    double typical;                                    /* geometric mean of what steps take */
    /* Log of the latest steps' time over what the terms say: others share the machine. */
    double pace;
    double error;  /* mean |predicted - took| / took, each at most 1, over about 50 steps */
    double recent; /* the same over about 10: while it is large, old steps are forgotten fast */
    uint64_t n;
    double run;    /* log of took over predicted: the least of the latest that err to one side */
    int run_n;     /* how many these are */
    double spared; /* share of its experts that one row does not take; 1: there are none */
    uint64_t rescaled; /* n when that was last believed */
} cost_model;

void cost_init(cost_model *c);
/* Each row takes top_k of n experts: a step reads those that any of its rows takes.  n 0: there are
 * none.  Before the first step. */
void cost_experts(cost_model *c, int n, int top_k);

/* Microseconds; 0 as long as nothing was observed. */
double cost_predict(const cost_model *c, const cost_work *w);

/* The same by the terms alone, without what the latest steps took longer or shorter in common. */
double cost_at_rest(const cost_model *c, const cost_work *w);

/* A step with this work took so long.  Ignores what is not a positive number. */
void cost_observe(cost_model *c, const cost_work *w, double took_us);

/* The work of `n` more prompt tokens after `context` positions, of an adapter of `rank` (0:
 * none). */
cost_work cost_with_chunk(const cost_work *w, int n, int context, double rank);

/* The most prompt tokens, at most `want`, that keep the step within budget_us; rounded down to
 * whole multiples of 32 where it is less than asked.  May be 0. */
int cost_chunk(const cost_model *c, const cost_work *w, double budget_us, int want, int context,
               double rank);

#endif
