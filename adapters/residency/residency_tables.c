/* residency_tables.c -- the data structures of residency.c: entry table, queues, load-time
 * estimates, copies in host memory.
 *
 *   table    hash by version id, chained
 *   queues   doubly linked, ordered by deadline (queue_add()); a hint that becomes a demand moves
 *   times    read and pack time per byte, forgetting averages (tier_learn()); tier_eta_us() adds
 *            the loads in front of an entry, divided by the loaders
 *   copies   files kept in host memory, evicted by GreedyDual-Size with frequency: worth = clock +
 *            uses x read time / bytes, in a heap
 *
 * Popularity decays with a half-life of HALF_LIFE_US. A copy that a loader is using is not evicted.
 * Freeing a large copy takes time, so host_drop() only moves it to a list that the caller frees
 * without the lock (host_take_trash()).
 *
 * Threads: `mu` is held in every function except host_free_trash().
 */
#include "adapters/residency/residency_tables.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/heap.h"
#include "engine/base/lock.h"

static const double HALF_LIFE_US = 600e6; /* of popularity */

/* ---- lists and table ------------------------------------------------------------------------ */

void chain_push(chain *l, entry *en)
{
    assert(!en->next && !en->prev && l->tail != en && l->n >= 0);
    en->next = NULL;
    en->prev = l->tail;
    if (l->tail)
        l->tail->next = en;
    else
        l->head = en;
    l->tail = en;
    l->n++;
}

void chain_drop(chain *l, entry *en)
{
    if (en->prev)
        en->prev->next = en->next;
    else
        l->head = en->next;
    if (en->next)
        en->next->prev = en->prev;
    else
        l->tail = en->prev;
    en->prev = en->next = NULL;
    l->n--;
    assert(l->n >= 0 && (l->n == 0) == !l->head && !l->head == !l->tail);
}

static size_t bucket_of(uint64_t id)
{
    return hash_id(id) & (BUCKETS - 1);
}

entry *tier_find(residency *rs, uint64_t id)
{
    lock_assert_held(&rs->mu);
    entry *en = rs->bucket[bucket_of(id)];
    while (en && en->id != id) en = en->chained;
    return en;
}

entry *tier_find_or_add(residency *rs, uint64_t id)
{
    lock_assert_held(&rs->mu);
    entry *en = tier_find(rs, id);
    if (en) return en;
    en = calloc(1, sizeof(*en));
    if (!en) return NULL;
    en->id = id;
    en->state = RESIDENCY_DISK;
    en->chained = rs->bucket[bucket_of(id)];
    rs->bucket[bucket_of(id)] = en;
    return en;
}

/* Before the first that is due later. */
static void queue_add(residency *rs, want w, entry *en)
{
    chain *l = &rs->queue[w];
    entry *after = l->tail;
    while (after && after->due_us > en->due_us) after = after->prev;
    if (after == l->tail) {
        chain_push(l, en);
        return;
    }
    entry *before = after != NULL ? after->next : l->head;
    en->prev = after;
    en->next = before;
    before->prev = en;
    if (after)
        after->next = en;
    else
        l->head = en;
    l->n++;
}

/* Puts it into the queue, or moves it from the hints up to the demands, or forward. */
void tier_enqueue(residency *rs, entry *en, want w, int64_t due_us)
{
    lock_assert_held(&rs->mu);
    if (en->state == RESIDENCY_LOADING) {
        if (en->wanted > w) w = en->wanted;
        if (en->wanted == w && due_us >= en->due_us) return;
        if (due_us < en->due_us) en->due_us = due_us;
        if (en->reserved) {
            en->wanted = w;
            return;
        }
        chain_drop(&rs->queue[en->wanted], en);
    } else {
        en->due_us = due_us;
    }
    en->state = RESIDENCY_LOADING;
    rs->changes++;
    en->wanted = w;
    queue_add(rs, w, en);
    cond_broadcast(&rs->work);
}

/* ---- times ----------------------------------------------------------------------------------- */

enum {
    QUEUE_LOOK = 64
}; /* entries of the queue that an estimate looks at, the others are as these */

static const double remember = 0.9; /* of the sums, after each load */

void tier_learn(residency *rs, const entry *en, int64_t read_us, int64_t pack_us)
{
    lock_assert_held(&rs->mu);
    double bytes = (double)en->bytes;
    rs->pack_us = remember * rs->pack_us + (double)pack_us;
    rs->pack_bytes = remember * rs->pack_bytes + bytes;
    if (read_us <= 0) return;
    rs->read_us = remember * rs->read_us + (double)read_us;
    rs->read_bytes = remember * rs->read_bytes + bytes;
}

/* Of one load; `bytes` 0: as many as they have on average. */
static double load_us(const residency *rs, uint64_t bytes, bool on_host)
{
    double n = (double)bytes;
    if (bytes == 0 && rs->stats.n_loads > 0)
        n = (double)rs->stats.loaded_bytes / (double)rs->stats.n_loads;
    double us = rs->pack_bytes > 0 ? n * rs->pack_us / rs->pack_bytes : 0;
    if (!on_host && rs->read_bytes > 0) us += n * rs->read_us / rs->read_bytes;
    return us;
}

/* Of those in the chain that are loaded before `en`. */
static double queue_us(const residency *rs, const chain *q, const entry *en, int64_t due_us)
{
    double us = 0;
    int n = 0;
    for (const entry *x = q->head; x != NULL && x != en && x->due_us <= due_us; x = x->next) {
        if (++n > QUEUE_LOOK) return us * q->n / QUEUE_LOOK;
        us += load_us(rs, x->bytes, x->copy != NULL);
    }
    return us;
}

int64_t tier_eta_us(const residency *rs, const entry *en, uint64_t bytes, int64_t due_us)
{
    lock_assert_held(&rs->mu);
    if (en && en->state == RESIDENCY_RESIDENT && !en->closing) return 0;
    if (en && en->state == RESIDENCY_FAILED) return 0;
    double us = load_us(rs, bytes, en != NULL && en->copy);
    if (en && en->reserved) return (int64_t)us;
    bool demand = en != NULL && en->wanted == WANT_DEMAND;
    double before = queue_us(rs, &rs->queue[WANT_NONE], NULL, INT64_MAX);
    before += queue_us(rs, &rs->queue[WANT_DEMAND], en, demand ? en->due_us : INT64_MAX);
    if (!demand) before += queue_us(rs, &rs->queue[WANT_HINT], en, due_us);
    return (int64_t)(us + before / rs->n_loaders);
}

/* ---- pins ------------------------------------------------------------------------------------ */

uint64_t tier_pinned_bytes(const residency *rs, const entry *but)
{
    lock_assert_held(&rs->mu);
    return rs->pinned_bytes - (but->pinned ? but->bytes : 0);
}

void tier_set_bytes(residency *rs, entry *en, uint64_t bytes)
{
    lock_assert_held(&rs->mu);
    if (en->pinned) rs->pinned_bytes += bytes - en->bytes;
    en->bytes = bytes;
}

void tier_set_pinned(residency *rs, entry *en, bool pinned)
{
    lock_assert_held(&rs->mu);
    if (en->pinned == pinned) return;
    en->pinned = pinned;
    rs->changes++;
    rs->stats.n_pinned += pinned ? 1 : -1;
    rs->pinned_bytes += pinned ? en->bytes : -en->bytes;
}

double tier_popularity(const entry *en, int64_t now_us)
{
    return en->popularity * exp2(-(double)(now_us - en->last_use_us) / HALF_LIFE_US);
}

/* ---- host memory ---------------------------------------------------------------------------- */

static bool worth_less(const void *self, const void *a, const void *b)
{
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    (void)self;
    return x->host_worth < y->host_worth;
}

static void note_place(void *self, const void *item, size_t at)
{
    (void)self;
    (*(entry *const *)item)->host_at = (int)at;
}

static const heap_of copies = {sizeof(entry *), worth_less, note_place};

/* Restores the heap at `at` after an insertion or a change of worth. */
static void host_settle(residency *rs, int at)
{
    heap_settle(&copies, NULL, (void *)rs->host, (size_t)rs->n_host, (size_t)at);
}

static void host_leave(residency *rs, int at)
{
    assert(at >= 0 && at < rs->n_host);
    rs->host[at] = rs->host[--rs->n_host];
    if (at < rs->n_host) host_settle(rs, at);
}

static void free_later(residency *rs, entry *en)
{
    assert(en->copy && rs->host_used >= en->copy->bytes);
    rs->host_used -= (size_t)en->copy->bytes;
    en->copy->next = rs->trash;
    rs->trash = en->copy;
    en->copy = NULL;
    rs->changes++;
}

void host_drop(residency *rs, entry *en)
{
    lock_assert_held(&rs->mu);
    host_leave(rs, en->host_at);
    free_later(rs, en);
}

void host_value(residency *rs, entry *en)
{
    lock_assert_held(&rs->mu);
    en->host_worth = rs->host_clock + (tier_popularity(en, clock_now_us()) + 1) *
                                          (double)en->read_us / (double)(en->copy->bytes + 1);
    host_settle(rs, en->host_at);
}

/* Evicts copies, the least valuable first, until the budget holds. Copies that a loader works on
 * stay; there are at most HANDS_MAX of them. */
void host_trim(residency *rs)
{
    lock_assert_held(&rs->mu);
    entry *busy[HANDS_MAX];
    int n_busy = 0;
    while (rs->host_used > rs->host_budget && rs->n_host > 0) {
        entry *least = rs->host[0];
        host_leave(rs, 0);
        if (least->taken) {
            assert(n_busy < HANDS_MAX); /* a loader works on one */
            busy[n_busy++] = least;
            continue;
        }
        if (least->host_worth > rs->host_clock) rs->host_clock = least->host_worth;
        free_later(rs, least);
        rs->stats.n_host_evictions++;
    }
    while (n_busy > 0) {
        rs->host[rs->n_host] = busy[--n_busy];
        host_settle(rs, rs->n_host++);
    }
}

/* Keeps what a loader has read. */
void host_keep(residency *rs, entry *en, adapter_load *ld, int64_t read_us)
{
    lock_assert_held(&rs->mu);
    if (!ld->own_copy || rs->host_budget == 0 || en->gone) return;
    if (rs->n_host == rs->cap_host) {
        int cap = rs->cap_host > 0 ? rs->cap_host * 2 : 64;
        entry **more = realloc(rs->host, (size_t)cap * sizeof(entry *));
        if (!more) return;
        rs->host = more;
        rs->cap_host = cap;
    }
    en->copy = ld->copy;
    rs->changes++;
    ld->own_copy = false;
    rs->host_used += (size_t)en->copy->bytes;
    en->read_us = read_us;
    rs->host[rs->n_host] = en;
    en->host_at = rs->n_host++;
    host_value(rs, en);
}

adapter_copy *host_take_trash(residency *rs)
{
    lock_assert_held(&rs->mu);
    adapter_copy *c = rs->trash;
    rs->trash = NULL;
    return c;
}

void host_free_trash(adapter_copy *c)
{
    for (adapter_copy *next; c != NULL; c = next) {
        next = c->next;
        copy_free(c);
    }
}

/* ---- ends ------------------------------------------------------------------------------------ */

void tier_forget(residency *rs, entry *en)
{
    lock_assert_held(&rs->mu);
    entry **at = &rs->bucket[bucket_of(en->id)];
    assert(en->acquired == 0 && !en->lease);
    while (*at && *at != en) at = &(*at)->chained;
    assert(*at);
    *at = en->chained;
    rs->changes++;
    tier_set_pinned(rs, en, false);
    if (en->copy) host_drop(rs, en);
    free(en->why);
    free(en);
}

/* Removes an entry without any history. */
void tier_forget_if_empty(residency *rs, entry *en)
{
    lock_assert_held(&rs->mu);
    bool used = en->n_loads > 0 || en->copy || en->pinned || en->due_us > 0;
    if (en->gone || (!used && en->state == RESIDENCY_DISK)) tier_forget(rs, en);
}
