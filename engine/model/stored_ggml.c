/* stored_ggml.c -- decodes rows of GGUF's quantised tensors into codes, scales and minimums, one
 * reader per block type.
 *
 *   value = scale * code + min,   per 16 or 32 columns
 *
 *   Q4_0, Q8_0, MXFP4     one scale per 32 columns          Q4_1, Q5_1   scale and min
 *   Q2_K .. Q6_K, IQ4_XS  blocks of 256: a scale (and min) of the block times small ones per group
 *
 * In a block the codes of different columns are interleaved (low nibbles first, then high ones;
 * extra bits apart). The readers put them in column order, which the CPU kernels and the packer
 * expect. They work on eight codes at a time in 64-bit words (add_bits(), take_bits()), because all
 * of a model's start waits for this.
 *
 * weight_row_value() multiplies in f32 in the order in which ggml does it, so plain values have
 * ggml's bits. Source: the block definitions of ggml. Threads: any; rows are read in parallel.
 */
#include <math.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/files/gguf.h"
#include "engine/model/stored.h"

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    return f16_to_f32(h);
}

/* A row's blocks, one after the other. */
typedef struct blocks {
    const uint8_t *p;
    int n;
} blocks;

static blocks blocks_of(const weight_source *src, int row, int values, int bytes)
{
    const stored *s = src->impl;
    int n = src->cols / values;
    return (blocks){s->part[0].data + (size_t)stored_row(s, row) * (size_t)n * (size_t)bytes, n};
}

/* Eight codes at a time: the start of a model waits for this. */
#define EACH_BYTE(v) ((v) * (uint64_t)0x0101010101010101)

static uint64_t eight_at(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* n codes, a multiple of 8, |= (from[i] >> shift & mask) << up; the shifts stay within bytes. */
static void add_bits(int8_t *codes, const uint8_t *from, int n, int shift, int mask, int up)
{
    for (int i = 0; i < n; i += 8) {
        uint64_t bits = (eight_at(from + i) >> shift & EACH_BYTE((uint64_t)mask)) << up;
        bits |= eight_at(codes + i);
        memcpy(codes + i, &bits, sizeof(bits));
    }
}

static void take_bits(int8_t *codes, const uint8_t *from, int n, int shift, int mask)
{
    for (int i = 0; i < n; i += 8) {
        uint64_t bits = eight_at(from + i) >> shift & EACH_BYTE((uint64_t)mask);
        memcpy(codes + i, &bits, sizeof(bits));
    }
}

/* 16 bytes of two codes each: columns 0 to 15 in the low nibbles, 16 to 31 in the high ones. */
static void nibbles(const uint8_t *q, int8_t *codes)
{
    take_bits(codes, q, 16, 0, 15);
    take_bits(codes + 16, q, 16, 4, 15);
}

/* The fifth bits of 32 codes: each bit of a byte becomes a byte. */
static void fifth_bits(const uint8_t *high, int8_t *codes)
{
    for (int i = 0; i < 4; i++) {
        uint64_t there = EACH_BYTE((uint64_t)high[i]) & 0x8040201008040201;
        uint64_t ones = (there + EACH_BYTE((uint64_t)0x7F)) >> 7 & EACH_BYTE((uint64_t)1);
        ones = ones << 4 | eight_at(codes + 8 * (size_t)i);
        memcpy(codes + 8 * (size_t)i, &ones, sizeof(ones));
    }
}

static void read_q8_0(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 32, 34);
    for (int i = 0; i < b.n; i++, b.p += 34) {
        to->scales[i] = half_at(b.p);
        memcpy(to->codes + 32 * (size_t)i, b.p + 2, 32);
    }
}

static void read_q4_0(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 32, 18);
    for (int i = 0; i < b.n; i++, b.p += 18) {
        to->scales[i] = half_at(b.p);
        nibbles(b.p + 2, to->codes + 32 * (size_t)i);
    }
}

/* The scale is half of the power of two that a byte stands for; 255, too, is a power here. */
static void read_mxfp4(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 32, 17);
    for (int i = 0; i < b.n; i++, b.p += 17) {
        to->scales[i] = ldexpf(1, b.p[0] - 128);
        nibbles(b.p + 1, to->codes + 32 * (size_t)i);
    }
}

static void read_q4_1(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 32, 20);
    for (int i = 0; i < b.n; i++, b.p += 20) {
        to->scales[i] = half_at(b.p);
        to->mins[i] = half_at(b.p + 2);
        nibbles(b.p + 4, to->codes + 32 * (size_t)i);
    }
}

static void read_q5_0(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 32, 22);
    int8_t *codes = to->codes;
    for (int i = 0; i < b.n; i++, b.p += 22, codes += 32) {
        to->scales[i] = half_at(b.p);
        nibbles(b.p + 6, codes);
        fifth_bits(b.p + 2, codes);
        for (int k = 0; k < 32; k++) codes[k] = (int8_t)(codes[k] - 16);
    }
}

static void read_q5_1(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 32, 24);
    int8_t *codes = to->codes;
    for (int i = 0; i < b.n; i++, b.p += 24, codes += 32) {
        to->scales[i] = half_at(b.p);
        to->mins[i] = half_at(b.p + 2);
        nibbles(b.p + 8, codes);
        fifth_bits(b.p + 4, codes);
    }
}

/* 64 bytes of four codes each: column 128 h + 32 s + i stands in byte 32 h + i at bit 2 s. */
static void pairs_of_bits(const uint8_t *q, int8_t *codes)
{
    for (int i = 0; i < 8; i++)
        take_bits(codes + 32 * (size_t)i, q + 32 * (size_t)(i / 4), 32, 2 * (i % 4), 3);
}

static void read_q2_k(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 256, 84);
    for (int i = 0; i < b.n; i++, b.p += 84) {
        int16_t *parts = to->parts + 16 * (size_t)i, *mins = to->min_parts + 16 * (size_t)i;
        to->scales[i] = half_at(b.p + 80);
        to->mins[i] = -half_at(b.p + 82);
        pairs_of_bits(b.p + 16, to->codes + 256 * (size_t)i);
        for (int k = 0; k < 16; k++) {
            parts[k] = b.p[k] & 15;
            mins[k] = b.p[k] >> 4;
        }
    }
}

static void read_q3_k(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 256, 110);
    int8_t *codes = to->codes;
    for (int i = 0; i < b.n; i++, b.p += 110, codes += 256) {
        const uint8_t *low = b.p + 96, *high = low + 8;
        to->scales[i] = half_at(b.p + 108);
        pairs_of_bits(b.p + 32, codes);
        /* The third bit of column k is bit k / 32 of byte k % 32, and means: not minus four. */
        for (int k = 0; k < 8; k++) add_bits(codes + 32 * (size_t)k, b.p, 32, k, 1, 2);
        for (int k = 0; k < 256; k++) codes[k] = (int8_t)(codes[k] - 4);
        for (int k = 0; k < 16; k++) {
            int bits = (low[k % 8] >> 4 * (k / 8) & 15) | (high[k % 4] >> 2 * (k / 4) & 3) << 4;
            to->parts[16 * i + k] = (int16_t)(bits - 32);
        }
    }
}

/* Six bits of scale and of min for each of eight groups, in twelve bytes. */
static void scale_and_min(const uint8_t *p, int k, int *scale, int *min)
{
    if (k < 4) {
        *scale = p[k] & 63;
        *min = p[k + 4] & 63;
    } else {
        *scale = (p[k + 4] & 15) | (p[k - 4] >> 6) << 4;
        *min = p[k + 4] >> 4 | (p[k] >> 6) << 4;
    }
}

static void k_scales(const uint8_t *p, const weight_row *to, int i)
{
    to->scales[i] = half_at(p);
    to->mins[i] = -half_at(p + 2);
    for (int k = 0; k < 8; k++) {
        int scale, min;
        scale_and_min(p + 4, k, &scale, &min);
        to->parts[8 * i + k] = (int16_t)scale;
        to->min_parts[8 * i + k] = (int16_t)min;
    }
}

/* Of 64 columns the first 32 are the lower halves of 32 bytes. */
static void k_nibbles(const uint8_t *q, int8_t *codes)
{
    for (int i = 0; i < 8; i++)
        take_bits(codes + 32 * (size_t)i, q + 32 * (size_t)(i / 2), 32, 4 * (i % 2), 15);
}

static void read_q4_k(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 256, 144);
    for (int i = 0; i < b.n; i++, b.p += 144) {
        k_scales(b.p, to, i);
        k_nibbles(b.p + 16, to->codes + 256 * (size_t)i);
    }
}

static void read_q5_k(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 256, 176);
    int8_t *codes = to->codes;
    for (int i = 0; i < b.n; i++, b.p += 176, codes += 256) {
        k_scales(b.p, to, i);
        k_nibbles(b.p + 48, codes);
        for (int k = 0; k < 8; k++) add_bits(codes + 32 * (size_t)k, b.p + 16, 32, k, 1, 4);
    }
}

static void read_q6_k(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 256, 210);
    int8_t *codes = to->codes;
    for (int i = 0; i < b.n; i++, b.p += 210, codes += 256) {
        to->scales[i] = half_at(b.p + 208);
        for (int k = 0; k < 8; k++) { /* of 32 codes */
            int8_t *at = codes + 32 * (size_t)k;
            const uint8_t *low = b.p + 64 * (size_t)(k / 4) + 32 * (size_t)(k % 2);
            take_bits(at, low, 32, 4 * (k % 4 / 2), 15);
            add_bits(at, b.p + 128 + 32 * (size_t)(k / 4), 32, 2 * (k % 4), 3, 4);
        }
        for (int k = 0; k < 256; k++) codes[k] = (int8_t)(codes[k] - 32);
        for (int k = 0; k < 16; k++) to->parts[16 * i + k] = (int16_t)(int8_t)b.p[192 + k];
    }
}

static void read_iq4_xs(const weight_source *src, int row, const weight_row *to)
{
    blocks b = blocks_of(src, row, 256, 136);
    int8_t *codes = to->codes;
    for (int i = 0; i < b.n; i++, b.p += 136, codes += 256) {
        to->scales[i] = half_at(b.p);
        int high = b.p[2] | b.p[3] << 8;
        for (int k = 0; k < 8; k++) {
            int bits = (b.p[4 + k / 2] >> 4 * (k % 2) & 15) | (high >> 2 * k & 3) << 4;
            to->parts[8 * i + k] = (int16_t)(bits - 32);
            nibbles(b.p + 8 + 16 * (size_t)k, codes + 32 * (size_t)k);
        }
    }
}

/* ---- types ----------------------------------------------------------------------------------- */

#define CODES_ARE_VALUES                                     \
    {                                                        \
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 \
    }
#define CODES_ABOUT_ZERO                                       \
    {                                                          \
        -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 \
    }
#define CODES_OF_IQ4                                                             \
    {                                                                            \
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 \
    }

static const struct {
    int type, group, span, bits, least;
    bool has_min;
    int8_t table[16];
    void (*read_row)(const weight_source *, int, const weight_row *);
} quantised[] = {
    {GGML_Q8_0, 32, 32, 8, -128, false, {0}, read_q8_0},
    {GGML_Q4_0, 32, 32, 4, 0, false, CODES_ABOUT_ZERO, read_q4_0},
    {GGML_Q4_1, 32, 32, 4, 0, true, CODES_ARE_VALUES, read_q4_1},
    {GGML_Q5_0, 32, 32, 5, -16, false, {0}, read_q5_0},
    {GGML_Q5_1, 32, 32, 5, 0, true, {0}, read_q5_1},
    {GGML_Q2_K, 16, 256, 2, 0, true, {0}, read_q2_k},
    {GGML_Q3_K, 16, 256, 3, -4, false, {0}, read_q3_k},
    {GGML_Q4_K, 32, 256, 4, 0, true, CODES_ARE_VALUES, read_q4_k},
    {GGML_Q5_K, 32, 256, 5, 0, true, {0}, read_q5_k},
    {GGML_Q6_K, 16, 256, 6, -32, false, {0}, read_q6_k},
    {GGML_IQ4_NL, 32, 32, 4, 0, false, CODES_OF_IQ4, read_q4_0}, /* the same block, another table */
    {GGML_IQ4_XS, 32, 256, 4, 0, false, CODES_OF_IQ4, read_iq4_xs},
    {GGML_MXFP4, 32, 32, 4, 0, false, STORED_TWICE_E2M1, read_mxfp4},
};

bool stored_take_ggml(stored *s, int type, const uint8_t *data, uint64_t bytes)
{
    s->part[0] = (stored_part){data, bytes};
    bool bf16 = type == GGML_BF16 || type == GGML_MXFP4; /* whose values are of that type, too */
    s->plain = type == GGML_F16 ? DT_F16 : bf16 ? DT_BF16 : DT_F32;
    if (type == GGML_F32 || type == GGML_F16 || type == GGML_BF16) {
        s->values = data;
        return true;
    }
    for (size_t i = 0; i < sizeof(quantised) / sizeof(quantised[0]); i++) {
        if (quantised[i].type != type) continue;
        weight_source *src = &s->src;
        src->type = s->plain;
        src->group = quantised[i].group;
        src->span = quantised[i].span;
        src->least = (int8_t)quantised[i].least;
        src->form = src->span > src->group ? SCALES_NESTED : SCALES_OWN;
        src->scale_type = bf16 ? DT_BF16 : DT_F16;
        src->bits = quantised[i].bits;
        src->has_min = quantised[i].has_min;
        memcpy(src->table, quantised[i].table, sizeof(src->table));
        src->read_row = quantised[i].read_row;
        src->impl = s;
        return true;
    }
    return false;
}
