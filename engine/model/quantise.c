/* quantise.c -- rounds groups of plain values when a backend asks for a row. */
#include "engine/model/quantise.h"

#include <math.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/e4m3.h"

enum { GROUP = 32, COLS = 16 /* divide a row that is one group */ };

static float as_kept(float scale)
{
    return f16_to_f32(f16_from_f32(scale));
}

/* Codes of v for this scale, within [lo, hi]; the result is the squared error. */
static float round_group(int8_t *code, const float *v, float scale, float lo, float hi)
{
    float up = scale != 0 ? 1 / scale : 0, wrong = 0;
    for (int i = 0; i < GROUP; i++) {
        float c = fmaxf(lo, fminf(hi, rintf(v[i] * up)));
        float off = v[i] - c * scale;
        wrong += off * off;
        code[i] = (int8_t)c;
    }
    return wrong;
}

/* The value that is furthest from 0. */
static float furthest(const float *v)
{
    float most = 0;
    for (int i = 0; i < GROUP; i++) most = fabsf(v[i]) > fabsf(most) ? v[i] : most;
    return most;
}

static float group_q8(int8_t *code, const float *v)
{
    float scale = as_kept(fabsf(furthest(v)) / 127);
    (void)round_group(code, v, scale, -127, 127);
    return scale;
}

/* The furthest value becomes -8, or, where the others fare better so, a little less. */
static float group_q4(int8_t *code, const float *v)
{
    static const float parts[] = {-8, -7.5F, -8.5F, -7};
    float most = furthest(v), best = INFINITY, scale = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        int8_t c[GROUP];
        float s = as_kept(most / parts[i]), wrong = round_group(c, v, s, -8, 7);
        if (!(wrong < best)) continue;
        best = wrong;
        scale = s;
        memcpy(code, c, sizeof(c));
    }
    for (int i = 0; i < GROUP; i++) code[i] = (int8_t)(code[i] + 8);
    return scale;
}

static float plain_at(const weight_source *s, int row, int k)
{
    const weight_source *plain = s->impl;
    return float_at(plain->data, plain->type, (size_t)row * (size_t)s->cols + (size_t)k);
}

static void read_row(const weight_source *s, int row, const weight_row *to)
{
    for (int k = 0; k < s->cols; k += GROUP) {
        float v[GROUP];
        for (int i = 0; i < GROUP; i++) v[i] = plain_at(s, row, k + i);
        int8_t *codes = to->codes + k;
        to->scales[k / GROUP] = s->bits == 8 ? group_q8(codes, v) : group_q4(codes, v);
    }
}

static void read_row_fp8(const weight_source *s, int row, const weight_row *to)
{
    float most = 0;
    for (int k = 0; k < s->cols; k++) most = fmaxf(most, fabsf(plain_at(s, row, k)));
    float scale = bf16_to_f32(bf16_from_f32(most / E4M3_MAX)), up = scale != 0 ? 1 / scale : 0;
    for (int k = 0; k < s->cols; k++)
        to->codes[k] = (int8_t)e4m3_from_f32(plain_at(s, row, k) * up);
    to->scales[0] = scale;
}

bool weight_source_quantise(weight_source *out, const weight_source *plain, quantise_form form)
{
    const bool fp8 = form == QUANTISE_FP8;
    if (plain->cols % (fp8 ? COLS : GROUP) != 0) return false;
    int group = fp8 ? plain->cols : GROUP;
    *out = (weight_source){.rows = plain->rows,
                           .cols = plain->cols,
                           .type = plain->type == DT_BF16 ? DT_BF16 : DT_F32,
                           .group = group,
                           .span = group,
                           .least = INT8_MIN,
                           .bits = form == QUANTISE_Q4 ? 4 : 8,
                           .floats = fp8 ? e4m3_floats() : NULL,
                           .scale_type = fp8 ? DT_F32 : DT_F16,
                           .read_row = fp8 ? read_row_fp8 : read_row,
                           .impl = plain};
    out->rounded = out->type;
    for (int i = 0; i < 16; i++) out->table[i] = (int8_t)(i - 8);
    return true;
}
