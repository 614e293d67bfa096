/* refusals.h -- counts of requests that limits refused, by tenant and limit, for the last hour.
 *
 * Refusals of one minute by the same limit share one entry, so a tenant that floods the server
 * takes one entry a minute.  Memory is fixed; the oldest entries give way.  Counts are lost when
 * the process ends.  In a fleet each server counts what it refused itself.
 *
 * Threads: any thread; one lock, held for a search of at most REFUSALS_MAX entries.
 */
#ifndef GATEWAY_WATCH_REFUSALS_H
#define GATEWAY_WATCH_REFUSALS_H

#include <stdbool.h>
#include <stdint.h>

enum { REFUSALS_MAX = 2048, REFUSALS_KINDS = 24 };

typedef struct refusals refusals;

typedef struct refusal_count {
    const char *scope, *limit; /* static: "key", "requests_per_minute" */
    int64_t count;
} refusal_count;

refusals *refusals_create(void); /* NULL: no memory */
void refusals_destroy(refusals *r);

/* `scope` and `limit` are static strings, compared by address.  True: this limit has not refused a
 * request of this tenant in the hour before. */
bool refusals_note(refusals *r, uint64_t tenant_id, const char *scope, const char *limit,
                   int64_t wall_s);

/* One count for each limit that refused requests of this tenant in the hour before `wall_s`, the
 * largest first.  Returns how many; at most REFUSALS_KINDS. */
int refusals_of(refusals *r, uint64_t tenant_id, int64_t wall_s, refusal_count *out);

#endif
