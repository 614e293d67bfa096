/* fetch_headers.h -- the headers of a call by libcurl.
 *
 * Ownership: the caller frees the list with curl_slist_free_all().  Threads: any thread.
 */
#ifndef GATEWAY_FETCH_FETCH_HEADERS_H
#define GATEWAY_FETCH_FETCH_HEADERS_H

#include <stdbool.h>

#include <curl/curl.h>

#include "gateway/fetch/sigv4.h"

/* Appends one line, "Name: value"; the copy on the stack is erased, so it may hold a secret.
 * False: out of memory, or FETCH_HEADER_MAX bytes or more; the list is unchanged. */
bool fetch_add_header(struct curl_slist **list, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Appends the headers of a call that `key` signs now.  False: as above. */
bool fetch_sign(const sigv4_key *key, const sigv4_call *call, struct curl_slist **headers);

#endif
