/* clock.c -- the clocks of clock.h, by clock_gettime(). */
#include "engine/base/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec ts;
    (void)clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t clock_now_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

int64_t clock_thread_us(void)
{
    return read_us(CLOCK_THREAD_CPUTIME_ID);
}

/* See sched-stats.rst of the kernel's documents. */
static int64_t busy_us(const char *path)
{
    long long ran_ns = 0, delayed_ns = 0;
    FILE *f = fopen(path, "re");
    bool known = f && fscanf(f, "%lld %lld", &ran_ns, &delayed_ns) == 2;
    if (f) (void)fclose(f);
    return known ? (ran_ns + delayed_ns) / 1000 : -1;
}

int64_t clock_busy_us(void)
{
    int64_t us = busy_us("/proc/thread-self/schedstat");
    return us >= 0 ? us : clock_thread_us();
}

int64_t clock_busy_us_of(int thread)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", thread);
    return busy_us(path);
}

void clock_format_wall(int64_t wall_us, char out[32])
{
    time_t s = (time_t)(wall_us / 1000000);
    struct tm tm;
    if (!gmtime_r(&s, &tm)) {
        snprintf(out, 32, "?");
        return;
    }
    char day[24];
    (void)strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, 32, "%s.%03dZ", day, (int)(wall_us / 1000 % 1000));
}
