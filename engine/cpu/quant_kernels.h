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
#include "engine/cpu/quant_coded.h"
#include "engine/cpu/quant_parts.h"

/* -------------------------------------------------------------------------- rows of x -- */

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
                quant_round_span(to, &side, x + (size_t)r * (size_t)d, d, k, false);
                side.code += QUANT_QUAD;
                side.scale++;
                side.sums++;
            }
        }
    }
}

/* ---------------------------------------------------------------------------- products -- */

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

const quant_kernels QUANT_KERNELS = {block_quant, quant_round, QUANT_FILL, INT_MAX};
