/* audit.h -- who changed what: one row for every admin action and every change of an adapter.
 *
 * Append-only.  Detail is JSON without secrets: the caller leaves keys and bodies out.
 * Threads: any thread.
 */
#ifndef STORAGE_AUDIT_H
#define STORAGE_AUDIT_H

#include <stddef.h>
#include <stdint.h>

#include "storage/store.h"

enum { AUDIT_DETAIL_MAX = 1024 };

typedef struct audit_row {
    uint64_t id; /* time-ordered */
    int64_t wall_us;
    uint64_t actor_key_id; /* 0: the program itself (init, command line) */
    uint64_t tenant_id;    /* whose object; 0: the server's */
    char action[48];       /* "tenant.create", "key.revoke", "adapter.publish" */
    char object[192];      /* name or id */
    char detail[AUDIT_DETAIL_MAX];
} audit_row;

/* Durable when it returns.  `detail` may be NULL; a longer one is cut. */
err_code audit_append(store *st, uint64_t actor_key_id, uint64_t tenant_id, const char *action,
                      const char *object, const char *detail, err *e);

/* The same without waiting: durable with the next commit, in the order of the
 * calls.  For many at once. */
void audit_post(store *st, uint64_t actor_key_id, uint64_t tenant_id, const char *action,
                const char *object, const char *detail);

/* Newest first, with an id below `before_id` (0: from the newest), at most `limit`.
 * tenant_id 0: everything.  *out is malloced. */
err_code audit_list(store *st, uint64_t tenant_id, uint64_t before_id, size_t limit,
                    audit_row **out, size_t *n, err *e);

/* The same of one object, and of actions that begin with `prefix` ("adapter."). */
err_code audit_list_object(store *st, uint64_t tenant_id, const char *prefix, const char *object,
                           uint64_t before_id, size_t limit, audit_row **out, size_t *n, err *e);

/* Deletes the oldest rows that tenants' own keys have written, beyond the newest `most` of each
 * tenant, at most `limit` in one call.  Rows of operators' keys stay.  *n: deleted rows. */
err_code audit_prune(store *st, int64_t most, int64_t limit, int64_t *n, err *e);

#endif
