/* state.c -- one area cut into slots, and a stack of the free ones.
 *
 *     | seats' and copies' slots, n_slots + n_spare | snapshots' slots, n_kept |
 *       any order, through free_slot[]                the prefix cache's, by number
 *
 * Seats and copies are counted apart, so that a copy never takes the slot that a seat is due;
 * both come off one stack, since a slot is as good as another. A slot begins on a cache line:
 * threads that write neighbouring states do not share one.
 */
#include "engine/memory/state.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/round.h"

enum { STRIDE_STEP = 16 }; /* floats: a slot begins on a cache line */

struct state_pool {
    backend *be;
    float *data;
    size_t floats, stride; /* of a state; from one slot to the next */
    int n_slots, n_spare,
        n_kept; /* of sequences and copies in any order; behind them, of snapshots */
    int n_used, n_spare_used;
    int *free_slot; /* [n_slots + n_spare], a stack */
};

static size_t all_bytes(const state_pool *sp)
{
    return (size_t)(sp->n_slots + sp->n_spare + sp->n_kept) * sp->stride * sizeof(float);
}

size_t state_slot_bytes(size_t floats)
{
    return round_up_size(floats, STRIDE_STEP) * sizeof(float);
}

err_code state_create(state_pool **out, backend *be, size_t floats, int n_slots, int n_spare,
                      int n_kept, err *e)
{
    *out = NULL;
    int n = n_slots + n_spare;
    assert(n_slots > 0 && n_spare >= 0 && n_kept >= 0);
    if (floats == 0) return ERR_NONE;
    state_pool *sp = calloc(1, sizeof(*sp));
    if (!sp) return err_set(e, ERR_NOMEM, "no memory for the states of sequences");
    sp->be = be;
    sp->floats = floats;
    sp->stride = round_up_size(floats, STRIDE_STEP);
    sp->n_slots = n_slots;
    sp->n_spare = n_spare;
    sp->n_kept = n_kept;
    sp->free_slot = calloc((size_t)n, sizeof(*sp->free_slot));
    sp->data = be_map(be, all_bytes(sp));
    if (!sp->free_slot || !sp->data) {
        size_t bytes = all_bytes(sp);
        state_destroy(sp);
        return err_set(e, ERR_NOMEM,
                       "no memory for the states of %d sequences and %d snapshots (%zu bytes)",
                       n_slots, n_kept, bytes);
    }
    for (int i = 0; i < n; i++) sp->free_slot[i] = n - 1 - i; /* 0 is on top */
    *out = sp;
    return ERR_NONE;
}

void state_destroy(state_pool *sp)
{
    if (!sp) return;
    if (sp->data) be_unmap(sp->be, sp->data, all_bytes(sp));
    free(sp->free_slot);
    free(sp);
}

float *state_memory(const state_pool *sp)
{
    return sp->data;
}

size_t state_stride(const state_pool *sp)
{
    return sp->stride;
}

static int n_free(const state_pool *sp)
{
    return sp->n_slots + sp->n_spare - sp->n_used - sp->n_spare_used;
}

static void put_back(state_pool *sp, int slot)
{
    assert(slot >= 0 && slot < sp->n_slots + sp->n_spare);
    sp->free_slot[n_free(sp) - 1] = slot;
}

int state_take(state_pool *sp)
{
    assert(sp->n_used < sp->n_slots); /* one for each seat */
    sp->n_used++;
    return sp->free_slot[n_free(sp)];
}

void state_release(state_pool *sp, int slot)
{
    assert(sp->n_used > 0);
    sp->n_used--;
    put_back(sp, slot);
}

int state_take_spare(state_pool *sp)
{
    assert(sp->n_spare_used < sp->n_spare);
    sp->n_spare_used++;
    return sp->free_slot[n_free(sp)];
}

void state_release_spare(state_pool *sp, int slot)
{
    assert(sp->n_spare_used > 0);
    sp->n_spare_used--;
    put_back(sp, slot);
}

int state_kept(const state_pool *sp, int i)
{
    assert(i >= 0 && i < sp->n_kept);
    return sp->n_slots + sp->n_spare + i;
}

void state_copy(state_pool *sp, int to, int from)
{
    assert(to != from);
    be_copy(sp->be, state_at(sp, to), state_at(sp, from), state_bytes(sp));
}

float *state_at(const state_pool *sp, int slot)
{
    assert(slot >= 0 && slot < sp->n_slots + sp->n_spare + sp->n_kept);
    return sp->data + (size_t)slot * sp->stride;
}

size_t state_bytes(const state_pool *sp)
{
    return sp->floats * sizeof(float);
}

void state_count(const state_pool *sp, state_counts *out)
{
    *out = (state_counts){0};
    if (!sp) return;
    *out = (state_counts){.n_slots = sp->n_slots,
                          .n_used = sp->n_used,
                          .n_spare = sp->n_spare,
                          .n_spare_used = sp->n_spare_used,
                          .bytes_each = state_bytes(sp)};
}
