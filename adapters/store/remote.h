/* remote.h -- what an object store does for adapters: objects by key, whole ones only.
 *
 * Keys are "sha256/<digest>/<file>"; what stands before them is the store's own matter.  The store
 * behind it tries again by itself for a while before it fails.
 *
 * Threads: any; a call blocks until it is done, or stop() was called.
 */
#ifndef ADAPTERS_STORE_REMOTE_H
#define ADAPTERS_STORE_REMOTE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "storage/digest.h"

/* Who receives an object.  begin: from the first byte on, perhaps anew.  Both fill `e` where they
 * return a failure, which ends the call with it. */
typedef struct remote_sink {
    err_code (*begin)(void *arg, err *e);
    err_code (*take)(void *arg, const void *data, size_t len, err *e);
    void *arg;
} remote_sink;

/* ERR_NOT_FOUND: there is no such object; ERR_IO: all else, with what happened. */
typedef struct remote {
    /* The first `bytes` of an open file, whose SHA-256 is `sha`; over one that is there. */
    err_code (*put)(void *self, const char *key, int fd, uint64_t bytes,
                    const uint8_t sha[DIGEST_BYTES], err *e);
    err_code (*get)(void *self, const char *key, const remote_sink *sink, err *e);
    err_code (*size)(void *self, const char *key, uint64_t *bytes, err *e);
    /* One that is not there is dropped, too. */
    err_code (*drop)(void *self, const char *key, err *e);
    /* Ends calls that are under way, and fails those to come. */
    void (*stop)(void *self);
    void *self;
} remote;

#endif
