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

/* Beside each row of a table. */
typedef struct row_side {
    uint64_t id;
    double rate;     /* tokens (tenants), requests (adapters) a second */
    double events;   /* 429 (tenants), loads (adapters) a minute, over the last half or so */
    int64_t counted; /* at the last change */
    int64_t seen;    /* likewise, of `events` */
    int64_t at_us;   /* server's time of that */
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
    rowset table[TABLES];
    history series[SERIES_ALL];
    history at_s; /* server's time of each sample of the series */
    history class_ttft[PROTO_CLASS_MAX], class_tpot[PROTO_CLASS_MAX];
    uint64_t version; /* raised by each answer */
} topdata;

bool topdata_init(topdata *t);
void topdata_clear(topdata *t);

/* Takes in one answer.  ERR_CORRUPT: it is not one; nothing of it was used.  ERR_NOMEM. */
err_code topdata_apply(topdata *t, const cJSON *answer, err *e);
/* From text: strict JSON first. */
err_code topdata_apply_text(topdata *t, const char *text, size_t len, err *e);

#endif
