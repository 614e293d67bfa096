/* refusals.c -- a ring of (minute, tenant, limit, count), searched from its newest entry. */
#include "gateway/watch/refusals.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/lock.h"

enum { MINUTE_S = 60, HOUR_S = 3600 };

typedef struct entry {
    int64_t minute_s; /* start of its minute, wall clock */
    uint64_t tenant_id;
    refusal_count of;
} entry;

struct refusals {
    lock mu;
    uint64_t n; /* entries ever made */
    entry ring[REFUSALS_MAX];
};

refusals *refusals_create(void)
{
    refusals *r = calloc(1, sizeof(*r));
    if (r) lock_init(&r->mu, LOCK_REFUSALS);
    return r;
}

void refusals_destroy(refusals *r)
{
    if (!r) return;
    lock_free(&r->mu);
    free(r);
}

static bool same(const entry *a, uint64_t tenant_id, const char *scope, const char *limit)
{
    return a->tenant_id == tenant_id && a->of.limit == limit && a->of.scope == scope;
}

/* The newest entry of this tenant and limit; NULL: none in the hour before. */
static entry *newest_of(refusals *r, uint64_t tenant_id, const char *scope, const char *limit,
                        int64_t wall_s)
{
    lock_assert_held(&r->mu);
    for (uint64_t back = 1; back <= r->n && back <= REFUSALS_MAX; back++) {
        entry *a = &r->ring[(r->n - back) % REFUSALS_MAX];
        if (a->minute_s <= wall_s - HOUR_S) return NULL;
        if (same(a, tenant_id, scope, limit)) return a;
    }
    return NULL;
}

bool refusals_note(refusals *r, uint64_t tenant_id, const char *scope, const char *limit,
                   int64_t wall_s)
{
    assert(scope && limit);
    int64_t minute_s = wall_s - wall_s % MINUTE_S;
    lock_take(&r->mu);
    entry *a = newest_of(r, tenant_id, scope, limit, wall_s);
    bool first = a == NULL;
    if (!a || a->minute_s != minute_s) {
        a = &r->ring[r->n++ % REFUSALS_MAX];
        *a = (entry){minute_s, tenant_id, {scope, limit, 0}};
    }
    a->of.count++;
    lock_release(&r->mu);
    return first;
}

static int more_first(const void *x, const void *y)
{
    const refusal_count *a = x, *b = y;
    return a->count > b->count ? -1 : a->count < b->count;
}

static void add(refusal_count *out, int *n, const refusal_count *of)
{
    assert(*n >= 0 && *n <= REFUSALS_KINDS);
    int i = 0;
    while (i < *n && (out[i].limit != of->limit || out[i].scope != of->scope)) i++;
    if (i == REFUSALS_KINDS) return;
    if (i == *n) out[(*n)++] = (refusal_count){of->scope, of->limit, 0};
    out[i].count += of->count;
}

int refusals_of(refusals *r, uint64_t tenant_id, int64_t wall_s, refusal_count *out)
{
    int n = 0;
    lock_take(&r->mu);
    for (uint64_t back = 1; back <= r->n && back <= REFUSALS_MAX; back++) {
        const entry *a = &r->ring[(r->n - back) % REFUSALS_MAX];
        if (a->minute_s <= wall_s - HOUR_S) break;
        if (a->tenant_id == tenant_id) add(out, &n, &a->of);
    }
    lock_release(&r->mu);
    qsort(out, (size_t)n, sizeof(*out), more_first);
    return n;
}
