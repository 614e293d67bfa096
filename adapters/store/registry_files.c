/* registry_files.c -- folders of versions: named by content, shared, removed at the end. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "adapters/format/folder.h"
#include "adapters/store/registry_tables.h"
#include "engine/base/lock.h"

void registry_path(const registry *r, const uint8_t digest[DIGEST_BYTES], char *out, size_t cap)
{
    char hex[DIGEST_HEX];
    digest_hex(digest, hex);
    snprintf(out, cap, "%s/adapters/%s", store_dir(r->db), hex);
}

bool registry_files_there(const registry *r, const uint8_t digest[DIGEST_BYTES])
{
    char path[4200], file[4400];
    registry_path(r, digest, path, sizeof path);
    for (int p = 0; p < PART_COUNT; p++) {
        snprintf(file, sizeof file, "%s/%s", path, folder_part_names[p]);
        if (access(file, R_OK) != 0) return false;
    }
    return true;
}

bool registry_files_linked(const registry *r, const uint8_t digest[DIGEST_BYTES])
{
    char path[4200], to[1];
    registry_path(r, digest, path, sizeof path);
    return readlink(path, to, sizeof to) >= 0;
}

void registry_files_forget(registry *r, const uint8_t digest[DIGEST_BYTES])
{
    lock_assert_held(&r->files);
    char path[4200];
    registry_path(r, digest, path, sizeof path);
    lock_take(&r->mu);
    bool used = registry_has_digest(r, digest);
    lock_release(&r->mu);
    if (!used) folder_remove(path);
}

/* Removes the files of this content unless some version still has it. */
void registry_files_drop(registry *r, const uint8_t digest[DIGEST_BYTES])
{
    lock_take(&r->files);
    registry_files_forget(r, digest);
    lock_release(&r->files);
}

/* Directories under adapters/ that no row knows: left by a crash between rename and row, or between
 * a row's end and its files'. */
void registry_files_sweep(registry *r)
{
    char root[4200], path[4600];
    snprintf(root, sizeof root, "%s/adapters", store_dir(r->db));
    DIR *d = opendir(root);
    if (!d) return;
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        uint8_t digest[DIGEST_BYTES];
        if (strlen(de->d_name) != DIGEST_HEX - 1 || !digest_from_hex(de->d_name, digest)) continue;
        if (registry_has_digest(r, digest)) continue;
        snprintf(path, sizeof path, "%s/%s", root, de->d_name);
        folder_remove(path);
    }
    closedir(d);
}

void registry_files_lock(registry *r)
{
    lock_take(&r->files);
}

void registry_files_unlock(registry *r)
{
    lock_release(&r->files);
}
