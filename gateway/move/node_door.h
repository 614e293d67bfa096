/* node_door.h -- where a node of a fleet takes requests of the others: an address, the fingerprint
 * of its certificate's key, and a secret word, new with each start.
 *
 * Its text, three words, stands in the node's row of the fleet's database.  Who can read that row
 * knows the server that answers there, and is known to it.
 *
 * Threads: any; there is no state.
 */
#ifndef GATEWAY_MOVE_NODE_DOOR_H
#define GATEWAY_MOVE_NODE_DOOR_H

#include <stdbool.h>
#include <stddef.h>

#include <curl/curl.h>

#include "engine/base/err.h"
#include "storage/fleet/nodes.h"

enum { DOOR_WORD_BYTES = 32, DOOR_WORD_MAX = 2 * DOOR_WORD_BYTES, DOOR_PIN_MAX = 64 };

typedef struct node_door {
    char url[NODE_DOOR_MAX + 1], pin[DOOR_PIN_MAX + 1], word[DOOR_WORD_MAX + 1];
} node_door;

/* The text of one.  ERR_INPUT: there is no certificate in that file, or the address is too long. */
err_code node_door_write(const char *address, const char *cert_path, const char *word,
                         char out[NODE_DOOR_MAX + 1], err *e);
/* False: it is none that can be used. */
bool node_door_read(const char *text, node_door *out);

/* Has `c` POST these bytes, which stay the caller's, to that path of it: only to a server with that
 * key.  *headers is the caller's to free, after `c`.  False: out of memory. */
bool node_door_post(CURL *c, const node_door *d, const char *path, const void *body, size_t len,
                    struct curl_slist **headers);

#endif
