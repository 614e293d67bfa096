/* ratelimit.h -- what a client is told of its limits, for the SDKs' retry rules. */
#ifndef GATEWAY_RATELIMIT_H
#define GATEWAY_RATELIMIT_H

#include "gateway/http/exchange.h"
#include "gateway/limits.h"

/* x-ratelimit-*, of what has least left; `a` may be NULL. */
void ratelimit_headers(exchange *x, limits *l, const limits_adapter *a);

/* When to try again, or that it is not worth it; counts one more that was refused.
 * The answer is the caller's. */
void ratelimit_refuse(exchange *x, const limits_refusal *why);

/* One call that changes stored state, within the tenant's and the key's requests per minute, which
 * are counted apart from those of inference.  False: answered with 429. */
bool ratelimit_write(exchange *x);

#endif
