/* private_file.h -- files that hold secrets: nobody else may read them.
 *
 * Threads: any thread.
 */
#ifndef ENGINE_BASE_PRIVATE_FILE_H
#define ENGINE_BASE_PRIVATE_FILE_H

#include <stdbool.h>

#include "engine/base/err.h"

/* A file that somebody else wrote, as a private key: refused (ERR_INPUT) if other users may read or
 * write it.  The owner's group may read it where root owns it, as packages and mounted secrets have
 * it.  A file that is not there is fine.  `what` names it: "the private key (server.tls_key)". */
err_code private_file_check(const char *path, const char *what, err *e);

/* A file of our own, as the database: made if `create`, and mode 0600 from here on, with
 * a line in the log if it was not.  ERR_IO: it cannot be made so.  A file that is not
 * there is fine unless `create`. */
err_code private_file_secure(const char *path, bool create, err *e);

#endif
