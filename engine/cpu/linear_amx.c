/* linear_amx.c -- products on AMX tiles: 16 x 16 outputs in each instruction, by 32 of k in bf16,
 * or by the 32 or 16 bytes of a block.
 *
 * Tiles: 0-3 accumulators (2 row blocks x 2 column blocks), 4-5 rows of x, 6-7 columns of W.  Tile
 * products are independent row by row, so a row's bits do not depend on how many rows stand with
 * it.  All tiles are configured with 16 rows; missing rows of x are read from a zero buffer's copy,
 * never from outside.
 */
#include <immintrin.h>
#include <stdalign.h>

#include "engine/base/round.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/quant_parts.h"
#include "engine/cpu/vec.h"

enum { TILE = QUANT_TILE, BLOCK_K = 256 /* 16 KiB of a panel */ };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} __attribute__((packed)) tile_config;

static void configure(int *now, int row_bytes)
{
    if (*now == row_bytes) return;
    *now = row_bytes;
    if (row_bytes == 0) {
        _tile_release();
        return;
    }
    alignas(64) tile_config cfg = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        cfg.colsb[i] = (uint16_t)(i == 4 || i == 5 ? row_bytes : 64);
        cfg.rows[i] = (uint8_t)(i < 6 ? TILE : row_bytes / 4);
    }
    __asm__ volatile("" : : "r"(&cfg) : "memory"); /* gcc 12's intrinsic names 8 bytes of it */
    _tile_loadconfig(&cfg);
}

/* ---------------------------------------------------------------------------- bf16 -- */

/* Lines of weights that are wanted soon, fetched into the second-level cache four at each step. */
typedef struct {
    const char *at, *end;
} ahead;

static inline __attribute__((always_inline)) void fetch(ahead *a)
{
    if (a->at >= a->end) return;
    for (int line = 0; line < 4 * 64; line += 64) _mm_prefetch(a->at + line, _MM_HINT_T1);
    a->at += 4 * 64;
}

/* Two row blocks at once, k from k0, where w begins, to k1; what was summed before comes from, and
 * goes to, `out`.  Storing and loading an accumulator changes no bit. */
static inline __attribute__((always_inline)) void
two_blocks(float *out, const uint16_t *w, const uint16_t *x, int k_pad, int k0, int k1, ahead *a)
{
    if (k0 == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, out, PANEL * 4);
        _tile_loadd(1, out + TILE, PANEL * 4);
        _tile_loadd(2, out + TILE * PANEL, PANEL * 4);
        _tile_loadd(3, out + TILE * PANEL + TILE, PANEL * 4);
    }
    const uint16_t *x0 = x + (size_t)k0 * TILE, *x1 = x0 + (size_t)TILE * k_pad;
    for (int k = k0; k < k1; k += K_BLOCK) {
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x0, 64);
        _tile_dpbf16ps(0, 4, 6);
        fetch(a);
        _tile_loadd(7, w + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x1, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        w += 1024;
        x0 += TILE * K_BLOCK;
        x1 += TILE * K_BLOCK;
    }
    _tile_stored(0, out, PANEL * 4);
    _tile_stored(1, out + TILE, PANEL * 4);
    _tile_stored(2, out + TILE * PANEL, PANEL * 4);
    _tile_stored(3, out + TILE * PANEL + TILE, PANEL * 4);
}

/* One row block, the same way.  A decode step reads all weights through here, so they are fetched
 * 8 KiB ahead into the first-level cache. */
static void one_block(float *out, const uint16_t *w, const uint16_t *x, int k0, int k1)
{
    if (k0 == 0) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, out, PANEL * 4);
        _tile_loadd(1, out + TILE, PANEL * 4);
    }
    x += (size_t)k0 * TILE;
    for (int k = k0; k < k1; k += K_BLOCK) {
        for (int line = 0; line < 2048; line += 64) {
            _mm_prefetch((const char *)w + 8192 + line, _MM_HINT_T0);
        }
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + 512, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        w += 1024;
        x += TILE * K_BLOCK;
    }
    _tile_stored(0, out, PANEL * 4);
    _tile_stored(1, out + TILE, PANEL * 4);
}

static const uint16_t *panel_data(const cpu_weight *w, int p)
{
    return (const void *)((const char *)w->data + (size_t)p * w->panel_bytes);
}

/* out has room for, and x has, a multiple of 16 rows; row0 is a multiple of 16. */
static void panel_tile(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    const uint16_t *data = panel_data(w, p), *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    ahead none = {NULL, NULL};
    int i = 0;
    for (; n_rows - i > TILE; i += 2 * TILE) {
        two_blocks(out + i * PANEL, data, rows + (size_t)i * w->k_pad, w->k_pad, 0, w->k_pad,
                   &none);
    }
    if (i < n_rows) one_block(out + i * PANEL, data, rows + (size_t)i * w->k_pad, 0, w->k_pad);
}

static void block_tile(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                       const void *x, int row0, int n_rows)
{
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    alignas(64) uint16_t plain[BLOCK_K * PANEL]; /* of codes */
    const bool coded = w->coded.bits;
    for (int k0 = 0; k0 < w->k_pad; k0 += BLOCK_K) {
        int k1 = k0 + BLOCK_K < w->k_pad ? k0 + BLOCK_K : w->k_pad;
        for (int p = 0; p < n_panel; p++) {
            bool last = p + 1 == n_panel;
            const uint16_t *next =
                panel_data(w, last ? p0 : p0 + p + 1) + (size_t)(last ? k1 : k0) * PANEL;
            ahead a = {(const char *)next, (const char *)(next + (size_t)(k1 - k0) * PANEL)};
            if (coded || (last && k1 == w->k_pad)) a.at = a.end;
            float *o = out + (size_t)p * rows_pad * PANEL;
            const uint16_t *data = panel_data(w, p0 + p) + (size_t)k0 * PANEL;
            if (coded) {
                linear_coded_tiles(plain, w, p0 + p, k0, k1);
                data = plain;
            }
            int i = 0;
            for (; n_rows - i > TILE; i += 2 * TILE) {
                two_blocks(o + i * PANEL, data, rows + (size_t)i * w->k_pad, w->k_pad, k0, k1, &a);
            }
            if (i < n_rows) {
                one_block(o + i * PANEL, data, rows + (size_t)i * w->k_pad, k0, k1);
            }
        }
    }
}

/* ----------------------------------------------------------------------- quantised -- */

/* Codes of a block, in bytes, are a tile of [k / 4][16 columns][4] as they lie, rows of x one of
 * [16 rows][k].  A block's sums become floats as quant_parts.h has it: so a row has the bits that
 * VPDPBUSD gives it, which multiplies where rows are few. */

typedef int32_t tile_sums[2][TILE * TILE]; /* of a block's 16 columns each: [row][column] */

/* `sums` of the block whose codes are at w, by accumulators c and d and the tile `a` of x. */
#define TILE_PRODUCT(sums, w, x, c, d, a)       \
    _tile_loadd(a, x, QUANT_K);                 \
    _tile_loadd(6, w, QUANT_QUAD_BYTES);        \
    _tile_zero(c);                              \
    _tile_dpbsud(c, a, 6);                      \
    _tile_loadd(7, (w) + 64, QUANT_QUAD_BYTES); \
    _tile_zero(d);                              \
    _tile_dpbsud(d, a, 7);                      \
    _tile_stored(c, (sums)[0], 64);             \
    _tile_stored(d, (sums)[1], 64);

/* TILE rows of x times a stretch. */
static void tile_products(tile_sums *sums, const quant_stretch *s, const int8_t *x)
{
    __asm__ volatile("" : : : "memory"); /* gcc 12's tile loads do not say that they read any */
    for (int i = 0, k = 0; i < s->n; i++, k += s->form->k) {
        const int8_t *rows = x + k / QUANT_K * (TILE * QUANT_K) + k % QUANT_K;
        quant_ask(s);
        if (i % 2) {
            TILE_PRODUCT(sums[i], s->at[i], rows, 2, 3, 5)
        } else {
            TILE_PRODUCT(sums[i], s->at[i], rows, 0, 1, 4)
        }
    }
}

/* A block's sums of row `row` of its tile and those after it: QUANT_ROWS rows, 16 columns. */
static inline __attribute__((always_inline)) void tile_dots(qi dot[QUANT_ROWS], const int32_t *sums,
                                                            int row, const int32_t *start)
{
#pragma GCC unroll 8
    for (int r = 0; r < QUANT_ROWS; r++) {
        const qi zero = {0};
        dot[r] = quant_load_whole(sums + (row + r) * TILE) + (start[r] - zero);
    }
}

/* Into out, of the h-th 16 columns. */
static inline __attribute__((always_inline)) void
tile_add(float *out, const quant_stretch *s, const quant_terms *t, const tile_sums *sums, int row,
         const int h, const bool zeros, const bool mins)
{
    const quant_form f = {.form = zeros ? SCALES_ZERO : SCALES_OWN, .has_min = mins};
    const int c = h * TILE;
    qf v[QUANT_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < QUANT_ROWS; r++) v[r] = quant_load(out + r * PANEL + c);
    for (int i = 0; i < s->n; i++) {
        qi dot[QUANT_ROWS];
        tile_dots(dot, sums[i][h], row, t->start[i]);
#pragma GCC unroll 8
        for (int r = 0; r < QUANT_ROWS; r++)
            v[r] = quant_add(v[r], dot[r], &f, quant_load(s->scale[i] + c),
                             quant_load(s->off[i] + c), t->scale[i][r], t->lean[i][r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < QUANT_ROWS; r++) memcpy(out + r * PANEL + c, &v[r], sizeof(v[r]));
}

/* TILE rows from `row` on times a stretch that begins at column k0. */
static void tile_rows(float *out, const quant_stretch *s, const quant_rows *x, int row, int k0)
{
    alignas(64) tile_sums sums[QUANT_STRETCH];
    tile_products(sums, s, x->code + quant_tile_of(x, row) + (size_t)k0 * TILE);
    for (int r = 0; r < TILE; r += QUANT_ROWS, out += QUANT_ROWS * PANEL) {
        quant_terms t;
        quant_terms_of(&t, s, x, row + r, k0, QUANT_ROWS, s->form->least);
        for (int h = 0; h < 2; h++) {
            if (s->form->form == SCALES_ZERO)
                tile_add(out, s, &t, sums, r, h, true, false);
            else if (s->form->has_min)
                tile_add(out, s, &t, sums, r, h, false, true);
            else
                tile_add(out, s, &t, sums, r, h, false, false);
        }
    }
}

static void block_bytes(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                        const void *x, int row0, int n_rows)
{
    const quant_form *f = &w->quant;
    alignas(64) uint8_t bytes[QUANT_STRETCH * QUANT_CODES];
    if (!((const quant_rows *)x)->tiled) {
        quant_avx512bf16.block(out, rows_pad, w, p0, n_panel, x, row0, n_rows);
        return;
    }
    quant_stretch s = {.form = f};
    for (int p = 0; p < n_panel; p++, out += (size_t)rows_pad * PANEL) {
        memset(out, 0, (size_t)round_up(n_rows, TILE) * PANEL * sizeof(*out));
        quant_begin(&s, (const char *)w->data + (size_t)(p0 + p) * w->panel_bytes);
        for (int k0 = 0, n, left = w->head.cols / f->k; left > 0; k0 += n * f->k, left -= n) {
            n = left < QUANT_STRETCH ? left : QUANT_STRETCH;
            const char *from = quant_place(&s);
            quant_read(&s, n);
            quant_unpack(&s, bytes);
            quant_asks soon = quant_asks_of(&s, from, 1);
            s.asked = true;
            s.soon = &soon;
            for (int i = 0; i < n_rows; i += TILE, s.soon = NULL)
                tile_rows(out + (size_t)i * PANEL, &s, x, row0 + i, k0);
        }
    }
}

/* Rows that lie as tiles, and others. */
static void round_bytes(const quant_rows *to, int row, int n, const float *x, int d, int k0, int k1)
{
    if (!to->tiled) {
        quant_avx512bf16.round(to, row, n, x, d, k0, k1);
        return;
    }
    for (int i = 0; i < n; i++, x += d) {
        quant_side side[2];
        for (int p = 0, at = (row + i) * to->planes; p < to->planes; p++) {
            side[p] = quant_side_of(to, at + p);
            side[p].code = quant_tile_of(to, at + p);
        }
        if (to->rest) side[1] = quant_side_of(to->rest, row + i);
        const float limit = to->rest ? quant_limit(x, d) : INFINITY;
        for (int k = k0; k < k1; k += QUANT_K) quant_round_group(to, side, x, d, k, limit, true);
    }
}

/* Rows of outliers never lie as tiles. */
static void rest_bytes(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                       const void *x, int row0, int n_rows)
{
    quant_avx512bf16.rest(out, rows_pad, w, p0, n_panel, x, row0, n_rows);
}

/* Of so few rows tiles would be empty by half. */
const tile_kernels tiles_amx = {panel_tile, block_tile, linear_round_row, linear_zero_row,
                                configure};
const quant_kernels quant_amx = {block_bytes, rest_bytes, round_bytes, QUANT_FILL, QUANT_ROWS + 1};
