/* devmem.h -- the device's memory for what comes and goes: equal chunks, one policy.
 *
 * S-LoRA's unified paging (Sheng et al. 2023): a chunk holds a KV page or a piece of an
 * adapter, whoever needs it; nothing is split beforehand.  An adapter takes as many chunks as
 * it needs, wherever they lie (struct lora_split).  What nobody uses stays until room is
 * needed; then goes, in this order:
 *     idle       KV pages of the prefix cache and adapters, the least worth first
 *     prefetched adapters that were loaded on a hint and not asked for yet
 *     demanded   adapters that a request waits for; for KV of running
 *                sequences alone, or when nobody
 *                came for them within DEVMEM_FRESH_US
 * and never: what is held by a running sequence, pinned, or being filled.  Worth is GreedyDual-Size
 * with frequency (Cao and Irani 1997; Cherkasova 1998): clock + uses * microseconds to bring it
 * back / chunks, where the clock is the worth of what was evicted last, so that old glory fades.
 *
 * Ownership: chunks belong to the devmem; kv.c and residency.c have them on loan.  Whoever takes a
 *            lease drops it, also after it was evicted.
 * Threads:   any; one lock inside, never held while bytes move.  The _locked functions are kv.c's,
 *            which does its own work under devmem_lock().
 */
#ifndef ENGINE_MEMORY_DEVMEM_H
#define ENGINE_MEMORY_DEVMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"

enum { DEVMEM_FRESH_US = 2000000 };

typedef struct devmem devmem;
typedef struct devmem_lease devmem_lease; /* an adapter's chunks */

/* Whom an adapter is loaded for. */
typedef enum { DEVMEM_HINT, DEVMEM_DEMAND } devmem_need;

/* Bytes lazily zeroed in the memory of `be`; be NULL: bookkeeping alone, chunks have no address.
 * lease_chunks: the most that adapters may take together; 0: all. */
err_code devmem_create(devmem **out, backend *be, int n_chunks, size_t chunk_bytes,
                       int lease_chunks, err *e);
/* No lease may be left. */
void devmem_destroy(devmem *a);

/* Gives the memory back, and takes it again (elsewhere); between them chunks have no address.  No
 * page and no lease is left, and no other thread fills one. */
void devmem_unmap(devmem *a);

/* ERR_NOMEM: the device has less memory than before; chunks then have no address, and the call
 * may be repeated. */
err_code devmem_remap(devmem *a, err *e);

/* Constants of the arena, from devmem_create(). Any thread, no lock. */
int devmem_n_chunks(const devmem *a);
size_t devmem_chunk_bytes(const devmem *a);
void *devmem_memory(const devmem *a); /* of chunk 0; NULL without a backend */

/* ---- adapters ------------------------------------------------------------------------ */

/* n chunks to fill; NULL: there is no room for it now (or memory for the lease).  `owner` is what
 * devmem_lost() answers. */
devmem_lease *devmem_lease_take(devmem *a, int n, devmem_need need, int64_t now_us, void *owner);

/* The number of the lease's i-th chunk, in i steps; for all of them devmem_lease_map(). */
int devmem_lease_chunk(const devmem_lease *l, int i);
/* The addresses of all its chunks, in order. */
void devmem_lease_map(const devmem_lease *l, void **out);
/* Filled.  cost_us: what it took to bring it in; popularity: decayed count of uses. */
void devmem_lease_ready(devmem_lease *l, devmem_need need, double cost_us, int64_t now_us);
/* False: it was evicted (drop it).  A held lease stays; holds count. */
bool devmem_lease_hold(devmem_lease *l, double popularity);

/* Takes one hold back. Without holds and pins the lease can be evicted. */
void devmem_lease_release(devmem_lease *l);

/* A pinned lease is never evicted. Pins do not count: setting twice is setting once. */
void devmem_lease_pin(devmem_lease *l, bool pinned);
/* Is it still there? */
bool devmem_lease_alive(devmem_lease *l);
/* Gives back all of it and frees the lease; nobody holds it. */
void devmem_lease_drop(devmem_lease *l);
/* The owner of a lease that was evicted since, one by one; NULL: no more. */
void *devmem_lost(devmem *a);
/* Most chunks that a lease could ever get beside those that are pinned (`but` apart, may be
 * NULL). */
int devmem_lease_limit(devmem *a, const devmem_lease *but);
int devmem_lease_chunks(const devmem_lease *l); /* NULL: 0 */

/* New sequences must leave n chunks: an adapter has waited for too long.  0: no more. */
void devmem_reserve(devmem *a, int n);

/* ---- KV pages, for kv.c ------------------------------------------------------------------ */

/* For a sequence of _locked calls; held for microseconds, never while bytes move. */
void devmem_lock(devmem *a);
void devmem_unlock(devmem *a);
/* Called with the lock held: the idle page loses its content. */
void devmem_on_evict(devmem *a, void (*fn)(void *self, int chunk), void *self);
/* Pages that could be taken now; `fresh`: by a sequence that has no seat yet. */
int devmem_available_locked(const devmem *a, bool fresh);
/* Promises the engine thread n pages (instead of what was promised before), so that no loader takes
 * them until they are taken, or the promise is 0 again. */
bool devmem_claim_locked(devmem *a, int n, bool fresh);
int devmem_page_take_locked(devmem *a); /* -1: none */
void devmem_page_free_locked(devmem *a, int chunk);

/* Held to idle: the page keeps its content for the prefix cache until it is evicted. */
void devmem_page_idle_locked(devmem *a, int chunk);
void devmem_page_hold_locked(devmem *a, int chunk); /* idle to held */
/* The same for a short time, in which a copy is made: no part of what was promised. */
void devmem_page_borrow_locked(devmem *a, int chunk);
/* Microseconds to compute a page's tokens again: from now on.  Any thread. */
void devmem_page_cost(devmem *a, double us);

/* ---- looking --------------------------------------------------------------------------------- */

typedef struct devmem_counts {
    int n_chunks, n_free;
    int n_pages_held, n_pages_cached;
    int n_lease_chunks, n_lease_idle; /* all of adapters, those that may be evicted */
    int n_leases;
    uint64_t pages_evicted, leases_evicted;
} devmem_counts;

/* A consistent picture of all counters, taken under the lock. */
void devmem_count(devmem *a, devmem_counts *out);

/* All invariants: each chunk is in one place, sums are right.  For tests; O(chunks). */
bool devmem_check(devmem *a);

#endif
