/* quant.c -- packs quantised weights, and reads them back as floats (quant.h has the layout).
 *
 *   file's row          codes, one per byte; scales, mins, zeros
 *     -> stage          codes of a panel (PANEL rows), in the order [k / 4][PANEL][4]
 *     -> panel          head (scales ...), then blocks whose bits are split into planes
 *
 * Threads of the pool take panels by an atomic counter; each has a stage of its own, so memory is
 * bounded by one panel per thread.  put_codes() handles 16 codes at a time: 4 bits as halves of
 * bytes, two bits by add_two(), single bits by a multiplication that collects the lowest bits of 8
 * bytes.
 *
 * Codes that stand for floats (FP8 E4M3, FP4 and other tables) take pack_coded() instead: they stay
 * codes, and kernels convert them to bf16 (quant.h).  E4M3's exponent is moved to F16's place,
 * which is 2^8 too small; the scale corrects it.
 *
 * quant_panel_f32() is the inverse of both, for tests and for layers that need plain values.
 */
#include <assert.h>
#include <math.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/halves.h"
#include "engine/base/round.h"
#include "engine/cpu/linear.h"

/* Codes of 4 bits: values less `least`, or indices of a table. */
static void table_of(quant_form *f, const weight_source *src)
{
    if (f->bits != 4) return;
    f->least = (int)src->table[0];
    for (int i = 0; i < 16; i++) f->mapped |= src->table[i] != src->table[0] + i;
    if (f->mapped) f->least = INT8_MIN;
    for (int i = 0; i < 16; i++) f->table[i] = (uint8_t)(src->table[i] - f->least);
}

quant_form quant_form_of(const weight_source *src, size_t *panel_bytes, size_t *tail_bytes)
{
    assert(src->group > 0 && src->span % src->group == 0 && src->cols % src->span == 0);
    quant_form f = {.bits = src->bits,
                    .k = src->group % QUANT_K == 0 ? QUANT_K : QUANT_HALF,
                    .planes = src->rounding == X_INT16 ? 2 : 1,
                    .outliers = src->rounding == X_OUTLIERS && !src->order,
                    .group = src->group,
                    .span = src->span,
                    .least = src->least,
                    .form = src->form,
                    .scale_type = src->scale_type,
                    .has_min = src->has_min && src->form != SCALES_ZERO};
    table_of(&f, src);
    size_t parts = (size_t)(f.span / f.group) * PANEL;
    f.parts_at = (size_t)PANEL * dtype_bytes(f.scale_type) * (f.has_min ? 2 : 1);
    f.min_parts = parts;
    f.codes_at = f.parts_at;
    if (f.form == SCALES_ZERO) f.codes_at += PANEL * sizeof(int16_t);
    if (f.form == SCALES_NESTED) f.codes_at += f.has_min ? 2 * parts : parts;
    f.codes_at = round_up_size(f.codes_at, 64);
    f.block_bytes = (size_t)f.k * PANEL * (size_t)f.bits / 8;
    f.run_bytes = f.codes_at + (size_t)(f.span / f.k) * f.block_bytes;
    assert(f.span % f.k == 0 && f.codes_at % 64 == 0);
    *panel_bytes = f.run_bytes * (size_t)(src->cols / f.span);
    *tail_bytes = src->order ? round_up_size((size_t)src->cols * sizeof(int), 64) : 0;
    return f;
}

coded_form coded_form_of(const weight_source *src, bool tiles, size_t *panel_bytes)
{
    assert(src->group > 0 && src->cols % src->group == 0 && (src->bits == 4 || src->bits == 8));
    coded_form f = {
        .bits = src->bits, .group = src->group, .rounded = src->rounded, .tiles = tiles};
    if (f.bits == 4) memcpy(f.table, src->floats, sizeof(f.table));
    f.block_bytes = (size_t)QUANT_K * PANEL * (size_t)f.bits / 8;
    f.run_bytes =
        PANEL * sizeof(float) + (size_t)((f.group + QUANT_K - 1) / QUANT_K) * f.block_bytes;
    *panel_bytes = f.run_bytes * (size_t)(src->cols / f.group);
    return f;
}

size_t quant_rows_place(quant_rows *q, void *mem, int rows, int cols)
{
    assert(rows >= 0 && cols > 0);
    int k_pad = round_up(cols, QUANT_K);
    size_t n = (size_t)rows * (size_t)k_pad;
    char *at = mem;
    if (at) {
        q->rows = rows;
        q->k_pad = k_pad;
        q->code = (int8_t *)at;
        q->scale = (float *)(void *)(at + n);
        q->sums = (int32_t *)(void *)(at + n + n / QUANT_HALF * sizeof(float));
    }
    return round_up_size(n + n / QUANT_HALF * (sizeof(float) + sizeof(int32_t)), 64);
}

void quant_row_zero(const quant_rows *to, int row)
{
    assert(row >= 0 && row < to->rows);
    const quant_side side = quant_side_of(to, row);
    const size_t some = (size_t)side.some, end = (size_t)to->k_pad;
    for (size_t k = 0; to->tiled && k < end; k += QUANT_K)
        memset(to->code + quant_tile_of(to, row) + k * QUANT_TILE, 0, QUANT_K);
    for (size_t k = 0; !to->tiled && k < end; k += QUANT_QUAD)
        memset(to->code + side.code + k * some, 0, QUANT_QUAD);
    for (size_t k = 0; k < end; k += QUANT_HALF) {
        to->scale[side.scale + k / QUANT_HALF * some] = 0;
        to->sums[side.sums + k / QUANT_HALF * some] = 0;
    }
}

static void put_scale(const quant_form *f, char *head, int which, int col, float v)
{
    char *at = head + (size_t)(which * PANEL + col) * dtype_bytes(f->scale_type);
    uint16_t h = f->scale_type == DT_BF16 ? bf16_from_f32(v) : f16_from_f32(v);
    memcpy(at, f->scale_type == DT_F32 ? (const void *)&v : &h, dtype_bytes(f->scale_type));
}

/* The index of a block's code for column `col` and its k-th number. */
static size_t place_of(int col, int k)
{
    return (size_t)(k / QUANT_QUAD * PANEL + col) * QUANT_QUAD + (size_t)(k % QUANT_QUAD);
}

/* ----------------------------------------------------------------------------- pack -- */

typedef struct {
    cpu_weight *w;
    const weight_source *src;
    atomic_int next;
    atomic_bool failed, wrong; /* no memory; a code without a value */
} quant_job;

/* Head of run `run` of column `col`. */
static void put_head(const quant_form *f, char *head, const weight_row *r, int run, int col)
{
    int n = f->span / f->group;
    int8_t *parts = (int8_t *)head + f->parts_at + col;
    put_scale(f, head, 0, col, r->scales[run]);
    if (f->has_min) put_scale(f, head, 1, col, r->mins[run]);
    if (f->form == SCALES_ZERO)
        memcpy(head + f->parts_at + (size_t)col * sizeof(int16_t), &r->parts[run], sizeof(int16_t));
    for (int g = 0; f->form == SCALES_NESTED && g < n; g++) {
        parts[g * PANEL] = (int8_t)r->parts[run * n + g];
        if (f->has_min) parts[(n + g) * PANEL] = (int8_t)r->min_parts[run * n + g];
    }
}

/* Codes that are packed at a time. */
typedef uint8_t some_codes __attribute__((vector_size(16)));
enum { SOME = sizeof(some_codes) };

static some_codes codes_at(const void *p)
{
    some_codes v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static void add_two(uint8_t *to, const uint8_t *code, size_t n, int from)
{
    for (size_t i = 0; i < n; i += 256) {
        for (size_t j = 0; j < 64; j += SOME) {
            const uint8_t *c = code + i + j;
            some_codes v = (codes_at(c) >> from & 3) | (codes_at(c + 64) >> from & 3) << 2 |
                           (codes_at(c + 128) >> from & 3) << 4 |
                           (codes_at(c + 192) >> from & 3) << 6;
            memcpy(to + i / 4 + j, &v, sizeof(v));
        }
    }
}

/* n codes, each in a byte, into their planes. */
static void put_codes(uint8_t *to, const uint8_t *code, size_t n, int bits)
{
    assert(n % 256 == 0 && bits >= 2 && bits <= 8 && bits != 7);
    if (bits == 8) {
        memcpy(to, code, n);
        return;
    }
    for (size_t i = 0; bits >= 4 && i < n / 2; i += SOME) {
        some_codes v = (codes_at(code + i) & 15) | codes_at(code + n / 2 + i) << 4;
        memcpy(to + i, &v, sizeof(v));
    }
    if (bits == 6) add_two(to + n / 2, code, n, 4);
    if (bits < 4) add_two(to, code, n, 0);
    if (bits != 3 && bits != 5) return;
    uint8_t *one = to + n * (size_t)(bits - 1) / 8;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v;
        memcpy(&v, code + i, sizeof(v));
        /* The product puts the bit of byte j at 56 + j; no two of its terms meet. */
        one[i / 8] = (uint8_t)((v >> (bits - 1) & 0x0101010101010101) * 0x0102040810204080 >> 56);
    }
}

/* A thread's buffers: a row of the source, and the codes of a panel. */
typedef struct {
    weight_row row;
    uint8_t *codes; /* [cols / 4][PANEL][4] */
    void *mem;
} quant_stage;

static bool stage_begin(quant_stage *st, const weight_source *src)
{
    size_t row = round_up_size(weight_row_bytes(src), 64);
    st->mem = malloc(row + (size_t)src->cols * PANEL);
    if (!st->mem) return false;
    st->row = weight_row_place(src, st->mem);
    st->codes = (uint8_t *)st->mem + row;
    return true;
}

/* Adds one row of the matrix, which is a column of the panel. */
static void stage_column(quant_stage *st, const quant_form *f, const weight_source *src,
                         char *panel, int row)
{
    int col = row % PANEL;
    const uint8_t least = (uint8_t)(f->bits == 4 ? 0 : f->least);
    src->read_row(src, row, &st->row);
    for (int k = 0; k < src->cols; k += SOME) {
        some_codes v = codes_at(st->row.codes + k) - least;
        for (int j = 0; j < SOME; j += QUANT_QUAD)
            memcpy(st->codes + place_of(col, k + j), (const char *)&v + j, QUANT_QUAD);
    }
    for (int run = 0; run < src->cols / f->span; run++)
        put_head(f, panel + (size_t)run * f->run_bytes, &st->row, run, col);
}

static void pack_quant(quant_stage *st, const quant_job *job, char *panel, int p)
{
    const weight_source *src = job->src;
    const quant_form *f = &job->w->quant;
    if (src->rows < (p + 1) * PANEL) memset(st->codes, 0, (size_t)src->cols * PANEL);
    for (int run = 0; run < src->cols / f->span; run++)
        memset(panel + (size_t)run * f->run_bytes, 0, f->codes_at);
    for (int row = p * PANEL; row < (p + 1) * PANEL && row < src->rows; row++)
        stage_column(st, f, src, panel, row);
    for (int k = 0; k < src->cols; k += f->k) {
        char *run = panel + (size_t)(k / f->span) * f->run_bytes;
        put_codes((uint8_t *)run + f->codes_at + (size_t)(k % f->span / f->k) * f->block_bytes,
                  st->codes + (size_t)k * PANEL, (size_t)f->k * PANEL, f->bits);
    }
}

/* Below 2^111 a float can be rounded to bf16 by a sum (coded_bf16()). */
static const float SCALE_MAX = 0x1p90F;

/* The scale of a code: E4M3 codes moved to F16's place are 2^8 too small. */
static float coded_scale(const coded_form *f, float scale)
{
    return f->bits == 8 ? scale * 0x1p8F : scale;
}

/* The line of a block's k-th number, and its index there. */
static int line_of(const coded_form *f, int col, int k, int *at)
{
    *at = f->tiles ? col % 16 * 2 + k % 2 : col;
    return f->tiles ? col / 16 * 16 + k / 2 : k;
}

static void pack_coded(quant_stage *st, quant_job *job, char *panel, int p)
{
    const weight_source *src = job->src;
    const coded_form *f = &job->w->coded;
    for (int row = p * PANEL; row < (p + 1) * PANEL && row < src->rows; row++) {
        src->read_row(src, row, &st->row);
        for (int k = 0; k < src->cols; k++) {
            int at, in = k % f->group, line = line_of(f, row % PANEL, in % QUANT_K, &at);
            uint8_t code = (uint8_t)st->row.codes[k];
            char *run = panel + (size_t)(k / f->group) * f->run_bytes;
            uint8_t *codes =
                (uint8_t *)run + PANEL * sizeof(float) + (size_t)(in / QUANT_K) * f->block_bytes;
            float scale = coded_scale(f, st->row.scales[k / f->group]);
            if (in == 0) memcpy(run + (size_t)(row % PANEL) * sizeof(scale), &scale, sizeof(scale));
            if (!(fabsf(scale) < SCALE_MAX) || (f->bits == 8 && (code & 127) == 127))
                atomic_store(&job->wrong, true);
            if (f->bits == 8)
                codes[line * CODED_LINE + at] = code;
            else
                codes[(line * CODED_LINE + at % 16 * 2) / 2] |=
                    (uint8_t)((code & 15) << (at < 16 ? 0 : 4));
        }
    }
}

static void quant_thread(void *arg, int thread)
{
    (void)thread;
    quant_job *job = arg;
    quant_stage st;
    if (!stage_begin(&st, job->src)) {
        atomic_store(&job->failed, true);
        return;
    }
    for (int p; (p = atomic_fetch_add(&job->next, 1)) < job->w->n_panel;) {
        char *panel = (char *)job->w->data + (size_t)p * job->w->panel_bytes;
        if (job->src->floats) {
            memset(panel, 0, job->w->panel_bytes);
            pack_coded(&st, job, panel, p);
        } else {
            pack_quant(&st, job, panel, p);
        }
    }
    free(st.mem);
}

bool quant_order_ok(const int *order, int cols)
{
    for (int k = 0; k < cols; k++) {
        if (order[k] < 0 || order[k] >= cols) return false;
    }
    return true;
}

err_code quant_pack(cpu_weight *w, const weight_source *src, thread_pool *pool, err *e)
{
    quant_job job = {.w = w, .src = src};
    if (src->order && !quant_order_ok(src->order, src->cols))
        return err_set(e, ERR_INPUT, "a quantised matrix names a column that it does not have");
    if (src->order)
        memcpy((char *)w->data + w->panel_bytes * (size_t)w->n_panel, src->order,
               (size_t)src->cols * sizeof(*src->order));
    if (pool)
        pool_run(pool, quant_thread, &job);
    else
        quant_thread(&job, 0);
    if (atomic_load(&job.wrong))
        return err_set(e, ERR_INPUT,
                       "a quantised matrix has values or scales that are not numbers");
    return atomic_load(&job.failed) ? err_set(e, ERR_NOMEM, "no memory to pack a matrix")
                                    : ERR_NONE;
}

/* ------------------------------------------------------------------------- as floats -- */

/* Scale (0) or min (1) of column `col`, number g of a run's groups. */
static float scale_at(const quant_form *f, const char *head, int which, int col, int g)
{
    int n = f->span / f->group;
    float v = float_at(head, f->scale_type, (size_t)(which * PANEL + col));
    if (f->form != SCALES_NESTED) return v;
    return v * (float)((const int8_t *)head)[f->parts_at + (size_t)((which * n + g) * PANEL + col)];
}

static int zero_at(const quant_form *f, const char *head, int col)
{
    int16_t zero = 0;
    if (f->form == SCALES_ZERO)
        memcpy(&zero, head + f->parts_at + (size_t)col * sizeof(zero), sizeof(zero));
    return zero;
}

static int value_at(const quant_form *f, const char *block, int col, int k)
{
    size_t n = (size_t)f->k * PANEL;
    int code = quant_code((const uint8_t *)block, place_of(col, k), n, f->bits);
    return (f->mapped ? f->table[code] : code) + f->least;
}

/* Value k of column `col` of a panel of codes that stand for floats. */
static float coded_at(const coded_form *f, const char *panel, int col, int k)
{
    const char *run = panel + (size_t)(k / f->group) * f->run_bytes;
    int at, in = k % f->group, line = line_of(f, col, in % QUANT_K, &at);
    const uint8_t *codes =
        (const uint8_t *)run + PANEL * sizeof(float) + (size_t)(in / QUANT_K) * f->block_bytes;
    int code = f->bits == 8
                   ? codes[line * CODED_LINE + at]
                   : codes[(line * CODED_LINE + at % 16 * 2) / 2] >> (at < 16 ? 0 : 4) & 15;
    float value = f->bits == 8 ? f16_to_f32((uint16_t)((code & 0x80) << 8 | (code & 0x7F) << 7))
                               : f->table[code];
    return float_rounded(value * float_at(run, DT_F32, (size_t)col), f->rounded);
}

void quant_panel_f32(float *out, const cpu_weight *w, int p)
{
    assert(p >= 0 && p < w->n_panel);
    const quant_form *f = &w->quant;
    const char *panel = (const char *)w->data + (size_t)p * w->panel_bytes;
    for (int i = 0; w->coded.bits && i < w->head.cols * PANEL; i++)
        out[i] = coded_at(&w->coded, panel, i % PANEL, i / PANEL);
    for (int k = 0; !w->coded.bits && k < w->head.cols; k++) {
        const char *head = panel + (size_t)(k / f->span) * f->run_bytes;
        const char *block = head + f->codes_at + (size_t)(k % f->span / f->k) * f->block_bytes;
        float *to = out + (size_t)(f->order ? f->order[k] : k) * PANEL;
        for (int j = 0, g = k % f->span / f->group; j < PANEL; j++) {
            float min = f->has_min ? scale_at(f, head, 1, j, g) : 0;
            int value = value_at(f, block, j, k % f->k) - zero_at(f, head, j);
            to[j] = scale_at(f, head, 0, j, g) * (float)value + min;
        }
    }
}
