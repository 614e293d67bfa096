/* faulty.c -- linked into lorad_faulty, the server of test_restart.py, and into nothing else: a
 * device that fails when told.
 *
 * The linker puts these two in place of the engine's own (--wrap).  $LORAD_TEST_FAULT names a
 * file: once it is there, the number in it tells how many more steps go well before one fails,
 * and the file is removed.  While a file of that name with .stays behind it is there, the
 * device can't be opened again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/backend.h"

err_code __real_be_sync(backend *be, err *e);
err_code __wrap_be_sync(backend *be, err *e);
err_code __real_be_reopen(backend *be, err *e);
err_code __wrap_be_reopen(backend *be, err *e);

static int steps_left = -1; /* engine thread */

static void look(void)
{
    const char *path = getenv("LORAD_TEST_FAULT");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return;
    if (fscanf(f, "%d", &steps_left) == 1) (void)unlink(path);
    (void)fclose(f);
}

err_code __wrap_be_sync(backend *be, err *e)
{
    err_code rc = __real_be_sync(be, e);
    if (steps_left < 0) look();
    if (steps_left < 0 || steps_left-- > 0) return rc;
    return err_set(e, ERR_DEVICE, "a fault was asked for");
}

err_code __wrap_be_reopen(backend *be, err *e)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s.stays", getenv("LORAD_TEST_FAULT"));
    if (access(path, F_OK) == 0) return err_set(e, ERR_DEVICE, "the device stays broken");
    return __real_be_reopen(be, e);
}
