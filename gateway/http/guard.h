/* guard.h -- refuses requests that two HTTP parsers would read differently (RFC 9110, 9112).
 *
 * Looks at the parsed head alone (head.h): framing fields, Host, what may stand only once, Expect,
 * the target's bytes.  The list with its reasons is in docs/design/http.md.
 * Threads: any thread.
 */
#ifndef GATEWAY_HTTP_GUARD_H
#define GATEWAY_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mg_request_info;

/* NULL: fine, and *length (-1: none) and *chunked say how the body is framed.  Else what is wrong,
 * a static sentence, with the *status for it. */
const char *guard_check(const struct mg_request_info *ri, int *status, int64_t *length,
                        bool *chunked);

/* A host name, an IPv4 address or an [IPv6 address], with a port or without. */
bool guard_host_valid(const char *s, size_t len);

/* Does the client want the connection to stay (RFC 9112, 9.3)? */
bool guard_keeps_alive(const struct mg_request_info *ri);

/* Overwrites every key among the headers: the request is answered, and its buffer lives on. */
void guard_forget_keys(const struct mg_request_info *ri);

#endif
