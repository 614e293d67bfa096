/* server.c -- what handlers share: the class of a request, when to come back, usage, quotas. */
#include "gateway/server.h"

#include <stdio.h>
#include <string.h>

int server_class_of(const server *s, const tenant *t, const char *tier, char *reason, size_t cap)
{
    int i = s->default_class;
    if (tier)
        i = class_of_tier(tier);
    else if (t->default_class[0])
        i = class_of_tier(t->default_class);
    if (i < 0) {
        snprintf(reason, cap,
                 "'service_tier' must be auto, priority, default or flex, or the "
                 "name of a class");
        return -1;
    }
    if (!list_allows(t->classes, s->classes[i].name)) {
        if (!tier) { /* the tenant's first allowed class stands in for the server's default */
            for (int k = SERVER_CLASSES - 1; k >= 0; k--) {
                if (list_allows(t->classes, s->classes[k].name)) return k;
            }
        }
        snprintf(reason, cap, "this tenant may not use the class '%s'", s->classes[i].name);
        return -1;
    }
    return i;
}

int64_t server_retry_after_ms(server *s, uint64_t tenant_id, int class, int n_prompt,
                              uint64_t adapter_id)
{
    int64_t late_us = sched_predict_ttft_us(s->sched, tenant_id, class, n_prompt, adapter_id);
    late_us -= class >= 0 ? s->classes[class].ttft_us : 0;
    int64_t ms = late_us / 1000;
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

storeroom_quota server_quota(const server *s, const tenant *t)
{
    int64_t own = t->limits.max_adapter_bytes;
    return (storeroom_quota){.bytes = own, .share = own > 0 ? 0 : s->tenant_bytes};
}
