/* limits_inside.h -- what limits.c and limits_lease.c share: accounts.  Private to them. */
#ifndef GATEWAY_LIMITS_INSIDE_H
#define GATEWAY_LIMITS_INSIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/lock.h"
#include "gateway/limits.h"
#include "storage/fleet/lease.h"

enum { BUCKETS = 1024 };

typedef struct lessor lessor;

typedef struct {
    double level; /* what may be taken now */
    int64_t seen_us;
} bucket;

/* OF_COST: a tenant's budgets in micros, in an account of its own that has no other limit; there
 * "tokens" are micros. */
typedef enum { OF_TENANT, OF_KEY, OF_ADAPTER, OF_COST, ACCOUNT_KINDS } account_kind;

typedef struct {
    int64_t day, day_used, month_used; /* used includes reservations */
} spending;

typedef struct account {
    struct account *next;
    uint64_t id;
    account_kind kind;
    bucket requests, tokens;
    int64_t running;
    _Atomic int64_t queued;       /* raised under the lock, lowered by the engine without */
    int64_t near_day, near_month; /* of which limits_usage_get() has told; near_month: its number */
    spending now,
        before; /* OF_TENANT, OF_COST; before: the day until the clock went on, or was set */

    /* in a fleet: its lease (limits_lease.c) */
    int64_t limit[LEASE_THINGS];   /* as of the last request */
    int64_t granted[LEASE_THINGS]; /* sums, as in lease.h */
    int64_t drawn[LEASE_SEATS];    /* requests, tokens; the rest stands above */
    int64_t told[LEASE_THINGS];    /* drawn, as of the last question */
    int64_t need[LEASE_THINGS];    /* of requests that wait, for the next question */
    int64_t hope[LEASE_THINGS];  /* of all that wait, also of those that have not seen the answer */
    int64_t least[LEASE_THINGS]; /* what the smallest of them takes; 0: none waits */
    int64_t recent[LEASE_THINGS];                          /* drawn since measured_us */
    int64_t pace[LEASE_THINGS];                            /* what LEASE_SPAN_US draws */
    int64_t remains[LEASE_THINGS], may_come[LEASE_THINGS]; /* as the last lease said */
    int64_t returned; /* tokens that came back since the last question */
    int64_t measured_us;
    bool asked; /* there was an exchange */
    bool due;   /* in the list of those that may have to ask */
    struct account *next_due;
} account;

struct limits {
    lock mu; /* also over the ledger's read when a tenant is first seen */
    store *st;
    bool requests_only;
    account *table[BUCKETS];

    lessor *leases; /* NULL: the server is by itself */
};

/* The accounts that a request is counted in, by kind, and what it takes of each: tokens, or micros.
 * NULL: it is not counted there. */
typedef struct {
    account *of[ACCOUNT_KINDS];
    int64_t amount[ACCOUNT_KINDS];
} accounts;

/* These with the limits' lock. */
int64_t limits_month_of(int64_t day);
bool limits_refuse(limits_refusal *w, const account *a, lease_thing what, int64_t lacking);

typedef enum { LEASE_COVERS, LEASE_ASKED, LEASE_REFUSES } lease_state;

/* Do the leases hold what the request takes?  If they don't, waits once until there was an
 * exchange (the lock is given up meanwhile): look at everything again.  *round: 0 at first. */
lease_state lease_look(limits *l, const accounts *of, int *round, limits_refusal *why);
/* It was taken: with the accounts' own counts. */
void lease_draw(limits *l, account *a, int64_t tokens);
/* Something came back. */
void lease_return(limits *l, account *a);
/* A budget's new day has begun. */
void lease_roll(account *a, bool new_month);
/* What may be drawn of it here and elsewhere, at most `own`. */
int64_t lease_left(const limits *l, const account *a, lease_thing what, int64_t own);
void lease_end(limits *l);

#endif
