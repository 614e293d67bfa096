/* batches.h -- files that tenants have sent, and batches of requests over them: their rows.
 *
 * A file's bytes lie beside the database, <dir>/files/<tenant>/<id>; a file is there for others
 * from its row on.  A batch reads one file and writes two, which get their rows with its end.
 * Every call that names a tenant finds nothing of another's.  Both tables are this node's own: a
 * fleet does not share them.  What the rows of a batch have to do with its lines is written in
 * docs/design/batches.md.
 *
 * Ownership: lists and texts handed out are malloced.  Threads: any thread.
 */
#ifndef STORAGE_BATCHES_BATCHES_H
#define STORAGE_BATCHES_BATCHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/store.h"

enum { BATCH_ID_MAX = 63, BATCH_FILE_NAME_MAX = 255, BATCH_WORD_MAX = 31 };

typedef struct file_row {
    uint64_t tenant_id;
    char id[BATCH_ID_MAX + 1], name[BATCH_FILE_NAME_MAX + 1], purpose[BATCH_WORD_MAX + 1];
    int64_t bytes, created_us, expires_us; /* wall; expires_us 0: never */
} file_row;

typedef enum { /* as the table has them: append only */
               BATCH_VALIDATING,
               BATCH_IN_PROGRESS,
               BATCH_FINALIZING,
               BATCH_CANCELLING,
               BATCH_FAILED, /* this one and those below have ended */
               BATCH_COMPLETED,
               BATCH_EXPIRED,
               BATCH_CANCELLED,
} batch_status;

typedef struct batch_row {
    uint64_t tenant_id, key_id;
    char id[BATCH_ID_MAX + 1], endpoint[BATCH_WORD_MAX + 1];
    char input[BATCH_ID_MAX + 1], output[BATCH_ID_MAX + 1], error[BATCH_ID_MAX + 1];
    int64_t keep_us;         /* for how long what it writes is kept; 0: for ever */
    char *metadata, *errors; /* JSON; NULL: none */
    batch_status status;
    uint64_t first_id, last_id; /* of its lines' requests (store_take_ids()); 0: not taken yet */
    int64_t total, completed, failed;
    int64_t created_us, deadline_us, begun_us, finalizing_us, cancelling_us, ended_us; /* wall */
} batch_row;

/* What one tenant may have; 0: no limit. */
typedef struct batch_quota {
    int64_t bytes, files, unfinished;
    int64_t ended; /* batches that have ended: the oldest beyond it are deleted */
} batch_quota;

/* Which rows of a list. */
typedef struct batch_page {
    uint64_t tenant_id;  /* 0: of all tenants */
    const char *after;   /* the id behind which it begins; NULL: at the start */
    const char *purpose; /* of files; NULL: all */
    size_t limit;
    bool oldest_first;
} batch_page;

/* OpenAI's word: "in_progress" and its like; static. */
const char *batch_status_name(batch_status s);

/* Nothing changes it any more. */
bool batch_has_ended(batch_status s);

/* ---- files ---- */

/* Would a file of so many bytes be within the quota?  ERR_LIMIT says which one it breaks. */
err_code files_check(store *st, uint64_t tenant_id, int64_t bytes, const batch_quota *q, err *e);
/* The same, and inserts the row. */
err_code files_put(store *st, const file_row *f, const batch_quota *q, err *e);

/* ERR_NOT_FOUND also for a file of another tenant, or one whose time is over. */
err_code files_get(store *st, uint64_t tenant_id, const char *id, file_row *out, err *e);
/* *more: there are others behind.  ERR_NOT_FOUND: there is no row `after`. */
err_code files_list(store *st, const batch_page *p, file_row **out, size_t *n, bool *more, err *e);
/* ERR_CONFLICT: a batch that has not ended reads it. */
err_code files_delete(store *st, uint64_t tenant_id, const char *id, err *e);
/* Deletes the rows of at most `limit` files whose time is over and which no batch reads, and hands
 * them out: their bytes are the caller's to remove. */
err_code files_expire(store *st, int64_t wall_us, size_t limit, file_row **out, size_t *n, err *e);

/* ---- batches ---- */

/* ERR_LIMIT: the tenant has as many as it may; ERR_NOT_FOUND: the input file is gone. */
err_code batches_put(store *st, const batch_row *b, const batch_quota *q, err *e);

/* *out has texts to be freed: batch_row_clear(). ERR_NOT_FOUND also for a batch of another
 * tenant. */
err_code batches_get(store *st, uint64_t tenant_id, const char *id, batch_row *out, err *e);

/* As files_list(); free the list by batch_rows_free(). */
err_code batches_list(store *st, const batch_page *p, batch_row **out, size_t *n, bool *more,
                      err *e);
/* Those of all tenants that have not ended, oldest first. */
err_code batches_unfinished(store *st, batch_row **out, size_t *n, err *e);

/* Frees the row's texts, not the struct; a zeroed row is allowed. */
void batch_row_clear(batch_row *b);

/* Frees a list with the texts of its n rows; NULL is allowed. */
void batch_rows_free(batch_row *list, size_t n);

/* Validating or in progress becomes cancelling; *out is the row as it is then.  ERR_CONFLICT: it
 * has ended, or is about to. */
err_code batches_cancel(store *st, uint64_t tenant_id, const char *id, int64_t wall_us,
                        batch_row *out, err *e);
/* Writes status, counts, ids, errors and times.  A batch that somebody cancels stays cancelling
 * until it ends: *status is what stands there now. */
err_code batches_update(store *st, const batch_row *b, batch_status *status, err *e);
/* The same for one that ends, with the rows of what it has written (n may be 0). */
err_code batches_end(store *st, const batch_row *b, const file_row *files, size_t n, err *e);
/* Deletes rows of batches that ended before that, at most `limit`. */
err_code batches_prune(store *st, int64_t before_us, int64_t limit, err *e);

#endif
