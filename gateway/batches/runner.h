/* runner.h -- carries batches out: some threads that each run a line, one that says how many may.
 *
 * A batch goes from validating to in_progress to finalizing to completed; to failed, expired or
 * cancelled from where it is.  Each step is written to its row before anything is done that depends
 * on it, each line to its file when it is answered: a process that ends at any point leaves what
 * the next one goes on from (docs/design/batches.md).
 *
 * Lines take what others leave (pace.h).  Batches take turns, line by line, whose tenant's they
 * are is the scheduler's to weigh.
 *
 * Locks:   one, held over nothing that waits.
 * Threads: its own; the calls from any.
 */
#ifndef GATEWAY_BATCHES_RUNNER_H
#define GATEWAY_BATCHES_RUNNER_H

#include <stdint.h>

#include "engine/base/err.h"
#include "storage/batches/batches.h"

struct server;
typedef struct batch_runner batch_runner;

/* Goes on with what an earlier process has left, and removes files that belong to nobody.  `s` is
 * borrowed: its store, scheduler, limits and registry must be there. */
err_code batch_runner_start(batch_runner **out, struct server *s, err *e);
/* Lines that run are waited for: the engine must answer until then, or cut them.  NULL is fine. */
void batch_runner_stop(batch_runner *r);

/* A batch whose row is there: taken up soon. */
err_code batch_runner_add(batch_runner *r, const batch_row *row, err *e);
/* It is to be cancelled, as its row says. */
void batch_runner_cancel(batch_runner *r, const char *id);

#endif
