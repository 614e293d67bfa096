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

int64_t clock_busy_us(void)
{
    long long ran_ns = 0, delayed_ns = 0; /* see sched-stats.rst of the kernel's documents */
    FILE *f = fopen("/proc/thread-self/schedstat", "re");
    bool known = f && fscanf(f, "%lld %lld", &ran_ns, &delayed_ns) == 2;
    if (f) (void)fclose(f);
    return known ? (ran_ns + delayed_ns) / 1000 : clock_thread_us();
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
