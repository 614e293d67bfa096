/* lease.h -- shares of a fleet's limits, which nodes take from PostgreSQL before they use them.
 *
 * For each limited scope (a tenant, a key, an adapter) there is one row with what nobody has, and
 * one for each node with what it was granted.  A node asks for all scopes that are due in one
 * statement, in the order of kinds and ids.  At every instant, for each limit:
 *
 *   drawn by a node <= granted to it;  the sum of what is granted <= the limit
 *
 * whatever crashes, for both sides speak of sums, not of differences.  A node says what it has
 * drawn since the begin (of its epoch; of the day) and how much more it keeps, and lowers its own
 * grant to that before it asks.  The row answers with a new sum, that or more.  So a lost question
 * or answer leaves the row at more than the node knows of, never at less.  Questions have turns:
 * one that arrives after a later one is not looked at.
 *
 * Requests and tokens are a bucket: what comes back from it in time is bounded by the limit less
 * what nodes hold.  Seats and budgets are plain sums.  What a node holds is nobody else's until it
 * gives it back, its data directory comes back with a new epoch (its meters say what it drew), or
 * an operator fences it.  Budgets of a lost directory stay with it until their day is over.
 *
 * tests/model/lease_model.py checks the protocol in all orders for small sizes.
 *
 * Threads: any, one exchange at a time.
 */
#ifndef STORAGE_FLEET_LEASE_H
#define STORAGE_FLEET_LEASE_H

#include <stdint.h>

#include "storage/store.h"

typedef enum {
    LEASE_REQUESTS, /* a minute */
    LEASE_TOKENS,   /* a minute */
    LEASE_SEATS,    /* requests at once */
    LEASE_DAY,      /* tokens of a UTC day */
    LEASE_MONTH,
    LEASE_THINGS
} lease_thing;

/* A node that could not ask for so long draws no more: then it may be fenced. */
enum { LEASE_VALID_US = 10000000 };

typedef struct lease_ask {
    int kind; /* of scopes: the caller's own numbers */
    uint64_t id;
    int64_t day, month; /* since 1970; of the calendar: larger is later, from 1 */
    struct {
        int64_t limit; /* 0: none, and nothing of it is looked at */
        int64_t drawn; /* in this epoch, of this day, of this month; seats: taken now */
        int64_t keep;  /* granted and not drawn, and not given back */
        int64_t need;  /* more, for requests that wait */
        int64_t extra; /* more, if there is plenty: at most a quarter of what is left is given */
        int64_t least; /* less than this is of no use: then nothing of `need` is given */
    } of[LEASE_THINGS];
} lease_ask;

typedef struct lease_grant {
    int64_t granted[LEASE_THINGS];  /* drawn + keep, or more */
    int64_t remains[LEASE_THINGS];  /* what nobody has */
    int64_t may_come[LEASE_THINGS]; /* that, and what other nodes have and have not drawn */
} lease_grant;

/* Asks for n scopes in ascending order of kind and id.
 *   ERR_IO        no answer: keep no more than was asked to be kept
 *   ERR_CONFLICT  this node's number is another's: it has no leases any more */
err_code lease_exchange(store *st, const lease_ask *asks, int n, lease_grant *out, err *e);

#endif
