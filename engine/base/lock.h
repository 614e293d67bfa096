/* lock.h -- mutexes with a place in one order, and condition variables on the monotonic clock.
 *
 * Every mutex of the programs is a `lock`, and lock_list.h has a line for it: what it guards, and
 * which other locks may be held when it is taken.  Two threads that take two locks in two orders
 * wait for each other for ever; the list has one order, so that nobody can.  Builds for developers
 * (LORAD_CHECK_LOCKS: the presets dev, asan, tsan) hold each thread to the list.  They abort, with
 * the names and the places of all locks that are concerned, where a thread
 *
 *   - takes a lock while it holds one that the list does not name for it;
 *   - takes a lock that was never made, or is gone;
 *   - releases a lock that it does not hold, or frees one that somebody holds;
 *   - waits on a condition without the lock, or while it holds another that is not for that.
 *
 * In builds for users all this is the plain calls of pthread, and a lock is as large as a mutex.
 *
 * Ownership: who has the struct inits and frees it.  Threads: any.
 */
#ifndef ENGINE_BASE_LOCK_H
#define ENGINE_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/lock_list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what builds for developers keep beside a mutex; private to this header and lock.c ------- */

#ifdef LORAD_CHECK_LOCKS

typedef struct lock_mark {
    lock_rank rank; /* LOCK_NONE_: it was never made, or is gone */
    int holders;    /* threads; atomic */
} lock_mark;

/* The checker's side of the functions below; only builds with LORAD_CHECK_LOCKS have it. `at` is
 * the caller's file and line, a string that lives for ever; it appears in the message with which
 * a fault aborts. Any thread. */
void lock_check_init(lock_mark *m, lock_rank rank, const char *at);

/* Aborts if somebody still holds the lock. */
void lock_check_free(lock_mark *m, const char *at);
/* Before the thread may block in it. */
void lock_check_take(const lock_mark *m, const char *at);

/* The thread has the lock now: it joins the thread's own list of what it holds. */
void lock_check_taken(lock_mark *m, const char *at);

/* Aborts unless this thread holds the lock. */
void lock_check_release(lock_mark *m, const char *at);
/* Before a wait on a condition, and after it. */
void lock_check_wait(lock_mark *m, const char *at);

/* The wait is over, and the thread has the lock again. */
void lock_check_woken(lock_mark *m, const char *at);

/* For lock_assert_held(). */
void lock_check_held(const lock_mark *m, const char *at);

/* For lock_assert_none(). */
void lock_check_none(const char *at);

/* clang-format off */
#    define LOCK_MARK_ lock_mark mark;
#    define LOCK_CHECK_(what, ...) lock_check_##what(__VA_ARGS__)
#    define LOCK_INITIALIZER(id) {PTHREAD_MUTEX_INITIALIZER, {id, 0}}

#else

#    define LOCK_MARK_
#    define LOCK_CHECK_(what, ...) ((void)at)
#    define LOCK_INITIALIZER(id) {PTHREAD_MUTEX_INITIALIZER}
/* clang-format on */

#endif

#define LOCK_TEXT_(n) #n
#define LOCK_LINE_(n) LOCK_TEXT_(n)
#define LOCK_HERE_    __FILE__ ":" LOCK_LINE_(__LINE__)

/* ---- locks -------------------------------------------------------------------------------- */

typedef struct lock {
    pthread_mutex_t mutex;
    LOCK_MARK_
} lock;

/* Many may read, one may write. */
typedef struct rwlock {
    pthread_rwlock_t inner;
    LOCK_MARK_
} rwlock;

/* id: LOCK_... of lock_list.h.  For static ones there is LOCK_INITIALIZER(id). */
#define lock_init(l, id) lock_init_at(l, id, LOCK_HERE_)
#define lock_free(l)     lock_free_at(l, LOCK_HERE_)
#define lock_take(l)     lock_take_at(l, LOCK_HERE_)
/* False: somebody has it. */
#define lock_try(l)     lock_try_at(l, LOCK_HERE_)
#define lock_release(l) lock_release_at(l, LOCK_HERE_)

/* For functions whose caller holds it (`_locked`): nothing in builds for users. */
#define lock_assert_held(l) lock_assert_held_at(l, LOCK_HERE_)
/* For what must hold nobody up: this thread has no lock at all. */
#define lock_assert_none() lock_assert_none_at(LOCK_HERE_)

#define rwlock_init(l, id) rwlock_init_at(l, id, LOCK_HERE_)
#define rwlock_free(l)     rwlock_free_at(l, LOCK_HERE_)
#define rwlock_read(l)     rwlock_read_at(l, LOCK_HERE_)
#define rwlock_write(l)    rwlock_write_at(l, LOCK_HERE_)
#define rwlock_release(l)  rwlock_release_at(l, LOCK_HERE_)

/* ---- conditions --------------------------------------------------------------------------- */

typedef struct cond {
    pthread_cond_t inner;
} cond;

/* On the monotonic clock (CLOCK_MONOTONIC), so that a change of the system's time ends no wait.
 * cond_free() when nobody waits. */
void cond_init(cond *c);
#define cond_wait(c, l) cond_wait_at(c, l, LOCK_HERE_)
/* False: it is `end_us` (of clock_now_us()) or later. */
#define cond_wait_until(c, l, end_us) cond_wait_until_at(c, l, end_us, LOCK_HERE_)
/* As for pthread_cond_wait(): it may return without a signal, so callers test their condition in
 * a loop. */
bool cond_wait_until_at(cond *c, lock *l, int64_t end_us, const char *at);

/* ---- what stands behind the names --------------------------------------------------------- */

static inline void lock_init_at(lock *l, lock_rank rank, const char *at)
{
    (void)rank;
    pthread_mutex_init(&l->mutex, NULL);
    LOCK_CHECK_(init, &l->mark, rank, at);
}

static inline void lock_free_at(lock *l, const char *at)
{
    LOCK_CHECK_(free, &l->mark, at);
    pthread_mutex_destroy(&l->mutex);
}

static inline void lock_take_at(lock *l, const char *at)
{
    LOCK_CHECK_(take, &l->mark, at);
    pthread_mutex_lock(&l->mutex);
    LOCK_CHECK_(taken, &l->mark, at);
}

static inline bool lock_try_at(lock *l, const char *at)
{
    LOCK_CHECK_(take, &l->mark, at);
    if (pthread_mutex_trylock(&l->mutex) != 0) return false;
    LOCK_CHECK_(taken, &l->mark, at);
    return true;
}

static inline void lock_release_at(lock *l, const char *at)
{
    LOCK_CHECK_(release, &l->mark, at);
    pthread_mutex_unlock(&l->mutex);
}

static inline void lock_assert_held_at(const lock *l, const char *at)
{
    (void)l;
    LOCK_CHECK_(held, &l->mark, at);
}

static inline void lock_assert_none_at(const char *at)
{
    LOCK_CHECK_(none, at);
}

static inline void rwlock_init_at(rwlock *l, lock_rank rank, const char *at)
{
    (void)rank;
    pthread_rwlock_init(&l->inner, NULL);
    LOCK_CHECK_(init, &l->mark, rank, at);
}

static inline void rwlock_free_at(rwlock *l, const char *at)
{
    LOCK_CHECK_(free, &l->mark, at);
    pthread_rwlock_destroy(&l->inner);
}

static inline void rwlock_read_at(rwlock *l, const char *at)
{
    LOCK_CHECK_(take, &l->mark, at);
    pthread_rwlock_rdlock(&l->inner);
    LOCK_CHECK_(taken, &l->mark, at);
}

static inline void rwlock_write_at(rwlock *l, const char *at)
{
    LOCK_CHECK_(take, &l->mark, at);
    pthread_rwlock_wrlock(&l->inner);
    LOCK_CHECK_(taken, &l->mark, at);
}

static inline void rwlock_release_at(rwlock *l, const char *at)
{
    LOCK_CHECK_(release, &l->mark, at);
    pthread_rwlock_unlock(&l->inner);
}

static inline void cond_wait_at(cond *c, lock *l, const char *at)
{
    LOCK_CHECK_(wait, &l->mark, at);
    pthread_cond_wait(&c->inner, &l->mutex);
    LOCK_CHECK_(woken, &l->mark, at);
}

static inline void cond_signal(cond *c)
{
    pthread_cond_signal(&c->inner);
}

static inline void cond_broadcast(cond *c)
{
    pthread_cond_broadcast(&c->inner);
}

static inline void cond_free(cond *c)
{
    pthread_cond_destroy(&c->inner);
}

#ifdef __cplusplus
}
#endif

#endif
