/* secret_file.c -- see secret_file.h. */
#include "gateway/start/secret_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/private_file.h"

err_code secret_file_read(const char *data_dir, const char *file, const char *option, char *out,
                          size_t cap, err *e)
{
    char path[PATH_MAX];
    bool absolute = file[0] == '/';
    snprintf(path, sizeof(path), "%s%s%s", absolute ? "" : data_dir, absolute ? "" : "/", file);
    err_code rc = private_file_check(path, option, e);
    if (rc) return rc;
    FILE *f = fopen(path, "re");
    if (!f) return err_set(e, ERR_IO, "%s: %s", option, strerror(errno));
    size_t n = fread(out, 1, cap, f);
    bool whole = !ferror(f) && n > 0 && n < cap;
    (void)fclose(f);
    out[n < cap ? n : 0] = 0;
    return whole ? ERR_NONE
                 : err_set(e, ERR_INPUT, "%s: the file must have 1 to %zu bytes", option, cap - 1);
}
