/* server.h -- everything a handler may reach, made once by main.c.
 *
 * Ownership: main.c makes and frees; handlers borrow.  Threads: read-only after the start but for
 * what is marked.
 */
#ifndef GATEWAY_SERVER_H
#define GATEWAY_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "adapters/residency/residency.h"
#include "adapters/store/registry.h"
#include "adapters/store/staging.h"
#include "adapters/store/upload.h"
#include "engine/backend.h"
#include "engine/chat/chat.h"
#include "engine/chat/thinking.h"
#include "engine/grammar/grammar.h"
#include "engine/model/model.h"
#include "engine/model/pooled.h"
#include "engine/sched/sched.h"
#include "engine/text/tokenizer.h"
#include "gateway/config/classes.h"
#include "gateway/config/config.h"
#include "gateway/config/live.h"
#include "gateway/http/exchange.h"
#include "gateway/http/host.h"
#include "gateway/inflight.h"
#include "gateway/limits.h"
#include "storage/ledger.h"
#include "storage/meter_file.h"
#include "storage/seal/seal.h"
#include "storage/settler.h"
#include "storage/store.h"

/* X(NAME, word): what became of the keys and values of a request that was taken of another node. */
#define MOVED_KV_LIST(X)                                                                           \
    X(TAKEN, taken)     /* they came from there */                                                 \
    X(HERE, here)       /* the prefix cache had them, or there is no whole page */                 \
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
    /* Running requests: given to other nodes, taken back from them, taken of others. */
    _Atomic uint64_t moves_out, moves_back, moves_in;
    _Atomic uint64_t moved_kv[MOVED_KV_ENDS], moved_kv_tokens; /* tokens whose pages came */
} server_counters;

/* Batches, for /metrics; the runner writes, any thread reads. */
typedef struct batch_counts {
    _Atomic int n_batches, n_lines;              /* that have not ended; that run now */
    _Atomic int allowed;                         /* lines that may run now */
    _Atomic uint64_t completed, failed, retried; /* lines since the start */
} batch_counts;

struct vocabularies;

typedef struct server {
    const config *cfg; /* as at the start; what is live of it: exchange.conf, or a pin of */
    live *live;
    struct change *change; /* NULL in tests of parts */
    store *store;
    meter_file *meters;
    settler *settler;
    registry *registry;
    devmem *arena; /* the device's: KV pages and adapters */
    residency *residency;
    backend *be;
    struct spans *spans;  /* NULL: no traces are sent */
    model *model, *draft; /* draft: NULL where none is configured */
    tokenizer *tok;
    pooled_config pooled; /* what prompts become that are embedded or classified */
    grammar_maker *grammars;
    struct vocabularies *vocabularies; /* openai/vocabulary.h */
    struct stacks *stacks;             /* adapters/store/stacks.h */
    chat_template *chat;               /* NULL: the model has none that we know */
    char chat_problem[248];            /* why not */
    thinking_style thinking;           /* how answers write their thoughts; NONE: they stay text */
    sched *sched;
    limits *limits;
    limits *token_limits; /* of /tokenize and /detokenize: requests, counted apart */
    struct stats *stats;  /* stats.h; NULL in tests of parts */
    inflight *inflight;
    struct batch_runner *batches;  /* gateway/batches/runner.h */
    struct background *background; /* gateway/doors/background.h; NULL: none are taken */
    struct mover *mover;           /* gateway/move/mover.h; NULL: nothing is moved */
    struct firsts *firsts;         /* gateway/rest/adapter_first.h; with its call, for openai/ */
    err_code (*first_fetch)(exchange *x, const char *name, int64_t until_us, int64_t *retry_ms,
                            err *e);
    struct effect_probe *effects; /* gateway/rest/effect.h; NULL: nothing is measured */
    storeroom *room;              /* above the floor of the disk */
    depot *depot;                 /* the fleet's object store; NULL: there is none */
    _Atomic uint64_t disk_floor_bytes;
    int64_t tenant_share; /* quota on the disk of tenants, where nothing says another */
    upload_env upload;
    staging *staging;     /* interrupted and running resumable uploads */
    _Atomic int fetching; /* adapters that are fetched from a source now */
    char class_name[SLO_CLASS_MAX][CLASS_WORD_MAX + 1]; /* in the configuration's order */
    int n_class;
    char fingerprint[32]; /* system_fingerprint */
    bool is_sealed;       /* what tenants store is encrypted with: */
    uint8_t key[SEAL_KEY_BYTES];
    uint8_t
        resume_key[SEAL_KEY_BYTES]; /* of tickets for streams: the same, or this process's own */
    int64_t started_wall_us;
    http_host http; /* what the listeners need of us */
    atomic_bool ready;
    atomic_bool cut;          /* the drain is over: what still runs is cancelled */
    atomic_bool drain_wanted; /* set by the admin API, seen by main.c */
    server_counters count;
    batch_counts batch_count;
} server;

const char *moved_kv_name(int end);

/* Class for a service_tier (NULL: the tenant's default): index, or -1 with the reason. */
int server_class_of(const config *c, const tenant *t, const char *tier, char *reason, size_t cap);

/* Milliseconds after which a refused request may try again: when the predicted first token would
 * meet its target; from 250 to 60,000. */
int64_t server_retry_after_ms(server *s, const request *rq);

/* How much the tenant's adapters may take. */
storeroom_quota server_quota(const exchange *x, const tenant *t);

/* What an upload may be and needs, for uploads of this exchange. */
upload_env server_upload(const exchange *x);

/* Quota on the disk of tenants without one of their own. */
int64_t server_tenant_bytes(const exchange *x);

/* With what tenants' stored bytes are sealed; NULL: they are not. */
seal_key server_seal_key(const server *s);

void server_count_usage(server *s, const usage_row *rows, size_t n);

#endif
