/* residency.c -- one table, two queues, a few loader threads.
 *
 * An entry stands for a version that was ever asked for; what was not is on disk and has no entry.
 * Demand (the engine asked and got ERR_BUSY) goes before hints (prefetch, warm), and among equals the
 * nearest deadline first: deadlines are absolute, so waiting raises.  A loader reads the small header
 * first and so learns how many chunks it needs; then the entry waits for them.  Chunks are given to the
 * first demand alone, so no later and smaller one overtakes it for ever; hints take what is idle.
 *
 * The arena decides what it evicts for that, from any thread; evicted adapters are learned of in
 * collect().  Two rules keep a small device from locking up or turning in circles:
 *   - when the first demand has waited PATIENCE_US for adapters that are always in use, the least
 *     recently taken of those is closed: it finishes what it serves and is handed out no more until
 *     it has been evicted and asked for again; and new sequences leave it room (devmem_reserve);
 *   - what could never fit is refused, not queued.
 *
 * Copies in host memory are made when files are read, and evicted by the same measure as the arena's:
 * uses * microseconds of reading / bytes, over a clock.
 */
#include "adapters/residency.h"

#include <math.h>
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
enum { PATIENCE_US = 1000000, RETRY_US = 5000000, TICK_MS = 2 };
static const double HALF_LIFE_US = 600e6; /* of popularity */

typedef enum { WANT_NONE, WANT_HINT, WANT_DEMAND } want;

typedef struct entry {
    struct entry *chained;     /* hash */
    struct entry *prev, *next; /* queue while queued, LRU while resident */
    uint64_t id;
    residency_state state; /* HOST is never stored: DISK with a copy */
    want wanted;
    bool taken;    /* a loader works on it */
    bool reserved; /* its chunks are taken; it stands in no queue */
    bool pinned, closing, gone;
    int acquired;
    uint64_t bytes; /* of its chunks; known once a loader has read the header */
    int64_t due_us; /* order in the queue; 0: not known */
    int64_t failed_us, took_us, last_use_us;
    double popularity; /* decayed count of uses, as of last_use_us */
    uint64_t n_hits, n_loads;
    bool fresh; /* loaded, and nobody took it yet */
    err *why;   /* with RESIDENCY_FAILED */
    lora_view view;
    lora_mat *mat;
    devmem_lease *lease;
    adapter_extras extras;
    adapter_copy *copy;
    int host_at; /* in rs->host */
    int64_t read_us;
    double host_worth;
} entry;

typedef struct chain {
    entry *head, *tail;
    int n;
} chain;

struct residency {
    load_env env;
    devmem *arena, *own_arena;
    size_t budget, host_budget;
    int n_loaders;
    pthread_t loader[LOADERS_MAX];

    pthread_mutex_t mu; /* before the registry's, the arena's and the backend's; guards all below */
    pthread_cond_t work; /* CLOCK_MONOTONIC: queued, released, evicted, stop */
    bool stop;
    entry *bucket[BUCKETS];
    chain queue[3]; /* by want; WANT_NONE: those whose chunks are taken */
    chain lru;      /* resident, least recently used first */
    entry **host;   /* those with a copy */
    int n_host, cap_host;
    size_t host_used;
    double host_clock;
    adapter_copy *trash; /* to be freed once mu is not held */
    int n_acquired;
    const entry *starved; /* has had devmem_reserve() called for it */
    residency_stats stats;
};

const char *residency_state_name(residency_state s)
{
    switch (s) {
    case RESIDENCY_DISK: return "disk";
    case RESIDENCY_LOADING: return "loading";
    case RESIDENCY_RESIDENT: return "device";
    case RESIDENCY_FAILED: return "failed";
    case RESIDENCY_HOST: return "host";
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

static void host_drop(residency *rs, entry *en);

static void forget(residency *rs, entry *en)
{
    entry **at = &rs->bucket[bucket_of(en->id)];
    while (*at != en) at = &(*at)->chained;
    *at = en->chained;
    if (en->pinned) rs->stats.n_pinned--;
    if (en->copy != NULL) host_drop(rs, en);
    free(en->why);
    free(en);
}

/* Nothing is known of it that would be worth keeping. */
static void forget_if_empty(residency *rs, entry *en)
{
    bool used = en->n_loads > 0 || en->copy != NULL || en->pinned || en->due_us > 0;
    if (en->gone || (!used && en->state == RESIDENCY_DISK)) forget(rs, en);
}

/* Before the first that is due later. */
static void queue_add(residency *rs, want w, entry *en)
{
    chain *l = &rs->queue[w];
    entry *after = l->tail;
    while (after != NULL && after->due_us > en->due_us) after = after->prev;
    if (after == l->tail) {
        list_push(l, en);
        return;
    }
    entry *before = after != NULL ? after->next : l->head;
    en->prev = after;
    en->next = before;
    before->prev = en;
    if (after != NULL)
        after->next = en;
    else
        l->head = en;
    l->n++;
}

/* Puts it into the queue, or moves it from the hints up to the demands, or forward. */
static void enqueue(residency *rs, entry *en, want w, int64_t due_us)
{
    if (en->state == RESIDENCY_LOADING) {
        if (en->wanted > w) w = en->wanted;
        if (en->wanted == w && due_us >= en->due_us) return;
        if (due_us < en->due_us) en->due_us = due_us;
        if (en->reserved) {
            en->wanted = w;
            return;
        }
        list_drop(&rs->queue[en->wanted], en);
    } else {
        en->due_us = due_us;
    }
    en->state = RESIDENCY_LOADING;
    en->wanted = w;
    queue_add(rs, w, en);
    pthread_cond_broadcast(&rs->work);
}

static double popularity(const entry *en, int64_t now_us)
{
    return en->popularity * exp2(-(double)(now_us - en->last_use_us) / HALF_LIFE_US);
}

/* ---- host memory ---------------------------------------------------------------------------- */

static void host_drop(residency *rs, entry *en)
{
    rs->host_used -= (size_t)en->copy->bytes;
    rs->host[en->host_at] = rs->host[--rs->n_host];
    rs->host[en->host_at]->host_at = en->host_at;
    en->copy->next = rs->trash;
    rs->trash = en->copy;
    en->copy = NULL;
}

static void host_value(residency *rs, entry *en)
{
    en->host_worth = rs->host_clock + (popularity(en, clock_now_us()) + 1) * (double)en->read_us /
                                          (double)(en->copy->bytes + 1);
}

/* Evicts copies, the least worth first, until the budget holds; those that loaders work on stay. */
static void host_trim(residency *rs)
{
    while (rs->host_used > rs->host_budget) {
        entry *least = NULL;
        for (int i = 0; i < rs->n_host; i++) {
            entry *en = rs->host[i];
            if (!en->taken && (least == NULL || en->host_worth < least->host_worth)) least = en;
        }
        if (least == NULL) return;
        if (least->host_worth > rs->host_clock) rs->host_clock = least->host_worth;
        host_drop(rs, least);
        rs->stats.n_host_evictions++;
    }
}

/* Keeps what a loader has read. */
static void host_keep(residency *rs, entry *en, adapter_load *ld, int64_t read_us)
{
    if (!ld->own_copy || rs->host_budget == 0 || en->gone) return;
    if (rs->n_host == rs->cap_host) {
        int cap = rs->cap_host > 0 ? rs->cap_host * 2 : 64;
        entry **more = realloc(rs->host, (size_t)cap * sizeof(entry *));
        if (more == NULL) return;
        rs->host = more;
        rs->cap_host = cap;
    }
    en->copy = ld->copy;
    ld->own_copy = false;
    en->host_at = rs->n_host;
    rs->host[rs->n_host++] = en;
    rs->host_used += (size_t)en->copy->bytes;
    en->read_us = read_us;
    host_value(rs, en);
}

static adapter_copy *take_trash(residency *rs)
{
    adapter_copy *c = rs->trash;
    rs->trash = NULL;
    return c;
}

static void free_trash(adapter_copy *c)
{
    for (adapter_copy *next; c != NULL; c = next) {
        next = c->next;
        copy_free(c);
    }
}

/* ---- the device ---------------------------------------------------------------------------------- */

/* The chunks of a resident entry are gone, or go now; it is queued again if somebody wants it. */
static void left_device(residency *rs, entry *en)
{
    list_drop(&rs->lru, en);
    devmem_lease_drop(en->lease);
    extras_clear(&en->extras, rs->env.be);
    free(en->mat);
    en->lease = NULL;
    en->mat = NULL;
    en->state = RESIDENCY_DISK;
    en->fresh = en->closing = false;
    rs->stats.n_evictions++;
    want again = en->gone ? WANT_NONE : en->wanted;
    en->wanted = WANT_NONE;
    if (en->gone)
        forget(rs, en);
    else if (again != WANT_NONE)
        enqueue(rs, en, again, en->due_us);
}

/* Learns of what the arena has evicted. */
static void collect(residency *rs)
{
    for (entry *en; (en = devmem_lost(rs->arena)) != NULL;) left_device(rs, en);
}

/* The first demand waits for adapters that are never idle: let the least recently taken ones run
 * out, and new sequences leave room. */
static void insist(residency *rs, const entry *for_whom, int n_chunks)
{
    devmem_counts c;
    devmem_count(rs->arena, &c);
    int coming = c.n_free + c.n_pages_cached + c.n_lease_idle;
    for (entry *en = rs->lru.head; en != NULL && coming < n_chunks; en = en->next) {
        if (en->pinned || en->acquired == 0) continue;
        en->closing = true;
        coming += devmem_lease_chunks(en->lease);
    }
    devmem_reserve(rs->arena, n_chunks);
    rs->starved = for_whom;
}

static void relent(residency *rs, const entry *en)
{
    if (rs->starved != en) return;
    devmem_reserve(rs->arena, 0);
    rs->starved = NULL;
}

/* ---- loader threads (mu is held unless said) ---------------------------------------------------- */

static void fail(residency *rs, entry *en, const err *why)
{
    list_drop(&rs->queue[en->wanted], en);
    en->state = RESIDENCY_FAILED;
    en->wanted = WANT_NONE;
    en->taken = false;
    if (en->why == NULL) en->why = malloc(sizeof *en->why);
    if (en->why != NULL) *en->why = *why;
    en->failed_us = clock_now_us();
    en->due_us = 0;
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

/* Waits for n chunks for `en` and takes them.  ERR_CANCELLED: it is not wanted any more, or only a hint.
 * ERR_CONFLICT: an earlier demand has no loader yet, and this thread must see to that one first. */
static err_code reserve(residency *rs, entry *en, int n, err *e)
{
    int64_t first_us = 0; /* when it became the first demand */
    for (;;) {
        collect(rs);
        if (rs->stop || en->gone) return err_set(e, ERR_CANCELLED, "the adapter was deleted");
        uint64_t pinned = pinned_bytes(rs, en);
        if (en->bytes > rs->budget || pinned > rs->budget - en->bytes)
            return err_set(
                e, ERR_LIMIT, "the adapter takes %llu bytes; this server has %llu for adapters",
                (unsigned long long)en->bytes, (unsigned long long)(rs->budget - pinned));
        int64_t now_us = clock_now_us();
        bool demand = en->wanted == WANT_DEMAND;
        bool first = demand ? rs->queue[WANT_DEMAND].head == en : rs->queue[WANT_DEMAND].n == 0;
        if (first) {
            en->lease =
                devmem_lease_take(rs->arena, n, demand ? DEVMEM_DEMAND : DEVMEM_HINT, now_us, en);
            collect(rs);
        }
        if (en->lease != NULL) break;
        if (!demand) return err_set(e, ERR_CANCELLED, "no room for a hint");
        if (!first && !rs->queue[WANT_DEMAND].head->taken)
            return err_set(e, ERR_CONFLICT, "an earlier one waits");
        if (first && first_us == 0) first_us = now_us;
        if (first && now_us - first_us >= PATIENCE_US) insist(rs, en, n);
        wait_a_tick(rs);
    }
    relent(rs, en);
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
    devmem_need need = en->wanted == WANT_DEMAND ? DEVMEM_DEMAND : DEVMEM_HINT;
    en->reserved = false;
    en->mat = ld->mat;
    en->extras = ld->extras;
    ld->mat = NULL;
    ld->extras = (adapter_extras){0};
    en->view = (lora_view){.adapter_id = en->id,
                           .n_layer = rs->env.base->n_layer,
                           .rank_max = ld->rank_max,
                           .mat = en->mat,
                           .head = en->extras.head,
                           .embed = en->extras.embed};
    memcpy(en->view.digest, ld->v->digest, LORA_DIGEST_BYTES);
    en->state = RESIDENCY_RESIDENT;
    en->wanted = WANT_NONE;
    en->due_us = 0;
    en->taken = false;
    en->fresh = true;
    en->took_us = took_us;
    en->n_loads++;
    list_push(&rs->lru, en);
    if (en->pinned) devmem_lease_pin(en->lease, true);
    devmem_lease_ready(en->lease, need, (double)took_us, clock_now_us());
    rs->stats.n_loads++;
    rs->stats.loaded_bytes += en->bytes;
    rs->stats.load_us_sum += took_us;
    if (took_us > rs->stats.load_us_max) rs->stats.load_us_max = took_us;
    if (en->gone) left_device(rs, en);
}

/* A hint without room, or the end: back to where it was without a word. */
static void give_up(residency *rs, entry *en)
{
    list_drop(&rs->queue[en->wanted], en);
    en->state = RESIDENCY_DISK;
    en->wanted = WANT_NONE;
    en->taken = false;
    forget_if_empty(rs, en);
}

typedef struct timing {
    int64_t read_us, pack_us;
} timing;

/* Without the lock. */
static err_code read_one(adapter_load *ld, timing *t, err *e)
{
    if (ld->copy != NULL) return ERR_NONE;
    int64_t t0 = clock_now_us();
    err_code code = adapter_load_read(ld, e);
    t->read_us += clock_now_us() - t0;
    return code;
}

static err_code pack_one(const entry *en, adapter_load *ld, timing *t, err *e)
{
    int64_t t0 = clock_now_us();
    void **chunk = malloc((size_t)ld->n_chunks * sizeof(void *));
    if (chunk == NULL) return err_set(e, ERR_NOMEM, "no memory for an adapter");
    devmem_lease_map(en->lease, chunk);
    err_code code = adapter_load_pack(ld, chunk, e);
    free(chunk);
    t->pack_us = clock_now_us() - t0;
    return code;
}

/* After the lock was not held: what was read is worth keeping, whatever became of the rest. */
static void count_read(residency *rs, entry *en, adapter_load *ld, const timing *t)
{
    if (!ld->own_copy) return;
    rs->stats.read_us_sum += t->read_us;
    rs->stats.read_bytes += ld->copy->bytes;
    host_keep(rs, en, ld, t->read_us);
}

static err_code bring_up(residency *rs, entry *en, adapter_load *ld, timing *t, err *e)
{
    en->bytes = (uint64_t)ld->n_chunks * rs->env.chunk_bytes;
    err_code code = reserve(rs, en, ld->n_chunks, e);
    bool only_host = code == ERR_CANCELLED && !rs->stop && !en->gone && rs->host_budget > 0;
    if (code != ERR_NONE && !only_host) return code;
    if (!only_host) {
        if (ld->copy != NULL)
            rs->stats.n_host_hits++;
        else
            rs->stats.n_host_misses++;
    }
    pthread_mutex_unlock(&rs->mu);
    err ignored;
    err_code done = read_one(ld, t, only_host ? &ignored : e);
    if (done == ERR_NONE && !only_host) done = pack_one(en, ld, t, e);
    pthread_mutex_lock(&rs->mu);
    count_read(rs, en, ld, t);
    rs->stats.pack_us_sum += t->pack_us;
    if (only_host) return code;
    if (done == ERR_NONE) make_resident(rs, en, ld, t->read_us + t->pack_us);
    return done;
}

/* Loads one entry; called and returns with mu held. */
static void load_one(residency *rs, entry *en)
{
    adapter_load ld;
    timing t = {0};
    err why = {0};
    en->taken = true; /* so its copy stays */
    uint64_t id = en->id;
    adapter_copy *copy = en->copy;
    if (copy != NULL) host_value(rs, en);
    pthread_mutex_unlock(&rs->mu);
    int64_t t0 = clock_now_us();
    err_code code = adapter_load_begin(&ld, &rs->env, id, copy, &why);
    t.read_us = clock_now_us() - t0;
    pthread_mutex_lock(&rs->mu);
    if (code == ERR_NONE) code = bring_up(rs, en, &ld, &t, &why);
    if (code != ERR_NONE && en->reserved) {
        devmem_lease_drop(en->lease);
        en->lease = NULL;
        list_drop(&rs->queue[WANT_NONE], en);
        list_push(&rs->queue[en->wanted], en);
        en->reserved = false;
    }
    if (code != ERR_NONE) relent(rs, en);
    if (code == ERR_CANCELLED)
        give_up(rs, en);
    else if (code == ERR_CONFLICT)
        en->taken = false;
    else if (code != ERR_NONE)
        fail(rs, en, &why);
    host_trim(rs);
    adapter_copy *trash = take_trash(rs);
    pthread_cond_broadcast(&rs->work);
    pthread_mutex_unlock(&rs->mu);
    free_trash(trash);
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
    int64_t now_us = clock_now_us();
    collect(rs);
    entry *en = find_or_add(rs, id);
    if (en == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    if (en->state == RESIDENCY_RESIDENT && !en->closing) {
        double popular = popularity(en, now_us) + 1;
        if (devmem_lease_hold(en->lease, popular)) {
            if (!en->fresh) {
                rs->stats.n_hits++;
                en->n_hits++;
            }
            en->fresh = false;
            en->popularity = popular;
            en->last_use_us = now_us;
            en->acquired++;
            rs->n_acquired++;
            en->wanted = WANT_NONE;
            list_drop(&rs->lru, en);
            list_push(&rs->lru, en);
            *out = &en->view;
            return ERR_NONE;
        }
        collect(rs); /* evicted just now */
    }
    if (en->state == RESIDENCY_FAILED && now_us - en->failed_us < RETRY_US) {
        if (en->why == NULL) return err_set(e, ERR_IO, "the adapter could not be loaded");
        if (e != NULL) *e = *en->why;
        return en->why->code;
    }
    if (en->state == RESIDENCY_RESIDENT) { /* closing: queued again once it has been evicted */
        en->wanted = WANT_DEMAND;
    } else {
        if (en->state != RESIDENCY_LOADING) rs->stats.n_misses++;
        /* a hint may have told when it is due, also one that found no room */
        bool known = en->due_us > 0 && en->due_us < INT64_MAX;
        enqueue(rs, en, WANT_DEMAND, known ? en->due_us : now_us);
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
    devmem_lease_release(en->lease);
    if (en->acquired == 0) {
        if (en->gone || en->closing) left_device(rs, en);
        pthread_cond_broadcast(&rs->work); /* there may be room now */
    }
    pthread_mutex_unlock(&rs->mu);
}

static void hint(residency *rs, uint64_t id, int64_t due_us)
{
    pthread_mutex_lock(&rs->mu);
    collect(rs);
    entry *en = find_or_add(rs, id);
    if (en != NULL && en->due_us > 0 && en->due_us < due_us) due_us = en->due_us;
    if (en != NULL && (en->state == RESIDENCY_DISK || en->state == RESIDENCY_LOADING))
        enqueue(rs, en, WANT_HINT, due_us);
    pthread_mutex_unlock(&rs->mu);
}

static void prefetch_cb(void *self, uint64_t id)
{
    hint(self, id, clock_now_us());
}

static void want_cb(void *self, uint64_t id, int64_t deadline_us)
{
    hint(self, id, deadline_us > 0 ? deadline_us : clock_now_us());
}

static int chunks_cb(void *self, const lora_view *view)
{
    residency *rs = self;
    pthread_mutex_lock(&rs->mu);
    const entry *en = find(rs, view->adapter_id);
    int n = en != NULL ? devmem_lease_chunks(en->lease) : 0;
    pthread_mutex_unlock(&rs->mu);
    return n;
}

lora_source residency_source(residency *rs)
{
    return (lora_source){.self = rs,
                         .acquire = acquire_cb,
                         .release = release_cb,
                         .prefetch = prefetch_cb,
                         .want = want_cb,
                         .chunks = chunks_cb};
}

/* ---- API ------------------------------------------------------------------------------------------ */

void residency_warm(residency *rs, uint64_t version_id)
{
    hint(rs, version_id, INT64_MAX);
}

err_code residency_pin(residency *rs, uint64_t version_id, err *e)
{
    const adapter_version *v;
    err_code code = registry_acquire_id(rs->env.reg, version_id, &v, e);
    if (code != ERR_NONE) return code;
    pthread_mutex_lock(&rs->mu);
    collect(rs);
    entry *en = find_or_add(rs, version_id);
    if (en == NULL) {
        code = err_set(e, ERR_NOMEM, "out of memory");
    } else if (!en->pinned && pinned_bytes(rs, en) + v->packed_bytes > rs->budget / 2) {
        code = err_set(e, ERR_LIMIT, "pinned adapters would take more than half of the room");
        if (en->state == RESIDENCY_DISK) forget_if_empty(rs, en);
    } else {
        if (!en->pinned) rs->stats.n_pinned++;
        en->pinned = true;
        if (en->bytes == 0) en->bytes = v->packed_bytes;
        if (en->state != RESIDENCY_RESIDENT)
            enqueue(rs, en, WANT_DEMAND, clock_now_us());
        else
            devmem_lease_pin(en->lease, true);
    }
    pthread_mutex_unlock(&rs->mu);
    registry_release(rs->env.reg, v);
    return code;
}

void residency_unpin(residency *rs, uint64_t version_id)
{
    pthread_mutex_lock(&rs->mu);
    entry *en = find(rs, version_id);
    if (en != NULL && en->pinned) {
        en->pinned = false;
        en->fresh = false; /* nobody in particular waits for it */
        if (en->state == RESIDENCY_RESIDENT) devmem_lease_pin(en->lease, false);
        rs->stats.n_pinned--;
        pthread_cond_broadcast(&rs->work);
    }
    pthread_mutex_unlock(&rs->mu);
}

err_code residency_evict(residency *rs, uint64_t version_id, err *e)
{
    err_code code = ERR_NONE;
    pthread_mutex_lock(&rs->mu);
    collect(rs);
    entry *en = find(rs, version_id);
    if (en != NULL && en->copy != NULL && !en->taken && !en->pinned) host_drop(rs, en);
    if (en != NULL && en->pinned) {
        code = err_set(e, ERR_CONFLICT, "the adapter is pinned: unpin it first");
    } else if (en != NULL && en->state == RESIDENCY_RESIDENT) {
        en->wanted = WANT_NONE; /* a warm-up that was never used would bring it back at once */
        if (en->acquired > 0)
            en->closing = true;
        else
            left_device(rs, en);
        pthread_cond_broadcast(&rs->work); /* there may be room now */
    }
    adapter_copy *trash = take_trash(rs);
    pthread_mutex_unlock(&rs->mu);
    free_trash(trash);
    return code;
}

/* The registry has let go of a version for good. */
static void gone_cb(void *self, uint64_t version_id)
{
    residency *rs = self;
    pthread_mutex_lock(&rs->mu);
    collect(rs);
    entry *en = find(rs, version_id);
    if (en != NULL) {
        en->gone = true;
        if (en->state == RESIDENCY_RESIDENT) {
            if (en->acquired == 0) left_device(rs, en);
        } else if (!en->taken) {
            if (en->state == RESIDENCY_LOADING)
                give_up(rs, en);
            else
                forget(rs, en);
        }
        pthread_cond_broadcast(&rs->work);
    }
    adapter_copy *trash = take_trash(rs);
    pthread_mutex_unlock(&rs->mu);
    free_trash(trash);
}

static residency_state state_of(const entry *en)
{
    if (en->state == RESIDENCY_DISK && en->copy != NULL) return RESIDENCY_HOST;
    return en->state;
}

static residency_row row_of(const entry *en)
{
    return (residency_row){.version_id = en->id,
                           .state = state_of(en),
                           .pinned = en->pinned,
                           .acquired = en->acquired,
                           .bytes = en->bytes,
                           .host_bytes = en->copy != NULL ? en->copy->bytes : 0,
                           .load_us = en->took_us,
                           .n_hits = en->n_hits,
                           .n_loads = en->n_loads,
                           .last_use_us = en->last_use_us};
}

void residency_row_get(residency *rs, uint64_t version_id, residency_row *out)
{
    pthread_mutex_lock(&rs->mu);
    collect(rs);
    const entry *en = find(rs, version_id);
    *out = en != NULL ? row_of(en) : (residency_row){.version_id = version_id};
    pthread_mutex_unlock(&rs->mu);
}

residency_state residency_get(residency *rs, uint64_t version_id, bool *pinned)
{
    residency_row row;
    residency_row_get(rs, version_id, &row);
    if (pinned != NULL) *pinned = row.pinned;
    return row.state;
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
        collect(rs);
        for (size_t i = b; i < b + 64; i++) {
            for (const entry *en = rs->bucket[i]; en != NULL && *n < *cap; en = en->chained)
                if (en->pinned || state_of(en) != RESIDENCY_DISK) (*out)[(*n)++] = row_of(en);
        }
        pthread_mutex_unlock(&rs->mu);
    }
    return ERR_NONE;
}

void residency_stats_get(residency *rs, residency_stats *out)
{
    pthread_mutex_lock(&rs->mu);
    collect(rs);
    *out = rs->stats;
    devmem_count(rs->arena, &out->arena);
    out->budget_bytes = rs->budget;
    out->used_bytes = (size_t)out->arena.n_lease_chunks * rs->env.chunk_bytes;
    out->n_resident = rs->lru.n;
    out->n_loading = rs->queue[WANT_NONE].n;
    out->n_waiting = rs->queue[WANT_DEMAND].n + rs->queue[WANT_HINT].n;
    out->n_acquired = rs->n_acquired;
    out->host_budget_bytes = rs->host_budget;
    out->host_used_bytes = rs->host_used;
    out->n_host = rs->n_host;
    pthread_mutex_unlock(&rs->mu);
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void pin_what_was_pinned(residency *rs)
{
    adapter_entry *list;
    size_t n;
    err why;
    if (registry_list(rs->env.reg, 0, NULL, 0, &list, &n, &why) != ERR_NONE) return;
    for (size_t i = 0; i < n; i++) {
        version_entry v;
        if (!list[i].pinned || list[i].default_version == 0) continue;
        err_code code = registry_version(rs->env.reg, list[i].tenant_id, list[i].name,
                                         list[i].default_version, &v, &why);
        if (code == ERR_NONE) code = residency_pin(rs, v.v.id, &why);
        if (code != ERR_NONE) log_warn("adapters", "%s stays unpinned: %s", list[i].name, why.msg);
    }
    free(list);
}

static err_code open_devmem(residency *rs, const residency_config *cfg, err *e)
{
    rs->arena = cfg->arena;
    err_code code = ERR_NONE;
    if (rs->arena == NULL) {
        size_t chunk = cfg->chunk_bytes;
        if (chunk == 0) chunk = adapter_chunk_least(rs->env.base, rs->env.be);
        code = devmem_create(&rs->own_arena, rs->env.be, (int)(cfg->budget_bytes / chunk), chunk, 0,
                             e);
        rs->arena = rs->own_arena;
    }
    if (code != ERR_NONE) return code;
    rs->env.chunk_bytes = devmem_chunk_bytes(rs->arena);
    rs->budget = (size_t)devmem_lease_limit(rs->arena, NULL) * rs->env.chunk_bytes;
    return ERR_NONE;
}

err_code residency_create(residency **out, const residency_config *cfg, backend *be,
                          const model_config *base, registry *reg, err *e)
{
    *out = NULL;
    int n_loaders = cfg->n_loaders > 0 ? cfg->n_loaders : 1;
    if (cfg->arena == NULL && cfg->budget_bytes == 0)
        return err_set(e, ERR_INPUT, "the adapters' budget is 0 bytes");
    if (n_loaders > LOADERS_MAX)
        return err_set(e, ERR_INPUT, "there are at most %d loader threads", LOADERS_MAX);
    residency *rs = calloc(1, sizeof *rs);
    if (rs == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    rs->env = (load_env){
        .reg = reg, .be = be, .base = base, .weights = cfg->weights, .int8 = cfg->host_int8};
    rs->host_budget = cfg->host_bytes;
    err_code code = open_devmem(rs, cfg, e);
    if (code != ERR_NONE) {
        free(rs);
        return code;
    }
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
    registry_on_gone(rs->env.reg, NULL, NULL);
    pthread_mutex_lock(&rs->mu);
    rs->stop = true;
    pthread_cond_broadcast(&rs->work);
    pthread_mutex_unlock(&rs->mu);
    for (int i = 0; i < rs->n_loaders; i++) pthread_join(rs->loader[i], NULL);
    if (rs->n_acquired != 0) {
        log_error("adapters", "residency destroyed while %d adapters are in use", rs->n_acquired);
        abort();
    }
    pthread_mutex_lock(&rs->mu);
    collect(rs);
    for (size_t b = 0; b < BUCKETS; b++)
        for (entry *en = rs->bucket[b], *next; en != NULL; en = next) {
            next = en->chained;
            if (en->lease != NULL) devmem_lease_drop(en->lease);
            extras_clear(&en->extras, rs->env.be);
            copy_free(en->copy);
            free(en->mat);
            free(en->why);
            free(en);
        }
    free_trash(take_trash(rs));
    pthread_mutex_unlock(&rs->mu);
    devmem_destroy(rs->own_arena);
    free(rs->host);
    pthread_cond_destroy(&rs->work);
    pthread_mutex_destroy(&rs->mu);
    free(rs);
}
