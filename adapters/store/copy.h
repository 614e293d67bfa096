/* copy.h -- an adapter in host memory: as its file has it, as the device has
 * it, or with A and B in int8.
 *
 * The middle tier: what it holds needs no disk, no hashing and no parsing to be packed again.  As
 * the device has it (load.c makes that of most) means chunk after chunk of the arena: going up is
 * a plain copy.  In int8 each COPY_GROUP consecutive values share a scale: an element is off by
 * at most 1/254 of the largest of its group (symmetric rounding to 127 steps, as in LLM.int8's
 * vector-wise scheme), at 1.06 bytes each.  All other tensors stay as they are.  Where int8 is
 * on, an adapter is always packed from its copy, so that the same seed gives the same text
 * wherever the adapter came from.
 *
 * Threads: immutable once made; making, opening and freeing on any thread.
 */
#ifndef ADAPTERS_STORE_COPY_H
#define ADAPTERS_STORE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "adapters/format/layout.h"
#include "engine/model/model.h"

enum { COPY_GROUP = 64 };

typedef struct adapter_copy {
    adapter_layout layout; /* of data; with int8: of the image that copy_open() makes */
    uint8_t *data;
    uint64_t bytes;
    uint64_t image_bytes;      /* int8; 0: data is the image */
    bool mapped;               /* data is a file's, in the system's memory */
    size_t chunk_bytes;        /* data is what stood in the chunks, the last one cut short; 0: no */
    struct adapter_copy *next; /* for whoever frees several */
} adapter_copy;

/* Takes over file (malloced, `len` bytes, checked) and the layout, also when it fails; the layout
 * is zeroed.  NULL: out of memory, or a tensor that ends beyond the file. */
adapter_copy *copy_make(adapter_layout *layout, uint8_t *file, uint64_t len, bool int8);
/* The same of an open file that was checked, without a copy of its own: it must not change any
 * more.  `fd` stays the caller's. */
adapter_copy *copy_map(adapter_layout *layout, int fd, uint64_t len);
void copy_free(adapter_copy *c); /* NULL: nothing */

/* The file's image, in which copy->layout tells where each tensor lies; *spare is the caller's to
 * free (NULL where the copy itself is the image).  NULL: out of memory. */
const uint8_t *copy_open(const adapter_copy *c, void **spare);

#endif
