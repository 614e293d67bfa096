/* adapter_fields.h -- what the handlers of adapters and of uploads share: shapes and conditions.
 *
 * Threads: workers.
 */
#ifndef GATEWAY_REST_ADAPTER_FIELDS_H
#define GATEWAY_REST_ADAPTER_FIELDS_H

#include "adapters/store/registry.h"
#include "gateway/http/exchange.h"

/* Adapter calls need a tenant: an operator's key has none.  False: answered. */
bool adapter_need_tenant(exchange *x);

void adapter_write_version(exchange *x, jsonw *w, const version_entry *v);
void adapter_write_limits(jsonw *w, const adapter_limits *l); /* 0: none */
void adapter_write_entry(exchange *x, jsonw *w, const adapter_entry *a);

/* The adapter param[0] with its ETag, or why not. */
void adapter_reply_entry(exchange *x, int status);

/* After a publish: 201, or 200 for content that the newest version has already.  Keeps a pinned
 * name's new default resident (`before`: its default's id until now) and writes the audit row. */
void adapter_reply_published(exchange *x, const adapter_version *v, bool existed, uint64_t before);

/* What is wrong with an adapter's content is 422; limits, conflicts and the
 * disk speak for themselves. */
void adapter_refuse(exchange *x, const err *e, const char *param);

/* Id of the version that the name's `default` means; 0: none. */
uint64_t adapter_default_id(exchange *x, const char *name);

/* After `default` may have moved away from the version `before`: a pinned name keeps its new one
 * resident. */
void adapter_follow_pin(exchange *x, const char *name, uint64_t before);

/* If-Match: "7" or * (absent: -1), If-None-Match: * (0: the name must be new).  False: answered. */
bool adapter_expected(exchange *x, int64_t *out);

/* ?limit=, ?after=, ?prefix=, ?state=, ?residency=; false: answered. */
bool adapter_take_query(exchange *x, registry_query *q, const char **residency);
/* The page, with "has_more" and "next", which is the "after" of the next one. */
void adapter_reply_page(exchange *x, const registry_query *asked, const char *residency,
                        void (*write)(exchange *x, jsonw *w, const adapter_entry *a));

/* ?activate=; *activate stays where it is not given.  False: answered. */
bool adapter_activate(exchange *x, bool *activate);

#endif
