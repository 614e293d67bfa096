/* descriptors.h -- room for every socket and file that the configuration may open at once.
 *
 * Each plane holds at most so many sockets as it has workers, and a queue: so where the start has
 * found room for all of them, no plane can take what another needs.  (For what the start can't
 * know: gateway/net/spare.h.)
 *
 * Threads: claim at the start; look on any.
 */
#ifndef GATEWAY_DESCRIPTORS_H
#define GATEWAY_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "gateway/config/config.h"

/* Raises RLIMIT_NOFILE as far as the system lets us.  ERR_INPUT, in a sentence with all numbers,
 * where that is less than is needed. */
err_code descriptors_claim(const config *c, err *e);

/* How many are open now, and how many may be.  False: there is none left to look with. */
bool descriptors_look(int64_t *n_open, int64_t *max);

#endif
