/* inplace.h -- a tree of adapter folders, registered where it lies.
 *
 * For operators with thousands of adapters on a disk that the server can read: nothing is
 * copied, each folder's content is validated and hashed, and <dir>/adapters/<digest> becomes a
 * link to it.  The tree stays the operator's: lorad never writes there.  A file that is changed
 * later is found out by its digest when it is loaded, and refused; registering the tree again
 * publishes it as a new version.
 *
 * Threads: any thread; reads every file whole, so it takes its time.
 */
#ifndef ADAPTERS_RESIDENCY_INPLACE_H
#define ADAPTERS_RESIDENCY_INPLACE_H

#include "adapters/store/publish.h"

enum { INPLACE_DEPTH_MAX = 8 };

typedef struct inplace_totals {
    size_t n_registered, n_unchanged, n_refused;
} inplace_totals;

/* Called for each folder; `why` NULL: published as `v`.  `path` is relative to the tree. */
typedef void (*inplace_seen)(void *self, const char *path, const adapter_version *v, bool existed,
                             const err *why);

/* Every folder below `path` with an adapter_config.json becomes an adapter of o->tenant_id (o->name
 * is ignored); its name is its path, in lower case, with '-' for all that a name may not hold.
 * Links are not followed, names that begin with a dot are left out.
 *   roots       directories, comma-separated, in one of which `path` must lie
 *   ERR_DENIED  it does not;  ERR_NOT_FOUND  it is not there
 * A folder that is refused is counted and told; the others go on. */
err_code inplace_register(const upload_env *env, const char *roots, const char *path,
                          const publish_options *o, inplace_seen seen, void *self,
                          inplace_totals *out, err *e);

#endif
