/* tar.h -- a tar from a stranger, in pieces, down to names and bytes.
 *
 * Understands ustar, pax (path, size) and GNU (long names, base-256 sizes); lets regular files and
 * directories through and refuses everything else by name: links, devices, sparse files, absolute
 * names, "..", control characters, duplicates.  It touches no file: a sink decides per name.
 *
 * Threads: one reader belongs to one thread.
 */
#ifndef ADAPTERS_FORMAT_TAR_H
#define ADAPTERS_FORMAT_TAR_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

typedef struct tar_reader tar_reader;

typedef struct tar_sink {
    void *self;
    /* A regular file begins; `name` has no folder in front.  A failure ends the reading. */
    err_code (*begin)(void *self, const char *name, uint64_t bytes, err *e);
    err_code (*data)(void *self, const void *bytes, size_t len, err *e);
    err_code (*end)(void *self, err *e);
} tar_sink;

typedef struct tar_limits {
    uint64_t max_bytes; /* of the whole stream */
    int max_files;      /* directories count, too */
} tar_limits;

/* NULL: out of memory. */
tar_reader *tar_create(const tar_limits *limits, const tar_sink *sink);
err_code tar_write(tar_reader *t, const void *data, size_t len, err *e);
/* The stream is over: ERR_INPUT when the archive is not. */
err_code tar_finish(tar_reader *t, err *e);
void tar_destroy(tar_reader *t);

#endif
