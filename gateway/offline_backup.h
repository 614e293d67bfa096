/* offline_backup.h -- a whole copy of a data directory that no server holds.
 *
 * Threads: start-up only.
 */
#ifndef GATEWAY_OFFLINE_BACKUP_H
#define GATEWAY_OFFLINE_BACKUP_H

#include <stdint.h>

#include "engine/base/err.h"

typedef struct offline_backup_stats {
    int files; /* of adapters */
    int64_t bytes;
    int settled; /* requests that a crash had left open; they are in the books now */
} offline_backup_stats;

/* Copies database and adapters of `data_dir` into `to`, which must not exist (ERR_EXISTS).  On the
 * disk when it returns.  ERR_BUSY: a server runs there.  After a failure `to` holds what was copied
 * so far, and no database under its name unless that is whole. */
err_code offline_backup(const char *data_dir, const char *to, offline_backup_stats *out, err *e);

#endif
