/* serve.c -- lorad serve: opens the modules, runs the main thread's loop, and shuts down.
 *
 *   read configuration -> take_legacy -> parts_open -> ready
 *       |
 *       v
 *   wait_for_end (5 Hz)   signals, reload, watchdog, expiry of usage, responses and uploads
 *       | SIGTERM, drain                        | the engine gave the device up
 *       v                                       v
 *   drain -> end -> exit                    replace -> end -> execve() of the same program
 *
 * Signals are blocked in all threads and received here by sigtimedwait().
 *
 * Drain: no new requests; running ones may finish, or move to another server of the fleet, until
 * the deadline or a second signal; the rest is cancelled, answers that are being written get
 * ANSWERS_US, then everything is closed.
 *
 * Replacement after a fault (docs/design/restart.md): CUDA can't be opened again in a process after
 * some faults.  So the program replaces itself, with the listening sockets kept open.  LORAD_LEGACY
 * passes the counts of faults and the kernels to leave out; a device that fails repeatedly is given
 * growing pauses.
 *
 * The watchdog is fed only while the engine thread's heartbeat is recent, so systemd restarts a
 * hung engine.
 */
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/program/mapping.h"
#include "engine/program/process.h"
#include "gateway/config/change.h"
#include "gateway/descriptors.h"
#include "gateway/device.h"
#include "gateway/move/mover.h"
#include "gateway/net/kept.h"
#include "gateway/net/tls_reserve.h"
#include "gateway/notify.h"
#include "gateway/start/dev.h"
#include "gateway/start/parts.h"
#include "gateway/start/verbs.h"
#include "gateway/watch/stats.h"
#include "storage/audit.h"
#include "storage/seal/responses.h"

/* added to the drain's time, for cancelling the rest and closing */
enum { DRAIN_MARGIN_US = 30000000 };
enum { CUT_US = 10000000 };     /* for cancelled requests to end */
enum { ANSWERS_US = 10000000 }; /* for clients to take the answers that are being written */
enum { PRUNE_ROWS = 2000 };     /* of old usage at once */
static const int64_t PRUNE_US = 3600 * INT64_C(1000000), DAY_US = 86400 * INT64_C(1000000);
static const int64_t EXPIRE_US = 60 * INT64_C(1000000);
enum { SWEEP_US = 5000000 };      /* between looks for abandoned uploads */
enum { MMAP_BYTES = 256 * 1024 }; /* allocations of this size are mapped singly */
/* Before the device is opened after its second fault in a row, doubled for each. */
static const long long ANEW_US = 1800 * 1000000LL; /* for a large model to be read again */
enum { PAUSE_US = 500000, PAUSE_MOST_US = 8000000 };
/* "PID:FAULTS:RESTARTS:WITHOUT", from the previous process. */
static const char LEGACY[] = "LORAD_LEGACY";
/* Kernels without which answers are the same: they are left out after a second fault in a row. */
static const char SPARED[] = "inside";

typedef struct {
    arguments args;
    parts parts;
    char cert[PATH_MAX], key[PATH_MAX], client_ca[PATH_MAX]; /* parts.tls points here */
    int64_t expire_us; /* when stored responses are looked at next */
    int64_t audit_us;  /* the same for rows of the audit log */
    int64_t prune_us;  /* when old usage is looked for next */
    int64_t fed_us;    /* when the watchdog last heard of us */
} serving;

typedef struct {
    int level, format;
} log_settings;

static log_settings log_of(const config_log *c)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    static const char *const formats[] = {"text", "logfmt", "json"};
    log_settings l = {LOG_INFO, LOG_TEXT};
    for (int i = 0; i < 4; i++) {
        if (strcmp(c->level, levels[i]) == 0) l.level = i;
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(c->format, formats[i]) == 0) l.format = i;
    }
    return l;
}

static void apply_log(const config_log *c)
{
    log_settings l = log_of(c);
    log_setup((log_level)l.level, (log_format)l.format);
}

/* Warns of a certificate that expires soon or has expired, before clients notice. */
static void tell_expiry(int64_t expires_wall_us)
{
    char text[128];
    log_level level = tls_expiry_text(expires_wall_us, text, sizeof(text));
    if (level > LOG_INFO) log_write(level, "gateway", "the certificate: %s", text);
}

/* ---- changes of the configuration (gateway/config/change.h) ------------------------------- */

static err_code read_sources(void *self, config *out, err *e)
{
    serving *p = self;
    err_code rc = arguments_config(&p->args, out, e);
    if (!rc) device_sizes(&out->engine);
    return rc;
}

static err_code read_files(void *self, const config *wanted, bool files, err *e)
{
    serving *p = self;
    char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
    listener *all[] = {p->parts.inference, p->parts.admin, p->parts.metrics};
    if (!files) return ERR_NONE;
    grammar_documents *documents = NULL;
    tls_files paths = arguments_tls(wanted, cert, key, ca);
    err_code rc =
        grammar_documents_read(&documents, wanted->grammar.documents, wanted->data.dir, e);
    if (rc) return err_context(e, "grammar.documents");
    rc = listener_reload(all, 3, &paths, e);
    if (rc)
        grammar_documents_release(documents);
    else
        grammar_maker_take_documents(p->parts.srv.engine.grammars, documents);
    if (!rc) mover_renew(p->parts.srv.engine.mover, paths.cert);
    if (!rc) tell_expiry(atomic_load(&p->parts.srv.process.http.cert_expires_wall_us));
    return rc;
}

static void follow(void *self, const config *now)
{
    serving *p = self;
    parts_follow(&p->parts, now);
    apply_log(&now->log);
}

/* In the audit log, without a key. */
static void audit_reload(const server *s, const change_report *done)
{
    char names[CONFIG_TEXT_MAX], detail[AUDIT_DETAIL_MAX];
    (void)change_names(done, CHANGE_TAKEN, names, sizeof(names));
    change_detail(done, detail, sizeof(detail));
    stats_event(s->process.stats, "audit", "server.reload", 0, names, detail, 0);
    audit_post(s->tenants.store, 0, 0, "server.reload", names, detail);
}

/* The result of SIGHUP goes to the log, whatever its new level is. */
static void reload(serving *p)
{
    err e;
    change_report done;
    char taken[CONFIG_TEXT_MAX], left[CONFIG_TEXT_MAX];
    notify_reloading();
    if (change_reload(p->parts.srv.process.change, &done, &e)) {
        log_error("gateway", "reload refused, the old config stays: %s", e.msg);
    } else {
        bool some = change_names(&done, CHANGE_TAKEN, taken, sizeof(taken));
        bool more = change_names(&done, CHANGE_RESTART, left, sizeof(left));
        log_write(some ? LOG_WARN : LOG_INFO, "gateway", "reloaded: the certificate%s%s",
                  some ? ", " : "; no option has changed", some ? taken : "");
        if (more) log_warn("gateway", "not reloaded, for it needs a restart: %s", left);
        audit_reload(&p->parts.srv, &done);
        free(done.line);
    }
    notify_send("READY=1");
}

/* Feeds the watchdog only while the engine runs: a restart helps against a hung one. */
static void feed_watchdog(serving *p)
{
    int64_t period = notify_watchdog_us(), now = clock_now_us();
    if (!period || now - p->fed_us < period / 4) return;
    if (now - sched_heartbeat_us(p->parts.srv.engine.sched) > period) return;
    p->fed_us = now;
    notify_send("WATCHDOG=1");
}

/* By whole days, so that either all rows of a day are sums, or none. */
static void prune_usage(serving *p)
{
    err e;
    int64_t n = 0, now = clock_now_us();
    if (now < p->prune_us) return;
    const config *c = live_pin(p->parts.srv.process.live);
    int64_t days = c->data.usage_days;
    live_release(p->parts.srv.process.live, c);
    if (days == 0) return;
    int64_t today = clock_wall_us() / DAY_US * DAY_US;
    if (ledger_prune(p->parts.srv.tenants.store, today - days * DAY_US, PRUNE_ROWS, &n, &e))
        log_error("gateway", "old usage stays: %s", e.msg);
    if (n < PRUNE_ROWS) p->prune_us = now + PRUNE_US; /* else at the next turn */
    if (n) log_info("gateway", "%lld rows of usage became sums by hour", (long long)n);
}

/* Rows that tenants' own keys have written beyond data.audit_rows. */
static void prune_audit(serving *p)
{
    err e;
    int64_t n = 0, now = clock_now_us();
    if (now < p->audit_us) return;
    const config *c = live_pin(p->parts.srv.process.live);
    int64_t most = c->data.audit_rows;
    live_release(p->parts.srv.process.live, c);
    if (most > 0 && audit_prune(p->parts.srv.tenants.store, most, PRUNE_ROWS, &n, &e))
        log_error("gateway", "old rows of the audit log are not deleted: %s", e.msg);
    if (n < PRUNE_ROWS) p->audit_us = now + EXPIRE_US; /* else at the next turn */
    if (n) log_info("gateway", "%lld old rows of the audit log were deleted", (long long)n);
}

/* Stored responses whose time is over. */
static void expire_responses(serving *p)
{
    err e;
    int64_t n = 0, now = clock_now_us();
    if (now < p->expire_us) return;
    if (responses_expire(p->parts.srv.tenants.store, clock_wall_us(), PRUNE_ROWS, &n, &e))
        log_error("gateway", "responses stay beyond their time: %s", e.msg);
    if (n < PRUNE_ROWS) p->expire_us = now + EXPIRE_US;
    if (n)
        log_info("gateway", "%lld stored responses were deleted: they had expired", (long long)n);
}

/* `loractl node drain`, at another server. */
static bool asked_by_fleet(const serving *p)
{
    store_stats st;
    store_stats_get(p->parts.srv.tenants.store, &st);
    return st.fleet.drain;
}

/* Returns when it is time to stop; true: another process replaces this one. */
static bool wait_for_end(serving *p, const sigset_t *signals)
{
    struct timespec pause = {0, 200 * 1000000L};
    int64_t swept_us = clock_now_us();
    for (;;) {
        if (clock_now_us() - swept_us >= SWEEP_US) {
            swept_us = clock_now_us();
            (void)staging_expire(p->parts.srv.adapters.staging, swept_us);
        }
        int sig = sigtimedwait(signals, NULL, &pause);
        stats_tick(p->parts.srv.process.stats);
        prune_usage(p);
        expire_responses(p);
        prune_audit(p);
        feed_watchdog(p);
        if (sig == SIGTERM || sig == SIGINT) return false;
        if (atomic_exchange(&p->parts.srv.process.drain_wanted, false) || asked_by_fleet(p))
            return false;
        if (sig == SIGHUP) reload(p);
        if (sched_replaced(p->parts.srv.engine.sched, &p->parts.legacy)) return true;
    }
}

/* Waits for workers that write ended answers: closing a listener would cut them. */
static void wait_for_answers(serving *p)
{
    const struct timespec pause = {0, 5 * 1000000L};
    int64_t end = clock_now_us() + ANSWERS_US;
    while (atomic_load(&p->parts.srv.process.http.count.answering) > 0 && clock_now_us() < end) {
        feed_watchdog(p);
        (void)nanosleep(&pause, NULL);
    }
}

/* Whether nothing runs any more, neither here nor for this server elsewhere; a stream that is
 * elsewhere may come back. */
static bool ran_out(serving *p, int64_t timeout_us)
{
    const struct timespec pause = {0, 5 * 1000000L};
    const mover *m = p->parts.srv.engine.mover;
    int64_t end = clock_now_us() + timeout_us;
    for (;;) {
        bool idle = mover_idle(m);
        if (sched_drain(p->parts.srv.engine.sched, end - clock_now_us()) && idle && mover_idle(m))
            return true;
        if (clock_now_us() >= end) return false;
        (void)nanosleep(&pause, NULL);
    }
}

static void drain(serving *p, const sigset_t *signals)
{
    const config *c = live_pin(p->parts.srv.process.live);
    int64_t timeout_us = c->server.drain_timeout_us;
    live_release(p->parts.srv.process.live, c);
    atomic_store(&p->parts.srv.process.http.draining, true);
    listener_drain(p->parts.inference);
    notify_send("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%lld",
                (long long)(timeout_us + DRAIN_MARGIN_US));
    log_info("gateway", "draining: no new requests, running ones may finish");
    mover_begin(p->parts.srv.engine.mover);
    int64_t end = clock_now_us() + timeout_us;
    struct timespec none = {0, 0};
    while (!ran_out(p, 100000)) {
        feed_watchdog(p);
        int sig = sigtimedwait(signals, NULL, &none);
        if (clock_now_us() >= end || sig == SIGTERM || sig == SIGINT) break;
    }
    atomic_store(&p->parts.srv.process.cut, true);
    (void)ran_out(p, CUT_US);
    wait_for_answers(p);
}

static void end(serving *p)
{
    server *s = &p->parts.srv;
    parts_close(&p->parts); /* then nobody asks for changes any more */
    change_destroy(s->process.change);
    live_destroy(s->process.live);
}

/* Everything is closed.  Returns the exit status only if the next process cannot be started: the
 * service manager starts one then. */
static int start_anew(const serving *p)
{
    err e;
    char text[80 + BE_KERNELS_MAX];
    const sched_legacy *l = &p->parts.legacy;
    if (p->args.dev) { /* its folder and keys would be others */
        log_error("gateway", "the device failed: start `lorad serve --dev` again");
        return EXIT_FAILURE;
    }
    snprintf(text, sizeof(text), "%ld:%d:%llu:%s", (long)getpid(), l->n_faults,
             (unsigned long long)l->n_restarts, p->parts.without);
    notify_send("STATUS=the device failed: restarting\n"
                "WATCHDOG=1\n"
                "WATCHDOG_USEC=%lld",
                ANEW_US);
    log_warn("gateway", "restarting: a new process replaces this one");
    if (setenv(LEGACY, text, 1) == 0) (void)kept_replace(&e);
    log_error("gateway", "%s", e.msg);
    return EXIT_FAILURE;
}

/* If the device failed while kernels were tried, the next process omits these.  False: none were.
 */
static bool leave_out_suspect(parts *p)
{
    const char *kernels = be_suspect(p->srv.engine.be);
    if (!kernels || !device_leave_out(p->without, kernels)) return false;
    log_warn("gateway",
             "the device failed while kernels '%s' were tried: continuing without them; "
             "debug.cuda_without = %s saves the time that this takes at each start",
             kernels, kernels);
    return true;
}

/* The device will not work in this process again (engine/sched/sched_restart.c).  All clients have
 * had their errors, usage is on the disk, and the listening sockets stay open. */
static int replace(serving *p)
{
    err e;
    (void)leave_out_suspect(&p->parts);
    bool kept = kept_hold(&e) == ERR_NONE;
    if (!kept)
        log_error("gateway", "clients are refused until the next process listens: %s", e.msg);
    wait_for_answers(p);
    end(p);
    return start_anew(p);
}

/* Whether the parts did not open because the device failed at kernels that were tried. */
static bool failed_at_kernels(parts *p, const err *why)
{
    backend *be = p->srv.engine.be;
    if (!be || be_remedy_of(be) != BE_HEALS_NEVER || !leave_out_suspect(p)) return false;
    log_error("gateway", "%s", why->msg);
    return true;
}

/* Reads what the previous process passed on, if there was one; a device that fails again gets a
 * pause. */
static void take_legacy(serving *p)
{
    const char *text = getenv(LEGACY);
    sched_legacy *l = &p->parts.legacy;
    char *rest = NULL;
    if (!text || strtol(text, &rest, 10) != (long)getpid() || *rest != ':') return;
    long faults = strtol(rest + 1, &rest, 10);
    if (faults < 0 || faults > INT_MAX || *rest != ':') return;
    *l = (sched_legacy){(int)faults, strtoull(rest + 1, &rest, 10)};
    if (*rest == ':') snprintf(p->parts.without, sizeof(p->parts.without), "%s", rest + 1);
    (void)unsetenv(LEGACY);
    if (faults > 1) {
        (void)device_leave_out(p->parts.without, SPARED);
        log_warn("gateway",
                 "a second fault in a row: continuing without kernels that change no answer (%s)",
                 SPARED);
    }
    int64_t us = 0;
    for (int i = 1; i < l->n_faults && us < PAUSE_MOST_US; i++) us = us ? 2 * us : PAUSE_US;
    const struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    (void)nanosleep(&pause, NULL);
}

/* Bounds fragmentation: what many threads allocate for a moment (a listing, an adapter's files)
 * returns to the system and not to one heap per thread.  With ten thousand adapters most of that
 * memory would be holes. */
static void bound_holes(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    (void)mallopt(M_ARENA_MAX, cores > 2 ? (int)cores : 2);
}

static sigset_t block_signals(void)
{
    sigset_t signals;
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file-size limit is an error of that write, not of the
                                     * process */
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL); /* inherited by every thread */
    return signals;
}

/* Keeps the configuration as it was read, before the modules resolve parts of it. */
static err_code open_config(serving *p, err *e)
{
    const change_owner owner = {p, read_sources, read_files, follow};
    server *s = &p->parts.srv;
    p->parts.cfg.queue_room = p->parts.cfg.engine.max_queued;
    p->parts.cfg.connection_room = config_max_connections(&p->parts.cfg.server);
    s->process.live = live_create(&p->parts.cfg);
    s->process.change =
        s->process.live ? change_create(&p->parts.cfg, s->process.live, &owner) : NULL;
    return s->process.change ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for the configuration");
}

/* Runs until the end; returns the exit status. */
static int serve(serving *p)
{
    err e;
    (void)tls_reserve_install();
    config *c = &p->parts.cfg;
    if (read_sources(p, c, &e)) return arguments_fail(&e);
    apply_log(&c->log);
    process_keep_secrets();
    if (descriptors_claim(c, &e)) return arguments_fail(&e);
    bound_holes();
    sigset_t signals = block_signals();
    mapping_watch();
    take_legacy(p);
    p->parts.tls = arguments_tls(c, p->cert, p->key, p->client_ca);
    int64_t expires_us = 0;
    err_code rc = listener_check_files(&p->parts.tls, &expires_us, &e);
    if (!rc) tell_expiry(expires_us);
    if (!rc) rc = open_config(p, &e);
    if (!rc) rc = parts_open(&p->parts, &e);
    if (rc) {
        bool again = failed_at_kernels(&p->parts, &e);
        end(p);
        if (rc == ERR_STOPPING) { /* a signal, while the model was downloaded */
            log_info("gateway", "%s", e.msg);
            return EXIT_SUCCESS;
        }
        return again ? start_anew(p) : arguments_fail(&e);
    }
    kept_settle();
    (void)malloc_trim(0); /* memory from reading the model's documents */
    if (p->parts.legacy.n_faults > 0 || p->parts.without[0])
        notify_send("WATCHDOG_USEC=%lld", (long long)notify_watchdog_us());
    change_begin(p->parts.srv.process.change);
    atomic_store(&p->parts.srv.process.ready, true);
    notify_send("READY=1\nSTATUS=serving %s on %s", c->model.name, c->server.listen);
    log_info("gateway", "serving %s on %s (%s; admin %s, metrics %s)", c->model.name,
             c->server.listen, be_caps(p->parts.srv.engine.be)->detail, c->admin.listen,
             c->metrics.listen);
    if (wait_for_end(p, &signals)) return replace(p);
    drain(p, &signals);
    end(p);
    log_info("gateway", "stopped");
    return EXIT_SUCCESS;
}

int verb_serve(const arguments *a)
{
    static serving p; /* large, one of it */
    err e;
    dev_folder dev = {0};
    p.args = *a;
    if (!a->dev && (a->model || a->dir)) {
        fprintf(stderr, "lorad: --model and --dir go with serve --dev; the configuration has "
                        "model.path and data.dir\n");
        return EXIT_USAGE;
    }
    if (a->dev && a->file_given) {
        fprintf(stderr, "lorad: --dev makes a configuration of its own: give --dir, not -c\n");
        return EXIT_USAGE;
    }
    if (a->dev && dev_open(&dev, &p.args, &e)) return arguments_fail(&e);
    int status = serve(&p);
    dev_close(&dev);
    return status;
}
