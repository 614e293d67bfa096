/* lockouts.c -- revocations that are in force before the database has them: slots of a
 * memory-mapped file.
 *
 *   64 + i * 64        slot i: checksum, kind, id, time; checksum 0: free
 *
 * Revoking a key or suspending a tenant must work even while the disk is full or the database is
 * locked. lockouts_note() stores it in a slot (allocated at creation, so no disk space is needed)
 * and returns a ticket; the caches in memory apply it at once. The store's writer applies all slots
 * up to a mark in its next transaction (lockouts_apply()) and frees them when that is durable
 * (lockouts_settle()).
 *
 *   noted --writer: UPDATE in a transaction--> durable --> slot free
 *     \--crash: the slot is found at the next start, in force before anybody is served
 *
 * The kernel keeps what a killed process wrote. A slot torn by a power failure fails its checksum
 * and is dropped. Applying a lock-out twice changes nothing.
 *
 * Threads: `mu` guards the slots; it is released while the database is written.
 */
#include "storage/lockouts.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"

enum { SLOTS = 4095, SLOT_BYTES = 64 };
static const char MAGIC[8] = "LRDLOCK1";

typedef struct slot {
    _Atomic uint64_t sum; /* 0: free */
    uint64_t kind, id;
    int64_t wall_us;
    uint8_t pad[SLOT_BYTES - 32];
} slot;

typedef struct file {
    char magic[SLOT_BYTES];
    slot slot[SLOTS];
} file;

_Static_assert(sizeof(file) == (size_t)SLOT_BYTES * (SLOTS + 1), "the file's form");

struct lockouts {
    file *map;
    atomic_int n; /* pending; raised and lowered under mu */
    lock mu;      /* guards all below, and which slots are free */
    cond settled;
    uint64_t last_ticket, durable_ticket, tried_ticket;
    uint64_t ticket[SLOTS]; /* of the slot's lock-out; 0: free */
};

static uint64_t sum_of(const slot *s)
{
    const uint64_t part[3] = {s->kind, s->id, (uint64_t)s->wall_us};
    uint64_t h = HASH_BASIS_OF_FILES;
    for (int i = 0; i < 3; i++) h = (h ^ part[i]) * HASH_PRIME, h ^= h >> 29;
    return h | 1;
}

static void fill_slot(slot *s, const lockout *what)
{
    assert(what->kind >= LOCKOUT_KEY &&
           what->kind <= LOCKOUT_TENANT); /* else it is lost at the next start */
    s->kind = what->kind;
    s->id = what->id;
    s->wall_us = what->wall_us;
    atomic_store(&s->sum, sum_of(s)); /* last: a slot is whole or free */
}

static lockout what_of(const slot *s)
{
    return (lockout){(lockout_kind)s->kind, s->id, s->wall_us};
}

/* ---- life ------------------------------------------------------------------------------- */

static void take_over(lockouts *lo)
{
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &lo->map->slot[i];
        if (atomic_load(&s->sum) == 0) continue;
        if (atomic_load(&s->sum) == sum_of(s) && s->kind >= LOCKOUT_KEY &&
            s->kind <= LOCKOUT_TENANT) {
            lo->ticket[i] = ++lo->last_ticket;
            lo->n++;
        } else {
            log_warn("storage", "a torn entry of the lock-outs was dropped");
            atomic_store(&s->sum, 0);
        }
    }
    if (lo->n > 0)
        log_info("storage", "%d lock-outs of an earlier run are in force and written now", lo->n);
}

static err_code map_file(lockouts *lo, const char *path, err *e)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return err_set(e, ERR_IO, "cannot open the lock-outs: %s", strerror(errno));
    int rc = posix_fallocate(fd, 0, sizeof(file)); /* a hole on a full disk would be a SIGBUS */
    void *map =
        rc == 0 ? mmap(NULL, sizeof(file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (rc != 0)
        return err_set(e, ERR_IO, "can't reserve disk space for the lock-outs: %s", strerror(rc));
    if (map == MAP_FAILED) return err_set(e, ERR_IO, "cannot map the lock-outs");
    lo->map = map;
    if (memcmp(lo->map->magic, MAGIC, sizeof MAGIC) == 0) return ERR_NONE;
    if (lo->map->magic[0] != 0)
        log_error("storage", "the file of lock-outs is damaged; a new one is created");
    memset(lo->map, 0, sizeof(file));
    memcpy(lo->map->magic, MAGIC, sizeof MAGIC);
    return ERR_NONE;
}

err_code lockouts_open(lockouts **out, const char *dir, err *e)
{
    char path[4160];
    lockouts *lo = calloc(1, sizeof(*lo));
    *out = lo;
    if (!lo) return err_set(e, ERR_NOMEM, "out of memory");
    lock_init(&lo->mu, LOCK_LOCKOUTS);
    cond_init(&lo->settled);
    snprintf(path, sizeof path, "%s/lockouts", dir);
    err_code code = map_file(lo, path, e);
    if (code == ERR_NONE) take_over(lo);
    return code;
}

void lockouts_close(lockouts *lo)
{
    if (!lo) return;
    if (lo->n > 0) log_warn("storage", "%d lock-outs are written at the next start", lo->n);
    if (lo->map) munmap(lo->map, sizeof(file));
    cond_free(&lo->settled);
    lock_free(&lo->mu);
    free(lo);
}

/* ---- noting ----------------------------------------------------------------------------- */

uint64_t lockouts_note(lockouts *lo, const lockout *what)
{
    uint64_t ticket = 0;
    int free_slot = -1;
    lock_take(&lo->mu);
    for (int i = 0; i < SLOTS && ticket == 0; i++) {
        const slot *s = &lo->map->slot[i];
        if (lo->ticket[i] == 0 && free_slot < 0) free_slot = i;
        if (lo->ticket[i] != 0 && s->kind == what->kind && s->id == what->id)
            ticket = lo->ticket[i]; /* noted already */
    }
    if (ticket == 0 && free_slot >= 0) {
        fill_slot(&lo->map->slot[free_slot], what);
        assert(lo->ticket[free_slot] == 0);
        ticket = lo->ticket[free_slot] = ++lo->last_ticket;
        lo->n++;
    }
    lock_release(&lo->mu);
    if (ticket == 0) log_error("storage", "too many lock-outs wait for the disk to note one more");
    return ticket;
}

bool lockouts_wait(lockouts *lo, uint64_t ticket, int64_t timeout_us)
{
    int64_t end_us = clock_now_us() + timeout_us;
    lock_take(&lo->mu);
    assert(ticket > 0 && ticket <= lo->last_ticket);
    while (lo->tried_ticket < ticket && cond_wait_until(&lo->settled, &lo->mu, end_us)) continue;
    bool done = lo->durable_ticket >= ticket;
    lock_release(&lo->mu);
    return done;
}

int lockouts_pending(const lockouts *lo)
{
    return atomic_load(&lo->n);
}

void lockouts_each(lockouts *lo, void (*fn)(void *self, const lockout *what), void *self)
{
    lock_take(&lo->mu);
    for (int i = 0; i < SLOTS; i++) {
        lockout what = what_of(&lo->map->slot[i]);
        if (lo->ticket[i] != 0) fn(self, &what);
    }
    lock_release(&lo->mu);
}

/* ---- the writer's ----------------------------------------------------------------------- */

static err_code disable_tenant(sqlite3 *db, const lockout *what, err *e)
{
    sql q;
    sql_begin(&q, db,
              "UPDATE tenants SET disabled=1, generation=generation+1, updated_us=?"
              " WHERE id=? AND disabled=0");
    sql_int(&q, what->wall_us);
    sql_int(&q, (int64_t)what->id);
    err_code code = sql_done(&q, "disable the tenant", e);
    if (code != ERR_NONE || what->kind == LOCKOUT_SUSPEND) return code;
    sql_begin(&q, db, "UPDATE api_keys SET revoked_us=? WHERE tenant_id=? AND revoked_us=0");
    sql_int(&q, what->wall_us);
    sql_int(&q, (int64_t)what->id);
    return sql_done(&q, "revoke the tenant's keys", e);
}

static err_code revoke_key(sqlite3 *db, const lockout *what, err *e)
{
    sql q;
    sql_begin(&q, db, "UPDATE api_keys SET revoked_us=? WHERE id=? AND revoked_us=0");
    sql_int(&q, what->wall_us);
    sql_int(&q, (int64_t)what->id);
    return sql_done(&q, "revoke the key", e);
}

uint64_t lockouts_mark(lockouts *lo)
{
    lock_take(&lo->mu);
    uint64_t mark = lo->last_ticket;
    lock_release(&lo->mu);
    return mark;
}

err_code lockouts_apply(lockouts *lo, uint64_t mark, sqlite3 *db, err *e)
{
    err_code code = ERR_NONE;
    lock_take(&lo->mu);
    assert(mark <= lo->last_ticket);
    for (int i = 0; i < SLOTS && code == ERR_NONE; i++) {
        if (lo->ticket[i] == 0 || lo->ticket[i] > mark) continue;
        lockout what = what_of(&lo->map->slot[i]);
        lock_release(&lo->mu); /* a caller of lockouts_note() must not wait for the disk */
        code = what.kind == LOCKOUT_KEY ? revoke_key(db, &what, e) : disable_tenant(db, &what, e);
        lock_take(&lo->mu);
    }
    lock_release(&lo->mu);
    return code;
}

void lockouts_settle(lockouts *lo, uint64_t mark, bool durable)
{
    lock_take(&lo->mu);
    for (int i = 0; i < SLOTS && durable; i++) {
        if (lo->ticket[i] == 0 || lo->ticket[i] > mark) continue;
        lo->ticket[i] = 0;
        atomic_store(&lo->map->slot[i].sum, 0);
        lo->n--;
    }
    assert(atomic_load(&lo->n) >= 0 && mark <= lo->last_ticket);
    if (durable && mark > lo->durable_ticket) lo->durable_ticket = mark;
    if (mark > lo->tried_ticket) lo->tried_ticket = mark;
    cond_broadcast(&lo->settled);
    lock_release(&lo->mu);
}
