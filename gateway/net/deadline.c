/* deadline.c -- deadlines for blocking sockets, and notification when a client disconnects; one
 * thread ("reaper") for all workers.
 *
 * A worker blocks in recv() or send(). To end that, deadline_set() puts the socket on a list, and
 * the thread shuts the socket down when the time has passed: the blocked call returns. The list is
 * scanned every REAP_MS; in between the thread waits in epoll for EPOLLRDHUP on watched sockets and
 * calls their wake function.
 *
 * Two races are closed by doing everything under the lock:
 *   shutdown() runs under it, so the owner cannot have closed the descriptor
 *   wake() runs under it, so deadline_unwatch() returns only after a running wake
 *
 * An event may arrive just after its watch was removed and the number reused: each watch has a
 * round number in the event's data, and another round is ignored.
 *
 * Scale: the list has at most one entry per worker, so a linear scan suffices.
 */
#include "gateway/net/deadline.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"

enum { REAP_MS = 100, EVENTS_MAX = 64 };

typedef struct watch {
    void (*wake)(void *arg); /* NULL: none */
    void *arg;
    uint32_t round;
} watch;

static struct {
    lock mu;
    deadline *first;
    int n_held;
    bool stop;
    pthread_t thread;
    int epoll;    /* while it is held */
    watch *watch; /* [n_watch], by fd */
    int n_watch;
} reaper = {.mu = LOCK_INITIALIZER(LOCK_DEADLINES), .epoll = -1};

/* Under the lock. */
static void take_off(deadline *d)
{
    lock_assert_held(&reaper.mu);
    if (!d->link) return;
    *d->link = d->next;
    if (d->next) d->next->link = d->link;
    d->next = NULL;
    d->link = NULL;
}

/* Under the lock. */
static void shut_down_what_is_due(int64_t now)
{
    lock_assert_held(&reaper.mu);
    for (deadline *d = reaper.first, *next; d; d = next) {
        next = d->next;
        if (d->at_us > now) continue;
        /* Under the lock, so the owner cannot have closed the socket. */
        (void)shutdown(d->fd, d->both ? SHUT_RDWR : SHUT_RD);
        take_off(d);
    }
}

/* Under the lock, so that deadline_unwatch() waits for a wake that runs. */
static void wake_owner(uint64_t tag)
{
    lock_assert_held(&reaper.mu);
    int fd = (int)(tag >> 32);
    watch *w = fd < reaper.n_watch ? &reaper.watch[fd] : NULL;
    if (!w || !w->wake || w->round != (uint32_t)tag) return;
    w->wake(w->arg);
    w->wake = NULL;
}

static void *reap(void *arg)
{
    (void)arg;
    (void)pthread_setname_np(pthread_self(), "reaper");
    struct epoll_event event[EVENTS_MAX];
    int64_t next = clock_now_us();
    for (bool stop = false; !stop;) {
        int64_t left_ms = (next - clock_now_us() + 999) / 1000;
        int n = epoll_wait(reaper.epoll, event, EVENTS_MAX, left_ms > 0 ? (int)left_ms : 0);
        int64_t now = clock_now_us();
        lock_take(&reaper.mu);
        stop = reaper.stop;
        for (int i = 0; i < n; i++) wake_owner(event[i].data.u64);
        if (now >= next) {
            shut_down_what_is_due(now);
            next = now + REAP_MS * 1000;
        }
        lock_release(&reaper.mu);
    }
    return NULL;
}

/* Under the lock. */
static watch *watch_of(int fd)
{
    assert(fd >= 0);
    lock_assert_held(&reaper.mu);
    if (fd >= reaper.n_watch) {
        int n = (fd | 255) + 1;
        watch *more = realloc(reaper.watch, (size_t)n * sizeof(*more));
        if (!more) return NULL;
        memset(more + reaper.n_watch, 0, (size_t)(n - reaper.n_watch) * sizeof(*more));
        reaper.watch = more;
        reaper.n_watch = n;
    }
    return &reaper.watch[fd];
}

bool deadline_watch(int fd, void (*wake)(void *arg), void *arg)
{
    if (fd < 0) return false;
    lock_take(&reaper.mu);
    watch *w = watch_of(fd);
    bool ok = w && reaper.epoll >= 0;
    if (ok) {
        struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT,
                                .data.u64 = (uint64_t)fd << 32 | ++w->round};
        ok = epoll_ctl(reaper.epoll, EPOLL_CTL_ADD, fd, &e) == 0;
        if (ok) *w = (watch){wake, arg, w->round};
    }
    lock_release(&reaper.mu);
    return ok;
}

void deadline_unwatch(int fd)
{
    if (fd < 0) return;
    struct epoll_event none = {0};
    lock_take(&reaper.mu);
    if (reaper.epoll >= 0) (void)epoll_ctl(reaper.epoll, EPOLL_CTL_DEL, fd, &none);
    if (fd < reaper.n_watch) reaper.watch[fd].wake = NULL;
    lock_release(&reaper.mu);
}

void deadline_set(deadline *d, int fd, int64_t at_us, bool both)
{
    lock_take(&reaper.mu);
    take_off(d);
    if (at_us && fd >= 0) {
        *d = (deadline){reaper.first, &reaper.first, fd, at_us, both};
        if (d->next) d->next->link = &d->next;
        reaper.first = d;
    }
    lock_release(&reaper.mu);
}

/* Under the lock: the thread waits for it. */
static bool start_reaper(void)
{
    reaper.stop = false;
    reaper.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (reaper.epoll < 0) return false;
    if (pthread_create(&reaper.thread, NULL, reap, NULL) == 0) return true;
    (void)close(reaper.epoll);
    reaper.epoll = -1;
    return false;
}

bool deadline_reaper_retain(void)
{
    lock_take(&reaper.mu);
    bool ok = reaper.n_held > 0 || start_reaper();
    if (ok) reaper.n_held++;
    lock_release(&reaper.mu);
    return ok;
}

void deadline_reaper_release(void)
{
    lock_take(&reaper.mu);
    assert(reaper.n_held > 0);
    bool last = --reaper.n_held == 0;
    reaper.stop = last;
    lock_release(&reaper.mu);
    if (!last) return;
    (void)pthread_join(reaper.thread, NULL);
    lock_take(&reaper.mu);
    (void)close(reaper.epoll);
    free(reaper.watch);
    reaper.epoll = -1;
    reaper.watch = NULL;
    reaper.n_watch = 0;
    lock_release(&reaper.mu);
}
