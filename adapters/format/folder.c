/* folder.c -- files of an adapter: which names may stand there, reading, errors of the disk.
 *
 * Names are judged, not contents: a part is read, harmless files (a README, what a Trainer
 * leaves) are passed over, a pickle is refused with the way to convert it, since reading one can
 * run code.
 *
 * Links in a path that a tenant names may change while it is opened. So this takes three steps:
 * realpath(), and a check that the result lies inside a root; open() of the last part, which
 * follows no link; the same check of the opened directory's own path. A path outside the roots
 * gets the same error whether it exists or not.
 *
 * Threads: any; nothing is kept.
 */
#include "adapters/format/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "storage/disk.h"

enum { CHUNK = 1 << 18 };

const char *const folder_part_names[PART_ALL] = {"adapter_config.json", "adapter_model.safetensors",
                                                 "tokenizer.json", "tokenizer_config.json",
                                                 "added_tokens.json"};

folder_part folder_part_of(const char *name)
{
    int p = 0;
    while (p < PART_ALL && strcmp(folder_part_names[p], name) != 0) p++;
    return (folder_part)p;
}

static bool has_ending(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcasecmp(name + n - m, ending) == 0;
}

const char folder_gguf_name[] = "adapter.gguf";

bool folder_is_gguf(const char *name)
{
    return has_ending(name, ".gguf");
}

err_code folder_may_skip(const char *name, err *e)
{
    static const char *const pickles[] = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"};
    static const char *const harmless[] = {".md",    ".txt",           ".json", ".jinja",
                                           ".yaml",  ".yml",           ".csv",  ".log",
                                           ".model", ".gitattributes", ".jsonl"};
    /* The second row is what a Trainer leaves in each checkpoint: pickles,
     * too, but nobody needs them. */
    static const char *const whole[] = {"LICENSE",          "NOTICE",       ".gitignore",
                                        "optimizer.pt",     "scheduler.pt", "scaler.pt",
                                        "training_args.bin"};
    for (size_t i = 0; i < sizeof whole / sizeof(*whole); i++)
        if (strcmp(name, whole[i]) == 0) return ERR_NONE;
    if (strncmp(name, "rng_state", 9) == 0 && has_ending(name, ".pth")) return ERR_NONE;
    for (size_t i = 0; i < sizeof pickles / sizeof(*pickles); i++)
        if (has_ending(name, pickles[i]))
            return err_set(e, ERR_UNSUPPORTED,
                           "'%.80s' is a pickle, which can run code and is never read. To convert: "
                           "PeftModel.from_pretrained(base, folder).save_pretrained(folder, "
                           "safe_serialization=True); then leave it out",
                           name);
    for (size_t i = 0; i < sizeof harmless / sizeof(*harmless); i++)
        if (has_ending(name, harmless[i])) return ERR_NONE;
    if (has_ending(name, ".safetensors"))
        return err_set(e, ERR_UNSUPPORTED,
                       "'%.80s' is not read: the weights must be in adapter_model.safetensors",
                       name);
    return err_set(e, ERR_INPUT, "'%.80s' is not a file of an adapter: remove it", name);
}

err_code folder_disk_error(err *e, const char *what)
{
    if (disk_is_full(errno))
        return err_set(e, ERR_NO_ROOM, "The server's disk is too full for this upload");
    return err_set(e, ERR_IO, "cannot %s the upload: %s", what, strerror(errno));
}

/* ---- roots ---------------------------------------------------------------------------------- */

static bool inside(const char *path, const char *root)
{
    size_t n = strlen(root);
    if (n == 1) return true; /* the operator said "/" */
    return strncmp(path, root, n) == 0 && (path[n] == 0 || path[n] == '/');
}

/* Inside of a root of the list, or of the folder `own` in it. */
static bool inside_any(const char *path, const char *roots, const char *own)
{
    char one[PATH_MAX], real[PATH_MAX];
    for (const char *p = roots; *p != 0;) {
        p += strspn(p, ", ");
        size_t n = strcspn(p, ",");
        size_t len = n;
        while (len > 0 && p[len - 1] == ' ') len--;
        int made = snprintf(one, sizeof one, "%.*s%s%s", (int)len, p, own != NULL ? "/" : "",
                            own != NULL ? own : "");
        if (len > 0 && made > 0 && (size_t)made < sizeof one && realpath(one, real) != NULL &&
            inside(path, real))
            return true;
        p += n;
    }
    return false;
}

/* The present path of an open directory; it may have been renamed since it was opened. */
static bool path_of_fd(int fd, char *path)
{
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n > 0) path[n] = 0;
    return n > 0;
}

err_code folder_open_in(const char *roots, const char *own, const char *path, char *real, int *fd,
                        err *e)
{
    *fd = -1;
    if (path[0] != '/') return err_set(e, ERR_INPUT, "the path must be absolute");
    bool found = realpath(path, real) != NULL;
    /* What lies outside is not even told to be missing. */
    bool ok = (found || !strstr(path, "/..")) && inside_any(found ? real : path, roots, own);
    if (ok && found) *fd = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    /* A folder on the way may have become a link since. */
    if (*fd >= 0) ok = path_of_fd(*fd, real) && inside_any(real, roots, own);
    if (ok && *fd >= 0) return ERR_NONE;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    if (ok) return err_set(e, ERR_NOT_FOUND, "the directory does not exist");
    return own != NULL
               ? err_set(e, ERR_DENIED,
                         "the path must be inside the folder '%s' of one of adapters.roots", own)
               : err_set(e, ERR_DENIED, "the path must be inside one of adapters.roots");
}

bool folder_read_at(int fd, void *out, size_t n, uint64_t offset)
{
    char *p = out;
    while (n > 0) {
        ssize_t done = pread(fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return true;
}

err_code folder_put(int fd, const void *data, size_t len, err *e)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return folder_disk_error(e, "store");
        p += n;
        len -= (size_t)n;
    }
    return ERR_NONE;
}

err_code folder_hash(int fd, uint8_t out[DIGEST_BYTES], err *e)
{
    char *chunk = malloc(CHUNK);
    if (!chunk) return err_set(e, ERR_NOMEM, "out of memory");
    digest_state d;
    digest_begin(&d);
    off_t at = 0;
    ssize_t n;
    while ((n = pread(fd, chunk, CHUNK, at)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        digest_add(&d, chunk, (size_t)n);
        at += n;
    }
    free(chunk);
    if (n < 0) return folder_disk_error(e, "read");
    digest_end(&d, out);
    return ERR_NONE;
}

void folder_remove(const char *path)
{
    char file[FOLDER_PATH_MAX + 300];
    if (unlink(path) == 0) return; /* a link to a folder elsewhere, whose files are not ours */
    for (int p = 0; p < PART_ALL; p++) {
        snprintf(file, sizeof file, "%s/%s", path, folder_part_names[p]);
        unlink(file);
    }
    snprintf(file, sizeof file, "%s/%s", path, folder_gguf_name);
    unlink(file);
    if (rmdir(path) != 0 && errno != ENOENT)
        log_warn("adapters", "cannot remove a folder that is not used any more: %s",
                 strerror(errno));
}
