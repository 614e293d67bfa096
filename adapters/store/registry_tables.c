/* registry_tables.c -- hash tables of adapters, versions and aliases; all functions run under
 * registry.mu.
 *
 *     by_name[]   (tenant, name) -> entry     chained; requests look names up here
 *     by_id[]     version id -> version       chained through version.next
 *     by_digest[] content -> versions         by next_digest; equal files are stored once
 *     order[]     entries sorted by tenant and name: pages of lists and their cursors
 *
 * The tables have a fixed number of buckets (a power of two) and do not grow. Inserting into
 * `order` moves its tail, which is cheap beside the database row that each new adapter costs.
 * While all rows are loaded at the start (`loading`), entries are appended and sorted once.
 *
 * Making and placing are two steps. entry_make() and version_make() allocate everything, and may
 * fail; entry_place() and version_place() link, and cannot. The caller writes the database row
 * in between, so memory and database never differ because of a failed allocation.
 */
#include "adapters/store/registry_tables.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

err_code registry_no_memory(err *e)
{
    return err_set(e, ERR_NOMEM, "out of memory");
}

static size_t hash_name(uint64_t tenant_id, const char *name)
{
    return (size_t)hash_text(tenant_id, name, strlen(name)) & (REGISTRY_BUCKETS - 1);
}

static size_t hash_version(uint64_t id)
{
    return hash_id(id) & (REGISTRY_BUCKETS - 1);
}

static size_t hash_digest(const uint8_t digest[DIGEST_BYTES])
{
    return (size_t)(digest[0] | digest[1] << 8) & (REGISTRY_BUCKETS - 1);
}

/* ---- names in order ------------------------------------------------------------------------ */

static int compare(const entry *a, uint64_t tenant_id, const char *name)
{
    if (a->tenant_id != tenant_id) return a->tenant_id < tenant_id ? -1 : 1;
    return strcmp(a->name, name);
}

static int by_tenant_and_name(const void *a, const void *b)
{
    const entry *y = *(entry *const *)b;
    return compare(*(entry *const *)a, y->tenant_id, y->name);
}

void entry_sort(registry *r)
{
    if (r->n_entry > 0) qsort(r->order, r->n_entry, sizeof(*r->order), by_tenant_and_name);
    r->loading = false;
}

size_t entry_bound(const registry *r, uint64_t tenant_id, const char *name)
{
    size_t lo = 0, hi = r->n_entry;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (compare(r->order[mid], tenant_id, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool order_reserve(registry *r)
{
    if (r->n_entry < r->cap_order) return true;
    size_t cap = r->cap_order ? r->cap_order * 2 : 64;
    entry **more = realloc(r->order, cap * sizeof(entry *));
    if (!more) return false;
    r->order = more;
    r->cap_order = cap;
    return true;
}

static void order_insert(registry *r, entry *en)
{
    assert(r->n_entry < r->cap_order); /* entry_make() has made the room */
    size_t at = r->loading ? r->n_entry : entry_bound(r, en->tenant_id, en->name);
    memmove(r->order + at + 1, r->order + at, (r->n_entry - at) * sizeof(entry *));
    r->order[at] = en;
    r->n_entry++;
}

static void order_remove(registry *r, const entry *en)
{
    size_t at = 0;
    if (!r->loading) at = entry_bound(r, en->tenant_id, en->name);
    /* A name that was deleted and came anew may stand twice for a moment. */
    while (at < r->n_entry && r->order[at] != en) at++;
    assert(at < r->n_entry);
    memmove(r->order + at, r->order + at + 1, (r->n_entry - at - 1) * sizeof(entry *));
    r->n_entry--;
}

/* ---- entries ------------------------------------------------------------------------------- */

entry *entry_find(const registry *r, uint64_t tenant_id, const char *name)
{
    entry *en = r->by_name[hash_name(tenant_id, name)];
    while (en && compare(en, tenant_id, name) != 0) en = en->next;
    return en;
}

entry *entry_live(const registry *r, uint64_t tenant_id, const char *name, err *e)
{
    entry *en = entry_find(r, tenant_id, name);
    if (en && !en->doomed) return en;
    (void)err_set(e, ERR_NOT_FOUND, "there is no adapter named '%.64s'", name);
    return NULL;
}

void entry_update(entry *en, const adapter_row *row, char *description)
{
    en->pinned = row->pinned;
    en->last_version = row->last_version;
    en->generation = row->generation;
    if (!description) return;
    free(en->description);
    en->description = description;
}

entry *entry_make(registry *r)
{
    return order_reserve(r) ? calloc(1, sizeof(entry)) : NULL;
}

void entry_place(registry *r, entry *en, const adapter_row *row, char *description)
{
    en->id = row->id;
    en->tenant_id = row->tenant_id;
    memcpy(en->name, row->name, sizeof en->name);
    en->created_wall_us = row->created_wall_us;
    en->limits = row->limits;
    entry_update(en, row, description);
    order_insert(r, en);
    entry **at = &r->by_name[hash_name(row->tenant_id, row->name)];
    en->next = *at;
    *at = en;
}

void entry_unlink(registry *r, entry *en)
{
    entry **at = &r->by_name[hash_name(en->tenant_id, en->name)];
    while (*at && *at != en) at = &(*at)->next;
    assert(*at);
    *at = en->next;
    order_remove(r, en);
    if (en->shared_all || en->n_shared > 0) r->n_shared_entries--;
}

void entry_free(entry *en)
{
    free(en->version);
    free(en->alias);
    free(en->shared);
    free(en->description);
    free(en);
}

bool entry_shared_with(const entry *en, uint64_t tenant_id)
{
    if (en->shared_all) return true;
    for (int i = 0; i < en->n_shared; i++)
        if (en->shared[i] == tenant_id) return true;
    return false;
}

/* ---- versions ------------------------------------------------------------------------------ */

version *version_by_id(const registry *r, uint64_t id)
{
    version *v = r->by_id[hash_version(id)];
    while (v && v->pub.id != id) v = v->next;
    return v;
}

version *version_by_number(const entry *en, int number)
{
    int lo = 0, hi = en->n_version;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (en->version[mid]->pub.version < number)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < en->n_version && en->version[lo]->pub.version == number ? en->version[lo] : NULL;
}

version *version_newest_ready(const entry *en)
{
    for (int i = en->n_version - 1; i >= 0; i--)
        if (en->version[i]->state == ADAPTER_READY) return en->version[i];
    return NULL;
}

void version_free(version *v)
{
    free(v->error);
    free(v);
}

version *version_make(entry *en, const char *error)
{
    if (en->n_version == en->cap_version) {
        int cap = en->cap_version ? en->cap_version * 2 : 1;
        version **more = realloc(en->version, (size_t)cap * sizeof(*more));
        if (!more) return NULL;
        en->version = more;
        en->cap_version = cap;
    }
    version *v = calloc(1, sizeof(*v));
    if (!v) return NULL;
    if (error[0] != 0 && (v->error = strdup(error)) == NULL) {
        version_free(v);
        return NULL;
    }
    return v;
}

void version_place(registry *r, entry *en, version *v, const version_row *row)
{
    adapter_version *p = &v->pub;
    p->id = row->id;
    p->tenant_id = en->tenant_id;
    memcpy(p->name, en->name, sizeof p->name);
    p->version = row->version;
    memcpy(p->digest, row->digest, DIGEST_BYTES);
    p->file_bytes = row->file_bytes;
    p->packed_bytes = row->packed_bytes;
    p->rank_max = row->rank_max;
    p->created_wall_us = row->created_wall_us;
    p->has_words = row->has_words;
    v->owner = en;
    v->state = row->state;
    version **at = &r->by_id[hash_version(p->id)];
    v->next = *at;
    *at = v;
    at = &r->by_digest[hash_digest(p->digest)];
    v->next_digest = *at;
    *at = v;
    assert(en->n_version < en->cap_version); /* version_make() has made the room */
    int i = en->n_version++;
    /* Nearly always the newest; another node's may come later than a younger one of this node's. */
    for (; i > 0 && en->version[i - 1]->pub.version > p->version; i--)
        en->version[i] = en->version[i - 1];
    en->version[i] = v;
    r->n_version++;
}

void version_unlink(registry *r, version *v)
{
    version **at = &r->by_id[hash_version(v->pub.id)];
    assert(v->pins == 0);
    while (*at && *at != v) at = &(*at)->next;
    assert(*at);
    *at = v->next;
    at = &r->by_digest[hash_digest(v->pub.digest)];
    while (*at != v) at = &(*at)->next_digest;
    *at = v->next_digest;
    entry *en = v->owner;
    int i = 0;
    while (i < en->n_version && en->version[i] != v) i++;
    assert(i < en->n_version && r->n_version > 0);
    memmove(en->version + i, en->version + i + 1,
            (size_t)(en->n_version - i - 1) * sizeof(*en->version));
    en->n_version--;
    r->n_version--;
}

version *version_of_digest(const registry *r, const uint8_t digest[DIGEST_BYTES],
                           const version *before)
{
    version *v = before != NULL ? before->next_digest : r->by_digest[hash_digest(digest)];
    while (v && memcmp(v->pub.digest, digest, DIGEST_BYTES) != 0) v = v->next_digest;
    return v;
}

bool registry_has_digest(const registry *r, const uint8_t digest[DIGEST_BYTES])
{
    return version_of_digest(r, digest, NULL) != NULL;
}

/* ---- aliases ------------------------------------------------------------------------------- */

alias *alias_find(const entry *en, const char *name)
{
    for (int i = 0; i < en->n_alias; i++)
        if (strcmp(en->alias[i].name, name) == 0) return &en->alias[i];
    return NULL;
}

bool alias_reserve(entry *en)
{
    alias *more = realloc(en->alias, (size_t)(en->n_alias + 1) * sizeof(*more));
    if (!more) return false;
    en->alias = more;
    return true;
}

void alias_point(entry *en, const char *name, int to, int previous)
{
    alias *al = alias_find(en, name);
    if (!al) {
        al = &en->alias[en->n_alias++];
        snprintf(al->name, sizeof al->name, "%s", name);
    }
    al->version = to;
    al->previous = previous;
}
