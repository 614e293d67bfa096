/* nice_pool.c -- a queue on the callers' stacks, and the threads that empty it.
 *
 * A job is a local variable of the caller, who sleeps on the job's own condition until it is
 * done; so the queue needs no memory and cannot overflow. take_job_locked() prefers a group that
 * has nothing on a thread: a tenant with a hundred long texts delays another one by one text at
 * most on each thread. A job that runs is not interrupted.
 */
#include "engine/program/nice_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"

typedef struct job {
    struct job *next;
    uint64_t group;
    void (*fn)(void *arg);
    void *arg;
    int64_t busy_us;
    bool ended;
    cond wake;
} job;

typedef struct worker {
    nice_pool *pool;
    pthread_t thread;
    job *runs; /* NULL: nothing */
} worker;

struct nice_pool {
    int niceness, n_threads;
    worker *worker; /* [n_threads] */

    lock mu; /* guards all below, worker.runs and the jobs */
    cond work;
    job *queue;
    bool stop;
};

static bool group_runs(const nice_pool *p, uint64_t group)
{
    for (int i = 0; i < p->n_threads; i++) {
        if (p->worker[i].runs && p->worker[i].runs->group == group) return true;
    }
    return false;
}

/* The first job of a group that has none on a thread; else the first job. */
static job *take_job_locked(nice_pool *p)
{
    job **at = &p->queue;
    while (*at && group_runs(p, (*at)->group)) at = &(*at)->next;
    if (!*at) at = &p->queue;
    job *j = *at;
    if (j) *at = j->next;
    return j;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    nice_pool *p = w->pool;
    (void)pthread_setname_np(pthread_self(), "nice");
    pid_t self = (pid_t)syscall(SYS_gettid);
    (void)setpriority(PRIO_PROCESS, (id_t)self,
                      getpriority(PRIO_PROCESS, (id_t)self) + p->niceness);
    lock_take(&p->mu);
    while (!p->stop) {
        job *j = w->runs = take_job_locked(p);
        if (!j) {
            cond_wait(&p->work, &p->mu);
            continue;
        }
        lock_release(&p->mu);
        int64_t from_us = clock_thread_us();
        j->fn(j->arg);
        j->busy_us = clock_thread_us() - from_us;
        lock_take(&p->mu);
        w->runs = NULL;
        j->ended = true;
        cond_signal(&j->wake);
    }
    lock_release(&p->mu);
    return NULL;
}

err_code nice_pool_create(nice_pool **out, int n_threads, int niceness, err *e)
{
    nice_pool *p = calloc(1, sizeof(*p));
    *out = NULL;
    if (!p) return err_set(e, ERR_NOMEM, "out of memory");
    p->niceness = niceness;
    lock_init(&p->mu, LOCK_NICE_POOL);
    cond_init(&p->work);
    p->worker = calloc((size_t)n_threads, sizeof(*p->worker));
    lock_take(&p->mu); /* a worker looks at n_threads */
    while (p->worker && p->n_threads < n_threads) {
        worker *w = &p->worker[p->n_threads];
        w->pool = p;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) break;
        p->n_threads++;
    }
    lock_release(&p->mu);
    if (p->n_threads == n_threads) {
        *out = p;
        return ERR_NONE;
    }
    nice_pool_destroy(p);
    return err_set(e, ERR_NOMEM, "cannot start %d threads of low priority", n_threads);
}

void nice_pool_destroy(nice_pool *p)
{
    if (!p) return;
    lock_take(&p->mu);
    p->stop = true;
    cond_broadcast(&p->work);
    lock_release(&p->mu);
    for (int i = 0; i < p->n_threads; i++) (void)pthread_join(p->worker[i].thread, NULL);
    cond_free(&p->work);
    lock_free(&p->mu);
    free(p->worker);
    free(p);
}

int64_t nice_pool_run(nice_pool *p, uint64_t group, void (*fn)(void *arg), void *arg)
{
    if (!p) {
        fn(arg);
        return 0;
    }
    job j = {.group = group, .fn = fn, .arg = arg};
    cond_init(&j.wake);
    lock_take(&p->mu);
    job **end = &p->queue;
    while (*end) end = &(*end)->next;
    *end = &j;
    cond_signal(&p->work);
    while (!j.ended) cond_wait(&j.wake, &p->mu);
    lock_release(&p->mu);
    cond_free(&j.wake);
    return j.busy_us;
}

int nice_pool_waiting(nice_pool *p)
{
    int n = 0;
    lock_take(&p->mu);
    for (const job *j = p->queue; j; j = j->next) n++;
    lock_release(&p->mu);
    return n;
}
