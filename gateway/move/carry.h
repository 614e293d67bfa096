/* carry.h -- brings the keys and values of a request that another node has begun from that node,
 * with a snapshot of its recurrent state if the model has states.
 *
 * What comes is put into this engine's prefix cache, page by page, each when its digest is right;
 * the request then finds it there, as it would what was computed here.  So whatever fails on the
 * way costs the computation of the rest, and no bit of an answer hangs on it.
 *
 * It is done where it should take less time than computing them: by what transfers have taken, and
 * by the engine's cost model.  A few are under way at once, the others wait in line; each has as
 * long as the computation would take, within bounds.
 *
 * Threads: any; each transfer is its caller's, who waits for it.
 */
#ifndef GATEWAY_MOVE_CARRY_H
#define GATEWAY_MOVE_CARRY_H

#include "engine/base/err.h"
#include "gateway/move/wire.h"
#include "gateway/process_parts.h"

typedef struct server server;

typedef struct carry carry;
typedef struct roster roster;

/* Borrows `s`.  NULL: out of memory. */
carry *carry_create(server *s);
/* Nodes' addresses come from there, if it has them; borrowed.  Before the first transfer. */
void carry_ask(carry *c, roster *r);
/* Nobody is in carry_bring().  NULL is fine. */
void carry_destroy(carry *c);

/* What transfers to this node have taken, by a moving average: until the first byte, and for each
 * byte; 0: none was measured.  Old figures count less and less. */
void carry_speed(carry *c, double *setup_us, double *byte_us);

/* How many pages are copied at once: a few MiB of them, at least one. */
int carry_pages_at_once(const sched *sc);

typedef struct carry_want {
    sched_text text;
    int rank;         /* of its adapter; 0: none */
    const char *mode; /* server.fleet_kv: "auto", "always", "never" */
    int64_t node;     /* it has them, */
    uint64_t pass;    /* and gives them for this */
    uint64_t request; /* the request's id, for the log */
} carry_want;

/* *n_tokens: how many came.  Counts and logs what came of it (server_counters). */
moved_kv carry_bring(carry *c, const carry_want *w, int *n_tokens);

#endif
