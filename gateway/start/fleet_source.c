/* fleet_source.c -- sessions with storage.database, their password from its file. */
#include "gateway/start/fleet_source.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/private_file.h"

enum { PASSWORD_MAX = 1024 };

/* The first line; *out stays empty where no file is configured. */
static err_code read_password(const config *c, char out[PASSWORD_MAX], err *e)
{
    char path[PATH_MAX];
    out[0] = 0;
    if (!c->storage_password_file[0]) return ERR_NONE;
    bool absolute = c->storage_password_file[0] == '/';
    snprintf(path, sizeof(path), "%s%s%s", absolute ? "" : c->data_dir, absolute ? "" : "/",
             c->storage_password_file);
    err_code rc = private_file_check(path, "storage.password_file", e);
    if (rc) return rc;
    FILE *f = fopen(path, "re");
    if (!f) return err_set(e, ERR_IO, "storage.password_file: %s", strerror(errno));
    bool whole = fgets(out, PASSWORD_MAX, f) != NULL && strlen(out) < PASSWORD_MAX - 1;
    (void)fclose(f);
    out[strcspn(out, "\r\n")] = 0;
    if (whole && out[0]) return ERR_NONE;
    return err_set(e, ERR_INPUT, "storage.password_file has no line of 1 to %d bytes",
                   PASSWORD_MAX - 2);
}

static err_code make(void *self, int node, journal **out, err *e)
{
    const config *c = self;
    char password[PASSWORD_MAX];
    err_code rc = read_password(c, password, e);
    if (!rc)
        rc = journal_postgres(c->storage_database, password[0] ? password : NULL, node, out, e);
    explicit_bzero(password, sizeof(password));
    return rc;
}

bool fleet_source(const config *c, journal_source *out)
{
    *out = (journal_source){make, (void *)(uintptr_t)c};
    return c->storage_database[0] != 0;
}
