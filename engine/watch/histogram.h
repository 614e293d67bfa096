/* histogram.h -- counts over fixed, log-spaced bounds, to be read while they are written.
 *
 * Times have five bounds a decade (Renard's R5) from 100 microseconds to 1000 seconds, numbers of
 * tokens the powers of two.  The bounds are the same in every process and release, so that what
 * several servers counted may be added up.
 *
 * Adding is two relaxed atomic additions: no lock, no allocation.  A snapshot taken
 * meanwhile may hold a value's bucket and not yet its share of the sum; its count is
 * always the sum of its buckets.
 *
 * Threads: any thread.
 */
#ifndef ENGINE_WATCH_HISTOGRAM_H
#define ENGINE_WATCH_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

enum { HISTOGRAM_BOUNDS = 36 };

typedef struct histogram_scale {
    int n;                           /* bounds; one more bucket takes what is beyond the last */
    double unit;                     /* of one count in what is shown: 1e-6 for microseconds */
    int64_t bound[HISTOGRAM_BOUNDS]; /* a value v is in the first bucket with v <= bound */
} histogram_scale;

extern const histogram_scale histogram_times;  /* microseconds, shown as seconds */
extern const histogram_scale histogram_tokens; /* tokens */

typedef struct histogram {
    const histogram_scale *scale;
    _Atomic uint64_t bucket[HISTOGRAM_BOUNDS + 1];
    _Atomic uint64_t sum;
} histogram;

typedef struct histogram_counts {
    const histogram_scale *scale; /* NULL: nothing was added yet */
    uint64_t bucket[HISTOGRAM_BOUNDS + 1];
    uint64_t sum, count;
} histogram_counts;

/* A histogram of all zero bytes needs only this. */
void histogram_init(histogram *h, const histogram_scale *scale);

/* A negative value counts as 0. */
void histogram_add(histogram *h, int64_t v);

/* Adds what `h` holds to *out, which is zero or of the same scale. */
void histogram_read(const histogram *h, histogram_counts *out);

#endif
