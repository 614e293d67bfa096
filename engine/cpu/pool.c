/* pool.c -- compute threads that spin for a moment, then sleep.
 *
 * A run is a generation number: the caller raises it, workers see it, run the function and count
 * down.  Between the operations of a step the gap is microseconds, so workers spin that long; when
 * the engine is idle they sleep on a condition variable and cost nothing.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/cpu/cpu.h"

enum { SPIN_US = 30, THREADS_MAX = 256 };

typedef struct {
    cpu_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct cpu_pool {
    int n_threads;
    worker *workers;                                  /* [n_threads - 1] */
    void (*fn)(void *arg, int thread, int n_threads); /* set before the generation is raised */
    void *arg;
    _Atomic uint64_t generation;
    atomic_int left; /* workers that have not finished this generation */
    atomic_bool stop;
    atomic_int sleepers;
    pthread_mutex_t mu; /* leaf lock: sleeping and waking */
    pthread_cond_t wake;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* True if there is something to do; false: still nothing after the spin. */
static bool spin_for(cpu_pool *p, uint64_t seen)
{
    int64_t end = clock_now_us() + SPIN_US;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load(&p->generation) != seen) return true;
            relax();
        }
    } while (clock_now_us() < end);
    return false;
}

static void sleep_until_work(cpu_pool *p, uint64_t seen)
{
    pthread_mutex_lock(&p->mu);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->generation) == seen) pthread_cond_wait(&p->wake, &p->mu);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mu);
}

static void *work(void *arg)
{
    worker *w = arg;
    cpu_pool *p = w->pool;
    char name[16];
    (void)snprintf(name, sizeof(name), "compute-%d", w->index);
    (void)pthread_setname_np(pthread_self(), name);
    uint64_t seen = 0;
    for (;;) {
        if (!spin_for(p, seen)) sleep_until_work(p, seen);
        seen = atomic_load(&p->generation);
        if (atomic_load(&p->stop)) return NULL;
        p->fn(p->arg, w->index, p->n_threads);
        atomic_fetch_sub(&p->left, 1);
    }
}

static void start_generation(cpu_pool *p)
{
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers) == 0) return;
    /* A worker that is about to sleep checks the generation under the lock. */
    pthread_mutex_lock(&p->mu);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mu);
}

err_code cpu_pool_create(cpu_pool **out, int n_threads, err *e)
{
    *out = NULL;
    if (n_threads <= 0) n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n_threads < 1) n_threads = 1;
    if (n_threads > THREADS_MAX) n_threads = THREADS_MAX;
    cpu_pool *p = calloc(1, sizeof(*p));
    worker *workers = calloc((size_t)n_threads, sizeof(*workers));
    if (!p || !workers) {
        free(p);
        free(workers);
        return err_set(e, ERR_NOMEM, "no memory for %d compute threads", n_threads);
    }
    p->workers = workers;
    p->n_threads = 1;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 1; i < n_threads; i++) {
        worker *w = &workers[i - 1];
        *w = (worker){.pool = p, .index = i};
        if (pthread_create(&w->thread, NULL, work, w) != 0) {
            cpu_pool_destroy(p);
            return err_set(e, ERR_LIMIT, "only %d of %d compute threads could be started", i,
                           n_threads);
        }
        p->n_threads = i + 1;
    }
    *out = p;
    return ERR_NONE;
}

void cpu_pool_destroy(cpu_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    start_generation(p);
    for (int i = 1; i < p->n_threads; i++) (void)pthread_join(p->workers[i - 1].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mu);
    free(p->workers);
    free(p);
}

int cpu_pool_threads(const cpu_pool *p)
{
    return p->n_threads;
}

void cpu_pool_run(cpu_pool *p, void (*fn)(void *arg, int thread, int n_threads), void *arg)
{
    if (p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store(&p->left, p->n_threads - 1);
    start_generation(p);
    fn(arg, 0, p->n_threads);
    int64_t yield_after = clock_now_us() + 10 * SPIN_US;
    while (atomic_load(&p->left) != 0) {
        for (int i = 0; i < 64 && atomic_load(&p->left) != 0; i++) relax();
        if (clock_now_us() > yield_after) (void)sched_yield(); /* somebody else has our core */
    }
}
