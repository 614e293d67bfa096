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
    journal_source fleet; /* where storage.database is set */
    bucket *bucket;       /* where store.url is */
    sched_legacy legacy; /* of the process whose place this one has taken; to be left to the next */
    unsigned without;    /* likewise: kernels that the device has failed at, 1U << each */
} parts;

/* `cfg`, `tls`, srv.live and srv.change are set.  What was opened before a failure is for
 * parts_close(). */
err_code parts_open(parts *p, err *e);
/* All open parts take what is live of `c`.  One thread at a time, any. */
void parts_follow(parts *p, const config *c);
void parts_close(parts *p);

#endif
