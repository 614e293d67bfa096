/* cors.h -- pages of other origins, where the operator lets browsers in (server.cors_origins).
 *
 * Threads: workers.
 */
#ifndef GATEWAY_CORS_H
#define GATEWAY_CORS_H

#include "gateway/http/exchange.h"

/* The headers that let the asking page read the answer, if its origin is one of `origins` ("*":
 * any; else origins with spaces or commas between them; "": none).  Before the answer. */
void cors_allow(exchange *x, const char *origins);

/* To OPTIONS from such a page: what it may ask.  `methods`: those of the path. */
void cors_preflight(exchange *x, const char *origins, const char *methods);

#endif
