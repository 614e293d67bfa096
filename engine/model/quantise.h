/* quantise.h -- plain values as a quantised source: `model.weights = q8 | q4 | fp8`.
 *
 * q8, q4: groups of 32 columns with a scale that is an F16 value.  q8: codes -127 .. 127.  q4:
 * values -8 .. 7; of a few scales that each group could have, the one with the least squared error.
 * fp8: E4M3 with a scale for a row, a BF16 value: its largest becomes 448.
 *
 * Ownership: the result reads `plain`, which stays as long.  Threads: as weight_source.h says.
 */
#ifndef ENGINE_MODEL_QUANTISE_H
#define ENGINE_MODEL_QUANTISE_H

#include "engine/weight_source.h"

typedef enum { QUANTISE_Q8, QUANTISE_Q4, QUANTISE_FP8 } quantise_form;

/* False: its columns are no whole groups, and it stays as it is. */
bool weight_source_quantise(weight_source *out, const weight_source *plain, quantise_form form);

#endif
