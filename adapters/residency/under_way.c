/* under_way.c -- a list of loads, and the kernel's word on what their threads have run. */
#include "adapters/residency/under_way.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"

enum { LOOK_US = 20000 };

void under_way_begin(under_way **list, under_way *u)
{
    *u = (under_way){.next = *list,
                     .thread = (int)syscall(SYS_gettid),
                     .began_us = clock_now_us(),
                     .busy_us = clock_busy_us(),
                     .read_us = -1};
    *list = u;
}

void under_way_read(under_way *u, int64_t waited_us)
{
    atomic_store(&u->read_us, waited_us > 0 ? waited_us : 0);
}

void under_way_end(under_way **list, under_way *u)
{
    while (*list && *list != u) list = &(*list)->next;
    if (*list) *list = u->next;
}

static int64_t waited(under_way *u, int64_t now_us)
{
    int64_t all = atomic_load(&u->read_us);
    if (all >= 0) return all;
    if (now_us - u->looked_us < LOOK_US) return u->waited_us;
    int64_t busy_us = clock_busy_us_of(u->thread);
    u->looked_us = now_us;
    if (busy_us >= 0) u->waited_us = now_us - u->began_us - (busy_us - u->busy_us);
    return u->waited_us;
}

void under_way_add(under_way *list, int64_t now_us, int64_t *disk_us, int64_t *load_us)
{
    for (under_way *u = list; u; u = u->next) {
        int64_t disk = waited(u, now_us);
        *load_us += now_us - u->began_us;
        if (disk > 0) *disk_us += disk;
    }
}
