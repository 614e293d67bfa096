/* devcert.h -- a certificate for development: localhost, 127.0.0.1 and ::1, 397 days; of an
 * authority of its own, ten years, which clients trust.
 *
 * Threads: start-up only.
 */
#ifndef GATEWAY_NET_DEVCERT_H
#define GATEWAY_NET_DEVCERT_H

#include "engine/base/err.h"

/* Writes both files (PEM; the key with mode 0600).  ERR_EXISTS rather than overwrite. */
err_code devcert_write(const char *cert_path, const char *key_path, err *e);

/* The same certificate anew, with the key and, as long as it lasts, the authority that it has, in
 * the place of the old one.  ERR_CONFLICT: it is not one that devcert_write() has made, or it is of
 * another key. */
err_code devcert_renew(const char *cert_path, const char *key_path, err *e);

#endif
