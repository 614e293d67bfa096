/* residency.c -- where each adapter is (disk, host memory, device), and the loader threads that
 * move them.
 *
 *   DISK --want--> LOADING (queued, reserved, read, packed) --> RESIDENT --evicted by the arena-->
 *   DISK
 *                      \--error--> FAILED (retried after RETRY_US)
 *
 * An entry exists for each version that was ever requested. Demands (the engine got ERR_BUSY) go
 * before hints (prefetch, warm-up); among equals the earliest deadline is first. A loader reads the
 * header, learns the number of chunks, and waits for them (reserve()). Chunks go to the first
 * demand only, so a smaller later one cannot overtake it for ever; hints take what is idle.
 *
 * The arena evicts from any thread.  collect() updates the table after evictions; the engine calls
 * it at each step, and so does each function that changes the table.
 *
 * Two rules prevent deadlock and thrashing on a small device:
 *   - if the first demand has waited INSIST_AFTER_US, the least recently used busy adapters are
 *   closed: they finish, take no new requests, and new sequences leave room (insist())
 *   - what could never fit is refused, not queued
 *
 * Threads: `mu` guards the table; loaders read and pack without it. Reads and packing are in
 * load.c.
 */
#include "adapters/residency/residency.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "adapters/residency/residency_tables.h"
#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"

/* Niceness of loader threads: below the running batch; a hint below a demand. */
enum { DEMAND_NICE = 10, HINT_NICE = 15 };

/* On Linux niceness belongs to the thread: the process's value, and what this loader has added. */
static _Thread_local int own_nice, nicer;
static _Thread_local bool is_loader;

enum { ROWS_ROOM = 1024 };
enum { INSIST_AFTER_US = 1000000, RETRY_US = 5000000, STARVED_RETRY_US = 100000, TICK_MS = 2 };

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

/* ---- the device ------------------------------------------------------------------------------ */

/* Releases the chunks of a resident entry, which is queued again if it is still wanted. */
static void left_device(residency *rs, entry *en)
{
    lock_assert_held(&rs->mu);
    chain_drop(&rs->lru, en);
    devmem_lease_drop(en->lease);
    extras_clear(&en->extras, rs->env.be);
    free(en->mat);
    en->lease = NULL;
    en->mat = NULL;
    en->state = RESIDENCY_DISK;
    rs->changes++;
    en->fresh = en->closing = false;
    rs->stats.n_evictions++;
    want again = en->gone ? WANT_NONE : en->wanted;
    en->wanted = WANT_NONE;
    if (en->gone)
        tier_forget(rs, en);
    else if (again != WANT_NONE)
        tier_enqueue(rs, en, again, en->due_us);
}

/* Processes the arena's evictions. */
static void collect(residency *rs)
{
    lock_assert_held(&rs->mu);
    for (entry *en; (en = devmem_lost(rs->arena)) != NULL;) left_device(rs, en);
}

/* The first demand waits for adapters that are never idle: closes the least recently used ones, and
 * makes new sequences leave room. */
static void insist(residency *rs, const entry *for_whom, int n_chunks)
{
    lock_assert_held(&rs->mu);
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
    lock_assert_held(&rs->mu);
    if (rs->starved != en) return;
    devmem_reserve(rs->arena, 0);
    rs->starved = NULL;
}

/* ---- loader threads (mu is held unless said) ------------------------------------------------- */

static void fail(residency *rs, entry *en, const err *why)
{
    lock_assert_held(&rs->mu);
    chain_drop(&rs->queue[en->wanted], en);
    en->state = RESIDENCY_FAILED;
    rs->changes++;
    en->wanted = WANT_NONE;
    en->taken = false;
    if (!en->why) en->why = malloc(sizeof(*en->why));
    if (en->why) *en->why = *why;
    en->failed_us = clock_now_us();
    en->due_us = 0;
    rs->stats.n_failures++;
    log_warn("adapters", "load failed: %s", why->msg);
    if (en->gone) tier_forget(rs, en);
}

static entry *next_to_load(residency *rs)
{
    lock_assert_held(&rs->mu);
    for (int w = WANT_DEMAND; w >= WANT_HINT; w--)
        for (entry *en = rs->queue[w].head; en != NULL; en = en->next)
            if (!en->taken) return en;
    return NULL;
}

static void wait_a_tick(residency *rs)
{
    lock_assert_held(&rs->mu);
    cond_wait_until(&rs->work, &rs->mu, clock_now_us() + TICK_MS * 1000);
}

/* Waits for n chunks and takes them. ERR_CANCELLED: no longer wanted, or a hint without room.
 * ERR_CONFLICT: an earlier demand has no loader yet, and this thread must serve that first. */
static err_code reserve(residency *rs, entry *en, int n, err *e)
{
    lock_assert_held(&rs->mu);
    int64_t first_us = 0; /* when it became the first demand */
    for (;;) {
        collect(rs);
        if (rs->stop || en->gone) return err_set(e, ERR_CANCELLED, "the adapter was deleted");
        if (rs->suspended) return err_set(e, ERR_CONFLICT, "the device is being restarted");
        uint64_t pinned = tier_pinned_bytes(rs, en);
        if (en->bytes > rs->budget || pinned > rs->budget - en->bytes)
            return err_set(
                e, ERR_LIMIT, "the adapter needs %llu bytes; this server has %llu for adapters",
                (unsigned long long)en->bytes, (unsigned long long)(rs->budget - pinned));
        int64_t now_us = clock_now_us();
        bool demand = en->wanted == WANT_DEMAND;
        bool first = demand ? rs->queue[WANT_DEMAND].head == en : rs->queue[WANT_DEMAND].n == 0;
        if (first) {
            uint64_t failures = memory_failures();
            en->lease =
                devmem_lease_take(rs->arena, n, demand ? DEVMEM_DEMAND : DEVMEM_HINT, now_us, en);
            /* The host is out of memory; evicting others would not help. */
            if (!en->lease && memory_failures() != failures)
                return err_set(e, ERR_NOMEM, "out of memory");
            collect(rs);
        }
        if (en->lease) break;
        if (!demand) return err_set(e, ERR_CANCELLED, "no room for a hint");
        if (!first && !rs->queue[WANT_DEMAND].head->taken)
            return err_set(e, ERR_CONFLICT, "an earlier one waits");
        if (first && first_us == 0) first_us = now_us;
        if (first && now_us - first_us >= INSIST_AFTER_US) insist(rs, en, n);
        wait_a_tick(rs);
    }
    relent(rs, en);
    /* Leave the queue: the next demand may reserve while this one is read. */
    chain_drop(&rs->queue[en->wanted], en);
    chain_push(&rs->queue[WANT_NONE], en);
    en->reserved = true;
    cond_broadcast(&rs->work);
    return ERR_NONE;
}

/* The weights have arrived: takes them out of ld, makes the view that steps read, with a number
 * that no earlier load has, and hands its chunks to the arena's order of eviction. */
static void make_resident(residency *rs, entry *en, adapter_load *ld, int64_t took_us)
{
    lock_assert_held(&rs->mu);
    assert(en->taken && en->reserved && en->lease);
    chain_drop(&rs->queue[WANT_NONE], en);
    devmem_need need = en->wanted == WANT_DEMAND ? DEVMEM_DEMAND : DEVMEM_HINT;
    en->reserved = false;
    en->mat = ld->mat;
    en->extras = ld->extras;
    ld->mat = NULL;
    ld->extras = (adapter_extras){0};
    static atomic_ullong loads; /* of all residencies of the process */
    en->view = (lora_view){.adapter_id = en->id,
                           .load_id = atomic_fetch_add(&loads, 1) + 1,
                           .n_layer = rs->env.base->n_layer,
                           .n_vocab = ld->n_vocab,
                           .rank_max = ld->rank_max,
                           .mat = en->mat,
                           .n_expert = ld->n_expert,
                           .head = en->extras.head,
                           .embed = en->extras.embed,
                           .norm = en->extras.norm,
                           .score_head = en->extras.score_head};
    if (ld->n_expert > 0) en->view.expert = en->mat + peft_head_slot(rs->env.base->n_layer);
    memcpy(en->view.digest, adapter_load_digest(ld), LORA_DIGEST_BYTES);
    en->state = RESIDENCY_RESIDENT;
    rs->changes++;
    en->wanted = WANT_NONE;
    en->due_us = 0;
    en->taken = false;
    en->fresh = true;
    en->took_us = took_us;
    en->n_loads++;
    chain_push(&rs->lru, en);
    if (en->pinned) devmem_lease_pin(en->lease, true);
    devmem_lease_ready(en->lease, need, (double)took_us, clock_now_us());
    rs->stats.n_loads++;
    rs->stats.loaded_bytes += en->bytes;
    rs->stats.load_us_sum += took_us;
    rs->load_us += ((double)took_us - rs->load_us) * (rs->load_us > 0 ? 1.0 / 16 : 1);
    if (took_us > rs->stats.load_us_max) rs->stats.load_us_max = took_us;
    if (en->gone) left_device(rs, en);
}

/* Gives up a hint without room, or at shutdown. */
static void give_up(residency *rs, entry *en)
{
    lock_assert_held(&rs->mu);
    chain_drop(&rs->queue[en->wanted], en);
    en->state = RESIDENCY_DISK;
    rs->changes++;
    en->wanted = WANT_NONE;
    en->taken = false;
    tier_forget_if_empty(rs, en);
}

typedef struct timing {
    int64_t read_us, pack_us;
    int64_t busy_us; /* of reading; the rest of it the disk was waited for */
    under_way way;   /* where the disk is read */
} timing;

/* Reads a file into memory, without the lock. */
static err_code read_one(adapter_load *ld, timing *t, err *e)
{
    if (ld->copy) return ERR_NONE;
    int64_t t0 = clock_now_us(), busy0 = clock_busy_us();
    err_code rc = adapter_load_read(ld, e);
    t->busy_us += clock_busy_us() - busy0;
    t->read_us += clock_now_us() - t0;
    under_way_read(&t->way, t->read_us - t->busy_us);
    return rc;
}

static err_code pack_one(const entry *en, adapter_load *ld, timing *t, err *e)
{
    int64_t t0 = clock_now_us();
    void **chunk = malloc((size_t)ld->n_chunks * sizeof(void *));
    if (!chunk) return err_set(e, ERR_NOMEM, "no memory for an adapter");
    devmem_lease_map(en->lease, chunk);
    err_code rc = adapter_load_pack(ld, chunk, e);
    free(chunk);
    t->pack_us = clock_now_us() - t0;
    return rc;
}

/* With the lock again: keeps what was read, whatever became of the load. */
static void count_read(residency *rs, entry *en, adapter_load *ld, const timing *t)
{
    lock_assert_held(&rs->mu);
    if (!ld->own_copy || ld->copy->mapped) return;
    rs->stats.read_us_sum += t->read_us;
    rs->stats.read_bytes += ld->copy->bytes;
    host_keep(rs, en, ld, t->read_us);
}

static void keep_pace(const entry *en)
{
    int wanted = en->wanted == WANT_HINT ? HINT_NICE : DEMAND_NICE;
    if (!is_loader) return;
    if (wanted != nicer)
        (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), own_nice + wanted);
    nicer = wanted;
}

/* Reserves room, reads and packs one adapter. The lock is released while files are read and
 * packed. Where the device has no room for a hint but the host does, only the host's copy is
 * made, and the result is still the refusal (only_host). */
static err_code bring_up(residency *rs, entry *en, adapter_load *ld, timing *t, err *e)
{
    lock_assert_held(&rs->mu);
    tier_set_bytes(rs, en, (uint64_t)ld->n_chunks * rs->env.chunk_bytes);
    err_code rc = reserve(rs, en, ld->n_chunks, e);
    bool only_host = rc == ERR_CANCELLED && !rs->stop && !en->gone && rs->host_budget > 0;
    if (rc && !only_host) return rc;
    keep_pace(en); /* a hint may have become a demand */
    ld->hint = en->wanted == WANT_HINT && ld->given_fd < 0;
    if (!only_host) {
        if (ld->copy)
            rs->stats.n_host_hits++;
        else if (ld->given_fd < 0)
            rs->stats.n_host_misses++;
    }
    bool given = ld->given_fd >= 0;
    lock_release(&rs->mu);
    err ignored;
    err_code done = read_one(ld, t, only_host ? &ignored : e);
    if (done == ERR_NONE && !only_host) done = pack_one(en, ld, t, e);
    lock_take(&rs->mu);
    bool from_disk = ld->own_copy && !given;
    count_read(rs, en, ld, t);
    rs->stats.pack_us_sum += t->pack_us;
    if (only_host) return rc;
    if (done == ERR_NONE) tier_learn(rs, en, from_disk ? t->read_us : 0, t->pack_us);
    if (done == ERR_NONE && from_disk && t->read_us > t->busy_us)
        rs->stats.disk_us_sum += t->read_us - t->busy_us;
    if (done == ERR_NONE) make_resident(rs, en, ld, t->read_us + t->pack_us);
    return done;
}

/* Loads one entry, of the open file where given_fd is not -1; called and returns with mu held. */
static void load_one(residency *rs, entry *en, int given_fd, uint64_t n_given)
{
    lock_assert_held(&rs->mu);
    adapter_load ld;
    timing t = {0};
    err why = {0};
    en->taken = true; /* so its copy stays */
    keep_pace(en);
    uint64_t id = en->id;
    adapter_copy *copy = en->copy;
    if (copy)
        host_value(rs, en);
    else if (given_fd < 0)
        under_way_begin(&rs->going, &t.way);
    lock_release(&rs->mu);
    int64_t t0 = clock_now_us(), busy0 = clock_busy_us();
    uint64_t failures = memory_failures();
    err_code rc = adapter_load_begin(&ld, &rs->env, id, copy, &why);
    ld.given_fd = given_fd;
    ld.n_given = n_given;
    t.busy_us = clock_busy_us() - busy0;
    t.read_us = clock_now_us() - t0;
    lock_take(&rs->mu);
    if (!rc) rc = bring_up(rs, en, &ld, &t, &why);
    under_way_end(&rs->going, &t.way);
    if (rc && rc != ERR_CANCELLED && rc != ERR_CONFLICT && memory_failures() != failures)
        rc = err_set(&why, ERR_NOMEM, "out of memory"); /* whatever it looks like */
    if (rc && en->reserved) {
        devmem_lease_drop(en->lease);
        en->lease = NULL;
        chain_drop(&rs->queue[WANT_NONE], en);
        chain_push(&rs->queue[en->wanted], en);
        en->reserved = false;
    }
    if (rc) relent(rs, en);
    /* The device was lost: the entry stays queued until the engine has another one. */
    bool lost = rc && rc != ERR_CANCELLED && be_lost(rs->env.be);
    if (lost) rc = ERR_CONFLICT;
    if (rc == ERR_CANCELLED)
        give_up(rs, en);
    else if (rc == ERR_CONFLICT)
        en->taken = false;
    else if (rc)
        fail(rs, en, &why);
    host_trim(rs);
    adapter_copy *trash = host_take_trash(rs);
    cond_broadcast(&rs->work);
    lock_release(&rs->mu);
    host_free_trash(trash);
    adapter_load_clear(&ld); /* the last pin may delete files: not under the lock */
    lock_take(&rs->mu);
    if (lost && !rs->suspended) wait_a_tick(rs);
}

static void *loader_main(void *arg)
{
    residency *rs = arg;
    (void)pthread_setname_np(pthread_self(), "loader");
    own_nice = getpriority(PRIO_PROCESS, 0);
    is_loader = true;
    lock_take(&rs->mu);
    while (!rs->stop) {
        entry *en = rs->suspended ? NULL : next_to_load(rs);
        if (en) {
            rs->n_busy++;
            load_one(rs, en, -1, 0);
            rs->n_busy--;
            if (rs->suspended) cond_broadcast(&rs->work);
        } else {
            cond_wait(&rs->work, &rs->mu);
        }
    }
    lock_release(&rs->mu);
    return NULL;
}

/* ---- the engine's door ----------------------------------------------------------------------- */

/* How long a failed version is not read again. After a memory shortage only the waiting requests
 * fail. */
static int64_t retry_us(const entry *en)
{
    return !en->why || en->why->code == ERR_NOMEM ? STARVED_RETRY_US : RETRY_US;
}

/* A resident one is held and becomes the latest used. Else it is queued as a demand: ERR_BUSY
 * until it is there, or, for a while after a load that failed, that load's error. */
static err_code acquire_locked(residency *rs, uint64_t id, const lora_view **out, err *e)
{
    lock_assert_held(&rs->mu);
    int64_t now_us = clock_now_us();
    collect(rs);
    entry *en = tier_find_or_add(rs, id);
    if (!en) return err_set(e, ERR_NOMEM, "out of memory");
    if (en->state == RESIDENCY_RESIDENT && !en->closing) {
        if (devmem_lease_hold(en->lease, tier_popularity(en, now_us))) {
            en->acquired++;
            rs->n_acquired++;
            rs->changes++;
            en->wanted = WANT_NONE;
            chain_drop(&rs->lru, en);
            chain_push(&rs->lru, en);
            *out = &en->view;
            return ERR_NONE;
        }
        collect(rs); /* evicted just now */
    }
    if (en->state == RESIDENCY_FAILED && now_us - en->failed_us < retry_us(en)) {
        if (!en->why) return err_set(e, ERR_NOMEM, "out of memory");
        if (e) *e = *en->why;
        return en->why->code;
    }
    if (en->state == RESIDENCY_RESIDENT) { /* closing: it is queued again after the eviction */
        en->wanted = WANT_DEMAND;
    } else {
        if (en->state != RESIDENCY_LOADING) rs->stats.n_misses++;
        /* an earlier hint may have set the deadline */
        bool known = en->due_us > 0 && en->due_us < INT64_MAX;
        tier_enqueue(rs, en, WANT_DEMAND, known ? en->due_us : now_us);
    }
    return err_set(e, ERR_BUSY, "the adapter is being loaded");
}

static err_code acquire_cb(void *self, uint64_t id, const lora_view **out, err *e)
{
    residency *rs = self;
    *out = NULL;
    lock_take(&rs->mu);
    err_code rc = acquire_locked(rs, id, out, e);
    lock_release(&rs->mu);
    return rc;
}

static void used_cb(void *self, const lora_view *view)
{
    residency *rs = self;
    int64_t now_us = clock_now_us();
    lock_take(&rs->mu);
    entry *en = tier_find(rs, view->adapter_id);
    if (en && en->acquired > 0) {
        if (!en->fresh) {
            rs->stats.n_hits++;
            en->n_hits++;
        }
        en->fresh = false;
        en->popularity = tier_popularity(en, now_us) + 1;
        en->last_use_us = now_us;
        (void)devmem_lease_hold(en->lease, en->popularity);
        devmem_lease_release(en->lease);
    }
    lock_release(&rs->mu);
}

static void release_cb(void *self, const lora_view *view)
{
    residency *rs = self;
    lock_take(&rs->mu);
    entry *en = tier_find(rs, view->adapter_id);
    if (!en || en->acquired <= 0) {
        log_error("adapters", "the engine released an adapter that it does not hold");
        abort();
    }
    en->acquired--;
    rs->n_acquired--;
    rs->changes++;
    devmem_lease_release(en->lease);
    if (en->acquired == 0) {
        if (en->gone || en->closing) left_device(rs, en);
        cond_broadcast(&rs->work); /* there may be room now */
    }
    lock_release(&rs->mu);
}

static void hint(residency *rs, uint64_t id, int64_t due_us)
{
    lock_take(&rs->mu);
    collect(rs);
    entry *en = tier_find_or_add(rs, id);
    if (en && en->due_us > 0 && en->due_us < due_us) due_us = en->due_us;
    if (en && (en->state == RESIDENCY_DISK || en->state == RESIDENCY_LOADING))
        tier_enqueue(rs, en, WANT_HINT, due_us);
    lock_release(&rs->mu);
}

static void want_cb(void *self, uint64_t id, int64_t deadline_us)
{
    hint(self, id, deadline_us > 0 ? deadline_us : clock_now_us());
}

static int chunks_cb(void *self, const lora_view *view)
{
    residency *rs = self;
    lock_take(&rs->mu);
    const entry *en = tier_find(rs, view->adapter_id);
    int n = en != NULL ? devmem_lease_chunks(en->lease) : 0;
    lock_release(&rs->mu);
    return n;
}

static void outlook_cb(void *self, double *load_us, int *room)
{
    residency *rs = self;
    devmem_counts c;
    devmem_count(rs->arena, &c);
    lock_take(&rs->mu);
    double n = (double)rs->stats.n_loads;
    double chunks = n > 0 ? (double)rs->stats.loaded_bytes / n / (double)rs->env.chunk_bytes : 1;
    *load_us = rs->load_us / rs->n_loaders;
    lock_release(&rs->mu);
    /* Half of what is idle: the other half may be wanted again. */
    *room = 1 + (int)((c.n_free + c.n_pages_cached + c.n_lease_idle) / (2 * chunks + 1));
}

static void step_cb(void *self, double step_us, double slack_us)
{
    residency *rs = self;
    lock_take(&rs->mu);
    collect(rs); /* pages of this step may have taken the place of adapters */
    lock_release(&rs->mu);
    pace_step(&rs->pace, step_us, slack_us);
}

/* Size of a version without an entry, from the registry. Without the lock: releasing a pin under it
 * is not allowed. */
static uint64_t size_on_device(residency *rs, uint64_t id)
{
    const adapter_version *v;
    err ignored;
    if (registry_acquire_id(rs->env.reg, id, &v, &ignored) != ERR_NONE) return 0;
    uint64_t bytes = v->packed_bytes;
    registry_release(rs->env.reg, v);
    return bytes;
}

static int64_t eta_cb(void *self, uint64_t id, int64_t deadline_us)
{
    residency *rs = self;
    lock_take(&rs->mu);
    const entry *en = tier_find(rs, id);
    bool known = en != NULL && en->bytes > 0;
    int64_t us = known ? tier_eta_us(rs, en, en->bytes, deadline_us) : 0;
    lock_release(&rs->mu);
    if (known) return us;
    uint64_t bytes = size_on_device(rs, id);
    lock_take(&rs->mu);
    us = tier_eta_us(rs, tier_find(rs, id), bytes, deadline_us);
    lock_release(&rs->mu);
    return us;
}

static void spent_cb(void *self, int64_t *disk_us, int64_t *load_us)
{
    residency *rs = self;
    lock_take(&rs->mu);
    *disk_us = rs->stats.disk_us_sum;
    *load_us = rs->stats.load_us_sum;
    under_way_add(rs->going, clock_now_us(), disk_us, load_us);
    lock_release(&rs->mu);
}

static void suspend_cb(void *self)
{
    residency *rs = self;
    lock_take(&rs->mu);
    rs->suspended = true;
    pace_step(&rs->pace, 0, INFINITY); /* who waits for a step finishes */
    cond_broadcast(&rs->work);
    while (rs->n_busy > 0) cond_wait(&rs->work, &rs->mu);
    collect(rs);
    for (size_t b = 0; b < BUCKETS; b++)
        for (entry *en = rs->bucket[b], *next; en != NULL; en = next) {
            next = en->chained;
            if (en->state == RESIDENCY_RESIDENT && en->acquired == 0) left_device(rs, en);
        }
    if (rs->own_arena) devmem_unmap(rs->own_arena);
    lock_release(&rs->mu);
}

/* Adapters come back when somebody asks; the pinned ones do at once. */
static void resume_cb(void *self)
{
    residency *rs = self;
    err why;
    lock_take(&rs->mu);
    if (rs->own_arena && devmem_remap(rs->own_arena, &why) != ERR_NONE) {
        log_error("adapters", "no adapter can be loaded any more: %s", why.msg);
    } else {
        rs->suspended = false;
        for (size_t b = 0; b < BUCKETS; b++)
            for (entry *en = rs->bucket[b]; en != NULL; en = en->chained)
                if (en->pinned && en->state == RESIDENCY_DISK)
                    tier_enqueue(rs, en, WANT_HINT, INT64_MAX);
    }
    cond_broadcast(&rs->work);
    lock_release(&rs->mu);
}

lora_source residency_source(residency *rs)
{
    return (lora_source){.self = rs,
                         .acquire = acquire_cb,
                         .release = release_cb,
                         .want = want_cb,
                         .used = used_cb,
                         .chunks = chunks_cb,
                         .step = step_cb,
                         .eta = eta_cb,
                         .outlook = outlook_cb,
                         .spent = spent_cb,
                         .suspend = suspend_cb,
                         .resume = resume_cb};
}

/* ---- API ------------------------------------------------------------------------------------- */

void residency_warm(residency *rs, uint64_t version_id)
{
    hint(rs, version_id, INT64_MAX);
}

void residency_fill(void *self, uint64_t version_id, int fd, uint64_t bytes)
{
    residency *rs = self;
    lock_take(&rs->mu);
    collect(rs);
    entry *en = tier_find_or_add(rs, version_id);
    bool idle = en && en->state == RESIDENCY_DISK && !en->copy;
    if (idle) tier_enqueue(rs, en, WANT_HINT, INT64_MAX);
    if (idle && !rs->env.int8 && !rs->filling && !rs->suspended && !rs->stop) {
        rs->filling = true;
        rs->n_busy++;
        load_one(rs, en, fd, bytes);
        rs->n_busy--;
        rs->filling = false;
        cond_broadcast(&rs->work);
    }
    lock_release(&rs->mu);
}

void residency_renew(residency *rs, uint64_t version_id)
{
    lock_take(&rs->mu);
    entry *en = tier_find(rs, version_id);
    if (en && en->state == RESIDENCY_FAILED) en->failed_us = clock_now_us() - RETRY_US;
    lock_release(&rs->mu);
}

void residency_turn(residency *rs, pace_turn *t, int64_t busy_us)
{
    if (!be_can_sample(rs->env.be)) pace_turn_wait(&rs->pace, t, busy_us);
}

err_code residency_pin(residency *rs, uint64_t version_id, err *e)
{
    const adapter_version *v;
    err_code rc = registry_acquire_id(rs->env.reg, version_id, &v, e);
    if (rc) return rc;
    lock_take(&rs->mu);
    collect(rs);
    entry *en = tier_find_or_add(rs, version_id);
    if (!en) {
        rc = err_set(e, ERR_NOMEM, "out of memory");
    } else if (!en->pinned && tier_pinned_bytes(rs, en) + v->packed_bytes > rs->budget / 2) {
        rc = err_set(e, ERR_LIMIT,
                     "pinned adapters would use more than half of the memory for adapters");
        if (en->state == RESIDENCY_DISK) tier_forget_if_empty(rs, en);
    } else {
        if (en->bytes == 0) en->bytes = v->packed_bytes;
        tier_set_pinned(rs, en, true);
        if (en->state != RESIDENCY_RESIDENT)
            tier_enqueue(rs, en, WANT_DEMAND, clock_now_us());
        else
            devmem_lease_pin(en->lease, true);
    }
    lock_release(&rs->mu);
    registry_release(rs->env.reg, v);
    return rc;
}

void residency_unpin(residency *rs, uint64_t version_id)
{
    lock_take(&rs->mu);
    entry *en = tier_find(rs, version_id);
    if (en && en->pinned) {
        tier_set_pinned(rs, en, false);
        en->fresh = false; /* nobody in particular waits for it */
        if (en->state == RESIDENCY_RESIDENT) devmem_lease_pin(en->lease, false);
        cond_broadcast(&rs->work);
    }
    lock_release(&rs->mu);
}

err_code residency_evict(residency *rs, uint64_t version_id, err *e)
{
    err_code rc = ERR_NONE;
    lock_take(&rs->mu);
    collect(rs);
    entry *en = tier_find(rs, version_id);
    if (en && en->copy && !en->taken && !en->pinned) host_drop(rs, en);
    if (en && en->pinned) {
        rc = err_set(e, ERR_CONFLICT, "the adapter is pinned: unpin it first");
    } else if (en && en->state == RESIDENCY_RESIDENT) {
        en->wanted = WANT_NONE; /* a warm-up that was never used would bring it back at once */
        if (en->acquired > 0)
            en->closing = true;
        else
            left_device(rs, en);
        cond_broadcast(&rs->work); /* there may be room now */
    }
    adapter_copy *trash = host_take_trash(rs);
    lock_release(&rs->mu);
    host_free_trash(trash);
    return rc;
}

/* The registry has deleted a version. */
static void gone_cb(void *self, uint64_t version_id)
{
    residency *rs = self;
    lock_take(&rs->mu);
    collect(rs);
    entry *en = tier_find(rs, version_id);
    if (en) {
        en->gone = true;
        if (en->state == RESIDENCY_RESIDENT) {
            if (en->acquired == 0) left_device(rs, en);
        } else if (!en->taken) {
            if (en->state == RESIDENCY_LOADING)
                give_up(rs, en);
            else
                tier_forget(rs, en);
        }
        cond_broadcast(&rs->work);
    }
    adapter_copy *trash = host_take_trash(rs);
    lock_release(&rs->mu);
    host_free_trash(trash);
    if (rs->env.stacks && !stacks_is(version_id)) stacks_part_gone(rs->env.stacks, version_id);
}

static residency_state state_of(const entry *en)
{
    if (en->state == RESIDENCY_DISK && en->copy) return RESIDENCY_HOST;
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
    lock_take(&rs->mu);
    const entry *en = tier_find(rs, version_id);
    *out = en != NULL ? row_of(en) : (residency_row){.version_id = version_id};
    lock_release(&rs->mu);
}

residency_state residency_get(residency *rs, uint64_t version_id, bool *pinned)
{
    residency_row row;
    residency_row_get(rs, version_id, &row);
    if (pinned) *pinned = row.pinned;
    return row.state;
}

uint64_t residency_changes(residency *rs)
{
    lock_take(&rs->mu);
    uint64_t n = rs->changes + 1;
    lock_release(&rs->mu);
    return n;
}

err_code residency_rows(residency *rs, residency_row **out, size_t *n, size_t *cap, err *e)
{
    for (size_t b = 0; b < BUCKETS; b += 64) {
        if (*cap - *n < ROWS_ROOM) { /* outside the lock */
            size_t more = *cap * 2 + ROWS_ROOM;
            residency_row *p = realloc(*out, more * sizeof(*p));
            if (!p) return err_set(e, ERR_NOMEM, "out of memory");
            *out = p;
            *cap = more;
        }
        lock_take(&rs->mu);
        for (size_t i = b; i < b + 64; i++) {
            for (const entry *en = rs->bucket[i]; en != NULL && *n < *cap; en = en->chained)
                if (en->pinned || state_of(en) != RESIDENCY_DISK) (*out)[(*n)++] = row_of(en);
        }
        lock_release(&rs->mu);
    }
    return ERR_NONE;
}

void residency_stats_get(residency *rs, residency_stats *out)
{
    lock_take(&rs->mu);
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
    lock_release(&rs->mu);
    pace_get(&rs->pace, &out->pace);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void pin_what_was_pinned(residency *rs)
{
    adapter_entry *list;
    size_t n;
    err why;
    if (registry_list(rs->env.reg, 0, NULL, 0, &list, &n, &why) != ERR_NONE) return;
    for (size_t i = 0; i < n; i++) {
        version_entry v;
        if (!list[i].pinned || list[i].default_version == 0) continue;
        err_code rc = registry_version(rs->env.reg, list[i].tenant_id, list[i].name,
                                       list[i].default_version, &v, &why);
        if (!rc) rc = residency_pin(rs, v.v.id, &why);
        if (rc) log_warn("adapters", "%s stays unpinned: %s", list[i].name, why.msg);
    }
    free(list);
}

static err_code open_devmem(residency *rs, const residency_config *cfg, err *e)
{
    rs->arena = cfg->arena;
    err_code rc = ERR_NONE;
    if (!rs->arena) {
        size_t chunk = cfg->chunk_bytes;
        if (chunk == 0) chunk = adapter_chunk_least(rs->env.base, rs->env.be);
        rc = devmem_create(&rs->own_arena, rs->env.be, (int)(cfg->budget_bytes / chunk), chunk, 0,
                           e);
        rs->arena = rs->own_arena;
    }
    if (rc) return rc;
    rs->env.chunk_bytes = devmem_chunk_bytes(rs->arena);
    rs->budget = (size_t)devmem_lease_limit(rs->arena, NULL) * rs->env.chunk_bytes;
    return ERR_NONE;
}

err_code residency_create(residency **out, const residency_config *cfg, backend *be,
                          const model_config *base, registry *reg, err *e)
{
    *out = NULL;
    int n_loaders = cfg->n_loaders > 0 ? cfg->n_loaders : 1;
    if (!cfg->arena && cfg->budget_bytes == 0)
        return err_set(e, ERR_INPUT, "the adapters' budget is 0 bytes");
    if (n_loaders > LOADERS_MAX)
        return err_set(e, ERR_INPUT, "there are at most %d loader threads", LOADERS_MAX);
    residency *rs = calloc(1, sizeof(*rs));
    if (!rs) return err_set(e, ERR_NOMEM, "out of memory");
    rs->env = (load_env){.reg = reg,
                         .stacks = cfg->stacks,
                         .be = be,
                         .base = base,
                         .weights = cfg->weights,
                         .int8 = cfg->host_int8,
                         .keep = cfg->host_bytes > 0};
    rs->host_budget = cfg->host_bytes;
    pace_init(&rs->pace, cfg->copy_share);
    rs->env.pace = &rs->pace;
    err_code rc = open_devmem(rs, cfg, e);
    if (rc) {
        pace_clear(&rs->pace);
        free(rs);
        return rc;
    }
    lock_init(&rs->mu, LOCK_RESIDENCY);
    cond_init(&rs->work);
    while (rs->n_loaders < n_loaders) {
        if (pthread_create(&rs->loader[rs->n_loaders], NULL, loader_main, rs) != 0) {
            residency_destroy(rs);
            return err_set(e, ERR_NOMEM, "cannot start a loader thread");
        }
        rs->n_loaders++;
    }
    registry_on_gone(reg, gone_cb, rs);
    if (cfg->stacks) stacks_on_gone(cfg->stacks, gone_cb, rs);
    pin_what_was_pinned(rs);
    *out = rs;
    return ERR_NONE;
}

void residency_destroy(residency *rs)
{
    if (!rs) return;
    registry_on_gone(rs->env.reg, NULL, NULL);
    if (rs->env.stacks) stacks_on_gone(rs->env.stacks, NULL, NULL);
    lock_take(&rs->mu);
    rs->stop = true;
    cond_broadcast(&rs->work);
    lock_release(&rs->mu);
    pace_step(&rs->pace, 0, INFINITY); /* who waits for a step finishes */
    for (int i = 0; i < rs->n_loaders; i++) pthread_join(rs->loader[i], NULL);
    if (rs->n_acquired != 0) {
        log_error("adapters", "residency destroyed while %d adapters are in use", rs->n_acquired);
        abort();
    }
    lock_take(&rs->mu);
    collect(rs);
    for (size_t b = 0; b < BUCKETS; b++)
        for (entry *en = rs->bucket[b], *next; en != NULL; en = next) {
            next = en->chained;
            if (en->lease) devmem_lease_drop(en->lease);
            extras_clear(&en->extras, rs->env.be);
            copy_free(en->copy);
            free(en->mat);
            free(en->why);
            free(en);
        }
    host_free_trash(host_take_trash(rs));
    lock_release(&rs->mu);
    devmem_destroy(rs->own_arena);
    pace_clear(&rs->pace);
    free(rs->host);
    cond_free(&rs->work);
    lock_free(&rs->mu);
    free(rs);
}
