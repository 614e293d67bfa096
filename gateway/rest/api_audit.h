/* api_audit.h -- who changed what: the audit log's rows, and the same as events of the statistics.
 *
 * Threads: workers.
 */
#ifndef GATEWAY_REST_API_AUDIT_H
#define GATEWAY_REST_API_AUDIT_H

#include "gateway/http/exchange.h"

/* Appends the audit row of a change; a failure is logged, the change stands. */
void api_audit(exchange *x, uint64_t tenant_id, const char *action, const char *object,
               const char *detail);
/* The same of a lock-out; one that is not durable yet does not wait for its row either. */
void api_audit_lockout(exchange *x, uint64_t tenant_id, const char *action, const char *object,
                       bool durable);

#endif
