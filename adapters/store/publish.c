/* publish.c -- makes an upload a version: checks it, names its folder, writes the row.
 *
 *     adapters/tmp/ID   the upload's files, until they are complete
 *     check             configuration, weights, words; size in memory
 *     sync              each file, and the folder
 *     depot             a copy in the object store, where there is one
 *     rename            to adapters/DIGEST, named by content: equal uploads are one folder
 *     row               from here on the version exists
 *
 * A crash before the row leaves files that no version has: the sweep of the next start removes
 * tmp/, and the registry removes folders that no row names. The lock of files is held from the
 * rename to the row, so that no deletion of an equal version takes the folder away in between.
 *
 * A folder of that name whose files have rotted is exchanged for the fresh one, which mends
 * every version that has it.
 */
#include "adapters/store/publish.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/extent.h"
#include "adapters/format/validate.h"
#include "adapters/format/words.h"
#include "engine/base/durable.h"
#include "engine/base/log.h"

err_code publish_check_names(const char *name, const char *description, err *e)
{
    if (!name_valid(name))
        return err_set(e, ERR_INPUT,
                       "an adapter's name is 1 to %d of a-z 0-9 . _ - and starts with a letter or "
                       "digit",
                       ADAPTER_NAME_MAX);
    if (description && strlen(description) >= ADAPTER_DESCRIPTION_MAX)
        return err_set(e, ERR_INPUT, "a description has at most %d bytes",
                       ADAPTER_DESCRIPTION_MAX - 1);
    return ERR_NONE;
}

err_code publish_tmp(registry *reg, char path[FOLDER_PATH_MAX], int *dir_fd, err *e)
{
    store *st = registry_store(reg);
    char root[FOLDER_PATH_MAX];
    *dir_fd = -1;
    path[0] = 0;
    snprintf(root, sizeof root, "%s/adapters/tmp", store_dir(st));
    if (mkdir(root, 0700) != 0 && errno != EEXIST) return folder_disk_error(e, "make room for");
    int n =
        snprintf(path, FOLDER_PATH_MAX, "%s/%016llx", root, (unsigned long long)store_next_id(st));
    if (n < 0 || n >= FOLDER_PATH_MAX) {
        path[0] = 0;
        return err_set(e, ERR_IO, "the data directory's path is too long");
    }
    if (mkdir(path, 0700) != 0) {
        path[0] = 0;
        return folder_disk_error(e, "make room for");
    }
    *dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *dir_fd >= 0 ? ERR_NONE : folder_disk_error(e, "make room for");
}

void publish_sweep(const char *data_dir)
{
    char root[FOLDER_PATH_MAX], path[FOLDER_PATH_MAX + 300];
    snprintf(root, sizeof root, "%s/adapters/tmp", data_dir);
    DIR *d = opendir(root);
    if (!d) return;
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        if (de->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", root, de->d_name);
        folder_remove(path);
    }
    closedir(d);
}

/* The adapter learnt beside other weights than ours: nothing is wrong, and nobody else would say
 * so. */
static void tell_other_base(const adapter_layout *al, const model_config *base, const char *name)
{
    const char *format = peft_base_format(al->peft.base_name);
    if (!format || strncmp(format, base->format, strlen(format)) == 0) return;
    if (strcmp(format, "NF4") == 0)
        log_warn("adapters",
                 "'%s' was trained on a base in NF4 (QLoRA), which rounds otherwise than our %s: "
                 "its answers may differ from those that its author saw",
                 name, base->format);
    else
        log_warn("adapters",
                 "'%s' names a base in %s, and ours is in %s: its answers may differ from those "
                 "that its author saw",
                 name, format, base->format);
}

err_code publish_check(const upload_env *env, int dir_fd, const uint64_t bytes[PART_COUNT],
                       registry_new_version *nv, char *info, size_t cap, char **text, err *e)
{
    adapter_layout al;
    *text = NULL;
    err_code code = validate_adapter(dir_fd, env->base, env->rank_max, true, &al, e);
    if (code != ERR_NONE) return code;
    nv->rank_max = al.peft.rank_max;
    nv->file_bytes = al.file_bytes;
    nv->packed_bytes =
        env->be != NULL ? extent_packed_bytes(&al, env->base, env->be) : bytes[PART_WEIGHTS];
    adapter_describe(&al, info, cap);
    tell_other_base(&al, env->base, nv->name ? nv->name : "an adapter");
    if (al.idle)
        log_warn("adapters", "'%s' changes nothing: its products are zero, as before a training",
                 nv->name ? nv->name : "an adapter");
    code = words_read(dir_fd, &al, env->base, env->tok, text, e);
    nv->words = *text;
    adapter_layout_clear(&al);
    if (code != ERR_NONE) return code;
    if (env->max_packed_bytes > 0 && nv->packed_bytes > env->max_packed_bytes)
        return err_set(e, ERR_LIMIT,
                       "the adapter needs %llu bytes in memory; this server has %llu for adapters",
                       (unsigned long long)nv->packed_bytes,
                       (unsigned long long)env->max_packed_bytes);
    return ERR_NONE;
}

/* Do the files at `path` still have the content that its name promises? */
static bool is_whole(const char *path, const uint8_t sha[PART_COUNT][DIGEST_BYTES])
{
    int dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    bool whole = dir_fd >= 0;
    for (int p = 0; p < PART_COUNT && whole; p++) {
        uint8_t got[DIGEST_BYTES];
        int fd = openat(dir_fd, folder_part_names[p], O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        whole = fd >= 0 && folder_hash(fd, got, NULL) == ERR_NONE &&
                memcmp(got, sha[p], DIGEST_BYTES) == 0;
        if (fd >= 0) close(fd);
    }
    if (dir_fd >= 0) close(dir_fd);
    return whole;
}

err_code publish_place(registry *reg, const char *path, int dir_fd,
                       const uint8_t sha[PART_COUNT][DIGEST_BYTES],
                       const uint8_t whole[DIGEST_BYTES], err *e)
{
    char to[FOLDER_PATH_MAX + 80], root[FOLDER_PATH_MAX];
    registry_path(reg, whole, to, sizeof to);
    snprintf(root, sizeof root, "%s/adapters", store_dir(registry_store(reg)));
    if (fsync(dir_fd) != 0) return folder_disk_error(e, "sync");
    int rc = rename(path, to);
    if (rc != 0 && (errno == EEXIST || errno == ENOTEMPTY)) {
        /* The content of a published version, or of one on its way out whose files the lock keeps
         * from going.  Unless it rotted: then the fresh copy mends every version that has it. */
        if (is_whole(to, sha)) return ERR_NONE;
        log_warn("adapters", "damaged files of a version are replaced by a fresh upload of them");
        errno = ENOTDIR;
    }
    /* Also in the place of a link to an operator's folder with this content. */
    if (rc != 0 && errno == ENOTDIR) rc = renameat2(AT_FDCWD, path, AT_FDCWD, to, RENAME_EXCHANGE);
    if (rc != 0) return folder_disk_error(e, "store");
    return durable_sync(root) ? ERR_NONE : folder_disk_error(e, "sync");
}

err_code publish_folder(const upload_env *env, const publish_options *o, const char *path,
                        int dir_fd, const int fd[PART_COUNT], const uint64_t bytes[PART_COUNT],
                        const uint8_t sha[PART_COUNT][DIGEST_BYTES], adapter_version *out,
                        bool *existed, err *e)
{
    char info[ADAPTER_INFO_MAX];
    uint8_t whole[DIGEST_BYTES];
    registry_new_version nv = {.tenant_id = o->tenant_id,
                               .name = o->name,
                               .description = o->description,
                               .digest = whole,
                               .part_sha = sha,
                               .info = info,
                               .activate = o->activate,
                               .max_adapters = o->max_adapters,
                               .max_bytes = o->quota.bytes,
                               .if_generation = o->if_generation,
                               .generation = o->generation};
    char *text;
    err_code code = publish_check(env, dir_fd, bytes, &nv, info, sizeof info, &text, e);
    if (code != ERR_NONE) {
        free(text);
        return code;
    }
    for (int p = PART_COUNT; p < PART_ALL; p++) unlinkat(dir_fd, folder_part_names[p], 0);
    adapter_digest(bytes, sha, text, whole);
    /* A failed sync is never tried again: the data is in doubt. */
    for (int p = 0; p < PART_COUNT && code == ERR_NONE; p++)
        if (fd[p] >= 0 && fsync(fd[p]) != 0) code = folder_disk_error(e, "sync");
    if (code == ERR_NONE) code = depot_store(env->depot, dir_fd, bytes, sha, whole, e);
    registry_files_lock(env->reg);
    if (code == ERR_NONE) code = publish_place(env->reg, path, dir_fd, sha, whole, e);
    if (code == ERR_NONE) code = registry_publish(env->reg, &nv, out, existed, e);
    /* Refused for a limit or a name: files that no version has go again. */
    if (code != ERR_NONE) registry_files_forget(env->reg, whole);
    registry_files_unlock(env->reg);
    depot_look(env->depot, whole);
    free(text);
    return code;
}
