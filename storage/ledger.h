/* ledger.h -- what was used, by whom: append-only rows, one for each request that ran.
 *
 * A row's request id is unique: settling the same request twice changes nothing, so that crash
 * recovery and a late worker can both settle.  A later attempt at it (a batch's line, which is done
 * again where its answer was lost) stands in the place of the earlier one.  Day sums per tenant are
 * kept in the same transaction, so budgets need no scan.  ledger_prune() turns old rows into sums
 * by hour, which queries add to those of the rows.  In a fleet queries are about all nodes' rows,
 * and fail while its database is away; budgets' sums are this node's.  Shapes of HTTP answers are
 * the gateway's business.
 * Threads: any thread.
 */
#ifndef STORAGE_LEDGER_H
#define STORAGE_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/miss.h"
#include "storage/price.h"
#include "storage/store.h"

enum { MODEL_LABEL_MAX = 160 };

typedef struct usage_row {
    uint64_t request_id; /* store_next_id(); one for each choice of a request with n > 1 */
    uint64_t tenant_id, key_id;
    uint64_t adapter_id;             /* version id; 0: the bare base */
    char model[MODEL_LABEL_MAX + 1]; /* "base", "name@7" */
    char slo_class[32];
    char endpoint[32]; /* "chat", "completions" */
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    int64_t cost;                           /* micros (price.h), by the prices at its beginning */
    int status;                             /* HTTP status the client got; 0: unknown (recovered) */
    char finish[16];                        /* "stop", "length", "cancelled", "error" */
    miss_cause missed;                      /* why its promise was broken; NONE: it was not */
    int64_t queue_ms, ttft_ms, duration_ms; /* -1: unknown */
    int64_t started_wall_us, ended_wall_us;
    bool recovered; /* settled from the meter file after a crash */
} usage_row;

/* Appends all rows in one transaction and waits until they are durable.  ERR_IO soon where another
 * program has the database locked: who calls keeps the rows and tries again. */
err_code ledger_settle(store *st, const usage_row *rows, size_t n, err *e);

enum {
    USAGE_BY_MODEL = 1,
    USAGE_BY_KEY = 2,
    USAGE_BY_TENANT = 4,
    USAGE_BY_ADAPTER = 8,
    USAGE_BY_CLASS = 16
};

typedef struct usage_query {
    uint64_t tenant_id;                 /* 0: all tenants */
    uint64_t key_id;                    /* 0: all keys */
    const char *model;                  /* NULL: all */
    bool model_begins;                  /* models that begin so */
    int64_t start_wall_us, end_wall_us; /* [start, end) of the request's start */
    int64_t bucket_us;                  /* 0: one bucket; else buckets aligned to the epoch */
    unsigned group_by;                  /* USAGE_BY_... */
    size_t limit;                       /* rows of the answer; 0: 100,000 */
} usage_query;

typedef struct usage_sum {
    int64_t bucket_start_us, bucket_end_us;
    uint64_t tenant_id, key_id, adapter_id; /* 0 unless grouped by */
    char model[MODEL_LABEL_MAX + 1], slo_class[32];
    uint64_t n_requests, prompt_tokens, cached_tokens, output_tokens;
    int64_t cost; /* micros */
} usage_sum;

/* Sums, ordered by bucket, then group; *out is malloced.  Buckets without requests are absent. */
err_code ledger_query(store *st, const usage_query *q, usage_sum **out, size_t *n, err *e);

/* Rows that began before `before_wall_us`, the oldest `max` of them, become sums by hour; *n says
 * how many did.  Sums of a query stay what they were for buckets of an hour or a day. */
err_code ledger_prune(store *st, int64_t before_wall_us, int64_t max, int64_t *n, err *e);

typedef struct ledger_sums {
    int64_t tokens; /* prompt + output */
    int64_t cost;   /* micros */
} ledger_sums;

/* The usage of the UTC day and month that hold `now_wall_us`; the month's includes later days, on
 * which a clock that was ahead has been. */
err_code ledger_spent(store *st, uint64_t tenant_id, int64_t now_wall_us, ledger_sums *day,
                      ledger_sums *month, err *e);

/* The next tenant above `*tenant_id` who used something in that month: into
 * *tenant_id; 0: none is left. */
err_code ledger_next_spender(store *st, int64_t now_wall_us, uint64_t *tenant_id, err *e);

#endif
