/* populate.c -- one thread, one mark to reach, pieces of the size of a huge page. */
#include "engine/memory/populate.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    PIECE = 2 << 20,
    NICER = 10, /* than the rest: an idle moment is enough */
};

struct populate {
    backend *be;
    uint8_t *mem;
    size_t bytes;
    pthread_t thread;
    sem_t news;
    atomic_size_t reached, done;
    atomic_bool stop, asked; /* asked: the thread has been told and has not looked yet */
};

static size_t wanted(const populate *p)
{
    size_t reached = atomic_load(&p->reached);
    return reached < p->bytes && p->bytes - reached > POPULATE_AHEAD ? reached + POPULATE_AHEAD
                                                                     : p->bytes;
}

static void *populate_main(void *arg)
{
    populate *p = arg;
    (void)pthread_setname_np(pthread_self(), "populate");
    int nice_now = getpriority(PRIO_PROCESS, 0);
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice_now + NICER);
    bool can = true;
    for (size_t done = 0; can && done < p->bytes && !atomic_load(&p->stop);) {
        if (done >= wanted(p)) {
            (void)sem_wait(&p->news); /* a signal only makes it look once more */
            atomic_store(&p->asked, false);
            continue;
        }
        size_t n = p->bytes - done < PIECE ? p->bytes - done : PIECE;
        can = be_commit(p->be, p->mem + done, n);
        done += n;
        atomic_store(&p->done, done);
    }
    return NULL;
}

populate *populate_start(backend *be, void *mem, size_t bytes)
{
    if (!mem || !be_commits(be)) return NULL;
    populate *p = calloc(1, sizeof(*p));
    if (!p) return NULL;
    p->be = be;
    p->mem = mem;
    p->bytes = bytes;
    (void)sem_init(&p->news, 0, 0);
    if (pthread_create(&p->thread, NULL, populate_main, p) == 0) return p;
    (void)sem_destroy(&p->news);
    free(p);
    return NULL;
}

void populate_stop(populate *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    (void)sem_post(&p->news);
    (void)pthread_join(p->thread, NULL);
    (void)sem_destroy(&p->news);
    free(p);
}

void populate_reach(populate *p, size_t bytes)
{
    if (!p) return;
    size_t last = atomic_load(&p->reached);
    while (bytes > last && !atomic_compare_exchange_weak(&p->reached, &last, bytes)) {
    }
    if (bytes <= last || atomic_load(&p->done) >= wanted(p)) return;
    if (!atomic_exchange(&p->asked, true)) (void)sem_post(&p->news);
}
