/* metrics.c -- GET /metrics in Prometheus' text format, under our own names.
 *
 * Series are bounded: classes are at most eight, tenants by metrics.max_tenants (those beyond share
 * "_other", which no tenant can be called), adapters by metrics.max_adapters.  Every histogram has
 * the same bounds (engine/watch/histogram.h).
 */
#include "gateway/watch/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/program/nice_pool.h"
#include "gateway/adapter_parts.h"
#include "gateway/descriptors.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"
#include "gateway/watch/spans.h"
#include "gateway/watch/stats.h"
#include "gateway/watch/stats_book.h"
#include "gateway/watch/webhooks.h"
#include "storage/disk.h"
#include "storage/settler.h"
#include "storage/tenants.h"
#include "storage/watch/self_check.h"

static const char other[] = "_other";

/* ---------------------------------------------------------------- the scheduler -- */

static void put_engine(prom *p, const metrics_view *v, int64_t max_queued)
{
    const sched_stats *t = &v->sched;
    server *s = v->srv;
    prom_gauge(p, "lorad_requests_running", "Sequences that run", t->n_running);
    prom_gauge(p, "lorad_requests_waiting", "Requests in the queue", t->n_waiting);
    prom_gauge(p, "lorad_queue_capacity", "Maximum of waiting requests (engine.max_queued)",
               (double)max_queued);
    prom_gauge(p, "lorad_seats", "Slots: maximum of sequences that run at once (engine.max_seqs)",
               (double)process_of(s)->cfg->engine.max_seqs);
    prom_gauge(p, "lorad_kv_pages", "KV pages in total", t->n_pages);
    prom_gauge(p, "lorad_kv_pages_used", "KV pages in use by sequences", t->n_pages_used);
    prom_gauge(p, "lorad_kv_pages_cached", "KV pages of the prefix cache that no sequence uses",
               t->n_pages_cached);
    prom_counter(p, "lorad_steps_total", "Forward passes", t->n_steps);
    prom_counter(p, "lorad_engine_steps_ahead_total",
                 "Forward passes that were enqueued while another one ran", t->n_steps_ahead);
    prom_counter(p, "lorad_engine_rows_discarded_total",
                 "Tokens computed ahead and discarded, because their request had ended",
                 t->n_discarded);
    prom_counter(p, "lorad_step_rows_total", "Tokens (rows) of all steps", t->n_rows);
    prom_counter(p, "lorad_engine_streams_out_total",
                 "Times that a stream skipped a step in favour of more urgent ones", t->n_out);
    prom_family(p, "lorad_speculated_tokens_total", "counter",
                "Draft tokens of speculation, by result and source");
    for (int i = 0; i < GUESS_SOURCES; i++) {
        static const char *const source[] = {"lookup", "form", "draft"};
        uint64_t wrong = t->guess.made_by[i] - t->guess.right_by[i];
        prom_count(p, t->guess.right_by[i], "result", "accepted", "source", source[i], NULL);
        prom_count(p, wrong, "result", "rejected", "source", source[i], NULL);
    }
    prom_family(p, "lorad_draft_seconds_total", "counter", "Time in passes of the draft model");
    prom_sample(p, (double)t->guess.draft_us / 1e6, NULL);
    prom_family(p, "lorad_draft_kv_bytes", "gauge", "Memory of the draft model's KV pages");
    prom_count(p, t->guess.draft_used_bytes, "use", "kv", NULL);
    prom_count(p, t->guess.draft_bytes - t->guess.draft_used_bytes, "use", "free", NULL);
    const state_counts *st = &t->state;
    int unused = st->n_slots + st->n_spare - st->n_used - st->n_spare_used;
    prom_family(p, "lorad_state_bytes", "gauge",
                "Memory for states of sequences (models with recurrent layers), and for copies of "
                "them during speculation");
    prom_count(p, (size_t)st->n_used * st->bytes_each, "use", "running", NULL);
    prom_count(p, (size_t)st->n_spare_used * st->bytes_each, "use", "speculation", NULL);
    prom_count(p, (size_t)unused * st->bytes_each, "use", "free", NULL);
    prom_gauge(p, "lorad_state_snapshot_bytes", "Snapshots of states in the prefix cache",
               (double)t->snapshots.n_used * (double)t->state.bytes_each);
    prom_gauge(p, "lorad_state_snapshot_budget_bytes",
               "Memory for snapshots of states (engine.snapshot_bytes)",
               (double)t->snapshots.n_slots * (double)t->state.bytes_each);
    prom_counter(p, "lorad_state_snapshots_total", "Snapshots of states taken",
                 t->snapshots.n_taken);
    prom_counter(p, "lorad_state_snapshot_hits_total", "Requests that continued at a snapshot",
                 t->snapshots.n_hits);
    prom_counter(p, "lorad_state_snapshots_evicted_total", "Snapshots evicted for others",
                 t->snapshots.n_evicted);
    prom_family(p, "lorad_step_seconds_total", "counter", "Time in steps");
    prom_sample(p, (double)t->busy_us / 1e6, NULL);
    prom_family(p, "lorad_step_rows", "histogram", "Tokens (rows) in a step");
    prom_histogram(p, &v->steps, &histogram_tokens, NULL);
    prom_family(p, "lorad_cost_model_error_ratio", "gauge",
                "Mean relative error of a step's predicted time");
    prom_sample(p, t->cost_error, "backend", be_caps(engine_of(s)->be)->name, NULL);
    prom_family(p, "lorad_cost_model_seconds", "gauge",
                "Predicted time of a step without rows, and of one more stream's row");
    prom_sample(p, t->cost_step_us / 1e6, "part", "step", NULL);
    prom_sample(p, t->cost_row_us / 1e6, "part", "row", NULL);
    prom_counter(p, "lorad_prefill_tokens_total", "Prompt tokens computed", t->n_prefill_tokens);
    prom_counter(p, "lorad_prefix_lookup_tokens_total",
                 "Prompt tokens looked up in the prefix cache", t->n_looked_up_tokens);
    prom_counter(p, "lorad_prefix_hit_tokens_total", "Prompt tokens found in the prefix cache",
                 t->n_cached_tokens);
    prom_counter(p, "lorad_preemptions_total",
                 "Pre-emptions: sequences that lost their KV pages to others", t->n_preempted);
    prom_family(p, "lorad_swapped_requests_total", "counter",
                "Pre-empted requests whose KV was copied to host memory, and back");
    prom_count(p, t->n_swapped_out, "direction", "out", NULL);
    prom_count(p, t->n_swapped_in, "direction", "in", NULL);
    prom_family(p, "lorad_swapped_pages_total", "counter",
                "KV pages copied to host memory, and back");
    prom_count(p, t->swap.n_saved, "direction", "out", NULL);
    prom_count(p, t->swap.n_loaded, "direction", "in", NULL);
    prom_gauge(p, "lorad_swap_bytes", "KV of pre-empted requests in host memory",
               (double)t->swap.n_used * (double)t->swap.page_bytes);
    prom_gauge(p, "lorad_swap_budget_bytes",
               "Host memory for KV of pre-empted requests (engine.swap_bytes)",
               (double)t->swap.n_pages * (double)t->swap.page_bytes);
    prom_gauge(p, "lorad_swap_page_seconds", "Time to copy one page to host memory and back",
               t->swap.page_us / 1e6);
    prom_counter(p, "lorad_adapter_waits_total", "Times that a request waited for its adapter",
                 t->n_adapter_waits);
    prom_counter(p, "lorad_cancelled_total", "Requests cancelled by their client", t->n_cancelled);
    prom_counter(p, "lorad_failed_total", "Requests that failed in the engine", t->n_failed);
    prom_counter(p, "lorad_engine_restarts_total", "Restarts of the engine after device failures",
                 t->n_restarts);
    prom_gauge(p, "lorad_engine_healthy", "1: the device works; 0: it has failed", t->healthy);
    prom_gauge(p, "lorad_gpu_unused",
               "1: engine.backend = auto serves on the CPU though the machine has an NVIDIA GPU; "
               "/readyz and the log say why",
               engine_of(s)->gpu_unused[0] != 0);
    prom_gauge(p, "lorad_engine_heartbeat_age_seconds",
               "Time since the engine thread last reported",
               (double)(clock_now_us() - sched_heartbeat_us(sched_of(s))) / 1e6);
}

/* ------------------------------------------------------------------- by class -- */

static void put_targets(prom *p, const config_classes *classes)
{
    prom_family(p, "lorad_slo_target_seconds", "gauge", "Target of a class");
    for (int i = 0; i < classes->n; i++) {
        const config_class *c = &classes->each[i];
        prom_sample(p, (double)c->ttft_us / 1e6, "class", c->name, "target", "ttft", NULL);
        prom_sample(p, (double)c->tpot_us / 1e6, "class", c->name, "target", "tpot", NULL);
    }
}

static void put_outcomes(prom *p, const metrics_view *v)
{
    static const char *const targets[TARGETS] = {"ttft", "tpot", "both"};
    prom_family(p, "lorad_requests_total", "counter", "Requests (choices) by outcome");
    for (int i = 0; i < engine_of(v->srv)->n_class; i++) {
        for (int k = 0; k < OUTCOMES; k++) {
            prom_count(p, v->classes[i].outcome[k], "class", engine_of(v->srv)->class_name[i],
                       "outcome", request_outcome_name(k), NULL);
        }
    }
    prom_family(p, "lorad_slo_requests_total", "counter",
                "Complete requests by whether they met the target; target=both (goodput) also "
                "counts refused and failed ones");
    for (int i = 0; i < engine_of(v->srv)->n_class; i++) {
        const char *name = engine_of(v->srv)->class_name[i];
        for (int k = 0; k < TARGETS; k++) {
            prom_count(p, v->classes[i].met[k], "class", name, "target", targets[k], "met", "true",
                       NULL);
            prom_count(p, v->classes[i].missed[k], "class", name, "target", targets[k], "met",
                       "false", NULL);
        }
    }
}

static void put_lengths(prom *p, const metrics_view *v)
{
    prom_family(p, "lorad_length_predictions_total", "counter",
                "Answers up to the predicted p90 of their length, longer ones, and those with "
                "max_tokens below it");
    for (int i = 0; i < engine_of(v->srv)->n_class; i++) {
        const lengths_record *r = &v->lengths[i];
        const char *class = engine_of(v->srv)->class_name[i];
        prom_count(p, r->held, "class", class, "result", "held", NULL);
        prom_count(p, r->exceeded, "class", class, "result", "exceeded", NULL);
        prom_count(p, r->bounded, "class", class, "result", "bounded", NULL);
    }
    prom_family(p, "lorad_length_prediction_loss_tokens_total", "counter",
                "Sum of the pinball losses of length predictions, in tokens");
    for (int i = 0; i < engine_of(v->srv)->n_class; i++)
        prom_sample(p, v->lengths[i].loss, "class", engine_of(v->srv)->class_name[i], NULL);
}

static void put_missed(prom *p, const metrics_view *v)
{
    prom_family(p, "lorad_slo_missed_total", "counter",
                "Missed targets (both together), each with the cause that took the most time");
    for (int i = 0; i < engine_of(v->srv)->n_class; i++) {
        for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
            prom_count(p, v->classes[i].cause[k], "class", engine_of(v->srv)->class_name[i],
                       "cause", miss_cause_name(k), NULL);
        }
    }
    prom_family(p, "lorad_slo_missed_beside_total", "counter",
                "Missed targets with cause decode_steps, by the class that had the most tokens in "
                "the same steps");
    for (int i = 0; i < engine_of(v->srv)->n_class; i++) {
        for (int k = 0; k < engine_of(v->srv)->n_class; k++) {
            prom_count(p, v->classes[i].beside[k], "class", engine_of(v->srv)->class_name[i],
                       "beside", engine_of(v->srv)->class_name[k], NULL);
        }
    }
}

static void put_series(prom *p, const metrics_view *v)
{
    static const struct {
        const char *name, *help;
        int series;
    } list[] = {
        {"lorad_time_to_first_token_seconds", "Time from arrival to the first token", SERIES_TTFT},
        {"lorad_inter_token_latency_seconds", "Time from one token to the next", SERIES_ITL},
        {"lorad_time_per_output_token_seconds", "A request's mean time per token after the first",
         SERIES_TPOT},
        {"lorad_e2e_latency_seconds", "Time from arrival to end, complete requests", SERIES_E2E},
        {"lorad_queue_seconds", "Time from arrival to the first slot", SERIES_QUEUE},
        {"lorad_prompt_tokens", "Tokens of a prompt", SERIES_PROMPT},
        {"lorad_output_tokens", "Output tokens of a request", SERIES_OUTPUT},
    };
    for (size_t k = 0; k < sizeof(list) / sizeof(list[0]); k++) {
        prom_family(p, list[k].name, "histogram", list[k].help);
        for (int i = 0; i < engine_of(v->srv)->n_class; i++) {
            const histogram_counts *h = &v->classes[i].series[list[k].series];
            prom_histogram(p, h, h->scale, "class", engine_of(v->srv)->class_name[i], NULL);
        }
    }
}

/* ------------------------------------------------------------------ by tenant -- */

static void name_tenant(server *s, uint64_t id, char name[TENANT_NAME_MAX + 1])
{
    tenant t;
    err e;
    if (id == 0)
        memcpy(name, other, sizeof(other));
    else if (tenants_get(store_of(s), id, &t, &e) == ERR_NONE)
        memcpy(name, t.name, sizeof(t.name));
    else
        snprintf(name, TENANT_NAME_MAX + 1, "#%llu", (unsigned long long)id);
}

static void put_tenants(prom *p, const metrics_view *v)
{
    char(*name)[TENANT_NAME_MAX + 1] = calloc((size_t)v->n_tenants, sizeof(*name));
    if (!name) {
        p->failed = true;
        return;
    }
    for (int i = 0; i < v->n_tenants; i++) {
        name_tenant(v->srv, v->tenants[i].id, name[i]);
    }
    prom_family(p, "lorad_tenant_requests_total", "counter",
                "A tenant's requests (choices) by outcome");
    for (int i = 0; i < v->n_tenants; i++) {
        for (int k = 0; k < OUTCOMES; k++) {
            prom_count(p, v->tenants[i].outcome[k], "tenant", name[i], "outcome",
                       request_outcome_name(k), NULL);
        }
    }
    prom_family(p, "lorad_tenant_slo_requests_total", "counter",
                "A tenant's requests by whether they met both targets of their class");
    for (int i = 0; i < v->n_tenants; i++) {
        prom_count(p, v->tenants[i].met, "tenant", name[i], "met", "true", NULL);
        prom_count(p, v->tenants[i].missed, "tenant", name[i], "met", "false", NULL);
    }
    prom_family(p, "lorad_tenant_slo_missed_total", "counter",
                "A tenant's missed targets by cause");
    for (int i = 0; i < v->n_tenants; i++) {
        for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
            prom_count(p, v->tenants[i].cause[k], "tenant", name[i], "cause", miss_cause_name(k),
                       NULL);
        }
    }
    prom_family(p, "lorad_tenant_tokens_total", "counter", "Tokens of a tenant's ended requests");
    for (int i = 0; i < v->n_tenants; i++) {
        prom_count(p, v->tenants[i].prompt_tokens, "tenant", name[i], "kind", "prompt", NULL);
        prom_count(p, v->tenants[i].output_tokens, "tenant", name[i], "kind", "output", NULL);
    }
    prom_family(p, "lorad_tenant_time_to_first_token_seconds", "histogram",
                "Time from arrival to the first token");
    for (int i = 0; i < v->n_tenants; i++) {
        prom_histogram(p, &v->tenants[i].ttft, &histogram_times, "tenant", name[i], NULL);
    }
    prom_family(p, "lorad_tenant_time_per_output_token_seconds", "histogram",
                "A request's mean time per token after the first");
    for (int i = 0; i < v->n_tenants; i++) {
        prom_histogram(p, &v->tenants[i].tpot, &histogram_times, "tenant", name[i], NULL);
    }
    free(name);
}

/* -------------------------------------------------------------- other rooms -- */

static void put_adapters(prom *p, server *s)
{
    residency_stats r;
    registry_totals g;
    residency_stats_get(residency_of(s), &r);
    registry_totals_get(registry_of(s), 0, &g);
    prom_gauge(p, "lorad_adapters_registered", "Adapter names", (double)g.n_adapters);
    prom_gauge(p, "lorad_adapters_resident", "Adapter versions in memory", r.n_resident);
    prom_gauge(p, "lorad_adapters_loading", "Adapter versions being loaded", r.n_loading);
    prom_gauge(p, "lorad_adapter_memory_bytes", "Memory of resident adapters",
               (double)r.used_bytes);
    prom_gauge(p, "lorad_adapter_memory_budget_bytes", "Limit of adapters in the arena",
               (double)r.budget_bytes);
    prom_gauge(p, "lorad_adapter_host_memory_bytes", "Memory of adapter copies in host memory",
               (double)r.host_used_bytes);
    prom_gauge(p, "lorad_adapter_host_memory_budget_bytes",
               "Limit of copies (adapters.host_memory)", (double)r.host_budget_bytes);
    prom_gauge(p, "lorad_adapters_host", "Adapter versions with a copy in host memory", r.n_host);
    prom_family(p, "lorad_adapter_hits_total", "counter",
                "Adapter lookups that found the adapter in this tier");
    prom_count(p, r.n_hits, "tier", "device", NULL);
    prom_count(p, r.n_host_hits, "tier", "host", NULL);
    prom_family(p, "lorad_adapter_misses_total", "counter",
                "Adapter lookups that did not find it in this tier");
    prom_count(p, r.n_misses, "tier", "device", NULL);
    prom_count(p, r.n_host_misses, "tier", "host", NULL);
    prom_family(p, "lorad_adapter_tier_evictions_total", "counter", "Evicted adapters by tier");
    prom_count(p, r.n_evictions, "tier", "device", NULL);
    prom_count(p, r.n_host_evictions, "tier", "host", NULL);
    prom_family(p, "lorad_adapter_stage_seconds_total", "counter",
                "Time of adapter loaders: reading and checking files, packing for the device");
    prom_sample(p, (double)r.read_us_sum / 1e6, "stage", "read", NULL);
    prom_sample(p, (double)r.pack_us_sum / 1e6, "stage", "pack", NULL);
    prom_counter(p, "lorad_adapter_read_bytes_total", "Bytes of adapter files read", r.read_bytes);
    prom_gauge(p, "lorad_adapter_copy_bytes_per_second",
               "Smoothed rate of adapter copies to the device", r.pace.rate);
    prom_gauge(p, "lorad_adapter_copy_budget_bytes",
               "Bytes that adapters may copy in the current step; 0: no limit",
               (double)r.pace.budget);
    prom_counter(p, "lorad_adapter_copy_waits_total",
                 "Pieces of adapters that waited for a later step", r.pace.n_waits);
    prom_family(p, "lorad_arena_chunks", "gauge", "Chunks of the device's memory by use");
    prom_count(p, (uint64_t)r.arena.n_free, "use", "free", NULL);
    prom_count(p, (uint64_t)r.arena.n_pages_held, "use", "kv", NULL);
    prom_count(p, (uint64_t)r.arena.n_pages_cached, "use", "kv_cached", NULL);
    prom_count(p, (uint64_t)(r.arena.n_lease_chunks - r.arena.n_lease_idle), "use", "adapters",
               NULL);
    prom_count(p, (uint64_t)r.arena.n_lease_idle, "use", "adapters_idle", NULL);
    prom_counter(p, "lorad_arena_kv_pages_evicted_total", "Pages of the prefix cache evicted",
                 r.arena.pages_evicted);
    prom_counter(p, "lorad_adapter_loads_total", "Adapters loaded to the device", r.n_loads);
    prom_counter(p, "lorad_adapter_evictions_total", "Adapters evicted", r.n_evictions);
    prom_family(p, "lorad_adapter_load_seconds_total", "counter", "Time spent loading adapters");
    prom_sample(p, (double)r.load_us_sum / 1e6, NULL);
}

/* ----------------------------------------------------------------- by adapter -- */

static void put_busiest(prom *p, const book_adapter *a, char (*owner)[TENANT_NAME_MAX + 1], int n)
{
    prom_family(p, "lorad_adapter_ended_total", "counter",
                "Complete requests of an adapter (the busiest ones)");
    for (int i = 0; i < n; i++)
        prom_count(p, a[i].c.ended, "tenant", owner[i], "adapter", a[i].name, NULL);
    prom_family(p, "lorad_adapter_output_tokens_total", "counter", "Output tokens of an adapter");
    for (int i = 0; i < n; i++)
        prom_count(p, a[i].c.output_tokens, "tenant", owner[i], "adapter", a[i].name, NULL);
    prom_family(p, "lorad_adapter_wait_seconds_total", "counter",
                "Time that requests waited for an adapter to be loaded");
    for (int i = 0; i < n; i++)
        prom_sample(p, (double)a[i].c.adapter_us / 1e6, "tenant", owner[i], "adapter", a[i].name,
                    NULL);
    prom_family(p, "lorad_adapter_slo_missed_total", "counter",
                "An adapter's missed targets by cause");
    for (int i = 0; i < n; i++) {
        for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
            prom_count(p, a[i].c.cause[k], "tenant", owner[i], "adapter", a[i].name, "cause",
                       miss_cause_name(k), NULL);
        }
    }
}

static void put_busy_adapters(prom *p, server *s, int most)
{
    book_adapter *list = calloc((size_t)most + 1, sizeof(*list));
    char(*owner)[TENANT_NAME_MAX + 1] = calloc((size_t)most + 1, sizeof(*owner));
    int n = list && owner ? book_busiest(stats_book(process_of(s)->stats), list, most) : 0;
    for (int i = 0; i < n; i++) name_tenant(s, list[i].tenant_id, owner[i]);
    p->failed |= !list || !owner;
    if (n > 0) put_busiest(p, list, owner, n);
    free(list);
    free(owner);
}

static void put_depot(prom *p, server *s)
{
    depot_stats d;
    if (!adapters_of(s)->depot) return;
    depot_stats_get(adapters_of(s)->depot, &d);
    prom_counter(p, "lorad_store_fetches_total",
                 "Downloads from the object store that were started", d.n_fetches);
    prom_counter(p, "lorad_store_fetched_bytes_total", "Bytes downloaded from the object store",
                 d.fetched_bytes);
    prom_counter(p, "lorad_store_fetch_failures_total", "Failed downloads from the object store",
                 d.n_failed);
    prom_counter(p, "lorad_store_damaged_total", "Objects that did not match their digest",
                 d.n_damaged);
    prom_counter(p, "lorad_store_stored_total", "Adapter files stored in the object store",
                 d.n_stored);
    prom_counter(p, "lorad_store_store_failures_total",
                 "Failed attempts to store adapter files in the object store", d.n_store_failed);
    prom_counter(p, "lorad_store_dropped_total", "Adapter files deleted from the object store",
                 d.n_dropped);
    prom_counter(p, "lorad_store_evictions_total",
                 "Adapters removed from this disk to keep store.cache_bytes", d.n_evicted);
    prom_gauge(p, "lorad_store_fetching", "Adapters being downloaded", d.fetching);
    prom_gauge(p, "lorad_store_waiting", "Requests that wait for downloads", d.waiting);
}

static void put_moves(prom *p, server *s)
{
    if (!engine_of(s)->mover) return;
    prom_counter(p, "lorad_moves_out_total", "Running requests moved to other servers",
                 atomic_load(&process_of(s)->count.moves_out));
    prom_counter(p, "lorad_moves_back_total",
                 "Requests that no other server accepted and that continued here",
                 atomic_load(&process_of(s)->count.moves_back));
    prom_counter(p, "lorad_moves_prompts_total",
                 "Prompts that other servers computed for this one (server.fleet_role)",
                 atomic_load(&process_of(s)->count.moves_prompts));
    prom_counter(p, "lorad_moves_in_total", "Running requests accepted from other servers",
                 atomic_load(&process_of(s)->count.moves_in));
    prom_family(p, "lorad_moves_kv_total", "counter",
                "Accepted requests by what happened to their KV");
    for (int i = 0; i < MOVED_KV_ENDS; i++)
        prom_count(p, atomic_load(&process_of(s)->count.moved_kv[i]), "outcome", moved_kv_name(i),
                   NULL);
    prom_counter(p, "lorad_moves_kv_tokens_total", "Tokens whose KV came from another server",
                 atomic_load(&process_of(s)->count.moved_kv_tokens));
}

static void put_storage(prom *p, server *s)
{
    store_stats st;
    settler_stats spool;
    store_stats_get(store_of(s), &st);
    settler_stats_get(engine_of(s)->settler, &spool);
    int64_t lag_us = st.lag_us > spool.oldest_us ? st.lag_us : spool.oldest_us;
    prom_gauge(p, "lorad_ledger_lag_seconds",
               "Age of the oldest database write that is not durable", (double)lag_us / 1e6);
    prom_gauge(p, "lorad_ledger_queued", "Database writes that wait", st.n_queued);
    prom_counter(p, "lorad_ledger_commits_total", "Database transactions committed", st.n_commits);
    prom_counter(p, "lorad_ledger_commit_failures_total",
                 "Database transactions that failed (disk or lock)", st.n_lost);
    prom_counter(p, "lorad_ledger_failed_total", "Single writes that the database refused",
                 st.n_failed);
    prom_gauge(p, "lorad_spool_slots",
               "Capacity of the spool: usage rows that can wait for the database", spool.n_spool);
    prom_gauge(p, "lorad_spool_used", "Usage rows in the spool", spool.n_waiting);
    prom_gauge(p, "lorad_spool_oldest_seconds", "Age of the oldest usage row in the spool",
               (double)spool.oldest_us / 1e6);
    prom_family(p, "lorad_spool_state", "gauge",
                "1 for the current state; behind: answers don't wait for the database; full: new "
                "completions are refused");
    for (int i = SPOOL_OK; i <= SPOOL_FULL; i++) {
        prom_sample(p, (int)spool.state == i, "state", spool_state_name((spool_state)i), NULL);
    }
    self_check_state whole;
    self_check_get(process_of(s)->self_check, &whole);
    prom_gauge(p, "lorad_database_damaged", "1: the last check of the database found damage",
               whole.damaged);
    prom_gauge(p, "lorad_database_checked_timestamp_seconds",
               "End of the last check of the database; 0: none yet",
               (double)whole.checked_wall_us / 1e6);
    prom_gauge(p, "lorad_lockouts_pending",
               "Revocations and suspensions in effect that are not durable yet", st.n_lockouts);
    if (st.fleet.member) {
        prom_gauge(p, "lorad_fleet_away_seconds",
                   "Time since the fleet's database stopped answering; 0: it answers",
                   (double)st.fleet.away_us / 1e6);
        prom_gauge(p, "lorad_fleet_behind",
                   "Changes of the fleet that are not applied on this server yet",
                   (double)st.fleet.behind);
        prom_gauge(p, "lorad_fleet_fenced",
                   "1: another server uses this one's number, so it writes nothing",
                   st.fleet.fenced);
    }
    put_moves(p, s);
    put_depot(p, s);
    prom_gauge(p, "lorad_disk_reserve",
               "1: the disk reserve exists; 0: the disk was full and the reserve is used",
               st.reserve_held);
    disk_room disk;
    if (!disk_look(process_of(s)->cfg->data.dir, &disk)) return;
    prom_gauge(p, "lorad_disk_free_bytes", "Free space of the file system of data.dir",
               (double)disk.free_bytes);
    prom_gauge(p, "lorad_disk_min_free_bytes", "data.min_free: uploads leave this much free",
               (double)process_of(s)->disk_floor_bytes);
}

static void put_http(prom *p, server *s)
{
    static const char *const statuses[] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
    server_counters *c = &process_of(s)->count;
    http_counts *h = &process_of(s)->http.count;
    prom_family(p, "lorad_http_requests_total", "counter", "HTTP answers by status class");
    for (int i = 0; i < 6; i++) {
        prom_count(p, atomic_load(&h->requests[i]), "status", statuses[i], NULL);
    }
    prom_family(p, "lorad_tokens_total", "counter", "Tokens in the usage records");
    prom_count(p, atomic_load(&c->prompt_tokens), "kind", "prompt", NULL);
    prom_count(p, atomic_load(&c->cached_tokens), "kind", "cached", NULL);
    prom_count(p, atomic_load(&c->output_tokens), "kind", "output", NULL);
    prom_counter(p, "lorad_auth_failures_total", "Requests with a wrong key or scope",
                 atomic_load(&c->auth_failures));
    prom_counter(p, "lorad_rate_limited_total", "Requests that a limit refused",
                 atomic_load(&c->rate_limited));
    prom_gauge(p, "lorad_texts_waiting", "Long texts that wait to be tokenized",
               engine_of(s)->encoders ? nice_pool_waiting(engine_of(s)->encoders) : 0);
    prom_gauge(p, "lorad_connections", "Connections of the inference API",
               (double)atomic_load(&h->connections));
    prom_gauge(p, "lorad_http2_connections", "Of these, connections that speak HTTP/2",
               (double)atomic_load(&h->http2));
    prom_counter(p, "lorad_http2_floods_total",
                 "HTTP/2 connections that were closed because of a flood of frames",
                 atomic_load(&h->http2_floods));
    prom_family(p, "lorad_connections_refused_total", "counter", "Connections refused by a limit");
    prom_count(p, atomic_load(&h->refused_total), "limit", "max_connections", NULL);
    prom_count(p, atomic_load(&h->refused_per_ip), "limit", "max_connections_per_ip", NULL);
    prom_gauge(p, "lorad_tls_certificate_expiry_timestamp_seconds",
               "When the certificate in use expires",
               (double)atomic_load(&process_of(s)->http.cert_expires_wall_us) / 1e6);
    prom_gauge(p, "process_start_time_seconds", "When the server started",
               (double)process_of(s)->started_wall_us / 1e6);
    int64_t open_fds, max_fds;
    errno = 0;
    if (!descriptors_look(&open_fds, &max_fds)) {
        p->failed |= errno == ENOMEM;
    } else {
        prom_gauge(p, "process_open_fds", "Open files and sockets", (double)open_fds);
        prom_gauge(p, "process_max_fds", "Maximum of open files and sockets", (double)max_fds);
    }
}

static void put_traces(prom *p, server *s)
{
    spans_stats t;
    if (!engine_of(s)->spans) return;
    spans_get(engine_of(s)->spans, &t);
    prom_counter(p, "lorad_traces_sent_total", "Requests whose traces were sent", t.n_sent);
    prom_counter(p, "lorad_traces_dropped_total", "Requests whose traces were lost", t.n_dropped);
    prom_counter(p, "lorad_traces_failures_total", "Failed exports of traces", t.n_failures);
}

static void put_webhooks(prom *p, server *s)
{
    webhooks_stats t;
    if (!process_of(s)->webhooks) return;
    webhooks_get(process_of(s)->webhooks, &t);
    prom_counter(p, "lorad_webhooks_sent_total", "Events that the receiver accepted", t.n_sent);
    prom_counter(p, "lorad_webhooks_failures_total", "Failed tries to post an event", t.n_failures);
    prom_family(p, "lorad_webhooks_dropped_total", "counter",
                "Events that were given up, by reason");
    prom_count(p, t.n_rejected, "reason", "rejected", NULL);
    prom_count(p, t.n_expired, "reason", "expired", NULL);
    prom_count(p, t.n_full, "reason", "queue_full", NULL);
    prom_gauge(p, "lorad_webhooks_waiting", "Events that wait to be posted", (double)t.n_waiting);
}

static void put_batches(prom *p, server *s)
{
    batch_counts *b = &process_of(s)->batch_count;
    prom_gauge(p, "lorad_batches", "Batches that have not ended", atomic_load(&b->n_batches));
    prom_gauge(p, "lorad_batch_lines_running", "Batch lines that run", atomic_load(&b->n_lines));
    prom_gauge(p, "lorad_batch_lines_allowed", "Batch lines that may run beside the current load",
               atomic_load(&b->allowed));
    prom_family(p, "lorad_batch_lines_total", "counter", "Batch lines that are done, by result");
    prom_count(p, atomic_load(&b->completed), "result", "completed", NULL);
    prom_count(p, atomic_load(&b->failed), "result", "failed", NULL);
    prom_counter(p, "lorad_batch_lines_retried_total",
                 "Retries of batch lines after a limit or an error", atomic_load(&b->retried));
}

/* ------------------------------------------------------------------------ whole -- */

/* The parts are read one after another: what happens in between may show
 * in some and not in others. */
static bool look(metrics_view *v, server *s)
{
    telemetry *t = sched_telemetry(sched_of(s));
    int most = (int)process_of(s)->cfg->metrics.max_tenants + 1;
    int cap = (int)(process_of(s)->cfg->engine.max_queued + process_of(s)->cfg->engine.max_seqs);
    *v = (metrics_view){.srv = s};
    v->tenants = calloc((size_t)most, sizeof(*v->tenants));
    v->adapters = calloc((size_t)cap, sizeof(*v->adapters));
    if (!v->tenants || !v->adapters) return false;
    sched_stats_get(sched_of(s), &v->sched);
    for (int i = 0; i < engine_of(s)->n_class; i++) {
        telemetry_class_get(t, i, &v->classes[i]);
        sched_lengths_get(sched_of(s), i, &v->lengths[i]);
    }
    telemetry_steps_get(t, &v->steps);
    v->n_tenants = telemetry_tenants_get(t, v->tenants, most);
    v->n_adapters = telemetry_adapters_get(t, v->adapters, cap);
    size_t room = 0;
    err e;
    return residency_rows(residency_of(s), &v->loaded, &v->n_loaded, &room, &e) == ERR_NONE;
}

void metrics_get(exchange *x)
{
    server *s = x->app;
    metrics_view *v = calloc(1, sizeof(*v));
    prom p;
    x->watches = true;
    prom_init(&p);
    if (v && look(v, s)) {
        prom_family(&p, "lorad_build_info", "gauge", "Version, backend, type of weights and of KV");
        prom_sample(&p, 1, "version", LORAD_VERSION, "backend", be_caps(engine_of(s)->be)->name,
                    "detail", be_caps(engine_of(s)->be)->detail, "weights",
                    model_get_config(engine_of(s)->model)->format, "kv",
                    model_kv_name(engine_of(s)->model), NULL);
        put_engine(&p, v, x->conf->engine.max_queued);
        put_targets(&p, &x->conf->classes);
        put_outcomes(&p, v);
        put_missed(&p, v);
        put_lengths(&p, v);
        put_series(&p, v);
        put_tenants(&p, v);
        put_adapters(&p, s);
        put_busy_adapters(&p, s, (int)x->conf->metrics.max_adapters);
        put_storage(&p, s);
        put_http(&p, s);
        put_traces(&p, s);
        put_webhooks(&p, s);
        put_batches(&p, s);
        if (x->conf->metrics.vllm_names) metrics_vllm(&p, v);
    } else {
        p.failed = true;
    }
    if (p.failed)
        exchange_starved(x);
    else
        exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", p.text, p.len);
    prom_clear(&p);
    if (v) {
        free(v->tenants);
        free(v->adapters);
        free(v->loaded);
    }
    free(v);
}
