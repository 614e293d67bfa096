/* hub_inside.h -- calls to the hub with a pause between attempts.  Private to hub.c, hub_file.c. */
#ifndef GATEWAY_FETCH_HUB_INSIDE_H
#define GATEWAY_FETCH_HUB_INSIDE_H

#include "gateway/fetch/hub.h"

enum { HUB_ATTEMPTS = 5 };

/* One call with the operator's token; `from` as in fetch_call. */
fetch_end hub_ask(hub *h, const char *url, int64_t *from, long *status, const fetch_sink *sink,
                  err *e);

/* Waits before attempt number `n` (1: the second), 0.5 s and twice as long each time.  A failure is
 * that of terms.still(). */
err_code hub_pause(const hub *h, int n, err *e);

/* What a failed call means to the operator; `what` names the file or the revision. */
err_code hub_failed(fetch_end end, long status, const char *what, err *e);

#endif
