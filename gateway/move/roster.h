/* roster.h -- the other nodes of the fleet: where they are, what they do, how loaded they are.
 *
 * A thread tells them the same of this node, through its row of the fleet's database, and reads
 * their rows: every second where a node has a role (server.fleet_role), else every five.  Without
 * news of a node for some seconds nothing is placed there.  What this node has sent since counts on
 * top of what the other last said.
 *
 * Nodes are named by an index, which stays the same node's.
 *
 * Threads: any, but for create and destroy: the main thread.
 */
#ifndef GATEWAY_MOVE_ROSTER_H
#define GATEWAY_MOVE_ROSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/sched/place.h"
#include "gateway/move/node_door.h"

typedef struct server server;
typedef struct carry carry;

typedef struct roster roster;

enum { ROSTER_MAX = 64, ROSTER_NONE = -1 };

/* Borrows `s` and `c` (which knows what transfers take).  `door`: where this node is reached.
 * NULL: out of memory. */
roster *roster_create(server *s, carry *c, const char *door);

/* No thread may use it any more. NULL is fine. */
void roster_destroy(roster *r);
/* This node is reached by another text from now on. */
void roster_renew(roster *r, const char *door);
/* Reads the rows now.  ERR_IO: the database does not answer. */
err_code roster_look(roster *r, err *e);

/* Nodes that accept requests now. */
int roster_size(roster *r);
/* The one of these with the fewest of this node's requests whose bit is not set in `tried`. */
int roster_next(roster *r, uint64_t tried);
/* A request goes there: copies its door.  Pair it with roster_return(). */
void roster_send(roster *r, int at, node_door *door);

/* The request that was sent to node `at` has ended there. */
void roster_return(roster *r, int at);
/* It did not accept, or broke off: nothing is placed there for some seconds. */
void roster_avoid(roster *r, int at);
/* Should that node be told that it will need this version of an adapter?  False: it was told a few
 * seconds ago. */
bool roster_tell_adapter(roster *r, int at, uint64_t version_id);
/* Its number in the fleet. */
int roster_number(roster *r, int at);
/* The door of the node with that number; false: it is not among those that accept requests. */
bool roster_door(roster *r, int64_t number, node_door *out);

/* This node's own role; it does not change. */
node_role roster_role(const roster *r);
/* May a request be placed at another node now, by the roles?  Takes no lock. */
bool roster_divides(const roster *r);
/* Where the prompt, or the stream, of such a request belongs (place.h), and counts it there;
 * ROSTER_NONE: here. */
int roster_place_prompt(roster *r, const place_ask *a);
int roster_place_stream(roster *r, const place_ask *a);
/* The same without counting, for a stream whose prompt is still to be computed. */
int roster_foresee_stream(roster *r, const place_ask *a);

#endif
