/* quant_coded.h -- codes that stand for floats: the kernels of plain weights multiply them.
 *
 * They become plain values, each rounded as the file's library rounds it: so products have the bits
 * that they would have had of a matrix that was made plain at load.
 */
#ifndef ENGINE_CPU_QUANT_CODED_H
#define ENGINE_CPU_QUANT_CODED_H

#include "engine/base/halves.h"
#include "engine/cpu/quant_parts.h"

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

/* Values rounded to bf16.  Beside 1.5 * 2^16 times its own power of two a float has no bits for
 * what a bf16 has not: the sum rounds it, ties to even.  |v| < 2^111. */
static inline __attribute__((always_inline)) vf coded_bf16(vf v)
{
    const vf much = (vf)((vi)v & (int32_t)0xFF800000) * vf_set(0x1.8p16F);
    return v + much - much;
}

static inline __attribute__((always_inline)) vf coded_rounded(vf v, dtype type)
{
    if (type == DT_BF16) return coded_bf16(v);
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

#if VEC >= 8

enum { CODED_AHEAD = 1024 }; /* bytes of codes on their way from memory */

/* For one row, codes become values in registers.  4 bits: 16 floats are one vector of AVX-512; of
 * AVX2 the table lies as four tables of bytes, and of a line's values vector l has columns
 * 4l .. 4l + 3 and 16 further ones. */
enum { CODED_VECTORS = CODED_LINE / VEC };

#    if VEC == 16
typedef __m512 coded_table;

static inline __attribute__((always_inline)) coded_table coded_tables(const float values[16])
{
    return _mm512_loadu_ps(values);
}

static inline __attribute__((always_inline)) void
coded_vectors(vf v[CODED_VECTORS], const uint8_t *codes, const coded_table *table, const int bits)
{
    if (bits == 8) {
        __m512i h =
            _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)codes)), 7);
        h = _mm512_and_si512(h, _mm512_set1_epi16((short)0xBFFF));
        v[0] = (vf)_mm512_cvtph_ps(_mm512_castsi512_si256(h));
        v[1] = (vf)_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
        return;
    }
    __m512i at = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)codes));
    v[0] = (vf)_mm512_permutexvar_ps(at, *table);
    v[1] = (vf)_mm512_permutexvar_ps(_mm512_srli_epi32(at, 4), *table);
}

#    else
typedef struct {
    __m256i byte[4];
} coded_table;

static inline __attribute__((always_inline)) coded_table coded_tables(const float values[16])
{
    coded_table t;
    uint8_t byte[4][16];
    for (int i = 0; i < 16; i++) {
        uint32_t v;
        memcpy(&v, &values[i], sizeof(v));
        for (int b = 0; b < 4; b++) byte[b][i] = (uint8_t)(v >> 8 * b);
    }
    for (int b = 0; b < 4; b++)
        t.byte[b] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)byte[b]));
    return t;
}

static inline __attribute__((always_inline)) void
coded_vectors(vf v[CODED_VECTORS], const uint8_t *codes, const coded_table *table, const int bits)
{
    if (bits == 8) {
#        pragma GCC unroll 2
        for (int l = 0; l < CODED_VECTORS; l += 2) {
            __m128i some = _mm_loadu_si128((const void *)(codes + l * VEC));
            __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(some), 7);
            h = _mm256_and_si256(h, _mm256_set1_epi16((short)0xBFFF));
            v[l] = (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(h));
            v[l + 1] = (vf)_mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
        }
        return;
    }
    __m256i at = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)codes)), byte[4];
    at = _mm256_and_si256(_mm256_srlv_epi64(at, _mm256_setr_epi64x(0, 0, 4, 4)),
                          _mm256_set1_epi8(15));
    for (int b = 0; b < 4; b++) byte[b] = _mm256_shuffle_epi8(table->byte[b], at);
    __m256i low = _mm256_unpacklo_epi8(byte[0], byte[1]),
            high = _mm256_unpacklo_epi8(byte[2], byte[3]);
    v[0] = (vf)_mm256_unpacklo_epi16(low, high);
    v[1] = (vf)_mm256_unpackhi_epi16(low, high);
    low = _mm256_unpackhi_epi8(byte[0], byte[1]);
    high = _mm256_unpackhi_epi8(byte[2], byte[3]);
    v[2] = (vf)_mm256_unpacklo_epi16(low, high);
    v[3] = (vf)_mm256_unpackhi_epi16(low, high);
}
#    endif

#    ifdef __AVX512BF16__

/* A line of tiles: 16 columns times a pair of k, as VDPBF16PS takes them. */
static inline __attribute__((always_inline)) __m512bh
coded_pairs(const uint8_t *codes, const coded_table *table, const vf scale[2], const int bits)
{
    vf v[CODED_VECTORS];
    coded_vectors(v, codes, table, bits);
    return _mm512_cvtne2ps_pbh((__m512)(v[1] * scale[1]), (__m512)(v[0] * scale[0]));
}

/* One row of x, which stands in a tile of 16, times a panel. */
static inline __attribute__((always_inline)) void coded_row(float *out, const cpu_weight *w, int p,
                                                            const uint16_t *x, const int bits)
{
    const int tile_bytes = 16 * QUANT_K * (int)sizeof(uint16_t), line_bytes = CODED_LINE * bits / 8;
    const coded_form *f = &w->coded;
    const char *run = (const char *)w->data + (size_t)p * w->panel_bytes;
    const coded_table table = coded_tables(f->table);
    alignas(64) float scale[2][CODED_LINE];
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int k = 0; k < w->head.cols; run += f->run_bytes) {
        const uint8_t *codes = (const uint8_t *)run + PANEL * sizeof(float);
        coded_scales(scale, run, true);
        vf by[2][2];
        for (int i = 0; i < 4; i++) by[i / 2][i % 2] = vf_load(scale[i / 2] + i % 2 * VEC);
        int end = k + f->group < w->head.cols ? k + f->group : w->head.cols;
        for (; k < end; k += QUANT_K) {
            const char *two = (const char *)x + (size_t)(k / QUANT_K) * (size_t)tile_bytes;
            quant_fetch((const char *)codes + CODED_AHEAD, f->block_bytes);
#        pragma GCC unroll 2
            for (int i = 0; i < QUANT_K / 2; i++, two += sizeof(int)) {
                int pair;
                memcpy(&pair, two, sizeof(pair));
                const __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
                const uint8_t *line = codes + i * line_bytes;
                sum[0] = _mm512_dpbf16_ps(sum[0], v, coded_pairs(line, &table, by[0], bits));
                line += QUANT_K / 2 * line_bytes;
                sum[1] = _mm512_dpbf16_ps(sum[1], v, coded_pairs(line, &table, by[1], bits));
            }
            codes += f->block_bytes;
        }
    }
    memcpy(out, sum, sizeof(sum));
}

static void coded_alone(float *out, const cpu_weight *w, int p, const uint16_t *x)
{
    if (w->coded.bits == 8)
        coded_row(out, w, p, x, 8);
    else
        coded_row(out, w, p, x, 4);
}

#    else

/* Columns of vector l: from the first to the second half of a line. */
static inline __attribute__((always_inline)) void coded_columns(float *to, const float *from,
                                                                const int bits, const bool sorted)
{
    for (int i = 0; i < CODED_LINE; i++) {
        int mixed = bits == 8 || VEC == 16 ? i : i / 8 * 4 + i % 4 + i % 8 / 4 * 16;
        to[sorted ? mixed : i] = from[sorted ? i : mixed];
    }
}

/* One row times a panel; the bits are those of the plain panel's product. */
static inline __attribute__((always_inline)) void coded_row(float *out, const cpu_weight *w, int p,
                                                            const float *x, const int bits,
                                                            const dtype rounded)
{
    const coded_form *f = &w->coded;
    const char *run = (const char *)w->data + (size_t)p * w->panel_bytes;
    const int cols = w->head.cols;
    alignas(64) float scale[CODED_LINE], sums[CODED_LINE];
    vf sum[CODED_VECTORS], v[CODED_VECTORS];
    const coded_table table = coded_tables(f->table);
    for (int l = 0; l < CODED_VECTORS; l++) sum[l] = vf_set(0);
    for (int k = 0; k < cols; run += f->run_bytes) {
        const uint8_t *codes = (const uint8_t *)run + sizeof(scale);
        coded_columns(scale, (const float *)(const void *)run, bits, false);
        int end = k + f->group < cols ? k + f->group : cols;
        while (k < end) {
            quant_fetch((const char *)codes + CODED_AHEAD, f->block_bytes);
            const int block = k + QUANT_K < end ? k + QUANT_K : end;
            for (; k < block; k++, codes += CODED_LINE * bits / 8) {
                coded_vectors(v, codes, &table, bits);
#        pragma GCC unroll 4
                for (int l = 0; l < CODED_VECTORS; l++)
                    sum[l] +=
                        vf_set(x[k]) * coded_rounded(v[l] * vf_load(scale + l * VEC), rounded);
            }
        }
    }
    memcpy(sums, sum, sizeof(sums));
    coded_columns(out, sums, bits, true);
}

/* Of values that are rounded to bf16. */
static void coded_alone(float *out, const cpu_weight *w, int p, const float *x)
{
    if (w->coded.bits == 8)
        coded_row(out, w, p, x, 8, DT_BF16);
    else
        coded_row(out, w, p, x, 4, DT_BF16);
}

#    endif
#endif

#endif
