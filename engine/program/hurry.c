/* hurry.c -- one place, taken by the time at which its holder began. */
#include "engine/program/hurry.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLICE_NS = 100000 };

/* As sched_setattr(2) takes it; not all libraries declare it. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static _Atomic int64_t holder_us; /* 0: nobody */
static _Atomic int64_t rest_us;   /* until then nobody */

/* Of the calling thread, as far as the system grants it; slice_ns 0: the system's own. */
static void set(int nice, uint64_t slice_ns)
{
    (void)setpriority(PRIO_PROCESS, 0, nice);
    const struct attributes a = {
        .size = sizeof(a), .nice = getpriority(PRIO_PROCESS, 0), .runtime = slice_ns};
    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}

bool hurry_begin(hurry *h, int64_t now_us, int64_t busy_us)
{
    int64_t held = atomic_load(&holder_us);
    *h = (hurry){0};
    if (now_us < atomic_load(&rest_us) || (held && now_us - held < HURRY_HOLD_US)) return false;
    if (!atomic_compare_exchange_strong(&holder_us, &held, now_us)) return false;
    *h = (hurry){.since_us = now_us, .busy_us = busy_us, .nice = getpriority(PRIO_PROCESS, 0)};
    set(h->nice - HURRY_NICE, SLICE_NS);
    return true;
}

void hurry_end(hurry *h, int64_t now_us, int64_t busy_us)
{
    int64_t mine = h->since_us;
    if (!mine) return;
    set(h->nice, 0);
    h->since_us = 0;
    atomic_store(&rest_us, now_us + HURRY_REST * (busy_us - h->busy_us));
    (void)atomic_compare_exchange_strong(&holder_us, &mine, 0); /* it may be another's by now */
}

bool hurry_look(hurry *h, int64_t now_us, int64_t busy_us)
{
    if (!h->since_us) return false;
    if (busy_us - h->busy_us <= HURRY_MOST_US && now_us - h->since_us <= HURRY_HOLD_US) return true;
    hurry_end(h, now_us, busy_us);
    return false;
}
