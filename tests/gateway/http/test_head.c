/* test_head.c -- heads of requests, whole, in pieces and broken: what they come to, and when. */
#include <stdlib.h>
#include <string.h>

#include <check.h>
#include <civetweb.h>

#include "gateway/http/head.h"
#include "tests/run_suite.h"

#define F "Host: a\r\n\r\n"

/* ---- whole heads ---------------------------------------------------------------------------- */

static const struct {
    const char *text, *method, *path, *query, *version, *fields; /* "name=value|" */
} good[] = {
    {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET", "/", NULL, "1.1", "Host=a|"},
    {"GET / HTTP/1.0\r\n\r\n", "GET", "/", NULL, "1.0", ""},
    {"\r\n\r\nHEAD /a HTTP/1.1\r\n" F, "HEAD", "/a", NULL, "1.1", "Host=a|"},
    {"PUT /a?b=c?d HTTP/1.9\r\n" F, "PUT", "/a", "b=c?d", "1.1", "Host=a|"},
    {"PATCH /? HTTP/1.1\r\n" F, "PATCH", "/", "", "1.1", "Host=a|"},
    {"TRACE / HTTP/1.1\r\n" F, "TRACE", "/", NULL, "1.1", "Host=a|"},
    {"OPTIONS * HTTP/1.1\r\n" F, "OPTIONS", "*", NULL, "1.1", "Host=a|"},
    {"OPTIONS http://a:80 HTTP/1.1\r\n" F, "OPTIONS", "*", NULL, "1.1", "Host=a|"},
    {"GET https://a HTTP/1.1\r\n" F, "GET", "/", NULL, "1.1", "Host=a|"},
    {"GET HTTPS://[::1]:8443/v1?x HTTP/1.1\r\n" F, "GET", "/v1", "x", "1.1", "Host=a|"},
    {"GET http://a?x=/y HTTP/1.1\r\n" F, "GET", "/", "x=/y", "1.1", "Host=a|"},
    {"GET /http://a HTTP/1.1\r\n" F, "GET", "/http://a", NULL, "1.1", "Host=a|"},
    {"GET / HTTP/1.1\r\na:b\r\nA: \tb c\t \r\n!#$%&'*+-.^_`|~1:\xff\r\nx:\r\n\r\n", "GET", "/",
     NULL, "1.1", "a=b|A=b c|!#$%&'*+-.^_`|~1=\xff|x=|"},
};

static const char *fields_of(const struct mg_request_info *ri)
{
    static char out[512];
    out[0] = 0;
    for (int i = 0; i < ri->num_headers; i++) {
        size_t n = strlen(out);
        snprintf(out + n, sizeof(out) - n, "%s=%s|", ri->http_headers[i].name,
                 ri->http_headers[i].value);
    }
    return out;
}

START_TEST(a_whole_head)
{
    struct mg_request_info ri = {0};
    head_refusal r;
    int len = (int)strlen(good[_i].text);
    for (int behind = 0; behind < 2; behind++) { /* alone, and with a body behind it */
        char *buf = malloc((size_t)len + 4);
        memcpy(buf, good[_i].text, (size_t)len);
        memcpy(buf + len, "\nGET", 4);
        ck_assert_int_eq(head_parse(buf, len + 4 * behind, &ri, &r), len);
        ck_assert_str_eq(ri.request_method, good[_i].method);
        ck_assert_str_eq(ri.request_uri, good[_i].path);
        ck_assert_pstr_eq(ri.query_string, good[_i].query);
        ck_assert_str_eq(ri.http_version, good[_i].version);
        ck_assert_str_eq(fields_of(&ri), good[_i].fields);
        ck_assert(memcmp(buf + len, "\nGET", 4) == 0);
        free(buf);
    }
}
END_TEST

/* However much of it has come: nothing is refused, nothing is written. */
START_TEST(a_head_in_pieces)
{
    struct mg_request_info ri = {0};
    head_refusal r;
    int len = (int)strlen(good[_i].text);
    for (int n = 0; n < len; n++) {
        char *buf = malloc((size_t)n + 1); /* so that a sanitizer sees a read behind it */
        memcpy(buf, good[_i].text, (size_t)n);
        ck_assert_int_eq(head_parse(buf, n, &ri, &r), 0);
        ck_assert(memcmp(buf, good[_i].text, (size_t)n) == 0);
        free(buf);
    }
}
END_TEST

/* ---- broken ones ---------------------------------------------------------------------------- */

static const struct {
    const char *text;
    int status;
} bad[] = {
    {" GET / HTTP/1.1\r\n" F, 400},
    {"\nGET / HTTP/1.1\r\n" F, 400},
    {"\r\n\r\n\r\n\r\n\r\n", 400},
    {"\x16\x03\x01", 400},
    {"G\x01T / HTTP/1.1\r\n" F, 400},
    {"GET(/) / HTTP/1.1\r\n" F, 400},
    {"GET  / HTTP/1.1\r\n" F, 400},
    {"GET /  HTTP/1.1\r\n" F, 400},
    {"GET / HTTP/1.1 \r\n" F, 400},
    {"GET\t/ HTTP/1.1\r\n" F, 400},
    {"GET /a b HTTP/1.1\r\n" F, 400},
    {"GET /\x01 HTTP/1.1\r\n" F, 400},
    {"GET /\xc3\xa4 HTTP/1.1\r\n" F, 400},
    {"GET /\r\n", 400},
    {"GET\r\n", 400},
    {"GET / HTTP/1.1\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\n", 400},
    {"GET / HTTP/1.1\r\nHost: a\rb\r\n", 400},
    {"GET / http/1.1\r\n" F, 400},
    {"GET / HTTP/11\r\n" F, 400},
    {"GET / HTTP/1.10\r\n" F, 400},
    {"GET / HTTP/1,1\r\n" F, 400},
    {"GET / HTTPS/1.1\r\n" F, 400},
    {"GET / HTTP/2.0\r\n" F, 505},
    {"GET / HTTP/0.9\r\n" F, 505},
    {"BREW / HTTP/1.1\r\n" F, 501},
    {"get / HTTP/1.1\r\n" F, 501},
    {"CONNECT a:443 HTTP/1.1\r\n" F, 501},
    {"GET * HTTP/1.1\r\n" F, 400},
    {"GET a HTTP/1.1\r\n" F, 400},
    {"GET a:443 HTTP/1.1\r\n" F, 400},
    {"GET ftp://a/ HTTP/1.1\r\n" F, 400},
    {"GET http:///a HTTP/1.1\r\n" F, 400},
    {"GET http://u@a/ HTTP/1.1\r\n" F, 400},
    {"GET http://a:x/ HTTP/1.1\r\n" F, 400},
    {"GET http:/a/ HTTP/1.1\r\n" F, 400},
    {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n\tHost: a\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nX: a\r\n b\r\n" F, 400},
    {"GET / HTTP/1.1\r\nX\r\n" F, 400},
    {"GET / HTTP/1.1\r\n: a\r\n" F, 400},
    {"GET / HTTP/1.1\r\nX : a\r\n" F, 400},
    {"GET / HTTP/1.1\r\nX(: a\r\n" F, 400},
    {"GET / HTTP/1.1\r\nX\xc3: a\r\n" F, 400},
    {"GET / HTTP/1.1\r\nX: a\x01\r\n" F, 400},
    {"GET / HTTP/1.1\r\nX: a\x7f\r\n" F, 400},
};

static int refused(char *buf, int len)
{
    struct mg_request_info ri = {0};
    head_refusal r = {0, NULL};
    ck_assert_int_lt(head_parse(buf, len, &ri, &r), 0);
    ck_assert(r.why && r.why[0] && strlen(r.why) < 100);
    return r.status;
}

START_TEST(a_broken_head)
{
    char buf[256];
    snprintf(buf, sizeof(buf), "%s", bad[_i].text);
    ck_assert_int_eq(refused(buf, (int)strlen(buf)), bad[_i].status);
}
END_TEST

START_TEST(a_nul_ends_nothing)
{
    char head[] = "GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", line[] = "GET /\0 HTTP/1.1\r\n\r\n";
    ck_assert_int_eq(refused(head, (int)sizeof(head) - 1), 400);
    ck_assert_int_eq(refused(line, (int)sizeof(line) - 1), 400);
}
END_TEST

/* ---- large ones ------------------------------------------------------------------------------ */

static char large[HEAD_BYTES_MAX + 4096];

/* `before`, so many 'a', `behind`. */
static int fill(const char *before, int n, const char *behind)
{
    size_t at = strlen(before);
    memcpy(large, before, at);
    memset(large + at, 'a', (size_t)n);
    memcpy(large + at + n, behind, strlen(behind) + 1);
    return (int)(at + (size_t)n + strlen(behind));
}

START_TEST(limits)
{
    struct mg_request_info ri = {0};
    head_refusal r;
    int len = fill("GET /", HEAD_TARGET_MAX - 1, " HTTP/1.1\r\n" F);
    ck_assert_int_eq(head_parse(large, len, &ri, &r), len);
    ck_assert_int_eq(refused(large, fill("GET /", HEAD_TARGET_MAX, " HTTP/1.1\r\n" F)), 414);
    ck_assert_int_eq(refused(large, fill("GET /", HEAD_TARGET_MAX + 100, "")),
                     414); /* no end yet */
    ck_assert_int_eq(refused(large, fill("GET", HEAD_TARGET_MAX + 100, "")), 501);
    ck_assert_int_eq(refused(large, fill("G=", HEAD_TARGET_MAX + 100, "")), 400);

    const char *begin = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
    int rest = HEAD_BYTES_MAX - (int)strlen(begin) - 4;
    len = fill(begin, rest, "\r\n\r\n");
    ck_assert_int_eq(head_parse(large, len, &ri, &r), HEAD_BYTES_MAX);
    ck_assert_int_eq(refused(large, fill(begin, rest + 1, "\r\n\r\n")), 431);
    ck_assert_int_eq(head_parse(large, fill(begin, rest + 3, ""), &ri, &r), 0);
    ck_assert_int_eq(refused(large, fill(begin, rest + 4, "")), 431);

    for (int n = HEAD_FIELDS_MAX; n <= HEAD_FIELDS_MAX + 1; n++) {
        len = (int)strlen(strcpy(large, "GET / HTTP/1.1\r\n"));
        for (int i = 0; i < n; i++) len += (int)strlen(strcpy(large + len, "X: 1\r\n"));
        len += (int)strlen(strcpy(large + len, "\r\n"));
        int got = head_parse(large, len, &ri, &r);
        ck_assert_int_eq(got, n == HEAD_FIELDS_MAX ? len : -1);
    }
    ck_assert_int_eq(r.status, 431);
}
END_TEST

START_TEST(a_refused_head_request_is_known_as_one)
{
    struct mg_request_info ri = {.request_method = "GET"};
    head_refusal r;
    char head[] = "HEAD / HTTP/9.9\r\n\r\n", post[] = "POST / HTTP/9.9\r\n\r\n";
    ck_assert_int_lt(head_parse(head, (int)strlen(head), &ri, &r), 0);
    ck_assert_str_eq(ri.request_method, "HEAD");
    ck_assert_int_lt(head_parse(post, (int)strlen(post), &ri, &r), 0);
    ck_assert_ptr_null(ri.request_method);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("head");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, a_whole_head, 0, (int)(sizeof(good) / sizeof(good[0])));
    tcase_add_loop_test(tc, a_head_in_pieces, 0, (int)(sizeof(good) / sizeof(good[0])));
    tcase_add_loop_test(tc, a_broken_head, 0, (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tc, a_nul_ends_nothing);
    tcase_add_test(tc, limits);
    tcase_add_test(tc, a_refused_head_request_is_known_as_one);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
