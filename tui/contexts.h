/* contexts.h -- where the servers are, and with which keys: the file and the environment.
 *
 * As kubectl and aws do it: a file of named contexts, one of them current, and environment
 * variables over it.  The file is $LORAD_CLIENT_CONFIG, else $XDG_CONFIG_HOME/lorad/contexts.conf,
 * else ~/.config/lorad/contexts.conf:
 *
 *     current = home
 *
 *     [home]
 *     url = https://localhost:8443          # inference and adapters
 *     key = lk_...                          # or key_file = /path (its first line)
 *     admin_url = https://localhost:8444    # operators
 *     admin_key = lk_...                    # or admin_key_file
 *     metrics_url = https://localhost:8445
 *     ca = /srv/lorad/tls/cert.pem          # else the system's authorities
 *     cert, cert_key                        # client certificate, where the server asks for one
 *
 * The environment: LORAD_CONTEXT picks one; LORAD_URL, LORAD_KEY, LORAD_KEY_FILE, LORAD_ADMIN_URL,
 * LORAD_ADMIN_KEY, LORAD_ADMIN_KEY_FILE, LORAD_METRICS_URL, LORAD_CA, LORAD_CERT, LORAD_CERT_KEY
 * replace its settings one by one.  With neither: the ports of lorad's own defaults on localhost.
 *
 * Keys: a file with one in it must not be readable by others, as ssh has it (ERR_DENIED, with the
 * chmod that helps).  No function here prints a key.
 * Threads: any thread; the environment must not change meanwhile.
 */
#ifndef TUI_CONTEXTS_H
#define TUI_CONTEXTS_H

#include <limits.h>
#include <stdbool.h>

#include "engine/base/err.h"

enum {
    CONTEXT_NAME_MAX = 64,
    CONTEXT_URL_MAX = 512,
    CONTEXT_KEY_MAX = 256,
    CONTEXTS_MAX = 64,
};

typedef struct context {
    char name[CONTEXT_NAME_MAX + 1]; /* [A-Za-z0-9._-]; "" in what the environment alone gave */
    char url[CONTEXT_URL_MAX], admin_url[CONTEXT_URL_MAX], metrics_url[CONTEXT_URL_MAX];
    char ca[PATH_MAX], cert[PATH_MAX], cert_key[PATH_MAX];
    char key[CONTEXT_KEY_MAX], admin_key[CONTEXT_KEY_MAX];
    char key_file[PATH_MAX], admin_key_file[PATH_MAX];
} context;

typedef struct contexts {
    char path[PATH_MAX]; /* of the file, also where there is none yet */
    bool exists;
    char current[CONTEXT_NAME_MAX + 1];
    int n;
    context *list; /* [CONTEXTS_MAX], owned; contexts_clear() wipes and frees it */
} contexts;

/* Reads the file; one that is not there is an empty list.  ERR_INPUT names the line and what is
 * wrong, ERR_DENIED: others may read or write it.  *c wants contexts_clear() also after a
 * failure. */
err_code contexts_load(contexts *c, err *e);
void contexts_clear(contexts *c);

/* NULL: none of that name. */
context *contexts_find(const contexts *c, const char *name);

/* The one of that name, made if need be.  ERR_INPUT: not a name; ERR_LIMIT. */
err_code contexts_add(contexts *c, const char *name, context **out, err *e);
bool contexts_remove(contexts *c, const char *name);

/* Writes the file whole (mode 0600, beside the old one, then renamed), its folder made if need
 * be. */
err_code contexts_save(const contexts *c, err *e);

/* Sets one of a context's settings by its name in the file.  ERR_INPUT: no such setting, too
 * long, or control bytes in it. */
err_code context_set(context *x, const char *setting, const char *value, err *e);

/* The i-th setting's name, and its value; NULL beyond the last.  *secret: never show the value. */
const char *context_setting(const context *x, int i, const char **value, bool *secret);

/* What a program is to use: context `name` (NULL: $LORAD_CONTEXT, then the current one), the
 * environment over it, key files read, the defaults below.  ERR_NOT_FOUND: no such context. */
err_code context_resolve(const contexts *c, const char *name, context *out, err *e);

/* The first line of a file that only its owner may read. */
err_code context_read_key(const char *path, char out[CONTEXT_KEY_MAX], err *e);

/* Overwrites what is secret. */
void context_wipe(context *x);

#endif
