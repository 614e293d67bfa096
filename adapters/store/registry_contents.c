/* registry_contents.c -- which files lie here, and how those go that an object store has, too.
 *
 * Versions of one content share one folder, so questions are about contents: a content is idle
 * when no request holds one of its versions, none of their names is pinned and none is on its
 * way out; it was used when the last of them was.
 *
 * registry_files_evict() renames the folder into tmp/ with the registry's lock held, which is
 * quick, and removes the files after it: whoever finds a version "here" under that lock finds
 * its files. The list of all contents takes the lock for 64 buckets at a time, so that requests
 * do not wait for a long list.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/format/folder.h"
#include "adapters/store/registry_tables.h"
#include "engine/base/lock.h"

bool registry_absent(registry *r, uint64_t version_id, adapter_version *out)
{
    lock_take(&r->mu);
    const version *v = version_by_id(r, version_id);
    bool absent = v != NULL && v->absent;
    if (absent) *out = v->pub;
    lock_release(&r->mu);
    return absent;
}

/* Of all versions of v's content.  False: its files are not here, or not ours. */
static bool look_locked(const registry *r, const version *v, registry_content *out)
{
    bool here = false, in_place = false;
    *out = (registry_content){.bytes = v->pub.file_bytes, .idle = true};
    memcpy(out->digest, v->pub.digest, DIGEST_BYTES);
    for (version *o = NULL; (o = version_of_digest(r, out->digest, o));) {
        here |= !o->absent;
        in_place |= o->in_place;
        if (o->pins > 0 || o->owner->pinned || o->state == ADAPTER_DRAINING) out->idle = false;
        if (o->used_us > out->last_use_us) out->last_use_us = o->used_us;
    }
    return here && !in_place;
}

err_code registry_contents(registry *r, registry_content **out, size_t *n, err *e)
{
    registry_content *list = NULL;
    size_t cap = 0, count = 0;
    bool room = true;
    for (size_t b = 0; b < REGISTRY_BUCKETS && room; b++) {
        if (b % 64 == 0) lock_take(&r->mu);
        for (const version *v = r->by_digest[b]; v && room; v = v->next_digest) {
            if (version_of_digest(r, v->pub.digest, NULL) != v) continue;
            if (count == cap) {
                cap = cap ? cap * 2 : 256;
                registry_content *more = realloc(list, cap * sizeof(*more));
                room = more != NULL;
                if (!room) break;
                list = more;
            }
            count += look_locked(r, v, &list[count]);
        }
        if (b % 64 == 63 || !room) lock_release(&r->mu);
    }
    *out = list;
    *n = count;
    if (room) return ERR_NONE;
    free(list);
    *out = NULL;
    return registry_no_memory(e);
}

bool registry_content_of(registry *r, const uint8_t digest[DIGEST_BYTES], registry_content *out)
{
    lock_take(&r->mu);
    const version *v = version_of_digest(r, digest, NULL);
    bool here = v && look_locked(r, v, out);
    lock_release(&r->mu);
    return here;
}

int registry_versions_of(registry *r, const uint8_t digest[DIGEST_BYTES], uint64_t *id, int cap)
{
    int n = 0;
    lock_take(&r->mu);
    for (const version *v = NULL; (v = version_of_digest(r, digest, v)); n++)
        if (n < cap) id[n] = v->pub.id;
    lock_release(&r->mu);
    return n;
}

bool registry_files_evict(registry *r, const uint8_t digest[DIGEST_BYTES])
{
    char from[FOLDER_PATH_MAX], to[FOLDER_PATH_MAX];
    registry_content now;
    registry_path(r, digest, from, sizeof from);
    snprintf(to, sizeof to, "%s/adapters/tmp/%016llx", store_dir(r->db),
             (unsigned long long)store_next_id(r->db));
    lock_take(&r->files);
    lock_take(&r->mu);
    const version *first = version_of_digest(r, digest, NULL);
    bool goes = first && look_locked(r, first, &now) && now.idle;
    /* One rename with mu held: whoever finds it served finds the files. */
    if (goes) goes = rename(from, to) == 0;
    for (version *v = NULL; goes && (v = version_of_digest(r, digest, v));) v->absent = true;
    if (goes) atomic_fetch_add(&r->n_evicted, 1);
    lock_release(&r->mu);
    if (goes) folder_remove(to);
    lock_release(&r->files);
    if (goes) atomic_fetch_add(&r->n_changes, 1);
    return goes;
}
