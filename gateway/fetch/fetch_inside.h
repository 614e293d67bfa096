/* fetch_inside.h -- headers of a call by libcurl, for fetch.c and bucket.c.  Private to them. */
#ifndef GATEWAY_FETCH_FETCH_INSIDE_H
#define GATEWAY_FETCH_FETCH_INSIDE_H

#include <stdbool.h>

#include <curl/curl.h>

#include "gateway/fetch/sigv4.h"

/* False: out of memory, or too long. */
bool fetch_add_header(struct curl_slist **list, const char *name, const char *value);
/* Those of a signed call, as of now. */
bool fetch_sign(const sigv4_key *key, const sigv4_call *call, struct curl_slist **headers);

#endif
