/* deadline.c -- one list, one mutex, one thread that looks ten times a second. */
#include "gateway/deadline.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "engine/base/clock.h"

enum { REAP_MS = 100 };

static struct {
    pthread_mutex_t mu; /* leaf lock */
    deadline *first;
    int n_held;
    bool stop;
    pthread_t thread;
} reaper = {.mu = PTHREAD_MUTEX_INITIALIZER};

/* Under the lock. */
static void take_off(deadline *d)
{
    if (!d->link) return;
    *d->link = d->next;
    if (d->next) d->next->link = d->link;
    d->next = NULL;
    d->link = NULL;
}

static void *reap(void *arg)
{
    (void)arg;
    (void)pthread_setname_np(pthread_self(), "reaper");
    struct timespec pause = {0, REAP_MS * 1000000L};
    for (;;) {
        (void)nanosleep(&pause, NULL);
        int64_t now = clock_now_us();
        pthread_mutex_lock(&reaper.mu);
        bool stop = reaper.stop;
        for (deadline *d = reaper.first, *next; d; d = next) {
            next = d->next;
            if (d->at_us > now) continue;
            /* Under the lock: the owner can't have closed the socket. */
            (void)shutdown(d->fd, d->both ? SHUT_RDWR : SHUT_RD);
            take_off(d);
        }
        pthread_mutex_unlock(&reaper.mu);
        if (stop) return NULL;
    }
}

void deadline_set(deadline *d, int fd, int64_t at_us, bool both)
{
    pthread_mutex_lock(&reaper.mu);
    take_off(d);
    if (at_us && fd >= 0) {
        *d = (deadline){reaper.first, &reaper.first, fd, at_us, both};
        if (d->next) d->next->link = &d->next;
        reaper.first = d;
    }
    pthread_mutex_unlock(&reaper.mu);
}

void deadline_reaper_retain(void)
{
    pthread_mutex_lock(&reaper.mu);
    bool first = reaper.n_held++ == 0;
    if (first) reaper.stop = false;
    pthread_mutex_unlock(&reaper.mu);
    if (first && pthread_create(&reaper.thread, NULL, reap, NULL) != 0) abort(); /* start-up */
}

void deadline_reaper_release(void)
{
    pthread_mutex_lock(&reaper.mu);
    bool last = --reaper.n_held == 0;
    reaper.stop = last;
    pthread_mutex_unlock(&reaper.mu);
    if (last) (void)pthread_join(reaper.thread, NULL);
}
