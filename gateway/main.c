/* main.c -- lorad's main(): reads which verb is wanted, and calls it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/version.h"
#include "gateway/manual.h"
#include "gateway/start/verbs.h"

int main(int argc, char **argv)
{
    arguments a;
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "--print-conf") == 0) {
        config c;
        config_defaults(&c);
        config_print(&c, stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(verb, "version") == 0 || strcmp(verb, "--version") == 0) {
        printf("lorad %s (commit %s; %s)\n", LORAD_VERSION, version_commit, version_build);
        return EXIT_SUCCESS;
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0) {
        manual_usage(stdout);
        return EXIT_SUCCESS;
    }
    if (strcmp(verb, "--print-man") == 0) {
        manual_page(stdout, argc > 2 && strcmp(argv[2], "5") == 0 ? 5 : 1);
        return EXIT_SUCCESS;
    }
    static const struct {
        const char *verb;
        int (*run)(const arguments *a);
    } verbs[] = {{"init", verb_init},    {"key", verb_key},     {"cert", verb_cert},
                 {"check", verb_check},  {"serve", verb_serve}, {"migrate", verb_migrate},
                 {"backup", verb_backup}};
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(verb, verbs[i].verb) != 0) continue;
        return arguments_parse(&a, argc, argv) ? verbs[i].run(&a) : EXIT_USAGE;
    }
    if (*verb) fprintf(stderr, "lorad: unknown command '%s'\n\n", verb);
    manual_usage(stderr);
    return EXIT_USAGE;
}
