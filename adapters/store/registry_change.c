/* registry_change.c -- publish, aliases, sharing, delete: one change after another.
 *
 * Each checks under `mu`, writes the rows, then shows the result under `mu`; `change` is held all
 * along, so an entry that was found stays.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/store/registry_tables.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"

/* Removes a drained version without pins for good: row, memory, files, in this order.  The caller
 * has set v->finishing, so that nobody else does. */
void registry_finish_version(registry *r, version *v)
{
    err why;
    lock_take(&r->change);
    entry *en = v->owner;
    bool last = en->doomed && en->n_version == 1;
    err_code rc = last ? adapter_rows_drop(r->db, en->id, &why)
                       : adapter_rows_set_state(r->db, v->pub.id, ADAPTER_DELETED, NULL, &why);
    if (rc == ERR_STALE) { /* an old version, which another node has just pointed an alias at */
        lock_take(&r->mu);
        v->state = ADAPTER_READY;
        v->finishing = false;
        lock_release(&r->mu);
        lock_release(&r->change);
        return;
    }
    /* Without the disk the row stays `draining` and the next start removes it. */
    if (rc) log_error("adapters", "delete not recorded: %s", why.msg);
    adapter_version was = v->pub;
    lock_take(&r->mu);
    version_unlink(r, v);
    if (last) entry_unlink(r, en);
    void (*gone)(void *, uint64_t) = r->gone;
    void *self = r->gone_self;
    void (*dropped)(void *, const uint8_t *) = r->dropped;
    void *dropped_self = r->dropped_self;
    lock_release(&r->mu);
    version_free(v);
    if (last) entry_free(en);
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    if (!rc) registry_files_drop(r, was.digest);
    if (!rc && dropped) dropped(dropped_self, was.digest);
    if (gone) gone(self, was.id);
}

/* Reads an entry under `mu`; entries live on while `change` is held. */
static entry *entry_of(registry *r, uint64_t tenant_id, const char *name, err *e)
{
    lock_take(&r->mu);
    entry *en = entry_live(r, tenant_id, name, e);
    lock_release(&r->mu);
    return en;
}

err_code registry_check_name(const registry *r, const char *name, err *e)
{
    if (!name_valid(name))
        return err_set(e, ERR_INPUT,
                       "an adapter's name is 1 to %d of a-z 0-9 . _ - and starts with a letter or "
                       "digit",
                       ADAPTER_NAME_MAX);
    for (int i = 0; i < r->n_reserved; i++)
        if (strcmp(r->reserved[i], name) == 0)
            return err_set(e, ERR_INPUT, "'%s' is the name of the base model", name);
    return ERR_NONE;
}

static err_code set_alias_changing(registry *r, entry *en, const char *name, int number, err *e)
{
    const alias *al = alias_find(en, name);
    int previous = al != NULL ? al->version : 0;
    if (previous == number) previous = al->previous;
    lock_take(&r->mu);
    bool room = alias_reserve(en);
    lock_release(&r->mu);
    if (!room) return registry_no_memory(e);
    uint64_t generation = en->generation + 1;
    err_code rc = adapter_rows_set_alias(r->db, en->id, name, number, previous, generation, e);
    if (rc) return rc;
    lock_take(&r->mu);
    alias_point(en, name, number, previous);
    en->generation = generation;
    lock_release(&r->mu);
    return ERR_NONE;
}

/* The newest version has this content already: nothing to store, at most the alias moves. */
static err_code publish_again(registry *r, entry *en, const registry_new_version *nv,
                              adapter_version *out, bool *existed, err *e)
{
    version *v = version_newest_ready(en);
    *existed = v != NULL && memcmp(v->pub.digest, nv->digest, DIGEST_BYTES) == 0;
    if (!*existed) return ERR_NONE;
    const alias *al = alias_find(en, "default");
    err_code rc = ERR_NONE;
    if (!al || (nv->activate && al->version != v->pub.version))
        rc = set_alias_changing(r, en, "default", v->pub.version, e);
    if (!rc && out) *out = v->pub;
    return rc;
}

/* Memory for what is to be published, taken before its rows are written: what is on the disk
 * must not fail to be here. */
typedef struct {
    entry *entry; /* NULL: there is one */
    version *version;
    char *description; /* NULL: none */
} publish_room;

static bool reserve_room(registry *r, entry *en, const char *description, publish_room *room)
{
    *room = (publish_room){0};
    lock_take(&r->mu);
    if (!en) en = room->entry = entry_make(r);
    room->version = en != NULL && alias_reserve(en) ? version_make(en, "") : NULL;
    lock_release(&r->mu);
    if (description[0] != 0) room->description = strdup(description);
    return room->version != NULL && (description[0] == 0 || room->description);
}

static void drop_room(publish_room *room)
{
    if (room->version) version_free(room->version);
    if (room->entry) entry_free(room->entry);
    free(room->description);
}

/* The database first, memory after it: what memory will need is taken before, so that nothing
 * can fail once the rows are written. */
static err_code publish_new(registry *r, entry *en, const registry_new_version *nv,
                            adapter_version *out, err *e)
{
    adapter_row a = {.tenant_id = nv->tenant_id};
    version_row v = {
        .file_bytes = nv->file_bytes, .packed_bytes = nv->packed_bytes, .rank_max = nv->rank_max};
    snprintf(a.name, sizeof a.name, "%s", nv->name);
    snprintf(a.description, sizeof a.description, "%s",
             nv->description != NULL ? nv->description : "");
    memcpy(v.digest, nv->digest, DIGEST_BYTES);
    v.has_part_sha = nv->part_sha != NULL;
    v.words = nv->words;
    v.has_words = nv->words != NULL;
    if (v.has_part_sha) memcpy(v.part_sha, nv->part_sha, sizeof v.part_sha);
    const alias *al = en != NULL ? alias_find(en, "default") : NULL;
    int previous = al != NULL ? al->version : 0;
    publish_room room;
    err_code rc = reserve_room(r, en, a.description, &room) ? ERR_NONE : registry_no_memory(e);
    if (!rc)
        rc = adapter_rows_publish(r->db, &a, &v, nv->info != NULL ? nv->info : "{}", nv->activate,
                                  nv->max_adapters, nv->max_bytes,
                                  nv->if_generation ? &nv->generation : NULL, e);
    if (rc) {
        drop_room(&room);
        return rc;
    }
    lock_take(&r->mu);
    if (!en)
        entry_place(r, en = room.entry, &a, room.description);
    else
        entry_update(en, &a, room.description);
    version_place(r, en, room.version, &v);
    if (nv->activate || previous == 0) alias_point(en, "default", v.version, previous);
    room.version->in_place = nv->in_place;
    if (out) *out = room.version->pub;
    lock_release(&r->mu);
    return ERR_NONE;
}

/* `expected` < 0: whatever it is; a name that does not exist has generation 0. */
static err_code check_generation(const entry *en, int64_t expected, err *e)
{
    uint64_t is = en != NULL ? en->generation : 0;
    if (expected < 0 || (uint64_t)expected == is) return ERR_NONE;
    if (!en) return err_set(e, ERR_STALE, "there is no adapter of that name (any more)");
    return err_set(e, ERR_STALE,
                   "the adapter was changed meanwhile: its generation is %llu, not %lld",
                   (unsigned long long)is, (long long)expected);
}

err_code registry_publish(registry *r, const registry_new_version *nv, adapter_version *out,
                          bool *existed, err *e)
{
    bool again = false;
    err_code rc = registry_check_name(r, nv->name, e);
    if (rc) return rc;
    lock_take(&r->change);
    lock_take(&r->mu);
    entry *en = entry_find(r, nv->tenant_id, nv->name);
    bool doomed = en != NULL && en->doomed;
    lock_release(&r->mu);
    if (doomed)
        rc = err_set(e, ERR_CONFLICT,
                     "'%s' was deleted and still serves its last requests: try again", nv->name);
    else if (nv->if_generation)
        rc = check_generation(en, (int64_t)nv->generation, e);
    if (!rc && en) rc = publish_again(r, en, nv, out, &again, e);
    if (!rc && !again) rc = publish_new(r, en, nv, out, e);
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    if (existed) *existed = again;
    return rc;
}

static err_code check_target(registry *r, entry *en, int number, err *e)
{
    lock_take(&r->mu);
    const version *v = version_by_number(en, number);
    bool ready = v != NULL && (v->state == ADAPTER_READY || v->absent);
    lock_release(&r->mu);
    if (!v) return err_set(e, ERR_NOT_FOUND, "'%s' has no version %d", en->name, number);
    return ready
               ? ERR_NONE
               : err_set(e, ERR_CONFLICT, "version %d of '%s' cannot be served", number, en->name);
}

err_code registry_set_alias(registry *r, uint64_t tenant_id, const char *name, const char *al,
                            int number, int64_t expected_generation, uint64_t *generation, err *e)
{
    if (!name_valid(al))
        return err_set(e, ERR_INPUT, "an alias is made of a-z 0-9 . _ - as names are");
    err_code rc = ERR_NOT_FOUND;
    lock_take(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    if (en) {
        rc = check_generation(en, expected_generation, e);
        if (!rc) rc = check_target(r, en, number, e);
        if (!rc && alias_find(en, al) == NULL && en->n_alias == REGISTRY_ALIAS_MAX)
            rc = err_set(e, ERR_LIMIT, "an adapter has at most %d aliases", REGISTRY_ALIAS_MAX);
        if (!rc) rc = set_alias_changing(r, en, al, number, e);
        if (!rc && generation) *generation = en->generation;
    }
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    return rc;
}

err_code registry_drop_alias(registry *r, uint64_t tenant_id, const char *name, const char *al,
                             int64_t expected_generation, err *e)
{
    if (strcmp(al, "default") == 0)
        return err_set(e, ERR_CONFLICT, "the alias default cannot be removed, only moved");
    err_code rc = ERR_NOT_FOUND;
    lock_take(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    alias *found = en != NULL ? alias_find(en, al) : NULL;
    if (en && !found) rc = err_set(e, ERR_NOT_FOUND, "'%s' has no alias '%.64s'", name, al);
    if (found) {
        rc = check_generation(en, expected_generation, e);
        uint64_t generation = en->generation + 1;
        if (!rc) rc = adapter_rows_drop_alias(r->db, en->id, al, generation, e);
        if (!rc) {
            lock_take(&r->mu);
            *found = en->alias[--en->n_alias];
            en->generation = generation;
            lock_release(&r->mu);
        }
    }
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    return rc;
}

err_code registry_rollback(registry *r, uint64_t tenant_id, const char *name, const char *al,
                           int64_t expected_generation, int *number, err *e)
{
    err_code rc = ERR_NOT_FOUND;
    lock_take(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    const alias *found = en != NULL ? alias_find(en, al) : NULL;
    if (en && !found) rc = err_set(e, ERR_NOT_FOUND, "'%s' has no alias '%.64s'", name, al);
    if (found) {
        int to = found->previous;
        rc = check_generation(en, expected_generation, e);
        if (rc) to = -1;
        if (to == 0)
            rc = err_set(e, ERR_CONFLICT, "'%s:%s' has no earlier version to go back to", name, al);
        else if (to > 0)
            rc = check_target(r, en, to, e);
        if (rc == ERR_NOT_FOUND) e->code = rc = ERR_CONFLICT; /* deleted meanwhile */
        if (!rc) rc = set_alias_changing(r, en, al, to, e);
        if (!rc && number) *number = to;
    }
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    return rc;
}

/* What a PATCH may change, under the rule of If-Match. */
err_code registry_set_meta(registry *r, uint64_t tenant_id, const char *name,
                           const char *description, const bool *pinned, err *e)
{
    registry_meta m = {.description = description, .pinned = pinned, .expected_generation = -1};
    return registry_update(r, tenant_id, name, &m, e);
}

static void show_meta(registry *r, entry *en, const registry_meta *m, uint64_t generation,
                      char *description, uint64_t *shared)
{
    en->generation = generation;
    if (m->pinned) en->pinned = *m->pinned;
    if (m->description) {
        free(en->description);
        en->description = description;
    }
    if (!m->share) return;
    bool was = en->shared_all || en->n_shared > 0;
    free(en->shared);
    en->shared = shared;
    en->n_shared = m->n_shared;
    en->shared_all = m->shared_all;
    bool is = en->shared_all || en->n_shared > 0;
    r->n_shared_entries += (size_t)is - (size_t)was;
}

err_code registry_update(registry *r, uint64_t tenant_id, const char *name, const registry_meta *m,
                         err *e)
{
    char *description = NULL;
    uint64_t *shared = NULL;
    if (m->description && strlen(m->description) >= ADAPTER_DESCRIPTION_MAX)
        return err_set(e, ERR_INPUT, "a description has at most %d bytes",
                       ADAPTER_DESCRIPTION_MAX - 1);
    if (m->description && (description = strdup(m->description)) == NULL)
        return registry_no_memory(e);
    if (m->share && m->n_shared > 0) {
        size_t bytes = (size_t)m->n_shared * sizeof(*shared);
        shared = malloc(bytes);
        if (!shared) {
            free(description);
            return registry_no_memory(e);
        }
        memcpy(shared, m->shared, bytes);
    }
    err_code rc = ERR_NOT_FOUND;
    lock_take(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    if (en) rc = check_generation(en, m->expected_generation, e);
    if (!rc) {
        adapter_meta_rows rows = {.description = m->description != NULL    ? m->description
                                                 : en->description != NULL ? en->description
                                                                           : "",
                                  .pinned = m->pinned != NULL ? *m->pinned : en->pinned,
                                  .generation = en->generation + 1,
                                  .share = m->share,
                                  .shared_all = m->shared_all,
                                  .shared = m->shared,
                                  .n_shared = m->n_shared};
        rc = adapter_rows_set_meta(r->db, en->id, &rows, e);
        if (!rc) {
            lock_take(&r->mu);
            show_meta(r, en, m, rows.generation, description, shared);
            lock_release(&r->mu);
            description = NULL;
            shared = NULL;
        }
    }
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    free(description);
    free(shared);
    return rc;
}

err_code registry_set_limits(registry *r, uint64_t tenant_id, const char *name,
                             const adapter_limits *was, const adapter_limits *l, err *e)
{
    lock_take(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    err_code rc = en != NULL ? ERR_NONE : ERR_NOT_FOUND;
    if (en && memcmp(&en->limits, was, sizeof(*was)) != 0)
        rc = err_set(e, ERR_CONFLICT, "the limits were changed meanwhile: read them again");
    if (!rc) rc = adapter_rows_set_limits(r->db, en->id, was, l, e);
    if (!rc) {
        lock_take(&r->mu);
        en->limits = *l;
        lock_release(&r->mu);
    }
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    return rc;
}

/* ---- delete ---------------------------------------------------------------------------- */

/* Marks the versions as draining under `mu`.  ERR_CONFLICT (nothing marked) while requests hold
 * one and !drain. */
static err_code mark_draining(registry *r, entry *en, version *only, bool drain, err *e)
{
    err_code rc = ERR_NONE;
    lock_take(&r->mu);
    int pins = 0;
    for (int i = 0; i < en->n_version; i++)
        if (!only || only == en->version[i]) pins += en->version[i]->pins;
    if (pins > 0 && !drain)
        rc = err_set(e, ERR_CONFLICT,
                     "'%s' is in use by %d requests: try again, or delete with drain", en->name,
                     pins);
    for (int i = 0; rc == ERR_NONE && i < en->n_version; i++) {
        version *v = en->version[i];
        v->before = v->state;
        if (!only || only == v) v->state = ADAPTER_DRAINING;
    }
    if (!rc && !only) en->doomed = true;
    lock_release(&r->mu);
    return rc;
}

/* What could not be written was not done. */
static void unmark_draining(registry *r, entry *en)
{
    lock_take(&r->mu);
    for (int i = 0; i < en->n_version; i++)
        if (!en->version[i]->finishing) en->version[i]->state = en->version[i]->before;
    en->doomed = false;
    lock_release(&r->mu);
}

/* Takes over those that nobody holds; the others are finished by their last release. */
static int take_idle(registry *r, entry *en, version *only, version **list, bool *draining)
{
    int n = 0;
    *draining = false;
    lock_take(&r->mu);
    for (int i = 0; i < en->n_version; i++) {
        version *v = en->version[i];
        if (only && only != v) continue;
        if (v->pins > 0) *draining = true;
        if (v->pins > 0 || v->finishing) continue;
        v->finishing = true;
        list[n++] = v;
    }
    lock_release(&r->mu);
    return n;
}

static const alias *alias_of(const entry *en, int number)
{
    for (int i = 0; i < en->n_alias; i++)
        if (en->alias[i].version == number) return &en->alias[i];
    return NULL;
}

/* Takes over those that nobody holds or names, but for the newest `keep`. */
static int take_old(registry *r, const entry *en, int keep, version **list)
{
    int n = 0, newer = 0;
    lock_take(&r->mu);
    for (int i = en->n_version - 1; i >= 0 && !en->doomed; i--) {
        version *v = en->version[i];
        if (v->state == ADAPTER_DRAINING) continue;
        if (newer++ < keep || alias_of(en, v->pub.version)) continue;
        v->outlived = true;
        if (v->pins > 0) continue;
        v->state = ADAPTER_DRAINING;
        v->finishing = true;
        list[n++] = v;
    }
    lock_release(&r->mu);
    return n;
}

int registry_prune(registry *r, uint64_t tenant_id, const char *name, int keep)
{
    int n = 0;
    lock_take(&r->change);
    const entry *en = keep > 0 ? entry_of(r, tenant_id, name, NULL) : NULL;
    version **list = en != NULL ? calloc((size_t)en->n_version + 1, sizeof(*list)) : NULL;
    if (list) n = take_old(r, en, keep, list);
    lock_release(&r->change);
    for (int i = 0; i < n; i++) registry_finish_version(r, list[i]);
    free(list);
    return n;
}

void registry_finish_outlived(registry *r, uint64_t version_id)
{
    lock_take(&r->change);
    lock_take(&r->mu);
    version *v = version_by_id(r, version_id);
    bool take = v && v->pins == 0 && v->outlived && v->state == ADAPTER_READY &&
                !alias_of(v->owner, v->pub.version);
    if (take) {
        v->state = ADAPTER_DRAINING;
        v->finishing = true;
    }
    lock_release(&r->mu);
    lock_release(&r->change);
    if (take) registry_finish_version(r, v);
}

static err_code check_unaliased(const entry *en, int number, err *e)
{
    const alias *al = alias_of(en, number);
    return !al ? ERR_NONE
               : err_set(e, ERR_CONFLICT,
                         "the alias '%s' points at version %d: move the alias first", al->name,
                         number);
}

err_code registry_delete(registry *r, uint64_t tenant_id, const char *name, int number, bool drain,
                         bool *draining, err *e)
{
    bool busy = false;
    version **idle = NULL;
    int n_idle = 0;
    err_code rc = ERR_NOT_FOUND;
    lock_take(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    if (!en) goto out;
    version *only = NULL;
    if (number != 0) {
        lock_take(&r->mu);
        only = version_by_number(en, number);
        if (only && only->state == ADAPTER_DRAINING) only = NULL;
        lock_release(&r->mu);
        rc = !only ? err_set(e, ERR_NOT_FOUND, "'%s' has no version %d", name, number)
                   : check_unaliased(en, number, e);
        if (rc) goto out;
    }
    idle = calloc((size_t)en->n_version + 1, sizeof(version *));
    rc = !idle ? registry_no_memory(e) : mark_draining(r, en, only, drain, e);
    if (rc) goto out;
    /* From here on no request can take it. */
    rc = only != NULL ? adapter_rows_set_state(r->db, only->pub.id, ADAPTER_DRAINING, NULL, e)
                      : adapter_rows_drain(r->db, en->id, e);
    if (!rc)
        n_idle = take_idle(r, en, only, idle, &busy);
    else
        unmark_draining(r, en);
out:
    atomic_fetch_add(&r->n_changes, 1);
    lock_release(&r->change);
    for (int i = 0; i < n_idle; i++) registry_finish_version(r, idle[i]);
    free(idle);
    if (draining) *draining = busy;
    return rc;
}
