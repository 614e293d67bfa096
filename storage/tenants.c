/* tenants.c -- the tenants' table and its copy in memory.
 *
 * The copy is an array of pointers in order of id (ids only grow, so a new tenant goes to the end).
 * `change` keeps writers one after another, from their read of the old row to the update of the
 * copy; readers take `lock` alone and never wait for the disk.
 */
#include "storage/tenants.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "storage/lockouts.h"
#include "storage/store_sql.h"

struct tenant_cache {
    lock change; /* held over a write to the disk */
    rwlock lock; /* guards all below */
    tenant **row;
    size_t n, cap;
    uint64_t changes;
};

#define COLUMNS                                                                                   \
    "id, name, disabled, weight, default_class, classes, models, rpm, tpm, max_concurrent,"       \
    " max_queued, tokens_per_day, tokens_per_month, max_adapters, max_adapter_bytes, generation," \
    " created_us, updated_us, networks, targets, source, cost_per_day, cost_per_month"

bool name_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n > TENANT_NAME_MAX) return false;
    if (strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != n) return false;
    return name[0] != '.' && name[0] != '_' && name[0] != '-';
}

bool list_allows(const char *list, const char *item)
{
    size_t n = strlen(item);
    bool empty = true;
    for (const char *p = list; *p != 0;) {
        while (*p == ' ' || *p == ',') p++;
        size_t len = strcspn(p, ",");
        size_t trimmed = len;
        while (trimmed > 0 && p[trimmed - 1] == ' ') trimmed--;
        if (trimmed > 0) empty = false;
        if (trimmed == n && n > 0 && memcmp(p, item, n) == 0) return true;
        p += len;
    }
    return empty;
}

/* ---- memory ---------------------------------------------------------------------- */

/* Index of the first row with an id >= `id`; `lock` is held. */
static size_t lower_bound(const struct tenant_cache *tc, uint64_t id)
{
    size_t lo = 0, hi = tc->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (tc->row[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static tenant *find_id(const struct tenant_cache *tc, uint64_t id)
{
    size_t i = lower_bound(tc, id);
    return i < tc->n && tc->row[i]->id == id ? tc->row[i] : NULL;
}

static tenant *find_name(const struct tenant_cache *tc, const char *name)
{
    for (size_t i = 0; i < tc->n; i++)
        if (strcmp(tc->row[i]->name, name) == 0) return tc->row[i];
    return NULL;
}

/* The memory of one more row, before it is written: what is on the disk must not fail to be here.
 * `change` is held (or nobody else is there yet), so the room stays. */
static tenant *cache_reserve(struct tenant_cache *tc)
{
    rwlock_write(&tc->lock);
    if (tc->n == tc->cap) {
        size_t cap = tc->cap ? tc->cap * 2 : 64;
        tenant **row = realloc(tc->row, cap * sizeof(*row));
        if (row) {
            tc->row = row;
            tc->cap = cap;
        }
    }
    tenant *fresh = tc->n < tc->cap ? malloc(sizeof(*fresh)) : NULL;
    rwlock_release(&tc->lock);
    return fresh;
}

/* Takes over `fresh`, from cache_reserve(), for a row that is new.  Ids of other nodes may be
 * below those that are there. */
static void cache_put(struct tenant_cache *tc, const tenant *t, tenant *fresh)
{
    rwlock_write(&tc->lock);
    assert(!find_id(tc, t->id) && tc->n < tc->cap); /* cache_reserve() has made the room */
    *fresh = *t;
    size_t at = lower_bound(tc, t->id);
    assert(at == tc->n || tc->row[at]->id > t->id); /* sorted */
    memmove(tc->row + at + 1, tc->row + at, (tc->n - at) * sizeof(*tc->row));
    tc->row[at] = fresh;
    tc->n++;
    tc->changes++;
    rwlock_release(&tc->lock);
}

/* Shows what was written over the row of `was`.  A lock-out that came meanwhile stays in force; the
 * database has it written after this, or has refused this. */
static void cache_replace(struct tenant_cache *tc, const tenant *was, tenant *t)
{
    rwlock_write(&tc->lock);
    tenant *row = find_id(tc, t->id);
    assert(row); /* tenants are never taken out */
    assert(t->generation > was->generation);
    if (row->generation != was->generation) {
        t->disabled = true;
        t->generation++;
    }
    *row = *t;
    tc->changes++;
    rwlock_release(&tc->lock);
}

static err_code changed_meanwhile(err *e)
{
    return err_set(e, ERR_CONFLICT, "the tenant was changed meanwhile: read it again");
}

/* Disables the copy; if_generation 0: whatever it is. */
static err_code cache_disable(struct tenant_cache *tc, uint64_t id, uint64_t if_generation,
                              int64_t now_wall_us, err *e)
{
    err_code rc = ERR_NONE;
    rwlock_write(&tc->lock);
    tenant *row = find_id(tc, id);
    if (!row) {
        rc = err_set(e, ERR_NOT_FOUND, "no such tenant");
    } else if (if_generation != 0 && if_generation != row->generation) {
        rc = changed_meanwhile(e);
    } else if (!row->disabled) {
        row->disabled = true;
        row->generation++;
        row->updated_wall_us = now_wall_us;
        tc->changes++;
    }
    rwlock_release(&tc->lock);
    return rc;
}

void tenant_cache_disable(store *st, uint64_t tenant_id, int64_t now_wall_us)
{
    (void)cache_disable(store_tenants(st), tenant_id, 0, now_wall_us, NULL);
}

static void read_row(sql *q, tenant *t)
{
    memset(t, 0, sizeof(*t));
    t->id = (uint64_t)sql_col_int(q, 0);
    sql_col_text(q, 1, t->name, sizeof t->name);
    t->disabled = sql_col_int(q, 2) != 0;
    t->weight = sql_col_real(q, 3);
    sql_col_text(q, 4, t->default_class, sizeof t->default_class);
    sql_col_text(q, 5, t->classes, sizeof t->classes);
    sql_col_text(q, 6, t->models, sizeof t->models);
    tenant_limits *l = &t->limits;
    l->requests_per_minute = sql_col_int(q, 7);
    l->tokens_per_minute = sql_col_int(q, 8);
    l->max_concurrent = sql_col_int(q, 9);
    l->max_queued = sql_col_int(q, 10);
    l->tokens_per_day = sql_col_int(q, 11);
    l->tokens_per_month = sql_col_int(q, 12);
    l->max_adapters = sql_col_int(q, 13);
    l->max_adapter_bytes = sql_col_int(q, 14);
    t->generation = (uint64_t)sql_col_int(q, 15);
    t->created_wall_us = sql_col_int(q, 16);
    t->updated_wall_us = sql_col_int(q, 17);
    sql_col_text(q, 18, t->networks, sizeof t->networks);
    sql_col_text(q, 19, t->targets, sizeof t->targets);
    sql_col_text(q, 20, t->source, sizeof t->source);
    l->cost_per_day = sql_col_int(q, 21);
    l->cost_per_month = sql_col_int(q, 22);
}

err_code tenant_cache_open(struct tenant_cache **out, sqlite3 *db, err *e)
{
    struct tenant_cache *tc = calloc(1, sizeof(*tc));
    if (!tc) return err_set(e, ERR_NOMEM, "out of memory");
    lock_init(&tc->change, LOCK_TENANTS_CHANGE);
    rwlock_init(&tc->lock, LOCK_TENANTS);
    *out = tc;
    sql q;
    sql_begin(&q, db, "SELECT " COLUMNS " FROM tenants ORDER BY id");
    err_code rc = ERR_NONE;
    while (!rc && sql_row(&q)) {
        tenant t;
        read_row(&q, &t);
        tenant *fresh = cache_reserve(tc);
        if (fresh)
            cache_put(tc, &t, fresh);
        else
            rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    err_code end = sql_end(&q, "read the tenants", rc == ERR_NONE ? e : NULL);
    return rc != ERR_NONE ? rc : end;
}

err_code tenant_cache_refresh(store *st, uint64_t tenant_id, err *e)
{
    struct tenant_cache *tc = store_tenants(st);
    tenant t, *row = NULL;
    lock_take(&tc->change); /* none of this node's changes is between its write and its show */
    sqlite3 *db = store_read_begin(st);
    sql q;
    sql_begin(&q, db, "SELECT " COLUMNS " FROM tenants WHERE id=?");
    sql_int(&q, (int64_t)tenant_id);
    bool there = sql_row(&q);
    if (there) read_row(&q, &t);
    err_code rc = sql_end(&q, "read the tenant", e);
    store_read_end(st, db);
    bool locked_out = store_locked_out(st, tenant_id);
    tenant *fresh = !rc && there ? cache_reserve(tc) : NULL;
    if (!rc && there && !fresh) rc = err_set(e, ERR_NOMEM, "out of memory");
    if (fresh) {
        rwlock_write(&tc->lock);
        row = find_id(tc, tenant_id);
        t.disabled |= locked_out;
        if (row) *row = t;
        if (row) tc->changes++;
        rwlock_release(&tc->lock);
        if (row)
            free(fresh);
        else
            cache_put(tc, &t, fresh);
        store_lock_out_again(st);
    }
    lock_release(&tc->change);
    return rc;
}

void tenant_cache_close(struct tenant_cache *tc)
{
    if (!tc) return;
    for (size_t i = 0; i < tc->n; i++) free(tc->row[i]);
    free(tc->row);
    rwlock_free(&tc->lock);
    lock_free(&tc->change);
    free(tc);
}

/* ---- disk ------------------------------------------------------------------------- */

static err_code write_row(sqlite3 *db, void *arg, err *e)
{
    const tenant *t = arg;
    const tenant_limits *l = &t->limits;
    sql q;
    sql_begin(&q, db,
              "INSERT INTO tenants(" COLUMNS
              ") VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
              " ON CONFLICT(id) DO UPDATE SET name=excluded.name, disabled=excluded.disabled,"
              " weight=excluded.weight, default_class=excluded.default_class,"
              " classes=excluded.classes, models=excluded.models, rpm=excluded.rpm,"
              " tpm=excluded.tpm, max_concurrent=excluded.max_concurrent,"
              " max_queued=excluded.max_queued, tokens_per_day=excluded.tokens_per_day,"
              " tokens_per_month=excluded.tokens_per_month, max_adapters=excluded.max_adapters,"
              " max_adapter_bytes=excluded.max_adapter_bytes, generation=excluded.generation,"
              " updated_us=excluded.updated_us, networks=excluded.networks,"
              " targets=excluded.targets, source=excluded.source,"
              " cost_per_day=excluded.cost_per_day, cost_per_month=excluded.cost_per_month"
              " WHERE tenants.generation < excluded.generation");
    sql_int(&q, (int64_t)t->id);
    sql_text(&q, t->name);
    sql_int(&q, t->disabled);
    sql_real(&q, t->weight);
    sql_text(&q, t->default_class);
    sql_text(&q, t->classes);
    sql_text(&q, t->models);
    sql_int(&q, l->requests_per_minute);
    sql_int(&q, l->tokens_per_minute);
    sql_int(&q, l->max_concurrent);
    sql_int(&q, l->max_queued);
    sql_int(&q, l->tokens_per_day);
    sql_int(&q, l->tokens_per_month);
    sql_int(&q, l->max_adapters);
    sql_int(&q, l->max_adapter_bytes);
    sql_int(&q, (int64_t)t->generation);
    sql_int(&q, t->created_wall_us);
    sql_int(&q, t->updated_wall_us);
    sql_text(&q, t->networks);
    sql_text(&q, t->targets);
    sql_text(&q, t->source);
    sql_int(&q, l->cost_per_day);
    sql_int(&q, l->cost_per_month);
    err_code rc = sql_done(&q, "write the tenant", e);
    if (!rc && sqlite3_changes(db) == 0) rc = changed_meanwhile(e);
    return rc;
}

/* ---- API -------------------------------------------------------------------------- */

static bool printable(const char *s)
{
    for (; *s != 0; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) return false;
    return true;
}

static err_code check(const tenant *t, err *e)
{
    if (memchr(t->name, 0, sizeof t->name) == NULL || !name_valid(t->name))
        return err_set(e, ERR_INPUT,
                       "a tenant's name is 1 to %d of a-z 0-9 . _ - and starts with a letter or "
                       "digit",
                       TENANT_NAME_MAX);
    if (!isfinite(t->weight) || t->weight <= 0 || t->weight > 1000)
        return err_set(e, ERR_INPUT, "a tenant's weight is above 0 and at most 1000");
    if (!printable(t->default_class) || !printable(t->classes) || !printable(t->models) ||
        !printable(t->networks) || !printable(t->targets) || !printable(t->source))
        return err_set(e, ERR_INPUT,
                       "classes, models, networks, targets and source hold no control characters");
    const tenant_limits *l = &t->limits;
    const int64_t all[] = {l->requests_per_minute, l->tokens_per_minute, l->max_concurrent,
                           l->max_queued,          l->tokens_per_day,    l->tokens_per_month,
                           l->cost_per_day,        l->cost_per_month,    l->max_adapters,
                           l->max_adapter_bytes};
    for (size_t i = 0; i < sizeof all / sizeof(*all); i++)
        if (all[i] < 0) return err_set(e, ERR_INPUT, "a limit is 0 (none) or more");
    return ERR_NONE;
}

static err_code name_taken(err *e, const char *name)
{
    return err_set(e, ERR_EXISTS, "a tenant named '%s' exists already", name);
}

err_code tenants_create(store *st, const tenant *want, tenant *out, err *e)
{
    struct tenant_cache *tc = store_tenants(st);
    tenant t = *want;
    if (t.weight == 0) t.weight = 1;
    err_code rc = check(&t, e);
    if (rc) return rc;
    lock_take(&tc->change);
    t.id = store_next_id(st);
    t.disabled = false;
    t.generation = 1;
    t.created_wall_us = t.updated_wall_us = clock_wall_us();
    tenant other, *fresh = NULL;
    if (tenants_find(st, t.name, &other, NULL) == ERR_NONE)
        rc = name_taken(e, t.name);
    else if ((fresh = cache_reserve(tc)) == NULL)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    else
        rc = store_write(st, write_row, &t, e);
    if (!rc)
        cache_put(tc, &t, fresh);
    else
        free(fresh);
    lock_release(&tc->change);
    if (!rc && out) *out = t;
    return rc;
}

err_code tenants_get(store *st, uint64_t id, tenant *out, err *e)
{
    struct tenant_cache *tc = store_tenants(st);
    rwlock_read(&tc->lock);
    const tenant *t = find_id(tc, id);
    if (t) *out = *t;
    rwlock_release(&tc->lock);
    return t != NULL ? ERR_NONE : err_set(e, ERR_NOT_FOUND, "no such tenant");
}

err_code tenants_find(store *st, const char *name, tenant *out, err *e)
{
    struct tenant_cache *tc = store_tenants(st);
    rwlock_read(&tc->lock);
    const tenant *t = find_name(tc, name);
    if (t) *out = *t;
    rwlock_release(&tc->lock);
    return t != NULL ? ERR_NONE : err_set(e, ERR_NOT_FOUND, "no such tenant");
}

uint64_t tenants_changes(store *st)
{
    struct tenant_cache *tc = store_tenants(st);
    rwlock_read(&tc->lock);
    uint64_t n = tc->changes + 1;
    rwlock_release(&tc->lock);
    return n;
}

err_code tenants_list(store *st, uint64_t after_id, size_t limit, tenant **out, size_t *n, err *e)
{
    struct tenant_cache *tc = store_tenants(st);
    *out = NULL;
    *n = 0;
    rwlock_read(&tc->lock);
    size_t from = lower_bound(tc, after_id + 1);
    size_t count = tc->n - from;
    if (limit != 0 && count > limit) count = limit;
    tenant *list = calloc(count + 1, sizeof(*list));
    for (size_t i = 0; list != NULL && i < count; i++) list[i] = *tc->row[from + i];
    rwlock_release(&tc->lock);
    if (!list) return err_set(e, ERR_NOMEM, "out of memory");
    *out = list;
    *n = count;
    return ERR_NONE;
}

/* Do they differ in more than being disabled? */
static bool same_settings(const tenant *a, const tenant *b)
{
    const tenant_limits *x = &a->limits, *y = &b->limits;
    return strcmp(a->name, b->name) == 0 && a->weight == b->weight &&
           strcmp(a->default_class, b->default_class) == 0 && strcmp(a->classes, b->classes) == 0 &&
           strcmp(a->models, b->models) == 0 && strcmp(a->networks, b->networks) == 0 &&
           strcmp(a->targets, b->targets) == 0 && memcmp(x, y, sizeof(*x)) == 0;
}

/* Disables t->id as t->generation allows, before anything that may wait for the disk; *only: that
 * is all that was wanted.  Raises t->generation with the tenant's. */
static err_code suspend(store *st, tenant *t, bool *only, bool *durable, err *e)
{
    tenant old = {0};
    err_code rc = tenants_get(st, t->id, &old, e);
    *only = rc == ERR_NONE && t->disabled && same_settings(t, &old);
    if (rc || !t->disabled || (old.disabled && !*only)) return rc;
    lockout what = {LOCKOUT_SUSPEND, t->id, clock_wall_us()};
    rc = cache_disable(store_tenants(st), t->id, t->generation, what.wall_us, e);
    if (rc) return rc;
    *durable = store_lockout(st, &what);
    if (t->generation != 0 && !old.disabled) t->generation++;
    return ERR_NONE;
}

err_code tenants_update(store *st, const tenant *want, tenant *out, bool *durable, err *e)
{
    struct tenant_cache *tc = store_tenants(st);
    tenant t = *want, old, other;
    bool only = false, written = true;
    err_code rc = check(&t, e);
    if (!rc) rc = suspend(st, &t, &only, &written, e);
    if (durable) *durable = written;
    if (rc) return rc;
    if (only) return out != NULL ? tenants_get(st, t.id, out, e) : ERR_NONE;
    lock_take(&tc->change);
    rc = tenants_get(st, t.id, &old, e);
    if (!rc && t.generation != 0 && t.generation != old.generation) rc = changed_meanwhile(e);
    if (!rc && tenants_find(st, t.name, &other, NULL) == ERR_NONE && other.id != t.id)
        rc = name_taken(e, t.name);
    if (!rc) {
        t.generation = old.generation + 1;
        t.created_wall_us = old.created_wall_us;
        t.updated_wall_us = clock_wall_us();
        rc = store_write(st, write_row, &t, e);
    }
    if (!rc) cache_replace(tc, &old, &t);
    lock_release(&tc->change);
    if (!rc && durable) *durable = true; /* the row holds all of it */
    if (!rc && out) *out = t;
    return rc;
}

err_code tenants_disable(store *st, uint64_t id, bool *durable, err *e)
{
    lockout what = {LOCKOUT_TENANT, id, clock_wall_us()};
    err_code rc = cache_disable(store_tenants(st), id, 0, what.wall_us, e);
    if (rc) return rc;
    key_cache_revoke_tenant(st, id, what.wall_us);
    bool written = store_lockout(st, &what);
    if (durable) *durable = written;
    return ERR_NONE;
}
