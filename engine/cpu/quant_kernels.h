/* quant_kernels.h -- products of quantised weights; included once by each file that is compiled for
 * an instruction set.
 *
 * Integers within a block; floats between them.  Rows of x are taken
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
#include "engine/cpu/quant_parts.h"

/* -------------------------------------------------------------------------- rows of x -- */

/* Rows that stand side by side are written together: they share cache lines. */
static void quant_round(const quant_rows *to, int row, int n, const float *x, int d, int k0, int k1)
{
    const int planes = to->planes;
    int at = row * planes;
    for (int some, left = n * planes; left > 0; at += some, left -= some) {
        some = QUANT_SOME - at % QUANT_SOME;
        if (some > left) some = left;
        const quant_side first = quant_side_of(to, at);
        const float *from = x + (size_t)(at / planes - row) * (size_t)d;
        float limit[QUANT_SOME];
        for (int r = 0; to->rest && r < some; r++)
            limit[r] = quant_limit(from + (size_t)r * (size_t)d, d);
        for (int k = k0; k < k1; k += QUANT_K) {
            for (int r = 0; r < some; r += planes) {
                const quant_side side[2] = {quant_side_next(first, r),
                                            quant_side_next(first, r + planes - 1)};
                quant_round_group(to, side, from + (size_t)(r / planes) * (size_t)d, d, k,
                                  to->rest ? limit[r] : INFINITY, false);
            }
        }
    }
}

/* ---------------------------------------------------------------------------- products -- */

#ifdef QUANT_VECTORS

#    ifdef QUANT_NEON
#        ifdef __ARM_FEATURE_MATMUL_INT8
enum { QUANT_WIDE_OFF = 0 };
#        else
enum { QUANT_WIDE_OFF = 128 };
#        endif
#        define QUANT_UNROLL _Pragma("GCC unroll 2")
#    elif defined(QUANT_VNNI)
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

/* Without this GCC loads what all rows need before it stores the first, and runs out of
 * registers. */
#    define QUANT_STORED() __asm__("" ::: "memory")

/* A sum as it is now: GCC would add products as a tree, and has no registers for its leaves. */
#    ifdef QUANT_NEON
#        define QUANT_KEPT(v) __asm__("" : "+w"(v))
#    else
#        define QUANT_KEPT(v) __asm__("" : "+x"(v))
#    endif

/* Sums of products of one vector of codes with a quad of each row.  `bits`: what codes may have. */
static inline __attribute__((always_inline)) void quant_dots(qv *dot, qv *two, qv v,
                                                             const int8_t *x, const int rows,
                                                             const int bits, const bool in_order)
{
#    ifdef QUANT_NEON
    (void)two, (void)in_order;
    if (bits == 8 && QUANT_WIDE_OFF) v ^= qv_set1_epi8(QUANT_WIDE_OFF);
    int r = 0;
#        pragma GCC unroll 2
    for (; r + 4 <= rows; r += 4) {
        const qv four = QV_LOAD(x + r * QUANT_QUAD);
        QUANT_ADD(dot[r], v, four, 0);
        QUANT_ADD(dot[r + 1], v, four, 1);
        QUANT_ADD(dot[r + 2], v, four, 2);
        QUANT_ADD(dot[r + 3], v, four, 3);
    }
#        pragma GCC unroll 4
    for (; r < rows; r++) QUANT_ADD(dot[r], v, quant_four(x + r * QUANT_QUAD), 0);
#    elif defined(QUANT_VNNI)
    (void)two, (void)bits, (void)in_order;
#        pragma GCC unroll 8
    for (int r = 0; r < rows; r++) QUANT_ADD(dot[r], v, quant_four(x + r * QUANT_QUAD));
#    else
    if (quant_each(bits) > 1) {
#        pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            two[r] =
                _mm256_add_epi16(two[r], _mm256_maddubs_epi16(v, quant_four(x + r * QUANT_QUAD)));
            if (in_order) QUANT_KEPT(two[r]);
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
        if (in_order) QUANT_KEPT(dot[r]);
    }
#    endif
}

/* The vectors of columns from c on, of quad number q, times that of each row. */
static inline __attribute__((always_inline)) void
quant_quad(qv *dot, qv *two, const uint8_t *codes, int c, const int8_t *x, qv table, const int q,
           const int quads, const int rows, const int lanes, const int stored, const bool mapped,
           const int bits)
{
#    pragma GCC unroll 8
    for (int l = 0; l < lanes; l++) {
        const int at = q * QUANT_QUAD_BYTES + (c + l * QUANT_COLS) * QUANT_QUAD;
        qv w = quant_codes(codes, at, quads * QUANT_QUAD_BYTES, stored);
        if (mapped) w = QV(shuffle_epi8)(table, w);
        const bool in_order = rows == 1 || (QUANT_ONE_COPY && stored != 8);
        quant_dots(dot + l * rows, two + l * rows, w, x, rows, bits, in_order);
#    ifdef QUANT_NEON
        /* Codes of all lanes first would take all registers. */
        if (l % 4 == 3 || l + 1 == lanes) QUANT_STORED();
#    endif
    }
}

/* Where sums of 16 bits are full after quad number q, or at the end, they go into those of 32. */
static inline __attribute__((always_inline)) void
quant_flush(qv *dot, qv *two, const int q, const int quads, const int rows, const int bits)
{
#    ifdef QUANT_DOT
    (void)dot, (void)two, (void)q, (void)quads, (void)rows, (void)bits;
#    else
    const int each = quant_each(bits);
    if (each == 1 || ((q + 1) % each && q + 1 < quads)) return;
#        pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        dot[r] = _mm256_add_epi32(dot[r], _mm256_madd_epi16(two[r], _mm256_set1_epi16(1)));
        two[r] = _mm256_setzero_si256();
    }
#    endif
}

/* A block's quads.  `stored`: how codes lie, 8: in bytes; `bits`: what they may have.  With each
 * quad lines of `s`, if there is one, are asked for: all at once they would hold products up. */
static inline __attribute__((always_inline)) void
quant_block(qv *dot, qv *two, const uint8_t *codes, int c, const int8_t *x, int some, qv table,
            const int quads, const int rows, const int lanes, const int stored, const bool mapped,
            const int bits, const quant_stretch *s)
{
    const size_t lines = s ? QUANT_QUAD_BYTES * (size_t)stored / 8 : 0; /* asked for with a quad */
#    pragma GCC unroll 8
    for (int k = 0; stored != 8 && k < quads; k++) {
        const int q = k % 2 * (quads / 2) + k / 2; /* both halves of a byte */
        if (lines) quant_fetch((const char *)codes + s->ahead + (size_t)k * lines, lines);
        quant_quad(dot, two, codes, c, x + q * some, table, q, quads, rows, lanes, stored, mapped,
                   bits);
        quant_flush(dot, two, k, quads, lanes * rows, bits);
    }
    QUANT_UNROLL
    for (int q = 0; stored == 8 && q < quads; q++) {
        if (lines) quant_fetch((const char *)codes + s->ahead + (size_t)q * lines, lines);
        quant_quad(dot, two, codes, c, x + q * some, table, q, quads, rows, lanes, 8, false, bits);
        quant_flush(dot, two, q, quads, lanes * rows, bits);
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
        qf sum =
            quant_add(kept ? v[r] : quant_load(at), (qi)dot[r], &f, quant_load(s->scale[i] + col),
                      quant_load(s->off[i] + col), t->scale[i][r % rows], t->lean[i][r % rows]);
        if (kept) {
            v[r] = sum;
        } else {
            quant_store(at, sum);
            QUANT_STORED();
        }
    }
}

/* Rows times a stretch, of `lanes` vectors of columns from c on.  Sums stay in registers while they
 * fit beside a block's; else they go by way of memory. */
static inline __attribute__((always_inline)) void
quant_few_columns(float *out, const quant_stretch *s, const quant_terms *t, int c, const int quads,
                  const int rows, const int lanes, const int stored, const bool mapped,
                  const int bits, const bool asks)
{
    const int some = t->some * QUANT_QUAD, kept = lanes * rows <= QUANT_SUMS ? lanes * rows : 0;
    const qv table = quant_table(s->form->table);
    const bool zeros = s->form->form == SCALES_ZERO, mins = s->form->has_min;
    const int8_t *x = t->code;
    qf v[QUANT_SUMS];
#    pragma GCC unroll 16
    for (int r = 0; r < kept; r++)
        v[r] = quant_load(out + r % rows * PANEL + c + r / rows * QUANT_COLS);
#    pragma GCC unroll 1
    for (int i = 0; i < s->n; i++, x += quads * some) {
        qv dot[QUANT_DOTS], two[QUANT_DOTS];
        quant_ask(s);
#    pragma GCC unroll 16
        for (int r = 0; r < lanes * rows; r++) {
            dot[r] = QV(set1_epi32)(t->start[i][r % rows]);
            two[r] = (qv){0};
        }
        quant_block(dot, two, s->at[i], c, x, some, table, quads, rows, lanes, stored, mapped, bits,
                    asks ? s : NULL);
        if (zeros)
            quant_few_add(v, out, s, t, dot, c, i, rows, lanes, kept, true, false);
        else if (mins)
            quant_few_add(v, out, s, t, dot, c, i, rows, lanes, kept, false, true);
        else
            quant_few_add(v, out, s, t, dot, c, i, rows, lanes, kept, false, false);
    }
#    pragma GCC unroll 16
    for (int r = 0; r < kept; r++)
        quant_store(out + r % rows * PANEL + c + r / rows * QUANT_COLS, v[r]);
}

/* Rows times a stretch, `lanes` vectors of columns at once: with all of them x is read once, and
 * the lines in ascending order.  Each c has a copy of the loop, which is 5 to 10 % faster than one
 * copy for all (QUANT_ONE_COPY: as fast). */
static inline __attribute__((always_inline)) void
quant_few(float *out, const quant_stretch *s, const quant_terms *t, const int quads, const int rows,
          const int lanes, const int stored, const bool mapped, const int bits, const bool asks)
{
    const int width = lanes * QUANT_COLS;
    const bool once = QUANT_ONE_COPY && stored != 8;
#    pragma GCC unroll 4
    for (int c = 0; !once && c < PANEL; c += width)
        quant_few_columns(out, s, t, c, quads, rows, lanes, stored, mapped, bits, asks);
#    pragma GCC unroll 1
    for (int c = 0; once && c < PANEL; c += width)
        quant_few_columns(out, s, t, c, quads, rows, lanes, stored, mapped, bits, asks);
}

#else

enum { QUANT_WIDE_OFF = 0 };

static inline __attribute__((always_inline)) void
quant_few(float *out, const quant_stretch *s, const quant_terms *t, const int quads, const int rows,
          const int lanes, const int stored, const bool mapped, const int bits, const bool asks)
{
    (void)lanes, (void)stored, (void)mapped, (void)bits, (void)asks; /* codes are in bytes */
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
            for (int c = 0; c < PANEL; c += QUANT_COLS) {
                float *at = out + r * PANEL + c;
                qf v = quant_add(quant_load(at), quant_load_whole(dot + c), s->form,
                                 quant_load(s->scale[i] + c), quant_load(s->off[i] + c),
                                 t->scale[i][r], t->lean[i][r]);
                quant_store(at, v);
            }
        }
    }
}

#endif

/* ------------------------------------------------------------------------------ one row -- */

#ifdef QUANT_VECTORS

enum { QUANT_PARTS = 2 * 16 * PANEL, QUANT_UNASKED = -1 }; /* bytes, at most; of quant_ahead() */

/* How many bytes before their use one row asks for its lines.  A Zen 3, which keeps up with its
 * memory, wants them far ahead.  Of 8 bits a Zen 4 reads more where it is not asked: its own
 * prefetchers follow one ascending stream.  Of 4 it takes longer over a line than they look ahead,
 * and several planes of a block are no such stream. */
static inline int quant_ahead(const int bits)
{
    if (!QUANT_ASKS) return QUANT_UNASKED;
#    ifdef __AVX2__
    if (!__builtin_cpu_supports("avx512f")) return 2048;
#    endif
    return bits == 8 ? QUANT_UNASKED : bits == 4 ? 8192 : 0;
}

/* One row of x, and where it stands. */
typedef struct {
    const int8_t *code;
    const float *scale;
    const int32_t *sums;
} quant_single;

/* A vector of small whole numbers as floats. */
static inline __attribute__((always_inline)) qf quant_part(const int8_t *at)
{
#    ifdef QUANT_NEON
    return vf_from_i8(at);
#    elif defined(__AVX512VNNI__)
    return (qf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at)));
#    else
    return (qf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)at)));
#    endif
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
    const bool nested = form == SCALES_NESTED;
    const int ahead = quant_ahead(bits);
    quant_form f = w->quant;
    f.form = form;
    f.has_min = has_min;
    const int least = f.least + (code_bits == 8 ? QUANT_WIDE_OFF : 0);
    const qv table = quant_table(f.table);
    alignas(64) char parts[QUANT_PARTS];
    alignas(64) float scale[PANEL], off[PANEL];
    qf v[LANES];
#    pragma GCC unroll 8
    for (int l = 0; l < LANES; l++) v[l] = (qf){0};
    for (int left = w->head.cols; left > 0; left -= f.span, run += f.run_bytes) {
        const uint8_t *at = (const uint8_t *)run + f.codes_at;
        const int8_t *part = (const int8_t *)parts, *min = part + f.min_parts;
        if (ahead != QUANT_UNASKED) quant_fetch(run + ahead, f.codes_at);
        quant_head(scale, off, &f, run);
        /* Read here, not beside the codes: two streams would be read at half the speed. */
        for (size_t i = f.parts_at; nested && i < f.codes_at; i += 64)
            memcpy(parts + i - f.parts_at, run + i, 64);
        for (int k = 0; k < f.span; k += block, at += f.block_bytes) {
            qv dot[LANES], two[LANES];
            const int32_t sum = x.sums[0] + (block == QUANT_K ? x.sums[1] : 0);
            if (ahead != QUANT_UNASKED) quant_fetch((const char *)at + ahead, f.block_bytes);
#    pragma GCC unroll 8
            for (int l = 0; l < LANES; l++) {
                dot[l] = QV(set1_epi32)(least * sum);
                two[l] = (qv){0};
            }
            quant_block(dot, two, at, 0, x.code, QUANT_QUAD, table, quads, 1, LANES, bits, mapped,
                        code_bits, NULL);
#    pragma GCC unroll 8
            for (int l = 0; l < LANES; l++) {
                const int c = l * QUANT_COLS;
                qf by = quant_load(scale + c), less = quant_load(off + c);
                if (nested) by *= quant_part(part + c);
                if (nested && has_min) less *= quant_part(min + c);
                v[l] = quant_add(v[l], (qi)dot[l], &f, by, less, *x.scale,
                                 has_min ? *x.scale * (float)sum : (float)sum);
            }
            part += PANEL;
            min += PANEL;
            x.code += block;
            x.sums += block / QUANT_HALF;
            x.scale += block / QUANT_HALF;
        }
    }
    memcpy(out, v, sizeof(v));
}

/* The forms that files have: bits, mapped, columns of a block, scales, mins. */
#    define QUANT_ONES(one)                                                                 \
        one(8, 0, 32, OWN, 0) one(8, 0, 32, ZERO, 0) one(6, 0, 16, NESTED, 0)               \
            one(5, 0, 32, OWN, 0) one(5, 0, 32, OWN, 1) one(5, 0, 32, NESTED, 1)            \
                one(4, 0, 32, OWN, 0) one(4, 0, 32, OWN, 1) one(4, 0, 32, ZERO, 0)          \
                    one(4, 0, 32, NESTED, 1) one(4, 1, 32, OWN, 0) one(4, 1, 32, NESTED, 0) \
                        one(3, 0, 16, NESTED, 0) one(2, 0, 16, NESTED, 1)

/* One function for each form, not inlined: each has all registers for itself, and a change of one
 * form leaves the code of the others as it is. */
#    define ONE(bits, mapped, block, form, min)                                                 \
        static __attribute__((noinline)) void one_##bits##_##mapped##_##block##_##form##_##min( \
            float *out, const cpu_weight *w, const char *run, const quant_single *x)            \
        {                                                                                       \
            quant_one(out, w, run, *x, bits, mapped, block, SCALES_##form, min);                \
        }
QUANT_ONES(ONE)
#    undef ONE

/* Returns false, and writes nothing, if no function exists for the form. */
static bool quant_alone(float *out, const cpu_weight *w, int panel, const quant_rows *q, int row)
{
    const quant_form *f = &w->quant;
    const quant_side side = quant_side_of(q, row);
    const quant_single x = {q->code + side.code, q->scale + side.scale, q->sums + side.sums};
    const char *run = (const char *)w->data + (size_t)panel * w->panel_bytes;
    if (side.some > 1 || f->span % QUANT_K) return false;
#    define KEY(bits, mapped, block, form, min) \
        ((bits) | (mapped) << 4 | (block) << 5 | (int)(form) << 11 | (min) << 13)
#    define ONE(bits, mapped, block, form, min)                            \
    case KEY(bits, mapped, block, SCALES_##form, min):                     \
        one_##bits##_##mapped##_##block##_##form##_##min(out, w, run, &x); \
        return true;
    switch (KEY(f->bits, f->mapped, f->k, f->form, f->has_min)) {
        QUANT_ONES(ONE)
    default: return false;
    }
#    undef ONE
#    undef KEY
#    undef QUANT_ONES
}

#endif

/* ------------------------------------------------------------------------------- blocks -- */

/* What the products have to know of codes in bytes: how many bits they may have, as far as it
 * matters.  In blocks of 32, codes of 4 bits stay in planes, and no file has smaller ones. */
#if defined(QUANT_NEON) && !defined(__ARM_FEATURE_MATMUL_INT8)
#    define QUANT_BY_SIZE_32(f, call)        \
        if ((f)->bits == 8 || (f)->mapped) { \
            call(8);                         \
        } else {                             \
            call(6);                         \
        }
#    define QUANT_BY_SIZE_16(f, call) QUANT_BY_SIZE_32(f, call)
#elif defined(QUANT_DOT) || !defined(QUANT_VECTORS)
#    define QUANT_BY_SIZE_32(f, call) call(8);
#    define QUANT_BY_SIZE_16(f, call) call(8);
#else
#    define QUANT_BY_SIZE_32(f, call)        \
        if ((f)->bits == 8 || (f)->mapped) { \
            call(8);                         \
        } else {                             \
            call(6);                         \
        }
#    define QUANT_BY_SIZE_16(f, call)        \
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
    /* Beside the products of five rows a table of the codes' own values costs less than 2 %. */
    const bool tabled = QUANT_PLANES_MAPPED && ((rows > 4 && !QUANT_WIDE_OFF) || f->mapped);
    if (planes && tabled) {
        quant_few(out, s, &t, 8, rows, lanes, 4, true, 8, asks);
    } else if (planes) {
        quant_few(out, s, &t, 8, rows, lanes, 4, false, 4, asks);
    } else if (f->k == QUANT_K) {
#define BYTES(bits) quant_few(out, s, &t, 8, rows, lanes, 8, false, bits, asks)
        QUANT_BY_SIZE_32(f, BYTES)
#undef BYTES
    } else {
#define BYTES(bits) quant_few(out, s, &t, 4, rows, lanes, 8, false, bits, asks)
        QUANT_BY_SIZE_16(f, BYTES)
#undef BYTES
    }
}

/* A function for each number of rows, not inlined: the compiler then gives registers to the sums of
 * this number of rows alone. */
#define PRODUCT(name, rows, lanes, in_planes, asks)                                            \
    static __attribute__((noinline)) void product_##name(                                      \
        float *out, const quant_stretch *s, const quant_rows *x, int row, int k0, bool planes) \
    {                                                                                          \
        (void)planes;                                                                          \
        quant_product(out, s, x, row, k0, rows, lanes, in_planes, asks);                       \
    }
#ifdef QUANT_DOT
PRODUCT(1, 1, PANEL / QUANT_COLS, planes, false)
PRODUCT(2, 2, 2, planes, planes)
PRODUCT(3, 3, 2, planes, planes)
PRODUCT(4, 4, 2, planes, planes)
/* The sums of one vector of columns stay in registers. */
PRODUCT(5, 5, 1, planes, planes)
PRODUCT(6, 6, 1, planes, planes)
PRODUCT(8, 8, 1, planes, false)
PRODUCT(8_asks, 8, 1, true, true)
/* Codes of 8 bits in blocks of 32: AVX-512 reads them in ascending order. */
#    define WIDE(name, rows, asks)                                                                 \
        static __attribute__((noinline)) void product_##name(                                      \
            float *out, const quant_stretch *s, const quant_rows *x, int row, int k0, bool planes) \
        {                                                                                          \
            (void)planes;                                                                          \
            quant_terms t;                                                                         \
            quant_terms_of(&t, s, x, row, k0, rows, s->form->least + QUANT_WIDE_OFF);              \
            quant_few(out, s, &t, 8, rows, QUANT_DOTS / QUANT_ROWS, 8, false, 8, asks);            \
        }
#    ifdef __AVX512VNNI__
WIDE(5_wide, 5, false)
WIDE(6_wide, 6, false)
#    else
#        define product_5_wide product_5
#        define product_6_wide product_6
#    endif
WIDE(8_wide, 8, true)
#    undef WIDE
#else
#    ifdef QUANT_VECTORS
#        define PLANES planes
#    else
#        define PLANES false
#    endif
PRODUCT(1, 1, PANEL / QUANT_COLS, PLANES, false)
PRODUCT(2, 2, 1, PLANES, false)
PRODUCT(3, 3, 1, PLANES, false)
PRODUCT(4, 4, 1, PLANES, false)
#    undef PLANES
#endif
#undef PRODUCT

/* n <= QUANT_ROWS of them; with VNNI never 7: these are filled up to 8 (QUANT_FILL). */
static void quant_some(float *out, const quant_stretch *s, const quant_rows *x, int row, int k0,
                       int n, bool planes)
{
    switch (n) {
    case 1: product_1(out, s, x, row, k0, planes); return;
    case 2: product_2(out, s, x, row, k0, planes); return;
    case 3: product_3(out, s, x, row, k0, planes); return;
    case 4: product_4(out, s, x, row, k0, planes); return;
    }
#ifdef QUANT_DOT
    const bool wide = s->form->bits == 8 && s->form->k == QUANT_K;
    /* With AVX-VNNI both names are one function. */
    if (n == 5)
        (wide ? product_5_wide : product_5)(out, s, x, row, k0, planes); /* NOLINT */
    else if (n == 6)
        (wide ? product_6_wide : product_6)(out, s, x, row, k0, planes); /* NOLINT */
    else if (s->ahead && wide)
        product_8_wide(out, s, x, row, k0, planes);
    else
        (s->ahead && planes ? product_8_asks : product_8)(out, s, x, row, k0, planes);
#endif
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

/* The rows of x that a stretch of blocks multiplies; `start` has the initial sums of each block. */
typedef struct {
    const int8_t *code; /* [quad][QUANT_SOME][QUANT_QUAD] */
    const float *scale;
    many_pairs pair[QUANT_STRETCH * QUANT_K / QUANT_QUAD];
    qi start[QUANT_STRETCH];
    qf lean[QUANT_STRETCH];
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
    t->code = x->code + side.code + (size_t)k0 * QUANT_SOME;
    t->scale = x->scale + side.scale;
    for (int i = 0; i < s->n; i++, sums += quads / (QUANT_HALF / QUANT_QUAD) * QUANT_SOME) {
        qi sum;
        qf scale = quant_load(t->scale + (k + (size_t)i * each) / QUANT_HALF * QUANT_SOME);
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

/* sums += a block of codes of less bits; in bytes or, of 4 bits, in planes: the other half of the
 * quads lies in the upper bits. */
static inline __attribute__((always_inline)) void many_narrow(qv sum[QUANT_SOME], const uint8_t *w,
                                                              const int8_t *x, const int quads,
                                                              const int bits, const bool planes)
{
    const qv four = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
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
#    define ROW(i, a) sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(a, ones));
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
        qf v = quant_add(quant_load(at), (qi)sum[r], &f, quant_load(s->scale[i] + c),
                         quant_load(s->off[i] + c), scale[r], leans[r]);
        quant_store(at, v);
    }
}

/* The group of rows times columns from c on of a stretch. */
static inline __attribute__((always_inline)) void many_part(float *out, const quant_stretch *s,
                                                            const many_rows *t, int k0, int c,
                                                            const int quads, const int bits,
                                                            const bool planes)
{
    const size_t k = (size_t)k0, each = (size_t)quads * QUANT_QUAD;
    for (int i = 0; i < s->n; i++) {
        quant_ask(s);
        const float *scale = t->scale + (k + (size_t)i * each) / QUANT_HALF * QUANT_SOME;
        const uint8_t *w = s->at[i] + c * QUANT_QUAD;
        qv sum[QUANT_SOME];
#    pragma GCC unroll 8
        for (int r = 0; r < QUANT_SOME; r++) sum[r] = many_each(&t->start[i], r);
        if (bits == 8)
            many_wide(sum, w, &t->pair[i * quads], quads);
        else
            many_narrow(sum, w, t->code + i * quads * QV_BYTES, quads, bits, planes);
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
    for (int c = 0; c < PANEL; c += QUANT_COLS) many_part(out, s, &t, k0, c, quads, bits, planes);
}

/* Rows from `row` on, QUANT_SOME of them.  Inlined: a function of its
 * own takes 3 to 9 % more time. */
static inline __attribute__((always_inline)) void
quant_many(float *out, const quant_stretch *s, const quant_rows *x, int row, int k0, bool planes)
{
    if (planes) {
        many_product(out, s, x, row, k0, QUANT_K / QUANT_QUAD, 4, true);
    } else if (s->form->k == QUANT_K) {
#    define MANY(bits) many_product(out, s, x, row, k0, QUANT_K / QUANT_QUAD, bits, false)
        QUANT_BY_SIZE_32(s->form, MANY)
#    undef MANY
    } else {
#    define MANY(bits) many_product(out, s, x, row, k0, QUANT_HALF / QUANT_QUAD, bits, false)
        QUANT_BY_SIZE_16(s->form, MANY)
#    undef MANY
    }
}

#elif defined(__ARM_FEATURE_MATMUL_INT8)
#    include "engine/cpu/quant_i8mm.h"
#endif

/* ------------------------------------------------------------------------ rows times panels -- */

/* Whether the products of so many rows take codes as they lie. */
static bool quant_in_planes(const quant_form *f, int n_rows)
{
#ifdef QUANT_VECTORS
    if (f->bits != 4 || f->k != QUANT_K || (f->mapped && !QUANT_PLANES_MAPPED)) return false;
#    ifdef QUANT_MANY
    if (n_rows >= QUANT_SOME) return true;
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
#elif defined(QUANT_DOT)
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
#ifdef QUANT_VECTORS
        if (n_rows == 1 && quant_alone(out, w, p0 + p, x, row0)) continue;
#endif
        memset(out, 0, (size_t)n_rows * PANEL * sizeof(*out));
        quant_begin(&s, panel);
        for (int k0 = 0, n, left = w->head.cols / f->k; left > 0; k0 += n * f->k, left -= n) {
            n = left < most ? left : most;
            s.ahead = ahead;
            const char *from = quant_place(&s);
            quant_read(&s, n);
            if (!planes) quant_unpack(&s, bytes);
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

/* Adds outliers' rest: block by block, each by the rows that have it there. */
static void block_rest(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                       const void *x, int row0, int n_rows)
{
    const quant_form *f = &w->quant;
    const quant_rows *q = x;
    const bool planes = quant_in_planes(f, 1);
    alignas(64) uint8_t bytes[QUANT_CODES];
    quant_stretch s;
    s.form = f;
    s.asked = true;
    s.soon = NULL;
    s.ahead = 0;
    for (int p = 0; p < n_panel; p++, out += (size_t)rows_pad * PANEL) {
        const char *panel = (const char *)w->data + (size_t)(p0 + p) * w->panel_bytes;
        for (int k = 0; k < w->head.cols; k += f->k) {
            s.n = 0;
            for (int r = 0; r < n_rows; r += QUANT_SOME) {
                const quant_side side = quant_side_of(q, row0 + r);
                const float *scale =
                    q->scale + side.scale + (size_t)(k / QUANT_HALF) * (size_t)side.some;
                for (int i = 0; i < QUANT_SOME && r + i < n_rows; i++) {
                    if (scale[i] == 0) continue;
                    if (s.n == 0) {
                        quant_read_one(&s, panel, k);
                        if (!planes) quant_unpack(&s, bytes);
                    }
                    product_1(out + (size_t)(r + i) * PANEL, &s, q, row0 + r + i, k, planes);
                }
            }
        }
    }
}

const quant_kernels QUANT_KERNELS = {block_quant, block_rest, quant_round, QUANT_FILL, INT_MAX};
