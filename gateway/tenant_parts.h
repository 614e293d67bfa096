/* tenant_parts.h -- what a server has for tenants: the database, limits, and keys for encryption.
 *
 * Ownership: start/parts.c makes and frees; handlers borrow.  Threads: read-only after the start;
 * what a pointer leads to says for itself.
 */
#ifndef GATEWAY_TENANT_PARTS_H
#define GATEWAY_TENANT_PARTS_H

#include "gateway/config/classes.h"
#include "gateway/inflight.h"
#include "gateway/limits.h"
#include "storage/seal/seal.h"
#include "storage/store.h"
#include "storage/tenants.h"

typedef struct server server;

typedef struct tenant_parts {
    store *store;
    limits *limits;
    limits *token_limits; /* of /tokenize and /detokenize: requests, counted apart */
    limits *write_limits; /* of calls that change stored state: requests, counted apart */
    inflight *inflight;
    bool is_sealed; /* what tenants store is encrypted with `key` */
    uint8_t key[SEAL_KEY_BYTES];
    uint8_t resume_key[SEAL_KEY_BYTES]; /* of tickets for streams: `key`, or this process's own */
} tenant_parts;

/* Those of `s`. */
tenant_parts *tenants_of(const server *s);

/* Short for tenants_of(s)->store. */
store *store_of(const server *s);

/* Class for a service_tier (NULL: the tenant's default): index, or -1 with the reason. */
int tenant_class(const config_classes *c, const tenant *t, const char *tier, char *reason,
                 size_t cap);

/* The key that encrypts what tenants store; NULL: it is not encrypted. */
seal_key tenants_seal_key(const tenant_parts *parts);

#endif
