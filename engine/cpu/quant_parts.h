/* quant_parts.h -- what the products of quantised weights are made of, whatever multiplies: rows of
 * x, a stretch of blocks, its codes, and what sums become; for the instruction set that a file is
 * compiled for.
 */
#ifndef ENGINE_CPU_QUANT_PARTS_H
#define ENGINE_CPU_QUANT_PARTS_H

#include <limits.h>
#include <math.h>
#include <stdalign.h>
#ifdef __AVX2__
#    include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#    include "engine/cpu/quant_neon.h"
#endif

#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

/* Four products of bytes and their sum are one instruction, of 512 bits or of 256 (AVX-VNNI).
 * QUANT_EVEX: the latter in AVX-512's encoding, for tests where AVX-VNNI itself is missing. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(QUANT_EVEX)
#    define QUANT_VNNI
#elif defined(__ARM_FEATURE_DOTPROD)
#    define QUANT_NEON
#endif
#if defined(__AVX2__) || defined(QUANT_NEON)
#    define QUANT_VECTORS /* codes are multiplied in vectors */
#endif
#if defined(QUANT_VNNI) || defined(QUANT_NEON)
#    define QUANT_DOT /* one instruction for four products and their sum */
#endif

enum {
    QUANT_CODES = QUANT_K * PANEL,
    QUANT_QUAD_BYTES = PANEL * QUANT_QUAD,
    QUANT_STRETCH = 8,  /* blocks */
    QUANT_AHEAD = 4096, /* bytes */
};
/* Rows taken together; how many take codes of 4 bits from their planes; from how many on QUANT_SOME
 * rows take less time, some of them of zeros, and whether they do with codes of 8 bits; sums of
 * these rows, of 16 or 8 columns each; whether few rows ask for lines; into which cache these come
 * (of __builtin_prefetch; 2: a Zen 4's second waits for more of them); whether one copy of the loop
 * over codes in planes serves all columns; whether places in a table are taken from planes too. */
#ifdef QUANT_DOT
enum {
    QUANT_ROWS = 8,
    QUANT_PLANES = INT_MAX,
    QUANT_FILL = QUANT_SOME - 1,
    QUANT_FILLS_WIDE = true,
    QUANT_DOTS = VEC_MANY ? 16 : 8,
    QUANT_SUMS = VEC_MANY ? 8 : 4,
    QUANT_ASKS = false,
    QUANT_INTO = 2,
    QUANT_ONE_COPY = VEC == 4,
    QUANT_PLANES_MAPPED = true
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
    QUANT_ONE_COPY = VEC == 8,
    QUANT_PLANES_MAPPED = false
};
#endif

/* Groups of x above so many times their row's mean are outliers.  At 2 they are a tenth of a row,
 * and cause two thirds of the rounding error. */
static const float QUANT_OUTLIER = 2;

/* Lines that are read soon, all at once. */
static inline __attribute__((always_inline)) void quant_fetch(const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, QUANT_INTO);
}

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

/* QUANT_K values, each half times its `up`: codes, and their sums by halves; `leaves`: x becomes
 * what codes times scales leave of it. */
static inline __attribute__((always_inline)) void quant_group(int8_t code[QUANT_K], int32_t sums[2],
                                                              float *x, const float up[2],
                                                              const float scale[2],
                                                              const bool leaves)
{
    vi c[QUANT_K / VEC];
    for (int i = 0; i < QUANT_K / VEC; i++) {
        const int h = i * VEC / QUANT_HALF;
        vf v = vf_load(x + i * VEC);
        c[i] = vi_nearest(v * vf_set(up[h]));
        if (leaves) vf_store(x + i * VEC, v - __builtin_convertvector(c[i], vf) * vf_set(scale[h]));
    }
    quant_narrow(code, c);
    quant_sums(sums, code);
}

/* Codes, scales and sums of columns [k, k + QUANT_K) into a row's place. */
static inline __attribute__((always_inline)) void
quant_put(const quant_rows *to, const quant_side *side, int k, const int8_t code[QUANT_K],
          const float scale[2], const int32_t sums[2], const bool tiled)
{
    const size_t some = (size_t)side->some;
    for (size_t h = 0, half = (size_t)(k / QUANT_HALF); h < 2; h++) {
        to->scale[side->scale + (half + h) * some] = scale[h];
        to->sums[side->sums + (half + h) * some] = sums[h];
    }
    int8_t *at = to->code + side->code + (size_t)k * (tiled ? QUANT_TILE : some);
    if (tiled) memcpy(at, code, QUANT_K);
    for (int i = 0; !tiled && i < QUANT_K; i += QUANT_QUAD, at += QUANT_QUAD * some)
        memcpy(at, code + i, QUANT_QUAD);
}

/* The largest value that is no outlier, of a row of d values: a multiple of its groups' mean. */
static inline __attribute__((always_inline)) float quant_limit(const float *x, int d)
{
    float sum = 0, odd;
    const int n = d / QUANT_K;
    for (int i = 0; i < n; i++) sum += vf_largest(x + i * QUANT_K, QUANT_K, &odd);
    return n == 0 ? INFINITY : sum / (float)n * QUANT_OUTLIER;
}

/* The columns [k, k + QUANT_K) of a row of d values into its place, side[0], and what is left into
 * side[1], where there are two planes, or of outliers above `limit`; `tiled`: so its codes lie. */
static inline __attribute__((always_inline)) void quant_round_group(const quant_rows *to,
                                                                    const quant_side side[2],
                                                                    const float *x, int d, int k,
                                                                    float limit, const bool tiled)
{
    float v[QUANT_K], up[2], scale[2], odd;
    int8_t code[QUANT_K];
    int32_t sums[2];
    const bool leaves = to->planes > 1 || to->rest;
    if (d - k < QUANT_K) memset(v, 0, sizeof(v));
    memcpy(v, x + k, (size_t)(d - k < QUANT_K ? d - k : QUANT_K) * sizeof(*v));
    for (int h = 0; h < 2; h++) {
        if (h > 0 && to->span == QUANT_K) {
            up[1] = up[0];
            scale[1] = scale[0];
            break;
        }
        float top = vf_largest(v + h * QUANT_HALF, to->span, &odd);
        up[h] = top > 0 ? 127 / top : 0;
        scale[h] = top / 127 + odd;
    }
    quant_group(code, sums, v, up, scale, leaves);
    quant_put(to, &side[0], k, code, scale, sums, tiled);
    if (!leaves) return;
    for (int h = 0; h < 2; h++) {
        const bool kept = to->planes > 1 || scale[h] * 127 > limit;
        up[h] *= 254;
        scale[h] = kept ? scale[h] / 254 : 0;
    }
    if (to->rest && scale[0] == 0 && scale[1] == 0) {
        for (size_t h = 0, half = (size_t)(k / QUANT_HALF); h < 2; h++)
            to->rest->scale[side[1].scale + (half + h) * (size_t)side[1].some] = 0;
        return;
    }
    quant_group(code, sums, v, up, scale, false);
    quant_put(to->rest ? to->rest : to, &side[1], k, code, scale, sums, tiled && !to->rest);
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
    const uint8_t *at[QUANT_STRETCH]; /* codes, in planes or bytes */
    alignas(64) float scale[QUANT_STRETCH][PANEL];
    float off[QUANT_STRETCH][PANEL];        /* their mins, or the codes that stand for zero */
    float run_scale[PANEL], run_off[PANEL]; /* nested: of the run, which parts multiply */
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
    int32_t start[QUANT_STRETCH][QUANT_ROWS];                                /* of a block's sums */
    float scale[QUANT_STRETCH][QUANT_ROWS], lean[QUANT_STRETCH][QUANT_ROWS]; /* lean: times off */
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

/* Nested: a group's own scale and min, of the run's and their parts at `part`. */
static inline __attribute__((always_inline)) void
quant_nest(float *scale, float *off, const quant_stretch *s, const int8_t *part)
{
    const quant_form *f = s->form;
    for (int j = 0; j < PANEL; j += VEC) {
        vf_store(scale + j, vf_load(s->run_scale + j) * vf_from_i8(part + j));
        if (!f->has_min) continue;
        const int8_t *min = part + f->min_parts + j;
        vf_store(off + j, vf_load(s->run_off + j) * vf_from_i8(min));
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

/* The next n blocks. */
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
        if (s->in == 0 && !nested) quant_head(s->scale[i], s->off[i], f, s->head);
        if (s->in == 0 && nested) quant_head(s->run_scale, s->run_off, f, s->head);
        if (s->in_group == 0 && nested)
            quant_nest(s->scale[i], s->off[i], s,
                       (const int8_t *)s->head + f->parts_at + s->in / f->group * PANEL);
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

/* The block of column k of a panel, alone. */
static inline __attribute__((always_inline)) void quant_read_one(quant_stretch *s,
                                                                 const char *panel, int k)
{
    const quant_form *f = s->form;
    const char *head = panel + (size_t)(k / f->span) * f->run_bytes;
    const int in = k % f->span;
    s->n = 1;
    s->at[0] = (const uint8_t *)head + f->codes_at + (size_t)(in / f->k) * f->block_bytes;
    if (f->form != SCALES_NESTED) {
        quant_head(s->scale[0], s->off[0], f, head);
        return;
    }
    quant_head(s->run_scale, s->run_off, f, head);
    quant_nest(s->scale[0], s->off[0], s,
               (const int8_t *)head + f->parts_at + in / f->group * PANEL);
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
    const bool two = f->k == QUANT_K;
    const int n = s->n;
    if (n < 1) __builtin_unreachable(); /* else GCC warns that t has no scales */
    for (int i = 0; i < n; i++) {
        size_t k = (size_t)(k0 + i * f->k);
        const float *scale = x->scale + side.scale + k / QUANT_HALF * some;
        const int32_t *sums = x->sums + side.sums + k / QUANT_HALF * some;
        int32_t sum[QUANT_ROWS];
        memcpy(sum, sums, (size_t)rows * sizeof(*sum));
        for (int r = 0; two && r < rows; r++) sum[r] += sums[some + (size_t)r];
        for (int r = 0; r < rows; r++) t->start[i][r] = least * sum[r];
        memcpy(t->scale[i], scale, (size_t)rows * sizeof(*scale));
        for (int r = 0; r < rows; r++) t->lean[i][r] = (float)sum[r];
        for (int r = 0; f->has_min && r < rows; r++) t->lean[i][r] *= scale[r];
    }
}

/* ------------------------------------------------------------------------------- codes -- */

#ifdef QUANT_VECTORS

#    ifdef QUANT_NEON
/* quant_neon.h */
#    elif defined(__AVX512VNNI__)
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

#    ifdef __AVX2__
/* `value` in the bytes whose bit is set. */
static inline __attribute__((always_inline)) qv quant_bits(const uint8_t *at, const int value)
{
#        ifdef __AVX512VNNI__
    uint64_t bits;
    memcpy(&bits, at, sizeof(bits));
    return _mm512_maskz_set1_epi8((__mmask64)bits, (char)value);
#        else
    int32_t bits;
    memcpy(&bits, at, sizeof(bits));
    const __m256i place = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                             0x0303030303030303),
                  each = _mm256_set1_epi64x((int64_t)0x8040201008040201ULL);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), place), each);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, each), _mm256_set1_epi8((char)value));
#        endif
}
#    endif

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
#    ifdef QUANT_NEON
    return QV_LOAD(table);
#    else
    __m128i sixteen;
    memcpy(&sixteen, table, sizeof(sixteen));
#        ifdef __AVX512VNNI__
    return _mm512_broadcast_i32x4(sixteen);
#        else
    return _mm256_broadcastsi128_si256(sixteen);
#        endif
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
#    pragma GCC unroll 64
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

static void quant_to_bytes(uint8_t *codes, const uint8_t *at, const quant_form *f)
{
#define SPREAD(n, bits, mapped) quant_spread(codes, at, f, n, bits, mapped)
    QUANT_BY_FORM(f, SPREAD)
#undef SPREAD
}

/* The stretch's codes in bytes: into `bytes`, if they lie otherwise. */
static inline __attribute__((always_inline)) void quant_unpack(quant_stretch *s, uint8_t *bytes)
{
    const quant_form *f = s->form;
    for (int i = 0; i < s->n && f->bits != 8; i++, bytes += f->k * PANEL) {
        quant_to_bytes(bytes, s->at[i], f);
        s->at[i] = bytes;
    }
}

/* -------------------------------------------------------------------------------- sums -- */

#ifdef QUANT_VECTORS
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

/* Stores a vector.  A memcpy() to an array of known size, at an index that the compiler does not
 * know, would become a checked call (_FORTIFY_SOURCE), for which sums leave their registers. */
typedef float quant_floats_at __attribute__((vector_size(sizeof(qf)), aligned(4), may_alias));

static inline __attribute__((always_inline)) void quant_store(float *p, qf v)
{
    *(quant_floats_at *)p = v;
}

/* a * b + c, rounded once where the set can: the compiler's own choice would differ with the number
 * of rows. */
static inline __attribute__((always_inline)) qf quant_fma(qf a, qf b, qf c)
{
#ifdef __AVX512VNNI__
    return (qf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (qf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

/* v and the product of a block with a row whose scale is xs; `lean` is of quant_terms. */
static inline __attribute__((always_inline)) qf quant_add(qf v, qi dot, const quant_form *f,
                                                          qf scale, qf off, float xs, float lean)
{
    const qf zero = {0};
    qf d = __builtin_convertvector(dot, qf);
    /* Both parts are whole numbers below 2^24: exact. */
    if (f->form == SCALES_ZERO) d -= off * (lean - zero);
    v = quant_fma(d, scale * (xs - zero), v);
    return f->has_min ? quant_fma(off, lean - zero, v) : v;
}

#endif
