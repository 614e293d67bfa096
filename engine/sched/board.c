/* board.c -- one picture under a leaf lock; the engine only ever tries the lock. */
#include "engine/sched/board.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct board {
    atomic_bool wanted;
    pthread_mutex_t mu; /* leaf lock; guards all below */
    pthread_cond_t fresh;
    board_row *row;
    board_share *share;
    int n_row, n_share, cap_row, cap_share;
    int64_t taken_us;
    uint64_t number; /* of pictures */
};

board *board_create(int cap_rows, int cap_shares)
{
    board *b = calloc(1, sizeof(*b));
    if (!b) return NULL;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->mu, NULL);
    pthread_cond_init(&b->fresh, &attr);
    (void)pthread_condattr_destroy(&attr);
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
    pthread_cond_destroy(&b->fresh);
    pthread_mutex_destroy(&b->mu);
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
    if (pthread_mutex_trylock(&b->mu) != 0) return false;
    *row = b->row;
    *share = b->share;
    return true;
}

void board_close(board *b, int n_row, int n_share, int64_t now_us)
{
    b->n_row = n_row;
    b->n_share = n_share;
    b->taken_us = now_us;
    b->number++;
    atomic_store(&b->wanted, false);
    pthread_cond_broadcast(&b->fresh);
    pthread_mutex_unlock(&b->mu);
}

static bool copy_locked(const board *b, board_picture *out)
{
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
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    int64_t ns = end.tv_nsec + timeout_us % 1000000 * 1000;
    end.tv_sec += timeout_us / 1000000 + ns / 1000000000;
    end.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&b->mu);
    uint64_t before = b->number;
    atomic_store(&b->wanted, true);
    while (b->number == before) {
        if (pthread_cond_timedwait(&b->fresh, &b->mu, &end) != 0) break;
    }
    bool ok = copy_locked(b, out);
    pthread_mutex_unlock(&b->mu);
    return ok;
}

void board_picture_clear(board_picture *p)
{
    free(p->row);
    free(p->share);
    *p = (board_picture){0};
}
