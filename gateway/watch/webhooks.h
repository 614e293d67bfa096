/* webhooks.h -- events of the server, posted to one URL of the operator's.
 *
 * The wire format is that of Standard Webhooks 1.0 (standardwebhooks.com), so existing libraries
 * verify it: headers webhook-id, webhook-timestamp (seconds) and webhook-signature, "v1," and the
 * base64 of HMAC-SHA256 over "ID.TIMESTAMP.BODY".
 *
 * Events are delivered in order, each at least once: a receiver drops ids that it has seen.  An
 * event that is not answered with 2xx is tried again with pauses from 1 to 60 s, for 24 hours.
 * Answers 4xx other than 408, 425 and 429 reject it for good.  At most WEBHOOKS_MAX events wait;
 * more are dropped.  Each dropped event is counted, and the log names it.
 *
 * Waiting events are kept in a file, DIR/webhooks, which outlives a restart and a kill; a power cut
 * may lose the newest.  One thread sends and owns the file: webhooks_put() never waits for either.
 *
 * Ownership: webhooks_destroy() frees.  Threads: put and get any, the others main.
 */
#ifndef GATEWAY_WATCH_WEBHOOKS_H
#define GATEWAY_WATCH_WEBHOOKS_H

#include <stdint.h>

#include "engine/base/err.h"
#include "gateway/admin_proto.h"

enum { WEBHOOKS_MAX = 1024 };

typedef struct webhooks webhooks;

typedef struct webhooks_config { /* borrowed until webhooks_create() returns */
    const char *url;             /* http or https */
    const char *secret;          /* "whsec_" and base64, or any other text: the key as it is */
    const char *events;          /* kinds, comma-separated; empty: all */
    const char *dir;             /* where the file of waiting events is */
    int node;
} webhooks_config;

typedef struct webhooks_stats {
    uint64_t n_sent, n_failures;            /* events delivered; tries that failed */
    uint64_t n_rejected, n_expired, n_full; /* events given up, by reason */
    uint64_t n_waiting;
} webhooks_stats;

/* ERR_INPUT: the URL or the secret is not valid. */
err_code webhooks_check(const char *url, const char *secret, err *e);

/* ERR_INPUT as above.  ERR_IO: the file cannot be opened. */
err_code webhooks_create(webhooks **out, const webhooks_config *cfg, err *e);
/* Tries what waits once more, until a try fails; the rest stays in the file.  NULL is fine. */
void webhooks_destroy(webhooks *h);

/* Queues it if its kind is wanted.  NULL is fine. */
void webhooks_put(webhooks *h, const proto_event *event);

void webhooks_get(webhooks *h, webhooks_stats *out);

#endif
