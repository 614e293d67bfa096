/* registry_tables.h -- the registry's own memory: who is where.  Private to registry*.c.
 *
 * Hash tables by (tenant, name), by version id and by content, and one array of all names in order,
 * in which a page is found by bisection.  Under 1 KB for a name with one version: what is only
 * shown to people (info) stays in the database.
 *
 * Locks: files, change, mu; see engine/base/lock_list.h.
 */
#ifndef ADAPTERS_STORE_REGISTRY_TABLES_H
#define ADAPTERS_STORE_REGISTRY_TABLES_H

#include <stdatomic.h>

#include "adapters/store/registry.h"
#include "engine/base/lock.h"

enum { REGISTRY_BUCKETS = 16384 }; /* power of two; ten thousand adapters make chains of one */

struct entry;

typedef struct version {
    adapter_version pub;         /* first: what registry_acquire() hands out */
    struct version *next;        /* chain by id */
    struct version *next_digest; /* chain by content */
    struct entry *owner;
    adapter_state state, before; /* before: what a delete that is not written yet found */
    int pins;
    bool finishing;  /* somebody is removing it for good */
    bool outlived;   /* registry_prune() left it for those that hold it: the last takes it along */
    bool in_place;   /* an operator's files, elsewhere */
    bool absent;     /* in a fleet: another node has the files, this one not yet */
    int64_t used_us; /* where files can be brought: the last pin; 0: none since the start */
    char *error;     /* NULL: none */
} version;

typedef struct alias {
    char name[ADAPTER_NAME_MAX + 1];
    int version, previous;
} alias;

typedef struct entry {
    struct entry *next; /* chain by (tenant, name) */
    uint64_t id, tenant_id, generation;
    char name[ADAPTER_NAME_MAX + 1];
    bool pinned, shared_all;
    bool doomed; /* the name is deleted and hidden; versions run out */
    int last_version;
    int64_t created_wall_us;
    adapter_limits limits;
    char *description; /* NULL: none */
    version **version; /* by number, ascending */
    alias *alias;      /* default first, if there is one */
    uint64_t *shared;  /* tenants that may use it */
    int n_version, cap_version, n_alias, n_shared;
} entry;

struct registry {
    store *db;
    char reserved[4][ADAPTER_NAME_MAX * 2];
    int n_reserved;
    bool remote;
    lock files, change;
    _Atomic uint64_t n_changes, n_evicted;
    lock mu; /* guards all below */
    entry *by_name[REGISTRY_BUCKETS];
    version *by_id[REGISTRY_BUCKETS];
    version *by_digest[REGISTRY_BUCKETS];
    entry **order; /* by tenant, then name */
    size_t n_entry, cap_order, n_version, n_pins, n_shared_entries;
    bool loading; /* order is sorted at the end */
    void (*gone)(void *self, uint64_t version_id);
    void (*dropped)(void *self, const uint8_t digest[DIGEST_BYTES]);
    void *gone_self, *dropped_self;
};

/* All of these with mu held, but for the start. */

/* Also an entry that is being deleted (doomed); NULL: there is no such name. Constant time on
 * average. */
entry *entry_find(const registry *r, uint64_t tenant_id, const char *name);
/* One that is not deleted; ERR_NOT_FOUND and NULL. */
entry *entry_live(const registry *r, uint64_t tenant_id, const char *name, err *e);
/* An entry and its place, in no table yet; NULL: out of memory. */
entry *entry_make(registry *r);
/* Into the tables; takes `description` (malloced, NULL: none). */
void entry_place(registry *r, entry *en, const adapter_row *row, char *description);
/* What a publish may have changed in the row; takes `description` (NULL: it stays). */
void entry_update(entry *en, const adapter_row *row, char *description);

/* Out of the tables, before entry_free(). Its versions must be gone. */
void entry_unlink(registry *r, entry *en);

/* Frees an entry that is in no table. NULL is not allowed. */
void entry_free(entry *en);
/* Place in `order` of the first entry that is not before (tenant, name). */
size_t entry_bound(const registry *r, uint64_t tenant_id, const char *name);
void entry_sort(registry *r); /* after the start's loading */
bool entry_shared_with(const entry *en, uint64_t tenant_id);

/* NULL: there is no such version, or it is gone. In whatever state it is. */
version *version_by_id(const registry *r, uint64_t id);

/* By bisection; NULL: the entry has no such version. */
version *version_by_number(const entry *en, int number);

/* The version that "name@latest" selects; NULL if no version is ready. */
version *version_newest_ready(const entry *en);
/* A version and its place in the entry, in no table yet; NULL: out of memory. */
version *version_make(entry *en, const char *error);

/* Into the tables and into its entry, in the order of numbers; cannot fail. The entry owns it
 * from then on. */
void version_place(registry *r, entry *en, version *v, const version_row *row);

/* Out of all tables; nobody may hold a pin. version_free() follows. */
void version_unlink(registry *r, version *v);

/* Frees a version that is in no table. */
void version_free(version *v);
/* The first with this content, or the next after `before`; NULL: there is none. */
version *version_of_digest(const registry *r, const uint8_t digest[DIGEST_BYTES],
                           const version *before);

/* Does any version, of any tenant, have this content? */
bool registry_has_digest(const registry *r, const uint8_t digest[DIGEST_BYTES]);

/* The alias with this name, borrowed until the entry's aliases change; NULL if there is none. */
alias *alias_find(const entry *en, const char *name);
/* Room for one more; false: out of memory. */
bool alias_reserve(entry *en);
/* Points it, making it if need be: alias_reserve() came before. */
void alias_point(entry *en, const char *name, int to, int previous);

/* Returns ERR_NOMEM with the one sentence that all of these files use. */
err_code registry_no_memory(err *e);

/* registry_files.c */
bool registry_files_there(const registry *r, const uint8_t digest[DIGEST_BYTES]);
/* Are they an operator's, elsewhere? */
bool registry_files_linked(const registry *r, const uint8_t digest[DIGEST_BYTES]);

/* Removes folders below adapters/ that no version has; at the start, before requests come. */
void registry_files_sweep(registry *r);
/* Removes the files of this content unless some version still has it. */
void registry_files_drop(registry *r, const uint8_t digest[DIGEST_BYTES]);

/* registry_fleet.c: for store_on_adapter(): brings a name to what its rows say. */
err_code registry_refresh(void *registry_, uint64_t adapter_id, err *e);
/* Marks a version whose files are not here: absent in a fleet, and failed unless they can be
 * brought. */
void version_note_missing(const registry *r, version_row *v, bool *absent);

/* registry_change.c: removes a drained version without pins for good (row, memory, files).  The
 * caller has set v->finishing, so that nobody else does; no lock is held. */
void registry_finish_version(registry *r, version *v);
/* The same for one that was outlived, unless somebody holds or names it again. */
void registry_finish_outlived(registry *r, uint64_t version_id);

#endif
