/* loractl_main.c -- loractl's main(). */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/process.h"
#include "engine/program/version.h"
#include "tui/ctl/loractl.h"

/* -------------------------------------------------------------------------- way in -- */

int ctl_version(void *p)
{
    const ctl *c = p;
    cJSON *tree = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(tree, "version", LORAD_VERSION);
    (void)cJSON_AddStringToObject(tree, "commit", version_commit);
    (void)cJSON_AddStringToObject(tree, "build", version_build);
    ctl_done(c, tree, "loractl %s (commit %s; %s)", LORAD_VERSION, version_commit, version_build);
    cJSON_Delete(tree);
    return CTL_OK;
}

static int take_format(ctl *c)
{
    const char *format = cli_value(&c->cli, "output"), *timeout = cli_value(&c->cli, "timeout");
    if (cli_given(&c->cli, "json")) c->format = TABLE_JSON;
    c->yaml = format && strcmp(format, "yaml") == 0;
    if (c->yaml) c->format = TABLE_JSON;
    if (format && !c->yaml && !table_format_of(format, &c->format))
        return ctl_usage("-o must be table, wide, json, yaml, csv or name, not '%s'", format);
    if (timeout && ctl_span(timeout) < 1)
        return ctl_usage("--timeout: '%s' is not a duration (30s, 5m)", timeout);
    c->width = table_width_of(stdout);
    return CTL_OK;
}

int main(int argc, char **argv)
{
    static ctl c; /* static because it is large */
    process_keep_secrets();
    (void)setlocale(LC_CTYPE, "");
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "--print-man") == 0) {
        cli_print_man(&loractl_program, stdout);
        return CTL_OK;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) argv[1] = "version";
    int status = cli_parse(&c.cli, &loractl_program, argc, argv);
    if (!status && (c.cli.help || !c.cli.command)) {
        bool asked = c.cli.help;
        if (c.cli.group)
            cli_print_group(&loractl_program, c.cli.group, stdout);
        else
            cli_print_help(&loractl_program, c.cli.command, asked ? stdout : stderr);
        return asked ? CTL_OK : CTL_USAGE;
    }
    if (!status) status = take_format(&c);
    if (!status) status = cli_given(&c.cli, "watch") ? ctl_watch(&c) : c.cli.command->run(&c);
    for (int i = 0; i < SIDES; i++) client_close(c.client[i]);
    contexts_clear(&c.contexts);
    context_wipe(&c.context);
    if (fflush(stdout) != 0 && status == CTL_OK)
        status = CTL_REFUSED; /* a full disk, a closed pipe */
    return status;
}
