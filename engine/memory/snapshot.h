/* snapshot.h -- which pages of the prefix cache have a snapshot of a recurrent state beside them.
 *
 * A table without memory of its own: it gives out slot numbers, and the scheduler copies states
 * into them (state.h).  A snapshot belongs to the published page at whose end it was taken, so its
 * key is the page's: adapter, isolation domain, and all tokens up to there.  It goes when the page
 * loses its content, or alone when its slot is needed: then the least recently used one goes.  A
 * turn of a conversation is found once, by the next one, so that neither the number of uses nor the
 * tokens that a hit saves says more (docs/design/recurrent.md has figures).
 *
 * Threads: any, but one at a time; kv.c calls it under the arena's lock.
 */
#ifndef ENGINE_MEMORY_SNAPSHOT_H
#define ENGINE_MEMORY_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct snapshots snapshots;

/* NULL: out of memory. */
snapshots *snapshots_create(int n_slots, int n_pages);
void snapshots_destroy(snapshots *t);

/* A slot for the state at the end of `page`, which has none; may evict another snapshot. */
int snapshots_put(snapshots *t, int page);
/* The page's slot; -1: none. */
int snapshots_find(const snapshots *t, int page);
/* A request continues behind this page's snapshot, which it has. */
void snapshots_use(snapshots *t, int page);
/* How often that happened; 0 if it has none. */
unsigned snapshots_uses(const snapshots *t, int page);
/* Does nothing if it has none. */
void snapshots_drop(snapshots *t, int page);

typedef struct snapshot_counts {
    int n_slots, n_used;
    uint64_t n_taken, n_evicted; /* evicted: for the slot, not with its page */
    uint64_t n_hits;
} snapshot_counts;

/* All zero for NULL. */
void snapshots_count(const snapshots *t, snapshot_counts *out);

/* All invariants; for tests. */
bool snapshots_check(const snapshots *t);

#endif
