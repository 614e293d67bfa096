/* guard.c -- checks of a parsed request head that prevent request smuggling.
 *
 * Two parties that read the same bytes differently make smuggling possible, so everything ambiguous
 * is refused instead of repaired:
 *
 *   framing      Content-Length and Transfer-Encoding at most once, never both; a number of digits
 *                only; chunked as the only coding
 *   Host         exactly one (HTTP/1.0: at most one), a valid name, IPv4 or IPv6 address and port
 *   credentials  Authorization, api-key, x-api-key: each at most once
 *   target       a path (or * with OPTIONS), no control bytes, valid percent escapes, no %00
 *   the rest     HTTP/1.0 or 1.1, no Content-Encoding, no expectation but 100-continue
 *
 * guard_check() returns NULL or a constant sentence for the client, with its status.
 * guard_forget_keys() wipes the credentials from the buffer once they are checked.
 *
 * Source: RFC 9112, sections 3.2, 6.1 and 6.3; RFC 9110. Threads: the worker that has the request.
 */
#include "gateway/http/guard.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <civetweb.h>

enum { HOST_MAX = 255, PORT_DIGITS_MAX = 5 };

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

/* Takes the next member of a comma-separated list, without surrounding white space; false: none is
 * left. */
static bool next_member(const char **list, const char **member, size_t *len)
{
    const char *p = *list;
    p += strspn(p, ", \t");
    if (!*p) return false;
    size_t n = strcspn(p, ",");
    *list = p + n;
    while (n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\t')) n--;
    *member = p;
    *len = n;
    return true;
}

static bool same_word(const char *member, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(member, word, len) == 0;
}

/* ------------------------------------------------------------------------- Host -- */

/* `s` need not end in a NUL. */
static bool port_valid(const char *s, size_t len)
{
    int port = 0;
    if (len > PORT_DIGITS_MAX) return false;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)s[i])) return false;
        port = port * 10 + (s[i] - '0');
    }
    return port <= 65535;
}

static bool name_valid(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        bool empty_label = s[i] == '.' && (i == 0 || s[i - 1] == '.');
        if (empty_label || !s[i] || !(isalnum((unsigned char)s[i]) || strchr("-._", s[i]))) {
            return false;
        }
    }
    return len > 0 && len <= HOST_MAX;
}

static bool ipv6_valid(const char *s, size_t len)
{
    char text[INET6_ADDRSTRLEN];
    struct in6_addr out;
    if (len >= sizeof(text)) return false;
    memcpy(text, s, len);
    text[len] = 0;
    return inet_pton(AF_INET6, text, &out) == 1;
}

bool guard_host_valid(const char *s, size_t len)
{
    const char *end = s + len, *port = end;
    bool ok;
    if (len > 0 && *s == '[') {
        const char *close = memchr(s, ']', len);
        if (!close) return false;
        ok = ipv6_valid(s + 1, (size_t)(close - s - 1));
        port = close + 1;
    } else {
        const char *colon = memchr(s, ':', len);
        if (colon) port = colon;
        ok = name_valid(s, (size_t)(port - s));
    }
    if (!ok || port == end) return ok;
    return *port == ':' && port_valid(port + 1, (size_t)(end - port - 1));
}

static const char *check_host(const struct mg_request_info *ri, bool http10)
{
    const char *host = NULL;
    int n = count_header(ri, "Host", &host);
    if (n > 1) return "two Host headers";
    if (n == 0) return http10 ? NULL : "the Host header is missing";
    return guard_host_valid(host, strlen(host)) ? NULL : "the Host header names no host";
}

/* ---------------------------------------------------------------------- framing -- */

/* Without chunked at the end the body's length is undefined (RFC 9112, 6.1, 6.3). */
static const char *check_codings(const char *te, int *status)
{
    const char *at = te, *member;
    size_t len;
    int n = 0, n_chunked = 0;
    bool last = false;
    while (next_member(&at, &member, &len)) {
        last = same_word(member, len, "chunked");
        n_chunked += last;
        n++;
    }
    if (!last || n_chunked > 1) return "Transfer-Encoding must be chunked";
    if (n > 1) {
        *status = 501;
        return "of the transfer codings only chunked is implemented";
    }
    return te[strlen("chunked")] ? "Transfer-Encoding must be chunked" : NULL;
}

static const char *check_framing(const struct mg_request_info *ri, bool http10, int *status,
                                 int64_t *length, bool *chunked)
{
    const char *cl = NULL, *te = NULL;
    int n_cl = count_header(ri, "Content-Length", &cl);
    int n_te = count_header(ri, "Transfer-Encoding", &te);
    if (n_cl > 1 || n_te > 1) return "a framing header appears twice";
    if (n_cl && n_te) return "Content-Length and Transfer-Encoding exclude each other";
    if (n_cl && !all_digits(cl)) return "Content-Length is not a number";
    if (n_te && http10) return "HTTP/1.0 has no Transfer-Encoding";
    const char *wrong = n_te ? check_codings(te, status) : NULL;
    if (wrong) return wrong;
    if (n_cl) *length = strtoll(cl, NULL, 10);
    *chunked = n_te > 0;
    return NULL;
}

/* ----------------------------------------------------------------------- target -- */

static const char *check_target(const char *s)
{
    for (const char *p = s; *p; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || *p == '#') {
            return "a byte is not allowed at its place in the request target";
        }
        if (*p != '%') continue;
        if (!isxdigit((unsigned char)p[1]) || !isxdigit((unsigned char)p[2])) {
            return "a percent sign in the request target is not followed by two hex digits";
        }
        if (p[1] == '0' && p[2] == '0') return "there is a NUL in the request target";
    }
    return NULL;
}

static const char *check_form(const struct mg_request_info *ri)
{
    const char *uri = ri->request_uri ? ri->request_uri : "";
    bool options = ri->request_method && strcmp(ri->request_method, "OPTIONS") == 0;
    if (uri[0] != '/' && !(options && strcmp(uri, "*") == 0)) {
        return "the request target must be a path";
    }
    const char *wrong = check_target(uri);
    return !wrong && ri->query_string ? check_target(ri->query_string) : wrong;
}

/* ------------------------------------------------------------------------- whole -- */

/* Fields that can carry a key (gateway/auth.c). */
static const struct {
    const char *name, *twice;
} credentials[] = {{"Authorization", "two Authorization headers"},
                   {"api-key", "two api-key headers"},
                   {"x-api-key", "two x-api-key headers"}};
enum { CREDENTIALS = sizeof(credentials) / sizeof(credentials[0]) };

static const char *check_once(const struct mg_request_info *ri)
{
    const char *ignored;
    for (int i = 0; i < CREDENTIALS; i++) {
        if (count_header(ri, credentials[i].name, &ignored) > 1) return credentials[i].twice;
    }
    if (count_header(ri, "Content-Type", &ignored) > 1) return "two Content-Type headers";
    return NULL;
}

void guard_forget_keys(const struct mg_request_info *ri)
{
    for (int i = 0; i < ri->num_headers; i++) {
        for (int k = 0; k < CREDENTIALS; k++) {
            if (strcasecmp(ri->http_headers[i].name, credentials[k].name) != 0) continue;
            char *value = (char *)(uintptr_t)ri->http_headers[i].value; /* of civetweb's buffer */
            explicit_bzero(value, strlen(value));
        }
    }
}

/* A client must not wait for an expectation that we do not know; HTTP/1.0 has none. */
static bool expects_too_much(const struct mg_request_info *ri, bool http10)
{
    for (int i = 0; !http10 && i < ri->num_headers; i++) {
        const struct mg_header *h = &ri->http_headers[i];
        if (strcasecmp(h->name, "Expect") == 0 && strcasecmp(h->value, "100-continue") != 0) {
            return true;
        }
    }
    return false;
}

const char *guard_check(const struct mg_request_info *ri, int *status, int64_t *length,
                        bool *chunked)
{
    const char *version = ri->http_version ? ri->http_version : "", *coding = NULL;
    bool http10 = strcmp(version, "1.0") == 0;
    *status = 400;
    *length = -1;
    *chunked = false;
    if (!http10 && strcmp(version, "1.1") != 0) {
        *status = 505;
        return "only HTTP/1.1 and HTTP/1.0 are supported";
    }
    const char *wrong = check_framing(ri, http10, status, length, chunked);
    if (!wrong) wrong = check_host(ri, http10);
    if (!wrong) wrong = check_once(ri);
    if (!wrong) wrong = check_form(ri);
    if (wrong) return wrong;
    if (count_header(ri, "Content-Encoding", &coding) > 0 && strcasecmp(coding, "identity") != 0) {
        *status = 415;
        return "a Content-Encoding is not supported";
    }
    if (expects_too_much(ri, http10)) {
        *status = 417;
        return "only 100-continue may be expected";
    }
    return NULL;
}

bool guard_keeps_alive(const struct mg_request_info *ri)
{
    bool keep = ri->http_version && strcmp(ri->http_version, "1.1") == 0;
    for (int i = 0; i < ri->num_headers; i++) {
        if (strcasecmp(ri->http_headers[i].name, "Connection") != 0) continue;
        const char *at = ri->http_headers[i].value, *member;
        size_t len;
        while (next_member(&at, &member, &len)) {
            if (same_word(member, len, "close")) return false;
            if (same_word(member, len, "keep-alive")) keep = true;
        }
    }
    return keep;
}
