/* folder.h -- an adapter's folder: which files count, which are harmless, how it is put away.
 *
 * What the ways in share (tar, resumable upload, registration in place) and what the registry needs
 * to take folders away again.  File names come from here, never from a client.
 *
 * Threads: any thread.
 */
#ifndef ADAPTERS_FORMAT_FOLDER_H
#define ADAPTERS_FORMAT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "storage/digest.h"

/* What every adapter has, then what of its tokenizer is looked into on the way
 * in and not kept (words.h). */
typedef enum {
    PART_CONFIG,
    PART_WEIGHTS,
    PART_COUNT,
    PART_TOKENIZER = PART_COUNT,
    PART_TOKENIZER_CONFIG,
    PART_ADDED_TOKENS,
    PART_ALL,
} folder_part;

enum { FOLDER_PATH_MAX = 4200, FOLDER_CONFIG_MAX = 1 << 20, FOLDER_FILES_MAX = 200 };

extern const char *const folder_part_names[PART_ALL];

/* PART_ALL: the file is none of ours. */
folder_part folder_part_of(const char *name);

/* A GGUF on its way in lies in the folder under this name until it has been rewritten
 * (adapters/format/gguf.h). */
extern const char folder_gguf_name[];
bool folder_is_gguf(const char *name);

/* For a file that is none of ours.  ERR_NONE: harmless, to be left out; else why it is refused. */
err_code folder_may_skip(const char *name, err *e);

/* A failed call's errno in a sentence ("cannot store the upload: ..."): ERR_NO_ROOM for a full disk
 * or quota, ERR_IO for the rest. */
err_code folder_disk_error(err *e, const char *what);

/* Opens a directory that lies in one of `roots` (comma-separated) or, with `own`, in the folder of
 * that name in one of them.  Links are resolved before that is asked; real [PATH_MAX] is what they
 * lead to.  The caller closes *fd.
 *   ERR_INPUT  the path is not absolute;  ERR_DENIED  it lies elsewhere, if it is there at all
 *   ERR_NOT_FOUND  there is no such directory */
err_code folder_open_in(const char *roots, const char *own, const char *path, char *real, int *fd,
                        err *e);

/* n bytes of an open file from `offset` on; false: it cannot be read, or ends before. */
bool folder_read_at(int fd, void *out, size_t n, uint64_t offset);

/* All of it to where the file stands. */
err_code folder_put(int fd, const void *data, size_t len, err *e);

/* SHA-256 of a whole open file. */
err_code folder_hash(int fd, uint8_t out[DIGEST_BYTES], err *e);

/* Removes a folder with our files in it; of a link (an adapter registered in place) only the
 * link. */
void folder_remove(const char *path);

#endif
