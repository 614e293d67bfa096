/* api_fields.h -- what the REST handlers share: known fields, ids, lists.  Threads: workers. */
#ifndef GATEWAY_API_FIELDS_H
#define GATEWAY_API_FIELDS_H

#include "gateway/exchange.h"

/* Every member of `body` must be one of `known` (NULL-ended); false: answered with 400. */
bool api_only_fields(exchange *x, const cJSON *body, const char *const *known);

/* Decimal id; 0 if it is not one. */
uint64_t api_parse_id(const char *s);
void api_write_id(jsonw *w, const char *name, uint64_t id);

/* Seconds since 1970 from microseconds; null for 0. */
void api_write_time(jsonw *w, const char *name, int64_t wall_us);

/* Starts {"object":"list","data":[ and ends it. */
void api_list_begin(jsonw *w);
void api_list_end(exchange *x, jsonw *w, bool has_more);

/* Appends the audit row of a change; a failure is logged, the change stands. */
void api_audit(exchange *x, uint64_t tenant_id, const char *action, const char *object,
               const char *detail);

#endif
