/* init.h -- what a server needs before its first start; behind lorad init and serve --dev.
 *
 * Threads: the main thread.
 */
#ifndef GATEWAY_START_INIT_H
#define GATEWAY_START_INIT_H

#include "gateway/start/arguments.h"
#include "storage/keys.h"

typedef struct init_made {
    config config;                            /* as it was written */
    char file[PATH_MAX + 64], cert[PATH_MAX]; /* lorad.conf; the certificate */
    char key[KEY_TEXT_LEN + 1]; /* the operator's; undefined in a fleet.  The caller wipes it */
} init_made;

/* Makes a->dir with a certificate, a database, an admin key and a configuration of a->model,
 * a->join and --set.  Nothing is overwritten: ERR_EXISTS where one of them is there. */
err_code init_make(const arguments *a, init_made *made, err *e);

#endif
