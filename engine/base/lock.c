/* lock.c -- waiting by the clock; for developers: which locks a thread holds, and if it may.
 *
 * lock_list.h names each lock, whether a thread may wait for a condition while it holds it, and
 * under which others it may be taken. That those stand before it is a static assertion: so the
 * list is an order, and no cycle of locks is possible that follows it.
 *
 * With LORAD_CHECK_LOCKS each lock has a mark, and each thread a list of what it holds; what the
 * list does not allow prints both places and aborts. Without it a lock is a pthread_mutex_t and
 * nothing else (asserted).
 *
 * Conditions wait by CLOCK_MONOTONIC: a jump of the wall clock wakes nobody.
 */
#include "engine/base/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void cond_init(cond *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->inner, &attr);
    pthread_condattr_destroy(&attr);
}

bool cond_wait_until_at(cond *c, lock *l, int64_t end_us, const char *at)
{
    struct timespec end = {end_us / 1000000, end_us % 1000000 * 1000};
    LOCK_CHECK_(wait, &l->mark, at);
    int rc = pthread_cond_timedwait(&c->inner, &l->mutex, &end);
    LOCK_CHECK_(woken, &l->mark, at);
    return rc == 0;
}

/* ---- the list ----------------------------------------------------------------------------- */

#define ALONE     UINT64_C(0)
#define ANYTHING  UINT64_MAX
#define BIT(rank) (UINT64_C(1) << ((rank)-1)) /* LOCK_NONE_ has none */
#define UNDER(id) BIT(LOCK_##id)

_Static_assert(LOCK_END_ <= 65, "a set of locks is one word");

/* Only what stands further up may be held: so the list is an order. */
#define CHECK_(id, name, waits, under, guards)                 \
    _Static_assert((under) == ANYTHING || (under) < UNDER(id), \
                   name " names a lock that does not stand before it in lock_list.h");
LOCK_LIST(CHECK_)
#undef CHECK_

#ifndef LORAD_CHECK_LOCKS

_Static_assert(sizeof(lock) == sizeof(pthread_mutex_t) &&
                   sizeof(rwlock) == sizeof(pthread_rwlock_t),
               "nothing of the checks is left");

#else

/* ---- the checks --------------------------------------------------------------------------- */

enum { MAY_WAIT = true, NO_WAIT = false, HELD_MAX = 16 };

static const struct {
    const char *name;
    bool waits;
    uint64_t under;
} list[LOCK_END_] = {
#    define ROW_(id, name, waits, under, guards) [LOCK_##id] = {name, waits, under},
    LOCK_LIST(ROW_)
#    undef ROW_
};

/* What this thread holds, in the order in which it was taken. */
static _Thread_local struct {
    const lock_mark *mark;
    lock_rank rank;
    const char *at;
} held[HELD_MAX];
static _Thread_local int n_held;

static _Noreturn void stop(const lock_mark *m, const char *at, const char *what)
{
    const char *name = m && m->rank > LOCK_NONE_ && m->rank < LOCK_END_ ? list[m->rank].name
                                                                        : "a lock that is not made";
    fprintf(stderr, "lock order: %s: %s %s\n", at, m ? name : "", what);
    for (int i = 0; i < n_held; i++)
        fprintf(stderr, "  held: %s, taken at %s\n", list[held[i].rank].name, held[i].at);
    abort();
}

static int find(const lock_mark *m)
{
    int i = n_held - 1;
    while (i >= 0 && held[i].mark != m) i--;
    return i;
}

void lock_check_init(lock_mark *m, lock_rank rank, const char *at)
{
    *m = (lock_mark){.rank = rank};
    if (rank <= LOCK_NONE_ || rank >= LOCK_END_) stop(m, at, "has no line in lock_list.h");
}

void lock_check_free(lock_mark *m, const char *at)
{
    if (m->rank == LOCK_NONE_) stop(m, at, "is freed");
    if (__atomic_load_n(&m->holders, __ATOMIC_RELAXED) != 0)
        stop(m, at, "is freed while it is held");
    m->rank = LOCK_NONE_;
}

void lock_check_take(const lock_mark *m, const char *at)
{
    if (m->rank <= LOCK_NONE_ || m->rank >= LOCK_END_) stop(m, at, "is taken");
    for (int i = 0; i < n_held; i++) {
        char what[256];
        if (list[m->rank].under & BIT(held[i].rank)) continue;
        bool turned = list[held[i].rank].under & BIT(m->rank);
        snprintf(what, sizeof(what), "is taken under %s, which lock_list.h does not name for it%s",
                 list[held[i].rank].name, turned ? ": it has the other order" : "");
        stop(m, at, what);
    }
}

void lock_check_taken(lock_mark *m, const char *at)
{
    if (n_held == HELD_MAX) stop(m, at, "is one more than a thread may hold");
    held[n_held].mark = m;
    held[n_held].rank = m->rank;
    held[n_held++].at = at;
    __atomic_fetch_add(&m->holders, 1, __ATOMIC_RELAXED);
}

void lock_check_release(lock_mark *m, const char *at)
{
    int i = find(m);
    if (i < 0) stop(m, at, "is released by a thread that does not hold it");
    __atomic_fetch_sub(&m->holders, 1, __ATOMIC_RELAXED);
    for (n_held--; i < n_held; i++) held[i] = held[i + 1];
}

void lock_check_wait(lock_mark *m, const char *at)
{
    if (find(m) < 0) stop(m, at, "is waited with by a thread that does not hold it");
    for (int i = 0; i < n_held; i++)
        if (held[i].mark != m && !list[held[i].rank].waits)
            stop(m, at, "is waited with while another is held that is not for that");
    __atomic_fetch_sub(&m->holders, 1, __ATOMIC_RELAXED);
}

void lock_check_woken(lock_mark *m, const char *at)
{
    (void)at;
    __atomic_fetch_add(&m->holders, 1, __ATOMIC_RELAXED);
}

void lock_check_held(const lock_mark *m, const char *at)
{
    if (find(m) < 0) stop(m, at, "is not held here");
}

void lock_check_none(const char *at)
{
    if (n_held > 0) stop(NULL, at, "no lock may be held here");
}

#endif
