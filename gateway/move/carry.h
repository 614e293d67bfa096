/* carry.h -- brings the keys and values of a request that another node has begun from that node.
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
#include "gateway/server.h"

typedef struct carry carry;

/* Borrows `s`.  NULL: out of memory. */
carry *carry_create(server *s);
/* Nobody is in carry_bring().  NULL is fine. */
void carry_destroy(carry *c);

/* How many pages are copied at once: a few MiB of them, at least one. */
int carry_pages_at_once(const sched *sc);

typedef struct carry_want {
    sched_text text;
    int rank;              /* of its adapter; 0: none */
    const char *mode;      /* server.fleet_kv: "auto", "always", "never" */
    const move_name *from; /* the node that has them, and its pass */
} carry_want;

/* *n_tokens: how many came.  *e says why, but for MOVED_KV_TAKEN and MOVED_KV_HERE. */
moved_kv carry_bring(carry *c, const carry_want *w, int *n_tokens, err *e);

#endif
