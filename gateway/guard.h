/* guard.h -- refuses requests that two HTTP parsers would read differently (RFC 9112).
 *
 * Looks at the parsed head alone: framing headers, Host, what may stand only once, the target's bytes.
 * The list with its reasons is in ARCHITECTURE.md.
 * Threads: any thread.
 */
#ifndef GATEWAY_GUARD_H
#define GATEWAY_GUARD_H

#include <stdbool.h>
#include <stdint.h>

struct mg_request_info;

/* NULL: fine, and *length (-1: none) and *chunked say how the body is framed.  Else what is wrong, a
 * static sentence, with the *status for it. */
const char *guard_check(const struct mg_request_info *ri, int *status, int64_t *length,
                        bool *chunked);

#endif
