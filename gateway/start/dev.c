/* dev.c -- `lorad serve --dev`: a data directory, a tenant and keys, and a request to try.
 *
 *     no --dir        a new folder in $TMPDIR, removed at the end
 *     --dir, new      made as `lorad init` makes one; kept
 *     --dir, again    as it is: --model would contradict its configuration, and is refused
 *
 * Keys are shown once, when they are made, and wiped from memory.
 */
#include "gateway/start/dev.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/program/process.h"
#include "gateway/start/init.h"
#include "storage/disk.h"
#include "storage/tenants.h"

static const char TENANT[] = "dev";

static err_code make_tenant(const char *dir, char text[KEY_TEXT_LEN + 1], err *e)
{
    store *st;
    tenant who = {0};
    err_code rc = store_open(&st, dir, NULL, e);
    if (rc) return rc;
    memcpy(who.name, TENANT, sizeof(TENANT));
    rc = tenants_create(st, &who, &who, e);
    key_info want = {.tenant_id = who.id,
                     .name = "dev",
                     .scopes = SCOPE_INFERENCE | SCOPE_ADAPTERS_READ | SCOPE_ADAPTERS_WRITE};
    if (!rc) rc = keys_create(st, &want, text, NULL, e);
    store_close(st);
    return rc;
}

/* The port of "address:port"; "8443" of "[::1]:8443", too. */
static const char *port_of(const char *listen)
{
    const char *colon = strrchr(listen, ':');
    return colon ? colon + 1 : listen;
}

static void tell(const init_made *made, const char *key)
{
    const config *c = &made->config;
    const char *port = port_of(c->server.listen);
    printf(
        "certificate  %s (for development; clients trust this file)\n"
        "admin key    %s\n"
        "API key      %s (tenant %s)\n"
        "loractl      export LORAD_URL=https://localhost:%s LORAD_ADMIN_URL=https://localhost:%s "
        "LORAD_CA=%s LORAD_KEY=%s LORAD_ADMIN_KEY=%s\n"
        "             loractl adapter push DIR --name NAME && loractl chat NAME Hello; loratop\n"
        "try          curl --cacert %s https://localhost:%s/v1/chat/completions \\\n"
        "               -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' \\\n"
        "               -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": "
        "\"Hello\"}]}'\n",
        made->cert, made->key, key, TENANT, port, port_of(c->admin.listen), made->cert, key,
        made->key, made->cert, port, key, c->model.name);
}

static err_code make(const arguments *a, err *e)
{
    static init_made made; /* large */
    char key[KEY_TEXT_LEN + 1];
    err_code rc = init_make(a, &made, e);
    if (!rc) rc = make_tenant(made.config.data.dir, key, e);
    if (!rc) tell(&made, key);
    explicit_bzero(made.key, sizeof(made.key));
    explicit_bzero(key, sizeof(key));
    return rc;
}

static err_code make_temporary(dev_folder *d, err *e)
{
    const char *base = getenv("TMPDIR");
    snprintf(d->temporary, sizeof(d->temporary), "%s/lorad-dev-XXXXXX",
             base && base[0] ? base : "/tmp");
    if (mkdtemp(d->temporary)) return ERR_NONE;
    (void)err_set(e, ERR_IO, "%s: %s", d->temporary, strerror(errno));
    d->temporary[0] = '\0';
    return e->code;
}

err_code dev_open(dev_folder *d, arguments *a, err *e)
{
    if (!a->dir) {
        if (make_temporary(d, e)) return e->code;
        a->dir = d->temporary;
    }
    snprintf(d->file, sizeof(d->file), "%s/lorad.conf", a->dir);
    a->file = d->file;
    bool again = access(d->file, F_OK) == 0;
    printf("data         %s (%s)\n", a->dir,
           d->temporary[0] ? "removed at the end; --dir DIR is kept"
           : again         ? "from another time; its keys were shown then"
                           : "kept");
    err_code rc = ERR_NONE;
    if (again && a->model)
        rc = err_set(e, ERR_INPUT,
                     "%s has a configuration: change model.path there, not by --model", a->dir);
    else if (!again && !a->model)
        rc = err_set(e, ERR_INPUT, "--dev needs --model DIR, the folder of a model");
    else if (!again)
        rc = make(a, e);
    (void)fflush(stdout);
    if (rc) dev_close(d);
    return rc;
}

void dev_close(dev_folder *d)
{
    if (d->temporary[0] && !disk_remove_folder(d->temporary))
        log_warn("gateway", "%s stays: %s", d->temporary, strerror(errno));
    d->temporary[0] = '\0';
}
