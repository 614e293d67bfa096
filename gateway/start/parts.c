/* parts.c -- opens the modules of a server, each with its section of the configuration; closes them
 * in reverse.
 *
 *   open_storage    database, mapped file of meters, key of stored responses
 *   open_model      device, weights, tokenizer, template, grammars, fingerprint
 *   open_adapters   registry, device memory, residency, uploads
 *   open_limits     counters, unsettled usage of the process before, settler
 *   open_scheduler  the engine thread
 *   ...             webhooks, statistics, traces, batches, background, mover
 *   open_listeners  last: a client that connects is served
 *
 * parts_open() stops at the first failure; parts_close() accepts any prefix, because everything is
 * zero until it is opened and each destructor takes NULL.  It closes listeners first, so no new
 * work arrives, and storage late, so that all ending requests can settle.
 *
 * Usage that a former process could not write counts against budgets before the first request
 * (open_limits()), so a restart gives no tenant a second budget.
 *
 * parts_follow() passes the live options of a changed configuration to the modules that keep a
 * copy.
 */
#include "gateway/start/parts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "adapters/residency/load.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/program/nice_pool.h"
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
#include "gateway/start/base_model.h"
#include "gateway/start/draft_model.h"
#include "gateway/start/fleet_source.h"
#include "gateway/start/object_store.h"
#include "gateway/start/secret_file.h"
#include "gateway/start/tokenizer_reader.h"
#include "gateway/watch/spans.h"
#include "gateway/watch/stats.h"
#include "gateway/watch/webhooks.h"
#include "storage/disk.h"
#include "storage/meter_file.h"
#include "storage/settler.h"
#include "storage/targets.h"
#include "storage/watch/self_check.h"

enum { SLOT_MARGIN = 64, ENCODER_NICE = 10 };

_Static_assert((int)CLASS_MAX == (int)SLO_CLASS_MAX, "the scheduler takes all classes");

static void describe_classes(const config_classes *c, slo_class out[SLO_CLASS_MAX])
{
    memset(out, 0, SLO_CLASS_MAX * sizeof(*out));
    for (int i = 0; i < c->n; i++) {
        const config_class *k = &c->each[i];
        out[i] = (slo_class){.rank = i,
                             .ttft_us = k->ttft_us,
                             .tpot_us = k->tpot_us,
                             .weight = (float)k->weight_milli / 1000,
                             .reject_on_overload = strcmp(k->overload, "reject") == 0};
        snprintf(out[i].name, sizeof(out[i].name), "%s", k->name);
    }
}

/* Names of classes, which are fixed while the server runs. */
static void name_classes(server *s, const config_classes *c)
{
    s->engine.n_class = c->n;
    for (int i = 0; i < c->n; i++)
        memcpy(s->engine.class_name[i], c->each[i].name, sizeof(s->engine.class_name[i]));
}

static bool some_is_class(const config_classes *c, const char *list)
{
    for (int i = 0; i < c->n; i++) {
        if (list_allows(list, c->each[i].name)) return true;
    }
    return false;
}

/* A tenant's settings may name a class that is no longer configured; they are kept, because it may
 * return. */
static void tell_lost_classes(const server *s, const tenant *t)
{
    const char *list = t->targets;
    target each;
    if (t->default_class[0] && class_of_tier(&s->process.cfg->classes, t->default_class) < 0) {
        log_warn("gateway",
                 "tenant %s: its default class '%s' is not configured; the server's stands in",
                 t->name, t->default_class);
    }
    if (!some_is_class(&s->process.cfg->classes, t->classes)) {
        log_warn("gateway", "tenant %s: none of the classes that it may use is configured: %s",
                 t->name, t->classes);
    }
    while (targets_next(&list, &each)) {
        if (class_of_name(&s->process.cfg->classes, each.class) >= 0) continue;
        log_warn("gateway", "tenant %s: its own targets in '%s' mean nothing: no such class",
                 t->name, each.class);
    }
}

static err_code look_at_tenants(const server *s, err *e)
{
    tenant *list;
    size_t n;
    err_code rc = tenants_list(s->tenants.store, 0, 0, &list, &n, e);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) tell_lost_classes(s, &list[i]);
    free(list);
    return ERR_NONE;
}

static err_code set_kv_type(const config_engine *c, model *m, err *e)
{
    if (strcmp(c->kv_type, "auto") == 0) return ERR_NONE;
    dtype type = model_kv_type(model_get_config(m), c->kv_type);
    err_code rc = model_set_kv_type(m, type, e);
    return rc ? err_context(e, "engine.kv_type = %s", c->kv_type) : rc;
}

/* Loads the model and its tokenizer in parallel. */
static err_code load_model(server *s, const config *c, const model_options *options, err *e)
{
    tokenizer_reader reader;
    tokenizer_reader_begin(&reader, c->model.path);
    err_code rc =
        model_load_with(&s->engine.model, c->model.path, s->engine.be, (int)c->engine.max_rows,
                        (int)c->engine.max_seqs + SCHED_SCORE_ROWS, options, e);
    err_code read = tokenizer_reader_end(&reader, &s->engine.tok, rc ? NULL : e);
    return rc ? rc : read;
}

/* p->cfg gets the path on the disk; what was configured stays in srv.process.live. */
static err_code find_model(parts *p, err *e)
{
    char path[PATH_MAX];
    err_code rc = base_model_find(&p->cfg, BASE_MODEL_DOWNLOAD, path, e);
    if (rc) return rc;
    if (strlen(path) >= sizeof(p->cfg.model.path))
        return err_set(e, ERR_INPUT, "model.path: '%.80s' is longer than %zu bytes", path,
                       sizeof(p->cfg.model.path) - 1);
    memcpy(p->cfg.model.path, path, strlen(path) + 1);
    return ERR_NONE;
}

/* Device, model, grammars, draft model, chat template, pooling; and the fingerprint that answers
 * carry, made of all that decides their bits. A template that cannot be read turns chat off,
 * unless the configuration names it. */
static err_code open_model(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    char reason[256];
    err_code rc = device_open(&s->engine.be, c, p->without, reason, sizeof(reason), e);
    char packed[CONFIG_TEXT_MAX + 16];
    snprintf(packed, sizeof(packed), "%s/packed", c->data.dir);
    model_options options = {.weights = model_weights_form(c->model.weights),
                             .activations = model_activations_form(c->model.activations),
                             .max_context = (int)c->engine.max_context,
                             .sinks = (int)c->model.attention_sinks,
                             .window = (int)c->model.attention_window,
                             .resident_bytes = (size_t)c->model.resident_bytes,
                             .packed_dir = c->debug.packed_cache ? packed : NULL,
                             .packed_floor_bytes =
                                 disk_floor_bytes(c->data.dir, (uint64_t)c->data.min_free)};
    if (!rc && be_can_sample(s->engine.be) && strcmp(c->engine.logprobs_mode, "raw_logprobs") == 0)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "engine.logprobs_mode: raw_logprobs are not supported on a CUDA device");
    if (!rc) {
        device_gpu_unused(c, reason, s->engine.gpu_unused, sizeof(s->engine.gpu_unused));
        if (s->engine.gpu_unused[0])
            log_warn("gateway", "%s. Or set engine.backend: cpu accepts it, cuda refuses to start",
                     s->engine.gpu_unused);
        else if (reason[0])
            log_info("gateway", "serving on the CPU: %s", reason);
        rc = load_model(s, c, &options, e);
    }
    if (!rc) device_arena(&p->cfg.engine, s->engine.be);
    if (!rc) {
        rc = model_allow_added(s->engine.model, (int)c->adapters.max_added_tokens,
                               tokenizer_vocab(s->engine.tok), e);
    }
    if (!rc) {
        rc = grammar_maker_create(&s->engine.grammars, s->engine.tok,
                                  model_get_config(s->engine.model)->n_vocab, e);
    }
    if (rc) return err_context(e, "model.path");
    grammar_documents *documents;
    rc = grammar_documents_read(&documents, c->grammar.documents, c->data.dir, e);
    if (rc) return err_context(e, "grammar.documents");
    grammar_maker_take_documents(s->engine.grammars, documents);
    rc = set_kv_type(&c->engine, s->engine.model, e);
    if (rc) return rc;
    rc = draft_model_load(&s->engine.draft, c, s->engine.be, s->engine.tok, e);
    if (rc) return err_context(e, "model.draft");
    err why;
    rc = chat_template_load(&s->engine.chat, c->model.path, c->model.chat_template, s->engine.tok,
                            &why);
    if (rc) {
        bool asked = strcmp(c->model.chat_template, "auto") != 0;
        if (asked) return err_set(e, rc, "model.chat_template: %s", why.msg);
        s->engine.chat = NULL; /* completions still work; chat reports the reason */
        snprintf(s->engine.chat_problem, sizeof(s->engine.chat_problem), "%s", why.msg);
        log_warn("gateway", "chat is off: %s", why.msg);
    }
    rc = pooled_read(&s->engine.pooled, c->model.path, c->model.pooling, e);
    if (rc) return err_context(e, "model.path");
    if (s->engine.pooled.problem[0])
        log_warn("gateway", "embeddings are off: %s", s->engine.pooled.problem);
    s->engine.thinking = c->model.reasoning ? thinking_style_of(s->engine.chat) : THINKING_NONE;
    const model_config *mc = model_get_config(s->engine.model);
    char text[512];
    uint8_t digest[DIGEST_BYTES];
    int n = snprintf(text, sizeof(text), "%s %s %s %s %s %d %d %d %s %s %llx %llx", LORAD_VERSION,
                     mc->family, mc->format, be_caps(s->engine.be)->detail,
                     model_kv_name(s->engine.model), mc->n_layer, mc->dim, mc->n_vocab,
                     c->model.weights, c->model.activations, (unsigned long long)mc->weights_print,
                     (unsigned long long)be_order(s->engine.be));
    digest_bytes(text, (size_t)n, digest);
    snprintf(s->engine.fingerprint, sizeof(s->engine.fingerprint), "fp_%02x%02x%02x%02x%02x",
             digest[0], digest[1], digest[2], digest[3], digest[4]);
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
    store_options options = {.node = (int)c->server.node};
    if (fleet_source(c, &p->fleet)) {
        options.fleet = &p->fleet;
        options.create = true; /* a server that joins begins with the fleet's rows */
    }
    err_code rc = store_open(&s->tenants.store, c->data.dir, &options, e);
    if (rc) return err_context(e, options.fleet ? "data.dir, storage.database" : "data.dir");
    rc = look_at_tenants(s, e);
    if (rc) return rc;
    int running = (int)(c->engine.max_queued + c->engine.max_seqs) + SLOT_MARGIN;
    int spool = (int)(c->data.spool / METER_SLOT_BYTES);
    rc = meter_file_open(&s->engine.meters, s->tenants.store, running, spool, NULL, e);
    if (rc) return err_context(e, "data.spool");
    publish_sweep(c->data.dir);
    s->tenants.is_sealed = c->responses.key_file[0] != 0;
    if (!s->tenants.is_sealed) return random_key(s->tenants.resume_key, e);
    rc = seal_read_key(c->responses.key_file, s->tenants.key, e);
    memcpy(s->tenants.resume_key, s->tenants.key, sizeof(s->tenants.key));
    return rc ? err_context(e, "responses.key_file") : ERR_NONE;
}

static err_code exchange_leases(void *self, const lease_ask *asks, int n, lease_grant *out, err *e)
{
    return lease_exchange(self, asks, n, out, e);
}

/* Usage that a former process could not settle counts against budgets before anything runs. */
static err_code open_limits(parts *p, err *e)
{
    server *s = &p->srv;
    s->tenants.limits = limits_create(s->tenants.store);
    s->tenants.token_limits = limits_create_of_requests();
    s->tenants.write_limits = limits_create_of_requests();
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    err_code made =
        nice_pool_create(&s->engine.encoders, cores >= 8 ? (int)cores / 4 : 1, ENCODER_NICE, e);
    if (made) return made;
    s->tenants.inflight = inflight_create();
    if (!s->tenants.limits || !s->tenants.token_limits || !s->tenants.write_limits ||
        !s->tenants.inflight)
        return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = limits_load(s->tenants.limits, e);
    if (!rc && p->cfg.data.check_every_us > 0)
        rc = self_check_start(&s->process.self_check, s->tenants.store, p->cfg.data.check_every_us,
                              e);
    if (rc) return rc;
    meter_slot *slot;
    meter_file_stats left;
    meter_file_stats_get(s->engine.meters, &left);
    for (int i = 0; left.n_ended > 0 && (slot = meter_file_next_ended(s->engine.meters, &i));) {
        usage_row row;
        meter_slot_row(slot, &row);
        limits_add_used(s->tenants.limits, row.tenant_id, row.started_wall_us,
                        (int64_t)row.prompt_tokens + row.output_tokens, row.cost);
    }
    if (store_in_fleet(s->tenants.store))
        rc = limits_lease(s->tenants.limits, exchange_leases, s->tenants.store,
                          p->cfg.storage.limits_open, e);
    if (rc) return rc;
    return settler_start(&s->engine.settler, s->tenants.store, s->engine.meters, e);
}

/* A chunk is as large as a KV page, or as the smallest indivisible part of an adapter. */
static err_code open_devmem(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    attn_shape shape = model_attn_shape(s->engine.model);
    size_t chunk = be_kv_page_bytes(s->engine.be, &shape);
    size_t least = adapter_chunk_least(model_get_config(s->engine.model), s->engine.be);
    if (chunk < least) chunk = least;
    chunk = (chunk + 63) / 64 * 64;
    size_t n = (size_t)c->engine.kv_memory / chunk;
    size_t bound = ((size_t)c->adapters.device_memory + chunk - 1) / chunk;
    if (n > INT32_MAX) n = INT32_MAX;
    if (bound > n) bound = 0;
    err_code rc = devmem_create(&s->engine.arena, s->engine.be, (int)n, chunk, (int)bound, e);
    return rc ? err_context(e, "engine.kv_memory") : rc;
}

static staging_config uploads_of(const config_adapters *c)
{
    return (staging_config){.max_open = (int)c->max_open_uploads, .expiry_us = c->upload_expiry_us};
}

static bool on_device(void *self, uint64_t version_id)
{
    residency_state now = residency_get(self, version_id, NULL);
    return now == RESIDENCY_RESIDENT || now == RESIDENCY_LOADING;
}

static err_code open_depot(parts *p, err *e)
{
    server *s = &p->srv;
    const depot_config dc = {.reg = s->adapters.registry,
                             .room = s->adapters.room,
                             .remote = p->bucket ? bucket_remote(p->bucket) : (remote){0},
                             .cache_bytes = (uint64_t)p->cfg.store.cache_bytes,
                             .in_use = on_device,
                             .in_use_self = s->adapters.residency,
                             .cut = &s->process.cut};
    return p->bucket ? depot_start(&s->adapters.depot, &dc, e) : ERR_NONE;
}

/* In the order in which they need each other: object store, registry, stacks, the arena on the
 * device, residency, vocabularies, room on the disk, depot, uploads. */
static err_code open_adapters(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    registry_config rc_cfg = {
        .reserved = {c->model.name}, .n_reserved = 1, .remote = *c->store.url != 0};
    err_code rc = object_store_open(&p->bucket, c, e);
    if (rc) return rc;
    rc = registry_create(&s->adapters.registry, s->tenants.store, &rc_cfg, e);
    if (rc) return rc;
    s->adapters.stacks = stacks_create(s->adapters.registry);
    if (!s->adapters.stacks) return err_set(e, ERR_NOMEM, "no memory for stacks of adapters");
    rc = open_devmem(p, e);
    if (rc) return rc;
    residency_config rs = {.arena = s->engine.arena,
                           .host_bytes = (size_t)c->adapters.host_memory,
                           .host_int8 = c->adapters.host_int8,
                           .n_loaders = (int)c->debug.loaders,
                           .copy_share = (int)c->debug.copy_share,
                           .stacks = s->adapters.stacks,
                           .weights = s->engine.model};
    rc = residency_create(&s->adapters.residency, &rs, s->engine.be,
                          model_get_config(s->engine.model), s->adapters.registry, e);
    if (rc) return rc;
    p->source = residency_source(s->adapters.residency);
    s->engine.vocabularies =
        vocabularies_create(s->tenants.store, s->engine.tok,
                            model_get_config(s->engine.model)->n_vocab, s->engine.chat);
    if (!s->engine.vocabularies)
        return err_set(e, ERR_NOMEM, "no memory for adapters' vocabularies");
    s->process.disk_floor_bytes = disk_floor_bytes(c->data.dir, (uint64_t)c->data.min_free);
    rc = storeroom_create(&s->adapters.room, c->data.dir, s->process.disk_floor_bytes, e);
    if (!rc) rc = open_depot(p, e);
    if (rc) return rc;
    s->adapters.tenant_share = (int64_t)disk_share_bytes(c->data.dir);
    s->adapters.upload =
        (upload_env){.reg = s->adapters.registry,
                     .fill = residency_fill,
                     .filler = s->adapters.residency,
                     .room = s->adapters.room,
                     .depot = s->adapters.depot,
                     .tok = s->engine.tok,
                     .base = model_get_config(s->engine.model),
                     .be = s->engine.be,
                     .max_bytes = (uint64_t)c->adapters.max_upload,
                     .max_packed_bytes = (uint64_t)devmem_lease_limit(s->engine.arena, NULL) *
                                         devmem_chunk_bytes(s->engine.arena)};
    staging_config sg = uploads_of(&c->adapters);
    return staging_open(&s->adapters.staging, &s->adapters.upload, &sg, e);
}

static err_code open_scheduler(parts *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    bool guesses = strcmp(c->engine.speculate, "off") != 0;
    sched_config sc = {.max_rows = (int)c->engine.max_rows,
                       .max_seqs = (int)c->engine.max_seqs,
                       .max_queued = (int)c->engine.max_queued,
                       .max_context = (int)c->engine.max_context,
                       .max_logits = (int)c->engine.max_seqs + SCHED_SCORE_ROWS,
                       .arena = s->engine.arena,
                       .prefix_cache = c->engine.prefix_cache,
                       .no_overlap = !c->debug.overlap,
                       .snapshot_bytes = (size_t)c->engine.snapshot_bytes,
                       .swap_bytes = (size_t)c->engine.swap_bytes,
                       .preemption = strcmp(c->engine.preemption, "swap") == 0 ? PREEMPT_SWAP
                                     : strcmp(c->engine.preemption, "recompute") == 0
                                         ? PREEMPT_RECOMPUTE
                                         : PREEMPT_CHEAPER,
                       .speculate = guesses ? (int)c->engine.speculate_tokens : 0,
                       .speculate_always = strcmp(c->engine.speculate, "always") == 0,
                       .draft = s->engine.draft,
                       .n_faults = p->legacy.n_faults,
                       .n_restarts = p->legacy.n_restarts,
                       .max_tenants = (int)c->metrics.max_tenants,
                       .n_class = s->engine.n_class};
    describe_classes(&c->classes, sc.classes);
    return sched_create(&s->engine.sched, &sc, s->engine.model, s->engine.be, &p->source, e);
}

static uint64_t next_id(void *app)
{
    server *s = app;
    return store_next_id(s->tenants.store);
}

static bool takes_plain(void *app, const network_address *from)
{
    server *s = app;
    const config *c = live_pin(s->process.live);
    bool takes = networks_hold(c->server.plain_networks, from);
    live_release(s->process.live, c);
    return takes;
}

static void make_host(parts *p)
{
    http_host *h = &p->srv.process.http;
    const config *c = &p->cfg;
    h->app = &p->srv;
    h->answer = route_dispatch;
    h->next_id = next_id;
    h->max_body_bytes = c->server.max_body;
    h->body_timeout_us = c->server.body_timeout_us;
    h->max_connections = config_max_connections(&c->server);
    h->max_connections_per_ip = config_max_connections_per_ip(&c->server);
    h->plain_listen = c->server.plain_listen;
    h->http2 = c->server.http2;
    h->takes_plain = takes_plain;
}

static err_code open_listener(parts *p, listener **out, plane which, const char *option,
                              const char *addresses, int n_threads, err *e)
{
    err_code rc = listener_open(out, &p->srv.process.http, which, addresses, n_threads, &p->tls, e);
    return rc ? err_context(e, "%s", option) : ERR_NONE;
}

static err_code open_listeners(parts *p, err *e)
{
    const config *c = &p->cfg;
    const char *served =
        c->server.plain_listen[0] ? "server.listen, server.plain_listen" : "server.listen";
    err_code rc = tls_warm_up(&p->tls, e);
    if (!rc)
        rc = open_listener(p, &p->metrics, PLANE_METRICS, "metrics.listen", c->metrics.listen,
                           LISTENER_METRICS_THREADS, e);
    if (!rc)
        rc = open_listener(p, &p->admin, PLANE_ADMIN, "admin.listen", c->admin.listen,
                           LISTENER_ADMIN_THREADS, e);
    if (!rc)
        rc = open_listener(p, &p->inference, PLANE_INFERENCE, served, c->server.listen,
                           (int)c->server.max_streams, e);
    return rc;
}

static err_code open_traces(parts *p, err *e)
{
    const config *c = &p->cfg;
    spans_config sc = {.endpoint = c->traces.endpoint,
                       .headers = c->traces.headers[0] ? c->traces.headers : NULL,
                       .sample = config_traces_sample(&c->traces),
                       .version = LORAD_VERSION,
                       .node = (int)c->server.node};
    return c->traces.endpoint[0] ? spans_create(&p->srv.engine.spans, &sc, e) : ERR_NONE;
}

static err_code open_webhooks(parts *p, err *e)
{
    const config *c = &p->cfg;
    char secret[256];
    if (!c->webhooks.url[0]) return ERR_NONE;
    err_code rc = secret_file_read(c->data.dir, c->webhooks.secret_file, "webhooks.secret_file",
                                   secret, sizeof(secret), e);
    webhooks_config wc = {.url = c->webhooks.url,
                          .secret = secret,
                          .events = c->webhooks.events,
                          .dir = c->data.dir,
                          .node = (int)c->server.node};
    if (!rc) rc = webhooks_create(&p->srv.process.webhooks, &wc, e);
    explicit_bzero(secret, sizeof(secret));
    return rc;
}

/* Storage first: all others read it.  Listeners last: a client that connects is served. */
err_code parts_open(parts *p, err *e)
{
    p->srv.process.cfg = &p->cfg;
    p->srv.process.started_wall_us = clock_wall_us();
    name_classes(&p->srv, &p->cfg.classes);
    make_host(p);
    err_code rc = open_storage(p, e);
    if (!rc) rc = find_model(p, e);
    if (!rc) rc = open_model(p, e);
    if (!rc) rc = open_adapters(p, e);
    if (!rc) rc = open_limits(p, e);
    if (!rc) rc = open_scheduler(p, e);
    if (!rc) rc = open_webhooks(p, e);
    if (!rc && !(p->srv.process.stats = stats_create(&p->srv)))
        rc = err_set(e, ERR_NOMEM, "no memory");
    if (!rc) rc = open_traces(p, e);
    if (!rc) rc = batch_runner_start(&p->srv.process.batches, &p->srv, e);
    if (!rc && p->cfg.responses.background)
        rc = background_start(&p->srv.process.background, &p->srv, (int)p->cfg.responses.background,
                              e);
    if (!rc) rc = firsts_create(&p->srv.adapters.firsts, e);
    p->srv.adapters.first_fetch = first_fetch;
    if (!rc && p->cfg.debug.probe) rc = effect_start(&p->srv.adapters.effects, &p->srv, e);
    if (!rc && *p->cfg.server.fleet_address)
        rc = mover_create(&p->srv.engine.mover, &p->srv, p->tls.cert, e);
    if (!rc) rc = open_listeners(p, e);
    return rc;
}

static void *close_listener(void *l)
{
    listener_close(l);
    return NULL;
}

/* In parallel: civetweb may take 0.2 s to stop each. */
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
    atomic_store(&s->process.cut, true); /* also what a failed start has begun */
    batch_runner_stop(s->process.batches);
    background_stop(s->process.background);
    effect_stop(s->adapters.effects);
    firsts_destroy(s->adapters.firsts);
    mover_destroy(s->engine.mover);
    spans_destroy(s->engine.spans);
    stats_destroy(s->process.stats);
    webhooks_destroy(s->process.webhooks); /* with the last events */
    sched_destroy(s->engine.sched);
    staging_close(s->adapters.staging);
    depot_stop(s->adapters.depot);
    bucket_close(p->bucket);
    storeroom_destroy(s->adapters.room);
    if (s->adapters.residency) residency_destroy(s->adapters.residency);
    devmem_destroy(s->engine.arena);
    stacks_destroy(s->adapters.stacks);
    if (s->adapters.registry) registry_destroy(s->adapters.registry);
    limits_destroy(s->tenants.limits);
    limits_destroy(s->tenants.token_limits);
    limits_destroy(s->tenants.write_limits);
    nice_pool_destroy(s->engine.encoders);
    inflight_destroy(s->tenants.inflight);
    settler_stop(s->engine.settler);
    self_check_stop(s->process.self_check);
    meter_file_close(s->engine.meters);
    store_close(s->tenants.store);
    vocabularies_destroy(s->engine.vocabularies);
    chat_template_destroy(s->engine.chat);
    grammar_maker_destroy(s->engine.grammars);
    tokenizer_destroy(s->engine.tok);
    pooled_clear(&s->engine.pooled);
    model_destroy(s->engine.draft);
    model_destroy(s->engine.model);
    be_close(s->engine.be);
}

void parts_follow(parts *p, const config *c)
{
    server *s = &p->srv;
    slo_class classes[SLO_CLASS_MAX];
    staging_config sg = uploads_of(&c->adapters);
    describe_classes(&c->classes, classes);
    sched_adjust(s->engine.sched, classes, (int)c->engine.max_queued);
    staging_limit(s->adapters.staging, &sg, (uint64_t)c->adapters.max_upload);
    s->process.disk_floor_bytes = disk_floor_bytes(c->data.dir, (uint64_t)c->data.min_free);
    storeroom_set_floor(s->adapters.room, s->process.disk_floor_bytes);
    s->process.http.max_body_bytes = c->server.max_body;
    s->process.http.body_timeout_us = c->server.body_timeout_us;
    s->process.http.http2 = c->server.http2;
    listener_limit(p->inference, config_max_connections(&c->server),
                   config_max_connections_per_ip(&c->server));
}
