/* self_check.h -- walks the database now and then, and says whether it is damaged.
 *
 * A thread of the lowest priority opens the database for itself and runs PRAGMA quick_check: pages
 * that were overwritten behind SQLite's back are found while a backup is still young, and not at
 * the next start.
 *
 * Ownership: borrows the store.  Threads: any.
 */
#ifndef STORAGE_WATCH_SELF_CHECK_H
#define STORAGE_WATCH_SELF_CHECK_H

#include "storage/store.h"

typedef struct self_check self_check;

typedef struct self_check_state {
    int64_t checked_wall_us; /* the last check's end; 0: none yet */
    bool damaged;            /* what it found */
} self_check_state;

/* The first check begins at once, the next ones `every_us` after the end of the one before. */
err_code self_check_start(self_check **out, store *st, int64_t every_us, err *e);
/* Also in the middle of a check.  NULL is fine. */
void self_check_stop(self_check *c);
/* c NULL: zeros. */
void self_check_get(const self_check *c, self_check_state *out);

#endif
