/* plan.h -- lorad check --plan MODEL: what a model takes on this machine, before it is set up.
 *
 * Threads: the main thread.
 */
#ifndef GATEWAY_START_PLAN_H
#define GATEWAY_START_PLAN_H

#include "gateway/config/config.h"

/* Prints weights, KV of a token, size of an adapter, and how many requests and adapters fit into
 * engine.kv_memory.  *fits: this machine's memory is enough for all of it. */
err_code plan_print(config *c, bool *fits, err *e);

#endif
