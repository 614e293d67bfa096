/* adapter_first.h -- an adapter that nobody has uploaded, fetched when it is first asked for.
 *
 * Where the operator gave a tenant a template ("hf://acme/{name}@main"), a name that the tenant has
 * no adapter of is put into it, and what lies there is published under the name.  One fetch for all
 * who ask: the first one makes it on its own thread, the others wait.  What failed is not tried
 * again for a while (sources.retry_after), and a tenant with too many such names is told that there
 * is no such adapter without a look.  Credentials are those that the tenant keeps
 * (rest/source_secret.h).
 *
 * Ownership: the server's.  Threads: workers; create and destroy apart.
 */
#ifndef GATEWAY_REST_ADAPTER_FIRST_H
#define GATEWAY_REST_ADAPTER_FIRST_H

#include <stdint.h>

#include "engine/base/err.h"
#include "gateway/http/exchange.h"

typedef struct firsts firsts;

err_code firsts_create(firsts **out, err *e);
void firsts_destroy(firsts *f); /* NULL is fine */

/* For a name that the caller's tenant may use and has not.
 *   ERR_NONE       look again
 *   ERR_NOT_FOUND  no template, not a plain name, or nothing there that can be served
 *   ERR_ELSEWHERE  on its way still, or the other server is away: again after *retry_ms */
err_code first_fetch(exchange *x, const char *name, int64_t until_us, int64_t *retry_ms, err *e);

#endif
