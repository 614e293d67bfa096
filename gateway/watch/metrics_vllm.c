/* metrics_vllm.c -- the same figures under vLLM's names and labels.
 *
 * For dashboards made for vLLM, and for the endpoint picker of the Kubernetes Gateway API Inference
 * Extension, which routes by queue, KV use and the adapters in vllm:lora_requests_info (its
 * proposal 003, "Model Server Protocol").  Names that vLLM has renamed appear under both.  The
 * engine has no notion of vLLM's "swapped" queue other than requests that were pre-empted; nothing
 * is invented for what we do not have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/adapter_parts.h"
#include "gateway/engine_parts.h"
#include "gateway/process_parts.h"
#include "gateway/watch/metrics.h"

enum { NAMES_MAX = 256, LOADED_MAX = 512 };

/* Every one has these two, as vLLM's do. */
#define LABELS "engine", "0", "model_name", process_of(v->srv)->cfg->model.name

static void gauge(prom *p, const metrics_view *v, const char *name, const char *help, double value)
{
    prom_family(p, name, "gauge", help);
    prom_sample(p, value, LABELS, NULL);
}

static void counter(prom *p, const metrics_view *v, const char *name, const char *help, uint64_t n)
{
    prom_family(p, name, "counter", help);
    prom_count(p, n, LABELS, NULL);
}

/* ---------------------------------------------------------------------- adapters -- */

typedef struct {
    char text[NAMES_MAX * (ADAPTER_NAME_MAX + 1) + 1];
    size_t len;
    int n;
} name_list;

static bool has_name(const name_list *l, const char *name, size_t len)
{
    for (const char *s = l->text; *s; s += *s == ',') {
        size_t n = strcspn(s, ",");
        if (n == len && memcmp(s, name, n) == 0) return true;
        s += n;
    }
    return false;
}

/* Adapters of several tenants may have one name: the picker asks by the name that a request
 * gives.  Beyond NAMES_MAX the list is cut. */
static void add_name(name_list *l, const char *name)
{
    size_t len = strlen(name);
    if (l->n == NAMES_MAX || has_name(l, name, len)) return;
    l->len +=
        (size_t)snprintf(l->text + l->len, sizeof(l->text) - l->len, "%s%s", l->n ? "," : "", name);
    l->n++;
}

/* An idle one that is still there is worth a request as much as one that runs. */
static void add_resident(name_list *l, const metrics_view *v)
{
    for (size_t i = 0; i < v->n_loaded; i++) {
        const adapter_version *held;
        err e;
        if (v->loaded[i].state != RESIDENCY_RESIDENT) continue;
        if (registry_acquire_id(registry_of(v->srv), v->loaded[i].version_id, &held, &e)) continue;
        add_name(l, held->name);
        registry_release(registry_of(v->srv), held);
    }
}

/* vLLM's word for where it is: in the device's memory, in a copy in host memory; NULL: in
 * neither. */
static const char *level_of(const residency_row *r)
{
    return r->state == RESIDENCY_RESIDENT ? "gpu" : r->state == RESIDENCY_HOST ? "cpu" : NULL;
}

static void put_loaded(prom *p, const metrics_view *v)
{
    residency_stats r;
    int n = 0;
    residency_stats_get(residency_of(v->srv), &r);
    gauge(p, v, "vllm:num_gpu_loaded_lora_adapters", "Adapters on the device", r.n_resident);
    gauge(p, v, "vllm:num_cpu_loaded_lora_adapters", "Memory of adapter copies in host memory",
          r.n_host);
    for (size_t i = 0; i < v->n_loaded && n < LOADED_MAX; i++) {
        const adapter_version *held;
        err e;
        char rank[16], version[16];
        const char *level = level_of(&v->loaded[i]);
        if (!level) continue;
        if (registry_acquire_id(registry_of(v->srv), v->loaded[i].version_id, &held, &e)) continue;
        if (n++ == 0)
            prom_family(p, "vllm:lora_adapter_loaded", "gauge",
                        "1 for each adapter version in memory");
        snprintf(rank, sizeof(rank), "%d", held->rank_max);
        snprintf(version, sizeof(version), "%d", held->version);
        prom_sample(p, 1, LABELS, "adapter_name", held->name, "version", version, "level", level,
                    "pinned", v->loaded[i].pinned ? "true" : "false", "rank", rank, NULL);
        registry_release(registry_of(v->srv), held);
    }
}

static void put_lora(prom *p, const metrics_view *v)
{
    name_list *running = calloc(2, sizeof(*running)), *waiting = running + 1;
    if (!running) {
        p->failed = true;
        return;
    }
    for (int i = 0; i < v->n_adapters; i++) {
        const telemetry_adapter *a = &v->adapters[i];
        const adapter_version *held;
        err e;
        if (registry_acquire_id(registry_of(v->srv), a->id, &held, &e))
            continue; /* gone meanwhile */
        if (a->running > 0) add_name(running, held->name);
        if (a->waiting > 0) add_name(waiting, held->name);
        registry_release(registry_of(v->srv), held);
    }
    add_resident(running, v);
    char most[24];
    snprintf(most, sizeof(most), "%lld", (long long)process_of(v->srv)->cfg->engine.max_seqs);
    prom_family(p, "vllm:lora_requests_info", "gauge",
                "Adapters of running (with all resident ones) and of waiting requests; the value "
                "is the time of this line");
    prom_sample(p, (double)clock_wall_us() / 1e6, "max_lora", most, "running_lora_adapters",
                running->text, "waiting_lora_adapters", waiting->text, NULL);
    free(running);
}

/* ------------------------------------------------------------------------ state -- */

static void put_state(prom *p, const metrics_view *v)
{
    const sched_stats *t = &v->sched;
    double use = t->n_pages > 0 ? (double)t->n_pages_used / t->n_pages : 0;
    gauge(p, v, "vllm:num_requests_running", "Sequences that run", t->n_running);
    gauge(p, v, "vllm:num_requests_waiting", "Requests in the queue", t->n_waiting);
    gauge(p, v, "vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1", use);
    gauge(p, v, "vllm:gpu_cache_usage_perc", "Share of KV pages in use, 0 to 1", use);
    char block[16], pages[16];
    snprintf(block, sizeof(block), "%d", sched_page_tokens(sched_of(v->srv)));
    snprintf(pages, sizeof(pages), "%d", t->n_pages);
    prom_family(p, "vllm:cache_config_info", "gauge", "Configuration of the KV cache");
    prom_sample(p, 1, "block_size", block, "num_gpu_blocks", pages, "enable_prefix_caching",
                process_of(v->srv)->cfg->engine.prefix_cache ? "True" : "False", LABELS, NULL);
    counter(p, v, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
            t->n_looked_up_tokens);
    counter(p, v, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache",
            t->n_cached_tokens);
    counter(p, v, "vllm:num_preemptions_total",
            "Pre-emptions: sequences that lost their KV pages to others", t->n_preempted);
    counter(p, v, "vllm:prompt_tokens_total", "Prompt tokens computed or found",
            t->n_prompt_tokens);
    counter(p, v, "vllm:generation_tokens_total", "Output tokens", t->n_output_tokens);
}

static void put_success(prom *p, const metrics_view *v)
{
    static const struct {
        const char *reason;
        request_outcome outcome;
    } list[] = {{"stop", OUTCOME_STOP},
                {"length", OUTCOME_LENGTH},
                {"abort", OUTCOME_CANCELLED},
                {"error", OUTCOME_FAILED}};
    prom_family(p, "vllm:request_success_total", "counter", "Ended requests");
    for (size_t k = 0; k < sizeof(list) / sizeof(list[0]); k++) {
        uint64_t n = 0;
        for (int i = 0; i < engine_of(v->srv)->n_class; i++)
            n += v->classes[i].outcome[list[k].outcome];
        prom_count(p, n, LABELS, "finished_reason", list[k].reason, NULL);
    }
}

static void merge(histogram_counts *to, const histogram_counts *h)
{
    to->scale = h->scale;
    to->sum += h->sum;
    to->count += h->count;
    for (int i = 0; i <= h->scale->n; i++) to->bucket[i] += h->bucket[i];
}

static void put_series(prom *p, const metrics_view *v)
{
    static const struct {
        const char *name, *help;
        int series;
    } list[] = {
        {"vllm:time_to_first_token_seconds", "Time from arrival to the first token", SERIES_TTFT},
        {"vllm:inter_token_latency_seconds", "Time from one token to the next", SERIES_ITL},
        {"vllm:time_per_output_token_seconds", "Time from one token to the next", SERIES_ITL},
        {"vllm:request_time_per_output_token_seconds",
         "A request's mean time per token after the first", SERIES_TPOT},
        {"vllm:e2e_request_latency_seconds", "Time from arrival to end", SERIES_E2E},
        {"vllm:request_queue_time_seconds", "Time from arrival to the first slot", SERIES_QUEUE},
        {"vllm:request_inference_time_seconds", "Time from the first slot to the end",
         SERIES_INFERENCE},
        {"vllm:request_prefill_time_seconds", "Time from the first slot to the first token",
         SERIES_PREFILL},
        {"vllm:request_decode_time_seconds", "Time from the first to the last token",
         SERIES_DECODE},
        {"vllm:request_prompt_tokens", "Tokens of a prompt", SERIES_PROMPT},
        {"vllm:request_generation_tokens", "Output tokens of a request", SERIES_OUTPUT},
        {"vllm:request_params_max_tokens", "Value of max_tokens", SERIES_MAX_TOKENS},
    };
    for (size_t k = 0; k < sizeof(list) / sizeof(list[0]); k++) {
        histogram_counts all = {0};
        for (int i = 0; i < engine_of(v->srv)->n_class; i++)
            merge(&all, &v->classes[i].series[list[k].series]);
        prom_family(p, list[k].name, "histogram", list[k].help);
        prom_histogram(p, &all, all.scale, LABELS, NULL);
    }
    prom_family(p, "vllm:iteration_tokens_total", "histogram", "Tokens (rows) in a step");
    prom_histogram(p, &v->steps, v->steps.scale, LABELS, NULL);
}

void metrics_vllm(prom *p, const metrics_view *v)
{
    put_state(p, v);
    put_success(p, v);
    put_series(p, v);
    put_lora(p, v);
    put_loaded(p, v);
}
