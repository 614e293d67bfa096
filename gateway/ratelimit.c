/* ratelimit.c -- OpenAI's headers that say what is left of limits, and Retry-After. */
#include "gateway/ratelimit.h"

#include <stdatomic.h>

#include "gateway/auth.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

void ratelimit_headers(exchange *x, limits *l, const limits_adapter *a)
{
    limits_view v;
    limits_look(l, &x->caller->key, &x->caller->tenant, a, &v);
    if (v.requests_limit > 0) {
        exchange_add_header(x, "x-ratelimit-limit-requests", "%lld", (long long)v.requests_limit);
        exchange_add_header(x, "x-ratelimit-remaining-requests", "%lld",
                            (long long)v.requests_left);
        exchange_add_header(x, "x-ratelimit-reset-requests", "%lldms",
                            (long long)v.requests_reset_ms);
    }
    if (v.tokens_limit > 0) {
        exchange_add_header(x, "x-ratelimit-limit-tokens", "%lld", (long long)v.tokens_limit);
        exchange_add_header(x, "x-ratelimit-remaining-tokens", "%lld", (long long)v.tokens_left);
        exchange_add_header(x, "x-ratelimit-reset-tokens", "%lldms", (long long)v.tokens_reset_ms);
    }
}

void ratelimit_refuse(exchange *x, const limits_refusal *why)
{
    atomic_fetch_add(&process_of(x->app)->count.rate_limited, 1);
    if (why->retry_ms >= 0)
        exchange_retry_after(x, why->retry_ms);
    else
        exchange_add_header(x, "x-should-retry", "false");
}

bool ratelimit_write(exchange *x)
{
    limits *l = tenants_of(x->app)->write_limits;
    key_info key = x->caller->key;
    tenant t = x->caller->tenant;
    limits_ticket ticket;
    limits_refusal why;
    key.max_concurrent = t.limits.max_concurrent = 0; /* those are of inference */
    if (limits_reserve(l, &key, &t, NULL, 0, 0, &ticket, &why)) {
        limits_settle(l, &ticket, 0, 0);
        return true;
    }
    ratelimit_refuse(x, &why);
    exchange_error(x, why.status, why.type, why.code, NULL, "%s", why.msg);
    return false;
}
