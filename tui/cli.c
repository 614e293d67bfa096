/* cli.c -- reads a command line by a table of commands and options; prints help and the man page
 * from it.
 *
 * Options may stand anywhere, also before the command. So parsing takes two passes: the first
 * collects words and options as typed and only asks whether some command knows the option with a
 * value (takes_value(); an option takes a value in all commands or in none); after the command
 * is found by the first one or two words, the second pass resolves each option in its three
 * lists (the command's, `showing`, the program's).
 *
 *     --name VALUE   --name=VALUE   -n VALUE   -nVALUE   -n=VALUE   --   -h   help COMMAND
 *
 * An argument name in brackets ("[TIME]") is optional and must be joined with "=".
 *
 * Unknown commands and options are answered with the nearest known one (near.h).
 */
#include "tui/cli.h"

#include <stdlib.h>
#include <string.h>

#include "engine/program/troff.h"
#include "tui/near.h"

enum { LISTS = 3 };

/* ------------------------------------------------------------------------- parsing -- */

static const cli_option *find_option(const cli_option *list, const char *name, size_t len)
{
    for (const cli_option *o = list; o && o->name; o++) {
        if (strlen(o->name) == len && memcmp(o->name, name, len) == 0) return o;
    }
    return NULL;
}

static const cli_option *find_letter(const cli_option *list, char letter)
{
    for (const cli_option *o = list; o && o->name; o++) {
        if (letter && o->letter == letter) return o;
    }
    return NULL;
}

static int complain(const cli *c, const char *what, const char *typed, const char *meant)
{
    fprintf(stderr, "%s: %s '%.80s'", c->program->name, what, typed);
    if (meant) fprintf(stderr, "; did you mean '%s'?", meant);
    fprintf(stderr, "\nTry '%s%s%s --help'.\n", c->program->name, c->command ? " " : "",
            c->command ? c->command->name : "");
    return CLI_USAGE;
}

/* Whose options go with a command, one list after the other; NULL: there is none. */
static const cli_option *options_of(const cli_program *p, const cli_command *k, int i)
{
    if (i == 0) return k ? k->options : NULL;
    if (i == 1) return k && k->shows ? p->showing : NULL;
    return p->options;
}

static int unknown_option(const cli *c, const char *typed)
{
    char name[48], meant[48];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(typed, "="), typed);
    near n = near_to(strncmp(name, "--", 2) == 0 ? name + 2 : "");
    for (int i = 0; i < LISTS; i++) {
        const cli_option *o = options_of(c->program, c->command, i);
        for (; o && o->name; o++) near_offer(&n, o->name);
    }
    if (n.best) snprintf(meant, sizeof(meant), "--%s", n.best);
    return complain(c, "unknown option", typed, n.best ? meant : NULL);
}

static bool in_group(const cli_command *k, const char *first)
{
    size_t n = strlen(first);
    return strncmp(k->name, first, n) == 0 && k->name[n] == ' ';
}

static bool is_group(const cli_program *p, const char *first)
{
    for (const cli_command *k = p->commands; k->name; k++) {
        if (in_group(k, first)) return true;
    }
    return false;
}

/* A command that is near, else the first word of some; out has room for either. */
static const char *meant_command(const cli *c, const char *first, const char *second, char out[64])
{
    char both[64];
    snprintf(both, sizeof(both), "%s %s", first, second ? second : "");
    near whole = near_to(both), one = near_to(first);
    for (const cli_command *k = c->program->commands; k->name; k++) {
        if (second && strchr(k->name, ' ')) near_offer(&whole, k->name);
        if (!strchr(k->name, ' ')) near_offer(&one, k->name);
    }
    if (whole.best) return whole.best;
    for (const cli_command *k = c->program->commands; k->name; k++) {
        char word[64];
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(k->name, " "), k->name);
        near_offer(&one, word);
        if (one.best == word) one.best = strcpy(out, word);
    }
    return one.best && strcmp(one.best, first) != 0 ? one.best : NULL;
}

static int unknown_command(const cli *c, const char *first, const char *second)
{
    char typed[64], meant[64];
    bool group = is_group(c->program, first);
    if (group && !second) {
        fprintf(stderr, "%s: '%s' needs a second word:", c->program->name, first);
        for (const cli_command *k = c->program->commands; k->name; k++) {
            if (in_group(k, first)) fprintf(stderr, " %s", k->name + strlen(first) + 1);
        }
        (void)fputc('\n', stderr);
        return CLI_USAGE;
    }
    snprintf(typed, sizeof(typed), "%s%s%s", first, group ? " " : "", group ? second : "");
    return complain(c, "there is no command", typed, meant_command(c, first, second, meant));
}

/* The words that are no options: first one or two of them are the command. */
static int take_command(cli *c)
{
    if (c->n_arg == 0) return 0;
    for (const cli_command *k = c->program->commands; k->name; k++) {
        const char *space = strchr(k->name, ' ');
        size_t n = space ? (size_t)(space - k->name) : strlen(k->name);
        if (strlen(c->arg[0]) != n || memcmp(k->name, c->arg[0], n) != 0) continue;
        if (space && (c->n_arg < 2 || strcmp(space + 1, c->arg[1]) != 0)) continue;
        int used = space ? 2 : 1;
        c->command = k;
        c->n_arg -= used;
        memmove(c->arg, c->arg + used, (size_t)c->n_arg * sizeof(c->arg[0]));
        return 0;
    }
    if (c->help && c->n_arg == 1 && is_group(c->program, c->arg[0])) {
        c->group = c->arg[0];
        return 0;
    }
    return unknown_command(c, c->arg[0], c->n_arg > 1 ? c->arg[1] : NULL);
}

typedef struct { /* an option as typed, until the command is known */
    const char *text, *name, *value;
    size_t len;
    char letter;
} typed_option;

static const cli_option *find(const cli_option *list, const typed_option *t)
{
    return t->letter ? find_letter(list, t->letter) : find_option(list, t->name, t->len);
}

static const cli_option *known(const cli *c, const typed_option *t)
{
    const cli_option *o = NULL;
    for (int i = 0; !o && i < LISTS; i++) o = find(options_of(c->program, c->command, i), t);
    return o;
}

static bool needs_value(const cli_option *o)
{
    return o->arg && *o->arg != '[';
}

/* Does any command know this as an option with a value?  Needed before the command is known. */
static bool takes_value(const cli_program *p, const typed_option *t)
{
    const cli_option *o = find(p->options, t);
    if (!o) o = find(p->showing, t);
    for (const cli_command *k = p->commands; !o && k->name; k++) o = find(k->options, t);
    return o && needs_value(o);
}

static bool split_option(const char *text, typed_option *t)
{
    *t = (typed_option){.text = text};
    if (text[0] != '-' || !text[1]) return false; /* "-" is an argument */
    if (text[1] == '-') {
        t->name = text + 2;
        t->len = strcspn(t->name, "=");
        if (t->name[t->len] == '=') t->value = t->name + t->len + 1;
    } else {
        t->letter = text[1];
        if (text[2]) t->value = text + 2 + (text[2] == '=');
    }
    return true;
}

static int add_option(cli *c, const typed_option *t)
{
    const cli_option *o = known(c, t);
    if (!o) return unknown_option(c, t->text);
    if (needs_value(o) && !t->value) return complain(c, "a value is missing after", t->text, NULL);
    if (!o->arg && t->value) return complain(c, "this option takes no value:", t->text, NULL);
    if (c->n_seen == CLI_OPTIONS_MAX) return complain(c, "too many options:", t->text, NULL);
    c->seen[c->n_seen] = o;
    c->value[c->n_seen++] = t->value ? t->value : "";
    return 0;
}

static int check_arguments(const cli *c)
{
    const cli_command *k = c->command;
    if (!k || c->help) return 0;
    if (c->n_arg >= k->least && (k->most < 0 || c->n_arg <= k->most)) return 0;
    fprintf(stderr, "%s %s: %s\nusage: %s %s %s\n", c->program->name, k->name,
            c->n_arg < k->least ? "an argument is missing" : "too many arguments", c->program->name,
            k->name, k->args);
    return CLI_USAGE;
}

int cli_parse(cli *c, const cli_program *p, int argc, char **argv)
{
    typed_option typed[CLI_OPTIONS_MAX];
    int n_typed = 0, rc = 0;
    bool options = true;
    *c = (cli){.program = p};
    for (int i = 1; i < argc; i++) {
        typed_option t;
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
            continue;
        }
        if (!options || !split_option(argv[i], &t)) {
            if (c->n_arg == CLI_ARGS_MAX) return complain(c, "too many arguments:", argv[i], NULL);
            c->arg[c->n_arg++] = argv[i];
            continue;
        }
        if (strcmp(t.text, "--help") == 0 || strcmp(t.text, "-h") == 0) {
            c->help = true;
            continue;
        }
        if (!t.value && takes_value(p, &t) && i + 1 < argc) t.value = argv[++i];
        if (n_typed == CLI_OPTIONS_MAX) return complain(c, "too many options:", argv[i], NULL);
        typed[n_typed++] = t;
    }
    if (c->n_arg && strcmp(c->arg[0], "help") == 0) {
        c->help = true;
        c->n_arg--;
        memmove(c->arg, c->arg + 1, (size_t)c->n_arg * sizeof(c->arg[0]));
    }
    rc = take_command(c);
    for (int i = 0; !rc && i < n_typed; i++) rc = add_option(c, &typed[i]);
    return rc ? rc : check_arguments(c);
}

const char *cli_value(const cli *c, const char *name)
{
    for (int i = c->n_seen - 1; i >= 0; i--) {
        if (strcmp(c->seen[i]->name, name) == 0) return c->value[i];
    }
    return NULL;
}

bool cli_given(const cli *c, const char *name)
{
    return cli_value(c, name) != NULL;
}

const char *cli_each(const cli *c, const char *name, int i)
{
    for (int k = 0; k < c->n_seen; k++) {
        if (strcmp(c->seen[k]->name, name) == 0 && i-- == 0) return c->value[k];
    }
    return NULL;
}

/* ---------------------------------------------------------------------------- help -- */

/* " VALUE", "[=VALUE]" or "". */
static void put_argument(const cli_option *o, char *out, size_t cap)
{
    if (needs_value(o))
        snprintf(out, cap, " %s", o->arg);
    else if (o->arg)
        snprintf(out, cap, "[=%s", o->arg + 1);
}

static void print_option(const cli_option *o, FILE *f)
{
    char left[64];
    char letter[8] = "    ";
    if (o->letter) snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    char arg[48] = "";
    put_argument(o, arg, sizeof(arg));
    snprintf(left, sizeof(left), "%s--%s%s", letter, o->name, arg);
    fprintf(f, "  %-30s  %s\n", left, o->help);
}

static void print_options(const char *title, const cli_option *list, FILE *f)
{
    if (!list || !list->name) return;
    fprintf(f, "\n%s:\n", title);
    for (const cli_option *o = list; o->name; o++) print_option(o, f);
}

static void print_command_help(const cli_program *p, const cli_command *k, FILE *f)
{
    fprintf(f, "usage: %s %s%s%s [options]\n\n%s.\n", p->name, k->name, *k->args ? " " : "",
            k->args, k->help);
    if (k->examples) (void)fputs("\nexamples:\n", f);
    for (const char *s = k->examples; s && *s;) {
        size_t n = strcspn(s, "\n");
        fprintf(f, "  %.*s\n", (int)n, s);
        s += n + (s[n] == '\n');
    }
    print_options("options", k->options, f);
    if (k->shows) print_options("options of commands that show something", p->showing, f);
    print_options("options of every command", p->options, f);
}

static void print_line(const cli_command *k, FILE *f)
{
    char left[96];
    snprintf(left, sizeof(left), "%s%s%s", k->name, *k->args ? " " : "", k->args);
    fprintf(f, "  %-38s  %s\n", left, k->help);
}

void cli_print_group(const cli_program *p, const char *group, FILE *f)
{
    fprintf(f, "usage: %s %s COMMAND [arguments] [options]\n\n", p->name, group);
    for (const cli_command *k = p->commands; k->name; k++) {
        if (in_group(k, group)) print_line(k, f);
    }
    fprintf(f, "\n'%s help %s COMMAND' says more, with examples.\n", p->name, group);
}

void cli_print_help(const cli_program *p, const cli_command *command, FILE *f)
{
    if (command) {
        print_command_help(p, command, f);
        return;
    }
    fprintf(f, "%s %s -- %s\n", p->name, LORAD_VERSION, p->tagline);
    if (!p->commands) {
        print_options("options", p->options, f);
        fprintf(f, "\n%s\n", p->description);
        return;
    }
    (void)fputc('\n', f);
    for (const cli_command *k = p->commands; k->name; k++) {
        if (k->heading) fprintf(f, "%s%s:\n", k == p->commands ? "" : "\n", k->heading);
        print_line(k, f);
    }
    print_options("options of commands that show something", p->showing, f);
    print_options("options of every command", p->options, f);
    fprintf(f,
            "\n'%s help COMMAND' says more, with examples.  Exit status: 0 done, 1 the server "
            "refused\nit, 2 wrong usage, 3 the server can't be reached.\n",
            p->name);
}

/* ----------------------------------------------------------------------- man page -- */

static void man_options(const cli_option *list, FILE *f)
{
    for (const cli_option *o = list; o && o->name; o++) {
        (void)fputs(".TP\n", f);
        if (o->letter) fprintf(f, "\\fB\\-%c\\fR, ", o->letter);
        (void)fputs("\\fB\\-\\-", f);
        troff_put(o->name, f);
        (void)fputs("\\fR", f);
        if (needs_value(o)) fprintf(f, " \\fI%s\\fR", o->arg);
        if (o->arg && !needs_value(o))
            fprintf(f, "[=\\fI%.*s\\fR]", (int)strlen(o->arg) - 2, o->arg + 1);
        (void)fputc('\n', f);
        troff_put(o->help, f);
        (void)fputs(".\n", f);
    }
}

static void man_examples(const char *s, FILE *f)
{
    if (!s) return;
    (void)fputs(".PP\n.nf\n", f);
    while (*s) {
        size_t n = strcspn(s, "\n");
        char *line = strndup(s, n);
        if (line) troff_put(line, f);
        free(line);
        (void)fputc('\n', f);
        s += n + (s[n] == '\n');
    }
    (void)fputs(".fi\n", f);
}

void cli_print_man(const cli_program *p, FILE *f)
{
    char upper[32];
    size_t n = 0;
    for (; p->name[n] && n + 1 < sizeof(upper); n++) {
        char ch = p->name[n];
        upper[n] = ch >= 'a' && ch <= 'z' ? (char)(ch - 32) : ch;
    }
    upper[n] = 0;
    fprintf(f, ".TH %s 1 \"\" \"lorad %s\" \"User Commands\"\n.SH NAME\n%s \\- ", upper,
            LORAD_VERSION, p->name);
    troff_put(p->tagline, f);
    fprintf(f, "\n.SH SYNOPSIS\n.B %s\n%s[\\fIoptions\\fR]\n", p->name,
            p->commands ? ".I COMMAND\n[\\fIarguments\\fR] " : "");
    (void)fputs(".SH DESCRIPTION\n", f);
    for (const char *s = p->description; *s;) {
        const char *end = strstr(s, "\n\n");
        size_t len = end ? (size_t)(end - s) : strlen(s);
        char *paragraph = strndup(s, len);
        if (paragraph) troff_put(paragraph, f);
        free(paragraph);
        (void)fputs("\n.PP\n", f);
        s += len + (end ? 2 : 0);
    }
    if (p->commands) (void)fputs(".SH COMMANDS\n", f);
    for (const cli_command *k = p->commands; k && k->name; k++) {
        fprintf(f, ".SS \"%s %s\"\n", k->name, k->args);
        troff_put(k->help, f);
        (void)fputs(".\n", f);
        man_examples(k->examples, f);
        man_options(k->options, f);
    }
    (void)fputs(".SH OPTIONS\n", f);
    if (p->showing) {
        (void)fputs("These go with commands that show something.\n", f);
        man_options(p->showing, f);
        (void)fputs(".PP\n", f);
    }
    if (p->commands) (void)fputs("These go with every command.\n", f);
    man_options(p->options, f);
    (void)fputs(p->after, f);
}
