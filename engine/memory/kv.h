/* kv.h -- which KV page belongs to whom: reference counts, eviction, and the prefix cache.
 *
 * Pages are chunks of the arena (engine/memory/devmem.h), which decides what is evicted: the page
 * table does not know how much of the device the adapters have.  A full page may be published under
 * its content: (adapter digest, where the adapter begins, isolation domain, all tokens from the
 * start to its end).  A later sequence with the same beginning takes it over instead of computing
 * it.  A hit is verified token
 * by token and parent by parent, so a collision of hashes can't hand out a foreign page.  Published
 * pages that nobody holds stay until room is needed.
 *
 * Ownership: each kv_take() and each page of kv_match() is one reference;
 * kv_release() gives it back.
 * Threads:   engine thread; a page may be evicted by a loader's thread, under the arena's lock.
 */
#ifndef ENGINE_MEMORY_KV_H
#define ENGINE_MEMORY_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/lora.h"
#include "engine/memory/devmem.h"

typedef struct kv_pages kv_pages;

enum { KV_GONE = -1 }; /* in a block table: the page was given back, and nobody reads it */

/* Who may share: equal domains only, and what lies before `from` with all of that isolation. */
typedef struct kv_domain {
    uint8_t digest[LORA_DIGEST_BYTES]; /* of the adapter; zero for the base */
    int from; /* the adapter's first position: pages that end before it are the bare base's */
    uint64_t isolation;
} kv_domain;

/* Borrows the arena.  NULL: out of memory. */
kv_pages *kv_create(devmem *a, int page_tokens, bool prefix_cache);
void kv_destroy(kv_pages *kv);

/* A page with one reference, or -1 when all are held.  May evict a published one. */
int kv_take(kv_pages *kv);
void kv_release(kv_pages *kv, int page);

/* Pages that kv_take() could give now; `fresh`: to a sequence that has no seat yet.  Others may
 * take some of them meanwhile, unless they are claimed. */
int kv_available(const kv_pages *kv, bool fresh);
/* Promises n pages to the next calls of kv_take() and kv_match(), in place of what was promised
 * before; 0 gives the promise up.  False: there are not so many. */
bool kv_claim(kv_pages *kv, int n, bool fresh);

/* Which of a sequence's pages its next row sees: the first `kept` tokens and the last `window`;
 * window 0: all. */
typedef struct kv_sight {
    int kept, window;
} kv_sight;

/* Of a sequence with n_tokens computed, pages [*from, *to) are needed no more; *from may be *to.
 * The page before the next one stays: it is the next one's parent. */
void kv_unseen(const kv_pages *kv, const kv_sight *see, int n_tokens, int *from, int *to);

/* Longest chain of published pages that begins `tokens`, at most `cap` pages and never all of the
 * tokens' last one (so that something is left to compute).  Each page is held, but those that
 * kv_unseen() names are KV_GONE.  Returns how many. */
int kv_match(kv_pages *kv, const kv_domain *d, const kv_sight *see, const int32_t *tokens,
             int n_tokens, int32_t *pages, int cap);

/* Publishes the full page `index` of a sequence; `pages` is its block table, whose pages before
 * `index` are published (else nothing happens), the one before is there; tokens: the page's own
 * page_tokens. */
void kv_publish(kv_pages *kv, const kv_domain *d, const int32_t *pages, int index,
                const int32_t *tokens);

/* Takes a page out of the cache: its content is not to be trusted.  Holders keep it. */
void kv_forget(kv_pages *kv, int page);

/* Forgets the whole prefix cache; nobody holds a page. */
void kv_clear(kv_pages *kv);

typedef struct kv_counts {
    int n_pages, n_held, n_cached; /* cached: published and not held */
} kv_counts;

void kv_count(const kv_pages *kv, kv_counts *out);

/* All invariants; for tests. */
bool kv_check(const kv_pages *kv);

#endif
