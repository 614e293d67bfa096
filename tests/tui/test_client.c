/* test_client.c -- the HTTPS client against a TLS server of a few lines that answers by script.
 *
 * The server is a thread of this process: it takes connections one after the other, reads one
 * request at a time (headers and Content-Length bytes of body), keeps it for the test to look at,
 * and writes what the test has laid ready.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <check.h>
#include <openssl/ssl.h>

#include "engine/base/json.h"
#include "gateway/net/devcert.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"
#include "tui/client.h"

enum { ANSWERS_MAX = 4, REQUEST_MAX = 1 << 20 };

typedef struct {
    const char *bytes; /* NULL: nothing is said, the connection stays open until the client goes */
    bool close;        /* afterwards */
    bool early;        /* before the body is read */
} answer;

static struct {
    int fd, port, n_answers;
    SSL_CTX *ctx;
    pthread_t thread;
    answer answers[ANSWERS_MAX];
    char *request; /* the last one, whole */
    atomic_int n_requests, n_connections;
    char dir[64], cert[128], key[128];
} srv;

/* Reads one request; 0: the client is gone. */
static size_t read_request(SSL *ssl, bool head_only)
{
    size_t n = 0, want = SIZE_MAX;
    while (n < want) {
        int got = SSL_read(ssl, srv.request + n, (int)(REQUEST_MAX - 1 - n));
        if (got <= 0) return 0;
        n += (size_t)got;
        srv.request[n] = 0;
        const char *end = strstr(srv.request, "\r\n\r\n"), *length;
        if (!end) continue;
        want = (size_t)(end - srv.request) + 4;
        if (head_only) break;
        length = strcasestr(srv.request, "\r\ncontent-length:");
        if (length && length < end) want += strtoul(length + 17, NULL, 10);
    }
    return n;
}

static void *serve(void *arg)
{
    (void)arg;
    for (int next = 0; next < srv.n_answers;) {
        int fd = accept(srv.fd, NULL, NULL);
        if (fd < 0) break;
        atomic_fetch_add(&srv.n_connections, 1);
        SSL *ssl = SSL_new(srv.ctx);
        (void)SSL_set_fd(ssl, fd);
        if (SSL_accept(ssl) == 1) {
            for (bool open = true; open && next < srv.n_answers;) {
                const answer *a = &srv.answers[next];
                if (!read_request(ssl, a->early)) break;
                atomic_fetch_add(&srv.n_requests, 1);
                next++;
                char c;
                if (a->bytes)
                    (void)SSL_write(ssl, a->bytes, (int)strlen(a->bytes));
                else
                    (void)SSL_read(ssl, &c, 1); /* until the client goes */
                while (a->early && SSL_read(ssl, srv.request, REQUEST_MAX - 1) > 0) continue;
                open = a->bytes && !a->close;
            }
        }
        (void)SSL_shutdown(ssl);
        SSL_free(ssl);
        (void)close(fd);
    }
    return NULL;
}

static void start(const answer *answers, int n)
{
    memcpy(srv.answers, answers, (size_t)n * sizeof(*answers));
    srv.n_answers = n;
    ck_assert_int_eq(pthread_create(&srv.thread, NULL, serve, NULL), 0);
}

static void set_up(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    err e;
    (void)signal(SIGPIPE, SIG_IGN);
    memset(&srv, 0, sizeof(srv));
    tmpdir_make(srv.dir);
    snprintf(srv.cert, sizeof(srv.cert), "%s/cert.pem", srv.dir);
    snprintf(srv.key, sizeof(srv.key), "%s/key.pem", srv.dir);
    ck_assert_int_eq(devcert_write(srv.cert, srv.key, &e), ERR_NONE);
    srv.ctx = SSL_CTX_new(TLS_server_method());
    ck_assert_int_eq(SSL_CTX_use_certificate_chain_file(srv.ctx, srv.cert), 1);
    ck_assert_int_eq(SSL_CTX_use_PrivateKey_file(srv.ctx, srv.key, SSL_FILETYPE_PEM), 1);
    srv.request = calloc(1, REQUEST_MAX);
    srv.fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(srv.fd, (struct sockaddr *)&a, sizeof(a)), 0);
    ck_assert_int_eq(listen(srv.fd, 8), 0);
    ck_assert_int_eq(getsockname(srv.fd, (struct sockaddr *)&a, &len), 0);
    srv.port = ntohs(a.sin_port);
}

static void tear_down(void)
{
    (void)shutdown(srv.fd, SHUT_RDWR);
    (void)close(srv.fd);
    if (srv.n_answers) (void)pthread_join(srv.thread, NULL);
    SSL_CTX_free(srv.ctx);
    free(srv.request);
    tmpdir_remove(srv.dir);
}

static client *open_client(const char *host, const char *ca)
{
    char url[64];
    client *c;
    err e;
    snprintf(url, sizeof(url), "https://%s:%d/", host, srv.port);
    client_options o = {.url = url, .ca_file = ca, .key = "lk_topsecret"};
    ck_assert_int_eq(client_open(&c, &o, &e), ERR_NONE);
    return c;
}

#define HEAD(status, length) "HTTP/1.1 " status "\r\nContent-Length: " length "\r\n"

/* ------------------------------------------------------------------------------------ */

START_TEST(plain_and_kept_alive)
{
    static const answer a[] = {
        {.bytes = HEAD("200 OK", "7") "Content-Type: application/json\r\nETag: \"7\"\r\n"
                                      "x-request-id: req_1\r\n\r\n{\"a\":1}"},
        {.bytes = HEAD("404 Not Found", "42") "Retry-After: 3\r\nretry-after-ms: 250\r\n\r\n"
                                              "{\"error\":{\"message\":\"no such\\u0007thing\"}}"},
        {.bytes = HEAD("204 No Content", "0") "\r\n"},
    };
    client_reply r;
    cJSON *tree;
    err e;
    char text[64];
    start(a, 3);
    client *c = open_client("localhost", srv.cert);
    client_request rq = {.method = "GET", .path = "/v1/x?y=1", .headers = {"If-Match: \"6\""}};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    ck_assert(client_reply_ok(&r));
    ck_assert_str_eq(r.etag, "\"7\"");
    ck_assert_str_eq(r.request_id, "req_1");
    ck_assert_int_eq(client_reply_json(&r, &tree, &e), ERR_NONE);
    cJSON_Delete(tree);
    client_reply_clear(&r);
    ck_assert_ptr_eq(strstr(srv.request, "GET /v1/x?y=1 HTTP/1.1\r\n"), srv.request);
    ck_assert_ptr_nonnull(strstr(srv.request, "\r\nAuthorization: Bearer lk_topsecret\r\n"));
    ck_assert_ptr_nonnull(strstr(srv.request, "\r\nIf-Match: \"6\"\r\n"));

    rq = (client_request){.method = "POST", .path = "/v1/x", .body = "{}", .body_len = 2};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    ck_assert_int_eq(r.status, 404);
    ck_assert_int_eq(r.retry_after_ms, 250);
    client_reply_error(&r, text, sizeof(text));
    ck_assert_str_eq(text, "no such?thing"); /* nothing a terminal would obey */
    client_reply_clear(&r);
    ck_assert_ptr_nonnull(strstr(srv.request, "\r\nContent-Type: application/json\r\n"));
    ck_assert_ptr_nonnull(strstr(srv.request, "\r\n\r\n{}"));

    rq = (client_request){.method = "DELETE", .path = "/v1/x"};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    ck_assert_int_eq(r.status, 204);
    ck_assert_int_eq(client_reply_json(&r, &tree, &e), ERR_CORRUPT);
    client_reply_clear(&r);
    ck_assert_int_eq(atomic_load(&srv.n_connections), 1);
    client_close(c);
}
END_TEST

typedef struct {
    char got[256];
    int stop_after, n;
} sink;

static bool on_event(void *arg, const char *data, size_t len)
{
    sink *s = arg;
    strncat(s->got, data, len);
    strcat(s->got, "|");
    return ++s->n != s->stop_after;
}

START_TEST(events)
{
    static const char stream[] =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
        "7\r\ndata: a\r\n5\r\n\n\n: p\r\n5\r\n\n\ndat\r\n8\r\na: [DON]\r\n2\r\n\n\n\r\n0\r\n\r\n";
    static const answer a[] = {
        {.bytes = stream}, {.bytes = stream}, {.bytes = HEAD("400 Bad Request", "2") "\r\n{}"}};
    client_reply r;
    sink s = {0};
    err e;
    start(a, 3);
    client *c = open_client("localhost", srv.cert);
    client_request rq = {.method = "POST",
                         .path = "/",
                         .body = "{}",
                         .body_len = 2,
                         .on_event = on_event,
                         .on_arg = &s};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    ck_assert_str_eq(s.got, "a|[DON]|");
    ck_assert_ptr_null(r.body);
    client_reply_clear(&r);
    s = (sink){.stop_after = 1};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_CANCELLED);
    ck_assert_str_eq(s.got, "a|");
    client_reply_clear(&r);
    s = (sink){0};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE); /* an error is no event */
    ck_assert_int_eq(r.status, 400);
    ck_assert_str_eq(r.body, "{}");
    ck_assert_str_eq(s.got, "");
    client_reply_clear(&r);
    client_close(c);
}
END_TEST

typedef struct {
    int64_t at, fail_at;
    int64_t seen;
} source;

static size_t produce(void *arg, char *to, size_t cap)
{
    source *s = arg;
    if (s->fail_at && s->at >= s->fail_at) return 0;
    if (cap > 1000) cap = 1000;
    memset(to, 'x', cap);
    s->at += (int64_t)cap;
    return cap;
}

static void progress(void *arg, int64_t sent, int64_t received)
{
    (void)received;
    ((source *)arg)->seen = sent;
}

START_TEST(uploads)
{
    static const answer a[] = {{.bytes = HEAD("201 Created", "0") "\r\n"}, {.bytes = NULL}};
    source s = {0};
    client_reply r;
    err e;
    start(a, 2);
    client *c = open_client("localhost", srv.cert);
    client_request rq = {.method = "PUT",
                         .path = "/f",
                         .type = "application/x-tar",
                         .source = produce,
                         .source_arg = &s,
                         .source_bytes = 100500,
                         .on_progress = progress,
                         .progress_arg = &s};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    ck_assert_int_eq(r.status, 201);
    ck_assert_int_eq(s.seen, 100500);
    ck_assert_ptr_nonnull(strstr(srv.request, "Content-Length: 100500\r\n"));
    ck_assert_ptr_null(strstr(srv.request, "Expect"));
    ck_assert_uint_eq(strlen(strstr(srv.request, "\r\n\r\n") + 4), 100500);
    client_reply_clear(&r);
    s = (source){.fail_at = 5000};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_IO);
    ck_assert_ptr_nonnull(strstr(e.msg, "could not be read"));
    client_reply_clear(&r);
    client_close(c);
}
END_TEST

START_TEST(refused_while_uploading)
{
    static const answer a[] = {
        {.bytes = HEAD("413 Content Too Large", "33") "Connection: close\r\n\r\n"
                                                      "{\"error\":{\"message\":\"too large\"}}  ",
         .early = true,
         .close = true}};
    source s = {0};
    client_reply r;
    err e;
    char text[64];
    start(a, 1);
    client *c = open_client("localhost", srv.cert);
    client_request rq = {.method = "POST",
                         .path = "/f",
                         .source = produce,
                         .source_arg = &s,
                         .source_bytes = 1 << 20};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    ck_assert_int_eq(r.status, 413);
    client_reply_error(&r, text, sizeof(text));
    ck_assert_str_eq(text, "too large");
    client_reply_clear(&r);
    client_close(c);
}
END_TEST

START_TEST(too_large_and_cut)
{
    static const answer a[] = {
        {.bytes = HEAD("200 OK", "20") "\r\n01234567890123456789", .close = true},
        {.bytes = HEAD("200 OK", "20") "\r\n0123", .close = true},
        {.bytes = "SSH-2.0-nonsense\r\n\r\n", .close = true},
    };
    client_reply r;
    err e;
    start(a, 3);
    client *c = open_client("localhost", srv.cert);
    client_request rq = {.method = "GET", .path = "/", .max_bytes = 10};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_LIMIT);
    client_reply_clear(&r);
    rq.max_bytes = 0;
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_IO);
    ck_assert(!client_unreachable(c));
    client_reply_clear(&r);
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_IO);
    client_reply_clear(&r);
    client_close(c);
}
END_TEST

START_TEST(silence)
{
    static const answer a[] = {{.bytes = NULL}, {.bytes = NULL}};
    client_reply r;
    err e;
    start(a, 2);
    client *c = open_client("localhost", srv.cert);
    client_request rq = {.method = "GET", .path = "/", .timeout_ms = -1, .idle_ms = 300};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_TIMEOUT);
    client_reply_clear(&r);
    rq = (client_request){.method = "GET", .path = "/", .timeout_ms = 300};
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_TIMEOUT);
    client_reply_clear(&r);
    client_close(c);
}
END_TEST

static void *cancel_it(void *c)
{
    while (atomic_load(&srv.n_requests) == 0) (void)usleep(1000);
    client_cancel(c);
    return NULL;
}

START_TEST(cancelled)
{
    static const answer a[] = {{.bytes = NULL}, {.bytes = HEAD("200 OK", "0") "\r\n"}};
    client_reply r;
    err e;
    pthread_t t;
    start(a, 2);
    client *c = open_client("localhost", srv.cert);
    client_request rq = {.method = "GET", .path = "/", .timeout_ms = -1};
    ck_assert_int_eq(pthread_create(&t, NULL, cancel_it, c), 0);
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_CANCELLED);
    client_reply_clear(&r);
    (void)pthread_join(t, NULL);
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE); /* it was that call only */
    client_reply_clear(&r);
    client_close(c);
}
END_TEST

START_TEST(whom_it_trusts)
{
    static const answer a[] = {{.bytes = HEAD("200 OK", "0") "\r\n"}};
    char other_cert[128], other_key[128];
    client_reply r;
    err e;
    client_request rq = {.method = "GET", .path = "/"};
    snprintf(other_cert, sizeof(other_cert), "%s/other.pem", srv.dir);
    snprintf(other_key, sizeof(other_key), "%s/other.key", srv.dir);
    ck_assert_int_eq(devcert_write(other_cert, other_key, &e), ERR_NONE);
    start(a, 1);
    static const char *const host[] = {"localhost", "localhost", "127.0.0.2", "localhost"};
    const char *ca[] = {other_cert, NULL, srv.cert, "/nonexistent.pem"};
    for (int i = 0; i < 4; i++) {
        client *c = open_client(host[i], ca[i]);
        ck_assert_int_eq(client_call(c, &rq, &r, &e), i == 2 ? ERR_IO : ERR_DENIED);
        ck_assert(client_unreachable(c));
        ck_assert_ptr_null(strstr(e.msg, "topsecret"));
        client_reply_clear(&r);
        client_close(c);
    }
    ck_assert_int_eq(atomic_load(&srv.n_requests), 0); /* the key never left */
    client *c = open_client("127.0.0.1", srv.cert);
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    client_reply_clear(&r);
    client_close(c);
    (void)unlink(other_cert);
    (void)unlink(other_key);
}
END_TEST

/* A dashboard stays open for weeks: its client reads again whom it trusts. */
START_TEST(trusts_the_file_as_it_is_now)
{
    static const answer a[] = {{.bytes = HEAD("200 OK", "0") "\r\n", .close = true},
                               {.bytes = HEAD("200 OK", "0") "\r\n"}};
    char other_cert[128], other_key[128];
    client_reply r;
    err e;
    client_request rq = {.method = "GET", .path = "/"};
    snprintf(other_cert, sizeof(other_cert), "%s/other.pem", srv.dir);
    snprintf(other_key, sizeof(other_key), "%s/other.key", srv.dir);
    ck_assert_int_eq(devcert_write(other_cert, other_key, &e), ERR_NONE);
    start(a, 2);
    client *c = open_client("localhost", srv.cert);
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_NONE);
    client_reply_clear(&r);
    ck_assert_int_eq(SSL_CTX_use_certificate_chain_file(srv.ctx, other_cert), 1);
    ck_assert_int_eq(SSL_CTX_use_PrivateKey_file(srv.ctx, other_key, SSL_FILETYPE_PEM), 1);
    ck_assert_int_eq(rename(other_cert, srv.cert), 0);
    ck_assert_msg(client_call(c, &rq, &r, &e) == ERR_NONE, "%s", e.msg);
    client_reply_clear(&r);
    client_close(c);
    (void)unlink(other_key);
}
END_TEST

START_TEST(nobody_there)
{
    client_reply r;
    err e;
    client *c;
    client_options o = {.url = "https://localhost:1"};
    client_request rq = {.method = "GET", .path = "/"};
    ck_assert_int_eq(client_open(&c, &o, &e), ERR_NONE);
    ck_assert_int_eq(client_call(c, &rq, &r, &e), ERR_IO);
    ck_assert(client_unreachable(c));
    ck_assert_int_eq(r.status, 0);
    client_reply_clear(&r);
    client_close(c);
}
END_TEST

START_TEST(bad_options)
{
    static const char *const urls[] = {
        "http://localhost",   "localhost:8443", "https://",       "https://u:p@localhost",
        "file:///etc/passwd", "https://a b",    "https://a\r\nb", ""};
    client *c;
    err e;
    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
        client_options o = {.url = urls[i]};
        ck_assert_msg(client_open(&c, &o, &e) == ERR_INPUT, "%s", urls[i]);
    }
    client_options o = {.url = "https://localhost", .key = "lk_a\r\nX: y"};
    ck_assert_int_eq(client_open(&c, &o, &e), ERR_INPUT);
    ck_assert_ptr_null(strstr(e.msg, "lk_a"));
    char out[16];
    ck_assert(client_escape("a/b ~\xc3", out, sizeof(out)));
    ck_assert_str_eq(out, "a%2Fb%20~%C3");
    ck_assert(!client_escape("aaaaaaaaaaaaaaaa", out, sizeof(out)));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, plain_and_kept_alive);
    tcase_add_test(tc, events);
    tcase_add_test(tc, uploads);
    tcase_add_test(tc, refused_while_uploading);
    tcase_add_test(tc, too_large_and_cut);
    tcase_add_test(tc, silence);
    tcase_add_test(tc, cancelled);
    tcase_add_test(tc, whom_it_trusts);
    tcase_add_test(tc, trusts_the_file_as_it_is_now);
    tcase_add_test(tc, nobody_there);
    tcase_add_test(tc, bad_options);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
