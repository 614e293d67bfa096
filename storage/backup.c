/* backup.c -- SQLite's backup call in one read transaction, then sync, then the name.
 *
 * One transaction: a copy made in pieces starts over whenever the writer commits, and under load
 * would never end.  In WAL mode a long reader does not hold the writer up.
 */
#include "storage/backup.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/durable.h"
#include "storage/store_sql.h"

static err_code copy_pages(sqlite3 *from, const char *path, err *e)
{
    sqlite3 *to = NULL;
    int rc = sqlite3_open_v2(path, &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_backup *b = sqlite3_backup_init(to, "main", from, "main");
        if (!b) {
            rc = sqlite3_errcode(to);
        } else {
            rc = sqlite3_backup_step(b, -1);
            int end = sqlite3_backup_finish(b);
            if (rc == SQLITE_DONE) rc = end;
        }
    }
    err_code code = rc == SQLITE_OK ? ERR_NONE : sql_error(to, rc, "write the backup", e);
    sqlite3_close(to);
    return code;
}

static err_code sync_path(const char *path, err *e)
{
    return durable_sync(path) ? ERR_NONE
                              : err_set(e, ERR_IO, "cannot sync the backup: %s", strerror(errno));
}

err_code backup_write(store *st, const char *path, err *e)
{
    static atomic_flag running = ATOMIC_FLAG_INIT;
    char tmp[4096], dir[4096];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.part", path) >= sizeof tmp)
        return err_set(e, ERR_INPUT, "the backup's path is too long");
    if (access(path, F_OK) == 0) return err_set(e, ERR_EXISTS, "the backup file exists already");
    if (atomic_flag_test_and_set(&running))
        return err_set(e, ERR_BUSY, "another backup is running");
    unlink(tmp);
    /* SQLite would make it readable by all: hashes of keys and everybody's usage are in it. */
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        atomic_flag_clear(&running);
        return err_set(e, ERR_IO, "cannot write the backup: %s", strerror(errno));
    }
    close(fd);
    sqlite3 *db = store_read_begin(st);
    err_code code = copy_pages(db, tmp, e);
    store_read_end(st, db);
    if (code == ERR_NONE) code = sync_path(tmp, e);
    if (code == ERR_NONE && link(tmp, path) != 0) /* unlike rename(), never replaces */
        code = err_set(e, errno == EEXIST ? ERR_EXISTS : ERR_IO, "cannot name the backup: %s",
                       strerror(errno));
    unlink(tmp);
    if (code == ERR_NONE) {
        snprintf(dir, sizeof dir, "%s", path);
        code = sync_path(dirname(dir), e);
    }
    atomic_flag_clear(&running);
    return code;
}
