/* depot.c -- adapter files in an object store (S3), shared by the nodes of a fleet: downloads,
 * checks of what is stored, and the bound of the local cache.
 *
 *   request for a version whose files are not here --> flight (one per content) --> THREADS
 *   download
 *      DUE --> RUNS --> DONE
 *               |
 *               +--> FAILED: tried again after a pause, which doubles from 1 s to 60 s; requests
 *                    get an error that says when to retry
 *
 * A few threads serve what is due, flights before looks. A look verifies after each change, and in
 * a sweep every 6 hours, that each published version's files are in the store, and uploads or
 * deletes accordingly.
 *
 * Downloaded files are hashed and must match the version's digest before they are renamed into
 * place. The cache is trimmed by last use; files in use, and last copies that the store does not
 * have, stay.
 *
 * Keys are sha256/DIGEST/FILE, so equal contents are stored once. Threads: `mu` guards flights,
 * looks and statistics; it is not held over the network or disk.
 */
#include "adapters/store/depot.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/format/words.h"
#include "adapters/store/publish.h"
#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"

enum { THREADS = 4, IDS_MAX = 64 };
enum {
    WAIT_US = 250000,         /* interval at which a waiting request checks whether its client
                               * has gone */
    LOOK_US = 2000000,        /* from a change to the look at its content */
    LOOK_AGAIN_US = 30000000, /* after a look that failed */
    PAUSE_US = 1000000,       /* after a flight that failed; doubles up to ... */
    PAUSE_MAX_US = 60000000,
    RETRY_MS = 2000, /* before any rate is known */
    RETRY_MAX_MS = 60000,
};
/* Interval of sweeps over all local files; after a failed one. */
static const int64_t SWEEP_US = 6ll * 3600 * 1000000, SWEEP_AGAIN_US = 600ll * 1000000;

typedef enum { FLIGHT_DUE, FLIGHT_RUNS, FLIGHT_FAILED, FLIGHT_DONE } flight_state;

typedef struct flight {
    struct flight *next;
    adapter_version v;
    flight_state state;
    int n_waiting, n_failed;
    int64_t begun_us, again_us;
    _Atomic uint64_t received;
} flight;

typedef struct look {
    uint8_t digest[DIGEST_BYTES];
    int64_t due_us;
} look;

struct depot {
    depot_config cfg;
    pthread_t thread[THREADS];
    int n_threads;

    lock mu; /* guards all below */
    cond work, news;
    bool stop, trims;
    flight *flights;
    look *looks;
    size_t n_looks, cap_looks;
    int64_t sweep_us;
    uint64_t coming; /* bytes of flights that run */
    double rate;     /* bytes a second of the latest flight; 0: none yet */
    depot_stats stats;
};

/* ------------------------------------------------------------------------------ objects -- */

enum { KEY_MAX = 8 + DIGEST_HEX + 64 };

static void key_of(const uint8_t digest[DIGEST_BYTES], int part, char out[KEY_MAX])
{
    char hex[DIGEST_HEX];
    digest_hex(digest, hex);
    snprintf(out, KEY_MAX, "sha256/%s/%s", hex, folder_part_names[part]);
}

static int open_part(int dir_fd, int part)
{
    return openat(dir_fd, folder_part_names[part], O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

/* Logs the details of a failing store; the client gets less. */
static err_code tell(const char *what, const err *why, err *e)
{
    log_error("store", "%s: %s", what, why->msg);
    return err_set(e, ERR_IO, "the object store does not accept the adapter's files: try again");
}

err_code depot_store(depot *d, int dir_fd, const uint64_t bytes[PART_COUNT],
                     const uint8_t sha[PART_COUNT][DIGEST_BYTES],
                     const uint8_t digest[DIGEST_BYTES], err *e)
{
    err why;
    err_code rc = ERR_NONE;
    for (int p = 0; d && p < PART_COUNT && !rc; p++) {
        char key[KEY_MAX];
        key_of(digest, p, key);
        int fd = open_part(dir_fd, p);
        rc = fd >= 0 ? d->cfg.remote.put(d->cfg.remote.self, key, fd, bytes[p], sha[p], &why)
                     : folder_disk_error(&why, "read");
        if (fd >= 0) close(fd);
    }
    if (!d) return ERR_NONE;
    lock_take(&d->mu);
    d->stats.n_stored += !rc;
    d->stats.n_store_failed += rc != ERR_NONE;
    lock_release(&d->mu);
    return !rc || rc == ERR_LIMIT ? rc && e ? err_set(e, rc, "%s", why.msg) : rc
                                  : tell("an upload is not stored", &why, e);
}

/* Does the store have both, in their sizes?  ERR_NOT_FOUND: it does not. */
static err_code is_stored(depot *d, const uint8_t digest[DIGEST_BYTES], uint64_t bytes, err *e)
{
    uint64_t sum = 0;
    for (int p = 0; p < PART_COUNT; p++) {
        char key[KEY_MAX];
        uint64_t n;
        key_of(digest, p, key);
        err_code rc = d->cfg.remote.size(d->cfg.remote.self, key, &n, e);
        if (rc) return rc;
        sum += n;
    }
    return sum == bytes ? ERR_NONE
                        : err_set(e, ERR_NOT_FOUND, "the store has %llu of %llu bytes",
                                  (unsigned long long)sum, (unsigned long long)bytes);
}

/* ------------------------------------------------------------------------------- flights -- */

typedef struct {
    flight *f;
    int fd, part;
    uint64_t most, bytes;
    digest_state hash;
} landing;

static err_code land_begin(void *arg, err *e)
{
    landing *l = arg;
    atomic_fetch_sub(&l->f->received, l->bytes);
    l->bytes = 0;
    digest_begin(&l->hash);
    if (ftruncate(l->fd, 0) != 0 || lseek(l->fd, 0, SEEK_SET) != 0)
        return folder_disk_error(e, "store");
    return ERR_NONE;
}

static err_code land(void *arg, const void *data, size_t len, err *e)
{
    landing *l = arg;
    if (len > l->most - l->bytes)
        return err_set(e, ERR_CORRUPT, "%s is longer than the version's files",
                       folder_part_names[l->part]);
    digest_add(&l->hash, data, len);
    l->bytes += len;
    atomic_fetch_add(&l->f->received, len);
    return folder_put(l->fd, data, len, e);
}

/* One object into the open folder. */
static err_code receive(depot *d, flight *f, int dir_fd, int part, uint64_t most, uint64_t *bytes,
                        uint8_t sha[DIGEST_BYTES], err *e)
{
    char key[KEY_MAX];
    bool taken;
    landing l = {.f = f, .part = part, .most = most};
    const remote_sink sink = {land_begin, land, &l};
    key_of(f->v.digest, part, key);
    l.fd = openat(dir_fd, folder_part_names[part], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (l.fd < 0) return folder_disk_error(e, "store");
    err_code rc = part == PART_WEIGHTS ? storeroom_take(d->cfg.room, l.fd, most, &taken, e) : 0;
    if (!rc) rc = d->cfg.remote.get(d->cfg.remote.self, key, &sink, e);
    storeroom_give_back(l.fd);
    if (!rc && fsync(l.fd) != 0) rc = folder_disk_error(e, "sync");
    if (close(l.fd) != 0 && !rc) rc = folder_disk_error(e, "sync");
    if (rc) return rc;
    digest_end(&l.hash, sha);
    *bytes = l.bytes;
    return ERR_NONE;
}

/* Both objects into a fresh folder; they are what the version's digest names. */
static err_code receive_all(depot *d, flight *f, int dir_fd, uint8_t sha[PART_COUNT][DIGEST_BYTES],
                            err *e)
{
    uint64_t bytes[PART_COUNT], left = f->v.file_bytes;
    uint8_t whole[DIGEST_BYTES];
    char *text = NULL;
    err_code rc = adapter_rows_words(registry_store(d->cfg.reg), f->v.id, &text, e);
    for (int p = 0; p < PART_COUNT && !rc; p++) {
        rc = receive(d, f, dir_fd, p, left, &bytes[p], sha[p], e);
        if (!rc) left -= bytes[p];
    }
    if (!rc) {
        adapter_digest(bytes, (const uint8_t(*)[DIGEST_BYTES])sha, text, whole);
        if (memcmp(whole, f->v.digest, DIGEST_BYTES) != 0)
            rc = err_set(e, ERR_CORRUPT, "its content is not what its digest says");
    }
    free(text);
    return rc;
}

static err_code bring(depot *d, flight *f, err *e)
{
    registry *reg = d->cfg.reg;
    char path[FOLDER_PATH_MAX];
    int dir_fd;
    uint8_t sha[PART_COUNT][DIGEST_BYTES];
    err_code rc = publish_tmp(reg, path, &dir_fd, e);
    if (!rc) rc = receive_all(d, f, dir_fd, sha, e);
    if (!rc) {
        registry_files_lock(reg);
        rc = publish_place(reg, path, dir_fd, (const uint8_t(*)[DIGEST_BYTES])sha, f->v.digest, e);
        registry_files_forget(reg, f->v.digest); /* deleted meanwhile */
        registry_files_unlock(reg);
    }
    if (dir_fd >= 0) close(dir_fd);
    if (path[0]) folder_remove(path);
    if (!rc) (void)registry_look_again(reg, f->v.id);
    return rc;
}

/* -------------------------------------------------------------------------------- cache -- */

static int by_use(const void *a, const void *b)
{
    const registry_content *x = a, *y = b;
    return x->last_use_us < y->last_use_us ? -1 : x->last_use_us > y->last_use_us;
}

static bool in_use(const depot *d, const uint8_t digest[DIGEST_BYTES])
{
    uint64_t id[IDS_MAX];
    int n = registry_versions_of(d->cfg.reg, digest, id, IDS_MAX);
    bool used = n > IDS_MAX;
    for (int i = 0; i < n && !used && d->cfg.in_use; i++)
        used = d->cfg.in_use(d->cfg.in_use_self, id[i]);
    return used;
}

/* What is in use or not in the store stays, even beyond the bound. */
static void trim(depot *d, uint64_t coming)
{
    registry_content *list;
    size_t n;
    uint64_t here = coming;
    err why;
    if (registry_contents(d->cfg.reg, &list, &n, &why)) {
        log_error("store", "%s", why.msg);
        return;
    }
    for (size_t i = 0; i < n; i++) here += list[i].bytes;
    if (here > d->cfg.cache_bytes) qsort(list, n, sizeof(*list), by_use);
    for (size_t i = 0; i < n && here > d->cfg.cache_bytes; i++) {
        const registry_content *c = &list[i];
        if (!c->idle || in_use(d, c->digest)) continue;
        err_code rc = is_stored(d, c->digest, c->bytes, &why);
        if (rc == ERR_NOT_FOUND) continue; /* the last copy */
        if (rc) break;                     /* nobody knows */
        if (!registry_files_evict(d->cfg.reg, c->digest)) continue;
        here -= c->bytes;
        lock_take(&d->mu);
        d->stats.n_evicted++;
        lock_release(&d->mu);
    }
    free(list);
}

/* One at a time, so that two downloads do not count on the same space. */
static void make_room(depot *d)
{
    if (d->cfg.cache_bytes == 0) return;
    lock_take(&d->mu);
    while (d->trims) cond_wait(&d->news, &d->mu);
    d->trims = true;
    uint64_t coming = d->coming;
    lock_release(&d->mu);
    trim(d, coming);
    lock_take(&d->mu);
    d->trims = false;
    cond_broadcast(&d->news);
    lock_release(&d->mu);
}

/* -------------------------------------------------------------------------------- looks -- */

static void look_later_locked(depot *d, const uint8_t digest[DIGEST_BYTES], int64_t due_us)
{
    lock_assert_held(&d->mu);
    size_t i = 0;
    while (i < d->n_looks && memcmp(d->looks[i].digest, digest, DIGEST_BYTES) != 0) i++;
    if (i == d->cap_looks) {
        size_t cap = d->cap_looks ? 2 * d->cap_looks : 64;
        look *more = realloc(d->looks, cap * sizeof(*more));
        if (!more) return; /* the next sweep sees it */
        d->looks = more;
        d->cap_looks = cap;
    }
    if (i == d->n_looks) d->n_looks++;
    memcpy(d->looks[i].digest, digest, DIGEST_BYTES);
    d->looks[i].due_us = due_us;
    cond_broadcast(&d->work);
}

void depot_look(depot *d, const uint8_t digest[DIGEST_BYTES])
{
    if (!d) return;
    lock_take(&d->mu);
    look_later_locked(d, digest, clock_now_us() + LOOK_US);
    lock_release(&d->mu);
}

static void dropped(void *self, const uint8_t digest[DIGEST_BYTES])
{
    depot_look(self, digest);
}

static err_code drop(depot *d, const uint8_t digest[DIGEST_BYTES], err *e)
{
    err_code rc = ERR_NONE;
    for (int p = 0; p < PART_COUNT && !rc; p++) {
        char key[KEY_MAX];
        key_of(digest, p, key);
        rc = d->cfg.remote.drop(d->cfg.remote.self, key, e);
    }
    lock_take(&d->mu);
    d->stats.n_dropped += !rc;
    lock_release(&d->mu);
    return rc;
}

/* Files that lie here go there, if they are whole. */
static err_code store_here(depot *d, const uint8_t digest[DIGEST_BYTES], err *e)
{
    char path[FOLDER_PATH_MAX];
    uint64_t bytes[PART_COUNT];
    uint8_t sha[PART_COUNT][DIGEST_BYTES];
    registry_path(d->cfg.reg, digest, path, sizeof path);
    int dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir_fd < 0) return ERR_NONE; /* it is gone, or an operator's */
    err_code rc = ERR_NONE;
    for (int p = 0; p < PART_COUNT && !rc; p++) {
        int fd = open_part(dir_fd, p);
        off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
        rc = end >= 0 ? folder_hash(fd, sha[p], e) : folder_disk_error(e, "read");
        bytes[p] = (uint64_t)end;
        if (fd >= 0) close(fd);
    }
    if (!rc) rc = depot_store(d, dir_fd, bytes, (const uint8_t(*)[DIGEST_BYTES])sha, digest, e);
    close(dir_fd);
    return rc;
}

static err_code look_at(depot *d, const uint8_t digest[DIGEST_BYTES], err *e)
{
    registry_content c;
    if (registry_versions_of(d->cfg.reg, digest, NULL, 0) == 0) return drop(d, digest, e);
    if (!registry_content_of(d->cfg.reg, digest, &c)) return ERR_NONE;
    err_code rc = is_stored(d, digest, c.bytes, e);
    return rc == ERR_NOT_FOUND ? store_here(d, digest, e) : rc;
}

static void look_once(depot *d, const uint8_t digest[DIGEST_BYTES])
{
    err why = {0};
    if (look_at(d, digest, &why)) {
        log_warn("store", "a content is not looked after yet: %s", why.msg);
        lock_take(&d->mu);
        look_later_locked(d, digest, clock_now_us() + LOOK_AGAIN_US);
        lock_release(&d->mu);
    }
    make_room(d);
}

/* What was published before there was a store, and what was lost there. */
static void sweep(depot *d)
{
    registry_content *list;
    size_t n;
    err why = {0};
    err_code rc = registry_contents(d->cfg.reg, &list, &n, &why);
    for (size_t i = 0; i < n && !rc; i++) rc = look_at(d, list[i].digest, &why);
    free(list);
    make_room(d);
    if (!rc) return;
    log_warn("store", "some files on this disk may not be in the store: %s", why.msg);
    lock_take(&d->mu);
    d->sweep_us = clock_now_us() + SWEEP_AGAIN_US;
    lock_release(&d->mu);
}

/* ------------------------------------------------------------------------------ threads -- */

static void fly(depot *d, flight *f)
{
    err why = {0};
    make_room(d);
    err_code rc = bring(d, f, &why);
    int64_t took_us = clock_now_us() - f->begun_us;
    lock_take(&d->mu);
    d->coming -= f->v.file_bytes;
    d->stats.n_failed += rc != ERR_NONE;
    d->stats.n_damaged += rc == ERR_CORRUPT;
    d->stats.fetched_bytes += atomic_load(&f->received);
    f->state = rc ? FLIGHT_FAILED : FLIGHT_DONE;
    if (!rc && took_us > 0) d->rate = 1e6 * (double)f->v.file_bytes / (double)took_us;
    int64_t pause_us = PAUSE_US;
    for (int i = 0; i < f->n_failed && pause_us < PAUSE_MAX_US; i++) pause_us *= 2;
    if (rc) f->again_us = clock_now_us() + (pause_us < PAUSE_MAX_US ? pause_us : PAUSE_MAX_US);
    f->n_failed += rc != ERR_NONE;
    cond_broadcast(&d->news);
    lock_release(&d->mu);
    if (rc)
        log_error("store", "%s@%d is not brought%s: %s", f->v.name, f->v.version,
                  rc == ERR_CORRUPT ? ", its object is damaged" : "", why.msg);
}

/* Removes flights that nobody waits for and nobody needs. */
static void clear_flights_locked(depot *d, int64_t now_us)
{
    lock_assert_held(&d->mu);
    for (flight **at = &d->flights; *at;) {
        flight *f = *at;
        bool old = f->state == FLIGHT_FAILED && now_us > f->again_us + PAUSE_MAX_US;
        if (f->n_waiting == 0 && (old || f->state == FLIGHT_DONE || d->stop)) {
            *at = f->next;
            free(f);
        } else {
            at = &f->next;
        }
    }
}

static flight *next_flight_locked(depot *d)
{
    flight *due = NULL; /* the oldest stands last */
    for (flight *f = d->flights; f; f = f->next)
        if (f->state == FLIGHT_DUE) due = f;
    if (!due) return NULL;
    due->state = FLIGHT_RUNS;
    due->begun_us = clock_now_us();
    atomic_store(&due->received, 0);
    d->coming += due->v.file_bytes;
    d->stats.n_fetches++;
    return due;
}

/* Takes a look that is due; *next_us is when the next one is. */
static bool next_look_locked(depot *d, uint8_t digest[DIGEST_BYTES], int64_t *next_us)
{
    for (size_t i = 0; i < d->n_looks; i++) {
        if (d->looks[i].due_us <= clock_now_us()) {
            memcpy(digest, d->looks[i].digest, DIGEST_BYTES);
            d->looks[i] = d->looks[--d->n_looks];
            return true;
        }
        if (d->looks[i].due_us < *next_us) *next_us = d->looks[i].due_us;
    }
    return false;
}

static void *work(void *arg)
{
    depot *d = arg;
    lock_take(&d->mu);
    while (!d->stop) {
        uint8_t digest[DIGEST_BYTES];
        int64_t now_us = clock_now_us(), next_us = d->sweep_us;
        clear_flights_locked(d, now_us);
        flight *f = next_flight_locked(d);
        bool sweeps = !f && now_us >= d->sweep_us;
        bool looks = !f && !sweeps && next_look_locked(d, digest, &next_us);
        if (sweeps) d->sweep_us = now_us + SWEEP_US;
        if (!f && !sweeps && !looks) {
            (void)cond_wait_until(&d->work, &d->mu, next_us);
            continue;
        }
        lock_release(&d->mu);
        if (f) fly(d, f);
        if (sweeps) sweep(d);
        if (looks) look_once(d, digest);
        lock_take(&d->mu);
    }
    lock_release(&d->mu);
    return NULL;
}

err_code depot_start(depot **out, const depot_config *cfg, err *e)
{
    depot *d = calloc(1, sizeof(*d));
    *out = d;
    if (!d) return err_set(e, ERR_NOMEM, "out of memory");
    d->cfg = *cfg;
    lock_init(&d->mu, LOCK_DEPOT);
    cond_init(&d->work);
    cond_init(&d->news);
    for (; d->n_threads < THREADS; d->n_threads++)
        if (pthread_create(&d->thread[d->n_threads], NULL, work, d) != 0)
            return err_set(e, ERR_NOMEM, "cannot start the object store's threads");
    registry_on_dropped(cfg->reg, dropped, d);
    return ERR_NONE;
}

void depot_stop(depot *d)
{
    if (!d) return;
    registry_on_dropped(d->cfg.reg, NULL, NULL);
    d->cfg.remote.stop(d->cfg.remote.self);
    lock_take(&d->mu);
    d->stop = true;
    cond_broadcast(&d->work);
    cond_broadcast(&d->news);
    lock_release(&d->mu);
    for (int i = 0; i < d->n_threads; i++) pthread_join(d->thread[i], NULL);
    lock_take(&d->mu);
    clear_flights_locked(d, clock_now_us());
    lock_release(&d->mu);
    free(d->looks);
    lock_free(&d->mu);
    free(d);
}

/* ------------------------------------------------------------------------------ waiting -- */

/* One for each content; one that may be tried again is due. */
static flight *flight_of_locked(depot *d, const adapter_version *v)
{
    flight *f = d->flights;
    while (f && (f->state == FLIGHT_DONE || memcmp(f->v.digest, v->digest, DIGEST_BYTES) != 0))
        f = f->next;
    if (!f) {
        f = calloc(1, sizeof(*f));
        if (!f) return NULL;
        f->next = d->flights;
        d->flights = f;
        f->v = *v;
        cond_broadcast(&d->work);
    } else if (f->state == FLIGHT_FAILED && clock_now_us() >= f->again_us) {
        f->v = *v; /* the one before may be gone */
        f->state = FLIGHT_DUE;
        cond_broadcast(&d->work);
    }
    return f;
}

/* When may it be here? */
static int64_t retry_ms(const depot *d, const flight *f, int64_t now_us)
{
    double rate = d->rate, left = (double)f->v.file_bytes, ms = RETRY_MS;
    uint64_t received = atomic_load(&f->received);
    if (f->state == FLIGHT_FAILED) return 1 + (f->again_us - now_us) / 1000;
    if (f->state == FLIGHT_RUNS && received > 0 && now_us > f->begun_us) {
        rate = 1e6 * (double)received / (double)(now_us - f->begun_us);
        left -= (double)received;
    }
    if (rate > 0) ms = 1 + 1000 * left / rate;
    return ms < RETRY_MAX_MS ? (int64_t)ms : RETRY_MAX_MS;
}

err_code depot_bring(depot *d, uint64_t version_id, int64_t until_us, int64_t *retry, err *e)
{
    adapter_version v;
    if (!registry_absent(d->cfg.reg, version_id, &v)) return ERR_NONE;
    lock_take(&d->mu);
    flight *f = d->stop ? NULL : flight_of_locked(d, &v);
    int n_failed = f ? f->n_failed : 0;
    if (f) f->n_waiting++;
    d->stats.waiting++;
    int64_t now_us = clock_now_us();
    while (f && !d->stop && f->state < FLIGHT_FAILED && f->n_failed == n_failed &&
           now_us < until_us && !(d->cfg.cut && atomic_load(d->cfg.cut))) {
        int64_t end_us = now_us + WAIT_US;
        (void)cond_wait_until(&d->news, &d->mu, end_us < until_us ? end_us : until_us);
        now_us = clock_now_us();
    }
    err_code rc = f && f->state == FLIGHT_DONE ? ERR_NONE : ERR_ELSEWHERE;
    *retry = f ? retry_ms(d, f, now_us) : RETRY_MS;
    d->stats.waiting--;
    if (f) f->n_waiting--;
    lock_release(&d->mu);
    return rc ? err_set(e, rc, "the files of '%s@%d' are on their way to this node: try again",
                        v.name, v.version)
              : ERR_NONE;
}

err_code depot_acquire(depot *d, registry *reg, uint64_t tenant_id, const char *name,
                       int64_t until_us, const adapter_version **out, int64_t *retry, err *e)
{
    uint64_t absent_id;
    err_code rc = registry_try(reg, tenant_id, name, false, out, &absent_id, e);
    *retry = RETRY_MS;
    if (rc != ERR_ELSEWHERE || !d) return rc;
    rc = depot_bring(d, absent_id, until_us, retry, e);
    return rc ? rc : registry_acquire(reg, tenant_id, name, false, out, e);
}

void depot_stats_get(depot *d, depot_stats *out)
{
    lock_take(&d->mu);
    *out = d->stats;
    out->fetching = 0;
    for (const flight *f = d->flights; f; f = f->next) out->fetching += f->state <= FLIGHT_RUNS;
    lock_release(&d->mu);
}
