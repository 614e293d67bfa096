/* storeroom.h -- may these bytes be taken from the disk?  The one place that says so.
 *
 * Two rules.  The disk's: a floor of free space is never touched (storage/disk.h).  The tenant's:
 * what it has published on this disk and what its uploads are to bring stay within its quota.
 * Space is taken at once, by fallocate(), so that an upload that has begun does not meet a full
 * disk; but uploads lend what they have not filled when somebody else needs it
 * (storeroom_on_short()), so what nobody sends costs nobody anything.
 *
 * A NULL room has neither rule: parts of the server in tests.
 *
 * Locks:   one over the taking, which is held over the lender, and one for the sums.
 * Threads: any thread, but storeroom_on_short() and destroy.
 */
#ifndef ADAPTERS_STORE_STOREROOM_H
#define ADAPTERS_STORE_STOREROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "adapters/store/registry.h"

typedef struct storeroom storeroom;

typedef struct storeroom_quota {
    int64_t bytes; /* the tenant's own limit, of all its adapters wherever they lie; 0: none */
    int64_t share; /* the server's for tenants without one, of what lies on this disk; 0: none */
} storeroom_quota;

/* `floor_bytes` of the file system at `dir` stay free. */
err_code storeroom_create(storeroom **out, const char *dir, uint64_t floor_bytes, err *e);
/* Another floor from now on. */
void storeroom_set_floor(storeroom *r, uint64_t floor_bytes);
/* NULL is fine. */
void storeroom_destroy(storeroom *r);

/* Notes bytes that an upload of the tenant will bring, until storeroom_unhold().  ERR_LIMIT with
 * what is used and the limit by name. */
err_code storeroom_hold(storeroom *r, registry *reg, uint64_t tenant_id, uint64_t bytes,
                        const storeroom_quota *quota, err *e);
/* Without asking: what an earlier process had begun. */
err_code storeroom_hold_again(storeroom *r, uint64_t tenant_id, uint64_t bytes, err *e);
void storeroom_unhold(storeroom *r, uint64_t tenant_id, uint64_t bytes);
/* Held by the tenant's uploads. */
uint64_t storeroom_held(storeroom *r, uint64_t tenant_id);

/* Takes `bytes` for an open file beyond what it has, without changing its size.  ERR_NO_ROOM: not
 * without touching the floor.  *taken: they are its own; false where the file system cannot do
 * that: then storeroom_check() goes before each write. */
err_code storeroom_take(storeroom *r, int fd, uint64_t bytes, bool *taken, err *e);
/* Would `bytes` more touch the floor now? */
err_code storeroom_check(storeroom *r, uint64_t bytes, err *e);
/* Gives back what an open file has taken beyond its size. */
void storeroom_give_back(int fd);

/* `lend` gives back room until `bytes` are free or there is nothing to lend; true: it gave some. */
void storeroom_on_short(storeroom *r, bool (*lend)(void *self, uint64_t bytes), void *self);

#endif
