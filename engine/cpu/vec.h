/* vec.h -- floats in vectors of the instruction set's own width, in GCC's vector extension.
 *
 * The same source is compiled once per instruction set (file suffix), and VEC follows the set: a
 * wider vector than the registers is lowered through memory, however many registers there are.
 * Multiply-add is contracted to FMA where there is one, the same way for every row, so a row's
 * result never depends on its neighbours.
 *
 * Private to engine/cpu/.
 */
#ifndef ENGINE_CPU_VEC_H
#define ENGINE_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#    include <immintrin.h>
#elif defined(__aarch64__)
#    include <arm_neon.h>
#endif

/* Everything here is inlined: the calling convention for vectors never matters. */
#pragma GCC diagnostic ignored "-Wpsabi"

#if defined(__AVX512BW__)
#    define VEC 16
#elif defined(__AVX2__)
#    define VEC 8
#else
#    define VEC 4
#endif
/* Whether there are 32 registers, not 16. */
#if VEC == 16 || defined(__aarch64__)
#    define VEC_MANY 1
#else
#    define VEC_MANY 0
#endif

typedef float vf __attribute__((vector_size(4 * VEC)));
typedef int32_t vi __attribute__((vector_size(4 * VEC)));
typedef uint32_t vu __attribute__((vector_size(4 * VEC)));
typedef uint16_t vh __attribute__((vector_size(4 * VEC))); /* 2 * VEC halves */
typedef int16_t vs __attribute__((vector_size(4 * VEC)));

/* 2 * VEC floats.  Mixed: of each eight the first four are in a, the others in b, as the unpack
 * instructions, which stay within 128 bits, leave them. */
typedef struct {
    vf a, b;
} vf2;

static inline __attribute__((always_inline)) vf vf_set(float v)
{
    return v - (vf){0}; /* changes no value, -0 and NaN included */
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

/* The first n of VEC, zero beyond. */
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

/* clang-format off */
#define FOUR(i) (i), (i) + 1, (i) + 2, (i) + 3
#define UNPACK(i) (i), 2 * VEC + (i), (i) + 1, 2 * VEC + (i) + 1, \
                  (i) + 2, 2 * VEC + (i) + 2, (i) + 3, 2 * VEC + (i) + 3
#if VEC == 16
#    define UNPACK_A UNPACK(0), UNPACK(8), UNPACK(16), UNPACK(24)
#    define UNPACK_B UNPACK(4), UNPACK(12), UNPACK(20), UNPACK(28)
#    define MIX_A FOUR(0), FOUR(8), FOUR(16), FOUR(24)
#    define MIX_B FOUR(4), FOUR(12), FOUR(20), FOUR(28)
#    define SORT_A FOUR(0), FOUR(16), FOUR(4), FOUR(20)
#    define SORT_B FOUR(8), FOUR(24), FOUR(12), FOUR(28)
#elif VEC == 8
#    define UNPACK_A UNPACK(0), UNPACK(8)
#    define UNPACK_B UNPACK(4), UNPACK(12)
#    define MIX_A FOUR(0), FOUR(8)
#    define MIX_B FOUR(4), FOUR(12)
#    define SORT_A MIX_A
#    define SORT_B MIX_B
#else
#    define UNPACK_A UNPACK(0)
#    define UNPACK_B UNPACK(4)
#    define MIX_A FOUR(0)
#    define MIX_B FOUR(4)
#    define SORT_A MIX_A
#    define SORT_B MIX_B
#endif
/* clang-format on */

static inline __attribute__((always_inline)) vf2 vf2_load(const float *p)
{
    return (vf2){vf_load(p), vf_load(p + VEC)};
}

static inline __attribute__((always_inline)) void vf2_store(float *p, vf2 v)
{
    vf_store(p, v.a);
    vf_store(p + VEC, v.b);
}

/* A bf16 is the upper half of a float: one instruction for each vector.  The result is mixed. */
static inline __attribute__((always_inline)) vf2 vf2_mixed_from_bf16(const uint16_t *p)
{
    vh h, zero = {0};
    memcpy(&h, p, sizeof(h));
    return (vf2){(vf)__builtin_shufflevector(zero, h, UNPACK_A),
                 (vf)__builtin_shufflevector(zero, h, UNPACK_B)};
}

/* One vector, in order; takes more instructions. */
static inline __attribute__((always_inline)) vf vf_from_bf16(const uint16_t *p)
{
    uint16_t h __attribute__((vector_size(2 * VEC)));
    memcpy(&h, p, sizeof(h));
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* One vector of f16, in order.  Where the set has no instruction for it: exponent and fraction
 * are a float that is 2^112 times too small, subnormal numbers included. */
static inline __attribute__((always_inline)) vf vf_from_f16(const uint16_t *p)
{
#if VEC == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
#elif VEC == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
#elif defined(__aarch64__)
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    uint16_t h __attribute__((vector_size(2 * VEC)));
    memcpy(&h, p, sizeof(h));
    vi u = (vi)(__builtin_convertvector(h, vu) << 16);
    return (vf)(u >> 3 & (int32_t)0x8FFFFFFF) * vf_set(0x1p112F);
#endif
}

static inline __attribute__((always_inline)) void vi_store(int32_t *p, vi v)
{
#if VEC == 16
    _mm512_storeu_si512(p, (__m512i)v);
#elif VEC == 8
    _mm256_storeu_si256((void *)p, (__m256i)v);
#else
    memcpy(p, &v, sizeof(v));
#endif
}

/* One vector of whole numbers, in order. */
static inline __attribute__((always_inline)) vi vi_from_i8(const int8_t *p)
{
#if VEC == 16
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
#elif VEC == 8
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p));
#elif defined(__aarch64__)
    int32_t four;
    memcpy(&four, p, sizeof(four));
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)))));
#else
    typedef int8_t bytes __attribute__((vector_size(16)));
    typedef int16_t pairs __attribute__((vector_size(16)));
    vi four = {0};
    memcpy(&four, p, VEC);
    pairs high = (pairs)__builtin_shufflevector((bytes){0}, (bytes)four, 0, 16, 1, 17, 2, 18, 3, 19,
                                                4, 20, 5, 21, 6, 22, 7, 23);
    vi top = (vi)__builtin_shufflevector((pairs){0}, high, 0, 8, 1, 9, 2, 10, 3, 11);
    return top >> 24;
#endif
}

static inline __attribute__((always_inline)) vf vf_from_i8(const int8_t *p)
{
    return __builtin_convertvector(vi_from_i8(p), vf);
}

/* Nearest, ties to even, of |v| < 2^22. */
static inline __attribute__((always_inline)) vi vi_nearest(vf v)
{
#if VEC == 16
    return (vi)_mm512_cvtps_epi32((__m512)v);
#elif VEC == 8
    return (vi)_mm256_cvtps_epi32((__m256)v);
#elif defined(__aarch64__)
    return vcvtnq_s32_f32(v);
#else
    const vf magic = vf_set(0x1.8p23F);
    return (vi)(v + magic) - (vi)magic;
#endif
}

/* sum, and of each two neighbours the products. */
static inline __attribute__((always_inline)) vi vi_add_pairs(vi sum, vs a, vs b)
{
#if VEC == 16
    return sum + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif VEC == 8
    return sum + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return sum + (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    __asm__ volatile("" : "+w"(b)); /* in order: all products first would take all registers */
    return sum + vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
#else
    vi x = (vi)a, y = (vi)b;
    return sum + (x >> 16) * (y >> 16) + (x << 16 >> 16) * (y << 16 >> 16);
#endif
}

static inline __attribute__((always_inline)) vf2 vf2_mixed(vf2 v)
{
    return (vf2){__builtin_shufflevector(v.a, v.b, MIX_A),
                 __builtin_shufflevector(v.a, v.b, MIX_B)};
}

static inline __attribute__((always_inline)) vf2 vf2_sorted(vf2 v)
{
    return (vf2){__builtin_shufflevector(v.a, v.b, SORT_A),
                 __builtin_shufflevector(v.a, v.b, SORT_B)};
}

static inline __attribute__((always_inline)) vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* a > b ? a : b; so b where one of them is no number. */
static inline __attribute__((always_inline)) vf vf_greater(vf a, vf b)
{
#if VEC == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VEC == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select((vi)(a > b), a, b);
#endif
}

/* a < b ? a : b */
static inline __attribute__((always_inline)) vf vf_lesser(vf a, vf b)
{
#if VEC == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VEC == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vf_select((vi)(a < b), a, b);
#endif
}

typedef float vq __attribute__((vector_size(16)));

static inline __attribute__((always_inline)) vq vq_greater(vq a, vq b)
{
#ifdef __SSE2__
    return (vq)_mm_max_ps((__m128)a, (__m128)b);
#else
    typedef int32_t mask __attribute__((vector_size(16)));
    mask m = (mask)(a > b);
    return (vq)(((mask)a & m) | ((mask)b & ~m));
#endif
}

/* Adds the lanes in a fixed order: first the halves, then the quarters, and so on. */
static inline __attribute__((always_inline)) float vf_sum(vf v)
{
    vq q[VEC / 4];
    memcpy(q, &v, sizeof(q));
    for (int n = VEC / 8; n; n /= 2) {
        for (int i = 0; i < n; i++) q[i] += q[i + n];
    }
    q[0] += __builtin_shufflevector(q[0], q[0], 2, 3, 0, 1);
    return q[0][0] + q[0][1];
}

static inline __attribute__((always_inline)) float vf_max(vf v)
{
    vq q[VEC / 4];
    memcpy(q, &v, sizeof(q));
    for (int n = VEC / 8; n; n /= 2) {
        for (int i = 0; i < n; i++) q[i] = vq_greater(q[i], q[i + n]);
    }
    q[0] = vq_greater(q[0], __builtin_shufflevector(q[0], q[0], 2, 3, 0, 1));
    return q[0][0] > q[0][1] ? q[0][0] : q[0][1];
}

/* The largest |x| of n values, a multiple of VEC.  *odd: 0, or no number where one of them is none
 * or infinite. */
static inline __attribute__((always_inline)) float vf_largest(const float *x, int n, float *odd)
{
    vf most = vf_set(0), strange = vf_set(0);
    for (int i = 0; i < n; i += VEC) {
        vf v = vf_load(x + i), a = (vf)((vi)v & 0x7FFFFFFF);
        most = vf_greater(a, most);
        strange += v * vf_set(0);
    }
    *odd = vf_sum(strange);
    return vf_max(most);
}

#include "engine/base/exp.h"

/* exp(x) for x <= about 88.  Below -87 the result is 0, -inf included; NaN gives NaN. */
static inline __attribute__((always_inline)) vf vf_exp(vf x)
{
    const vf least = vf_set(-87.0F), most = vf_set(88.0F);
    vf y = vf_exp_within(vf_lesser(most, vf_greater(least, x)));
    return (vf)((vi)y & ~(vi)(x < least));
}

/* cap * tanh(x / cap), odd to the bit: tanh(|t|) = (1 - e) / (1 + e) with e = exp(-2 |t|). */
static inline __attribute__((always_inline)) vf vf_cap(vf x, float cap)
{
    vi sign = (vi)x & (int32_t)0x80000000;
    vf e = vf_exp((vf)((vi)x & 0x7FFFFFFF) * vf_set(-2.0F / cap));
    vf y = vf_set(cap) * ((vf_set(1.0F) - e) / (vf_set(1.0F) + e));
    return (vf)((vi)y | sign);
}

#endif
