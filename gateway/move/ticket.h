/* ticket.h -- what a client holds of a stream, to have it go on where its connection was lost.
 *
 * Nothing is kept for a stream.  A draw depends on seed and position alone, and numbers on no
 * company, so its answer is made again, and what the client has is left out
 * (gateway/openai/completion_answer.c).  A ticket is the seed, the time, what answers are called,
 * and a digest of all that the tokens depend on, sealed for its tenant with the server's
 * resume_key.
 *
 * Threads: any.
 */
#ifndef GATEWAY_MOVE_TICKET_H
#define GATEWAY_MOVE_TICKET_H

#include <stdbool.h>
#include <stdint.h>

#include "gateway/tenant_parts.h"
#include "storage/digest.h"
#include "storage/seal/seal.h"

typedef struct ticket {
    uint64_t seed;
    int64_t started_wall_us;
    uint8_t asked[DIGEST_BYTES];
    char id[64];
} ticket;

enum { TICKET_TEXT = 2 * (112 + SEAL_BYTES) + 1 };

/* False: there is no memory. */
bool ticket_write(const tenant_parts *parts, uint64_t tenant_id, const ticket *t,
                  char out[TICKET_TEXT]);
/* False: it is none of this tenant's, or of another key. */
bool ticket_read(const tenant_parts *parts, uint64_t tenant_id, const char *text, ticket *out);

#endif
