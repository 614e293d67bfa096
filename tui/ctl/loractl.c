/* loractl.c -- what loractl's commands share: they ask the server and print what it answered.
 *
 * A command is: open the server of its side (ctl_open() finds URL and key from options,
 * environment and context), one or more calls (ctl_call(), ctl_list() for all pages), then print
 * by format. Each function returns an exit status: CTL_OK, or the first failure, which has been
 * printed already.
 *
 * Text from the server is data of strangers: say() and the tables write it through text_clean(),
 * which replaces control characters, so that an adapter's description cannot send escape
 * sequences to a terminal.
 *
 * Signals: on_signal() cancels the call in progress (`running`) and leaves the process
 * otherwise. Between two calls the flag `interrupted` is kept and ends the next one at once.
 * ctl_wait() lets SIGINT in only inside ppoll(), so that none is lost between the test and the
 * wait.
 */
#include "tui/ctl/loractl.h"

#include <ctype.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl_fields.h"
#include "tui/text.h"
#include "tui/yaml.h"

enum { SENTENCE_MAX = 1024, PAGES_MAX = 10000, ASK_MS = 10000 };

/* -------------------------------------------------------------------------- saying -- */

static void say(FILE *f, const char *begin, const char *fmt, va_list ap)
{
    char raw[SENTENCE_MAX], clean[SENTENCE_MAX * 4];
    vsnprintf(raw, sizeof(raw), fmt, ap);
    (void)text_clean(raw, clean, sizeof(clean), 0);
    fprintf(f, "%s%s\n", begin, clean);
}

static const char *prefix(void)
{
    return table_coloured(stderr) ? "\033[31mloractl:\033[0m " : "loractl: ";
}

int ctl_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)fflush(stdout);
    say(stderr, prefix(), fmt, ap);
    va_end(ap);
    return CTL_REFUSED;
}

int ctl_usage(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(stderr, prefix(), fmt, ap);
    va_end(ap);
    return CTL_USAGE;
}

const char *ctl_word(const cJSON *row, const char *name)
{
    const cJSON *v = cJSON_IsObject(row) ? json_get(row, name) : NULL;
    return cJSON_IsString(v) ? v->valuestring : "";
}

double ctl_real(const cJSON *row, const char *name, double none)
{
    const cJSON *v = json_get(row, name);
    return cJSON_IsNumber(v) ? v->valuedouble : none;
}

void ctl_print_json(const ctl *c, const cJSON *tree)
{
    if (c->yaml)
        yaml_print(stdout, tree);
    else
        table_print_json(stdout, tree);
}

void ctl_done(const ctl *c, const cJSON *tree, const char *fmt, ...)
{
    va_list ap;
    if (c->format == TABLE_JSON && tree) {
        ctl_print_json(c, tree);
        return;
    }
    if (c->format == TABLE_NAME) return;
    va_start(ap, fmt);
    say(stdout, "", fmt, ap);
    va_end(ap);
}

bool ctl_confirm(const ctl *c, const char *fmt, ...)
{
    char line[64];
    va_list ap;
    if (cli_given(&c->cli, "yes")) return true;
    if (!isatty(STDIN_FILENO)) {
        (void)ctl_usage("this cannot be undone: say --yes where there is nobody to ask");
        return false;
    }
    va_start(ap, fmt);
    say(stderr, "", fmt, ap);
    va_end(ap);
    (void)fputs("Go on? [y/N] ", stderr);
    return fgets(line, sizeof(line), stdin) && (line[0] == 'y' || line[0] == 'Y');
}

static int print_picked(const ctl *c, const fields *f, const cJSON *rows, bool one)
{
    const cJSON *row;
    int width = c->format == TABLE_WIDE ? 0 : c->width;
    if (c->format == TABLE_JSON) {
        cJSON *picked = cJSON_CreateArray();
        cJSON_ArrayForEach(row, rows) cJSON_AddItemToArray(picked, fields_pick(f, row));
        ctl_print_json(c, one ? cJSON_GetArrayItem(picked, 0) : picked);
        cJSON_Delete(picked);
    } else if (one && (c->format == TABLE_PEOPLE || c->format == TABLE_WIDE)) {
        table_print_one(stdout, f->columns, cJSON_GetArrayItem(rows, 0), width, true);
    } else {
        table_print(stdout, f->columns, rows, c->format, width);
    }
    return CTL_OK;
}

static void print_rows(const ctl *c, const column *columns, const cJSON *rows)
{
    if (c->format == TABLE_JSON) {
        ctl_print_json(c, rows);
        return;
    }
    if (cJSON_GetArraySize(rows) == 0 && c->format != TABLE_CSV) {
        if (c->width) fprintf(stderr, "(none)\n");
        if (c->format != TABLE_NAME) table_print(stdout, columns, rows, c->format, c->width);
        return;
    }
    table_print(stdout, columns, rows, c->format, c->format == TABLE_WIDE ? 0 : c->width);
}

/* Where a screen is drawn again and again, what is beyond it would push the head out. */
static cJSON *first_rows(const ctl *c, const cJSON *rows)
{
    const cJSON *row;
    bool table = c->format == TABLE_PEOPLE || c->format == TABLE_WIDE;
    if (!table || c->room == 0 || cJSON_GetArraySize(rows) <= c->room) return NULL;
    cJSON *first = cJSON_CreateArray();
    cJSON_ArrayForEach(row, rows)
    {
        if (cJSON_GetArraySize(first) == c->room) break;
        (void)cJSON_AddItemReferenceToArray(first, (cJSON *)row);
    }
    return first;
}

int ctl_print_rows(const ctl *c, const column *columns, const cJSON *rows)
{
    fields f;
    if (!fields_take(c, columns, rows, &f)) return CTL_USAGE;
    cJSON *first = first_rows(c, rows);
    if (f.n)
        (void)print_picked(c, &f, first ? first : rows, false);
    else
        print_rows(c, columns, first ? first : rows);
    if (first) printf("(%d more)\n", cJSON_GetArraySize(rows) - cJSON_GetArraySize(first));
    cJSON_Delete(first);
    return CTL_OK;
}

static void print_one(const ctl *c, const column *columns, const cJSON *rows)
{
    const cJSON *row = cJSON_GetArrayItem(rows, 0);
    if (c->format == TABLE_JSON)
        ctl_print_json(c, row);
    else if (c->format == TABLE_CSV || c->format == TABLE_NAME)
        table_print(stdout, columns, rows, c->format, 0);
    else
        table_print_one(stdout, columns, row, c->format == TABLE_WIDE ? 0 : c->width,
                        c->format == TABLE_WIDE);
}

/* columns NULL: the fields are the server's business. */
static int print_object(const ctl *c, const column *columns, const cJSON *row)
{
    fields f;
    cJSON *rows = cJSON_CreateArray();
    (void)cJSON_AddItemReferenceToArray(rows, (cJSON *)row);
    bool ok = fields_take(c, columns, rows, &f);
    if (ok && f.n)
        (void)print_picked(c, &f, rows, true);
    else if (ok && columns)
        print_one(c, columns, rows);
    else if (ok && c->format == TABLE_JSON)
        ctl_print_json(c, row);
    else if (ok)
        table_print_tree(stdout, row, c->format == TABLE_WIDE ? 0 : c->width,
                         c->format == TABLE_WIDE);
    cJSON_Delete(rows);
    return ok ? CTL_OK : CTL_USAGE;
}

int ctl_print_row(const ctl *c, const column *columns, const cJSON *row)
{
    return print_object(c, columns, row);
}

int ctl_print_tree(const ctl *c, const cJSON *tree)
{
    return print_object(c, NULL, tree);
}

/* -------------------------------------------------------------------------- asking -- */

static client *_Atomic running; /* what a signal ends */
static atomic_bool talking, interrupted;

static void on_signal(int sig)
{
    client *c = running;
    atomic_store(&interrupted, true);
    if (c)
        client_cancel(c);
    else if (sig != SIGINT || !atomic_load(&talking))
        _exit(128 + sig);
}

bool ctl_was_interrupted(void)
{
    return atomic_exchange(&interrupted, false);
}

static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal};
    (void)sigaction(SIGINT, &a, NULL);
    (void)sigaction(SIGTERM, &a, NULL);
}

void ctl_keep_running(void)
{
    atomic_store(&talking, true);
    catch_signals();
}

/* The signal is let in only while we wait, so that none falls between looking and waiting. */
bool ctl_wait(int fd, int64_t ms)
{
    sigset_t interrupt, was;
    struct pollfd in = {.fd = fd, .events = POLLIN};
    struct timespec bound = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)sigemptyset(&interrupt);
    (void)sigaddset(&interrupt, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &interrupt, &was);
    bool stop = ctl_was_interrupted();
    if (!stop && ppoll(&in, 1, ms < 0 ? NULL : &bound, &was) < 0) stop = ctl_was_interrupted();
    (void)sigprocmask(SIG_SETMASK, &was, NULL);
    return !stop;
}

static err_code read_contexts(ctl *c, err *e)
{
    if (c->contexts_read) return ERR_NONE;
    err_code rc = contexts_load(&c->contexts, e);
    c->contexts_read = !rc;
    return rc;
}

void ctl_state_path(ctl *c, const char *name, char *out, size_t cap)
{
    err e;
    const char *slash = read_contexts(c, &e) ? NULL : strrchr(c->contexts.path, '/');
    int dir = slash ? (int)(slash - c->contexts.path) : 0;
    int n = snprintf(out, cap, "%.*s", dir, c->contexts.path);
    if (dir > 0) (void)mkdir(out, 0700);
    n += snprintf(out + n, cap - (size_t)n, "/%s", name);
    if (dir == 0 || (size_t)n >= cap) out[0] = '\0';
}

static bool resolve(ctl *c, int *status)
{
    err e;
    if (c->resolved) return true;
    *status = CTL_REFUSED;
    if (read_contexts(c, &e)) return ctl_fail("%s", e.msg) == CTL_OK;
    err_code rc = context_resolve(&c->contexts, cli_value(&c->cli, "context"), &c->context, &e);
    static const char *const names[] = {"url", "admin-url", "ca"};
    static const char *const settings[] = {"url", "admin_url", "ca"};
    for (int i = 0; !rc && i < 3; i++) {
        const char *v = cli_value(&c->cli, names[i]);
        if (v) rc = context_set(&c->context, settings[i], v, &e);
    }
    const char *file = cli_value(&c->cli, "key-file");
    if (!rc && file) rc = context_read_key(file, c->context.key, &e);
    file = cli_value(&c->cli, "admin-key-file");
    if (!rc && file) rc = context_read_key(file, c->context.admin_key, &e);
    if (rc) return ctl_fail("%s", e.msg) == CTL_OK;
    c->resolved = true;
    return true;
}

bool ctl_open(ctl *c, ctl_side side, client **out, int *status)
{
    err e;
    *out = c->client[side];
    if (*out) return true;
    if (!resolve(c, status)) return false;
    static const char *const no_url[SIDES] = {
        "no server is known: set url in the context, or LORAD_URL",
        "no server for operators is known: set admin_url in the context, or LORAD_ADMIN_URL",
        "no metrics_url is known: set it in the context, or LORAD_METRICS_URL"};
    static const char *const no_key[SIDES] = {
        "there is no key: 'loractl context set NAME --key', LORAD_KEY or LORAD_KEY_FILE",
        "there is no operator's key: 'loractl context set NAME --admin-key', LORAD_ADMIN_KEY or "
        "LORAD_ADMIN_KEY_FILE"};
    const char *url[SIDES] = {c->context.url, c->context.admin_url, c->context.metrics_url};
    const char *key[SIDES] = {c->context.key, c->context.admin_key, ""};
    *status = CTL_REFUSED;
    if (!*url[side]) return ctl_fail("%s", no_url[side]) == CTL_OK;
    if (no_key[side] && !*key[side]) return ctl_fail("%s", no_key[side]) == CTL_OK;
    client_options o = {.url = url[side],
                        .ca_file = c->context.ca,
                        .key = key[side],
                        .cert_file = c->context.cert,
                        .cert_key_file = c->context.cert_key,
                        .agent = "loractl/" LORAD_VERSION};
    if (client_open(&c->client[side], &o, &e)) return ctl_fail("%s", e.msg) == CTL_OK;
    catch_signals();
    *out = c->client[side];
    return true;
}

err_code ctl_transfer(client *cl, const client_request *rq, client_reply *reply, err *e)
{
    running = cl;
    if (atomic_load(&interrupted)) client_cancel(cl); /* it came between two calls */
    err_code rc = client_call(cl, rq, reply, e);
    running = NULL;
    return rc;
}

int ctl_run(ctl *c, ctl_side side, const client_request *rq, client_reply *reply)
{
    client *cl;
    int status;
    err e;
    char why[SENTENCE_MAX];
    client_request mine = *rq;
    *reply = (client_reply){.retry_after_ms = -1, .upload_offset = -1};
    if (!ctl_open(c, side, &cl, &status)) return status;
    const char *timeout = cli_value(&c->cli, "timeout");
    const char *wait = cli_value(&c->cli, "wait"); /* the server's own time comes on top */
    if (wait && !rq->timeout_ms) mine.timeout_ms = ctl_span(wait) * 1000 + CLIENT_CALL_MS;
    if (timeout && !rq->timeout_ms) mine.timeout_ms = ctl_span(timeout) * 1000;
    err_code rc = ctl_transfer(cl, &mine, reply, &e);
    c->http_status = rc ? 0 : reply->status;
    if (rc == ERR_CANCELLED) return CTL_INTERRUPTED;
    if (rc) {
        (void)ctl_fail("%s", e.msg);
        return client_unreachable(cl) ? CTL_UNREACHABLE : CTL_REFUSED;
    }
    if (client_reply_ok(reply)) return CTL_OK;
    client_reply_error(reply, why, sizeof(why));
    (void)ctl_fail("%s%s%s%s", why, reply->request_id[0] ? " (" : "", reply->request_id,
                   reply->request_id[0] ? ")" : "");
    ctl_hint(side, reply);
    return CTL_REFUSED;
}

cJSON *ctl_ask(ctl *c, ctl_side side, const char *fmt, ...)
{
    char path[4096];
    client_reply reply;
    cJSON *tree = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(path, sizeof(path), fmt, ap);
    va_end(ap);
    client_request rq = {.method = "GET", .path = path, .timeout_ms = ASK_MS};
    if (n < 0 || (size_t)n >= sizeof(path) || !c->client[side]) return NULL;
    if (ctl_transfer(c->client[side], &rq, &reply, NULL) == ERR_NONE && client_reply_ok(&reply))
        (void)client_reply_json(&reply, &tree, NULL);
    client_reply_clear(&reply);
    return tree;
}

int ctl_call(ctl *c, ctl_side side, const char *method, cJSON *body, cJSON **tree, const char *fmt,
             ...)
{
    char path[4096];
    client_reply reply;
    err e;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(path, sizeof(path), fmt, ap);
    va_end(ap);
    if (tree) *tree = NULL;
    char *text = body ? cJSON_PrintUnformatted(body) : NULL;
    cJSON_Delete(body);
    if (n < 0 || (size_t)n >= sizeof(path) || (body && !text)) {
        free(text);
        return ctl_fail("the arguments are too long");
    }
    client_request rq = {
        .method = method, .path = path, .body = text, .body_len = text ? strlen(text) : 0};
    int status = ctl_run(c, side, &rq, &reply);
    free(text);
    if (status == CTL_OK && tree && reply.len && client_reply_json(&reply, tree, &e))
        status = ctl_fail("%s", e.msg);
    if (status == CTL_OK && tree && *tree && cJSON_IsFalse(json_get(*tree, "durable")))
        fprintf(stderr, "loractl: in force, but the server's disk does not have it yet; "
                        "the server goes on trying\n");
    client_reply_clear(&reply);
    return status;
}

int ctl_show(ctl *c, ctl_side side, const char *path)
{
    cJSON *tree;
    int status = ctl_call(c, side, "GET", NULL, &tree, "%s", path);
    if (!status) status = ctl_print_tree(c, tree);
    cJSON_Delete(tree);
    return status;
}

int ctl_list(ctl *c, ctl_side side, const char *path, const char *cursor_field, cJSON **rows)
{
    char cursor[256] = "";
    *rows = cJSON_CreateArray();
    for (int page = 0; page < PAGES_MAX; page++) {
        cJSON *tree;
        int status = ctl_call(c, side, "GET", NULL, &tree, "%s%s%s%s", path,
                              *cursor ? (strchr(path, '?') ? "&" : "?") : "",
                              *cursor ? "after=" : "", cursor);
        cJSON *data = status || !cJSON_IsObject(tree)
                          ? NULL
                          : cJSON_DetachItemFromObjectCaseSensitive(tree, "data");
        if (!status && !cJSON_IsArray(data)) status = ctl_fail("the server's answer is not a list");
        if (status) {
            cJSON_Delete(data);
            cJSON_Delete(tree);
            return status;
        }
        bool more = cJSON_IsTrue(json_get(tree, "has_more"));
        const cJSON *said = json_get(tree, "next"); /* the server's word for the next page */
        cJSON *each;
        const char *last = NULL;
        while ((each = cJSON_DetachItemFromArray(data, 0))) {
            const cJSON *id = cJSON_IsObject(each) ? json_get(each, cursor_field) : NULL;
            last = cJSON_IsString(id) ? id->valuestring : NULL;
            (void)cJSON_AddItemToArray(*rows, each);
        }
        char next[256] = "";
        if (cJSON_IsString(said)) last = said->valuestring;
        if (last) (void)client_escape(last, next, sizeof(next));
        cJSON_Delete(data);
        cJSON_Delete(tree);
        if (!more || !*next || strcmp(next, cursor) == 0) return CTL_OK;
        memcpy(cursor, next, sizeof(cursor));
    }
    return CTL_OK;
}

/* -------------------------------------------------------------------------- values -- */

const char *ctl_seg(const char *s)
{
    static char buf[4][1024];
    static int turn;
    char *out = buf[turn++ & 3];
    if (!client_escape(s, out, sizeof(buf[0])))
        return "%00"; /* too long: no server has such a name */
    return out;
}

int64_t ctl_span_ms(const char *s)
{
    char *end;
    double v = strtod(s, &end);
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1e3},    {"ms", 1},    {"s", 1e3},    {"m", 6e4},
                 {"min", 6e4}, {"h", 3.6e6}, {"d", 8.64e7}, {"w", 6.048e8}};
    if (end == s || !(v >= 0) || v > 1e10) return -1;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(end, units[i].unit) == 0) return (int64_t)(v * units[i].ms);
    }
    return -1;
}

int64_t ctl_span(const char *s)
{
    int64_t ms = ctl_span_ms(s);
    return ms < 0 ? -1 : ms / 1000;
}

bool ctl_time(const char *s, int64_t *out)
{
    static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
                                        "%Y-%m-%d"};
    size_t n = strspn(s, "0123456789");
    if (n && !s[n] && n <= 11) {
        *out = strtoll(s, NULL, 10);
        return true;
    }
    if (*s == '-') {
        int64_t ago = ctl_span(s + 1);
        *out = (int64_t)time(NULL) - ago;
        return ago >= 0;
    }
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        struct tm tm = {.tm_isdst = -1};
        const char *end = strptime(s, forms[i], &tm);
        if (end && !*end) {
            *out = (int64_t)mktime(&tm);
            return *out >= 0;
        }
    }
    return false;
}

int64_t ctl_number(const char *s)
{
    char *end;
    if (!isdigit((unsigned char)*s)) return -1;
    double v = strtod(s, &end);
    double factor = strcmp(end, "k") == 0   ? 1e3
                    : strcmp(end, "M") == 0 ? 1e6
                    : strcmp(end, "G") == 0 ? 1e9
                                            : 1;
    if ((factor == 1 && *end) || v * factor > 1e15) return -1;
    return (int64_t)(v * factor);
}

cJSON *ctl_words(const char *list)
{
    cJSON *out = cJSON_CreateArray();
    while (*list) {
        size_t n = strcspn(list, ",");
        char *word = strndup(list, n);
        if (word && n) (void)cJSON_AddItemToArray(out, cJSON_CreateString(word));
        free(word);
        list += n + (list[n] == ',');
    }
    return out;
}

bool ctl_pairs(cJSON *into, const char *const *pairs, int n)
{
    for (int i = 0; i < n; i++) {
        char name[64];
        const char *eq = strchr(pairs[i], '=');
        int64_t v = eq ? strcmp(eq + 1, "none") == 0 ? 0 : ctl_number(eq + 1) : -1;
        size_t len = eq ? (size_t)(eq - pairs[i]) : 0;
        if (v < 0 || len == 0 || len >= sizeof(name)) {
            (void)ctl_usage("'%s' is not NAME=NUMBER (k, M, G for thousands; none lifts a limit)",
                            pairs[i]);
            return false;
        }
        for (size_t k = 0; k < len; k++) name[k] = pairs[i][k] == '-' ? '_' : pairs[i][k];
        name[len] = 0;
        (void)cJSON_AddNumberToObject(into, name, (double)v);
    }
    return true;
}
