/* devmem.c -- the arena: equal chunks for KV pages and adapters, a free stack, and two heaps of
 * what can be evicted.
 *
 *   FREE --take--> PAGE_HELD <--> PAGE_IDLE (prefix cache)   --evict--> FREE
 *   FREE --lease--> LEASED (filling, held, pinned: not evictable; else in the heap) --evict--> FREE
 *
 * A heap entry is a chunk number; a lease is in its heap under its first chunk, and the chunks of a
 * lease are linked through `next`. Two heaps instead of one, because the limit on adapters is kept
 * by evicting adapters only. Eviction compares the tops of both: rank first (idle, prefetched,
 * demanded), then worth (GreedyDual-Size with frequency, devmem.h), then age.
 *
 * `claimed` counts chunks that a caller was promised in this step; loaders may not take those
 * (devmem_lease_take()). `fresh` leases are those that nobody has used yet, in the order of their
 * arrival; expire() turns them idle after DEVMEM_FRESH_US.
 *
 * An evicted lease stays allocated until its owner drops it: the owner learns of it by
 * devmem_lost(). Threads: any; `mu` guards everything, never while bytes are copied. Sources:
 * devmem.h.
 */
#include "engine/memory/devmem.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/heap.h"
#include "engine/base/lock.h"
#include "engine/memory/populate.h"

enum { NONE = -1, CLASSES = 3, IDLE = 0, PREFETCHED = 1, DEMANDED = 2 };

typedef enum { FREE, PAGE_HELD, PAGE_IDLE, LEASED } chunk_kind;

typedef struct {
    chunk_kind kind;
    int next; /* next chunk in the free stack or in the lease */
    int at;   /* place in its heap, or NONE */
    int rank; /* IDLE, PREFETCHED, DEMANDED; of a lease's first chunk or a page */
    double worth;
    uint64_t seq;  /* tie-break: the one that became idle first is evicted first */
    uint32_t uses; /* of a page's content */
    devmem_lease *lease;
} chunk;

struct devmem_lease {
    devmem *a;
    void *owner;
    int first, n, holds;
    bool pinned, filling, lost;
    double cost_us, popularity;
    int64_t ready_us;
    devmem_lease *older, *newer; /* list of leases that were not used yet */
    bool fresh;
    devmem_lease *next_lost;
};

typedef struct {
    int *v;
    int n;
} heap;

struct devmem {
    backend *be;
    void *mem;
    populate *ahead; /* touches memory ahead of the highest chunk taken */
    size_t chunk_bytes;
    int n_chunks, lease_cap;
    void (*evicted)(void *self, int chunk);
    void *self;

    lock mu; /* guards all below */
    chunk *chunk;
    int free_top, n_free;
    heap pages, leases;
    int n_pages_held, n_lease_chunks, n_leases, n_pinned_chunks;
    int n_lease_idle[CLASSES]; /* chunks */
    int claimed, reserved;
    double clock, page_cost_us;
    uint64_t seq;
    devmem_lease *lost, *fresh_first, *fresh_last; /* fresh: by ready_us */
    uint64_t pages_evicted, leases_evicted;
};

/* ------------------------------------------------------------------------ heaps -- */

static bool goes_first(const void *self, const void *x, const void *y)
{
    const devmem *a = self;
    const chunk *p = &a->chunk[*(const int *)x], *q = &a->chunk[*(const int *)y];
    if (p->rank != q->rank) return p->rank < q->rank;
    if (p->worth < q->worth || p->worth > q->worth) return p->worth < q->worth;
    return p->seq < q->seq;
}

static void note_place(void *self, const void *item, size_t at)
{
    ((devmem *)self)->chunk[*(const int *)item].at = (int)at;
}

static const heap_of by_worth = {sizeof(int), goes_first, note_place};

static void add_evictable(devmem *a, heap *h, int c)
{
    assert(h->n < a->n_chunks && a->chunk[c].at == NONE);
    a->chunk[c].seq = ++a->seq;
    h->v[h->n++] = c;
    heap_settle(&by_worth, a, h->v, (size_t)h->n, (size_t)h->n - 1);
}

static void remove_evictable(devmem *a, heap *h, int c)
{
    assert(h->n > 0 && a->chunk[c].at >= 0 && h->v[a->chunk[c].at] == c);
    int at = a->chunk[c].at, last = h->v[--h->n];
    a->chunk[c].at = NONE;
    if (last == c) return;
    h->v[at] = last;
    heap_settle(&by_worth, a, h->v, (size_t)h->n, (size_t)at);
}

/* ------------------------------------------------------------------- moving chunks -- */

static void push_free(devmem *a, int c)
{
    assert(c >= 0 && c < a->n_chunks && a->n_free < a->n_chunks);
    a->chunk[c].kind = FREE;
    a->chunk[c].lease = NULL;
    a->chunk[c].next = a->free_top;
    a->free_top = c;
    a->n_free++;
}

static int pop_free(devmem *a)
{
    int c = a->free_top;
    assert(c != NONE && a->n_free > 0 && a->chunk[c].kind == FREE);
    a->free_top = a->chunk[c].next;
    a->n_free--;
    populate_reach(a->ahead, (size_t)(c + 1) * a->chunk_bytes);
    return c;
}

static void fresh_add(devmem_lease *l)
{
    devmem *a = l->a;
    l->fresh = true;
    l->newer = NULL;
    l->older = a->fresh_last;
    *(a->fresh_last ? &a->fresh_last->newer : &a->fresh_first) = l;
    a->fresh_last = l;
}

static void fresh_remove(devmem_lease *l)
{
    devmem *a = l->a;
    if (!l->fresh) return;
    assert((l->older || a->fresh_first == l) && (l->newer || a->fresh_last == l));
    *(l->older ? &l->older->newer : &a->fresh_first) = l->newer;
    *(l->newer ? &l->newer->older : &a->fresh_last) = l->older;
    l->fresh = false;
}

static void lease_to_heap(devmem_lease *l, int rank)
{
    devmem *a = l->a;
    assert(l->first != NONE && l->n > 0 && l->holds == 0 && !l->pinned && !l->filling);
    chunk *c = &a->chunk[l->first];
    c->rank = rank;
    c->worth = a->clock + l->popularity * l->cost_us / l->n;
    a->n_lease_idle[rank] += l->n;
    if (rank != IDLE) fresh_add(l);
    add_evictable(a, &a->leases, l->first);
}

static void lease_from_heap(devmem_lease *l)
{
    devmem *a = l->a;
    fresh_remove(l);
    int rank = a->chunk[l->first].rank;
    a->n_lease_idle[rank] -= l->n;
    assert(a->n_lease_idle[rank] >= 0);
    remove_evictable(a, &a->leases, l->first);
}

static bool in_heap(const devmem_lease *l)
{
    return l->a->chunk[l->first].at != NONE;
}

static void free_chunks(devmem_lease *l)
{
    devmem *a = l->a;
    int n = 0;
    for (int c = l->first, next; c != NONE; c = next, n++) {
        assert(a->chunk[c].kind == LEASED && a->chunk[c].lease == l);
        next = a->chunk[c].next;
        push_free(a, c);
    }
    assert(n == l->n);
    a->n_lease_chunks -= l->n;
    a->n_leases--;
    if (l->pinned) a->n_pinned_chunks -= l->n;
    assert(a->n_lease_chunks >= 0 && a->n_leases >= 0 && a->n_pinned_chunks >= 0);
    l->first = NONE;
}

/* The next chunk or lease to evict, or NONE. */
static int victim(const devmem *a, bool leases_only)
{
    int l = a->leases.n > 0 ? a->leases.v[0] : NONE;
    int p = a->pages.n > 0 && !leases_only ? a->pages.v[0] : NONE;
    if (l == NONE || p == NONE) return l == NONE ? p : l;
    return goes_first(a, &l, &p) ? l : p;
}

static bool evict_one(devmem *a, bool leases_only)
{
    int c = victim(a, leases_only);
    if (c == NONE) return false;
    if (a->chunk[c].worth > a->clock) a->clock = a->chunk[c].worth;
    if (a->chunk[c].kind == PAGE_IDLE) {
        remove_evictable(a, &a->pages, c);
        if (a->evicted) a->evicted(a->self, c);
        push_free(a, c);
        a->pages_evicted++;
        return true;
    }
    devmem_lease *l = a->chunk[c].lease;
    assert(a->chunk[c].kind == LEASED && l->first == c && l->holds == 0 && !l->pinned);
    lease_from_heap(l);
    free_chunks(l);
    l->lost = true;
    l->next_lost = a->lost;
    a->lost = l;
    a->leases_evicted++;
    return true;
}

/* Leases that nobody used in time become ordinary idle ones. */
static void expire(devmem *a, int64_t now_us)
{
    while (a->fresh_first && now_us - a->fresh_first->ready_us >= DEVMEM_FRESH_US) {
        devmem_lease *l = a->fresh_first;
        lease_from_heap(l); /* no longer fresh */
        lease_to_heap(l, IDLE);
    }
}

/* --------------------------------------------------------------------------- life -- */

err_code devmem_create(devmem **out, backend *be, int n_chunks, size_t chunk_bytes,
                       int lease_chunks, err *e)
{
    *out = NULL;
    assert(chunk_bytes > 0 && lease_chunks >= 0);
    if (n_chunks < 1) return err_set(e, ERR_LIMIT, "the arena holds no chunk");
    devmem *a = calloc(1, sizeof(*a));
    if (!a) return err_set(e, ERR_NOMEM, "no memory for the arena");
    a->be = be;
    a->n_chunks = n_chunks;
    a->chunk_bytes = chunk_bytes;
    a->lease_cap = lease_chunks > 0 && lease_chunks < n_chunks ? lease_chunks : n_chunks;
    a->page_cost_us = 1000;
    lock_init(&a->mu, LOCK_DEVMEM);
    a->chunk = calloc((size_t)n_chunks, sizeof(*a->chunk));
    a->pages.v = calloc((size_t)n_chunks, sizeof(int));
    a->leases.v = calloc((size_t)n_chunks, sizeof(int));
    if (be) a->mem = be_map(be, (size_t)n_chunks * chunk_bytes);
    if (!a->chunk || !a->pages.v || !a->leases.v || (be && !a->mem)) {
        devmem_destroy(a);
        return err_set(e, ERR_NOMEM, "no memory for an arena of %d chunks of %zu bytes", n_chunks,
                       chunk_bytes);
    }
    a->ahead = populate_start(be, a->mem, (size_t)n_chunks * chunk_bytes);
    a->free_top = NONE;
    for (int i = n_chunks - 1; i >= 0; i--) {
        a->chunk[i].at = NONE;
        push_free(a, i);
    }
    *out = a;
    return ERR_NONE;
}

void devmem_unmap(devmem *a)
{
    assert(a->n_leases == 0);
    populate_stop(a->ahead);
    a->ahead = NULL;
    if (a->mem) be_unmap(a->be, a->mem, (size_t)a->n_chunks * a->chunk_bytes);
    a->mem = NULL;
}

err_code devmem_remap(devmem *a, err *e)
{
    if (!a->be || a->mem) return ERR_NONE;
    a->mem = be_map(a->be, (size_t)a->n_chunks * a->chunk_bytes);
    a->ahead = populate_start(a->be, a->mem, (size_t)a->n_chunks * a->chunk_bytes);
    return a->mem ? ERR_NONE : err_set(e, ERR_NOMEM, "the device has no memory for the arena");
}

void devmem_destroy(devmem *a)
{
    if (!a) return;
    devmem_unmap(a);
    free(a->chunk);
    free(a->pages.v);
    free(a->leases.v);
    lock_free(&a->mu);
    free(a);
}

int devmem_n_chunks(const devmem *a)
{
    return a->n_chunks;
}

size_t devmem_chunk_bytes(const devmem *a)
{
    return a->chunk_bytes;
}

void *devmem_memory(const devmem *a)
{
    return a->mem;
}

void devmem_lock(devmem *a)
{
    lock_take(&a->mu);
}

void devmem_unlock(devmem *a)
{
    lock_release(&a->mu);
}

/* ------------------------------------------------------------------------ adapters -- */

static int idle_to(const devmem *a, int rank)
{
    int n = 0;
    for (int i = 0; i <= rank; i++) n += a->n_lease_idle[i];
    return n;
}

devmem_lease *devmem_lease_take(devmem *a, int n, devmem_need need, int64_t now_us, void *owner)
{
    int rank = need == DEVMEM_DEMAND ? PREFETCHED : IDLE;
    devmem_lease *l = calloc(1, sizeof(*l));
    if (!l || n < 1) {
        free(l);
        return NULL;
    }
    devmem_lock(a);
    expire(a, now_us);
    int over = a->n_lease_chunks + n - a->lease_cap, idle = idle_to(a, rank);
    if (over > idle || a->n_free + a->pages.n + idle - a->claimed < n) {
        devmem_unlock(a);
        free(l);
        return NULL;
    }
    bool got = true; /* enough of a lower rank exist, so none of a higher rank is evicted */
    while (got && a->n_lease_chunks + n > a->lease_cap) got = evict_one(a, true);
    while (got && a->n_free < n) got = evict_one(a, false);
    assert(got);
    *l = (devmem_lease){.a = a, .owner = owner, .first = NONE, .n = n, .filling = true};
    for (int i = 0; i < n; i++) {
        int c = pop_free(a);
        a->chunk[c].kind = LEASED;
        a->chunk[c].lease = l;
        a->chunk[c].next = l->first;
        l->first = c;
    }
    a->n_lease_chunks += n;
    a->n_leases++;
    devmem_unlock(a);
    return l;
}

/* The chain belongs to the lease; nobody else writes it while the lease lives. */
int devmem_lease_chunk(const devmem_lease *l, int i)
{
    assert(i >= 0 && i < l->n);
    int c = l->first;
    while (i-- > 0) c = l->a->chunk[c].next;
    return c;
}

void devmem_lease_map(const devmem_lease *l, void **out)
{
    int i = 0;
    for (int c = l->first; c != NONE; c = l->a->chunk[c].next) {
        assert(i < l->n);
        out[i++] = (char *)l->a->mem + (size_t)c * l->a->chunk_bytes;
    }
}

int devmem_lease_chunks(const devmem_lease *l)
{
    return l ? l->n : 0;
}

void devmem_lease_ready(devmem_lease *l, devmem_need need, double cost_us, int64_t now_us)
{
    devmem_lock(l->a);
    assert(l->filling && !l->lost && l->holds == 0);
    l->filling = false;
    l->cost_us = cost_us > 1 ? cost_us : 1;
    l->popularity = 1;
    l->ready_us = now_us;
    if (!l->pinned) lease_to_heap(l, need == DEVMEM_DEMAND ? DEMANDED : PREFETCHED);
    devmem_unlock(l->a);
}

bool devmem_lease_hold(devmem_lease *l, double popularity)
{
    devmem_lock(l->a);
    bool there = !l->lost && !l->filling;
    if (there) {
        l->popularity = popularity;
        if (in_heap(l)) lease_from_heap(l);
        l->holds++;
    }
    devmem_unlock(l->a);
    return there;
}

void devmem_lease_release(devmem_lease *l)
{
    devmem_lock(l->a);
    assert(l->holds > 0);
    if (--l->holds == 0 && !l->pinned) lease_to_heap(l, IDLE);
    devmem_unlock(l->a);
}

void devmem_lease_pin(devmem_lease *l, bool pinned)
{
    devmem_lock(l->a);
    if (!l->lost && l->pinned != pinned) {
        l->pinned = pinned;
        l->a->n_pinned_chunks += pinned ? l->n : -l->n;
        if (pinned && in_heap(l))
            lease_from_heap(l);
        else if (!pinned && l->holds == 0 && !l->filling)
            lease_to_heap(l, IDLE);
    }
    devmem_unlock(l->a);
}

bool devmem_lease_alive(devmem_lease *l)
{
    devmem_lock(l->a);
    bool alive = !l->lost;
    devmem_unlock(l->a);
    return alive;
}

void devmem_lease_drop(devmem_lease *l)
{
    devmem *a = l->a;
    devmem_lock(a);
    assert(l->holds == 0);
    if (l->lost) {
        devmem_lease **at = &a->lost;
        while (*at && *at != l) at = &(*at)->next_lost;
        if (*at) *at = l->next_lost;
    } else {
        if (in_heap(l)) lease_from_heap(l);
        free_chunks(l);
    }
    devmem_unlock(a);
    free(l);
}

void *devmem_lost(devmem *a)
{
    devmem_lock(a);
    devmem_lease *l = a->lost;
    if (l) a->lost = l->next_lost;
    devmem_unlock(a);
    return l ? l->owner : NULL;
}

int devmem_lease_limit(devmem *a, const devmem_lease *but)
{
    devmem_lock(a);
    int n = a->lease_cap - a->n_pinned_chunks + (but && but->pinned ? but->n : 0);
    devmem_unlock(a);
    return n;
}

void devmem_reserve(devmem *a, int n)
{
    assert(n >= 0);
    devmem_lock(a);
    a->reserved = n;
    devmem_unlock(a);
}

/* ------------------------------------------------------------------------ KV pages -- */

void devmem_on_evict(devmem *a, void (*fn)(void *self, int chunk), void *self)
{
    devmem_lock(a);
    a->evicted = fn;
    a->self = self;
    devmem_unlock(a);
}

int devmem_available_locked(const devmem *a, bool fresh)
{
    lock_assert_held(&a->mu);
    int n = a->n_free + a->pages.n + idle_to(a, DEMANDED) - (fresh ? a->reserved : 0);
    return n > 0 ? n : 0;
}

bool devmem_claim_locked(devmem *a, int n, bool fresh)
{
    lock_assert_held(&a->mu);
    assert(n >= 0);
    if (n > devmem_available_locked(a, fresh)) return false;
    a->claimed = n;
    return true;
}

int devmem_page_take_locked(devmem *a)
{
    lock_assert_held(&a->mu);
    if (a->n_free == 0 && !evict_one(a, false)) return NONE;
    int c = pop_free(a);
    a->chunk[c].kind = PAGE_HELD;
    a->chunk[c].uses = 1;
    a->n_pages_held++;
    if (a->claimed > 0) a->claimed--;
    return c;
}

void devmem_page_free_locked(devmem *a, int c)
{
    lock_assert_held(&a->mu);
    assert(c >= 0 && c < a->n_chunks && a->chunk[c].kind == PAGE_HELD && a->n_pages_held > 0);
    a->n_pages_held--;
    push_free(a, c);
}

void devmem_page_idle_locked(devmem *a, int c)
{
    lock_assert_held(&a->mu);
    assert(c >= 0 && c < a->n_chunks);
    chunk *p = &a->chunk[c];
    assert(p->kind == PAGE_HELD && a->n_pages_held > 0);
    p->kind = PAGE_IDLE;
    p->rank = IDLE;
    p->worth = a->clock + p->uses * a->page_cost_us;
    a->n_pages_held--;
    add_evictable(a, &a->pages, c);
}

void devmem_page_hold_locked(devmem *a, int c)
{
    lock_assert_held(&a->mu);
    assert(c >= 0 && c < a->n_chunks && a->chunk[c].kind == PAGE_IDLE);
    remove_evictable(a, &a->pages, c);
    a->chunk[c].kind = PAGE_HELD;
    a->chunk[c].uses++;
    a->n_pages_held++;
    if (a->claimed > 0) a->claimed--; /* the claim had counted it as available */
}

void devmem_page_borrow_locked(devmem *a, int c)
{
    int claimed = a->claimed;
    devmem_page_hold_locked(a, c);
    a->claimed = claimed;
}

void devmem_page_cost(devmem *a, double us)
{
    devmem_lock(a);
    if (us > 0) a->page_cost_us = us;
    devmem_unlock(a);
}

/* ------------------------------------------------------------------------- looking -- */

void devmem_count(devmem *a, devmem_counts *out)
{
    devmem_lock(a);
    *out = (devmem_counts){.n_chunks = a->n_chunks,
                           .n_free = a->n_free,
                           .n_pages_held = a->n_pages_held,
                           .n_pages_cached = a->pages.n,
                           .n_lease_chunks = a->n_lease_chunks,
                           .n_lease_idle = idle_to(a, DEMANDED),
                           .n_leases = a->n_leases,
                           .pages_evicted = a->pages_evicted,
                           .leases_evicted = a->leases_evicted};
    devmem_unlock(a);
}

static bool check_heap(const devmem *a, const heap *h, chunk_kind kind)
{
    for (int i = 0; i < h->n; i++) {
        const chunk *c = &a->chunk[h->v[i]];
        if (c->at != i || c->kind != kind) return false;
        if (i > 0 && goes_first(a, &h->v[i], &h->v[(i - 1) / 2])) return false;
    }
    return true;
}

/* Walks a lease from its first chunk; the others are counted by it. */
static bool check_lease(const devmem *a, const devmem_lease *l, int *seen)
{
    int n = 0;
    for (int c = l->first; c != NONE && n <= l->n; c = a->chunk[c].next, n++) {
        if (a->chunk[c].kind != LEASED || a->chunk[c].lease != l) return false;
    }
    *seen += n;
    bool evictable = l->holds == 0 && !l->pinned && !l->filling;
    bool fresh = in_heap(l) && a->chunk[l->first].rank != IDLE;
    return n == l->n && !l->lost && evictable == in_heap(l) && fresh == l->fresh;
}

bool devmem_check(devmem *a)
{
    int kinds[LEASED + 1] = {0}, stacked = 0, leased = 0, idle = 0;
    devmem_lock(a);
    bool ok = check_heap(a, &a->pages, PAGE_IDLE) && check_heap(a, &a->leases, LEASED);
    for (int c = a->free_top; c != NONE && ok; c = a->chunk[c].next) {
        ok = a->chunk[c].kind == FREE && ++stacked <= a->n_chunks;
    }
    for (int c = 0; c < a->n_chunks && ok; c++) {
        kinds[a->chunk[c].kind]++;
        if (a->chunk[c].kind != LEASED || a->chunk[c].lease->first != c) continue;
        ok = check_lease(a, a->chunk[c].lease, &leased);
        if (in_heap(a->chunk[c].lease)) idle += a->chunk[c].lease->n;
    }
    ok = ok && stacked == a->n_free && kinds[FREE] == a->n_free && leased == kinds[LEASED] &&
         leased == a->n_lease_chunks && kinds[PAGE_HELD] == a->n_pages_held &&
         kinds[PAGE_IDLE] == a->pages.n && idle == idle_to(a, DEMANDED) &&
         a->n_lease_chunks <= a->lease_cap;
    devmem_unlock(a);
    return ok;
}
