/* lockouts.h -- who is refused from now on, whatever the disk says.
 *
 * Revoking a key and suspending or deleting a tenant take three steps: the copy in memory is
 * changed, so that the next request is refused; the lock-out is noted in <dir>/lockouts, whose
 * blocks were allocated when it was made, so a kill -9 does not undo it; the storage writer writes
 * the rows with its next transaction, and again and again until one succeeds.  What is still noted
 * at a start is in force before the first request and written then.
 *
 * Private to storage/.  Threads: any thread; the last three are the writer's.
 */
#ifndef STORAGE_LOCKOUTS_H
#define STORAGE_LOCKOUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/store_sql.h"

typedef enum {
    LOCKOUT_KEY = 1, /* revoked */
    LOCKOUT_SUSPEND, /* the tenant is disabled, its keys stay */
    LOCKOUT_TENANT,  /* disabled, all its keys revoked */
} lockout_kind;

typedef struct lockout {
    lockout_kind kind;
    uint64_t id; /* of the key or tenant */
    int64_t wall_us;
} lockout;

typedef struct lockouts lockouts;

/* Opens or makes the file.  What it holds is pending. */
err_code lockouts_open(lockouts **out, const char *dir, err *e);
void lockouts_close(lockouts *lo);

/* Notes one that is in force in memory already; it is pending from here on.  The ticket is for
 * lockouts_wait(); 0: there is no slot left, it would not outlive this process. */
uint64_t lockouts_note(lockouts *lo, const lockout *what);
/* Waits until all noted up to `ticket` are durable (true), an attempt at
 * it has failed, or so long. */
bool lockouts_wait(lockouts *lo, uint64_t ticket, int64_t timeout_us);

/* How many are in force but not durable. */
int lockouts_pending(const lockouts *lo);
/* Calls `fn` for each pending one, with the lock held. */
void lockouts_each(lockouts *lo, void (*fn)(void *self, const lockout *what), void *self);

/* All that are noted now: what the next attempt is about. */
uint64_t lockouts_mark(lockouts *lo);
/* Writes their rows. */
err_code lockouts_apply(lockouts *lo, uint64_t mark, sqlite3 *db, err *e);
/* The attempt is over. */
void lockouts_settle(lockouts *lo, uint64_t mark, bool durable);

#endif
