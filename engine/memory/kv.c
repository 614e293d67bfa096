/* kv.c -- arrays indexed by page; a chained hash table over published pages.
 *
 * A published page remembers its parent page and the parent's serial number, which changes whenever
 * a page is published or loses its content.  So a chain is intact exactly when each link's serial
 * still matches, and walking from the root verifies everything that comes before.
 *
 * All of it is guarded by the arena's lock, because a loader that needs room may evict a page.
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
} page_info;

struct kv_pages {
    devmem *arena;
    int n_pages, page_tokens;
    bool cache;
    page_info *page;
    int32_t *tokens;   /* [n_pages][page_tokens] of published pages */
    kv_domain *domain; /* [n_pages] of published pages, as key_of() has it */
    int *bucket;
    int bucket_mask;
    uint64_t next_serial;
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
    if (!kv->page || !kv->tokens || !kv->domain || !kv->bucket) {
        kv_destroy(kv);
        return NULL;
    }
    for (int i = 0; i < buckets; i++) kv->bucket[i] = NONE;
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
    free(kv);
}

/* --------------------------------------------------------------------- hashing -- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * HASH_GOLDEN;
    return h ^ (h >> 29);
}

/* Whose the page `index` is: the bare base's where it ends before the adapter begins. */
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
    p->published = false;
    p->serial = 0;
}

/* The arena takes a page of nobody: its text cannot be found any more. */
static void evicted(void *self, int page)
{
    const kv_pages *kv = self;
    assert(page >= 0 && page < kv->n_pages && kv->page[page].refs == 0);
    unpublish(self, page);
}

/* The published page of `key` that continues `parent` (NONE: it is a root) by `tokens`. */
static int find(const kv_pages *kv, const kv_domain *key, int parent, uint64_t hash,
                const int32_t *tokens)
{
    size_t bytes = (size_t)kv->page_tokens * sizeof(*tokens);
    for (int i = kv->bucket[hash & (uint64_t)kv->bucket_mask]; i != NONE; i = kv->page[i].chain) {
        const page_info *p = &kv->page[i];
        if (p->hash != hash || p->parent != parent || !same_key(&kv->domain[i], key)) continue;
        if (parent != NONE && p->parent_serial != kv->page[parent].serial) continue;
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

static void publish(kv_pages *kv, const kv_domain *d, const int32_t *pages, int index,
                    const int32_t *tokens)
{
    int i = pages[index], parent = index ? pages[index - 1] : NONE;
    assert(index >= 0 && i >= 0 && i < kv->n_pages && parent < kv->n_pages);
    assert(index == 0 || parent >= 0);
    page_info *p = &kv->page[i];
    assert(p->refs > 0);
    if (!kv->cache || p->published) return;
    if (parent != NONE && !kv->page[parent].published) return;
    const kv_domain key = key_of(kv, d, index);
    uint64_t before = parent == NONE ? HASH_ROOT : kv->page[parent].hash;
    uint64_t hash = page_hash(before, &key, tokens, kv->page_tokens);
    if (find(kv, &key, parent, hash, tokens) != NONE) return; /* somebody was first */
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
}

void kv_publish(kv_pages *kv, const kv_domain *d, const int32_t *pages, int index,
                const int32_t *tokens)
{
    devmem_lock(kv->arena);
    publish(kv, d, pages, index, tokens);
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
    int n_cached = 0, n_held = 0, n_chained = 0, n_published = 0;
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
    }
    devmem_unlock(kv->arena);
    return ok && n_cached == c.n_cached && n_held == c.n_held && n_chained == n_published;
}
