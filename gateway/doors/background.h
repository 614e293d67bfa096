/* background.h -- responses that go on when their client has its answer: "background": true.
 *
 * A response is stored as queued, and its client told so.  A thread of ours then has it answered
 * as a request from within (gateway/http/inner.h) by responses_create(), which stores it under the
 * same id.  Its row says `running` until then; one that does so and is not held here was lost with
 * the process that held it (background_lost()).
 *
 * Locks:   one, held over nothing that waits.
 * Threads: its own; the calls from any.
 */
#ifndef GATEWAY_DOORS_BACKGROUND_H
#define GATEWAY_DOORS_BACKGROUND_H

#include "gateway/doors/responses.h"

enum {
    BACKGROUND_MAX = 1000,       /* responses that run or wait */
    BACKGROUND_TENANT_MAX = 100, /* of one tenant */
    BACKGROUND_STREAM_START = 2, /* events before the first of its making: created, queued */
};

typedef struct background background;

/* `n`: how many run at once, each with a thread.  `s` is borrowed. */
err_code background_start(background **out, server *s, int n, err *e);
/* Those that run are waited for: the engine must answer until then, or cut them.  NULL is fine. */
void background_stop(background *b);

/* The request of that id, whose row is stored, is to be answered; the body is copied.  `events`:
 * the first of its stream; NULL: it has none.  ERR_BUSY: too many are. */
err_code background_add(background *b, const responses_run *r, uint64_t id, const cJSON *body,
                        const jsonw *events, err *e);
/* Adds the events of its stream behind the first `at` bytes to *out, all of them whole; waits for
 * some for a while.  False: it is not held, and what its row has is all. */
bool background_news(background *b, uint64_t tenant_id, const char *id, size_t at, jsonw *out);
/* Whether a tenant's response waits or runs. */
bool background_holds(background *b, uint64_t tenant_id, const char *id);
/* Ends it, and waits until its row says so.  False: it is not held. */
bool background_cancel(background *b, uint64_t tenant_id, const char *id);

/* The row of a response whose process has ended becomes one that has failed. */
err_code background_lost(server *s, response_row *row, err *e);

#endif
