/* kv.c -- arrays indexed by page; a chained hash table over published pages; one LRU list.
 *
 * A published page remembers its parent page and the parent's serial number, which changes whenever
 * a page is published or loses its content.  So a chain is intact exactly when each link's serial
 * still matches, and walking from the root verifies everything that comes before.
 */
#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

typedef struct {
    int refs;
    bool published;
    uint64_t serial, parent_serial; /* parent_serial 0: a root */
    uint64_t hash;
    int parent;
    int chain;        /* next in the hash bucket */
    int newer, older; /* LRU list of free-to-evict pages; free pages use `older` as a stack link */
} page_info;

struct kv_pages {
    int n_pages, page_tokens;
    bool cache;
    page_info *page;
    int32_t *tokens;   /* [n_pages][page_tokens] of published pages */
    kv_domain *domain; /* [n_pages] of published roots */
    int *bucket;
    int bucket_mask;
    int free_top; /* stack of free pages */
    int lru_newest, lru_oldest;
    int n_free, n_cached;
    uint64_t next_serial;
};

kv_pages *kv_create(int n_pages, int page_tokens, bool prefix_cache)
{
    kv_pages *kv = calloc(1, sizeof(*kv));
    if (!kv) return NULL;
    int buckets = 16;
    while (buckets < n_pages) buckets *= 2;
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
    kv->free_top = NONE;
    kv->lru_newest = kv->lru_oldest = NONE;
    for (int i = n_pages - 1; i >= 0; i--) {
        kv->page[i].older = kv->free_top;
        kv->free_top = i;
    }
    kv->n_free = n_pages;
    return kv;
}

void kv_destroy(kv_pages *kv)
{
    if (!kv) return;
    free(kv->page);
    free(kv->tokens);
    free(kv->domain);
    free(kv->bucket);
    free(kv);
}

/* ------------------------------------------------------------------------ LRU -- */

static void lru_add(kv_pages *kv, int i)
{
    page_info *p = &kv->page[i];
    p->newer = NONE;
    p->older = kv->lru_newest;
    if (kv->lru_newest != NONE) kv->page[kv->lru_newest].newer = i;
    kv->lru_newest = i;
    if (kv->lru_oldest == NONE) kv->lru_oldest = i;
    kv->n_cached++;
}

static void lru_remove(kv_pages *kv, int i)
{
    page_info *p = &kv->page[i];
    if (p->newer != NONE)
        kv->page[p->newer].older = p->older;
    else
        kv->lru_newest = p->older;
    if (p->older != NONE)
        kv->page[p->older].newer = p->newer;
    else
        kv->lru_oldest = p->newer;
    kv->n_cached--;
}

/* --------------------------------------------------------------------- hashing -- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15ULL;
    return h ^ (h >> 29);
}

static uint64_t root_hash(const kv_domain *d)
{
    uint64_t h = mix(0x243F6A8885A308D3ULL, d->isolation);
    for (int i = 0; i < LORA_DIGEST_BYTES; i += 8) {
        uint64_t v;
        memcpy(&v, d->digest + i, 8);
        h = mix(h, v);
    }
    return h;
}

static uint64_t block_hash(uint64_t parent, const int32_t *tokens, int n)
{
    uint64_t h = parent;
    for (int i = 0; i < n; i++) h = mix(h, (uint64_t)(uint32_t)tokens[i] + 1);
    return h;
}

static void unpublish(kv_pages *kv, int i)
{
    page_info *p = &kv->page[i];
    int *link = &kv->bucket[p->hash & (uint64_t)kv->bucket_mask];
    while (*link != i) link = &kv->page[*link].chain;
    *link = p->chain;
    p->published = false;
    p->serial = 0;
}

/* The published page that continues `parent` (NONE: a root of `d`) by `tokens`. */
static int find(const kv_pages *kv, const kv_domain *d, int parent, uint64_t hash,
                const int32_t *tokens)
{
    size_t bytes = (size_t)kv->page_tokens * sizeof(*tokens);
    for (int i = kv->bucket[hash & (uint64_t)kv->bucket_mask]; i != NONE; i = kv->page[i].chain) {
        const page_info *p = &kv->page[i];
        if (p->hash != hash || p->parent != parent) continue;
        if (parent == NONE) {
            const kv_domain *own = &kv->domain[i];
            if (own->isolation != d->isolation ||
                memcmp(own->digest, d->digest, sizeof(own->digest)) != 0) {
                continue;
            }
        } else if (p->parent_serial != kv->page[parent].serial) {
            continue;
        }
        if (memcmp(kv->tokens + (size_t)i * kv->page_tokens, tokens, bytes) == 0) return i;
    }
    return NONE;
}

/* ------------------------------------------------------------------------- API -- */

int kv_take(kv_pages *kv)
{
    int i = kv->free_top;
    if (i != NONE) {
        kv->free_top = kv->page[i].older;
        kv->n_free--;
    } else {
        i = kv->lru_oldest;
        if (i == NONE) return -1;
        lru_remove(kv, i);
        unpublish(kv, i);
    }
    kv->page[i].refs = 1;
    return i;
}

void kv_hold(kv_pages *kv, int page)
{
    page_info *p = &kv->page[page];
    if (p->refs++ == 0) lru_remove(kv, page);
}

void kv_release(kv_pages *kv, int page)
{
    page_info *p = &kv->page[page];
    assert(p->refs > 0);
    if (--p->refs > 0) return;
    if (p->published) {
        lru_add(kv, page);
        return;
    }
    p->older = kv->free_top;
    kv->free_top = page;
    kv->n_free++;
}

int kv_available(const kv_pages *kv)
{
    return kv->n_free + kv->n_cached;
}

int kv_match(kv_pages *kv, const kv_domain *d, const int32_t *tokens, int n_tokens, int32_t *pages,
             int cap)
{
    if (!kv->cache) return 0;
    uint64_t hash = root_hash(d);
    int parent = NONE, n = 0;
    while (n < cap && (n + 1) * kv->page_tokens < n_tokens) {
        const int32_t *block = tokens + (size_t)n * kv->page_tokens;
        hash = block_hash(hash, block, kv->page_tokens);
        int i = find(kv, d, parent, hash, block);
        if (i == NONE) break;
        kv_hold(kv, i);
        pages[n++] = i;
        parent = i;
    }
    return n;
}

void kv_publish(kv_pages *kv, const kv_domain *d, const int32_t *pages, int index,
                const int32_t *tokens)
{
    int i = pages[index], parent = index ? pages[index - 1] : NONE;
    page_info *p = &kv->page[i];
    if (!kv->cache || p->published) return;
    if (parent != NONE && !kv->page[parent].published) return;
    uint64_t from = parent == NONE ? root_hash(d) : kv->page[parent].hash;
    uint64_t hash = block_hash(from, tokens, kv->page_tokens);
    if (find(kv, d, parent, hash, tokens) != NONE) return; /* somebody was first */
    p->published = true;
    p->serial = kv->next_serial++;
    p->parent = parent;
    p->parent_serial = parent == NONE ? 0 : kv->page[parent].serial;
    p->hash = hash;
    memcpy(kv->tokens + (size_t)i * kv->page_tokens, tokens,
           (size_t)kv->page_tokens * sizeof(*tokens));
    if (parent == NONE) kv->domain[i] = *d;
    int *head = &kv->bucket[hash & (uint64_t)kv->bucket_mask];
    p->chain = *head;
    *head = i;
}

void kv_forget(kv_pages *kv, int page)
{
    assert(kv->page[page].refs > 0);
    if (kv->page[page].published) unpublish(kv, page);
}

void kv_count(const kv_pages *kv, kv_counts *out)
{
    *out = (kv_counts){.n_pages = kv->n_pages,
                       .n_held = kv->n_pages - kv->n_free - kv->n_cached,
                       .n_cached = kv->n_cached};
}

bool kv_check(const kv_pages *kv)
{
    int n_free = 0, n_cached = 0, n_held = 0, n_chained = 0, n_published = 0;
    for (int i = kv->free_top; i != NONE && n_free <= kv->n_pages; i = kv->page[i].older) {
        if (kv->page[i].refs || kv->page[i].published) return false;
        n_free++;
    }
    for (int i = kv->lru_oldest; i != NONE && n_cached <= kv->n_pages; i = kv->page[i].newer) {
        if (kv->page[i].refs || !kv->page[i].published) return false;
        n_cached++;
    }
    for (int i = 0; i < kv->n_pages; i++) {
        n_held += kv->page[i].refs > 0;
        n_published += kv->page[i].published;
        if (kv->page[i].refs < 0) return false;
    }
    for (int b = 0; b <= kv->bucket_mask; b++) {
        for (int i = kv->bucket[b]; i != NONE; i = kv->page[i].chain) {
            if (!kv->page[i].published || n_chained++ > kv->n_pages) return false;
        }
    }
    return n_free == kv->n_free && n_cached == kv->n_cached && n_chained == n_published &&
           n_free + n_cached + n_held == kv->n_pages;
}
