/* retype.h -- an adapter's weights in types that the server does not keep, converted on the way in.
 *
 * PEFT loads any floating-point type into the parameters that it has made, which are F32.  So F64
 * becomes F32 here, and where A and B of a module differ in type, both become F32.  All other
 * tensors, the names and the configuration stay as they are.
 *
 * Threads: any thread; one conversion belongs to one.
 */
#ifndef ADAPTERS_FORMAT_RETYPE_H
#define ADAPTERS_FORMAT_RETYPE_H

#include <stdint.h>

#include "engine/base/err.h"

typedef struct retype retype;

/* Looks at the header of open weights, which are borrowed until retype_close().  *out NULL without
 * an error: all types stay.  ERR_CORRUPT: it is no safetensors file; ERR_LIMIT: it would be larger
 * than `max_bytes`. */
err_code retype_open(retype **out, int weights_fd, uint64_t max_bytes, err *e);
/* Of the weights to be written, nearly. */
uint64_t retype_bytes(const retype *r);
/* Writes both files, which are open and empty; the configuration is copied from `config_from`. */
err_code retype_write(const retype *r, int config_from, int config_fd, int weights_fd, err *e);
/* NULL is fine. */
void retype_close(retype *r);

#endif
