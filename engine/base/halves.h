/* halves.h -- scalar conversions of the 16-bit float types.
 *
 * For both backends and for adapters.  Threads: any thread.
 */
#ifndef ENGINE_BASE_HALVES_H
#define ENGINE_BASE_HALVES_H

#include <stdint.h>
#include <string.h>

static inline float bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    if ((u & 0x7FFFFFFFU) > 0x7F800000U) return (uint16_t)((u >> 16) | 0x40U);
    return (uint16_t)((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000U) << 16, exp = (h >> 10) & 0x1FU, man = h & 0x3FFU, u;
    if (exp == 0x1F) {
        u = sign | 0x7F800000U | man << 13;
    } else if (exp) {
        u = sign | (exp + 112) << 23 | man << 13;
    } else { /* zero or subnormal: exact in f32 */
        float f = (float)man * 0x1p-24F;
        memcpy(&u, &f, sizeof(u));
        u |= sign;
    }
    float out;
    memcpy(&out, &u, sizeof(out));
    return out;
}

/* Round to nearest even; too large becomes infinite, NaN stays NaN. */
static inline uint16_t f16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000U);
    u &= 0x7FFFFFFFU;
    if (u > 0x7F800000U) return (uint16_t)(sign | 0x7E00U);
    if (u >= 0x477FF000U) return (uint16_t)(sign | 0x7C00U); /* 65520 and more */
    if (u < 0x38800000U) {                                   /* subnormal: multiples of 2^-24 */
        float a;
        memcpy(&a, &u, sizeof(a));
        a += 0.5F; /* whose last place is 2^-24: the addition rounds */
        memcpy(&u, &a, sizeof(u));
        return (uint16_t)(sign | (u - 0x3F000000U));
    }
    u += 0xFFFU + ((u >> 13) & 1U);
    return (uint16_t)(sign | ((u - 0x38000000U) >> 13));
}

#endif
