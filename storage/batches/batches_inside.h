/* batches_inside.h -- what files.c and batches.c share.  Private to them. */
#ifndef STORAGE_BATCHES_BATCHES_INSIDE_H
#define STORAGE_BATCHES_BATCHES_INSIDE_H

#include "engine/base/clock.h"
#include "storage/batches/batches.h"
#include "storage/store_sql.h"

/* Within a job; a row that is there already stays as it is. */
err_code files_insert(sqlite3 *db, const file_row *f, err *e);

/* The row number behind which a page begins; `find`: SQL that has it from a tenant and an id.
 * ERR_NOT_FOUND. */
err_code batch_page_start(sqlite3 *db, const char *find, const batch_page *p, int64_t *from,
                          err *e);

#endif
