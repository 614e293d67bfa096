/* loractl_why.c -- what was slow and why: `history`, and `why` for the server, a class, a tenant
 * or a request.
 *
 * The server already attributes each missed target to one cause (engine/sched/sched_cause.c). This
 * file only adds up and explains:
 *
 *     why REQUEST    phases of one ended request, in milliseconds and percent
 *     why NAME       misses of a class or tenant in the last hour, its causes, who was beside it
 *     why            state of the server first (device, disk, spool, certificate), then the class
 *                    that misses most, then clients that do not read, then limits
 *
 * Every finding ends with a line "next:", a command that the operator can run. A second cause is
 * named where it has at least a quarter of the misses of the first one, since a busy machine
 * must not hide a tenant that floods the queue.
 *
 * With --json or --fields the same facts are printed as rows, without sentences.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"
#include "tui/text.h"

enum { FINE_S = 10, HOUR_S = 3600, SHOWN = 5, CERTIFICATE_WARN_S = 14 * 86400 };
enum { SPOOL_LATE_US = 5000000, SLOW_CLIENT_MS = 1000, UNREAD_MS = 2000, TEXT_CAP = 800 };
#define TABLES "/admin/v1/stats?tables=tenants"

/* With --json or --fields it is rows, not sentences. */
static bool for_programs(const ctl *c)
{
    return c->format == TABLE_JSON || cli_given(&c->cli, "fields");
}

/* ------------------------------------------------------------------------- history -- */

static const column history_columns[] = {
    {"FROM", "start", CELL_TIME, false},
    {"NAME", "name", CELL_TEXT, false},
    {"REQUESTS", "ended", CELL_INT, false},
    {"MET", "met", CELL_INT, false},
    {"MISSED", "missed", CELL_INT, false},
    {"TTFT99", "ttft_p99_ms", CELL_MS, false},
    {"TPOT99", "tpot_p99_ms", CELL_MS, false},
    {"CAUSES", "causes", CELL_TEXT, false},
    {"SECONDS", "seconds", CELL_INT, true},
    {"FAILED", "failed", CELL_INT, true},
    {"REFUSED", "refused", CELL_INT, true},
    {"LIMITED", "limited", CELL_INT, true},
    {"IN", "prompt_tokens", CELL_INT, true},
    {"OUT", "output_tokens", CELL_INT, true},
    {"TTFT50", "ttft_p50_ms", CELL_MS, true},
    {"TPOT50", "tpot_p50_ms", CELL_MS, true},
    {NULL, NULL, CELL_TEXT, false},
};

/* Rows of one kind, of one name (NULL: all), from then on; *rows is borrowed from *tree. */
static int get_history(ctl *c, const char *by, const char *name, int64_t start, const char *more,
                       cJSON **tree, const cJSON **rows)
{
    int status = ctl_call(c, ADMIN_SIDE, "GET", NULL, tree,
                          "/admin/v1/history?limit=50000&by=%s&start=%lld%s%s%s", by,
                          (long long)start, name ? "&name=" : "", name ? ctl_seg(name) : "", more);
    *rows = !status && cJSON_IsObject(*tree) ? json_get(*tree, "data") : NULL;
    if (!status && !cJSON_IsArray(*rows)) status = ctl_fail("the server's answer is not a list");
    return status;
}

int ctl_history(void *p)
{
    ctl *c = p;
    cJSON *tree;
    const cJSON *rows;
    const char *by = cli_value(&c->cli, "by"), *start = cli_value(&c->cli, "start");
    const char *end = cli_value(&c->cli, "end"), *width = cli_value(&c->cli, "step");
    int64_t from = (int64_t)time(NULL) - HOUR_S, to = 0;
    char more[96] = "";
    if (start && !ctl_time(start, &from)) return ctl_usage("--start: '%s' is no time", start);
    if (end && !ctl_time(end, &to)) return ctl_usage("--end: '%s' is no time", end);
    if (width && strcmp(width, "10s") != 0 && strcmp(width, "10m") != 0)
        return ctl_usage("--step: '%s' is neither 10s nor 10m", width);
    if (width)
        snprintf(more, sizeof(more), "&step=%d", strcmp(width, "10s") == 0 ? FINE_S : 60 * FINE_S);
    if (end) {
        size_t at = strlen(more);
        snprintf(more + at, sizeof(more) - at, "&end=%lld", (long long)to);
    }
    int status = get_history(c, by ? by : "class", c->cli.n_arg ? c->cli.arg[0] : NULL, from, more,
                             &tree, &rows);
    if (!status) status = ctl_print_rows(c, history_columns, rows);
    cJSON_Delete(tree);
    return status;
}

/* ----------------------------------------------------------------- why: a request -- */

static void say_phase(const cJSON *row, const char *field, const char *words, double whole)
{
    char ms[32];
    double v = ctl_real(row, field, -1);
    if (v <= 0) return;
    text_ms(v, ms, sizeof(ms));
    printf("  %-10s %3.0f %%  %s\n", ms, whole > 0 ? 100 * v / whole : 0, words);
}

static void say_request(cJSON *r)
{
    char took[32], model[128], class[80], tenant[80];
    double whole = ctl_real(r, "duration_ms", -1);
    const char *missed = ctl_word(r, "missed"), *beside = ctl_word(r, "beside");
    text_ms(whole, took, sizeof(took));
    (void)text_clean(ctl_word(r, "model"), model, sizeof(model), 30);
    (void)text_clean(ctl_word(r, "class"), class, sizeof(class), 18);
    (void)text_clean(ctl_word(r, "tenant"), tenant, sizeof(tenant), 18);
    printf("A request for %s, class %s, tenant %s: %.0f tokens in %s.\n", model, class, tenant,
           ctl_real(r, "output_tokens", -1), took);
    if (*missed)
        printf("It missed its target because of: %s%s%s.\n", missed, *beside ? ", beside " : "",
               beside);
    else
        printf("It met its targets.\n");
    say_phase(r, "queue_ms", "waited for a slot", whole);
    say_phase(r, "adapter_ms", "waited for its adapter", whole);
    say_phase(r, "prompt_ms", "prompt, to the first token", whole);
    say_phase(r, "decode_ms", "the further tokens", whole);
    cJSON_AddNumberToObject(r, "receive_ms",
                            ctl_real(r, "rest_ms", -1) - ctl_real(r, "send_ms", -1));
    say_phase(r, "receive_ms", "received the request, and prepared it", whole);
    say_phase(r, "send_ms", "sent the rest of the answer, and recorded usage", whole);
    double send = ctl_real(r, "send_ms", -1);
    if (send > SLOW_CLIENT_MS && 2 * send > whole)
        printf("Its client reads slowly: the answer was ready and waited for it.\n"
               "  next: look at the client and its network\n");
}

static cJSON *find_request(const cJSON *tree, const char *id)
{
    cJSON *row;
    const cJSON *data = cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    cJSON_ArrayForEach(row, data)
    {
        if (strcmp(ctl_word(row, "id"), id) == 0 || strcmp(ctl_word(row, "request_id"), id) == 0)
            return row;
    }
    return NULL;
}

static int why_request(ctl *c, const char *id)
{
    cJSON *tree;
    int status =
        ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/requests?state=ended&limit=10000");
    cJSON *row = status ? NULL : find_request(tree, id);
    if (row && for_programs(c))
        status = ctl_print_tree(c, row);
    else if (row)
        say_request(row);
    else if (!status)
        status = ctl_fail("no request %s is among the last that ended, or the slowest of the last "
                          "hour; 'requests list' has those that run",
                          id);
    cJSON_Delete(tree);
    return status;
}

/* ------------------------------------------------------- why: a class or a tenant -- */

typedef struct tally {
    char name[160];
    double requests, missed, ttft_ms, tpot_ms;
    int64_t since, until; /* of the spans with misses */
} tally;

static void add_span(tally *t, const cJSON *row)
{
    double missed = ctl_real(row, "missed", -1);
    int64_t start = (int64_t)ctl_real(row, "start", -1);
    t->requests += ctl_real(row, "met", -1) + missed;
    if (ctl_real(row, "ttft_p99_ms", -1) > t->ttft_ms)
        t->ttft_ms = ctl_real(row, "ttft_p99_ms", -1);
    if (ctl_real(row, "tpot_p99_ms", -1) > t->tpot_ms)
        t->tpot_ms = ctl_real(row, "tpot_p99_ms", -1);
    if (missed <= 0) return;
    t->missed += missed;
    if (!t->since) t->since = start;
    t->until = start + (int64_t)ctl_real(row, "seconds", -1);
}

/* "queue:3,machine:1" into an object of sums. */
static void add_causes(cJSON *sums, const char *text)
{
    char word[32];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ":"), len = strcspn(p, ",");
        if (n < len && n < sizeof(word)) {
            memcpy(word, p, n);
            word[n] = '\0';
            cJSON *v = cJSON_GetObjectItemCaseSensitive(sums, word);
            double more = strtod(p + n + 1, NULL);
            if (v)
                cJSON_SetNumberValue(v, v->valuedouble + more);
            else
                cJSON_AddNumberToObject(sums, word, more);
        }
        p += len + (p[len] == ',');
    }
}

static int most_missed(const void *a, const void *b)
{
    double x = ((const tally *)a)->missed, y = ((const tally *)b)->missed;
    return x > y ? -1 : x < y;
}

/* Sums by name, most missed first; at most `cap`, returns how many. */
static int tallies(const cJSON *rows, const char *prefix, tally *out, int cap)
{
    const cJSON *row;
    int n = 0;
    cJSON_ArrayForEach(row, rows)
    {
        const char *name = ctl_word(row, "name");
        int i = 0;
        if (strncmp(name, prefix, strlen(prefix)) != 0) continue;
        while (i < n && strcmp(out[i].name, name) != 0) i++;
        if (i == cap) continue;
        if (i == n) {
            out[n] = (tally){.ttft_ms = -1, .tpot_ms = -1};
            snprintf(out[n++].name, sizeof(out->name), "%s", name);
        }
        add_span(&out[i], row);
    }
    qsort(out, (size_t)n, sizeof(*out), most_missed);
    return n;
}

static void put_clock(int64_t s, char out[32])
{
    struct tm tm;
    time_t t = (time_t)s;
    if (!gmtime_r(&t, &tm) || !strftime(out, 32, "%H:%M:%S", &tm)) out[0] = '\0';
}

static void say_who(cJSON *all, const tally *t, int n)
{
    const cJSON *who = cJSON_AddArrayToObject(all, "who");
    for (int i = 0; i < n && i < SHOWN && t[i].missed > 0; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", t[i].name);
        cJSON_AddNumberToObject(one, "requests", t[i].requests);
        cJSON_AddNumberToObject(one, "missed", t[i].missed);
        cJSON_AddItemToArray((cJSON *)who, one);
    }
}

/* The cause of most misses, and the second where it is no less than a quarter of them: a busy
 * machine must not hide a tenant that floods. */
static void say_causes(ctl *c, const cJSON *stats, const cJSON *class)
{
    const char *list = strstr(ctl_word(class, "verdict"), "missed (");
    char word[2][32] = {"", ""};
    int n[2] = {0, 0};
    if (!list ||
        sscanf(list, "missed (%31[a-z_]:%d,%31[a-z_]:%d", word[0], &n[0], word[1], &n[1]) < 2) {
        ctl_say_cause(c, stats, class, ctl_word(class, "verdict_cause"));
        return;
    }
    ctl_say_cause(c, stats, class, word[0]);
    if (n[1] == 0 || 4 * (int64_t)n[1] < n[0]) return;
    printf("  second cause: %s\n", word[1]);
    ctl_say_cause(c, stats, class, word[1]);
}

static void say_now(ctl *c, const cJSON *stats, const cJSON *class)
{
    char name[400], verdict[800];
    const char *now = ctl_word(class, "verdict");
    if (!*now) return;
    (void)text_clean(ctl_word(class, "name"), name, sizeof(name), 90);
    (void)text_clean(now, verdict, sizeof(verdict), 200);
    printf("%s misses its targets now, %s.\n", name, verdict);
    say_causes(c, stats, class);
}

static void say_spool(const cJSON *server, bool full)
{
    char reason[TEXT_CAP], holder[TEXT_CAP];
    printf("Usage can't be written to the database right now; %.0f rows are queued on disk and "
           "nothing is lost.%s\n",
           ctl_real(server, "spool_used", -1),
           full ? " The spool is full: requests are refused." : "");
    (void)text_clean(ctl_word(server, "storage_reason"), reason, sizeof(reason), 190);
    (void)text_clean(ctl_word(server, "storage_holder"), holder, sizeof(holder), 60);
    if (*holder)
        printf("  culprit: process %s holds the database\n"
               "  next: ps -fp %.*s; usage is written as soon as that process lets go\n",
               holder, (int)strcspn(holder, " "), holder);
    else
        printf("  culprit: %s\n"
               "  next: df -h on the disk of data.dir; the server's log has more under 'storage'\n",
               *reason ? reason : "the database is slow");
}

static void say_disk(const cJSON *server)
{
    char free_text[32], floor_text[32];
    text_bytes(ctl_real(server, "disk_free_bytes", -1), free_text, sizeof(free_text));
    text_bytes(ctl_real(server, "disk_floor_bytes", -1), floor_text, sizeof(floor_text));
    printf("The disk is low: uploads are refused. %s are free, data.min_free keeps %s free.\n",
           free_text, floor_text);
    printf(
        "  next: free space on the disk of data.dir, or loractl config set data.min_free=SIZE\n");
}

/* True: something is wrong with the server itself, and was printed. */
static bool say_server(const cJSON *server)
{
    const char *storage = ctl_word(server, "storage");
    double left_s =
        ctl_real(server, "certificate_until_s", -1) - ctl_real(server, "now_us", -1) / 1e6;
    bool ends = ctl_real(server, "certificate_until_s", -1) > 0 && left_s < CERTIFICATE_WARN_S;
    bool low = cJSON_IsTrue(json_get(server, "disk_low"));
    bool full = strcmp(storage, "full") == 0;
    /* A commit of a second puts the spool behind for a moment, which is no incident. */
    bool behind = full || ctl_real(server, "spool_oldest_us", 0) >= SPOOL_LATE_US ||
                  ctl_word(server, "storage_reason")[0];
    bool restarts = cJSON_IsTrue(json_get(server, "restarting"));
    bool failed = cJSON_IsFalse(json_get(server, "healthy"));
    if (failed)
        printf("The device has failed and can't be used again.\n"
               "  next: systemctl restart lorad, then loractl events --level error\n");
    if (restarts)
        printf("The device has failed and is being opened again.\n"
               "  next: loractl events --level error, then the server's log\n");
    if (behind) say_spool(server, full);
    if (low) say_disk(server);
    if (ends && left_s > 0) printf("The certificate ends in %.0f days.\n", floor(left_s / 86400));
    if (ends && left_s <= 0) printf("The certificate has expired: clients reject it.\n");
    if (ends) printf("  next: lorad cert, then loractl reload\n");
    return failed || restarts || behind || low || ends;
}

/* The client that has read nothing of its answer for longest.  True: there is one. */
static bool say_unread(ctl *c)
{
    char tenant[TEXT_CAP];
    cJSON *tree = ctl_ask(c, ADMIN_SIDE, "/admin/v1/requests?limit=10000");
    const cJSON *most =
        cJSON_IsObject(tree) ? ctl_most_of(json_get(tree, "data"), "unread_ms") : NULL;
    double best = most ? ctl_real(most, "unread_ms", 0) : 0;
    bool found = best >= UNREAD_MS;
    if (found) {
        (void)text_clean(ctl_word(most, "tenant"), tenant, sizeof(tenant), 90);
        printf("An answer waits for a client that does not read, for %.0f s.\n"
               "  culprit: a client of %s, request %.40s\n"
               "  next: loractl requests cancel %.40s, or look at the client and its network\n",
               best / 1e3, tenant, ctl_word(most, "request_id"), ctl_word(most, "request_id"));
    }
    cJSON_Delete(tree);
    return found;
}

/* Tenants whose limits refuse requests now.  That is what limits are for, so nothing is wrong. */
static bool say_limited(const cJSON *stats)
{
    char name[TEXT_CAP];
    double rate = ctl_real(json_get(stats, "rates"), "rate_limited", 0);
    const cJSON *most = rate > 0 ? ctl_most_of(json_get(stats, "tenants"), "limited") : NULL;
    if (!most) return false;
    (void)text_clean(ctl_word(most, "name"), name, sizeof(name), 90);
    printf("Limits refuse %.1f requests each second, most of them of %s.\n"
           "  next: loractl why %s\n",
           rate, name, name);
    return true;
}

/* All classes that are broken now, and what is wrong with the server itself. */
static int why_server(ctl *c)
{
    cJSON *tree;
    const cJSON *class;
    bool some = false;
    int status = ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, TABLES);
    const cJSON *classes = cJSON_IsObject(tree) ? json_get(tree, "classes") : NULL;
    const cJSON *server = cJSON_IsObject(tree) ? json_get(tree, "server") : NULL;
    if (!status && (!cJSON_IsArray(classes) || !cJSON_IsObject(server)))
        status = ctl_fail("the server's answer has no classes");
    if (!status && for_programs(c)) {
        status = ctl_print_tree(c, classes);
    } else if (!status) {
        some = say_server(server);
        cJSON_ArrayForEach(class, classes)
        {
            some |= ctl_word(class, "verdict")[0] != 0;
            say_now(c, tree, class);
        }
        some |= say_unread(c);
        bool limited = say_limited(tree);
        if (!some && limited) printf("All classes meet their targets.\n");
        if (!some && !limited) printf("Nothing is wrong: all classes meet their targets.\n");
    }
    cJSON_Delete(tree);
    return status;
}

/* What its limits refused, and the command that changes the one that refused most. */
static void print_refused(const cJSON *all)
{
    const cJSON *row, *rows = json_get(all, "refused");
    const char *top = NULL;
    double sum = 0;
    char tenant[400];
    cJSON_ArrayForEach(row, rows) sum += ctl_real(row, "last_hour", -1);
    if (sum <= 0) return;
    (void)text_clean(ctl_word(all, "tenant"), tenant, sizeof(tenant), 90);
    printf("Limits refused %.0f requests of %s in the last hour:\n", sum, tenant);
    cJSON_ArrayForEach(row, rows)
    {
        const char *limit = ctl_word(row, "limit"), *scope = ctl_word(row, "scope");
        bool own = strcmp(scope, "tenant") == 0;
        double most = own ? ctl_real(json_get(all, "limits"), limit, -1) : -1;
        printf("  %.0f by %.40s of the %.16s", ctl_real(row, "last_hour", -1), limit, scope);
        if (most > 0) printf(", which is %.0f", most);
        printf("\n");
        if (own && !top) top = limit;
    }
    if (top) printf("  next: loractl limits set %s %.40s=N\n", tenant, top);
}

static void print_why(const cJSON *all, const tally *t)
{
    char since[32], until[32], ttft[32], tpot[32], name[400];
    const cJSON *v;
    (void)text_clean(t->name, name, sizeof(name), 90);
    print_refused(all);
    if (t->requests <= 0) {
        if (ctl_word(all, "name")[0] && !ctl_word(all, "verdict")[0])
            printf("%s: no finished request is recorded for the last hour.\n", name);
        return;
    }
    if (t->missed <= 0) {
        printf("%s: all %.0f requests of the last hour met their targets.\n", name, t->requests);
        return;
    }
    put_clock(t->since, since);
    put_clock(t->until, until);
    text_ms(t->ttft_ms, ttft, sizeof(ttft));
    text_ms(t->tpot_ms, tpot, sizeof(tpot));
    printf("%s: %.0f of %.0f requests of the last hour missed their targets, from %s to %s UTC.\n",
           name, t->missed, t->requests, since, until);
    printf("Worst ten seconds: first token %s, further ones %s (p99).\nBy cause:", ttft, tpot);
    cJSON_ArrayForEach(v, json_get(all, "causes")) printf(" %s %.0f", v->string, v->valuedouble);
    printf("\n");
    cJSON_ArrayForEach(v, json_get(all, "who"))
    {
        (void)text_clean(ctl_word(v, "name"), name, sizeof(name), 60);
        printf("  %s: %.0f of %.0f\n", name, ctl_real(v, "missed", -1),
               ctl_real(v, "requests", -1));
    }
}

/* Of a class, the tenants that missed most; of a tenant, its adapters. */
static int add_who(ctl *c, bool class, const char *name, int64_t start, cJSON *all)
{
    enum { NAMES = 100 };
    static tally t[NAMES];
    char prefix[160] = "";
    cJSON *tree;
    const cJSON *rows;
    if (!class) snprintf(prefix, sizeof(prefix), "%s/", name);
    int status = get_history(c, class ? "tenant" : "adapter", NULL, start, "", &tree, &rows);
    if (!status) say_who(all, t, tallies(rows, prefix, t, NAMES));
    cJSON_Delete(tree);
    return status;
}

/* What is so now, of a class: the hour's sums tell of what is over, too. */
static void add_verdict(ctl *c, const char *name, cJSON *all)
{
    cJSON *stats = ctl_ask(c, ADMIN_SIDE, TABLES);
    const cJSON *class, *classes = cJSON_IsObject(stats) ? json_get(stats, "classes") : NULL;
    cJSON_ArrayForEach(class, classes)
    {
        if (strcmp(ctl_word(class, "name"), name) != 0) continue;
        (void)cJSON_AddStringToObject(all, "name", name);
        (void)cJSON_AddStringToObject(all, "verdict", ctl_word(class, "verdict"));
        if (!for_programs(c)) say_now(c, stats, class);
    }
    cJSON_Delete(stats);
}

/* A tenant's limits and what they refused; there is no such tenant: nothing is added. */
static void add_limits(ctl *c, const char *name, cJSON *all)
{
    cJSON *tree = ctl_ask(c, ADMIN_SIDE, "/admin/v1/limits/%s", ctl_seg(name));
    if (cJSON_IsObject(tree)) {
        cJSON *limits = cJSON_DetachItemFromObjectCaseSensitive(tree, "limits");
        cJSON *refused = cJSON_DetachItemFromObjectCaseSensitive(tree, "refused");
        if (limits) cJSON_AddItemToObject(all, "limits", limits);
        if (refused) cJSON_AddItemToObject(all, "refused", refused);
    }
    cJSON_Delete(tree);
}

/* *known: there was something of this name. */
static int why_name(ctl *c, bool class, const char *name, bool *known)
{
    int64_t start = (int64_t)time(NULL) - HOUR_S + FINE_S;
    tally t = {.ttft_ms = -1, .tpot_ms = -1};
    cJSON *tree, *all;
    const cJSON *rows, *row;
    int status = get_history(c, class ? "class" : "tenant", name, start, "", &tree, &rows);
    *known = !status && tallies(rows, "", &t, 1) == 1;
    all = cJSON_CreateObject();
    if (!status && class) add_verdict(c, name, all);
    if (!status && !class) add_limits(c, name, all);
    /* A class that is served, or refusals of the ten seconds that are not over. */
    *known |= json_get(all, "name") != NULL || cJSON_GetArraySize(json_get(all, "refused")) > 0;
    if (!*known) {
        cJSON_Delete(all);
        cJSON_Delete(tree);
        return status;
    }
    snprintf(t.name, sizeof(t.name), "%s", name);
    cJSON_AddStringToObject(all, "object", "why");
    cJSON_AddStringToObject(all, class ? "class" : "tenant", name);
    cJSON_AddNumberToObject(all, "requests", t.requests);
    cJSON_AddNumberToObject(all, "missed", t.missed);
    cJSON_AddNumberToObject(all, "since", (double)t.since);
    cJSON_AddNumberToObject(all, "until", (double)t.until);
    cJSON_AddNumberToObject(all, "ttft_p99_ms", t.ttft_ms);
    cJSON_AddNumberToObject(all, "tpot_p99_ms", t.tpot_ms);
    cJSON *causes = cJSON_AddObjectToObject(all, "causes");
    cJSON_ArrayForEach(row, rows) add_causes(causes, ctl_word(row, "causes"));
    cJSON_Delete(tree);
    status = add_who(c, class, name, start, all);
    if (!status && for_programs(c))
        status = ctl_print_tree(c, all);
    else if (!status)
        print_why(all, &t);
    cJSON_Delete(all);
    return status;
}

int ctl_why(void *p)
{
    ctl *c = p;
    if (c->cli.n_arg == 0) return why_server(c);
    const char *what = c->cli.arg[0];
    bool known = false;
    if (strncmp(what, "req_", 4) == 0 || strspn(what, "0123456789") == strlen(what))
        return why_request(c, what);
    int status = why_name(c, true, what, &known);
    if (!status && !known) status = why_name(c, false, what, &known);
    if (!status && !known)
        status = ctl_fail(
            "no class or tenant named '%s' finished or was refused a request in the last hour",
            what);
    return status;
}
