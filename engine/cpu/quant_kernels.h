/* quant_kernels.h -- products of quantised weights; included once by each file that is compiled for
 * an instruction set.
 *
 * Integers within a block, floats between blocks.  One row takes a block's codes from their planes
 * straight into its products; for several rows they are first put into bytes, in the first-level
 * cache.  Codes are unsigned: what `least` takes away is added by the sum of x.  With VNNI a
 * product is one instruction (VPDPBUSD).  AVX2 has VPMADDUBSW: codes of few bits are summed in 16
 * bits as far as they fit; of 8 bits it takes |w| times x with w's sign, whose sums of two stay
 * below 2^15.  Elsewhere the plain loop does.
 */
#include <stdalign.h>
#ifdef __AVX2__
#    include <immintrin.h>
#endif

#include "engine/base/halves.h"
#include "engine/cpu/coded_kernels.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

enum {
    QUANT_CODES = QUANT_K * PANEL,
    QUANT_QUAD_BYTES = PANEL * QUANT_QUAD,
};
#ifdef __AVX512VNNI__
enum { QUANT_ROWS = 8 }; /* at once, times two vectors of columns */
#else
enum { QUANT_ROWS = 4 };
#endif

/* -------------------------------------------------------------------------- rows of x -- */

typedef int8_t quant_bytes __attribute__((vector_size(VEC)));

/* Nearest, ties to even, of |v| < 2^22. */
static inline __attribute__((always_inline)) vi quant_round(vf v)
{
#if VEC == 16
    return (vi)_mm512_cvtps_epi32((__m512)v);
#elif VEC == 8
    return (vi)_mm256_cvtps_epi32((__m256)v);
#else
    const vf magic = vf_set(0x1.8p23F);
    return (vi)(v + magic) - (vi)magic;
#endif
}

static inline __attribute__((always_inline)) int32_t quant_sum(vi v)
{
    int32_t a[VEC], sum = 0;
    memcpy(a, &v, sizeof(a));
    for (int i = 0; i < VEC; i++) sum += a[i];
    return sum;
}

/* QUANT_K values: codes, their sums by halves, and the scale. */
static inline __attribute__((always_inline)) float quant_group(int8_t *code, int32_t *sums,
                                                               const float *x)
{
    vf most = vf_set(0), odd = vf_set(0); /* odd: no number where a value is none */
    for (int i = 0; i < QUANT_K; i += VEC) {
        vf v = vf_load(x + i), a = (vf)((vi)v & 0x7FFFFFFF);
        most = vf_select((vi)(a > most), a, most);
        odd += v * vf_set(0);
    }
    float top = vf_max(most);
    const vf up = vf_set(top > 0 ? 127 / top : 0);
    vi half[2] = {{0}, {0}};
    for (int i = 0; i < QUANT_K; i += VEC) {
        vi c = quant_round(vf_load(x + i) * up);
        quant_bytes b = __builtin_convertvector(c, quant_bytes);
        memcpy(code + i, &b, sizeof(b));
        /* The low byte is what is kept: what no number became may be anything. */
        half[i / QUANT_HALF] += ((c & 0xFF) ^ 0x80) - 0x80;
    }
    sums[0] = quant_sum(half[0]);
    sums[1] = quant_sum(half[1]);
    return top / 127 + vf_sum(odd);
}

static void quant_row(const quant_rows *to, int row, const float *x, int d)
{
    int8_t *code = to->code + (size_t)row * to->k_pad;
    float *scale = to->scale + (size_t)row * (to->k_pad / QUANT_K);
    int32_t *sums = to->sums + (size_t)row * (to->k_pad / QUANT_HALF);
    for (int k0 = 0; k0 < to->k_pad; k0 += QUANT_K, code += QUANT_K, sums += 2) {
        float last[QUANT_K] = {0};
        bool whole = d - k0 >= QUANT_K;
        if (!whole) memcpy(last, x + k0, (size_t)(d - k0) * sizeof(*last));
        scale[k0 / QUANT_K] = quant_group(code, sums, whole ? x + k0 : last);
    }
}

/* ---------------------------------------------------------------------------- a block -- */

/* One block of a panel, ready for the rows. */
typedef struct {
    const uint8_t *at; /* codes in planes */
    const quant_form *form;
    alignas(64) float scale[PANEL];       /* of this block, */
    float off[PANEL];                     /* its mins, or the codes that stand for zero */
    float outer[PANEL], outer_min[PANEL]; /* nested: of the run */
} quant_block;

/* What one row's x is for a block. */
typedef struct {
    const int8_t *code;
    float scale;
    int32_t sum; /* of its codes */
} quant_x;

static inline __attribute__((always_inline)) void quant_floats(float *out, const char *at,
                                                               dtype type)
{
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

/* out = outer * parts. */
static inline __attribute__((always_inline)) void quant_parts(float *out, const float *outer,
                                                              const char *parts)
{
    for (int j = 0; j < PANEL; j += VEC)
        vf_store(out + j, vf_load(outer + j) * vf_from_i8((const int8_t *)parts + j));
}

/* At the head of a run. */
static inline __attribute__((always_inline)) void quant_head(quant_block *b, const char *head)
{
    const quant_form *f = b->form;
    const char *mins = head + (size_t)PANEL * dtype_bytes(f->scale_type);
    bool nested = f->form == SCALES_NESTED;
    quant_floats(nested ? b->outer : b->scale, head, f->scale_type);
    if (f->has_min) quant_floats(nested ? b->outer_min : b->off, mins, f->scale_type);
    if (f->form != SCALES_ZERO) return;
    for (int j = 0; j < PANEL; j++) {
        int16_t zero;
        memcpy(&zero, head + f->parts_at + (size_t)j * sizeof(zero), sizeof(zero));
        b->off[j] = (float)zero;
    }
}

/* At column k of a run: scales of groups within. */
static inline __attribute__((always_inline)) void quant_nested(quant_block *b, const char *head,
                                                               int k)
{
    const quant_form *f = b->form;
    if (f->form != SCALES_NESTED || k % f->group) return;
    const char *parts = head + f->parts_at + (size_t)(k / f->group) * PANEL;
    quant_parts(b->scale, b->outer, parts);
    if (f->has_min) quant_parts(b->off, b->outer_min, parts + (size_t)(f->span / f->group) * PANEL);
}

/* VEC columns from column c on: out += the block's product with one row. */
static inline __attribute__((always_inline)) void quant_add(float *out, const quant_block *b, int c,
                                                            vi dot, const quant_x *x)
{
    vf v = vf_load(out + c), d = __builtin_convertvector(dot, vf);
    /* Both parts are whole numbers below 2^24: exact. */
    if (b->form->form == SCALES_ZERO) d -= vf_load(b->off + c) * vf_set((float)x->sum);
    v += d * (vf_load(b->scale + c) * vf_set(x->scale));
    if (b->form->has_min) v += vf_load(b->off + c) * vf_set(x->scale * (float)x->sum);
    vf_store(out + c, v);
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
static inline __attribute__((always_inline)) void
quant_spread(uint8_t *out, const quant_block *b, const int n, const int bits, const bool mapped)
{
    const qv table = quant_table(b->form->table);
#    pragma GCC unroll 32
    for (int i = 0; i < n; i += QV_BYTES) {
        qv v = quant_codes(b->at, i, n, bits);
        QV_STORE(out + i, mapped ? QV(shuffle_epi8)(table, v) : v);
    }
}

#else

static inline __attribute__((always_inline)) void
quant_spread(uint8_t *out, const quant_block *b, const int n, const int bits, const bool mapped)
{
    for (int i = 0; i < n; i++) {
        int code = quant_code(b->at, (size_t)i, (size_t)n, bits);
        out[i] = mapped ? b->form->table[code] : (uint8_t)code;
    }
}

#endif

/* ---------------------------------------------------------------------------- products -- */

#ifdef __AVX512VNNI__

/* One row times a block in planes. */
static inline __attribute__((always_inline)) void quant_one(float *out, const quant_block *b,
                                                            const quant_x *x, const int n,
                                                            const int bits, const bool mapped)
{
    const int quads = n / QUANT_QUAD_BYTES;
    const qv table = quant_table(b->form->table);
    qv dot[2];
    dot[0] = dot[1] = _mm512_set1_epi32(b->form->least * x->sum);
#    pragma GCC unroll 8
    for (int i = 0; i < quads; i++) {
        const int q = i % 2 * (quads / 2) + i / 2; /* both halves of a byte */
        qv four = quant_four(x->code + q * QUANT_QUAD);
#    pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            qv v = quant_codes(b->at, q * QUANT_QUAD_BYTES + h * QV_BYTES, n, bits);
            if (mapped) v = _mm512_shuffle_epi8(table, v);
            dot[h] = _mm512_dpbusd_epi32(dot[h], v, four);
        }
    }
    quant_add(out, b, 0, (vi)dot[0], x);
    quant_add(out, b, VEC, (vi)dot[1], x);
}

/* A few rows times a block in bytes. */
static inline __attribute__((always_inline)) void quant_few(float *out, const quant_block *b,
                                                            const uint8_t *codes, const quant_x *x,
                                                            int quads, const int rows)
{
    qv dot[QUANT_ROWS][2];
#    pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        dot[r][0] = dot[r][1] = _mm512_set1_epi32(b->form->least * x[r].sum);
#    pragma GCC unroll 1
    for (int q = 0; q < quads; q++, codes += QUANT_QUAD_BYTES) {
        qv v0 = QV_LOAD(codes), v1 = QV_LOAD(codes + QV_BYTES);
#    pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            qv four = quant_four(x[r].code + q * QUANT_QUAD);
            dot[r][0] = _mm512_dpbusd_epi32(dot[r][0], v0, four);
            dot[r][1] = _mm512_dpbusd_epi32(dot[r][1], v1, four);
        }
    }
#    pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        quant_add(out + (size_t)r * PANEL, b, 0, (vi)dot[r][0], &x[r]);
        quant_add(out + (size_t)r * PANEL, b, VEC, (vi)dot[r][1], &x[r]);
    }
}

#elif defined(__AVX2__)

/* Codes of so many bits have sums of so many quads in 16 bits: 15 * 127 * 2 * 8 < 2^15. */
static inline __attribute__((always_inline)) int quant_each(const int bits)
{
    return bits <= 4 ? 8 : bits == 5 ? 4 : 2;
}

/* Products of a vector of codes with four of x, in 16 bits; `wide`: codes have 8 bits. */
static inline __attribute__((always_inline)) qv quant_pairs(qv v, qv four, const bool wide)
{
    if (!wide) return _mm256_maddubs_epi16(v, four);
    v = _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
    return _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(four, v));
}

/* Rows times `lanes` vectors of 8 columns from column c on; of codes in planes, or, bits 8, in
 * bytes.  `each`: quads that are summed in 16 bits. */
static inline __attribute__((always_inline)) void
quant_pass(float *out, const quant_block *b, const uint8_t *codes, int c, const quant_x *x,
           const int each, const int rows, const int lanes, int quads)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const bool wide = each == 1;
    __m256i dot[QUANT_ROWS][4];
#    pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        /* Codes of 8 bits have their sign again */
        __m256i start =
            _mm256_set1_epi32(wide ? (b->form->least + 128) * x[r].sum : b->form->least * x[r].sum);
#    pragma GCC unroll 4
        for (int l = 0; l < lanes; l++) dot[r][l] = start;
    }
    codes += (size_t)c * QUANT_QUAD;
#    pragma GCC unroll 1
    for (int q = 0; q < quads;) {
        int end = q + each < quads ? q + each : quads;
        __m256i two[QUANT_ROWS][4];
#    pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#    pragma GCC unroll 4
            for (int l = 0; l < lanes; l++) two[r][l] = _mm256_setzero_si256();
        }
#    pragma GCC unroll 1
        for (; q < end; q++) {
#    pragma GCC unroll 4
            for (int l = 0; l < lanes; l++) {
                qv v = QV_LOAD(codes + (size_t)q * QUANT_QUAD_BYTES + 32 * l);
#    pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    qv four = quant_four(x[r].code + q * QUANT_QUAD);
                    two[r][l] = _mm256_add_epi16(two[r][l], quant_pairs(v, four, wide));
                }
            }
        }
#    pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#    pragma GCC unroll 4
            for (int l = 0; l < lanes; l++)
                dot[r][l] = _mm256_add_epi32(dot[r][l], _mm256_madd_epi16(two[r][l], ones));
        }
    }
#    pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#    pragma GCC unroll 4
        for (int l = 0; l < lanes; l++) {
#    if VEC == 8
            quant_add(out + (size_t)r * PANEL, b, c + 8 * l, (vi)dot[r][l], &x[r]);
#    else
            if (l % 2 == 0)
                quant_add(
                    out + (size_t)r * PANEL, b, c + 8 * l,
                    (vi)_mm512_inserti64x4(_mm512_castsi256_si512(dot[r][l]), dot[r][l + 1], 1),
                    &x[r]);
#    endif
        }
    }
}

static inline __attribute__((always_inline)) void quant_passes(float *out, const quant_block *b,
                                                               const uint8_t *codes,
                                                               const quant_x *x, int quads,
                                                               const int each, const int rows)
{
    const int lanes = rows == 1 ? 4 : 2;
    for (int c = 0; c < PANEL; c += 8 * lanes)
        quant_pass(out, b, codes, c, x, each, rows, lanes, quads);
}

static inline __attribute__((always_inline)) void quant_few(float *out, const quant_block *b,
                                                            const uint8_t *codes, const quant_x *x,
                                                            int quads, const int rows)
{
    if (b->form->bits == 8 || b->form->mapped)
        quant_passes(out, b, codes, x, quads, 1, rows);
    else if (b->form->bits == 6)
        quant_passes(out, b, codes, x, quads, 2, rows);
    else if (b->form->bits == 5)
        quant_passes(out, b, codes, x, quads, 4, rows);
    else
        quant_passes(out, b, codes, x, quads, 8, rows);
}

#else

static inline __attribute__((always_inline)) void quant_few(float *out, const quant_block *b,
                                                            const uint8_t *codes, const quant_x *x,
                                                            int quads, const int rows)
{
    for (int r = 0; r < rows; r++) {
        int32_t dot[PANEL] = {0};
        const uint8_t *w = codes;
        for (int q = 0; q < quads; q++, w += QUANT_QUAD_BYTES) {
            const int8_t *xq = x[r].code + q * QUANT_QUAD;
            for (int j = 0; j < PANEL; j++) {
                for (int i = 0; i < QUANT_QUAD; i++) dot[j] += w[j * QUANT_QUAD + i] * xq[i];
            }
        }
        for (int j = 0; j < PANEL; j++) dot[j] += b->form->least * x[r].sum;
        for (int j = 0; j < PANEL; j += VEC) {
            vi d;
            memcpy(&d, dot + j, sizeof(d));
            quant_add(out + (size_t)r * PANEL, b, j, d, &x[r]);
        }
    }
}

#endif

#ifndef __AVX512VNNI__

static inline __attribute__((always_inline)) void quant_one(float *out, const quant_block *b,
                                                            const quant_x *x, const int n,
                                                            const int bits, const bool mapped)
{
    alignas(64) uint8_t codes[QUANT_CODES];
    if (bits != 8) quant_spread(codes, b, n, bits, mapped);
    quant_few(out, b, bits == 8 ? b->at : codes, x, n / QUANT_QUAD_BYTES, 1);
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

static void quant_one_row(float *out, const quant_block *b, const quant_x *x)
{
#define ONE(n, bits, mapped) quant_one(out, b, x, n, bits, mapped)
    QUANT_BY_FORM(b->form, ONE)
#undef ONE
}

static void quant_to_bytes(uint8_t *codes, const quant_block *b)
{
#define SPREAD(n, bits, mapped) quant_spread(codes, b, n, bits, mapped)
    QUANT_BY_FORM(b->form, SPREAD)
#undef SPREAD
}

/* n <= QUANT_ROWS rows. */
static void quant_some(float *out, const quant_block *b, const uint8_t *codes, const quant_x *x,
                       int n)
{
    const int quads = b->form->k / QUANT_QUAD;
    switch (n) {
    case 1: quant_few(out, b, codes, x, quads, 1); break;
    case 2: quant_few(out, b, codes, x, quads, 2); break;
    case 3: quant_few(out, b, codes, x, quads, 3); break;
#ifdef __AVX512VNNI__
    case 4: quant_few(out, b, codes, x, quads, 4); break;
    case 5: quant_few(out, b, codes, x, quads, 5); break;
    case 6: quant_few(out, b, codes, x, quads, 6); break;
    case 7: quant_few(out, b, codes, x, quads, 7); break;
#endif
    default: quant_few(out, b, codes, x, quads, QUANT_ROWS); break;
    }
}

/* What row `row` is for the block whose x begins at k. */
static inline __attribute__((always_inline)) quant_x quant_x_of(const quant_rows *x, int row, int k,
                                                                int n_k)
{
    size_t at = (size_t)row * x->k_pad + k;
    const int32_t *sums = x->sums + at / QUANT_HALF;
    return (quant_x){x->code + at, x->scale[at / QUANT_K],
                     n_k == QUANT_K ? sums[0] + sums[1] : sums[0]};
}

/* All rows times one block; its x begins at k. */
static inline __attribute__((always_inline)) void
quant_rows_times(float *out, const quant_block *b, const quant_rows *x, int k, int row0, int n_rows)
{
    alignas(64) uint8_t bytes[QUANT_CODES];
    const uint8_t *codes = b->at;
    const int n_k = b->form->k;
    quant_x of[QUANT_ROWS];
    if (n_rows == 1) {
        of[0] = quant_x_of(x, row0, k, n_k);
        quant_one_row(out, b, &of[0]);
        return;
    }
    if (b->form->bits != 8) {
        quant_to_bytes(bytes, b);
        codes = bytes;
    }
    for (int i = 0, n; i < n_rows; i += n) {
        n = n_rows - i < QUANT_ROWS ? n_rows - i : QUANT_ROWS;
        for (int r = 0; r < n; r++) of[r] = quant_x_of(x, row0 + i + r, k, n_k);
        quant_some(out + (size_t)i * PANEL, b, codes, of, n);
    }
}

/* Lines that are read next, all at once.  What lies behind them is left to the CPU's own fetching:
 * a Zen 4 that is asked for lines 1 KiB or more ahead gets a quarter less. */
static inline __attribute__((always_inline)) void quant_fetch(const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
}

static void block_quant(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                        const void *x, int row0, int n_rows)
{
    const quant_form *f = &w->quant;
    quant_block b;
    b.form = f;
    for (int p = 0; p < n_panel; p++, out += (size_t)rows_pad * PANEL) {
        const char *head = (const char *)w->data + (size_t)(p0 + p) * w->panel_bytes;
        memset(out, 0, (size_t)n_rows * PANEL * sizeof(*out));
        for (int k0 = 0; k0 < w->head.cols; k0 += f->span, head += f->run_bytes) {
            const char *at = head + f->codes_at;
            quant_fetch(head, f->codes_at);
            quant_head(&b, head);
            for (int k = 0; k < f->span; k += f->k, at += f->block_bytes) {
                quant_fetch(at, f->block_bytes);
                quant_nested(&b, head, k);
                b.at = (const uint8_t *)at;
                quant_rows_times(out, &b, x, k0 + k, row0, n_rows);
            }
        }
    }
}

const quant_kernels QUANT_KERNELS = {block_quant, quant_row, coded_piece};
