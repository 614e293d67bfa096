/* loractl_why.c -- loractl's commands for what was: history, and why something was slow. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"
#include "tui/text.h"

enum { FINE_S = 10, HOUR_S = 3600, SHOWN = 5, CERTIFICATE_WARN_S = 14 * 86400 };

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
    if (!status && !cJSON_IsArray(*rows)) status = ctl_fail("the server's answer is no list");
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

static double number_of(const cJSON *row, const char *name)
{
    const cJSON *v = json_get(row, name);
    return cJSON_IsNumber(v) ? v->valuedouble : -1;
}

static const char *word_of(const cJSON *row, const char *name)
{
    const cJSON *v = json_get(row, name);
    return cJSON_IsString(v) ? v->valuestring : "";
}

static void say_phase(const cJSON *row, const char *field, const char *words, double whole)
{
    char ms[32];
    double v = number_of(row, field);
    if (v <= 0) return;
    text_ms(v, ms, sizeof(ms));
    printf("  %-10s %3.0f %%  %s\n", ms, whole > 0 ? 100 * v / whole : 0, words);
}

static void say_request(const cJSON *r)
{
    char took[32], model[128], class[80], tenant[80];
    double whole = number_of(r, "duration_ms");
    const char *missed = word_of(r, "missed"), *beside = word_of(r, "beside");
    text_ms(whole, took, sizeof(took));
    (void)text_clean(word_of(r, "model"), model, sizeof(model), 30);
    (void)text_clean(word_of(r, "class"), class, sizeof(class), 18);
    (void)text_clean(word_of(r, "tenant"), tenant, sizeof(tenant), 18);
    printf("A request for %s, class %s, tenant %s: %.0f tokens in %s.\n", model, class, tenant,
           number_of(r, "output_tokens"), took);
    if (*missed)
        printf("It missed its promise by %s%s%s.\n", missed, *beside ? ", beside " : "", beside);
    else
        printf("It missed no promise.\n");
    say_phase(r, "queue_ms", "waited for a seat", whole);
    say_phase(r, "adapter_ms", "waited for its adapter", whole);
    say_phase(r, "prompt_ms", "prompt, to the first token", whole);
    say_phase(r, "decode_ms", "the further tokens", whole);
    say_phase(r, "rest_ms", "its body, its client, its books", whole);
}

static const cJSON *find_request(const cJSON *tree, const char *id)
{
    const cJSON *row, *data = cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    cJSON_ArrayForEach(row, data)
    {
        if (strcmp(word_of(row, "id"), id) == 0 || strcmp(word_of(row, "request_id"), id) == 0)
            return row;
    }
    return NULL;
}

static int why_request(ctl *c, const char *id)
{
    cJSON *tree;
    int status =
        ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/requests?state=ended&limit=10000");
    const cJSON *row = status ? NULL : find_request(tree, id);
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
    double missed = number_of(row, "missed");
    int64_t start = (int64_t)number_of(row, "start");
    t->requests += number_of(row, "met") + missed;
    if (number_of(row, "ttft_p99_ms") > t->ttft_ms) t->ttft_ms = number_of(row, "ttft_p99_ms");
    if (number_of(row, "tpot_p99_ms") > t->tpot_ms) t->tpot_ms = number_of(row, "tpot_p99_ms");
    if (missed <= 0) return;
    t->missed += missed;
    if (!t->since) t->since = start;
    t->until = start + (int64_t)number_of(row, "seconds");
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
        const char *name = word_of(row, "name");
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
    if (!localtime_r(&t, &tm) || !strftime(out, 32, "%H:%M:%S", &tm)) out[0] = '\0';
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

static void say_now(const cJSON *class)
{
    char name[400], verdict[800];
    const char *now = word_of(class, "verdict");
    if (!*now) return;
    (void)text_clean(word_of(class, "name"), name, sizeof(name), 90);
    (void)text_clean(now, verdict, sizeof(verdict), 200);
    printf("%s is broken now, %s.\n", name, verdict);
}

/* Of a server as a whole; true: there was something to say. */
static bool say_server(const cJSON *server)
{
    const char *storage = word_of(server, "storage");
    double left_s = number_of(server, "certificate_until_s") - number_of(server, "now_us") / 1e6;
    bool ends = number_of(server, "certificate_until_s") > 0 && left_s < CERTIFICATE_WARN_S;
    bool behind = *storage && strcmp(storage, "ok") != 0;
    bool restarts = cJSON_IsTrue(json_get(server, "restarting"));
    bool failed = cJSON_IsFalse(json_get(server, "healthy"));
    if (failed) printf("The device has failed, and does not come back.\n");
    if (restarts) printf("The device has failed, and is opened again.\n");
    if (behind)
        printf("The database takes no usage (%.64s): %.0f rows wait in the spool.\n",
               strcmp(storage, "full") == 0 ? "the spool is full" : "it waits",
               number_of(server, "spool_used"));
    if (ends && left_s > 0) printf("The certificate ends in %.0f days.\n", floor(left_s / 86400));
    if (ends && left_s <= 0) printf("The certificate has expired: clients refuse it.\n");
    return failed || restarts || behind || ends;
}

/* All classes that are broken now, and what is wrong with the server itself. */
static int why_server(ctl *c)
{
    cJSON *tree;
    const cJSON *class;
    bool some = false;
    int status = ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/stats?tables=");
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
            some |= word_of(class, "verdict")[0] != 0;
            say_now(class);
        }
        if (!some) printf("Nothing is wrong: all classes keep their promises.\n");
    }
    cJSON_Delete(tree);
    return status;
}

static void print_why(const cJSON *all, const tally *t)
{
    char since[32], until[32], ttft[32], tpot[32], name[400];
    const cJSON *v;
    (void)text_clean(t->name, name, sizeof(name), 90);
    say_now(all);
    if (t->requests <= 0) return;
    if (t->missed <= 0) {
        printf("%s: none of %.0f requests of the last hour missed its promise.\n", name,
               t->requests);
        return;
    }
    put_clock(t->since, since);
    put_clock(t->until, until);
    text_ms(t->ttft_ms, ttft, sizeof(ttft));
    text_ms(t->tpot_ms, tpot, sizeof(tpot));
    printf("%s: %.0f of %.0f requests of the last hour missed their promise, from %s to %s.\n",
           name, t->missed, t->requests, since, until);
    printf("Worst ten seconds: first token %s, further ones %s (p99).\nBy cause:", ttft, tpot);
    cJSON_ArrayForEach(v, json_get(all, "causes")) printf(" %s %.0f", v->string, v->valuedouble);
    printf("\n");
    cJSON_ArrayForEach(v, json_get(all, "who"))
    {
        (void)text_clean(word_of(v, "name"), name, sizeof(name), 60);
        printf("  %s: %.0f of %.0f\n", name, number_of(v, "missed"), number_of(v, "requests"));
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
    cJSON *stats = ctl_ask(c, ADMIN_SIDE, "/admin/v1/stats?tables=");
    const cJSON *class, *classes = cJSON_IsObject(stats) ? json_get(stats, "classes") : NULL;
    cJSON_ArrayForEach(class, classes)
    {
        if (strcmp(word_of(class, "name"), name) != 0) continue;
        (void)cJSON_AddStringToObject(all, "name", name);
        (void)cJSON_AddStringToObject(all, "verdict", word_of(class, "verdict"));
    }
    cJSON_Delete(stats);
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
    if (class && !status) add_verdict(c, name, all);
    *known |= word_of(all, "verdict")[0] != 0; /* of the first span, which is not over */
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
    cJSON_ArrayForEach(row, rows) add_causes(causes, word_of(row, "causes"));
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
        status = ctl_fail("nothing of a class or tenant '%s' has ended in the last hour", what);
    return status;
}
