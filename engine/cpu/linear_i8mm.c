/* linear_i8mm.c -- bf16 products by BFMMLA and BFDOT (Armv8.6-A), rows of x rounded to bf16; and,
 * by quant_kernels.h, quantised ones by USDOT and USMMLA.
 *
 * The weights lie as AMX wants them (linear.h): in a line of a tile are 16 columns of one pair of
 * k.  BFMMLA multiplies two rows of x with two columns, four of k: two lines, zipped.  For a row
 * alone, BFDOT takes lines as they are.  BFMMLA adds the product of the first pair of k, then of
 * the second, each as BFDOT does (Arm Architecture Reference Manual), so an output's
 * bits are the same by both: it has one accumulator, pairs of k ascending.
 */
#include <arm_neon.h>
#include <stdalign.h>
#include <string.h>

#include "engine/cpu/linear.h"
#include "engine/cpu/vec.h"

#define QUANT_KERNELS quant_i8mm
#include "engine/cpu/quant_coded.h"
#include "engine/cpu/quant_kernels.h"

enum {
    TILE = 16,
    PAIRS_MOST = 4, /* of rows, at once */
    COLS = 8,       /* at once: 16 accumulators of 2 x 2 */
    BLOCK_K = 256,  /* 16 KiB of a panel */
};

/* Blocks of 16 rows; in a block, tiles of [16 rows][32 of k]. */
static size_t tile_row(int row, int k_pad)
{
    return (size_t)(row / TILE) * TILE * k_pad + (size_t)(row % TILE) * K_BLOCK;
}

static void round_row(uint16_t *x16, int row, const float *src, int d_in, int k_pad)
{
    uint16_t *dst = x16 + tile_row(row, k_pad);
    for (int k = 0; k < k_pad; k += K_BLOCK, dst += TILE * K_BLOCK) {
        float whole[K_BLOCK] = {0};
        memcpy(whole, src + k, (size_t)(d_in - k < K_BLOCK ? d_in - k : K_BLOCK) * sizeof(*whole));
        for (int i = 0; i < K_BLOCK; i += 8) {
            bfloat16x8_t v = vcvtq_low_bf16_f32(vld1q_f32(whole + i));
            v = vcvtq_high_bf16_f32(v, vld1q_f32(whole + i + 4));
            memcpy(dst + i, &v, sizeof(v));
        }
    }
}

static void zero_row(uint16_t *x16, int row, int k_pad)
{
    uint16_t *dst = x16 + tile_row(row, k_pad);
    for (int k = 0; k < k_pad; k += K_BLOCK, dst += TILE * K_BLOCK) memset(dst, 0, 2 * K_BLOCK);
}

static inline __attribute__((always_inline)) bfloat16x8_t eight(const void *at)
{
    bfloat16x8_t v;
    memcpy(&v, at, sizeof(v));
    return v;
}

/* Rows of sums [PANEL] as 2 x 2 tiles and back. */
static inline __attribute__((always_inline)) void tiles_load(float32x4_t tile[2], const float *out)
{
    const float32x4_t a = vld1q_f32(out), b = vld1q_f32(out + PANEL);
    tile[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(b));
    tile[1] = vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}

static inline __attribute__((always_inline)) void tiles_store(float *out, const float32x4_t tile[2])
{
    vst1q_f32(out, vcombine_f32(vget_low_f32(tile[0]), vget_low_f32(tile[1])));
    vst1q_f32(out + PANEL, vcombine_f32(vget_high_f32(tile[0]), vget_high_f32(tile[1])));
}

/* 2 * pairs rows (a constant once inlined) times COLS columns from c on, k from k0, where w begins,
 * to k1. */
static inline __attribute__((always_inline)) void sweep_columns(float *out, const uint16_t *w,
                                                                const uint16_t *x, int c, int k0,
                                                                int k1, const int pairs)
{
    float32x4_t sum[PAIRS_MOST][COLS / 2];
#pragma GCC unroll 4
    for (int p = 0; p < pairs; p++) {
#pragma GCC unroll 2
        for (int v = 0; v < COLS / 4; v++) {
            sum[p][2 * v] = sum[p][2 * v + 1] = vdupq_n_f32(0);
            if (k0) tiles_load(&sum[p][2 * v], out + 2 * p * PANEL + c + 4 * v);
        }
    }
    w += (size_t)(c / TILE) * TILE * K_BLOCK + (size_t)(c % TILE) * 2;
    x += (size_t)k0 * TILE;
    for (int k = k0; k < k1; k += K_BLOCK, w += PANEL * K_BLOCK, x += TILE * K_BLOCK) {
#pragma GCC unroll 1
        for (int i = 0; i < K_BLOCK; i += 4) {
            const uint16_t *line = w + (size_t)i / 2 * (2 * TILE);
            bfloat16x8_t two[COLS / 2];
#pragma GCC unroll 2
            for (int v = 0; v < COLS / 4; v++) {
                const float32x4_t a = (float32x4_t)eight(line + 8 * v),
                                  b = (float32x4_t)eight(line + 2 * TILE + 8 * v);
                two[2 * v] = (bfloat16x8_t)vzip1q_f32(a, b);
                two[2 * v + 1] = (bfloat16x8_t)vzip2q_f32(a, b);
            }
#pragma GCC unroll 4
            for (int p = 0; p < pairs; p++) {
                const uint16_t *at = x + (size_t)(2 * p) * K_BLOCK + i;
                const bfloat16x8_t rows =
                    (bfloat16x8_t)vcombine_u16(vld1_u16(at), vld1_u16(at + K_BLOCK));
#pragma GCC unroll 4
                for (int v = 0; v < COLS / 2; v++)
                    sum[p][v] = vbfmmlaq_f32(sum[p][v], rows, two[v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < pairs; p++) {
#pragma GCC unroll 2
        for (int v = 0; v < COLS / 4; v++)
            tiles_store(out + 2 * p * PANEL + c + 4 * v, &sum[p][2 * v]);
    }
}

#define SWEEP(pairs)                                                                              \
    static __attribute__((noinline)) void sweep_##pairs(float *out, const uint16_t *w,            \
                                                        const uint16_t *x, int c, int k0, int k1) \
    {                                                                                             \
        sweep_columns(out, w, x, c, k0, k1, pairs);                                               \
    }
SWEEP(1)
SWEEP(2)
SWEEP(3)
SWEEP(4)
#undef SWEEP

/* One row: a tile's 16 columns at once. */
static __attribute__((noinline)) void sweep_alone(float *out, const uint16_t *w, const uint16_t *x,
                                                  int k0, int k1)
{
    float32x4_t sum[PANEL / 4];
#pragma GCC unroll 8
    for (int v = 0; v < PANEL / 4; v++) sum[v] = k0 ? vld1q_f32(out + 4 * v) : vdupq_n_f32(0);
    x += (size_t)k0 * TILE;
    for (int k = k0; k < k1; k += K_BLOCK, w += PANEL * K_BLOCK, x += TILE * K_BLOCK) {
#pragma GCC unroll 1
        for (int pair = 0; pair < K_BLOCK / 2; pair++) {
            uint32_t both;
            memcpy(&both, x + 2 * pair, sizeof(both));
            const bfloat16x8_t row = (bfloat16x8_t)vdupq_n_u32(both);
            const uint16_t *line = w + (size_t)pair * (2 * TILE);
#pragma GCC unroll 8
            for (int v = 0; v < PANEL / 4; v++)
                sum[v] = vbfdotq_f32(sum[v], eight(line + v / 4 * TILE * K_BLOCK + v % 4 * 8), row);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < PANEL / 4; v++) vst1q_f32(out + 4 * v, sum[v]);
}

/* Pairs of rows of one block of 16, and an odd last row alone. */
static void rows_of(float *out, const uint16_t *w, const uint16_t *x, int k_pad, int k0, int k1,
                    int n_rows)
{
    for (int i = 0, n; i < n_rows; i += n) {
        const uint16_t *xi = x + tile_row(i, k_pad);
        float *o = out + (size_t)i * PANEL;
        n = n_rows - i < 2 * PAIRS_MOST ? n_rows - i : 2 * PAIRS_MOST;
        if (n > 1) n -= n % 2;
        if (n == 1) {
            sweep_alone(o, w, xi, k0, k1);
            continue;
        }
        for (int c = 0; c < PANEL; c += COLS) {
            switch (n / 2) {
            case 1: sweep_1(o, w, xi, c, k0, k1); break;
            case 2: sweep_2(o, w, xi, c, k0, k1); break;
            case 3: sweep_3(o, w, xi, c, k0, k1); break;
            default: sweep_4(o, w, xi, c, k0, k1); break;
            }
        }
    }
}

static void block_pairs(float *out, int rows_pad, const cpu_weight *w, int p0, int n_panel,
                        const void *x, int row0, int n_rows)
{
    const uint16_t *rows = (const uint16_t *)x + (size_t)row0 * w->k_pad;
    alignas(64) uint16_t plain[BLOCK_K * PANEL]; /* of codes */
    for (int k0 = 0; k0 < w->k_pad; k0 += BLOCK_K) {
        int k1 = k0 + BLOCK_K < w->k_pad ? k0 + BLOCK_K : w->k_pad;
        for (int p = 0; p < n_panel; p++) {
            const uint16_t *at =
                (const uint16_t *)(const void *)((const char *)w->data +
                                                 (size_t)(p0 + p) * w->panel_bytes) +
                (size_t)k0 * PANEL;
            if (w->coded.bits) coded_piece(plain, w, p0 + p, k0, k1);
            rows_of(out + (size_t)p * rows_pad * PANEL, w->coded.bits ? plain : at, rows, w->k_pad,
                    k0, k1, n_rows);
        }
    }
}

static void panel_pairs(float *out, const cpu_weight *w, int p, const void *x, int row0, int n_rows)
{
    block_pairs(out, 0, w, p, 1, x, row0, n_rows);
}

const tile_kernels tiles_i8mm = {panel_pairs, block_pairs, round_row, zero_row, NULL};
