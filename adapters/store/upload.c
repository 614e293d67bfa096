/* upload.c -- from the bytes of a tar, or of file after file, to a published version.
 *
 *   bytes -> tar.c -> data_cb: quota, disk space, SHA-256, 256 KiB buffer -> adapters/tmp/X/file
 *   upload_finish: GGUF or another kind of adapter? -> rewritten to PEFT's two files
 *                  -> publish.c checks it, renames the folder, adds the version
 *
 * Each upload has a directory of its own under adapters/tmp, opened once.  Files are made in it by
 * fixed names with openat() and O_EXCL, so a name from the archive is never used as a path.
 *
 * Space is taken before bytes are written: from the tenant's quota and from the disk, by the file's
 * size, or in steps of 4 MiB if that is unknown.  Files stay open until they are synced; the disk
 * starts writing while the rest arrives (sync_file_range()), so the final sync is short.
 *
 * On any failure upload_abort() removes the directory and returns the quota.
 */
#include "adapters/store/upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/gguf.h"
#include "adapters/format/kinds.h"
#include "adapters/format/retype.h"
#include "adapters/format/tar.h"
#include "adapters/format/words.h"
#include "storage/digest.h"

enum { ROOM_STEP = 4 << 20 /* taken at once for a file of unknown size */ };
enum {
    COPY_PIECE = 256 << 10,
    GATHER = 256 << 10,  /* written at once: a TLS record for each call costs twice the time */
    WRITE_STEP = 1 << 20 /* that the disk is told to begin with */
};
static const uint64_t UPLOAD_MAX = 2ull << 30;

struct upload {
    upload_env env;
    upload_options o;
    char name[ADAPTER_NAME_MAX + 1];
    char description[ADAPTER_DESCRIPTION_MAX];
    char path[FOLDER_PATH_MAX]; /* of the directory under tmp */
    int dir_fd;
    tar_reader *tar;

    int fd;         /* of the file being received; -1: it is skipped */
    char *gathered; /* [GATHER], the last of what was received of it; NULL: nothing yet */
    size_t n_gathered;
    folder_part now;
    uint64_t received, room; /* of it; what was asked of the room for it */
    uint64_t writing;        /* of it, what the disk was told to write */
    bool taken;              /* the file's room is its own */
    bool no_tar;             /* files come one by one */
    uint64_t held;           /* of the tenant's quota */
    digest_state hash;
    bool gguf;          /* the weights came as a GGUF */
    int kept[PART_ALL]; /* open until they are synced; -1: none */
    bool have[PART_ALL];
    uint64_t bytes[PART_ALL];
    uint8_t digest[PART_ALL][DIGEST_BYTES];
};

/* ---- files ----------------------------------------------------------------------- */

/* The tenant's quota, then the disk. */
static err_code take_room(upload *u, int fd, uint64_t bytes, bool *taken, err *e)
{
    err_code code = storeroom_hold(u->env.room, u->env.reg, u->o.tenant_id, bytes, &u->o.quota, e);
    if (code != ERR_NONE) return code;
    u->held += bytes;
    return storeroom_take(u->env.room, fd, bytes, taken, e);
}

/* Whether a part may have so many bytes. */
static err_code check_size(folder_part p, uint64_t bytes, err *e)
{
    int most = p == PART_CONFIG ? FOLDER_CONFIG_MAX : p >= PART_COUNT ? WORDS_FILE_MAX : 0;
    if (most == 0 || bytes <= (uint64_t)most) return ERR_NONE;
    return err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read", folder_part_names[p],
                   (unsigned long long)bytes, most);
}

static err_code file_begin(upload *u, const char *name, int64_t bytes, err *e)
{
    u->fd = -1;
    folder_part p = folder_part_of(name);
    if (p == PART_ALL && folder_is_gguf(name)) {
        if (u->gguf) return err_set(e, ERR_INPUT, "'%.80s' is a second GGUF", name);
        u->gguf = true;
        name = folder_gguf_name;
        p = PART_WEIGHTS;
    }
    if (p == PART_ALL) return folder_may_skip(name, e);
    if (u->have[p])
        return p == PART_WEIGHTS
                   ? err_set(e, ERR_INPUT, "there are weights twice: safetensors and GGUF")
                   : err_set(e, ERR_INPUT, "%s comes twice", name);
    err_code code = bytes > 0 ? check_size(p, (uint64_t)bytes, e) : ERR_NONE;
    if (code != ERR_NONE) return code;
    u->fd = openat(u->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (u->fd < 0) return folder_disk_error(e, "store");
    u->now = p;
    u->received = u->room = u->writing = u->n_gathered = 0;
    u->taken = true;
    digest_begin(&u->hash);
    if (bytes < 0) return ERR_NONE;
    u->room = (uint64_t)bytes;
    return take_room(u, u->fd, u->room, &u->taken, e);
}

/* More space, if the size is not known before. */
static err_code more_room(upload *u, size_t len, err *e)
{
    uint64_t more = len > ROOM_STEP ? len : ROOM_STEP;
    err_code code = check_size(u->now, u->received + len, e);
    if (code != ERR_NONE || u->received + len <= u->room) return code;
    bool taken = false;
    code = take_room(u, u->fd, more, &taken, e);
    u->room = u->received + more;
    u->taken = u->taken && taken;
    return code;
}

/* ---- bytes ------------------------------------------------------------------------------- */

/* The disk writes while the rest arrives, so that little is left for the sync. */
static void begin_writing(upload *u)
{
    uint64_t written = u->received - u->n_gathered, n = written - u->writing;
    if (n < WRITE_STEP) return;
    (void)sync_file_range(u->fd, (off_t)u->writing, (off_t)n, SYNC_FILE_RANGE_WRITE);
    u->writing = written;
}

static err_code write_gathered(upload *u, err *e)
{
    size_t n = u->n_gathered;
    u->n_gathered = 0;
    return n ? folder_put(u->fd, u->gathered, n, e) : ERR_NONE;
}

/* Writes to the file, or collects small pieces. */
static err_code put(upload *u, const void *data, size_t len, err *e)
{
    err_code code = u->n_gathered + len > GATHER ? write_gathered(u, e) : ERR_NONE;
    if (code != ERR_NONE) return code;
    if (len >= GATHER) return folder_put(u->fd, data, len, e);
    if (!u->gathered && (u->gathered = malloc(GATHER)) == NULL)
        return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(u->gathered + u->n_gathered, data, len);
    u->n_gathered += len;
    return ERR_NONE;
}

static err_code data_cb(void *self, const void *data, size_t len, err *e)
{
    upload *u = self;
    if (u->fd < 0) return ERR_NONE;
    err_code code = more_room(u, len, e);
    if (code == ERR_NONE && !u->taken) code = storeroom_check(u->env.room, len, e);
    if (code != ERR_NONE) return code;
    digest_add(&u->hash, data, len);
    code = put(u, data, len, e);
    if (code != ERR_NONE) return code;
    u->received += len;
    begin_writing(u);
    return ERR_NONE;
}

static err_code end_cb(void *self, err *e)
{
    upload *u = self;
    if (u->fd < 0) return ERR_NONE;
    err_code code = write_gathered(u, e);
    if (code != ERR_NONE) return code;
    digest_end(&u->hash, u->digest[u->now]);
    u->have[u->now] = true;
    u->bytes[u->now] = u->received;
    storeroom_give_back(u->fd);
    (void)sync_file_range(u->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    u->kept[u->now] = u->fd;
    u->fd = -1;
    return ERR_NONE;
}

static err_code begin_cb(void *self, const char *name, uint64_t bytes, err *e)
{
    return file_begin(self, name, (int64_t)bytes, e);
}

err_code upload_file_begin(upload *u, const char *name, int64_t bytes, err *e)
{
    u->no_tar = true;
    return file_begin(u, name, bytes, e);
}

err_code upload_file_write(upload *u, const void *data, size_t len, err *e)
{
    return data_cb(u, data, len, e);
}

err_code upload_file_end(upload *u, err *e)
{
    return end_cb(u, e);
}

/* `name` is one of the fixed names; a missing file is left out. */
static err_code copy_file(upload *u, int from_fd, const char *name, uint64_t *sum, err *e)
{
    struct stat sb;
    int fd = openat(from_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return ERR_NONE;
    char *piece = malloc(COPY_PIECE);
    err_code code = ERR_NONE;
    if (fd < 0 || fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        code = err_set(e, ERR_INPUT, "%s is not a readable regular file", name);
    else if (!piece)
        code = err_set(e, ERR_NOMEM, "out of memory");
    else if ((*sum += (uint64_t)sb.st_size) > u->env.max_bytes)
        code = err_set(e, ERR_LIMIT, "the folder has %llu bytes; at most %llu are accepted",
                       (unsigned long long)*sum, (unsigned long long)u->env.max_bytes);
    if (code == ERR_NONE) code = upload_file_begin(u, name, sb.st_size, e);
    for (off_t at = 0; code == ERR_NONE && at < sb.st_size;) {
        off_t left = sb.st_size - at;
        size_t n = left < COPY_PIECE ? (size_t)left : COPY_PIECE;
        if (!folder_read_at(fd, piece, n, (uint64_t)at))
            code = err_set(e, ERR_INPUT, "%s became shorter while it was read", name);
        else
            code = upload_file_write(u, piece, n, e);
        at += (off_t)n;
    }
    if (code == ERR_NONE) code = upload_file_end(u, e);
    free(piece);
    if (fd >= 0) close(fd);
    return code;
}

err_code upload_copy(upload *u, int dir_fd, err *e)
{
    uint64_t sum = 0;
    err_code code = ERR_NONE;
    for (int p = 0; p < PART_ALL && code == ERR_NONE; p++)
        code = copy_file(u, dir_fd, folder_part_names[p], &sum, e);
    return code;
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
    for (int p = 0; p < PART_ALL; p++) u->kept[p] = -1;
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
    for (int p = 0; p < PART_ALL; p++)
        if (u->kept[p] >= 0) close(u->kept[p]);
    if (u->dir_fd >= 0) close(u->dir_fd);
    if (u->path[0] != 0) folder_remove(u->path);
    storeroom_unhold(u->env.room, u->o.tenant_id, u->held);
    tar_destroy(u->tar);
    free(u->gathered);
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
    if (end < 0) return folder_disk_error(e, "store");
    u->bytes[p] = (uint64_t)end;
    u->have[p] = true;
    return folder_hash(fd, u->digest[p], e);
}

/* Opens a received part for reading and frees its name for another file. */
static int reopen(const upload *u, const char *name)
{
    int fd = openat(u->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) unlinkat(u->dir_fd, name, 0);
    return fd;
}

/* An upload that is converted to PEFT's two files, which all other code expects: another kind of
 * PEFT adapter, weights of other types with their configuration, or one GGUF. */
typedef struct source {
    const kinds *k;
    const retype *r;
    int in;         /* the configuration, or the GGUF */
    uint64_t bytes; /* of the weights to come */
} source;

static err_code rewrite(upload *u, const source *from, err *e)
{
    int fd[PART_COUNT] = {part_fd(u, PART_CONFIG), part_fd(u, PART_WEIGHTS)};
    err_code code = ERR_NONE;
    bool taken;
    if (fd[PART_CONFIG] < 0 || fd[PART_WEIGHTS] < 0) code = folder_disk_error(e, "store");
    if (code == ERR_NONE) code = take_room(u, fd[PART_WEIGHTS], from->bytes, &taken, e);
    if (code == ERR_NONE && from->k)
        code = kinds_write(from->k, fd[PART_CONFIG], fd[PART_WEIGHTS], e);
    else if (code == ERR_NONE && from->r)
        code = retype_write(from->r, from->in, fd[PART_CONFIG], fd[PART_WEIGHTS], e);
    else if (code == ERR_NONE)
        code =
            gguf_convert(from->in, from->bytes, u->env.base, fd[PART_CONFIG], fd[PART_WEIGHTS], e);
    for (int p = 0; p < PART_COUNT && code == ERR_NONE; p++)
        code = finish_part(u, (folder_part)p, fd[p], e);
    for (int p = 0; p < PART_COUNT; p++) {
        if (u->kept[p] >= 0) close(u->kept[p]);
        u->kept[p] = fd[p];
    }
    return code;
}

static err_code rewrite_gguf(upload *u, err *e)
{
    if (u->have[PART_CONFIG])
        return err_set(e, ERR_INPUT, "a GGUF says all by itself: leave adapter_config.json out");
    int in = reopen(u, folder_gguf_name);
    /* The same matrices again, under another header. */
    err_code code = in >= 0 ? rewrite(u, &(source){NULL, NULL, in, u->bytes[PART_WEIGHTS]}, e)
                            : folder_disk_error(e, "read");
    if (in >= 0) close(in);
    return code;
}

static err_code rewrite_folder(upload *u, err *e)
{
    int in[PART_COUNT];
    kinds *k = NULL;
    retype *r = NULL;
    for (int p = 0; p < PART_COUNT; p++)
        in[p] = openat(u->dir_fd, folder_part_names[p], O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    err_code code = in[0] >= 0 && in[1] >= 0
                        ? kinds_open(&k, in[PART_CONFIG], in[PART_WEIGHTS], u->env.base,
                                     u->env.rank_max, u->env.max_bytes, e)
                        : folder_disk_error(e, "read");
    if (code == ERR_NONE && !k) code = retype_open(&r, in[PART_WEIGHTS], u->env.max_bytes, e);
    for (int p = 0; p < PART_COUNT && (k || r); p++) unlinkat(u->dir_fd, folder_part_names[p], 0);
    source from = {k, r, in[PART_CONFIG], k ? kinds_bytes(k) : r ? retype_bytes(r) : 0};
    if (k || r) code = rewrite(u, &from, e);
    kinds_close(k);
    retype_close(r);
    for (int p = 0; p < PART_COUNT; p++)
        if (in[p] >= 0) close(in[p]);
    return code;
}

err_code upload_finish(upload *u, adapter_version *out, bool *existed, err *e)
{
    adapter_version v;
    bool again = false;
    err_code code = u->no_tar ? ERR_NONE : tar_finish(u->tar, e);
    if (code == ERR_NONE && u->gguf) code = rewrite_gguf(u, e);
    for (int p = 0; p < PART_COUNT && code == ERR_NONE; p++)
        if (!u->have[p])
            code = err_set(e, ERR_INPUT, "the upload holds no %s", folder_part_names[p]);
    if (code == ERR_NONE && !u->gguf) code = rewrite_folder(u, e);
    if (code == ERR_NONE)
        code = publish_folder(&u->env, &u->o, u->path, u->dir_fd, u->kept, u->bytes,
                              (const uint8_t(*)[DIGEST_BYTES])u->digest, &v, &again, e);
    if (code == ERR_NONE && !again && u->env.fill)
        u->env.fill(u->env.filler, v.id, u->kept[PART_WEIGHTS], u->bytes[PART_WEIGHTS]);
    if (code == ERR_NONE && out) *out = v;
    if (code == ERR_NONE && existed) *existed = again;
    upload_abort(u);
    return code;
}
