/* history.h -- what was seen of classes, tenants and adapters, in spans of ten seconds for an hour
 * and of ten minutes for thirty days.
 *
 * Rows are written by the storage thread and thrown away by it when they are too old, so their
 * number is bounded by HISTORY_NAMES for each span.  Nothing here is billed: what a crash loses is
 * the span that ran.
 *
 * Threads: any thread.
 */
#ifndef STORAGE_WATCH_HISTORY_H
#define STORAGE_WATCH_HISTORY_H

#include <stddef.h>
#include <stdint.h>

#include "storage/store.h"

enum {
    HISTORY_FINE_S = 10,
    HISTORY_COARSE_S = 600,
    HISTORY_FINE_KEPT_S = 3600,
    HISTORY_COARSE_KEPT_S = 30 * 86400,
    HISTORY_NAMES = 88, /* rows of one span at most */
    HISTORY_NAME_CAP = 144,
    HISTORY_CAUSES_CAP = 160,
};

typedef enum { HISTORY_CLASS, HISTORY_TENANT, HISTORY_ADAPTER, HISTORY_KINDS } history_kind;

typedef struct history_row {
    int width_s; /* HISTORY_FINE_S or HISTORY_COARSE_S */
    history_kind kind;
    int64_t start_s;             /* since 1970, a multiple of the width */
    int64_t part;                /* another process in the same span writes another row */
    char name[HISTORY_NAME_CAP]; /* "interactive", "acme", "acme/pirate" */
    /* Requests: ended well, failed, refused for lack of room, by a limit; promises kept, broken. */
    int64_t ended, failed, refused, limited, met, missed;
    int64_t prompt_tokens, output_tokens;
    int64_t ttft_p50_us, ttft_p99_us, tpot_p50_us, tpot_p99_us; /* -1: none */
    char causes[HISTORY_CAUSES_CAP];                            /* "queue:3,machine:1" */
} history_row;

/* Queues n rows (at most HISTORY_NAMES) to be written, and forgets what is too old at `now_s`.
 * Returns at once; a failure is logged. */
void history_put(store *st, const history_row *rows, size_t n, int64_t now_s);

typedef struct history_query {
    int width_s;
    history_kind kind;
    const char *name;       /* NULL: all */
    int64_t start_s, end_s; /* [start, end) of the spans' starts */
    size_t limit;
} history_query;

/* By start, then name; *out is malloced. */
err_code history_get(store *st, const history_query *q, history_row **out, size_t *n, err *e);

#endif
