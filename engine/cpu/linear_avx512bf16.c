/* linear_avx512bf16.c -- bf16 products by VDPBF16PS, rows of x rounded to bf16; and, by
 * quant_kernels.h, quantised ones by VPDPBUSD.
 *
 * The weights lie as AMX wants them: a tile row is 16 columns of one pair of k, which is one vector
 * here.  An output has one accumulator, pairs of k ascending, whatever the number of rows.
 */
#include <immintrin.h>
#include <stdalign.h>
#include <string.h>

#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

#define QUANT_KERNELS quant_avx512bf16
#include "engine/cpu/quant_coded.h"
#include "engine/cpu/quant_kernels.h"

enum {
    TILE = 16,
    ROWS = 8,      /* at once: 16 accumulators */
    BLOCK_K = 256, /* 16 KiB of a panel */
    FEW_K = 128,   /* 8 KiB, where panels are taken alone */
    FEW_ROWS = 16,
    LINE = 64,
};

/* Blocks of 16 rows; in a block, tiles of [16 rows][32 of k], so that a
 * tile is 1 KiB in one piece. */
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

/* acc += 16 columns of w times a pair of k of x. */
static inline __attribute__((always_inline)) void add_pair(__m512 *acc, const uint16_t *x,
                                                           __m512bh w)
{
    int two;
    memcpy(&two, x, sizeof(two));
    *acc = _mm512_dpbf16_ps(*acc, (__m512bh)_mm512_set1_epi32(two), w);
}

/* R rows of one 16-row block (a constant once inlined), k from k0, where w begins, to k1, of few
 * rows in all.  Tile after tile is one ascending stream, which the fetchers of a Zen 4 follow; they
 * go by the places of loads in the program, so that there is one.  Asked for lines, or unrolled, it
 * reads a third less. */
static inline __attribute__((always_inline)) void
sweep_tiles(float *out, const uint16_t *w, const uint16_t *x, int k0, int k1, const int r_count)
{
    __m512 acc[2][ROWS];
    for (int r = 0; r < 2 * r_count; r++)
        acc[r % 2][r / 2] = k0 ? _mm512_loadu_ps(out + r * 16) : _mm512_setzero_ps();
    x += (size_t)k0 * TILE;
    for (int k = k0; k < k1; k += K_BLOCK, x += TILE * K_BLOCK) {
#pragma GCC unroll 1
        for (int t = 0; t < 2; t++) {
            __m512 sum[ROWS];
            for (int r = 0; r < r_count; r++) sum[r] = acc[t][r];
#pragma GCC unroll 1
            for (int pair = 0; pair < K_BLOCK / 2; pair++, w += 2 * TILE) {
                __m512bh v = (__m512bh)_mm512_loadu_si512(w);
                for (int r = 0; r < r_count; r++)
                    add_pair(&sum[r], x + (size_t)r * K_BLOCK + (size_t)pair * 2, v);
            }
            for (int r = 0; r < r_count; r++) acc[t][r] = sum[r];
        }
    }
    for (int r = 0; r < 2 * r_count; r++) _mm512_storeu_ps(out + r * 16, acc[r % 2][r / 2]);
}

/* Lines of weights to ask memory for while others are multiplied: `n` for every 2 KiB, in one
 * ascending stream, which the fetchers of all CPUs follow (two streams, as the tiles are read, cost
 * a Zen 4 a third of its bandwidth). */
typedef struct {
    const char *next;
    int n;
} fetch;

/* Likewise of many rows, which share what is read of x between both tiles. */
static inline __attribute__((always_inline)) void
sweep(float *out, const uint16_t *w, const uint16_t *x, int k0, int k1, fetch f, const int r_count)
{
    __m512 acc[ROWS][2];
    for (int r = 0; r < r_count; r++) {
        acc[r][0] = k0 ? _mm512_loadu_ps(out + r * PANEL) : _mm512_setzero_ps();
        acc[r][1] = k0 ? _mm512_loadu_ps(out + r * PANEL + 16) : _mm512_setzero_ps();
    }
    x += (size_t)k0 * TILE;
    for (int k = k0; k < k1; k += K_BLOCK, w += PANEL * K_BLOCK, x += TILE * K_BLOCK) {
        for (int pair = 0; pair < K_BLOCK / 2; pair++) {
            __m512bh w0 = (__m512bh)_mm512_loadu_si512(w + (size_t)pair * 32);
            __m512bh w1 = (__m512bh)_mm512_loadu_si512(w + 512 + (size_t)pair * 32);
            if (2 * pair < f.n) {
                _mm_prefetch(f.next, _MM_HINT_T0);
                _mm_prefetch(f.next + LINE, _MM_HINT_T0);
                f.next += 2 * LINE;
            }
            for (int r = 0; r < r_count; r++) {
                const uint16_t *at = x + (size_t)r * K_BLOCK + (size_t)pair * 2;
                add_pair(&acc[r][0], at, w0);
                add_pair(&acc[r][1], at, w1);
            }
        }
    }
    for (int r = 0; r < r_count; r++) {
        _mm512_storeu_ps(out + r * PANEL, acc[r][0]);
        _mm512_storeu_ps(out + r * PANEL + 16, acc[r][1]);
    }
}

/* The groups of ROWS rows, where there are many, share the fetching of what comes `ahead` bytes
 * later (0: of nothing). */
static void rows_of(float *out, const uint16_t *w, const uint16_t *x, int k_pad, int k0, int k1,
                    int n_rows, int ahead)
{
    int n_group = (n_rows + ROWS - 1) / ROWS, share = (2 * K_BLOCK / n_group + 1) & ~1;
    fetch f = {(const char *)w + ahead, ahead ? share : 0};
    for (int i = 0; i < n_rows; i += ROWS, f.next += (size_t)share * LINE * (k1 - k0) / K_BLOCK) {
        int n = n_rows - i < ROWS ? n_rows - i : ROWS;
        const uint16_t *xi = x + tile_row(i, k_pad);
        float *o = out + (size_t)i * PANEL;
#define SWEEP(r)                          \
    if (n_rows <= FEW_ROWS)               \
        sweep_tiles(o, w, xi, k0, k1, r); \
    else                                  \
        sweep(o, w, xi, k0, k1, f, r);    \
    break;
        switch (n) {
        case 1: SWEEP(1)
        case 2: SWEEP(2)
        case 3: SWEEP(3)
        case 4: SWEEP(4)
        case 5: SWEEP(5)
        case 6: SWEEP(6)
        case 7: SWEEP(7)
        default: SWEEP(ROWS)
        }
#undef SWEEP
    }
}

void linear_coded_tiles(void *out, const cpu_weight *w, int p, int k0, int k1)
{
    coded_piece(out, w, p, k0, k1);
}

static const uint16_t *panel_data(const cpu_weight *w, int p)
{
    return (const void *)((const char *)w->data + (size_t)p * w->panel_bytes);
}

static void panel_pairs(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    if (n_rows <= ROWS) {
        rows_of(out, panel_data(w, p), rows, w->k_pad, 0, w->k_pad, n_rows, 0);
        return;
    }
    for (int k0 = 0; k0 < w->k_pad; k0 += FEW_K) {
        int k1 = k0 + FEW_K < w->k_pad ? k0 + FEW_K : w->k_pad;
        rows_of(out, panel_data(w, p) + (size_t)k0 * PANEL, rows, w->k_pad, k0, k1, n_rows,
                FEW_K * PANEL * 2);
    }
}

static void block_pairs(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                        const void *x, int row0, int n_rows)
{
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    alignas(64) uint16_t plain[BLOCK_K * PANEL]; /* of codes */
    const bool coded = w->coded.bits;
    for (int p = 0; coded && n_rows == 1 && p < n_panel; p++)
        coded_alone(out + (size_t)p * rows_pad * PANEL, w, p0 + p, rows);
    if (coded && n_rows == 1) return;
    for (int k0 = 0; k0 < w->k_pad; k0 += BLOCK_K) {
        int k1 = k0 + BLOCK_K < w->k_pad ? k0 + BLOCK_K : w->k_pad;
        for (int p = 0; p < n_panel; p++) {
            const uint16_t *at = panel_data(w, p0 + p) + (size_t)k0 * PANEL;
            if (coded) coded_piece(plain, w, p0 + p, k0, k1);
            rows_of(out + (size_t)p * rows_pad * PANEL, coded ? plain : at, rows, w->k_pad, k0, k1,
                    n_rows, coded ? 0 : BLOCK_K * PANEL * 2);
        }
    }
}

const tile_kernels tiles_avx512bf16 = {panel_pairs, block_pairs, linear_round_row, linear_zero_row,
                                       NULL};
