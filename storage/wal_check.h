/* wal_check.h -- what SQLite will discard of a write-ahead log.
 *
 * SQLite reads a log up to the first frame whose checksum is wrong, and drops the rest without a
 * word, for such an end is usual after a power cut.  Where frames of the same generation with a
 * commit follow, or the frame is whole but for its checksum, bytes were damaged later, and
 * transactions that had been acknowledged are lost.  The format: https://sqlite.org/walformat.html.
 *
 * Threads: any.  The log must not be written meanwhile.
 */
#ifndef STORAGE_WAL_CHECK_H
#define STORAGE_WAL_CHECK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct wal_report {
    int64_t valid, discarded; /* frames of this generation: up to the damage; behind it */
    bool header;              /* the header is damaged: everything is discarded */
} wal_report;

/* True: the log at `path` is damaged, and *out says where.  False also where there is no log. */
bool wal_check(const char *path, wal_report *out);

#endif
