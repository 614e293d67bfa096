/* residency.h -- which adapters are in memory, ready for the kernels.
 *
 * A cache of packed adapters under a byte budget.  Loader threads read the files, check them again
 * and pack them (be_lora_pack) away from the engine thread; the engine only asks, through
 * struct lora_source (engine/lora.h), and never waits: ERR_BUSY until resident.  Evicted is the
 * least recently used among those that nobody has acquired and nobody pinned.  Who waits
 * is served in order of arrival, so a small budget slows down but never locks up.
 *
 * Locks:   one mutex; it is not held while files are read or weights packed.
 * Threads: the source's three calls on the engine thread; all else from any thread.
 */
#ifndef ADAPTERS_RESIDENCY_H
#define ADAPTERS_RESIDENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/registry.h"
#include "engine/backend.h"
#include "engine/lora.h"
#include "engine/model.h"

typedef struct residency residency;

typedef struct residency_config {
    size_t budget_bytes; /* of packed adapters */
    int n_loaders;       /* threads; 0: 1 */
    const model
        *weights; /* of the base, for DoRA and biases; NULL: adapters with them fail to load */
} residency_config;

typedef enum {
    RESIDENCY_DISK,
    RESIDENCY_LOADING,
    RESIDENCY_RESIDENT,
    RESIDENCY_FAILED /* the files were unreadable at the last try */
} residency_state;

/* "disk", "loading", "host", "failed". */
const char *residency_state_name(residency_state s);

typedef struct residency_stats {
    size_t budget_bytes, used_bytes;
    int n_resident, n_loading, n_waiting, n_pinned, n_acquired;
    uint64_t n_hits, n_misses; /* acquires that found the adapter resident, and that did not */
    uint64_t n_loads, n_evictions, n_failures;
    uint64_t loaded_bytes;
    int64_t load_us_sum, load_us_max;
} residency_stats;

/* Borrows all three until residency_destroy().  Names that the registry has as pinned are loaded and
 * pinned (their default versions). */
err_code residency_create(residency **out, const residency_config *cfg, backend *be,
                          const model_config *base, registry *reg, err *e);
/* The engine must be done: nothing acquired. */
void residency_destroy(residency *rs);

/* The door for sched_create(); valid until residency_destroy(). */
lora_source residency_source(residency *rs);

/* Starts loading if it is not resident; returns at once. */
void residency_warm(residency *rs, uint64_t version_id);
/* Keeps a version resident (loads it when it is not).  ERR_LIMIT when the pinned ones would take
 * more than half of the budget; ERR_NOT_FOUND. */
err_code residency_pin(residency *rs, uint64_t version_id, err *e);
void residency_unpin(residency *rs, uint64_t version_id);

/* Drops it from memory, at once or when the last sequence lets go of it; one that is not there is left
 * alone.  ERR_CONFLICT: it is pinned. */
err_code residency_evict(residency *rs, uint64_t version_id, err *e);

residency_state residency_get(residency *rs, uint64_t version_id, bool *pinned);
void residency_stats_get(residency *rs, residency_stats *out);

typedef struct residency_row { /* one version that is not just on the disk */
    uint64_t version_id;
    residency_state state;
    bool pinned;
    int acquired; /* sequences of the batch that use it */
    uint64_t bytes;
    int64_t load_us; /* what the latest load took; 0: not loaded yet */
} residency_row;

/* Appends those rows to *out (malloced, *cap and *n counted along).  The lock is held for a few
 * hundred at a time, so the engine waits for none of it.  ERR_NOMEM. */
err_code residency_rows(residency *rs, residency_row **out, size_t *n, size_t *cap, err *e);

#endif
