/* tiles_avx512bf16.c -- linear_amx.c on tiles in plain C, which tests have in its place
 * (stand_ins.h): so processors run it that have AVX512-BF16 alone.
 *
 * Source: Intel's Software Developer's Manual, volume 2, of LDTILECFG, TILELOADD, TDPBF16PS and
 * TDPBSUD.  What raises #UD there ends the test here.
 */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"

enum { TILES = 8, MOST_ROWS = 16, MOST_BYTES = 64 };

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} shapes;

static _Thread_local shapes shape; /* palette 0: nothing is configured */
static _Thread_local uint8_t tile[TILES][MOST_ROWS][MOST_BYTES];

static void expect(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "tiles: %s\n", what);
    abort();
}

static void load_config(const void *from)
{
    memcpy(&shape, from, sizeof(shape));
    expect(shape.palette <= 1 && shape.start_row == 0, "no such palette");
    for (int i = 0; i < TILES; i++)
        expect(shape.rows[i] <= MOST_ROWS && shape.bytes[i] <= MOST_BYTES, "a tile is too large");
    memset(tile, 0, sizeof(tile));
}

static void release(void)
{
    memset(&shape, 0, sizeof(shape));
}

static void zero(int t)
{
    expect(shape.palette == 1, "zeroed, and not configured");
    memset(tile[t], 0, sizeof(tile[t]));
}

/* What a row has beyond its bytes, and a tile beyond its rows, becomes zero. */
static void load(int t, const void *from, size_t stride)
{
    zero(t);
    for (size_t r = 0; r < shape.rows[t]; r++)
        memcpy(tile[t][r], (const char *)from + r * stride, shape.bytes[t]);
}

static void store(int t, void *to, size_t stride)
{
    expect(shape.palette == 1, "stored, and not configured");
    for (size_t r = 0; r < shape.rows[t]; r++)
        memcpy((char *)to + r * stride, tile[t][r], shape.bytes[t]);
}

/* How many quads of bytes a row of a has. */
static int quads_of(int c, int a, int b)
{
    expect(shape.palette == 1, "multiplied, and not configured");
    expect(c != a && c != b && a != b, "one tile is two of a product's");
    expect(shape.rows[c] == shape.rows[a] && shape.bytes[c] == shape.bytes[b] &&
               shape.bytes[a] == 4 * shape.rows[b],
           "shapes do not fit");
    return shape.rows[b];
}

static float bf16_at(const uint8_t *at)
{
    uint16_t h;
    memcpy(&h, at, sizeof(h));
    return bf16_to_f32(h);
}

static void multiply_bf16(int c, int a, int b)
{
    const int quads = quads_of(c, a, b);
    for (int r = 0; r < shape.rows[c]; r++) {
        for (int n = 0; n < shape.bytes[c] / 4; n++) {
            float sum[2] = {0, 0}, all;
            for (int q = 0; q < quads; q++) {
                for (int h = 0; h < 2; h++)
                    sum[h] = fmaf(bf16_at(&tile[a][r][4 * q + 2 * h]),
                                  bf16_at(&tile[b][q][4 * n + 2 * h]), sum[h]);
            }
            memcpy(&all, &tile[c][r][4 * n], sizeof(all));
            all += sum[0] + sum[1];
            memcpy(&tile[c][r][4 * n], &all, sizeof(all));
        }
    }
}

/* a's bytes are signed, b's are not. */
static void multiply_bytes(int c, int a, int b)
{
    const int quads = quads_of(c, a, b);
    for (int r = 0; r < shape.rows[c]; r++) {
        for (int n = 0; n < shape.bytes[c] / 4; n++) {
            int32_t all;
            memcpy(&all, &tile[c][r][4 * n], sizeof(all));
            for (int q = 0; q < 4 * quads; q++)
                all += (int8_t)tile[a][r][q] * tile[b][q / 4][4 * n + q % 4];
            memcpy(&tile[c][r][4 * n], &all, sizeof(all));
        }
    }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_loadconfig             load_config
#define _tile_release                release
#define _tile_loadd(t, from, stride) load(t, from, (size_t)(stride))
#define _tile_stored(t, to, stride)  store(t, to, (size_t)(stride))
#define _tile_zero                   zero
#define _tile_dpbf16ps               multiply_bf16
#define _tile_dpbsud                 multiply_bytes

#include "engine/cpu/linear_amx.c"
