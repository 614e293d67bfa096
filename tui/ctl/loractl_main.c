/* loractl_main.c -- loractl's main(), and the table of its commands. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/process.h"
#include "engine/program/version.h"
#include "tui/ctl/loractl.h"

/* ------------------------------------------------------------------------- options -- */

#define END                       \
    {                             \
        NULL, 0, NULL, NULL, NULL \
    }

static const cli_option everywhere[] = {
    {"context", 'c', "NAME", "Use this context instead of the current one", NULL},
    {"output", 'o', "FORMAT", "table, wide, json, csv or name (the first column alone)",
     "table wide json csv name"},
    {"json", 0, NULL, "The same as -o json", NULL},
    {"yes", 'y', NULL, "Do not ask before what cannot be undone", NULL},
    {"quiet", 'q', NULL, "No progress and no remarks", NULL},
    {"timeout", 0, "TIME", "Give up after so long (30s, 5m)", NULL},
    {"url", 0, "URL", "Server for tenants (https://host:port)", NULL},
    {"admin-url", 0, "URL", "Server for operators", NULL},
    {"ca", 0, "FILE", "Authority that has signed the server's certificate (PEM)", "FILE"},
    {"key-file", 0, "FILE", "File whose first line is the tenant's key", "FILE"},
    {"admin-key-file", 0, "FILE", "File whose first line is the operator's key", "FILE"},
    {"help", 'h', NULL, "This help", NULL},
    END,
};

/* Options that several commands have. */
#define PURPOSE                                     \
    {                                               \
        "name", 'n', "TEXT", "What it is for", NULL \
    }
#define EXPIRES                                                                               \
    {                                                                                         \
        "expires", 0, "TIME", "Not accepted after this span (30d) or date (2026-12-31)", NULL \
    }
#define NETWORKS                                                                                   \
    {                                                                                              \
        "networks", 0, "A,B", "CIDR blocks that its requests must come from; none: anywhere", NULL \
    }

static const cli_option tenant_settings[] = {
    {"weight", 0, "NUMBER", "Share among tenants that compete (1 is normal)", NULL},
    {"class", 0, "CLASS", "Class of requests that ask for none", NULL},
    {"classes", 0, "A,B", "Classes that may be asked for", NULL},
    {"target", 0, "CLASS=TTFT,TPOT",
     "Its own targets in a class (300ms,40ms; none: the class's); may be repeated", NULL},
    {"models", 0, "A,B", "Models that may be asked for", NULL},
    NETWORKS,
    {"limit", 0, "NAME=NUMBER", "One limit, as in 'limits set'; may be repeated", NULL},
    END,
};

static const cli_option of_tenant[] = {
    {"tenant", 't', "NAME", "Only this tenant's", NULL},
    END,
};

static const cli_option key_settings[] = {
    {"tenant", 't', "NAME", "Whose key it is", NULL},
    PURPOSE,
    {"scopes", 0, "A,B", "What it may do (inference)",
     "inference adapters.read adapters.write admin.read admin"},
    EXPIRES,
    {"requests-per-minute", 0, "N", "Limit of this key alone", NULL},
    {"tokens-per-minute", 0, "N", "Limit of this key alone", NULL},
    {"max-concurrent", 0, "N", "Limit of this key alone", NULL},
    NETWORKS,
    {"out", 0, "FILE", "Write the key into this new file (mode 600) instead of showing it", "FILE"},
    END,
};

static const cli_option key_changes[] = {
    PURPOSE,
    EXPIRES,
    {"requests-per-minute", 0, "N", "Limit of this key alone; none lifts it", NULL},
    {"tokens-per-minute", 0, "N", "Limit of this key alone; none lifts it", NULL},
    {"max-concurrent", 0, "N", "Limit of this key alone; none lifts it", NULL},
    NETWORKS,
    END,
};

static const cli_option rotate_settings[] = {
    {"grace", 0, "TIME", "How long the old secret still works (1d)", NULL},
    {"out", 0, "FILE", "Write the key into this new file (mode 600) instead of showing it", "FILE"},
    END,
};

static const cli_option usage_settings[] = {
    {"start", 0, "TIME", "From this time on: 2026-12-31, -7d, seconds since 1970 (-1d)", NULL},
    {"end", 0, "TIME", "Up to this time (now)", NULL},
    {"bucket", 0, "WIDTH", "1m, 1h or 1d", "1m 1h 1d"},
    {"by", 0, "A,B", "Sums for each of model, adapter, key, class, tenant",
     "model adapter key class tenant"},
    {"model", 0, "NAME", "Only this model's", NULL},
    {"tenant", 't', "NAME", "Of this tenant, with the operator's key", NULL},
    {"all", 'a', NULL, "Of all tenants, with the operator's key", NULL},
    END,
};

static const cli_option request_settings[] = {
    {"tenant", 't', "NAME", "Only this tenant's", NULL},
    {"state", 0, "STATE", "Only those: waiting, prefill, decode or ended",
     "waiting prefill decode ended"},
    {"ended", 0, NULL, "Those that have ended, the latest first", NULL},
    {"slow", 0, "TIME", "Those that took at least so long (10s), the slowest first", NULL},
    END,
};

static const cli_option history_settings[] = {
    {"by", 0, "WHAT", "class, tenant or adapter (class)", "class tenant adapter"},
    {"start", 0, "TIME", "From this time on: 2026-12-31, -7d, seconds since 1970 (-1h)", NULL},
    {"end", 0, "TIME", "Up to this time (now)", NULL},
    {"step", 0, "WIDTH", "10s or 10m; 10s are kept for an hour, 10m for 30 days", "10s 10m"},
    END,
};

static const cli_option audit_settings[] = {
    {"before", 0, "ID", "Those before this one (-o wide shows ids)", NULL},
    END,
};

static const cli_option list_settings[] = {
    {"all", 'a', NULL, "Of all tenants, with the operator's key", NULL},
    END,
};

static const cli_option push_settings[] = {
    {"name", 'n', "NAME", "Name of the adapter (the folder's)", NULL},
    {"description", 0, "TEXT", "A line about it", NULL},
    {"no-activate", 0, NULL, "Publish the version, but let 'default' stay where it is", NULL},
    {"new", 0, NULL, "Only if there is no adapter of this name yet", NULL},
    END,
};

static const cli_option rollback_settings[] = {
    {"alias", 0, "NAME", "Alias to move back (default)", NULL},
    END,
};

static const cli_option alias_settings[] = {
    {"delete", 0, NULL, "Remove the alias", NULL},
    END,
};

static const cli_option warm_settings[] = {
    {"wait", 0, "TIME", "Come back when it is in memory, at most after so long", NULL},
    END,
};

static const cli_option register_settings[] = {
    {"tenant", 't', "NAME", "Whose adapters they are", NULL},
    END,
};

static const cli_option delete_settings[] = {
    {"drain", 0, NULL, "Let the requests that use it finish first", NULL},
    END,
};

static const cli_option chat_settings[] = {
    {"system", 's', "TEXT", "Instruction before the talk", NULL},
    {"max-tokens", 'm', "N", "Longest answer", NULL},
    {"temperature", 'T', "NUMBER", "0 takes the likeliest token each time", NULL},
    {"top-p", 0, "NUMBER", "Draw from the likeliest tokens that make up this share", NULL},
    {"seed", 0, "N", "The same seed gives the same answer", NULL},
    {"stop", 0, "TEXT", "End before this text; may be repeated", NULL},
    {"class", 0, "CLASS", "Class of service", NULL},
    {"no-stream", 0, NULL, "Print the answer when it is whole", NULL},
    END,
};

static const cli_option context_settings[] = {
    {"metrics-url", 0, "URL", "Where /metrics and /healthz are", NULL},
    {"cert", 0, "FILE", "Client certificate (PEM)", "FILE"},
    {"cert-key", 0, "FILE", "Its private key", "FILE"},
    {"key", 0, NULL, "Read the tenant's key from standard input", NULL},
    {"admin-key", 0, NULL, "Read the operator's key from standard input", NULL},
    {"use", 0, NULL, "Make it the current one", NULL},
    END,
};

/* ------------------------------------------------------------------------ commands -- */

static int print_completion(void *p);
static int print_version(void *p);

static const cli_command commands[] = {
    {"chat", "MODEL [PROMPT...]", 1, -1, "Talk to a model; without a prompt: with history",
     chat_settings, ctl_chat, NULL},
    {"complete", "MODEL [PROMPT...]", 1, -1, "Continue a text (- or nothing: standard input)",
     chat_settings, ctl_complete, NULL},
    {"models", "", 0, 0, "List the models that the key may ask for", NULL, ctl_models, NULL},
    {"whoami", "", 0, 0, "Show the key, its limits and what remains of them", NULL, ctl_whoami,
     NULL},
    {"adapter list", "", 0, 0, "List adapters", list_settings, ctl_adapter_list, NULL},
    {"adapter show", "NAME[@VERSION]", 1, 1, "Show an adapter or one version of it", NULL,
     ctl_adapter_show, NULL},
    {"adapter push", "DIR|FILE.gguf", 1, 1,
     "Upload the folder that PEFT saved (or a GGUF) and publish it; goes on where it broke off",
     push_settings, ctl_adapter_push, "DIR"},
    {"adapter versions", "NAME", 1, 1, "List the versions of an adapter", NULL,
     ctl_adapter_versions, NULL},
    {"adapter activate", "NAME VERSION", 2, 2, "Let the bare name mean this version", NULL,
     ctl_adapter_activate, NULL},
    {"adapter rollback", "NAME", 1, 1, "Go back to the version before", rollback_settings,
     ctl_adapter_rollback, NULL},
    {"adapter alias", "NAME ALIAS [VERSION]", 2, 3, "Let NAME:ALIAS mean this version",
     alias_settings, ctl_adapter_alias, NULL},
    {"adapter pin", "NAME", 1, 1, "Keep it in memory", NULL, ctl_adapter_pin, NULL},
    {"adapter unpin", "NAME", 1, 1, "Let it leave memory when others need room", NULL,
     ctl_adapter_unpin, NULL},
    {"adapter warm", "NAME", 1, 1, "Load it before the first request does", warm_settings,
     ctl_adapter_warm, NULL},
    {"adapter share", "NAME none|all|TENANT...", 2, -1, "Say who else may ask for owner/NAME", NULL,
     ctl_adapter_share, NULL},
    {"adapter events", "NAME", 1, 1, "List who changed what", NULL, ctl_adapter_events, NULL},
    {"adapter register", "PATH", 1, 1,
     "Serve a tree of adapter folders where it lies on the server", register_settings,
     ctl_adapter_register, NULL},
    {"adapter delete", "NAME[@VERSION]...", 1, -1, "Delete adapters or versions", delete_settings,
     ctl_adapter_delete, NULL},
    {"usage", "", 0, 0, "Show requests and tokens by time", usage_settings, ctl_usage_show, NULL},
    {"tenant list", "", 0, 0, "List tenants", NULL, ctl_tenant_list, NULL},
    {"tenant create", "NAME", 1, 1, "Make a tenant", tenant_settings, ctl_tenant_create, NULL},
    {"tenant show", "NAME", 1, 1, "Show a tenant", NULL, ctl_tenant_show, NULL},
    {"tenant set", "NAME", 1, 1, "Change a tenant's settings", tenant_settings, ctl_tenant_set,
     NULL},
    {"tenant suspend", "NAME", 1, 1, "Refuse a tenant's requests until it is resumed", NULL,
     ctl_tenant_suspend, NULL},
    {"tenant resume", "NAME", 1, 1, "Serve a suspended tenant again", NULL, ctl_tenant_resume,
     NULL},
    {"tenant delete", "NAME", 1, 1, "Refuse a tenant for good; its usage stays in the books", NULL,
     ctl_tenant_delete, NULL},
    {"key list", "", 0, 0, "List keys", of_tenant, ctl_key_list, NULL},
    {"key create", "", 0, 0, "Make a key; it is shown once", key_settings, ctl_key_create, NULL},
    {"key set", "ID", 1, 1, "Change a key's settings", key_changes, ctl_key_set, NULL},
    {"key rotate", "ID", 1, 1, "Give a key a new secret", rotate_settings, ctl_key_rotate, NULL},
    {"key revoke", "ID...", 1, -1, "Refuse keys from now on", NULL, ctl_key_revoke, NULL},
    {"limits show", "[TENANT[/ADAPTER]]", 0, 1, "Show limits and what is used of them", NULL,
     ctl_limits_show, NULL},
    {"limits set", "TENANT[/ADAPTER] NAME=NUMBER...", 2, -1,
     "Set limits (requests_per_minute, tokens_per_day ...; none lifts one)", NULL, ctl_limits_set,
     NULL},
    {"requests list", "", 0, 0, "List what runs and waits, or what has ended", request_settings,
     ctl_requests_list, NULL},
    {"requests cancel", "ID...", 1, -1, "End running or waiting requests", NULL,
     ctl_requests_cancel, NULL},
    {"ping", "", 0, 0, "Is the server ready? (needs metrics_url, no key)", NULL, ctl_ping, NULL},
    {"history", "[NAME]", 0, 1, "Show what was seen of classes, tenants or adapters, span by span",
     history_settings, ctl_history, NULL},
    {"why", "REQUEST|CLASS|TENANT", 1, 1, "Say why something was slow in the last hour", NULL,
     ctl_why, NULL},
    {"stats", "", 0, 0, "Show the server's counters", NULL, ctl_stats, NULL},
    {"classes", "", 0, 0, "List the classes of service", NULL, ctl_classes, NULL},
    {"audit", "", 0, 0, "List what operators and tenants have changed", audit_settings, ctl_audit,
     NULL},
    {"drain", "", 0, 0, "Take no new requests, finish what runs, stop", NULL, ctl_drain, NULL},
    {"reload", "", 0, 0, "Read certificate and configuration again", NULL, ctl_reload, NULL},
    {"backup", "PATH", 1, 1, "Write a copy of the database to a path on the server", NULL,
     ctl_backup, NULL},
    {"context list", "", 0, 0, "List the servers that are known", NULL, ctl_context_list, NULL},
    {"context show", "[NAME]", 0, 1, "Show a context", NULL, ctl_context_show, NULL},
    {"context use", "NAME", 1, 1, "Make a context the current one", NULL, ctl_context_use, NULL},
    {"context set", "NAME", 1, 1,
     "Make or change a context (--url, --ca, --key-file ... are kept in it)", context_settings,
     ctl_context_set, NULL},
    {"context delete", "NAME", 1, 1, "Forget a context", NULL, ctl_context_delete, NULL},
    {"completion", "SHELL", 1, 1, "Print a completion script: bash, zsh or fish", NULL,
     print_completion, "bash zsh fish"},
    {"version", "", 0, 0, "Print the version", NULL, print_version, NULL},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, NULL},
};

static const char description[] =
    "loractl speaks HTTPS to a lorad: for tenants (adapters, chat, usage) and for operators "
    "(tenants, "
    "keys, limits, requests, the server itself).\n\n"
    "Which server, and with which key, stands in a context. The file of contexts is "
    "$LORAD_CLIENT_CONFIG, else $XDG_CONFIG_HOME/lorad/contexts.conf, else "
    "~/.config/lorad/contexts.conf; it holds keys and must not be readable by others. Variables of "
    "the "
    "environment come before the file, options before both. With none of them, localhost and "
    "lorad's "
    "default ports are asked.\n\n"
    "Names and texts that come from a server are shown without control characters.";

static const char after[] =
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nDone.\n.TP\n.B 1\nThe server refused it, or something else went wrong.\n"
    ".TP\n.B 2\nWrong usage; nothing was asked.\n.TP\n.B 3\nThe server cannot be reached, or is "
    "not "
    "trusted.\n.TP\n.B 130\nInterrupted.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B LORAD_CONTEXT\nThe context to use.\n"
    ".TP\n.BR LORAD_URL \", \" LORAD_ADMIN_URL \", \" LORAD_METRICS_URL \", \" LORAD_CA \", \" "
    "LORAD_CERT "
    "\", \" LORAD_CERT_KEY\nReplace the context's settings of the same names.\n"
    ".TP\n.BR LORAD_KEY \", \" LORAD_KEY_FILE \", \" LORAD_ADMIN_KEY \", \" "
    "LORAD_ADMIN_KEY_FILE\nKeys, or "
    "files whose first line is one.\n"
    ".TP\n.B LORAD_CLIENT_CONFIG\nThe file of contexts.\n"
    ".SH EXAMPLES\n.nf\n"
    "loractl context set home \\-\\-url https://localhost:8443 \\-\\-ca /srv/lorad/tls/cert.pem "
    "\\-\\-key\n"
    "loractl adapter push ./my\\-adapter \\-\\-name support\n"
    "loractl chat support\n"
    "echo 'Say this in Spanish: five' | loractl chat spanish\n"
    "loractl key create \\-\\-tenant acme \\-\\-scopes inference,adapters.write \\-\\-out "
    "acme.key\n"
    "loractl limits set acme tokens_per_day=2M max_concurrent=16\n"
    "loractl requests list \\-\\-state waiting \\-o name | xargs \\-r loractl requests cancel "
    "\\-\\-yes\n"
    ".fi\n"
    ".SH SEE ALSO\n.BR lorad (1),\n.BR lorad.conf (5)\n";

const cli_program loractl_program = {
    .name = "loractl",
    .tagline = "command line for lorad's tenants and operators",
    .commands = commands,
    .options = everywhere,
    .description = description,
    .after = after,
};

/* -------------------------------------------------------------------------- way in -- */

static int print_completion(void *p)
{
    const ctl *c = p;
    if (cli_print_completion(&loractl_program, c->cli.arg[0], stdout)) return CTL_OK;
    return ctl_usage("'%s' is neither bash, zsh nor fish", c->cli.arg[0]);
}

static int print_version(void *p)
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
    if (format && !table_format_of(format, &c->format))
        return ctl_usage("-o: '%s' is none of table, wide, json, csv, name", format);
    if (timeout && ctl_span(timeout) < 1)
        return ctl_usage("--timeout: '%s' is no span of time (30s, 5m)", timeout);
    c->width = table_width_of(stdout);
    return CTL_OK;
}

int main(int argc, char **argv)
{
    static ctl c; /* large, one of it */
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
        cli_print_help(&loractl_program, c.cli.command, asked ? stdout : stderr);
        return asked ? CTL_OK : CTL_USAGE;
    }
    if (!status) status = take_format(&c);
    if (!status) status = c.cli.command->run(&c);
    for (int i = 0; i < SIDES; i++) client_close(c.client[i]);
    contexts_clear(&c.contexts);
    context_wipe(&c.context);
    if (fflush(stdout) != 0 && status == CTL_OK)
        status = CTL_REFUSED; /* a full disk, a closed pipe */
    return status;
}
