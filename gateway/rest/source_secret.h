/* source_secret.h -- a tenant's credentials for the servers that adapters are fetched from.
 *
 * {"bearer"}, {"username", "password"} or {"access_key_id", "secret_access_key",
 * "session_token"?}: in the body of a call, or kept here for a host and used where a call brings
 * none.  What is kept is sealed with the operator's key (responses.key_file) and never shown.
 *
 * Threads: workers.
 */
#ifndef GATEWAY_REST_SOURCE_SECRET_H
#define GATEWAY_REST_SOURCE_SECRET_H

#include <cjson/cJSON.h>

#include "gateway/fetch/fetch.h"
#include "gateway/tenant_parts.h"

/* Borrows from `c`; NULL or null: none.  ERR_INPUT: what is wrong with it. */
err_code source_secret_read(const cJSON *c, fetch_secret *out, err *e);
/* Is it of the kind that this source takes? */
err_code source_secret_fits(const source *where, const fetch_secret *s, err *e);

/* What the tenant keeps for the source's host; none: all NULL.  *tree holds it until
 * source_secret_forget().  ERR_CONFLICT where it does not open, or is of another kind. */
err_code source_secret_kept(tenant_parts *parts, uint64_t tenant_id, const source *where,
                            fetch_secret *out, cJSON **tree, err *e);
void source_secret_forget(cJSON *tree); /* NULL is fine */

#endif
