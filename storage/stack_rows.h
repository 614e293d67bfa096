/* stack_rows.h -- stacks that have a name: versions of a tenant's, each a short list of adapters.
 *
 * A version never changes: it names versions of adapters, not aliases.  A fleet shares the table.
 *
 * Threads: any thread.
 */
#ifndef STORAGE_STACK_ROWS_H
#define STORAGE_STACK_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "storage/store.h"
#include "storage/tenants.h"

enum { STACK_PARTS_TEXT = 1024, STACK_ROWS_MAX = 1000 /* versions of all names of a tenant */ };

typedef struct stack_row {
    uint64_t tenant_id;
    char name[TENANT_NAME_MAX + 1];
    int version;
    /* JSON: [{"name":"legal@7","scale":0.5}, ...], or
     * {"cascade":[{"name":"small@2","min_logprob":-0.5}, ..., {"name":"base"}]} */
    char parts[STACK_PARTS_TEXT];
    int64_t created_wall_us;
} stack_row;

/* Adds the name's next version: fills in row->version and the time.  ERR_LIMIT: the tenant has
 * STACK_ROWS_MAX. */
err_code stack_rows_add(store *st, stack_row *row, err *e);
/* version 0: the newest.  ERR_NOT_FOUND. */
err_code stack_rows_get(store *st, uint64_t tenant_id, const char *name, int version,
                        stack_row *out, err *e);
/* A name's versions, newest first; name NULL: the newest of each name.  Malloced. */
err_code stack_rows_list(store *st, uint64_t tenant_id, const char *name, stack_row **out,
                         size_t *n, err *e);
/* Deletes all versions of a name. ERR_NOT_FOUND: it has none. */
err_code stack_rows_drop(store *st, uint64_t tenant_id, const char *name, err *e);

#endif
