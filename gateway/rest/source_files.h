/* source_files.h -- what a source holds (gateway/fetch/source.h), fetched into an upload.
 *
 * Files go the way of an uploaded tar (adapters/store/upload.h), so its limits and refusals hold.
 *
 * Threads: any; a call lasts as long as the transfer.
 */
#ifndef GATEWAY_REST_SOURCE_FILES_H
#define GATEWAY_REST_SOURCE_FILES_H

#include "adapters/store/upload.h"
#include "gateway/fetch/fetch.h"

struct config_sources;

typedef struct source_plan { /* all borrowed */
    source where;
    source_rules rules;
    const fetch_secret *secret;
    const char *sha256; /* of the weights, or of the one file; NULL: not asked */
} source_plan;

/* Asked before each piece is taken: a failure ends the transfer with it. */
typedef struct source_watch {
    err_code (*still)(void *arg, err *e);
    void *arg;
} source_watch;

/* The operator's rules as this configuration has them; borrowed from it. */
source_rules source_rules_of(const struct config_sources *s);

/* After a failure only upload_abort() is allowed. */
fetch_end source_fetch(const source_plan *p, upload *u, const source_watch *watch, err *e);

#endif
