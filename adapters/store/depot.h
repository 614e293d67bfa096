/* depot.h -- adapters' files in an object store that all nodes of a fleet have.
 *
 * An upload is stored there before its row is written, so a version that a node hears of can be
 * brought.  The first request brings it: one download whoever else asks meanwhile, digests checked
 * before anything is used, put in place by one rename.  What lies on this disk is a cache with a
 * bound: least recently used contents go, but for those that are in use, or that the store lacks.
 *
 * An object goes after its last version's row is gone.  Whether it may is asked of the registry a
 * moment later, and an upload of the same content is looked at a moment after that: stored again
 * if the object went between.
 *
 * Ownership: depot_start() borrows what it is given until depot_stop().
 * Threads:   any, but start and stop; it has a few of its own.
 */
#ifndef ADAPTERS_STORE_DEPOT_H
#define ADAPTERS_STORE_DEPOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "adapters/format/folder.h"
#include "adapters/store/registry.h"
#include "adapters/store/remote.h"
#include "adapters/store/storeroom.h"

typedef struct depot depot;

typedef struct depot_config {
    registry *reg; /* made with registry_config.remote */
    storeroom *room;
    remote remote;
    uint64_t cache_bytes; /* of contents on this disk; 0: no bound but the disk's floor */
    /* Is a version on the device, or on its way?  NULL: none is. */
    bool (*in_use)(void *self, uint64_t version_id);
    void *in_use_self;
    const atomic_bool *cut; /* nobody waits any more; NULL: never */
} depot_config;

typedef struct depot_stats {
    uint64_t n_fetches, fetched_bytes, n_failed, n_damaged; /* downloads that began; their ends */
    uint64_t n_stored, n_store_failed, n_dropped, n_evicted;
    int fetching, waiting; /* contents, requests */
} depot_stats;

err_code depot_start(depot **out, const depot_config *cfg, err *e);
/* Ends downloads and waits.  NULL is fine. */
void depot_stop(depot *d);

/* Stores the files of an upload.  ERR_IO: the store does not take them.  NULL: does nothing. */
err_code depot_store(depot *d, int dir_fd, const uint64_t bytes[PART_COUNT],
                     const uint8_t sha[PART_COUNT][DIGEST_BYTES],
                     const uint8_t digest[DIGEST_BYTES], err *e);
/* Looks at a content soon: stores what lies here and not there, drops what no version has.  NULL:
 * does nothing. */
void depot_look(depot *d, const uint8_t digest[DIGEST_BYTES]);

/* registry_acquire(), and brings files that are not here, until `until_us` (clock_now_us()).
 * ERR_ELSEWHERE: they are not here yet; *retry_ms is when they may be.  NULL: does not bring. */
err_code depot_acquire(depot *d, registry *reg, uint64_t tenant_id, const char *name,
                       int64_t until_us, const adapter_version **out, int64_t *retry_ms, err *e);
/* The bringing alone, of a version; ERR_NONE too where nothing is absent. */
err_code depot_bring(depot *d, uint64_t version_id, int64_t until_us, int64_t *retry_ms, err *e);

void depot_stats_get(depot *d, depot_stats *out);

#endif
