/* api_audit.c -- writes what an operator changed: a row in the audit table, an event in the log. */
#include "gateway/rest/api_audit.h"

#include "engine/base/log.h"
#include "gateway/auth.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"
#include "gateway/watch/stats.h"
#include "storage/audit.h"

void api_audit(exchange *x, uint64_t tenant_id, const char *action, const char *object,
               const char *detail)
{
    err e;
    stats_event(process_of(x->app)->stats, "audit", action, tenant_id, object, detail,
                x->caller->key.id);
    if (audit_append(store_of(x->app), x->caller->key.id, tenant_id, action, object, detail, &e)) {
        log_error("gateway", "audit row of %s is missing: %s", action, e.msg);
    }
}

void api_audit_lockout(exchange *x, uint64_t tenant_id, const char *action, const char *object,
                       bool durable)
{
    if (durable) {
        api_audit(x, tenant_id, action, object, NULL);
        return;
    }
    stats_event(process_of(x->app)->stats, "audit", action, tenant_id, object, "not durable yet",
                x->caller->key.id);
    audit_post(store_of(x->app), x->caller->key.id, tenant_id, action, object,
               "{\"durable\":false}");
}
