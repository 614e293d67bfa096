/* blob.c -- the bytes of tenants' files: data.dir/files/<tenant>/<id>, sealed with the server's
 * key.
 *
 * A writer collects SEALED_PIECE bytes, which are encrypted and authenticated as one piece
 * (sealed_file.h), into "<id>.part"; blob_keep() syncs, renames and syncs the folder. So a name
 * without .part is always whole. Room on the disk is reserved ahead in steps of STEP_BYTES
 * (fallocate), because a file that fails in the middle of an upload for lack of room would cost
 * the client the whole transfer.
 *
 * The label of a sealed file has tenant and id, so a file that is copied to another name, or to
 * another tenant, cannot be opened.
 *
 * blob_sweep() at the start removes files without a row: leftovers of a crash between
 * blob_keep() and the row, and .part files. Answer files of unfinished batches have no row yet
 * and are kept by their batch.
 */
#include "gateway/batches/blob.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/durable.h"
#include "engine/base/log.h"
#include "storage/disk.h"

enum { STEP_BYTES = 4 << 20 }; /* of room that a writer takes ahead */

/* Paths are the data directory, ids of ours and fixed words, so they fit where the directory's own
 * does (config.h: 512 bytes). */
static void folder_path(char out[PATH_MAX], const char *dir, uint64_t tenant_id)
{
    snprintf(out, PATH_MAX, "%s/files/%016llx", dir, (unsigned long long)tenant_id);
}

static void blob_path(char out[PATH_MAX], const char *dir, uint64_t tenant_id, const char *id)
{
    snprintf(out, PATH_MAX, "%s/files/%016llx/%s", dir, (unsigned long long)tenant_id, id);
}

static err_code sync_folder(const char *path, err *e)
{
    return durable_sync(path) ? ERR_NONE : disk_error("cannot sync a folder", e);
}

/* The tenant's folder is there afterwards. */
static err_code make_folder(const char *dir, uint64_t tenant_id, err *e)
{
    char path[PATH_MAX], root[PATH_MAX];
    snprintf(root, sizeof(root), "%s/files", dir);
    folder_path(path, dir, tenant_id);
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return ERR_NONE;
    if (mkdir(root, 0700) != 0 && errno != EEXIST) return disk_error("cannot make a folder", e);
    if (mkdir(path, 0700) != 0 && errno != EEXIST) return disk_error("cannot make a folder", e);
    err_code rc = sync_folder(root, e);
    return rc ? rc : sync_folder(dir, e);
}

/* Takes the descriptor. */
static err_code open_as(sealed_file *f, int fd, const blob_place *p, err *e)
{
    char label[SEALED_LABEL_MAX + 1];
    snprintf(label, sizeof(label), "%llu/%s", (unsigned long long)p->tenant_id, p->id);
    return sealed_file_open(f, fd, p->key, label, e);
}

err_code blob_open(sealed_file *f, const blob_place *p, bool grow, err *e)
{
    char path[PATH_MAX], folder[PATH_MAX];
    *f = (sealed_file){0};
    blob_path(path, p->dir, p->tenant_id, p->id);
    int fd =
        open(path, (grow ? O_RDWR | O_CREAT | O_APPEND : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT) return err_set(e, ERR_NOT_FOUND, "the file's bytes are gone");
    if (fd < 0) return disk_error("the file cannot be opened", e);
    err_code rc = open_as(f, fd, p, e);
    folder_path(folder, p->dir, p->tenant_id);
    if (!rc && grow) rc = sync_folder(folder, e);
    if (rc) sealed_file_close(f);
    return rc;
}

/* ------------------------------------------------------------------------- writing -- */

static void end_writer(blob_writer *w)
{
    sealed_file_close(&w->file);
    free(w->held);
    w->held = NULL;
    w->begun = false;
}

err_code blob_begin(blob_writer *w, const blob_place *p, storeroom *room, err *e)
{
    *w = (blob_writer){.room = room};
    err_code rc = make_folder(p->dir, p->tenant_id, e);
    if (rc) return rc;
    blob_path(w->path, p->dir, p->tenant_id, p->id);
    snprintf(w->part, sizeof(w->part), "%.*s.part", (int)sizeof(w->part) - 6, w->path);
    int fd = open(w->part, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return disk_error("cannot make the file", e);
    rc = open_as(&w->file, fd, p, e);
    w->begun = rc == ERR_NONE;
    w->held = malloc(SEALED_PIECE);
    if (!rc && !w->held) rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc) blob_drop(w);
    return rc;
}

/* Room for so many more bytes, above the floor. */
static err_code take_room(blob_writer *w, int64_t cost, err *e)
{
    assert(cost >= 0 && w->taken >= 0);
    int64_t missing = w->file.end + cost - w->taken;
    bool taken = false;
    if (missing <= 0) return ERR_NONE;
    if (missing < STEP_BYTES) missing = STEP_BYTES;
    err_code rc = storeroom_take(w->room, w->file.fd, (uint64_t)(w->taken + missing - w->file.end),
                                 &taken, e);
    if (!rc && taken) w->taken += missing;
    return rc || taken ? rc : storeroom_check(w->room, (uint64_t)cost, e);
}

static err_code write_held(blob_writer *w, err *e)
{
    assert(w->n_held <= SEALED_PIECE);
    err_code rc =
        w->n_held ? take_room(w, (int64_t)sealed_file_cost(&w->file, w->n_held), e) : ERR_NONE;
    if (!rc && w->n_held) rc = sealed_file_append(&w->file, w->held, w->n_held, e);
    w->n_held = 0;
    return rc;
}

err_code blob_write(blob_writer *w, const void *data, size_t len, err *e)
{
    assert(w->begun && w->n_held < SEALED_PIECE);
    const char *p = data;
    err_code rc = ERR_NONE;
    if (len && w->n_bytes == 0 && p[0] == 0 && !w->file.sealed)
        return err_set(e, ERR_INPUT, "the file begins with a zero byte: it is not text");
    while (!rc && len > 0) {
        size_t n = SEALED_PIECE - w->n_held < len ? SEALED_PIECE - w->n_held : len;
        memcpy(w->held + w->n_held, p, n);
        w->n_held += n;
        w->n_bytes += (int64_t)n;
        p += n;
        len -= n;
        if (w->n_held == SEALED_PIECE) rc = write_held(w, e);
    }
    return rc;
}

err_code blob_keep(blob_writer *w, err *e)
{
    assert(w->begun);
    char folder[PATH_MAX];
    err_code rc = write_held(w, e);
    if (rc) return rc;
    storeroom_give_back(w->file.fd);
    if (fsync(w->file.fd) != 0) return disk_error("cannot sync the file", e);
    end_writer(w);
    if (rename(w->part, w->path) != 0) {
        (void)disk_error("cannot name the file", e);
        (void)unlink(w->part);
        return e->code;
    }
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(w->path, '/') - w->path), w->path);
    rc = sync_folder(folder, e);
    if (rc) (void)unlink(w->path);
    return rc;
}

void blob_drop(blob_writer *w)
{
    if (w->begun) (void)unlink(w->part);
    end_writer(w);
}

/* ------------------------------------------------------------------------- removal -- */

err_code blob_remove(const char *dir, uint64_t tenant_id, const char *id, err *e)
{
    char path[PATH_MAX];
    blob_path(path, dir, tenant_id, id);
    if (unlink(path) == 0 || errno == ENOENT) return ERR_NONE;
    return disk_error("cannot remove the file", e);
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
