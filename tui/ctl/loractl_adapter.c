/* loractl_adapter.c -- loractl's commands for adapters: list, move aliases, pin, delete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"

static const column adapter_columns[] = {
    {"NAME", "name", CELL_TEXT, false},
    {"VERSION", "default_version", CELL_INT, false},
    {"VERSIONS", "versions", CELL_INT, false},
    {"SIZE", "bytes", CELL_BYTES, false},
    {"RESIDENCY", "residency", CELL_TEXT, false},
    {"PINNED", "pinned", CELL_BOOL, false},
    {"ALIASES", "aliases", CELL_LIST, true},
    {"SHARED WITH", "sharing", CELL_LIST, true},
    {"REQ/MIN", "limits.requests_per_minute", CELL_LIMIT, true},
    {"TOK/MIN", "limits.tokens_per_minute", CELL_LIMIT, true},
    {"CONC", "limits.max_concurrent", CELL_LIMIT, true},
    {"CREATED", "created", CELL_TIME, false},
    {"DESCRIPTION", "description", CELL_TEXT, false},
    {NULL, NULL, CELL_TEXT, false},
};

const column ctl_version_columns[] = {
    {"MODEL", "model", CELL_TEXT, false},
    {"STATE", "state", CELL_TEXT, false},
    {"RANK", "rank", CELL_INT, false},
    {"SIZE", "bytes", CELL_BYTES, false},
    {"FILES", "files", CELL_TEXT, false},
    {"RESIDENCY", "residency", CELL_TEXT, false},
    {"IN USE", "in_use", CELL_INT, false},
    {"CREATED", "created", CELL_TIME, false},
    {"MEMORY", "memory_bytes", CELL_BYTES, true},
    {"DIGEST", "digest", CELL_TEXT, true},
    {"EFFECT", "effect", CELL_TEXT, true},
    {"CHANGE", "logit_change", CELL_NUM, true},
    {"ERROR", "error", CELL_TEXT, false},
    {"WARNING", "warning", CELL_TEXT, false},
    {NULL, NULL, CELL_TEXT, false},
};

static const column everybody_columns[] = {
    {"TENANT", "tenant", CELL_TEXT, false},
    {"NAME", "name", CELL_TEXT, false},
    {"VERSION", "default_version", CELL_INT, false},
    {"VERSIONS", "versions", CELL_INT, false},
    {"SIZE", "bytes", CELL_BYTES, false},
    {"PINNED", "pinned", CELL_BOOL, false},
    {NULL, NULL, CELL_TEXT, false},
};

int ctl_adapter_list(void *p)
{
    ctl *c = p;
    cJSON *rows;
    bool all = cli_given(&c->cli, "all");
    int status = all ? ctl_list(c, ADMIN_SIDE, "/admin/v1/adapters", "name", &rows)
                     : ctl_list(c, TENANT_SIDE, "/v1/adapters?limit=1000", "name", &rows);
    if (!status) status = ctl_print_rows(c, all ? everybody_columns : adapter_columns, rows);
    cJSON_Delete(rows);
    return status;
}

int ctl_adapter_versions(void *p)
{
    ctl *c = p;
    cJSON *rows;
    char path[1200];
    snprintf(path, sizeof(path), "/v1/adapters/%s/versions", ctl_seg(c->cli.arg[0]));
    int status = ctl_list(c, TENANT_SIDE, path, "version", &rows);
    if (!status)
        status = ctl_print_rows(c, ctl_version_columns, rows);
    else
        ctl_hint_version(c, c->cli.arg[0]);
    cJSON_Delete(rows);
    return status;
}

/* "name@3" into name and 3; 0: no version was named.  False: said why. */
static bool split_version(const char *text, char name[256], long *version)
{
    const char *at = strrchr(text, '@');
    size_t n = at ? (size_t)(at - text) : strlen(text);
    char *end = NULL;
    *version = at ? strtol(at + 1, &end, 10) : 0;
    if (n == 0 || n >= 256 || (at && (*version < 1 || *end))) {
        (void)ctl_usage("'%s' is neither NAME nor NAME@VERSION", text);
        return false;
    }
    memcpy(name, text, n);
    name[n] = 0;
    return true;
}

int ctl_adapter_show(void *p)
{
    ctl *c = p;
    cJSON *tree;
    char name[256];
    long version;
    if (!split_version(c->cli.arg[0], name, &version)) return CTL_USAGE;
    int status =
        version ? ctl_call(c, TENANT_SIDE, "GET", NULL, &tree, "/v1/adapters/%s/versions/%ld",
                           ctl_seg(name), version)
                : ctl_call(c, TENANT_SIDE, "GET", NULL, &tree, "/v1/adapters/%s", ctl_seg(name));
    if (!status)
        status = ctl_print_row(c, version ? ctl_version_columns : adapter_columns, tree);
    else
        ctl_hint_version(c, name);
    cJSON_Delete(tree);
    return status;
}

static int put_alias(ctl *c, const char *name, const char *alias, const char *version)
{
    cJSON *tree, *body;
    const char *number = *version == '@' ? version + 1 : version;
    int64_t v = ctl_number(number);
    if (v < 1) return ctl_usage("'%s' is no version", version);
    body = cJSON_CreateObject();
    (void)cJSON_AddNumberToObject(body, "version", (double)v);
    int status = ctl_call(c, TENANT_SIDE, "PUT", body, &tree, "/v1/adapters/%s/aliases/%s",
                          ctl_seg(name), ctl_seg(alias));
    if (!status)
        status = ctl_print_row(c, adapter_columns, tree);
    else
        ctl_hint_version(c, name);
    cJSON_Delete(tree);
    return status;
}

int ctl_adapter_activate(void *p)
{
    ctl *c = p;
    return put_alias(c, c->cli.arg[0], "default", c->cli.arg[1]);
}

int ctl_adapter_alias(void *p)
{
    ctl *c = p;
    cJSON *tree;
    bool drop = cli_given(&c->cli, "delete");
    if (drop == (c->cli.n_arg == 3)) return ctl_usage("give a version, or --delete");
    if (!drop) return put_alias(c, c->cli.arg[0], c->cli.arg[1], c->cli.arg[2]);
    int status = ctl_call(c, TENANT_SIDE, "DELETE", NULL, &tree, "/v1/adapters/%s/aliases/%s",
                          ctl_seg(c->cli.arg[0]), ctl_seg(c->cli.arg[1]));
    if (!status) status = ctl_print_row(c, adapter_columns, tree);
    cJSON_Delete(tree);
    return status;
}

static int post(ctl *c, const char *what, const char *query)
{
    cJSON *tree;
    int status = ctl_call(c, TENANT_SIDE, "POST", NULL, &tree, "/v1/adapters/%s/%s%s",
                          ctl_seg(c->cli.arg[0]), what, query);
    if (!status)
        status = ctl_print_row(c, adapter_columns, tree);
    else
        ctl_hint_version(c, c->cli.arg[0]);
    cJSON_Delete(tree);
    return status;
}

int ctl_adapter_rollback(void *p)
{
    ctl *c = p;
    char query[1200] = "";
    const char *alias = cli_value(&c->cli, "alias");
    if (alias) snprintf(query, sizeof(query), "?alias=%s", ctl_seg(alias));
    return post(c, "rollback", query);
}

int ctl_adapter_pin(void *p)
{
    return post(p, "pin", "");
}

int ctl_adapter_unpin(void *p)
{
    return post(p, "unpin", "");
}

int ctl_adapter_warm(void *p)
{
    ctl *c = p;
    char query[32] = "";
    const char *wait = cli_value(&c->cli, "wait");
    if (wait && ctl_span(wait) < 1) return ctl_usage("--wait: '%s' is not a duration", wait);
    if (wait) snprintf(query, sizeof(query), "?wait=%lld", (long long)ctl_span(wait));
    return post(c, "warm", query);
}

int ctl_adapter_share(void *p)
{
    ctl *c = p;
    cJSON *tree, *body = cJSON_CreateObject();
    const char *first = c->cli.arg[1];
    if (c->cli.n_arg == 2 && (strcmp(first, "all") == 0 || strcmp(first, "none") == 0)) {
        (void)cJSON_AddStringToObject(body, "sharing", first);
    } else {
        cJSON *list = cJSON_AddArrayToObject(body, "sharing");
        for (int i = 1; i < c->cli.n_arg; i++)
            (void)cJSON_AddItemToArray(list, cJSON_CreateString(c->cli.arg[i]));
    }
    int status =
        ctl_call(c, TENANT_SIDE, "PATCH", body, &tree, "/v1/adapters/%s", ctl_seg(c->cli.arg[0]));
    if (!status) status = ctl_print_row(c, adapter_columns, tree);
    cJSON_Delete(tree);
    return status;
}

int ctl_adapter_events(void *p)
{
    static const column columns[] = {
        {"TIME", "time", CELL_TIME, false},    {"ACTION", "action", CELL_TEXT, false},
        {"NAME", "name", CELL_TEXT, false},    {"DETAIL", "detail", CELL_TEXT, false},
        {"KEY", "actor_key", CELL_TEXT, true}, {NULL, NULL, CELL_TEXT, false},
    };
    ctl *c = p;
    cJSON *tree;
    int status = ctl_call(c, TENANT_SIDE, "GET", NULL, &tree, "/v1/adapters/%s/events",
                          ctl_seg(c->cli.arg[0]));
    const cJSON *data = !status && cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    if (!status && !cJSON_IsArray(data)) status = ctl_fail("the server's answer is not a list");
    if (!status) status = ctl_print_rows(c, columns, data);
    cJSON_Delete(tree);
    return status;
}

/* What was refused goes to standard output, row by row; then the exit status is not zero. */
int ctl_adapter_register(void *p)
{
    static const column columns[] = {{"PATH", "path", CELL_TEXT, false},
                                     {"REFUSED BECAUSE", "message", CELL_TEXT, false},
                                     {NULL, NULL, CELL_TEXT, false}};
    ctl *c = p;
    int64_t registered = 0, unchanged = 0, refused = 0;
    const char *tenant = cli_value(&c->cli, "tenant");
    if (!tenant) return ctl_usage("--tenant is needed: whose adapters are they?");
    cJSON *tree, *body = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(body, "path", c->cli.arg[0]);
    (void)cJSON_AddStringToObject(body, "tenant", tenant);
    int status = ctl_call(c, ADMIN_SIDE, "POST", body, &tree, "/admin/v1/adapters/register");
    if (status) return status;
    if (!cJSON_IsObject(tree) ||
        json_int(tree, "registered", 0, INT64_C(1) << 50, &registered, NULL, NULL) ||
        json_int(tree, "unchanged", 0, INT64_C(1) << 50, &unchanged, NULL, NULL) ||
        json_int(tree, "refused", 0, INT64_C(1) << 50, &refused, NULL, NULL)) {
        cJSON_Delete(tree);
        return ctl_fail("the server's answer is not registration");
    }
    const cJSON *errors = json_get(tree, "errors");
    if (c->format != TABLE_JSON && cJSON_IsArray(errors) && cJSON_GetArraySize(errors) > 0)
        (void)ctl_print_rows(c, columns, errors);
    ctl_done(c, tree, "%lld registered, %lld unchanged, %lld refused", (long long)registered,
             (long long)unchanged, (long long)refused);
    cJSON_Delete(tree);
    return refused ? CTL_REFUSED : CTL_OK;
}

int ctl_adapter_delete(void *p)
{
    ctl *c = p;
    int status = CTL_OK;
    for (int i = 0; !status && i < c->cli.n_arg; i++) {
        char name[256];
        long version;
        cJSON *tree;
        const char *drain = cli_given(&c->cli, "drain") ? "?drain=true" : "";
        if (!split_version(c->cli.arg[i], name, &version)) return CTL_USAGE;
        if (!ctl_confirm(c, "%s '%s' will be deleted.", version ? "Version" : "Adapter",
                         c->cli.arg[i])) {
            return CTL_REFUSED;
        }
        status = version ? ctl_call(c, TENANT_SIDE, "DELETE", NULL, &tree,
                                    "/v1/adapters/%s/versions/%ld%s", ctl_seg(name), version, drain)
                         : ctl_call(c, TENANT_SIDE, "DELETE", NULL, &tree, "/v1/adapters/%s%s",
                                    ctl_seg(name), drain);
        if (!status)
            ctl_done(c, tree, "%s %s", c->cli.arg[i], *drain ? "draining or deleted" : "deleted");
        else
            ctl_hint_version(c, name);
        cJSON_Delete(tree);
    }
    return status;
}
