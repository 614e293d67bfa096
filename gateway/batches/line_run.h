/* line_run.h -- one line of a batch: answered as a request of its tenant's, and written down.
 *
 * The handlers are those of the HTTP requests, with an exchange from within (gateway/http/inner.h).
 * What a client would try again later is not written: the line comes back.
 *
 * Threads: any, each line one.
 */
#ifndef GATEWAY_BATCHES_LINE_RUN_H
#define GATEWAY_BATCHES_LINE_RUN_H

#include "gateway/batches/journal.h"
#include "gateway/batches/lines.h"
#include "gateway/http/exchange.h"
#include "storage/batches/batches.h"

typedef struct server server;

/* What answers requests to a URL; NULL: batches are not for it. */
typedef void batch_handler(exchange *x);
batch_handler *batch_handler_of(const char *url);
/* "/v1/chat/completions, /v1/completions ...". */
const char *batch_endpoints(void);

typedef enum {
    LINE_ANSWERED, /* it stands in the output file */
    LINE_REFUSED,  /* in the error file */
    LINE_AGAIN,    /* in none, after retry_ms it may be tried again */
    LINE_KEYLESS,  /* in none: the batch's key is no good any more */
    LINE_UNSURE,   /* the files must be read anew: it may stand there, or not */
} line_fate;

typedef struct line_job {
    server *srv;
    const batch_row *row;
    const batch_lines *lines;
    batch_journal *journal;
    int line;    /* from 0 */
    int n_tries; /* that the server's own faults have cost so far */
    int slo_class;
    int64_t retry_ms; /* out */
} line_job;

line_fate line_run(line_job *j);

/* Writes that a line was not run, for the reason that `code` says; not synced. */
err_code line_skip(const line_job *j, const char *code, const char *msg, err *e);

#endif
