/* pool.c -- compute threads that spin for a moment, then sleep.
 *
 * A run is a generation with a gate.  The caller opens it; a worker that comes while it is open
 * joins, and runs the function; when the caller has run out of work itself it closes the gate and
 * waits for those that joined.  So a worker that the system has put aside (its core is somebody
 * else's for a moment) holds nobody up: the others do its share.  Between the operations of a step
 * the gap is microseconds, so workers spin that long; when the engine is idle they sleep on a
 * condition variable and cost nothing.
 */
#include "engine/base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"

enum { SPIN_US = 30, THREADS_MAX = 256, OPEN = 1 << 15, JOINED = OPEN - 1, GENERATION = 16 };

typedef struct {
    thread_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct thread_pool {
    int n_threads;
    worker *workers;                   /* [n_threads - 1] */
    void (*fn)(void *arg, int thread); /* set before the gate is opened */
    void *arg;
    _Atomic uint64_t gate; /* generation << 16 | OPEN | workers that joined */
    atomic_int done;       /* of those that joined */
    atomic_bool stop;
    atomic_int sleepers;
    lock mu; /* sleeping and waking */
    cond wake;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` waits for nothing on most of these processors */
#endif
}

/* True if there is something to do; false: still nothing after the spin. */
static bool spin_for(thread_pool *p, uint64_t seen)
{
    int64_t end = clock_now_us() + SPIN_US;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load(&p->gate) >> GENERATION != seen) return true;
            relax();
        }
    } while (clock_now_us() < end);
    return false;
}

static void sleep_until_work(thread_pool *p, uint64_t seen)
{
    lock_take(&p->mu);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->gate) >> GENERATION == seen) cond_wait(&p->wake, &p->mu);
    atomic_fetch_sub(&p->sleepers, 1);
    lock_release(&p->mu);
}

/* False: the gate of this generation is closed, its work is done. */
static bool join(thread_pool *p, uint64_t gate)
{
    uint64_t generation = gate >> GENERATION;
    while ((gate & OPEN) && gate >> GENERATION == generation) {
        if (atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) return true;
    }
    return false;
}

static void *work(void *arg)
{
    worker *w = arg;
    thread_pool *p = w->pool;
    char name[16];
    snprintf(name, sizeof(name), "compute-%d", w->index);
    (void)pthread_setname_np(pthread_self(), name);
    uint64_t seen = 0;
    for (;;) {
        if (!spin_for(p, seen)) sleep_until_work(p, seen);
        uint64_t gate = atomic_load(&p->gate);
        seen = gate >> GENERATION;
        if (atomic_load(&p->stop)) return NULL;
        if (!join(p, gate)) continue;
        p->fn(p->arg, w->index);
        atomic_fetch_add(&p->done, 1);
    }
}

/* Only the caller of pool_run() opens, and the gate is closed now: nobody else writes it. */
static void open_gate(thread_pool *p)
{
    assert(!(atomic_load(&p->gate) & OPEN)); /* runs are not nested */
    atomic_store(&p->done, 0);
    atomic_store(&p->gate, ((atomic_load(&p->gate) >> GENERATION) + 1) << GENERATION | OPEN);
    if (atomic_load(&p->sleepers) == 0) return;
    /* A worker that is about to sleep checks the generation under the lock. */
    lock_take(&p->mu);
    cond_broadcast(&p->wake);
    lock_release(&p->mu);
}

err_code pool_create(thread_pool **out, int n_threads, err *e)
{
    *out = NULL;
    if (n_threads <= 0) n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n_threads < 1) n_threads = 1;
    if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
    thread_pool *p = calloc(1, sizeof(*p));
    worker *workers = calloc((size_t)n_threads, sizeof(*workers));
    if (!p || !workers) {
        free(p);
        free(workers);
        return err_set(e, ERR_NOMEM, "no memory for %d compute threads", n_threads);
    }
    p->workers = workers;
    p->n_threads = 1;
    lock_init(&p->mu, LOCK_THREAD_POOL);
    cond_init(&p->wake);
    for (int i = 1; i < n_threads; i++) {
        worker *w = &workers[i - 1];
        *w = (worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, work, w) != 0) {
            pool_destroy(p);
            return err_set(e, ERR_LIMIT, "only %d of %d compute threads could be started", i,
                           n_threads);
        }
        p->n_threads = i + 1;
    }
    *out = p;
    return ERR_NONE;
}

void pool_destroy(thread_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    open_gate(p);
    for (int i = 1; i < p->n_threads; i++) (void)pthread_join(p->workers[i - 1].thread, NULL);
    cond_free(&p->wake);
    lock_free(&p->mu);
    free(p->workers);
    free(p);
}

int pool_threads(const thread_pool *p)
{
    return p->n_threads;
}

void pool_run(thread_pool *p, void (*fn)(void *arg, int thread), void *arg)
{
    if (p->n_threads == 1) {
        fn(arg, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    open_gate(p);
    fn(arg, 0);
    int joined = (int)(atomic_fetch_and(&p->gate, ~(uint64_t)OPEN) & JOINED);
    assert(joined < p->n_threads);
    int64_t yield_after = clock_now_us() + 10 * SPIN_US;
    while (atomic_load(&p->done) != joined) {
        for (int i = 0; i < 64 && atomic_load(&p->done) != joined; i++) relax();
        if (clock_now_us() > yield_after) (void)sched_yield(); /* somebody else has our core */
    }
}

typedef struct {
    void (*fn)(void *arg, int i);
    void *arg;
    int n;
    atomic_int next;
} each_job;

static void each_thread(void *arg, int thread)
{
    (void)thread;
    each_job *job = arg;
    for (int i; (i = atomic_fetch_add(&job->next, 1)) < job->n;) job->fn(job->arg, i);
}

void pool_each(thread_pool *p, void (*fn)(void *arg, int i), void *arg, int n)
{
    assert(n > 0);
    each_job job = {.fn = fn, .arg = arg, .n = n};
    if (n == 1)
        fn(arg, 0);
    else
        pool_run(p, each_thread, &job);
}
