/* admin_fields.h -- what the operators' handlers share: finding a tenant,
 * lists, what is not durable yet.
 *
 * Threads: workers.
 */
#ifndef GATEWAY_REST_ADMIN_FIELDS_H
#define GATEWAY_REST_ADMIN_FIELDS_H

#include "gateway/http/exchange.h"
#include "storage/tenants.h"

/* By name or id.  False: answered with 404. */
bool admin_find_tenant(exchange *x, const char *which, tenant *out);

/* Answers 400 with the sentence; false. */
bool admin_refuse(exchange *x, const err *e, const char *param);

/* The member "networks", ["192.0.2.0/24"]; an empty array lifts the bounds.  False: answered. */
bool admin_take_networks(exchange *x, const cJSON *body, char out[NETWORKS_MAX]);

/* "a,b" as ["a","b"]. */
void admin_write_list(jsonw *w, const char *name, const char *list);

/* An answer tells what is in force; this member that the disk does not have it yet, and only
 * then. */
void admin_write_durable(jsonw *w, bool durable);

#endif
