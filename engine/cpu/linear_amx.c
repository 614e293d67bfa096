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

enum { TILE = 16 };

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

void linear_round_row(uint16_t *dst, const float *src, int d_in, int k_pad)
{
    int k = 0;
    for (; k + 32 <= d_in; k += 32) {
        __m512 lo = _mm512_loadu_ps(src + k), hi = _mm512_loadu_ps(src + k + 16);
        _mm512_storeu_si512(dst + k, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
    /* the same rounding as the instruction: to nearest even, subnormals to zero */
    for (; k < d_in; k += 16) {
        int n = d_in - k < 16 ? d_in - k : 16;
        __mmask16 m = (__mmask16)((1U << n) - 1U);
        __m256i h = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(m, src + k));
        _mm256_mask_storeu_epi16(dst + k, m, h);
    }
    for (k = d_in; k < k_pad; k++) dst[k] = 0;
}

/* Two row blocks at once; x rows are padded by the caller to a multiple of 32 rows. */
static void two_blocks(float *out, const uint16_t *w, const uint16_t *x, int k_pad)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const uint16_t *x1 = x + (size_t)TILE * k_pad;
    for (int k = 0; k < k_pad; k += K_BLOCK) {
        _tile_loadd(6, w, 64);
        _tile_loadd(4, x + k, (size_t)k_pad * 2);
        _tile_loadd(7, w + 512, 64);
        _tile_loadd(5, x1 + k, (size_t)k_pad * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        w += 1024;
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
        _mm_prefetch((const char *)w + 4096, _MM_HINT_T0);
        _tile_loadd(4, x + k, (size_t)k_pad * 2);
        _tile_loadd(6, w, 64);
        _tile_loadd(7, w + 512, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        w += 1024;
    }
    _tile_stored(0, out, PANEL * 4);
    _tile_stored(1, out + TILE, PANEL * 4);
}

/* out has room for, and x has, a multiple of 16 rows. */
void linear_panel_tile(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    const uint16_t *data = (const void *)((const char *)w->data + (size_t)p * w->panel_bytes);
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    int i = 0;
    for (; i + TILE < n_rows; i += 2 * TILE) {
        two_blocks(out + (size_t)i * PANEL, data, rows + (size_t)i * w->k_pad, w->k_pad);
    }
    if (i < n_rows) one_block(out + (size_t)i * PANEL, data, rows + (size_t)i * w->k_pad, w->k_pad);
}
