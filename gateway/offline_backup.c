/* offline_backup.c -- lorad backup: copies adapters and files, then the database that names
 * them. */
#include "gateway/offline_backup.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/durable.h"
#include "storage/backup.h"
#include "storage/meter_file.h"

enum { OPEN_FILES = 32 };

/* nftw() hands its callback no argument. */
static struct {
    const char *to;
    size_t from_len;
    offline_backup_stats *stats;
    err e;
} copying;

static err_code io_error(const char *path, err *e)
{
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

static bool copy_bytes(int in, int out, int64_t *bytes)
{
    static char buf[1 << 18];
    for (;;) {
        ssize_t n = read(in, buf, sizeof(buf));
        if (n <= 0) return n == 0;
        for (ssize_t at = 0; at < n;) {
            ssize_t w = write(out, buf + at, (size_t)(n - at));
            if (w <= 0) return false;
            at += w;
        }
        *bytes += n;
    }
}

static err_code copy_file(const char *from, const char *to, err *e)
{
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0) return io_error(from, e);
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    err_code rc = out < 0 ? io_error(to, e) : ERR_NONE;
    if (!rc && (!copy_bytes(in, out, &copying.stats->bytes) || fsync(out) != 0))
        rc = io_error(to, e);
    if (out >= 0 && close(out) != 0 && !rc) rc = io_error(to, e);
    (void)close(in);
    if (!rc) copying.stats->files++;
    return rc;
}

/* An adapter that is used in place is a link to somewhere else: it stays one. */
static err_code copy_link(const char *from, const char *to, err *e)
{
    char target[PATH_MAX];
    ssize_t n = readlink(from, target, sizeof(target) - 1);
    if (n < 0) return io_error(from, e);
    target[n] = 0;
    return symlink(target, to) == 0 ? ERR_NONE : io_error(to, e);
}

static err_code sync_folder(const char *path, err *e)
{
    return durable_sync(path) ? ERR_NONE : io_error(path, e);
}

static int copy_entry_cb(const char *path, const struct stat *st, int type, struct FTW *where)
{
    char to[PATH_MAX];
    (void)where;
    int n = snprintf(to, sizeof(to), "%s%s", copying.to, path + copying.from_len);
    if (n < 0 || (size_t)n >= sizeof(to))
        return err_set(&copying.e, ERR_INPUT, "a path is too long");
    if (type == FTW_D) return mkdir(to, 0700) == 0 ? 0 : io_error(to, &copying.e);
    if (type == FTW_SL || type == FTW_SLN) return copy_link(path, to, &copying.e);
    if (type == FTW_F && S_ISREG(st->st_mode)) return copy_file(path, to, &copying.e);
    return io_error(path, &copying.e);
}

static int sync_entry_cb(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)where;
    return type == FTW_D ? sync_folder(path, &copying.e) : 0;
}

/* One of the data directory's folders; that it is not there is fine. */
static err_code copy_tree(const char *data_dir, const char *name, const char *to,
                          offline_backup_stats *stats, err *e)
{
    char from[PATH_MAX], dest[PATH_MAX];
    struct stat st;
    if (snprintf(from, sizeof(from), "%s/%s", data_dir, name) >= (int)sizeof(from) ||
        snprintf(dest, sizeof(dest), "%s/%s", to, name) >= (int)sizeof(dest)) {
        return err_set(e, ERR_INPUT, "a path is too long");
    }
    if (stat(from, &st) != 0) return errno == ENOENT ? ERR_NONE : io_error(from, e);
    copying.to = dest;
    copying.from_len = strlen(from);
    copying.stats = stats;
    (void)err_set(&copying.e, ERR_IO, "%s can't be walked", from);
    if (nftw(from, copy_entry_cb, OPEN_FILES, FTW_PHYS) != 0 ||
        nftw(dest, sync_entry_cb, OPEN_FILES, FTW_PHYS) != 0) {
        if (e) *e = copying.e;
        return copying.e.code;
    }
    return ERR_NONE;
}

err_code offline_backup(const char *data_dir, const char *to, offline_backup_stats *out, err *e)
{
    char db[PATH_MAX];
    store *st;
    *out = (offline_backup_stats){0};
    if (snprintf(db, sizeof(db), "%s/lorad.db", to) >= (int)sizeof(db))
        return err_set(e, ERR_INPUT, "the path is too long");
    /* A node's is copied as it is: what it has not shipped goes with it. */
    err_code rc = store_open(&st, data_dir, &(store_options){.without_fleet = true}, e);
    if (rc == ERR_BUSY)
        return err_context(e, "a server runs there, ask it instead (loractl backup)");
    if (rc) return rc;
    rc = meter_file_recover(st, &out->settled, e);
    if (!rc && mkdir(to, 0700) != 0)
        rc = errno == EEXIST ? err_set(e, ERR_EXISTS, "%s is there already", to) : io_error(to, e);
    if (!rc) rc = copy_tree(data_dir, "adapters", to, out, e);
    if (!rc) rc = copy_tree(data_dir, "files", to, out, e);
    if (!rc) rc = backup_write(st, db, e);
    if (!rc) rc = sync_folder(to, e);
    store_close(st);
    return rc;
}
