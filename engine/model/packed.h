/* packed.h -- packed weights in a file, from which the next start maps them.
 *
 * Packing writes the weights once more into memory that the system has to clear.  So what was
 * packed is kept: <dir>/<key>.weights has the matrices one after the other as the backend's kernels
 * read them.  The key stands for all that decides those bytes: the model's files, the layout of
 * each matrix.  A file of another key, size or version is none; it is made anew.
 *
 *     header   packed_header, at 0
 *     table    size and checksum of each matrix, at 4 KiB; a hole follows, up to 2 MiB
 *     data     each matrix at a multiple of 4 KiB; where, follows from the sizes
 *
 * A file appears whole: it is written under another name, synced, then renamed.  packed_open()
 * compares every matrix with its checksum (a fingerprint: it detects damage, not an attacker).
 *
 * Ownership: packed_open() owns the mapping; what points into it dies with packed_close().  The
 *            matrices that packed_keep() writes stay until packed_keep_end().
 * Files:     a mapped file that shrinks is a failure of the device (engine/program/mapping.h).  The
 *            directory is the operator's own, mode 0700.
 * Threads:   one at a time for each object.  packed_keep() has a thread of its own, the nicest.
 */
#ifndef ENGINE_MODEL_PACKED_H
#define ENGINE_MODEL_PACKED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "engine/backend.h"
#include "engine/base/err.h"
#include "engine/base/fingerprint.h"

enum { PACKED_NOTES = 2 };

/* Of what the file is for: a fingerprint of all words that were added. */
typedef struct packed_key {
    fingerprint f;
} packed_key;

/* A key of no words; then packed_key_add() for each fact that decides the packed bytes, always
 * in the same order, and packed_key_end() for the number. */
void packed_key_begin(packed_key *k);

/* See packed_key_begin(). */
void packed_key_add(packed_key *k, uint64_t word);

/* May be called more than once, also between additions. */
uint64_t packed_key_end(const packed_key *k);
/* A file's identity: inode, size, time of the last change of its bytes and of itself. */
uint64_t packed_stamp(const struct stat *st);

/* What is to be in the file. */
typedef struct packed_plan {
    uint64_t key;
    size_t n;            /* matrices */
    const size_t *bytes; /* [n] */
    bool in_parts; /* the file may be larger than memory: packed_open() leaves it on the disk */
} packed_plan;

typedef struct packed_file packed_file;

/* Maps the plan's file, brings it into memory (unless in_parts) and verifies it, on all of be's
 * threads.  NULL: no file fits, a checksum differs (the log has it), or there is no memory. */
packed_file *packed_open(const char *dir, const packed_plan *plan, backend *be);

/* The first byte of matrix i, aligned to ALIGN; borrowed until packed_close(). */
const void *packed_at(const packed_file *f, size_t i);
/* The mapping, its length, and the open file of a plan in_parts (else -1); borrowed. */
char *packed_map(const packed_file *f, size_t *bytes, int *fd);
/* Path of a kept file in `dir`; false: there is none. */
bool packed_path(const char *dir, char *out, size_t size);
/* [PACKED_NOTES], as packed_keep() was given them. */
const uint64_t *packed_notes(const packed_file *f);

/* Unmaps the file; weights that were adopted from it must be gone. NULL is allowed. */
void packed_close(packed_file *f);

typedef enum { PACKED_NONE, PACKED_INTACT, PACKED_DAMAGED } packed_state;
/* Reads the files in `dir` and compares every matrix with its checksum; packed_open() would refuse
 * a damaged one. */
packed_state packed_check(const char *dir);

typedef struct packed_keeper packed_keeper;

/* Writes the plan's file matrix by matrix, on the calling thread, and drops it from memory behind
 * itself; other files of the directory are removed.  ERR_IO: there is no room, or the disk fails.
 * packed_write_end() makes the file appear if `notes` are given, and frees the writer. */
err_code packed_write_begin(packed_keeper **out, const char *dir, uint64_t floor_bytes,
                            const packed_plan *plan, err *e);

/* Matrix i of the plan, in ascending order; `data` is the caller's again on return. */
err_code packed_write(packed_keeper *k, size_t i, const void *data, err *e);

/* `notes` NULL: removes the unfinished file. */
err_code packed_write_end(packed_keeper *k, const uint64_t *notes, err *e);

/* Begins to write the plan's file, and removes those of other keys.  `floor_bytes` of the file
 * system stay free; where there is no room for that, nothing is written and the log says so.  NULL:
 * there is nobody to write, and nothing is lost. */
packed_keeper *packed_keep(const char *dir, uint64_t floor_bytes, const packed_plan *plan,
                           const void *const *data, const uint64_t notes[PACKED_NOTES]);
/* Whether it has ended, well or not. */
bool packed_keep_done(const packed_keeper *k);
/* Ends the writing, also in the middle of it; the matrices may go now.  NULL is fine. */
void packed_keep_end(packed_keeper *k);

#endif
