/* random_floats.h -- reproducible values for tests of kernels: Knuth's linear congruential
 * generator of 64 bits, of which the upper 31 are used.  Each test has a sequence of its own.
 */
#ifndef TESTS_ENGINE_RANDOM_FLOATS_H
#define TESTS_ENGINE_RANDOM_FLOATS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static uint64_t rng = 1; /* a test that must not depend on those before it sets it */

static inline uint32_t draw(void)
{
    rng = rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng >> 33);
}

/* From -1 to 1. */
static inline float uniform(void)
{
    return (float)draw() / (float)(1U << 30) - 1.0F;
}

/* n values from -scale to scale; free(). */
static inline float *random_floats(size_t n, float scale)
{
    float *v = malloc((n + 1) * sizeof(*v));
    for (size_t i = 0; i < n; i++) v[i] = uniform() * scale;
    return v;
}

#endif
