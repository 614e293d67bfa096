/* packed_inside.h -- the form of a file of packed weights, for the files that read and write it
 * (packed.c, packed_write.c); private to engine/model/.
 *
 * Numbers lie as this machine has them: the file never leaves it. See packed.h for the parts.
 */
#ifndef ENGINE_MODEL_PACKED_INSIDE_H
#define ENGINE_MODEL_PACKED_INSIDE_H

#include "engine/model/packed.h"

enum {
    PACKED_VERSION = 2,
    PACKED_ALIGN = 4096,
    PACKED_TABLE_AT = PACKED_ALIGN,
    PACKED_DATA_AT = 2 << 20, /* the data may lie on huge pages, in the file as in memory */
    PACKED_PIECE = 8 << 20,   /* bytes that are read, written or summed at once */
    PACKED_PATH_BYTES = 4096,
};

typedef struct packed_header {
    char magic[8];
    uint32_t version, n;
    uint64_t key, bytes; /* of the whole file */
    uint64_t notes[PACKED_NOTES];
    uint64_t table; /* fingerprint of the table */
    uint64_t check; /* fingerprint of the fields above */
} packed_header;

/* One row of the table, one for each matrix. */
typedef struct packed_row {
    uint64_t bytes, sum; /* size and fingerprint of the matrix */
} packed_row;

enum { PACKED_ROWS_MAX = (PACKED_DATA_AT - PACKED_TABLE_AT) / sizeof(packed_row) };

/* Where each matrix lies, into at[plan->n], in bytes of the file; the result is the length of the
 * file.  The sizes are those of what is in memory, or will be: their sum does not overflow. */
uint64_t packed_lay_out(const packed_plan *plan, size_t *at);

/* The fingerprint of n bytes. */
uint64_t packed_sum_of(const void *data, size_t n);

/* What h->check must be. */
uint64_t packed_check_of(const packed_header *h);

/* The header of the plan's file of that many bytes; its notes and both fingerprints are still 0. */
packed_header packed_header_of(const packed_plan *plan, uint64_t bytes);

/* "<dir>/<key in 16 hexadecimal digits>.<suffix>" into out[PACKED_PATH_BYTES]; suffix is "weights",
 * or "tmp" while it is written.  False: it is too long. */
bool packed_path_of(char *out, const char *dir, uint64_t key, const char *suffix);

/* Whether packed_path_of() makes a file of this name: no other may be read or removed. */
bool packed_is_ours(const char *name);

#endif
