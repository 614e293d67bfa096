/* prom.h -- Prometheus' text format (0.0.4), written into one growing buffer.
 *
 * A family is begun once (HELP and TYPE), then its samples follow.  Label values may hold anything:
 * they are escaped, and what is not UTF-8 becomes '?'.  Names and label names are ours.  A failed
 * allocation is sticky: `failed` is set, later calls do nothing, and the caller checks once.
 *
 * Labels are given as name, value, name, value, ..., NULL.
 *
 * Ownership: the caller's struct, prom_clear() frees.  Threads: owner thread.
 */
#ifndef GATEWAY_WATCH_PROM_H
#define GATEWAY_WATCH_PROM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/watch/histogram.h"

typedef struct prom {
    char *text;
    size_t len, cap;
    bool failed;
    const char *name; /* of the family begun last */
} prom;

void prom_init(prom *p);
void prom_clear(prom *p);

/* `type`: "counter" (the name ends in _total), "gauge" or "histogram". */
void prom_family(prom *p, const char *name, const char *type, const char *help);

void prom_sample(prom *p, double v, ...) __attribute__((sentinel));
void prom_count(prom *p, uint64_t v, ...) __attribute__((sentinel)); /* exact beyond 2^53 */
/* Buckets, sum and count, in the unit of its scale.  Counts of no scale stand for an empty
 * histogram and are shown with `scale`. */
void prom_histogram(prom *p, const histogram_counts *h, const histogram_scale *scale, ...)
    __attribute__((sentinel));

/* A family of one sample without labels. */
void prom_gauge(prom *p, const char *name, const char *help, double v);
void prom_counter(prom *p, const char *name, const char *help, uint64_t v);

#endif
