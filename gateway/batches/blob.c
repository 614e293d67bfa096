/* blob.c -- files under a name of ours, in a folder for each tenant. */
#include "gateway/batches/blob.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "storage/disk.h"

enum { STEP_BYTES = 4 << 20 }; /* of room that a writer takes ahead */

static err_code io_error(const char *what, err *e)
{
    int why = errno;
    return err_set(e, disk_is_full(why) ? ERR_NO_ROOM : ERR_IO, "%s: %s", what, strerror(why));
}

/* Paths are the data directory, ids of ours and fixed words, so they fit where the directory's own
 * does (config.h: 512 bytes). */
static void folder_path(char out[PATH_MAX], const char *dir, uint64_t tenant_id)
{
    snprintf(out, PATH_MAX, "%s/files/%016llx", dir, (unsigned long long)tenant_id);
}

void blob_path(char out[PATH_MAX], const char *dir, uint64_t tenant_id, const char *id)
{
    snprintf(out, PATH_MAX, "%s/files/%016llx/%s", dir, (unsigned long long)tenant_id, id);
}

static err_code sync_folder(const char *path, err *e)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    err_code rc = fd >= 0 && fsync(fd) == 0 ? ERR_NONE : io_error("cannot sync a folder", e);
    if (fd >= 0) (void)close(fd);
    return rc;
}

/* The tenant's folder is there afterwards. */
static err_code make_folder(const char *dir, uint64_t tenant_id, err *e)
{
    char path[PATH_MAX], root[PATH_MAX];
    snprintf(root, sizeof(root), "%s/files", dir);
    folder_path(path, dir, tenant_id);
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return ERR_NONE;
    if (mkdir(root, 0700) != 0 && errno != EEXIST) return io_error("cannot make a folder", e);
    if (mkdir(path, 0700) != 0 && errno != EEXIST) return io_error("cannot make a folder", e);
    err_code rc = sync_folder(root, e);
    return rc ? rc : sync_folder(dir, e);
}

/* ------------------------------------------------------------------------- writing -- */

err_code blob_begin(blob_writer *w, const char *dir, storeroom *room, uint64_t tenant_id,
                    const char *id, err *e)
{
    *w = (blob_writer){.fd = -1, .room = room};
    err_code rc = make_folder(dir, tenant_id, e);
    if (rc) return rc;
    blob_path(w->path, dir, tenant_id, id);
    snprintf(w->part, sizeof(w->part), "%.*s.part", (int)sizeof(w->part) - 6, w->path);
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return w->fd >= 0 ? ERR_NONE : io_error("cannot make the file", e);
}

/* Room for `len` more bytes, above the floor. */
static err_code take_room(blob_writer *w, size_t len, err *e)
{
    int64_t missing = w->n_bytes + (int64_t)len - w->taken;
    bool taken = false;
    if (missing <= 0) return ERR_NONE;
    if (missing < STEP_BYTES) missing = STEP_BYTES;
    err_code rc =
        storeroom_take(w->room, w->fd, (uint64_t)(w->taken + missing - w->n_bytes), &taken, e);
    if (!rc && taken) w->taken += missing;
    return rc || taken ? rc : storeroom_check(w->room, len, e);
}

err_code blob_write(blob_writer *w, const void *data, size_t len, err *e)
{
    const char *p = data;
    err_code rc = take_room(w, len, e);
    while (!rc && len > 0) {
        ssize_t n = write(w->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error("cannot write the file", e);
        p += n;
        len -= (size_t)n;
        w->n_bytes += n;
    }
    return rc;
}

err_code blob_keep(blob_writer *w, err *e)
{
    char folder[PATH_MAX];
    storeroom_give_back(w->fd);
    if (fsync(w->fd) != 0) return io_error("cannot sync the file", e);
    (void)close(w->fd);
    w->fd = -1;
    if (rename(w->part, w->path) != 0) {
        (void)io_error("cannot name the file", e);
        (void)unlink(w->part);
        return e->code;
    }
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(w->path, '/') - w->path), w->path);
    err_code rc = sync_folder(folder, e);
    if (rc) (void)unlink(w->path);
    return rc;
}

void blob_drop(blob_writer *w)
{
    if (w->fd < 0 || !w->part[0]) return;
    (void)close(w->fd);
    (void)unlink(w->part);
    w->fd = -1;
}

/* ------------------------------------------------------------------------- removal -- */

err_code blob_remove(const char *dir, uint64_t tenant_id, const char *id, err *e)
{
    char path[PATH_MAX];
    blob_path(path, dir, tenant_id, id);
    if (unlink(path) == 0 || errno == ENOENT) return ERR_NONE;
    return io_error("cannot remove the file", e);
}

static bool is_wanted(store *st, uint64_t tenant_id, const char *id, const batch_row *unfinished,
                      size_t n)
{
    file_row f;
    err e;
    for (size_t i = 0; i < n; i++) {
        const batch_row *b = &unfinished[i];
        if (b->tenant_id != tenant_id) continue;
        if (strcmp(id, b->output) == 0 || strcmp(id, b->error) == 0) return true;
    }
    /* The row of one whose time is over goes soon (files_expire()); what cannot be read stays. */
    return files_get(st, tenant_id, id, &f, &e) != ERR_NOT_FOUND;
}

static int sweep_folder(const char *dir, const char *name, store *st, const batch_row *unfinished,
                        size_t n)
{
    char path[PATH_MAX];
    char *end;
    int removed = 0;
    uint64_t tenant_id = strtoull(name, &end, 16);
    if (*end || strlen(name) != 16) return 0; /* not ours */
    folder_path(path, dir, tenant_id);
    DIR *d = opendir(path);
    for (struct dirent *each; d && (each = readdir(d));) {
        err e;
        if (each->d_name[0] == '.' || strlen(each->d_name) > BATCH_ID_MAX) continue;
        if (is_wanted(st, tenant_id, each->d_name, unfinished, n)) continue;
        removed += blob_remove(dir, tenant_id, each->d_name, &e) == ERR_NONE;
    }
    if (d) (void)closedir(d);
    return removed;
}

int blob_sweep(const char *dir, store *st, const batch_row *unfinished, size_t n)
{
    char path[PATH_MAX];
    int removed = 0;
    snprintf(path, sizeof(path), "%s/files", dir);
    DIR *d = opendir(path);
    for (struct dirent *each; d && (each = readdir(d));) {
        if (each->d_name[0] != '.') removed += sweep_folder(dir, each->d_name, st, unfinished, n);
    }
    if (d) (void)closedir(d);
    if (removed) log_info("gateway", "%d files that belong to nobody were removed", removed);
    return removed;
}
