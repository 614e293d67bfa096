/* blob.h -- the bytes of tenants' files: <data.dir>/files/<tenant>/<id>.
 *
 * A blob comes under its name only when it is whole and on the disk; its row (storage/batches) is
 * written after that, and deleted before the bytes are.  So what has no row is nobody's, and
 * blob_sweep() removes it at the start.  The floor of the disk holds (adapters/store/storeroom.h).
 *
 * Ownership: a writer is the caller's struct, and ends with keep or drop.  Threads: any, each
 * writer one; the sweep at the start alone.
 */
#ifndef GATEWAY_BATCHES_BLOB_H
#define GATEWAY_BATCHES_BLOB_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/store/storeroom.h"
#include "engine/base/err.h"
#include "storage/batches/batches.h"
#include "storage/seal/sealed_file.h"

/* Whose file, and where it lies. */
typedef struct blob_place {
    const char *dir; /* the data directory */
    seal_key key;    /* NULL: its bytes are not sealed */
    uint64_t tenant_id;
    const char *id;
} blob_place;

/* What is there, to be read; `grow`: also written to, and made where it is not there.
 * ERR_NOT_FOUND, ERR_DENIED (another key), ERR_IO. */
err_code blob_open(sealed_file *f, const blob_place *p, bool grow, err *e);

typedef struct blob_writer { /* private but for n_bytes */
    int64_t n_bytes;
    sealed_file file;
    bool begun;
    size_t n_held;
    char *held; /* [SEALED_PIECE], n_held of them are to be written */
    storeroom *room;
    int64_t taken; /* bytes that are its own on the disk */
    char part[PATH_MAX], path[PATH_MAX];
} blob_writer;

/* ERR_NO_ROOM, ERR_IO: nothing is left behind. */
err_code blob_begin(blob_writer *w, const blob_place *p, storeroom *room, err *e);
/* ERR_INPUT: it begins with a byte 0. */
err_code blob_write(blob_writer *w, const void *data, size_t len, err *e);
/* Whole, synced, and under its name. */
err_code blob_keep(blob_writer *w, err *e);
/* Gone.  Harmless for one that was kept or never begun. */
void blob_drop(blob_writer *w);

/* The bytes are gone when it returns; one that is not there is fine. */
err_code blob_remove(const char *dir, uint64_t tenant_id, const char *id, err *e);

/* Removes what belongs to no row of a file and to no batch that has not ended; how many. */
int blob_sweep(const char *dir, store *st, const batch_row *unfinished, size_t n);

#endif
