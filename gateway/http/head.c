/* head.c -- parses a request head of HTTP/1.x, strictly.
 *
 *   [empty lines] method SP target SP version CRLF (name ":" value CRLF)* CRLF
 *
 * Lines are collected as pieces (begin, end) of the buffer. Only when the whole head is there and
 * valid does finish() write the NULs that turn them into strings, so the same buffer can be parsed
 * again after more bytes have come: 0 means incomplete. head_decided() is the same pass without
 * writing, for the lobby.
 *
 * Refused: bare LF, folded fields, white space before a colon, control characters, more than
 * HEAD_FIELDS_MAX fields or HEAD_BYTES_MAX bytes. A long first line is classified: no method (400),
 * unknown method (501), long target (414).
 *
 * An absolute target is reduced to path and query; its host must be valid and is otherwise ignored.
 *
 * Source: RFC 9112, sections 2 to 5. Threads: any; no state.
 */
#include "gateway/http/head.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include <civetweb.h>

#include "gateway/http/guard.h"

enum {
    EMPTY_LINES_MAX = 4, /* before the request line; some clients send one behind a body */
    VERSION_LEN = 8,     /* HTTP/1.1 */
    LINE_MAX_BYTES = HEAD_TARGET_MAX + 64,
};

_Static_assert(HEAD_FIELDS_MAX <= MG_MAX_HEADERS, "civetweb's table of fields is too short");

/* TRACE is known and never allowed (405). CONNECT is for proxies, so it is 501 like an unknown
 * method. */
static const char *const methods[] = {"GET",   "HEAD",   "POST",    "PUT",
                                      "PATCH", "DELETE", "OPTIONS", "TRACE"};

typedef struct {
    char *begin, *end; /* end: where the NUL will stand */
} piece;

typedef struct {
    piece method, target, version;
    piece name[HEAD_FIELDS_MAX], value[HEAD_FIELDS_MAX];
    int n;
} head;

static int refuse(head_refusal *r, int status, const char *why)
{
    *r = (head_refusal){status, why};
    return -1;
}

static bool is_token_byte(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(piece p)
{
    for (const char *c = p.begin; c < p.end; c++) {
        if (!is_token_byte(*c)) return false;
    }
    return p.begin < p.end;
}

static bool is(piece p, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(p.end - p.begin) == n && memcmp(p.begin, text, n) == 0;
}

/* ----------------------------------------------------------------- request line -- */

/* Classifies an overlong first line. */
static int refuse_endless_line(piece line, head_refusal *r)
{
    char *space = memchr(line.begin, ' ', (size_t)(line.end - line.begin));
    if (!is_token((piece){line.begin, space ? space : line.end})) {
        return refuse(r, 400, "the request line does not begin with a method");
    }
    if (!space) return refuse(r, 501, "no method has so long a name");
    return refuse(r, 414, "the request target is too long");
}

static int check_version(piece v, head_refusal *r)
{
    const char *p = v.begin;
    if (v.end - p != VERSION_LEN || memcmp(p, "HTTP/", 5) != 0 || !isdigit((unsigned char)p[5]) ||
        p[6] != '.' || !isdigit((unsigned char)p[7])) {
        return refuse(r, 400, "the request line does not end with a version of HTTP");
    }
    if (p[5] != '1') return refuse(r, 505, "only HTTP/1.1 and HTTP/1.0 are supported");
    return 0;
}

/* method SP target SP version, and nothing else. */
static int take_request_line(piece line, head *h, head_refusal *r)
{
    size_t len = (size_t)(line.end - line.begin);
    char *first = memchr(line.begin, ' ', len);
    char *last = memrchr(line.begin, ' ', len);
    h->method = (piece){line.begin, first ? first : line.end};
    if (!is_token(h->method)) {
        return refuse(r, 400, "the request line does not begin with a method");
    }
    if (!first || first == last) {
        return refuse(r, 400, "the request line is not a method, a target and a version");
    }
    h->target = (piece){first + 1, last};
    h->version = (piece){last + 1, line.end};
    if (h->target.begin >= h->target.end) return refuse(r, 400, "the request target is missing");
    for (const char *p = h->target.begin; p < h->target.end; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f) {
            return refuse(r, 400, "a byte is not allowed at its place in the request target");
        }
    }
    if (check_version(h->version, r) < 0) return -1;
    if (h->target.end - h->target.begin > HEAD_TARGET_MAX) {
        return refuse(r, 414, "the request target is too long");
    }
    return 0;
}

/* ----------------------------------------------------------------------- fields -- */

static int take_field(piece line, head *h, head_refusal *r)
{
    if (*line.begin == ' ' || *line.begin == '\t') {
        return refuse(r, 400,
                      h->n ? "a field is folded over two lines"
                           : "there is white space before the first field");
    }
    char *colon = memchr(line.begin, ':', (size_t)(line.end - line.begin));
    if (!colon) return refuse(r, 400, "a field has no colon");
    piece name = {line.begin, colon}, value = {colon + 1, line.end};
    if (!is_token(name)) return refuse(r, 400, "the name of a field is not a token");
    for (const char *p = value.begin; p < value.end; p++) {
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f) {
            return refuse(r, 400, "there is a control character in a field");
        }
    }
    while (value.begin < value.end && (*value.begin == ' ' || *value.begin == '\t')) value.begin++;
    while (value.end > value.begin && (value.end[-1] == ' ' || value.end[-1] == '\t')) value.end--;
    if (h->n == HEAD_FIELDS_MAX) return refuse(r, 431, "there are too many header fields");
    h->name[h->n] = name;
    h->value[h->n++] = value;
    return 0;
}

/* ----------------------------------------------------------------------- target -- */

/* Behind "http://" or "https://"; NULL: no such scheme. */
static char *authority_of(piece target)
{
    static const char *const schemes[] = {"https://", "http://"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if ((size_t)(target.end - target.begin) >= n &&
            strncasecmp(target.begin, schemes[i], n) == 0) {
            return target.begin + n;
        }
    }
    return NULL;
}

/* Reduces the four forms of RFC 9112, 3.2 to a path and a query. */
static int take_target(head *h, struct mg_request_info *ri, head_refusal *r)
{
    char *at = h->target.begin, *end = h->target.end;
    bool options = is(h->method, "OPTIONS");
    if (*at != '/' && !(options && is(h->target, "*"))) {
        char *authority = authority_of(h->target);
        if (!authority) return refuse(r, 400, "the request target must be a path");
        for (at = authority; at < end && *at != '/' && *at != '?';) at++;
        if (!guard_host_valid(authority, (size_t)(at - authority))) {
            return refuse(r, 400, "the host in the request target is invalid");
        }
    }
    char *query = memchr(at, '?', (size_t)(end - at));
    *end = 0;
    if (query) *query = 0;
    ri->query_string = query ? query + 1 : NULL;
    ri->request_uri = *at ? at : options && !query ? "*" : "/";
    return 0;
}

/* ------------------------------------------------------------------------ whole -- */

static int take_method(const head *h, struct mg_request_info *ri, head_refusal *r)
{
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        if (!is(h->method, methods[i])) continue;
        ri->request_method = methods[i];
        return 0;
    }
    return refuse(r, 501, "the method is not implemented here");
}

static int finish(head *h, struct mg_request_info *ri, head_refusal *r)
{
    if (take_method(h, ri, r) < 0 || take_target(h, ri, r) < 0) return -1;
    /* A minor version to come is the highest that is known (RFC 9110, 2.5). */
    ri->http_version = h->version.begin[7] == '0' ? "1.0" : "1.1";
    for (int i = 0; i < h->n; i++) {
        *h->name[i].end = 0;
        *h->value[i].end = 0;
        ri->http_headers[i] = (struct mg_header){h->name[i].begin, h->value[i].begin};
    }
    ri->num_headers = h->n;
    return 1;
}

/* Takes the next line; 1: taken, 0: it is not there yet, -1: refused. */
static int next_line(char **at, char *end, piece *line, head_refusal *r)
{
    char *lf = memchr(*at, '\n', (size_t)(end - *at));
    if (!lf) return 0;
    if (lf == *at || lf[-1] != '\r') return refuse(r, 400, "a line does not end in CR LF");
    *line = (piece){*at, lf - 1};
    *at = lf + 1;
    return 1;
}

static int skip_empty_lines(char **at, char *end, head_refusal *r)
{
    for (int n = 0; end - *at >= 2 && (*at)[0] == '\r' && (*at)[1] == '\n'; n++) {
        if (n == EMPTY_LINES_MAX) return refuse(r, 400, "there is no request line");
        *at += 2;
    }
    return 0;
}

/* 1: all lines are there and fine. */
static int take_lines(char *buf, char **at, char *end, head *h, head_refusal *r)
{
    piece line;
    if (skip_empty_lines(at, end, r) < 0) return -1;
    char *begin = *at;
    int got = next_line(at, end, &line, r);
    if (got < 0) return -1;
    if (!got) line = (piece){begin, end};
    if (line.end - line.begin > LINE_MAX_BYTES) return refuse_endless_line(line, r);
    if (!got) {
        bool odd = begin < end && *begin != '\r' && !is_token_byte(*begin);
        return odd ? refuse(r, 400, "the request line does not begin with a method") : 0;
    }
    if (take_request_line(line, h, r) < 0) return -1;
    while ((got = next_line(at, end, &line, r)) > 0) {
        if (*at - buf > HEAD_BYTES_MAX) break;
        if (line.begin == line.end) return 1;
        if (take_field(line, h, r) < 0) return -1;
    }
    if (got < 0) return -1;
    if (got > 0 || end - buf >= HEAD_BYTES_MAX) {
        return refuse(r, 431, "the header fields are too large");
    }
    return 0;
}

int head_parse(char *buf, int len, struct mg_request_info *ri, head_refusal *r)
{
    head h = {.n = 0};
    char *at = buf;
    int got = take_lines(buf, &at, buf + len, &h, r);
    if (got > 0) got = finish(&h, ri, r);
    if (got < 0) ri->request_method = is(h.method, "HEAD") ? "HEAD" : NULL;
    return got > 0 ? (int)(at - buf) : got;
}

bool head_decided(const char *buf, int len)
{
    head h = {.n = 0};
    head_refusal r;
    char *begin = (char *)(uintptr_t)buf, *at = begin;
    return take_lines(begin, &at, begin + len, &h, &r) != 0;
}
