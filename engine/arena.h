/* arena.h -- the device's memory for what comes and goes: equal chunks, one policy.
 *
 * S-LoRA's unified paging (Sheng et al. 2023): a chunk holds a KV page or a piece of an adapter, whoever
 * needs it; nothing is split beforehand.  An adapter takes as many chunks as it needs, wherever they
 * lie (struct lora_split).  What nobody uses stays until room is needed; then goes, in this order:
 *     idle       KV pages of the prefix cache and adapters, the least worth first
 *     prefetched adapters that were loaded on a hint and not asked for yet
 *     demanded   adapters that a request waits for; for KV of running sequences alone, or when nobody
 *                came for them within ARENA_FRESH_US
 * and never: what is held by a running sequence, pinned, or being filled.  Worth is GreedyDual-Size with
 * frequency (Cao and Irani 1997; Cherkasova 1998): clock + uses * microseconds to bring it back / chunks,
 * where the clock is the worth of what was evicted last, so that old glory fades.
 *
 * Ownership: chunks belong to the arena; kv.c and residency.c have them on loan.  Whoever takes a lease
 *            drops it, also after it was evicted.
 * Threads:   any; one leaf lock inside, never held while bytes move.  The _locked functions are kv.c's,
 *            which does its own work under arena_lock().
 */
#ifndef ENGINE_ARENA_H
#define ENGINE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"

enum { ARENA_FRESH_US = 2000000 };

typedef struct arena arena;
typedef struct arena_lease arena_lease; /* an adapter's chunks */

/* Whom an adapter is loaded for. */
typedef enum { ARENA_HINT, ARENA_DEMAND } arena_need;

/* Bytes lazily zeroed in the memory of `be`; be NULL: bookkeeping alone, chunks have no address.
 * lease_chunks: the most that adapters may take together; 0: all. */
err_code arena_create(arena **out, backend *be, int n_chunks, size_t chunk_bytes, int lease_chunks,
                      err *e);
/* No lease may be left. */
void arena_destroy(arena *a);

int arena_n_chunks(const arena *a);
size_t arena_chunk_bytes(const arena *a);
void *arena_memory(const arena *a); /* of chunk 0; NULL without a backend */

/* ---- adapters ------------------------------------------------------------------------ */

/* n chunks to fill; NULL: there is no room for it now (or memory for the lease).  `owner` is what
 * arena_lost() answers. */
arena_lease *arena_lease_take(arena *a, int n, arena_need need, int64_t now_us, void *owner);
int arena_lease_chunk(const arena_lease *l, int i);
/* The addresses of all its chunks, in order. */
void arena_lease_map(const arena_lease *l, void **out);
/* Filled.  cost_us: what it took to bring it in; popularity: decayed count of uses. */
void arena_lease_ready(arena_lease *l, arena_need need, double cost_us, int64_t now_us);
/* False: it was evicted (drop it).  A held lease stays; holds count. */
bool arena_lease_hold(arena_lease *l, double popularity);
void arena_lease_release(arena_lease *l);
void arena_lease_pin(arena_lease *l, bool pinned);
/* Is it still there? */
bool arena_lease_alive(arena_lease *l);
/* Gives back all of it and frees the lease; nobody holds it. */
void arena_lease_drop(arena_lease *l);
/* The owner of a lease that was evicted since, one by one; NULL: no more. */
void *arena_lost(arena *a);
/* Most chunks that a lease could ever get beside those that are pinned (`but` apart, may be NULL). */
int arena_lease_limit(arena *a, const arena_lease *but);
int arena_lease_chunks(const arena_lease *l); /* NULL: 0 */

/* New sequences must leave n chunks: an adapter has waited for too long.  0: no more. */
void arena_reserve(arena *a, int n);

/* ---- KV pages, for kv.c ------------------------------------------------------------------ */

void arena_lock(arena *a);
void arena_unlock(arena *a);
/* Called with the lock held: the idle page loses its content. */
void arena_on_evict(arena *a, void (*fn)(void *self, int chunk), void *self);
/* Pages that could be taken now; `fresh`: by a sequence that has no seat yet. */
int arena_available_locked(const arena *a, bool fresh);
/* Promises the engine thread n pages (instead of what was promised before), so that no loader takes
 * them until they are taken, or the promise is 0 again. */
bool arena_claim_locked(arena *a, int n, bool fresh);
int arena_page_take_locked(arena *a); /* -1: none */
void arena_page_free_locked(arena *a, int chunk);
void arena_page_idle_locked(arena *a, int chunk);
void arena_page_hold_locked(arena *a, int chunk); /* idle to held */
/* Microseconds to compute a page's tokens again: from now on.  Any thread. */
void arena_page_cost(arena *a, double us);

/* ---- looking --------------------------------------------------------------------------------- */

typedef struct arena_counts {
    int n_chunks, n_free;
    int n_pages_held, n_pages_cached;
    int n_lease_chunks, n_lease_idle; /* all of adapters, those that may be evicted */
    int n_leases;
    uint64_t pages_evicted, leases_evicted;
} arena_counts;

void arena_count(arena *a, arena_counts *out);

/* All invariants: each chunk is in one place, sums are right.  For tests; O(chunks). */
bool arena_check(arena *a);

#endif
