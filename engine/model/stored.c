/* stored.c -- rows of any format as plain values.
 *
 * A tensor is read a row at a time, in one of three ways:
 *
 *     plain     values in a row's place; or turned (columns apart), tiled, cut, or as logarithms
 *     packed    read_row() of its format gives codes and scales; src->order undoes a permutation
 *     composed  of two others: `half` keys and values of a latent, `joined` rows in turn by group
 *
 * Keys of a latent lie across (a row of the file is a column of the matrix), so read_halves()
 * reads each of their rows once for all rows of the result that it has a value of.
 *
 * Memory: a line of floats and one row of the format for each call, so a tensor larger than
 * memory can be read. Pages: stored_ahead() asks for those that a tensor touches;
 * stored_forget() gives back those that are its alone, since a neighbour may still be read.
 *
 * Threads: any; each call has scratch of its own.
 */
#include "engine/model/stored.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/halves.h"

size_t stored_bytes(const stored *s)
{
    size_t sum = 0;
    for (int i = 0; i < STORED_PARTS; i++) sum += (size_t)s->part[i].bytes;
    return sum;
}

bool stored_in_place(const stored *s)
{
    return s->values && !s->turned && !s->tiled_rows.groups && !s->tiled_cols.groups &&
           !s->cut.apart && s->col_apart == 0 && (uintptr_t)s->values % dtype_bytes(s->plain) == 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void read_plain(const stored *s, int row, float *out)
{
    size_t cols = (size_t)s->src.cols, apart = s->col_apart ? s->col_apart : 1;
    size_t first = (size_t)stored_row(s, row) * (s->col_apart ? s->row_apart : cols);
    for (size_t i = 0; i < cols; i++) {
        size_t col = (size_t)stored_tile(&s->tiled_cols, (int)i);
        if (s->vector) col = (size_t)stored_cut(&s->cut, (int)col);
        out[i] = float_at(s->values, s->plain, first + col * apart);
        if (s->decay) out[i] = (float)log(-(double)out[i]);
    }
}

size_t stored_room(const stored *s)
{
    return s->src.read_row ? weight_row_bytes(&s->src) : 0;
}

void stored_row_values(const stored *s, int row, void *room, float *out)
{
    const weight_source *src = &s->src;
    if (s->values) {
        read_plain(s, row, out);
    } else {
        weight_row w = weight_row_place(src, room);
        src->read_row(src, row, &w);
        for (int k = 0; k < src->cols; k++)
            out[src->order ? src->order[k] : k] = weight_row_value(src, &w, k);
    }
}

static void put_row(const float *row, int cols, dtype type, void *out)
{
    uint16_t *half = out;
    if (type == DT_F32) memcpy(out, row, (size_t)cols * sizeof(*row));
    for (int i = 0; i < cols && type == DT_BF16; i++) half[i] = bf16_from_f32(row[i]);
    for (int i = 0; i < cols && type == DT_F16; i++) half[i] = f16_from_f32(row[i]);
}

/* Rows [from, to) of keys and values, to `line` [to - from][cols]; the keys lie across. */
static void read_halves(const stored *s, int from, int to, void *room, float *key, float *line)
{
    const stored *keys = &s->half[0], *values = &s->half[1];
    int cols = s->src.cols, nope = keys->src.cols;
    int heads = keys->src.rows / cols, each = s->src.rows / heads;
    for (int row = from; row < to; row++) {
        int head = row / each, at = row % each - nope;
        if (at >= 0)
            stored_row_values(values, head * (each - nope) + at, room,
                              line + (size_t)(row - from) * (size_t)cols);
    }
    for (int head = from / each; head * each < to; head++) {
        int first = head * each < from ? from : head * each;
        int last = head * each + nope < to ? head * each + nope : to;
        for (int k = 0; k < cols && first < last; k++) {
            stored_row_values(keys, head * cols + k, room, key);
            for (int row = first; row < last; row++)
                line[(size_t)(row - from) * (size_t)cols + (size_t)k] = key[row - head * each];
        }
    }
}

static bool halves_values(const stored *s, int from, int to, dtype type, void *out)
{
    size_t cols = (size_t)s->src.cols, nope = (size_t)s->half[0].src.cols;
    size_t n = (size_t)(to - from) * cols, row = cols * dtype_bytes(type);
    size_t more = stored_room(&s->half[0]) + stored_room(&s->half[1]);
    float *line = malloc((n + nope) * sizeof(*line) + more);
    if (!line) return false;
    read_halves(s, from, to, line + n + nope, line + n, line);
    for (int i = 0; i < to - from; i++)
        put_row(line + (size_t)i * cols, s->src.cols, type, (uint8_t *)out + (size_t)i * row);
    free(line);
    return true;
}

/* Reads row `row` of the joined matrix, in which the rows of two matrices alternate by group. */
static void read_joined(const stored *s, int row, void *room, float *out)
{
    const stored_joined *j = &s->joined;
    int each = 2 * (j->keys + j->values), group = row / each, at = row % each;
    int part = at < j->keys ? 0 : at < 2 * j->keys ? 1 : at < 2 * j->keys + j->values ? 2 : 3;
    const int before[] = {0, j->keys, 2 * j->keys, 2 * j->keys + j->values};
    const int first[] = {0, j->groups * j->keys, 2 * j->groups * j->keys, 0};
    int size = part < 2 ? j->keys : j->values;
    stored_row_values(&s->half[part == 3], first[part] + group * size + at - before[part], room,
                      out);
}

static bool joined_values(const stored *s, int from, int to, dtype type, void *out)
{
    size_t cols = (size_t)s->src.cols, more = stored_room(&s->half[0]) + stored_room(&s->half[1]);
    float *line = malloc(cols * sizeof(*line) + more);
    if (!line) return false;
    for (int row = from; row < to; row++) {
        read_joined(s, row, line + cols, line);
        put_row(line, s->src.cols, type,
                (uint8_t *)out + (size_t)(row - from) * cols * dtype_bytes(type));
    }
    free(line);
    return true;
}

bool stored_values(const stored *s, int from, int to, dtype type, void *out)
{
    if (s->joined.groups) return joined_values(s, from, to, type, out);
    if (s->half) return halves_values(s, from, to, type, out);
    size_t cols = (size_t)s->src.cols;
    float *room = malloc(cols * sizeof(*room) + stored_room(s));
    if (!room) return false;
    for (int row = from; row < to; row++) {
        stored_row_values(s, row, room + cols, room);
        put_row(room, s->src.cols, type,
                (uint8_t *)out + (size_t)(row - from) * cols * dtype_bytes(type));
    }
    free(room);
    return true;
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* The pages that a part touches, or those that are its own alone. */
static void advise(const stored *s, bool own, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < STORED_PARTS; i++) {
        uintptr_t from = (uintptr_t)s->part[i].data, to = from + s->part[i].bytes;
        if (!from) continue;
        from = (from + (own ? page - 1 : 0)) / page * page;
        if (own) to = to / page * page;
        if (from < to) (void)madvise((void *)from, to - from, advice);
    }
}

void stored_ahead(const stored *s)
{
    advise(s, false, MADV_WILLNEED);
}

void stored_forget(const stored *s)
{
    advise(s, true, MADV_DONTNEED);
}

void stored_move(stored *to, stored *from)
{
    *to = *from;
    if (from->src.impl == from) to->src.impl = to;
    if (from->src.floats == from->map) to->src.floats = to->map;
    from->order = NULL;
    from->half = NULL;
}

void stored_clear(stored *s)
{
    for (int i = 0; s->half && i < 2; i++) stored_clear(&s->half[i]);
    free(s->half);
    s->half = NULL;
    free(s->order);
    s->order = NULL;
}
