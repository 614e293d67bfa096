/* metrics.h -- the parts of /metrics.  Threads: a worker of the metrics listener. */
#ifndef GATEWAY_WATCH_METRICS_H
#define GATEWAY_WATCH_METRICS_H

#include "adapters/residency/residency.h"
#include "engine/sched/sched.h"
#include "gateway/watch/prom.h"

typedef struct server server;

/* One picture of the server, from which both sets of names are written. */
typedef struct metrics_view {
    server *srv;
    sched_stats sched;
    telemetry_class classes[SLO_CLASS_MAX];
    lengths_record lengths[SLO_CLASS_MAX];
    histogram_counts steps;
    telemetry_tenant *tenants; /* malloced; `others` last */
    int n_tenants;
    telemetry_adapter *adapters; /* malloced */
    int n_adapters;
    residency_row *loaded; /* malloced; adapters that are more than files */
    size_t n_loaded;
} metrics_view;

/* metrics_vllm.c: what vLLM 0.9 and later export, under their names. */
void metrics_vllm(prom *p, const metrics_view *v);

#endif
