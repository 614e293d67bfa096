/* registry_fleet.c -- what other nodes of a fleet change: brought into memory, name by name.
 *
 * Rows come first, from the follower's writer; then this makes memory say the same.  `change` is
 * held from the reading to the showing, so that no change of this node's falls between.  A version
 * that another node deleted drains here as if it had been deleted here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/store/registry_tables.h"
#include "engine/base/clock.h"
#include "engine/base/lock.h"

void version_note_missing(const registry *r, version_row *v, bool *absent)
{
    *absent = store_in_fleet(r->db);
    if (r->remote) return;
    /* Not written down: a disk that is mounted again serves it again. */
    v->state = ADAPTER_FAILED;
    snprintf(v->error, sizeof v->error, "the adapter's files are %s",
             *absent ? "not on this node yet" : "missing on the server");
}

bool registry_look_again(registry *r, uint64_t version_id)
{
    adapter_version was;
    uint64_t evicted = atomic_load(&r->n_evicted);
    if (!registry_absent(r, version_id, &was) || !registry_files_there(r, was.digest)) return false;
    bool linked = registry_files_linked(r, was.digest);
    lock_take(&r->mu);
    version *v = version_by_id(r, version_id);
    /* Where files went meanwhile, these may be among them. */
    bool stay = evicted == atomic_load(&r->n_evicted);
    if (stay && v && v->absent && v->state <= ADAPTER_FAILED) {
        v->state = ADAPTER_READY;
        v->absent = false;
        v->in_place = linked;
        v->used_us = clock_now_us();
        free(v->error);
        v->error = NULL;
    }
    lock_release(&r->mu);
    return stay;
}

/* All below: `change` is held, and `mu` where the name says so. */

typedef struct doomed { /* versions that nobody holds, to be finished without a lock */
    version **v;
    int n;
} doomed;

static void drain_locked(version *v, doomed *d)
{
    v->state = ADAPTER_DRAINING;
    if (v->pins > 0 || v->finishing) return;
    v->finishing = true;
    d->v[d->n++] = v;
}

/* By its row's name, or, where the row is gone, by looking at all. */
static entry *find_locked(const registry *r, uint64_t id, const adapter_row *row)
{
    entry *en = row != NULL ? entry_find(r, row->tenant_id, row->name) : NULL;
    while (en && en->id != id) en = en->next;
    for (size_t i = 0; !en && !row && i < r->n_entry; i++)
        if (r->order[i]->id == id) en = r->order[i];
    return en;
}

static const version_row *row_of(const adapter_rows *rows, uint64_t version_id)
{
    for (size_t i = 0; i < rows->n_version; i++)
        if (rows->version[i].id == version_id) return &rows->version[i];
    return NULL;
}

/* Those that are gone, or that another node is deleting. */
static void drain_gone_locked(entry *en, const adapter_rows *rows, doomed *d)
{
    for (int i = 0; i < en->n_version; i++) {
        version *v = en->version[i];
        const version_row *row = row_of(rows, v->pub.id);
        bool gone = !row || row->state == ADAPTER_DRAINING || row->state == ADAPTER_DELETED;
        if (gone) drain_locked(v, d);
    }
}

static err_code add_version_locked(registry *r, entry *en, version_row *row, err *e)
{
    bool absent = false;
    if (row->state != ADAPTER_READY && row->state != ADAPTER_FAILED) return ERR_NONE;
    if (version_by_id(r, row->id)) return ERR_NONE;
    /* On the disk, with mu held: the name is new here, and nobody waits for it yet. */
    if (row->state == ADAPTER_READY && !registry_files_there(r, row->digest))
        version_note_missing(r, row, &absent);
    version *v = version_make(en, row->error);
    if (!v) return registry_no_memory(e);
    version_place(r, en, v, row);
    v->in_place = registry_files_linked(r, row->digest);
    v->absent = absent;
    return ERR_NONE;
}

static err_code set_aliases_locked(entry *en, const adapter_rows *rows, err *e)
{
    en->n_alias = 0;
    for (int pass = 0; pass < 2; pass++) /* default first */
        for (size_t i = 0; i < rows->n_alias && en->n_alias < REGISTRY_ALIAS_MAX; i++) {
            const alias_row *al = &rows->alias[i];
            if ((strcmp(al->alias, "default") == 0) != (pass == 0)) continue;
            if (!alias_reserve(en)) return registry_no_memory(e);
            alias_point(en, al->alias, al->version, al->previous);
        }
    return ERR_NONE;
}

static err_code set_shares_locked(registry *r, entry *en, const adapter_rows *rows, err *e)
{
    uint64_t *shared = malloc((rows->n_share + 1) * sizeof(*shared));
    if (!shared) return registry_no_memory(e);
    bool was = en->shared_all || en->n_shared > 0;
    free(en->shared);
    en->shared = shared;
    en->n_shared = 0;
    en->shared_all = false;
    for (size_t i = 0; i < rows->n_share; i++)
        if (rows->share[i].tenant_id == 0)
            en->shared_all = true;
        else
            shared[en->n_shared++] = rows->share[i].tenant_id;
    bool is = en->shared_all || en->n_shared > 0;
    r->n_shared_entries += (size_t)is - (size_t)was;
    return ERR_NONE;
}

static err_code set_entry_locked(registry *r, entry *en, const adapter_rows *rows, err *e)
{
    const adapter_row *row = &rows->adapter[0];
    char *description = strdup(row->description);
    if (!description) return registry_no_memory(e);
    if (!en) {
        en = entry_make(r);
        if (!en) {
            free(description);
            return registry_no_memory(e);
        }
        entry_place(r, en, row, description);
    } else {
        entry_update(en, row, description);
        en->limits = row->limits;
    }
    err_code rc = ERR_NONE;
    for (size_t i = 0; !rc && i < rows->n_version; i++)
        rc = add_version_locked(r, en, &rows->version[i], e);
    if (!rc) rc = set_aliases_locked(en, rows, e);
    return rc ? rc : set_shares_locked(r, en, rows, e);
}

/* One that no row knows any more, and no version: as if it had been deleted here. */
static void drop_entry_locked(registry *r, entry *en)
{
    en->doomed = true;
    if (en->n_version > 0) return; /* the last one's end takes it away */
    entry_unlink(r, en);
    entry_free(en);
}

err_code registry_refresh(void *registry_, uint64_t adapter_id, err *e)
{
    registry *r = registry_;
    adapter_rows rows = {0};
    doomed d = {0};
    lock_take(&r->change);
    err_code rc = adapter_rows_load(r->db, adapter_id, &rows, e);
    lock_take(&r->mu);
    const adapter_row *row = !rc && rows.n_adapter == 1 ? &rows.adapter[0] : NULL;
    entry *en = find_locked(r, adapter_id, row);
    if (!rc && en && !(d.v = calloc((size_t)en->n_version + 1, sizeof(version *))))
        rc = registry_no_memory(e);
    if (!rc && en) drain_gone_locked(en, &rows, &d);
    if (!rc && row) rc = set_entry_locked(r, en, &rows, e);
    if (!rc && en && !row) drop_entry_locked(r, en);
    lock_release(&r->mu);
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    adapter_rows_clear(&rows);
    for (int i = 0; i < d.n; i++) registry_finish_version(r, d.v[i]);
    free(d.v);
    return rc;
}
