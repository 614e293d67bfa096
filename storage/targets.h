/* targets.h -- a tenant's own targets within a class of service, instead of the class's.
 *
 * Kept with the tenant as text: "gold:300:40,batch:0:500", milliseconds to the first token and for
 * each further one; 0: the class's.  A class that is not configured any more may still be named.
 *
 * Ownership: plain data.  Threads: any.
 */
#ifndef STORAGE_TARGETS_H
#define STORAGE_TARGETS_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/tenants.h"

enum { TARGET_MS_MAX = 86400000 };

typedef struct target {
    char class[CLASS_NAME_MAX + 1];
    int64_t ttft_us, tpot_us; /* 0: the class's */
} target;

/* The next entry of a tenant's list, from *list on (first: tenant.targets); false: no more. */
bool targets_next(const char **list, target *out);

/* What requests of this tenant are promised in a class of these targets. */
target targets_of(const tenant *t, const char *class, int64_t ttft_us, int64_t tpot_us);

/* Puts or replaces the entry of one->class, or takes it away where both are 0.  False: there is no
 * room for it. */
bool targets_put(tenant *t, const target *one);

#endif
