/* fleet_source.c -- sessions with storage.database, their password from its file. */
#include "gateway/start/fleet_source.h"

#include <string.h>

#include "gateway/start/secret_file.h"

enum { PASSWORD_MAX = 1024 };

/* The first line; *out stays empty where no file is configured. */
static err_code read_password(const config *c, char out[PASSWORD_MAX], err *e)
{
    static const char option[] = "storage.password_file";
    out[0] = 0;
    if (!c->storage.password_file[0]) return ERR_NONE;
    err_code rc =
        secret_file_read(c->data.dir, c->storage.password_file, option, out, PASSWORD_MAX, e);
    out[strcspn(out, "\r\n")] = 0;
    if (!rc && !out[0]) rc = err_set(e, ERR_INPUT, "%s: its first line is empty", option);
    return rc;
}

static err_code make(void *self, int node, journal **out, err *e)
{
    const config *c = self;
    char password[PASSWORD_MAX];
    err_code rc = read_password(c, password, e);
    if (!rc)
        rc = journal_postgres(c->storage.database, password[0] ? password : NULL, node, out, e);
    explicit_bzero(password, sizeof(password));
    return rc;
}

bool fleet_source(const config *c, journal_source *out)
{
    *out = (journal_source){make, (void *)(uintptr_t)c};
    return c->storage.database[0] != 0;
}
