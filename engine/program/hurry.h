/* hurry.h -- a thread with a few milliseconds of work, which somebody waits for, goes before those
 * that compute.
 *
 * One thread at a time, for HURRY_MOST_US of its processor time and a second on the clock; when it
 * is over, nobody hurries for four times as long as it took.  So steps lose little, whoever asks
 * for it and how often.  It is a higher priority (HURRY_NICE) where the system grants one: to
 * CAP_SYS_NICE or by RLIMIT_NICE.  A short slice, which Linux 6.12 and later know, needs no grant:
 * a thread that wakes is then served before those that are in the middle of a long one.
 *
 * Threads: any.  The clocks are passed in: clock_now_us(), clock_thread_us().
 */
#ifndef ENGINE_PROGRAM_HURRY_H
#define ENGINE_PROGRAM_HURRY_H

#include <stdbool.h>
#include <stdint.h>

enum { HURRY_NICE = 10, HURRY_MOST_US = 200000, HURRY_HOLD_US = 1000000, HURRY_REST = 4 };

typedef struct hurry {
    int64_t since_us, busy_us; /* of both clocks, when it began; since_us 0: it does not hurry */
    int nice;                  /* what the thread had before */
} hurry;

/* The calling thread hurries; false: another one does, or has just done. */
bool hurry_begin(hurry *h, int64_t now_us, int64_t busy_us);
/* Whether it still may; ends it otherwise. */
bool hurry_look(hurry *h, int64_t now_us, int64_t busy_us);
/* The thread is as it was; nothing where it does not hurry. */
void hurry_end(hurry *h, int64_t now_us, int64_t busy_us);

#endif
