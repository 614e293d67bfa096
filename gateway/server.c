/* server.c -- what handlers share: the class of a request, when to come back, usage, quotas. */
#include "gateway/server.h"

#include <stdio.h>
#include <string.h>

seal_key server_seal_key(const server *s)
{
    return s->is_sealed ? s->key : NULL;
}

int server_class_of(const config *c, const tenant *t, const char *tier, char *reason, size_t cap)
{
    int i = class_of_tier(c, tier ? tier : t->default_class);
    if (i < 0 && tier) {
        int n = snprintf(reason, cap, "'service_tier' must be auto, a class or a tier of one:");
        for (i = 0; i < c->n_classes && n >= 0 && (size_t)n < cap; i++)
            n += snprintf(reason + n, cap - (size_t)n, " %s", c->classes[i].name);
        return -1;
    }
    if (i < 0)
        i = class_of_name(c,
                          c->classes_default); /* it has none of its own, or one that is no more */
    if (!list_allows(t->classes, c->classes[i].name)) {
        if (!tier) { /* the tenant's first allowed class stands in for the server's default */
            for (int k = c->n_classes - 1; k >= 0; k--) {
                if (list_allows(t->classes, c->classes[k].name)) return k;
            }
        }
        snprintf(reason, cap, "this tenant may not use the class '%s'", c->classes[i].name);
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

int64_t server_retry_after_ms(server *s, const request *rq)
{
    int64_t ms = sched_retry_us(s->sched, rq) / 1000;
    return ms < 250 ? 250 : ms > 60000 ? 60000 : ms;
}

void server_count_usage(server *s, const usage_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        atomic_fetch_add(&s->count.prompt_tokens, rows[i].prompt_tokens);
        atomic_fetch_add(&s->count.cached_tokens, rows[i].cached_tokens);
        atomic_fetch_add(&s->count.output_tokens, rows[i].output_tokens);
    }
}

int64_t server_tenant_bytes(const exchange *x)
{
    int64_t said = x->conf->adapters_tenant_bytes;
    return said ? said : x->server->tenant_share;
}

storeroom_quota server_quota(const exchange *x, const tenant *t)
{
    int64_t own = t->limits.max_adapter_bytes;
    return (storeroom_quota){.bytes = own, .share = own > 0 ? 0 : server_tenant_bytes(x)};
}

upload_env server_upload(const exchange *x)
{
    upload_env env = x->server->upload;
    env.max_bytes = (uint64_t)x->conf->adapters_max_upload;
    return env;
}
