/* route.h -- which function answers which method and path, and for whom.
 *
 * Patterns are literal segments and {} for one segment; the rest of the path matches {*}.  Segments
 * are percent-decoded one by one; %00, %2f, %5c, "." and ".." are refused.  /v1/x is also served
 * as /x.  A path that exists with another method gives 405 and Allow; OPTIONS is answered for all.
 * Threads: any thread.
 */
#ifndef GATEWAY_ROUTE_H
#define GATEWAY_ROUTE_H

#include "gateway/http/exchange.h"

typedef void route_fn(exchange *x);

typedef struct route {
    const char *method, *pattern;
    unsigned scope; /* key_scope bits, any of which is enough; 0: open to all */
    route_fn *fn;
} route;

/* The tables, by plane; end with a NULL method. */
extern const route routes_inference[], routes_admin[], routes_metrics[];

/* Finds, authenticates, calls; always leaves the exchange answered. */
void route_dispatch(exchange *x);

/* Pattern against path; fills x->param.  For tests. */
bool route_match(exchange *x, const char *pattern, const char *path);

#endif
