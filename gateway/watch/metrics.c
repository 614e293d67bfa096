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
#include "gateway/descriptors.h"
#include "gateway/handlers.h"
#include "gateway/watch/spans.h"
#include "gateway/watch/stats.h"
#include "gateway/watch/stats_book.h"
#include "storage/disk.h"
#include "storage/tenants.h"

static const char other[] = "_other";

/* ---------------------------------------------------------------- the scheduler -- */

static void put_engine(prom *p, const metrics_view *v, int64_t max_queued)
{
    const sched_stats *t = &v->sched;
    server *s = v->srv;
    prom_gauge(p, "lorad_requests_running", "Sequences in the batch", t->n_running);
    prom_gauge(p, "lorad_requests_waiting", "Requests in the queue", t->n_waiting);
    prom_gauge(p, "lorad_queue_capacity", "Requests that may wait", (double)max_queued);
    prom_gauge(p, "lorad_seats", "Sequences that may run at once", (double)s->cfg->engine_max_seqs);
    prom_gauge(p, "lorad_kv_pages", "KV pages in all", t->n_pages);
    prom_gauge(p, "lorad_kv_pages_used", "KV pages held by sequences", t->n_pages_used);
    prom_gauge(p, "lorad_kv_pages_cached", "KV pages of the prefix cache that nobody holds",
               t->n_pages_cached);
    prom_counter(p, "lorad_steps_total", "Forward passes", t->n_steps);
    prom_counter(p, "lorad_engine_steps_ahead_total",
                 "Of them, those enqueued while another was in flight", t->n_steps_ahead);
    prom_counter(p, "lorad_engine_rows_discarded_total",
                 "Rows of such steps whose request had ended meanwhile", t->n_discarded);
    prom_counter(p, "lorad_step_rows_total", "Rows of all steps", t->n_rows);
    prom_counter(p, "lorad_engine_streams_out_total",
                 "Times that a stream sat out a step, for others were due", t->n_out);
    prom_family(p, "lorad_speculated_tokens_total", "counter",
                "Tokens that were guessed and computed beside others, by whether they came, and "
                "what guessed them");
    for (int i = 0; i < GUESS_SOURCES; i++) {
        static const char *const source[] = {"lookup", "form", "draft"};
        uint64_t wrong = t->guessed_by[i] - t->right_by[i];
        prom_count(p, t->right_by[i], "result", "accepted", "source", source[i], NULL);
        prom_count(p, wrong, "result", "rejected", "source", source[i], NULL);
    }
    prom_family(p, "lorad_draft_seconds_total", "counter", "Time of the draft model's passes");
    prom_sample(p, (double)t->draft_us / 1e6, NULL);
    prom_family(p, "lorad_draft_kv_bytes", "gauge", "The draft model's KV pages");
    prom_count(p, t->draft_used_bytes, "use", "kv", NULL);
    prom_count(p, t->draft_bytes - t->draft_used_bytes, "use", "free", NULL);
    prom_family(p, "lorad_step_seconds_total", "counter", "Time in steps");
    prom_sample(p, (double)t->busy_us / 1e6, NULL);
    prom_family(p, "lorad_step_rows", "histogram", "Rows of a step");
    prom_histogram(p, &v->steps, &histogram_tokens, NULL);
    prom_family(p, "lorad_cost_model_error_ratio", "gauge",
                "Mean difference of a step's predicted time from what it took, over that");
    prom_sample(p, t->cost_error, "backend", be_caps(s->be)->name, NULL);
    prom_family(p, "lorad_cost_model_seconds", "gauge",
                "What a step takes by the model before any row, and what a stream's row adds");
    prom_sample(p, t->cost_step_us / 1e6, "part", "step", NULL);
    prom_sample(p, t->cost_row_us / 1e6, "part", "row", NULL);
    prom_counter(p, "lorad_prefill_tokens_total", "Prompt tokens computed", t->n_prefill_tokens);
    prom_counter(p, "lorad_prefix_lookup_tokens_total", "Prompt tokens asked of the prefix cache",
                 t->n_looked_up_tokens);
    prom_counter(p, "lorad_prefix_hit_tokens_total", "Of these, found", t->n_cached_tokens);
    prom_counter(p, "lorad_preemptions_total", "Sequences that gave their pages back",
                 t->n_preempted);
    prom_family(p, "lorad_swapped_requests_total", "counter",
                "Pre-empted requests whose KV was copied out, and back");
    prom_count(p, t->n_swapped_out, "direction", "out", NULL);
    prom_count(p, t->n_swapped_in, "direction", "in", NULL);
    prom_family(p, "lorad_swapped_pages_total", "counter", "KV pages copied out, and back");
    prom_count(p, t->swap.n_saved, "direction", "out", NULL);
    prom_count(p, t->swap.n_loaded, "direction", "in", NULL);
    prom_gauge(p, "lorad_swap_bytes", "KV of pre-empted requests in host memory",
               (double)t->swap.n_used * (double)t->swap.page_bytes);
    prom_gauge(p, "lorad_swap_budget_bytes", "Room for it",
               (double)t->swap.n_pages * (double)t->swap.page_bytes);
    prom_gauge(p, "lorad_swap_page_seconds", "What one page takes out and back",
               t->swap.page_us / 1e6);
    prom_counter(p, "lorad_adapter_waits_total", "Times that a request found its adapter not there",
                 t->n_adapter_waits);
    prom_counter(p, "lorad_cancelled_total", "Requests cancelled by their client", t->n_cancelled);
    prom_counter(p, "lorad_failed_total", "Requests that failed in the engine", t->n_failed);
    prom_counter(p, "lorad_engine_restarts_total",
                 "Times that the device failed and was opened again", t->n_restarts);
    prom_gauge(p, "lorad_engine_healthy", "0: the device has failed", t->healthy);
    prom_gauge(p, "lorad_engine_heartbeat_age_seconds", "Since the engine thread last moved",
               (double)(clock_now_us() - sched_heartbeat_us(s->sched)) / 1e6);
}

/* ------------------------------------------------------------------- by class -- */

static void put_targets(prom *p, const config *conf)
{
    prom_family(p, "lorad_slo_target_seconds", "gauge", "What a class promises");
    for (int i = 0; i < conf->n_classes; i++) {
        const config_class *c = &conf->classes[i];
        prom_sample(p, (double)c->ttft_us / 1e6, "class", c->name, "target", "ttft", NULL);
        prom_sample(p, (double)c->tpot_us / 1e6, "class", c->name, "target", "tpot", NULL);
    }
}

static void put_outcomes(prom *p, const metrics_view *v)
{
    static const char *const targets[TARGETS] = {"ttft", "tpot", "both"};
    prom_family(p, "lorad_requests_total", "counter", "What became of requests (of each choice)");
    for (int i = 0; i < v->srv->n_class; i++) {
        for (int k = 0; k < OUTCOMES; k++) {
            prom_count(p, v->classes[i].outcome[k], "class", v->srv->class_name[i], "outcome",
                       request_outcome_name(k), NULL);
        }
    }
    prom_family(p, "lorad_slo_requests_total", "counter",
                "Complete requests by whether they met the target; both (goodput) also has those "
                "refused or failed");
    for (int i = 0; i < v->srv->n_class; i++) {
        const char *name = v->srv->class_name[i];
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
                "Answers up to the predicted p90 of their length, beyond it, and those whose "
                "max_tokens was no more");
    for (int i = 0; i < v->srv->n_class; i++) {
        const lengths_record *r = &v->lengths[i];
        const char *class = v->srv->class_name[i];
        prom_count(p, r->held, "class", class, "result", "held", NULL);
        prom_count(p, r->exceeded, "class", class, "result", "exceeded", NULL);
        prom_count(p, r->bounded, "class", class, "result", "bounded", NULL);
    }
    prom_family(p, "lorad_length_prediction_loss_tokens_total", "counter",
                "Sum of the pinball losses of these predictions, in tokens");
    for (int i = 0; i < v->srv->n_class; i++)
        prom_sample(p, v->lengths[i].loss, "class", v->srv->class_name[i], NULL);
}

static void put_missed(prom *p, const metrics_view *v)
{
    prom_family(p, "lorad_slo_missed_total", "counter",
                "Promises broken (target both), each by the one cause that took the most time");
    for (int i = 0; i < v->srv->n_class; i++) {
        for (int k = MISS_NONE + 1; k < MISS_CAUSES; k++) {
            prom_count(p, v->classes[i].cause[k], "class", v->srv->class_name[i], "cause",
                       miss_cause_name(k), NULL);
        }
    }
    prom_family(p, "lorad_slo_missed_beside_total", "counter",
                "Of those by decode_steps: by the class that had the most rows beside it");
    for (int i = 0; i < v->srv->n_class; i++) {
        for (int k = 0; k < v->srv->n_class; k++) {
            prom_count(p, v->classes[i].beside[k], "class", v->srv->class_name[i], "beside",
                       v->srv->class_name[k], NULL);
        }
    }
}

static void put_series(prom *p, const metrics_view *v)
{
    static const struct {
        const char *name, *help;
        int series;
    } list[] = {
        {"lorad_time_to_first_token_seconds", "Arrival to first token", SERIES_TTFT},
        {"lorad_inter_token_latency_seconds", "Each token after the one before it", SERIES_ITL},
        {"lorad_time_per_output_token_seconds",
         "Mean time of a request's tokens after the first, once for each request", SERIES_TPOT},
        {"lorad_e2e_latency_seconds", "Arrival to end, of complete requests", SERIES_E2E},
        {"lorad_queue_seconds", "Arrival to first seat", SERIES_QUEUE},
        {"lorad_prompt_tokens", "Tokens of a prompt", SERIES_PROMPT},
        {"lorad_output_tokens", "Tokens made for a request", SERIES_OUTPUT},
    };
    for (size_t k = 0; k < sizeof(list) / sizeof(list[0]); k++) {
        prom_family(p, list[k].name, "histogram", list[k].help);
        for (int i = 0; i < v->srv->n_class; i++) {
            const histogram_counts *h = &v->classes[i].series[list[k].series];
            prom_histogram(p, h, h->scale, "class", v->srv->class_name[i], NULL);
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
    else if (tenants_get(s->store, id, &t, &e) == ERR_NONE)
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
                "What became of a tenant's requests (of each choice)");
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
                "A tenant's promises broken, each by its cause");
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
                "Arrival to first token");
    for (int i = 0; i < v->n_tenants; i++) {
        prom_histogram(p, &v->tenants[i].ttft, &histogram_times, "tenant", name[i], NULL);
    }
    prom_family(p, "lorad_tenant_time_per_output_token_seconds", "histogram",
                "Mean time of a request's tokens after the first");
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
    residency_stats_get(s->residency, &r);
    registry_totals_get(s->registry, 0, &g);
    prom_gauge(p, "lorad_adapters_registered", "Adapter names", (double)g.n_adapters);
    prom_gauge(p, "lorad_adapters_resident", "Adapter versions in memory", r.n_resident);
    prom_gauge(p, "lorad_adapters_loading", "Adapter versions on their way", r.n_loading);
    prom_gauge(p, "lorad_adapter_memory_bytes", "Memory of resident adapters",
               (double)r.used_bytes);
    prom_gauge(p, "lorad_adapter_memory_budget_bytes", "Budget of that memory",
               (double)r.budget_bytes);
    prom_gauge(p, "lorad_adapter_host_memory_bytes", "Copies of adapters in host memory",
               (double)r.host_used_bytes);
    prom_gauge(p, "lorad_adapter_host_memory_budget_bytes", "Budget of that memory",
               (double)r.host_budget_bytes);
    prom_gauge(p, "lorad_adapters_host", "Adapter versions with a copy in host memory", r.n_host);
    prom_family(p, "lorad_adapter_hits_total", "counter",
                "Adapters found in the tier where they were looked for");
    prom_count(p, r.n_hits, "tier", "device", NULL);
    prom_count(p, r.n_host_hits, "tier", "host", NULL);
    prom_family(p, "lorad_adapter_misses_total", "counter", "Adapters not found there");
    prom_count(p, r.n_misses, "tier", "device", NULL);
    prom_count(p, r.n_host_misses, "tier", "host", NULL);
    prom_family(p, "lorad_adapter_tier_evictions_total", "counter", "Adapters evicted, by tier");
    prom_count(p, r.n_evictions, "tier", "device", NULL);
    prom_count(p, r.n_host_evictions, "tier", "host", NULL);
    prom_family(p, "lorad_adapter_stage_seconds_total", "counter",
                "Time of loaders: reading and checking files, packing for the device");
    prom_sample(p, (double)r.read_us_sum / 1e6, "stage", "read", NULL);
    prom_sample(p, (double)r.pack_us_sum / 1e6, "stage", "pack", NULL);
    prom_counter(p, "lorad_adapter_read_bytes_total", "Bytes that were read for it", r.read_bytes);
    prom_gauge(p, "lorad_adapter_copy_bytes_per_second", "Rate of copies to the device, smoothed",
               r.pace.rate);
    prom_gauge(p, "lorad_adapter_copy_budget_bytes",
               "Bytes for copies in the present step; 0: no bound", (double)r.pace.budget);
    prom_counter(p, "lorad_adapter_copy_waits_total", "Pieces that waited for a later step",
                 r.pace.n_waits);
    prom_family(p, "lorad_arena_chunks", "gauge", "The device's memory, by what has it");
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
                "Complete requests of the busiest adapters");
    for (int i = 0; i < n; i++)
        prom_count(p, a[i].c.ended, "tenant", owner[i], "adapter", a[i].name, NULL);
    prom_family(p, "lorad_adapter_output_tokens_total", "counter", "Tokens made with them");
    for (int i = 0; i < n; i++)
        prom_count(p, a[i].c.output_tokens, "tenant", owner[i], "adapter", a[i].name, NULL);
    prom_family(p, "lorad_adapter_wait_seconds_total", "counter",
                "How long requests waited for them to be loaded");
    for (int i = 0; i < n; i++)
        prom_sample(p, (double)a[i].c.adapter_us / 1e6, "tenant", owner[i], "adapter", a[i].name,
                    NULL);
    prom_family(p, "lorad_adapter_slo_missed_total", "counter",
                "Their promises that were broken, each by its cause");
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
    int n = list && owner ? book_busiest(stats_book(s->stats), list, most) : 0;
    for (int i = 0; i < n; i++) name_tenant(s, list[i].tenant_id, owner[i]);
    p->failed |= !list || !owner;
    if (n > 0) put_busiest(p, list, owner, n);
    free(list);
    free(owner);
}

static void put_depot(prom *p, server *s)
{
    depot_stats d;
    if (!s->depot) return;
    depot_stats_get(s->depot, &d);
    prom_counter(p, "lorad_store_fetches_total", "Downloads from the object store that began",
                 d.n_fetches);
    prom_counter(p, "lorad_store_fetched_bytes_total", "Bytes that came by them", d.fetched_bytes);
    prom_counter(p, "lorad_store_fetch_failures_total", "Downloads that failed", d.n_failed);
    prom_counter(p, "lorad_store_damaged_total", "Objects that were not what their digest says",
                 d.n_damaged);
    prom_counter(p, "lorad_store_stored_total", "Versions' files stored there", d.n_stored);
    prom_counter(p, "lorad_store_store_failures_total", "Versions' files that it did not take",
                 d.n_store_failed);
    prom_counter(p, "lorad_store_dropped_total", "Versions' files removed there", d.n_dropped);
    prom_counter(p, "lorad_store_evictions_total",
                 "Contents that went from this disk for store.cache_bytes", d.n_evicted);
    prom_gauge(p, "lorad_store_fetching", "Contents that are being brought", d.fetching);
    prom_gauge(p, "lorad_store_waiting", "Requests that wait for them", d.waiting);
}

static void put_moves(prom *p, server *s)
{
    if (!s->mover) return;
    prom_counter(p, "lorad_moves_out_total", "Running requests that were given to other servers",
                 atomic_load(&s->count.moves_out));
    prom_counter(p, "lorad_moves_back_total",
                 "Of requests to be given away, those that ran on here",
                 atomic_load(&s->count.moves_back));
    prom_counter(p, "lorad_moves_in_total", "Running requests that were taken of other servers",
                 atomic_load(&s->count.moves_in));
    prom_family(p, "lorad_moves_kv_total", "counter",
                "Of those, by what became of their keys and values");
    for (int i = 0; i < MOVED_KV_ENDS; i++)
        prom_count(p, atomic_load(&s->count.moved_kv[i]), "outcome", moved_kv_name(i), NULL);
    prom_counter(p, "lorad_moves_kv_tokens_total",
                 "Their tokens whose keys and values came from the other server",
                 atomic_load(&s->count.moved_kv_tokens));
}

static void put_storage(prom *p, server *s)
{
    store_stats st;
    settler_stats spool;
    store_stats_get(s->store, &st);
    settler_stats_get(s->settler, &spool);
    int64_t lag_us = st.lag_us > spool.oldest_us ? st.lag_us : spool.oldest_us;
    prom_gauge(p, "lorad_ledger_lag_seconds", "Age of the oldest write that is not durable yet",
               (double)lag_us / 1e6);
    prom_gauge(p, "lorad_ledger_queued", "Writes that wait for the storage writer", st.n_queued);
    prom_counter(p, "lorad_ledger_commits_total", "Transactions made durable", st.n_commits);
    prom_counter(p, "lorad_ledger_commit_failures_total",
                 "Transactions that the disk or a lock refused", st.n_lost);
    prom_counter(p, "lorad_ledger_failed_total", "Writes refused by the database", st.n_failed);
    prom_gauge(p, "lorad_spool_slots", "Rows of usage that may wait for the database",
               spool.n_spool);
    prom_gauge(p, "lorad_spool_used", "Rows of usage that wait for the database", spool.n_waiting);
    prom_gauge(p, "lorad_spool_oldest_seconds", "Age of the oldest of them",
               (double)spool.oldest_us / 1e6);
    prom_family(p, "lorad_spool_state", "gauge",
                "1 for the present state: behind answers without waiting for the database, full "
                "refuses new completions");
    for (int i = SPOOL_OK; i <= SPOOL_FULL; i++) {
        prom_sample(p, (int)spool.state == i, "state", spool_state_name((spool_state)i), NULL);
    }
    prom_gauge(p, "lorad_lockouts_pending",
               "Revocations and suspensions in force that are not durable yet", st.n_lockouts);
    if (st.fleet.member) {
        prom_gauge(p, "lorad_fleet_away_seconds",
                   "How long the fleet's database has not answered; 0: it does",
                   (double)st.fleet.away_us / 1e6);
        prom_gauge(p, "lorad_fleet_behind", "Changes of the fleet that are not applied here yet",
                   (double)st.fleet.behind);
        prom_gauge(p, "lorad_fleet_fenced",
                   "1: another server took this one's number; it writes nothing any more",
                   st.fleet.fenced);
    }
    put_moves(p, s);
    put_depot(p, s);
    prom_gauge(p, "lorad_disk_reserve", "0: the disk was full, the database's reserve is given up",
               st.reserve_held);
    disk_room disk;
    if (!disk_look(s->cfg->data_dir, &disk)) return;
    prom_gauge(p, "lorad_disk_free_bytes", "Free space of the file system of data.dir",
               (double)disk.free_bytes);
    prom_gauge(p, "lorad_disk_min_free_bytes", "data.min_free: uploads and adapters leave so much",
               (double)s->disk_floor_bytes);
}

static void put_http(prom *p, server *s)
{
    static const char *const statuses[] = {"none", "1xx", "2xx", "3xx", "4xx", "5xx"};
    server_counters *c = &s->count;
    http_counts *h = &s->http.count;
    prom_family(p, "lorad_http_requests_total", "counter", "Answers by status class");
    for (int i = 0; i < 6; i++) {
        prom_count(p, atomic_load(&h->requests[i]), "status", statuses[i], NULL);
    }
    prom_family(p, "lorad_tokens_total", "counter", "Tokens settled in the ledger");
    prom_count(p, atomic_load(&c->prompt_tokens), "kind", "prompt", NULL);
    prom_count(p, atomic_load(&c->cached_tokens), "kind", "cached", NULL);
    prom_count(p, atomic_load(&c->output_tokens), "kind", "output", NULL);
    prom_counter(p, "lorad_auth_failures_total", "Requests with a bad key or scope",
                 atomic_load(&c->auth_failures));
    prom_counter(p, "lorad_rate_limited_total", "Requests refused by a limit",
                 atomic_load(&c->rate_limited));
    prom_gauge(p, "lorad_connections", "Connections of the inference API",
               (double)atomic_load(&h->connections));
    prom_family(p, "lorad_connections_refused_total", "counter", "Connections over a limit");
    prom_count(p, atomic_load(&h->refused_total), "limit", "max_connections", NULL);
    prom_count(p, atomic_load(&h->refused_per_ip), "limit", "max_connections_per_ip", NULL);
    prom_gauge(p, "lorad_tls_certificate_expiry_timestamp_seconds",
               "When the certificate in use expires",
               (double)atomic_load(&s->http.cert_expires_wall_us) / 1e6);
    prom_gauge(p, "process_start_time_seconds", "When the server started",
               (double)s->started_wall_us / 1e6);
    int64_t open_fds, max_fds;
    errno = 0;
    if (!descriptors_look(&open_fds, &max_fds)) {
        p->failed |= errno == ENOMEM;
    } else {
        prom_gauge(p, "process_open_fds", "Open files and sockets", (double)open_fds);
        prom_gauge(p, "process_max_fds", "Files and sockets that may be open", (double)max_fds);
    }
}

static void put_traces(prom *p, server *s)
{
    spans_stats t;
    if (!s->spans) return;
    spans_get(s->spans, &t);
    prom_counter(p, "lorad_traces_sent_total", "Requests whose traces a collector has", t.n_sent);
    prom_counter(p, "lorad_traces_dropped_total", "Requests whose traces were lost", t.n_dropped);
    prom_counter(p, "lorad_traces_failures_total", "Exports that no collector took", t.n_failures);
}

static void put_batches(prom *p, server *s)
{
    batch_counts *b = &s->batch_count;
    prom_gauge(p, "lorad_batches", "Batches that have not ended", atomic_load(&b->n_batches));
    prom_gauge(p, "lorad_batch_lines_running", "Lines of batches that run",
               atomic_load(&b->n_lines));
    prom_gauge(p, "lorad_batch_lines_allowed",
               "Lines that may run beside the more urgent requests of the moment",
               atomic_load(&b->allowed));
    prom_family(p, "lorad_batch_lines_total", "counter", "Lines of batches that are done");
    prom_count(p, atomic_load(&b->completed), "result", "completed", NULL);
    prom_count(p, atomic_load(&b->failed), "result", "failed", NULL);
    prom_counter(p, "lorad_batch_lines_retried_total",
                 "Times that a line met a limit or a fault, and waits to be tried again",
                 atomic_load(&b->retried));
}

/* ------------------------------------------------------------------------ whole -- */

/* The parts are read one after another: what happens in between may show
 * in some and not in others. */
static bool look(metrics_view *v, server *s)
{
    telemetry *t = sched_telemetry(s->sched);
    int most = (int)s->cfg->metrics_max_tenants + 1;
    int cap = (int)(s->cfg->engine_max_queued + s->cfg->engine_max_seqs);
    *v = (metrics_view){.srv = s};
    v->tenants = calloc((size_t)most, sizeof(*v->tenants));
    v->adapters = calloc((size_t)cap, sizeof(*v->adapters));
    if (!v->tenants || !v->adapters) return false;
    sched_stats_get(s->sched, &v->sched);
    for (int i = 0; i < s->n_class; i++) {
        telemetry_class_get(t, i, &v->classes[i]);
        sched_lengths_get(s->sched, i, &v->lengths[i]);
    }
    telemetry_steps_get(t, &v->steps);
    v->n_tenants = telemetry_tenants_get(t, v->tenants, most);
    v->n_adapters = telemetry_adapters_get(t, v->adapters, cap);
    size_t room = 0;
    err e;
    return residency_rows(s->residency, &v->loaded, &v->n_loaded, &room, &e) == ERR_NONE;
}

void metrics_get(exchange *x)
{
    server *s = x->server;
    metrics_view *v = calloc(1, sizeof(*v));
    prom p;
    x->watches = true;
    prom_init(&p);
    if (v && look(v, s)) {
        prom_family(&p, "lorad_build_info", "gauge", "Version, backend, weights, keys and values");
        prom_sample(&p, 1, "version", LORAD_VERSION, "backend", be_caps(s->be)->name, "detail",
                    be_caps(s->be)->detail, "weights", model_get_config(s->model)->format, "kv",
                    model_kv_name(s->model), NULL);
        put_engine(&p, v, x->conf->engine_max_queued);
        put_targets(&p, x->conf);
        put_outcomes(&p, v);
        put_missed(&p, v);
        put_lengths(&p, v);
        put_series(&p, v);
        put_tenants(&p, v);
        put_adapters(&p, s);
        put_busy_adapters(&p, s, (int)x->conf->metrics_max_adapters);
        put_storage(&p, s);
        put_http(&p, s);
        put_traces(&p, s);
        put_batches(&p, s);
        if (x->conf->metrics_vllm_names) metrics_vllm(&p, v);
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
