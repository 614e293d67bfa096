/* reserve.h -- room on the disk that the database keeps for itself, in a file of its own.
 *
 * <dir>/reserve holds blocks and no data.  When SQLite meets a full disk the storage writer gives
 * the file up and commits again: what must be written then (usage, revocations) has some MiB to go
 * on with.  It is made anew when the disk has room again.
 *
 * Threads: one thread (the storage writer's), but for reserve_held().
 */
#ifndef STORAGE_RESERVE_H
#define STORAGE_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

typedef struct reserve reserve;

/* Makes the file, or keeps the one that is there.  A disk that is full already is no
 * error: there is none for now. */
err_code reserve_open(reserve **out, const char *dir, err *e);
/* The file stays.  NULL is fine. */
void reserve_close(reserve *r);

/* Gives the room back to the file system.  False: there was nothing to give, or the disk is not
 * full (a limit on the size of files says the same). */
bool reserve_give_up(reserve *r);

/* Makes it anew if it was given up and the disk has room again; looks at the
 * disk once a second at most. */
void reserve_renew(reserve *r, int64_t now_us);

/* Is it there?  Any thread. */
bool reserve_held(const reserve *r);

#endif
