/* logits.h -- what a row of logits needs done to every one of its values, four at a time.
 *
 * Vectors are as wide as every machine has them, so the same logits give the same bits whatever
 * instruction set the kernels chose.
 * Threads: any thread.
 */
#ifndef ENGINE_SAMPLE_LOGITS_H
#define ENGINE_SAMPLE_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A weight below 2^-LOGITS_WEIGHT_BITS of the best's is 0. */
enum { LOGITS_WEIGHT_BITS = 40 };

bool logits_finite(const float *logits, int n);
/* -INFINITY where all are. */
float logits_highest(const float *logits, int n);

/* The first id that has this value; n where none has. */
int logits_first(const float *logits, int n, float value);

/* weight[i] = exp((logits[i] - max) / temperature), to 2 ulp of an argument that is
 * rounded to a float; max is the highest, so the best weigh 1.  Returns the lowest logit
 * of those that weigh something. */
float logits_weigh(float *weight, const float *logits, int n, float max, float temperature);

/* The ids, ascending, of values from lo to hi; `ids` has room for n.  Returns how many. */
int logits_within(const float *logits, int n, float lo, float hi, int32_t *ids);

#ifdef __cplusplus
}
#endif

#endif
