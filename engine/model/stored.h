/* stored.h -- one matrix or vector as its file has it, in any format; private to engine/model/.
 *
 * Three kinds: plain values; codes with scales, which a kernel may take as they are
 * (weight_source); and keys and values of a latent out of two others (`half`).  Of all
 * stored_values() gives a row's values, exactly as the format's own library has them.
 *
 * Ownership: the files' bytes are borrowed.  A stored must not move once it is filled: src.impl
 *            points to it.
 * Threads:   filled by one; then any thread reads.
 */
#ifndef ENGINE_MODEL_STORED_H
#define ENGINE_MODEL_STORED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/weight_source.h"

enum { STORED_PARTS = 6, STORED_NAME_MAX = 127, STORED_FORMAT_MAX = 24 };

typedef struct stored_part {
    const uint8_t *data; /* any alignment; NULL: not there */
    uint64_t bytes;
} stored_part;

typedef struct stored stored;

/* One matrix among those of a tensor of three dimensions: engine/model/model_files.h. */
typedef struct stored_slice {
    int slice, n_slice, whole, row0, step;
    bool across;
} stored_slice;

/* Heads of values as llama.cpp's files have them: the first of each of `groups` groups, then the
 * second of each.  Here each group's `each` heads of `size` stand together, behind `first`
 * others. */
typedef struct stored_tiles {
    int groups, each, size, first; /* groups 0: they stand as they do here */
} stored_tiles;

/* Rows of two matrices, group by group: queries and keys of the one, its values, the other's gates.
 * Of `keys` rows each, and of `values` each, for a group; groups 0: they are no such. */
typedef struct stored_joined {
    int groups, keys, values;
} stored_joined;

/* Rows that a module shares with others: of its `whole` rows those from `first` on, `each` of them
 * together, `apart` from the next ones; apart 0: all together.  across: it has a column for each
 * row.  whole 0: the module is its own. */
typedef struct stored_rows {
    int whole, first, each, apart;
    bool across;
} stored_rows;

struct stored {
    char name[STORED_NAME_MAX + 1]; /* in the file, for messages */
    char format[STORED_FORMAT_MAX]; /* "Q4_K", "GPTQ 4 bits", "BF16" */
    weight_source src;              /* rows, cols; read_row NULL: plain */
    dtype plain;                    /* what holds its values exactly */
    int slices;                     /* that the tensor has, of which this is one; 0: no such */
    bool vector;                    /* one row; `turned` goes for its columns */
    stored_part part[STORED_PARTS]; /* what it is made of; a format's own order */
    int turned;                     /* head length where rows stand in pairs, else 0 */
    stored_tiles tiled_rows;        /* as `turned`; not both */
    stored_tiles tiled_cols;        /* of columns */
    stored_rows cut;                /* apart 0: rows stand together; of a vector, its columns */
    bool decay;                     /* the file has -exp(v) of each value v */
    int group, bits, zero_off;      /* of the format's own reader */
    int block_rows;                 /* FP8: rows that share a scale */
    int nested;                     /* bitsandbytes: scales that share a scale, */
    float offset;                   /* and what is added to them; */
    float map[16];                  /* what its codes stand for */
    dtype scale_type;               /* of scales that are plain values */
    int *order;                     /* owned: src.order, made from an index of groups */
    const void *values;             /* plain values, row-major, any alignment; else NULL */
    size_t row_apart, col_apart;    /* values stand so many apart; 0: row-major, nothing between */
    /* Owned, or NULL: [2], of each head its keys, a row for each value of the latent, and its
     * values.  Rows of s are the keys of the first head, its values, the keys of the next.  Or see
     * stored_joined. */
    stored *half;
    stored_joined joined;
};

/* Whether what the files have is codes, not values. */
static inline bool stored_coded(const stored *s)
{
    return s->half ? !s->half[0].values || !s->half[1].values : !s->values;
}

/* What the codes of four bits of MXFP4 stand for, twice: a sign, two bits of exponent, one of
 * fraction. */
#define STORED_TWICE_E2M1                                       \
    {                                                           \
        0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 \
    }

static inline int stored_tile(const stored_tiles *t, int i)
{
    if (t->groups == 0 || i < t->first) return i;
    int head = (i - t->first) / t->size, at = (i - t->first) % t->size;
    return t->first + (head % t->each * t->groups + head / t->each) * t->size + at;
}

/* Where row i of those that a module shares stands in it. */
static inline int stored_cut(const stored_rows *c, int i)
{
    return c->apart ? c->first + i / c->each * c->apart + i % c->each : i;
}

/* The file's row of row `row`: llama.cpp's files have the two halves of each of a Llama's heads as
 * pairs. */
static inline int stored_row(const stored *s, int row)
{
    if (s->cut.apart) return s->vector ? row : stored_cut(&s->cut, row);
    if (!s->turned) return stored_tile(&s->tiled_rows, row);
    int head = row / s->turned, at = row % s->turned, half = s->turned / 2;
    return head * s->turned + 2 * (at % half) + at / half;
}

/* Bytes in the files. */
size_t stored_bytes(const stored *s);

/* Whether the plain values lie in the file as a backend takes them. */
bool stored_in_place(const stored *s);

/* Rows [from, to) as `type` to out [to - from][cols].  False: no memory. */
bool stored_values(const stored *s, int from, int to, dtype type, void *out);

/* One row as F32 to out [cols], with `room` of stored_room() bytes, aligned for a float; of what
 * has no `half`. */
size_t stored_room(const stored *s);
void stored_row_values(const stored *s, int row, void *room, float *out);

/* Hints to the kernel about a mapped file's pages: soon wanted; no longer wanted. */
void stored_ahead(const stored *s);
void stored_forget(const stored *s);

/* Into `to`, which stays where it is; `from` has nothing of its own left. */
void stored_move(stored *to, stored *from);

/* Frees its order and halves, not the file's bytes; a zeroed one is fine. */
void stored_clear(stored *s);

/* A tensor of a GGUF for s->src.rows and cols; false: its type is none that is read. */
bool stored_take_ggml(stored *s, int type, const uint8_t *data, uint64_t bytes);

#endif
