/* mover.h -- requests that a draining node of a fleet gives to others, and whose tokens it passes
 * on to its clients.
 *
 * The unit is one struct request: the engine lets go of it (request_leave()), a thread of ours
 * sends what it is and its tokens so far to another node (wire.h), and pushes the tokens that come
 * back as the engine would have.  A seed and a position decide each token, so they are the same.
 * Text, tools, limits, books and the client's connection stay where they are: here.
 *
 * A node that refuses, or is lost, is followed by the next; after the last one our own engine goes
 * on.  Nodes find one another, and prove who they are, by their rows in the fleet's database: an
 * address, the fingerprint of its certificate's key, and a secret word, new with each start.
 *
 * Threads: any, but for create, destroy and begin: the main thread.
 */
#ifndef GATEWAY_MOVE_MOVER_H
#define GATEWAY_MOVE_MOVER_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "gateway/move/wire.h"
#include "gateway/server.h"

typedef struct mover mover;
struct carry;

/* For a server with server.fleet_address, whose certificate is read from that file; `s` is
 * borrowed.  ERR_INPUT: the certificate cannot be read. */
err_code mover_create(mover **out, server *s, const char *cert_path, err *e);
/* No request may be with it.  NULL is fine, also below. */
void mover_destroy(mover *m);

/* From now and then: tells the fleet where we are, once it is needed. */
void mover_tell(mover *m);
/* The certificate is another one. */
void mover_renew(mover *m, const char *cert_path);
/* Are these the bytes by which another node proves itself to us?  Takes the same time always. */
bool mover_knows(const mover *m, const char *word);

/* We drain: looks who there is.  What runs may be given away from now on, if anybody is. */
void mover_begin(mover *m);
/* Shall what runs be given away? */
bool mover_wants(const mover *m);
/* Is nothing with it, or on its way to it? */
bool mover_idle(const mover *m);

/* This request is about to leave the engine, for mover_take(), or it ended before: */
void mover_expect(mover *m);
void mover_forget(mover *m);
/* Has it go on elsewhere, after request_go_on(); it ends as if our engine had it.  `name` is
 * copied. */
void mover_take(mover *m, request *rq, const move_name *name);

/* The text of a request that another node has, by the pass that the node was given with it, so that
 * it is given its pages; for mover_lent().  ERR_NOT_FOUND: none has that pass; ERR_BUSY: too many
 * are given pages now. */
err_code mover_lend(mover *m, uint64_t pass, sched_text *out, err *e);
void mover_lent(mover *m, sched_text *text);
/* What brings such pages here (carry.h). */
struct carry *mover_carry(const mover *m);

#endif
