/* batch_job.h -- one batch while it is carried out: its steps, but for the lines between them.
 *
 * Ownership: the runner's.  Threads: open and close by one thread that has marked it busy; the
 * rest of the fields as they say.
 */
#ifndef GATEWAY_BATCHES_BATCH_JOB_H
#define GATEWAY_BATCHES_BATCH_JOB_H

#include "gateway/batches/journal.h"
#include "gateway/batches/line_run.h"
#include "gateway/batches/lines.h"

typedef struct batch_try { /* a line that is to be run */
    int line, n_tries;
    int64_t at_us; /* not before; monotonic */
} batch_try;

typedef struct batch_job {
    struct batch_job *next; /* this and all down to `again` under the runner's lock */
    bool busy;              /* a step of the whole batch is under way */
    bool open;              /* its files are, and its lines may run */
    bool cancelling, keyless, unsaved;
    int64_t resume_us, saved_us; /* monotonic */
    int n_lines;                 /* that run */
    int cursor;                  /* the first that was never begun */
    int n_again;
    batch_try *again; /* twice as many as lines may run at once */

    batch_done done; /* the runner's lock, too, but for open and close */
    batch_row row;   /* busy, or the lock; line_run() reads what does not change */
    batch_lines lines;
    batch_journal journal;
} batch_job;

/* A copy of the row; `most` lines may run at once.  NULL: no memory. */
batch_job *batch_job_create(const batch_row *row, int most);
void batch_job_free(batch_job *j);

/* Checks the input where that has not been done, and reads what was done before.  *ended: it was
 * no batch, and its row says so. */
err_code batch_job_open(batch_job *j, server *srv, bool *ended, err *e);
/* No line runs any more: what was not run is written as such, and the batch ends. */
err_code batch_job_close(batch_job *j, server *srv, err *e);

#endif
