/* inplace.c -- registers adapters where they lie: walks a tree of folders, checks each adapter,
 * writes its row.
 *
 * The files stay the operator's. adapters/<digest> becomes a symbolic link to the folder, where
 * an upload would have put a copy; everything behind it is the same. part_sha is not recorded
 * for such a version, so that a later upload of equal bytes is never hard-linked to a file that
 * lorad does not own.
 *
 * The walk trusts the tree's root (an allowed path of lorad.conf) and nothing below it: folders
 * are opened by openat() with O_NOFOLLOW, files must be regular, the depth is bounded. A folder
 * with adapter_config.json is an adapter and is not searched further.
 *
 * Each folder is reported through `seen`, good or bad, and the walk goes on: one broken adapter
 * must not stop the registration of a thousand others. Names are made from the path below the
 * root; `names` holds those of this call, because two folders whose paths map to one name would
 * become versions of each other.
 */
#include "adapters/residency/inplace.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/words.h"
#include "engine/base/durable.h"

typedef struct walk {
    const upload_env *env;
    const publish_options *o;
    inplace_seen seen;
    void *self;
    inplace_totals *totals;
    size_t top; /* length of the tree's own path in `path` */
    char path[PATH_MAX];
    void *names; /* tsearch: of this call, so that two folders never become one name's versions */
} walk;

/* ---- one folder ----------------------------------------------------------------------------- */

/* The path below the tree (or the tree's own last part) as a name. */
static bool name_of(const walk *w, char name[ADAPTER_NAME_MAX + 1])
{
    const char *p = w->path + w->top;
    if (*p == 0) p = strrchr(w->path, '/');
    while (*p == '/') p++;
    size_t n = 0;
    for (; *p != 0; p++) {
        if (n == ADAPTER_NAME_MAX) return false;
        unsigned char c = (unsigned char)*p;
        name[n++] = (char)(isalnum(c) && c < 128 ? tolower(c) : c == '.' || c == '_' ? c : '-');
    }
    name[n] = 0;
    return name_valid(name);
}

static err_code hash_part(int dir_fd, int p, uint64_t *bytes, uint8_t sha[DIGEST_BYTES], err *e)
{
    struct stat sb;
    int fd = openat(dir_fd, folder_part_names[p], O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return err_set(e, ERR_INPUT,
                       errno == ELOOP ? "%s is a link, which is not followed"
                                      : "%s is missing or cannot be read",
                       folder_part_names[p]);
    err_code rc = ERR_NONE;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        rc = err_set(e, ERR_INPUT, "%s is not a regular file", folder_part_names[p]);
    else if (p == PART_CONFIG && sb.st_size > FOLDER_CONFIG_MAX)
        rc = err_set(e, ERR_LIMIT, "%s has %lld bytes; at most %d are read", folder_part_names[p],
                     (long long)sb.st_size, FOLDER_CONFIG_MAX);
    else
        rc = folder_hash(fd, sha, e);
    *bytes = (uint64_t)sb.st_size;
    close(fd);
    return rc;
}

/* adapters/<digest> as a link to the folder.  One that was there is replaced: this one was just
 * read and is right.  Our own copy of the content stays. */
static err_code link_folder(const walk *w, const uint8_t digest[DIGEST_BYTES], err *e)
{
    char to[FOLDER_PATH_MAX + 80], fresh[FOLDER_PATH_MAX + 90];
    registry_path(w->env->reg, digest, to, sizeof to);
    snprintf(fresh, sizeof fresh, "%s.link", to);
    unlink(fresh);
    if (symlink(w->path, fresh) != 0) return folder_disk_error(e, "link");
    if (rename(fresh, to) == 0) return ERR_NONE;
    int why = errno;
    unlink(fresh);
    errno = why;
    return why == EISDIR || why == ENOTEMPTY || why == EEXIST ? ERR_NONE
                                                              : folder_disk_error(e, "link");
}

/* A folder of the operator's becomes a version without a copy: hashed, checked, then a link in
 * adapters/ in the place of the folder. */
static err_code register_one(walk *w, int dir_fd, const char *name, adapter_version *v,
                             bool *existed, err *e)
{
    char info[ADAPTER_INFO_MAX];
    uint64_t bytes[PART_COUNT];
    uint8_t sha[PART_COUNT][DIGEST_BYTES], whole[DIGEST_BYTES];
    registry_new_version nv = {.tenant_id = w->o->tenant_id,
                               .name = name,
                               .digest = whole,
                               .info = info,
                               .activate = w->o->activate,
                               .max_adapters = w->o->max_adapters,
                               .max_bytes = w->o->quota.bytes,
                               .in_place = true};
    /* part_sha stays unknown: an upload never links to files that are the operator's. */
    err_code rc = registry_check_name(w->env->reg, name, e);
    for (int p = 0; p < PART_COUNT && !rc; p++) rc = hash_part(dir_fd, p, &bytes[p], sha[p], e);
    char *text = NULL;
    if (!rc) rc = publish_check(w->env, dir_fd, bytes, &nv, info, sizeof info, &text, e);
    if (rc) {
        free(text);
        return rc;
    }
    adapter_digest(bytes, (const uint8_t(*)[DIGEST_BYTES])sha, text, whole);
    registry_files_lock(w->env->reg);
    rc = link_folder(w, whole, e);
    if (!rc) rc = registry_publish(w->env->reg, &nv, v, existed, e);
    if (rc) registry_files_forget(w->env->reg, whole);
    registry_files_unlock(w->env->reg);
    free(text);
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* False: another folder of this call has the name, or there is no memory. */
static bool name_is_new(walk *w, const char *name)
{
    char *copy = strdup(name);
    char **at = copy != NULL ? tsearch(copy, &w->names, by_text) : NULL;
    if (at && *at == copy) return true;
    free(copy);
    return false;
}

/* Not inlined: its buffers would stand once for each level of the walk, and
 * a worker's stack is small. */
__attribute__((noinline)) static void take_folder(walk *w, int dir_fd)
{
    char name[ADAPTER_NAME_MAX + 1];
    adapter_version v;
    bool existed = false;
    err why;
    err_code rc;
    if (!name_of(w, name))
        rc = err_set(&why, ERR_INPUT,
                     "the path makes no name of 1 to %d characters that starts with a letter or "
                     "digit",
                     ADAPTER_NAME_MAX);
    else if (!name_is_new(w, name))
        rc = err_set(&why, ERR_EXISTS, "another folder of the tree has the name '%s', too", name);
    else
        rc = register_one(w, dir_fd, name, &v, &existed, &why);
    const char *shown = w->path + w->top;
    while (*shown == '/') shown++;
    if (rc)
        w->totals->n_refused++;
    else if (existed)
        w->totals->n_unchanged++;
    else
        w->totals->n_registered++;
    w->seen(w->self, *shown != 0 ? shown : ".", rc == ERR_NONE ? &v : NULL, existed,
            rc == ERR_NONE ? NULL : &why);
}

/* ---- the tree ------------------------------------------------------------------------------- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int no_dots(const struct dirent *de)
{
    return de->d_name[0] != '.';
}

/* `dir_fd` is the folder at w->path. */
static void walk_folder(walk *w, int dir_fd, int depth)
{
    struct stat sb;
    if (fstatat(dir_fd, folder_part_names[PART_CONFIG], &sb, AT_SYMLINK_NOFOLLOW) == 0) {
        take_folder(w, dir_fd);
        return;
    }
    if (depth == INPLACE_DEPTH_MAX) return;
    struct dirent **list;
    int n = scandirat(dir_fd, ".", &list, no_dots, by_name);
    size_t len = strlen(w->path);
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && len + strlen(name) + 2 < sizeof w->path) {
            snprintf(w->path + len, sizeof w->path - len, "/%s", name);
            walk_folder(w, fd, depth + 1);
            w->path[len] = 0;
        }
        if (fd >= 0) close(fd);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

/* w->path: the tree's own. */
static err_code walk_tree(walk *w, const char *roots, const char *path, err *e)
{
    int fd = -1;
    err_code rc = folder_open_in(roots, NULL, path, w->path, &fd, e);
    if (rc) return rc;
    w->top = strlen(w->path);
    walk_folder(w, fd, 0);
    close(fd);
    tdestroy(w->names, free);
    return ERR_NONE;
}

err_code inplace_register(const upload_env *env, const char *roots, const char *path,
                          const publish_options *o, inplace_seen seen, void *self,
                          inplace_totals *out, err *e)
{
    memset(out, 0, sizeof(*out));
    walk *w = malloc(sizeof(*w));
    if (!w) return err_set(e, ERR_NOMEM, "out of memory");
    *w = (walk){.env = env, .o = o, .seen = seen, .self = self, .totals = out};
    err_code rc = walk_tree(w, roots, path, e);
    free(w);
    char root[FOLDER_PATH_MAX];
    snprintf(root, sizeof root, "%s/adapters", store_dir(registry_store(env->reg)));
    if (!rc && !durable_sync(root)) rc = folder_disk_error(e, "sync");
    return rc;
}
