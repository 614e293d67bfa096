/* cli.h -- one table of commands and options: parsing, help, the man page and shell completions.
 *
 * A program describes itself once.  Options may stand anywhere (--name VALUE, --name=VALUE,
 * -nVALUE), "--" ends them.  A command is one word or two ("tenant create").
 *
 * Threads: one.
 */
#ifndef TUI_CLI_H
#define TUI_CLI_H

#include <stdbool.h>
#include <stdio.h>

enum { CLI_ARGS_MAX = 256, CLI_OPTIONS_MAX = 64, CLI_USAGE = 2 };

typedef struct cli_option {
    const char *name; /* without the dashes; NULL ends the list */
    char letter;      /* 0: none */
    const char *arg;  /* what the value is called; NULL: it takes none; "[X]": --name or --name=X */
    const char *help;
    /* For completion: space-separated values, "FILE", "DIR", or "@KIND", which are asked for by
     * the program's own 'completion names KIND'; may be NULL. */
    const char *words;
} cli_option;

typedef struct cli_command {
    const char *name;          /* "tenant create"; NULL ends the list */
    const char *args;          /* "NAME [VERSION]", for people */
    int least, most;           /* number of arguments; most -1: any */
    const char *help;          /* one line, no full stop */
    const cli_option *options; /* may be NULL */
    int (*run)(void *program); /* returns the exit status */
    const char *words;         /* of the first argument, as above */
    const char *more_words;    /* of further arguments; NULL: `words` again */
    const char *heading;       /* help prints it before this command; NULL: none */
    bool shows;                /* the program's options `showing` go with it */
    const char *examples;      /* lines, each with its break; may be NULL */
} cli_command;

typedef struct cli_program {
    const char *name, *tagline;
    const cli_command *commands; /* NULL: it has only options */
    const cli_option *options;   /* of every command */
    const cli_option *showing;   /* of commands that show something; may be NULL */
    /* For the man page, and without commands also for help, after the options.  Paragraphs are
     * separated by an empty line. */
    const char *description;
    const char *after; /* ready troff: files, environment, examples */
} cli_program;

typedef struct cli {
    const cli_program *program;
    const cli_command *command;
    const char *arg[CLI_ARGS_MAX]; /* borrowed from argv */
    int n_arg;
    bool help;
    const char *group; /* help is asked for on all commands that begin with this word */

    /* private to cli.c */
    const cli_option *seen[CLI_OPTIONS_MAX];
    const char *value[CLI_OPTIONS_MAX];
    int n_seen;
} cli;

/* 0, or CLI_USAGE with the reason on standard error.  Where help is asked for, `help` is set, and
 * `command` is NULL where it is for the program or a `group`. */
int cli_parse(cli *c, const cli_program *p, int argc, char **argv);

/* The value of an option, the last one given; NULL: it was not given, "" for one that takes
 * none. */
const char *cli_value(const cli *c, const char *name);
bool cli_given(const cli *c, const char *name);
/* The i-th value of an option that may be repeated; NULL beyond the last. */
const char *cli_each(const cli *c, const char *name, int i);

/* Help for a command, or for the program (command NULL). */
void cli_print_help(const cli_program *p, const cli_command *command, FILE *f);

/* Help for the commands that begin with one word. */
void cli_print_group(const cli_program *p, const char *group, FILE *f);

/* troff for man(1), section 1. */
void cli_print_man(const cli_program *p, FILE *f);

/* In cli_completion.c: a script for "bash", "zsh" or "fish"; false: no such shell. */
bool cli_print_completion(const cli_program *p, const char *shell, FILE *f);

#endif
