/* test_guard.c -- each head that two parsers could read differently is refused, and no other. */
#include <string.h>

#include <check.h>
#include <civetweb.h>

#include "gateway/http/guard.h"
#include "tests/run_suite.h"

typedef struct {
    const char *version, *uri;
    const char *headers; /* "Name: value\n..." */
    int status;          /* 0: let through */
    int64_t length;
    bool chunked;
} row;

#define HOST "Host: localhost\n"

static const row rows[] = {
    {"1.1", "/v1/models", HOST, 0, -1, false},
    {"1.0", "/", "", 0, -1, false},
    {"1.1", "/", HOST "Content-Length: 0\n", 0, 0, false},
    {"1.1", "/", HOST "content-LENGTH: 123\n", 0, 123, false},
    {"1.1", "/", HOST "Content-Length: 999999999999999\n", 0, 999999999999999, false},
    {"1.1", "/", HOST "Content-Length: 007\n", 0, 7, false},
    {"1.1", "/", HOST "Transfer-Encoding: Chunked\n", 0, -1, true},
    {"1.1", "/", HOST "Content-Encoding: identity\n", 0, -1, false},
    {"1.1", "/", HOST "X: 1\nX: 2\nCookie: a\nCookie: b\n", 0, -1, false},
    {"1.1", "/a%20b?q=%7f&c=[]", HOST, 0, -1, false},
    {"1.1", "/", "Host: a.b-c_d.example:8443\n", 0, -1, false},
    {"1.1", "/", "Host: example.\n", 0, -1, false},
    {"1.1", "/", "Host: localhost:\n", 0, -1, false},
    {"1.1", "/", "Host: 127.0.0.1:65535\n", 0, -1, false},
    {"1.1", "/", "Host: [::1]:8443\n", 0, -1, false},
    {"1.1", "/", "Host: [fe80::1]\n", 0, -1, false},
    {"1.1", "/", HOST "Expect: 100-Continue\n", 0, -1, false},
    {"1.0", "/", HOST "Expect: anything\n", 0, -1, false},

    {"2.0", "/", HOST, 505, 0, false},
    {"0.9", "/", "", 505, 0, false},
    {"1.10", "/", HOST, 505, 0, false},
    {"", "/", HOST, 505, 0, false},
    {NULL, "/", HOST, 505, 0, false},
    {"1.1", "/", "", 400, 0, false},
    {"1.1", "/", HOST HOST, 400, 0, false},
    {"1.0", "/", HOST "HOST: other\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 3\nContent-Length: 3\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 3\nX: 1\ncontent-length: 4\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 3\nTransfer-Encoding: chunked\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: chunked\nContent-Length: 0\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: \n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: +3\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: -1\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 3,3\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 3 \n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 0x3\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 1e3\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Length: 1234567890123456\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: gzip, chunked\n", 501, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: chunked, chunked\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: gzip\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: chunked;q=1\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: ,chunked\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: chunked, identity\n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding: \n", 400, 0, false},
    {"1.1", "/", HOST "Transfer-Encoding:  chunked\n", 400, 0, false},
    {"1.0", "/", HOST "Transfer-Encoding: chunked\n", 400, 0, false},
    {"1.1", "/", HOST "Authorization: Bearer a\nauthorization: Bearer b\n", 400, 0, false},
    {"1.1", "/", HOST "x-api-key: a\nX-Api-Key: b\n", 400, 0, false},
    {"1.1", "/", HOST "api-key: a\napi-key: b\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Type: a\nContent-Type: b\n", 400, 0, false},
    {"1.1", "/", HOST "Content-Encoding: gzip\n", 415, 0, false},
    {"1.1", "/", "Host: \n", 400, 0, false},
    {"1.1", "/", "Host: a b\n", 400, 0, false},
    {"1.1", "/", "Host: a/b\n", 400, 0, false},
    {"1.1", "/", "Host: a@b\n", 400, 0, false},
    {"1.1", "/", "Host: a,b\n", 400, 0, false},
    {"1.1", "/", "Host: a..b\n", 400, 0, false},
    {"1.1", "/", "Host: .\n", 400, 0, false},
    {"1.1", "/", "Host: https://a\n", 400, 0, false},
    {"1.1", "/", "Host: a:b\n", 400, 0, false},
    {"1.1", "/", "Host: a:65536\n", 400, 0, false},
    {"1.1", "/", "Host: a:000080\n", 400, 0, false},
    {"1.1", "/", "Host: a:1:2\n", 400, 0, false},
    {"1.1", "/", "Host: ::1\n", 400, 0, false},
    {"1.1", "/", "Host: [::1\n", 400, 0, false},
    {"1.1", "/", "Host: [::1]8443\n", 400, 0, false},
    {"1.1", "/", "Host: [1.2.3.4]\n", 400, 0, false},
    {"1.1", "/", "Host: []\n", 400, 0, false},
    {"1.1", "/", "Host: %61\n", 400, 0, false},
    {"1.1", "/", "Host: m\xc3\xbcnchen\n", 400, 0, false},
    {"1.1", "/", HOST "Expect: 200-ok\n", 417, 0, false},
    {"1.1", "/", HOST "Expect: 100-continue\nExpect: more\n", 417, 0, false},
    {"1.1", "/a%", HOST, 400, 0, false},
    {"1.1", "/a%4", HOST, 400, 0, false},
    {"1.1", "/a%zz", HOST, 400, 0, false},
    {"1.1", "/a%00", HOST, 400, 0, false},
    {"1.1", "/a?b=%00", HOST, 400, 0, false},
    {"1.1", "/a?b=%0", HOST, 400, 0, false},
    {"1.1", "/a#b", HOST, 400, 0, false},
    {"1.1", "https://localhost/", HOST, 400, 0, false},
    {"1.1", "*", HOST, 400, 0, false},
    {"1.1", "", HOST, 400, 0, false},
    {"1.1", NULL, HOST, 400, 0, false},
    {"1.1", "/a b", HOST, 400, 0, false},
    {"1.1", "/a\tb", HOST, 400, 0, false},
    {"1.1", "/a\x7f", HOST, 400, 0, false},
    {"1.1", "/\xc3\xa9", HOST, 400, 0, false},
};

START_TEST(each_head)
{
    const row *r = &rows[_i];
    struct mg_request_info ri = {.http_version = r->version, .request_uri = r->uri};
    char text[512], uri[64];
    snprintf(text, sizeof(text), "%s", r->headers);
    snprintf(uri, sizeof(uri), "%s", r->uri ? r->uri : "");
    char *query = strchr(uri, '?');
    if (query) {
        *query = 0;
        ri.request_uri = uri;
        ri.query_string = query + 1;
    }
    for (char *p = text; *p;) {
        char *end = strchr(p, '\n'), *colon = strchr(p, ':');
        *end = *colon = 0;
        ri.http_headers[ri.num_headers++] = (struct mg_header){p, colon + 2};
        p = end + 1;
    }
    int status = 0;
    int64_t length;
    bool chunked;
    const char *wrong = guard_check(&ri, &status, &length, &chunked);
    if (r->status == 0) {
        ck_assert_msg(!wrong, "row %d: %s", _i, wrong);
        ck_assert_int_eq(length, r->length);
        ck_assert_int_eq(chunked, r->chunked);
    } else {
        ck_assert_msg(wrong != NULL, "row %d was let through", _i);
        ck_assert_int_eq(status, r->status);
        ck_assert(wrong[0] && strlen(wrong) < 100);
    }
}
END_TEST

static const struct {
    const char *version, *connection; /* NULL: none is said */
    bool stays;
} ends[] = {
    {"1.1", NULL, true},
    {"1.1", "close", false},
    {"1.1", "Keep-Alive", true},
    {"1.1", "upgrade, CLOSE", false},
    {"1.1", "closed", true},
    {"1.1", "", true},
    {"1.1", "keep-alive ,close", false},
    {"1.0", NULL, false},
    {"1.0", "keep-alive", true},
    {"1.0", "close", false},
    {"1.0", "TE,\tKeep-Alive\t", true},
    {NULL, NULL, false},
};

START_TEST(whether_the_connection_stays)
{
    struct mg_request_info ri = {.http_version = ends[_i].version};
    if (ends[_i].connection) {
        ri.http_headers[ri.num_headers++] = (struct mg_header){"connection", ends[_i].connection};
    }
    ck_assert_int_eq(guard_keeps_alive(&ri), ends[_i].stays);
}
END_TEST

START_TEST(keys_are_forgotten)
{
    char bearer[] = "Bearer lk_secret", one[] = "lk_one", two[] = "lk_two", other[] = "kept";
    struct mg_request_info ri = {.num_headers = 4,
                                 .http_headers = {{"authorization", bearer},
                                                  {"X-API-Key", one},
                                                  {"api-key", two},
                                                  {"x-api-keys", other}}};
    guard_forget_keys(&ri);
    for (size_t i = 0; i < sizeof(bearer); i++) ck_assert_int_eq(bearer[i], 0);
    for (size_t i = 0; i < sizeof(one); i++) ck_assert_int_eq(one[i] | two[i], 0);
    ck_assert_str_eq(other, "kept");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("guard");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, each_head, 0, (int)(sizeof(rows) / sizeof(rows[0])));
    tcase_add_loop_test(tc, whether_the_connection_stays, 0, (int)(sizeof(ends) / sizeof(ends[0])));
    tcase_add_test(tc, keys_are_forgotten);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
