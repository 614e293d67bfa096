/* backup.h -- a consistent copy of the database while the server runs.
 *
 * The copy (mode 0600) is made page by page beside the writer and appears under its name only when
 * whole and on the disk.  Adapter files are immutable and content-addressed: copy <dir>/adapters
 * with any tool after this.
 * Threads: any thread; one backup at a time.
 */
#ifndef STORAGE_BACKUP_H
#define STORAGE_BACKUP_H

#include "storage/store.h"

/* ERR_EXISTS when `path` exists already; ERR_BUSY while another backup runs. */
err_code backup_write(store *st, const char *path, err *e);

#endif
