/* wal_lock.c -- asks the kernel for the holder of SQLite's write lock. */
#include "storage/wal_lock.h"

#include <fcntl.h>
#include <stdio.h>

enum { WRITE_LOCK = 120 }; /* offset of the byte in DATABASE-shm */

int wal_lock_holder(const char *database, int *fd)
{
    char path[4096 + 8];
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = WRITE_LOCK, .l_len = 1};
    if (*fd < 0) {
        snprintf(path, sizeof(path), "%s-shm", database);
        *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    }
    if (*fd < 0 || fcntl(*fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
    return lock.l_pid > 0 ? (int)lock.l_pid : 0;
}
