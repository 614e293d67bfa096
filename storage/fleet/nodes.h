/* nodes.h -- the servers of a fleet, as its database knows them.
 *
 * Threads: any.
 */
#ifndef STORAGE_FLEET_NODES_H
#define STORAGE_FLEET_NODES_H

#include <stddef.h>
#include <stdint.h>

#include "storage/fleet/journal.h"
#include "storage/store.h"

enum { NODE_DOOR_MAX = 511, NODE_FACTS_MAX = 511 };

typedef struct fleet_member {
    int node;
    char name[NODE_NAME_MAX + 1];
    int64_t epoch;
    int64_t silent_us; /* since its last heartbeat; -1: it has stopped, or was fenced */
    int64_t applied, behind;
    bool drains;
    char door[NODE_DOOR_MAX + 1];   /* empty: it takes no requests of others */
    char facts[NODE_FACTS_MAX + 1]; /* its role and load (gateway/move/facts.h); empty: unknown */
} fleet_member;

/* In the order of numbers; *out is malloced.  ERR_CONFLICT: this server is in no fleet; ERR_IO: its
 * database does not answer. */
err_code nodes_list(store *st, fleet_member **out, size_t *n, err *e);
/* Tells the others where this server takes requests, in the caller's words (at most NODE_DOOR_MAX
 * bytes), once for each time that it has got its number: *told is the epoch under which it was told
 * last, 0: never.  ERR_IO: its database does not answer. */
err_code nodes_tell_door(store *st, const char *door, int64_t *told, err *e);
/* Tells the others this server's role and load, in the caller's words (at most NODE_FACTS_MAX
 * bytes).  ERR_IO: its database does not answer. */
err_code nodes_tell_facts(store *st, const char *facts, err *e);
/* This server's own number; -1: it is in no fleet. */
int nodes_self(store *st);
/* That server finishes what runs and stops, a second later at most.  ERR_NOT_FOUND: there is no
 * such node, or it has stopped. */
err_code nodes_drain(store *st, int node, err *e);
/* That server is gone: it writes nothing and draws no leases any more before it is started again,
 * and what it held of rates and seats is free.  Budgets that it held stay with it until their day
 * is over, or it comes back.  ERR_CONFLICT: it may still be alive (LEASE_VALID_US). */
err_code nodes_fence(store *st, int node, err *e);

#endif
