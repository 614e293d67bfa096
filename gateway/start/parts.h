/* parts.h -- the rooms of a server, opened from the ground up and closed in reverse.
 *
 * Ownership: the caller's struct, zeroed before it is opened.  Threads: the main thread, but for
 * parts_follow().
 */
#ifndef GATEWAY_START_PARTS_H
#define GATEWAY_START_PARTS_H

#include "engine/base/err.h"
#include "gateway/config/config.h"
#include "gateway/fetch/bucket.h"
#include "gateway/http/listener.h"
#include "gateway/server.h"
#include "storage/fleet/journal.h"

typedef struct parts {
    config cfg;
    server srv;
    listener *inference, *admin, *metrics;
    lora_source source;
    tls_files tls;
    journal_source fleet; /* unused if storage.database is empty */
    bucket *bucket;       /* the object store; NULL if store.url is empty */
    /* Both come from the process that this one replaced after a fault of the device, and go to the
     * process that will replace this one. */
    sched_legacy legacy;
    char without[BE_KERNELS_MAX]; /* kernels with which the device has failed */
} parts;

/* `cfg`, `tls`, and `live` and `change` of srv.process are set.  What was opened before a failure
 * is for parts_close(). */
err_code parts_open(parts *p, err *e);
/* All open parts take what is live of `c`.  One thread at a time, any. */
void parts_follow(parts *p, const config *c);
void parts_close(parts *p);

#endif
