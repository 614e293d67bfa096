/* stats.h -- one picture of the whole server, and what of it changed: behind GET /admin/v1/stats.
 *
 * A picture is taken when somebody asks, at most ten times a second however many ask, from copies
 * made under locks that are held for microseconds: nothing here makes a step wait.  Its rows go
 * into a journal (stats_journal.h), so an answer to a reader who has a cursor holds what is new,
 * not what there is.  While nobody asks, the tick takes one every two seconds, so that events
 * are recorded all the same, and a small sample a second, from which rates and percentiles of the
 * last minute come.
 *
 * Locks:   one mutex, taken by readers and the tick alone; the sources have theirs under it.
 * Threads: any, but not the engine's.
 */
#ifndef GATEWAY_WATCH_STATS_H
#define GATEWAY_WATCH_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/sched/request.h"
#include "gateway/admin_proto.h"
#include "gateway/http/jsonw.h"
#include "gateway/watch/refusals.h"
#include "storage/ledger.h"

struct server;
typedef struct stats stats;

enum {
    STATS_ROWS_MAX = 50000,
    STATS_PERIOD_US = 100000,
    STATS_CERTIFICATE_S = 14 * 86400 /* warn before a certificate ends; as TLS_EXPIRY_WARN_DAYS */
};

/* `s` is borrowed; scheduler, registry, residency, limits and storage must be there
 * already.  NULL: out of memory. */
stats *stats_create(struct server *s);
void stats_destroy(stats *st);

/* Once a second or so, on the main thread. */
void stats_tick(stats *st);

/* What the rest of the gateway tells; a NULL `st` is fine.  `row`: what `rq` came to, which its
 * client knows as `request_id`; owner_id: the tenant of its adapter. */
void stats_note(stats *st, const usage_row *row, uint64_t owner_id, const request *rq,
                const char *request_id);
/* The requests that have ended. */
struct ended *stats_ended(stats *st);
/* What they add up to. */
struct book *stats_book(stats *st);
/* `why`: as of book_add_refused(). */
void stats_refused(stats *st, uint64_t tenant_id, int class, miss_cause why);
/* A limit refused a request of this tenant; `scope`, `limit`: as in limits_refusal. */
void stats_limited(stats *st, uint64_t tenant_id, const char *scope, const char *limit);
/* What limits refused of this tenant's requests in the last hour: refusals_of(). */
int stats_refusals(stats *st, uint64_t tenant_id, refusal_count *out);
/* level: "audit", "info", "warning", "error".  Copies; `object`, `detail` may be NULL. */
void stats_event(stats *st, const char *level, const char *kind, uint64_t tenant_id,
                 const char *object, const char *detail, uint64_t actor_key_id);

typedef struct stats_query {
    const char *cursor; /* of an earlier answer; NULL: everything */
    size_t limit;       /* rows in one answer, at most STATS_ROWS_MAX */
    unsigned tables;    /* bit for each proto_table that is wanted */
    const char *access; /* what the asking key may: "admin" or "read" */
} stats_query;

/* Appends the answer, an object.  `cursor` (64 bytes) gets the one to go on from; *more: there
 * is more to be had at once. */
void stats_write(stats *st, const stats_query *q, jsonw *w, char *cursor, bool *more);

#endif
