/* admin_proto.h -- what GET /admin/v1/stats says, field by field, for both sides of the wire.
 *
 * Each object of the answer is one struct, declared by one list of fields: the server fills the
 * struct and writes it by the list (gateway/watch/stats.c), loratop reads it back by the same list
 * (tui/top/topdata.c).  A field added here is on the wire.
 *
 *     {"object":"stats","cursor":"...","reset":true,"more":false,
 *      "server":{}, "totals":{}, "rates":{}, "engine":{}, "classes":[{}],
 *      "tenants":[{}], "adapters":[{}], "requests":[{}], "events":[{}],
 *      "gone":{"tenants":["id"],"adapters":["id"],"requests":["id"]}}
 *
 * server, totals, rates, engine and classes are whole in every answer.  Of the four tables
 * come the rows that changed since the cursor, and the ids of those that went; with "reset"
 * the reader forgets what it had, with "more" it asks again at once.  Ids are strings
 * (JSON's numbers lose digits).  Times ending in _us are microseconds of the server's wall
 * clock, in _s seconds; 0: never.
 *
 * Threads: data only.
 */
#ifndef GATEWAY_ADMIN_PROTO_H
#define GATEWAY_ADMIN_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PROTO_ID_CAP = 24,
    PROTO_NAME_CAP = 68,
    PROTO_MODEL_CAP = 96,
    PROTO_WORD_CAP = 20,
    PROTO_TEXT_CAP = 200,
    PROTO_HIST_MAX = 40, /* buckets of a histogram */
    PROTO_CLASS_MAX = 8,
};

/* S(field, capacity) text; I(field) int64_t; N(field) double; B(field) bool */
#define PROTO_SERVER(S, I, N, B)                                                                   \
    S(version, PROTO_WORD_CAP)                                                                     \
    S(backend, PROTO_TEXT_CAP)                                                                     \
    S(gpu_unused, 320) /* why the CPU serves though the machine has a GPU; "": nothing to say */   \
    S(model, PROTO_MODEL_CAP)                                                                      \
    S(host, PROTO_NAME_CAP)                                                                        \
    S(access, PROTO_WORD_CAP) /* of the key that asked: "admin" or "read" */                       \
    I(started_s)                                                                                   \
    I(uptime_s)                                                                                    \
    I(now_us)     /* wall clock */                                                                 \
    I(at_us)      /* monotonic, when the picture was taken: rates are differences over this */     \
    I(picture_us) /* monotonic, when the engine showed its queue */                                \
    B(healthy)                                                                                     \
    B(ready)                                                                                       \
    B(draining)                                                                                    \
                                                                                                   \
    B(restarting) /* the device failed and is brought back */                                      \
    S(storage,                                                                                     \
      PROTO_WORD_CAP) /* "ok"; "behind": usage waits in the spool; "full": new work is refused */  \
    I(spool_rows)     /* usage that fits into the spool, and that waits in it */                   \
    I(spool_used)                                                                                  \
    I(spool_oldest_us)                /* how long the oldest has waited */                         \
    S(storage_reason, PROTO_TEXT_CAP) /* why usage cannot be written; "": it is written */         \
    S(storage_holder, PROTO_NAME_CAP) /* process that holds the database, "PID (NAME)"; or "" */   \
    I(certificate_until_s)            /* wall clock; 0: unknown */                                 \
    I(max_seqs)                                                                                    \
    I(max_queued)                                                                                  \
    I(max_context)                                                                                 \
    I(connections)                                                                                 \
    I(rss_bytes)                                                                                   \
    I(disk_free_bytes)  /* of data.dir's file system */                                            \
    I(disk_floor_bytes) /* data.min_free: uploads leave so much */                                 \
    B(disk_low)         /* less than that is free: uploads are refused */                          \
    B(disk_reserve)     /* the database's reserve is there; false: the disk was full */            \
    I(lockouts_pending) /* revocations and the like in force, not durable yet */                   \
    B(fleet)            /* a node of one; false: a server by itself, the next four mean none */    \
    S(fleet_role, PROTO_WORD_CAP) /* "both", "prefill" or "decode" (server.fleet_role) */          \
    B(fleet_fenced)               /* another server took its number: it writes nothing any more */ \
    I(fleet_away_us)              /* how long the fleet's database has not answered; 0: it does */ \
    I(fleet_behind)               /* changes of the fleet that are not applied here yet */         \
    I(cpu_us)                     /* user and system time of the process */

#define PROTO_TOTALS(S, I, N, B) /* since the start; they only grow */        \
    I(prompt_tokens)             /* settled: at the end of requests */        \
    I(cached_tokens)                                                          \
    I(output_tokens)                                                          \
    I(computed_tokens) /* by the engine, as they are made: prompt rows ... */ \
    I(made_tokens)     /* ... and output */                                   \
    I(http_2xx)                                                               \
    I(http_4xx)                                                               \
    I(http_5xx)                                                               \
    I(rate_limited)                                                           \
    I(auth_failures)                                                          \
    I(uploads)                                                                \
    I(finished)                                                               \
    I(cancelled)                                                              \
    I(failed)                                                                 \
    I(engine_restarts)                                                        \
    I(preempted)                                                              \
    I(steps)                                                                  \
    I(rows)                                                                   \
    I(busy_us)                                                                \
    I(plan_us)                                                                \
    I(forward_us)                                                             \
    I(sample_us)                                                              \
    I(settle_us)                                                              \
    I(adapter_hits)                                                           \
    I(adapter_misses)                                                         \
    I(adapter_loads)                                                          \
    I(adapter_evictions)                                                      \
    I(adapter_failures)                                                       \
    I(adapter_loaded_bytes)                                                   \
    I(adapter_load_us)                                                        \
    I(adapter_waits)

#define PROTO_RATES(S, I, N, B) /* per second over the last ten or so */ \
    N(prompt_tokens)                                                     \
    N(output_tokens)                                                     \
    N(requests)                                                          \
    N(rate_limited)                                                      \
    N(errors) /* answers of 5xx */                                       \
    N(steps)                                                             \
    N(loads)                                                             \
    N(evictions)                                                         \
    N(busy) /* share of time in steps */

#define PROTO_ENGINE(S, I, N, B)                                 \
    I(running)                                                   \
    I(waiting)                                                   \
    I(pages)                                                     \
    I(pages_used)                                                \
    I(pages_cached)                                              \
    I(kv_bytes)                                                  \
    I(weights_bytes)   /* matrices in memory, within */          \
    I(weights_budget)  /* model.resident_bytes; 0: all */        \
    I(weights_read)    /* bytes, so far, from the disk */        \
    I(weights_wait_us) /* that steps waited for these */         \
    I(draft_bytes)     /* of a draft model's own KV pages */     \
    I(draft_used_bytes)                                          \
    I(state_bytes) /* of sequences' states, for all seats */     \
    I(state_used_bytes)                                          \
    I(state_copy_bytes) /* of their copies during speculation */ \
    I(snapshots)        /* of states, in the prefix cache */     \
    I(snapshot_bytes)   /* that they may take */                 \
    I(snapshot_used_bytes)                                       \
    B(prefix_cache) /* false: off */                             \
    I(last_rows)                                                 \
    I(last_prefill)                                              \
    I(last_seqs)                                                 \
    I(last_adapters)                                             \
    I(last_step_us)                                              \
    I(silent_us) /* since the engine thread last showed life */  \
    N(cost_error)                                                \
    N(cost_step_us) /* by the model: a step before any row */    \
    N(cost_row_us)  /* and a stream's row, as of late */         \
    I(adapters_registered)                                       \
    I(adapters_resident)                                         \
    I(adapters_loading)                                          \
    I(adapters_queued)                                           \
    I(adapters_pinned)                                           \
    I(adapters_in_use)                                           \
    I(adapter_bytes)                                             \
    I(adapter_budget_bytes)                                      \
    I(load_us_max)

/* Promises that were broken, and why: each of `missed` under one cause (engine/base/miss.h).  They
 * are docs/howto/watch.md's words. */
#define PROTO_MISSED(I)    \
    I(missed)              \
    I(missed_queue)        \
    I(missed_limits)       \
    I(missed_adapter_load) \
    I(missed_prompt)       \
    I(missed_decode_steps) \
    I(missed_preemption)   \
    I(missed_swap)         \
    I(missed_storage)      \
    I(missed_restart)      \
    I(missed_machine)

#define PROTO_CLASS(S, I, N, B)                                                                \
    S(name, PROTO_NAME_CAP)                                                                    \
    N(ttft_target_ms)                                                                          \
    N(tpot_target_ms)                                                                          \
    N(weight)                                                                                  \
    S(on_overload, PROTO_WORD_CAP)                                                             \
    B(is_default)                                                                              \
    I(running)                                                                                 \
    I(waiting)                                                                                 \
    I(ended)   /* complete ones since the start */                                             \
    I(refused) /* no room, or the promise could not be kept; they have missed, too */          \
    I(limited) /* a tenant's own limit */                                                      \
    I(failed)                                                                                  \
    I(met) /* both targets, since the start */                                                 \
    PROTO_MISSED(I)                                                                            \
    N(ttft_p50_ms) /* of the last minute or so; negative: none */                              \
    N(ttft_p90_ms)                                                                             \
    N(ttft_p99_ms)                                                                             \
    N(tpot_p50_ms)                                                                             \
    N(tpot_p90_ms)                                                                             \
    N(tpot_p99_ms)                                                                             \
    N(attained)       /* share of the last minute's that met both targets; negative: none */   \
    N(goodput)        /* requests that met both, per second */                                 \
    I(broken_since_s) /* it breaks its promises (gateway/watch/stats_history.h); 0: no */      \
    S(verdict, PROTO_TEXT_CAP)       /* then: since when, how many, why, the worst; else "" */ \
    S(verdict_cause, PROTO_WORD_CAP) /* the cause of most of them (engine/base/miss.h) */

#define PROTO_TENANT(S, I, N, B)                                                             \
    S(id, PROTO_ID_CAP)                                                                      \
    S(name, PROTO_NAME_CAP)                                                                  \
    S(state, PROTO_WORD_CAP)                                                                 \
    N(weight)                                                                                \
    S(default_class, PROTO_WORD_CAP)                                                         \
    I(requests_per_minute) /* limits; 0: none */                                             \
    I(tokens_per_minute)                                                                     \
    I(max_concurrent)                                                                        \
    I(max_queued)                                                                            \
    I(tokens_per_day)                                                                        \
    I(tokens_per_month)                                                                      \
    I(running) /* requests between reservation and settlement */                             \
    I(queued)  /* of these, not yet begun */                                                 \
    I(day_tokens)                                                                            \
    I(month_tokens)                                                                          \
    I(minute_requests) /* taken of the limits of a minute; 0 where there is none */          \
    I(minute_tokens)                                                                         \
    I(ended)                                                                                 \
    I(limited)                                                                               \
    I(failed)                                                                                \
    I(prompt_tokens)                                                                         \
    I(output_tokens)                                                                         \
    N(served) /* counter of fair sharing: tokens over weight; negative: not in the engine */ \
    I(met)                                                                                   \
    PROTO_MISSED(I)                                                                          \
    N(ttft_p50_ms) /* since the start; negative: none */                                     \
    N(ttft_p99_ms)                                                                           \
    I(adapters)

#define PROTO_ADAPTER(S, I, N, B)                              \
    S(id, PROTO_ID_CAP)                                        \
    S(tenant, PROTO_NAME_CAP)                                  \
    S(name, PROTO_NAME_CAP)                                    \
    I(version)  /* the default one; 0: none */                 \
    I(previous) /* what a roll-back would go to; 0: nothing */ \
    I(versions)                                                \
    I(rank)                                                    \
    I(bytes)                                                   \
    I(memory_bytes)                                            \
    S(tier, PROTO_WORD_CAP)                                    \
    B(pinned)                                                  \
    I(in_use)   /* sequences of the batch */                   \
    I(requests) /* in the engine */                            \
    I(hits)     /* requests that ended */                      \
    I(output_tokens)                                           \
    I(loads)                                                   \
    I(evictions) /* all loads but the one that is there now */ \
    I(load_us)   /* the latest */                              \
    I(last_used_s)                                             \
    I(met)                                                     \
    PROTO_MISSED(I)                                            \
    N(ttft_p50_ms) /* since the start; negative: none */       \
    N(ttft_p99_ms)                                             \
    I(wait_us) /* requests waited for it */

#define PROTO_REQUEST(S, I, N, B)                                     \
    S(id, PROTO_ID_CAP)                                               \
    S(tenant, PROTO_NAME_CAP)                                         \
    S(adapter, PROTO_MODEL_CAP) /* "name@version"; empty: the base */ \
    S(class_name, PROTO_WORD_CAP)                                     \
    S(state, PROTO_WORD_CAP) /* "waiting", "prefill", "decode" */     \
    I(arrived_us)                                                     \
    I(due_us) /* when the class wants the next token */               \
    I(prompt)                                                         \
    I(computed)                                                       \
    I(output)                                                         \
    I(max_tokens)                                                     \
    I(preempted)                                                      \
    I(rank)

#define PROTO_EVENT(S, I, N, B)                                                       \
    S(id, PROTO_ID_CAP)                                                               \
    I(time_us)                                                                        \
    S(kind, 48)              /* "key.revoke", "adapter.load", "request.failed" ... */ \
    S(level, PROTO_WORD_CAP) /* "audit", "info", "warning", "error" */                \
    S(tenant, PROTO_NAME_CAP)                                                         \
    S(object, PROTO_MODEL_CAP)                                                        \
    S(detail, PROTO_TEXT_CAP)                                                         \
    S(actor, PROTO_ID_CAP) /* key that did it; empty: the server */

#define PROTO_MEMBER_S(f, cap) char f[cap];
#define PROTO_MEMBER_I(f)      int64_t f;
#define PROTO_MEMBER_N(f)      double f;
#define PROTO_MEMBER_B(f)      bool f;
#define PROTO_STRUCT(type, LIST)                                             \
    typedef struct type {                                                    \
        LIST(PROTO_MEMBER_S, PROTO_MEMBER_I, PROTO_MEMBER_N, PROTO_MEMBER_B) \
    } type;

PROTO_STRUCT(proto_server, PROTO_SERVER)
PROTO_STRUCT(proto_totals, PROTO_TOTALS)
PROTO_STRUCT(proto_rates, PROTO_RATES)
PROTO_STRUCT(proto_engine, PROTO_ENGINE)
PROTO_STRUCT(proto_class, PROTO_CLASS)
PROTO_STRUCT(proto_tenant, PROTO_TENANT)
PROTO_STRUCT(proto_adapter, PROTO_ADAPTER)
PROTO_STRUCT(proto_request, PROTO_REQUEST)
PROTO_STRUCT(proto_event, PROTO_EVENT)

/* Beside a class's scalars: counts since the start by bucket, bounds in "hist_bounds_us" of the
 * answer; the last bucket holds what is beyond the last bound. */
#define PROTO_CLASS_TTFT_HIST "ttft_hist"
#define PROTO_CLASS_TPOT_HIST "tpot_hist"
#define PROTO_HIST_BOUNDS     "hist_bounds_us"

/* The tables with changing rows, by the names of their members. */
typedef enum { TABLE_TENANTS, TABLE_ADAPTERS, TABLE_REQUESTS, TABLE_EVENTS, TABLES } proto_table;

/* ---- the lists as data --------------------------------------------------------- */

typedef enum { PROTO_TEXT, PROTO_INT, PROTO_NUM, PROTO_BOOL } proto_kind;

typedef struct proto_field {
    const char *name; /* NULL: the end of a list */
    proto_kind kind;
    size_t offset, cap; /* cap: of texts */
} proto_field;

#define PROTO_ROW_S(f, c) {#f, PROTO_TEXT, offsetof(PROTO_HERE, f), c},
#define PROTO_ROW_I(f)    {#f, PROTO_INT, offsetof(PROTO_HERE, f), 0},
#define PROTO_ROW_N(f)    {#f, PROTO_NUM, offsetof(PROTO_HERE, f), 0},
#define PROTO_ROW_B(f)    {#f, PROTO_BOOL, offsetof(PROTO_HERE, f), 0},
#define PROTO_ROWS(LIST)                                         \
    {                                                            \
        LIST(PROTO_ROW_S, PROTO_ROW_I, PROTO_ROW_N, PROTO_ROW_B) \
        {                                                        \
            NULL, PROTO_TEXT, 0, 0                               \
        }                                                        \
    }
#define PROTO_DATA __attribute__((unused)) static const

#define PROTO_HERE proto_server
PROTO_DATA proto_field proto_server_fields[] = PROTO_ROWS(PROTO_SERVER);
#undef PROTO_HERE
#define PROTO_HERE proto_totals
PROTO_DATA proto_field proto_totals_fields[] = PROTO_ROWS(PROTO_TOTALS);
#undef PROTO_HERE
#define PROTO_HERE proto_rates
PROTO_DATA proto_field proto_rates_fields[] = PROTO_ROWS(PROTO_RATES);
#undef PROTO_HERE
#define PROTO_HERE proto_engine
PROTO_DATA proto_field proto_engine_fields[] = PROTO_ROWS(PROTO_ENGINE);
#undef PROTO_HERE
#define PROTO_HERE proto_class
PROTO_DATA proto_field proto_class_fields[] = PROTO_ROWS(PROTO_CLASS);
#undef PROTO_HERE
#define PROTO_HERE proto_tenant
PROTO_DATA proto_field proto_tenant_fields[] = PROTO_ROWS(PROTO_TENANT);
#undef PROTO_HERE
#define PROTO_HERE proto_adapter
PROTO_DATA proto_field proto_adapter_fields[] = PROTO_ROWS(PROTO_ADAPTER);
#undef PROTO_HERE
#define PROTO_HERE proto_request
PROTO_DATA proto_field proto_request_fields[] = PROTO_ROWS(PROTO_REQUEST);
#undef PROTO_HERE
#define PROTO_HERE proto_event
PROTO_DATA proto_field proto_event_fields[] = PROTO_ROWS(PROTO_EVENT);
#undef PROTO_HERE

PROTO_DATA char *const proto_table_names[TABLES] = {"tenants", "adapters", "requests", "events"};
PROTO_DATA proto_field *const proto_table_fields[TABLES] = {
    proto_tenant_fields, proto_adapter_fields, proto_request_fields, proto_event_fields};
PROTO_DATA size_t proto_table_bytes[TABLES] = {sizeof(proto_tenant), sizeof(proto_adapter),
                                               sizeof(proto_request), sizeof(proto_event)};

#endif
