/* registry.h -- which adapters exist, which version a name means, and who holds it.
 *
 * Maps (tenant, name) to immutable versions and aliases to versions; loaded from storage at the
 * start, every change written through before it is seen.  Knows nothing of HTTP or of memory on a
 * device: packed weights live in adapters/residency/residency.h.
 *
 * A request resolves its model string once and holds a pin until its end, so a roll-back or a
 * delete never pulls a version from under it.  A deleted version drains: no new pins, files removed
 * once the last pin is back and no other version (of any tenant) has the same content.
 *
 * Ownership: registry_acquire() hands out one pin, registry_release() takes it back; a pinned
 *            version neither moves nor dies.  Listing copies.
 * Threads:   every function may be called from any thread, create and destroy apart.
 */
#ifndef ADAPTERS_STORE_REGISTRY_H
#define ADAPTERS_STORE_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "storage/adapter_rows.h"
#include "storage/store.h"

typedef struct registry registry;

/* One immutable version; read freely while pinned. */
typedef struct adapter_version {
    uint64_t id; /* the engine's adapter_id; unique over all time, never reused */
    uint64_t tenant_id;
    char name[ADAPTER_NAME_MAX + 1];
    int version;
    uint8_t digest[DIGEST_BYTES];
    uint64_t file_bytes, packed_bytes;
    int rank_max;
    bool has_words; /* a vocabulary of its own (adapters/format/words.h): adapter_rows_words() */
    int64_t created_wall_us;
} adapter_version;

typedef struct registry_config {
    const char *reserved[4]; /* model names that no adapter may take (the base's) */
    int n_reserved;
    bool remote; /* an object store has all files; those that are not here can be brought */
} registry_config;

/* Loads all rows, finishes deletes that a crash cut short, removes files that no row knows.  A
 * ready version whose files are missing is marked failed.  `db` is borrowed.  `cfg` may be NULL. */
err_code registry_create(registry **out, store *db, const registry_config *cfg, err *e);
/* All pins must be back: aborts otherwise, naming the version that is still held. */
void registry_destroy(registry *r);

/* ---- on the way of a request ------------------------------------------------ */

/* "name" (its alias `default`), "name@7", "name@latest" (the newest that is ready), "name:alias";
 * "tenant/name..." for what is the tenant's own, shared with it, or, with `any_tenant`, anybody's.
 *   ERR_NOT_FOUND  also when the name belongs to another tenant (the same sentence)
 *   ERR_CONFLICT   the version is draining or failed
 *   ERR_ELSEWHERE  another node of the fleet has its files, this one not yet */
err_code registry_acquire(registry *r, uint64_t tenant_id, const char *model, bool any_tenant,
                          const adapter_version **out, err *e);
/* The same; with ERR_ELSEWHERE *absent_id is the version whose files are not here. */
err_code registry_try(registry *r, uint64_t tenant_id, const char *model, bool any_tenant,
                      const adapter_version **out, uint64_t *absent_id, err *e);
/* One more pin on a version by its id; while it drains too, for as long as somebody holds it. */
err_code registry_acquire_id(registry *r, uint64_t version_id, const adapter_version **out, err *e);

/* Gives the pin back; NULL is allowed. The last pin of a deleted version removes its row and
 * files on this thread, so no lock may be held. */
void registry_release(registry *r, const adapter_version *v);
/* "name@version" of a version that is known, to show it: nothing is pinned, so the caller may hold
 * a lock (the last pin's release writes to the disk).  False: it is gone. */
bool registry_label(registry *r, uint64_t version_id, char *out, size_t cap);
/* Limits of the name that a pinned version belongs to, and that name's id (never reused). */
void registry_limits(registry *r, const adapter_version *v, uint64_t *adapter_id,
                     adapter_limits *out);

/* ---- changes ------------------------------------------------------------------ */

typedef struct registry_new_version {
    uint64_t tenant_id;
    const char *name;
    const char *description; /* NULL: keep */
    const uint8_t *digest;   /* files lie under <dir>/adapters/<digest>/ already */
    uint64_t file_bytes, packed_bytes;
    int rank_max;
    const uint8_t (*part_sha)[DIGEST_BYTES]; /* SHA-256 of config and weights; NULL: not known */
    const char *info;                        /* JSON */
    const char *words;                       /* adapters/format/words.h; NULL: none */
    bool activate; /* point `default` at it; the first version of a name always is */
    int64_t max_adapters, max_bytes; /* the tenant's limits; 0: none */
    bool if_generation;              /* ERR_STALE unless the adapter's generation is this one */
    uint64_t generation;             /* 0: the name must be new */
    bool in_place;                   /* the files are an operator's, elsewhere */
} registry_new_version;

/* ERR_INPUT unless an adapter may bear this name: its form, and not the base's. */
err_code registry_check_name(const registry *r, const char *name, err *e);

/* Content that the name's newest ready version has already: that version again, *existed true. */
err_code registry_publish(registry *r, const registry_new_version *nv, adapter_version *out,
                          bool *existed, err *e);

/* Points an alias at a version.  expected_generation < 0: whatever it is; else ERR_STALE unless the
 * adapter's generation is that one.  *generation (may be NULL) is the new one. */
err_code registry_set_alias(registry *r, uint64_t tenant_id, const char *name, const char *alias,
                            int version, int64_t expected_generation, uint64_t *generation, err *e);

/* ERR_NOT_FOUND: there is no such alias; ERR_CONFLICT for "default", which only a deletion of
 * the name removes. */
err_code registry_drop_alias(registry *r, uint64_t tenant_id, const char *name, const char *alias,
                             int64_t expected_generation, err *e);
/* Back to the version that the alias meant before; *version is that one.  ERR_CONFLICT when there
 * is none, or it is gone; ERR_STALE as for registry_set_alias(). */
err_code registry_rollback(registry *r, uint64_t tenant_id, const char *name, const char *alias,
                           int64_t expected_generation, int *version, err *e);
/* NULL keeps.  `pinned` asks residency to keep the default version resident. */
err_code registry_set_meta(registry *r, uint64_t tenant_id, const char *name,
                           const char *description, const bool *pinned, err *e);

typedef struct registry_meta {
    const char *description; /* NULL: keep */
    const bool *pinned;      /* NULL: keep */
    bool share;              /* the three below replace who may use it */
    bool shared_all;         /* every tenant of this server */
    const uint64_t *shared;  /* tenants */
    int n_shared;
    int64_t expected_generation; /* -1: whatever it is; else ERR_STALE */
} registry_meta;

/* Writes what `m` has and raises the generation. ERR_NOT_FOUND, ERR_STALE, ERR_IO. */
err_code registry_update(registry *r, uint64_t tenant_id, const char *name, const registry_meta *m,
                         err *e);

/* Of the name; they go when the name is deleted.  `was`: what `l` was made from.  ERR_CONFLICT:
 * others stand there now; ERR_INPUT on a negative one. */
err_code registry_set_limits(registry *r, uint64_t tenant_id, const char *name,
                             const adapter_limits *was, const adapter_limits *l, err *e);

/* Deletes one version (version > 0) or the whole name (0).
 *   drain   requests that hold it finish; *draining says whether any do
 *   !drain  ERR_CONFLICT while requests hold it
 * ERR_CONFLICT too for a version that an alias points at. */
err_code registry_delete(registry *r, uint64_t tenant_id, const char *name, int version, bool drain,
                         bool *draining, err *e);

/* Deletes the versions of a name that are older than its newest `keep` (0: none are), but for those
 * that an alias names: they go with a later call.  One that a request holds goes with its last
 * registry_release().  Returns how many went at once. */
int registry_prune(registry *r, uint64_t tenant_id, const char *name, int keep);

/* Called (on the thread of a release or delete, no lock held) when a version id is gone for good,
 * so that residency can drop it.  Set before use by many threads. */
void registry_on_gone(registry *r, void (*fn)(void *self, uint64_t version_id), void *self);
/* The same for a version's content, after its row is gone for good. */
void registry_on_dropped(registry *r, void (*fn)(void *self, const uint8_t digest[DIGEST_BYTES]),
                         void *self);

/* ---- looking ---------------------------------------------------------------------- */

enum { REGISTRY_ALIAS_MAX = 16 };

typedef struct adapter_entry { /* one name, as a tenant sees it */
    uint64_t id, tenant_id;
    char name[ADAPTER_NAME_MAX + 1];
    char description[ADAPTER_DESCRIPTION_MAX];
    bool pinned;
    uint64_t generation;
    int64_t created_wall_us;
    int default_version; /* 0: none */
    uint64_t default_id; /* its version id; 0: none */
    adapter_state state; /* of the default version, or of the newest where there is none */
    int n_versions;      /* ready ones */
    uint64_t file_bytes; /* of all versions */
    adapter_limits limits;
    bool shared_all;
    int n_shared; /* tenants that it is shared with by name */
    int n_alias;
    struct {
        char alias[ADAPTER_NAME_MAX + 1];
        int version, previous;
    } alias[REGISTRY_ALIAS_MAX];
} adapter_entry;

typedef struct version_entry {
    adapter_version v;
    adapter_state state;
    int pins;
    bool absent, in_place; /* its files are not on this node; are an operator's, elsewhere */
    char error[248];
    char info[ADAPTER_INFO_MAX]; /* JSON; by registry_version() alone, else empty */
} version_entry;

/* Names after `after` (NULL: from the first) in alphabetical order, at most `limit` (0: all).
 * tenant_id 0: all tenants, ordered by tenant, then name (then `after` is ignored).  Malloced. */
err_code registry_list(registry *r, uint64_t tenant_id, const char *after, size_t limit,
                       adapter_entry **out, size_t *n, err *e);

enum { REGISTRY_SCAN_MAX = 4096 };

typedef struct registry_query {
    uint64_t tenant_id;   /* 0: all tenants */
    uint64_t shared_with; /* not 0: only other tenants' names that this one may use */
    const char *prefix;   /* of the name; NULL: all */
    adapter_state state;  /* 0: any */
    size_t limit;         /* of entries in the page; at least 1 */
    /* The page begins after this name (and tenant, where all are asked). */
    uint64_t after_tenant_id;
    const char *after; /* NULL: at the first */
} registry_query;

typedef struct registry_cursor { /* where the next page begins */
    bool more;
    uint64_t tenant_id;
    char name[ADAPTER_NAME_MAX + 1];
} registry_cursor;

/* One page, by tenant and name.  Its time does not grow with the number of names: the begin is
 * found by bisection, and at most REGISTRY_SCAN_MAX names are looked at, so that a page may be
 * short, even empty, and still have a next one.  *out has room for q->limit. */
void registry_page(registry *r, const registry_query *q, adapter_entry *out, size_t *n,
                   registry_cursor *next);
/* Tenants that a name is shared with; malloced, NULL for none. */
err_code registry_shares(registry *r, uint64_t tenant_id, const char *name, uint64_t **out,
                         size_t *n, err *e);

/* A copy of one name. ERR_NOT_FOUND also for a name of another tenant. */
err_code registry_get(registry *r, uint64_t tenant_id, const char *name, adapter_entry *out,
                      err *e);
/* Versions of a name, newest first; malloced. */
err_code registry_versions(registry *r, uint64_t tenant_id, const char *name, version_entry **out,
                           size_t *n, err *e);

/* A copy of one version, with its info from the database (ERR_IO). ERR_NOT_FOUND. */
err_code registry_version(registry *r, uint64_t tenant_id, const char *name, int version,
                          version_entry *out, err *e);

typedef struct registry_summary {       /* one name, in short */
    uint64_t id, tenant_id, default_id; /* default_id: of the default version; 0: none */
    char name[ADAPTER_NAME_MAX + 1];
    int default_version, previous, n_versions, rank_max;
    uint64_t file_bytes, packed_bytes; /* of all versions; of the default one */
    bool pinned;
} registry_summary;

/* Rises with every change of a name, version or alias. */
uint64_t registry_changes(const registry *r);
/* All names in no order; malloced.  The registry is locked piece by piece: what changes meanwhile
 * may be missing, and registry_changes() has risen then. */
err_code registry_summaries(registry *r, registry_summary **out, size_t *n, err *e);

/* Blocks, a folder and rows of a tiny version. */
enum { REGISTRY_VERSION_LEAST = 64 << 10 };

typedef struct registry_totals {
    size_t n_adapters, n_versions, n_pins;
    uint64_t file_bytes;
    /* Of those that lie here; each counts for REGISTRY_VERSION_LEAST at least. */
    uint64_t disk_bytes;
} registry_totals;
/* Of one tenant, or all (0). */
void registry_totals_get(registry *r, uint64_t tenant_id, registry_totals *out);

/* Path of <dir>/adapters/<digest hex> into `out`. */
void registry_path(const registry *r, const uint8_t digest[DIGEST_BYTES], char *out, size_t cap);

/* The store that registry_create() got; borrowed. */
store *registry_store(const registry *r);

/* Held by an upload from the moment its files get their final name until its row is there, so that
 * a delete of the same content at the same time cannot take the files away in between. */
void registry_files_lock(registry *r);

/* Around renaming files and registry_publish(): see above. */
void registry_files_unlock(registry *r);
/* Removes files that no version has (an upload that was refused at the last step); with the
 * lock. */
void registry_files_forget(registry *r, const uint8_t digest[DIGEST_BYTES]);

/* ---- files that an object store has, too (adapters/store/depot.h) ----------------------- */

/* A version that is served but whose files are not here; false: there is none, or they are. */
bool registry_absent(registry *r, uint64_t version_id, adapter_version *out);
/* Are the files of an absent version here by now?  Then it is served.  No lock is held. */
bool registry_look_again(registry *r, uint64_t version_id);

typedef struct registry_content { /* files that lie here and are our own, of one digest */
    uint8_t digest[DIGEST_BYTES];
    uint64_t bytes;
    int64_t last_use_us; /* clock_now_us(); 0: not since the start */
    bool idle;           /* no request holds it, no name that has it is pinned */
} registry_content;
/* All of them, in no order; malloced. */
err_code registry_contents(registry *r, registry_content **out, size_t *n, err *e);
/* One; false: it does not lie here. */
bool registry_content_of(registry *r, const uint8_t digest[DIGEST_BYTES], registry_content *out);
/* Ids of the versions of a content, at most `cap`; how many there are. */
int registry_versions_of(registry *r, const uint8_t digest[DIGEST_BYTES], uint64_t *id, int cap);
/* Removes the files of a content that is idle: its versions are absent then.  False: it is not
 * idle, or not here.  Takes the files' lock. */
bool registry_files_evict(registry *r, const uint8_t digest[DIGEST_BYTES]);

#endif
