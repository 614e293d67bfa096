/* mover.h -- requests that a node of a fleet gives to others, because it drains or by the nodes'
 * roles (engine/sched/place.h), and whose tokens it passes on to its clients.
 *
 * The unit is one struct request: the engine lets go of it (request_leave()), a thread of ours
 * sends what it is and its tokens so far to another node (wire.h), and pushes the tokens that come
 * back as the engine would have.  A seed and a position decide each token, so they are the same.
 * Text, tools, limits, books and the client's connection stay where they are: here.
 *
 * Or another node computes the prompt: it makes the first token, the request comes back, and its
 * pages are fetched (carry.h).
 *
 * A node that refuses, or is lost, is followed by the next if this one drains; after the last one
 * our own engine goes on.  Nodes find one another, and prove who they are, by their rows in the
 * fleet's database: an address, the fingerprint of its certificate's key, and a secret word, new
 * with each start.
 *
 * Threads: any, but for create, destroy and begin: the main thread.
 */
#ifndef GATEWAY_MOVE_MOVER_H
#define GATEWAY_MOVE_MOVER_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "gateway/move/wire.h"

typedef struct server server;

typedef struct mover mover;
typedef struct roster roster;
struct carry;

/* Where the pages of a prompt are that another node has computed: for carry_want.from. */
typedef struct move_from {
    int64_t node;
    uint64_t pass;
} move_from;

/* For a server with server.fleet_address, whose certificate is read from that file; `s` is
 * borrowed.  ERR_INPUT: the certificate cannot be read. */
err_code mover_create(mover **out, server *s, const char *cert_path, err *e);
/* No request may be with it.  NULL is fine, also below. */
void mover_destroy(mover *m);

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

/* Undoes mover_expect() for a request that ended before it could leave. */
void mover_forget(mover *m);
/* Has it go on elsewhere, after request_go_on(); it ends as if our engine had it.  Copies `name`.
 * `first`: the node that was chosen (roster.h), and no other while this node does not drain;
 * ROSTER_NONE: any. */
void mover_take(mover *m, request *rq, const move_name *name, int first);
/* Has node `first` compute the prompt of a request that no engine has had (sched_foresee()).  With
 * its first token it ends with FINISH_LEFT, *from is set, and the caller goes on with it after
 * request_go_on(), then calls mover_forget().  If that node refuses or is lost, our own engine has
 * it.  False: out of memory. */
bool mover_ask_prompt(mover *m, request *rq, const move_name *name, int first, move_from *from);
/* That node will need this adapter soon; nothing waits for it. */
void mover_prefetch(mover *m, const move_name *name, int at);
roster *mover_roster(const mover *m);

/* The text of a request that another node has, by the pass that the node was given with it, so that
 * it is given its pages; for mover_lent().  ERR_NOT_FOUND: none has that pass; ERR_BUSY: too many
 * are given pages now. */
err_code mover_lend(mover *m, uint64_t pass, sched_text *out, err *e);

/* The pages have been given: frees the text's tokens. */
void mover_lent(mover *m, sched_text *text);
/* The text of a prompt that was computed for another node, which will ask for its pages with this
 * pass; copied, and kept for some seconds. */
void mover_keep(mover *m, uint64_t pass, const sched_text *text);
/* What brings such pages here (carry.h). */
struct carry *mover_carry(const mover *m);

#endif
