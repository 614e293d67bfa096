/* tenants.h -- who may use this server, and how much of it.
 *
 * Reads come from memory and never touch the disk; writes are durable when the call returns.
 * Limits are only kept here; the gateway enforces them.
 * Threads: any thread.
 */
#ifndef STORAGE_TENANTS_H
#define STORAGE_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "storage/store.h"

enum { TENANT_NAME_MAX = 64, TENANT_LIST_MAX = 512, CLASS_NAME_MAX = 31, NETWORKS_MAX = 1024 };

/* What one tenant may use; 0 means no limit in every field. */
typedef struct tenant_limits {
    int64_t requests_per_minute, tokens_per_minute;
    int64_t max_concurrent, max_queued;
    int64_t tokens_per_day, tokens_per_month; /* UTC days and months; prompt + output */
    int64_t cost_per_day, cost_per_month;     /* micros (storage/price.h) */
    int64_t max_adapters;                     /* names, not versions */
    int64_t max_adapter_bytes;                /* files of all versions together */
} tenant_limits;

typedef struct tenant {
    uint64_t id;
    char name[TENANT_NAME_MAX + 1]; /* [a-z0-9][a-z0-9._-]{0,63}, unique */
    bool disabled;
    double weight;                          /* share in fair queueing; 1 is normal */
    char default_class[CLASS_NAME_MAX + 1]; /* empty: the server's default */
    char classes[TENANT_LIST_MAX];          /* allowed, comma-separated; empty: all */
    char models[TENANT_LIST_MAX];           /* allowed model names, comma-separated; empty: all */
    char targets[TENANT_LIST_MAX]; /* its own in some classes (storage/targets.h); empty: none */
    char source[TENANT_LIST_MAX];  /* template of where its adapters are; empty: nowhere else */
    char networks[NETWORKS_MAX];   /* CIDR blocks of its clients, comma-separated; empty: all */
    tenant_limits limits;
    uint64_t generation; /* raised by each change */
    int64_t created_wall_us, updated_wall_us;
} tenant;

/* A valid tenant or adapter name? */
bool name_valid(const char *name);

/* Creates from want's name, weight (0: 1), classes, models, limits; the rest is set
 * here.  ERR_INPUT on a bad name or negative limit, ERR_EXISTS when the name is
 * taken.  `out` may be NULL. */
err_code tenants_create(store *st, const tenant *want, tenant *out, err *e);

/* Copies a tenant, from memory: no disk is read. ERR_NOT_FOUND. Any thread. */
err_code tenants_get(store *st, uint64_t id, tenant *out, err *e);

/* The same by name. */
err_code tenants_find(store *st, const char *name, tenant *out, err *e);

/* Counts the changes of tenants since the start; never 0. */
uint64_t tenants_changes(store *st);
/* Tenants with an id above `after_id`, by id; at most `limit` (0: all).  *out is malloced. */
err_code tenants_list(store *st, uint64_t after_id, size_t limit, tenant **out, size_t *n, err *e);

/* Replaces all settings of t->id (the name too).  If t->generation is not 0 it must match:
 * ERR_CONFLICT else.  `out` may be NULL.  Disabling is in force at once, whatever the disk says
 * (storage/lockouts.h): *durable (may be NULL) is false where that is not on the disk yet and
 * nothing else was to be changed.  An error then is about the rest. */
err_code tenants_update(store *st, const tenant *t, tenant *out, bool *durable, err *e);

/* Takes the tenant out of use: disabled, all its keys revoked.  Usage and audit rows stay.  In
 * force at once; *durable as above. */
err_code tenants_disable(store *st, uint64_t id, bool *durable, err *e);

/* True if `item` stands in the comma-separated `list`, or the list is empty. */
bool list_allows(const char *list, const char *item);

#endif
