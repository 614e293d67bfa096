/* residency.c -- one table, two queues, a few loader threads.
 *
 * An entry stands for a version that is resident, on its way, or has just failed; everything else is
 * on disk and has no entry.  Demand (the engine asked and got ERR_BUSY) goes before hints (prefetch,
 * warm).  A loader reads the small header first and so learns the packed size; then the entry waits
 * for room.  Room is given to the oldest demand alone, so no later and smaller one overtakes it
 * for ever; hints take what is left and evict nothing that is fresh.
 *
 * Three rules keep a small budget from locking up or turning in circles:
 *   - what was loaded on demand is not evicted before the engine took it (or FRESH_US passed, for
 *     a request that was cancelled meanwhile);
 *   - when the oldest demand has waited PATIENCE_US for adapters that are always in use, the
 *     least recently taken of those is closed: it finishes what it serves and is handed out no more
 *     until it has been evicted and asked for again;
 *   - what could never fit is refused, not queued.
 */
#include "adapters/residency.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "adapters/load.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"

enum { LOADER_NICE = 15 };

enum { BUCKETS = 4096, LOADERS_MAX = 16, ROWS_ROOM = 1024 };
enum { FRESH_US = 2000000, PATIENCE_US = 1000000, RETRY_US = 5000000, TICK_MS = 100 };

typedef enum { WANT_NONE, WANT_HINT, WANT_DEMAND } want;

typedef struct entry {
    struct entry *chained;     /* hash */
    struct entry *prev, *next; /* queue while queued, LRU while resident */
    uint64_t id;
    residency_state state;
    want wanted;
    bool taken;    /* a loader works on it */
    bool reserved; /* its room is taken; it stands in no queue */
    bool pinned, closing, gone;
    int acquired;
    uint64_t bytes; /* packed; known once a loader has read the header */
    int64_t queued_us, loaded_us, failed_us, took_us;
    bool fresh; /* loaded, and nobody took it yet */
    err why;    /* with RESIDENCY_FAILED */
    lora_view view;
    lora_mat *mat;
    void *slab;
    adapter_extras extras;
} entry;

typedef struct chain {
    entry *head, *tail;
    int n;
} chain;

struct residency {
    backend *be;
    const model_config *base;
    const model *weights;
    registry *reg;
    size_t budget;
    int n_loaders;
    pthread_t loader[LOADERS_MAX];

    pthread_mutex_t mu;  /* before the registry's and the backend's; guards all below */
    pthread_cond_t work; /* CLOCK_MONOTONIC: queued, released, evicted, stop */
    bool stop;
    entry *bucket[BUCKETS];
    chain queue[3]; /* by want; WANT_NONE: those whose room is reserved */
    chain lru;      /* resident, least recently used first */
    size_t used;
    int n_acquired;
    residency_stats stats;
};

const char *residency_state_name(residency_state s)
{
    switch (s) {
    case RESIDENCY_DISK: return "disk";
    case RESIDENCY_LOADING: return "loading";
    case RESIDENCY_RESIDENT: return "host";
    case RESIDENCY_FAILED: return "failed";
    }
    return "unknown";
}

/* ---- lists and table (mu is held) ------------------------------------------------------- */

static void list_push(chain *l, entry *en)
{
    en->next = NULL;
    en->prev = l->tail;
    if (l->tail != NULL)
        l->tail->next = en;
    else
        l->head = en;
    l->tail = en;
    l->n++;
}

static void list_drop(chain *l, entry *en)
{
    if (en->prev != NULL)
        en->prev->next = en->next;
    else
        l->head = en->next;
    if (en->next != NULL)
        en->next->prev = en->prev;
    else
        l->tail = en->prev;
    en->prev = en->next = NULL;
    l->n--;
}

static size_t bucket_of(uint64_t id)
{
    return (size_t)(id * 0x9e3779b97f4a7c15u >> 40) & (BUCKETS - 1);
}

static entry *find(residency *rs, uint64_t id)
{
    entry *en = rs->bucket[bucket_of(id)];
    while (en != NULL && en->id != id) en = en->chained;
    return en;
}

static entry *find_or_add(residency *rs, uint64_t id)
{
    entry *en = find(rs, id);
    if (en != NULL) return en;
    en = calloc(1, sizeof *en);
    if (en == NULL) return NULL;
    en->id = id;
    en->state = RESIDENCY_DISK;
    en->chained = rs->bucket[bucket_of(id)];
    rs->bucket[bucket_of(id)] = en;
    return en;
}

static void forget(residency *rs, entry *en)
{
    entry **at = &rs->bucket[bucket_of(en->id)];
    while (*at != en) at = &(*at)->chained;
    *at = en->chained;
    if (en->pinned) rs->stats.n_pinned--;
    free(en);
}

/* Puts it at the end of the queue, or moves it from the hints up to the demands. */
static void enqueue(residency *rs, entry *en, want w)
{
    if (en->state == RESIDENCY_LOADING) {
        if (en->wanted >= w) return;
        if (en->reserved) {
            en->wanted = w;
            return;
        }
        list_drop(&rs->queue[en->wanted], en);
    } else {
        en->queued_us = clock_now_us();
    }
    en->state = RESIDENCY_LOADING;
    en->wanted = w;
    list_push(&rs->queue[w], en);
    pthread_cond_broadcast(&rs->work);
}

/* ---- room --------------------------------------------------------------------------------- */

/* Takes a resident entry out of memory; it is forgotten unless somebody wants it again. */
static void evict(residency *rs, entry *en)
{
    list_drop(&rs->lru, en);
    rs->used -= (size_t)en->bytes;
    be_free(rs->be, en->slab);
    extras_clear(&en->extras, rs->be);
    free(en->mat);
    en->slab = NULL;
    en->mat = NULL;
    en->state = RESIDENCY_DISK;
    en->fresh = en->closing = false;
    rs->stats.n_evictions++;
    want again = en->gone ? WANT_NONE : en->wanted;
    en->wanted = WANT_NONE;
    if (again != WANT_NONE)
        enqueue(rs, en, again);
    else
        forget(rs, en);
}

static bool may_evict(const entry *en, want for_whom, int64_t now_us)
{
    if (en->acquired > 0 || en->pinned) return false;
    if (!en->fresh || now_us - en->loaded_us >= FRESH_US) return true;
    return for_whom == WANT_DEMAND && en->wanted != WANT_DEMAND; /* loaded on a mere hint */
}

/* Evicts, least recently used first, until `bytes` fit; nothing is evicted when that can't be. */
static bool make_room(residency *rs, uint64_t bytes, want for_whom, int64_t now_us)
{
    uint64_t could = rs->budget - rs->used;
    for (entry *en = rs->lru.head; en != NULL && could < bytes; en = en->next)
        if (may_evict(en, for_whom, now_us)) could += en->bytes;
    if (could < bytes) return false;
    for (entry *en = rs->lru.head, *next; en != NULL && rs->budget - rs->used < bytes; en = next) {
        next = en->next;
        if (!may_evict(en, for_whom, now_us)) continue;
        en->wanted = WANT_NONE; /* nobody came for it */
        evict(rs, en);
    }
    return true;
}

/* The oldest demand waits for adapters that are never idle: let the least recently taken ones run
 * out. */
static void close_some(residency *rs, uint64_t bytes)
{
    uint64_t coming = rs->budget - rs->used;
    for (entry *en = rs->lru.head; en != NULL && coming < bytes; en = en->next) {
        if (en->pinned) continue;
        if (en->acquired > 0) en->closing = true;
        coming += en->bytes;
    }
}

/* ---- loader threads (mu is held unless said) ---------------------------------------------------- */

static void fail(residency *rs, entry *en, const err *why)
{
    list_drop(&rs->queue[en->wanted], en);
    en->state = RESIDENCY_FAILED;
    en->wanted = WANT_NONE;
    en->taken = false;
    en->why = *why;
    en->failed_us = clock_now_us();
    rs->stats.n_failures++;
    log_warn("adapters", "load failed: %s", why->msg);
    if (en->gone) forget(rs, en);
}

static entry *next_to_load(residency *rs)
{
    for (int w = WANT_DEMAND; w >= WANT_HINT; w--)
        for (entry *en = rs->queue[w].head; en != NULL; en = en->next)
            if (!en->taken) return en;
    return NULL;
}

static void wait_a_tick(residency *rs)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_MS * 1000000l;
    if (until.tv_nsec >= 1000000000l) {
        until.tv_nsec -= 1000000000l;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&rs->work, &rs->mu, &until);
}

/* Bytes that pinned adapters hold or will hold, `but` apart. */
static uint64_t pinned_bytes(const residency *rs, const entry *but)
{
    uint64_t sum = 0;
    if (rs->stats.n_pinned == 0) return 0;
    for (size_t b = 0; b < BUCKETS; b++)
        for (const entry *x = rs->bucket[b]; x != NULL; x = x->chained)
            if (x->pinned && x != but) sum += x->bytes;
    return sum;
}

/* Waits for room for `en` and takes it.  ERR_CANCELLED: it is not wanted any more, or only a hint.
 * ERR_CONFLICT: an older demand has no loader yet, and this thread must see to that one first. */
static err_code reserve(residency *rs, entry *en, err *e)
{
    uint64_t bytes = en->bytes;
    int64_t first_us = 0; /* when it became the oldest demand */
    for (;;) {
        if (rs->stop || en->gone) return err_set(e, ERR_CANCELLED, "the adapter was deleted");
        uint64_t pinned = pinned_bytes(rs, en);
        if (bytes > rs->budget || pinned > rs->budget - bytes)
            return err_set(e, ERR_LIMIT,
                           "the adapter takes %llu bytes; this server has %llu for adapters",
                           (unsigned long long)bytes, (unsigned long long)(rs->budget - pinned));
        int64_t now_us = clock_now_us();
        bool first = en->wanted == WANT_DEMAND ? rs->queue[WANT_DEMAND].head == en
                                               : rs->queue[WANT_DEMAND].n == 0;
        if (first && make_room(rs, bytes, en->wanted, now_us)) break;
        if (en->wanted == WANT_HINT) return err_set(e, ERR_CANCELLED, "no room for a hint");
        if (!first && !rs->queue[WANT_DEMAND].head->taken)
            return err_set(e, ERR_CONFLICT, "an older one waits");
        if (first && first_us == 0) first_us = now_us;
        if (first && now_us - first_us >= PATIENCE_US) close_some(rs, bytes);
        wait_a_tick(rs);
    }
    rs->used += (size_t)bytes;
    /* Its turn is over: the next demand may look for room while this one is read. */
    list_drop(&rs->queue[en->wanted], en);
    list_push(&rs->queue[WANT_NONE], en);
    en->reserved = true;
    pthread_cond_broadcast(&rs->work);
    return ERR_NONE;
}

static void make_resident(residency *rs, entry *en, adapter_load *ld, int64_t took_us)
{
    list_drop(&rs->queue[WANT_NONE], en);
    en->reserved = false;
    en->slab = ld->slab;
    en->mat = ld->mat;
    en->extras = ld->extras;
    ld->slab = NULL;
    ld->mat = NULL;
    ld->extras = (adapter_extras){0};
    en->view = (lora_view){.adapter_id = en->id,
                           .n_layer = rs->base->n_layer,
                           .rank_max = ld->rank_max,
                           .mat = en->mat,
                           .head = en->extras.head,
                           .embed = en->extras.embed};
    memcpy(en->view.digest, ld->v->digest, LORA_DIGEST_BYTES);
    en->state = RESIDENCY_RESIDENT;
    en->taken = false;
    en->fresh = true;
    en->loaded_us = clock_now_us();
    en->took_us = took_us;
    list_push(&rs->lru, en);
    rs->stats.n_loads++;
    rs->stats.loaded_bytes += en->bytes;
    rs->stats.load_us_sum += took_us;
    if (took_us > rs->stats.load_us_max) rs->stats.load_us_max = took_us;
    if (en->gone) evict(rs, en);
}

/* A hint without room, or the end: back to the disk without a word. */
static void give_up(residency *rs, entry *en)
{
    list_drop(&rs->queue[en->wanted], en);
    en->state = RESIDENCY_DISK;
    en->wanted = WANT_NONE;
    en->taken = false;
    forget(rs, en);
}

/* Loads one entry; called and returns with mu held. */
static void load_one(residency *rs, entry *en)
{
    adapter_load ld;
    err why = {0};
    en->taken = true;
    uint64_t id = en->id;
    pthread_mutex_unlock(&rs->mu);
    int64_t t0 = clock_now_us();
    err_code code = adapter_load_begin(&ld, rs->reg, rs->be, rs->base, rs->weights, id, &why);
    int64_t header_us = clock_now_us() - t0;
    pthread_mutex_lock(&rs->mu);
    if (code == ERR_NONE) {
        en->bytes = ld.bytes;
        code = reserve(rs, en, &why);
    }
    if (code == ERR_NONE) {
        pthread_mutex_unlock(&rs->mu);
        t0 = clock_now_us();
        code = adapter_load_weights(&ld, &why);
        int64_t took_us = header_us + clock_now_us() - t0;
        pthread_mutex_lock(&rs->mu);
        if (code == ERR_NONE) make_resident(rs, en, &ld, took_us);
    }
    if (code != ERR_NONE && en->reserved) {
        rs->used -= (size_t)en->bytes;
        list_drop(&rs->queue[WANT_NONE], en);
        list_push(&rs->queue[en->wanted], en);
        en->reserved = false;
    }
    if (code == ERR_CANCELLED)
        give_up(rs, en);
    else if (code == ERR_CONFLICT)
        en->taken = false;
    else if (code != ERR_NONE)
        fail(rs, en, &why);
    pthread_cond_broadcast(&rs->work);
    pthread_mutex_unlock(&rs->mu);
    adapter_load_clear(&ld); /* the last pin may delete files: not under the lock */
    pthread_mutex_lock(&rs->mu);
}

static void *loader_main(void *arg)
{
    residency *rs = arg;
    (void)pthread_setname_np(pthread_self(), "loader");
    /* Loads come second to the running batch where they share its cores; on Linux, niceness is a
     * thread's own. */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), LOADER_NICE);
    pthread_mutex_lock(&rs->mu);
    while (!rs->stop) {
        entry *en = next_to_load(rs);
        if (en != NULL)
            load_one(rs, en);
        else
            pthread_cond_wait(&rs->work, &rs->mu);
    }
    pthread_mutex_unlock(&rs->mu);
    return NULL;
}

/* ---- the engine's door ------------------------------------------------------------------------- */

static err_code acquire_locked(residency *rs, uint64_t id, const lora_view **out, err *e)
{
    entry *en = find_or_add(rs, id);
    if (en == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    if (en->state == RESIDENCY_RESIDENT && !en->closing) {
        if (en->fresh)
            en->fresh = false;
        else
            rs->stats.n_hits++;
        en->acquired++;
        rs->n_acquired++;
        en->wanted = WANT_NONE;
        list_drop(&rs->lru, en);
        list_push(&rs->lru, en);
        *out = &en->view;
        return ERR_NONE;
    }
    if (en->state == RESIDENCY_FAILED && clock_now_us() - en->failed_us < RETRY_US) {
        if (e != NULL) *e = en->why;
        return en->why.code;
    }
    if (en->state == RESIDENCY_RESIDENT) { /* closing: queued again once it has been evicted */
        en->wanted = WANT_DEMAND;
    } else {
        if (en->state != RESIDENCY_LOADING) rs->stats.n_misses++;
        enqueue(rs, en, WANT_DEMAND);
    }
    return err_set(e, ERR_BUSY, "the adapter is being loaded");
}

static err_code acquire_cb(void *self, uint64_t id, const lora_view **out, err *e)
{
    residency *rs = self;
    *out = NULL;
    pthread_mutex_lock(&rs->mu);
    err_code code = acquire_locked(rs, id, out, e);
    pthread_mutex_unlock(&rs->mu);
    return code;
}

static void release_cb(void *self, const lora_view *view)
{
    residency *rs = self;
    pthread_mutex_lock(&rs->mu);
    entry *en = find(rs, view->adapter_id);
    if (en == NULL || en->acquired <= 0) {
        log_error("adapters", "the engine released an adapter that it does not hold");
        abort();
    }
    en->acquired--;
    rs->n_acquired--;
    if (en->acquired == 0) {
        if (en->gone || en->closing) evict(rs, en);
        pthread_cond_broadcast(&rs->work); /* there may be room now */
    }
    pthread_mutex_unlock(&rs->mu);
}

static void hint(residency *rs, uint64_t id)
{
    pthread_mutex_lock(&rs->mu);
    entry *en = find(rs, id);
    if (en == NULL) en = find_or_add(rs, id);
    if (en != NULL && en->state == RESIDENCY_DISK) enqueue(rs, en, WANT_HINT);
    pthread_mutex_unlock(&rs->mu);
}

static void prefetch_cb(void *self, uint64_t id)
{
    hint(self, id);
}

lora_source residency_source(residency *rs)
{
    return (lora_source){
        .self = rs, .acquire = acquire_cb, .release = release_cb, .prefetch = prefetch_cb};
}

/* ---- API ------------------------------------------------------------------------------------------ */

void residency_warm(residency *rs, uint64_t version_id)
{
    hint(rs, version_id);
}

err_code residency_pin(residency *rs, uint64_t version_id, err *e)
{
    const adapter_version *v;
    err_code code = registry_acquire_id(rs->reg, version_id, &v, e);
    if (code != ERR_NONE) return code;
    pthread_mutex_lock(&rs->mu);
    entry *en = find_or_add(rs, version_id);
    if (en == NULL) {
        code = err_set(e, ERR_NOMEM, "out of memory");
    } else if (!en->pinned && pinned_bytes(rs, en) + v->packed_bytes > rs->budget / 2) {
        code = err_set(e, ERR_LIMIT, "pinned adapters would take more than half of the room");
        if (en->state == RESIDENCY_DISK) forget(rs, en);
    } else {
        if (!en->pinned) rs->stats.n_pinned++;
        en->pinned = true;
        if (en->bytes == 0) en->bytes = v->packed_bytes;
        if (en->state != RESIDENCY_RESIDENT) enqueue(rs, en, WANT_DEMAND);
    }
    pthread_mutex_unlock(&rs->mu);
    registry_release(rs->reg, v);
    return code;
}

void residency_unpin(residency *rs, uint64_t version_id)
{
    pthread_mutex_lock(&rs->mu);
    entry *en = find(rs, version_id);
    if (en != NULL && en->pinned) {
        en->pinned = false;
        en->fresh = false; /* nobody in particular waits for it */
        rs->stats.n_pinned--;
        pthread_cond_broadcast(&rs->work);
    }
    pthread_mutex_unlock(&rs->mu);
}

err_code residency_evict(residency *rs, uint64_t version_id, err *e)
{
    err_code code = ERR_NONE;
    pthread_mutex_lock(&rs->mu);
    entry *en = find(rs, version_id);
    if (en != NULL && en->pinned) {
        code = err_set(e, ERR_CONFLICT, "the adapter is pinned: unpin it first");
    } else if (en != NULL && en->state == RESIDENCY_RESIDENT) {
        en->wanted = WANT_NONE; /* a warm-up that was never used would bring it back at once */
        if (en->acquired > 0)
            en->closing = true;
        else
            evict(rs, en);
        pthread_cond_broadcast(&rs->work); /* there may be room now */
    }
    pthread_mutex_unlock(&rs->mu);
    return code;
}

/* The registry has let go of a version for good. */
static void gone_cb(void *self, uint64_t version_id)
{
    residency *rs = self;
    pthread_mutex_lock(&rs->mu);
    entry *en = find(rs, version_id);
    if (en != NULL) {
        en->gone = true;
        if (en->state == RESIDENCY_RESIDENT) {
            if (en->acquired == 0) evict(rs, en);
        } else if (!en->taken) {
            if (en->state == RESIDENCY_LOADING)
                give_up(rs, en);
            else
                forget(rs, en);
        }
        pthread_cond_broadcast(&rs->work);
    }
    pthread_mutex_unlock(&rs->mu);
}

residency_state residency_get(residency *rs, uint64_t version_id, bool *pinned)
{
    pthread_mutex_lock(&rs->mu);
    const entry *en = find(rs, version_id);
    residency_state state = en != NULL ? en->state : RESIDENCY_DISK;
    if (pinned != NULL) *pinned = en != NULL && en->pinned;
    pthread_mutex_unlock(&rs->mu);
    return state;
}

void residency_stats_get(residency *rs, residency_stats *out)
{
    pthread_mutex_lock(&rs->mu);
    *out = rs->stats;
    out->budget_bytes = rs->budget;
    out->used_bytes = rs->used;
    out->n_resident = rs->lru.n;
    out->n_loading = rs->queue[WANT_NONE].n;
    out->n_waiting = rs->queue[WANT_DEMAND].n + rs->queue[WANT_HINT].n;
    out->n_acquired = rs->n_acquired;
    pthread_mutex_unlock(&rs->mu);
}

err_code residency_rows(residency *rs, residency_row **out, size_t *n, size_t *cap, err *e)
{
    for (size_t b = 0; b < BUCKETS; b += 64) {
        if (*cap - *n < ROWS_ROOM) { /* outside the lock */
            size_t more = *cap * 2 + ROWS_ROOM;
            residency_row *p = realloc(*out, more * sizeof *p);
            if (p == NULL) return err_set(e, ERR_NOMEM, "out of memory");
            *out = p;
            *cap = more;
        }
        pthread_mutex_lock(&rs->mu);
        for (size_t i = b; i < b + 64; i++) {
            for (const entry *en = rs->bucket[i]; en != NULL && *n < *cap; en = en->chained) {
                if (en->state == RESIDENCY_DISK && !en->pinned) continue;
                (*out)[(*n)++] = (residency_row){.version_id = en->id,
                                                 .state = en->state,
                                                 .pinned = en->pinned,
                                                 .acquired = en->acquired,
                                                 .bytes = en->bytes,
                                                 .load_us = en->took_us};
            }
        }
        pthread_mutex_unlock(&rs->mu);
    }
    return ERR_NONE;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void pin_what_was_pinned(residency *rs)
{
    adapter_entry *list;
    size_t n;
    err why;
    if (registry_list(rs->reg, 0, NULL, 0, &list, &n, &why) != ERR_NONE) return;
    for (size_t i = 0; i < n; i++) {
        version_entry v;
        if (!list[i].pinned || list[i].default_version == 0) continue;
        err_code code = registry_version(rs->reg, list[i].tenant_id, list[i].name,
                                         list[i].default_version, &v, &why);
        if (code == ERR_NONE) code = residency_pin(rs, v.v.id, &why);
        if (code != ERR_NONE) log_warn("adapters", "%s stays unpinned: %s", list[i].name, why.msg);
    }
    free(list);
}

err_code residency_create(residency **out, const residency_config *cfg, backend *be,
                          const model_config *base, registry *reg, err *e)
{
    *out = NULL;
    int n_loaders = cfg->n_loaders > 0 ? cfg->n_loaders : 1;
    if (cfg->budget_bytes == 0) return err_set(e, ERR_INPUT, "the adapters' budget is 0 bytes");
    if (n_loaders > LOADERS_MAX)
        return err_set(e, ERR_INPUT, "there are at most %d loader threads", LOADERS_MAX);
    residency *rs = calloc(1, sizeof *rs);
    if (rs == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    rs->be = be;
    rs->base = base;
    rs->reg = reg;
    rs->weights = cfg->weights;
    rs->budget = cfg->budget_bytes;
    pthread_mutex_init(&rs->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&rs->work, &attr);
    pthread_condattr_destroy(&attr);
    while (rs->n_loaders < n_loaders) {
        if (pthread_create(&rs->loader[rs->n_loaders], NULL, loader_main, rs) != 0) {
            residency_destroy(rs);
            return err_set(e, ERR_NOMEM, "cannot start a loader thread");
        }
        rs->n_loaders++;
    }
    registry_on_gone(reg, gone_cb, rs);
    pin_what_was_pinned(rs);
    *out = rs;
    return ERR_NONE;
}

void residency_destroy(residency *rs)
{
    if (rs == NULL) return;
    registry_on_gone(rs->reg, NULL, NULL);
    pthread_mutex_lock(&rs->mu);
    rs->stop = true;
    pthread_cond_broadcast(&rs->work);
    pthread_mutex_unlock(&rs->mu);
    for (int i = 0; i < rs->n_loaders; i++) pthread_join(rs->loader[i], NULL);
    if (rs->n_acquired != 0) {
        log_error("adapters", "residency destroyed while %d adapters are in use", rs->n_acquired);
        abort();
    }
    for (size_t b = 0; b < BUCKETS; b++)
        for (entry *en = rs->bucket[b], *next; en != NULL; en = next) {
            next = en->chained;
            if (en->slab != NULL) be_free(rs->be, en->slab);
            extras_clear(&en->extras, rs->be);
            free(en->mat);
            free(en);
        }
    pthread_cond_destroy(&rs->work);
    pthread_mutex_destroy(&rs->mu);
    free(rs);
}
