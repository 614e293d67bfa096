/* auth.h -- who asks, and may they: from header to key, tenant and scope.
 *
 * Keys come as "Authorization: Bearer ..." (the scheme in any case), or "api-key", "x-api-key".
 * The answer to every key that is not good is the same 401.  Threads: any thread.
 */
#ifndef GATEWAY_AUTH_H
#define GATEWAY_AUTH_H

#include <stdbool.h>

#include "gateway/http/exchange.h"
#include "storage/keys.h"
#include "storage/tenants.h"

/* Who asks; all zero where nobody has to say. */
typedef struct caller {
    key_info key;  /* zero id: none */
    tenant tenant; /* zero id: the operator's key */
} caller;

/* Fills *x->caller.  False: answered with 400, 401 or 403. */
bool auth_check(exchange *x, unsigned scope);

/* ERR_SUSPENDED, ERR_DENIED: auth_check() would refuse by now; for bodies that take long.  `whole`:
 * the key is looked at, too, which takes longer. */
err_code auth_still(const exchange *x, bool whole, err *e);

/* The same for who asked before, in a batch or in the background: as tenant and key are now.
 * ERR_SUSPENDED, ERR_DENIED; else storage fails. */
err_code auth_again(store *st, uint64_t tenant_id, uint64_t key_id, caller *out, err *e);

/* May this key use that model name at all (the tenant's list of models)? */
bool auth_may_use_model(const exchange *x, const char *name);

#endif
