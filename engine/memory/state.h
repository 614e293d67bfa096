/* state.h -- the states of running sequences, of models whose layers keep one (engine/mixer.h).
 *
 * Each sequence in the batch has a slot of the same size in the backend's memory, from its seat
 * until it leaves it.  A slot is not zeroed: at position 0 a state counts as zero (step.state).
 * Behind those slots are slots for the prefix cache's snapshots, which kv.h gives out.
 * Memory comes with the first touch where the backend can do that; nothing is allocated later.
 *
 * Ownership: the scheduler makes and frees the pool; a slot belongs to whoever took it.
 * Threads:   engine thread; state_count() any.
 */
#ifndef ENGINE_MEMORY_STATE_H
#define ENGINE_MEMORY_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"

typedef struct state_pool state_pool;

/* n_slots states of `floats` values for sequences, n_spare for copies of them, n_kept for
 * snapshots; *out is NULL when `floats` is 0.  Borrows be. */
err_code state_create(state_pool **out, backend *be, size_t floats, int n_slots, int n_spare,
                      int n_kept, err *e);
/* Bytes of a slot of such a pool. */
size_t state_slot_bytes(size_t floats);

/* Frees the memory; no step may be running. NULL is allowed. */
void state_destroy(state_pool *sp);

/* For step.state and step.state_stride. */
float *state_memory(const state_pool *sp);

/* Floats from one slot to the next. */
size_t state_stride(const state_pool *sp);

/* A slot, one of the n_slots: no more may be asked for.  A sequence's slot and that of its copy may
 * change roles before they are released. */
int state_take(state_pool *sp);

/* The slot's content is void from then on. */
void state_release(state_pool *sp, int slot);
/* The same of the n_spare. */
int state_take_spare(state_pool *sp);

/* The same for a copy. */
void state_release_spare(state_pool *sp, int slot);

/* The slot of the i-th snapshot. */
int state_kept(const state_pool *sp, int i);
/* Copies one slot's content into another, behind what the backend does so far. */
void state_copy(state_pool *sp, int to, int from);

/* A slot's content, in the backend's memory, and its bytes. */
float *state_at(const state_pool *sp, int slot);

/* Without the padding between slots. */
size_t state_bytes(const state_pool *sp);

typedef struct state_counts {
    int n_slots, n_used;       /* of sequences */
    int n_spare, n_spare_used; /* of copies that are kept while draft tokens are verified */
    size_t bytes_each;
} state_counts;

/* All zero for NULL. */
void state_count(const state_pool *sp, state_counts *out);

#endif
