/* codes.c -- packs quantised matrices for gemm_codes.cu, and reads them back; the layout is the
 * one in codes.h.
 *
 * A panel is GEMM_PANEL rows. First come its codes, in blocks of GEMM_CODES_K columns, permuted
 * so that one 16-byte load gives a lane the codes of its mma fragments; then one record of four
 * bytes for each row and run of columns with one scale. place_of() and record_place() are the
 * only functions that know where something lies.
 *
 * Bits inside a word are permuted as well, so that the kernel can widen two codes at once by
 * shifts and masks: word_e4m3(), word_i8() and word_i4() write what code_of() reads.
 *
 * The form is decided in two passes. pack_rows() writes f32 scales from many threads, and notes
 * whether all of them are exact in BF16 or F16. Where they are, finish_records() shortens the
 * records; where they are not, the form with f32 scales is used. Four-bit records hold a scale
 * as the sum of two BF16 values and the zero point in five bits that the second one does not
 * need.
 *
 * *fits is false where the values cannot be represented exactly; the caller then keeps plain
 * BF16 values. Nothing is ever rounded here.
 */
#include "engine/cuda/products/codes.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/base/round.h"

enum { RECORD = 4, LANES_BYTES = 512, EACH = 8, E4M3_UP = 120 };

/* How a matrix may lie; which of two forms of a kind shows when all scales are known. */
static gemm_codes layout_of(const weight_source *src)
{
    gemm_codes c = {.form = src->floats ? GEMM_E4M3 : src->bits == 8 ? GEMM_I8 : GEMM_I4};
    int k_pad = round_up(src->cols, GEMM_CODES_K);
    c.shift = 31;
    if (src->group != src->cols)
        for (c.shift = 0; 1 << c.shift < src->group;) c.shift++;
    size_t runs = c.shift == 31 ? 1 : ((size_t)(k_pad - 1) >> c.shift) + 1;
    c.records_at = (size_t)k_pad * GEMM_PANEL * (size_t)src->bits / 8;
    c.panel_bytes = round_up_size(c.records_at + runs * GEMM_PANEL * RECORD, 256);
    return c;
}

static bool codes_are_whole(const weight_source *s)
{
    for (int i = 1; s->bits == 4 && i < 16; i++)
        if (s->table[i] != s->table[0] + i) return false;
    return true;
}

bool codes_takes(const weight_source *s)
{
    bool runs = s->group == s->cols || (s->group >= 16 && (s->group & (s->group - 1)) == 0);
    if (s->order || s->has_min || s->form == SCALES_NESTED || !runs || s->cols % 8 != 0)
        return false;
    if (s->floats) return s->bits == 8 && s->rounded == DT_BF16;
    if (s->bits == 8) return s->form == SCALES_OWN;
    return s->bits == 4 && codes_are_whole(s);
}

size_t codes_bytes(const weight_source *src)
{
    return (size_t)((src->rows + GEMM_PANEL - 1) / GEMM_PANEL) * layout_of(src).panel_bytes;
}

/* Where the 8 codes of row `row` from k on lie. */
static size_t place_of(gemm_form form, int row, int k)
{
    int in = k % GEMM_CODES_K / 32, lane = row % 8 * 4 + k % 32 / 8;
    size_t at = (size_t)(row / 8 * LANES_BYTES + lane * 16), block = (size_t)(k / GEMM_CODES_K);
    if (form >= GEMM_I4) return block * 2 * LANES_BYTES + at + (size_t)in * 4;
    return (block * 4 + (size_t)(in / 2) * 2) * LANES_BYTES + at + (size_t)(in % 2) * 8;
}

static size_t record_place(const gemm_codes *c, int row, int run)
{
    return c->records_at + ((size_t)run * GEMM_PANEL + (size_t)row) * RECORD;
}

/* ---- pack ------------------------------------------------------------------------------------ */

typedef struct packing {
    const weight_source *src;
    const gemm_codes *c;
    char *out;
    int16_t *zeros; /* [rows][runs], or NULL */
    atomic_bool bf16, f16, wrong, large, no_memory;
} packing;

/* Four codes of E4M3. */
static uint32_t word_e4m3(const uint8_t *code)
{
    uint32_t w = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t a = code[i], b = code[i + 2];
        uint32_t half = (a & 128) << 8 | (a & 127) << 4;
        half |= (b & 7) | (b >> 3 & 1) << 3 | (b >> 7) << 11 | (b >> 4 & 7) << 12;
        w |= half << 16 * i;
    }
    return w;
}

static uint32_t word_i8(const uint8_t *code)
{
    return (uint32_t)code[0] | (uint32_t)code[2] << 8 | (uint32_t)code[1] << 16 |
           (uint32_t)code[3] << 24;
}

static uint32_t word_i4(const uint8_t *code)
{
    uint32_t w = 0;
    for (int i = 0; i < EACH; i++) w |= (code[i] & 15U) << (i / 2 * 4 + i % 2 * 16);
    return w;
}

static void put_codes(gemm_form form, const uint8_t *code, char *to)
{
    uint32_t w[2] = {0};
    if (form >= GEMM_I4) w[0] = word_i4(code);
    for (int i = 0; form < GEMM_I4 && i < 2; i++)
        w[i] = form == GEMM_E4M3 ? word_e4m3(code + 4 * i) : word_i8(code + 4 * i);
    memcpy(to, w, form >= GEMM_I4 ? 4 : 8);
}

static void pack_row(packing *p, const weight_row *r, int row)
{
    const weight_source *src = p->src;
    char *panel = p->out + (size_t)(row / GEMM_PANEL) * p->c->panel_bytes;
    int in = row % GEMM_PANEL, runs = src->cols / src->group;
    for (int k = 0; k < src->cols; k += EACH)
        put_codes(p->c->form, (const uint8_t *)r->codes + k, panel + place_of(p->c->form, in, k));
    for (int k = 0; src->floats && k < src->cols; k++)
        if ((r->codes[k] & 127) == 127) atomic_store(&p->wrong, true);
    for (int run = 0; run < runs; run++) {
        float s = r->scales[run], kept = src->floats ? ldexpf(s, E4M3_UP) : s;
        if (!isfinite(s)) atomic_store(&p->wrong, true);
        if (!isfinite(kept)) atomic_store(&p->large, true);
        if (bf16_to_f32(bf16_from_f32(kept)) != kept) atomic_store(&p->bf16, false);
        if (f16_to_f32(f16_from_f32(kept)) != kept) atomic_store(&p->f16, false);
        memcpy(panel + record_place(p->c, in, run), &kept, RECORD);
        if (p->zeros) p->zeros[(size_t)row * (size_t)runs + (size_t)run] = r->parts[run];
    }
}

enum { ROWS_EACH = 64 };

static void pack_rows(void *arg, int i)
{
    packing *p = arg;
    void *mem = malloc(weight_row_bytes(p->src));
    if (!mem) {
        atomic_store(&p->no_memory, true);
        return;
    }
    weight_row r = weight_row_place(p->src, mem);
    for (int row = i * ROWS_EACH; row < (i + 1) * ROWS_EACH && row < p->src->rows; row++) {
        p->src->read_row(p->src, row, &r);
        pack_row(p, &r, row);
    }
    free(mem);
}

/* A record of 4 bits; false: the zero is none that it holds. */
static bool record_i4(float scale, int zero, uint32_t *out)
{
    uint16_t high = bf16_from_f32(scale), low = bf16_from_f32(scale - bf16_to_f32(high));
    *out = (uint32_t)high | (uint32_t)zero << 16 | (uint32_t)low << 16;
    return zero >= 0 && zero < 32 && (low & 31) == 0;
}

/* The records, which have f32 scales so far, in the form of the matrix. */
static bool finish_records(const packing *p, gemm_form form)
{
    const weight_source *src = p->src;
    int runs = src->cols / src->group;
    bool ok = true;
    for (int row = 0; row < src->rows; row++) {
        char *panel = p->out + (size_t)(row / GEMM_PANEL) * p->c->panel_bytes;
        for (int run = 0; run < runs; run++) {
            char *at = panel + record_place(p->c, row % GEMM_PANEL, run);
            int zero = -src->table[0];
            float scale;
            uint32_t record;
            memcpy(&scale, at, RECORD);
            if (p->zeros) zero += p->zeros[(size_t)row * (size_t)runs + (size_t)run];
            if (form < GEMM_I4)
                record = bf16_from_f32(scale);
            else
                ok = record_i4(scale, zero, &record) && ok;
            memcpy(at, &record, RECORD);
        }
    }
    return ok;
}

err_code codes_pack(const weight_source *src, codes_each *each, void *threads, void *out,
                    gemm_codes *c, bool *fits)
{
    *c = layout_of(src);
    packing p = {.src = src, .c = c, .out = out};
    size_t groups = (size_t)src->rows * (size_t)(src->cols / src->group);
    *fits = false;
    if (src->form == SCALES_ZERO && !(p.zeros = malloc(groups * sizeof(*p.zeros))))
        return ERR_NOMEM;
    atomic_init(&p.bf16, true);
    atomic_init(&p.f16, true);
    memset(out, 0, codes_bytes(src));
    int n = (src->rows + ROWS_EACH - 1) / ROWS_EACH;
    if (each) each(threads, pack_rows, &p, n);
    for (int i = 0; !each && i < n; i++) pack_rows(&p, i);
    bool bf16 = atomic_load(&p.bf16);
    *fits = !atomic_load(&p.large) && (c->form != GEMM_I4 || bf16 || atomic_load(&p.f16));
    if (!bf16) c->form = (gemm_form)(c->form + 1);
    bool kept = c->form == GEMM_E4M3_F32 || c->form == GEMM_I8_F32;
    if (*fits && !kept) *fits = finish_records(&p, c->form);
    free(p.zeros);
    if (atomic_load(&p.no_memory)) return ERR_NOMEM;
    return atomic_load(&p.wrong) ? ERR_INPUT : ERR_NONE;
}

/* ---- read back ------------------------------------------------------------------------------- */

static int code_of(gemm_form form, const char *at, int i)
{
    uint32_t w;
    memcpy(&w, form < GEMM_I4 ? at + i / 4 * 4 : at, sizeof(w));
    if (form >= GEMM_I4) return (int)(w >> (i / 2 * 4 + i % 2 * 16) & 15);
    if (form >= GEMM_I8) return (int8_t)(w >> (i % 2 * 16 + i % 4 / 2 * 8) & 255);
    uint32_t half = w >> i % 2 * 16 & 0xFFFF;
    return (int)(i % 4 < 2 ? (half >> 15) << 7 | (half >> 4 & 127)
                           : (half >> 11 & 1) << 7 | (half >> 12 & 7) << 4 | (half & 15));
}

/* What E4M3 is times 2^-120: sign, exponent and fraction in their places of an f32. */
static float small_e4m3(int code)
{
    uint32_t bits = (uint32_t)(code & 128) << 24 | (uint32_t)(code & 127) << 20;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

void codes_row(const gemm_codes *c, const void *panel, int row, int cols, float *out)
{
    gemm_form form = c->form;
    for (int k = 0; k < cols; k++) {
        uint32_t record;
        float scale;
        int code = code_of(form, (const char *)panel + place_of(form, row, k / EACH * EACH), k % 8);
        memcpy(&record, (const char *)panel + record_place(c, row, k >> c->shift), RECORD);
        memcpy(&scale, &record, sizeof(scale));
        if (form != GEMM_E4M3_F32 && form != GEMM_I8_F32) scale = bf16_to_f32((uint16_t)record);
        if (form >= GEMM_I4) {
            scale += bf16_to_f32((uint16_t)(record >> 16 & 0xFFE0));
            code -= (int)(record >> 16 & 31);
        }
        float product = scale * (form < GEMM_I8 ? small_e4m3(code) : (float)code);
        out[k] = bf16_to_f32(bf16_from_f32(product));
    }
}
