/* process_parts.h -- the state of a server as a process: its options, its counts, how it ends.
 *
 * Ownership: start/parts.c makes and frees; handlers borrow.  Threads: read-only after the start
 * except for atomic fields; what a pointer leads to says for itself.
 */
#ifndef GATEWAY_PROCESS_PARTS_H
#define GATEWAY_PROCESS_PARTS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "gateway/config/live.h"
#include "gateway/http/host.h"

typedef struct server server;

/* X(NAME, word): what became of the keys and values of a request that was taken of another node. */
#define MOVED_KV_LIST(X)                                                                           \
    X(TAKEN, taken)     /* they came from there */                                                 \
    X(HERE, here)       /* the prefix cache had them, or there is no whole page or snapshot */     \
    X(CHEAPER, cheaper) /* computing them takes less time */                                       \
    X(OFF, off)         /* by server.fleet_kv or engine.prefix_cache, or for a model of streams */ \
    X(REFUSED, refused) /* that node has none, or others than are needed here */                   \
    X(DAMAGED, damaged) /* their digest is another one */                                          \
    X(LOST, lost)       /* that node does not answer, ended in the middle, or is slow */           \
    X(FULL, full)       /* there is no room for them, or the engine had no time */

#define MOVED_KV_ENUM_(name, word) MOVED_KV_##name,
typedef enum { MOVED_KV_LIST(MOVED_KV_ENUM_) MOVED_KV_ENDS } moved_kv;
#undef MOVED_KV_ENUM_

/* Counters for /metrics, beside http.count; atomic, any thread. */
typedef struct server_counters {
    _Atomic uint64_t prompt_tokens, cached_tokens, output_tokens;
    _Atomic uint64_t auth_failures, rate_limited, uploads, uploads_refused;
    /* Running requests: given to other nodes, taken back from them, taken of others; prompts that
     * others have computed. */
    _Atomic uint64_t moves_out, moves_back, moves_in, moves_prompts;
    _Atomic uint64_t moved_kv[MOVED_KV_ENDS], moved_kv_tokens; /* tokens whose pages came */
} server_counters;

/* Batches, for /metrics; the runner writes, any thread reads. */
typedef struct batch_counts {
    _Atomic int n_batches, n_lines;              /* that have not ended; that run now */
    _Atomic int allowed;                         /* lines that may run now */
    _Atomic uint64_t completed, failed, retried; /* lines since the start */
} batch_counts;

typedef struct process_parts {
    const config *cfg; /* as at the start; what is live of it: exchange.conf, or a pin of */
    live *live;
    struct change *change;         /* NULL in tests of parts */
    struct stats *stats;           /* stats.h; NULL in tests of parts */
    struct webhooks *webhooks;     /* NULL: no events are posted */
    struct self_check *self_check; /* storage/watch/self_check.h; NULL: off */
    struct batch_runner *batches;  /* gateway/batches/runner.h */
    struct background *background; /* gateway/doors/background.h; NULL: none are accepted */
    http_host http;                /* what the listeners need */
    int64_t started_wall_us;
    _Atomic uint64_t disk_floor_bytes;
    atomic_bool ready;
    atomic_bool cut;          /* the drain is over: what still runs is cancelled */
    atomic_bool drain_wanted; /* set by the admin API, seen by main.c */
    server_counters count;
    batch_counts batch_count;
} process_parts;

/* Those of `s`. */
process_parts *process_of(const server *s);

/* The word of MOVED_KV_LIST, for metrics and logs; static. */
const char *moved_kv_name(int end);

#endif
