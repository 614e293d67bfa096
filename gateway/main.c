/* main.c -- lorad: init, check, serve.
 *
 * serve() builds the rooms from the ground up, waits for signals, and takes them down in reverse:
 * stop accepting, let what runs finish until the drain deadline, cancel the rest, close.
 */
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "adapters/residency/load.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/program/process.h"
#include "engine/program/version.h"
#include "gateway/descriptors.h"
#include "gateway/device.h"
#include "gateway/http/listener.h"
#include "gateway/manual.h"
#include "gateway/net/devcert.h"
#include "gateway/net/tls_reserve.h"
#include "gateway/net/tls_warm.h"
#include "gateway/notify.h"
#include "gateway/offline_backup.h"
#include "gateway/openai/vocabulary.h"
#include "gateway/route.h"
#include "gateway/server.h"
#include "gateway/watch/stats.h"
#include "storage/audit.h"
#include "storage/disk.h"

/* After the drain what still runs is cut short, and the listeners end. */
enum { DRAIN_MARGIN_US = 30000000 };
enum { EXIT_USAGE = 2, SETS_MAX = 64, SLOT_MARGIN = 64 };
enum { PRUNE_ROWS = 2000 }; /* of old usage at once */
static const int64_t PRUNE_US = 3600 * INT64_C(1000000), DAY_US = 86400 * INT64_C(1000000);
enum { SWEEP_US = 5000000 };      /* between looks for abandoned uploads */
enum { MMAP_BYTES = 256 * 1024 }; /* allocations of that size are the system's own */

typedef struct {
    const char *file, *dir, *model;
    const char *sets[SETS_MAX];
    int n_sets;
} arguments;

static int fail(const err *e)
{
    fprintf(stderr, "lorad: %s\n", e->msg);
    return EXIT_FAILURE;
}

/* ---------------------------------------------------------------------- arguments -- */

static bool parse_arguments(int argc, char **argv, arguments *a)
{
    *a = (arguments){.file = "/etc/lorad/lorad.conf"};
    for (int i = 2; i < argc; i++) {
        const char **to = strcmp(argv[i], "-c") == 0 || strcmp(argv[i], "--config") == 0 ? &a->file
                          : strcmp(argv[i], "--dir") == 0                                ? &a->dir
                          : strcmp(argv[i], "--model") == 0                              ? &a->model
                                                                                         : NULL;
        bool set = strcmp(argv[i], "--set") == 0;
        if (!to && !set) {
            fprintf(stderr, "lorad: unknown argument '%s'\n\n", argv[i]);
            manual_usage(stderr);
            return false;
        }
        if (i + 1 >= argc || (set && a->n_sets == SETS_MAX)) {
            fprintf(stderr, "lorad: %s needs a value\n", argv[i]);
            return false;
        }
        if (set)
            a->sets[a->n_sets++] = argv[++i];
        else
            *to = argv[++i];
    }
    return true;
}

static err_code read_config(const arguments *a, config *c, err *e)
{
    config_defaults(c);
    err_code rc = config_read_file(c, a->file, e);
    if (rc) return err_context(e, "%s", a->file);
    rc = config_read_env(c, e);
    for (int i = 0; !rc && i < a->n_sets; i++) rc = config_set(c, a->sets[i], e);
    return rc ? rc : config_check(c, e);
}

static void apply_log(const config *c)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    static const char *const formats[] = {"text", "logfmt", "json"};
    int level = LOG_INFO, format = LOG_TEXT;
    for (int i = 0; i < 4; i++) {
        if (strcmp(c->log_level, levels[i]) == 0) level = i;
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(c->log_format, formats[i]) == 0) format = i;
    }
    log_setup((log_level)level, (log_format)format);
}

/* Relative to the data directory, unless absolute. */
static void in_data_dir(const config *c, const char *path, char out[PATH_MAX])
{
    if (path[0] == '/')
        snprintf(out, PATH_MAX, "%s", path);
    else
        snprintf(out, PATH_MAX, "%s/%s", c->data_dir, path);
}

static tls_files files_of_tls(const config *c, char cert[PATH_MAX], char key[PATH_MAX],
                              char ca[PATH_MAX])
{
    in_data_dir(c, c->server_tls_cert, cert);
    in_data_dir(c, c->server_tls_key, key);
    in_data_dir(c, c->admin_client_ca, ca);
    return (tls_files){cert, key, c->admin_client_ca[0] ? ca : NULL};
}

/* --------------------------------------------------------------------------- init -- */

static err_code make_dir(const char *path, mode_t mode, err *e)
{
    if (mkdir(path, mode) == 0 || errno == EEXIST) return ERR_NONE;
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

static err_code write_config(const config *c, const char *path, err *e)
{
    FILE *f = fopen(path, "wx");
    if (!f) {
        return err_set(e, errno == EEXIST ? ERR_EXISTS : ERR_IO, "%s: %s", path, strerror(errno));
    }
    config_print(c, f);
    if (fclose(f) != 0) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return ERR_NONE;
}

static err_code make_admin_key(const char *dir, char text[KEY_TEXT_LEN + 1], err *e)
{
    store *st;
    store_options options = {.create = true};
    err_code rc = store_open(&st, dir, &options, e);
    if (rc) return rc;
    key_info want = {.scopes = SCOPE_ADMIN, .name = "admin"}, made;
    rc = keys_create(st, &want, text, &made, e);
    if (!rc)
        rc = audit_append(st, 0, 0, "key.create", made.public_id, "{\"by\":\"lorad init\"}", e);
    store_close(st);
    return rc;
}

static int init(const arguments *a)
{
    err e;
    config c;
    char dir[PATH_MAX], model_dir[PATH_MAX], path[PATH_MAX + 64], cert[PATH_MAX + 64];
    char key[KEY_TEXT_LEN + 1];
    if (!a->dir || !a->model) {
        fprintf(stderr, "lorad: init needs --dir and --model\n");
        return EXIT_USAGE;
    }
    process_keep_secrets();
    config_defaults(&c);
    if (make_dir(a->dir, 0700, &e)) return fail(&e);
    if (!realpath(a->dir, dir) || !realpath(a->model, model_dir)) {
        (void)err_set(&e, ERR_IO, "%s: %s", a->model, strerror(errno));
        return fail(&e);
    }
    if (strlen(dir) >= CONFIG_TEXT_MAX || strlen(model_dir) >= CONFIG_TEXT_MAX) {
        (void)err_set(&e, ERR_INPUT, "a path is longer than %d bytes", CONFIG_TEXT_MAX - 1);
        return fail(&e);
    }
    memcpy(c.data_dir, dir, strlen(dir) + 1);
    memcpy(c.model_path, model_dir, strlen(model_dir) + 1);
    snprintf(path, sizeof(path), "%s/tls", dir);
    if (make_dir(path, 0700, &e)) return fail(&e);
    snprintf(cert, sizeof(cert), "%s/tls/cert.pem", dir);
    snprintf(path, sizeof(path), "%s/tls/key.pem", dir);
    if (devcert_write(cert, path, &e)) return fail(&e);
    err_code rc = make_admin_key(dir, key, &e);
    if (rc) return fail(&e);
    snprintf(path, sizeof(path), "%s/lorad.conf", dir);
    rc = write_config(&c, path, &e);
    if (rc) {
        explicit_bzero(key, sizeof(key));
        return fail(&e);
    }
    printf("config       %s\n"
           "certificate  %s (self-signed, for development)\n"
           "admin key    %s\n"
           "             shown once: keep it\n"
           "next         lorad serve -c %s\n",
           path, cert, key, path);
    explicit_bzero(key, sizeof(key));
    return EXIT_SUCCESS;
}

/* ------------------------------------------------------------------- the server -- */

typedef struct {
    arguments args;
    config cfg;
    config taken; /* as it was read, with what a reload has taken */
    server srv;
    listener *inference, *admin, *metrics;
    lora_source source;
    char cert[PATH_MAX], key[PATH_MAX], client_ca[PATH_MAX];
    tls_files tls;    /* these */
    int64_t prune_us; /* when old usage is looked for next */
    int64_t fed_us;   /* when the watchdog last heard of us */
} process;

static void make_classes(process *p)
{
    for (int i = 0; i < SERVER_CLASSES; i++) {
        slo_class *sc = &p->srv.classes[i];
        config_class parsed;
        err ignored; /* config_check() has parsed it before */
        (void)config_parse_class(p->cfg.classes[i], &parsed, &ignored);
        *sc = (slo_class){.rank = i,
                          .ttft_us = parsed.ttft_us,
                          .tpot_us = parsed.tpot_us,
                          .weight = (float)parsed.weight,
                          .reject_on_overload = parsed.reject};
        snprintf(sc->name, sizeof(sc->name), "%s", class_name(i));
    }
    p->srv.default_class = class_of_name(p->cfg.classes_default);
}

static err_code open_model(process *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    char reason[256];
    err_code rc = device_open(&s->be, c, reason, sizeof(reason), e);
    if (!rc) {
        if (reason[0]) log_info("gateway", "serving on the CPU: %s", reason);
        rc = model_load(&s->model, c->model_path, s->be, (int)c->engine_max_rows,
                        (int)c->engine_max_seqs + SCHED_SCORE_ROWS, e);
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
    err why;
    rc = chat_template_load(&s->chat, c->model_path, c->model_chat_template, s->tok, &why);
    if (rc) {
        bool asked = strcmp(c->model_chat_template, "auto") != 0;
        if (asked) return err_set(e, rc, "model.chat_template: %s", why.msg);
        s->chat = NULL; /* completions still work; chat says why it does not */
        snprintf(s->chat_problem, sizeof(s->chat_problem), "%s", why.msg);
        log_warn("gateway", "chat is off: %s", why.msg);
    }
    const model_config *mc = model_get_config(s->model);
    char text[256];
    uint8_t digest[DIGEST_BYTES];
    int n = snprintf(text, sizeof(text), "%s %s %s %d %d %d", LORAD_VERSION, mc->family,
                     be_caps(s->be)->detail, mc->n_layer, mc->dim, mc->n_vocab);
    digest_bytes(text, (size_t)n, digest);
    snprintf(s->fingerprint, sizeof(s->fingerprint), "fp_%02x%02x%02x%02x%02x", digest[0],
             digest[1], digest[2], digest[3], digest[4]);
    return ERR_NONE;
}

static err_code open_storage(process *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    store_options options = {0};
    err_code rc = store_open(&s->store, c->data_dir, &options, e);
    if (rc) return err_context(e, "data.dir");
    int running = (int)(c->engine_max_queued + c->engine_max_seqs) + SLOT_MARGIN;
    int spool = (int)(c->data_spool / METER_SLOT_BYTES);
    rc = meter_file_open(&s->meters, s->store, running, spool, NULL, e);
    if (rc) return err_context(e, "data.spool");
    publish_sweep(c->data_dir);
    return ERR_NONE;
}

/* What a process before could not settle counts against budgets before anything moves. */
static err_code open_limits(process *p, err *e)
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
    return settler_start(&s->settler, s->store, s->meters, e);
}

/* A chunk holds a KV page, and any piece that an adapter may not be cut below. */
static err_code open_devmem(process *p, err *e)
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

static err_code open_adapters(process *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
    registry_config rc_cfg = {.reserved = {c->model_name}, .n_reserved = 1};
    err_code rc = registry_create(&s->registry, s->store, &rc_cfg, e);
    if (rc) return rc;
    rc = open_devmem(p, e);
    if (rc) return rc;
    residency_config rs = {.arena = s->arena,
                           .host_bytes = (size_t)c->adapters_host_memory,
                           .host_int8 = c->adapters_host_int8,
                           .n_loaders = (int)c->adapters_loaders,
                           .copy_share = (int)c->adapters_copy_share,
                           .weights = s->model};
    rc = residency_create(&s->residency, &rs, s->be, model_get_config(s->model), s->registry, e);
    if (rc) return rc;
    p->source = residency_source(s->residency);
    s->vocabularies =
        vocabularies_create(s->store, s->tok, model_get_config(s->model)->n_vocab, s->chat);
    if (!s->vocabularies) return err_set(e, ERR_NOMEM, "no memory for adapters' vocabularies");
    s->disk_floor_bytes = disk_floor_bytes(c->data_dir, (uint64_t)c->data_min_free);
    rc = storeroom_create(&s->room, c->data_dir, s->disk_floor_bytes, e);
    if (rc) return rc;
    s->tenant_bytes = c->adapters_tenant_bytes ? c->adapters_tenant_bytes
                                               : (int64_t)disk_share_bytes(c->data_dir);
    s->upload = (upload_env){.reg = s->registry,
                             .room = s->room,
                             .tok = s->tok,
                             .base = model_get_config(s->model),
                             .be = s->be,
                             .max_bytes = (uint64_t)c->adapters_max_upload,
                             .max_packed_bytes = (uint64_t)devmem_lease_limit(s->arena, NULL) *
                                                 devmem_chunk_bytes(s->arena)};
    staging_config sg = {.max_open = (int)c->adapters_max_open_uploads,
                         .expiry_us = c->adapters_upload_expiry_us};
    return staging_open(&s->staging, &s->upload, &sg, e);
}

static err_code open_scheduler(process *p, err *e)
{
    server *s = &p->srv;
    const config *c = &p->cfg;
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
                       .max_tenants = (int)c->metrics_max_tenants,
                       .n_class = SERVER_CLASSES};
    memcpy(sc.classes, s->classes, sizeof(s->classes));
    return sched_create(&s->sched, &sc, s->model, s->be, &p->source, e);
}

static uint64_t next_id(server *s)
{
    return store_next_id(s->store);
}

static void make_host(process *p)
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
}

static err_code open_listeners(process *p, err *e)
{
    const config *c = &p->cfg;
    http_host *h = &p->srv.http;
    make_host(p);
    err_code rc = tls_warm_up(&p->tls, e);
    if (!rc) {
        rc = listener_open(&p->metrics, h, PLANE_METRICS, c->metrics_listen,
                           LISTENER_METRICS_THREADS, &p->tls, e);
    }
    if (!rc) {
        rc = listener_open(&p->admin, h, PLANE_ADMIN, c->admin_listen, LISTENER_ADMIN_THREADS,
                           &p->tls, e);
    }
    if (!rc) {
        rc = listener_open(&p->inference, h, PLANE_INFERENCE, c->server_listen,
                           (int)c->server_threads, &p->tls, e);
    }
    return rc;
}

static void *close_listener(void *l)
{
    listener_close(l);
    return NULL;
}

/* Side by side: civetweb may take 0.2 s to stop each. */
static void close_listeners(process *p)
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

static void close_all(process *p)
{
    server *s = &p->srv;
    close_listeners(p);
    stats_destroy(s->stats);
    sched_destroy(s->sched);
    staging_close(s->staging);
    storeroom_destroy(s->room);
    if (s->residency) residency_destroy(s->residency);
    devmem_destroy(s->arena);
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
    model_destroy(s->model);
    be_close(s->be);
}

/* A certificate that ends soon, or is over, is the operator's before it is the clients'. */
static void tell_expiry(int64_t expires_wall_us)
{
    char text[128];
    log_level level = tls_expiry_text(expires_wall_us, text, sizeof(text));
    if (level > LOG_INFO) log_write(level, "gateway", "the certificate: %s", text);
}

static void reload(process *p)
{
    err e;
    config fresh;
    char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
    if (read_config(&p->args, &fresh, &e)) {
        log_error("gateway", "reload refused, the old config stays: %s", e.msg);
        return;
    }
    listener *all[] = {p->inference, p->admin, p->metrics};
    tls_files files = files_of_tls(&fresh, cert, key, ca);
    if (listener_reload(all, 3, &files, &e)) {
        log_error("gateway", "reload refused, the old certificate stays: %s", e.msg);
        return;
    }
    config *taken = &p->taken;
    memcpy(taken->server_tls_cert, fresh.server_tls_cert, sizeof(fresh.server_tls_cert));
    memcpy(taken->server_tls_key, fresh.server_tls_key, sizeof(fresh.server_tls_key));
    memcpy(taken->admin_client_ca, fresh.admin_client_ca, sizeof(fresh.admin_client_ca));
    memcpy(taken->log_level, fresh.log_level, sizeof(fresh.log_level));
    memcpy(taken->log_format, fresh.log_format, sizeof(fresh.log_format));
    char names[CONFIG_TEXT_MAX];
    bool more = config_differs(taken, &fresh, names, sizeof(names));
    apply_log(&fresh);
    log_info("gateway", "certificate and log settings reloaded");
    if (more) log_warn("gateway", "not reloaded, for it needs a restart: %s", names);
    tell_expiry(atomic_load(&p->srv.http.cert_expires_wall_us));
}

static void reload_and_tell(process *p)
{
    notify_reloading();
    reload(p);
    notify_send("READY=1");
}

/* Says that we live as long as the engine does: its silence is what a restart mends. */
static void feed_watchdog(process *p)
{
    int64_t period = notify_watchdog_us(), now = clock_now_us();
    if (!period || now - p->fed_us < period / 4) return;
    if (now - sched_heartbeat_us(p->srv.sched) > period) return;
    p->fed_us = now;
    notify_send("WATCHDOG=1");
}

/* Whole days, so that all rows of a day are sums, or none. */
static void prune_usage(process *p)
{
    err e;
    int64_t n = 0, now = clock_now_us();
    if (p->cfg.data_usage_days == 0 || now < p->prune_us) return;
    int64_t today = clock_wall_us() / DAY_US * DAY_US;
    if (ledger_prune(p->srv.store, today - p->cfg.data_usage_days * DAY_US, PRUNE_ROWS, &n, &e))
        log_error("gateway", "old usage stays: %s", e.msg);
    if (n < PRUNE_ROWS) p->prune_us = now + PRUNE_US; /* else at the next turn */
    if (n) log_info("gateway", "%lld rows of usage became sums by hour", (long long)n);
}

/* Returns when it is time to stop. */
static void wait_for_end(process *p, const sigset_t *signals)
{
    struct timespec pause = {0, 200 * 1000000L};
    int64_t swept_us = clock_now_us();
    for (;;) {
        if (clock_now_us() - swept_us >= SWEEP_US) {
            swept_us = clock_now_us();
            (void)staging_expire(p->srv.staging, swept_us);
        }
        int sig = sigtimedwait(signals, NULL, &pause);
        stats_tick(p->srv.stats);
        prune_usage(p);
        feed_watchdog(p);
        if (sig == SIGTERM || sig == SIGINT) return;
        if (atomic_exchange(&p->srv.drain_wanted, false)) return;
        if (sig == SIGHUP || atomic_exchange(&p->srv.reload_wanted, false)) reload_and_tell(p);
    }
}

static void drain(process *p, const sigset_t *signals)
{
    atomic_store(&p->srv.http.draining, true);
    notify_send("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%lld",
                (long long)(p->cfg.server_drain_timeout_us + DRAIN_MARGIN_US));
    log_info("gateway", "draining: no new requests, running ones may finish");
    int64_t end = clock_now_us() + p->cfg.server_drain_timeout_us;
    struct timespec none = {0, 0};
    while (!sched_drain(p->srv.sched, 100000)) {
        feed_watchdog(p);
        int sig = sigtimedwait(signals, NULL, &none);
        if (clock_now_us() >= end || sig == SIGTERM || sig == SIGINT) break;
    }
    atomic_store(&p->srv.cut, true);
    (void)sched_drain(p->srv.sched, 10000000);
    struct timespec settle = {0, 200 * 1000000L}; /* last bytes of answers */
    (void)nanosleep(&settle, NULL);
}

/* What many threads allocate for a moment (a listing, an adapter's files) goes back to the
 * system and not into one heap per thread: memory for each of ten thousand adapters would
 * otherwise be mostly holes. */
static void bound_holes(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    (void)mallopt(M_ARENA_MAX, cores > 2 ? (int)cores : 2);
}

static int serve(const arguments *a)
{
    static process p; /* large, one of it */
    err e;
    sigset_t signals;
    p.args = *a;
    (void)tls_reserve_install();
    if (read_config(a, &p.cfg, &e)) return fail(&e);
    p.taken = p.cfg;
    apply_log(&p.cfg);
    process_keep_secrets();
    if (descriptors_claim(&p.cfg, &e)) return fail(&e);
    bound_holes();
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file-size limit is an error of that write, not the end */
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL); /* inherited by every thread */

    p.srv.cfg = &p.cfg;
    p.srv.started_wall_us = clock_wall_us();
    p.tls = files_of_tls(&p.cfg, p.cert, p.key, p.client_ca);
    make_classes(&p);
    int64_t expires_us = 0;
    err_code rc = listener_check_files(&p.tls, &expires_us, &e);
    if (!rc) tell_expiry(expires_us);
    if (!rc) rc = open_storage(&p, &e);
    if (!rc) rc = open_model(&p, &e);
    if (!rc) rc = open_adapters(&p, &e);
    if (!rc) rc = open_limits(&p, &e);
    if (!rc) rc = open_scheduler(&p, &e);
    if (!rc && !(p.srv.stats = stats_create(&p.srv))) rc = err_set(&e, ERR_NOMEM, "no memory");
    if (!rc) rc = open_listeners(&p, &e);
    if (rc) {
        close_all(&p);
        return fail(&e);
    }
    atomic_store(&p.srv.ready, true);
    notify_send("READY=1\nSTATUS=serving %s on %s", p.cfg.model_name, p.cfg.server_listen);
    log_info("gateway", "serving %s on %s (%s; admin %s, metrics %s)", p.cfg.model_name,
             p.cfg.server_listen, be_caps(p.srv.be)->detail, p.cfg.admin_listen,
             p.cfg.metrics_listen);
    wait_for_end(&p, &signals);
    drain(&p, &signals);
    close_all(&p);
    log_info("gateway", "stopped");
    return EXIT_SUCCESS;
}

/* -------------------------------------------------------------------------- check -- */

static int check(const arguments *a)
{
    err e;
    config c;
    model_config mc;
    tokenizer *tok;
    char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
    if (read_config(a, &c, &e)) return fail(&e);
    tls_files files = files_of_tls(&c, cert, key, ca);
    if (descriptors_claim(&c, &e)) return fail(&e);
    int64_t expires_us = 0;
    char good[128];
    if (listener_check_files(&files, &expires_us, &e)) return fail(&e);
    if (tls_expiry_text(expires_us, good, sizeof(good)) == LOG_ERROR) {
        (void)err_set(&e, ERR_INPUT, "the certificate %s %s", cert, good);
        return fail(&e);
    }
    if (model_config_read(c.model_path, &mc, &e)) return fail(&e);
    if (tokenizer_load(&tok, c.model_path, &e)) return fail(&e);
    tokenizer_destroy(tok);
    char device[512];
    char room[64] = "what the model leaves";
    if (device_describe(&c, device, sizeof(device), &e)) return fail(&e);
    if (c.engine_kv_memory == 0 && strncmp(device, "cuda", 4) != 0) device_arena(&c, NULL);
    if (c.engine_kv_memory > 0) {
        snprintf(room, sizeof(room), "%lld MiB", (long long)(c.engine_kv_memory >> 20));
    }
    printf("config       %s: fine\n"
           "certificate  %s: %s\n"
           "model        %s, %d layers of %d, %d heads (%d kv), vocabulary %d\n"
           "backend      %s\n"
           "context      %d tokens at most\n"
           "memory       %s of KV pages and adapters, %lld MiB of adapters' copies\n",
           a->file, cert, good, mc.family, mc.n_layer, mc.dim, mc.n_head, mc.n_kv_head, mc.n_vocab,
           device, mc.max_pos < c.engine_max_context ? mc.max_pos : (int)c.engine_max_context, room,
           (long long)(c.adapters_host_memory >> 20));
    return EXIT_SUCCESS;
}

/* ------------------------------------------------------------------------- backup -- */

static int back_up(const arguments *a)
{
    err e;
    config c;
    offline_backup_stats done;
    if (!a->dir) {
        fprintf(stderr, "lorad: backup needs --dir\n");
        return EXIT_USAGE;
    }
    if (read_config(a, &c, &e) || offline_backup(c.data_dir, a->dir, &done, &e)) return fail(&e);
    printf("database     %s/lorad.db\n"
           "adapters     %d files, %lld bytes\n"
           "settled      %d requests that a crash had left open\n",
           a->dir, done.files, (long long)done.bytes, done.settled);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    arguments a;
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "--print-conf") == 0) {
        config c;
        config_defaults(&c);
        config_print(&c, stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(verb, "version") == 0 || strcmp(verb, "--version") == 0) {
        printf("lorad %s (commit %s; %s)\n", LORAD_VERSION, version_commit, version_build);
        return EXIT_SUCCESS;
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0) {
        manual_usage(stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(verb, "--print-man") == 0) {
        manual_page(stdout, argc > 2 && strcmp(argv[2], "5") == 0 ? 5 : 1);
        return EXIT_SUCCESS;
    }
    static const struct {
        const char *verb;
        int (*run)(const arguments *a);
    } verbs[] = {{"init", init}, {"check", check}, {"serve", serve}, {"backup", back_up}};
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verb, verbs[i].verb) != 0) continue;
        return parse_arguments(argc, argv, &a) ? verbs[i].run(&a) : EXIT_USAGE;
    }
    manual_usage(stderr);
    return EXIT_USAGE;
}
