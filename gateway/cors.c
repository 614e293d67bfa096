/* cors.c -- an origin is let in by its exact text, as browsers send it. */
#include "gateway/cors.h"

#include <stdbool.h>
#include <string.h>

enum { ORIGIN_MAX = 256 };

/* What Access-Control-Allow-Origin says; NULL: the asker is no page, or none that is let in. */
static const char *origin_of(const exchange *x, const char *origins)
{
    const char *origin = exchange_header(x, "Origin");
    if (!origin || !origins[0] || !origin[0] || strlen(origin) > ORIGIN_MAX) return NULL;
    if (strcmp(origins, "*") == 0) return "*";
    for (const char *p = origins; *p; p += strcspn(p, ", ")) {
        p += strspn(p, ", ");
        size_t n = strcspn(p, ", ");
        if (n > 0 && n == strlen(origin) && memcmp(p, origin, n) == 0) return origin;
    }
    return NULL;
}

void cors_allow(exchange *x, const char *origins)
{
    const char *origin = origin_of(x, origins);
    if (origins[0] && strcmp(origins, "*") != 0) exchange_add_header(x, "Vary", "Origin");
    if (!origin) return;
    exchange_add_header(x, "Access-Control-Allow-Origin", "%s", origin);
    exchange_add_header(x, "Access-Control-Expose-Headers",
                        "x-request-id, x-ignored-params, x-adapter-version, x-adapter-digest, "
                        "x-adapter-invoked, retry-after, retry-after-ms");
}

void cors_preflight(exchange *x, const char *origins, const char *methods)
{
    const char *headers = exchange_header(x, "Access-Control-Request-Headers");
    if (!origin_of(x, origins) || !exchange_header(x, "Access-Control-Request-Method")) return;
    exchange_add_header(x, "Access-Control-Allow-Methods", "%s", methods);
    if (headers) exchange_add_header(x, "Access-Control-Allow-Headers", "%s", headers);
    exchange_add_header(x, "Access-Control-Max-Age", "600");
}
