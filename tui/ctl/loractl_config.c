/* loractl_config.c -- loractl's commands for the configuration of a running server. */
#include <string.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"

static const column option_columns[] = {
    {"OPTION", "option", CELL_TEXT, false},  {"VALUE", "value", CELL_TEXT, false},
    {"SOURCE", "source", CELL_TEXT, false},  {"LIVE", "live", CELL_BOOL, false},
    {"DEFAULT", "default", CELL_TEXT, true}, {NULL, NULL, CELL_TEXT, false},
};

/* "class" is of class.batch.ttft and of classes.default; "log.level" is itself. */
static bool is_wanted(const ctl *c, const cJSON *row)
{
    const char *name = cJSON_GetStringValue(json_get(row, "option"));
    const char *value = cJSON_GetStringValue(json_get(row, "value"));
    const char *initial = cJSON_GetStringValue(json_get(row, "default"));
    if (!name || !value || !initial) return false;
    if (cli_given(&c->cli, "changed") && strcmp(value, initial) == 0) return false;
    for (int i = 0; i < c->cli.n_arg; i++) {
        if (strncmp(name, c->cli.arg[i], strlen(c->cli.arg[i])) == 0) return true;
    }
    return c->cli.n_arg == 0;
}

int ctl_config_show(void *p)
{
    ctl *c = p;
    cJSON *tree, *row, *rows = cJSON_CreateArray();
    int status = ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/config");
    cJSON *data = !status && cJSON_IsObject(tree) ? (cJSON *)json_get(tree, "data") : NULL;
    if (!status && !cJSON_IsArray(data)) status = ctl_fail("the server's answer is not a list");
    while (!status && (row = cJSON_DetachItemFromArray(data, 0))) {
        if (is_wanted(c, row))
            (void)cJSON_AddItemToArray(rows, row);
        else
            cJSON_Delete(row);
    }
    if (!status && c->cli.n_arg > 0 && cJSON_GetArraySize(rows) == 0)
        status = ctl_fail("no option begins with '%s'", c->cli.arg[0]);
    if (!status) status = ctl_print_rows(c, option_columns, rows);
    cJSON_Delete(rows);
    cJSON_Delete(tree);
    return status;
}

int ctl_config_diff(void *p)
{
    static const column columns[] = {
        {"OPTION", "option", CELL_TEXT, false}, {"RUNNING", "value", CELL_TEXT, false},
        {"WANTED", "wanted", CELL_TEXT, false}, {"BY", "source", CELL_TEXT, false},
        {"RELOAD", "live", CELL_BOOL, false},   {NULL, NULL, CELL_TEXT, false},
    };
    ctl *c = p;
    cJSON *tree;
    int status = ctl_call(c, ADMIN_SIDE, "GET", NULL, &tree, "/admin/v1/config?pending=true");
    const cJSON *data = !status && cJSON_IsObject(tree) ? json_get(tree, "data") : NULL;
    if (!status && !cJSON_IsArray(data)) status = ctl_fail("the server's answer is not a list");
    if (!status) status = ctl_print_rows(c, columns, data);
    cJSON_Delete(tree);
    return status;
}

/* ------------------------------------------------------------------------ changing -- */

static void say_list(const char *what, const cJSON *list)
{
    const cJSON *v;
    const char *before = what;
    cJSON_ArrayForEach(v, list)
    {
        if (!cJSON_IsString(v)) continue;
        printf("%s%s", before, v->valuestring);
        before = ", ";
    }
    if (before != what) printf("\n");
}

/* What the server says of a change; with --json its own words. */
static void say_changed(const ctl *c, const cJSON *tree, const char *done)
{
    ctl_done(c, tree, "%s", done);
    if (c->format == TABLE_JSON || cli_given(&c->cli, "quiet") || !cJSON_IsObject(tree)) return;
    say_list("taken: ", json_get(tree, "taken"));
    say_list("unchanged: ", json_get(tree, "unchanged"));
    say_list("needs a restart: ", json_get(tree, "needs_restart"));
}

static int send_changes(ctl *c, cJSON *body, const char *done)
{
    cJSON *tree;
    int status = ctl_call(c, ADMIN_SIDE, "PATCH", body, &tree, "/admin/v1/config");
    if (!status) say_changed(c, tree, done);
    cJSON_Delete(tree);
    return status;
}

int ctl_config_set(void *p)
{
    ctl *c = p;
    cJSON *body = cJSON_CreateObject();
    for (int i = 0; i < c->cli.n_arg; i++) {
        char name[128];
        const char *arg = c->cli.arg[i], *eq = strchr(arg, '=');
        if (!eq || eq == arg || (size_t)(eq - arg) >= sizeof(name)) {
            cJSON_Delete(body);
            return ctl_usage("'%s' is not OPTION=VALUE such as log.level=debug", arg);
        }
        snprintf(name, sizeof(name), "%.*s", (int)(eq - arg), arg);
        cJSON_DeleteItemFromObjectCaseSensitive(body, name);
        (void)cJSON_AddStringToObject(body, name, eq + 1);
    }
    return send_changes(c, body, "in force until the server stops, through reloads");
}

int ctl_config_reset(void *p)
{
    ctl *c = p;
    cJSON *body = cJSON_CreateObject();
    for (int i = 0; i < c->cli.n_arg; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(body, c->cli.arg[i]);
        (void)cJSON_AddNullToObject(body, c->cli.arg[i]);
    }
    return send_changes(c, body, "as the configuration says");
}

int ctl_reload(void *p)
{
    ctl *c = p;
    cJSON *tree;
    int status = ctl_call(c, ADMIN_SIDE, "POST", NULL, &tree, "/admin/v1/reload");
    if (!status) say_changed(c, tree, "reloaded");
    cJSON_Delete(tree);
    return status;
}
