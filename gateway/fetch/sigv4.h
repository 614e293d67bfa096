/* sigv4.h -- AWS Signature Version 4 for calls of an S3 API (AWS, "Authenticating Requests").
 *
 * Threads: any; nothing is kept.
 */
#ifndef GATEWAY_FETCH_SIGV4_H
#define GATEWAY_FETCH_SIGV4_H

#include <stdbool.h>
#include <time.h>

typedef struct sigv4_key {
    const char *id, *secret, *session; /* session: NULL where there is no token */
    const char *region;
} sigv4_key;

enum { SIGV4_HEADER_MAX = 1024, SIGV4_DATE_MAX = 17, SIGV4_PATH_MAX = 3 * 1024 };

/* The path ("/bucket/a b") as it is signed and asked for: all but unreserved characters and '/' as
 * %XX, once.  False: no room. */
bool sigv4_path(const char *path, char *out, size_t cap);

#define SIGV4_UNSIGNED "UNSIGNED-PAYLOAD"

typedef struct sigv4_call {
    const char *method;
    const char *host;    /* as the Host header says it */
    const char *path;    /* from sigv4_path() */
    const char *payload; /* the body's SHA-256 in hexadecimal digits, or SIGV4_UNSIGNED */
} sigv4_call;

/* Of a call without a query: the value of Authorization, and of x-amz-date.  x-amz-content-sha256
 * must be sent as the payload, the session as x-amz-security-token.  False: a part is too
 * long. */
bool sigv4_authorize(const sigv4_key *key, const sigv4_call *call, time_t now,
                     char authorization[SIGV4_HEADER_MAX], char date[SIGV4_DATE_MAX]);

#endif
