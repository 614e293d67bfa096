/* ended.h -- requests that have ended: the last ones, and the slowest of the last hour.
 *
 * Noted once for each choice, when its usage is settled; lost when the process ends (the ledger
 * keeps what is billed).  Memory is fixed.
 *
 * Threads: any thread; one lock, held for copies.
 */
#ifndef GATEWAY_WATCH_ENDED_H
#define GATEWAY_WATCH_ENDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/sched/request.h"
#include "storage/ledger.h"

enum { ENDED_LAST = 1000, ENDED_SLOWEST = 200, ENDED_ID_CAP = 40 };

/* Where its time went, one after the other; all but send_us add up to
 * usage.duration_ms but for rounding. */
typedef struct ended_phases {
    int64_t queue_us;   /* until its seat, but for what is in adapter_us */
    int64_t adapter_us; /* its adapter was not on the device */
    int64_t prompt_us;  /* from its seat to the first token */
    int64_t decode_us;  /* to the last token */
    int64_t rest_us;    /* before the queue, and after the last token */
    int64_t send_us;    /* of rest_us, after the last token: its client reads, usage is recorded */
} ended_phases;

typedef struct ended_row {
    usage_row usage;
    char request_id[ENDED_ID_CAP]; /* what its client knows it by */
    int slo_class;                 /* index */
    int beside; /* with MISS_DECODE_STEPS: the class that had the most rows; -1 */
    ended_phases phase;
} ended_row;

typedef struct ended ended;

ended *ended_create(void); /* NULL: no memory */
void ended_destroy(ended *e);

/* `rq` has ended as `row` says. */
void ended_note(ended *e, const usage_row *row, const request *rq, const char *request_id);

/* Those that took at least `slow_ms`, the slowest first; with 0 all, the latest first.  *out is
 * malloced; false: no memory. */
bool ended_list(ended *e, int64_t slow_ms, ended_row **out, size_t *n);

#endif
