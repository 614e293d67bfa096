/* registry.c -- the start, and the way of a request: from a name to a pinned version.
 *
 * `mu` is held for a lookup, never over a write to the disk.  Changes (registry_change.c) come one
 * after another under `change`: check under `mu`, write the rows, then show the result under `mu`.
 * So a reader sees only what is durable, and nobody waits for the disk but who changes something.
 */
#include "adapters/store/registry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters/store/registry_tables.h"
#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "storage/tenants.h"

/* ---- life ------------------------------------------------------------------------------ */

store *registry_store(const registry *r)
{
    return r->db;
}

/* Rows are in the order of their ids, so an adapter's row can be found by bisection. */
static const adapter_row *row_by_id(const adapter_rows *rows, uint64_t id)
{
    size_t lo = 0, hi = rows->n_adapter;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (rows->adapter[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < rows->n_adapter && rows->adapter[lo].id == id ? &rows->adapter[lo] : NULL;
}

static err_code load_entry(registry *r, const adapter_row *row, err *e)
{
    char *description = row->description[0] != 0 ? strdup(row->description) : NULL;
    entry *en = description != NULL || row->description[0] == 0 ? entry_make(r) : NULL;
    if (!en) {
        free(description);
        return registry_no_memory(e);
    }
    entry_place(r, en, row, description);
    return ERR_NONE;
}

static err_code load_one_version(registry *r, const adapter_rows *rows, version_row *v, err *e)
{
    const adapter_row *a = row_by_id(rows, v->adapter_id);
    entry *en = a != NULL ? entry_find(r, a->tenant_id, a->name) : NULL;
    if (!en) return err_set(e, ERR_CORRUPT, "a version belongs to no adapter");
    if (v->state == ADAPTER_DRAINING || v->state == ADAPTER_DELETED) {
        err_code rc = adapter_rows_set_state(r->db, v->id, ADAPTER_DELETED, NULL, e);
        return rc == ERR_IO && store_in_fleet(r->db) ? ERR_NONE : rc; /* another node, or later */
    }
    bool absent = false;
    if (v->state == ADAPTER_READY && !registry_files_there(r, v->digest)) {
        version_note_missing(r, v, &absent);
        if (!r->remote)
            log_error("adapters", "files of %s@%d are missing; it cannot be served", en->name,
                      v->version);
    }
    version *made = version_make(en, v->error);
    if (!made) return registry_no_memory(e);
    version_place(r, en, made, v);
    made->in_place = registry_files_linked(r, v->digest);
    made->absent = absent;
    return ERR_NONE;
}

static err_code load_aliases(registry *r, const adapter_rows *rows, err *e)
{
    for (size_t i = 0; i < rows->n_alias; i++) {
        const alias_row *al = &rows->alias[i];
        const adapter_row *a = row_by_id(rows, al->adapter_id);
        entry *en = a != NULL ? entry_find(r, a->tenant_id, a->name) : NULL;
        if (!en || en->n_alias == REGISTRY_ALIAS_MAX) continue;
        if (version_by_number(en, al->version) == NULL) {
            err_code rc = adapter_rows_drop_alias(r->db, a->id, al->alias, 0, e);
            if (rc && !(rc == ERR_IO && store_in_fleet(r->db))) return rc;
            continue;
        }
        if (!alias_reserve(en)) return registry_no_memory(e);
        alias_point(en, al->alias, al->version, al->previous);
    }
    return ERR_NONE;
}

static err_code load_shares(registry *r, const adapter_rows *rows, err *e)
{
    for (size_t i = 0; i < rows->n_share; i++) {
        const adapter_row *a = row_by_id(rows, rows->share[i].adapter_id);
        entry *en = a != NULL ? entry_find(r, a->tenant_id, a->name) : NULL;
        if (!en) continue;
        if (!en->shared_all && en->n_shared == 0) r->n_shared_entries++;
        if (rows->share[i].tenant_id == 0) {
            en->shared_all = true;
            continue;
        }
        uint64_t *more = realloc(en->shared, (size_t)(en->n_shared + 1) * sizeof(*more));
        if (!more) return registry_no_memory(e);
        en->shared = more;
        en->shared[en->n_shared++] = rows->share[i].tenant_id;
    }
    return ERR_NONE;
}

static err_code load_all(registry *r, err *e)
{
    adapter_rows rows;
    r->loading = true;
    err_code rc = adapter_rows_load(r->db, 0, &rows, e);
    for (size_t i = 0; rc == ERR_NONE && i < rows.n_adapter; i++)
        rc = load_entry(r, &rows.adapter[i], e);
    for (size_t i = 0; rc == ERR_NONE && i < rows.n_version; i++)
        rc = load_one_version(r, &rows, &rows.version[i], e);
    if (!rc) rc = load_aliases(r, &rows, e);
    if (!rc) rc = load_shares(r, &rows, e);
    entry_sort(r);
    /* Names whose last version is gone: a delete that a crash cut short. */
    for (size_t i = 0; rc == ERR_NONE && i < rows.n_adapter; i++) {
        entry *en = entry_find(r, rows.adapter[i].tenant_id, rows.adapter[i].name);
        if (!en || en->n_version > 0) continue;
        rc = adapter_rows_drop(r->db, en->id, e);
        if (rc == ERR_IO && store_in_fleet(r->db)) rc = ERR_NONE;
        entry_unlink(r, en);
        entry_free(en);
    }
    adapter_rows_clear(&rows);
    if (!rc) registry_files_sweep(r);
    return rc;
}

err_code registry_create(registry **out, store *db, const registry_config *cfg, err *e)
{
    *out = NULL;
    registry *r = calloc(1, sizeof(*r));
    if (!r) return registry_no_memory(e);
    r->db = db;
    r->remote = cfg != NULL && cfg->remote;
    for (int i = 0; cfg != NULL && i < cfg->n_reserved; i++)
        snprintf(r->reserved[r->n_reserved++], sizeof r->reserved[0], "%s", cfg->reserved[i]);
    lock_init(&r->files, LOCK_REGISTRY_FILES);
    lock_init(&r->change, LOCK_REGISTRY_CHANGE);
    lock_init(&r->mu, LOCK_REGISTRY);
    char path[4200];
    err_code rc = ERR_NONE;
    snprintf(path, sizeof path, "%s/adapters", store_dir(db));
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        rc = err_set(e, ERR_IO, "cannot make the adapters' directory: %s", strerror(errno));
    /* Before the rows are read, so that no change falls between; `change` keeps both apart. */
    store_on_adapter(db, registry_refresh, r);
    lock_take(&r->change);
    if (!rc) rc = load_all(r, e);
    lock_release(&r->change);
    if (rc) {
        registry_destroy(r);
        return rc;
    }
    *out = r;
    return ERR_NONE;
}

void registry_destroy(registry *r)
{
    if (!r) return;
    store_on_adapter(r->db, NULL, NULL);
    for (size_t b = 0; b < REGISTRY_BUCKETS; b++)
        for (entry *en = r->by_name[b], *next; en != NULL; en = next) {
            next = en->next;
            for (int i = 0; i < en->n_version; i++) {
                version *v = en->version[i];
                if (v->pins != 0) {
                    log_error("adapters", "registry destroyed while %s@%d is held by %d",
                              v->pub.name, v->pub.version, v->pins);
                    abort();
                }
                version_free(v);
            }
            entry_free(en);
        }
    lock_free(&r->files);
    lock_free(&r->change);
    lock_free(&r->mu);
    free(r->order);
    free(r);
}

void registry_on_gone(registry *r, void (*fn)(void *self, uint64_t version_id), void *self)
{
    lock_take(&r->mu);
    r->gone = fn;
    r->gone_self = self;
    lock_release(&r->mu);
}

void registry_on_dropped(registry *r, void (*fn)(void *self, const uint8_t digest[DIGEST_BYTES]),
                         void *self)
{
    lock_take(&r->mu);
    r->dropped = fn;
    r->dropped_self = self;
    lock_release(&r->mu);
}

/* ---- resolve --------------------------------------------------------------------------- */

typedef struct model_name {
    char name[ADAPTER_NAME_MAX + 1], alias[ADAPTER_NAME_MAX + 1];
    int number;  /* 0: by alias */
    bool latest; /* whatever the aliases say */
} model_name;

/* "name", "name@7", "name@latest", "name:alias" */
static bool split_model(const char *model, model_name *out)
{
    size_t n = strcspn(model, "@:");
    if (n == 0 || n > ADAPTER_NAME_MAX) return false;
    memcpy(out->name, model, n);
    out->name[n] = 0;
    if (!name_valid(out->name)) return false;
    out->number = 0;
    out->latest = false;
    snprintf(out->alias, sizeof out->alias, "default");
    const char *rest = model + n;
    if (*rest == 0) return true;
    if (*rest == ':') {
        if (!name_valid(rest + 1)) return false;
        snprintf(out->alias, sizeof out->alias, "%s", rest + 1);
        return true;
    }
    rest++;
    out->latest = strcmp(rest, "latest") == 0;
    if (out->latest) return true;
    size_t digits = strspn(rest, "0123456789");
    if (digits == 0 || digits > 9 || rest[digits] != 0 || rest[0] == '0') return false;
    out->number = atoi(rest);
    return true;
}

static err_code unknown(err *e, const char *model)
{
    return err_set(e, ERR_NOT_FOUND, "the model '%.160s' does not exist or is not yours to use",
                   model);
}

/* The tenant before the slash, if there is one; NULL: no such tenant. */
static const char *split_owner(registry *r, const char *model, uint64_t *owner_id)
{
    const char *slash = strchr(model, '/');
    if (!slash) return model;
    char name[TENANT_NAME_MAX + 1];
    size_t n = (size_t)(slash - model);
    tenant t;
    if (n > TENANT_NAME_MAX) return NULL;
    memcpy(name, model, n);
    name[n] = 0;
    if (tenants_find(r->db, name, &t, NULL) != ERR_NONE) return NULL;
    *owner_id = t.id;
    return slash + 1;
}

/* Finds the version that `model` names: "name", "name@7", "name:alias" or "name@latest", each also
 * as "owner/name" for a shared adapter. The version is pinned until it is released. An adapter
 * that its owner does not share gives the error of one that does not exist. */
static err_code acquire(registry *r, uint64_t tenant_id, const char *model, bool any_tenant,
                        const adapter_version **out, uint64_t *absent_id, err *e)
{
    int64_t now_us = r->remote ? clock_now_us() : 0;
    uint64_t owner_id = tenant_id;
    const char *rest = split_owner(r, model, &owner_id);
    model_name m;
    if (!rest || !split_model(rest, &m)) return unknown(e, model);
    err_code rc = ERR_NONE;
    lock_take(&r->mu);
    entry *en = entry_find(r, owner_id, m.name);
    if (en &&
        (en->doomed || (owner_id != tenant_id && !any_tenant && !entry_shared_with(en, tenant_id))))
        en = NULL;
    const alias *al = en && m.number == 0 && !m.latest ? alias_find(en, m.alias) : NULL;
    int number = al != NULL ? al->version : m.number;
    version *v = en && m.latest      ? version_newest_ready(en)
                 : en && number != 0 ? version_by_number(en, number)
                                     : NULL;
    if (!v) {
        rc = unknown(e, model);
    } else if (v->absent && v->state <= ADAPTER_FAILED) {
        *absent_id = v->pub.id;
        rc = err_set(e, ERR_ELSEWHERE,
                     "the files of the model '%.160s' are not on this node yet: try again", model);
    } else if (v->state != ADAPTER_READY) {
        rc = err_set(e, ERR_CONFLICT, "the model '%.160s' is %s%s%.120s", model,
                     adapter_state_name(v->state), v->error != NULL ? ": " : "",
                     v->error != NULL ? v->error : "");
    } else {
        v->pins++;
        v->used_us = now_us;
        r->n_pins++;
        *out = &v->pub;
    }
    lock_release(&r->mu);
    return rc;
}

err_code registry_try(registry *r, uint64_t tenant_id, const char *model, bool any_tenant,
                      const adapter_version **out, uint64_t *absent_id, err *e)
{
    *out = NULL;
    err_code rc = acquire(r, tenant_id, model, any_tenant, out, absent_id, e);
    if (rc != ERR_ELSEWHERE || !registry_look_again(r, *absent_id)) return rc;
    return acquire(r, tenant_id, model, any_tenant, out, absent_id, e);
}

err_code registry_acquire(registry *r, uint64_t tenant_id, const char *model, bool any_tenant,
                          const adapter_version **out, err *e)
{
    uint64_t absent_id;
    return registry_try(r, tenant_id, model, any_tenant, out, &absent_id, e);
}

err_code registry_acquire_id(registry *r, uint64_t version_id, const adapter_version **out, err *e)
{
    *out = NULL;
    lock_take(&r->mu);
    version *v = version_by_id(r, version_id);
    bool ok = v != NULL && ((v->state == ADAPTER_READY && !v->absent) || v->pins > 0);
    if (ok) {
        v->pins++;
        r->n_pins++;
        *out = &v->pub;
    }
    lock_release(&r->mu);
    return ok ? ERR_NONE : err_set(e, ERR_NOT_FOUND, "the adapter was deleted");
}

bool registry_label(registry *r, uint64_t version_id, char *out, size_t cap)
{
    lock_take(&r->mu);
    const version *v = version_by_id(r, version_id);
    if (v) snprintf(out, cap, "%s@%d", v->pub.name, v->pub.version);
    lock_release(&r->mu);
    return v != NULL;
}

void registry_release(registry *r, const adapter_version *pub)
{
    if (!pub) return;
    lock_take(&r->mu);
    version *v = version_by_id(r, pub->id);
    if (!v || v->pins <= 0) {
        log_error("adapters", "released an adapter version that nobody holds");
        abort();
    }
    v->pins--;
    r->n_pins--;
    bool finish = v->pins == 0 && v->state == ADAPTER_DRAINING && !v->finishing;
    if (finish) v->finishing = true;
    bool outlived = v->pins == 0 && v->outlived && v->state == ADAPTER_READY;
    uint64_t id = v->pub.id;
    lock_release(&r->mu);
    if (finish) registry_finish_version(r, v);
    if (outlived) registry_finish_outlived(r, id);
}
