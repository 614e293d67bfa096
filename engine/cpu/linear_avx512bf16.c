/* linear_avx512bf16.c -- bf16 products by VDPBF16PS, and rows of x rounded to bf16.
 *
 * The weights lie as AMX wants them: a tile row is 16 columns of one pair of k, which is one vector
 * here.  An output has one accumulator, pairs of k ascending, whatever the number of rows.
 */
#include <immintrin.h>
#include <string.h>

#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

enum {
    TILE = 16,
    ROWS = 8,      /* at once: 16 accumulators */
    BLOCK_K = 256, /* 16 KiB of a panel */
    AHEAD = 8192,  /* bytes of weights on their way from memory */
};

/* Blocks of 16 rows; in a block, tiles of [16 rows][32 of k], so that a tile is 1 KiB in one piece. */
static size_t tile_row(int row, int k_pad)
{
    return (size_t)(row / TILE) * TILE * k_pad + (size_t)(row % TILE) * K_BLOCK;
}

void linear_round_row(uint16_t *x16, int row, const float *src, int d_in, int k_pad)
{
    uint16_t *dst = x16 + tile_row(row, k_pad);
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
    uint16_t *dst = x16 + tile_row(row, k_pad);
    for (int k = 0; k < k_pad; k += K_BLOCK, dst += TILE * K_BLOCK) memset(dst, 0, 2 * K_BLOCK);
}

/* The pair of k at x, in every lane. */
static inline __attribute__((always_inline)) __m512bh two_of(const uint16_t *x)
{
    int two;
    memcpy(&two, x, sizeof(two));
    return (__m512bh)_mm512_set1_epi32(two);
}

/* R rows of one 16-row block (a constant once inlined), k from k0 to k1.  Tile by tile where the weights
 * come from memory: one stream of addresses, which the fetchers of all CPUs follow (two, 1 KiB
 * apart, cost a Zen 4 a third of its bandwidth).  Two tiles at a time where they lie in a cache: each
 * value of x is read once for both.  An output's sum is the same either way. */
static inline __attribute__((always_inline)) void sweep(float *out, const uint16_t *w,
                                                        const uint16_t *x, int k0, int k1,
                                                        const bool cached, const int r_count)
{
    __m512 acc[ROWS][2];
    for (int r = 0; r < r_count; r++) {
        acc[r][0] = k0 ? _mm512_loadu_ps(out + r * PANEL) : _mm512_setzero_ps();
        acc[r][1] = k0 ? _mm512_loadu_ps(out + r * PANEL + 16) : _mm512_setzero_ps();
    }
    w += (size_t)k0 * PANEL;
    x += (size_t)k0 * TILE;
    for (int k = k0; k < k1; k += K_BLOCK, w += PANEL * K_BLOCK, x += TILE * K_BLOCK) {
        for (int pair = 0; cached && pair < K_BLOCK / 2; pair++) {
            const uint16_t *at = w + (size_t)pair * K_BLOCK;
            __m512bh w0 = (__m512bh)_mm512_loadu_si512(at);
            __m512bh w1 = (__m512bh)_mm512_loadu_si512(at + TILE * K_BLOCK);
            _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)(at + TILE * K_BLOCK) + AHEAD, _MM_HINT_T0);
            for (int r = 0; r < r_count; r++) {
                __m512bh xv = two_of(x + (size_t)r * K_BLOCK + (size_t)pair * 2);
                acc[r][0] = _mm512_dpbf16_ps(acc[r][0], xv, w0);
                acc[r][1] = _mm512_dpbf16_ps(acc[r][1], xv, w1);
            }
        }
        for (int j = 0; !cached && j < 2; j++) {
            const uint16_t *tile = w + (size_t)j * TILE * K_BLOCK;
#pragma GCC unroll 16
            for (int pair = 0; pair < K_BLOCK / 2; pair++, tile += K_BLOCK) {
                __m512bh wv = (__m512bh)_mm512_loadu_si512(tile);
                _mm_prefetch((const char *)tile + AHEAD, _MM_HINT_T0);
                for (int r = 0; r < r_count; r++) {
                    __m512bh xv = two_of(x + (size_t)r * K_BLOCK + (size_t)pair * 2);
                    acc[r][j] = _mm512_dpbf16_ps(acc[r][j], xv, wv);
                }
            }
        }
    }
    for (int r = 0; r < r_count; r++) {
        _mm512_storeu_ps(out + r * PANEL, acc[r][0]);
        _mm512_storeu_ps(out + r * PANEL + 16, acc[r][1]);
    }
}

static inline __attribute__((always_inline)) void rows_of(float *out, const uint16_t *w,
                                                          const uint16_t *x, int k_pad, int k0,
                                                          int k1, const bool cached, int n_rows)
{
    for (int i = 0; i < n_rows; i += ROWS) {
        int n = n_rows - i < ROWS ? n_rows - i : ROWS;
        const uint16_t *xi = x + tile_row(i, k_pad);
        float *o = out + (size_t)i * PANEL;
        switch (n) {
        case 1: sweep(o, w, xi, k0, k1, cached, 1); break;
        case 2: sweep(o, w, xi, k0, k1, cached, 2); break;
        case 3: sweep(o, w, xi, k0, k1, cached, 3); break;
        case 4: sweep(o, w, xi, k0, k1, cached, 4); break;
        case 5: sweep(o, w, xi, k0, k1, cached, 5); break;
        case 6: sweep(o, w, xi, k0, k1, cached, 6); break;
        case 7: sweep(o, w, xi, k0, k1, cached, 7); break;
        default: sweep(o, w, xi, k0, k1, cached, ROWS); break;
        }
    }
}

static const uint16_t *panel_data(const cpu_weight *w, int p)
{
    return (const void *)((const char *)w->data + (size_t)p * w->panel_bytes);
}

void linear_panel_pairs(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    rows_of(out, panel_data(w, p), rows, w->k_pad, 0, w->k_pad, false, n_rows);
}

void linear_block_pairs(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                        const void *x, int row0, int n_rows)
{
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    for (int k0 = 0; k0 < w->k_pad; k0 += BLOCK_K) {
        int k1 = k0 + BLOCK_K < w->k_pad ? k0 + BLOCK_K : w->k_pad;
        for (int p = 0; p < n_panel; p++) {
            rows_of(out + (size_t)p * rows_pad * PANEL, panel_data(w, p0 + p), rows, w->k_pad, k0,
                    k1, true, n_rows);
        }
    }
}
