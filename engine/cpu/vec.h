/* vec.h -- sixteen floats at a time, in GCC's vector extension.
 *
 * The same source is compiled once per instruction set (file suffix); the compiler lowers a 64-byte
 * vector to what the set has.  Multiply-add is contracted to FMA where there is one, the same way
 * for every row, so a row's result never depends on its neighbours.
 *
 * Private to engine/cpu/.
 */
#ifndef ENGINE_CPU_VEC_H
#define ENGINE_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "engine/cpu/halves.h"

/* Everything here is inlined: the calling convention for vectors never matters. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

static inline __attribute__((always_inline)) vf vf_set(float v)
{
    return (vf){v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
}

static inline __attribute__((always_inline)) vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline __attribute__((always_inline)) void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof(v));
}

/* The first n of 16, zero beyond. */
static inline __attribute__((always_inline)) vf vf_load_n(const float *p, int n)
{
    vf v = vf_set(0);
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}

static inline __attribute__((always_inline)) void vf_store_n(float *p, vf v, int n)
{
    memcpy(p, &v, (size_t)n * sizeof(float));
}

static inline __attribute__((always_inline)) vf vf_from_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof(h));
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

static inline __attribute__((always_inline)) vf vf_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t tail[VEC] = {0};
    memcpy(tail, p, (size_t)n * sizeof(*p));
    return vf_from_bf16(tail);
}

/* Fixed order: halves, quarters, ... */
static inline __attribute__((always_inline)) float vf_sum(vf v)
{
    float a[VEC];
    memcpy(a, &v, sizeof(a));
    for (int w = VEC / 2; w; w /= 2) {
        for (int i = 0; i < w; i++) a[i] += a[i + w];
    }
    return a[0];
}

static inline __attribute__((always_inline)) float vf_max(vf v)
{
    float a[VEC];
    memcpy(a, &v, sizeof(a));
    for (int w = VEC / 2; w; w /= 2) {
        for (int i = 0; i < w; i++) a[i] = a[i] > a[i + w] ? a[i] : a[i + w];
    }
    return a[0];
}

static inline __attribute__((always_inline)) vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* exp(x) for x <= about 88, to 2 ulp: 2^k times a polynomial on [-ln2/2, ln2/2] (Cephes' expf
 * coefficients).  Below -87 the result is 0, -inf included; NaN gives NaN. */
static inline __attribute__((always_inline)) vf vf_exp(vf x)
{
    vi tiny = (vi)(x < vf_set(-87.0F));
    vf clamped = vf_select((vi)(x > vf_set(88.0F)), vf_set(88.0F), vf_select(tiny, vf_set(0), x));
    const vf magic = vf_set(12582912.0F); /* 1.5 * 2^23: rounds to an integer when added */
    vf t = clamped * vf_set(1.44269504088896341F) + magic;
    vi k = (vi)t - (vi)magic;
    vf kf = t - magic;
    vf r = clamped - kf * vf_set(0.693359375F);
    r = r - kf * vf_set(-2.12194440e-4F);
    vf p = vf_set(1.9875691500e-4F);
    p = p * r + vf_set(1.3981999507e-3F);
    p = p * r + vf_set(8.3334519073e-3F);
    p = p * r + vf_set(4.1665795894e-2F);
    p = p * r + vf_set(1.6666665459e-1F);
    p = p * r + vf_set(5.0000001201e-1F);
    vf y = p * (r * r) + r + vf_set(1.0F);
    vf scaled = y * (vf)((k + 127) << 23);
    return vf_select(tiny, vf_set(0), scaled);
}

#endif
