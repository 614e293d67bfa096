/* cli.c -- reading a command line by the table, and telling people what may stand in it. */
#include "tui/cli.h"

#include <stdlib.h>
#include <string.h>

#include "engine/program/troff.h"

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

/* Edit distance, for "did you mean"; words beyond 31 bytes are never near. */
static int distance(const char *a, const char *b)
{
    int row[32];
    size_t n = strlen(b);
    if (n > 31 || strlen(a) > 31) return 99;
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < n; j++) {
            int best = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (diagonal + 1 < best) best = diagonal + 1;
            row[j + 1] = best;
        }
    }
    return row[n];
}

static void suggest(const char *typed, const char *candidate, const char **best, int *nearest)
{
    int d = distance(typed, candidate);
    if (d < *nearest) {
        *nearest = d;
        *best = candidate;
    }
}

static int complain(const cli *c, const char *what, const char *typed, const char *near)
{
    fprintf(stderr, "%s: %s '%.80s'", c->program->name, what, typed);
    if (near) fprintf(stderr, "; did you mean '%s'?", near);
    fprintf(stderr, "\nTry '%s%s%s --help'.\n", c->program->name, c->command ? " " : "",
            c->command ? c->command->name : "");
    return CLI_USAGE;
}

static int unknown_option(const cli *c, const char *typed)
{
    const char *best = NULL;
    int nearest = 3;
    const cli_option *lists[] = {c->command ? c->command->options : NULL, c->program->options};
    for (int i = 0; i < 2; i++) {
        for (const cli_option *o = lists[i]; o && o->name; o++)
            suggest(typed + 2, o->name, &best, &nearest);
    }
    char near[48];
    if (best) snprintf(near, sizeof(near), "--%s", best);
    return complain(c, "unknown option", typed, best ? near : NULL);
}

static int unknown_command(const cli *c, const char *first, const char *second)
{
    char typed[64];
    const char *best = NULL;
    int nearest = 3;
    bool group = false;
    for (const cli_command *k = c->program->commands; k->name; k++) {
        size_t n = strlen(first);
        group |= strncmp(k->name, first, n) == 0 && k->name[n] == ' ';
    }
    snprintf(typed, sizeof(typed), "%s%s%s", first, group && second ? " " : "",
             group && second ? second : "");
    for (const cli_command *k = c->program->commands; k->name; k++)
        suggest(typed, k->name, &best, &nearest);
    if (group && !second) {
        fprintf(stderr, "%s: '%s' needs a second word:", c->program->name, first);
        for (const cli_command *k = c->program->commands; k->name; k++) {
            size_t n = strlen(first);
            if (strncmp(k->name, first, n) == 0 && k->name[n] == ' ')
                fprintf(stderr, " %s", k->name + n + 1);
        }
        (void)fputc('\n', stderr);
        return CLI_USAGE;
    }
    return complain(c, "there is no command", typed, best);
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
    if (c->help) return 0; /* the general help names what there is */
    return unknown_command(c, c->arg[0], c->n_arg > 1 ? c->arg[1] : NULL);
}

typedef struct { /* an option as typed, until the command is known */
    const char *text, *name, *value;
    size_t len;
    char letter;
} typed_option;

static const cli_option *known(const cli *c, const typed_option *t)
{
    const cli_option *o =
        t->letter ? find_letter(c->command ? c->command->options : NULL, t->letter)
                  : find_option(c->command ? c->command->options : NULL, t->name, t->len);
    if (o) return o;
    return t->letter ? find_letter(c->program->options, t->letter)
                     : find_option(c->program->options, t->name, t->len);
}

/* Does any command know this as an option with a value?  Needed before the command is known. */
static bool takes_value(const cli_program *p, const typed_option *t)
{
    const cli_option *o =
        t->letter ? find_letter(p->options, t->letter) : find_option(p->options, t->name, t->len);
    for (const cli_command *k = p->commands; !o && k->name; k++) {
        o = t->letter ? find_letter(k->options, t->letter)
                      : find_option(k->options, t->name, t->len);
    }
    return o && o->arg;
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
    if (o->arg && !t->value) return complain(c, "a value is missing after", t->text, NULL);
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

static void print_option(const cli_option *o, FILE *f)
{
    char left[64];
    char letter[8] = "    ";
    if (o->letter) snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, o->arg ? " " : "",
             o->arg ? o->arg : "");
    fprintf(f, "  %-30s  %s\n", left, o->help);
}

static void print_options(const char *title, const cli_option *list, FILE *f)
{
    if (!list || !list->name) return;
    fprintf(f, "\n%s:\n", title);
    for (const cli_option *o = list; o->name; o++) print_option(o, f);
}

void cli_print_help(const cli_program *p, const cli_command *command, FILE *f)
{
    if (command) {
        fprintf(f, "usage: %s %s%s%s [options]\n\n%s.\n", p->name, command->name,
                *command->args ? " " : "", command->args, command->help);
        print_options("options", command->options, f);
        print_options("options of every command", p->options, f);
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
        char left[96];
        snprintf(left, sizeof(left), "%s%s%s", k->name, *k->args ? " " : "", k->args);
        fprintf(f, "  %-38s  %s\n", left, k->help);
    }
    print_options("options of every command", p->options, f);
    fprintf(f,
            "\n'%s COMMAND --help' says more.  Exit status: 0 done, 1 the server refused it, "
            "2 wrong\nusage, 3 the server can't be reached.\n",
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
        if (o->arg) fprintf(f, " \\fI%s\\fR", o->arg);
        (void)fputc('\n', f);
        troff_put(o->help, f);
        (void)fputs(".\n", f);
    }
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
        man_options(k->options, f);
    }
    (void)fputs(".SH OPTIONS\n", f);
    if (p->commands) (void)fputs("These go with every command.\n", f);
    man_options(p->options, f);
    (void)fputs(p->after, f);
}

/* --------------------------------------------------------------------- completions -- */

/* 'single quotes' for sh and fish; a quote inside is left out: no help text needs one. */
static void put_quoted(const char *s, FILE *f)
{
    (void)fputc('\'', f);
    for (; *s; s++) {
        if (*s != '\'' && *s != '\n') (void)fputc(*s, f);
    }
    (void)fputc('\'', f);
}

static void words_of_options(const cli_option *list, FILE *f)
{
    for (const cli_option *o = list; o && o->name; o++) fprintf(f, " --%s", o->name);
}

static bool is_files(const char *words)
{
    return words && (strcmp(words, "FILE") == 0 || strcmp(words, "DIR") == 0);
}

static void bash_values(const cli_option *list, FILE *f)
{
    for (const cli_option *o = list; o && o->name; o++) {
        if (!o->arg) continue;
        fprintf(f, "    --%s", o->name);
        if (o->letter) fprintf(f, "|-%c", o->letter);
        if (is_files(o->words))
            fprintf(f, ") COMPREPLY=($(compgen -%c -- \"$cur\")); return;;\n",
                    *o->words == 'D' ? 'd' : 'f');
        else
            fprintf(f, ") COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return;;\n",
                    o->words ? o->words : "");
    }
}

/* The first words of all commands, or the second ones that go with `first`. */
static void put_words(const cli_program *p, const char *first, FILE *f)
{
    const char *last = "";
    size_t last_len = 0;
    for (const cli_command *k = p->commands; k->name; k++) {
        size_t n = strcspn(k->name, " ");
        if (first) {
            if (strlen(first) == n && memcmp(first, k->name, n) == 0 && k->name[n])
                fprintf(f, " %s", k->name + n + 1);
        } else if (n != last_len || memcmp(last, k->name, n) != 0) {
            fprintf(f, " %.*s", (int)n, k->name);
            last = k->name;
            last_len = n;
        }
    }
}

static void bash_completion(const cli_program *p, FILE *f)
{
    fprintf(f,
            "# bash completion for %s; made by: %s completion bash\n"
            "_%s() {\n"
            "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} w\n"
            "  local words=() i\n"
            "  COMPREPLY=()\n"
            "  case $prev in\n",
            p->name, p->name, p->name);
    bash_values(p->options, f);
    for (const cli_command *k = p->commands; k->name; k++) bash_values(k->options, f);
    (void)fputs("  esac\n"
                "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
                "    w=${COMP_WORDS[i]}; [[ $w == -* ]] || words+=(\"$w\")\n"
                "  done\n"
                "  case \"${words[*]:0:2}\" in\n",
                f);
    for (const cli_command *k = p->commands; k->name; k++) {
        bool two = strchr(k->name, ' ') != NULL;
        fprintf(f, "    '%s'%s%s%s) ", k->name, two ? "" : "|'", two ? "" : k->name,
                two ? "" : " '*");
        (void)fputs("if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"--help", f);
        words_of_options(k->options, f);
        words_of_options(p->options, f);
        (void)fputs("\" -- \"$cur\"));", f);
        if (is_files(k->words))
            fprintf(f, " else COMPREPLY=($(compgen -%c -- \"$cur\"));",
                    *k->words == 'D' ? 'd' : 'f');
        else if (k->words)
            fprintf(f, " else COMPREPLY=($(compgen -W \"%s\" -- \"$cur\"));", k->words);
        (void)fputs(" fi;;\n", f);
    }
    const char *last = "";
    size_t last_len = 0;
    for (const cli_command *k = p->commands; k->name; k++) {
        size_t n = strcspn(k->name, " ");
        if (!k->name[n] || (n == last_len && memcmp(last, k->name, n) == 0)) continue;
        last = k->name;
        last_len = n;
        char first[32];
        snprintf(first, sizeof(first), "%.*s", (int)n, k->name);
        fprintf(f, "    '%s') COMPREPLY=($(compgen -W \"", first);
        put_words(p, first, f);
        (void)fputs("\" -- \"$cur\"));;\n", f);
    }
    (void)fputs("    '') COMPREPLY=($(compgen -W \"", f);
    put_words(p, NULL, f);
    words_of_options(p->options, f);
    fprintf(f, "\" -- \"$cur\"));;\n  esac\n}\ncomplete -F _%s %s\n", p->name, p->name);
}

/* zsh runs bash's completions through its own shim. */
static void zsh_completion(const cli_program *p, FILE *f)
{
    fprintf(f,
            "#compdef %s\n"
            "# zsh completion for %s; made by: %s completion zsh\n"
            "autoload -Uz bashcompinit && bashcompinit\n",
            p->name, p->name, p->name);
    bash_completion(p, f);
}

static void fish_options(const cli_program *p, const char *condition, const cli_option *list,
                         FILE *f)
{
    for (const cli_option *o = list; o && o->name; o++) {
        fprintf(f, "complete -c %s", p->name);
        if (condition) {
            (void)fputs(" -n ", f);
            put_quoted(condition, f);
        }
        fprintf(f, " -l %s", o->name);
        if (o->letter) fprintf(f, " -s %c", o->letter);
        if (o->arg) (void)fputs(is_files(o->words) ? " -rF" : " -x", f);
        if (o->arg && o->words && !is_files(o->words)) {
            (void)fputs(" -a ", f);
            put_quoted(o->words, f);
        }
        (void)fputs(" -d ", f);
        put_quoted(o->help, f);
        (void)fputc('\n', f);
    }
}

static void fish_completion(const cli_program *p, FILE *f)
{
    fprintf(f,
            "# fish completion for %s; made by: %s completion fish\n"
            "complete -c %s -f\n",
            p->name, p->name, p->name);
    fish_options(p, NULL, p->options, f);
    for (const cli_command *k = p->commands; k->name; k++) {
        char condition[128], first[32];
        size_t n = strcspn(k->name, " ");
        snprintf(first, sizeof(first), "%.*s", (int)n, k->name);
        fprintf(f, "complete -c %s -n __fish_use_subcommand -a %s -d ", p->name, first);
        put_quoted(k->name[n] ? "" : k->help, f);
        (void)fputc('\n', f);
        if (k->name[n]) {
            fprintf(f, "complete -c %s -n '__fish_seen_subcommand_from %s' -a %s -d ", p->name,
                    first, k->name + n + 1);
            put_quoted(k->help, f);
            (void)fputc('\n', f);
        }
        snprintf(condition, sizeof(condition), "__fish_seen_subcommand_from %s%s%s", first,
                 k->name[n] ? "; and __fish_seen_subcommand_from " : "",
                 k->name[n] ? k->name + n + 1 : "");
        fish_options(p, condition, k->options, f);
        if (k->words) {
            fprintf(f, "complete -c %s -n '%s' %s ", p->name, condition,
                    is_files(k->words) ? "-F" : "-a");
            if (!is_files(k->words)) put_quoted(k->words, f);
            (void)fputc('\n', f);
        }
    }
}

bool cli_print_completion(const cli_program *p, const char *shell, FILE *f)
{
    if (strcmp(shell, "bash") == 0)
        bash_completion(p, f);
    else if (strcmp(shell, "zsh") == 0)
        zsh_completion(p, f);
    else if (strcmp(shell, "fish") == 0)
        fish_completion(p, f);
    else
        return false;
    return true;
}
