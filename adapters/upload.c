/* upload.c -- from the bytes of a tar to a published version.
 *
 * Each upload has a directory of its own under adapters/tmp, opened once; files are made in it by
 * fixed names with O_EXCL.  Both are hashed as they come in.  Order at the end (DESIGN 6): sync files,
 * validate, sync the directory, rename to the digest, sync its parent, then the row.
 */
#include "adapters/upload.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/tar.h"
#include "adapters/validate.h"
#include "engine/base/log.h"
#include "storage/digest.h"

enum { FILES_MAX = 200, CONFIG_MAX = 1 << 20, PATH_BYTES = 4200 };
static const uint64_t UPLOAD_MAX = 2ull << 30;

typedef enum { PART_CONFIG, PART_WEIGHTS, PART_COUNT } part;

static const char *const part_names[PART_COUNT] = {"adapter_config.json",
                                                   "adapter_model.safetensors"};

struct upload {
    upload_env env;
    upload_options o;
    char name[ADAPTER_NAME_MAX + 1];
    char description[ADAPTER_DESCRIPTION_MAX];
    char path[PATH_BYTES]; /* of the directory under tmp */
    int dir_fd;
    tar_reader *tar;

    int fd; /* of the file being received; -1: it is skipped */
    part now;
    uint64_t received;
    digest_state *hash;
    bool have[PART_COUNT];
    uint64_t bytes[PART_COUNT];
    uint8_t digest[PART_COUNT][DIGEST_BYTES];
};

/* ---- which files ------------------------------------------------------------------------- */

static bool has_ending(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcasecmp(name + n - m, ending) == 0;
}

/* ERR_NONE: the file is harmless and of no use here. */
static err_code may_skip(const char *name, err *e)
{
    static const char *const pickles[] = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"};
    static const char *const harmless[] = {".md",    ".txt",           ".json", ".jinja",
                                           ".yaml",  ".yml",           ".csv",  ".log",
                                           ".model", ".gitattributes", ".jsonl"};
    static const char *const whole[] = {"LICENSE", "NOTICE", "training_args.bin", ".gitignore"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(name, whole[i]) == 0) return ERR_NONE;
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++)
        if (has_ending(name, pickles[i]))
            return err_set(e, ERR_UNSUPPORTED,
                           "'%.80s' is a pickle, which can run code and is never read: save the "
                           "adapter as safetensors and leave it out",
                           name);
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (has_ending(name, harmless[i])) return ERR_NONE;
    if (has_ending(name, ".safetensors"))
        return err_set(e, ERR_UNSUPPORTED,
                       "'%.80s' is not read: the weights must be in adapter_model.safetensors",
                       name);
    return err_set(e, ERR_INPUT, "'%.80s' is no file of an adapter: leave it out", name);
}

static err_code disk_error(err *e, const char *what)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return err_set(e, ERR_IO, "there is no room for the upload on the server's disk");
    return err_set(e, ERR_IO, "cannot %s the upload: %s", what, strerror(errno));
}

static err_code begin_cb(void *self, const char *name, uint64_t bytes, err *e)
{
    upload *u = self;
    u->fd = -1;
    int p = 0;
    while (p < PART_COUNT && strcmp(part_names[p], name) != 0) p++;
    if (p == PART_COUNT) return may_skip(name, e);
    if (p == PART_CONFIG && bytes > CONFIG_MAX)
        return err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read", name,
                       (unsigned long long)bytes, CONFIG_MAX);
    u->fd = openat(u->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (u->fd < 0) return disk_error(e, "store");
    if (bytes > 0) {
        int rc = posix_fallocate(u->fd, 0, (off_t)bytes); /* a full disk shows now, not at 99 % */
        if (rc != 0) {
            errno = rc;
            return disk_error(e, "make room for");
        }
    }
    u->now = (part)p;
    u->bytes[p] = bytes;
    u->received = 0;
    u->hash = digest_begin();
    return ERR_NONE;
}

static err_code data_cb(void *self, const void *data, size_t len, err *e)
{
    upload *u = self;
    if (u->fd < 0) return ERR_NONE;
    digest_add(u->hash, data, len);
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n = write(u->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return disk_error(e, "store");
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
    digest_end(u->hash, u->digest[u->now]);
    u->hash = NULL;
    u->have[u->now] = true;
    int rc = fsync(u->fd); /* a failed sync is never tried again: the data is in doubt */
    if (close(u->fd) != 0) rc = -1;
    u->fd = -1;
    return rc == 0 ? ERR_NONE : disk_error(e, "sync");
}

/* ---- life ------------------------------------------------------------------------------------ */

static void remove_tmp(const char *path)
{
    char file[PATH_BYTES + 64];
    for (int p = 0; p < PART_COUNT; p++) {
        snprintf(file, sizeof file, "%s/%s", path, part_names[p]);
        unlink(file);
    }
    rmdir(path);
}

void upload_sweep(const char *data_dir)
{
    char root[PATH_BYTES], path[PATH_BYTES + 300];
    snprintf(root, sizeof root, "%s/adapters/tmp", data_dir);
    DIR *d = opendir(root);
    if (d == NULL) return;
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        if (de->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", root, de->d_name);
        remove_tmp(path);
    }
    closedir(d);
}

static err_code open_tmp(upload *u, err *e)
{
    store *st = registry_store(u->env.reg);
    char root[PATH_BYTES];
    snprintf(root, sizeof root, "%s/adapters/tmp", store_dir(st));
    if (mkdir(root, 0700) != 0 && errno != EEXIST) return disk_error(e, "make room for");
    int n = snprintf(u->path, sizeof u->path, "%s/%016llx", root,
                     (unsigned long long)store_next_id(st));
    if (n < 0 || (size_t)n >= sizeof u->path)
        return err_set(e, ERR_IO, "the data directory's path is too long");
    if (mkdir(u->path, 0700) != 0) {
        u->path[0] = 0;
        return disk_error(e, "make room for");
    }
    u->dir_fd = open(u->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return u->dir_fd >= 0 ? ERR_NONE : disk_error(e, "make room for");
}

static err_code check_start(const upload *u, err *e)
{
    if (!name_valid(u->o.name))
        return err_set(e, ERR_INPUT,
                       "an adapter's name is 1 to %d of a-z 0-9 . _ - and starts with a letter or "
                       "digit",
                       ADAPTER_NAME_MAX);
    if (u->o.description != NULL && strlen(u->o.description) >= ADAPTER_DESCRIPTION_MAX)
        return err_set(e, ERR_INPUT, "a description has at most %d bytes",
                       ADAPTER_DESCRIPTION_MAX - 1);
    if (u->o.content_bytes > 0 && (uint64_t)u->o.content_bytes > u->env.max_bytes)
        return err_set(e, ERR_LIMIT, "the upload has %lld bytes; at most %llu are accepted",
                       (long long)u->o.content_bytes, (unsigned long long)u->env.max_bytes);
    return ERR_NONE;
}

err_code upload_begin(upload **out, const upload_env *env, const upload_options *o, err *e)
{
    *out = NULL;
    upload *u = calloc(1, sizeof *u);
    if (u == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    u->env = *env;
    u->o = *o;
    u->dir_fd = u->fd = -1;
    if (u->env.max_bytes == 0) u->env.max_bytes = UPLOAD_MAX;
    err_code code = check_start(u, e);
    if (code == ERR_NONE) {
        snprintf(u->name, sizeof u->name, "%s", o->name);
        u->o.name = u->name;
        if (o->description != NULL) {
            snprintf(u->description, sizeof u->description, "%s", o->description);
            u->o.description = u->description;
        }
        tar_limits limits = {.max_bytes = u->env.max_bytes, .max_files = FILES_MAX};
        tar_sink sink = {.self = u, .begin = begin_cb, .data = data_cb, .end = end_cb};
        u->tar = tar_create(&limits, &sink);
        if (u->tar == NULL) code = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (code == ERR_NONE) code = open_tmp(u, e);
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
    if (u == NULL) return;
    if (u->fd >= 0) close(u->fd);
    if (u->dir_fd >= 0) close(u->dir_fd);
    if (u->path[0] != 0) remove_tmp(u->path);
    digest_drop(u->hash);
    tar_destroy(u->tar);
    free(u);
}

/* ---- publish ------------------------------------------------------------------------------------ */

static bool sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = fsync(fd) == 0;
    close(fd);
    return ok;
}

/* Gives the files their final name, unless the same content is there already. */
static err_code place_files(upload *u, const uint8_t whole[DIGEST_BYTES], err *e)
{
    char path[PATH_BYTES + 80], root[PATH_BYTES];
    registry_path(u->env.reg, whole, path, sizeof path);
    if (fsync(u->dir_fd) != 0) return disk_error(e, "sync");
    if (rename(u->path, path) == 0) {
        u->path[0] = 0;
        snprintf(root, sizeof root, "%s/adapters", store_dir(registry_store(u->env.reg)));
        return sync_dir(root) ? ERR_NONE : disk_error(e, "sync");
    }
    /* A directory that is not empty: the content of a published version, or of one on its way out
     * whose files the lock keeps from going. */
    return errno == EEXIST || errno == ENOTEMPTY ? ERR_NONE : disk_error(e, "store");
}

static err_code check_content(upload *u, registry_new_version *nv, char *info, size_t cap, err *e)
{
    for (int p = 0; p < PART_COUNT; p++)
        if (!u->have[p]) return err_set(e, ERR_INPUT, "the tar holds no %s", part_names[p]);
    adapter_layout al;
    err_code code = validate_adapter(u->dir_fd, u->env.base, u->env.rank_max, true, &al, e);
    if (code != ERR_NONE) return code;
    nv->rank_max = al.peft.rank_max;
    nv->file_bytes = al.file_bytes;
    nv->packed_bytes = u->env.be != NULL ? adapter_packed_bytes(&al, u->env.base, u->env.be)
                                         : u->bytes[PART_WEIGHTS];
    adapter_describe(&al, info, cap);
    adapter_layout_clear(&al);
    if (u->env.max_packed_bytes > 0 && nv->packed_bytes > u->env.max_packed_bytes)
        return err_set(e, ERR_LIMIT,
                       "the adapter takes %llu bytes in memory; this server has %llu for adapters",
                       (unsigned long long)nv->packed_bytes,
                       (unsigned long long)u->env.max_packed_bytes);
    return ERR_NONE;
}

err_code upload_finish(upload *u, adapter_version *out, bool *existed, err *e)
{
    char info[ADAPTER_INFO_MAX];
    uint8_t whole[DIGEST_BYTES];
    registry_new_version nv = {.tenant_id = u->o.tenant_id,
                               .name = u->o.name,
                               .description = u->o.description,
                               .digest = whole,
                               .info = info,
                               .activate = u->o.activate,
                               .max_adapters = u->o.max_adapters,
                               .max_bytes = u->o.max_bytes};
    err_code code = tar_finish(u->tar, e);
    if (code == ERR_NONE) code = check_content(u, &nv, info, sizeof info, e);
    if (code == ERR_NONE) {
        adapter_digest_parts(u->bytes, (const uint8_t(*)[DIGEST_BYTES])u->digest, whole);
        registry_files_lock(u->env.reg);
        code = place_files(u, whole, e);
        if (code == ERR_NONE) code = registry_publish(u->env.reg, &nv, out, existed, e);
        /* Refused for a limit or a name: files that no version has go again. */
        if (code != ERR_NONE) registry_files_forget(u->env.reg, whole);
        registry_files_unlock(u->env.reg);
    }
    upload_abort(u);
    return code;
}
