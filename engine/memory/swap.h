/* swap.h -- KV pages of pre-empted requests, kept in host memory until they run again.
 *
 * A pre-empted request's history can be computed anew, or its pages can be copied away and
 * back (vLLM's two ways; Kwon et al., "Efficient Memory Management for Large Language Model
 * Serving with PagedAttention", 4.5).  Which is cheaper is asked of the cost model and of
 * what copies have taken: swap_round_trip_us().  The bytes that come back are those that
 * went, so the tokens are the same.
 *
 * The memory is reserved at the start and touched only when it is used.
 * Nothing is allocated later.
 *
 * Ownership: the scheduler makes and frees it; slots belong to whoever saved into them.
 * Threads:   engine thread.
 */
#ifndef ENGINE_MEMORY_SWAP_H
#define ENGINE_MEMORY_SWAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"

typedef struct swap_pool swap_pool;

/* As many pages as fit into `bytes`; *out is NULL when that is none.  Copies page 0 a few times to
 * learn what a copy takes.  Borrows be and kv. */
err_code swap_create(swap_pool **out, backend *be, kv_pool *kv, size_t page_bytes, size_t bytes,
                     err *e);
void swap_destroy(swap_pool *sw);

/* Copies n pages out and names where they are in slot[n]; negative ones are none, and stay so.
 * False, and nothing is done: no room. */
bool swap_save(swap_pool *sw, const int32_t *page, int n, int32_t *slot);
/* Copies one slot's content into each page; the slots stay in use. */
void swap_load(swap_pool *sw, const int32_t *slot, int n, const int32_t *page);
/* The same for a piece of the backend's memory that is no page: slots that it takes, then the
 * copies.  ERR_LIMIT: no room; ERR_DEVICE. */
int swap_slots_of(const swap_pool *sw, size_t bytes);
err_code swap_save_piece(swap_pool *sw, const void *there, size_t bytes, int32_t *slot, err *e);
err_code swap_load_piece(const swap_pool *sw, const int32_t *slot, size_t bytes, void *there,
                         err *e);
/* Gives slots back. */
void swap_drop(swap_pool *sw, const int32_t *slot, int n);

/* Microseconds that n pages take out and back, by what copies have taken. */
double swap_round_trip_us(const swap_pool *sw, int n);

typedef struct swap_counts {
    int n_pages, n_used;        /* room, and in use */
    size_t page_bytes;          /* of each */
    uint64_t n_saved, n_loaded; /* pages copied out and back */
    double page_us;             /* one page out and back */
} swap_counts;

/* All zero for NULL. */
void swap_count(const swap_pool *sw, swap_counts *out);

#endif
