/* linear_amx.c -- bf16 products on AMX tiles: 16 x 16 outputs, 32 of k in each instruction.
 *
 * Tiles: 0-3 accumulators (2 row blocks x 2 column blocks), 4-5 rows of x, 6-7 columns of W.  Tile
 * products are independent row by row, so a row's bits do not depend on how many rows stand with
 * it.  All tiles are configured with 16 rows; missing rows of x are read from a zero buffer's copy,
 * never from outside.
 */
#include <immintrin.h>
#include <stdalign.h>

#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

enum { TILE = 16, BLOCK_K = 256 /* 16 KiB of a panel */ };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} __attribute__((packed)) tile_config;

void linear_tile_begin(void)
{
    alignas(64) tile_config cfg = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        cfg.colsb[i] = 64;
        cfg.rows[i] = TILE;
    }
    __asm__ volatile("" : : "r"(&cfg) : "memory"); /* gcc 12's intrinsic names 8 bytes of it */
    _tile_loadconfig(&cfg);
}

void linear_tile_end(void)
{
    _tile_release();
}

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
void linear_panel_tile(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
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

void linear_block_tile(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
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
                quant_avx512bf16.coded(plain, w, p0 + p, k0, k1);
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
