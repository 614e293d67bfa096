/* keys.h -- API keys: made once, shown once, kept only as SHA-256.
 *
 *   lk_ + public id (10) + "_" + 256 random bits in base62 (43) + CRC-32 in base62 (6)
 *
 * The checksum lets scanners and typing errors be told apart from guesses before any lookup.
 * keys_check() runs on every request and reads memory alone.
 * Threads: any thread.
 */
#ifndef STORAGE_KEYS_H
#define STORAGE_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/store.h"
#include "storage/tenants.h"

enum {
    KEY_PUBLIC_LEN = 10,
    KEY_TEXT_LEN = 3 + KEY_PUBLIC_LEN + 1 + 43 + 6, /* 63 */
    KEY_NAME_MAX = 64,
    KEY_SECRETS_MAX = 4 /* live at once, for rotation */
};

typedef enum {
    SCOPE_INFERENCE = 1,
    SCOPE_ADAPTERS_READ = 2,
    SCOPE_ADAPTERS_WRITE = 4,
    SCOPE_ADMIN = 8,       /* the admin listener; such a key has no tenant */
    SCOPE_ADMIN_READ = 16, /* the same, but only to look */
    SCOPE_ALL = 31
} key_scope;

/* "inference", "adapters.read", "adapters.write", "admin", "admin.read"; NULL for anything else. */
const char *scope_name(key_scope one);
/* 0 for an unknown name. */
unsigned scope_from_name(const char *name);

typedef struct key_info {
    uint64_t id;
    uint64_t tenant_id; /* 0: the operator's own key */
    char public_id[KEY_PUBLIC_LEN + 1];
    char name[KEY_NAME_MAX + 1]; /* for people; printable UTF-8 */
    unsigned scopes;
    int64_t requests_per_minute, tokens_per_minute, max_concurrent; /* 0: only the tenant's */
    char networks[NETWORKS_MAX]; /* CIDR blocks of its clients, comma-separated; empty: all */
    int64_t expires_wall_us;     /* 0: never */
    int64_t created_wall_us, revoked_wall_us; /* revoked 0: live */
    int64_t last_used_wall_us;                /* within a minute; 0: never */
    int n_secrets;                            /* live ones */
} key_info;

/* Makes a key from want's tenant_id, name, scopes, limits, networks, expiry.  The text
 * appears here and never again.  `out` may be NULL.  ERR_NOT_FOUND: no such tenant;
 * ERR_INPUT: no or mixed-up scopes. */
err_code keys_create(store *st, const key_info *want, char text[KEY_TEXT_LEN + 1], key_info *out,
                     err *e);

/* A key's text that no store knows yet, for keys_adopt(). */
void keys_make_text(char text[KEY_TEXT_LEN + 1]);
/* As keys_create(), for a text that was made elsewhere.  ERR_INPUT: it is not written as a key is;
 * ERR_EXISTS: a key has its public id. */
err_code keys_adopt(store *st, const key_info *want, const char *text, key_info *out, err *e);

/* Who holds this text?  ERR_DENIED with the same sentence for malformed, unknown, wrong and revoked
 * keys; ERR_EXPIRED and ERR_SUSPENDED (the tenant is disabled) only after the secret has matched.
 * `t_out` (may be NULL) is the tenant, zeroed for an operator's key.  Notes the use. */
err_code keys_check(store *st, const char *text, size_t len, key_info *out, tenant *t_out, err *e);

err_code keys_get(store *st, uint64_t key_id, key_info *out, err *e);
#define KEYS_OF_ALL UINT64_MAX

/* Keys of one tenant (0: the operator's; KEYS_OF_ALL), revoked ones too, by id.  *out is
 * malloced. */
err_code keys_list(store *st, uint64_t tenant_id, key_info **out, size_t *n, err *e);

/* One more secret under the same public id.  The older ones stay valid until `old_until_wall_us`
 * (0: for ever).  ERR_LIMIT at KEY_SECRETS_MAX live ones. */
err_code keys_rotate(store *st, uint64_t key_id, int64_t old_until_wall_us,
                     char text[KEY_TEXT_LEN + 1], err *e);

/* Replaces name, limits, networks and expiry of the key want->id; `was`: what `want` was made from,
 * so that of two who change different things neither undoes the other's.  ERR_CONFLICT: that stands
 * there no more, or it is revoked.  `out` may be NULL. */
err_code keys_update(store *st, const key_info *was, const key_info *want, key_info *out, err *e);

/* All secrets of the key are void at once, whatever the disk says (storage/lockouts.h).  *durable
 * (may be NULL): it is on the disk, too; else the store goes on trying. */
err_code keys_revoke(store *st, uint64_t key_id, bool *durable, err *e);

#endif
