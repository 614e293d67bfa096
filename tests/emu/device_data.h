/* device_data.h -- arrays on the emulated device, filled by a small
 * generator, for tests of kernels. */
#ifndef TESTS_EMU_DEVICE_DATA_H
#define TESTS_EMU_DEVICE_DATA_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "engine/base/halves.h"
#include "tests/emu/emu.h"

static uint64_t rng_state = 1;

static inline uint32_t draw(void)
{
    rng_state = rng_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(rng_state >> 33);
}

/* In (-spread, spread). */
static inline float draw_float(float spread)
{
    return ((float)(draw() % 65536) / 32768.0F - 1) * spread;
}

static inline int below(int n)
{
    return (int)(draw() % (uint32_t)n);
}

/* A copy on the device; a part of n == 0 is an address all the same. */
static inline void *to_device(const void *src, size_t bytes)
{
    void *p = emu_alloc(bytes ? bytes : 1);
    if (bytes) memcpy(p, src, bytes);
    emu_wrote(p, bytes);
    return p;
}

static inline float *device_random(size_t n, float spread)
{
    float *p = (float *)emu_alloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) p[i] = draw_float(spread);
    emu_wrote(p, n * sizeof(float));
    return p;
}

static inline float *device_empty(size_t n)
{
    return (float *)emu_alloc(n * sizeof(float));
}

static inline void check_near(double got, double want, double tol, const char *what, size_t i)
{
    ck_assert_msg(fabs(got - want) <= tol * (1 + fabs(want)), "%s [%zu]: %.9g instead of %.9g",
                  what, i, got, want);
}

#endif
