/* loratop_main.c -- htop for adapters: arguments, servers, and the loop between them and a
 * terminal.
 *
 * One thread draws; each server has a feed (feed.h) with a thread of its own that asks for
 * /admin/v1/stats and puts answers into a queue. A feed writes a byte into the pipe `wake`, so
 * that the loop sleeps in poll() on two descriptors: the pipe and the keyboard.
 *
 *     feed threads --queue + pipe-->  pump()  --> topdata_apply_text() --> view
 *     keyboard  ------------------->  view_key()                            |
 *     replay file ----------------->  play()                                v
 *                                                           cells --> term (differences only)
 *
 * While the display is paused, one answer of each server is held back: the feed waits for the
 * cursor of that answer, so there is never a second one. Frames are at least FRAME_US apart, and
 * the screen is drawn once in REDRAW_US even if nothing came, for the ages that it shows.
 *
 * --once, --json and --csv use the same loop without a terminal.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/program/process.h"
#include "engine/program/version.h"
#include "tui/cli.h"
#include "tui/contexts.h"
#include "tui/top/feed.h"
#include "tui/top/replay.h"
#include "tui/top/settings.h"
#include "tui/top/term.h"
#include "tui/top/view.h"

enum {
    EXIT_USAGE = 2,
    FRAME_US = 20000,
    REDRAW_US = 1000000,
    ONCE_ROWS_MAX = 1800,
};

static const cli_option flags[] = {
    {"context", 'c', "NAME", "this context (see loractl); several times: several servers", NULL},
    {"interval", 'i', "SECONDS", "between updates, 0.1 to 60", NULL},
    {"screen", 's', "NAME",
     "overview, tenants, adapters, requests, ended, engine, slo, events, limits, servers",
     "overview tenants adapters requests ended engine slo events limits servers"},
    {"once", 0, NULL, "one picture as text", NULL},
    {"json", 0, NULL, "the server's answers, one a line; with --once: one, whole", NULL},
    {"csv", 0, NULL, "the main figures, one line an update", NULL},
    {"record", 0, "FILE", "append all answers to it", "FILE"},
    {"replay", 0, "FILE", "show again what was recorded", "FILE"},
    {"speed", 0, "X", "of a replay: 1 as it was, 0 as fast as it goes", NULL},
    {"frames", 0, "N", "end after N updates", NULL},
    {"width", 0, "N", "of --once", NULL},
    {"height", 0, "N", "of --once", NULL},
    {"ascii", 0, NULL, "no character beyond ASCII", NULL},
    {"read-only", 0, NULL, "offer no action", NULL},
    {"version", 0, NULL, "print the version", NULL},
    {"help", 'h', NULL, "print this", NULL},
    {0}};

static const cli_program program = {
    .name = "loratop",
    .tagline = "live dashboard of lorad servers, over their admin API",
    .options = flags,
    .description =
        "Without --context it shows the server of the current context, or of LORAD_ADMIN_URL, "
        "LORAD_ADMIN_KEY\nand LORAD_CA. Inside, H shows the keys. NO_COLOR is heeded.",
    .after = ".SH SEE ALSO\n.BR loractl (1),\n.BR lorad (1)\n"};

typedef struct options {
    const char *context[VIEW_SERVERS_MAX];
    int n_context, screen, width, height;
    double interval_s, speed;
    int64_t frames;
    const char *record, *replay;
    bool once, json, csv, ascii, read_only;
} options;

typedef struct app {
    options o;
    view v;
    feed *feed[VIEW_SERVERS_MAX];
    context ctx[VIEW_SERVERS_MAX];
    char *held[VIEW_SERVERS_MAX]; /* the answer that came during a pause */
    size_t held_len[VIEW_SERVERS_MAX];
    int wake[2];
    FILE *record;
    replay replay;
    replay_item next;
    bool has_next;
    int64_t replay_from_us, replay_start_us;
    int64_t n_updates;
    bool fresh; /* something to draw */
    bool ended; /* what has ended was answered, or refused */
    cells cells;
} app;

static int fail(const err *e)
{
    fprintf(stderr, "loratop: %s\n", e->msg);
    return EXIT_FAILURE;
}

/* ---------------------------------------------------------------------- arguments -- */

/* Options without a letter: their place in the table. */
enum {
    OPT_FIRST = 256,
    OPT_ONCE = OPT_FIRST + 3,
    OPT_JSON,
    OPT_CSV,
    OPT_RECORD,
    OPT_REPLAY,
    OPT_SPEED,
    OPT_FRAMES,
    OPT_WIDTH,
    OPT_HEIGHT,
    OPT_ASCII,
    OPT_READ_ONLY,
    OPT_VERSION
};

static bool take_number(const char *text, double lo, double hi, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= lo && *out <= hi;
}

/* -1: go on; else the exit status. */
static int parse(int argc, char **argv, options *o)
{
    struct option all[sizeof(flags) / sizeof(flags[0])] = {0};
    for (int i = 0; flags[i].name; i++) {
        all[i] = (struct option){flags[i].name, flags[i].arg != NULL, NULL,
                                 flags[i].letter ? flags[i].letter : OPT_FIRST + i};
    }
    *o = (options){.screen = -1, .interval_s = 0, .speed = 1};
    for (;;) {
        double n;
        bool ok = true;
        int c = getopt_long(argc, argv, "c:i:s:h", all, NULL);
        if (c < 0) break;
        switch (c) {
        case 'c':
            ok = o->n_context < VIEW_SERVERS_MAX;
            if (ok) o->context[o->n_context++] = optarg;
            break;
        case 'i': ok = take_number(optarg, 0.1, 60, &o->interval_s); break;
        case 's': ok = (o->screen = view_screen_of(optarg)) >= 0; break;
        case OPT_ONCE: o->once = true; break;
        case OPT_JSON: o->json = true; break;
        case OPT_CSV: o->csv = true; break;
        case OPT_RECORD: o->record = optarg; break;
        case OPT_REPLAY: o->replay = optarg; break;
        case OPT_SPEED: ok = take_number(optarg, 0, 1e6, &o->speed); break;
        case OPT_FRAMES:
            ok = take_number(optarg, 1, 1e9, &n);
            o->frames = (int64_t)n;
            break;
        case OPT_WIDTH:
            ok = take_number(optarg, 20, 1000, &n);
            o->width = (int)n;
            break;
        case OPT_HEIGHT:
            ok = take_number(optarg, 5, ONCE_ROWS_MAX, &n);
            o->height = (int)n;
            break;
        case OPT_ASCII: o->ascii = true; break;
        case OPT_READ_ONLY: o->read_only = true; break;
        case OPT_VERSION:
            printf("loratop %s (commit %s; %s)\n", LORAD_VERSION, version_commit, version_build);
            return EXIT_SUCCESS;
        case 'h': cli_print_help(&program, NULL, stdout); return EXIT_SUCCESS;
        default: return EXIT_USAGE;
        }
        if (ok) continue;
        const cli_option *of = flags;
        while (of->letter ? of->letter != c : OPT_FIRST + (of - flags) != c) of++;
        fprintf(stderr, "loratop: '%s' does not fit --%s: %s\n", optarg, of->name, of->help);
        return EXIT_USAGE;
    }
    if (optind < argc) {
        fprintf(stderr, "loratop: what is '%s'? --help\n", argv[optind]);
        return EXIT_USAGE;
    }
    return -1;
}

/* ------------------------------------------------------------------------ sources -- */

static err_code open_servers(app *a, err *e)
{
    contexts list;
    const char *names[VIEW_SERVERS_MAX] = {NULL};
    int n = a->o.n_context ? a->o.n_context : 1;
    err_code rc = contexts_load(&list, e);
    for (int i = 0; i < n && !rc; i++) {
        rc = context_resolve(&list, a->o.context[i], &a->ctx[i], e);
        names[i] = a->ctx[i].name[0] ? a->ctx[i].name : a->ctx[i].admin_url;
        if (strncmp(names[i], "https://", 8) == 0) names[i] += 8;
    }
    contexts_clear(&list);
    if (!rc && !view_init(&a->v, names, n)) rc = err_set(e, ERR_NOMEM, "out of memory");
    if (rc) return rc;
    settings_load(&a->v);
    if (a->o.interval_s > 0) a->v.interval_ms = (int64_t)(a->o.interval_s * 1e3);
    for (int i = 0; i < n && !rc; i++) {
        char agent[] = "loratop/" LORAD_VERSION;
        client_options co = {.url = a->ctx[i].admin_url,
                             .ca_file = a->ctx[i].ca,
                             .key = a->ctx[i].admin_key,
                             .cert_file = a->ctx[i].cert[0] ? a->ctx[i].cert : NULL,
                             .cert_key_file = a->ctx[i].cert_key[0] ? a->ctx[i].cert_key : NULL,
                             .connect_ms = 3000,
                             .agent = agent};
        rc = feed_open(&a->feed[i], &co, a->wake[1], a->v.interval_ms, e);
        context_wipe(&a->ctx[i]);
    }
    return rc;
}

static err_code open_replay(app *a, err *e)
{
    const char *names[VIEW_SERVERS_MAX] = {NULL};
    err_code rc = replay_open(&a->replay, a->o.replay, e);
    if (rc) return rc;
    for (int i = 0; i < a->replay.n_servers; i++) names[i] = a->replay.server[i];
    if (!view_init(&a->v, names, a->replay.n_servers))
        return err_set(e, ERR_NOMEM, "out of memory");
    settings_load(&a->v);
    a->v.replay = true;
    if (a->o.interval_s > 0) a->v.interval_ms = (int64_t)(a->o.interval_s * 1e3);
    return ERR_NONE;
}

/* ------------------------------------------------------------------------ answers -- */

static void write_csv(const view_server *s)
{
    static bool headed;
    const topdata *d = &s->data;
    if (!headed) {
        (void)puts("time,server,tokens_in_per_s,tokens_out_per_s,requests_per_s,rate_limited_per_s,"
                   "errors_per_s,"
                   "running,waiting,kv_share,adapter_bytes,adapters_resident,adapters_registered,"
                   "adapter_loads,adapter_evictions,steps,met,missed");
        headed = true;
    }
    int64_t met = 0, missed = 0;
    char name[sizeof(s->name)];
    size_t n = 0;
    for (const char *p = s->name; *p && n + 1 < sizeof(name); p++) { /* no quoting is needed then */
        name[n++] = *p < ' ' || *p == ',' || *p == '"' || *p == 0x7f ? '_' : *p;
    }
    name[n] = 0;
    for (int i = 0; i < d->n_class; i++) {
        met += d->classes[i].met;
        missed += d->classes[i].missed;
    }
    printf(
        "%.3f,%s,%.2f,%.2f,%.2f,%.2f,%.2f,%lld,%lld,%.4f,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld\n",
        (double)d->server.now_us / 1e6, name, d->now.prompt_tokens, d->now.output_tokens,
        d->now.requests, d->now.rate_limited, d->now.errors, (long long)d->engine.running,
        (long long)d->engine.waiting,
        d->engine.pages ? (double)d->engine.pages_used / (double)d->engine.pages : 0,
        (long long)d->engine.adapter_bytes, (long long)d->engine.adapters_resident,
        (long long)d->engine.adapters_registered, (long long)d->totals.adapter_loads,
        (long long)d->totals.adapter_evictions, (long long)d->totals.steps, (long long)met,
        (long long)missed);
    (void)fflush(stdout);
}

/* An answer of a server: into the data, and to the recording and the outputs that were asked
 * for. One that is not understood is asked for anew in full, since a part of it may be in the
 * data. */
static void came(app *a, int i, const char *text, size_t len)
{
    view_server *s = &a->v.server[i];
    err e;
    if (topdata_apply_text(&s->data, text, len, &e)) {
        snprintf(s->error, sizeof(s->error), "%.199s", e.msg);
        s->up = false;
        feed_set_cursor(a->feed[i], ""); /* all of it anew */
        a->fresh = true;
        return;
    }
    s->up = true;
    s->error[0] = 0;
    s->answered_us = clock_now_us();
    feed_set_past(a->feed[i], topdata_past_from(&s->data));
    feed_set_cursor(a->feed[i], s->data.cursor);
    a->n_updates++;
    a->fresh = true;
    if (a->record && replay_record(a->record, s->answered_us, s->name, text, len, &e)) {
        view_say(&a->v, clock_now_us(), "%s", e.msg);
        (void)fclose(a->record);
        a->record = NULL;
    }
    if (a->o.csv) write_csv(s);
    if (a->o.json) {
        (void)fwrite(text, 1, len, stdout);
        (void)putchar('\n');
        (void)fflush(stdout);
    }
}

/* All that a feed has brought. While the display is paused the newest answer is held; the feed
 * stops by itself, for it waits for that answer's cursor. */
static void take_items(app *a, int i)
{
    feed_item it;
    while (feed_take(a->feed[i], &it)) {
        view_server *s = &a->v.server[i];
        switch (it.kind) {
        case FEED_ANSWER:
            if (a->v.paused && !a->held[i]) {
                a->held[i] = it.text; /* the feed waits for its cursor: this is the only one */
                a->held_len[i] = it.len;
                s->up = true;
                it.text = NULL;
            } else {
                came(a, i, it.text, it.len);
            }
            break;
        case FEED_GONE:
            s->up = false;
            snprintf(s->error, sizeof(s->error), "%.199s", it.text);
            a->fresh = true;
            break;
        case FEED_ENDED: {
            err e;
            if (topdata_apply_ended(&s->data, it.text, it.len, &e))
                view_say(&a->v, clock_now_us(), "%s", e.msg);
            a->ended = a->fresh = true;
            break;
        }
        case FEED_DONE:
            a->ended |= !it.ok;
            view_say(&a->v, clock_now_us(), "%s", it.text);
            a->fresh = true;
            break;
        case FEED_PAST: { /* the charts do without what is not understood */
            err e;
            (void)topdata_apply_past(&s->data, it.text, it.len, &e);
            a->fresh = true;
            break;
        }
        case FEED_KEYS:
            view_keys_came(&a->v, it.text, it.len, clock_now_us());
            a->fresh = true;
            break;
        }
        free(it.text);
    }
}

/* Applies what is due of a replay; false: it is over. */
static bool play(app *a, int64_t now_us)
{
    err e;
    for (;;) {
        if (!a->has_next) {
            err_code rc = replay_next(&a->replay, &a->next, &e);
            if (rc == ERR_NOT_FOUND) return false;
            if (rc) {
                view_say(&a->v, now_us, "%s", e.msg);
                return false;
            }
            a->has_next = true;
            if (a->replay_from_us == 0) {
                a->replay_from_us = a->next.at_us;
                a->replay_start_us = now_us;
            }
        }
        double due = (double)(a->next.at_us - a->replay_from_us);
        if (a->v.paused ||
            (a->o.speed > 0 && (double)(now_us - a->replay_start_us) * a->o.speed < due))
            return true;
        view_server *s = a->next.server < a->v.n_servers ? &a->v.server[a->next.server] : NULL;
        if (s && topdata_apply(&s->data, a->next.stats, &e) == ERR_NONE) {
            s->up = true;
            s->answered_us = now_us;
            a->n_updates++;
            a->fresh = true;
            if (a->o.csv) write_csv(s);
        } else if (s) {
            view_say(&a->v, now_us, "%s", e.msg);
        }
        cJSON_Delete(a->next.tree);
        a->has_next = false;
        if (a->o.speed == 0) return true; /* one at a time */
    }
}

static void pump(app *a)
{
    char drop[256];
    while (read(a->wake[0], drop, sizeof(drop)) > 0) {
    }
    for (int i = 0; i < a->v.n_servers; i++) {
        if (!a->feed[i]) continue;
        take_items(a, i);
        if (a->held[i] && !a->v.paused) {
            char *text = a->held[i];
            a->held[i] = NULL;
            came(a, i, text, a->held_len[i]);
            free(text);
        }
    }
    view_ask_ended(&a->v, clock_now_us());
    for (int i = 0; i < a->v.n_action; i++) {
        const view_action *act = &a->v.action[i];
        if (!a->feed[act->server] || !feed_act(a->feed[act->server], act)) {
            view_say(&a->v, clock_now_us(), "%s: not now", act->what);
        }
    }
    a->v.n_action = 0;
}

/* Sleeps until something comes, or at most so long. */
static void wait_for_news(app *a, bool keys, int64_t timeout_us)
{
    struct pollfd p[2] = {{.fd = a->wake[0], .events = POLLIN},
                          {.fd = STDIN_FILENO, .events = POLLIN}};
    if (timeout_us < 0) timeout_us = 0;
    (void)poll(p, keys ? 2 : 1, (int)((timeout_us + 999) / 1000));
    if (keys && p[1].revents & (POLLHUP | POLLERR)) a->v.quit = true;
}

/* ------------------------------------------------------------------------- modes -- */

static int64_t replay_wait_us(const app *a, int64_t now_us)
{
    if (!a->has_next || a->o.speed == 0 || a->v.paused) return REDRAW_US;
    double due = (double)(a->next.at_us - a->replay_from_us) / a->o.speed;
    int64_t us = (int64_t)due - (now_us - a->replay_start_us);
    return us < REDRAW_US ? us : REDRAW_US;
}

/* Keys, news, and a picture when something changed or REDRAW_US have passed; with --frames until
 * so many updates were drawn. */
static int run_screen(app *a, err *e)
{
    int64_t drawn_us = 0, interval_ms = a->v.interval_ms;
    if (term_open(a->o.ascii, e)) return fail(e);
    while (!a->v.quit) {
        term_event ev;
        int64_t now = clock_now_us();
        if (a->o.replay && !play(a, now) && a->o.frames) a->v.quit = true;
        pump(a);
        while (term_next(&ev)) {
            if (ev.click)
                view_mouse(&a->v, ev.row, ev.col, ev.button, clock_now_us());
            else if (ev.key)
                view_key(&a->v, ev.key, clock_now_us());
            a->fresh = true;
        }
        pump(a);
        if (a->v.interval_ms != interval_ms) {
            interval_ms = a->v.interval_ms;
            for (int i = 0; i < a->v.n_servers; i++) {
                if (a->feed[i]) feed_set_interval(a->feed[i], interval_ms);
            }
        }
        now = clock_now_us();
        if (a->fresh || now - drawn_us >= REDRAW_US) {
            if (!term_size(&a->cells)) break;
            view_draw(&a->v, &a->cells, now, clock_wall_us());
            term_show(&a->cells);
            drawn_us = now;
            a->fresh = false;
            if (a->o.frames && a->n_updates >= a->o.frames) a->v.quit = true;
        }
        int64_t left = drawn_us + REDRAW_US - clock_now_us();
        if (a->o.replay) {
            int64_t until = replay_wait_us(a, clock_now_us());
            if (a->o.speed == 0 && !a->v.paused) until = 0;
            left = until < left ? until : left;
        }
        if (!a->v.quit) wait_for_news(a, true, left);
    }
    term_close();
    settings_save(&a->v);
    return EXIT_SUCCESS;
}

/* The table of the screen, as many rows as it has; else a page. */
static int print_once(app *a)
{
    const char *columns = getenv("COLUMNS");
    int table = view_table_of(a->v.screen), width = a->o.width ? a->o.width : 120, rows = 40;
    if (!a->o.width && columns && atoi(columns) >= 20) width = atoi(columns);
    if (table >= 0) rows = 9 + (int)view_rows(&a->v, table)->n;
    if (a->o.height) rows = a->o.height;
    if (rows > ONCE_ROWS_MAX) rows = ONCE_ROWS_MAX;
    if (!cells_resize(&a->cells, rows, width, !a->o.ascii)) return EXIT_FAILURE;
    view_draw(&a->v, &a->cells, clock_now_us(), clock_wall_us());
    for (int y = 0, blank = 0; y < rows - 1; y++) { /* without the line of keys */
        char *text = cells_row(&a->cells, y);
        if (!text) return EXIT_FAILURE;
        if (text[0]) {
            for (; blank > 0; blank--) (void)putchar('\n');
            (void)puts(text);
        } else {
            blank++;
        }
        free(text);
    }
    return EXIT_SUCCESS;
}

/* All servers have said something, if only why they do not answer. */
static bool all_known(const app *a)
{
    for (int i = 0; i < a->v.n_servers; i++) {
        const view_server *s = &a->v.server[i];
        if (!s->data.any && !s->error[0]) return false;
    }
    return true;
}

/* Nothing more is needed.  One picture of all servers has those in it that do not answer. */
static bool has_enough(const app *a, int64_t wanted, bool ended)
{
    if (a->o.once && a->v.screen == SCREEN_SERVERS) return all_known(a);
    return a->n_updates >= wanted && (!ended || a->ended);
}

static int run_plain(app *a)
{
    int64_t wanted = a->o.once ? 1 : a->o.frames ? a->o.frames : INT64_MAX;
    bool playing = true, ended = a->o.once && !a->o.replay && a->v.screen == SCREEN_ENDED;
    while (!has_enough(a, wanted, ended) && playing) {
        if (a->o.replay) playing = play(a, clock_now_us());
        pump(a);
        for (int i = 0; i < a->v.n_servers; i++) {
            const view_server *s = &a->v.server[i];
            if (a->o.replay || s->up || !s->error[0]) continue;
            if (a->o.once && a->v.screen != SCREEN_SERVERS) {
                fprintf(stderr, "loratop: %s: %s\n", s->name, s->error);
                return EXIT_FAILURE;
            }
        }
        if (ferror(stdout)) return EXIT_FAILURE;
        if (!has_enough(a, wanted, ended) && playing) {
            wait_for_news(a, false,
                          a->o.replay ? a->o.speed > 0 ? replay_wait_us(a, clock_now_us()) : 0
                                      : REDRAW_US);
        }
    }
    if (a->o.once && !a->o.json && !a->o.csv) return print_once(a);
    return EXIT_SUCCESS;
}

static void close_app(app *a)
{
    for (int i = 0; i < VIEW_SERVERS_MAX; i++) {
        feed_close(a->feed[i]);
        free(a->held[i]);
        context_wipe(&a->ctx[i]);
    }
    if (a->record) (void)fclose(a->record);
    if (a->has_next) cJSON_Delete(a->next.tree);
    replay_close(&a->replay);
    cells_free(&a->cells);
    view_clear(&a->v);
    if (a->wake[0] > 0) (void)close(a->wake[0]);
    if (a->wake[1] > 0) (void)close(a->wake[1]);
}

int main(int argc, char **argv)
{
    static app a; /* large, one of it */
    err e;
    process_keep_secrets();
    (void)setlocale(LC_ALL, "");
    if (argc == 2 && strcmp(argv[1], "--print-man") == 0) {
        cli_print_man(&program, stdout);
        return EXIT_SUCCESS;
    }
    int status = parse(argc, argv, &a.o);
    if (status >= 0) return status;
    if (pipe2(a.wake, O_CLOEXEC | O_NONBLOCK) != 0) {
        (void)err_set(&e, ERR_LIMIT, "no pipe: %s", strerror(errno));
        return fail(&e);
    }
    err_code rc = a.o.replay ? open_replay(&a, &e) : open_servers(&a, &e);
    if (!rc && a.o.record && !(a.record = fopen(a.o.record, "ae"))) {
        rc = err_set(&e, ERR_IO, "%s: %s", a.o.record, strerror(errno));
    }
    if (rc) {
        close_app(&a);
        return fail(&e);
    }
    if (a.o.screen >= 0) a.v.screen = (screen)a.o.screen;
    if (a.o.once && a.o.screen < 0) a.v.screen = SCREEN_OVERVIEW;
    if (a.v.screen == SCREEN_SERVERS && a.v.n_servers < 2) a.v.screen = SCREEN_OVERVIEW;
    a.v.read_only = a.o.read_only;
    if (a.o.once || a.o.json || a.o.csv)
        status = run_plain(&a);
    else
        status = run_screen(&a, &e);
    close_app(&a);
    return status;
}
