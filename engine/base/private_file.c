/* private_file.c -- asks fstat() whether others may read a file, and mends it. */
#include "engine/base/private_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/log.h"

enum { PRIVATE_MODE = 0600, OTHERS = 077, OTHERS_OF_ROOT = 037 };

err_code private_file_check(const char *path, const char *what, err *e)
{
    struct stat sb;
    if (stat(path, &sb) != 0) return ERR_NONE; /* whoever opens it says why not */
    unsigned mode = sb.st_mode & 0777;
    if ((mode & (sb.st_uid == 0 ? OTHERS_OF_ROOT : OTHERS)) == 0) return ERR_NONE;
    return err_set(e, ERR_INPUT, "%s may be read by others (mode %04o): chmod 600 %s", what, mode,
                   path);
}

err_code private_file_secure(const char *path, bool create, err *e)
{
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    int fd = open(path, flags, PRIVATE_MODE);
    if (fd < 0 && errno == ENOENT && !create) return ERR_NONE;
    struct stat sb;
    err_code rc = ERR_NONE;
    if (fd < 0 || fstat(fd, &sb) != 0)
        rc = err_set(e, ERR_IO, "cannot open %s: %s", path, strerror(errno));
    else if ((sb.st_mode & OTHERS) != 0 && fchmod(fd, PRIVATE_MODE) != 0)
        rc = err_set(e, ERR_IO, "%s may be read by others, and cannot be changed: %s", path,
                     strerror(errno));
    else if ((sb.st_mode & OTHERS) != 0)
        log_warn("storage", "%s could be read by others; it has mode 0600 now", path);
    if (fd >= 0) close(fd);
    return rc;
}
