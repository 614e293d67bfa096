/* init.c -- lorad init: what a server needs before its first start.  Nothing is overwritten. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/program/process.h"
#include "gateway/net/devcert.h"
#include "gateway/start/verbs.h"
#include "storage/audit.h"
#include "storage/keys.h"

static err_code make_dir(const char *path, mode_t mode, err *e)
{
    if (mkdir(path, mode) == 0 || errno == EEXIST) return ERR_NONE;
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

static err_code write_config(const config *c, const char *path, err *e)
{
    FILE *f = fopen(path, "wx");
    if (!f) {
        return err_set(e, errno == EEXIST ? ERR_EXISTS : ERR_IO, "%s: %s", path, strerror(errno));
    }
    config_print(c, f);
    if (fclose(f) != 0) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return ERR_NONE;
}

static err_code make_admin_key(const char *dir, char text[KEY_TEXT_LEN + 1], err *e)
{
    store *st;
    store_options options = {.create = true};
    err_code rc = store_open(&st, dir, &options, e);
    if (rc) return rc;
    key_info want = {.scopes = SCOPE_ADMIN, .name = "admin"}, made;
    rc = keys_create(st, &want, text, &made, e);
    if (!rc)
        rc = audit_append(st, 0, 0, "key.create", made.public_id, "{\"by\":\"lorad init\"}", e);
    store_close(st);
    return rc;
}

int verb_init(const arguments *a)
{
    err e;
    config c;
    char dir[PATH_MAX], model_dir[PATH_MAX], path[PATH_MAX + 64], cert[PATH_MAX + 64];
    char key[KEY_TEXT_LEN + 1];
    if (!a->dir || !a->model) {
        fprintf(stderr, "lorad: init needs --dir and --model\n");
        return EXIT_USAGE;
    }
    process_keep_secrets();
    config_defaults(&c);
    if (make_dir(a->dir, 0700, &e)) return arguments_fail(&e);
    if (!realpath(a->dir, dir) || !realpath(a->model, model_dir)) {
        (void)err_set(&e, ERR_IO, "%s: %s", a->model, strerror(errno));
        return arguments_fail(&e);
    }
    if (strlen(dir) >= CONFIG_TEXT_MAX || strlen(model_dir) >= CONFIG_TEXT_MAX) {
        (void)err_set(&e, ERR_INPUT, "a path is longer than %d bytes", CONFIG_TEXT_MAX - 1);
        return arguments_fail(&e);
    }
    memcpy(c.data_dir, dir, strlen(dir) + 1);
    memcpy(c.model_path, model_dir, strlen(model_dir) + 1);
    snprintf(path, sizeof(path), "%s/tls", dir);
    if (make_dir(path, 0700, &e)) return arguments_fail(&e);
    snprintf(cert, sizeof(cert), "%s/tls/cert.pem", dir);
    snprintf(path, sizeof(path), "%s/tls/key.pem", dir);
    if (devcert_write(cert, path, &e)) return arguments_fail(&e);
    err_code rc = make_admin_key(dir, key, &e);
    if (rc) return arguments_fail(&e);
    snprintf(path, sizeof(path), "%s/lorad.conf", dir);
    rc = write_config(&c, path, &e);
    if (rc) {
        explicit_bzero(key, sizeof(key));
        return arguments_fail(&e);
    }
    printf("config       %s\n"
           "certificate  %s (self-signed, for development)\n"
           "admin key    %s\n"
           "             shown once: keep it\n"
           "next         lorad serve -c %s\n",
           path, cert, key, path);
    explicit_bzero(key, sizeof(key));
    return EXIT_SUCCESS;
}
