/* object_store.h -- the fleet's object store that the configuration names ([store]).
 *
 * Ownership: borrows the configuration; who opens closes.  Threads: the main thread.
 */
#ifndef GATEWAY_START_OBJECT_STORE_H
#define GATEWAY_START_OBJECT_STORE_H

#include "gateway/config/config.h"
#include "gateway/fetch/bucket.h"

/* *out is NULL where store.url is empty.  The keys are read once, to see that they are there. */
err_code object_store_open(bucket **out, const config *c, err *e);

/* Stores an object there, reads it, and drops it.  Fine where there is no store. */
err_code object_store_probe(const config *c, err *e);

#endif
