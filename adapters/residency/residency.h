/* residency.h -- where each adapter is: on disk, in host memory, on the device.
 *
 * Disk holds all.  Host memory holds compact copies (adapters/store/copy.h) under a budget
 * of its own; the device's arena (engine/memory/devmem.h), shared with the KV pages, holds
 * what the kernels read.  Loader threads move adapters up, away from the engine thread; the
 * engine only asks, through struct lora_source (engine/lora.h), and never waits: ERR_BUSY
 * until resident.  Whose first token is promised earliest is loaded first, and a small
 * budget slows down but never locks up.
 *
 * Locks:   one mutex, not held while files are read or weights packed; the arena's is inside of it.
 * Threads: the source's calls on the engine thread; all else from any thread.
 */
#ifndef ADAPTERS_RESIDENCY_RESIDENCY_H
#define ADAPTERS_RESIDENCY_RESIDENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/residency/pace.h"
#include "adapters/store/registry.h"
#include "adapters/store/stacks.h"
#include "engine/backend.h"
#include "engine/lora.h"
#include "engine/memory/devmem.h"
#include "engine/model/model.h"

typedef struct residency residency;

typedef struct residency_config {
    devmem *arena;       /* borrowed; NULL: one of its own, of budget_bytes */
    size_t budget_bytes; /* of packed adapters, where there is no arena */
    size_t chunk_bytes;  /* of an arena of its own; 0: what any adapter can be cut into */
    size_t host_bytes;   /* of copies in host memory; 0: none are kept */
    bool host_int8;      /* A and B are kept in int8 there */
    int n_loaders;       /* threads; 0: 1 */
    /* Percent of a step's slack that copies to the device may take
     * (adapters/residency/pace.h); 0: no bound. */
    int copy_share;
    stacks *stacks;       /* borrowed; NULL: there are none */
    const model *weights; /* of the base, for DoRA and biases; NULL: those are refused */
} residency_config;

typedef enum {
    RESIDENCY_DISK,
    RESIDENCY_LOADING,
    RESIDENCY_RESIDENT, /* on the device */
    RESIDENCY_FAILED,   /* the files were unreadable at the last try */
    RESIDENCY_HOST
} residency_state;

/* "disk", "loading", "device", "failed", "host". */
const char *residency_state_name(residency_state s);

typedef struct residency_stats {
    size_t budget_bytes, used_bytes; /* of the device, by adapters; whole chunks */
    int n_resident, n_loading, n_waiting, n_pinned, n_acquired;
    uint64_t n_hits,
        n_misses; /* seats that found the adapter resident, and loads that were waited for */
    uint64_t n_loads, n_evictions, n_failures;
    uint64_t loaded_bytes;
    int64_t load_us_sum, load_us_max; /* to the device, from wherever */
    int64_t pack_us_sum;              /* the part of it after reading */
    int64_t disk_us_sum;              /* the part of it that waited for the disk */
    /* host memory */
    size_t host_budget_bytes, host_used_bytes;
    int n_host;
    uint64_t n_host_hits, n_host_misses; /* loads that found a copy, and that read the disk */
    uint64_t n_host_evictions;
    int64_t read_us_sum; /* reading and checking files */
    uint64_t read_bytes;
    devmem_counts arena;
    pace_counts pace;
} residency_stats;

/* Borrows all three until residency_destroy().  Names that the registry has as pinned are loaded
 * and pinned (their default versions). */
err_code residency_create(residency **out, const residency_config *cfg, backend *be,
                          const model_config *base, registry *reg, err *e);
/* The engine must be done: nothing acquired. */
void residency_destroy(residency *rs);

/* The door for sched_create(); valid until residency_destroy(). */
lora_source residency_source(residency *rs);

/* Starts loading if it is not resident; returns at once. */
void residency_warm(residency *rs, uint64_t version_id);
/* The same for a version that was just published: `fd` is its weights' file, checked and still in
 * the system's memory.  Loads it on the caller's thread, at the caller's priority, into what room
 * is idle; where another is filled, or the device is away, as residency_warm(). */
void residency_fill(void *residency_, uint64_t version_id, int fd, uint64_t bytes);
/* The files of a version that was there already have come again, whole: one whose load failed is
 * loaded at its next use, and not only after the usual pause. */
void residency_renew(residency *rs, uint64_t version_id);
/* A thread that goes before the steps leaves them their part of the processor (pace.h), where it is
 * the processor that they run on. */
void residency_turn(residency *rs, pace_turn *t, int64_t busy_us);
/* Keeps a version resident (loads it when it is not).  ERR_LIMIT when the pinned ones would take
 * more than half of the budget; ERR_NOT_FOUND. */
err_code residency_pin(residency *rs, uint64_t version_id, err *e);

/* It may be evicted from now on; one that is not pinned, or not known, is left alone. */
void residency_unpin(residency *rs, uint64_t version_id);

/* Drops it from memory, at once or when the last sequence lets go of it; one that is not there is
 * left alone.  ERR_CONFLICT: it is pinned. */
err_code residency_evict(residency *rs, uint64_t version_id, err *e);

/* Where the version is now, which may change at once; `pinned` may be NULL. */
residency_state residency_get(residency *rs, uint64_t version_id, bool *pinned);

/* Counts and bytes of one moment. */
void residency_stats_get(residency *rs, residency_stats *out);

typedef struct residency_row { /* one version */
    uint64_t version_id;
    residency_state state;
    bool pinned;
    int acquired;               /* sequences of the batch that use it */
    uint64_t bytes, host_bytes; /* on the device (or what it took there last), of its copy */
    int64_t load_us;            /* what the latest load took; 0: not loaded yet */
    uint64_t n_hits, n_loads;
    int64_t last_use_us; /* clock_now_us(); 0: never */
} residency_row;

/* Counts the changes of state, pins, users and copies; never 0.  As long as it stays,
 * residency_rows() gives the same states, pins, users and load times. */
uint64_t residency_changes(residency *rs);
/* Appends a row for each version that is not just on the disk to *out (malloced, *cap and
 * *n counted along).  The lock is held for a few hundred at a time, so the engine waits
 * for none of it.  ERR_NOMEM. */
err_code residency_rows(residency *rs, residency_row **out, size_t *n, size_t *cap, err *e);
/* The row of one version; all zero but version_id where it was not asked for since the start. */
void residency_row_get(residency *rs, uint64_t version_id, residency_row *out);

#endif
