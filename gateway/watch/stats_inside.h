/* stats_inside.h -- what stats.c and stats_tables.c share.  Threads: with stats.mu held. */
#ifndef GATEWAY_WATCH_STATS_INSIDE_H
#define GATEWAY_WATCH_STATS_INSIDE_H

#include "adapters/residency/residency.h"
#include "adapters/store/registry.h"
#include "engine/base/lock.h"
#include "engine/sched/board.h"
#include "gateway/engine_parts.h"
#include "gateway/limits.h"
#include "gateway/process_parts.h"
#include "gateway/watch/ended.h"
#include "gateway/watch/refusals.h"
#include "gateway/watch/stats.h"
#include "gateway/watch/stats_book.h"
#include "gateway/watch/stats_history.h"
#include "gateway/watch/stats_journal.h"
#include "storage/settler.h"

typedef struct server server;

enum {
    SAMPLES = 16,       /* one a second: rates are over the last ten */
    CLASS_SAMPLES = 16, /* one in five seconds: percentiles are over the last minute */
    CLASS_SAMPLE_S = 5,
    PENDING_MAX = 256, /* events between two pictures */
    EVENTS_MAX = 1000, /* kept */
};

/* The counts by cause, into a row that has PROTO_MISSED. */
#define PUT_CAUSE_(NAME, word) put_to_->missed_##word = (int64_t)put_from_[MISS_##NAME];
#define PUT_CAUSES(row, counts)                              \
    do {                                                     \
        __typeof__(row) put_to_ = (row);                     \
        const __typeof__((counts)[0]) *put_from_ = (counts); \
        MISS_LIST(PUT_CAUSE_)                                \
    } while (0)

typedef struct pending_event {
    int64_t wall_us;
    uint64_t tenant_id, actor;
    proto_event row; /* without id, tenant, actor, time */
} pending_event;

typedef struct id_index {
    uint64_t id;
    uint32_t index;
} id_index;

/* What is known of an adapter beside its name, which stands in its row in the journal alone: there
 * are ten thousand of these. */
typedef struct adapter_line {
    uint64_t id, tenant_id, version_id, key;
    int64_t bytes, memory_bytes, hits, output_tokens, last_used_s, load_us, wait_us;
    float ttft_p50_ms, ttft_p99_ms; /* negative: none */
    int32_t version, previous, versions, rank, in_use, requests;
    uint32_t loads, met, missed, cause[MISS_CAUSES];
    uint64_t version_loads; /* those of its version that are in `loads` */
    uint8_t tier;           /* residency_state */
    bool pinned;
    bool known; /* `tier` is valid: it was read at least once */
    bool hot;   /* is or was in memory or in use at the last picture */
    bool hit;   /* requests ended since then */
} adapter_line;

/* All of the registry at one time, and three ways to find one. */
typedef struct adapter_list {
    adapter_line *line; /* [n], by id */
    size_t n;
    id_index *by_version; /* [n_slot], a hash table of places in `line`; id 0: free */
    size_t n_slot;
    id_index *by_key;    /* [n], sorted, of places in `line` */
    id_index *by_tenant; /* [n_tenant], sorted; index: how many adapters it has */
    size_t n_tenant;
} adapter_list;

/* What moves in a row, as it was at the last picture. */
typedef struct adapter_live {
    int64_t load_us;
    int32_t in_use, requests;
    uint32_t loads;
    uint8_t tier;
    bool looked, pinned;
} adapter_live;

typedef struct class_sample {
    int64_t at_us;
    book_counts counts[SLO_CLASS_MAX];
} class_sample;

typedef struct totals_sample {
    int64_t at_us;
    proto_totals totals;
} totals_sample;

typedef struct tenant_list {
    tenant *row; /* [n], by id */
    limits_usage *usage;
    size_t n, cap;
    uint64_t seen; /* tenants_changes() before they were listed; 0: never */
} tenant_list;

/* Adapters in memory, as of the latest picture that read them. */
typedef struct tier_list {
    residency_row *row;
    size_t n, cap;
    uint64_t seen; /* residency_changes() before they were read; 0: read them again */
} tier_list;

/* The state that events have reported last. */
typedef struct told_state {
    uint64_t n_events; /* numbers given to events */
    bool was_healthy;
    bool had_reserve;       /* of the database, on the disk */
    uint64_t restarts_seen; /* of the engine */
    spool_state spool;      /* SPOOL_OK: no event of the spool is open */
    bool disk_low;          /* an event says that uploads are refused */
    int64_t certificate_s;  /* expiry of the certificate; written without mu, by the tick alone */
} told_state;

struct stats {
    struct server *srv;
    book *book;
    ended *ended;
    refusals *refusals;
    stats_history *history;
    board_picture inside; /* the tick's: all requests, to see who is late */
    int64_t asked_us;     /* for the next of it */
    uint64_t epoch;       /* first half of a cursor: another process, another epoch */

    lock mu; /* guards all below but the events' own part */
    journal *journal;
    const config *conf; /* what is in force, while a picture is taken */
    int64_t taken_us;
    int64_t wall_minus_mono; /* taken once: what was told of a request does not wander */
    proto_server server;
    proto_totals totals;
    proto_engine engine;
    proto_class classes[SLO_CLASS_MAX];
    book_counts class_counts[SLO_CLASS_MAX];
    totals_sample sample[SAMPLES];
    class_sample class_ring[CLASS_SAMPLES];
    uint64_t n_sample, n_class_sample;
    board_picture picture;

    tenant_list tenants;
    adapter_list adapters;
    uint64_t registry_seen;
    bool listed;
    tier_list tiers;
    bool adapters_moved; /* read all tiers again, whatever residency says */
    registry_totals registered;
    uint64_t counted_at;
    bool counted;

    told_state told;

    lock events_mu;
    pending_event pending[PENDING_MAX];
    uint64_t n_pending, n_taken; /* ever put, ever taken */
};

/* stats_tables.c */
void stats_adapters_free(adapter_list *l);
void stats_take_tenants(stats *st); /* names first: the others' rows hold them */
void stats_put_tenants(stats *st);  /* after the adapters: they are counted */
void stats_take_adapters(stats *st);
const registry_totals *stats_registered(stats *st);
void stats_take_requests(stats *st);
void stats_take_events(stats *st);
void stats_seed_events(stats *st);

#endif
