/* secret_file.h -- a file with secrets that an option names.
 *
 * Threads: any.
 */
#ifndef GATEWAY_START_SECRET_FILE_H
#define GATEWAY_START_SECRET_FILE_H

#include <stddef.h>

#include "engine/base/err.h"

/* Its text; a relative path is relative to data_dir.  `option` names it in errors.
 *   ERR_INPUT  others may read it, it is empty, or it has `cap` bytes or more
 *   ERR_IO     it cannot be read */
err_code secret_file_read(const char *data_dir, const char *file, const char *option, char *out,
                          size_t cap, err *e);

#endif
