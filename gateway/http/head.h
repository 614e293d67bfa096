/* head.h -- the head of an HTTP/1.1 request: bytes to fields, or the answer that they get.
 *
 * RFC 9112, sections 2 to 5, with no leniency: lines end in CR LF, single spaces in the request
 * line, names are tokens, no line is folded.  What the fields mean together is guard.h's.
 * Everything that civetweb would parse is parsed here instead, so that each refusal has its status.
 *
 * Ownership: the fields point into the caller's buffer.  Threads: any thread; knows no socket.
 */
#ifndef GATEWAY_HTTP_HEAD_H
#define GATEWAY_HTTP_HEAD_H

#include <stdbool.h>

struct mg_request_info;

enum {
    HEAD_BYTES_MAX = 32768, /* request line and fields together; 431 beyond */
    HEAD_TARGET_MAX = 8192, /* 414 beyond */
    HEAD_FIELDS_MAX = 64,   /* civetweb's table; 431 beyond */
};

typedef struct head_refusal {
    int status;
    const char *why; /* a static sentence */
} head_refusal;

/* What `len` bytes from the beginning of a connection, or behind the last request, come to.
 * Above 0: the length of a whole head, and *ri has method, request_uri (the path alone, or "*"),
 *   query_string, http_version ("1.0" or "1.1") and the fields; NULs have been written into buf.
 * 0: more must come; buf is as it was.  Below 0: *r says why it is refused, as early as that can be
 * known; ri->request_method is set where
 *   it is HEAD, whose refusal has no body, else it is NULL. */
int head_parse(char *buf, int len, struct mg_request_info *ri, head_refusal *r);

/* Whether head_parse() has a verdict: the head is whole, or refused.  Changes nothing in buf. */
bool head_decided(const char *buf, int len);

#endif
