/* registry.c -- two hash tables under one mutex, written through to storage.
 *
 * `mu` is held for a lookup, never over a write to the disk.  Changes come one after another under
 * `change`: check under `mu`, write the rows, then show the result under `mu`.  So a reader sees
 * only what is durable, and nobody waits for the disk but who changes something.
 *
 * Locks, outermost first: files, change, mu.
 */
#include "adapters/registry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/folder.h"
#include "engine/base/log.h"
#include "storage/tenants.h"

enum { BUCKETS = 16384 }; /* power of two; ten thousand adapters make chains of one */

struct entry;

typedef struct version {
    adapter_version pub;         /* first: what registry_acquire() hands out */
    struct version *next;        /* chain by id */
    struct version *next_digest; /* chain by content */
    struct entry *owner;
    adapter_state state;
    int pins;
    bool finishing; /* somebody is removing it for good */
    char *info, *error;
} version;

typedef struct alias {
    char name[ADAPTER_NAME_MAX + 1];
    int version, previous;
} alias;

typedef struct entry {
    struct entry *next; /* chain by (tenant, name) */
    adapter_row row;
    version **version; /* by number, ascending */
    int n_version, cap_version;
    int n_alias;
    alias alias[REGISTRY_ALIAS_MAX];
    bool doomed; /* the name is deleted and hidden; versions run out */
} entry;

struct registry {
    store *db;
    char reserved[4][ADAPTER_NAME_MAX * 2];
    int n_reserved;
    pthread_mutex_t files, change;
    _Atomic uint64_t n_changes;
    pthread_mutex_t mu; /* leaf lock; guards all below */
    entry *by_name[BUCKETS];
    version *by_id[BUCKETS];
    version *by_digest[BUCKETS];
    size_t n_entry, n_version, n_pins;
    void (*gone)(void *self, uint64_t version_id);
    void *gone_self;
};

/* ---- tables (mu is held) ------------------------------------------------------------- */

static size_t hash_name(uint64_t tenant_id, const char *name)
{
    uint64_t h = 1469598103934665603u ^ tenant_id * 0x9e3779b97f4a7c15u;
    for (; *name != 0; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return (size_t)(h ^ h >> 31) & (BUCKETS - 1);
}

static size_t hash_id(uint64_t id)
{
    return (size_t)(id * 0x9e3779b97f4a7c15u >> 40) & (BUCKETS - 1);
}

static size_t hash_digest(const uint8_t digest[DIGEST_BYTES])
{
    return (size_t)(digest[0] | digest[1] << 8) & (BUCKETS - 1);
}

static entry *find_entry(registry *r, uint64_t tenant_id, const char *name)
{
    entry *en = r->by_name[hash_name(tenant_id, name)];
    while (en != NULL && (en->row.tenant_id != tenant_id || strcmp(en->row.name, name) != 0))
        en = en->next;
    return en;
}

static version *find_id(registry *r, uint64_t id)
{
    version *v = r->by_id[hash_id(id)];
    while (v != NULL && v->pub.id != id) v = v->next;
    return v;
}

static version *find_number(const entry *en, int number)
{
    for (int i = 0; i < en->n_version; i++)
        if (en->version[i]->pub.version == number) return en->version[i];
    return NULL;
}

static alias *find_alias(entry *en, const char *name)
{
    for (int i = 0; i < en->n_alias; i++)
        if (strcmp(en->alias[i].name, name) == 0) return &en->alias[i];
    return NULL;
}

static entry *add_entry(registry *r, const adapter_row *row)
{
    entry *en = calloc(1, sizeof *en);
    if (en == NULL) return NULL;
    en->row = *row;
    entry **at = &r->by_name[hash_name(row->tenant_id, row->name)];
    en->next = *at;
    *at = en;
    r->n_entry++;
    return en;
}

static void free_version(version *v)
{
    free(v->info);
    free(v->error);
    free(v);
}

static version *add_version(registry *r, entry *en, const version_row *row)
{
    if (en->n_version == en->cap_version) {
        int cap = en->cap_version ? en->cap_version * 2 : 4;
        version **more = realloc(en->version, (size_t)cap * sizeof *more);
        if (more == NULL) return NULL;
        en->version = more;
        en->cap_version = cap;
    }
    version *v = calloc(1, sizeof *v);
    if (v == NULL) return NULL;
    v->info = strdup(row->info);
    v->error = strdup(row->error);
    if (v->info == NULL || v->error == NULL) {
        free_version(v);
        return NULL;
    }
    adapter_version *p = &v->pub;
    p->id = row->id;
    p->tenant_id = en->row.tenant_id;
    memcpy(p->name, en->row.name, sizeof p->name);
    p->version = row->version;
    memcpy(p->digest, row->digest, DIGEST_BYTES);
    p->file_bytes = row->file_bytes;
    p->packed_bytes = row->packed_bytes;
    p->rank_max = row->rank_max;
    p->created_wall_us = row->created_wall_us;
    v->owner = en;
    v->state = row->state;
    version **at = &r->by_id[hash_id(p->id)];
    v->next = *at;
    *at = v;
    at = &r->by_digest[hash_digest(p->digest)];
    v->next_digest = *at;
    *at = v;
    en->version[en->n_version++] = v;
    r->n_version++;
    return v;
}

static void unlink_version(registry *r, version *v)
{
    version **at = &r->by_id[hash_id(v->pub.id)];
    while (*at != v) at = &(*at)->next;
    *at = v->next;
    at = &r->by_digest[hash_digest(v->pub.digest)];
    while (*at != v) at = &(*at)->next_digest;
    *at = v->next_digest;
    entry *en = v->owner;
    int i = 0;
    while (en->version[i] != v) i++;
    memmove(en->version + i, en->version + i + 1,
            (size_t)(en->n_version - i - 1) * sizeof *en->version);
    en->n_version--;
    r->n_version--;
}

static void unlink_entry(registry *r, entry *en)
{
    entry **at = &r->by_name[hash_name(en->row.tenant_id, en->row.name)];
    while (*at != en) at = &(*at)->next;
    *at = en->next;
    r->n_entry--;
}

static void free_entry(entry *en)
{
    free(en->version);
    free(en);
}

static bool digest_used(registry *r, const uint8_t digest[DIGEST_BYTES])
{
    const version *v = r->by_digest[hash_digest(digest)];
    while (v != NULL && memcmp(v->pub.digest, digest, DIGEST_BYTES) != 0) v = v->next_digest;
    return v != NULL;
}

/* ---- files ------------------------------------------------------------------------------- */

void registry_path(const registry *r, const uint8_t digest[DIGEST_BYTES], char *out, size_t cap)
{
    char hex[DIGEST_HEX];
    digest_hex(digest, hex);
    snprintf(out, cap, "%s/adapters/%s", store_dir(r->db), hex);
}

static bool files_there(const registry *r, const uint8_t digest[DIGEST_BYTES])
{
    char path[4200], file[4400];
    registry_path(r, digest, path, sizeof path);
    for (int p = 0; p < PART_COUNT; p++) {
        snprintf(file, sizeof file, "%s/%s", path, folder_part_names[p]);
        if (access(file, R_OK) != 0) return false;
    }
    return true;
}

void registry_files_forget(registry *r, const uint8_t digest[DIGEST_BYTES])
{
    char path[4200];
    registry_path(r, digest, path, sizeof path);
    pthread_mutex_lock(&r->mu);
    bool used = digest_used(r, digest);
    pthread_mutex_unlock(&r->mu);
    if (!used) folder_remove(path);
}

/* Removes the files of this content unless some version still has it. */
static void drop_files_if_unused(registry *r, const uint8_t digest[DIGEST_BYTES])
{
    pthread_mutex_lock(&r->files);
    registry_files_forget(r, digest);
    pthread_mutex_unlock(&r->files);
}

/* Directories under adapters/ that no row knows: left by a crash between rename and row, or between
 * a row's end and its files'. */
static void sweep_files(registry *r)
{
    char root[4200], path[4600];
    snprintf(root, sizeof root, "%s/adapters", store_dir(r->db));
    DIR *d = opendir(root);
    if (d == NULL) return;
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        uint8_t digest[DIGEST_BYTES];
        if (strlen(de->d_name) != DIGEST_HEX - 1 || !digest_from_hex(de->d_name, digest)) continue;
        if (digest_used(r, digest)) continue;
        snprintf(path, sizeof path, "%s/%s", root, de->d_name);
        folder_remove(path);
    }
    closedir(d);
}

void registry_files_lock(registry *r)
{
    pthread_mutex_lock(&r->files);
}

void registry_files_unlock(registry *r)
{
    pthread_mutex_unlock(&r->files);
}

store *registry_store(const registry *r)
{
    return r->db;
}

/* ---- life ---------------------------------------------------------------------------------- */

static err_code no_memory(err *e)
{
    return err_set(e, ERR_NOMEM, "out of memory");
}

/* Rows are in the order of their ids, so an adapter's row can be found by bisection. */
static const adapter_row *row_by_id(const adapter_rows *rows, uint64_t id)
{
    size_t lo = 0, hi = rows->n_adapter;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (rows->adapter[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < rows->n_adapter && rows->adapter[lo].id == id ? &rows->adapter[lo] : NULL;
}

static err_code load_one_version(registry *r, const adapter_rows *rows, version_row *v, err *e)
{
    const adapter_row *a = row_by_id(rows, v->adapter_id);
    entry *en = a != NULL ? find_entry(r, a->tenant_id, a->name) : NULL;
    if (en == NULL) return err_set(e, ERR_CORRUPT, "a version belongs to no adapter");
    if (v->state == ADAPTER_DRAINING || v->state == ADAPTER_DELETED)
        return adapter_rows_set_state(r->db, v->id, ADAPTER_DELETED, NULL, e);
    if (v->state == ADAPTER_READY && !files_there(r, v->digest)) {
        log_error("adapters", "files of %s@%d are missing; it cannot be served", en->row.name,
                  v->version);
        v->state = ADAPTER_FAILED;
        snprintf(v->error, sizeof v->error, "the adapter's files are missing on the server");
        err_code code = adapter_rows_set_state(r->db, v->id, ADAPTER_FAILED, v->error, e);
        if (code != ERR_NONE) return code;
    }
    return add_version(r, en, v) != NULL ? ERR_NONE : no_memory(e);
}

static err_code load_aliases(registry *r, const adapter_rows *rows, err *e)
{
    for (size_t i = 0; i < rows->n_alias; i++) {
        const alias_row *al = &rows->alias[i];
        const adapter_row *a = row_by_id(rows, al->adapter_id);
        entry *en = a != NULL ? find_entry(r, a->tenant_id, a->name) : NULL;
        if (en == NULL || en->n_alias == REGISTRY_ALIAS_MAX) continue;
        if (find_number(en, al->version) == NULL) {
            err_code code = adapter_rows_drop_alias(r->db, a->id, al->alias, a->generation, e);
            if (code != ERR_NONE) return code;
            continue;
        }
        alias *to = &en->alias[en->n_alias++];
        snprintf(to->name, sizeof to->name, "%s", al->alias);
        to->version = al->version;
        to->previous = al->previous;
    }
    return ERR_NONE;
}

static err_code load_all(registry *r, err *e)
{
    adapter_rows rows;
    err_code code = adapter_rows_load(r->db, &rows, e);
    for (size_t i = 0; code == ERR_NONE && i < rows.n_adapter; i++)
        if (add_entry(r, &rows.adapter[i]) == NULL) code = no_memory(e);
    for (size_t i = 0; code == ERR_NONE && i < rows.n_version; i++)
        code = load_one_version(r, &rows, &rows.version[i], e);
    if (code == ERR_NONE) code = load_aliases(r, &rows, e);
    /* Names whose last version is gone: a delete that a crash cut short. */
    for (size_t i = 0; code == ERR_NONE && i < rows.n_adapter; i++) {
        entry *en = find_entry(r, rows.adapter[i].tenant_id, rows.adapter[i].name);
        if (en == NULL || en->n_version > 0) continue;
        code = adapter_rows_drop(r->db, en->row.id, e);
        unlink_entry(r, en);
        free_entry(en);
    }
    adapter_rows_clear(&rows);
    if (code == ERR_NONE) sweep_files(r);
    return code;
}

err_code registry_create(registry **out, store *db, const registry_config *cfg, err *e)
{
    *out = NULL;
    registry *r = calloc(1, sizeof *r);
    if (r == NULL) return no_memory(e);
    r->db = db;
    for (int i = 0; cfg != NULL && i < cfg->n_reserved; i++)
        snprintf(r->reserved[r->n_reserved++], sizeof r->reserved[0], "%s", cfg->reserved[i]);
    pthread_mutex_init(&r->files, NULL);
    pthread_mutex_init(&r->change, NULL);
    pthread_mutex_init(&r->mu, NULL);
    char path[4200];
    err_code code = ERR_NONE;
    snprintf(path, sizeof path, "%s/adapters", store_dir(db));
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        code = err_set(e, ERR_IO, "cannot make the adapters' directory: %s", strerror(errno));
    if (code == ERR_NONE) code = load_all(r, e);
    if (code != ERR_NONE) {
        registry_destroy(r);
        return code;
    }
    *out = r;
    return ERR_NONE;
}

void registry_destroy(registry *r)
{
    if (r == NULL) return;
    for (size_t b = 0; b < BUCKETS; b++)
        for (entry *en = r->by_name[b], *next; en != NULL; en = next) {
            next = en->next;
            for (int i = 0; i < en->n_version; i++) {
                version *v = en->version[i];
                if (v->pins != 0) {
                    log_error("adapters", "registry destroyed while %s@%d is held by %d",
                              v->pub.name, v->pub.version, v->pins);
                    abort();
                }
                free_version(v);
            }
            free_entry(en);
        }
    pthread_mutex_destroy(&r->files);
    pthread_mutex_destroy(&r->change);
    pthread_mutex_destroy(&r->mu);
    free(r);
}

void registry_on_gone(registry *r, void (*fn)(void *self, uint64_t version_id), void *self)
{
    pthread_mutex_lock(&r->mu);
    r->gone = fn;
    r->gone_self = self;
    pthread_mutex_unlock(&r->mu);
}

/* ---- resolve -------------------------------------------------------------------------------- */

typedef struct model_name {
    char name[ADAPTER_NAME_MAX + 1], alias[ADAPTER_NAME_MAX + 1];
    int number; /* 0: by alias */
} model_name;

/* "name", "name@7", "name:alias" */
static bool split_model(const char *model, model_name *out)
{
    size_t n = strcspn(model, "@:");
    if (n == 0 || n > ADAPTER_NAME_MAX) return false;
    memcpy(out->name, model, n);
    out->name[n] = 0;
    if (!name_valid(out->name)) return false;
    out->number = 0;
    snprintf(out->alias, sizeof out->alias, "default");
    const char *rest = model + n;
    if (*rest == 0) return true;
    if (*rest == ':') {
        if (!name_valid(rest + 1)) return false;
        snprintf(out->alias, sizeof out->alias, "%s", rest + 1);
        return true;
    }
    rest++;
    size_t digits = strspn(rest, "0123456789");
    if (digits == 0 || digits > 9 || rest[digits] != 0 || rest[0] == '0') return false;
    out->number = atoi(rest);
    return true;
}

static err_code unknown(err *e, const char *model)
{
    return err_set(e, ERR_NOT_FOUND, "the model '%.160s' does not exist or is not yours to use",
                   model);
}

err_code registry_acquire(registry *r, uint64_t tenant_id, const char *model, bool any_tenant,
                          const adapter_version **out, err *e)
{
    *out = NULL;
    const char *rest = model;
    const char *slash = strchr(model, '/');
    if (slash != NULL) {
        char owner[TENANT_NAME_MAX + 1];
        size_t n = (size_t)(slash - model);
        tenant t;
        if (!any_tenant || n > TENANT_NAME_MAX) return unknown(e, model);
        memcpy(owner, model, n);
        owner[n] = 0;
        if (tenants_find(r->db, owner, &t, NULL) != ERR_NONE) return unknown(e, model);
        tenant_id = t.id;
        rest = slash + 1;
    }
    model_name m;
    if (!split_model(rest, &m)) return unknown(e, model);
    err_code code = ERR_NONE;
    pthread_mutex_lock(&r->mu);
    entry *en = find_entry(r, tenant_id, m.name);
    const alias *al = en != NULL && m.number == 0 ? find_alias(en, m.alias) : NULL;
    int number = al != NULL ? al->version : m.number;
    version *v = en != NULL && !en->doomed && number != 0 ? find_number(en, number) : NULL;
    if (v == NULL) {
        code = unknown(e, model);
    } else if (v->state != ADAPTER_READY) {
        code = err_set(e, ERR_CONFLICT, "the model '%.160s' is %s%s%.120s", model,
                       adapter_state_name(v->state), v->error[0] != 0 ? ": " : "", v->error);
    } else {
        v->pins++;
        r->n_pins++;
        *out = &v->pub;
    }
    pthread_mutex_unlock(&r->mu);
    return code;
}

err_code registry_acquire_id(registry *r, uint64_t version_id, const adapter_version **out, err *e)
{
    *out = NULL;
    pthread_mutex_lock(&r->mu);
    version *v = find_id(r, version_id);
    bool ok = v != NULL && (v->state == ADAPTER_READY || v->pins > 0);
    if (ok) {
        v->pins++;
        r->n_pins++;
        *out = &v->pub;
    }
    pthread_mutex_unlock(&r->mu);
    return ok ? ERR_NONE : err_set(e, ERR_NOT_FOUND, "the adapter was deleted");
}

/* Removes a drained version without pins for good: row, memory, files, in this order.  The caller
 * has set v->finishing, so that nobody else does. */
static void finish_version(registry *r, version *v)
{
    err why;
    pthread_mutex_lock(&r->change);
    entry *en = v->owner;
    bool last = en->doomed && en->n_version == 1;
    err_code code = last ? adapter_rows_drop(r->db, en->row.id, &why)
                         : adapter_rows_set_state(r->db, v->pub.id, ADAPTER_DELETED, NULL, &why);
    /* Without the disk the row stays `draining` and the next start removes it. */
    if (code != ERR_NONE) log_error("adapters", "delete not recorded: %s", why.msg);
    adapter_version was = v->pub;
    pthread_mutex_lock(&r->mu);
    unlink_version(r, v);
    if (last) unlink_entry(r, en);
    void (*gone)(void *, uint64_t) = r->gone;
    void *self = r->gone_self;
    pthread_mutex_unlock(&r->mu);
    free_version(v);
    if (last) free_entry(en);
    atomic_fetch_add(&r->n_changes, 1);
    pthread_mutex_unlock(&r->change);
    if (code == ERR_NONE) drop_files_if_unused(r, was.digest);
    if (gone != NULL) gone(self, was.id);
}

void registry_release(registry *r, const adapter_version *pub)
{
    if (pub == NULL) return;
    pthread_mutex_lock(&r->mu);
    version *v = find_id(r, pub->id);
    if (v == NULL || v->pins <= 0) {
        log_error("adapters", "released an adapter version that nobody holds");
        abort();
    }
    v->pins--;
    r->n_pins--;
    bool finish = v->pins == 0 && v->state == ADAPTER_DRAINING && !v->finishing;
    if (finish) v->finishing = true;
    pthread_mutex_unlock(&r->mu);
    if (finish) finish_version(r, v);
}

/* ---- changes ----------------------------------------------------------------------------------- */

/* Reads an entry under `mu`; entries live on while `change` is held. */
static entry *entry_of(registry *r, uint64_t tenant_id, const char *name, err *e)
{
    pthread_mutex_lock(&r->mu);
    entry *en = find_entry(r, tenant_id, name);
    if (en != NULL && en->doomed) en = NULL;
    pthread_mutex_unlock(&r->mu);
    if (en == NULL) err_set(e, ERR_NOT_FOUND, "there is no adapter named '%.64s'", name);
    return en;
}

err_code registry_check_name(const registry *r, const char *name, err *e)
{
    if (!name_valid(name))
        return err_set(e, ERR_INPUT,
                       "an adapter's name is 1 to %d of a-z 0-9 . _ - and starts with a letter or "
                       "digit",
                       ADAPTER_NAME_MAX);
    for (int i = 0; i < r->n_reserved; i++)
        if (strcmp(r->reserved[i], name) == 0)
            return err_set(e, ERR_INPUT, "'%s' is the name of the base model", name);
    return ERR_NONE;
}

/* The alias as it must look after it was pointed at `to`. */
static void point_alias(entry *en, const char *name, int to, int previous)
{
    alias *al = find_alias(en, name);
    if (al == NULL) {
        al = &en->alias[en->n_alias++];
        snprintf(al->name, sizeof al->name, "%s", name);
    }
    al->version = to;
    al->previous = previous;
}

static version *newest_ready(const entry *en)
{
    for (int i = en->n_version - 1; i >= 0; i--)
        if (en->version[i]->state == ADAPTER_READY) return en->version[i];
    return NULL;
}

static err_code set_alias_changing(registry *r, entry *en, const char *name, int number, err *e)
{
    const alias *al = find_alias(en, name);
    int previous = al != NULL ? al->version : 0;
    if (previous == number) previous = al->previous;
    uint64_t generation = en->row.generation + 1;
    err_code code =
        adapter_rows_set_alias(r->db, en->row.id, name, number, previous, generation, e);
    if (code != ERR_NONE) return code;
    pthread_mutex_lock(&r->mu);
    point_alias(en, name, number, previous);
    en->row.generation = generation;
    pthread_mutex_unlock(&r->mu);
    return ERR_NONE;
}

/* The newest version has this content already: nothing to store, at most the alias moves. */
static err_code publish_again(registry *r, entry *en, const registry_new_version *nv,
                              adapter_version *out, bool *existed, err *e)
{
    version *v = newest_ready(en);
    *existed = v != NULL && memcmp(v->pub.digest, nv->digest, DIGEST_BYTES) == 0;
    if (!*existed) return ERR_NONE;
    const alias *al = find_alias(en, "default");
    err_code code = ERR_NONE;
    if (al == NULL || (nv->activate && al->version != v->pub.version))
        code = set_alias_changing(r, en, "default", v->pub.version, e);
    if (code == ERR_NONE && out != NULL) *out = v->pub;
    return code;
}

static err_code publish_new(registry *r, entry *en, const registry_new_version *nv,
                            adapter_version *out, err *e)
{
    adapter_row a = {.tenant_id = nv->tenant_id};
    version_row v = {
        .file_bytes = nv->file_bytes, .packed_bytes = nv->packed_bytes, .rank_max = nv->rank_max};
    snprintf(a.name, sizeof a.name, "%s", nv->name);
    snprintf(a.description, sizeof a.description, "%s",
             nv->description != NULL ? nv->description : "");
    snprintf(v.info, sizeof v.info, "%s", nv->info != NULL ? nv->info : "{}");
    memcpy(v.digest, nv->digest, DIGEST_BYTES);
    v.has_part_sha = nv->part_sha != NULL;
    if (v.has_part_sha) memcpy(v.part_sha, nv->part_sha, sizeof v.part_sha);
    const alias *al = en != NULL ? find_alias(en, "default") : NULL;
    int previous = al != NULL ? al->version : 0;
    err_code code =
        adapter_rows_publish(r->db, &a, &v, nv->activate, nv->max_adapters, nv->max_bytes, e);
    if (code != ERR_NONE) return code;
    pthread_mutex_lock(&r->mu);
    if (en == NULL)
        en = add_entry(r, &a);
    else
        en->row = a;
    version *made = en != NULL ? add_version(r, en, &v) : NULL;
    if (made == NULL) {
        code = no_memory(e); /* the rows are there; the next start shows them */
    } else {
        if (nv->activate || previous == 0) point_alias(en, "default", v.version, previous);
        if (out != NULL) *out = made->pub;
    }
    pthread_mutex_unlock(&r->mu);
    return code;
}

/* `expected` < 0: whatever it is; a name that does not exist has generation 0. */
static err_code check_generation(const entry *en, int64_t expected, err *e)
{
    uint64_t is = en != NULL ? en->row.generation : 0;
    if (expected < 0 || (uint64_t)expected == is) return ERR_NONE;
    if (en == NULL) return err_set(e, ERR_STALE, "there is no adapter of that name (any more)");
    return err_set(e, ERR_STALE,
                   "the adapter was changed meanwhile: its generation is %llu, not %lld",
                   (unsigned long long)is, (long long)expected);
}

err_code registry_publish(registry *r, const registry_new_version *nv, adapter_version *out,
                          bool *existed, err *e)
{
    bool again = false;
    err_code code = registry_check_name(r, nv->name, e);
    if (code != ERR_NONE) return code;
    pthread_mutex_lock(&r->change);
    pthread_mutex_lock(&r->mu);
    entry *en = find_entry(r, nv->tenant_id, nv->name);
    bool doomed = en != NULL && en->doomed;
    pthread_mutex_unlock(&r->mu);
    if (doomed)
        code = err_set(e, ERR_CONFLICT,
                       "'%s' was deleted and still serves its last requests: try again", nv->name);
    else if (nv->if_generation)
        code = check_generation(en, (int64_t)nv->generation, e);
    if (code == ERR_NONE && en != NULL) code = publish_again(r, en, nv, out, &again, e);
    if (code == ERR_NONE && !again) code = publish_new(r, en, nv, out, e);
    atomic_fetch_add(&r->n_changes, 1);
    pthread_mutex_unlock(&r->change);
    if (existed != NULL) *existed = again;
    return code;
}

static err_code check_target(registry *r, entry *en, int number, err *e)
{
    pthread_mutex_lock(&r->mu);
    const version *v = find_number(en, number);
    bool ready = v != NULL && v->state == ADAPTER_READY;
    pthread_mutex_unlock(&r->mu);
    if (v == NULL) return err_set(e, ERR_NOT_FOUND, "'%s' has no version %d", en->row.name, number);
    return ready ? ERR_NONE
                 : err_set(e, ERR_CONFLICT, "version %d of '%s' cannot be served", number,
                           en->row.name);
}

err_code registry_set_alias(registry *r, uint64_t tenant_id, const char *name, const char *al,
                            int number, int64_t expected_generation, uint64_t *generation, err *e)
{
    if (!name_valid(al))
        return err_set(e, ERR_INPUT, "an alias is made of a-z 0-9 . _ - as names are");
    err_code code = ERR_NOT_FOUND;
    pthread_mutex_lock(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    if (en != NULL) {
        code = check_generation(en, expected_generation, e);
        if (code == ERR_NONE) code = check_target(r, en, number, e);
        if (code == ERR_NONE && find_alias(en, al) == NULL && en->n_alias == REGISTRY_ALIAS_MAX)
            code = err_set(e, ERR_LIMIT, "an adapter has at most %d aliases", REGISTRY_ALIAS_MAX);
        if (code == ERR_NONE) code = set_alias_changing(r, en, al, number, e);
        if (code == ERR_NONE && generation != NULL) *generation = en->row.generation;
    }
    atomic_fetch_add(&r->n_changes, 1);
    pthread_mutex_unlock(&r->change);
    return code;
}

err_code registry_drop_alias(registry *r, uint64_t tenant_id, const char *name, const char *al,
                             int64_t expected_generation, err *e)
{
    if (strcmp(al, "default") == 0)
        return err_set(e, ERR_CONFLICT, "the alias default cannot be removed, only moved");
    err_code code = ERR_NOT_FOUND;
    pthread_mutex_lock(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    alias *found = en != NULL ? find_alias(en, al) : NULL;
    if (en != NULL && found == NULL)
        code = err_set(e, ERR_NOT_FOUND, "'%s' has no alias '%.64s'", name, al);
    if (found != NULL) {
        code = check_generation(en, expected_generation, e);
        uint64_t generation = en->row.generation + 1;
        if (code == ERR_NONE) code = adapter_rows_drop_alias(r->db, en->row.id, al, generation, e);
        if (code == ERR_NONE) {
            pthread_mutex_lock(&r->mu);
            *found = en->alias[--en->n_alias];
            en->row.generation = generation;
            pthread_mutex_unlock(&r->mu);
        }
    }
    atomic_fetch_add(&r->n_changes, 1);
    pthread_mutex_unlock(&r->change);
    return code;
}

err_code registry_rollback(registry *r, uint64_t tenant_id, const char *name, const char *al,
                           int *number, err *e)
{
    err_code code = ERR_NOT_FOUND;
    pthread_mutex_lock(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    const alias *found = en != NULL ? find_alias(en, al) : NULL;
    if (en != NULL && found == NULL)
        code = err_set(e, ERR_NOT_FOUND, "'%s' has no alias '%.64s'", name, al);
    if (found != NULL) {
        int to = found->previous;
        if (to == 0)
            code =
                err_set(e, ERR_CONFLICT, "'%s:%s' has no earlier version to go back to", name, al);
        else
            code = check_target(r, en, to, e);
        if (code == ERR_NOT_FOUND) e->code = code = ERR_CONFLICT; /* deleted meanwhile */
        if (code == ERR_NONE) code = set_alias_changing(r, en, al, to, e);
        if (code == ERR_NONE && number != NULL) *number = to;
    }
    atomic_fetch_add(&r->n_changes, 1);
    pthread_mutex_unlock(&r->change);
    return code;
}

err_code registry_set_meta(registry *r, uint64_t tenant_id, const char *name,
                           const char *description, const bool *pinned, err *e)
{
    if (description != NULL && strlen(description) >= ADAPTER_DESCRIPTION_MAX)
        return err_set(e, ERR_INPUT, "a description has at most %d bytes",
                       ADAPTER_DESCRIPTION_MAX - 1);
    err_code code = ERR_NOT_FOUND;
    pthread_mutex_lock(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    if (en != NULL) {
        adapter_row row = en->row;
        row.generation++;
        if (description != NULL)
            snprintf(row.description, sizeof row.description, "%s", description);
        if (pinned != NULL) row.pinned = *pinned;
        code = adapter_rows_set_meta(r->db, row.id, row.description, row.pinned, row.generation, e);
        if (code == ERR_NONE) {
            pthread_mutex_lock(&r->mu);
            en->row = row;
            pthread_mutex_unlock(&r->mu);
        }
    }
    atomic_fetch_add(&r->n_changes, 1);
    pthread_mutex_unlock(&r->change);
    return code;
}

/* ---- delete -------------------------------------------------------------------------------------- */

/* Marks the versions as draining under `mu`.  ERR_CONFLICT (nothing marked) while requests hold
 * one and !drain. */
static err_code mark_draining(registry *r, entry *en, version *only, bool drain, err *e)
{
    err_code code = ERR_NONE;
    pthread_mutex_lock(&r->mu);
    int pins = 0;
    for (int i = 0; i < en->n_version; i++)
        if (only == NULL || only == en->version[i]) pins += en->version[i]->pins;
    if (pins > 0 && !drain)
        code = err_set(e, ERR_CONFLICT,
                       "'%s' is in use by %d requests: try again, or delete with drain",
                       en->row.name, pins);
    for (int i = 0; code == ERR_NONE && i < en->n_version; i++)
        if (only == NULL || only == en->version[i]) en->version[i]->state = ADAPTER_DRAINING;
    if (code == ERR_NONE && only == NULL) en->doomed = true;
    pthread_mutex_unlock(&r->mu);
    return code;
}

/* Takes over those that nobody holds; the others are finished by their last release. */
static int take_idle(registry *r, entry *en, version *only, version **list, bool *draining)
{
    int n = 0;
    *draining = false;
    pthread_mutex_lock(&r->mu);
    for (int i = 0; i < en->n_version; i++) {
        version *v = en->version[i];
        if (only != NULL && only != v) continue;
        if (v->pins > 0) *draining = true;
        if (v->pins > 0 || v->finishing) continue;
        v->finishing = true;
        list[n++] = v;
    }
    pthread_mutex_unlock(&r->mu);
    return n;
}

static err_code check_unaliased(const entry *en, int number, err *e)
{
    for (int i = 0; i < en->n_alias; i++)
        if (en->alias[i].version == number)
            return err_set(e, ERR_CONFLICT,
                           "the alias '%s' points at version %d: move the alias first",
                           en->alias[i].name, number);
    return ERR_NONE;
}

err_code registry_delete(registry *r, uint64_t tenant_id, const char *name, int number, bool drain,
                         bool *draining, err *e)
{
    bool busy = false;
    version **idle = NULL;
    int n_idle = 0;
    err_code code = ERR_NOT_FOUND;
    pthread_mutex_lock(&r->change);
    entry *en = entry_of(r, tenant_id, name, e);
    if (en == NULL) goto out;
    version *only = NULL;
    if (number != 0) {
        pthread_mutex_lock(&r->mu);
        only = find_number(en, number);
        if (only != NULL && only->state == ADAPTER_DRAINING) only = NULL;
        pthread_mutex_unlock(&r->mu);
        code = only == NULL ? err_set(e, ERR_NOT_FOUND, "'%s' has no version %d", name, number)
                            : check_unaliased(en, number, e);
        if (code != ERR_NONE) goto out;
    }
    idle = calloc((size_t)en->n_version + 1, sizeof(version *));
    code = idle == NULL ? no_memory(e) : mark_draining(r, en, only, drain, e);
    if (code != ERR_NONE) goto out;
    /* From here on no request can take it.  If the disk refuses, that still holds until a restart;
     * the caller learns of it. */
    code = only != NULL ? adapter_rows_set_state(r->db, only->pub.id, ADAPTER_DRAINING, NULL, e)
                        : adapter_rows_drain(r->db, en->row.id, e);
    n_idle = take_idle(r, en, only, idle, &busy);
out:
    atomic_fetch_add(&r->n_changes, 1);
    pthread_mutex_unlock(&r->change);
    for (int i = 0; i < n_idle; i++) finish_version(r, idle[i]);
    free(idle);
    if (draining != NULL) *draining = busy;
    return code;
}

/* ---- looking ---------------------------------------------------------------------------------------- */

static void copy_entry(const entry *en, adapter_entry *out)
{
    memset(out, 0, sizeof *out);
    out->id = en->row.id;
    out->tenant_id = en->row.tenant_id;
    memcpy(out->name, en->row.name, sizeof out->name);
    memcpy(out->description, en->row.description, sizeof out->description);
    out->pinned = en->row.pinned;
    out->generation = en->row.generation;
    out->created_wall_us = en->row.created_wall_us;
    for (int i = 0; i < en->n_version; i++) {
        out->n_versions += en->version[i]->state == ADAPTER_READY;
        out->file_bytes += en->version[i]->pub.file_bytes;
    }
    out->n_alias = en->n_alias;
    for (int i = 0; i < en->n_alias; i++) {
        memcpy(out->alias[i].alias, en->alias[i].name, sizeof out->alias[i].alias);
        out->alias[i].version = en->alias[i].version;
        out->alias[i].previous = en->alias[i].previous;
        if (strcmp(en->alias[i].name, "default") == 0) out->default_version = en->alias[i].version;
    }
}

static void copy_version(const version *v, version_entry *out)
{
    out->v = v->pub;
    out->state = v->state;
    out->pins = v->pins;
    snprintf(out->error, sizeof out->error, "%s", v->error);
    snprintf(out->info, sizeof out->info, "%s", v->info);
}

static int by_tenant_and_name(const void *a, const void *b)
{
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    if (x->row.tenant_id != y->row.tenant_id) return x->row.tenant_id < y->row.tenant_id ? -1 : 1;
    return strcmp(x->row.name, y->row.name);
}

err_code registry_list(registry *r, uint64_t tenant_id, const char *after, size_t limit,
                       adapter_entry **out, size_t *n, err *e)
{
    err_code code = ERR_NONE;
    *out = NULL;
    *n = 0;
    if (tenant_id == 0) after = NULL;
    pthread_mutex_lock(&r->mu);
    entry **list = malloc((r->n_entry + 1) * sizeof(entry *));
    size_t count = 0;
    for (size_t b = 0; list != NULL && b < BUCKETS; b++)
        for (entry *en = r->by_name[b]; en != NULL; en = en->next)
            if (!en->doomed && (tenant_id == 0 || en->row.tenant_id == tenant_id) &&
                (after == NULL || strcmp(en->row.name, after) > 0))
                list[count++] = en;
    if (list != NULL) {
        qsort(list, count, sizeof *list, by_tenant_and_name);
        if (limit != 0 && count > limit) count = limit;
        *out = malloc((count + 1) * sizeof **out);
        for (size_t i = 0; *out != NULL && i < count; i++) copy_entry(list[i], &(*out)[i]);
    }
    pthread_mutex_unlock(&r->mu);
    free(list);
    if (*out == NULL)
        code = no_memory(e);
    else
        *n = count;
    return code;
}

uint64_t registry_changes(const registry *r)
{
    return atomic_load(&((registry *)r)->n_changes);
}

static void summarise(entry *en, registry_summary *out)
{
    *out = (registry_summary){
        .id = en->row.id, .tenant_id = en->row.tenant_id, .pinned = en->row.pinned};
    memcpy(out->name, en->row.name, sizeof out->name);
    const alias *al = find_alias(en, "default");
    if (al != NULL) {
        out->default_version = al->version;
        out->previous = al->previous;
    }
    for (int i = 0; i < en->n_version; i++) {
        const version *v = en->version[i];
        out->n_versions += v->state == ADAPTER_READY;
        out->file_bytes += v->pub.file_bytes;
        if (al == NULL || v->pub.version != al->version) continue;
        out->default_id = v->pub.id;
        out->rank_max = v->pub.rank_max;
        out->packed_bytes = v->pub.packed_bytes;
    }
}

err_code registry_summaries(registry *r, registry_summary **out, size_t *n, err *e)
{
    size_t cap = 0, count = 0;
    registry_summary *list = NULL;
    for (size_t b = 0; b < BUCKETS; b++) {
        if (b % 64 == 0) pthread_mutex_lock(&r->mu);
        for (entry *en = r->by_name[b]; en != NULL; en = en->next) {
            if (en->doomed) continue;
            if (count == cap) {
                cap = cap ? cap * 2 : 256;
                registry_summary *more = realloc(list, cap * sizeof *more);
                if (more == NULL) {
                    pthread_mutex_unlock(&r->mu);
                    free(list);
                    return no_memory(e);
                }
                list = more;
            }
            summarise(en, &list[count++]);
        }
        if (b % 64 == 63) pthread_mutex_unlock(&r->mu);
    }
    *out = list;
    *n = count;
    return ERR_NONE;
}

err_code registry_get(registry *r, uint64_t tenant_id, const char *name, adapter_entry *out, err *e)
{
    pthread_mutex_lock(&r->mu);
    const entry *en = find_entry(r, tenant_id, name);
    bool found = en != NULL && !en->doomed;
    if (found) copy_entry(en, out);
    pthread_mutex_unlock(&r->mu);
    return found ? ERR_NONE : err_set(e, ERR_NOT_FOUND, "there is no adapter named '%.64s'", name);
}

err_code registry_versions(registry *r, uint64_t tenant_id, const char *name, version_entry **out,
                           size_t *n, err *e)
{
    err_code code = ERR_NONE;
    *out = NULL;
    *n = 0;
    pthread_mutex_lock(&r->mu);
    const entry *en = find_entry(r, tenant_id, name);
    if (en == NULL || en->doomed) {
        code = err_set(e, ERR_NOT_FOUND, "there is no adapter named '%.64s'", name);
    } else if ((*out = calloc((size_t)en->n_version + 1, sizeof **out)) == NULL) {
        code = no_memory(e);
    } else {
        for (int i = en->n_version - 1; i >= 0; i--) copy_version(en->version[i], *out + (*n)++);
    }
    pthread_mutex_unlock(&r->mu);
    return code;
}

err_code registry_version(registry *r, uint64_t tenant_id, const char *name, int number,
                          version_entry *out, err *e)
{
    pthread_mutex_lock(&r->mu);
    const entry *en = find_entry(r, tenant_id, name);
    const version *v = en != NULL && !en->doomed ? find_number(en, number) : NULL;
    if (v != NULL) copy_version(v, out);
    pthread_mutex_unlock(&r->mu);
    return v != NULL ? ERR_NONE
                     : err_set(e, ERR_NOT_FOUND, "there is no version %d of an adapter '%.64s'",
                               number, name);
}

void registry_totals_get(registry *r, uint64_t tenant_id, registry_totals *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&r->mu);
    for (size_t b = 0; b < BUCKETS; b++)
        for (const entry *en = r->by_name[b]; en != NULL; en = en->next) {
            if (tenant_id != 0 && en->row.tenant_id != tenant_id) continue;
            out->n_adapters += !en->doomed;
            out->n_versions += (size_t)en->n_version;
            for (int i = 0; i < en->n_version; i++) {
                out->n_pins += (size_t)en->version[i]->pins;
                out->file_bytes += en->version[i]->pub.file_bytes;
            }
        }
    pthread_mutex_unlock(&r->mu);
}
