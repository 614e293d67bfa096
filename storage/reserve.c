/* reserve.c -- posix_fallocate() and unlink().
 *
 * 16 MiB hold the write-ahead log between two checkpoints (4 MiB) and as many pages of new rows
 * again and again; on a small disk it is a 64th.
 */
#include "storage/reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "storage/disk.h"

enum { MOST_BYTES = 16 << 20, LEAST_BYTES = 64 << 10, LOOK_US = 1000000 };
/* With so many times its size free a disk is not full: it is not given up, and it is made anew. */
enum { TIMES_FREE = 4 };

struct reserve {
    char dir[4096], path[4160];
    uint64_t bytes;
    int64_t looked_us;
    atomic_bool held;
};

static uint64_t size_for(const char *dir)
{
    disk_room now;
    if (!disk_look(dir, &now)) return LEAST_BYTES;
    uint64_t n = now.total_bytes / 64 & ~UINT64_C(4095);
    return n > MOST_BYTES ? MOST_BYTES : n < LEAST_BYTES ? LEAST_BYTES : n;
}

static bool disk_has_room(const reserve *r)
{
    disk_room now;
    return disk_look(r->dir, &now) && now.free_bytes >= TIMES_FREE * r->bytes;
}

/* True: the file is there with all its blocks. */
static bool make_file(reserve *r)
{
    int fd = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    bool ok = posix_fallocate(fd, 0, (off_t)r->bytes) == 0 && fsync(fd) == 0;
    close(fd);
    if (!ok) unlink(r->path);
    return ok;
}

err_code reserve_open(reserve **out, const char *dir, err *e)
{
    reserve *r = calloc(1, sizeof(*r));
    *out = r;
    if (!r) return err_set(e, ERR_NOMEM, "out of memory");
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    snprintf(r->path, sizeof r->path, "%s/reserve", r->dir);
    r->bytes = size_for(dir);
    bool held = make_file(r);
    atomic_init(&r->held, held);
    if (!held)
        log_warn("storage", "can't reserve %llu KiB of disk space for the database",
                 (unsigned long long)r->bytes >> 10);
    return ERR_NONE;
}

void reserve_close(reserve *r)
{
    free(r);
}

bool reserve_give_up(reserve *r)
{
    if (!reserve_held(r) || disk_has_room(r)) return false;
    atomic_store(&r->held, false);
    bool gone = unlink(r->path) == 0;
    log_error("storage", "the disk is full: the database's reserve of %llu KiB is released",
              (unsigned long long)r->bytes >> 10);
    return gone;
}

void reserve_renew(reserve *r, int64_t now_us)
{
    if (!r || reserve_held(r) || now_us - r->looked_us < LOOK_US) return;
    r->looked_us = now_us;
    if (!disk_has_room(r) || !make_file(r)) return;
    atomic_store(&r->held, true);
    log_info("storage", "the disk has space again: the database's reserve is restored");
}

bool reserve_held(const reserve *r)
{
    return r != NULL && atomic_load(&r->held);
}
