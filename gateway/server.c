/* server.c -- what handlers share: the class of a request, when to come back, usage, quotas. */
#include "gateway/server.h"

#include <stdio.h>
#include <string.h>

engine_parts *engine_of(const server *s)
{
    return (engine_parts *)&s->engine;
}

adapter_parts *adapters_of(const server *s)
{
    return (adapter_parts *)&s->adapters;
}

tenant_parts *tenants_of(const server *s)
{
    return (tenant_parts *)&s->tenants;
}

process_parts *process_of(const server *s)
{
    return (process_parts *)&s->process;
}

store *store_of(const server *s)
{
    return s->tenants.store;
}

registry *registry_of(const server *s)
{
    return s->adapters.registry;
}

residency *residency_of(const server *s)
{
    return s->adapters.residency;
}

sched *sched_of(const server *s)
{
    return s->engine.sched;
}

seal_key tenants_seal_key(const tenant_parts *parts)
{
    return parts->is_sealed ? parts->key : NULL;
}

int tenant_class(const config_classes *c, const tenant *t, const char *tier, char *reason,
                 size_t cap)
{
    int i = class_of_tier(c, tier ? tier : t->default_class);
    if (i < 0 && tier) {
        int n = snprintf(reason, cap, "'service_tier' must be auto, a class or a tier of one:");
        for (i = 0; i < c->n && n >= 0 && (size_t)n < cap; i++)
            n += snprintf(reason + n, cap - (size_t)n, " %s", c->each[i].name);
        return -1;
    }
    if (i < 0)
        i = class_of_name(c, c->default_name); /* it has none of its own, or one that is no more */
    if (!list_allows(t->classes, c->each[i].name)) {
        if (!tier) { /* the tenant's first allowed class stands in for the server's default */
            for (int k = c->n - 1; k >= 0; k--) {
                if (list_allows(t->classes, c->each[k].name)) return k;
            }
        }
        snprintf(reason, cap, "this tenant may not use the class '%s'", c->each[i].name);
        return -1;
    }
    return i;
}

const char *moved_kv_name(int end)
{
#define MOVED_KV_WORD_(name, word) #word,
    static const char *const words[MOVED_KV_ENDS] = {MOVED_KV_LIST(MOVED_KV_WORD_)};
#undef MOVED_KV_WORD_
    return words[end];
}

int64_t engine_retry_after_ms(const engine_parts *parts, const request *rq)
{
    int64_t ms = sched_retry_us(parts->sched, rq) / 1000;
    return ms < 250 ? 250 : ms > 60000 ? 60000 : ms;
}

int64_t adapters_tenant_bytes(const exchange *x)
{
    int64_t said = x->conf->adapters.tenant_bytes;
    return said ? said : adapters_of(x->app)->tenant_share;
}

storeroom_quota adapters_quota(const exchange *x, const tenant *t)
{
    int64_t own = t->limits.max_adapter_bytes;
    return (storeroom_quota){.bytes = own, .share = own > 0 ? 0 : adapters_tenant_bytes(x)};
}

upload_env adapters_upload(const exchange *x)
{
    upload_env env = adapters_of(x->app)->upload;
    env.max_bytes = (uint64_t)x->conf->adapters.max_upload;
    return env;
}
