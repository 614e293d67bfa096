/* quant_i8mm.h -- QUANT_SOME rows of x times a stretch of quantised weights by USMMLA (I8MM): part
 * of quant_kernels.h.
 *
 * One instruction adds to a 2 x 2 tile of sums: two columns of eight codes times two rows of eight
 * bytes of x.  Codes and x have four of k side by side, so the eight are two quads, zipped.  Sums
 * are exact integers, and become floats as those of few rows do: the bits are the same.
 */
#ifndef ENGINE_CPU_QUANT_I8MM_H
#define ENGINE_CPU_QUANT_I8MM_H

#define QUANT_MANY

enum { PAIRS = QUANT_SOME / 2, MANY_COLS = 8, MANY_TWOS = MANY_COLS / 2 };

/* Two quads of two rows, for each pair of rows. */
typedef struct {
    qv rows[PAIRS];
} many_quads;

/* The rows' bytes of a stretch, by two quads. */
static inline __attribute__((always_inline)) void many_rows_of(many_quads *to, const int8_t *code,
                                                               int n)
{
    for (int i = 0; i < n; i++, code += 2 * QUANT_SOME * QUANT_QUAD) {
        qv first[2] = {QV_LOAD(code), QV_LOAD(code + 16)};
        qv second[2] = {QV_LOAD(code + 32), QV_LOAD(code + 48)};
        for (int h = 0; h < 2; h++) {
            to[i].rows[2 * h] = vzip1q_s32(first[h], second[h]);
            to[i].rows[2 * h + 1] = vzip2q_s32(first[h], second[h]);
        }
    }
}

/* Block i of the stretch, columns [c, c + MANY_COLS). */
static inline __attribute__((always_inline)) void
many_block(qv sum[PAIRS][MANY_TWOS], const uint8_t *codes, const many_quads *x, int c, qv table,
           const int quads, const int stored, const bool mapped)
{
#pragma GCC unroll 4
    for (int q = 0; q < quads; q += 2, x++) {
        uint8x16_t two[MANY_TWOS];
#pragma GCC unroll 2
        for (int v = 0; v < MANY_TWOS / 2; v++) {
            qv w[2];
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const int at = (q + h) * QUANT_QUAD_BYTES + (c + v * QUANT_COLS) * QUANT_QUAD;
                w[h] = quant_codes(codes, at, quads * QUANT_QUAD_BYTES, stored);
                if (mapped) w[h] = QV(shuffle_epi8)(table, w[h]);
            }
            two[2 * v] = (uint8x16_t)vzip1q_s32(w[0], w[1]);
            two[2 * v + 1] = (uint8x16_t)vzip2q_s32(w[0], w[1]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++) {
#pragma GCC unroll 4
            for (int i = 0; i < MANY_TWOS; i++)
                sum[p][i] = vusmmlaq_s32(sum[p][i], two[i], (int8x16_t)x->rows[p]);
        }
        QUANT_STORED(); /* else all codes would be loaded first */
    }
}

/* A block's sums into those of the rows. */
static inline __attribute__((always_inline)) void many_add(float *out, const quant_stretch *s,
                                                           const quant_terms *t,
                                                           qv sum[PAIRS][MANY_TWOS], int i, int c,
                                                           const bool zeros, const bool mins)
{
    const quant_form f = {.form = zeros ? SCALES_ZERO : SCALES_OWN, .has_min = mins};
#pragma GCC unroll 8
    for (int r = 0; r < QUANT_SOME; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < MANY_TWOS / 2; v++) {
            const qv a = sum[r / 2][2 * v], b = sum[r / 2][2 * v + 1];
            const int col = c + v * QUANT_COLS;
            float *at = out + r * PANEL + col;
            qf y = quant_add(quant_load(at), r % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b), &f,
                             quant_load(s->scale[i] + col), quant_load(s->off[i] + col),
                             t->scale[i][r], t->lean[i][r]);
            quant_store(at, y);
            QUANT_STORED();
        }
    }
}

static inline __attribute__((always_inline)) void
many_columns(float *out, const quant_stretch *s, const quant_terms *t, const many_quads *x, int c,
             const int quads, const int stored, const bool mapped)
{
    const qv table = quant_table(s->form->table);
    const bool zeros = s->form->form == SCALES_ZERO, mins = s->form->has_min;
    for (int i = 0; i < s->n; i++, x += quads / 2) {
        qv sum[PAIRS][MANY_TWOS];
        if (c % QUANT_COLS == 0) quant_ask(s);
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++) {
            const int32x2_t both = vld1_s32(t->start[i] + 2 * p);
#pragma GCC unroll 4
            for (int v = 0; v < MANY_TWOS; v++) sum[p][v] = vcombine_s32(both, both);
        }
        many_block(sum, s->at[i], x, c, table, quads, stored, mapped);
        if (zeros)
            many_add(out, s, t, sum, i, c, true, false);
        else if (mins)
            many_add(out, s, t, sum, i, c, false, true);
        else
            many_add(out, s, t, sum, i, c, false, false);
    }
}

/* Rows from `row` on, QUANT_SOME of them, times a stretch that begins at column k0. */
static inline __attribute__((always_inline)) void many_product(float *out, const quant_stretch *s,
                                                               const quant_rows *x, int row, int k0,
                                                               const int quads, const int stored,
                                                               const bool mapped)
{
    many_quads pairs[QUANT_STRETCH * QUANT_K / QUANT_QUAD / 2];
    quant_terms t;
    quant_terms_of(&t, s, x, row, k0, QUANT_SOME, s->form->least);
    many_rows_of(pairs, t.code, s->n * quads / 2);
#pragma GCC unroll 1
    for (int c = 0; c < PANEL; c += MANY_COLS)
        many_columns(out, s, &t, pairs, c, quads, stored, mapped);
}

/* One function for each way in which codes lie, not inlined: each has all registers for itself. */
#define MANY(name, quads, stored, mapped)                                                   \
    static __attribute__((noinline)) void many_##name(float *out, const quant_stretch *s,   \
                                                      const quant_rows *x, int row, int k0) \
    {                                                                                       \
        many_product(out, s, x, row, k0, quads, stored, mapped);                            \
    }
MANY(planes, QUANT_K / QUANT_QUAD, 4, false)
MANY(mapped, QUANT_K / QUANT_QUAD, 4, true)
MANY(bytes, QUANT_K / QUANT_QUAD, 8, false)
MANY(halves, QUANT_HALF / QUANT_QUAD, 8, false)
#undef MANY

static void quant_many(float *out, const quant_stretch *s, const quant_rows *x, int row, int k0,
                       bool planes)
{
    const quant_form *f = s->form;
    (planes            ? f->mapped ? many_mapped : many_planes
     : f->k == QUANT_K ? many_bytes
                       : many_halves)(out, s, x, row, k0);
}

#endif
