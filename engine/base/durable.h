/* durable.h -- makes a file's bytes, or the names in a folder, survive a power failure.
 *
 * A file that is written and renamed is durable once the file and then its folder are synced.
 *
 * Threads: any thread.
 */
#ifndef ENGINE_BASE_DURABLE_H
#define ENGINE_BASE_DURABLE_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

/* fsync() of a file or folder.  False: errno says why. */
static inline bool durable_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = fsync(fd) == 0;
    int why = errno;
    (void)close(fd);
    errno = why;
    return ok;
}

#endif
