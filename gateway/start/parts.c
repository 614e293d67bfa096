/* parts.c -- opens the parts of a server, each with its part of the configuration; closes them. */
#include "gateway/start/parts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "adapters/residency/load.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/batches/runner.h"
#include "gateway/config/classes.h"
#include "gateway/device.h"
#include "gateway/doors/background.h"
#include "gateway/move/mover.h"
#include "gateway/net/tls_warm.h"
#include "gateway/openai/vocabulary.h"
#include "gateway/rest/adapter_first.h"
#include "gateway/rest/effect.h"
#include "gateway/route.h"
#include "gateway/start/draft_model.h"
#include "gateway/start/fleet_source.h"
#include "gateway/start/object_store.h"
#include "gateway/watch/spans.h"
#include "gateway/watch/stats.h"
#include "storage/disk.h"
#include "storage/targets.h"

enum { SLOT_MARGIN = 64 };

_Static_assert((int)CLASS_MAX == (int)SLO_CLASS_MAX, "the scheduler takes all classes");

static void describe_classes(const config *c, slo_class out[SLO_CLASS_MAX])
{
    memset(out, 0, SLO_CLASS_MAX * sizeof(*out));
    for (int i = 0; i < c->n_classes; i++) {
        const config_class *k = &c->classes[i];
        out[i] = (slo_class){.rank = i,
                             .ttft_us = k->ttft_us,
                             .tpot_us = k->tpot_us,
                             .weight = (float)k->weight_milli / 1000,
                             .reject_on_overload = strcmp(k->overload, "reject") == 0};
        snprintf(out[i].name, sizeof(out[i].name), "%s", k->name);
    }
}

/* What stays of the classes while the server runs. */
static void name_classes(server *s, const config *c)
{
    s->n_class = c->n_classes;
    for (int i = 0; i < c->n_classes; i++)
        memcpy(s->class_name[i], c->classes[i].name, sizeof(s->class_name[i]));
}

static bool some_is_class(const config *c, const char *list)
{
    for (int i = 0; i < c->n_classes; i++) {
        if (list_allows(list, c->classes[i].name)) return true;
    }
    return false;
}

/* Tenants keep what names a class that is not configured any more: it may come back. */
static void tell_lost_classes(const server *s, const tenant *t)
{
    const char *list = t->targets;
    target each;
    if (t->default_class[0] && class_of_tier(s->cfg, t->default_class) < 0) {
        log_warn("gateway",
                 "tenant %s: its default class '%s' is not configured; the server's stands in",
                 t->name, t->default_class);
    }
    if (!some_is_class(s->cfg, t->classes)) {
        log_warn("gateway", "tenant %s: none of the classes that it may use is configured: %s",
                 t->name, t->classes);
    }
    while (targets_next(&list, &each)) {
        if (class_of_name(s->cfg, each.class) >= 0) continue;
        log_warn("gateway", "tenant %s: its own targets in '%s' mean nothing: no such class",
                 t->name, each.class);
    }
}

static err_code look_at_tenants(const server *s, err *e)
{
    tenant *list;
    size_t n;
    err_code rc = tenants_list(s->store, 0, 0, &list, &n, e);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) tell_lost_classes(s, &list[i]);
    free(list);
    return ERR_NONE;
}

static err_code set_kv_type(const config *c, model *m, err *e)
{
    if (strcmp(c->engine_kv_type, "auto") == 0) return ERR_NONE;
    dtype type = model_kv_type(model_get_config(m), c->engine_kv_type);
    err_code rc = model_set_kv_type(m, type, e);
    return rc ? err_context(e, "engine.kv_type = %s", c->engine_kv_type) : rc;
}

static err_code open_model(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    char reason[256];
    err_code rc = device_open(&s->be, c, p->without, reason, sizeof(reason), e);
    char packed[CONFIG_TEXT_MAX + 16];
    snprintf(packed, sizeof(packed), "%s/packed", c->data_dir);
    model_options options = {.weights = model_weights_form(c->model_weights),
                             .max_context = (int)c->engine_max_context,
                             .sinks = (int)c->model_attention_sinks,
                             .window = (int)c->model_attention_window,
                             .packed_dir = c->model_packed_cache ? packed : NULL,
                             .packed_floor_bytes =
                                 disk_floor_bytes(c->data_dir, (uint64_t)c->data_min_free)};
    if (!rc && be_can_sample(s->be) && strcmp(c->engine_logprobs_mode, "raw_logprobs") == 0)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "engine.logprobs_mode: raw_logprobs are not supported on a CUDA device");
    if (!rc) {
        if (reason[0]) log_info("gateway", "serving on the CPU: %s", reason);
        rc = model_load_with(&s->model, c->model_path, s->be, (int)c->engine_max_rows,
                             (int)c->engine_max_seqs + SCHED_SCORE_ROWS, &options, e);
    }
    if (!rc) device_arena(&p->cfg, s->be);
    if (!rc) rc = tokenizer_load(&s->tok, c->model_path, e);
    if (!rc) {
        rc = model_allow_added(s->model, (int)c->adapters_max_added_tokens, tokenizer_vocab(s->tok),
                               e);
    }
    if (!rc) {
        rc = grammar_maker_create(&s->grammars, s->tok, model_get_config(s->model)->n_vocab, e);
    }
    if (rc) return err_context(e, "model.path");
    grammar_documents *documents;
    rc = grammar_documents_read(&documents, c->grammar_documents, c->data_dir, e);
    if (rc) return err_context(e, "grammar.documents");
    grammar_maker_take_documents(s->grammars, documents);
    rc = set_kv_type(c, s->model, e);
    if (rc) return rc;
    rc = draft_model_load(&s->draft, c, s->be, s->tok, e);
    if (rc) return err_context(e, "model.draft");
    err why;
    rc = chat_template_load(&s->chat, c->model_path, c->model_chat_template, s->tok, &why);
    if (rc) {
        bool asked = strcmp(c->model_chat_template, "auto") != 0;
        if (asked) return err_set(e, rc, "model.chat_template: %s", why.msg);
        s->chat = NULL; /* completions still work; chat says why it does not */
        snprintf(s->chat_problem, sizeof(s->chat_problem), "%s", why.msg);
        log_warn("gateway", "chat is off: %s", why.msg);
    }
    rc = pooled_read(&s->pooled, c->model_path, c->model_pooling, e);
    if (rc) return err_context(e, "model.path");
    if (s->pooled.problem[0]) log_warn("gateway", "embeddings are off: %s", s->pooled.problem);
    s->thinking = c->model_reasoning ? thinking_style_of(s->chat) : THINKING_NONE;
    const model_config *mc = model_get_config(s->model);
    char text[320];
    uint8_t digest[DIGEST_BYTES];
    int n =
        snprintf(text, sizeof(text), "%s %s %s %s %s %d %d %d %s %llx", LORAD_VERSION, mc->family,
                 mc->format, be_caps(s->be)->detail, model_kv_name(s->model), mc->n_layer, mc->dim,
                 mc->n_vocab, c->model_weights, (unsigned long long)mc->weights_print);
    digest_bytes(text, (size_t)n, digest);
    snprintf(s->fingerprint, sizeof(s->fingerprint), "fp_%02x%02x%02x%02x%02x", digest[0],
             digest[1], digest[2], digest[3], digest[4]);
    return ERR_NONE;
}

static err_code random_key(uint8_t key[SEAL_KEY_BYTES], err *e)
{
    return getrandom(key, SEAL_KEY_BYTES, 0) == SEAL_KEY_BYTES
               ? ERR_NONE
               : err_set(e, ERR_INTERNAL, "the system gives no random bytes");
}

static err_code open_storage(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    store_options options = {.node = (int)c->server_node};
    if (fleet_source(c, &p->fleet)) {
        options.fleet = &p->fleet;
        options.create = true; /* a node that joins begins with the fleet's rows */
    }
    err_code rc = store_open(&s->store, c->data_dir, &options, e);
    if (rc) return err_context(e, options.fleet ? "data.dir, storage.database" : "data.dir");
    rc = look_at_tenants(s, e);
    if (rc) return rc;
    int running = (int)(c->engine_max_queued + c->engine_max_seqs) + SLOT_MARGIN;
    int spool = (int)(c->data_spool / METER_SLOT_BYTES);
    rc = meter_file_open(&s->meters, s->store, running, spool, NULL, e);
    if (rc) return err_context(e, "data.spool");
    publish_sweep(c->data_dir);
    s->is_sealed = c->responses_key_file[0] != 0;
    if (!s->is_sealed) return random_key(s->resume_key, e);
    rc = seal_read_key(c->responses_key_file, s->key, e);
    memcpy(s->resume_key, s->key, sizeof(s->key));
    return rc ? err_context(e, "responses.key_file") : ERR_NONE;
}

static err_code exchange_leases(void *self, const lease_ask *asks, int n, lease_grant *out, err *e)
{
    return lease_exchange(self, asks, n, out, e);
}

/* What a process before could not settle counts against budgets before anything moves. */
static err_code open_limits(parts *p, err *e)
{
    server *s = &p->srv;
    s->limits = limits_create(s->store);
    s->token_limits = limits_create_of_requests();
    s->inflight = inflight_create();
    if (!s->limits || !s->token_limits || !s->inflight)
        return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = limits_load(s->limits, e);
    if (rc) return rc;
    meter_slot *slot;
    meter_file_stats left;
    meter_file_stats_get(s->meters, &left);
    for (int i = 0; left.n_ended > 0 && (slot = meter_file_next_ended(s->meters, &i));) {
        usage_row row;
        meter_slot_row(slot, &row);
        limits_add_used(s->limits, row.tenant_id, row.started_wall_us,
                        (int64_t)row.prompt_tokens + row.output_tokens);
    }
    if (store_in_fleet(s->store))
        rc = limits_lease(s->limits, exchange_leases, s->store, p->cfg.storage_limits_open, e);
    if (rc) return rc;
    return settler_start(&s->settler, s->store, s->meters, e);
}

/* A chunk holds a KV page, and any piece that an adapter may not be cut below. */
static err_code open_devmem(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    attn_shape shape = model_attn_shape(s->model);
    size_t chunk = be_kv_page_bytes(s->be, &shape);
    size_t least = adapter_chunk_least(model_get_config(s->model), s->be);
    if (chunk < least) chunk = least;
    chunk = (chunk + 63) / 64 * 64;
    size_t n = (size_t)c->engine_kv_memory / chunk;
    size_t bound = ((size_t)c->adapters_device_memory + chunk - 1) / chunk;
    if (n > INT32_MAX) n = INT32_MAX;
    if (bound > n) bound = 0;
    err_code rc = devmem_create(&s->arena, s->be, (int)n, chunk, (int)bound, e);
    return rc ? err_context(e, "engine.kv_memory") : rc;
}

static staging_config uploads_of(const config *c)
{
    return (staging_config){.max_open = (int)c->adapters_max_open_uploads,
                            .expiry_us = c->adapters_upload_expiry_us};
}

static bool on_device(void *self, uint64_t version_id)
{
    residency_state now = residency_get(self, version_id, NULL);
    return now == RESIDENCY_RESIDENT || now == RESIDENCY_LOADING;
}

static err_code open_depot(parts *p, err *e)
{
    server *s = &p->srv;
    const depot_config dc = {.reg = s->registry,
                             .room = s->room,
                             .remote = p->bucket ? bucket_remote(p->bucket) : (remote){0},
                             .cache_bytes = (uint64_t)p->cfg.store_cache_bytes,
                             .in_use = on_device,
                             .in_use_self = s->residency,
                             .cut = &s->cut};
    return p->bucket ? depot_start(&s->depot, &dc, e) : ERR_NONE;
}

static err_code open_adapters(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    registry_config rc_cfg = {
        .reserved = {c->model_name}, .n_reserved = 1, .remote = *c->store_url != 0};
    err_code rc = object_store_open(&p->bucket, c, e);
    if (rc) return rc;
    rc = registry_create(&s->registry, s->store, &rc_cfg, e);
    if (rc) return rc;
    s->stacks = stacks_create(s->registry);
    if (!s->stacks) return err_set(e, ERR_NOMEM, "no memory for stacks of adapters");
    rc = open_devmem(p, e);
    if (rc) return rc;
    residency_config rs = {.arena = s->arena,
                           .host_bytes = (size_t)c->adapters_host_memory,
                           .host_int8 = c->adapters_host_int8,
                           .n_loaders = (int)c->adapters_loaders,
                           .copy_share = (int)c->adapters_copy_share,
                           .stacks = s->stacks,
                           .weights = s->model};
    rc = residency_create(&s->residency, &rs, s->be, model_get_config(s->model), s->registry, e);
    if (rc) return rc;
    p->source = residency_source(s->residency);
    s->vocabularies =
        vocabularies_create(s->store, s->tok, model_get_config(s->model)->n_vocab, s->chat);
    if (!s->vocabularies) return err_set(e, ERR_NOMEM, "no memory for adapters' vocabularies");
    s->disk_floor_bytes = disk_floor_bytes(c->data_dir, (uint64_t)c->data_min_free);
    rc = storeroom_create(&s->room, c->data_dir, s->disk_floor_bytes, e);
    if (!rc) rc = open_depot(p, e);
    if (rc) return rc;
    s->tenant_share = (int64_t)disk_share_bytes(c->data_dir);
    s->upload = (upload_env){.reg = s->registry,
                             .fill = residency_fill,
                             .filler = s->residency,
                             .room = s->room,
                             .depot = s->depot,
                             .tok = s->tok,
                             .base = model_get_config(s->model),
                             .be = s->be,
                             .max_bytes = (uint64_t)c->adapters_max_upload,
                             .max_packed_bytes = (uint64_t)devmem_lease_limit(s->arena, NULL) *
                                                 devmem_chunk_bytes(s->arena)};
    staging_config sg = uploads_of(c);
    return staging_open(&s->staging, &s->upload, &sg, e);
}

static err_code open_scheduler(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    bool guesses = strcmp(c->engine_speculate, "off") != 0;
    sched_config sc = {.max_rows = (int)c->engine_max_rows,
                       .max_seqs = (int)c->engine_max_seqs,
                       .max_queued = (int)c->engine_max_queued,
                       .max_context = (int)c->engine_max_context,
                       .max_logits = (int)c->engine_max_seqs + SCHED_SCORE_ROWS,
                       .arena = s->arena,
                       .prefix_cache = c->engine_prefix_cache,
                       .no_overlap = !c->engine_overlap,
                       .swap_bytes = (size_t)c->engine_swap_bytes,
                       .preemption = strcmp(c->engine_preemption, "swap") == 0 ? PREEMPT_SWAP
                                     : strcmp(c->engine_preemption, "recompute") == 0
                                         ? PREEMPT_RECOMPUTE
                                         : PREEMPT_CHEAPER,
                       .speculate = guesses ? (int)c->engine_speculate_tokens : 0,
                       .speculate_always = strcmp(c->engine_speculate, "always") == 0,
                       .draft = s->draft,
                       .n_faults = p->legacy.n_faults,
                       .n_restarts = p->legacy.n_restarts,
                       .max_tenants = (int)c->metrics_max_tenants,
                       .n_class = s->n_class};
    describe_classes(c, sc.classes);
    return sched_create(&s->sched, &sc, s->model, s->be, &p->source, e);
}

static uint64_t next_id(server *s)
{
    return store_next_id(s->store);
}

static bool takes_plain(server *s, const network_address *from)
{
    const config *c = live_pin(s->live);
    bool takes = networks_hold(c->server_plain_networks, from);
    live_release(s->live, c);
    return takes;
}

static void make_host(parts *p)
{
    http_host *h = &p->srv.http;
    const config *c = &p->cfg;
    h->server = &p->srv;
    h->answer = route_dispatch;
    h->next_id = next_id;
    h->max_body_bytes = c->server_max_body;
    h->body_timeout_us = c->server_body_timeout_us;
    h->max_connections = config_max_connections(c);
    h->max_connections_per_ip = config_max_connections_per_ip(c);
    h->plain_listen = c->server_plain_listen;
    h->takes_plain = takes_plain;
}

static err_code open_listener(parts *p, listener **out, plane which, const char *option,
                              const char *addresses, int n_threads, err *e)
{
    err_code rc = listener_open(out, &p->srv.http, which, addresses, n_threads, &p->tls, e);
    return rc ? err_context(e, "%s", option) : ERR_NONE;
}

static err_code open_listeners(parts *p, err *e)
{
    const config *c = &p->cfg;
    const char *served =
        c->server_plain_listen[0] ? "server.listen, server.plain_listen" : "server.listen";
    err_code rc = tls_warm_up(&p->tls, e);
    if (!rc)
        rc = open_listener(p, &p->metrics, PLANE_METRICS, "metrics.listen", c->metrics_listen,
                           LISTENER_METRICS_THREADS, e);
    if (!rc)
        rc = open_listener(p, &p->admin, PLANE_ADMIN, "admin.listen", c->admin_listen,
                           LISTENER_ADMIN_THREADS, e);
    if (!rc)
        rc = open_listener(p, &p->inference, PLANE_INFERENCE, served, c->server_listen,
                           (int)c->server_threads, e);
    return rc;
}

static err_code open_traces(parts *p, err *e)
{
    const config *c = &p->cfg;
    spans_config sc = {.endpoint = c->traces_endpoint,
                       .headers = c->traces_headers[0] ? c->traces_headers : NULL,
                       .sample = config_traces_sample(c),
                       .version = LORAD_VERSION,
                       .node = (int)c->server_node};
    return c->traces_endpoint[0] ? spans_create(&p->srv.spans, &sc, e) : ERR_NONE;
}

/* Storage first: what it holds is asked for by all others.  Listeners last: whoever comes is
 * served. */
err_code parts_open(parts *p, err *e)
{
    p->srv.cfg = &p->cfg;
    p->srv.started_wall_us = clock_wall_us();
    name_classes(&p->srv, &p->cfg);
    make_host(p);
    err_code rc = open_storage(p, e);
    if (!rc) rc = open_model(p, e);
    if (!rc) rc = open_adapters(p, e);
    if (!rc) rc = open_limits(p, e);
    if (!rc) rc = open_scheduler(p, e);
    if (!rc && !(p->srv.stats = stats_create(&p->srv))) rc = err_set(e, ERR_NOMEM, "no memory");
    if (!rc) rc = open_traces(p, e);
    if (!rc) rc = batch_runner_start(&p->srv.batches, &p->srv, e);
    if (!rc && p->cfg.responses_background)
        rc = background_start(&p->srv.background, &p->srv, (int)p->cfg.responses_background, e);
    if (!rc) rc = firsts_create(&p->srv.firsts, e);
    p->srv.first_fetch = first_fetch;
    if (!rc && p->cfg.adapters_probe) rc = effect_start(&p->srv.effects, &p->srv, e);
    if (!rc && *p->cfg.server_fleet_address)
        rc = mover_create(&p->srv.mover, &p->srv, p->tls.cert, e);
    if (!rc) rc = open_listeners(p, e);
    return rc;
}

static void *close_listener(void *l)
{
    listener_close(l);
    return NULL;
}

/* Side by side: civetweb may take 0.2 s to stop each. */
static void close_listeners(parts *p)
{
    listener *all[] = {p->inference, p->admin, p->metrics};
    pthread_t thread[3];
    bool started[3];
    for (int i = 0; i < 3; i++) {
        started[i] = pthread_create(&thread[i], NULL, close_listener, all[i]) == 0;
        if (!started[i]) listener_close(all[i]);
    }
    for (int i = 0; i < 3; i++) {
        if (started[i]) (void)pthread_join(thread[i], NULL);
    }
}

void parts_close(parts *p)
{
    server *s = &p->srv;
    close_listeners(p);
    atomic_store(&s->cut, true); /* what a failed start has begun, too */
    batch_runner_stop(s->batches);
    background_stop(s->background);
    effect_stop(s->effects);
    firsts_destroy(s->firsts);
    mover_destroy(s->mover);
    spans_destroy(s->spans);
    stats_destroy(s->stats);
    sched_destroy(s->sched);
    staging_close(s->staging);
    depot_stop(s->depot);
    bucket_close(p->bucket);
    storeroom_destroy(s->room);
    if (s->residency) residency_destroy(s->residency);
    devmem_destroy(s->arena);
    stacks_destroy(s->stacks);
    if (s->registry) registry_destroy(s->registry);
    limits_destroy(s->limits);
    limits_destroy(s->token_limits);
    inflight_destroy(s->inflight);
    settler_stop(s->settler);
    meter_file_close(s->meters);
    store_close(s->store);
    vocabularies_destroy(s->vocabularies);
    chat_template_destroy(s->chat);
    grammar_maker_destroy(s->grammars);
    tokenizer_destroy(s->tok);
    pooled_clear(&s->pooled);
    model_destroy(s->draft);
    model_destroy(s->model);
    be_close(s->be);
}

void parts_follow(parts *p, const config *c)
{
    server *s = &p->srv;
    slo_class classes[SLO_CLASS_MAX];
    staging_config sg = uploads_of(c);
    describe_classes(c, classes);
    sched_adjust(s->sched, classes, (int)c->engine_max_queued);
    staging_limit(s->staging, &sg, (uint64_t)c->adapters_max_upload);
    s->disk_floor_bytes = disk_floor_bytes(c->data_dir, (uint64_t)c->data_min_free);
    storeroom_set_floor(s->room, s->disk_floor_bytes);
    s->http.max_body_bytes = c->server_max_body;
    s->http.body_timeout_us = c->server_body_timeout_us;
    listener_limit(p->inference, config_max_connections(c), config_max_connections_per_ip(c));
}
