/* adapter_rows.c -- adapters' names, versions and aliases in the database.
 *
 *   adapters            a tenant's name: last_version, generation, limits, description
 *   adapter_versions    1, 2, 3 ... of a name: digest of its files, sizes, state
 *   adapter_aliases     `default` and others: a version, and the previous one
 *   adapter_shares      other tenants that may use it
 *
 * Each function is one transaction (store_write()), and each checks its preconditions inside it,
 * because in a fleet another server may have changed the rows since they were read into memory.  A
 * change of versions or aliases raises `generation` by one, from the value that the caller saw
 * (bump()); otherwise it fails with ERR_STALE.  An alias is set only to a ready version, and a
 * version with an alias is not deleted.
 *
 * Version ids are never reused, because the engine identifies adapters by them: before rows are
 * deleted, the table high_water keeps the highest id.
 */
#include "storage/adapter_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "storage/store_sql.h"

const char *adapter_state_name(adapter_state s)
{
    switch (s) {
    case ADAPTER_READY: return "ready";
    case ADAPTER_FAILED: return "failed";
    case ADAPTER_DRAINING: return "draining";
    case ADAPTER_DELETED: return "deleted";
    }
    return "unknown";
}

/* ---- publish ---------------------------------------------------------------------- */

struct publish_job {
    adapter_row *a;
    version_row *v;
    const char *info;
    bool activate;
    int64_t max_adapters, max_bytes;
    const uint64_t *generation; /* NULL: whatever it is */
    uint64_t new_adapter_id;
};

static err_code count_one(sqlite3 *db, const char *text, uint64_t tenant_id, int64_t *out, err *e)
{
    sql q;
    sql_begin(&q, db, text);
    sql_int(&q, (int64_t)tenant_id);
    if (sql_row(&q)) *out = sql_col_int(&q, 0);
    return sql_end(&q, "count the tenant's adapters", e);
}

static err_code adapter_changed(err *e)
{
    return err_set(e, ERR_STALE, "the adapter was changed meanwhile: read it again");
}

/* Reads the row of (tenant, name) into p->a, or makes one. */
static err_code find_or_make(sqlite3 *db, struct publish_job *p, err *e)
{
    adapter_row *a = p->a;
    sql q;
    sql_begin(&q, db,
              "SELECT id, last_version, generation, created_us, pinned, description"
              " FROM adapters WHERE tenant_id=? AND name=?");
    sql_int(&q, (int64_t)a->tenant_id);
    sql_text(&q, a->name);
    bool found = sql_row(&q);
    if (found) {
        a->id = (uint64_t)sql_col_int(&q, 0);
        a->last_version = (int)sql_col_int(&q, 1);
        a->generation = (uint64_t)sql_col_int(&q, 2);
        a->created_wall_us = sql_col_int(&q, 3);
        a->pinned = sql_col_int(&q, 4) != 0;
        if (a->description[0] == 0) sql_col_text(&q, 5, a->description, sizeof a->description);
    }
    err_code rc = sql_end(&q, "find the adapter", e);
    if (rc || found) return rc;

    int64_t have = 0;
    rc = count_one(db, "SELECT count(*) FROM adapters WHERE tenant_id=?", a->tenant_id, &have, e);
    if (rc) return rc;
    if (p->max_adapters > 0 && have >= p->max_adapters)
        return err_set(e, ERR_LIMIT, "the tenant has %lld adapters, which is its limit",
                       (long long)have);
    a->id = p->new_adapter_id;
    a->last_version = 0;
    a->generation = 0;
    a->pinned = false;
    a->created_wall_us = p->v->created_wall_us;
    sql_begin(&q, db, "INSERT INTO adapters VALUES(?,?,?,?,0,0,0,?,0,0,0,0,0,0)");
    sql_int(&q, (int64_t)a->id);
    sql_int(&q, (int64_t)a->tenant_id);
    sql_text(&q, a->name);
    sql_text(&q, a->description);
    sql_int(&q, a->created_wall_us);
    return sql_done(&q, "write the adapter", e);
}

static err_code insert_version(sqlite3 *db, const version_row *v, const char *info, err *e)
{
    sql q;
    sql_begin(&q, db, "INSERT INTO adapter_versions VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    sql_int(&q, (int64_t)v->id);
    sql_int(&q, (int64_t)v->adapter_id);
    sql_int(&q, v->version);
    sql_blob(&q, v->digest, DIGEST_BYTES);
    sql_int(&q, (int64_t)v->file_bytes);
    sql_int(&q, (int64_t)v->packed_bytes);
    sql_int(&q, v->rank_max);
    sql_int(&q, v->state);
    sql_text(&q, v->error);
    sql_text(&q, info);
    sql_int(&q, v->created_wall_us);
    for (int i = 0; i < 2; i++) {
        if (v->has_part_sha)
            sql_blob(&q, v->part_sha[i], DIGEST_BYTES);
        else
            sql_null(&q);
    }
    if (v->words)
        sql_text(&q, v->words);
    else
        sql_null(&q);
    return sql_done(&q, "write the adapter's version", e);
}

/* Raises the generation by one, if it is what the caller saw: another server may have changed it.
 */
static err_code bump(sqlite3 *db, uint64_t adapter_id, uint64_t generation, err *e)
{
    sql q;
    if (generation == 0) return ERR_NONE; /* a repair at the start, not a change */
    sql_begin(&q, db, "UPDATE adapters SET generation=?1 WHERE id=?2 AND generation=?1-1");
    sql_int(&q, (int64_t)generation);
    sql_int(&q, (int64_t)adapter_id);
    err_code rc = sql_done(&q, "change the adapter", e);
    return rc || sqlite3_changes(db) > 0 ? rc : adapter_changed(e);
}

static err_code put_alias(sqlite3 *db, uint64_t adapter_id, const char *alias, int version,
                          int previous, uint64_t generation, err *e)
{
    sql q;
    sql_begin(&q, db,
              "INSERT INTO adapter_aliases VALUES(?,?,?,?,?) ON CONFLICT(adapter_id, alias)"
              " DO UPDATE SET version=excluded.version, previous=excluded.previous,"
              " generation=excluded.generation");
    sql_int(&q, (int64_t)adapter_id);
    sql_text(&q, alias);
    sql_int(&q, version);
    sql_int(&q, previous);
    sql_int(&q, (int64_t)generation);
    return sql_done(&q, "set the alias", e);
}

/* The version of the alias `default`; 0: none. */
static err_code default_of(sqlite3 *db, uint64_t adapter_id, int *out, err *e)
{
    sql q;
    *out = 0;
    sql_begin(&q, db, "SELECT version FROM adapter_aliases WHERE adapter_id=? AND alias='default'");
    sql_int(&q, (int64_t)adapter_id);
    if (sql_row(&q)) *out = (int)sql_col_int(&q, 0);
    return sql_end(&q, "find the default version", e);
}

/* All in one transaction: the adapter's row is found or made, limits are checked against what is
 * there, the version gets the next number, and `default` points to it where that is asked for or
 * nothing had it. */
static err_code publish_rows(sqlite3 *db, void *arg, err *e)
{
    struct publish_job *p = arg;
    adapter_row *a = p->a;
    version_row *v = p->v;
    err_code rc = find_or_make(db, p, e);
    if (!rc && p->generation && a->generation != *p->generation) rc = adapter_changed(e);
    if (rc) return rc;
    int64_t bytes = 0;
    rc = count_one(db,
                   "SELECT coalesce(sum(v.file_bytes), 0) FROM adapter_versions v"
                   " JOIN adapters a ON a.id = v.adapter_id WHERE a.tenant_id=?",
                   a->tenant_id, &bytes, e);
    if (rc) return rc;
    if (p->max_bytes > 0 && bytes + (int64_t)v->file_bytes > p->max_bytes)
        return err_set(e, ERR_LIMIT,
                       "the tenant's adapters take %lld bytes; %lld more go over its limit of %lld",
                       (long long)bytes, (long long)v->file_bytes, (long long)p->max_bytes);
    int current = 0;
    rc = default_of(db, a->id, &current, e);
    if (rc) return rc;
    v->adapter_id = a->id;
    v->version = ++a->last_version;
    a->generation++;
    rc = insert_version(db, v, p->info, e);
    if (rc) return rc;
    if (p->activate || current == 0)
        rc = put_alias(db, a->id, "default", v->version, current, a->generation, e);
    if (rc) return rc;
    sql q;
    sql_begin(&q, db, "UPDATE adapters SET last_version=?, generation=?, description=? WHERE id=?");
    sql_int(&q, a->last_version);
    sql_int(&q, (int64_t)a->generation);
    sql_text(&q, a->description);
    sql_int(&q, (int64_t)a->id);
    return sql_done(&q, "change the adapter", e);
}

err_code adapter_rows_publish(store *st, adapter_row *a, version_row *v, const char *info,
                              bool activate, int64_t max_adapters, int64_t max_bytes,
                              const uint64_t *generation, err *e)
{
    struct publish_job p = {.a = a,
                            .v = v,
                            .info = info,
                            .activate = activate,
                            .max_adapters = max_adapters,
                            .max_bytes = max_bytes,
                            .generation = generation,
                            .new_adapter_id = store_next_id(st)};
    v->id = store_next_id(st);
    v->state = ADAPTER_READY;
    v->created_wall_us = clock_wall_us();
    return store_write(st, publish_rows, &p, e);
}

/* ---- small changes ------------------------------------------------------------------ */

struct change_job {
    uint64_t id, generation;
    const char *text;
    int version, previous;
};

/* Another server may be deleting it, or have done so. */
static err_code is_ready(sqlite3 *db, uint64_t adapter_id, int version, err *e)
{
    sql q;
    sql_begin(&q, db,
              "SELECT 1 FROM adapter_versions WHERE adapter_id=? AND version=? AND state=?");
    sql_int(&q, (int64_t)adapter_id);
    sql_int(&q, version);
    sql_int(&q, ADAPTER_READY);
    bool there = sql_row(&q);
    err_code rc = sql_end(&q, "read the adapter's version", e);
    return rc || there ? rc : adapter_changed(e);
}

static err_code alias_row_set(sqlite3 *db, void *arg, err *e)
{
    const struct change_job *c = arg;
    err_code rc = bump(db, c->id, c->generation, e);
    if (!rc && c->generation != 0) rc = is_ready(db, c->id, c->version, e);
    return !rc ? put_alias(db, c->id, c->text, c->version, c->previous, c->generation, e) : rc;
}

err_code adapter_rows_set_alias(store *st, uint64_t adapter_id, const char *alias, int version,
                                int previous, uint64_t generation, err *e)
{
    struct change_job c = {.id = adapter_id,
                           .generation = generation,
                           .text = alias,
                           .version = version,
                           .previous = previous};
    return store_write(st, alias_row_set, &c, e);
}

static err_code alias_row_drop(sqlite3 *db, void *arg, err *e)
{
    const struct change_job *c = arg;
    sql q;
    sql_begin(&q, db, "DELETE FROM adapter_aliases WHERE adapter_id=? AND alias=?");
    sql_int(&q, (int64_t)c->id);
    sql_text(&q, c->text);
    err_code rc = sql_done(&q, "drop the alias", e);
    return rc == ERR_NONE ? bump(db, c->id, c->generation, e) : rc;
}

err_code adapter_rows_drop_alias(store *st, uint64_t adapter_id, const char *alias,
                                 uint64_t generation, err *e)
{
    struct change_job c = {.id = adapter_id, .generation = generation, .text = alias};
    return store_write(st, alias_row_drop, &c, e);
}

/* Another server may have set an alias to it. */
static err_code is_unnamed(sqlite3 *db, uint64_t version_id, err *e)
{
    sql q;
    sql_begin(
        &q, db,
        "SELECT 1 FROM adapter_versions AS v JOIN adapter_aliases AS a USING(adapter_id, version)"
        " WHERE v.id=? AND v.state=?");
    sql_int(&q, (int64_t)version_id);
    sql_int(&q, ADAPTER_READY);
    bool named = sql_row(&q);
    err_code rc = sql_end(&q, "read the adapter's aliases", e);
    return rc || !named ? rc : adapter_changed(e);
}

/* ADAPTER_DELETED removes the row; its id is never used again. */
static err_code state_row_set(sqlite3 *db, void *arg, err *e)
{
    const struct change_job *c = arg;
    sql q;
    bool goes = c->version == ADAPTER_DELETED || c->version == ADAPTER_DRAINING;
    if (goes && is_unnamed(db, c->id, e)) return e->code;
    if (c->version == ADAPTER_DELETED) {
        sql_begin(&q, db, "UPDATE high_water SET id=max(id, ?)");
        sql_int(&q, (int64_t)c->id);
        err_code rc = sql_done(&q, "keep the id", e);
        if (rc) return rc;
        sql_begin(&q, db, "DELETE FROM adapter_versions WHERE id=?");
    } else {
        sql_begin(&q, db, "UPDATE adapter_versions SET state=?, error=? WHERE id=?");
        sql_int(&q, c->version);
        sql_text(&q, c->text != NULL ? c->text : "");
    }
    sql_int(&q, (int64_t)c->id);
    return sql_done(&q, "change the version's state", e);
}

err_code adapter_rows_set_state(store *st, uint64_t version_id, adapter_state state,
                                const char *error, err *e)
{
    struct change_job c = {.id = version_id, .version = (int)state, .text = error};
    return store_write(st, state_row_set, &c, e);
}

struct effect_job {
    uint64_t id;
    double change;
};

static err_code effect_row_set(sqlite3 *db, void *arg, err *e)
{
    const struct effect_job *j = arg;
    sql q;
    sql_begin(&q, db,
              "UPDATE adapter_versions SET info=json_set(info, '$.logit_change', ?) WHERE id=?");
    sql_real(&q, j->change);
    sql_int(&q, (int64_t)j->id);
    return sql_done(&q, "note what the version changes", e);
}

err_code adapter_rows_set_change(store *st, uint64_t version_id, double change, err *e)
{
    struct effect_job j = {version_id, change};
    return store_write(st, effect_row_set, &j, e);
}

struct meta_job {
    uint64_t id;
    const adapter_meta_rows *m;
};

static err_code share_with(sqlite3 *db, uint64_t adapter_id, uint64_t tenant_id, err *e)
{
    sql q;
    sql_begin(&q, db, "INSERT OR IGNORE INTO adapter_shares VALUES(?,?)");
    sql_int(&q, (int64_t)adapter_id);
    sql_int(&q, (int64_t)tenant_id);
    return sql_done(&q, "share the adapter", e);
}

static err_code meta_row_set(sqlite3 *db, void *arg, err *e)
{
    const struct meta_job *j = arg;
    sql q;
    err_code rc = bump(db, j->id, j->m->generation, e);
    if (rc) return rc;
    sql_begin(&q, db, "UPDATE adapters SET description=?, pinned=? WHERE id=?");
    sql_text(&q, j->m->description);
    sql_int(&q, j->m->pinned);
    sql_int(&q, (int64_t)j->id);
    rc = sql_done(&q, "change the adapter", e);
    if (rc || !j->m->share) return rc;
    sql_begin(&q, db, "DELETE FROM adapter_shares WHERE adapter_id=?");
    sql_int(&q, (int64_t)j->id);
    rc = sql_done(&q, "share the adapter", e);
    if (!rc && j->m->shared_all) rc = share_with(db, j->id, 0, e);
    for (int i = 0; i < j->m->n_shared && !rc; i++) rc = share_with(db, j->id, j->m->shared[i], e);
    return rc;
}

err_code adapter_rows_set_meta(store *st, uint64_t adapter_id, const adapter_meta_rows *m, err *e)
{
    struct meta_job j = {.id = adapter_id, .m = m};
    return store_write(st, meta_row_set, &j, e);
}

struct limits_job {
    uint64_t id;
    const adapter_limits *was, *l;
};

static void bind_limits(sql *q, const adapter_limits *l)
{
    sql_int(q, l->requests_per_minute);
    sql_int(q, l->tokens_per_minute);
    sql_int(q, l->max_concurrent);
    sql_int(q, l->surcharge.prompt);
    sql_int(q, l->surcharge.cached);
    sql_int(q, l->surcharge.output);
}

static err_code limits_row_set(sqlite3 *db, void *arg, err *e)
{
    const struct limits_job *j = arg;
    sql q;
    sql_begin(&q, db,
              "UPDATE adapters SET rpm=?1, tpm=?2, max_concurrent=?3, surcharge_prompt=?4,"
              " surcharge_cached=?5, surcharge_output=?6 WHERE rpm=?7 AND tpm=?8"
              " AND max_concurrent=?9 AND surcharge_prompt=?10 AND surcharge_cached=?11"
              " AND surcharge_output=?12 AND id=?13");
    bind_limits(&q, j->l);
    bind_limits(&q, j->was);
    sql_int(&q, (int64_t)j->id);
    err_code rc = sql_done(&q, "limit the adapter", e);
    if (rc || sqlite3_changes(db) > 0) return rc;
    return err_set(e, ERR_CONFLICT, "the limits were changed meanwhile: read them again");
}

err_code adapter_rows_set_limits(store *st, uint64_t adapter_id, const adapter_limits *was,
                                 const adapter_limits *l, err *e)
{
    struct limits_job j = {.id = adapter_id, .was = was, .l = l};
    const token_price *s = &l->surcharge;
    if (l->requests_per_minute < 0 || l->tokens_per_minute < 0 || l->max_concurrent < 0)
        return err_set(e, ERR_INPUT, "a limit is 0 (none) or more");
    if (s->prompt < 0 || s->cached < 0 || s->output < 0 || s->prompt > PRICE_MAX ||
        s->cached > PRICE_MAX || s->output > PRICE_MAX)
        return err_set(e, ERR_INPUT, "a surcharge must be 0 to %lld micros", (long long)PRICE_MAX);
    return store_write(st, limits_row_set, &j, e);
}

static err_code adapter_row_drain(sqlite3 *db, void *arg, err *e)
{
    const struct change_job *c = arg;
    sql q;
    sql_begin(&q, db, "UPDATE adapter_versions SET state=? WHERE adapter_id=?");
    sql_int(&q, ADAPTER_DRAINING);
    sql_int(&q, (int64_t)c->id);
    return sql_done(&q, "drain the adapter", e);
}

err_code adapter_rows_drain(store *st, uint64_t adapter_id, err *e)
{
    struct change_job c = {.id = adapter_id};
    return store_write(st, adapter_row_drain, &c, e);
}

static err_code adapter_row_drop(sqlite3 *db, void *arg, err *e)
{
    const struct change_job *c = arg;
    sql q;
    sql_begin(&q, db,
              "UPDATE high_water SET id=max(id, ?1, coalesce("
              "(SELECT max(id) FROM adapter_versions WHERE adapter_id=?1), 0))");
    sql_int(&q, (int64_t)c->id);
    err_code rc = sql_done(&q, "keep the id", e);
    if (rc) return rc;
    sql_begin(&q, db, "DELETE FROM adapters WHERE id=?");
    sql_int(&q, (int64_t)c->id);
    return sql_done(&q, "delete the adapter", e);
}

err_code adapter_rows_drop(store *st, uint64_t adapter_id, err *e)
{
    struct change_job c = {.id = adapter_id};
    return store_write(st, adapter_row_drop, &c, e);
}

/* ---- what is only shown ------------------------------------------------------------------ */

err_code adapter_rows_words(store *st, uint64_t version_id, char **out, err *e)
{
    sql q;
    sqlite3 *db = store_read_begin(st);
    *out = NULL;
    size_t len = 0;
    bool lost = false;
    sql_begin(&q, db,
              "SELECT words IS NOT NULL, length(CAST(words AS BLOB)), words FROM adapter_versions"
              " WHERE id=?");
    sql_int(&q, (int64_t)version_id);
    if (sql_row(&q) && sql_col_int(&q, 0)) {
        len = (size_t)sql_col_int(&q, 1) + 1;
        *out = malloc(len);
        lost = !*out;
        if (!lost) sql_col_text(&q, 2, *out, len);
    }
    err_code rc = sql_end(&q, "read the version", e);
    store_read_end(st, db);
    if (!rc && lost) rc = err_set(e, ERR_NOMEM, "out of memory");
    return rc;
}

err_code adapter_rows_info(store *st, uint64_t version_id, char *out, size_t cap, err *e)
{
    sql q;
    sqlite3 *db = store_read_begin(st);
    out[0] = 0;
    sql_begin(&q, db, "SELECT info FROM adapter_versions WHERE id=?");
    sql_int(&q, (int64_t)version_id);
    if (sql_row(&q)) sql_col_text(&q, 0, out, cap);
    err_code rc = sql_end(&q, "read the version", e);
    store_read_end(st, db);
    return rc;
}

/* ---- parts ----------------------------------------------------------------------------- */

err_code adapter_rows_find_part(store *st, uint64_t tenant_id, int part,
                                const uint8_t sha[DIGEST_BYTES], uint8_t digest[DIGEST_BYTES],
                                bool *found, err *e)
{
    sql q;
    sqlite3 *db = store_read_begin(st);
    sql_begin(&q, db,
              part == 0
                  ? "SELECT v.digest FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id"
                    " WHERE v.config_sha=? AND a.tenant_id=? AND v.state=? LIMIT 1"
                  : "SELECT v.digest FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id"
                    " WHERE v.weights_sha=? AND a.tenant_id=? AND v.state=? LIMIT 1");
    sql_blob(&q, sha, DIGEST_BYTES);
    sql_int(&q, (int64_t)tenant_id);
    sql_int(&q, ADAPTER_READY);
    *found = sql_row(&q) && sql_col_blob(&q, 0, digest, DIGEST_BYTES);
    err_code rc = sql_end(&q, "look for the file", e);
    store_read_end(st, db);
    return rc;
}

/* ---- load ------------------------------------------------------------------------------ */

/* Appends a zeroed element. */
static void *push(void **array, size_t *n, size_t size)
{
    if ((*n & (*n - 1)) == 0) { /* full at every power of two */
        size_t cap = *n ? *n * 2 : 1;
        void *p = realloc(*array, cap * size);
        if (!p) return NULL;
        *array = p;
    }
    void *at = (char *)*array + *n * size;
    memset(at, 0, size);
    ++*n;
    return at;
}

/* One adapter's rows or all (0), by the same query, in which ?1 occurs twice. */
static err_code load_adapters(sqlite3 *db, uint64_t only, adapter_rows *out, err *e)
{
    sql q;
    adapter_row *a = NULL;
    bool short_of_memory = false;
    sql_begin(&q, db,
              "SELECT id, tenant_id, name, description, pinned, last_version, generation,"
              " created_us, rpm, tpm, max_concurrent, surcharge_prompt, surcharge_cached,"
              " surcharge_output FROM adapters WHERE ?1=0 OR id=?1 ORDER BY id");
    sql_int(&q, (int64_t)only);
    while (sql_row(&q)) {
        a = push((void **)&out->adapter, &out->n_adapter, sizeof(*a));
        if (!a) {
            short_of_memory = true;
            break;
        }
        a->id = (uint64_t)sql_col_int(&q, 0);
        a->tenant_id = (uint64_t)sql_col_int(&q, 1);
        sql_col_text(&q, 2, a->name, sizeof a->name);
        sql_col_text(&q, 3, a->description, sizeof a->description);
        a->pinned = sql_col_int(&q, 4) != 0;
        a->last_version = (int)sql_col_int(&q, 5);
        a->generation = (uint64_t)sql_col_int(&q, 6);
        a->created_wall_us = sql_col_int(&q, 7);
        a->limits.requests_per_minute = sql_col_int(&q, 8);
        a->limits.tokens_per_minute = sql_col_int(&q, 9);
        a->limits.max_concurrent = sql_col_int(&q, 10);
        a->limits.surcharge = (token_price){.prompt = sql_col_int(&q, 11),
                                            .cached = sql_col_int(&q, 12),
                                            .output = sql_col_int(&q, 13)};
    }
    err_code rc = sql_end(&q, "read the adapters", e);
    return short_of_memory ? err_set(e, ERR_NOMEM, "out of memory") : rc;
}

static err_code load_versions(sqlite3 *db, uint64_t only, adapter_rows *out, err *e)
{
    sql q;
    bool short_of_memory = false, bad = false;
    sql_begin(&q, db,
              "SELECT id, adapter_id, version, digest, file_bytes, packed_bytes, rank_max, state,"
              " error, created_us, words IS NOT NULL FROM adapter_versions"
              " WHERE ?1=0 OR adapter_id=?1 ORDER BY id");
    sql_int(&q, (int64_t)only);
    while (sql_row(&q)) {
        version_row *v = push((void **)&out->version, &out->n_version, sizeof(*v));
        if (!v) {
            short_of_memory = true;
            break;
        }
        v->id = (uint64_t)sql_col_int(&q, 0);
        v->adapter_id = (uint64_t)sql_col_int(&q, 1);
        v->version = (int)sql_col_int(&q, 2);
        bad |= !sql_col_blob(&q, 3, v->digest, DIGEST_BYTES);
        v->file_bytes = (uint64_t)sql_col_int(&q, 4);
        v->packed_bytes = (uint64_t)sql_col_int(&q, 5);
        v->rank_max = (int)sql_col_int(&q, 6);
        v->state = (adapter_state)sql_col_int(&q, 7);
        sql_col_text(&q, 8, v->error, sizeof v->error);
        v->created_wall_us = sql_col_int(&q, 9);
        v->has_words = sql_col_int(&q, 10) != 0;
    }
    err_code rc = sql_end(&q, "read the versions", e);
    if (short_of_memory) return err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && bad) return err_set(e, ERR_CORRUPT, "a version has no digest");
    return rc;
}

static err_code load_aliases(sqlite3 *db, uint64_t only, adapter_rows *out, err *e)
{
    sql q;
    bool short_of_memory = false;
    sql_begin(&q, db,
              "SELECT adapter_id, alias, version, previous, generation FROM adapter_aliases"
              " WHERE ?1=0 OR adapter_id=?1 ORDER BY adapter_id, alias");
    sql_int(&q, (int64_t)only);
    while (sql_row(&q)) {
        alias_row *al = push((void **)&out->alias, &out->n_alias, sizeof(*al));
        if (!al) {
            short_of_memory = true;
            break;
        }
        al->adapter_id = (uint64_t)sql_col_int(&q, 0);
        sql_col_text(&q, 1, al->alias, sizeof al->alias);
        al->version = (int)sql_col_int(&q, 2);
        al->previous = (int)sql_col_int(&q, 3);
        al->generation = (uint64_t)sql_col_int(&q, 4);
    }
    err_code rc = sql_end(&q, "read the aliases", e);
    return short_of_memory ? err_set(e, ERR_NOMEM, "out of memory") : rc;
}

static err_code load_shares(sqlite3 *db, uint64_t only, adapter_rows *out, err *e)
{
    sql q;
    bool short_of_memory = false;
    sql_begin(&q, db,
              "SELECT adapter_id, tenant_id FROM adapter_shares WHERE ?1=0 OR adapter_id=?1");
    sql_int(&q, (int64_t)only);
    while (sql_row(&q)) {
        share_row *sh = push((void **)&out->share, &out->n_share, sizeof(*sh));
        if (!sh) {
            short_of_memory = true;
            break;
        }
        sh->adapter_id = (uint64_t)sql_col_int(&q, 0);
        sh->tenant_id = (uint64_t)sql_col_int(&q, 1);
    }
    err_code rc = sql_end(&q, "read the shares", e);
    return short_of_memory ? err_set(e, ERR_NOMEM, "out of memory") : rc;
}

err_code adapter_rows_load(store *st, uint64_t only, adapter_rows *out, err *e)
{
    memset(out, 0, sizeof(*out));
    sqlite3 *db = store_read_begin(st);
    int rc_begin = sqlite3_exec(db, "BEGIN", NULL, NULL, NULL); /* all of one moment */
    err_code rc = rc_begin == SQLITE_OK ? load_adapters(db, only, out, e)
                                        : sql_error(db, rc_begin, "read the adapters", e);
    if (!rc) rc = load_versions(db, only, out, e);
    if (!rc) rc = load_aliases(db, only, out, e);
    if (!rc) rc = load_shares(db, only, out, e);
    if (!sqlite3_get_autocommit(db)) (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    store_read_end(st, db);
    if (rc) adapter_rows_clear(out);
    return rc;
}

void adapter_rows_clear(adapter_rows *rows)
{
    free(rows->adapter);
    free(rows->version);
    free(rows->alias);
    free(rows->share);
    memset(rows, 0, sizeof(*rows));
}
