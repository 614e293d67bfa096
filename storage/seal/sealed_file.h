/* sealed_file.h -- a file that grows at its end and is read anywhere; sealed where there is a key.
 *
 * A sealed file is a head and records.  The head tells that it is one, and by which key.  A record
 * is a length (4 bytes, the lowest first) and so many bytes, sealed (seal.h).  What each seal is
 * bound to: the file's label, the record's number.  So records neither move nor change places.
 *
 * What a file is, its first bytes say.  A plain one stays plain when a key comes later, and must
 * not begin with a byte 0.
 *
 * Ownership: the caller's struct, which owns the descriptor.  Threads: reads from any; whoever
 * appends or cuts is alone.
 */
#ifndef STORAGE_SEAL_SEALED_FILE_H
#define STORAGE_SEAL_SEALED_FILE_H

#include <stdio.h>

#include "storage/seal/seal.h"

enum {
    SEALED_PIECE = 16384, /* bytes of a record at most */
    SEALED_MARK = 8,
    SEALED_LABEL_MAX = 95,
};

typedef struct sealed_file { /* private but for n_bytes, torn */
    int64_t n_bytes;         /* that can be read */
    bool torn;               /* a part of a record is at its end */
    bool sealed;
    int fd;
    seal_key key;
    char label[SEALED_LABEL_MAX + 1];
    int64_t end; /* of its last whole record, on the disk */
    int n, cap;
    struct sealed_place {
        int64_t at, from; /* on the disk; of its first byte among n_bytes */
    } * place;            /* [n], of records; of a plain file none */
} sealed_file;

/* Takes the descriptor, also where it fails.  ERR_DENIED: it is sealed, and not with this key. */
err_code sealed_file_open(sealed_file *f, int fd, seal_key key, const char *label, err *e);
/* Harmless for one that is all zero. */
void sealed_file_close(sealed_file *f);

/* All `len` bytes from `at` on.  ERR_CORRUPT: they were changed, or are not there; ERR_IO. */
err_code sealed_file_read(const sealed_file *f, void *out, size_t len, int64_t at, err *e);
/* What stands in it, from its start, as a stream: fclose() ends it.  Damage is its end. */
FILE *sealed_file_stream(const sealed_file *f);

/* In records of its own.  ERR_IO, ERR_NO_ROOM: it is as it was, or `torn`. */
err_code sealed_file_append(sealed_file *f, const void *data, size_t len, err *e);
/* Only so many bytes are left; an append must have begun there. */
err_code sealed_file_cut(sealed_file *f, int64_t n_bytes, err *e);
/* What an append of so many bytes takes on the disk, at most. */
uint64_t sealed_file_cost(const sealed_file *f, size_t len);

#endif
