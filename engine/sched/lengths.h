/* lengths.h -- how long answers come out: quantiles learnt for each tenant, adapter and class.
 *
 * A sketch counts answers in bins of a fixed ratio: in each bin those that ended there and those
 * that were cut off there (by max_tokens, or because nobody waited any longer).  What was cut off
 * says only that the answer would have been longer (Kaplan and Meier, 1958), so bounds that clients
 * choose do not pass for lengths.  Old answers are forgotten.  Clients also say something by the
 * bound that they choose: answers below bounds of the same octave are counted together.
 *
 * Little is known of one adapter of one tenant: its sketch is added to a few answers' worth of its
 * tenant's, that to as much of its class's.  The quantile itself is adapted, by class, so that the
 * share of answers that stay below comes out as wanted whatever the lengths do (Gibbs and Candes,
 * 2021).
 *
 * Pure: no clock, no chance.  Memory is fixed: the sketches used longest ago are given up.  Nothing
 * is allocated after lengths_create().
 * Threads: the caller's; one at a time.
 */
#ifndef ENGINE_SCHED_LENGTHS_H
#define ENGINE_SCHED_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct lengths lengths;

/* Whose answer, and at most how long. */
typedef struct lengths_ask {
    uint64_t tenant, adapter; /* adapter 0: the base */
    int slo, max_tokens;      /* class; >= 0 */
} lengths_ask;

typedef struct lengths_guess {
    int mean; /* tokens that are made on average, rounded up */
    int p90;  /* that nine of ten do not exceed; max_tokens: the bound is all that is known */
} lengths_guess;

/* What guesses came to, of one class. */
typedef struct lengths_record {
    uint64_t held, exceeded; /* answers up to their p90, and longer ones */
    uint64_t bounded; /* whose max_tokens was no more than the p90: nothing to be wrong about */
    double loss;      /* sum of the pinball losses of held and exceeded, in tokens */
} lengths_record;

/* For n_class classes and so many sketches of tenants and adapters.  NULL: no memory. */
lengths *lengths_create(int n_class, int n_sketches);
void lengths_destroy(lengths *l);

lengths_guess lengths_look(const lengths *l, const lengths_ask *ask);

/* An answer has ended after `made` tokens; `cut`: by its bound or by its client, not of its own.
 * `was`: what lengths_look() had said of it. */
void lengths_learn(lengths *l, const lengths_ask *ask, const lengths_guess *was, int made,
                   bool cut);

void lengths_record_get(const lengths *l, int slo, lengths_record *out);

#endif
