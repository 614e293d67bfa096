/* loractl_context.c -- the servers that are known, and who one is there. Keys go in, never out.
 *
 * A context is a row of loractl's own file (tui/contexts.h): addresses, a key for each plane,
 * certificates. Tables show of a key only that it is set. A key is read from standard input,
 * without echo on a terminal, since arguments stand in the list of processes and in the shell's
 * history; it is overwritten in memory afterwards. Files are stored by their full path, so that
 * a context means the same in any folder.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "tui/ctl/loractl.h"

static bool load(ctl *c)
{
    err e;
    if (c->contexts_read) return true;
    if (contexts_load(&c->contexts, &e)) {
        (void)ctl_fail("%s", e.msg);
        return false;
    }
    c->contexts_read = true;
    return true;
}

/* A context without its keys: only whether there are any. */
static cJSON *row_of(const ctl *c, const context *x)
{
    cJSON *row = cJSON_CreateObject();
    const char *name, *value;
    bool secret;
    (void)cJSON_AddStringToObject(row, "name", x->name);
    (void)cJSON_AddBoolToObject(row, "current", strcmp(c->contexts.current, x->name) == 0);
    for (int i = 0; (name = context_setting(x, i, &value, &secret)); i++) {
        if (!*value) continue;
        (void)cJSON_AddStringToObject(row, name, secret ? "set" : value);
    }
    return row;
}

static const column context_columns[] = {
    {"NAME", "name", CELL_TEXT, false},
    {"CURRENT", "current", CELL_BOOL, false},
    {"URL", "url", CELL_TEXT, false},
    {"KEY", "key", CELL_TEXT, false},
    {"ADMIN URL", "admin_url", CELL_TEXT, false},
    {"ADMIN KEY", "admin_key", CELL_TEXT, false},
    {"CA", "ca", CELL_TEXT, false},
    {"KEY FILE", "key_file", CELL_TEXT, true},
    {"ADMIN KEY FILE", "admin_key_file", CELL_TEXT, true},
    {"METRICS URL", "metrics_url", CELL_TEXT, true},
    {"CERT", "cert", CELL_TEXT, true},
    {"CERT KEY", "cert_key", CELL_TEXT, true},
    {NULL, NULL, CELL_TEXT, false},
};

int ctl_context_list(void *p)
{
    ctl *c = p;
    if (!load(c)) return CTL_REFUSED;
    cJSON *rows = cJSON_CreateArray();
    for (int i = 0; i < c->contexts.n; i++)
        (void)cJSON_AddItemToArray(rows, row_of(c, &c->contexts.list[i]));
    int status = ctl_print_rows(c, context_columns, rows);
    cJSON_Delete(rows);
    return status;
}

/* The one that is named, or the current one; NULL: said why. */
static context *chosen(ctl *c)
{
    if (!load(c)) return NULL;
    const char *name = c->cli.n_arg ? c->cli.arg[0] : c->contexts.current;
    context *x = contexts_find(&c->contexts, name);
    if (!x) {
        (void)ctl_fail(*name ? "there is no context '%s' in %s" : "no context is current%s in %s",
                       name, c->contexts.path);
    }
    return x;
}

int ctl_context_show(void *p)
{
    ctl *c = p;
    const context *x = chosen(c);
    if (!x) return CTL_REFUSED;
    cJSON *row = row_of(c, x);
    int status = ctl_print_row(c, context_columns, row);
    cJSON_Delete(row);
    return status;
}

static int save(const ctl *c)
{
    err e;
    return contexts_save(&c->contexts, &e) ? ctl_fail("%s", e.msg) : CTL_OK;
}

int ctl_context_use(void *p)
{
    ctl *c = p;
    const context *x = chosen(c);
    if (!x) return CTL_REFUSED;
    snprintf(c->contexts.current, sizeof(c->contexts.current), "%s", x->name);
    return save(c);
}

int ctl_context_delete(void *p)
{
    ctl *c = p;
    const context *x = chosen(c);
    if (!x) return CTL_REFUSED;
    if (!ctl_confirm(c, "Context '%s' and the keys in it will be forgotten.", x->name))
        return CTL_REFUSED;
    (void)contexts_remove(&c->contexts, c->cli.arg[0]);
    return save(c);
}

/* One line from standard input, without echo on a terminal. */
static bool read_secret(const char *what, char out[CONTEXT_KEY_MAX])
{
    struct termios was, quiet;
    char line[CONTEXT_KEY_MAX + 2] = "";
    bool tty = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &was) == 0;
    if (tty) {
        fprintf(stderr, "%s: ", what);
        quiet = was;
        quiet.c_lflag &= (tcflag_t)~ECHO;
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
    }
    bool got = fgets(line, sizeof(line), stdin) != NULL;
    if (tty) {
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &was);
        (void)fputc('\n', stderr);
    }
    line[strcspn(line, "\r\n")] = 0;
    bool ok = got && *line && strlen(line) < CONTEXT_KEY_MAX;
    if (ok) snprintf(out, CONTEXT_KEY_MAX, "%s", line);
    explicit_bzero(line, sizeof(line));
    if (!ok) (void)ctl_fail("no %s came on standard input", what);
    return ok;
}

/* Files are named for good: also from another folder. */
static err_code set_one(context *x, const char *setting, const char *value, bool file, err *e)
{
    char *full = file && *value ? realpath(value, NULL) : NULL;
    err_code rc = context_set(x, setting, full ? full : value, e);
    free(full);
    return rc;
}

int ctl_context_set(void *p)
{
    static const struct {
        const char *option, *setting;
        bool file;
    } map[] = {{"url", "url", false},
               {"admin-url", "admin_url", false},
               {"metrics-url", "metrics_url", false},
               {"ca", "ca", true},
               {"cert", "cert", true},
               {"cert-key", "cert_key", true},
               {"key-file", "key_file", true},
               {"admin-key-file", "admin_key_file", true}};
    ctl *c = p;
    context *x;
    err e;
    if (!load(c)) return CTL_REFUSED;
    if (contexts_add(&c->contexts, c->cli.arg[0], &x, &e)) return ctl_usage("%s", e.msg);
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        const char *v = cli_value(&c->cli, map[i].option);
        if (v && set_one(x, map[i].setting, v, map[i].file, &e)) return ctl_usage("%s", e.msg);
    }
    if (cli_given(&c->cli, "key") && !read_secret("key", x->key)) return CTL_REFUSED;
    if (cli_given(&c->cli, "admin-key") && !read_secret("admin key", x->admin_key))
        return CTL_REFUSED;
    if (cli_given(&c->cli, "use") || c->contexts.n == 1)
        snprintf(c->contexts.current, sizeof(c->contexts.current), "%s", x->name);
    return save(c);
}

int ctl_whoami(void *p)
{
    return ctl_show(p, TENANT_SIDE, "/v1/key");
}
