/* manual.c -- prints the help and the manual pages from the table of commands.
 *
 * One table has all that is said of a command: the line of "lorad --help", the paragraph of
 * "lorad help COMMAND" and the entry of lorad(1). lorad.conf(5) comes from the options of
 * gateway/config/ (config_describe()), so a page cannot name an option that does not exist.
 */
#include "gateway/manual.h"

#include <string.h>

#include "engine/program/troff.h"
#include "gateway/config/config.h"

static const struct {
    const char *name, *args, *help, *more, *example;
} commands[] = {
    {"init", "--model DIR|hf://NAME [--dir DIR | -c FILE]",
     "makes a data directory: config, certificate, admin key",
     "Without --dir it fills the package's /etc/lorad/lorad.conf, if that names no model. The "
     "first start downloads --model hf://owner/repository[@revision] from sources.hub. The "
     "certificate is for development: localhost, 397 days; its file also holds its "
     "authority, which clients trust. The admin key is shown this once, or comes from "
     "--admin-key-file FILE. --join URL makes a node of the fleet in that PostgreSQL, which has "
     "the keys; --set server.node=N numbers it.",
     "lorad init --model ~/models/qwen3-4b --dir ./data"},
    {"key", "--admin [-c FILE] | --new", "makes another admin key, while no server runs",
     "The way back in where the admin key of init is lost: whoever may write the data directory "
     "may do it. The key is shown once, and the audit log says that it was made. Then revoke the "
     "lost one: loractl key revoke ID. --new prints a key and stores nothing: keep it in a file "
     "for init --admin-key-file, so that no log has it.",
     "lorad key --admin -c ./data/lorad.conf"},
    {"cert", "[-c FILE]", "renews the certificate that init has made",
     "For another 397 days, with the same private key and authority. A certificate that somebody "
     "else has signed is refused. A server that runs takes it on SIGHUP; clients that trust the "
     "old "
     "file still trust the server, for ten years from init.",
     "lorad cert -c ./data/lorad.conf && loractl reload"},
    {"check", "[-c FILE] [--set S.K=V] [--diff | --deep | --plan MODEL]",
     "validates config, certificate and model; prints a plan",
     "Opens nothing that a running server would miss: for ExecStartPre= and pipelines. Compares "
     "packed weights with their checksums. --diff prints what the file would change in the running "
     "server, and what needs a restart. --deep prints a digest of all tensors. --plan needs no "
     "data "
     "directory: it prints what MODEL takes on this machine, and how many requests and adapters "
     "fit; it fails if the memory is too small.",
     "lorad check -c ./data/lorad.conf --set engine.max_seqs=32"},
    {"serve", "[-c FILE] | --dev --model DIR",
     "runs until SIGTERM; SIGHUP reloads its configuration",
     "SIGTERM and SIGINT drain: running requests may finish until server.drain_timeout; a second "
     "signal cuts them short. SIGHUP takes what is live of its configuration, if all is valid. "
     "Under systemd (Type=notify) it tells when it is ready, reloads and stops, and answers the "
     "watchdog as long as the engine lives. --dev makes a data directory and keys, and prints a "
     "request to try; without --dir it is removed at the end.",
     "lorad serve --dev --model ~/models/qwen3-4b"},
    {"migrate", "[-c FILE] --to URL", "makes a fleet of this server's data, or takes it out",
     "While no server runs. --to postgres://user@host/database copies tenants, keys, adapters' "
     "names and the audit there, as the first snapshot of a new fleet, whose first node this data "
     "directory becomes. --to sqlite takes the directory out of its fleet: it keeps the rows that "
     "it has. Usage and adapters' files are not moved.",
     "lorad migrate -c ./data/lorad.conf --to postgres://lorad@db/lorad"},
    {"backup", "[-c FILE] --dir DIR", "copies database and adapters while no server runs",
     "DIR must be new; it becomes a data directory as it was, without the certificate. While a "
     "server "
     "runs, ask it instead: loractl backup PATH copies the database (then copy adapters/ with any "
     "tool: "
     "its files never change).",
     "lorad backup -c ./data/lorad.conf --dir /backup/lorad-1"},
};

static const struct {
    const char *name, *help;
} options[] = {
    {"-c, --config FILE", "The config file; /etc/lorad/lorad.conf without it"},
    {"--set SECTION.KEY=VALUE", "Overrides one option of the file and the environment"},
    {"--print-conf", "Prints the config file with every option explained"},
    {"--print-man [1|5]", "Prints lorad(1) or lorad.conf(5)"},
    {"--help, --version", "What they say"},
};

enum {
    N_COMMANDS = (int)(sizeof(commands) / sizeof(commands[0])),
    N_OPTIONS = (int)(sizeof(options) / sizeof(options[0])),
};

void manual_usage(FILE *f)
{
    fprintf(f, "lorad %s -- multi-tenant LoRA serving gateway\n\n", LORAD_VERSION);
    for (int i = 0; i < N_COMMANDS; i++) {
        fprintf(f, "  lorad %-7s %-29s  %s\n", commands[i].name, commands[i].args,
                commands[i].help);
    }
    (void)fputc('\n', f);
    for (int i = 0; i < N_OPTIONS; i++)
        fprintf(f, "  %-24s  %s\n", options[i].name, options[i].help);
    (void)fputs(
        "\n'lorad help COMMAND' says more, with an example.  Exit status: 0 fine, 1 failed, "
        "2 wrong usage.\n",
        f);
}

/* Breaks lines at spaces. */
static void put_wrapped(const char *text, FILE *f)
{
    enum { COLUMNS = 80 };
    int at = 0;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (at && at + 1 + n > COLUMNS) {
            (void)fputc('\n', f);
            at = 0;
        }
        at += fprintf(f, "%s%.*s", at ? " " : "", n, p);
        p += n;
        p += strspn(p, " ");
    }
    (void)fputc('\n', f);
}

bool manual_command(FILE *f, const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) != 0) continue;
        fprintf(f, "lorad %s %s\n\n%s.\n\n", name, commands[i].args, commands[i].help);
        put_wrapped(commands[i].more, f);
        fprintf(f, "\nExample:\n  %s\n\n", commands[i].example);
        for (int k = 0; k < 2; k++) /* those of every command */
            fprintf(f, "  %-24s  %s\n", options[k].name, options[k].help);
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------------- troff -- */

static void page_of_program(FILE *f)
{
    fprintf(f,
            ".TH LORAD 1 \"\" \"lorad %s\" \"User Commands\"\n.SH NAME\n"
            "lorad \\- multi\\-tenant LoRA serving gateway\n.SH SYNOPSIS\n",
            LORAD_VERSION);
    for (int i = 0; i < N_COMMANDS; i++) {
        fprintf(f, "%s.B lorad %s\n", i ? ".br\n" : "", commands[i].name);
        troff_put(commands[i].args, f);
        (void)fputc('\n', f);
    }
    (void)fputs(
        ".SH DESCRIPTION\n"
        "lorad serves many LoRA adapters over one shared base model to many tenants, from one "
        "process,\nover HTTPS, with OpenAI\\(aqs API. loractl(1) is the command line for it.\n"
        ".SH COMMANDS\n",
        f);
    for (int i = 0; i < N_COMMANDS; i++) {
        fprintf(f, ".TP\n.B %s\n", commands[i].name);
        troff_put(commands[i].help, f);
        (void)fputs(".\n", f);
        troff_put(commands[i].more, f);
        (void)fputs("\n.PP\n.nf\n", f);
        troff_put(commands[i].example, f);
        (void)fputs("\n.fi\n", f);
    }
    (void)fputs(".SH OPTIONS\n", f);
    for (int i = 0; i < N_OPTIONS; i++) {
        (void)fputs(".TP\n.B ", f);
        troff_put(options[i].name, f);
        (void)fputc('\n', f);
        troff_put(options[i].help, f);
        (void)fputs(".\n", f);
    }
    (void)fputs(
        ".SH EXIT STATUS\n0 fine, 1 failed, 2 wrong usage.\n"
        ".SH ENVIRONMENT\n.TP\n.I LORAD_SECTION_KEY\nOverrides the option section.key of the "
        "file.\n.TP\n.BR NOTIFY_SOCKET \", \" WATCHDOG_USEC\nSet by systemd.\n"
        ".SH FILES\n.TP\n.I /etc/lorad/lorad.conf\nThe config file.\n"
        ".TP\n.I /var/lib/lorad\nThe data directory: database, meters, adapters, certificate.\n"
        ".SH SEE ALSO\n.BR lorad.conf (5),\n.BR loractl (1)\n",
        f);
}

static void page_of_config(FILE *f)
{
    fprintf(f,
            ".TH LORAD.CONF 5 \"\" \"lorad %s\" \"File Formats\"\n.SH NAME\n"
            "lorad.conf \\- configuration of lorad(1)\n.SH DESCRIPTION\n"
            "Sections in brackets, \\fIkey = value\\fR lines, comments after #. An option is "
            "overridden by\n\\fBLORAD_SECTION_KEY\\fR in the environment, and that by "
            "\\fB\\-\\-set section.key=value\\fR.\nSizes: 512MiB, 4GiB. Times: 500ms, 30s, 5min.\n"
            "\\fBlorad check\\fR says whether a file is valid. A running server takes what is "
            "\\fIlive\\fR: from\nthe file on SIGHUP, or by \\fBloractl config set\\fR. "
            "The others want a restart.\n",
            LORAD_VERSION);
    const char *section = "";
    config_option_text o;
    for (int i = 0; config_describe(i, &o); i++) {
        if (strcmp(section, o.section) != 0) fprintf(f, ".SH [%s]\n", o.section);
        section = o.section;
        fprintf(f, ".TP\n.BR %s \" = ", o.key);
        troff_put(o.initial, f);
        (void)fputs("\"\n", f);
        troff_put(o.help, f);
        (void)fputs(o.live ? "\nLive.\n" : "\n", f);
    }
    (void)fputs(".SH SEE ALSO\n.BR lorad (1)\n", f);
}

void manual_page(FILE *f, int section)
{
    if (section == 5)
        page_of_config(f);
    else
        page_of_program(f);
}
