/* loractl_server.c -- loractl's commands for usage, requests, statistics, and the server itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"

/* --------------------------------------------------------------------------- usage -- */

/* What --by may name comes first, and people see what it does name. */
static const column usage_columns[] = {
    {"TENANT", "tenant", CELL_TEXT, true},
    {"KEY", "key", CELL_TEXT, true},
    {"ADAPTER", "adapter", CELL_TEXT, true},
    {"MODEL", "model", CELL_TEXT, true},
    {"CLASS", "class", CELL_TEXT, true},
    {"FROM", "start_time", CELL_TIME, false},
    {"TO", "end_time", CELL_TIME, true},
    {"REQUESTS", "num_model_requests", CELL_INT, false},
    {"INPUT", "input_tokens", CELL_INT, false},
    {"CACHED", "input_cached_tokens", CELL_INT, false},
    {"OUTPUT", "output_tokens", CELL_INT, false},
    {"COST", "cost_micros", CELL_MICROS, false},
    {"TENANT-ID", "project_id", CELL_TEXT, true},
    {"KEY-ID", "api_key_id", CELL_TEXT, true},
    {"ADAPTER-ID", "adapter_id", CELL_TEXT, true},
    {NULL, NULL, CELL_TEXT, false},
};

enum { USAGE_GROUPS = 5, USAGE_COLUMNS = (int)(sizeof(usage_columns) / sizeof(usage_columns[0])) };

/* Is `name` one of the words of "a,b,c"? */
static bool names(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += *p == ',') {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, name, n) == 0) return true;
        p += len;
    }
    return false;
}

static int print_usage(ctl *c, const char *by, const cJSON *rows)
{
    column shown[USAGE_COLUMNS];
    memcpy(shown, usage_columns, sizeof(shown));
    for (int i = 0; i < USAGE_GROUPS; i++) shown[i].wide = !names(by, shown[i].path);
    return ctl_print_rows(c, shown, rows);
}

/* Buckets with results into rows; the results move out of the tree. */
static cJSON *flatten(const cJSON *tree)
{
    const cJSON *bucket, *data = cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    cJSON *rows = cJSON_CreateArray(), *row;
    cJSON_ArrayForEach(bucket, data)
    {
        cJSON *results = cJSON_IsObject(bucket) ? (cJSON *)json_get(bucket, "results") : NULL;
        if (!cJSON_IsArray(results)) continue;
        const cJSON *from = json_get(bucket, "start_time"), *to = json_get(bucket, "end_time");
        while ((row = cJSON_DetachItemFromArray(results, 0))) {
            if (cJSON_IsNumber(from))
                (void)cJSON_AddNumberToObject(row, "start_time", from->valuedouble);
            if (cJSON_IsNumber(to)) (void)cJSON_AddNumberToObject(row, "end_time", to->valuedouble);
            (void)cJSON_AddItemToArray(rows, row);
        }
    }
    return rows;
}

static bool add_time(const ctl *c, const char *name, char *query, size_t cap)
{
    int64_t t;
    size_t n = strlen(query);
    const char *v = cli_value(&c->cli, name);
    if (!v) return true;
    if (!ctl_time(v, &t)) {
        (void)ctl_usage("--%s: '%s' is not a time (2026-12-31, -7d, seconds since 1970)", name, v);
        return false;
    }
    snprintf(query + n, cap - n, "&%s=%lld", name, (long long)t);
    return true;
}

int ctl_usage_show(void *p)
{
    ctl *c = p;
    cJSON *tree;
    char query[4096] = "";
    const char *tenant = cli_value(&c->cli, "tenant"), *by = cli_value(&c->cli, "by"),
               *bucket = cli_value(&c->cli, "bucket"), *model = cli_value(&c->cli, "model");
    bool admin = tenant || cli_given(&c->cli, "all");
    if (!add_time(c, "start", query, sizeof(query)) || !add_time(c, "end", query, sizeof(query)))
        return CTL_USAGE;
    const char *const fields[] = {"tenant", "group_by", "bucket_width", "model"};
    const char *const values[] = {tenant, by, bucket, model};
    for (int i = 0; i < 4; i++) {
        size_t n = strlen(query);
        if (values[i])
            snprintf(query + n, sizeof(query) - n, "&%s=%s", fields[i], ctl_seg(values[i]));
    }
    if (*query) *query = '?';
    int status = ctl_call(c, admin ? ADMIN_SIDE : TENANT_SIDE, "GET", NULL, &tree, "%s%s",
                          admin ? "/admin/v1/usage" : "/v1/usage", query);
    if (!status && c->format == TABLE_JSON && !cli_given(&c->cli, "fields")) {
        ctl_print_json(c, tree);
    } else if (!status) {
        cJSON *rows = flatten(tree);
        status = print_usage(c, by, rows);
        cJSON_Delete(rows);
    }
    cJSON_Delete(tree);
    return status;
}

/* ------------------------------------------------------------------------ requests -- */

static const column request_columns[] = {
    {"ID", "id", CELL_TEXT, false},
    {"TENANT", "tenant", CELL_TEXT, false},
    {"MODEL", "model", CELL_TEXT, false},
    {"CLASS", "class", CELL_TEXT, false},
    {"STATE", "state", CELL_TEXT, false},
    {"AGE", "age_ms", CELL_MS, false},
    {"SLACK", "slack_ms", CELL_MS, false},
    {"PROMPT", "prompt_tokens", CELL_INT, false},
    {"OUT", "output_tokens", CELL_INT, false},
    {"MAX", "max_tokens", CELL_INT, true},
    {"UNREAD", "unread_ms", CELL_MS, true},
    {"COMPUTED", "computed_tokens", CELL_INT, true},
    {"PREEMPTED", "preempted", CELL_INT, true},
    {"STREAM", "stream", CELL_BOOL, true},
    {"KEY", "key_id", CELL_TEXT, true},
    {"REQUEST", "request_id", CELL_TEXT, true},
    {NULL, NULL, CELL_TEXT, false},
};

/* Of those that have ended: where their time went, one phase after the other. */
static const column ended_columns[] = {
    {"ID", "id", CELL_TEXT, false},
    {"TENANT", "tenant", CELL_TEXT, false},
    {"MODEL", "model", CELL_TEXT, false},
    {"CLASS", "class", CELL_TEXT, false},
    {"ENDED", "ended", CELL_TIME, false},
    {"TOOK", "duration_ms", CELL_MS, false},
    {"QUEUE", "queue_ms", CELL_MS, false},
    {"ADAPTER", "adapter_ms", CELL_MS, false},
    {"PROMPT", "prompt_ms", CELL_MS, false},
    {"DECODE", "decode_ms", CELL_MS, false},
    {"REST", "rest_ms", CELL_MS, false},
    {"MISSED", "missed", CELL_TEXT, false},
    {"BESIDE", "beside", CELL_TEXT, true},
    {"TTFT", "ttft_ms", CELL_MS, true},
    {"IN", "prompt_tokens", CELL_INT, true},
    {"CACHED", "cached_tokens", CELL_INT, true},
    {"OUT", "output_tokens", CELL_INT, true},
    {"STATUS", "status", CELL_INT, true},
    {"FINISH", "finish", CELL_TEXT, true},
    {"KEY", "key_id", CELL_TEXT, true},
    {"REQUEST", "request_id", CELL_TEXT, true},
    {NULL, NULL, CELL_TEXT, false},
};

int ctl_requests_list(void *p)
{
    ctl *c = p;
    cJSON *tree;
    const char *tenant = cli_value(&c->cli, "tenant"), *state = cli_value(&c->cli, "state");
    const char *slow = cli_value(&c->cli, "slow");
    char least[32] = "";
    bool ended = cli_given(&c->cli, "ended") || slow || (state && strcmp(state, "ended") == 0);
    int64_t slow_ms = slow ? ctl_span_ms(slow) : 0;
    if (slow && slow_ms < 1)
        return ctl_usage("--slow must be a time such as 200ms, 10s or 2m, not '%s'", slow);
    if (ended && state && strcmp(state, "ended") != 0)
        return ctl_usage("--ended and --slow do not go with --state %s", state);
    if (slow) snprintf(least, sizeof(least), "&slow=%lld", (long long)slow_ms);
    if (ended) state = "ended";
    int status =
        ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/requests?limit=10000%s%s%s%s%s",
                 tenant ? "&tenant=" : "", tenant ? ctl_seg(tenant) : "", state ? "&state=" : "",
                 state ? ctl_seg(state) : "", least);
    const cJSON *data = !status && cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    if (!status && !cJSON_IsArray(data)) status = ctl_fail("the server's answer is not a list");
    if (!status) status = ctl_print_rows(c, ended ? ended_columns : request_columns, data);
    cJSON_Delete(tree);
    return status;
}

int ctl_requests_cancel(void *p)
{
    ctl *c = p;
    int status = CTL_OK;
    if (!ctl_confirm(c, "%d request%s will end with an error.", c->cli.n_arg,
                     c->cli.n_arg == 1 ? "" : "s")) {
        return CTL_REFUSED;
    }
    for (int i = 0; i < c->cli.n_arg; i++) { /* one that is gone is no reason to spare the others */
        cJSON *tree;
        int one = ctl_call(c, ADMIN_SIDE, "DELETE", NULL, &tree, "/admin/v1/requests/%s",
                           ctl_seg(c->cli.arg[i]));
        if (!one) ctl_done(c, tree, "request %s cancelled", c->cli.arg[i]);
        cJSON_Delete(tree);
        if (one) status = one;
        if (one == CTL_UNREACHABLE || one == CTL_INTERRUPTED) break;
    }
    return status;
}

/* ------------------------------------------------------------------- looking at it -- */

int ctl_stats(void *p)
{
    return ctl_show(p, ADMIN_SIDE, "/admin/v1/stats");
}

/* For scripts and health checks: nothing but the exit status matters. */
int ctl_ping(void *p)
{
    ctl *c = p;
    cJSON *tree;
    int status = ctl_call(c, METRICS_SIDE, "GET", NULL, &tree, "/readyz");
    if (!status) ctl_done(c, tree, "ready");
    cJSON_Delete(tree);
    return status;
}

int ctl_classes(void *p)
{
    static const column columns[] = {
        {"NAME", "name", CELL_TEXT, false},       {"TTFT", "ttft_ms", CELL_MS, false},
        {"TPOT", "tpot_ms", CELL_MS, false},      {"WEIGHT", "weight", CELL_NUM, false},
        {"DEFAULT", "default", CELL_BOOL, false}, {"OVERLOAD", "overload", CELL_TEXT, false},
        {"TIERS", "tiers", CELL_LIST, false},     {"MET", "met", CELL_INT, false},
        {"MISSED", "missed", CELL_INT, false},    {"MOSTLY", "mostly", CELL_TEXT, false},
        {"CAUSES", "causes", CELL_LIST, true},    {NULL, NULL, CELL_TEXT, false},
    };
    ctl *c = p;
    cJSON *rows;
    int status = ctl_list(c, ADMIN_SIDE, "/admin/v1/classes", "name", &rows);
    if (!status) ctl_add_causes(c, "classes", rows);
    if (!status) status = ctl_print_rows(c, columns, rows);
    cJSON_Delete(rows);
    return status;
}

int ctl_node_list(void *p)
{
    static const column columns[] = {
        {"NODE", "node", CELL_INT, false},     {"NAME", "name", CELL_TEXT, false},
        {"STATE", "state", CELL_TEXT, false},  {"ROLE", "role", CELL_TEXT, false},
        {"THIS", "this", CELL_BOOL, false},    {"SILENT", "silent_ms", CELL_MS, false},
        {"BEHIND", "behind", CELL_INT, false}, {"APPLIED", "applied", CELL_INT, true},
        {"EPOCH", "epoch", CELL_INT, true},    {NULL, NULL, CELL_TEXT, false},
    };
    ctl *c = p;
    cJSON *rows;
    int status = ctl_list(c, ADMIN_SIDE, "/admin/v1/nodes", "node", &rows);
    if (!status) status = ctl_print_rows(c, columns, rows);
    cJSON_Delete(rows);
    return status;
}

/* --------------------------------------------------------------------- changing it -- */

int ctl_drain(void *p)
{
    ctl *c = p;
    cJSON *tree;
    if (!ctl_confirm(c, "The server will refuse new requests, finish the running ones, and stop."))
        return CTL_REFUSED;
    int status = ctl_call(c, ADMIN_SIDE, "POST", NULL, &tree, "/admin/v1/drain");
    if (!status) ctl_done(c, tree, "draining");
    cJSON_Delete(tree);
    return status;
}

static int change_node(ctl *c, const char *what, const char *done)
{
    cJSON *tree;
    int status = ctl_call(c, ADMIN_SIDE, "POST", NULL, &tree, "/admin/v1/nodes/%s/%s",
                          ctl_seg(c->cli.arg[0]), what);
    if (!status) ctl_done(c, tree, "node %s %s", c->cli.arg[0], done);
    cJSON_Delete(tree);
    return status;
}

int ctl_node_drain(void *p)
{
    ctl *c = p;
    if (!ctl_confirm(c, "Node %s will refuse new requests, finish the running ones, and stop.",
                     c->cli.arg[0]))
        return CTL_REFUSED;
    return change_node(c, "drain", "drains");
}

int ctl_node_fence(void *p)
{
    ctl *c = p;
    if (!ctl_confirm(c, "What node %s held of limits will be others'; end it first if it runs.",
                     c->cli.arg[0]))
        return CTL_REFUSED;
    return change_node(c, "fence", "is fenced");
}

int ctl_backup(void *p)
{
    ctl *c = p;
    cJSON *tree, *body = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(body, "path", c->cli.arg[0]);
    int status = ctl_call(c, ADMIN_SIDE, "POST", body, &tree, "/admin/v1/backup");
    if (!status) ctl_done(c, tree, "written to %s on the server", c->cli.arg[0]);
    cJSON_Delete(tree);
    return status;
}
