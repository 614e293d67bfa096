/* journal.h -- what a batch has written: two files of JSON lines, which are its journal as well.
 *
 * A line of the input is done when it stands whole in the output or in the error file, and in no
 * other way.  Every line begins with an id that tells which line of the input it answers.  So after
 * a crash the files say what is still to be done; a torn end is cut off.  docs/design/batches.md
 * says why that is enough.
 *
 * Ownership: the caller's struct.  Threads: write from any thread, open and close alone.
 */
#ifndef GATEWAY_BATCHES_JOURNAL_H
#define GATEWAY_BATCHES_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/store/storeroom.h"
#include "engine/base/err.h"
#include "engine/base/lock.h"
#include "storage/seal/sealed_file.h"

enum { BATCH_LINE_IDS = 128 }; /* ids of requests that a line has: as many as choices (config.c) */

typedef enum { BATCH_OUTPUT, BATCH_ERRORS, BATCH_FILES } batch_file;

typedef struct batch_journal { /* private but for file[].n_bytes */
    sealed_file file[BATCH_FILES];
    bool open;
    storeroom *room;
    lock mu; /* over each write */
} batch_journal;

typedef struct batch_done {
    uint8_t *line; /* [n], 1: it is done */
    int n;
    uint64_t first_id; /* of the first line's request */
    int64_t count[BATCH_FILES];
} batch_done;

/* Takes the files, cuts off what is torn, and notes in *done what stands in them. */
err_code batch_journal_open(batch_journal *j, sealed_file file[BATCH_FILES], storeroom *room,
                            batch_done *done, err *e);
/* Harmless for one that is not open. */
void batch_journal_close(batch_journal *j);

/* How each line begins: writes it, with the quotes, into `out`. */
enum { BATCH_LINE_HEAD_BYTES = 64 };
int batch_journal_head(char out[BATCH_LINE_HEAD_BYTES], uint64_t request_id);

/* Appends a whole line; `sync`: it is on the disk when this returns.  ERR_NO_ROOM: the file is as
 * it was; ERR_IO: the line may stand there, or a part of it: nothing more may be written before
 * the files were opened anew. */
err_code batch_journal_write(batch_journal *j, batch_file which, const char *line, size_t len,
                             bool sync, err *e);
err_code batch_journal_sync(batch_journal *j, err *e);

#endif
