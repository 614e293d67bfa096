/* upload.c -- from the bytes of a tar to a published version.
 *
 * Each upload has a directory of its own under adapters/tmp, opened once; files are made in it by
 * fixed names with O_EXCL.  All are hashed as they come in.  What follows is publish.c.
 */
#include "adapters/store/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/format/gguf.h"
#include "adapters/format/tar.h"
#include "adapters/format/words.h"
#include "storage/digest.h"

static const uint64_t UPLOAD_MAX = 2ull << 30;

struct upload {
    upload_env env;
    upload_options o;
    char name[ADAPTER_NAME_MAX + 1];
    char description[ADAPTER_DESCRIPTION_MAX];
    char path[FOLDER_PATH_MAX]; /* of the directory under tmp */
    int dir_fd;
    tar_reader *tar;

    int fd; /* of the file being received; -1: it is skipped */
    folder_part now;
    uint64_t received;
    bool taken;    /* the file's room is its own */
    uint64_t held; /* of the tenant's quota */
    digest_state hash;
    bool gguf; /* the weights came as a GGUF */
    bool have[PART_ALL];
    uint64_t bytes[PART_ALL];
    uint8_t digest[PART_ALL][DIGEST_BYTES];
};

/* ---- the tar's files ----------------------------------------------------------------------- */

/* The tenant's quota, then the disk. */
static err_code take_room(upload *u, int fd, uint64_t bytes, bool *taken, err *e)
{
    err_code code = storeroom_hold(u->env.room, u->env.reg, u->o.tenant_id, bytes, &u->o.quota, e);
    if (code != ERR_NONE) return code;
    u->held += bytes;
    return storeroom_take(u->env.room, fd, bytes, taken, e);
}

static err_code begin_cb(void *self, const char *name, uint64_t bytes, err *e)
{
    upload *u = self;
    u->fd = -1;
    folder_part p = folder_part_of(name);
    if (p == PART_ALL && folder_is_gguf(name)) {
        if (u->gguf) return err_set(e, ERR_INPUT, "'%.80s' is a second GGUF", name);
        u->gguf = true;
        name = folder_gguf_name;
        p = PART_WEIGHTS;
    }
    if (p == PART_ALL) return folder_may_skip(name, e);
    if (p >= PART_COUNT && bytes > WORDS_FILE_MAX)
        return err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read", name,
                       (unsigned long long)bytes, WORDS_FILE_MAX);
    if (p == PART_WEIGHTS && u->have[p])
        return err_set(e, ERR_INPUT, "the tar holds weights twice: safetensors and GGUF");
    if (p == PART_CONFIG && bytes > FOLDER_CONFIG_MAX)
        return err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read", name,
                       (unsigned long long)bytes, FOLDER_CONFIG_MAX);
    u->fd = openat(u->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (u->fd < 0) return folder_disk_error(e, "store");
    err_code code = take_room(u, u->fd, bytes, &u->taken, e);
    if (code != ERR_NONE) return code;
    u->now = p;
    u->bytes[p] = bytes;
    u->received = 0;
    digest_begin(&u->hash);
    return ERR_NONE;
}

static err_code data_cb(void *self, const void *data, size_t len, err *e)
{
    upload *u = self;
    if (u->fd < 0) return ERR_NONE;
    err_code code = u->taken ? ERR_NONE : storeroom_check(u->env.room, len, e);
    if (code != ERR_NONE) return code;
    digest_add(&u->hash, data, len);
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n = write(u->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return folder_disk_error(e, "store");
        p += n;
        len -= (size_t)n;
        u->received += (uint64_t)n;
    }
    return ERR_NONE;
}

static err_code end_cb(void *self, err *e)
{
    upload *u = self;
    if (u->fd < 0) return ERR_NONE;
    digest_end(&u->hash, u->digest[u->now]);
    u->have[u->now] = true;
    int rc = fsync(u->fd); /* a failed sync is never tried again: the data is in doubt */
    if (close(u->fd) != 0) rc = -1;
    u->fd = -1;
    return rc == 0 ? ERR_NONE : folder_disk_error(e, "sync");
}

/* ---- life ------------------------------------------------------------------------------------ */

static err_code check_start(const upload *u, err *e)
{
    err_code code = publish_check_names(u->o.name, u->o.description, e);
    if (code == ERR_NONE) code = registry_check_name(u->env.reg, u->o.name, e);
    if (code != ERR_NONE) return code;
    if (u->o.content_bytes > 0 && (uint64_t)u->o.content_bytes > u->env.max_bytes)
        return err_set(e, ERR_LIMIT, "the upload has %lld bytes; at most %llu are accepted",
                       (long long)u->o.content_bytes, (unsigned long long)u->env.max_bytes);
    return ERR_NONE;
}

err_code upload_begin(upload **out, const upload_env *env, const upload_options *o, err *e)
{
    *out = NULL;
    upload *u = calloc(1, sizeof(*u));
    if (!u) return err_set(e, ERR_NOMEM, "out of memory");
    u->env = *env;
    u->o = *o;
    u->dir_fd = u->fd = -1;
    if (u->env.max_bytes == 0) u->env.max_bytes = UPLOAD_MAX;
    err_code code = check_start(u, e);
    if (code == ERR_NONE) {
        snprintf(u->name, sizeof u->name, "%s", o->name);
        u->o.name = u->name;
        if (o->description) {
            snprintf(u->description, sizeof u->description, "%s", o->description);
            u->o.description = u->description;
        }
        tar_limits limits = {.max_bytes = u->env.max_bytes, .max_files = FOLDER_FILES_MAX};
        tar_sink sink = {.self = u, .begin = begin_cb, .data = data_cb, .end = end_cb};
        u->tar = tar_create(&limits, &sink);
        if (!u->tar) code = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (code == ERR_NONE) code = publish_tmp(u->env.reg, u->path, &u->dir_fd, e);
    if (code != ERR_NONE) {
        upload_abort(u);
        return code;
    }
    *out = u;
    return ERR_NONE;
}

err_code upload_write(upload *u, const void *data, size_t len, err *e)
{
    return tar_write(u->tar, data, len, e);
}

void upload_abort(upload *u)
{
    if (!u) return;
    if (u->fd >= 0) close(u->fd);
    if (u->dir_fd >= 0) close(u->dir_fd);
    if (u->path[0] != 0) folder_remove(u->path);
    storeroom_unhold(u->env.room, u->o.tenant_id, u->held);
    tar_destroy(u->tar);
    free(u);
}

/* Opens a part anew for writing. */
static int part_fd(const upload *u, folder_part p)
{
    return openat(u->dir_fd, folder_part_names[p],
                  O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static err_code finish_part(upload *u, folder_part p, int fd, err *e)
{
    off_t end = lseek(fd, 0, SEEK_END);
    storeroom_give_back(fd);
    if (end < 0 || fsync(fd) != 0) return folder_disk_error(e, "sync");
    u->bytes[p] = (uint64_t)end;
    u->have[p] = true;
    return folder_hash(fd, u->digest[p], e);
}

/* What came as one GGUF becomes the two files that everything else knows. */
static err_code rewrite_gguf(upload *u, err *e)
{
    if (u->have[PART_CONFIG])
        return err_set(e, ERR_INPUT, "a GGUF says all by itself: leave adapter_config.json out");
    int fd[PART_COUNT] = {part_fd(u, PART_CONFIG), part_fd(u, PART_WEIGHTS)};
    int in = openat(u->dir_fd, folder_gguf_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    err_code code = ERR_NONE;
    bool taken;
    if (fd[PART_CONFIG] < 0 || fd[PART_WEIGHTS] < 0 || in < 0) code = folder_disk_error(e, "store");
    /* The same matrices again, under another header. */
    if (code == ERR_NONE) code = take_room(u, fd[PART_WEIGHTS], u->bytes[PART_WEIGHTS], &taken, e);
    if (code == ERR_NONE)
        code = gguf_convert(in, u->bytes[PART_WEIGHTS], u->env.base, fd[PART_CONFIG],
                            fd[PART_WEIGHTS], e);
    for (int p = 0; p < PART_COUNT && code == ERR_NONE; p++)
        code = finish_part(u, (folder_part)p, fd[p], e);
    for (int p = 0; p < PART_COUNT; p++)
        if (fd[p] >= 0) close(fd[p]);
    if (in >= 0) close(in);
    unlinkat(u->dir_fd, folder_gguf_name, 0);
    return code;
}

err_code upload_finish(upload *u, adapter_version *out, bool *existed, err *e)
{
    err_code code = tar_finish(u->tar, e);
    if (code == ERR_NONE && u->gguf) code = rewrite_gguf(u, e);
    for (int p = 0; p < PART_COUNT && code == ERR_NONE; p++)
        if (!u->have[p]) code = err_set(e, ERR_INPUT, "the tar holds no %s", folder_part_names[p]);
    if (code == ERR_NONE)
        code = publish_folder(&u->env, &u->o, u->path, u->dir_fd, u->bytes,
                              (const uint8_t(*)[DIGEST_BYTES])u->digest, out, existed, e);
    upload_abort(u);
    return code;
}
