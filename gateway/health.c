/* health.c -- /healthz, /readyz, and Prometheus' text format on /metrics.
 *
 * Nothing here carries a tenant's or an adapter's name: the number of series is fixed.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/handlers.h"
#include "gateway/server.h"

enum { STALL_US = 30 * 1000000, TEXT_BYTES = 16384 };

void health_live(exchange *x)
{
    sched_stats st;
    sched_stats_get(x->server->sched, &st);
    int64_t silent = clock_now_us() - sched_heartbeat_us(x->server->sched);
    bool ok = st.healthy && silent < STALL_US;
    const char *body = ok           ? "{\"status\":\"ok\"}"
                       : st.healthy ? "{\"status\":\"stalled\"}"
                                    : "{\"status\":\"device failed\"}";
    exchange_reply(x, ok ? 200 : 503, "application/json", body, strlen(body));
}

void health_ready(exchange *x)
{
    sched_stats st;
    sched_stats_get(x->server->sched, &st);
    bool draining = atomic_load(&x->server->draining);
    bool ok = atomic_load(&x->server->ready) && !draining && st.healthy;
    const char *body = ok         ? "{\"status\":\"ready\"}"
                       : draining ? "{\"status\":\"draining\"}"
                                  : "{\"status\":\"not ready\"}";
    exchange_reply(x, ok ? 200 : 503, "application/json", body, strlen(body));
}

/* --------------------------------------------------------------------- metrics -- */

typedef struct {
    char text[TEXT_BYTES];
    size_t len;
} page;

static void put(page *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(page *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(p->text + p->len, sizeof(p->text) - p->len, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n < sizeof(p->text) - p->len) p->len += (size_t)n;
}

static void metric(page *p, const char *name, const char *type, const char *help, double v)
{
    put(p, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", name, help, name, type, name, v);
}

static void put_engine(page *p, const sched_stats *t)
{
    metric(p, "lorad_requests_running", "gauge", "Sequences in the batch", t->n_running);
    metric(p, "lorad_requests_waiting", "gauge", "Requests in the queue", t->n_waiting);
    metric(p, "lorad_kv_pages", "gauge", "KV pages in all", t->n_pages);
    metric(p, "lorad_kv_pages_used", "gauge", "KV pages held by sequences", t->n_pages_used);
    metric(p, "lorad_kv_pages_cached", "gauge", "KV pages of the prefix cache that nobody holds",
           t->n_pages_cached);
    metric(p, "lorad_steps_total", "counter", "Forward passes", (double)t->n_steps);
    metric(p, "lorad_step_rows_total", "counter", "Rows of all steps", (double)t->n_rows);
    metric(p, "lorad_step_seconds_total", "counter", "Time in steps", (double)t->busy_us / 1e6);
    metric(p, "lorad_cost_model_error_ratio", "gauge",
           "Mean difference of a step's predicted time from what it took, over that",
           t->cost_error);
    metric(p, "lorad_prefill_tokens_total", "counter", "Prompt tokens computed",
           (double)t->n_prefill_tokens);
    metric(p, "lorad_preemptions_total", "counter", "Sequences that gave their pages back",
           (double)t->n_preempted);
    metric(p, "lorad_cancelled_total", "counter", "Requests cancelled by their client",
           (double)t->n_cancelled);
    metric(p, "lorad_failed_total", "counter", "Requests that failed in the engine",
           (double)t->n_failed);
}

static void put_adapters(page *p, server *s)
{
    residency_stats r;
    registry_totals g;
    residency_stats_get(s->residency, &r);
    registry_totals_get(s->registry, 0, &g);
    metric(p, "lorad_adapters_registered", "gauge", "Adapter names", (double)g.n_adapters);
    metric(p, "lorad_adapters_resident", "gauge", "Adapter versions in memory", r.n_resident);
    metric(p, "lorad_adapters_loading", "gauge", "Adapter versions on their way", r.n_loading);
    metric(p, "lorad_adapter_memory_bytes", "gauge", "Memory of resident adapters",
           (double)r.used_bytes);
    metric(p, "lorad_adapter_memory_budget_bytes", "gauge", "Budget of that memory",
           (double)r.budget_bytes);
    metric(p, "lorad_adapter_loads_total", "counter", "Adapters loaded from disk",
           (double)r.n_loads);
    metric(p, "lorad_adapter_evictions_total", "counter", "Adapters evicted",
           (double)r.n_evictions);
    metric(p, "lorad_adapter_load_seconds_total", "counter", "Time spent loading adapters",
           (double)r.load_us_sum / 1e6);
}

static void put_http(page *p, server *s)
{
    static const char *const classes[] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
    put(p, "# HELP lorad_http_requests_total Answers by status class\n"
           "# TYPE lorad_http_requests_total counter\n");
    for (int i = 0; i < 6; i++) {
        put(p, "lorad_http_requests_total{status=\"%s\"} %llu\n", classes[i],
            (unsigned long long)atomic_load(&s->count.requests[i]));
    }
    put(p, "# HELP lorad_tokens_total Tokens settled in the ledger\n"
           "# TYPE lorad_tokens_total counter\n");
    put(p, "lorad_tokens_total{kind=\"prompt\"} %llu\n",
        (unsigned long long)atomic_load(&s->count.prompt_tokens));
    put(p, "lorad_tokens_total{kind=\"cached\"} %llu\n",
        (unsigned long long)atomic_load(&s->count.cached_tokens));
    put(p, "lorad_tokens_total{kind=\"output\"} %llu\n",
        (unsigned long long)atomic_load(&s->count.output_tokens));
    put(p, "# HELP lorad_ttft_seconds Time to first token\n# TYPE lorad_ttft_seconds histogram\n");
    uint64_t sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += atomic_load(&s->count.ttft_bucket[i]);
        char bound[24] = "+Inf";
        if (i < 11)
            (void)snprintf(bound, sizeof(bound), "%g", (double)server_ttft_bounds_ms[i] / 1e3);
        put(p, "lorad_ttft_seconds_bucket{le=\"%s\"} %llu\n", bound, (unsigned long long)sum);
    }
    put(p, "lorad_ttft_seconds_sum %.3f\nlorad_ttft_seconds_count %llu\n",
        (double)atomic_load(&s->count.ttft_sum_ms) / 1e3,
        (unsigned long long)atomic_load(&s->count.ttft_count));
    metric(p, "lorad_auth_failures_total", "counter", "Requests with a bad key or scope",
           (double)atomic_load(&s->count.auth_failures));
    metric(p, "lorad_rate_limited_total", "counter", "Requests refused by a limit",
           (double)atomic_load(&s->count.rate_limited));
    metric(p, "lorad_connections", "gauge", "Connections of the inference API",
           (double)atomic_load(&s->count.connections));
    put(p,
        "# HELP lorad_connections_refused_total Connections over a limit\n"
        "# TYPE lorad_connections_refused_total counter\n"
        "lorad_connections_refused_total{limit=\"max_connections\"} %llu\n"
        "lorad_connections_refused_total{limit=\"max_connections_per_ip\"} %llu\n",
        (unsigned long long)atomic_load(&s->count.refused_total),
        (unsigned long long)atomic_load(&s->count.refused_per_ip));
}

void metrics_get(exchange *x)
{
    server *s = x->server;
    page *p = arena_alloc(&x->arena, sizeof(*p));
    if (!p) {
        exchange_error(x, 503, "overloaded_error", "out_of_memory", NULL, "out of memory");
        return;
    }
    sched_stats t;
    sched_stats_get(s->sched, &t);
    put(p,
        "# HELP lorad_build_info Version and backend\n# TYPE lorad_build_info gauge\n"
        "lorad_build_info{version=\"%s\",backend=\"%s\",detail=\"%s\"} 1\n",
        LORAD_VERSION, be_caps(s->be)->name, be_caps(s->be)->detail);
    put_engine(p, &t);
    put_adapters(p, s);
    put_http(p, s);
    exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", p->text, p->len);
}
