/* clock.h -- the two clocks: one to decide with, one to show to people; and a thread's own.
 *
 * Deadlines, waits and rates use clock_now_us() alone, so that a jump of the
 * wall clock changes nothing.  Threads: any thread.
 */
#ifndef ENGINE_BASE_CLOCK_H
#define ENGINE_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic microseconds since an arbitrary start. */
int64_t clock_now_us(void);

/* Microseconds since 1970-01-01T00:00:00Z. */
int64_t clock_wall_us(void);

/* Microseconds that this thread has run. */
int64_t clock_thread_us(void);

/* Microseconds in which this thread has run, or could have and others had the processors: what is
 * missing in them it was waiting for something, as for a disk.  Reads a file: not for each step. */
int64_t clock_busy_us(void);
/* Likewise another thread of this process, by its number in the kernel; -1: that is not known. */
int64_t clock_busy_us_of(int thread);

/* "2026-11-20T22:23:01.123Z" into `out`; needs 25 bytes. */
void clock_format_wall(int64_t wall_us, char out[32]);

#endif
