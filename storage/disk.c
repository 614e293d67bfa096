/* disk.c -- free space of a disk, by statvfs(), and how much of it must stay free. */
#include "storage/disk.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

static const uint64_t GIB = UINT64_C(1) << 30;
enum { INODES_KEPT = 4096, OPEN_FILES = 16 };

bool disk_look(const char *dir, disk_room *out)
{
    struct statvfs v;
    int rc;
    do rc = statvfs(dir, &v);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 || v.f_blocks == 0) return false;
    uint64_t kept = v.f_files / 20 < INODES_KEPT ? v.f_files / 20 : INODES_KEPT;
    out->free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    out->total_bytes = (uint64_t)v.f_blocks * v.f_frsize;
    out->inodes_short =
        v.f_files > 0 && v.f_favail < kept; /* 0: it makes them as they are needed */
    return true;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t disk_floor_bytes(const char *dir, uint64_t asked)
{
    disk_room now;
    if (asked > 0) return asked;
    if (!disk_look(dir, &now)) return 0;
    return smaller(larger(GIB, now.total_bytes / 20), now.total_bytes / 8);
}

bool disk_is_low(const char *dir, uint64_t floor_bytes, disk_room *out)
{
    return disk_look(dir, out) && out->free_bytes < floor_bytes;
}

uint64_t disk_share_bytes(const char *dir)
{
    disk_room now;
    if (!disk_look(dir, &now)) return GIB;
    return smaller(larger(GIB, now.total_bytes / 64), now.total_bytes / 4);
}

bool disk_is_full(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

err_code disk_error(const char *what, err *e)
{
    int why = errno;
    return err_set(e, disk_is_full(why) ? ERR_NO_ROOM : ERR_IO, "%s: %s", what, strerror(why));
}

static int remove_cb(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

bool disk_remove_folder(const char *path)
{
    return nftw(path, remove_cb, OPEN_FILES, FTW_DEPTH | FTW_PHYS) == 0;
}
