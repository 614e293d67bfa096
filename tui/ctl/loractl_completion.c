/* loractl_completion.c -- loractl's command for shells: the scripts, and the names they ask for. */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"

typedef struct {
    const char *kind, *path, *cursor, *field; /* field: what stands on a command line */
    ctl_side side;
    const char *only; /* rows where this is true; NULL: all */
} named;

static const named kinds[] = {
    {"adapters", "/v1/adapters?limit=1000", "name", "name", TENANT_SIDE, NULL},
    {"models", "/v1/models", "id", "id", TENANT_SIDE, NULL},
    {"tenants", "/admin/v1/tenants", "id", "name", ADMIN_SIDE, NULL},
    {"keys", "/admin/v1/keys?all=true", "id", "id", ADMIN_SIDE, NULL},
    {"classes", "/admin/v1/classes", "name", "name", ADMIN_SIDE, NULL},
    {"options", "/admin/v1/config", "option", "option", ADMIN_SIDE, NULL},
    {"live", "/admin/v1/config", "option", "option", ADMIN_SIDE, "live"},
    {"requests", "/admin/v1/requests?limit=1000", "id", "id", ADMIN_SIDE, NULL},
};

/* Shells expand what they are offered: a name with anything that could mean something to them, or
 * that would be read as an option, is left out. */
static void offer(const char *name)
{
    static const char fit[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/@:-";
    if (*name && *name != '-' && strspn(name, fit) == strlen(name)) printf("%s\n", name);
}

static int offer_contexts(ctl *c)
{
    err e;
    if (contexts_load(&c->contexts, &e)) return ctl_fail("%s", e.msg);
    c->contexts_read = true;
    for (int i = 0; i < c->contexts.n; i++) offer(c->contexts.list[i].name);
    return CTL_OK;
}

static int offer_names(ctl *c, const char *kind)
{
    cJSON *rows;
    const cJSON *row;
    const named *k = NULL;
    if (strcmp(kind, "contexts") == 0) return offer_contexts(c);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].kind, kind) == 0) k = &kinds[i];
    }
    if (!k)
        return ctl_usage(
            "names of adapters, models, tenants, keys, classes, options, live, requests or "
            "contexts, not '%s'",
            kind);
    int status = ctl_list(c, k->side, k->path, k->cursor, &rows);
    cJSON_ArrayForEach(row, rows)
    {
        const cJSON *v = cJSON_IsObject(row) ? json_get(row, k->field) : NULL;
        if (k->only && !cJSON_IsTrue(json_get(row, k->only))) continue;
        if (cJSON_IsString(v)) offer(v->valuestring);
    }
    cJSON_Delete(rows);
    return status;
}

int ctl_completion(void *p)
{
    ctl *c = p;
    const char *what = c->cli.arg[0];
    if (strcmp(what, "names") == 0)
        return c->cli.n_arg == 2 ? offer_names(c, c->cli.arg[1])
                                 : ctl_usage("'names' requires a kind, such as models or adapters");
    if (c->cli.n_arg == 2) return ctl_usage("'%s' is one too many", c->cli.arg[1]);
    if (cli_print_completion(&loractl_program, what, stdout)) return CTL_OK;
    return ctl_usage("'%s' is neither bash, zsh, fish nor names", what);
}
