/* kv_int8.h -- values as whole numbers up to INT8_CODE_MAX times a scale: the rule of KV pages on
 * the CPU and on CUDA (engine/cuda/rows/turn.h has it for a warp).
 *
 * Threads: any thread.
 */
#ifndef ENGINE_KV_INT8_H
#define ENGINE_KV_INT8_H

#include <math.h>
#include <stdint.h>

#include "engine/base/halves.h"

enum { INT8_CODE_MAX = 127 };

/* The least bf16 by which no value has a code above INT8_CODE_MAX; not a number where one of them
 * is none, so that it shows in the logits as it does with other types. */
static inline uint16_t int8_scale_of(const float *x, int d)
{
    float most = 0, sum = 0;
    for (int i = 0; i < d; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        sum += x[i];
    }
    if (!isfinite(sum)) return bf16_from_f32(NAN);
    uint16_t h = bf16_from_f32(most / (float)INT8_CODE_MAX);
    return bf16_to_f32(h) * (float)INT8_CODE_MAX < most ? (uint16_t)(h + 1) : h;
}

/* scale: of a value of int8_scale_of(). */
static inline int8_t int8_code_of(float x, float scale)
{
    if (!(scale > 0)) return 0;
    const float top = (float)INT8_CODE_MAX;
    float c = rintf(x / scale);
    return (int8_t)(c > top ? top : c < -top ? -top : c);
}

#endif
