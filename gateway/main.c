/* main.c -- lorad's main(): reads which verb is wanted, and calls it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/program/version.h"
#include "gateway/device.h"
#include "gateway/manual.h"
#include "gateway/start/verbs.h"

/* The version, and the backends in this binary: the CPU's instruction sets, and CUDA's devices. */
static int print_version(void)
{
    char isas[BACKEND_CPU_ISAS];
    backend_cpu_isas(isas, sizeof(isas));
    printf("lorad %s (commit %s; %s)\nCPU kernels: %s\nCUDA: %s\n", LORAD_VERSION, version_commit,
           version_build, isas, device_cuda_built());
    return EXIT_SUCCESS;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    }
    return false;
}

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
        return print_version();
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0) {
        if (argc < 3) manual_usage(stdout);
        if (argc < 3 || manual_command(stdout, argv[2])) return EXIT_SUCCESS;
        fprintf(stderr, "lorad: unknown command '%s'\n\n", argv[2]);
        manual_usage(stderr);
        return EXIT_USAGE;
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
        if (wants_help(argc, argv)) return manual_command(stdout, verb) ? EXIT_SUCCESS : EXIT_USAGE;
        return arguments_parse(&a, argc, argv) ? verbs[i].run(&a) : EXIT_USAGE;
    }
    if (*verb) fprintf(stderr, "lorad: unknown command '%s'\n\n", verb);
    manual_usage(stderr);
    return EXIT_USAGE;
}
