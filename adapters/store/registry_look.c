/* registry_look.c -- lists and single entries of the registry, copied for the caller.
 *
 * Every function takes registry.mu, copies what it needs, and returns: callers never hold
 * pointers into the tables. Locks are held for a bounded time: a page looks at REGISTRY_SCAN_MAX
 * entries at most and returns a cursor; summaries of all adapters release the lock after every
 * 64 buckets, so they are not a snapshot, but each entry in them is consistent.
 *
 * A cursor is the name of the last entry that was looked at, not an index. So adapters that are
 * added or deleted between two pages neither repeat nor hide others.
 *
 * An entry is shown by its default version; where no alias "default" exists, by its newest one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/store/registry_tables.h"
#include "engine/base/lock.h"

/* What a name is shown as: its default version, or the newest where there is none. */
static const version *shown(const entry *en)
{
    const alias *al = alias_find(en, "default");
    const version *v = al != NULL ? version_by_number(en, al->version) : NULL;
    return v != NULL || en->n_version == 0 ? v : en->version[en->n_version - 1];
}

static adapter_state state_of(const entry *en)
{
    const version *v = shown(en);
    return v != NULL ? v->state : ADAPTER_FAILED;
}

static void copy_entry(const entry *en, adapter_entry *out)
{
    memset(out, 0, sizeof(*out));
    out->id = en->id;
    out->tenant_id = en->tenant_id;
    memcpy(out->name, en->name, sizeof out->name);
    if (en->description) snprintf(out->description, sizeof out->description, "%s", en->description);
    out->pinned = en->pinned;
    out->generation = en->generation;
    out->created_wall_us = en->created_wall_us;
    out->limits = en->limits;
    out->shared_all = en->shared_all;
    out->n_shared = en->n_shared;
    for (int i = 0; i < en->n_version; i++) {
        out->n_versions += en->version[i]->state == ADAPTER_READY;
        out->file_bytes += en->version[i]->pub.file_bytes;
    }
    out->n_alias = en->n_alias;
    for (int i = 0; i < en->n_alias; i++) {
        memcpy(out->alias[i].alias, en->alias[i].name, sizeof out->alias[i].alias);
        out->alias[i].version = en->alias[i].version;
        out->alias[i].previous = en->alias[i].previous;
        if (strcmp(en->alias[i].name, "default") == 0) out->default_version = en->alias[i].version;
    }
    const version *v = shown(en);
    if (v && v->pub.version == out->default_version) out->default_id = v->pub.id;
    out->state = state_of(en);
}

void registry_limits(registry *r, const adapter_version *v, uint64_t *adapter_id,
                     adapter_limits *out)
{
    const entry *en = ((const version *)(const void *)v)->owner;
    lock_take(&r->mu);
    *adapter_id = en->id;
    *out = en->limits;
    lock_release(&r->mu);
}

static void copy_version(const version *v, version_entry *out)
{
    out->v = v->pub;
    out->state = v->state;
    out->pins = v->pins;
    out->absent = v->absent;
    out->in_place = v->in_place;
    snprintf(out->error, sizeof out->error, "%s", v->error != NULL ? v->error : "");
    out->info[0] = 0;
}

static bool wanted(const registry_query *q, const entry *en)
{
    if (en->doomed) return false;
    if (q->shared_with != 0 &&
        (en->tenant_id == q->shared_with || !entry_shared_with(en, q->shared_with)))
        return false;
    if (q->prefix && strncmp(en->name, q->prefix, strlen(q->prefix)) != 0) return false;
    return q->state == 0 || state_of(en) == q->state;
}

/* Where the page begins in the order of all names. */
static size_t page_begin(const registry *r, const registry_query *q)
{
    size_t at = 0;
    if (q->tenant_id != 0) at = entry_bound(r, q->tenant_id, q->prefix != NULL ? q->prefix : "");
    if (!q->after) return at;
    uint64_t tenant_id = q->tenant_id != 0 ? q->tenant_id : q->after_tenant_id;
    size_t after = entry_bound(r, tenant_id, q->after);
    while (after < r->n_entry && r->order[after]->tenant_id == tenant_id &&
           strcmp(r->order[after]->name, q->after) == 0)
        after++;
    return after > at ? after : at;
}

/* Are we past all that can be wanted? */
static bool page_over(const registry_query *q, const entry *en)
{
    if (q->tenant_id == 0) return false;
    if (en->tenant_id != q->tenant_id) return true;
    return q->prefix != NULL && strncmp(en->name, q->prefix, strlen(q->prefix)) > 0;
}

void registry_page(registry *r, const registry_query *q, adapter_entry *out, size_t *n,
                   registry_cursor *next)
{
    *n = 0;
    lock_take(&r->mu);
    size_t at = page_begin(r, q), seen = 0;
    memset(next, 0, sizeof(*next)); /* q->after may be the last page's cursor, this same one */
    bool none = q->shared_with != 0 && r->n_shared_entries == 0;
    const entry *last = NULL;
    for (; !none && at < r->n_entry && !page_over(q, r->order[at]); at++) {
        const entry *en = r->order[at];
        if (*n == q->limit || seen == REGISTRY_SCAN_MAX) {
            /* Full: is there one more at all?  With a filter that is not looked for. */
            next->more = true;
            next->tenant_id = last->tenant_id;
            memcpy(next->name, last->name, sizeof next->name);
            break;
        }
        seen++;
        last = en;
        if (wanted(q, en)) copy_entry(en, &out[(*n)++]);
    }
    lock_release(&r->mu);
}

err_code registry_shares(registry *r, uint64_t tenant_id, const char *name, uint64_t **out,
                         size_t *n, err *e)
{
    err_code rc = ERR_NONE;
    *out = NULL;
    *n = 0;
    lock_take(&r->mu);
    const entry *en = entry_live(r, tenant_id, name, e);
    if (!en) {
        rc = ERR_NOT_FOUND;
    } else if (en->n_shared > 0) {
        *out = malloc((size_t)en->n_shared * sizeof **out);
        if (!*out) {
            rc = registry_no_memory(e);
        } else {
            *n = (size_t)en->n_shared;
            memcpy(*out, en->shared, *n * sizeof **out);
        }
    }
    lock_release(&r->mu);
    return rc;
}

err_code registry_list(registry *r, uint64_t tenant_id, const char *after, size_t limit,
                       adapter_entry **out, size_t *n, err *e)
{
    registry_query q = {.tenant_id = tenant_id, .after = tenant_id != 0 ? after : NULL};
    *n = 0;
    lock_take(&r->mu);
    size_t at = page_begin(r, &q), end = at;
    while (end < r->n_entry && !page_over(&q, r->order[end]) && (limit == 0 || end - at < limit))
        end++;
    *out = malloc((end - at + 1) * sizeof **out);
    for (; *out != NULL && at < end; at++)
        if (!r->order[at]->doomed) copy_entry(r->order[at], &(*out)[(*n)++]);
    lock_release(&r->mu);
    return *out != NULL ? ERR_NONE : registry_no_memory(e);
}

uint64_t registry_changes(const registry *r)
{
    return atomic_load(&((registry *)r)->n_changes);
}

static void summarise(const entry *en, registry_summary *out)
{
    *out = (registry_summary){.id = en->id, .tenant_id = en->tenant_id, .pinned = en->pinned};
    memcpy(out->name, en->name, sizeof out->name);
    const alias *al = alias_find(en, "default");
    if (al) {
        out->default_version = al->version;
        out->previous = al->previous;
    }
    for (int i = 0; i < en->n_version; i++) {
        const version *v = en->version[i];
        out->n_versions += v->state == ADAPTER_READY;
        out->file_bytes += v->pub.file_bytes;
        if (!al || v->pub.version != al->version) continue;
        out->default_id = v->pub.id;
        out->rank_max = v->pub.rank_max;
        out->packed_bytes = v->pub.packed_bytes;
    }
}

err_code registry_summaries(registry *r, registry_summary **out, size_t *n, err *e)
{
    size_t cap = 0, count = 0;
    registry_summary *list = NULL;
    for (size_t b = 0; b < REGISTRY_BUCKETS; b++) {
        if (b % 64 == 0) lock_take(&r->mu);
        for (const entry *en = r->by_name[b]; en != NULL; en = en->next) {
            if (en->doomed) continue;
            if (count == cap) {
                cap = cap ? cap * 2 : 256;
                registry_summary *more = realloc(list, cap * sizeof(*more));
                if (!more) {
                    lock_release(&r->mu);
                    free(list);
                    return registry_no_memory(e);
                }
                list = more;
            }
            summarise(en, &list[count++]);
        }
        if (b % 64 == 63) lock_release(&r->mu);
    }
    *out = list;
    *n = count;
    return ERR_NONE;
}

err_code registry_get(registry *r, uint64_t tenant_id, const char *name, adapter_entry *out, err *e)
{
    lock_take(&r->mu);
    const entry *en = entry_live(r, tenant_id, name, e);
    if (en) copy_entry(en, out);
    lock_release(&r->mu);
    return en != NULL ? ERR_NONE : ERR_NOT_FOUND;
}

err_code registry_versions(registry *r, uint64_t tenant_id, const char *name, version_entry **out,
                           size_t *n, err *e)
{
    err_code rc = ERR_NONE;
    *out = NULL;
    *n = 0;
    lock_take(&r->mu);
    const entry *en = entry_live(r, tenant_id, name, e);
    if (!en) {
        rc = ERR_NOT_FOUND;
    } else if ((*out = calloc((size_t)en->n_version + 1, sizeof **out)) == NULL) {
        rc = registry_no_memory(e);
    } else {
        for (int i = en->n_version - 1; i >= 0; i--) copy_version(en->version[i], *out + (*n)++);
    }
    lock_release(&r->mu);
    return rc;
}

err_code registry_version(registry *r, uint64_t tenant_id, const char *name, int number,
                          version_entry *out, err *e)
{
    lock_take(&r->mu);
    const entry *en = entry_live(r, tenant_id, name, NULL);
    const version *v = en != NULL ? version_by_number(en, number) : NULL;
    bool found = v != NULL;
    if (found) copy_version(v, out);
    lock_release(&r->mu);
    if (found) return adapter_rows_info(r->db, out->v.id, out->info, sizeof out->info, e);
    return err_set(e, ERR_NOT_FOUND, "there is no version %d of an adapter '%.64s'", number, name);
}

void registry_totals_get(registry *r, uint64_t tenant_id, registry_totals *out)
{
    memset(out, 0, sizeof(*out));
    lock_take(&r->mu);
    size_t at = tenant_id != 0 ? entry_bound(r, tenant_id, "") : 0;
    for (; at < r->n_entry; at++) {
        const entry *en = r->order[at];
        if (tenant_id != 0 && en->tenant_id != tenant_id) break;
        out->n_adapters += !en->doomed;
        out->n_versions += (size_t)en->n_version;
        for (int i = 0; i < en->n_version; i++) {
            out->n_pins += (size_t)en->version[i]->pins;
            uint64_t bytes = en->version[i]->pub.file_bytes;
            out->file_bytes += bytes;
            if (!en->version[i]->in_place && !en->version[i]->absent)
                out->disk_bytes += bytes > REGISTRY_VERSION_LEAST ? bytes : REGISTRY_VERSION_LEAST;
        }
    }
    lock_release(&r->mu);
}
