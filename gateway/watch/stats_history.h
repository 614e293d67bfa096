/* stats_history.h -- gathers what ends into spans of time (storage/watch/history.h), and tells when
 * a class breaks its promises and when it keeps them again.
 *
 * Each span has all classes, and the first tenants and adapters that something ended of; the others
 * of a kind share a line.  A class is broken as soon as in the present span and the one before at
 * least BREACH_LEAST requests missed, and these were more than one of BREACH_OF; until in
 * CALM_SPANS in a row no more than that did.  Five of a hundred are five times what an objective of
 * 99 % allows, and still enough where a small tenant's are among a large one's.
 *
 * A promise is broken when its time is over, not when the request ends: of a class that gets no
 * turn nothing ends.  So what waits beyond its target is counted as missed once, in the span in
 * which that is seen, and not again when it ends (of classes and tenants; adapters' lines have what
 * has ended).  What the server refused has missed, too.
 *
 * Threads: any; one lock, held for copies.  tick(): one thread.
 */
#ifndef GATEWAY_WATCH_STATS_HISTORY_H
#define GATEWAY_WATCH_STATS_HISTORY_H

#include "engine/sched/board.h"
#include "gateway/watch/stats_book.h"
#include "storage/watch/history.h"

enum { BREACH_LEAST = 3, BREACH_OF = 20, CALM_SPANS = 3 };

/* A class that breaks its promises, or did so last. */
typedef struct breach {
    int64_t since_s;             /* 0: it never did */
    int64_t until_s;             /* 0: it does so now */
    int64_t missed, judged;      /* requests of all that time */
    int64_t ttft_us, tpot_us;    /* the worst p99 of a span; -1: none */
    uint64_t cause[MISS_CAUSES]; /* of the missed */
} breach;

typedef struct stats_history stats_history;

/* Called by tick() when a breach begins, and when it is over. */
typedef void breach_fn(void *arg, int class, const breach *b);

/* NULL: no memory.  `part` tells this process's rows from another's in the same span. */
stats_history *stats_history_create(int64_t part);
void stats_history_destroy(stats_history *h);

/* `id`: as its row on the board (request.id). */
void stats_history_note(stats_history *h, uint64_t id, const usage_row *row, int class);
/* `why`: as of book_add_refused(). */
void stats_history_refused(stats_history *h, uint64_t tenant_id, int class, miss_cause why);

/* All requests inside, as the board had them a moment ago; every few seconds. */
void stats_history_overdue(stats_history *h, const board_row *row, int n);

/* Now and then, at least once in ten seconds: what is over goes to the storage thread.  `classes`:
 * names of n_class. */
void stats_history_tick(stats_history *h, store *st, const char *const *classes, int n_class,
                        int64_t now_s, breach_fn *fn, void *arg);

/* The breach of a class that is, up to now, or was last. */
breach stats_history_breach(stats_history *h, int class);

/* In words: "since 10:01:20 (UTC) 28 of 40 requests missed: queue 20, machine 8; ...".  `ttft_us`,
 * `tpot_us`: the class's targets. */
void breach_text(const breach *b, int64_t ttft_us, int64_t tpot_us, char *out, size_t cap);

#endif
