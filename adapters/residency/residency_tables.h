/* residency_tables.h -- what residency knows of each adapter, its queues, and the copies in host
 * memory.  Private to residency*.c.
 *
 * Every call and every field below `mu` with mu held; none takes longer than the logarithm
 * of what there is, but for a queue's length where a nearer deadline moves forward: the
 * engine waits for this lock.
 */
#ifndef ADAPTERS_RESIDENCY_RESIDENCY_TABLES_H
#define ADAPTERS_RESIDENCY_RESIDENCY_TABLES_H

#include <pthread.h>

#include "adapters/residency/load.h"
#include "adapters/residency/residency.h"
#include "adapters/residency/under_way.h"
#include "engine/base/lock.h"

enum { BUCKETS = 4096, LOADERS_MAX = 16, HANDS_MAX = LOADERS_MAX + 1 /* and who fills */ };

typedef enum { WANT_NONE, WANT_HINT, WANT_DEMAND } want;

typedef struct entry {
    struct entry *chained;     /* hash */
    struct entry *prev, *next; /* queue while queued, LRU while resident */
    uint64_t id;
    residency_state state; /* never HOST: an adapter with a host copy has DISK */
    want wanted;
    bool taken;    /* a loader works on it */
    bool reserved; /* its chunks are taken; it stands in no queue */
    bool pinned, closing, gone;
    int acquired;
    uint64_t bytes; /* size of its chunks; known when a loader has read the header */
    int64_t due_us; /* order in the queue; 0: not known */
    int64_t failed_us, took_us, last_use_us;
    double popularity; /* decayed count of uses, as of last_use_us */
    uint64_t n_hits, n_loads;
    bool fresh; /* loaded, and nobody used it yet */
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
    pace pace; /* of what they move to the device; has its own lock */

    lock mu;              /* guards all below */
    cond work;            /* queued, released, evicted, stop */
    bool stop, suspended; /* suspended: nobody touches the device */
    int n_busy;           /* loaders at work, and who fills */
    under_way *going;     /* their loads from the disk */
    bool filling;         /* residency_fill() is at work */
    entry *bucket[BUCKETS];
    chain queue[3]; /* by want; WANT_NONE: those whose chunks are taken */
    chain lru;      /* resident, least recently used first */
    entry **host;   /* those with a copy: a heap, the least worth on top */
    int n_host, cap_host;
    size_t host_used;
    uint64_t pinned_bytes; /* that pinned ones hold or will hold */
    double host_clock;
    adapter_copy *trash; /* to be freed once mu is not held */
    int n_acquired;
    uint64_t changes;     /* of what the rows of residency_rows() show */
    double load_us;       /* of one load to the device, smoothed */
    const entry *starved; /* has had devmem_reserve() called for it */
    /* Sums over loads, the latest count most: time over bytes on the device is what a byte
     * takes. */
    double read_us, read_bytes, pack_us, pack_bytes;
    residency_stats stats;
};

/* At the tail; the entry must be in no chain (its links serve one at a time). */
void chain_push(chain *l, entry *en);

/* Out of this chain, from wherever it is in it. */
void chain_drop(chain *l, entry *en);

/* NULL: nothing is known of this version. */
entry *tier_find(residency *rs, uint64_t id);
/* NULL: out of memory. */
entry *tier_find_or_add(residency *rs, uint64_t id);
/* Frees it; it stands in no chain. */
void tier_forget(residency *rs, entry *en);
/* The same, unless the entry has loads, a host copy, a pin or a due time to remember. */
void tier_forget_if_empty(residency *rs, entry *en);

/* Puts it into the queue, or moves it from the hints up to the demands, or forward. */
void tier_enqueue(residency *rs, entry *en, want w, int64_t due_us);
/* Decayed count of uses. */
double tier_popularity(const entry *en, int64_t now_us);

/* A load took so long; read_us 0: it did not come from the disk. */
void tier_learn(residency *rs, const entry *en, int64_t read_us, int64_t pack_us);
/* When it would be on the device: its own load at the rates seen from where it lies, and those
 * before it in the queue, over the loaders.  `en` NULL: it was never asked for.  0: it is there,
 * has failed, or no load was seen yet.  Looks at a bounded part of the queue. */
int64_t tier_eta_us(const residency *rs, const entry *en, uint64_t bytes, int64_t due_us);

/* Bytes that pinned adapters hold or will hold, `but` apart. */
uint64_t tier_pinned_bytes(const residency *rs, const entry *but);

/* The size of its chunks is known now; keeps pinned_bytes right. */
void tier_set_bytes(residency *rs, entry *en, uint64_t bytes);

/* Sets or takes back the pin; keeps pinned_bytes right. */
void tier_set_pinned(residency *rs, entry *en, bool pinned);

/* ---- copies in host memory */

/* Keeps what a loader has read, if there is room for any. */
void host_keep(residency *rs, entry *en, adapter_load *ld, int64_t read_us);
/* Brings the worth of an entry up to date after a use. */
void host_value(residency *rs, entry *en);

/* Takes its copy out of the heap and puts it into the trash. */
void host_drop(residency *rs, entry *en);
/* Evicts host copies until the budget holds, the least valuable first, except those that a loader
 * is working on. */
void host_trim(residency *rs);
/* What was dropped, to be freed without mu. */
adapter_copy *host_take_trash(residency *rs);

/* Frees what host_take_trash() gave. Without mu: freeing gigabytes takes milliseconds. */
void host_free_trash(adapter_copy *c);

#endif
