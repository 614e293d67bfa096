/* http_status.h -- how an err_code looks in HTTP: the only place that knows. */
#ifndef GATEWAY_HTTP_HTTP_STATUS_H
#define GATEWAY_HTTP_HTTP_STATUS_H

#include "engine/base/err.h"

typedef struct http_status {
    int status;
    const char *type, *code; /* of OpenAI's error object */
} http_status;

/* The status, type and code that an error is told by; 500 for one without a row. Static, never
 * NULL. */
const http_status *http_status_of(err_code code);

/* The words behind a status ("Not Found"); static. */
const char *http_reason(int status);

/* What llm-d's router says in x-llm-d-request-dropped-reason for an answer like ours with this
 * code; NULL: nothing was dropped. */
const char *http_dropped_reason(int status, const char *code);

/* The `code` of a request that is refused for its form (head.h, guard.h). */
const char *http_code(int status);

enum { HTTP_DATE_BYTES = 32 };

/* The time now, as in "Date:" (RFC 9110, 6.6.1 and 5.6.7). */
void http_date(char out[HTTP_DATE_BYTES]);

#endif
