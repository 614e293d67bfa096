/* inflight.h -- the completions that workers hold right now, so that an
 * operator can see and end them.
 *
 * The engine knows ids and tokens (engine/sched/board.h); here stands what only the gateway knows
 * of them: the request id that the client was given, the model's name, the key.  One entry is one
 * choice: a struct request in the engine.
 *
 * Ownership: an entry lies in its worker's memory, between inflight_add() and inflight_remove().
 * Threads:   any thread but the engine's, which never meets this lock.
 */
#ifndef GATEWAY_INFLIGHT_H
#define GATEWAY_INFLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INFLIGHT_REQUEST_ID_MAX = 40, INFLIGHT_MODEL_MAX = 96 };

typedef struct inflight_info {
    uint64_t id; /* of the choice; the row in the ledger, the request in the engine */
    char request_id[INFLIGHT_REQUEST_ID_MAX]; /* of the HTTP request: "req_..." */
    char model[INFLIGHT_MODEL_MAX];           /* "base", "name@7" */
    uint64_t tenant_id, key_id;
    int slo_class, n_prompt, max_tokens;
    bool stream;
    int64_t arrived_us; /* monotonic */
    int64_t writing_us; /* monotonic: since when a write waits for the client; 0: none */
} inflight_info;

typedef struct inflight_entry {
    inflight_info info;
    atomic_bool *stop; /* the worker looks at it between waits; several choices share one */
    const _Atomic int64_t *writing_us; /* the worker's, for info.writing_us; NULL: it never waits */

    struct inflight_entry *prev, *next; /* private to inflight.c */
    bool listed;
} inflight_entry;

typedef struct inflight inflight;

/* NULL: out of memory. */
inflight *inflight_create(void);
/* Every entry must be back. */
void inflight_destroy(inflight *f);

/* info and stop must be set. */
void inflight_add(inflight *f, inflight_entry *e);
/* Harmless for one that was never added. */
void inflight_remove(inflight *f, inflight_entry *e);

/* Copies the list in order of arrival; *out is the caller's.  False: out of memory. */
bool inflight_list(inflight *f, inflight_info **out, size_t *n);

/* Asks the worker of this choice ("17") or HTTP request ("req_...") to end it.  False: none such
 * runs.  *info (may be NULL) is set to the first that fits. */
bool inflight_stop(inflight *f, const char *which, inflight_info *info);
/* The same for all of a tenant, or of a key (0: not asked for); how many. */
int inflight_stop_all(inflight *f, uint64_t tenant_id, uint64_t key_id);

#endif
