/* guard.c -- one pass over the headers for each thing that may stand only once. */
#include "gateway/guard.h"

#include <stdlib.h>
#include <string.h>

#include <civetweb.h>

static int count_header(const struct mg_request_info *ri, const char *name, const char **value)
{
    int n = 0;
    for (int i = 0; i < ri->num_headers; i++) {
        if (strcasecmp(ri->http_headers[i].name, name) != 0) continue;
        *value = ri->http_headers[i].value;
        n++;
    }
    return n;
}

static bool all_digits(const char *s)
{
    size_t n = strlen(s);
    return n >= 1 && n <= 15 && strspn(s, "0123456789") == n;
}

const char *guard_check(const struct mg_request_info *ri, int *status, int64_t *length,
                        bool *chunked)
{
    const char *cl = NULL, *te = NULL, *other = NULL;
    *status = 400;
    *length = -1;
    *chunked = false;
    const char *version = ri->http_version ? ri->http_version : "";
    if (strcmp(version, "1.1") != 0 && strcmp(version, "1.0") != 0) {
        *status = 505;
        return "only HTTP/1.1 and HTTP/1.0 are spoken here";
    }
    int n_cl = count_header(ri, "Content-Length", &cl);
    int n_te = count_header(ri, "Transfer-Encoding", &te);
    if (n_cl > 1 || n_te > 1) return "a framing header appears twice";
    if (n_cl && n_te) return "Content-Length and Transfer-Encoding exclude each other";
    if (n_cl && !all_digits(cl)) return "Content-Length is not a number";
    if (n_te && strcasecmp(te, "chunked") != 0) return "Transfer-Encoding must be chunked";
    if (n_te && strcmp(version, "1.0") == 0) return "HTTP/1.0 has no Transfer-Encoding";
    int n_host = count_header(ri, "Host", &other);
    if (n_host > 1) return "two Host headers";
    if (n_host == 0 && strcmp(version, "1.1") == 0) return "the Host header is missing";
    if (count_header(ri, "Authorization", &other) > 1) return "two Authorization headers";
    if (count_header(ri, "api-key", &other) > 1) return "two api-key headers";
    if (count_header(ri, "x-api-key", &other) > 1) return "two x-api-key headers";
    if (count_header(ri, "Content-Type", &other) > 1) return "two Content-Type headers";
    if (count_header(ri, "Content-Encoding", &other) > 0 && strcasecmp(other, "identity") != 0) {
        *status = 415;
        return "a Content-Encoding is not supported";
    }
    const char *uri = ri->request_uri ? ri->request_uri : "";
    if (uri[0] != '/') return "the request target must be a path";
    for (const char *p = uri; *p; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f) return "a byte of the path";
    }
    if (n_cl) *length = strtoll(cl, NULL, 10);
    *chunked = n_te > 0;
    return NULL;
}
