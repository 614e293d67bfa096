/* telemetry.h -- what became of requests: times, lengths and outcomes, by class and by tenant.
 *
 * Written by the engine thread as things happen and by gateway workers for what they refuse; read
 * by whoever shows it.  Everything is preallocated; recording takes no lock but one short lock
 * where a request comes, is seated, or goes (the adapters in use).
 *
 * The first `max_tenants` tenants that send something have series of their own, all later ones
 * share one: the number of series is bounded whatever tenants are created.
 *
 * One `struct request` is counted, that is: each choice of a request with n > 1.
 *
 * Threads: any thread; of one request, one after another.
 */
#ifndef ENGINE_SCHED_TELEMETRY_H
#define ENGINE_SCHED_TELEMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/sched/request.h"
#include "engine/watch/histogram.h"

typedef enum {
    OUTCOME_STOP,      /* complete: a stop token or string */
    OUTCOME_LENGTH,    /* complete: it has max_tokens tokens */
    OUTCOME_REFUSED,   /* the server had no room, or could not have kept its promise */
    OUTCOME_LIMITED,   /* the tenant's own limit: no fault of the server */
    OUTCOME_CANCELLED, /* the client went away */
    OUTCOME_FAILED,    /* an error, or a deadline that passed */
    OUTCOME_MOVED,     /* another server goes on with it */
    OUTCOMES,
} request_outcome;

/* "stop", "length", "refused", "limited", "cancelled", "failed", "moved". */
const char *request_outcome_name(request_outcome o);

typedef enum {
    SERIES_TTFT,       /* arrival to first token */
    SERIES_ITL,        /* each token after the one before it */
    SERIES_TPOT,       /* one value a request: mean time of its tokens after the first */
    SERIES_E2E,        /* arrival to end, of complete ones */
    SERIES_QUEUE,      /* arrival to first seat */
    SERIES_PREFILL,    /* first seat to first token */
    SERIES_DECODE,     /* first to last token */
    SERIES_INFERENCE,  /* first seat to end */
    SERIES_PROMPT,     /* tokens of the prompt */
    SERIES_OUTPUT,     /* tokens made */
    SERIES_MAX_TOKENS, /* tokens allowed */
    SERIES,
} telemetry_series;

/* Targets that complete requests met or missed.  TARGET_BOTH also counts as missed what was refused
 * or failed, and is goodput; what was limited or cancelled is in none. */
enum { TARGET_TTFT, TARGET_TPOT, TARGET_BOTH, TARGETS };

typedef struct telemetry_class {
    histogram_counts series[SERIES];
    uint64_t outcome[OUTCOMES], met[TARGETS], missed[TARGETS];
    uint64_t cause[MISS_CAUSES];    /* of missed[TARGET_BOTH], each under one */
    uint64_t beside[CAUSE_CLASSES]; /* of decode_steps, by the class with the most rows */
} telemetry_class;

typedef struct telemetry_tenant {
    uint64_t id; /* 0: all that have no series of their own */
    histogram_counts ttft, tpot;
    uint64_t outcome[OUTCOMES], met, missed; /* both targets */
    uint64_t cause[MISS_CAUSES];             /* of the missed */
    uint64_t prompt_tokens, output_tokens;   /* of requests that have ended */
} telemetry_tenant;

typedef struct telemetry_adapter {
    uint64_t id;
    int running, waiting; /* requests */
} telemetry_adapter;

typedef struct telemetry telemetry;

/* Room for max_requests at once.  NULL: no memory. */
telemetry *telemetry_create(int n_class, int max_tenants, int max_requests);
void telemetry_destroy(telemetry *t);

/* ---- recording ---------------------------------------------------------------- */

/* Before the engine sees it; sets rq->run.telemetry_slot. */
void telemetry_enter(telemetry *t, request *rq);
/* It runs for the first time. */
void telemetry_seat(telemetry *t, const request *rq);
/* A token at rq->times.last_token_us; `before_us`: time of the previous one; 0: it is the first. */
void telemetry_token(telemetry *t, const request *rq, int64_t before_us);
/* The last word on a request that was entered; its times are final.  Judges the promise and sets
 * rq->missed.  `code`: of what failed. */
void telemetry_end(telemetry *t, request *rq, request_outcome how, err_code code, int64_t now_us);
/* For one that never came in; `why` counts where that is a promise broken. */
void telemetry_refuse(telemetry *t, int class, uint64_t tenant_id, request_outcome how,
                      miss_cause why);
/* A step of so many rows. */
void telemetry_step(telemetry *t, int n_rows);
/* Changes how many requests run with an adapter and wait for it; id 0 (the base) is not counted. */
void telemetry_adapter_add(telemetry *t, uint64_t id, int running, int waiting);

/* ---- looking ------------------------------------------------------------------- */

void telemetry_class_get(const telemetry *t, int class, telemetry_class *out);
/* Tenants with series, `others` last; at most `cap`, returns how many. */
int telemetry_tenants_get(const telemetry *t, telemetry_tenant *out, int cap);
void telemetry_steps_get(const telemetry *t, histogram_counts *out);
/* Adapters with a request inside, at most `cap`; returns how many. */
int telemetry_adapters_get(telemetry *t, telemetry_adapter *out, int cap);

#endif
