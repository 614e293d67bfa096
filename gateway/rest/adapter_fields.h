/* adapter_fields.h -- what the handlers of adapters and of uploads share: shapes and conditions.
 *
 * Threads: workers.
 */
#ifndef GATEWAY_REST_ADAPTER_FIELDS_H
#define GATEWAY_REST_ADAPTER_FIELDS_H

#include "adapters/store/publish.h"
#include "adapters/store/registry.h"
#include "gateway/http/exchange.h"

/* Adapter calls need a tenant: an operator's key has none.  False: answered. */
bool adapter_need_tenant(exchange *x);

/* New versions are refused while the server shuts down; true: answered. */
bool adapter_refuse_draining(exchange *x);
/* Of a version of the caller's, which becomes `default`, within its limits. */
publish_options adapter_options(const exchange *x, const char *name);

void adapter_write_version(exchange *x, jsonw *w, const version_entry *v);
void adapter_write_limits(jsonw *w, const adapter_limits *l); /* 0: none */
void adapter_write_entry(exchange *x, jsonw *w, const adapter_entry *a);

/* The adapter param[0] with its ETag, or why not. */
void adapter_reply_entry(exchange *x, int status);

/* After a publish: counted, on its way into memory; a pinned name's new default is kept resident
 * (`before`: its default's id until now). */
void adapter_published(exchange *x, const adapter_version *v, bool existed, uint64_t before);
/* Notes it in the audit, which waits for the disk. */
void adapter_note(exchange *x, const adapter_version *v, bool existed);
/* Deletes what adapters.keep_versions does not keep of the caller's name; behind the answer, for it
 * writes to the disk. */
void adapter_prune(exchange *x, const char *name);

/* All three, and before the last 201, or 200 for content that the newest version has already.  */
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
