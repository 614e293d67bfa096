/* kv.c -- KV pages: reference counts, and the prefix cache as a hash table over full pages.
 *
 * A full page can be published under (hash of all pages before it, its adapter and tenant domain,
 * its tokens). kv_match() walks a prompt page by page and takes the longest published chain:
 *
 *   root --tokens 0..31--> page a --tokens 32..63--> page b --> ...
 *
 * A published page stores its parent page and the parent's serial number. The serial changes
 * whenever a page is published or loses its content, so a chain is intact exactly when each
 * parent_serial matches; no list of children is needed when a page is evicted. Hashes only find
 * candidates: tokens and domain are compared.
 *
 * With sliding windows, pages that no later row attends to are represented by KV_GONE
 * (kv_unseen()). For models with recurrent states, snapshots hang on published pages (snapshot.h).
 *
 * Threads: everything is guarded by the arena's lock, because a loader that needs memory may evict
 * a page (evicted()). Source: PagedAttention (Kwon et al. 2023); hash chains as in vLLM's automatic
 * prefix caching.
 */
#include "engine/memory/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

enum { NONE = -1 };

#define HASH_ROOT 0x243F6A8885A308D3ULL /* in front of a root */

typedef struct {
    int refs;
    bool published;
    uint64_t serial, parent_serial; /* parent_serial 0: a root */
    uint64_t hash;
    int parent;
    int chain; /* next in the hash bucket */
    /* The same of another table, whose key ends with the page's first token. */
    uint64_t start_hash;
    int start_chain;
} page_info;

struct kv_pages {
    devmem *arena;
    int n_pages, page_tokens;
    bool cache;
    page_info *page;
    int32_t *tokens;   /* [n_pages][page_tokens] of published pages */
    kv_domain *domain; /* [n_pages] of published pages, as key_of() has it */
    int *bucket, *start_bucket;
    int bucket_mask;
    uint64_t next_serial;
    snapshots *states; /* beside pages; NULL: none */
};

static void evicted(void *self, int page);

kv_pages *kv_create(devmem *a, int page_tokens, bool prefix_cache)
{
    assert(page_tokens > 0);
    kv_pages *kv = calloc(1, sizeof(*kv));
    if (!kv) return NULL;
    int buckets = 16, n_pages = devmem_n_chunks(a);
    while (buckets < n_pages) buckets *= 2;
    kv->arena = a;
    kv->n_pages = n_pages;
    kv->page_tokens = page_tokens;
    kv->cache = prefix_cache;
    kv->bucket_mask = buckets - 1;
    kv->next_serial = 1;
    kv->page = calloc((size_t)n_pages, sizeof(*kv->page));
    kv->tokens = calloc((size_t)n_pages * (size_t)page_tokens, sizeof(*kv->tokens));
    kv->domain = calloc((size_t)n_pages, sizeof(*kv->domain));
    kv->bucket = malloc((size_t)buckets * sizeof(*kv->bucket));
    kv->start_bucket = malloc((size_t)buckets * sizeof(*kv->start_bucket));
    if (!kv->page || !kv->tokens || !kv->domain || !kv->bucket || !kv->start_bucket) {
        kv_destroy(kv);
        return NULL;
    }
    for (int i = 0; i < buckets; i++) kv->bucket[i] = kv->start_bucket[i] = NONE;
    devmem_on_evict(a, evicted, kv);
    return kv;
}

void kv_destroy(kv_pages *kv)
{
    if (!kv) return;
    devmem_lock(kv->arena);
    for (int i = 0; kv->page && i < kv->n_pages; i++) {
        bool idle = kv->page[i].refs == 0 && kv->page[i].published;
        if (idle) devmem_page_hold_locked(kv->arena, i);
        if (idle || kv->page[i].refs > 0) devmem_page_free_locked(kv->arena, i);
    }
    devmem_unlock(kv->arena);
    devmem_on_evict(kv->arena, NULL, NULL);
    free(kv->page);
    free(kv->tokens);
    free(kv->domain);
    free(kv->bucket);
    free(kv->start_bucket);
    snapshots_destroy(kv->states);
    free(kv);
}

/* --------------------------------------------------------------------- hashing -- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * HASH_GOLDEN;
    return h ^ (h >> 29);
}

/* The domain of page `index`: the bare base model's if the page ends before the adapter begins. */
static kv_domain key_of(const kv_pages *kv, const kv_domain *d, int index)
{
    if (index < d->from / kv->page_tokens) return (kv_domain){.isolation = d->isolation};
    return *d;
}

static bool same_key(const kv_domain *a, const kv_domain *b)
{
    return a->isolation == b->isolation && a->from == b->from &&
           memcmp(a->digest, b->digest, sizeof(a->digest)) == 0;
}

static uint64_t page_hash(uint64_t parent, const kv_domain *key, const int32_t *tokens, int n)
{
    uint64_t h = mix(mix(parent, key->isolation), (uint64_t)(uint32_t)key->from);
    for (int i = 0; i < LORA_DIGEST_BYTES; i += 8) {
        uint64_t v;
        memcpy(&v, key->digest + i, 8);
        h = mix(h, v);
    }
    for (int i = 0; i < n; i++) h = mix(h, (uint64_t)(uint32_t)tokens[i] + 1);
    return h;
}

static void unpublish(kv_pages *kv, int i)
{
    page_info *p = &kv->page[i];
    int *link = &kv->bucket[p->hash & (uint64_t)kv->bucket_mask];
    assert(p->published);
    while (*link != i) {
        assert(*link != NONE); /* a published page is in its bucket */
        link = &kv->page[*link].chain;
    }
    *link = p->chain;
    link = &kv->start_bucket[p->start_hash & (uint64_t)kv->bucket_mask];
    while (*link != i) link = &kv->page[*link].start_chain;
    *link = p->start_chain;
    p->published = false;
    p->serial = 0;
    if (kv->states) snapshots_drop(kv->states, i);
}

/* The arena evicts an unreferenced page: it leaves the hash table. */
static void evicted(void *self, int page)
{
    const kv_pages *kv = self;
    assert(page >= 0 && page < kv->n_pages && kv->page[page].refs == 0);
    unpublish(self, page);
}

/* Whether the published page i is of `key` and continues `parent` (NONE: it is a root). */
static bool continues(const kv_pages *kv, int i, const kv_domain *key, int parent)
{
    const page_info *p = &kv->page[i];
    return p->parent == parent && same_key(&kv->domain[i], key) &&
           (parent == NONE || p->parent_serial == kv->page[parent].serial);
}

/* The published page of `key` that continues `parent` (NONE: it is a root) by `tokens`. */
static int find(const kv_pages *kv, const kv_domain *key, int parent, uint64_t hash,
                const int32_t *tokens)
{
    size_t bytes = (size_t)kv->page_tokens * sizeof(*tokens);
    for (int i = kv->bucket[hash & (uint64_t)kv->bucket_mask]; i != NONE; i = kv->page[i].chain) {
        if (kv->page[i].hash != hash || !continues(kv, i, key, parent)) continue;
        if (memcmp(kv->tokens + (size_t)i * kv->page_tokens, tokens, bytes) == 0) return i;
    }
    return NONE;
}

/* ------------------------------------------------------------------------- API -- */

int kv_take(kv_pages *kv)
{
    devmem_lock(kv->arena);
    int i = devmem_page_take_locked(kv->arena);
    assert(i == NONE || (kv->page[i].refs == 0 && !kv->page[i].published));
    if (i != NONE) kv->page[i].refs = 1;
    devmem_unlock(kv->arena);
    return i;
}

static void hold(kv_pages *kv, int page)
{
    page_info *p = &kv->page[page];
    assert(p->published && p->refs >= 0);
    if (p->refs++ == 0) devmem_page_hold_locked(kv->arena, page);
}

void kv_retain(kv_pages *kv, int page)
{
    assert(page >= 0 && page < kv->n_pages);
    devmem_lock(kv->arena);
    assert(kv->page[page].refs > 0);
    kv->page[page].refs++;
    devmem_unlock(kv->arena);
}

void kv_release(kv_pages *kv, int page)
{
    assert(page >= 0 && page < kv->n_pages);
    page_info *p = &kv->page[page];
    devmem_lock(kv->arena);
    assert(p->refs > 0);
    if (--p->refs == 0 && p->published)
        devmem_page_idle_locked(kv->arena, page);
    else if (p->refs == 0)
        devmem_page_free_locked(kv->arena, page);
    devmem_unlock(kv->arena);
}

int kv_available(const kv_pages *kv, bool fresh)
{
    devmem_lock(kv->arena);
    int n = devmem_available_locked(kv->arena, fresh);
    devmem_unlock(kv->arena);
    return n;
}

bool kv_claim(kv_pages *kv, int n, bool fresh)
{
    devmem_lock(kv->arena);
    bool got = devmem_claim_locked(kv->arena, n, fresh);
    devmem_unlock(kv->arena);
    return got;
}

void kv_unseen(const kv_pages *kv, const kv_sight *see, int n_tokens, int *from, int *to)
{
    int page = kv->page_tokens, first = n_tokens - see->window + 1;
    *from = *to = (see->kept + page - 1) / page;
    if (see->window == 0 || first <= 0) return;
    int end = first / page < n_tokens / page - 1 ? first / page : n_tokens / page - 1;
    if (end > *to) *to = end;
}

int kv_match(kv_pages *kv, const kv_domain *d, const kv_sight *see, const int32_t *tokens,
             int n_tokens, int32_t *pages, int cap)
{
    assert(cap >= 0 && n_tokens >= 0);
    if (!kv->cache) return 0;
    uint64_t hash = HASH_ROOT;
    int parent = NONE, n = 0;
    devmem_lock(kv->arena);
    while (n < cap && (n + 1) * kv->page_tokens < n_tokens) {
        const int32_t *block = tokens + (size_t)n * kv->page_tokens;
        const kv_domain key = key_of(kv, d, n);
        hash = page_hash(hash, &key, block, kv->page_tokens);
        int i = find(kv, &key, parent, hash, block);
        if (i == NONE) break;
        pages[n++] = i;
        parent = i;
    }
    int from, to;
    kv_unseen(kv, see, n * kv->page_tokens, &from, &to);
    for (int i = 0; i < n; i++) {
        if (i >= from && i < to)
            pages[i] = KV_GONE;
        else
            hold(kv, pages[i]);
    }
    devmem_unlock(kv->arena);
    return n;
}

/* How many of n tokens are the first ones of page i. */
static int shared_tokens(const kv_pages *kv, int i, const int32_t *tokens, int n)
{
    const int32_t *own = kv->tokens + (size_t)i * kv->page_tokens;
    int k = 0;
    while (k < n && own[k] == tokens[k]) k++;
    return k;
}

/* Hash of what precedes a page that continues `parent`. */
static uint64_t hash_before(const kv_pages *kv, int parent)
{
    return parent == NONE ? HASH_ROOT : kv->page[parent].hash;
}

bool kv_part_begin(kv_pages *kv, const kv_domain *d, const int32_t *pages, int n,
                   const int32_t *tokens, int n_tokens, kv_part *out)
{
    int parent = n > 0 ? pages[n - 1] : NONE, most = n_tokens - 1 - n * kv->page_tokens;
    if (most > kv->page_tokens) most = kv->page_tokens;
    *out = (kv_part){.from = NONE, .page = NONE};
    if (!kv->cache || most < 1) return false;
    const kv_domain key = key_of(kv, d, n);
    const int32_t *block = tokens + (size_t)n * kv->page_tokens;
    devmem_lock(kv->arena);
    uint64_t hash = page_hash(hash_before(kv, parent), &key, block, 1);
    int i = kv->start_bucket[hash & (uint64_t)kv->bucket_mask];
    for (; i != NONE && out->n_tokens < most; i = kv->page[i].start_chain) {
        if (kv->page[i].start_hash != hash || !continues(kv, i, &key, parent)) continue;
        int shared = shared_tokens(kv, i, block, most);
        if (shared > out->n_tokens) *out = (kv_part){i, NONE, shared};
    }
    if (out->from != NONE) {
        page_info *p = &kv->page[out->from];
        if (p->refs++ == 0) devmem_page_borrow_locked(kv->arena, out->from);
        out->page = devmem_page_take_locked(kv->arena);
        if (out->page != NONE) kv->page[out->page].refs = 1;
    }
    devmem_unlock(kv->arena);
    if (out->page != NONE) return true;
    if (out->from != NONE) kv_release(kv, out->from);
    return false;
}

void kv_part_end(kv_pages *kv, const kv_part *p)
{
    kv_release(kv, p->from);
}

/* Publishes a page. Returns the page that has the same content already; NONE: there is none. */
static int publish(kv_pages *kv, const kv_domain *d, const int32_t *pages, int index,
                   const int32_t *tokens)
{
    int i = pages[index], parent = index ? pages[index - 1] : NONE;
    assert(index >= 0 && i >= 0 && i < kv->n_pages && parent < kv->n_pages);
    assert(index == 0 || parent >= 0);
    page_info *p = &kv->page[i];
    assert(p->refs > 0);
    if (!kv->cache || p->published) return NONE;
    if (parent != NONE && !kv->page[parent].published) return NONE;
    const kv_domain key = key_of(kv, d, index);
    uint64_t before = hash_before(kv, parent);
    uint64_t hash = page_hash(before, &key, tokens, kv->page_tokens);
    int first = find(kv, &key, parent, hash, tokens);
    if (first != NONE) return first;
    p->published = true;
    p->serial = kv->next_serial++;
    p->parent = parent;
    p->parent_serial = parent == NONE ? 0 : kv->page[parent].serial;
    p->hash = hash;
    memcpy(kv->tokens + (size_t)i * kv->page_tokens, tokens,
           (size_t)kv->page_tokens * sizeof(*tokens));
    kv->domain[i] = key;
    int *head = &kv->bucket[hash & (uint64_t)kv->bucket_mask];
    p->chain = *head;
    *head = i;
    p->start_hash = page_hash(before, &key, tokens, 1);
    head = &kv->start_bucket[p->start_hash & (uint64_t)kv->bucket_mask];
    p->start_chain = *head;
    *head = i;
    return NONE;
}

void kv_publish(kv_pages *kv, const kv_domain *d, const int32_t *pages, int index,
                const int32_t *tokens)
{
    devmem_lock(kv->arena);
    (void)publish(kv, d, pages, index, tokens);
    devmem_unlock(kv->arena);
}

void kv_share(kv_pages *kv, const kv_domain *d, int32_t *pages, int index, const int32_t *tokens)
{
    int own = pages[index];
    devmem_lock(kv->arena);
    int first = publish(kv, d, pages, index, tokens);
    if (first != NONE) {
        hold(kv, first);
        pages[index] = first;
    }
    devmem_unlock(kv->arena);
    if (first != NONE) kv_release(kv, own);
}

bool kv_keep_snapshots(kv_pages *kv, int n_slots)
{
    if (n_slots == 0) return true;
    kv->states = snapshots_create(n_slots, kv->n_pages);
    return kv->states != NULL;
}

int kv_snapshot_put(kv_pages *kv, int page, int instead)
{
    assert(kv->states && page >= 0 && page < kv->n_pages && kv->page[page].refs > 0);
    int slot = NONE;
    devmem_lock(kv->arena);
    if (kv->page[page].published && snapshots_find(kv->states, page) == NONE) {
        if (instead != NONE && snapshots_uses(kv->states, instead) == 0)
            snapshots_drop(kv->states, instead);
        slot = snapshots_put(kv->states, page);
    }
    devmem_unlock(kv->arena);
    return slot;
}

static int find_snapshot(const kv_pages *kv, const int32_t *pages, int n, int *slot)
{
    assert(kv->states || n == 0);
    *slot = NONE;
    for (; n > 0 && *slot == NONE; n--) {
        assert(kv->page[pages[n - 1]].refs > 0);
        *slot = snapshots_find(kv->states, pages[n - 1]);
    }
    return *slot == NONE ? 0 : n + 1;
}

int kv_snapshot_get(kv_pages *kv, const int32_t *pages, int n, int *slot)
{
    devmem_lock(kv->arena);
    n = find_snapshot(kv, pages, n, slot);
    if (n > 0) snapshots_use(kv->states, pages[n - 1]);
    devmem_unlock(kv->arena);
    return n;
}

int kv_snapshot_find(const kv_pages *kv, const int32_t *pages, int n, int *slot)
{
    devmem_lock(kv->arena);
    n = find_snapshot(kv, pages, n, slot);
    devmem_unlock(kv->arena);
    return n;
}

void kv_snapshot_count(const kv_pages *kv, snapshot_counts *out)
{
    devmem_lock(kv->arena);
    snapshots_count(kv->states, out);
    devmem_unlock(kv->arena);
}

void kv_forget(kv_pages *kv, int page)
{
    assert(page >= 0 && page < kv->n_pages);
    devmem_lock(kv->arena);
    assert(kv->page[page].refs > 0);
    if (kv->page[page].published) unpublish(kv, page);
    devmem_unlock(kv->arena);
}

void kv_clear(kv_pages *kv)
{
    devmem_lock(kv->arena);
    for (int i = 0; i < kv->n_pages; i++) {
        assert(kv->page[i].refs == 0);
        if (!kv->page[i].published) continue;
        unpublish(kv, i);
        devmem_page_hold_locked(kv->arena, i);
        devmem_page_free_locked(kv->arena, i);
    }
    devmem_unlock(kv->arena);
}

void kv_count(const kv_pages *kv, kv_counts *out)
{
    devmem_counts c;
    devmem_count(kv->arena, &c);
    *out =
        (kv_counts){.n_pages = kv->n_pages, .n_held = c.n_pages_held, .n_cached = c.n_pages_cached};
}

bool kv_check(const kv_pages *kv)
{
    kv_counts c;
    int n_cached = 0, n_held = 0, n_chained = 0, n_published = 0, n_starts = 0;
    kv_count(kv, &c);
    if (!devmem_check(kv->arena)) return false;
    devmem_lock(kv->arena);
    bool ok = true;
    for (int i = 0; i < kv->n_pages; i++) {
        n_held += kv->page[i].refs > 0;
        n_cached += kv->page[i].refs == 0 && kv->page[i].published;
        n_published += kv->page[i].published;
        ok = ok && kv->page[i].refs >= 0;
    }
    for (int b = 0; b <= kv->bucket_mask; b++) {
        for (int i = kv->bucket[b]; i != NONE && ok; i = kv->page[i].chain) {
            ok = kv->page[i].published && n_chained++ <= kv->n_pages;
        }
        for (int i = kv->start_bucket[b]; i != NONE && ok; i = kv->page[i].start_chain) {
            ok = kv->page[i].published && n_starts++ <= kv->n_pages;
        }
    }
    for (int i = 0; kv->states && i < kv->n_pages; i++)
        ok = ok && (kv->page[i].published || snapshots_find(kv->states, i) == NONE);
    ok = ok && (!kv->states || snapshots_check(kv->states));
    devmem_unlock(kv->arena);
    return ok && n_cached == c.n_cached && n_held == c.n_held && n_chained == n_published &&
           n_starts == n_published;
}
