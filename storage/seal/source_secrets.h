/* source_secrets.h -- what tenants keep here for servers that their adapters are fetched from.
 *
 * One secret for a tenant and a host ("host", or "host:port" where it is not 443).  Its text is
 * sealed with the operator's key under both, so that a row of another tenant or host does not open.
 * A fleet shares the table: its nodes need one key.
 *
 * Threads: any thread.
 */
#ifndef STORAGE_SEAL_SOURCE_SECRETS_H
#define STORAGE_SEAL_SOURCE_SECRETS_H

#include <stddef.h>
#include <stdint.h>

#include "storage/seal/seal.h"
#include "storage/store.h"

enum {
    SOURCE_SECRET_HOST_MAX = 264,
    SOURCE_SECRET_TEXT_MAX = 16384,
    SOURCE_SECRETS_MAX = 100 /* of a tenant */
};

typedef struct source_secret_row {
    uint64_t tenant_id;
    char host[SOURCE_SECRET_HOST_MAX];
    char kind[16]; /* what may be shown of it */
    int64_t created_wall_us;
} source_secret_row;

/* Keeps `text` in place of what was there; fills in the time.  ERR_LIMIT: the tenant has
 * SOURCE_SECRETS_MAX.  `key` must not be NULL. */
err_code source_secrets_put(store *st, seal_key key, source_secret_row *row, const char *text,
                            err *e);
/* ERR_NOT_FOUND; ERR_CONFLICT where it does not open: another key sealed it, or there is none. */
err_code source_secrets_get(store *st, seal_key key, uint64_t tenant_id, const char *host,
                            char text[SOURCE_SECRET_TEXT_MAX], err *e);
/* By host; malloced. */
err_code source_secrets_list(store *st, uint64_t tenant_id, source_secret_row **out, size_t *n,
                             err *e);
/* host NULL: all of the tenant's, which may be none; else ERR_NOT_FOUND. */
err_code source_secrets_drop(store *st, uint64_t tenant_id, const char *host, err *e);

#endif
