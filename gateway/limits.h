/* limits.h -- how much each tenant, key and adapter may use: reserved before, settled after.
 *
 * Requests per minute and tokens per minute are token buckets that refill continuously; running and
 * daily/monthly budgets are counters.  All limits of a tenant, a key and an adapter are taken in
 * one critical section, so concurrent requests can't slip through together, and given back exactly
 * once.  A request is queued from its reservation until the engine first runs it.  The ledger is
 * read when a tenant is first seen, and from then on what is used is known here, whatever the
 * database says.  In a fleet limits are drawn from leases (storage/fleet/lease.h); how many wait is
 * counted by each server.
 * Threads: any thread.
 */
#ifndef GATEWAY_LIMITS_H
#define GATEWAY_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/adapter_rows.h"
#include "storage/fleet/lease.h"
#include "storage/keys.h"
#include "storage/store.h"
#include "storage/tenants.h"

typedef struct limits limits;

/* An adapter's name, with whatever limits it has: those of all tenants that use it together.  It is
 * counted while it has a limit: requests that began before there was one are not in. */
typedef struct limits_adapter {
    uint64_t id;
    adapter_limits limits;
} limits_adapter;

typedef struct limits_ticket {              /* what a request holds */
    uint64_t tenant_id, key_id, adapter_id; /* adapter_id 0: none that is counted */
    int64_t tokens, day;                    /* reserved, and in the budget of which UTC day */
    int64_t cost;                           /* micros, reserved likewise */
    int64_t wall_us;                        /* of that moment, whatever the clock says later */
    bool held;
    _Atomic int64_t *waiting; /* the tenant's that have not begun to run; NULL: not in them */
} limits_ticket;

typedef struct limits_refusal {
    int status;              /* 429; 503 where the server is at fault */
    const char *type, *code; /* of the error object; static */
    /* Whose limit refused, "tenant", "key" or "adapter", and the limit's field, such as
     * "requests_per_minute"; both static.  NULL where no limit refused (503). */
    const char *scope, *limit;
    char msg[200];
    int64_t retry_ms; /* -1: not worth retrying (a budget is spent) */
} limits_refusal;

/* What remains, for the x-ratelimit headers and GET /v1/key; -1: no limit. */
typedef struct limits_view { /* a limit of -1: there is none */
    int64_t requests_limit, requests_left, requests_reset_ms;
    int64_t tokens_limit, tokens_left, tokens_reset_ms;
    int64_t concurrent_limit, running; /* running: those that are queued, too */
    int64_t queued_limit, queued;
    int64_t day_limit, day_used, month_limit, month_used;
    int64_t cost_day_limit, cost_day_used; /* micros, as the next two */
    int64_t cost_month_limit, cost_month_used;
} limits_view;

/* `st` (borrowed) gives the sums of the day and month when a tenant is first seen; may be NULL. */
limits *limits_create(store *st);

/* Looks at all who used something this month, so that limits_usage_get() shows it
 * before they are seen again. */
err_code limits_load(limits *l, err *e);

/* lease_exchange(), or a test's. */
typedef err_code (*limits_lease_fn)(void *self, const lease_ask *asks, int n, lease_grant *out,
                                    err *e);
/* From now on what is limited is drawn from leases that `fn` gives, which a thread of its own
 * calls.  `open`: while it fails, each server goes on with the limits by itself; else they are
 * refused (503) beyond what is leased.  After limits_load() and limits_add_used(). */
err_code limits_lease(limits *l, limits_lease_fn fn, void *self, bool open, err *e);

/* What is used, by a request that began then, and is not in the ledger yet: of a
 * process before, at the start. */
void limits_add_used(limits *l, uint64_t tenant_id, int64_t started_wall_us, int64_t tokens,
                     int64_t cost);

/* Requests per minute and at once alone: nothing is queued, tokens and budgets are not looked
 * at. */
limits *limits_create_of_requests(void);

void limits_destroy(limits *l);

/* Takes one request, `tokens` (prompt and the most it may produce) and their `cost` in micros; `a`
 * may be NULL.  False: nothing was taken and *why says so. */
bool limits_reserve(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                    int64_t tokens, int64_t cost, limits_ticket *ticket, limits_refusal *why);

/* Would a request pass whose tokens are not counted yet?  Takes nothing, leaves rates of tokens and
 * budgets of costs out: what it refuses, limits_reserve() refuses, too, and its prompt need not be
 * read. */
bool limits_ask(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                limits_refusal *why);

/* The request has begun to run, and whoever saw that has lowered *ticket->waiting already. */
void limits_has_run(limits_ticket *ticket);

/* Gives the difference to what was used back; a ticket that is not held is left alone. */
void limits_settle(limits *l, limits_ticket *ticket, int64_t used_tokens, int64_t used_cost);

enum { LIMITS_NEAR_PERCENT = 80 };
enum {
    LIMITS_NEAR_DAY = 1, /* of tokens */
    LIMITS_NEAR_MONTH = 2,
    LIMITS_NEAR_COST_DAY = 4,
    LIMITS_NEAR_COST_MONTH = 8
};

typedef struct limits_usage {
    int64_t running, queued, day_used, month_used;
    int64_t cost_day_used, cost_month_used; /* micros */
    /* LIMITS_NEAR_...: budgets of which LIMITS_NEAR_PERCENT came to be used since the last call;
     * once in a day or month, and again after the share was below that. */
    unsigned near;
    int64_t minute_requests, minute_tokens; /* of the limits; 0 where there is none */
} limits_usage;

/* What tenants use now, for those that sent something since the start (the others stay zero):
 * out[i] of t[i].  Reads no ledger and makes no account.  One caller alone: see `near`. */
void limits_usage_get(limits *l, const tenant *t, size_t n, limits_usage *out);

/* `a` may be NULL. */
void limits_look(limits *l, const key_info *key, const tenant *t, const limits_adapter *a,
                 limits_view *out);

/* An adapter alone: requests, tokens, concurrent_limit and running; the rest is
 * 0, other limits -1 (none). */
void limits_look_adapter(limits *l, const limits_adapter *a, limits_view *out);

#endif
