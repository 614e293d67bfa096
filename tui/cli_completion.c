/* cli_completion.c -- scripts by which shells complete a program's command line, from its table.
 *
 *     bash   one function: options' values by the word before, then commands by the first two words
 *     zsh    the same script through zsh's bashcompinit
 *     fish   a `complete` line for each option, command and word, with the condition when it holds
 *
 * Words of a table are plain words, "FILE" or "DIR" (the shell completes paths), or "@kind":
 * names that only the server knows. For these the script runs "PROGRAM completion names KIND"
 * with the context that the line so far names, and waits 2 s at most; a server that is away
 * completes nothing and prints nothing.
 */
#include <string.h>

#include "tui/cli.h"

/* 'single quotes' for sh and fish; a quote inside is left out: no help text needs one. */
static void put_quoted(const char *s, FILE *f)
{
    (void)fputc('\'', f);
    for (; *s; s++) {
        if (*s != '\'' && *s != '\n') (void)fputc(*s, f);
    }
    (void)fputc('\'', f);
}

/* "adapters" of "@adapters", names that only the server knows; NULL: the words are the words. */
static const char *kind_of(const char *words)
{
    return words && *words == '@' ? words + 1 : NULL;
}

static void words_of_options(const cli_option *list, FILE *f)
{
    for (const cli_option *o = list; o && o->name; o++) fprintf(f, " --%s", o->name);
}

static bool is_files(const char *words)
{
    return words && (strcmp(words, "FILE") == 0 || strcmp(words, "DIR") == 0);
}

/* What compgen is told, up to the word that is being completed.  Names come from a server, and
 * compgen would expand what stands in them: 'completion names' prints only harmless ones. */
static void bash_words(const cli_program *p, const char *words, FILE *f)
{
    if (is_files(words))
        fprintf(f, "COMPREPLY=($(compgen -%c -- \"$cur\"))", *words == 'D' ? 'd' : 'f');
    else if (kind_of(words))
        fprintf(f, "COMPREPLY=($(compgen -W \"$(_%s_names %s)\" -- \"$cur\"))", p->name,
                kind_of(words));
    else
        fprintf(f, "COMPREPLY=($(compgen -W \"%s\" -- \"$cur\"))", words ? words : "");
}

static void bash_values(const cli_program *p, const cli_option *list, FILE *f)
{
    for (const cli_option *o = list; o && o->name; o++) {
        if (!o->arg || *o->arg == '[') continue;
        fprintf(f, "    --%s", o->name);
        if (o->letter) fprintf(f, "|-%c", o->letter);
        (void)fputs(") ", f);
        bash_words(p, o->words, f);
        (void)fputs("; return;;\n", f);
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

/* The names of a kind, asked of the server that the line so far names. */
static void bash_names(const cli_program *p, FILE *f)
{
    fprintf(f,
            "_%s_names() {\n"
            "  local i context=()\n"
            "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
            "    case ${COMP_WORDS[i]} in\n"
            "      -c|--context) ((i + 1 < COMP_CWORD)) && context=(-c \"${COMP_WORDS[i+1]}\");;\n"
            "    esac\n"
            "  done\n"
            "  %s completion names \"$1\" \"${context[@]}\" --timeout 2s 2>/dev/null\n"
            "}\n",
            p->name, p->name);
}

static void bash_command(const cli_program *p, const cli_command *k, FILE *f)
{
    bool two = strchr(k->name, ' ') != NULL;
    fprintf(f, "    '%s'%s%s%s) ", k->name, two ? "" : "|'", two ? "" : k->name, two ? "" : " '*");
    (void)fputs("if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"--help", f);
    words_of_options(k->options, f);
    if (k->shows) words_of_options(p->showing, f);
    words_of_options(p->options, f);
    (void)fputs("\" -- \"$cur\"));", f);
    if (k->words) {
        if (k->more_words) {
            fprintf(f, " elif (( ${#words[@]} > %d )); then ", two ? 2 : 1);
            bash_words(p, k->more_words, f);
            (void)fputc(';', f);
        }
        (void)fputs(" else ", f);
        bash_words(p, k->words, f);
        (void)fputc(';', f);
    }
    (void)fputs(" fi;;\n", f);
}

/* What goes with the first word alone. */
static void bash_groups(const cli_program *p, FILE *f)
{
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
}

static void bash_completion(const cli_program *p, FILE *f)
{
    fprintf(f, "# bash completion for %s; made by: %s completion bash\n", p->name, p->name);
    bash_names(p, f);
    fprintf(f,
            "_%s() {\n"
            "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} w\n"
            "  local words=() i\n"
            "  COMPREPLY=()\n"
            "  case $prev in\n",
            p->name);
    bash_values(p, p->options, f);
    bash_values(p, p->showing, f);
    for (const cli_command *k = p->commands; k->name; k++) bash_values(p, k->options, f);
    (void)fputs("  esac\n"
                "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
                "    w=${COMP_WORDS[i]}; [[ $w == -* ]] || words+=(\"$w\")\n"
                "  done\n"
                "  [[ ${words[0]} == help ]] && words=(\"${words[@]:1}\")\n"
                "  case \"${words[*]:0:2}\" in\n",
                f);
    for (const cli_command *k = p->commands; k->name; k++) bash_command(p, k, f);
    bash_groups(p, f);
    (void)fputs("    '') COMPREPLY=($(compgen -W \"help", f);
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

static void fish_words(const cli_program *p, const char *words, FILE *f)
{
    if (kind_of(words)) {
        fprintf(f, " -a '(__%s_names %s)'", p->name, kind_of(words));
        return;
    }
    (void)fputs(" -a ", f);
    put_quoted(words, f);
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
        if (o->arg && *o->arg != '[') (void)fputs(is_files(o->words) ? " -rF" : " -x", f);
        if (o->arg && o->words && !is_files(o->words)) fish_words(p, o->words, f);
        (void)fputs(" -d ", f);
        put_quoted(o->help, f);
        (void)fputc('\n', f);
    }
}

static void fish_completion(const cli_program *p, FILE *f)
{
    fprintf(f,
            "# fish completion for %s; made by: %s completion fish\n"
            "complete -c %s -f\n"
            "function __%s_names\n"
            "    set -l words (commandline -opc)\n"
            "    set -l context\n"
            "    for i in (seq 2 (count $words))\n"
            "        if contains -- $words[$i] -c --context; and test $i -lt (count $words)\n"
            "            set context -c $words[(math $i + 1)]\n"
            "        end\n"
            "    end\n"
            "    %s completion names $argv $context --timeout 2s 2>/dev/null\n"
            "end\n",
            p->name, p->name, p->name, p->name, p->name);
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
        if (k->shows) fish_options(p, condition, p->showing, f);
        if (k->words) {
            fprintf(f, "complete -c %s -n '%s'", p->name, condition);
            if (is_files(k->words))
                (void)fputs(" -F", f);
            else
                fish_words(p, k->words, f);
            (void)fputc('\n', f);
        }
        if (k->more_words) {
            fprintf(f, "complete -c %s -n '%s'", p->name, condition);
            fish_words(p, k->more_words, f);
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
