/* smalldisk.h -- a tmpfs of a few MiB for one test, seen by its process alone, gone with it. */
#ifndef TESTS_STORAGE_SMALLDISK_H
#define TESTS_STORAGE_SMALLDISK_H

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* False: this process may not mount; the test is skipped and says so. */
static inline bool small_disk(const char *path, const char *size)
{
    char options[64];
    snprintf(options, sizeof options, "size=%s,mode=700", size);
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("tmpfs", path, "tmpfs", 0, options) == 0)
        return true;
    printf("skipped: no right to mount a small disk\n");
    return false;
}

static inline void small_disk_end(const char *path)
{
    (void)!umount2(path, MNT_DETACH);
}

static inline uint64_t small_disk_free(const char *path)
{
    struct statvfs v;
    return statvfs(path, &v) == 0 ? (uint64_t)v.f_bavail * v.f_frsize : 0;
}

/* Fills the disk up to `left` bytes with <path>/ballast. */
static inline bool small_disk_fill(const char *path, uint64_t left)
{
    char file[300];
    snprintf(file, sizeof file, "%s/ballast", path);
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    uint64_t room = small_disk_free(path);
    bool ok = fd >= 0 && room > left && posix_fallocate(fd, 0, (off_t)(room - left)) == 0;
    if (fd >= 0) close(fd);
    return ok;
}

static inline void small_disk_empty(const char *path)
{
    char file[300];
    snprintf(file, sizeof file, "%s/ballast", path);
    (void)!unlink(file);
}

#endif
