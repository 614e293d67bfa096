/* histogram.c -- counts a value in the bucket that it falls into. */
#include "engine/watch/histogram.h"

#include <assert.h>

#define DECADE(x) 10 * (x), 16 * (x), 25 * (x), 40 * (x), 63 * (x)

const histogram_scale histogram_times = {HISTOGRAM_BOUNDS,
                                         1e-6,
                                         {DECADE(INT64_C(10)), DECADE(INT64_C(100)),
                                          DECADE(INT64_C(1000)), DECADE(INT64_C(10000)),
                                          DECADE(INT64_C(100000)), DECADE(INT64_C(1000000)),
                                          DECADE(INT64_C(10000000)), INT64_C(1000000000)}};

const histogram_scale histogram_tokens = {
    21, 1, {1,    2,    4,    8,     16,    32,    64,     128,    256,    512,    1024,
            2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576}};

void histogram_init(histogram *h, const histogram_scale *scale)
{
    h->scale = scale;
}

void histogram_add(histogram *h, int64_t v)
{
    if (v < 0) v = 0;
    int lo = 0, hi = h->scale->n; /* the bucket is in [lo, hi] */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (v <= h->scale->bound[mid])
            hi = mid;
        else
            lo = mid + 1;
    }
    atomic_fetch_add_explicit(&h->bucket[lo], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum, (uint64_t)v, memory_order_relaxed);
}

void histogram_read(const histogram *h, histogram_counts *out)
{
    assert(!out->scale || out->scale == h->scale);
    out->scale = h->scale;
    out->sum += atomic_load_explicit(&h->sum, memory_order_relaxed);
    for (int i = 0; i <= h->scale->n; i++) {
        uint64_t n = atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        out->bucket[i] += n;
        out->count += n;
    }
}
