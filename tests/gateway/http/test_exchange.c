/* test_exchange.c -- bodies in and answers out, byte for byte, without a socket. */
#include <string.h>

#include <check.h>

#include "gateway/http/exchange.h"
#include "tests/gateway/http/fake_civetweb.h"
#include "tests/run_suite.h"

/* ---- the query ---------------------------------------------------------------------------- */

static const struct {
    const char *query, *name, *value;
} queries[] = {
    {NULL, "a", NULL},      {"", "a", NULL},       {"a=1", "a", "1"},
    {"ab=2&a=1", "a", "1"}, {"a=1&a=2", "a", "1"}, /* the first one counts */
    {"a", "a", NULL},       {"a=", "a", ""},       {"b=1&a=%41+c%2Bd", "a", "A c+d"},
    {"a=x%00y", "a", NULL}, /* no NUL inside */
    {"A=1", "a", NULL},     {"x=a=1", "a", NULL},  {"a=b=c", "a", "b=c"},
    {"&&a=1&", "a", "1"},
};

START_TEST(query_values)
{
    exchange *x = fake_request("GET", "/");
    x->query = queries[_i].query;
    const char *got = exchange_query(x, queries[_i].name);
    if (queries[_i].value)
        ck_assert_str_eq(got, queries[_i].value);
    else
        ck_assert_ptr_null(got);
}
END_TEST

/* ---- bodies ------------------------------------------------------------------------------- */

static bool read_all(size_t max, const char *want)
{
    const char *text;
    size_t len;
    bool ok = exchange_read_body(&fake_x, max, &text, &len);
    if (ok) {
        ck_assert_uint_eq(len, strlen(want));
        ck_assert_str_eq(text, want);
    }
    return ok;
}

/* The text as a chunked body, in chunks of `size` bytes, with an extension and a trailer. */
static const char *chunked(const char *text, size_t size)
{
    static char out[700000];
    size_t n = 0, len = strlen(text);
    for (size_t at = 0; at < len; at += size) {
        size_t some = len - at < size ? len - at : size;
        n += (size_t)sprintf(out + n, "%zX%s\r\n", some, at ? "" : ";a=\"b\"");
        memcpy(out + n, text + at, some);
        n += some;
        n += (size_t)sprintf(out + n, "\r\n");
    }
    sprintf(out + n, "0\r\nX-Sum: 1\r\n\r\n");
    return out;
}

START_TEST(a_body_in_any_pieces)
{
    static char big[100000];
    memset(big, 'x', sizeof(big) - 1);
    for (size_t piece = 1; piece < 100000; piece = piece * 7 + 1) {
        (void)fake_request("POST", "/");
        fake_body(big, sizeof(big) - 1, piece);
        ck_assert(read_all(sizeof(big), big));
        (void)fake_request("POST", "/");
        fake_body(chunked(big, piece % 9000 + 1), -1, piece);
        fake_x.body.chunked = true;
        ck_assert(read_all(sizeof(big), big));
        ck_assert(fake_x.body.read);
        ck_assert_uint_eq(fake_conn.at, fake_conn.len); /* what follows is the next request */
    }
    (void)fake_request("POST", "/");
    ck_assert(read_all(10, "")); /* none at all */
    ck_assert_int_eq(fake_status(), -1);
}
END_TEST

START_TEST(a_body_that_is_too_large)
{
    (void)fake_request("POST", "/");
    fake_body("12345678901", 11, 64);
    ck_assert(!read_all(10, ""));
    ck_assert_int_eq(fake_status(), 413);
    ck_assert_uint_eq(fake_conn.at, 0); /* refused by its length alone */
    ck_assert(fake_said("Connection: close"));

    (void)fake_request("POST", "/");
    fake_body(chunked("12345678901", 6), -1, 4);
    fake_x.body.chunked = true;
    ck_assert(!read_all(10, ""));
    ck_assert_int_eq(fake_status(), 413);

    (void)fake_request("POST", "/");
    fake_body("B\r\n", -1, 4);
    fake_x.body.chunked = true;
    ck_assert(!read_all(10, ""));
    ck_assert_int_eq(fake_status(), 413); /* by what the chunk says of itself */

    (void)fake_request("POST", "/");
    fake_body("1234567890", 10, 4);
    ck_assert(read_all(10, "1234567890"));
}
END_TEST

START_TEST(a_body_that_does_not_come)
{
    (void)fake_request("POST", "/");
    fake_body("123", 10, 64); /* the client is still there, and silent */
    ck_assert(!read_all(10, ""));
    ck_assert_int_eq(fake_status(), 408);
    ck_assert_str_eq(fake_code(), "request_timeout");
    ck_assert(fake_said("Connection: close"));

    (void)fake_request("POST", "/");
    fake_body("a\r\n123", -1, 64);
    fake_x.body.chunked = fake_conn.broken = true;
    ck_assert(!read_all(10, ""));
    ck_assert_int_eq(fake_status(), 400);
    ck_assert_int_eq(fake_conn.n_writes, 1);
}
END_TEST

static bool take_none(void *arg, const void *data, size_t len)
{
    (void)data;
    *(size_t *)arg += len;
    return false;
}

START_TEST(a_reader_that_has_enough)
{
    err e;
    size_t seen = 0;
    exchange *x = fake_request("POST", "/");
    fake_body("1234567890", 10, 4);
    ck_assert_int_eq(exchange_stream_body(x, 10, take_none, &seen, &e), ERR_CANCELLED);
    ck_assert_uint_eq(seen, 4);
    ck_assert(!x->body.read);
    exchange_reply(x, 200, "text/plain", "", 0);
    ck_assert(fake_said("Connection: close")); /* the rest would be read as the next request */
    exchange_finish(x);
    ck_assert(!fake_conn.keep_alive);
}
END_TEST

START_TEST(expect_is_answered_only_when_the_body_is_wanted)
{
    (void)fake_request("POST", "/");
    fake_header("Expect", "100-Continue");
    fake_body("12", 2, 64);
    ck_assert(read_all(10, "12"));
    ck_assert_str_eq(fake_conn.out, "HTTP/1.1 100 Continue\r\n\r\n");
    (void)fake_request("POST", "/");
    fake_header("Expect", "100-continue");
    fake_body("12345678901", 11, 64);
    ck_assert(!read_all(10, ""));
    ck_assert_int_eq(fake_status(), 413);
    (void)fake_request("POST", "/");
    fake_header("Expect", "100-continue");
    fake_body("12", 2, 64);
    fake_x.http10 = true; /* which does not know of it */
    ck_assert(read_all(10, "12"));
    ck_assert_str_eq(fake_conn.out, "");
}
END_TEST

static const struct {
    const char *type, *body;
    int status; /* 0: taken */
} jsons[] = {
    {"application/json", "{\"a\":1}", 0},
    {"Application/JSON; charset=UTF-8", "{}", 0},
    {"application/json;charset=\"utf-8\"", "{}", 0},
    {"application/json ; v=1", "[]", 0},
    {NULL, "{}", 415},
    {"", "{}", 415},
    {"text/plain", "{}", 415},
    {"application/jsonx", "{}", 415},
    {"application/json charset=utf-8", "{}", 415},
    {"application/json; charset=utf-16", "{}", 415},
    {"application/json", "", 400},
    {"application/json", "{", 400},
    {"application/json", "{} x", 400},
    {"application/json", "{\"a\":1,\"a\":2}", 400},
    {"application/json", "{\"a\":\"\xff\"}", 400},
    {"application/json", "{\"a\":\"\\u0000\"}", 400},
};

START_TEST(json_bodies)
{
    const cJSON *tree;
    exchange *x = fake_request("POST", "/");
    if (jsons[_i].type) fake_header("Content-Type", jsons[_i].type);
    fake_body(jsons[_i].body, (int64_t)strlen(jsons[_i].body), 3);
    bool ok = exchange_read_json(x, &tree);
    ck_assert_int_eq(ok, jsons[_i].status == 0);
    ck_assert_int_eq(fake_status(), ok ? -1 : jsons[_i].status);
    ck_assert_int_eq(tree != NULL, ok);
}
END_TEST

/* ---- answers ------------------------------------------------------------------------------ */

START_TEST(an_answer_is_given_once)
{
    exchange *x = fake_request("GET", "/");
    exchange_reply(x, 200, "text/plain", "hello", 5);
    exchange_reply(x, 500, "text/plain", "again", 5);
    exchange_error(x, 400, "t", "c", NULL, "no");
    exchange_finish(x);
    ck_assert_int_eq(fake_conn.n_writes, 1);
    ck_assert_int_eq(fake_status(), 200);
    ck_assert_str_eq(fake_text(), "hello");
    ck_assert(fake_said("Content-Length: 5") && fake_said("x-request-id: req_1"));
    ck_assert(fake_said("Connection: keep-alive") && fake_conn.keep_alive);
    ck_assert(fake_said("Cache-Control: no-store"));
}
END_TEST

START_TEST(head_has_a_length_and_no_body)
{
    exchange *x = fake_request("HEAD", "/");
    exchange_reply(x, 200, "text/plain", "hello", 5);
    ck_assert(fake_said("Content-Length: 5"));
    ck_assert_str_eq(fake_text(), "");
}
END_TEST

START_TEST(a_handler_without_an_answer)
{
    exchange *x = fake_request("GET", "/");
    exchange_finish(x);
    ck_assert_int_eq(fake_status(), 500);
    ck_assert_str_eq(fake_code(), "internal_error");
}
END_TEST

START_TEST(headers_can_not_be_forged)
{
    exchange *x = fake_request("GET", "/");
    exchange_add_header(x, "x-echo", "%s", "a\r\nSet-Cookie: b\x01\x7f\xc3");
    exchange_reply(x, 200, "text/plain", "", 0);
    ck_assert(fake_said("x-echo: a??Set-Cookie: b???"));
    ck_assert_ptr_null(strstr(fake_conn.out, "\nSet-Cookie"));
}
END_TEST

START_TEST(a_header_without_room_is_left_out_whole)
{
    char value[380];
    memset(value, 'v', sizeof(value) - 1);
    value[sizeof(value) - 1] = 0;
    exchange *x = fake_request("GET", "/");
    for (int i = 0; i < 20; i++) exchange_add_header(x, "x-long", "%s", value);
    exchange_add_header(x, "x-short", "1");
    exchange_reply(x, 200, "text/plain", "body", 4);
    ck_assert_str_eq(fake_text(), "body");
    ck_assert(fake_said("x-short: 1"));
    int n = 0;
    for (const char *p = fake_conn.out; (p = strstr(p, "x-long: ")) != NULL; p++) {
        n++;
        ck_assert_int_eq(strncmp(p + 8, value, sizeof(value) - 1), 0);
        ck_assert_int_eq(strncmp(p + 8 + sizeof(value) - 1, "\r\n", 2), 0);
    }
    ck_assert_int_eq(n, EXCHANGE_HEADERS_MAX / ((int)sizeof(value) - 1 + 10));
}
END_TEST

START_TEST(errors)
{
    exchange *x = fake_request("GET", "/");
    exchange_error(x, 401, "invalid_request_error", "bad", "p", "a \"quote\" and \xff\xc3");
    ck_assert(fake_said("WWW-Authenticate: Bearer"));
    ck_assert_str_eq(fake_text(), "{\"error\":{\"message\":\"a \\\"quote\\\" and ??\",\"type\":"
                                  "\"invalid_request_error\",\"param\":\"p\",\"code\":\"bad\"}}");
    x = fake_request("GET", "/");
    exchange_error(x, 409, "t", "c", NULL, "%0600d", 7); /* longer than a message may be */
    ck_assert(fake_said("x-should-retry: false"));
    ck_assert_str_eq(fake_code(), "c");
    x = fake_request("GET", "/");
    exchange_retry_after(x, 1001);
    exchange_error(x, 429, "t", "c", NULL, "wait");
    ck_assert(fake_said("retry-after: 2") && fake_said("retry-after-ms: 1001"));
    x = fake_request("GET", "/");
    exchange_retry_after(x, -5);
    exchange_error(x, 429, "t", "c", NULL, "wait");
    ck_assert(fake_said("retry-after: 1") && fake_said("retry-after-ms: 1"));
    x = fake_request("GET", "/");
    exchange_reply_err(x, &(err){ERR_SUSPENDED, "off"}, NULL);
    ck_assert_int_eq(fake_status(), 403);
    ck_assert_str_eq(fake_code(), "tenant_suspended");
}
END_TEST

START_TEST(ignored_parameters_are_named)
{
    exchange *x = fake_request("GET", "/");
    exchange_ignored_param(x, "one");
    exchange_ignored_param(x, "t\r\nwo");
    for (int i = 0; i < 100; i++) exchange_ignored_param(x, "a_rather_long_name_of_a_parameter");
    exchange_reply(x, 200, "text/plain", "x", 1);
    ck_assert_ptr_nonnull(strstr(fake_conn.out, "x-ignored-params: one,t??wo,a_rather"));
    ck_assert_str_eq(fake_text(), "x");
}
END_TEST

START_TEST(a_draining_server_closes)
{
    atomic_store(&fake_host.draining, true);
    exchange *x = fake_request("GET", "/");
    exchange_reply(x, 200, "text/plain", "x", 1);
    exchange_finish(x);
    ck_assert(fake_said("Connection: close") && !fake_conn.keep_alive);
    atomic_store(&fake_host.draining, false);
}
END_TEST

START_TEST(a_stream)
{
    exchange *x = fake_request("GET", "/");
    ck_assert(!exchange_stream_write(x, "x", 1)); /* not begun */
    ck_assert(exchange_stream_begin(x, "text/event-stream"));
    ck_assert(fake_said("Transfer-Encoding: chunked") && fake_said("X-Accel-Buffering: no"));
    ck_assert_ptr_null(strstr(fake_conn.out, "Content-Length"));
    char big[5000];
    memset(big, 'b', sizeof(big));
    ck_assert(exchange_stream_write(x, "data: 1\n\n", 9));
    ck_assert(exchange_stream_write(x, "", 0)); /* would have ended it */
    ck_assert(exchange_stream_write(x, big, sizeof(big)));
    exchange_stream_end(x);
    exchange_stream_end(x);
    exchange_finish(x);
    ck_assert_int_eq(strncmp(fake_text(), "9\r\ndata: 1\n\n\r\n1388\r\nbbb", 23), 0);
    ck_assert_str_eq(fake_conn.out + fake_conn.out_len - 8, "b\r\n0\r\n\r\n");
    ck_assert_int_eq(fake_conn.n_writes, 4); /* one for each chunk */
    ck_assert(fake_conn.keep_alive);
    ck_assert_int_eq(x->status, 200);
}
END_TEST

START_TEST(a_stream_for_http_1_0)
{
    exchange *x = fake_request("GET", "/");
    x->http10 = true;
    ck_assert(exchange_stream_begin(x, "text/event-stream"));
    ck_assert(exchange_stream_write(x, "data: 1\n\n", 9));
    exchange_stream_end(x);
    exchange_finish(x);
    ck_assert(fake_said("Connection: close") && !fake_conn.keep_alive); /* which is its end */
    ck_assert_ptr_null(strstr(fake_conn.out, "Transfer-Encoding"));
    ck_assert_str_eq(fake_text(), "data: 1\n\n");
    ck_assert_int_eq(x->status, 200);
}
END_TEST

START_TEST(a_stream_that_is_cut_does_not_look_whole)
{
    exchange *x = fake_request("GET", "/");
    ck_assert(exchange_stream_begin(x, "text/event-stream"));
    ck_assert(exchange_stream_write(x, "data: 1\n\n", 9));
    exchange_finish(x); /* the handler gave up */
    ck_assert_ptr_null(strstr(fake_conn.out, "\r\n0\r\n"));
    ck_assert(!fake_conn.keep_alive);
    ck_assert_int_eq(x->status, 499);
}
END_TEST

START_TEST(a_client_that_has_gone)
{
    exchange *x = fake_request("GET", "/");
    fake_conn.gone = true;
    ck_assert(!exchange_stream_begin(x, "text/event-stream"));
    ck_assert(!exchange_stream_write(x, "x", 1));
    exchange_stream_end(x);
    exchange_finish(x);
    ck_assert_int_eq(x->status, 499);
    ck_assert(!fake_conn.keep_alive);
    x = fake_request("GET", "/");
    fake_conn.gone = true;
    exchange_reply(x, 200, "text/plain", "x", 1);
    ck_assert_int_eq(x->status, 499);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("exchange");
    TCase *tc = tcase_create("all");
    tcase_add_loop_test(tc, query_values, 0, (int)(sizeof(queries) / sizeof(queries[0])));
    tcase_add_test(tc, a_body_in_any_pieces);
    tcase_add_test(tc, a_body_that_is_too_large);
    tcase_add_test(tc, a_body_that_does_not_come);
    tcase_add_test(tc, a_reader_that_has_enough);
    tcase_add_test(tc, expect_is_answered_only_when_the_body_is_wanted);
    tcase_add_loop_test(tc, json_bodies, 0, (int)(sizeof(jsons) / sizeof(jsons[0])));
    tcase_add_test(tc, an_answer_is_given_once);
    tcase_add_test(tc, head_has_a_length_and_no_body);
    tcase_add_test(tc, a_handler_without_an_answer);
    tcase_add_test(tc, headers_can_not_be_forged);
    tcase_add_test(tc, a_header_without_room_is_left_out_whole);
    tcase_add_test(tc, errors);
    tcase_add_test(tc, ignored_parameters_are_named);
    tcase_add_test(tc, a_draining_server_closes);
    tcase_add_test(tc, a_stream);
    tcase_add_test(tc, a_stream_for_http_1_0);
    tcase_add_test(tc, a_stream_that_is_cut_does_not_look_whole);
    tcase_add_test(tc, a_client_that_has_gone);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
