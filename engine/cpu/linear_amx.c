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

enum { TILE = 16, L1_K = 512 /* 32 KiB of a panel */ };

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
    _tile_loadconfig(&cfg);
}

void linear_tile_end(void)
{
    _tile_release();
}

/* Blocks of 16 rows; in a block, tiles of [16 rows][32 of k], so that a tile is 1 KiB in one piece. */
static uint16_t *tile_row(uint16_t *x16, int row, int k_pad)
{
    return x16 + (size_t)(row / TILE) * TILE * k_pad + (size_t)(row % TILE) * K_BLOCK;
}

void linear_round_row(uint16_t *x16, int row, const float *src, int d_in, int k_pad)
{
    uint16_t *dst = tile_row(x16, row, k_pad);
    for (int k = 0; k < k_pad; k += K_BLOCK, dst += TILE * K_BLOCK) {
        int n = d_in - k;
        __mmask16 lo = n >= 16 ? 0xFFFF : (__mmask16)((1U << n) - 1U);
        __mmask16 hi = n >= 32 ? 0xFFFF : n <= 16 ? 0 : (__mmask16)((1U << (n - 16)) - 1U);
        __m512 a = _mm512_maskz_loadu_ps(lo, src + k), b = _mm512_maskz_loadu_ps(hi, src + k + 16);
        _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

void linear_zero_row(uint16_t *x16, int row, int k_pad)
{
    uint16_t *dst = tile_row(x16, row, k_pad);
    for (int k = 0; k < k_pad; k += K_BLOCK, dst += TILE * K_BLOCK) memset(dst, 0, 2 * K_BLOCK);
}

/* Two row blocks at once, k from k0 to k1; what was summed before comes from, and goes to, `out`.
 * Storing and loading an accumulator changes no bit. */
static void two_blocks(float *out, const uint16_t *w, const uint16_t *x, int k_pad, int k0, int k1)
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
    w += (size_t)k0 * PANEL;
    for (int k = k0; k < k1; k += K_BLOCK) {
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x0, 64);
        _tile_dpbf16ps(0, 4, 6);
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

static void one_block(float *out, const uint16_t *w, const uint16_t *x, int k_pad)
{
    _tile_zero(0);
    _tile_zero(1);
    for (int k = 0; k < k_pad; k += K_BLOCK) {
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

/* out has room for, and x has, a multiple of 16 rows; row0 is a multiple of 16.  Many rows: k in
 * pieces whose part of the panel stays in the first-level cache. */
void linear_panel_tile(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    const uint16_t *data = (const void *)((const char *)w->data + (size_t)p * w->panel_bytes);
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    int pairs = n_rows / (2 * TILE) + (n_rows % (2 * TILE) > TILE);
    int piece = pairs > 1 ? L1_K : w->k_pad;
    for (int k0 = 0; k0 < w->k_pad; k0 += piece) {
        int k1 = k0 + piece < w->k_pad ? k0 + piece : w->k_pad;
        for (int i = 0; i < pairs; i++) {
            size_t at = (size_t)i * 2 * TILE;
            two_blocks(out + at * PANEL, data, rows + at * w->k_pad, w->k_pad, k0, k1);
        }
    }
    int left = n_rows - pairs * 2 * TILE;
    size_t at = (size_t)pairs * 2 * TILE;
    if (left > 0) one_block(out + at * PANEL, data, rows + at * w->k_pad, w->k_pad);
}
