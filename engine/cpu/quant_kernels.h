/* quant_kernels.h -- products of quantised weights; included once by each file that is compiled for
 * an instruction set.
 *
 * Integers within a block, or a run whose scales nest; floats between them.  Rows of x are taken
 * QUANT_ROWS at a time: each vector of codes that is read multiplies all of them, and their sums
 * over a stretch of blocks stay in registers, or in the first-level cache.  Codes of 4 bits are
 * taken from their planes; of other sizes, and by some rows without VNNI, a stretch's codes are put
 * into bytes first, in the first-level cache.  Without VNNI, AVX2 takes QUANT_SOME rows at once.
 *
 * Codes are unsigned: what `least` takes away is added by the sum of x.  With VNNI a product is one
 * instruction (VPDPBUSD).  AVX2 has VPMADDUBSW: codes of few bits are summed in 16 bits as far as
 * they fit; of 8 bits it takes |w| times x with w's sign, whose sums of two stay below 2^15.
 * Elsewhere the plain loop does.
 */
#include <limits.h>
#include <stdalign.h>
#ifdef __AVX2__
#    include <immintrin.h>
#endif

#include "engine/base/halves.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

/* Four products of bytes and their sum are one instruction, of 512 bits or of 256 (AVX-VNNI).
 * QUANT_EVEX: the latter in AVX-512's encoding, for tests where AVX-VNNI itself is missing. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(QUANT_EVEX)
#    define QUANT_VNNI
#endif

enum {
    QUANT_CODES = QUANT_K * PANEL,
    QUANT_QUAD_BYTES = PANEL * QUANT_QUAD,
    QUANT_STRETCH = 8,                     /* blocks */
    QUANT_BLOCKS = QUANT_RUN / QUANT_HALF, /* of a stretch, at most: of a run whose scales nest */
    QUANT_AHEAD = 4096,                    /* bytes */
};
/* Rows taken together; how many take codes of 4 bits from their planes; from how many on QUANT_SOME
 * rows take less time, some of them of zeros, and whether they do with codes of 8 bits; sums of
 * these rows, of 16 or 8 columns each; whether few rows ask for lines; into which cache these come
 * (of __builtin_prefetch; 2: a Zen 4's second waits for more of them); whether sums of 16 bits are
 * times a nested scale's part where they become such of 32. */
#ifdef QUANT_VNNI
enum {
    QUANT_ROWS = 8,
    QUANT_PLANES = INT_MAX,
    QUANT_FILL = QUANT_SOME - 1,
    QUANT_FILLS_WIDE = true,
    QUANT_DOTS = VEC,
    QUANT_SUMS = VEC / 2,
    QUANT_ASKS = false,
    QUANT_INTO = 2,
    QUANT_FOLDS = false
};
#else
enum {
    QUANT_ROWS = 4,
    QUANT_PLANES = 4,
    QUANT_FILL = VEC >= 8 ? 5 : QUANT_SOME,
    QUANT_FILLS_WIDE = false,
    QUANT_DOTS = 4,
    QUANT_SUMS = 4,
    QUANT_ASKS = true,
    QUANT_INTO = 3,
    QUANT_FOLDS = VEC >= 8
};
#endif

/* Two whole numbers of 16 bits in one of 32, or vectors of them. */
#define QUANT_TWO(low, high) (((low)&0xFFFF) | (high) << 16)

/* -------------------------------------------------------- codes that stand for floats -- */

/* They become plain values, each rounded as the file's library rounds it: so products have the bits
 * that they would have had of a matrix that was made plain at load. */

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

/* Lines that are read soon, all at once. */
static inline __attribute__((always_inline)) void quant_fetch(const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, QUANT_INTO);
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

/* -------------------------------------------------------------------------- rows of x -- */

/* The low bytes of QUANT_K numbers: what no number became may be anything. */
static inline __attribute__((always_inline)) void quant_narrow(int8_t code[QUANT_K],
                                                               const vi c[QUANT_K / VEC])
{
#if VEC == 8
    __m256i v[4];
    for (int i = 0; i < 4; i++) v[i] = _mm256_and_si256((__m256i)c[i], _mm256_set1_epi32(255));
    v[0] = _mm256_packus_epi16(_mm256_packus_epi32(v[0], v[1]), _mm256_packus_epi32(v[2], v[3]));
    v[0] = _mm256_permutevar8x32_epi32(v[0], _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    memcpy(code, v, QUANT_K);
#else
    typedef int8_t bytes __attribute__((vector_size(VEC)));
    for (int i = 0; i < QUANT_K / VEC; i++) {
        bytes b = __builtin_convertvector(c[i], bytes);
        memcpy(code + i * VEC, &b, sizeof(b));
    }
#endif
}

/* The sums of both halves. */
static inline __attribute__((always_inline)) void quant_sums(int32_t sums[2],
                                                             const int8_t code[QUANT_K])
{
#ifdef __AVX2__
    __m256i v = _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256((const void *)code));
    int32_t a[8];
    v = _mm256_madd_epi16(v, _mm256_set1_epi16(1));
    memcpy(a, &v, sizeof(a));
    for (int h = 0; h < 2; h++) sums[h] = a[4 * h] + a[4 * h + 1] + a[4 * h + 2] + a[4 * h + 3];
#else
    sums[0] = sums[1] = 0;
    for (int i = 0; i < QUANT_K; i++) sums[i / QUANT_HALF] += code[i];
#endif
}

/* QUANT_K values, times `up`: codes, and their sums by halves. */
static inline __attribute__((always_inline)) void quant_group(int8_t code[QUANT_K], int32_t sums[2],
                                                              const float *x, const vf up)
{
    vi c[QUANT_K / VEC];
    for (int i = 0; i < QUANT_K / VEC; i++) c[i] = vi_nearest(vf_load(x + i * VEC) * up);
    quant_narrow(code, c);
    quant_sums(sums, code);
}

/* The columns [k0, k0 + span) of a row of d values, into its place. */
static inline __attribute__((always_inline)) void
quant_round_span(const quant_rows *to, const quant_side *side, const float *x, int d, int k0)
{
    const size_t some = (size_t)side->some;
    vf up = vf_set(0);
    float scale = 0;
    for (int k = k0; k < k0 + to->span; k += QUANT_K) {
        float last[QUANT_K];
        int8_t code[QUANT_K];
        int32_t sums[2];
        size_t group = (size_t)(k / QUANT_K);
        const float *from = x + k;
        if (d - k < QUANT_K) {
            memset(last, 0, sizeof(last));
            from = memcpy(last, from, (size_t)(d - k) * sizeof(*last));
        }
        if (k == k0) {
            float odd, top = vf_largest(from, to->span, &odd);
            up = vf_set(top > 0 ? 127 / top : 0);
            scale = top / 127 + odd;
        }
        quant_group(code, sums, from, up);
        to->scale[side->scale + group * some] = scale;
        for (size_t h = 0; h < 2; h++) to->sums[side->sums + (2 * group + h) * some] = sums[h];
        int8_t *at = to->code + side->code + (size_t)k * some;
        for (int i = 0; i < QUANT_K; i += QUANT_QUAD, at += QUANT_QUAD * some)
            memcpy(at, code + i, QUANT_QUAD);
    }
}

/* Rows that stand side by side are written together: they share cache lines. */
static void quant_round(const quant_rows *to, int row, int n, const float *x, int d, int k0, int k1)
{
    for (int some; n > 0; row += some, n -= some, x += (size_t)some * (size_t)d) {
        some = QUANT_SOME - row % QUANT_SOME;
        if (some > n) some = n;
        const quant_side first = quant_side_of(to, row);
        for (int k = k0; k < k1; k += to->span) {
            quant_side side = first;
            for (int r = 0; r < some; r++) {
                quant_round_span(to, &side, x + (size_t)r * (size_t)d, d, k);
                side.code += QUANT_QUAD;
                side.scale++;
                side.sums++;
            }
        }
    }
}

/* -------------------------------------------------------------------------- a stretch -- */

/* Lines of the next stretch, asked for some at a time beside products: all at once they would hold
 * these up, and if they came only when they are read, products would wait. */
typedef struct {
    const char *at;
    size_t each; /* bytes */
} quant_asks;

/* Some blocks of a panel, ready for the rows. */
typedef struct {
    const quant_form *form;
    int n;
    const uint8_t *at[QUANT_BLOCKS]; /* codes, in planes or bytes */
    alignas(64) float scale[QUANT_STRETCH][PANEL];
    float off[QUANT_STRETCH][PANEL];        /* their mins, or the codes that stand for zero */
    int32_t part[QUANT_BLOCKS][PANEL];      /* nested: what scale[0] is times; and off[0], or */
    int32_t pairs[QUANT_BLOCKS / 2][PANEL]; /* where there are no mins, `least`: QUANT_TWO */
    const char *head, *next;                /* of the run, of its next block */
    int in, in_group;                       /* k of that within its run and group */
    size_t ahead;                           /* bytes from a line to that which it asks for */
    bool asked;                             /* for its lines, beside products before it */
    quant_asks *soon;                       /* or NULL: none are asked for so */
} quant_stretch;

/* What rows of x are for a stretch. */
typedef struct {
    const int8_t *code; /* [quad][some][QUANT_QUAD] */
    int some;
    int32_t start[QUANT_BLOCKS][QUANT_ROWS];                                 /* of a block's sums */
    float scale[QUANT_STRETCH][QUANT_ROWS], lean[QUANT_STRETCH][QUANT_ROWS]; /* lean: times off */
    int32_t leans[QUANT_BLOCKS / 2][QUANT_SOME]; /* nested: QUANT_TWO of sums, times pairs */
} quant_terms;

static inline __attribute__((always_inline)) void quant_floats(float *out, const char *at,
                                                               dtype type)
{
    /* A loop's end would be guessed wrong before each block. */
#pragma GCC unroll 8
    for (int j = 0; j < PANEL; j += VEC) {
        vf v;
        if (type == DT_F32)
            memcpy(&v, at + (size_t)j * 4, sizeof(v));
        else if (type == DT_BF16)
            v = vf_from_bf16((const void *)(at + (size_t)j * 2));
        else
            v = vf_from_f16((const void *)(at + (size_t)j * 2));
        vf_store(out + j, v);
    }
}

/* A run's scales and, where it has them, its mins or zeros. */
static inline __attribute__((always_inline)) void quant_head(float *scale, float *off,
                                                             const quant_form *f, const char *head)
{
    quant_floats(scale, head, f->scale_type);
    if (f->has_min)
        quant_floats(off, head + (size_t)PANEL * dtype_bytes(f->scale_type), f->scale_type);
    if (f->form != SCALES_ZERO) return;
    for (int j = 0; j < PANEL; j++) {
        int16_t zero;
        memcpy(&zero, head + f->parts_at + (size_t)j * sizeof(zero), sizeof(zero));
        off[j] = (float)zero;
    }
}

/* Nested: what the n blocks' scales, and mins, are of the run's. */
static inline __attribute__((always_inline)) void quant_parts(quant_stretch *s)
{
    const quant_form *f = s->form;
    const int8_t *part = (const int8_t *)s->head + f->parts_at,
                 *of = f->has_min ? part + f->min_parts : part;
    for (int i = 0; i < s->n; i++, part += PANEL) {
        for (int j = 0; j < PANEL; j += VEC) vi_store(s->part[i] + j, vi_from_i8(part + j));
    }
    for (int i = 0; (f->has_min || QUANT_FOLDS) && i < s->n / 2; i++, of += 2 * PANEL) {
        for (int j = 0; j < PANEL; j += VEC) {
            vi low = vi_from_i8(of + j), high = vi_from_i8(of + PANEL + j);
            vi_store(s->pairs[i] + j, QUANT_TWO(low, high));
        }
    }
}

/* The panel's first block is next. */
static inline __attribute__((always_inline)) void quant_begin(quant_stretch *s, const char *panel)
{
    s->n = 0;
    s->head = panel;
    s->in = s->in_group = 0;
}

/* Where the next block lies, or its run, where it is the first one's. */
static inline const char *quant_place(const quant_stretch *s)
{
    return s->in == 0 ? s->head : s->next;
}

/* Of as many bytes as the stretch that began at `from` has: the next one's, in so many parts. */
static inline quant_asks quant_asks_of(const quant_stretch *s, const char *from, int parts)
{
    const char *at = quant_place(s);
    return (quant_asks){at, (size_t)(at - from) / (size_t)(parts * s->n) + 1};
}

static inline __attribute__((always_inline)) void quant_ask(const quant_stretch *s)
{
    if (!s->soon) return;
    quant_fetch(s->soon->at, s->soon->each);
    s->soon->at += s->soon->each;
}

/* The next n blocks; nested: those of a run. */
static inline __attribute__((always_inline)) void quant_read(quant_stretch *s, int n)
{
    const quant_form *f = s->form;
    const bool asks = !s->asked && (QUANT_ASKS || (f->bits != 8 && f->bits != 4));
    const bool nested = f->form == SCALES_NESTED;
    int last = s->n - 1;
    s->n = n;
    for (int i = 0; i < n; last = i++) {
        if (s->in == 0) {
            s->next = s->head + f->codes_at;
            if (asks || s->ahead) quant_fetch(s->head + s->ahead, f->codes_at);
        }
        if (asks) quant_fetch(s->next, f->block_bytes);
        s->at[i] = (const uint8_t *)s->next;
        if (s->in == 0) quant_head(s->scale[i], s->off[i], f, s->head);
        if (s->in == 0 && nested) quant_parts(s);
        if (s->in_group > 0 && last != i) {
            memcpy(s->scale[i], s->scale[last], sizeof(s->scale[i]));
            memcpy(s->off[i], s->off[last], sizeof(s->off[i]));
        }
        s->next += f->block_bytes;
        s->in += f->k;
        if ((s->in_group += f->k) == f->group) s->in_group = 0;
        if (s->in < f->span) continue;
        s->head += f->run_bytes;
        s->in = 0;
    }
}

/* Of rows from `row` on, within one group of QUANT_SOME; `least`: what codes are less. */
static inline __attribute__((always_inline)) void quant_terms_of(quant_terms *t,
                                                                 const quant_stretch *s,
                                                                 const quant_rows *x, int row,
                                                                 int k0, const int rows, int least)
{
    const quant_form *f = s->form;
    const quant_side side = quant_side_of(x, row);
    const size_t some = (size_t)side.some;
    t->code = x->code + side.code + (size_t)k0 * some;
    t->some = side.some;
    const bool two = f->k == QUANT_K, nested = f->form == SCALES_NESTED;
    for (int i = 0; i < s->n; i++) {
        size_t k = (size_t)(k0 + i * f->k);
        const float *scale = x->scale + side.scale + k / QUANT_K * some;
        const int32_t *sums = x->sums + side.sums + k / QUANT_HALF * some;
        int32_t sum[QUANT_ROWS];
        memcpy(sum, sums, (size_t)rows * sizeof(*sum));
        for (int r = 0; two && r < rows; r++) sum[r] += sums[some + (size_t)r];
        for (int r = 0; r < rows; r++) t->start[i][r] = least * sum[r];
        for (int r = 0; nested && r < rows; r++)
            t->leans[i / 2][r] =
                i % 2 ? (int32_t)QUANT_TWO((uint32_t)t->leans[i / 2][r], (uint32_t)sum[r]) : sum[r];
        if (nested && i > 0) continue;
        memcpy(t->scale[i], scale, (size_t)rows * sizeof(*scale));
        for (int r = 0; r < rows; r++) t->lean[i][r] = (float)sum[r];
        for (int r = 0; f->has_min && r < rows; r++) t->lean[i][r] *= scale[r];
    }
}

/* ------------------------------------------------------------------------------- codes -- */

#ifdef __AVX2__

#    ifdef __AVX512VNNI__
typedef __m512i qv;
#        define QV(op)         _mm512_##op
#        define QV_AND         _mm512_and_si512
#        define QV_OR          _mm512_or_si512
#        define QV_LOAD(p)     _mm512_loadu_si512((const void *)(p))
#        define QV_STORE(p, v) _mm512_storeu_si512((void *)(p), v)
#    else
typedef __m256i qv;
#        define QV(op)         _mm256_##op
#        define QV_AND         _mm256_and_si256
#        define QV_OR          _mm256_or_si256
#        define QV_LOAD(p)     _mm256_loadu_si256((const void *)(p))
#        define QV_STORE(p, v) _mm256_storeu_si256((void *)(p), v)
#    endif
enum { QV_BYTES = sizeof(qv) };

/* `value` in the bytes whose bit is set. */
static inline __attribute__((always_inline)) qv quant_bits(const uint8_t *at, const int value)
{
#    ifdef __AVX512VNNI__
    uint64_t bits;
    memcpy(&bits, at, sizeof(bits));
    return _mm512_maskz_set1_epi8((__mmask64)bits, (char)value);
#    else
    int32_t bits;
    memcpy(&bits, at, sizeof(bits));
    const __m256i place = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                             0x0303030303030303),
                  each = _mm256_set1_epi64x((int64_t)0x8040201008040201ULL);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), place), each);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, each), _mm256_set1_epi8((char)value));
#    endif
}

/* Codes from the i-th on, of n (quant.h's head). */
static inline __attribute__((always_inline)) qv quant_codes(const uint8_t *at, const int i,
                                                            const int n, const int bits)
{
    if (bits == 8) return QV_LOAD(at + i);
    qv v = QV_LOAD(at + (bits >= 4 ? i % (n / 2) : i / 256 * 64 + i % 64));
    const int shift = 2 * (i / 64 % 4);
    if (bits < 4) {
        v = QV_AND(QV(srli_epi16)(v, shift), QV(set1_epi8)(3));
    } else {
        v = QV_AND(i < n / 2 ? v : QV(srli_epi16)(v, 4), QV(set1_epi8)(15));
    }
    if (bits == 6) {
        qv two = QV_LOAD(at + n / 2 + i / 256 * 64 + i % 64);
        two = shift < 4 ? QV(slli_epi16)(two, 4 - shift) : QV(srli_epi16)(two, shift - 4);
        v = QV_OR(v, QV_AND(two, QV(set1_epi8)(48)));
    }
    if (bits == 5 || bits == 3)
        v = QV_OR(v, quant_bits(at + n * (bits - 1) / 8 + i / 8, 1 << (bits - 1)));
    return v;
}

/* The table in each 16 bytes of a vector. */
static inline __attribute__((always_inline)) qv quant_table(const uint8_t table[16])
{
    __m128i sixteen;
    memcpy(&sixteen, table, sizeof(sixteen));
#    ifdef __AVX512VNNI__
    return _mm512_broadcast_i32x4(sixteen);
#    else
    return _mm256_broadcastsi128_si256(sixteen);
#    endif
}

static inline __attribute__((always_inline)) qv quant_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof(four));
    return QV(set1_epi32)(four);
}

/* A block's codes to bytes. */
static inline __attribute__((always_inline)) void quant_spread(uint8_t *out, const uint8_t *at,
                                                               const quant_form *f, const int n,
                                                               const int bits, const bool mapped)
{
    const qv table = quant_table(f->table);
#    pragma GCC unroll 32
    for (int i = 0; i < n; i += QV_BYTES) {
        qv v = quant_codes(at, i, n, bits);
        QV_STORE(out + i, mapped ? QV(shuffle_epi8)(table, v) : v);
    }
}

#else

static inline __attribute__((always_inline)) void quant_spread(uint8_t *out, const uint8_t *at,
                                                               const quant_form *f, const int n,
                                                               const int bits, const bool mapped)
{
    for (int i = 0; i < n; i++) {
        int code = quant_code(at, (size_t)i, (size_t)n, bits);
        out[i] = mapped ? f->table[code] : (uint8_t)code;
    }
}

#endif

/* ---------------------------------------------------------------------------- products -- */

#ifdef __AVX2__
typedef float qf __attribute__((vector_size(QV_BYTES)));
typedef int32_t qi __attribute__((vector_size(QV_BYTES)));
#else
typedef vf qf;
typedef vi qi;
#endif
enum { QUANT_COLS = sizeof(qf) / sizeof(float) };

static inline __attribute__((always_inline)) qf quant_load(const float *p)
{
    qf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline __attribute__((always_inline)) qi quant_load_whole(const int32_t *p)
{
    qi v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* a * b + c, rounded once where the set can: the compiler's own choice would differ with the number
 * of rows. */
static inline __attribute__((always_inline)) qf quant_fma(qf a, qf b, qf c)
{
#ifdef __AVX512VNNI__
    return (qf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (qf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Of each row: a run's pairs from column c on times its leans (quant_terms). */
static inline __attribute__((always_inline)) void quant_leans(qi *sum, const quant_stretch *s,
                                                              const int32_t (*leans)[QUANT_SOME],
                                                              const int rows, int c, bool wanted)
{
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sum[r] = (qi){0};
    for (int i = 0; wanted && i < s->n / 2; i++) {
        const qi pair = quant_load_whole(s->pairs[i] + c);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const int32_t two = leans[i][r];
#ifdef __AVX512VNNI__
            sum[r] =
                (qi)_mm512_dpwssd_epi32((__m512i)sum[r], (__m512i)pair, _mm512_set1_epi32(two));
#elif defined(__AVX2__)
            sum[r] += (qi)_mm256_madd_epi16((__m256i)pair, _mm256_set1_epi32(two));
#else
            sum[r] += (pair << 16 >> 16) * (int16_t)two + (pair >> 16) * (two >> 16);
#endif
        }
    }
}

/* v and what a run whose scales nest adds to a row whose scale is xs: the sum `whole` of its
 * blocks' products times their parts, and that of its mins. */
static inline __attribute__((always_inline)) qf quant_add_run(qf v, qi whole, qi lean,
                                                              const float *scale, const float *off,
                                                              float xs, const bool has_min)
{
    const qf zero = {0};
    qf sum = __builtin_convertvector(whole, qf) * quant_load(scale);
    if (has_min) sum = quant_fma(__builtin_convertvector(lean, qf), quant_load(off), sum);
    return quant_fma(sum, xs - zero, v);
}

/* Nested: a run's sums, of `lanes` vectors of columns from c on, into those of its rows; kept: v,
 * else `whole`. */
static inline __attribute__((always_inline)) void
quant_few_run(float *out, const qf *v, const int32_t *whole, const quant_stretch *s,
              const quant_terms *t, int c, const int rows, const int lanes, const bool kept)
{
#pragma GCC unroll 4
    for (int l = 0; l < lanes; l++, c += QUANT_COLS) {
        qi lean[QUANT_ROWS];
        quant_leans(lean, s, t->leans, rows, c, s->form->has_min);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float *at = out + r * PANEL + c;
            qi sum = kept ? (qi)v[l * rows + r] : quant_load_whole(whole + r * PANEL + c);
            qf all = quant_add_run(quant_load(at), sum, lean[r], s->scale[0] + c, s->off[0] + c,
                                   t->scale[0][r], s->form->has_min);
            memcpy(at, &all, sizeof(all));
        }
    }
}

/* v and the product of a block with a row whose scale is xs; `lean` is of quant_terms. */
static inline __attribute__((always_inline)) qf quant_add(qf v, qi dot, const quant_form *f,
                                                          const float *scale, const float *off,
                                                          float xs, float lean)
{
    const qf zero = {0};
    qf d = __builtin_convertvector(dot, qf);
    /* Both parts are whole numbers below 2^24: exact. */
    if (f->form == SCALES_ZERO) d -= quant_load(off) * (lean - zero);
    v = quant_fma(d, quant_load(scale) * (xs - zero), v);
    return f->has_min ? quant_fma(quant_load(off), lean - zero, v) : v;
}

#ifdef __AVX2__

#    ifdef QUANT_VNNI
enum { QUANT_WIDE_OFF = 0 };
/* A Zen 4's prefetchers go by the places of loads in the program, and follow few better. */
#        define QUANT_UNROLL _Pragma("GCC unroll 2")
#    else
enum { QUANT_WIDE_OFF = 128 };
/* Unrolled, codes of several quads come first, and there is no register left for them. */
#        define QUANT_UNROLL _Pragma("GCC unroll 1")

/* Codes of so many bits have sums of so many quads in 16 bits: 15 * 127 * 2 * 8 < 2^15. */
static inline __attribute__((always_inline)) int quant_each(const int bits)
{
    return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}
#    endif

#    if defined(__AVXVNNI__)
#        define QUANT_ADD(sum, codes, x) ((sum) = _mm256_dpbusd_avx_epi32(sum, codes, x))
#    elif defined(QUANT_VNNI)
/* In place: of the intrinsic GCC copies sums from register to register, and has too few of them. */
#        define QUANT_ADD(sum, codes, x) \
            __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(x))
#    endif

/* A sum as it is now: GCC would add products as a tree, and has no registers for its leaves. */
#    define QUANT_KEPT(v) __asm__("" : "+x"(v))

/* Sums of products of one vector of codes with a quad of each row.  `bits`: what codes may have. */
static inline __attribute__((always_inline)) void
quant_dots(qv *dot, qv *two, qv v, const int8_t *x, const int rows, const int bits)
{
#    ifdef QUANT_VNNI
    (void)two, (void)bits;
#        pragma GCC unroll 8
    for (int r = 0; r < rows; r++) QUANT_ADD(dot[r], v, quant_four(x + r * QUANT_QUAD));
#    else
    if (quant_each(bits) > 1) {
#        pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            two[r] =
                _mm256_add_epi16(two[r], _mm256_maddubs_epi16(v, quant_four(x + r * QUANT_QUAD)));
            if (rows == 1) QUANT_KEPT(two[r]);
        }
        return;
    }
    const __m256i ones = _mm256_set1_epi16(1);
    v = _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
    qv size = _mm256_abs_epi8(v);
#        pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        qv four = _mm256_sign_epi8(quant_four(x + r * QUANT_QUAD), v);
        dot[r] =
            _mm256_add_epi32(dot[r], _mm256_madd_epi16(_mm256_maddubs_epi16(size, four), ones));
        if (rows == 1) QUANT_KEPT(dot[r]);
    }
#    endif
}

/* The vectors of columns from c on, of quad number q, times that of each row. */
static inline __attribute__((always_inline)) void
quant_quad(qv *dot, qv *two, const uint8_t *codes, int c, const int8_t *x, qv table, const int q,
           const int quads, const int rows, const int lanes, const int stored, const bool mapped,
           const int bits)
{
#    pragma GCC unroll 4
    for (int l = 0; l < lanes; l++) {
        const int at = q * QUANT_QUAD_BYTES + (c + l * QUANT_COLS) * QUANT_QUAD;
        qv w = quant_codes(codes, at, quads * QUANT_QUAD_BYTES, stored);
        if (mapped) w = QV(shuffle_epi8)(table, w);
        quant_dots(dot + l * rows, two + l * rows, w, x, rows, bits);
    }
}

/* Where sums of 16 bits are full after quad number q, or at the end, they go into those of 32;
 * `times`: NULL, or what each is times. */
static inline __attribute__((always_inline)) void quant_flush(qv *dot, qv *two, const int q,
                                                              const int quads, const int rows,
                                                              const int bits, const qv *times)
{
#    ifdef QUANT_VNNI
    (void)dot, (void)two, (void)q, (void)quads, (void)rows, (void)bits, (void)times;
#    else
    const int each = quant_each(bits);
    if (each == 1 || ((q + 1) % each && q + 1 < quads)) return;
#        pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        qv by = times ? times[r] : _mm256_set1_epi16(1);
        dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(two[r], by));
        two[r] = _mm256_setzero_si256();
    }
#    endif
}

/* A block's quads.  `stored`: how codes lie, 8: in bytes; `bits`: what they may have.  With each
 * quad lines of `s`, if there is one, are asked for: all at once they would hold products up. */
static inline __attribute__((always_inline)) void
quant_block(qv *dot, qv *two, const uint8_t *codes, int c, const int8_t *x, int some, qv table,
            const int quads, const int rows, const int lanes, const int stored, const bool mapped,
            const int bits, const qv *times, const quant_stretch *s)
{
    const size_t lines = s ? QUANT_QUAD_BYTES * (size_t)stored / 8 : 0; /* asked for with a quad */
#    pragma GCC unroll 8
    for (int k = 0; stored != 8 && k < quads; k++) {
        const int q = k % 2 * (quads / 2) + k / 2; /* both halves of a byte */
        if (lines) quant_fetch((const char *)codes + s->ahead + (size_t)k * lines, lines);
        quant_quad(dot, two, codes, c, x + q * some, table, q, quads, rows, lanes, stored, mapped,
                   bits);
        quant_flush(dot, two, k, quads, lanes * rows, bits, times);
    }
    QUANT_UNROLL
    for (int q = 0; stored == 8 && q < quads; q++) {
        if (lines) quant_fetch((const char *)codes + s->ahead + (size_t)q * lines, lines);
        quant_quad(dot, two, codes, c, x + q * some, table, q, quads, rows, lanes, 8, false, bits);
        quant_flush(dot, two, q, quads, lanes * rows, bits, times);
    }
}

/* Nested: a block's sums, times its parts, into the run's. */
static inline __attribute__((always_inline)) void
quant_few_parts(qf *v, int32_t *whole, const quant_stretch *s, const qv *dot, int c, const int i,
                const int rows, const int lanes, const bool kept)
{
#    pragma GCC unroll 16
    for (int r = 0; r < lanes * rows; r++) {
        const int col = c + r / rows * QUANT_COLS;
        int32_t *at = whole + r % rows * PANEL + col;
        qi sum = kept ? (qi)v[r] : quant_load_whole(at);
        sum += (qi)dot[r] * quant_load_whole(s->part[i] + col);
        if (kept)
            v[r] = (qf)sum;
        else
            memcpy(at, &sum, sizeof(sum));
    }
}

/* A block's sums into those of its rows. */
static inline __attribute__((always_inline)) void
quant_few_add(qf *v, float *out, const quant_stretch *s, const quant_terms *t, const qv *dot, int c,
              const int i, const int rows, const int lanes, const bool kept, const bool zeros,
              const bool mins)
{
    const quant_form f = {.form = zeros ? SCALES_ZERO : SCALES_OWN, .has_min = mins};
#    pragma GCC unroll 16
    for (int r = 0; r < lanes * rows; r++) {
        const int col = c + r / rows * QUANT_COLS;
        float *at = out + r % rows * PANEL + col;
        qf sum = quant_add(kept ? v[r] : quant_load(at), (qi)dot[r], &f, s->scale[i] + col,
                           s->off[i] + col, t->scale[i][r % rows], t->lean[i][r % rows]);
        if (kept)
            v[r] = sum;
        else
            memcpy(at, &sum, sizeof(sum));
    }
}

/* Rows times a stretch, `lanes` vectors of columns at once: with all of them x is read once, and
 * the lines in ascending order.  Sums stay in registers while there are some for them beside a
 * block's; else they go by way of memory. */
static inline __attribute__((always_inline)) void
quant_few(float *out, const quant_stretch *s, const quant_terms *t, const int quads, const int rows,
          const int lanes, const int stored, const bool mapped, const int bits, const bool asks)
{
    const int some = t->some * QUANT_QUAD, kept = lanes * rows <= QUANT_SUMS ? lanes * rows : 0;
    const qv table = quant_table(s->form->table);
    const bool zeros = s->form->form == SCALES_ZERO, mins = s->form->has_min;
    const bool nested = s->form->form == SCALES_NESTED;
    alignas(64) int32_t whole[QUANT_ROWS * PANEL]; /* nested: the run's sums; or in v, by bits */
    if (nested && !kept) memset(whole, 0, (size_t)rows * PANEL * sizeof(*whole));
#    pragma GCC unroll 4
    for (int c = 0; c < PANEL; c += lanes * QUANT_COLS) {
        const int8_t *x = t->code;
        qf v[QUANT_SUMS];
#    pragma GCC unroll 16
        for (int r = 0; r < kept; r++)
            v[r] =
                nested ? (qf){0} : quant_load(out + r % rows * PANEL + c + r / rows * QUANT_COLS);
#    pragma GCC unroll 1
        for (int i = 0; i < s->n; i++, x += quads * some) {
            qv dot[QUANT_DOTS], two[QUANT_DOTS];
            quant_ask(s);
#    pragma GCC unroll 16
            for (int r = 0; r < lanes * rows; r++) {
                dot[r] = QV(set1_epi32)(t->start[i][r % rows]);
                two[r] = (qv){0};
            }
            quant_block(dot, two, s->at[i], c, x, some, table, quads, rows, lanes, stored, mapped,
                        bits, NULL, asks ? s : NULL);
            if (nested)
                quant_few_parts(v, whole, s, dot, c, i, rows, lanes, kept);
            else if (zeros)
                quant_few_add(v, out, s, t, dot, c, i, rows, lanes, kept, true, false);
            else if (mins)
                quant_few_add(v, out, s, t, dot, c, i, rows, lanes, kept, false, true);
            else
                quant_few_add(v, out, s, t, dot, c, i, rows, lanes, kept, false, false);
            if (!kept) __asm__("" ::: "memory"); /* GCC would keep a copy on the stack */
        }
        if (nested) {
            quant_few_run(out, v, whole, s, t, c, rows, lanes, kept);
            continue;
        }
#    pragma GCC unroll 16
        for (int r = 0; r < kept; r++)
            memcpy(out + r % rows * PANEL + c + r / rows * QUANT_COLS, &v[r], sizeof(v[r]));
    }
}

#else

enum { QUANT_WIDE_OFF = 0 };

static inline __attribute__((always_inline)) void
quant_few(float *out, const quant_stretch *s, const quant_terms *t, const int quads, const int rows,
          const int lanes, const int stored, const bool mapped, const int bits, const bool asks)
{
    (void)lanes, (void)stored, (void)mapped, (void)bits, (void)asks; /* codes are in bytes */
    const bool nested = s->form->form == SCALES_NESTED;
    int32_t whole[QUANT_ROWS * PANEL] = {0};
    for (int r = 0; r < rows; r++) {
        const int8_t *x = t->code + r * QUANT_QUAD;
        for (int i = 0; i < s->n; i++) {
            int32_t dot[PANEL];
            const uint8_t *w = s->at[i];
            for (int j = 0; j < PANEL; j++) dot[j] = t->start[i][r];
            for (int q = 0; q < quads; q++, w += QUANT_QUAD_BYTES, x += t->some * QUANT_QUAD) {
                for (int j = 0; j < PANEL; j++) {
                    for (int b = 0; b < QUANT_QUAD; b++) dot[j] += w[j * QUANT_QUAD + b] * x[b];
                }
            }
            for (int j = 0; nested && j < PANEL; j++)
                whole[r * PANEL + j] += dot[j] * s->part[i][j];
            for (int c = 0; !nested && c < PANEL; c += QUANT_COLS) {
                float *at = out + r * PANEL + c;
                qf v = quant_add(quant_load(at), quant_load_whole(dot + c), s->form,
                                 s->scale[i] + c, s->off[i] + c, t->scale[i][r], t->lean[i][r]);
                memcpy(at, &v, sizeof(v));
            }
        }
    }
    if (nested) quant_few_run(out, NULL, whole, s, t, 0, rows, PANEL / QUANT_COLS, false);
}

#endif

/* ------------------------------------------------------------------------------ one row -- */

#ifdef __AVX2__

enum { QUANT_PARTS = 2 * 16 * PANEL, QUANT_UNASKED = -1 }; /* bytes, at most; of quant_ahead() */

/* How many bytes before their use one row asks for its lines.  A Zen 3, which keeps up with its
 * memory, wants them far ahead.  Of 8 bits a Zen 4 reads more where it is not asked: its own
 * prefetchers follow one ascending stream.  Of 4 it takes longer over a line than they look ahead,
 * and several planes of a block are no such stream. */
static inline int quant_ahead(const int bits)
{
    if (!QUANT_ASKS) return QUANT_UNASKED;
    if (!__builtin_cpu_supports("avx512f")) return 2048;
    return bits == 8 ? QUANT_UNASKED : bits == 4 ? 8192 : 0;
}

/* One row of x, and where it stands. */
typedef struct {
    const int8_t *code;
    const float *scale;
    const int32_t *sums;
} quant_single;

/* A whole number for each of a vector's columns. */
static inline __attribute__((always_inline)) qi quant_part(const int8_t *at)
{
#    ifdef __AVX512VNNI__
    return (qi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at));
#    else
    return (qi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)at));
#    endif
}

/* Each of them in both halves of 16 bits. */
static inline __attribute__((always_inline)) qv quant_twice(qi part)
{
    return (qv)QUANT_TWO(part, part);
}

/* A row alone times a panel: its sums stay in registers from the first block to the last, and
 * codes and scales are taken as they lie.  What is known of the form leaves no choice to a block:
 * choices would cost as much as the products. */
static inline __attribute__((always_inline)) void
quant_one(float *out, const cpu_weight *w, const char *run, quant_single x, const int bits,
          const bool mapped, const int block, const scale_form form, const bool has_min)
{
    enum { LANES = PANEL / QUANT_COLS };
    const int quads = block / QUANT_QUAD, code_bits = mapped ? 8 : bits;
    const bool nested = form == SCALES_NESTED, folds = nested && QUANT_FOLDS && code_bits != 8;
    const int ahead = quant_ahead(bits);
    quant_form f = w->quant;
    f.form = form;
    f.has_min = has_min;
    const int least = f.least + (code_bits == 8 ? QUANT_WIDE_OFF : 0);
    const qv table = quant_table(f.table);
    alignas(64) char parts[QUANT_PARTS];
    alignas(64) float scale[PANEL], off[PANEL];
    qf v[LANES];
#    pragma GCC unroll 4
    for (int l = 0; l < LANES; l++) v[l] = (qf){0};
    for (int left = w->head.cols; left > 0; left -= f.span, run += f.run_bytes) {
        const uint8_t *at = (const uint8_t *)run + f.codes_at;
        const int8_t *part = (const int8_t *)parts, *min = part + f.min_parts;
        const float run_scale = *x.scale;
        qi whole[LANES], lean[LANES];
        if (ahead != QUANT_UNASKED) quant_fetch(run + ahead, f.codes_at);
        quant_head(scale, off, &f, run);
        /* Read here, not beside the codes: two streams would be read at half the speed. */
        for (size_t i = f.parts_at; nested && i < f.codes_at; i += 64)
            memcpy(parts + i - f.parts_at, run + i, 64);
#    pragma GCC unroll 4
        for (int l = 0; l < LANES; l++) whole[l] = lean[l] = (qi){0};
        for (int k = 0; k < f.span; k += block, at += f.block_bytes) {
            qv dot[LANES], two[LANES], times[LANES];
            const int32_t sum = x.sums[0] + (block == QUANT_K ? x.sums[1] : 0);
            const qi start = (qi){0} + least * sum;
            if (ahead != QUANT_UNASKED) quant_fetch((const char *)at + ahead, f.block_bytes);
#    pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) {
                dot[l] = (qv)start;
                two[l] = (qv){0};
                if (!folds) continue;
                const qi by = quant_part(part + l * QUANT_COLS);
                times[l] = quant_twice(by);
                dot[l] = (qv)(least ? whole[l] + start * by : whole[l]);
            }
            quant_block(dot, two, at, 0, x.code, QUANT_QUAD, table, quads, 1, LANES, bits, mapped,
                        code_bits, folds ? times : NULL, NULL);
#    pragma GCC unroll 4
            for (int l = 0; l < LANES; l++) {
                const int c = l * QUANT_COLS;
                if (!nested)
                    v[l] = quant_add(v[l], (qi)dot[l], &f, scale + c, off + c, *x.scale,
                                     has_min ? *x.scale * (float)sum : (float)sum);
                else if (folds)
                    whole[l] = (qi)dot[l];
                else
                    whole[l] += (qi)dot[l] * quant_part(part + c);
                if (nested && has_min) lean[l] += quant_part(min + c) * sum;
            }
            part += PANEL;
            min += PANEL;
            x.code += block;
            x.sums += block / QUANT_HALF;
            x.scale += block == QUANT_K || (k & QUANT_HALF);
        }
#    pragma GCC unroll 4
        for (int l = 0; nested && l < LANES; l++)
            v[l] = quant_add_run(v[l], whole[l], lean[l], scale + l * QUANT_COLS,
                                 off + l * QUANT_COLS, run_scale, has_min);
    }
    memcpy(out, v, sizeof(v));
}

/* Of the forms that files have.  False: of another one, nothing is done.  A function of its own: in
 * block_quant() GCC would find other registers, and a quarter of the speed would go. */
static __attribute__((noinline)) bool quant_alone(float *out, const cpu_weight *w, int panel,
                                                  const quant_rows *q, int row)
{
    const quant_form *f = &w->quant;
    const quant_side side = quant_side_of(q, row);
    const quant_single x = {q->code + side.code, q->scale + side.scale, q->sums + side.sums};
    const char *run = (const char *)w->data + (size_t)panel * w->panel_bytes;
    if (side.some > 1 || f->span % QUANT_K) return false;
#    define KEY(bits, mapped, block, form, min) \
        ((bits) | (mapped) << 4 | (block) << 5 | (int)(form) << 11 | (min) << 13)
#    define ONE(bits, mapped, block, form, min)                    \
    case KEY(bits, mapped, block, form, min):                      \
        quant_one(out, w, run, x, bits, mapped, block, form, min); \
        return true;
    switch (KEY(f->bits, f->mapped, f->k, f->form, f->has_min)) {
        ONE(8, false, QUANT_K, SCALES_OWN, false)
        ONE(8, false, QUANT_K, SCALES_ZERO, false)
        ONE(6, false, QUANT_HALF, SCALES_NESTED, false)
        ONE(5, false, QUANT_K, SCALES_OWN, false)
        ONE(5, false, QUANT_K, SCALES_OWN, true)
        ONE(5, false, QUANT_K, SCALES_NESTED, true)
        ONE(4, false, QUANT_K, SCALES_OWN, false)
        ONE(4, false, QUANT_K, SCALES_OWN, true)
        ONE(4, false, QUANT_K, SCALES_ZERO, false)
        ONE(4, false, QUANT_K, SCALES_NESTED, true)
        ONE(4, true, QUANT_K, SCALES_OWN, false)
        ONE(4, true, QUANT_K, SCALES_NESTED, false)
        ONE(3, false, QUANT_HALF, SCALES_NESTED, false)
        ONE(2, false, QUANT_HALF, SCALES_NESTED, true)
    default: return false;
    }
#    undef ONE
#    undef KEY
}

#endif

/* ------------------------------------------------------------------------------- blocks -- */

/* For each size of codes: n of them, and what `then` needs of it. */
#define QUANT_BY_BITS(form, n, call)  \
    switch ((form)->bits) {           \
    case 2: call(n, 2, false); break; \
    case 3: call(n, 3, false); break; \
    case 5: call(n, 5, false); break; \
    case 6: call(n, 6, false); break; \
    case 8: call(n, 8, false); break; \
    default:                          \
        if ((form)->mapped) {         \
            call(n, 4, true);         \
        } else {                      \
            call(n, 4, false);        \
        }                             \
    }
#define QUANT_BY_FORM(form, call)                  \
    if ((form)->k == QUANT_K) {                    \
        QUANT_BY_BITS(form, QUANT_CODES, call)     \
    } else {                                       \
        QUANT_BY_BITS(form, QUANT_CODES / 2, call) \
    }

/* The bits that a code may have in a product: what a table makes of it has all. */
static inline int quant_bits_of(int bits, bool mapped)
{
    return mapped ? 8 : bits;
}

static void quant_to_bytes(uint8_t *codes, const uint8_t *at, const quant_form *f)
{
#define SPREAD(n, bits, mapped) quant_spread(codes, at, f, n, bits, mapped)
    QUANT_BY_FORM(f, SPREAD)
#undef SPREAD
}

/* What the products have to know of codes: how many bits they may have, as far as it matters. */
#ifdef QUANT_VNNI
#    define QUANT_BY_SIZE(f, call) call(8);
#else
#    define QUANT_BY_SIZE(f, call)           \
        if ((f)->bits == 8 || (f)->mapped) { \
            call(8);                         \
        } else if ((f)->bits > 4) {          \
            call(6);                         \
        } else {                             \
            call(4);                         \
        }
#endif

/* Rows from `row` on times a stretch that begins at column k0.  `planes`: so its codes lie; `asks`:
 * in bytes they are in memory, and lines ahead are wanted. */
static inline __attribute__((always_inline)) void
quant_product(float *out, const quant_stretch *s, const quant_rows *x, int row, int k0,
              const int rows, const int lanes, bool planes, const bool asks)
{
    const quant_form *f = s->form;
    const bool wide = f->bits == 8 || f->mapped;
    quant_terms t;
    quant_terms_of(&t, s, x, row, k0, rows, f->least + (wide ? QUANT_WIDE_OFF : 0));
    if (planes && f->mapped) {
        quant_few(out, s, &t, 8, rows, lanes, 4, true, 8, asks);
    } else if (planes) {
        quant_few(out, s, &t, 8, rows, lanes, 4, false, 4, asks);
    } else if (f->k == QUANT_K) {
#define BYTES(bits) quant_few(out, s, &t, 8, rows, lanes, 8, false, bits, asks)
        QUANT_BY_SIZE(f, BYTES)
#undef BYTES
    } else {
#define BYTES(bits) quant_few(out, s, &t, 4, rows, lanes, 8, false, bits, asks)
        QUANT_BY_SIZE(f, BYTES)
#undef BYTES
    }
}

/* n <= QUANT_ROWS of them. */
static void quant_some(float *out, const quant_stretch *s, const quant_rows *x, int row, int k0,
                       int n, bool planes)
{
    enum { TALL_LANES = QUANT_DOTS / QUANT_ROWS };
    const bool asks = planes && !QUANT_ASKS;
#ifdef QUANT_VNNI
    enum { LANES = 2 };
    /* The sums of one vector of columns stay in registers.  But codes of 8 bits are read in
     * ascending order. */
#    define TALL(n)                                                         \
        if (s->form->bits == 8)                                             \
            quant_product(out, s, x, row, k0, n, TALL_LANES, false, false); \
        else                                                                \
            quant_product(out, s, x, row, k0, n, 1, planes, asks);
#else
    enum { LANES = 1 };
#endif
    switch (n) {
    case 1: quant_product(out, s, x, row, k0, 1, PANEL / QUANT_COLS, planes, false); break;
    case 2: quant_product(out, s, x, row, k0, 2, LANES, planes, asks); break;
    case 3: quant_product(out, s, x, row, k0, 3, LANES, planes, asks); break;
#ifdef QUANT_VNNI
    case 4: quant_product(out, s, x, row, k0, 4, LANES, planes, asks); break;
    case 5: TALL(5) break;
    case 6: TALL(6) break;
    case 7: TALL(7) break;
#    undef TALL
#endif
    default:
        if (!QUANT_ASKS && s->ahead && s->form->bits == 8)
            quant_product(out, s, x, row, k0, QUANT_ROWS, TALL_LANES, false, true);
        else if (!QUANT_ASKS && s->ahead) /* with `true` GCC slows 8 bits by a tenth */
            quant_product(out, s, x, row, k0, QUANT_ROWS, 1, true, asks);
        else
            quant_product(out, s, x, row, k0, QUANT_ROWS, 1, planes, false);
    }
}

/* -------------------------------------------------------------------------- many rows -- */

#if defined(__AVX2__) && !defined(QUANT_VNNI)
#    define QUANT_MANY

/* QUANT_SOME rows stand together, and are multiplied with eight columns at a time, whose codes come
 * from memory to registers.
 *
 * Codes of up to 6 bits: VPMADDUBSW, summed in 16 bits as far as they fit.
 *
 * Of 8 bits two of its sums do not fit, and what then stands for a product (VPSIGNB, VPMADDUBSW,
 * VPMADDWD) runs on the same two ports of a core.  So codes and x become numbers of 16 bits, for
 * VPMADDWD alone: half of the steps are additions, which run on any port. */

/* A quad of each row as 16 bits: its numbers 0 and 2, then 1 and 3. */
typedef struct {
    qv even, odd;
} many_pairs;

/* Rows of x for a stretch; start: of a block's sums. */
typedef struct {
    const int8_t *code; /* [quad][QUANT_SOME][QUANT_QUAD] */
    const float *scale;
    many_pairs pair[QUANT_STRETCH * QUANT_K / QUANT_QUAD];
    qi start[QUANT_BLOCKS];
    qf lean[QUANT_BLOCKS];
    int32_t leans[QUANT_BLOCKS / 2][QUANT_SOME]; /* as quant_terms has them */
} many_rows;

/* The group of rows that `row` begins, for a stretch from column k0 on; `wide`: in pairs. */
static inline __attribute__((always_inline)) void many_rows_of(many_rows *t, const quant_stretch *s,
                                                               const quant_rows *x, int row, int k0,
                                                               const int quads, const bool wide)
{
    const quant_form *f = s->form;
    const size_t k = (size_t)k0, each = (size_t)quads * QUANT_QUAD;
    const quant_side side = quant_side_of(x, row);
    const int32_t *sums = x->sums + side.sums + (size_t)(k0 / QUANT_HALF) * QUANT_SOME;
    qi before = {0};
    t->code = x->code + side.code + (size_t)k0 * QUANT_SOME;
    t->scale = x->scale + side.scale;
    for (int i = 0; i < s->n; i++, sums += quads / (QUANT_HALF / QUANT_QUAD) * QUANT_SOME) {
        qi sum;
        qf scale = quant_load(t->scale + (k + (size_t)i * each) / QUANT_K * QUANT_SOME);
        memcpy(&sum, sums, sizeof(sum));
        if (quads * QUANT_QUAD == QUANT_K) {
            qi other;
            memcpy(&other, sums + QUANT_SOME, sizeof(other));
            sum += other;
        }
        for (int q = 0; wide && q < quads; q++) {
            qv v = QV_LOAD(t->code + (i * quads + q) * QV_BYTES);
            t->pair[i * quads + q] = (many_pairs){_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8),
                                                  _mm256_srai_epi16(v, 8)};
        }
        t->start[i] = sum * f->least;
        if (f->form == SCALES_NESTED) {
            if (i % 2) sum = QUANT_TWO(before, sum);
            memcpy(t->leans[i / 2], &sum, sizeof(sum));
            before = sum;
            continue;
        }
        qf lean = __builtin_convertvector(sum, qf);
        t->lean[i] = f->has_min ? scale * lean : lean;
    }
}

/* The i-th of a vector's four bytes, in all places. */
static inline __attribute__((always_inline)) qv many_each(const void *from, int i)
{
    return quant_four((const int8_t *)from + i * QUANT_QUAD);
}

/* Each sum of a loop is a variable of its own: of an array GCC would keep them in memory. */
#    define MANY_BY_ROW(call)                                                               \
        call(0, a0) call(1, a1) call(2, a2) call(3, a3) call(4, a4) call(5, a5) call(6, a6) \
            call(7, a7)
#    define MANY_ADD(sum, add, product) \
        {                               \
            sum = add(sum, product);    \
            QUANT_KEPT(sum);            \
        }

/* sums += a block of codes of 8 bits. */
static inline __attribute__((always_inline)) void many_wide(qv sum[QUANT_SOME], const uint8_t *w,
                                                            const many_pairs *x, const int quads)
{
    qv a0 = sum[0], a1 = sum[1], a2 = sum[2], a3 = sum[3], a4 = sum[4], a5 = sum[5], a6 = sum[6],
       a7 = sum[7];
#    pragma GCC unroll 8
    for (int q = 0; q < quads; q++, w += QUANT_QUAD_BYTES, x++) {
        qv even = QV_LOAD(w), odd = _mm256_srli_epi16(even, 8);
        even = _mm256_and_si256(even, _mm256_set1_epi16(255));
        QUANT_KEPT(even);
        QUANT_KEPT(odd);
#    define ROW(i, a)                                                                  \
        MANY_ADD(a, _mm256_add_epi32, _mm256_madd_epi16(many_each(&x->even, i), even)) \
        MANY_ADD(a, _mm256_add_epi32, _mm256_madd_epi16(many_each(&x->odd, i), odd))
        MANY_BY_ROW(ROW)
#    undef ROW
    }
#    define ROW(i, a) sum[i] = a;
    MANY_BY_ROW(ROW)
#    undef ROW
}

/* sums += a block of codes of less bits, and these `times`; in bytes or, of 4 bits, in planes: the
 * other half of the quads lies in the upper bits. */
static inline __attribute__((always_inline)) void many_narrow(qv sum[QUANT_SOME], const uint8_t *w,
                                                              const int8_t *x, const int quads,
                                                              const int bits, const bool planes,
                                                              const qv times)
{
    const qv four = _mm256_set1_epi8(15);
    const int all = planes ? quads / 2 : quads,
              each = quant_each(bits) < all ? quant_each(bits) : all;
#    pragma GCC unroll 8
    for (int q = 0; q < all; q += each) {
        qv a0 = {0}, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
#    pragma GCC unroll 8
        for (int j = 0; j < each; j++, w += QUANT_QUAD_BYTES, x += QV_BYTES) {
            qv v = QV_LOAD(w), high = _mm256_and_si256(_mm256_srli_epi16(v, 4), four);
            if (planes) v = _mm256_and_si256(v, four);
            QUANT_KEPT(v);
#    define ROW(i, a) MANY_ADD(a, _mm256_add_epi16, _mm256_maddubs_epi16(v, many_each(x, i)))
            MANY_BY_ROW(ROW)
#    undef ROW
            if (!planes) continue;
            QUANT_KEPT(high);
#    define ROW(i, a) \
        MANY_ADD(a, _mm256_add_epi16, _mm256_maddubs_epi16(high, many_each(x + all * QV_BYTES, i)))
            MANY_BY_ROW(ROW)
#    undef ROW
        }
#    define ROW(i, a) sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(a, times));
        MANY_BY_ROW(ROW)
#    undef ROW
    }
}

/* Sums of block i into out, of columns from c on. */
static inline __attribute__((always_inline)) void many_add(float *out, const quant_stretch *s,
                                                           const qv sum[QUANT_SOME], int i,
                                                           const float *scale, const qf *lean,
                                                           int c, const bool zeros, const bool mins)
{
    const quant_form f = {.form = zeros ? SCALES_ZERO : SCALES_OWN, .has_min = mins};
    float leans[QUANT_SOME];
    memcpy(leans, lean, sizeof(leans));
#    pragma GCC unroll 8
    for (int r = 0; r < QUANT_SOME; r++) {
        float *at = out + r * PANEL + c;
        qf v = quant_add(quant_load(at), (qi)sum[r], &f, s->scale[i] + c, s->off[i] + c, scale[r],
                         leans[r]);
        memcpy(at, &v, sizeof(v));
    }
}

/* The group of rows times columns from c on of a run whose scales nest. */
static inline __attribute__((always_inline)) void many_run(float *out, const quant_stretch *s,
                                                           const many_rows *t, int k0, int c,
                                                           const int quads, const int bits,
                                                           const bool planes)
{
    const quant_form *f = s->form;
    const float *scale = t->scale + (size_t)(k0 / QUANT_K) * QUANT_SOME;
    qv whole[QUANT_SOME] = {0};
    for (int i = 0; i < s->n; i++) {
        quant_ask(s);
        const uint8_t *w = s->at[i] + c * QUANT_QUAD;
        const qi part = quant_load_whole(s->part[i] + c);
        if (bits != 8) {
            many_narrow(whole, w, t->code + i * quads * QV_BYTES, quads, bits, planes,
                        quant_twice(part));
            continue;
        }
        qv sum[QUANT_SOME];
#    pragma GCC unroll 8
        for (int r = 0; r < QUANT_SOME; r++) sum[r] = many_each(&t->start[i], r);
        many_wide(sum, w, &t->pair[i * quads], quads);
#    pragma GCC unroll 8
        for (int r = 0; r < QUANT_SOME; r++) whole[r] = (qv)((qi)whole[r] + (qi)sum[r] * part);
    }
    qi lean[QUANT_SOME];
    quant_leans(lean, s, t->leans, QUANT_SOME, c, bits != 8 || f->has_min);
#    pragma GCC unroll 8
    for (int r = 0; r < QUANT_SOME; r++) {
        float *at = out + r * PANEL + c;
        qi sum = (qi)whole[r];
        if (bits != 8 && !f->has_min) sum += lean[r] * f->least;
        qf v = quant_add_run(quant_load(at), sum, lean[r], s->scale[0] + c, s->off[0] + c, scale[r],
                             f->has_min);
        memcpy(at, &v, sizeof(v));
    }
}

/* The same of a stretch of other blocks. */
static inline __attribute__((always_inline)) void many_part(float *out, const quant_stretch *s,
                                                            const many_rows *t, int k0, int c,
                                                            const int quads, const int bits,
                                                            const bool planes)
{
    const size_t k = (size_t)k0, each = (size_t)quads * QUANT_QUAD;
    for (int i = 0; i < s->n; i++) {
        quant_ask(s);
        const float *scale = t->scale + (k + (size_t)i * each) / QUANT_K * QUANT_SOME;
        const uint8_t *w = s->at[i] + c * QUANT_QUAD;
        qv sum[QUANT_SOME];
#    pragma GCC unroll 8
        for (int r = 0; r < QUANT_SOME; r++) sum[r] = many_each(&t->start[i], r);
        if (bits == 8)
            many_wide(sum, w, &t->pair[i * quads], quads);
        else
            many_narrow(sum, w, t->code + i * quads * QV_BYTES, quads, bits, planes,
                        _mm256_set1_epi16(1));
        const quant_form *f = s->form;
        if (f->form == SCALES_ZERO)
            many_add(out, s, sum, i, scale, &t->lean[i], c, true, false);
        else if (f->has_min)
            many_add(out, s, sum, i, scale, &t->lean[i], c, false, true);
        else
            many_add(out, s, sum, i, scale, &t->lean[i], c, false, false);
    }
}

/* QUANT_SOME rows times a stretch. */
static inline __attribute__((always_inline)) void many_product(float *out, const quant_stretch *s,
                                                               const quant_rows *x, int row, int k0,
                                                               const int quads, const int bits,
                                                               const bool planes)
{
    many_rows t;
    many_rows_of(&t, s, x, row, k0, quads, bits == 8);
    const bool nested = s->form->form == SCALES_NESTED;
    for (int c = 0; nested && c < PANEL; c += QUANT_COLS)
        many_run(out, s, &t, k0, c, quads, bits, planes);
    for (int c = 0; !nested && c < PANEL; c += QUANT_COLS)
        many_part(out, s, &t, k0, c, quads, bits, planes);
}

/* Rows from `row` on, QUANT_SOME of them. */
static void quant_many(float *out, const quant_stretch *s, const quant_rows *x, int row, int k0,
                       bool planes)
{
    if (planes) {
        many_product(out, s, x, row, k0, QUANT_K / QUANT_QUAD, 4, true);
    } else if (s->form->k == QUANT_K) {
#    define MANY(bits) many_product(out, s, x, row, k0, QUANT_K / QUANT_QUAD, bits, false)
        QUANT_BY_SIZE(s->form, MANY)
#    undef MANY
    } else {
#    define MANY(bits) many_product(out, s, x, row, k0, QUANT_HALF / QUANT_QUAD, bits, false)
        QUANT_BY_SIZE(s->form, MANY)
#    undef MANY
    }
}

#endif

/* ------------------------------------------------------------------------ rows times panels -- */

/* Whether the products of so many rows take codes as they lie. */
static bool quant_in_planes(const quant_form *f, int n_rows)
{
#ifdef __AVX2__
    if (f->bits != 4 || f->k != QUANT_K) return false;
#    ifdef QUANT_MANY
    if (n_rows >= QUANT_SOME) return !f->mapped;
#    endif
    return n_rows <= QUANT_PLANES;
#else
    (void)f, (void)n_rows;
    return false;
#endif
}

/* How many bytes before their use lines are asked for: whole runs, so that heads are too.  With so
 * many rows a Zen 4 takes too long over a line for its own prefetchers; with less of 8 bits it is
 * held up, and with more than QUANT_ROWS they are asked for beside products. */
static size_t quant_ahead_of_rows(const quant_form *f, int n_rows, bool planes)
{
    if (QUANT_ASKS) return 0;
    const int least = planes ? 2 : f->bits == 8 ? QUANT_ROWS : INT_MAX;
    if (n_rows < least || n_rows > QUANT_ROWS) return 0;
    return (QUANT_AHEAD + f->run_bytes - 1) / f->run_bytes * f->run_bytes;
}

/* Whether lines are asked for beside the products of the stretch before. */
static bool quant_beside(int n_rows)
{
#ifdef QUANT_MANY
    return n_rows > 1;
#elif defined(QUANT_VNNI)
    return n_rows > QUANT_ROWS;
#else
    (void)n_rows;
    return false;
#endif
}

/* Blocks of a stretch.  Its heads are read first: of several runs they are a second stream beside
 * the codes, and a Zen 4's prefetchers give half as much where nobody asks for lines, and for those
 * of 8 bits where somebody does. */
static int quant_blocks_of(const quant_form *f, int n_rows)
{
    if (f->form == SCALES_NESTED) return f->span / f->k;
    if (n_rows == 1) return f->bits == 8 ? 1 : QUANT_STRETCH / 2;
    if (QUANT_ASKS) return QUANT_STRETCH;
    return f->bits == 8 && n_rows <= QUANT_ROWS ? 1 : QUANT_STRETCH;
}

/* How many rows are multiplied in place of n_rows from row0 on: those of zeros that fill the last
 * group of x as well. */
static int quant_rows_taken(const quant_form *f, const quant_rows *x, int row0, int n_rows)
{
    if (!QUANT_FILLS_WIDE && (f->bits == 8 || f->mapped)) return n_rows;
    const int whole = (n_rows + QUANT_SOME - 1) / QUANT_SOME * QUANT_SOME, left = x->rows - row0;
    return whole < left ? whole : left;
}

static void block_quant(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                        const void *x, int row0, int n_rows)
{
    const quant_form *f = &w->quant;
    n_rows = quant_rows_taken(f, x, row0, n_rows);
    const bool planes = quant_in_planes(f, n_rows);
    const int most = quant_blocks_of(f, n_rows);
    alignas(64) uint8_t bytes[QUANT_STRETCH * QUANT_CODES];
    const size_t ahead = quant_ahead_of_rows(f, n_rows, planes);
    const bool beside = quant_beside(n_rows);
    quant_stretch s;
    s.form = f;
    s.asked = false;
    s.soon = NULL;
    for (int p = 0; p < n_panel; p++, out += (size_t)rows_pad * PANEL) {
        const char *panel = (const char *)w->data + (size_t)(p0 + p) * w->panel_bytes;
#ifdef __AVX2__
        if (n_rows == 1 && quant_alone(out, w, p0 + p, x, row0)) continue;
#endif
        memset(out, 0, (size_t)n_rows * PANEL * sizeof(*out));
        quant_begin(&s, panel);
        for (int k0 = 0, n, left = w->head.cols / f->k; left > 0; k0 += n * f->k, left -= n) {
            n = left < most ? left : most;
            s.ahead = ahead;
            const char *from = quant_place(&s);
            quant_read(&s, n);
            for (int i = 0; i < n && !planes && f->bits != 8; i++) {
                uint8_t *to = bytes + i * f->k * PANEL;
                quant_to_bytes(to, s.at[i], f);
                s.at[i] = to;
            }
            int i = 0;
            quant_asks soon;
            if (beside) {
                soon = quant_asks_of(&s, from, PANEL / QUANT_COLS);
                s.asked = true;
                s.soon = &soon;
            }
#ifdef QUANT_MANY
            for (; n_rows - i >= QUANT_SOME; i += QUANT_SOME, s.soon = NULL)
                quant_many(out + (size_t)i * PANEL, &s, x, row0 + i, k0, planes);
#endif
            for (; i < n_rows; i += QUANT_ROWS, s.ahead = 0, s.soon = NULL) {
                int some = n_rows - i < QUANT_ROWS ? n_rows - i : QUANT_ROWS;
                quant_some(out + (size_t)i * PANEL, &s, x, row0 + i, k0, some, planes);
            }
        }
    }
}

const quant_kernels QUANT_KERNELS = {block_quant, quant_round, coded_piece, QUANT_FILL};
