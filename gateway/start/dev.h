/* dev.h -- lorad serve --dev: from a model's folder to a server that answers, in one command.
 *
 * Threads: the main thread.
 */
#ifndef GATEWAY_START_DEV_H
#define GATEWAY_START_DEV_H

#include "gateway/start/arguments.h"

typedef struct dev_folder {
    char file[PATH_MAX + 64]; /* its lorad.conf */
    char temporary[PATH_MAX]; /* the folder that dev_close() removes; empty: none */
} dev_folder;

/* Makes the data directory a->dir (without one: a folder of its own under $TMPDIR) with an admin
 * key, a tenant "dev" and a key of his, unless it is there from another time; prints what one needs
 * for the first request; a->file is its configuration from then on, kept by `d`. */
err_code dev_open(dev_folder *d, arguments *a, err *e);

/* Removes what was made for this one time.  Does nothing for a zeroed folder. */
void dev_close(dev_folder *d);

#endif
