/* facts.h -- what a node tells the others of itself: role and load, as one line of words.
 *
 *   "1 decode 120 0.02 1 4400 1400 48 2490 0 0 16 8000 32 0 0 0 112 90000 1500 0.0004"
 *
 * The line is in the node's row of the fleet's database (storage/fleet/nodes.h), renewed every
 * second.  Its first number is the format's; a reader ignores lines of another format.
 *
 * Threads: any; there is no state.
 */
#ifndef GATEWAY_MOVE_FACTS_H
#define GATEWAY_MOVE_FACTS_H

#include <stdbool.h>

#include "engine/sched/place.h"
#include "storage/fleet/nodes.h"

void facts_write(const place_node *k, char out[NODE_FACTS_MAX + 1]);
/* False: the line is of another format, or a number is not finite or out of range. */
bool facts_read(const char *line, place_node *out);

#endif
