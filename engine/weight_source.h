/* weight_source.h -- a matrix W [rows][cols] as a file has it: what be_weight_create() packs.
 *
 * Plain: `data` holds the values.  Quantised: `data` is NULL, and read_row() gives a row's codes in
 * groups of `group` columns; W[i][order[k]] = scale * value(code k) + min, with scale and min of
 * k's group.  A backend lays the codes out anew for its kernels and keeps the scales as they are;
 * it never rounds a value again.  Codes may stand for floats (NF4, FP8): then the file's library
 * rounds scale * floats[code] to 16 bits, and so does whoever reads them.
 *
 * Ownership: the caller's; data, order and impl live until be_weight_create() returns.
 * Threads:   read_row() is called by any thread, several rows at the same time.
 */
#ifndef ENGINE_WEIGHT_SOURCE_H
#define ENGINE_WEIGHT_SOURCE_H

#include <string.h>

#include "engine/backend.h"
#include "engine/base/halves.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What scale and min of a group are made of (struct weight_row). */
typedef enum {
    SCALES_OWN,    /* each group has its own: scales[g], and mins[g] if has_min */
    SCALES_ZERO,   /* scales[g], and a code that stands for zero: min = -scales[g] * parts[g] */
    SCALES_NESTED, /* scale = scales[s] * parts[g], min = mins[s] * min_parts[g] if has_min; s is
                    * the run of `span` columns that g lies in */
} scale_form;

/* How a backend that multiplies codes by integers rounds x: to 8 bits in groups of 32 columns (of
 * 16 where scales have groups of 16); groups that are large beside the row's others to 16 bits (not
 * with an order); or all to 16 bits. */
typedef enum { X_INT8, X_OUTLIERS, X_INT16 } x_rounding;

/* One row of a quantised matrix, to be filled in; `runs` is cols / span. */
typedef struct weight_row {
    int8_t *codes;        /* [cols] */
    float *scales, *mins; /* [runs] */
    int16_t *parts;       /* [cols / group]; nested: within int8 */
    int16_t *min_parts;   /* the same, nested alone */
} weight_row;

enum { WEIGHT_GROUP_STEP = 16 };

typedef struct weight_source weight_source;

struct weight_source {
    int rows, cols;
    dtype type;       /* plain: of `data`; quantised: what LoRA beside it is kept in, F32 or BF16 */
    const void *data; /* plain: [rows][cols], row-major, aligned for its type */
    int group;        /* columns that share one scale and min: divides cols, a multiple of 16 */
    int span;         /* nested: 64, 128, 192 or 256, divides cols, and groups are of 16 or 32; else
                       * it is the group */
    int bits;         /* 0: plain; of a code, 2 to 6 or 8 */
    int8_t least;     /* codes are their own values, from here on (8 bits: -128); but of 4 bits */
    int8_t table[16]; /* they are 0 .. 15, with these values */
    const float *floats; /* NULL, or what codes stand for: 4 bits [16]; 8 bits: the 256 of E4M3.
                          * SCALES_OWN, no min, no order; read_row() gives codes unsigned */
    dtype rounded;       /* of floats: what a value is rounded to */
    scale_form form;
    bool has_min;
    dtype scale_type; /* of which every one of scales and mins is a value: how they are kept */
    x_rounding rounding;
    const int *order; /* NULL, or [cols]: a row's column k is column order[k] of W and of x */
    void (*read_row)(const weight_source *s, int row, const weight_row *to);
    const void *impl; /* of read_row */
};

/* Value i of an F32, F16 or BF16 array at any alignment, as a float. */
static inline float float_at(const void *values, dtype type, size_t i)
{
    const char *p = (const char *)values + i * dtype_bytes(type);
    uint16_t h;
    float f;
    if (type == DT_F32) {
        memcpy(&f, p, sizeof(f));
        return f;
    }
    memcpy(&h, p, sizeof(h));
    return type == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static inline float float_rounded(float v, dtype type)
{
    return type == DT_BF16  ? bf16_to_f32(bf16_from_f32(v))
           : type == DT_F16 ? f16_to_f32(f16_from_f32(v))
                            : v;
}

/* A matrix of plain values. */
static inline weight_source weight_source_plain(const void *data, dtype type, int rows, int cols)
{
    weight_source s;
    memset(&s, 0, sizeof(s));
    s.rows = rows;
    s.cols = cols;
    s.type = type;
    s.data = data;
    return s;
}

static inline bool weight_source_quantised(const weight_source *s)
{
    return s->bits != 0;
}

/* Whether groups of a quantised matrix have a size that backends can pack; others become plain
 * values, whatever weight_rules.takes says. */
static inline bool weight_source_even(const weight_source *s)
{
    return s->group % WEIGHT_GROUP_STEP == 0;
}

/* Whether the CPU takes a quantised matrix by its codes, weight_rules.takes: of codes that stand
 * for floats the groups are of whole 32, or one is all columns. */
static inline bool weight_source_usable(const weight_source *s, bool expert)
{
    (void)expert;
    return !s->floats || s->group % 32 == 0 || s->group == s->cols;
}

/* What a quantised matrix takes at least: codes, and scales as they are kept. */
static inline size_t weight_source_bytes(const weight_source *s)
{
    size_t values = (size_t)s->rows * (size_t)s->cols, runs = values / (size_t)s->span;
    size_t parts = s->form == SCALES_ZERO     ? 2 * runs
                   : s->form == SCALES_NESTED ? values / (size_t)s->group * (s->has_min ? 2 : 1)
                                              : 0;
    return values * (size_t)s->bits / 8 + runs * dtype_bytes(s->scale_type) * (s->has_min ? 2 : 1) +
           parts;
}

/* Bytes of one row, and the row in them (aligned for a float). */
static inline size_t weight_row_bytes(const weight_source *s)
{
    size_t runs = (size_t)(s->cols / s->span), groups = (size_t)(s->cols / s->group);
    return 2 * runs * sizeof(float) + 2 * groups * sizeof(int16_t) + (size_t)s->cols;
}

static inline weight_row weight_row_place(const weight_source *s, void *mem)
{
    size_t runs = (size_t)(s->cols / s->span), groups = (size_t)(s->cols / s->group);
    float *scales = (float *)mem;
    int16_t *parts = (int16_t *)(void *)(scales + 2 * runs);
    weight_row r;
    r.scales = scales;
    r.mins = scales + runs;
    r.parts = parts;
    r.min_parts = parts + groups;
    r.codes = (int8_t *)(parts + 2 * groups);
    return r;
}

/* A column's value, in the order of the row; each product is rounded to f32, and then the sum. */
static inline float weight_row_value(const weight_source *s, const weight_row *r, int k)
{
    int g = k / s->group, at = k / s->span;
    if (s->floats)
        return float_rounded(s->floats[(uint8_t)r->codes[k]] * r->scales[at], s->rounded);
    int value = s->bits == 4 ? s->table[r->codes[k] & 15] : r->codes[k];
    if (s->form == SCALES_ZERO) return r->scales[at] * (float)(value - r->parts[g]);
    bool nested = s->form == SCALES_NESTED;
    float scale = nested ? r->scales[at] * (float)r->parts[g] : r->scales[at];
    float product = scale * (float)value;
    if (!s->has_min) return product;
    float min = nested ? r->mins[at] * (float)r->min_parts[g] : r->mins[at];
    return product + min;
}

#ifdef __cplusplus
}
#endif

#endif
