/* keys.c -- API keys in the database, and a copy of all of them in memory: a hash table over public
 * ids.
 *
 * A check (keys_check()) reads memory alone: one CRC, one SHA-256, one hash lookup.  An unknown
 * public id is compared with a dummy digest, and all secrets of a key are compared in constant
 * time, so the duration reveals neither which ids exist nor which secret matched.
 *
 *   change (lock)   a change of this process: database first, then the copy
 *   lock (rwlock)   the copy; readers are the checks
 *
 * So what a check accepts is on the disk.  Revocation is the exception, in the opposite order: the
 * copy first, then the list of lock-outs (lockouts.h), because a revoked key must stop at once even
 * if the disk fails.  A revoked entry never becomes valid again, whatever a later refresh reads.
 *
 * Entries are never removed.  In a fleet, another server's change is read by key_cache_refresh();
 * writes compare the row with what the change was made from, and fail with ERR_CONFLICT otherwise.
 *
 * The last use is written at most once a minute per key, asynchronously.
 */
#include "storage/keys.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/lock.h"
#include "storage/digest.h"
#include "storage/lockouts.h"
#include "storage/store_sql.h"

enum { SECRET_LEN = 43, CRC_LEN = 6, USED_STEP_US = 60 * 1000000 };

static const char base62[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

typedef struct secret {
    uint64_t id;
    uint8_t digest[DIGEST_BYTES];
    int64_t not_after_us; /* 0: never */
} secret;

typedef struct key_entry {
    struct key_entry *next; /* hash chain */
    key_info info;
    int n_secret;
    secret secret[KEY_SECRETS_MAX];
    _Atomic int64_t used_us; /* newest note; raised under the read lock */
} key_entry;

struct key_cache {
    lock change; /* held over a write to the disk */
    rwlock lock; /* guards all below */
    key_entry **bucket;
    size_t n_bucket, n; /* n_bucket is a power of two */
};

/* ---- scopes ----------------------------------------------------------------------- */

static const struct {
    unsigned scope;
    const char *name;
} scopes[] = {
    {SCOPE_INFERENCE, "inference"},           {SCOPE_ADAPTERS_READ, "adapters.read"},
    {SCOPE_ADAPTERS_WRITE, "adapters.write"}, {SCOPE_ADMIN, "admin"},
    {SCOPE_ADMIN_READ, "admin.read"},
};

const char *scope_name(key_scope one)
{
    for (size_t i = 0; i < sizeof scopes / sizeof(*scopes); i++)
        if (scopes[i].scope == (unsigned)one) return scopes[i].name;
    return NULL;
}

unsigned scope_from_name(const char *name)
{
    for (size_t i = 0; i < sizeof scopes / sizeof(*scopes); i++)
        if (strcmp(scopes[i].name, name) == 0) return scopes[i].scope;
    return 0;
}

/* ---- the text of a key -------------------------------------------------------------- */

static uint32_t crc32_of(const char *s, size_t len)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned char)s[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xedb88320u & -(crc & 1));
    }
    return ~crc;
}

/* The big-endian number in `bytes` as `n` digits to the base 62, most significant first. */
static void to_base62(uint8_t *bytes, size_t len, char *out, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        unsigned rest = 0;
        for (size_t j = 0; j < len; j++) {
            unsigned v = rest << 8 | bytes[j];
            bytes[j] = (uint8_t)(v / 62);
            rest = v % 62;
        }
        out[i] = base62[rest];
    }
}

static void crc_digits(const char *text, char out[CRC_LEN])
{
    uint32_t crc = crc32_of(text, KEY_TEXT_LEN - CRC_LEN);
    uint8_t b[4] = {(uint8_t)(crc >> 24), (uint8_t)(crc >> 16), (uint8_t)(crc >> 8), (uint8_t)crc};
    to_base62(b, sizeof b, out, CRC_LEN);
}

static void make_text(const char *public_id, char text[KEY_TEXT_LEN + 1])
{
    uint8_t random[32];
    random_bytes(random, sizeof random);
    char *p = text;
    memcpy(p, "lk_", 3);
    memcpy(p + 3, public_id, KEY_PUBLIC_LEN);
    p[3 + KEY_PUBLIC_LEN] = '_';
    to_base62(random, sizeof random, p + 4 + KEY_PUBLIC_LEN, SECRET_LEN);
    explicit_bzero(random, sizeof random);
    crc_digits(text, p + KEY_TEXT_LEN - CRC_LEN);
    text[KEY_TEXT_LEN] = 0;
}

static void make_public_id(char out[KEY_PUBLIC_LEN + 1])
{
    uint8_t random[8];
    random_bytes(random, sizeof random);
    to_base62(random, sizeof random, out, KEY_PUBLIC_LEN);
    out[KEY_PUBLIC_LEN] = 0;
}

/* Whether the text has the form of a key, checksum included. */
static bool well_formed(const char *text, size_t len)
{
    if (len != KEY_TEXT_LEN || memcmp(text, "lk_", 3) != 0 || text[3 + KEY_PUBLIC_LEN] != '_')
        return false;
    for (size_t i = 3; i < len; i++)
        if (i != 3 + KEY_PUBLIC_LEN && (text[i] == 0 || strchr(base62, text[i]) == NULL))
            return false;
    char crc[CRC_LEN];
    crc_digits(text, crc);
    return memcmp(crc, text + KEY_TEXT_LEN - CRC_LEN, CRC_LEN) == 0;
}

/* ---- memory ------------------------------------------------------------------------- */

static size_t hash_of(const char *public_id)
{
    return (size_t)hash_text(0, public_id, KEY_PUBLIC_LEN);
}

static key_entry *find_public(const struct key_cache *kc, const char *public_id)
{
    key_entry *k = kc->bucket[hash_of(public_id) & (kc->n_bucket - 1)];
    while (k && memcmp(k->info.public_id, public_id, KEY_PUBLIC_LEN) != 0) k = k->next;
    return k;
}

static key_entry *find_id(const struct key_cache *kc, uint64_t id)
{
    for (size_t b = 0; b < kc->n_bucket; b++)
        for (key_entry *k = kc->bucket[b]; k != NULL; k = k->next)
            if (k->info.id == id) return k;
    return NULL;
}

/* Doubles the buckets when there are as many entries; without memory the table stays as it is. */
static void grow(struct key_cache *kc)
{
    if (kc->n < kc->n_bucket) return;
    size_t n = kc->n_bucket * 2;
    key_entry **bucket = calloc(n, sizeof(*bucket));
    if (!bucket) return;
    for (size_t b = 0; b < kc->n_bucket; b++)
        for (key_entry *k = kc->bucket[b], *next; k != NULL; k = next) {
            next = k->next;
            key_entry **at = &bucket[hash_of(k->info.public_id) & (n - 1)];
            k->next = *at;
            *at = k;
        }
    free(kc->bucket);
    kc->bucket = bucket;
    kc->n_bucket = n;
}

static void insert(struct key_cache *kc, key_entry *k)
{
    assert((kc->n_bucket & (kc->n_bucket - 1)) == 0); /* masks find the bucket */
    grow(kc);
    key_entry **at = &kc->bucket[hash_of(k->info.public_id) & (kc->n_bucket - 1)];
    k->next = *at;
    *at = k;
    kc->n++;
}

static bool live(const secret *s, int64_t now_us)
{
    return s->not_after_us == 0 || now_us < s->not_after_us;
}

static void copy_info(const key_entry *k, int64_t now_us, key_info *out)
{
    assert(k->n_secret >= 0 && k->n_secret <= KEY_SECRETS_MAX);
    *out = k->info;
    out->last_used_wall_us = atomic_load_explicit(&k->used_us, memory_order_relaxed);
    out->n_secrets = 0;
    if (k->info.revoked_wall_us == 0)
        for (int i = 0; i < k->n_secret; i++) out->n_secrets += live(&k->secret[i], now_us);
}

#define KEY_COLUMNS                                                  \
    "id, coalesce(tenant_id, 0), public_id, name, scopes, rpm, tpm," \
    " max_concurrent, expires_us, created_us, revoked_us, last_used_us, networks"

static void read_key(sql *q, key_entry *k)
{
    key_info *i = &k->info;
    i->id = (uint64_t)sql_col_int(q, 0);
    i->tenant_id = (uint64_t)sql_col_int(q, 1);
    sql_col_text(q, 2, i->public_id, sizeof i->public_id);
    sql_col_text(q, 3, i->name, sizeof i->name);
    i->scopes = (unsigned)sql_col_int(q, 4);
    i->requests_per_minute = sql_col_int(q, 5);
    i->tokens_per_minute = sql_col_int(q, 6);
    i->max_concurrent = sql_col_int(q, 7);
    i->expires_wall_us = sql_col_int(q, 8);
    i->created_wall_us = sql_col_int(q, 9);
    i->revoked_wall_us = sql_col_int(q, 10);
    atomic_init(&k->used_us, sql_col_int(q, 11));
    sql_col_text(q, 12, i->networks, sizeof i->networks);
}

/* Columns of a secret, for add_secret(), and the order of rows: two nodes of a fleet that rotate a
 * key at the same time can leave more than KEY_SECRETS_MAX rows, and the newest ones count. */
#define SECRET_COLUMNS "s.id, s.not_after_us, s.digest"
#define SECRET_ORDER   " ORDER BY s.id DESC"

/* Adds the secret in the row's columns from `first` on, unless the key has as many as it may. */
static void add_secret(sql *q, int first, key_entry *k)
{
    secret s = {.id = (uint64_t)sql_col_int(q, first), .not_after_us = sql_col_int(q, first + 1)};
    if (k->n_secret < KEY_SECRETS_MAX && sql_col_blob(q, first + 2, s.digest, DIGEST_BYTES))
        k->secret[k->n_secret++] = s;
}

static err_code load_secrets(struct key_cache *kc, sqlite3 *db, err *e)
{
    sql q;
    sql_begin(&q, db,
              "SELECT k.public_id, " SECRET_COLUMNS " FROM key_secrets s"
              " JOIN api_keys k ON k.id = s.key_id" SECRET_ORDER);
    while (sql_row(&q)) {
        char public_id[KEY_PUBLIC_LEN + 1] = {0};
        sql_col_text(&q, 0, public_id, sizeof public_id);
        key_entry *k = find_public(kc, public_id);
        if (k) add_secret(&q, 1, k);
    }
    return sql_end(&q, "read the keys", e);
}

err_code key_cache_open(struct key_cache **out, sqlite3 *db, err *e)
{
    struct key_cache *kc = calloc(1, sizeof(*kc));
    if (!kc) return err_set(e, ERR_NOMEM, "out of memory");
    kc->n_bucket = 256;
    kc->bucket = calloc(kc->n_bucket, sizeof(*kc->bucket));
    lock_init(&kc->change, LOCK_KEYS_CHANGE);
    rwlock_init(&kc->lock, LOCK_KEYS);
    *out = kc;
    if (!kc->bucket) return err_set(e, ERR_NOMEM, "out of memory");
    sql q;
    sql_begin(&q, db, "SELECT " KEY_COLUMNS " FROM api_keys");
    bool short_of_memory = false;
    while (sql_row(&q)) {
        key_entry *k = calloc(1, sizeof(*k));
        if (!k) {
            short_of_memory = true;
            break;
        }
        read_key(&q, k);
        insert(kc, k);
    }
    err_code rc = sql_end(&q, "read the keys", e);
    if (short_of_memory) return err_set(e, ERR_NOMEM, "out of memory");
    return rc == ERR_NONE ? load_secrets(kc, db, e) : rc;
}

static err_code read_one(sqlite3 *db, uint64_t key_id, key_entry *k, bool *there, err *e)
{
    sql q;
    sql_begin(&q, db, "SELECT " KEY_COLUMNS " FROM api_keys WHERE id=?");
    sql_int(&q, (int64_t)key_id);
    *there = sql_row(&q);
    if (*there) read_key(&q, k);
    err_code rc = sql_end(&q, "read the key", e);
    if (rc || !*there) return rc;
    sql_begin(&q, db, "SELECT " SECRET_COLUMNS " FROM key_secrets s WHERE s.key_id=?" SECRET_ORDER);
    sql_int(&q, (int64_t)key_id);
    while (sql_row(&q)) add_secret(&q, 0, k);
    return sql_end(&q, "read the key", e);
}

/* Puts a row that was read into the copy; false: it is new, and `fresh` is now part of the copy. */
static bool replace_entry(struct key_cache *kc, key_entry *fresh)
{
    key_entry *k = find_id(kc, fresh->info.id);
    if (!k) {
        insert(kc, fresh);
        return false;
    }
    int64_t revoked_us = k->info.revoked_wall_us; /* permanent, whether it is written yet or not */
    k->info = fresh->info;
    if (revoked_us != 0) k->info.revoked_wall_us = revoked_us;
    k->n_secret = fresh->n_secret;
    memcpy(k->secret, fresh->secret, sizeof k->secret);
    return true;
}

err_code key_cache_refresh(store *st, uint64_t key_id, err *e)
{
    struct key_cache *kc = store_keys(st);
    bool there = false;
    key_entry *fresh = calloc(1, sizeof(*fresh));
    if (!fresh) return err_set(e, ERR_NOMEM, "out of memory");
    lock_take(&kc->change); /* no change of this process is between its write and the copy */
    sqlite3 *db = store_read_begin(st);
    err_code rc = read_one(db, key_id, fresh, &there, e);
    store_read_end(st, db);
    if (!rc && there) {
        rwlock_write(&kc->lock);
        if (!replace_entry(kc, fresh)) fresh = NULL;
        rwlock_release(&kc->lock);
    }
    lock_release(&kc->change);
    free(fresh);
    return rc;
}

void key_cache_close(struct key_cache *kc)
{
    if (!kc) return;
    for (size_t b = 0; kc->bucket != NULL && b < kc->n_bucket; b++)
        for (key_entry *k = kc->bucket[b], *next; k != NULL; k = next) {
            next = k->next;
            free(k);
        }
    free(kc->bucket);
    rwlock_free(&kc->lock);
    lock_free(&kc->change);
    free(kc);
}

void key_cache_revoke_tenant(store *st, uint64_t tenant_id, int64_t now_wall_us)
{
    struct key_cache *kc = store_keys(st);
    rwlock_write(&kc->lock);
    for (size_t b = 0; b < kc->n_bucket; b++)
        for (key_entry *k = kc->bucket[b]; k != NULL; k = k->next)
            if (k->info.tenant_id == tenant_id && k->info.revoked_wall_us == 0)
                k->info.revoked_wall_us = now_wall_us;
    rwlock_release(&kc->lock);
}

bool key_cache_revoke(store *st, uint64_t key_id, int64_t now_wall_us)
{
    struct key_cache *kc = store_keys(st);
    rwlock_write(&kc->lock);
    key_entry *k = find_id(kc, key_id);
    if (k && k->info.revoked_wall_us == 0) k->info.revoked_wall_us = now_wall_us;
    rwlock_release(&kc->lock);
    return k != NULL;
}

/* ---- disk --------------------------------------------------------------------------- */

static err_code insert_secret(sqlite3 *db, uint64_t key_id, const secret *s, int64_t now_us, err *e)
{
    sql q;
    sql_begin(&q, db, "INSERT INTO key_secrets VALUES(?,?,?,?,?)");
    sql_int(&q, (int64_t)s->id);
    sql_int(&q, (int64_t)key_id);
    sql_blob(&q, s->digest, DIGEST_BYTES);
    sql_int(&q, now_us);
    sql_int(&q, s->not_after_us);
    return sql_done(&q, "write the key", e);
}

static err_code insert_key(sqlite3 *db, void *arg, err *e)
{
    const key_entry *k = arg;
    const key_info *i = &k->info;
    sql q;
    if (i->tenant_id != 0) {
        sql_begin(&q, db, "SELECT 1 FROM tenants WHERE id=? AND disabled=0");
        sql_int(&q, (int64_t)i->tenant_id);
        bool there = sql_row(&q);
        err_code rc = sql_end(&q, "find the tenant", e);
        if (rc) return rc;
        if (!there) return err_set(e, ERR_NOT_FOUND, "no such tenant, or it is disabled");
    }
    sql_begin(&q, db, "INSERT INTO api_keys VALUES(?,?,?,?,?,?,?,?,?,?,0,0,?)");
    sql_int(&q, (int64_t)i->id);
    if (i->tenant_id != 0)
        sql_int(&q, (int64_t)i->tenant_id);
    else
        sql_null(&q);
    sql_text(&q, i->public_id);
    sql_text(&q, i->name);
    sql_int(&q, i->scopes);
    sql_int(&q, i->requests_per_minute);
    sql_int(&q, i->tokens_per_minute);
    sql_int(&q, i->max_concurrent);
    sql_int(&q, i->expires_wall_us);
    sql_int(&q, i->created_wall_us);
    sql_text(&q, i->networks);
    err_code rc = sql_done(&q, "write the key", e);
    if (rc) return rc;
    return insert_secret(db, i->id, &k->secret[0], i->created_wall_us, e);
}

struct rotate_job {
    uint64_t key_id;
    secret fresh;
    int64_t old_until_us, now_us;
};

/* Another server may have revoked it, and the copy in memory does not have that yet. */
static err_code still_live(sqlite3 *db, uint64_t key_id, err *e)
{
    sql q;
    sql_begin(&q, db, "SELECT 1 FROM api_keys WHERE id=? AND revoked_us=0");
    sql_int(&q, (int64_t)key_id);
    bool live = sql_row(&q);
    err_code rc = sql_end(&q, "find the key", e);
    return rc || live ? rc : err_set(e, ERR_CONFLICT, "the key is revoked");
}

static err_code rotate_rows(sqlite3 *db, void *arg, err *e)
{
    const struct rotate_job *r = arg;
    sql q;
    err_code rc = still_live(db, r->key_id, e);
    if (rc) return rc;
    sql_begin(&q, db,
              "DELETE FROM key_secrets WHERE key_id=? AND not_after_us<>0"
              " AND not_after_us<=?");
    sql_int(&q, (int64_t)r->key_id);
    sql_int(&q, r->now_us);
    rc = sql_done(&q, "rotate the key", e);
    if (!rc && r->old_until_us != 0) {
        sql_begin(&q, db,
                  "UPDATE key_secrets SET not_after_us=? WHERE key_id=?"
                  " AND (not_after_us=0 OR not_after_us>?)");
        sql_int(&q, r->old_until_us);
        sql_int(&q, (int64_t)r->key_id);
        sql_int(&q, r->old_until_us);
        rc = sql_done(&q, "rotate the key", e);
    }
    return rc == ERR_NONE ? insert_secret(db, r->key_id, &r->fresh, r->now_us, e) : rc;
}

static err_code key_changed(err *e)
{
    return err_set(e, ERR_CONFLICT, "the key was changed meanwhile: read it again");
}

struct update_job {
    const key_info *was, *now;
};

/* The row must be what the change was made from: another node may have changed it. */
static err_code update_row(sqlite3 *db, void *arg, err *e)
{
    const struct update_job *u = arg;
    const key_info *i = u->now, *was = u->was;
    sql q;
    sql_begin(&q, db,
              "UPDATE api_keys SET name=?, rpm=?, tpm=?, max_concurrent=?, expires_us=?,"
              " networks=? WHERE id=? AND revoked_us=0 AND name=? AND rpm=? AND tpm=?"
              " AND max_concurrent=? AND expires_us=? AND networks=?");
    sql_text(&q, i->name);
    sql_int(&q, i->requests_per_minute);
    sql_int(&q, i->tokens_per_minute);
    sql_int(&q, i->max_concurrent);
    sql_int(&q, i->expires_wall_us);
    sql_text(&q, i->networks);
    sql_int(&q, (int64_t)i->id);
    sql_text(&q, was->name);
    sql_int(&q, was->requests_per_minute);
    sql_int(&q, was->tokens_per_minute);
    sql_int(&q, was->max_concurrent);
    sql_int(&q, was->expires_wall_us);
    sql_text(&q, was->networks);
    err_code rc = sql_done(&q, "change the key", e);
    return rc || sqlite3_changes(db) > 0 ? rc : key_changed(e);
}

struct stamp_job {
    uint64_t key_id;
    int64_t wall_us;
};

static err_code used_row(sqlite3 *db, void *arg, err *e)
{
    const struct stamp_job *s = arg;
    sql q;
    sql_begin(&q, db, "UPDATE api_keys SET last_used_us=max(last_used_us, ?) WHERE id=?");
    sql_int(&q, s->wall_us);
    sql_int(&q, (int64_t)s->key_id);
    return sql_done(&q, "note the key's use", e);
}

/* ---- API ---------------------------------------------------------------------------- */

static err_code check_want(const key_info *want, err *e)
{
    if (want->scopes == 0 || (want->scopes & ~(unsigned)SCOPE_ALL) != 0)
        return err_set(e, ERR_INPUT, "a key needs at least one known scope");
    bool admin = (want->scopes & (SCOPE_ADMIN | SCOPE_ADMIN_READ)) != 0;
    if (admin && want->tenant_id != 0)
        return err_set(e, ERR_INPUT, "a tenant's key cannot have the scope admin");
    if (!admin && want->tenant_id == 0)
        return err_set(e, ERR_INPUT, "a key without a tenant must have the scope admin");
    if (memchr(want->name, 0, sizeof want->name) == NULL)
        return err_set(e, ERR_INPUT, "a key's name has at most %d bytes", KEY_NAME_MAX);
    for (const char *p = want->name; *p != 0; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return err_set(e, ERR_INPUT, "a key's name holds no control characters");
    if (want->requests_per_minute < 0 || want->tokens_per_minute < 0 || want->max_concurrent < 0 ||
        want->expires_wall_us < 0)
        return err_set(e, ERR_INPUT, "limits and expiry are 0 (none) or more");
    return ERR_NONE;
}

void keys_make_text(char text[KEY_TEXT_LEN + 1])
{
    char public_id[KEY_PUBLIC_LEN + 1];
    make_public_id(public_id);
    make_text(public_id, text);
}

err_code keys_adopt(store *st, const key_info *want, const char *text, key_info *out, err *e)
{
    struct key_cache *kc = store_keys(st);
    err_code rc = check_want(want, e);
    if (rc) return rc;
    if (!well_formed(text, strlen(text)))
        return err_set(e, ERR_INPUT, "it must be one key as lorad key --new prints it");
    key_entry *k = calloc(1, sizeof(*k));
    if (!k) return err_set(e, ERR_NOMEM, "out of memory");
    lock_take(&kc->change);
    k->info = *want;
    k->info.id = store_next_id(st);
    k->info.created_wall_us = clock_wall_us();
    k->info.revoked_wall_us = k->info.last_used_wall_us = 0;
    snprintf(k->info.public_id, sizeof k->info.public_id, "%.*s", KEY_PUBLIC_LEN, text + 3);
    k->n_secret = 1;
    k->secret[0].id = store_next_id(st);
    digest_bytes(text, KEY_TEXT_LEN, k->secret[0].digest);
    rc = find_public(kc, k->info.public_id)
             ? err_set(e, ERR_EXISTS, "a key with its public id is there")
             : store_write(st, insert_key, k, e);
    if (!rc) {
        if (out) copy_info(k, k->info.created_wall_us, out);
        rwlock_write(&kc->lock);
        insert(kc, k);
        rwlock_release(&kc->lock);
    } else {
        free(k);
    }
    lock_release(&kc->change);
    return rc;
}

err_code keys_create(store *st, const key_info *want, char text[KEY_TEXT_LEN + 1], key_info *out,
                     err *e)
{
    keys_make_text(text);
    err_code rc = keys_adopt(st, want, text, out, e);
    if (rc) explicit_bzero(text, KEY_TEXT_LEN + 1);
    return rc;
}

/* Compares with all secrets, so that the duration does not reveal which one matched. */
static bool matches(const key_entry *k, const uint8_t got[DIGEST_BYTES], int64_t now_us)
{
    bool found = false;
    for (int i = 0; i < k->n_secret; i++)
        found |= digest_same(k->secret[i].digest, got, DIGEST_BYTES) & live(&k->secret[i], now_us);
    return found;
}

/* Whether the use is to be written: a minute after the last, and for one of several threads. */
static bool note_use(key_entry *k, int64_t now_us)
{
    int64_t before = atomic_load_explicit(&k->used_us, memory_order_relaxed);
    return now_us - before >= USED_STEP_US &&
           atomic_compare_exchange_strong(&k->used_us, &before, now_us);
}

err_code keys_check(store *st, const char *text, size_t len, key_info *out, tenant *t_out, err *e)
{
    static const char refused[] = "the API key is not valid";
    struct key_cache *kc = store_keys(st);
    if (!well_formed(text, len)) return err_set(e, ERR_DENIED, "%s", refused);
    int64_t now_us = clock_wall_us();
    uint8_t got[DIGEST_BYTES], dummy[DIGEST_BYTES] = {0};
    digest_bytes(text, len, got);

    bool ok = false, post = false;
    rwlock_read(&kc->lock);
    key_entry *k = find_public(kc, text + 3);
    if (k)
        ok = matches(k, got, now_us) && k->info.revoked_wall_us == 0;
    else
        ok = digest_same(dummy, got, DIGEST_BYTES) && false;
    if (ok) {
        copy_info(k, now_us, out);
        if (out->expires_wall_us == 0 || now_us < out->expires_wall_us) post = note_use(k, now_us);
    }
    rwlock_release(&kc->lock);
    if (!ok) return err_set(e, ERR_DENIED, "%s", refused);
    if (out->expires_wall_us != 0 && now_us >= out->expires_wall_us)
        return err_set(e, ERR_EXPIRED, "the API key has expired");
    tenant t = {0};
    if (out->tenant_id != 0) {
        if (tenants_get(st, out->tenant_id, &t, NULL) != ERR_NONE || t.disabled)
            return err_set(e, ERR_SUSPENDED, "the tenant of this API key is disabled");
    }
    if (t_out) *t_out = t;
    if (post) {
        struct stamp_job s = {out->id, now_us};
        store_post_own(st, used_row, &s, sizeof s);
    }
    return ERR_NONE;
}

err_code keys_get(store *st, uint64_t key_id, key_info *out, err *e)
{
    struct key_cache *kc = store_keys(st);
    rwlock_read(&kc->lock);
    const key_entry *k = find_id(kc, key_id);
    if (k) copy_info(k, clock_wall_us(), out);
    rwlock_release(&kc->lock);
    return k != NULL ? ERR_NONE : err_set(e, ERR_NOT_FOUND, "no such key");
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const key_info *)a)->id, y = ((const key_info *)b)->id;
    return (x > y) - (x < y);
}

err_code keys_list(store *st, uint64_t tenant_id, key_info **out, size_t *n, err *e)
{
    struct key_cache *kc = store_keys(st);
    int64_t now_us = clock_wall_us();
    *out = NULL;
    *n = 0;
    rwlock_read(&kc->lock);
    size_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            *out = calloc(count + 1, sizeof **out);
            if (!*out) break;
        }
        for (size_t b = 0; b < kc->n_bucket; b++)
            for (const key_entry *k = kc->bucket[b]; k != NULL; k = k->next) {
                if (tenant_id != KEYS_OF_ALL && k->info.tenant_id != tenant_id) continue;
                if (pass == 0)
                    count++;
                else
                    copy_info(k, now_us, *out + (*n)++);
            }
    }
    rwlock_release(&kc->lock);
    if (!*out) return err_set(e, ERR_NOMEM, "out of memory");
    qsort(*out, *n, sizeof **out, by_id);
    return ERR_NONE;
}

/* Applies to the copy what rotate_rows() did; `lock` is held for writing. */
static void rotate_entry(key_entry *k, const struct rotate_job *r)
{
    int n = 0;
    for (int i = 0; i < k->n_secret; i++) {
        secret s = k->secret[i];
        if (!live(&s, r->now_us)) continue;
        if (r->old_until_us != 0 && (s.not_after_us == 0 || s.not_after_us > r->old_until_us))
            s.not_after_us = r->old_until_us;
        k->secret[n++] = s;
    }
    assert(n < KEY_SECRETS_MAX);
    k->secret[n++] = r->fresh;
    k->n_secret = n;
}

err_code keys_rotate(store *st, uint64_t key_id, int64_t old_until_wall_us,
                     char text[KEY_TEXT_LEN + 1], err *e)
{
    struct key_cache *kc = store_keys(st);
    struct rotate_job r = {.key_id = key_id, .old_until_us = old_until_wall_us};
    key_info info;
    lock_take(&kc->change);
    r.now_us = clock_wall_us();
    err_code rc = keys_get(st, key_id, &info, e);
    if (!rc && info.revoked_wall_us != 0) rc = err_set(e, ERR_CONFLICT, "the key is revoked");
    if (!rc && info.n_secrets >= KEY_SECRETS_MAX)
        rc = err_set(e, ERR_LIMIT, "the key has %d live secrets already", KEY_SECRETS_MAX);
    if (!rc) {
        make_text(info.public_id, text);
        r.fresh.id = store_next_id(st);
        digest_bytes(text, KEY_TEXT_LEN, r.fresh.digest);
        rc = store_write(st, rotate_rows, &r, e);
    }
    if (!rc) {
        rwlock_write(&kc->lock);
        rotate_entry(find_id(kc, key_id), &r);
        rwlock_release(&kc->lock);
    } else {
        memset(text, 0, KEY_TEXT_LEN + 1);
    }
    lock_release(&kc->change);
    return rc;
}

err_code keys_revoke(store *st, uint64_t key_id, bool *durable, err *e)
{
    lockout what = {LOCKOUT_KEY, key_id, clock_wall_us()};
    if (!key_cache_revoke(st, key_id, what.wall_us))
        return err_set(e, ERR_NOT_FOUND, "no such key");
    bool written = store_lockout(st, &what);
    if (durable) *durable = written;
    return ERR_NONE;
}

static bool same_settings(const key_info *a, const key_info *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->networks, b->networks) == 0 &&
           a->requests_per_minute == b->requests_per_minute &&
           a->tokens_per_minute == b->tokens_per_minute && a->max_concurrent == b->max_concurrent &&
           a->expires_wall_us == b->expires_wall_us;
}

err_code keys_update(store *st, const key_info *was, const key_info *want, key_info *out, err *e)
{
    struct key_cache *kc = store_keys(st);
    key_info now;
    lock_take(&kc->change);
    err_code rc = keys_get(st, want->id, &now, e);
    if (!rc && now.revoked_wall_us != 0) rc = err_set(e, ERR_CONFLICT, "the key is revoked");
    if (!rc && !same_settings(&now, was)) rc = key_changed(e);
    if (!rc) {
        memcpy(now.name, want->name, sizeof now.name);
        memcpy(now.networks, want->networks, sizeof now.networks);
        now.requests_per_minute = want->requests_per_minute;
        now.tokens_per_minute = want->tokens_per_minute;
        now.max_concurrent = want->max_concurrent;
        now.expires_wall_us = want->expires_wall_us;
        rc = check_want(&now, e);
    }
    struct update_job job = {was, &now};
    if (!rc) rc = store_write(st, update_row, &job, e);
    if (!rc) {
        rwlock_write(&kc->lock);
        key_entry *k = find_id(kc, want->id);
        assert(k);                                     /* keys are never removed */
        now.revoked_wall_us = k->info.revoked_wall_us; /* it may have been revoked meanwhile */
        k->info = now;
        rwlock_release(&kc->lock);
        if (out) *out = now;
    }
    lock_release(&kc->change);
    return rc;
}
