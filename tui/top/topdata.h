/* topdata.h -- what loratop knows of one server: the last picture, and how things went.
 *
 * Made from the answers of GET /admin/v1/stats (gateway/admin_proto.h), strictly: an answer with a
 * member of the wrong type is refused whole, with its name; members that an older server does not
 * have stay zero.  A server is no more trusted than a tenant: texts are kept as they came and made
 * safe where they are drawn (cells.h), counts are bounded.
 *
 * Ownership: topdata_init() to topdata_clear().  Threads: one.
 */
#ifndef TUI_TOP_TOPDATA_H
#define TUI_TOP_TOPDATA_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"
#include "gateway/admin_proto.h"

enum { HISTORY = 600, TOPDATA_ROWS_MAX = 200000, TOPDATA_EVENTS_MAX = 2000 };

typedef struct history {
    double v[2 * HISTORY]; /* the last HISTORY of n stand together at the end of what is filled */
    int n;
} history;

/* The newest *n <= want values, oldest first. */
const double *history_last(const history *h, int want, int *n);
double history_max(const history *h, int want);

typedef enum {
    SERIES_IN,
    SERIES_OUT,
    SERIES_RUNNING,
    SERIES_WAITING,
    SERIES_KV,       /* share of pages held */
    SERIES_ADAPTERS, /* share of the adapters' budget */
    SERIES_REQUESTS,
    SERIES_LIMITED,
    SERIES_ERRORS,
    SERIES_LOADS,
    SERIES_PREFILL, /* rows of a step, mean over the interval */
    SERIES_DECODE,
    SERIES_STEP_MS,
    SERIES_COST_ERROR,
    SERIES_BUSY,
    SERIES_HITS, /* adapters: share of acquires that found them in memory */
    SERIES_ATTAINED,
    SERIES_ALL
} series;

/* What the server has kept of a class: ten seconds each, in a ring by time. */
enum { PAST_S = 10, PAST_SPANS = 360 };

typedef struct past_span {
    int64_t start_s;         /* server's wall clock; 0: nothing ended then */
    double ttft_ms, tpot_ms; /* p99; negative: none */
    int64_t met, missed;
} past_span;

typedef struct past_class {
    char name[PROTO_NAME_CAP];
    past_span span[PAST_SPANS];
} past_class;

enum { ROW_EVENTS = 2 };

/* Beside each row of a table. */
typedef struct row_side {
    uint64_t id;
    double rate;     /* tokens (tenants), requests (adapters) a second */
    int64_t counted; /* at the last change */
    /* 429 (tenants), loads and evictions (adapters) a minute, over the last half or so. */
    double events[ROW_EVENTS];
    int64_t seen[ROW_EVENTS]; /* likewise counted */
    int64_t at_us;            /* server's time of that */
    bool tagged;
} row_side;

typedef struct rowset {
    char *row; /* [n] of `bytes` each, in no order */
    row_side *side;
    uint32_t *slot; /* hash of ids to index + 1; 0: free */
    size_t n, cap, n_slot, bytes;
} rowset;

void *rowset_row(const rowset *r, size_t i);
/* -1: none. */
int64_t rowset_find(const rowset *r, uint64_t id);

/* One of GET /admin/v1/requests?state=ended. */
#define TOP_ENDED(S, I, N, B)        \
    S(id, PROTO_ID_CAP)              \
    S(request_id, 40)                \
    S(tenant, PROTO_NAME_CAP)        \
    S(model, PROTO_MODEL_CAP)        \
    S(class, PROTO_WORD_CAP)         \
    I(status)                        \
    S(finish, PROTO_WORD_CAP)        \
    S(missed, PROTO_WORD_CAP)        \
    S(beside, PROTO_WORD_CAP)        \
    I(ended) /* seconds, its wall */ \
    I(duration_ms)                   \
    N(ttft_ms)                       \
    N(queue_ms)                      \
    N(adapter_ms)                    \
    N(prompt_ms)                     \
    N(decode_ms)                     \
    N(rest_ms)                       \
    I(prompt_tokens)                 \
    I(cached_tokens)                 \
    I(output_tokens)

PROTO_STRUCT(top_ended, TOP_ENDED)
#define PROTO_HERE top_ended
PROTO_DATA proto_field top_ended_fields[] = PROTO_ROWS(TOP_ENDED);
#undef PROTO_HERE

typedef struct topdata {
    bool any; /* there was an answer */
    char cursor[64];
    bool more;
    proto_server server;
    proto_totals totals, before;
    proto_rates rates, now; /* now: over the last interval alone */
    proto_engine engine;
    proto_class classes[PROTO_CLASS_MAX];
    int n_class, n_bound;
    int64_t bound_us[PROTO_HIST_MAX];
    int64_t hist[PROTO_CLASS_MAX][2][PROTO_HIST_MAX]; /* TTFT, TPOT */
    rowset table[TABLES], ended;
    history series[SERIES_ALL];
    history at_s; /* server's time of each sample of the series */
    past_class past[PROTO_CLASS_MAX];
    int64_t past_until_s; /* the start of the newest span; 0: none came */
    history class_ttft[PROTO_CLASS_MAX], class_tpot[PROTO_CLASS_MAX];
    uint64_t version; /* raised by each answer */
} topdata;

bool topdata_init(topdata *t);
void topdata_clear(topdata *t);

/* Takes in one answer.  ERR_CORRUPT: it is not one; nothing of it was used.  ERR_NOMEM. */
err_code topdata_apply(topdata *t, const cJSON *answer, err *e);
/* From text: strict JSON first. */
err_code topdata_apply_text(topdata *t, const char *text, size_t len, err *e);

/* An answer of GET /admin/v1/history?by=class, taken whole or not at all. */
err_code topdata_apply_past(topdata *t, const char *text, size_t len, err *e);
/* An answer of GET /admin/v1/requests?state=ended, likewise, in the place of the one before. */
err_code topdata_apply_ended(topdata *t, const char *text, size_t len, err *e);
/* From when on the next one is wanted, in the server's seconds. */
int64_t topdata_past_from(const topdata *t);
/* NULL: nothing of the class ended in the span that begins then. */
const past_span *topdata_past(const topdata *t, const char *class_name, int64_t start_s);

#endif
