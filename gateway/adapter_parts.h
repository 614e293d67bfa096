/* adapter_parts.h -- what a server has for adapters: which exist, where they are, how they come.
 *
 * Ownership: start/parts.c makes and frees; handlers borrow.  Threads: read-only after the start
 * except for atomic fields; what a pointer leads to says for itself.
 */
#ifndef GATEWAY_ADAPTER_PARTS_H
#define GATEWAY_ADAPTER_PARTS_H

#include "adapters/residency/residency.h"
#include "adapters/store/registry.h"
#include "adapters/store/staging.h"
#include "adapters/store/upload.h"
#include "gateway/http/exchange.h"

typedef struct server server;

typedef struct adapter_parts {
    registry *registry;
    residency *residency;
    struct stacks *stacks; /* adapters/store/stacks.h */
    storeroom *room;       /* disk space above data.min_free */
    depot *depot;          /* the fleet's object store; NULL: there is none */
    int64_t tenant_share;  /* bytes on the disk for a tenant without a quota of its own */
    upload_env upload;
    staging *staging; /* interrupted and running resumable uploads */
    /* Adapters that are fetched from a source now: tenant id + 1 each, 0: a free slot
     * (gateway/rest/adapter_source.h). */
    _Atomic uint64_t fetching[4];
    struct firsts *firsts; /* gateway/rest/adapter_first.h; with its call, for openai/ */
    err_code (*first_fetch)(exchange *x, const char *name, int64_t until_us, int64_t *retry_ms,
                            err *e);
    struct effect_probe *effects; /* gateway/rest/effect.h; NULL: nothing is measured */
} adapter_parts;

/* Those of `s`. */
adapter_parts *adapters_of(const server *s);

/* Short for adapters_of(s)->registry, and for ->residency. */
registry *registry_of(const server *s);

/* See registry_of(). */
residency *residency_of(const server *s);

/* How many bytes the tenant's adapters may have. */
storeroom_quota adapters_quota(const exchange *x, const tenant *t);

/* Limits and folders for an upload by this exchange. */
upload_env adapters_upload(const exchange *x);

/* Bytes on the disk for a tenant without a quota of its own. */
int64_t adapters_tenant_bytes(const exchange *x);

#endif
