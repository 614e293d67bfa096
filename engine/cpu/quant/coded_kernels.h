/* coded_kernels.h -- codes that stand for floats (quant.h) become plain values; included once by
 * each file that is compiled for an instruction set.
 *
 * A value is rounded as the file's library rounds it, so products have the bits that they would
 * have had of a matrix that was made plain at load.
 */
#include <stdalign.h>
#include <string.h>

#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

/* Of the scales in memory, where codes are E4M3: they are F16 numbers 2^8 times too small. */
static inline __attribute__((always_inline)) vf coded_e4m3(const uint8_t *codes)
{
#if VEC == 16
    __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)codes)), 7);
    return (vf)_mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16((short)0xBFFF)));
#elif VEC == 8
    __m128i h = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const void *)codes)), 7);
    return (vf)_mm256_cvtph_ps(_mm_and_si128(h, _mm_set1_epi16((short)0xBFFF)));
#else
    vf v;
    for (int i = 0; i < VEC; i++) {
        int code = codes[i];
        v[i] = f16_to_f32((uint16_t)((code & 0x80) << 8 | (code & 0x7F) << 7));
    }
    return v;
#endif
}

/* Codes i .. i + VEC of a line of 4 bits. */
static inline __attribute__((always_inline)) vf coded_four(const uint8_t *codes, const int i,
                                                           const float table[16])
{
    const int half = CODED_LINE / 2, shift = i < half ? 0 : 4;
    codes += i % half;
#if VEC == 16
    __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)codes));
    return (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(at, shift), _mm512_loadu_ps(table));
#elif VEC == 8
    __m256i at =
        _mm256_srli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)codes)), shift);
    __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at),
           high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), at);
    return (vf)_mm256_blendv_ps(low, high, (__m256)_mm256_slli_epi32(at, 28));
#else
    vf v;
    for (int k = 0; k < VEC; k++) v[k] = table[codes[k] >> shift & 15];
    return v;
#endif
}

/* The bits of values rounded to bf16, in the upper halves; no value is NaN but by its scale. */
static inline __attribute__((always_inline)) vi coded_bf16(vf v)
{
    vi u = (vi)v;
    return (u + 0x7FFF + ((u >> 16) & 1)) & (int32_t)0xFFFF0000;
}

static inline __attribute__((always_inline)) vf coded_rounded(vf v, dtype type)
{
    if (type == DT_BF16) return (vf)coded_bf16(v);
    if (type == DT_F32) return v;
#if VEC == 16
    return (vf)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif VEC == 8
    return (vf)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < VEC; i++) v[i] = f16_to_f32(f16_from_f32(v[i]));
    return v;
#endif
}

/* VEC bf16 to `to`. */
static inline __attribute__((always_inline)) void coded_put(uint16_t *to, vf v)
{
#ifdef __AVX512BF16__
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
    uint16_t h __attribute__((vector_size(2 * VEC)));
    h = __builtin_convertvector((vu)coded_bf16(v) >> 16, __typeof__(h));
    memcpy(to, &h, sizeof(h));
#endif
}

/* A line of codes times their scales, as f32 or bf16. */
static inline __attribute__((always_inline)) void coded_line(char *out, const coded_form *f,
                                                             const uint8_t *codes,
                                                             const float *scale, const int bits,
                                                             const bool f32)
{
#pragma GCC unroll 8
    for (int i = 0; i < CODED_LINE; i += VEC) {
        vf v = bits == 8 ? coded_e4m3(codes + i) : coded_four(codes, i, f->table);
        v *= vf_load(scale + i);
        if (f32)
            vf_store((float *)(void *)out + i, coded_rounded(v, f->rounded));
        else
            coded_put((uint16_t *)(void *)out + i, v);
    }
}

/* A block of QUANT_K of k. */
static inline __attribute__((always_inline)) void coded_block(char *out, const coded_form *f,
                                                              const uint8_t *codes,
                                                              float (*scale)[CODED_LINE],
                                                              const int bits, const bool f32)
{
    const int bytes = CODED_LINE * bits / 8;
    for (int line = 0; line < CODED_LINES; line++, codes += bytes) {
        coded_line(out, f, codes, scale[line / (CODED_LINES / 2)], bits, f32);
        out += CODED_LINE * (f32 ? 4 : 2);
    }
}

/* A run's scales in the order of a line: of tiles the first lines have the first 16 columns, each
 * twice, the others the last. */
static inline __attribute__((always_inline)) void coded_scales(float (*out)[CODED_LINE],
                                                               const char *run, bool tiles)
{
    for (int i = 0; i < CODED_LINE; i++) {
        for (int h = 0; h < 2; h++)
            memcpy(&out[h][i], run + sizeof(float) * (size_t)(tiles ? 16 * h + i / 2 : i),
                   sizeof(float));
    }
}

static void coded_piece(void *out, const cpu_weight *w, int p, int k0, int k1)
{
    const coded_form *f = &w->coded;
    const bool f32 = w->pack == PACK_F32;
    const char *panel = (const char *)w->data + (size_t)p * w->panel_bytes;
    alignas(64) float scale[2][CODED_LINE];
    char *to = out;
    for (int k = k0; k < k1; k += QUANT_K, to += QUANT_K * PANEL * (f32 ? 4 : 2)) {
        const char *run = panel + (size_t)(k / f->group) * f->run_bytes;
        const uint8_t *codes = (const uint8_t *)run + PANEL * sizeof(float) +
                               (size_t)(k % f->group / QUANT_K) * f->block_bytes;
        if (k == k0 || k % f->group == 0) coded_scales(scale, run, f->tiles);
        if (f->bits == 8 && f32)
            coded_block(to, f, codes, scale, 8, true);
        else if (f->bits == 8)
            coded_block(to, f, codes, scale, 8, false);
        else if (f32)
            coded_block(to, f, codes, scale, 4, true);
        else
            coded_block(to, f, codes, scale, 4, false);
    }
}
