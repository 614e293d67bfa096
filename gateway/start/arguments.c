/* arguments.c -- options on the command line of all verbs, and the configuration that they make. */
#include "gateway/start/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/manual.h"

int arguments_fail(const err *e)
{
    fprintf(stderr, "lorad: %s\n", e->msg);
    return EXIT_FAILURE;
}

bool arguments_parse(arguments *a, int argc, char **argv)
{
    *a = (arguments){.file = "/etc/lorad/lorad.conf"};
    for (int i = 2; i < argc; i++) {
        const char **to = strcmp(argv[i], "-c") == 0 || strcmp(argv[i], "--config") == 0 ? &a->file
                          : strcmp(argv[i], "--dir") == 0                                ? &a->dir
                          : strcmp(argv[i], "--model") == 0                              ? &a->model
                          : strcmp(argv[i], "--to") == 0                                 ? &a->to
                          : strcmp(argv[i], "--join") == 0                               ? &a->join
                          : strcmp(argv[i], "--admin-key-file") == 0 ? &a->admin_key_file
                          : strcmp(argv[i], "--plan") == 0 && strcmp(argv[1], "check") == 0
                              ? &a->plan
                              : NULL;
        bool set = strcmp(argv[i], "--set") == 0;
        bool *flag = strcmp(argv[i], "--admin") == 0                                   ? &a->admin
                     : strcmp(argv[i], "--new") == 0 && strcmp(argv[1], "key") == 0    ? &a->fresh
                     : strcmp(argv[i], "--dev") == 0 && strcmp(argv[1], "serve") == 0  ? &a->dev
                     : strcmp(argv[i], "--diff") == 0 && strcmp(argv[1], "check") == 0 ? &a->diff
                     : strcmp(argv[i], "--deep") == 0 && strcmp(argv[1], "check") == 0 ? &a->deep
                                                                                       : NULL;
        if (flag) {
            *flag = true;
            continue;
        }
        if (!to && !set) {
            fprintf(stderr, "lorad: unknown argument '%s'\n\n", argv[i]);
            (void)manual_command(stderr, argv[1]);
            return false;
        }
        if (i + 1 >= argc || (set && a->n_sets == SETS_MAX)) {
            fprintf(stderr, "lorad: %s needs a value\n", argv[i]);
            return false;
        }
        if (set)
            a->sets[a->n_sets++] = argv[++i];
        else
            *to = argv[++i];
        a->file_given |= to == &a->file;
    }
    return true;
}

err_code arguments_config(const arguments *a, config *c, err *e)
{
    config_defaults(c);
    char model[PATH_MAX + 16];
    /* A plan is made before anything is set up: without -c, of the defaults. */
    err_code rc = a->plan && !a->file_given ? ERR_NONE : config_read_file(c, a->file, e);
    if (rc) return err_context(e, "%s", a->file);
    rc = config_read_env(c, e);
    for (int i = 0; !rc && i < a->n_sets; i++) rc = config_set(c, a->sets[i], e);
    if (!rc && a->plan) {
        snprintf(model, sizeof(model), "model.path=%s", a->plan);
        rc = config_set(c, model, e);
    }
    return rc ? rc : config_check(c, e);
}

/* Relative to the data directory, unless absolute. */
static void in_data_dir(const config *c, const char *path, char out[PATH_MAX])
{
    if (path[0] == '/')
        snprintf(out, PATH_MAX, "%s", path);
    else
        snprintf(out, PATH_MAX, "%s/%s", c->data.dir, path);
}

tls_files arguments_tls(const config *c, char cert[PATH_MAX], char key[PATH_MAX], char ca[PATH_MAX])
{
    in_data_dir(c, c->server.tls_cert, cert);
    in_data_dir(c, c->server.tls_key, key);
    in_data_dir(c, c->admin.client_ca, ca);
    return (tls_files){cert, key, c->admin.client_ca[0] ? ca : NULL};
}
