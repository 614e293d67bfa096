/* arguments.h -- what stands behind a verb on lorad's command line, and the configuration
 * that follows from it.
 *
 * Threads: the main thread.
 */
#ifndef GATEWAY_START_ARGUMENTS_H
#define GATEWAY_START_ARGUMENTS_H

#include <limits.h>
#include <stdbool.h>

#include "engine/base/err.h"
#include "gateway/config/config.h"
#include "gateway/net/tls.h"

enum { EXIT_USAGE = 2, SETS_MAX = 64 };

typedef struct arguments {
    const char *file, *dir, *model, *to, *join, *admin_key_file, *plan;
    bool admin, fresh, dev, diff, deep, file_given; /* --admin, --new, --dev, --diff, --deep, -c */
    const char *sets[SETS_MAX];                     /* section.key=value */
    int n_sets;
} arguments;

/* False: it has been told why not. */
bool arguments_parse(arguments *a, int argc, char **argv);

/* Defaults, the file, the environment, --set, in this order; checked. */
err_code arguments_config(const arguments *a, config *c, err *e);

/* The paths of TLS's files, relative ones in the data directory; what it gives points into
 * the three. */
tls_files arguments_tls(const config *c, char cert[PATH_MAX], char key[PATH_MAX],
                        char ca[PATH_MAX]);

/* Says it as programs do; EXIT_FAILURE. */
int arguments_fail(const err *e);

#endif
