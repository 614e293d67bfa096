/* kv.h -- which KV page belongs to whom: reference counts, eviction, and the prefix cache.
 *
 * Pages are chunks of the arena (engine/memory/devmem.h), which decides what is evicted: the page
 * table does not know how much of the device the adapters have.  A full page may be published under
 * its content: (adapter digest, where the adapter begins, isolation domain, all tokens from the
 * start to its end).  A later sequence with the same beginning takes it over instead of computing
 * it; of the page in which the texts part, it copies what they share (kv_part_begin()).  A hit is
 * verified token by token and parent by parent, so a collision of hashes can't hand out a foreign
 * page.  Published pages that nobody holds stay until room is needed.  Beside a published page may
 * be a snapshot of the recurrent state at its end (snapshot.h): a model with states continues only
 * where one is.
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
#include "engine/memory/snapshot.h"

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

/* All references must be back. NULL is allowed. */
void kv_destroy(kv_pages *kv);

/* A page with one reference, or -1 when all are held.  May evict a published one. */
int kv_take(kv_pages *kv);
/* One more reference to a page that somebody holds. */
void kv_retain(kv_pages *kv, int page);

/* One reference less; without any, a published page becomes evictable, and another one is free. */
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

/* How a text goes on behind kv_match()'s whole pages: its next n_tokens are the first ones of the
 * page `from`.  `page` is the caller's own, into which he copies `from`. */
typedef struct kv_part {
    int from, page, n_tokens;
} kv_part;

/* Of the published pages that continue pages[0, n) (all of kv_match(), without a window), the one
 * that shares most of the tokens behind them, at most all but the last.  False: none shares any, or
 * there is no page for the copy.  True: kv_part_end() is due when the copy is enqueued; `page` is
 * one of those that kv_take() gives. */
bool kv_part_begin(kv_pages *kv, const kv_domain *d, const int32_t *pages, int n,
                   const int32_t *tokens, int n_tokens, kv_part *out);

/* The copy is enqueued: `from` may be evicted again. */
void kv_part_end(kv_pages *kv, const kv_part *p);

/* Publishes the full page `index` of a sequence; `pages` is its block table, whose pages before
 * `index` are published (else nothing happens), the one before is there; tokens: the page's own
 * page_tokens. */
void kv_publish(kv_pages *kv, const kv_domain *d, const int32_t *pages, int index,
                const int32_t *tokens);

/* The same, but where another page was published with that content before, it replaces this one in
 * the block table, and this one is given back.  So what follows can be published as well.  Both
 * have the same bits, as a row does not depend on its batch.  No step that reads the block table is
 * in flight. */
void kv_share(kv_pages *kv, const kv_domain *d, int32_t *pages, int index, const int32_t *tokens);

/* Snapshots of states beside pages, up to n_slots.  Once, before a page is taken; n_slots 0: none.
 * False: out of memory. */
bool kv_keep_snapshots(kv_pages *kv, int n_slots);
/* The slot into which the caller copies the state at the end of `page`, which he holds, before he
 * calls anything else here.  -1: the page is not published, or it has a snapshot.  instead: a page
 * that he holds too, whose snapshot goes unless a request has used it; -1: none. */
int kv_snapshot_put(kv_pages *kv, int page, int instead);
/* Of n pages that kv_match() gave, those up to the last one with a snapshot.  Returns how many;
 * *slot: of the snapshot, whose content stays until the next kv_snapshot_put(); -1 with 0. */
int kv_snapshot_get(kv_pages *kv, const int32_t *pages, int n, int *slot);
/* The same for a copy of the snapshot, which does not count as its use. */
int kv_snapshot_find(const kv_pages *kv, const int32_t *pages, int n, int *slot);

/* Zeros where none are kept. */
void kv_snapshot_count(const kv_pages *kv, snapshot_counts *out);

/* Takes a page out of the cache: its content is not to be trusted.  Holders keep it. */
void kv_forget(kv_pages *kv, int page);

/* Forgets the whole prefix cache; nobody holds a page. */
void kv_clear(kv_pages *kv);

typedef struct kv_counts {
    int n_pages, n_held, n_cached; /* cached: published and not held */
} kv_counts;

/* Pages of this table; takes the arena's lock for a moment. */
void kv_count(const kv_pages *kv, kv_counts *out);

/* All invariants; for tests. */
bool kv_check(const kv_pages *kv);

#endif
