/* init.c -- lorad init: writes what a server needs before its first start, and overwrites
 * nothing; lorad key and lorad cert: make again what was lost or has expired.
 *
 * init has two forms. With --dir it makes a data directory with a configuration of its own.
 * Without it, it fills the configuration that a package has installed (only `path` below [model]
 * is changed, all other lines stay as they are) and makes the data directory that this file
 * names.
 *
 * Order matters: the model is checked first, then that none of the files exists, then
 * certificate, database and key are made, and the configuration comes last. So a configuration
 * with a model exists only where init has succeeded.
 *
 * Run by root for a service user, the files must belong to that user: become_owner() switches
 * the effective ids around the writing, and they are switched back at the end. If that fails the
 * process would go on with the wrong identity, so it aborts.
 *
 * The admin key is printed once and wiped; --admin-key-file adopts one that was made elsewhere
 * (lorad key --new), so that it never appears on a terminal.
 */
#include "gateway/start/init.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/model.h"
#include "engine/program/process.h"
#include "gateway/net/devcert.h"
#include "gateway/start/base_model.h"
#include "gateway/start/secret_file.h"
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

/* The one that somebody else made (lorad key --new), so that it need not be printed here. */
static err_code read_admin_key(const char *file, char text[KEY_TEXT_LEN + 1], err *e)
{
    char path[PATH_MAX], line[KEY_TEXT_LEN + 3];
    if (!realpath(file, path)) return err_set(e, ERR_NOT_FOUND, "%s: %s", file, strerror(errno));
    err_code rc = secret_file_read("", path, "--admin-key-file", line, sizeof(line), e);
    if (!rc) snprintf(text, KEY_TEXT_LEN + 1, "%.*s", (int)strcspn(line, "\r\n"), line);
    explicit_bzero(line, sizeof(line));
    return rc;
}

/* `by`: the verb that does it; `given`: the file with the key, NULL: a new one. */
static err_code make_admin_key(const char *dir, const char *by, const char *given,
                               char text[KEY_TEXT_LEN + 1], err *e)
{
    store *st;
    if (given && read_admin_key(given, text, e)) return e->code;
    char detail[64];
    store_options options = {.create = strcmp(by, "init") == 0};
    err_code rc = store_open(&st, dir, &options, e);
    if (rc) return rc;
    key_info want = {.scopes = SCOPE_ADMIN, .name = "admin"}, made;
    rc = given ? keys_adopt(st, &want, text, &made, e) : keys_create(st, &want, text, &made, e);
    if (rc && given) (void)err_context(e, "--admin-key-file");
    snprintf(detail, sizeof(detail), "{\"by\":\"lorad %s\"}", by);
    if (!rc) rc = audit_append(st, 0, 0, "key.create", made.public_id, detail, e);
    store_close(st);
    return rc;
}

/* A folder or file that serve could read a model from; nothing is written before that is known. */
static err_code find_model(const char *name, char path[PATH_MAX], err *e)
{
    model_config mc;
    if (!realpath(name, path))
        return err_set(e, ERR_NOT_FOUND,
                       "%.80s: %s; --model needs a folder, a GGUF, or hf://owner/repository to "
                       "download one of the hub in sources.hub",
                       name, strerror(errno));
    return model_config_read(path, &mc, e) ? err_context(e, "--model") : ERR_NONE;
}

/* The same of one of the hub, before its weights are downloaded.  The environment counts, as it
 * will when serve downloads them. */
static err_code probe_model(const config *c, err *e)
{
    static config with; /* large */
    char path[PATH_MAX];
    model_config mc;
    with = *c;
    if (config_read_env(&with, e)) return e->code;
    memcpy(with.data.dir, c->data.dir, sizeof(with.data.dir));
    memcpy(with.model.path, c->model.path, sizeof(with.model.path));
    err_code rc = base_model_find(&with, BASE_MODEL_PROBE, path, e);
    if (rc || access(path, F_OK) != 0) return rc; /* a GGUF: its header comes with the rest */
    rc = model_config_read(path, &mc, e);
    return rc ? err_context(e, "model.path: %.80s", c->model.path) : ERR_NONE;
}

/* Its path for the configuration; one of the hub keeps its name. */
static err_code name_model(const char *name, char path[PATH_MAX], err *e)
{
    if (!base_model_is_named(name)) return find_model(name, path, e);
    snprintf(path, PATH_MAX, "%s", name);
    return ERR_NONE;
}

/* What must not be there yet. */
static err_code check_new(const char *dir, err *e)
{
    static const char *const made[] = {"lorad.conf", "lorad.db", "tls/key.pem", "tls/cert.pem"};
    char path[PATH_MAX + 64];
    for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, made[i]);
        if (access(path, F_OK) == 0)
            return err_set(e, ERR_EXISTS,
                           "%s is there: init was here before. The admin key is lost? 'lorad key "
                           "--admin -c FILE'. The certificate has ended? 'lorad cert -c FILE'",
                           path);
    }
    return ERR_NONE;
}

/* The configuration that is written: the options of the command line, and where things are. */
static err_code make_config(const arguments *a, config *c, err *e)
{
    char dir[PATH_MAX], model_dir[PATH_MAX], join[PATH_MAX];
    config_defaults(c);
    for (int i = 0; i < a->n_sets; i++)
        if (config_set(c, a->sets[i], e)) return e->code;
    if (a->join) {
        snprintf(join, sizeof(join), "storage.database=%s", a->join);
        if (config_set(c, join, e)) return e->code;
    }
    if (name_model(a->model, model_dir, e) || make_dir(a->dir, 0700, e)) return e->code;
    if (!realpath(a->dir, dir)) return err_set(e, ERR_IO, "%s: %s", a->dir, strerror(errno));
    if (strlen(dir) >= CONFIG_TEXT_MAX || strlen(model_dir) >= CONFIG_TEXT_MAX)
        return err_set(e, ERR_INPUT, "a path is longer than %d bytes", CONFIG_TEXT_MAX - 1);
    memcpy(c->data.dir, dir, strlen(dir) + 1);
    memcpy(c->model.path, model_dir, strlen(model_dir) + 1);
    if (check_new(dir, e)) return e->code;
    return base_model_is_named(c->model.path) ? probe_model(c, e) : ERR_NONE;
}

/* Certificate, database and the admin key in c->data.dir. */
static err_code make_data(const arguments *a, init_made *made, err *e)
{
    char path[PATH_MAX + 64];
    const config *c = &made->config;
    snprintf(path, sizeof(path), "%s/tls", c->data.dir);
    if (make_dir(path, 0700, e)) return e->code;
    snprintf(made->cert, sizeof(made->cert), "%s/tls/cert.pem", c->data.dir);
    snprintf(path, sizeof(path), "%s/tls/key.pem", c->data.dir);
    if (devcert_write(made->cert, path, e)) return e->code;
    /* A fleet's keys are there already. */
    return a->join ? config_check(c, e)
                   : make_admin_key(c->data.dir, "init", a->admin_key_file, made->key, e);
}

err_code init_make(const arguments *a, init_made *made, err *e)
{
    config *c = &made->config;
    if (make_config(a, c, e)) return e->code;
    err_code rc = make_data(a, made, e);
    snprintf(made->file, sizeof(made->file), "%s/lorad.conf", c->data.dir);
    if (!rc) rc = write_config(c, made->file, e);
    if (rc) explicit_bzero(made->key, sizeof(made->key));
    return rc;
}

/* ---------------------------------------------------------------- a file that is there -- */

/* Copies a configuration, line by line, but for `path` in [model]; false: there is none, or the
 * disk is full. */
static bool copy_with_model(FILE *from, FILE *to, const char *chosen)
{
    char *line = NULL;
    size_t cap = 0;
    bool inside = false, done = false, ok = true;
    while (ok && getline(&line, &cap, from) > 0) {
        size_t word = strspn(line, "abcdefghijklmnopqrstuvwxyz_");
        if (line[0] == '[') inside = strncmp(line, "[model]", 7) == 0;
        bool here = inside && !done && word == 4 && strncmp(line, "path", 4) == 0 &&
                    line[word + strspn(line + word, " \t")] == '=';
        ok = (here ? fprintf(to, "path = %s\n", chosen) : fputs(line, to)) >= 0;
        done |= here;
    }
    free(line);
    return ok && done && fflush(to) == 0 && fsync(fileno(to)) == 0;
}

/* `fresh` is `file` with a model, of the same owner and mode. */
static err_code write_filled(const char *file, const char *fresh, const char *chosen, err *e)
{
    struct stat st;
    FILE *from = fopen(file, "re");
    int fd = from && fstat(fileno(from), &st) == 0
                 ? open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                 : -1;
    FILE *to = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = to && fchown(fd, st.st_uid, st.st_gid) == 0 && fchmod(fd, st.st_mode & 07777) == 0;
    int why = errno;
    bool copied = ok && copy_with_model(from, to, chosen);
    if (from) (void)fclose(from);
    if (to) (void)fclose(to);
    if (copied) return ERR_NONE;
    if (fd >= 0) (void)unlink(fresh);
    return ok ? err_set(e, ERR_INPUT, "%s has no line 'path = ' below [model]", file)
              : err_set(e, ERR_IO, "%s: %s", fresh, strerror(why));
}

/* What is made from here on is the data directory's owner's.  Root alone can take his place. */
static err_code become_owner(const char *dir, err *e)
{
    struct stat st;
    if (stat(dir, &st) != 0) return err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    if (geteuid() != 0 || st.st_uid == 0) return ERR_NONE;
    if (setgroups(0, NULL) != 0 || setegid(st.st_gid) != 0 || seteuid(st.st_uid) != 0)
        return err_set(e, ERR_IO, "cannot act for the owner of %s: %s", dir, strerror(errno));
    return ERR_NONE;
}

/* Without a->dir: fills a->file, a configuration that names no model yet, as the package has it.
 * Certificate, database and key go into its data directory and belong to that one's owner (root
 * takes his place for them).  ERR_EXISTS: it has a model, or init was there before. */
static err_code fill_file(const arguments *a, init_made *made, err *e)
{
    config *c = &made->config;
    char chosen[PATH_MAX], seen[PATH_MAX], fresh[PATH_MAX + 64];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    config_defaults(c);
    if (config_read_file(c, a->file, e)) return err_context(e, "%s", a->file);
    if (a->n_sets || a->join)
        return err_set(e, ERR_INPUT, "--set and --join go with --dir: %s may say it", a->file);
    if (c->model.path[0])
        return err_set(e, ERR_EXISTS, "%s has a model already: change model.path there", a->file);
    bool named = base_model_is_named(a->model);
    if (named)
        snprintf(chosen, sizeof(chosen), "%s", a->model);
    else if (!realpath(a->model, chosen))
        return find_model(a->model, chosen, e);
    if (strlen(chosen) >= CONFIG_TEXT_MAX)
        return err_set(e, ERR_INPUT, "a path is longer than %d bytes", CONFIG_TEXT_MAX - 1);
    snprintf(made->file, sizeof(made->file), "%s", a->file);
    snprintf(fresh, sizeof(fresh), "%s.new", a->file);
    if (write_filled(a->file, fresh, chosen, e)) return e->code;
    memcpy(c->model.path, chosen, strlen(chosen) + 1);
    err_code rc = make_dir(c->data.dir, 0700, e);
    if (!rc) rc = become_owner(c->data.dir, e);
    if (!rc && !named) rc = find_model(chosen, seen, e); /* he must be able to read it */
    if (!rc) rc = check_new(c->data.dir, e);
    if (!rc && named) rc = probe_model(c, e);
    if (!rc) rc = make_data(a, made, e);
    if (seteuid(uid) != 0 || setegid(gid) != 0) abort(); /* we were that */
    if (!rc && rename(fresh, a->file) != 0)
        rc = err_set(e, ERR_IO, "%s: %s", a->file, strerror(errno));
    if (!rc) return rc;
    (void)unlink(fresh);
    explicit_bzero(made->key, sizeof(made->key));
    return rc;
}

int verb_init(const arguments *a)
{
    static init_made made; /* large */
    err e;
    bool fill = !a->dir && (a->file_given || access(a->file, F_OK) == 0);
    if (!a->model || (!a->dir && !fill)) {
        fprintf(stderr, "lorad: init needs --model, and --dir or, to fill it, a configuration\n");
        return EXIT_USAGE;
    }
    if (a->dir && a->file_given) {
        fprintf(stderr, "lorad: init makes --dir, or fills -c: not both\n");
        return EXIT_USAGE;
    }
    process_keep_secrets();
    if (fill ? fill_file(a, &made, &e) : init_make(a, &made, &e)) return arguments_fail(&e);
    printf("config       %s\n"
           "certificate  %s (for development; clients trust this file)\n",
           made.file, made.cert);
    if (a->join)
        printf("fleet        node %d of %s\n", (int)made.config.server.node,
               made.config.storage.database);
    else if (a->admin_key_file)
        printf("admin key    as in %s\n", a->admin_key_file);
    else
        printf("admin key    %s\n"
               "             shown once: keep it\n",
               made.key);
    if (!fill)
        printf("next         lorad serve -c %s\n", made.file);
    else
        printf("next         systemctl enable --now lorad\n"
               "             export LORAD_CA=%s LORAD_ADMIN_KEY=...\n"
               "             loractl tenant create NAME --out NAME.key\n"
               "             loractl chat %s 'Hello' --key-file NAME.key\n",
               made.cert, made.config.model.name);
    explicit_bzero(made.key, sizeof(made.key));
    return EXIT_SUCCESS;
}

int verb_key(const arguments *a)
{
    err e;
    config c;
    char key[KEY_TEXT_LEN + 1];
    if (a->admin == a->fresh) {
        fprintf(stderr, "lorad: key needs --admin or --new; other keys: loractl key create\n");
        return EXIT_USAGE;
    }
    process_keep_secrets();
    if (a->fresh) {
        keys_make_text(key);
        printf("%s\n", key);
        explicit_bzero(key, sizeof(key));
        return EXIT_SUCCESS;
    }
    if (arguments_config(a, &c, &e)) return arguments_fail(&e);
    err_code rc = make_admin_key(c.data.dir, "key", NULL, key, &e);
    if (rc == ERR_BUSY)
        (void)err_set(&e, ERR_BUSY,
                      "%s is a running server's: stop it first, or ask it: loractl key create "
                      "--scopes admin",
                      c.data.dir);
    if (rc) return arguments_fail(&e);
    printf("admin key    %s\n"
           "             shown once: keep it\n",
           key);
    explicit_bzero(key, sizeof(key));
    return EXIT_SUCCESS;
}

int verb_cert(const arguments *a)
{
    err e;
    config c;
    char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
    if (arguments_config(a, &c, &e)) return arguments_fail(&e);
    tls_files files = arguments_tls(&c, cert, key, ca);
    if (devcert_renew(files.cert, files.key, &e)) return arguments_fail(&e);
    printf("certificate  %s (for development): 397 days from now\n"
           "next         a server that runs takes it on SIGHUP (loractl reload); clients may keep "
           "the file that they have\n",
           files.cert);
    return EXIT_SUCCESS;
}
