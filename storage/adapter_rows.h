/* adapter_rows.h -- the rows behind adapters/store/registry.c: names, versions, aliases.
 *
 * Only what must outlive the process.  The registry keeps all of it in memory and is the only
 * caller besides tests; the files themselves lie under <dir>/adapters/<digest>/.
 * Threads: any thread; the registry orders its own writes.
 */
#ifndef STORAGE_ADAPTER_ROWS_H
#define STORAGE_ADAPTER_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/digest.h"
#include "storage/price.h"
#include "storage/store.h"
#include "storage/tenants.h"

enum { ADAPTER_NAME_MAX = TENANT_NAME_MAX, ADAPTER_DESCRIPTION_MAX = 512, ADAPTER_INFO_MAX = 4096 };

typedef enum {
    ADAPTER_READY = 1,
    ADAPTER_FAILED = 2,
    ADAPTER_DRAINING = 3, /* deleted for new requests; runs out under its last pins */
    ADAPTER_DELETED = 4,
} adapter_state;

/* "ready", "failed", "draining", "deleted". */
const char *adapter_state_name(adapter_state s);

typedef struct adapter_limits { /* of all who use it together; 0: none */
    int64_t requests_per_minute, tokens_per_minute, max_concurrent;
    token_price surcharge; /* added to the price of the request's class */
} adapter_limits;

typedef struct adapter_row { /* one name of one tenant */
    uint64_t id;
    uint64_t tenant_id;
    char name[ADAPTER_NAME_MAX + 1];
    char description[ADAPTER_DESCRIPTION_MAX];
    bool pinned;         /* kept resident */
    int last_version;    /* highest number ever given */
    uint64_t generation; /* raised by each change of an alias or version; the ETag */
    int64_t created_wall_us;
    adapter_limits limits;
} adapter_row;

typedef struct version_row {
    uint64_t id; /* never reused: the engine's adapter_id */
    uint64_t adapter_id;
    int version; /* 1, 2, 3 ... under one name */
    uint8_t digest[DIGEST_BYTES];
    uint64_t file_bytes;   /* of the two files */
    uint64_t packed_bytes; /* resident */
    int rank_max;
    adapter_state state;
    char error[248]; /* with ADAPTER_FAILED */
    int64_t created_wall_us;
    char info[ADAPTER_INFO_MAX];       /* JSON: ranks, targets, dtype, base named by the config */
    bool has_words;                    /* out of _load: there are some (adapter_rows_words()) */
    const char *words;                 /* into _publish: JSON, or NULL */
    bool has_part_sha;                 /* false: published before these were kept */
    uint8_t part_sha[2][DIGEST_BYTES]; /* SHA-256 of config and weights; not read back by _load */
} version_row;

typedef struct alias_row {
    uint64_t adapter_id;
    char alias[ADAPTER_NAME_MAX + 1];
    int version, previous; /* numbers; previous 0: nothing to roll back to */
    uint64_t generation;   /* of the adapter when it was set */
} alias_row;

/* In one transaction: makes the name if it is new, gives the next version number, inserts the
 * version, points the alias `default` at it if `activate` (or if it is the first ready one).  In:
 * v's digest, file_bytes, packed_bytes, rank_max, part_sha; a's tenant_id, name.  Out: both whole.
 * Limits (0: none) are checked inside the transaction: ERR_LIMIT; so is *generation, of the adapter
 * before (0: there is none; NULL: whatever it is): ERR_STALE. */
err_code adapter_rows_publish(store *st, adapter_row *a, version_row *v, const char *info,
                              bool activate, int64_t max_adapters, int64_t max_bytes,
                              const uint64_t *generation, err *e);
/* What was told of a version when it was published (JSON: ranks, targets,
 * dtype); "" when it is gone. */
err_code adapter_rows_info(store *st, uint64_t version_id, char *out, size_t cap, err *e);

/* Adds to it how much the version changes the logits of a fixed prompt: "logit_change". */
err_code adapter_rows_set_change(store *st, uint64_t version_id, double change, err *e);

/* A version's vocabulary as it was published; *out is malloced, NULL where it is the base's. */
err_code adapter_rows_words(store *st, uint64_t version_id, char **out, err *e);

/* `generation` is the one after that which the change was made from: ERR_STALE where the row has
 * another one (in a fleet another node may have been there first); 0: it stays. */
err_code adapter_rows_set_alias(store *st, uint64_t adapter_id, const char *alias, int version,
                                int previous, uint64_t generation, err *e);

/* Deletes the alias. `generation`: the adapter's new one, as for adapter_rows_set_alias(). */
err_code adapter_rows_drop_alias(store *st, uint64_t adapter_id, const char *alias,
                                 uint64_t generation, err *e);
err_code adapter_rows_set_state(store *st, uint64_t version_id, adapter_state state,
                                const char *error, err *e);

typedef struct adapter_meta_rows {
    const char *description;
    bool pinned;
    uint64_t generation;
    bool share; /* replace the shares, too */
    bool shared_all;
    const uint64_t *shared; /* tenants */
    int n_shared;
} adapter_meta_rows;
/* ERR_NOT_FOUND: a tenant to share with does not exist. */
err_code adapter_rows_set_meta(store *st, uint64_t adapter_id, const adapter_meta_rows *m, err *e);
/* ERR_INPUT on a negative one; ERR_CONFLICT where others than `was` stand there now.  The
 * generation stays: limits are the operator's. */
err_code adapter_rows_set_limits(store *st, uint64_t adapter_id, const adapter_limits *was,
                                 const adapter_limits *l, err *e);
/* All versions of a name at once: no new requests, across a restart too. */
err_code adapter_rows_drain(store *st, uint64_t adapter_id, err *e);
/* A ready version of this tenant whose config (part 0) or weights (part 1) have this SHA-256:
 * *found, and the digest that names its folder. */
err_code adapter_rows_find_part(store *st, uint64_t tenant_id, int part,
                                const uint8_t sha[DIGEST_BYTES], uint8_t digest[DIGEST_BYTES],
                                bool *found, err *e);

/* Removes a name with all its versions' rows and aliases (usage keeps its own copy of the
 * label). */
err_code adapter_rows_drop(store *st, uint64_t adapter_id, err *e);

typedef struct share_row {
    uint64_t adapter_id, tenant_id; /* tenant 0: all */
} share_row;

/* Everything, for the start, or what belongs to one adapter: malloced arrays, by id. */
typedef struct adapter_rows {
    adapter_row *adapter;
    version_row *version;
    alias_row *alias;
    share_row *share;
    size_t n_adapter, n_version, n_alias, n_share;
} adapter_rows;
/* `only`: of this adapter, all of one moment; 0: of all. */
err_code adapter_rows_load(store *st, uint64_t only, adapter_rows *out, err *e);

/* Frees the lists; a zeroed one is fine. */
void adapter_rows_clear(adapter_rows *rows);

#endif
