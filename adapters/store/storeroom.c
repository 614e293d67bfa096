/* storeroom.c -- sums by tenant in a small table; the disk's own count for the rest.
 *
 * One takes after the other: the look at the disk, what others lend for it, and
 * the allocation are one step.
 */
#include "adapters/store/storeroom.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/folder.h"
#include "engine/base/lock.h"
#include "storage/disk.h"

typedef struct held {
    uint64_t tenant_id, bytes;
} held;

struct storeroom {
    char dir[FOLDER_PATH_MAX];
    _Atomic uint64_t floor_bytes;
    bool (*lend)(void *self, uint64_t bytes);
    void *lender;
    lock taking;
    lock mu;    /* guards all below */
    held *held; /* in no order */
    size_t n, cap;
};

err_code storeroom_create(storeroom **out, const char *dir, uint64_t floor_bytes, err *e)
{
    storeroom *r = calloc(1, sizeof(*r));
    *out = r;
    if (!r) return err_set(e, ERR_NOMEM, "out of memory");
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    r->floor_bytes = floor_bytes;
    lock_init(&r->taking, LOCK_STOREROOM_TAKING);
    lock_init(&r->mu, LOCK_STOREROOM);
    return ERR_NONE;
}

void storeroom_set_floor(storeroom *r, uint64_t floor_bytes)
{
    r->floor_bytes = floor_bytes;
}

void storeroom_destroy(storeroom *r)
{
    if (!r) return;
    lock_free(&r->taking);
    lock_free(&r->mu);
    free(r->held);
    free(r);
}

void storeroom_on_short(storeroom *r, bool (*lend)(void *self, uint64_t bytes), void *self)
{
    if (!r) return;
    r->lend = lend;
    r->lender = self;
}

/* ---- quotas --------------------------------------------------------------------------------- */

static held *find_locked(storeroom *r, uint64_t tenant_id)
{
    lock_assert_held(&r->mu);
    for (size_t i = 0; i < r->n; i++)
        if (r->held[i].tenant_id == tenant_id) return &r->held[i];
    return NULL;
}

static bool grow_locked(storeroom *r)
{
    lock_assert_held(&r->mu);
    if (r->n < r->cap) return true;
    size_t cap = r->cap > 0 ? r->cap * 2 : 16;
    held *more = realloc(r->held, cap * sizeof(*more));
    if (!more) return false;
    r->held = more;
    r->cap = cap;
    return true;
}

static err_code add_locked(storeroom *r, uint64_t tenant_id, uint64_t bytes, err *e)
{
    lock_assert_held(&r->mu);
    held *h = find_locked(r, tenant_id);
    if (!h && !grow_locked(r)) return err_set(e, ERR_NOMEM, "out of memory");
    if (!h) {
        h = &r->held[r->n++];
        *h = (held){.tenant_id = tenant_id};
    }
    h->bytes += bytes;
    return ERR_NONE;
}

static err_code check_limit(uint64_t published, uint64_t coming, uint64_t more, int64_t limit,
                            const char *name, err *e)
{
    if (limit <= 0 || published + coming + more <= (uint64_t)limit) return ERR_NONE;
    return err_set(e, ERR_LIMIT,
                   "the tenant's adapters take %llu bytes and its uploads %llu; %llu more go over "
                   "%s, which is %lld",
                   (unsigned long long)published, (unsigned long long)coming,
                   (unsigned long long)more, name, (long long)limit);
}

err_code storeroom_hold(storeroom *r, registry *reg, uint64_t tenant_id, uint64_t bytes,
                        const storeroom_quota *quota, err *e)
{
    registry_totals have;
    if (!r) return ERR_NONE;
    registry_totals_get(reg, tenant_id, &have);
    lock_take(&r->mu);
    const held *h = find_locked(r, tenant_id);
    uint64_t coming = h != NULL ? h->bytes : 0;
    err_code code =
        check_limit(have.file_bytes, coming, bytes, quota->bytes, "its limit max_adapter_bytes", e);
    if (code == ERR_NONE)
        code = check_limit(have.disk_bytes, coming, bytes, quota->share,
                           "this server's adapters.tenant_bytes", e);
    if (code == ERR_NONE) code = add_locked(r, tenant_id, bytes, e);
    lock_release(&r->mu);
    return code;
}

err_code storeroom_hold_again(storeroom *r, uint64_t tenant_id, uint64_t bytes, err *e)
{
    if (!r) return ERR_NONE;
    lock_take(&r->mu);
    err_code code = add_locked(r, tenant_id, bytes, e);
    lock_release(&r->mu);
    return code;
}

void storeroom_unhold(storeroom *r, uint64_t tenant_id, uint64_t bytes)
{
    if (!r || bytes == 0) return;
    lock_take(&r->mu);
    held *h = find_locked(r, tenant_id);
    assert(h && h->bytes >= bytes); /* what was held comes back once */
    h->bytes -= bytes;
    if (h->bytes == 0) *h = r->held[--r->n];
    lock_release(&r->mu);
}

uint64_t storeroom_held(storeroom *r, uint64_t tenant_id)
{
    if (!r) return 0;
    lock_take(&r->mu);
    const held *h = find_locked(r, tenant_id);
    uint64_t bytes = h != NULL ? h->bytes : 0;
    lock_release(&r->mu);
    return bytes;
}

/* ---- the disk -------------------------------------------------------------------------------- */

/* How many bytes are missing for so many above the floor; 0: none.  Without
 * files to be had: all of them. */
static uint64_t missing_for(const storeroom *r, uint64_t bytes)
{
    disk_room now;
    if (!disk_look(r->dir, &now)) return 0; /* nothing is known: the write itself will tell */
    uint64_t want = r->floor_bytes + bytes;
    if (now.inodes_short) return bytes;
    return now.free_bytes >= want ? 0 : want - now.free_bytes;
}

static err_code no_room(const storeroom *r, uint64_t bytes, err *e)
{
    enum { MIB = 1048576 };
    disk_room now;
    if (!disk_look(r->dir, &now) || now.inodes_short)
        return err_set(
            e, ERR_NO_ROOM,
            "The server's disk is too full for this upload: the file system has no free inodes");
    return err_set(e, ERR_NO_ROOM,
                   "The server's disk is too full for this upload of %.1f MiB: %.1f MiB are free, "
                   "and data.min_free keeps %.1f MiB free",
                   (double)bytes / MIB, (double)now.free_bytes / MIB, (double)r->floor_bytes / MIB);
}

/* Makes the room if need be; `taking` is held, so nobody is quicker. */
static err_code find_room(storeroom *r, uint64_t bytes, err *e)
{
    lock_assert_held(&r->taking);
    uint64_t missing = missing_for(r, bytes);
    if (missing > 0 && r->lend && r->lend(r->lender, missing)) missing = missing_for(r, bytes);
    if (missing == 0) return ERR_NONE;
    return no_room(r, bytes, e);
}

static err_code allocate(int fd, uint64_t bytes, bool *taken, err *e)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0) return folder_disk_error(e, "make room for");
    int rc;
    do rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, sb.st_size, (off_t)bytes);
    while (rc != 0 && errno == EINTR);
    *taken = rc == 0;
    if (rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return ERR_NONE;
    err_code code = folder_disk_error(e, "make room for");
    storeroom_give_back(fd); /* a part may have been allocated */
    return code;
}

err_code storeroom_take(storeroom *r, int fd, uint64_t bytes, bool *taken, err *e)
{
    *taken = false;
    if (bytes == 0) return ERR_NONE;
    if (!r) return allocate(fd, bytes, taken, e);
    lock_take(&r->taking);
    err_code code = find_room(r, bytes, e);
    if (code == ERR_NONE) code = allocate(fd, bytes, taken, e);
    lock_release(&r->taking);
    return code;
}

err_code storeroom_check(storeroom *r, uint64_t bytes, err *e)
{
    if (!r) return ERR_NONE;
    lock_take(&r->taking);
    err_code code = find_room(r, bytes, e);
    lock_release(&r->taking);
    return code;
}

void storeroom_give_back(int fd)
{
    struct stat sb;
    /* To the size that it has: what was allocated beyond goes. */
    if (fstat(fd, &sb) == 0) (void)!ftruncate(fd, sb.st_size);
}
