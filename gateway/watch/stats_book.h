/* stats_book.h -- what ended requests add up to, by tenant, by adapter and by class.
 *
 * Noted once for each choice of a request when its usage is settled, and for each one that was
 * refused; kept for as long as the process lives.  The ledger is what is billed; this is what a
 * dashboard shows.  Times go into buckets with five bounds a decade.
 *
 * Threads: any thread; one lock, held for one hash lookup.
 */
#ifndef GATEWAY_WATCH_STATS_BOOK_H
#define GATEWAY_WATCH_STATS_BOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/ledger.h"

enum { BOOK_BOUNDS = 36, BOOK_BUCKETS = BOOK_BOUNDS + 1, BOOK_ENTRIES_MAX = 65536 };

extern const int64_t book_bounds_us[BOOK_BOUNDS];

typedef enum { BOOK_TENANT, BOOK_ADAPTER, BOOK_CLASS, BOOK_KINDS } book_kind;

typedef struct book_counts {
    uint64_t ended, failed, limited, refused; /* ended: with an answer of 2xx */
    uint64_t prompt_tokens, output_tokens;
    uint64_t met, missed;             /* both targets */
    uint64_t cause[MISS_CAUSES];      /* of the missed */
    int64_t last_wall_us, adapter_us; /* adapter_us: they waited for it; of adapters alone */
    uint32_t ttft[BOOK_BUCKETS], tpot[BOOK_BUCKETS];
} book_counts;

typedef struct book book;

/* NULL: no memory. At most BOOK_ENTRIES_MAX entries; what is beyond them is not counted. */
book *book_create(void);

/* NULL is allowed. */
void book_destroy(book *b);

/* What a request came to, into counts of one's own. */
void book_add(book_counts *c, const usage_row *row);

/* class: index; adapter_us: how long it waited for its adapter; owner_id: the adapter's tenant, in
 * whose name it is counted whoever uses it.  Tells "name@7" apart from the base by adapter_id. */
void book_note(book *b, const usage_row *row, int class, int64_t adapter_us, uint64_t owner_id);
/* One more that was refused: a promise broken, or (MISS_NONE) a limit of its tenant. */
void book_add_refused(book_counts *c, miss_cause why);

/* Counts a refusal for the tenant, and for its class. */
void book_refused(book *b, uint64_t tenant_id, int class, miss_cause why);

/* Key of an adapter's counts; `name` may go on with "@version". */
uint64_t book_adapter_key(uint64_t tenant_id, const char *name);

/* Calls fn, with the lock held, for each entry of a kind that has changed since
 * the last drain; how many. */
int book_drain(book *b, book_kind kind,
               void (*fn)(void *arg, uint64_t id, const book_counts *counts), void *arg);
/* False: nothing was noted for it. */
bool book_get(book *b, book_kind kind, uint64_t id, book_counts *out);

/* Removes the counts, for example of an adapter that was deleted. */
void book_forget(book *b, book_kind kind, uint64_t id);

typedef struct book_adapter {
    uint64_t tenant_id; /* its owner */
    char name[MODEL_LABEL_MAX + 1];
    book_counts c;
} book_adapter;

/* The adapters with the most tokens made since the start, the busiest first: at most `cap`, returns
 * how many. */
int book_busiest(book *b, book_adapter *out, int cap);

/* The value that `share` (0..1) of the counts do not exceed, in milliseconds, interpolated within
 * its bucket; negative: there are none. */
double book_percentile_ms(const uint32_t counts[BOOK_BUCKETS], double share);

#endif
