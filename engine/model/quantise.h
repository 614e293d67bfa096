/* quantise.h -- plain values as a quantised source: `model.weights = q8 | q4`.
 *
 * Groups of 32 columns with a scale that is an F16 value.  q8: codes -127 .. 127.  q4: values -8 ..
 * 7; of a few scales that each group could have, the one with the least squared error.
 *
 * Ownership: the result reads `plain`, which stays as long.  Threads: as weight_source.h says.
 */
#ifndef ENGINE_MODEL_QUANTISE_H
#define ENGINE_MODEL_QUANTISE_H

#include "engine/weight_source.h"

enum { QUANTISE_GROUP = 32 };

/* What that takes: codes, and F16 scales. */
static inline size_t quantise_bytes(size_t values, int bits)
{
    return values * (size_t)bits / 8 + values / QUANTISE_GROUP * 2;
}

/* False: its columns are no whole groups, and it stays as it is. */
bool weight_source_quantise(weight_source *out, const weight_source *plain, int bits);

#endif
