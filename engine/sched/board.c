/* board.c -- one picture under one lock; the engine only ever tries the lock. */
#include "engine/sched/board.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/sched/policy.h"

struct board {
    atomic_bool wanted;
    lock mu; /* guards all below */
    cond fresh;
    board_row *row;
    board_share *share;
    int n_row, n_share, cap_row, cap_share;
    int64_t taken_us;
    uint64_t number; /* of pictures */
};

board *board_create(int cap_rows, int cap_shares)
{
    assert(cap_rows > 0 && cap_shares > 0);
    board *b = calloc(1, sizeof(*b));
    if (!b) return NULL;
    lock_init(&b->mu, LOCK_BOARD);
    cond_init(&b->fresh);
    b->cap_row = cap_rows;
    b->cap_share = cap_shares;
    b->row = calloc((size_t)cap_rows, sizeof(*b->row));
    b->share = calloc((size_t)cap_shares, sizeof(*b->share));
    if (b->row && b->share) return b;
    board_destroy(b);
    return NULL;
}

void board_destroy(board *b)
{
    if (!b) return;
    cond_free(&b->fresh);
    lock_free(&b->mu);
    free(b->row);
    free(b->share);
    free(b);
}

bool board_wanted(board *b)
{
    return atomic_load_explicit(&b->wanted, memory_order_relaxed);
}

bool board_open(board *b, board_row **row, board_share **share)
{
    if (!lock_try(&b->mu)) return false;
    *row = b->row;
    *share = b->share;
    return true;
}

void board_close(board *b, int n_row, int n_share, int64_t now_us)
{
    assert(n_row >= 0 && n_row <= b->cap_row && n_share >= 0 && n_share <= b->cap_share);
    b->n_row = n_row;
    b->n_share = n_share;
    b->taken_us = now_us;
    b->number++;
    atomic_store(&b->wanted, false);
    cond_broadcast(&b->fresh);
    lock_release(&b->mu);
}

static bool copy_locked(const board *b, board_picture *out)
{
    lock_assert_held(&b->mu);
    if (!b->taken_us) return false;
    if (!out->row) out->row = calloc((size_t)b->cap_row, sizeof(*out->row));
    if (!out->share) out->share = calloc((size_t)b->cap_share, sizeof(*out->share));
    if (!out->row || !out->share) return false;
    memcpy(out->row, b->row, (size_t)b->n_row * sizeof(*out->row));
    memcpy(out->share, b->share, (size_t)b->n_share * sizeof(*out->share));
    out->n_row = b->n_row;
    out->n_share = b->n_share;
    out->taken_us = b->taken_us;
    return true;
}

bool board_read(board *b, int64_t timeout_us, board_picture *out)
{
    int64_t end_us = clock_now_us() + timeout_us;
    lock_take(&b->mu);
    uint64_t before = b->number;
    atomic_store(&b->wanted, true);
    while (b->number == before && cond_wait_until(&b->fresh, &b->mu, end_us)) continue;
    bool ok = copy_locked(b, out);
    lock_release(&b->mu);
    return ok;
}

int64_t board_due_us(const board_row *r)
{
    if (!r->first_token_us) return r->ttft_deadline_us;
    return policy_due_us(r->first_token_us, r->last_token_us, r->n_output, r->tpot_target_us);
}

void board_picture_clear(board_picture *p)
{
    free(p->row);
    free(p->share);
    *p = (board_picture){0};
}
