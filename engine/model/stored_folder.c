/* stored_folder.c -- matrices of quantised Hugging Face folders.
 *
 *     GPTQ    qweight [K / 8][N] packed along K, qzeros [G][N / 8], scales [G][N], g_idx [K]
 *     AWQ     qweight [K][N / 8], qzeros [G][N / 8], both in the order below; scales [G][N]
 *     packed  weight_packed [N][K / 8], weight_scale [N][G], weight_zero_point [N / 8][G] packed
 *             along N, weight_g_idx [K]; compressed-tensors
 *     int8    weight [N][K], weight_scale [N][1] or [1], weight_zero_point the same
 *     FP8     weight [N][K], weight_scale or weight_scale_inv: one, one a row, or one a block
 *     NF4     weight [N * K / 2], scales in weight.absmax, which may be codes themselves;
 *             bitsandbytes
 *     MXFP4   NAME_blocks [E][N][K / 32][16], NAME_scales [E][N][K / 32] of E experts; the OCP's
 *             Microscaling Formats, 1.0
 *
 * N rows, K columns, G groups of columns; 4-bit codes eight in a word (8-bit ones: four).  Every
 * tensor's type and shape are checked against rows and columns of the configuration first.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/e4m3.h"
#include "engine/model/model_files.h"
#include "engine/model/quant.h"
#include "engine/model/safetensors.h"

/* ---- parts ----------------------------------------------------------------------------------- */

typedef struct finding {
    model_files *f;
    const quant *q;
    const char *module;
    stored *s;
    err *e;
} finding;

static uint32_t word_at(const uint8_t *p, size_t i)
{
    uint32_t v;
    memcpy(&v, p + 4 * i, sizeof(v));
    return v;
}

static void name_of(const finding *x, const char *suffix, char *out, size_t size)
{
    snprintf(out, size, "%s.%s", x->module, suffix);
}

/* The tensor, if it is there. */
static const st_tensor *look(const finding *x, const char *suffix)
{
    char name[STORED_NAME_MAX + 1];
    name_of(x, suffix, name, sizeof(name));
    return model_files_look(x->f, name);
}

/* Takes it as part i, of exactly this shape; cols 0: of `rows` values in any. */
static err_code take(const finding *x, int i, const char *suffix, st_dtype type, int64_t rows,
                     int64_t cols)
{
    char name[STORED_NAME_MAX + 1];
    const st_tensor *t;
    name_of(x, suffix, name, sizeof(name));
    err_code rc = model_files_take(x->f, name, &t, x->e);
    if (rc) return rc;
    if (t->dtype != type)
        return err_set(x->e, ERR_UNSUPPORTED, "tensor '%s' has dtype %s, not %s", name,
                       st_dtype_name(t->dtype), st_dtype_name(type));
    bool fits =
        cols == 0 ? t->count == (uint64_t)rows
                  : t->ndim == 2 && t->shape[0] == (uint64_t)rows && t->shape[1] == (uint64_t)cols;
    if (!fits)
        return err_set(x->e, ERR_INPUT,
                       "tensor '%s' has other than the %lld x %lld values that its module has",
                       name, (long long)rows, (long long)(cols ? cols : 1));
    x->s->part[i] = (stored_part){t->data, t->bytes};
    return ERR_NONE;
}

/* Scales, of any of the three plain types. */
static err_code take_scales(const finding *x, int i, const char *suffix, int64_t rows, int64_t cols)
{
    const st_tensor *t = look(x, suffix);
    if (t && !st_usable(t->dtype, &x->s->scale_type))
        return err_set(x->e, ERR_UNSUPPORTED, "tensor '%s.%s' has dtype %s", x->module, suffix,
                       st_dtype_name(t->dtype));
    return take(x, i, suffix, t ? t->dtype : ST_F32, rows, cols);
}

/* ---- groups of codes ------------------------------------------------------------------------- */

enum { CODES, ZEROS, SCALES, INDEX };

/* AWQ's words have columns 0, 2, 4, 6, 1, 3, 5, 7: where each of eight stands. */
static const int awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static int code_in(uint32_t word, int bits, int i)
{
    return (int)(word >> bits * i) & ((1 << bits) - 1);
}

/* Codes as they are stored, unsigned, in the order of the row functions. */
static void codes_gptq(const stored *s, int row, uint8_t *out)
{
    int per = 32 / s->bits;
    const int *order = s->src.order;
    for (int k = 0; k < s->src.cols; k++) {
        int at = order ? order[k] : k;
        size_t word = (size_t)(at / per) * (size_t)s->src.rows + (size_t)row;
        out[k] = (uint8_t)code_in(word_at(s->part[CODES].data, word), s->bits, at % per);
    }
}

static void codes_awq(const stored *s, int row, uint8_t *out)
{
    size_t words = (size_t)s->src.rows / 8;
    for (int k = 0; k < s->src.cols; k++) {
        uint32_t word = word_at(s->part[CODES].data, (size_t)k * words + (size_t)row / 8);
        out[k] = (uint8_t)code_in(word, 4, awq_place[row % 8]);
    }
}

static void codes_packed(const stored *s, int row, uint8_t *out)
{
    int per = 32 / s->bits;
    const int *order = s->src.order;
    size_t words = (size_t)(s->src.cols + per - 1) / (size_t)per;
    for (int k = 0; k < s->src.cols; k++) {
        int at = order ? order[k] : k;
        uint32_t word = word_at(s->part[CODES].data, (size_t)row * words + (size_t)(at / per));
        out[k] = (uint8_t)code_in(word, s->bits, at % per);
    }
}

/* The code that stands for zero. */
static int zero_gptq(const stored *s, int row, int g)
{
    int per = 32 / s->bits;
    size_t words = (size_t)s->src.rows / (size_t)per;
    uint32_t word = word_at(s->part[ZEROS].data, (size_t)g * words + (size_t)(row / per));
    return code_in(word, s->bits, row % per) + s->zero_off;
}

static int zero_awq(const stored *s, int row, int g)
{
    size_t words = (size_t)s->src.rows / 8;
    uint32_t word = word_at(s->part[ZEROS].data, (size_t)g * words + (size_t)row / 8);
    return code_in(word, 4, awq_place[row % 8]);
}

static int zero_packed(const stored *s, int row, int g)
{
    int per = 32 / s->bits, groups = s->src.cols / s->src.group;
    if (!s->part[ZEROS].data) return 1 << (s->bits - 1);
    uint32_t word = word_at(s->part[ZEROS].data, (size_t)(row / per) * (size_t)groups + (size_t)g);
    return code_in(word, s->bits, row % per);
}

typedef struct layout {
    void (*codes)(const stored *s, int row, uint8_t *out);
    int (*zero)(const stored *s, int row, int g);
    bool row_first; /* scales are [N][G] */
} layout;

static const layout gptq = {codes_gptq, zero_gptq, false}, awq = {codes_awq, zero_awq, false},
                    packed = {codes_packed, zero_packed, true};

static float scale_of(const stored *s, const layout *l, int row, int g)
{
    size_t groups = (size_t)(s->src.cols / s->src.group), rows = (size_t)s->src.rows;
    size_t at = l->row_first ? (size_t)row * groups + (size_t)g : (size_t)g * rows + (size_t)row;
    return float_at(s->part[SCALES].data, s->scale_type, at);
}

/* W = scale * (code - zero): values and zero are less by the middle, so both stay small. */
static void read_grid(const stored *s, const layout *l, int row, const weight_row *to)
{
    int middle = 1 << (s->bits - 1);
    l->codes(s, row, (uint8_t *)to->codes);
    for (int k = 0; s->bits == 8 && k < s->src.cols; k++)
        to->codes[k] = (int8_t)((uint8_t)to->codes[k] - middle);
    for (int g = 0; g < s->src.cols / s->src.group; g++) {
        to->scales[g] = scale_of(s, l, row, g);
        if (s->src.form == SCALES_ZERO) to->parts[g] = (int16_t)(l->zero(s, row, g) - middle);
    }
}

static void read_gptq(const weight_source *src, int row, const weight_row *to)
{
    read_grid(src->impl, &gptq, row, to);
}

static void read_awq(const weight_source *src, int row, const weight_row *to)
{
    read_grid(src->impl, &awq, row, to);
}

static void read_packed(const weight_source *src, int row, const weight_row *to)
{
    read_grid(src->impl, &packed, row, to);
}

/* Whether any zero is not the middle. */
static bool has_zeros(const stored *s, const layout *l)
{
    for (int g = 0; g < s->src.cols / s->src.group; g++)
        for (int row = 0; row < s->src.rows; row++)
            if (l->zero(s, row, g) != 1 << (s->bits - 1)) return true;
    return false;
}

/* Columns sorted by their group, for an index that says each column's (desc_act): every group has
 * as many. */
static err_code make_order(const finding *x, const char *what)
{
    stored *s = x->s;
    int cols = s->src.cols, group = s->src.group, groups = cols / group;
    bool plain = true;
    int *fill = calloc((size_t)groups, sizeof(*fill)),
        *order = malloc((size_t)cols * sizeof(*order));
    err_code rc = fill && order ? ERR_NONE : err_set(x->e, ERR_NOMEM, "no memory");
    for (int k = 0; k < cols && !rc; k++) {
        uint32_t g = word_at(s->part[INDEX].data, (size_t)k);
        plain &= g == (uint32_t)(k / group);
        if (g >= (uint32_t)groups || fill[g] == group)
            rc = err_set(x->e, ERR_UNSUPPORTED,
                         "tensor '%s.%s': only groups of %d columns each are supported", x->module,
                         what, group);
        else
            order[(int)g * group + fill[g]++] = k;
    }
    free(fill);
    if (rc || plain)
        free(order);
    else
        s->src.order = s->order = order;
    return rc;
}

/* bits and group are set in s: takes the index, if there is one, and fills the source. */
static err_code finish_grid(const finding *x, const layout *l, const char *index,
                            void (*read_row)(const weight_source *, int, const weight_row *))
{
    stored *s = x->s;
    weight_source *src = &s->src;
    err_code rc = ERR_NONE;
    const st_tensor *t = index ? look(x, index) : NULL;
    src->impl = s;
    if (t) rc = take(x, INDEX, index, ST_I32, src->cols, 0);
    /* compressed-tensors' empty index is of -1 alone */
    if (t && !rc && word_at(s->part[INDEX].data, 0) != UINT32_MAX) rc = make_order(x, index);
    if (rc) return rc;
    src->type = s->plain = DT_F32;
    src->bits = s->bits;
    src->least = INT8_MIN; /* of 8 bits */
    src->span = src->group;
    src->scale_type = s->scale_type;
    src->read_row = read_row;
    src->form = has_zeros(s, l) ? SCALES_ZERO : SCALES_OWN;
    for (int i = 0; i < 16; i++) src->table[i] = (int8_t)(i - 8);
    return ERR_NONE;
}

/* The number of columns that share a scale. */
static err_code set_group(const finding *x, int64_t group, int per)
{
    stored *s = x->s;
    if (group < 0) group = s->src.cols;
    if (group == 0 || s->src.cols % group != 0 || s->src.cols % per != 0 || s->src.rows % per != 0)
        return err_set(x->e, ERR_UNSUPPORTED,
                       "tensor '%s': %d x %d values in groups of %lld are not supported", s->name,
                       s->src.rows, s->src.cols, (long long)group);
    s->src.group = (int)group;
    return ERR_NONE;
}

static err_code find_gptq(const finding *x)
{
    stored *s = x->s;
    bool is_awq = x->q->method == QUANT_AWQ;
    int per = 32 / x->q->bits, rows = s->src.rows, cols = s->src.cols;
    s->bits = x->q->bits;
    s->zero_off = x->q->zero_off;
    snprintf(s->format, sizeof(s->format), "%s %d bits", is_awq ? "AWQ" : "GPTQ", s->bits);
    err_code rc = set_group(x, x->q->group, per);
    if (rc) return rc;
    int groups = cols / s->src.group;
    rc = is_awq ? take(x, CODES, "qweight", ST_I32, cols, rows / per)
                : take(x, CODES, "qweight", ST_I32, cols / per, rows);
    if (!rc) rc = take(x, ZEROS, "qzeros", ST_I32, groups, rows / per);
    if (!rc) rc = take_scales(x, SCALES, "scales", groups, rows);
    if (rc) return rc;
    return is_awq ? finish_grid(x, &awq, NULL, read_awq)
                  : finish_grid(x, &gptq, "g_idx", read_gptq);
}

/* Bits and group are what the shapes say. */
static err_code find_packed(const finding *x)
{
    stored *s = x->s;
    int rows = s->src.rows, cols = s->src.cols;
    const st_tensor *t = look(x, "weight_packed"), *scale = look(x, "weight_scale");
    if (!scale || scale->ndim != 2)
        return err_set(x->e, ERR_INPUT, "tensor '%s.weight_scale' is missing, or no matrix",
                       x->module);
    s->bits = t->ndim == 2 && t->shape[1] == ((uint64_t)cols + 3) / 4 ? 8 : 4;
    uint64_t groups = scale->shape[1];
    int per = 32 / s->bits;
    snprintf(s->format, sizeof(s->format), "W%dA16", s->bits);
    err_code rc = groups > (uint64_t)cols ? ERR_INPUT : ERR_NONE;
    if (rc || (uint64_t)cols % groups != 0)
        return err_set(x->e, ERR_UNSUPPORTED, "tensor '%s.weight_scale': %llu groups of %d columns",
                       x->module, (unsigned long long)groups, cols);
    rc = set_group(x, cols / (int64_t)groups, per);
    if (!rc) rc = take(x, CODES, "weight_packed", ST_I32, rows, cols / per);
    if (!rc) rc = take_scales(x, SCALES, "weight_scale", rows, (int64_t)groups);
    if (!rc && look(x, "weight_zero_point"))
        rc = take(x, ZEROS, "weight_zero_point", ST_I32, rows / per, (int64_t)groups);
    return rc ? rc : finish_grid(x, &packed, "weight_g_idx", read_packed);
}

/* ---- int8 ------------------------------------------------------------------------------------ */

static float int8_scale(const stored *s, int row, int8_t *zero)
{
    size_t at = s->part[SCALES].bytes > dtype_bytes(s->scale_type) ? (size_t)row : 0;
    *zero = s->part[ZEROS].data ? (int8_t)s->part[ZEROS].data[at] : 0;
    return float_at(s->part[SCALES].data, s->scale_type, at);
}

static void read_int8(const weight_source *src, int row, const weight_row *to)
{
    const stored *s = src->impl;
    int8_t zero;
    memcpy(to->codes, s->part[CODES].data + (size_t)row * (size_t)src->cols, (size_t)src->cols);
    to->scales[0] = int8_scale(s, row, &zero);
    to->parts[0] = (int16_t)zero;
}

/* One scale, or one a row. */
static int64_t scales_of(const finding *x, const char *suffix)
{
    const st_tensor *t = look(x, suffix);
    return t && t->count == 1 ? 1 : x->s->src.rows;
}

static err_code find_int8(const finding *x)
{
    stored *s = x->s;
    weight_source *src = &s->src;
    int64_t n = scales_of(x, "weight_scale");
    err_code rc = take(x, CODES, "weight", ST_I8, src->rows, src->cols);
    if (!rc) rc = take_scales(x, SCALES, "weight_scale", n, 0);
    if (!rc && look(x, "weight_zero_point")) rc = take(x, ZEROS, "weight_zero_point", ST_I8, n, 0);
    if (rc) return rc;
    snprintf(s->format, sizeof(s->format), "W8A8");
    src->type = s->plain = DT_F32;
    src->group = src->span = src->cols;
    src->bits = 8;
    src->least = INT8_MIN;
    src->scale_type = s->scale_type;
    src->form = s->part[ZEROS].data ? SCALES_ZERO : SCALES_OWN;
    src->read_row = read_int8;
    src->impl = s;
    return ERR_NONE;
}

/* ---- FP8 ------------------------------------------------------------------------------------- */

static void read_fp8(const weight_source *src, int row, const weight_row *to)
{
    const stored *s = src->impl;
    int cols = src->cols, across = s->group ? (cols + s->group - 1) / s->group : 1;
    memcpy(to->codes, s->part[CODES].data + (size_t)row * (size_t)cols, (size_t)cols);
    for (int g = 0; g < cols / src->group; g++) {
        size_t at = s->block_rows ? (size_t)(row / s->block_rows) * (size_t)across : 0;
        if (s->group) at += (size_t)(g * src->group / s->group);
        to->scales[g] = float_at(s->part[SCALES].data, s->scale_type, at);
    }
}

/* Codes that stand for floats, `group` columns of which share a scale; it need not divide them. */
static void take_floats(stored *s, int group, int bits, const float *floats,
                        void (*read_row)(const weight_source *, int, const weight_row *))
{
    weight_source *src = &s->src;
    int a = group, b = src->cols;
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    src->type = src->rounded = s->plain;
    src->group = src->span = a;
    src->bits = bits;
    src->floats = floats;
    src->least = INT8_MIN;
    src->form = SCALES_OWN;
    src->scale_type = DT_F32;
    src->read_row = read_row;
    src->impl = s;
}

static err_code find_fp8(const finding *x)
{
    stored *s = x->s;
    const char *suffix = look(x, "weight_scale_inv") ? "weight_scale_inv" : "weight_scale";
    const st_tensor *t = look(x, suffix);
    int rows = s->src.rows, cols = s->src.cols, high = x->q->block[0], wide = x->q->block[1];
    err_code rc = take(x, CODES, "weight", ST_F8_E4M3, rows, cols);
    if (rc) return rc;
    if (t && t->count == 1) {
        rc = take_scales(x, SCALES, suffix, 1, 0);
    } else if (t && t->count == (uint64_t)rows && (t->ndim == 1 || t->shape[1] == 1) &&
               (high == 0 || high == 1)) {
        s->block_rows = 1;
        rc = take_scales(x, SCALES, suffix, rows, 0);
    } else if (high > 0) {
        s->block_rows = high;
        s->group = wide;
        rc = take_scales(x, SCALES, suffix, (rows + high - 1) / high, (cols + wide - 1) / wide);
    } else {
        rc = err_set(x->e, ERR_INPUT, "tensor '%s.%s' is missing, or no scale of %d rows",
                     x->module, suffix, rows);
    }
    snprintf(s->format, sizeof(s->format), "FP8");
    s->plain = DT_BF16; /* DeepSeek's and compressed-tensors' readers both give that */
    take_floats(s, s->group ? s->group : cols, 8, e4m3_floats(), read_fp8);
    return rc;
}

/* ---- bitsandbytes ---------------------------------------------------------------------------- */

enum { ABSMAX = 1, MAP, NESTED_ABSMAX, NESTED_MAP };

static float absmax_of(const stored *s, size_t block)
{
    if (!s->part[NESTED_ABSMAX].data) return float_at(s->part[ABSMAX].data, DT_F32, block);
    float code = float_at(s->part[NESTED_MAP].data, DT_F32, s->part[ABSMAX].data[block]);
    float scale = float_at(s->part[NESTED_ABSMAX].data, DT_F32, block / (size_t)s->nested);
    float product = code * scale;
    return product + s->offset;
}

static void read_nf4(const weight_source *src, int row, const weight_row *to)
{
    const stored *s = src->impl;
    size_t first = (size_t)row * (size_t)src->cols, group = (size_t)s->group;
    for (size_t k = 0; k < (size_t)src->cols; k++) {
        size_t at = first + k;
        to->codes[k] = (int8_t)(s->part[CODES].data[at / 2] >> (at % 2 ? 0 : 4) & 15);
    }
    for (size_t k = 0; k < (size_t)src->cols; k += (size_t)src->group)
        to->scales[k / (size_t)src->group] = absmax_of(s, (first + k) / group);
}

/* The JSON text that lies beside the codes as bytes: block sizes, the type that it was. */
static err_code read_state(const finding *x, const st_tensor *t, bool *nested)
{
    stored *s = x->s;
    cJSON *j;
    int64_t group = 0, outer = 0;
    double offset = 0;
    const char *type = "";
    err_code rc = json_parse(t->data, (size_t)t->bytes, &json_limits_request, &j, x->e);
    if (rc) return x->e ? err_context(x->e, "tensor '%s'", t->name) : rc;
    rc = json_int(j, "blocksize", 16, 65536, &group, NULL, x->e);
    if (!rc) rc = json_int(j, "nested_blocksize", 1, 65536, &outer, nested, x->e);
    if (!rc) rc = json_num(j, "nested_offset", -1e9, 1e9, &offset, NULL, x->e);
    if (!rc) rc = json_str(j, "dtype", &type, NULL, x->e);
    s->plain = strcmp(type, "bfloat16") == 0  ? DT_BF16
               : strcmp(type, "float16") == 0 ? DT_F16
                                              : DT_F32;
    bool known = s->plain != DT_F32 || strcmp(type, "float32") == 0;
    if (!rc && (group == 0 || !known))
        rc = err_set(x->e, ERR_UNSUPPORTED, "tensor '%s': no block size, or dtype '%.16s'", t->name,
                     type);
    s->group = (int)group;
    s->nested = (int)outer;
    s->offset = (float)offset;
    cJSON_Delete(j);
    return rc;
}

#define NF4_STATE "weight.quant_state.bitsandbytes__nf4"

static err_code find_nf4(const finding *x)
{
    stored *s = x->s;
    char name[STORED_NAME_MAX + 1];
    const st_tensor *t;
    bool nested = false;
    name_of(x, NF4_STATE, name, sizeof(name));
    err_code rc = model_files_take(x->f, name, &t, x->e);
    if (!rc) rc = read_state(x, t, &nested);
    if (rc) return rc;
    int64_t values = (int64_t)s->src.rows * s->src.cols, group = s->group;
    int64_t blocks = (values + group - 1) / group;
    if (values % 2 != 0) return err_set(x->e, ERR_UNSUPPORTED, "tensor '%s' is odd", s->name);
    rc = take(x, CODES, "weight", ST_U8, values / 2, 0);
    if (!rc) rc = take(x, ABSMAX, "weight.absmax", nested ? ST_U8 : ST_F32, blocks, 0);
    if (!rc) rc = take(x, MAP, "weight.quant_map", ST_F32, 16, 0);
    if (!rc && nested)
        rc = take(x, NESTED_ABSMAX, "weight.nested_absmax", ST_F32,
                  (blocks + s->nested - 1) / s->nested, 0);
    if (!rc && nested) rc = take(x, NESTED_MAP, "weight.nested_quant_map", ST_F32, 256, 0);
    snprintf(s->format, sizeof(s->format), "NF4");
    if (rc) return rc;
    for (size_t i = 0; i < 16; i++) s->map[i] = float_at(s->part[MAP].data, DT_F32, i);
    take_floats(s, s->group, 4, s->map, read_nf4);
    return rc;
}

/* ---- MXFP4 ----------------------------------------------------------------------------------- */

static const int8_t twice_e2m1[16] = STORED_TWICE_E2M1;

/* Half of the power of two that a byte stands for; 255 is no number. */
static float half_e8m0(uint8_t b)
{
    return b == 255 ? NAN : ldexpf(1, b - 128);
}

/* Of two columns the first is the lower half of a byte. */
static void read_mxfp4(const weight_source *src, int row, const weight_row *to)
{
    const stored *s = src->impl;
    size_t groups = (size_t)src->cols / 32, at = (size_t)row * s->row_apart;
    const uint8_t *q = s->part[CODES].data + at * groups * 16;
    for (size_t i = 0; i < groups * 16; i++) {
        to->codes[2 * i] = (int8_t)(q[i] & 15);
        to->codes[2 * i + 1] = (int8_t)(q[i] >> 4);
    }
    for (size_t g = 0; g < groups; g++)
        to->scales[g] = half_e8m0(s->part[SCALES].data[at * groups + g]);
}

/* A part of so many bytes for each of a tensor's rows, from the slice's first row on. */
static err_code take_slice(model_files *f, const stored_slice *at, const char *suffix, int groups,
                           int each, int rows, stored *s, stored_part *part, err *e)
{
    char name[STORED_NAME_MAX + 16];
    const st_tensor *t;
    snprintf(name, sizeof(name), "%s%s", s->name, suffix);
    err_code rc = model_files_take(f, name, &t, e);
    if (rc) return rc;
    int ndim = each > 1 ? 4 : 3;
    bool fits = t->dtype == ST_U8 && t->ndim == ndim && t->shape[0] == (uint64_t)at->n_slice &&
                t->shape[1] == (uint64_t)at->whole && t->shape[2] == (uint64_t)groups &&
                (ndim == 3 || t->shape[3] == (uint64_t)each);
    if (!fits)
        return err_set(e, ERR_INPUT, "tensor '%s' is not U8 [%d, %d, %d%s]", name, at->n_slice,
                       at->whole, groups, each > 1 ? ", 16" : "");
    size_t row = (size_t)groups * (size_t)each;
    size_t first = (size_t)at->slice * (size_t)at->whole + (size_t)at->row0;
    *part = (stored_part){(const uint8_t *)t->data + first * row, (uint64_t)rows * row};
    return ERR_NONE;
}

err_code quant_find_slice(model_files *f, const stored_slice *at, int rows, stored *s, bool *found,
                          err *e)
{
    char name[STORED_NAME_MAX + 16];
    weight_source *src = &s->src;
    snprintf(name, sizeof(name), "%s_blocks", s->name);
    *found = model_files_look(f, name) != NULL;
    if (!*found) return ERR_NONE;
    if (src->cols % 32 != 0)
        return err_set(e, ERR_UNSUPPORTED, "tensor '%s': %d columns are not whole blocks of 32",
                       name, src->cols);
    int groups = src->cols / 32;
    err_code rc = take_slice(f, at, "_blocks", groups, 16, rows, s, &s->part[CODES], e);
    if (!rc) rc = take_slice(f, at, "_scales", groups, 1, rows, s, &s->part[SCALES], e);
    if (rc) return rc;
    snprintf(s->format, sizeof(s->format), "MXFP4");
    s->slices = 0;
    s->row_apart = (size_t)at->step;
    s->plain = s->scale_type = DT_BF16;
    src->rows = rows;
    src->type = DT_BF16;
    src->group = src->span = 32;
    src->bits = 4;
    src->scale_type = DT_BF16;
    src->form = SCALES_OWN;
    memcpy(src->table, twice_e2m1, sizeof(src->table));
    src->read_row = read_mxfp4;
    src->impl = s;
    return ERR_NONE;
}

/* ---- which ----------------------------------------------------------------------------------- */

err_code quant_find(model_files *f, const quant *q, const char *module, stored *s, bool *found,
                    err *e)
{
    finding x = {f, q, module, s, e};
    const st_tensor *codes = look(&x, "weight");
    bool is_int8 = codes && codes->dtype == ST_I8, is_fp8 = codes && codes->dtype == ST_F8_E4M3;
    *found = true;
    if ((q->method == QUANT_GPTQ || q->method == QUANT_AWQ) && look(&x, "qweight"))
        return find_gptq(&x);
    if (q->method == QUANT_COMPRESSED && look(&x, "weight_packed")) return find_packed(&x);
    if (q->method == QUANT_COMPRESSED && is_int8) return find_int8(&x);
    if ((q->method == QUANT_COMPRESSED || q->method == QUANT_FP8) && is_fp8) return find_fp8(&x);
    if (q->method == QUANT_BITS && look(&x, NF4_STATE)) return find_nf4(&x);
    *found = false;
    return ERR_NONE;
}
