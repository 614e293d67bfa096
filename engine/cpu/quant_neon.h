/* quant_neon.h -- the vectors of quant_parts.h on aarch64 with the dot-product instructions: 16
 * bytes of codes each.
 *
 * SDOT multiplies signed bytes alone, so codes of 8 bits lose 128 first (QUANT_WIDE_OFF); USDOT
 * (I8MM) takes them as they are.  Both have operands by element, so four rows of x are one load.
 *
 * Private to engine/cpu/.
 */
#ifndef ENGINE_CPU_QUANT_NEON_H
#define ENGINE_CPU_QUANT_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

typedef int32x4_t qv;
#define QV(op)         qv_##op
#define QV_AND(a, b)   ((a) & (b))
#define QV_OR(a, b)    ((a) | (b))
#define QV_LOAD(p)     vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)(p)))
#define QV_STORE(p, v) vst1q_u8((uint8_t *)(p), vreinterpretq_u8_s32(v))

static inline __attribute__((always_inline)) qv qv_set1_epi8(int v)
{
    return vreinterpretq_s32_s8(vdupq_n_s8((int8_t)v));
}

static inline __attribute__((always_inline)) qv qv_set1_epi32(int32_t v)
{
    return vdupq_n_s32(v);
}

static inline __attribute__((always_inline)) qv qv_srli_epi16(qv v, const int n)
{
    return (qv)((uint16x8_t)v >> (uint16_t)n);
}

static inline __attribute__((always_inline)) qv qv_slli_epi16(qv v, const int n)
{
    return (qv)((uint16x8_t)v << (uint16_t)n);
}

static inline __attribute__((always_inline)) qv qv_shuffle_epi8(qv table, qv at)
{
    return (qv)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)at);
}

/* `value` in the bytes whose bit is set. */
static inline __attribute__((always_inline)) qv quant_bits(const uint8_t *at, const int value)
{
    const uint8x8_t each = vcreate_u8(0x8040201008040201ULL);
    uint8x16_t bits = vcombine_u8(vdup_n_u8(at[0]), vdup_n_u8(at[1]));
    return (qv)(vtstq_u8(bits, vcombine_u8(each, each)) & vdupq_n_u8((uint8_t)value));
}

/* sum += four codes of each column times the four bytes of x in element `i`. */
#ifdef __ARM_FEATURE_MATMUL_INT8
#    define QUANT_ADD(sum, codes, x, i) \
        ((sum) = vusdotq_laneq_s32(sum, (uint8x16_t)(codes), (int8x16_t)(x), i))
#else
#    define QUANT_ADD(sum, codes, x, i) \
        ((sum) = vdotq_laneq_s32(sum, (int8x16_t)(codes), (int8x16_t)(x), i))
#endif

#endif
